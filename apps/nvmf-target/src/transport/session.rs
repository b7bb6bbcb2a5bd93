//! [`Session`]: a queue of a host on its queue pair, and the commands that are under way.

use std::collections::VecDeque;
use std::mem::forget;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx::verbs::cm::Connection;
use ferrocx::verbs::{Buf, Mr, Qp, RemoteAddr, Rkey, SendFlags, SendOp, SendWr, VerbsError};
use zerocopy::IntoBytes;

use super::FULL;
use super::gate::Pass;
use super::line::Line;
use super::owed::Owed;
use crate::controller::io::{self, Found, IoCommand};
use crate::controller::{Queue, Role, Target};
use crate::proto::log::Traffic;
use crate::proto::sgl::{Keyed, Sgl};
use crate::proto::sqe::{Cqe, Fuse, SQE_BYTES, Sqe};
use crate::proto::status::Status;
use crate::stats::{QueueStats, TIMED_EVERY};

/// Bytes between receives: the command ends where the second page begins, so that data behind it
/// are a page of their own.
pub(super) const STRIDE_PAGES: usize = 4096;
/// The version of a command that was not checked yet.
pub(super) const NEVER: u64 = u64::MAX;
/// The version of a Write whose memory was gone when its READ was due: it is refused when its data
/// have come, whatever is offered.
pub(super) const GONE: u64 = u64::MAX - 1;

/// Why a queue ends.
pub(super) type Why = &'static str;

/// Answers of which one asks for a completion.
const SIGNAL_PERIOD: u16 = 32;

/// What a completed request was; the low bits of its name say of which command.
pub(super) mod wr {
    /// A receive.
    pub(in crate::transport) const RECV: u64 = 0;
    /// A READ of a command's data.
    pub(in crate::transport) const READ: u64 = 1 << 16;
    /// An answer, or data before it.
    pub(in crate::transport) const ANSWER: u64 = 2 << 16;
    /// An answer behind data out of a buffer of the pool, whose number the low bits are.
    pub(in crate::transport) const POOL: u64 = 3 << 16;
    /// READs for commands in line. The low bits say how many of them have ended with this one.
    pub(in crate::transport) const READS: u64 = 4 << 16;
    /// All kinds.
    pub(in crate::transport) const KIND: u64 = 0xff << 16;
}

/// Where the name of a [`wr::READ`] says how many READs end with it, less one.
pub(super) const READ_COUNT_SHIFT: u32 = 24;

/// How far a command is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// There is none.
    Free,
    /// It waits for room in the send queue, for a READ, or for a buffer.
    Waiting,
    /// It is put off: what it needs is not there now.
    PutOff,
    /// Its data are being read; into the buffer of the pool, if one is named.
    Reading(Option<u16>),
    /// A file or a drive is read or written, out of or into a buffer of the pool; a Compare holds
    /// another.
    Storing(u16, Option<u16>),
    /// A file system or a drive does what needs no buffer.
    Calling,
    /// It brings what that has changed to the medium.
    Settling,
    /// It is held until there is something to tell.
    Held,
}

/// A command that may be under way.
#[derive(Debug)]
pub(super) struct Slot {
    /// Its place: the name of its requests.
    pub(super) index: u16,
    /// The receive that brought it; the port has it otherwise.
    pub(super) recv: Option<Buf>,
    /// Bytes behind the command.
    pub(super) received: usize,
    pub(super) sqe: Sqe,
    /// What it asks for, as of a version of what is offered: of I/O commands that are under way. Of
    /// those in line, the place of their data alone.
    pub(super) command: IoCommand,
    pub(super) version: u64,
    pub(super) state: State,
    /// The next block of its list whose data are to come.
    pub(super) next_block: u8,
    /// Its place at the gate of its namespace, if that has one and it changes blocks.
    pub(super) pass: Option<Pass>,
    /// Ranges that are still to go, the next last.
    pub(super) ranges: Vec<(u64, u64)>,
    /// When it was put off first.
    pub(super) put_off_since: Option<Instant>,
    /// When it came, of those that are timed.
    pub(super) began: Option<Instant>,
}

/// A queue of a host on its queue pair, and its commands: each is carried out with its slot and the
/// link at hand, so that neither is looked up again.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) link: Link,
    pub(super) slots: Box<[Slot]>,
}

/// How far the pair of a queue is whose second command waits.
#[derive(Debug)]
pub(super) enum Fused {
    /// The first, in this slot, is under way.
    Comparing(u16),
    /// They were equal: the second goes behind the same gate.
    Equal(Option<Pass>),
    /// The first has failed.
    Failed,
}

/// How far a queue is that its host disconnects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leave {
    /// The command in this slot waits for those that had begun.
    Asked(u16),
    /// It was answered then.
    Answered(Duration),
}

/// What the commands of a queue share.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) queue: Queue,
    pub(super) connection: Connection,
    /// The namespace of its last Read or Write.
    pub(super) found: Found,
    /// Commands that wait, the oldest first.
    pub(super) waiting: VecDeque<u16>,
    /// Writes whose data are fetched straight into memory.
    pub(super) line: Line,
    /// Pages for what commands bring and fetch: one of `page_bytes` for each command.
    pub(super) pages: Mr,
    pub(super) page_bytes: usize,
    /// READs under way, and how many the host serves.
    pub(super) reads: u16,
    pub(super) max_reads: u16,
    /// Requests to files and drives under way.
    pub(super) outside: u32,
    /// How far its pair of fused commands is.
    pub(super) fused: Option<Fused>,
    /// How far it is that its host disconnects.
    pub(super) leave: Option<Leave>,
    /// Commands that are put off.
    pub(super) put_off: u16,
    /// Send requests that must stay free for commands under way.
    pub(super) reserve: u32,
    /// Answers since a request asked for its completion.
    unsignaled: u16,
    /// Posted since the doorbell was rung.
    pub(super) is_dirty: bool,
    /// Why it ends, once it does.
    pub(super) ending: Option<&'static str>,
    /// When its end began.
    pub(super) ended_at: Option<Duration>,
    /// It ends by a failure.
    pub(super) has_failed: bool,
    /// When it was made: it needs a Connect soon.
    pub(super) since: Duration,
    /// Answers end keys of the host.
    pub(super) remote_invalidate: bool,
    /// The number of its host, which all queues of an address have.
    pub(super) host: u16,
    /// Buffers of the pool whose data are under way to the host, with an answer behind them.
    pub(super) pooled: VecDeque<u16>,
    /// READs and data out of buffers that its host lets wait.
    pub(super) owed: Owed,
    /// A request of ours has ended since the last look, and when that was last so, or there was
    /// room for more.
    pub(super) is_heard: bool,
    pub(super) heard_at: Duration,
    /// What it has moved, and where others see that, once it has a controller.
    pub(super) moved: Traffic,
    pub(super) stats: Option<Arc<QueueStats>>,
}

/// What a session is made of.
pub(super) struct Parts {
    pub(super) queue: Queue,
    pub(super) connection: Connection,
    pub(super) pages: Mr,
    pub(super) page_bytes: usize,
    pub(super) max_reads: u8,
    pub(super) since: Duration,
    pub(super) remote_invalidate: bool,
    pub(super) host: u16,
}

impl Session {
    pub(super) fn new(parts: Parts) -> Self {
        let Parts { queue, connection, pages, page_bytes, max_reads, since, .. } = parts;
        let Parts { remote_invalidate, host, .. } = parts;
        let entries = queue.entries();
        let slot = |index| Slot {
            index,
            ranges: Vec::new(),
            next_block: 0,
            pass: None,
            began: None,
            put_off_since: None,
            recv: None,
            received: 0,
            sqe: Sqe::default(),
            command: io::NOTHING,
            version: NEVER,
            state: State::Free,
        };
        let max_reads = u16::from(max_reads).max(1);
        let link = Link {
            found: Found::nothing(),
            line: Line::new(entries),
            waiting: VecDeque::with_capacity(entries.into()),
            pages,
            page_bytes,
            reads: 0,
            max_reads,
            outside: 0,
            fused: None,
            leave: None,
            put_off: 0,
            reserve: reserve(entries),
            unsignaled: 0,
            is_dirty: false,
            ending: None,
            ended_at: None,
            has_failed: false,
            since,
            remote_invalidate,
            host,
            // Each has a WRITE and an answer.
            pooled: VecDeque::with_capacity(send_requests(entries) as usize / 2),
            owed: Owed::default(),
            is_heard: false,
            heard_at: since,
            moved: Traffic::default(),
            stats: None,
            queue,
            connection,
        };
        Self { link, slots: (0..entries).map(slot).collect() }
    }

    /// Whether a command is under way: those that wait for an event are not.
    pub(super) fn is_busy(&self) -> bool {
        let is_under_way = |slot: &Slot| !matches!(slot.state, State::Free | State::Held);
        self.slots.iter().any(is_under_way)
    }
}

impl Slot {
    /// Whether it may still move data of its namespace: one that waits is checked again before.
    pub(super) fn is_under_way(&self) -> bool {
        let is_at_rest = [State::Free, State::Waiting, State::PutOff, State::Held];
        !is_at_rest.contains(&self.state)
    }

    /// Notes a command that has come. `None` for one that is too short to be one.
    #[inline(always)]
    pub(super) fn take(&mut self, link: &mut Link, len: u32, recv: Buf) -> Option<()> {
        // The receive that was there is posted, since this is its completion: saying so spares a
        // check.
        forget(self.recv.take());
        let recv = self.recv.insert(recv);
        self.received = (len as usize).checked_sub(SQE_BYTES)?;
        recv.copy_out(0, self.sqe.as_mut_bytes()).ok()?;
        self.version = NEVER;
        self.began = None;
        if link.queue.traffic.commands.is_multiple_of(TIMED_EVERY) && link.stats.is_some() {
            self.began = Some(Instant::now());
        }
        link.queue.fetched();
        Some(())
    }

    /// Whether it stands at the gate of its namespace behind others.
    pub(super) fn is_at_gate(&self) -> bool {
        self.pass.as_ref().is_some_and(|pass| !pass.is_open())
    }

    /// Whether it is one of a pair that was not looked at.
    pub(super) fn is_fused(&self) -> bool {
        self.version == NEVER && matches!(self.sqe.fuse(), Fuse::First | Fuse::Second)
    }

    /// Notes where the data of a Write go that are fetched straight into memory. All else stands in
    /// its capsule.
    #[inline(always)]
    pub(super) fn note_place(&mut self, version: u64, backend: usize, (offset, len): (u64, u64)) {
        self.version = version;
        (self.command.backend, self.command.offset, self.command.len) = (backend, offset, len);
    }

    /// Notes what a command under way asks for, as of a version of what is offered.
    #[inline(always)]
    pub(super) fn note(&mut self, version: u64, command: &IoCommand) {
        (self.version, self.command) = (version, *command);
    }
}

impl Link {
    /// Shows others what it has moved.
    pub(super) fn publish(&mut self) {
        self.moved.add(&self.queue.traffic);
        if let Some(stats) = &self.stats {
            stats.moved.publish(&self.moved);
        }
    }

    /// Whose sums it counts among, once its host is let in.
    pub(super) fn look_whether_known(&self, target: &Target) {
        if let Some(stats) = &self.stats
            && target.is_known(&self.queue)
        {
            stats.set_known();
        }
    }

    /// Whether others are to see what it moves: it has a controller since a moment.
    pub(super) fn is_unknown(&self) -> bool {
        self.stats.is_none() && self.queue.role != Role::Unconnected
    }

    /// The page of a command.
    pub(super) fn page(&self, it: &Slot, len: usize) -> Result<Buf, VerbsError> {
        let at = usize::from(it.index) * self.page_bytes;
        self.pages.buf(at..at + len.min(self.page_bytes))
    }

    /// A part of the page of a command; `None` beyond it.
    pub(super) fn part_of_page(&self, it: &Slot, at: usize, len: usize) -> Option<Buf> {
        let start = usize::from(it.index) * self.page_bytes + at;
        let is_inside = at.checked_add(len)? <= self.page_bytes;
        self.pages.buf(start..start + len).ok().filter(|_| is_inside)
    }

    /// Whether another command can be begun.
    #[inline(always)]
    pub(super) fn has_room(&self, qp: &Qp) -> bool {
        qp.free_wr() > self.reserve
    }

    /// Whether another READ can be begun: those in line come first.
    #[inline(always)]
    pub(super) fn can_read(&self) -> bool {
        self.reads < self.max_reads && self.line.waiting() == 0
    }

    /// Lets a command wait.
    pub(super) fn wait(&mut self, it: &mut Slot) {
        it.state = State::Waiting;
        self.waiting.push_back(it.index);
    }

    /// Reads the data of a command into `to`, which is that buffer of the pool if one is named.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        qp: &mut Qp,
        it: &mut Slot,
        from: &Keyed,
        (to, buffer): (Buf, Option<u16>),
    ) -> Result<(), Why> {
        it.state = State::Reading(buffer);
        self.reads += 1;
        self.asked_for_completion();
        post_read(qp, (wr::READ | u64::from(it.index), SendFlags::SIGNALED), from, to)
    }

    /// Writes the data of a command to the host; the answer follows.
    #[inline(always)]
    pub(super) fn write(&mut self, qp: &mut Qp, to: &Keyed, from: Buf) -> Result<(), Why> {
        let wr = SendWr::unsignaled(wr::ANSWER, SendOp::Write(remote(to)));
        qp.post_send(&wr.with(SendFlags::MORE), Some(from)).map_err(|_| FULL)
    }

    /// Counts requests before an answer beside the usual one, so that a completion comes in time:
    /// only behind it they are free again.
    pub(super) fn count_requests(&mut self, count: usize) {
        self.unsignaled = self.unsignaled.saturating_add(count as u16);
    }

    /// A request asks for its completion, which ends all before it: none of the answers among them
    /// need do so.
    #[inline(always)]
    pub(super) fn asked_for_completion(&mut self) {
        self.unsignaled = 0;
    }

    /// A command did what it should.
    #[inline(always)]
    pub(super) fn done(&mut self, qp: &mut Qp, it: &mut Slot) -> Result<(), Why> {
        let cqe = self.queue.answer(it.sqe.cid.get(), Status::SUCCESS, 0);
        self.answer(qp, it, &cqe)
    }

    /// Answers a command. One of many asks for its completion, which ends those before it, unless a
    /// READ among them does.
    #[inline(always)]
    pub(super) fn answer(&mut self, qp: &mut Qp, it: &mut Slot, cqe: &Cqe) -> Result<(), Why> {
        self.unsignaled += 1;
        let is_signaled = self.unsignaled >= SIGNAL_PERIOD;
        let signaled = if is_signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
        self.answer_as(qp, it, cqe, (wr::ANSWER, signaled))
    }

    /// Answers a command under this name; signaled or not. Its receive is posted first, so that
    /// the host's next command finds one.
    #[inline(always)]
    pub(super) fn answer_as(
        &mut self,
        qp: &mut Qp,
        it: &mut Slot,
        cqe: &Cqe,
        (wr_id, signaled): (u64, SendFlags),
    ) -> Result<(), Why> {
        if signaled.contains(SendFlags::SIGNALED) {
            self.asked_for_completion();
        }
        it.state = State::Free;
        if let Some(recv) = it.recv.take() {
            qp.post_recv(wr::RECV | u64::from(it.index), recv).map_err(|_| FULL)?;
        }
        let flags = signaled | SendFlags::MORE;
        // Either has a copy of its own, in which the operation is a constant.
        let posted = match Sgl::key_to_end(&it.sqe.sgl) {
            Some(key) if self.remote_invalidate => {
                let wr = SendWr { wr_id, flags, op: SendOp::SendInv(Rkey(key)) };
                qp.post_send_inline(&wr, cqe.as_bytes())
            }
            _ => {
                let wr = SendWr { wr_id, flags, op: SendOp::Send };
                qp.post_send_inline(&wr, cqe.as_bytes())
            }
        };
        posted.map_err(|_| FULL)
    }
}

/// Posts a READ under a name; signaled or not. It counts among [`Link::reads`].
#[inline(always)]
pub(super) fn post_read(
    qp: &mut Qp,
    (wr_id, signaled): (u64, SendFlags),
    from: &Keyed,
    to: Buf,
) -> Result<(), Why> {
    let flags = signaled | SendFlags::MORE;
    let wr = SendWr { wr_id, flags, op: SendOp::Read(remote(from)) };
    qp.post_send(&wr, Some(to)).map_err(|_| FULL)
}

#[inline(always)]
fn remote(keyed: &Keyed) -> RemoteAddr {
    RemoteAddr { addr: keyed.addr, rkey: Rkey(keyed.rkey) }
}

/// Send requests that commands under way may still need: data and an answer each.
fn reserve(entries: u16) -> u32 {
    2 * u32::from(entries)
}

/// Send requests of a queue: what [`reserve`] keeps, as much again for those that have not been
/// acknowledged, and the answers that ask for no completion.
pub(super) fn send_requests(entries: u16) -> u32 {
    2 * reserve(entries) + 2 * u32::from(SIGNAL_PERIOD)
}
