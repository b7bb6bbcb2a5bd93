//! A namespace in memory of another device: bytes are where they belong, and once their owner has
//! taken them back, hosts get errors of the medium and nobody touches them.

mod common;

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{BLOCK, Here, NQN, with_target};
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_nvmf_target::backend::Backend;
use ferrocx_nvmf_target::host::{HostQueue, keyed, one};
use ferrocx_nvmf_target::peer::Peer;
use ferrocx_nvmf_target::proto::sgl::Sgl;
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;
use ferrocx_nvmf_target::transport::Ready;
use ferrocx_nvmf_target::whole::{Locks, Whole};

const LIMIT: Duration = Duration::from_secs(20);
const NSID: u32 = 9;
const BLOCKS: u64 = 4096;

/// Memory of another device behind a namespace, read and written by the port itself.
fn offer(here: &Here) -> Arc<Peer> {
    offer_as(here, Ready::Direct)
}

/// The same, whose blocks are read and written as one.
fn whole(memory: Backend) -> Ready {
    Ready::Whole(Whole::new(memory, 9, &Locks::default()))
}

fn offer_as(here: &Here, ready: fn(Backend) -> Ready) -> Arc<Peer> {
    here.change(move |server| {
        let len_bytes = Some(BLOCKS * BLOCK as u64);
        let peer = Arc::new(Peer::open(&PeerSpec::Host, server.pd(), len_bytes).unwrap());
        let place = server.next_place();
        server.put_backend(place, ready(Backend::peer(&peer)), (NQN, NSID)).unwrap();
        let namespace = common::namespace(NSID, BLOCKS, place);
        server.target_mut().put_namespace(NQN, namespace).unwrap();
        peer
    })
}

fn stored(peer: &Peer, lba: u64, blocks: usize) -> Vec<u8> {
    let (region, start) = peer.block().region();
    let mut bytes = vec![0; blocks * BLOCK];
    region.copy_out(start + lba as usize * BLOCK, &mut bytes).unwrap();
    bytes
}

fn status(queue: &mut HostQueue, sqe: Sqe) -> Status {
    queue.submit(sqe).unwrap();
    queue.wait(LIMIT).unwrap().status()
}

#[test]
fn what_hosts_write_is_in_the_peers_memory_until_it_is_taken_back() {
    written_and_taken_back(Ready::Direct);
}

#[test]
fn so_it_is_block_by_block() {
    written_and_taken_back(whole);
}

fn written_and_taken_back(ready: fn(Backend) -> Ready) {
    with_target(|here| {
        let peer = offer_as(here, ready);
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
            assert!(stored(&peer, slba, count as usize) == data, "{count} blocks at {slba}");
            let compare = Sqe { opcode: io::COMPARE, ..write };
            assert_eq!(status(&mut queue, compare), Status::SUCCESS);
            let read = Sqe::blocks(io::READ, 0, NSID, (slba, count), keyed(&to));
            assert_eq!(status(&mut queue, read), Status::SUCCESS);
            assert!(to.to_vec() == data);
        }
        let in_capsule = Sgl::InCapsule { offset: 0, len: BLOCK as u32 };
        let capsule = Sqe::blocks(io::WRITE, 0, NSID, (3, 1), in_capsule);
        queue.submit_with(capsule, &[0x3c; BLOCK]).unwrap();
        assert_eq!(queue.wait(LIMIT).unwrap().status(), Status::SUCCESS);
        assert_eq!(stored(&peer, 3, 1), [0x3c; BLOCK]);
        let zeroes = Sqe::blocks(io::WRITE_ZEROES, 0, NSID, (4, 2), Sgl::NONE);
        assert_eq!(status(&mut queue, zeroes), Status::SUCCESS);
        assert_eq!(stored(&peer, 4, 2), [0; 2 * BLOCK]);

        peer.block().take_back().unwrap();
        let before = stored(&peer, 0, BLOCKS as usize);
        let buf = mr.buf(0..BLOCK).unwrap();
        for (opcode, expected) in [
            (io::READ, Status::READ_ERROR),
            (io::WRITE, Status::WRITE_FAULT),
            (io::COMPARE, Status::READ_ERROR),
        ] {
            let sqe = Sqe::blocks(opcode, 0, NSID, (8, 1), keyed(&buf));
            assert_eq!(status(&mut queue, sqe), expected, "{opcode:#x}");
        }
        for (opcode, expected) in
            [(io::WRITE_ZEROES, Status::WRITE_FAULT), (io::VERIFY, Status::READ_ERROR)]
        {
            let sqe = Sqe::blocks(opcode, 0, NSID, (8, 1), Sgl::NONE);
            assert_eq!(status(&mut queue, sqe), expected, "{opcode:#x}");
        }
        for (opcode, expected) in
            [(io::WRITE, Status::WRITE_FAULT), (io::COMPARE, Status::READ_ERROR)]
        {
            queue.submit_with(Sqe { opcode, ..capsule }, &[0x55; BLOCK]).unwrap();
            assert_eq!(queue.wait(LIMIT).unwrap().status(), expected, "{opcode:#x}");
        }
        assert!(stored(&peer, 0, BLOCKS as usize) == before, "touched when it was taken back");
        // Others go on.
        let other = Sqe::blocks(io::READ, 0, 1, (0, 1), keyed(&buf));
        assert_eq!(one(&mut queue, other).unwrap().status(), Status::SUCCESS);
    });
}

/// Taken back with requests of the port under way, it may cost their queue, and nothing else.
#[test]
fn memory_that_is_taken_back_under_load_costs_a_queue_at_most() {
    with_target(|here| {
        let peer = offer(here);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let buf = mr.buf(0..1 << 19).unwrap();
        for round in 0..16 {
            let sqe = Sqe::blocks(io::WRITE, 0, NSID, (round % 4 * 1024, 1024), keyed(&buf));
            queue.submit(sqe).unwrap();
        }
        peer.block().take_back().unwrap();
        let before = stored(&peer, 0, BLOCKS as usize);
        let mut ended = Vec::new();
        while ended.len() < 16 {
            match queue.wait(LIMIT) {
                Ok(cqe) => ended.push(cqe.status()),
                Err(_) => break,
            }
        }
        let known = [Status::SUCCESS, Status::WRITE_FAULT];
        assert!(ended.iter().all(|status| known.contains(status)), "{ended:?}");
        assert!(stored(&peer, 0, BLOCKS as usize) == before, "touched when it was taken back");
        // A host that comes again is served, and told.
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let small = mr.buf(0..BLOCK).unwrap();
        let read = |nsid| Sqe::blocks(io::READ, 0, nsid, (0, 1), keyed(&small));
        assert_eq!(status(&mut queue, read(NSID)), Status::READ_ERROR);
        assert_eq!(status(&mut queue, read(1)), Status::SUCCESS);
    });
}

/// Writes that stand in line for a READ when it is taken back fail alone, and their queue lives.
#[test]
fn writes_in_line_fail_alone_when_their_memory_is_taken_back() {
    const LONG: u64 = 2048;
    with_target(|here| {
        let peer = offer(here);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (memory, mr) = host.memory(LONG as usize * BLOCK).unwrap();
        memory.region().copy_in(0, &vec![0x77; LONG as usize * BLOCK]).unwrap();
        let (all, one_block) =
            (mr.buf(0..LONG as usize * BLOCK).unwrap(), mr.buf(0..BLOCK).unwrap());
        let (asked, wait) = channel();
        let taken = here.begin({
            let peer = peer.clone();
            move |server| {
                wait.recv().unwrap();
                // All READs that the host serves are of RAM when these are left behind.
                let begun = Instant::now();
                while server.stats().waits < 8 && begun.elapsed() < LIMIT {
                    server.poll().unwrap();
                }
                peer.block().take_back().unwrap();
                server.stats().waits
            }
        });
        let mut sent = Vec::new();
        for at in 0..16 {
            let write = Sqe::blocks(io::WRITE, 0, 1, (at % 8 * LONG, LONG as u32), keyed(&all));
            sent.push((queue.submit(write).unwrap().unwrap(), Status::SUCCESS));
        }
        for at in 0..8 {
            let write = Sqe::blocks(io::WRITE, 0, NSID, (at, 1), keyed(&one_block));
            sent.push((queue.submit(write).unwrap().unwrap(), Status::WRITE_FAULT));
        }
        asked.send(()).unwrap();
        assert_eq!(taken.recv().unwrap(), 8);
        for _ in 0..sent.len() {
            let cqe = queue.wait(LIMIT).unwrap();
            let (_, expected) = sent.iter().find(|(cid, _)| *cid == cqe.cid.get()).unwrap();
            assert_eq!(cqe.status(), *expected);
        }
        assert_eq!(stored(&peer, 0, 8), [0; 8 * BLOCK], "touched when it was taken back");
        let read = Sqe::blocks(io::READ, 0, 1, (LONG, 1), keyed(&one_block));
        assert_eq!(status(&mut queue, read), Status::SUCCESS, "the queue goes on");
        assert_eq!(one_block.to_vec(), [0x77; BLOCK]);
    });
}
