//! What a program leaves behind that closes its device: it ends then, as a kernel ends it, so that
//! no peer reaches memory that the program uses for something else by now.

use std::sync::{Arc, PoisonError};

use ferrocx_verbs_lite::QpState;

use super::context::{Kind, Shared};
use super::pair::Member;
use super::queue_pair::QueuePair;
use crate::node::lock;

/// Ends a queue pair: it neither sends nor answers any more.
fn end(member: &Member) {
    let mut pair = member.pair.lock();
    if !matches!(pair.qp.state(), QpState::Reset | QpState::Error)
        && let Err(error) = pair.qp.to_error()
    {
        tracing::warn!(%error, "a queue pair that was left behind is as it was");
    }
}

/// Ends the queue pairs of a context that its program has left, and the regions and device memory
/// of its file. Of what the program ends later all the same, the handle alone is left.
pub(super) fn end_all(shared: &Shared) {
    let members = shared.members.read().unwrap_or_else(PoisonError::into_inner).clone();
    members.iter().flatten().for_each(|member| end(member));
    // Targets of XRC are in no table: they complete nothing. One is delisted before it is freed.
    let targets: Vec<_> = {
        let events = lock(&shared.events);
        let pairs = events.objects.iter().filter(|((kind, _), _)| *kind == Kind::Qp);
        let member = |face: u64| {
            let face = std::ptr::with_exposed_provenance_mut(face as usize);
            Arc::clone(&promised!(QueuePair::of(face)).member)
        };
        pairs.map(|(_, told)| member(told.face)).collect()
    };
    targets.iter().for_each(|member| end(member));
    // Whoever ends a region locks it first.
    let regions = std::mem::take(&mut *lock(&shared.handles.regions));
    for (_, known) in regions {
        let mut place = lock(&known.place);
        if let Some(held) = &*place
            && held.mr.dereg().is_ok()
        {
            *place = None;
        }
    }
    let memories = std::mem::take(&mut *lock(&shared.handles.memories));
    for (_, piece) in memories {
        if let Err(error) = piece.dm.free() {
            tracing::warn!(%error, "device memory that was left behind is not given back");
        }
    }
}
