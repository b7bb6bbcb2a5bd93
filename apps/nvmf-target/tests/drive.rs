//! A namespace that is an NVMe drive: what hosts write is on it, and whatever it does, hosts get
//! the right status and the target lives.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use common::{BLOCK, Here, NQN, with_target};
use fake::{Plan, World};
use ferrocx_bus::Notice;
use ferrocx_nvme::Config;
use ferrocx_nvmf_target::controller::Namespace;
use ferrocx_nvmf_target::drive::Drive;
use ferrocx_nvmf_target::host::{HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;

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
        let timeout = Duration::from_millis(300);
        let config = Config { timeout, patience: timeout, ..Config::default() };
        let drive = Drive::start(world.open_as(&config).unwrap()).unwrap();
        let buffers = here.change(|server| server.buffers());
        let mut queues = drive.queues(1, &[buffers]).unwrap();
        let queue = queues.pop().unwrap();
        let place = here.change(move |server| {
            let backend = server.add_drive(queue).unwrap();
            let namespace = common::namespace(NSID, blocks, backend);
            let namespace = Namespace { has_cache: true, ..namespace };
            server.target_mut().put_namespace(NQN, namespace).unwrap();
            backend
        });
        Self { world, stop, thread: Some(thread), drive: Some(drive), place }
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

/// As a host does: while a drive is reset, it is told to try again.
fn patiently(queue: &mut HostQueue, sqe: Sqe) -> Status {
    let begun = Instant::now();
    loop {
        let ended = status(queue, sqe);
        if ended != Status::INTERRUPTED {
            return ended;
        }
        assert!(begun.elapsed() < LIMIT, "the drive does not come back");
    }
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
    let begun = Instant::now();
    while here.change(|server| server.free_buffers()) != 8 {
        assert!(begun.elapsed() < LIMIT, "a buffer is lost");
        thread::sleep(Duration::from_millis(10));
    }
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

#[test]
fn what_a_drive_does_becomes_the_right_status() {
    with_target(|here| {
        // Unrecovered read error, write fault, write-protected, capacity, an internal one.
        let fails =
            vec![(10, 0x281), (11, 0x280), (12, 0x20), (13, 0x81), (14, 0x13), (15, 0x4281)];
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
            (io::READ, 15, Status::READ_ERROR),
            // Too late: aborted in vain, and the drive is reset.
            (io::READ, 20, Status::READ_ERROR),
            (io::WRITE, 21, Status::WRITE_FAULT),
            (io::COMPARE, 20, Status::READ_ERROR),
        ] {
            let ended = patiently(&mut queue, of(opcode, lba));
            assert_eq!(ended, expected, "{opcode:#x} {lba}");
        }
        assert_eq!(patiently(&mut queue, of(io::READ, 1)), Status::SUCCESS);
        removed(here, &behind);
    });
}

#[test]
fn a_drive_that_goes_is_an_error_of_the_medium() {
    with_target(|here| {
        for is_asked in [false, true] {
            let behind = Behind::new(here, Plan { hangs: vec![20], ..Plan::default() });
            let host = here.host();
            let mut queue = host.open_queue(1, 64, 0).unwrap();
            let (_memory, mr) = host.memory(1 << 20).unwrap();
            let buf = mr.buf(0..BLOCK).unwrap();
            let of = |opcode, lba| Sqe::blocks(opcode, 0, NSID, (lba, 1), keyed(&buf));
            queue.submit(of(io::READ, 20)).unwrap();
            thread::sleep(Duration::from_millis(50));
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

#[test]
fn a_namespace_goes_with_a_command_under_way() {
    with_target(|here| {
        let behind = Behind::new(here, Plan { hangs: vec![20], ..Plan::default() });
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        queue.submit(Sqe::blocks(io::READ, 0, NSID, (20, 1), keyed(&buf))).unwrap();
        thread::sleep(Duration::from_millis(50));
        removed(here, &behind);
        let ended = queue.wait(LIMIT).unwrap().status();
        assert_eq!(ended, Status::INVALID_NAMESPACE.dnr());
    });
}
