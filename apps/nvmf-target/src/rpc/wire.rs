//! The lines on the socket. Source: JSON-RPC 2.0 specification, sections 4 and 5.

use ferrocx_app_common::input::{self, Wrong};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Call, METHODS};
use crate::auth::key::without_key;

/// A request, as it came.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    jsonrpc: String,
    method: String,
    #[serde(default)]
    params: Option<Value>,
    /// Whoever leaves it out wants no answer.
    #[serde(default, deserialize_with = "present")]
    id: Option<Value>,
}

/// An `id` of null is one, unlike none.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// Why a request is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind, a negative number.
    pub code: i32,
    /// A sentence.
    pub message: String,
}

impl Failure {
    fn new(code: i32, message: String) -> Self {
        Self { code, message }
    }

    /// The line is no JSON.
    pub(super) fn parse(message: String) -> Self {
        Self::new(-32700, message)
    }

    /// The line is no request.
    pub(super) fn request(message: String) -> Self {
        Self::new(-32600, message)
    }

    /// The target cannot do it.
    pub(super) fn refused(message: String) -> Self {
        Self::new(-32000, message)
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    jsonrpc: String,
    /// The request's name.
    pub id: Value,
    /// What it brought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it brought nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure>,
}

impl Answer {
    pub(super) fn new(id: Value, done: Result<Value, Failure>) -> Self {
        let (result, error) = match done {
            Ok(result) => (Some(result), None),
            Err(failure) => (None, Some(failure)),
        };
        Self { jsonrpc: "2.0".into(), id, result, error }
    }

    /// The answer as a line.
    pub(super) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

impl Request {
    /// The line of a request.
    #[must_use]
    pub fn line(method: &str, params: &Value) -> Vec<u8> {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let mut line = request.to_string().into_bytes();
        line.push(b'\n');
        line
    }

    /// Reads a line: what is asked for, and the request's name if it wants an answer.
    ///
    /// # Errors
    ///
    /// What is wrong, and the request's name as far as it could be read.
    pub fn read(line: &[u8]) -> Result<(Call, Option<Value>), (Failure, Value)> {
        let value: Value = serde_json::from_slice(line)
            .map_err(|error| (Failure::parse(format!("this is no JSON: {error}")), Value::Null))?;
        if value.is_array() {
            let what = "several requests in an array are not taken; send a line for each";
            return Err((Failure::request(what.into()), Value::Null));
        }
        let id = value.get("id").cloned().unwrap_or(Value::Null);
        let fail = |failure| Err((failure, id.clone()));
        let request: Self = match input::json(value).map_err(without_key) {
            Ok(request) => request,
            Err(wrong) => return fail(Failure::request(format!("this is no request: {wrong}"))),
        };
        if request.jsonrpc != "2.0" {
            let what = format!("jsonrpc is `{}`; give \"2.0\"", request.jsonrpc);
            return fail(Failure::request(what));
        }
        if !matches!(request.id, None | Some(Value::Null | Value::String(_) | Value::Number(_))) {
            return fail(Failure::request("id is neither a number nor a text".into()));
        }
        let method = &request.method;
        if !METHODS.contains(&method.as_str()) {
            let what = format!("there is no method `{method}`; there are {}", METHODS.join(", "));
            return fail(Failure::new(-32601, what));
        }
        let params = request.params.unwrap_or_else(|| json!({}));
        match input::json(json!({"method": method, "params": params})).map_err(without_key) {
            Ok(call) => Ok((call, request.id)),
            Err(wrong) => {
                // What leads to them is not the caller's.
                let path = wrong.path.trim_start_matches("params").trim_start_matches('.');
                let wrong = Wrong { path: path.into(), ..wrong };
                fail(Failure::new(-32602, format!("parameters of {method}: {wrong}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let line = br#"{"jsonrpc": "2.0", "id": 7, "method": "namespace.remove",
            "params": {"nqn": "nqn.2014-08.a:s", "nsid": 3}}"#;
        let (call, id) = Request::read(line).unwrap();
        assert!(matches!(call, Call::RemoveNamespace { nqn, nsid: 3 } if nqn.ends_with(":s")));
        assert_eq!(id, Some(json!(7)));
        let (call, id) = Request::read(br#"{"jsonrpc":"2.0","method":"stats"}"#).unwrap();
        assert!(matches!(call, Call::Stats { format: super::super::Format::Json }));
        assert_eq!(id, None, "nobody waits");
        let line = br#"{"jsonrpc":"2.0","method":"stop","id":null}"#;
        assert_eq!(Request::read(line).unwrap().1, Some(Value::Null));
        let line = Request::line("subsystem.list", &json!({}));
        assert!(matches!(Request::read(&line).unwrap().0, Call::Subsystems {}));
        let params = json!({"nqn": "nqn.2014-08.a:s", "allow_any_host": true,
            "namespace": [{"size": "1MiB"}]});
        let line = Request::line("subsystem.add", &params);
        let (Call::AddSubsystem { subsystem }, _) = Request::read(&line).unwrap() else {
            panic!("another call");
        };
        assert_eq!(subsystem.namespaces.len(), 1);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_code() {
        let of = |body: &str| format!(r#"{{"jsonrpc":"2.0","id":1,{body}}}"#);
        for (line, code, says) in [
            ("{".to_owned(), -32700, "no JSON"),
            ("[]".to_owned(), -32600, "a line for each"),
            ("7".to_owned(), -32600, "no request"),
            (r#"{"jsonrpc":"1.0","method":"stop"}"#.to_owned(), -32600, "give \"2.0\""),
            (of(r#""method":"stop","more":1"#), -32600, "more"),
            (r#"{"jsonrpc":"2.0","id":[],"method":"stop"}"#.to_owned(), -32600, "neither"),
            (of(r#""method":"fly""#), -32601, "no method `fly`"),
            (of(r#""method":"stop","params":{"x":1}"#), -32602, "stop"),
            (
                of(r#""method":"port.add","params":{"port":70000}"#),
                -32602,
                "parameters of port.add: port is 70000; give a whole number from 0 to 65535",
            ),
            (of(r#""method":"port.add","params":[1,2]"#), -32602, "port.add"),
            (of(r#""method":"namespace.remove","params":{"nqn":"a"}"#), -32602, "nsid"),
            (of(r#""method":"stats","params":{"format":"xml"}"#), -32602, "xml"),
            (of(r#""method":"stats","params":{"format":"DHHC-1:00:a:"}"#), -32602, "a key is"),
            (of(r#""method":"stop","DHHC-1:00:a:":1"#), -32600, "a key is"),
        ] {
            let (failure, _) = Request::read(line.as_bytes()).unwrap_err();
            assert_eq!(failure.code, code, "{line}: {}", failure.message);
            assert!(failure.message.contains(says), "{line}: {}", failure.message);
            assert!(!failure.message.contains("DHHC-1"), "{}", failure.message);
        }
        let deep = "[".repeat(4000);
        assert_eq!(Request::read(deep.as_bytes()).unwrap_err().0.code, -32700);
    }
}
