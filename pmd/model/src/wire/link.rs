//! A cable between two ports in memory, across threads if need be.
//!
//! Each direction is a tray of records: a header (length, verdict, what the frame stands for), then
//! the frame. The sender fills a batch of its own, and at the end of a burst puts it into the tray;
//! the receiver takes batch after batch and reads the frames where the sender wrote them. So a
//! frame is written once and read once, and two cores exchange a lock per batch and not per frame.
//! Only small batches are copied, to join one that waits in the tray. The batch emptied last is
//! filled next: its bytes are still in the cache.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Fcs, MAX_FRAME_BYTES, Received, Train, Wire};

/// Length and verdict, then the three numbers of a [`Train`].
const HEADER_BYTES: usize = 16;
/// Verdicts, in the two upper bits of the length.
const BAD_FCS: u32 = 1 << 31;
const INSIDE: u32 = 1 << 30;
/// A batch that has grown to this is handed over without waiting for the end of the burst. What a
/// queue pair sends in a turn fits, and all batches of a cable fit the cache of a core.
const BATCH_BYTES: usize = 96 << 10;
/// Two batches that are no longer than this together become one: a tray of many bursts of a frame
/// each holds little more than their bytes.
const JOINED_BYTES: usize = 16 << 10;
/// Emptied batches that a cable keeps for each direction.
const MAX_SPARE: usize = 16;
/// Longest frame that stands for many: its length fits an IP header, and the cache of a core holds
/// it beside the memory at both ends.
const MAX_INSIDE_BYTES: usize = 62 << 10;
/// Room of a batch grows in such steps.
const ROOM_STEP_BYTES: usize = 4 << 10;

/// Records, one behind the other.
#[derive(Default)]
struct Batch {
    /// Longer than what is used: bytes are set once, when the room grows.
    bytes: Vec<u8>,
    used: usize,
}

impl Batch {
    /// Room for so many bytes in all.
    #[inline]
    fn grow_to(&mut self, len: usize) {
        if self.bytes.len() < len {
            self.bytes.resize(len.next_multiple_of(ROOM_STEP_BYTES), 0);
        }
    }

    fn join(&mut self, other: &Self) {
        let end = self.used + other.used;
        self.grow_to(end);
        self.bytes[self.used..end].copy_from_slice(&other.bytes[..other.used]);
        self.used = end;
    }
}

/// Batches on their way.
#[derive(Default)]
struct Tray {
    /// In the order in which they were sent.
    full: VecDeque<Batch>,
    /// Emptied, to be filled again.
    spare: Vec<Batch>,
    /// Bytes in all full ones.
    used: usize,
}

impl Tray {
    /// Takes what the sender has filled, and leaves it an empty batch.
    fn put(&mut self, batch: &mut Batch) {
        self.used += batch.used;
        if let Some(last) = self.full.back_mut()
            && last.used + batch.used <= JOINED_BYTES
        {
            last.join(batch);
            batch.used = 0;
            return;
        }
        let spare = self.spare.pop().unwrap_or_default();
        self.full.push_back(std::mem::replace(batch, spare));
    }

    /// Gives the batch that is longest on its way for one that is used up; an empty one if there is
    /// none.
    fn take(&mut self, spent: Batch) -> Batch {
        if !spent.bytes.is_empty() && self.spare.len() < MAX_SPARE {
            self.spare.push(Batch { used: 0, ..spent });
        }
        let full = self.full.pop_front().unwrap_or_default();
        self.used -= full.used;
        full
    }
}

/// What one end does for the other to find. Aligned to what a core takes from another one.
#[derive(Default)]
#[repr(align(128))]
struct Side {
    tray: Mutex<Tray>,
    /// Bytes in the tray, to be looked at without its lock.
    waiting: AtomicUsize,
    /// The transmitter is off.
    is_dark: AtomicBool,
    /// A device has this end, and nobody looks at what arrives.
    is_device: AtomicBool,
}

/// One end of a cable.
pub struct Link {
    /// Both sides; `end` is the place of the own one.
    cable: Arc<[Side; 2]>,
    end: usize,
    capacity: usize,
    /// Records not handed over yet; behind them stands the reserved one.
    batch: Batch,
    /// Length of the frame reserved last.
    reserved: usize,
    /// Bytes known to be free in the own tray.
    free: usize,
    /// The batch that was taken from the other side's tray, and how far it was delivered.
    inbox: Batch,
    inbox_start: usize,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("batched_bytes", &self.batch.used)
            .field("inbox_bytes", &(self.inbox.used - self.inbox_start))
            .finish_non_exhaustive()
    }
}

/// Makes a cable; `capacity_bytes` can be on the way in each direction, headers of 16 bytes
/// included.
///
/// A full cable loses nothing: the sender waits. The capacity is raised to what two of the
/// longest frames need.
#[must_use]
pub fn link(capacity_bytes: usize) -> (Link, Link) {
    let capacity = capacity_bytes.max(2 * (MAX_FRAME_BYTES + HEADER_BYTES));
    let cable = Arc::<[Side; 2]>::default();
    (Link::new(Arc::clone(&cable), 0, capacity), Link::new(cable, 1, capacity))
}

impl Link {
    fn new(cable: Arc<[Side; 2]>, end: usize, capacity: usize) -> Self {
        Self {
            cable,
            end,
            capacity,
            batch: Batch::default(),
            reserved: 0,
            free: capacity,
            inbox: Batch::default(),
            inbox_start: 0,
        }
    }

    #[inline]
    fn near(&self) -> &Side {
        &self.cable[self.end]
    }

    #[inline]
    fn far(&self) -> &Side {
        &self.cable[1 - self.end]
    }

    fn hand_over(&mut self) -> bool {
        if self.batch.used == 0 {
            return false;
        }
        let side = &self.cable[self.end];
        let mut tray = side.tray.lock().unwrap_or_else(PoisonError::into_inner);
        tray.put(&mut self.batch);
        side.waiting.store(tray.used, Ordering::Release);
        self.free = self.capacity.saturating_sub(tray.used);
        true
    }

    /// Takes the next batch from the other side's tray; the inbox is used up.
    fn refill(&mut self) -> bool {
        let side = &self.cable[1 - self.end];
        // A large one goes back at once, so that the next frames are written where these were read.
        let is_large = self.inbox.bytes.len() > JOINED_BYTES;
        if side.waiting.load(Ordering::Acquire) == 0 && !is_large {
            return false;
        }
        self.inbox_start = 0;
        let mut tray = side.tray.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox = tray.take(std::mem::take(&mut self.inbox));
        side.waiting.store(tray.used, Ordering::Release);
        self.inbox.used > 0
    }
}

/// The header of a record.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "at most MAX_INSIDE_BYTES")]
fn header(len: usize, fcs: Fcs) -> [u8; HEADER_BYTES] {
    let word = len as u32;
    let words = match fcs {
        Fcs::Good => [word, 0, 0, 0],
        Fcs::Bad => [word | BAD_FCS, 0, 0, 0],
        Fcs::Inside(Train { frames, bytes, longest }) => [word | INSIDE, frames, bytes, longest],
    };
    let mut out = [0; HEADER_BYTES];
    for (into, word) in out.chunks_exact_mut(4).zip(words) {
        into.copy_from_slice(&word.to_le_bytes());
    }
    out
}

/// Length and verdict of a record.
#[inline]
fn read_header(header: &[u8; HEADER_BYTES]) -> (usize, Fcs) {
    let word = |at: usize| {
        u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let first = word(0);
    let fcs = if first & INSIDE != 0 {
        Fcs::Inside(Train { frames: word(4), bytes: word(8), longest: word(12) })
    } else if first & BAD_FCS != 0 {
        Fcs::Bad
    } else {
        Fcs::Good
    };
    ((first & !(BAD_FCS | INSIDE)) as usize, fcs)
}

impl Wire for Link {
    #[inline]
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        debug_assert!((1..=self.longest_inside()).contains(&len));
        let start = self.batch.used + HEADER_BYTES;
        let end = start + len;
        if end > self.free {
            let waiting = self.near().waiting.load(Ordering::Acquire);
            self.free = self.capacity.saturating_sub(waiting);
            if end > self.free {
                return None;
            }
        }
        self.reserved = len;
        self.batch.grow_to(end);
        Some(&mut self.batch.bytes[start..end])
    }

    #[inline]
    fn commit(&mut self, _now_ns: u64, fcs: Fcs) {
        let start = self.batch.used;
        self.batch.bytes[start..start + HEADER_BYTES].copy_from_slice(&header(self.reserved, fcs));
        self.batch.used += HEADER_BYTES + self.reserved;
        if self.batch.used >= BATCH_BYTES {
            self.hand_over();
        }
    }

    #[inline]
    fn flush(&mut self, _now_ns: u64) -> bool {
        self.hand_over()
    }

    #[inline]
    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        if self.inbox_start == self.inbox.used && !self.refill() {
            return None;
        }
        let header = self.inbox.bytes[self.inbox_start..].first_chunk::<HEADER_BYTES>()?;
        let (len, fcs) = read_header(header);
        let start = self.inbox_start + HEADER_BYTES;
        self.inbox_start = start + len;
        Some(Received { bytes: &self.inbox.bytes[start..start + len], fcs })
    }

    fn carrier(&self) -> bool {
        // The other end holds the cable as long as it is there.
        Arc::strong_count(&self.cable) > 1 && !self.far().is_dark.load(Ordering::Relaxed)
    }

    fn set_transmitter(&mut self, is_on: bool) {
        self.near().is_dark.store(!is_on, Ordering::Relaxed);
    }

    fn adopt(&mut self) {
        self.near().is_device.store(true, Ordering::Release);
    }

    fn is_private(&self, _to: &[u8; 6]) -> bool {
        self.far().is_device.load(Ordering::Acquire)
    }

    /// Two of them fit the cable.
    fn longest_inside(&self) -> usize {
        (self.capacity / 2 - HEADER_BYTES).min(MAX_INSIDE_BYTES)
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
    fn a_cable_is_private_when_a_device_has_the_other_end() {
        let (mut a, mut b) = link(0);
        assert!(!a.is_private(&[0; 6]) && !b.is_private(&[0; 6]));
        b.adopt();
        assert!(a.is_private(&[0; 6]) && !b.is_private(&[0; 6]));
        let train = Train { frames: 3, bytes: 3210, longest: 1078 };
        assert!(send(&mut a, &[7; 3074], Fcs::Inside(train)));
        a.flush(0);
        let frame = b.receive(0).expect("a frame");
        assert_eq!((frame.bytes, frame.fcs), (&[7; 3074][..], Fcs::Inside(train)));
    }

    #[test]
    fn a_batch_joins_what_the_receiver_has_not_taken() {
        let (mut a, mut b) = link(0);
        for len in 60..70 {
            assert!(send(&mut a, &vec![len as u8; len], Fcs::Good));
            a.flush(0);
        }
        for len in 60..70 {
            let frame = b.receive(0).expect("a frame");
            assert_eq!(frame.bytes, vec![len as u8; len]);
        }
        assert_eq!(b.receive(0), None);
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
            // Take only part of it, so that batches join in the tray.
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
    fn batches_wait_one_behind_the_other_and_are_filled_again() {
        let (mut a, mut b) = link(1 << 20);
        for round in 0..3_u8 {
            for burst in 0..10 {
                for _ in 0..3 {
                    assert!(send(&mut a, &[round * 10 + burst; 9000], Fcs::Good));
                }
                a.flush(0);
            }
            assert_eq!(a.near().waiting.load(Ordering::Relaxed), 30 * (9000 + HEADER_BYTES));
            for at in 0..30 {
                let frame = b.receive(0).expect("a frame");
                assert_eq!(frame.bytes, [round * 10 + at / 3; 9000]);
            }
            assert_eq!(b.receive(0), None);
            let tray = a.near().tray.lock().expect("no panic");
            assert_eq!((tray.full.len(), tray.used), (0, 0));
            assert!((1..=MAX_SPARE).contains(&tray.spare.len()));
        }
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
