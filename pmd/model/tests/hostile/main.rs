//! A guest that means harm: commands, descriptors, doorbells, frames and memory of any content.
//!
//! Whatever it does, the device neither panics nor hangs, gives every command back, touches no
//! memory beyond its maps, holds no more memory than the function's budget, and does a bounded
//! amount of work in a step. Bystanders on the same switch, on a thread of the same process, have
//! their pings answered as when it is idle. The guest knows the device: most of what it does is
//! nearly right, which leads deeper than noise.
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FERROCX_HOSTILE_OPS` | operations; a soak has 10 million and more | 60000 |
//! | `FERROCX_HOSTILE_SEED` | seed of the first round; a failure names the seed of its round | 1 |

mod bystander;
#[path = "../common/mod.rs"]
mod common;
mod frames;
mod keys;
mod requests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::objects::*;
use common::roce::{Peer, Target, UD, create_qp, init2rtr, rst2init, rtr2rts};
use common::{input, region, thread_time, words};
use ferrocx_bus::{DmaAccess, DmaBuf, Transport};
use ferrocx_mempool::Region;
use ferrocx_model::NicConfig;
use ferrocx_model::config::MIN_MEMORY_BYTES;
use ferrocx_model::datapath::KeyCounts;
use ferrocx_model::wire::{Link, SplitMix64, SwitchPort, link};
use ferrocx_prm::cmd::Opcode;

use bystander::Bystander;
use ferrocx_heapcount::Watch;

/// Operations before a device is thrown away for a fresh one.
const ROUND_OPS: u64 = 1000;
/// Accesses to memory and looks at key entries in one step at most: some 10 ms of work. What a
/// handful of queues can ask for, and the longest walk through keys.
const MAX_WORK: u64 = 1 << 20;
/// One round in so many has the default budget and large flow tables: costs that grow with what a
/// guest may hold are seen as well.
const LARGE_ROUNDS: u64 = 16;
/// From this operation of a round on the guest also hoards memory, once in so many operations.
const HOARD_FROM: u64 = 700;
const HOARD_OPS: u64 = 50;
/// Time on a processor of one step at most, in any build on any machine.
const MAX_STEP: Duration = Duration::from_millis(500);
/// Number of the guest's port, in its addresses.
const NUMBER: u8 = 1;
/// An operation takes microseconds; this long without one is a hang.
const PATIENCE: Duration = Duration::from_secs(120);

/// Access modes of keys.
const MTT: u32 = 1;
const KLM: u32 = 2;

/// Where the guest maps memory that the device may only read, and memory that it takes away again.
const READ_ONLY: u64 = 0x66_0000_0000;
const TAKEN: u64 = 0x77_0000_0000;
const REGION_BYTES: usize = 16 << 10;

/// One ring with its doorbell record.
struct Queue {
    number: u32,
    ring: u64,
    record: u64,
    blocks: u64,
    posted: u32,
}

struct Guest {
    peer: Peer,
    far: Link,
    /// The bystanders' switch, which gets what the guest sends.
    uplink: SwitchPort,
    rng: SplitMix64,
    templates: Vec<Vec<u8>>,
    sqs: Vec<Queue>,
    rqs: Vec<Queue>,
    numbers: Vec<u32>,
    /// Keys that requests bind and free: access mode and index.
    bindable: Vec<(u32, u32)>,
    /// A key over memory of the device.
    memory_key: u32,
    read_only: Arc<Region>,
    taken: Arc<Region>,
    /// Memory for queues and packets, as the guest writes it.
    arena: DmaBuf,
    /// The function was reset: there is nothing left to attack.
    is_over: bool,
    /// The most work of one step, and the longest.
    most_work: u64,
    longest: Duration,
}

impl Guest {
    fn new(seed: u64, uplink: SwitchPort) -> Self {
        let (near, far) = link(1 << 18);
        let is_large = seed.is_multiple_of(LARGE_ROUNDS);
        let mut config = NicConfig::default();
        if !is_large {
            config.memory_bytes = MIN_MEMORY_BYTES;
        }
        let peer = Peer::with(NUMBER, near, config);
        let arena = peer.host.heap.alloc(256 << 10, 4096).expect("room");
        let (read_only, taken) = (region(REGION_BYTES), region(REGION_BYTES));
        for (region, at) in [(&read_only, READ_ONLY), (&taken, TAKEN)] {
            region.copy_in(0, &canary()).expect("in range");
            let access = if at == TAKEN { DmaAccess::ReadWrite } else { DmaAccess::Read };
            peer.host.nic.side().dma_map(at, Arc::clone(region), access).expect("mapped");
        }
        peer.host.nic.side().dma_unmap(TAKEN, REGION_BYTES as u64).expect("unmapped");
        let (sqs, rqs, numbers) = (Vec::new(), Vec::new(), Vec::new());
        let rng = SplitMix64::new(seed);
        let mut guest = Self {
            peer,
            far,
            uplink,
            rng,
            templates: Vec::new(),
            sqs,
            rqs,
            numbers,
            bindable: Vec::new(),
            memory_key: 0,
            read_only,
            taken,
            arena,
            is_over: false,
            most_work: 0,
            longest: Duration::ZERO,
        };
        guest.furnish();
        guest.furnish_keys();
        guest.furnish_memory();
        guest.furnish_users();
        if is_large {
            guest.furnish_table();
        }
        guest
    }

    /// An Ethernet send and receive queue with steering, three connected QPs, keys.
    fn furnish(&mut self) {
        let host = &mut self.peer.host;
        let td = host.short(0x816, 0);
        let (uar, eqn, cqn, pd) = (self.peer.uar, self.peer.eqn, self.peer.cqn, self.peer.pd);
        let base = Base { uar, eqn, cqn, pd, td };
        let at = self.arena.iova();
        let record = at + 0x3_f000;
        let mut make = |guest: &mut Vec<Vec<u8>>, input: Vec<u8>| {
            let number = host.ok(&input, 0x10).word(8) & 0xff_ffff;
            guest.push(input);
            number
        };
        let templates = &mut self.templates;
        let tisn = make(templates, create_tis(td));
        let sqn = make(templates, create_sq(&base, tisn, 5, record, at));
        let rqn = make(templates, create_rq(&base, 5, record + 64, at + 0x1000));
        let rmpn = make(templates, create_rmp(&base, 5, record + 128, at + 0x2000));
        let tirn = make(templates, create_direct_tir(td, rqn));
        let rqtn = make(templates, create_rqt(4, &[rqn, rqn]));
        let indirect = make(templates, create_indirect_tir(td, rqtn));
        let table = make(templates, create_flow_table(1, 4));
        let group = make(templates, create_flow_group(table, 0, 3));
        make(templates, set_fte(table, group, 1, tirn));
        make(templates, create_pa_mkey(pd, 1));
        make(templates, modify_queue(0x904 + 1, sqn, 0, 1));
        make(templates, modify_queue(0x908 + 1, rqn, 0, 1));
        make(templates, input(0x40, &[(0, 0x092f_0000), (0x14, table)]));
        self.sqs.push(Queue { number: sqn, ring: at, record: record + 4, blocks: 32, posted: 0 });
        let (ring, record_rq) = (at + 0x1000, record + 64);
        self.rqs.push(Queue { number: rqn, ring, record: record_rq, blocks: 8, posted: 0 });
        for (index, st) in [0, 1, UD].into_iter().enumerate() {
            let ring = at + 0x4000 + index as u64 * 0x1000;
            let record = record + 256 + index as u64 * 64;
            let mut create = create_qp(st, pd, uar, cqn, record);
            create.extend(ring.to_be_bytes());
            let qpn = make(templates, create);
            // Connected to itself: the far end of the cable sends back what it gets.
            let to = Target {
                qpn,
                mac: self.peer.mac,
                ip: self.peer.ip,
                send_psn: 0xff_fff0,
                receive_psn: 0xff_fff0,
                retry: 3,
                rnr_retry: 3,
            };
            make(templates, rst2init(qpn, st, pd, 7 << 13));
            make(templates, init2rtr(qpn, &to));
            make(templates, rtr2rts(qpn, &to, 8));
            let (rq_blocks, sq_blocks) = (16, 32);
            let sq = ring + rq_blocks * 64;
            self.sqs.push(Queue {
                number: qpn,
                ring: sq,
                record: record + 4,
                blocks: sq_blocks,
                posted: 0,
            });
            self.rqs.push(Queue { number: qpn, ring, record, blocks: rq_blocks, posted: 0 });
        }
        let free = [
            (0, 0x0200_0000),
            (0x10, 1 << 30 | 1 << 15 | 1 << 8 | 1 << 10),
            (0x14, 0xffff_ff00),
            (0x1c, pd),
            (0x44, 16),
            (0x48, 12),
        ];
        let free_key = make(templates, input(0x110, &free)) << 8;
        self.numbers =
            vec![tisn, sqn, rqn, rmpn, tirn, rqtn, indirect, table, group, cqn, eqn, uar, pd, td];
        self.numbers.extend(self.sqs.iter().map(|queue| queue.number));
        self.numbers.extend([free_key, self.peer.key]);
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A number near something.
    fn word(&mut self) -> u32 {
        match self.below(6) {
            0 => self.rng.next_u64() as u32,
            1 => self.below(64) as u32,
            2 => 1 << self.below(32),
            3 => self.pick(&[u32::MAX, 0xff_ffff, 0x8000_0000, 0x7fff_ffff]),
            _ => {
                let numbers = self.numbers.clone();
                self.pick(&numbers)
            }
        }
    }

    /// An address near the edge of something.
    fn address(&mut self) -> u64 {
        let base = match self.below(9) {
            8 => self.peer.host.nic.state().memory_iova.unwrap_or(0),
            0 => self.rng.next_u64(),
            1 => self.pick(&[0, u64::MAX, 1 << 63, 0x7000_0000_0000]),
            2 => READ_ONLY,
            3 => TAKEN,
            4 => self.peer.memory.iova(),
            _ => self.arena.iova(),
        };
        let offset = self.pick(&[0, 0, 1, 63, 4095, 4096, REGION_BYTES as u64 - 1, 0x3_ffff]);
        base.wrapping_add(offset).wrapping_sub(self.below(3))
    }

    /// Writes at an I/O address of the arena.
    fn put(&self, at: u64, bytes: &[u8]) {
        let offset = (at - self.arena.iova()) as usize;
        self.arena.copy_in(offset, bytes);
    }

    fn step(&mut self) {
        let (before, begun) = (self.work(), thread_time());
        self.peer.host.step();
        self.longest = self.longest.max(thread_time() - begun);
        assert!(self.longest <= MAX_STEP, "a step of {:?}", self.longest);
        // After a reset the keys count from 0.
        let work = self.work().saturating_sub(before);
        assert!(work <= MAX_WORK, "{work} accesses and looks in one step");
        self.most_work = self.most_work.max(work);
    }

    /// Accesses to memory, and looks at the entries of keys, so far.
    fn work(&self) -> u64 {
        let nic = &self.peer.host.nic;
        let dma = nic.side().counts().dma;
        dma.reads + dma.writes + nic.state().objects.mkeys.steps()
    }

    fn act(&mut self) {
        match self.below(100) {
            0..12 => self.command(),
            12..15 => self.garbled_command(),
            15..50 => self.send_request(),
            50..58 => self.receive_request(),
            58..66 => self.doorbell(),
            66..80 => self.frame(),
            80..92 => self.mirror(),
            92..96 => self.scribble(),
            96..98 => self.records(),
            98 => self.memory(),
            _ => self.rarely(),
        }
    }

    /// A valid input with a few wrong words, or any words behind an opcode that exists.
    fn command(&mut self) {
        let mut input = if self.chance(3) {
            let opcode = self.pick(Opcode::ALL);
            let mut input = words(&[u32::from(opcode.0) << 16, self.below(4) as u32]);
            for _ in 0..self.below(80) {
                let word = if self.chance(2) { 0 } else { self.word() };
                input.extend(word.to_be_bytes());
            }
            input
        } else {
            let index = self.below(self.templates.len() as u64) as usize;
            self.templates[index].clone()
        };
        for _ in 0..self.below(4) {
            let at = self.below(input.len() as u64 / 4) as usize * 4;
            let word = self.word();
            input[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        // Bring-down would leave the rest of the round to a device that refuses everything.
        if input[..2] == [0x01, 0x03] || input[..2] == [0x01, 0x05] {
            input[1] = 0x07;
        }
        let room = self.pick(&[8, 0x10, 0x110, 0x400]);
        self.peer.host.post(0, &input, room);
        self.peer.host.ring_bell(1);
        self.step();
        let done = self.peer.host.take(0, room);
        assert!(done.is_some(), "never completed: {input:02x?}");
    }

    /// An entry or a mailbox that is wrong itself.
    fn garbled_command(&mut self) {
        let index = self.below(self.templates.len() as u64) as usize;
        let input = self.templates[index].clone();
        self.peer.host.post(0, &input, 0x10);
        let address = self.address().to_be_bytes();
        let byte = [self.rng.next_u64() as u8];
        let (at, block) = (self.below(60) as usize, self.below(0x240) as usize);
        match self.below(5) {
            0 => self.peer.host.poke_entry(0, at, &byte),
            1 => self.peer.host.poke_entry(0, 8, &address),
            2 => self.peer.host.poke_entry(0, 48, &address),
            3 => self.peer.host.poke_input(0, block, &byte),
            _ => self.peer.host.poke_input(0, 0x230, &address),
        }
        let vector = if self.chance(16) { self.rng.next_u64() as u32 } else { 1 };
        self.peer.host.ring_bell(vector);
        self.step();
        // What was never the device's, or never came back, is taken back.
        self.peer.host.poke_entry(0, 63, &[0]);
    }

    /// A store to a UAR page or to any register.
    fn doorbell(&mut self) {
        let uar = u64::from(self.peer.uar) * 4096;
        let offset = match self.below(9) {
            8 => return self.touch_memory(),
            0 => self.below(32 << 20) & !7,
            1 => self.below(0x1000) & !7,
            _ => uar + self.pick(&[0x20, 0x40, 0x48, 0x800, 0x900, 0xa00, 0xff8]),
        };
        // The interface's own words would take the command queue away.
        let offset = if offset < 0x20 { uar } else { offset };
        let value = u64::from(self.word()) << 32 | u64::from(self.word());
        match self.below(3) {
            0 => self.peer.host.bar.write_be32(offset, value as u32),
            1 => {
                let number = self.word();
                let value = u64::from(number & 0xff) << 56 | u64::from(number) << 8;
                self.peer.host.bar.write_be64(offset, value);
            }
            _ => self.peer.host.bar.write_be64(offset, value),
        }
        self.step();
    }

    /// Changes memory that the device may be reading.
    fn scribble(&mut self) {
        let len = 1 + self.below(64) as usize;
        let bytes: Vec<u8> = (0..len).map(|_| self.rng.next_u64() as u8).collect();
        let at = self.below((256 << 10) - 64) as usize;
        // Rings and records more often than the rest.
        let at = if self.chance(2) { at % 0x8000 } else { at };
        self.arena.copy_in(at, &bytes);
        self.step();
    }

    /// Doorbell records that say anything, the completion queue's included.
    fn records(&mut self) {
        let at = self.arena.iova() + 0x3_f000 + self.below(128) * 4;
        let word = self.word();
        self.put(at, &word.to_be_bytes());
        let _ = self.peer.polled();
        self.step();
    }

    /// Memory comes and goes.
    fn memory(&mut self) {
        let side = self.peer.host.nic.side().clone();
        let at = 0x99_0000_0000 + (self.below(4) << 12);
        if self.chance(2) {
            let _ = side.dma_map(at, region(4096), DmaAccess::ReadWrite);
        } else {
            let _ = side.dma_unmap(at, 4096);
        }
        self.step();
    }

    /// Time passes; the function is reset in mid-work.
    fn rarely(&mut self) {
        if self.chance(40) {
            self.peer.host.transport.reset().expect("asked for");
            self.step();
            assert!(self.peer.host.transport.reset_complete());
            self.is_over = true;
            return;
        }
        self.peer.host.now_ns += self.below(50_000_000);
        self.step();
    }

    /// One object again and again, or a large key and its far entries.
    fn hoard(&mut self) {
        let index = self.below(self.templates.len() as u64) as usize;
        let mut input = self.templates[index].clone();
        if self.chance(2) {
            let octwords = 1_u32 << (10 + self.below(6));
            let entries = self.pick(&[MTT, KLM]);
            input = common::input(
                0x110,
                &[
                    (0, 0x0200_0000),
                    (0x10, 1 << 15 | entries << 8 | 1 << 10),
                    (0x14, 0xffff_ff00),
                    (0x1c, self.peer.pd),
                    (0x2c, octwords),
                    (0x44, self.pick(&[octwords, 1 << 16, 1 << 24])),
                    (0x48, 12),
                    (0x60, octwords),
                ],
            );
            let key = self.peer.key;
            let piece = words(&[1, key, 0, 0]);
            input.extend((0..octwords.min(8000)).flat_map(|_| piece.clone()));
        }
        for _ in 0..self.pick(&[1, 50, 400_u32]) {
            self.peer.host.post(0, &input, 0x10);
            self.peer.host.ring_bell(1);
            self.step();
            let Some(done) = self.peer.host.take(0, 0x10) else { return };
            if done.status() == 0 && input[0] == 2 {
                self.numbers.push(done.word(8) << 8);
            }
        }
    }

    /// What the device must never have changed.
    fn check(&self) {
        for (name, region) in [("read-only", &self.read_only), ("taken away", &self.taken)] {
            let mut bytes = vec![0; REGION_BYTES];
            region.copy_out(0, &mut bytes).expect("in range");
            assert!(bytes == canary(), "memory that is {name} was written");
        }
    }
}

/// Bytes that no accident leaves as they are.
fn canary() -> Vec<u8> {
    (0..REGION_BYTES).map(|at| (at * 7 + at / 256) as u8).collect()
}

fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn nothing_that_a_guest_does_harms_the_device() {
    let (ops, seed) =
        (variable("FERROCX_HOSTILE_OPS", 60_000), variable("FERROCX_HOSTILE_SEED", 1));
    let done = Arc::new(AtomicU64::new(0));
    let running = Arc::new(AtomicU64::new(seed));
    let (watched, watched_round) = (Arc::clone(&done), Arc::clone(&running));
    std::thread::spawn(move || {
        let mut last = u64::MAX;
        loop {
            let now = watched.load(Ordering::Relaxed);
            if now == last {
                let round = watched_round.load(Ordering::Relaxed);
                eprintln!("operation {now} hangs; FERROCX_HOSTILE_SEED={round}");
                std::process::abort();
            }
            last = now;
            std::thread::sleep(PATIENCE);
        }
    });
    let (mut sent, mut received, mut refused, mut commands) = (0, 0, 0, 0);
    let mut keys = KeyCounts::default();
    let mut walked = 0;
    let (mut most_work, mut most_bytes, mut short, mut longest) = (0, 0, 0, Duration::ZERO);
    let (bystander, mut uplink) = Bystander::start(NUMBER);
    let mut round = seed;
    while done.load(Ordering::Relaxed) < ops {
        running.store(round, Ordering::Relaxed);
        let guard = Named(round);
        let mut guest = Guest::new(round, uplink);
        let watch = Watch::start();
        for op in 0..ROUND_OPS {
            guest.act();
            if op >= HOARD_FROM && op % HOARD_OPS == 0 {
                guest.hoard();
            }
            let peak = watch.peak_bytes();
            let budget = guest.peer.host.nic.state().budget.limit_bytes();
            assert!(peak <= budget, "{peak} bytes are held of {budget}");
            done.fetch_add(1, Ordering::Relaxed);
            if guest.is_over {
                break;
            }
        }
        guest.check();
        (most_work, most_bytes) =
            (most_work.max(guest.most_work), most_bytes.max(watch.peak_bytes()));
        let state = guest.peer.host.nic.state();
        sent += state.port.counters.tx().packets;
        received += state.port.counters.rx().packets;
        refused += guest.peer.host.nic.log().total();
        commands += state.counters.commands;
        short += state.budget.refusals();
        walked += state.objects.mkeys.steps();
        let round_keys = guest.peer.host.nic.datapath().key_counts();
        keys.umr_registrations += round_keys.umr_registrations;
        keys.local_invalidates += round_keys.local_invalidates;
        keys.umr_changes += round_keys.umr_changes;
        longest = longest.max(guest.longest);
        uplink = guest.uplink;
        std::mem::forget(guard);
        round += 1;
    }
    let spoofed = uplink.stats().spoofed;
    let pings = bystander.judge(ops / 20);
    println!(
        "{ops} operations: {commands} commands, {sent} frames sent, {received} received, \
        {refused} refusals, {short} of them for want of memory; at most {most_work} accesses and \
        {longest:?} in a step, {} MiB held; {pings}; {spoofed} frames claimed their addresses",
        most_bytes >> 20
    );
    println!("{keys:?}; {walked} entries of keys were looked at");
    let KeyCounts { umr_registrations: bound, local_invalidates: freed, .. } = keys;
    assert!(bound > ops / 400 && freed > ops / 1500, "{bound} keys bound, {freed} freed");
    assert!(walked > 2 * ops, "{walked} entries of keys were looked at");
    assert!(spoofed > ops / 200, "only {spoofed} frames claimed the address of a bystander");
    // A guest that is only refused tests little. Most of what it sends comes back to itself.
    assert!(sent > ops / 1000 && received > ops / 20, "{sent} sent, {received} received");
}

/// Names the seed of a round that panics.
struct Named(u64);

impl Drop for Named {
    fn drop(&mut self) {
        eprintln!("this round again: FERROCX_HOSTILE_SEED={} FERROCX_HOSTILE_OPS=1", self.0);
    }
}
