//! SoupBinTCP 3.00 to 4.1: numbered messages in a TCP stream, with login, replay and heartbeats.
//!
//! Source: reference 11.1.2. A packet is a length of two bytes that counts what follows it, a
//! letter, and its payload. Packets and TCP segments have nothing to do with each other:
//! [`Splitter`] takes a stream in any pieces. [`Client`] and [`Server`] are the two ends: they take
//! packets and the time, and say what to send.
//!
//! Messages of the server that are counted ("sequenced") carry no number: the login's answer says
//! the first, and both ends count.

mod client;
mod server;
mod splitter;
#[cfg(test)]
mod tests;

use zerocopy::IntoBytes;

use super::{Text, wire_structs};

pub use client::{Client, ClientConfig, ClientEvent, ClientState, Ended, ProtocolError};
pub use server::{Server, ServerConfig, ServerEvent};
pub use splitter::{Splitter, TooLong};

/// Name of a session; blank asks for the current one.
pub type Session = Text<10>;

/// Bytes in front of a packet's payload: length and letter.
pub const HEADER_LEN: usize = 3;
/// The most bytes that a packet's payload may have.
pub const MAX_PAYLOAD: usize = u16::MAX as usize - 1;

/// What a packet is: its letter. Both directions use it, and no letter means two things.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketType(pub u8);

impl PacketType {
    /// Text for people, to be ignored; both ways.
    pub const DEBUG: Self = Self(b'+');
    /// The client logs in: [`LoginRequest`].
    pub const LOGIN_REQUEST: Self = Self(b'L');
    /// The server took the login: [`LoginAccepted`].
    pub const LOGIN_ACCEPTED: Self = Self(b'A');
    /// The server refused the login, with a letter that says why, and closes.
    pub const LOGIN_REJECTED: Self = Self(b'J');
    /// A counted message of the server.
    pub const SEQUENCED: Self = Self(b'S');
    /// A message that is not counted; both ways.
    pub const UNSEQUENCED: Self = Self(b'U');
    /// Sign of life of the server.
    pub const SERVER_HEARTBEAT: Self = Self(b'H');
    /// Sign of life of the client.
    pub const CLIENT_HEARTBEAT: Self = Self(b'R');
    /// The server ends the session, and closes.
    pub const END_OF_SESSION: Self = Self(b'Z');
    /// The client asks the server to close.
    pub const LOGOUT: Self = Self(b'O');
}

/// One packet of the stream, its length taken off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it is.
    pub kind: PacketType,
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// A packet from what its length counts: letter and payload. `None` of nothing at all.
    pub const fn from_body(body: &'a [u8]) -> Option<Self> {
        match body.split_first() {
            Some((&kind, payload)) => Some(Self { kind: PacketType(kind), payload }),
            None => None,
        }
    }
}

/// Adds a packet to the end of `out`. A payload above [`MAX_PAYLOAD`] adds nothing.
pub fn push(out: &mut Vec<u8>, kind: PacketType, payload: &[u8]) {
    let Some(header) = header(kind, payload.len()) else { return };
    out.extend(header);
    out.extend(payload);
}

/// What stands in front of a payload of `payload_len` bytes; `None` above [`MAX_PAYLOAD`].
pub fn header(kind: PacketType, payload_len: usize) -> Option<[u8; HEADER_LEN]> {
    let [high, low] = u16::try_from(payload_len + 1).ok()?.to_be_bytes();
    Some([high, low, kind.0])
}

// Offsets here are those of the payload: three less than the reference's.
wire_structs! {
    /// Payload of a login, up to version 4.0.
    b'L' [46] LoginRequest {
        /// Who logs in; case does not matter.
        0 user: Text<6>,
        /// Its password; case does not matter.
        6 password: Text<10>,
        /// Session wanted; blank for the current one.
        16 session: Session,
        /// First message wanted, padded on the left; 0 for what is new only.
        26 next: Text<20>,
    }
    /// What a login of version 4.1 adds.
    b'L' [51] LoginRequest41 {
        /// All of the older form.
        0 login: LoginRequest,
        /// Silence of the client in ms after which the server may close, padded on the left.
        46 heartbeat_timeout_ms: Text<5>,
    }
    /// Payload of the answer to a login.
    b'A' [30] LoginAccepted {
        /// The session, padded on the left.
        0 session: Session,
        /// Number of the first counted message that follows, padded on the left.
        10 next: Text<20>,
    }
}

/// Why a login was refused: the letter of a packet `J`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reject {
    /// User and password are not known.
    NotAuthorised,
    /// The session wanted does not exist.
    SessionNotAvailable,
    /// A letter that the specification does not have.
    Unknown(u8),
}

impl Reject {
    /// What `letter` says.
    pub const fn from_letter(letter: u8) -> Self {
        match letter {
            b'A' => Self::NotAuthorised,
            b'S' => Self::SessionNotAvailable,
            other => Self::Unknown(other),
        }
    }

    /// The letter that says so.
    pub const fn letter(self) -> u8 {
        match self {
            Self::NotAuthorised => b'A',
            Self::SessionNotAvailable => b'S',
            Self::Unknown(letter) => letter,
        }
    }
}
