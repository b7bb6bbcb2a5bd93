//! The side of a pipeline that wants keys.

use rtrb::{Consumer, Producer, PushError};

use super::Pieces;
use crate::error::{Failure, PostError};
use crate::fastreg::PageListError;
use crate::types::{Access, RemoteAddr};
use crate::wr::InvalidatedRkey;

/// Names a key of a pipeline until it is ended.
#[derive(Debug, PartialEq, Eq)]
pub struct KeyId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// A key that peers may use.
#[derive(Debug)]
pub struct RegisteredKey {
    /// Give it back with [`Client::invalidate`] or [`Client::ended_by_peer`].
    pub id: KeyId,
    /// Address and key of the first byte, for peers.
    pub remote: RemoteAddr,
    /// Length of the region in bytes.
    pub len_bytes: u64,
}

/// Answer of a worker. `tag` is the name that the client gave the request.
#[derive(Debug)]
pub enum Answer {
    /// The key is bound.
    Key {
        /// The request.
        tag: u64,
        /// The key.
        key: RegisteredKey,
    },
    /// The key has ended: nobody can use it.
    Ended {
        /// The request that it was made for.
        tag: u64,
    },
    /// The bytes are there, and the key that they came through has ended.
    Read {
        /// The request.
        tag: u64,
    },
    /// The request was not carried out, or not to its end.
    Failed {
        /// The request.
        tag: u64,
        /// The reason.
        cause: FailureCause,
    },
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureCause {
    /// The pieces cannot be described by the list.
    Pieces(PageListError),
    /// There is no memory of this number.
    NoSuchMemory,
    /// The key was ended before, or the name is of another pipeline.
    NoSuchKey,
    /// It could not be posted.
    Post(PostError),
    /// The device reported a failure; the worker has ended. The key may be valid, and is in
    /// [`Drained`](super::Drained).
    Device(Failure),
    /// The worker stopped before it took the request.
    Stopped,
}

/// A request for a key over pieces of a memory.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Name of the request in its answer.
    pub tag: u64,
    /// Place of the memory in the list that [`registrar`](super::registrar) was given.
    pub memory: u32,
    /// Pieces of the memory. The region starts at the least address that its first byte allows: its
    /// offset in its page, or 0 with [`ListLayout::Pieces`](crate::ListLayout::Pieces).
    pub pieces: Pieces,
    /// Rights that the key grants.
    pub access: Access,
    /// The peer may end the key with a SEND with invalidate.
    pub remote_invalidate: bool,
}

/// A request for bytes of the peer that the worker's queue pair is connected to, through a key that
/// lives as long as that takes.
#[derive(Debug, Clone)]
pub struct ReadOnce {
    /// Name of the request in its answer.
    pub tag: u64,
    /// Place of the memory in the list that [`registrar`](super::registrar) was given.
    pub memory: u32,
    /// Pieces of the memory that the bytes go to; as many bytes are read as they have.
    pub pieces: Pieces,
    /// Where the bytes are.
    pub from: RemoteAddr,
}

/// A request on its way to a worker.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) wanted: Registration,
    /// Where the bytes are, for a READ through the key.
    pub(super) from: Option<RemoteAddr>,
}

/// A key given back.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) id: KeyId,
    /// The peer has ended it.
    pub(super) proof: Option<InvalidatedRkey>,
}

/// The client's end of a pipeline. Belongs to one core at a time.
#[derive(Debug)]
pub struct Client {
    pub(super) requests: Producer<Request>,
    pub(super) endings: Producer<Ending>,
    pub(super) answers: Consumer<Answer>,
}

impl Client {
    /// Asks for a key over pieces of a memory.
    ///
    /// # Errors
    ///
    /// The request, if the ring is full: take answers and try again.
    #[inline]
    #[expect(clippy::result_large_err, reason = "the request comes back without an allocation")]
    pub fn register(&mut self, wanted: Registration) -> Result<(), Registration> {
        let pushed = self.requests.push(Request { wanted, from: None });
        pushed.map_err(|PushError::Full(request)| request.wanted)
    }

    /// Asks for bytes of the peer: into pieces of a memory, through a key of their own.
    ///
    /// # Errors
    ///
    /// The request, if the ring is full: take answers and try again.
    #[inline]
    #[expect(clippy::result_large_err, reason = "the request comes back without an allocation")]
    pub fn read_once(&mut self, wanted: ReadOnce) -> Result<(), ReadOnce> {
        if self.requests.is_full() {
            return Err(wanted);
        }
        let ReadOnce { tag, memory, pieces, from } = wanted;
        let (access, remote_invalidate) = (Access::LOCAL_WRITE, false);
        let wanted = Registration { tag, memory, pieces, access, remote_invalidate };
        // It has room: nobody else puts anything in.
        let _ = self.requests.push(Request { wanted, from: Some(from) });
        Ok(())
    }

    /// Gives a key back, to be ended.
    ///
    /// # Errors
    ///
    /// The key, if the ring is full: take answers and try again.
    #[inline]
    pub fn invalidate(&mut self, id: KeyId) -> Result<(), KeyId> {
        let pushed = self.endings.push(Ending { id, proof: None });
        pushed.map_err(|PushError::Full(ending)| ending.id)
    }

    /// Gives a key back that the peer has ended, with the proof from the receive's completion.
    ///
    /// # Errors
    ///
    /// Both, if the ring is full.
    pub fn ended_by_peer(
        &mut self,
        id: KeyId,
        proof: InvalidatedRkey,
    ) -> Result<(), (KeyId, Option<InvalidatedRkey>)> {
        let pushed = self.endings.push(Ending { id, proof: Some(proof) });
        pushed.map_err(|PushError::Full(ending)| (ending.id, ending.proof))
    }

    /// The next answer.
    #[inline]
    pub fn poll(&mut self) -> Option<Answer> {
        self.answers.pop().ok()
    }

    /// Whether the worker has ended; what it had answered can still be polled.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.requests.is_abandoned()
    }
}
