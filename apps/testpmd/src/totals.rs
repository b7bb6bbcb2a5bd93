//! What a run did, in numbers that must add up.

use std::fmt;

use serde::Serialize;

use crate::reason::Drops;

/// Frames and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Traffic {
    /// Frames.
    pub frames: u64,
    /// Bytes, without FCS.
    pub bytes: u64,
}

impl Traffic {
    /// Adds one frame.
    #[inline]
    pub fn add(&mut self, len_bytes: usize) {
        self.frames += 1;
        self.bytes += len_bytes as u64;
    }

    /// Adds other traffic.
    pub fn merge(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

/// What the queues of one port moved, as the worker that owns them counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Taken from receive queues.
    pub received: Traffic,
    /// Received here and given to a send queue of whichever port.
    pub forwarded: Traffic,
    /// Generated here and given to a send queue.
    pub generated: Traffic,
    /// Received here and neither sent nor in hand, by reason.
    pub dropped: Drops,
    /// Received frames that a worker still holds.
    pub in_hand: u64,
    /// Polls of receive queues.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Times that a send queue took less than it was given.
    pub tx_full: u64,
    /// Times that no buffer was free for a generated frame.
    pub no_mbuf: u64,
}

/// Totals that do not add up: a fault of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imbalance {
    /// Frames received.
    pub received: u64,
    /// Frames forwarded.
    pub forwarded: u64,
    /// Frames dropped for all reasons.
    pub dropped: u64,
    /// Frames still held.
    pub in_hand: u64,
}

impl fmt::Display for Imbalance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { received, forwarded, dropped, in_hand } = self;
        write!(
            f,
            "totals do not add up: received {received} != forwarded {forwarded} + dropped \
             {dropped} + in hand {in_hand}; this is a fault of testpmd, please report it"
        )
    }
}

impl std::error::Error for Imbalance {}

impl Counts {
    /// Adds the counts of another queue or port.
    pub fn merge(&mut self, other: &Self) {
        self.received.merge(other.received);
        self.forwarded.merge(other.forwarded);
        self.generated.merge(other.generated);
        self.dropped.merge(&other.dropped);
        self.in_hand += other.in_hand;
        self.polls += other.polls;
        self.empty_polls += other.empty_polls;
        self.tx_full += other.tx_full;
        self.no_mbuf += other.no_mbuf;
    }

    /// Checks that every received frame is accounted for once.
    ///
    /// # Errors
    /// [`Imbalance`] with both sides of the sum.
    pub fn check(&self) -> Result<(), Imbalance> {
        let (received, forwarded) = (self.received.frames, self.forwarded.frames);
        let (dropped, in_hand) = (self.dropped.total(), self.in_hand);
        if received == forwarded + dropped + in_hand {
            return Ok(());
        }
        Err(Imbalance { received, forwarded, dropped, in_hand })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::Reason;

    #[test]
    fn every_frame_is_accounted_for_once() {
        let mut counts = Counts::default();
        assert_eq!(counts.check(), Ok(()));
        counts.received.add(64);
        counts.received.add(1518);
        counts.received.add(60);
        let error = counts.check().unwrap_err();
        assert_eq!((error.received, error.forwarded, error.dropped), (3, 0, 0));
        assert!(error.to_string().contains("received 3 != forwarded 0 + dropped 0 + in hand 0"));
        counts.forwarded.add(64);
        counts.dropped.add(Reason::TxRefused, 1);
        assert!(counts.check().is_err());
        counts.in_hand = 1;
        assert_eq!(counts.check(), Ok(()));
        counts.forwarded.add(64);
        assert!(counts.check().is_err(), "a frame that is counted twice shows too");
    }

    #[test]
    fn sums_keep_the_balance() {
        let mut one =
            Counts { polls: 5, empty_polls: 4, tx_full: 1, no_mbuf: 2, ..Counts::default() };
        one.received.add(100);
        one.forwarded.add(100);
        one.generated.add(60);
        let mut two = one;
        two.merge(&one);
        assert_eq!(two.received, Traffic { frames: 2, bytes: 200 });
        assert_eq!(two.generated, Traffic { frames: 2, bytes: 120 });
        assert_eq!((two.polls, two.empty_polls, two.tx_full, two.no_mbuf), (10, 8, 2, 4));
        assert_eq!(two.check(), Ok(()));
    }
}
