//! The discovery service, as hosts ask it.

mod common;

use std::time::Duration;

use common::{BLOCK, NQN, between, with_target};
use ferrocx_nvmf_target::controller::{Settings, Subsystem};
use ferrocx_nvmf_target::host::{Host, HostConfig, keyed, one};
use ferrocx_nvmf_target::proto::connect::DISCOVERY_NQN;
use ferrocx_nvmf_target::proto::identify::{cns, events};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::property;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

#[test]
fn a_host_sees_what_it_may_connect_to_and_hears_of_changes() {
    with_target(|here| {
        let mut host = Host::open(&here.base, &HostConfig::new(DISCOVERY_NQN)).unwrap();
        host.set_property(property::CC, 0x0046_0001).unwrap();
        let page = host.identify(cns::CONTROLLER, 0).unwrap();
        assert_eq!((page[111], &page[516..520]), (2, [0; 4].as_slice()));
        // As nvme-cli asks: the header's first 20 bytes, then entries.
        let header = host.log(lid::DISCOVERY, 0, 20).unwrap();
        let (generation, records) = (number(&header, 0), number(&header, 8));
        assert_eq!(records, 2, "itself and one; the other is not for this host");
        let entries = host.log(lid::DISCOVERY, 1024, 2048).unwrap();
        assert_eq!(&entries[256..256 + DISCOVERY_NQN.len()], DISCOVERY_NQN.as_bytes());
        let second = &entries[1024..];
        assert_eq!(second[..4], [1, 1, 2, 4]);
        assert_eq!(&second[256..256 + NQN.len()], NQN.as_bytes());
        assert_eq!(&second[32..36], b"4420");
        assert_eq!(&second[512..520], b"10.9.0.1");
        assert_eq!(host.log(lid::DISCOVERY, 3 * 1024, 1024).unwrap(), vec![0; 1024]);
        for past in [3 * 1024 + 4, u64::MAX - 3] {
            let refused = host.log(lid::DISCOVERY, past, 64).unwrap_err().to_string();
            assert!(refused.contains("invalid field"), "{refused}");
        }
        // It hears of a change, once.
        host.set_feature(0x0b, events::DISCOVERY).unwrap();
        host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
        here.change(|server| {
            server.target_mut().add_subsystem(Subsystem::new("nqn.2014-08.a:new", "N")).unwrap();
        });
        let cqe = host.admin.wait(Duration::from_secs(20)).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0070_f002));
        let header = host.log(lid::DISCOVERY, 0, 20).unwrap();
        assert_eq!((number(&header, 0), number(&header, 8)), (generation + 1, 3));
        // It has no I/O queues, namespaces or other logs.
        for sqe in [Sqe::new(admin::ABORT, 0, Sgl::NONE), Sqe::new(0x02, 0, Sgl::NONE)] {
            assert!(!host.command(sqe).unwrap().status().is_success());
        }
        assert!(host.set_feature(0x07, 0).is_err());
        assert!(host.identify(cns::NAMESPACE, 1).is_err());
        assert!(host.log(lid::SMART, 0, 512).is_err());
        host.keep_alive().unwrap();
    });
}

/// ADRFAM 2, and hosts connect to the address that they are told.
#[test]
fn it_is_the_same_by_ipv6() {
    let sizes = (1, Settings::default(), ServerConfig::default());
    between(["fd00::9:1", "fd00::9:2"], sizes, |here| {
        let mut host = Host::open(&here.base, &HostConfig::new(DISCOVERY_NQN)).unwrap();
        host.set_property(property::CC, 0x0046_0001).unwrap();
        let entry = host.log(lid::DISCOVERY, 2048, 1024).unwrap();
        assert_eq!(entry[..4], [1, 2, 2, 4]);
        assert_eq!(&entry[512..522], b"fd00::9:1 ");
        let host = here.host();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        let (_memory, mr) = host.memory(2 * BLOCK).unwrap();
        let (mut from, to) = (mr.buf(0..BLOCK).unwrap(), mr.buf(BLOCK..2 * BLOCK).unwrap());
        from.copy_in(0, &[0x66; BLOCK]).unwrap();
        for (opcode, buf) in [(io::WRITE, &from), (io::READ, &to)] {
            let sqe = Sqe::blocks(opcode, 0, 1, (7, 1), keyed(buf));
            assert_eq!(one(&mut queue, sqe).unwrap().status(), Status::SUCCESS);
        }
        assert_eq!(to.to_vec(), [0x66; BLOCK]);
    });
}

/// Whoever asks what there is may have any name: sums are kept by name of those alone who got in.
#[test]
fn who_only_asked_leaves_no_sums_of_its_own() {
    with_target(|here| {
        let snapshot = || here.change(|server| server.registry().snapshot());
        for number in 0..4 {
            let hostnqn = format!("nqn.2014-08.a:stranger-{number}");
            let config = HostConfig { hostnqn, ..HostConfig::new(DISCOVERY_NQN) };
            let mut host = Host::open(&here.base, &config).unwrap();
            host.property(property::CSTS).unwrap();
            while snapshot().queues.is_empty() {
                std::thread::yield_now();
            }
            // Nor while it is there, since they would shrink when it goes.
            assert!(
                snapshot().hosts.iter().all(|it| it.host == "others"),
                "{:?}",
                snapshot().hosts
            );
            drop(host);
            here.until_queues(0);
        }
        let host = here.host();
        let queue = host.open_queue(1, 16, 0).unwrap();
        drop((queue, host));
        here.until_queues(0);
        let snapshot = snapshot();
        let names: Vec<&str> = snapshot.hosts.iter().map(|it| &*it.host).collect();
        let name = HostConfig::new(NQN).hostnqn;
        assert_eq!(names, [&*name, "others"]);
        assert!(snapshot.hosts.iter().all(|it| it.moved.commands > 0));
    });
}
