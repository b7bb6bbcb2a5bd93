//! A host that asks for data and posts no receives: its answers go nowhere, for ever, as it asked
//! for. What its commands hold is not the other hosts' loss.

mod common;

use std::time::{Duration, Instant};

use common::{BLOCK, NQN, offers_new_file, with};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{Host, HostConfig, keyed, one};
use ferrocx_nvmf_target::proto::connect::DISCOVERY_NQN;
use ferrocx_nvmf_target::proto::identify::cns;
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
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
        ServerConfig { small_buffers: BUFFERS, host_patience: PATIENCE, ..ServerConfig::default() };
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
                here.until_held(0);
            }
        }
        here.until_held(SHARE);
        // Far more often than it could be in luck.
        while from.elapsed() < PATIENCE - Duration::from_secs(1) {
            let asked = Instant::now();
            let cqe = one(&mut served, read(0, keyed(&mine.buf(0..8 * BLOCK).unwrap()))).unwrap();
            assert_eq!(cqe.status(), Status::SUCCESS);
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
        let (ended, held) = here.change(|server| (server.stats().ended, server.held_buffers()));
        // The last answer's may be on its way back.
        assert!(ended == 0 && held >= SHARE, "{ended} ended, {held} held");
        here.until_held(0);
        assert!(from.elapsed() >= PATIENCE, "it had its time");
        let cqe = one(&mut served, read(0, keyed(&mine.buf(0..8 * BLOCK).unwrap()))).unwrap();
        assert_eq!(cqe.status(), Status::SUCCESS);
        // Its two queues are the good host's.
        here.until_queues(3);
    });
}

#[test]
fn a_stranger_of_discovery_that_takes_no_long_pages_holds_no_buffers() {
    takes_no_long_pages(DISCOVERY_NQN, lid::DISCOVERY);
}

#[test]
fn an_admin_queue_that_takes_no_long_pages_holds_its_address_s_share() {
    takes_no_long_pages(NQN, lid::ERRORS);
}

/// A host asks for log pages that it does not take, and another reads a file meanwhile.
fn takes_no_long_pages(nqn: &str, lid: u8) {
    const PAGE: usize = 32 << 10;
    let config = ServerConfig { buffers: BUFFERS, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        if !offers_new_file(here, NSID, BLOCKS) {
            return;
        }
        let good = here.host();
        let mut served = good.open_queue(1, 32, 0).unwrap();
        let (_, mine) = good.memory(PAGE).unwrap();
        let (_port, base) = here.neighbour(1);
        let hostnqn = "nqn.2014-08.a:stranger".to_owned();
        let other = HostConfig { hostnqn, hostid: [0x33; 16], ..HostConfig::new(nqn) };
        let mut bad = Host::open(&base, &other).unwrap();
        bad.set_property(property::CC, 0x0046_0001).unwrap();
        let mdts = bad.identify(cns::CONTROLLER, 0).unwrap()[77];
        assert_eq!(mdts, if nqn == NQN { 8 } else { 2 });
        let (_, mr) = bad.memory(PAGE).unwrap();
        let log = |cid: u16, len: usize| Sqe {
            nsid: u32::MAX.into(),
            cid: cid.into(),
            cdw10: (u32::from(lid) | (len as u32 / 4 - 1) << 16).into(),
            ..Sqe::new(admin::GET_LOG, 0, keyed(&mr.buf(0..len).unwrap()))
        };
        // What discovery says that it brings at once, it does.
        let cqe = one(&mut bad.admin, log(0, 16 << 10)).unwrap();
        assert_eq!(cqe.status(), Status::SUCCESS);
        let cqe = one(&mut bad.admin, log(0, PAGE)).unwrap();
        let expected = if nqn == NQN { Status::SUCCESS } else { Status::INVALID_FIELD.dnr() };
        assert_eq!(cqe.status(), expected);
        // The target's clock has seen both.
        std::thread::sleep(Duration::from_secs(1));
        for _ in 0..2 {
            for slot in 0..30 {
                bad.admin.send(slot, log(slot, PAGE).as_bytes()).unwrap();
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let from = Instant::now();
        while from.elapsed() < Duration::from_secs(2) {
            let asked = Instant::now();
            let sgl = keyed(&mine.buf(0..PAGE).unwrap());
            let read = Sqe::blocks(io::READ, 0, NSID, (0, (PAGE / BLOCK) as u32), sgl);
            assert_eq!(one(&mut served, read).unwrap().status(), Status::SUCCESS, "{nqn}");
            assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        }
    });
}
