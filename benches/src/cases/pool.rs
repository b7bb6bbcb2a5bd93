//! Packet buffers out of a core's cache and back.

use std::hint::black_box;

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, Pool, PoolCache, PoolConfig, RegionConfig};

use super::{Case, Work};

/// Bulks in one run.
const BULKS: u64 = 64;
const BULK: usize = 32;
const COUNT: usize = 8191;
const CACHE: usize = 512;

/// As DPDK's `rte_pktmbuf_alloc_bulk` and `rte_pktmbuf_free_bulk` are measured: 8191 buffers, cache
/// 512, bulks of 32, one core. Buffers come out as new, and each is checked for being plain when it
/// comes back.
pub(super) const MBUF_GET_PUT_32: Case = Case {
    name: "mbuf_get_put_32",
    elements: BULKS * BULK as u64,
    make: || {
        let pool = mbufs(COUNT);
        Box::new(Mbufs { cache: pool.cache(), pool, bulk: ArrayVec::new() })
    },
};

/// A pool of packet buffers on the heap.
pub(super) fn mbufs(count: usize) -> Pool {
    let region = RegionConfig::heap(0);
    Pool::new(&PoolConfig { count, cache_size: CACHE, region, ..PoolConfig::default() })
        .expect("a pool on the heap")
}

struct Mbufs {
    cache: PoolCache,
    pool: Pool,
    bulk: ArrayVec<Mbuf, BULK>,
}

impl Work for Mbufs {
    fn run(&mut self) {
        for _ in 0..BULKS {
            assert!(self.cache.get_bulk(&mut self.bulk, BULK));
            black_box(&mut self.bulk);
            self.cache.put_bulk(&mut self.bulk);
        }
    }

    fn verify(&mut self) {
        let stats = self.pool.stats();
        assert_eq!((stats.in_use, stats.exhausted), (0, 0));
    }
}
