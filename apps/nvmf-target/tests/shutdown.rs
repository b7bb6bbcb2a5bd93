//! A host that shuts its controller down: what was written is on the medium before the target says
//! that this is done. One that ends a queue by a command: what had begun ends before.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;
#[path = "common/held.rs"]
mod held;

use std::time::{Duration, Instant};

use common::{BLOCK, with_target};
use fake::{Plan, World};
use ferrocx_nvmf_target::host::{Host, HostError, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::identify::cns;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Fuse, Sqe, fabrics, io};
use ferrocx_nvmf_target::proto::status::Status;

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 8;
const SHUT_DOWN: u32 = 0x0046_4001;

fn state(host: &mut Host) -> u32 {
    host.property(property::CSTS).unwrap() as u32
}

/// Steps the drive until the queue has an answer.
fn answer(world: &World, queue: &mut HostQueue) -> Status {
    answer_with(queue, || world.fake().step())
}

/// Does something until the queue has an answer.
fn answer_with<T>(queue: &mut HostQueue, mut step: impl FnMut() -> T) -> Status {
    let begun = Instant::now();
    loop {
        step();
        if let Some(cqe) = queue.poll().unwrap() {
            return cqe.status();
        }
        assert!(begun.elapsed() < LIMIT);
    }
}

#[test]
fn what_was_written_is_flushed_before_the_shutdown_is_complete() {
    with_target(|here| {
        let (world, _drive) = held::drive(here, Plan::default(), NSID);
        let mut host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let block = keyed(&mr.buf(0..BLOCK).unwrap());
        let of = |opcode, nsid| Sqe::blocks(opcode, 0, nsid, (1, 1), block);
        queue.submit(of(io::WRITE, NSID)).unwrap();
        assert_eq!(answer(&world, &mut queue), Status::SUCCESS);
        // This one is under way when the shutdown is asked for.
        queue.submit(of(io::WRITE, NSID)).unwrap();
        here.until_held(1);
        host.set_property(property::CC, SHUT_DOWN).unwrap();
        assert_eq!(state(&mut host), property::CSTS_RDY | property::CSTS_SHST_OCCURRING);
        for nsid in [1, NSID] {
            let refused = one(&mut queue, of(io::WRITE, nsid)).unwrap().status();
            assert_eq!(refused, Status::SEQUENCE.dnr(), "no I/O on namespace {nsid} any more");
        }
        std::thread::sleep(Duration::from_millis(200));
        let opcodes = || world.fake().seen.iter().map(|it| it.opcode).collect::<Vec<u8>>();
        assert_eq!(opcodes(), [io::WRITE], "nothing goes past what had begun");
        // One step, for the drive is to look at nothing that comes behind.
        world.fake().step();
        assert_eq!(answer_with(&mut queue, || ()), Status::SUCCESS, "it ends");
        // The flush is given to the drive, which has not looked yet.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(state(&mut host) & property::CSTS_SHST, property::CSTS_SHST_OCCURRING);
        let begun = Instant::now();
        while state(&mut host) & property::CSTS_SHST != property::CSTS_SHST_COMPLETE {
            world.fake().step();
            assert!(begun.elapsed() < LIMIT);
        }
        assert_eq!(opcodes(), [io::WRITE, io::WRITE, io::FLUSH]);
        assert_eq!(world.fake().flushes, 1);
        // No other I/O queue until it is switched off and on again.
        let Err(HostError::Refused { status, .. }) = host.open_queue(2, 32, 0) else {
            panic!("a queue of a controller that is shut down")
        };
        assert_eq!(status, Status::CONNECT_PARAMETER.dnr());
        host.set_property(property::CC, 0).unwrap();
        drop(queue);
        host.enable().unwrap();
        host.set_feature(0x07, 0).unwrap();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        assert_eq!(one(&mut queue, of(io::READ, 1)).unwrap().status(), Status::SUCCESS);
    });
}

#[test]
fn a_flush_that_fails_leaves_the_shutdown_incomplete() {
    with_target(|here| {
        // A Flush names block 0.
        let (world, _drive) =
            held::drive(here, Plan { fails: vec![(0, 0x280)], ..Plan::default() }, NSID);
        let mut host = here.host();
        host.set_property(property::CC, SHUT_DOWN).unwrap();
        let begun = Instant::now();
        while state(&mut host) & property::CSTS_CFS == 0 {
            world.fake().step();
            assert!(begun.elapsed() < LIMIT);
        }
        assert_eq!(state(&mut host) & property::CSTS_SHST, property::CSTS_SHST_OCCURRING);
        assert!(matches!(host.shut_down(), Err(HostError::Ended(_))));
    });
}

#[test]
fn a_host_of_memory_alone_does_not_wait() {
    with_target(|here| {
        let host = here.host();
        let begun = Instant::now();
        host.shut_down().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        here.until_queues(0);
    });
}

/// The first half of a pair whose second never comes does not keep the shutdown from its end.
#[test]
fn half_a_pair_does_not_hold_a_shutdown_up() {
    with_target(|here| {
        let mut host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let block = keyed(&mr.buf(0..BLOCK).unwrap());
        let half = Sqe::blocks(io::COMPARE, 0, 1, (1, 1), block).fused(Fuse::First);
        queue.submit(half).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(queue.poll().unwrap(), None, "it waits for its second");
        host.set_property(property::CC, SHUT_DOWN).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::MISSING_FUSED);
        let begun = Instant::now();
        while state(&mut host) & property::CSTS_SHST != property::CSTS_SHST_COMPLETE {
            assert!(begun.elapsed() < LIMIT);
        }
    });
}

#[test]
fn a_host_ends_one_queue_by_a_command() {
    with_target(|here| {
        let (world, _drive) = held::drive(here, Plan::default(), NSID);
        let mut host = here.host();
        assert_eq!(host.identify(cns::CONTROLLER, 0).unwrap()[1804..1806], [1, 0]);
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let mut other = host.open_queue(2, 32, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let block = keyed(&mr.buf(0..BLOCK).unwrap());
        let of = |opcode, nsid| Sqe::blocks(opcode, 0, nsid, (1, 1), block);
        let write = queue.submit(of(io::WRITE, NSID)).unwrap();
        here.until_held(1);
        let disconnect = Sqe::fabrics(fabrics::DISCONNECT, 0, Sgl::NONE);
        let last = queue.submit(disconnect).unwrap();
        let late = queue.submit(of(io::READ, 1)).unwrap();
        // What comes behind it is refused, and it waits for what had begun.
        let cqe = queue.wait(LIMIT).unwrap();
        assert_eq!((Some(cqe.cid.get()), cqe.status()), (late, Status::SEQUENCE.dnr()));
        std::thread::sleep(Duration::from_millis(200));
        assert!(queue.poll().unwrap().is_none());
        let mut ended = Vec::new();
        let begun = Instant::now();
        while ended.len() < 2 {
            world.fake().step();
            let cqe = queue.poll().unwrap();
            ended.extend(cqe.map(|cqe| (Some(cqe.cid.get()), cqe.status())));
            assert!(begun.elapsed() < LIMIT);
        }
        assert_eq!(ended, [(write, Status::SUCCESS), (last, Status::SUCCESS)]);
        // Its number is free at once, and its connection is not to be used again.
        let mut again = host.open_queue(1, 32, 0).unwrap();
        for queue in [&mut again, &mut other] {
            assert_eq!(one(queue, of(io::READ, 1)).unwrap().status(), Status::SUCCESS);
        }
        queue.wait_for_end(LIMIT).unwrap();
        here.until_queues(3);
        assert_eq!(here.change(|server| server.stats().failed), 0);
        let refused = host.command(disconnect).unwrap().status();
        assert_eq!(refused, Status::QUEUE_TYPE.dnr(), "the admin queue");
        assert_eq!(state(&mut host), property::CSTS_RDY, "the controller stays");
    });
}
