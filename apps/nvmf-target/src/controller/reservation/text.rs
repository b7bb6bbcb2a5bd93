//! A reservation as text, for the folder that keeps it over a restart. Two lines:
//!
//! ```text
//! ferrocx-reservation 1 2f1d6c3a
//! {"namespace":"…","generation":2,"held":{"kind":3,"holder":"…"},"registrants":[…]}
//! ```
//!
//! The first has the format's name, its version, and the CRC-32 of the second. Hosts and namespaces
//! are written as UUIDs, which their identifiers need not be; a host with a key has the digest of
//! its name behind that, in the same form.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{HostId, Kind, MAX_REGISTRANTS, Registrant, Reservation};

/// What the first line begins with.
const NAME: &str = "ferrocx-reservation";
/// Of what is written here.
const VERSION: &str = "1";
/// Bytes of a text at most: a registrant has 120 at most.
pub const MAX_TEXT_BYTES: u64 = 16 << 10;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    namespace: String,
    generation: u32,
    held: Option<HeldText>,
    registrants: Vec<RegistrantText>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeldText {
    kind: u8,
    holder: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RegistrantText {
    host: String,
    key: u64,
}

fn name(id: [u8; 16]) -> String {
    Uuid::from_bytes(id).to_string()
}

fn parse(name: &str) -> Option<[u8; 16]> {
    Uuid::parse_str(name).ok().map(Uuid::into_bytes)
}

fn name_of(host: HostId) -> String {
    match host.name {
        Some(proved) => format!("{}/{}", name(host.id), name(proved)),
        None => name(host.id),
    }
}

fn parse_host(text: &str) -> Option<HostId> {
    Some(match text.split_once('/') {
        Some((id, proved)) => HostId { id: parse(id)?, name: Some(parse(proved)?) },
        None => HostId::nameless(parse(text)?),
    })
}

/// What is said of a text that is not as it was written.
const DAMAGED: &str = "it is damaged";

impl Reservation {
    /// The text of a reservation that outlives the target, of the namespace with this identifier.
    #[must_use]
    pub fn text(&self, namespace: [u8; 16]) -> String {
        let one = |it: &Registrant| RegistrantText { host: name_of(it.hostid), key: it.key };
        let held = self.held.map(|(kind, by)| HeldText { kind: kind as u8, holder: name_of(by) });
        let body = Body {
            namespace: name(namespace),
            generation: self.generation,
            held,
            registrants: self.registrants.iter().map(one).collect(),
        };
        // Strings and numbers always become text.
        let body = serde_json::to_string(&body).unwrap_or_default();
        let check = crc32fast::hash(body.as_bytes());
        format!("{NAME} {VERSION} {check:08x}\n{body}\n")
    }

    /// What a text says, of the namespace with this identifier.
    ///
    /// # Errors
    ///
    /// What is wrong with the text, as the end of a sentence.
    pub fn from_text(text: &str, namespace: [u8; 16]) -> Result<Self, String> {
        let mut lines = text.lines();
        let mut head = lines.next().unwrap_or("").split(' ');
        if head.next() != Some(NAME) {
            return Err("it is no reservation of ours".into());
        }
        let version = head.next().unwrap_or("");
        if version != VERSION {
            return Err(format!("it has format `{version}`, and this program knows {VERSION}"));
        }
        let (check, body) = (head.next(), lines.next().unwrap_or(""));
        let right = format!("{:08x}", crc32fast::hash(body.as_bytes()));
        if check != Some(&right) || head.next().is_some() || lines.next().is_some() {
            return Err(DAMAGED.into());
        }
        let body: Body = serde_json::from_str(body).map_err(|_| DAMAGED)?;
        if parse(&body.namespace) != Some(namespace) {
            return Err(format!("it is of namespace `{}`", body.namespace));
        }
        Ok(Self::from_body(&body).ok_or(DAMAGED)?)
    }

    /// `None` for what no reservation can be.
    fn from_body(body: &Body) -> Option<Self> {
        let mut it = Self { generation: body.generation, persists: true, ..Self::default() };
        for one in &body.registrants {
            let registrant = Registrant { hostid: parse_host(&one.host)?, key: one.key };
            let is_known = it.key_of(&registrant.hostid).is_some();
            if is_known || it.registrants.len() == MAX_REGISTRANTS {
                return None;
            }
            it.registrants.push(registrant);
        }
        if let Some(held) = &body.held {
            let holder = parse_host(&held.holder)?;
            it.key_of(&holder)?;
            it.held = Some((Kind::parse(held.kind).ok()?, holder));
        }
        Some(it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACE: [u8; 16] = [7; 16];

    fn reservation() -> Reservation {
        let mut it = Reservation::default();
        for host in [1, 2] {
            it.register(&HostId::nameless([host; 16]), 3 << 30, (0, u64::MAX - u64::from(host)))
                .unwrap();
        }
        let key = u64::MAX - 1;
        it.acquire(
            &HostId::nameless([1; 16]),
            (Kind::ExclusiveAccessRegistrants as u32) << 8,
            (key, 0),
        )
        .unwrap();
        it
    }

    #[test]
    fn a_text_has_all_of_a_reservation() {
        let it = reservation();
        let text = it.text(SPACE);
        // The check was computed by another program.
        let expected = "ferrocx-reservation 1 c460a3b0\n\
            {\"namespace\":\"07070707-0707-0707-0707-070707070707\",\"generation\":2,\
            \"held\":{\"kind\":4,\"holder\":\"01010101-0101-0101-0101-010101010101\"},\
            \"registrants\":[{\"host\":\"01010101-0101-0101-0101-010101010101\",\
            \"key\":18446744073709551614},{\"host\":\"02020202-0202-0202-0202-020202020202\",\
            \"key\":18446744073709551613}]}\n";
        assert_eq!(text, expected);
        assert_eq!(Reservation::from_text(&text, SPACE), Ok(it));
        // Nobody need be registered.
        let empty = Reservation { persists: true, ..Reservation::default() };
        assert_eq!(Reservation::from_text(&empty.text(SPACE), SPACE), Ok(empty));
        // The longest that there is.
        let mut full = Reservation::default();
        for host in 0..MAX_REGISTRANTS {
            let host = HostId::named([host as u8; 16], "nqn.2014-08.a:h");
            full.register(&host, 3 << 30, (0, u64::MAX)).unwrap();
        }
        let text = full.text(SPACE);
        assert!((text.len() as u64) < MAX_TEXT_BYTES);
        // Names that were proved are kept.
        assert_eq!(Reservation::from_text(&text, SPACE), Ok(full));
    }

    /// A text whose check is right.
    fn checked(body: &str) -> String {
        format!("ferrocx-reservation 1 {:08x}\n{body}\n", crc32fast::hash(body.as_bytes()))
    }

    #[test]
    fn texts_that_are_not_right_are_refused() {
        let text = reservation().text(SPACE);
        let why = |text: &str| Reservation::from_text(text, SPACE).unwrap_err();
        assert_eq!(why(""), "it is no reservation of ours");
        assert_eq!(why("{\"ptpl_activated\":true}"), "it is no reservation of ours");
        assert_eq!(
            why(&text.replacen(" 1 ", " 2 ", 1)),
            "it has format `2`, and this program knows 1"
        );
        assert_eq!(
            Reservation::from_text(&text, [8; 16]).unwrap_err(),
            "it is of namespace `07070707-0707-0707-0707-070707070707`"
        );
        // Each bit counts, and so does each byte at the end.
        for at in 0..text.len() - 1 {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let other = String::from_utf8(bytes).unwrap();
                assert!(Reservation::from_text(&other, SPACE).is_err(), "byte {at}, bit {bit}");
            }
            assert!(Reservation::from_text(&text[..at], SPACE).is_err(), "{at} bytes");
        }
        // What cannot be, with a check that is right.
        let host = "{\"host\":\"01010101-0101-0101-0101-010101010101\",\"key\":1}";
        let body = |held: &str, registrants: &str| {
            let space = "07070707-0707-0707-0707-070707070707";
            checked(&format!(
                "{{\"namespace\":\"{space}\",\"generation\":1,\"held\":{held},\
                 \"registrants\":[{registrants}]}}"
            ))
        };
        let by = |kind: u8, last: char| {
            format!("{{\"kind\":{kind},\"holder\":\"01010101-0101-0101-0101-01010101010{last}\"}}")
        };
        assert!(Reservation::from_text(&body(&by(1, '1'), host), SPACE).is_ok());
        for (held, registrants) in [
            (by(0, '1'), host.to_owned()),
            (by(7, '1'), host.to_owned()),
            (by(1, '2'), host.to_owned()),
            (by(1, 'x'), host.to_owned()),
            ("null".to_owned(), format!("{host},{host}")),
            ("null".to_owned(), "{\"host\":\"a host\",\"key\":1}".to_owned()),
            ("null".to_owned(), "{\"host\":\"a host\",\"key\":-1}".to_owned()),
        ] {
            assert_eq!(why(&body(&held, &registrants)), DAMAGED, "{held} {registrants}");
        }
        let other = |at: usize| format!("{{\"host\":\"{}\",\"key\":1}}", name([at as u8; 16]));
        let many: Vec<String> = (0..=MAX_REGISTRANTS).map(other).collect();
        assert_eq!(why(&body("null", &many.join(","))), DAMAGED);
    }
}
