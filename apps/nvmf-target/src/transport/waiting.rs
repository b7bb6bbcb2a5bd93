//! Commands that wait for room in the send queue, for a READ, or for a buffer.
//!
//! Those of a queue wait in order. What has begun may also wait for others that change the same
//! blocks, and those may stand behind it in the same queue: so it holds up nobody, and nobody holds
//! it up. What has not begun waits for all that has not begun and came before.
//!
//! Queues take turns, a command each: who is served stands behind the others, so none waits for
//! ever beside busy ones. While anybody waits for a buffer, who comes new does not take one of that
//! size, and stands behind, too. Where hosts of several addresses have queues on a core, none holds
//! more than three quarters of its buffers of a size.

use std::collections::VecDeque;

use ferrocx::verbs::{Buf, Qp};

use super::execute::Work;
use super::fused::Next;
use super::session::{Link, NEVER, Session, Slot, State, Why};
use super::{Server, is_io};
use crate::proto::status::Status;

/// Puts a queue into the line of those that wait, unless it stands there.
#[cold]
#[inline(never)]
pub(super) fn stand_in(line: &mut VecDeque<u32>, index: u32) {
    if !line.contains(&index) {
        line.push_back(index);
    }
}

/// What became of a command that waited.
enum Resumed {
    /// It waits no more.
    Went,
    /// It waits for room, for a READ, or for a buffer: so does whoever stands behind it.
    WaitsForRoom,
    /// It waits for the other half of its pair, or for those who change the same blocks.
    WaitsForOthers,
}

impl Server {
    /// Goes on with commands that wait: one of a queue, then one of the next, until nothing moves.
    /// Who waits on keeps its place, and who was served stands behind all others.
    #[cold]
    #[inline(never)]
    pub(super) fn resume(&mut self) {
        loop {
            self.work.buffers.begin_turn();
            self.work.effort.is_wanted = false;
            let mut has_moved = false;
            for _ in 0..self.stalled.len() {
                let Some(index) = self.stalled.pop_front() else { break };
                let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
                let was_served = self.work.resume(qp, session);
                has_moved |= was_served;
                if !session.link.waiting.is_empty() {
                    let line = if was_served { &mut self.served } else { &mut self.stalled };
                    line.push_back(index);
                }
            }
            self.stalled.append(&mut self.served);
            if !has_moved {
                return;
            }
        }
    }
}

impl Work {
    /// Goes on with a command of a queue, the one that has waited longest of those that can;
    /// whether one waits no more.
    pub(super) fn resume(&mut self, qp: &mut Qp, session: &mut Session) -> bool {
        let outcome = self.try_resume(qp, session);
        let has_moved = *outcome.as_ref().unwrap_or(&false);
        if has_moved || outcome.is_err() {
            self.touched(&mut session.link, outcome.map(drop));
        }
        has_moved
    }

    fn try_resume(&mut self, qp: &mut Qp, session: &mut Session) -> Result<bool, Why> {
        if session.link.ending.is_some() || !session.link.has_room(qp) {
            return Ok(false);
        }
        let (mut at, mut is_behind_new) = (0, false);
        while let Some(index) = session.link.waiting.get(at).copied() {
            let it = session.slots.get(usize::from(index));
            let is_new = it.is_none_or(|it| it.version == NEVER);
            // What it may do is the same as when it came to the gate.
            let stands_at_gate =
                it.is_some_and(|it| it.version == self.offer.version() && it.is_at_gate());
            if !(is_new && is_behind_new || stands_at_gate) {
                match self.resume_at(qp, session, at)? {
                    Resumed::Went => return Ok(true),
                    Resumed::WaitsForRoom => return Ok(false),
                    Resumed::WaitsForOthers => {}
                }
            }
            is_behind_new |= is_new;
            at += 1;
        }
        Ok(false)
    }

    /// Goes on with the command at a place in the line of its queue, which it keeps if it waits on.
    fn resume_at(&mut self, qp: &mut Qp, session: &mut Session, at: usize) -> Result<Resumed, Why> {
        let Some(index) = session.link.waiting.remove(at) else { return Ok(Resumed::Went) };
        let it = session.slots.get(usize::from(index));
        let queue = &session.link.queue;
        if it.is_some_and(|it| it.is_fused() && is_io(queue, it.sqe.opcode)) {
            match self.look_at_fused(qp, session, index)? {
                Next::Begin => {}
                Next::Answered => return Ok(Resumed::Went),
                Next::Wait => {
                    session.link.waiting.insert(at, index);
                    return Ok(Resumed::WaitsForOthers);
                }
            }
        }
        let Session { link, slots } = session;
        let Some(it) = slots.get_mut(usize::from(index)) else { return Ok(Resumed::Went) };
        let waits = (self.waits, self.buffer_waits);
        self.begin_late(qp, link, it)?;
        if it.state != State::Waiting {
            return Ok(Resumed::Went);
        }
        // It has waited all along.
        (self.waits, self.buffer_waits) = waits;
        link.waiting.pop_back();
        link.waiting.insert(at, index);
        Ok(if it.is_at_gate() { Resumed::WaitsForOthers } else { Resumed::WaitsForRoom })
    }

    /// Lets a command wait.
    #[cold]
    pub(super) fn wait(&mut self, link: &mut Link, it: &mut Slot) -> Result<(), Why> {
        self.waits += 1;
        link.wait(it);
        Ok(())
    }

    /// A buffer for a command that has none; `None` while others wait for one, and for a host that
    /// has its share.
    pub(super) fn take_buffer(&mut self, link: &Link, len: usize) -> Option<(u16, Buf)> {
        self.buffers.take_in_turn(len, link.host)
    }

    /// Lets a command wait for a buffer of so many bytes, if there will ever be one.
    #[cold]
    pub(super) fn wait_for_buffer(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        len: usize,
    ) -> Result<(), Why> {
        match self.buffers.is_there_any(len) {
            true => {
                self.buffers.crowd(len);
                self.buffer_waits += 1;
                self.wait(link, it)
            }
            false => self.refuse(qp, link, it, Status::INTERNAL),
        }
    }
}
