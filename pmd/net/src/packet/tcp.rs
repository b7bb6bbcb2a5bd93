//! TCP headers: flags, options, and a view of a segment. Source: RFC 9293 section 3.1.

use super::TCP_BYTES;

/// The sender has no more to send.
pub const FIN: u8 = 0x01;
/// The sender's numbers start here.
pub const SYN: u8 = 0x02;
/// There is no such connection.
pub const RST: u8 = 0x04;
/// To be handed to the application now.
pub const PSH: u8 = 0x08;
/// The acknowledgment counts.
pub const ACK: u8 = 0x10;

/// Kind of the option that says the largest segment taken. Source: RFC 9293 section 3.7.1.
pub(super) const OPTION_MSS: u8 = 2;
/// Bytes of it.
pub(super) const MSS_BYTES: usize = 4;
const OPTION_END: u8 = 0;
const OPTION_NOTHING: u8 = 1;

/// A segment that arrived, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a> {
    header: &'a [u8; TCP_BYTES],
    options: &'a [u8],
    /// What it carries.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// A header with its options, and what follows it.
    #[inline]
    pub(super) fn new(header: &'a [u8], payload: &'a [u8]) -> Option<Self> {
        let (header, options) = header.split_first_chunk()?;
        Some(Self { header, options, payload })
    }

    #[inline]
    fn word(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, 1, 2, 3].map(|byte| self.header[at + byte]))
    }

    /// Number of the first byte, or of SYN or FIN.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.word(4)
    }

    /// Number of the next byte that its sender expects, if [`ACK`] is set.
    #[inline]
    #[must_use]
    pub fn acknowledgment(&self) -> Option<u32> {
        self.has(ACK).then(|| self.word(8))
    }

    /// Whether one of `flags` is set.
    #[inline]
    #[must_use]
    pub fn has(&self, flags: u8) -> bool {
        self.header[13] & flags != 0
    }

    /// Bytes that its sender takes from the acknowledgment on; what window scaling makes of it is
    /// another matter.
    #[inline]
    #[must_use]
    pub fn window(&self) -> u16 {
        u16::from_be_bytes([self.header[14], self.header[15]])
    }

    /// The largest payload that its sender takes, if it says so.
    #[must_use]
    pub fn max_segment(&self) -> Option<u16> {
        let mut rest = self.options;
        loop {
            rest = match *rest {
                [OPTION_MSS, 4, high, low, ..] => return Some(u16::from_be_bytes([high, low])),
                [OPTION_NOTHING, ref rest @ ..] => rest,
                [] | [OPTION_END, ..] => return None,
                [_, len, ..] if len >= 2 => rest.get(usize::from(len)..)?,
                _ => return None,
            };
        }
    }
}
