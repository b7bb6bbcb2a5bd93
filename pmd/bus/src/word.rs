//! [`DmaWord`]: a single word of DMA memory, such as half of a doorbell record.
#![expect(unsafe_code, reason = "raw pointers into shared memory")]

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::ring::acquired;
use crate::{BusError, DmaBuf};

/// One 32-bit word of DMA memory that keeps its buffer alive: half of a doorbell record.
pub struct DmaWord {
    ptr: NonNull<AtomicU32>,
    buf: Arc<DmaBuf>,
}

// SAFETY: `ptr` points into `buf`, which is `Send + Sync`, and is accessed atomically only.
unsafe impl Send for DmaWord {}
// SAFETY: as above.
unsafe impl Sync for DmaWord {}

impl DmaWord {
    /// Views the word at `offset_bytes`.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] when the offset is not a multiple of 4 or past the buffer's end.
    pub fn new(buf: Arc<DmaBuf>, offset_bytes: usize) -> Result<Self, BusError> {
        let max = buf.len_bytes().saturating_sub(4);
        if offset_bytes > max || buf.len_bytes() < 4 || !offset_bytes.is_multiple_of(4) {
            return Err(BusError::OutOfRange {
                what: "word offset (4-byte aligned)",
                value: offset_bytes as u64,
                min: 0,
                max: max as u64,
                hint: "; use a larger buffer",
            });
        }
        // SAFETY: `offset_bytes + 4 <= buf.len_bytes()`, checked above.
        let ptr = unsafe { buf.base().add(offset_bytes) }.cast();
        Ok(Self { ptr, buf })
    }

    /// The I/O address of the word.
    #[must_use]
    pub fn iova(&self) -> u64 {
        let offset = self.ptr.as_ptr().addr() - self.buf.base().as_ptr().addr();
        self.buf.iova() + offset as u64
    }

    /// The buffer that the word lies in.
    #[must_use]
    pub fn buf(&self) -> &Arc<DmaBuf> {
        &self.buf
    }

    #[inline(always)]
    fn word(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the buffer (`new`), which `buf` keeps alive.
        unsafe { self.ptr.as_ref() }
    }

    /// Stores a big-endian value after all earlier stores to DMA memory.
    #[inline(always)]
    pub fn store_release_be32(&self, value: u32) {
        crate::barrier::dma_wmb();
        self.word().store(value.to_be(), Release);
    }

    /// Loads the big-endian value before any later access to DMA memory.
    #[inline(always)]
    #[must_use]
    pub fn load_acquire_be32(&self) -> u32 {
        let raw = self.word().load(Acquire);
        acquired();
        u32::from_be(raw)
    }
}

impl fmt::Debug for DmaWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaWord").field("iova", &format_args!("{:#x}", self.iova())).finish()
    }
}
