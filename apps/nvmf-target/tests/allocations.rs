//! Nothing is allocated on the way of a command to RAM, copied or not, or to a drive: counted on
//! the target's own thread, where only the turns of the connection manager allocate, a few for all
//! of the commands.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::{Here, NQN, StopAtEnd, add_whole, namespace, with_target};
use fake::{Plan, World};
use ferrocx_heapcount::allocations;
use ferrocx_nvme::Config;
use ferrocx_nvmf_target::drive::Drive;
use ferrocx_nvmf_target::host::keyed;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};

const KINDS: usize = 8;
const ROUNDS: usize = 6 * KINDS;

#[test]
fn commands_to_ram_allocate_nothing() {
    with_target(|here| allocate_nothing(here, 1));
}

#[test]
fn nor_do_those_that_are_copied() {
    with_target(|here| {
        add_whole(here, 8, 4096);
        allocate_nothing(here, 8);
    });
}

#[test]
fn nor_do_those_of_a_drive() {
    with_target(|here| {
        let plan = Plan::default();
        let (blocks, stop) = (plan.blocks, AtomicBool::new(false));
        let world = World::new(plan);
        thread::scope(|scope| {
            let _stop_it = StopAtEnd(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    let mut fake = world.fake();
                    fake.step();
                    fake.seen.clear();
                    drop(fake);
                    thread::yield_now();
                }
            });
            let drive = Drive::start(world.open_as(&Config::default()).unwrap()).unwrap();
            let buffers = here.change(|server| server.buffers());
            let queue = drive.queues(1, &[buffers]).unwrap().pop().unwrap();
            here.change(move |server| {
                let place = server.add_drive(queue).unwrap();
                server.target_mut().put_namespace(NQN, namespace(9, blocks, place)).unwrap();
            });
            allocate_nothing(here, 9);
            here.until_queues(0);
            drop(drive);
        });
    });
}

fn allocate_nothing(here: &Here, nsid: u32) {
    let host = here.host();
    let mut queue = host.open_queue(1, 128, 0).unwrap();
    let (_, mr) = host.memory(1 << 20).unwrap();
    let capsule = |len| Sgl::InCapsule { offset: 0, len };
    let mut commands = |rounds: usize| {
        for round in 0..rounds {
            let mut sent = 0;
            while queue.room() > 0 {
                let buf = mr.buf(sent * 4096..(sent + 1) * 4096).unwrap();
                let blocks = |opcode, sgl| Sqe::blocks(opcode, 0, nsid, (sent as u64, 8), sgl);
                // One range, the blocks from 8 on.
                let mut range = [0; 16];
                (range[4], range[8]) = (8, 8);
                let dsm = Sqe { cdw10: 0.into(), cdw11: 4.into(), ..blocks(io::DSM, capsule(16)) };
                match round % KINDS {
                    0 => queue.submit(blocks(io::WRITE, keyed(&buf))).unwrap(),
                    1 => queue.submit(blocks(io::COMPARE, keyed(&buf))).unwrap(),
                    2 => queue.submit(blocks(io::READ, keyed(&buf))).unwrap(),
                    3 => queue.submit_with(blocks(io::WRITE, capsule(4096)), &[1; 4096]).unwrap(),
                    4 => queue.submit_with(dsm, &range).unwrap(),
                    5 => queue.submit(blocks(io::WRITE_ZEROES, Sgl::NONE)).unwrap(),
                    6 => queue.submit(blocks(io::VERIFY, Sgl::NONE)).unwrap(),
                    _ => queue.submit(blocks(io::FLUSH, Sgl::NONE)).unwrap(),
                };
                sent += 1;
            }
            for _ in 0..sent {
                assert!(queue.wait(Duration::from_secs(20)).unwrap().status().is_success());
            }
        }
    };
    let count = || here.change(|_| allocations());
    commands(KINDS);
    // What asking costs itself.
    let (before, again) = (count(), count());
    commands(ROUNDS);
    let after = count();
    let (commands, asked) = (ROUNDS as u64 * 127, again - before);
    // Asking takes a turn of the connection manager or two, which may allocate more once.
    let allocated = (after - again).saturating_sub(asked);
    assert!(allocated < commands / 100, "{allocated} allocations in {commands} commands");
}
