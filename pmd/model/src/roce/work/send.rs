//! Send queues of queue pairs: fetching WQEs, making packets. What comes back: [`super::answer`].
//!
//! A payload is gathered from host memory whenever its packet is made, so a retry sends what is
//! there then, as hardware does.
//!
//! Source: reference 6.1 to 6.7, 7.1 to 7.9.

use ferrocx_prm::eqe::EventType;
use ferrocx_prm::wqe::{AddressVector, Opcode};

use super::answer::complete_done;
use super::env::Env;
use super::error::{fail, fail_at};
use super::output::{Output, Parcel, Sent};
use super::path::{connected_path, datagram_path};
use super::umr;
use super::wqe::{access, decode, is_flat, job, opcode, read_wqe};
use crate::objects::mkey::Rights;
use crate::objects::{Qp, QpState, QpType, SendJob};
use crate::queue::dma;
use crate::queue::wqe::{self, Segments, WqeFault};
use crate::roce::transport::bth::{AtomicEth, Deth, Header, Op, Reth};
use crate::roce::transport::packet::Path;
use crate::roce::transport::requester::{Fault, Kind, Next, Outgoing};
use crate::roce::transport::{GSI_QKEY, GSI_QPN};

/// WQEs fetched ahead of their completion at most.
const MAX_QUEUED: usize = 64;
/// Packets of one queue pair in one step, so that queue pairs take turns.
const PACKETS_PER_TURN: u32 = 64;
/// Bytes of payload of one queue pair in one step: what was written to a wire in memory is read
/// from the cache of the core that wrote it.
const BYTES_PER_TURN: u32 = 60 << 10;
/// Bit of a Q_Key in a WQE: take that of the context. Source: reference 7.8.
const QKEY_OF_QP: u32 = 1 << 31;

/// One turn: fetch, send, complete. Returns whether anything was done.
pub(super) fn run(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> bool {
    if qp.requester.tick(env.now_ns) {
        env.count(qp, |count| count.local_ack_timeout_err += 1);
    }
    let mut busy = fetch(qp, env);
    if qp.requester.is_empty() {
        return busy;
    }
    let path = if qp.qp_type.is_connected() { connected_path(qp, env) } else { None };
    let most = out.most_together(qp, env, path.as_ref());
    let mut left = packets_per_turn(qp.mtu_bytes());
    while left > 0 {
        if qp.state != QpState::Rts {
            return true;
        }
        let mut next = qp.requester.next(env.now_ns, most.min(left));
        if let Next::Packet(packet) = next
            && packet.packets > 1
            && !is_flat(qp, env, packet.index)
        {
            next = qp.requester.next(env.now_ns, 1);
        }
        match next {
            Next::Idle => break,
            Next::Local(index) => {
                left -= 1;
                run_local(qp, env, index);
            }
            Next::Packet(packet) => {
                left -= packet.packets;
                match send_packets(qp, env, out, (path.as_ref(), &packet)) {
                    Ok(Sent::Yes) => {
                        qp.stats.packets += u64::from(packet.packets);
                        qp.requester.sent(packet.packets, env.now_ns);
                    }
                    Ok(Sent::Full) => break,
                    Err(fault) => fail_at(qp, env, packet.index, &fault),
                }
            }
        }
        busy = true;
        if env.is_turn_over() {
            break;
        }
    }
    busy |= complete_done(qp, env);
    busy
}

/// Packets of one queue pair in one step, each of at most `mtu` bytes of payload.
pub(super) fn packets_per_turn(mtu: u32) -> u32 {
    (BYTES_PER_TURN / mtu.max(1)).clamp(1, PACKETS_PER_TURN)
}

/// Reads WQEs that are posted and puts them into line.
fn fetch(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut busy = false;
    while qp.requester.len() < MAX_QUEUED
        && qp.sq_posted != qp.sq_fetched
        && qp.line.has_room(qp.requester.len())
    {
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

/// Makes a packet of a request, or several together, and sends it. `path` is the connection's.
fn send_packets(
    qp: &Qp,
    env: &mut Env<'_>,
    out: &mut Output<'_>,
    (path, packet): (Option<&Path>, &Outgoing),
) -> Result<Sent, WqeFault> {
    let Some(request) = qp.requester.get(packet.index) else { return Ok(Sent::Full) };
    let Some(transport) = qp.qp_type.transport() else { return Ok(Sent::Yes) };
    let (job, code, mtu) = (&request.job, opcode(&request.job), qp.mtu_bytes());
    let skip = packet.number.saturating_mul(mtu);
    let op = op_of(code, packet.number == 0, packet.is_last);
    let mut header = Header::new(transport, op, qp.context.remote_qpn(), packet.psn);
    (header.ack_request, header.packets) = (packet.ack_request, packet.packets);
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
        path.copied()
    };
    let path = path.ok_or_else(|| {
        WqeFault::operation("src_addr_index", 0, "the RoCE address table has no such entry")
    })?;
    let blocks_loopback = qp.context.block_lb_mc();
    if request.kind != Kind::Push {
        // What has arrived of a READ is not asked for again.
        header.reth.va = job.raddr.wrapping_add(skip.into());
        header.reth.len = len.saturating_sub(skip);
        header.atomic = AtomicEth { va: job.raddr, rkey: job.rkey, operands: job.operands };
        let parcel =
            Parcel { path: &path, header: &header, len: 0, mtu: mtu as usize, blocks_loopback };
        return out.send(env, &parcel, |_, _| Ok(()));
    }
    let bytes = (len - skip.min(len)).min(mtu.saturating_mul(packet.packets)) as usize;
    let parcel =
        Parcel { path: &path, header: &header, len: bytes, mtu: mtu as usize, blocks_loopback };
    out.send(env, &parcel, |env, into| gather(qp, env, job, skip as usize, into))
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
