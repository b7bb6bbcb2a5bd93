//! FMRs and pools of them: mapping, caching, flushing, and when a peer is really shut out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{MEMORY_BYTES, Two, pattern, small, syndromes};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::qp::ModifyQpToErr;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PAGE: usize = 4096;
const ATTR: FmrAttr = FmrAttr { max_pages: 12, log_page: 12, access: ALL };
const REMOTE_ACCESS: u8 = 0x13;

/// A peer `a` of the owner of FMRs, `b`, whose bytes are all known.
struct Scene {
    qa: Qp,
    qb: Qp,
    peer: Mr,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

impl Scene {
    fn new() -> Self {
        let two = Two::new();
        let (qa, qb) = two.rc(&small());
        let peer = two.a.mr();
        two.b.fill(0, &vec![0xb0; MEMORY_BYTES]);
        Self { qa, qb, peer, two }
    }

    /// The peer writes eight bytes `offset` behind the start; the syndrome of its completion.
    fn write(&mut self, key: FmrKey, offset: u64, byte: u8) -> u8 {
        self.two.a.fill(0, &[byte; 8]);
        let remote = RemoteAddr { addr: key.addr + offset, rkey: key.rkey };
        let wr = SendWr::signaled(1, SendOp::Write(remote));
        self.qa.post_send(&wr, Some(self.peer.buf(0..8).unwrap())).unwrap();
        let (done, _) = self.two.run(&mut self.qa, &mut self.qb);
        syndromes(&done)[0]
    }

    /// The peer is refused, by every operation, and no byte has changed.
    fn assert_shut_out(&mut self, case: &str, key: FmrKey) {
        let before = self.two.b.read(0, MEMORY_BYTES);
        let remote = RemoteAddr { addr: key.addr, rkey: key.rkey };
        for op in [SendOp::Write(remote), SendOp::Read(remote), SendOp::FetchAdd { remote, add: 1 }]
        {
            (self.qa, self.qb) = self.two.rc(&small());
            let buf = self.peer.buf(0..8).unwrap();
            self.qa.post_send(&SendWr::signaled(1, op), Some(buf)).unwrap();
            let (done, _) = self.two.run(&mut self.qa, &mut self.qb);
            assert_eq!(syndromes(&done), [REMOTE_ACCESS], "{case}, {op:?}");
        }
        assert!(self.two.b.read(0, MEMORY_BYTES) == before, "{case}");
        (self.qa, self.qb) = self.two.rc(&small());
    }

    fn pool(&self, config: &FmrPoolConfig) -> FmrPool {
        FmrPool::new(&self.two.b.context, &self.two.b.pd, config).unwrap()
    }

    fn queue(&self) -> FmrQueue {
        FmrQueue::new(&self.two.b.context, &self.two.b.pd, 4).unwrap()
    }

    /// Moves a queue pair of `b` to error behind its owner's back.
    fn break_qp(&self, qpn: Qpn) {
        let input = ModifyQpToErr::input().with_qpn(qpn.0);
        let device = self.two.b.context.device();
        // SAFETY: it names no memory, and takes nothing from a queue that still works.
        unsafe { device.execute_raw::<ModifyQpToErr>(&input, &[], &mut []) }.unwrap();
    }
}

fn strict(pool_size: u32) -> FmrPoolConfig {
    FmrPoolConfig { fmr: ATTR, pool_size, dirty_watermark: 1, ..FmrPoolConfig::default() }
}

fn lazy(pool_size: u32, dirty_watermark: u32) -> FmrPoolConfig {
    FmrPoolConfig { dirty_watermark, mode: FmrMode::Lazy, ..strict(pool_size) }
}

#[test]
fn pages_anywhere_are_one_region_and_unmapping_ends_it() {
    // Up to eight stand in the request, more in the list.
    for pages in [vec![3], vec![9, 2, 40], vec![7, 6, 5, 4, 3, 2, 1, 0, 20, 21, 33, 11]] {
        let mut scene = Scene::new();
        let mut queue = scene.queue();
        let mut fmr = queue.alloc(&ATTR).unwrap();
        assert_eq!(fmr.key(), None);
        let at: Vec<usize> = pages.iter().map(|page| page * PAGE).collect();
        let memory = Arc::clone(&scene.two.b.memory);
        let key = queue.map_phys(&mut fmr, &memory, &at, 0x70_0000).unwrap();
        assert_eq!((fmr.key(), key.addr), (Some(key), 0x70_0000));
        assert_eq!(key.len_bytes, (pages.len() * PAGE) as u64);
        for (index, at) in at.iter().enumerate() {
            let offset = (index * PAGE + 4088) as u64;
            assert_eq!(scene.write(key, offset, index as u8), 0);
            assert_eq!(scene.two.b.read(at + 4088, 8), [index as u8; 8]);
        }
        queue.unmap(&mut [&mut fmr]).unwrap();
        assert_eq!(fmr.key(), None);
        scene.assert_shut_out("unmapped", key);
        // Again, at once elsewhere: a mapped one is unmapped first, and keys change.
        let second = queue.map_phys(&mut fmr, &memory, &[0], 0).unwrap();
        let third = queue.map_phys(&mut fmr, &memory, &[PAGE], 0).unwrap();
        assert_ne!((second.rkey, third.rkey), (key.rkey, second.rkey));
        scene.assert_shut_out("mapped elsewhere", second);
        assert_eq!(scene.write(third, 0, 1), 0);
        queue.dealloc(fmr).unwrap();
        scene.assert_shut_out("deallocated", third);
    }
}

#[test]
fn one_byte_behind_the_last_page() {
    let mut scene = Scene::new();
    let mut queue = scene.queue();
    let mut fmr = queue.alloc(&ATTR).unwrap();
    let memory = Arc::clone(&scene.two.b.memory);
    let key = queue.map_phys(&mut fmr, &memory, &[PAGE, 3 * PAGE], 0).unwrap();
    assert_eq!(scene.write(key, 2 * 4096 - 8, 1), 0);
    assert_eq!(scene.write(key, 2 * 4096 - 7, 2), REMOTE_ACCESS);
    assert_eq!(scene.two.b.read(4 * PAGE, 8), [0xb0; 8]);
}

#[test]
fn many_are_unmapped_at_once_and_batches_may_be_longer_than_the_queue() {
    let scene = Scene::new();
    let mut queue = scene.queue();
    let memory = Arc::clone(&scene.two.b.memory);
    let mut fmrs: Vec<Fmr> = (0..11).map(|_| queue.alloc(&ATTR).unwrap()).collect();
    for (at, fmr) in fmrs.iter_mut().enumerate().skip(1) {
        queue.map_phys(fmr, &memory, &[at * PAGE], 0).unwrap();
    }
    queue.unmap(&mut fmrs.iter_mut().collect::<Vec<_>>()).unwrap();
    assert!(fmrs.iter().all(|fmr| fmr.key().is_none()));
    scene.two.world.assert_clean();
}

#[test]
fn pages_that_cannot_be_mapped_are_refused() {
    let scene = Scene::new();
    let mut queue = scene.queue();
    let memory = Arc::clone(&scene.two.b.memory);
    let mut fmr = queue.alloc(&ATTR).unwrap();
    for (pages, iova, what) in [
        (vec![], 0, "empty"),
        (vec![PAGE + 8], 0, "page borders"),
        (vec![0, PAGE + 8], 0, "page borders"),
        (vec![MEMORY_BYTES], 0, "outside"),
        (vec![0; 13], 0, "enough"),
        (vec![0], 8, "page"),
        (vec![usize::MAX - 4095], 0, "outside"),
    ] {
        let error = queue.map_phys(&mut fmr, &memory, &pages, iova).unwrap_err();
        assert!(error.to_string().contains(what), "{error}, not {what}");
        assert_eq!(fmr.key(), None);
    }
    queue.map_phys(&mut fmr, &memory, &[0], 0).unwrap();
    let bad = FmrAttr { access: Access::REMOTE_WRITE, ..ATTR };
    assert!(matches!(queue.alloc(&bad), Err(VerbsError::RemoteWithoutLocalWrite)));
    drop((fmr, queue));
    scene.two.world.assert_clean();
}

#[test]
fn strict_unmapping_shuts_the_peer_out_before_it_returns() {
    for cache in [true, false] {
        let mut scene = Scene::new();
        let mut pool = scene.pool(&FmrPoolConfig { cache, ..strict(4) });
        let memory = Arc::clone(&scene.two.b.memory);
        let mapped = pool.map_phys(&memory, &[PAGE, 0], 0x1000).unwrap();
        let key = mapped.key();
        assert_eq!(scene.write(key, 0, 7), 0);
        pool.unmap(mapped).unwrap();
        assert_eq!((pool.stats().used, pool.stats().dirty), (0, 0));
        scene.assert_shut_out("strict", key);
    }
}

#[test]
fn lazy_unmapping_leaves_the_peer_in_until_the_flush() {
    let mut scene = Scene::new();
    let mut pool = scene.pool(&lazy(4, 4));
    let memory = Arc::clone(&scene.two.b.memory);
    let mapped = pool.map_phys(&memory, &[PAGE], 0).unwrap();
    let key = mapped.key();
    pool.unmap(mapped).unwrap();
    assert_eq!(scene.write(key, 0, 9), 0, "as documented: the peer still reaches it");
    assert_eq!(scene.two.b.read(PAGE, 8), [9; 8]);
    assert_eq!(pool.flush().unwrap().ended, 1);
    scene.assert_shut_out("flushed", key);
    // The same through the watermark, reuse, and the end of the pool.
    let keys: Vec<FmrKey> = (0..4)
        .map(|at| {
            let mapped = pool.map_phys(&memory, &[at * PAGE], 0).unwrap();
            let key = mapped.key();
            pool.unmap(mapped).unwrap();
            key
        })
        .collect();
    assert_eq!((pool.stats().dirty, pool.stats().flushes), (0, 2), "the fourth made a flush");
    keys.into_iter().for_each(|key| scene.assert_shut_out("watermark", key));
    let mapped = pool.map_phys(&memory, &[0], 0).unwrap();
    let key = mapped.key();
    pool.unmap(mapped).unwrap();
    drop(pool);
    scene.assert_shut_out("pool dropped", key);
}

#[test]
fn the_same_pages_share_an_fmr_until_the_last_user() {
    let mut scene = Scene::new();
    let mut pool = scene.pool(&strict(2));
    let memory = Arc::clone(&scene.two.b.memory);
    let first = pool.map_phys(&memory, &[0, PAGE], 0).unwrap();
    let second = pool.map_phys(&memory, &[0, PAGE], 0).unwrap();
    assert_eq!(first.key(), second.key());
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.used), (1, 1, 1));
    // Other pages, another order, another address, another memory: another FMR.
    let other = pool.map_phys(&memory, &[PAGE, 0], 0).unwrap();
    assert_ne!(other.key().rkey, first.key().rkey);
    assert!(matches!(pool.map_phys(&memory, &[0, PAGE], 0x1000), Err(FmrError::PoolEmpty(2))));
    let mine = first.key();
    pool.unmap(first).unwrap();
    assert_eq!(scene.write(mine, 0, 1), 0, "the second user still has it");
    pool.unmap(second).unwrap();
    scene.assert_shut_out("the last user is gone", mine);
    pool.unmap(other).unwrap();
}

#[test]
fn a_lazy_pool_finds_what_waits_for_its_flush_and_reuses_the_oldest() {
    let scene = Scene::new();
    let mut pool = scene.pool(&lazy(3, 3));
    let flushed = Arc::new(AtomicU32::new(0));
    let told = Arc::clone(&flushed);
    pool.on_flush(move |report| {
        told.fetch_add(report.ended, Ordering::Relaxed);
    });
    let memory = Arc::clone(&scene.two.b.memory);
    let pages = |at: usize| [at * PAGE];
    for round in 0..50 {
        let mapped = pool.map_phys(&memory, &pages(5), 0).unwrap();
        pool.unmap(mapped).unwrap();
        assert_eq!((pool.stats().hits, pool.stats().misses), (round, 1));
    }
    let held = pool.map_phys(&memory, &pages(6), 0).unwrap();
    let also = pool.map_phys(&memory, &pages(7), 0).unwrap();
    // All three are taken, one of them is dirty: it is ended and mapped anew.
    let third = pool.map_phys(&memory, &pages(8), 0).unwrap();
    assert_eq!(flushed.load(Ordering::Relaxed), 0, "that is no flush");
    for fmr in [held, also, third] {
        pool.unmap(fmr).unwrap();
    }
    assert_eq!((flushed.load(Ordering::Relaxed), pool.stats().flushes), (3, 1));
    scene.two.world.assert_clean();
}

#[test]
fn a_handle_goes_back_to_its_own_pool_only() {
    let scene = Scene::new();
    let memory = Arc::clone(&scene.two.b.memory);
    let (mut one, mut other) = (scene.pool(&strict(1)), scene.pool(&strict(1)));
    let mapped = one.map_phys(&memory, &[0], 0).unwrap();
    assert!(matches!(other.unmap(mapped), Err(FmrError::OtherPool)));
    assert_eq!(one.stats().used, 1);
}

#[test]
fn a_queue_pair_that_failed_is_set_up_anew_and_no_key_survives() {
    let mut scene = Scene::new();
    let memory = Arc::clone(&scene.two.b.memory);
    let mut pool = scene.pool(&strict(2));
    let mapped = pool.map_phys(&memory, &[0], 0).unwrap();
    let key = mapped.key();
    scene.break_qp(pool.qpn());
    let failed = pool.map_phys(&memory, &[PAGE], 0).unwrap_err();
    assert!(matches!(failed, FmrError::Failed(failure) if failure.is_flush()), "{failed}");
    assert_eq!(scene.write(key, 0, 1), 0, "what was mapped before is not touched");
    scene.break_qp(pool.qpn());
    pool.unmap(mapped).unwrap();
    scene.assert_shut_out("unmapped on a broken queue pair", key);
    let again = pool.map_phys(&memory, &[PAGE], 0).unwrap();
    assert_eq!(scene.write(again.key(), 0, 2), 0);
    pool.unmap(again).unwrap();
}

/// Random mapping and unmapping against a table of what must be reachable.
#[test]
fn any_order_of_calls_keeps_keys_and_memory_together() {
    for (seed, config) in [(1u64, strict(6)), (2, lazy(6, 3)), (3, lazy(6, 6))] {
        let mut scene = Scene::new();
        let memory = Arc::clone(&scene.two.b.memory);
        let mut pool = scene.pool(&config);
        let rng = Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let random = |below: u64| {
            let mut state = rng.lock().unwrap();
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            *state % below
        };
        let mut held: Vec<(PoolFmr, usize)> = Vec::new();
        for step in 0..400u64 {
            let page = random(10) as usize;
            if random(2) == 0 || held.is_empty() {
                match pool.map_phys(&memory, &[page * PAGE, (page + 20) * PAGE], 0) {
                    Ok(fmr) => held.push((fmr, page)),
                    Err(FmrError::PoolEmpty(_)) => assert_eq!(pool.stats().used, 6),
                    Err(error) => panic!("{error}"),
                }
            } else {
                let (fmr, _) = held.swap_remove(random(held.len() as u64) as usize);
                pool.unmap(fmr).unwrap();
            }
            let mut pages: Vec<usize> = held.iter().map(|(_, page)| *page).collect();
            pages.sort_unstable();
            pages.dedup();
            assert_eq!(pool.stats().used as usize, pages.len(), "step {step}");
            if let Some((fmr, page)) = held.last() {
                let bytes = pattern(8, step as u8);
                assert_eq!(scene.write(fmr.key(), 4096, bytes[0]), 0);
                assert_eq!(scene.two.b.read((page + 20) * PAGE, 8), [bytes[0]; 8]);
            }
        }
        scene.two.world.assert_clean();
    }
}
