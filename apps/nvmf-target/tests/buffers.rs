//! Buffers of two sizes: short commands have many under way, and neither size waits for the other.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;
#[path = "common/held.rs"]
mod held;

use std::time::{Duration, Instant};

use common::{BLOCK, with};
use fake::Plan;
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::keyed;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 8;
/// Blocks of the longest command for a small buffer.
const SHORT: usize = ServerConfig::SMALL_BYTES / BLOCK;

#[test]
fn short_commands_have_many_buffers_and_long_ones_their_own() {
    let config = ServerConfig { buffers: 2, small_buffers: 40, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let (world, _drive) = held::drive(here, Plan::default(), NSID);
        let host = here.host();
        let mut short = host.open_queue(1, 64, 0).unwrap();
        let mut long = host.open_queue(2, 64, 0).unwrap();
        let (memory, mr) = host.memory(1 << 20).unwrap();
        let of = |opcode, lba: usize, blocks: usize| {
            let sgl = keyed(&mr.buf(lba * BLOCK..(lba + blocks) * BLOCK).unwrap());
            Sqe::blocks(opcode, 0, NSID, (lba as u64, blocks as u32), sgl)
        };
        let waits = || here.change(|server| server.stats().buffer_waits);
        let data: Vec<u8> = (0..1 << 20).map(|at| (at / BLOCK % 251) as u8).collect();
        memory.region().copy_in(0, &data).unwrap();
        // The drive stands still: two long ones have begun, and others wait.
        for at in 0..4 {
            long.submit(of(io::WRITE, 1024 + at * 64, SHORT + 1)).unwrap();
        }
        let begun = Instant::now();
        while waits() == 0 {
            assert!(begun.elapsed() < LIMIT);
        }
        here.until_held(2);
        for at in 0..40 {
            short.submit(of(io::WRITE, at * SHORT, SHORT)).unwrap();
        }
        here.until_held(42);
        // Of the long ones only the first asks: the other stands behind it in the line of their
        // queue.
        assert_eq!(waits(), 1, "each short one has a buffer");
        for at in 40..44 {
            short.submit(of(io::WRITE, at * SHORT, 1)).unwrap();
        }
        while waits() < 2 {
            assert!(begun.elapsed() < LIMIT);
        }
        here.until_held(42);
        let pollers = || here.change(|server| server.registry().snapshot().pollers);
        while (pollers()[0].free_buffers, pollers()[0].free_small_buffers) != (0, 0) {
            assert!(begun.elapsed() < LIMIT);
        }
        for (queue, count) in [(&mut short, 44), (&mut long, 4)] {
            for _ in 0..count {
                let cqe = loop {
                    world.fake().step();
                    if let Some(cqe) = queue.poll().unwrap() {
                        break cqe;
                    }
                    assert!(begun.elapsed() < LIMIT);
                };
                assert_eq!(cqe.status(), Status::SUCCESS);
            }
        }
        here.until_held(0);
        // No two have shared a byte.
        let written = |lba: usize, blocks: usize| lba * BLOCK..(lba + blocks) * BLOCK;
        let short = (0..40).map(|at| written(at * SHORT, SHORT));
        let long = (0..4).map(|at| written(1024 + at * 64, SHORT + 1));
        for range in short.chain((40..44).map(|at| written(at * SHORT, 1))).chain(long) {
            assert!(world.fake().disk[range.clone()] == data[range.clone()], "{range:?}");
        }
    });
}
