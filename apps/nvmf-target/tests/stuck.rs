//! A host that asks for data and posts no receives: its answers go nowhere, for ever, as it asked
//! for. What its commands hold is not the other hosts' loss.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCK, NQN, offers_new_file, with};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{Host, HostConfig, keyed, one};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;
use zerocopy::IntoBytes;

const NSID: u32 = 9;
const BLOCKS: u64 = 4096;
const BUFFERS: u16 = 8;
/// Three quarters of them.
const SHARE: usize = 6;
const PATIENCE: Duration = Duration::from_secs(4);
/// Entries of the queue without receives, and Reads that find one at its host: each entry has one.
const ENTRIES: u16 = 17;

#[test]
fn a_host_without_receives_leaves_the_others_buffers_and_loses_its_queue() {
    let config =
        ServerConfig { buffers: BUFFERS, host_patience: PATIENCE, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        if !offers_new_file(here, NSID, BLOCKS) {
            return;
        }
        let read = |slot: u16, sgl: Sgl| Sqe {
            cid: slot.into(),
            ..Sqe::blocks(io::READ, 0, NSID, (0, 8), sgl)
        };
        let (_port, base) = here.neighbour(1);
        let other = HostConfig {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000002".into(),
            hostid: [0x22; 16],
            ..HostConfig::new(NQN)
        };
        let good = Host::connect(&base, &other).unwrap();
        let mut served = good.open_queue(1, 32, 0).unwrap();
        let (_, mine) = good.memory(8 * BLOCK).unwrap();
        let bad = here.host();
        let mut queue = bad.open_queue(1, ENTRIES, 0).unwrap();
        let (_, mr) = bad.memory(8 * BLOCK).unwrap();
        // The target's clock has seen both.
        std::thread::sleep(Duration::from_secs(1));

        let from = Instant::now();
        for round in 0..2 {
            for slot in 0..ENTRIES - 1 {
                let sgl = keyed(&mr.buf(0..8 * BLOCK).unwrap());
                queue.send(slot, read(slot, sgl).as_bytes()).unwrap();
            }
            if round == 0 {
                // The answers use the receives up: nobody posts them again.
                std::thread::sleep(Duration::from_millis(300));
                here.until_buffers(BUFFERS.into());
            }
        }
        here.until_buffers(usize::from(BUFFERS) - SHARE);
        // Far more often than it could be in luck.
        while from.elapsed() < PATIENCE - Duration::from_secs(1) {
            let asked = Instant::now();
            let cqe = one(&mut served, read(0, keyed(&mine.buf(0..8 * BLOCK).unwrap()))).unwrap();
            assert_eq!(cqe.status(), Status::SUCCESS);
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
        let (ended, free) = here.change(|server| (server.stats().ended, server.free_buffers()));
        // The last answer's may be on its way back.
        assert!(ended == 0 && free <= usize::from(BUFFERS) - SHARE, "{ended} ended, {free} free");
        here.until_buffers(BUFFERS.into());
        assert!(from.elapsed() >= PATIENCE, "it had its time");
        let cqe = one(&mut served, read(0, keyed(&mine.buf(0..8 * BLOCK).unwrap()))).unwrap();
        assert_eq!(cqe.status(), Status::SUCCESS);
        // Its two queues are the good host's.
        here.until_queues(3);
    });
}
