//! When the device has sent packets: [`SendTimestamp`], and the list of those that nobody took yet.

use std::collections::VecDeque;

/// When the device had sent a packet that asked for it, see [`TxQueue::next_timestamp`].
///
/// [`TxQueue::next_timestamp`]: crate::TxQueue::next_timestamp
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendTimestamp {
    /// Name of the packet: of [`Mbuf::set_tx_timestamp`](ferrocx_mempool::Mbuf::set_tx_timestamp),
    /// or of [`TxQueue::send_one_stamped`](crate::TxQueue::send_one_stamped).
    pub id: u64,
    /// Ticks of the device's counter, which [`TimeBase`](ferrocx_core::TimeBase) makes nanoseconds
    /// of.
    pub ticks: u64,
}

/// Timestamps that nobody took yet, oldest first.
#[derive(Debug)]
pub(super) struct Stamps {
    kept: VecDeque<SendTimestamp>,
    most: usize,
}

impl Stamps {
    /// Room for so many; the last allocation.
    pub(super) fn new(most: usize) -> Self {
        Self { kept: VecDeque::with_capacity(most), most }
    }

    /// Whether the queue takes packets that ask for one.
    pub(super) fn is_on(&self) -> bool {
        self.most != 0
    }

    /// Keeps one; `false`, and it is lost, if there is no room.
    pub(super) fn keep(&mut self, stamp: SendTimestamp) -> bool {
        let has_room = self.kept.len() < self.most;
        if has_room {
            self.kept.push_back(stamp);
        }
        has_room
    }

    /// Takes the oldest.
    pub(super) fn take(&mut self) -> Option<SendTimestamp> {
        self.kept.pop_front()
    }
}
