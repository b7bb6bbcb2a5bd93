//! MoldUDP64 1.00: numbered messages in datagrams, and requests for those that were lost.
//!
//! Source: reference 11.1.1. Messages are numbered from 1 and packets are not: a packet says the
//! number of its first message and how many there are.
//!
//! # Example
//! ```
//! use ferrocx_tick2trade::proto::{Text, mold};
//!
//! let session = Text::new("0000000001").unwrap();
//! let mut bytes = [0; 64];
//! let mut builder = mold::Builder::new(&mut bytes, session, 7).unwrap();
//! assert!(builder.push(b"first") && builder.push(b"second"));
//! let packet = builder.finish();
//!
//! let packet = mold::Packet::parse(packet).unwrap();
//! assert_eq!((packet.sequence(), packet.kind()), (7, mold::PacketKind::Messages(2)));
//! assert_eq!(packet.messages().collect::<Vec<_>>(), [&b"first"[..], b"second"]);
//! ```

use thiserror::Error;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::{Text, wire_structs};

/// Name of a session: a day of a feed, as a rule.
pub type Session = Text<10>;

wire_structs! {
    /// What every packet, downstream and upstream, starts with. Source: reference 11.1.1.
    [20] Header {
        /// Session that the numbers belong to.
        0 session: Session,
        /// Number of the first message in the packet; in a heartbeat and at the end, of the next.
        10 sequence: U64,
        /// Messages in the packet, or [`END_OF_SESSION`]; in a request, messages wanted.
        18 count: U16,
    }
}

/// Bytes of a [`Header`].
pub const HEADER_LEN: usize = Header::LEN;

/// Count of a packet that ends its session.
pub const END_OF_SESSION: u16 = 0xffff;
/// The most messages that a packet may hold, and a request may ask for.
pub const MAX_MESSAGES: u16 = END_OF_SESSION - 1;

/// Why a datagram is not a packet of MoldUDP64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than the header.
    #[error("{0} bytes, and a MoldUDP64 header has {HEADER_LEN}")]
    NoHeader(usize),
    /// A message's length points behind the end of the datagram.
    #[error("message {message} of {count} reaches behind the packet's end")]
    Truncated {
        /// Index of the message, from 0.
        message: u16,
        /// Messages that the header promises.
        count: u16,
    },
    /// Bytes are left behind the last message.
    #[error("{0} bytes behind the last message")]
    Trailing(usize),
}

/// What a packet is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PacketKind {
    /// So many messages, at least one.
    Messages(u16),
    /// A sign of life: its number is that of the next message to be sent.
    Heartbeat,
    /// The session is over: its number is one above the last message's.
    EndOfSession,
}

/// A packet from the sender of a feed, checked to its last byte.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    header: &'a Header,
    messages: &'a [u8],
}

impl<'a> Packet<'a> {
    /// The packet in the payload of a datagram, if every message lies inside it and nothing else
    /// does.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, Malformed> {
        let (header, messages) =
            Header::ref_from_prefix(datagram).map_err(|_| Malformed::NoHeader(datagram.len()))?;
        let packet = Self { header, messages };
        let (mut rest, count) = (messages, packet.count());
        for message in 0..count {
            (_, rest) = split_message(rest).ok_or(Malformed::Truncated { message, count })?;
        }
        if rest.is_empty() { Ok(packet) } else { Err(Malformed::Trailing(rest.len())) }
    }

    /// What it starts with.
    pub const fn header(&self) -> &'a Header {
        self.header
    }

    /// Session that the packet belongs to.
    pub const fn session(&self) -> Session {
        self.header.session
    }

    /// Number of the first message; in a heartbeat and at the end of a session, of the next one.
    pub fn sequence(&self) -> u64 {
        self.header.sequence.get()
    }

    /// What the packet is for.
    pub fn kind(&self) -> PacketKind {
        match self.header.count.get() {
            0 => PacketKind::Heartbeat,
            END_OF_SESSION => PacketKind::EndOfSession,
            count => PacketKind::Messages(count),
        }
    }

    /// Messages in it: none in a heartbeat or at the end of a session.
    pub fn count(&self) -> u16 {
        match self.header.count.get() {
            END_OF_SESSION => 0,
            count => count,
        }
    }

    /// Its messages in their order, without their lengths.
    pub const fn messages(&self) -> Messages<'a> {
        Messages { rest: self.messages }
    }
}

/// The messages of a packet that was checked.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (message, rest) = split_message(self.rest)?;
        self.rest = rest;
        Some(message)
    }
}

/// The message at the start of `bytes`, without its length, and what follows it.
#[inline]
fn split_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Writes packets of messages into a buffer of the caller's.
#[derive(Debug)]
pub struct Builder<'a> {
    bytes: &'a mut [u8],
    len: usize,
    count: u16,
}

impl<'a> Builder<'a> {
    /// A packet of no messages yet, whose first has the number `sequence`; `None` if `bytes` does
    /// not hold a header.
    pub fn new(bytes: &'a mut [u8], session: Session, sequence: u64) -> Option<Self> {
        let header = Header { session, sequence: sequence.into(), count: 0.into() };
        header.write_to_prefix(bytes).ok()?;
        Some(Self { bytes, len: HEADER_LEN, count: 0 })
    }

    /// Adds a message; `false`, and nothing changes, if it does not fit.
    #[must_use]
    pub fn push(&mut self, message: &[u8]) -> bool {
        let Ok(length) = u16::try_from(message.len()) else { return false };
        let end = self.len + 2 + message.len();
        if self.count == MAX_MESSAGES || end > self.bytes.len() {
            return false;
        }
        self.bytes[self.len..self.len + 2].copy_from_slice(&length.to_be_bytes());
        self.bytes[self.len + 2..end].copy_from_slice(message);
        (self.len, self.count) = (end, self.count + 1);
        true
    }

    /// Messages so far.
    pub const fn count(&self) -> u16 {
        self.count
    }

    /// The packet. With no messages in it, it is a heartbeat.
    pub fn finish(self) -> &'a [u8] {
        let count = self.count.to_be_bytes();
        self.bytes[HEADER_LEN - 2..HEADER_LEN].copy_from_slice(&count);
        &self.bytes[..self.len]
    }
}

/// A sign of life whose next message is `next`.
pub fn heartbeat(session: Session, next: u64) -> Header {
    Header { session, sequence: next.into(), count: 0.into() }
}

/// The last packet of a session, where `next` is one above its last message.
pub fn end_of_session(session: Session, next: u64) -> Header {
    Header { session, sequence: next.into(), count: END_OF_SESSION.into() }
}

/// Asks for `count` messages from `first` on. The answer is one packet with as many of them as fit.
pub fn request(session: Session, first: u64, count: u16) -> Header {
    Header { session, sequence: first.into(), count: count.min(MAX_MESSAGES).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference 11.1.11: session 0000000001, number 1, 2 messages.
    const HEADER: [u8; 20] =
        [0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x30, 0x31, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2];

    fn session() -> Session {
        Text::new("0000000001").unwrap()
    }

    #[test]
    fn golden_bytes_both_ways() {
        let golden = [&HEADER[..], &[0, 1, b'S', 0, 0]].concat();
        let packet = Packet::parse(&golden).unwrap();
        assert_eq!((packet.session(), packet.sequence()), (session(), 1));
        assert_eq!(packet.kind(), PacketKind::Messages(2));
        assert_eq!(packet.messages().collect::<Vec<_>>(), [&b"S"[..], b""]);

        let mut bytes = [0xa5; 25];
        let mut builder = Builder::new(&mut bytes, session(), 1).unwrap();
        assert!(builder.push(b"S"));
        assert!(!builder.push(b"x"), "one byte too many");
        assert!(builder.push(b""));
        assert_eq!(builder.finish(), golden);
    }

    #[test]
    fn a_count_of_all_ones_ends_the_session_and_is_not_65535_messages() {
        let end = end_of_session(session(), 0x0102_0304_0506_0708);
        let packet = Packet::parse(end.as_bytes()).unwrap();
        assert_eq!(packet.kind(), PacketKind::EndOfSession);
        assert_eq!((packet.count(), packet.sequence()), (0, 0x0102_0304_0506_0708));
        assert_eq!(end.as_bytes()[10..], [1, 2, 3, 4, 5, 6, 7, 8, 0xff, 0xff]);
    }

    #[test]
    fn a_heartbeat_names_the_next_message() {
        let bytes = heartbeat(session(), 9);
        let packet = Packet::parse(bytes.as_bytes()).unwrap();
        assert_eq!((packet.kind(), packet.sequence()), (PacketKind::Heartbeat, 9));
        assert_eq!(packet.messages().next(), None);
    }

    #[test]
    fn a_request_never_asks_for_the_end_of_the_session() {
        assert_eq!(request(session(), 1, u16::MAX).count.get(), MAX_MESSAGES);
        assert_eq!(request(session(), 1, 2).as_bytes(), HEADER);
    }

    #[test]
    fn every_cut_of_a_packet_is_refused() {
        let whole = [&HEADER[..], &[0, 2, b'a', b'b', 0, 1, b'c']].concat();
        assert!(Packet::parse(&whole).is_ok());
        for cut in 0..whole.len() {
            assert!(Packet::parse(&whole[..cut]).is_err(), "{cut} bytes");
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Packet::parse(&longer).unwrap_err(), Malformed::Trailing(1));
        assert_eq!(Packet::parse(&[0; 19]).unwrap_err(), Malformed::NoHeader(19));
    }

    proptest::proptest! {
        #[test]
        fn what_was_built_is_read(messages: Vec<Vec<u8>>, sequence: u64) {
            let mut bytes = vec![0; 4096];
            let mut builder = Builder::new(&mut bytes, session(), sequence).unwrap();
            let fitting: Vec<_> = messages.iter().filter(|m| builder.push(m)).collect();
            let packet = Packet::parse(builder.finish()).unwrap();
            assert!(packet.messages().eq(fitting.iter().map(|m| &m[..])));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            if let Ok(packet) = Packet::parse(&bytes) {
                let read = packet.messages().fold(0, |sum, message| sum + 2 + message.len());
                assert_eq!(HEADER_LEN + read, bytes.len());
            }
        }
    }
}
