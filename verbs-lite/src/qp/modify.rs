//! Transitions of queue pairs, and what the device says of their state.

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::qp::{
    Init2rtrQp, ModifyQpToErr, ModifyQpToRst, QueryQp, Rst2initQp, Rtr2rtsQp, Sqerr2rtsQp,
};
use ferrocx_prm::qpc::{Ads, PM_STATE_MIGRATED, Qpc, service};

use super::attr::{InitAttr, RtrAttr, RtsAttr, log_reads};
use super::change::grant;
use super::raw::Objects;
use super::{Qp, QpState, QpType};
use crate::command::Execute;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::types::{Mtu, Psn};

/// log2 of the packets after which an acknowledgement is asked for. Source: reference 5.2, Linux.
const LOG_ACK_REQ_FREQ: u32 = 8;
/// `log_msg_max` of datagrams. Source: reference 5.2.
const LOG_MSG_UD: u32 = 12;
const LOG_MSG_GSI: u32 = 8;
/// MTU of datagrams: the largest, each must fit the port anyway, as where no packet is sent; of the
/// general services the smallest, 256 bytes.
const MTU_UD: Mtu = Mtu::B4096;
const MTU_GSI: Mtu = Mtu::B256;

impl<B: Buffers> Qp<B> {
    /// Checks that the queue pair is in the state that a step starts from.
    pub(crate) fn expect(&self, needs: QpState) -> Result<(), VerbsError> {
        if self.state == needs {
            return Ok(());
        }
        Err(VerbsError::WrongState { is: self.state, needs })
    }

    /// What the context of every step says.
    pub(super) fn context(&self) -> Qpc {
        Qpc::zeroed().with_st(self.st).with_pm_state(PM_STATE_MIGRATED)
    }

    pub(super) fn execute<C: Command>(&self, input: &C::In) -> Result<C::Out, VerbsError> {
        Ok(self.pd.core.device().execute::<C>(input, &[], &mut [])?)
    }

    /// Reset to INIT: from here on receives may be posted. Raw packets have no use for `attr`.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`], [`VerbsError::CqTooSmall`] after [`Qp::abandon`], while so many
    /// completions of before stand in a queue that it may overrun: take them, and abandon it once
    /// more. Or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "to_init")]
    pub fn init(&mut self, attr: &InitAttr) -> Result<(), VerbsError> {
        self.expect(QpState::Reset)?;
        self.ends.send_share.refill(None)?;
        if let Some(share) = &mut self.ends.recv_share {
            share.refill(None)?;
        }
        if let Objects::Raw(raw) = &self.objects {
            raw.init()?;
        } else {
            let counters = self.pd.core.counters.as_ref();
            let counters = counters.map_or(0, |counters| counters.set().number());
            let qpc = self
                .context()
                .with_pd(self.pd.number())
                .with_rlky(self.pd.core.lkey.is_some())
                .with_primary_address_path(Ads::zeroed().with_vhca_port_num(1))
                .with_cqn_snd(self.ends.cqns[0])
                .with_cqn_rcv(self.ends.cqns[1])
                .with_q_key(attr.qkey)
                .with_counter_set_id(counters);
            // READs and atomics are let in when it is known how many are served: as Linux's driver
            // does it, whose steps are those that devices are known to take.
            (self.access, self.serves_reads) = (attr.access, false);
            let qpc = grant(qpc, self.served(attr.access));
            self.execute::<Rst2initQp>(&Rst2initQp::input().with_qpn(self.qpn).with_qpc(qpc))?;
        }
        self.enter(QpState::Init);
        Ok(())
    }

    /// INIT to RTR of a connection: from here on the peer is answered.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`], [`VerbsError::OutOfRange`], [`VerbsError::Unsupported`] for raw
    /// packets, or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "to_rtr")]
    pub fn connect(&mut self, attr: &RtrAttr) -> Result<(), VerbsError> {
        self.expect(QpState::Init)?;
        if self.qp_type == QpType::Raw {
            let what = "peer for raw packets";
            return Err(VerbsError::Unsupported { what, way_out: "use Qp::receive" });
        }
        let core = &self.pd.core;
        VerbsError::range("min_rnr_timer", attr.min_rnr_timer.into(), 0, 31)?;
        let reads =
            log_reads("max_dest_rd_atomic", attr.max_dest_rd_atomic, core.attr.max_qp_rd_atom)?;
        let qpc = self
            .context()
            .with_mtu(attr.mtu as u32)
            .with_log_msg_max(core.hca().log_max_msg())
            .with_remote_qpn(attr.remote_qpn.0)
            .with_primary_address_path(attr.path.ads(self.qpn, attr.remote_qpn.0))
            .with_next_rcv_psn(attr.psn.0)
            .with_log_rra_max(reads)
            .with_min_rnr_nak(attr.min_rnr_timer.into());
        // The context counts from one: who is to serve none lets none in.
        self.serves_reads = attr.max_dest_rd_atomic > 0;
        self.enter_rtr(grant(qpc, self.served(self.access)), self.qp_type.rights())
    }

    /// INIT to RTR of datagrams: from here on they arrive. Of raw packets: from here on
    /// [`Qp::create_flow`] lets them.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`], or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "to_rtr")]
    pub fn receive(&mut self) -> Result<(), VerbsError> {
        self.expect(QpState::Init)?;
        if self.qp_type == QpType::Raw {
            self.enter(QpState::Rtr);
            return Ok(());
        }
        let (mtu, log_msg_max) = match self.st {
            service::GSI => (MTU_GSI, LOG_MSG_GSI),
            _ => (MTU_UD, LOG_MSG_UD),
        };
        self.enter_rtr(self.context().with_mtu(mtu as u32).with_log_msg_max(log_msg_max), 0)
    }

    fn enter_rtr(&mut self, qpc: Qpc, optional: u32) -> Result<(), VerbsError> {
        let input = Init2rtrQp::input().with_qpn(self.qpn).with_opt_param_mask(optional);
        self.execute::<Init2rtrQp>(&input.with_qpc(qpc))?;
        self.enter(QpState::Rtr);
        Ok(())
    }

    /// RTR to RTS: from here on sends may be posted. Raw packets have no use for `attr`.
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`], [`VerbsError::OutOfRange`], or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    #[doc(alias = "to_rts")]
    pub fn activate(&mut self, attr: &RtsAttr) -> Result<(), VerbsError> {
        self.expect(QpState::Rtr)?;
        if let Objects::Raw(raw) = &self.objects {
            raw.start()?;
            return self.enter_raw_rts();
        }
        VerbsError::range("timeout", attr.timeout.into(), 0, 31)?;
        VerbsError::range("retry_count", attr.retry_count.into(), 0, 7)?;
        VerbsError::range("rnr_retry", attr.rnr_retry.into(), 0, 7)?;
        let most = self.pd.core.attr.max_qp_rd_atom;
        let reads = log_reads("max_rd_atomic", attr.max_rd_atomic, most)?;
        let mut qpc = self.context().with_next_send_psn(attr.psn.0);
        if self.qp_type.is_reliable() {
            qpc = qpc
                .with_primary_address_path(Ads::zeroed().with_ack_timeout(attr.timeout.into()))
                .with_log_ack_req_freq(LOG_ACK_REQ_FREQ)
                .with_log_sra_max(reads)
                .with_retry_count(attr.retry_count.into())
                .with_rnr_retry(attr.rnr_retry.into());
        }
        self.execute::<Rtr2rtsQp>(&Rtr2rtsQp::input().with_qpn(self.qpn).with_qpc(qpc))?;
        self.enter(QpState::Rts);
        Ok(())
    }

    fn enter_raw_rts(&mut self) -> Result<(), VerbsError> {
        self.sq.frames.start(self.pd.core.device().mtu());
        self.enter(QpState::Rts);
        Ok(())
    }

    /// SQ error to RTS, after every flushed send was taken (UC, UD, raw packets).
    ///
    /// # Errors
    ///
    /// [`VerbsError::WrongState`], [`VerbsError::StillPosted`], or what the device refused.
    pub fn resume(&mut self) -> Result<(), VerbsError> {
        self.expect(QpState::SqError)?;
        VerbsError::none_posted(self.sq.ring.outstanding())?;
        if let Objects::Raw(raw) = &self.objects {
            raw.stop_sending()?;
            // The device counts from 0 again.
            self.sq.reset();
            raw.start()?;
            return self.enter_raw_rts();
        }
        let input = Sqerr2rtsQp::input().with_qpn(self.qpn).with_qpc(self.context());
        self.execute::<Sqerr2rtsQp>(&input)?;
        self.sq.heal();
        self.enter(QpState::Rts);
        Ok(())
    }

    /// To the error state: everything posted comes back, flushed or, if it was carried out without
    /// a completion, as the success that it was. When the send ring was full, take completions and
    /// call it again.
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_error(&mut self) -> Result<(), VerbsError> {
        // Requests that the device was not told of would never come back.
        self.sq.ring();
        if let Objects::Raw(raw) = &self.objects {
            raw.fail()?;
        } else {
            self.execute::<ModifyQpToErr>(&ModifyQpToErr::input().with_qpn(self.qpn))?;
        }
        self.enter(QpState::Error);
        // What succeeded unreported would not come back else.
        self.sq.mark_end_itself();
        Ok(())
    }

    /// To reset, for another life; rules of raw packets end. Every completion must have been taken:
    /// [`Qp::to_error`] makes them all come.
    ///
    /// # Errors
    ///
    /// [`VerbsError::StillPosted`], or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn reset(&mut self) -> Result<(), VerbsError> {
        VerbsError::none_posted(self.sq.ring.outstanding() + self.rq_outstanding())?;
        self.let_go()?;
        self.sq.reset();
        if let Some(rq) = &mut self.rq {
            rq.restart();
        }
        self.begin_shared(&[]);
        self.enter(QpState::Reset);
        Ok(())
    }

    /// Has the device let go of everything that is posted.
    fn let_go(&mut self) -> Result<(), VerbsError> {
        if let Objects::Raw(raw) = &mut self.objects {
            return raw.reset();
        }
        self.execute::<ModifyQpToRst>(&ModifyQpToRst::input().with_qpn(self.qpn))?;
        Ok(())
    }

    /// To reset at once, for another life: what is posted is dropped, and never reported; rules of
    /// raw packets end. `cqs` are its completion queues, one or two, of which a target of XRC has
    /// none: completions that stand there are nobody's from now on, and those that were taken are
    /// refused with [`WrongCompletion`](super::WrongCompletion). Each still takes an entry of its
    /// queue until it is polled.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchCq`] if one of its queues is not in `cqs`, or what the device refused.
    #[doc(alias = "ibv_modify_qp")]
    pub fn abandon(&mut self, cqs: &[&Cq]) -> Result<(), VerbsError> {
        let receives = self.rq.as_ref().map(|rq| &rq.belief);
        let sends = (self.qp_type != QpType::XrcRecv).then_some(&self.sq.belief);
        for belief in sends.into_iter().chain(receives) {
            if !cqs.iter().any(|cq| belief.completes_in(&cq.core())) {
                return Err(VerbsError::NoSuchCq { cqn: belief.cqn() });
            }
        }
        self.let_go()?;
        self.forget_posted(cqs);
        self.sq.abandon();
        if let Some(rq) = &mut self.rq {
            rq.abandon();
        }
        self.begin_shared(cqs);
        self.enter(QpState::Reset);
        Ok(())
    }

    /// Asks the device for the state of the queue pair. Raw packets have a state only.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr, VerbsError> {
        if let Objects::Raw(raw) = &self.objects {
            let state = raw.state(self.state)?;
            return Ok(QpAttr { state, send_psn: Psn(0), recv_psn: Psn(0), qkey: 0 });
        }
        // The page list follows; nobody needs it.
        let qpc = self.execute::<QueryQp>(&QueryQp::input().with_qpn(self.qpn))?.qpc();
        let state = match qpc.state() {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            // A drained send queue sends again when asked to. Source: reference 4.4.
            3 | 5 | 7 => QpState::Rts,
            4 => QpState::SqError,
            _ => QpState::Error,
        };
        Ok(QpAttr {
            state,
            send_psn: Psn(qpc.next_send_psn()),
            recv_psn: Psn(qpc.next_rcv_psn()),
            qkey: qpc.q_key(),
        })
    }
}

/// State of a queue pair, as the device says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttr {
    /// Its state.
    pub state: QpState,
    /// Number of the next packet to send.
    pub send_psn: Psn,
    /// Number expected next.
    pub recv_psn: Psn,
    /// The key that datagrams must carry.
    pub qkey: u32,
}
