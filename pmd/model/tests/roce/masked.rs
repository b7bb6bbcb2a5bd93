//! Atomics under masks: their operands in the WQE, what they change, how they fail.

use crate::common::roce::{
    ALL_RIGHTS, ATOMIC_MODE_8B, Peer, RC, TIMEOUT, TestQp, Two, init2rtr, rtr2rts, work,
};
use crate::common::{input, words};

/// Opcodes with the modifiers of 4 and 8 bytes. Source: UCX, `UCT_IB_MLX5_OPMOD_EXT_ATOMIC`.
const SWAP_4: u32 = 0x0800_0014;
const SWAP_8: u32 = 0x0900_0014;
const ADD_4: u32 = 0x0800_0015;
const ADD_8: u32 = 0x0900_0015;

const OLD: u64 = 0x1122_3344_5566_7788;

/// Posts an atomic on byte `at` of the peer's memory; `operands` are the bytes behind the remote
/// address. Returns what the answer put into eight bytes of 0xee, and the syndrome, 0 for none.
fn run(two: &mut Two, qp: &mut TestQp, opcode: u32, at: usize, operands: &[u8]) -> ([u8; 8], u8) {
    let len = if opcode >> 24 == 9 { 8 } else { 4 };
    run_of(two, qp, opcode, (at, len), operands)
}

fn run_of(
    two: &mut Two,
    qp: &mut TestQp,
    opcode: u32,
    (at, len): (usize, u32),
    operands: &[u8],
) -> ([u8; 8], u8) {
    two.a.write(0, &[0xee; 8]);
    let mut segments = Peer::raddr(&two.b, at, two.b.key);
    segments.extend(operands);
    segments.extend(two.a.sge(0, len));
    two.a.post_send(qp, &work(opcode), &segments);
    two.run();
    let done = two.a.polled();
    assert_eq!(done.len(), 1);
    let syndrome = if done[0].opcode() == 13 { done[0].syndrome() } else { 0 };
    if syndrome == 0 {
        assert_eq!(done[0].word(0x38) >> 24, opcode & 0xff, "the opcode of the WQE");
        assert_eq!(done[0].0[63] & 0xfe, 0, "the answer is in memory");
    }
    (two.a.read(0, 8).try_into().expect("eight bytes"), syndrome)
}

fn eights(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

fn fours(values: [u32; 4]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_be_bytes()).collect()
}

#[test]
fn swaps_of_eight_bytes_compare_and_change_bits_under_masks() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    two.b.write(64, &OLD.to_be_bytes());
    // In this order: swap, compare, mask of the swap, mask of the comparison.
    let hit = eights(&[0xaaaa_bbbb_cccc_dddd, 0x88, 0x0000_ffff_0000_ffff, 0xff]);
    assert_eq!(run(&mut two, &mut qa, SWAP_8, 64, &hit), (OLD.to_be_bytes(), 0));
    assert_eq!(two.b.read(64, 8), 0x1122_bbbb_5566_dddd_u64.to_be_bytes());
    let (answer, _) = run(&mut two, &mut qa, SWAP_8, 64, &hit);
    assert_eq!(answer, 0x1122_bbbb_5566_dddd_u64.to_be_bytes());
    assert_eq!(two.b.read(64, 8), 0x1122_bbbb_5566_dddd_u64.to_be_bytes(), "no longer 0x88");
}

#[test]
fn sums_of_eight_bytes_stay_in_their_fields() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected(RC);
    two.b.write(64, &0x00ff_00ff_ffff_ffff_u64.to_be_bytes());
    // In this order: add, the last bits of the fields. Sixteen bytes, not the 32 of a swap.
    let add = eights(&[0x0001_0001_0001_0001, 0x8000_8000_8000_8000]);
    let (answer, _) = run(&mut two, &mut qa, ADD_8, 64, &add);
    assert_eq!(answer, 0x00ff_00ff_ffff_ffff_u64.to_be_bytes());
    assert_eq!(two.b.read(64, 8), 0x0100_0100_0000_0000_u64.to_be_bytes());
}

#[test]
fn four_bytes_are_a_number_of_the_host_and_their_neighbours_stay() {
    for at in [64, 68] {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        two.b.write(60, &[0x77; 16]);
        two.b.write(at, &0x00ff_ffff_u32.to_le_bytes());
        // Two fields of 16 bits: 0x00ff and 0xffff.
        let add = fours([0x0001_0001, 0x8000_8000, 0, 0]);
        let (answer, _) = run(&mut two, &mut qa, ADD_4, at, &add);
        // The answer is big-endian, four bytes of it.
        assert_eq!(answer, [0x00, 0xff, 0xff, 0xff, 0xee, 0xee, 0xee, 0xee]);
        assert_eq!(two.b.read(at, 4), 0x0100_0000_u32.to_le_bytes());
        let swap = fours([0x1111_2222, 0x0100_0000, 0x0000_ffff, 0xff00_0000]);
        let (answer, _) = run(&mut two, &mut qa, SWAP_4, at, &swap);
        assert_eq!(answer[..4], 0x0100_0000_u32.to_be_bytes());
        assert_eq!(two.b.read(at, 4), 0x0100_2222_u32.to_le_bytes());
        assert_eq!(two.b.read(60, at - 60), vec![0x77; at - 60]);
        assert_eq!(two.b.read(at + 4, 72 - at), vec![0x77; 72 - at]);
    }
}

#[test]
fn what_a_masked_atomic_may_not_be() {
    let none = eights(&[0, 0, 0, 0]);
    let all: [(u32, (usize, u32), u8); 6] = [
        // 0x02: a size that is not advertised, and no modifier at all.
        (0x0a00_0014, (64, 16), 0x02),
        (0x14, (64, 8), 0x02),
        // 0x01: another length of the answer.
        (SWAP_8, (64, 4), 0x01),
        (SWAP_4, (64, 8), 0x01),
        // 0x12: not aligned to its own size; four bytes need four only.
        (ADD_8, (68, 8), 0x12),
        (ADD_4, (66, 4), 0x12),
    ];
    for (opcode, place, syndrome) in all {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        let len = if opcode & 0xff == 0x15 || opcode == SWAP_4 { 16 } else { 32 };
        let (_, got) = run_of(&mut two, &mut qa, opcode, place, &none[..len]);
        assert_eq!(got, syndrome, "{opcode:#x} at {place:?}");
    }
}

/// A list of pieces may put an aligned address at any place of memory: what lies before the piece
/// belongs to no key.
#[test]
fn four_bytes_that_a_key_puts_at_an_odd_place_are_not_touched() {
    const KLM: u32 = 2;
    for odd in 0..4 {
        let mut two = Two::new();
        let (mut qa, _qb) = two.connected(RC);
        two.b.write(60, &[0x77; 16]);
        let set = [
            (0, 0x0200_0000),
            (0x10, KLM << 8 | ALL_RIGHTS),
            (0x14, 0xffff_ff07),
            (0x1c, two.b.pd),
            (0x2c, 8),
            (0x44, 1),
            (0x60, 1),
        ];
        let mut create = input(0x110, &set);
        create.extend(words(&[8, two.b.key]));
        create.extend((two.b.memory.iova() + 64 + odd).to_be_bytes());
        let key = two.b.host.ok(&create, 0x10).word(8) << 8 | 7;
        // Segments of the address and the key, then of the operands: swap all of it.
        let mut segments = words(&[0, 0, key, 0]);
        segments.extend(fours([0x1111_2222, 0, 0xffff_ffff, 0]));
        segments.extend(two.a.sge(0, 4));
        two.a.post_send(&mut qa, &work(SWAP_4), &segments);
        two.run();
        let done = two.a.polled().remove(0);
        let changed = two.b.read(60, 16) != [0x77; 16];
        assert_eq!((done.opcode() == 13, changed), (odd != 0, odd == 0), "{odd}: {done:?}");
    }
}

#[test]
fn the_context_of_the_responder_has_to_permit_them() {
    for (mode, syndrome) in [(0, 0x12), (1, 0x12), (2, 0x12), (ATOMIC_MODE_8B, 0)] {
        let mut two = Two::new();
        let (mut qa, qb) = (two.a.create_qp(RC), two.b.create_qp(RC));
        let (to_b, to_a) = two.targets(&qa, &qb);
        two.a.connect(&qa, RC, &to_b, TIMEOUT);
        two.b.enter_init(&qb, RC);
        let mut bytes = init2rtr(qb.qpn, &to_a);
        bytes[0xa9] = bytes[0xa9] & 0xf0 | mode as u8;
        two.b.host.ok(&bytes, 0x10);
        two.b.host.ok(&rtr2rts(qb.qpn, &to_a, TIMEOUT), 0x10);
        let (_, got) = run(&mut two, &mut qa, ADD_8, 64, &eights(&[1, 0]));
        assert_eq!(got, syndrome, "atomic_mode {mode}");
    }
}

#[test]
fn a_repeated_one_is_answered_again_and_not_done_again() {
    use ferrocx_model::wire::{Impair, ImpairConfig, SplitMix64, link};
    let (to_b, to_a) = link(1 << 20);
    let config = ImpairConfig { duplicate_ppm: 1_000_000, ..ImpairConfig::default() };
    let mut two = Two::on(Impair::new(to_b, config, SplitMix64::new(1)), to_a);
    let (mut qa, _qb) = two.connected(RC);
    two.b.write(64, &0_u64.to_be_bytes());
    for round in 0..10_u64 {
        let (answer, _) = run(&mut two, &mut qa, ADD_8, 64, &eights(&[1, 0]));
        assert_eq!(answer, round.to_be_bytes());
    }
    assert_eq!(two.b.read(64, 8), 10_u64.to_be_bytes());
}
