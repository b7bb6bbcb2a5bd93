//! Packets that found no buffer, by the device's count.

use ferrocx_core::{DeviceError, DropCounter};

use super::RxQueue;

impl RxQueue {
    /// Packets that the device dropped since the queue was made because it found no buffer posted:
    /// the core was away, or the ring is too short for the burst. `None` if the device has no
    /// counter for this queue: the first
    /// [`Limits::drop_counters`](ferrocx_core::Limits::drop_counters) have one.
    ///
    /// Asks the device, in some microseconds: nothing for each round of a polling loop.
    ///
    /// # Errors
    /// What the device refused, or that it is gone.
    #[doc(alias = "imissed")]
    #[doc(alias = "rx_out_of_buffer")]
    pub fn missed(&self) -> Result<Option<u64>, DeviceError> {
        Ok(self.drops.as_ref().map(DropCounter::read).transpose()?)
    }
}
