//! Replies to the peer: acknowledgements, and what READs and atomics asked for.
//!
//! Source: reference 7.5, 7.6.

use super::env::Env;
use super::error::fail;
use super::output::{Output, Parcel, Sent};
use super::path::connected_path;
use super::receive::{out_of_reach, remote};
use super::send::packets_per_turn;
use crate::objects::Qp;
use crate::objects::mkey::Rights;
use crate::queue::dma;
use crate::roce::transport::bth::{AckSyndrome, Aeth, Header, Op};
use crate::roce::transport::packet::Path;
use crate::roce::transport::responder::{Reply, packets_of};

/// Sends what is due to the peer. Returns whether anything was sent.
pub(super) fn send_replies(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> bool {
    if qp.responder.reply().is_none() {
        return false;
    }
    let path = connected_path(qp, env);
    let most = out.most_together(qp, env, path.as_ref());
    let (mut busy, mut left) = (false, packets_per_turn(qp.mtu_bytes()));
    while left > 0 {
        let Some(reply) = qp.responder.reply() else { break };
        let is_flat = matches!(reply, Reply::Read { reth, .. } if env.keys.is_flat(reth.rkey));
        let most = if is_flat { most.min(left) } else { 1 };
        let packets = reply.packets_left(qp.mtu_bytes()).clamp(1, most);
        left -= packets;
        match send_reply(qp, env, out, (path.as_ref(), reply, packets)) {
            Ok(Sent::Yes) => qp.responder.replied(packets),
            Ok(Sent::Full) => break,
            Err(refused) => {
                // The key of a READ was taken away before it was answered, or answered again.
                env.refuse("rdma read", 0, refused.why());
                let (nak, event) = out_of_reach(refused);
                if qp.responder.refuse_reply(nak) {
                    let qpn = env.qpn;
                    env.event(event, qpn);
                    fail(qp, env);
                }
            }
        }
        busy = true;
        if env.is_turn_over() {
            break;
        }
    }
    busy
}

fn send_reply(
    qp: &Qp,
    env: &mut Env<'_>,
    out: &mut Output<'_>,
    (path, reply, packets): (Option<&Path>, Reply, u32),
) -> Result<Sent, dma::Refused> {
    let Some(transport) = qp.qp_type.transport() else { return Ok(Sent::Yes) };
    let Some(path) = path else { return Ok(Sent::Yes) };
    let (remote_qpn, mtu) = (qp.context.remote_qpn(), qp.mtu_bytes());
    let parcel = |header, len: u32| Parcel {
        path,
        header,
        len: len as usize,
        mtu: mtu as usize,
        blocks_loopback: true,
    };
    let ok = |msn| Aeth { syndrome: AckSyndrome::ACK, msn };
    match reply {
        Reply::Ack { psn, syndrome, msn } => {
            let mut header = Header::new(transport, Op::Acknowledge, remote_qpn, psn);
            header.aeth = Aeth { syndrome, msn };
            out.send(env, &parcel(&header, 0), |_, _| Ok(()))
        }
        Reply::Atomic { psn, original, msn } => {
            let mut header = Header::new(transport, Op::AtomicAcknowledge, remote_qpn, psn);
            header.aeth = ok(msn);
            header.original = original;
            out.send(env, &parcel(&header, 0), |_, _| Ok(()))
        }
        Reply::Read { psn, reth, pd, number, msn } => {
            let all = packets_of(reth.len, mtu);
            let op = match (number == 0, number + packets == all) {
                (true, true) => Op::ReadResponseOnly,
                (true, false) => Op::ReadResponseFirst,
                (false, true) => Op::ReadResponseLast,
                (false, false) => Op::ReadResponseMiddle,
            };
            let mut header = Header::new(transport, op, remote_qpn, psn.plus(number));
            (header.aeth, header.packets) = (ok(msn), packets);
            let skip = number * mtu;
            let len = (reth.len - skip).min(mtu.saturating_mul(packets));
            let place = (reth.va.wrapping_add(skip.into()), len);
            let access = remote(env.qpn, (pd, reth.rkey), place, Rights::REMOTE_READ);
            out.send(env, &parcel(&header, len), |env, into| {
                if into.is_empty() {
                    return Ok(());
                }
                dma::read(env.mem, env.keys, &access, into)
            })
        }
    }
}
