//! Memory of the device: what ALLOC_MEMIC gives, what keys over it reach, and how it ends.

use crate::common;
use crate::common::roce::{Peer, RC, Two, data, inline, pattern, work};
use crate::common::{Done, Host, input, words};
use ferrocx_bus::Transport;
use ferrocx_model::config::MIN_MEMORY_BYTES;
use ferrocx_model::{Identity, NicConfig};

const BAD_OP: u8 = 0x02;
const BAD_PARAM: u8 = 0x03;
const BAD_RESOURCE: u8 = 0x05;
const RESOURCE_BUSY: u8 = 0x06;
const EXCEED_LIM: u8 = 0x08;
const NO_RESOURCES: u8 = 0x0f;

/// Access mode 5, over two fields, and all rights.
const MEMIC: u32 = 1 << 26 | 1 << 8;
const RIGHTS: u32 = 0x1f << 10;

const SEND: u32 = 0x0a;
const WRITE: u32 = 0x08;
const READ: u32 = 0x10;
const FETCH_ADD: u32 = 0x12;

/// What the capability page says of it: first byte in the BAR, bytes there, bytes of a piece.
fn shown(host: &mut Host) -> (u64, u64, u64) {
    let cap = host.ok(&words(&[0x0100_0000, 0xf << 1 | 1, 0, 0]), 0x1010).output;
    let word = |at: usize| u64::from(common::be32(&cap, 0x10 + at));
    assert_eq!((word(0), word(4)), (1 << 31, 6 << 16 | 6), "there is some, in units of 64 bytes");
    assert_eq!(word(0x40), 0, "no operations by address");
    (word(8) << 32 | word(0xc), word(0x10), word(0x14))
}

/// ALLOC_MEMIC: log2 of the alignment in units of 64 bytes, the part of the BAR, bytes.
fn alloc(log_align: u32, start: u64, range: u32, len: u32) -> Vec<u8> {
    let (hi, lo) = ((start >> 32) as u32, start as u32);
    words(&[0x0205_0000, 0, 0, log_align, hi, lo, range, len])
}

fn dealloc(start: u64, len: u32) -> Vec<u8> {
    words(&[0x0206_0000, 0, 0, 0, (start >> 32) as u32, start as u32, len, 0])
}

/// CREATE_MKEY over a range of the BAR, with variant 0x77.
fn create_key(pd: u32, start: u64, len: u32, changes: &[(usize, u32)]) -> Vec<u8> {
    let mut fields = vec![
        (0, 0x0200_0000),
        (0x10, MEMIC | RIGHTS),
        (0x14, 0xffff_ff77),
        (0x1c, pd),
        (0x20, (start >> 32) as u32),
        (0x24, start as u32),
        (0x2c, len),
    ];
    fields.retain(|(at, _)| changes.iter().all(|(other, _)| other != at));
    fields.extend(changes);
    input(0x110, &fields)
}

fn place(done: &Done) -> u64 {
    u64::from(done.word(8)) << 32 | u64::from(done.word(0xc))
}

/// A piece of so many bytes in the pages of the BAR from `page` on.
fn take(host: &mut Host, page: u64, len: u32) -> u64 {
    let start = shown(host).0 + page * 4096;
    let range = len.next_multiple_of(4096);
    place(&host.ok(&alloc(0, start, range, len), 0x10))
}

/// Memory of the device of one end, `len` bytes, and the key over all of it.
fn memory(peer: &mut Peer, len: u32) -> (u64, u32) {
    let start = take(&mut peer.host, 0, len);
    let index = peer.host.ok(&create_key(peer.pd, start, len, &[]), 0x10).word(8);
    (start, index << 8 | 0x77)
}

fn fill(host: &Host, at: u64, bytes: &[u8]) {
    host.bar.memory(at, bytes.len() as u64).unwrap().copy_in(0, bytes).unwrap();
}

fn content(host: &Host, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    host.bar.memory(at, len as u64).unwrap().copy_out(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn it_is_offered_by_physical_functions_with_roce_and_by_no_others() {
    let offered = |config: NicConfig| {
        let mut host = Host::up_with(config);
        let cap = host.ok(&words(&[0x0100_0000, 1, 0, 0]), 0x1010).output;
        let is_offered = common::be32(&cap, 0x10 + 0x34) >> 23 & 1 == 1;
        let command = host.command(&alloc(0, 31 << 20, 4096, 64), 0x10);
        assert_eq!(command.status(), if is_offered { 0 } else { BAD_OP });
        is_offered
    };
    let with = |identity, roce| NicConfig { identity, roce, ..NicConfig::default() };
    assert!(offered(with(Identity::ConnectX5, true)));
    assert!(offered(with(Identity::ConnectX6Dx, true)));
    assert!(!offered(with(Identity::ConnectX5Vf, true)));
    assert!(!offered(with(Identity::ConnectX5, false)));
}

#[test]
fn pieces_lie_where_the_driver_wants_them_and_are_counted() {
    let mut host = Host::up();
    let (start, shown, most) = shown(&mut host);
    assert_eq!((start, shown, most), (31 << 20, 1 << 20, 128 << 10));
    let before = host.nic.state().objects.len();
    let one = place(&host.ok(&alloc(0, start, 4096, 64), 0x10));
    assert_eq!(one, start);
    // The same pages, in whole or in part: the driver tries others.
    for (at, range) in [(start, 4096), (start, 8192)] {
        assert_eq!(host.refused(&alloc(0, at, range, 64), NO_RESOURCES), "range_start_addr");
    }
    let two = place(&host.ok(&alloc(6, start + 4096, 8192, 4096 + 64), 0x10));
    assert_eq!((two, host.nic.state().objects.len()), (start + 4096, before + 2));
    assert_eq!(host.nic.state().objects.device_memory.used_bytes(), 4096 + 128);
    for (log_align, at, range, len, field) in [
        (0, start + 16384, 4096, 0, "memic_size"),
        (0, start + 16384, 4096, 32, "memic_size"),
        (0, start + 16384, 4096, 100, "memic_size"),
        (0, start + 16384, 0x4_0000, (128 << 10) + 64, "memic_size"),
        (0, start + 16384, 4096, !63, "memic_size"),
        (7, start + 16384, 4096, 64, "log_memic_addr_alignment"),
        (255, start + 16384, 4096, 64, "log_memic_addr_alignment"),
        (0, start + 64, 4096, 64, "range_start_addr"),
        (0, start + 16384, 4095, 64, "range_start_addr"),
        (0, start - 4096, 8192, 64, "range_start_addr"),
        (0, start + shown - 4096, 8192, 64, "range_start_addr"),
        (0, !4095, 4096, 64, "range_start_addr"),
        (0, 0, 4096, 64, "range_start_addr"),
    ] {
        assert_eq!(host.refused(&alloc(log_align, at, range, len), BAD_PARAM), field);
    }
    assert_eq!(host.refused(&alloc(0, start + 16384, 4096, 8192), NO_RESOURCES), "range_size");
    let rest = (128 << 10) - 4096 - 128;
    let all = alloc(0, start + 16384, 0x2_0000, rest + 64);
    assert_eq!(host.refused(&all, EXCEED_LIM), "memic_size", "the memory is used up");
    let all = place(&host.ok(&alloc(0, start + 16384, 0x2_0000, rest), 0x10));
    assert_eq!(host.refused(&alloc(0, start + 12288, 4096, 64), EXCEED_LIM), "memic_size");
    for (at, len) in [(one, 128), (one + 64, 64), (all, rest - 64), (0, 64), (u64::MAX, 64)] {
        assert_eq!(host.refused(&dealloc(at, len), BAD_RESOURCE), "memic_start_addr");
    }
    for (at, len) in [(one, 64), (all, rest), (two, 4096 + 64)] {
        host.ok(&dealloc(at, len), 0x10);
        assert_eq!(host.refused(&dealloc(at, len), BAD_RESOURCE), "memic_start_addr");
    }
    assert_eq!(host.nic.state().objects.len(), before);
}

#[test]
fn memory_is_paid_for_by_the_functions_budget() {
    let config = NicConfig { memory_bytes: MIN_MEMORY_BYTES, ..NicConfig::default() };
    let mut host = Host::up_with(config);
    let used = |host: &Host| host.nic.state().budget.used_bytes();
    let before = used(&host);
    let start = take(&mut host, 0, 64);
    let one = used(&host) - before;
    assert!(one >= 4096, "a page is shown: {one}");
    let second = take(&mut host, 1, 65536);
    assert_eq!(used(&host) - before, one + 65536);
    host.ok(&dealloc(second, 65536), 0x10);
    assert_eq!(used(&host) - before, one);
    // TEARDOWN_HCA takes all back.
    host.ok(&words(&[0x0103_0000, 0, 0, 0]), 0x10);
    assert_eq!(used(&host), before);
    let mut seen = [0; 4];
    host.nic.side().bar_read(start, &mut seen);
    assert_eq!(seen, [0xff; 4], "nothing is shown there any more");
}

#[test]
fn a_piece_starts_with_zeros_whoever_had_it_before() {
    let mut host = Host::up();
    let start = take(&mut host, 3, 8192);
    fill(&host, start, &pattern(8192, 7));
    assert_eq!(content(&host, start, 8192), pattern(8192, 7));
    host.ok(&dealloc(start, 8192), 0x10);
    assert_eq!(take(&mut host, 3, 8192), start);
    assert_eq!(content(&host, start, 8192), [0; 8192]);
    // A function-level reset ends it as well.
    fill(&host, start, &[1; 64]);
    host.transport.reset().unwrap();
    host.step();
    assert_eq!(host.nic.state().objects.len(), 0);
    let mut seen = [0; 8];
    host.nic.side().bar_read(start, &mut seen);
    assert_eq!(seen, [0xff; 8]);
    host.set_queue();
    host.bring_up();
    assert_eq!(take(&mut host, 3, 8192), start);
    assert_eq!(content(&host, start, 64), [0; 64]);
}

#[test]
fn keys_are_over_allocated_memory_only_and_keep_it() {
    let mut host = Host::up();
    let pd = host.short(0x800, 0);
    let start = take(&mut host, 0, 192);
    for (at, len) in [(start + 192, 1), (start, 193), (start - 1, 2), (0, 64), (u64::MAX, 1)] {
        let refused = host.refused(&create_key(pd, at, len, &[]), BAD_PARAM);
        assert!(matches!(refused, "start_addr" | "len"), "{at:#x}: {refused}");
    }
    let with = |changes: &[(usize, u32)]| create_key(pd, start, 192, changes);
    for (changes, field) in [
        (&[(0x1c, 1 << 31 | pd)][..], "length64, free"),
        (&[(0x10, MEMIC | RIGHTS | 1 << 30 | 1 << 15)], "length64, free"),
        (&[(0x44, 1), (0x60, 0)], "translations_octword_actual_size"),
        (&[(0x0c, 1 << 30)], "access_mode"),
        (&[(0x10, 1 << 26 | RIGHTS)], "access_mode"),
        (&[(0x10, 3 << 26 | 1 << 8 | RIGHTS)], "access_mode"),
    ] {
        assert_eq!(host.refused(&with(changes), BAD_PARAM), field, "{changes:x?}");
    }
    // A region of no bytes is one.
    let none = host.ok(&create_key(pd, start + 64, 0, &[]), 0x10).word(8);
    let index = host.ok(&create_key(pd, start + 64, 128, &[]), 0x10).word(8);
    let context = host.ok(&words(&[0x0201_0000, 0, index, 0]), 0x130);
    assert_eq!(context.word(0x24), (start + 64) as u32, "as it was given");
    assert_eq!(host.refused(&dealloc(start, 192), RESOURCE_BUSY), "memic_start_addr");
    host.short(0x202, none);
    assert_eq!(host.refused(&dealloc(start, 192), RESOURCE_BUSY), "memic_start_addr");
    host.short(0x202, index);
    host.ok(&dealloc(start, 192), 0x10);
    assert_eq!(host.refused(&create_key(pd, start, 64, &[]), BAD_PARAM), "start_addr");
}

#[test]
fn user_contexts_get_neither_memory_nor_keys_over_it() {
    let mut host = Host::up();
    let start = take(&mut host, 0, 64);
    let uid = host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
    let pd = host.ok(&words(&[0x0800_0000 | uid, 0, 0, 0]), 0x10).word(8);
    let key = create_key(pd, start, 64, &[(0, 0x0200_0000 | uid)]);
    assert_eq!(host.refused(&key, BAD_PARAM), "access_mode");
    let mut input = alloc(0, start + 4096, 4096, 64);
    input[2..4].copy_from_slice(&(uid as u16).to_be_bytes());
    assert_eq!(host.refused(&input, BAD_PARAM), "uid");
}

#[test]
fn messages_go_from_memory_of_one_device_to_that_of_another() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected(RC);
    let ((at_a, key_a), (at_b, key_b)) = (memory(&mut two.a, 8192), memory(&mut two.b, 8192));
    fill(&two.a.host, at_a, &pattern(8192, 3));
    // SEND: gathered there, scattered here. The addresses of a key begin at 0.
    two.b.post_receive_raw(&mut qb, &data(3000, key_b, 4097));
    two.a.post_send(&mut qa, &work(SEND), &data(3000, key_a, 5));
    two.run();
    assert_eq!((two.a.polled()[0].opcode(), two.b.polled()[0].opcode()), (0, 2));
    let got = content(&two.b.host, at_b + 4096, 3004);
    assert_eq!((&got[1..3001], got[0]), (&pattern(8192, 3)[5..3005], 0));
    // WRITE, of inline data as well, and READ.
    let raddr = |addr: u64, key: u32| {
        let mut segment = addr.to_be_bytes().to_vec();
        segment.extend(words(&[key, 0]));
        segment
    };
    let mut rest = raddr(64, key_b);
    rest.extend(data(4000, key_a, 4192));
    two.a.post_send(&mut qa, &work(WRITE), &rest);
    let mut rest = raddr(0, key_b);
    rest.extend(inline(b"sixteen bytes in"));
    two.a.post_send(&mut qa, &work(WRITE), &rest);
    let mut rest = raddr(4097, key_b);
    rest.extend(data(64, key_a, 0));
    two.a.post_send(&mut qa, &work(READ), &rest);
    two.run();
    assert!(two.a.polled().iter().all(|cqe| cqe.opcode() == 0));
    assert_eq!(content(&two.b.host, at_b, 16), b"sixteen bytes in");
    assert_eq!(content(&two.b.host, at_b + 64, 4000), pattern(8192, 3)[4192..]);
    assert_eq!(content(&two.a.host, at_a, 64), pattern(8192, 3)[5..69]);
    // Atomics, in the byte order of the wire until the driver chooses.
    fill(&two.b.host, at_b + 8, &41_u64.to_be_bytes());
    let mut rest = raddr(8, key_b);
    rest.extend(words(&[0, 1, 0, 0]));
    rest.extend(data(8, key_a, 128));
    two.a.post_send(&mut qa, &work(FETCH_ADD), &rest);
    two.run();
    assert_eq!(two.a.polled()[0].opcode(), 0);
    assert_eq!(content(&two.b.host, at_b + 8, 8), 42_u64.to_be_bytes());
    assert_eq!(content(&two.a.host, at_a + 128, 8), 41_u64.to_be_bytes());
}

#[test]
fn what_is_outside_the_region_is_refused_at_both_ends() {
    const REMOTE_ACCESS: u8 = 0x13;
    const LOCAL_PROTECTION: u8 = 0x04;
    for (local, addr, key_offset, syndrome) in [
        (false, 8192, 0, REMOTE_ACCESS),
        (false, 8185, 0, REMOTE_ACCESS),
        (false, u64::MAX, 0, REMOTE_ACCESS),
        // Where the memory lies in the BAR is no address of the key.
        (false, 31 << 20, 0, REMOTE_ACCESS),
        (false, 0, 1, REMOTE_ACCESS),
        (true, 8185, 0, LOCAL_PROTECTION),
        (true, 0, 1, LOCAL_PROTECTION),
    ] {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        let ((_, key_a), (_, key_b)) = (memory(&mut two.a, 8192), memory(&mut two.b, 8192));
        let (at, key) = if local { (0, key_b) } else { (addr, key_b ^ key_offset) };
        let mut rest = at.to_be_bytes().to_vec();
        rest.extend(words(&[key, 0]));
        let (at, key) = if local { (addr, key_a ^ key_offset) } else { (0, key_a) };
        rest.extend(data(8, key, at));
        two.a.post_send(&mut qa, &work(WRITE), &rest);
        two.run();
        assert_eq!(two.a.polled()[0].syndrome(), syndrome, "{local} {addr:#x} {key_offset}");
    }
}

#[test]
fn a_peer_needs_the_right_that_the_key_grants() {
    const REMOTE_ACCESS: u8 = 0x13;
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    let start = take(&mut two.b.host, 0, 64);
    let read_only = MEMIC | 1 << 12 | 1 << 10;
    let create = create_key(two.b.pd, start, 64, &[(0x10, read_only)]);
    let key = two.b.host.ok(&create, 0x10).word(8) << 8 | 0x77;
    let mut rest = 0_u64.to_be_bytes().to_vec();
    rest.extend(words(&[key, 0]));
    rest.extend(inline(b"no"));
    two.a.post_send(&mut qa, &work(WRITE), &rest);
    two.run();
    assert_eq!(two.a.polled()[0].syndrome(), REMOTE_ACCESS);
    assert_eq!(content(&two.b.host, start, 4), [0; 4]);
}
