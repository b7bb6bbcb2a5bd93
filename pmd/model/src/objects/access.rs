//! An access to memory through a key, and why it is refused.
//!
//! Source: reference 5.1.

use ferrocx_prm::mkey::{ANY_QPN, Mkc};

bitflags::bitflags! {
    /// What an access does, or a key permits. In the order of the bits of the mkey context's first
    /// word, from bit 10.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// The device reads for this host.
        const LOCAL_READ = 1;
        /// The device writes for this host.
        const LOCAL_WRITE = 2;
        /// A peer reads.
        const REMOTE_READ = 4;
        /// A peer writes.
        const REMOTE_WRITE = 8;
        /// A peer's atomic operation.
        const REMOTE_ATOMIC = 16;
    }
}

impl Rights {
    /// Rights that a context permits.
    #[must_use]
    pub fn of(context: &Mkc) -> Self {
        let bit = |set: bool, right: Self| if set { right } else { Self::empty() };
        bit(context.lr(), Self::LOCAL_READ)
            | bit(context.lw(), Self::LOCAL_WRITE)
            | bit(context.rr(), Self::REMOTE_READ)
            | bit(context.rw(), Self::REMOTE_WRITE)
            | bit(context.a(), Self::REMOTE_ATOMIC)
    }
}

impl Rights {
    /// What the host itself must be allowed for a peer to have these.
    pub(super) fn local(self) -> Self {
        let reads = Self::LOCAL_READ | Self::REMOTE_READ | Self::REMOTE_ATOMIC;
        let writes = Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        let bit = |of: Self, right: Self| if self.intersects(of) { right } else { Self::empty() };
        bit(reads, Self::LOCAL_READ) | bit(writes, Self::LOCAL_WRITE)
    }
}

/// One access to memory, as a descriptor describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAccess {
    /// Key: index in the upper 24 bits, variant in the lower 8.
    pub key: u32,
    /// Address in the space of the key.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Rights that the access needs.
    pub rights: Rights,
    /// Protection domain of the queue.
    pub pd: u32,
    /// The queue may use the reserved L_Key.
    pub rlky: bool,
    /// The queue pair, or [`ANY_QPN`] for an SQ or RQ.
    pub qpn: u32,
}

impl MemAccess {
    /// An access of an SQ or RQ, which is never tied to a queue pair.
    #[inline]
    #[must_use]
    pub fn local(key: u32, addr: u64, len: u32, rights: Rights, pd: u32, rlky: bool) -> Self {
        Self { key, addr, len, rights, pd, rlky, qpn: ANY_QPN }
    }
}

/// Reason for which a memory key refused an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MkeyFault {
    /// No key has this index.
    UnknownKey,
    /// The variant byte is another one: the key was changed since.
    Variant,
    /// The key is free: not bound to memory, or invalidated.
    Free,
    /// The key belongs to another protection domain.
    Pd,
    /// The key is tied to another queue pair.
    Qpn,
    /// The key does not permit this.
    Rights,
    /// The range is not inside the region.
    Bounds,
    /// The reserved L_Key from a queue without `rlky`, or for a remote access.
    Reserved,
    /// Indirect keys are nested too deep, or an entry is missing.
    Indirection,
    /// The access needs more than [`super::mkey::MAX_STEPS`] entries.
    Steps,
}
