//! UAR pages: the registers that a send queue rings.

use ferrocx_bus::Doorbell;
use ferrocx_prm::init_seg::uar;

use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::Kind;

/// One UAR page.
///
/// Several queues may ring one register without a lock, as those of queue pairs do: a doorbell is
/// one store of eight bytes that names its queue. Source: Linux, include/linux/mlx5/doorbell.h.
#[derive(Debug)]
pub struct Uar {
    handle: Handle,
    doorbell: Doorbell,
}

impl Uar {
    /// Takes a page and maps its first send doorbell.
    pub fn new(device: &Device) -> Result<Self, DeviceError> {
        let number = device.inner().control().alloc_uar()?;
        let handle = Handle::new(device, Kind::Uar, number, Vec::new());
        let offset = u64::from(number) * uar::PAGE_BYTES + uar::SEND_DOORBELL;
        let doorbell = device.inner().bar.doorbell(offset)?;
        Ok(Self { handle, doorbell })
    }

    /// Number of the page.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.handle.number()
    }

    /// The register, for the hot path.
    #[must_use]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}
