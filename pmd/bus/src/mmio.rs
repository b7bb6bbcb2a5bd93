//! Device registers: the [`Bar`] trait for control paths and the [`Doorbell`] for hot ones.
#![expect(unsafe_code, reason = "a doorbell is a store through a pointer into mapped registers")]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::{BarMemory, BlueFlame, BusError};

/// Bytes of one UAR page, and the distance between two.
///
/// # Source
///
/// Linux `uar.c` with `uar_4k`, and every page index the device hands out with ALLOC_UAR.
pub const UAR_PAGE_BYTES: u64 = 4096;

/// First UAR page that is not part of the init segment (which ends at 0x200f).
const FIRST_UAR_PAGE: u64 = 3;

/// First send doorbell register of a UAR page.
const SEND_DOORBELL_OFFSET: u64 = 0x800;

/// The registers of a device, for control paths.
///
/// The device's registers are big-endian; values here are ordinary numbers. Every access happens
/// exactly once, in program order, and stores are ordered after earlier stores to DMA memory.
///
/// # Panics
///
/// `read_*` and `write_*` panic when the offset is outside the BAR or not aligned to the access.
/// Offsets come from this driver; one that a device reported goes through [`Bar::check`] first.
pub trait Bar: Send + Sync + fmt::Debug {
    /// Length of the BAR in bytes.
    fn len_bytes(&self) -> u64;

    /// Reads one 32-bit register. A device that is gone reads as `0xffff_ffff`.
    fn read_be32(&self, offset: u64) -> u32;

    /// Writes one 32-bit register.
    fn write_be32(&self, offset: u64, value: u32);

    /// Writes one 64-bit register with a single access: `value >> 32` is the word at `offset`.
    fn write_be64(&self, offset: u64, value: u64);

    /// Maps a send doorbell register, for hot paths.
    ///
    /// # Shape
    ///
    /// `offset` is 8-byte aligned and lies between 0x800 and 0xff8 of a UAR page above page 2.
    ///
    /// # Errors
    ///
    /// [`BusError::NotADoorbell`] for another offset, [`BusError::BarRange`] past the BAR's end.
    fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError>;

    /// Maps a BlueFlame register: two buffers of `buffer_bytes`, the first at `offset`, which take
    /// whole requests. `None` where stores of requests would reach the device in pieces, so that a
    /// plain doorbell is better.
    ///
    /// # Shape
    ///
    /// As [`Bar::doorbell`]; `buffer_bytes` is a power of two from 64, and both buffers lie in the
    /// page.
    ///
    /// # Errors
    ///
    /// As [`Bar::doorbell`].
    fn blueflame(&self, offset: u64, buffer_bytes: u64) -> Result<Option<BlueFlame>, BusError> {
        self.check_blueflame(offset, buffer_bytes)?;
        Ok(None)
    }

    /// Maps memory of the device that it shows in its BAR; where, only the device knows.
    ///
    /// # Shape
    ///
    /// `offset` and `len_bytes` are multiples of four, and lie above the registers of page 0 to 2.
    ///
    /// # Errors
    ///
    /// [`BusError::NotBarMemory`] for another place, and by default for all;
    /// [`BusError::BarNotMappable`].
    fn memory(&self, offset: u64, len_bytes: u64) -> Result<BarMemory, BusError> {
        Err(BusError::NotBarMemory { offset, len_bytes })
    }

    /// Checks that a range may be memory, as [`Bar::memory`] asks.
    ///
    /// # Errors
    ///
    /// [`BusError::NotBarMemory`].
    fn check_memory(&self, offset: u64, len_bytes: u64) -> Result<(), BusError> {
        let end = offset.checked_add(len_bytes).filter(|end| *end <= self.len_bytes());
        let is_whole = (offset | len_bytes).is_multiple_of(4) && len_bytes > 0;
        if end.is_some() && is_whole && offset / UAR_PAGE_BYTES >= FIRST_UAR_PAGE {
            return Ok(());
        }
        Err(BusError::NotBarMemory { offset, len_bytes })
    }

    /// Checks that both buffers of a register lie in a page, as [`Bar::blueflame`] asks.
    ///
    /// # Errors
    ///
    /// As [`Bar::blueflame`].
    fn check_blueflame(&self, offset: u64, buffer_bytes: u64) -> Result<(), BusError> {
        self.check_doorbell(offset)?;
        // Requests are copied there in blocks of 64 bytes, by one buffer and the other in turn.
        let is_made_of_blocks = offset.is_multiple_of(64) && buffer_bytes >= 64;
        let fits = buffer_bytes.is_power_of_two()
            && buffer_bytes <= UAR_PAGE_BYTES / 2
            && offset % UAR_PAGE_BYTES + 2 * buffer_bytes <= UAR_PAGE_BYTES;
        if !is_made_of_blocks || !fits {
            return Err(BusError::NotADoorbell { offset });
        }
        self.check(offset + 2 * buffer_bytes - 8, 8)
    }

    /// Checks that an access of `len_bytes` at `offset` is inside the BAR and naturally aligned.
    ///
    /// # Errors
    ///
    /// [`BusError::BarRange`] when it is not.
    fn check(&self, offset: u64, len_bytes: u64) -> Result<(), BusError> {
        let bar_len_bytes = self.len_bytes();
        let fits = offset.checked_add(len_bytes).is_some_and(|end| end <= bar_len_bytes);
        if fits && len_bytes != 0 && offset.is_multiple_of(len_bytes) {
            Ok(())
        } else {
            Err(BusError::BarRange { offset, len_bytes, bar_len_bytes })
        }
    }

    /// Checks that `offset` is a send doorbell, as [`Bar::doorbell`] asks.
    ///
    /// # Errors
    ///
    /// As [`Bar::doorbell`].
    fn check_doorbell(&self, offset: u64) -> Result<(), BusError> {
        let in_page = offset % UAR_PAGE_BYTES;
        if offset / UAR_PAGE_BYTES < FIRST_UAR_PAGE
            || in_page < SEND_DOORBELL_OFFSET
            || !offset.is_multiple_of(8)
        {
            return Err(BusError::NotADoorbell { offset });
        }
        self.check(offset, 8)
    }
}

/// One mapped 8-byte send doorbell register.
///
/// Ringing is one ordered store on every transport. Clones ring the same register. The mapping
/// stays while any clone lives.
///
/// The register is mapped uncached (the software model: ordinary shared memory), so stores are not
/// combined and need no flush, and the two halves of a BlueFlame register need not alternate.
#[derive(Clone)]
pub struct Doorbell {
    register: NonNull<u64>,
    /// Keeps the mapping behind `register` alive.
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: the register may be stored to from any thread; each store is one atomic 8-byte access,
// and `keep` is itself `Send + Sync`.
unsafe impl Send for Doorbell {}
// SAFETY: as for `Send`; `ring` takes no exclusive access.
unsafe impl Sync for Doorbell {}

impl Doorbell {
    /// Wraps a mapped register.
    ///
    /// # Safety
    ///
    /// `register` is 8-byte aligned and valid for 8-byte stores for as long as `keep` lives, and is
    /// accessed by others with 8-byte atomic accesses only.
    pub unsafe fn new(register: NonNull<u64>, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { register, keep }
    }

    /// A word of ordinary memory in the place of a register: rings, and nobody hears it.
    #[must_use]
    pub fn unheard() -> Self {
        let word = Arc::new(AtomicU64::new(0));
        let register = NonNull::from(&*word).cast();
        // SAFETY: an atomic word, which may be stored to through a shared reference; `keep` holds
        // it.
        unsafe { Self::new(register, word) }
    }

    /// Rings: makes earlier stores to DMA memory visible, then stores `raw` to the register.
    ///
    /// `raw` holds the register's eight bytes in memory order: `u64::from_ne_bytes(bytes)`, the
    /// first eight bytes of the WQE's control segment as they stand in the ring. A value kept
    /// as two big-endian dwords is `u64::to_be(dword0 << 32 | dword1)`.
    #[inline(always)]
    pub fn ring(&self, raw: u64) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: `new`'s caller vouches for the register while `keep` lives. Assembly without
        // `nomem` orders all earlier memory accesses of the compiler; x86-64 keeps the order of
        // stores to cached memory before a store to uncached or cached memory. The block does what
        // `AtomicU64::store(raw, Release)` does, and exactly once.
        unsafe {
            std::arch::asm!(
                "mov qword ptr [{register}], {raw}",
                register = in(reg) self.register.as_ptr(),
                raw = in(reg) raw,
                options(nostack, preserves_flags)
            );
        }
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        // SAFETY: as above; `dmb oshst` orders stores to memory before the store to the device.
        unsafe {
            std::arch::asm!(
                "dmb oshst",
                "str {raw}, [{register}]",
                register = in(reg) self.register.as_ptr(),
                raw = in(reg) raw,
                options(nostack, preserves_flags)
            );
        }
        #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
        // SAFETY: as above, in Rust's own terms so that Miri follows the release.
        unsafe {
            use std::sync::atomic::Ordering;
            crate::barrier::io_wmb();
            AtomicU64::from_ptr(self.register.as_ptr()).store(raw, Ordering::Release);
        }
    }
}

impl fmt::Debug for Doorbell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorbell")
            .field("register", &self.register)
            .field("holders", &Arc::strong_count(&self.keep))
            .finish()
    }
}
