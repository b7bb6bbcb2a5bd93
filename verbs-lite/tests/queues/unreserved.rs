//! Completion queues that reserve no room, and queue pairs that are reset with work in flight.

use crate::common;
use crate::common::{Two, path, small, take};
use ferrocx_verbs_lite::*;

/// Entries of a queue that is too small for what its queue pair may post.
const ENTRIES: u32 = 4;

#[test]
fn a_queue_without_reservations_may_be_smaller_than_its_queue_pairs() {
    let mut two = Two::new();
    let config = QpConfig { max_send_wr: 64, max_recv_wr: 64, ..small() };
    let reserved = two.a.context.create_cq(ENTRIES).unwrap();
    let refused = two.a.pd.create_qp::<Buf>(&reserved, &config);
    assert!(matches!(refused, Err(VerbsError::CqTooSmall { .. })));
    let mut cq = two.a.context.create_cq_unreserved(ENTRIES, None).unwrap();
    let mut qa: Qp = two.a.pd.create_qp(&cq, &config).unwrap();
    let mut qb: Qp = two.b.qp(&config);
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &common::rts(0));
    let (from, to) = (two.a.mr(), two.b.mr());
    // Many more than it has entries, never more at a time.
    for round in 0..8 {
        for at in 0..2 {
            qb.post_recv(at, to.buf(0..64).unwrap()).unwrap();
            let wr = SendWr::signaled(round * 2 + at, SendOp::Send);
            qa.post_send(&wr, Some(from.buf(0..64).unwrap())).unwrap();
        }
        two.world.settle();
        assert_eq!(take(&mut cq, &mut qa).len(), 2);
        assert_eq!(take(&mut two.b.cq, &mut qb).len(), 2);
    }
    two.world.assert_clean();
}

#[test]
fn an_abandoned_queue_pair_reports_nothing_and_lives_again() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.rc::<Buf>(&small());
    let (from, to) = (two.a.mr(), two.b.mr());
    // Nobody receives: the send stays in flight, and so does the receive of the other direction.
    qa.post_send(&SendWr::signaled(1, SendOp::Send), Some(from.buf(0..64).unwrap())).unwrap();
    qa.post_recv(2, from.buf(64..128).unwrap()).unwrap();
    two.world.wait_us(10);
    assert!(matches!(qa.abandon(&[&two.b.cq]), Err(VerbsError::NoSuchCq { .. })));
    qa.abandon(&[&two.a.cq]).unwrap();
    qb.abandon(&[&two.b.cq]).unwrap();
    two.world.settle();
    assert_eq!((qa.state(), qa.has_outstanding()), (QpState::Reset, false));
    assert!(take(&mut two.a.cq, &mut qa).is_empty(), "nothing is reported");
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &common::rts(0));
    qb.post_recv(3, to.buf(0..64).unwrap()).unwrap();
    qa.post_send(&SendWr::signaled(4, SendOp::Send), Some(from.buf(0..64).unwrap())).unwrap();
    let (sent, received) = two.run(&mut qa, &mut qb);
    assert_eq!((sent.len(), sent[0].wr_id, received[0].wr_id), (1, 4, 3));
    assert!(sent[0].result.is_ok() && received[0].result.is_ok());
}

#[test]
fn an_address_handle_leads_to_other_queue_pairs_of_the_same_port() {
    const QKEY: u32 = 0x1234;
    let mut two = Two::new();
    let (mut qa, mut qb) = (two.a.datagrams(QKEY), two.b.datagrams(QKEY));
    let (from, to) = (two.a.mr(), two.b.mr());
    qb.post_recv(1, to.buf(0..104).unwrap()).unwrap();
    let handle = AddressHandle::new(&path(&two.a, &two.b), Qpn(0x77), 0).to(qb.qpn(), QKEY);
    let op = SendOp::Datagram { to: &handle, imm: None };
    qa.post_send(&SendWr::signaled(2, op), Some(from.buf(0..64).unwrap())).unwrap();
    let (_, received) = two.run(&mut qa, &mut qb);
    // 2: the sender's header is one of IPv4.
    let info = &received[0].recv;
    assert_eq!((info.has_grh, info.network_hdr_type, received[0].byte_len), (true, 2, 104));
}
