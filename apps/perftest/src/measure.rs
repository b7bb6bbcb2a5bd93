//! What is measured: the part of the command line that both ends must know.

use serde::{Deserialize, Serialize};

/// Bytes that atomics work on.
pub const ATOMIC_BYTES: usize = 8;
/// Bytes of messages of one round at most, over all queue pairs.
const ROUND_BYTES: usize = 64 << 20;

/// Which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// SEND into receives.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Fetch and add, and compare and swap, in turn.
    Atomic,
    /// Registration and local invalidation of memory keys by a pipeline.
    FastReg,
}

impl Test {
    /// All, with their names on the command line.
    pub const ALL: [(&'static str, Self); 5] = [
        ("send", Self::Send),
        ("write", Self::Write),
        ("read", Self::Read),
        ("atomic", Self::Atomic),
        ("fastreg", Self::FastReg),
    ];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::ALL.into_iter().find(|(_, test)| *test == self);
        found.map_or("", |(name, _)| name)
    }
}

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The time of one operation after the other.
    Lat,
    /// How many end in a second, with many on the way.
    Bw,
}

impl Kind {
    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lat => "lat",
            Self::Bw => "bw",
        }
    }
}

/// When a round ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// After so many messages of each queue pair.
    Messages(u64),
    /// After so many milliseconds.
    Milliseconds(u64),
}

/// What both ends must know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Measure {
    /// Which operation.
    pub test: Test,
    /// What is looked at.
    pub kind: Kind,
    /// Bytes of a message, one round for each.
    pub sizes: Vec<usize>,
    /// When a round ends.
    pub limit: Limit,
    /// Messages on the way on each queue pair at most; keys of a registration pipeline.
    pub depth: usize,
    /// Queue pairs.
    pub qps: usize,
    /// Threads that post and poll at each end; registration pipelines.
    pub workers: usize,
    /// Messages up to this long stand in the request.
    pub inline_bytes: usize,
    /// Every so many messages one asks for a completion.
    pub signal_every: usize,
    /// Messages for one ring of the doorbell.
    pub batch: usize,
    /// Check every byte of every message.
    pub verify: bool,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Code of the time until a packet is sent again.
    pub ack_timeout: u8,
}

impl Measure {
    /// Messages of `size` bytes that are on the way on a queue pair: the depth, or what memory
    /// there is for.
    #[must_use]
    pub fn slots(&self, size: usize) -> usize {
        let one = Self::slot_bytes(size) * self.qps.max(1);
        (ROUND_BYTES / one).clamp(1, self.depth.max(1))
    }

    /// Bytes between the starts of two messages in memory.
    #[must_use]
    pub fn slot_bytes(size: usize) -> usize {
        size.next_multiple_of(64)
    }

    /// Queue pairs of worker `worker`.
    #[must_use]
    pub fn qps_of(&self, worker: usize) -> usize {
        (self.qps + self.workers - 1 - worker) / self.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn measure() -> Measure {
        Measure {
            test: Test::Send,
            kind: Kind::Bw,
            sizes: vec![64],
            limit: Limit::Messages(10),
            depth: 128,
            qps: 1,
            workers: 1,
            inline_bytes: 0,
            signal_every: 1,
            batch: 1,
            verify: false,
            mtu: 1024,
            ack_timeout: 14,
        }
    }

    #[test]
    fn large_messages_get_fewer_slots() {
        let measure = Measure { qps: 4, ..measure() };
        assert_eq!(measure.slots(1), 128);
        assert_eq!(measure.slots(1 << 20), 16);
        assert_eq!(measure.slots(1 << 30), 1);
    }

    #[test]
    fn queue_pairs_are_dealt_out() {
        let measure = Measure { qps: 5, workers: 3, ..measure() };
        assert_eq!([0, 1, 2].map(|worker| measure.qps_of(worker)), [2, 2, 1]);
    }
}
