//! Byte and word access to memory that a device, or the software device on another thread, may
//! read or write at the same moment.
//!
//! Plain loads and stores would be data races. Everything here is an atomic access: words of eight
//! bytes where the device address is aligned, single bytes at the edges, both relaxed. Order comes
//! from the acquire and release variants of [`crate::Region`], and from the barriers of the bus.
//!
//! Rust's memory model calls two *unordered* accesses of different width to the same bytes
//! undefined, as C++ does; on every processor that this library runs on they behave as on a bus:
//! each of the narrower units is read old or new. A well-formed protocol has none, since a
//! descriptor is read only after its owner bit was read with acquire.
#![expect(unsafe_code, reason = "atomic views of raw device memory")]

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

/// Copies `src` to `dst`.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes for the whole call, and all other accesses to
/// those bytes meanwhile are atomic (or a device's).
pub(crate) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    let head = dst.align_offset(8).min(src.len());
    let (first, rest) = src.split_at(head);
    let (words, last) = rest.as_chunks::<8>();
    // SAFETY: the three parts cover exactly `src.len()` bytes from `dst`; the middle one starts
    // at a multiple of 8, since `head` is either that distance or the whole of `src`.
    unsafe {
        store_bytes(dst, first);
        let mid = dst.add(head);
        for (i, word) in words.iter().enumerate() {
            AtomicU64::from_ptr(mid.add(8 * i).cast()).store(u64::from_ne_bytes(*word), Relaxed);
        }
        store_bytes(mid.add(8 * words.len()), last);
    }
}

/// Copies from `src` to `dst`.
///
/// # Safety
/// `src` is valid for reads and writes (an atomic load asks for both) of `dst.len()` bytes for the
/// whole call, and all other accesses to those bytes meanwhile are atomic (or a device's).
pub(crate) unsafe fn copy_out(src: *mut u8, dst: &mut [u8]) {
    let head = src.align_offset(8).min(dst.len());
    let (first, rest) = dst.split_at_mut(head);
    let (words, last) = rest.as_chunks_mut::<8>();
    // SAFETY: as in `copy_in`.
    unsafe {
        load_bytes(src, first);
        let mid = src.add(head);
        for (i, word) in words.iter_mut().enumerate() {
            *word = AtomicU64::from_ptr(mid.add(8 * i).cast()).load(Relaxed).to_ne_bytes();
        }
        load_bytes(mid.add(8 * words.len()), last);
    }
}

/// Writes `byte` to `len` bytes from `dst`.
///
/// # Safety
/// `dst` is valid for writes of `len` bytes for the whole call, and all other accesses to those
/// bytes meanwhile are atomic (or a device's).
pub(crate) unsafe fn fill(dst: *mut u8, len: usize, byte: u8) {
    let pattern = [byte; 64];
    let mut done = 0;
    while done < len {
        let n = pattern.len().min(len - done);
        // SAFETY: `done + n <= len`.
        unsafe { copy_in(dst.add(done), &pattern[..n]) };
        done += n;
    }
}

/// # Safety
/// The caller promises what [`copy_in`] asks for.
unsafe fn store_bytes(dst: *mut u8, src: &[u8]) {
    for (i, byte) in src.iter().enumerate() {
        // SAFETY: `i < src.len()`; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(dst.add(i)).store(*byte, Relaxed) };
    }
}

/// # Safety
/// The caller promises what [`copy_out`] asks for.
unsafe fn load_bytes(src: *mut u8, dst: &mut [u8]) {
    for (i, byte) in dst.iter_mut().enumerate() {
        // SAFETY: `i < dst.len()`; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(src.add(i)).load(Relaxed) };
    }
}
