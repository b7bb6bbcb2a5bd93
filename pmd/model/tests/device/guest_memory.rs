//! What a guest can make the model hold and do: at most its budget, counted by the allocator, and a
//! bounded number of looks at its keys.

use std::time::Duration;

use crate::common;
use crate::common::objects::*;
use crate::common::roce::{ALL_RIGHTS, Peer, RC, Two, Work, data, inline, pattern, work};
use crate::common::{Host, input, thread_time, words};
use ferrocx_heapcount::Watch;
use ferrocx_model::NicConfig;
use ferrocx_model::config::MIN_MEMORY_BYTES;
use ferrocx_model::mkey::{MAX_STEPS, STEPS_PER_TURN};
use ferrocx_model::wire::{Fcs, Wire, link};

const RESOURCE_BUSY: u8 = 0x06;
const EXCEED_LIM: u8 = 0x08;
const BAD_BIND: u8 = 0x06;
const UMR: u32 = 0x25;
const MTT: u32 = 1;
const KLM: u32 = 2;

fn small() -> NicConfig {
    NicConfig { memory_bytes: MIN_MEMORY_BYTES, ..NicConfig::default() }
}

/// CREATE_MKEY over 16384 pages of 4 KiB at address 0: a list of 128 KiB.
fn create_large_mkey(pd: u32) -> Vec<u8> {
    const PAGES: u32 = 16_000;
    let mut bytes = input(
        0x110,
        &[
            (0, 0x0200_0000),
            (0x10, MTT << 8 | 1 << 10),
            (0x14, 0xffff_ff01),
            (0x1c, pd),
            (0x2c, PAGES << 12),
            (0x44, PAGES / 2),
            (0x48, 12),
            (0x60, PAGES / 2),
        ],
    );
    bytes.extend((1..=u64::from(PAGES)).flat_map(|page| (page << 12).to_be_bytes()));
    bytes
}

/// Gives the command until it is refused; returns the numbers of what it made.
fn until_refused(host: &mut Host, input: &[u8]) -> Vec<u32> {
    let mut made = Vec::new();
    loop {
        let done = host.command(input, 0x10);
        if done.status() == 0 {
            made.push(done.word(8) & 0xff_ffff);
            continue;
        }
        assert_eq!(done.status(), EXCEED_LIM, "{:?}", host.nic.log().last());
        return made;
    }
}

/// Finding 12: a thousand keys pinned 4 GB.
#[test]
fn keys_are_refused_when_the_budget_is_used_up_and_come_back() {
    let mut host = Host::up_with(small());
    let (pd, budget) = (host.short(0x800, 0), host.nic.state().budget.clone());
    let watch = Watch::start();
    let first = until_refused(&mut host, &create_large_mkey(pd));
    assert!(first.len() > 30, "{} keys", first.len());
    let why = host.nic.log().last().expect("a refusal").why;
    assert_eq!(why, "the function's memory budget is used up");
    assert!(watch.peak_bytes() <= budget.limit_bytes(), "{} bytes", watch.peak_bytes());
    assert_eq!(budget.refusals(), 1);
    for index in &first {
        host.short(0x202, *index);
    }
    let again = until_refused(&mut host, &create_large_mkey(pd));
    assert!(again.len() >= first.len());
    // A reset frees all.
    host.nic.side().request_reset();
    host.step();
    let fresh = Host::new(small()).nic.state().budget.used_bytes();
    assert_eq!(budget.used_bytes(), fresh);
}

/// Of every kind of object as many as there may be.
#[test]
fn no_kind_of_object_takes_more_than_the_budget() {
    let (_, templates) = furnished();
    let modifies = [0x905, 0x909];
    for template in 0..templates.len() {
        let (opcode, config) = (u32::from(templates[template][0]) << 8, small());
        let opcode = opcode | u32::from(templates[template][1]);
        // Entries of a table take numbers of their own choice: below.
        if modifies.contains(&opcode) || opcode == 0x936 || opcode == 0x933 {
            continue;
        }
        let (mut host, templates) = furnished_with(config);
        let watch = Watch::start();
        let made = until_refused(&mut host, &templates[template]);
        let budget = &host.nic.state().budget;
        assert!(
            watch.peak_bytes() <= budget.limit_bytes(),
            "{opcode:#x}: {} bytes",
            watch.peak_bytes()
        );
        let used = (budget.used_bytes() >> 20, watch.peak_bytes() >> 20);
        println!("{opcode:#x}: {} objects, {used:?} MiB charged and taken", made.len());
    }
}

/// Queue pairs, domains, counters, pages: what has no place in the list of templates.
#[test]
fn other_objects_take_no_more_either() {
    for opcode in [0x800_u32, 0x816, 0x80e, 0x939, 0x771, 0x802] {
        let mut host = Host::up_with(small());
        let watch = Watch::start();
        until_refused(&mut host, &words(&[opcode << 16, 0, 0, 0]));
        assert!(
            watch.peak_bytes() <= MIN_MEMORY_BYTES,
            "{opcode:#x}: {} bytes",
            watch.peak_bytes()
        );
    }
    let (near, _far) = link(1 << 16);
    let mut peer = Peer::with(1, near, small());
    let record = peer.host.ring(64);
    let mut create = common::roce::create_qp(RC, peer.pd, peer.uar, peer.cqn, record);
    create.extend(peer.host.ring(4096).to_be_bytes());
    let watch = Watch::start();
    let made = until_refused(&mut peer.host, &create);
    assert!(watch.peak_bytes() <= MIN_MEMORY_BYTES, "{} bytes", watch.peak_bytes());
    assert!(made.len() > 100, "{} queue pairs", made.len());
}

/// Entries and groups, and their compiled form, which is made when a frame arrives.
#[test]
fn steering_takes_no_more_than_the_budget() {
    let mut host = Host::up_with(small());
    let (near, mut far) = link(1 << 16);
    host.nic.datapath_mut().plug(near);
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let tirn = host.ok(&create_direct_tir(base.td, rqn), 0x10).word(8);
    let table = host.ok(&create_flow_table(1, 22), 0x10).word(8);
    let group = host.ok(&create_flow_group(table, 0, (1 << 22) - 1), 0x10).word(8);
    let watch = Watch::start();
    let set = (0..1 << 22)
        .take_while(|index| {
            let mut entry = set_fte(table, group, *index, tirn);
            entry[0x8a..0x8e].copy_from_slice(&u32::to_be_bytes(*index));
            host.command(&entry, 0x10).status() == 0
        })
        .count();
    assert!(set > 1000, "{set} entries");
    // An entry that takes the place of another is there beside it for a while.
    let last = set as u32 - 1;
    host.ok(&input(0x40, &[(0, 0x0938_0000), (0x14, table), (0x20, last)]), 0x10);
    // A frame compiles, each time as after a change.
    let mut frame = [0; 60];
    for index in 0..2 {
        host.ok(&set_fte(table, group, index, tirn), 0x10);
        far.reserve(frame.len()).expect("room").copy_from_slice(&frame);
        far.commit(0, Fcs::Good);
        far.flush(0);
        host.step();
        frame[0] += 2;
    }
    assert_eq!(host.nic.state().port.counters.rx().packets, 2);
    assert!(
        watch.peak_bytes() <= MIN_MEMORY_BYTES,
        "{} bytes of {set} entries",
        watch.peak_bytes()
    );
}

/// Each interface has a table of its own for its hash, made when a frame arrives.
#[test]
fn hashes_take_no_more_than_the_budget() {
    // As much for objects as is set aside, which would hide them.
    let memory_bytes = MIN_MEMORY_BYTES + (24 << 20);
    let mut host = Host::up_with(NicConfig { memory_bytes, ..NicConfig::default() });
    let (near, mut far) = link(1 << 16);
    host.nic.datapath_mut().plug(near);
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let rqtn = host.ok(&create_rqt(2, &[rqn, rqn]), 0x10).word(8);
    let watch = Watch::start();
    let made = until_refused(&mut host, &create_indirect_tir(base.td, rqtn));
    assert!(made.len() > 500, "{} interfaces", made.len());
    far.reserve(60).expect("room").fill(2);
    far.commit(0, Fcs::Good);
    far.flush(0);
    host.step();
    assert_eq!(host.nic.state().port.counters.rx().packets, 1);
    let peak = watch.peak_bytes();
    assert!(peak <= memory_bytes, "{peak} bytes of {} interfaces", made.len());
}

#[test]
fn pages_lent_are_charged() {
    let mut host = Host::up_with(small());
    let used = |host: &Host| host.nic.state().budget.used_bytes();
    let before = used(&host);
    host.give_pages(100);
    assert_eq!(used(&host), before + 3200);
    // MANAGE_PAGES, take.
    host.ok(&words(&[0x0108_0000, 2, 0, 100]), 0x10 + 800);
    assert_eq!(used(&host), before);
}

/// UMR: a list, inline, at an offset in octwords.
fn umr_list(mode: u32, offset: u32, list: &[u8]) -> Vec<u8> {
    let octwords = list.len() as u32 / 16;
    // Inline, with an offset; the key stays as it is.
    let mut bytes = words(&[1 << 31 | 1 << 28, octwords << 16 | offset & 0xffff]);
    bytes.resize(16, 0);
    bytes.extend(words(&[offset >> 16]));
    bytes.resize(48, 0);
    bytes.extend(words(&[mode << 8]));
    bytes.resize(48 + 64, 0);
    bytes.extend(list);
    bytes
}

/// Finding 1: 192 bytes of WQE made the model fill 64 GiB.
#[test]
fn a_far_entry_of_a_key_is_paid_for_or_refused() {
    let mut two = Two::new();
    let create = |octwords: u32, pd: u32| {
        let mode = 1 << 30 | 1 << 15 | MTT << 8 | 1 << 10;
        let set = [(0, 0x0200_0000), (0x10, mode), (0x14, 0xffff_ff00), (0x1c, pd), (0x48, 12)];
        let mut bytes = input(0x110, &set);
        bytes[0x44..0x48].copy_from_slice(&octwords.to_be_bytes());
        bytes
    };
    let pd = two.a.pd;
    let field = two.a.host.refused(&create(u32::MAX, pd), EXCEED_LIM);
    assert_eq!(field, "translations_octword_size");
    let key = two.a.host.ok(&create(1 << 24, pd), 0x10).word(8) << 8;
    for (offset, syndrome) in [(1 << 23, 0), ((1 << 24) - 4, BAD_BIND)] {
        let (mut qa, _qb) = two.connected(RC);
        let watch = Watch::start();
        let work = Work { imm: key, ..work(UMR) };
        two.a.post_send(&mut qa, &work, &umr_list(MTT, offset, &[0; 64]));
        two.run();
        let done = two.a.polled();
        let got = if done[0].opcode() == 0 { 0 } else { done[0].syndrome() };
        let log = two.a.host.nic.log().last();
        assert_eq!((done.len(), got), (1, syndrome), "{offset:#x}: {log:?}");
        let budget = &two.a.host.nic.state().budget;
        assert!(watch.peak_bytes() <= budget.limit_bytes(), "{} bytes", watch.peak_bytes());
    }
}

/// Where no memory is left, lines of requests are short, and messages arrive all the same.
#[test]
fn queue_pairs_work_when_the_budget_is_used_up() {
    let (a, b) = link(1 << 18);
    let mut two = Two { a: Peer::with(1, a, small()), b: Peer::with(2, b, small()) };
    let (mut qa, mut qb) = two.connected(RC);
    for octwords in [8000_u32, 800, 80, 8] {
        let pd = two.a.pd;
        let pages = octwords * 2;
        let mut key = create_large_mkey(pd);
        key.truncate(0x110 + pages as usize * 8);
        for (at, word) in [(0x2c, pages << 12), (0x44, octwords), (0x60, octwords)] {
            key[at..at + 4].copy_from_slice(&word.to_be_bytes());
        }
        until_refused(&mut two.a.host, &key);
    }
    for round in 0..4_u8 {
        for _ in 0..8 {
            two.b.post_receive(&mut qb, 0, 64);
            two.a.post_send(&mut qa, &work(0x0a), &inline(&[round; 8]));
        }
        two.run();
        assert_eq!((two.a.polled().len(), two.b.polled().len()), (8, 8));
        assert_eq!(two.b.read(0, 8), [round; 8]);
    }
}

const PIECES: usize = 4096;

/// A key of pieces of one byte, each in a key of pieces of one byte, four times.
fn nested_key(peer: &mut Peer) -> u32 {
    let (mut below, mut at) = (peer.key, peer.memory.iova());
    for _ in 0..4 {
        let set = [
            (0, 0x0200_0000),
            (0x10, KLM << 8 | ALL_RIGHTS),
            (0x14, 0xffff_ff07),
            (0x1c, peer.pd),
            (0x2c, PIECES as u32),
            (0x44, PIECES as u32),
            (0x60, PIECES as u32),
        ];
        let mut create = input(0x110, &set);
        for piece in 0..PIECES as u64 {
            create.extend(words(&[1, below]));
            create.extend((at + piece).to_be_bytes());
        }
        below = peer.host.ok(&create, 0x10).word(8) << 8 | 7;
        at = 0;
    }
    below
}

/// Finding 5: packets through nested lists of single bytes, at either end, in either direction. The
/// device looks at so many entries in a step, and leaves the rest to the next.
#[test]
fn a_step_looks_at_a_bounded_number_of_entries() {
    const SEND: u32 = 0x0a;
    const WRITE: u32 = 0x08;
    const READ: u32 = 0x10;
    for (opcode, is_nested_here) in
        [(SEND, true), (SEND, false), (WRITE, true), (WRITE, false), (READ, true), (READ, false)]
    {
        let mut two = Two::new();
        let (mut qa, mut qb) = two.connected(RC);
        let (mut here, mut there) = ((two.a.key, two.a.memory.iova()), (two.b.key, 0));
        there.1 = two.b.memory.iova();
        let nested = nested_key(if is_nested_here { &mut two.a } else { &mut two.b });
        *(if is_nested_here { &mut here } else { &mut there }) = (nested, 0);
        let len = PIECES as u32;
        let bytes = pattern(PIECES, opcode as u8);
        if opcode == READ {
            two.b.write(0, &bytes)
        } else {
            two.a.write(0, &bytes)
        }
        let messages = 8;
        for _ in 0..messages {
            let mut segments = Vec::new();
            if opcode == SEND {
                two.b.post_receive_raw(&mut qb, &data(len, there.0, there.1));
            } else {
                segments.extend(there.1.to_be_bytes());
                segments.extend(words(&[there.0, 0]));
            }
            segments.extend(data(len, here.0, here.1));
            two.a.post_send(&mut qa, &work(opcode), &segments);
        }
        let looks = |peer: &Peer| peer.host.nic.state().objects.mkeys.steps();
        let (mut most, mut last, mut steps) = (0, [looks(&two.a), looks(&two.b)], 0);
        let mut sent = 0;
        while sent < messages {
            two.a.host.step();
            two.b.host.step();
            sent += two.a.polled().len();
            let now = [looks(&two.a), looks(&two.b)];
            most = most.max(now[0] - last[0]).max(now[1] - last[1]);
            (last, steps) = (now, steps + 1);
            let log = [two.a.host.nic.log().last(), two.b.host.nic.log().last()];
            assert!(steps < 10_000, "{opcode:#x} {is_nested_here}: {sent} sent, {log:?}");
        }
        // Each byte of a packet through five keys, twice, and at most three tries from place to
        // place; and the whole range of a WRITE or READ is looked at before its first byte moves.
        let packet = 1024 * 5 * 2 * 3 + len as u64 * 5 * 3;
        assert!(most <= STEPS_PER_TURN + packet, "{opcode:#x} {is_nested_here}: {most} in a step");
        assert!(most < MAX_STEPS);
        let arrived = if opcode == READ { two.a.read(0, PIECES) } else { two.b.read(0, PIECES) };
        assert_eq!(arrived, bytes, "{opcode:#x} {is_nested_here}");
    }
}

/// MANAGE_PAGES: gives the same page many times, so that none is taken.
fn give_page_often(host: &mut Host, count: u32) -> Vec<u8> {
    let mut give = input(0x10, &[(0, 0x0108_0000), (4, 1), (0xc, count)]);
    let page = host.ring(4096);
    give.extend((0..count).flat_map(|_| page.to_be_bytes()));
    give
}

/// The same command in the first slots, with the same mailboxes.
fn post_often(host: &mut Host, input: &[u8], slots: usize) {
    host.post(0, input, 0x10);
    let mut entry = [0; 64];
    host.queue.copy_out(0, &mut entry);
    for slot in 1..slots {
        host.queue.copy_in(slot * 64, &entry);
    }
}

/// What the device has done so far, in the terms of [`STEPS_PER_TURN`].
fn work_of(host: &Host) -> u64 {
    let dma = host.nic.side().counts().dma;
    let looks = host.nic.state().objects.mkeys.steps();
    dma.reads + dma.writes + looks + (dma.read_bytes + dma.written_bytes) / 512
}

/// Commands count as work, too, by the memory that they read and what they list: of many that are
/// rung at once some are left to later steps.
#[test]
fn a_step_reads_a_bounded_number_of_mailboxes() {
    const SLOTS: usize = 31;
    const PAGES: u32 = 8_000;
    let mut host = Host::up();
    let give = give_page_often(&mut host, PAGES);
    post_often(&mut host, &give, SLOTS);
    host.ring_bell((1 << SLOTS) - 1);
    let one = 2 * 4 * u64::from(PAGES);
    let (mut steps, mut before) = (0, work_of(&host));
    while (0..SLOTS).any(|slot| host.take(slot, 0x10).is_none()) {
        host.step();
        let now = work_of(&host);
        assert!(now - before <= STEPS_PER_TURN + one, "{} in a step", now - before);
        (before, steps) = (now, steps + 1);
        assert!(steps < 1000, "commands are never answered");
    }
    assert!(steps > 4, "all in {steps} steps");
}

/// DESTROY_UCTX in a step of which other commands have used up all but a little.
struct Late {
    give: Vec<u8>,
    slots: usize,
    /// Work that is left for it, at most.
    left: u64,
}

impl Late {
    fn new(host: &mut Host) -> Self {
        let give = give_page_often(host, 2000);
        let before = work_of(host);
        host.command(&give, 0x10);
        let one = work_of(host) - before;
        let slots = (STEPS_PER_TURN - 1) / one;
        assert!((4..31).contains(&slots), "{one} for each");
        Self { give, slots: slots as usize, left: STEPS_PER_TURN - slots * one }
    }

    /// Its status.
    #[track_caller]
    fn destroy(&self, host: &mut Host, uid: u32) -> u8 {
        post_often(host, &self.give, self.slots);
        host.post(self.slots, &destroy_uctx(uid), 0x10);
        host.ring_bell((2 << self.slots) - 1);
        let before = work_of(host);
        host.step();
        let work = work_of(host) - before;
        let done = host.take(self.slots, 0x10).expect("it begins in this step");
        assert!(work >= STEPS_PER_TURN, "{work}: so little that it may end what it likes");
        done.status()
    }
}

fn destroy_uctx(uid: u32) -> Vec<u8> {
    words(&[0x0a06_0000, 0, uid, 0])
}

/// Asks for the end of a user context until it has come; how often.
fn until_destroyed(host: &mut Host, uid: u32) -> u64 {
    let looks = |host: &Host| host.nic.state().objects.mkeys.steps();
    for asked in 1..1000 {
        let before = looks(host);
        let status = host.command(&destroy_uctx(uid), 0x10).status();
        assert!(looks(host) - before <= STEPS_PER_TURN + 64, "{}", looks(host) - before);
        if status == 0 {
            return asked;
        }
        assert_eq!(status, RESOURCE_BUSY);
    }
    panic!("it never ends");
}

/// DESTROY_UCTX ends what a step has time for, and the rest when it is asked again; one object at
/// least, though the search for them be more than a step has left.
#[test]
fn a_user_context_with_many_objects_ends_in_bounded_steps() {
    let mut host = Host::up();
    let uid = host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
    let mut count = 0;
    let alloc_pd = words(&[0x0800_0000 | uid, 0, 0, 0]);
    while host.command(&alloc_pd, 0x10).status() == 0 {
        count += 1;
    }
    assert!(count > 1000, "{count}");
    let late = Late::new(&mut host);
    let domains = |host: &Host| host.nic.state().objects.pds.len();
    assert!(late.left < u64::from(domains(&host)) / 4, "{}: time for the search", late.left);
    for _ in 0..3 {
        let before = domains(&host);
        assert_eq!(late.destroy(&mut host, uid), RESOURCE_BUSY);
        assert_eq!(domains(&host), before - 1);
    }
    // What the driver names stays, however often it is asked, and does not keep the others.
    let (last, ()) = host.nic.state().objects.pds.iter().last().expect("many");
    let drivers_key = host.ok(&create_pa_mkey(last, 1), 0x10).word(8);
    let before = domains(&host);
    assert_eq!(late.destroy(&mut host, uid), RESOURCE_BUSY);
    assert_eq!(domains(&host), before - 1);
    host.short(0x202, drivers_key & 0xff_ffff);
    assert!(until_destroyed(&mut host, uid) > 1);
    assert!(host.nic.state().objects.pds.is_empty());
}

/// The same of the entries of its flow tables.
#[test]
fn a_user_context_with_many_flow_entries_ends_in_bounded_steps() {
    const ENTRIES: u32 = 5_000;
    const DROP: u32 = 2;
    const COUNT: u32 = 8;
    let mut host = Host::up();
    let uid = host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
    let before = host.nic.state().objects.len();
    let by = |mut bytes: Vec<u8>| {
        bytes[2..4].copy_from_slice(&(uid as u16).to_be_bytes());
        bytes
    };
    let counter = host.ok(&by(words(&[0x0939_0000, 0, 0, 0])), 0x10).word(8);
    let table = host.ok(&by(create_flow_table(1, 13)), 0x10).word(8);
    let group = host.ok(&by(create_flow_group(table, 0, ENTRIES - 1)), 0x10).word(8);
    for index in 0..ENTRIES {
        let mut rule = input(
            0x340,
            &[
                (0, 0x0936_0000),
                (0x14, table),
                (0x20, index),
                (0x44, group),
                (0x4c, DROP | COUNT),
                (0x54, 1),
            ],
        );
        rule.extend(words(&[counter, 0]));
        host.ok(&by(rule), 0x10);
    }
    let entries = |host: &Host| {
        let group = host.nic.state().objects.flow_groups.get(group);
        group.map_or(0, |group| group.entries.len() as u64)
    };
    let late = Late::new(&mut host);
    let most = 1 + late.left / 4;
    let mut asked = 0;
    while entries(&host) > most {
        let before = entries(&host);
        assert_eq!(late.destroy(&mut host, uid), RESOURCE_BUSY);
        let ended = before - entries(&host);
        assert!((1..=most).contains(&ended), "{ended}, with {} left", late.left);
        asked += 1;
    }
    assert!(asked > 1);
    until_destroyed(&mut host, uid);
    assert_eq!(host.nic.state().objects.len(), before - 1);
}

/// SQs on the same page: made, destroyed from the last on, and made again, so that the highest
/// numbers stand first in the page's list. The time to destroy the thousand highest ones.
fn time_to_destroy_a_thousand_of(count: u32) -> Duration {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let create = create_sq(&base, tisn, 4, record, page);
    let mut sqns: Vec<u32> = (0..count).map(|_| host.ok(&create, 0x10).word(8)).collect();
    let destroy = |host: &mut Host, sqn: u32| host.short(0x906, sqn);
    while let Some(sqn) = sqns.pop() {
        destroy(&mut host, sqn);
    }
    // A few numbers stay free for a while.
    sqns.extend((0..count - 64).map(|_| host.ok(&create, 0x10).word(8)));
    sqns.sort_unstable();
    let start = thread_time();
    for sqn in sqns.drain(sqns.len() - 1_000..) {
        destroy(&mut host, sqn);
    }
    thread_time() - start
}

/// The queues of a page stand in a list, in whichever order they were made.
#[test]
fn a_queue_among_many_of_a_page_is_destroyed_as_fast_as_among_few() {
    let few = time_to_destroy_a_thousand_of(1_500);
    let many = time_to_destroy_a_thousand_of(40_000);
    assert!(many < 6 * few, "{many:?} among many, {few:?} among few");
}

/// Each queue that an indirection table names is looked up when it is made and when it goes.
#[test]
fn queues_of_an_indirection_table_are_work() {
    const QUEUES: usize = 2_048;
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let steps = |host: &Host| host.nic.state().objects.mkeys.steps();
    let list = [rqn; QUEUES];
    let before = steps(&host);
    let rqtn = host.ok(&create_rqt(QUEUES as u32, &list), 0x10).word(8);
    let made = steps(&host) - before;
    assert!(made >= QUEUES as u64 / 4, "{made}");
    let modify =
        [input(0x110, &[(0, 0x0917_0000), (8, rqtn), (0x14, 1), (0x38, 1)]), words(&[rqn])];
    host.ok(&modify.concat(), 0x10);
    let changed = steps(&host) - before - made;
    assert!(changed >= QUEUES as u64 / 4, "{changed}");
    host.short(0x918, rqtn);
}

/// A completion queue whose record cannot be read, on the UAR page of `base`.
fn lost_cq(host: &mut Host, base: &Base) -> u32 {
    let page = host.ring(4096);
    host.ok(&create_cq(base.uar, base.eqn, 4, 0x1000, page), 0x10).word(8)
}

fn arm_cq(host: &Host, base: &Base, cqn: u32) {
    host.bar.write_be64(u64::from(base.uar) * 4096 + 0x20, u64::from(cqn));
}

/// Who looks for the queues of a completion queue that is lost passes those that are gone, too; and
/// loses it once.
#[test]
fn places_of_queues_that_are_gone_are_work_when_a_completion_queue_is_lost() {
    const QUEUES: u32 = 2_000;
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let create = create_sq(&base, tisn, 4, record, page);
    let sqns: Vec<u32> = (0..QUEUES).map(|_| host.ok(&create, 0x10).word(8)).collect();
    for sqn in sqns {
        host.short(0x906, sqn);
    }
    let cqn = lost_cq(&mut host, &base);
    let steps = |host: &Host| host.nic.state().objects.mkeys.steps();
    let before = steps(&host);
    arm_cq(&host, &base, cqn);
    host.step();
    let lost = steps(&host) - before;
    assert!(lost >= u64::from(QUEUES) / 8, "{lost}");
    let (told, page) = (host.nic.log().total(), host.ring(4096));
    assert_ne!(told, 0, "that the record cannot be read");
    let mut resize = create_cq(base.uar, base.eqn, 4, 0x1000, page);
    resize[..16].copy_from_slice(&words(&[0x0403_0000, 1, cqn, 1]));
    host.ok(&resize, 0x10);
    assert_eq!(host.nic.log().total(), told, "it was lost already: {:?}", host.nic.log().last());
}

/// Doorbells wait where commands have used up a step: each may be much work.
#[test]
fn register_writes_wait_for_the_next_step_once_this_one_has_done_enough() {
    const SLOTS: usize = 31;
    const BELLS: u64 = 20;
    let mut host = Host::up();
    let base = host.base();
    let give = give_page_often(&mut host, 8_000);
    post_often(&mut host, &give, SLOTS);
    host.ring_bell((1 << SLOTS) - 1);
    for _ in 0..BELLS {
        arm_cq(&host, &base, base.cqn);
    }
    let taken = |host: &Host| host.nic.state().counters.cq_doorbells;
    host.step();
    assert_eq!(taken(&host), 0, "after commands of more than a step");
    (0..100).for_each(|_| {
        host.step();
    });
    assert_eq!(taken(&host), BELLS);
}

/// The list of a table's groups is paid for by the groups in it.
#[test]
fn a_table_keeps_no_room_for_groups_that_are_gone() {
    const GROUPS: u32 = 1_000;
    let mut host = Host::up();
    let table = host.ok(&create_flow_table(1, 13), 0x10).word(8);
    let group = |host: &mut Host, index| host.ok(&create_flow_group(table, index, index), 0x10);
    let groups: Vec<u32> = (0..GROUPS).map(|index| group(&mut host, index).word(8)).collect();
    let room = |host: &Host| {
        let table = host.nic.state().objects.flow_tables.get(table);
        table.expect("created").groups.capacity()
    };
    assert!(room(&host) >= GROUPS as usize);
    for group in groups {
        host.ok(&input(0x40, &[(0, 0x0934_0000), (0x14, table), (0x18, group)]), 0x10);
    }
    assert!(room(&host) <= 2, "{}", room(&host));
}
