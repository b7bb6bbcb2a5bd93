//! Packet buffers out of a core's cache and back.

use std::hint::black_box;

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, Pool, PoolConfig, RegionConfig};

use super::Case;

/// As rte_mempool is measured: 8191 objects, cache 512, bulks of 32, one core.
pub(super) const GET_PUT_32: Case =
    Case { name: "pool_get_put_32", elements: 32, make: || get_put::<32>() };

/// One buffer at a time.
pub(super) const GET_PUT_1: Case =
    Case { name: "pool_get_put_1", elements: 1, make: || get_put::<1>() };

pub(super) fn pool(count: usize) -> Pool {
    let config = PoolConfig { count, cache_size: 512, ..PoolConfig::default() };
    let region = RegionConfig::heap(0);
    Pool::new(&PoolConfig { region, ..config }).expect("a pool on the heap")
}

fn get_put<const N: usize>() -> Box<dyn FnMut(u64)> {
    let pool = pool(8191);
    let mut cache = pool.cache();
    let mut bulk = ArrayVec::<Mbuf, N>::new();
    Box::new(move |iterations| {
        for _ in 0..iterations {
            assert!(cache.get_bulk(&mut bulk, N));
            black_box(&mut bulk);
            cache.put_bulk(&mut bulk);
        }
        assert_eq!(pool.stats().exhausted, 0);
    })
}
