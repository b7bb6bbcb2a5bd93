//! Reliable connections: every operation, what comes back, and how queues fill and fail.

use crate::common;
use crate::common::{MTU, Two, ids, pattern, rtr, rts, small, syndromes, take};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{RoceCap, cap_type};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::*;

fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr::signaled(wr_id, op)
}

#[test]
fn a_send_fills_a_receive_and_both_buffers_come_back() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    for len in [0, 1, 255, 256, 257, 3 * MTU + 5] {
        let bytes = pattern(len, len as u8);
        let mut buf = ma.buf(4096..4096 + len).unwrap();
        buf.copy_in(0, &bytes).unwrap();
        qb.post_recv(7, mb.buf(100..100 + 4096).unwrap()).unwrap();
        qa.post_send(&signaled(9, SendOp::Send), Some(buf)).unwrap();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&sent), ids(&got)), (vec![(9, true)], vec![(7, true)]), "{len}");
        assert_eq!((sent[0].opcode, got[0].opcode), (WcOpcode::Send, WcOpcode::Recv));
        assert_eq!(got[0].byte_len as usize, len);
        let returned = got.into_iter().next().unwrap().into_buffers().unwrap();
        assert_eq!(returned.to_vec()[..len], bytes);
        let buf = sent.into_iter().next().unwrap().into_buffers().unwrap();
        assert_eq!(buf.to_vec(), bytes);
    }
    two.world.assert_clean();
}

#[test]
fn immediate_inline_and_solicited_arrive_as_sent() {
    let mut two = Two::new();
    let mb = two.b.mr();
    let (mut qa, mut qb) = two.connected::<Buf>();
    for (at, len) in [0, 1, 8, 11, 12, 13, 16, 28, 29, 64].into_iter().enumerate() {
        let bytes = pattern(len, at as u8);
        qb.post_recv(1, mb.buf(0..64).unwrap()).unwrap();
        let wr = signaled(2, SendOp::SendImm(0xdead_0000 + at as u32)).with(SendFlags::SOLICITED);
        qa.post_send_inline(&wr, &bytes).unwrap();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!(ids(&sent), [(2, true)]);
        let info = &got[0].recv;
        assert_eq!(info.imm, Some(0xdead_0000 + at as u32));
        assert!(info.is_solicited && !info.has_grh);
        assert_eq!(two.b.read(0, len), bytes, "{len} bytes inline");
        // Behind an address, and behind what ends a key, which is of the peer's here and no other.
        let remote = RemoteAddr { addr: mb.addr() + 512, rkey: mb.rkey().unwrap() };
        qa.post_send_inline(&signaled(3, SendOp::Write(remote)), &bytes).unwrap();
        assert_eq!(ids(&two.run(&mut qa, &mut qb).0), [(3, true)]);
        assert_eq!(two.b.read(512, len), bytes, "{len} bytes inline");
    }
    let error = qa.post_send_inline(&signaled(1, SendOp::Send), &[0; 65]).unwrap_err();
    assert_eq!(error, PostError::InlineTooLong);
    two.world.assert_clean();
}

#[test]
fn writes_and_reads_move_bytes_without_the_peer() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    let remote = RemoteAddr { addr: mb.addr() + 5000, rkey: mb.rkey().unwrap() };
    let bytes = pattern(1000, 1);
    two.a.fill(64, &bytes);
    qa.post_send(&signaled(1, SendOp::Write(remote)), Some(ma.buf(64..1064).unwrap())).unwrap();
    qa.post_send(&signaled(2, SendOp::Read(remote.at(10))), Some(ma.buf(8000..8990).unwrap()))
        .unwrap();
    let (done, got) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true), (2, true)]);
    assert_eq!((done[0].byte_len, done[1].byte_len), (0, 990));
    assert!(got.is_empty(), "the peer does not notice");
    assert_eq!(two.b.read(5000, 1000), bytes);
    assert_eq!(two.a.read(8000, 990), bytes[10..]);
    qb.post_recv(3, mb.buf(0..1).unwrap()).unwrap();
    let wr = signaled(4, SendOp::WriteImm(remote, 77));
    qa.post_send(&wr, Some(ma.buf(0..500).unwrap())).unwrap();
    let (_, got) = two.run(&mut qa, &mut qb);
    assert_eq!((got[0].opcode, got[0].recv.imm), (WcOpcode::RecvWriteImm, Some(77)));
    assert_eq!(got[0].byte_len, 500);
    two.world.assert_clean();
}

#[test]
fn atomics_work_on_integers_of_the_host() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    assert!(two.a.context.attr().caps.contains(DeviceCaps::ATOMICS_HOST_ORDER));
    let (mut qa, mut qb) = two.connected::<Buf>();
    let remote = RemoteAddr { addr: mb.addr() + 64, rkey: mb.rkey().unwrap() };
    two.b.fill(64, &41u64.to_le_bytes());
    let result = || Some(ma.buf(0..8).unwrap());
    let value = |two: &Two| u64::from_le_bytes(two.b.read(64, 8).try_into().unwrap());
    qa.post_send(&signaled(1, SendOp::FetchAdd { remote, add: 1 }), result()).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&done), done[0].byte_len), (vec![(1, true)], 8));
    assert_eq!((two.a.read(0, 8), value(&two)), (41u64.to_le_bytes().to_vec(), 42));
    for (compare, after) in [(7, 42), (42, 99)] {
        let op = SendOp::CompareSwap { remote, compare, swap: 99 };
        qa.post_send(&signaled(2, op), result()).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(done[0].opcode, WcOpcode::CompareSwap);
        assert_eq!((two.a.read(0, 8), value(&two)), (42u64.to_le_bytes().to_vec(), after));
    }
    let op = SendOp::FetchAdd { remote, add: 1 };
    let refused = qa.post_send(&signaled(3, op), Some(ma.buf(0..9).unwrap())).unwrap_err();
    assert_eq!((refused.cause, refused.held.unwrap().len()), (PostError::AtomicBuffer, 9));
    two.world.assert_clean();
}

/// A device that is not told so chooses them itself.
#[test]
fn udp_source_ports_are_chosen_by_the_driver() {
    let two = Two::new();
    let page = two.a.context.device().capability_page(cap_type::ROCE).unwrap();
    assert!(RoceCap::read_from(&page).unwrap().sw_r_roce_src_udp_port());
}

/// Rights go with the step to RTR and with changes, and those to atomics with their kind: the model
/// lets none in else.
#[test]
fn atomics_are_let_in_by_a_change_and_where_none_are_served_not_at_all() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    for (max_dest_rd_atomic, syndrome) in [(16, 0), (0, CqeSyndrome::REMOTE_INVAL_REQ_ERR.0)] {
        let (mut qa, mut qb) = (two.a.qp::<Buf>(&small()), two.b.qp::<Buf>(&small()));
        let (to_b, to_a) = (rtr(&two.a, &two.b, qb.qpn(), 1), rtr(&two.b, &two.a, qa.qpn(), 1));
        for (qp, rtr) in [(&mut qa, to_b), (&mut qb, RtrAttr { max_dest_rd_atomic, ..to_a })] {
            qp.init(&InitAttr::default()).unwrap();
            qp.connect(&rtr).unwrap();
            qp.activate(&rts(1)).unwrap();
        }
        let access = Some(Access::REMOTE_ATOMIC);
        qb.change(&Changes { access, ..Changes::default() }).unwrap();
        let remote = RemoteAddr { addr: mb.addr() + 64, rkey: mb.rkey().unwrap() };
        let add = SendOp::FetchAdd { remote, add: 1 };
        qa.post_send(&signaled(1, add), Some(ma.buf(0..8).unwrap())).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(syndromes(&done), [syndrome]);
    }
}

#[test]
fn a_service_has_no_attributes_of_another() {
    let two = Two::new();
    let none = Changes::default();
    let rights = Changes { access: Some(Access::REMOTE), ..none };
    let (key, timer) =
        (Changes { qkey: Some(1), ..none }, Changes { min_rnr_timer: Some(1), ..none });
    for (qp_type, refused) in
        [(QpType::Rc, &[key][..]), (QpType::Uc, &[key, timer]), (QpType::Ud, &[rights, timer])]
    {
        let mut qp = two.a.qp::<Buf>(&QpConfig { qp_type, ..small() });
        qp.init(&InitAttr::default()).unwrap();
        for changes in refused {
            let error = qp.change(changes).unwrap_err();
            assert!(matches!(error, VerbsError::Unsupported { .. }), "{qp_type:?}: {error}");
        }
    }
}

#[test]
fn several_buffers_are_gathered_and_scattered_in_order() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let config = QpConfig { max_send_sge: 3, max_recv_sge: 3, ..small() };
    let (mut qa, mut qb) = two.rc::<[Buf; 3]>(&config);
    two.a.fill(0, &pattern(1000, 9));
    let cut = |mr: &Mr, at: [usize; 3], len: [usize; 3]| -> [Buf; 3] {
        std::array::from_fn(|i| mr.buf(at[i]..at[i] + len[i]).unwrap())
    };
    qb.post_recv(1, cut(&mb, [0, 1000, 2000], [10, 0, 600])).unwrap();
    let send = cut(&ma, [500, 0, 300], [100, 200, 0]);
    qa.post_send(&signaled(2, SendOp::Send), Some(send)).unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), got[0].byte_len), (vec![(2, true)], 300));
    let all = pattern(1000, 9);
    let message = [&all[500..600], &all[..200]].concat();
    assert_eq!(two.b.read(0, 10), message[..10]);
    assert_eq!(two.b.read(2000, 290), message[10..]);
    two.world.assert_clean();
}

#[test]
fn a_run_without_completions_ends_with_the_one_behind_it() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    let remote = |at| RemoteAddr { addr: mb.addr() + at, rkey: mb.rkey().unwrap() };
    let bells = qa.doorbells();
    for at in 0..5 {
        let wr = SendWr::unsignaled(at, SendOp::Write(remote(at))).with(SendFlags::MORE);
        qa.post_send(&wr, Some(ma.buf(at as usize..at as usize + 1).unwrap())).unwrap();
    }
    let last = signaled(5, SendOp::Write(remote(5))).with(SendFlags::MORE);
    qa.post_send(&last, Some(ma.buf(5..6).unwrap())).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert!(done.is_empty(), "the doorbell was not rung");
    qa.ring_doorbell();
    qa.ring_doorbell();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), (0..6).map(|id| (id, true)).collect::<Vec<_>>());
    assert_eq!(done.iter().filter(|wc| wc.is_signaled).count(), 1);
    assert!(done.into_iter().all(|wc| wc.into_buffers().is_some()));
    assert_eq!(qa.doorbells() - bells, 1);
    two.world.assert_clean();
}

#[test]
fn a_full_queue_refuses_and_a_long_run_never_fills_it_for_ever() {
    let mut two = Two::new();
    let mb = two.b.mr();
    let (mut qa, mut qb) = two.connected::<()>();
    let remote = RemoteAddr { addr: mb.addr(), rkey: mb.rkey().unwrap() };
    let (mut posted, mut ended) = (0, 0);
    // Far beyond the wrap of the 16-bit block counter.
    while posted < 70_000 {
        let wr = SendWr::unsignaled(posted, SendOp::Write(remote));
        match qa.post_send_inline(&wr, &posted.to_le_bytes()) {
            Ok(()) => posted += 1,
            Err(cause) => {
                assert_eq!(cause, PostError::Full);
                let (done, _) = two.run(&mut qa, &mut qb);
                assert!(!done.is_empty(), "full for ever");
                for wc in done {
                    assert_eq!((wc.wr_id, wc.result), (ended, Ok(())));
                    ended += 1;
                }
            }
        }
    }
    two.world.settle();
    assert_eq!(two.b.read(0, 8), (posted - 1).to_le_bytes());
    two.world.assert_clean();
}

#[test]
fn many_queue_pairs_take_turns_at_a_port_that_is_full() {
    let mut two = Two::new();
    let mr = two.a.mr();
    let remote = |at: u64| RemoteAddr { addr: mr.addr() + 8 * at, rkey: mr.rkey().unwrap() };
    // To themselves: more packets than the port holds for itself.
    let mut qps: Vec<Qp<()>> = Vec::new();
    for at in 0..50 {
        let config = QpConfig { user_index: at, ..small() };
        let mut qp = two.a.qp(&config);
        qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
        qp.connect(&rtr(&two.a, &two.a, qp.qpn(), 0)).unwrap();
        qp.activate(&rts(0)).unwrap();
        qps.push(qp);
    }
    for round in 0..16_u64 {
        for (at, qp) in qps.iter_mut().enumerate() {
            let write = signaled(round, SendOp::Write(remote(at as u64 * 16 + round)));
            qp.post_send_inline(&write, &(at as u64 * 16 + round + 1).to_le_bytes()).unwrap();
        }
    }
    two.world.settle();
    let mut ended = vec![Vec::new(); qps.len()];
    while let Some(completion) = two.a.cq.poll() {
        let at = completion.user_index() as usize;
        let each = |wc: Wc<()>| ended[at].push((wc.wr_id, wc.result.is_ok()));
        qps[at].complete(completion, each).unwrap();
    }
    assert!(ended.iter().all(|ids| ids.iter().copied().eq((0..16).map(|id| (id, true)))));
    let written: Vec<u8> = (1..=16 * 50_u64).flat_map(u64::to_le_bytes).collect();
    assert_eq!(two.a.read(0, written.len()), written);
    two.world.assert_clean();
}

#[test]
fn receives_fill_their_queue_and_wrap() {
    let mut two = Two::new();
    let mb = two.b.mr();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let mut next = 0;
    for round in 0..20_u64 {
        for at in 0..16 {
            qb.post_recv(round * 16 + at, mb.buf(at as usize * 8..at as usize * 8 + 8).unwrap())
                .unwrap();
        }
        let refused = qb.post_recv(0, mb.buf(0..8).unwrap()).unwrap_err();
        assert_eq!((refused.cause, refused.held.len()), (PostError::Full, 8));
        for at in 0..16_u64 {
            qa.post_send_inline(&signaled(at, SendOp::Send), &at.to_le_bytes()).unwrap();
        }
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!(sent.len(), 16);
        for wc in got {
            assert_eq!((wc.wr_id, wc.byte_len), (next, 8));
            let bytes = wc.into_buffers().unwrap().to_vec();
            assert_eq!(bytes, (next % 16).to_le_bytes());
            next += 1;
        }
    }
    assert_eq!(next, 320);
    two.world.assert_clean();
}

#[test]
fn a_failure_is_named_the_rest_is_flushed_and_everything_comes_back() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    qa.post_recv(50, ma.buf(0..8).unwrap()).unwrap();
    qb.post_recv(60, mb.buf(0..8).unwrap()).unwrap();
    let bad = RemoteAddr { addr: mb.addr(), rkey: Rkey(mb.rkey().unwrap().0 ^ 1) };
    let buf = || Some(ma.buf(0..4).unwrap());
    for (wr_id, op) in [(1, SendOp::Send), (2, SendOp::Write(bad)), (3, SendOp::Send)] {
        qa.post_send(&SendWr { wr_id, flags: SendFlags::MORE, op }, buf()).unwrap();
    }
    qa.post_send(&signaled(4, SendOp::Send), buf()).unwrap();
    let (done, got) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&got), [(60, true)], "what was sent before arrived");
    let sends: Vec<_> = done.iter().filter(|wc| wc.wr_id < 50).collect();
    assert_eq!(sends.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let codes: Vec<u8> =
        sends.iter().map(|wc| wc.result.map_or_else(|f| f.syndrome.0, |()| 0)).collect();
    assert_eq!(codes, [0, 0x13, 5, 5], "remote access error, then flushed");
    assert!(sends[2].result.unwrap_err().is_flush());
    assert_eq!(syndromes(&done).iter().filter(|code| **code == 5).count(), 3, "and the receive");
    assert!(done.into_iter().all(|wc| wc.into_buffers().is_some()));
    assert_eq!((qa.state(), qa.query().unwrap().state), (QpState::Error, QpState::Error));
    // What is posted now is flushed, too, in order.
    for wr_id in 5..8 {
        qa.post_send(&signaled(wr_id, SendOp::Send), buf()).unwrap();
    }
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(5, false), (6, false), (7, false)]);
    assert_eq!(syndromes(&done), [5; 3]);
    assert!(!qa.has_outstanding());
}

#[test]
fn a_queue_pair_lives_again_after_error_and_reset() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    for life in 0..3 {
        qb.post_recv(1, mb.buf(0..8).unwrap()).unwrap();
        qa.post_send_inline(&signaled(2, SendOp::Send), &[life; 8]).unwrap();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&sent), ids(&got)), (vec![(2, true)], vec![(1, true)]), "life {life}");
        assert_eq!(two.b.read(0, 8), [life; 8]);
        qa.post_recv(3, ma.buf(0..8).unwrap()).unwrap();
        qa.to_error().unwrap();
        qb.to_error().unwrap();
        assert!(matches!(qa.reset(), Err(VerbsError::StillPosted { posted: 1 })));
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(syndromes(&done), [5]);
        for (qp, own, other) in [(&mut qa, &two.a, &two.b), (&mut qb, &two.b, &two.a)] {
            qp.reset().unwrap();
            assert_eq!(qp.query().unwrap().state, QpState::Reset);
            qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
            let _ = (own, other);
        }
        let (na, nb) = (qa.qpn(), qb.qpn());
        qa.connect(&common::rtr(&two.a, &two.b, nb, 5)).unwrap();
        qb.connect(&common::rtr(&two.b, &two.a, na, 5)).unwrap();
        qa.activate(&common::rts(5)).unwrap();
        qb.activate(&common::rts(5)).unwrap();
    }
    assert!(matches!(qa.init(&InitAttr::default()), Err(VerbsError::WrongState { .. })));
}

#[test]
fn a_fence_waits_for_reads() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    two.b.fill(0, b"the peer's bytes");
    qb.post_recv(1, mb.buf(100..200).unwrap()).unwrap();
    let remote = RemoteAddr { addr: mb.addr(), rkey: mb.rkey().unwrap() };
    // What the READ brings is sent on: without the fence the SEND might go first.
    let wr = SendWr::unsignaled(1, SendOp::Read(remote)).with(SendFlags::MORE);
    qa.post_send(&wr, Some(ma.buf(0..16).unwrap())).unwrap();
    let wr = signaled(2, SendOp::Send).with(SendFlags::FENCE);
    qa.post_send(&wr, Some(ma.buf(0..16).unwrap())).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(1, true), (2, true)]);
    assert_eq!(two.b.read(100, 16), b"the peer's bytes");
    two.world.assert_clean();
}

#[test]
fn a_peer_without_receives_is_not_ready_and_one_that_is_gone_times_out() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<()>();
    qa.post_send_inline(&signaled(1, SendOp::Send), &[]).unwrap();
    two.world.wait_us(5_000);
    assert_eq!(syndromes(&take(&mut two.a.cq, &mut qa)), [0x16], "RNR retries exceeded");
    let (mut qc, qd) = two.connected::<()>();
    drop(qd);
    qc.post_send_inline(&signaled(1, SendOp::Send), &[]).unwrap();
    two.world.wait_us(20_000);
    assert_eq!(syndromes(&take(&mut two.a.cq, &mut qc)), [0x15], "transport retries exceeded");
    let _ = take(&mut two.b.cq, &mut qb);
}

#[test]
fn sizes_are_checked_and_completion_queues_cannot_overrun() {
    let two = Two::new();
    // As many entries as requests, of both directions.
    let tiny = two.a.context.create_cq(30).unwrap();
    assert_eq!(tiny.entries(), 32);
    let create = |config: &QpConfig| two.a.pd.create_qp::<Buf>(&tiny, config);
    let error = create(&QpConfig { max_send_wr: 17, ..small() }).unwrap_err();
    assert!(matches!(error, VerbsError::CqTooSmall { need: 16, free: 15 }), "{error}");
    let error = create(&QpConfig { max_send_wr: 33, ..small() }).unwrap_err();
    assert!(matches!(error, VerbsError::CqTooSmall { need: 33, free: 32 }), "{error}");
    for bad in [
        QpConfig { max_send_wr: 0, ..small() },
        QpConfig { max_recv_wr: 1 << 20, ..small() },
        QpConfig { max_send_sge: 64, ..small() },
        QpConfig { max_recv_sge: 33, ..small() },
        QpConfig { max_inline_bytes: 929, ..small() },
        QpConfig { user_index: 0xff_ffff, ..small() },
    ] {
        let error = create(&bad).unwrap_err();
        assert!(matches!(error, VerbsError::OutOfRange { .. }), "{error}");
    }
    // Room that was promised comes back.
    for _ in 0..10 {
        create(&small()).unwrap();
    }
    two.world.assert_clean();
}

#[test]
fn what_succeeded_unreported_comes_back_after_an_error() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<Buf>();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let remote = RemoteAddr { addr: mb.addr(), rkey: mb.rkey().unwrap() };
    for id in 0..3 {
        let wr = SendWr::unsignaled(id, SendOp::Write(remote));
        qa.post_send(&wr, Some(ma.buf(0..8).unwrap())).unwrap();
    }
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!((done.len(), qa.has_outstanding()), (0, true), "carried out, and not reported");
    qa.to_error().unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&done), [(0, true), (1, true), (2, true)]);
    assert!(done.into_iter().all(|wc| wc.into_buffers().is_some()) && !qa.has_outstanding());
    qa.reset().unwrap();
    two.world.assert_clean();
}

/// More queue pairs than doorbell pages: those that share one are rung back to back.
#[test]
fn queue_pairs_that_share_a_doorbell_page_lose_none() {
    let mut two = Two::new();
    two.a.cq = two.a.context.create_cq(1 << 14).unwrap();
    two.b.cq = two.b.context.create_cq(1 << 14).unwrap();
    let pairs: Vec<_> = (0..150).map(|_| two.rc::<()>(&small())).collect();
    let (mut qas, mut qbs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    for round in 0..3 {
        for (qa, qb) in qas.iter_mut().zip(&mut qbs) {
            qb.post_recv(round, ()).unwrap();
            qa.post_send_inline(&SendWr::signaled(round, SendOp::Send), &[]).unwrap();
        }
        two.world.settle();
        for (cq, qps) in [(&mut two.a.cq, &mut qas), (&mut two.b.cq, &mut qbs)] {
            let mut ended = 0;
            while let Some(completion) = cq.poll() {
                let qp = qps.iter_mut().find(|qp| qp.qpn() == completion.qpn()).unwrap();
                qp.complete(completion, |wc| ended += u32::from(wc.result.is_ok())).unwrap();
            }
            assert_eq!(ended, 150);
        }
    }
    two.world.assert_clean();
}

/// Requests of one block and of several, all of them flushed: each takes an entry.
#[test]
fn as_many_entries_as_requests_take_every_flush() {
    for (len, fast_reg) in [(8, false), (64, false), (64, true)] {
        let mut two = Two::new();
        two.a.cq = two.a.context.create_cq(32).unwrap();
        let (mut qa, _qb) = two.rc::<()>(&QpConfig { fast_reg, ..small() });
        let wr = SendWr::unsignaled(1, SendOp::Send).with(SendFlags::MORE);
        for left in (0..16).rev() {
            qa.post_recv(2, ()).unwrap();
            qa.post_send_inline(&wr, &pattern(len, 1)).unwrap();
            assert_eq!(qa.free_wr(), left);
        }
        assert_eq!(qa.post_send_inline(&wr, &[0; 8]).unwrap_err(), PostError::Full);
        assert_eq!(qa.post_send_inline(&wr, &[0; 64]).unwrap_err(), PostError::Full);
        assert_eq!(qa.post_send(&wr, Some(())).unwrap_err().cause, PostError::Full);
        assert_eq!(qa.post_recv(2, ()).unwrap_err().cause, PostError::Full);
        qa.to_error().unwrap();
        two.world.settle();
        let mut batch = arrayvec::ArrayVec::<Completion, 64>::new();
        assert_eq!(two.a.cq.poll_batch(&mut batch), 32);
        let mut ended = [0; 3];
        for mut completion in batch {
            while let Some(wc) = qa.next_wc(&mut completion).unwrap() {
                ended[wc.wr_id as usize] += 1;
            }
        }
        assert_eq!((ended, qa.has_outstanding(), qa.free_wr()), ([0, 16, 16], false, 16));
        two.world.assert_clean();
    }
}

#[test]
fn a_completion_of_another_queue_pair_ends_nothing() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.connected::<()>();
    let (mut other, _peer) = two.connected::<()>();
    qa.to_error().unwrap();
    qa.reset().unwrap();
    other.post_send_inline(&signaled(1, SendOp::Send), &[]).unwrap();
    other.to_error().unwrap();
    two.world.settle();
    let mut completion = two.a.cq.poll().unwrap();
    assert_eq!(qa.next_wc(&mut completion).unwrap_err().of, other.qpn().0);
    let wc = other.next_wc(&mut completion).unwrap().unwrap();
    assert_eq!((wc.wr_id, wc.result.is_ok()), (1, false));
    assert!(other.next_wc(&mut completion).unwrap().is_none());
}

#[test]
fn a_list_of_receives_is_posted_up_to_the_first_that_is_refused() {
    let mut two = Two::new();
    let (mb, (mut qa, mut qb)) = (two.b.mr(), two.connected::<Buf>());
    let most = small().max_recv_wr as usize;
    let buf = |at: usize| (at as u64, mb.buf(at * 8..at * 8 + 8).unwrap());
    let mut receives = (0..most + 3).map(buf);
    let refused = qb.post_recv_list(&mut receives).unwrap_err();
    assert_eq!(refused.cause, PostError::Full);
    assert_eq!((refused.held.len(), receives.len()), (8, 2), "what is behind it is not taken");
    for at in 0..most as u64 {
        let wr = SendWr::signaled(at, SendOp::Send);
        qa.post_send_inline(&wr, &at.to_be_bytes()).unwrap();
    }
    let (sent, got) = two.run(&mut qa, &mut qb);
    let all: Vec<_> = (0..most as u64).map(|at| (at, true)).collect();
    assert_eq!((ids(&sent), ids(&got)), (all.clone(), all), "the device was told of all");
    assert_eq!(two.b.read(8 * (most - 1), 8), (most as u64 - 1).to_be_bytes());
    assert_eq!(qb.post_recv_list(&mut receives).unwrap(), 2);
    let mut fresh = two.b.qp::<Buf>(&small());
    let refused = fresh.post_recv_list(&mut [buf(0)].into_iter()).unwrap_err();
    assert_eq!(refused.cause, PostError::State);
}
