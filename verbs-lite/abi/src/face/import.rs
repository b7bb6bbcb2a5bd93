//! Objects of a device that this process has open already: a program finds them by the number of
//! the device's command file and their own, and shares them between libraries that know nothing of
//! each other. The file carries no command; it only says which device it is.

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::device::open;
use super::handles;
use super::memory::{Domain, Registered};
use super::shown::Shown;
use super::{Errno, give_out, object, take_back};
use crate::abi::{ibv_context, ibv_mr, ibv_pd};
use crate::node::lock;

/// Opens a device again whose command file the program has.
fn import_device(fd: c_int) -> Result<*mut ibv_context, Errno> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: the program gives the file away, as the interface says; where it is none of ours, it
    // stays the program's.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    let Some(handles) = handles::of(&file) else {
        std::mem::forget(file);
        return Err(Errno::INVALID);
    };
    open(file, handles).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

pub(crate) extern "C" fn ibv_import_device(fd: c_int) -> *mut ibv_context {
    object(import_device(fd))
}

fn import_pd(context: *mut ibv_context, handle: u32) -> Result<*mut ibv_pd, Errno> {
    let shared = promised!(Context::here(context))?;
    let domains = lock(&shared.handles.domains);
    let known = domains.get(&handle).ok_or(Errno(libc::ENOENT))?;
    let (pd, users) = (known.pd.clone(), known.users.clone());
    Ok(give_out(Domain {
        _face: Shown::new(ibv_pd { context, handle }),
        pd,
        users,
        needs: Vec::new(),
    }))
}

pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_pd {
    object(import_pd(context, handle))
}

pub(crate) unsafe extern "C" fn ibv_unimport_pd(pd: *mut ibv_pd) {
    let context = promised!((*pd).context);
    let domain = *promised!(take_back::<Domain, _>(pd));
    if promised!(Context::of(context)).is_ok_and(|shared| shared.here().is_err()) {
        // Its last handle would end it, and the device is its parent's.
        std::mem::forget(domain);
    }
}

fn import_mr(pd: *mut ibv_pd, handle: u32) -> Result<*mut ibv_mr, Errno> {
    let context = promised!((*pd).context);
    let shared = promised!(Context::here(context))?;
    let found = lock(&shared.handles.regions).get(&handle).cloned();
    let known = found.ok_or(Errno(libc::ENOENT))?;
    let (length, lkey, rkey) = (known.length, known.key, known.key);
    // Where it lies in whose memory, an import does not say.
    let face = ibv_mr { context, pd, addr: null_mut(), length, handle, lkey, rkey };
    let face = Shown::new(face);
    let (shared, place) = (Arc::clone(shared), known.place);
    Ok(give_out(Registered { face, shared, place, is_import: true }))
}

pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    object(import_mr(pd, handle))
}

pub(crate) unsafe extern "C" fn ibv_unimport_mr(mr: *mut ibv_mr) {
    drop(promised!(take_back::<Registered, _>(mr)));
}
