//! [`BlueFlame`]: a register that takes a whole request, so that the device need not fetch it.
//!
//! Source: reference 6.6, "BlueFlame"; Intel, Software Developer's Manual, volume 2, MOVDIR64B, and
//! volume 1, section 12.10, for the order of such stores.
#![expect(unsafe_code, reason = "stores through a pointer into mapped registers")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Slot;

/// Bytes that one MOVDIR64B stores, and of a basic block of a send queue.
const BLOCK_BYTES: usize = 64;

/// How a send queue tells the device of a single request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DoorbellKind {
    /// A store of eight bytes: the device fetches the request.
    Plain,
    /// The request is copied into the register, whose mapping combines stores.
    WriteCombining,
    /// The request is copied into the register by MOVDIR64B, 64 bytes at a time.
    Movdir64b,
}

impl fmt::Display for DoorbellKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain doorbell",
            Self::WriteCombining => "BlueFlame, write-combining",
            Self::Movdir64b => "BlueFlame, MOVDIR64B",
        })
    }
}

impl DoorbellKind {
    /// How requests reach a BlueFlame register that is mapped uncached: by MOVDIR64B, which stores
    /// 64 bytes as one transaction whatever the mapping; not at all on processors without.
    #[must_use]
    pub fn uncached() -> Self {
        if has_movdir64b() { Self::Movdir64b } else { Self::Plain }
    }
}

/// CPUID, leaf 7: ECX bit 28.
#[cfg(target_arch = "x86_64")]
fn has_movdir64b() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    #[allow(unused_unsafe, reason = "safe functions in newer compilers")]
    // SAFETY: every processor of x86-64 has CPUID, and leaf 7 is only read where there is one.
    unsafe {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).ecx >> 28 & 1 == 1
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn has_movdir64b() -> bool {
    false
}

/// A mapped BlueFlame register: two buffers that take turns, so that a request may follow while the
/// one before is still on its way.
pub struct BlueFlame {
    register: NonNull<u8>,
    buffer_bytes: usize,
    /// Offset of the buffer whose turn it is.
    next: usize,
    kind: DoorbellKind,
    /// Keeps the mapping behind `register` alive.
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the register may be stored to from any thread, and `keep` is itself `Send + Sync`.
unsafe impl Send for BlueFlame {}
// SAFETY: as for `Send`; storing takes exclusive access.
unsafe impl Sync for BlueFlame {}

impl BlueFlame {
    /// Wraps a mapped register; `None` for the kind that copies no requests.
    ///
    /// # Safety
    ///
    /// `register` is aligned to 64 bytes and valid for stores of `2 * buffer_bytes` for as long as
    /// `keep` lives, others access it atomically only, and `buffer_bytes` is a multiple of 64. The
    /// processor has MOVDIR64B if that is the kind.
    pub unsafe fn new(
        register: NonNull<u8>,
        buffer_bytes: usize,
        kind: DoorbellKind,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Option<Self> {
        let next = 0;
        (kind != DoorbellKind::Plain).then_some(Self { register, buffer_bytes, next, kind, keep })
    }

    /// Memory in the place of a register: takes requests, and nobody reads them.
    #[must_use]
    pub fn unread(&self) -> Option<Self> {
        #[repr(align(64))]
        struct Buffers([AtomicU64; 128]);
        let buffers = Arc::new(Buffers([const { AtomicU64::new(0) }; 128]));
        let buffer_bytes = self.buffer_bytes.min(size_of::<Buffers>() / 2);
        let register = NonNull::from(&buffers.0).cast();
        // SAFETY: atomic words, aligned, which `keep` holds; the kind is one that works here.
        unsafe { Self::new(register, buffer_bytes, self.kind, buffers) }
    }

    /// How requests are copied.
    #[must_use]
    pub fn kind(&self) -> DoorbellKind {
        self.kind
    }

    /// Copies a request of so many blocks into the register, which rings for it; earlier stores to
    /// DMA memory are visible before. `false`, and nothing done, for one that the buffer does not
    /// hold.
    #[inline(always)]
    #[must_use]
    pub fn ring<const LEN: usize>(&mut self, request: &Slot<'_, LEN>, blocks: u32) -> bool {
        let len = blocks as usize * BLOCK_BYTES;
        if len > LEN.min(self.buffer_bytes) {
            return false;
        }
        // SAFETY: the buffer is part of the register (`new`).
        let buffer = unsafe { self.register.add(self.next) };
        self.next ^= self.buffer_bytes;
        // Stores that are combined, and MOVDIR64B, may overtake those to memory before them.
        store_fence();
        for at in (0..len).step_by(BLOCK_BYTES) {
            // SAFETY: `at + 64 <= len`, which both have.
            let (from, to) = unsafe { (request.start().add(at), buffer.add(at)) };
            // SAFETY: 64 bytes from either, both aligned: requests start blocks.
            unsafe { self.copy(from, to) };
        }
        // What is combined waits in a buffer for more.
        store_fence();
        true
    }

    /// Copies one block.
    ///
    /// # Safety
    ///
    /// 64 bytes can be read at `from` and written at `to`, both aligned to 64 bytes.
    #[inline(always)]
    unsafe fn copy(&self, from: NonNull<u8>, to: NonNull<u8>) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if self.kind == DoorbellKind::Movdir64b {
            // SAFETY: as the caller promises, and the processor has it (`new`).
            unsafe {
                std::arch::asm!(
                    "movdir64b {to}, [{from}]",
                    to = in(reg) to.as_ptr(),
                    from = in(reg) from.as_ptr(),
                    options(nostack, preserves_flags)
                );
            }
            return;
        }
        for at in (0..BLOCK_BYTES).step_by(8) {
            // SAFETY: as the caller promises; words of eight bytes.
            unsafe {
                let word = AtomicU64::from_ptr(from.add(at).cast().as_ptr()).load(Relaxed);
                AtomicU64::from_ptr(to.add(at).cast().as_ptr()).store(word, Relaxed);
            }
        }
    }
}

/// Orders all stores before it, those that are combined too, before all after it.
#[inline(always)]
fn store_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: every processor of x86-64 has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    #[cfg(any(miri, not(target_arch = "x86_64")))]
    crate::barrier::dma_mb();
}

impl fmt::Debug for BlueFlame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlueFlame")
            .field("register", &self.register)
            .field("kind", &self.kind)
            .field("holders", &Arc::strong_count(&self.keep))
            .finish()
    }
}
