//! Two ports of a target, of which one is the better way, as hosts of ours see them over the wire.

mod common;

use std::time::Duration;

use common::{Here, NQN, with_target};
use ferrocx_nvmf_target::controller::AnaState;
use ferrocx_nvmf_target::host::{Base, Host, HostConfig, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::connect::DISCOVERY_NQN;
use ferrocx_nvmf_target::proto::identify::{cns, events};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;

const LIMIT: Duration = Duration::from_secs(20);
const PORTS: [(u16, AnaState); 2] = [(4420, AnaState::Optimized), (4421, AnaState::NonOptimized)];

/// Another port, and the states of both.
fn two_ports(here: &Here) -> Base {
    here.change(|server| {
        server.listen(4421).unwrap();
        server.target_mut().report_ana(&PORTS);
    });
    Base { target: "10.9.0.1:4421".parse().unwrap(), ..here.base.clone() }
}

fn set(here: &Here, service: u16, group: Option<u32>, state: AnaState) {
    here.change(move |server| server.target_mut().set_ana(service, group, state)).unwrap();
}

#[test]
fn hosts_are_told_which_way_is_the_better_one() {
    with_target(|here| {
        let mut plain = here.host();
        assert_eq!(plain.identify(cns::CONTROLLER, 0).unwrap()[76], 2);
        let refused = plain.log(lid::ANA, 0, 64).unwrap_err().to_string();
        assert!(refused.contains("0x109"), "{refused}");
        drop(plain);
        let other = two_ports(here);
        let mut hosts = [
            Host::connect(&here.base, &HostConfig::new(NQN)).unwrap(),
            Host::connect(&other, &HostConfig::new(NQN)).unwrap(),
        ];
        for host in &mut hosts {
            let page = host.identify(cns::CONTROLLER, 0).unwrap();
            // CMIC: ports, controllers, asymmetric access; OAES: namespaces, asymmetric access.
            assert_eq!((page[76], &page[92..96]), (0b1011, [0, 0b1001, 0, 0].as_slice()));
            assert_eq!(page[342..352], [10, 0x5f, 8, 0, 0, 0, 8, 0, 0, 0]);
            assert_eq!((&page[516..520], &page[540..544]), (&[0, 4, 0, 0][..], &[0, 4, 0, 0][..]));
            assert_eq!(host.identify(cns::NAMESPACE, 1).unwrap()[92..96], [1, 0, 0, 0]);
            assert_eq!(host.identify(cns::ANY_NAMESPACE, 3).unwrap()[4..8], [1, 0, 0, 0]);
        }
        let state = |host: &mut Host| {
            let log = host.log(lid::ANA, 0, 56).unwrap();
            // A group of two namespaces.
            assert_eq!(log[8..24], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
            assert_eq!(log[48..56], [1, 0, 0, 0, 3, 0, 0, 0]);
            log[32]
        };
        assert_eq!(hosts.each_mut().map(state), [1, 2]);
        // The discovery log has an entry for each port.
        let mut discovery = Host::open(&here.base, &HostConfig::new(DISCOVERY_NQN)).unwrap();
        discovery.enable().unwrap();
        let log = discovery.log(lid::DISCOVERY, 0, 4096).unwrap();
        assert_eq!(log[8], 3);
        for (at, port, service) in [(2048, 1, b"4420"), (3072, 2, b"4421")] {
            assert_eq!((log[at + 4], &log[at + 32..at + 36]), (port, service.as_slice()));
        }
        // Only hosts of the port that changes hear of it.
        for host in &mut hosts {
            host.set_feature(0x0b, events::ANA).unwrap();
            host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
        }
        set(here, 4421, Some(1), AnaState::Inaccessible);
        let [mut first, mut second] = hosts;
        let cqe = second.admin.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x000c_0302));
        assert_eq!(state(&mut second), 3);
        let page = second.identify(cns::NAMESPACE, 1).unwrap();
        assert_eq!((&page[..2], &page[16..24]), (&[0, 0x40][..], &[0; 8][..]), "size, and use");
        set(here, 4420, None, AnaState::NonOptimized);
        assert_eq!(first.admin.wait(LIMIT).unwrap().result.get(), 0x000c_0302);
        assert_eq!(state(&mut first), 2);
    });
}

#[test]
fn commands_of_io_are_refused_where_there_is_no_way() {
    with_target(|here| {
        let other = two_ports(here);
        let good = here.host();
        let bad = Host::connect(&other, &HostConfig::new(NQN)).unwrap();
        let (_, mr) = good.memory(4096).unwrap();
        let sgl = keyed(&mr.buf(0..4096).unwrap());
        let status = |queue: &mut HostQueue, opcode| {
            one(queue, Sqe::blocks(opcode, 0, 1, (0, 8), sgl)).unwrap().status()
        };
        let (mut by_good, mut by_bad) =
            (good.open_queue(1, 32, 0).unwrap(), bad.open_queue(1, 32, 0).unwrap());
        for (state, refused) in [
            (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
            (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
            (AnaState::Change, Status::ANA_TRANSITION),
            (AnaState::NonOptimized, Status::SUCCESS),
        ] {
            set(here, 4421, None, state);
            for opcode in [io::WRITE, io::READ, io::FLUSH, io::RESERVATION_REPORT] {
                // A report has fields of its own, and comes so far only where there is a way.
                let allowed = match opcode {
                    io::RESERVATION_REPORT => Status::HOST_ID_FORMAT.dnr(),
                    _ => Status::SUCCESS,
                };
                let expected = if refused.is_success() { allowed } else { refused };
                assert_eq!(status(&mut by_bad, opcode), expected, "{state:?} {opcode:#x}");
                assert_eq!(status(&mut by_good, opcode), allowed, "{state:?} {opcode:#x}");
            }
        }
        // Another group is another matter, and a port that has no state.
        set(here, 4421, Some(2), AnaState::Inaccessible);
        assert_eq!(status(&mut by_bad, io::READ), Status::SUCCESS);
        let target = |server: &mut ferrocx_nvmf_target::transport::Server| {
            let mut target = server.target_mut();
            [
                target.set_ana(4422, None, AnaState::Optimized),
                target.set_ana(4421, Some(9), AnaState::Optimized),
            ]
        };
        let [port, group] = here.change(target).map(|done| done.unwrap_err().to_string());
        assert!(port.contains("4422") && port.contains("[ana]"), "{port}");
        assert!(group.contains("group is 9; give 1 to 8"), "{group}");
        // A queue of I/O belongs to its controller's port.
        let stray = Host::connect(&other, &HostConfig::new(NQN)).unwrap().moved_to(&here.base);
        let refused = stray.open_queue(1, 32, 0).unwrap_err().to_string();
        assert!(refused.contains("0x182"), "{refused}");
    });
}
