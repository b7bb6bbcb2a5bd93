//! Bytes that came before those in front of them.

use arrayvec::ArrayVec;

/// Pieces that are kept at a time; what makes one more is dropped, and sent again by the peer.
const PIECES: usize = 8;

/// A window of bytes behind the next one that is expected, with holes.
#[derive(Debug)]
pub(super) struct Reassembly {
    bytes: Box<[u8]>,
    /// Where in `bytes` the next expected byte would lie.
    start: usize,
    /// Pieces that are there, as distances from the next expected byte: sorted, apart.
    pieces: ArrayVec<(usize, usize), PIECES>,
}

impl Reassembly {
    pub(super) fn new(window: usize) -> Self {
        Self { bytes: vec![0; window].into(), start: 0, pieces: ArrayVec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Keeps `data`, whose first byte lies `distance` behind the next expected one, as far as it
    /// fits the window.
    pub(super) fn insert(&mut self, distance: usize, data: &[u8]) {
        let size = self.bytes.len();
        let data = &data[..data.len().min(size.saturating_sub(distance))];
        if data.is_empty() {
            return;
        }
        // The pieces that touch the new one become one with it.
        let (mut from, mut to) = (distance, distance + data.len());
        let first = self.pieces.iter().take_while(|piece| piece.1 < from).count();
        let touching = self.pieces[first..].iter().take_while(|piece| piece.0 <= to).count();
        if touching == 0 && self.pieces.is_full() {
            return;
        }
        for piece in self.pieces.drain(first..first + touching) {
            (from, to) = (from.min(piece.0), to.max(piece.1));
        }
        self.pieces.insert(first, (from, to));
        let at = (self.start + distance) % size;
        let (end, start) = data.split_at(data.len().min(size - at));
        self.bytes[at..at + end.len()].copy_from_slice(end);
        self.bytes[..start.len()].copy_from_slice(start);
    }

    /// The next expected byte lies `bytes` further on.
    pub(super) fn advance(&mut self, bytes: usize) {
        self.start = (self.start + bytes) % self.bytes.len();
        self.pieces.retain(|piece| piece.1 > bytes);
        for piece in &mut self.pieces {
            *piece = (piece.0.saturating_sub(bytes), piece.1 - bytes);
        }
    }

    /// Hands out what is next, in up to two slices, and advances past it; says how much.
    pub(super) fn take(&mut self, mut deliver: impl FnMut(&[u8])) -> usize {
        let Some(&(0, len)) = self.pieces.first() else { return 0 };
        let size = self.bytes.len();
        let until_end = len.min(size - self.start);
        deliver(&self.bytes[self.start..self.start + until_end]);
        if until_end < len {
            deliver(&self.bytes[..len - until_end]);
        }
        self.advance(len);
        len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// Pieces of a stream in any order and as often as one likes: what comes out is the stream.
        #[test]
        fn the_stream_comes_out_in_order(
            pieces in proptest::collection::vec((0_usize..120, 1_usize..20), 0..80),
        ) {
            let stream: Vec<u8> = (0..200).collect();
            let mut reassembly = Reassembly::new(32);
            let mut out = Vec::new();
            for (at, len) in pieces {
                let piece = &stream[at..at + len];
                let old = out.len().saturating_sub(at).min(len);
                let distance = at.saturating_sub(out.len());
                reassembly.insert(distance, &piece[old..]);
                reassembly.take(|bytes| out.extend_from_slice(bytes));
                assert_eq!(out, stream[..out.len()]);
                assert!(reassembly.pieces.iter().all(|piece| piece.0 > 0 && piece.0 < piece.1));
            }
        }
    }
}
