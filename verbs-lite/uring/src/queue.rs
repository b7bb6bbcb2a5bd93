//! [`Queue`]: the kernel's two rings, and the entries that are put into them.

use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use ferrocx_mempool::Region;
use ferrocx_verbs_lite::Buf;

use io_uring::{IoUring, opcode, squeue, types};

use crate::Request;

/// Bytes that one entry of the kernel's table of buffers may have.
///
/// Source: Linux `io_uring/rsrc.c`, `io_buffer_validate`.
const PART_BYTES: usize = 1 << 30;

/// Rings shared with the kernel.
pub(crate) struct Queue {
    ring: IoUring,
    /// Memory whose pages the kernel keeps, in parts: the entries of its table of buffers.
    parts: Vec<Part>,
    /// That memory, which stays where it is as long as the ring.
    _regions: Vec<Arc<Region>>,
}

/// Addresses of an entry.
struct Part {
    start: usize,
    end: usize,
}

/// How a request names its file.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    /// By a descriptor.
    Fd(RawFd),
    /// By a place of the kernel's table of files.
    Place(u32),
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(entries: u32) -> io::Result<Self> {
        Ok(Self { ring: IoUring::new(entries)?, parts: Vec::new(), _regions: Vec::new() })
    }

    /// Has the kernel look the pages of memory up once, and keep them.
    pub(crate) fn register(&mut self, regions: Vec<Arc<Region>>) -> io::Result<()> {
        let mut parts = Vec::new();
        for region in &regions {
            let start = region.base().as_ptr().expose_provenance();
            let end = start + region.len_bytes();
            let starts = (start..end).step_by(PART_BYTES);
            parts.extend(starts.map(|at| Part { start: at, end: end.min(at + PART_BYTES) }));
        }
        let entry = |it: &Part| libc::iovec {
            iov_base: ptr::with_exposed_provenance_mut(it.start),
            iov_len: it.end - it.start,
        };
        let entries: Vec<_> = parts.iter().map(entry).collect();
        // SAFETY: the parts are of regions, which stay mapped until this is dropped, and the ring
        // goes first; what the kernel does with them is said at `push`.
        unsafe { self.ring.submitter().register_buffers(&entries)? };
        (self.parts, self._regions) = (parts, regions);
        Ok(())
    }

    /// Has the kernel keep a table of files, all places empty.
    pub(crate) fn keep_files(&self, places: u32) -> io::Result<()> {
        self.ring.submitter().register_files_sparse(places)
    }

    /// Puts a file into a place of the table, or takes it out.
    pub(crate) fn put_file(&self, place: u32, fd: Option<RawFd>) -> io::Result<()> {
        self.ring.submitter().register_files_update(place, &[fd.unwrap_or(-1)]).map(drop)
    }

    /// Puts a request in, of a write what is behind its first `moved` bytes. The submission ring
    /// has a place for each request that its owner holds, so it is full only while the kernel was
    /// not told; then it is told.
    pub(crate) fn push(&mut self, target: Target, name: u64, request: &Request, moved: u32) {
        let (fd, flags) = match target {
            Target::Fd(fd) => (fd, squeue::Flags::empty()),
            Target::Place(place) => (place as RawFd, squeue::Flags::FIXED_FILE),
        };
        let entry = self.entry(types::Fd(fd), request, moved).flags(flags).user_data(name);
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

    /// The entry of the table of buffers that has all of a buffer.
    fn part(&self, buf: &Buf) -> Option<u16> {
        let start = buf.piece().address;
        let has = |it: &Part| it.start <= start && start + buf.len() <= it.end;
        self.parts.iter().position(has).map(|at| at as u16)
    }

    fn entry(&self, fd: types::Fd, request: &Request, moved: u32) -> squeue::Entry {
        match request {
            Request::Read { to, offset } => {
                let (at, len) =
                    (ptr::with_exposed_provenance_mut(to.piece().address), to.len() as u32);
                match self.part(to) {
                    Some(part) => opcode::ReadFixed::new(fd, at, len, part).offset(*offset).build(),
                    None => opcode::Read::new(fd, at, len).offset(*offset).build(),
                }
            }
            Request::Write { from, offset, is_durable } => {
                let address = from.piece().address + moved as usize;
                let at = ptr::with_exposed_provenance(address);
                let (len, offset) = (from.len() as u32 - moved, offset + u64::from(moved));
                let flags = if *is_durable { libc::RWF_DSYNC } else { 0 };
                match self.part(from) {
                    Some(part) => opcode::WriteFixed::new(fd, at, len, part)
                        .offset(offset)
                        .rw_flags(flags)
                        .build(),
                    None => opcode::Write::new(fd, at, len).offset(offset).rw_flags(flags).build(),
                }
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
}
