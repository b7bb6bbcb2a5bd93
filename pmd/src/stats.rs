//! Counters of queues, kept by the driver.

use ferrocx_core::QueueFault;

/// Counts of one receive queue since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RxStats {
    /// Packets handed out.
    pub packets: u64,
    /// Bytes of those packets, without FCS.
    pub bytes: u64,
    /// Packets dropped because they did not fit, or arrived broken (completions with error).
    pub errors: u64,
    /// Times that the pool had no buffer to post: the ring runs shorter until it has.
    pub no_mbuf: u64,
    /// Times that the queue was reset after a fault.
    pub resets: u64,
    /// Why the queue stands still, if it does.
    pub fault: Option<QueueFault>,
}

/// Counts of one send queue since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TxStats {
    /// Packets handed to the device.
    pub packets: u64,
    /// Bytes of those packets, without FCS.
    pub bytes: u64,
    /// Packets that the device refused (completions with error), and packets lost with them.
    pub errors: u64,
    /// Packets dropped because no work request can describe them, see [`crate::TxQueue::tx_burst`].
    pub dropped: u64,
    /// Times that a burst found the ring full.
    pub full: u64,
    /// Send timestamps lost because nobody took those before, see
    /// [`TxQueueConfig::timestamps`](crate::TxQueueConfig::timestamps).
    pub timestamps_lost: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Times that the queue was reset after a fault.
    pub resets: u64,
    /// Why the queue stands still, if it does.
    pub fault: Option<QueueFault>,
}

impl TxStats {
    /// Counts packets handed to the device.
    #[inline(always)]
    pub(crate) fn add(&mut self, packets: usize, bytes: usize) {
        self.packets += packets as u64;
        self.bytes += bytes as u64;
    }
}
