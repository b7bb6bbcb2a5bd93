//! Commands that are put off: what they need is not there now, and will be.
//!
//! A drive that is reset takes nothing and ends what was under way, one that is there may say that
//! it cannot now, and a second buffer may be missing. The command lets go of its buffers, its
//! answer is not sent, and every 20 ms it is begun from its start: data come from the host once
//! more, or out of the capsule, which stays as it is until the answer. Meanwhile commands for other
//! namespaces go on, and the host's queue limits what can be put off. After
//! [`ServerConfig::patience`] it ends with an error.
//!
//! [`ServerConfig::patience`]: super::ServerConfig::patience
//!
//! # Commands whose fate is unknown
//!
//! Of what was under way in a drive that was reset nobody knows whether it was carried out, in
//! whole or in part. Each may be carried out again, because its second run leaves what its only run
//! would have left:
//!
//! | command | carried out twice |
//! |---|---|
//! | Read, Verify, Compare | changes nothing |
//! | Write | the same bytes at the same place, from memory that is the command's until its answer |
//! | Write Zeroes, Dataset Management | the same zeros, or the same leave to forget |
//! | Flush | what was to be on the medium is there |
//!
//! Another command for the same blocks that has ended between the two runs was under way beside
//! this one, since this one was not answered: hosts are promised no order between the two, and one
//! that repeats a command itself after an error has the same.

use std::time::Instant;

use ferrocx::verbs::Qp;

use super::Server;
use super::execute::Work;
use super::session::{Link, Session, Slot, State, Why};
use crate::proto::status::Status;

impl Work {
    /// Puts a command off that nobody works on any more; one that was put off for too long ends
    /// with `at_last`.
    #[cold]
    pub(super) fn put_off(
        &mut self,
        qp: &mut Qp,
        link: &mut Link,
        it: &mut Slot,
        at_last: Status,
    ) -> Result<(), Why> {
        self.buffers.give_back(it);
        let is_new = it.put_off_since.is_none();
        let since = *it.put_off_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.patience {
            return self.refuse(qp, link, it, at_last);
        }
        self.waits += u64::from(is_new);
        it.state = State::PutOff;
        link.put_off += 1;
        Ok(())
    }

    /// Begins commands of a queue again that were put off.
    fn begin_again(&mut self, qp: &mut Qp, Session { link, slots }: &mut Session) {
        link.put_off = 0;
        for it in slots.iter_mut().filter(|it| it.state == State::PutOff) {
            if link.ending.is_some() {
                return;
            }
            if !link.has_room(qp) {
                link.put_off += 1;
                continue;
            }
            let outcome = self.begin_late(qp, link, it);
            self.touched(link, outcome);
        }
    }
}

impl Server {
    /// Begins commands again that were put off.
    pub(super) fn begin_again(&mut self) {
        for (qp, session) in self.sessions.iter_mut().filter(|(_, it)| it.link.put_off > 0) {
            self.work.begin_again(qp, session);
        }
    }
}
