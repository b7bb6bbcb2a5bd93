//! Byte access to memory that a device, or the software device on another thread, may read or
//! write at the same moment.
//!
//! Plain loads and stores would be data races. Everything here is a relaxed atomic access to single
//! bytes, whatever the alignment: Rust's memory model calls unordered accesses of different widths
//! to the same bytes undefined, and whoever may call these from safe code chooses where copies
//! begin and end. Order comes from the acquire and release variants of [`crate::Region`], and from
//! the barriers of the bus. Words of descriptors, whose protocol orders them, are the bus's.
#![expect(unsafe_code, reason = "atomic views of raw device memory")]

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Copies `src` to `dst`.
///
/// # Safety
/// `dst` is valid for writes of `src.len()` bytes for the whole call, and all other accesses to
/// those bytes meanwhile are atomic accesses to bytes (or a device's).
#[inline]
pub(crate) unsafe fn copy_in(dst: *mut u8, src: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise for `dst`; `src` is only read, and nobody writes it.
    unsafe {
        move_bytes(src.as_ptr(), dst, src.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, byte) in src.iter().enumerate() {
        // SAFETY: `at < src.len()`; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(*byte, Relaxed) };
    }
}

/// Copies from `src` to `dst`.
///
/// # Safety
/// `src` is valid for reads and writes (an atomic load asks for both) of `dst.len()` bytes for the
/// whole call, and all other accesses to those bytes meanwhile are atomic accesses to bytes (or a
/// device's).
#[inline]
pub(crate) unsafe fn copy_out(src: *mut u8, dst: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise for `src`; nobody else sees `dst`.
    unsafe {
        move_bytes(src, dst.as_mut_ptr(), dst.len());
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for (at, byte) in dst.iter_mut().enumerate() {
        // SAFETY: `at < dst.len()`; a byte is always aligned.
        *byte = unsafe { AtomicU8::from_ptr(src.add(at)).load(Relaxed) };
    }
}

/// Copies `len` bytes from one such place to another. Where they overlap, what is read there may be
/// what was just written.
///
/// # Safety
/// `src` as for [`copy_out`], `dst` as for [`copy_in`], with `len` bytes each.
#[inline]
pub(crate) unsafe fn copy_across(src: *mut u8, dst: *mut u8, len: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promises.
    unsafe {
        move_bytes(src, dst, len);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for at in 0..len {
        // SAFETY: `at < len`; a byte is always aligned.
        let byte = unsafe { AtomicU8::from_ptr(src.add(at)).load(Relaxed) };
        // SAFETY: as above.
        unsafe { AtomicU8::from_ptr(dst.add(at)).store(byte, Relaxed) };
    }
}

/// Writes `byte` to `len` bytes from `dst`.
///
/// # Safety
/// As for [`copy_in`], with `len` bytes.
pub(crate) unsafe fn fill(dst: *mut u8, len: usize, byte: u8) {
    let pattern = [byte; 1024];
    let mut done = 0;
    while done < len {
        let n = pattern.len().min(len - done);
        // SAFETY: `done + n <= len`.
        unsafe { copy_in(dst.add(done), &pattern[..n]) };
        done += n;
    }
}

/// Copies of up to so many bytes go through a register, 16 at a time: the processor's own loop
/// takes longer to start than they take.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const SHORT_BYTES: usize = 512;

/// Copies byte by byte.
///
/// # Safety
/// Both ranges are valid for `len` bytes, and all other accesses to them meanwhile are atomic
/// accesses to bytes (or a device's).
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn move_bytes(mut src: *const u8, mut dst: *mut u8, mut len: usize) {
    const CHUNK: usize = 16;
    if len <= SHORT_BYTES {
        while len >= CHUNK {
            // SAFETY: `len` bytes are left, at least as many as are moved. The instructions do what
            // 16 relaxed atomic loads of bytes and as many stores do: that they are taken together
            // nobody can tell who reads and writes single bytes. The stack is not touched.
            unsafe {
                std::arch::asm!(
                    "movdqu {bytes}, [{src}]",
                    "movdqu [{dst}], {bytes}",
                    bytes = out(xmm_reg) _,
                    src = in(reg) src,
                    dst = in(reg) dst,
                    options(nostack, preserves_flags),
                );
                (src, dst) = (src.add(CHUNK), dst.add(CHUNK));
            }
            len -= CHUNK;
        }
        if len == 0 {
            return;
        }
    }
    // SAFETY: the instruction does what a loop of relaxed atomic accesses to bytes does: it reads
    // and writes each byte once. It may take several at a time, which nobody can tell who reads
    // and writes single bytes. The direction flag is clear, as it is in every function; the stack
    // is not touched.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") len => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags),
        );
    }
}
