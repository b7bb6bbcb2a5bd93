//! [`Queue`]: the kernel's two rings, and the entries that are put into them.

use std::io;
use std::os::fd::RawFd;
use std::ptr;

use io_uring::{IoUring, opcode, squeue, types};

use crate::Request;

/// Rings shared with the kernel.
pub(crate) struct Queue {
    ring: IoUring,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(entries)? })
    }

    /// Puts a request in. The submission ring has a place for each request that its owner holds,
    /// so it is full only while the kernel was not told; then it is told.
    pub(crate) fn push(&mut self, fd: RawFd, name: u64, request: &Request) {
        let entry = entry(types::Fd(fd), request).user_data(name);
        // SAFETY: (1) the memory that the entry names is a `Buf`'s, which keeps it mapped, and the
        // owner holds the `Buf` until the kernel has ended the request, or for ever; (2) bytes of
        // a `Buf` are never borrowed, and accessed by atomic copies only, so the kernel may read
        // and write them at any time; (3) the file stays open as long as the ring.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            // Told, the kernel takes them all; a signal only means another try.
            let _ = self.ring.submit();
        }
    }

    /// Tells the kernel of what was put in, and waits until `wait` requests have ended; how many
    /// it took.
    pub(crate) fn submit(&self, wait: usize) -> io::Result<usize> {
        self.ring.submit_and_wait(wait)
    }

    /// The next request that has ended: its name and result.
    pub(crate) fn next(&mut self) -> Option<(u64, i32)> {
        self.ring.completion().next().map(|entry| (entry.user_data(), entry.result()))
    }
}

fn entry(fd: types::Fd, request: &Request) -> squeue::Entry {
    match request {
        Request::Read { to, offset } => {
            let at = ptr::with_exposed_provenance_mut(to.piece().address);
            opcode::Read::new(fd, at, to.len() as u32).offset(*offset).build()
        }
        Request::Write { from, offset, is_durable } => {
            let at = ptr::with_exposed_provenance(from.piece().address);
            let flags = if *is_durable { libc::RWF_DSYNC } else { 0 };
            opcode::Write::new(fd, at, from.len() as u32).offset(*offset).rw_flags(flags).build()
        }
        Request::Flush => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        Request::Zero { offset, len } => {
            let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
        }
        Request::Punch { offset, len } => {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            opcode::Fallocate::new(fd, *len).offset(*offset).mode(mode).build()
        }
    }
}
