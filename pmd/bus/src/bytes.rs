//! Copies to and from memory that a device or another core may access at the same time.
//!
//! Such memory is touched with relaxed atomics only: eight bytes where the address allows, four or
//! one elsewhere. That is a plain `mov` per word, never a data race, and Miri can follow it. What
//! is long goes by [`copy_lines`], in the same order and faster.
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
    // SAFETY: the caller vouches for `src.len()` bytes from `dst`; `head`, the words and the tail
    // cover them once. `dst + head.len()` is 8-byte aligned whenever `words` is not empty.
    unsafe {
        small_in(dst, head);
        let mut at = dst.add(head.len());
        let done = copy_lines(at, rest.as_ptr(), rest.len());
        at = at.add(done);
        let mut words = rest[done..].chunks_exact(8);
        for word in &mut words {
            let value = u64::from_ne_bytes([
                word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7],
            ]);
            AtomicU64::from_ptr(at.cast()).store(value, Relaxed);
            at = at.add(8);
        }
        small_in(at, words.remainder());
    }
}

/// Copies fewer than eight bytes in; a 4-byte aligned word of them as one word.
///
/// # Safety
///
/// As for [`copy_in`].
#[inline]
unsafe fn small_in(dst: *mut u8, src: &[u8]) {
    let mut i = 0;
    while i < src.len() {
        // SAFETY: `i < src.len()`, and the word store happens only with four bytes left and an
        // aligned address.
        unsafe {
            let at = dst.add(i);
            if at.addr() & 3 == 0 && src.len() - i >= 4 {
                let value = u32::from_ne_bytes([src[i], src[i + 1], src[i + 2], src[i + 3]]);
                AtomicU32::from_ptr(at.cast()).store(value, Relaxed);
                i += 4;
            } else {
                AtomicU8::from_ptr(at).store(src[i], Relaxed);
                i += 1;
            }
        }
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
        small_out(src, head);
        let mut at = src.add(head.len());
        let done = copy_lines(rest.as_mut_ptr(), at, rest.len());
        at = at.add(done);
        let mut words = rest[done..].chunks_exact_mut(8);
        for word in &mut words {
            let value = AtomicU64::from_ptr(at.cast()).load(Relaxed);
            word.copy_from_slice(&value.to_ne_bytes());
            at = at.add(8);
        }
        small_out(at, words.into_remainder());
    }
}

/// Copies fewer than eight bytes out; a 4-byte aligned word of them as one word.
///
/// # Safety
///
/// As for [`copy_out`].
#[inline]
unsafe fn small_out(src: *mut u8, dst: &mut [u8]) {
    let mut i = 0;
    while i < dst.len() {
        // SAFETY: `i < dst.len()`, and the word load happens only with four bytes left and an
        // aligned address.
        unsafe {
            let at = src.add(i);
            if at.addr() & 3 == 0 && dst.len() - i >= 4 {
                let value = AtomicU32::from_ptr(at.cast()).load(Relaxed);
                dst[i..i + 4].copy_from_slice(&value.to_ne_bytes());
                i += 4;
            } else {
                dst[i] = AtomicU8::from_ptr(at).load(Relaxed);
                i += 1;
            }
        }
    }
}

/// Copies the whole lines of 64 bytes among `len` bytes between private and shared memory, first to
/// last: who sees a byte of the copy sees all before it. Returns the bytes copied, 0 on processors
/// for which it is not written.
///
/// # Safety
///
/// `from` is valid for reads and `to` for writes of `len` bytes, which do not overlap; all
/// concurrent accesses to what of them is shared are atomic.
#[inline]
unsafe fn copy_lines(to: *mut u8, from: *const u8, len: usize) -> usize {
    let lines = if cfg!(all(target_arch = "x86_64", not(miri))) { len / 64 } else { 0 };
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if lines != 0 {
        // SAFETY: as the caller promises. Assembly, because Rust has no atomic access of sixteen
        // bytes: to others these are relaxed loads and stores, which the processor keeps in order.
        unsafe {
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
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                lines = inout(reg) lines => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack)
            );
        }
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    let _ = (to, from);
    lines * 64
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
            for len in (0..40).chain(62..66).chain([130, 200]) {
                let mut memory = storage();
                let base = NonNull::from(&mut memory).cast::<u8>();
                let src: Vec<u8> = (1..=200).take(len).collect();
                // SAFETY: start + len <= 208 bytes of 256, which nobody else uses.
                unsafe { copy_in(base.add(start), &src) };
                let mut all = [0; 256];
                // SAFETY: the whole storage, which nobody else uses.
                unsafe { copy_out(base, &mut all) };
                assert_eq!(&all[start..start + len], &src[..]);
                assert!(all[..start].iter().chain(&all[start + len..]).all(|&b| b == 0xa5));
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
