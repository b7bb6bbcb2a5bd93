//! Hosts that mean no good: every field of every message, wrong. Each gets the right status or is
//! sent away, and a host that behaves is served all the while.

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{BLOCK, BLOCKS, Here, NQN, PRIVATE, log_in_time, with, with_target};
use ferrocx::verbs::cm::CmError;
use ferrocx::verbs::{Access, Pd};
use ferrocx_nvmf_target::backend;
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{
    Host, HostConfig, HostError, HostQueue, QueueConfig, connect_command, keyed, one,
};
use ferrocx_nvmf_target::proto::cm::Request;
use ferrocx_nvmf_target::proto::connect::{ANY_CONTROLLER, ConnectData, DISCOVERY_NQN};
use ferrocx_nvmf_target::proto::identify::cns;
use ferrocx_nvmf_target::proto::sgl::{Keyed, Sgl};
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, fabrics, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;
use zerocopy::IntoBytes;

const LIMIT: Duration = Duration::from_secs(20);
const HOSTID: [u8; 16] = [0x11; 16];

fn hostnqn() -> String {
    HostConfig::new(NQN).hostnqn
}

/// A queue pair without a Connect.
fn raw(here: &Here, qid: u16, entries: u16) -> HostQueue {
    let config = QueueConfig { qid, entries, ..QueueConfig::default() };
    HostQueue::new(&here.base, &config).unwrap()
}

/// Sends a Connect in a capsule; how it ended.
fn connect(queue: &mut HostQueue, sqe: Sqe, data: &[u8]) -> (Status, u64) {
    queue.submit_with(sqe, data).unwrap();
    let cqe = queue.wait(LIMIT).unwrap();
    (cqe.status(), cqe.result.get())
}

fn data(cntlid: u16, subnqn: &str, hostnqn: &str) -> Vec<u8> {
    ConnectData::new(HOSTID, cntlid, subnqn, hostnqn).as_bytes().to_vec()
}

const IN_CAPSULE: Sgl = Sgl::InCapsule { offset: 0, len: 1024 };

/// What Linux prints the field's name of: offset in the data.
fn in_data(at: u64) -> (Status, u64) {
    (Status::CONNECT_PARAMETER.dnr(), at | 1 << 16)
}

#[test]
fn requests_for_queues_are_refused_with_the_right_reason() {
    with_target(|here| {
        let good = Request { hrqsize: 32.into(), hsqsize: 31.into(), ..Request::default() };
        let cases = [
            (Request { recfmt: 1.into(), ..good }, 2),
            (Request { hsqsize: 32.into(), hrqsize: 64.into(), ..good }, 4),
            (Request { hsqsize: 0.into(), ..good }, 4),
            (Request { hsqsize: 0xffff.into(), hrqsize: 0xffff.into(), qid: 1.into(), ..good }, 4),
            (Request { hrqsize: 31.into(), ..good }, 5),
        ];
        let config = QueueConfig::default();
        for (request, code) in cases {
            let refused = HostQueue::with_request(&here.base, &config, request.as_bytes());
            let Err(HostError::Cm(CmError::End(end))) = refused else {
                panic!("{request:?} was not refused by the target")
            };
            let text = format!("{end:?}");
            assert!(text.contains(&format!("[0, 0, {code}, 0")), "{request:?}: {text}");
        }
        assert_eq!(here.change(|server| server.stats().rejected), 5);
        here.host();
    });
}

#[test]
fn a_connect_is_checked_field_by_field() {
    with_target(|here| {
        let name = hostnqn();
        let good = connect_command(0, 32, 0, IN_CAPSULE);
        let fine = data(ANY_CONTROLLER, NQN, &name);
        let mut unterminated = fine.clone();
        unterminated[256..512].fill(b'a');
        let mut queue = raw(here, 0, 32);
        let field = |at| (Status::CONNECT_PARAMETER.dnr(), at);
        let cases: [(Sqe, &[u8], (Status, u64)); 12] = [
            (Sqe { cdw10: 1.into(), ..good }, &fine, (Status::CONNECT_FORMAT.dnr(), 0)),
            (connect_command(1, 32, 0, IN_CAPSULE), &fine, field(42)),
            (Sqe { cdw11: 0.into(), ..good }, &fine, field(44)),
            (Sqe { cdw11: 32.into(), ..good }, &fine, field(44)),
            (Sqe { cdw11: 0xffff.into(), ..good }, &fine, field(44)),
            (good, &data(7, NQN, &name), in_data(16)),
            (good, &data(ANY_CONTROLLER, "nqn.2014-08.no:such", &name), in_data(256)),
            (good, &data(ANY_CONTROLLER, "what", &name), in_data(256)),
            (good, &unterminated, in_data(256)),
            (good, &data(ANY_CONTROLLER, NQN, "me"), in_data(512)),
            (
                good,
                &data(ANY_CONTROLLER, PRIVATE, &name),
                (Status::CONNECT_HOST.dnr(), 512 | 1 << 16),
            ),
            (
                connect_command(0, 32, 0, Sgl::InCapsule { offset: 0, len: 1023 }),
                &fine,
                (Status::DATA_LENGTH.dnr(), 0),
            ),
        ];
        for (sqe, data, expected) in cases {
            assert_eq!(connect(&mut queue, sqe, data), expected, "{sqe:?}");
        }
        // Nothing but Connect is taken before it, of fabrics or not.
        for sqe in [
            Sqe::new(admin::IDENTIFY, 0, Sgl::NONE),
            Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE),
            Sqe::new(io::READ, 0, Sgl::NONE),
        ] {
            assert_eq!(one(&mut queue, sqe).unwrap().status(), Status::SEQUENCE.dnr());
        }
        assert_eq!(connect(&mut queue, good, &fine).0, Status::SUCCESS);
        assert_eq!(connect(&mut queue, good, &fine), (Status::SEQUENCE.dnr(), 0));
    });
}

#[test]
fn nobody_joins_another_hosts_controller() {
    with_target(|here| {
        let host = here.host();
        let name = hostnqn();
        let mut queue = raw(here, 1, 32);
        let sqe = connect_command(1, 32, 0, IN_CAPSULE);
        let stranger = data(host.cntlid, NQN, "nqn.2014-08.org.nvmexpress:uuid:stranger");
        assert_eq!(connect(&mut queue, sqe, &stranger), in_data(16));
        let other_id = ConnectData::new([9; 16], host.cntlid, NQN, &name);
        assert_eq!(connect(&mut queue, sqe, other_id.as_bytes()), in_data(16));
        let guessed = data(host.cntlid.wrapping_add(1), NQN, &name);
        assert_eq!(connect(&mut queue, sqe, &guessed), in_data(16));
        let other_subsystem = data(host.cntlid, PRIVATE, &name);
        assert_eq!(connect(&mut queue, sqe, &other_subsystem), in_data(16));
        // A queue beyond those that were granted.
        let mut fifth = raw(here, 5, 32);
        let own = data(host.cntlid, NQN, &name);
        let refused = connect(&mut fifth, connect_command(5, 32, 0, IN_CAPSULE), &own);
        assert_eq!(refused, (Status::CONNECT_PARAMETER.dnr(), 42));
        // The same queue twice: the host may try again.
        assert_eq!(connect(&mut queue, sqe, &own).0, Status::SUCCESS);
        let mut twice = raw(here, 1, 32);
        assert_eq!(connect(&mut twice, sqe, &own), (Status::SEQUENCE, 0));
        // A controller that is not enabled takes no I/O queue.
        let off = Host::open(&here.base, &HostConfig::new(NQN)).unwrap();
        let own = data(off.cntlid, NQN, &name);
        let mut early = raw(here, 1, 32);
        assert_eq!(connect(&mut early, sqe, &own), (Status::CONNECT_PARAMETER.dnr(), 42));
    });
}

#[test]
fn wrong_io_commands_get_their_status_and_change_nothing() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(2 << 20).unwrap();
        let block = mr.buf(0..BLOCK).unwrap();
        let whole = mr.buf(0..(1 << 20) + BLOCK).unwrap();
        let read = |nsid, slba, count, sgl| Sqe::blocks(io::READ, 0, nsid, (slba, count), sgl);
        let write = |slba, count, sgl| Sqe::blocks(io::WRITE, 0, 1, (slba, count), sgl);
        let far = |slba| read(1, slba, 1, keyed(&block));
        let with_kind = |kind: u8| {
            let mut sqe = far(0);
            sqe.sgl[15] = kind;
            sqe
        };
        let capsule = |offset, len| Sgl::InCapsule { offset, len };
        let nothing: &[u8] = &[];
        let (half, page) = ([0x77; BLOCK / 2], [0x77; BLOCK]);
        let field = Status::INVALID_FIELD.dnr();
        let cases: Vec<(Sqe, &[u8], Status)> = vec![
            (far(BLOCKS), nothing, Status::LBA_RANGE.dnr()),
            (far(u64::MAX), nothing, Status::LBA_RANGE.dnr()),
            (far(1 << 55), nothing, Status::LBA_RANGE.dnr()),
            (
                read(1, BLOCKS - 1, 2, keyed(&mr.buf(0..2 * BLOCK).unwrap())),
                nothing,
                Status::LBA_RANGE.dnr(),
            ),
            (read(0, 0, 1, keyed(&block)), nothing, Status::INVALID_NAMESPACE.dnr()),
            (read(2, 0, 1, keyed(&block)), nothing, Status::INVALID_NAMESPACE.dnr()),
            (read(u32::MAX, 0, 1, keyed(&block)), nothing, Status::INVALID_NAMESPACE.dnr()),
            (read(1, 0, 2, keyed(&block)), nothing, Status::DATA_LENGTH.dnr()),
            (read(1, 0, 1, Sgl::NONE), nothing, Status::DATA_LENGTH.dnr()),
            // A block more than the largest transfer.
            (read(1, 0, 2049, keyed(&whole)), nothing, field),
            (Sqe::blocks(io::VERIFY, 0, 1, (0, 2049), Sgl::NONE), nothing, field),
            (Sqe::blocks(io::WRITE_ZEROES, 0, 1, (0, 4096), Sgl::NONE), nothing, field),
            // Sixteen MiB less a byte, for one block.
            (
                read(1, 0, 1, Sgl::Keyed(Keyed { len: 0xff_ffff, ..Keyed::default() })),
                nothing,
                Status::DATA_LENGTH.dnr(),
            ),
            (with_kind(0x00), nothing, field),
            (with_kind(0x4e), nothing, field),
            (with_kind(0x20), nothing, Status::SGL_TYPE.dnr()),
            (with_kind(0x31), nothing, Status::SGL_COUNT.dnr()),
            (with_kind(0x5a), nothing, Status::SGL_TYPE.dnr()),
            (Sqe { flags: 0, ..far(0) }, nothing, field),
            (Sqe { flags: 0x43, ..far(0) }, nothing, field),
            (read(1, 0, 1, capsule(0, 512)), &page, field),
            // In-capsule data that did not come: what is in the buffer is somebody's.
            (write(0, 1, capsule(0, 512)), nothing, Status::SGL_OFFSET.dnr()),
            (write(0, 1, capsule(0, 512)), &half, Status::SGL_OFFSET.dnr()),
            (write(0, 1, capsule(1, 512)), &page, Status::SGL_OFFSET.dnr()),
            (write(0, 1, capsule(u64::MAX, 512)), &page, Status::SGL_OFFSET.dnr()),
            (write(0, 1, capsule(u64::MAX - 511, 512)), &page, Status::SGL_OFFSET.dnr()),
            (write(0, 1, capsule(0, 256)), &page, Status::DATA_LENGTH.dnr()),
            (Sqe::new(0x19, 0, Sgl::NONE), nothing, Status::INVALID_NAMESPACE.dnr()),
            (
                Sqe { nsid: 1.into(), ..Sqe::new(0x19, 0, Sgl::NONE) },
                nothing,
                Status::INVALID_OPCODE.dnr(),
            ),
            (
                Sqe { nsid: 1.into(), ..Sqe::new(0x0d, 0, Sgl::NONE) },
                nothing,
                Status::DATA_LENGTH.dnr(),
            ),
            (
                Sqe { nsid: 1.into(), ..Sqe::new(0x80, 0, Sgl::NONE) },
                nothing,
                Status::INVALID_OPCODE.dnr(),
            ),
            // Fabrics commands of the admin queue.
            (
                Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE),
                nothing,
                Status::INVALID_OPCODE.dnr(),
            ),
            (
                Sqe { cdw10: 1.into(), ..Sqe::fabrics(fabrics::DISCONNECT, 0, Sgl::NONE) },
                nothing,
                Status::CONNECT_FORMAT.dnr(),
            ),
            (Sqe::fabrics(0x07, 0, Sgl::NONE), nothing, Status::INVALID_OPCODE.dnr()),
        ];
        for (sqe, data, expected) in cases {
            queue.submit_with(sqe, data).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), expected, "{sqe:?}");
        }
        let all = mr.buf(0..1 << 20).unwrap();
        assert_eq!(
            one(&mut queue, read(1, 0, 2048, keyed(&all))).unwrap().status(),
            Status::SUCCESS
        );
        assert!(all.to_vec() == vec![0; 1 << 20], "something was written");
        // All of them are in the log, the newest first.
        let mut host = host;
        let newest = Status::INVALID_OPCODE.dnr().on_wire().to_le_bytes();
        let errors = log_in_time(&mut host, (1, 64 * 64), |errors| errors[12..14] == newest);
        assert_eq!(errors[12..14], newest);
    });
}

#[test]
fn wrong_admin_commands_get_their_status() {
    with_target(|here| {
        let mut host = here.host();
        let identify = |cns: u8, nsid: u32| Sqe {
            nsid: nsid.into(),
            cdw10: u32::from(cns).into(),
            ..Sqe::new(admin::IDENTIFY, 0, Sgl::NONE)
        };
        let log = |lid: u32, dwords: u32| Sqe {
            cdw10: (lid | (dwords - 1) << 16).into(),
            cdw11: ((dwords - 1) >> 16).into(),
            ..Sqe::new(admin::GET_LOG, 0, Sgl::NONE)
        };
        let feature = |opcode, fid: u32, value: u32| Sqe {
            cdw10: fid.into(),
            cdw11: value.into(),
            ..Sqe::new(opcode, 0, Sgl::NONE)
        };
        let field = Status::INVALID_FIELD.dnr();
        for (sqe, len, expected) in [
            (identify(cns::CONTROLLER, 0), 4095, Status::DATA_LENGTH.dnr()),
            (identify(cns::CONTROLLER, 0), 8192, Status::DATA_LENGTH.dnr()),
            (identify(cns::NAMESPACE, 0), 4096, Status::INVALID_NAMESPACE.dnr()),
            (identify(cns::NAMESPACE, u32::MAX), 4096, Status::INVALID_NAMESPACE.dnr()),
            (identify(cns::ACTIVE_NAMESPACES, 0xffff_fffe), 4096, Status::INVALID_NAMESPACE.dnr()),
            (identify(cns::DESCRIPTORS, 2), 4096, Status::INVALID_NAMESPACE.dnr()),
            (identify(0x1c, 0), 4096, field),
            (identify(0xff, 0), 4096, field),
            (log(0x02, 1024), 512, Status::DATA_LENGTH.dnr()),
            (log(0x0c, 128), 512, Status::INVALID_LOG.dnr()),
            (log(0x70, 128), 512, Status::INVALID_LOG.dnr()),
            (log(0xff, 128), 512, Status::INVALID_LOG.dnr()),
            (Sqe { cdw12: 2.into(), ..log(0x02, 128) }, 512, field),
        ] {
            assert_eq!(host.bring(sqe, len).unwrap().0.status(), expected, "{sqe:?}");
        }
        // A part of a log that begins past its end is none; one that begins there is empty.
        for (lid, bytes) in [
            (0x00_u8, 1024_u64),
            (0x01, 64 * 64),
            (0x02, 512),
            (0x03, 512),
            (0x04, 4096),
            (0x05, 4096),
            (0x80, 64),
        ] {
            for past in [bytes + 4, 1 << 32, u64::MAX - 3] {
                let (low, high) = (past as u32, (past >> 32) as u32);
                let sqe = Sqe { cdw12: low.into(), cdw13: high.into(), ..log(lid.into(), 128) };
                assert_eq!(host.bring(sqe, 512).unwrap().0.status(), field, "{lid:#04x} {past}");
            }
            assert_eq!(host.log(lid, bytes, 512).unwrap(), [0; 512], "log {lid:#04x}");
            let last = host.log(lid, bytes - 4, 512).unwrap();
            assert_eq!(last[4..], [0; 508], "log {lid:#04x}");
        }
        let huge = Sqe { cdw11: 0xffff.into(), ..log(0x02, 0x1_0000) };
        for (sqe, expected) in [
            (huge, Status::DATA_LENGTH.dnr()),
            (feature(admin::SET_FEATURES, 0x07 | 1 << 31, 0), Status::NOT_SAVEABLE.dnr()),
            (feature(admin::SET_FEATURES, 0x07, 0xffff), field),
            (feature(admin::SET_FEATURES, 0x07, 0xffff_0000), field),
            (feature(admin::SET_FEATURES, 0x0b, 1 << 20), field),
            (feature(admin::SET_FEATURES, 0x02, 0), field),
            (feature(admin::SET_FEATURES, 0x06, 0), Status::NOT_CHANGEABLE.dnr()),
            (feature(admin::SET_FEATURES, 0x06, 1), Status::SUCCESS),
            (feature(admin::SET_FEATURES, 0x81, 0), Status::SEQUENCE.dnr()),
            (feature(admin::GET_FEATURES, 0x81, 0), field),
            (feature(admin::GET_FEATURES, 0x07 | 1 << 8, 0), field),
            (Sqe::new(0x80, 0, Sgl::NONE), Status::INVALID_OPCODE.dnr()),
            (Sqe::new(0xc0, 0, Sgl::NONE), Status::INVALID_OPCODE.dnr()),
            (Sqe::fabrics(0x05, 0, Sgl::NONE), Status::INVALID_OPCODE.dnr()),
            (Sqe::fabrics(fabrics::DISCONNECT, 0, Sgl::NONE), Status::QUEUE_TYPE.dnr()),
            (Sqe::fabrics(0xff, 0, Sgl::NONE), Status::INVALID_OPCODE.dnr()),
            (
                Sqe { cdw11: 0x38.into(), ..Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE) },
                field,
            ),
            (Sqe { cdw10: 3.into(), ..Sqe::fabrics(fabrics::PROPERTY_GET, 0, Sgl::NONE) }, field),
            (
                Sqe { cdw11: 0x00.into(), ..Sqe::fabrics(fabrics::PROPERTY_SET, 0, Sgl::NONE) },
                field,
            ),
        ] {
            assert_eq!(host.command(sqe).unwrap().status(), expected, "{sqe:?}");
        }
        // A configuration that cannot be: the controller fails, and takes nothing more.
        host.set_property(0x14, 0).unwrap();
        host.set_property(0x14, 0x0046_0081).unwrap();
        assert_eq!(host.property(0x1c).unwrap(), 2);
        let identified = host.identify(cns::CONTROLLER, 0);
        assert!(matches!(identified, Err(HostError::Refused { status, .. })
            if status == Status::SEQUENCE.dnr()));
    });
}

#[test]
fn what_breaks_the_transport_ends_one_queue_and_no_other() {
    with_target(|here| {
        let host = here.host();
        let mut good = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let block = mr.buf(0..BLOCK).unwrap();
        let read = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&block));
        // A command that is cut short.
        let mut short = raw(here, 0, 32);
        short.send(0, &[0; 63]).unwrap();
        short.wait_for_end(LIMIT).unwrap();
        assert_eq!(one(&mut good, read).unwrap().status(), Status::SUCCESS);
        // Nor is nothing one.
        let mut empty = raw(here, 0, 32);
        empty.send(0, &[]).unwrap();
        empty.wait_for_end(LIMIT).unwrap();
        // Keys that the host's device refuses: none, of another domain, ended, past their end,
        // without the right. The queue ends.
        let memory = backend::memory(&here.base.context, 4096, here.base.page).unwrap();
        let register = |pd: &Pd, access: Access| {
            let mr = pd.reg_mr(&memory, 0..4096, Access::LOCAL_WRITE | access).unwrap();
            let remote = mr.buf(0..4096).unwrap().remote().unwrap();
            (Keyed { addr: remote.addr, len: 512, rkey: remote.rkey.0, inv: false }, mr)
        };
        let pd = &here.base.pd;
        let (reads, _reads) = register(pd, Access::REMOTE_READ);
        let (writes, _writes) = register(pd, Access::REMOTE_WRITE);
        let (strange, _strange) =
            register(&here.base.context.alloc_pd().unwrap(), Access::REMOTE_READ);
        let (ended, mr) = register(pd, Access::REMOTE_READ);
        drop(mr);
        let none = Keyed { addr: 0x1000, len: 512, rkey: 0x00de_ad00, inv: false };
        let past = |it: Keyed| Keyed { addr: it.addr + 4096 - 511, ..it };
        let wrong = [
            (io::READ, none),
            (io::READ, reads),
            (io::READ, past(writes)),
            (io::WRITE, none),
            (io::WRITE, writes),
            (io::WRITE, past(reads)),
            (io::WRITE, strange),
            (io::WRITE, ended),
        ];
        for (opcode, keyed) in wrong {
            let mut queue = host.open_queue(2, 32, 0).unwrap();
            let sqe = Sqe::blocks(opcode, 0, 1, (0, 1), Sgl::Keyed(keyed));
            queue.submit(sqe).unwrap();
            queue.wait_for_end(LIMIT).unwrap();
            drop(queue);
            here.until_queues(2);
            assert_eq!(one(&mut good, read).unwrap().status(), Status::SUCCESS);
        }
        assert!(here.change(|server| server.stats().failed) >= 2 + wrong.len() as u64);
        // Their memory is as it was, and what is good of them is taken.
        let mut queue = host.open_queue(2, 32, 0).unwrap();
        for (opcode, keyed) in [(io::WRITE, reads), (io::READ, writes)] {
            let sqe = Sqe::blocks(opcode, 0, 1, (0, 1), Sgl::Keyed(keyed));
            assert_eq!(one(&mut queue, sqe).unwrap().status(), Status::SUCCESS);
        }
    });
}

#[test]
fn no_more_queues_than_there_is_room_for() {
    let config = ServerConfig { queues: 3, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let host = here.host();
        let _queue = host.open_queue(1, 32, 0).unwrap();
        let silent = raw(here, 0, 32);
        let config = QueueConfig::default();
        let refused = HostQueue::new(&here.base, &config);
        assert!(matches!(refused, Err(HostError::Cm(CmError::End(_)))), "a fourth");
        // One that goes makes room.
        drop(silent);
        here.until_queues(2);
        raw(here, 0, 32);
    });
}

#[test]
fn an_address_that_only_asks_is_stopped_and_then_forgotten() {
    with_target(|here| {
        let mut silent: Vec<_> = (0..16).map(|_| raw(here, 0, 32)).collect();
        let config = QueueConfig::default();
        assert!(HostQueue::new(&here.base, &config).is_err(), "a seventeenth");
        // A Connect, and there is room for another.
        let fine = data(ANY_CONTROLLER, NQN, &hostnqn());
        let connected = connect(&mut silent[0], connect_command(0, 32, 0, IN_CAPSULE), &fine);
        assert_eq!(connected.0, Status::SUCCESS);
        silent.push(raw(here, 0, 32));
        // Those who say nothing are gone before long.
        silent[1].wait_for_end(LIMIT).unwrap();
        here.until_queues(1);
    });
}

#[test]
fn no_more_controllers_than_there_is_room_for_and_the_next_may_try_again() {
    let settings = Settings { controllers: 1, ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        let host = here.host();
        let refused = Host::connect(&here.base, &HostConfig::new(NQN));
        let Err(HostError::Refused { status, .. }) = refused else { panic!("a second") };
        assert_eq!(status, Status::CONNECT_BUSY);
        drop(host);
        here.until_queues(0);
        here.host();
    });
}

#[test]
fn a_queue_that_is_filled_to_its_brim_is_served_in_whole() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 128, 0).unwrap();
        let (_, mr) = host.memory(1 << 20).unwrap();
        // Many more READs than a host serves at a time, and Compares for few buffers.
        for opcode in [io::WRITE, io::COMPARE, io::READ] {
            let mut sent = 0;
            while queue.room() > 0 {
                let buf = mr.buf(sent * 4096..(sent + 1) * 4096).unwrap();
                let sqe = Sqe::blocks(opcode, 0, 1, (sent as u64 * 8, 8), keyed(&buf));
                queue.submit(sqe).unwrap();
                sent += 1;
            }
            assert_eq!(sent, 127);
            for _ in 0..sent {
                assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            }
        }
        assert!(here.change(|server| server.stats().waits) > 0, "none had to wait");
    });
}

#[test]
fn a_name_that_is_used_twice_is_answered_twice() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(2 * 4096).unwrap();
        for round in 0..8u8 {
            for at in [0usize, 1] {
                let mut buf = mr.buf(at * 4096..(at + 1) * 4096).unwrap();
                buf.copy_in(0, &[round ^ at as u8 ^ 0x5a; 4096]).unwrap();
                let blocks = (at as u64 * 8, 8);
                let sqe = Sqe::blocks(io::WRITE, 7, 1, blocks, keyed(&buf));
                queue.send(at as u16, sqe.as_bytes()).unwrap();
            }
            for _ in 0..2 {
                let cqe = queue.wait(LIMIT).unwrap();
                assert_eq!((cqe.cid.get(), cqe.status()), (7, Status::SUCCESS));
            }
        }
        // Each has written its own.
        let to = mr.buf(0..8192).unwrap();
        let sqe = Sqe::blocks(io::READ, 0, 1, (0, 16), keyed(&to));
        assert_eq!(one(&mut queue, sqe).unwrap().status(), Status::SUCCESS);
        let bytes = to.to_vec();
        assert!(bytes[..4096].iter().all(|byte| *byte == 7 ^ 0x5a));
        assert!(bytes[4096..].iter().all(|byte| *byte == 7 ^ 1 ^ 0x5a));
    });
}

#[test]
fn connections_come_and_go_and_leave_nothing() {
    with_target(|here| {
        for round in 0..20 {
            let host = here.host();
            let mut queues: Vec<_> =
                (1..=3).map(|qid| host.open_queue(qid, 16, 0).unwrap()).collect();
            let (_, mr) = host.memory(1 << 20).unwrap();
            // Work is under way when they go.
            for queue in &mut queues {
                for at in 0..8 {
                    let buf = mr.buf(at * 65536..(at + 1) * 65536).unwrap();
                    let opcode = if round % 2 == 0 { io::WRITE } else { io::READ };
                    queue.submit(Sqe::blocks(opcode, 0, 1, (0, 128), keyed(&buf))).unwrap();
                }
            }
            drop(queues);
            drop(host);
        }
        here.until_queues(0);
        assert_eq!(here.change(|server| server.target().controllers()), 0);
        here.host();
    });
}

#[test]
fn those_who_only_ask_what_there_is_leave_room_for_the_others() {
    let config = ServerConfig { queues: 40, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        let asks = HostConfig { keep_alive_ms: 3_600_000, ..HostConfig::new(DISCOVERY_NQN) };
        let (_port, base) = here.neighbour(1);
        let mut taken = Vec::new();
        for _ in 0..20 {
            match Host::open(&base, &asks) {
                Ok(host) => taken.push(host),
                Err(HostError::Refused { status, .. }) => {
                    assert_eq!(status, Status::CONNECT_BUSY, "it may try again");
                    here.until_queues(taken.len() as u32);
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(taken.len(), 8, "three quarters of it");
        // Another address is let in, and the one that has most makes way.
        let mut there: Vec<Host> =
            (0..20).map(|_| Host::open(&here.base, &asks).unwrap()).collect();
        here.until_queues(10);
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let read = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&mr.buf(0..BLOCK).unwrap()));
        assert_eq!(one(&mut queue, read).unwrap().status(), Status::SUCCESS);
        // Who goes makes room.
        there.pop();
        here.until_queues(11);
        drop(taken);
        drop(Host::open(&here.base, &asks).unwrap());
    });
}

/// Zeros are written by the core itself: between those of a host that wants many others are served.
#[test]
fn a_flood_of_zeros_leaves_others_their_turn() {
    const COUNT: usize = 60;
    with_target(|here| {
        let host = here.host();
        let mut flood = host.open_queue(1, 64, 0).unwrap();
        let mut queue = host.open_queue(2, 16, 0).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let (asked, wait) = channel();
        let rounds = here.begin(move |server| {
            wait.recv().unwrap();
            let (mut rounds, mut idle) = (0, 0);
            let begun = Instant::now();
            while idle < 1000 || (rounds <= COUNT / 2 && begun.elapsed() < LIMIT) {
                let has_done = server.poll().unwrap() > 0;
                rounds += usize::from(has_done);
                idle = if has_done { 0 } else { idle + 1 };
            }
            rounds
        });
        let zeros = Sqe::blocks(io::WRITE_ZEROES, 0, 1, (0, 2048), Sgl::NONE);
        (0..COUNT).for_each(|_| assert!(flood.submit(zeros).unwrap().is_some()));
        let read = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&mr.buf(0..512).unwrap()));
        queue.submit(read).unwrap();
        // All are at the target's port when it looks.
        std::thread::sleep(Duration::from_millis(300));
        asked.send(()).unwrap();
        let rounds = rounds.recv().unwrap();
        for _ in 0..COUNT {
            assert_eq!(flood.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        }
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        // Each is more than a round takes on.
        assert!(rounds > COUNT / 2, "{COUNT} MiB of zeros in {rounds} rounds");
    });
}
