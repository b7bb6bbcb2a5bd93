//! Send queues: fetching WQEs, executing them, errors and flushing.
//!
//! A queue works only after its doorbell was rung, and then up to the counter in its doorbell
//! record (reference 6.6). WQEs are fetched many at a time. When the wire cannot take more, the
//! queue stays active and goes on in a later step, inside a WQE if need be.
//!
//! Long file: fetching, execution and error handling of one queue share their state.

use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_prm::layout::Part;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, CompletionMode, Ctrl, DS_BYTES, MAX_DS, Opcode};

use super::cq::{self, Completions, ErrorReport, Urgency};
use super::offload::{self, Tso};
use super::packet::{Cast, L3, L4, MIN_FRAME_BYTES, Packet};
use super::wqe::{self, EthSegment, Segment, Segments, WqeFault};
use super::{dma, low16};
use crate::fault::FaultSite;
use crate::mkey::{MemAccess, Rights};
use crate::nic::Ctx;
use crate::objects::{QueueState, Sq};
use crate::wire::{Fcs, MAX_FRAME_BYTES, Wire};

/// Basic blocks fetched at once; more than the longest WQE.
const WINDOW_BLOCKS: usize = 64;
/// Fetches of one queue in one step, so that queues take turns.
const WINDOWS_PER_TURN: usize = 4;
/// Longest payload of a large send: 2^18 bytes. Source: reference 5.11, `max_lso_cap` = 0x12.
const MAX_LSO_BYTES: usize = 1 << 18;

/// What the queues of one device share while they work.
#[derive(Debug)]
pub(super) struct Transmit {
    window: Box<[u8]>,
}

impl Default for Transmit {
    fn default() -> Self {
        Self { window: vec![0; WINDOW_BLOCKS * BASIC_BLOCK_BYTES].into() }
    }
}

/// The fields of an SQ that executing a WQE needs, copied so that nothing stays borrowed.
#[derive(Debug, Clone, Copy)]
struct Params {
    sqn: u32,
    cqn: u32,
    pd: u32,
    rlky: bool,
    user_index: u32,
    inline_mode: u32,
    has_tis: bool,
}

impl Params {
    fn of(sqn: u32, sq: &Sq) -> Self {
        Self {
            sqn,
            cqn: sq.cqn,
            pd: sq.wq.pd,
            rlky: sq.rlky,
            user_index: sq.user_index,
            inline_mode: sq.min_wqe_inline_mode,
            has_tis: sq.tisn.is_some(),
        }
    }
}

/// How far a WQE got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The wire is full; this many packets of the WQE are out.
    Stalled(u32),
}

/// What a burst of packets adds up to.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    packets: u64,
    bytes: u64,
    reads: u64,
}

/// The doorbell of a UAR page was rung: reads the record of a queue that may be meant.
///
/// `rung` is the first eight bytes of the last WQE posted, if the doorbell is known to name this
/// queue. A record that is behind it was forgotten; then nothing past the record is executed.
pub(super) fn doorbell(ctx: &mut Ctx<'_>, sqn: u32, rung: Option<u64>) -> bool {
    let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return false };
    if sq.state == QueueState::Reset {
        if rung.is_some() {
            ctx.refuse_data("sqn", u64::from(sqn), "doorbell for a send queue in reset");
        }
        return false;
    }
    sq.stats.doorbells += 1;
    sq.stats.dma_reads += 1;
    let Ok(record) = ctx.mem.load_acquire_be32(sq.wq.dbr_addr + 4) else {
        ctx.refuse_data("sq dbr_addr", u64::from(sqn), "doorbell record cannot be read");
        fail_queue(ctx, sqn);
        return false;
    };
    // Low 16 bits are significant: reference 6.6.
    let posted = low16(record.into());
    let pending = posted.wrapping_sub(sq.executed);
    let size = 1_u32 << sq.wq.log_size;
    if u32::from(pending) > size {
        ctx.refuse_data("send counter", u64::from(posted), "more blocks posted than the ring has");
        fail_queue(ctx, sqn);
        return false;
    }
    sq.posted = posted;
    sq.is_active = pending != 0;
    let is_active = sq.is_active;
    if let Some(raw) = rung {
        check_rung(ctx, raw, posted);
    }
    is_active
}

/// Says so when a doorbell names a WQE that its record does not cover.
fn check_rung(ctx: &mut Ctx<'_>, raw: u64, posted: u16) {
    let mut bytes = [0; DS_BYTES];
    bytes[..8].copy_from_slice(&raw.to_be_bytes());
    let ctrl = Ctrl(bytes);
    let blocks = ctrl.ds().div_ceil(4).max(1);
    let end = low16(ctrl.wqe_index().wrapping_add(blocks).into());
    let missing = end.wrapping_sub(posted);
    if missing != 0 && missing <= u16::MAX / 2 {
        ctx.refuse_data("send counter", posted.into(), "doorbell record behind its doorbell");
    }
}

/// The queue fails without a WQE to blame: no completion, an event, no more work.
#[cold]
fn fail_queue(ctx: &mut Ctx<'_>, sqn: u32) {
    if let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) {
        sq.state = QueueState::Error;
        sq.is_active = false;
    }
    let event = ferrocx_prm::eqe::EventType::WQ_CATASTROPHIC;
    ctx.queue_event(event, crate::eq::QueueKind::Sq, sqn);
}

/// Executes what is posted, up to a bound. Returns whether the queue is still active.
pub(super) fn run(
    ctx: &mut Ctx<'_>,
    transmit: &mut Transmit,
    completions: &mut Completions,
    wire: &mut dyn Wire,
    sqn: u32,
) -> bool {
    for _ in 0..WINDOWS_PER_TURN {
        let Some(sq) = ctx.state.objects.sqs.get(sqn).filter(|sq| sq.is_active) else {
            return false;
        };
        if sq.state == QueueState::Error {
            flush(ctx, transmit, completions, sqn);
            return false;
        }
        let Some(blocks) = fetch(ctx, transmit, sqn) else {
            fail_queue(ctx, sqn);
            return false;
        };
        if !run_window(ctx, transmit, completions, wire, (sqn, blocks)) {
            break;
        }
    }
    ctx.state.objects.sqs.get(sqn).is_some_and(|sq| sq.is_active)
}

/// Reads posted blocks into the window; `None` when the ring cannot be read.
fn fetch(ctx: &mut Ctx<'_>, transmit: &mut Transmit, sqn: u32) -> Option<usize> {
    let sq = ctx.state.objects.sqs.get_mut(sqn)?;
    let pending = usize::from(sq.posted.wrapping_sub(sq.executed));
    let blocks = pending.min(WINDOW_BLOCKS);
    let window = &mut transmit.window[..blocks * BASIC_BLOCK_BYTES];
    let mask = (1_u64 << sq.wq.log_size) - 1;
    let mut at = (u64::from(sq.executed) & mask) * BASIC_BLOCK_BYTES as u64;
    let mut done = 0;
    while done < window.len() {
        let run = usize::try_from(sq.wq.memory.run_bytes(at)).unwrap_or(usize::MAX);
        let step = run.min(window.len() - done);
        let iova = sq.wq.memory.locate(at);
        if ctx.mem.read(iova, &mut window[done..done + step]).is_err() {
            ctx.refuse_data("sq pas", iova, "send queue cannot be read");
            return None;
        }
        sq.stats.dma_reads += 1;
        done += step;
        at = (at + step as u64) % sq.wq.memory.len_bytes();
    }
    sq.stats.descriptor_bytes += done as u64;
    Some(blocks)
}

/// Executes the WQEs of a window. Returns whether it is worth fetching the next one.
fn run_window(
    ctx: &mut Ctx<'_>,
    transmit: &Transmit,
    completions: &mut Completions,
    wire: &mut dyn Wire,
    (sqn, blocks): (u32, usize),
) -> bool {
    let Some(sq) = ctx.state.objects.sqs.get(sqn) else { return false };
    let params = Params::of(sqn, sq);
    let pending = usize::from(sq.posted.wrapping_sub(sq.executed));
    let (mut counter, mut progress) = (sq.executed, sq.wqe_progress);
    let mut sent = Sent::default();
    let (mut at, mut wqes, mut signaled) = (0, 0, 0);
    let mut fault = None;
    let mut is_stalled = false;
    while at < blocks {
        let rest = &transmit.window[at * BASIC_BLOCK_BYTES..blocks * BASIC_BLOCK_BYTES];
        let ctrl = Ctrl::load(&rest[..DS_BYTES]);
        let ds = ctrl.ds() as usize;
        let len_blocks = ds.div_ceil(4).max(1);
        if at + len_blocks > blocks && blocks < pending {
            // The rest of this WQE is in the next window.
            break;
        }
        let result = wqe::check_ctrl(&ctrl, sqn, counter)
            .and_then(|()| {
                let why = "the WQE is empty or longer than what is posted";
                let bytes = rest.get(..ds * DS_BYTES).filter(|_| ds != 0);
                bytes.ok_or_else(|| WqeFault::operation("ctrl.ds", ds as u64, why))
            })
            .and_then(|wqe| execute(ctx, wire, &params, (&ctrl, wqe), progress, &mut sent));
        match result {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Stalled(packets)) => {
                progress = packets;
                is_stalled = true;
                break;
            }
            Err(reason) => {
                fault = Some((reason, ctrl));
                break;
            }
        }
        progress = 0;
        wqes += 1;
        let first_block = counter;
        at += len_blocks;
        counter = counter.wrapping_add(low16(len_blocks as u64));
        if ctrl.ce() >= CompletionMode::ALWAYS.0 {
            signaled += 1;
            if !complete(ctx, completions, &params, &ctrl, first_block) {
                // The CQ is lost, and with it this queue.
                break;
            }
        }
    }
    if let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) {
        sq.executed = counter;
        sq.wqe_progress = progress;
        sq.is_active = sq.posted != counter;
        sq.stats.wqes += wqes;
        sq.stats.packets += sent.packets;
        sq.stats.payload_bytes += sent.bytes;
        sq.stats.dma_reads += sent.reads;
        sq.stats.completions += signaled;
        sq.stats.dma_writes += signaled;
    }
    if let Some((reason, ctrl)) = fault {
        fail_wqe(ctx, completions, &params, (&ctrl, counter), &reason);
    }
    !is_stalled
}

/// Writes the completion of a WQE. Source: reference 6.7, 6.12.
#[inline]
fn complete(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    ctrl: &Ctrl,
    counter: u16,
) -> bool {
    let entry = Cqe64::zeroed()
        .with_srqn_uidx(params.user_index)
        .with_timestamp(cq::timestamp(ctx.now_ns))
        .with_sop_qpn_opcode(ctrl.0[3].into())
        .with_sop_drop_qpn(params.sqn)
        .with_wqe_counter(counter.into())
        .with_opcode(CqeOpcode::REQUESTER.0)
        .with_se(ctrl.se());
    let urgency = match ctrl.ce() {
        ce if ce == CompletionMode::ALWAYS_AND_EQE.0 => Urgency::Event,
        _ if ctrl.se() => Urgency::Solicited,
        _ => Urgency::Plain,
    };
    cq::complete(ctx, completions, params.cqn, entry.0, urgency)
}

/// Ends the queue at a WQE: error completion, error state; [`flush`] does the rest.
#[cold]
fn fail_wqe(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    (ctrl, counter): (&Ctrl, u16),
    fault: &WqeFault,
) {
    ctx.refuse_data(fault.field, fault.value, fault.why);
    report(ctx, completions, params, (ctrl, counter), fault.syndrome);
    if let Some(sq) = ctx.state.objects.sqs.get_mut(params.sqn) {
        sq.state = QueueState::Error;
        // A WQE without a believable length still ends with its first block.
        let blocks = ctrl.ds().div_ceil(4).max(1);
        let pending = u32::from(sq.posted.wrapping_sub(sq.executed));
        let step = low16(blocks.min(pending).into());
        sq.executed = sq.executed.wrapping_add(step);
        sq.wqe_progress = 0;
        sq.is_active = sq.posted != sq.executed;
    }
}

/// Writes an error completion of a WQE.
fn report(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    (ctrl, counter): (&Ctrl, u16),
    syndrome: CqeSyndrome,
) {
    let report = ErrorReport {
        cqn: params.cqn,
        opcode: CqeOpcode::REQUESTER_ERROR,
        syndrome,
        wqe_opcode: ctrl.0[3],
        queue: params.sqn,
        wqe_counter: counter,
        user_index: params.user_index,
    };
    cq::complete_error(ctx, completions, &report);
    if let Some(sq) = ctx.state.objects.sqs.get_mut(params.sqn) {
        sq.error_reported = true;
        sq.stats.completions += 1;
        sq.stats.errors += 1;
        sq.stats.dma_writes += 1;
    }
}

/// Completes everything that is posted with "flushed", if the queue was created to do so.
///
/// A WQE that wants a completion for the first error only gets none here once one was written.
///
/// # Source
/// Reference 6.7: "remaining WQEs complete with 0x05 ... SQ/RQ: only if flush_in_error_en"; 6.1,
/// `ce`.
#[cold]
pub(super) fn flush(
    ctx: &mut Ctx<'_>,
    transmit: &mut Transmit,
    completions: &mut Completions,
    sqn: u32,
) {
    while let Some(blocks) = fetch(ctx, transmit, sqn).filter(|blocks| *blocks > 0) {
        let Some(sq) = ctx.state.objects.sqs.get(sqn).filter(|sq| sq.flush_in_error) else { break };
        let params = Params::of(sqn, sq);
        let mut counter = sq.executed;
        let mut error_reported = sq.error_reported;
        let mut at = 0;
        while at < blocks {
            let ctrl = Ctrl::load(&transmit.window[at * BASIC_BLOCK_BYTES..][..DS_BYTES]);
            if !(error_reported && ctrl.ce() == CompletionMode::ON_FIRST_ERROR.0) {
                report(ctx, completions, &params, (&ctrl, counter), CqeSyndrome::WR_FLUSH_ERR);
                error_reported = true;
            }
            let step = (ctrl.ds().div_ceil(4).max(1) as usize).min(MAX_DS as usize);
            at += step;
            counter = counter.wrapping_add(low16(step as u64));
        }
        let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { break };
        // The last WQE may reach past what is posted when its length is wrong.
        let pending = sq.posted.wrapping_sub(sq.executed);
        let step = counter.wrapping_sub(sq.executed).min(pending);
        sq.executed = sq.executed.wrapping_add(step);
    }
    if let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) {
        sq.executed = sq.posted;
        sq.is_active = false;
        sq.wqe_progress = 0;
    }
}

/// Carries out one WQE, from packet number `progress` on.
#[inline]
fn execute(
    ctx: &mut Ctx<'_>,
    wire: &mut dyn Wire,
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
        Opcode::SEND => send(ctx, wire, params, &eth, segments, sent),
        Opcode::LSO => send_large(ctx, wire, params, &eth, segments, progress, sent),
        _ => send_many(ctx, wire, params, &eth, segments, progress, sent),
    }
}

/// Several packets of one segment each. Source: reference 6.3, "Enhanced multi-packet WQE".
fn send_many(
    ctx: &mut Ctx<'_>,
    wire: &mut dyn Wire,
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
        if packets >= progress {
            let one = core::iter::once(Ok(segment));
            if !send_frame(ctx, wire, params, eth, one, segment.len(), sent)? {
                return Ok(Outcome::Stalled(packets));
            }
        }
    }
    Ok(Outcome::Done)
}

#[inline]
fn send(
    ctx: &mut Ctx<'_>,
    wire: &mut dyn Wire,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: Segments<'_>,
    sent: &mut Sent,
) -> Result<Outcome, WqeFault> {
    let total = segments.total()? + eth.inline.len();
    let is_sent = send_frame(ctx, wire, params, eth, segments, total, sent)?;
    Ok(if is_sent { Outcome::Done } else { Outcome::Stalled(0) })
}

/// Builds one frame in the wire's buffer and sends it; `false` when the wire is full.
#[inline]
fn send_frame<'a>(
    ctx: &mut Ctx<'_>,
    wire: &mut dyn Wire,
    params: &Params,
    eth: &EthSegment<'_>,
    segments: impl Iterator<Item = Result<Segment<'a>, WqeFault>>,
    total: usize,
    sent: &mut Sent,
) -> Result<bool, WqeFault> {
    let tag = if eth.vlan.is_some() { super::packet::VLAN_TAG_BYTES } else { 0 };
    let len = total + tag;
    if total < super::packet::ETH_HEADER_BYTES {
        return Err(WqeFault::length("packet", total as u64, "shorter than an Ethernet header"));
    }
    if !may_send(ctx, len) {
        return Ok(true);
    }
    let Some(room) = wire.reserve(len.max(MIN_FRAME_BYTES)) else { return Ok(false) };
    let (frame, padding) = room.split_at_mut(len);
    padding.fill(0);
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
    wire.commit(ctx.now_ns, Fcs::Good);
    Ok(true)
}

/// One large packet, cut into segments. Source: reference 6.3, "LSO".
fn send_large(
    ctx: &mut Ctx<'_>,
    wire: &mut dyn Wire,
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
        let (start, _) = tso.payload_of(index);
        let len = tso.frame_bytes(index);
        if !may_send(ctx, len) {
            continue;
        }
        let Some(room) = wire.reserve(len.max(MIN_FRAME_BYTES)) else {
            return Ok(Outcome::Stalled(u32::try_from(index).unwrap_or(u32::MAX)));
        };
        let (frame, padding) = room.split_at_mut(len);
        padding.fill(0);
        frame[..header.len()].copy_from_slice(header);
        gather(ctx, params, segments, start, &mut frame[header.len()..], sent)?;
        tso.finish(frame, index);
        count(ctx, frame[0..6].try_into().unwrap_or_default(), len, sent);
        wire.commit(ctx.now_ns, Fcs::Good);
    }
    Ok(Outcome::Done)
}

/// Whether a frame of this length can go out now. If not it is counted, and gone.
#[inline]
fn may_send(ctx: &mut Ctx<'_>, len: usize) -> bool {
    let port = &mut ctx.state.port;
    if !port.is_up() {
        port.counters.tx_link_down += 1;
        return false;
    }
    // The port's MTU counts the FCS too. Source: reference 4.7, PMTU.
    let limit = (port.mtu as usize).saturating_sub(4).min(MAX_FRAME_BYTES);
    if len > limit {
        port.counters.tx_errors.add(len as u64);
        ctx.refuse_data("packet", len as u64, "longer than the MTU of the port");
        return false;
    }
    true
}

/// Copies packet bytes from `skip` on, until `out` is full.
#[inline]
fn gather<'a>(
    ctx: &mut Ctx<'_>,
    params: &Params,
    segments: impl Iterator<Item = Result<Segment<'a>, WqeFault>>,
    mut skip: usize,
    out: &mut [u8],
    sent: &mut Sent,
) -> Result<(), WqeFault> {
    let mut done = 0;
    for segment in segments {
        let segment = segment?;
        let len = segment.len();
        if skip >= len {
            skip -= len;
            continue;
        }
        if done == out.len() {
            break;
        }
        let take = (len - skip).min(out.len() - done);
        let into = &mut out[done..done + take];
        match segment {
            Segment::Inline(bytes) => into.copy_from_slice(&bytes[skip..skip + take]),
            Segment::Pointer { lkey, addr, .. } => {
                let addr = addr.wrapping_add(skip as u64);
                let len = u32::try_from(take).unwrap_or(u32::MAX);
                let rights = Rights::LOCAL_READ;
                let access = MemAccess::local(lkey, addr, len, rights, params.pd, params.rlky);
                sent.reads += 1;
                if ctx.state.faults.strikes(FaultSite::SendDma) {
                    let syndrome = CqeSyndrome::LOCAL_PROT_ERR;
                    let (value, why) = (lkey.into(), "injected fault");
                    return Err(WqeFault { syndrome, field: "data.lkey", value, why });
                }
                dma::read(ctx.mem, &ctx.state.objects.mkeys, &access, into).map_err(|refused| {
                    let (syndrome, why) = (refused.syndrome(), refused.why());
                    WqeFault { syndrome, field: "data.lkey", value: lkey.into(), why }
                })?;
            }
        }
        done += take;
        skip = 0;
    }
    Ok(())
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
