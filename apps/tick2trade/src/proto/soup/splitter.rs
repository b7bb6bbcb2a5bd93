//! Packets out of a stream that comes in any pieces.

use thiserror::Error;

use super::{HEADER_LEN, Packet, PacketType};

/// A packet longer than its receiver takes: the stream cannot be followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a packet of {got} bytes, and at most {limit} are taken")]
pub struct TooLong {
    /// What its length says.
    pub got: usize,
    /// The most that [`Splitter::new`] was told to take.
    pub limit: usize,
}

/// Finds the packets in a stream. A packet that lies in one piece is borrowed from it; one that is
/// split is put together in a buffer that was allocated at the start. Text for people, which may be
/// of any length, is passed over where it is longer than that.
#[derive(Debug)]
pub struct Splitter {
    /// What came of a packet that is not whole yet, its length included.
    partial: Vec<u8>,
    /// The packet in `partial` was handed out: it goes before the next one.
    handed_out: bool,
    limit: usize,
    /// Bytes of a packet that is passed over.
    passed: usize,
}

impl Splitter {
    /// A splitter at the start of a stream, that takes packets of up to `limit` bytes, counted as
    /// their lengths count: letter and payload.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(usize::from(u16::MAX));
        Self { partial: Vec::with_capacity(limit + 2), handed_out: false, limit, passed: 0 }
    }

    /// The next packet of the stream whose next bytes are `input`. What was read is taken off
    /// `input`; `None` when there is no whole packet, and all of `input` was read. Packets of
    /// length 0 are passed over.
    ///
    /// # Errors
    /// [`TooLong`] of any packet but text for people.
    pub fn next<'p, 'i: 'p>(
        &'p mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Packet<'p>>, TooLong> {
        if std::mem::take(&mut self.handed_out) {
            self.partial.clear();
        }
        loop {
            let passed = self.passed.min(input.len());
            *input = &input[passed..];
            self.passed -= passed;
            if self.partial.is_empty()
                && let Some(len) = body_len(input).filter(|&len| len <= self.limit)
                && let Some((packet, rest)) = input[2..].split_at_checked(len)
            {
                *input = rest;
                match Packet::from_body(packet) {
                    Some(packet) => return Ok(Some(packet)),
                    None => continue,
                }
            }
            self.take(input, 2);
            let Some(len) = body_len(&self.partial) else { return Ok(None) };
            if len > self.limit {
                self.take(input, HEADER_LEN);
                let Some(&kind) = self.partial.get(2) else { return Ok(None) };
                if PacketType(kind) != PacketType::DEBUG {
                    return Err(TooLong { got: len, limit: self.limit });
                }
                self.partial.clear();
                self.passed = len - 1;
                continue;
            }
            self.take(input, 2 + len);
            if self.partial.len() < 2 + len {
                return Ok(None);
            }
            if len == 0 {
                self.partial.clear();
                continue;
            }
            self.handed_out = true;
            return Ok(Packet::from_body(&self.partial[2..]));
        }
    }

    /// Moves bytes from `input` until the partial packet has `len`.
    fn take(&mut self, input: &mut &[u8], len: usize) {
        let wanted = len.saturating_sub(self.partial.len()).min(input.len());
        let (taken, rest) = input.split_at(wanted);
        self.partial.extend_from_slice(taken);
        *input = rest;
    }
}

/// What the length at the start of `bytes` says, if it is there.
fn body_len(bytes: &[u8]) -> Option<usize> {
    bytes.first_chunk().map(|length| u16::from_be_bytes(*length).into())
}
