//! Raw packet queue pairs: whole Ethernet frames, sent from buffers and received into them. Their
//! states are in the table of [`super`].
//!
//! On the device there is no such queue pair: it is a send queue with a TIS, a receive queue with a
//! TIR, and flow rules that lead there. Source: reference 5.6 to 5.9, 6.3.

use std::sync::Arc;

use ferrocx_core::wq::{RecvRing, RqAttr, SendRing, SqAttr};
use ferrocx_core::{
    Device, DeviceError, FlowAction, FlowCounts, FlowMatch, FlowRule, FlowRuleHandle, Handle,
    QueueState, RxQueueRef,
};

use super::{Plan, Qp, QpState};
use crate::counters::Counters;
use crate::error::VerbsError;
use crate::mr::Buffers;

/// A rule of a raw packet queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlowId(pub(super) u64);

/// What the device knows of a queue pair, of any service.
#[derive(Debug)]
pub(super) enum Objects {
    Qp(Handle),
    Raw(Box<RawObjects>),
}

impl Objects {
    /// The number in completions of failed receives, of queue pair `qpn`.
    pub(super) fn fails_as(&self, qpn: u32) -> u32 {
        match self {
            Self::Qp(_) => qpn,
            Self::Raw(raw) => raw.rq.number(),
        }
    }

    /// Whether one of them has this number among the queues of a kind, as events name it: 0 queue
    /// pairs, 1 receive queues, 2 send queues. Source: reference 6.10.
    pub(super) fn are_named(&self, queue_type: u8, number: u32) -> bool {
        match (self, queue_type) {
            (Self::Qp(handle), 0) => handle.number() == number,
            (Self::Raw(raw), 1) => raw.rq.number() == number,
            (Self::Raw(raw), 2) => raw.sq.number() == number,
            _ => false,
        }
    }

    /// Destroys them; on an error the device may still own what is posted.
    pub(super) fn destroy(&mut self) -> Result<(), VerbsError> {
        match self {
            Self::Qp(handle) => Ok(handle.destroy()?),
            Self::Raw(raw) => raw.destroy(),
        }
    }
}

/// The device's objects of a raw packet queue pair.
#[derive(Debug)]
pub(super) struct RawObjects {
    // Dropped in this order.
    flows: Vec<(FlowId, FlowRuleHandle)>,
    rq: Arc<Handle>,
    sq: Handle,
    next_flow: u64,
}

impl RawObjects {
    /// Reset to INIT.
    pub(super) fn init(&self) -> Result<(), VerbsError> {
        Ok(self.rq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// RTR to RTS.
    pub(super) fn start(&self) -> Result<(), VerbsError> {
        Ok(self.sq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// Has everything posted flushed. A queue in reset has nothing posted.
    pub(super) fn fail(&self) -> Result<(), VerbsError> {
        for queue in [&self.sq, &self.rq] {
            if queue.queue_state()? == QueueState::RDY {
                queue.move_queue(QueueState::RDY, QueueState::ERR)?;
            }
        }
        Ok(())
    }

    /// Both queues to reset, without rules.
    pub(super) fn reset(&mut self) -> Result<(), VerbsError> {
        self.flows.clear();
        self.rq.stop_queue()?;
        Ok(self.sq.stop_queue()?)
    }

    /// What the device says of the state; of INIT and RTR it knows no difference.
    pub(super) fn state(&self, known: QpState) -> Result<QpState, VerbsError> {
        Ok(match (self.rq.queue_state()?, self.sq.queue_state()?) {
            (QueueState::RST, QueueState::RST) => QpState::Reset,
            (QueueState::RDY, QueueState::RST) if known == QpState::Rtr => QpState::Rtr,
            (QueueState::RDY, QueueState::RST) => QpState::Init,
            (QueueState::RDY, QueueState::RDY) => QpState::Rts,
            (QueueState::RDY, QueueState::ERR) => QpState::SqError,
            _ => QpState::Error,
        })
    }

    /// SQ error to reset of the send queue.
    pub(super) fn stop_sending(&self) -> Result<(), VerbsError> {
        Ok(self.sq.stop_queue()?)
    }

    /// The receive queue.
    pub(super) fn rq(&self) -> &Arc<Handle> {
        &self.rq
    }

    fn flow_at(&self, id: FlowId) -> Result<usize, VerbsError> {
        self.flows.iter().position(|(known, _)| *known == id).ok_or(VerbsError::NoSuchFlow)
    }

    fn destroy(&mut self) -> Result<(), VerbsError> {
        self.reset()?;
        // Its rules are gone, so nobody else holds it.
        if let Some(rq) = Arc::get_mut(&mut self.rq) {
            rq.destroy()?;
        }
        Ok(self.sq.destroy()?)
    }
}

type Made<Ring> = Result<(Ring, Handle), DeviceError>;

/// Makes the two rings of a raw packet queue pair.
#[expect(unsafe_code, reason = "a ring is a promise about what stands in it")]
fn create(
    device: &Device,
    send: &SqAttr<'_>,
    recv: &RqAttr<'_>,
) -> (Made<SendRing>, Made<RecvRing>) {
    // SAFETY: what is posted names buffers by their keys, as on any queue pair: the slots of the
    // queue pair hold them until the request has completed or the device let go of the queue.
    unsafe { (SendRing::create(device, send), RecvRing::create(device, recv)) }
}

impl Plan<'_> {
    /// Makes a raw packet queue pair.
    pub(super) fn make_raw(&self) -> Result<(SendRing, Option<RecvRing>, Objects), VerbsError> {
        let &Self { pd, uar, ends, sizes, config } = self;
        let [send_cqn, recv_cqn] = ends.cqns;
        let (device, rlky) = (pd.core.device(), pd.core.lkey.is_some());
        let (pd, user_index) = (pd.number(), config.user_index);
        let log_blocks = sizes.log_sq_blocks;
        let send =
            SqAttr { uar, blueflame: false, pd, rlky, cqn: send_cqn, user_index, log_blocks };
        let recv = RqAttr {
            pd,
            rlky,
            keeps_vlan: true,
            cqn: recv_cqn,
            user_index,
            size: sizes.recv,
            drops: self.pd.core.counters.as_ref().map(Counters::set),
            ..RqAttr::default()
        };
        let (send, recv) = create(device, &send, &recv);
        let ((send, sq), (recv, rq)) = (send?, recv?);
        let raw = RawObjects { flows: Vec::new(), rq: Arc::new(rq), sq, next_flow: 0 };
        Ok((send, Some(recv), Objects::Raw(Box::new(raw))))
    }
}

impl<B: Buffers> Qp<B> {
    /// Leads frames that arrive and match to this raw packet queue pair, until
    /// [`Qp::destroy_flow`] or [`Qp::reset`], or until the queue pair is dropped.
    ///
    /// [`FlowMatch::default`] takes every frame that the port lets in: its own address, broadcast,
    /// groups after [`Device::join_multicast`](ferrocx_core::Device::join_multicast), and all after
    /// [`Device::set_promiscuous`](ferrocx_core::Device::set_promiscuous). RoCE for the port's own
    /// addresses stays with its queue pairs. A frame goes to one receiver: among rules that match,
    /// of all queues of the port, the one decides whose combination of fields was used first.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for another service, [`VerbsError::WrongState`] before RTR and
    /// in error, [`VerbsError::Device`] for fields that contradict each other and for a full table,
    /// or what the device refused.
    #[doc(alias = "ibv_create_flow")]
    pub fn create_flow(&mut self, matches: &FlowMatch) -> Result<FlowId, VerbsError> {
        self.lead(matches, RxQueueRef::new)
    }

    /// Leads frames here like [`Qp::create_flow`], those too that queues of this device send: of
    /// frames for a group a copy comes back, those for an address of the port come back and do not
    /// go out. Linux has it so between two programs.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::create_flow`].
    pub fn create_flow_hearing_port(&mut self, matches: &FlowMatch) -> Result<FlowId, VerbsError> {
        self.lead(matches, RxQueueRef::hearing_port)
    }

    fn lead(
        &mut self,
        matches: &FlowMatch,
        queue: fn(&Arc<Handle>) -> RxQueueRef,
    ) -> Result<FlowId, VerbsError> {
        let Objects::Raw(raw) = &mut self.objects else { return Err(only_raw()) };
        if self.spread {
            let what = "rules of one of those that share frames";
            return Err(VerbsError::Unsupported { what, way_out: "use Spread::create_flow" });
        }
        if !matches!(self.state, QpState::Rtr | QpState::Rts | QpState::SqError) {
            return Err(VerbsError::WrongState { is: self.state, needs: QpState::Rtr });
        }
        let port = self.pd.core.device();
        let handle = port.add_flow_rule(&FlowRule {
            matches: *matches,
            action: FlowAction::Queue(queue(&raw.rq)),
            // So that completions of receives name the queue.
            mark: Some(self.qpn),
            count: port.limits().flow_counters,
        })?;
        let id = FlowId(raw.next_flow);
        raw.next_flow += 1;
        raw.flows.push((id, handle));
        Ok(id)
    }

    /// Ends [`Qp::create_flow`].
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchFlow`], or what the device refused.
    pub fn destroy_flow(&mut self, id: FlowId) -> Result<(), VerbsError> {
        let Objects::Raw(raw) = &mut self.objects else { return Err(only_raw()) };
        let at = raw.flow_at(id)?;
        Ok(raw.flows.remove(at).1.destroy()?)
    }

    /// Frames and bytes that matched a rule, received or dropped for want of a receive.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoSuchFlow`], [`VerbsError::Device`] for a device that does not count, or what
    /// it refused.
    pub fn flow_counts(&self, id: FlowId) -> Result<FlowCounts, VerbsError> {
        let Objects::Raw(raw) = &self.objects else { return Err(only_raw()) };
        Ok(raw.flows[raw.flow_at(id)?].1.counts()?)
    }
}

fn only_raw() -> VerbsError {
    VerbsError::Unsupported { what: "flows", way_out: "use a raw packet queue pair" }
}
