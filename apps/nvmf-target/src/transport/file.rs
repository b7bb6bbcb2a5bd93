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

use super::execute::{Work, same};
use super::session::{Link, Session, Slot, State, Why, wr};
use super::{Backend, NO_DATA};
use crate::backend;
use crate::controller::Queue;
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
        link: &mut Link,
        it: &mut Slot,
        file: FileId,
    ) -> Result<(), Why> {
        let IoCommand { kind, offset, len, data, fua: is_durable, .. } = it.command;
        match (kind, data) {
            (Kind::Nothing, _) => self.end(qp, link, it, Ok(())),
            (Kind::Flush, _) => self.push(qp, link, it, (file, Request::Flush)),
            (Kind::Zero { may_deallocate: false }, _) => {
                self.push(qp, link, it, (file, Request::Zero { offset, len }))
            }
            (Kind::Zero { may_deallocate: true }, _) => {
                self.push(qp, link, it, (file, Request::Punch { offset, len }))
            }
            (Kind::Deallocate { ranges }, Data::Capsule { start, .. }) => {
                let Some(piece) = it.recv.take() else {
                    return self.refuse(qp, link, it, NO_DATA);
                };
                let parsed = self.ranges(&link.queue, it, (&piece, SQE_BYTES + start), ranges);
                it.recv = Some(piece);
                self.punch(qp, link, it, (file, parsed))
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
            _ => {
                let Some((index, mut piece)) = self.buffers.take(len as usize) else {
                    return self.wait(link, it);
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
                        self.push(qp, link, it, (file, write))
                    }
                    _ => {
                        it.state = State::Storing(index, None);
                        self.push(qp, link, it, (file, Request::Read { to: piece, offset }))
                    }
                }
            }
        }
    }

    /// The data of a command on a file have come by READ.
    pub(super) fn has_file_data(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        file: FileId,
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
                self.punch(qp, link, it, (file, parsed))
            }
            (Kind::Write, Some(index)) => {
                it.state = State::Storing(index, None);
                let Some(from) = self.buffers.piece(index, len) else {
                    self.buffers.give_back(it);
                    return self.refuse(qp, link, it, NO_DATA);
                };
                self.push(qp, link, it, (file, Request::Write { from, offset, is_durable }))
            }
            (Kind::Compare, Some(index)) => {
                let Some((other, to)) = self.buffers.take(len) else {
                    self.buffers.give_back(it);
                    return self.refuse(qp, link, it, Status::INTERRUPTED);
                };
                it.state = State::Storing(index, Some(other));
                self.push(qp, link, it, (file, Request::Read { to, offset }))
            }
            _ => {
                self.buffers.give_back(it);
                self.refuse(qp, link, it, NO_DATA)
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
    ) {
        let outcome = self.carry_on(qp, session, slot, result);
        self.touched(&mut session.link, outcome);
    }

    fn carry_on(
        &mut self,
        qp: &mut Qp,
        Session { link, slots }: &mut Session,
        slot: u16,
        result: &io::Result<()>,
    ) -> Result<(), Why> {
        link.in_files -= 1;
        let Some(it) = slots.get_mut(usize::from(slot)) else { return Ok(()) };
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
        let Backend::File(file) = store.backend else {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        };
        if let Err(error) = result {
            let is_lacking = error.raw_os_error() == Some(NOT_SUPPORTED);
            return match command.kind {
                // A hint that cannot be taken.
                Kind::Deallocate { .. } if is_lacking => self.end(qp, link, it, Ok(())),
                Kind::Zero { .. } if is_lacking => self.write_zeros(qp, link, it, file),
                kind => {
                    self.buffers.give_back(it);
                    self.refuse(qp, link, it, status_of(kind, error))
                }
            };
        }
        match (command.kind, it.state) {
            (Kind::Read, State::Storing(index, None)) => {
                let (Data::Host(to), Some(from)) =
                    (&command.data, self.buffers.piece(index, command.len as usize))
                else {
                    self.buffers.give_back(it);
                    return self.refuse(qp, link, it, NO_DATA);
                };
                link.write(qp, to, from)?;
                store.moved(link, it, Kind::Read, command.len);
                // The buffer is free when the answer behind its WRITE has ended.
                let cqe = link.queue.answer(it.sqe.cid.get(), Status::SUCCESS, 0);
                let signaled = (wr::POOL | u64::from(index), SendFlags::SIGNALED);
                link.answer_as(qp, it, &cqe, signaled)
            }
            (Kind::Compare, State::Storing(index, other)) => {
                let compared = self.compared(it, (index, other));
                self.buffers.give_back(it);
                self.end(qp, link, it, compared)
            }
            (Kind::Deallocate { .. }, _) if !it.ranges.is_empty() => {
                self.punch(qp, link, it, (file, Ok(())))
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

    /// Whether the data of a Compare are those of the file, which has been read: into its other
    /// buffer when the data came by READ, into its only one when they came in the capsule.
    fn compared(&self, it: &Slot, (index, other): (u16, Option<u16>)) -> Result<(), Status> {
        let len = it.command.len as usize;
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

    /// Writes zeros where the file system has no call for them.
    fn write_zeros(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        file: FileId,
    ) -> Result<(), Why> {
        let IoCommand { offset, fua: is_durable, .. } = it.command;
        let len = it.command.len as usize;
        let Some((index, mut from)) = self.buffers.take(len) else {
            return self.refuse(qp, link, it, Status::INTERRUPTED);
        };
        it.state = State::Storing(index, None);
        if backend::zero(&mut from, len).is_err() {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        }
        self.push(qp, link, it, (file, Request::Write { from, offset, is_durable }))
    }

    /// Reads the ranges of a command out of a piece; all of them are checked before any is begun.
    fn ranges(
        &self,
        queue: &Queue,
        it: &mut Slot,
        (piece, start): (&Buf, usize),
        count: u16,
    ) -> Result<(), Status> {
        let mut found = Vec::with_capacity(count.into());
        for at in (0..usize::from(count)).rev() {
            let mut bytes = [0; DSM_RANGE_BYTES];
            piece.copy_out(start + at * DSM_RANGE_BYTES, &mut bytes).map_err(|_| NO_DATA)?;
            let range = self.offer.dsm_range(queue, &it.sqe, &bytes)?;
            if range.1 > 0 {
                found.push(range);
            }
        }
        it.ranges = found;
        Ok(())
    }

    /// Lets the next range of a command go, if it has one.
    fn punch(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (file, parsed): (FileId, Result<(), Status>),
    ) -> Result<(), Why> {
        if let Err(status) = parsed {
            return self.refuse(qp, link, it, status);
        }
        match it.ranges.pop() {
            Some((offset, len)) => self.push(qp, link, it, (file, Request::Punch { offset, len })),
            None => self.end(qp, link, it, Ok(())),
        }
    }

    /// Puts a request into the ring. A full one is the host's to try again.
    fn push(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        (file, request): (FileId, Request),
    ) -> Result<(), Why> {
        if !matches!(it.state, State::Storing(..)) {
            it.state = State::Calling;
        }
        let Some(ring) = self.ring.as_mut() else {
            self.buffers.give_back(it);
            return self.refuse(qp, link, it, NO_DATA);
        };
        match ring.push(token(link.queue.id, it.index), file, request) {
            Ok(()) => {
                link.in_files += 1;
                Ok(())
            }
            Err(_) => {
                self.buffers.give_back(it);
                self.refuse(qp, link, it, Status::INTERRUPTED)
            }
        }
    }
}
