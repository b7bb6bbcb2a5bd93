//! Memory of the device: taken, copied to and from, registered, found again by its number.
//!
//! Error numbers are those of mlx5_ib and of libmlx5. Source: reference 9.3, 4.12.

use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use super::context::{Context, Shared};
use super::forked::{self, Theirs};
use super::handles::Piece;
use super::memory::{Domain, Registered, access_of};
use super::piece::{give_back, range_of, take};
use super::shown::Shown;
use super::{Errno, give_out, number, object, take_back, tried};
use crate::abi::{access, ibv_alloc_dm_attr, ibv_context, ibv_dm, ibv_mr, ibv_pd};

/// Rights that mlx5 grants over it.
const GRANTED: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::ZERO_BASED
    | access::OPTIONAL;

#[repr(C)]
struct Memory {
    face: Shown<ibv_dm>,
    /// `None` of memory that was taken in a child of a fork.
    piece: Option<Piece>,
    length: usize,
    shared: Arc<Shared>,
}

impl Memory {
    /// # Safety
    /// The module's: `face` is live device memory.
    unsafe fn of<'a>(face: *mut ibv_dm) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    fn handle(&self) -> u32 {
        promised!((*self.face.get()).handle)
    }

    /// The piece, or how a child of a fork reaches it.
    fn piece(&self) -> Result<&Piece, Theirs<'_>> {
        let here = self.piece.as_ref().filter(|_| self.shared.here().is_ok());
        here.ok_or(Theirs { shared: &self.shared, handle: self.handle() })
    }
}

fn face(context: *mut ibv_context, handle: u32) -> Shown<ibv_dm> {
    Shown::new(ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle })
}

fn alloc(context: *mut ibv_context, attr: *const ibv_alloc_dm_attr) -> Result<*mut ibv_dm, Errno> {
    let shared = promised!(Context::of(context))?;
    let ibv_alloc_dm_attr { length, log_align_req, comp_mask } = promised!(attr.read());
    if comp_mask != 0 {
        return Err(Errno::INVALID);
    }
    let (handle, piece) = match shared.here() {
        Ok(()) => {
            take(shared, length, log_align_req).map(|(handle, piece)| (handle, Some(piece)))?
        }
        Err(_) => (forked::alloc(shared, length, log_align_req)?, None),
    };
    let shared = Arc::clone(shared);
    Ok(give_out(Memory { face: face(context, handle), piece, length, shared }))
}

pub(super) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    object(alloc(context, attr))
}

pub(super) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    let memory = promised!(Memory::of(dm));
    tried!(match memory.piece() {
        Ok(_) => give_back(&memory.shared, memory.handle()),
        Err(theirs) => theirs.free(),
    });
    drop(promised!(take_back::<Memory, _>(dm)));
    0
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    let memory = promised!(Memory::of(dm));
    tried!(range_of(memory.length, offset, length));
    if length == 0 {
        return 0;
    }
    let bytes = promised!(std::slice::from_raw_parts(from.cast::<u8>(), length));
    number(match memory.piece() {
        Ok(piece) => piece.copy_in(offset, bytes),
        Err(theirs) => theirs.copy_in(offset, bytes),
    })
}

unsafe extern "C" fn memcpy_from_dm(
    to: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    let memory = promised!(Memory::of(dm));
    tried!(range_of(memory.length, offset, length));
    if length == 0 {
        return 0;
    }
    // The program's bytes may never have been written: a slice of them begins with zeros.
    promised!(to.cast::<u8>().write_bytes(0, length));
    let bytes = promised!(std::slice::from_raw_parts_mut(to.cast::<u8>(), length));
    number(match memory.piece() {
        Ok(piece) => piece.copy_out(offset, bytes),
        Err(theirs) => theirs.copy_out(offset, bytes),
    })
}

fn register(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    (offset, length): (u64, usize),
    flags: u32,
) -> Result<*mut ibv_mr, Errno> {
    if flags & !GRANTED != 0 || flags & access::ZERO_BASED == 0 {
        return Err(Errno::INVALID);
    }
    let rights = access_of(flags).ok_or(Errno::INVALID)?;
    let (domain, memory) = promised!((Domain::of(pd), Memory::of(dm)));
    let shared = promised!(Context::here((*pd).context))?;
    let end = offset.checked_add(length as u64).filter(|end| *end <= memory.length as u64);
    let end = end.ok_or(Errno::INVALID)?;
    let piece = memory.piece().map_err(|_| Errno::GONE)?;
    let mr = domain.pd.reg_dm_mr(&piece.dm, offset as usize..end as usize, rights)?;
    let covered = (null_mut(), 0, length);
    Ok(give_out(promised!(Registered::noted((mr, flags), (pd, shared), covered, None))))
}

pub(super) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    object(register(pd, dm, (offset, length), access))
}

fn import(context: *mut ibv_context, handle: u32) -> Result<*mut ibv_dm, Errno> {
    let shared = promised!(Context::here(context))?;
    let piece = Piece::find(shared, handle)?;
    let (length, shared) = (piece.length, Arc::clone(shared));
    Ok(give_out(Memory { face: face(context, handle), piece: Some(piece), length, shared }))
}

pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_dm {
    object(import(context, handle))
}

pub(crate) unsafe extern "C" fn ibv_unimport_dm(dm: *mut ibv_dm) {
    drop(promised!(take_back::<Memory, _>(dm)));
}
