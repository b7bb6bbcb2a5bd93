//! Event queues: writing entries, ownership, arming, interrupts, overrun.
//!
//! Source: reference 6.10 (entries), 1.3 (doorbells), 5.5 (context).

use ferrocx_prm::Layout;
use ferrocx_prm::eqe::{
    CQ_ERROR_ACCESS, CQ_ERROR_OVERRUN, Eqe, EventCompletion, EventCqError, EventPageRequest,
    EventPortChange, EventQueue, EventType, PortChange,
};
use ferrocx_prm::syndrome::HealthSyndrome;

use crate::device::state::Ctx;
use crate::objects::Eq;

/// Bytes of one entry.
pub(crate) const EQE_BYTES: u64 = 64;

/// Counters are 24 bits wide.
const COUNTER_MASK: u32 = 0xff_ffff;

impl Eq {
    /// Entries written and not yet consumed.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER_MASK
    }

    /// Whether events of this type come here.
    pub(crate) fn wants(&self, event: EventType) -> bool {
        self.events[usize::from(event.0 >> 6)] >> (event.0 & 63) & 1 != 0
    }
}

/// Kind of queue that an event is about. Source: reference 6.10, `qp_srq` type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueKind {
    /// Queue pair.
    Qp = 0,
    /// Receive queue.
    Rq = 1,
    /// Send queue.
    Sq = 2,
}

impl Ctx<'_> {
    /// Tells the driver that the port went up or down, if it did.
    pub(crate) fn port_changed(&mut self) {
        let is_up = self.state.port.is_up();
        if is_up == self.state.port.reported_up {
            return;
        }
        self.state.port.reported_up = is_up;
        let change = if is_up { PortChange::ACTIVE } else { PortChange::DOWN };
        let data = EventPortChange::zeroed().with_port_num(1);
        self.raise_event(EventType::PORT_CHANGE, change.0, data.0);
    }

    /// An EQ for page requests exists now: asks for the regular pages, once.
    pub(crate) fn ask_for_regular_pages(&mut self) {
        let wanted = self.state.pages.take_due();
        if wanted > 0 {
            self.page_request(i32::try_from(wanted).unwrap_or(i32::MAX));
        }
    }

    /// Asks the host for pages, or offers to give some back, by event.
    pub(crate) fn page_request(&mut self, count: i32) {
        let data = EventPageRequest::zeroed().with_num_pages(count.cast_unsigned());
        self.raise_event(EventType::PAGE_REQUEST, 0, data.0);
    }

    /// Raises an event on the EQ that subscribed to its type; without one it is lost.
    pub fn raise_event(&mut self, event: EventType, sub_type: u8, data: [u8; 28]) {
        let wanting = |(eqn, eq): (u32, &Eq)| eq.wants(event).then_some(eqn);
        let Some(eqn) = self.state.objects.eqs.iter().find_map(wanting) else {
            return;
        };
        self.write_eqe(eqn, event, sub_type, data);
    }

    /// Raises the completion event of a CQ on its EQ.
    pub fn completion_event(&mut self, cqn: u32) {
        let Some(eqn) = self.state.objects.cqs.get(cqn).map(|cq| cq.eqn) else {
            return;
        };
        let data = EventCompletion::zeroed().with_cqn(cqn);
        self.write_eqe(eqn, EventType::COMPLETION, 0, data.0);
    }

    /// A CQE of this CQ found the ring full: reports it.
    pub fn cq_overrun_event(&mut self, cqn: u32) {
        let data = EventCqError::zeroed().with_cqn(cqn).with_syndrome(CQ_ERROR_OVERRUN);
        self.raise_event(EventType::CQ_ERROR, 0, data.0);
    }

    /// A CQE of this CQ could not be written: reports it.
    pub fn cq_access_event(&mut self, cqn: u32) {
        let data = EventCqError::zeroed().with_cqn(cqn).with_syndrome(CQ_ERROR_ACCESS);
        self.raise_event(EventType::CQ_ERROR, 0, data.0);
    }

    /// Reports an event about a queue: `WQ_CATASTROPHIC`, `WQ_INVALID_REQ`, `WQ_ACCESS_ERROR`.
    pub fn queue_event(&mut self, event: EventType, kind: QueueKind, number: u32) {
        let data = EventQueue::zeroed().with_queue_type(kind as u32).with_number(number);
        self.raise_event(event, 0, data.0);
    }

    /// Writes one entry and raises the interrupt if the queue is armed.
    pub fn write_eqe(&mut self, eqn: u32, event: EventType, sub_type: u8, data: [u8; 28]) {
        let Some(eq) = self.state.objects.eqs.get_mut(eqn) else {
            self.health(HealthSyndrome::EQ_INV);
            return;
        };
        if eq.failed {
            return;
        }
        let size = 1_u32 << eq.log_size;
        if eq.outstanding() >= size && !eq.overrun_ignore {
            eq.failed = true;
            eq.overruns += 1;
            self.refuse_data("eq consumer index", u64::from(eqn), "event queue overrun");
            self.health(HealthSyndrome::ASYNC_EQ_OVERRUN);
            return;
        }
        let index = eq.producer & (size - 1);
        let entry = Eqe::zeroed()
            .with_event_type(u32::from(event.0))
            .with_event_sub_type(u32::from(sub_type))
            .with_event_data(data)
            .with_owner(eq.producer >> eq.log_size & 1 != 0);
        let at = eq.memory.locate(u64::from(index) * EQE_BYTES);
        eq.producer = eq.producer.wrapping_add(1);
        let interrupt = eq.armed.then_some(eq.vector);
        if self.mem.write_release(at, entry.as_bytes()).is_err() {
            eq.failed = true;
            self.refuse_data("eq pas", at, "event queue entry cannot be written");
            self.health(HealthSyndrome::EQ_ERR);
            return;
        }
        eq.armed = false;
        self.state.counters.events += 1;
        if let Some(vector) = interrupt {
            self.side.raise(vector);
        }
    }

    /// The driver told a consumer index, and maybe armed the queue.
    pub fn eq_doorbell(&mut self, page: u32, eqn: u32, ci: u32, arm: bool) {
        let Some(eq) = self.state.objects.eqs.get_mut(eqn).filter(|eq| eq.uar_page == page) else {
            self.refuse_data("eqn", u64::from(eqn), "EQ doorbell on a UAR page not the EQ's");
            return;
        };
        let consumed = ci.wrapping_sub(eq.consumer) & COUNTER_MASK;
        if consumed > eq.outstanding() {
            self.refuse_data("eq ci", u64::from(ci), "consumer index past the producer");
            return;
        }
        eq.consumer = ci & COUNTER_MASK;
        eq.armed |= arm;
        // Entries that the driver has not seen raise the interrupt at once.
        if arm && eq.outstanding() > 0 {
            eq.armed = false;
            let vector = eq.vector;
            self.side.raise(vector);
        }
    }
}
