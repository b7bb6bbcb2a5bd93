//! A host of ours and the target, on two models: every command that the target takes.

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{BLOCK, BLOCKS, NQN, with, with_target};
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{
    Host, HostConfig, HostError, HostQueue, QueueConfig, connect_command, keyed, one,
};
use ferrocx_nvmf_target::proto::connect::ConnectData;
use ferrocx_nvmf_target::proto::identify::{cns, events};
use ferrocx_nvmf_target::proto::log::lid;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, admin, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::ServerConfig;
use zerocopy::IntoBytes;

const LIMIT: Duration = Duration::from_secs(20);

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed).collect()
}

fn status(queue: &mut HostQueue, sqe: Sqe) -> Status {
    one(queue, sqe).unwrap().status()
}

#[test]
fn a_controller_says_what_it_is() {
    with_target(|here| {
        let mut host = here.host();
        let page = host.identify(cns::CONTROLLER, 0).unwrap();
        assert_eq!(page[78..80], host.cntlid.to_le_bytes());
        assert_eq!(&page[768..768 + NQN.len()], NQN.as_bytes());
        assert_eq!(page[1792..1796], 260u32.to_le_bytes());
        let list = host.identify(cns::ACTIVE_NAMESPACES, 0).unwrap();
        assert_eq!(list[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(host.identify(cns::NAMESPACE, 1).unwrap()[..8], BLOCKS.to_le_bytes());
        assert_eq!(host.identify(cns::NAMESPACE, 2).unwrap(), vec![0; 4096]);
        let ids = host.identify(cns::DESCRIPTORS, 1).unwrap();
        assert_eq!(ids[20..24], [3, 16, 0, 0]);
        for (lid, len) in [
            (lid::SUPPORTED, 1024),
            (lid::ERRORS, 64 * 64),
            (lid::SMART, 512),
            (lid::FIRMWARE, 512),
            (lid::CHANGED_NAMESPACES, 4096),
            (lid::EFFECTS, 4096),
        ] {
            host.log(lid, 0, len).unwrap();
        }
        // Half of a page from its middle.
        let (whole, part) = (host.log(lid::EFFECTS, 0, 4096), host.log(lid::EFFECTS, 1020, 1024));
        assert_eq!(whole.unwrap()[1020..2044], part.unwrap());
        assert!(host.log(lid::DISCOVERY, 0, 1024).is_err());
        host.keep_alive().unwrap_err();
        assert_eq!(host.granted, 4);
        host.shut_down().unwrap();
        here.until_queues(0);
    });
}

#[test]
fn what_is_written_is_read() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (memory, mr) = host.memory(2 << 20).unwrap();
        for (slba, count) in [(0, 1), (7, 8), (100, 255), (0, 2048), (BLOCKS - 1, 1)] {
            let len = count as usize * BLOCK;
            let data = pattern(len, count as u8);
            memory.region().copy_in(0, &data).unwrap();
            let (from, to) = (mr.buf(0..len).unwrap(), mr.buf(1 << 20..(1 << 20) + len).unwrap());
            let write = Sqe::blocks(io::WRITE, 0, 1, (slba, count), keyed(&from));
            assert_eq!(status(&mut queue, write), Status::SUCCESS);
            let compare = Sqe { opcode: io::COMPARE, ..write };
            assert_eq!(status(&mut queue, compare), Status::SUCCESS);
            let read = Sqe::blocks(io::READ, 0, 1, (slba, count), keyed(&to));
            assert_eq!(status(&mut queue, read), Status::SUCCESS);
            assert!(to.to_vec() == data, "{count} blocks at {slba}");
        }
        // A byte that differs.
        let mut buf = mr.buf(0..BLOCK).unwrap();
        buf.copy_in(0, &pattern(BLOCK, 9)).unwrap();
        let write = Sqe::blocks(io::WRITE, 0, 1, (5, 1), keyed(&buf));
        assert_eq!(status(&mut queue, write), Status::SUCCESS);
        buf.copy_in(BLOCK - 1, &[0]).unwrap();
        let compare = Sqe { opcode: io::COMPARE, ..write };
        assert_eq!(status(&mut queue, compare), Status::COMPARE_FAILURE.dnr());
        // Zeros in the middle.
        let zeroes = Sqe::blocks(io::WRITE_ZEROES, 0, 1, (4, 2), Sgl::NONE);
        assert_eq!(status(&mut queue, zeroes), Status::SUCCESS);
        let read = Sqe::blocks(io::READ, 0, 1, (5, 1), keyed(&buf));
        assert_eq!(status(&mut queue, read), Status::SUCCESS);
        assert_eq!(buf.to_vec(), [0; BLOCK]);
        for opcode in [io::FLUSH, io::VERIFY] {
            let sqe = Sqe::blocks(opcode, 0, 1, (0, 8), Sgl::NONE);
            assert_eq!(status(&mut queue, sqe), Status::SUCCESS);
        }
        let all = Sqe { nsid: u32::MAX.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
        assert_eq!(status(&mut queue, all), Status::INVALID_NAMESPACE.dnr());
    });
}

#[test]
fn data_come_in_capsules_and_by_keys_that_the_target_ends() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 257).unwrap();
        let (memory, mr) = host.memory(4 << 20).unwrap();
        let in_capsule = Sgl::InCapsule { offset: 0, len: 4096 };
        let data = pattern(4096, 3);
        let write = Sqe::blocks(io::WRITE, 0, 1, (16, 8), in_capsule);
        queue.submit_with(write, &data).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        let compare = Sqe { opcode: io::COMPARE, ..write };
        queue.submit_with(compare, &data).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        let read = Sqe::blocks(io::READ, 0, 1, (16, 8), Sgl::NONE);
        queue.submit_lent(read, &memory, 4096..8192).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        assert!(mr.buf(4096..8192).unwrap().to_vec() == data);
        // The largest transfer, and one that fails: the key ends all the same.
        for (slba, expected) in [(0, Status::SUCCESS), (BLOCKS, Status::LBA_RANGE.dnr())] {
            for opcode in [io::WRITE, io::READ] {
                let sqe = Sqe::blocks(opcode, 0, 1, (slba, 2048), Sgl::NONE);
                queue.submit_lent(sqe, &memory, 0..1 << 20).unwrap();
                assert_eq!(queue.wait(LIMIT).unwrap().status(), expected);
            }
        }
        // Every key again, which would be refused if it had not been ended.
        for round in 0..3 {
            let mut sent = 0;
            while queue.room() > 0 {
                let at = sent * 4096;
                let sqe = Sqe::blocks(io::WRITE, 0, 1, (sent as u64 * 8, 8), Sgl::NONE);
                assert!(queue.submit_lent(sqe, &memory, at..at + 4096).unwrap().is_some());
                sent += 1;
            }
            assert_eq!(sent, 31, "round {round}");
            for _ in 0..sent {
                assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            }
        }
        assert_eq!(queue.wrong_keys, 0);
    });
}

#[test]
fn capsules_are_as_long_as_the_target_says_and_no_longer() {
    let in_capsule_bytes = 16384;
    let longer = HostConfig { in_capsule_bytes, ..HostConfig::new(NQN) };
    let settings = Settings { in_capsule_bytes: 16384, ..Settings::default() };
    with(settings, ServerConfig::default(), |here| {
        let mut host = Host::connect(&here.base, &longer).unwrap();
        let page = host.identify(cns::CONTROLLER, 0).unwrap();
        // IOCCSZ, in units of 16 bytes.
        assert_eq!(page[1792..1796], ((16384u32 + 64) / 16).to_le_bytes());
        let mut queue = host.open_queue(1, 128, 0).unwrap();
        let (_, mr) = host.memory(16384).unwrap();
        for (len, offset) in [(16384, 0), (8192, 0), (8192, 8192), (512, 15872), (4096, 4096)] {
            let data = pattern(len, offset as u8 | 1);
            let behind = [vec![0xee; offset], data.clone()].concat();
            let sgl = Sgl::InCapsule { offset: offset as u64, len: len as u32 };
            let blocks = (offset as u64, (len / BLOCK) as u32);
            queue.submit_with(Sqe::blocks(io::WRITE, 0, 1, blocks, sgl), &behind).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS, "{len} {offset}");
            let to = mr.buf(0..len).unwrap();
            let read = Sqe::blocks(io::READ, 0, 1, blocks, keyed(&to));
            assert_eq!(one(&mut queue, read).unwrap().status(), Status::SUCCESS);
            assert!(to.to_vec() == data, "{len} bytes at {offset}");
        }
        assert!(queue.submit_with(Sqe::default(), &[0; 16385]).is_err());
    });
    // A target of shorter ones: the queue ends whose host sends more, and no other.
    with_target(|here| {
        let (host, other) = (Host::connect(&here.base, &longer).unwrap(), here.host());
        let mut beside = other.open_queue(1, 32, 0).unwrap();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let sgl = Sgl::InCapsule { offset: 0, len: 8192 };
        let write = Sqe::blocks(io::WRITE, 0, 1, (0, 16), sgl);
        queue.submit_with(write, &pattern(8192, 1)).unwrap();
        assert!(matches!(queue.wait(LIMIT), Err(HostError::Ended(_))));
        let flush = Sqe { nsid: 1.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
        assert_eq!(one(&mut beside, flush).unwrap().status(), Status::SUCCESS);
    });
}

/// SQHD: the next command that the target takes. Source: NVM Express base, "Completion Queue
/// Entry".
#[test]
fn answers_say_how_far_a_queue_was_read_unless_its_host_does_not_want_to_know() {
    const ENTRIES: u16 = 16;
    with_target(|here| {
        let flush = Sqe { nsid: 1.into(), ..Sqe::new(io::FLUSH, 0, Sgl::NONE) };
        let heads = |queue: &mut HostQueue| -> Vec<u16> {
            (0..40).map(|_| one(queue, flush).unwrap().sqhd.get()).collect()
        };
        let host = here.host();
        let mut queue = host.open_queue(1, ENTRIES, 0).unwrap();
        // The first was Connect.
        let expected: Vec<u16> = (2..42).map(|head| head % ENTRIES).collect();
        assert_eq!(heads(&mut queue), expected);
        // CATTR bit 2: no flow control.
        let config = QueueConfig { qid: 2, entries: ENTRIES, ..QueueConfig::default() };
        let mut queue = HostQueue::new(&here.base, &config).unwrap();
        let connect = connect_command(2, ENTRIES, 0, Sgl::InCapsule { offset: 0, len: 1024 });
        let connect = Sqe { cdw11: (connect.cdw11.get() | 1 << 18).into(), ..connect };
        let HostConfig { hostid, hostnqn, .. } = HostConfig::new(NQN);
        let data = ConnectData::new(hostid, host.cntlid, NQN, &hostnqn);
        queue.submit_with(connect, data.as_bytes()).unwrap();
        let cqe = queue.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.sqhd.get()), (Status::SUCCESS, 0xffff));
        assert_eq!(heads(&mut queue), [0xffff; 40]);
    });
}

#[test]
fn ranges_are_checked_before_they_are_let_go() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 32, 0).unwrap();
        let (_, mr) = host.memory(8192).unwrap();
        let range = |slba: u64, count: u32| {
            [[0; 4].as_slice(), &count.to_le_bytes(), &slba.to_le_bytes()].concat()
        };
        let dsm = |ranges: u32, sgl| Sqe {
            nsid: 1.into(),
            cdw10: (ranges - 1).into(),
            cdw11: 4.into(),
            ..Sqe::new(io::DSM, 0, sgl)
        };
        // As Linux says it: a page, however many ranges.
        let mut page = mr.buf(0..4096).unwrap();
        page.copy_in(0, &range(0, 8)).unwrap();
        page.copy_in(16, &range(BLOCKS - 8, 8)).unwrap();
        assert_eq!(status(&mut queue, dsm(2, keyed(&page))), Status::SUCCESS);
        page.copy_in(16, &range(BLOCKS - 8, 9)).unwrap();
        assert_eq!(status(&mut queue, dsm(2, keyed(&page))), Status::LBA_RANGE.dnr());
        page.copy_in(16, &range(u64::MAX, u32::MAX)).unwrap();
        assert_eq!(status(&mut queue, dsm(2, keyed(&page))), Status::LBA_RANGE.dnr());
        let short = mr.buf(0..31).unwrap();
        assert_eq!(status(&mut queue, dsm(2, keyed(&short))), Status::DATA_LENGTH.dnr());
        let sgl = Sgl::InCapsule { offset: 0, len: 4096 };
        let mut data = range(8, 8);
        data.resize(4096, 0);
        queue.submit_with(dsm(1, sgl), &data).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
    });
}

#[test]
fn hosts_are_told_of_namespaces_that_come_and_go() {
    with_target(|here| {
        let mut host = here.host();
        host.set_feature(0x0b, events::NAMESPACE_ATTRIBUTES).unwrap();
        let request = Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE);
        for _ in 0..4 {
            host.admin.submit(request).unwrap();
        }
        // A fifth is too many.
        let cqe = host.command(request).unwrap();
        assert_eq!(cqe.status(), Status::AER_LIMIT.dnr());
        let change = |nsid| {
            here.change(move |server| {
                server.target_mut().put_namespace(NQN, common::namespace(nsid, 8, 0)).unwrap();
            });
        };
        change(5);
        let cqe = host.admin.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0004_0002));
        // Masked until the log is read.
        change(7);
        assert!(host.log(lid::CHANGED_NAMESPACES, 4100, 4).is_err(), "past its end: not read");
        let log = host.log(lid::CHANGED_NAMESPACES, 0, 4096).unwrap();
        assert_eq!(log[..12], [5, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        here.change(|server| server.target_mut().remove_namespace(NQN, 5).unwrap());
        assert_eq!(host.admin.wait(LIMIT).unwrap().result.get(), 0x0004_0002);
        let log = host.log(lid::CHANGED_NAMESPACES, 0, 4096).unwrap();
        assert_eq!(log[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(host.identify(cns::NAMESPACE, 5).unwrap(), vec![0; 4096]);
    });
}

#[test]
fn writes_in_line_are_answered_when_their_namespace_goes() {
    const LEN: usize = 64 << 10;
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 128, 0).unwrap();
        let (_, mr) = host.memory(8 << 20).unwrap();
        let write = |nsid, at: usize| {
            let buf = mr.buf(at * LEN..(at + 1) * LEN).unwrap();
            let count = LEN / BLOCK;
            Sqe::blocks(io::WRITE, 0, nsid, ((at * count) as u64, count as u32), keyed(&buf))
        };
        let (asked, wait) = channel();
        let removed = here.begin(move |server| {
            wait.recv().unwrap();
            let begun = Instant::now();
            while server.stats().waits == 0 && begun.elapsed() < LIMIT {
                server.poll().unwrap();
            }
            server.target_mut().remove_namespace(NQN, 1).unwrap();
        });
        // Many more than a host serves READs at a time.
        let mut sent = 0;
        while queue.room() > 0 {
            queue.submit(write(1, sent)).unwrap();
            sent += 1;
        }
        asked.send(()).unwrap();
        removed.recv().unwrap();
        let statuses = (0..sent).map(|_| queue.wait(LIMIT).unwrap().status());
        let refused: Vec<_> = statuses.filter(|status| *status != Status::SUCCESS).collect();
        assert!(!refused.is_empty(), "all were done before the namespace went");
        assert!(refused.iter().all(|status| *status == Status::INVALID_NAMESPACE.dnr()));
        // The queue goes on.
        assert_eq!(status(&mut queue, write(3, 0)), Status::SUCCESS);
    });
}

#[test]
fn a_silent_host_is_dropped_and_its_controller_ends() {
    use ferrocx_nvmf_target::host::{Host, HostConfig};
    with_target(|here| {
        let config = HostConfig { keep_alive_ms: 3000, ..HostConfig::new(NQN) };
        let mut host = Host::connect(&here.base, &config).unwrap();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        host.keep_alive().unwrap();
        here.until_queues(2);
        host.admin.wait_for_end(LIMIT).unwrap();
        queue.wait_for_end(LIMIT).unwrap();
        here.until_queues(0);
        assert_eq!(here.change(|server| server.target().controllers()), 0);
        // Another takes its place.
        drop((queue, host));
        here.host();
    });
}

#[test]
fn what_has_happened_is_told_once_it_is_wanted_and_a_controller_begins_anew_with_nothing() {
    with_target(|here| {
        let mut host = here.host();
        let event = Sqe::new(admin::ASYNC_EVENT, 0, Sgl::NONE);
        let change = |nsid| {
            here.change(move |server| {
                server.target_mut().put_namespace(NQN, common::namespace(nsid, 8, 0)).unwrap();
            });
        };
        // Nobody wanted to know when it happened.
        host.admin.submit(event).unwrap();
        change(5);
        host.set_feature(0x0b, events::NAMESPACE_ATTRIBUTES).unwrap();
        let cqe = host.admin.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0004_0002));
        // Told, and not read: a second change is not told, unless the controller was off meanwhile.
        change(6);
        host.enable().unwrap();
        assert_eq!(host.log(lid::CHANGED_NAMESPACES, 0, 8).unwrap(), [0; 8]);
        host.set_feature(0x0b, events::NAMESPACE_ATTRIBUTES).unwrap();
        host.admin.submit(event).unwrap();
        change(7);
        let cqe = host.admin.wait(LIMIT).unwrap();
        assert_eq!((cqe.status(), cqe.result.get()), (Status::SUCCESS, 0x0004_0002));
        assert_eq!(host.log(lid::CHANGED_NAMESPACES, 0, 8).unwrap(), [7, 0, 0, 0, 0, 0, 0, 0]);
    });
}
