//! The receive side of a port: what it takes, and to which queues steering leads it.

use super::loopback::Loopback;
use super::rq::{self, Arrival, Receive};
use super::steering::Steering;
use crate::device::state::Ctx;
use crate::frame::offload::{self, Verified};
use crate::frame::packet::{Cast, ETH_HEADER_BYTES, MIN_FRAME_BYTES, Packet, VLAN_TAG_BYTES};
use crate::frame::recent::Numbered;
use crate::queue::cq::Completions;
use crate::wire::{Fcs, Received};

/// Bytes of the FCS, which the port's MTU counts, too. Source: reference 4.7, PMTU.
const FCS_BYTES: usize = 4;

/// Frames that were not delivered, by reasons that the port counters do not tell.
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
    /// A virtual function's driver did not list the address, so the embedded switch kept the frame.
    pub unlisted: u64,
    /// No flow table, no entry or no queue wanted it.
    pub unwanted: u64,
    /// A flow entry said so.
    pub steering: u64,
}

/// Origin of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The wire.
    Wire,
    /// A transport domain of the port itself: only some TIRs take it.
    Own(u32),
}

/// The receive side, apart from the wire.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    buffers: Receive,
    steering: Steering,
    drops: ReceiveDrops,
}

impl Receiver {
    /// Forgets what was compiled: the function was reset.
    pub(crate) fn clear(&mut self) {
        self.steering.clear();
        self.buffers.clear();
    }

    /// Once per step, and when a queue's state changed: what failed queues owe.
    pub(crate) fn buffers(&mut self) -> &mut Receive {
        &mut self.buffers
    }

    /// Frames that were not delivered, by reason.
    pub(crate) fn drops(&self) -> ReceiveDrops {
        self.drops
    }

    /// Frames may arrive. What was compiled of steering objects that have changed since is dropped
    /// now: those that are gone do not pay for it any more.
    #[inline]
    pub(crate) fn start_burst(&mut self, ctx: &Ctx<'_>) {
        self.buffers.start_burst();
        self.steering.forget_stale(&ctx.state.objects);
    }

    /// A frame is there, or about to be sent: follows changes of the steering objects, also for the
    /// port's own frames. Not before, since a driver that adds a thousand entries would pay for
    /// each of them a thousand times.
    #[inline]
    pub(crate) fn follow(&mut self, ctx: &Ctx<'_>, loopback: &mut Loopback) {
        self.steering.refresh(&ctx.state.objects);
        loopback.take_from(self.steering.loops_back());
    }

    /// Takes one frame to the queues that want it.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        frame: &[u8],
        packet: Numbered<'_>,
        origin: Origin,
    ) {
        let Self { steering, buffers, drops } = self;
        steering.evaluate(&ctx.state.objects, frame, packet);
        let (verdict, packet) = (steering.verdict(), packet.packet);
        for id in &verdict.counters {
            if let Some(counter) = ctx.state.objects.flow_counters.get_mut(*id) {
                counter.packets += 1;
                counter.octets += frame.len() as u64;
            }
        }
        if verdict.tirs.is_empty() {
            let counters = &mut ctx.state.port.counters;
            if verdict.is_dropped {
                drops.steering += 1;
            } else {
                drops.unwanted += 1;
                counters.rx_steering_missed += 1;
            }
            return;
        }
        let flow_tag = verdict.flow_tag;
        let verified: Verified = offload::verify(frame, packet, false);
        let l4_hdr_type = rq::l4_hdr_type(frame, packet);
        for (copies, tirn) in verdict.tirs.iter().enumerate() {
            // Each copy may be as much work as a whole turn: those behind it are lost.
            if copies > 0 && ctx.is_turn_over() {
                drops.unwanted += 1;
                continue;
            }
            if let Origin::Own(domain) = origin
                && !steering.takes_own(*tirn, domain, packet.cast)
            {
                continue;
            }
            let Some((rqn, hash)) = steering.queue(*tirn, frame, packet) else {
                drops.unwanted += 1;
                ctx.state.port.counters.rx_steering_missed += 1;
                continue;
            };
            let arrival = Arrival { packet, verified, flow_tag, hash, l4_hdr_type };
            rq::deliver(ctx, buffers, completions, rqn, frame, &arrival);
        }
    }

    /// Drops the packets that one frame stands for, which no queue of Ethernet takes: as it is, it
    /// is longer than any frame of a cable.
    #[cold]
    pub(crate) fn drop_train(&mut self, ctx: &mut Ctx<'_>, fcs: Fcs) {
        let frames = u64::from(fcs.frames());
        self.drops.unwanted += frames;
        ctx.state.port.counters.rx_steering_missed += frames;
    }

    /// Whether the flow tables lead a frame of a transport domain to an interface that takes it.
    pub(crate) fn is_taken(&mut self, ctx: &Ctx<'_>, frame: &[u8], domain: u32) -> bool {
        let packet = Packet::parse(frame);
        self.steering.evaluate(&ctx.state.objects, frame, Numbered::from(&packet));
        let takes = |tirn: &u32| self.steering.takes_own(*tirn, domain, packet.cast);
        self.steering.verdict().tirs.iter().any(takes)
    }

    /// Whether the port takes a frame, by link, FCS and length, and the embedded switch forwards
    /// it, by address; what does not come through is counted.
    #[inline]
    pub(crate) fn accepts(
        &mut self,
        ctx: &mut Ctx<'_>,
        frame: &Received<'_>,
        origin: Origin,
    ) -> bool {
        let port = &mut ctx.state.port;
        let (frame, fcs) = (frame.bytes, &frame.fcs);
        let len = match fcs {
            Fcs::Good | Fcs::Bad => frame.len(),
            Fcs::Inside(train) => train.longest as usize,
        };
        // The MTU has room for one tag; a frame without a tag may not use it.
        let is_tagged = frame.get(12..14).is_some_and(|word| word == [0x81, 0x00]);
        let tag = if is_tagged { 0 } else { VLAN_TAG_BYTES };
        if !port.is_up() {
            port.counters.rx_link_down += 1;
            self.drops.link_down += 1;
        } else if *fcs == Fcs::Bad {
            port.counters.rx_fcs_errors += 1;
            port.counters.rx_errors.add(len as u64);
            self.drops.fcs += 1;
        } else if len < MIN_FRAME_BYTES.max(ETH_HEADER_BYTES) {
            port.counters.rx_errors.add(len as u64);
            self.drops.undersize += 1;
        } else if len + FCS_BYTES + tag > (port.mtu as usize).max(MIN_FRAME_BYTES + FCS_BYTES + 4) {
            port.counters.rx_errors.add(len as u64);
            self.drops.oversize += 1;
        } else if origin == Origin::Wire && !port.is_forwarded(frame) {
            self.drops.unlisted += 1;
        } else {
            return true;
        }
        false
    }
}

/// Counts a frame that arrived in good order, by whether the RoCE port took it.
///
/// # Source
///
/// Linux 6.12: `pma_cnt_ext_assign` has the counters of RoCE, `vport_stats_desc` both.
#[inline]
pub(crate) fn count(ctx: &mut Ctx<'_>, packet: &Packet, frame: &Received<'_>, is_roce: bool) {
    let counters = &mut ctx.state.port.counters;
    let kind = match (packet.cast, is_roce) {
        (Cast::Unicast, false) => &mut counters.rx_unicast,
        (Cast::Multicast, false) => &mut counters.rx_multicast,
        (Cast::Broadcast, false) => &mut counters.rx_broadcast,
        (Cast::Unicast, true) => &mut counters.rx_ib_unicast,
        (Cast::Multicast | Cast::Broadcast, true) => &mut counters.rx_ib_multicast,
    };
    match &frame.fcs {
        Fcs::Good | Fcs::Bad => kind.add(frame.bytes.len() as u64),
        Fcs::Inside(train) => kind.add_train(train),
    }
}
