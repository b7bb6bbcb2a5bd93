//! Copies to and from memory that a device or another core may access at the same time.
//!
//! Such memory is touched with relaxed atomics only: eight bytes where the address allows, four or
//! one elsewhere. That is a plain `mov` per word, never a data race, and Miri can follow it. Blocks
//! of sixteen bytes go by [`copy_blocks`], in the same order and faster.
#![expect(unsafe_code, reason = "raw pointers into shared memory")]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes before `ptr` reaches an 8-byte boundary, at most `len`.
#[inline]
fn head_len(ptr: *const u8, len: usize) -> usize {
    (ptr.addr().wrapping_neg() & 7).min(len)
}

/// Copies `src` into shared memory.
///
/// # Safety
///
/// `dst` is valid for reads and writes of `src.len()` bytes during the call, and all concurrent
/// accesses to these bytes are atomic.
#[inline]
pub(crate) unsafe fn copy_in(dst: NonNull<u8>, src: &[u8]) {
    let dst = dst.as_ptr();
    let (head, rest) = src.split_at(head_len(dst, src.len()));
    // SAFETY: the caller vouches for `src.len()` bytes from `dst`; `head` and `rest` cover them
    // once. Behind `head`, `dst` is 8-byte aligned if anything is left.
    unsafe {
        if !head.is_empty() {
            head_in(dst, head);
        }
        aligned_in(dst.add(head.len()), rest);
    }
}

/// Copies `src` into shared memory from an 8-byte boundary on.
///
/// # Safety
///
/// As for [`copy_in`]; `dst` is aligned to eight bytes if `src` is not empty.
#[inline]
unsafe fn aligned_in(dst: *mut u8, src: &[u8]) {
    let (from, len) = (src.as_ptr(), src.len());
    // SAFETY: the caller vouches for `len` bytes from `dst`; blocks, words and the tail cover them
    // once, and `done` is a multiple of each word's length.
    unsafe {
        let mut done = copy_blocks(dst, from, len);
        while len - done >= 8 {
            let word = from.add(done).cast::<u64>().read_unaligned();
            AtomicU64::from_ptr(dst.add(done).cast()).store(word, Relaxed);
            done += 8;
        }
        if len - done >= 4 {
            let word = from.add(done).cast::<u32>().read_unaligned();
            AtomicU32::from_ptr(dst.add(done).cast()).store(word, Relaxed);
            done += 4;
        }
        if done < len {
            bytes_in(dst.add(done), src.get_unchecked(done..));
        }
    }
}

/// Copies `src` into shared memory, word by word of four bytes if it is whole words: they were
/// written so a moment ago, and a processor that reads more at once has to wait for its stores.
///
/// # Safety
///
/// As for [`copy_in`]; `dst` is aligned to four bytes if `src` is whole words.
#[inline]
pub(crate) unsafe fn copy_words_in(dst: NonNull<u8>, src: &[u8]) {
    let (words, rest) = src.as_chunks::<4>();
    if !rest.is_empty() {
        // SAFETY: as the caller promises.
        return unsafe { copy_in(dst, src) };
    }
    let dst = dst.cast::<u32>();
    for (at, word) in words.iter().enumerate() {
        // SAFETY: the caller vouches for `src.len()` bytes from `dst`, of which this word is one,
        // and for its alignment.
        let word_at = unsafe { AtomicU32::from_ptr(dst.add(at).as_ptr()) };
        word_at.store(u32::from_ne_bytes(*word), Relaxed);
    }
}

/// Copies the bytes in front of an 8-byte boundary, or fewer: their last four as one word.
///
/// # Safety
///
/// As for [`copy_in`]; fewer than eight bytes.
#[cold]
unsafe fn head_in(dst: *mut u8, src: &[u8]) {
    // SAFETY: as the caller promises; the word is stored at an aligned address.
    unsafe {
        let (front, word) = src.split_at((dst.addr().wrapping_neg() & 3).min(src.len()));
        bytes_in(dst, front);
        let dst = dst.add(front.len());
        match word.try_into() {
            Ok(word) => AtomicU32::from_ptr(dst.cast()).store(u32::from_ne_bytes(word), Relaxed),
            Err(_) => bytes_in(dst, word),
        }
    }
}

/// Copies bytes in, one by one.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline(never)]
unsafe fn bytes_in(dst: *mut u8, src: &[u8]) {
    for (at, byte) in src.iter().enumerate() {
        // SAFETY: `at` is below the length, for which the caller vouches.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(*byte, Relaxed) };
    }
}

/// Copies shared memory into `dst`.
///
/// # Safety
///
/// `src` is valid for reads of `dst.len()` bytes during the call, and all concurrent accesses to
/// these bytes are atomic.
#[inline]
pub(crate) unsafe fn copy_out(src: NonNull<u8>, dst: &mut [u8]) {
    let src = src.as_ptr();
    let (head, rest) = dst.split_at_mut(head_len(src, dst.len()));
    // SAFETY: as in `copy_in`, with the roles exchanged.
    unsafe {
        if !head.is_empty() {
            head_out(src, head);
        }
        aligned_out(src.add(head.len()), rest);
    }
}

/// Copies shared memory into `dst` from an 8-byte boundary on.
///
/// # Safety
///
/// As for [`copy_out`]; `src` is aligned to eight bytes if `dst` is not empty.
#[inline]
unsafe fn aligned_out(src: *mut u8, dst: &mut [u8]) {
    let (to, len) = (dst.as_mut_ptr(), dst.len());
    // SAFETY: as in `aligned_in`, with the roles exchanged.
    unsafe {
        let mut done = copy_blocks(to, src, len);
        while len - done >= 8 {
            let word = AtomicU64::from_ptr(src.add(done).cast()).load(Relaxed);
            to.add(done).cast::<u64>().write_unaligned(word);
            done += 8;
        }
        if len - done >= 4 {
            let word = AtomicU32::from_ptr(src.add(done).cast()).load(Relaxed);
            to.add(done).cast::<u32>().write_unaligned(word);
            done += 4;
        }
        if done < len {
            bytes_out(src.add(done), dst.get_unchecked_mut(done..));
        }
    }
}

/// Copies the bytes in front of an 8-byte boundary, or fewer: their last four as one word.
///
/// # Safety
///
/// As for [`copy_out`]; fewer than eight bytes.
#[cold]
unsafe fn head_out(src: *mut u8, dst: &mut [u8]) {
    // SAFETY: as the caller promises; the word is loaded from an aligned address.
    unsafe {
        let (front, word) = dst.split_at_mut((src.addr().wrapping_neg() & 3).min(dst.len()));
        bytes_out(src, front);
        let src = src.add(front.len());
        match <&mut [u8; 4]>::try_from(&mut *word) {
            Ok(word) => *word = AtomicU32::from_ptr(src.cast()).load(Relaxed).to_ne_bytes(),
            Err(_) => bytes_out(src, word),
        }
    }
}

/// Copies bytes out, one by one.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline(never)]
unsafe fn bytes_out(src: *mut u8, dst: &mut [u8]) {
    for (at, byte) in dst.iter_mut().enumerate() {
        // SAFETY: `at` is below the length, for which the caller vouches.
        *byte = unsafe { AtomicU8::from_ptr(src.add(at)).load(Relaxed) };
    }
}

/// Length from which [`copy_wide`] is worth its preparations.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const WIDE_BYTES: usize = 1024;

/// As [`copy_blocks`], in blocks of 128 bytes if the processor has AVX: with fewer and wider
/// accesses, more of what is far away is on its way at the same time.
///
/// # Safety
///
/// As for [`copy_blocks`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(never)]
unsafe fn copy_wide(to: *mut u8, from: *const u8, len: usize) -> usize {
    let blocks = if is_x86_feature_detected!("avx") { len / 128 } else { 0 };
    if blocks != 0 {
        // SAFETY: as in `copy_blocks`. Accesses of 32 bytes are atomic in each of their words, too.
        // All vector registers count as changed, since the upper halves are cleared.
        unsafe {
            std::arch::asm!(
                "2:",
                "vmovups ymm0, ymmword ptr [rsi]",
                "vmovups ymm1, ymmword ptr [rsi + 32]",
                "vmovups ymm2, ymmword ptr [rsi + 64]",
                "vmovups ymm3, ymmword ptr [rsi + 96]",
                "vmovups ymmword ptr [rdi], ymm0",
                "vmovups ymmword ptr [rdi + 32], ymm1",
                "vmovups ymmword ptr [rdi + 64], ymm2",
                "vmovups ymmword ptr [rdi + 96], ymm3",
                "add rsi, 128",
                "add rdi, 128",
                "dec rcx",
                "jnz 2b",
                "vzeroupper",
                inout("rsi") from => _,
                inout("rdi") to => _,
                inout("rcx") blocks => _,
                clobber_abi("sysv64"),
                options(nostack)
            );
        }
    }
    blocks * 128
}

/// Bytes of a block of [`copy_blocks`].
const BLOCK_BYTES: usize = 16;

/// Copies the whole blocks of 16 bytes among `len` bytes between private and shared memory, first
/// to last: who sees a byte of the copy sees all before it. Returns the bytes copied, 0 on
/// processors for which it is not written.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `len` bytes, which do not overlap; all
/// concurrent accesses to what of them is shared are atomic.
#[inline]
unsafe fn copy_blocks(to: *mut u8, from: *const u8, len: usize) -> usize {
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    {
        let _ = (to, from, len);
        0
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let mut done = 0;
        // SAFETY: as the caller promises, `len` bytes, which lines and blocks do not exceed.
        // Assembly, because Rust has no atomic access of sixteen bytes: to others these are relaxed
        // loads and stores, which the processor keeps in order.
        unsafe {
            if len >= WIDE_BYTES {
                done = copy_wide(to, from, len);
            }
            let (mut to, mut from) = (to.add(done), from.add(done));
            let rest = len - done;
            if rest >= 64 {
                let lines = rest / 64;
                std::arch::asm!(
                    "2:",
                    "movups {a}, xmmword ptr [{from}]",
                    "movups {b}, xmmword ptr [{from} + 16]",
                    "movups {c}, xmmword ptr [{from} + 32]",
                    "movups {d}, xmmword ptr [{from} + 48]",
                    "movups xmmword ptr [{to}], {a}",
                    "movups xmmword ptr [{to} + 16], {b}",
                    "movups xmmword ptr [{to} + 32], {c}",
                    "movups xmmword ptr [{to} + 48], {d}",
                    "add {from}, 64",
                    "add {to}, 64",
                    "dec {lines}",
                    "jnz 2b",
                    from = inout(reg) from,
                    to = inout(reg) to,
                    lines = inout(reg) lines => _,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack)
                );
            }
            if rest & 32 != 0 {
                std::arch::asm!(
                    "movups {a}, xmmword ptr [{from}]",
                    "movups {b}, xmmword ptr [{from} + 16]",
                    "movups xmmword ptr [{to}], {a}",
                    "movups xmmword ptr [{to} + 16], {b}",
                    from = in(reg) from,
                    to = in(reg) to,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
                (to, from) = (to.add(2 * BLOCK_BYTES), from.add(2 * BLOCK_BYTES));
            }
            if rest & 16 != 0 {
                std::arch::asm!(
                    "movups {a}, xmmword ptr [{from}]",
                    "movups xmmword ptr [{to}], {a}",
                    from = in(reg) from,
                    to = in(reg) to,
                    a = out(xmm_reg) _,
                    options(nostack, preserves_flags)
                );
            }
        }
        len & !(BLOCK_BYTES - 1)
    }
}

/// Sets `len_bytes` bytes of shared memory to `byte`.
///
/// # Safety
///
/// As for [`copy_in`], for `len_bytes` bytes.
pub(crate) unsafe fn fill(dst: NonNull<u8>, len_bytes: usize, byte: u8) {
    let block = [byte; 64];
    let mut done = 0;
    while done < len_bytes {
        let step = block.len().min(len_bytes - done);
        // SAFETY: `done + step <= len_bytes`, for which the caller vouches.
        unsafe { copy_in(dst.add(done), &block[..step]) };
        done += step;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 8-byte aligned storage, filled with a value that shows unwritten bytes.
    fn storage() -> [u64; 32] {
        [0xa5a5_a5a5_a5a5_a5a5; 32]
    }

    #[test]
    fn copy_in_writes_exactly_the_range_at_every_alignment() {
        for start in 0..9 {
            for len in (0..40).chain(62..82).chain([130, 200]) {
                let mut memory = storage();
                let base = NonNull::from(&mut memory).cast::<u8>();
                let src: Vec<u8> = (1..=200).take(len).collect();
                // SAFETY: start + len <= 208 bytes of 256, which nobody else uses.
                unsafe { copy_in(base.add(start), &src) };
                let mut all = [0; 256];
                // SAFETY: the whole storage, which nobody else uses.
                unsafe { copy_out(base, &mut all) };
                assert_eq!(&all[start..start + len], &src[..]);
                assert_eq!(all[..start], [0xa5; 256][..start]);
                assert_eq!(all[start + len..], [0xa5; 256][start + len..]);
            }
        }
    }

    #[test]
    fn copy_out_reads_exactly_the_range_at_every_alignment() {
        let mut memory = storage();
        let base = NonNull::from(&mut memory).cast::<u8>();
        let pattern: Vec<u8> = (0..=255).collect();
        // SAFETY: the whole storage, which nobody else uses.
        unsafe { copy_in(base, &pattern) };
        for start in 0..9 {
            for len in (0..40).chain(62..66).chain([130, 200]) {
                let mut dst = vec![0xee; len];
                // SAFETY: start + len <= 208 bytes of 256, which nobody else uses.
                unsafe { copy_out(base.add(start), &mut dst) };
                assert_eq!(dst, &pattern[start..start + len]);
            }
        }
    }

    #[test]
    fn what_is_long_is_copied_as_what_is_short() {
        for len in [1023, 1024, 1025, 1151, 1152, 4096 + 77] {
            for start in [0, 1, 8, 20] {
                let src: Vec<u8> = (0..=250).cycle().take(len).collect();
                let mut memory = vec![0xa5_u8; start + len + 64];
                let mut back = vec![0; len];
                let base = NonNull::new(memory.as_mut_ptr()).expect("not null");
                // SAFETY: `start + len` bytes of the vector, which nobody else uses.
                unsafe {
                    copy_in(base.add(start), &src);
                    copy_out(base.add(start), &mut back);
                }
                assert_eq!(back, src);
                assert_eq!(memory[..start], [0xa5; 64][..start]);
                assert_eq!(memory[start + len..], [0xa5; 64]);
            }
        }
    }

    #[test]
    fn words_are_copied_as_words_and_the_rest_as_well() {
        for len in [0, 4, 60, 61] {
            let mut memory = storage();
            let base = NonNull::from(&mut memory).cast::<u8>();
            let src: Vec<u8> = (1..=64).take(len).collect();
            let mut all = [0; 256];
            // SAFETY: `8 + len` bytes of 256, which nobody else uses, aligned to eight.
            unsafe {
                copy_words_in(base.add(8), &src);
                copy_out(base, &mut all);
            }
            assert_eq!(&all[8..8 + len], &src[..]);
            assert!(all[..8].iter().chain(&all[8 + len..]).all(|&b| b == 0xa5));
        }
    }

    #[test]
    fn fill_covers_odd_ranges() {
        for (start, len) in [(0, 0), (0, 1), (3, 70), (8, 64), (1, 127)] {
            let mut memory = storage();
            let base = NonNull::from(&mut memory).cast::<u8>();
            let mut all = [0; 256];
            // SAFETY: start + len <= 128 bytes of 256, which nobody else uses.
            unsafe {
                fill(base.add(start), len, 0x3c);
                copy_out(base, &mut all);
            }
            assert_eq!(all.iter().filter(|&&b| b == 0x3c).count(), len);
            assert!(all[start..start + len].iter().all(|&b| b == 0x3c));
        }
    }
}
