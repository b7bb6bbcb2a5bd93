//! Asynchronous events: kept in order, with a file that is readable as long as one waits.

use std::ffi::{c_char, c_int};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use ferrocx_core::Event;
use ferrocx_prm::eqe::EventType;

use super::context::{Context, Kind, Queued, Shared, Told};
use super::srq::SharedQueue;
use super::wait::{GO_ON, MOMENT, nap, waits};
use super::{Errno, set_errno, signals};
use crate::abi::{event, ibv_async_event, ibv_context, ibv_cq, ibv_qp, ibv_srq};
use crate::files;
use crate::node::{Listener, WHILE, lock};

impl Shared {
    /// Lets events be about an object.
    pub(super) fn enlist<T>(&self, kind: Kind, number: u32, face: *mut T) {
        let told = Told { face: face.expose_provenance() as u64, unacknowledged: 0 };
        lock(&self.events).objects.insert((kind, number), told);
    }

    /// Ends that: waits until the program has acknowledged what it was told, as the interface
    /// promises, and drops what it has not taken.
    pub(super) fn delist(&self, kind: Kind, number: u32) {
        loop {
            let mut events = lock(&self.events);
            let told = events.objects.get(&(kind, number));
            if told.is_none_or(|told| told.unacknowledged == 0) {
                events.objects.remove(&(kind, number));
                events.waiting.retain(|queued| queued.about != Some((kind, number)));
                if events.waiting.is_empty() {
                    files::clear(&self.event_fd);
                }
                return;
            }
            drop(events);
            nap(MOMENT);
        }
    }

    fn queue(&self, event_type: c_int, about: Option<(Kind, u32)>) {
        let mut events = lock(&self.events);
        let element = match about {
            None => 1,
            Some(about) => match events.objects.get(&about) {
                Some(told) => {
                    if event_type == event::SRQ_LIMIT_REACHED {
                        // Who ends the queue waits for the lock.
                        let face = std::ptr::with_exposed_provenance_mut(told.face as usize);
                        promised!(SharedQueue::of(face)).limit_reached();
                    }
                    told.face
                }
                // Another context's, or gone.
                None => return,
            },
        };
        let event = ibv_async_event { element, event_type };
        events.waiting.push_back(Queued { event, about });
        files::signal(&self.event_fd);
    }
}

/// The events of queue pairs, by the device's types.
fn of_queue_pair(event: EventType) -> Option<c_int> {
    Some(match event {
        EventType::COMM_ESTABLISHED => event::COMM_EST,
        EventType::SQ_DRAINED => event::SQ_DRAINED,
        EventType::WQ_CATASTROPHIC => event::QP_FATAL,
        EventType::WQ_INVALID_REQ => event::QP_REQ_ERR,
        EventType::WQ_ACCESS_ERROR => event::QP_ACCESS_ERR,
        EventType::SRQ_LAST_WQE => event::QP_LAST_WQE_REACHED,
        _ => return None,
    })
}

impl Listener for Shared {
    fn hear(&self, event: &Event) {
        let (event_type, about) = match *event {
            Event::LinkChange { up: true } => (Some(event::PORT_ACTIVE), None),
            Event::LinkChange { up: false } => (Some(event::PORT_ERR), None),
            Event::CqError { cqn, .. } => (Some(event::CQ_ERR), Some((Kind::Cq, cqn))),
            Event::QueueError { event, queue_type: 0, number } => {
                (of_queue_pair(event), Some((Kind::Qp, number)))
            }
            Event::QueuePair { event, qpn } => (of_queue_pair(event), Some((Kind::Qp, qpn))),
            Event::SharedReceive { event: EventType::SRQ_LIMIT, srqn } => {
                (Some(event::SRQ_LIMIT_REACHED), Some((Kind::Srq, srqn)))
            }
            Event::SharedReceive { srqn, .. } => (Some(event::SRQ_ERR), Some((Kind::Srq, srqn))),
            _ => (None, None),
        };
        if let Some(event_type) = event_type {
            self.queue(event_type, about);
        }
    }

    fn answer(&self, request: &[u8], said: &mut Vec<u8>) {
        self.serve_child(request, said);
    }

    fn device_failed(&self) {
        self.queue(event::DEVICE_FATAL, None);
    }
}

/// A part of [`ibv_get_async_event`].
unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let shared = match promised!(Context::of(context)) {
        Ok(shared) => shared,
        Err(errno) => {
            set_errno(errno);
            return -1;
        }
    };
    let result = match next_event(shared) {
        Ok(None) => return GO_ON,
        Ok(Some(next)) => {
            promised!(event.write(next));
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    };
    shared.waiters.leave();
    result
}

waits! {
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event)
        by get_async_event
}

/// The next event, which is waited for if the file blocks; `None` after a while.
fn next_event(shared: &Shared) -> Result<Option<ibv_async_event>, Errno> {
    shared.here()?;
    shared.waiters.enter()?;
    let mut events = lock(&shared.events);
    if let Some(Queued { event: next, about }) = events.waiting.pop_front() {
        if events.waiting.is_empty() {
            files::clear(&shared.event_fd);
        }
        if let Some(told) = about.and_then(|about| events.objects.get_mut(&about)) {
            told.unacknowledged += 1;
        }
        return Ok(Some(next));
    }
    drop(events);
    if !files::is_blocking(&shared.event_fd) {
        return Err(Errno(libc::EAGAIN));
    }
    if !files::wait(shared.event_fd.as_fd(), Some(WHILE)) && !signals::are_restarted() {
        return Err(Errno(libc::EINTR));
    }
    Ok(None)
}

pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    let event = promised!(&*event);
    let kind = match event.event_type {
        event::CQ_ERR => Kind::Cq,
        event::SRQ_ERR | event::SRQ_LIMIT_REACHED => Kind::Srq,
        event::DEVICE_FATAL | event::PORT_ACTIVE | event::PORT_ERR => return,
        _ => Kind::Qp,
    };
    // The first member of each of these objects is its context.
    let face: *mut *mut ibv_context = std::ptr::with_exposed_provenance_mut(event.element as usize);
    let Ok(shared) = promised!(Context::here(*face)) else { return };
    let mut events = lock(&shared.events);
    let told = events.objects.iter_mut();
    if let Some((_, told)) =
        told.into_iter().find(|(about, told)| about.0 == kind && told.face == event.element)
    {
        told.unacknowledged = told.unacknowledged.saturating_sub(1);
        let completed = match kind {
            Kind::Cq => promised!(&(*face.cast::<ibv_cq>()).async_events_completed),
            Kind::Srq => promised!(&(*face.cast::<ibv_srq>()).events_completed),
            Kind::Qp => promised!(&(*face.cast::<ibv_qp>()).events_completed),
        };
        completed.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    const NAMES: [&std::ffi::CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    let name = usize::try_from(event).ok().and_then(|at| NAMES.get(at));
    name.unwrap_or(&c"unknown").as_ptr()
}
