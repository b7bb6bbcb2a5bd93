//! Buffers that a program has the library allocate (rdma-core 65): ordinary memory, in whole pages.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use super::context::Context;
use super::memory::{PAGE_BYTES, ibv_reg_mr};
use super::{Errno, give_out, object, set_errno, take_back};
use crate::abi::{ibv_mr, ibv_pd};

/// What a handle stands for. The domain is the only one that the buffer is registered in.
struct Buffer {
    pd: *mut ibv_pd,
    start: *mut c_void,
    bytes: usize,
}

fn alloc(pd: *mut ibv_pd, bytes: usize, out: *mut *mut c_void) -> Result<*mut c_void, Errno> {
    promised!(Context::here((*pd).context))?;
    let mapped = bytes.checked_next_multiple_of(PAGE_BYTES).filter(|mapped| *mapped > 0);
    let mapped = mapped.ok_or(Errno::INVALID)?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: fresh memory, which replaces nothing.
    let start = unsafe { libc::mmap(null_mut(), mapped, rights, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(Errno::NO_MEMORY);
    }
    promised!(out.write(give_out(Buffer { pd, start, bytes })));
    Ok(start)
}

pub(crate) unsafe extern "C" fn ibv_alloc_buf(
    pd: *mut ibv_pd,
    bytes: usize,
    out: *mut *mut c_void,
) -> *mut c_void {
    object(alloc(pd, bytes, out))
}

pub(crate) unsafe extern "C" fn ibv_free_buf(buf: *mut c_void) {
    let Buffer { start, bytes, .. } = *promised!(take_back::<Buffer, _>(buf));
    promised!(libc::munmap(start, bytes));
}

pub(crate) unsafe extern "C" fn ibv_reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut c_void,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let buffer = promised!(&*buf.cast::<Buffer>());
    let offset = addr.addr().checked_sub(buffer.start.addr());
    let end = offset.and_then(|offset| offset.checked_add(length));
    if pd != buffer.pd || end.is_none_or(|end| end > buffer.bytes) {
        return object(Err(Errno::INVALID));
    }
    promised!(ibv_reg_mr(pd, addr, length, access))
}

pub(crate) extern "C" fn ibv_export_buf_dmabuf_fd(_buf: *mut c_void) -> c_int {
    // No buffer has one behind it.
    set_errno(Errno(libc::ENODATA));
    -1
}
