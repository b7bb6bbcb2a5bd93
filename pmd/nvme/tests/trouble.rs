//! Drives that fail, hang, lie, or go: what was under way ends, and memory is never the drive's and
//! somebody else's.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Lie, Plan, World};
use ferrocx_bus::{BusError, Notice, Transport};
use ferrocx_nvme::{
    Config, Controller, Done, Failure, Health, IoQueue, NvmeError, Op, Refused, Status,
};

const BLOCK: usize = 512;
/// How long a command may take; as `World::open` has it.
const TIMEOUT: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(12);

fn ok(token: u64) -> Done {
    Done { token, result: Ok(()) }
}

fn failed(token: u64, failure: Failure) -> Done {
    Done { token, result: Err(failure) }
}

fn read(world: &World, lba: u64) -> Op {
    Op::Read { lba, to: world.piece(0, BLOCK) }
}

fn works(world: &World, drive: &mut Controller, queue: &mut IoQueue) {
    queue.push(77, read(world, 1)).unwrap();
    assert_eq!(world.a_moment(drive, queue), [ok(77)]);
    assert_eq!(drive.tend(), Health::Ready);
}

#[test]
fn a_failed_part_fails_its_request_and_no_other() {
    let world = World::new(Plan { mdts: 1, fails: vec![(16, 0x281)], ..Plan::default() });
    let mut drive =
        world.open_as(&Config { entries: 2, timeout: TIMEOUT, ..Config::default() }).unwrap();
    let mut queue = world.queue(&mut drive);
    queue.push(1, Op::Read { lba: 0, to: world.piece(0, 64 * BLOCK) }).unwrap();
    queue.push(2, read(&world, 0)).unwrap();
    let status = Failure::Status(Status(0x281));
    assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, status), ok(2)]);
    // What was behind the failure was not even asked for.
    let lbas: Vec<u64> = world.fake().seen.iter().map(|it| it.lba).collect();
    assert_eq!(lbas, [0, 16, 0]);
    works(&world, &mut drive, &mut queue);
}

#[test]
fn what_takes_too_long_is_aborted_and_others_go_on() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    queue.push(2, read(&world, 2)).unwrap();
    let early = world.run(&mut drive, &mut queue, Duration::from_secs(4));
    assert_eq!((early, drive.counts().aborts), (vec![ok(2)], 0));
    let late = world.run(&mut drive, &mut queue, Duration::from_secs(2));
    assert_eq!(late, [failed(1, Failure::TimedOut)]);
    assert_eq!((drive.counts().aborts, drive.counts().resets), (1, 0));
    works(&world, &mut drive, &mut queue);
}

#[test]
fn what_ends_well_before_its_abort_has_ended_well() {
    let world = World::new(Plan { hangs: vec![50], aborts: false, ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    world.run(&mut drive, &mut queue, Duration::from_millis(5500));
    assert_eq!(drive.counts().aborts, 1);
    world.fake().let_go(0);
    assert_eq!(world.run(&mut drive, &mut queue, LONG), [ok(1)]);
    assert_eq!(drive.counts().resets, 0);
    works(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_that_does_not_abort_is_reset_and_its_queues_come_back() {
    let world = World::new(Plan { hangs: vec![50, 51], aborts: false, ..Plan::default() });
    let mut drive = world.open();
    let (mut one, mut two) = (world.queue(&mut drive), world.queue(&mut drive));
    one.push(1, read(&world, 50)).unwrap();
    two.push(2, read(&world, 51)).unwrap();
    two.ring();
    world.fake().step();
    let done = world.run(&mut drive, &mut one, LONG);
    assert_eq!(done, [failed(1, Failure::TimedOut)]);
    assert_eq!(drive.counts().resets, 1);
    // The other core has not looked yet.
    assert_eq!(two.push(3, Op::Flush), Err(Refused::NotReady));
    assert_eq!(two.poll(), Some(failed(2, Failure::Reset)));
    assert_eq!(two.poll(), None);
    assert_eq!(two.push(3, Op::Flush), Err(Refused::NotReady));
    works(&world, &mut drive, &mut one);
    works(&world, &mut drive, &mut two);
}

#[test]
fn a_drive_that_lies_is_reset() {
    for lie in [Lie::FreeCommand, Lie::NoCommand, Lie::Queue, Lie::Head, Lie::Twice] {
        let world = World::new(Plan { lie: Some(lie), ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        queue.push(1, read(&world, 1)).unwrap();
        let done = world.a_moment(&mut drive, &mut queue);
        let expected = if lie == Lie::Twice { ok(1) } else { failed(1, Failure::Reset) };
        assert_eq!(done, [expected], "{lie:?}");
        assert_eq!(drive.counts().resets, 1, "{lie:?}");
        works(&world, &mut drive, &mut queue);
    }
}

/// Its place is another command's by then, which the drive still works on.
#[test]
fn a_completion_that_is_repeated_later_ends_no_other_command() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    // Two entries: one command at a time, so that all have the same place.
    let mut drive =
        world.open_as(&Config { entries: 2, timeout: TIMEOUT, ..Config::default() }).unwrap();
    let mut queue = world.queue(&mut drive);
    for round in 0..3 {
        works(&world, &mut drive, &mut queue);
        queue.push(1, read(&world, 50)).unwrap();
        queue.ring();
        world.fake().step();
        world.fake().repeat();
        assert_eq!(queue.poll(), None);
        let done = world.a_moment(&mut drive, &mut queue);
        assert_eq!((done, drive.counts().resets), (vec![failed(1, Failure::Reset)], round + 1));
    }
    // All numbers that the place has, and from the start.
    for _ in 0..130 {
        works(&world, &mut drive, &mut queue);
    }
    assert_eq!((drive.counts().aborts, drive.counts().resets), (0, 3));
}

#[test]
fn a_fatal_status_is_a_reason_for_a_reset() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    world.a_moment(&mut drive, &mut queue);
    world.fake().set_fatal();
    let done = world.a_moment(&mut drive, &mut queue);
    assert_eq!((done, drive.counts().resets), (vec![failed(1, Failure::Reset)], 1));
    works(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_that_does_not_stop_has_its_function_reset() {
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.fake().plan.never_stops = true;
    queue.push(1, read(&world, 1)).unwrap();
    let done = world.a_moment(&mut drive, &mut queue);
    assert_eq!((done, drive.counts().resets), (vec![failed(1, Failure::Reset)], 1));
    works(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_that_does_not_come_back_has_its_function_reset_once() {
    type Change = fn(&mut Plan);
    let changes: [(Change, bool); 3] = [
        (|plan| plan.never_ready = true, true),
        // An Identify without an answer, and one that is refused at each try.
        (|plan| plan.silent = Some(0x06), true),
        (|plan| plan.refuses = Some(0x06), false),
    ];
    for (change, heals) in changes {
        let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        queue.push(1, read(&world, 1)).unwrap();
        queue.ring();
        world.fake().step();
        assert_eq!(queue.poll(), None);
        change(&mut world.fake().plan);
        let health = drive.tend();
        assert_eq!((world.fake().resets, drive.counts().resets), (1, 1));
        if heals {
            assert_eq!(health, Health::Ready);
            assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, Failure::Reset)]);
            works(&world, &mut drive, &mut queue);
        } else {
            let Health::Gone(why) = health else { panic!("it is there still") };
            assert!(why.contains("Identify failed: invalid field"), "{why}");
            is_gone(&world, &mut drive, &mut queue);
        }
    }
}

/// Registers that cannot be read for a while are no reason to give a drive up that is being reset.
#[test]
fn a_drive_that_does_not_answer_at_once_is_waited_for() {
    for never_stops in [false, true] {
        let world = World::new(Plan { mute: 1000, lie: Some(Lie::Head), ..Plan::default() });
        world.fake().mute();
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        queue.push(1, read(&world, 1)).unwrap();
        world.fake().plan.never_stops = never_stops;
        assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, Failure::Reset)]);
        works(&world, &mut drive, &mut queue);
        assert_eq!(world.fake().resets, u32::from(never_stops));
        assert_eq!(drive.counts().resets, 1);
    }
    // One that never answers has gone; there is no wait for the shutdown of one that has.
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 1)).unwrap();
    queue.ring();
    world.fake().step();
    assert_eq!(queue.poll(), None);
    {
        let plan = &mut world.fake().plan;
        (plan.mute, plan.ignores_reset) = (u32::MAX, true);
    }
    let Health::Gone(_) = drive.tend() else { panic!("it is there still") };
    is_gone(&world, &mut drive, &mut queue);
    let world = World::new(Plan::default());
    let drive = world.open();
    let before = world.transport.now();
    world.fake().set_gone();
    drop(drive);
    assert_eq!(world.transport.now(), before);
}

/// By their PCI identity: how long they are left alone behind a reset and a stop.
#[test]
fn drives_that_need_it_are_left_alone_for_a_while() {
    let [none, two, more] = [0, 2000, 2500].map(Duration::from_millis);
    for (id, opens, resets, function_resets) in [
        (Plan::default().id, none, none, none),
        ((0x8086, 0x0a55), none, none, none),
        ((0x8086, 0x0953), two, none, two),
        ((0x8086, 0x0a54), two, none, two),
        // Behind a reset of its function it is off already.
        ((0x144d, 0xa822), none, more, more),
        ((0x1c58, 0x0003), none, more, more),
    ] {
        for (never_stops, expected) in [(false, resets), (true, function_resets)] {
            let world = World::new(Plan { id, lie: Some(Lie::Head), ..Plan::default() });
            let before = world.transport.now();
            let mut drive = world.open();
            let took = world.transport.now() - before;
            assert!(took >= opens && took < opens + Duration::from_millis(100), "{id:x?} {took:?}");
            let mut queue = world.queue(&mut drive);
            queue.push(1, read(&world, 1)).unwrap();
            queue.ring();
            world.fake().step();
            assert_eq!(queue.poll(), None);
            world.fake().plan.never_stops = never_stops;
            // So long it has to stop, CAP.TO.
            let expected = if never_stops { expected + two } else { expected };
            let before = world.transport.now();
            assert_eq!(drive.tend(), Health::Ready);
            let took = world.transport.now() - before;
            let is_so = took >= expected && took < expected + Duration::from_millis(100);
            assert!(is_so, "{id:x?} {never_stops}: {took:?}, not {expected:?}");
        }
    }
}

/// A fatal status may stand for a while behind the reset that it is the reason for.
#[test]
fn a_fatal_status_counts_when_the_time_to_get_ready_is_over() {
    let world = World::new(Plan { slow_ready: 100, ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    works(&world, &mut drive, &mut queue);
    assert_eq!(world.fake().resets, 0);
    drop((queue, drive));
    let world = World::new(Plan { slow_ready: u32::MAX, ..Plan::default() });
    let before = world.transport.now();
    let error = world.open_as(&Config::default()).unwrap_err().to_string();
    assert!(error.contains("reports a fatal status"), "{error}");
    assert!(world.transport.now() - before > Duration::from_secs(2));
}

/// Everything that was under way has ended, nothing new is taken, and nothing is mapped.
fn is_gone(world: &World, drive: &mut Controller, queue: &mut IoQueue) {
    assert_eq!(queue.poll(), Some(failed(1, Failure::Gone)));
    assert_eq!(queue.poll(), None);
    assert_eq!(queue.push(2, Op::Flush), Err(Refused::Gone));
    assert!(matches!(drive.tend(), Health::Gone(_)));
    assert!(matches!(drive.namespace(1), Err(NvmeError::Gone { .. })));
    assert_eq!((Arc::strong_count(&world.memory), Arc::strong_count(&world.transport)), (1, 1));
}

#[test]
fn a_drive_that_cannot_be_stopped_at_all_is_given_up() {
    let world = World::new(Plan { hangs: vec![50], aborts: false, ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    {
        let mut fake = world.fake();
        (fake.plan.never_stops, fake.plan.ignores_reset) = (true, true);
    }
    queue.push(1, read(&world, 50)).unwrap();
    let mut health = Health::Ready;
    for _ in 0..1200 {
        world.transport.pass(Duration::from_millis(10));
        queue.tick(world.transport.now());
        queue.ring();
        world.fake().step();
        health = drive.tend();
    }
    let Health::Gone(why) = health else { panic!("it is there still") };
    assert!(why.contains("no end of its reset within 2000 ms"), "{why}");
    is_gone(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_whose_access_nobody_can_end_keeps_its_memory() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.transport.is_stuck.store(true, Ordering::Release);
    queue.push(1, read(&world, 50)).unwrap();
    queue.ring();
    world.fake().step();
    world.fake().set_gone();
    assert!(matches!(drive.tend(), Health::Gone(_)));
    assert_eq!(queue.poll(), Some(failed(1, Failure::Stuck)));
    assert_eq!((queue.poll(), queue.under_way()), (None, 0));
    assert_eq!(queue.push(2, Op::Flush), Err(Refused::Gone));
    drop((queue, drive));
    // Its memory is kept for the drive.
    assert!(Arc::strong_count(&world.memory) > 1 && Arc::strong_count(&world.transport) > 1);
}

#[test]
fn a_drive_that_left_the_bus_is_given_up_at_once() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    queue.ring();
    world.fake().step();
    world.fake().set_gone();
    let Health::Gone(why) = drive.tend() else { panic!("it is there still") };
    assert!(why.contains("reads as all ones"), "{why}");
    is_gone(&world, &mut drive, &mut queue);
    assert_eq!(drive.counts().resets, 0);
}

#[test]
fn a_drive_that_the_kernel_wants_is_given_back_in_order() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    queue.ring();
    world.fake().step();
    *world.transport.notice.lock().unwrap() = Some(Notice::RemovalRequested);
    let Health::Gone(why) = drive.tend() else { panic!("it is there still") };
    assert!(why.contains("the kernel asks for the device back"), "{why}");
    assert_eq!(world.fake().shutdowns, 1);
    is_gone(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_that_is_to_shut_down_is_told_of_nothing_new_and_ends_what_it_has() {
    for finishes in [false, true] {
        let hangs = if finishes { vec![50] } else { Vec::new() };
        let plan = Plan { hangs, finishes, never_shuts: true, ..Plan::default() };
        let world = World::new(plan);
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        if finishes {
            queue.push(1, read(&world, 50)).unwrap();
            queue.ring();
            world.fake().step();
        }
        let put = |queue| *world.transport.core.lock().unwrap() = queue;
        put(Some(queue));
        *world.transport.polled.lock().unwrap() = Some(Vec::new());
        *world.transport.notice.lock().unwrap() = Some(Notice::RemovalRequested);
        assert!(matches!(drive.tend(), Health::Gone(_)));
        put(None);
        let ended = world.transport.polled.lock().unwrap().take().unwrap();
        assert_eq!(ended, if finishes { vec![ok(1)] } else { vec![] });
        assert_eq!(world.fake().flushes, 0);
    }
}

#[test]
fn a_drive_that_comes_back_as_another_is_given_up() {
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.fake().plan.mdts = 1;
    queue.push(1, read(&world, 1)).unwrap();
    queue.ring();
    world.fake().step();
    assert_eq!(queue.poll(), None);
    let Health::Gone(why) = drive.tend() else { panic!("it is there still") };
    assert!(why.contains("as another"), "{why}");
    is_gone(&world, &mut drive, &mut queue);
}

#[test]
fn a_drive_that_comes_back_with_other_firmware_goes_on() {
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    {
        let plan = &mut world.fake().plan;
        (plan.firmware, plan.rtd3e_us, plan.mdts) = (b'2', 9, 3);
    }
    queue.push(1, read(&world, 1)).unwrap();
    assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, Failure::Reset)]);
    works(&world, &mut drive, &mut queue);
    let info = drive.info();
    assert_eq!((info.firmware.as_str(), info.shutdown_us), ("2", 9));
    assert_eq!(drive.counts().resets, 1);
}

#[test]
fn queues_that_cannot_be_made_again_are_the_end() {
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.fake().plan.refuses = Some(0x01);
    queue.push(1, read(&world, 1)).unwrap();
    assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, Failure::Reset)]);
    let Health::Gone(why) = drive.tend() else { panic!("it is there still") };
    assert!(why.contains("Create I/O Submission Queue failed: invalid field"), "{why}");
}

#[test]
fn no_doorbell_is_lost_while_a_queue_is_made_again() {
    let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 1)).unwrap();
    queue.ring();
    world.fake().step();
    assert_eq!(queue.poll(), None);
    drive.tend();
    assert_eq!((queue.poll(), queue.poll()), (Some(failed(1, Failure::Reset)), None));
    *world.transport.core.lock().unwrap() = Some(queue);
    assert_eq!(drive.tend(), Health::Ready);
    let mut queue = world.transport.core.lock().unwrap().take().unwrap();
    // What was taken meanwhile, if anything, ends.
    let taken = queue.under_way();
    assert_eq!(world.a_moment(&mut drive, &mut queue).len(), taken);
    works(&world, &mut drive, &mut queue);
    assert_eq!(drive.counts().resets, 1);
}

#[test]
fn a_queue_that_was_lied_to_and_dropped_costs_one_reset() {
    for is_dropped in [true, false] {
        let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        queue.push(1, read(&world, 1)).unwrap();
        queue.ring();
        world.fake().step();
        assert_eq!(queue.poll(), None);
        // Or its core does not look for a while.
        let kept = (!is_dropped).then_some(queue);
        for _ in 0..5 {
            assert_eq!(drive.tend(), Health::Ready);
        }
        assert_eq!(drive.counts().resets, 1);
        let mut queue = kept.unwrap_or_else(|| world.queue(&mut drive));
        world.a_moment(&mut drive, &mut queue);
        works(&world, &mut drive, &mut queue);
    }
}

#[test]
fn a_queue_that_the_drive_does_not_delete_keeps_its_memory_until_a_reset() {
    for opcode in [0x00, 0x04] {
        let world = World::new(Plan::default());
        let mut drive = world.open();
        let queue = world.queue(&mut drive);
        world.fake().plan.refuses = Some(opcode);
        drop(queue);
        assert_eq!((drive.tend(), drive.counts().resets), (Health::Ready, 1), "{opcode:#x}");
        world.fake().plan.refuses = None;
        assert_eq!((drive.tend(), Arc::strong_count(&world.memory)), (Health::Ready, 1));
        let mut queue = world.queue(&mut drive);
        works(&world, &mut drive, &mut queue);
        assert_eq!(drive.counts().resets, 1);
    }
}

#[test]
fn the_number_of_a_late_command_is_not_used_before_the_controller_knows() {
    let world = World::new(Plan { hangs: vec![50], ..Plan::default() });
    // Two entries: one command at a time, so that the next has the same number.
    let mut drive =
        world.open_as(&Config { entries: 2, timeout: TIMEOUT, ..Config::default() }).unwrap();
    let mut queue = world.queue(&mut drive);
    queue.push(1, read(&world, 50)).unwrap();
    queue.push(2, read(&world, 2)).unwrap();
    queue.ring();
    world.fake().step();
    world.transport.pass(Duration::from_secs(6));
    queue.tick(world.transport.now());
    // It ends as the controller is about to send its abort.
    world.fake().let_go(0);
    assert_eq!((queue.poll(), queue.poll()), (Some(ok(1)), None));
    for _ in 0..3 {
        queue.tick(world.transport.now());
        queue.ring();
        world.fake().step();
    }
    assert_eq!((world.fake().seen.len(), queue.poll()), (1, None));
    assert_eq!(world.a_moment(&mut drive, &mut queue), [ok(2)]);
    // There is nothing left to abort, and the next that is late is aborted.
    assert_eq!((drive.counts().aborts, drive.counts().resets), (0, 0));
    queue.push(3, read(&world, 50)).unwrap();
    let done = world.run(&mut drive, &mut queue, Duration::from_secs(6));
    assert_eq!((done, drive.counts().aborts), (vec![failed(3, Failure::TimedOut)], 1));
    works(&world, &mut drive, &mut queue);
}

#[test]
fn a_namespace_that_comes_back_as_another_is_the_end() {
    type Change = fn(&mut Plan);
    let changes: [(Change, &str); 3] = [
        (
            |plan| plan.blocks = 2048,
            "has 2048 blocks of 512 bytes after a reset, it had 4096 of 512",
        ),
        (|plan| plan.block_shift = 12, "has 4096 blocks of 4096 bytes after a reset"),
        (|plan| plan.blocks = 0, "no active namespace 1"),
    ];
    for (change, says) in changes {
        let world = World::new(Plan { lie: Some(Lie::Head), ..Plan::default() });
        let mut drive = world.open();
        let mut queue = world.queue(&mut drive);
        queue.push(1, read(&world, 1)).unwrap();
        queue.ring();
        world.fake().step();
        change(&mut world.fake().plan);
        assert_eq!(world.a_moment(&mut drive, &mut queue), [failed(1, Failure::Reset)]);
        let Health::Gone(why) = drive.tend() else { panic!("it is there still: {says}") };
        assert!(why.contains(says), "{says}: {why}");
        assert_eq!(queue.push(2, Op::Flush), Err(Refused::Gone));
    }
}

#[test]
fn a_queue_that_is_refused_leaves_nothing() {
    let world = World::new(Plan { refuses: Some(0x01), ..Plan::default() });
    let mut drive = world.open();
    let refused = drive.queue(1, &[Arc::clone(&world.memory)]).unwrap_err();
    assert!(matches!(refused, NvmeError::Command { .. }), "{refused}");
    // Its completion queue was there already.
    assert_eq!((world.fake().deleted, Arc::strong_count(&world.memory)), (1, 1));
    world.fake().plan.refuses = None;
    let mut queue = world.queue(&mut drive);
    works(&world, &mut drive, &mut queue);
}

#[test]
fn an_admin_queue_without_answers_is_a_reason_for_a_reset() {
    let world = World::new(Plan::default());
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    world.fake().plan.silent = Some(0x06);
    let late = drive.namespace(1).unwrap_err();
    assert!(
        matches!(late, NvmeError::TimedOut { what: "Identify", limit_ms: 60_000, .. }),
        "{late}"
    );
    queue.push(1, read(&world, 1)).unwrap();
    world.fake().plan.silent = None;
    // The answer that did come is not taken for another's: whoever tends the drive resets it.
    assert!(drive.namespace(1).is_err());
    let done = world.a_moment(&mut drive, &mut queue);
    assert_eq!((done.len(), drive.counts().resets), (1, 1));
    works(&world, &mut drive, &mut queue);
}

#[test]
fn drives_that_cannot_be_used_are_refused_by_name() {
    let cap = Plan::default().cap;
    let plan = Plan::default;
    for (plan, says) in [
        (Plan { cap: cap & !(1 << 37), ..plan() }, "needs the NVM command set"),
        (Plan { cap: cap | 1 << 48, ..plan() }, "CAP.MPSMIN is 1"),
        (Plan { cap: cap & !0xffff, ..plan() }, "CAP.MQES is 0x0"),
        (Plan { cap: u64::MAX, ..plan() }, "reads as all ones"),
        (Plan { never_ready: true, ..plan() }, "no readiness within 2000 ms"),
        (Plan { entry_sizes: [0x77, 0x44], ..plan() }, "SQES is 0x77"),
        (Plan { entry_sizes: [0x66, 0x33], ..plan() }, "CQES is 0x33"),
        (Plan { silent: Some(0x09), ..plan() }, "no Set Features (queues) within 60000 ms"),
        (Plan { refuses: Some(0x06), ..plan() }, "Identify failed: invalid field"),
    ] {
        let world = World::new(plan);
        let error = world.open_as(&Config::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{says}: {error}");
        assert_eq!(Arc::strong_count(&world.transport), 1);
    }
    let world = World::new(Plan { block_shift: 13, blocks: 16, ..plan() });
    let error = world.open().namespace(1).unwrap_err().to_string();
    assert!(error.contains("log2 of a block's bytes is 13"), "{error}");
    // Doorbells outside the BAR of 32 MiB cannot be: the stride is 128 KiB at most.
    let gone = World::new(plan());
    gone.fake().set_gone();
    let error = gone.open_as(&Config::default()).unwrap_err();
    assert!(matches!(error, NvmeError::Bus(BusError::DeviceGone { .. })), "{error}");
}

/// A drive has the time for its shutdown that it says it needs, 5 s at least and a minute at most.
#[test]
fn a_shutdown_has_the_time_that_the_drive_asks_for() {
    let default = Config::default();
    let times = [default.timeout, default.admin_timeout, default.shutdown];
    assert_eq!(times.map(|time| time.as_secs()), [30, 60, 5]);
    for (rtd3e_us, secs) in [(0, 5), (4_999_999, 5), (8_000_000, 8), (3_600_000_000, 60)] {
        let world = World::new(Plan { rtd3e_us, never_shuts: true, ..Plan::default() });
        let drive = world.open_as(&default).unwrap();
        let before = world.transport.now();
        drop(drive);
        let took = world.transport.now() - before;
        assert_eq!(took.as_secs(), secs, "{rtd3e_us} us: {took:?}");
        assert_eq!(world.fake().shutdowns, 1);
    }
}

/// An Abort that gets no answer does not hold a reset up for as long as other admin commands have.
#[test]
fn an_abort_without_an_answer_is_not_waited_for_long() {
    let plan = Plan { hangs: vec![1], silent: Some(0x08), heals: true, ..Plan::default() };
    let world = World::new(plan);
    let mut drive = world.open();
    let mut queue = world.queue(&mut drive);
    queue.push(7, Op::Write { lba: 1, from: world.piece(0, 512), is_durable: false }).unwrap();
    let before = world.transport.now();
    let mut done = Vec::new();
    while done.is_empty() {
        done.extend(world.a_moment(&mut drive, &mut queue));
        let took = world.transport.now() - before;
        assert!(took < TIMEOUT + Duration::from_secs(5), "{took:?}");
    }
    assert_eq!(world.fake().enables, 2, "it was reset");
}
