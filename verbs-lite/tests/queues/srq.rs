//! Shared receive queues: order, reuse, limits, errors, and the life of all objects.

use crate::common;
use crate::common::{MEMORY_BYTES, Side, Two, ids, pattern, rts, small, syndromes, take};
use ferrocx_core::Event;
use ferrocx_mempool::Mbuf;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::wq::QueryRmp;
use ferrocx_prm::eqe::EventType;
use ferrocx_verbs_lite::*;

const LOCAL_LENGTH: u8 = 0x01;
const QKEY: u32 = 0x77;

/// `count` connections from `a` to `b`, all of `b`'s on one shared queue.
struct Scene {
    qas: Vec<Qp>,
    qbs: Vec<Qp>,
    srq: Srq,
    ma: Mr,
    mb: Mr,
    two: Two,
}

/// A queue pair whose receives come from `srq` and complete in `recv_cq`.
fn create<B: Buffers>(side: &Side, recv_cq: &Cq, srq: &Srq<B>) -> Result<Qp<B>, VerbsError> {
    let queues = QpQueues { send_cq: &side.cq, recv_cq, srq: Some(srq) };
    side.pd.create_qp(queues, &small())
}

fn on<B: Buffers>(side: &Side, srq: &Srq<B>) -> Qp<B> {
    create(side, &side.cq, srq).unwrap()
}

impl Scene {
    fn new(count: usize, config: &SrqConfig) -> Self {
        let two = Two::new();
        let srq: Srq = two.b.pd.create_srq(config).unwrap();
        let (mut qas, mut qbs) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let (mut qa, mut qb) = (two.a.qp(&small()), on(&two.b, &srq));
            two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
            qas.push(qa);
            qbs.push(qb);
        }
        let (ma, mb) = (two.a.mr(), two.b.mr());
        Self { qas, qbs, srq, ma, mb, two }
    }

    /// A receive of `len` bytes at `at`.
    fn post(&mut self, wr_id: u64, at: usize, len: usize) {
        self.srq.post_recv(wr_id, self.mb.buf(at..at + len).unwrap()).unwrap();
    }

    fn send(&mut self, from: usize, bytes: &[u8]) {
        let wr = SendWr::signaled(from as u64, SendOp::Send);
        self.qas[from].post_send_inline(&wr, bytes).unwrap();
    }

    /// Everything that ended at `b`, with the place of its queue pair, and the sends' syndromes.
    fn run(&mut self) -> (Vec<(usize, Wc<Buf>)>, Vec<u8>) {
        self.two.world.settle();
        let mut sent = Vec::new();
        while let Some(completion) = self.two.a.cq.poll() {
            let qp = self.qas.iter_mut().find(|qp| qp.qpn() == completion.qpn()).unwrap();
            qp.complete(completion, |wc| sent.extend(syndromes(&[wc]))).unwrap();
        }
        let mut got = Vec::new();
        while let Some(completion) = self.two.b.cq.poll() {
            let at = self.qbs.iter().position(|qp| qp.qpn() == completion.qpn()).unwrap();
            let each = |wc| got.push((at, wc));
            self.qbs[at].complete_shared(completion, &mut self.srq, each).unwrap();
        }
        (got, sent)
    }
}

#[test]
fn queue_pairs_take_turns_and_entries_come_round() {
    let mut scene = Scene::new(3, &SrqConfig { max_wr: 7, max_sge: 1 });
    assert_eq!(scene.srq.max_wr(), 7);
    // Many times round the ring of eight, in bursts that leave receives behind.
    let (mut posted, mut ended) = (0u64, 0u64);
    for round in 0..40usize {
        while posted - ended < 7 {
            scene.post(posted, (posted % 7) as usize * 64, 64);
            posted += 1;
        }
        let full = scene.srq.post_recv(99, scene.mb.buf(0..8).unwrap()).unwrap_err();
        assert_eq!(full.cause, PostError::Full);
        let burst = 1 + round % 5;
        for at in 0..burst {
            let from = (round + at) % 3;
            scene.send(from, &[round as u8, at as u8, from as u8, 4]);
        }
        let (got, sent) = scene.run();
        assert_eq!((got.len(), sent), (burst, vec![0; burst]));
        for (at, (qp, wc)) in got.into_iter().enumerate() {
            assert_eq!((wc.wr_id, wc.result, wc.byte_len), (ended, Ok(()), 4), "in order");
            let bytes = wc.into_buffers().unwrap().to_vec();
            assert_eq!(bytes[0], round as u8);
            assert_eq!((bytes[2] as usize, bytes[3]), (qp, 4), "{at}");
            ended += 1;
        }
    }
    assert_eq!(u64::from(scene.srq.outstanding()), posted - ended);
    scene.two.world.assert_clean();
}

#[test]
fn packets_are_received_as_they_are_and_go_round() {
    let mut two = Two::new();
    let pool = common::pool("srq");
    let device = two.b.context.device().clone();
    let config = SrqConfig { max_wr: 7, max_sge: 1 };
    let mut srq: Srq<Mbuf> = two.b.pd.create_srq(&config).unwrap();
    let unknown = srq.post_recv(0, pool.get().unwrap()).unwrap_err();
    assert_eq!(unknown.cause, PostError::Pd, "the pool is not registered");
    drop(unknown);
    device.register_pool(&pool).unwrap();
    let (mut qa, mut qb) = (two.a.qp::<Mbuf>(&small()), on(&two.b, &srq));
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    let mut packets: Vec<Mbuf> = (0..7).map(|_| pool.get().unwrap()).collect();
    let mut shared = pool.get().unwrap();
    shared.append(4).unwrap();
    let clone = shared.clone_ref(&mut pool.cache()).unwrap();
    assert_eq!(srq.post_recv(0, shared).unwrap_err().cause, PostError::NotExclusive);
    drop(clone);
    for round in 0..30u8 {
        for (at, packet) in packets.drain(..).enumerate() {
            srq.post_recv(at as u64, packet).unwrap();
        }
        for at in 0..7 {
            let wr = SendWr::signaled(at.into(), SendOp::Send);
            qa.post_send_inline(&wr, &[round, at, 9][..2 + usize::from(at % 2)]).unwrap();
        }
        two.world.settle();
        assert_eq!(syndromes(&take(&mut two.a.cq, &mut qa)), [0; 7]);
        while let Some(completion) = two.b.cq.poll() {
            let each = |wc: Wc<Mbuf>| {
                let (at, len) = (wc.wr_id as u8, wc.byte_len as usize);
                let mut packet = wc.into_buffers().unwrap();
                // Grown by what arrived, and behind what was there.
                assert_eq!(packet.data(), &[round, at, 9][..2 + usize::from(at % 2)]);
                assert_eq!(packet.data_len(), len);
                assert!(packet.trim(len));
                packets.push(packet);
            };
            qb.complete_shared(completion, &mut srq, each).unwrap();
        }
        assert_eq!(packets.len(), 7);
    }
    srq.post_recv(1, packets.pop().unwrap()).unwrap();
    // The queue holds one of the pool's, and hands it back with its own end.
    drop((qb, srq));
    drop(packets);
    device.unregister_pool(&pool).unwrap();
    assert_eq!(pool.stats().in_use, 0);
    two.world.assert_clean();
}

#[test]
fn lists_of_several_buffers_are_filled_in_order() {
    let mut two = Two::new();
    let config = SrqConfig { max_wr: 4, max_sge: 2 };
    let mut srq: Srq<[Buf; 2]> = two.b.pd.create_srq(&config).unwrap();
    let (mut qa, mut qb) = (two.a.qp(&small()), on(&two.b, &srq));
    two.join([&mut qa, &mut qb], [Access::empty(); 2], &rts(0));
    let mb = two.b.mr();
    let list = [mb.buf(100..110).unwrap(), mb.buf(50..90).unwrap()];
    srq.post_recv(1, list).unwrap();
    let list = [mb.buf(0..0).unwrap(), mb.buf(200..240).unwrap()];
    srq.post_recv(2, list).unwrap();
    let bytes = pattern(40, 1);
    for _ in 0..2 {
        qa.post_send_inline(&SendWr::signaled(7, SendOp::Send), &bytes).unwrap();
    }
    two.world.settle();
    assert_eq!(ids(&take(&mut two.a.cq, &mut qa)), [(7, true), (7, true)]);
    let mut got = Vec::new();
    while let Some(completion) = two.b.cq.poll() {
        qb.complete_shared(completion, &mut srq, |wc| got.push(wc.wr_id)).unwrap();
    }
    assert_eq!(got, [1, 2]);
    assert_eq!(two.b.read(100, 10), bytes[..10]);
    assert_eq!(two.b.read(50, 30), bytes[10..]);
    assert_eq!(two.b.read(200, 40), bytes);
    two.world.assert_clean();
}

#[test]
fn datagrams_of_two_queue_pairs_share_receives() {
    let mut two = Two::new();
    let mut srq: Srq = two.b.pd.create_srq(&SrqConfig::default()).unwrap();
    let (a, b) = (&two.a, &two.b);
    let mut qa = a.datagrams(QKEY);
    let make = || {
        let queues = QpQueues { srq: Some(&srq), ..QpQueues::from(&b.cq) };
        let config = QpConfig { qp_type: QpType::Ud, ..small() };
        let mut qp = b.pd.create_qp(queues, &config).unwrap();
        b.start(&mut qp, QKEY);
        qp
    };
    let mut qbs = [make(), make()];
    let mb = two.b.mr();
    for id in 0..4 {
        srq.post_recv(id, mb.buf(id as usize * 100..id as usize * 100 + 100).unwrap()).unwrap();
    }
    for id in 0..4usize {
        let to = AddressHandle::new(&common::path(a, b), qbs[id % 2].qpn(), QKEY);
        let wr = SendWr::signaled(id as u64, SendOp::Datagram { to: &to, imm: None });
        qa.post_send_inline(&wr, &[id as u8; 9]).unwrap();
    }
    two.world.settle();
    assert_eq!(take(&mut two.a.cq, &mut qa).len(), 4);
    for id in 0..4usize {
        let completion = two.b.cq.poll().unwrap();
        let qb = &mut qbs[id % 2];
        assert_eq!(completion.qpn(), qb.qpn());
        let mut got = None;
        qb.complete_shared(completion, &mut srq, |wc| got = Some(wc)).unwrap();
        let wc = got.unwrap();
        assert_eq!((wc.wr_id, wc.byte_len, wc.recv.has_grh), (id as u64, 49, true));
        assert_eq!(two.b.read(id * 100 + 40, 9), [id as u8; 9]);
    }
    two.world.assert_clean();
}

#[test]
fn the_limit_is_reported_once_for_each_time_it_was_asked_for() {
    let mut scene = Scene::new(1, &SrqConfig { max_wr: 15, max_sge: 1 });
    let event = |scene: &Scene| {
        scene.two.world.settle();
        scene.two.b.context.poll_async_event()
    };
    for id in 0..8 {
        scene.post(id, 0, 64);
    }
    let refused = scene.srq.arm_limit(16).unwrap_err();
    assert!(matches!(refused, VerbsError::OutOfRange { max: 15, .. }), "{refused}");
    scene.srq.arm_limit(6).unwrap();
    for (sends, left, is_reported) in [(2, 6, false), (1, 5, true), (2, 3, false)] {
        for _ in 0..sends {
            scene.send(0, b"12345678");
        }
        assert_eq!(scene.run().0.len(), sends);
        assert_eq!(scene.srq.outstanding(), left);
        let srqn = scene.srq.number();
        let expected = Event::SharedReceive { event: EventType::SRQ_LIMIT, srqn };
        assert_eq!(event(&scene), is_reported.then_some(expected), "{left} left");
    }
    scene.two.world.assert_clean();
}

#[test]
fn a_failed_queue_pair_leaves_the_receives_to_the_others() {
    let mut scene = Scene::new(2, &SrqConfig::default());
    for id in 0..4 {
        scene.post(id, id as usize * 64, 16);
    }
    // Too long for its receive: that one ends with an error, and its queue pair fails.
    scene.send(0, &[1; 17]);
    let (got, sent) = scene.run();
    assert_eq!(sent, [0x12], "remote invalid request");
    assert_eq!(got.len(), 1);
    let (qp, wc) = got.into_iter().next().unwrap();
    assert_eq!((qp, wc.wr_id, wc.byte_len), (0, 0, 0));
    assert_eq!(wc.result.unwrap_err().syndrome.0, LOCAL_LENGTH);
    assert!(wc.into_buffers().is_some(), "the buffer comes back");
    assert_eq!(scene.qbs[0].state(), QpState::Error);
    scene.qbs[0].to_error().unwrap();
    assert!(scene.run().0.is_empty(), "nothing is flushed from the shared queue");
    scene.send(1, &[2; 16]);
    let (got, sent) = scene.run();
    assert_eq!((sent, got[0].0, got[0].1.wr_id), (vec![0], 1, 1));
    assert_eq!(scene.srq.outstanding(), 2);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let mut scene = Scene::new(1, &SrqConfig { max_wr: 2, max_sge: 1 });
    let own = scene.mb.buf(0..8).unwrap();
    assert_eq!(scene.qbs[0].post_recv(1, own).unwrap_err().cause, PostError::Shared);
    let other = scene.two.b.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(&scene.two.b.memory, 0..64, Access::LOCAL_WRITE).unwrap();
    let refused = scene.srq.post_recv(1, foreign.buf(0..8).unwrap()).unwrap_err();
    assert_eq!(refused.cause, PostError::Pd);
    let (a, b) = (&scene.two.a, &scene.two.b);
    let refused = create(a, &a.cq, &scene.srq).unwrap_err();
    assert!(matches!(refused, VerbsError::OtherDevice { .. }), "{refused}");
    let small_cq = b.context.create_cq(1).unwrap();
    let refused = create(b, &small_cq, &scene.srq).unwrap_err();
    assert!(matches!(refused, VerbsError::CqTooSmall { need: 2, free: 1 }), "{refused}");
    for bad in [SrqConfig { max_wr: 0, max_sge: 1 }, SrqConfig { max_wr: 1, max_sge: 0 }] {
        assert!(matches!(b.pd.create_srq::<Buf>(&bad), Err(VerbsError::OutOfRange { .. })));
    }
    // The completion of a receive of another shared queue.
    let mut stranger: Srq = b.pd.create_srq(&SrqConfig::default()).unwrap();
    scene.post(5, 0, 8);
    scene.send(0, b"x");
    scene.two.world.settle();
    let completion = scene.two.b.cq.poll().unwrap();
    let _ = scene.qbs[0].complete_shared(completion, &mut stranger, |_| {}).unwrap_err();
    assert_eq!((scene.srq.outstanding(), stranger.outstanding()), (1, 0));
    scene.two.world.assert_clean();
}

#[test]
fn one_share_of_a_completion_queue_is_enough_for_all() {
    let two = Two::new();
    let side: &Side = &two.b;
    let srq: Srq = side.pd.create_srq(&SrqConfig { max_wr: 32, max_sge: 1 }).unwrap();
    let cq = side.context.create_cq(32).unwrap();
    let make = || create(side, &cq, &srq).unwrap();
    let qps: Vec<_> = (0..20).map(|_| make()).collect();
    drop(qps);
    drop(srq);
    let _whole: Srq = side.pd.create_srq(&SrqConfig { max_wr: 32, max_sge: 1 }).unwrap();
    let _qp = create(side, &cq, &_whole).unwrap();
    two.world.assert_clean();
}

#[test]
fn dropped_first_it_stays_until_its_queue_pairs_are_gone() {
    let mut scene = Scene::new(2, &SrqConfig::default());
    scene.post(1, 0, 64);
    scene.post(2, 64, 64);
    scene.send(0, b"before");
    scene.two.world.settle();
    let Scene { two, qas, qbs, srq, ma, mb } = scene;
    let number = srq.number();
    drop(srq);
    let is_alive = QueryRmp::input().with_rmpn(number);
    // SAFETY: a question changes nothing.
    let query =
        |input| unsafe { two.b.context.device().execute_raw::<QueryRmp>(input, &[], &mut []) };
    query(&is_alive).unwrap();
    // Nobody takes the completion; the device still fills what is posted.
    drop(qbs);
    assert_eq!(two.b.read(0, 6), b"before");
    let gone = QueryRmp::input().with_rmpn(number);
    assert!(query(&gone).is_err(), "it was destroyed with its last queue pair");
    drop((qas, ma, mb));
    let Two { a, b, world } = two;
    drop((a, b.pd, b.cq));
    assert_eq!(b.memory.len_bytes(), MEMORY_BYTES);
    drop(b.memory);
    common::close(b.context).unwrap();
    assert_eq!(world.refusals(1).len(), 1, "the query above");
}

#[test]
fn only_its_own_queue_pairs_completions_end_shared_receives_and_once() {
    let mut scene = Scene::new(1, &SrqConfig::default());
    let (mut qa, mut qb) = (scene.two.a.qp::<Buf>(&small()), scene.two.b.qp::<Buf>(&small()));
    scene.two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    // The first entry of each queue: their completions differ in the queue pair alone.
    qb.post_recv(8, scene.mb.buf(512..576).unwrap()).unwrap();
    scene.post(1, 0, 64);
    qa.post_send_inline(&SendWr::signaled(1, SendOp::Send), b"strange").unwrap();
    scene.two.world.settle();
    let strange = scene.two.b.cq.poll().unwrap();
    assert!(scene.srq.complete(strange).is_none(), "of a queue pair with receives of its own");
    assert_eq!(scene.srq.outstanding(), 1);
    // One that gave out what it ended ends nothing more.
    scene.send(0, b"first");
    scene.two.world.settle();
    let mut completion = scene.two.b.cq.poll().unwrap();
    let first = scene.qbs[0].next_wc_shared(&mut completion, &mut scene.srq).unwrap().unwrap();
    assert_eq!(first.wr_id, 1);
    for wr_id in 2..4 {
        scene.post(wr_id, 0, 64);
    }
    assert!(scene.srq.complete(completion).is_none());
    assert_eq!(scene.srq.outstanding(), 2);
    // Of a queue pair that is gone it still ends the receive.
    scene.send(0, b"second");
    scene.two.world.settle();
    drop(scene.qbs.pop());
    let second = scene.srq.complete(scene.two.b.cq.poll().unwrap()).unwrap();
    assert_eq!((second.wr_id, second.byte_len), (2, 6));
    assert_eq!(scene.srq.outstanding(), 1);
}

#[test]
fn a_list_of_shared_receives_is_posted_up_to_the_first_that_is_refused() {
    let mut scene = Scene::new(1, &SrqConfig { max_wr: 7, max_sge: 1 });
    let mb = scene.mb.clone();
    let mut receives = (0..9).map(|at| (at as u64, mb.buf(at * 8..at * 8 + 8).unwrap()));
    let refused = scene.srq.post_recv_list(&mut receives).unwrap_err();
    assert_eq!((refused.cause, receives.len(), scene.srq.outstanding()), (PostError::Full, 1, 7));
    (0..7).for_each(|at| scene.send(0, &[at; 8]));
    let (got, sent) = scene.run();
    let ended: Vec<_> = got.iter().map(|(_, wc)| (wc.wr_id, wc.byte_len)).collect();
    assert_eq!(ended, (0..7).map(|at| (at, 8)).collect::<Vec<_>>());
    assert_eq!(sent, [0; 7], "the device was told of all");
    assert_eq!(scene.two.b.read(48, 8), [6; 8]);
    assert_eq!(scene.srq.post_recv_list(&mut receives).unwrap(), 1);
}
