//! A drive that does what it should: every byte, every way of saying where it is, every size.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Plan, Seen, World};
use ferrocx_nvme::{Config, Done, Namespace, NvmeError, Op, Refused};

const BLOCK: usize = 512;

fn ok(token: u64) -> Done {
    Done { token, result: Ok(()) }
}

#[test]
fn a_drive_is_opened_identified_and_shut_down() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    assert_eq!((drive.info().serial.as_str(), drive.info().max_transfer), ("FAKE", 16 << 10));
    let expected = Namespace { nsid: 1, blocks: 4096, block_shift: 9 };
    assert_eq!(drive.namespace(1).unwrap(), expected);
    for nsid in [0, 3, u32::MAX] {
        assert!(matches!(drive.namespace(nsid), Err(NvmeError::NoNamespace { most: 2, .. })));
    }
    let mut queue = world.queue(&mut drive);
    drop(drive);
    assert_eq!(world.fake().shutdowns, 1);
    assert_eq!(queue.poll(), None);
    assert_eq!(queue.push(1, Op::Flush), Err(Refused::Gone));
    assert_eq!(Arc::strong_count(&world.transport), 1, "everything lets go of the drive");
    // A second driver finds it as the first did.
    drop(queue);
    world.open();
    assert_eq!(world.fake().enables, 2);
}

/// Every transfer of a random sequence is compared with a copy of the disk.
fn random(plan: Plan, config: &Config, by_sgl: bool) {
    let world = World::new(plan);
    let mut drive = world.open_as(config).unwrap();
    let mut queue = world.queue(&mut drive);
    let mut oracle = world.fake().disk.clone();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    for round in 0..600_u64 {
        let blocks = 1 + random(60);
        let (lba, offset) = (random(4096 - blocks), 4 * random(8000));
        let len = blocks * BLOCK;
        let offset = offset.min((64 << 10) - len);
        let piece = world.piece(offset, len);
        let stored = &mut oracle[lba * BLOCK..lba * BLOCK + len];
        let lba = lba as u64;
        let is_write = random(2) == 0;
        if is_write {
            let data: Vec<u8> = (0..len).map(|at| (at as u64 * 7 + round) as u8).collect();
            world.memory.copy_in(offset, &data).unwrap();
            stored.copy_from_slice(&data);
            queue.push(round, Op::Write { lba, from: piece, is_durable: false }).unwrap();
        } else {
            world.memory.fill(0, 64 << 10, 0xa5).unwrap();
            queue.push(round, Op::Read { lba, to: piece }).unwrap();
        }
        assert_eq!(world.a_moment(&mut drive, &mut queue), [ok(round)], "round {round}");
        if !is_write {
            let mut all = vec![0; 64 << 10];
            world.memory.copy_out(0, &mut all).unwrap();
            assert!(all[offset..offset + len] == *stored, "round {round}");
            let is_outside = |at: &usize| *at < offset || *at >= offset + len;
            assert!((0..64 << 10).filter(is_outside).all(|at| all[at] == 0xa5), "round {round}");
        }
    }
    assert!(world.fake().disk == oracle);
    assert!(world.fake().seen.iter().all(|seen| seen.by_sgl == by_sgl));
    assert_eq!(queue.under_way(), 0);
}

#[test]
fn bytes_are_where_lists_of_pages_say() {
    let config = Config { entries: 4, ..Config::default() };
    random(Plan { sgls: 0, ..Plan::default() }, &config, false);
    // The whole of a request by one command, and the doorbells further apart.
    let cap = Plan::default().cap | 2 << 32;
    random(Plan { mdts: 0, cap, ..Plan::default() }, &Config { use_sgl: false, ..config }, false);
}

#[test]
fn bytes_are_where_descriptors_say() {
    random(Plan::default(), &Config { entries: 2, ..Config::default() }, true);
    random(Plan { sgls: 2, mdts: 1, ..Plan::default() }, &Config::default(), true);
    // One that says that it takes them, and is better not believed.
    let (huawei, config) = (Plan { id: (0x19e5, 0x1234), ..Plan::default() }, Config::default());
    random(huawei, &config, false);
}

#[test]
fn long_requests_are_cut_and_short_ones_wait_in_order() {
    let world = World::new(Plan { mdts: 1, ..Plan::default() });
    let mut drive = world.open_as(&Config { entries: 4, ..Config::default() }).unwrap();
    let mut queue = world.queue(&mut drive);
    // 7 commands of 16 blocks at most for 3 places; then one more.
    queue.push(1, Op::Read { lba: 5, to: world.piece(0, 100 * BLOCK) }).unwrap();
    queue.push(2, Op::Flush).unwrap();
    assert_eq!(queue.under_way(), 2);
    assert_eq!(world.a_moment(&mut drive, &mut queue), [ok(1), ok(2)]);
    let fake = world.fake();
    let reads: Vec<_> = fake.seen.iter().map(|it| (it.opcode, it.lba, it.blocks)).collect();
    let mut expected: Vec<_> = (0..6).map(|at| (2, 5 + 16 * at, 16)).collect();
    expected.extend([(2, 101, 4), (0, 0, 1)]);
    assert_eq!(reads, expected);
}

#[test]
fn zeros_and_room_are_cut_as_the_drive_says() {
    // 8 KiB, and 10 blocks; and a drive that does not say.
    for (limits, zeroes, ranges) in [(Some((1, 10)), vec![16, 16, 8], 3), (None, vec![32, 8], 1)] {
        let world = World::new(Plan { limits: Some(limits), ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        world.fake().disk.fill(7);
        queue.push(1, Op::Zero { lba: 100, blocks: 40, may_deallocate: true }).unwrap();
        queue.push(2, Op::Deallocate { lba: 200, blocks: 25 }).unwrap();
        let mut done = world.a_moment(&mut drive, &mut queue);
        done.sort_by_key(|it| it.token);
        assert_eq!(done, [ok(1), ok(2)], "{limits:?}");
        let fake = world.fake();
        let of = |opcode| fake.seen.iter().filter(move |it| it.opcode == opcode);
        assert_eq!(of(8).map(|it| it.blocks).collect::<Vec<_>>(), zeroes);
        assert_eq!(of(9).count(), ranges);
        let is = |byte, blocks: std::ops::Range<usize>| {
            fake.disk[blocks.start * BLOCK..blocks.end * BLOCK].iter().all(|it| *it == byte)
        };
        assert!(is(7, 99..100) && is(0, 100..140) && is(7, 140..200));
        assert!(is(0, 200..225) && is(7, 225..226));
    }
}

#[test]
fn commands_without_data_do_what_they_say() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.fake().disk.fill(7);
    let from = world.piece(0, BLOCK);
    queue.push(1, Op::Write { lba: 9, from, is_durable: true }).unwrap();
    queue.push(2, Op::Flush).unwrap();
    queue.push(3, Op::Zero { lba: 100, blocks: 40, may_deallocate: true }).unwrap();
    queue.push(4, Op::Deallocate { lba: 4000, blocks: 96 }).unwrap();
    queue.push(5, Op::Zero { lba: 0, blocks: 1, may_deallocate: false }).unwrap();
    queue.push(6, Op::Zero { lba: 4096, blocks: 0, may_deallocate: false }).unwrap();
    let mut done = world.a_moment(&mut drive, &mut queue);
    done.sort_by_key(|it| it.token);
    assert_eq!(done, (1..=6).map(ok).collect::<Vec<_>>());
    let fake = world.fake();
    let seen = |opcode: u8, lba, blocks, flags| Seen { opcode, by_sgl: false, lba, blocks, flags };
    let write = Seen { by_sgl: true, ..seen(1, 9, 1, 1 << 30) };
    let expected = [write, seen(0, 0, 1, 0), seen(8, 100, 32, 1 << 25), seen(8, 132, 8, 1 << 25)];
    assert_eq!(fake.seen[..4], expected);
    assert_eq!((fake.flushes, fake.seen[5]), (1, seen(8, 0, 1, 0)));
    let is_zero =
        |from: usize, to: usize| fake.disk[from * BLOCK..to * BLOCK].iter().all(|b| *b == 0);
    assert!(is_zero(100, 140) && is_zero(4000, 4096) && is_zero(0, 1) && is_zero(9, 10));
    assert!(!is_zero(99, 100) && !is_zero(140, 141) && !is_zero(3999, 4000));
}

#[test]
fn what_a_drive_lacks_is_said_and_what_it_needs_not_is_not_asked() {
    let world = World::new(Plan { oncs: 0, vwc: 0, ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    let zero = Op::Zero { lba: 0, blocks: 1, may_deallocate: false };
    assert_eq!(queue.push(1, zero), Err(Refused::Unsupported));
    let deallocate = Op::Deallocate { lba: 0, blocks: 1 };
    assert_eq!(queue.push(1, deallocate), Err(Refused::Unsupported));
    queue.push(2, Op::Flush).unwrap();
    assert_eq!(world.a_moment(&mut drive, &mut queue), [ok(2)]);
    assert_eq!(world.fake().seen, []);
}

#[test]
fn what_cannot_be_is_refused_and_leaves_nothing() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    let piece = |offset, len| world.piece(offset, len);
    let outside = ferrocx_mempool::Piece { address: 4096, ..piece(0, BLOCK) };
    for (lba, to, why) in [
        (4096, piece(0, BLOCK), Refused::Range),
        (4095, piece(0, 2 * BLOCK), Refused::Range),
        (u64::MAX, piece(0, BLOCK), Refused::Range),
        (0, piece(2, BLOCK), Refused::Memory),
        (0, piece(0, BLOCK - 4), Refused::Memory),
        (0, piece((64 << 10) - 256, BLOCK), Refused::Memory),
        (0, outside, Refused::Memory),
    ] {
        assert_eq!(queue.push(1, Op::Read { lba, to }), Err(why), "{lba} {to:?}");
    }
    assert_eq!(queue.under_way(), 0);
    // Four requests for each of the seven commands.
    let read = Op::Read { lba: 0, to: piece(0, BLOCK) };
    for token in 0..28 {
        queue.push(token, read).unwrap();
    }
    assert_eq!(queue.push(28, read), Err(Refused::Full));
    let expected: Vec<_> = (0..28).map(ok).collect();
    assert_eq!(world.a_moment(&mut drive, &mut queue), expected);
    queue.push(29, read).unwrap();
    assert_eq!(world.a_moment(&mut drive, &mut queue), [ok(29)]);
}

#[test]
fn queues_of_several_cores_do_not_meet_and_run_out() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    let mut queues: Vec<_> = (0..4).map(|_| world.queue(&mut drive)).collect();
    let refused = drive.queue(1, &[Arc::clone(&world.memory)]).unwrap_err();
    assert!(matches!(refused, NvmeError::NoQueue { most: 4, .. }), "{refused}");
    for (lba, queue) in (0..).zip(&mut queues) {
        queue.push(lba, Op::Read { lba, to: world.piece(0, BLOCK) }).unwrap();
    }
    for (lba, queue) in (0..).zip(&mut queues) {
        assert_eq!(world.a_moment(&mut drive, queue), [ok(lba)]);
    }
    // One that goes makes room for another, with what was under way on it.
    let mut gone = queues.remove(1);
    gone.push(1, Op::Read { lba: 1, to: world.piece(0, BLOCK) }).unwrap();
    gone.ring();
    let held = Arc::strong_count(&world.memory);
    drop(gone);
    assert_eq!(Arc::strong_count(&world.memory), held, "the drive may use it still");
    world.a_moment(&mut drive, &mut queues[0]);
    let each = (held - 1) / 4;
    assert_eq!((world.fake().deleted, Arc::strong_count(&world.memory)), (2, held - each));
    let mut again = world.queue(&mut drive);
    again.push(5, Op::Flush).unwrap();
    assert_eq!(world.a_moment(&mut drive, &mut again), [ok(5)]);
}

#[test]
fn no_pool_lies_over_memory_of_a_queue() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    let queue = world.queue(&mut drive);
    let config = ferrocx_mempool::PoolConfig {
        count: 4,
        data_room_bytes: 2048,
        cache_size: 0,
        ..Default::default()
    };
    let pool = || ferrocx_mempool::Pool::with_region(&config, &world.memory, 0);
    assert!(pool().is_err());
    drop(queue);
    drop(drive);
    pool().unwrap();
    let mut drive = world.open();
    let _pool = pool().unwrap();
    let refused = drive.queue(1, &[Arc::clone(&world.memory)]).unwrap_err();
    assert!(matches!(refused, NvmeError::Mempool(_)), "{refused}");
}

#[test]
fn each_wrong_setting_is_named_with_its_limit() {
    let world = World::new(Plan::default());
    let default = Config::default;
    for (config, says) in [
        (Config { entries: 1, ..default() }, "entries is 1; give 2 to 1024"),
        (Config { entries: 100, ..default() }, "entries (a power of two) is 100"),
        (Config { queues: 0, ..default() }, "queues is 0; give 1 to 256"),
        (Config { timeout: Duration::ZERO, ..default() }, "timeout in ms is 0"),
    ] {
        let error = world.open_as(&config).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
