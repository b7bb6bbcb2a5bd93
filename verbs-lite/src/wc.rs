//! Work completions: what has ended, and what it gives back.

use crate::error::Failure;
use crate::fastreg::{FastRegMr, PageList, RegisteredMr};
use crate::window::{BoundMw, Mw};
use crate::wr::{RecvInfo, WcOpcode};

/// A work request that has ended, and what it held.
#[derive(Debug)]
#[doc(alias = "ibv_wc")]
pub struct Wc<B> {
    /// Name that the caller gave the request.
    pub wr_id: u64,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// Success, or the cause of the failure.
    pub result: Result<(), Failure>,
    /// It asked for a completion of its own.
    pub is_signaled: bool,
    /// Bytes that arrived: of receives, READs and atomics that were signaled.
    pub byte_len: u32,
    /// Information beside the message, of receives only.
    pub recv: RecvInfo,
    /// Buffers, key or list that it held.
    pub returned: Returned<B>,
}

impl<B> Wc<B> {
    /// The buffers that it held.
    #[must_use]
    pub fn into_buffers(self) -> Option<B> {
        match self.returned {
            Returned::Buffers(buffers) => Some(buffers),
            _ => None,
        }
    }
}

/// A send request that went well and asked for a completion of its own, and held nothing but a
/// list: [`Qp::complete_sent`](crate::Qp::complete_sent).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Name that the caller gave the request.
    pub wr_id: u64,
    /// Kind of the request.
    pub opcode: WcOpcode,
    /// Bytes that arrived: of READs and atomics.
    pub byte_len: u32,
}

/// A receive of the queue pair's own that a message filled:
/// [`Qp::complete_received`](crate::Qp::complete_received).
#[derive(Debug)]
pub struct Received {
    /// Name that the caller gave the receive.
    pub wr_id: u64,
    /// [`WcOpcode::Recv`] or [`WcOpcode::RecvWriteImm`].
    pub opcode: WcOpcode,
    /// Bytes of the message.
    pub byte_len: u32,
    /// What came beside it.
    pub info: RecvInfo,
}

/// Buffers, key or list that a work request held and gives back.
#[derive(Debug)]
#[non_exhaustive]
pub enum Returned<B> {
    /// The request held nothing.
    Nothing,
    /// Its scatter or gather list.
    Buffers(B),
    /// The page list of a registration.
    PageList(PageList),
    /// A key that was ended: it is free.
    Mr(FastRegMr),
    /// A key that should have been ended and may still be valid: see [`crate::fastreg`].
    Stale(RegisteredMr),
    /// A window that was ended: it is free.
    Mw(Mw),
    /// A window that should have been ended and may still be bound: see [`crate::window`].
    StaleMw(BoundMw),
}
