//! The sending half of a queue pair: which packet is next, what an answer means, when to retry.
//!
//! Requests wait in the order in which they were posted. A cursor says what is sent next; answers
//! and time move it back. Nothing is kept of a packet: a retry makes it again from its request.
//!
//! Source: reference 7.4 to 7.6; IBTA vol. 1, 9.7.

use std::collections::VecDeque;

use super::bth::Op;
use super::psn::Psn;
use super::timer::rnr_time_ns;

/// Packets sent and not acknowledged at most. Large enough for the acknowledgement to come back
/// while the rest is sent, small enough for the buffers on the way.
const WINDOW: i32 = 128;
/// An acknowledgement is asked for at least every so many packets.
const ACK_EVERY: u32 = 16;
/// `rnr_retry` that never runs out. Source: reference 7.5.
const INFINITE: u8 = 7;

/// Kind of a request, as the protocol sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// SEND or WRITE: data go out, one PSN a packet.
    Push,
    /// READ: one packet out, answers come in, one PSN an answer.
    Read,
    /// Atomic: one packet out, one answer in.
    Atomic,
    /// Nothing goes onto the wire.
    Local,
}

/// Requests that must be over before another starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fence {
    /// Nothing: what was posted before has been sent.
    #[default]
    None,
    /// All reads and atomics posted before.
    Reads,
    /// Everything posted before.
    All,
}

/// A work request on its way.
#[derive(Debug)]
pub struct Request<J> {
    /// Kind of the request.
    pub kind: Kind,
    /// Requests that must be over first.
    pub fence: Fence,
    /// PSN of its first packet.
    pub first: Psn,
    /// PSNs that it takes up.
    pub packets: u32,
    /// Answers of a READ that have arrived.
    pub received: u32,
    is_done: bool,
    fault: Option<Fault>,
    /// The owner's knowledge of the request.
    pub job: J,
}

/// Reason for which a request failed; the owner turns it into a syndrome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Retries are used up: nobody answers.
    Retries,
    /// RNR retries are used up.
    RnrRetries,
    /// The peer found the request invalid.
    InvalidRequest,
    /// The peer refused the access.
    Access,
    /// The peer failed.
    Operation,
    /// An answer that does not fit the request.
    BadResponse,
    /// The owner's own reason, a completion syndrome.
    Local(u8),
}

/// Next action of a requester.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing now.
    Idle,
    /// Carry out the local request at this place of the queue, then call [`Requester::local_done`].
    Local(usize),
    /// Send a packet, then call [`Requester::sent`].
    Packet(Outgoing),
}

/// A packet to send, or several of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outgoing {
    /// Place of its request in the queue.
    pub index: usize,
    /// Its PSN.
    pub psn: Psn,
    /// Its number inside the request, from 0. Of a READ: the first answer that is wanted.
    pub number: u32,
    /// Packets from this one on that go together.
    pub packets: u32,
    /// The last of them is the last of its request.
    pub is_last: bool,
    /// It asks for an acknowledgement.
    pub ack_request: bool,
}

/// Effect of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Nothing new.
    Stale,
    /// Requests or parts of them are done.
    Progress,
    /// Packets were lost: sending goes on from them.
    Retry,
    /// The answer of a READ or atomic is wanted: take it, then call [`Requester::answered`].
    Take {
        /// Place of the request in the queue.
        index: usize,
        /// Number of the answer inside the request.
        number: u32,
    },
}

/// Settings of timers and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Whether there are acknowledgements at all.
    pub is_reliable: bool,
    /// READs and atomics in flight at most.
    pub max_reads: usize,
    /// Retries after a timeout or a sequence error.
    pub retry_count: u8,
    /// Retries after an RNR NAK, 7 for ever.
    pub rnr_retry: u8,
    /// Time without progress after which to retry.
    pub timeout_ns: Option<u64>,
}

/// The sending half of a queue pair. `J` is what the owner keeps with each request.
#[derive(Debug)]
pub struct Requester<J> {
    queue: VecDeque<Request<J>>,
    /// Place of the request that is sent next, and the packet inside it.
    cursor: usize,
    packet: u32,
    /// PSN for the next request that is posted.
    next: Psn,
    /// The oldest PSN that is not acknowledged.
    acked: Psn,
    /// The first PSN never sent.
    sent: Psn,
    limits: Limits,
    retries_left: u8,
    rnr_left: u8,
    deadline_ns: Option<u64>,
    rnr_until_ns: Option<u64>,
    /// What is missing was asked for again already: answers behind it are no news.
    gap: Option<Psn>,
}

impl<J> Default for Requester<J> {
    fn default() -> Self {
        Self::new(Psn::default(), Limits::default())
    }
}

impl<J> Requester<J> {
    /// A requester whose first packet has the PSN `first`.
    #[must_use]
    pub fn new(first: Psn, limits: Limits) -> Self {
        Self {
            queue: VecDeque::new(),
            cursor: 0,
            packet: 0,
            next: first,
            acked: first,
            sent: first,
            limits,
            retries_left: limits.retry_count,
            rnr_left: limits.rnr_retry,
            deadline_ns: None,
            rnr_until_ns: None,
            gap: None,
        }
    }

    /// Requests that wait or are in flight.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether nothing waits and nothing is in flight.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// PSN of the next request that is posted.
    #[must_use]
    pub fn next_psn(&self) -> Psn {
        self.next
    }

    /// The last PSN that is acknowledged.
    #[must_use]
    pub fn last_acked(&self) -> Psn {
        self.acked.previous()
    }

    /// The request at a place of the queue.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&Request<J>> {
        self.queue.get(index)
    }

    /// What the owner keeps with the request at a place of the queue.
    pub fn job_mut(&mut self, index: usize) -> Option<&mut J> {
        self.queue.get_mut(index).map(|request| &mut request.job)
    }

    /// Posts a request that takes up `packets` PSNs, 0 for a local one.
    pub fn push(&mut self, kind: Kind, fence: Fence, packets: u32, job: J) {
        let first = self.next;
        self.next = first.plus(packets);
        let (received, is_done, fault) = (0, false, None);
        self.queue.push_back(Request {
            kind,
            fence,
            first,
            packets,
            received,
            is_done,
            fault,
            job,
        });
    }

    /// Posts a request that has failed already; it fails when its turn comes.
    pub fn push_failed(&mut self, fault: Fault, job: J) {
        self.push(Kind::Local, Fence::None, 0, job);
        self.fail(self.queue.len() - 1, fault);
    }

    /// Marks the request at a place of the queue as failed. It is reported when all before it are
    /// done; nothing behind it is sent.
    pub fn fail(&mut self, index: usize, fault: Fault) {
        if let Some(request) = self.queue.get_mut(index) {
            request.fault = Some(fault);
            if self.cursor > index {
                (self.cursor, self.packet) = (index, 0);
            }
        }
    }

    /// Next action at this time; at most `most` packets of a request go together.
    pub fn next(&mut self, now_ns: u64, most: u32) -> Next {
        if self.rnr_until_ns.is_some_and(|until| now_ns < until) {
            return Next::Idle;
        }
        self.rnr_until_ns = None;
        loop {
            let Some(request) = self.queue.get(self.cursor) else { return Next::Idle };
            if request.fault.is_some() {
                return Next::Idle;
            }
            if request.is_done {
                (self.cursor, self.packet) = (self.cursor + 1, 0);
                continue;
            }
            if !self.may_start(request) {
                return Next::Idle;
            }
            if request.kind == Kind::Local {
                return Next::Local(self.cursor);
            }
            // What was acknowledged while the cursor was behind is not sent again.
            let known = u32::try_from(self.acked.since(request.first)).unwrap_or(0);
            let number = if request.kind == Kind::Push {
                self.packet.max(known.min(request.packets - 1))
            } else {
                request.received
            };
            let psn = request.first.plus(number);
            let room = self.room(psn);
            if room == 0 {
                return Next::Idle;
            }
            let is_push = request.kind == Kind::Push;
            let packets =
                if is_push { most.min(request.packets - number).clamp(1, room) } else { 1 };
            self.packet = number;
            let end = number + packets;
            let is_last = request.kind != Kind::Push || end == request.packets;
            let ack_request =
                self.limits.is_reliable && (is_last || end / ACK_EVERY != number / ACK_EVERY);
            let index = self.cursor;
            return Next::Packet(Outgoing { index, psn, number, packets, is_last, ack_request });
        }
    }

    /// Packets from this one on that the window has room for.
    fn room(&self, psn: Psn) -> u32 {
        let left = WINDOW - psn.since(self.acked);
        if self.limits.is_reliable { u32::try_from(left).unwrap_or(0) } else { u32::MAX }
    }

    /// Whether fences and the limit of reads let the request at the cursor start.
    fn may_start(&self, request: &Request<J>) -> bool {
        let before = || self.queue.iter().take(self.cursor).filter(|other| !other.is_done);
        let is_read = |kind| matches!(kind, Kind::Read | Kind::Atomic);
        let fenced = match request.fence {
            Fence::None => false,
            Fence::Reads => before().any(|other| is_read(other.kind)),
            Fence::All => before().next().is_some(),
        };
        let reads = || before().filter(|other| is_read(other.kind)).count();
        !fenced && (!is_read(request.kind) || reads() < self.limits.max_reads)
    }

    /// The packets that [`Self::next`] named are on the wire.
    pub fn sent(&mut self, packets: u32, now_ns: u64) {
        let Some(request) = self.queue.get_mut(self.cursor) else { return };
        let end = if request.kind == Kind::Push {
            self.packet += packets;
            request.first.plus(self.packet)
        } else {
            request.first.plus(request.packets)
        };
        if request.kind != Kind::Push || self.packet == request.packets {
            request.is_done = !self.limits.is_reliable;
            (self.cursor, self.packet) = (self.cursor + 1, 0);
        }
        if self.sent.is_before(end) {
            self.sent = end;
        }
        if !self.limits.is_reliable {
            self.acked = self.sent;
        } else if self.deadline_ns.is_none() {
            self.arm(now_ns);
        }
    }

    /// The local request at a place of the queue was carried out.
    pub fn local_done(&mut self, index: usize) {
        if let Some(request) = self.queue.get_mut(index) {
            request.is_done = true;
        }
    }

    fn arm(&mut self, now_ns: u64) {
        let waits = self.acked != self.sent;
        self.deadline_ns =
            self.limits.timeout_ns.filter(|_| waits).map(|timeout| now_ns.saturating_add(timeout));
    }

    fn progress(&mut self, now_ns: u64) {
        self.retries_left = self.limits.retry_count;
        self.rnr_left = self.limits.rnr_retry;
        self.arm(now_ns);
    }

    /// Whether an answer may carry this PSN: it was sent, and is not acknowledged.
    fn is_open(&self, psn: Psn) -> bool {
        !psn.is_before(self.acked) && psn.is_before(self.sent)
    }

    /// Moves the cursor back to a PSN that was sent.
    fn rewind(&mut self, psn: Psn) {
        let found = self.queue.iter().position(|request| {
            let offset = psn.since(request.first);
            offset >= 0 && offset.cast_unsigned() < request.packets
        });
        if let Some(index) = found {
            self.cursor = index;
            self.packet = psn.since(self.queue[index].first).cast_unsigned();
        }
    }

    /// Everything before `end` is acknowledged. `false` when a READ or atomic in it has no answer:
    /// `acked` then stands at it.
    fn acknowledge_before(&mut self, end: Psn) -> bool {
        for request in &mut self.queue {
            if request.is_done {
                continue;
            }
            if !request.first.is_before(end) {
                break;
            }
            if request.kind != Kind::Push {
                self.acked = request.first.plus(request.received);
                return request.kind == Kind::Local;
            }
            let last = request.first.plus(request.packets);
            if end.is_before(last) {
                break;
            }
            request.is_done = true;
        }
        if self.acked.is_before(end) {
            self.acked = end;
        }
        true
    }

    /// An ACK arrived: everything up to `psn` is done.
    pub fn acknowledge(&mut self, psn: Psn, now_ns: u64) -> Answer {
        if !self.is_open(psn) {
            return Answer::Stale;
        }
        let before = self.acked;
        let complete = self.acknowledge_before(psn.plus(1));
        if self.acked != before {
            self.progress(now_ns);
        }
        if !complete {
            // The answer of a READ or atomic before it was lost. Source: reference 7.6, "implied
            // NAK".
            return self.retry_gap(self.acked, now_ns);
        }
        Answer::Progress
    }

    /// A NAK for a sequence error arrived: `psn` is what the peer expects.
    pub fn nak_sequence(&mut self, psn: Psn, now_ns: u64) -> Answer {
        if !self.is_open(psn) {
            return Answer::Stale;
        }
        self.acknowledge_until(psn, now_ns);
        self.retry(self.acked, now_ns)
    }

    fn acknowledge_until(&mut self, psn: Psn, now_ns: u64) {
        let before = self.acked;
        self.acknowledge_before(psn);
        if self.acked != before {
            self.progress(now_ns);
        }
    }

    /// Asks again for answers that are missing, once: every answer behind them tells the same.
    fn retry_gap(&mut self, psn: Psn, now_ns: u64) -> Answer {
        if self.gap == Some(psn) {
            return Answer::Stale;
        }
        self.gap = Some(psn);
        self.retry(psn, now_ns)
    }

    fn retry(&mut self, psn: Psn, now_ns: u64) -> Answer {
        if self.retries_left == 0 {
            self.fail_oldest(Fault::Retries);
            return Answer::Progress;
        }
        self.retries_left -= 1;
        self.rewind(psn);
        self.arm(now_ns);
        Answer::Retry
    }

    /// The oldest request that is not done has failed.
    pub fn fail_oldest(&mut self, fault: Fault) {
        if let Some(index) = self.queue.iter().position(|request| !request.is_done) {
            self.fail(index, fault);
        }
        self.deadline_ns = None;
    }

    /// An RNR NAK arrived: wait for the time of `timer`, then send again from `psn`.
    pub fn rnr(&mut self, psn: Psn, timer: u8, now_ns: u64) -> Answer {
        if !self.is_open(psn) {
            return Answer::Stale;
        }
        // Progress before it does not give RNR retries back: it is the same request that waits.
        let rnr_left = self.rnr_left;
        let before = self.acked;
        self.acknowledge_until(psn, now_ns);
        if self.acked == before {
            self.rnr_left = rnr_left;
        }
        if self.rnr_left == 0 {
            self.fail_oldest(Fault::RnrRetries);
            return Answer::Progress;
        }
        if self.limits.rnr_retry != INFINITE {
            self.rnr_left -= 1;
        }
        self.rewind(self.acked);
        self.deadline_ns = None;
        self.rnr_until_ns = Some(now_ns.saturating_add(rnr_time_ns(timer)));
        Answer::Retry
    }

    /// A NAK that ends the connection arrived, about the request with this PSN.
    pub fn refused(&mut self, psn: Psn, fault: Fault, now_ns: u64) -> Answer {
        if !self.is_open(psn) {
            return Answer::Stale;
        }
        self.acknowledge_until(psn, now_ns);
        self.fail_oldest(fault);
        Answer::Progress
    }

    /// The answer of a READ or atomic arrived, or so many packets of it together.
    pub fn response(&mut self, psn: Psn, packets: u32, op: Op, now_ns: u64) -> Answer {
        if !self.is_open(psn) {
            return Answer::Stale;
        }
        let is_read = |request: &Request<J>| {
            !request.is_done && matches!(request.kind, Kind::Read | Kind::Atomic)
        };
        let Some(index) = self.queue.iter().position(is_read) else {
            self.fail_oldest(Fault::BadResponse);
            return Answer::Progress;
        };
        let (first, expected) = {
            let request = &self.queue[index];
            (request.first, request.first.plus(request.received))
        };
        if psn.is_before(first) {
            // A READ answer with the PSN of a SEND.
            self.fail_oldest(Fault::BadResponse);
            return Answer::Progress;
        }
        self.acknowledge_until(first, now_ns);
        if psn.is_before(expected) {
            return Answer::Stale;
        }
        if psn != expected {
            return self.retry_gap(expected, now_ns);
        }
        let request = &self.queue[index];
        let is_last = request.received + packets == request.packets;
        let fits = match request.kind {
            _ if request.received + packets > request.packets => false,
            Kind::Atomic => op == Op::AtomicAcknowledge,
            // A READ that was asked for again starts with a first packet in the middle.
            _ if is_last => matches!(op, Op::ReadResponseLast | Op::ReadResponseOnly),
            _ => matches!(op, Op::ReadResponseFirst | Op::ReadResponseMiddle),
        };
        if !fits {
            self.fail(index, Fault::BadResponse);
            return Answer::Progress;
        }
        Answer::Take { index, number: request.received }
    }

    /// The answer that [`Answer::Take`] named was taken, all packets of it.
    pub fn answered(&mut self, index: usize, packets: u32, now_ns: u64) {
        let Some(request) = self.queue.get_mut(index) else { return };
        request.received += packets;
        request.is_done = request.received == request.packets;
        self.acked = request.first.plus(request.received);
        self.gap = None;
        self.progress(now_ns);
    }

    /// Time passed. Returns whether a timeout has expired.
    pub fn tick(&mut self, now_ns: u64) -> bool {
        if self.deadline_ns.is_none_or(|deadline| now_ns < deadline) {
            return false;
        }
        self.deadline_ns = None;
        self.gap = None;
        if self.acked == self.sent {
            return false;
        }
        self.retry(self.acked, now_ns);
        true
    }

    /// Takes the oldest request if it is over, with the reason if it failed.
    pub fn pop(&mut self) -> Option<(Request<J>, Option<Fault>)> {
        let front = self.queue.front()?;
        if !front.is_done && front.fault.is_none() {
            return None;
        }
        let fault = front.fault;
        self.take_front().map(|request| (request, fault))
    }

    /// Takes the oldest request, whatever its state: the queue is flushed.
    pub fn take_front(&mut self) -> Option<Request<J>> {
        let request = self.queue.pop_front()?;
        match self.cursor.checked_sub(1) {
            Some(cursor) => self.cursor = cursor,
            None => self.packet = 0,
        }
        Some(request)
    }
}

#[cfg(test)]
#[path = "requester_tests.rs"]
mod tests;
