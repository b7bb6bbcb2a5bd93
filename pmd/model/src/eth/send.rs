//! Executing send WQEs: gathering packets, offloads, segmentation, handing frames to the wire.
//!
//! Source: reference 6.2 (opcodes), 6.3 (segments), 5.7 (`min_wqe_inline_mode`).

use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{Ctrl, Opcode};

use super::loopback::Output;
use super::segment::EthSegment;
use crate::device::fault::FaultSite;
use crate::device::port::Port;
use crate::device::state::Ctx;
use crate::frame::offload::{self, Tso};
use crate::frame::packet::{
    Cast, ETH_HEADER_BYTES, L3, L4, MIN_FRAME_BYTES, Packet, VLAN_TAG_BYTES,
};
use crate::objects::mkey::{MemAccess, Rights};
use crate::objects::{Sq, Table, Tis};
use crate::queue::dma;
use crate::queue::wqe::{self, Segment, Segments, WqeFault};
use crate::wire::{Fcs, MAX_FRAME_BYTES};

/// Longest payload of a large send: 2^18 bytes. Source: reference 5.11, `max_lso_cap` = 0x12.
const MAX_LSO_BYTES: usize = 1 << 18;

/// The fields of an SQ that executing a WQE needs, copied so that nothing stays borrowed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Params {
    pub(super) sqn: u32,
    pub(super) cqn: u32,
    pub(super) pd: u32,
    pub(super) rlky: bool,
    pub(super) user_index: u32,
    pub(super) inline_mode: u32,
    pub(super) has_tis: bool,
    /// Longest frame that goes out; 0 while the link is down.
    limit: usize,
    /// Transport domain of its TIS.
    pub(super) domain: u32,
}

impl Params {
    pub(super) fn of(sqn: u32, sq: &Sq, tiss: &Table<Tis>, port: &Port) -> Self {
        let tis = sq.tisn.and_then(|tisn| tiss.get(tisn));
        // The port's MTU counts the FCS too. Source: reference 4.7, PMTU.
        let longest = (port.mtu as usize).saturating_sub(4).min(MAX_FRAME_BYTES);
        Self {
            sqn,
            cqn: sq.cqn,
            pd: sq.wq.pd,
            rlky: sq.rlky,
            user_index: sq.user_index,
            inline_mode: sq.min_wqe_inline_mode,
            has_tis: sq.tisn.is_some(),
            limit: if port.is_up() { longest } else { 0 },
            domain: tis.map_or(0, |tis| tis.transport_domain),
        }
    }
}

/// Progress of a WQE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    /// The wire is full, or the step is over; this many packets of the WQE are out.
    Stalled(u32),
}

/// Counts of a burst of WQEs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) wqes: u64,
    pub(super) signaled: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    pub(super) reads: u64,
}

/// Carries out one WQE, from packet number `progress` on.
#[inline]
pub(super) fn execute(
    ctx: &mut Ctx<'_>,
    out: &mut Output<'_>,
    params: &Params,
    (ctrl, wqe): (&Ctrl, &[u8]),
    progress: u32,
    sent: &mut Sent,
) -> Result<Outcome, WqeFault> {
    let opcode = Opcode(ctrl.0[3]);
    if ctrl.opmod() != 0 {
        return Err(WqeFault::operation("ctrl.opmod", ctrl.opmod().into(), "not 0"));
    }
    if opcode == Opcode::NOP {
        return Ok(Outcome::Done);
    }
    if !matches!(opcode, Opcode::SEND | Opcode::LSO | Opcode::ENHANCED_MPSW) {
        let value = u64::from(opcode.0);
        return Err(WqeFault::operation("ctrl.opcode", value, "not one an SQ can execute"));
    }
    if !params.has_tis {
        return Err(WqeFault::operation("ctrl.opcode", opcode.0.into(), "the SQ has no TIS"));
    }
    let eth = EthSegment::read(wqe)?;
    let segments = Segments::new(wqe.get(eth.end..).unwrap_or_default());
    match opcode {
        Opcode::SEND => send(ctx, out, params, &eth, segments, sent),
        Opcode::LSO => send_large(ctx, out, params, &eth, segments, progress, sent),
        _ => send_many(ctx, out, params, &eth, segments, progress, sent),
    }
}

/// Several packets of one segment each. Source: reference 6.3, "Enhanced multi-packet WQE".
fn send_many(
    ctx: &mut Ctx<'_>,
    out: &mut Output<'_>,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: Segments<'_>,
    progress: u32,
    sent: &mut Sent,
) -> Result<Outcome, WqeFault> {
    if !eth.inline.is_empty() {
        let value = eth.inline.len() as u64;
        let why = "a multi-packet WQE has no inline header";
        return Err(WqeFault::operation("eth.inline_hdr_sz", value, why));
    }
    for (packets, segment) in (0..).zip(segments) {
        let segment = segment?;
        if packets > progress && ctx.is_turn_over() {
            return Ok(Outcome::Stalled(packets));
        }
        if packets >= progress {
            let one = core::iter::once(Ok(segment));
            if !send_frame(ctx, out, params, eth, one, segment.len(), sent)? {
                return Ok(Outcome::Stalled(packets));
            }
        }
    }
    Ok(Outcome::Done)
}

#[inline]
fn send(
    ctx: &mut Ctx<'_>,
    out: &mut Output<'_>,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: Segments<'_>,
    sent: &mut Sent,
) -> Result<Outcome, WqeFault> {
    let total = segments.total()? + eth.inline.len();
    let is_sent = send_frame(ctx, out, params, eth, segments, total, sent)?;
    Ok(if is_sent { Outcome::Done } else { Outcome::Stalled(0) })
}

/// Builds one frame in the wire's buffer and sends it; `false` when the wire is full.
#[inline]
fn send_frame<'a>(
    ctx: &mut Ctx<'_>,
    out: &mut Output<'_>,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: impl Iterator<Item = Result<Segment<'a>, WqeFault>>,
    total: usize,
    sent: &mut Sent,
) -> Result<bool, WqeFault> {
    // A frame is work also where no memory is read for it, or where it is dropped.
    ctx.state.objects.mkeys.work(1);
    let tag = if eth.vlan.is_some() { VLAN_TAG_BYTES } else { 0 };
    let len = total + tag;
    if total < ETH_HEADER_BYTES {
        return Err(WqeFault::length("packet", total as u64, "shorter than an Ethernet header"));
    }
    if len > params.limit {
        drop_frame(ctx, len);
        return Ok(true);
    }
    let Some(room) = out.wire.reserve(len.max(MIN_FRAME_BYTES)) else { return Ok(false) };
    let (frame, padding) = room.split_at_mut(len);
    if !padding.is_empty() {
        padding.fill(0);
    }
    let body = &mut frame[tag..];
    body[..eth.inline.len()].copy_from_slice(eth.inline);
    gather(ctx, params, segments, 0, &mut body[eth.inline.len()..], sent)?;
    check_inline(params, eth.inline.len(), body)?;
    if eth.l3_csum || eth.l4_csum {
        let packet = Packet::parse(body);
        offload::insert_checksums(body, &packet, eth.l3_csum, eth.l4_csum);
    }
    if let Some((s_tag, tci)) = eth.vlan {
        offload::insert_vlan(frame, s_tag, tci);
    }
    count(ctx, frame[0..6].try_into().unwrap_or_default(), len, sent);
    if !out.loopback.takes(&ctx.state.port.vport, room, params.domain) {
        out.wire.commit(ctx.now_ns, Fcs::Good);
    }
    Ok(true)
}

/// One large packet, cut into segments. Source: reference 6.3, "LSO".
fn send_large(
    ctx: &mut Ctx<'_>,
    out: &mut Output<'_>,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: Segments<'_>,
    progress: u32,
    sent: &mut Sent,
) -> Result<Outcome, WqeFault> {
    let header = eth.inline;
    let payload = segments.total()?;
    if payload > MAX_LSO_BYTES {
        return Err(WqeFault::length("packet", payload as u64, "longer than max_lso_cap"));
    }
    let tso = Tso::new(header, eth.mss, payload).map_err(|_| {
        let why = "not the headers of TCP or UDP, or a segment size that does not fit";
        WqeFault::operation("eth.inline_hdr", header.len() as u64, why)
    })?;
    for index in progress as usize..tso.segments() {
        if index > progress as usize && ctx.is_turn_over() {
            return Ok(Outcome::Stalled(u32::try_from(index).unwrap_or(u32::MAX)));
        }
        ctx.state.objects.mkeys.work(1);
        let (start, _) = tso.payload_of(index);
        let len = tso.frame_bytes(index);
        if len > params.limit {
            drop_frame(ctx, len);
            continue;
        }
        let Some(room) = out.wire.reserve(len.max(MIN_FRAME_BYTES)) else {
            return Ok(Outcome::Stalled(u32::try_from(index).unwrap_or(u32::MAX)));
        };
        let (frame, padding) = room.split_at_mut(len);
        padding.fill(0);
        frame[..header.len()].copy_from_slice(header);
        gather(ctx, params, segments, start, &mut frame[header.len()..], sent)?;
        tso.finish(frame, index, (eth.l3_csum, eth.l4_csum));
        count(ctx, frame[0..6].try_into().unwrap_or_default(), len, sent);
        if !out.loopback.takes(&ctx.state.port.vport, room, params.domain) {
            out.wire.commit(ctx.now_ns, Fcs::Good);
        }
    }
    Ok(Outcome::Done)
}

/// Counts a frame that cannot go out: the link is down, or it is too long.
#[cold]
#[inline(never)]
fn drop_frame(ctx: &mut Ctx<'_>, len: usize) {
    let port = &mut ctx.state.port;
    if port.is_up() {
        port.counters.tx_errors.add(len as u64);
        ctx.refuse_data("packet", len as u64, "longer than the MTU of the port");
    } else {
        port.counters.tx_link_down += 1;
    }
}

/// Copies packet bytes from `skip` on, until `out` is full.
#[inline]
fn gather<'a>(
    ctx: &mut Ctx<'_>,
    params: &Params,
    segments: impl Iterator<Item = Result<Segment<'a>, WqeFault>>,
    skip: usize,
    out: &mut [u8],
    sent: &mut Sent,
) -> Result<(), WqeFault> {
    wqe::gather(segments, skip, out, |lkey, addr, into| {
        let len = u32::try_from(into.len()).unwrap_or(u32::MAX);
        let access = MemAccess::local(lkey, addr, len, Rights::LOCAL_READ, params.pd, params.rlky);
        sent.reads += 1;
        if ctx.state.faults.strikes(FaultSite::SendDma) {
            let (syndrome, why) = (CqeSyndrome::LOCAL_PROT_ERR, "injected fault");
            return Err(WqeFault { syndrome, field: "data.lkey", value: lkey.into(), why });
        }
        dma::read(ctx.mem, &ctx.state.objects.mkeys, &access, into)
            .map_err(|refused| WqeFault::protection(lkey, refused))
    })
}

/// Checks that the headers that the queue wants inline are inline.
///
/// # Source
/// Reference 5.7, `min_wqe_inline_mode`: 1 L2, 2 IP, 3 TCP/UDP; 6.3, "Min inline L2 = 14 bytes (18
/// with VLAN)".
#[inline]
fn check_inline(params: &Params, inline: usize, frame: &[u8]) -> Result<(), WqeFault> {
    if params.inline_mode == 0 {
        return Ok(());
    }
    let packet = Packet::parse(frame);
    let needed = match params.inline_mode {
        3 if packet.l4 != L4::None => packet.payload_offset,
        2 | 3 if packet.l3 != L3::None => packet.l4_offset,
        _ => packet.l3_offset,
    };
    if inline < needed {
        let why = "fewer bytes inline than min_wqe_inline_mode asks for";
        return Err(WqeFault::operation("eth.inline_hdr_sz", inline as u64, why));
    }
    Ok(())
}

/// Counts a frame that goes out.
#[inline]
fn count(ctx: &mut Ctx<'_>, destination: [u8; 6], len: usize, sent: &mut Sent) {
    let counters = &mut ctx.state.port.counters;
    let kind = match Cast::of(&destination) {
        Cast::Unicast => &mut counters.tx_unicast,
        Cast::Multicast => &mut counters.tx_multicast,
        Cast::Broadcast => &mut counters.tx_broadcast,
    };
    kind.add(len as u64);
    sent.packets += 1;
    sent.bytes += len as u64;
}
