//! What can go wrong: on the control path, when posting, and in completions.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ferrocx_bus::BusError;
use ferrocx_core::{CommandError, DeviceError};
use ferrocx_mempool::{AccessError, MempoolError};
use ferrocx_prm::syndrome::CqeSyndrome;
use thiserror::Error;

use crate::types::{Gid, QpState};

/// An error of the control path.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The driver below refused or failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Memory could not be had, or is a pool's.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// A range is not inside a buffer, or not aligned.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The device lacks something.
    #[error("the device has no {what}; {way_out}")]
    Unsupported {
        /// The ability that it lacks.
        what: &'static str,
        /// A way to do without.
        way_out: &'static str,
    },
    /// A value is out of range.
    #[error("{what} is {value}, possible are {min} to {max}")]
    OutOfRange {
        /// Name of the value.
        what: &'static str,
        /// The value that was asked for.
        value: u64,
        /// Smallest possible.
        min: u64,
        /// Largest possible.
        max: u64,
    },
    /// Rights that contradict each other.
    #[error("remote write and atomic access need local write access too; add Access::LOCAL_WRITE")]
    RemoteWithoutLocalWrite,
    /// The memory was taken back.
    #[error("the memory was taken back from the device; register other memory")]
    Revoked,
    /// Two objects are of different devices.
    #[error("{what} belongs to another device")]
    OtherDevice {
        /// Name of the object.
        what: &'static str,
    },
    /// A completion queue of the queue pair is missing where all are wanted.
    #[error("completion queue {cqn:#x} of the queue pair is missing; name it, too")]
    NoSuchCq {
        /// Number of the completion queue.
        cqn: u32,
    },
    /// A completion queue cannot hold the completions of another queue pair: an entry for each
    /// request that it may have in flight, receives of a shared queue counted once for all.
    #[error(
        "the completion queue has room for {free} more completions, the queue pair may cause \
         {need}; make the completion queue larger or the queue pair smaller"
    )]
    CqTooSmall {
        /// Completions that the queue pair may cause.
        need: u32,
        /// Completions that are not promised to other queue pairs.
        free: u32,
    },
    /// No address of this port reaches a peer.
    #[error(
        "no address of this port reaches {remote}: none is on its subnet and none has a gateway; \
         add one with RdmaContext::add_gid"
    )]
    NoRoute {
        /// The peer.
        remote: Gid,
    },
    /// An address that the port does not have.
    #[error("{address} is no address of this port; add it with RdmaContext::add_gid")]
    NotOurs {
        /// The address.
        address: Gid,
    },
    /// The GID table is full.
    #[error("all {size} entries of the GID table are in use; remove one")]
    GidTableFull {
        /// Its entries.
        size: u32,
    },
    /// A flow rule that the queue pair does not have.
    #[error("the queue pair has no such flow rule: it was destroyed, or is another one's")]
    NoSuchFlow,
    /// A completion channel has as many queues as it has room for their events.
    #[error("the completion channel serves {max} completion queues already; make another channel")]
    ChannelFull {
        /// Queues of a channel.
        max: u32,
    },
    /// Two shared queues of an XRC domain with one number: their completions could not be told
    /// apart.
    #[error("user_index {user_index} is another shared queue's of the XRC domain; take another")]
    UserIndexTaken {
        /// The number.
        user_index: u32,
    },
    /// Requests have not ended whose completions the transition would lose.
    #[error("{posted} entries of the queues are still posted; take their completions first")]
    StillPosted {
        /// Ring entries that are in use.
        posted: u32,
    },
    /// Windows are bound to a region that was to end.
    #[error("{windows} memory windows are bound to the region; invalidate or drop them first")]
    WindowsBound {
        /// Windows that are bound.
        windows: u32,
    },
    /// Regions are registered over device memory that was to go.
    #[error("{regions} regions are registered over the device memory; drop them first")]
    StillRegistered {
        /// Regions that are registered.
        regions: u32,
    },
    /// A change of a key was not reported as done.
    #[error(
        "key {key:#010x} was not changed: {}; register the memory anew",
        .cause.map_or_else(|| "no completion came".into(), |cause| cause.to_string())
    )]
    NotChanged {
        /// The key.
        key: u32,
        /// Why, if the device said it.
        cause: Option<Failure>,
    },
    /// A thread could not be started.
    #[error("no thread: {0}")]
    Thread(std::io::Error),
    /// The queue pair is not in the state that a transition starts from.
    #[error("the queue pair is in state {is:?}, the transition starts from {needs:?}")]
    WrongState {
        /// Its state.
        is: QpState,
        /// The state that is needed.
        needs: QpState,
    },
}

impl VerbsError {
    /// Checks that nothing is posted.
    pub(crate) fn none_posted(posted: u32) -> Result<(), VerbsError> {
        if posted == 0 { Ok(()) } else { Err(Self::StillPosted { posted }) }
    }

    /// Checks a value against its range.
    pub(crate) fn range(
        what: &'static str,
        value: u64,
        min: u64,
        max: u64,
    ) -> Result<(), VerbsError> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::OutOfRange { what, value, min, max })
    }
}

/// Locks, whoever panicked under the lock: what locks of this crate guard is right at each step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a work request was not posted. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// No room: poll the completion queue and try again.
    #[error("the queue is full")]
    Full,
    /// The queue pair is not in a state that takes this work: sends need RTS or, to be flushed, an
    /// error state, receives INIT.
    #[error("the queue pair is not in a state for this; see Qp::state and the failed completion")]
    State,
    /// The queue pair's receives come from a shared queue: post there.
    #[error("the queue pair has no receive queue of its own; post to its Srq")]
    Shared,
    /// The service of the queue pair does not have this operation.
    #[error("this queue pair's service does not have this operation")]
    Operation,
    /// More scatter or gather entries than the queue was made for.
    #[error("more scatter or gather entries than max_send_sge or max_recv_sge")]
    TooManySges,
    /// More inline bytes than the queue was made for.
    #[error("more inline data than max_inline_bytes")]
    InlineTooLong,
    /// A frame of a length that Ethernet or the port does not have.
    #[error("a frame has 14 bytes at least, and at most the port's MTU and 14, with a VLAN tag 18")]
    FrameLength,
    /// The device wants the headers of frames in the request, and they cannot be read.
    #[error("the device wants headers inline, and the buffer cannot be read; use post_send_inline")]
    Headers,
    /// An atomic whose local buffer is not one of eight bytes.
    #[error("the result of an atomic needs one buffer of eight bytes")]
    AtomicBuffer,
    /// A page list that does not describe the region that was asked for.
    #[error("the page list is empty, too long, of another layout, or starts elsewhere in a page")]
    PageList,
    /// A page list of peer memory, for a key that does not end with that memory.
    #[error("the key is not attached to this peer memory, see FastRegMr::attach, or it was ended")]
    Peer,
    /// A key that is not in the state that the request starts from.
    #[error("the key is not in a state for this; see KeySlot::state")]
    KeyState,
    /// A memory region was made in another protection domain, or a packet carries the key of one:
    /// of another device's, of the device's own, which has the keys of foreign memory
    /// ([`RdmaContext::device_pd`](crate::RdmaContext::device_pd)), or of none, because its pool is
    /// not registered.
    #[error(
        "the memory's key is not of the queue pair's protection domain; of a packet: register its \
         pool with the device first, and see RdmaContext::device_pd"
    )]
    Pd,
    /// The device would write to a packet whose data a clone shares.
    #[error("the device would write to a packet whose data a clone shares; free the clones first")]
    NotExclusive,
    /// A window that cannot be bound so.
    #[error(
        "the range is empty, above 2 GiB or outside the region, or the region lacks \
         Access::MW_BIND, or Access::LOCAL_WRITE for a window that lets peers write"
    )]
    Window,
    /// Rights that contradict each other, or that the device cannot grant this way.
    #[error("remote write and atomics need local write access; atomics FAST_REG_ATOMIC too")]
    Access,
    /// The queue pair was made without `fast_reg`.
    #[error("the queue pair was made without QpConfig::fast_reg")]
    NoFastReg,
}

impl PostError {
    /// Why an entry was refused: it was one too many, or of another domain.
    #[cold]
    pub(crate) fn of_sge(is_own_pd: bool) -> Self {
        if is_own_pd { Self::TooManySges } else { Self::Pd }
    }
}

/// A work request that was not posted, with what it held.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Refused<T: std::fmt::Debug> {
    /// Buffers, key or list that would have gone to the device.
    pub held: T,
    /// Why the request was not posted.
    pub cause: PostError,
}

/// Why a work request failed, as the device's completion says.
///
/// | code | usual cause | look at |
/// |---|---|---|
/// | 0x01 | a message longer than its receive, or than a datagram may be | the peer's and own lengths |
/// | 0x02 | the device cannot carry out the request | the address that the path starts from, the queue pair's service |
/// | 0x04 | a buffer whose key has ended, or that the key does not let the device write | who ended the key |
/// | 0x05 | a request before it failed | the first failed completion of the queue pair |
/// | 0x06 | a key or window that is bound, ended, or another queue pair's | [`crate::Qp::mr_state`], [`crate::Qp::mw_state`] |
/// | 0x10 | an answer that fits no request | the peer's stack; whether two connections share numbers |
/// | 0x11 | a peer's WRITE with immediate that was refused here | the key that the peer was given |
/// | 0x12 | a SEND too long for the receive, or an operation that the peer's queue pair does not grant | the peer's `InitAttr::access` and receives |
/// | 0x13 | a remote key that has ended, a range or a right it does not have | what the peer granted |
/// | 0x14 | the peer's receive names memory that it cannot write | the peer's receives |
/// | 0x15 | the peer or the path is gone, or is too slow for the timeout | the link, the peer's state, `RtsAttr` |
/// | 0x16 | the peer posted no receive in time | the peer's receives, `RtsAttr::rnr_retry` |
/// | 0x22 | nothing on RoCE: it is of reliable datagrams | the device's log |
///
/// Source: reference 6.7; IBTA vol. 1, 10.10.3. Each row but the last is provoked by
/// `tests/queues/syndromes.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{syndrome} (vendor syndrome {vendor:#04x}); {}", self.next_step())]
pub struct Failure {
    /// Cause of the failure, see [`CqeSyndrome::meaning`].
    pub syndrome: CqeSyndrome,
    /// The firmware's own code.
    pub vendor: u8,
}

impl Failure {
    /// The next step of whoever looks for the cause, in one clause.
    #[must_use]
    pub fn next_step(&self) -> &'static str {
        match self.syndrome {
            CqeSyndrome::LOCAL_LENGTH_ERR => "compare the message with its receive and the MTU",
            CqeSyndrome::LOCAL_QP_OP_ERR => "check the path's own address and the operation",
            CqeSyndrome::LOCAL_PROT_ERR => "find who ended the key of the buffer",
            CqeSyndrome::WR_FLUSH_ERR => "see the first failed completion of the queue pair",
            CqeSyndrome::MW_BIND_ERR => "ask mr_state or mw_state, and revoke the key",
            CqeSyndrome::BAD_RESP_ERR => "reset the connection with new packet numbers",
            CqeSyndrome::LOCAL_ACCESS_ERR => "check the key that the peer was given",
            CqeSyndrome::REMOTE_INVAL_REQ_ERR => "check the peer's receive and rights",
            CqeSyndrome::REMOTE_ACCESS_ERR => "ask the peer for a key that is valid",
            CqeSyndrome::REMOTE_OP_ERR => "check the buffers of the peer's receives",
            CqeSyndrome::TRANSPORT_RETRY_EXC_ERR => "check the link and the peer, then reconnect",
            CqeSyndrome::RNR_RETRY_EXC_ERR => "post receives at the peer, or raise rnr_retry",
            _ => "see the device's log",
        }
    }

    /// Whether the work request was not carried out because the queue pair had failed before:
    /// look at its first failed completion for the cause.
    #[must_use]
    pub fn is_flush(&self) -> bool {
        self.syndrome == CqeSyndrome::WR_FLUSH_ERR
    }
}
