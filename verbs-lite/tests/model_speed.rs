//! What messages cost the two models, in one thread and by its own time on a core, so that other
//! load on the machine does not count: a measurement, not a check.
//! `cargo test --release -p ferrocx-verbs-lite --test model_speed -- --ignored --nocapture`

mod common;

use common::{Side, Two, models, path, rts};
use ferrocx_core::DeviceConfig;
use ferrocx_mempool::RegionConfig;
use ferrocx_model::wire::link;
use ferrocx_verbs_lite::*;

/// `SPEED_MESSAGES` sets another number, for callgrind.
fn messages(default: u64) -> u64 {
    std::env::var("SPEED_MESSAGES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Nanoseconds for which this thread has had a core.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

fn two() -> Two {
    let (a, b) = link(4 << 20);
    let settings = DeviceConfig { mtu: 4200, ..DeviceConfig::default() };
    Two::opened(models(a, b), &settings, |transport| transport)
}

fn connected(two: &Two, depth: u32) -> (Qp, Qp) {
    let config = QpConfig { max_send_wr: depth, max_recv_wr: 2 * depth, ..QpConfig::default() };
    let (mut qa, mut qb) = (two.a.qp(&config), two.b.qp(&config));
    let numbers = [qa.qpn(), qb.qpn()];
    let ends = [(&mut qa, &two.a, &two.b, numbers[1]), (&mut qb, &two.b, &two.a, numbers[0])];
    for (qp, own, peer, number) in ends {
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
        qp.connect(&RtrAttr::new(path(own, peer), number, Psn(0), Mtu::B4096)).unwrap();
        qp.activate(&rts(0)).unwrap();
    }
    (qa, qb)
}

fn registered(side: &Side, len_bytes: usize) -> Mr {
    let region = RegionConfig { len_bytes, ..RegionConfig::default() };
    let memory = Memory::alloc(&side.context, &region).unwrap();
    side.pd.reg_mr(&memory, 0..len_bytes, Access::LOCAL_WRITE | Access::REMOTE).unwrap()
}

#[test]
#[ignore = "a measurement; needs a release build"]
fn sends() {
    const DEPTH: u64 = 128;
    let mut two = two();
    let (mut qa, mut qb) = connected(&two, DEPTH as u32);
    let len = 64 * 2 * DEPTH as usize;
    let (ma, mb) = (registered(&two.a, len), registered(&two.b, len));
    for place in 0..2 * DEPTH {
        let at = place as usize * 64;
        qb.post_recv(place, mb.buf(at..at + 64).unwrap()).unwrap();
    }
    let mut idle: Vec<Buf> =
        (0..DEPTH as usize).map(|at| ma.buf(at * 64..at * 64 + 64).unwrap()).collect();
    let messages = messages(1_000_000);
    let (mut received, mut in_models) = (0, 0);
    let start = cpu_ns();
    while received < messages {
        while let Some(buf) = idle.pop() {
            qa.post_send(&SendWr::signaled(0, SendOp::Send), Some(buf)).unwrap();
        }
        qa.ring_doorbell();
        let step = cpu_ns();
        while two.world.step() {}
        in_models += cpu_ns() - step;
        while let Some(completion) = two.b.cq.poll() {
            let mut got = None;
            qb.complete(completion, |wc| got = Some(wc)).unwrap();
            let wc = got.unwrap();
            received += 1;
            qb.post_recv(wc.wr_id, wc.into_buffers().unwrap()).unwrap();
        }
        while let Some(completion) = two.a.cq.poll() {
            qa.complete(completion, |wc| idle.push(wc.into_buffers().unwrap())).unwrap();
        }
    }
    let per_message = |ns: u64| ns as f64 / received as f64;
    let all = per_message(cpu_ns() - start);
    println!("SEND of 64 B: models {:.0} ns, with drivers {all:.0} ns", per_message(in_models));
    two.world.assert_clean();
}

#[test]
#[ignore = "a measurement; needs a release build"]
fn large_writes() {
    const DEPTH: usize = 8;
    const LEN: usize = 1 << 20;
    let mut two = two();
    let (mut qa, _qb) = connected(&two, DEPTH as u32);
    let (ma, mb) = (registered(&two.a, DEPTH * LEN), registered(&two.b, DEPTH * LEN));
    let mut idle: Vec<(u64, Buf)> =
        (0..DEPTH).map(|at| (at as u64, ma.buf(at * LEN..at * LEN + LEN).unwrap())).collect();
    let messages = messages(4_000);
    let (mut done, start) = (0, cpu_ns());
    while done < messages {
        for (place, buf) in idle.drain(..) {
            let addr = mb.addr() + place * LEN as u64;
            let remote = RemoteAddr { addr, rkey: mb.rkey().unwrap() };
            qa.post_send(&SendWr::signaled(place, SendOp::Write(remote)), Some(buf)).unwrap();
        }
        qa.ring_doorbell();
        while two.world.step() {}
        while let Some(completion) = two.a.cq.poll() {
            let ended = |wc: Wc<Buf>| {
                done += 1;
                idle.push((wc.wr_id, wc.into_buffers().unwrap()));
            };
            qa.complete(completion, ended).unwrap();
        }
    }
    let rate = |count: u64, ns: u64| count as f64 * LEN as f64 / 1_048_576.0 / (ns as f64 / 1e9);
    let writes = rate(done, cpu_ns() - start);
    let from = vec![vec![7_u8; LEN]; DEPTH];
    let mut into = vec![vec![0_u8; LEN]; DEPTH];
    let start = cpu_ns();
    for at in 0..messages as usize {
        into[at % DEPTH].copy_from_slice(std::hint::black_box(&from[at % DEPTH]));
        std::hint::black_box(&into);
    }
    let copies = rate(messages, cpu_ns() - start);
    println!("WRITE of 1 MiB: {writes:.0} MiB/s, {:.2} of a copy's {copies:.0}", writes / copies);
    two.world.assert_clean();
}
