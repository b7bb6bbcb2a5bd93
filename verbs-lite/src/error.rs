//! What can go wrong: on the control path, when posting, and in completions.

use ferrocx_bus::BusError;
use ferrocx_mempool::{AccessError, MempoolError};
use ferrocx_pmd::{CommandError, DeviceError};
use ferrocx_prm::syndrome::CqeSyndrome;
use thiserror::Error;

use crate::gid::Gid;

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
        /// What it lacks.
        what: &'static str,
        /// What to do instead.
        way_out: &'static str,
    },
    /// A value is out of range.
    #[error("{what} is {value}, possible are {min} to {max}")]
    OutOfRange {
        /// Which value.
        what: &'static str,
        /// What was asked for.
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
        /// Which object.
        what: &'static str,
    },
    /// A completion queue cannot hold the completions of another queue pair.
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
         add one with Device::add_gid"
    )]
    NoRoute {
        /// The peer.
        remote: Gid,
    },
    /// The GID table is full.
    #[error("all {size} entries of the GID table are in use; remove one")]
    GidTableFull {
        /// Its entries.
        size: u32,
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
        /// How many.
        windows: u32,
    },
    /// The queue pair is not in the state that a transition starts from.
    #[error("the queue pair is in state {is:?}, the transition starts from {needs:?}")]
    WrongState {
        /// Its state.
        is: crate::QpState,
        /// The state that is needed.
        needs: crate::QpState,
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

/// Why a work request was not posted. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PostError {
    /// No room: poll the completion queue and try again.
    #[error("the queue is full")]
    Full,
    /// The queue pair is not in a state that takes this work: sends need RTS, receives INIT.
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
    /// An atomic whose local buffer is not one of eight bytes.
    #[error("the result of an atomic needs one buffer of eight bytes")]
    AtomicBuffer,
    /// A page list that does not describe the region that was asked for.
    #[error("the page list is empty, too long, of another layout, or starts elsewhere in a page")]
    PageList,
    /// A page list of peer memory, for a key that does not end with that memory.
    #[error("the key is not attached to this peer memory, see FastRegMr::attach, or it was ended")]
    Peer,
    /// A memory region was made in another protection domain.
    #[error("the memory region is of another protection domain than the queue pair")]
    Pd,
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
    /// What would have gone to the device.
    pub held: T,
    /// Why it did not.
    pub cause: PostError,
}

/// Why a work request failed, as the device's completion says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{syndrome} (vendor syndrome {vendor:#04x})")]
pub struct Failure {
    /// What went wrong, see [`CqeSyndrome::meaning`].
    pub syndrome: CqeSyndrome,
    /// The firmware's own code.
    pub vendor: u8,
}

impl Failure {
    /// Whether the work request was not carried out because the queue pair had failed before:
    /// look at its first failed completion for the cause.
    #[must_use]
    pub fn is_flush(&self) -> bool {
        self.syndrome == CqeSyndrome::WR_FLUSH_ERR
    }
}
