//! [`QueuePair`]: a queue pair as the program has it.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use ferrocx_verbs_lite::{Cq, QpState, VerbsError};

use super::batch::Batch;
use super::context::Shared;
use super::cq::Queue;
use super::life::{User, Users};
use super::pair::Member;
use super::shown::Shown;
use crate::abi::{ibv_qp, ibv_qp_ex, ibv_qp_init_attr, qps};

/// A queue pair as the program has it.
#[repr(C)]
pub(super) struct QueuePair {
    pub(super) face: Shown<ibv_qp_ex>,
    pub(super) shared: Arc<Shared>,
    pub(super) member: Arc<Member>,
    /// Somebody builds a batch, and uses it alone.
    pub(super) is_building: AtomicBool,
    pub(super) batch: UnsafeCell<Batch>,
    pub(super) init: ibv_qp_init_attr,
    /// A handle of a target that another one made, whose events go there.
    pub(super) is_opened: bool,
    /// Rules that lead frames to it.
    pub(super) users: Users,
    /// Its domain and its completion queues are there as long as it is.
    pub(super) needs: Vec<User>,
}

impl QueuePair {
    /// # Safety
    /// The module's: `face` is a live queue pair.
    pub(super) unsafe fn of<'a>(face: *mut ibv_qp) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    pub(super) fn number(&self) -> u32 {
        promised!((*self.face.get()).base.qp_num)
    }

    /// Tells the program which state it has.
    pub(super) fn show_state(&self, state: c_int) {
        let place = promised!(AtomicI32::from_ptr(&raw mut (*self.face.get()).base.state));
        place.store(state, Ordering::Relaxed);
    }

    /// The completion queues, each once, in the order in which their locks are taken.
    fn queues(&self) -> Vec<&Queue> {
        let mut faces = [self.init.send_cq, self.init.recv_cq].to_vec();
        faces.retain(|face| !face.is_null());
        faces.sort();
        faces.dedup();
        faces.into_iter().map(|face| promised!(Queue::of(face))).collect()
    }

    /// Runs `end` with the completion queues, after which the device writes no completion of this
    /// queue pair any more, and drops those that it has written, as the interface promises of
    /// destroying and resetting.
    pub(super) fn purge<T>(&self, end: impl FnOnce(&[&Cq]) -> T) -> T {
        let queues = self.queues();
        let mut inners: Vec<_> = queues.iter().map(|queue| (*queue, queue.inner())).collect();
        inners.iter_mut().for_each(|(queue, inner)| queue.take_all(inner));
        let cqs: Vec<_> = inners.iter().map(|(_, inner)| &inner.cq).collect();
        let ended = end(&cqs);
        inners.iter_mut().for_each(|(queue, inner)| queue.take_all(inner));
        let number = self.number();
        for (_, inner) in &mut inners {
            inner.waiting.retain(|(wc, _)| wc.qp_num != number);
        }
        ended
    }

    /// Is found by completions no more.
    pub(super) fn leave(&self) {
        let Some(index) = self.member.index else { return };
        self.shared.remove(index);
        self.queues().iter().for_each(|queue| queue.inner().seen.forget(index));
        self.shared.give_index(index);
    }

    /// Resets it at once, whatever is posted.
    pub(super) fn let_go(&self) -> Result<(), VerbsError> {
        let pair = &self.member.pair;
        // A receive of a shared queue that it took and has not filled comes back flushed: reset
        // forgets it, and the shared queue would wait for its end.
        let takes = {
            let pair = pair.lock();
            pair.srq.is_some() && pair.qp.state() != QpState::Reset
        };
        if takes {
            self.purge(|_| pair.lock().qp.to_error())?;
        }
        self.purge(|cqs| {
            let mut pair = pair.lock();
            // The reset begins with taking the rules off the device, also where it fails then: one
            // that is still named there would be found, and could not be ended.
            pair.rules.forget();
            pair.qp.abandon(cqs)
        })
    }
}

/// The state in the interface's words.
pub(super) fn state_of(state: QpState) -> c_int {
    match state {
        QpState::Reset => qps::RESET,
        QpState::Init => qps::INIT,
        QpState::Rtr => qps::RTR,
        QpState::Rts => qps::RTS,
        QpState::SqError => qps::SQE,
        QpState::Error => qps::ERR,
    }
}
