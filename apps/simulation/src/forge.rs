//! Entries of completion and event queues in which a device says what is not so.

use std::collections::BTreeMap;

use ferrocx_model::Nic;
use ferrocx_model::objects::QueueMemory;
use ferrocx_model::wire::SplitMix64;

/// Queue of a device that a driver reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// Completion queues.
    Completions,
    /// Event queues.
    Events,
}

/// Bytes that a driver looks at, at the end of an entry: the last has the owner.
const ENTRY_BYTES: u64 = 64;
/// Of a completion queue's entry, all fields that a driver acts on are in its second half.
const TOLD_BYTES: u64 = 32;
/// The bit that says whose the entry is, in the last byte.
const OWNER: u8 = 1;

/// Changes entries between the device that wrote them and the driver that reads them.
#[derive(Debug)]
pub(crate) struct Forger {
    ring: Ring,
    /// Entries that are still to be changed.
    left: u32,
    random: SplitMix64,
    /// Entries that each queue had when it was looked at last, by its number.
    seen: BTreeMap<u32, u32>,
}

/// A queue as a forger sees it.
struct Queue<'a> {
    number: u32,
    memory: &'a QueueMemory,
    log_size: u32,
    entry_bytes: u64,
    written: u32,
}

impl Forger {
    /// One that changes `count` of the entries that come.
    pub(crate) fn new(ring: Ring, count: u32, seed: u64) -> Self {
        Self { ring, left: count, random: SplitMix64::new(seed), seen: BTreeMap::new() }
    }

    /// Whether nothing is to be changed any more.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Looks at what the device wrote since the last look, and changes some of it.
    pub(crate) fn look(&mut self, nic: &Nic) {
        let objects = &nic.state().objects;
        match self.ring {
            Ring::Completions => {
                for (number, cq) in objects.cqs.iter() {
                    self.visit(
                        nic,
                        &Queue {
                            number,
                            memory: &cq.memory,
                            log_size: cq.log_size,
                            entry_bytes: u64::from(cq.cqe_bytes),
                            written: cq.producer,
                        },
                    );
                }
            }
            Ring::Events => {
                for (number, eq) in objects.eqs.iter() {
                    self.visit(
                        nic,
                        &Queue {
                            number,
                            memory: &eq.memory,
                            log_size: eq.log_size,
                            entry_bytes: ENTRY_BYTES,
                            written: eq.producer,
                        },
                    );
                }
            }
        }
    }

    fn visit(&mut self, nic: &Nic, queue: &Queue<'_>) {
        let seen = self.seen.insert(queue.number, queue.written).unwrap_or(queue.written);
        for index in seen..queue.written {
            // One in two tells the truth, so that lies stand among it.
            if self.left > 0 && self.random.chance(500_000) {
                self.left -= 1;
                self.change(nic, queue, index);
            }
        }
    }

    fn change(&mut self, nic: &Nic, queue: &Queue<'_>, index: u32) {
        let index = u64::from(index & ((1 << queue.log_size) - 1));
        let end = queue.memory.locate(index * queue.entry_bytes) + queue.entry_bytes;
        let back = match self.ring {
            Ring::Completions => 1 + self.random.below(TOLD_BYTES),
            Ring::Events => 1 + self.random.below(ENTRY_BYTES),
        };
        let memory = nic.side().memory();
        let mut byte = [0];
        // A queue that the device cannot reach has no entry to change.
        if memory.read(end - back, &mut byte).is_err() {
            return;
        }
        let mut lie = match self.random.below(4) {
            0 => 0,
            1 => 0xff,
            2 => byte[0] ^ 1 << self.random.below(8),
            _ => self.random.next_u64() as u8,
        };
        // Mostly the entry is still seen as the driver's, or it would be none.
        if back == 1 && self.random.below(8) != 0 {
            lie = lie & !OWNER | byte[0] & OWNER;
        }
        let _ = memory.write(end - back, &[lie]);
    }
}
