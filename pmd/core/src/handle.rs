//! [`Handle`]: one object of the device, destroyed with its owner.

use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_bus::DmaBuf;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::queues::{ModifyCq, modify_cq, resize_cq};
use ferrocx_prm::cmd::tir::{CreateRqt, CreateTir, MODIFY_RQT_LIST, ModifyRqt};
use ferrocx_prm::cmd::wq::{ModifyRq, ModifySq, QueryRq, QuerySq};
use ferrocx_prm::cqc::Cqc;
use ferrocx_prm::tirc::{Rqtc, Tirc};
use ferrocx_prm::wqc::{Rqc, Sqc};

use crate::cmd::CommandError;
use crate::device::{Device, lock};
use crate::objects::{Kind, QueueState, page_list};

/// `op_mod` of MODIFY_CQ that moves a queue to another buffer. Source: reference 4.3.
const RESIZE: u32 = 1;

/// One object of the device, destroyed when it is dropped.
///
/// It holds the device and the memory that the object works on. If destroying fails, the device
/// keeps that memory until it is closed, for the object may still own it.
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
    ///
    /// # Safety
    /// Nobody else owns the object: whoever destroys or stops one takes what others rely on, such
    /// as a queue's position, or the end of the device's writing. The device writes to nothing for
    /// it but `memory`, and what is held as long as the handle.
    ///
    /// ```compile_fail,E0133
    /// # use ferrocx_core::{Device, Handle, Kind};
    /// fn safe(device: &Device, rqn: u32) -> Handle {
    ///     Handle::from_raw(device, Kind::Rq, rqn, Vec::new())
    /// }
    /// ```
    #[expect(unsafe_code, reason = "whoever destroys an object ends what others rely on")]
    #[must_use]
    pub unsafe fn from_raw(
        device: &Device,
        kind: Kind,
        number: u32,
        memory: Vec<Arc<DmaBuf>>,
    ) -> Self {
        Self::new(device, kind, number, memory)
    }

    /// Owns an object that this crate created.
    pub(crate) fn new(device: &Device, kind: Kind, number: u32, memory: Vec<Arc<DmaBuf>>) -> Self {
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
        lock(&self.memory).push(Arc::clone(buf));
    }

    /// Lets go of a buffer that the device has let go of.
    pub(crate) fn release(&self, buf: &Arc<DmaBuf>) {
        lock(&self.memory).retain(|held| !Arc::ptr_eq(held, buf));
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
        let mut control = self.device.inner().control();
        Ok(QueueState(match self.kind {
            Kind::Sq => control.call(&QuerySq::input().with_sqn(self.number))?.sq_context().state(),
            Kind::Rq => control.call(&QueryRq::input().with_rqn(self.number))?.rq_context().state(),
            kind => panic!("{kind:?} is no queue"),
        }))
    }

    /// Moves a send or receive queue from one state to another.
    ///
    /// # Panics
    /// For an object of another kind.
    pub fn move_queue(&self, from: QueueState, to: QueueState) -> Result<(), CommandError> {
        let mut control = self.device.inner().control();
        match self.kind {
            Kind::Sq => {
                let input = ModifySq::input().with_sqn(self.number).with_sq_state(from.0);
                control.call(&input.with_ctx(Sqc::zeroed().with_state(to.0))).map(drop)
            }
            Kind::Rq => {
                let input = ModifyRq::input().with_rqn(self.number).with_rq_state(from.0);
                control.call(&input.with_ctx(Rqc::zeroed().with_state(to.0))).map(drop)
            }
            kind => panic!("{kind:?} is no queue"),
        }
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
            self.device.inner().control().keep(memory.drain(..));
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
        let cqc = Cqc::zeroed().with_cq_max_count(max_count.into());
        let fields = modify_cq::PERIOD | modify_cq::MAX_COUNT;
        self.modify_cq(0, fields, cqc.with_cq_period(period_us.into()), &[])
    }

    /// Lets the device write over entries of a completion queue that were not consumed, instead of
    /// failing the queue.
    pub fn ignore_overruns(&self) -> Result<(), CommandError> {
        self.modify_cq(0, modify_cq::OI, Cqc::zeroed().with_oi(true), &[])
    }

    /// Moves a completion queue to another buffer, of `2^log_size` entries.
    pub(crate) fn resize_cq(&self, log_size: u8, buf: &DmaBuf) -> Result<(), CommandError> {
        use resize_cq::{LOG_PAGE_SIZE, LOG_SIZE, PAGE_OFFSET};
        let cqc = Cqc::zeroed().with_log_cq_size(log_size.into());
        let fields = LOG_SIZE | PAGE_OFFSET | LOG_PAGE_SIZE;
        self.modify_cq(RESIZE, fields, cqc, &page_list(buf))
    }

    fn modify_cq(
        &self,
        op_mod: u32,
        fields: u32,
        cqc: Cqc,
        pages: &[u8],
    ) -> Result<(), CommandError> {
        let input = ModifyCq::input()
            .with_op_mod(op_mod)
            .with_cqn(self.number)
            .with_modify_field_select_resize_field_select(fields)
            .with_cq_context(cqc);
        self.device.inner().control().execute::<ModifyCq>(&input, pages, &mut []).map(drop)
    }
}

/// What leads packets to receive queues.
impl Handle {
    /// Writes another list of receive queues to a table of [`Device::create_rqt`].
    pub fn modify_rqt(&self, rqns: &[u32]) -> Result<(), CommandError> {
        let input = ModifyRqt::input()
            .with_rqtn(self.number)
            .with_bitmask(MODIFY_RQT_LIST)
            .with_ctx(Rqtc::zeroed().with_rqt_actual_size(rqns.len() as u32));
        let mut control = self.device.inner().control();
        control.execute::<ModifyRqt>(&input, &numbers(rqns), &mut []).map(drop)
    }
}

/// A list of queues, as commands carry it.
fn numbers(rqns: &[u32]) -> Vec<u8> {
    rqns.iter().flat_map(|rqn| rqn.to_be_bytes()).collect()
}

impl Device {
    /// Makes a table of receive queues, of the length of `rqns`.
    pub fn create_rqt(&self, rqns: &[u32]) -> Result<Handle, CommandError> {
        let count = rqns.len() as u32;
        let context = Rqtc::zeroed().with_rqt_max_size(count).with_rqt_actual_size(count);
        let input = CreateRqt::input().with_rqt_context(context);
        let made = self.inner().control().execute::<CreateRqt>(&input, &numbers(rqns), &mut [])?;
        Ok(Handle::new(self, Kind::Rqt, made.rqtn(), Vec::new()))
    }

    /// Makes a receive transport interface: what flow rules lead packets to.
    pub fn create_tir(&self, tirc: Tirc) -> Result<Handle, CommandError> {
        let tirc = tirc.with_transport_domain(self.inner().made.transport_domain);
        let tirn = self.inner().control().call(&CreateTir::input().with_ctx(tirc))?.tirn();
        Ok(Handle::new(self, Kind::Tir, tirn, Vec::new()))
    }
}
