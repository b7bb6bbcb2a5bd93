//! [`Controller`]: what a host has of a subsystem.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrayvec::ArrayVec;

use super::auth::Proof;
use super::failures::Failures;
use super::reservation::{HostId, Notice};
use super::{Held, Queue};
use crate::proto::identify::{ERROR_ENTRIES, EVENT_REQUESTS, events};
use crate::proto::log::{self, ErrorEntry, Traffic};
use crate::proto::property;
use crate::proto::sqe::Sqe;
use crate::proto::status::Status;

/// A discovery host that asked for no keep-alive is dropped after this silence. Source: reference
/// 10.1.7, what Linux and SPDK do.
const DISCOVERY_PATIENCE: Duration = Duration::from_secs(120);
/// Notices of reservations that are kept; the oldest go first.
const MAX_NOTICES: usize = 64;
/// Changed namespaces that are listed; more are "any".
const MAX_CHANGED: usize = 1024;

/// A controller, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerInfo<'a> {
    /// Its number.
    pub cntlid: u16,
    /// Name of its host.
    pub hostnqn: &'a str,
    /// Name of its subsystem.
    pub subnqn: &'a str,
    /// How long the host may be silent; `None` for ever.
    pub keep_alive: Option<Duration>,
    /// I/O queues that it has.
    pub io_queues: usize,
    /// How the host has shown who it is, if it had to.
    pub proof: Option<Proof>,
}

/// An I/O queue whose host has not shown yet that it is the controller's.
#[derive(Debug)]
pub(super) struct Stranger {
    /// The transport's name of it.
    pub(super) queue: u32,
    pub(super) peer: IpAddr,
    pub(super) since: Duration,
    /// It makes way for another.
    pub(super) is_doomed: bool,
}

/// What a host has of a subsystem.
#[derive(Debug)]
pub(super) struct Controller {
    pub(super) cntlid: u16,
    /// `None` for the discovery service.
    pub(super) subsystem: Option<usize>,
    pub(super) hostnqn: String,
    pub(super) hostid: [u8; 16],
    /// The same host for reservations.
    pub(super) registrant: HostId,
    /// Its host's address.
    pub(super) peer: IpAddr,
    /// The number of its last shutdown; 0 before the first.
    pub(super) shutdown: u64,
    /// How the host has shown who it is, if it had to.
    pub(super) proof: Option<Proof>,
    /// It is about to: it may be silent, since the authentication has a time of its own.
    pub(super) is_strange: bool,
    pub(super) keep_alive: Option<Duration>,
    pub(super) last_seen: Duration,
    pub(super) since: Duration,
    pub(super) cc: u32,
    csts: u32,
    /// It has ended for its host's silence, or by hand; its queues go.
    is_failed: bool,
    /// What the status says, for the cores of its I/O queues.
    pub(super) ready: Arc<AtomicBool>,
    pub(super) admin_queue: u32,
    /// The port that its host called.
    pub(super) service: u16,
    /// Numbers of the I/O queues, and the transport's names of them.
    pub(super) io_queues: Vec<(u16, u32)>,
    /// I/O queues whose host has not shown yet that it is the controller's: they have no number of
    /// it, since anybody may have opened them.
    pub(super) strangers: Vec<Stranger>,
    /// Its admin queue ends.
    pub(super) is_over: bool,
    /// Of I/O queues, those that end and have nothing under way.
    pub(super) quiet: Vec<u32>,
    /// I/O queues that the host was granted.
    pub(super) granted: u16,
    pub(super) traffic: Traffic,
    pub(super) media_errors: u64,
    /// Commands that failed, the newest first.
    pub(super) errors: VecDeque<ErrorEntry>,
    pub(super) error_count: u64,
    /// Events that the host wants.
    pub(super) enabled: u32,
    /// Events that the host was not told of.
    pending: u32,
    /// Events that the host was told of, and has not read the log of.
    masked: u32,
    /// Slots and names of the requests for events that wait.
    requests: ArrayVec<(u16, u16), EVENT_REQUESTS>,
    /// Namespaces that have changed; `None` when they are too many to list.
    changed: Option<Vec<u32>>,
    /// What the host is to read of reservations, the oldest first, and how much there was.
    notices: VecDeque<(u64, Notice, u32)>,
    notice_count: u64,
    /// Kinds of notices that the host does not want, by namespace: feature 82h.
    pub(super) unwanted: BTreeMap<u32, u32>,
}

impl Controller {
    pub(super) fn new(
        cntlid: u16,
        subsystem: Option<usize>,
        (hostnqn, hostid): (&str, [u8; 16]),
        queue: &Queue,
        now: Duration,
    ) -> Self {
        Self {
            cntlid,
            subsystem,
            hostnqn: hostnqn.into(),
            hostid,
            registrant: HostId::nameless(hostid),
            peer: queue.peer,
            shutdown: 0,
            proof: None,
            is_strange: false,
            keep_alive: None,
            last_seen: now,
            since: now,
            cc: 0,
            csts: 0,
            is_failed: false,
            ready: Arc::default(),
            admin_queue: queue.id,
            service: queue.local.port(),
            io_queues: Vec::new(),
            strangers: Vec::new(),
            is_over: false,
            quiet: Vec::new(),
            granted: 0,
            traffic: Traffic::default(),
            media_errors: 0,
            errors: VecDeque::with_capacity(ERROR_ENTRIES),
            error_count: 0,
            enabled: 0,
            pending: 0,
            masked: 0,
            requests: ArrayVec::new(),
            changed: Some(Vec::new()),
            notices: VecDeque::new(),
            notice_count: 0,
            unwanted: BTreeMap::new(),
        }
    }

    /// Takes commands other than those of fabrics.
    pub(super) fn is_ready(&self) -> bool {
        self.csts & (property::CSTS_RDY | property::CSTS_CFS) == property::CSTS_RDY
    }

    /// Takes I/O: it is ready, and its host has not shut it down.
    pub(super) fn takes_io(&self) -> bool {
        self.is_ready() && self.csts & property::CSTS_SHST == 0
    }

    /// Whether it has an I/O queue of this number.
    pub(super) fn has_io_queue(&self, qid: u16) -> bool {
        self.io_queues.iter().any(|(taken, _)| *taken == qid)
    }

    /// The host of an I/O queue has shown who it is; whether the queue is one of the controller's
    /// now. Not so if another has its number, or none may have it any more.
    pub(super) fn admit(&mut self, queue: &Queue) -> bool {
        let mut strangers = self.strangers.iter();
        let Some(at) = strangers.position(|it| it.queue == queue.id) else { return true };
        let is_late = self.strangers[at].is_doomed;
        if is_late || self.has_io_queue(queue.qid) || queue.qid > self.granted {
            return false;
        }
        self.strangers.swap_remove(at);
        self.io_queues.push((queue.qid, queue.id));
        true
    }

    /// The transport's names of its I/O queues, and of those that strangers have opened.
    pub(super) fn all_io_queues(&self) -> impl Iterator<Item = u32> {
        let strangers = self.strangers.iter().map(|it| it.queue);
        self.io_queues.iter().map(|(_, id)| *id).chain(strangers)
    }

    /// Whether it was switched off, and I/O queues still end what they had begun: a write of then
    /// must not come behind one of a host that has connected anew.
    pub(super) fn is_settling(&self) -> bool {
        self.cc & property::CC_EN == 0 && !self.io_queues.is_empty()
    }

    /// The status register as its host reads it: ready for as long as it settles.
    pub(super) fn shown_csts(&self) -> u32 {
        self.csts | if self.is_settling() { property::CSTS_RDY } else { 0 }
    }

    /// The status register.
    pub(super) fn csts(&self) -> u32 {
        self.csts
    }

    /// Sets the status register, and tells the I/O queues.
    pub(super) fn set_csts(&mut self, csts: u32) {
        self.csts = csts;
        self.ready.store(self.takes_io(), Ordering::Relaxed);
    }

    /// Whether it has ended, and its queues go.
    pub(super) fn is_failed(&self) -> bool {
        self.is_failed
    }

    pub(super) fn fail(&mut self) {
        self.is_failed = true;
        self.set_csts(self.csts | property::CSTS_CFS);
    }

    /// Sets the keep-alive time, rounded up to the second.
    pub(super) fn set_keep_alive(&mut self, ms: u32) {
        let secs = u64::from(ms).div_ceil(1000);
        self.keep_alive = (ms > 0).then(|| Duration::from_secs(secs));
    }

    /// Whether the host was silent for longer than it said that it would be: for `silence` if it
    /// said nothing.
    pub(super) fn is_expired(&self, now: Duration, silence: Duration) -> bool {
        let fallback = match self.subsystem {
            Some(_) => silence,
            None => DISCOVERY_PATIENCE.min(silence),
        };
        let limit = self.keep_alive.unwrap_or(fallback);
        let is_judged = !self.is_failed && !self.is_strange;
        is_judged && now.saturating_sub(self.last_seen) > limit
    }

    /// Notes a command of the admin queue that failed.
    pub(super) fn note_error(&mut self, queue: &Queue, sqe: &Sqe, status: Status) {
        self.list_error(ErrorEntry::new(queue.qid, sqe, status));
    }

    /// Takes in commands of an I/O queue that failed.
    pub(super) fn take_failures(&mut self, failures: &mut Failures) {
        self.media_errors += std::mem::take(&mut failures.of_medium);
        self.error_count += std::mem::take(&mut failures.older);
        failures.list.drain(..).for_each(|entry| self.list_error(entry));
    }

    fn list_error(&mut self, entry: ErrorEntry) {
        self.error_count += 1;
        self.errors.truncate(ERROR_ENTRIES - 1);
        self.errors.push_front(ErrorEntry { count: self.error_count, ..entry });
    }

    /// Notes a namespace that has changed.
    pub(super) fn note_namespace(&mut self, nsid: u32) {
        let Some(changed) = &mut self.changed else { return };
        if let Err(at) = changed.binary_search(&nsid) {
            changed.insert(at, nsid);
        }
        if changed.len() > MAX_CHANGED {
            self.changed = None;
        }
    }

    /// The namespaces that have changed since the log was read.
    pub(super) fn changed(&self) -> Option<&[u32]> {
        self.changed.as_deref()
    }

    /// Something has happened: the host is told at once, or when it asks.
    pub(super) fn note(&mut self, event: u32, outbox: &mut Vec<Held>) {
        self.pending |= event;
        self.tell(outbox);
    }

    /// The host wants these events; what of them has happened is told now.
    pub(super) fn enable_events(&mut self, wanted: u32, outbox: &mut Vec<Held>) {
        self.enabled = wanted;
        self.tell(outbox);
    }

    /// The controller was switched off: it begins anew with no event wanted, told or to be told,
    /// and with no notice of reservations. Their log is empty then, and counts from its beginning.
    /// Source: NVM Express base 1.4, "Reservation Notification", "Reservation Notification Mask".
    pub(super) fn forget_events(&mut self) {
        (self.notice_count, self.notices) = (0, VecDeque::new());
        self.unwanted = BTreeMap::new();
        (self.enabled, self.pending, self.masked) = (0, 0, 0);
        self.changed = Some(Vec::new());
    }

    /// A request for an event has come.
    pub(super) fn request_event(
        &mut self,
        slot: u16,
        cid: u16,
        outbox: &mut Vec<Held>,
    ) -> Result<(), Status> {
        self.requests.try_push((slot, cid)).map_err(|_| Status::AER_LIMIT.dnr())?;
        self.tell(outbox);
        Ok(())
    }

    /// Tells what can be told. Results are those of reference 10.1.8: type "notice", what it is,
    /// and the log page to read.
    fn tell(&mut self, outbox: &mut Vec<Held>) {
        let enabled = self.enabled | events::RESERVATION;
        for (event, result) in [
            (events::NAMESPACE_ATTRIBUTES, 0x0004_0002),
            (events::ANA, 0x000c_0302),
            (events::DISCOVERY, 0x0070_f002),
            (events::RESERVATION, 0x0080_0006),
        ] {
            if self.pending & enabled & !self.masked & event == 0 {
                continue;
            }
            let Some((slot, cid)) = self.requests.pop_at(0) else { return };
            self.pending &= !event;
            self.masked |= event;
            let (queue, status) = (self.admin_queue, Status::SUCCESS);
            outbox.push(Held { queue, slot, cid, status, result });
        }
    }

    /// Notes what a registrant is told of a reservation, if it wants to know.
    pub(super) fn note_reservation(&mut self, nsid: u32, notice: Notice, outbox: &mut Vec<Held>) {
        let unwanted = self.unwanted.get(&nsid).copied().unwrap_or(0);
        if unwanted & 1 << notice as u32 != 0 {
            return;
        }
        self.notice_count += 1;
        if self.notices.len() == MAX_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back((self.notice_count, notice, nsid));
        self.note(events::RESERVATION, outbox);
    }

    /// The oldest notice, as a page; zeros where there is none.
    pub(super) fn reservation_page(&self) -> [u8; 64] {
        let Some((count, notice, nsid)) = self.notices.front() else { return [0; 64] };
        let following = (self.notices.len() - 1) as u8;
        log::reservation(*count, *notice as u8, following, *nsid)
    }

    /// The host has read the oldest notice, and is told of the next.
    pub(super) fn tell_next_reservation(&mut self, outbox: &mut Vec<Held>) {
        self.notices.pop_front();
        self.masked &= !events::RESERVATION;
        self.pending &= !events::RESERVATION;
        if !self.notices.is_empty() {
            self.note(events::RESERVATION, outbox);
        }
    }

    /// The host has read the log of an event.
    pub(super) fn read_log(&mut self, event: u32) {
        self.masked &= !event;
        self.pending &= !event;
        if event == events::NAMESPACE_ATTRIBUTES {
            self.changed = Some(Vec::new());
        }
    }

    /// Takes a request for an event back; whether it was there.
    pub(super) fn abort_request(&mut self, cid: u16, outbox: &mut Vec<Held>) -> bool {
        let Some(at) = self.requests.iter().position(|(_, it)| *it == cid) else { return false };
        let Some((slot, cid)) = self.requests.pop_at(at) else { return false };
        let (queue, status) = (self.admin_queue, Status::ABORTED);
        outbox.push(Held { queue, slot, cid, status, result: 0 });
        true
    }

    /// Takes all requests for events back.
    pub(super) fn abort_requests(&mut self, outbox: &mut Vec<Held>) {
        let queue = self.admin_queue;
        let aborted = |(slot, cid)| Held { queue, slot, cid, status: Status::ABORTED, result: 0 };
        outbox.extend(self.requests.drain(..).map(aborted));
    }
}
