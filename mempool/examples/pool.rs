//! A pool of packet buffers from region to packet, and what a get and a put cost.
//!
//! `cargo run --release -p ferrocx-mempool --example pool` runs on any Linux machine; without free
//! hugepages it says so and goes on with small pages. With `--cost N` it prints only the cost, of
//! `N` rounds, which is what to run under callgrind.

use std::{env, error::Error, hint::black_box, time::Instant};

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, Pool, PoolCache, PoolConfig, PoolKeys, RxMeta, unique_domain};

const BULK: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let config = PoolConfig { name: "example".to_owned(), count: 4095, ..PoolConfig::default() };
    let pool = Pool::new(&config)?;
    let mut args = env::args().skip(1);
    if args.next().as_deref() == Some("--cost") {
        let rounds = args.next().ok_or("--cost needs a number of rounds")?.parse()?;
        return cost(&mut pool.cache(), rounds);
    }

    let region = pool.region();
    println!(
        "region: {} bytes in pages of {} ({:?})",
        region.len_bytes(),
        region.page_size_bytes(),
        region.backing()
    );
    for warning in region.warnings() {
        println!("warning: {warning}");
    }

    // A driver does this once the region is mapped for its device.
    let keys = PoolKeys { region_iova: 0x10_0000_0000, lkey: 0x0000_0700, domain: unique_domain() };
    // SAFETY: no device takes an address or key from these buffers.
    unsafe { pool.stamp(keys) }?;
    packet(&mut pool.cache())?;
    println!("{:?}", pool.stats());
    cost(&mut pool.cache(), 1_000_000)
}

/// Builds a packet, posts it as a driver would, and gets it back.
fn packet(cache: &mut PoolCache) -> Result<(), Box<dyn Error>> {
    let mut mbuf = cache.get().ok_or("the pool is empty")?;
    if !mbuf.extend_from_slice(b"payload") {
        return Err("the payload does not fit".into());
    }
    mbuf.prepend(3).ok_or("no headroom")?.copy_from_slice(b"hdr");
    println!(
        "packet: {:?}, lkey {:#06x}, device address {:#x}",
        String::from_utf8_lossy(mbuf.data()),
        mbuf.lkey(),
        mbuf.data_iova()
    );
    let copy = mbuf.clone_ref(cache).ok_or("the pool is empty")?;
    println!("with a clone: {} holders, writable: {}", mbuf.ref_count(), mbuf.is_writable());
    cache.put(copy);
    cache.put(mbuf);
    Ok(())
}

/// Takes and gives back 32 buffers at a time.
fn cost(cache: &mut PoolCache, rounds: u32) -> Result<(), Box<dyn Error>> {
    for (name, one_round) in
        [("get, init_rx, put", receive as fn(&mut PoolCache) -> bool), ("get, put", get_and_put)]
    {
        let start = Instant::now();
        for _ in 0..rounds {
            if !one_round(cache) {
                return Err("the pool is empty".into());
            }
        }
        let ns = start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds) / BULK as f64;
        println!("{name} in bulks of {BULK}: {ns:.2} ns per buffer");
    }
    Ok(())
}

/// What a receive queue and an application do that drops the packets.
#[inline(never)]
fn receive(cache: &mut PoolCache) -> bool {
    let mut mbufs = ArrayVec::<Mbuf, BULK>::new();
    let got = cache.get_raw_bulk(&mut mbufs, BULK);
    let fit = mbufs.iter_mut().all(|mbuf| mbuf.init_rx(128, 64, RxMeta::default()));
    cache.put_bulk(&mut mbufs);
    got && fit
}

#[inline(never)]
fn get_and_put(cache: &mut PoolCache) -> bool {
    let mut mbufs = ArrayVec::<Mbuf, BULK>::new();
    let got = cache.get_bulk(&mut mbufs, BULK);
    cache.put_bulk(black_box(&mut mbufs));
    got
}
