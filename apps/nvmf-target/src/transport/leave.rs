//! How a host ends one I/O queue by a command (Disconnect): what had begun on it ends, the answer
//! says so, and the host has a second to end the connection before the target does.

use std::time::Duration;

use ferrocx::verbs::Qp;

use super::session::{Leave, Session, State};
use crate::controller::Target;
use crate::proto::status::Status;

/// How long the connection of a queue may stay behind its end.
const GRACE: Duration = Duration::from_secs(1);

impl Session {
    /// Goes on with a queue that its host disconnects.
    pub(super) fn look_after_leave(&mut self, qp: &mut Qp, target: &mut Target, now: Duration) {
        let (Some(leave), None) = (self.link.leave, self.link.ending) else { return };
        match leave {
            Leave::Asked(index) => {
                if self.is_busy() || self.link.outside > 0 {
                    return;
                }
                let Self { link, slots } = self;
                target.departed(&mut link.queue);
                link.leave = Some(Leave::Answered(now));
                let Some(it) = slots.get_mut(usize::from(index)) else { return };
                if it.state != State::Held {
                    return;
                }
                let cqe = link.queue.answer(it.sqe.cid.get(), Status::SUCCESS, 0);
                if let Err(why) = link.answer(qp, it, &cqe) {
                    link.fail(why);
                }
                qp.ring_doorbell();
            }
            Leave::Answered(since) if now.saturating_sub(since) > GRACE => {
                self.link.end("its host has disconnected it");
            }
            Leave::Answered(_) => {}
        }
    }
}
