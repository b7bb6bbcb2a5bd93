//! What fails: a request, or a queue pair with all that is posted.

use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;

use super::env::Env;
use super::{completion, ring};
use crate::objects::{Qp, QpReceive, QpState};
use crate::queue::wqe::WqeFault;
use crate::roce::transport::requester::Fault;

/// Moves a queue pair to the error state and flushes everything posted.
pub(super) fn fail(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.state == QpState::Error {
        return;
    }
    qp.state = QpState::Error;
    flush(qp, env);
}

/// Flushes everything posted to a queue pair that has gone to the error state.
pub(super) fn flush(qp: &mut Qp, env: &mut Env<'_>) {
    if let Some(taken) = qp.taken.take() {
        ring::report(qp, env, &taken, CqeSyndrome::WR_FLUSH_ERR);
    }
    completion::flush(qp, env);
    ring::flush(qp, env);
    if matches!(qp.receive, QpReceive::Rmp(_) | QpReceive::Srq(_)) {
        let qpn = env.qpn;
        env.event(EventType::SRQ_LAST_WQE, qpn);
    }
}

/// A request cannot be carried out: it fails when its turn to complete comes.
pub(super) fn fail_at(qp: &mut Qp, env: &mut Env<'_>, index: usize, fault: &WqeFault) {
    env.refuse(fault.field, fault.value, fault.why);
    qp.requester.fail(index, Fault::Local(fault.syndrome.0));
}
