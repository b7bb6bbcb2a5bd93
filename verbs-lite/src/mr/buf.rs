//! [`Buf`]: a piece of registered memory, which work requests take and completions bring back.

use std::fmt;
use std::sync::Arc;

use ferrocx_mempool::{AccessError, Backing, Piece};
use ferrocx_prm::wqe::INVALID_LKEY;

use super::dm::{CHUNK_BYTES, WORD_BYTES};
use super::{Place, Registration, Sge};
use crate::types::{Lkey, RemoteAddr};

/// A piece of registered memory.
///
/// It moves into a work request and comes back with the completion, so nobody reads or fills it
/// while the device owns it. Peers may still write to it where its key permits; bytes are
/// copied with atomic accesses, so that is a race of data, never undefined behaviour.
///
/// Pieces may overlap: that two of them are posted at a time is the caller's business.
pub struct Buf {
    // Small, because it is moved into every request and out again.
    registration: Arc<Registration>,
    /// The address in the space of the key.
    addr: u64,
    len: u32,
    /// The key, as it stands in a work request.
    lkey_be: u32,
}

impl Buf {
    /// The caller has checked the range.
    pub(crate) fn new(registration: Arc<Registration>, addr: u64, len: u32) -> Self {
        let lkey_be = registration.lkey.to_be();
        Self { registration, addr, len, lkey_be }
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Key of the memory.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(u32::from_be(self.lkey_be))
    }

    /// Address of the first byte in the space of the key.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// What a peer needs to reach it; `None` if the registration grants peers nothing.
    #[must_use]
    pub fn remote(&self) -> Option<RemoteAddr> {
        Some(RemoteAddr { addr: self.addr, rkey: self.registration.rkey()? })
    }

    /// Copies bytes in; of device memory whole words, from a multiple of four on
    /// ([`Dm`](super::Dm)).
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`].
    #[inline]
    pub fn copy_in(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let at = self.at(offset, bytes.len())?;
        match &self.registration.memory {
            Place::Host(memory) => memory.region().copy_in(at, bytes),
            Place::Device(dm) => dm.copy_in(at, bytes),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`].
    #[inline]
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        let at = self.at(offset, bytes.len())?;
        match &self.registration.memory {
            Place::Host(memory) => memory.region().copy_out(at, bytes),
            Place::Device(dm) => dm.copy_out(at, bytes),
        }
    }

    /// Copies `len` bytes from `from_offset` of another piece on to `offset` of this one. Where
    /// their memory overlaps, the copy may be of bytes that it has just written.
    ///
    /// # Errors
    ///
    /// [`AccessError::OutOfRange`], [`AccessError::Misaligned`] into device memory; nothing is
    /// copied then.
    #[inline]
    pub fn copy_from(
        &mut self,
        offset: usize,
        from: &Self,
        from_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        let (at, source) = (self.at(offset, len)?, from.at(from_offset, len)?);
        match (&self.registration.memory, &from.registration.memory) {
            (Place::Host(to), Place::Host(from)) => {
                from.region().copy_to(source, to.region(), at, len)
            }
            (Place::Device(_), _) if !(at | len).is_multiple_of(WORD_BYTES) => {
                Err(AccessError::Misaligned)
            }
            _ => self.copy_across(offset, from, from_offset, len),
        }
    }

    /// [`Buf::copy_from`] from or to device memory, of a range that was checked, chunk by chunk.
    #[cold]
    fn copy_across(
        &mut self,
        offset: usize,
        from: &Self,
        from_offset: usize,
        len: usize,
    ) -> Result<(), AccessError> {
        for done in (0..len).step_by(CHUNK_BYTES) {
            let mut chunk = [0; CHUNK_BYTES];
            let chunk = &mut chunk[..CHUNK_BYTES.min(len - done)];
            from.copy_out(from_offset + done, chunk)?;
            self.copy_in(offset + done, chunk)?;
        }
        Ok(())
    }

    /// All bytes, copied.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len()];
        // In range: the piece lies inside its region, see `new`.
        let copied = self.copy_out(0, &mut bytes);
        debug_assert!(copied.is_ok());
        bytes
    }

    /// Cuts the piece in two at `at`; `self` keeps the first part.
    ///
    /// # Panics
    ///
    /// When `at` is past the end.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "cut past the end of the buffer");
        let len = std::mem::replace(&mut self.len, at as u32) - at as u32;
        Self::new(Arc::clone(&self.registration), self.addr + at as u64, len)
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<usize, AccessError> {
        let end = offset.checked_add(len).ok_or(AccessError::OutOfRange)?;
        if end > self.len() {
            return Err(AccessError::OutOfRange);
        }
        Ok(self.registration.offset_of(self.addr) + offset)
    }

    /// Where it lies: its virtual address, and its I/O address as the device of its
    /// [`Memory`](super::Memory) has it. A piece for whoever moves bytes without the key, an NVMe
    /// device say: the key's addresses are others ([`Buf::addr`]), so its domain is 0. Of device
    /// memory, which nobody else reaches, it is empty.
    #[must_use]
    pub fn piece(&self) -> Piece {
        let offset = self.registration.offset_of(self.addr);
        let (address, len_bytes, iova, is_foreign) = match &self.registration.memory {
            Place::Host(memory) => (
                memory.region().base().as_ptr().addr() + offset,
                self.len(),
                memory.iova() + offset as u64,
                memory.region().backing() == Backing::Foreign,
            ),
            _ => (0, 0, 0, true),
        };
        let lkey_be = INVALID_LKEY.to_be();
        Piece { address, len_bytes, iova, lkey_be, domain: 0, is_foreign }
    }

    #[inline(always)]
    pub(super) fn sge(&self) -> Sge {
        let domain = self.registration.domain;
        Sge { addr: self.addr, address: 0, len: self.len, lkey_be: self.lkey_be, domain }
    }
}

impl fmt::Debug for Buf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buf")
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len)
            .field("lkey", &format_args!("{:#010x}", self.lkey().0))
            .finish()
    }
}
