//! Nothing is allocated on the way of a command to RAM: counted on the target's own thread, where
//! only the turns of the connection manager allocate, a few for all of the commands.

mod common;

use std::time::Duration;

use common::with_target;
use ferrocx_heapcount::allocations;
use ferrocx_nvmf_target::host::keyed;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};

const ROUNDS: usize = 40;

#[test]
fn reads_and_writes_of_ram_allocate_nothing() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 128, 0).unwrap();
        let (_, mr) = host.memory(1 << 20).unwrap();
        let mut commands = |rounds: usize| {
            for round in 0..rounds {
                let mut sent = 0;
                while queue.room() > 0 {
                    let buf = mr.buf(sent * 4096..(sent + 1) * 4096).unwrap();
                    let blocks = |opcode, sgl| Sqe::blocks(opcode, 0, 1, (sent as u64, 8), sgl);
                    match round % 3 {
                        0 => queue.submit(blocks(io::WRITE, keyed(&buf))).unwrap(),
                        1 => queue.submit(blocks(io::READ, keyed(&buf))).unwrap(),
                        _ => {
                            let sgl = Sgl::InCapsule { offset: 0, len: 4096 };
                            queue.submit_with(blocks(io::WRITE, sgl), &[1; 4096]).unwrap()
                        }
                    };
                    sent += 1;
                }
                for _ in 0..sent {
                    assert!(queue.wait(Duration::from_secs(20)).unwrap().status().is_success());
                }
            }
        };
        let count = || here.change(|_| allocations());
        commands(3);
        // What asking costs itself.
        let (before, again) = (count(), count());
        commands(ROUNDS);
        let after = count();
        let (commands, asked) = (ROUNDS as u64 * 127, again - before);
        // Asking takes a turn of the connection manager or two, which may allocate more once.
        let allocated = (after - again).saturating_sub(asked);
        assert!(allocated < commands / 100, "{allocated} allocations in {commands} commands");
    });
}
