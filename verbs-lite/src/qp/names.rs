//! Numbers of a queue pair in its completion queues, which others had before: see [`crate::era`].

use super::complete::Earlier;
use super::{Qp, QpQueues, QpType};
use crate::belief::Belief;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::names::{Ends, Name, SPREAD};

impl<B: Buffers> Qp<B> {
    /// Sees to it that completions under its numbers are its own from now on.
    pub(super) fn take_names(&mut self, queues: &QpQueues<'_, B>) -> Result<(), VerbsError> {
        let &QpQueues { send_cq, recv_cq, .. } = queues;
        let (qpn, failed) = (self.qpn, self.objects.fails_as(self.qpn));
        self.ends.names.push(Name::take(&send_cq.core().names, (qpn, Ends::Sends))?);
        send_cq.forget(qpn, &[Ends::Sends]);
        let receivers = &self.pd.core.receivers;
        if self.ends.xrcd.is_some() {
            receivers.made(qpn);
            return Ok(());
        }
        let names = &recv_cq.core().names;
        let receives = match self.spread_index() {
            Some(index) => Name::take_spread(names, index)?,
            None => Name::take(names, (qpn, Ends::Receive))?,
        };
        self.ends.names.push(receives);
        self.ends.names.push(Name::take(names, (failed, Ends::FailedReceive))?);
        if let Some(srq) = &self.ends.srq {
            let core = recv_cq.core();
            let (since, goes_on) = receivers.made_shared(qpn, srq.owner(), &core.stamps);
            self.shared = Some(Belief::since(&core, qpn, since));
            if goes_on {
                self.begin_shared(&[recv_cq]);
                return Ok(());
            }
        } else if self.qp_type != QpType::Raw {
            receivers.made(qpn);
        } else {
            let recv_cq = recv_cq.core();
            let is_here = |owner, cq: Option<_>| match cq {
                Some(cq) => cq == recv_cq.stamps.source,
                None => recv_cq.names.has_domain(owner),
            };
            for number in [qpn, failed] {
                receivers.lost(number, is_here);
            }
        }
        self.forget_receives(recv_cq);
        Ok(())
    }

    /// Begins another life of a queue pair whose receives are shared: failures of before end
    /// receives as ever, and say nothing of its state. Of those that stand in a queue it must be in
    /// `cqs`.
    pub(super) fn begin_shared(&mut self, cqs: &[&Cq]) {
        let Some(shared) = &self.shared else { return };
        let cq = cqs.iter().find(|cq| shared.completes_in(&cq.core()));
        let standing = cq.map_or(0, |cq| cq.failed_receives(self.qpn));
        self.earlier = Earlier { since: shared.begin_era(), standing };
    }

    /// Completions of what was posted are nobody's, and struck out of `cqs`, its completion queues.
    /// For what stands there it has other room, as far as there is some.
    pub(super) fn forget_posted(&mut self, cqs: &[&Cq]) {
        for cq in cqs {
            let core = cq.core();
            if self.sq.belief.completes_in(&core) {
                let struck = cq.forget(self.qpn, &[Ends::Sends]);
                self.ends.send_share.struck(struck, cq);
            }
            // Receives of a shared queue end there, whatever becomes of who took them.
            if self.rq.as_ref().is_some_and(|rq| rq.belief.completes_in(&core)) {
                let struck = self.forget_receives(cq);
                if let Some(share) = &mut self.ends.recv_share {
                    share.struck(struck, cq);
                }
            }
        }
    }

    /// Strikes its receives out of a completion queue; how many they were.
    fn forget_receives(&self, cq: &Cq) -> u32 {
        let filled = match self.spread_index() {
            Some(index) => cq
                .strike(|it| (it.number, it.user_index, it.ends) == (SPREAD, index, Ends::Receive)),
            None => cq.forget(self.qpn, &[Ends::Receive]),
        };
        filled + cq.forget(self.objects.fails_as(self.qpn), &[Ends::FailedReceive])
    }
}
