//! What is wrong with a configuration file or a request: one sentence, with its place.
//!
//! A parser says where in a text it stopped, and what it expected in words of its own: "invalid
//! type: string "four", expected u32". [`toml()`] and [`json()`] say which field it is, what it is,
//! and what it can be: "line 2: limits.queues is "four"; give a whole number from 0 to 4294967295".
//!
//! # What it does not do
//!
//! It shows nothing of the text but what the parser quotes. Who has secrets in a text looks at
//! [`Wrong::path`] and [`Wrong::message`] before they are said.

use std::fmt;

use serde::de::DeserializeOwned;

/// Where a text is wrong, and what the parser says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The line, from 1, of a text that has lines.
    pub line: Option<usize>,
    /// The field, by the names and numbers that lead to it: `subsystem[0].nqn`. Empty for all of
    /// the text.
    pub path: String,
    /// The parser's own words, which may quote the field's value.
    pub message: String,
}

impl std::error::Error for Wrong {}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        let (path, message) = (&*self.path, &*self.message);
        let name = if path.is_empty() { "this" } else { path };
        if let Some((is, wanted)) = of_wrong_kind(message) {
            let table = if self.line.is_some() { "a table" } else { "an object" };
            write!(f, "{name} is {}; give {}", value(is, table), kind(wanted, table))
        } else if let Some((is, others)) = parted(message, "unknown variant ") {
            write!(f, "{name} is {is}; give {others}")
        } else if let Some((field, others)) = parted(message, "unknown field ") {
            let end = path.strip_suffix(field.trim_matches('`')).unwrap_or(path);
            write!(f, "there is no {field}{}; give {others}", within(end))
        } else if let Some(field) = message.strip_prefix("missing field ") {
            write!(f, "there is no {field}{}; give one", within(path))
        } else if path.is_empty() || message.contains(path) {
            f.write_str(message)
        } else {
            write!(f, "{path}: {message}")
        }
    }
}

/// ` in PATH`, or nothing for the whole.
fn within(path: &str) -> String {
    let path = path.trim_end_matches('.');
    if path.is_empty() { String::new() } else { format!(" in {path}") }
}

/// What something is, and what was expected.
fn of_wrong_kind(message: &str) -> Option<(&str, &str)> {
    let (is, wanted) = message.strip_prefix("invalid ")?.rsplit_once(", expected ")?;
    match is.split_once(": ") {
        Some(("type" | "value", is)) => Some((is, wanted)),
        // Fields without their names, too few of them.
        _ if is.starts_with("length ") && wanted.starts_with("struct ") => {
            Some(("sequence", wanted))
        }
        _ => None,
    }
}

/// `START x, expected y`, or that there is nothing to expect.
fn parted<'a>(message: &'a str, start: &str) -> Option<(&'a str, &'a str)> {
    let rest = message.strip_prefix(start)?;
    rest.split_once(", expected ").or_else(|| Some((rest.split_once(", ")?.0, "none")))
}

/// A value as serde names it, as the text has it, in which fields with names are `table`.
fn value<'a>(is: &'a str, table: &'a str) -> &'a str {
    match is {
        "sequence" => "a list",
        "map" => table,
        "null" | "unit value" => "nothing",
        _ => ["string ", "integer ", "floating point ", "boolean "]
            .iter()
            .find_map(|kind| is.strip_prefix(kind))
            .map_or(is, |value| value.trim_matches('`')),
    }
}

/// What serde expects, as a user would say it of a text in which fields with names are `table`.
fn kind(wanted: &str, table: &str) -> String {
    let up_to = |most: u64| format!("a whole number from 0 to {most}");
    match wanted {
        "u8" => up_to(u8::MAX.into()),
        "u16" => up_to(u16::MAX.into()),
        "u32" => up_to(u32::MAX.into()),
        "u64" | "usize" => "a whole number from 0".into(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".into(),
        "f32" | "f64" => "a number".into(),
        "a boolean" => "true or false".into(),
        "a string" => "text in quotes".into(),
        "a sequence" => "a list".into(),
        "a map" => table.into(),
        _ if wanted.starts_with("struct ") => table.into(),
        _ => wanted.into(),
    }
}

/// The path of an error, empty for the whole.
fn path_of(path: &serde_path_to_error::Path) -> String {
    let path = path.to_string();
    if path == "." { String::new() } else { path }
}

/// Reads a text in TOML.
///
/// # Errors
///
/// What is wrong, and where.
pub fn toml<T: DeserializeOwned>(text: &str) -> Result<T, Wrong> {
    let wrong = |path, error: &toml::de::Error| {
        let before = error.span().map_or(0, |span| span.start).min(text.len());
        let line = 1 + text.as_bytes()[..before].iter().filter(|&&byte| byte == b'\n').count();
        let message = error.message().trim_end().replace('\n', " ");
        Wrong { line: Some(line), path, message }
    };
    let text = toml::Deserializer::parse(text).map_err(|error| wrong(String::new(), &error))?;
    serde_path_to_error::deserialize(text)
        .map_err(|error| wrong(path_of(error.path()), error.inner()))
}

/// Takes a value in JSON apart.
///
/// # Errors
///
/// What is wrong, and where.
pub fn json<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Wrong> {
    serde_path_to_error::deserialize(value).map_err(|error| Wrong {
        line: None,
        path: path_of(error.path()),
        message: error.inner().to_string(),
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "it is only read into")]
    struct File {
        size: String,
        cores: Option<Vec<u16>>,
        #[serde(default)]
        parts: Vec<Part>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "it is only read into")]
    struct Part {
        count: u32,
        share: Option<f64>,
        is_on: Option<bool>,
        mode: Option<Mode>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        Fast,
        Slow,
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let part = |more: &str| format!("size = \"1\"\n[[parts]]\ncount = 1\n[[parts]]\n{more}");
        for (text, says) in [
            ("size = 5", "line 1: size is 5; give text in quotes"),
            ("size = \"1\"\ncores = \"four\"", "line 2: cores is \"four\"; give a list"),
            (
                "cores = [1,\n 2, 70000]",
                "line 2: cores[2] is 70000; give a whole number from 0 to 65535",
            ),
            ("size = \"1\"\n\nparts = 1", "line 3: parts is 1; give a list"),
            ("size = \"1\"\nparts = [7]", "line 2: parts[0] is 7; give a table"),
            (
                &part("count = -4"),
                "line 5: parts[1].count is -4; give a whole number from 0 to 4294967295",
            ),
            (&part("count = 1\nshare = true"), "line 6: parts[1].share is true; give a number"),
            (
                &part("count = 1\nis_on = []"),
                "line 6: parts[1].is_on is a list; give true or false",
            ),
            (
                &part("count = 1\nmode = \"idle\""),
                "line 6: parts[1].mode is `idle`; give `fast` or `slow`",
            ),
            (
                &part("cuont = 1"),
                "line 5: there is no `cuont` in parts[1]; give one of `count`, `share`, `is_on`, \
                 `mode`",
            ),
            (&part("share = 1"), "line 4: there is no `count` in parts[1]; give one"),
            ("cores = []", "line 1: there is no `size`; give one"),
            ("colour = 1", "line 1: there is no `colour`; give one of `size`, `cores`, `parts`"),
        ] {
            assert_eq!(toml::<File>(text).unwrap_err().to_string(), says);
        }
        for (text, says) in [("size = 1\nsize = 2", "line 2: "), ("a\nb", "line 1: ")] {
            let said = toml::<File>(text).unwrap_err().to_string();
            assert!(said.starts_with(says) && !said.contains('\n'), "{said}");
        }
        assert!(toml::<File>(&part("count = 1\nshare = 1.5")).is_ok());
    }

    #[test]
    fn requests_have_no_lines() {
        for (value, says) in [
            (json!([]), "this is a list; give an object"),
            (json!({"size": null}), "size is nothing; give text in quotes"),
            (json!({"size": "1", "parts": [{"count": 1.5}]}), "parts[0].count is 1.5"),
        ] {
            let said = json::<File>(value).unwrap_err().to_string();
            assert!(said.starts_with(says), "{said}");
        }
    }
}
