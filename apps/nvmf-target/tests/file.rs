//! A namespace that is a file: what hosts write is in it, and what its file system refuses comes
//! back as the right status.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::{BLOCK, Here, NQN, log_in_time, offers_file, offers_new_file, with, with_target};
use ferrocx_nvmf_target::backend::OpenFile;
use ferrocx_nvmf_target::controller::Settings;
use ferrocx_nvmf_target::host::{Host, HostConfig, HostError, HostQueue, keyed, one};
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::{Ready, ServerConfig};

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 9;
const BLOCKS: u64 = 8192;

fn status(queue: &mut HostQueue, sqe: Sqe) -> Status {
    one(queue, sqe).unwrap().status()
}

/// Offers a file that is open already; `None` where this machine has no io_uring.
fn put(here: &Here, nsid: u32, file: OpenFile) -> Option<()> {
    here.change(move |server| {
        let place = server.next_place();
        server.put_backend(place, Ready::File(file), (NQN, nsid)).ok()?;
        let namespace = common::namespace(nsid, BLOCKS, place);
        server.target_mut().put_namespace(NQN, namespace).ok()
    })
}

#[test]
fn what_hosts_write_is_in_the_file() {
    with_target(|here| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BLOCKS * BLOCK as u64).unwrap();
        if !offers_file(here, NSID, BLOCKS, file.try_clone().unwrap()) {
            return;
        }
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (memory, mr) = host.memory(2 << 20).unwrap();
        for (slba, count) in [(0, 1), (9, 300), (0, 2048), (BLOCKS - 1, 1)] {
            let len = count as usize * BLOCK;
            let data: Vec<u8> = (0..len).map(|at| (at * 7 + count as usize) as u8).collect();
            memory.region().copy_in(0, &data).unwrap();
            let (from, to) = (mr.buf(0..len).unwrap(), mr.buf(1 << 20..(1 << 20) + len).unwrap());
            let write = Sqe::blocks(io::WRITE, 0, NSID, (slba, count), keyed(&from));
            assert_eq!(status(&mut queue, write), Status::SUCCESS);
            let mut stored = vec![0; len];
            file.read_exact_at(&mut stored, slba * BLOCK as u64).unwrap();
            assert!(stored == data, "{count} blocks at {slba}");
            let compare = Sqe { opcode: io::COMPARE, ..write };
            assert_eq!(status(&mut queue, compare), Status::SUCCESS);
            let read = Sqe::blocks(io::READ, 0, NSID, (slba, count), keyed(&to));
            assert_eq!(status(&mut queue, read), Status::SUCCESS);
            assert!(to.to_vec() == data);
        }
        // In the capsule, on the medium at once.
        let sgl = Sgl::InCapsule { offset: 0, len: BLOCK as u32 };
        let write = Sqe::blocks(io::WRITE, 0, NSID, (3, 1), sgl);
        let fua = Sqe { cdw12: (write.cdw12.get() | 1 << 30).into(), ..write };
        queue.submit_with(fua, &[0x3c; BLOCK]).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        queue.submit_with(Sqe { opcode: io::COMPARE, ..write }, &[0x3c; BLOCK]).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        queue.submit_with(Sqe { opcode: io::COMPARE, ..write }, &[0x3d; BLOCK]).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::COMPARE_FAILURE.dnr());
        for opcode in [io::FLUSH, io::VERIFY, io::WRITE_ZEROES] {
            let sqe = Sqe::blocks(opcode, 0, NSID, (3, 1), Sgl::NONE);
            assert_eq!(status(&mut queue, sqe), Status::SUCCESS, "{opcode:#x}");
        }
        let mut block = [1; BLOCK];
        file.read_exact_at(&mut block, 3 * BLOCK as u64).unwrap();
        assert_eq!(block, [0; BLOCK]);
        // Three ranges, of which one is empty.
        let mut page = mr.buf(0..4096).unwrap();
        for (at, slba, count) in [(0, 16u64, 8u32), (16, 0, 0), (32, 64, 16)] {
            page.copy_in(at + 4, &count.to_le_bytes()).unwrap();
            page.copy_in(at + 8, &slba.to_le_bytes()).unwrap();
        }
        let dsm = Sqe {
            nsid: NSID.into(),
            cdw10: 2.into(),
            cdw11: 4.into(),
            ..Sqe::new(io::DSM, 0, keyed(&page))
        };
        assert_eq!(status(&mut queue, dsm), Status::SUCCESS);
        // More commands than there are buffers.
        for opcode in [io::WRITE, io::READ, io::READ] {
            let mut sent = 0;
            while queue.room() > 0 {
                let buf = mr.buf(sent * 4096..(sent + 1) * 4096).unwrap();
                let blocks = (sent as u64 * 8, 8);
                queue.submit(Sqe::blocks(opcode, 0, NSID, blocks, keyed(&buf))).unwrap();
                sent += 1;
            }
            for _ in 0..sent {
                assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            }
        }
    });
}

#[test]
fn a_file_that_fails_is_a_media_error_and_no_end() {
    with_target(|here| {
        // Half of the namespace is not there, and nothing can be written.
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(BLOCKS / 2 * BLOCK as u64).unwrap();
        if !offers_file(here, NSID, BLOCKS, File::open(file.path()).unwrap()) {
            return;
        }
        let mut host = here.host();
        let mut queue = host.open_queue(1, 16, 0).unwrap();
        let (_, mr) = host.memory(4096).unwrap();
        let buf = mr.buf(0..BLOCK).unwrap();
        for round in 0..20 {
            let sqe = |opcode, slba| Sqe::blocks(opcode, 0, NSID, (slba, 1), keyed(&buf));
            let read = sqe(io::READ, BLOCKS - 1);
            assert_eq!(status(&mut queue, read), Status::READ_ERROR, "round {round}");
            assert_eq!(status(&mut queue, sqe(io::WRITE, 0)), Status::WRITE_FAULT);
            assert_eq!(status(&mut queue, sqe(io::READ, 0)), Status::SUCCESS);
        }
        let smart = log_in_time(&mut host, (2, 512), |smart| smart[160] == 40);
        assert_eq!(smart[160], 40, "media errors");
    });
}

/// The kernel tells of what it could not write once by an open file, and then forgets it. Here one
/// that can be neither flushed nor written is how the file looks then, another how it looks later.
#[test]
fn a_file_that_has_lost_what_was_written_is_not_believed_again() {
    const SPOILED: u32 = 10;
    let fua = |sqe: Sqe| Sqe { cdw12: (sqe.cdw12.get() | 1 << 30).into(), ..sqe };
    for is_flush in [true, false] {
        with_target(|here| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(BLOCKS * BLOCK as u64).unwrap();
            let full = File::options().read(true).write(true).open("/dev/full").unwrap();
            let open = OpenFile::new(file.try_clone().unwrap());
            let spoiled = open.beside(full);
            if put(here, NSID, open).and_then(|()| put(here, SPOILED, spoiled)).is_none() {
                println!("skipped: no io_uring");
                return;
            }
            let host = here.host();
            let mut queue = host.open_queue(1, 16, 0).unwrap();
            let (_memory, mr) = host.memory(4096).unwrap();
            let block = keyed(&mr.buf(0..BLOCK).unwrap());
            let of = |opcode, nsid| Sqe::blocks(opcode, 0, nsid, (1, 1), block);
            let bare = |opcode, nsid| Sqe::blocks(opcode, 0, nsid, (1, 1), Sgl::NONE);
            let durable = [
                bare(io::FLUSH, NSID),
                fua(of(io::WRITE, NSID)),
                fua(bare(io::WRITE_ZEROES, NSID)),
            ];
            // One that tells its own host alone has lost nothing.
            assert_eq!(status(&mut queue, of(io::WRITE, SPOILED)), Status::CAPACITY);
            for sqe in durable {
                assert_eq!(status(&mut queue, sqe), Status::SUCCESS);
            }
            let (tells, expected) = match is_flush {
                true => (bare(io::FLUSH, SPOILED), Status::WRITE_FAULT),
                false => (fua(of(io::WRITE, SPOILED)), Status::CAPACITY),
            };
            assert_eq!(status(&mut queue, tells), expected);
            for sqe in [durable, durable].concat() {
                assert_eq!(status(&mut queue, sqe), Status::WRITE_FAULT.dnr(), "{sqe:?}");
            }
            // What promises nothing goes on, and memory has nothing to do with it.
            let free = [of(io::WRITE, NSID), fua(of(io::READ, NSID)), bare(io::FLUSH, 1)];
            for sqe in free {
                assert_eq!(status(&mut queue, sqe), Status::SUCCESS, "{sqe:?}");
            }
            // Taken away and opened again, it is another file.
            here.change(|server| {
                for nsid in [NSID, SPOILED] {
                    let gone = server.target_mut().remove_namespace(NQN, nsid).unwrap();
                    server.drop_backend(gone.backend);
                }
            });
            put(here, NSID, OpenFile::new(file)).unwrap();
            for sqe in durable {
                assert_eq!(status(&mut queue, sqe), Status::SUCCESS);
            }
            host.shut_down().unwrap();
        });
    }
}

/// Nor is the shutdown of a host complete that has written to it.
#[test]
fn a_host_that_shuts_down_is_told_of_what_a_file_has_lost() {
    with_target(|here| {
        let file = tempfile::tempfile().unwrap();
        file.set_len(BLOCKS * BLOCK as u64).unwrap();
        let open = OpenFile::new(file);
        let spoiled = open.beside(File::open("/dev/zero").unwrap());
        if put(here, NSID, spoiled).is_none() {
            println!("skipped: no io_uring");
            return;
        }
        // The first that asks is a shutdown, too.
        assert!(matches!(here.host().shut_down(), Err(HostError::Ended(_))));
        put(here, NSID, open).unwrap();
        assert!(matches!(here.host().shut_down(), Err(HostError::Ended(_))));
    });
}

#[test]
fn a_host_that_goes_leaves_no_buffer_behind() {
    with_target(|here| {
        if !offers_new_file(here, NSID, BLOCKS) {
            return;
        }
        for round in 0..10 {
            let host = here.host();
            let mut queue = host.open_queue(1, 32, 0).unwrap();
            let (_, mr) = host.memory(4 << 20).unwrap();
            for at in 0..16 {
                let buf = mr.buf(at * 65536..(at + 1) * 65536).unwrap();
                let opcode = if (at + round) % 2 == 0 { io::WRITE } else { io::READ };
                let blocks = (at as u64 * 128, 128);
                queue.submit(Sqe::blocks(opcode, 0, NSID, blocks, keyed(&buf))).unwrap();
            }
            drop((queue, host));
        }
        here.until_queues(0);
        assert_eq!(here.change(|server| server.held_buffers()), 0);
    });
}

#[test]
fn queues_that_wait_for_buffers_get_them_in_turn() {
    const QUEUES: u16 = 16;
    const DEPTH: usize = 32;
    let config = ServerConfig { small_buffers: 2, ..ServerConfig::default() };
    with(Settings::default(), config, |here| {
        if !offers_new_file(here, NSID, BLOCKS) {
            return;
        }
        let config = HostConfig { io_queues: QUEUES, ..HostConfig::new(NQN) };
        let host = Host::connect(&here.base, &config).unwrap();
        let (_memory, mr) = host.memory(4096).unwrap();
        let buf = mr.buf(0..4096).unwrap();
        let read = Sqe::blocks(io::READ, 0, NSID, (0, 8), keyed(&buf));
        let open = |qid| host.open_queue(qid, DEPTH as u16 + 1, 0).unwrap();
        let mut queues: Vec<HostQueue> = (1..=QUEUES).map(open).collect();
        let mut done = [0u32; QUEUES as usize];
        let mut under_way = [0; QUEUES as usize];
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(2) {
            for (at, queue) in queues.iter_mut().enumerate() {
                while let Some(cqe) = queue.poll().unwrap() {
                    assert_eq!(cqe.status(), Status::SUCCESS);
                    done[at] += 1;
                    under_way[at] -= 1;
                }
                while under_way[at] < DEPTH && queue.room() > 0 {
                    queue.submit(read).unwrap();
                    under_way[at] += 1;
                }
            }
        }
        let (least, most) = (done.iter().min().unwrap(), done.iter().max().unwrap());
        assert!(*least > 0 && *most <= least * 2, "{done:?}");
        for (queue, count) in queues.iter_mut().zip(under_way) {
            for _ in 0..count {
                assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
            }
        }
        here.until_held(0);
    });
}
