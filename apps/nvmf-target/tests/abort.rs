//! Abort: what waits is taken back, what a store has begun goes on, and the answer says which.

mod common;
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;
#[path = "common/held.rs"]
mod held;

use std::time::{Duration, Instant};

use common::{BLOCK, NQN, with};
use fake::Plan;
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{Host, HostConfig, keyed};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 8;

/// Whether a command was taken back, as the answer to an Abort says.
fn abort(host: &mut Host, sqid: u16, cid: u16) -> bool {
    let cdw10 = u32::from(cid) << 16 | u32::from(sqid);
    let sqe = Sqe { cdw10: cdw10.into(), ..Sqe::new(admin::ABORT, 0, Sgl::NONE) };
    host.done("Abort", sqe).unwrap().result.get() & 1 == 0
}

#[test]
fn a_command_that_waits_is_taken_back_and_one_that_a_drive_has_goes_on() {
    let config = ServerConfig { small_buffers: 1, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let (world, mut drive) = held::drive(here, Plan::default(), NSID);
        let mut host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (memory, mr) = host.memory(4096).unwrap();
        memory.region().copy_in(0, &[0x77; 4096]).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        let write = |lba| Sqe::blocks(io::WRITE, 0, NSID, (lba, 1), keyed(&buf));
        let first = queue.submit(write(1)).unwrap().unwrap();
        here.until_held(1);
        // The drive has it, or the port reads its data: either way it has begun.
        std::thread::sleep(Duration::from_millis(100));
        let [second, third] = [2, 3].map(|lba| queue.submit(write(lba)).unwrap().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        assert!(!abort(&mut host, 1, first), "it has begun");
        assert!(abort(&mut host, 1, second), "it waits for the buffer");
        // Its answer was before the Abort's.
        let cqe = queue.wait(LIMIT).unwrap();
        assert_eq!((cqe.cid.get(), cqe.status()), (second, Status::ABORTED));
        assert!(!abort(&mut host, 1, second), "there is none of that name any more");
        for (sqid, cid) in [(1, 0x7777), (2, first), (0, 0x1234), (0xffff, first)] {
            assert!(!abort(&mut host, sqid, cid), "{cid:#x} of {sqid}");
        }
        let mut ended = Vec::new();
        let begun = Instant::now();
        while ended.len() < 2 {
            world.fake().step();
            ended.extend(queue.poll().unwrap().map(|cqe| (cqe.cid.get(), cqe.status())));
            assert!(begun.elapsed() < LIMIT);
        }
        assert_eq!(ended, [(first, Status::SUCCESS), (third, Status::SUCCESS)]);
        let on_disk = |lba: usize| world.fake().disk[lba * BLOCK];
        assert_eq!([1, 2, 3].map(on_disk), [0x77, 0, 0x77], "the second was never written");
        here.until_held(0);
        // One that waits for a drive that is reset.
        world.fake().set_fatal();
        drive.tend();
        let away = queue.submit(write(4)).unwrap().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(abort(&mut host, 1, away));
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::ABORTED);
    });
}

/// A log page that waits for a buffer does not hold up what needs none.
#[test]
fn short_admin_commands_pass_those_that_wait_for_a_buffer() {
    let config = ServerConfig { buffers: 1, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let (world, _drive) = held::drive(here, Plan::default(), NSID);
        let config = HostConfig { keep_alive_ms: 10_000, ..HostConfig::new(NQN) };
        let mut host = Host::connect(&here.base, &config).unwrap();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_memory, mr) = host.memory(64 << 10).unwrap();
        let sgl = keyed(&mr.buf(0..32 * BLOCK).unwrap());
        let write = Sqe::blocks(io::WRITE, 0, NSID, (1, 32), sgl);
        queue.submit(write).unwrap();
        here.until_held(1);
        let len = 32 << 10;
        let log = Sqe {
            nsid: u32::MAX.into(),
            cdw10: (u32::from(lid::ERRORS) | (len as u32 / 4 - 1) << 16).into(),
            ..Sqe::new(admin::GET_LOG, 0, keyed(&mr.buf(0..len).unwrap()))
        };
        let cid = host.admin.submit(log).unwrap().unwrap();
        for _ in 0..3 {
            host.keep_alive().unwrap();
            assert_eq!(host.property(property::CSTS).unwrap(), 1);
            assert!(!abort(&mut host, 1, 0x7777));
        }
        let begun = Instant::now();
        let cqe = loop {
            world.fake().step();
            if let Some(cqe) = host.admin.poll().unwrap() {
                break cqe;
            }
            assert!(begun.elapsed() < LIMIT);
        };
        assert_eq!((cqe.cid.get(), cqe.status()), (cid, Status::SUCCESS));
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
    });
}

#[test]
fn a_request_for_an_event_is_taken_back() {
    common::with_target(|here| {
        let mut host = here.host();
        let cid = host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap().unwrap();
        let cdw10 = u32::from(cid) << 16;
        let sqe = Sqe { cdw10: cdw10.into(), ..Sqe::new(admin::ABORT, 0, Sgl::NONE) };
        let name = host.admin.submit(sqe).unwrap().unwrap();
        let both = [(); 2].map(|()| host.admin.wait(LIMIT).unwrap());
        for cqe in both {
            let expected = if cqe.cid.get() == cid { Status::ABORTED } else { Status::SUCCESS };
            assert_eq!(cqe.status(), expected);
            assert!(cqe.cid.get() == cid || cqe.cid.get() == name);
            assert_eq!(cqe.result.get(), 0, "it was taken back");
        }
    });
}
