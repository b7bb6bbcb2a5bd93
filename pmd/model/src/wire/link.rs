//! A cable between two ports in memory, across threads if need be.
//!
//! Each direction is a ring of bytes that holds records: a 4-byte header (length, and bit 31 for a
//! bad FCS), then the frame. Records are collected and handed over in batches, so that two
//! cores exchange a cache line per batch and not per frame.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};

use super::{Fcs, MAX_FRAME_BYTES, Received, Wire};

const HEADER_BYTES: usize = 4;
const BAD_FCS: u32 = 1 << 31;
/// A batch that has grown to this is handed over without waiting for the end of the burst.
const BATCH_BYTES: usize = 32 << 10;

/// One end of a cable.
pub struct Link {
    to_peer: Producer<u8>,
    /// Records not handed over yet.
    batch: Vec<u8>,
    /// Bytes of `batch` that hold committed records; behind them stands the reserved one.
    committed: usize,
    /// Length of the frame reserved last.
    reserved: usize,
    /// Bytes known to be free in `to_peer`.
    free: usize,
    from_peer: Consumer<u8>,
    /// Bytes taken from `from_peer`: records, the last one possibly cut.
    inbox: Vec<u8>,
    /// The part of `inbox` that was not delivered yet.
    inbox_start: usize,
    inbox_end: usize,
    /// Whether this end's transmitter is off, and the far end's.
    is_dark: Arc<AtomicBool>,
    far_is_dark: Arc<AtomicBool>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("batched_bytes", &self.committed)
            .field("inbox_bytes", &(self.inbox_end - self.inbox_start))
            .finish_non_exhaustive()
    }
}

/// Makes a cable; `capacity_bytes` can be on the way in each direction, headers of 4 bytes
/// included.
///
/// A full cable loses nothing: the sender waits. The capacity is raised to what two of the
/// longest frames need.
#[must_use]
pub fn link(capacity_bytes: usize) -> (Link, Link) {
    let capacity = capacity_bytes.max(2 * (MAX_FRAME_BYTES + HEADER_BYTES));
    let (ab_tx, ab_rx) = RingBuffer::new(capacity);
    let (ba_tx, ba_rx) = RingBuffer::new(capacity);
    let (a, b) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    (Link::new(ab_tx, ba_rx, Arc::clone(&a), Arc::clone(&b)), Link::new(ba_tx, ab_rx, b, a))
}

impl Link {
    fn new(
        to_peer: Producer<u8>,
        from_peer: Consumer<u8>,
        is_dark: Arc<AtomicBool>,
        far_is_dark: Arc<AtomicBool>,
    ) -> Self {
        let longest = MAX_FRAME_BYTES + HEADER_BYTES;
        Self {
            free: to_peer.slots(),
            to_peer,
            batch: vec![0; BATCH_BYTES + longest],
            committed: 0,
            reserved: 0,
            from_peer,
            inbox: vec![0; BATCH_BYTES + longest],
            inbox_start: 0,
            inbox_end: 0,
            is_dark,
            far_is_dark,
        }
    }

    fn hand_over(&mut self) {
        if self.committed > 0 {
            // `reserve` made sure that everything committed fits.
            let pushed = self.to_peer.push_entire_slice(&self.batch[..self.committed]);
            debug_assert!(pushed.is_ok(), "a batch was committed that does not fit the ring");
            self.free -= self.committed;
            self.committed = 0;
        }
    }

    /// Length of the frame at the front of the inbox, with its flag, if all of it is there.
    #[inline]
    fn front(&self) -> Option<(usize, Fcs)> {
        let header = self.inbox[self.inbox_start..self.inbox_end].first_chunk::<HEADER_BYTES>()?;
        let word = u32::from_le_bytes(*header);
        let len = (word & !BAD_FCS) as usize;
        let fcs = if word & BAD_FCS == 0 { Fcs::Good } else { Fcs::Bad };
        (self.inbox_end - self.inbox_start >= HEADER_BYTES + len).then_some((len, fcs))
    }

    /// Takes more bytes from the peer, behind what is left of the inbox.
    fn refill(&mut self) {
        let available = self.from_peer.slots();
        if available == 0 {
            return;
        }
        self.inbox.copy_within(self.inbox_start..self.inbox_end, 0);
        self.inbox_end -= self.inbox_start;
        self.inbox_start = 0;
        let take = available.min(self.inbox.len() - self.inbox_end);
        let into = &mut self.inbox[self.inbox_end..self.inbox_end + take];
        if self.from_peer.pop_entire_slice(into).is_ok() {
            self.inbox_end += take;
        }
    }
}

impl Wire for Link {
    #[inline]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        debug_assert!((1..=MAX_FRAME_BYTES).contains(&len));
        let end = self.committed + HEADER_BYTES + len;
        if end > self.free {
            self.free = self.to_peer.slots();
            if end > self.free {
                return None;
            }
        }
        self.reserved = len;
        Some(&mut self.batch[self.committed + HEADER_BYTES..end])
    }

    #[inline]
    fn commit(&mut self, _now_ns: u64, fcs: Fcs) {
        let flag = if fcs == Fcs::Bad { BAD_FCS } else { 0 };
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_FRAME_BYTES")]
        let word = self.reserved as u32 | flag;
        let start = self.committed;
        self.batch[start..start + HEADER_BYTES].copy_from_slice(&word.to_le_bytes());
        self.committed += HEADER_BYTES + self.reserved;
        if self.committed >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn flush(&mut self, _now_ns: u64) {
        self.hand_over();
    }

    #[inline]
    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        if self.front().is_none() {
            self.refill();
        }
        let (len, fcs) = self.front()?;
        let start = self.inbox_start + HEADER_BYTES;
        self.inbox_start = start + len;
        Some(Received { bytes: &self.inbox[start..start + len], fcs })
    }

    fn carrier(&self) -> bool {
        !self.to_peer.is_abandoned() && !self.far_is_dark.load(Ordering::Relaxed)
    }

    fn set_transmitter(&mut self, is_on: bool) {
        self.is_dark.store(!is_on, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, reason = "test data")]

    use super::*;

    fn send(wire: &mut Link, frame: &[u8], fcs: Fcs) -> bool {
        let Some(room) = wire.reserve(frame.len()) else { return false };
        room.copy_from_slice(frame);
        wire.commit(0, fcs);
        true
    }

    #[test]
    fn frames_arrive_in_order_with_their_fcs_after_a_flush() {
        let (mut a, mut b) = link(0);
        assert!(send(&mut a, &[1; 60], Fcs::Good) && send(&mut a, &[2; 61], Fcs::Bad));
        assert_eq!(b.receive(0), None);
        a.flush(0);
        assert_eq!(b.receive(0), Some(Received { bytes: &[1; 60], fcs: Fcs::Good }));
        assert_eq!(b.receive(0), Some(Received { bytes: &[2; 61], fcs: Fcs::Bad }));
        assert_eq!(b.receive(0), None);
        assert_eq!(a.receive(0), None);
    }

    #[test]
    fn a_reservation_without_commit_is_not_sent() {
        let (mut a, mut b) = link(0);
        a.reserve(100).expect("room").fill(9);
        assert!(send(&mut a, &[3; 64], Fcs::Good));
        a.flush(0);
        assert_eq!(b.receive(0).map(|frame| frame.bytes.len()), Some(64));
    }

    #[test]
    fn a_full_cable_holds_the_sender_back_and_loses_nothing() {
        let (mut a, mut b) = link(0);
        let mut sent = 0_u32;
        let mut received = 0_u32;
        for round in 0..50_u32 {
            while {
                let len = 60 + (sent as usize * 37) % 9000;
                let frame: Vec<u8> = (0..len).map(|at| (at as u32 ^ sent) as u8).collect();
                send(&mut a, &frame, Fcs::Good)
            } {
                sent += 1;
            }
            a.flush(0);
            // Take only part of it, so that records stay cut in the inbox.
            for _ in 0..1 + round % 3 {
                let Some(frame) = b.receive(0) else { break };
                let len = 60 + (received as usize * 37) % 9000;
                assert_eq!(frame.bytes.len(), len);
                assert!((0..len).all(|at| frame.bytes[at] == (at as u32 ^ received) as u8));
                received += 1;
            }
        }
        while b.receive(0).is_some() {
            received += 1;
        }
        assert_eq!(sent, received);
        assert!(sent > 50);
    }

    #[test]
    fn the_carrier_follows_the_transmitter_of_the_other_end() {
        let (mut a, b) = link(0);
        a.set_transmitter(false);
        assert!(a.carrier() && !b.carrier());
        a.set_transmitter(true);
        assert!(a.carrier() && b.carrier());
    }

    #[test]
    fn the_carrier_is_gone_when_the_other_end_is() {
        let (a, b) = link(0);
        assert!(a.carrier());
        drop(b);
        assert!(!a.carrier());
    }
}
