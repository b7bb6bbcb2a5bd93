//! What it costs to hand buffers from one core to another, through a ring and through a pool.
//!
//! Both threads poll without pausing, each pinned to a core of its own where there are two; with
//! one core the figures mean little. The time of a cache line's way between cores decides them, and
//! it varies with where the host puts the cores.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferrocx_mempool::{Mbuf, Pool, PoolConfig, RegionConfig};
use rtrb::{Consumer, Producer, RingBuffer};

const BURST: usize = 32;

/// Pins the calling thread to the `n`th core that the process may use, if there is one.
fn pin(n: usize) {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.get(n).copied()) {
        core_affinity::set_for_current(core);
    }
}

/// Hands over `bursts` chunks of 32 words; the time is that of the receiving side.
fn words(bursts: u64) -> Duration {
    let (mut producer, mut consumer): (Producer<u64>, Consumer<u64>) = RingBuffer::new(1024);
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(0);
            for burst in 0..bursts {
                let first = burst * BURST as u64;
                loop {
                    if let Ok(chunk) = producer.write_chunk_uninit(BURST) {
                        chunk.fill_from_iter(first..first + BURST as u64);
                        break;
                    }
                }
            }
        });
        pin(1);
        let start = Instant::now();
        let mut next = 0;
        while next < bursts * BURST as u64 {
            let Ok(chunk) = consumer.read_chunk(BURST) else { continue };
            for word in chunk {
                assert_eq!(word, next);
                next += 1;
            }
        }
        start.elapsed()
    })
}

/// One core takes buffers from its cache and hands them over, the other frees them into its own:
/// all come back through the pool's shared list.
fn buffers(bursts: u64) -> Duration {
    let region = RegionConfig::heap(0);
    let pool = Pool::new(&PoolConfig { count: 8191, region, ..PoolConfig::default() })
        .expect("a pool on the heap");
    let (mut producer, mut consumer): (Producer<Mbuf>, Consumer<Mbuf>) = RingBuffer::new(1024);
    let done = AtomicBool::new(false);
    let elapsed = thread::scope(|scope| {
        scope.spawn(|| {
            pin(0);
            let mut cache = pool.cache();
            let mut burst = ArrayVec::<Mbuf, BURST>::new();
            while !done.load(Ordering::Relaxed) {
                if burst.is_empty() && !cache.get_bulk(&mut burst, BURST) {
                    continue;
                }
                if let Ok(chunk) = producer.write_chunk_uninit(BURST) {
                    chunk.fill_from_iter(burst.drain(..));
                }
            }
        });
        pin(1);
        let mut cache = pool.cache();
        let mut burst = ArrayVec::<Mbuf, BURST>::new();
        let start = Instant::now();
        let mut freed = 0;
        while freed < bursts {
            let Ok(chunk) = consumer.read_chunk(BURST) else { continue };
            burst.extend(chunk);
            cache.put_bulk(black_box(&mut burst));
            freed += 1;
        }
        let elapsed = start.elapsed();
        done.store(true, Ordering::Relaxed);
        elapsed
    });
    drop(consumer);
    assert_eq!(pool.stats().in_use, 0, "every buffer came home");
    elapsed
}

fn cross_core(c: &mut Criterion) {
    let mut group = c.benchmark_group("sw/cross_core");
    group.throughput(Throughput::Elements(BURST as u64));
    group.bench_function("spsc_chunks_of_32", |b| b.iter_custom(words));
    group.bench_function("pool_get_here_put_there", |b| b.iter_custom(buffers));
    group.finish();
}

criterion_group!(benches, cross_core);
criterion_main!(benches);
