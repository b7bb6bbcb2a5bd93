//! Commands that are none of I/O: the target says what is to be done with them.

use ferrocx::verbs::Qp;

use super::execute::Work;
use super::session::{Link, Slot, State, Why};
use super::{CUT_SHORT, NO_DATA};
use crate::controller::Action;
use crate::proto::sgl::Sgl;
use crate::proto::sqe::SQE_BYTES;
use crate::proto::status::Status;

impl Work {
    /// A command that is none of I/O.
    #[cold]
    pub(super) fn command(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
    ) -> Result<(), Why> {
        let sqe = it.sqe;
        let mut data = vec![0; it.received];
        if let Some(recv) = &it.recv {
            recv.copy_out(SQE_BYTES, &mut data).map_err(|_| CUT_SHORT)?;
        }
        let done = self.shared.ask(link, |target, queue| {
            target.command(queue, it.index, &sqe, &data, &mut self.page)
        });
        match done {
            Action::Answer(cqe) => link.answer(qp, it, &cqe),
            Action::Hold => {
                it.state = State::Held;
                Ok(())
            }
            Action::Bring { cqe, len, to } => {
                let Ok(mut page) = link.page(it, len as usize) else {
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
