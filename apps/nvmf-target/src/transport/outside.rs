//! Commands whose namespace is a file or an NVMe drive: data go through buffers of the pool, and
//! io_uring or the drive itself moves them between these and where they are kept. Below, both are
//! the store. So is memory whose blocks are to be read and written as one: a core copies there, and
//! the request ends at once.
//!
//! | command | steps |
//! |---|---|
//! | read | a buffer is filled from the store; WRITE and SEND; it is free when they have ended |
//! | write | READ into a buffer, or a copy out of the capsule; the store is written; SEND |
//! | write, by capsule, to memory | the memory is written out of the capsule; SEND |
//! | compare | READ into a buffer; the store is read into another; SEND |
//! | flush, zeros, ranges | the file system's call, or the drive's command; SEND |
//! | zeros on the medium | the same, and a flush behind it; SEND |

use ferrocx::verbs::{Buf, Qp, SendFlags};
use ferrocx_nvme::{Failure, Refused};
use ferrocx_uring::Request;

use super::execute::Work;
use super::session::{Link, Session, Slot, State, Why, wr};
use super::trouble::{Trouble, medium_error, same};
use super::{Backend, NO_DATA};
use crate::backend::{self, Outside};
use crate::controller::Queue;
use crate::controller::io::{DSM_RANGE_BYTES, Data, IoCommand, Kind};
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;
use crate::whole::Whole;

/// Memory that is not there any more.
const GONE: Trouble = Trouble::Refused(Refused::Gone);

/// The name of a command for its store.
pub(super) fn token(queue: u32, slot: u16) -> u64 {
    u64::from(queue) << 16 | u64::from(slot)
}

/// Whether what a command has under way brings what was written to the medium, so that its end says
/// whether it is there.
fn asks_the_medium(it: &Slot) -> bool {
    match it.command.kind {
        Kind::Flush => true,
        Kind::Write | Kind::Zero { .. } => it.command.fua && it.state != State::Calling,
        _ => false,
    }
}

impl Work {
    /// Begins a command on a store.
    pub(super) fn begin_outside(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        outside: Outside,
    ) -> Result<(), Why> {
        let IoCommand { kind, offset, len, data, fua: is_durable, .. } = it.command;
        if let Outside::Drive(drive) = outside
            && self.drives.is_away(drive)
        {
            return self.put_off(qp, link, it, medium_error(kind));
        }
        match (kind, data) {
            (Kind::Nothing, _) => self.end(qp, link, it, Ok(())),
            (Kind::Flush, _) => self.push(qp, link, it, (outside, Request::Flush)),
            (Kind::Zero { .. }, _) if outside == Outside::Whole && !self.effort.has_time() => {
                self.wait(link, it)
            }
            (Kind::Zero { is_written: true, .. }, _) => self.write_zeros(qp, link, it, outside),
            // A drive keeps the room of blocks that it may give back: zeros are what counts.
            (Kind::Zero { may_deallocate, .. }, _) => {
                let is_hole = may_deallocate && matches!(outside, Outside::File(_));
                let request = match is_hole {
                    true => Request::Punch { offset, len },
                    false => Request::Zero { offset, len },
                };
                self.push(qp, link, it, (outside, request))
            }
            (Kind::Deallocate { ranges }, Data::Capsule { start, .. }) => {
                let Some(piece) = it.recv.take() else {
                    return self.refuse(qp, link, it, NO_DATA);
                };
                let parsed = self.ranges(&link.queue, it, (&piece, SQE_BYTES + start), ranges);
                it.recv = Some(piece);
                self.punch(qp, link, it, (outside, parsed))
            }
            (Kind::Write | Kind::Deallocate { .. } | Kind::Compare, Data::Host(_))
                if !link.can_read() =>
            {
                self.wait(link, it)
            }
            (Kind::Deallocate { .. }, Data::Host(from)) => match link.page(it, from.len as usize) {
                Ok(to) => link.read(qp, it, &from, (to, None)),
                Err(_) => self.refuse(qp, link, it, NO_DATA),
            },
            (Kind::Write, Data::Capsule { start, .. }) if outside == Outside::Whole => {
                it.state = State::Calling;
                let written = self.write_capsule(it, start);
                self.carry_on(qp, link, it, &written)
            }
            _ => {
                let Some((index, mut piece)) = self.take_buffer(link, len as usize) else {
                    return self.wait_for_buffer(qp, link, it, len as usize);
                };
                match (kind, data) {
                    (Kind::Write | Kind::Compare, Data::Host(from)) => {
                        link.read(qp, it, &from, (piece, Some(index)))
                    }
                    (Kind::Write, Data::Capsule { start, .. }) => {
                        it.state = State::Storing(index, None);
                        let copied = it.recv.as_ref().is_some_and(|recv| {
                            piece.copy_from(0, recv, SQE_BYTES + start, len as usize).is_ok()
                        });
                        if !copied {
                            self.buffers.give_back(it);
                            return self.refuse(qp, link, it, NO_DATA);
                        }
                        let write = Request::Write { from: piece, offset, is_durable };
                        self.push(qp, link, it, (outside, write))
                    }
                    _ => {
                        it.state = State::Storing(index, None);
                        self.push(qp, link, it, (outside, Request::Read { to: piece, offset }))
                    }
                }
            }
        }
    }

    /// The data of a command on a store have come by READ.
    pub(super) fn has_outside_data(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        outside: Outside,
    ) -> Result<(), Why> {
        let State::Reading(buffer) = it.state else { return Ok(()) };
        let IoCommand { kind, offset, fua: is_durable, .. } = it.command;
        let len = it.command.len as usize;
        match (kind, buffer) {
            (Kind::Deallocate { ranges }, _) => {
                let parsed = match link.page(it, usize::from(ranges) * DSM_RANGE_BYTES) {
                    Ok(piece) => self.ranges(&link.queue, it, (&piece, 0), ranges),
                    Err(_) => Err(NO_DATA),
                };
                self.punch(qp, link, it, (outside, parsed))
            }
            (Kind::Write, Some(index)) => {
                it.state = State::Storing(index, None);
                let Some(from) = self.buffers.piece(index, len) else {
                    self.buffers.give_back(it);
                    return self.refuse(qp, link, it, NO_DATA);
                };
                self.push(qp, link, it, (outside, Request::Write { from, offset, is_durable }))
            }
            (Kind::Compare, Some(index)) => {
                let Some((other, to)) = self.buffers.take(len, link.host) else {
                    return self.put_off(qp, link, it, Status::INTERRUPTED);
                };
                it.state = State::Storing(index, Some(other));
                self.push(qp, link, it, (outside, Request::Read { to, offset }))
            }
            _ => {
                self.buffers.give_back(it);
                self.refuse(qp, link, it, NO_DATA)
            }
        }
    }

    /// A request to a store has ended.
    pub(super) fn outside_done(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        result: &Result<(), Trouble>,
    ) {
        let Session { link, slots } = session;
        link.outside -= 1;
        let Some(it) = slots.get_mut(usize::from(slot)) else { return };
        let outcome = self.carry_on(qp, link, it, result);
        self.touched(link, outcome);
    }

    /// Goes on with a command whose request to its store has ended.
    fn carry_on(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        result: &Result<(), Trouble>,
    ) -> Result<(), Why> {
        if let Err(Trouble::Failed(Failure::Stuck)) = result {
            self.buffers.lose(it);
        }
        let is_settled = asks_the_medium(it);
        if is_settled
            && let Err(Trouble::System(_)) = result
            && let Some(Some(store)) = self.backends.get(it.command.backend)
        {
            store.note_loss();
        }
        if link.ending.is_some() {
            self.buffers.give_back(it);
            return Ok(());
        }
        if let Err(status) = self.look_again(&link.queue, it) {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, status);
        }
        let command = it.command;
        let Some(Some(store)) = self.backends.get_mut(command.backend) else {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        };
        let Backend::Outside(outside) = store.backend else {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        };
        if let Err(error) = result {
            return self.troubled(qp, link, it, (outside, error));
        }
        if is_settled && store.has_losses() {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, Status::WRITE_FAULT.dnr());
        }
        match (command.kind, it.state) {
            (Kind::Read, State::Storing(index, None)) => {
                match (&command.data, self.buffers.piece(index, command.len as usize)) {
                    (Data::Host(to), Some(from)) => link.write(qp, to, from)?,
                    (Data::List(list), _) => {
                        match self.bring_from_buffer(qp, link, it, (*list, index)) {
                            Some(brought) => brought?,
                            // Answers of other commands leave no room for so many WRITEs.
                            None => return self.put_off(qp, link, it, Status::INTERRUPTED),
                        }
                        it.name_last_block(*list);
                    }
                    _ => {
                        self.buffers.give_back(it);
                        return self.refuse(qp, link, it, NO_DATA);
                    }
                }
                if let Some(Some(store)) = self.backends.get_mut(command.backend) {
                    store.moved(link, it, Kind::Read, command.len);
                }
                // The buffer is free when the answer behind its WRITE has ended.
                let cqe = link.queue.answer(it.sqe.cid.get(), Status::SUCCESS, 0);
                let signaled = (wr::POOL | u64::from(index), SendFlags::SIGNALED);
                link.pooled.push_back(index);
                link.answer_as(qp, it, &cqe, signaled)
            }
            (Kind::Compare, State::Storing(index, other)) => {
                let compared = self.compared(it, (index, other));
                self.buffers.give_back(it);
                self.end(qp, link, it, compared)
            }
            (Kind::Zero { .. }, State::Calling) if command.fua => {
                it.state = State::Settling;
                self.push(qp, link, it, (outside, Request::Flush))
            }
            (Kind::Deallocate { .. }, _) if !it.ranges.is_empty() => {
                self.punch(qp, link, it, (outside, Ok(())))
            }
            (kind, _) => {
                if kind == Kind::Write {
                    store.moved(link, it, kind, command.len);
                }
                self.buffers.give_back(it);
                self.end(qp, link, it, Ok(()))
            }
        }
    }

    /// Goes on with a command whose store did not do what it should.
    fn troubled(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (outside, error): (Outside, &Trouble),
    ) -> Result<(), Why> {
        if error.is_full() {
            self.buffers.give_back(it);
            return self.wait(link, it);
        }
        if error.will_pass() {
            return self.put_off(qp, link, it, error.status(it.command.kind));
        }
        match it.command.kind {
            // A hint that cannot be taken.
            Kind::Deallocate { .. } if error.is_lacking() => self.end(qp, link, it, Ok(())),
            Kind::Zero { may_deallocate, .. }
                if it.state == State::Calling && error.is_lacking() =>
            {
                it.command.kind = Kind::Zero { may_deallocate, is_written: true };
                self.write_zeros(qp, link, it, outside)
            }
            kind => {
                self.buffers.give_back(it);
                self.refuse(qp, link, it, error.status(kind))
            }
        }
    }

    /// Whether the data of a Compare are those of the store, which has been read: into its other
    /// buffer when the data came by READ, into its only one when they came in the capsule.
    fn compared(&mut self, it: &Slot, (index, other): (u16, Option<u16>)) -> Result<(), Status> {
        let len = it.command.len as usize;
        self.effort.spend(it.command.len);
        let one = self.buffers.piece(index, len).ok_or(NO_DATA)?;
        same(match (other, it.command.data) {
            (Some(other), _) => {
                let other = self.buffers.piece(other, len).ok_or(NO_DATA)?;
                backend::is_same(&one, 0, &other, len)
            }
            (None, Data::Capsule { start, .. }) => {
                let recv = it.recv.as_ref().ok_or(NO_DATA)?;
                backend::is_same(recv, SQE_BYTES + start, &one, len)
            }
            (None, _) => return Err(NO_DATA),
        })
    }

    /// Writes zeros where the store has no call for them.
    fn write_zeros(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        outside: Outside,
    ) -> Result<(), Why> {
        let IoCommand { offset, fua: is_durable, .. } = it.command;
        let len = it.command.len as usize;
        let Some((index, mut from)) = self.take_buffer(link, len) else {
            return self.wait_for_buffer(qp, link, it, len);
        };
        it.state = State::Storing(index, None);
        if backend::zero(&mut from, 0, len).is_err() {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        }
        self.push(qp, link, it, (outside, Request::Write { from, offset, is_durable }))
    }

    /// Ranges that may be deallocated are checked. RAM keeps them: hosts must not count on zeros.
    pub(super) fn check_ranges(
        &self,
        queue: &Queue,
        it: &Slot,
        piece: &Buf,
        start: usize,
        ranges: u16,
    ) -> Result<(), Status> {
        for at in 0..usize::from(ranges) {
            let mut bytes = [0; DSM_RANGE_BYTES];
            piece.copy_out(start + at * DSM_RANGE_BYTES, &mut bytes).map_err(|_| NO_DATA)?;
            self.offer.dsm_range(queue, &it.sqe, &bytes)?;
        }
        Ok(())
    }

    /// Reads the ranges of a command out of a piece; all of them are checked before any is begun.
    fn ranges(
        &self,
        queue: &Queue,
        it: &mut Slot,
        (piece, start): (&Buf, usize),
        count: u16,
    ) -> Result<(), Status> {
        it.ranges.clear();
        it.ranges.reserve(count.into());
        for at in (0..usize::from(count)).rev() {
            let mut bytes = [0; DSM_RANGE_BYTES];
            piece.copy_out(start + at * DSM_RANGE_BYTES, &mut bytes).map_err(|_| NO_DATA)?;
            let range = self.offer.dsm_range(queue, &it.sqe, &bytes)?;
            if range.1 > 0 {
                it.ranges.push(range);
            }
        }
        Ok(())
    }

    /// Lets the next range of a command go, if it has one.
    fn punch(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (outside, parsed): (Outside, Result<(), Status>),
    ) -> Result<(), Why> {
        if let Err(status) = parsed {
            return self.refuse(qp, link, it, status);
        }
        match it.ranges.pop() {
            Some((offset, len)) => {
                self.push(qp, link, it, (outside, Request::Punch { offset, len }))
            }
            None => self.end(qp, link, it, Ok(())),
        }
    }

    /// Gives a request to its store. For a full one the command waits.
    pub(super) fn push(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (outside, request): (Outside, Request),
    ) -> Result<(), Why> {
        if !matches!(it.state, State::Storing(..) | State::Settling) {
            it.state = State::Calling;
        }
        let token = token(link.queue.id, it.index);
        let pushed = match (outside, self.ring.as_mut()) {
            (Outside::File(file), Some(ring)) => {
                ring.push(token, file, request).map_err(|_| Refused::Full)
            }
            (Outside::File(_), None) => Err(Refused::Gone),
            (Outside::Drive(drive), _) => self.drives.push(token, drive, &request),
            (Outside::Whole, _) => {
                self.effort.spend(it.command.len);
                let result = self.copy(it.command.backend, request);
                return self.carry_on(qp, link, it, &result);
            }
        };
        match pushed {
            Ok(()) => {
                link.outside += 1;
                Ok(())
            }
            Err(refused) => self.troubled(qp, link, it, (outside, &Trouble::Refused(refused))),
        }
    }

    /// Carries a request out for memory whose blocks are read and written as one. Like other memory
    /// it keeps what hosts deallocate, and has no medium behind it.
    fn copy(&self, place: usize, request: Request) -> Result<(), Trouble> {
        let whole = self.whole(place)?;
        let done = match request {
            Request::Read { mut to, offset } => whole.read(&mut to, offset),
            Request::Write { from, offset, .. } => {
                whole.write((&from, 0), (offset, from.len() as u64))
            }
            Request::Zero { offset, len } => whole.zero(offset, len),
            Request::Punch { .. } => return Err(Trouble::Refused(Refused::Unsupported)),
            Request::Flush => Ok(()),
        };
        // Memory that was taken back: all else was checked.
        done.map_err(|_| GONE)
    }

    /// Writes data that came in their capsule to such memory: there is no need of a buffer.
    fn write_capsule(&self, it: &Slot, start: usize) -> Result<(), Trouble> {
        let from = (it.recv.as_ref().ok_or(GONE)?, SQE_BYTES + start);
        let to = (it.command.offset, it.command.len);
        self.whole(it.command.backend)?.write(from, to).map_err(|_| GONE)
    }

    /// Such memory.
    fn whole(&self, place: usize) -> Result<&Whole, Trouble> {
        let store = self.backends.get(place).and_then(Option::as_ref);
        store.and_then(|it| it.rare.whole.as_ref()).ok_or(GONE)
    }
}
