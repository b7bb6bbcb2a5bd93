//! Receive WQEs, read many at a time.
//!
//! Entries that are posted belong to the device until they are completed, so what is read ahead
//! inside one step stays true.

use ferrocx_bus::local::DmaView;

use ferrocx_prm::layout::Part;
use ferrocx_prm::wqe::{DS_BYTES, Data};

use crate::bits::low16;
use crate::objects::{QueueStats, ReceiveRing, WorkQueue};

/// Queues whose WQEs are kept at the same time; more take turns.
const FETCH_SLOTS: usize = 16;
/// Bytes of WQEs fetched at once for one queue, which is also the longest one there may be.
///
/// # Source
/// Reference 5.10, `max_wqe_sz_rq` = 0x200.
const FETCH_BYTES: usize = 512;

/// WQEs of one queue that were fetched together: posted, and so the device's until completed.
#[derive(Debug, Clone, Copy)]
struct Slot {
    rqn: u32,
    /// Counter of the first, and how many.
    first: u16,
    count: u16,
    bytes: [u8; FETCH_BYTES],
}

/// WQEs fetched ahead, for one step: a read of memory for many of them.
#[derive(Debug)]
pub(super) struct Fetched {
    slots: Box<[Slot]>,
    is_empty: bool,
}

impl Default for Fetched {
    fn default() -> Self {
        let empty = Slot { rqn: 0, first: 0, count: 0, bytes: [0; FETCH_BYTES] };
        Self { slots: vec![empty; FETCH_SLOTS].into(), is_empty: true }
    }
}

impl Fetched {
    #[inline]
    pub(super) fn forget(&mut self) {
        if !self.is_empty {
            self.slots.iter_mut().for_each(|slot| slot.count = 0);
            self.is_empty = true;
        }
    }

    /// The WQE that the queue uses next; `None` when the ring cannot be read.
    #[inline]
    pub(super) fn wqe(
        &mut self,
        mem: &DmaView<'_>,
        stats: &mut QueueStats,
        (rqn, wq): (u32, &WorkQueue),
        (ring, index): (&ReceiveRing, u16),
    ) -> Option<&[u8]> {
        let stride = 1_usize << wq.log_stride.min(9);
        let slot = &mut self.slots[rqn as usize % FETCH_SLOTS];
        let ahead = ring.consumed.wrapping_sub(slot.first);
        if slot.rqn != rqn || ahead >= slot.count {
            let at = u64::from(index) << wq.log_stride;
            // Linked entries are anywhere; others stand behind each other up to the ring's end.
            let posted = usize::from(ring.posted.wrapping_sub(ring.consumed));
            let together = usize::try_from(wq.memory.run_bytes(at)).unwrap_or(0) / stride;
            let most = if wq.wq_type.is_linked() { 1 } else { FETCH_BYTES / stride };
            let count = posted.min(together).min(most).max(1);
            slot.count = 0;
            mem.read(wq.memory.locate(at), &mut slot.bytes[..count * stride]).ok()?;
            stats.dma_reads += 1;
            stats.descriptor_bytes += (count * stride) as u64;
            (slot.rqn, slot.first, slot.count) = (rqn, ring.consumed, low16(count as u64));
            // Those that will be read next were written by the driver's core.
            let behind = at + (count * stride) as u64;
            if !wq.wq_type.is_linked() && behind < wq.memory.len_bytes() {
                mem.expect_read(wq.memory.locate(behind), most * stride);
            }
            // Packets will be written there, where the driver's core wrote last.
            if !wq.next_segment && !wq.wq_type.is_striding() {
                for wqe in slot.bytes[..count * stride].chunks_exact(stride) {
                    let data = Data::load(&wqe[..DS_BYTES]);
                    mem.expect_write(data.addr());
                }
            }
            self.is_empty = false;
            return Some(&slot.bytes[..stride]);
        }
        Some(&slot.bytes[usize::from(ahead) * stride..][..stride])
    }
}
