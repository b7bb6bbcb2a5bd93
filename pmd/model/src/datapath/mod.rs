//! The Ethernet data path: what happens between a doorbell and the wire.
//!
//! [`crate::Nic::step`] calls the methods of [`DataPath`]; it reaches everything else of the device
//! through [`Ctx`].
//!
//! # Architecture
//! - [`packet`], [`offload`], [`rss`]: pure functions on bytes.
//! - `steering`: the flow objects, compiled.
//! - `sq` and `wqe`: send queues; `rq`: receive queues; `cq`: completions, arming, completions.
//! - `dma`: host memory through memory keys.
//! - [`crate::wire`]: what the port is plugged into.
//!
//! # Limits
//! One step executes a bounded number of WQEs per queue and takes a bounded number of frames from
//! the wire. After set-up it allocates nothing per packet.

mod compress;
mod cq;
mod dma;
mod fetch;
#[cfg(test)]
mod harness;
pub mod offload;
pub mod packet;
mod roce;
mod rq;
pub mod rss;
mod send;
mod sq;
mod steering;
mod wqe;

use ferrocx_prm::init_seg::CqArm;

use self::cq::Completions;
use self::offload::Verified;
use self::packet::{Cast, ETH_HEADER_BYTES, MIN_FRAME_BYTES, Packet, VLAN_TAG_BYTES};
use self::roce::Roce;
use self::rq::{Arrival, Receive};
use self::sq::Transmit;
use self::steering::Steering;
use crate::nic::Ctx;
use crate::objects::{QueueMemory, QueueState};
use crate::wire::{Fcs, Unplugged, Wire};

pub use cq::timestamp;
pub use dma::Refused;
pub use roce::{InlineCounts, KeyCounts, RoceDrops};

/// The low 16 bits: for counters and fields of that width.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low16(value: u64) -> u16 {
    value as u16
}

/// The low 32 bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
const fn low32(value: u64) -> u32 {
    value as u32
}

/// Frames taken from the wire in one step.
const RECEIVE_BURST: usize = 64;
/// What the port's MTU counts beside the frame: the FCS. Source: reference 4.7, PMTU.
const FCS_BYTES: usize = 4;

/// Why frames from the wire were not delivered, beyond what the port counters tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiveDrops {
    /// Shorter than the smallest Ethernet frame.
    pub undersize: u64,
    /// Longer than the port's MTU.
    pub oversize: u64,
    /// Wrong frame check sequence.
    pub fcs: u64,
    /// The link was down.
    pub link_down: u64,
    /// No flow table, no entry or no queue wanted it.
    pub unwanted: u64,
    /// A flow entry said so.
    pub steering: u64,
}

/// State of the data path that is no object: the wire, buffers, timers.
#[derive(Debug)]
pub struct DataPath {
    wire: Box<dyn Wire>,
    /// The carrier as last seen; `None` while nothing was ever plugged in.
    carrier: Option<bool>,
    /// Whether the port's transmitter is on, as the wire was told.
    transmits: bool,
    /// Send queues that were rung and are not done.
    active: Vec<u32>,
    transmit: Transmit,
    receive: Receiver,
    roce: Roce,
    completions: Completions,
}

/// Where a frame comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The wire.
    Wire,
    /// A transport domain of the port itself: only some TIRs take it.
    Own(u32),
}

/// The receive side, apart from the wire.
#[derive(Debug, Default)]
struct Receiver {
    buffers: Receive,
    steering: Steering,
    drops: ReceiveDrops,
    /// Interfaces of the packet at hand.
    tirs: Vec<u32>,
}

impl Default for DataPath {
    fn default() -> Self {
        Self {
            wire: Box::new(Unplugged::default()),
            carrier: None,
            transmits: true,
            active: Vec::new(),
            transmit: Transmit::default(),
            receive: Receiver::default(),
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
        self.wire = Box::new(wire);
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
        self.receive.drops
    }

    /// RoCE packets that were not delivered, by reason.
    #[must_use]
    pub fn roce_drops(&self) -> RoceDrops {
        self.roce.drops()
    }

    /// What work requests and peers did to memory keys.
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
        self.receive.steering.clear();
    }

    /// Once per step: continues send queues that still have work, takes frames from the wire,
    /// runs moderation timers. Returns whether anything was done.
    pub fn poll(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let mut busy = self.follow_carrier(ctx);
        busy |= self.take_frames(ctx);
        busy |= self.roce.poll(ctx, &mut self.completions, &mut *self.wire);
        busy |= self.run_queues(ctx);
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
        ctx.port_changed(self);
        true
    }

    fn take_frames(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let Self { wire, receive, roce, completions, .. } = self;
        receive.steering.refresh(&ctx.state.objects);
        ctx.state.loops_back = receive.steering.loops_back();
        receive.buffers.start_burst();
        completions.start_burst();
        let mut busy = false;
        for looped in std::mem::take(&mut ctx.state.looped_back) {
            busy = true;
            let (frame, origin) = (&looped.frame, Origin::Own(looped.domain));
            // What went out as well leaves no trace where nobody takes it.
            let is_copy = frame.first().is_some_and(|first| first & 1 != 0);
            if !is_copy || receive.is_taken(ctx, frame, looped.domain) {
                receive.frame(ctx, roce, completions, frame, Fcs::Good, origin);
            }
        }
        for _ in 0..RECEIVE_BURST {
            let Some(frame) = wire.receive(ctx.now_ns) else { break };
            busy = true;
            receive.frame(ctx, roce, completions, frame.bytes, frame.fcs, Origin::Wire);
        }
        compress::end_all(ctx, completions);
        cq::end_burst(ctx, completions);
        busy
    }

    fn run_queues(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.active.is_empty() {
            // What a delaying wire holds back still wants its turn.
            self.wire.flush(ctx.now_ns);
            return false;
        }
        let Self { wire, active, transmit, completions, .. } = self;
        active.retain(|sqn| sq::run(ctx, transmit, completions, &mut **wire, *sqn));
        wire.flush(ctx.now_ns);
        true
    }

    /// A doorbell that may concern this SQ was rung: read its record and execute what is new.
    ///
    /// `rung` holds the eight bytes of the doorbell when they are known to name this SQ.
    pub fn send_doorbell(&mut self, ctx: &mut Ctx<'_>, sqn: u32, rung: Option<u64>) {
        if sq::doorbell(ctx, sqn, rung) && !self.active.contains(&sqn) {
            self.active.push(sqn);
        }
    }

    /// A doorbell that may concern this QP was rung: read its record and execute what is new.
    pub fn qp_doorbell(&mut self, ctx: &mut Ctx<'_>, qpn: u32) {
        self.roce.doorbell(ctx, qpn);
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
                sq::flush(ctx, &mut self.transmit, &mut self.completions, sqn);
            }
            QueueState::Reset => {
                (sq.posted, sq.executed, sq.wqe_progress) = (0, 0, 0);
                (sq.is_active, sq.error_reported) = (false, false);
            }
            QueueState::Ready | QueueState::Error => {}
        }
        self.active.retain(|active| *active != sqn);
    }

    /// MODIFY_RQ changed the state (already stored): flush or start over.
    pub fn rq_state_changed(&mut self, ctx: &mut Ctx<'_>, rqn: u32, from: QueueState) {
        let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) else { return };
        match rq.state {
            QueueState::Error if from != QueueState::Error => {
                rq::flush(ctx, &mut self.completions, rqn);
            }
            QueueState::Reset => rq.ring = Default::default(),
            QueueState::Ready | QueueState::Error => {}
        }
    }

    /// MODIFY_CQ resizes: write the RESIZE CQE into the old ring, then use the new one.
    pub fn resize_cq(&mut self, ctx: &mut Ctx<'_>, cqn: u32, memory: QueueMemory, log: u32) {
        cq::resize(ctx, &mut self.completions, cqn, memory, log);
    }

    /// The port may send and receive, or no longer.
    ///
    /// Nothing is kept: what a queue sends or a wire delivers while the link is down is counted
    /// and lost, as behind a pulled cable.
    pub fn link_changed(&mut self, _ctx: &mut Ctx<'_>, _is_up: bool) {}
}

impl Receiver {
    /// Takes one frame from the wire to the queues that want it.
    #[inline]
    fn frame(
        &mut self,
        ctx: &mut Ctx<'_>,
        roce: &mut Roce,
        completions: &mut Completions,
        frame: &[u8],
        fcs: Fcs,
        origin: Origin,
    ) {
        if !self.is_acceptable(ctx, frame, fcs) {
            return;
        }
        let packet = Packet::parse(frame);
        count(ctx, &packet, frame.len());
        if roce.frame(ctx, completions, frame, &packet) {
            return;
        }
        let root = ctx.state.objects.rx_root;
        let verdict = self.steering.evaluate(root, frame, &packet);
        for id in &verdict.counters {
            if let Some(counter) = ctx.state.objects.flow_counters.get_mut(*id) {
                counter.packets += 1;
                counter.octets += frame.len() as u64;
            }
        }
        if verdict.tirs.is_empty() {
            let counters = &mut ctx.state.port.counters;
            if verdict.is_dropped {
                self.drops.steering += 1;
            } else {
                self.drops.unwanted += 1;
                counters.rx_steering_missed += 1;
            }
            return;
        }
        let flow_tag = verdict.flow_tag;
        self.tirs.clear();
        self.tirs.extend_from_slice(&verdict.tirs);
        let verified: Verified = offload::verify(frame, &packet, false);
        let l4_hdr_type = rq::l4_hdr_type(frame, &packet);
        for tirn in &self.tirs {
            if let Origin::Own(domain) = origin
                && !self.steering.takes_own(*tirn, domain, packet.cast)
            {
                continue;
            }
            let Some((rqn, hash)) = self.steering.queue(*tirn, frame, &packet) else {
                self.drops.unwanted += 1;
                ctx.state.port.counters.rx_steering_missed += 1;
                continue;
            };
            let arrival = Arrival { packet: &packet, verified, flow_tag, hash, l4_hdr_type };
            rq::deliver(ctx, &mut self.buffers, completions, rqn, frame, &arrival);
        }
    }

    /// Whether the flow tables lead a frame of a transport domain to an interface that takes it.
    fn is_taken(&mut self, ctx: &Ctx<'_>, frame: &[u8], domain: u32) -> bool {
        let Self { steering, tirs, .. } = self;
        tirs.clear();
        let packet = Packet::parse(frame);
        let verdict = steering.evaluate(ctx.state.objects.rx_root, frame, &packet);
        tirs.extend_from_slice(&verdict.tirs);
        tirs.iter().any(|tirn| steering.takes_own(*tirn, domain, packet.cast))
    }

    /// What a port checks before it looks into a frame.
    #[inline]
    fn is_acceptable(&mut self, ctx: &mut Ctx<'_>, frame: &[u8], fcs: Fcs) -> bool {
        let port = &mut ctx.state.port;
        let len = frame.len();
        // The MTU has room for one tag; a frame without a tag may not use it.
        let is_tagged = frame.get(12..14).is_some_and(|word| word == [0x81, 0x00]);
        let tag = if is_tagged { 0 } else { VLAN_TAG_BYTES };
        if !port.is_up() {
            port.counters.rx_link_down += 1;
            self.drops.link_down += 1;
        } else if fcs == Fcs::Bad {
            port.counters.rx_fcs_errors += 1;
            port.counters.rx_errors.add(len as u64);
            self.drops.fcs += 1;
        } else if len < MIN_FRAME_BYTES.max(ETH_HEADER_BYTES) {
            port.counters.rx_errors.add(len as u64);
            self.drops.undersize += 1;
        } else if len + FCS_BYTES + tag > (port.mtu as usize).max(MIN_FRAME_BYTES + FCS_BYTES + 4) {
            port.counters.rx_errors.add(len as u64);
            self.drops.oversize += 1;
        } else {
            return true;
        }
        false
    }
}

/// Counts a frame that arrived in good order.
#[inline]
fn count(ctx: &mut Ctx<'_>, packet: &Packet, len: usize) {
    let counters = &mut ctx.state.port.counters;
    match packet.cast {
        Cast::Unicast => counters.rx_unicast.add(len as u64),
        Cast::Multicast => counters.rx_multicast.add(len as u64),
        Cast::Broadcast => counters.rx_broadcast.add(len as u64),
    }
}

#[cfg(test)]
mod tests;
