//! Copies between bytes of this process and words that another core or process has mapped, too.
//!
//! What two cores hand to each other moves between their caches line by line, as soon as one
//! stores where the other has read. Between cores of an EPYC that share no cache 2.2 GB/s were
//! measured so, by words, by 32 bytes and by `memcpy`; stores past the caches reach 17. Between
//! cores that share one they reach 16 instead of 8. From 2 KiB on they move at least as much in
//! both cases. The first byte of a few kilobytes comes later by up to 0.25 us where a cache is
//! shared, and as much sooner where none is.
#![expect(unsafe_code, reason = "stores past the caches")]

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::bytes;

/// Bytes from which stores go past the caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const PAST_BYTES: usize = 2048;

/// Bytes of a line of the caches.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LINE_BYTES: usize = 64;

/// Where `len` bytes of these words start.
fn start(words: &[AtomicU64], len: usize) -> NonNull<u8> {
    let most = size_of_val(words);
    assert!(len <= most, "{len} bytes are more than {most}, which is all that the words hold");
    NonNull::from(words).cast()
}

/// Stores bytes in words, from the first one on; of the last one only what is filled.
///
/// To other threads these are relaxed stores, in any order: a later store with release shows them.
///
/// # Panics
///
/// When the words hold fewer bytes.
pub fn copy_in(words: &[AtomicU64], bytes: &[u8]) {
    let to = start(words, bytes.len());
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= PAST_BYTES {
        let to_line = (to.addr().get().wrapping_neg()) % LINE_BYTES;
        let (front, rest) = bytes.split_at(to_line);
        let (lines, end) = rest.as_chunks();
        // SAFETY: the words hold all of `bytes`, of which these are three parts; they are atomic,
        // so that all others access them as such.
        unsafe {
            bytes::copy_in(to, front);
            copy_past(to.add(to_line), lines);
            bytes::copy_in(to.add(bytes.len() - end.len()), end);
        }
        return;
    }
    // SAFETY: the words hold so many bytes, and are atomic, so that all others access them as such.
    unsafe { bytes::copy_in(to, bytes) };
}

/// Loads bytes of words, from the first one on; to other threads these are relaxed loads.
///
/// # Panics
///
/// When the words hold fewer bytes.
pub fn copy_out(words: &[AtomicU64], bytes: &mut [u8]) {
    let from = start(words, bytes.len());
    // SAFETY: as in `copy_in`.
    unsafe { bytes::copy_out(from, bytes) };
}

/// Stores lines past the caches, before all later stores.
///
/// # Safety
///
/// `to` is the start of a line, and valid for writes of all of them; all concurrent accesses to
/// them are atomic.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn copy_past(to: NonNull<u8>, lines: &[[u8; LINE_BYTES]]) {
    if lines.is_empty() {
        return;
    }
    // SAFETY: as the caller promises. Assembly, because others may access these bytes at the same
    // time: in each of their words such a store is atomic. It waits in a buffer of its own, which
    // the fence empties, so that no later store is seen before.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, xmmword ptr [{from}]",
            "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + 32]",
            "movups {d}, xmmword ptr [{from} + 48]",
            "movntdq xmmword ptr [{to}], {a}",
            "movntdq xmmword ptr [{to} + 16], {b}",
            "movntdq xmmword ptr [{to} + 32], {c}",
            "movntdq xmmword ptr [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {lines}",
            "jnz 2b",
            "sfence",
            from = inout(reg) lines.as_ptr() => _,
            to = inout(reg) to.as_ptr() => _,
            lines = inout(reg) lines.len() => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn what_is_stored_is_loaded_and_nothing_else_is_touched() {
        // Miri is slow.
        let firsts: &[usize] = if cfg!(miri) { &[0, 7] } else { &[0, 1, 5, 7, 8] };
        for len in [0_usize, 1, 7, 8, 63, 2047, 2048, 2049, 2112, 5000] {
            for &first in firsts {
                let behind = first + len.div_ceil(8);
                let words: Vec<AtomicU64> = (0..behind + 9).map(|_| AtomicU64::new(!0)).collect();
                let sent: Vec<u8> = (0..=250).cycle().take(len).collect();
                let mut got = vec![0; len];
                copy_in(&words[first..], &sent);
                copy_out(&words[first..], &mut got);
                assert_eq!(got, sent);
                assert!(words[..first].iter().all(|word| word.load(Relaxed) == !0));
                assert!(words[behind..].iter().all(|word| word.load(Relaxed) == !0));
                if len % 8 != 0 {
                    assert_eq!(words[behind - 1].load(Relaxed).to_ne_bytes()[7], 0xff);
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "17 bytes are more than 16")]
    fn words_take_no_more_than_they_hold() {
        copy_in(&[AtomicU64::new(0), AtomicU64::new(0)], &[0; 17]);
    }
}
