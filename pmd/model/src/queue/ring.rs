//! Receive WQEs in their ring: the scatter list of one, and going on to the next.
//!
//! Source: reference 6.5.

use ferrocx_prm::layout::Part;
use ferrocx_prm::wqe::{DS_BYTES, Data, INVALID_LKEY, Next};

use crate::bits::low16;
use crate::objects::{ReceiveRing, WorkQueue};

/// The scatter list of a WQE: behind a next segment and a signature, up to the end mark.
pub(crate) fn scatter_list<'a>(
    wq: &WorkQueue,
    wqe: &'a [u8],
) -> impl Iterator<Item = Data> + use<'a> {
    let mut skip = 0;
    if wq.next_segment {
        // The signature of such an entry is inside the next segment.
        skip = DS_BYTES;
    } else if wq.signature {
        skip = DS_BYTES;
    }
    wqe[skip.min(wqe.len())..]
        .chunks_exact(DS_BYTES)
        .map(Data::load)
        .take_while(|data| !(data.byte_count() == 0 && data.lkey() == INVALID_LKEY))
}

/// The current entry is used up.
#[inline]
pub(crate) fn advance(wq: &WorkQueue, ring: &mut ReceiveRing, wqe: &[u8]) {
    ring.consumed = ring.consumed.wrapping_add(1);
    ring.strides_used = 0;
    if wq.wq_type.is_linked() {
        ring.next_wqe = low16(Next::load(&wqe[..DS_BYTES]).next_wqe_index().into());
    }
}
