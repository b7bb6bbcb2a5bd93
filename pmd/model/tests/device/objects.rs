//! Objects: CREATE, QUERY, MODIFY, DESTROY, and every way to be refused. Reference 4.2, 5.

use crate::common::objects::*;
use crate::common::{Host, be32, input, words};

const BAD_PARAM: u8 = 3;
const BAD_RESOURCE: u8 = 5;
const RESOURCE_BUSY: u8 = 6;
const EXCEED_LIM: u8 = 8;
const BAD_INDEX: u8 = 0xa;
const BAD_QP_STATE: u8 = 0x10;
const BAD_SIZE_OUTS_CQES: u8 = 0x40;
const BAD_INPUT_LEN: u8 = 0x50;

/// Sets bits of a word of an input.
fn with(bytes: &[u8], offset: usize, bits: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let word = be32(&bytes, offset) | bits;
    bytes[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
    bytes
}

/// Replaces a word of an input.
fn put(bytes: &[u8], offset: usize, word: u32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[offset..offset + 4].copy_from_slice(&word.to_be_bytes());
    bytes
}

fn short(opcode: u32, at8: u32) -> Vec<u8> {
    words(&[opcode << 16, 0, at8, 0])
}

/// Refuses each `(offset, bits set, status, field)`.
#[track_caller]
fn refuse_each(host: &mut Host, good: &[u8], cases: &[(usize, u32, u8, &str)]) {
    for (offset, bits, status, field) in cases {
        let found = host.refused(&with(good, *offset, *bits), *status);
        assert_eq!(found, *field, "bits {bits:#x} at {offset:#x}");
    }
}

#[test]
fn domains_and_uars_come_and_go() {
    let mut host = Host::up();
    for (alloc, dealloc) in [(0x800, 0x801), (0x802, 0x803), (0x816, 0x817), (0x80e, 0x80f)] {
        let first = host.short(alloc, 0);
        let second = host.short(alloc, 0);
        assert_ne!(first, second);
        host.short(dealloc, first);
        host.refused(&short(dealloc, first), BAD_RESOURCE);
        host.short(dealloc, second);
    }
    assert!(host.nic.state().objects.is_empty());
}

#[test]
fn the_first_uar_and_eq_have_the_numbers_of_real_hardware() {
    let mut host = Host::up();
    let base = host.base();
    assert_eq!((base.uar, base.eqn), (0x10, 0x10));
}

#[test]
fn an_object_in_use_is_busy() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let rqtn = host.ok(&create_rqt(4, &[rqn, rqn]), 0x10).word(8);
    let tirn = host.ok(&create_indirect_tir(base.td, rqtn), 0x10).word(8);
    let busy = [
        (short(0x803, base.uar), "uar"),
        (short(0x302, base.eqn), "eq_number"),
        (short(0x401, base.cqn), "cqn"),
        (short(0x801, base.pd), "pd"),
        (short(0x817, base.td), "transport_domain"),
        (short(0x914, tisn), "tisn"),
        (short(0x90a, rqn), "rqn"),
        (short(0x918, rqtn), "rqtn"),
    ];
    for (command, field) in &busy {
        assert_eq!(host.refused(command, RESOURCE_BUSY), *field);
    }
    for (opcode, number) in [
        (0x902, tirn),
        (0x918, rqtn),
        (0x90a, rqn),
        (0x906, sqn),
        (0x914, tisn),
        (0x401, base.cqn),
        (0x302, base.eqn),
        (0x803, base.uar),
        (0x801, base.pd),
        (0x817, base.td),
    ] {
        host.short(opcode, number);
    }
    assert!(host.nic.state().objects.is_empty(), "everything is gone");
}

#[test]
fn destroying_what_is_not_there_is_bad_resource() {
    let mut host = Host::up();
    for opcode in [
        0x202, 0x302, 0x401, 0x801, 0x803, 0x80f, 0x817, 0x902, 0x906, 0x90a, 0x90e, 0x914, 0x918,
        0x772,
    ] {
        let destroy = if opcode == 0x772 { short(opcode, 7) } else { short(opcode, 0x77) };
        host.refused(&destroy, BAD_RESOURCE);
    }
    for opcode in [0x201, 0x303, 0x402, 0x903, 0x907, 0x90b, 0x90f, 0x915, 0x919] {
        host.refused(&short(opcode, 0x77), BAD_RESOURCE);
    }
}

#[test]
fn create_eq_checks_its_context() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let page = host.ring(4096);
    let good = create_eq(uar, 4, 7, 0x400, page);
    host.ok(&good, 0x10);
    refuse_each(
        &mut host,
        &good,
        &[
            (0x1c, 0x17 << 24, BAD_PARAM, "log_eq_size"),
            (0x1c, 0x20, BAD_RESOURCE, "uar_page"),
            (0x24, 8, BAD_PARAM, "intr"),
            (0x10, 1 << 18, BAD_PARAM, "ec"),
            (0x10, 0xb << 8, BAD_PARAM, "st"),
            (0x10, 0xa << 28, BAD_PARAM, "status"),
            (0x14, 1, BAD_PARAM, "reserved bits (offset, bits)"),
            (0x114, 0x10, BAD_PARAM, "pas"),
            (0x18, 0x3f << 6, BAD_INPUT_LEN, "pas"),
        ],
    );
    let two_pages = create_eq(uar, 7, 0, 0, page);
    assert_eq!(host.refused(&two_pages, BAD_INPUT_LEN), "pas");
}

#[test]
fn query_eq_gives_the_context_back() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let page = host.ring(4096);
    let eqn = host.ok(&create_eq(uar, 4, 7, 0x200, page), 0x10).word(8);
    let query = host.ok(&short(0x303, eqn), 0x118);
    assert_eq!((query.word(0x1c), query.word(0x24), query.word(0x5c)), (4 << 24 | uar, 7, 0x200));
    assert_eq!(query.word(0x10) >> 8 & 0xf, 0xa, "not armed");
    assert_eq!(u64::from_be_bytes(query.output[0x110..].try_into().expect("eight")), page);
}

#[test]
fn create_cq_checks_its_context() {
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let good = create_cq(base.uar, base.eqn, 5, record, page);
    host.ok(&good, 0x10);
    refuse_each(
        &mut host,
        &good,
        &[
            (0x1c, 0x12 << 24, BAD_PARAM, "log_cq_size"),
            (0x1c, 0x20, BAD_RESOURCE, "uar_page"),
            (0x24, 0x80, BAD_RESOURCE, "c_eqn"),
            (0x10, 2 << 21, BAD_PARAM, "cqe_sz"),
            (0x10, 1 << 25, BAD_RESOURCE, "dbr_umem_id"),
            (0x10, 1 << 24, BAD_PARAM, "apu_cq"),
            (0x10, 1 << 18, BAD_PARAM, "scqe_break_moderation_en"),
            (0x10, 1 << 14 | 1 << 20, BAD_PARAM, "cqe_comp_en"),
            (0x10, 1, BAD_PARAM, "cqe_compression_layout"),
            (0x10, 2 << 12, BAD_PARAM, "mini_cqe_res_format"),
            (0x10, 2 << 15, BAD_PARAM, "cq_period_mode"),
            (0x10, 9 << 8, BAD_PARAM, "status or st"),
            (0x4c, 4, BAD_PARAM, "dbr_addr"),
            (0x5c, 1 << 31, BAD_RESOURCE, "wq_umem_id"),
            (0x114, 0x800, BAD_PARAM, "pas"),
        ],
    );
    let no_record = put(&put(&good, 0x48, 0), 0x4c, 0);
    assert_eq!(host.refused(&no_record, BAD_PARAM), "dbr_addr");
    let mut no_pages = good.clone();
    no_pages.truncate(0x110);
    assert_eq!(host.refused(&no_pages, BAD_INPUT_LEN), "pas");
}

#[test]
fn modify_cq_changes_moderation_and_eq() {
    let mut host = Host::up();
    let base = host.base();
    let page = host.ring(4096);
    let other_eq = host.ok(&create_eq(base.uar, 4, 1, 0, page), 0x10).word(8);
    let modify = |select: u32, set: &[(usize, u32)]| {
        let mut all = vec![(0, 0x0403_0000), (8, base.cqn), (0xc, select)];
        all.extend(set);
        input(0x110, &all)
    };
    host.ok(&modify(0x17, &[(0x10, 1 << 17 | 1 << 15), (0x20, 50 << 16 | 9)]), 0x10);
    let cq = host.nic.state().objects.cqs.get(base.cqn).expect("exists");
    assert_eq!((cq.period_us, cq.max_count), (50, 9));
    assert!(cq.overrun_ignore && cq.period_from_cqe);
    assert_eq!(host.ok(&short(0x402, base.cqn), 0x110).word(0x20), 50 << 16 | 9);
    host.ok(&modify(8, &[(0x24, other_eq)]), 0x10);
    host.short(0x302, base.eqn);
    assert_eq!(host.refused(&short(0x302, other_eq), RESOURCE_BUSY), "eq_number");
    assert_eq!(host.refused(&modify(0x20, &[]), BAD_PARAM), "modify_field_select");
    assert_eq!(host.refused(&modify(8, &[(0x24, 0x55)]), BAD_RESOURCE), "c_eqn");
    let absent = put(&modify(1, &[]), 8, 0x99_9999);
    assert_eq!(host.refused(&absent, BAD_RESOURCE), "cqn");
}

#[test]
fn a_cq_cannot_shrink_below_what_is_outstanding() {
    let mut host = Host::up();
    let base = host.base();
    let page = host.ring(4096);
    let resize = |log_size: u32, select: u32| {
        let set = [(0, 0x0403_0000), (4, 1), (8, base.cqn), (0xc, select), (0x1c, log_size << 24)];
        let mut bytes = input(0x110, &set);
        bytes.extend(page.to_be_bytes());
        bytes
    };
    assert_eq!(host.refused(&resize(6, 0), BAD_PARAM), "resize_field_select");
    assert_eq!(host.refused(&resize(6, 9), BAD_PARAM), "resize_field_select");
    assert_eq!(host.refused(&resize(7, 7), BAD_INPUT_LEN), "pas");
    host.ok(&resize(6, 7), 0x10);
    let cq = host.nic.state().objects.cqs.get(base.cqn).expect("exists");
    assert_eq!((cq.log_size, cq.memory.locate(0)), (6, page));
    // The record says that the driver is far behind: 40 entries do not fit into 32.
    let record = host.rings.iter().find(|ring| ring.iova() == cq.dbr_addr).expect("the record");
    record.store_be32(0, cq.producer.wrapping_sub(40) & 0xff_ffff);
    assert_eq!(host.refused(&resize(5, 7), BAD_SIZE_OUTS_CQES), "log_cq_size");
}

#[test]
fn create_sq_checks_its_context() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let good = create_sq(&base, tisn, 6, record, page);
    host.ok(&good, 0x10);
    refuse_each(
        &mut host,
        &good,
        &[
            (0x20, 1 << 20, BAD_PARAM, "state"),
            (0x20, 1 << 30, BAD_PARAM, "cd_master"),
            (0x20, 1 << 29, BAD_PARAM, "fre"),
            (0x20, 1 << 19, BAD_PARAM, "reg_umr"),
            (0x20, 1 << 18, BAD_PARAM, "allow_swp"),
            (0x20, 1 << 17, BAD_PARAM, "hairpin"),
            (0x20, 4 << 24, BAD_PARAM, "min_wqe_inline_mode"),
            (0x20, 2 << 4, BAD_PARAM, "ts_format"),
            (0x28, 0x80_0000, BAD_RESOURCE, "cqn"),
            (0x3c, 5, BAD_PARAM, "packet_pacing_rate_limit_index"),
            (0x40, 2 << 16, BAD_PARAM, "tis_lst_sz"),
            (0x4c, 0x80_0000, BAD_RESOURCE, "tis_num_0"),
            (0x50, 2 << 28, BAD_PARAM, "wq_type"),
            (0x50, 1 << 27, BAD_PARAM, "wq_signature"),
            (0x50, 2 << 25, BAD_PARAM, "end_padding_mode"),
            (0x58, 0x80_0000, BAD_RESOURCE, "pd"),
            (0x5c, 0x80_0000, BAD_RESOURCE, "uar_page"),
            (0x64, 4, BAD_PARAM, "dbr_addr"),
            (0x70, 0x10, BAD_PARAM, "log_wq_sz"),
            (0x70, 1 << 16, BAD_INPUT_LEN, "pas"),
            (0x74, 1 << 31, BAD_RESOURCE, "dbr_umem_id"),
            (0x74, 1 << 30, BAD_RESOURCE, "wq_umem_id"),
            (0x74, 1, BAD_PARAM, "log_wqe_stride_size"),
            (0x74, 1 << 8, BAD_PARAM, "log_wqe_num_of_strides"),
            (0x8c, 1 << 31, BAD_PARAM, "shampo_enable"),
        ],
    );
    let narrow = put(&good, 0x70, 4 << 16 | 6);
    assert_eq!(host.refused(&narrow, BAD_PARAM), "log_wq_stride");
    // Without a TIS list a queue sends no packets; it may exist.
    let without_tis = put(&put(&good, 0x40, 0), 0x4c, 0);
    host.ok(&without_tis, 0x10);
}

#[test]
fn create_rq_checks_its_context() {
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let good = create_rq(&base, 5, record, page);
    host.ok(&good, 0x10);
    refuse_each(
        &mut host,
        &good,
        &[
            (0x20, 1 << 20, BAD_PARAM, "state"),
            (0x20, 1 << 30, BAD_PARAM, "delay_drop_en"),
            (0x20, 1 << 29, BAD_PARAM, "scatter_fcs"),
            (0x20, 1 << 17, BAD_PARAM, "hairpin"),
            (0x20, 2 << 24, BAD_PARAM, "mem_rq_type"),
            (0x20, 1 << 24, BAD_RESOURCE, "rmpn"),
            (0x28, 0x80_0000, BAD_RESOURCE, "cqn"),
            (0x2c, 7 << 24, BAD_RESOURCE, "counter_set_id"),
            (0x58, 0x80_0000, BAD_RESOURCE, "pd"),
            (0x70, 0xf << 16, BAD_INPUT_LEN, "pas"),
        ],
    );
    for (stride, log_size) in [(3, 5), (10, 2)] {
        let odd = put(&good, 0x70, stride << 16 | log_size);
        assert_eq!(host.refused(&odd, BAD_PARAM), "log_wq_stride");
    }
    // Linked entries need room for the next segment.
    let linked = put(&put(&good, 0x50, 0), 0x70, 4 << 16 | 5);
    assert_eq!(host.refused(&linked, BAD_PARAM), "log_wq_stride");
    // Striding: 2^(9 + 2) strides of 2^(6 + 1) bytes.
    let striding = with(&put(&put(&good, 0x50, 2 << 28), 0x70, 5 << 16 | 5), 0x74, 2 << 8 | 1);
    let rqn = host.ok(&striding, 0x10).word(8);
    let rq = host.nic.state().objects.rqs.get(rqn).expect("exists");
    let ferrocx_model::objects::RqMemory::Inline(wq) = &rq.memory else { panic!("own ring") };
    assert_eq!((wq.log_strides_per_wqe, wq.log_stride_bytes), (11, 7));
    assert_eq!(host.refused(&with(&striding, 0x74, 8 << 8), BAD_PARAM), "log_wqe_num_of_strides");
}

#[test]
fn a_queue_in_error_may_be_named_by_the_state_that_its_driver_gave_it() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    for (opcode, number) in [(0x905, sqn), (0x909, rqn)] {
        let step = |from, to| modify_queue(opcode, number, from, to);
        for known in [1, 3] {
            host.ok(&step(0, 1), 0x10);
            host.ok(&step(1, 3), 0x10);
            assert_eq!(host.refused(&step(0, 0), BAD_QP_STATE), "current state");
            assert_eq!(host.refused(&step(known, 1), BAD_PARAM), "state");
            host.ok(&step(known, 0), 0x10);
        }
    }
}

/// A request that no queue carries out ends the queue, and its driver need not know of it yet.
#[test]
fn a_send_queue_that_failed_by_itself_is_closed_by_the_state_that_its_driver_gave_it() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    for (known, next) in [(1, 0), (1, 3), (3, 0), (3, 3)] {
        let (record, page) = (host.ring(64), host.ring(4096));
        let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
        let state = |host: &mut Host| host.ok(&short(0x907, sqn), 0x110).word(0x20) >> 20 & 0xf;
        let post = |host: &mut Host, opcode: u32| {
            let [.., record, page] = &host.rings[..] else { panic!("two rings") };
            page.copy_in(0, &words(&[opcode, sqn << 8 | 1, 8, 0]));
            record.copy_in(4, &1_u32.to_be_bytes());
            ring(host, base.uar, sqn);
            host.step();
            host.step();
        };
        host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
        assert_eq!(state(&mut host), 1);
        post(&mut host, 0x77);
        assert_eq!(host.nic.log().last().map(|refusal| refusal.field), Some("ctrl.opcode"));
        assert_eq!(state(&mut host), 3, "it failed by itself");
        assert_eq!(host.refused(&modify_queue(0x905, sqn, 0, 0), BAD_QP_STATE), "current state");
        assert_eq!(host.refused(&modify_queue(0x905, sqn, known, 1), BAD_PARAM), "state");
        host.ok(&modify_queue(0x905, sqn, known, next), 0x10);
        assert_eq!(state(&mut host), next);
        // It begins anew, and carries out a NOP in the place of what it failed at.
        if next == 3 {
            host.ok(&modify_queue(0x905, sqn, 3, 0), 0x10);
        }
        host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
        post(&mut host, 0);
        let executed = host.nic.state().objects.sqs.get(sqn).map(|sq| sq.executed);
        assert_eq!((state(&mut host), executed), (1, Some(1)));
        host.ok(&short(0x906, sqn), 0x10);
    }
}

#[test]
fn queues_change_state_as_the_manual_says() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    for (opcode, query, number) in [(0x905, 0x907, sqn), (0x909, 0x90b, rqn)] {
        let step = |from, to| modify_queue(opcode, number, from, to);
        assert_eq!(host.refused(&step(1, 1), BAD_QP_STATE), "current state");
        assert_eq!(host.refused(&step(0, 3), BAD_PARAM), "state");
        assert_eq!(host.refused(&step(0, 2), BAD_PARAM), "state");
        for (from, to) in [(0, 0), (0, 1), (1, 1), (1, 3), (3, 3), (3, 0), (0, 1), (1, 0)] {
            host.ok(&step(from, to), 0x10);
            assert_eq!(host.ok(&short(query, number), 0x110).word(0x20) >> 20 & 0xf, to);
        }
        host.ok(&step(0, 1), 0x10);
        host.ok(&step(1, 3), 0x10);
        assert_eq!(host.refused(&step(3, 1), BAD_PARAM), "state");
        assert_eq!(host.refused(&modify_queue(opcode, 0x77, 0, 1), BAD_RESOURCE).len(), 3);
    }
    let pacing = with(&modify_queue(0x905, sqn, 3, 3), 0x14, 1);
    assert_eq!(host.refused(&pacing, BAD_PARAM), "modify_bitmask");
    let fcs = with(&modify_queue(0x909, rqn, 3, 3), 0x14, 4);
    assert_eq!(host.refused(&fcs, BAD_PARAM), "modify_bitmask");
    let vsd = with(&with(&modify_queue(0x909, rqn, 3, 3), 0x14, 2), 0x20, 1 << 28);
    host.ok(&vsd, 0x10);
    assert!(host.nic.state().objects.rqs.get(rqn).is_some_and(|rq| rq.vlan_strip_disable));
}

#[test]
fn a_receive_memory_pool_serves_queues() {
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let good = create_rmp(&base, 4, record, page);
    let rmpn = host.ok(&good, 0x10).word(8);
    assert_eq!(host.refused(&put(&good, 0x20, 0), BAD_PARAM), "state");
    assert_eq!(host.refused(&with(&good, 0x24, 1 << 31), BAD_PARAM), "wq_type");
    let rq = input(0x110, &[(0, 0x0908_0000), (0x20, 1 << 24), (0x28, base.cqn), (0x30, rmpn)]);
    let rqn = host.ok(&rq, 0x10).word(8);
    assert_eq!(host.refused(&short(0x90e, rmpn), RESOURCE_BUSY), "rmpn");
    let limit = input(
        0x110,
        &[(0, 0x090d_0000), (8, 1 << 28 | rmpn), (0x14, 1), (0x20, 1 << 20), (0x54, 5)],
    );
    host.ok(&limit, 0x10);
    assert_eq!(host.ok(&short(0x90f, rmpn), 0x110).word(0x54) & 0xffff, 5);
    host.short(0x90a, rqn);
    host.short(0x90e, rmpn);
}

#[test]
fn tir_tis_and_rqt_check_their_contexts() {
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let tir = create_direct_tir(base.td, rqn);
    let tirn = host.ok(&tir, 0x10).word(8);
    refuse_each(
        &mut host,
        &tir,
        &[
            (0x24, 2 << 28, BAD_PARAM, "disp_type"),
            (0x24, 1 << 27, BAD_PARAM, "tls_en"),
            (0x24, 1 << 28, BAD_RESOURCE, "indirect_table"),
            (0x30, 1 << 8, BAD_PARAM, "packet_merge_mask"),
            (0x3c, 0x80_0000, BAD_RESOURCE, "inline_rqn"),
            (0x40, 1 << 29, BAD_PARAM, "tunneled_offload_en"),
            (0x44, 3 << 28, BAD_PARAM, "rx_hash_fn"),
            (0x44, 0x80_0000, BAD_RESOURCE, "transport_domain"),
            (0x70, 0x20, BAD_PARAM, "rx_hash_field_selector_outer"),
            (0x74, 1, BAD_PARAM, "rx_hash_field_selector_inner"),
        ],
    );
    let modify = |mask: u32, set: &[(usize, u32)]| {
        let mut all = vec![(0, 0x0901_0000), (8, tirn), (0x14, mask)];
        all.extend(set);
        input(0x110, &all)
    };
    host.ok(&modify(0x14, &[(0x44, 2 << 28 | 3 << 24), (0x70, 0xf)]), 0x10);
    let query = host.ok(&short(0x903, tirn), 0x110);
    assert_eq!((query.word(0x44) >> 24, query.word(0x70)), (0x23, 0xf));
    assert_eq!(host.refused(&modify(2, &[]), BAD_PARAM), "bitmask");
    assert_eq!(host.refused(&modify(1, &[(0x30, 1 << 8)]), BAD_PARAM), "packet_merge_mask");

    let tis = create_tis(base.td);
    let tisn = host.ok(&tis, 0x10).word(8);
    refuse_each(
        &mut host,
        &tis,
        &[
            (0x20, 1 << 30, BAD_PARAM, "tls_en"),
            (0x20, 2 << 24, BAD_PARAM, "lag_tx_port_affinity"),
            (0x44, 0x80_0000, BAD_RESOURCE, "transport_domain"),
            (0x48, 1, BAD_PARAM, "underlay_qpn"),
        ],
    );
    host.ok(&input(0xc0, &[(0, 0x0913_0000), (8, tisn), (0x14, 1), (0x20, 6 << 16)]), 0x10);
    // QUERY_TIS answers at 0x10, where its siblings answer at 0x20.
    assert_eq!(host.ok(&short(0x915, tisn), 0xb0).word(0x10), 6 << 16);

    let rqt = create_rqt(4, &[rqn, rqn]);
    let rqtn = host.ok(&rqt, 0x10).word(8);
    assert_eq!(host.refused(&create_rqt(0x1000, &[rqn]), BAD_PARAM), "rqt_max_size");
    assert_eq!(host.refused(&create_rqt(0, &[]), BAD_PARAM), "rqt_max_size");
    assert_eq!(host.refused(&create_rqt(4, &[]), BAD_PARAM), "rqt_actual_size");
    assert_eq!(host.refused(&create_rqt(4, &[rqn; 3]), BAD_PARAM), "rqt_actual_size");
    assert_eq!(host.refused(&create_rqt(1, &[rqn; 2]), BAD_PARAM), "rqt_actual_size");
    assert_eq!(host.refused(&create_rqt(4, &[rqn + 1]), BAD_RESOURCE), "rq_num");
    assert_eq!(host.refused(&create_rqt(4, &[rqn | 1 << 31]), BAD_PARAM), "rq_num");
    assert_eq!(host.refused(&put(&rqt, 0x38, 4), BAD_INPUT_LEN), "rq_num");
    let mut relist = input(0x110, &[(0, 0x0917_0000), (8, rqtn), (0x14, 1), (0x38, 4)]);
    relist.extend(words(&[rqn; 4]));
    host.ok(&relist, 0x10);
    let query = host.ok(&short(0x919, rqtn), 0x120);
    assert_eq!((query.word(0x34), query.word(0x38), query.word(0x11c)), (4, 4, rqn));
}

#[test]
fn create_mkey_checks_its_context_and_list() {
    let mut host = Host::up();
    let pd = host.short(0x800, 0);
    let pa = create_pa_mkey(pd, 0x42);
    let index = host.ok(&pa, 0x10).word(8);
    assert_ne!(index, 0);
    assert_eq!(host.ok(&short(0x201, index), 0x110).word(0x14), 0xffff_ff42);
    assert_eq!(host.refused(&short(0x801, pd), RESOURCE_BUSY), "pd");
    refuse_each(
        &mut host,
        &pa,
        &[
            (0x0c, 1 << 30, BAD_PARAM, "access_mode"),
            (0x10, 1 << 26, BAD_PARAM, "access_mode"),
            (0x10, 1 << 30, BAD_PARAM, "free"),
            (0x10, 1 << 4, BAD_PARAM, "ma_translation_mode"),
            (0x10, 1 << 18, BAD_PARAM, "relaxed_ordering"),
            (0x1c, 1 << 30, BAD_PARAM, "bsf_en"),
            (0x1c, 0x80_0000, BAD_RESOURCE, "pd"),
            (0x60, 1, BAD_INPUT_LEN, "translations_octword_actual_size"),
        ],
    );
    let wraps = put(&put(&with(&pa, 0x20, 0xffff_ffff), 0x1c, pd), 0x28, 0xffff_ffff);
    assert_eq!(host.refused(&wraps, BAD_PARAM), "len");
    host.short(0x202, index);
    host.short(0x801, pd);
}

/// CREATE_MKEY with MTTs: start, length, octwords, log page size.
fn mtt_mkey(pd: u32, start: u64, len: u64, log_page_size: u32, pages: &[u64]) -> Vec<u8> {
    let octwords = pages.len().div_ceil(2) as u32;
    let mut bytes = input(
        0x110,
        &[
            (0, 0x0200_0000),
            (0x10, 1 << 11 | 1 << 10 | 1 << 8),
            (0x14, 0xffff_ff00),
            (0x1c, pd),
            (0x20, (start >> 32) as u32),
            (0x24, start as u32),
            (0x28, (len >> 32) as u32),
            (0x2c, len as u32),
            (0x44, octwords),
            (0x48, log_page_size),
            (0x60, octwords),
        ],
    );
    bytes.extend(pages.iter().flat_map(|page| page.to_be_bytes()));
    bytes.resize(0x110 + octwords as usize * 16, 0);
    bytes
}

#[test]
fn an_mtt_key_needs_a_page_for_every_byte() {
    let mut host = Host::up();
    let pd = host.short(0x800, 0);
    host.ok(&mtt_mkey(pd, 0x1000, 0x3000, 12, &[0x7000, 0x8000, 0x9000]), 0x10);
    let starts_inside = mtt_mkey(pd, 0x1800, 0x3000, 12, &[0x7000, 0x8000]);
    assert_eq!(host.refused(&starts_inside, BAD_INPUT_LEN), "klm_pas_mtt");
    let odd = mtt_mkey(pd, 0, 0x1000, 12, &[0x7008]);
    assert_eq!(host.refused(&odd, BAD_PARAM), "klm_pas_mtt");
    let small = mtt_mkey(pd, 0, 0x1000, 11, &[0x7000]);
    assert_eq!(host.refused(&small, BAD_PARAM), "log_page_size");
    let list = mtt_mkey(pd, 0, 0x1000, 12, &[0x7000, 0x8000, 0x9000]);
    assert_eq!(host.refused(&put(&list, 0x44, 1), BAD_PARAM), "translations_octword_actual_size");
}

#[test]
fn steering_objects_check_what_they_name() {
    let mut host = Host::up();
    let base = host.base();
    let (record, page) = (host.ring(64), host.ring(4096));
    let rqn = host.ok(&create_rq(&base, 4, record, page), 0x10).word(8);
    let tirn = host.ok(&create_direct_tir(base.td, rqn), 0x10).word(8);
    let table = host.ok(&create_flow_table(3, 2), 0x10).word(8);
    refuse_each(
        &mut host,
        &create_flow_table(3, 2),
        &[
            (0x8, 1, BAD_PARAM, "vport_number"),
            (0x10, 1 << 24, BAD_PARAM, "table_type"),
            (0x18, 0x17, BAD_PARAM, "log_size"),
            (0x18, 0x80 << 16, BAD_PARAM, "level"),
            (0x18, 1 << 30, BAD_PARAM, "flow_table_context"),
            (0x18, 2 << 24, BAD_PARAM, "table_miss_action"),
            (0x18, 1 << 24, BAD_RESOURCE, "table_miss_id"),
        ],
    );
    let group = host.ok(&create_flow_group(table, 0, 1), 0x10).word(8);
    let overlapping = create_flow_group(table, 1, 2);
    assert_eq!(host.refused(&overlapping, BAD_PARAM), "start_flow_index");
    assert_eq!(host.refused(&create_flow_group(table, 2, 4), BAD_INDEX), "end_flow_index");
    assert_eq!(host.refused(&create_flow_group(table, 3, 2), BAD_INDEX), "end_flow_index");
    let good = create_flow_group(table, 2, 3);
    let inner = with(&good, 0xc0, 1);
    assert_eq!(host.refused(&inner, BAD_PARAM), "match_criteria offset");
    assert_eq!(host.refused(&put(&good, 0x3c, 0), BAD_PARAM), "match_criteria offset");
    assert_eq!(host.refused(&put(&good, 0x3c, 4), BAD_PARAM), "match_criteria_enable");
    let second = host.ok(&good, 0x10).word(8);

    let entry = set_fte(table, group, 1, tirn);
    host.ok(&entry, 0x10);
    refuse_each(
        &mut host,
        &entry,
        &[
            (0x18, 1 << 31, BAD_PARAM, "ignore_flow_level"),
            (0x20, 4, BAD_INDEX, "flow_index"),
            (0x44, second | 2, BAD_PARAM, "group_id"),
            (0x4c, 2, BAD_PARAM, "action"),
            (0x4c, 0x10, BAD_PARAM, "action"),
            (0x4c, 8, BAD_PARAM, "flow_counter_list_size"),
            (0x50, 1 << 31, BAD_PARAM, "extended_destination"),
            (0x50, 2, BAD_INPUT_LEN, "destination_list_size"),
            (0x50, 0x80, EXCEED_LIM, "destination_list_size"),
            (0x340, 4 << 24, BAD_PARAM, "destination_type"),
            (0x340, 0x80_0000, BAD_RESOURCE, "destination_id"),
        ],
    );
    assert_eq!(host.refused(&put(&entry, 0x50, 0), BAD_PARAM), "destination_list_size");
    let query = host.ok(&input(0x40, &[(0, 0x0937_0000), (0x14, table), (0x20, 1)]), 0x348);
    assert_eq!((query.word(0x4c), query.word(0x340)), (4, 2 << 24 | tirn));

    // What is named cannot go.
    assert_eq!(host.refused(&short(0x902, tirn), RESOURCE_BUSY), "tirn");
    let destroy_group = input(0x40, &[(0, 0x0934_0000), (0x14, table), (0x18, group)]);
    assert_eq!(host.refused(&destroy_group, RESOURCE_BUSY), "group_id");
    let destroy_table = input(0x40, &[(0, 0x0931_0000), (0x14, table)]);
    assert_eq!(host.refused(&destroy_table, RESOURCE_BUSY), "table_id");
    let delete = input(0x40, &[(0, 0x0938_0000), (0x14, table), (0x20, 1)]);
    host.ok(&delete, 0x10);
    assert_eq!(host.refused(&delete, BAD_RESOURCE), "flow_index");
    host.ok(&destroy_group, 0x10);
    assert_eq!(host.refused(&destroy_group, BAD_RESOURCE), "group_id");
    host.ok(&input(0x40, &[(0, 0x0934_0000), (0x14, table), (0x18, second)]), 0x10);
    host.ok(&destroy_table, 0x10);
    assert_eq!(host.refused(&destroy_table, BAD_RESOURCE), "table_id");
}

#[test]
fn tables_lead_upwards_only() {
    let mut host = Host::up();
    let low = host.ok(&create_flow_table(1, 0), 0x10).word(8);
    let high = host.ok(&create_flow_table(2, 0), 0x10).word(8);
    let miss = |id: u32, to: u32| {
        let set = [(0, 0x093c_0000), (0xc, 1), (0x14, id), (0x18, 1 << 24), (0x1c, to)];
        input(0x40, &set)
    };
    host.ok(&miss(low, high), 0x10);
    assert_eq!(host.refused(&miss(high, low), BAD_PARAM), "table_miss_id");
    let group = host.ok(&create_flow_group(high, 0, 0), 0x10).word(8);
    let mut down = set_fte(high, group, 0, 0);
    down[0x340..0x344].copy_from_slice(&(1 << 24 | low).to_be_bytes());
    assert_eq!(host.refused(&down, BAD_PARAM), "destination_id");
    let query = host.ok(&input(0x40, &[(0, 0x0932_0000), (0x14, low)]), 0x40);
    assert_eq!((query.word(0x18) >> 24, query.word(0x1c)), (1, high));
    let destroy = |id: u32| input(0x40, &[(0, 0x0931_0000), (0x14, id)]);
    assert_eq!(host.refused(&destroy(high), RESOURCE_BUSY), "table_id");
}

#[test]
fn the_root_is_set_and_disconnected() {
    let mut host = Host::up();
    let table = host.ok(&create_flow_table(1, 0), 0x10).word(8);
    let root = |op_mod: u32, id: u32| input(0x40, &[(0, 0x092f_0000), (4, op_mod), (0x14, id)]);
    assert_eq!(host.refused(&root(1, table), 9), "table_id");
    host.ok(&root(0, table), 0x10);
    assert_eq!(host.nic.state().objects.rx_root, Some(table));
    host.ok(&root(1, table), 0x10);
    assert_eq!(host.nic.state().objects.rx_root, None);
    assert_eq!(host.refused(&root(0, 0x99), BAD_RESOURCE), "table_id");
}

#[test]
fn a_table_of_four_million_entries_costs_nothing() {
    let mut host = Host::up();
    for _ in 0..100 {
        host.ok(&create_flow_table(1, 0x16), 0x10);
    }
    assert_eq!(host.nic.state().objects.flow_tables.len(), 100);
}

#[test]
fn flow_counters_count_for_an_entry() {
    let mut host = Host::up();
    let counter = host.short(0x939, 0);
    let table = host.ok(&create_flow_table(1, 0), 0x10).word(8);
    let group = host.ok(&create_flow_group(table, 0, 0), 0x10).word(8);
    // Drop and count.
    let mut entry = put(&put(&set_fte(table, group, 0, 0), 0x4c, 2 | 8), 0x50, 0);
    entry[0x57] = 1;
    entry[0x340..0x344].copy_from_slice(&counter.to_be_bytes());
    host.ok(&entry, 0x10);
    let dealloc = short(0x93a, counter);
    assert_eq!(host.refused(&dealloc, RESOURCE_BUSY), "flow_counter_id");
    let query = input(0x20, &[(0, 0x093b_0000), (0x1c, counter)]);
    assert_eq!(host.ok(&query, 0x20).output[0x10..], [0; 16]);
    host.ok(&input(0x40, &[(0, 0x0938_0000), (0x14, table)]), 0x10);
    host.ok(&dealloc, 0x10);
    assert_eq!(host.refused(&query, BAD_RESOURCE), "flow_counter_id");
    // Who asks for many gets zeros for those that are not there: Linux asks for four at a time.
    let four = |from: u32| input(0x20, &[(0, 0x093b_0000), (0x18, 4), (0x1c, from)]);
    for from in [0, u32::MAX] {
        assert_eq!(host.ok(&four(from), 0x10 + 4 * 16).output[0x10..], [0; 64]);
    }
    let many = input(0x20, &[(0, 0x093b_0000), (0x18, 513), (0x1c, 0)]);
    assert_eq!(host.refused(&many, BAD_PARAM), "num_of_counters");
    let bulk = words(&[0x0939_0000, 0, 0, 1]);
    assert_eq!(host.refused(&bulk, BAD_PARAM), "flow_counter_bulk");
}

#[test]
fn a_bulk_of_flow_counters_is_one_object() {
    let mut host = Host::up();
    let caps = host.ok(&words(&[0x0100_0000, 1, 0, 0]), 0x1010);
    assert_eq!(caps.word(0x10 + 0x60) >> 8 & 0xff, 4, "flow_counter_bulk_alloc: 512");
    assert_eq!(caps.word(0x10 + 0x68) >> 16 & 0xff, 9, "log_max_flow_counter_bulk");
    let first = host.ok(&words(&[0x0939_0000, 0, 0, 4]), 0x10).word(8);
    let next = host.short(0x939, 0);
    assert_eq!(next, first + 512);
    let (table, last) = (host.ok(&create_flow_table(1, 0), 0x10).word(8), first + 511);
    let group = host.ok(&create_flow_group(table, 0, 0), 0x10).word(8);
    let mut entry = put(&put(&set_fte(table, group, 0, 0), 0x4c, 2 | 8), 0x50, 0);
    entry[0x57] = 1;
    entry[0x340..0x344].copy_from_slice(&last.to_be_bytes());
    host.ok(&entry, 0x10);
    // All of it is read at once, and goes at once or not at all.
    let query = input(0x20, &[(0, 0x093b_0000), (0x18, 512), (0x1c, first)]);
    assert_eq!(host.ok(&query, 0x10 + 512 * 16).output.len(), 0x10 + 512 * 16);
    assert_eq!(host.refused(&short(0x93a, last), BAD_RESOURCE), "flow_counter_id");
    assert_eq!(host.refused(&short(0x93a, first), RESOURCE_BUSY), "flow_counter_id");
    host.ok(&input(0x40, &[(0, 0x0938_0000), (0x14, table)]), 0x10);
    host.ok(&short(0x93a, first), 0x10);
    assert_eq!(host.ok(&query, 0x10 + 512 * 16).output[0x10..], [0; 512 * 16], "none is there");
    host.ok(&short(0x93a, next), 0x10);
    for _ in 0..8 {
        host.ok(&words(&[0x0939_0000, 0, 0, 4]), 0x10);
    }
    assert_eq!(host.command(&words(&[0x0939_0000, 0, 0, 4]), 0x10).status(), EXCEED_LIM);
}

#[test]
fn q_counters_run_out() {
    let mut host = Host::up();
    for id in 0..0xff {
        assert_eq!(host.short(0x771, 0), id);
    }
    assert_eq!(host.refused(&short(0x771, 0), EXCEED_LIM), "counter_set_id");
    host.short(0x772, 5);
    assert_eq!(host.short(0x771, 0), 5);
    host.ok(&input(0x20, &[(0, 0x0773_0000), (0x1c, 5)]), 0x100);
    assert_eq!(
        host.refused(&input(0x20, &[(0, 0x0773_0000), (0x1c, 0xff)]), BAD_RESOURCE),
        "counter_set_id"
    );
}

#[test]
fn send_doorbells_in_shared_memory_are_seen_each_time() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
    let bell = |host: &Host, offset: u64| {
        host.bar.doorbell(u64::from(base.uar) * 4096 + offset).expect("a doorbell")
    };
    for (count, offset) in (1..).zip([0x800, 0x800, 0x900, 0xf00, 0x800]) {
        // The same value in the same register again is a new doorbell.
        bell(&host, offset).ring(u64::from(sqn << 8 | 1).to_be());
        host.step();
        host.step();
        assert_eq!(host.nic.state().counters.send_doorbells, count);
    }
    // Each was taken to the queue, which found its record behind.
    let field = |host: &Host| host.nic.log().last().map(|refusal| refusal.field);
    assert_eq!(field(&host), Some("send counter"));
    bell(&host, 0x800).ring(0x99_9900_u64.to_be());
    host.step();
    assert_eq!(field(&host), Some("sqn"));
}

/// Rings the doorbell of a page for a queue.
fn ring(host: &Host, page: u32, sqn: u32) {
    let bell = host.bar.doorbell(u64::from(page) * 4096 + 0x800).expect("a doorbell");
    bell.ring(u64::from(sqn << 8 | 1).to_be());
}

#[test]
fn a_page_among_many_is_looked_at_in_turn_and_then_in_every_step() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    (0..200).for_each(|_| {
        host.short(0x802, 0);
    });
    let rung = |host: &Host| host.nic.state().counters.send_doorbells;
    ring(&host, base.uar, sqn);
    // Eight pages a step.
    (0..26).for_each(|_| {
        host.step();
    });
    assert_eq!(rung(&host), 1);
    for count in 2..10 {
        ring(&host, base.uar, sqn);
        host.step();
        assert_eq!(rung(&host), count, "it was rung a moment ago");
    }
}

#[test]
fn a_page_is_looked_at_when_others_that_were_rung_are_gone() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    let others: Vec<u32> = (0..3).map(|_| host.short(0x802, 0)).collect();
    for &page in others.iter().chain(&[base.uar]) {
        ring(&host, page, sqn);
        host.step();
    }
    for page in others {
        host.short(0x803, page);
    }
    let rung = host.nic.state().counters.send_doorbells;
    ring(&host, base.uar, sqn);
    host.step();
    assert_eq!(host.nic.state().counters.send_doorbells, rung + 1);
}

#[test]
fn all_queues_of_a_rung_page_are_looked_at_and_only_some_in_a_step() {
    const QUEUES: usize = 150;
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let sqns: Vec<u32> = (0..QUEUES)
        .map(|_| {
            let (record, page) = (host.ring(64), host.ring(4096));
            let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
            host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
            sqn
        })
        .collect();
    let looks = |host: &Host| -> Vec<u64> {
        let sqs = &host.nic.state().objects.sqs;
        sqns.iter().map(|sqn| sqs.get(*sqn).expect("a queue").stats.doorbells).collect()
    };
    // The doorbell of the last queue is overwritten by that of the first, before anybody looks.
    ring(&host, base.uar, sqns[QUEUES - 1]);
    ring(&host, base.uar, sqns[0]);
    host.step();
    let first = looks(&host);
    assert_eq!(first[0], 1, "the one that the doorbell names");
    assert!(first.iter().sum::<u64>() <= 1 + 64, "{first:?}");
    (0..3).for_each(|_| {
        host.step();
    });
    assert!(looks(&host).iter().all(|looks| *looks >= 1));
    let total: u64 = looks(&host).iter().sum();
    (0..10).for_each(|_| {
        host.step();
    });
    assert_eq!(looks(&host).iter().sum::<u64>(), total, "until the next doorbell");
}

/// One that goes leaves its place in the list to another.
#[test]
fn no_queue_of_a_rung_page_is_passed_over_when_others_go() {
    const QUEUES: usize = 150;
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let mut sqns: Vec<u32> = (0..QUEUES)
        .map(|_| {
            let (record, page) = (host.ring(64), host.ring(4096));
            let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
            host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
            sqn
        })
        .collect();
    ring(&host, base.uar, sqns[0]);
    host.step();
    // Of those that were looked at, and of those that were not: first, middle and last ones.
    for at in [149, 140, 100, 75, 10, 0] {
        host.short(0x906, sqns.remove(at));
    }
    (0..4).for_each(|_| {
        host.step();
    });
    let sqs = &host.nic.state().objects.sqs;
    let looks = |sqn: &u32| sqs.get(*sqn).expect("a queue").stats.doorbells;
    assert!(sqns.iter().all(|sqn| looks(sqn) >= 1));
}

#[test]
fn a_uar_page_given_to_somebody_else_does_not_ring() {
    let mut host = Host::up();
    let uar = host.short(0x802, 0);
    let bell = host.bar.doorbell(u64::from(uar) * 4096 + 0x800).expect("a doorbell");
    host.short(0x803, uar);
    bell.ring(0x10_0001_u64.to_be());
    host.step();
    // The number comes back late; until then nobody looks at the page, and then it is cleared.
    let mut uars = Vec::new();
    for _ in 0..70 {
        let next = host.short(0x802, 0);
        uars.push(next);
        host.short(0x803, next);
    }
    assert!(uars.contains(&uar));
    host.step();
    assert_eq!(host.nic.log().total(), 0, "{:?}", host.nic.log().last());
}

#[test]
fn a_send_doorbell_through_another_page_is_refused() {
    let mut host = Host::up();
    let base = host.base();
    let tisn = host.ok(&create_tis(base.td), 0x10).word(8);
    let (record, page) = (host.ring(64), host.ring(4096));
    let sqn = host.ok(&create_sq(&base, tisn, 4, record, page), 0x10).word(8);
    host.ok(&modify_queue(0x905, sqn, 0, 1), 0x10);
    let other = host.short(0x802, 0);
    host.bar.write_be64(u64::from(base.uar) * 4096 + 0x800, u64::from(sqn << 8 | 1));
    host.step();
    let field = |host: &Host| host.nic.log().last().map(|refusal| refusal.field);
    assert_eq!(field(&host), Some("send counter"), "taken to the queue");
    host.bar.write_be64(u64::from(other) * 4096 + 0x800, u64::from(sqn << 8 | 1));
    host.step();
    assert_eq!(field(&host), Some("sqn"));
    // The rest of a BlueFlame copy rings nothing.
    let total = host.nic.state().counters.send_doorbells;
    host.bar.write_be64(u64::from(base.uar) * 4096 + 0x808, 1);
    host.step();
    assert_eq!(host.nic.state().counters.send_doorbells, total);
}
