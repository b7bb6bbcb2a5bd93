//! Stores of sixteen and of 32 bytes into rings, for bytes that stand in memory: fewer instructions
//! than words. The device may see such a store in parts, so that nobody polls on what it writes.
#![expect(unsafe_code, reason = "raw pointers into shared memory")]

use std::ptr::NonNull;
#[cfg(any(miri, not(target_arch = "x86_64")))]
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of the widest store that every processor of x86-64 and aarch64 has.
pub(crate) const WIDE_BYTES: usize = 16;

/// Bytes of the widest store that many processors have.
pub(crate) const WIDEST_BYTES: usize = 32;

/// Proof that the processor stores 32 bytes at once, and that the system keeps the registers that
/// it does so with.
#[derive(Debug, Clone, Copy)]
pub struct WideStores(());

impl WideStores {
    /// For whom has asked before.
    ///
    /// # Safety
    ///
    /// [`WideStores::detect`] has given one.
    #[inline(always)]
    pub(crate) unsafe fn known() -> Self {
        Self(())
    }

    /// Asks the processor.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        return std::arch::is_x86_feature_detected!("avx").then_some(Self(()));
        #[cfg(any(miri, not(target_arch = "x86_64")))]
        None
    }
}

/// Copies `count` pieces of 32 bytes, ten at most.
///
/// # Safety
///
/// So many pieces are there, `to` is valid for writes of as many bytes, which others access
/// according to the protocol of the ring, and the processor has [`WideStores`].
#[inline(always)]
pub(crate) unsafe fn copy_widest(to: NonNull<u8>, pieces: &[[u8; WIDEST_BYTES]], count: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        /// One copy: offsets in text, because operands of assembly cannot be a place and an offset.
        macro_rules! copy {
            ($($at:literal)*) => {
                // SAFETY: as the caller promises. Assembly, because only functions compiled for
                // such processors may use these registers, and because the device is outside of
                // the language's memory: exactly these stores.
                unsafe {
                    std::arch::asm!(
                        $(
                            concat!("vmovups ymm0, ymmword ptr [{from} + ", $at, "]"),
                            concat!("vmovups ymmword ptr [{to} + ", $at, "], ymm0"),
                        )*
                        // Else each later instruction of the older kind would wait for these.
                        "vzeroupper",
                        from = in(reg) pieces.as_ptr(),
                        to = in(reg) to.as_ptr(),
                        out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                        out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                        out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                        out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                        options(nostack, preserves_flags)
                    );
                }
            };
        }
        match count {
            0 => {}
            1 => copy!(0),
            2 => copy!(0 32),
            3 => copy!(0 32 64),
            4 => copy!(0 32 64 96),
            5 => copy!(0 32 64 96 128),
            6 => copy!(0 32 64 96 128 160),
            7 => copy!(0 32 64 96 128 160 192),
            8 => copy!(0 32 64 96 128 160 192 224),
            9 => copy!(0 32 64 96 128 160 192 224 256),
            _ => copy!(0 32 64 96 128 160 192 224 256 288),
        }
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    for (i, piece) in pieces.iter().take(count).enumerate() {
        // SAFETY: as the caller promises.
        unsafe { crate::bytes::copy_in(to.add(i * WIDEST_BYTES), piece) };
    }
}

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

/// Bytes that [`store_long`] stores at a time.
const LONG_BYTES: usize = 8 * WIDE_BYTES;

/// Copies 128 bytes or more: piece by piece, the last of which ends where `bytes` do and overlaps
/// the one before. `false`, and nothing done, for fewer.
///
/// # Safety
///
/// As for [`store_ends`].
#[inline(always)]
pub(crate) unsafe fn store_long(to: NonNull<u8>, bytes: &[u8]) -> bool {
    let Some(last) = bytes.last_chunk::<LONG_BYTES>() else { return false };
    let (pieces, rest) = bytes.as_chunks::<LONG_BYTES>();
    for (i, piece) in pieces.iter().enumerate() {
        // SAFETY: as the caller promises: each piece lies inside of `bytes.len()` bytes at `to`.
        unsafe { store_piece(to.add(i * LONG_BYTES), piece) };
    }
    if !rest.is_empty() {
        // SAFETY: as above, and the last piece lies there too: there are as many bytes.
        unsafe { store_piece(to.add(bytes.len() - LONG_BYTES), last) };
    }
    true
}

/// Stores a piece of [`store_long`] at any address.
///
/// # Safety
///
/// As for [`store_anywhere`], for all of `piece`.
#[inline(always)]
unsafe fn store_piece(to: NonNull<u8>, piece: &[u8; LONG_BYTES]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        /// Offsets in text, as in [`copy_widest`].
        macro_rules! copy {
            ($($at:literal)*) => {
                // SAFETY: as the caller promises; both sides have so many bytes. Assembly, because
                // Rust has no volatile store that need not be aligned.
                unsafe {
                    std::arch::asm!(
                        $(
                            concat!("movups {wide}, xmmword ptr [{from} + ", $at, "]"),
                            concat!("movups xmmword ptr [{to} + ", $at, "], {wide}"),
                        )*
                        from = in(reg) piece.as_ptr(),
                        to = in(reg) to.as_ptr(),
                        wide = out(xmm_reg) _,
                        options(nostack, preserves_flags)
                    );
                }
            };
        }
        copy!(0 16 32 48 64 80 96 112);
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    for (i, unit) in piece.as_chunks::<WIDE_BYTES>().0.iter().enumerate() {
        // SAFETY: as the caller promises: `piece` has so many units.
        unsafe { store_anywhere(to.add(i * WIDE_BYTES), unit) };
    }
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
