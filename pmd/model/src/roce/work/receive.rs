//! Requests of peers: carrying them out, completing receives, replying.
//!
//! Source: reference 6.7, 6.11, 6.12, 7.5, 7.6, 7.8.

use ferrocx_bus::local::DmaFault;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;

use super::env::Env;
use super::error::fail;
use super::ring::{self, destination, report};
use super::{answer, congestion, inline, path, umr, xrc};
use crate::bits::low32;
use crate::objects::mkey::{MemAccess, Rights};
use crate::objects::{Qp, QpState, QpType, TakenReceive};
use crate::queue::cq::{self, Urgency};
use crate::queue::dma;
use crate::roce::transport::atomic::{self, Size};
use crate::roce::transport::bth::{AckSyndrome, Header, Op, Reth, Transport};
use crate::roce::transport::packet::Frame;
use crate::roce::transport::responder::Arrival;
use crate::roce::transport::{GSI_QKEY, Network};

/// Room for the IP header in front of a datagram. Source: reference 6.11.
const GRH_BYTES: usize = 40;

/// Refusal of a request: the answer to the peer, and the syndrome of the receive.
struct Refusal {
    nak: AckSyndrome,
    syndrome: CqeSyndrome,
    event: Option<EventType>,
    value: u64,
    why: &'static str,
}

impl Refusal {
    /// Wrong in itself.
    #[cold]
    fn invalid(why: &'static str) -> Self {
        Self {
            nak: AckSyndrome::NAK_INVALID_REQUEST,
            syndrome: CqeSyndrome::REMOTE_INVAL_REQ_ERR,
            event: Some(EventType::WQ_INVALID_REQ),
            value: 0,
            why,
        }
    }

    /// Key, range or rights; or what is behind a key that permits it, which is no fault of the
    /// peer's. By the meaning of the codes (reference 7.5); what devices answer then is not known.
    #[cold]
    fn memory(rkey: u32, refused: dma::Refused) -> Self {
        let syndrome = match refused {
            dma::Refused::Key(_) => CqeSyndrome::LOCAL_ACCESS_ERR,
            dma::Refused::Bus(_) => CqeSyndrome::LOCAL_PROT_ERR,
        };
        let (nak, event) = out_of_reach(refused);
        Self { nak, syndrome, event: Some(event), value: rkey.into(), why: refused.why() }
    }

    /// The receive cannot take it.
    #[cold]
    fn local((syndrome, value, why): (CqeSyndrome, u64, &'static str)) -> Self {
        let nak = if syndrome == CqeSyndrome::LOCAL_LENGTH_ERR {
            AckSyndrome::NAK_INVALID_REQUEST
        } else {
            AckSyndrome::NAK_REMOTE_OPERATION
        };
        Self { nak, syndrome, event: None, value, why }
    }
}

/// The answer to a request whose memory cannot be reached, and what the driver is told.
pub(super) fn out_of_reach(refused: dma::Refused) -> (AckSyndrome, EventType) {
    match refused {
        dma::Refused::Key(_) => (AckSyndrome::NAK_REMOTE_ACCESS, EventType::WQ_ACCESS_ERROR),
        dma::Refused::Bus(_) => (AckSyndrome::NAK_REMOTE_OPERATION, EventType::WQ_CATASTROPHIC),
    }
}

/// A packet for a queue pair arrived.
pub(super) fn packet(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    let header = &frame.header;
    if !qp.state.receives() {
        env.drops.no_queue += 1;
        return;
    }
    if !path::is_for(qp, env, frame) {
        env.drops.address += 1;
        return;
    }
    if header.op == Op::Notification {
        return congestion::notified(qp, env, frame);
    }
    if qp.qp_type.transport() != Some(header.transport) {
        env.drops.transport += 1;
        return;
    }
    // The low 15 bits; one side is a full member, and that is this one. Source: reference 7.8.
    if header.pkey & 0x7fff != 0x7fff {
        env.drops.pkey += 1;
        return;
    }
    congestion::arrived(qp, env, frame);
    if header.op.is_response() {
        if qp.state == QpState::Rts {
            answer::answer(qp, env, frame);
        }
        return;
    }
    if qp.state == QpState::Rtr && !qp.established && qp.qp_type.is_connected() {
        qp.established = true;
        let qpn = env.qpn;
        env.event(EventType::COMM_ESTABLISHED, qpn);
    }
    qp.stats.payload_bytes += frame.payload.len() as u64;
    match header.transport {
        Transport::Rc | Transport::Xrc => reliable(qp, env, frame),
        Transport::Uc => unreliable(qp, env, frame),
        Transport::Ud => datagram(qp, env, frame),
        Transport::Cnp => {}
    }
}

fn payload_len(frame: &Frame<'_>) -> u32 {
    u32::try_from(frame.payload.len()).unwrap_or(u32::MAX)
}

/// Packets that came as one, for memory in pieces of other keys: one by one, as far as the step
/// goes. What is left is asked for again, as if it were lost.
fn apart(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    for (number, part) in frame.apart(qp.mtu_bytes()) {
        let is_last = number + 1 == frame.header.packets;
        reliable(qp, env, &part);
        if !qp.state.receives() {
            return;
        }
        if !is_last && env.is_turn_over() {
            let expected = qp.responder.expected();
            qp.responder.refuse(expected, AckSyndrome::NAK_SEQUENCE);
            return;
        }
    }
}

/// Whether a message goes to memory that is in no pieces of other keys, as far as that is known.
fn is_flat(qp: &Qp, env: &Env<'_>, header: &Header) -> bool {
    if !header.op.is_write() {
        // The receive of a message that starts is not taken yet.
        return qp.taken.is_some() && qp.buffers.iter().all(|data| env.keys.is_flat(data.lkey()));
    }
    let rkey = match header.op.starts_message() {
        true => Some(header.reth.rkey),
        false => qp.responder.write_target().map(|(_, rkey)| rkey),
    };
    rkey.is_none_or(|rkey| env.keys.is_flat(rkey))
}

fn reliable(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    if frame.header.packets > 1 && !is_flat(qp, env, &frame.header) {
        return apart(qp, env, frame);
    }
    let (header, len) = (&frame.header, payload_len(frame));
    match qp.responder.receive(header, len) {
        Arrival::New | Arrival::Restart => {}
        Arrival::Duplicate => {
            env.count(qp, |count| count.duplicate_request += 1);
            return;
        }
        Arrival::OutOfSequence => {
            env.count(qp, |count| count.out_of_sequence += 1);
            return;
        }
        Arrival::Dropped => return,
        Arrival::Invalid(why) => {
            refuse(qp, env, header, &Refusal::invalid(why));
            return;
        }
    }
    let result = match header.op {
        Op::ReadRequest => read(qp, env, header),
        op if op.is_atomic() => atomic(qp, env, header),
        _ => match push(qp, env, frame) {
            Ok(true) => {
                qp.responder.accept(header, len);
                if header.ack_request {
                    qp.responder.acknowledge(header.last_psn());
                }
                Ok(())
            }
            Ok(false) => return not_ready(qp, env, header),
            Err(refusal) => Err(refusal),
        },
    };
    if let Err(refusal) = result {
        refuse(qp, env, header, &refusal);
    }
}

/// No receive is posted. Source: reference 7.5.
fn not_ready(qp: &mut Qp, env: &mut Env<'_>, header: &Header) {
    env.out_of_buffer(qp);
    let timer = qp.context.min_rnr_nak().to_be_bytes()[3];
    qp.responder.refuse(header.psn, AckSyndrome::rnr(timer));
}

/// Tells the peer, completes the receive at hand, and ends the connection.
#[cold]
fn refuse(qp: &mut Qp, env: &mut Env<'_>, header: &Header, refusal: &Refusal) {
    env.refuse("rdma request", refusal.value, refusal.why);
    qp.responder.refuse(header.psn, refusal.nak);
    if refusal.nak == AckSyndrome::NAK_REMOTE_ACCESS {
        env.count(qp, |count| count.resp_remote_access_errors += 1);
    }
    if let Some(taken) = qp.taken.take() {
        report(qp, env, &taken, refusal.syndrome);
    }
    if let Some(event) = refusal.event {
        let qpn = env.qpn;
        env.event(event, qpn);
    }
    fail(qp, env);
}

fn unreliable(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    let (header, len) = (&frame.header, payload_len(frame));
    match qp.responder.receive_unreliable(header, len) {
        Arrival::New => {}
        Arrival::Restart => {
            // The receive of the message that was cut short serves the next one.
            if let Some(taken) = &mut qp.taken {
                taken.filled = 0;
            }
            if !header.op.starts_message() {
                return;
            }
        }
        _ => return,
    }
    match push(qp, env, frame) {
        Ok(true) => qp.responder.accept(header, len),
        // The message is lost; its other packets find no beginning.
        Ok(false) => env.out_of_buffer(qp),
        Err(refusal) => lose_message(qp, env, &refusal),
    }
}

/// A message of an unreliable connection cannot be taken. What its sender did wrong is lost without
/// a word, and the receive waits for another; a shared one is used up, with an error. A fault of
/// this side's own ends the queue pair.
///
/// # Source
///
/// IBTA vol. 1, 9.9.6.3, classes A, D and E; Linux `rxe_resp.c`, `RESPST_ERR_LENGTH` and
/// `RESPST_ERR_RKEY_VIOLATION`.
#[cold]
fn lose_message(qp: &mut Qp, env: &mut Env<'_>, refusal: &Refusal) {
    env.refuse("rdma request", refusal.value, refusal.why);
    let is_own_fault = refusal.nak == AckSyndrome::NAK_REMOTE_OPERATION;
    if !is_own_fault && (qp.taken.is_none() || ring::give_back(qp)) {
        qp.taken = None;
        if refusal.syndrome == CqeSyndrome::LOCAL_LENGTH_ERR {
            env.drops.too_long += 1;
        }
        return;
    }
    if let Some(taken) = qp.taken.take() {
        report(qp, env, &taken, refusal.syndrome);
    }
    if let Some(event) = refusal.event.filter(|_| is_own_fault) {
        let qpn = env.qpn;
        env.event(event, qpn);
    }
    fail(qp, env);
}

/// A packet of a SEND or WRITE. `false` when it needs a receive and none is posted.
fn push(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) -> Result<bool, Refusal> {
    let header = &frame.header;
    let needs_receive = header.op.is_send() || header.immediate().is_some();
    if needs_receive && qp.taken.is_none() {
        let srqn = match header.transport {
            Transport::Xrc => Some(xrc::queue(qp, env, header).map_err(Refusal::invalid)?),
            _ => None,
        };
        qp.taken = ring::take(qp, env, srqn).map_err(|ring::Lost| Refusal {
            event: Some(EventType::WQ_CATASTROPHIC),
            ..Refusal::local((CqeSyndrome::LOCAL_QP_OP_ERR, 0, "the receive ring cannot be read"))
        })?;
        if qp.taken.is_none() {
            return Ok(false);
        }
    }
    let is_whole = header.op.starts_message() && header.op.ends_message();
    let is_inline =
        is_whole && header.op.is_send() && qp.receive_scatter().takes(frame.payload.len());
    if header.op.is_write() {
        write(qp, env, frame)?;
    } else if let Some(taken) = &mut qp.taken {
        if is_inline {
            ring::skip((&qp.buffers, taken), payload_len(frame)).map_err(Refusal::local)?;
        } else {
            ring::scatter(env, (&qp.buffers, taken), frame.payload).map_err(Refusal::local)?;
        }
    }
    if header.op.ends_message() && needs_receive {
        finish(qp, env, header, if is_inline { frame.payload } else { &[] });
    }
    Ok(true)
}

pub(super) fn remote(
    qpn: u32,
    (pd, key): (u32, u32),
    (addr, len): (u64, u32),
    rights: Rights,
) -> MemAccess {
    MemAccess { key, addr, len, rights, pd, rlky: false, qpn }
}

/// What `log_msg_max` says holds for both directions of a message.
fn check_len(qp: &Qp, reth: &Reth) -> Result<(), Refusal> {
    if reth.len > 1 << qp.context.log_msg_max().min(31) {
        return Err(Refusal::invalid("longer than a message may be"));
    }
    Ok(())
}

/// Checks the whole range of an operation before its first byte moves.
fn check(env: &Env<'_>, pd: u32, reth: &Reth, rights: Rights) -> Result<(), Refusal> {
    if reth.len == 0 {
        return Ok(());
    }
    let access = remote(env.qpn, (pd, reth.rkey), (reth.va, reth.len), rights);
    let result = env.keys.translate(&access).map(|_| ());
    result.map_err(|fault| Refusal::memory(reth.rkey, dma::Refused::Key(fault)))
}

fn write(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) -> Result<(), Refusal> {
    let header = &frame.header;
    let pd = xrc::domain(qp, env, header).map_err(Refusal::invalid)?;
    if header.op.starts_message() {
        if !qp.context.rwe() {
            return Err(Refusal::invalid("remote writes are not enabled"));
        }
        check_len(qp, &header.reth)?;
        check(env, pd, &header.reth, Rights::REMOTE_WRITE)?;
        qp.responder.begin_write(header.reth);
        env.count(qp, |count| count.rx_write_requests += 1);
    }
    let Some((va, rkey)) = qp.responder.write_target() else { return Ok(()) };
    if frame.payload.is_empty() {
        return Ok(());
    }
    let place = (va, payload_len(frame));
    let access = remote(env.qpn, (pd, rkey), place, Rights::REMOTE_WRITE);
    dma::write(env.mem, env.keys, &access, frame.payload)
        .map_err(|refused| Refusal::memory(rkey, refused))
}

fn read(qp: &mut Qp, env: &mut Env<'_>, header: &Header) -> Result<(), Refusal> {
    if !qp.context.rre() {
        return Err(Refusal::invalid("remote reads are not enabled"));
    }
    if !qp.responder.has_room() {
        return Err(Refusal::invalid("more reads than responder resources"));
    }
    check_len(qp, &header.reth)?;
    let pd = xrc::domain(qp, env, header).map_err(Refusal::invalid)?;
    check(env, pd, &header.reth, Rights::REMOTE_READ)?;
    env.count(qp, |count| count.rx_read_requests += 1);
    qp.responder.accept_read(header.psn, header.reth, pd);
    Ok(())
}

/// `atomic_mode` of a context that lets masked atomics in: operands up to 8 bytes. 1 and 2 are the
/// standard ones only, 0 is none. Source: Linux 6.12 `MLX5_ATOMIC_MODE_8B`.
const ATOMIC_MODE_8B: u32 = 3;

fn atomic(qp: &mut Qp, env: &mut Env<'_>, header: &Header) -> Result<(), Refusal> {
    let request = header.atomic;
    let size = request.operands.size;
    let mode = qp.context.atomic_mode();
    if !qp.context.rae() || mode == 0 {
        return Err(Refusal::invalid("remote atomics are not enabled"));
    }
    let is_masked = matches!(header.op, Op::MaskedCompareSwap | Op::MaskedFetchAdd);
    if is_masked && mode < ATOMIC_MODE_8B {
        return Err(Refusal::invalid("atomic_mode permits standard atomics only"));
    }
    if !request.va.is_multiple_of(size.bytes().into()) {
        return Err(Refusal::invalid("an atomic that is not aligned to its size"));
    }
    if !qp.responder.has_room() {
        return Err(Refusal::invalid("more atomics than responder resources"));
    }
    let pd = xrc::domain(qp, env, header).map_err(Refusal::invalid)?;
    let place = (request.va, size.bytes());
    let access = remote(env.qpn, (pd, request.rkey), place, Rights::REMOTE_ATOMIC);
    let refused = |refused: dma::Refused| Refusal::memory(request.rkey, refused);
    let mut spans =
        env.keys.translate(&access).map_err(|fault| refused(dma::Refused::Key(fault)))?;
    let span = spans.next().filter(|span| span.len == size.bytes());
    let span = span.ok_or_else(|| Refusal::invalid("an atomic across two pieces of a key"))?;
    // The address may be a multiple of the size, and yet not the place that the key gives it.
    if !span.iova.is_multiple_of(size.bytes().into()) {
        return Err(Refusal::invalid("an atomic whose memory is not aligned to its size"));
    }
    let original =
        change(env, header, span.iova).map_err(|fault| refused(dma::Refused::Bus(fault)))?;
    for is_write in [false, true] {
        // The bus changes eight bytes.
        env.mem.note_data(8, is_write);
    }
    env.count(qp, |count| count.rx_atomic_requests += 1);
    qp.responder.accept_atomic(header.psn, original);
    Ok(())
}

/// Changes memory as an atomic says; returns what was there.
///
/// Eight bytes are in the order that the driver chose. Four are always a number of the host's: the
/// choice is about eight (`atomic_req_8b_endianness_mode`).
fn change(env: &Env<'_>, header: &Header, iova: u64) -> Result<u64, DmaFault> {
    let with = header.atomic.operands;
    let update = |old: u64| match header.op {
        Op::FetchAdd => old.wrapping_add(with.swap_add),
        Op::MaskedFetchAdd => atomic::masked_add(old, &with),
        _ => atomic::compare_swap(old, &with),
    };
    if with.size == Size::Four {
        // The bus changes eight bytes in one step; the neighbours keep their value.
        let shift = if iova & 4 == 0 { 32 } else { 0 };
        let four = |word: u64| u64::from(low32(word >> shift).swap_bytes());
        let original = env.mem.fetch_update_be64(iova & !7, |word| {
            let new = u64::from(low32(update(four(word))).swap_bytes());
            word & !(0xffff_ffff << shift) | new << shift
        })?;
        return Ok(four(original));
    }
    let is_host_order = env.caps.host_order_atomics();
    let order = |value: u64| if is_host_order { value.swap_bytes() } else { value };
    env.mem.fetch_update_be64(iova, |old| order(update(order(old)))).map(order)
}

/// A message with a receive is complete; its completion carries `data`, if there are any.
fn finish(qp: &mut Qp, env: &mut Env<'_>, header: &Header, data: &[u8]) {
    let Some(taken) = qp.taken.take() else { return };
    if let Some(rkey) = header.invalidate()
        && let Err(why) = umr::invalidate_remotely(qp, env, rkey)
    {
        return not_invalidated(qp, env, &taken, (rkey, why));
    }
    let opcode = match (header.op.is_write(), header.immediate(), header.invalidate()) {
        (true, ..) => CqeOpcode::RESPONDER_WRITE_IMM,
        (false, Some(_), _) => CqeOpcode::RESPONDER_SEND_IMM,
        (false, None, Some(_)) => CqeOpcode::RESPONDER_SEND_INVAL,
        (false, None, None) => CqeOpcode::RESPONDER_SEND,
    };
    let len = match (header.op.is_write(), header.op.starts_message()) {
        (true, _) => qp.responder.write_len(),
        (false, _) => taken.filled,
    };
    let word = header.immediate().or(header.invalidate()).unwrap_or(0);
    let entry = entry(qp, env, &taken, header)
        .with_imm_inval_pkey(word)
        .with_byte_cnt(len)
        .with_opcode(opcode.0);
    complete(qp, env, &taken, (entry, data), header.solicited);
}

/// A SEND arrived whole, but the key that it names stays. Only this side is told: the message is
/// acknowledged as any other, without a NAK.
///
/// # Source
///
/// IBTA vol. 1, 9.9.6.3, class J; Soft-RoCE does the same.
#[cold]
fn not_invalidated(
    qp: &mut Qp,
    env: &mut Env<'_>,
    taken: &TakenReceive,
    (rkey, why): (u32, &'static str),
) {
    env.refuse("rdma request", rkey.into(), why);
    report(qp, env, taken, CqeSyndrome::LOCAL_ACCESS_ERR);
    let qpn = env.qpn;
    env.event(EventType::WQ_ACCESS_ERROR, qpn);
    fail(qp, env);
}

/// The fields that all receive completions share. Source: reference 6.7.
fn entry(qp: &Qp, env: &Env<'_>, taken: &TakenReceive, header: &Header) -> Cqe64 {
    Cqe64::zeroed()
        .with_srqn_uidx(destination(qp, env, taken).1)
        .with_timestamp(cq::timestamp(env.now_ns))
        .with_sop_drop_qpn(env.qpn)
        .with_wqe_counter(taken.wqe_counter.into())
        .with_se(header.solicited)
}

fn complete(
    qp: &mut Qp,
    env: &mut Env<'_>,
    taken: &TakenReceive,
    (entry, data): (Cqe64, &[u8]),
    is_solicited: bool,
) {
    qp.stats.completions += 1;
    let (cqn, _) = destination(qp, env, taken);
    let urgency = if is_solicited { Urgency::Solicited } else { Urgency::Plain };
    if data.is_empty() {
        return env.complete(cqn, entry.0, urgency);
    }
    env.inline_counts.responder += 1;
    inline::complete(env, cqn, (qp.receive_scatter(), data), entry, urgency);
}

/// A datagram: the IP header goes into the first 40 bytes. Source: reference 6.11, 7.8.
///
/// One that is too long for the receive is dropped, and the receive waits for another. A shared
/// receive is used up, with an error. Source: IBTA vol. 1, 9.9.6.3, classes D and E.
fn datagram(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    let header = &frame.header;
    let is_gsi = qp.qp_type == QpType::Gsi;
    // The general services interface has a key of its own. Source: reference 7.8.
    let qkey = if is_gsi { GSI_QKEY } else { qp.context.q_key() };
    if header.deth.qkey != qkey {
        env.drops.qkey += 1;
        return;
    }
    let mut taken = match ring::take(qp, env, None) {
        Ok(Some(taken)) => taken,
        Ok(None) => return env.out_of_buffer(qp),
        Err(ring::Lost) => {
            let qpn = env.qpn;
            env.event(EventType::WQ_CATASTROPHIC, qpn);
            return fail(qp, env);
        }
    };
    if ring::room(&qp.buffers) < GRH_BYTES + frame.payload.len() && ring::give_back(qp) {
        env.drops.too_long += 1;
        return;
    }
    let mut grh = [0; GRH_BYTES];
    let at = GRH_BYTES - frame.ip.len();
    grh[at..].copy_from_slice(frame.ip);
    let result = ring::scatter(env, (&qp.buffers, &mut taken), &grh)
        .and_then(|()| ring::scatter(env, (&qp.buffers, &mut taken), frame.payload));
    if let Err((syndrome, value, why)) = result {
        env.refuse("receive data segment", value, why);
        report(qp, env, &taken, syndrome);
        return fail(qp, env);
    }
    let opcode = match header.immediate() {
        Some(_) => CqeOpcode::RESPONDER_SEND_IMM,
        None => CqeOpcode::RESPONDER_SEND,
    };
    let word = if is_gsi { header.pkey.into() } else { header.immediate().unwrap_or(0) };
    let entry = entry(qp, env, &taken, header)
        .with_imm_inval_pkey(word)
        .with_grh(1)
        .with_sl(l3_type(frame.network))
        .with_rqpn(header.deth.sqpn)
        .with_cv(frame.vlan.is_some())
        .with_vlan_info(frame.vlan.unwrap_or(0).into())
        .with_byte_cnt(taken.filled)
        .with_opcode(opcode.0);
    complete(qp, env, &taken, (entry, &[]), header.solicited);
}

/// The network header as a completion names it. Source: reference 6.7, `flags_rqpn`.
const fn l3_type(network: Network) -> u32 {
    match network {
        Network::Grh => 0,
        Network::Ipv6 => 1,
        Network::Ipv4 => 2,
    }
}
