//! Memory barriers between the CPU and the device, each named by the pair it orders.
//!
//! | barrier | orders this | before this |
//! |---|---|---|
//! | [`dma_wmb`] | stores to DMA memory | later stores to DMA memory |
//! | [`dma_rmb`] | the load of an ownership word | later loads of the same entry |
//! | [`dma_mb`] | a store to DMA memory | a later load of DMA memory |
//! | [`io_wmb`] | stores to DMA memory | later stores to device registers |
//! | [`io_rmb`] | a register load | later loads of DMA memory |
//!
//! What breaks without each:
//!
//! - [`dma_wmb`]: the device sees a new doorbell record or owner bit, and fetches a WQE whose bytes
//!   are still the old ones.
//! - [`dma_rmb`]: the CPU reads `byte_cnt` of the previous lap of a CQ, although `owner` is new.
//! - [`dma_mb`]: a CQ is polled before its arming is visible, so an event and a completion miss
//!   each other.
//! - [`io_wmb`]: the doorbell overtakes its record; the device sees nothing to do, and the queue
//!   stalls.
//! - [`io_rmb`]: memory is read before the register said that it is ready.
//!
//! x86-64 keeps all of these orders except store-then-load for ordinary and uncached memory, so
//! there the functions only stop the compiler ([`dma_mb`] is a real fence). A missing barrier does
//! not show on x86 hardware; aarch64 and Miri show it. The outer-shareable `dmb osh*` forms are
//! used on aarch64 because a device is outside the inner-shareable domain.
//!
//! [`crate::Doorbell::ring`] contains [`io_wmb`], and `store_release_*` and `load_acquire_*` of
//! [`crate::Slot`], [`crate::DmaWord`] and [`crate::DmaBuf`] contain what they need against
//! other accesses to DMA memory. So drivers rarely call these directly.
#![cfg_attr(
    target_arch = "aarch64",
    expect(unsafe_code, reason = "the dmb osh forms exist only as assembly")
)]

use std::sync::atomic::{Ordering, fence};

/// Defines one barrier: a Rust fence, plus the outer-shareable `dmb` where Rust's is too narrow.
macro_rules! barrier {
    ($(#[$doc:meta])* $name:ident, $ordering:expr, $dmb:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name() {
            fence($ordering);
            #[cfg(all(target_arch = "aarch64", not(miri)))]
            // SAFETY: a barrier instruction touches no register, flag or stack.
            unsafe {
                std::arch::asm!($dmb, options(nostack, preserves_flags));
            }
        }
    };
}

barrier! {
    /// Orders earlier stores to DMA memory before later stores to DMA memory.
    dma_wmb, Ordering::Release, "dmb oshst"
}
barrier! {
    /// Orders earlier loads of DMA memory before later loads and stores of DMA memory.
    dma_rmb, Ordering::Acquire, "dmb oshld"
}
barrier! {
    /// Orders earlier stores to DMA memory before later loads of DMA memory (a full fence).
    dma_mb, Ordering::SeqCst, "dmb osh"
}
barrier! {
    /// Orders earlier stores to DMA memory before later stores to uncached device registers.
    ///
    /// Not enough for write-combining mappings, whose stores leave a buffer in any order: those
    /// need `sfence` (x86-64) or `dsb st` (aarch64). This crate maps BARs uncached only.
    io_wmb, Ordering::Release, "dmb oshst"
}
barrier! {
    /// Orders an earlier register load before later loads of DMA memory.
    io_rmb, Ordering::Acquire, "dmb oshld"
}
