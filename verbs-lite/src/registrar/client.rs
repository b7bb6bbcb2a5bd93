//! The side of a pipeline that wants keys.

use rtrb::{Consumer, Producer};

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
    /// What peers need to reach the first byte.
    pub remote: RemoteAddr,
    /// Bytes.
    pub len_bytes: u64,
}

/// What a worker answers. `tag` is what the client named the request.
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
        /// Why.
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

/// What goes to a worker.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) tag: u64,
    pub(super) memory: u32,
    pub(super) pieces: Pieces,
    pub(super) purpose: Purpose,
}

/// What a key is made for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// It is held until it is given back.
    Hold { access: Access, remote_invalidate: bool },
    /// A READ comes through it, and ends it.
    Read { from: RemoteAddr },
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
    requests: Producer<Request>,
    endings: Producer<Ending>,
    answers: Consumer<Answer>,
}

impl Client {
    pub(super) fn new(
        requests: Producer<Request>,
        endings: Producer<Ending>,
        answers: Consumer<Answer>,
    ) -> Self {
        Self { requests, endings, answers }
    }

    /// Asks for a key over pieces of a memory. `false` if the ring is full: take answers and try
    /// again.
    ///
    /// The region starts at the least address that its first byte allows: its offset in its page,
    /// or 0 for pieces.
    #[inline]
    pub fn register(
        &mut self,
        tag: u64,
        memory: u32,
        pieces: Pieces,
        access: Access,
        remote_invalidate: bool,
    ) -> bool {
        let purpose = Purpose::Hold { access, remote_invalidate };
        self.requests.push(Request { tag, memory, pieces, purpose }).is_ok()
    }

    /// Asks for bytes of the peer that the worker's queue pair is connected to: into pieces of a
    /// memory, through a key that lives as long as that takes. `false` if the ring is full.
    #[inline]
    pub fn read_once(&mut self, tag: u64, memory: u32, pieces: Pieces, from: RemoteAddr) -> bool {
        let purpose = Purpose::Read { from };
        self.requests.push(Request { tag, memory, pieces, purpose }).is_ok()
    }

    /// Gives a key back, to be ended.
    ///
    /// # Errors
    ///
    /// The key, if the ring is full: take answers and try again.
    #[inline]
    pub fn invalidate(&mut self, id: KeyId) -> Result<(), KeyId> {
        let pushed = self.endings.push(Ending { id, proof: None });
        pushed.map_err(|rtrb::PushError::Full(ending)| ending.id)
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
        pushed.map_err(|rtrb::PushError::Full(ending)| (ending.id, ending.proof))
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
