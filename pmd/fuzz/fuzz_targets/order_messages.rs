//! Any bytes as requests and answers of both orders' protocols, and as what a client says to a
//! server of sessions: no field is of another length than its own, the server
//! takes or refuses what it hears and counts its own messages without a hole, and nothing panics.
#![no_main]

use ferrocx_tick2trade::proto::ouch::{self, Appendage, Tag};
use ferrocx_tick2trade::proto::soup::{Reject, Server, ServerConfig, ServerEvent, Splitter};
use ferrocx_tick2trade::proto::{Text, ouch42};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, arbitrary::Arbitrary)]
enum Step {
    /// A message: the place of its letter among those that there are, and what stands behind.
    Request(u8, Vec<u8>),
    Answer(u8, Vec<u8>),
    Older(bool, u8, Vec<u8>),
    /// Bytes of a client, as they come.
    Bytes(Vec<u8>),
    /// A packet of a client: its letter, and what stands behind.
    Packet(u8, Vec<u8>),
    /// The server has a message.
    Send(Vec<u8>),
    /// Time passes, in ms.
    Wait(u16),
}

/// A message of a letter that there is, and of its length, as far as there are bytes; what is more
/// stays behind it.
fn message(messages: &[(u8, usize)], which: u8, bytes: &[u8]) -> Vec<u8> {
    let (kind, len) = messages[usize::from(which) % messages.len()];
    let mut message = vec![kind];
    message.extend(bytes);
    message.resize(message.len().max(len), 0);
    message
}

/// Every field is found by its tag, and no tag gives a value of a length that is not its own.
fn check(appendage: &Appendage<'_>, len: usize) {
    let mut sum = 0;
    for (tag, value) in *appendage {
        sum += 2 + value.len();
        if let Some(found) = appendage.get(tag) {
            assert!(tag.value_len().is_none_or(|len| len == found.len()));
        }
        let _ = format!("{tag:?}");
    }
    assert!(sum <= len && appendage.is_empty() == (sum == 0));
    assert!((0..=u8::MAX).all(|tag| appendage.get(Tag(tag)).is_none_or(|it| it.len() < len)));
}

fuzz_target!(|steps: Vec<Step>| {
    let session = Text::new("TODAY").unwrap();
    let (mut now, mut out, mut is_open) = (0, Vec::new(), true);
    let mut server = Server::new(ServerConfig { session, ..ServerConfig::default() }, now);
    let (mut splitter, mut logins, mut expected) = (Splitter::new(64), 0, None);
    for step in steps {
        let mut input = Vec::new();
        match step {
            Step::Request(which, bytes) => {
                let message = message(ouch::Request::MESSAGES, which, &bytes);
                if let Ok((_, appendage)) = ouch::Request::parse(&message) {
                    check(&appendage, message.len());
                }
            }
            Step::Answer(which, bytes) => {
                let message = message(ouch::Answer::MESSAGES, which, &bytes);
                if let Ok((_, appendage)) = ouch::Answer::parse(&message) {
                    check(&appendage, message.len());
                }
            }
            Step::Older(is_request, which, bytes) if is_request => {
                let message = message(ouch42::Request::MESSAGES, which, &bytes);
                let right = ouch42::Request::MESSAGES.contains(&(message[0], message.len()));
                assert_eq!(ouch42::Request::parse(&message).is_ok(), right);
            }
            Step::Older(_, which, bytes) => {
                let message = message(ouch42::Answer::MESSAGES, which, &bytes);
                let right = ouch42::Answer::MESSAGES.contains(&(message[0], message.len()));
                assert_eq!(ouch42::Answer::parse(&message).is_ok(), right);
            }
            Step::Bytes(bytes) => input = bytes,
            Step::Packet(kind, payload) => {
                let len = u16::try_from(payload.len() + 1).unwrap_or(1);
                input.extend(len.to_be_bytes());
                input.push(kind);
                input.extend(payload);
            }
            Step::Send(payload) => {
                let number = server.send(&payload, now, &mut out);
                if let Some(number) = number {
                    assert_eq!(Some(number), expected);
                    expected = Some(number + 1);
                }
            }
            Step::Wait(ms) => {
                now += u64::from(ms) * 1_000_000;
                is_open &= server.poll(now, &mut out);
            }
        }
        let mut rest = &input[..];
        while is_open {
            match splitter.next(&mut rest) {
                Ok(Some(packet)) => match server.receive(packet, now) {
                    ServerEvent::Login(login) => {
                        logins += 1;
                        let next = login.next.to_number().unwrap_or(1).min(1 << 60);
                        match login.password.is_blank() {
                            true => server.reject(Reject::NotAuthorised, &mut out),
                            false => {
                                server.accept(next, now, &mut out);
                                expected = Some(next);
                            }
                        }
                    }
                    ServerEvent::Unsequenced(_) => assert!(expected.is_some(), "logged in"),
                    ServerEvent::Alive => {}
                    ServerEvent::LoggedOut | ServerEvent::Broken(_) => is_open = false,
                },
                Ok(None) => break,
                Err(_) => is_open = false,
            }
        }
        assert!(logins <= 1, "one login a connection");
    }
});
