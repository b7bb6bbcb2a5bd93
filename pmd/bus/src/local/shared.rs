//! What the driver's and the device's half have in common.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::bar::BarShared;
use super::irq::IrqShared;
use super::space::SpaceShared;

/// Registers, memory, interrupts and reset of one device.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) bar: Arc<BarShared>,
    pub(super) space: Arc<SpaceShared>,
    pub(super) irq: Arc<IrqShared>,
    /// Set by the driver's reset, cleared by the device's acknowledgement.
    pub(super) reset_pending: AtomicBool,
}
