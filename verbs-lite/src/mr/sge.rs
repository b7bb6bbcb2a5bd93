//! [`Sge`]: an entry of a scatter or gather list; [`Reach`]: whose keys a queue accepts, and where
//! its device has memory of others.

use std::sync::Arc;

use ferrocx_core::RegionKeys;
use ferrocx_mempool::Piece;

use crate::context::ContextCore;

/// A scatter or gather entry, as a work request holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte in the space of the key.
    pub addr: u64,
    /// Virtual address of the first byte, by which a device finds memory whose key is another
    /// device's; 0 where it is not to look.
    pub address: usize,
    /// Bytes. An entry of none is left out.
    pub len: u32,
    /// Local key as it stands in a work request: its four bytes in memory are big-endian.
    pub lkey_be: u32,
    /// Who may use the key: a protection domain ([`Pd::domain`](crate::Pd::domain)), or a whole
    /// device by its reserved L_Key
    /// ([`PoolKeys::domain`](ferrocx_mempool::PoolKeys::domain)). Only queue pairs of these take
    /// the entry as it is: to another device the key might by chance name other memory.
    pub domain: u32,
}

impl From<Piece> for Sge {
    #[inline(always)]
    fn from(piece: Piece) -> Self {
        let Piece { address, len_bytes, iova, lkey_be, domain, .. } = piece;
        // Pieces of registered memory are below 2 GiB.
        Self { addr: iova, address, len: len_bytes as u32, lkey_be, domain }
    }
}

/// Which entries the device takes from a queue as they are, and what it takes in place of others.
///
/// It holds the mappings of memory whose buffers carry another device's keys, so that nobody ends
/// those while the queue may name them.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    /// The protection domain of the queue.
    pd: u32,
    /// The device, by its reserved L_Key.
    device: u32,
    /// Regions of pools that another device stamped.
    elsewhere: Arc<[RegionKeys]>,
}

impl Reach {
    /// Of a queue in the protection domain `pd`, for pools that are registered now.
    pub(crate) fn new(core: &ContextCore, pd: u32) -> Self {
        let device = core.device();
        let elsewhere = device.region_keys_elsewhere().into();
        Self { pd, device: device.key_domains().device, elsewhere }
    }

    /// The protection domain of the queue.
    #[inline(always)]
    pub(crate) fn pd(&self) -> u32 {
        self.pd
    }

    /// The number of the whole device, see [`Sge::domain`].
    #[inline(always)]
    pub(crate) fn device(&self) -> u32 {
        self.device
    }

    /// Whether the queue's device takes the entry as it is.
    #[inline(always)]
    pub(crate) fn takes(&self, sge: &Sge) -> bool {
        sge.domain == self.pd || sge.domain == self.device
    }

    /// The entry as the queue's device takes it; `None` if it has no key for the memory there.
    #[inline(always)]
    pub(crate) fn entry(&self, sge: Sge) -> Option<Sge> {
        if self.takes(&sge) { Some(sge) } else { self.translate(sge) }
    }

    #[inline(never)]
    fn translate(&self, sge: Sge) -> Option<Sge> {
        let last = sge.address.checked_add((sge.len as usize).checked_sub(1)?)?;
        let covers = |keys: &&RegionKeys| {
            keys.addresses.contains(&sge.address) && keys.addresses.contains(&last)
        };
        let keys = self.elsewhere.iter().find(covers)?;
        let addr = (sge.address as u64).wrapping_add(keys.va_to_iova);
        let there = Sge { addr, lkey_be: keys.lkey_be, domain: keys.domain, ..sge };
        self.takes(&there).then_some(there)
    }

    /// Keeps the mappings for ever: the device may still use them.
    pub(crate) fn leak(&self) {
        std::mem::forget(self.clone());
    }
}
