//! Commands that hosts want taken back, where they wait: for room, for a buffer, for a READ, for a
//! place at a gate, or for a drive that is reset. Those that a store or the port has begun go on,
//! and a fused pair that waits for its second half.

use ferrocx::verbs::Qp;

use super::execute::Work;
use super::session::{Session, State};
use super::{Server, place};
use crate::controller::abort::Aborting;
use crate::proto::sqe::Fuse;
use crate::proto::status::Status;

impl Server {
    /// Takes a command of a queue back, and says whether it could.
    pub(super) fn abort(&mut self, it: Aborting) {
        let found = self.sessions.get_mut(place(it.queue));
        let is_done = found.is_some_and(|(qp, session)| self.work.abort(qp, session, it.cid));
        self.shared.lock().aborted(it, is_done);
    }
}

impl Work {
    fn abort(&mut self, qp: &mut Qp, Session { link, slots }: &mut Session, cid: u16) -> bool {
        if link.ending.is_some() {
            return false;
        }
        let is_it = |it: &&mut super::session::Slot| {
            it.state != State::Free && it.sqe.cid.get() == cid && it.sqe.fuse() == Fuse::No
        };
        let Some(it) = slots.iter_mut().find(is_it) else { return false };
        let index = it.index;
        match it.state {
            State::Waiting => link.waiting.retain(|at| *at != index),
            State::PutOff => link.put_off = link.put_off.saturating_sub(1),
            State::Reading(None) => {
                let before = link.line.waiting();
                link.line.retain(|at| at != index);
                if link.line.waiting() == before {
                    return false;
                }
            }
            _ => return false,
        }
        let outcome = self.refuse(qp, link, it, Status::ABORTED);
        self.touched(link, outcome);
        true
    }
}
