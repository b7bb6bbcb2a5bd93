//! Peer memory taken back at random moments of a transfer in both directions. Once the owner's
//! call has returned, the device touches the memory no more, and everything else goes on.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{MEMORY_BYTES, Two, path, rts, take};
use ferrocx_verbs_lite::peer::*;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
/// Bytes of a message: several packets.
const MESSAGE: usize = 20_000;
/// Messages in each direction of a round.
const MESSAGES: usize = 6;
const PAGES: usize = 16;

/// xorshift64*, of a seed that is not 0.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}

/// What the owner and the transfer tell each other.
#[derive(Default)]
struct Baton {
    /// Rounds that have begun, and in which the owner took the memory back.
    begun: AtomicU64,
    taken: AtomicU64,
    stop: AtomicBool,
}

/// Takes the memory back once a round, at a random moment, and paints it at once.
fn owner(block: &PeerBlock, baton: &Baton) {
    let (region, start) = block.region();
    let len = block.len_bytes() as usize;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 1.. {
        while baton.begun.load(Ordering::Acquire) < round {
            if baton.stop.load(Ordering::Acquire) {
                return;
            }
            std::thread::yield_now();
        }
        let (since, wait) = (Instant::now(), Duration::from_nanos(random.below(20_000)));
        while since.elapsed() < wait {
            std::hint::spin_loop();
        }
        block.invalidate().unwrap();
        region.fill(start, len, 0xee).unwrap();
        baton.taken.store(round, Ordering::Release);
    }
}

/// Connects both ends, from any state.
fn reconnect(two: &Two, qa: &mut Qp, qb: &mut Qp) {
    let ends = [(&two.a, &two.b, &*qb), (&two.b, &two.a, &*qa)]
        .map(|(from, to, peer)| (path(from, to), peer.qpn()));
    for (qp, (path, peer)) in [qa, qb].into_iter().zip(ends) {
        qp.reset().unwrap();
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
        let attr = RtrAttr { min_rnr_timer: 1, ..RtrAttr::new(path, peer, Psn(7), Mtu::B256) };
        qp.connect(&attr).unwrap();
        qp.activate(&rts(7)).unwrap();
    }
}

/// How the messages of a round ended.
#[derive(Default, Debug)]
struct Ends {
    well: u64,
    refused: u64,
    flushed: u64,
}

impl Ends {
    fn count(&mut self, done: &[Wc<Buf>], expected: u8) {
        for wc in done {
            match wc.result {
                Ok(()) => self.well += 1,
                Err(failure) if failure.is_flush() => self.flushed += 1,
                Err(failure) => {
                    assert_eq!(failure.syndrome.0, expected, "{failure}");
                    self.refused += 1;
                }
            }
        }
    }
}

#[test]
fn memory_is_taken_back_at_random_moments() {
    let rounds = std::env::var("FERROCX_INVALIDATIONS").ok();
    let rounds: u64 = rounds.map_or(300, |text| text.parse().expect("a number of invalidations"));
    let mut two = Two::new();
    let registry = PeerRegistry::new();
    let provider = MappedProvider::new("host");
    let client = registry.register(Arc::new(provider.clone())).unwrap();
    let block = provider.host(PAGES << 12, 4096).unwrap();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let (mut other_a, _other_b) = two.connected::<Buf>();
    let (local, here) = (two.a.mr(), two.b.mr());
    let elsewhere = here.buf(0..8).unwrap().remote().unwrap();
    let baton = Baton::default();
    let (mut ends, mut random) = (Ends::default(), Random(0x51ed_270b));
    std::thread::scope(|scope| {
        // Whatever happens here, the owner does not wait for ever.
        struct Stop<'a>(&'a Baton);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.stop.store(true, Ordering::Release);
            }
        }
        let _stop = Stop(&baton);
        scope.spawn(|| owner(&block, &baton));
        for round in 1..=rounds {
            let range = block.range(0, block.len_bytes());
            let config = PeerConfig { deadline: Duration::from_secs(30), ..PeerConfig::new(ALL) };
            let mr = registry.reg_mr(&two.b.pd, range, &config).unwrap();
            let remote = RemoteAddr { addr: mr.mr().addr(), rkey: mr.mr().rkey().unwrap() };
            let back = local.buf(0..MEMORY_BYTES).unwrap().remote().unwrap();
            for at in 0..MESSAGES {
                let offset = at * 8192;
                let into = SendWr::signaled(1, SendOp::Write(remote.at(offset as u64)));
                let buf = local.buf(offset..offset + MESSAGE).unwrap();
                qa.post_send(&into, Some(buf)).unwrap();
                let out = SendWr::signaled(2, SendOp::Write(back.at(128 << 10)));
                let buf = mr.mr().buf(offset..offset + MESSAGE).unwrap();
                qb.post_send(&out, Some(buf)).unwrap();
            }
            other_a.post_send_inline(&SendWr::signaled(3, SendOp::Write(elsewhere)), &[7]).unwrap();
            // The transfer is over after a few steps.
            (0..random.below(6)).for_each(|_| {
                two.world.step();
            });
            baton.begun.store(round, Ordering::Release);
            // A machine that is busy runs the owner late. In half of the rounds the devices go on
            // by the owner's steps alone, so that the transfer is not over by then.
            while baton.taken.load(Ordering::Acquire) < round {
                if round % 2 == 0 {
                    std::thread::yield_now();
                } else {
                    two.world.step();
                }
            }
            two.world.settle();
            // What comes for two queue pairs is told apart by its queue pair.
            let _ = (qa.to_error(), qb.to_error());
            two.world.settle();
            while let Some(completion) = two.a.cq.poll() {
                let mut done = Vec::new();
                if completion.qpn() == other_a.qpn() {
                    other_a.complete(completion, |wc| assert_eq!(wc.result, Ok(()))).unwrap();
                } else {
                    qa.complete(completion, |wc| done.push(wc)).unwrap();
                }
                ends.count(&done, 0x13);
            }
            ends.count(&take(&mut two.b.cq, &mut qb), 0x04);
            assert!(!other_a.has_outstanding(), "round {round}: the other connection stands still");
            let (region, start) = block.region();
            let mut bytes = vec![0; PAGES << 12];
            region.copy_out(start, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0xee), "round {round}: touched afterwards");
            assert_eq!(two.world.nic(1).side().counts().dma.faults, 0, "round {round}");
            reconnect(&two, &mut qa, &mut qb);
        }
    });
    let stats = client.stats().unwrap();
    let messages = rounds * 2 * MESSAGES as u64;
    println!("{rounds} invalidations of {messages} messages: {ends:?}\n{stats}");
    assert_eq!(ends.well + ends.refused + ends.flushed, messages);
    assert!(
        ends.well > rounds && ends.refused > rounds / 4,
        "the moments were not random: {ends:?}"
    );
    assert_eq!((stats.num_invalidations, stats.num_late_invalidations), (rounds, 0));
    assert_eq!((stats.num_failures, block.lent()), (0, 0));
}
