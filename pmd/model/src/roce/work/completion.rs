//! Completions of send requests: good, failed, flushed.
//!
//! Source: reference 6.7, 6.11.

use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{CompletionMode, Opcode};

use super::env::{Env, complete_error};
use super::inline;
use super::wqe::{job, opcode, read_wqe};
use crate::objects::{Qp, SendJob};
use crate::queue::cq::{self, Urgency};
use crate::roce::transport::requester::{Kind, Request};

/// Requests that a failed queue pair flushes from its ring in one turn.
const FLUSHED_PER_TURN: usize = 256;

pub(super) fn complete(qp: &mut Qp, env: &mut Env<'_>, request: &Request<SendJob>) {
    let job = &request.job;
    if opcode(job) == Opcode::SEND_INVAL {
        env.key_counts.sends_with_invalidate += 1;
    }
    if job.ctrl.ce() < CompletionMode::ALWAYS.0 {
        return;
    }
    qp.stats.completions += 1;
    let byte_cnt = match request.kind {
        Kind::Read | Kind::Atomic => job.len,
        Kind::Push | Kind::Local => 0,
    };
    let entry = Cqe64::zeroed()
        .with_srqn_uidx(qp.context.user_index())
        .with_timestamp(cq::timestamp(env.now_ns))
        .with_sop_qpn_opcode(opcode(job).0.into())
        .with_sop_drop_qpn(env.qpn)
        .with_byte_cnt(byte_cnt)
        .with_wqe_counter(job.counter.into())
        .with_opcode(CqeOpcode::REQUESTER.0);
    let urgency = match job.ctrl.ce() {
        ce if ce == CompletionMode::ALWAYS_AND_EQE.0 => Urgency::Event,
        _ => Urgency::Plain,
    };
    let cqn = qp.context.cqn_snd();
    let Some(answer) = job.answer.as_ref().filter(|answer| !answer.is_empty()) else {
        return env.complete(cqn, entry.0, urgency);
    };
    env.inline_counts.requester += 1;
    inline::complete(env, cqn, (qp.answer_scatter(), answer), entry, urgency);
}

pub(super) fn report(qp: &mut Qp, env: &mut Env<'_>, job: &SendJob, syndrome: CqeSyndrome) {
    let (cqn, index) = (qp.context.cqn_snd(), qp.context.user_index());
    let wqe = (opcode(job).0, job.counter);
    complete_error(qp, env, cqn, CqeOpcode::REQUESTER_ERROR, wqe, index, syndrome);
}

/// Completes what is posted and not over with "flushed": a turn's worth. What is left has its turn
/// later.
pub(super) fn flush(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let mut busy = false;
    // No more than a window of requests.
    while let Some((request, fault)) = qp.requester.pop() {
        // What was over before the error completes as it is.
        match fault {
            None => complete(qp, env, &request),
            Some(_) => report(qp, env, &request.job, CqeSyndrome::WR_FLUSH_ERR),
        }
        busy = true;
    }
    while let Some(request) = qp.requester.take_front() {
        report(qp, env, &request.job, CqeSyndrome::WR_FLUSH_ERR);
        busy = true;
    }
    for _ in 0..FLUSHED_PER_TURN {
        if qp.sq_posted == qp.sq_fetched {
            break;
        }
        busy = true;
        let counter = qp.sq_fetched;
        let Some((wqe, blocks)) = read_wqe(qp, env) else {
            qp.sq_fetched = qp.sq_posted;
            break;
        };
        qp.sq_fetched = counter.wrapping_add(blocks);
        report(qp, env, &job(wqe, counter), CqeSyndrome::WR_FLUSH_ERR);
    }
    busy
}
