//! User contexts (DevX): ownership by uid, memory objects, queues and keys made of them.
//! Reference 2.2, 4.2, 4.11.

use std::time::Duration;

use crate::common::objects::*;
use crate::common::roce::create_qp;
use crate::common::{Host, be32, input, thread_time, words};
use ferrocx_model::NicConfig;
use ferrocx_model::objects::mkey::Translation;

const BAD_PARAM: u8 = 3;
const BAD_RESOURCE: u8 = 5;
const RESOURCE_BUSY: u8 = 6;
const EXCEED_LIM: u8 = 8;
const BAD_INPUT_LEN: u8 = 0x50;

fn put(bytes: &[u8], offset: usize, word: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
    bytes
}

/// The command, carried out for a user context.
fn by(uid: u32, bytes: &[u8]) -> Vec<u8> {
    put(bytes, 0, be32(bytes, 0) | uid)
}

fn short(opcode: u32, at8: u32) -> Vec<u8> {
    words(&[opcode << 16, 0, at8, 0])
}

/// CREATE_UMEM of 4 KiB pages, which the device may read and write.
fn create_umem(page_offset: u32, pages: &[u64]) -> Vec<u8> {
    let mut bytes =
        input(0x30, &[(0, 0x0a08_0000), (0x24, page_offset), (0x2c, pages.len() as u32)]);
    bytes.extend(pages.iter().flat_map(|page| (page | 3).to_be_bytes()));
    bytes
}

/// CREATE_CQ in user memory: ring at an offset, record at another.
fn create_umem_cq(base: &Base, umem: u32, ring: u32, record: u32) -> Vec<u8> {
    input(
        0x110,
        &[
            (0, 0x0400_0000),
            (0x10, 1 << 25),
            (0x14, umem),
            (0x1c, 5 << 24 | base.uar),
            (0x24, base.eqn),
            (0x4c, record),
            (0x64 - 0x10, ring),
            (0x58, umem),
            (0x5c, 1 << 31),
        ],
    )
}

/// CREATE_SQ in user memory.
fn create_umem_sq(base: &Base, tisn: u32, umem: u32, ring: u32, record: u32) -> Vec<u8> {
    let mut bytes = create_sq(base, tisn, 4, u64::from(record), 0);
    bytes.truncate(0x110);
    let bytes = put(&put(&bytes, 0x74, 3 << 30), 0x78, umem);
    put(&put(&bytes, 0x7c, umem), 0x84, ring)
}

impl Host {
    /// CREATE_XRC_SRQ of 16 entries over a listed page.
    fn xrc_srq(&mut self, base: &Base, xrcd: u32) -> Vec<u8> {
        let (record, page) = (self.ring(64), self.ring(4096));
        let fields = [
            (0, 0x0705_0000),
            (0x10, 4 << 24),
            (0x14, 2 << 24 | xrcd),
            (0x18, base.cqn),
            (0x28, base.pd),
            (0x38, (record >> 32) as u32),
            (0x3c, record as u32),
        ];
        let mut bytes = input(0x110, &fields);
        bytes.extend(page.to_be_bytes());
        bytes
    }

    /// CREATE_UCTX.
    #[track_caller]
    fn context(&mut self) -> u32 {
        self.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8)
    }

    /// A command of a user context that makes an object; its number.
    #[track_caller]
    fn make(&mut self, uid: u32, bytes: &[u8]) -> u32 {
        self.ok(&by(uid, bytes), 0x10).word(8)
    }

    /// UAR, EQ of the driver, CQ, PD and TD of a user context, and a piece of its memory: pages at
    /// odd places, of which the first starts at 0x40.
    #[track_caller]
    fn user_base(&mut self, uid: u32) -> (Base, u32, Vec<u64>) {
        let driver = self.base();
        let pages: Vec<u64> = (0..4).map(|_| self.ring(4096)).rev().collect();
        let umem = self.make(uid, &create_umem(0x40, &pages));
        let uar = self.make(uid, &short(0x802, 0));
        let (pd, td) = (self.make(uid, &short(0x800, 0)), self.make(uid, &short(0x816, 0)));
        let base = Base { uar, eqn: driver.eqn, cqn: 0, pd, td };
        let cqn = self.make(uid, &create_umem_cq(&base, umem, 0xfc0, 8));
        (Base { cqn, ..base }, umem, pages)
    }
}

#[test]
fn user_contexts_come_and_go_and_their_numbers_are_checked() {
    let mut host = Host::up();
    let caps = host.ok(&words(&[0x0100_0000, 1, 0, 0]), 0x1010);
    assert_eq!(
        (caps.word(0x10 + 0x8c) >> 24 & 0x1f, caps.word(0x10 + 0x8c) >> 16 & 0x1f),
        (12, 16)
    );
    assert_eq!(caps.word(0x10 + 0x84), 3, "general_obj_types: UCTX, UMEM");
    let (first, second) = (host.context(), host.context());
    assert_ne!((first, second), (0, 0));
    let beyond = input(0x40, &[(0, 0x0a04_0000), (0x10, 1 << 5)]);
    assert_eq!(host.refused(&beyond, BAD_PARAM), "cap");
    host.make(first, &short(0x800, 0));
    let lag = host.ok(&by(first, &short(0x842, 0)), 0x10);
    assert_eq!((lag.word(8), lag.word(0xc)), (0, 0), "the port is no part of a lag");
    host.ok(&short(0xa06, second), 0x10);
    assert_eq!(host.refused(&by(second, &short(0x800, 0)), BAD_PARAM), "uid");
    assert_eq!(host.refused(&short(0xa06, second), BAD_RESOURCE), "uid");
    // What concerns the whole function is not for them.
    for command in [words(&[0x0103_0000 | first, 0, 0, 0]), by(first, &short(0xa06, first))] {
        assert_eq!(host.refused(&command, BAD_PARAM), "uid");
    }
}

#[test]
fn a_user_context_reaches_only_its_own_objects() {
    let mut host = Host::up();
    let (ours, theirs) = (host.context(), host.context());
    let driver = host.base();
    let (base, umem, _) = host.user_base(ours);
    let (other, other_umem, _) = host.user_base(theirs);
    let tisn = host.make(ours, &create_tis(base.td));
    let good = create_umem_sq(&base, tisn, umem, 0x1fc0, 0x10);
    // Another's object, and the driver's, in each place where a queue names one.
    for (at, field, numbers) in [
        (0x28, "cqn", [other.cqn, driver.cqn]),
        (0x58, "pd", [other.pd, driver.pd]),
        (0x5c, "uar_page", [other.uar, driver.uar]),
        (0x78, "dbr_umem_id", [other_umem, 0]),
        (0x7c, "wq_umem_id", [other_umem, 0]),
    ] {
        for number in numbers {
            assert_eq!(host.refused(&by(ours, &put(&good, at, number)), BAD_RESOURCE), field);
        }
    }
    let sqn = host.make(ours, &good);
    for command in [short(0x907, sqn), short(0x906, sqn), modify_queue(0x905, sqn, 0, 1)] {
        assert_eq!(host.refused(&by(theirs, &command), BAD_RESOURCE), "uid");
    }
    assert_eq!(host.refused(&by(ours, &short(0x801, driver.pd)), BAD_RESOURCE), "uid");
    assert_eq!(host.refused(&by(theirs, &short(0xa0a, umem)), BAD_RESOURCE), "uid");
    host.ok(&by(ours, &modify_queue(0x905, sqn, 0, 1)), 0x10);
    // The driver reaches everything.
    host.ok(&short(0x907, sqn), 0x110);
    host.ok(&short(0x906, sqn), 0x10);
}

#[test]
fn a_user_context_gets_no_key_to_all_memory() {
    let mut host = Host::up();
    let uid = host.context();
    let (base, umem, _) = host.user_base(uid);
    let key = by(uid, &create_pa_mkey(base.pd, 1));
    assert_eq!(host.refused(&key, BAD_PARAM), "access_mode");
    // Nor one whose pieces (KLM, KSM) lie behind the reserved key.
    for (mode, below, is_refused) in [(2, 0x200, true), (3, 0x200, true), (2, 0x201, false)] {
        let set = [
            (0, 0x0200_0000),
            (0x10, mode << 8 | 1 << 10),
            (0x14, 0xffff_ff00),
            (0x1c, base.pd),
            (0x2c, 4096),
            (0x44, 1),
            (0x48, 12),
            (0x60, 1),
            (0x110, if mode == 2 { 4096 } else { 0 }),
            (0x114, below),
        ];
        let key = by(uid, &input(0x120, &set));
        if is_refused {
            assert_eq!(host.refused(&key, BAD_PARAM), "klm_pas_mtt", "{mode}");
            host.ok(&input(0x120, &set), 0x10);
        } else {
            host.ok(&key, 0x10);
        }
    }
    let tisn = host.make(uid, &create_tis(base.td));
    let queue = create_umem_sq(&base, tisn, umem, 0x1fc0, 0x10);
    assert_eq!(host.refused(&by(uid, &put(&queue, 0x20, 1 << 31)), BAD_PARAM), "rlky");
}

/// Whatever reaches memory that nobody gave to a user context, or protection domains of others, in
/// every command that can ask for it: the driver gets it, a user context does not.
#[test]
fn what_reaches_beyond_its_own_memory_is_for_the_driver() {
    const RLKY: u32 = 1 << 4;
    const FRE: u32 = 1 << 11;
    const UMR: u32 = 0xc << 16;
    const GSI: u32 = 8 << 16;
    let mut host = Host::up();
    let uid = host.context();
    let (ours, umem, _) = host.user_base(uid);
    let driver = host.base();
    let xrcd = host.short(0x80e, 0);
    let shared = host.xrc_srq(&driver, xrcd);
    let drivers_srq = host.make(0, &shared);
    let mut commands = |base: &Base, uid: u32| {
        let tisn = host.make(uid, &create_tis(base.td));
        let (record, page) = (host.ring(64), host.ring(4096));
        let with = |mut bytes: Vec<u8>, changes: &[(usize, u32)]| {
            for (at, word) in changes {
                let old = be32(&bytes, *at);
                bytes[*at..at + 4].copy_from_slice(&(old | word).to_be_bytes());
            }
            bytes
        };
        let listed = |mut bytes: Vec<u8>| {
            bytes.extend(page.to_be_bytes());
            bytes
        };
        let qp = |st: u32| {
            let mut bytes = listed(create_qp(0, base.pd, base.uar, base.cqn, record));
            bytes[0x88..0x8c].fill(0);
            with(bytes, &[(0x18, st)])
        };
        let srq = host.xrc_srq(base, xrcd);
        let mut takes = qp(0);
        takes[0xc4..0xc8].copy_from_slice(&(1 << 24 | drivers_srq).to_be_bytes());
        let key = |mode: u32, octwords: u32| {
            let set = [
                (0, 0x0200_0000),
                (0x10, mode << 8 | 1 << 10),
                (0x14, 0xffff_ff00),
                (0x1c, base.pd),
                (0x2c, 4096 * octwords),
                (0x44, octwords),
                (0x48, 12),
                (0x60, octwords),
            ];
            input(0x110 + 16 * octwords as usize, &set)
        };
        let sq = create_sq(base, tisn, 4, record, page);
        let rq = create_rq(base, 4, record, page);
        let eq = create_eq(base.uar, 4, 0, 0x200, page);
        vec![
            (qp(0), None),
            (with(qp(0), &[(0x20, RLKY)]), Some("rlky")),
            (with(qp(0), &[(0x88, FRE)]), Some("fre")),
            (qp(UMR), Some("st")),
            (qp(GSI), Some("st")),
            (sq.clone(), None),
            (with(sq, &[(0x20, 1 << 31)]), Some("rlky")),
            (rq.clone(), None),
            (with(rq, &[(0x20, 1 << 31)]), Some("rlky")),
            (srq.clone(), None),
            (with(srq, &[(0x14, 1 << 28)]), Some("rlky")),
            // Whose receives they are.
            (takes, Some("srqn_rmpn_xrqn")),
            // A key over listed pages; one that has none; over all memory.
            (key(1, 1), Some("klm_pas_mtt")),
            (key(1, 0), None),
            (create_pa_mkey(base.pd, 1), Some("access_mode")),
            (eq, Some("uid")),
        ]
    };
    let (for_user, for_driver) = (commands(&ours, uid), commands(&driver, 0));
    for (number, (command, _)) in for_driver.iter().enumerate() {
        let done = host.command(command, 0x10);
        let log = host.nic.log().last();
        assert_eq!(done.status(), 0, "{number} for the driver: {log:?}");
    }
    for (number, (command, refused)) in for_user.iter().enumerate() {
        let done = host.command(&by(uid, command), 0x10);
        let log = host.nic.log().last().map(|refusal| refusal.field);
        match refused {
            None => assert_eq!(done.status(), 0, "{number}: {log:?}"),
            Some(field) => {
                assert_ne!(done.status(), 0, "{number}, {field}");
                assert_eq!(log, Some(*field), "{number}");
            }
        }
    }
    // What was lent for reading only is not written: each page says so, whatever the key does.
    let page = host.ring(4096);
    let reader = host.make(uid, &put(&create_umem(0, &[page]), 0x34, page as u32 | 1));
    for (umem, looks_at_pages) in [(reader, true), (umem, false)] {
        let offset = if looks_at_pages { 0 } else { 0x1000 - 0x40 };
        let key = put(&create_umem_mkey(ours.pd, umem, 4096), 0x6c, offset);
        let index = host.make(uid, &key);
        let Translation::Mtt { pg_access, .. } =
            &host.nic.state().objects.mkeys.get(index).expect("created").translation
        else {
            panic!("a key of pages")
        };
        assert_eq!(*pg_access, looks_at_pages);
    }
}

#[test]
fn queues_lie_where_their_user_memory_says() {
    let mut host = Host::up();
    let uid = host.context();
    let (base, umem, pages) = host.user_base(uid);
    let cq = host.nic.state().objects.cqs.get(base.cqn).expect("created");
    assert_eq!((cq.dbr_addr, cq.memory.locate(0)), (pages[0] + 0x48, pages[1]));
    let tisn = host.make(uid, &create_tis(base.td));
    let good = create_umem_sq(&base, tisn, umem, 0x1e40, 0x10);
    let sqn = host.make(uid, &good);
    let sq = host.nic.state().objects.sqs.get(sqn).expect("created");
    let places = [0, 0x17f, 0x180, 0x3ff].map(|at| sq.wq.memory.locate(at));
    assert_eq!(places, [pages[1] + 0xe80, pages[1] + 0xfff, pages[2], pages[2] + 0x27f]);
    assert_eq!(sq.wq.dbr_addr, pages[0] + 0x50);
    // 0x3fc0 bytes lie behind the first byte.
    for (at, value, field) in [
        (0x84, 0x3bc1, "wq_umem_offset"),
        (0x84, 0x20, "wq_umem_offset"),
        (0x80, 1, "wq_umem_offset"),
        (0x64, 0x3fc0, "dbr_addr"),
        (0x64, 0x14, "dbr_addr"),
        (0x60, 1, "dbr_addr"),
    ] {
        assert_eq!(host.refused(&by(uid, &put(&good, at, value)), BAD_PARAM), field, "{at:#x}");
    }
    assert_eq!(host.refused(&by(uid, &short(0xa0a, umem)), RESOURCE_BUSY), "umem_id");
    host.ok(&by(uid, &short(0x906, sqn)), 0x10);
    assert_eq!(host.refused(&by(uid, &short(0xa0a, umem)), RESOURCE_BUSY), "umem_id");
    host.ok(&by(uid, &short(0x401, base.cqn)), 0x10);
    host.ok(&by(uid, &short(0xa0a, umem)), 0x10);
}

/// An entry of 128 bytes that began at the end of a page would end behind it, in memory that is not
/// the ring's.
#[test]
fn no_entry_straddles_two_pages() {
    const CQE_128: u32 = 1 << 21;
    let mut host = Host::up();
    let uid = host.context();
    let (base, umem, _) = host.user_base(uid);
    // The memory starts 0x40 bytes into its first page.
    for (offset, is_whole) in [(0x40, true), (0x80, false), (0xfc0, true), (0, false)] {
        let cq = put(&create_umem_cq(&base, umem, offset, 8), 0x10, 1 << 25 | CQE_128);
        if is_whole {
            host.make(uid, &cq);
        } else {
            assert_eq!(host.refused(&by(uid, &cq), BAD_PARAM), "wq_umem_offset", "{offset:#x}");
        }
    }
    // The same for listed pages, in units of 64 bytes, and for receive entries of 128 bytes.
    let driver = host.base();
    let (record, page) = (host.ring(64), host.ring(8192));
    let mut cq = put(&create_cq(driver.uar, driver.eqn, 4, record, page), 0x10, CQE_128);
    let mut rq = put(&create_rq(&driver, 4, record, page), 0x70, 7 << 16 | 4);
    for bytes in [&mut cq, &mut rq] {
        bytes.extend((page + 4096).to_be_bytes());
    }
    for (units, is_whole) in [(2, true), (1, false), (3, false)] {
        for command in [put(&cq, 0x18, units << 6), put(&rq, 0x54, units << 16)] {
            if is_whole {
                host.ok(&command, 0x10);
            } else {
                assert_eq!(host.refused(&command, BAD_PARAM), "page_offset", "{units}");
            }
        }
    }
}

#[test]
fn memory_objects_and_their_keys_are_checked() {
    let mut host = Host::up();
    let uid = host.context();
    let page = host.ring(4096);
    let good = create_umem(0x40, &[page, page]);
    for (at, value, status, field) in [
        (0x20, 1 << 31, BAD_PARAM, "ats"),
        (0x24, 0x1000, BAD_PARAM, "page_offset"),
        (0x2c, 0, BAD_PARAM, "num_of_mtt"),
        (0x2c, 3, BAD_INPUT_LEN, "mtt"),
        (0x34, 0x800, BAD_PARAM, "mtt"),
    ] {
        assert_eq!(host.refused(&by(uid, &put(&good, at, value)), status), field);
    }
    // What the device may only read can hold no completions.
    let read_only = put(&good, 0x34, page as u32 | 1);
    let (base, umem, pages) = host.user_base(uid);
    let umem_of_driver = host.make(0, &good);
    let reader = host.make(uid, &read_only);
    let cq = create_umem_cq(&base, reader, 0x7c0, 8);
    assert_eq!(host.refused(&by(uid, &cq), BAD_PARAM), "wq_umem_id");
    // A key over the second page on: the region starts 0x123 bytes into it.
    let key = input(
        0x110,
        &[
            (0, 0x0200_0000),
            (0x0c, 1 << 30),
            (0x10, 1 << 11 | 1 << 10 | 1 << 8),
            (0x14, 0xffff_ff42),
            (0x1c, base.pd),
            (0x24, 0x7000_0123),
            (0x2c, 0x1234),
            (0x48, 12),
            (0x64, umem),
            (0x6c, 0x1123 - 0x40),
        ],
    );
    let index = host.make(uid, &key);
    let mkey = host.nic.state().objects.mkeys.get(index).expect("created");
    let Translation::Mtt { pages: found, .. } = &mkey.translation else { panic!("a key of pages") };
    assert_eq!(found[..], [pages[1] | 3, pages[2] | 3]);
    for (at, value, status, field) in [
        (0x64, umem_of_driver, BAD_RESOURCE, "mkey_umem_id"),
        (0x6c, 0x1124, BAD_PARAM, "mkey_umem_offset"),
        (0x2c, 0x2f00, BAD_PARAM, "mkey_umem_offset"),
        (0x48, 13, BAD_PARAM, "log_page_size"),
    ] {
        assert_eq!(host.refused(&by(uid, &put(&key, at, value)), status), field, "{at:#x}");
    }
    assert_eq!(host.refused(&by(uid, &short(0xa0a, umem)), RESOURCE_BUSY), "umem_id");
}

/// CREATE_MKEY over user memory, with pages of 4 KiB.
fn create_umem_mkey(pd: u32, umem: u32, len: u64) -> Vec<u8> {
    input(
        0x110,
        &[
            (0, 0x0200_0000),
            (0x0c, 1 << 30),
            (0x10, 1 << 11 | 1 << 10 | 1 << 8),
            (0x14, 0xffff_ff42),
            (0x1c, pd),
            (0x28, (len >> 32) as u32),
            (0x2c, len as u32),
            (0x48, 12),
            (0x64, umem),
        ],
    )
}

#[test]
fn a_key_over_huge_pages_of_user_memory_is_paid_for_before_it_is_written_out() {
    let mut host = Host::up();
    let uid = host.context();
    let (base, ..) = host.user_base(uid);
    let began = thread_time();
    // (log of the page's bytes, of the key's bytes): pages are what the guest says they are.
    for (page, key, field) in
        [(43, 43, "mkc.len"), (43, 38, "mkc.len"), (31, 37, "mkey_umem_offset")]
    {
        let bytes = put(&create_umem(0, &[0]), 0x20, page - 12);
        let umem = host.make(uid, &bytes);
        let key = by(uid, &create_umem_mkey(base.pd, umem, 1 << key));
        let status = if field == "mkc.len" { EXCEED_LIM } else { BAD_PARAM };
        assert_eq!(host.refused(&key, status), field, "{page}");
    }
    let umem = host.make(uid, &put(&create_umem(0, &[0]), 0x20, 19));
    host.ok(&by(uid, &create_umem_mkey(base.pd, umem, 1 << 20)), 0x10);
    let used = thread_time().saturating_sub(began);
    assert!(used < Duration::from_secs(1), "{used:?}");
}

#[test]
fn everything_goes_with_its_user_context() {
    let mut host = Host::up();
    let before = host.nic.state().objects.len();
    let used = host.nic.state().budget.used_bytes();
    let (uid, other) = (host.context(), host.context());
    let (base, umem, _) = host.user_base(uid);
    let rings = host.rings.len();
    let driver_objects = host.nic.state().objects.len();
    let rq = put(&put(&create_rq(&base, 4, 0x20, 0), 0x74, 3 << 30), 0x78, umem);
    let rqn = host.make(uid, &put(&put(&rq[..0x110], 0x7c, umem), 0x84, 0x1fc0));
    let rqtn = host.make(uid, &create_rqt(2, &[rqn]));
    let tirn = host.make(uid, &create_indirect_tir(base.td, rqtn));
    let table = host.make(uid, &create_flow_table(1, 4));
    let group = host.make(uid, &create_flow_group(table, 0, 3));
    host.ok(&by(uid, &set_fte(table, group, 1, tirn)), 0x10);
    host.make(uid, &short(0x939, 0));
    host.make(uid, &short(0x80e, 0));
    host.make(other, &short(0x800, 0));
    // The driver's own rule leads to one of them: it has to go first.
    let drivers = host.ok(&create_flow_table(1, 4), 0x10).word(8);
    let drivers_group = host.ok(&create_flow_group(drivers, 0, 3), 0x10).word(8);
    host.ok(&set_fte(drivers, drivers_group, 1, tirn), 0x10);
    assert_eq!(host.refused(&short(0xa06, uid), RESOURCE_BUSY), "uid");
    host.ok(&input(0x40, &[(0, 0x0938_0000), (0x14, drivers), (0x20, 1)]), 0x10);
    host.ok(&short(0xa06, uid), 0x10);
    // Left are the driver's UAR, EQ, CQ, PD and TD, its table and group, the other context's two.
    assert_eq!(host.nic.state().objects.len(), before + 5 + 2 + 2);
    assert!(rings > 0 && driver_objects > before);
    assert_eq!(host.refused(&by(uid, &short(0x800, 0)), BAD_PARAM), "uid");
    assert!(host.nic.state().budget.used_bytes() >= used);
}

#[test]
fn user_memory_is_paid_for_and_given_back() {
    let config = NicConfig { memory_bytes: 0, ..NicConfig::default() };
    let mut host = Host::up_with(config);
    let uid = host.context();
    let page = host.ring(4096);
    let umem = by(uid, &create_umem(0, &[page; 10_000]));
    let before = host.nic.state().budget.used_bytes();
    let mut made = 0;
    while host.command(&umem, 0x10).status() == 0 {
        made += 1;
        assert!(made < 100_000, "nobody pays");
    }
    assert!(made > 0);
    assert_eq!(host.command(&umem, 0x10).status(), EXCEED_LIM);
    host.ok(&short(0xa06, uid), 0x10);
    // The places in the tables stay.
    assert!(host.nic.state().budget.used_bytes() < before + 80_000);
}
