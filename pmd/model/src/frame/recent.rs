//! [`Recent`]: the headers of the packet before, which are mostly those of the next.
//!
//! Packets between the same hosts follow each other, and differ in what no look at their headers
//! depends on: the identification and the checksum of IPv4, the ports, the checksum of UDP, and the
//! numbers, the window and the checksum of TCP. Who compares ports reads them from the frame.

use super::packet::{Fragment, L3, L4, Packet};

/// Words at the front of a frame that are compared, from its start.
const WORDS: usize = 7;
/// Start of IPv4 and of what it carries, without tags and options.
const L3_AT: usize = 14;
const L4_AT: usize = 34;

type Words = [u64; WORDS];

/// Bits of the first words on which UDP or TCP over IPv4 depends.
const fn mask(l4: L4) -> Words {
    let l4_end = if matches!(l4, L4::Tcp) { L4_AT + 20 } else { L4_AT + 8 };
    let mut words = [0; WORDS];
    let mut at = 0;
    while at < l4_end {
        let is_skipped = match (at.wrapping_sub(L3_AT), at.wrapping_sub(L4_AT), l4) {
            // Identification and header checksum. Source: RFC 791 3.1.
            (4 | 5 | 10 | 11, ..) => true,
            // The ports. Source: RFC 768, RFC 9293 3.1.
            (_, 0..4, _) => true,
            // The UDP checksum. Source: RFC 768.
            (_, 6 | 7, L4::Udp) => true,
            // Sequence and acknowledgment number; window, checksum, urgent pointer. Source: RFC
            // 9293 3.1.
            (_, 4..12 | 14..20, L4::Tcp) => true,
            _ => false,
        };
        if !is_skipped {
            let mut bytes = [0; 8];
            bytes[at % 8] = 0xff;
            words[at / 8] |= u64::from_ne_bytes(bytes);
        }
        at += 1;
    }
    words
}

const UDP: Words = mask(L4::Udp);
const TCP: Words = mask(L4::Tcp);

/// What is known of the packet before.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    packet: Packet,
    /// Length of its frame; 0 if nothing is known of the next.
    frame_bytes: usize,
    mask: Words,
    /// Its first words, as far as the mask goes.
    words: Words,
    number: u64,
}

/// A packet, and a number that those with the same headers but for the ports, one behind the other,
/// have in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbered<'a> {
    pub(crate) packet: &'a Packet,
    /// 0 if nobody has compared it with others.
    pub(crate) number: u64,
}

impl<'a> From<&'a Packet> for Numbered<'a> {
    fn from(packet: &'a Packet) -> Self {
        Self { packet, number: 0 }
    }
}

impl Recent {
    /// What [`Packet::parse`] says of a frame.
    #[inline]
    pub(crate) fn parse(&mut self, frame: &[u8]) -> Numbered<'_> {
        if !self.is_alike(frame) {
            self.read(frame);
        }
        Numbered { packet: &self.packet, number: self.number }
    }

    #[inline]
    fn is_alike(&self, frame: &[u8]) -> bool {
        let Some(words) = words(frame) else { return false };
        let differ = |at: usize| words[at] & self.mask[at] ^ self.words[at];
        let differ = (0..WORDS).fold(0, |all, at| all | differ(at));
        differ == 0 && frame.len() == self.frame_bytes
    }

    #[inline(never)]
    fn read(&mut self, frame: &[u8]) {
        self.packet = Packet::parse(frame);
        self.number += 1;
        self.frame_bytes = 0;
        let Packet { l3, l4, l4_offset, fragment, malformed, .. } = self.packet;
        let is_plain = l3 == L3::Ipv4 && l4_offset == L4_AT && fragment == Fragment::No;
        let mask = match l4 {
            L4::Udp => &UDP,
            L4::Tcp => &TCP,
            L4::None => return,
        };
        let Some(words) = words(frame).filter(|_| is_plain && malformed.is_none()) else { return };
        self.frame_bytes = frame.len();
        self.mask = *mask;
        self.words = std::array::from_fn(|at| words[at] & mask[at]);
    }
}

#[inline]
fn words(frame: &[u8]) -> Option<Words> {
    let front = frame.first_chunk::<{ 8 * WORDS }>()?;
    let words = front.as_chunks::<8>().0;
    Some(std::array::from_fn(|at| u64::from_ne_bytes(words[at])))
}

#[cfg(test)]
#[path = "recent_tests.rs"]
mod tests;
