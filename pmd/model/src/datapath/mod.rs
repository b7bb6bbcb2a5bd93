//! The data path: what happens between a doorbell and the wire.
//!
//! [`crate::Nic::step`] calls the methods of [`DataPath`], which joins three rooms: Ethernet's
//! queues (`eth`), RoCE's queue pairs (`roce::work`) and the wire. A frame that arrives is RoCE's
//! if its headers say so, else steering chooses its queues.
//!
//! # Limits
//!
//! One step executes a bounded number of WQEs per queue and takes a bounded number of frames from
//! the wire. After set-up it allocates nothing per packet.

#[cfg(test)]
mod harness;
#[cfg(test)]
mod tests;

use ferrocx_prm::init_seg::CqArm;

use crate::device::state::Ctx;
use crate::eth::loopback::{Loopback, Output};
use crate::eth::receiver::{self, Origin, Receiver};
use crate::eth::sq::{self, Transmit};
use crate::objects::{QueueMemory, QueueState};
use crate::queue::active::Active;
use crate::queue::completion;
use crate::queue::cq::{self, Completions};
use crate::roce::work::Roce;
use crate::wire::{Fcs, Received, Unplugged, Wire};

pub use crate::eth::receiver::ReceiveDrops;
use crate::frame::recent::Recent;
pub use crate::frame::{offload, packet, rss};
pub use crate::queue::cq::timestamp;
pub use crate::queue::dma::Refused;
pub use crate::roce::work::counts::{InlineCounts, KeyCounts, RoceDrops};

/// Frames taken from the wire in one step, those counted that one stands for.
const RECEIVE_BURST: u32 = 64;

/// Send queues that have a turn in one step; the others have theirs in the next ones.
const MAX_TURNS: usize = 256;

/// State of the data path that is no object: the wire, buffers, timers.
#[derive(Debug)]
pub struct DataPath {
    wire: Box<dyn Wire>,
    /// The carrier as last seen; `None` while nothing was ever plugged in.
    carrier: Option<bool>,
    /// Whether the port's transmitter is on, as the wire was told.
    transmits: bool,
    /// Send queues that were rung and are not done, in the order of their turns; one that was
    /// destroyed since stands there until its turn comes.
    active: Active,
    transmit: Transmit,
    recent: Recent,
    receive: Receiver,
    loopback: Loopback,
    roce: Roce,
    completions: Completions,
}

impl Default for DataPath {
    fn default() -> Self {
        Self {
            wire: Box::new(Unplugged::default()),
            carrier: None,
            transmits: true,
            active: Active::default(),
            transmit: Transmit::default(),
            recent: Recent::default(),
            receive: Receiver::default(),
            loopback: Loopback::default(),
            roce: Roce::default(),
            completions: Completions::default(),
        }
    }
}

impl DataPath {
    /// Plugs the port into a wire, in place of what was there.
    ///
    /// From now on the port's carrier follows the wire's.
    pub fn plug(&mut self, wire: impl Wire + 'static) {
        self.wire = wire.boxed();
        self.wire.adopt();
        self.carrier = Some(!self.wire.carrier());
        self.transmits = true;
    }

    /// The wire, to look at.
    #[must_use]
    pub fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    /// Frames that were not delivered, by reason.
    #[must_use]
    pub fn receive_drops(&self) -> ReceiveDrops {
        self.receive.drops()
    }

    /// RoCE packets that were not delivered, by reason.
    #[must_use]
    pub fn roce_drops(&self) -> RoceDrops {
        self.roce.drops()
    }

    /// Changes of memory keys by work requests and by peers.
    #[must_use]
    pub fn key_counts(&self) -> KeyCounts {
        self.roce.key_counts()
    }

    /// Completions that carried the data themselves.
    #[must_use]
    pub fn inline_counts(&self) -> InlineCounts {
        self.roce.inline_counts()
    }

    /// A function-level reset: forgets everything but the wire and its counts.
    pub fn reset(&mut self) {
        self.active.clear();
        self.roce.clear();
        self.completions.clear();
        self.receive.clear();
        self.loopback.clear();
    }

    /// Once per step: continues send queues that still have work, takes frames from the wire,
    /// runs moderation timers. Returns whether anything was done.
    pub fn poll(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mut busy = self.follow_carrier(ctx);
        busy |= self.take_frames(ctx);
        busy |= self.roce.poll(ctx, &mut self.completions, &mut *self.wire);
        busy |= self.run_queues(ctx);
        busy |= self.receive.buffers().go_on_flushing(ctx, &mut self.completions);
        busy |= self.completions.poll(ctx);
        busy
    }

    /// A port that its driver has not taken down transmits, whether or not it is initialized: the
    /// link partner sees a carrier, as with the usual firmware setting KEEP_ETH_LINK_UP.
    fn follow_carrier(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let transmits = ctx.state.port.admin_up;
        if transmits != self.transmits {
            self.transmits = transmits;
            self.wire.set_transmitter(transmits);
        }
        let carrier = self.wire.carrier();
        if self.carrier.is_none_or(|seen| seen == carrier) {
            return false;
        }
        self.carrier = Some(carrier);
        ctx.state.port.carrier = carrier;
        ctx.port_changed();
        true
    }

    fn take_frames(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Self { wire, recent, receive, loopback, roce, completions, .. } = self;
        receive.start_burst(ctx);
        completions.start_burst();
        let mut take = |ctx: &mut Ctx<'_>, receive: &mut Receiver, frame: &Received<'_>, origin| {
            if !receive.accepts(ctx, frame, origin) {
                return;
            }
            let packet = recent.parse(frame.bytes);
            let is_roce = roce.frame(ctx, completions, frame, packet.packet);
            receiver::count(ctx, packet.packet, frame, is_roce);
            match frame.fcs {
                _ if is_roce => {}
                Fcs::Inside(_) => receive.drop_train(ctx, frame.fcs),
                _ => receive.deliver(ctx, completions, frame.bytes, packet, origin),
            }
        };
        let mut busy = false;
        for _ in 0..RECEIVE_BURST {
            let Some(looped) = loopback.arrival() else { break };
            if !std::mem::replace(&mut busy, true) {
                receive.follow(ctx, loopback);
            }
            let (frame, domain) = (&looped.frame, looped.domain);
            // What went out as well leaves no trace where nobody takes it.
            let is_copy = frame.first().is_some_and(|first| first & 1 != 0);
            if !is_copy || receive.is_taken(ctx, frame, domain) {
                let frame = Received { bytes: frame, fcs: Fcs::Good };
                take(ctx, receive, &frame, Origin::Own(domain));
            }
            if ctx.is_turn_over() {
                break;
            }
        }
        let mut taken = 0;
        while taken < RECEIVE_BURST {
            // Where the wire wrote it: a copy made at once waits for all stores before it, those
            // into lines that another core holds included.
            let arrived = wire.receive(ctx.now_ns);
            let Some(frame) = &arrived else { break };
            if !std::mem::replace(&mut busy, true) {
                receive.follow(ctx, loopback);
            }
            taken += frame.fcs.frames();
            take(ctx, receive, frame, Origin::Wire);
            if ctx.is_turn_over() {
                break;
            }
        }
        completion::end_all(ctx, completions);
        cq::end_burst(ctx, completions);
        busy
    }

    fn run_queues(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.active.len() == 0 {
            // What a delaying wire holds back still wants its turn.
            return self.wire.flush(ctx.now_ns);
        }
        let Self { wire, active, transmit, receive, loopback, completions, .. } = self;
        receive.follow(ctx, loopback);
        let mut out = Output { wire: &mut **wire, loopback };
        // Those that had no turn come first in the next step.
        for _ in 0..active.len().min(MAX_TURNS) {
            let Some(sqn) = active.take() else { break };
            if sq::run(ctx, transmit, completions, &mut out, sqn) {
                active.add(sqn);
            }
            if ctx.is_turn_over() {
                break;
            }
        }
        wire.flush(ctx.now_ns);
        true
    }

    /// A doorbell that may concern this SQ was rung: read its record and execute what is new.
    ///
    /// `rung` holds the eight bytes of the doorbell when they are known to name this SQ.
    pub fn send_doorbell(&mut self, ctx: &mut Ctx<'_>, sqn: u32, rung: Option<u64>) {
        if sq::doorbell(ctx, sqn, rung) {
            self.active.add(sqn);
        }
    }

    /// A doorbell that may concern this QP was rung: read its record and execute what is new.
    pub fn qp_doorbell(&mut self, ctx: &mut Ctx<'_>, qpn: u32) {
        self.roce.doorbell(ctx, &mut self.completions, qpn);
    }

    /// A transition changed a QP (already stored).
    pub fn qp_changed(&mut self, qpn: u32) {
        self.roce.activate(qpn);
    }

    /// A QP goes to the error state: everything posted is flushed.
    pub fn qp_to_error(&mut self, ctx: &mut Ctx<'_>, qpn: u32) {
        self.roce.end(ctx, &mut self.completions, qpn);
    }

    /// A CQ doorbell that may concern this CQ was rung: read its arm record.
    ///
    /// `rung` holds the doorbell when it is known to name this CQ.
    pub fn cq_doorbell(&mut self, ctx: &mut Ctx<'_>, cqn: u32, rung: Option<CqArm>) {
        cq::arm(ctx, &mut self.completions, cqn, rung);
    }

    /// MODIFY_SQ changed the state (already stored): flush or start over.
    pub fn sq_state_changed(&mut self, ctx: &mut Ctx<'_>, sqn: u32, from: QueueState) {
        let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return };
        match sq.state {
            QueueState::Error if from != QueueState::Error => {
                if sq::flush(ctx, &mut self.transmit, &mut self.completions, sqn) {
                    self.active.add(sqn);
                }
                return;
            }
            QueueState::Reset => {
                (sq.posted, sq.executed, sq.wqe_progress) = (0, 0, 0);
                (sq.is_active, sq.error_reported) = (false, false);
            }
            QueueState::Ready | QueueState::Error => {}
        }
        self.active.remove(sqn);
    }

    /// MODIFY_RQ changed the state (already stored): flush or start over.
    pub fn rq_state_changed(&mut self, ctx: &mut Ctx<'_>, rqn: u32, from: QueueState) {
        self.receive.buffers().state_changed(ctx, &mut self.completions, rqn, from);
    }

    /// MODIFY_CQ resizes: write the RESIZE CQE into the old ring, then use the new one.
    pub fn resize_cq(&mut self, ctx: &mut Ctx<'_>, cqn: u32, memory: QueueMemory, log: u32) {
        completion::resize(ctx, &mut self.completions, cqn, memory, log);
    }
}
