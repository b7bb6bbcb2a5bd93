//! Commands for the objects of this crate, and who owns these.
#![expect(unsafe_code, reason = "commands tell the device where to read and write")]

use std::sync::Arc;

use ferrocx_bus::{BusError, DmaBuf};
use ferrocx_core::wq::{RecvRing, RecvSize, SendRing, SharedRing, XrcSrqAttr};
use ferrocx_core::{CommandError, Device, DeviceError, Handle, Kind, Uar};
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

/// Owns an object that a command has just created, and that works on `memory`.
pub(crate) fn own(device: &Device, kind: Kind, number: u32, memory: Vec<Arc<DmaBuf>>) -> Handle {
    // SAFETY: the caller has the number from the command, and gives it to nobody else. Beside
    // `memory` the device writes where requests and keys say, which outlive the handle or keep it.
    unsafe { Handle::from_raw(device, kind, number, memory) }
}

/// Makes a shared receive queue, see [`SharedRing::create`]; of an XRC domain with `xrc`.
pub(crate) fn shared_ring(
    device: &Device,
    pd: u32,
    xrc: Option<&XrcSrqAttr>,
    size: RecvSize,
) -> Result<(SharedRing, Handle), DeviceError> {
    // SAFETY: what is posted names buffers by their keys: the slots of the queue hold them until
    // the receive has ended or the device let go of the queue.
    unsafe {
        match xrc {
            Some(attr) => SharedRing::create_xrc(device, attr, size),
            None => SharedRing::create(device, pd, size),
        }
    }
}

/// The rings of queue pair `qpn`, which was just made over this memory: the receive queue's first,
/// if it has one, and the send queue's of so many blocks `send_at_bytes` behind it.
pub(crate) fn qp_rings(
    rings: &Arc<DmaBuf>,
    record: &Arc<DmaBuf>,
    recv: Option<RecvSize>,
    send_at_bytes: usize,
    log_send_blocks: u8,
    uar: &Uar,
    qpn: u32,
) -> Result<(SendRing, Option<RecvRing>), BusError> {
    // SAFETY: the number and the memory are those of the caller's own queue pair. What is posted
    // names buffers by their keys: its slots hold them until the request has completed or the
    // device let go of the queue.
    unsafe {
        let send = SendRing::over(rings, send_at_bytes, log_send_blocks, record, uar, qpn)?;
        Ok((send, recv.map(|size| RecvRing::over(rings, size, record)).transpose()?))
    }
}
