//! Commands whose data are in several places of the host, named by a list in their capsules.

mod common;

use std::time::Duration;

use common::{BLOCK, Here, add_whole, offers_new_file, with_target};
use ferrocx::verbs::Mr;
use ferrocx_nvmf_target::host::{HostQueue, keyed};
use ferrocx_nvmf_target::proto::sgl::{Keyed, List, Sgl};
use ferrocx_nvmf_target::proto::sqe::{Sqe, io};
use ferrocx_nvmf_target::proto::status::Status;

const LIMIT: Duration = Duration::from_secs(20);
/// The namespace that is a file, and the one that is RAM whose blocks are read and written as one;
/// 1 is RAM.
const FILE: u32 = 7;
const WHOLE: u32 = 8;

/// Offers these, too.
fn add_others(here: &Here) {
    add_whole(here, WHOLE, 4096);
    assert!(offers_new_file(here, FILE, 4096));
}

fn block(mr: &Mr, at: usize, len: usize) -> Keyed {
    match keyed(&mr.buf(at..at + len).unwrap()) {
        Sgl::Keyed(keyed) => keyed,
        Sgl::InCapsule { .. } => unreachable!("it is memory"),
    }
}

fn blocks(opcode: u8, nsid: u32, slba: u64, count: u32) -> Sqe {
    Sqe::blocks(opcode, 0, nsid, (slba, count), Sgl::NONE)
}

fn status(queue: &mut HostQueue) -> Status {
    queue.wait(LIMIT).unwrap().status()
}

#[test]
fn data_go_to_where_each_descriptor_says() {
    with_target(|here| {
        add_others(here);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        // Two pieces of memory with a key each, taken in turn and from their ends.
        let (one, its) = host.memory(1 << 20).unwrap();
        let (two, others) = host.memory(1 << 20).unwrap();
        assert_ne!(block(&its, 0, 1).rkey, block(&others, 0, 1).rkey);
        let all_16 = [512; 16];
        let large = [65536; 16];
        for nsid in [1, FILE, WHOLE] {
            for lens in [
                &[512][..],
                &[100, 1, 411],
                &[0, 512, 0, 4096, 0],
                &[3, 5, 7, 2045, 12],
                &all_16,
                &large,
                &[1, 1024 * 1024 - 1],
            ] {
                let len: usize = lens.iter().sum();
                let count = u32::try_from(len.div_ceil(BLOCK)).unwrap();
                assert!(len.is_multiple_of(BLOCK) || lens.contains(&2045));
                let data: Vec<u8> = (0..len).map(|at| (at * 31 + lens.len()) as u8).collect();
                let (mut list, mut begin, mut end) = (Vec::new(), 0, 1 << 20);
                for (at, len) in lens.iter().enumerate() {
                    let part = &data[begin..begin + len];
                    begin += len;
                    end -= len;
                    let (memory, mr) = if at % 2 == 0 { (&one, &its) } else { (&two, &others) };
                    memory.region().copy_in(end, part).unwrap();
                    list.push(block(mr, end, *len));
                }
                let is_whole = len.is_multiple_of(BLOCK);
                let expected = match is_whole {
                    true => Status::SUCCESS,
                    false => Status::DATA_LENGTH.dnr(),
                };
                let write = blocks(io::WRITE, nsid, 3, count);
                queue.submit_listed(write, &list, None).unwrap();
                assert_eq!(status(&mut queue), expected, "{nsid}: {lens:?}");
                if !is_whole {
                    continue;
                }
                // By one descriptor, by a comparison, and by a list.
                one.region().copy_in(0, &vec![0; len]).unwrap();
                let read = Sqe {
                    opcode: io::READ,
                    sgl: keyed(&its.buf(0..len).unwrap()).encode(),
                    ..write
                };
                queue.submit(read).unwrap();
                assert_eq!(status(&mut queue), Status::SUCCESS);
                assert!(its.buf(0..len).unwrap().to_vec() == data, "{nsid}: {lens:?}");
                queue.submit_listed(Sqe { opcode: io::READ, ..write }, &list, None).unwrap();
                assert_eq!(status(&mut queue), Status::SUCCESS);
                let mut found = Vec::new();
                end = 1 << 20;
                for (at, len) in lens.iter().enumerate() {
                    end -= len;
                    let mr = if at % 2 == 0 { &its } else { &others };
                    found.extend(mr.buf(end..end + len).unwrap().to_vec());
                }
                assert!(found == data, "{nsid}: {lens:?}");
                let compare = Sqe { opcode: io::COMPARE, ..write };
                queue.submit_listed(compare, &list, None).unwrap();
                assert_eq!(status(&mut queue), Status::SUCCESS);
                let compare = blocks(io::COMPARE, nsid, 4, count);
                queue.submit_listed(compare, &list, None).unwrap();
                assert_eq!(status(&mut queue), Status::COMPARE_FAILURE.dnr());
            }
        }
        here.until_held(0);
    });
}

#[test]
fn ranges_may_come_in_pieces() {
    with_target(|here| {
        add_others(here);
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (memory, mr) = host.memory(1 << 20).unwrap();
        memory.region().copy_in(0, &[7; 64 * BLOCK]).unwrap();
        let all = keyed(&mr.buf(0..64 * BLOCK).unwrap());
        for nsid in [1, FILE, WHOLE] {
            queue.submit(Sqe::blocks(io::WRITE, 0, nsid, (0, 64), all)).unwrap();
            assert_eq!(status(&mut queue), Status::SUCCESS);
            // Blocks 8 to 15 and 24 to 31, the second range in two pieces and with bytes behind it.
            let mut ranges = [0; 64];
            (ranges[4], ranges[8], ranges[20], ranges[24]) = (8, 8, 8, 24);
            memory.region().copy_in(4096, &ranges[..21]).unwrap();
            memory.region().copy_in(9001, &ranges[21..]).unwrap();
            let list = [block(&mr, 4096, 21), block(&mr, 9001, 43)];
            let dsm = blocks(io::DSM, nsid, 0, 1);
            let dsm = Sqe { cdw10: 1.into(), cdw11: 4.into(), cdw12: 0.into(), ..dsm };
            queue.submit_listed(dsm, &list, None).unwrap();
            assert_eq!(status(&mut queue), Status::SUCCESS);
            queue.submit_listed(dsm, &list[..1], None).unwrap();
            assert_eq!(status(&mut queue), Status::DATA_LENGTH.dnr(), "one range and a bit");
            queue.submit(Sqe::blocks(io::READ, 0, nsid, (0, 64), all)).unwrap();
            assert_eq!(status(&mut queue), Status::SUCCESS);
            let zeros = mr.buf(0..64 * BLOCK).unwrap().to_vec();
            let zeros = zeros.chunks(BLOCK).filter(|it| it.iter().all(|byte| *byte == 0)).count();
            // RAM keeps what is deallocated.
            assert_eq!(zeros, if nsid == FILE { 16 } else { 0 });
            memory.region().copy_in(0, &[7; 64 * BLOCK]).unwrap();
        }
    });
}

#[test]
fn an_answer_ends_the_last_key() {
    with_target(|here| {
        add_others(here);
        let host = here.host();
        let (memory, mr) = host.memory(1 << 20).unwrap();
        let first = [block(&mr, 0, 1024)];
        for nsid in [1, FILE, WHOLE] {
            // One command at a time: if its key were not ended, it could not be lent again.
            let mut queue = host.open_queue(1, 16, 2).unwrap();
            for opcode in [io::WRITE, io::READ, io::COMPARE].repeat(12) {
                let lent = Some((&memory, 4096..4096 + 3 * BLOCK));
                queue.submit_listed(blocks(opcode, nsid, 0, 5), &first, lent).unwrap();
                assert_eq!(status(&mut queue), Status::SUCCESS);
                assert_eq!(queue.wrong_keys, 0);
            }
            drop(queue);
            here.until_queues(1);
        }
    });
}

#[test]
fn lists_that_cannot_be_are_refused_and_others_go_on() {
    with_target(|here| {
        let host = here.host();
        let mut queue = host.open_queue(1, 64, 0).unwrap();
        let (_memory, mr) = host.memory(1 << 20).unwrap();
        let fine = Sgl::Keyed(block(&mr, 0, BLOCK)).encode();
        let named = |offset: u64, len: u32| {
            let mut bytes = List { start: 0, count: 0 }.encode();
            bytes[..8].copy_from_slice(&offset.to_le_bytes());
            bytes[8..12].copy_from_slice(&len.to_le_bytes());
            bytes
        };
        let of_kind = |kind: u8| {
            let mut bytes = fine;
            bytes[15] = kind;
            bytes
        };
        let two = |first: [u8; 16]| [first, fine].concat();
        let many = fine.repeat(17);
        let big = Sgl::Keyed(Keyed { len: 0xff_ffff, ..Keyed::default() }).encode().repeat(16);
        for (named, list, count, expected) in [
            (named(0, 0), &fine[..], 1, Status::SGL_SEGMENT),
            (named(0, 15), &fine, 1, Status::SGL_SEGMENT),
            (named(0, 17 * 16), &many, 17, Status::SGL_COUNT),
            (named(0, u32::MAX - 15), &fine, 1, Status::SGL_COUNT),
            (named(0, 32), &fine, 2, Status::SGL_OFFSET),
            (named(1, 16), &fine, 1, Status::SGL_OFFSET),
            (named(u64::MAX, 16), &fine, 1, Status::SGL_OFFSET),
            (named(u64::MAX - 15, 16), &fine, 1, Status::SGL_OFFSET),
            (named(0, 32), &two(fine), 1, Status::DATA_LENGTH),
            (named(0, 32), &two(fine), 3, Status::DATA_LENGTH),
            (named(0, 256), &big, 2048, Status::DATA_LENGTH),
            (named(0, 32), &two(of_kind(0x4f)), 2, Status::INVALID_FIELD),
            (named(0, 32), &two(of_kind(0x31)), 2, Status::SGL_TYPE),
            (named(0, 32), &two(of_kind(0x01)), 2, Status::SGL_TYPE),
            (named(0, 32), &two(of_kind(0x30)), 2, Status::SGL_TYPE),
            (named(0, 32), &two(of_kind(0x5a)), 2, Status::SGL_TYPE),
            (named(0, 32), &two(of_kind(0x00)), 2, Status::INVALID_FIELD),
        ] {
            for opcode in [io::READ, io::WRITE, io::COMPARE] {
                let sqe = Sqe { sgl: named, ..blocks(opcode, 1, 0, count) };
                queue.submit_with(sqe, list).unwrap();
                assert_eq!(status(&mut queue), expected.dnr(), "{opcode}: {named:x?} {list:x?}");
            }
        }
        // The admin queue's capsules have no room for one, and reservations need none.
        let acquire = Sqe { sgl: named(0, 16), ..blocks(io::RESERVATION_ACQUIRE, 1, 0, 1) };
        queue.submit_with(acquire, &fine).unwrap();
        assert_eq!(status(&mut queue), Status::SGL_TYPE.dnr());
        let fine = Sqe { sgl: fine, ..blocks(io::READ, 1, 0, 1) };
        queue.submit(fine).unwrap();
        assert_eq!(status(&mut queue), Status::SUCCESS);
    });
}

#[test]
fn a_queue_full_of_lists_is_served_in_whole() {
    with_target(|here| {
        add_others(here);
        let host = here.host();
        let mut queue = host.open_queue(1, 128, 0).unwrap();
        let (memory, mr) = host.memory(4 << 20).unwrap();
        let data: Vec<u8> = (0..127 * 8192_usize).map(|at| (at / 7 + at) as u8).collect();
        for nsid in [1, FILE, WHOLE] {
            memory.region().copy_in(0, &data).unwrap();
            for opcode in [io::WRITE, io::COMPARE, io::READ] {
                if opcode == io::READ {
                    memory.region().copy_in(0, &vec![0; data.len()]).unwrap();
                }
                for at in 0..127_usize {
                    let list: Vec<Keyed> =
                        (0..16).map(|part| block(&mr, at * 8192 + part * 512, 512)).collect();
                    let sqe = blocks(opcode, nsid, at as u64 * 16, 16);
                    let submitted = match at % 3 {
                        // Among those with one block.
                        0 => queue.submit(Sqe {
                            sgl: keyed(&mr.buf(at * 8192..(at + 1) * 8192).unwrap()).encode(),
                            ..sqe
                        }),
                        _ => queue.submit_listed(sqe, &list, None),
                    };
                    assert!(submitted.unwrap().is_some());
                }
                for _ in 0..127 {
                    assert_eq!(status(&mut queue), Status::SUCCESS, "{opcode:#x} {nsid}");
                }
            }
            assert!(mr.buf(0..data.len()).unwrap().to_vec() == data, "{nsid}");
        }
        here.until_held(0);
        // One that goes with lists under way leaves nothing.
        for at in 0..64 {
            let list: Vec<Keyed> = (0..16).map(|part| block(&mr, part * 512, 512)).collect();
            queue.submit_listed(blocks(io::WRITE, FILE, at * 16, 16), &list, None).unwrap();
        }
        drop((queue, host));
        here.until_queues(0);
        here.until_held(0);
    });
}
