//! Pieces of memory of the device behind a command file, by their numbers: what is done with them
//! for this process and for its children.
//!
//! Error numbers are those of mlx5_ib and of libmlx5. Source: reference 9.3, 4.12.

use std::sync::atomic::Ordering;

use ferrocx_mempool::AccessError;

use super::Errno;
use super::context::Shared;
use super::handles::Piece;
use crate::node::lock;

/// Bytes of a word: the device's memory is reached in whole ones.
const WORD_BYTES: usize = 4;

/// Where a range begins that a program copies, if it may.
pub(super) fn range_of(whole: usize, offset: u64, length: usize) -> Result<usize, Errno> {
    let end = offset.checked_add(length as u64).filter(|end| *end <= whole as u64);
    let offset = end.map(|_| offset as usize).ok_or(Errno(libc::EFAULT))?;
    if (offset | length).is_multiple_of(WORD_BYTES) { Ok(offset) } else { Err(Errno::INVALID) }
}

fn refused(error: AccessError) -> Errno {
    match error {
        AccessError::Misaligned => Errno::INVALID,
        _ => Errno(libc::EFAULT),
    }
}

impl Piece {
    /// The one of a number.
    pub(super) fn find(shared: &Shared, handle: u32) -> Result<Self, Errno> {
        lock(&shared.handles.memories).get(&handle).cloned().ok_or(Errno(libc::ENOENT))
    }

    pub(super) fn copy_in(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let offset = range_of(self.length, offset, bytes.len())?;
        self.dm.copy_in(offset, bytes).map_err(refused)
    }

    pub(super) fn copy_out(&self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let offset = range_of(self.length, offset, bytes.len())?;
        self.dm.copy_out(offset, bytes).map_err(refused)
    }
}

/// Takes memory from the device; its number.
pub(super) fn take(shared: &Shared, length: usize, log_align: u32) -> Result<(u32, Piece), Errno> {
    let piece = Piece { dm: shared.node.context.alloc_dm(length, log_align)?, length };
    let handle = shared.handles.next_memory.fetch_add(1, Ordering::Relaxed);
    lock(&shared.handles.memories).insert(handle, piece.clone());
    Ok((handle, piece))
}

/// Gives memory back to the device. Another handle of it, or the end of the device, may have done
/// so before.
pub(super) fn give_back(shared: &Shared, handle: u32) -> Result<(), Errno> {
    let mut memories = lock(&shared.handles.memories);
    memories.get(&handle).ok_or(Errno::INVALID)?.dm.free()?;
    memories.remove(&handle);
    Ok(())
}
