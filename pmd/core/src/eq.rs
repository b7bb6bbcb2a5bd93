//! The ring of an event queue: page requests, link changes, errors, completion events.

use std::sync::Arc;

use ferrocx_bus::{Bar, DmaBuf, Ring};
use ferrocx_prm::Layout;
use ferrocx_prm::eqe::{
    EQE_INVALID_OWNER, Eqe, EventCompletion, EventCqError, EventPageRequest, EventPortChange,
    EventQueue, EventType, PortChange,
};
use ferrocx_prm::init_seg::{EqDoorbell, uar};

/// Entries after which the device is told the consumer index, at the latest; of a small queue, a
/// quarter of its entries.
///
/// Source: reference 6.10 (update at least every size minus margin entries).
const UPDATE_EVERY: u32 = 32;

/// Events that the queue subscribes to.
const EVENTS: [EventType; 13] = [
    EventType::PATH_MIGRATED,
    EventType::COMM_ESTABLISHED,
    EventType::SQ_DRAINED,
    EventType::CQ_ERROR,
    EventType::WQ_CATASTROPHIC,
    EventType::PATH_MIG_FAILED,
    EventType::PORT_CHANGE,
    EventType::PAGE_REQUEST,
    EventType::WQ_INVALID_REQ,
    EventType::WQ_ACCESS_ERROR,
    EventType::SRQ_CATASTROPHIC,
    EventType::SRQ_LAST_WQE,
    EventType::SRQ_LIMIT,
];

/// Something that the device reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The link came up or went down.
    LinkChange {
        /// Whether it is up now.
        up: bool,
    },
    /// A completion queue overran (1) or could not be written (2); its queues are in error.
    CqError {
        /// The completion queue.
        cqn: u32,
        /// The device's code.
        syndrome: u8,
    },
    /// A work queue is in error.
    QueueError {
        /// What happened.
        event: EventType,
        /// 0 QP, 1 RQ, 2 SQ.
        queue_type: u8,
        /// Its number.
        number: u32,
    },
    /// Something happened to a queue pair that is no error: it migrated, its first packet came
    /// before RTS, its send queue drained, or it took the last entry of its shared queue.
    QueuePair {
        /// What happened.
        event: EventType,
        /// The queue pair.
        qpn: u32,
    },
    /// A shared receive queue fell below its limit, or failed for good.
    SharedReceive {
        /// What happened.
        event: EventType,
        /// The shared queue.
        srqn: u32,
    },
    /// A completion queue that was armed has something to report.
    Completion {
        /// The completion queue.
        cqn: u32,
    },
    /// An event that this driver does not interpret.
    Other {
        /// Its type.
        event: EventType,
        /// Its sub type.
        sub_type: u8,
    },
}

/// A page request, handled inside the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PageRequest {
    pub(crate) function_id: u16,
    /// Positive: the device wants pages. Negative: it wants to give them back.
    pub(crate) num_pages: i32,
    /// The device has let go of all pages.
    pub(crate) release_all: bool,
}

/// What [`EventQueue::poll`](EqRing::poll) found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Polled {
    Pages(PageRequest),
    Event(Event),
}

/// The event ring and where the driver stands in it.
#[derive(Debug)]
pub(crate) struct EqRing {
    ring: Ring<64>,
    log_size: u8,
    ci: u32,
    /// Value of `ci` that the device was told last.
    told: u32,
    pub(crate) eqn: u8,
    bar: Arc<dyn Bar>,
    /// Offset of the UAR page.
    uar_offset: u64,
}

/// The `event_bitmask` of CREATE_EQ: four big-endian 64-bit words.
pub(crate) fn event_bitmask() -> [u8; 32] {
    let word = EVENTS.iter().fold(0u64, |mask, event| mask | 1 << event.0);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&word.to_be_bytes());
    bytes
}

/// Fills an event buffer as CREATE_EQ wants it: every entry still the device's.
pub(crate) fn initialise(buf: &DmaBuf) {
    for entry in (0..buf.len_bytes()).step_by(Eqe::SIZE_BYTES) {
        buf.store_be32(entry + Eqe::OWNER.offset, u32::from(EQE_INVALID_OWNER));
    }
}

impl EqRing {
    pub(crate) fn new(
        ring: Ring<64>,
        log_size: u8,
        eqn: u8,
        bar: Arc<dyn Bar>,
        uar_page: u32,
    ) -> Self {
        let uar_offset = u64::from(uar_page) * uar::PAGE_BYTES;
        Self { ring, log_size, ci: 0, told: 0, eqn, bar, uar_offset }
    }

    pub(crate) fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// The next event, if there is one.
    pub(crate) fn poll(&mut self) -> Option<Polled> {
        let slot = self.ring.at(self.ci);
        let owner = slot.load_acquire_be32::<{ Eqe::OWNER.offset }>();
        if (owner ^ Eqe::OWNER.of(self.ci >> self.log_size)) & Eqe::OWNER.mask() != 0 {
            return None;
        }
        let eqe = Eqe(slot.load());
        self.ci = self.ci.wrapping_add(1);
        // No sooner: a store to the device costs more than all else that an event does, and who
        // waits for the next one arms, which tells it too.
        if self.ci.wrapping_sub(self.told) >= UPDATE_EVERY.min(self.entries() / 4) {
            self.told = self.ci;
            self.write(uar::EQ_CI);
        }
        Some(decode(&eqe))
    }

    /// Asks for an interrupt at the next event, or at once if one waits.
    pub(crate) fn arm(&mut self) {
        self.told = self.ci;
        self.write(uar::EQ_ARM);
    }

    fn write(&self, register: u64) {
        let word = EqDoorbell::zeroed().with_eqn(u32::from(self.eqn)).with_ci(self.ci);
        self.bar.write_be32(self.uar_offset + register, u32::from_be_bytes(word.0));
    }
}

/// Reads an entry.
fn decode(eqe: &Eqe) -> Polled {
    let event = EventType(eqe.event_type() as u8);
    let sub_type = eqe.event_sub_type() as u8;
    let data = eqe.event_data();
    Polled::Event(match event {
        EventType::PAGE_REQUEST => {
            let data = EventPageRequest(data);
            return Polled::Pages(PageRequest {
                function_id: data.function_id() as u16,
                num_pages: data.num_pages() as i32,
                release_all: data.release_all(),
            });
        }
        EventType::PORT_CHANGE if EventPortChange(data).port_num() <= 1 => {
            match PortChange(sub_type) {
                PortChange::ACTIVE => Event::LinkChange { up: true },
                PortChange::DOWN => Event::LinkChange { up: false },
                _ => Event::Other { event, sub_type },
            }
        }
        EventType::CQ_ERROR => {
            let data = EventCqError(data);
            Event::CqError { cqn: data.cqn(), syndrome: data.syndrome() as u8 }
        }
        EventType::WQ_CATASTROPHIC | EventType::WQ_INVALID_REQ | EventType::WQ_ACCESS_ERROR => {
            let data = EventQueue(data);
            let (queue_type, number) = (data.queue_type() as u8, data.number());
            Event::QueueError { event, queue_type, number }
        }
        EventType::PATH_MIGRATED
        | EventType::PATH_MIG_FAILED
        | EventType::COMM_ESTABLISHED
        | EventType::SQ_DRAINED
        | EventType::SRQ_LAST_WQE => Event::QueuePair { event, qpn: EventQueue(data).number() },
        EventType::SRQ_CATASTROPHIC | EventType::SRQ_LIMIT => {
            Event::SharedReceive { event, srqn: EventQueue(data).number() }
        }
        EventType::COMPLETION => Event::Completion { cqn: EventCompletion(data).cqn() },
        _ => Event::Other { event, sub_type },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmask_is_literal() {
        let mask = event_bitmask();
        // What Linux's asynchronous queue asks for, and page requests: 0x1f02be, 1 << 11.
        assert_eq!(mask[..8], [0, 0, 0, 0, 0x00, 0x1f, 0x0a, 0xbe]);
        assert!(mask[8..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn entries_are_decoded() {
        let mut eqe = Eqe::zeroed();
        eqe.0[0x01] = 0x0b;
        eqe.0[0x20..0x28].copy_from_slice(&[0x40, 0, 0, 3, 0xff, 0xff, 0xff, 0xfe]);
        let request = PageRequest { function_id: 3, num_pages: -2, release_all: true };
        assert_eq!(decode(&eqe), Polled::Pages(request));

        let mut eqe = Eqe::zeroed();
        eqe.0[0x01] = 0x09;
        eqe.0[0x03] = 4;
        eqe.0[0x28] = 0x10;
        assert_eq!(decode(&eqe), Polled::Event(Event::LinkChange { up: true }));
        eqe.0[0x03] = 1;
        assert_eq!(decode(&eqe), Polled::Event(Event::LinkChange { up: false }));

        let mut eqe = Eqe::zeroed();
        eqe.0[0x01] = 0x04;
        eqe.0[0x20..0x2c].copy_from_slice(&[0, 1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        let error = Event::CqError { cqn: 0x010203, syndrome: 1 };
        assert_eq!(decode(&eqe), Polled::Event(error));

        let mut eqe = Eqe::zeroed();
        eqe.0[0x01] = 0x05;
        eqe.0[0x34..0x3c].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 9]);
        let event = EventType::WQ_CATASTROPHIC;
        let error = Event::QueueError { event, queue_type: 2, number: 9 };
        assert_eq!(decode(&eqe), Polled::Event(error));

        eqe.0[0x01] = 0x02;
        let event = EventType::COMM_ESTABLISHED;
        assert_eq!(decode(&eqe), Polled::Event(Event::QueuePair { event, qpn: 9 }));
        eqe.0[0x01] = 0x14;
        let event = EventType::SRQ_LIMIT;
        assert_eq!(decode(&eqe), Polled::Event(Event::SharedReceive { event, srqn: 9 }));
        eqe.0[0x01] = 0x00;
        assert_eq!(decode(&eqe), Polled::Event(Event::Completion { cqn: 9 }));
    }
}
