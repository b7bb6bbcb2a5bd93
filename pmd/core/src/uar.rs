//! UAR pages: the registers that a send queue rings.

use std::ops::RangeInclusive;

use ferrocx_bus::{BlueFlame, BusError, Doorbell};
use ferrocx_prm::init_seg::uar;

use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::Kind;

/// log2 of the bytes of a BlueFlame buffer, two of which share what a page has from the first
/// register on.
const BUFFER_BYTES: RangeInclusive<u32> = 6..=10;

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

    /// The page's first BlueFlame register, where the device has such and stores reach it whole.
    ///
    /// # Errors
    ///
    /// [`BusError`] when the page is not mapped.
    pub(crate) fn blueflame(&self) -> Result<Option<BlueFlame>, BusError> {
        let inner = self.handle.device().inner();
        let caps = &inner.made.caps.hca;
        let log_buffer_bytes = caps.log_bf_reg_size().saturating_sub(1);
        if !caps.bf() || !BUFFER_BYTES.contains(&log_buffer_bytes) {
            return Ok(None);
        }
        let offset = u64::from(self.page()) * uar::PAGE_BYTES + uar::SEND_DOORBELL;
        inner.bar.blueflame(offset, 1 << log_buffer_bytes)
    }

    /// The register, for the hot path.
    #[must_use]
    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }
}
