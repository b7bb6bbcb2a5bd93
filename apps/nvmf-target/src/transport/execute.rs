//! Commands carried out: [`Work`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use ferrocx::verbs::{Buf, Qp, Returned, Wc};
use ferrocx_uring::Ring;

use super::session::{NEVER, Session, State, wr};
use super::{Backend, Buffers, FULL, NO_DATA, Shared, is_io, is_receive};
use crate::backend;
use crate::controller::io::{DSM_RANGE_BYTES, Data, IoCommand, Kind};
use crate::controller::{Action, Offer, Settings, Target};
use crate::proto::log::Traffic;
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;
use crate::stats::NamespaceStats;

/// Why a queue ends.
pub(super) type Why = &'static str;

/// Everything that a command needs beside its queue.
#[derive(Debug)]
pub(super) struct Work {
    shared: Arc<Shared>,
    pub(super) settings: Settings,
    /// What is offered, as this core sees it, and the version of what there is.
    pub(super) offer: Arc<Offer>,
    version: Arc<AtomicU64>,
    /// By the places that namespaces name; a place is used once.
    pub(super) backends: Vec<Option<Store>>,
    pub(super) buffers: Buffers,
    /// Files, if a namespace is one.
    pub(super) ring: Option<Ring>,
    /// What a command brings.
    pub(super) page: Vec<u8>,
    /// Times that a command had to wait for room.
    pub(super) waits: u64,
    /// Commands that come are left alone: the target stops.
    pub(super) is_stopping: bool,
}

/// A back end, and what this core has moved into and out of it.
#[derive(Debug)]
pub(super) struct Store {
    pub(super) backend: Backend,
    pub(super) moved: Traffic,
    pub(super) stats: Arc<NamespaceStats>,
}

impl Work {
    pub(super) fn new(shared: Arc<Shared>, buffers: Buffers) -> Self {
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
            page: Vec::with_capacity(16 << 10),
            waits: 0,
        }
    }

    /// What is offered to whom, which all cores share: never locked for a command of I/O.
    pub(super) fn target(&self) -> MutexGuard<'_, Target> {
        self.shared.lock()
    }

    /// Takes note of a change of what is offered.
    #[inline]
    pub(super) fn look_at_offer(&mut self) {
        if self.version.load(Ordering::Acquire) != self.offer.version() {
            self.offer = self.shared.lock().offer();
        }
    }

    /// The back end at a place.
    #[inline]
    pub(super) fn backend(&self, at: usize) -> Option<&Backend> {
        Some(&self.backends.get(at)?.as_ref()?.backend)
    }

    /// The I/O command in a slot, checked: once more, if what is offered has changed meanwhile.
    #[inline]
    pub(super) fn checked(&self, session: &Session, slot: u16) -> Result<IoCommand, Status> {
        let it = &session.slots[usize::from(slot)];
        match it.checked {
            (version, command) if version == self.offer.version() => Ok(command),
            (version, before) => {
                let command = self.offer.io(&session.queue, &it.sqe, it.received)?;
                // Of a namespace that was taken away and came back as another.
                let is_other = version != NEVER && before.backend != command.backend;
                if is_other { Err(Status::INVALID_NAMESPACE.dnr()) } else { Ok(command) }
            }
        }
    }

    /// Counts what a command of I/O has moved.
    #[inline]
    pub(super) fn moved(&mut self, session: &mut Session, slot: u16, command: &IoCommand) {
        let Some(Some(store)) = self.backends.get_mut(command.backend) else { return };
        let traffic = [&mut session.queue.traffic, &mut store.moved];
        let is_read = command.kind == Kind::Read;
        for it in traffic {
            if is_read {
                it.reads += 1;
                it.bytes_read += command.len;
            } else {
                it.writes += 1;
                it.bytes_written += command.len;
            }
        }
        store.moved.commands += 1;
        if let Some(began) = session.slots[usize::from(slot)].began.take() {
            let (took, which) = (began.elapsed(), usize::from(!is_read));
            store.stats.times[which].record(took);
            if let Some(stats) = &session.stats {
                stats.times[which].record(took);
            }
        }
    }

    /// A request has ended.
    #[inline(always)]
    pub(super) fn ended(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        wc: Wc<Buf>,
    ) -> Result<(), Why> {
        match (wc.result, wc.returned) {
            (Ok(()), Returned::Buffers(recv)) if is_receive(wc.opcode) => {
                self.received(qp, session, (wc.wr_id, wc.byte_len, recv))
            }
            (Ok(()), _) => self.sent(qp, session, wc.wr_id),
            (Err(failure), _) => self.failed(session, wc.wr_id, failure),
        }
    }

    /// A command has come.
    fn received(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        (wr_id, len, recv): (u64, u32, Buf),
    ) -> Result<(), Why> {
        if session.ending.is_some() || self.is_stopping {
            return Ok(());
        }
        let slot = session.received(wr_id, len, recv).ok_or("a command was cut short")?;
        if !session.waiting.is_empty() || !session.has_room(qp) {
            return self.wait(session, slot);
        }
        self.begin(qp, session, slot)
    }

    /// A request of ours has ended well.
    fn sent(&mut self, qp: &mut Qp, session: &mut Session, wr_id: u64) -> Result<(), Why> {
        match wr_id & wr::KIND {
            wr::READ => {
                session.reads -= 1;
                self.has_data(qp, session, wr_id as u16)
            }
            wr::POOL => {
                self.buffers.free(wr_id as u16);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A request has failed: the queue ends.
    #[cold]
    fn failed(
        &mut self,
        session: &mut Session,
        wr_id: u64,
        failure: ferrocx::verbs::Failure,
    ) -> Result<(), Why> {
        match wr_id & wr::KIND {
            wr::READ => {
                session.reads -= 1;
                self.buffers.give_back(session, wr_id as u16);
            }
            wr::POOL => self.buffers.free(wr_id as u16),
            _ => {}
        }
        if session.ending.is_some() || failure.is_flush() {
            return if session.ending.is_some() { Ok(()) } else { Err("its queue pair failed") };
        }
        let (peer, qid) = (session.connection.peer(), session.queue.qid);
        tracing::info!(%peer, qid, %failure, "failed");
        Err("a transfer failed")
    }

    /// Goes on with commands that wait, in order.
    pub(super) fn resume(&mut self, qp: &mut Qp, session: &mut Session) -> Result<(), Why> {
        for _ in 0..session.waiting.len() {
            if session.ending.is_some() || !session.has_room(qp) {
                return Ok(());
            }
            let Some(slot) = session.waiting.pop_front() else { return Ok(()) };
            self.begin(qp, session, slot)?;
            if session.slots[usize::from(slot)].state == State::Waiting {
                // It keeps its place.
                session.waiting.pop_back();
                session.waiting.push_front(slot);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Begins a command that has come.
    #[inline]
    fn begin(&mut self, qp: &mut Qp, session: &mut Session, slot: u16) -> Result<(), Why> {
        if !is_io(&session.queue, session.slots[usize::from(slot)].sqe.opcode) {
            return self.command(qp, session, slot);
        }
        let command = match self.checked(session, slot) {
            Ok(command) => command,
            Err(status) => return self.refuse(qp, session, slot, status),
        };
        self.io(qp, session, slot, &command)?;
        let it = &mut session.slots[usize::from(slot)];
        if it.state != State::Free {
            it.checked = (self.offer.version(), command);
        }
        Ok(())
    }

    /// Begins an I/O command.
    #[inline]
    fn io(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        command: &IoCommand,
    ) -> Result<(), Why> {
        let Some(store) = self.backend(command.backend) else {
            return self.refuse(qp, session, slot, Status::INTERNAL);
        };
        if let Backend::File(file) = store {
            return self.begin_file(qp, session, slot, (command, *file));
        }
        let (offset, len) = (command.offset, command.len);
        match (command.kind, &command.data) {
            (Kind::Read, Data::Host(to)) => {
                let Ok(from) = store.direct(offset, len) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.write(qp, to, from).map_err(|_| FULL)?;
                self.moved(session, slot, command);
                self.done(qp, session, slot)
            }
            (Kind::Write, Data::Host(from)) if session.can_read() => {
                let Ok(to) = store.direct(offset, len) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.read(qp, slot, from, (to, None)).map_err(|_| FULL)
            }
            (Kind::Write | Kind::Compare, Data::Capsule { start, .. }) => {
                let done = in_capsule(session, slot, command, store, *start);
                match done {
                    Ok(()) => {
                        if command.kind == Kind::Write {
                            self.moved(session, slot, command);
                        }
                        self.done(qp, session, slot)
                    }
                    Err(status) => self.refuse(qp, session, slot, status),
                }
            }
            (Kind::Compare, Data::Host(from)) if session.can_read() => {
                let Some((index, to)) = self.buffers.take(len as usize) else {
                    return self.wait(session, slot);
                };
                session.read(qp, slot, from, (to, Some(index))).map_err(|_| FULL)
            }
            (Kind::Deallocate { .. }, Data::Host(from)) if session.can_read() => {
                let Ok(to) = session.page(slot, from.len as usize) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.read(qp, slot, from, (to, None)).map_err(|_| FULL)
            }
            (Kind::Write | Kind::Compare | Kind::Deallocate { .. }, Data::Host(_)) => {
                self.wait(session, slot)
            }
            (Kind::Deallocate { ranges }, Data::Capsule { start, .. }) => {
                let start = SQE_BYTES + start;
                let piece = session.slots[usize::from(slot)].recv.as_ref();
                let checked = match piece {
                    Some(piece) => self.check_ranges(session, slot, piece, start, ranges),
                    None => Err(NO_DATA),
                };
                match checked {
                    Ok(()) => self.done(qp, session, slot),
                    Err(status) => self.refuse(qp, session, slot, status),
                }
            }
            (Kind::Zero { .. }, _) => {
                let zeroed = store.direct(offset, len).map_err(|_| NO_DATA);
                let zeroed = zeroed.and_then(|mut piece| {
                    backend::zero(&mut piece, len as usize).map_err(|_| NO_DATA)
                });
                match zeroed {
                    Ok(()) => self.done(qp, session, slot),
                    Err(status) => self.refuse(qp, session, slot, status),
                }
            }
            // RAM has no medium behind it.
            (Kind::Flush | Kind::Verify | Kind::Nothing, _) => self.done(qp, session, slot),
            // Checked commands have no others.
            (Kind::Read | Kind::Write | Kind::Compare | Kind::Deallocate { .. }, _) => {
                self.refuse(qp, session, slot, Status::INVALID_FIELD.dnr())
            }
        }
    }

    /// Ranges that may be deallocated are checked. RAM keeps them: hosts must not count on zeros.
    fn check_ranges(
        &self,
        session: &Session,
        slot: u16,
        piece: &Buf,
        start: usize,
        ranges: u16,
    ) -> Result<(), Status> {
        let sqe = &session.slots[usize::from(slot)].sqe;
        for at in 0..usize::from(ranges) {
            let mut bytes = [0; DSM_RANGE_BYTES];
            piece.copy_out(start + at * DSM_RANGE_BYTES, &mut bytes).map_err(|_| NO_DATA)?;
            self.offer.dsm_range(&session.queue, sqe, &bytes)?;
        }
        Ok(())
    }

    /// The data of a command have come by READ.
    #[inline]
    fn has_data(&mut self, qp: &mut Qp, session: &mut Session, slot: u16) -> Result<(), Why> {
        let Some(it) = session.slots.get(usize::from(slot)) else { return Ok(()) };
        let State::Reading(buffer) = it.state else { return Ok(()) };
        if session.ending.is_some() {
            self.buffers.give_back(session, slot);
            return Ok(());
        }
        if !is_io(&session.queue, it.sqe.opcode) {
            return self.fetched(qp, session, slot);
        }
        // The namespace may have changed while the data were on their way.
        let command = match self.checked(session, slot) {
            Ok(command) => command,
            Err(status) => {
                self.buffers.give_back(session, slot);
                return self.refuse(qp, session, slot, status);
            }
        };
        match self.backend(command.backend) {
            Some(Backend::File(file)) => {
                let file = *file;
                return self.has_file_data(qp, session, slot, (&command, file));
            }
            Some(_) => {}
            None => {
                self.buffers.give_back(session, slot);
                return self.refuse(qp, session, slot, NO_DATA);
            }
        }
        let checked = match (command.kind, buffer) {
            (Kind::Write, _) => {
                self.moved(session, slot, &command);
                Ok(())
            }
            (Kind::Compare, Some(index)) => self.compare(&command, index),
            (Kind::Deallocate { ranges }, _) => match session.page(slot, 4096) {
                Ok(piece) => self.check_ranges(session, slot, &piece, 0, ranges),
                Err(_) => Err(NO_DATA),
            },
            _ => Err(NO_DATA),
        };
        self.buffers.give_back(session, slot);
        match checked {
            Ok(()) => self.done(qp, session, slot),
            Err(status) => self.refuse(qp, session, slot, status),
        }
    }

    fn compare(&self, command: &IoCommand, index: u16) -> Result<(), Status> {
        let len = command.len as usize;
        let store = self.backend(command.backend).ok_or(NO_DATA)?;
        let stored = store.direct(command.offset, command.len).map_err(|_| NO_DATA)?;
        let given = self.buffers.piece(index, len).ok_or(NO_DATA)?;
        match backend::is_same(&given, 0, &stored, len) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::COMPARE_FAILURE.dnr()),
            Err(_) => Err(NO_DATA),
        }
    }

    /// A command that is none of I/O.
    #[cold]
    fn command(&mut self, qp: &mut Qp, session: &mut Session, slot: u16) -> Result<(), Why> {
        let it = &session.slots[usize::from(slot)];
        let sqe = it.sqe;
        let mut data = vec![0; it.received];
        if let Some(recv) = &it.recv {
            recv.copy_out(SQE_BYTES, &mut data).map_err(|_| "a command was cut short")?;
        }
        let done = {
            let mut target = self.shared.lock();
            target.command(&mut session.queue, slot, &sqe, &data, &mut self.page)
        };
        match done {
            Action::Answer(cqe) => session.answer(qp, slot, &cqe).map_err(|_| FULL),
            Action::Hold => {
                session.slots[usize::from(slot)].state = State::Held;
                Ok(())
            }
            Action::Bring { cqe, len, to } => {
                let Ok(mut page) = session.page(slot, len as usize) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                page.copy_in(0, &self.page[..len as usize]).map_err(|_| "a page is too long")?;
                session.write(qp, &to, page).map_err(|_| FULL)?;
                session.answer(qp, slot, &cqe).map_err(|_| FULL)
            }
            Action::Fetch { .. } if !session.can_read() => self.wait(session, slot),
            Action::Fetch { from, len } => {
                let Ok(page) = session.page(slot, len as usize) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.read(qp, slot, &from, (page, None)).map_err(|_| FULL)
            }
        }
    }

    /// The data that a command other than I/O asked for have come.
    #[cold]
    fn fetched(&mut self, qp: &mut Qp, session: &mut Session, slot: u16) -> Result<(), Why> {
        let sqe = session.slots[usize::from(slot)].sqe;
        let len = match crate::proto::sgl::Sgl::parse(&sqe.sgl) {
            Ok(sgl) => sgl.len() as usize,
            Err(_) => 0,
        };
        let data = session.page(slot, len).map_err(|_| "a page is too long")?.to_vec();
        let done = self.target().fetched(&mut session.queue, &sqe, &data);
        match done {
            Action::Answer(cqe) => session.answer(qp, slot, &cqe).map_err(|_| FULL),
            _ => self.refuse(qp, session, slot, Status::INTERNAL),
        }
    }

    /// Lets a command wait.
    #[cold]
    pub(super) fn wait(&mut self, session: &mut Session, slot: u16) -> Result<(), Why> {
        self.waits += 1;
        session.wait(slot);
        Ok(())
    }

    /// A command did what it should.
    #[inline]
    pub(super) fn done(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
    ) -> Result<(), Why> {
        let cid = session.slots[usize::from(slot)].sqe.cid.get();
        let cqe = session.queue.answer(cid, Status::SUCCESS, 0);
        session.answer(qp, slot, &cqe).map_err(|_| FULL)
    }

    /// A command did not do what it should.
    #[cold]
    pub(super) fn refuse(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        status: Status,
    ) -> Result<(), Why> {
        let sqe = session.slots[usize::from(slot)].sqe;
        self.target().note_io_error(&session.queue, &sqe, status);
        let cqe = session.queue.answer(sqe.cid.get(), status, 0);
        session.answer(qp, slot, &cqe).map_err(|_| FULL)
    }
}

/// A Write or a Compare whose data came in its capsule.
fn in_capsule(
    session: &Session,
    slot: u16,
    command: &IoCommand,
    store: &Backend,
    start: usize,
) -> Result<(), Status> {
    let len = command.len as usize;
    let mut stored = store.direct(command.offset, command.len).map_err(|_| NO_DATA)?;
    let given = session.slots[usize::from(slot)].recv.as_ref().ok_or(NO_DATA)?;
    let at = SQE_BYTES + start;
    if command.kind == Kind::Compare {
        return match backend::is_same(given, at, &stored, len) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::COMPARE_FAILURE.dnr()),
            Err(_) => Err(NO_DATA),
        };
    }
    stored.copy_from(0, given, at, len).map_err(|_| NO_DATA)
}

impl Buffers {
    /// A buffer, cut to `len` bytes, and its number.
    pub(super) fn take(&mut self, len: usize) -> Option<(u16, Buf)> {
        let index = self.free.pop()?;
        match self.piece(index, len) {
            Some(piece) => Some((index, piece)),
            None => {
                self.free.push(index);
                None
            }
        }
    }

    pub(super) fn piece(&self, index: u16, len: usize) -> Option<Buf> {
        let start = usize::from(index) * self.each;
        self.mr.buf(start..start + len.min(self.each)).ok()
    }

    /// Takes a buffer back.
    pub(super) fn free(&mut self, index: u16) {
        self.free.push(index);
    }

    /// Takes the buffers of a command back, if it has any.
    pub(super) fn give_back(&mut self, session: &mut Session, slot: u16) {
        let Some(it) = session.slots.get_mut(usize::from(slot)) else { return };
        match it.state {
            State::Reading(Some(index)) => self.free.push(index),
            State::Storing(index, other) => {
                self.free.push(index);
                self.free.extend(other);
            }
            State::Reading(None) | State::Calling => {}
            State::Free | State::Waiting | State::Held => return,
        }
        it.state = State::Reading(None);
    }
}
