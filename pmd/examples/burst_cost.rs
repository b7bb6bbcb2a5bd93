//! Driver code alone: bursts over fabricated rings, for counting instructions.
//!
//! ```text
//! cargo build --release -p ferrocx-pmd --example burst_cost
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*measured_rx*' \
//!     target/release/examples/burst_cost rx 1000
//! ```
//!
//! The count printed at the end, divided by bursts times 32, is instructions per packet. The work
//! is verified: every packet comes out with its length, every packet sent is in the ring.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_pmd::bench_support::{NullBus, NullRx, NullTx};

const BURST: usize = 32;

#[inline(never)]
fn measured_rx(rx: &mut NullRx, out: &mut ArrayVec<Mbuf, BURST>) -> usize {
    rx.queue.rx_burst(out)
}

#[inline(never)]
fn measured_tx(tx: &mut NullTx, packets: &mut ArrayVec<Mbuf, BURST>) -> usize {
    tx.queue.tx_burst(packets)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "rx".to_owned());
    let bursts: usize = args.next().map_or(Ok(1000), |count| count.parse())?;
    let pool = Pool::new(&PoolConfig {
        count: 4096,
        region: RegionConfig { page: PageSize::Auto, ..RegionConfig::default() },
        ..PoolConfig::default()
    })?;
    let bus = NullBus::new(PageSize::Auto)?;
    let mut packets = ArrayVec::<Mbuf, BURST>::new();
    match what.as_str() {
        "rx" => {
            let mut rx = bus.rx_queue(&pool, 512)?;
            for _ in 0..bursts {
                rx.complete(BURST as u32, 64);
                let count = measured_rx(&mut rx, &mut packets);
                assert!(count == BURST && packets.iter().all(|mbuf| mbuf.pkt_len() == 64));
                rx.queue.cache().put_bulk(&mut packets);
            }
        }
        "tx" => {
            let mut tx = bus.tx_queue(&pool, 512)?;
            for _ in 0..bursts {
                assert!(tx.queue.cache().get_bulk(&mut packets, BURST));
                for mbuf in &mut packets {
                    assert!(mbuf.reset_rx(128, 64));
                }
                let count = measured_tx(&mut tx, &mut packets);
                assert!(count == BURST && packets.is_empty());
                tx.complete();
            }
        }
        other => return Err(format!("{other:?} is not rx or tx").into()),
    }
    println!("{what}: {bursts} bursts of {BURST}");
    Ok(())
}
