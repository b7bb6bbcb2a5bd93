//! Compare and Write as one command: carried out both or not at all, with nobody between.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::{
    BLOCK, Here, NQN, StopAtEnd, add_whole, namespace, offers_new_file, with, with_cores,
    with_target,
};
use fake::{Plan, World};
use ferrocx::verbs::{Memory, Mr};
use ferrocx_nvme::Config;
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::drive::Drive;
use ferrocx_nvmf_target::host::{Host, HostQueue, keyed};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Cqe, Fuse, Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

const LIMIT: Duration = Duration::from_secs(20);
/// The namespace that is a file, and the one that is a drive; 1 is RAM.
const FILE: u32 = 7;
const DRIVE: u32 = 8;
/// RAM whose blocks are read and written as one.
const WHOLE: u32 = 9;

fn add_file(here: &Here) {
    assert!(offers_new_file(here, FILE, 4096));
}

/// A host with memory of a few blocks.
struct Side {
    queue: HostQueue,
    memory: std::sync::Arc<Memory>,
    mr: Mr,
    _host: Host,
}

impl Side {
    fn new(here: &Here) -> Self {
        let host = here.host();
        let queue = host.open_queue(1, 32, 0).unwrap();
        let (memory, mr) = host.memory(64 << 10).unwrap();
        Self { queue, memory, mr, _host: host }
    }

    fn fill(&self, at: usize, blocks: usize, value: u8) {
        self.memory.region().copy_in(at * BLOCK, &vec![value; blocks * BLOCK]).unwrap();
    }

    fn sqe(&self, opcode: u8, nsid: u32, (slba, count): (u64, u32), at: usize) -> Sqe {
        let buf = self.mr.buf(at * BLOCK..(at + count as usize) * BLOCK).unwrap();
        Sqe::blocks(opcode, 0, nsid, (slba, count), keyed(&buf))
    }

    /// Submits what is in block 0 on for the Compare and 16 on for the Write.
    fn submit_pair(&mut self, nsid: u32, blocks: (u64, u32)) {
        let first = self.sqe(io::COMPARE, nsid, blocks, 0).fused(Fuse::First);
        let second = self.sqe(io::WRITE, nsid, blocks, 16).fused(Fuse::Second);
        self.queue.submit(first).unwrap();
        self.queue.submit(second).unwrap();
    }

    fn ended(&mut self) -> Cqe {
        self.queue.wait(LIMIT).unwrap()
    }

    fn two(&mut self) -> (Status, Status) {
        (self.ended().status(), self.ended().status())
    }

    fn pair(&mut self, nsid: u32, blocks: (u64, u32)) -> (Status, Status) {
        self.submit_pair(nsid, blocks);
        self.two()
    }

    fn one(&mut self, sqe: Sqe) -> Status {
        self.queue.submit(sqe).unwrap();
        self.ended().status()
    }

    /// What is in a namespace.
    fn read(&mut self, nsid: u32, blocks: (u64, u32)) -> Vec<u8> {
        let read = self.sqe(io::READ, nsid, blocks, 64);
        assert_eq!(self.one(read), Status::SUCCESS);
        self.mr.buf(64 * BLOCK..(64 + blocks.1 as usize) * BLOCK).unwrap().to_vec()
    }
}

const BOTH: (Status, Status) = (Status::SUCCESS, Status::SUCCESS);

#[test]
fn what_is_equal_is_written_and_what_is_not_stays() {
    with_target(|here| {
        add_file(here);
        add_whole(here, WHOLE, 4096);
        let mut side = Side::new(here);
        for nsid in [1, FILE, WHOLE] {
            for count in [1, 16] {
                side.fill(0, 16, 0);
                side.fill(16, 16, 0x11);
                let blocks = (100 * u64::from(count), count);
                assert_eq!(side.pair(nsid, blocks), BOTH, "{nsid}");
                assert!(side.read(nsid, blocks).iter().all(|byte| *byte == 0x11));
                // What differs in one byte of the last block differs.
                side.fill(0, 16, 0x11);
                side.memory.region().copy_in(count as usize * BLOCK - 1, &[0x12]).unwrap();
                side.fill(16, 16, 0x22);
                let failed = (Status::COMPARE_FAILURE.dnr(), Status::FAILED_FUSED.dnr());
                assert_eq!(side.pair(nsid, blocks), failed, "{nsid}");
                assert!(side.read(nsid, blocks).iter().all(|byte| *byte == 0x11));
                // The one behind it is none of theirs.
                side.fill(0, 16, 0x11);
                assert_eq!(side.pair(nsid, blocks), BOTH, "{nsid}");
                assert!(side.read(nsid, blocks).iter().all(|byte| *byte == 0x22));
            }
        }
        // Data of either in their capsules.
        let in_capsule = Sgl::InCapsule { offset: 0, len: BLOCK as u32 };
        for nsid in [1, WHOLE] {
            let of = |opcode, fuse| Sqe::blocks(opcode, 0, nsid, (7, 1), in_capsule).fused(fuse);
            for (value, expected) in [(0, BOTH.0), (0, Status::COMPARE_FAILURE.dnr())] {
                side.queue.submit_with(of(io::COMPARE, Fuse::First), &[value; BLOCK]).unwrap();
                side.queue.submit_with(of(io::WRITE, Fuse::Second), &[5; BLOCK]).unwrap();
                assert_eq!(side.two().0, expected);
            }
            assert_eq!(side.read(nsid, (7, 1)), [5; BLOCK]);
        }
        here.until_held(0);
    });
}

#[test]
fn answers_come_in_order_and_commands_behind_a_pair_after_its_compare() {
    with_target(|here| {
        let mut side = Side::new(here);
        side.fill(16, 1, 1);
        // The second comes long after the first.
        let first = side.sqe(io::COMPARE, 1, (0, 1), 0).fused(Fuse::First);
        let first = side.queue.submit(first).unwrap().unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(side.queue.poll().unwrap().is_none(), "it was answered alone");
        let second = side.sqe(io::WRITE, 1, (0, 1), 16).fused(Fuse::Second);
        let second = side.queue.submit(second).unwrap().unwrap();
        let read = side.sqe(io::READ, 1, (9, 1), 32);
        side.queue.submit(read).unwrap();
        let ended: Vec<u16> = (0..3).map(|_| side.ended().cid.get()).collect();
        let at = |cid| ended.iter().position(|it| *it == cid).unwrap();
        assert!(at(first) < at(second), "{ended:?}");
        assert_eq!(side.read(1, (0, 1)), [1; BLOCK]);
    });
}

#[test]
fn halves_and_pairs_that_do_not_fit_are_refused() {
    with_target(|here| {
        let mut side = Side::new(here);
        let missing = Status::MISSING_FUSED.dnr();
        let field = Status::INVALID_FIELD.dnr();
        let compare = side.sqe(io::COMPARE, 1, (0, 1), 0);
        let write = side.sqe(io::WRITE, 1, (0, 1), 16);
        let read = side.sqe(io::READ, 1, (0, 1), 32);
        let (first, second) = (compare.fused(Fuse::First), write.fused(Fuse::Second));
        for (sqes, expected) in [
            (vec![second], vec![missing]),
            (vec![first, read], vec![missing, Status::SUCCESS]),
            (vec![first, first, second], vec![missing, Status::SUCCESS, Status::SUCCESS]),
            (vec![first, second, second], vec![Status::SUCCESS, Status::SUCCESS, missing]),
            (vec![read.fused(Fuse::First), second], vec![field, field]),
            (vec![write.fused(Fuse::First), second], vec![field, field]),
            (vec![first, read.fused(Fuse::Second)], vec![field, field]),
            (vec![first, compare.fused(Fuse::Second)], vec![field, field]),
            (vec![compare.fused(Fuse::Unknown)], vec![field]),
            (vec![write.fused(Fuse::Unknown)], vec![field]),
            (vec![first, side.sqe(io::WRITE, 1, (1, 1), 16).fused(Fuse::Second)], vec![field; 2]),
            (vec![first, side.sqe(io::WRITE, 1, (0, 2), 16).fused(Fuse::Second)], vec![field; 2]),
            (vec![first, side.sqe(io::WRITE, 3, (0, 1), 16).fused(Fuse::Second)], vec![field; 2]),
        ] {
            let names: Vec<u16> =
                sqes.iter().map(|sqe| side.queue.submit(*sqe).unwrap().unwrap()).collect();
            let ended: Vec<Cqe> = names.iter().map(|_| side.ended()).collect();
            let of = |name| ended.iter().find(|it| it.cid.get() == name).unwrap().status();
            let ended: Vec<Status> = names.into_iter().map(of).collect();
            assert_eq!(ended, expected, "{sqes:x?}");
        }
        // Beyond the end: the first says so, the second that the first has failed.
        let beyond = side.pair(1, (1 << 40, 1));
        assert_eq!(beyond, (Status::LBA_RANGE.dnr(), Status::FAILED_FUSED.dnr()));
        // A second whose own data are wrong leaves the first as it is.
        side.queue.submit(first).unwrap();
        side.queue.submit(Sqe { sgl: Sgl::NONE.encode(), ..second }).unwrap();
        assert_eq!(side.two(), (Status::SUCCESS, Status::DATA_LENGTH.dnr()));
        assert_eq!(side.one(read), Status::SUCCESS);
        // A host that goes with half a pair, or with one under way, leaves nothing.
        side.queue.submit(first).unwrap();
        drop(side);
        let mut side = Side::new(here);
        side.submit_pair(1, (0, 16));
        drop(side);
        here.until_queues(0);
        let mut side = Side::new(here);
        assert_eq!(side.pair(1, (0, 16)), BOTH);
        here.until_held(0);
    });
}

/// Adds one to the number in a block until that was done `times` times.
fn count_up(side: &mut Side, nsid: u32, slba: u64, times: u64, tries: &AtomicU64) {
    let mut done = 0;
    let begun = Instant::now();
    while done < times {
        let seen = side.read(nsid, (slba, 1));
        let number = u64::from_le_bytes(seen[..8].try_into().unwrap());
        side.memory.region().copy_in(0, &seen).unwrap();
        side.memory.region().copy_in(16 * BLOCK, &(number + 1).to_le_bytes()).unwrap();
        tries.fetch_add(1, Ordering::Relaxed);
        match side.pair(nsid, (slba, 1)) {
            BOTH => done += 1,
            ended => {
                let failed = (Status::COMPARE_FAILURE.dnr(), Status::FAILED_FUSED.dnr());
                assert_eq!(ended, failed);
            }
        }
        assert!(begun.elapsed() < 6 * LIMIT, "{done} of {times}");
    }
}

/// Hosts count in one block; others write around it, over it, and give its room back, all by what
/// keeps the count.
fn race(here: &Here, nsid: u32, times: u64) {
    const HOSTS: u64 = 3;
    let mut sides: Vec<Side> = (0..HOSTS).map(|_| Side::new(here)).collect();
    let mut writer = Side::new(here);
    let (tries, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let counting: Vec<_> = sides
            .iter_mut()
            .map(|side| scope.spawn(|| count_up(side, nsid, 50, times, &tries)))
            .collect();
        let writing = scope.spawn(|| {
            let mut rounds = 0;
            while !stop.load(Ordering::Acquire) {
                // The blocks beside it, many at a time.
                for slba in [42, 51] {
                    let write = writer.sqe(io::WRITE, nsid, (slba, 8), 32);
                    writer.queue.submit(write).unwrap();
                }
                assert_eq!(writer.two(), BOTH);
                rounds += 1;
            }
            rounds
        });
        let ended: Vec<bool> = counting.into_iter().map(|it| it.join().is_ok()).collect();
        stop.store(true, Ordering::Release);
        assert!(writing.join().unwrap() > 0);
        assert!(ended.iter().all(|is_well| *is_well));
    });
    let found = sides[0].read(nsid, (50, 1));
    let number = u64::from_le_bytes(found[..8].try_into().unwrap());
    assert_eq!(number, HOSTS * times, "{} tries", tries.load(Ordering::Relaxed));
}

#[test]
fn hosts_that_count_in_one_block_lose_no_count() {
    with_target(|here| {
        add_file(here);
        add_whole(here, WHOLE, 4096);
        race(here, 1, 40);
        race(here, FILE, 40);
        race(here, WHOLE, 40);
    });
}

#[test]
fn nor_do_they_on_two_cores() {
    with_cores(2, Settings::default(), ServerConfig::default(), |here| race(here, 1, 80));
}

/// Some seconds behind the last pair Writes go past no gate again, and the next pair makes another.
#[test]
fn a_gate_is_taken_down_behind_the_last_pair_and_made_again() {
    with_cores(2, Settings::default(), ServerConfig::default(), |here| {
        let gates = || here.change(|server| server.gates());
        for _ in 0..2 {
            assert_eq!(gates(), 0);
            race(here, 1, 40);
            assert_eq!(gates(), 1);
            let mut side = Side::new(here);
            side.fill(0, 1, 0);
            let write = side.sqe(io::WRITE, 1, (50, 1), 0);
            assert_eq!(side.one(write), Status::SUCCESS);
            drop(side);
            let begun = Instant::now();
            while gates() > 0 {
                assert!(begun.elapsed() < LIMIT, "it stays");
                thread::sleep(Duration::from_millis(50));
            }
            assert!(begun.elapsed() > Duration::from_secs(2), "pairs come in bursts");
        }
    });
}

/// Compares that find no second buffer begin again, behind the Writes that wait for them.
#[test]
fn pairs_go_on_where_buffers_are_scarce() {
    let config = ServerConfig { small_buffers: 2, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        add_file(here);
        race(here, FILE, 10);
        here.until_held(0);
    });
}

/// A Write whose host sends its data late stands in the way of a pair, one beside it does not.
#[test]
fn a_pair_waits_for_writes_that_overlap_and_they_for_it() {
    with_target(|here| {
        let mut one = Side::new(here);
        let mut two = Side::new(here);
        one.fill(0, 16, 0);
        // Writes of both patterns and pairs that make one of the other: whoever comes last, all
        // blocks are of one pattern, since nobody was between a Compare and its Write.
        for round in 0..50_u8 {
            let (old, new) = (2 * round, 2 * round + 2);
            one.fill(0, 16, old);
            one.fill(16, 16, new);
            two.fill(32, 16, old + 1);
            one.submit_pair(1, (0, 16));
            let write = two.sqe(io::WRITE, 1, (0, 16), 32);
            assert_eq!(two.one(write), Status::SUCCESS);
            let (compared, written) = one.two();
            let found = one.read(1, (0, 16));
            match compared {
                // Before the Write, which came over it; or behind it, which cannot be equal.
                Status::SUCCESS => assert_eq!((written, found[0]), (Status::SUCCESS, old + 1)),
                failed => {
                    assert_eq!(failed, Status::COMPARE_FAILURE.dnr());
                    assert_eq!((written, found[0]), (Status::FAILED_FUSED.dnr(), old + 1));
                }
            }
            assert!(found.iter().all(|byte| *byte == found[0]), "round {round}");
            one.fill(16, 16, new);
            let write = one.sqe(io::WRITE, 1, (0, 16), 16);
            assert_eq!(one.one(write), Status::SUCCESS);
        }
    });
}

/// Runs a test against a target with a drive whose Writes to hanging blocks change them and are
/// lost with its reset.
fn with_drive(test: impl FnOnce(&Here, &World)) {
    with_target(|here| {
        let world = World::new(Plan {
            heals: true,
            aborts: false,
            hangs_as_written: true,
            ..Plan::default()
        });
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop_it = StopAtEnd(&stop);
            scope.spawn(|| {
                let mut last = Instant::now();
                while !stop.load(Ordering::Acquire) {
                    world.fake().step();
                    world.transport.pass(last.elapsed());
                    last = Instant::now();
                    thread::sleep(Duration::from_micros(50));
                }
            });
            let drive = Drive::start(world.open_as(&Config::default()).unwrap()).unwrap();
            let buffers = here.change(|server| server.buffers());
            let io_queue = drive.queues(1, &[buffers]).unwrap().pop().unwrap();
            here.change(move |server| {
                let place = server.add_drive(io_queue).unwrap();
                server.target_mut().put_namespace(NQN, namespace(DRIVE, 4096, place)).unwrap();
            });
            test(here, &world);
            here.until_queues(0);
            drop(drive);
        });
    });
}

/// A pair for block 6 whose Write hangs, behind a gate that all cores know.
fn hang_a_pair(side: &mut Side, world: &World) {
    side.fill(0, 1, 0);
    side.fill(16, 1, 3);
    assert_eq!(side.pair(DRIVE, (5, 1)), BOTH, "by a drive that is well");
    side.fill(0, 1, 0);
    world.fake().plan.hangs = vec![6];
    side.submit_pair(DRIVE, (6, 1));
    assert_eq!(side.ended().status(), Status::SUCCESS, "a Read of the drive does not hang");
    let begun = Instant::now();
    while world.fake().seen.last().is_none_or(|it| (it.opcode, it.lba) != (1, 6)) {
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_reset_between_its_halves_does_not_compare_again() {
    with_drive(|here, world| {
        let mut side = Side::new(here);
        hang_a_pair(&mut side, world);
        world.fake().set_fatal();
        assert_eq!(side.ended().status(), Status::SUCCESS);
        assert_eq!(side.read(DRIVE, (6, 1)), [3; BLOCK]);
        let seen: Vec<u8> =
            world.fake().seen.iter().filter(|it| it.lba == 6).map(|it| it.opcode).collect();
        assert_eq!(seen, [2, 1, 1, 2], "one Compare, the Write twice, and the last Read");
    });
}

/// They wait behind one another, then at the gate, however often the target looks whether they may
/// go on.
#[test]
fn commands_that_stand_behind_a_pair_wait_twice_at_most() {
    const WRITES: u64 = 8;
    with_drive(|here, world| {
        let mut side = Side::new(here);
        hang_a_pair(&mut side, world);
        let waits = || here.change(|server| server.stats().waits);
        let before = waits();
        let mut other = Side::new(here);
        other.fill(32, 1, 4);
        for _ in 0..WRITES {
            let write = other.sqe(io::WRITE, DRIVE, (6, 1), 32);
            other.queue.submit(write).unwrap();
        }
        let begun = Instant::now();
        while waits() < before + WRITES {
            assert!(begun.elapsed() < LIMIT);
        }
        // The target has a round between any two of these.
        let waited = (0..100).map(|_| waits()).max().unwrap() - before;
        assert!(waited <= 2 * WRITES, "{waited} waits");
        world.fake().set_fatal();
        assert_eq!(side.ended().status(), Status::SUCCESS);
        for _ in 0..WRITES {
            assert_eq!(other.ended().status(), Status::SUCCESS);
        }
        assert_eq!(side.read(DRIVE, (6, 1)), [4; BLOCK]);
    });
}
