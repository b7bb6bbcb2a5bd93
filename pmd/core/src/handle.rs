//! [`Handle`]: one object of the device, destroyed with its owner.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocx_bus::DmaBuf;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::tir::{CreateTir, MODIFY_RQT_LIST, ModifyRqt};
use ferrocx_prm::tirc::{Rqtc, Tirc};

use crate::cmd::CommandError;
use crate::device::Device;
use crate::objects::{Kind, QueueState};

/// One object of the device, destroyed when it is dropped.
///
/// It holds the device and the memory that the object works on. If destroying fails, that memory is
/// leaked, with an error in the log: the device may still own it.
#[derive(Debug)]
pub struct Handle {
    kind: Kind,
    number: u32,
    alive: bool,
    /// What the device reads or writes as long as the object exists.
    memory: Mutex<Vec<Arc<DmaBuf>>>,
    /// Objects that this one names to the device, destroyed after it.
    needs: Vec<Arc<Handle>>,
    device: Device,
}

impl Handle {
    /// Owns an object that [`Device::execute_raw`] created. `memory` is what the device reads or
    /// writes as long as the object exists.
    #[must_use]
    pub fn new(device: &Device, kind: Kind, number: u32, memory: Vec<Arc<DmaBuf>>) -> Self {
        let memory = Mutex::new(memory);
        Self { kind, number, alive: true, memory, needs: Vec::new(), device: device.clone() }
    }

    /// Keeps `other` until this object is gone, because its context names it.
    #[must_use]
    pub fn needing(mut self, other: &Arc<Handle>) -> Self {
        self.needs.push(Arc::clone(other));
        self
    }

    /// Keeps a buffer, too, that the device is about to work on.
    pub(crate) fn hold(&self, buf: &Arc<DmaBuf>) {
        self.memory().push(Arc::clone(buf));
    }

    /// Lets go of a buffer that the device has let go of.
    pub(crate) fn release(&self, buf: &Arc<DmaBuf>) {
        self.memory().retain(|held| !Arc::ptr_eq(held, buf));
    }

    fn memory(&self) -> MutexGuard<'_, Vec<Arc<DmaBuf>>> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number by which the device knows the object.
    #[inline(always)]
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the object still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive && !self.device.objects_are_gone()
    }

    /// The device that it is an object of.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// State of a send or receive queue, as the device knows it.
    ///
    /// # Panics
    /// For an object of another kind.
    pub fn queue_state(&self) -> Result<QueueState, CommandError> {
        self.device.inner().control().queue_state(self.kind, self.number)
    }

    /// Moves a send or receive queue from one state to another.
    ///
    /// # Panics
    /// For an object of another kind.
    pub fn move_queue(&self, from: QueueState, to: QueueState) -> Result<(), CommandError> {
        self.device.inner().control().move_queue(self.kind, self.number, from, to)
    }

    /// Makes the device let go of the buffers of a send or receive queue: any state to reset.
    /// Nothing to do when a reset of the device did so, or the queue is destroyed.
    ///
    /// # Panics
    /// For an object of another kind.
    pub fn stop_queue(&self) -> Result<(), CommandError> {
        if !self.is_alive() {
            return Ok(());
        }
        let state = self.queue_state()?;
        if state == QueueState::RDY {
            self.move_queue(QueueState::RDY, QueueState::ERR)?;
        }
        if state != QueueState::RST {
            self.move_queue(QueueState::ERR, QueueState::RST)?;
        }
        Ok(())
    }

    /// Destroys the object now; on an error it can be tried again, for other objects may still
    /// need this one.
    pub fn destroy(&mut self) -> Result<(), CommandError> {
        if self.is_alive() {
            self.device.inner().control().destroy(self.kind, self.number)?;
        }
        self.alive = false;
        Ok(())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            tracing::error!(kind = ?self.kind, number = self.number, %error, "not destroyed");
            let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
            for buf in memory.drain(..) {
                tracing::error!(iova = format_args!("{:#x}", buf.iova()), "queue memory leaked");
                std::mem::forget(buf);
            }
        }
    }
}

/// Completion queues.
impl Handle {
    /// Longest period of [`Handle::moderate_cq`]. Source: reference 5.4, 12 bits.
    pub const MAX_CQ_PERIOD_US: u16 = 0xfff;

    /// Sets when a completion queue that is armed has its event: after `max_count` entries, or when
    /// the last event is `period_us` microseconds ago, at most [`Handle::MAX_CQ_PERIOD_US`],
    /// whichever comes first; 0 and 0 for at once.
    pub fn moderate_cq(&self, max_count: u16, period_us: u16) -> Result<(), CommandError> {
        self.device.inner().control().moderate_cq(self.number, max_count, period_us)
    }

    /// Lets the device write over entries of a completion queue that were not consumed, instead of
    /// failing the queue.
    pub fn ignore_overruns(&self) -> Result<(), CommandError> {
        self.device.inner().control().ignore_overruns(self.number)
    }
}

/// What leads packets to receive queues.
impl Handle {
    /// Writes another list of receive queues to a table of [`Device::create_rqt`].
    pub fn modify_rqt(&self, rqns: &[u32]) -> Result<(), CommandError> {
        let tail: Vec<u8> = rqns.iter().flat_map(|rqn| rqn.to_be_bytes()).collect();
        let input = ModifyRqt::input()
            .with_rqtn(self.number)
            .with_bitmask(MODIFY_RQT_LIST)
            .with_ctx(Rqtc::zeroed().with_rqt_actual_size(rqns.len() as u32));
        let mut control = self.device.inner().control();
        control.execute::<ModifyRqt>(&input, &tail, &mut []).map(|_| ())
    }
}

impl Device {
    /// Makes a table of receive queues, of the length of `rqns`.
    pub fn create_rqt(&self, rqns: &[u32]) -> Result<Handle, CommandError> {
        let rqtn = self.inner().control().create_rqt(rqns)?;
        Ok(Handle::new(self, Kind::Rqt, rqtn, Vec::new()))
    }

    /// Makes a receive transport interface: what flow rules lead packets to.
    pub fn create_tir(&self, tirc: Tirc) -> Result<Handle, CommandError> {
        let tirc = tirc.with_transport_domain(self.inner().made.transport_domain);
        let tirn = self.inner().control().call(&CreateTir::input().with_ctx(tirc))?.tirn();
        Ok(Handle::new(self, Kind::Tir, tirn, Vec::new()))
    }
}
