//! [`BarMemory`]: memory of the device that the processor reaches through the BAR.
//!
//! Source: reference 4.12.
#![expect(unsafe_code, reason = "copies from and to mapped memory of the device")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use ferrocx_mempool::AccessError;

/// Bytes of one access: the device takes whole words only.
const WORD_BYTES: usize = 4;

/// A mapped piece of memory that lies in the device.
///
/// It is reached in words of four bytes, each of which arrives as a whole. Clones reach the same
/// memory; the mapping stays while any clone lives. What is copied in is in the device before a
/// doorbell that the same thread rings later.
///
/// Registers are mapped uncached: a word in takes as long as a doorbell, a word out a round trip
/// over the bus, so this is no way to move bulk data.
#[derive(Clone)]
pub struct BarMemory {
    start: NonNull<u8>,
    len_bytes: usize,
    /// Keeps the mapping behind `start` alive.
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the memory may be accessed from any thread, each access is one atomic word, and `keep` is
// itself `Send + Sync`.
unsafe impl Send for BarMemory {}
// SAFETY: as for `Send`.
unsafe impl Sync for BarMemory {}

impl BarMemory {
    /// Wraps mapped memory.
    ///
    /// # Safety
    ///
    /// `start` is aligned to four bytes and valid for reads and writes of `len_bytes`, a multiple
    /// of four, for as long as `keep` lives; whoever else accesses it does so atomically, or is the
    /// device.
    pub unsafe fn new(
        start: NonNull<u8>,
        len_bytes: usize,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        debug_assert!(len_bytes.is_multiple_of(WORD_BYTES));
        Self { start, len_bytes, keep }
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies bytes in. Others may see some of the words before others.
    ///
    /// # Shape
    ///
    /// `offset` and the length are multiples of four.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`]; nothing is copied then.
    pub fn copy_in(&self, offset: usize, src: &[u8]) -> Result<(), AccessError> {
        let words = self.words(offset, src.len())?;
        for (at, word) in src.as_chunks::<WORD_BYTES>().0.iter().enumerate() {
            // SAFETY: `words` vouches for `src.len()` bytes, of which this word is four.
            let to = unsafe { AtomicU32::from_ptr(words.add(at).as_ptr()) };
            to.store(u32::from_ne_bytes(*word), Relaxed);
        }
        Ok(())
    }

    /// Copies bytes out. What is written meanwhile may be seen in part.
    ///
    /// # Shape
    ///
    /// `offset` and the length are multiples of four.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`]; nothing is copied then.
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) -> Result<(), AccessError> {
        let words = self.words(offset, dst.len())?;
        for (at, word) in dst.as_chunks_mut::<WORD_BYTES>().0.iter_mut().enumerate() {
            // SAFETY: `words` vouches for `dst.len()` bytes, of which this word is four.
            let from = unsafe { AtomicU32::from_ptr(words.add(at).as_ptr()) };
            *word = from.load(Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// The first word of a range, which lies inside and is whole words.
    fn words(&self, offset: usize, len: usize) -> Result<NonNull<u32>, AccessError> {
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len_bytes {
            return Err(AccessError::OutOfRange);
        }
        if !offset.is_multiple_of(WORD_BYTES) || !len.is_multiple_of(WORD_BYTES) {
            return Err(AccessError::Misaligned);
        }
        // SAFETY: `offset` is at most the length, checked above.
        Ok(unsafe { self.start.add(offset) }.cast())
    }
}

impl fmt::Debug for BarMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BarMemory")
            .field("len_bytes", &self.len_bytes)
            .field("holders", &Arc::strong_count(&self.keep))
            .finish_non_exhaustive()
    }
}
