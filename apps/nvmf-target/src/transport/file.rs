//! Commands whose namespace is a file: data go through buffers of the pool, and io_uring moves them
//! between these and the file.
//!
//! | command | steps |
//! |---|---|
//! | read | a buffer is filled from the file; WRITE and SEND; it is free when they have ended |
//! | write | READ into a buffer, or a copy out of the capsule; the file is written; SEND |
//! | compare | READ into a buffer; the file is read into another; SEND |
//! | flush, zeros, ranges | the file system's call; SEND |

use std::io;

use ferrocx::verbs::{Buf, Qp, SendFlags};
use ferrocx_uring::{FileId, Request};

use super::execute::{Why, Work};
use super::session::{Session, State, wr};
use super::{FULL, NO_DATA};
use crate::backend;
use crate::controller::io::{DSM_RANGE_BYTES, Data, IoCommand, Kind};
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;

/// What the system says where a file system lacks a call. Source: `errno.h`.
const NOT_SUPPORTED: i32 = 95;
/// What it says where there is no room left.
const NO_ROOM: i32 = 28;

/// The status of what a file system said.
fn status_of(kind: Kind, error: &io::Error) -> Status {
    match kind {
        _ if error.raw_os_error() == Some(NO_ROOM) => Status::CAPACITY,
        Kind::Read | Kind::Compare | Kind::Verify => Status::READ_ERROR,
        _ => Status::WRITE_FAULT,
    }
}

/// The name of a command in the ring.
pub(super) fn token(queue: u32, slot: u16) -> u64 {
    u64::from(queue) << 16 | u64::from(slot)
}

impl Work {
    /// Begins a command on a file.
    pub(super) fn begin_file(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        (command, file): (&IoCommand, FileId),
    ) -> Result<(), Why> {
        let (offset, len) = (command.offset, command.len);
        let at = usize::from(slot);
        match (command.kind, &command.data) {
            (Kind::Nothing, _) => self.done(qp, session, slot),
            (Kind::Flush, _) => self.push(qp, session, slot, (file, Request::Flush)),
            (Kind::Zero { may_deallocate: false }, _) => {
                self.push(qp, session, slot, (file, Request::Zero { offset, len }))
            }
            (Kind::Zero { may_deallocate: true }, _) => {
                self.push(qp, session, slot, (file, Request::Punch { offset, len }))
            }
            (Kind::Deallocate { ranges }, Data::Capsule { start, .. }) => {
                let Some(piece) = session.slots[at].recv.take() else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                let parsed = self.ranges(session, slot, (&piece, SQE_BYTES + start), ranges);
                session.slots[at].recv = Some(piece);
                self.punch(qp, session, slot, (file, parsed))
            }
            (Kind::Write | Kind::Deallocate { .. }, Data::Host(_)) if !session.can_read() => {
                self.wait(session, slot)
            }
            (Kind::Deallocate { .. }, Data::Host(from)) => {
                let Ok(to) = session.page(slot, from.len as usize) else {
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.read(qp, slot, from, (to, None)).map_err(|_| FULL)
            }
            (Kind::Compare, Data::Host(_)) if !session.can_read() => self.wait(session, slot),
            (_, data) => {
                let Some((index, mut piece)) = self.buffers.take(len as usize) else {
                    return self.wait(session, slot);
                };
                match (command.kind, data) {
                    (Kind::Write | Kind::Compare, Data::Host(from)) => {
                        session.read(qp, slot, from, (piece, Some(index))).map_err(|_| FULL)
                    }
                    (Kind::Write, Data::Capsule { start, .. }) => {
                        session.slots[at].state = State::Storing(index, None);
                        let copied = session.slots[at].recv.as_ref().is_some_and(|recv| {
                            piece.copy_from(0, recv, SQE_BYTES + start, len as usize).is_ok()
                        });
                        if !copied {
                            self.buffers.give_back(session, slot);
                            return self.refuse(qp, session, slot, NO_DATA);
                        }
                        let is_durable = command.fua;
                        let write = Request::Write { from: piece, offset, is_durable };
                        self.push(qp, session, slot, (file, write))
                    }
                    _ => {
                        session.slots[at].state = State::Storing(index, None);
                        let read = Request::Read { to: piece, offset };
                        self.push(qp, session, slot, (file, read))
                    }
                }
            }
        }
    }

    /// The data of a command on a file have come by READ.
    pub(super) fn has_file_data(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        (command, file): (&IoCommand, FileId),
    ) -> Result<(), Why> {
        let State::Reading(buffer) = session.slots[usize::from(slot)].state else { return Ok(()) };
        let (offset, len) = (command.offset, command.len as usize);
        match (command.kind, buffer) {
            (Kind::Deallocate { ranges }, _) => {
                let parsed = match session.page(slot, usize::from(ranges) * DSM_RANGE_BYTES) {
                    Ok(piece) => self.ranges(session, slot, (&piece, 0), ranges),
                    Err(_) => Err(NO_DATA),
                };
                self.punch(qp, session, slot, (file, parsed))
            }
            (Kind::Write, Some(index)) => {
                session.slots[usize::from(slot)].state = State::Storing(index, None);
                let Some(from) = self.buffers.piece(index, len) else {
                    self.buffers.give_back(session, slot);
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                let write = Request::Write { from, offset, is_durable: command.fua };
                self.push(qp, session, slot, (file, write))
            }
            (Kind::Compare, Some(index)) => {
                let Some((other, to)) = self.buffers.take(len) else {
                    self.buffers.give_back(session, slot);
                    return self.refuse(qp, session, slot, Status::INTERRUPTED);
                };
                session.slots[usize::from(slot)].state = State::Storing(index, Some(other));
                self.push(qp, session, slot, (file, Request::Read { to, offset }))
            }
            _ => {
                self.buffers.give_back(session, slot);
                self.refuse(qp, session, slot, NO_DATA)
            }
        }
    }

    /// A request of the ring has ended.
    pub(super) fn file_done(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        result: &io::Result<()>,
    ) -> Result<(), Why> {
        session.in_files -= 1;
        let Some(it) = session.slots.get(usize::from(slot)) else { return Ok(()) };
        let (cid, state) = (it.sqe.cid.get(), it.state);
        if session.ending.is_some() {
            self.buffers.give_back(session, slot);
            return Ok(());
        }
        let command = match self.checked(session, slot) {
            Ok(command) => command,
            Err(status) => {
                self.buffers.give_back(session, slot);
                return self.refuse(qp, session, slot, status);
            }
        };
        let Some(backend::Backend::File(file)) = self.backend(command.backend) else {
            self.buffers.give_back(session, slot);
            return self.refuse(qp, session, slot, NO_DATA);
        };
        let file = *file;
        if let Err(error) = result {
            let is_lacking = error.raw_os_error() == Some(NOT_SUPPORTED);
            return match command.kind {
                // A hint that cannot be taken.
                Kind::Deallocate { .. } if is_lacking => self.done(qp, session, slot),
                Kind::Zero { .. } if is_lacking => {
                    self.write_zeros(qp, session, slot, (&command, file))
                }
                kind => {
                    self.buffers.give_back(session, slot);
                    self.refuse(qp, session, slot, status_of(kind, error))
                }
            };
        }
        match (command.kind, state) {
            (Kind::Read, State::Storing(index, None)) => {
                let (Data::Host(to), Some(from)) =
                    (&command.data, self.buffers.piece(index, command.len as usize))
                else {
                    self.buffers.give_back(session, slot);
                    return self.refuse(qp, session, slot, NO_DATA);
                };
                session.write(qp, to, from).map_err(|_| FULL)?;
                self.moved(session, slot, &command);
                // The buffer is free when the answer behind its WRITE has ended.
                let cqe = session.queue.answer(cid, Status::SUCCESS, 0);
                let signaled = (wr::POOL | u64::from(index), SendFlags::SIGNALED);
                session.answer_as(qp, slot, &cqe, signaled).map_err(|_| FULL)
            }
            (Kind::Compare, State::Storing(index, other)) => {
                let compared = self.compared(session, slot, &command, (index, other));
                self.buffers.give_back(session, slot);
                match compared {
                    Ok(()) => self.done(qp, session, slot),
                    Err(status) => self.refuse(qp, session, slot, status),
                }
            }
            (Kind::Deallocate { .. }, _) if !session.slots[usize::from(slot)].ranges.is_empty() => {
                self.punch(qp, session, slot, (file, Ok(())))
            }
            (kind, _) => {
                if kind == Kind::Write {
                    self.moved(session, slot, &command);
                }
                self.buffers.give_back(session, slot);
                self.done(qp, session, slot)
            }
        }
    }

    /// Whether the data of a Compare are those of the file, which has been read: into its other
    /// buffer when the data came by READ, into its only one when they came in the capsule.
    fn compared(
        &self,
        session: &Session,
        slot: u16,
        command: &IoCommand,
        (index, other): (u16, Option<u16>),
    ) -> Result<(), Status> {
        let len = command.len as usize;
        let one = self.buffers.piece(index, len).ok_or(NO_DATA)?;
        let is_same = match (other, &command.data) {
            (Some(other), _) => {
                let other = self.buffers.piece(other, len).ok_or(NO_DATA)?;
                backend::is_same(&one, 0, &other, len)
            }
            (None, Data::Capsule { start, .. }) => {
                let recv = session.slots[usize::from(slot)].recv.as_ref().ok_or(NO_DATA)?;
                backend::is_same(recv, SQE_BYTES + start, &one, len)
            }
            (None, _) => return Err(NO_DATA),
        };
        match is_same {
            Ok(true) => Ok(()),
            Ok(false) => Err(Status::COMPARE_FAILURE.dnr()),
            Err(_) => Err(NO_DATA),
        }
    }

    /// Writes zeros where the file system has no call for them.
    fn write_zeros(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        (command, file): (&IoCommand, FileId),
    ) -> Result<(), Why> {
        let len = command.len as usize;
        let Some((index, mut from)) = self.buffers.take(len) else {
            return self.refuse(qp, session, slot, Status::INTERRUPTED);
        };
        session.slots[usize::from(slot)].state = State::Storing(index, None);
        if backend::zero(&mut from, len).is_err() {
            self.buffers.give_back(session, slot);
            return self.refuse(qp, session, slot, NO_DATA);
        }
        let write = Request::Write { from, offset: command.offset, is_durable: command.fua };
        self.push(qp, session, slot, (file, write))
    }

    /// Reads the ranges of a command out of a piece; all of them are checked before any is begun.
    fn ranges(
        &self,
        session: &mut Session,
        slot: u16,
        (piece, start): (&Buf, usize),
        count: u16,
    ) -> Result<(), Status> {
        let sqe = session.slots[usize::from(slot)].sqe;
        let mut found = Vec::with_capacity(count.into());
        for at in (0..usize::from(count)).rev() {
            let mut bytes = [0; DSM_RANGE_BYTES];
            piece.copy_out(start + at * DSM_RANGE_BYTES, &mut bytes).map_err(|_| NO_DATA)?;
            let range = self.offer.dsm_range(&session.queue, &sqe, &bytes)?;
            if range.1 > 0 {
                found.push(range);
            }
        }
        session.slots[usize::from(slot)].ranges = found;
        Ok(())
    }

    /// Lets the next range of a command go, if it has one.
    fn punch(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        (file, parsed): (FileId, Result<(), Status>),
    ) -> Result<(), Why> {
        if let Err(status) = parsed {
            return self.refuse(qp, session, slot, status);
        }
        match session.slots[usize::from(slot)].ranges.pop() {
            Some((offset, len)) => {
                self.push(qp, session, slot, (file, Request::Punch { offset, len }))
            }
            None => self.done(qp, session, slot),
        }
    }

    /// Puts a request into the ring. A full one is the host's to try again.
    fn push(
        &mut self,
        qp: &mut Qp,
        session: &mut Session,
        slot: u16,
        (file, request): (FileId, Request),
    ) -> Result<(), Why> {
        let it = &mut session.slots[usize::from(slot)];
        if !matches!(it.state, State::Storing(..)) {
            it.state = State::Calling;
        }
        let Some(ring) = self.ring.as_mut() else {
            self.buffers.give_back(session, slot);
            return self.refuse(qp, session, slot, NO_DATA);
        };
        match ring.push(token(session.queue.id, slot), file, request) {
            Ok(()) => {
                session.in_files += 1;
                Ok(())
            }
            Err(_) => {
                self.buffers.give_back(session, slot);
                self.refuse(qp, session, slot, Status::INTERRUPTED)
            }
        }
    }
}
