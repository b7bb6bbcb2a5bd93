//! Packets out of a stream that comes in any pieces.

use thiserror::Error;

use super::Packet;

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
/// split is put together in a buffer that was allocated at the start.
#[derive(Debug)]
pub struct Splitter {
    /// What came of a packet that is not whole yet, its length included.
    partial: Vec<u8>,
    /// The packet in `partial` was handed out: it goes before the next one.
    handed_out: bool,
    limit: usize,
}

impl Splitter {
    /// A splitter at the start of a stream, that takes packets of up to `limit` bytes, counted as
    /// their lengths count: letter and payload.
    pub fn new(limit: usize) -> Self {
        let limit = limit.min(usize::from(u16::MAX));
        Self { partial: Vec::with_capacity(limit + 2), handed_out: false, limit }
    }

    /// The next packet of the stream whose next bytes are `input`. What was read is taken off
    /// `input`; `None` when there is no whole packet, and all of `input` was read. Packets of
    /// length 0 are passed over.
    pub fn next<'p, 'i: 'p>(
        &'p mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Packet<'p>>, TooLong> {
        if std::mem::take(&mut self.handed_out) {
            self.partial.clear();
        }
        loop {
            if self.partial.is_empty() {
                let Some(len) = self.body_len(input)? else {
                    self.take(input, 2);
                    return Ok(None);
                };
                if let Some((packet, rest)) = input[2..].split_at_checked(len) {
                    *input = rest;
                    match Packet::from_body(packet) {
                        Some(packet) => return Ok(Some(packet)),
                        None => continue,
                    }
                }
            }
            self.take(input, 2);
            let Some(len) = self.body_len(&self.partial)? else { return Ok(None) };
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

    /// What the length at the start of `bytes` says, if it is there.
    fn body_len(&self, bytes: &[u8]) -> Result<Option<usize>, TooLong> {
        let Some(length) = bytes.first_chunk() else { return Ok(None) };
        let got = usize::from(u16::from_be_bytes(*length));
        if got > self.limit {
            return Err(TooLong { got, limit: self.limit });
        }
        Ok(Some(got))
    }

    /// Moves bytes from `input` until the partial packet has `len`.
    fn take(&mut self, input: &mut &[u8], len: usize) {
        let wanted = len.saturating_sub(self.partial.len()).min(input.len());
        let (taken, rest) = input.split_at(wanted);
        self.partial.extend_from_slice(taken);
        *input = rest;
    }
}
