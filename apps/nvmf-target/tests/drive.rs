//! A namespace that is an NVMe drive: what hosts write is on it, and whatever it does, hosts get
//! the right status and the target lives.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{BLOCK, Here, NQN, with, with_target};
use fake::{Plan, World};
use ferrocx_bus::Notice;
use ferrocx_nvme::{Config, Health};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::drive::Drive;
use ferrocx_nvmf_target::host::{Host, HostConfig, HostError, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 9;

/// A drive with a thread of its own, tended by another.
struct Behind {
    world: Arc<World>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    drive: Option<Drive>,
    place: usize,
}

impl Behind {
    /// Puts a drive behind a namespace.
    fn new(here: &Here, plan: Plan) -> Self {
        Self::patient(here, plan, Duration::from_millis(300))
    }

    /// Puts one behind a namespace that is given so long for a command.
    fn patient(here: &Here, plan: Plan, timeout: Duration) -> Self {
        let blocks = plan.blocks;
        let world = Arc::new(World::new(plan));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (Arc::clone(&world), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut last = Instant::now();
            while !flag.load(Ordering::Acquire) {
                theirs.fake().step();
                theirs.transport.pass(last.elapsed());
                last = Instant::now();
                thread::sleep(Duration::from_micros(50));
            }
        });
        let config = Config { timeout, patience: timeout, ..Config::default() };
        let drive = Drive::start(world.open_as(&config).unwrap()).unwrap();
        let buffers = here.change(|server| server.buffers());
        let mut queues = drive.queues(1, &[buffers]).unwrap();
        let queue = queues.pop().unwrap();
        let place = here.change(move |server| {
            let backend = server.add_drive(queue).unwrap();
            let namespace = common::namespace(NSID, blocks, backend);
            server.target_mut().put_namespace(NQN, namespace).unwrap();
            backend
        });
        Self { world, stop, thread: Some(thread), drive: Some(drive), place }
    }

    /// How often the drive was given a command for a block.
    fn count(&self, lba: u64) -> usize {
        self.world.fake().seen.iter().filter(|it| it.lba == lba).count()
    }

    /// Waits until the drive was given so many commands for a block.
    fn until_given(&self, lba: u64, count: usize) {
        let begun = Instant::now();
        while self.count(lba) < count {
            assert!(begun.elapsed() < LIMIT, "{} of {count} came for {lba}", self.count(lba));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What is on the drive.
    fn disk(&self, lba: u64, blocks: usize) -> Vec<u8> {
        let from = lba as usize * BLOCK;
        self.world.fake().disk[from..from + blocks * BLOCK].to_vec()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.drive = None;
        self.stop.store(true, Ordering::Release);
        self.thread.take().map(JoinHandle::join);
    }
}

fn status(queue: &mut HostQueue, sqe: Sqe) -> Status {
    queue.submit(sqe).unwrap();
    queue.wait(LIMIT).unwrap().status()
}

#[test]
fn what_hosts_write_is_on_the_drive() {
    with_target(|here| {
        for sgls in [0, 1] {
            let behind = Behind::new(here, Plan { sgls, ..Plan::default() });
            let host = here.host();
            let mut queue = host.open_queue(1, 64, 0).unwrap();
            let (memory, mr) = host.memory(2 << 20).unwrap();
            for (slba, count) in [(0, 1), (9, 300), (0, 2048), (4095, 1)] {
                let len = count as usize * BLOCK;
                let data: Vec<u8> = (0..len).map(|at| (at * 7 + count as usize) as u8).collect();
                memory.region().copy_in(0, &data).unwrap();
                let from = mr.buf(0..len).unwrap();
                let to = mr.buf(1 << 20..(1 << 20) + len).unwrap();
                let write = Sqe::blocks(io::WRITE, 0, NSID, (slba, count), keyed(&from));
                assert_eq!(status(&mut queue, write), Status::SUCCESS);
                assert!(behind.disk(slba, count as usize) == data, "{count} blocks at {slba}");
                let compare = Sqe { opcode: io::COMPARE, ..write };
                assert_eq!(status(&mut queue, compare), Status::SUCCESS);
                let read = Sqe::blocks(io::READ, 0, NSID, (slba, count), keyed(&to));
                assert_eq!(status(&mut queue, read), Status::SUCCESS);
                assert!(to.to_vec() == data);
            }
            // In the capsule, on the medium at once.
            let sgl = Sgl::InCapsule { offset: 0, len: BLOCK as u32 };
            let write = Sqe::blocks(io::WRITE, 0, NSID, (3, 1), sgl);
            let fua = Sqe { cdw12: (write.cdw12.get() | 1 << 30).into(), ..write };
            queue.submit_with(fua, &[0x3c; BLOCK]).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            let last = *behind.world.fake().seen.last().unwrap();
            assert_eq!((last.lba, last.flags), (3, 1 << 30));
            queue.submit_with(Sqe { opcode: io::COMPARE, ..write }, &[0x3d; BLOCK]).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::COMPARE_FAILURE.dnr());
            for opcode in [io::FLUSH, io::VERIFY, io::WRITE_ZEROES] {
                let sqe = Sqe::blocks(opcode, 0, NSID, (3, 1), Sgl::NONE);
                assert_eq!(status(&mut queue, sqe), Status::SUCCESS, "{opcode:#x}");
            }
            assert_eq!((behind.disk(3, 1), behind.world.fake().flushes), (vec![0; BLOCK], 1));
            // One range of 8 blocks from 16 on, in the capsule.
            behind.world.fake().disk.fill(7);
            let mut range = [0; 16];
            (range[4], range[8]) = (8, 16);
            let sgl = Sgl::InCapsule { offset: 0, len: 16 };
            let dsm = Sqe::blocks(io::DSM, 0, NSID, (0, 1), sgl);
            let dsm = Sqe { cdw10: 0.into(), cdw11: 4.into(), cdw12: 0.into(), ..dsm };
            queue.submit_with(dsm, &range).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            assert_eq!((behind.disk(15, 1)[0], behind.disk(16, 8)), (7, vec![0; 8 * BLOCK]));
            removed(here, &behind);
        }
    });
}

/// Takes the namespace away; the buffers come back.
fn removed(here: &Here, behind: &Behind) {
    let place = behind.place;
    here.change(move |server| {
        server.target_mut().remove_namespace(NQN, NSID).unwrap();
        server.drop_backend(place);
    });
    here.until_held(0);
}

#[test]
fn a_drive_without_commands_gets_zeros_written() {
    with_target(|here| {
        let behind = Behind::new(here, Plan { oncs: 0, ..Plan::default() });
        behind.world.fake().disk.fill(7);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let zeroes = Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (3, 100), Sgl::NONE);
        assert_eq!(status(&mut queue, zeroes), Status::SUCCESS);
        assert_eq!((behind.disk(3, 100), behind.disk(103, 1)[0]), (vec![0; 100 * BLOCK], 7));
        removed(here, &behind);
    });
}

/// It says that it has the commands, and refuses them: in this form, or of this length.
#[test]
fn a_drive_that_refuses_its_commands_gets_zeros_written_and_no_hints() {
    with_target(|here| {
        // The last with "do not retry".
        for lacks in [0x01, 0x02, 0x4183] {
            let behind = Behind::new(here, Plan { lacks: Some(lacks), ..Plan::default() });
            behind.world.fake().disk.fill(7);
            let host = here.host();
            let mut queue = host.open_queue(1, 64, 0).unwrap();
            let zeroes = Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (3, 100), Sgl::NONE);
            assert_eq!(status(&mut queue, zeroes), Status::SUCCESS, "{lacks:#x}");
            assert_eq!((behind.disk(3, 100), behind.disk(103, 1)[0]), (vec![0; 100 * BLOCK], 7));
            let sgl = Sgl::InCapsule { offset: 0, len: 16 };
            let dsm = Sqe::blocks(io::DSM, 0, NSID, (0, 1), sgl);
            let dsm = Sqe { cdw10: 0.into(), cdw11: 4.into(), cdw12: 0.into(), ..dsm };
            let mut range = [0; 16];
            (range[4], range[8]) = (8, 200);
            queue.submit_with(dsm, &range).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS, "{lacks:#x}");
            assert_eq!(behind.disk(200, 8), vec![7; 8 * BLOCK]);
            removed(here, &behind);
        }
    });
}

#[test]
fn zeros_that_are_to_last_are_on_the_medium() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let zeroes = Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (3, 8), Sgl::NONE);
        let lasting = Sqe { cdw12: (zeroes.cdw12.get() | 1 << 30).into(), ..zeroes };
        let behind = Behind::new(here, Plan::default());
        assert_eq!(status(&mut queue, zeroes), Status::SUCCESS);
        assert_eq!(behind.world.fake().flushes, 0);
        assert_eq!(status(&mut queue, lasting), Status::SUCCESS);
        assert_eq!(behind.world.fake().flushes, 1, "behind the zeros");
        removed(here, &behind);
        // A drive that cannot is written to.
        let behind = Behind::new(here, Plan { oncs: 0, ..Plan::default() });
        assert_eq!(status(&mut queue, lasting), Status::SUCCESS);
        let last = *behind.world.fake().seen.last().unwrap();
        assert_eq!((last.lba, last.flags, behind.world.fake().flushes), (3, 1 << 30, 0));
        removed(here, &behind);
    });
}

#[test]
fn zeros_that_are_written_wait_their_turn_for_a_buffer() {
    let patience = Duration::from_millis(300);
    let config = ServerConfig { small_buffers: 1, patience, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let behind = Behind::new(here, Plan { oncs: 0, ..Plan::default() });
        behind.world.fake().disk.fill(7);
        let host = here.host();
        let mut queues = [1, 2].map(|qid| host.open_queue(qid, 64, 0).unwrap());
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let write = Sqe::blocks(io::WRITE, 0, NSID, (100, 1), keyed(&buf));
        let zeroes = |slba| Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (slba, 1), Sgl::NONE);
        let [busy, queue] = &mut queues;
        for _ in 0..16 {
            busy.submit(write).unwrap();
        }
        for slba in 0..4 {
            queue.submit(zeroes(slba)).unwrap();
        }
        let (begun, mut ended) = (Instant::now(), 0);
        while ended < 4 || begun.elapsed() < 3 * patience {
            if let Some(cqe) = busy.poll().unwrap() {
                assert_eq!(cqe.status(), Status::SUCCESS);
                busy.submit(write).unwrap();
            }
            if let Some(cqe) = queue.poll().unwrap() {
                assert_eq!(cqe.status(), Status::SUCCESS);
                ended += 1;
            }
            assert!(begun.elapsed() < LIMIT, "{ended} of 4");
        }
        assert_eq!(behind.disk(0, 4), [0; 4 * BLOCK]);
        assert!(all(busy, 16).iter().all(|(_, status)| *status == Status::SUCCESS));
        removed(here, &behind);
    });
}

/// However often the target looks whether there is a buffer.
#[test]
fn a_command_that_waits_for_a_buffer_waits_once() {
    const READS: u64 = 3;
    let config = ServerConfig { small_buffers: 1, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let plan = Plan { hangs: vec![20], ..Plan::default() };
        let behind = Behind::patient(here, plan, LIMIT);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let of = |lba| Sqe::blocks(io::READ, 0, NSID, (lba, 1), keyed(&buf));
        let waits = || here.change(|server| server.stats().waits);
        let before = waits();
        queue.submit(of(20)).unwrap();
        behind.until_given(20, 1);
        for lba in 0..READS {
            queue.submit(of(lba)).unwrap();
        }
        let begun = Instant::now();
        while waits() < before + READS {
            assert!(begun.elapsed() < LIMIT);
        }
        // The target has a round between any two of these.
        let waited = (0..100).map(|_| waits()).max().unwrap() - before;
        assert_eq!(waited, READS);
        behind.world.fake().let_go(0);
        assert!(all(&mut queue, 4).iter().all(|(_, status)| *status == Status::SUCCESS));
        removed(here, &behind);
    });
}

#[test]
fn what_a_drive_does_becomes_the_right_status() {
    with_target(|here| {
        // Unrecovered read error, write fault, write-protected, capacity, an internal one.
        let fails =
            vec![(10, 0x281), (11, 0x280), (12, 0x20), (13, 0x81), (14, 0x13), (15, 0x4281)];
        // With "do not retry"; a range that can be read alone; a reservation.
        let more =
            [(16, 0x4281), (17, 0x4081), (18, 0x4082), (19, 0x182), (22, 0x83), (23, 0x4013)];
        let fails = [fails, more.to_vec()].concat();
        let plan = Plan { fails, hangs: vec![20, 21], aborts: false, ..Plan::default() };
        let behind = Behind::new(here, plan);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let of = |opcode, lba| Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(&buf));
        for (opcode, lba, expected) in [
            (io::READ, 10, Status::READ_ERROR),
            (io::WRITE, 11, Status::WRITE_FAULT),
            (io::WRITE, 12, Status::WRITE_PROTECTED),
            (io::WRITE, 13, Status::CAPACITY),
            (io::READ, 14, Status::INTERNAL),
            (io::READ, 15, Status::READ_ERROR.dnr()),
            (io::COMPARE, 16, Status::READ_ERROR.dnr()),
            (io::WRITE, 17, Status::CAPACITY.dnr()),
            (io::READ, 18, Status::NOT_READY.dnr()),
            (io::WRITE, 19, Status::WRITE_FAULT.dnr()),
            (io::WRITE, 22, Status::RESERVATION_CONFLICT),
            (io::READ, 23, Status::INTERNAL.dnr()),
            // Too late: aborted in vain, and the drive is reset.
            (io::READ, 20, Status::READ_ERROR),
            (io::WRITE, 21, Status::WRITE_FAULT),
            (io::COMPARE, 20, Status::READ_ERROR),
        ] {
            let ended = status(&mut queue, of(opcode, lba));
            assert_eq!(ended, expected, "{opcode:#x} {lba}");
        }
        assert_eq!(status(&mut queue, of(io::READ, 1)), Status::SUCCESS);
        removed(here, &behind);
    });
}

/// Without "do not retry": with it, the host is told at once.
#[test]
fn what_a_drive_cannot_do_now_is_begun_again() {
    const PATIENCE: Duration = Duration::from_secs(1);
    let config = ServerConfig { patience: PATIENCE, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let plan = Plan { fails: vec![(10, 0x82), (11, 0x21), (12, 0x82)], ..Plan::default() };
        let behind = Behind::new(here, plan);
        let mut host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (memory, mr) = host.memory(1 << 20).unwrap();
        memory.region().copy_in(0, &[0x11; BLOCK]).unwrap();
        let [from, to] = [0, BLOCK].map(|at| mr.buf(at..at + BLOCK).unwrap());
        let of = |opcode, lba| {
            let buf = if opcode == io::WRITE { &from } else { &to };
            Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(buf))
        };
        queue.submit(of(io::WRITE, 10)).unwrap();
        queue.submit(of(io::WRITE, 11)).unwrap();
        behind.until_given(10, 2);
        behind.until_given(11, 2);
        // Others go past them.
        assert_eq!(one(&mut queue, of(io::READ, 1)).unwrap().status(), Status::SUCCESS);
        assert!(behind.disk(10, 2) == [0; 2 * BLOCK]);
        behind.world.fake().plan.fails.retain(|(lba, _)| *lba == 12);
        assert!(all(&mut queue, 2).iter().all(|(_, status)| *status == Status::SUCCESS));
        assert!(behind.disk(10, 2) == [0x11; 2 * BLOCK]);
        // Not for ever.
        let begun = Instant::now();
        assert_eq!(status(&mut queue, of(io::READ, 12)), Status::NOT_READY);
        assert!(begun.elapsed() >= PATIENCE);
        // Nor for a flush of the target's own, as a host shuts its controller down.
        behind.world.fake().plan.fails.push((0, 0x82));
        let begun = Instant::now();
        host.set_property(property::CC, 0x0046_4001).unwrap();
        while host.property(property::CSTS).unwrap() & u64::from(property::CSTS_CFS) == 0 {
            assert!(begun.elapsed() < LIMIT);
        }
        assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
        drop((queue, host));
        removed(here, &behind);
    });
}

#[test]
fn a_drive_that_goes_is_an_error_of_the_medium() {
    with_target(|here| {
        for is_asked in [false, true] {
            let plan = Plan { hangs: vec![20], ..Plan::default() };
            let behind = Behind::patient(here, plan, LIMIT);
            let host = here.host();
            let mut queue = host.open_queue(1, 64, 0).unwrap();
            let (_memory, mr) = host.memory(1 << 20).unwrap();
            let buf = mr.buf(0..BLOCK).unwrap();
            let of = |opcode, lba| Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(&buf));
            queue.submit(of(io::READ, 20)).unwrap();
            behind.until_given(20, 1);
            match is_asked {
                true => {
                    let removal = Some(Notice::RemovalRequested);
                    *behind.world.transport.notice.lock().unwrap() = removal;
                }
                false => behind.world.fake().set_gone(),
            }
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::READ_ERROR);
            assert_eq!(status(&mut queue, of(io::WRITE, 1)), Status::WRITE_FAULT);
            assert_eq!(status(&mut queue, of(io::READ, 1)), Status::READ_ERROR);
            // Others go on.
            let other = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&buf));
            assert_eq!(one(&mut queue, other).unwrap().status(), Status::SUCCESS);
            removed(here, &behind);
        }
    });
}

/// The status of each command of a queue, by its name.
fn all(queue: &mut HostQueue, count: usize) -> Vec<(u16, Status)> {
    let mut all: Vec<_> = (0..count)
        .map(|_| queue.wait(LIMIT).unwrap())
        .map(|cqe| (cqe.cid.get(), cqe.status()))
        .collect();
    all.sort_unstable_by_key(|(cid, _)| *cid);
    all
}

#[test]
fn what_is_under_way_at_a_reset_is_done_after_it() {
    with_target(|here| {
        let hangs = vec![20, 21, 22, 23, 24, 25];
        let plan = Plan { hangs, heals: true, aborts: false, ..Plan::default() };
        let behind = Behind::patient(here, plan, Duration::from_secs(1));
        behind.world.fake().disk.fill(7);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (memory, mr) = host.memory(1 << 20).unwrap();
        memory.region().copy_in(0, &[0x11; 2 * BLOCK]).unwrap();
        memory.region().copy_in(2 * BLOCK, &[7; BLOCK]).unwrap();
        let buf = |at: usize| mr.buf(at * BLOCK..(at + 1) * BLOCK).unwrap();
        let of = |opcode, lba, at| Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(&buf(at)));
        // This one is too late, and the reason for the reset.
        let late = queue.submit(of(io::READ, 20, 8)).unwrap();
        behind.until_given(20, 1);
        thread::sleep(Duration::from_millis(300));
        let in_capsule = Sgl::InCapsule { offset: 0, len: BLOCK as u32 };
        let capsule = Sqe::blocks(io::WRITE, 0, NSID, (22, 1), in_capsule);
        let others = [
            queue.submit(of(io::WRITE, 21, 0)).unwrap(),
            queue.submit_with(capsule, &[0x22; BLOCK]).unwrap(),
            queue.submit(of(io::COMPARE, 23, 2)).unwrap(),
            queue.submit(of(io::READ, 24, 3)).unwrap(),
            queue.submit(Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (25, 1), Sgl::NONE)).unwrap(),
        ];
        let expected = |cid: u16| match Some(cid) == late {
            true => Status::READ_ERROR,
            false => Status::SUCCESS,
        };
        let ended = all(&mut queue, 1 + others.len());
        assert!(ended.iter().all(|(cid, status)| *status == expected(*cid)), "{ended:?}");
        assert_eq!(
            (behind.disk(21, 1), behind.disk(22, 1)),
            (vec![0x11; BLOCK], vec![0x22; BLOCK])
        );
        assert_eq!((buf(3).to_vec(), behind.disk(25, 1)), (vec![7; BLOCK], vec![0; BLOCK]));
        assert_eq!(behind.world.fake().enables, 2, "one reset");
        // Each of them was given to the drive before the reset, and after it.
        let counts = [20, 21, 22, 23, 24, 25].map(|lba| behind.count(lba));
        assert_eq!(counts, [1, 2, 2, 2, 2, 2]);
        removed(here, &behind);
    });
}

#[test]
fn commands_wait_for_a_drive_that_is_away_but_not_for_ever() {
    const PATIENCE: Duration = Duration::from_secs(2);
    let config = ServerConfig { patience: PATIENCE, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        // Nobody tends this drive but this test.
        let world = World::new(Plan::default());
        let mut drive = world.open_as(&Config::default()).unwrap();
        let buffers = here.change(|server| server.buffers());
        let io = drive.queue(1, &[buffers]).unwrap();
        here.change(move |server| {
            let backend = server.add_drive(io).unwrap();
            server.target_mut().put_namespace(NQN, common::namespace(8, 4096, backend)).unwrap();
        });
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let of = |opcode, nsid| Sqe::blocks(opcode, 0, nsid, (1, 1), keyed(&buf));
        world.fake().set_fatal();
        assert_eq!(drive.tend(), Health::Ready, "it has been reset");
        let waits = here.change(|server| server.stats().waits);
        let begun = Instant::now();
        queue.submit(of(io::WRITE, 8)).unwrap();
        // Those for others go past it.
        assert_eq!(one(&mut queue, of(io::READ, 1)).unwrap().status(), Status::SUCCESS);
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::WRITE_FAULT);
        assert!(begun.elapsed() >= PATIENCE);
        let waited = here.change(|server| server.stats().waits) - waits;
        assert_eq!(waited, 1, "however often it was begun again");
        here.until_held(0);
        // It comes back while one waits.
        queue.submit(of(io::READ, 8)).unwrap();
        thread::sleep(Duration::from_millis(100));
        assert_eq!(drive.tend(), Health::Ready, "its queue is there again");
        let ended = loop {
            world.fake().step();
            if let Some(cqe) = queue.poll().unwrap() {
                break cqe.status();
            }
            assert!(begun.elapsed() < LIMIT);
        };
        assert_eq!(ended, Status::SUCCESS);
        // One that goes away with its host leaves nothing.
        world.fake().set_fatal();
        drive.tend();
        queue.submit(of(io::WRITE, 8)).unwrap();
        thread::sleep(Duration::from_millis(50));
        drop((queue, host));
        here.until_queues(0);
        here.until_held(0);
    });
}

#[test]
fn a_drive_that_nobody_can_stop_costs_its_buffers_and_nothing_else() {
    let config = ServerConfig { small_buffers: 3, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let counts = || here.change(|server| (server.held_buffers(), server.stats().lost_buffers));
        let shown = || here.change(|server| server.registry().snapshot().pollers[0].lost_buffers);
        let leave = |behind: &Behind| {
            let place = behind.place;
            here.change(move |server| {
                server.target_mut().remove_namespace(NQN, NSID).unwrap();
                server.drop_backend(place);
            });
        };
        let one_gone = |queue: &mut HostQueue, sqes: &[Sqe]| {
            let plan = Plan { hangs: vec![20], ..Plan::default() };
            let behind = Behind::patient(here, plan, LIMIT);
            behind.world.transport.is_stuck.store(true, Ordering::Release);
            for sqe in sqes {
                queue.submit(*sqe).unwrap();
            }
            behind.until_given(20, sqes.iter().filter(|it| it.cdw10.get() == 20).count());
            behind.world.fake().set_gone();
            behind
        };
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let of = |opcode, lba| Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(&buf));
        // A Compare loses the one of its two buffers that the drive was to fill.
        let flush = Sqe::blocks(io::FLUSH, 0, NSID, (0, 1), Sgl::NONE);
        let behind = one_gone(&mut queue, &[of(io::COMPARE, 20), flush]);
        let mut ended = all(&mut queue, 2).into_iter().map(|(_, status)| status);
        assert!(ended.any(|status| status == Status::READ_ERROR));
        let begun = Instant::now();
        while (counts(), shown()) != ((0, 1), 1) {
            assert!(begun.elapsed() < LIMIT, "{:?}", counts());
            thread::sleep(Duration::from_millis(5));
        }
        // Commands go on, by the buffers that are left.
        assert_eq!(status(&mut queue, of(io::WRITE, 1)), Status::WRITE_FAULT);
        let compare = Sqe::blocks(io::COMPARE, 0, 1, (0, 1), keyed(&buf));
        assert_eq!(status(&mut queue, compare), Status::SUCCESS);
        leave(&behind);
        drop(behind);
        // With the last buffer, what needs one is refused.
        let behind = one_gone(&mut queue, &[of(io::READ, 20), of(io::WRITE, 20)]);
        let ended = all(&mut queue, 2);
        assert_eq!(ended.iter().filter(|it| it.1 == Status::READ_ERROR).count(), 1, "{ended:?}");
        assert_eq!(counts(), (0, 3));
        assert_eq!(status(&mut queue, compare), Status::INTERNAL);
        let read = Sqe { opcode: io::READ, ..compare };
        assert_eq!(status(&mut queue, read), Status::SUCCESS);
        leave(&behind);
        // Neither queue nor controller stays for the drive's sake.
        drop((queue, host));
        here.until_queues(0);
        assert_eq!(here.change(|server| server.target().controllers()), 0);
    });
}

#[test]
fn a_namespace_goes_with_a_command_under_way() {
    with_target(|here| {
        let plan = Plan { hangs: vec![20], ..Plan::default() };
        let behind = Behind::patient(here, plan, Duration::from_secs(1));
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        queue.submit(Sqe::blocks(io::READ, 0, NSID, (20, 1), keyed(&buf))).unwrap();
        behind.until_given(20, 1);
        removed(here, &behind);
        let ended = queue.wait(LIMIT).unwrap().status();
        assert_eq!(ended, Status::INVALID_NAMESPACE.dnr());
    });
}

#[test]
fn a_controller_is_ready_until_its_last_write_has_ended() {
    with_target(|here| {
        let lasting = Duration::from_secs(1);
        let plan = Plan { hangs: vec![20], ..Plan::default() };
        let behind = Behind::patient(here, plan, lasting);
        let mut host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        queue.submit(Sqe::blocks(io::WRITE, 0, NSID, (20, 1), keyed(&buf))).unwrap();
        behind.until_given(20, 1);
        let outside = || here.change(|server| server.held_buffers()) > 0;
        assert!(outside(), "the drive has the write");
        host.set_property(property::CC, 0x0046_0000).unwrap();
        // Nothing is taken meanwhile, and nothing begins anew.
        let begun = Instant::now();
        let enabled = host.set_property(property::CC, 0x0046_0001).unwrap_err();
        assert!(matches!(enabled, HostError::Refused { status: Status::SEQUENCE, .. }));
        host.identify(0x01, 0).unwrap_err();
        while host.property(property::CSTS).unwrap() & 1 == 1 {
            assert!(begun.elapsed() < LIMIT);
        }
        assert!(begun.elapsed() > lasting / 2, "it waited {:?}", begun.elapsed());
        assert!(!outside(), "the write has ended");
        host.enable().unwrap();
        assert_eq!(host.property(property::CSTS).unwrap() & 1, 1);
        host.identify(0x01, 0).unwrap();
        removed(here, &behind);
    });
}

#[test]
fn a_host_comes_back_when_its_last_write_has_ended() {
    with_target(|here| {
        let plan = Plan { hangs: vec![20], ..Plan::default() };
        let behind = Behind::patient(here, plan, Duration::from_secs(3));
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        queue.submit(Sqe::blocks(io::WRITE, 0, NSID, (20, 1), keyed(&buf))).unwrap();
        behind.until_given(20, 1);
        let is_writing = || here.change(|server| server.held_buffers()) > 0;
        assert!(is_writing(), "the drive has the write");
        drop((queue, host));
        let begun = Instant::now();
        let (mut refused, mut other) = (0, None);
        let mut back = loop {
            match Host::connect(&here.base, &HostConfig::new(NQN)) {
                Ok(host) => break host,
                Err(HostError::Refused { status, .. }) => assert_eq!(status, Status::CONNECT_BUSY),
                Err(error) => panic!("{error}"),
            }
            refused += 1;
            assert!(begun.elapsed() < LIMIT);
            // Another host's controller is its own affair.
            let config = HostConfig { hostid: [0x22; 16], ..HostConfig::new(NQN) };
            other.get_or_insert_with(|| Host::connect(&here.base, &config).unwrap());
        };
        assert!(refused > 0, "it was let in beside its own write");
        assert!(!is_writing(), "the write has ended");
        back.identify(0x01, 0).unwrap();
        drop((back, other));
        removed(here, &behind);
    });
}

#[test]
fn preempt_and_abort_is_answered_when_the_preempted_write_has_ended() {
    with_target(|here| {
        let lasting = Duration::from_secs(1);
        let plan = Plan { hangs: vec![20], ..Plan::default() };
        let behind = Behind::patient(here, plan, lasting);
        let host = here.host();
        let other = HostConfig { hostid: [0x22; 16], ..HostConfig::new(NQN) };
        let other = Host::connect(&here.base, &other).unwrap();
        let mut his = host.open_queue(1, 64, 0).unwrap();
        let mut mine = other.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let reserve = |queue: &mut HostQueue, opcode, action: u32, keys: [u64; 2]| {
            let sgl = Sgl::InCapsule { offset: 0, len: 16 };
            // Write exclusive, for registrants.
            let cdw10 = (action | 3 << 8).into();
            let sqe = Sqe { nsid: NSID.into(), cdw10, ..Sqe::new(opcode, 0, sgl) };
            queue.submit_with(sqe, &keys.map(u64::to_le_bytes).concat()).unwrap();
            queue.wait(LIMIT).unwrap().status()
        };
        let (register, acquire) = (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE);
        assert_eq!(reserve(&mut his, register, 0, [0, 1]), Status::SUCCESS);
        assert_eq!(reserve(&mut his, acquire, 0, [1, 0]), Status::SUCCESS);
        assert_eq!(reserve(&mut mine, register, 0, [0, 2]), Status::SUCCESS);
        his.submit(Sqe::blocks(io::WRITE, 0, NSID, (20, 1), keyed(&buf))).unwrap();
        behind.until_given(20, 1);
        let is_writing = || here.change(|server| server.held_buffers()) > 0;
        assert!(is_writing(), "the drive has the write");
        let begun = Instant::now();
        assert_eq!(reserve(&mut mine, acquire, 2, [2, 1]), Status::SUCCESS);
        assert!(!is_writing(), "it was answered before the write had ended");
        assert!(begun.elapsed() > lasting / 2, "{:?}", begun.elapsed());
        // Whether it was carried out nobody knows; those that come are refused.
        his.wait(LIMIT).unwrap();
        let again = status(&mut his, Sqe::blocks(io::WRITE, 0, NSID, (20, 1), keyed(&buf)));
        assert_eq!(again, Status::RESERVATION_CONFLICT.dnr());
        // Nothing is under way of a host that is preempted now: the answer comes at once.
        assert_eq!(reserve(&mut his, register, 0, [0, 1]), Status::SUCCESS);
        assert_eq!(reserve(&mut mine, acquire, 2, [2, 1]), Status::SUCCESS);
        drop((his, mine));
        drop((host, other));
        removed(here, &behind);
    });
}
