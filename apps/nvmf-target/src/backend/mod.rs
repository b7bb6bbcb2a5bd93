//! What is behind a namespace: [`Backend`].

mod file;

use std::sync::Arc;

use ferrocx::verbs::{Buf, Memory, Mr, Pd, VerbsError};
use ferrocx::{AccessError, PageSize, RegionConfig};
use ferrocx_uring::FileId;
pub(crate) use file::Losses;
pub use file::OpenFile;

use crate::peer::Peer;

/// Bytes that are copied or compared at a time.
const STEP: usize = 512;

/// What is behind a namespace.
#[derive(Debug, Clone)]
pub enum Backend {
    /// Nothing: writes are forgotten, reads bring whatever. For rates, never for data.
    Null(Mr),
    /// Memory, which the port reads and writes itself.
    Ram(Mr),
    /// Memory of another device, which the port reads and writes where it is, until its owner
    /// takes it back.
    Peer(Box<Lent>),
    /// One of these, whose blocks are changed by those alone whom its gate lets through.
    Guarded(Box<Backend>),
    /// What bytes are moved to and from by way of buffers.
    Outside(Outside),
}

/// Memory of another device, which is given back behind the last core that has it.
#[derive(Debug, Clone)]
pub struct Lent {
    mr: Mr,
    peer: Arc<Peer>,
}

impl Lent {
    #[inline(never)]
    fn is_live(&self) -> bool {
        self.peer.region().is_live()
    }

    /// Bytes of it, unless they were taken back.
    #[inline(never)]
    fn direct(&self, offset: usize, len: usize) -> Result<Buf, VerbsError> {
        match self.is_live() {
            true => self.mr.buf(offset..offset + len),
            false => Err(VerbsError::Revoked),
        }
    }
}

/// A queue pair of a core for a namespace of a drive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DriveId(pub(crate) usize);

/// What has no memory that the port reads and writes: a command is a request to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outside {
    /// A file or a block device, by io_uring.
    File(FileId),
    /// A namespace of an NVMe drive, by a queue pair of the core.
    Drive(DriveId),
    /// Memory whose blocks are read and written as one.
    Whole,
}

impl Backend {
    /// Memory of the domain that is the namespace, all zeros at first.
    ///
    /// # Errors
    ///
    /// What the system or the device refused.
    pub fn ram(pd: &Pd, memory: &Arc<Memory>) -> Result<Self, VerbsError> {
        Ok(Self::Ram(pd.get_dma_mr()?.over(memory)?))
    }

    /// Nothing, with room for transfers of up to `max_transfer` bytes.
    ///
    /// # Errors
    ///
    /// What the system or the device refused.
    pub fn null(pd: &Pd, memory: &Arc<Memory>) -> Result<Self, VerbsError> {
        Ok(Self::Null(pd.get_dma_mr()?.over(memory)?))
    }

    /// Memory of another device.
    #[must_use]
    pub fn peer(peer: &Arc<Peer>) -> Self {
        Self::Peer(Box::new(Lent { mr: peer.region().mr().clone(), peer: peer.clone() }))
    }

    /// Whether there is memory that Writes may go to at once; what was taken back is none.
    #[inline(always)]
    #[must_use]
    pub fn is_direct(&self) -> bool {
        match self {
            Self::Null(_) | Self::Ram(_) => true,
            Self::Peer(lent) => lent.is_live(),
            Self::Guarded(_) | Self::Outside(_) => false,
        }
    }

    /// The bytes of the namespace themselves, for the port to read and write.
    ///
    /// # Errors
    ///
    /// Memory that was taken back, an error of the medium; a place outside the memory, which no
    /// checked command has; what has no memory of the port's.
    #[inline(always)]
    pub fn direct(&self, offset: u64, len: u64) -> Result<Buf, VerbsError> {
        let len = len as usize;
        match self {
            Self::Null(mr) => mr.buf(0..len),
            Self::Ram(mr) => mr.buf(offset as usize..offset as usize + len),
            Self::Peer(lent) => lent.direct(offset as usize, len),
            Self::Guarded(of) => of.behind(offset, len as u64),
            Self::Outside(_) => {
                let (what, way_out) = ("memory behind a file or a drive", "use a buffer");
                Err(VerbsError::Unsupported { what, way_out })
            }
        }
    }
}

impl Backend {
    /// The bytes of what a gate guards.
    #[inline(never)]
    fn behind(&self, offset: u64, len: u64) -> Result<Buf, VerbsError> {
        self.direct(offset, len)
    }
}

/// Memory for the port: `len_bytes`, rounded up to whole pages of this size.
///
/// # Errors
///
/// What the system refused.
pub fn memory(
    context: &ferrocx::verbs::RdmaContext,
    len_bytes: usize,
    page: PageSize,
) -> Result<Arc<Memory>, VerbsError> {
    Memory::alloc(context, &RegionConfig { len_bytes, page, ..RegionConfig::default() })
}

/// Whether `len` bytes of two pieces are the same.
///
/// # Errors
///
/// Outside either.
pub fn is_same(one: &Buf, at: usize, other: &Buf, len: usize) -> Result<bool, AccessError> {
    let (mut left, mut right) = ([0; STEP], [0; STEP]);
    let mut done = 0;
    while done < len {
        let part = STEP.min(len - done);
        one.copy_out(at + done, &mut left[..part])?;
        other.copy_out(done, &mut right[..part])?;
        if left[..part] != right[..part] {
            return Ok(false);
        }
        done += part;
    }
    Ok(true)
}

/// Makes `len` bytes of a piece zero, from `start` on.
///
/// # Errors
///
/// Outside it.
pub fn zero(piece: &mut Buf, start: usize, len: usize) -> Result<(), AccessError> {
    let step = [0; 4096];
    let mut done = 0;
    while done < len {
        let part = step.len().min(len - done);
        piece.copy_in(start + done, &step[..part])?;
        done += part;
    }
    Ok(())
}
