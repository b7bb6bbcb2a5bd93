//! A target that stands still, as with its machine, while hosts go on: none is ended for that.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCK, offers_new_file, with};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::keyed;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::transport::ServerConfig;
use zerocopy::IntoBytes;

const NSID: u32 = 9;
const BLOCKS: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(3);
const ENTRIES: u16 = 17;

/// A host that owes the target something, since it posts no receives again, has its time for that:
/// time in which the target did not look is none of it.
#[test]
fn a_host_has_its_time_beside_that_in_which_the_target_stood_still() {
    let config =
        ServerConfig { host_patience: PATIENCE, small_buffers: 8, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        if !offers_new_file(here, NSID, BLOCKS) {
            return;
        }
        let host = here.host();
        let mut queue = host.open_queue(1, ENTRIES, 0).unwrap();
        let (_memory, mr) = host.memory(8 * BLOCK).unwrap();
        let sgl = keyed(&mr.buf(0..8 * BLOCK).unwrap());
        for round in 0..2 {
            for slot in 0..ENTRIES - 1 {
                let read = Sqe::blocks(io::READ, 0, NSID, (0, 8), sgl);
                queue.send(slot, Sqe { cid: slot.into(), ..read }.as_bytes()).unwrap();
            }
            if round == 0 {
                std::thread::sleep(Duration::from_millis(300));
                here.until_held(0);
            }
        }
        here.until_held(8);
        // The target has noted when it heard of it last.
        std::thread::sleep(Duration::from_millis(300));
        let from = Instant::now();
        here.change(|_| std::thread::sleep(PATIENCE * 2));
        std::thread::sleep(PATIENCE / 6);
        let (ended, held) = here.change(|server| (server.stats().ended, server.held_buffers()));
        assert_eq!((ended, held), (0, 8), "its time is not over");
        here.until_held(0);
        assert!(from.elapsed() > PATIENCE * 9 / 4, "{:?}", from.elapsed());
    });
}
