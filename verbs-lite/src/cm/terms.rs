//! [`Terms`]: what the two ends of a connection have agreed on, and so what their queue pairs are
//! set to.

use ferrocx_prm::mad::{CmRep, CmReq};

use super::conn::{Conn, caller_data};
use crate::gid::Path;
use crate::qp::{RtrAttr, RtsAttr};
use crate::types::{Mtu, Psn, Qpn};

/// The longest acknowledgement timeout of a called end: 4.3 s. Its peer names the timeout, and 0 is
/// "for ever": what was posted to a peer that is gone would not end.
const MAX_PASSIVE_TIMEOUT: u32 = 20;

/// What both ends have said.
pub(super) struct Terms {
    pub(super) is_active: bool,
    pub(super) req: CmReq,
    pub(super) rep: CmRep,
}

impl Terms {
    /// `None` until the called end has said something.
    pub(super) fn of(conn: &Conn) -> Option<Self> {
        let (req, rep) = (*conn.request, **conn.reply.as_ref()?);
        Some(Self { is_active: conn.is_active, req, rep })
    }

    /// READs and atomics that this end serves, and that it starts.
    pub(super) fn reads(&self) -> (u8, u8) {
        let (req, rep) = (&self.req, &self.rep);
        let (serves, starts) = match self.is_active {
            true => {
                (req.responder_resources(), req.initiator_depth().min(rep.responder_resources()))
            }
            false => (rep.responder_resources(), rep.initiator_depth()),
        };
        (serves as u8, starts as u8)
    }

    /// What the peer's program has said, filled up with zeros.
    pub(super) fn private_data(&self) -> Vec<u8> {
        if self.is_active { self.rep.private_data().to_vec() } else { caller_data(&self.req) }
    }

    /// The peer's queue pair.
    pub(super) fn remote_qpn(&self) -> Qpn {
        Qpn(if self.is_active { self.rep.local_qpn() } else { self.req.local_qpn() })
    }

    /// Repetitions that the peer asks for when no receive is posted.
    pub(super) fn rnr_retry_count(&self) -> u8 {
        let (req, rep) = (&self.req, &self.rep);
        (if self.is_active { rep.rnr_retry_count() } else { req.rnr_retry_count() }) as u8
    }

    /// Parameters of this end's queue pair. Source: IBTA vol. 1, 12.7; Linux `cm_req_handler` and
    /// `cm_rep_handler`.
    pub(super) fn attributes(&self, path: Path) -> (RtrAttr, RtsAttr) {
        let (req, rep) = (&self.req, &self.rep);
        let (caller, called) = (Psn(req.starting_psn()), Psn(rep.starting_psn()));
        let ack_timeout = req.primary_local_ack_timeout();
        let (remote, own, timeout) = match self.is_active {
            true => (called, caller, ack_timeout.max(rep.target_ack_delay() + 1).min(31)),
            false => (caller, called, passive_timeout(ack_timeout)),
        };
        let mtu = Mtu::from_code(req.path_packet_payload_mtu()).unwrap_or(Mtu::B256);
        let (max_dest_rd_atomic, max_rd_atomic) = self.reads();
        let rtr = RtrAttr { max_dest_rd_atomic, ..RtrAttr::new(path, self.remote_qpn(), own, mtu) };
        let rts = RtsAttr {
            timeout: timeout as u8,
            retry_count: req.retry_count() as u8,
            rnr_retry: self.rnr_retry_count(),
            max_rd_atomic,
            ..RtsAttr::new(remote)
        };
        (rtr, rts)
    }
}

/// The acknowledgement timeout of a called end whose peer asks for this one.
fn passive_timeout(asked: u32) -> u32 {
    if asked == 0 { MAX_PASSIVE_TIMEOUT } else { asked.min(MAX_PASSIVE_TIMEOUT) }
}

#[cfg(test)]
mod tests {
    use super::passive_timeout;

    #[test]
    fn no_peer_makes_a_called_end_wait_for_ever() {
        let asked_and_had = [(0, 20), (1, 1), (17, 17), (20, 20), (21, 20), (31, 20)];
        for (asked, had) in asked_and_had {
            assert_eq!(passive_timeout(asked), had, "asked for {asked}");
        }
    }
}
