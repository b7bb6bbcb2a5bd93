//! Receive queues: taking buffers, scattering packets, completions, errors and flushing.
//!
//! A queue has the buffers that its doorbell record says; the record is read when the ones known
//! are used up (receiving needs no doorbell: reference 6.6).
//!
//! What a failed queue owes is said by its record at that time, and completed in turns: neither the
//! ring's length nor a record that runs away makes a step long.
//!
//! Source: reference 6.5 (receive WQEs), 6.7 (CQE), 6.11 (completion), 5.6 and 5.8 (contexts).

use ferrocx_bus::local::DmaView;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, l3_hdr_type, l4_hdr_type};
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{DS_BYTES, HW_START_PADDING};

use super::fetch::Fetched;
use crate::bits::low16;
use crate::device::fault::FaultSite;
use crate::device::state::Ctx;
use crate::frame::offload::{self, Verified};
use crate::frame::packet::{ETH_HEADER_BYTES, Fragment, L3, L4, Packet, VLAN_TAG_BYTES};
use crate::frame::rss::FlowHash;
use crate::objects::mkey::{MemAccess, MkeyTable, Rights};
use crate::objects::{QueueState, ReceiveRing, RqMemory, WorkQueue};
use crate::queue::active::Active;
use crate::queue::completion::{self, ErrorReport};
use crate::queue::cq::{self, Completions, Urgency};
use crate::queue::dma;
use crate::queue::eq::QueueKind;
use crate::queue::ring::{advance, scatter_list};

/// `byte_cnt` of a striding queue: the entry holds no packet, only skipped strides.
const FILLER: u32 = 1 << 31;

/// Entries that a failed queue flushes in one turn.
const FLUSHED_PER_TURN: u16 = 256;
/// Failed queues that have a turn in one step; the others have theirs in the next ones.
const FLUSHES_PER_STEP: usize = 16;

/// Everything that is known about a packet before a queue is chosen.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival<'a> {
    pub(crate) packet: &'a Packet,
    pub(crate) verified: Verified,
    pub(crate) flow_tag: u32,
    pub(crate) hash: FlowHash,
    /// The completion's `l4_hdr_type`, by [`l4_hdr_type`].
    pub(crate) l4_hdr_type: u32,
}

/// Outcome of scattering a packet.
enum Scattered {
    /// They are in the buffer of this WQE.
    Done { wqe_counter: u16, wqe_id: u16, byte_cnt: u32 },
    /// The packet does not fit what is left of this WQE: its strides are skipped.
    Filler { wqe_id: u16, first: u16, strides: u32 },
    /// No buffer is posted.
    NoBuffer,
    /// The packet does not fit its WQE, which is used up, or these strides of it: no packet is
    /// there, and the queue goes on.
    TooLong { wqe_counter: u16, strides: u32, why: &'static str },
    /// The WQE is bad: the queue ends.
    Failed { wqe_counter: u16, syndrome: CqeSyndrome, value: u64, why: &'static str },
    /// The ring itself cannot be read.
    Lost,
}

/// Room for frames that are changed before they are scattered, and for WQEs.
#[derive(Debug, Default)]
pub(crate) struct Receive {
    edited: Vec<u8>,
    fetched: Fetched,
    /// Queues that owe more flushed entries than one turn completes.
    flushing: Active,
}

impl Receive {
    /// A new step: what was fetched may have been posted anew since.
    #[inline]
    pub(crate) fn start_burst(&mut self) {
        self.fetched.forget();
    }

    /// The function was reset: nobody waits for what was posted.
    pub(crate) fn clear(&mut self) {
        self.flushing.clear();
    }

    /// Once per step: goes on with what failed queues owe. Returns whether there was anything.
    #[inline]
    pub(crate) fn go_on_flushing(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
    ) -> bool {
        let queues = self.flushing.len();
        for _ in 0..queues.min(FLUSHES_PER_STEP) {
            let Some(rqn) = self.flushing.take() else { break };
            if flush_turn(ctx, completions, rqn) {
                self.flushing.add(rqn);
            }
        }
        queues != 0
    }

    /// The state of a queue changed (already stored): flushes it, or forgets what was owed.
    pub(crate) fn state_changed(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        rqn: u32,
        from: QueueState,
    ) {
        let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) else { return };
        match rq.state {
            QueueState::Error if from != QueueState::Error => flush(ctx, self, completions, rqn),
            QueueState::Error => {}
            QueueState::Reset | QueueState::Ready => {
                if rq.state == QueueState::Reset {
                    rq.ring = ReceiveRing::default();
                }
                rq.owed = 0;
                self.flushing.remove(rqn);
            }
        }
    }
}

/// Delivers a frame to a queue.
#[inline(never)]
pub(crate) fn deliver(
    ctx: &mut Ctx<'_>,
    receive: &mut Receive,
    completions: &mut Completions,
    rqn: u32,
    frame: &[u8],
    arrival: &Arrival<'_>,
) {
    let Some(rq) = ctx.state.objects.rqs.get(rqn).filter(|rq| rq.state == QueueState::Ready) else {
        ctx.state.port.counters.rx_steering_missed += 1;
        return;
    };
    let tag = if rq.vlan_strip_disable { None } else { offload::strippable(arrival.packet) };
    let is_pooled = matches!(rq.memory, RqMemory::Rmp(_));
    let (cqn, user_index) = (rq.cqn, rq.user_index);
    let bytes = if tag.is_some() || rq.scatter_fcs {
        edit(&mut receive.edited, frame, tag.is_some(), rq.scatter_fcs)
    } else {
        frame
    };
    loop {
        match scatter(ctx, &mut receive.fetched, rqn, bytes) {
            Scattered::Done { wqe_counter, wqe_id, byte_cnt } => {
                let mut entry = entry(ctx, arrival, tag)
                    .with_srqn_uidx(user_index)
                    .with_wqe_id(wqe_id.into())
                    .with_byte_cnt(byte_cnt)
                    .with_wqe_counter(wqe_counter.into());
                completion::complete_received(ctx, completions, cqn, &mut entry);
                if is_pooled {
                    check_limit(ctx, rqn);
                }
                return;
            }
            Scattered::Filler { wqe_id, first, strides } => {
                let mut entry = Cqe64::zeroed()
                    .with_srqn_uidx(user_index)
                    .with_timestamp(cq::timestamp(ctx.now_ns))
                    .with_wqe_id(wqe_id.into())
                    .with_byte_cnt(FILLER | strides << 16)
                    .with_wqe_counter(first.into())
                    .with_opcode(CqeOpcode::RESPONDER_SEND.0);
                completion::complete_received(ctx, completions, cqn, &mut entry);
            }
            Scattered::NoBuffer => return no_buffer(ctx, rqn),
            Scattered::TooLong { wqe_counter, strides, why } => {
                ctx.refuse_data("received frame", bytes.len() as u64, why);
                let syndrome = CqeSyndrome::LOCAL_LENGTH_ERR;
                report(ctx, completions, rqn, (wqe_counter, syndrome, strides << 16));
                if is_pooled {
                    check_limit(ctx, rqn);
                }
                return;
            }
            Scattered::Failed { wqe_counter, syndrome, value, why } => {
                ctx.refuse_data("receive data segment", value, why);
                fail_wqe(ctx, receive, completions, rqn, (wqe_counter, syndrome));
                return;
            }
            Scattered::Lost => {
                ctx.refuse_data("rqn", rqn.into(), "receive queue cannot be read");
                if let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) {
                    rq.state = QueueState::Error;
                }
                ctx.queue_event(EventType::WQ_CATASTROPHIC, QueueKind::Rq, rqn);
                return;
            }
        }
    }
}

/// A frame without its outer tag, or with its FCS behind it.
fn edit<'a>(edited: &'a mut Vec<u8>, frame: &[u8], strip: bool, fcs: bool) -> &'a [u8] {
    const ADDRESSES: usize = ETH_HEADER_BYTES - 2;
    edited.clear();
    if strip {
        edited.extend_from_slice(&frame[..ADDRESSES]);
        edited.extend_from_slice(&frame[ADDRESSES + VLAN_TAG_BYTES..]);
    } else {
        edited.extend_from_slice(frame);
    }
    if fcs {
        // IEEE 802.3-2018 3.2.9: the CRC-32 of the frame, least significant byte first.
        edited.extend_from_slice(&crc32fast::hash(frame).to_le_bytes());
    }
    edited
}

/// The fields of the completion that come from the packet. Source: reference 6.7.
#[inline]
fn entry(ctx: &Ctx<'_>, arrival: &Arrival<'_>, tag: Option<u16>) -> Cqe64 {
    let Arrival { packet, verified, flow_tag, hash, l4_hdr_type } = arrival;
    let (l3_type, min_l3) = match packet.l3 {
        L3::None => (0, 0),
        L3::Ipv6 => (l3_hdr_type::IPV6, 40),
        L3::Ipv4 => (l3_hdr_type::IPV4, 20),
    };
    let has_options = packet.l3 != L3::None && packet.l4_offset - packet.l3_offset > min_l3;
    Cqe64::zeroed()
        .with_rx_hash_result(hash.value)
        .with_rx_hash_l3(hash.l3)
        .with_rx_hash_l4(hash.l4)
        .with_check_sum(verified.check_sum.into())
        .with_l2_ok(true)
        .with_l3_ok(verified.l3_ok)
        .with_l4_ok(verified.l4_ok)
        .with_ip_frag(packet.fragment != Fragment::No)
        .with_l4_hdr_type(*l4_hdr_type)
        .with_l3_hdr_type(l3_type)
        .with_ip_ext_opts(has_options)
        .with_cv(tag.is_some())
        .with_vlan_info(tag.unwrap_or(0).into())
        .with_timestamp(cq::timestamp(ctx.now_ns))
        .with_sop_drop_qpn(*flow_tag)
        .with_opcode(CqeOpcode::RESPONDER_SEND.0)
}

/// [`l4_hdr_type`] of the completion.
///
/// # Source
/// Reference 6.7, byte 0x1d.
#[inline]
pub(crate) fn l4_hdr_type(frame: &[u8], packet: &Packet) -> u32 {
    const ACK: u8 = 0x10;
    match packet.l4 {
        L4::None => 0,
        L4::Udp => l4_hdr_type::UDP,
        L4::Tcp if frame[packet.l4_offset + 13] & ACK == 0 => l4_hdr_type::TCP,
        L4::Tcp if packet.payload_offset == packet.l3_end => l4_hdr_type::TCP_EMPTY_ACK,
        L4::Tcp => l4_hdr_type::TCP_ACK,
    }
}

#[cold]
fn no_buffer(ctx: &mut Ctx<'_>, rqn: u32) {
    ctx.state.port.counters.rx_out_of_buffer += 1;
    if let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) {
        rq.stats.out_of_buffer += 1;
        if let Some(counter) = ctx.state.objects.q_counters.get_mut(rq.counter_set_id) {
            counter.out_of_buffer += 1;
        }
    }
}

/// Puts the bytes into the next buffer of the queue, and counts them and the entry that says so.
#[inline]
fn scatter(ctx: &mut Ctx<'_>, fetched: &mut Fetched, rqn: u32, bytes: &[u8]) -> Scattered {
    let objects = &mut ctx.state.objects;
    let Some(rq) = objects.rqs.get_mut(rqn) else { return Scattered::NoBuffer };
    let (wq, ring) = match &rq.memory {
        RqMemory::Inline(wq) => (wq, &mut rq.ring),
        RqMemory::Rmp(rmpn) => match objects.rmps.get_mut(*rmpn) {
            Some(rmp) => (&rmp.wq, &mut rmp.ring),
            None => return Scattered::NoBuffer,
        },
    };
    if ring.posted == ring.consumed {
        rq.stats.doorbells += 1;
        rq.stats.dma_reads += 1;
        match ctx.mem.load_acquire_be32(wq.dbr_addr) {
            // Low 16 bits are significant: reference 6.6.
            Ok(record) => ring.posted = low16(record.into()),
            Err(_) => return Scattered::Lost,
        }
        if ring.posted == ring.consumed {
            return Scattered::NoBuffer;
        }
        if u32::from(ring.posted.wrapping_sub(ring.consumed)) > 1 << wq.log_size {
            let value = ring.posted.into();
            let why = "more entries posted than the ring has";
            let syndrome = CqeSyndrome::LOCAL_QP_OP_ERR;
            ring.posted = ring.consumed;
            return Scattered::Failed { wqe_counter: ring.consumed, syndrome, value, why };
        }
    }
    let mask = (1_u16 << wq.log_size.min(15)) - 1;
    let index = if wq.wq_type.is_linked() { ring.next_wqe } else { ring.consumed & mask };
    if index > mask {
        let (syndrome, value) = (CqeSyndrome::LOCAL_QP_OP_ERR, index.into());
        let why = "next_wqe_index is past the ring";
        return Scattered::Failed { wqe_counter: index, syndrome, value, why };
    }
    let queue = (rqn, wq);
    let Some(wqe) = fetched.wqe(ctx.mem, &mut rq.stats, queue, (ring, index)) else {
        return Scattered::Lost;
    };
    if ctx.state.faults.strikes(FaultSite::ReceiveDma) {
        let (syndrome, value) = (CqeSyndrome::LOCAL_PROT_ERR, index.into());
        let why = "injected fault";
        return Scattered::Failed { wqe_counter: ring.consumed, syndrome, value, why };
    }
    let target = Target { mem: ctx.mem, keys: &objects.mkeys, pd: wq.pd, rlky: rq.rlky };
    let result = if wq.wq_type.is_striding() {
        into_strides(wq, ring, (index, wqe), &target, bytes)
    } else {
        into_list(wq, ring, (index, wqe), &target, bytes)
    };
    match result {
        Scattered::Done { .. } => {
            rq.stats.packets += 1;
            rq.stats.payload_bytes += bytes.len() as u64;
            rq.stats.wqes += u64::from(ring.strides_used == 0);
            rq.stats.dma_writes += 2;
            rq.stats.completions += 1;
        }
        Scattered::Filler { .. } => {
            rq.stats.dma_writes += 1;
            rq.stats.completions += 1;
        }
        Scattered::TooLong { .. }
        | Scattered::NoBuffer
        | Scattered::Failed { .. }
        | Scattered::Lost => {}
    }
    result
}

/// Memory, keys and rights with which a queue reaches its buffers.
struct Target<'a> {
    mem: &'a DmaView<'a>,
    keys: &'a MkeyTable,
    pd: u32,
    rlky: bool,
}

impl Target<'_> {
    #[inline]
    fn write(&self, lkey: u32, addr: u64, bytes: &[u8]) -> Result<(), (CqeSyndrome, &'static str)> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let access = MemAccess::local(lkey, addr, len, Rights::LOCAL_WRITE, self.pd, self.rlky);
        dma::write(self.mem, self.keys, &access, bytes)
            .map_err(|refused| (refused.syndrome(), refused.why()))
    }
}

/// One packet per entry. Source: reference 6.5, 6.11.
#[inline]
fn into_list(
    wq: &WorkQueue,
    ring: &mut ReceiveRing,
    (index, wqe): (u16, &[u8]),
    target: &Target<'_>,
    bytes: &[u8],
) -> Scattered {
    let wqe_counter = if wq.wq_type.is_linked() { index } else { ring.consumed };
    advance(wq, ring, wqe);
    // The packet starts two bytes into the buffer, so that its IP header is aligned.
    let mut shift = if wq.two_byte_shift { 2 } else { 0 };
    let mut done = 0;
    for data in scatter_list(wq, wqe) {
        if done == bytes.len() {
            break;
        }
        let value = data.lkey().into();
        let len_bytes = data.byte_count() & !HW_START_PADDING;
        let room = (len_bytes as usize).saturating_sub(shift);
        let take = room.min(bytes.len() - done);
        if take > 0 {
            let addr = data.addr().wrapping_add(shift as u64);
            let part = &bytes[done..done + take];
            if let Err((syndrome, why)) = target.write(data.lkey(), addr, part) {
                return Scattered::Failed { wqe_counter, syndrome, value, why };
            }
            done += take;
        }
        shift = 0;
    }
    if done < bytes.len() {
        let why = "the packet does not fit the buffers of its WQE";
        return Scattered::TooLong { wqe_counter, strides: 0, why };
    }
    let wqe_id = if wq.wq_type.is_linked() { index } else { 0 };
    let byte_cnt = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Scattered::Done { wqe_counter, wqe_id, byte_cnt }
}

/// Many packets per entry, each from a stride boundary on. Source: reference 6.5, 6.7 (`byte_cnt`).
fn into_strides(
    wq: &WorkQueue,
    ring: &mut ReceiveRing,
    (index, wqe): (u16, &[u8]),
    target: &Target<'_>,
    bytes: &[u8],
) -> Scattered {
    let wqe_id = if wq.wq_type.is_linked() { index } else { ring.consumed };
    let shift = if wq.two_byte_shift { 2 } else { 0 };
    let strides = 1_u32 << wq.log_strides_per_wqe;
    let stride_bytes = 1_usize << wq.log_stride_bytes;
    let needed = (bytes.len() + shift).div_ceil(stride_bytes);
    let needed = u32::try_from(needed).unwrap_or(u32::MAX);
    let fail =
        |syndrome, value, why| Scattered::Failed { wqe_counter: wqe_id, syndrome, value, why };
    let first = low16(ring.strides_used.into());
    if needed > strides {
        let strides = strides - ring.strides_used;
        advance(wq, ring, wqe);
        let why = "the packet is longer than all strides of a WQE";
        return Scattered::TooLong { wqe_counter: first, strides, why };
    }
    if ring.strides_used + needed > strides {
        let strides = strides - ring.strides_used;
        advance(wq, ring, wqe);
        return Scattered::Filler { wqe_id, first, strides };
    }
    let mut skip = u64::from(ring.strides_used) << wq.log_stride_bytes | shift as u64;
    let mut done = 0;
    for data in scatter_list(wq, wqe) {
        let len = u64::from(data.byte_count());
        if skip >= len {
            skip -= len;
            continue;
        }
        let room = usize::try_from(len - skip).unwrap_or(usize::MAX);
        let take = room.min(bytes.len() - done);
        let part = &bytes[done..done + take];
        let addr = data.addr().wrapping_add(skip);
        if let Err((syndrome, why)) = target.write(data.lkey(), addr, part) {
            return fail(syndrome, data.lkey().into(), why);
        }
        done += take;
        skip = 0;
        if done == bytes.len() {
            break;
        }
    }
    ring.strides_used += needed;
    if ring.strides_used == strides {
        advance(wq, ring, wqe);
    }
    if done < bytes.len() {
        let why = "the buffer of the WQE is shorter than its strides";
        return Scattered::TooLong { wqe_counter: first, strides: needed, why };
    }
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    Scattered::Done { wqe_counter: first, wqe_id, byte_cnt: needed << 16 | len }
}

/// Ends the queue at a bad WQE: error completion, error state, the rest flushed.
#[cold]
fn fail_wqe(
    ctx: &mut Ctx<'_>,
    receive: &mut Receive,
    completions: &mut Completions,
    rqn: u32,
    (wqe_counter, syndrome): (u16, CqeSyndrome),
) {
    report(ctx, completions, rqn, (wqe_counter, syndrome, 0));
    if let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) {
        rq.state = QueueState::Error;
    }
    flush(ctx, receive, completions, rqn);
}

/// Writes an error completion. `false` when it was lost. Its `byte_cnt` says which strides are used
/// up. Source: Linux `mlx5e_handle_rx_cqe_mpwrq`.
fn report(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    rqn: u32,
    (wqe_counter, syndrome, byte_cnt): (u16, CqeSyndrome, u32),
) -> bool {
    let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) else { return false };
    rq.stats.completions += 1;
    rq.stats.errors += 1;
    rq.stats.dma_writes += 1;
    let report = ErrorReport {
        cqn: rq.cqn,
        opcode: CqeOpcode::RESPONDER_ERROR,
        syndrome,
        wqe_opcode: 0,
        queue: rqn,
        wqe_counter,
        user_index: rq.user_index,
    };
    let mut entry = Cqe64(report.entry()).with_byte_cnt(byte_cnt).0;
    completion::complete(ctx, completions, report.cqn, &mut entry, Urgency::Solicited)
}

/// Completes every posted entry with "flushed", if the queue was created to do so: those that the
/// record shows now. Some at once, the rest in the next steps.
///
/// Entries of a receive memory pool stay: they belong to all its queues.
///
/// # Source
/// Reference 6.7: "remaining WQEs complete with 0x05 ... SQ/RQ: only if flush_in_error_en".
#[cold]
fn flush(ctx: &mut Ctx<'_>, receive: &mut Receive, completions: &mut Completions, rqn: u32) {
    let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) else { return };
    let RqMemory::Inline(wq) = &rq.memory else { return };
    if !rq.flush_in_error {
        return;
    }
    if let Ok(record) = ctx.mem.load_acquire_be32(wq.dbr_addr) {
        let posted = low16(record.into());
        if u32::from(posted.wrapping_sub(rq.ring.consumed)) <= 1 << wq.log_size {
            rq.ring.posted = posted;
        }
    }
    let was_in_line = rq.owed != 0;
    rq.owed = rq.ring.posted.wrapping_sub(rq.ring.consumed);
    if !was_in_line && flush_turn(ctx, completions, rqn) {
        receive.flushing.add(rqn);
    }
}

/// Completes some of the entries that a failed queue owes. Returns whether it owes more.
fn flush_turn(ctx: &mut Ctx<'_>, completions: &mut Completions, rqn: u32) -> bool {
    for _ in 0..FLUSHED_PER_TURN {
        let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) else { return false };
        let RqMemory::Inline(wq) = &rq.memory else { return false };
        let Some(left) = rq.owed.checked_sub(1) else { return false };
        rq.owed = 0;
        let mut wqe_counter = rq.ring.consumed;
        if wq.wq_type.is_linked() {
            wqe_counter = rq.ring.next_wqe;
            if u32::from(wqe_counter) >= 1 << wq.log_size {
                return false;
            }
            let at = wq.memory.locate(u64::from(wqe_counter) << wq.log_stride);
            let mut next = [0; DS_BYTES];
            if ctx.mem.read(at, &mut next).is_err() {
                return false;
            }
            advance(wq, &mut rq.ring, &next);
        } else {
            advance(wq, &mut rq.ring, &[]);
        }
        // A completion queue that is lost takes no more of them.
        if !report(ctx, completions, rqn, (wqe_counter, CqeSyndrome::WR_FLUSH_ERR, 0)) {
            return false;
        }
        if let Some(rq) = ctx.state.objects.rqs.get_mut(rqn) {
            rq.owed = left;
        }
    }
    ctx.state.objects.rqs.get(rqn).is_some_and(|rq| rq.owed != 0)
}

/// Raises the limit event of a pool that ran low. Source: reference 6.10, type 0x14; 4.3,
/// MODIFY_RMP.
fn check_limit(ctx: &mut Ctx<'_>, rqn: u32) {
    let objects = &mut ctx.state.objects;
    let Some(RqMemory::Rmp(rmpn)) = objects.rqs.get(rqn).map(|rq| &rq.memory) else { return };
    let rmpn = *rmpn;
    let Some(rmp) = objects.rmps.get_mut(rmpn).filter(|rmp| rmp.limit != 0) else { return };
    let left = u32::from(rmp.ring.posted.wrapping_sub(rmp.ring.consumed));
    if left < rmp.limit {
        rmp.limit = 0;
        let data = ferrocx_prm::eqe::EventQueue::zeroed().with_number(rmpn);
        ctx.raise_event(EventType::SRQ_LIMIT, 0, data.0);
    }
}
