//! [`Whole`]: memory of a namespace whose blocks are read and written as one.
//!
//! What the port itself reads and writes comes and goes packet by packet. Here it has buffers and
//! capsules alone, and a core copies between these and the memory, block by block, each under a
//! lock of all cores: nobody sees a part of a block, and a Write whose data do not come changes
//! none.
//!
//! Source: NVM Express base, "Atomic Operations"; AWUN and AWUPF of 0 are a block each.

use std::sync::{Arc, Mutex, PoisonError};

use ferrocx::AccessError;
use ferrocx::verbs::{Buf, VerbsError};

use crate::backend::{self, Backend};

/// Locks of a namespace. Blocks far from each other share one.
const LOCKS: usize = 64;

/// The locks of a namespace, for all cores.
#[derive(Debug, Clone)]
pub struct Locks(pub(crate) Arc<[Mutex<()>; LOCKS]>);

impl Default for Locks {
    fn default() -> Self {
        Self(Arc::new([const { Mutex::new(()) }; LOCKS]))
    }
}

/// Memory of a namespace, for one core, whose blocks are read and written as one.
#[derive(Debug)]
pub struct Whole {
    memory: Backend,
    block_shift: u8,
    pub(crate) locks: Locks,
}

impl Whole {
    /// Memory that the port could reach itself, with blocks of `1 << block_shift` bytes.
    #[must_use]
    pub fn new(memory: Backend, block_shift: u8, locks: &Locks) -> Self {
        Self { memory, block_shift, locks: locks.clone() }
    }

    /// Fills a piece with the blocks from `offset` on.
    ///
    /// # Errors
    ///
    /// Those of [`Backend::direct`].
    pub fn read(&self, to: &mut Buf, offset: u64) -> Result<(), VerbsError> {
        let len = to.len();
        self.each(offset, len as u64, |stored, at, len| to.copy_from(at, stored, at, len))
    }

    /// Writes bytes of a piece, from `start` on, to the blocks in `len` bytes from `offset` on.
    ///
    /// # Errors
    ///
    /// Those of [`Backend::direct`].
    pub fn write(
        &self,
        (from, start): (&Buf, usize),
        (offset, len): (u64, u64),
    ) -> Result<(), VerbsError> {
        self.each(offset, len, |stored, at, len| stored.copy_from(at, from, start + at, len))
    }

    /// Makes the blocks in `len` bytes from `offset` on zeros.
    ///
    /// # Errors
    ///
    /// Those of [`Backend::direct`].
    pub fn zero(&self, offset: u64, len: u64) -> Result<(), VerbsError> {
        self.each(offset, len, backend::zero)
    }

    /// Does something with each block: it is given all of them, where this one begins, and its
    /// bytes.
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut copy: impl FnMut(&mut Buf, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), VerbsError> {
        let mut stored = self.memory.direct(offset, len)?;
        let first = (offset >> self.block_shift) as usize;
        for (number, at) in (first..).zip((0..len as usize).step_by(1 << self.block_shift)) {
            let lock = &self.locks.0[number % LOCKS];
            let _held = lock.lock().unwrap_or_else(PoisonError::into_inner);
            copy(&mut stored, at, (len as usize - at).min(1 << self.block_shift))?;
        }
        Ok(())
    }
}
