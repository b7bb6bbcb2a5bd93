//! Answers of the peer, and the requests that are over with them.
//!
//! Source: reference 6.12, 7.5.

use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{CompletionMode, Opcode};

use super::completion::{complete, flush, report};
use super::env::Env;
use super::error::{fail, fail_at};
use super::wqe::{access, is_flat, opcode};
use crate::objects::mkey::Rights;
use crate::objects::{MAX_INLINE_BYTES, Qp, QpState, QpType, RoceCounters, SendJob};
use crate::queue::dma;
use crate::queue::wqe::{Segment, Segments, WqeFault};
use crate::roce::transport::atomic::Size;
use crate::roce::transport::bth::{Header, Meaning, Op};
use crate::roce::transport::packet::Frame;
use crate::roce::transport::psn::Psn;
use crate::roce::transport::requester::{Answer, Fault, Kind, Request};

/// Puts bytes of an answer where the WQE wants them, from `skip` on.
fn scatter(
    qp: &Qp,
    env: &Env<'_>,
    job: &SendJob,
    mut skip: usize,
    bytes: &[u8],
) -> Result<(), WqeFault> {
    let mut done = 0;
    for segment in Segments::new(&job.wqe[job.data_at..]) {
        let Segment::Pointer { byte_count, lkey, addr } = segment? else { continue };
        let len = byte_count as usize;
        if skip >= len {
            skip -= len;
            continue;
        }
        let take = (len - skip).min(bytes.len() - done);
        let place = (lkey, addr.wrapping_add(skip as u64));
        let access = access(qp, env.qpn, place, take, Rights::LOCAL_WRITE);
        dma::write(env.mem, env.keys, &access, &bytes[done..done + take])
            .map_err(|refused| WqeFault::protection(lkey, refused))?;
        done += take;
        skip = 0;
    }
    Ok(())
}

/// An answer of the peer arrived.
pub(super) fn answer(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    let (header, now) = (&frame.header, env.now_ns);
    match header.op {
        Op::Acknowledge => acknowledged(qp, env, header),
        op => {
            let answer = qp.requester.response(header.psn, header.packets, op, now);
            if let Answer::Take { index, number } = answer {
                if header.packets > 1 && !is_flat(qp, env, index) {
                    apart(qp, env, frame);
                } else {
                    take_answer(qp, env, frame, (index, number));
                }
            }
        }
    }
    complete_done(qp, env);
}

/// Packets that came as one, for memory in pieces of other keys: one by one, as far as the step
/// goes. What is left is asked for again, as if it were lost.
fn apart(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>) {
    for (number, part) in frame.apart(qp.mtu_bytes()) {
        let (psn, op) = (part.header.psn, part.header.op);
        if number > 0 && env.is_turn_over() {
            qp.requester.nak_sequence(psn, env.now_ns);
            return;
        }
        let answer = qp.requester.response(psn, 1, op, env.now_ns);
        let Answer::Take { index, number } = answer else { return };
        take_answer(qp, env, &part, (index, number));
    }
}

fn acknowledged(qp: &mut Qp, env: &mut Env<'_>, header: &Header) {
    let (psn, now) = (header.psn, env.now_ns);
    let syndrome = header.aeth.syndrome;
    match syndrome.meaning() {
        Meaning::Ack => {
            if qp.requester.acknowledge(psn, now) == Answer::Retry {
                env.count(qp, |count| count.implied_nak_seq_err += 1);
            }
        }
        Meaning::Rnr { timer } => {
            if qp.requester.rnr(psn, timer, now) != Answer::Stale {
                env.count(qp, |count| count.rnr_nak_retry_err += 1);
            }
        }
        Meaning::Nak => nak(qp, env, psn, syndrome.0),
        Meaning::Reserved => {}
    }
}

/// Source: reference 7.5, "Requester".
fn nak(qp: &mut Qp, env: &mut Env<'_>, psn: Psn, syndrome: u8) {
    let now = env.now_ns;
    let fault = match syndrome {
        0x60 => {
            if qp.requester.nak_sequence(psn, now) != Answer::Stale {
                env.count(qp, |count| count.packet_seq_err += 1);
            }
            return;
        }
        0x61 => Fault::InvalidRequest,
        0x62 => Fault::Access,
        0x63 => Fault::Operation,
        _ => return,
    };
    qp.requester.refused(psn, fault, now);
}

/// Whether the completion of a request carries its answer.
fn is_inline(qp: &Qp, env: &Env<'_>, request: &Request<SendJob>) -> bool {
    let job = &request.job;
    let fits = match request.kind {
        Kind::Read => true,
        Kind::Atomic => !env.caps.host_order_atomics() && !is_masked(opcode(job)),
        Kind::Push | Kind::Local => false,
    };
    let is_signaled = job.ctrl.ce() >= CompletionMode::ALWAYS.0;
    fits && is_signaled && qp.answer_scatter().takes(job.len as usize)
}

fn is_masked(code: Opcode) -> bool {
    matches!(code, Opcode::ATOMIC_MASKED_CS | Opcode::ATOMIC_MASKED_FA)
}

/// Puts the answer that `scatter` would into memory aside, for the completion.
fn set_aside(qp: &mut Qp, index: usize, bytes: &[u8]) {
    if let Some(job) = qp.requester.job_mut(index) {
        job.answer = Some(Box::new(bytes.iter().copied().take(MAX_INLINE_BYTES).collect()));
    }
}

fn take_answer(qp: &mut Qp, env: &mut Env<'_>, frame: &Frame<'_>, (index, number): (usize, u32)) {
    let Some(request) = qp.requester.get(index) else { return };
    let (mtu, job) = (qp.mtu_bytes(), &request.job);
    let is_inline = is_inline(qp, env, request);
    let result = if request.kind == Kind::Atomic {
        let original = frame.header.original;
        // Source: reference 6.12, "Atomic results".
        let bytes = match (job.operands.size, env.caps.host_order_atomics()) {
            // The order can be chosen for eight bytes only. Source: UCX, `ext_atomic_arg_sizes_be`.
            (Size::Four, _) => &original.to_be_bytes()[4..],
            (Size::Eight, true) => &original.to_le_bytes()[..],
            (Size::Eight, false) => &original.to_be_bytes(),
        };
        if is_inline {
            set_aside(qp, index, bytes);
            Ok(())
        } else {
            scatter(qp, env, job, 0, bytes)
        }
    } else {
        let skip = number.saturating_mul(mtu);
        let full = mtu.saturating_mul(frame.header.packets);
        let expected = job.len.saturating_sub(skip).min(full) as usize;
        if frame.payload.len() != expected {
            qp.requester.fail(index, Fault::BadResponse);
            return;
        }
        if is_inline {
            set_aside(qp, index, frame.payload);
            Ok(())
        } else {
            scatter(qp, env, job, skip as usize, frame.payload)
        }
    };
    match result {
        Ok(()) => qp.requester.answered(index, frame.header.packets, env.now_ns),
        Err(fault) => fail_at(qp, env, index, &fault),
    }
}

/// Completes the requests that are over, in order. Returns whether there were any.
pub(super) fn complete_done(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut busy = false;
    while let Some((request, fault)) = qp.requester.pop() {
        busy = true;
        match fault {
            None => complete(qp, env, &request),
            Some(fault) => {
                failed(qp, env, &request.job, fault);
                return true;
            }
        }
    }
    busy
}

fn syndrome_of(fault: Fault) -> CqeSyndrome {
    match fault {
        Fault::Retries => CqeSyndrome::TRANSPORT_RETRY_EXC_ERR,
        Fault::RnrRetries => CqeSyndrome::RNR_RETRY_EXC_ERR,
        Fault::InvalidRequest => CqeSyndrome::REMOTE_INVAL_REQ_ERR,
        Fault::Access => CqeSyndrome::REMOTE_ACCESS_ERR,
        Fault::Operation => CqeSyndrome::REMOTE_OP_ERR,
        Fault::BadResponse => CqeSyndrome::BAD_RESP_ERR,
        Fault::Local(raw) => CqeSyndrome(raw),
    }
}

/// A request failed: its completion says why, and the queue goes to error.
fn failed(qp: &mut Qp, env: &mut Env<'_>, job: &SendJob, fault: Fault) {
    env.count(qp, |count| {
        let counter: Option<fn(&mut RoceCounters) -> &mut u64> = match fault {
            Fault::Retries => Some(|count| &mut count.req_transport_retries_exceeded),
            Fault::RnrRetries => Some(|count| &mut count.req_rnr_retries_exceeded),
            Fault::InvalidRequest => Some(|count| &mut count.req_remote_invalid_request),
            Fault::Access => Some(|count| &mut count.req_remote_access_errors),
            Fault::Operation | Fault::BadResponse | Fault::Local(_) => None,
        };
        if let Some(counter) = counter {
            *counter(count) += 1;
        }
    });
    report(qp, env, job, syndrome_of(fault));
    // Local requests behind it may be over, and are not reported as such: after a failure every
    // completion says "flushed". Source: IBTA vol. 1, 10.3.1.
    while let Some((request, _)) = qp.requester.pop() {
        report(qp, env, &request.job, CqeSyndrome::WR_FLUSH_ERR);
    }
    if qp.qp_type.is_reliable() || qp.qp_type == QpType::RegUmr {
        fail(qp, env);
    } else {
        // Receiving goes on. Source: IBTA vol. 1, 10.3.1, "send queue error".
        qp.state = QpState::Sqer;
        flush(qp, env);
    }
}
