//! Completions that are not compressed, of packets in a buffer each.

use ferrocx_bus::{RingView, Slot};
use ferrocx_mempool::{Arrivals, Mbuf};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::Cqe64;

use super::meta::{describe, stamp};

/// Completions of a burst, one after the other.
pub(super) struct Completions<'r, const STAMPED: bool> {
    cqes: RingView<'r, 64>,
    /// Of the next one: its place in bytes, and its last dword.
    at: u32,
    pub(super) wanted: u32,
    last_mask: u32,
    /// The one that was found.
    cqe: Slot<'r, 64>,
    /// Of all so far.
    pub(super) bytes: u64,
    pub(super) stop: Stop,
}

impl<'r, const STAMPED: bool> Completions<'r, STAMPED> {
    /// Those from the `ci`th on, of which `wanted` is still to be set.
    #[inline(always)]
    pub(super) fn of(cqes: RingView<'r, 64>, ci: u32, last_mask: u32) -> Self {
        Self {
            cqes,
            at: ci.wrapping_mul(Cqe64::SIZE_BYTES as u32),
            wanted: 0,
            last_mask,
            cqe: cqes.at(0),
            bytes: 0,
            stop: Stop::Full,
        }
    }
}

impl<const STAMPED: bool> Arrivals for Completions<'_, STAMPED> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let cqe = self.cqes.at_byte(self.at);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        if (last ^ self.wanted) & self.last_mask != 0 {
            self.stop = Stop::Unexpected(last);
            return None;
        }
        self.at = self.at.wrapping_add(Cqe64::SIZE_BYTES as u32);
        self.wanted = self.wanted.wrapping_add(Cqe64::WQE_COUNTER.of(1));
        self.cqe = cqe;
        let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        self.bytes += u64::from(len);
        Some(len)
    }

    #[inline(always)]
    fn too_long(&mut self, len: u32) {
        self.bytes -= u64::from(len);
        self.stop = Stop::TooLong(len);
    }

    #[inline(always)]
    fn describe(&mut self, mbuf: &mut Mbuf) {
        describe(mbuf, &self.cqe);
        if STAMPED {
            stamp(mbuf, &self.cqe);
        }
    }
}

/// Why a burst ended.
pub(super) enum Stop {
    /// No room in the vector, or no buffer in the ring.
    Full,
    /// A completion that is not the expected one; its last dword.
    Unexpected(u32),
    /// A completion with this many bytes.
    TooLong(u32),
}
