//! What a program leaves behind that closes its device: it ends then, as a kernel ends it, so that
//! no peer reaches memory that the program uses for something else by now.

use std::sync::PoisonError;

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
/// of its file. The program has no handle of any of them any more.
pub(super) fn end_all(shared: &Shared) {
    let members = shared.members.read().unwrap_or_else(PoisonError::into_inner).clone();
    members.iter().flatten().for_each(|member| end(member));
    // Targets of XRC are in no table: they complete nothing.
    let faces: Vec<_> = {
        let events = lock(&shared.events);
        let pairs = events.objects.iter().filter(|((kind, _), _)| *kind == Kind::Qp);
        pairs.map(|(_, told)| told.face).collect()
    };
    for face in faces {
        let face = std::ptr::with_exposed_provenance_mut(face as usize);
        end(&promised!(QueuePair::of(face)).member);
    }
    for (_, known) in std::mem::take(&mut *lock(&shared.handles.regions)) {
        let mut place = lock(&known.place);
        if let Some(held) = &*place
            && held.mr.dereg().is_ok()
        {
            *place = None;
        }
    }
    for (_, (dm, _)) in std::mem::take(&mut *lock(&shared.handles.memories)) {
        if let Err(error) = dm.free() {
            tracing::warn!(%error, "device memory that was left behind is not given back");
        }
    }
}
