//! Fast registration: binding, using, ending and binding again, through errors and flushes.

#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use crate::common;
use crate::common::{Two, ids, pattern, small, syndromes};
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PAGES: ListLayout = ListLayout::Pages { log_page: 12 };
const S: SendFlags = SendFlags::SIGNALED;
/// Signaled, and not told of before the next one.
const SM: SendFlags = SendFlags::SIGNALED.union(SendFlags::MORE);

fn sizes() -> QpConfig {
    QpConfig { fast_reg: true, ..small() }
}

fn pair(two: &Two) -> (Qp, Qp) {
    two.rc(&sizes())
}

fn reg(wr_id: u64, start: u64) -> FastReg {
    FastReg { wr_id, flags: S, start, access: ALL, remote_invalidate: true }
}

/// A list of `b`'s memory.
fn list(two: &Two, layout: ListLayout, pieces: &[std::ops::Range<usize>]) -> PageList {
    let mut list = two.b.context.alloc_page_list(layout, 64).unwrap();
    list.map(&two.b.memory, pieces).unwrap();
    list
}

/// The page list that a registration gave back.
fn into_list(wc: Wc<Buf>) -> PageList {
    match wc.returned {
        Returned::PageList(list) => list,
        other => panic!("{other:?}"),
    }
}

fn into_mr(wc: Wc<Buf>) -> FastRegMr {
    match wc.returned {
        Returned::Mr(mr) => mr,
        other => panic!("{other:?}"),
    }
}

/// Writes from `a` through a key of `b`; returns the syndrome.
fn write(two: &mut Two, qa: &mut Qp, qb: &mut Qp, to: RemoteAddr, bytes: &[u8]) -> u8 {
    qa.post_send_inline(&SendWr::signaled(1, SendOp::Write(to)), bytes).unwrap();
    let (done, _) = two.run(qa, qb);
    syndromes(&done)[0]
}

#[test]
fn lists_of_every_shape_and_length_translate_byte_by_byte() {
    let shapes: [(ListLayout, Vec<std::ops::Range<usize>>, u64); 5] = [
        (PAGES, vec![8192..12288, 0..100], 0x7000),
        (PAGES, vec![5000..8192, 40960..45056, 20480..20500], (1 << 40) + 5000 % 4096),
        // Nine pages: more than stand in the request.
        (PAGES, (0..9).map(|at| (8 - at) * 8192..(8 - at) * 8192 + 4096).collect(), 0),
        (ListLayout::Pieces, vec![3..10, 70_000..70_123, 0..1], 0x1_0000_0001),
        // Seven pieces: more than stand in the request.
        (ListLayout::Pieces, (0..7).map(|at| at * 100..at * 100 + 33).collect(), 5),
    ];
    for (layout, pieces, start) in shapes {
        let mut two = Two::new();
        let (mut qa, mut qb) = pair(&two);
        let mr = two.b.pd.alloc_mr(layout, 64).unwrap();
        let list = list(&two, layout, &pieces);
        let len: usize = pieces.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(list.len_bytes(), len as u64);
        let (rkey, before) = (mr.rkey(), list.len());
        let mr = qb.post_fast_reg(&reg(5, start), mr, list).unwrap();
        assert_eq!((mr.rkey(), mr.addr(), mr.len_bytes()), (rkey, start, len as u64));
        assert_eq!(qb.mr_state(&mr), MrState::Posted);
        let (_, done) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&done), done[0].opcode), (vec![(5, true)], WcOpcode::FastRegMr));
        assert_eq!(qb.mr_state(&mr), MrState::Valid);
        assert_eq!(into_list(done.into_iter().next().unwrap()).len(), before);
        let bytes = pattern(len, 9);
        for (at, part) in bytes.chunks(61).enumerate() {
            let to = mr.remote().at(at as u64 * 61);
            assert_eq!(write(&mut two, &mut qa, &mut qb, to, part), 0, "{layout:?}");
        }
        let got: Vec<u8> =
            pieces.iter().flat_map(|piece| two.b.read(piece.start, piece.len())).collect();
        assert_eq!(got, bytes, "{layout:?}");
        two.world.assert_clean();
    }
}

#[test]
fn page_sizes_up_to_a_gigabyte_are_told_to_the_device() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let mut mr = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let mut list = two.b.context.alloc_page_list(PAGES, 8).unwrap();
    for log_page in [12, 13, 16, 21, 30] {
        list.set_log_page(log_page).unwrap();
        // From inside a page on, as far as the page goes or the memory does.
        let inside = (two.b.memory.iova() + 100) & ((1 << log_page) - 1);
        let end = common::MEMORY_BYTES.min(100 + (1 << log_page) - inside as usize);
        list.map(&two.b.memory, &[100..end]).unwrap();
        assert_eq!((list.len(), list.first_offset()), (1, inside), "{log_page}");
        let bound = qb.post_fast_reg(&reg(1, inside), mr, list).unwrap();
        let (_, done) = two.run(&mut qa, &mut qb);
        list = into_list(done.into_iter().next().unwrap());
        assert_eq!(write(&mut two, &mut qa, &mut qb, bound.remote().at(7), &[log_page]), 0);
        assert_eq!(two.b.read(107, 1), [log_page]);
        qb.post_local_inv(2, S, bound).unwrap();
        let (_, done) = two.run(&mut qa, &mut qb);
        mr = into_mr(done.into_iter().next().unwrap());
    }
    assert!(list.set_log_page(11).is_err() && list.set_log_page(31).is_err());
    two.world.assert_clean();
}

#[test]
fn register_use_and_invalidate_are_posted_back_to_back() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let ma = two.a.mr();
    two.a.fill(0, &pattern(4000, 1));
    let (mut mr, mut list) = (two.b.pd.alloc_mr(PAGES, 8).unwrap(), list(&two, PAGES, &[0..4096]));
    let remote = RemoteAddr { addr: ma.addr(), rkey: ma.rkey().unwrap() };
    let mut keys = Vec::new();
    // Key byte and ring wrap several times.
    for round in 0..600u64 {
        list.map(&two.b.memory, &[4096 * (round as usize % 7)..4096 * (round as usize % 7 + 1)])
            .unwrap();
        let fast_reg = FastReg { flags: SendFlags::MORE, ..reg(round, 0) };
        let bound = qb.post_fast_reg(&fast_reg, mr, list).unwrap();
        keys.push(bound.rkey().0);
        // The READ brings bytes through the key that was bound just before, and ends it.
        qb.post_read_with_inv(round + 1000, S, remote.at(round), 100, bound).unwrap();
        let (_, done) = two.run(&mut qa, &mut qb);
        assert_eq!(
            ids(&done),
            [(round, true), (round + 1000, true)],
            "{:?}",
            two.world.refusals(1)
        );
        assert_eq!(done[1].opcode, WcOpcode::ReadWithInv);
        let mut done = done.into_iter();
        (list, mr) = (into_list(done.next().unwrap()), into_mr(done.next().unwrap()));
        let at = 4096 * (round as usize % 7);
        assert_eq!(two.b.read(at, 100), pattern(4000, 1)[round as usize..round as usize + 100]);
    }
    assert!(keys.windows(2).all(|pair| pair[0] >> 8 == pair[1] >> 8 && pair[0] != pair[1]));
    assert_eq!(keys[0] & 0xff, keys[256] & 0xff, "the byte wraps");
    two.world.assert_clean();
}

#[test]
fn the_peer_ends_a_key_and_the_completion_proves_it() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let mb = two.b.mr();
    let mut mr = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    mr.update_fast_reg_key(0xa5);
    let other = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let bound = qb.post_fast_reg(&reg(1, 0), mr, list(&two, PAGES, &[0..10])).unwrap();
    let other = qb.post_fast_reg(&reg(2, 0), other, list(&two, PAGES, &[0..10])).unwrap();
    assert_eq!(bound.rkey().0 & 0xff, 0xa5);
    qb.post_recv(3, mb.buf(100..200).unwrap()).unwrap();
    two.run(&mut qa, &mut qb);
    let wr = SendWr::signaled(4, SendOp::SendInv(bound.rkey()));
    qa.post_send_inline(&wr, b"done with it").unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), ids(&got)), (vec![(4, true)], vec![(3, true)]));
    assert_eq!(got[0].byte_len, 12);
    let proof = got.into_iter().next().unwrap().recv.invalidated.unwrap();
    assert_eq!(proof.rkey(), bound.rkey());
    let (other, proof) = other.invalidated_by(proof).unwrap_err();
    let free = bound.invalidated_by(proof).unwrap();
    assert_eq!(free.rkey().0 & 0xff, 0xa6, "another byte next time");
    // It is bound again like any other.
    let bound = qb.post_fast_reg(&reg(5, 0), free, list(&two, PAGES, &[0..10])).unwrap();
    two.run(&mut qa, &mut qb);
    assert_eq!(write(&mut two, &mut qa, &mut qb, bound.remote(), &[1]), 0);
    two.world.assert_clean();
    drop(other);
}

#[test]
fn after_a_failure_the_library_knows_which_keys_may_be_valid() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let alloc = |two: &Two| two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let whole = |two: &Two| list(two, PAGES, &[0..4096]);
    // Bound before the failure, its invalidation posted behind it. It may have been carried out:
    // the device needs no answer for it.
    let stale = qb.post_fast_reg(&reg(1, 0), alloc(&two), whole(&two)).unwrap();
    let kept = qb.post_fast_reg(&reg(2, 0), alloc(&two), whole(&two)).unwrap();
    two.run(&mut qa, &mut qb);
    let bad = RemoteAddr { addr: 0, rkey: Rkey(0xdead_be00) };
    let queued = |wr_id| FastReg { flags: SM, ..reg(wr_id, 0) };
    let wr = SendWr { wr_id: 3, flags: SM, op: SendOp::Write(bad) };
    qb.post_send_inline(&wr, &[1]).unwrap();
    qb.post_local_inv(4, SM, stale).unwrap();
    let never = qb.post_fast_reg(&queued(5), alloc(&two), whole(&two)).unwrap();
    let both = qb.post_fast_reg(&queued(6), alloc(&two), whole(&two)).unwrap();
    qb.post_local_inv(7, S, both).unwrap();
    assert_eq!(qb.mr_state(&never), MrState::Posted);
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [0x13, 5, 5, 5, 5]);
    let mut returned = done.into_iter().map(|wc| (wc.wr_id, wc.returned));
    returned.next();
    let Some((4, Returned::Stale(stale))) = returned.next() else { panic!("may be valid") };
    assert!(matches!(returned.next(), Some((5, Returned::PageList(_)))));
    assert!(matches!(returned.next(), Some((6, Returned::PageList(_)))));
    let Some((7, Returned::Stale(both))) = returned.next() else { panic!("may be valid") };
    assert_eq!((qb.mr_state(&kept), qb.mr_state(&stale)), (MrState::Valid, MrState::Valid));
    assert_eq!((qb.mr_state(&never), qb.mr_state(&both)), (MrState::Unknown, MrState::Unknown));

    // Revoked, none of them works, through whichever queue pair; the one that was kept does, and
    // is ended on another.
    let (mut qc, mut qd) = pair(&two);
    assert_eq!(qd.mr_state(&kept), MrState::Unknown, "registered elsewhere");
    let kept_key = kept.remote();
    assert_eq!(write(&mut two, &mut qc, &mut qd, kept_key, b"!"), 0);
    qd.post_local_inv(12, S, kept).unwrap();
    let (_, done) = two.run(&mut qc, &mut qd);
    assert_eq!(ids(&done), [(12, true)]);
    let mut free = Vec::new();
    for (at, mr) in [stale, never, both].into_iter().enumerate() {
        let old = mr.remote();
        free.push(mr.revoke().unwrap());
        let (mut qe, mut qf) = pair(&two);
        assert_eq!(write(&mut two, &mut qe, &mut qf, old, b"?"), 0x13, "key {at}");
    }
    assert_eq!(write(&mut two, &mut qc, &mut qd, kept_key, b"?"), 0x13);
    assert_eq!(two.b.read(0, 1), b"!");
    // They are bound again like any other.
    let (mut qe, mut qf) = pair(&two);
    for (id, mr) in free.into_iter().enumerate() {
        let bound = qf.post_fast_reg(&reg(id as u64, 0), mr, whole(&two)).unwrap();
        two.run(&mut qe, &mut qf);
        assert_eq!(write(&mut two, &mut qe, &mut qf, bound.remote(), &[id as u8]), 0);
    }
}

#[test]
fn ending_a_key_that_the_peer_has_ended_fails_and_the_key_is_revoked() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let mb = two.b.mr();
    let mr = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let bound = qb.post_fast_reg(&reg(1, 0), mr, list(&two, PAGES, &[0..10])).unwrap();
    qb.post_recv(2, mb.buf(100..200).unwrap()).unwrap();
    two.run(&mut qa, &mut qb);
    let wr = SendWr::signaled(4, SendOp::SendInv(bound.rkey()));
    qa.post_send_inline(&wr, b"done with it").unwrap();
    two.world.settle();
    // The completion that says so was not taken yet.
    qb.post_local_inv(3, S, bound).unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&done), syndromes(&done)), (vec![(2, true), (3, false)], vec![0, 6]));
    let Returned::Stale(stale) = done.into_iter().nth(1).unwrap().returned else { panic!() };
    stale.revoke().unwrap();
    assert_eq!(qb.state(), QpState::Error);
}

#[test]
fn what_cannot_be_bound_is_refused_and_comes_back() {
    let two = Two::new();
    let (_qa, mut qb) = pair(&two);
    let whole = || list(&two, PAGES, &[0..4096]);
    let alloc = |len| two.b.pd.alloc_mr(PAGES, len).unwrap();
    let mut refuse = |wr: FastReg, mr, list| {
        let refused = qb.post_fast_reg(&wr, mr, list).unwrap_err();
        refused.cause
    };
    let empty = two.b.context.alloc_page_list(PAGES, 8).unwrap();
    assert_eq!(refuse(reg(1, 0), alloc(8), empty), PostError::PageList, "empty");
    assert_eq!(refuse(reg(1, 1), alloc(8), whole()), PostError::PageList, "start");
    let nine = list(&two, PAGES, &[0..9 * 4096]);
    assert_eq!(refuse(reg(1, 0), alloc(8), nine), PostError::PageList, "too many");
    let pieces = list(&two, ListLayout::Pieces, &[0..1]);
    assert_eq!(refuse(reg(1, 0), alloc(8), pieces), PostError::PageList, "other layout");
    let foreign = two.b.context.alloc_pd().unwrap().alloc_mr(PAGES, 8).unwrap();
    assert_eq!(refuse(reg(1, 0), foreign, whole()), PostError::Pd);
    let wr = FastReg { access: Access::REMOTE_WRITE, ..reg(1, 0) };
    assert_eq!(refuse(wr, alloc(8), whole()), PostError::Access);
    let (_, mut plain) = two.connected::<Buf>();
    let refused = plain.post_fast_reg(&reg(1, 0), alloc(8), whole()).unwrap_err();
    assert_eq!(refused.cause, PostError::NoFastReg);

    let mut list = two.b.context.alloc_page_list(PAGES, 2).unwrap();
    for (pieces, error) in [
        (vec![0..8193], PageListError::TooLong),
        (vec![0..4096, 8200..8300], PageListError::Unaligned),
        (vec![0..4095, 8192..8300], PageListError::Unaligned),
        (vec![5..5], PageListError::Range),
        (vec![0..common::MEMORY_BYTES + 1], PageListError::Range),
    ] {
        assert_eq!(list.map(&two.b.memory, &pieces).unwrap_err(), error);
        assert!(list.is_empty());
    }
    let error = list.map(&two.a.memory, &[0..1]).unwrap_err();
    assert_eq!(error, PageListError::OtherDevice);
    two.world.assert_clean();
}

#[test]
fn keys_are_destroyed_in_every_state() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let alloc = || two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let free = alloc();
    let bound: Vec<_> = (0..3)
        .map(|id| qb.post_fast_reg(&reg(id, 0), alloc(), list(&two, PAGES, &[0..10])).unwrap())
        .collect();
    two.run(&mut qa, &mut qb);
    let [valid, ending, on_wire] = bound.try_into().unwrap();
    let key = valid.remote();
    drop(valid);
    assert_eq!(write(&mut two, &mut qa, &mut qb, key, &[1]), 0x13, "valid until it was dropped");
    free.dealloc().unwrap();
    drop((ending, on_wire));
    // In flight when the queue pair goes: the queue pair ends first.
    let (qc, mut qd) = pair(&two);
    let mr = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let wr = FastReg { flags: SM, ..reg(1, 0) };
    let bound = qd.post_fast_reg(&wr, mr, list(&two, PAGES, &[0..10])).unwrap();
    qd.post_local_inv(2, SM, bound).unwrap();
    drop((qc, qd));
    let Two { a, b, world } = two;
    drop((qa, qb, a, b.pd, b.cq, b.memory));
    common::close(b.context).unwrap();
    assert!(world.refusals(1).iter().all(|line| line.contains("rdma")), "{:?}", world.refusals(1));
}

#[test]
fn a_peer_may_end_a_key_before_its_registration_is_told_of() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let mut key = KeySlot::new(&two.b.context, &two.b.pd, PAGES, 8).unwrap();
    let memory = std::sync::Arc::clone(&two.b.memory);
    for round in 0..3 {
        key.map(&memory, &[4096..8192]).unwrap();
        let remote = key.register(&mut qb, &reg(1, 0)).unwrap();
        qb.post_recv(4, two.b.mr().buf(0..8).unwrap()).unwrap();
        let end = SendWr::signaled(5, SendOp::SendInv(remote.rkey));
        qa.post_send_inline(&end, b"x").unwrap();
        let (_, mut done) = two.run(&mut qa, &mut qb);
        // The answer is looked at before the end of the registration.
        let at = done.iter().position(|wc| wc.opcode == WcOpcode::Recv).unwrap();
        let mut got = done.remove(at);
        key.invalidated_by(got.recv.invalidated.take().unwrap()).unwrap();
        assert_eq!((key.state(), key.remote()), (KeyState::Free, None), "{round}");
        assert_eq!(key.map(&memory, &[0..1]).unwrap_err(), PageListError::Posted);
        assert_eq!(key.register(&mut qb, &reg(1, 0)).unwrap_err(), PostError::KeyState);
        assert_eq!(key.complete(done.remove(0)), Ok(KeyState::Free));
        assert!(done.is_empty());
        let write = SendWr::signaled(3, SendOp::Write(remote));
        if round == 2 {
            qa.post_send_inline(&write, b"12345678").unwrap();
            assert_ne!(syndromes(&two.run(&mut qa, &mut qb).0), [0], "the key has ended");
        }
    }
}

#[test]
fn a_slot_refuses_wrong_steps_and_keeps_its_key_through_all_states() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let mut key = KeySlot::new(&two.b.context, &two.b.pd, PAGES, 8).unwrap();
    let mut wr = reg(1, 0);
    wr.remote_invalidate = true;
    let memory = std::sync::Arc::clone(&two.b.memory);
    for by_peer in [true, false] {
        assert_eq!((key.state(), key.remote()), (KeyState::Free, None));
        assert_eq!(key.invalidate(&mut qb, 2, S).unwrap_err(), PostError::KeyState);
        key.map(&memory, &[4096..8192]).unwrap();
        let remote = key.register(&mut qb, &wr).unwrap();
        assert_eq!((key.state(), key.remote()), (KeyState::Posted, Some(remote)));
        assert_eq!(key.register(&mut qb, &wr).unwrap_err(), PostError::KeyState);
        assert_eq!(key.map(&memory, &[0..1]).unwrap_err(), PageListError::Posted);
        let (_, done) = two.run(&mut qa, &mut qb);
        let states: Vec<_> = done.into_iter().map(|wc| key.complete(wc)).collect();
        assert_eq!((states, key.state()), (vec![Ok(KeyState::Valid)], KeyState::Valid));
        let write = SendWr::signaled(3, SendOp::Write(remote));
        qa.post_send_inline(&write, b"12345678").unwrap();
        assert_eq!(syndromes(&two.run(&mut qa, &mut qb).0), [0]);
        if by_peer {
            qb.post_recv(4, two.b.mr().buf(0..8).unwrap()).unwrap();
            let end = SendWr::signaled(5, SendOp::SendInv(remote.rkey));
            qa.post_send_inline(&end, b"x").unwrap();
            let (_, mut got) = two.run(&mut qa, &mut qb);
            key.invalidated_by(got.remove(0).recv.invalidated.unwrap()).unwrap();
        } else {
            key.invalidate(&mut qb, 6, S).unwrap();
            assert_eq!((key.state(), key.remote()), (KeyState::Invalidating, None));
            assert!(matches!(key.revoke(), Err(VerbsError::StillPosted { .. })));
            let (_, done) = two.run(&mut qa, &mut qb);
            let states: Vec<_> = done.into_iter().map(|wc| key.complete(wc)).collect();
            assert_eq!(states, [Ok(KeyState::Free)]);
        }
    }
    assert_eq!(two.b.read(4096, 8), b"12345678");
    // A registration that is flushed: nobody knows how far it came.
    key.map(&memory, &[0..4096]).unwrap();
    key.register(&mut qb, &FastReg { flags: SM, ..wr }).unwrap();
    key.invalidate(&mut qb, 7, SM).unwrap();
    qa.to_error().unwrap();
    qb.to_error().unwrap();
    let (_, done) = two.run(&mut qa, &mut qb);
    for wc in done {
        let _ = key.complete(wc);
    }
    if key.state() == KeyState::Stale {
        assert_eq!(key.remote(), None);
        key.revoke().unwrap();
    }
    assert_eq!(key.state(), KeyState::Free);
    assert!(key.list_mut().is_some(), "the list came back");
    key.dealloc().unwrap();
    two.world.assert_clean();
}

/// A key of `b` that was bound, and the proof that `a` has ended it.
fn ended_by_peer(
    two: &mut Two,
    (qa, qb): &mut (Qp, Qp),
    key: FastRegMr,
) -> (RegisteredMr, InvalidatedRkey) {
    let bound = qb.post_fast_reg(&reg(1, 0), key, list(two, PAGES, &[0..4096])).unwrap();
    qb.post_recv(2, two.b.mr().buf(4096..4104).unwrap()).unwrap();
    two.run(qa, qb);
    assert_eq!(write(two, qa, qb, bound.remote(), b"it lives"), 0);
    let wr = SendWr::signaled(3, SendOp::SendInv(bound.rkey()));
    qa.post_send_inline(&wr, b"the end!").unwrap();
    let (_, done) = two.run(qa, qb);
    (bound, done.into_iter().find_map(|wc| wc.recv.invalidated).unwrap())
}

#[test]
fn a_proof_that_was_kept_is_of_no_later_key_of_the_same_value() {
    let mut two = Two::new();
    let mut qps = pair(&two);
    let key = two.b.pd.alloc_mr(PAGES, 8).unwrap();
    let (bound, kept) = ended_by_peer(&mut two, &mut qps, key);
    let rkey = bound.rkey();
    drop(bound);
    // The device gives the index out again, and so may the low byte come again.
    let mut others = (0..1000).map(|_| two.b.pd.alloc_mr(PAGES, 8).unwrap());
    let mut again = others.find(|key| key.rkey().0 >> 8 == rkey.0 >> 8).unwrap();
    again.update_fast_reg_key(rkey.0 as u8);
    let (bound, proof) = ended_by_peer(&mut two, &mut qps, again);
    assert_eq!(bound.rkey(), rkey);
    let (bound, _) = bound.invalidated_by(kept).unwrap_err();
    bound.invalidated_by(proof).unwrap();
    two.world.assert_clean();
}
