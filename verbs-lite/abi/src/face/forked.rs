//! Device memory for children of a fork.
//!
//! A child has no device: what it asks of its parent's is refused, for its model is but a copy. Of
//! memory of the device each process of a program takes its own, as Linux lets all do that have
//! inherited the command file. So a child has its parent take, copy and free it, by
//! [`Requests`](crate::node::Requests), as long as the parent lives and has the device open. Keys
//! over that memory are for the parent alone.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::context::Shared;
use super::handles::{self, Piece};
use super::{Errno, piece};
use crate::node::MESSAGE_BYTES;

/// What is asked.
const ALLOC: u32 = 1;
const FREE: u32 = 2;
const COPY_IN: u32 = 3;
const COPY_OUT: u32 = 4;

/// A request; what is to be copied in follows it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Request {
    /// The command file, as the system tells it apart.
    file: [u64; 2],
    kind: u32,
    /// Number of the memory.
    handle: u32,
    /// First byte; of memory to be taken, log2 of its alignment.
    at: u64,
    length: u64,
}

/// An answer; what was copied out follows it.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Answer {
    /// 0 if all went well.
    errno: i32,
    /// Number of the memory that was taken.
    handle: u32,
}

/// Bytes that are copied at once: whole words, beside a request or an answer.
const COPY_BYTES: usize = MESSAGE_BYTES - size_of::<Request>();

/// Memory that the parent has.
#[derive(Debug, Clone, Copy)]
pub(super) struct Theirs<'a> {
    pub(super) shared: &'a Shared,
    pub(super) handle: u32,
}

/// Has the parent take memory; its number.
pub(super) fn alloc(shared: &Shared, length: usize, log_align: u32) -> Result<u32, Errno> {
    Theirs { shared, handle: 0 }.ask(ALLOC, (log_align.into(), length), &[], &mut [])
}

impl Theirs<'_> {
    pub(super) fn free(self) -> Result<(), Errno> {
        self.ask(FREE, (0, 0), &[], &mut []).map(drop)
    }

    pub(super) fn copy_in(self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        for (at, piece) in bytes.chunks(COPY_BYTES).enumerate() {
            let at = offset + (at * COPY_BYTES) as u64;
            self.ask(COPY_IN, (at, piece.len()), piece, &mut [])?;
        }
        Ok(())
    }

    pub(super) fn copy_out(self, offset: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        for (at, piece) in bytes.chunks_mut(COPY_BYTES).enumerate() {
            let at = offset + (at * COPY_BYTES) as u64;
            self.ask(COPY_OUT, (at, piece.len()), &[], piece)?;
        }
        Ok(())
    }

    /// Asks the parent for something, and waits until it is done.
    fn ask(
        self,
        kind: u32,
        (at, length): (u64, usize),
        data: &[u8],
        out: &mut [u8],
    ) -> Result<u32, Errno> {
        let Self { shared, handle } = self;
        let (device, inode) = handles::id_of(&shared.command_file).map_err(|_| Errno::GONE)?;
        let request = Request { file: [device, inode], kind, handle, at, length: length as u64 };
        let mut said = vec![0; size_of::<Answer>() + out.len()];
        let bytes = shared.node.requests.ask(&[request.as_bytes(), data], &mut said);
        let bytes = bytes.map_err(|error| match error {
            rustix::io::Errno::PIPE => Errno::GONE,
            other => Errno(other.raw_os_error()),
        })?;
        let Ok((answer, copied)) = Answer::read_from_prefix(&said[..bytes]) else {
            return Err(Errno::GONE);
        };
        if answer.errno != 0 {
            return Err(Errno(answer.errno));
        }
        if copied.len() != out.len() {
            return Err(Errno::GONE);
        }
        out.copy_from_slice(copied);
        Ok(answer.handle)
    }
}

impl Shared {
    /// Does for a child what it asks of a command file, if that is this context's.
    pub(super) fn serve_child(&self, request: &[u8], said: &mut Vec<u8>) {
        let Ok((request, data)) = Request::read_from_prefix(request) else { return };
        let file = (request.file[0], request.file[1]);
        if !said.is_empty() || handles::id_of(&self.command_file).ok() != Some(file) {
            return;
        }
        let mut copied = Vec::new();
        let done = self.carry_out(request, data, &mut copied);
        let (errno, handle) = done.map_or_else(|errno| (errno.0, 0), |handle| (0, handle));
        said.extend(Answer { errno, handle }.as_bytes());
        said.extend(copied);
    }

    fn carry_out(
        &self,
        Request { kind, handle, at, length, .. }: Request,
        data: &[u8],
        copied: &mut Vec<u8>,
    ) -> Result<u32, Errno> {
        let length = usize::try_from(length).map_err(|_| Errno::INVALID)?;
        match kind {
            ALLOC => {
                let log_align = u32::try_from(at).map_err(|_| Errno::INVALID)?;
                return piece::take(self, length, log_align).map(|(handle, _)| handle);
            }
            FREE => piece::give_back(self, handle)?,
            COPY_IN => Piece::find(self, handle)?.copy_in(at, data)?,
            COPY_OUT if length <= COPY_BYTES => {
                copied.resize(length, 0);
                Piece::find(self, handle)?.copy_out(at, copied)?;
            }
            _ => return Err(Errno::INVALID),
        }
        Ok(0)
    }
}
