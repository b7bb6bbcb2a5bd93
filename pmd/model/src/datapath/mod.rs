//! The data path: what happens between a doorbell and the wire.
//!
//! [`crate::Nic::step`] calls the methods of [`DataPath`]; it reaches everything else of the device
//! through [`Ctx`].

use ferrocx_prm::init_seg::CqArm;

use crate::nic::Ctx;
use crate::objects::{QueueMemory, QueueState};

/// State of the data path that is no object: wires, buffers, timers.
#[derive(Debug, Default)]
pub struct DataPath {}

impl DataPath {
    /// A function-level reset: forgets everything but the wire.
    pub fn reset(&mut self) {}

    /// Once per step: continues send queues that still have work, takes frames from the wire,
    /// runs moderation timers. Returns whether anything was done.
    pub fn poll(&mut self, _ctx: &mut Ctx<'_>) -> bool {
        false
    }

    /// A doorbell that may concern this SQ was rung: read its record and execute what is new.
    ///
    /// `rung` holds the eight bytes of the doorbell when they are known to name this SQ.
    pub fn send_doorbell(&mut self, _ctx: &mut Ctx<'_>, _sqn: u32, _rung: Option<u64>) {}

    /// A CQ doorbell that may concern this CQ was rung: read its arm record.
    ///
    /// `rung` holds the doorbell when it is known to name this CQ.
    pub fn cq_doorbell(&mut self, _ctx: &mut Ctx<'_>, _cqn: u32, _rung: Option<CqArm>) {}

    /// MODIFY_SQ changed the state (already stored): flush or start over.
    pub fn sq_state_changed(&mut self, _ctx: &mut Ctx<'_>, _sqn: u32, _from: QueueState) {}

    /// MODIFY_RQ changed the state (already stored): flush or start over.
    pub fn rq_state_changed(&mut self, _ctx: &mut Ctx<'_>, _rqn: u32, _from: QueueState) {}

    /// MODIFY_CQ resizes: write the RESIZE CQE into the old ring, then use the new one.
    pub fn resize_cq(&mut self, _ctx: &mut Ctx<'_>, _cqn: u32, _memory: QueueMemory, _log: u32) {}

    /// The port may send and receive, or no longer.
    pub fn link_changed(&mut self, _ctx: &mut Ctx<'_>, _is_up: bool) {}
}
