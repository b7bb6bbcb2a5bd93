//! How a device addresses the memory of a pool: [`PoolKeys`], and the numbers that say whose keys
//! they are.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// `lkey` of a buffer that was never stamped: the key that ends a scatter list, valid for nothing.
/// Source: mlx5 `MLX5_INVALID_LKEY`.
pub(crate) const INVALID_LKEY: u32 = 0x100;

/// How a device addresses the buffers of a pool.
///
/// `region_iova` is an address in the I/O address space of the device that registered the region,
/// as its bus maps it: behind an IOMMU, another device's address of the same byte is another one
/// unless both share a space. [`Piece`](crate::Piece) says how to use such a buffer elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolKeys {
    /// Address of the first byte of the pool's *region* on the device's side.
    pub region_iova: u64,
    /// The local key that covers the region, host order.
    pub lkey: u32,
    /// Who may use the key, as a number of [`unique_domain`]: a whole device, where the key is the
    /// reserved L_Key that every protection domain of it accepts, or one protection domain. 0 where
    /// nobody may take the key out of a buffer without knowing from elsewhere that it is right.
    pub domain: u32,
}

/// A number for [`PoolKeys::domain`] that no other call of this process gets, and never 0.
///
/// # Panics
/// After 2^32 - 1 calls.
#[must_use]
pub fn unique_domain() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let next = |domain: u32| (domain != 0).then(|| domain.wrapping_add(1));
    NEXT.fetch_update(Relaxed, Relaxed, next).expect("2^32 - 1 domains in one process")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn domains_are_never_zero_and_never_the_same() {
        let mut domains: Vec<u32> = (0..100).map(|_| unique_domain()).collect();
        assert!(domains.iter().all(|domain| *domain != 0));
        domains.dedup();
        assert_eq!(domains.len(), 100);
    }
}
