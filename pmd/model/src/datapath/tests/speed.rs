//! Where the model's time goes: not a check, a measurement. Run it with
//! `cargo test --release -p ferrocx-model --lib speed -- --ignored --nocapture`.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::datapath::harness::{KEY, Port, data, send};
use crate::wire::{Generator, GeneratorConfig, Pace};

/// Enough for a steady figure; `SPEED_PACKETS` sets another number, for callgrind, and
/// `SPEED_BYTES` one frame length.
fn packets() -> u64 {
    std::env::var("SPEED_PACKETS").ok().and_then(|text| text.parse().ok()).unwrap_or(2_000_000)
}

const SLOTS: usize = 512;
const SLOT_BYTES: usize = 2048;

/// Forwards generated frames with the simplest driver there can be; prints the model's share.
#[test]
#[ignore = "a measurement; needs a release build"]
fn forwarding() {
    let size = std::env::var("SPEED_BYTES").ok().and_then(|text| text.parse().ok());
    for size in size.map_or(vec![60, 1514], |size| vec![size]) {
        run(size);
    }
}

/// Time that this thread has had a core: other load does not count. Not under valgrind, which
/// has no such clock.
fn cpu_time() -> Duration {
    if std::env::var_os("SPEED_PACKETS").is_some() {
        return Duration::ZERO;
    }
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn run(size: usize) {
    let mut port = Port::new(3);
    port.plug(Generator::new(GeneratorConfig {
        sizes: vec![size],
        pace: Pace::Window(256),
        ..GeneratorConfig::default()
    }));
    let (mut rx_cq, mut tx_cq) = (port.cq(9), port.cq(9));
    let mut rq = port.rq(rx_cq.cqn, 9, 4);
    let mut sq = port.sq(tx_cq.cqn, 9);
    port.steer_all_to(rq.rqn);
    let pool = port.alloc(SLOTS * SLOT_BYTES);
    let slot = |index: u16| pool.iova() + (usize::from(index) % SLOTS * SLOT_BYTES) as u64;
    for index in 0..SLOTS as u16 {
        rq.post(&data(SLOT_BYTES as u32, KEY, slot(index)));
    }
    let packets = packets();
    let (mut forwarded, mut in_model) = (0_u64, Duration::ZERO);
    let (mut free, mut polls) = (SLOTS as u32, 0_u64);
    let start = cpu_time();
    while forwarded < packets {
        let step = cpu_time();
        port.poll();
        in_model += cpu_time() - step;
        polls += 1;
        while let Some(cqe) = tx_cq.poll() {
            // One completion for 32 packets: their buffers go back to the receive queue.
            let _ = cqe;
            for _ in 0..32 {
                let posted = rq.posted;
                rq.post(&data(SLOT_BYTES as u32, KEY, slot(posted)));
                free += 1;
            }
        }
        let mut burst = 0;
        while burst < 64
            && let Some(cqe) = rx_cq.poll()
        {
            let len = u32::from_be_bytes([cqe[0x2c], cqe[0x2d], cqe[0x2e], cqe[0x2f]]);
            let index = u16::from_be_bytes([cqe[0x3c], cqe[0x3d]]);
            let ce = if forwarded % 32 == 31 { 2 } else { 0 };
            sq.write(&send(ce, 0, &[(len, KEY, slot(index))]));
            forwarded += 1;
            burst += 1;
            free -= 1;
        }
        if burst > 0 {
            sq.record();
            port.ring(&sq);
        }
    }
    let wall = cpu_time() - start;
    let per_packet = |time: Duration| time.as_nanos() as f64 / forwarded as f64;
    println!(
        "{size} bytes: model {:.1} ns/packet ({:.2} Mpps), with test driver {:.1} ns; \
         {:.1} packets/step, {free} buffers free",
        per_packet(in_model),
        1e3 / per_packet(in_model),
        per_packet(wall),
        forwarded as f64 / polls as f64,
    );
}
