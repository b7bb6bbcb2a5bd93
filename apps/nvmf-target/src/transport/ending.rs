//! How a session ends.

use std::time::Duration;

use ferrocx::verbs::Qp;

use super::session::{Link, Session};
use super::{Buffers, END_PATIENCE};

impl Link {
    /// Ends it for a failure.
    #[cold]
    pub(super) fn fail(&mut self, why: &'static str) {
        self.has_failed |= self.ending.is_none();
        self.end(why);
    }

    /// Whether its host has let data or answers wait for longer than `limit`: it posts no receives,
    /// or is gone. Of what holds something that others may need too, the oldest counts, so that one
    /// end now and then does not keep the rest; a send queue that is full is its own loss, and is
    /// given up when nothing of it ends at all.
    pub(super) fn is_stuck(&mut self, qp: &Qp, now: Duration, limit: Duration) -> bool {
        if std::mem::take(&mut self.is_heard) || self.has_room(qp) {
            self.heard_at = now;
        }
        let under_way = u64::from(self.reads) + self.pooled.len() as u64;
        self.owed.is_older(under_way, now, limit) || now.saturating_sub(self.heard_at) > limit
    }

    /// Ends it. The first reason counts.
    pub(super) fn end(&mut self, why: &'static str) {
        self.ending.get_or_insert(why);
    }
}

impl Session {
    /// Goes on with its end: the host is told, the queue pair is led into its error state, and
    /// everything posted comes back. Whether that is done.
    pub(super) fn is_over(&mut self, qp: &mut Qp, now: Duration, buffers: &mut Buffers) -> bool {
        let link = &mut self.link;
        if link.ending.is_none() {
            return false;
        }
        let Some(since) = link.ended_at else {
            link.ended_at = Some(now);
            if let Err(error) = link.connection.disconnect(&[]) {
                tracing::debug!(%error, "the host was not told");
            }
            if let Err(error) = qp.to_error() {
                tracing::debug!(%error, "queue pair not led to its error state");
            }
            return false;
        };
        // Every READ ends before its buffer is anybody else's.
        let is_late = now.saturating_sub(since) > END_PATIENCE;
        let is_done = link.outside == 0 && (!qp.has_outstanding() || is_late);
        if is_done {
            for it in &mut self.slots {
                buffers.give_back(it);
            }
        }
        is_done
    }
}
