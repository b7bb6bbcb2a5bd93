//! Messages of an authentication: what Auth Send brings and what Auth Receive fetches.
//!
//! # Source
//!
//! NVM Express base 2.0, "DH-HMAC-CHAP Protocol"; reference 10.8.3.

use arrayvec::ArrayVec;

/// Security protocol of authentication, in byte 43 of the command.
pub const PROTOCOL: u8 = 0xe9;
/// Specific to that protocol: 1 in bytes 41 and 42 of the command.
pub const SPECIFIC: u16 = 0x0101;
/// Bytes of a message at most: a page, which the longest one is far from.
pub const MAX_BYTES: usize = 4096;
/// Hashes, and groups, that a host can name.
const MAX_IDS: usize = 30;
/// Bytes of a message without values, of a failure, and of a protocol that a host names.
const HEADER_BYTES: usize = 16;
const FAILURE_BYTES: usize = 8;
const PROTOCOL_BYTES: usize = 64;
/// Number of DH-HMAC-CHAP among protocols.
const DH_HMAC_CHAP: u8 = 1;
/// The only reason code: that authentication failed.
const FAILED: u8 = 1;

/// Kinds: messages of all protocols, and those of DH-HMAC-CHAP; and their numbers.
mod kind {
    pub(super) const COMMON: u8 = 0;
    pub(super) const CHAP: u8 = 1;
    pub(super) const NEGOTIATE: (u8, u8) = (COMMON, 0x00);
    pub(super) const CHALLENGE: (u8, u8) = (CHAP, 0x01);
    pub(super) const REPLY: (u8, u8) = (CHAP, 0x02);
    pub(super) const SUCCESS1: (u8, u8) = (CHAP, 0x03);
    pub(super) const SUCCESS2: (u8, u8) = (CHAP, 0x04);
    pub(super) const FAILURE2: (u8, u8) = (COMMON, 0xf0);
    pub(super) const FAILURE1: (u8, u8) = (COMMON, 0xf1);
}

/// Why an authentication failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Explanation(pub u8);

impl Explanation {
    /// The answer to a challenge is wrong, or there is no key for it.
    pub const FAILED: Self = Self(1);
    /// No protocol that both have.
    pub const PROTOCOL: Self = Self(2);
    /// A secure channel was asked for, and there is none.
    pub const SECURE_CHANNEL: Self = Self(3);
    /// No hash that both have.
    pub const HASH: Self = Self(4);
    /// No group that both have.
    pub const GROUP: Self = Self(5);
    /// A message has what it cannot have.
    pub const PAYLOAD: Self = Self(6);
    /// Another message was to come.
    pub const MESSAGE: Self = Self(7);

    /// A name for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::FAILED => "authentication failed",
            Self::PROTOCOL => "no protocol that both have",
            Self::SECURE_CHANNEL => "a secure channel was asked for",
            Self::HASH => "no hash that both have",
            Self::GROUP => "no group that both have",
            Self::PAYLOAD => "incorrect payload",
            Self::MESSAGE => "incorrect message",
            _ => "unknown explanation",
        }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message<'a> {
    /// Of the host: what it can do.
    Negotiate {
        /// Whether it wants a secure channel behind this.
        secure_channel: u8,
        /// Numbers of its hashes and of its groups; none where it lacks the protocol.
        ids: Option<Ids>,
    },
    /// Of the controller: what was chosen, and what the host is to answer.
    Challenge {
        /// Number of the hash.
        hash: u8,
        /// Number of the group.
        group: u8,
        /// Sequence number.
        sequence: u32,
        /// The challenge.
        value: &'a [u8],
        /// The controller's public value; empty in the null group.
        public: &'a [u8],
    },
    /// Of the host: its answer, and what the controller is to answer.
    Reply {
        /// The answer.
        answer: &'a [u8],
        /// The challenge and its sequence number, if there is one.
        challenge: Option<(&'a [u8], u32)>,
        /// The host's public value; empty in the null group.
        public: &'a [u8],
    },
    /// Of the controller: the host's answer is right.
    Success1 {
        /// Bytes of the hash.
        hash_bytes: u8,
        /// The controller's answer, if there was a challenge.
        answer: Option<&'a [u8]>,
    },
    /// Of the host: the controller's answer is right.
    Success2,
    /// Of the controller: no.
    Failure1(Explanation),
    /// Of the host: no.
    Failure2(Explanation),
}

/// Numbers that a host names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ids {
    /// Its hashes.
    pub hashes: ArrayVec<u8, MAX_IDS>,
    /// Its groups.
    pub groups: ArrayVec<u8, MAX_IDS>,
}

/// The 16 bits at a place; zeros where there are none.
fn at16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |it| u16::from_le_bytes([it[0], it[1]]))
}

/// Takes a value off the front of some bytes.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8], Explanation> {
    let (value, rest) = bytes.split_at_checked(len).ok_or(Explanation::PAYLOAD)?;
    *bytes = rest;
    Ok(value)
}

impl<'a> Message<'a> {
    /// Reads a message: the number of its transaction, and what it says. Bytes behind it count for
    /// nothing: hosts and controllers lend more than it needs.
    ///
    /// # Errors
    ///
    /// [`Explanation::PAYLOAD`] of one that is too short, [`Explanation::MESSAGE`] of one that
    /// there is not.
    pub fn parse(bytes: &'a [u8]) -> Result<(u16, Self), Explanation> {
        let [kind, id, ..] = *bytes else { return Err(Explanation::PAYLOAD) };
        let transaction = at16(bytes, 4);
        let needed = match (kind, id) {
            kind::FAILURE1 | kind::FAILURE2 | kind::NEGOTIATE => FAILURE_BYTES,
            _ => HEADER_BYTES,
        };
        let (head, mut rest) = bytes.split_at_checked(needed).ok_or(Explanation::PAYLOAD)?;
        let (hash_bytes, public_bytes) = (usize::from(head[6]), usize::from(at16(head, 10)));
        let sequence = u32::from(at16(head, 14)) << 16 | u32::from(at16(head, 12));
        let message = match (kind, id) {
            kind::NEGOTIATE => {
                let (secure_channel, protocols) = (head[6], usize::from(head[7]));
                let all = take(&mut rest, protocols * PROTOCOL_BYTES)?;
                let mut all = all.chunks_exact(PROTOCOL_BYTES);
                let found = all.find(|protocol| protocol[0] == DH_HMAC_CHAP);
                Self::Negotiate { secure_channel, ids: found.map(Ids::parse).transpose()? }
            }
            kind::CHALLENGE => Self::Challenge {
                hash: head[8],
                group: head[9],
                sequence,
                value: take(&mut rest, hash_bytes)?,
                public: take(&mut rest, public_bytes)?,
            },
            kind::REPLY => {
                let answer = take(&mut rest, hash_bytes)?;
                // There is room for a challenge whether there is one or not.
                let challenge = take(&mut rest, hash_bytes)?;
                let challenge = (head[8] != 0).then_some((challenge, sequence));
                Self::Reply { answer, challenge, public: take(&mut rest, public_bytes)? }
            }
            kind::SUCCESS1 => {
                let answer = (head[8] != 0).then(|| take(&mut rest, hash_bytes)).transpose()?;
                Self::Success1 { hash_bytes: head[6], answer }
            }
            kind::SUCCESS2 => Self::Success2,
            kind::FAILURE1 => Self::Failure1(Explanation(head[7])),
            kind::FAILURE2 => Self::Failure2(Explanation(head[7])),
            _ => return Err(Explanation::MESSAGE),
        };
        Ok((transaction, message))
    }

    /// The message's bytes. Values are no longer than messages can say.
    #[must_use]
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let begin = |(kind, id): (u8, u8), len: usize| {
            let mut bytes = vec![0; len];
            (bytes[0], bytes[1]) = (kind, id);
            bytes[4..6].copy_from_slice(&transaction.to_le_bytes());
            bytes
        };
        let sized = |kind, hash_bytes: usize, public: &[u8], sequence: u32| {
            let mut bytes = begin(kind, HEADER_BYTES);
            bytes[6] = hash_bytes as u8;
            bytes[10..12].copy_from_slice(&(public.len() as u16).to_le_bytes());
            bytes[12..16].copy_from_slice(&sequence.to_le_bytes());
            bytes
        };
        let failure = |kind, why: Explanation| {
            let mut bytes = begin(kind, FAILURE_BYTES);
            (bytes[6], bytes[7]) = (FAILED, why.0);
            bytes
        };
        match self {
            Self::Negotiate { secure_channel, ids } => {
                let mut bytes = begin(kind::NEGOTIATE, FAILURE_BYTES);
                bytes[6] = *secure_channel;
                if let Some(ids) = ids {
                    bytes[7] = 1;
                    bytes.extend(ids.encode());
                }
                bytes
            }
            Self::Challenge { hash, group, sequence, value, public } => {
                let mut bytes = sized(kind::CHALLENGE, value.len(), public, *sequence);
                (bytes[8], bytes[9]) = (*hash, *group);
                [&bytes, *value, *public].concat()
            }
            Self::Reply { answer, challenge, public } => {
                let none = vec![0; answer.len()];
                let (value, sequence) = challenge.unwrap_or((&none, 0));
                let mut bytes = sized(kind::REPLY, answer.len(), public, sequence);
                bytes[8] = challenge.is_some().into();
                [&bytes, *answer, value, *public].concat()
            }
            Self::Success1 { hash_bytes, answer } => {
                let mut bytes = begin(kind::SUCCESS1, HEADER_BYTES);
                (bytes[6], bytes[8]) = (*hash_bytes, answer.is_some().into());
                bytes.extend(answer.unwrap_or_default());
                bytes
            }
            Self::Success2 => begin(kind::SUCCESS2, HEADER_BYTES),
            Self::Failure1(why) => failure(kind::FAILURE1, *why),
            Self::Failure2(why) => failure(kind::FAILURE2, *why),
        }
    }
}

impl Ids {
    /// Where the list of groups begins in a protocol, and that of hashes.
    const GROUPS_AT: usize = 4 + MAX_IDS;
    const HASHES_AT: usize = 4;

    fn parse(protocol: &[u8]) -> Result<Self, Explanation> {
        let list = |count: u8, at: usize| {
            let all = protocol.get(at..at + usize::from(count));
            all.filter(|all| all.len() <= MAX_IDS).ok_or(Explanation::PAYLOAD)
        };
        let (hashes, groups) =
            (list(protocol[2], Self::HASHES_AT)?, list(protocol[3], Self::GROUPS_AT)?);
        Ok(Self {
            hashes: hashes.iter().copied().collect(),
            groups: groups.iter().copied().collect(),
        })
    }

    fn encode(&self) -> [u8; PROTOCOL_BYTES] {
        let mut protocol = [0; PROTOCOL_BYTES];
        protocol[0] = DH_HMAC_CHAP;
        (protocol[2], protocol[3]) = (self.hashes.len() as u8, self.groups.len() as u8);
        super::put(&mut protocol, Self::HASHES_AT, &self.hashes);
        super::put(&mut protocol, Self::GROUPS_AT, &self.groups);
        protocol
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What Linux 6.12 sends first: reference 10.8.3, with its three hashes and six groups.
    #[test]
    fn the_negotiation_of_linux_is_read() {
        let mut bytes = [0; 72];
        bytes[..12].copy_from_slice(&[0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 3, 6]);
        bytes[12..15].copy_from_slice(&[1, 2, 3]);
        bytes[42..48].copy_from_slice(&[0, 1, 2, 3, 4, 5]);
        let (transaction, message) = Message::parse(&bytes).unwrap();
        let ids = Ids {
            hashes: [1, 2, 3].into_iter().collect(),
            groups: [0, 1, 2, 3, 4, 5].into_iter().collect(),
        };
        assert_eq!(transaction, 0x1234);
        assert_eq!(message, Message::Negotiate { secure_channel: 0, ids: Some(ids) });
        assert_eq!(message.encode(0x1234), bytes);
    }

    /// By hand, from the tables of reference 10.8.3.
    #[test]
    fn messages_have_the_bytes_of_the_tables() {
        let (value, public) = ([0xc1; 32], [0xd1, 0xd2]);
        let challenge = Message::Challenge {
            hash: 1,
            group: 2,
            sequence: 0x4433_2211,
            value: &value,
            public: &public,
        };
        let head = [1, 1, 0, 0, 0x34, 0x12, 32, 0, 1, 2, 2, 0, 0x11, 0x22, 0x33, 0x44];
        assert_eq!(challenge.encode(0x1234), [&head, &value[..], &public].concat());
        let answer = [0xa1; 32];
        let reply =
            Message::Reply { answer: &answer, challenge: Some((&value, 7)), public: &public };
        let head = [1, 2, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 2, 0, 7, 0, 0, 0];
        assert_eq!(reply.encode(0x1234), [&head, &answer[..], &value, &public].concat());
        let reply = Message::Reply { answer: &answer, challenge: None, public: &[] };
        let head = [1, 2, 0, 0, 0x34, 0x12, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(reply.encode(0x1234), [&head, &answer[..], &[0; 32]].concat());
        let success = Message::Success1 { hash_bytes: 32, answer: Some(&answer) };
        let head = [1, 3, 0, 0, 0x34, 0x12, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(success.encode(0x1234), [&head, &answer[..]].concat());
        let bytes = [1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(Message::Success2.encode(0x1234), bytes);
        let failure = Message::Failure1(Explanation::HASH);
        assert_eq!(failure.encode(0x1234), [0, 0xf1, 0, 0, 0x34, 0x12, 1, 4]);
        assert_eq!(Message::Failure2(Explanation(9)).encode(0), [0, 0xf0, 0, 0, 0, 0, 1, 9]);
        for message in [challenge, reply, success, failure, Message::Success2] {
            assert_eq!(Message::parse(&message.encode(9)), Ok((9, message.clone())));
            let bytes = message.encode(9);
            assert_eq!(Message::parse(&bytes[..bytes.len() - 1]), Err(Explanation::PAYLOAD));
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        for bytes in [&[][..], &[0], &[0, 0], &[0, 0, 0, 0, 0, 0, 0, 1], &[1, 4, 0, 0]] {
            assert_eq!(Message::parse(bytes), Err(Explanation::PAYLOAD), "{bytes:?}");
        }
        for (kind, id) in [(0, 1), (1, 0), (2, 0), (1, 0xf0), (0xff, 0xff)] {
            let mut bytes = [0; 64];
            (bytes[0], bytes[1]) = (kind, id);
            assert_eq!(Message::parse(&bytes), Err(Explanation::MESSAGE));
        }
        // Lists that are longer than their room.
        let mut bytes = [0; 72];
        bytes[7] = 1;
        bytes[8] = 1;
        for at in [10, 11] {
            let mut wrong = bytes;
            wrong[at] = 31;
            assert_eq!(Message::parse(&wrong), Err(Explanation::PAYLOAD));
        }
        // Another protocol only.
        bytes[8] = 2;
        let none = Message::Negotiate { secure_channel: 0, ids: None };
        assert_eq!(Message::parse(&bytes), Ok((0, none)));
    }

    proptest! {
        /// Any bytes are read or refused; what was read says the same when it is written.
        #[test]
        fn any_bytes_can_come(
            head in proptest::array::uniform2(prop_oneof![0u8..5, 0xf0u8..0xf2]),
            rest in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [&head[..], &rest].concat();
            if let Ok((transaction, message)) = Message::parse(&bytes) {
                let written = message.encode(transaction);
                prop_assert_eq!(Message::parse(&written), Ok((transaction, message)));
            }
        }
    }
}
