//! What surrounds a queue pair while it is worked on.
//!
//! What concerns other queues (completions, events) is collected as [`Effect`]s meanwhile, and done
//! after it.

use ferrocx_bus::local::DmaView;
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;

use super::counts::{InlineCounts, KeyCounts, RoceDrops};
use crate::device::caps::Caps;
use crate::device::port::Port;
use crate::objects::mkey::MkeyTable;
use crate::objects::{InlineData, QCounter, Qp, Rmp, RoceCounters, RoceGid, Table, XrcSrq};
use crate::queue::completion::ErrorReport;
use crate::queue::cq::Urgency;

/// Something to do for other queues once a queue pair has been worked on.
#[derive(Debug)]
pub(super) enum Effect {
    Complete { cqn: u32, front: Option<Box<InlineData>>, entry: [u8; 64], urgency: Urgency },
    Event { event: EventType, number: u32 },
    Refuse { field: &'static str, value: u64, why: &'static str },
}

/// Memory, objects and counters that a queue pair reaches.
pub(super) struct Env<'a> {
    pub(super) qpn: u32,
    /// User context that the queue pair belongs to; 0 is the driver.
    pub(super) owner: u16,
    pub(super) mem: &'a DmaView<'a>,
    pub(super) keys: &'a mut MkeyTable,
    pub(super) pds: &'a mut Table<()>,
    pub(super) rmps: &'a mut Table<Rmp>,
    pub(super) srqs: &'a mut Table<XrcSrq>,
    pub(super) gids: &'a [Option<RoceGid>],
    pub(super) counters: &'a mut Table<QCounter>,
    pub(super) port: &'a mut Port,
    pub(super) drops: &'a mut RoceDrops,
    pub(super) key_counts: &'a mut KeyCounts,
    pub(super) inline_counts: &'a mut InlineCounts,
    pub(super) effects: &'a mut Vec<Effect>,
    pub(super) now_ns: u64,
    /// What the driver has set: byte order of atomics, UDP ports of packets.
    pub(super) caps: &'a Caps,
}

impl Env<'_> {
    /// Whether the device has done enough for one step.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.keys.is_turn_over(self.mem)
    }

    pub(super) fn complete(&mut self, cqn: u32, entry: [u8; 64], urgency: Urgency) {
        self.complete_behind(cqn, None, entry, urgency);
    }

    /// A completion with `front` in the first half of an entry of 128 bytes.
    pub(super) fn complete_behind(
        &mut self,
        cqn: u32,
        front: Option<Box<InlineData>>,
        entry: [u8; 64],
        urgency: Urgency,
    ) {
        self.effects.push(Effect::Complete { cqn, front, entry, urgency });
    }

    pub(super) fn event(&mut self, event: EventType, number: u32) {
        self.effects.push(Effect::Event { event, number });
    }

    #[cold]
    pub(super) fn refuse(&mut self, field: &'static str, value: u64, why: &'static str) {
        self.effects.push(Effect::Refuse { field, value, why });
    }

    /// Counts in the Q counter set of a queue pair.
    pub(super) fn count(&mut self, qp: &Qp, count: impl FnOnce(&mut RoceCounters)) {
        if let Some(set) = self.counters.get_mut(qp.context.counter_set_id()) {
            count(&mut set.roce);
        }
    }

    pub(super) fn out_of_buffer(&mut self, qp: &Qp) {
        self.port.counters.rx_out_of_buffer += 1;
        if let Some(set) = self.counters.get_mut(qp.context.counter_set_id()) {
            set.out_of_buffer += 1;
        }
    }

    pub(super) fn gid(&self, index: u32) -> Option<&RoceGid> {
        self.gids.get(index as usize)?.as_ref()
    }
}

/// Whether a unicast address is this port's.
pub(super) fn is_own(port: &Port, gids: &[Option<RoceGid>], mac: &[u8; 6]) -> bool {
    port.vport.mac == *mac || gids.iter().flatten().any(|gid| gid.mac == *mac)
}

/// Writes an error completion of a queue pair.
pub(super) fn complete_error(
    qp: &mut Qp,
    env: &mut Env<'_>,
    cqn: u32,
    opcode: CqeOpcode,
    (wqe_opcode, wqe_counter): (u8, u16),
    user_index: u32,
    syndrome: CqeSyndrome,
) {
    qp.stats.completions += 1;
    qp.stats.errors += 1;
    let is_flush = syndrome == CqeSyndrome::WR_FLUSH_ERR;
    let is_requester = opcode == CqeOpcode::REQUESTER_ERROR;
    env.count(qp, |count| {
        let counter = match (is_requester, is_flush) {
            (true, true) => &mut count.req_cqe_flush_error,
            (true, false) => &mut count.req_cqe_error,
            (false, true) => &mut count.resp_cqe_flush_error,
            (false, false) => &mut count.resp_cqe_error,
        };
        *counter += 1;
        if !is_requester && syndrome == CqeSyndrome::LOCAL_LENGTH_ERR {
            count.resp_local_length_error += 1;
        }
    });
    let queue = env.qpn;
    let report = ErrorReport { cqn, opcode, syndrome, wqe_opcode, queue, wqe_counter, user_index };
    env.complete(cqn, report.entry(), Urgency::Solicited);
}
