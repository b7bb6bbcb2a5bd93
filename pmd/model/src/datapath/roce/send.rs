//! Send queues of queue pairs: fetching WQEs, making packets. What comes back: [`super::answer`].
//!
//! A payload is gathered from host memory whenever its packet is made, so a retry sends what is
//! there then, as hardware does.
//!
//! Source: reference 6.1 to 6.7, 7.1 to 7.9.

use ferrocx_prm::eqe::EventType;
use ferrocx_prm::layout::Part;
use ferrocx_prm::wqe::{
    AddressVector, Atomic, BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, MaskedCompareSwap,
    MaskedCompareSwap32, MaskedFetchAdd, MaskedFetchAdd32, Opcode, Raddr, Xrc,
};

use super::super::wqe::{self, Segment, Segments, WqeFault, check_ctrl};
use super::super::{dma, low16};
use super::answer::complete_done;
use super::{Env, Output, Sent, congestion, fail, umr};
use crate::mkey::{MemAccess, Rights};
use crate::objects::{InlineData, Qp, QpState, QpType, RoceGid, SendJob};
use crate::roce::Network;
use crate::roce::atomic::{Operands, Size};
use crate::roce::bth::{AtomicEth, Deth, Header, Op, Reth, Transport};
use crate::roce::packet::{IpPair, Path};
use crate::roce::requester::{Fault, Fence, Kind, Next, Outgoing};
use crate::roce::responder::packets_of;

/// WQEs fetched ahead of their completion at most.
const MAX_QUEUED: usize = 64;
/// Packets of one queue pair in one step, so that queue pairs take turns.
const PACKETS_PER_TURN: usize = 64;
/// Longest send WQE: 63 units of 16 bytes, in whole basic blocks.
const MAX_WQE_BYTES: usize = 1024;
/// Source queue pair and Q_Key of the general services interface. Source: reference 7.8.
const GSI_QPN: u32 = 1;
const GSI_QKEY: u32 = 0x8001_0000;
/// Bit of a Q_Key in a WQE: take that of the context. Source: reference 7.8.
const QKEY_OF_QP: u32 = 1 << 31;

/// One turn: fetch, send, complete. Returns whether anything was done.
pub(super) fn run(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> bool {
    if qp.requester.tick(env.now_ns) {
        env.count(qp, |count| count.local_ack_timeout_err += 1);
    }
    let mut busy = fetch(qp, env);
    for _ in 0..PACKETS_PER_TURN {
        if qp.state != QpState::Rts {
            return true;
        }
        match qp.requester.next(env.now_ns) {
            Next::Idle => break,
            Next::Local(index) => run_local(qp, env, index),
            Next::Packet(packet) => match send_packet(qp, env, out, &packet) {
                Ok(Sent::Yes) => {
                    qp.stats.packets += 1;
                    qp.requester.sent(env.now_ns);
                }
                Ok(Sent::Full) => break,
                Err(fault) => fail_at(qp, env, packet.index, &fault),
            },
        }
        busy = true;
    }
    busy |= complete_done(qp, env);
    busy
}

pub(super) fn fail_at(qp: &mut Qp, env: &mut Env<'_>, index: usize, fault: &WqeFault) {
    env.refuse(fault.field, fault.value, fault.why);
    qp.requester.fail(index, Fault::Local(fault.syndrome.0));
}

/// Reads WQEs that are posted and puts them into line.
fn fetch(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut busy = false;
    while qp.requester.len() < MAX_QUEUED && qp.sq_posted != qp.sq_fetched {
        busy = true;
        let counter = qp.sq_fetched;
        let Some((wqe, blocks)) = read_wqe(qp, env) else {
            env.refuse("qp pas", env.qpn.into(), "send queue cannot be read");
            let qpn = env.qpn;
            env.event(EventType::WQ_CATASTROPHIC, qpn);
            qp.sq_fetched = qp.sq_posted;
            fail(qp, env);
            return true;
        };
        qp.sq_fetched = counter.wrapping_add(blocks);
        qp.stats.wqes += 1;
        qp.stats.descriptor_bytes += wqe.len() as u64;
        let mut job = job(wqe, counter);
        match decode(qp, env.qpn, &mut job) {
            Ok((kind, fence, packets)) => qp.requester.push(kind, fence, packets, job),
            Err(fault) => {
                env.refuse(fault.field, fault.value, fault.why);
                qp.requester.push_failed(Fault::Local(fault.syndrome.0), job);
            }
        }
    }
    busy
}

/// Reads the next WQE; its length is what its control segment says, within what is posted.
pub(super) fn read_wqe(qp: &mut Qp, env: &Env<'_>) -> Option<(Box<[u8]>, u16)> {
    let log_size = qp.log_sq_size?;
    let mut bytes = [0; MAX_WQE_BYTES];
    read_block(qp, env, log_size, qp.sq_fetched, &mut bytes[..BASIC_BLOCK_BYTES])?;
    let ds = Ctrl::load(&bytes[..DS_BYTES]).ds() as usize;
    let pending = qp.sq_posted.wrapping_sub(qp.sq_fetched);
    let blocks = low16(ds.div_ceil(4).max(1) as u64).min(pending);
    for block in 1..blocks {
        let at = usize::from(block) * BASIC_BLOCK_BYTES;
        let index = qp.sq_fetched.wrapping_add(block);
        read_block(qp, env, log_size, index, &mut bytes[at..at + BASIC_BLOCK_BYTES])?;
    }
    qp.stats.dma_reads += u64::from(blocks);
    let len = (ds.max(1) * DS_BYTES).min(usize::from(blocks) * BASIC_BLOCK_BYTES);
    Some((bytes[..len].into(), blocks))
}

fn read_block(qp: &Qp, env: &Env<'_>, log_size: u32, index: u16, out: &mut [u8]) -> Option<()> {
    let mask = (1_u64 << log_size) - 1;
    let mut at = qp.sq_at + (u64::from(index) & mask) * BASIC_BLOCK_BYTES as u64;
    let mut done = 0;
    while done < out.len() {
        let run = usize::try_from(qp.memory.run_bytes(at)).unwrap_or(usize::MAX);
        let step = run.min(out.len() - done);
        env.mem.read(qp.memory.locate(at), &mut out[done..done + step]).ok()?;
        done += step;
        at += step as u64;
    }
    Some(())
}

pub(super) fn job(wqe: Box<[u8]>, counter: u16) -> SendJob {
    let ctrl = Ctrl::load(&wqe[..DS_BYTES]);
    SendJob {
        wqe,
        ctrl,
        counter,
        data_at: DS_BYTES,
        len: 0,
        raddr: 0,
        rkey: 0,
        operands: Operands::default(),
        xrc_srqn: 0,
        av: None,
        answer: InlineData::new(),
    }
}

pub(super) fn opcode(job: &SendJob) -> Opcode {
    Opcode(job.ctrl.0[3])
}

/// What a service can send. Source: reference 7.2; 6.2.
fn is_allowed(qp_type: QpType, opcode: Opcode) -> bool {
    match opcode {
        Opcode::NOP => true,
        Opcode::UMR => !matches!(qp_type, QpType::Ud | QpType::Gsi),
        Opcode::SEND | Opcode::SEND_IMM => qp_type != QpType::RegUmr,
        Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMM => qp_type.is_connected(),
        Opcode::SEND_INVAL | Opcode::RDMA_READ | Opcode::ATOMIC_CS | Opcode::ATOMIC_FA => {
            qp_type.is_reliable()
        }
        Opcode::ATOMIC_MASKED_CS | Opcode::ATOMIC_MASKED_FA => qp_type == QpType::Rc,
        _ => false,
    }
}

/// Decodes a WQE: what it is to the protocol, what it waits for, how many PSNs it takes.
fn decode(qp: &Qp, qpn: u32, job: &mut SendJob) -> Result<(Kind, Fence, u32), WqeFault> {
    check_ctrl(&job.ctrl, qpn, job.counter)?;
    let (ctrl, code) = (job.ctrl, opcode(job));
    let ds = ctrl.ds();
    if ds == 0 || ds as usize * DS_BYTES != job.wqe.len() {
        let why = "the WQE is empty or longer than what is posted";
        return Err(WqeFault::operation("ctrl.ds", ds.into(), why));
    }
    if !is_allowed(qp.qp_type, code) {
        let why = "an opcode that this queue pair does not carry out";
        return Err(WqeFault::operation("ctrl.opcode", code.0.into(), why));
    }
    // Small fences order what is carried out in order anyway. Source: reference 6.1, 6.12.
    let fence = match ctrl.fm() {
        0 | 1 => Fence::None,
        2 | 4 => Fence::Reads,
        3 => Fence::All,
        other => return Err(WqeFault::operation("ctrl.fm", other.into(), "no such fence")),
    };
    if matches!(code, Opcode::NOP | Opcode::UMR) {
        return Ok((Kind::Local, fence, 0));
    }
    read_segments(qp.qp_type, code, job)?;
    let segments = Segments::new(&job.wqe[job.data_at..]);
    let total = segments.total()?;
    let limit = match qp.qp_type.transport() {
        Some(Transport::Ud) => qp.mtu_bytes(),
        _ => 1 << qp.context.log_msg_max().min(31),
    };
    let len = u32::try_from(total).ok().filter(|len| *len <= limit);
    job.len = len.ok_or_else(|| {
        WqeFault::length("data.byte_count", total as u64, "longer than a message may be")
    })?;
    let packets = packets_of(job.len, qp.mtu_bytes());
    let takes_answer = code == Opcode::RDMA_READ || is_atomic(code);
    if takes_answer && segments.into_iter().any(|part| matches!(part, Ok(Segment::Inline(_)))) {
        return Err(WqeFault::operation("inline", 1, "an answer cannot be scattered inline"));
    }
    Ok(match code {
        Opcode::RDMA_READ => (Kind::Read, fence, packets),
        _ if is_atomic(code) && job.len != job.operands.size.bytes() => {
            let why = "not the size of the atomic's operands";
            return Err(WqeFault::length("data.byte_count", job.len.into(), why));
        }
        _ if is_atomic(code) => (Kind::Atomic, fence, 1),
        _ => (Kind::Push, fence, packets),
    })
}

/// Reads what stands between control and data segments.
fn read_segments(qp_type: QpType, code: Opcode, job: &mut SendJob) -> Result<(), WqeFault> {
    let ds = u64::from(job.ctrl.ds());
    let short = || WqeFault::operation("ctrl.ds", ds, "too short for its opcode");
    let mut at = DS_BYTES;
    let mut part = |wqe: &[u8], len: usize| {
        let start = at;
        at += len;
        wqe.get(start..start + len).map(<[u8]>::to_vec).ok_or_else(short)
    };
    if qp_type == QpType::Xrc {
        job.xrc_srqn = Xrc::load(&part(&job.wqe, DS_BYTES)?).xrc_srqn();
    }
    if matches!(qp_type, QpType::Ud | QpType::Gsi) {
        let av = AddressVector::load(&part(&job.wqe, AddressVector::LEN_BYTES)?);
        if !av.ext() {
            return Err(WqeFault::operation("av.ext", 0, "RoCE needs the whole address vector"));
        }
        job.av = Some(av);
    }
    let has_raddr = !matches!(code, Opcode::SEND | Opcode::SEND_IMM | Opcode::SEND_INVAL);
    if has_raddr {
        let raddr = Raddr::load(&part(&job.wqe, DS_BYTES)?);
        (job.raddr, job.rkey) = (raddr.raddr(), raddr.rkey());
    }
    if matches!(code, Opcode::ATOMIC_CS | Opcode::ATOMIC_FA) {
        let atomic = Atomic::load(&part(&job.wqe, DS_BYTES)?);
        job.operands = Operands::plain(atomic.swap_add(), atomic.compare());
    } else if is_atomic(code) {
        let size = masked_size(&job.ctrl)?;
        job.operands = match (code, size) {
            (Opcode::ATOMIC_MASKED_CS, Size::Four) => {
                let with = MaskedCompareSwap32::load(&part(&job.wqe, DS_BYTES)?);
                Operands {
                    swap_add: with.swap().into(),
                    compare: with.compare().into(),
                    swap_mask: with.swap_mask().into(),
                    compare_mask: with.compare_mask().into(),
                    size,
                }
            }
            (Opcode::ATOMIC_MASKED_CS, Size::Eight) => {
                let with = MaskedCompareSwap::load(&part(&job.wqe, 2 * DS_BYTES)?);
                Operands {
                    swap_add: with.swap(),
                    compare: with.compare(),
                    swap_mask: with.swap_mask(),
                    compare_mask: with.compare_mask(),
                    size,
                }
            }
            (_, Size::Four) => {
                let with = MaskedFetchAdd32::load(&part(&job.wqe, DS_BYTES)?);
                fields(with.add().into(), with.field_boundary().into(), size)
            }
            (_, Size::Eight) => {
                let with = MaskedFetchAdd::load(&part(&job.wqe, DS_BYTES)?);
                fields(with.add(), with.field_boundary(), size)
            }
        };
    }
    job.data_at = at;
    Ok(())
}

fn is_atomic(code: Opcode) -> bool {
    matches!(
        code,
        Opcode::ATOMIC_CS | Opcode::ATOMIC_FA | Opcode::ATOMIC_MASKED_CS | Opcode::ATOMIC_MASKED_FA
    )
}

/// Size of the operands of a masked atomic. Source: UCX, `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`: bit 3, and
/// log2 of the size less 2.
fn masked_size(ctrl: &Ctrl) -> Result<Size, WqeFault> {
    match ctrl.opmod() {
        8 => Ok(Size::Four),
        9 => Ok(Size::Eight),
        other => {
            let why = "not 4 or 8 bytes, which is what atomic_size_qp says";
            Err(WqeFault::operation("ctrl.opmod", other.into(), why))
        }
    }
}

fn fields(add: u64, boundary: u64, size: Size) -> Operands {
    Operands { swap_add: add, compare: 0, swap_mask: boundary, compare_mask: 0, size }
}

/// Carries out a request that needs no wire.
fn run_local(qp: &mut Qp, env: &mut Env<'_>, index: usize) {
    let Some(request) = qp.requester.get(index) else { return };
    let is_umr = opcode(&request.job) == Opcode::UMR;
    let result = if is_umr { umr::execute(qp, env, &request.job) } else { Ok(()) };
    match result {
        Ok(()) => qp.requester.local_done(index),
        Err(fault) => fail_at(qp, env, index, &fault),
    }
}

/// The addresses of a connection's packets.
pub(super) fn connected_path(qp: &Qp, env: &Env<'_>) -> Option<Path> {
    let ads = qp.path();
    let gid = env.gid(ads.src_addr_index())?;
    let [_, _, dmac @ ..] =
        (u64::from(ads.rmac_47_32()) << 32 | u64::from(ads.rmac_31_0())).to_be_bytes();
    let sport = match low16(ads.udp_sport().into()) {
        0 => flow_port(env.qpn, qp.context.remote_qpn()),
        port => port,
    };
    // Version 1 has no code point; Linux gives the class of its header as `tclass`.
    let tos = match gid.network {
        Network::Grh => ads.tclass(),
        Network::Ipv4 | Network::Ipv6 => ads.dscp() << 2 | ads.ecn(),
    };
    let tos = congestion::ect(env, gid.network, ads.eth_prio(), tos.to_be_bytes()[3]);
    let hop_limit = ads.hop_limit().to_be_bytes()[3];
    let mut path = path(gid, dmac, &ads.rgid_rip(), (tos, hop_limit), ads.flow_label(), sport);
    path.vlan = gid.vlan.map(|vlan| low16(ads.eth_prio().into()) << 13 | vlan);
    Some(path)
}

/// UDP source port of a connection without one. Source: reference 7.9.
fn flow_port(local: u32, remote: u32) -> u16 {
    let mut product = u64::from(local) * u64::from(remote);
    product ^= product >> 20;
    product ^= product >> 40;
    let label = product & 0xf_ffff;
    low16(((label & 0x3fff) ^ (label >> 14)) | 0xc000)
}

fn path(
    gid: &RoceGid,
    dmac: [u8; 6],
    remote: &[u8; 16],
    (tos, ttl): (u8, u8),
    flow_label: u32,
    sport: u16,
) -> Path {
    let last = |gid: &[u8; 16]| [gid[12], gid[13], gid[14], gid[15]];
    let ip = match gid.network {
        Network::Grh => IpPair::Grh { src: gid.gid, dst: *remote },
        Network::Ipv6 => IpPair::V6 { src: gid.gid, dst: *remote },
        Network::Ipv4 => IpPair::V4 { src: last(&gid.gid), dst: last(remote) },
    };
    Path { dmac, smac: gid.mac, vlan: gid.vlan, ip, tos, ttl, flow_label, sport }
}

/// The addresses of a datagram.
fn datagram_path(av: &AddressVector, env: &Env<'_>) -> Option<Path> {
    let gid = env.gid(av.src_addr_index())?;
    let sport = match low16(av.udp_sport_rlid().into()) {
        0 => 0xc000,
        port => port,
    };
    let tos = av.tclass().to_be_bytes()[3];
    let hop_limit = av.hop_limit().to_be_bytes()[3];
    let mut path = path(gid, av.rmac(), &av.rgid(), (tos, hop_limit), av.flow_label(), sport);
    // The service level is the priority, one bit up. Source: reference 6.3.
    path.vlan = gid.vlan.map(|vlan| low16((av.sl() >> 1).into()) << 13 | vlan);
    Some(path)
}

/// The operation of a packet, by its place in the message.
fn op_of(code: Opcode, is_first: bool, is_last: bool) -> Op {
    match (code, is_first, is_last) {
        (Opcode::RDMA_READ, ..) => Op::ReadRequest,
        (Opcode::ATOMIC_CS, ..) => Op::CompareSwap,
        (Opcode::ATOMIC_FA, ..) => Op::FetchAdd,
        (Opcode::ATOMIC_MASKED_CS, ..) => Op::MaskedCompareSwap,
        (Opcode::ATOMIC_MASKED_FA, ..) => Op::MaskedFetchAdd,
        (Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMM, true, false) => Op::WriteFirst,
        (Opcode::RDMA_WRITE | Opcode::RDMA_WRITE_IMM, false, false) => Op::WriteMiddle,
        (Opcode::RDMA_WRITE, true, true) => Op::WriteOnly,
        (Opcode::RDMA_WRITE, false, true) => Op::WriteLast,
        (Opcode::RDMA_WRITE_IMM, true, true) => Op::WriteOnlyImm,
        (Opcode::RDMA_WRITE_IMM, false, true) => Op::WriteLastImm,
        (_, true, false) => Op::SendFirst,
        (_, false, false) => Op::SendMiddle,
        (Opcode::SEND_IMM, true, true) => Op::SendOnlyImm,
        (Opcode::SEND_IMM, false, true) => Op::SendLastImm,
        (Opcode::SEND_INVAL, true, true) => Op::SendOnlyInvalidate,
        (Opcode::SEND_INVAL, false, true) => Op::SendLastInvalidate,
        (_, true, true) => Op::SendOnly,
        (_, false, true) => Op::SendLast,
    }
}

/// Makes one packet of a request and sends it.
fn send_packet(
    qp: &Qp,
    env: &mut Env<'_>,
    out: &mut Output<'_>,
    packet: &Outgoing,
) -> Result<Sent, WqeFault> {
    let Some(request) = qp.requester.get(packet.index) else { return Ok(Sent::Full) };
    let Some(transport) = qp.qp_type.transport() else { return Ok(Sent::Yes) };
    let (job, code, mtu) = (&request.job, opcode(&request.job), qp.mtu_bytes());
    let skip = packet.number.saturating_mul(mtu);
    let op = op_of(code, packet.number == 0, packet.is_last);
    let mut header = Header::new(transport, op, qp.context.remote_qpn(), packet.psn);
    header.ack_request = packet.ack_request;
    header.solicited = job.ctrl.se() && packet.is_last && request.kind == Kind::Push;
    (header.imm, header.ieth) = (job.ctrl.imm(), job.ctrl.imm());
    header.xrc_srqn = job.xrc_srqn;
    let len = job.len;
    header.reth = Reth { va: job.raddr, rkey: job.rkey, len };
    let path = if let Some(av) = &job.av {
        header.dest_qpn = av.dqp_dct();
        header.deth = deth(qp, env.qpn, av);
        datagram_path(av, env)
    } else {
        connected_path(qp, env)
    };
    let path = path.ok_or_else(|| {
        WqeFault::operation("src_addr_index", 0, "the RoCE address table has no such entry")
    })?;
    if request.kind != Kind::Push {
        // What has arrived of a READ is not asked for again.
        header.reth.va = job.raddr.wrapping_add(skip.into());
        header.reth.len = len.saturating_sub(skip);
        header.atomic = AtomicEth { va: job.raddr, rkey: job.rkey, operands: job.operands };
        return out.send(env, (&path, &header), 0, true, |_, _| Ok(()));
    }
    let bytes = (len - skip.min(len)).min(mtu) as usize;
    let block = qp.context.block_lb_mc();
    out.send(env, (&path, &header), bytes, block, |env, into| {
        gather(qp, env, job, skip as usize, into)
    })
}

fn deth(qp: &Qp, qpn: u32, av: &AddressVector) -> Deth {
    let is_gsi = qp.qp_type == QpType::Gsi;
    let qkey = match av.qkey() {
        _ if is_gsi => GSI_QKEY,
        qkey if qkey & QKEY_OF_QP != 0 => qp.context.q_key(),
        qkey => qkey,
    };
    let sqpn = match qp.context.deth_sqpn() {
        _ if is_gsi => GSI_QPN,
        0 => qpn,
        sqpn => sqpn,
    };
    Deth { qkey, sqpn }
}

/// The access of a data segment.
pub(super) fn access(
    qp: &Qp,
    qpn: u32,
    (key, addr): (u32, u64),
    len: usize,
    rights: Rights,
) -> MemAccess {
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    MemAccess { key, addr, len, rights, pd: qp.context.pd(), rlky: qp.context.rlky(), qpn }
}

/// Copies bytes of a message from `skip` on, until `out` is full.
fn gather(
    qp: &Qp,
    env: &Env<'_>,
    job: &SendJob,
    skip: usize,
    out: &mut [u8],
) -> Result<(), WqeFault> {
    wqe::gather(Segments::new(&job.wqe[job.data_at..]), skip, out, |lkey, addr, into| {
        let access = access(qp, env.qpn, (lkey, addr), into.len(), Rights::LOCAL_READ);
        dma::read(env.mem, env.keys, &access, into)
            .map_err(|refused| WqeFault::protection(lkey, refused))
    })
}
