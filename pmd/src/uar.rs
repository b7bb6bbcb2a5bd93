//! UAR pages: the registers that a send queue rings.

use std::sync::Arc;

use ferrocx_bus::Doorbell;
use ferrocx_prm::init_seg::uar;

use crate::cmd::objects::{Handle, Kind};
use crate::device::Inner;
use crate::error::DeviceError;

/// One UAR page, owned by one send queue.
///
/// A register is shared by nobody: two queues that ring the same register overwrite each other's
/// value, and each would have to lock it.
#[derive(Debug)]
pub struct Uar {
    handle: Handle,
    doorbell: Doorbell,
}

impl Uar {
    /// Takes a page and maps its first send doorbell.
    pub(crate) fn new(device: &Arc<Inner>) -> Result<Self, DeviceError> {
        let number = device.control().alloc_uar()?;
        let handle = Handle::new(device, Kind::Uar, number, Vec::new());
        let offset = u64::from(number) * uar::PAGE_BYTES + uar::SEND_DOORBELL;
        let doorbell = device.bar().doorbell(offset)?;
        Ok(Self { handle, doorbell })
    }

    /// Number of the page.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.handle.number()
    }

    /// The register, for the hot path.
    #[must_use]
    pub fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}
