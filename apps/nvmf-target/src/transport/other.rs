//! Commands that are none of I/O: the target says what is to be done with them.

use ferrocx::verbs::{Buf, Qp, SendFlags};

use super::execute::Work;
use super::session::{Leave, Link, Slot, State, Why, wr};
use super::{CUT_SHORT, NO_DATA};
use crate::controller::{Action, Role};
use crate::proto::sgl::{Keyed, Sgl};
use crate::proto::sqe::{Cqe, SQE_BYTES, Sqe, admin, fabrics};
use crate::proto::status::Status;

/// Whether a command of an admin queue needs neither a buffer nor a READ: none that waits for one
/// holds it up, since admin commands have no order.
fn needs_nothing(sqe: &Sqe) -> bool {
    match sqe.opcode {
        admin::KEEP_ALIVE | admin::ASYNC_EVENT | admin::ABORT => true,
        admin::FABRICS => matches!(sqe.fctype(), fabrics::PROPERTY_GET | fabrics::PROPERTY_SET),
        _ => false,
    }
}

impl Work {
    /// A command has come for which there is no room, or whose queue has others that wait.
    #[cold]
    #[inline(never)]
    pub(super) fn stand_behind(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
    ) -> Result<(), Why> {
        let is_admin = matches!(link.queue.role, Role::Admin(_));
        match is_admin && link.has_room(qp) && needs_nothing(&it.sqe) {
            true => self.command(qp, link, it),
            false => self.wait(link, it),
        }
    }

    /// A command that is none of I/O.
    #[cold]
    pub(super) fn command(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
    ) -> Result<(), Why> {
        let sqe = it.sqe;
        let asked = Keyed::parse(&sqe.sgl).map_or(0, |keyed| keyed.len as usize);
        // What it may bring is made once, so the room for it is had before.
        let is_long = asked > link.page_bytes
            && asked <= self.buffers.most_bytes()
            && self.target().may_bring_more(&link.queue, &sqe);
        let long = match is_long {
            true => match self.take_buffer(link, asked) {
                Some(buffer) => Some(buffer),
                None => return self.wait_for_buffer(qp, link, it, asked),
            },
            false => None,
        };
        let mut data = vec![0; it.received];
        if let Some(recv) = &it.recv {
            recv.copy_out(SQE_BYTES, &mut data).map_err(|_| CUT_SHORT)?;
        }
        let done = self.shared.ask(link, |target, queue| {
            target.command(queue, it.index, &sqe, &data, &mut self.page)
        });
        let done = match (long, done) {
            (Some(long), Action::Bring { cqe, len, to }) => {
                return self.bring_long(qp, link, it, (long, &cqe, len, &to));
            }
            (Some((index, _)), done) => {
                self.buffers.free(index);
                done
            }
            (None, done) => done,
        };
        match done {
            Action::Answer(cqe) => link.answer(qp, it, &cqe),
            Action::Hold => {
                it.state = State::Held;
                Ok(())
            }
            Action::Leave => {
                it.state = State::Held;
                link.leave.get_or_insert(Leave::Asked(it.index));
                Ok(())
            }
            Action::Bring { cqe, len, to } => {
                let page = link.page(it, len as usize).ok();
                // One whose queue has been made ready since it was asked for has no buffer.
                let Some(mut page) = page.filter(|page| page.len() == len as usize) else {
                    return self.refuse(qp, link, it, NO_DATA);
                };
                page.copy_in(0, &self.page[..len as usize]).map_err(|_| "a page is too long")?;
                link.write(qp, &to, page)?;
                link.answer(qp, it, &cqe)
            }
            Action::Fetch { .. } if !link.can_read() => self.wait(link, it),
            Action::Fetch { from, len } => match link.page(it, len as usize) {
                Ok(page) => link.read(qp, it, &from, (page, None)),
                Err(_) => self.refuse(qp, link, it, NO_DATA),
            },
        }
    }

    /// Brings what is longer than a command's own page out of a buffer, which is free when the
    /// answer behind it has ended.
    fn bring_long(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        ((index, mut page), cqe, len, to): ((u16, Buf), &Cqe, u32, &Keyed),
    ) -> Result<(), Why> {
        let copied = page.copy_in(0, &self.page[..len as usize]);
        if copied.is_err() || page.len() != len as usize {
            self.buffers.free(index);
            return self.refuse(qp, link, it, NO_DATA);
        }
        link.write(qp, to, page)?;
        link.pooled.push_back(index);
        let signaled = (wr::POOL | u64::from(index), SendFlags::SIGNALED);
        link.answer_as(qp, it, cqe, signaled)
    }

    /// The data that a command other than I/O asked for have come.
    #[cold]
    pub(super) fn fetched(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
    ) -> Result<(), Why> {
        let len = Sgl::parse(&it.sqe.sgl).map_or(0, |sgl| sgl.len() as usize);
        let data = link.page(it, len).map_err(|_| "a page is too long")?.to_vec();
        let done =
            self.shared.ask(link, |target, queue| target.fetched(queue, it.index, &it.sqe, &data));
        match done {
            Action::Hold => {
                it.state = State::Held;
                Ok(())
            }
            Action::Answer(cqe) => link.answer(qp, it, &cqe),
            _ => self.refuse(qp, link, it, Status::INTERNAL),
        }
    }
}
