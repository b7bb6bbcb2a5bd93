//! Completions that are kept, and given to whom they do not belong: to a queue pair of another
//! device, to the next of the same number, after a reset, or 65,536 requests later. Each time a
//! packet would come back that the device may still write to.
#![forbid(unsafe_code)]

use crate::common;
use crate::common::{Two, pool, rts, small};
use ferrocx_mempool::{Mbuf, Pool};
use ferrocx_model::played::Sender;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_verbs_lite::*;

/// Two ports, and packets of the second one.
fn scene() -> (Two, Pool) {
    let two = Two::new();
    let pool = pool("lives");
    for side in [&two.a, &two.b] {
        side.context.device().register_pool(&pool).unwrap();
    }
    (two, pool)
}

fn packet(pool: &Pool) -> Mbuf {
    let mut packet = pool.get().unwrap();
    assert!(packet.append(64).is_some());
    packet
}

/// Sends a message into the oldest receive of `qb`, and takes its completion.
fn message(two: &mut Two, qa: &mut Qp<Mbuf>) -> Completion {
    send(two, qa);
    two.b.cq.poll().expect("a message has come")
}

/// Sends a message, whose completion at the receiver stays where it is.
fn send(two: &mut Two, qa: &mut Qp<Mbuf>) {
    qa.post_send_inline(&SendWr::signaled(0, SendOp::Send), b"message").unwrap();
    two.world.settle();
    while let Some(completion) = two.a.cq.poll() {
        qa.complete(completion, |wc| assert!(wc.result.is_ok())).unwrap();
    }
}

/// What the queue pair gives back by a completion that it must refuse.
fn assert_refused(qp: &mut Qp<Mbuf>, completion: Completion, case: &str) {
    let before = qp.has_outstanding();
    let refused = qp.complete(completion, |wc| panic!("{case}: {wc:?}"));
    assert!(refused.is_err() && before && qp.has_outstanding(), "{case}");
}

/// Gives a queue pair a completion that is its own; the numbers of what ended.
fn end(qp: &mut Qp<Mbuf>, completion: Completion) -> Vec<u64> {
    let mut ended = Vec::new();
    let result = qp.complete(completion, |wc| {
        assert!(wc.result.is_ok(), "{wc:?}");
        ended.push(wc.wr_id);
    });
    result.unwrap();
    ended
}

#[test]
fn a_completion_of_before_an_abandoned_life_ends_nothing_of_the_next() {
    for is_kept in [true, false] {
        let (mut two, pool) = scene();
        let (mut qa, mut qb) = two.rc::<Mbuf>(&small());
        qb.post_recv(1, packet(&pool)).unwrap();
        send(&mut two, &mut qa);
        let kept = if is_kept { two.b.cq.poll() } else { None };
        qa.abandon(&[&two.a.cq]).unwrap();
        qb.abandon(&[&two.b.cq]).unwrap();
        two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
        qb.post_recv(2, packet(&pool)).unwrap();
        let old = kept.unwrap_or_else(|| two.b.cq.poll().expect("it still stands there"));
        assert_refused(&mut qb, old, if is_kept { "kept" } else { "in the queue" });
        let new = message(&mut two, &mut qa);
        assert_eq!(end(&mut qb, new), [2]);
    }
}

#[test]
fn a_completion_of_before_a_reset_ends_nothing_of_the_next_life() {
    let (mut two, pool) = scene();
    let (mut qa, mut qb) = two.rc::<Mbuf>(&small());
    let mr = two.b.mr();
    let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
    for id in [1, 2] {
        let wr = SendWr::signaled(id, SendOp::Write(remote));
        qa.post_send_inline(&wr, b"12345678").unwrap();
    }
    two.world.settle();
    let [first, second] = [two.a.cq.poll().unwrap(), two.a.cq.poll().unwrap()];
    assert_eq!(end(&mut qa, second), [1, 2], "it ends both");
    qa.reset().unwrap();
    qb.reset().unwrap();
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    let wr = SendWr::signaled(3, SendOp::Read(remote));
    qa.post_send(&wr, Some(packet(&pool))).unwrap();
    assert_refused(&mut qa, first, "the READ may not have ended");
    two.world.settle();
    let read = two.a.cq.poll().unwrap();
    assert_eq!(end(&mut qa, read), [3]);
}

#[test]
fn a_completion_of_another_device_ends_nothing() {
    let (mut two, pool) = scene();
    let (mut qa, mut qb) = two.rc::<Mbuf>(&small());
    assert_eq!(qa.qpn(), qb.qpn(), "first of their devices");
    qa.post_recv(1, packet(&pool)).unwrap();
    qb.post_recv(2, packet(&pool)).unwrap();
    let at_b = message(&mut two, &mut qa);
    assert_refused(&mut qa, at_b, "of the other device");
    // Nor does one of another completion queue of the same device, which names the queue pair and
    // is of a later era.
    let cq = two.b.context.create_cq(32).unwrap();
    let mut other: Qp<Mbuf> = two.b.pd.create_qp(&cq, &small()).unwrap();
    other.init(&InitAttr::default()).unwrap();
    other.post_recv(3, packet(&pool)).unwrap();
    drop(two.b.qp::<Mbuf>(&QpConfig { max_recv_wr: 1, ..small() }));
    let name = (other.qpn(), other.user_index());
    let at_b = play_received(&mut two, name, 0);
    assert_refused(&mut other, at_b, "of another completion queue");
}

#[test]
fn a_completion_of_a_queue_pair_that_is_gone_ends_nothing_of_its_namesake() {
    for is_kept in [true, false] {
        let (mut two, pool) = scene();
        let (mut qa, mut qb) = two.rc::<Mbuf>(&small());
        let number = qb.qpn();
        qb.post_recv(1, packet(&pool)).unwrap();
        send(&mut two, &mut qa);
        let kept = if is_kept { two.b.cq.poll() } else { None };
        drop(qb);
        let least = QpConfig { max_send_wr: 1, max_recv_wr: 4, ..small() };
        let mut namesake = loop {
            let qp: Qp<Mbuf> = two.b.pd.create_qp(&two.b.cq, &least).unwrap();
            if qp.qpn() == number {
                break qp;
            }
        };
        namesake.init(&InitAttr::default()).unwrap();
        namesake.post_recv(2, packet(&pool)).unwrap();
        let old = kept.unwrap_or_else(|| two.b.cq.poll().expect("it still stands there"));
        assert_refused(&mut namesake, old, if is_kept { "kept" } else { "in the queue" });
    }
}

#[test]
fn a_completion_of_a_namesake_of_its_queue_pairs_ends_nothing_of_a_shared_queue() {
    let (mut two, pool) = scene();
    let (mut qa, mut qb) = two.rc::<Mbuf>(&small());
    let (number, foreign) = (qb.qpn(), two.a.qp::<Mbuf>(&small()));
    qb.post_recv(1, packet(&pool)).unwrap();
    let kept = message(&mut two, &mut qa);
    qb.post_recv(1, packet(&pool)).unwrap();
    send(&mut two, &mut qa);
    drop((qb, foreign));
    let mut srq: Srq<Mbuf> = two.b.pd.create_srq(&SrqConfig { max_wr: 8, max_sge: 1 }).unwrap();
    let least = QpConfig { max_send_wr: 1, ..small() };
    let mut namesake = loop {
        let queues = QpQueues { send_cq: &two.b.cq, recv_cq: &two.b.cq, srq: Some(&srq) };
        let qp: Qp<Mbuf> = two.b.pd.create_qp(queues, &least).unwrap();
        if qp.qpn() == number {
            break qp;
        }
    };
    for id in 0..2 {
        srq.post_recv(id, packet(&pool)).unwrap();
    }
    let standing = two.b.cq.poll().expect("it still stands there");
    assert!(srq.complete(standing).is_none(), "of its namesake");
    assert!(namesake.complete_shared(kept, &mut srq, |wc| panic!("{wc:?}")).is_err());
    assert_eq!(srq.outstanding(), 2);
}

/// Posts `count` WRITEs by `qp`, which all end, without a look at what they do.
fn play_writes(two: &mut Two, qp: &mut Qp<Mbuf>, first: u32, count: u32) {
    let of = Sender::Qp(qp.qpn().0);
    let wr = SendWr::unsignaled(0, SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) }));
    for at in (first..first + count).step_by(128) {
        for _ in 0..128 {
            qp.post_send_inline(&wr.with(SendFlags::MORE), &[0; 8]).unwrap();
        }
        two.world.nic(0).play_end(of, (at + 127) as u16);
        let completion = two.a.cq.poll().unwrap();
        assert_eq!(end(qp, completion).len(), 128);
    }
}

#[test]
fn a_completion_ends_no_send_of_65536_blocks_later() {
    let (mut two, pool) = scene();
    let config = QpConfig { max_send_wr: 128, max_inline_bytes: 8, ..small() };
    let mut qa: Qp<Mbuf> = two.a.qp(&config);
    let mut qb: Qp<Mbuf> = two.b.qp(&small());
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    let of = Sender::Qp(qa.qpn().0);
    let wr = SendWr::signaled(0, SendOp::Write(RemoteAddr { addr: 0, rkey: Rkey(0) }));
    for _ in 0..2 {
        qa.post_send_inline(&wr.with(SendFlags::MORE), &[0; 8]).unwrap();
    }
    two.world.nic(0).play_end(of, 0);
    two.world.nic(0).play_end(of, 1);
    let [first, second] = [two.a.cq.poll().unwrap(), two.a.cq.poll().unwrap()];
    assert_eq!(end(&mut qa, second).len(), 2);
    play_writes(&mut two, &mut qa, 2, 65_536 - 128);
    for _ in 2..128 {
        qa.post_send_inline(&wr.with(SendFlags::MORE), &[0; 8]).unwrap();
    }
    two.world.nic(0).play_end(of, u16::MAX);
    let completion = two.a.cq.poll().unwrap();
    assert_eq!(end(&mut qa, completion).len(), 126);
    let read = SendWr { op: SendOp::Read(RemoteAddr { addr: 0, rkey: Rkey(0) }), ..wr };
    qa.post_send(&read.with(SendFlags::MORE), Some(packet(&pool))).unwrap();
    assert_refused(&mut qa, first, "65,536 blocks later");
    two.world.nic(0).play_end(of, 0);
    let completion = two.a.cq.poll().unwrap();
    assert_eq!(end(&mut qa, completion), [0], "its own");
}

/// Says that a message of 7 bytes has filled the receive of queue pair `qb` at a place in its ring,
/// or in its shared queue's; its completion.
fn play_received(two: &mut Two, (qpn, user_index): (Qpn, u32), at: u16) -> Completion {
    play_standing(two, (qpn, user_index), at);
    two.b.cq.poll().unwrap()
}

/// As [`play_received`]; the completion stays where it is.
fn play_standing(two: &Two, (qpn, user_index): (Qpn, u32), at: u16) {
    let cqe = Cqe64::zeroed().with_sop_drop_qpn(qpn.0).with_srqn_uidx(user_index);
    let cqe = cqe.with_wqe_counter(at.into()).with_byte_cnt(7);
    two.world.nic(1).play_cqe(two.b.cq.number(), cqe.with_opcode(CqeOpcode::RESPONDER_SEND.0));
}

#[test]
fn a_completion_that_was_taken_ends_no_receive_of_65536_later() {
    let (mut two, pool) = scene();
    let (_qa, mut qb) = two.rc::<Mbuf>(&small());
    let mut srq: Srq<Mbuf> = two.b.pd.create_srq(&SrqConfig::default()).unwrap();
    let name = (qb.qpn(), qb.user_index());
    let mut taken = Vec::new();
    for at in 0..=u32::from(u16::MAX) {
        qb.post_recv(1, packet(&pool)).unwrap();
        let mut completion = play_received(&mut two, name, at as u16);
        assert!(qb.next_wc(&mut completion).unwrap().is_some());
        if at < 3 {
            taken.push(completion);
        }
    }
    for (at, old) in taken.into_iter().enumerate() {
        qb.post_recv(2, packet(&pool)).unwrap();
        let each = |wc: Wc<Mbuf>| panic!("{at}: {wc:?}");
        match at {
            0 => qb.complete(old, each).unwrap(),
            1 => qb.complete_shared(old, &mut srq, each).unwrap(),
            _ => qb.complete_signaled(old, each).unwrap(),
        }
        let own = play_received(&mut two, name, at as u16);
        assert_eq!(end(&mut qb, own), [2]);
    }
}

#[test]
fn a_failed_receive_of_before_says_nothing_of_the_state_of_now() {
    for (is_kept, is_namesake) in [(true, false), (false, false), (true, true), (false, true)] {
        let case = format!("kept {is_kept}, namesake {is_namesake}");
        let (mut two, pool) = scene();
        let mut srq: Srq<Mbuf> = two.b.pd.create_srq(&SrqConfig { max_wr: 8, max_sge: 1 }).unwrap();
        let made = |two: &Two, srq: &Srq<Mbuf>| -> Qp<Mbuf> {
            let queues = QpQueues { send_cq: &two.b.cq, recv_cq: &two.b.cq, srq: Some(srq) };
            two.b.pd.create_qp(queues, &QpConfig { max_send_wr: 1, ..small() }).unwrap()
        };
        let mut qb = made(&two, &srq);
        let failure =
            Cqe64::zeroed().with_sop_drop_qpn(qb.qpn().0).with_opcode(CqeOpcode::RESPONDER_ERROR.0);
        two.world.nic(1).play_cqe(two.b.cq.number(), failure);
        let kept = if is_kept { two.b.cq.poll() } else { None };
        if is_namesake {
            let number = qb.qpn();
            drop(qb);
            qb = loop {
                let qp = made(&two, &srq);
                if qp.qpn() == number {
                    break qp;
                }
            };
        } else {
            qb.abandon(&[&two.b.cq]).unwrap();
        }
        for id in 0..2 {
            srq.post_recv(id, packet(&pool)).unwrap();
        }
        qb.init(&InitAttr::default()).unwrap();
        let old = kept.unwrap_or_else(|| two.b.cq.poll().expect("it still stands there"));
        let mut ended = Vec::new();
        qb.complete_shared(old, &mut srq, |wc| ended.push(wc.result.is_err())).unwrap();
        assert_eq!((ended.as_slice(), qb.state()), ([true].as_slice(), QpState::Init), "{case}");
        two.world.nic(1).play_cqe(two.b.cq.number(), failure.with_wqe_counter(1));
        let now = two.b.cq.poll().unwrap();
        qb.complete_shared(now, &mut srq, |wc| ended.push(wc.result.is_err())).unwrap();
        assert_eq!(
            (ended.as_slice(), qb.state()),
            ([true; 2].as_slice(), QpState::Error),
            "{case}"
        );
    }
}

#[test]
fn completions_that_were_taken_before_many_others_were_posted_are_right() {
    const ROUND: u32 = 1 << 12;
    let (mut two, _pool) = scene();
    let cq = two.a.context.create_cq_unreserved(64, None).unwrap();
    two.a.cq = cq;
    let config = QpConfig { max_send_wr: 4 * ROUND, max_inline_bytes: 0, ..small() };
    let (mut qa, mut qb): (Qp<Mbuf>, Qp<Mbuf>) = (two.a.qp(&config), two.b.qp(&small()));
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    let of = Sender::Qp(qa.qpn().0);
    let wr = SendWr::unsignaled(0, SendOp::Send).with(SendFlags::MORE);
    let (mut kept, mut next) = (std::collections::VecDeque::new(), 0_u32);
    // The oldest is given when the ring is full: a whole ring later.
    for round in 0..40 {
        for _ in 0..ROUND {
            qa.post_send_inline(&wr, &[]).unwrap();
        }
        next += ROUND;
        two.world.nic(0).play_end(of, (next - 1) as u16);
        kept.push_back(two.a.cq.poll().unwrap());
        if kept.len() == 4 {
            let oldest = kept.pop_front().unwrap();
            assert_eq!(end(&mut qa, oldest).len(), ROUND as usize, "{round}");
        }
    }
}

#[test]
fn a_peer_that_ended_a_key_of_one_device_has_ended_none_of_another() {
    let (mut two, pool) = scene();
    let config = QpConfig { fast_reg: true, ..small() };
    let (mut qa, mut qb) = two.rc::<Mbuf>(&config);
    let layout = ListLayout::Pages { log_page: 12 };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let bind = |side: &common::Side, qp: &mut Qp<Mbuf>| {
        let mr = side.pd.alloc_mr(layout, 8).unwrap();
        let mut list = side.context.alloc_page_list(layout, 8).unwrap();
        list.map_mbuf(packet(&pool)).unwrap();
        let (flags, start) = (SendFlags::SIGNALED, list.first_offset());
        let wr = FastReg { wr_id: 1, flags, start, access, remote_invalidate: true };
        qp.post_fast_reg(&wr, mr, list).unwrap()
    };
    let (at_a, at_b) = (bind(&two.a, &mut qa), bind(&two.b, &mut qb));
    assert_eq!(at_a.rkey(), at_b.rkey(), "first of their devices");
    qb.post_recv(2, packet(&pool)).unwrap();
    two.run(&mut qa, &mut qb);
    let wr = SendWr::signaled(3, SendOp::SendInv(at_b.rkey()));
    qa.post_send_inline(&wr, b"ended").unwrap();
    let (_, mut received) = two.run(&mut qa, &mut qb);
    let proof = received.remove(0).recv.invalidated.expect("the peer ended it");
    let Err((_still, proof)) = at_a.invalidated_by(proof) else {
        panic!("a packet comes back that a peer may write to");
    };
    let mut free = at_b.invalidated_by(proof).expect("its own");
    assert!(free.take_mbuf().is_some());
}

/// Who is given a queue pair may put another one in its place. What the completion has left to end
/// is not that one's, which may have requests at the same positions.
#[test]
fn a_completion_ends_nothing_of_a_queue_pair_that_took_the_place_of_its_own() {
    let (mut two, pool) = scene();
    let (mut other, _peer) = two.rc::<Mbuf>(&QpConfig { user_index: 1, ..small() });
    let (qa, _qb) = two.rc::<Mbuf>(&small());
    let mr = two.b.mr();
    let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
    let mut table = QpTable::<(), Mbuf>::new();
    assert!(table.insert(qa, ()).is_none());
    // One each before, after which a completion needs no look.
    other.post_send_inline(&SendWr::signaled(0, SendOp::Write(remote)), &[1; 8]).unwrap();
    two.world.settle();
    let completion = two.a.cq.poll().unwrap();
    assert_eq!(end(&mut other, completion), [0]);
    let (qa, ()) = table.get_mut(0).unwrap();
    qa.post_send_inline(&SendWr::signaled(0, SendOp::Write(remote)), &[1; 8]).unwrap();
    two.world.settle();
    assert_eq!(table.poll_each(&mut two.a.cq, 8, |_, (), _| ()).unwrap(), 1);
    let (qa, ()) = table.get_mut(0).unwrap();
    for id in 0..3 {
        let flags = if id == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr::unsignaled(id, SendOp::Write(remote)).with(flags);
        qa.post_send_inline(&wr, &[1; 8]).unwrap();
    }
    two.world.settle();
    for id in 10..13 {
        other.post_send(&SendWr::signaled(id, SendOp::Read(remote)), Some(packet(&pool))).unwrap();
    }
    let mut ended = Vec::new();
    let result = table.poll_each(&mut two.a.cq, 8, |qp, (), wc| {
        ended.push(wc.wr_id);
        if wc.wr_id == 0 {
            std::mem::swap(qp, &mut other);
        }
    });
    assert!(result.is_err() && ended == [0], "{result:?} {ended:?}");
    assert!(table.get_mut(0).unwrap().0.has_outstanding(), "the READs");
}
