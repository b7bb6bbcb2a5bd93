//! Stores of sixteen bytes into rings, for bytes that stand in memory: half the instructions of
//! words. The device may see such a store in halves, so that nobody polls on what it writes.
#![expect(unsafe_code, reason = "raw pointers into shared memory")]

use std::ptr::NonNull;
#[cfg(any(miri, not(target_arch = "x86_64")))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the widest store that every processor of x86-64 and aarch64 has.
pub(crate) const WIDE_BYTES: usize = 16;

/// Stores sixteen bytes, which the device may see in halves: whoever stores an entry so hands it
/// over by a later store.
///
/// # Safety
///
/// `to` is valid for writes of sixteen bytes, 16-byte aligned, and accessed by others according to
/// the protocol of the ring: not before it is handed over.
#[inline(always)]
pub(crate) unsafe fn store_wide(to: NonNull<u8>, bytes: &[u8; WIDE_BYTES]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as the caller promises. Volatile, because the device is outside of the language's
    // memory: exactly this store, in this order.
    unsafe {
        use std::arch::x86_64::{__m128i, _mm_loadu_si128};
        let wide = _mm_loadu_si128(bytes.as_ptr().cast());
        to.cast::<__m128i>().write_volatile(wide);
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    for (i, half) in bytes.as_chunks::<8>().0.iter().enumerate() {
        // SAFETY: as the caller promises; the halves are 8-byte aligned.
        let word = unsafe { AtomicU64::from_ptr(to.add(8 * i).cast().as_ptr()) };
        word.store(u64::from_ne_bytes(*half), Relaxed);
    }
}

/// Copies the first and the last `N` units of sixteen bytes, which overlap, if that is all of
/// `bytes`.
///
/// # Safety
///
/// As for [`store_wide`], for all of `bytes`, wherever `to` is aligned.
#[inline(always)]
pub(crate) unsafe fn store_ends<const N: usize>(to: NonNull<u8>, bytes: &[u8]) -> bool {
    let (units, _) = bytes.as_chunks::<WIDE_BYTES>();
    let (_, ends) = bytes.as_rchunks::<WIDE_BYTES>();
    let (Some(first), Some(last)) = (units.first_chunk::<N>(), ends.last_chunk::<N>()) else {
        return false;
    };
    if bytes.len() > 2 * N * WIDE_BYTES {
        return false;
    }
    let behind = bytes.len() - N * WIDE_BYTES;
    for i in 0..N {
        // SAFETY: as the caller promises: each store lies inside of `bytes.len()` bytes at `to`.
        unsafe {
            store_anywhere(to.add(i * WIDE_BYTES), &first[i]);
            store_anywhere(to.add(behind + i * WIDE_BYTES), &last[i]);
        }
    }
    true
}

/// Stores sixteen bytes at any address.
///
/// # Safety
///
/// As for [`store_wide`], but for the alignment.
#[inline(always)]
unsafe fn store_anywhere(to: NonNull<u8>, bytes: &[u8; WIDE_BYTES]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: as the caller promises. Assembly, because Rust has no volatile store that need not
    // be aligned.
    unsafe {
        std::arch::asm!(
            "movups xmmword ptr [{to}], {wide}",
            to = in(reg) to.as_ptr(),
            wide = in(xmm_reg) std::arch::x86_64::_mm_loadu_si128(bytes.as_ptr().cast()),
            options(nostack, preserves_flags)
        );
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    // SAFETY: as the caller promises.
    unsafe {
        crate::bytes::copy_in(to, bytes);
    }
}
