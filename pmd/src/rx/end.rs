//! How a receive queue ends.

use std::sync::Arc;

use ferrocx_core::{Destroy, DeviceError};

use super::RxQueue;
use crate::rss::Steering;

impl RxQueue {
    /// Stops the queue, takes its buffers back, and destroys it.
    ///
    /// # Errors
    ///
    /// The queue comes back if flow rules or an [`Rss`](crate::Rss) still lead to it, or with what
    /// the device refused. The rule of [`RxQueue::matching`] ends in any case.
    pub fn destroy(mut self) -> Result<(), Destroy<Self>> {
        self.steering = Steering::default();
        let handles = Arc::strong_count(&self.rq) - 1;
        let done = match Arc::get_mut(&mut self.rq) {
            Some(rq) => rq.stop_queue().and_then(|()| rq.destroy()).map_err(DeviceError::from),
            None => Err(DeviceError::InUse { handles }),
        };
        done.map_err(|cause| Destroy { object: Box::new(self), cause })
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        self.steering = Steering::default();
        if let Err(error) = self.rq.stop_queue() {
            tracing::error!(rqn = self.rq.number(), %error, "receive queue not stopped");
            self.hot.leak();
        }
    }
}
