//! Commands for the objects of this crate.
#![expect(unsafe_code, reason = "commands tell the device where to read and write")]

use ferrocx_core::{CommandError, Device};
use ferrocx_prm::cmd::Command;

/// Carries out commands that [`Device`] has no method for.
pub(crate) trait Execute {
    /// Carries out a command; `tail_in` follows its input, `tail_out` is what follows its output.
    fn execute<C: Command>(
        &self,
        input: &C::In,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError>;
}

impl Execute for Device {
    fn execute<C: Command>(
        &self,
        input: &C::In,
        tail_in: &[u8],
        tail_out: &mut [u8],
    ) -> Result<C::Out, CommandError> {
        // SAFETY: only this crate can call this. What its commands name to the device is memory
        // from `Device::alloc_dma`, which is copied to and from, or a mapping of `mr::memory`,
        // whose region is in raw use; both live as long as the object that names them, or are
        // leaked with it. Objects that they name are the caller's own, or held by it.
        unsafe { self.execute_raw::<C>(input, tail_in, tail_out) }
    }
}
