//! Commands carried out: [`Work`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ferrocx::verbs::{Buf, Failure, Qp, Returned, Wc, WcOpcode};
use ferrocx_uring::Ring;

use super::drive::Drives;
use super::effort::{Effort, compare, in_capsule, zero};
use super::gate::Gate;
use super::session::{GONE, Link, NEVER, READ_COUNT_SHIFT, Session, Slot, State, Why, wr};
use super::trouble::medium_error;
use super::{Backend, Buffers, CUT_SHORT, NO_DATA, ServerConfig, Shared, is_io, place};
use crate::backend::Losses;
use crate::controller::io::{self as commands, Data, IoCommand, Kind};
use crate::controller::{Offer, Queue, Role, Settings, Target};
use crate::proto::log::Traffic;
use crate::proto::sgl::Keyed;
use crate::proto::sqe::{SQE_BYTES, io};
use crate::proto::status::Status;
use crate::stats::NamespaceStats;
use crate::whole::Whole;

/// Everything that a command needs beside its queue.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) shared: Arc<Shared>,
    pub(super) settings: Settings,
    /// What is offered, as this core sees it, and the version of what there is.
    pub(super) offer: Arc<Offer>,
    version: Arc<AtomicU64>,
    /// By the places that namespaces name; a place is used once.
    pub(super) backends: Vec<Option<Store>>,
    pub(super) buffers: Buffers,
    /// Files, if a namespace is one.
    pub(super) ring: Option<Ring>,
    /// Drives, if a namespace is one.
    pub(super) drives: Drives,
    /// What the core has done itself in this round.
    pub(super) effort: Effort,
    /// What a command brings.
    pub(super) page: Vec<u8>,
    /// Queues with requests that the port was not told of.
    pub(super) dirty: Vec<u32>,
    /// Places whose gates this core knows, and has not said so.
    pub(super) unseen: Vec<usize>,
    /// How long a command may be put off.
    pub(super) patience: Duration,
    /// Times that a command had to wait for room, and of these for a buffer.
    pub(super) waits: u64,
    pub(super) buffer_waits: u64,
    /// Commands that come are left alone: the target stops.
    pub(super) is_stopping: bool,
}

/// A back end, and what this core has moved into and out of it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) backend: Backend,
    pub(super) moved: Traffic,
    pub(super) stats: Arc<NamespaceStats>,
    /// Where those stand who change blocks, once a host has fused commands.
    pub(super) gate: Option<Arc<Gate>>,
    /// Apart from the others, which are found a little sooner then.
    pub(super) rare: Box<Rare>,
}

/// What a back end has that no command to memory asks for.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// Of a file whose data the kernel keeps for a while.
    pub(super) losses: Option<Losses>,
    /// Of one that is [`Outside::Whole`](crate::backend::Outside): the memory.
    pub(super) whole: Option<Whole>,
}

impl Store {
    /// Shows others what it has moved. Its commands are those that move something.
    pub(super) fn publish(&mut self) {
        self.moved.commands = self.moved.reads + self.moved.writes;
        self.stats.moved.publish(&self.moved);
    }

    /// Counts what a command of I/O has moved.
    #[inline(always)]
    pub(super) fn moved(&mut self, link: &mut Link, it: &mut Slot, kind: Kind, len: u64) {
        let is_read = kind == Kind::Read;
        for traffic in [&mut link.queue.traffic, &mut self.moved] {
            if is_read {
                traffic.reads += 1;
                traffic.bytes_read += len;
            } else {
                traffic.writes += 1;
                traffic.bytes_written += len;
            }
        }
        if let Some(began) = it.began {
            it.began = None;
            self.timed(link, began, is_read);
        }
    }

    /// Notes that what was written may not be on its medium: a file is not believed after that.
    #[cold]
    pub(super) fn note_loss(&self) {
        if self.rare.losses.as_ref().is_some_and(Losses::note) {
            tracing::error!(
                subsystem = self.stats.nqn,
                nsid = self.stats.nsid,
                "a file has not written what hosts gave it, and every Flush fails from now on; see \
                 to its disk, then remove the namespace and add it again"
            );
        }
    }

    /// Whether something that was written may not be on its medium.
    pub(super) fn has_losses(&self) -> bool {
        self.rare.losses.as_ref().is_some_and(Losses::is_any)
    }

    #[inline(never)]
    fn timed(&self, link: &Link, began: Instant, is_read: bool) {
        let (took, which) = (began.elapsed(), usize::from(!is_read));
        self.stats.times[which].record(took);
        if let Some(stats) = &link.stats {
            stats.times[which].record(took);
        }
    }
}

impl Work {
    pub(super) fn new(shared: Arc<Shared>, buffers: Buffers, config: &ServerConfig) -> Self {
        let target = shared.lock();
        let (settings, offer, version) = (*target.settings(), target.offer(), target.version());
        drop(target);
        Self {
            shared,
            settings,
            offer,
            version,
            is_stopping: false,
            backends: Vec::new(),
            buffers,
            ring: None,
            drives: Drives::default(),
            effort: Effort::default(),
            page: Vec::with_capacity(16 << 10),
            dirty: Vec::with_capacity(config.queues as usize),
            unseen: Vec::new(),
            patience: config.patience,
            waits: 0,
            buffer_waits: 0,
        }
    }

    /// What is offered to whom, which all cores share: never locked for a command of I/O.
    pub(super) fn target(&self) -> MutexGuard<'_, Target> {
        self.shared.lock()
    }

    /// Takes note of a change of what is offered.
    #[inline(always)]
    pub(super) fn look_at_offer(&mut self) {
        if self.version.load(Ordering::Acquire) != self.offer.version() {
            self.take_offer();
        }
    }

    #[cold]
    #[inline(never)]
    fn take_offer(&mut self) {
        self.offer = self.shared.lock().offer();
        self.look_at_gates();
    }

    /// The back end at a place.
    #[inline]
    pub(super) fn backend(&self, at: usize) -> Option<&Backend> {
        Some(&self.backends.get(at)?.as_ref()?.backend)
    }

    /// Checks the I/O command in a slot once more, if what is offered has changed since.
    #[inline(always)]
    pub(super) fn look_again(&self, queue: &Queue, it: &mut Slot) -> Result<(), Status> {
        if it.version == self.offer.version() { Ok(()) } else { self.check_again(queue, it) }
    }

    #[cold]
    #[inline(never)]
    fn check_again(&self, queue: &Queue, it: &mut Slot) -> Result<(), Status> {
        if it.version == GONE {
            return Err(Status::WRITE_FAULT);
        }
        let command = self.offer.io(queue, &it.sqe, it.received)?;
        // Of a namespace that was taken away and came back as another.
        if it.command.backend != command.backend {
            return Err(Status::INVALID_NAMESPACE.dnr());
        }
        it.note(self.offer.version(), &command);
        Ok(())
    }

    /// A request has ended.
    // What a completion says and neither of the two asks for is not even read.
    #[inline(always)]
    pub(super) fn ended(&mut self, qp: &mut Qp, session: &mut Session, wc: Wc<Buf>) {
        let Wc { wr_id, opcode, result, byte_len, returned, .. } = wc;
        match returned {
            Returned::Buffers(recv) if opcode == WcOpcode::Recv && result.is_ok() => {
                self.received(qp, session, wr_id, byte_len, recv);
            }
            returned => {
                drop(returned);
                self.sent(qp, session, wr_id, result);
            }
        }
    }

    /// A command has come.
    #[inline(never)]
    fn received(&mut self, qp: &mut Qp, session: &mut Session, wr_id: u64, len: u32, recv: Buf) {
        let outcome = self.take(qp, session, wr_id, len, recv);
        self.touched(&mut session.link, outcome);
    }

    #[inline(always)]
    fn take(
        &mut self,
        qp: &mut Qp,
        Session { link, slots }: &mut Session,
        wr_id: u64,
        len: u32,
        recv: Buf,
    ) -> Result<(), Why> {
        if link.ending.is_some() || self.is_stopping {
            return Ok(());
        }
        let it = slots.get_mut(wr_id as usize).ok_or(CUT_SHORT)?;
        it.take(link, len, recv).ok_or(CUT_SHORT)?;
        if !link.waiting.is_empty() || !link.has_room(qp) {
            return self.stand_behind(qp, link, it);
        }
        self.begin(qp, link, it)
    }

    /// Begins a command that was not looked at yet.
    #[inline(always)]
    fn begin(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        // Reads and Writes have a copy each of what checks them and carries them out: what they ask
        // for stays in registers.
        match it.sqe.opcode {
            io::READ if matches!(link.queue.role, Role::Io(_)) => self.read(qp, link, it),
            io::WRITE if matches!(link.queue.role, Role::Io(_)) => self.write(qp, link, it),
            opcode if is_io(&link.queue, opcode) => self.begin_rare(qp, link, it),
            _ => self.command(qp, link, it),
        }
    }

    /// Begins a Read. Its data go straight to the host if the back end is memory.
    #[inline(always)]
    fn read(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        let bytes = self.offer.bytes(&link.queue, &it.sqe, Kind::Read, &mut link.found);
        let (offset, len) = match bytes {
            Ok(bytes) => bytes,
            Err(status) => return self.refuse_or_fuse(qp, link, it, status),
        };
        if let Some(to) = Keyed::parse(&it.sqe.sgl)
            && u64::from(to.len) == len
            && let Some(Some(store)) = self.backends.get_mut(link.found.backend())
            && let Ok(from) = store.backend.direct(offset, len)
        {
            link.write(qp, &to, from)?;
            store.moved(link, it, Kind::Read, len);
            return link.done(qp, it);
        }
        self.begin_bytes(qp, link, it, Kind::Read, (offset, len))
    }

    /// Begins a Write. Its data are fetched straight into the back end if that is memory.
    #[inline(always)]
    fn write(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        let bytes = self.offer.bytes(&link.queue, &it.sqe, Kind::Write, &mut link.found);
        let (offset, len) = match bytes {
            Ok(bytes) => bytes,
            Err(status) => return self.refuse_or_fuse(qp, link, it, status),
        };
        let place = link.found.backend();
        if let Some(from) = Keyed::parse(&it.sqe.sgl)
            && u64::from(from.len) == len
            && self.backend(place).is_some_and(Backend::is_direct)
        {
            it.note_place(self.offer.version(), place, (offset, len));
            link.stand_in_line(it);
            return Ok(());
        }
        self.begin_bytes(qp, link, it, Kind::Write, (offset, len))
    }

    /// Begins a Read or a Write whose data do not go straight between the port and memory. Its
    /// bytes are checked.
    #[inline(never)]
    fn begin_bytes(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        kind: Kind,
        (offset, len): (u64, u64),
    ) -> Result<(), Why> {
        let data = match commands::data(&it.sqe, kind, len, it.received) {
            Ok(data) => data,
            Err(status) => return self.refuse(qp, link, it, status),
        };
        let (backend, fua) = (link.found.backend(), it.sqe.fua());
        let command = IoCommand { kind, backend, offset, len, fua, data };
        it.put_off_since = None;
        it.note(self.offer.version(), &command);
        self.begin_other(qp, link, it)
    }

    /// Begins a command of I/O that is neither Read nor Write.
    #[inline(never)]
    fn begin_rare(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        let namespace = self.offer.reachable(&link.queue, &it.sqe);
        let checked =
            namespace.and_then(|namespace| self.offer.other(namespace, &it.sqe, it.received));
        match checked {
            Ok(command) => {
                it.put_off_since = None;
                it.note(self.offer.version(), &command);
                self.begin_other(qp, link, it)
            }
            Err(status) => self.refuse_or_fuse(qp, link, it, status),
        }
    }

    /// A request of ours has ended, or a receive has failed.
    #[inline(never)]
    fn sent(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        wr_id: u64,
        result: Result<(), Failure>,
    ) {
        session.link.is_heard = true;
        if wr_id & wr::KIND == wr::READS && result.is_ok() {
            let outcome = self.have_data(qp, session, wr_id as u16);
            return self.touched(&mut session.link, outcome);
        }
        let Session { link, slots } = session;
        let it = slots.get_mut(usize::from(wr_id as u16));
        let is_read = wr_id & wr::KIND == wr::READ;
        if is_read {
            let count = 1 + (wr_id >> READ_COUNT_SHIFT) as u16;
            link.reads = link.reads.saturating_sub(count);
            link.owed.ended(count);
        } else if wr_id & wr::KIND == wr::POOL {
            // They end in order.
            if link.pooled.front() == Some(&(wr_id as u16)) {
                link.pooled.pop_front();
                link.owed.ended(1);
                self.buffers.free(wr_id as u16);
            }
        }
        let outcome = match (result, it) {
            (Ok(()), Some(it)) if is_read => self.has_data(qp, link, it),
            (Ok(()), _) => Ok(()),
            (Err(failure), it) => {
                if let Some(it) = it.filter(|_| is_read) {
                    self.buffers.give_back(it);
                }
                self.failed(link, failure)
            }
        };
        self.touched(link, outcome);
    }

    /// A request has failed: the queue ends.
    #[cold]
    fn failed(&self, link: &Link, failure: Failure) -> Result<(), Why> {
        if link.ending.is_some() || failure.is_flush() {
            return if link.ending.is_some() { Ok(()) } else { Err("its queue pair failed") };
        }
        let (peer, qid) = (link.connection.peer(), link.queue.qid);
        tracing::info!(%peer, qid, %failure, "failed");
        Err("a transfer failed")
    }

    /// Notes that something was done on a queue, and how that went: its doorbell is rung when the
    /// round ends.
    #[inline(always)]
    pub(super) fn touched(&mut self, link: &mut Link, outcome: Result<(), Why>) {
        if let Err(why) = outcome {
            link.fail(why);
        }
        if !link.is_dirty {
            link.is_dirty = true;
            self.dirty.push(place(link.queue.id));
        }
    }

    /// Begins a command that has waited.
    pub(super) fn begin_late(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
    ) -> Result<(), Why> {
        if it.version == NEVER {
            return self.begin(qp, link, it);
        }
        match self.look_again(&link.queue, it) {
            Ok(()) => self.begin_other(qp, link, it),
            Err(status) => self.refuse(qp, link, it, status),
        }
    }

    /// Begins an I/O command that does not go straight between the port and a back end's memory.
    #[inline(never)]
    fn begin_other(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        let command = it.command;
        if !self.stand_at_gate(it, &command, false) {
            return self.wait(link, it);
        }
        if let Data::List(list) = command.data {
            return self.begin_listed(qp, link, it, list);
        }
        let Some(Some(store)) = self.backends.get_mut(command.backend) else {
            return self.refuse(qp, link, it, Status::INTERNAL);
        };
        if let Backend::Outside(outside) = store.backend {
            return self.begin_outside(qp, link, it, outside);
        }
        let (offset, len) = (command.offset, command.len);
        let done = match (command.kind, &command.data) {
            (Kind::Compare | Kind::Write | Kind::Deallocate { .. }, Data::Host(_))
                if !link.can_read() =>
            {
                return self.wait(link, it);
            }
            (Kind::Write, Data::Host(from)) if it.pass.is_some() => {
                match store.backend.direct(offset, len) {
                    Ok(to) => return link.read(qp, it, from, (to, None)),
                    Err(_) => Err(medium_error(command.kind)),
                }
            }
            // Memory that was taken back: no other comes here for these.
            (Kind::Read | Kind::Write, Data::Host(_)) => Err(medium_error(command.kind)),
            (Kind::Compare, Data::Host(from)) => {
                let Some((index, to)) = self.take_buffer(link, len as usize) else {
                    return self.wait_for_buffer(qp, link, it, len as usize);
                };
                return link.read(qp, it, from, (to, Some(index)));
            }
            (Kind::Deallocate { .. }, Data::Host(from)) => match link.page(it, from.len as usize) {
                Ok(to) => return link.read(qp, it, from, (to, None)),
                Err(_) => Err(NO_DATA),
            },
            (Kind::Write | Kind::Compare, Data::Capsule { start, .. }) => {
                let done = in_capsule(it, &store.backend, *start);
                if command.kind == Kind::Write && done.is_ok() {
                    store.moved(link, it, Kind::Write, len);
                }
                done
            }
            (Kind::Deallocate { ranges }, Data::Capsule { start, .. }) => {
                let start = SQE_BYTES + start;
                let piece = it.recv.as_ref().ok_or(NO_DATA);
                piece.and_then(|piece| self.check_ranges(&link.queue, it, piece, start, ranges))
            }
            (Kind::Zero { .. }, _) if !self.effort.has_time() => return self.wait(link, it),
            (Kind::Zero { .. }, _) => {
                self.effort.spend(len);
                zero(&store.backend, offset, len)
            }
            (Kind::Verify, _) => {
                store.backend.direct(offset, len).map(drop).map_err(|_| Status::READ_ERROR)
            }
            // RAM has no medium behind it.
            (Kind::Flush | Kind::Nothing, _) => Ok(()),
            // Checked commands have no others.
            (Kind::Read | Kind::Write | Kind::Compare | Kind::Deallocate { .. }, _) => {
                Err(Status::INVALID_FIELD.dnr())
            }
        };
        self.end(qp, link, it, done)
    }

    /// Answers a command that ended so.
    #[inline(never)]
    pub(super) fn end(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        done: Result<(), Status>,
    ) -> Result<(), Why> {
        match done {
            Ok(()) => {
                if let Data::List(list) = it.command.data {
                    it.name_last_block(list);
                }
                link.leave(it, true);
                link.done(qp, it)
            }
            Err(status) => self.refuse(qp, link, it, status),
        }
    }

    /// The data have come by READ of a command that does not stand in line.
    #[inline(never)]
    fn has_data(&mut self, qp: &mut Qp, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        let State::Reading(buffer) = it.state else { return Ok(()) };
        if link.ending.is_some() {
            self.buffers.give_back(it);
            return Ok(());
        }
        if !is_io(&link.queue, it.sqe.opcode) {
            return self.fetched(qp, link, it);
        }
        // The namespace may have changed while the data were on their way.
        if let Err(status) = self.look_again(&link.queue, it) {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, status);
        }
        let command = it.command;
        if let Data::List(list) = command.data
            && let Some(outcome) = self.has_blocks(qp, link, it, list)
        {
            return outcome;
        }
        let done = match (self.backend(command.backend), command.kind, buffer) {
            (Some(Backend::Outside(outside)), ..) => {
                let outside = *outside;
                return self.has_outside_data(qp, link, it, outside);
            }
            (Some(store), Kind::Compare, Some(index)) => {
                let given = self.buffers.piece(index, command.len as usize).ok_or(NO_DATA);
                let done = given.and_then(|given| compare(&command, store, &given));
                self.effort.spend(command.len);
                done
            }
            (Some(_), Kind::Deallocate { ranges }, _) => {
                let page = link.page(it, 4096).map_err(|_| NO_DATA);
                page.and_then(|page| self.check_ranges(&link.queue, it, &page, 0, ranges))
            }
            // By a list; others stand in line.
            (Some(_), Kind::Write, None) => {
                if let Some(Some(store)) = self.backends.get_mut(command.backend) {
                    store.moved(link, it, Kind::Write, command.len);
                }
                Ok(())
            }
            _ => Err(NO_DATA),
        };
        self.buffers.give_back(it);
        self.end(qp, link, it, done)
    }

    /// A command did not do what it should.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        status: Status,
    ) -> Result<(), Why> {
        link.leave(it, false);
        if it.version != NEVER
            && let Some(Some(store)) = self.backends.get_mut(it.command.backend)
        {
            store.moved.errors += 1;
        }
        link.queue.note_failure(&it.sqe, status);
        let cqe = link.queue.answer(it.sqe.cid.get(), status, 0);
        link.answer(qp, it, &cqe)
    }
}
