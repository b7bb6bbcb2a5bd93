//! Reservations as two hosts of ours make them over the wire.

mod common;

use std::time::Duration;

use common::{NQN, with, with_target};
use ferrocx_nvmf_target::auth::{Group, Hash, HostKey, Secret};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{Host, HostConfig, HostKeys, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::identify::cns;
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;

const LIMIT: Duration = Duration::from_secs(20);
const CONFLICT: Status = Status::RESERVATION_CONFLICT.dnr();
/// Write exclusive, registrants only.
const KIND: u32 = 3 << 8;

fn reserve(queue: &mut HostQueue, opcode: u8, cdw10: u32, keys: &[u64]) -> Status {
    let data: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    let sgl = Sgl::InCapsule { offset: 0, len: data.len() as u32 };
    let sqe = Sqe { nsid: 1.into(), cdw10: cdw10.into(), ..Sqe::new(opcode, 0, sgl) };
    queue.submit_with(sqe, &data).unwrap();
    queue.wait(LIMIT).unwrap().status()
}

#[test]
fn a_reservation_keeps_another_host_from_writing() {
    with_target(|here| {
        let mut one_host = here.host();
        let other = HostConfig {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000002".into(),
            hostid: [0x22; 16],
            ..HostConfig::new(NQN)
        };
        let mut other_host = Host::connect(&here.base, &other).unwrap();
        let page = one_host.identify(cns::NAMESPACE, 1).unwrap();
        assert_eq!(page[31], 0xfe);
        let (mut mine, mut his) =
            (one_host.open_queue(1, 32, 0).unwrap(), other_host.open_queue(1, 32, 0).unwrap());
        let (memory, mr) = one_host.memory(8192).unwrap();
        let block = |at: usize, len: usize| keyed(&mr.buf(at..at + len).unwrap());
        let blocks = |queue: &mut HostQueue, opcode| {
            one(queue, Sqe::blocks(opcode, 0, 1, (0, 8), block(0, 4096))).unwrap().status()
        };
        let (register, acquire) = (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE);
        assert_eq!(reserve(&mut mine, acquire, KIND, &[1, 0]), CONFLICT, "not registered");
        // By key as well as in the capsule.
        memory.region().copy_in(0, &[[0; 8], 1u64.to_le_bytes()].concat()).unwrap();
        let sqe = Sqe { nsid: 1.into(), ..Sqe::new(register, 0, block(0, 16)) };
        assert_eq!(one(&mut mine, sqe).unwrap().status(), Status::SUCCESS);
        assert_eq!(reserve(&mut mine, acquire, KIND, &[1, 0]), Status::SUCCESS);
        assert_eq!(blocks(&mut his, io::WRITE), CONFLICT);
        assert_eq!(blocks(&mut his, io::READ), Status::SUCCESS);
        assert_eq!(blocks(&mut mine, io::WRITE), Status::SUCCESS);
        // Whoever registers is let in.
        assert_eq!(reserve(&mut his, register, 0, &[0, 2]), Status::SUCCESS);
        assert_eq!(blocks(&mut his, io::WRITE), Status::SUCCESS);
        assert_eq!(reserve(&mut his, acquire, KIND, &[2, 0]), CONFLICT);
        let report = Sqe {
            nsid: 1.into(),
            cdw10: (192 / 4 - 1).into(),
            cdw11: 1.into(),
            ..Sqe::new(io::RESERVATION_REPORT, 0, block(4096, 192))
        };
        assert_eq!(one(&mut mine, report).unwrap().status(), Status::SUCCESS);
        let page = mr.buf(4096..4096 + 192).unwrap().to_vec();
        assert_eq!(page[..7], [2, 0, 0, 0, 3, 2, 0]);
        assert_eq!(page[64..66], one_host.cntlid.to_le_bytes());
        assert_eq!(
            (page[66], &page[72..74], &page[80..96]),
            (1, [1, 0].as_slice(), &[0x11; 16][..])
        );
        assert_eq!((page[128 + 2], page[128 + 8], &page[128 + 16..160]), (0, 2, &[0x22; 16][..]));
        let short = Sqe { cdw11: 0.into(), ..report };
        assert_eq!(one(&mut mine, short).unwrap().status(), Status::HOST_ID_FORMAT.dnr());
        // By a key that lends more than a Release needs, as Linux's own calls do: of another kind.
        memory.region().copy_in(0, &[1u64.to_le_bytes(), [0xee; 8]].concat()).unwrap();
        let wrong = Sqe {
            nsid: 1.into(),
            cdw10: (1 << 8).into(),
            ..Sqe::new(io::RESERVATION_RELEASE, 0, block(0, 16))
        };
        assert_eq!(one(&mut mine, wrong).unwrap().status(), Status::INVALID_FIELD.dnr());
        let sqe = Sqe { cdw10: KIND.into(), ..wrong };
        assert_eq!(one(&mut mine, sqe).unwrap().status(), Status::SUCCESS);
        assert_eq!(reserve(&mut mine, acquire, KIND, &[1, 0]), Status::SUCCESS);
        let _ = other_host.log(lid::RESERVATION, 0, 64).unwrap();
        // A registrant hears of the release.
        other_host.admin.submit(Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE)).unwrap();
        assert_eq!(reserve(&mut mine, io::RESERVATION_RELEASE, KIND, &[1]), Status::SUCCESS);
        let cqe = other_host.admin.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0080_0006));
        let log = other_host.log(lid::RESERVATION, 0, 64).unwrap();
        assert_eq!(log[..16], [2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(other_host.log(lid::RESERVATION, 0, 64).unwrap(), [0; 64]);
        assert_eq!(one_host.log(lid::RESERVATION, 0, 64).unwrap(), [0; 64]);
        // A data length that is not the command's, and a namespace that is none.
        assert_eq!(reserve(&mut mine, register, 0, &[0]), Status::DATA_LENGTH.dnr());
        let none = Sqe { nsid: 9.into(), ..Sqe::new(register, 0, block(0, 16)) };
        assert_eq!(one(&mut mine, none).unwrap().status(), Status::INVALID_NAMESPACE.dnr());
    });
}

/// An identifier is nobody's proof: of hosts that show a key, each has the rights of its own name,
/// on all of its paths.
#[test]
fn who_gives_the_identifier_of_another_has_not_its_rights() {
    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    /// Exclusive access.
    const ALONE: u32 = 2 << 8;
    with_target(|here| {
        let secret = || Secret::parse(KEY).unwrap();
        let names = ["nqn.2014-08.a:one", "nqn.2014-08.a:other"];
        for name in names {
            let (hashes, groups) = (vec![Hash::Sha256], vec![Group::Ffdhe2048]);
            let key = HostKey { secret: secret(), controller: None, hashes, groups };
            here.change(move |server| server.target_mut().set_key(NQN, name, Some(key))).unwrap();
        }
        let host = |name: &str, keys| {
            let config = HostConfig { hostnqn: name.into(), keys, ..HostConfig::new(NQN) };
            Host::connect(&here.base, &config).unwrap()
        };
        let keyed_host = |name: &str| host(name, Some(HostKeys::new(secret())));
        let (one_host, path, other) =
            (keyed_host(names[0]), keyed_host(names[0]), keyed_host(names[1]));
        let nobody = host("nqn.2014-08.a:nobody", None);
        let [mut mine, mut mine_too, mut his, mut theirs] =
            [&one_host, &path, &other, &nobody].map(|host| host.open_queue(1, 32, 0).unwrap());
        let (_memory, mr) = one_host.memory(4096).unwrap();
        let read = Sqe::blocks(io::READ, 0, 1, (0, 8), keyed(&mr.buf(0..4096).unwrap()));
        let (register, acquire) = (io::RESERVATION_REGISTER, io::RESERVATION_ACQUIRE);
        assert_eq!(reserve(&mut mine, register, 0, &[0, 1]), Status::SUCCESS);
        assert_eq!(reserve(&mut mine, acquire, ALONE, &[1, 0]), Status::SUCCESS);
        assert_eq!(one(&mut mine_too, read).unwrap().status(), Status::SUCCESS, "a path of its");
        for queue in [&mut his, &mut theirs] {
            assert_eq!(one(queue, read).unwrap().status(), CONFLICT);
            assert_eq!(reserve(queue, io::RESERVATION_RELEASE, ALONE, &[1]), CONFLICT);
            // Register anew, whatever the key was.
            assert_eq!(reserve(queue, register, 2 | 1 << 3, &[0, 7]), CONFLICT);
        }
        // They are registrants of their own.
        assert_eq!(reserve(&mut his, register, 0, &[0, 7]), Status::SUCCESS);
        assert_eq!(one(&mut his, read).unwrap().status(), CONFLICT);
        assert_eq!(reserve(&mut mine_too, io::RESERVATION_RELEASE, ALONE, &[1]), Status::SUCCESS);
        assert_eq!(one(&mut his, read).unwrap().status(), Status::SUCCESS);
    });
}

/// Switched off and on, a controller has no notices, and wants all kinds of them.
#[test]
fn a_controller_that_begins_anew_has_no_notices() {
    with_target(|here| {
        let other = HostConfig {
            hostnqn: "nqn.2014-08.org.nvmexpress:uuid:f0e0d0c0-0000-4000-8000-000000000002".into(),
            hostid: [0x22; 16],
            ..HostConfig::new(NQN)
        };
        let mut host = here.host();
        let other_host = Host::connect(&here.base, &other).unwrap();
        let mut his = other_host.open_queue(1, 32, 0).unwrap();
        let preempted = |host: &mut Host, his: &mut HostQueue| {
            let mut mine = host.open_queue(1, 32, 0).unwrap();
            assert_eq!(reserve(&mut mine, io::RESERVATION_REGISTER, 0, &[0, 1]), Status::SUCCESS);
            let preempt = KIND | 1;
            assert_eq!(reserve(his, io::RESERVATION_ACQUIRE, preempt, &[2, 1]), Status::SUCCESS);
        };
        assert_eq!(reserve(&mut his, io::RESERVATION_REGISTER, 0, &[0, 2]), Status::SUCCESS);
        preempted(&mut host, &mut his);
        let of = |opcode, value: u32| Sqe {
            nsid: 1.into(),
            cdw10: 0x82.into(),
            cdw11: value.into(),
            ..Sqe::new(opcode, 0, Sgl::NONE)
        };
        // Of the other kinds it hears no more.
        let set = of(admin::SET_FEATURES, 0xc);
        host.done("Set Features", set).unwrap();
        let get = of(admin::GET_FEATURES, 0);
        let mask = |host: &mut Host| host.done("Get Features", get).unwrap().result.get();
        assert_eq!(mask(&mut host), 0xc);
        host.enable().unwrap();
        assert_eq!(mask(&mut host), 0);
        assert_eq!(host.log(lid::RESERVATION, 0, 64).unwrap(), [0; 64]);
        host.set_feature(0x07, 0).unwrap();
        preempted(&mut host, &mut his);
        let log = host.log(lid::RESERVATION, 0, 64).unwrap();
        assert_eq!(log[..10], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0], "the first");
    });
}

/// The report of a host with 70 controllers has 64 bytes for itself and for each of them: more than
/// a page. Hosts say how much room they have, up to the largest transfer.
#[test]
fn a_report_has_the_length_that_is_asked_for() {
    const CONTROLLERS: usize = 70;
    let count = CONTROLLERS as u16;
    let settings =
        Settings { controllers: count, controllers_per_address: count, ..Settings::default() };
    let config = ServerConfig { queues: 100, queues_per_address: 100, ..ServerConfig::default() };
    with(settings, config, |here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let config = HostConfig { keep_alive_ms: 0, ..HostConfig::new(NQN) };
        let others: Vec<Host> =
            (1..CONTROLLERS).map(|_| Host::open(&here.base, &config).unwrap()).collect();
        let (_memory, mr) = host.memory((1 << 20) + 4).unwrap();
        assert_eq!(reserve(&mut queue, io::RESERVATION_REGISTER, 0, &[0, 1]), Status::SUCCESS);
        let report = |queue: &mut HostQueue, len: usize| {
            mr.buf(0..len).unwrap().copy_in(0, &vec![0xa5; len]).unwrap();
            let sqe = Sqe {
                nsid: 1.into(),
                cdw10: (len as u32 / 4 - 1).into(),
                cdw11: 1.into(),
                ..Sqe::new(io::RESERVATION_REPORT, 0, keyed(&mr.buf(0..len).unwrap()))
            };
            let status = one(queue, sqe).unwrap().status();
            (status, mr.buf(0..len).unwrap().to_vec())
        };
        let whole = 64 * (1 + CONTROLLERS);
        let (status, page) = report(&mut queue, whole);
        assert_eq!(status, Status::SUCCESS);
        assert_eq!(page[5..7], count.to_le_bytes());
        let named = |page: &[u8]| {
            let entries = page[64..whole].chunks_exact(64);
            let mut all: Vec<u16> = entries.map(|it| u16::from_le_bytes([it[0], it[1]])).collect();
            all.sort_unstable();
            all
        };
        let mut expected: Vec<u16> = others.iter().chain([&host]).map(|host| host.cntlid).collect();
        expected.sort_unstable();
        assert_eq!(named(&page), expected);
        // Up to the largest transfer; what is behind the entries is zeros.
        for len in [4, 4096, 4100, 1 << 20] {
            let (status, longer) = report(&mut queue, len);
            assert_eq!(status, Status::SUCCESS, "{len} bytes");
            let both = len.min(whole);
            assert!(longer[..both] == page[..both], "{len} bytes");
            assert!(longer[both..].iter().all(|byte| *byte == 0), "{len} bytes");
        }
        assert_eq!(report(&mut queue, (1 << 20) + 4).0, Status::INVALID_FIELD.dnr());
        here.until_held(0);
    });
}
