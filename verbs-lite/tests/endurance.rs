//! Register, use, invalidate, with 256 page lists posted at a time, under random delay, loss and
//! queue pairs that fail: no byte is wrong, no key that is believed invalid works, nothing leaks.
//!
//! `FERROCX_REG_CYCLES` says how many cycles (default 20000), `FERROCX_REG_SEED` the seed.

mod common;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use common::{Two, rtr, rts, small, take};
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::wire::{Impair, ImpairConfig, SplitMix64, link};
use ferrocx_verbs_lite::*;

/// Page lists in flight.
const DEPTH: usize = 256;
/// Memory of each key: more pages than stand in a request.
const PAGES: usize = 12;
const PAGE: usize = 4096;
const SLOT: usize = PAGES * PAGE;
/// Bytes of one write.
const MAX_WRITE: usize = 700;
/// Keys of the past that an attacker remembers.
const REMEMBERED: usize = 2048;
const REMOTE_ACCESS: u8 = 0x13;
const ACCESS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
const LISTS: ListLayout = ListLayout::Pages { log_page: 12 };

const BAD: ImpairConfig = ImpairConfig {
    loss_ppm: 3_000,
    duplicate_ppm: 3_000,
    corrupt_ppm: 1_000,
    silent_corrupt_ppm: 0,
    reorder_ppm: 5_000,
    reorder_frames: 3,
    delay_ns: 1_000,
    jitter_ns: 3_000,
    congestion_ppm: 0,
    max_frames: 0,
};

/// Where a slot's key is.
enum Place {
    Free(FastRegMr),
    Bound(RegisteredMr),
    /// The queue pair has it.
    Ending,
}

struct Slot {
    place: Place,
    list: Option<PageList>,
    /// Pages that the key covers, in their order.
    pages: Vec<usize>,
}

/// A write that has not ended: which slot, where in the region, its bytes.
struct Write {
    slot: usize,
    at: usize,
    bytes: Vec<u8>,
}

#[derive(Default, Debug)]
struct Counts {
    cycles: u64,
    attacks: u64,
    failures: u64,
    revoked: u64,
    kept: u64,
    by_peer: u64,
}

struct Run {
    qa: Qp,
    qb: Qp,
    ma: Mr,
    mb: Mr,
    memory: Arc<Memory>,
    slots: Vec<Slot>,
    writes: Vec<Option<Write>>,
    /// What the memory must hold.
    shadow: Vec<u8>,
    /// Keys that are believed invalid.
    dead: VecDeque<RemoteAddr>,
    counts: Counts,
    seed: u64,
    is_broken: bool,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

fn connected(two: &Two) -> (Qp, Qp) {
    let config = QpConfig { fast_reg: true, max_send_wr: 640, max_recv_wr: 256, ..small() };
    let (mut qa, mut qb) = (two.a.qp(&config), two.b.qp(&config));
    lead(two, &mut qa, &mut qb);
    (qa, qb)
}

fn lead(two: &Two, qa: &mut Qp, qb: &mut Qp) {
    let attr = InitAttr { access: Access::REMOTE, qkey: 0 };
    let patient = RtsAttr { timeout: 6, retry_count: 7, rnr_retry: 7, ..rts(0xff_ff00) };
    let (na, nb) = (qa.qpn(), qb.qpn());
    for (qp, attr_rtr) in
        [(qa, rtr(&two.a, &two.b, nb, 0xff_ff00)), (qb, rtr(&two.b, &two.a, na, 0xff_ff00))]
    {
        qp.init(&attr).unwrap();
        qp.connect(&attr_rtr).unwrap();
        qp.activate(&patient).unwrap();
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let (a, b) = link(1 << 20);
        let impair = |wire, seed| Impair::new(wire, BAD, SplitMix64::new(seed));
        let two = Two::on(impair(a, seed), impair(b, seed + 1));
        let region = RegionConfig {
            len_bytes: DEPTH * SLOT,
            page: PageSize::Base4K,
            ..RegionConfig::default()
        };
        let memory = Memory::alloc(&two.b.context, &region).unwrap();
        let slot = |_| Slot {
            place: Place::Free(two.b.pd.alloc_mr(LISTS, PAGES as u32).unwrap()),
            list: Some(two.b.context.alloc_page_list(LISTS, PAGES as u32).unwrap()),
            pages: Vec::new(),
        };
        let slots = (0..DEPTH).map(slot).collect();
        let (qa, qb) = connected(&two);
        let (ma, mb) = (two.a.mr(), two.b.mr());
        Self {
            qa,
            qb,
            ma,
            mb,
            memory,
            slots,
            writes: (0..DEPTH).map(|_| None).collect(),
            shadow: vec![0; DEPTH * SLOT],
            dead: VecDeque::new(),
            counts: Counts::default(),
            seed,
            is_broken: false,
            two,
        }
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed % below as u64) as usize
    }

    fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.memory.region().copy_out(range.start, &mut bytes).unwrap();
        bytes
    }

    /// Places in memory of a write's bytes.
    fn places(&self, write: &Write) -> Vec<usize> {
        let pages = &self.slots[write.slot].pages;
        let at = |offset: usize| pages[offset / PAGE] + offset % PAGE;
        (write.at..write.at + write.bytes.len()).map(at).collect()
    }

    /// Takes what has ended on both sides, and steps the world once.
    fn turn(&mut self) {
        self.two.world.step();
        for wc in take(&mut self.two.b.cq, &mut self.qb) {
            self.is_broken |= wc.result.is_err();
            let slot = &mut self.slots[wc.wr_id as usize % DEPTH];
            match wc.returned {
                Returned::PageList(list) => slot.list = Some(list),
                Returned::Mr(mr) => slot.place = Place::Free(mr),
                Returned::Stale(mr) => slot.place = Place::Bound(mr),
                _ => {}
            }
            if let Some(proof) = wc.recv.invalidated {
                self.ended_by_peer(proof);
            }
        }
        for wc in take(&mut self.two.a.cq, &mut self.qa) {
            if let Err(failure) = wc.result {
                assert!(self.is_broken || failure.syndrome.0 != REMOTE_ACCESS, "a valid key");
                self.is_broken = true;
                continue;
            }
            if wc.opcode == WcOpcode::Write {
                let write = self.writes[wc.wr_id as usize].take().unwrap();
                for (place, byte) in self.places(&write).into_iter().zip(&write.bytes) {
                    self.shadow[place] = *byte;
                }
            }
        }
    }

    fn ended_by_peer(&mut self, proof: InvalidatedRkey) {
        let is_it =
            |slot: &Slot| matches!(&slot.place, Place::Bound(mr) if mr.rkey() == proof.rkey());
        let at = self.slots.iter().position(is_it).expect("a key of ours");
        let place = std::mem::replace(&mut self.slots[at].place, Place::Ending);
        let Place::Bound(mr) = place else { unreachable!() };
        self.remember(mr.remote());
        self.slots[at].place = Place::Free(mr.invalidated_by(proof).unwrap());
        self.counts.by_peer += 1;
    }

    fn remember(&mut self, remote: RemoteAddr) {
        if self.dead.len() == REMEMBERED {
            self.dead.pop_front();
        }
        self.dead.push_back(remote);
    }

    /// Turns until `done`, or something broke.
    fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..2_000_000 {
            if self.is_broken || done(self) {
                return;
            }
            self.turn();
        }
        panic!("{what} does not end: {:?}, {:?}", self.counts, self.two.world.refusals(1));
    }

    /// Posts the registration of every slot up to `count` whose key is free.
    fn register(&mut self, count: usize) {
        for at in 0..count {
            let want = 1 + self.random(PAGES);
            let first = self.random(PAGES);
            let slot = &mut self.slots[at];
            if !matches!(slot.place, Place::Free(_)) {
                continue;
            }
            let Some(mut list) = slot.list.take() else { continue };
            let page = |index: usize| at * SLOT + (first + index * 5) % PAGES * PAGE;
            slot.pages = (0..want).map(page).collect();
            let pieces: Vec<_> = slot.pages.iter().map(|page| *page..page + PAGE).collect();
            list.map(&self.memory, &pieces).unwrap();
            let Place::Free(mr) = std::mem::replace(&mut slot.place, Place::Ending) else {
                unreachable!()
            };
            let wr = FastReg {
                wr_id: at as u64,
                flags: SendFlags::MORE,
                start: (at as u64) << 32,
                access: ACCESS,
                remote_invalidate: true,
            };
            slot.place = Place::Bound(self.qb.post_fast_reg(&wr, mr, list).unwrap());
        }
        self.qb.ring_doorbell_signaled();
    }

    /// The peer writes once through each bound key.
    fn write(&mut self, count: usize) {
        for at in 0..count {
            let len = 1 + self.random(MAX_WRITE);
            let room = self.slots[at].pages.len() * PAGE;
            let start = self.random(room - len + 1);
            let Place::Bound(mr) = &self.slots[at].place else { continue };
            let remote = mr.remote().at(start as u64);
            let seed = self.random(256) as u8;
            let bytes = common::pattern(len, seed);
            let here = at * 1024;
            self.two.a.fill(here, &bytes);
            self.writes[at] = Some(Write { slot: at, at: start, bytes });
            let buf = self.ma.buf(here..here + len).unwrap();
            let wr = SendWr::signaled(at as u64, SendOp::Write(remote));
            self.qa.post_send(&wr, Some(buf)).unwrap();
        }
    }

    /// Ends every key: here, or by the peer.
    fn end(&mut self, count: usize) {
        for at in 0..count {
            let is_by_peer = self.random(3) == 0;
            let Place::Bound(mr) = &self.slots[at].place else { continue };
            let remote = mr.remote();
            if is_by_peer {
                self.qb.post_recv(at as u64, self.mb.buf(0..8).unwrap()).unwrap();
                let wr = SendWr::signaled(0, SendOp::SendInv(remote.rkey));
                self.qa.post_send_inline(&wr, &[0; 8]).unwrap();
                continue;
            }
            self.remember(remote);
            let place = std::mem::replace(&mut self.slots[at].place, Place::Ending);
            let Place::Bound(mr) = place else { unreachable!() };
            self.qb.post_local_inv(at as u64, SendFlags::MORE, mr).unwrap();
        }
        self.qb.ring_doorbell_signaled();
    }

    /// The peer tries a key of the past while registrations are in flight.
    fn attack(&mut self) {
        let Some(index) = (!self.dead.is_empty()).then(|| self.random(self.dead.len())) else {
            return;
        };
        let remote = self.dead[index];
        let at = (remote.addr >> 32) as usize;
        let before = self.read(at * SLOT..(at + 1) * SLOT);
        let op = if self.random(2) == 0 { SendOp::Write(remote) } else { SendOp::Read(remote) };
        let buf = self.ma.buf(262_000..262_008).unwrap();
        self.qa.post_send(&SendWr::signaled(999, op), Some(buf)).unwrap();
        let mut result = None;
        for _ in 0..2_000_000 {
            self.two.world.step();
            for wc in take(&mut self.two.a.cq, &mut self.qa) {
                result = result.or(Some(wc.result));
            }
            if result.is_some() {
                break;
            }
        }
        let failure = result.expect("an answer").expect_err("a key believed invalid works");
        // The cable may have eaten every answer.
        assert!([REMOTE_ACCESS, 0x15].contains(&failure.syndrome.0), "{failure}");
        assert!(self.read(at * SLOT..(at + 1) * SLOT) == before, "memory behind a dead key");
        (self.counts.attacks, self.is_broken) = (self.counts.attacks + 1, true);
    }

    /// After a failure: everything comes back, every key that may be valid is ended, both queue
    /// pairs start anew.
    fn recover(&mut self) {
        self.counts.failures += 1;
        self.qa.to_error().unwrap();
        self.qb.to_error().unwrap();
        for _ in 0..2_000_000 {
            if !self.qa.has_outstanding() && !self.qb.has_outstanding() {
                break;
            }
            self.turn();
        }
        assert!(!self.qa.has_outstanding() && !self.qb.has_outstanding());
        for at in 0..DEPTH {
            if let Some(write) = self.writes[at].take() {
                // It may have come, or a part of it.
                for (place, new) in self.places(&write).into_iter().zip(&write.bytes) {
                    let now = self.read(place..place + 1)[0];
                    assert!(now == *new || now == self.shadow[place], "a torn byte");
                    self.shadow[place] = now;
                }
            }
            let place = std::mem::replace(&mut self.slots[at].place, Place::Ending);
            self.slots[at].place = match place {
                // Its registration ended well and nothing was posted to end it: it is valid, and
                // is used on the new connection.
                Place::Bound(mr) if self.qb.mr_state(&mr) == MrState::Valid && at % 2 == 0 => {
                    self.counts.kept += 1;
                    Place::Bound(mr)
                }
                Place::Bound(mr) => {
                    self.counts.revoked += 1;
                    self.remember(mr.remote());
                    Place::Free(mr.revoke().unwrap())
                }
                Place::Free(mr) => Place::Free(mr),
                Place::Ending => panic!("the key of slot {at} did not come back"),
            };
            assert!(self.slots[at].list.is_some(), "the list of slot {at} did not come back");
        }
        // What is still on its way must not meet the next life of the connection.
        self.two.world.settle();
        self.qa.reset().unwrap();
        self.qb.reset().unwrap();
        lead(&self.two, &mut self.qa, &mut self.qb);
        self.is_broken = false;
    }

    /// One batch of cycles.
    fn batch(&mut self) {
        let count = if self.random(4) == 0 { 1 + self.random(DEPTH) } else { DEPTH };
        self.register(count);
        if self.random(8) == 0 {
            for _ in 0..self.random(40) {
                self.turn();
            }
            self.attack();
        }
        self.until("registering", |run| !run.qb.has_outstanding());
        if !self.is_broken {
            self.write(count);
        }
        self.until("writing", |run| run.writes.iter().all(Option::is_none));
        if !self.is_broken {
            self.end(count);
        }
        self.until("ending", |run| !run.qa.has_outstanding() && !run.qb.has_outstanding());
        if self.is_broken {
            self.recover();
        } else {
            self.counts.cycles += count as u64;
        }
    }
}

#[test]
fn cycles_at_depth_256_under_loss_delay_and_failures() {
    let number = |name: &str, default| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let cycles = number("FERROCX_REG_CYCLES", 20_000);
    let mut run = Run::new(number("FERROCX_REG_SEED", 0x5eed));
    let (start, mut told) = (Instant::now(), 0);
    let mut batches = 0u64;
    while run.counts.cycles < cycles {
        run.batch();
        batches += 1;
        if batches.is_multiple_of(16) {
            assert!(run.read(0..DEPTH * SLOT) == run.shadow, "a byte is wrong");
        }
        if run.counts.cycles / 100_000 > told {
            told = run.counts.cycles / 100_000;
            println!("{:?} in {:?}", run.counts, start.elapsed());
        }
    }
    assert!(run.read(0..DEPTH * SLOT) == run.shadow, "a byte is wrong");
    println!("{:?}, {batches} batches in {:?}", run.counts, start.elapsed());
    let counts = &run.counts;
    assert!(cycles < 20_000 || counts.attacks.min(counts.revoked).min(counts.kept) > 0);
    let Run { two, qa, qb, ma, mb, memory, slots, .. } = run;
    drop((qa, qb, ma, mb, slots, memory));
    // Every key went: the device refuses to be closed while an object lives.
    let Two { a, b, world } = two;
    drop((a.pd, a.cq, a.memory, b.pd, b.cq, b.memory));
    common::close(a.context).unwrap();
    common::close(b.context).unwrap();
    drop(world);
}
