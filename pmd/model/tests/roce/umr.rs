//! Keys bound and unbound by the send queue, and by the peer.

use crate::common::roce::{Peer, RC, TestQp, Two, Work, create_qp, data, inline, pattern, work};
use crate::common::words;

const BAD_RESOURCE: u8 = 5;
const RESOURCE_BUSY: u8 = 6;

const SEND: u32 = 0x0a;
const SEND_INVAL: u32 = 0x01;
const WRITE: u32 = 0x08;
const UMR: u32 = 0x25;

/// Bits of `mkey_mask`: len, page size, start, rinval, key, lr, lw, rr, rw, small fence, free.
const REG_MASK: u64 = 1 | 2 | 1 << 6 | 1 << 8 | 1 << 13 | 0xf << 17 | 1 << 23 | 1 << 29;
const FREE_MASK: u64 = 1 << 29;
/// Flags: inline list; the key must be free.
const INLINE: u32 = 1 << 31;
const CHECK_FREE: u32 = 1 << 29;
const MTT: u32 = 1;
const KLM: u32 = 2;
/// Remote write, remote read, local write, local read, `umr_en`.
const BOUND: u32 = 0xf << 10 | 1 << 15;
const START: u64 = 0x7000_0000_0123;

/// What stands behind the control segment of a request that registers.
fn register(flags: u32, octwords: u32, variant: u32, list: &[u8]) -> Vec<u8> {
    let mut bytes = words(&[flags, octwords << 16]);
    bytes.extend(REG_MASK.to_be_bytes());
    bytes.resize(48, 0);
    bytes.extend(words(&[BOUND, 0xffff_ff00 | variant, 0, 1 << 24]));
    bytes.extend(START.to_be_bytes());
    bytes.extend(6000_u64.to_be_bytes());
    bytes.resize(48 + 0x34, 0);
    bytes.extend(words(&[octwords, 12, 0]));
    bytes.extend(list);
    bytes
}

/// What stands behind the control segment of a local invalidate.
fn invalidate() -> Vec<u8> {
    let mut bytes = words(&[INLINE, 0]);
    bytes.extend(FREE_MASK.to_be_bytes());
    bytes.resize(48, 0);
    bytes.extend(words(&[1 << 30]));
    bytes.resize(48 + 64, 0);
    bytes
}

fn umr(key: u32) -> Work {
    Work { imm: key, fence: 3, ..work(UMR) }
}

/// The list of two pages, the second first, filled up to 64 bytes.
fn pages(peer: &Peer) -> Vec<u8> {
    let at = peer.memory.iova();
    let mut list = ((at + 4096) | 3).to_be_bytes().to_vec();
    list.extend((at | 3).to_be_bytes());
    list.resize(64, 0);
    list
}

/// Registers a key on the queue pair of `a`, list inline.
fn registered(two: &mut Two, qa: &mut TestQp) -> u32 {
    let key = two.a.free_key(MTT, 4) | 0x77;
    let list = pages(&two.a);
    two.a.post_send(qa, &umr(key), &register(INLINE | CHECK_FREE, 4, 0x77, &list));
    two.run();
    let done = two.a.polled();
    assert_eq!((done.len(), done[0].opcode()), (1, 0), "{:?}", two.a.host.nic.log().last());
    assert_eq!(done[0].0[0x38], 0x25, "the opcode of the request");
    key
}

/// Registers a list of pieces of other keys, padded to 64 bytes; returns the syndrome, 0 for
/// success, and what the device logged last.
fn register_pieces(two: &mut Two, qa: &mut TestQp, mut list: Vec<u8>) -> (u8, String) {
    let key = two.a.free_key(KLM, 4) | 0x77;
    list.resize(64, 0);
    two.a.post_send(qa, &umr(key), &register(INLINE | CHECK_FREE, 4, 0x77, &list));
    two.run();
    let done = two.a.polled();
    let syndrome = if done[0].opcode() == 0 { 0 } else { done[0].syndrome() };
    (syndrome, format!("{:?}", two.a.host.nic.log().last()))
}

/// Writes from `b` through a key of `a`; returns the syndrome, 0 for success.
fn write(two: &mut Two, qb: &mut TestQp, key: u32, va: u64, bytes: &[u8]) -> u8 {
    two.b.write(0, bytes);
    let mut segments = va.to_be_bytes().to_vec();
    segments.extend(words(&[key, 0]));
    segments.extend(two.b.sge(0, bytes.len() as u32));
    two.b.post_send(qb, &work(WRITE), &segments);
    two.run();
    let done = two.b.polled();
    if done[0].opcode() == 0 { 0 } else { done[0].syndrome() }
}

#[test]
fn a_registered_key_translates_page_by_page() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = registered(&mut two, &mut qa);
    let bytes = pattern(6000, 9);
    assert_eq!(write(&mut two, &mut qb, key, START, &bytes), 0);
    // The first page of the key is the second of the memory; the key starts 0x123 into it.
    let first = 4096 - 0x123;
    assert_eq!(two.a.read(4096 + 0x123, first), bytes[..first]);
    assert_eq!(two.a.read(0, 6000 - first), bytes[first..]);
}

#[test]
fn bounds_and_variant_of_a_registered_key_hold() {
    for (variant, start, len) in [(0x77, START, 6001), (0x77, START - 1, 1), (0x78, START, 1)] {
        let mut two = Two::new();
        let (mut qa, mut qb) = two.connected(RC);
        let key = registered(&mut two, &mut qa) & !0xff | variant;
        assert_eq!(write(&mut two, &mut qb, key, start, &pattern(len, 1)), 0x13);
    }
}

#[test]
fn a_list_by_pointer_is_read_from_memory() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = two.a.free_key(MTT, 4) | 0x33;
    let list = pages(&two.a);
    two.a.write(32 << 10, &list);
    let pointer = data(64, two.a.key, two.a.memory.iova() + (32 << 10));
    two.a.post_send(&mut qa, &umr(key), &register(CHECK_FREE, 4, 0x33, &pointer));
    two.run();
    assert_eq!(two.a.polled()[0].opcode(), 0);
    assert_eq!(write(&mut two, &mut qb, key, START, b"by pointer"), 0);
    assert_eq!(two.a.read(4096 + 0x123, 10), b"by pointer");
}

#[test]
fn after_a_local_invalidate_no_access_succeeds() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = registered(&mut two, &mut qa);
    two.a.post_send(&mut qa, &umr(key), &invalidate());
    two.run();
    assert_eq!(two.a.polled()[0].opcode(), 0);
    two.a.write(4096 + 0x123, &[0xee]);
    assert_eq!(write(&mut two, &mut qb, key, START, &[1]), 0x13);
    assert_eq!(two.a.read(4096 + 0x123, 1), [0xee]);
}

#[test]
fn a_key_is_registered_again_with_another_variant() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = registered(&mut two, &mut qa);
    two.a.post_send(&mut qa, &umr(key), &invalidate());
    let (again, list) = (key & !0xff | 0x78, pages(&two.a));
    let segments = register(INLINE | CHECK_FREE, 4, 0x78, &list);
    two.a.post_send(&mut qa, &umr(again), &segments);
    two.run();
    assert_eq!(two.a.polled().iter().map(|cqe| cqe.opcode()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(write(&mut two, &mut qb, again, START, &[1]), 0);
    assert_eq!(write(&mut two, &mut qb, key, START, &[1]), 0x13, "the old key");
    let counts = two.a.host.nic.datapath().key_counts();
    assert_eq!((counts.umr_registrations, counts.local_invalidates), (2, 1));
}

#[test]
fn registering_a_key_in_use_or_too_small_is_a_bind_error() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    let key = registered(&mut two, &mut qa);
    let list = pages(&two.a);
    two.a.post_send(&mut qa, &umr(key), &register(INLINE | CHECK_FREE, 4, 0x77, &list));
    two.a.post_send(&mut qa, &work(SEND), &inline(&[1]));
    two.run();
    let done = two.a.polled();
    assert_eq!(done.iter().map(|cqe| cqe.syndrome()).collect::<Vec<_>>(), [0x06, 0x05]);
    assert_eq!(two.a.state(&qa), 6);
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    let key = two.a.free_key(MTT, 1) | 1;
    let mut list = pages(&two.a);
    list.resize(128, 0);
    two.a.post_send(&mut qa, &umr(key), &register(INLINE | CHECK_FREE, 8, 1, &list));
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), 0x06);
}

#[test]
fn a_send_with_invalidate_takes_the_key_away_and_says_so() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = registered(&mut two, &mut qa);
    two.a.post_receive(&mut qa, 0, 64);
    two.b.post_send(&mut qb, &Work { imm: key, ..work(SEND_INVAL) }, &inline(b"done"));
    two.run();
    let got = two.a.polled();
    assert_eq!((got[0].opcode(), got[0].word(0x24), got[0].byte_cnt()), (4, key, 4));
    two.b.polled();
    assert_eq!(write(&mut two, &mut qb, key, START, &[1]), 0x13);
    let (a, b) = (two.a.host.nic.datapath().key_counts(), two.b.host.nic.datapath().key_counts());
    assert_eq!((a.umr_registrations, a.remote_invalidates, a.sends_with_invalidate), (1, 1, 0));
    assert_eq!((b.umr_registrations, b.remote_invalidates, b.sends_with_invalidate), (0, 0, 1));
}

#[test]
fn a_key_that_the_peer_may_not_invalidate_stays_and_the_peer_is_not_told() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let key = two.a.key;
    two.a.post_receive(&mut qa, 0, 64);
    two.b.post_send(&mut qb, &Work { imm: key, ..work(SEND_INVAL) }, &inline(b"done"));
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), 0x11, "local access error");
    assert_eq!(two.b.polled()[0].opcode(), 0, "the message itself arrived");
    assert_eq!((two.a.state(&qa), two.b.state(&qb)), (6, 3));
    assert_eq!(two.a.read(0, 4), b"done");
}

#[test]
fn another_kind_of_list_or_another_domain_is_refused() {
    // Byte 2 of the key's part: the low bits of its access mode. Word 3: its domain.
    const MODE_AT: usize = 48 + 2;
    const PD_AT: usize = 48 + 0xc;
    let with_pd = (REG_MASK | 1 << 7).to_be_bytes();
    for (what, syndrome) in [("MTT", 0), ("none", 0), ("KLM", 0x06), ("same", 0), ("other", 0x06)] {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        let other = two.a.host.short(0x800, 0);
        let key = two.a.free_key(MTT, 4) | 0x77;
        let list = pages(&two.a);
        let mut request = register(INLINE | CHECK_FREE, 4, 0x77, &list);
        match what {
            "MTT" => request[MODE_AT] |= 1,
            "KLM" => request[MODE_AT] |= 2,
            "none" => {}
            _ => {
                let pd = if what == "same" { two.a.pd } else { other };
                request[8..16].copy_from_slice(&with_pd);
                request[PD_AT..PD_AT + 4].copy_from_slice(&(1 << 24 | pd).to_be_bytes());
            }
        }
        two.a.post_send(&mut qa, &umr(key), &request);
        two.run();
        let done = two.a.polled();
        let got = if done[0].opcode() == 0 { 0 } else { done[0].syndrome() };
        assert_eq!(got, syndrome, "{what}");
    }
}

#[test]
fn a_block_that_repeats_nothing_is_refused_however_often() {
    // 0x400 in the place of a key: a block. Then how often, and how many entries.
    for (often, entries, syndrome) in [(u32::MAX, 0, 0x06), (0, 0, 0x06), (4, 1, 0)] {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        let mut list = words(&[0, 0x400, often, entries]);
        list.extend(words(&[64 << 16 | 64, two.a.key]));
        list.extend(two.a.memory.iova().to_be_bytes());
        let (got, log) = register_pieces(&mut two, &mut qa, list);
        assert_eq!(got, syndrome, "{often} of {entries}: {log}");
        assert!(syndrome == 0 || log.contains("repeat_block.num_ent"), "{log}");
    }
}

#[test]
fn the_reserved_key_in_a_list_needs_a_queue_that_may_use_it() {
    for (rlky, syndrome) in [(0, 0x06), (1 << 4, 0)] {
        let mut two = Two::new();
        let (mut qa, qb) = (two.a.create_qp_with(RC, &[(0x20, rlky)]), two.b.create_qp(RC));
        two.connect(RC, &qa, &qb);
        let mut list = words(&[4096, 0x200]);
        list.extend(two.a.memory.iova().to_be_bytes());
        let (got, log) = register_pieces(&mut two, &mut qa, list);
        assert_eq!(got, syndrome, "{log}");
        assert!(syndrome == 0 || log.contains("without rlky"), "{log}");
    }
}

#[test]
fn a_programs_queue_pair_registers_no_io_addresses() {
    let mut two = Two::new();
    let (mut qa, qb) = (two.a.create_programs_qp(RC), two.b.create_qp(RC));
    two.connect(RC, &qa, &qb);
    // Pieces of its own keys it may: so windows are bound.
    let mut list = words(&[4096, two.a.key]);
    list.extend(two.a.memory.iova().to_be_bytes());
    let (syndrome, log) = register_pieces(&mut two, &mut qa, list);
    assert_eq!(syndrome, 0, "{log}");
    let key = two.a.free_key(MTT, 4) | 0x77;
    let list = pages(&two.a);
    two.a.post_send(&mut qa, &umr(key), &register(INLINE | CHECK_FREE, 4, 0x77, &list));
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), 0x06);
    let log = format!("{:?}", two.a.host.nic.log().last());
    assert!(log.contains("without fre"), "{log}");
}

/// Queue pairs of the driver's own for UMR name no protection domain, or one that there is.
#[test]
fn a_umr_queue_pair_lets_go_of_nothing_that_it_does_not_hold() {
    const UMR_ST: u32 = 0xc;
    let mut two = Two::new();
    let next = two.a.pd + 1;
    let mut create = create_qp(UMR_ST, next, two.a.uar, two.a.cqn, two.a.memory.iova());
    create.extend(two.a.memory.iova().to_be_bytes());
    assert_eq!(two.a.host.refused(&create, BAD_RESOURCE), "pd");
    two.a.pd = 0;
    let qp = two.a.create_qp(UMR_ST);
    two.a.pd = two.a.host.short(0x800, 0);
    assert_eq!(two.a.pd, next);
    two.a.pa_key(1 << 10);
    two.a.host.short(0x501, qp.qpn);
    let dealloc = words(&[0x0801_0000, 0, next, 0]);
    assert_eq!(two.a.host.refused(&dealloc, RESOURCE_BUSY), "pd");
}

/// A key that the driver's own queue pair moves holds the domain where it is, and no other.
#[test]
fn a_key_holds_the_domain_that_it_was_moved_to() {
    const UMR_ST: u32 = 0xc;
    const PD: u64 = 1 << 7;
    let mut two = Two::new();
    let from = two.a.host.short(0x800, 0);
    let to = two.a.host.short(0x800, 0);
    let main = std::mem::replace(&mut two.a.pd, from);
    let key = two.a.free_key(MTT, 4);
    two.a.pd = main;
    let (mut qa, qb) = (two.a.create_qp(UMR_ST), two.b.create_qp(RC));
    let (to_b, _) = two.targets(&qa, &qb);
    two.a.connect(&qa, UMR_ST, &to_b, 8);
    let mut move_to = |two: &mut Two, pd: u32| {
        let mut bytes = words(&[INLINE, 0]);
        bytes.extend(PD.to_be_bytes());
        bytes.resize(48, 0);
        bytes.extend(words(&[0, 0, 0, pd]));
        bytes.resize(48 + 64, 0);
        two.a.post_send(&mut qa, &umr(key), &bytes);
        two.run();
        two.a.polled()[0].opcode()
    };
    let dealloc = |pd: u32| words(&[0x0801_0000, 0, pd, 0]);
    assert_eq!(two.a.host.refused(&dealloc(from), RESOURCE_BUSY), "pd");
    assert_eq!(move_to(&mut two, to), 0, "{:?}", two.a.host.nic.log().last());
    assert_eq!(two.a.host.refused(&dealloc(to), RESOURCE_BUSY), "pd");
    two.a.host.ok(&dealloc(from), 0x10);
    assert_eq!(move_to(&mut two, from), 13, "a domain that is gone");
    two.a.host.short(0x202, key >> 8);
    two.a.host.ok(&dealloc(to), 0x10);
}

/// Who may not choose I/O addresses changes neither where a key over pages ends, nor how large its
/// pages are, nor what it permits: whole pages lie behind it, of which its program has a part.
#[test]
fn a_programs_queue_pair_widens_no_key_of_pages() {
    const LEN: u64 = 1;
    const PAGE_SIZE: u64 = 2;
    const START_ADDR: u64 = 1 << 6;
    const KEY: u64 = 1 << 13;
    let rights = (17..=21).map(|bit| 1_u64 << bit);
    let reach = [LEN, PAGE_SIZE, START_ADDR].into_iter().chain(rights);
    let all: Vec<(u64, bool)> =
        reach.map(|mask| (mask, true)).chain([(KEY, false), (FREE_MASK, false)]).collect();
    for has_fre in [false, true] {
        for (mask, is_reach) in &all {
            let mut two = Two::new();
            let mut qa = if has_fre { two.a.create_qp(RC) } else { two.a.create_programs_qp(RC) };
            let qb = two.b.create_qp(RC);
            two.connect(RC, &qa, &qb);
            let key = two.a.free_key(MTT, 4);
            let mut bytes = words(&[INLINE, 0]);
            bytes.extend(mask.to_be_bytes());
            bytes.resize(48, 0);
            // Large pages and many bytes; all rights.
            bytes.extend(words(&[BOUND, 0xffff_ff00, 0, 1 << 24, 0, 0, 0, 1 << 31]));
            bytes.resize(48 + 0x38, 0);
            bytes.extend(words(&[31, 0]));
            two.a.post_send(&mut qa, &umr(key), &bytes);
            two.run();
            let done = two.a.polled();
            let syndrome = if done[0].opcode() == 0 { 0 } else { done[0].syndrome() };
            let is_refused = *is_reach && !has_fre;
            let log = two.a.host.nic.log().last();
            assert_eq!(syndrome, if is_refused { 6 } else { 0 }, "{mask:#x} {has_fre}: {log:?}");
        }
    }
}
