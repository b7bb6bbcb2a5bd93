//! Numbers of a queue pair in its completion queues, which others had before: see [`crate::era`].

use super::{Qp, QpQueues, QpType};
use crate::belief::{Belief, Name};
use crate::cq::{Cq, Ends};
use crate::error::VerbsError;
use crate::mr::Buffers;

impl<B: Buffers> Qp<B> {
    /// Sees to it that completions under its numbers are its own from now on.
    pub(super) fn take_names(&mut self, queues: &QpQueues<'_, B>) -> Result<(), VerbsError> {
        let &QpQueues { send_cq, recv_cq, .. } = queues;
        let (qpn, failed) = (self.qpn, self.objects.fails_as(self.qpn));
        self.ends.names.push(Name::take(&send_cq.core(), (qpn, Ends::Sends))?);
        send_cq.forget(qpn, &[Ends::Sends]);
        let receivers = &self.pd.core.receivers;
        if self.ends.xrcd.is_some() {
            receivers.made(qpn);
            return Ok(());
        }
        let receives = match self.spread_index() {
            Some(index) => Name::take_spread(&recv_cq.core(), index)?,
            None => Name::take(&recv_cq.core(), (qpn, Ends::Receive))?,
        };
        self.ends.names.push(receives);
        self.ends.names.push(Name::take(&recv_cq.core(), (failed, Ends::FailedReceive))?);
        if let Some(srq) = &self.ends.srq {
            let recv_cq = recv_cq.core();
            let (since, goes_on) = receivers.made_shared(qpn, srq.owner(), &recv_cq.stamps);
            self.shared = Some(Belief::since(&recv_cq, qpn, since));
            if goes_on {
                return Ok(());
            }
        } else if self.qp_type != QpType::Raw {
            receivers.made(qpn);
        }
        self.forget_receives(recv_cq);
        Ok(())
    }

    /// Completions of what was posted are nobody's, and struck out of `cqs`, its completion queues.
    pub(super) fn forget_posted(&mut self, cqs: &[&Cq]) {
        for cq in cqs {
            let core = cq.core();
            if self.sq.belief.completes_in(&core) {
                cq.forget(self.qpn, &[Ends::Sends]);
            }
            // Receives of a shared queue end there, whatever becomes of who took them.
            if self.rq.as_ref().is_some_and(|rq| rq.belief.completes_in(&core)) {
                self.forget_receives(cq);
            }
        }
    }

    /// Strikes its receives out of a completion queue.
    fn forget_receives(&self, cq: &Cq) {
        match self.spread_index() {
            Some(index) => cq.forget_spread(index),
            None => cq.forget(self.qpn, &[Ends::Receive]),
        }
        cq.forget(self.objects.fails_as(self.qpn), &[Ends::FailedReceive]);
    }
}
