//! XRC: requests that name a shared receive queue, its domain and its completion queue, limits,
//! what is refused, and the life of all objects.

use crate::common;
use crate::common::{
    MEMORY_BYTES, PSNS, Side, Two, ids, pattern, rtr, rts, small, syndromes, take,
};
use ferrocx_core::Event;
use ferrocx_prm::eqe::EventType;
use ferrocx_verbs_lite::*;

const REMOTE_INVALID_REQUEST: u8 = 0x12;
const REMOTE_ACCESS: u8 = 0x13;
const RNR_RETRY: u8 = 0x16;

/// An initiator at `a`, connected to a target at `b`, and two shared queues of its domain.
struct Scene {
    qa: Qp,
    target: Qp,
    srqs: [Srq; 2],
    xrcd: Xrcd,
    ma: Mr,
    mb: Mr,
    two: Two,
}

fn initiator(side: &Side) -> Qp {
    side.qp(&QpConfig { qp_type: QpType::XrcSend, ..small() })
}

/// Leads both ends to where they work; the target stays in RTR, as it never sends.
fn join(two: &Two, qa: &mut Qp, target: &mut Qp) {
    let all = InitAttr { access: Access::REMOTE, qkey: 0 };
    qa.init(&all).unwrap();
    qa.connect(&rtr(&two.a, &two.b, target.qpn(), PSNS[1])).unwrap();
    qa.activate(&rts(PSNS[0])).unwrap();
    target.init(&all).unwrap();
    target.connect(&rtr(&two.b, &two.a, qa.qpn(), PSNS[0])).unwrap();
}

/// What ended at `b`, with the index of its shared queue, and at `a`.
type Ends = (Vec<(u32, Wc<Buf>)>, Vec<Wc<Buf>>);

impl Scene {
    fn new() -> Self {
        let two = Two::new();
        let xrcd = two.b.context.alloc_xrcd().unwrap();
        let config = SrqConfig { max_wr: 7, max_sge: 1 };
        let srqs =
            [30, 31].map(|index| xrcd.create_srq(&two.b.pd, &two.b.cq, index, &config).unwrap());
        let (mut qa, mut target) = (initiator(&two.a), xrcd.create_target().unwrap());
        join(&two, &mut qa, &mut target);
        let (ma, mb) = (two.a.mr(), two.b.mr());
        Self { qa, target, srqs, xrcd, ma, mb, two }
    }

    fn post(&mut self, queue: usize, wr_id: u64, at: usize, len: usize) {
        self.srqs[queue].post_recv(wr_id, self.mb.buf(at..at + len).unwrap()).unwrap();
    }

    fn send(&mut self, queue: usize, wr_id: u64, bytes: &[u8]) {
        let wr = SendWr::signaled(wr_id, SendOp::Send);
        self.qa.post_send_xrc_inline(self.srqs[queue].srqn(), &wr, bytes).unwrap();
    }

    fn run(&mut self) -> Ends {
        self.two.world.settle();
        let sent = take(&mut self.two.a.cq, &mut self.qa);
        let mut got = Vec::new();
        while let Some(completion) = self.two.b.cq.poll() {
            assert_eq!(completion.qpn(), self.target.qpn());
            let index = completion.user_index();
            let srq = &mut self.srqs[index as usize - 30];
            got.push((index, srq.complete(completion).unwrap()));
        }
        (got, sent)
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        self.mb.buf(0..8).unwrap().remote().unwrap().at(offset)
    }
}

#[test]
fn each_message_takes_from_the_queue_that_it_names() {
    let mut scene = Scene::new();
    let (mut posted, mut ended) = ([0_u64; 2], [0_u64; 2]);
    // Many times round the rings, in another order each time.
    for round in 0..30_u64 {
        for queue in 0..2 {
            while posted[queue] - ended[queue] < 7 {
                let at = queue * 1024 + (posted[queue] % 7) as usize * 64;
                scene.post(queue, posted[queue], at, 64);
                posted[queue] += 1;
            }
        }
        let order: Vec<usize> = (0..5).map(|at| usize::from((round >> at) & 1 != 0)).collect();
        for (at, queue) in order.iter().enumerate() {
            scene.send(*queue, at as u64, &[round as u8, at as u8, *queue as u8]);
        }
        let (got, sent) = scene.run();
        assert_eq!((got.len(), ids(&sent).len()), (5, 5));
        assert!(sent.iter().all(|wc| wc.result.is_ok()));
        for (at, (index, wc)) in got.into_iter().enumerate() {
            let queue = order[at];
            assert_eq!((index as usize, wc.wr_id), (30 + queue, ended[queue]));
            assert_eq!((wc.opcode, wc.byte_len), (WcOpcode::Recv, 3));
            let bytes = wc.into_buffers().unwrap().to_vec();
            assert_eq!(bytes[..3], [round as u8, at as u8, queue as u8]);
            ended[queue] += 1;
        }
    }
    scene.two.world.assert_clean();
}

#[test]
fn every_operation_of_a_reliable_connection_is_there() {
    let mut scene = Scene::new();
    let to = scene.srqs[1].srqn();
    let bytes = pattern(3000, 5);
    scene.two.a.fill(0, &bytes);
    scene.post(1, 1, 8192, 4096);
    scene.post(1, 2, 16384, 16);
    let (write, near) = (scene.remote(0x8000), scene.remote(0x9000));
    let wr = SendWr::unsignaled(10, SendOp::SendImm(0x0102_0304));
    scene.qa.post_send_xrc(to, &wr, Some(scene.ma.buf(0..3000).unwrap())).unwrap();
    let wr = SendWr::unsignaled(11, SendOp::Write(write));
    scene.qa.post_send_xrc(to, &wr, Some(scene.ma.buf(0..3000).unwrap())).unwrap();
    let wr = SendWr::unsignaled(12, SendOp::WriteImm(near, 7));
    scene.qa.post_send_xrc_inline(to, &wr, &[9; 33]).unwrap();
    let wr = SendWr::signaled(13, SendOp::Read(write));
    scene.qa.post_send_xrc(to, &wr, Some(scene.ma.buf(4096..7096).unwrap())).unwrap();
    let (got, sent) = scene.run();
    assert_eq!(ids(&sent), [(10, true), (11, true), (12, true), (13, true)]);
    let told: Vec<_> = got.iter().map(|(_, wc)| (wc.wr_id, wc.opcode, wc.recv.imm)).collect();
    let expected = [(1, WcOpcode::Recv, Some(0x0102_0304)), (2, WcOpcode::RecvWriteImm, Some(7))];
    assert_eq!(told, expected);
    assert_eq!(scene.two.b.read(8192, 3000), bytes);
    assert_eq!(scene.two.b.read(0x8000, 3000), bytes);
    assert_eq!(scene.two.b.read(0x9000, 34), [vec![9; 33], vec![0]].concat());
    assert_eq!(scene.two.a.read(4096, 3000), bytes);

    scene.two.b.fill(0xa000, &7_u64.to_ne_bytes());
    let cell = scene.remote(0xa000);
    let wr = SendWr::signaled(14, SendOp::FetchAdd { remote: cell, add: 5 });
    scene.qa.post_send_xrc(to, &wr, Some(scene.ma.buf(0..8).unwrap())).unwrap();
    let swap = SendOp::CompareSwap { remote: cell, compare: 12, swap: 99 };
    let wr = SendWr::signaled(15, swap);
    scene.qa.post_send_xrc(to, &wr, Some(scene.ma.buf(8..16).unwrap())).unwrap();
    let (_, sent) = scene.run();
    assert_eq!(ids(&sent), [(14, true), (15, true)]);
    assert_eq!(scene.two.a.read(0, 8), 7_u64.to_ne_bytes());
    assert_eq!(scene.two.a.read(8, 8), 12_u64.to_ne_bytes());
    assert_eq!(scene.two.b.read(0xa000, 8), 99_u64.to_ne_bytes());
    scene.two.world.assert_clean();
}

#[test]
fn a_target_receives_for_a_queue_that_is_made_after_it() {
    let mut scene = Scene::new();
    let config = SrqConfig { max_wr: 1, max_sge: 1 };
    for is_first in [true, false] {
        // Of a domain that has queues already, and of one whose first this is.
        let Two { a, b, .. } = &scene.two;
        let mut cq = b.context.create_cq(8).unwrap();
        let xrcd = if is_first { b.context.alloc_xrcd().unwrap() } else { scene.xrcd.clone() };
        let (mut qa, mut target) = (initiator(a), xrcd.create_target().unwrap());
        let mut srq: Srq = xrcd.create_srq(&b.pd, &cq, 60, &config).unwrap();
        join(&scene.two, &mut qa, &mut target);
        srq.post_recv(1, scene.mb.buf(0..64).unwrap()).unwrap();
        let wr = SendWr::signaled(1, SendOp::Send);
        qa.post_send_xrc_inline(srq.srqn(), &wr, b"later").unwrap();
        scene.two.world.settle();
        let wc = srq.complete(cq.poll().unwrap()).expect("of its target");
        assert_eq!((wc.wr_id, wc.byte_len), (1, 5));
        assert_eq!(ids(&take(&mut scene.two.a.cq, &mut qa)), [(1, true)]);
    }
}

#[test]
fn many_initiators_share_a_queue_and_each_has_its_target() {
    let mut scene = Scene::new();
    let (mut second, mut target) =
        (initiator(&scene.two.a), scene.xrcd.create_target::<Buf>().unwrap());
    join(&scene.two, &mut second, &mut target);
    let to = scene.srqs[0].srqn();
    for id in 0..4 {
        scene.post(0, id, id as usize * 64, 64);
    }
    for round in 0..2 {
        scene.send(0, round, b"first");
        let wr = SendWr::signaled(round, SendOp::Send);
        second.post_send_xrc_inline(to, &wr, b"second").unwrap();
        scene.two.world.settle();
    }
    let (mut from, mut lens) = (Vec::new(), Vec::new());
    while let Some(completion) = scene.two.b.cq.poll() {
        from.push(completion.qpn());
        lens.push(scene.srqs[0].complete(completion).unwrap().byte_len);
    }
    let both = [scene.target.qpn(), target.qpn()];
    assert_eq!((from, lens), ([both, both].concat(), vec![5, 6, 5, 6]));
    scene.two.world.assert_clean();
}

#[test]
fn memory_is_reached_in_the_domain_of_the_queue_that_is_named() {
    let mut scene = Scene::new();
    let other = scene.two.b.context.alloc_pd().unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let foreign = other.reg_mr(&scene.two.b.memory, 0..MEMORY_BYTES, rights).unwrap();
    let config = SrqConfig { max_wr: 1, max_sge: 1 };
    let srq: Srq = scene.xrcd.create_srq(&other, &scene.two.b.cq, 32, &config).unwrap();
    let wr = SendWr::signaled(1, SendOp::Write(foreign.buf(0..8).unwrap().remote().unwrap()));
    scene.qa.post_send_xrc_inline(srq.srqn(), &wr, b"inside").unwrap();
    assert_eq!(ids(&scene.run().1), [(1, true)]);
    assert_eq!(scene.two.b.read(0, 6), b"inside");
    scene.qa.post_send_xrc_inline(scene.srqs[0].srqn(), &wr, b"out").unwrap();
    assert_eq!(syndromes(&scene.run().1), [REMOTE_ACCESS]);
    assert_eq!(scene.qa.state(), QpState::Error);
    assert_eq!(scene.two.b.read(0, 6), b"inside");
}

#[test]
fn a_queue_of_another_domain_is_refused_and_no_receive_is_lost() {
    let mut scene = Scene::new();
    let other = scene.two.b.context.alloc_xrcd().unwrap();
    let config = SrqConfig { max_wr: 1, max_sge: 1 };
    let foreign: Srq = other.create_srq(&scene.two.b.pd, &scene.two.b.cq, 40, &config).unwrap();
    let wr = SendWr::signaled(3, SendOp::Send);
    scene.post(0, 1, 0, 64);
    scene.qa.post_send_xrc_inline(foreign.srqn(), &wr, b"no").unwrap();
    let (got, sent) = scene.run();
    assert_eq!((got.len(), syndromes(&sent)), (0, vec![REMOTE_INVALID_REQUEST]));
    assert_eq!(scene.target.query().unwrap().state, QpState::Error);
    // Another connection finds the receive.
    let (mut qa, mut target) =
        (initiator(&scene.two.a), scene.xrcd.create_target::<Buf>().unwrap());
    join(&scene.two, &mut qa, &mut target);
    qa.post_send_xrc_inline(scene.srqs[0].srqn(), &wr, b"yes").unwrap();
    scene.two.world.settle();
    let completion = scene.two.b.cq.poll().unwrap();
    assert_eq!(scene.srqs[0].complete(completion).unwrap().byte_len, 3);
    drop(foreign);
}

#[test]
fn completions_tell_the_queues_of_a_domain_apart() {
    let mut scene = Scene::new();
    let Two { b, .. } = &scene.two;
    let config = SrqConfig { max_wr: 1, max_sge: 1 };
    let make = |index| scene.xrcd.create_srq::<Buf>(&b.pd, &b.cq, index, &config);
    let refused = make(31).unwrap_err();
    assert!(matches!(refused, VerbsError::UserIndexTaken { user_index: 31 }), "{refused}");
    drop(make(32).unwrap());
    drop(make(32).unwrap());
    for queue in 0..2 {
        scene.post(queue, 5, 0, 64);
    }
    scene.send(0, 1, b"x");
    scene.two.world.settle();
    let completion = scene.two.b.cq.poll().unwrap();
    assert!(scene.srqs[1].complete(completion).is_none());
    // One that carries the same number, and is of no target.
    let config = QpConfig { user_index: 30, ..small() };
    let (mut qa, mut qb) = (scene.two.a.qp::<Buf>(&small()), scene.two.b.qp::<Buf>(&config));
    scene.two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
    qb.post_recv(8, scene.mb.buf(0..64).unwrap()).unwrap();
    qa.post_send_inline(&SendWr::signaled(1, SendOp::Send), b"strange").unwrap();
    scene.two.world.settle();
    assert!(scene.srqs[0].complete(scene.two.b.cq.poll().unwrap()).is_none());
    assert_eq!([0, 1].map(|queue| scene.srqs[queue].outstanding()), [1, 1]);
}

#[test]
fn what_a_queue_that_is_gone_left_ends_nothing_of_the_next_of_its_index() {
    for is_kept in [true, false] {
        let mut scene = Scene::new();
        let config = SrqConfig { max_wr: 1, max_sge: 1 };
        let Two { b, .. } = &scene.two;
        let make = || -> Srq { scene.xrcd.create_srq(&b.pd, &b.cq, 60, &config).unwrap() };
        let mut first = make();
        first.post_recv(1, scene.mb.buf(0..64).unwrap()).unwrap();
        let wr = SendWr::signaled(1, SendOp::Send);
        scene.qa.post_send_xrc_inline(first.srqn(), &wr, b"old").unwrap();
        scene.two.world.settle();
        let kept = if is_kept { scene.two.b.cq.poll() } else { None };
        drop(first);
        let Two { b, .. } = &scene.two;
        let mut second: Srq = scene.xrcd.create_srq(&b.pd, &b.cq, 60, &config).unwrap();
        second.post_recv(2, scene.mb.buf(64..128).unwrap()).unwrap();
        let old = kept.unwrap_or_else(|| scene.two.b.cq.poll().expect("it still stands there"));
        assert!(second.complete(old).is_none(), "kept {is_kept}");
        scene.qa.post_send_xrc_inline(second.srqn(), &wr, b"its own").unwrap();
        scene.two.world.settle();
        let own = scene.two.b.cq.poll().unwrap();
        assert_eq!(second.complete(own).unwrap().wr_id, 2);
    }
}

/// Makes targets until one has a number; `None` if none gets it.
fn target_of(xrcd: &Xrcd, number: Qpn) -> Option<Qp> {
    (0..2048).map(|_| xrcd.create_target().unwrap()).find(|target| target.qpn() == number)
}

#[test]
fn a_target_has_no_number_of_which_completions_still_stand_in_a_queue_of_its_domain() {
    // Of a connection, and of a target of another domain, whose index is that of a shared queue.
    for is_target in [false, true] {
        let mut scene = Scene::new();
        let Two { a, b, .. } = &scene.two;
        let config = SrqConfig { max_wr: 1, max_sge: 1 };
        let other = b.context.alloc_xrcd().unwrap();
        let mut foreign: Srq = other.create_srq(&b.pd, &b.cq, 30, &config).unwrap();
        let (buf, wr) = (scene.mb.buf(0..64).unwrap(), SendWr::signaled(1, SendOp::Send));
        let number = if is_target {
            let (mut qa, mut target) = (initiator(a), other.create_target().unwrap());
            join(&scene.two, &mut qa, &mut target);
            foreign.post_recv(1, buf).unwrap();
            qa.post_send_xrc_inline(foreign.srqn(), &wr, b"old").unwrap();
            scene.two.world.settle();
            target.qpn()
        } else {
            let config = QpConfig { user_index: 30, ..small() };
            let (mut qa, mut qb) = scene.two.rc::<Buf>(&config);
            qb.post_recv(1, buf).unwrap();
            qa.post_send_inline(&wr, b"old").unwrap();
            scene.two.world.settle();
            qb.qpn()
        };
        scene.post(0, 2, 64, 64);
        assert!(target_of(&scene.xrcd, number).is_none(), "its completion stands there");
        let old = scene.two.b.cq.poll().unwrap();
        assert_eq!(old.qpn(), number);
        // Everything of it was taken, in an earlier era. It is looked now and then only.
        assert!((0..256).all(|_| scene.two.b.cq.poll().is_none()));
        let target = target_of(&scene.xrcd, number).expect("the number is free");
        assert!(scene.srqs[0].complete(old).is_none(), "of who had the number before");
        assert_eq!((target.qpn(), scene.srqs[0].outstanding()), (number, 1));
    }
}

#[test]
fn an_empty_queue_is_waited_for_and_reported_if_it_stays_empty() {
    let mut scene = Scene::new();
    scene.send(0, 1, b"late");
    for _ in 0..5 {
        scene.two.world.step();
    }
    scene.post(0, 9, 0, 64);
    let (got, sent) = scene.run();
    assert_eq!((got[0].1.wr_id, ids(&sent)), (9, vec![(1, true)]));
    scene.send(0, 2, b"never");
    scene.two.world.wait_us(20_000);
    assert_eq!(syndromes(&scene.run().1), [RNR_RETRY]);
}

#[test]
fn the_limit_of_a_shared_queue_is_reported_once() {
    let mut scene = Scene::new();
    for id in 0..6 {
        scene.post(0, id, 0, 64);
    }
    assert!(scene.srqs[0].arm_limit(8).is_err());
    scene.srqs[0].arm_limit(5).unwrap();
    let mut events = Vec::new();
    for id in 0..3 {
        scene.send(0, id, b"x");
        assert_eq!(scene.run().0.len(), 1);
        while let Some(event) = scene.two.b.context.poll_async_event() {
            // A target in RTR tells of its first message.
            events.extend(matches!(event, Event::SharedReceive { .. }).then_some(event));
        }
    }
    let srqn = scene.srqs[0].number();
    assert_eq!(events, [Event::SharedReceive { event: EventType::SRQ_LIMIT, srqn }]);
    scene.two.world.assert_clean();
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let mut scene = Scene::new();
    let Scene { two, xrcd, srqs, .. } = &scene;
    let unsupported =
        |made: Result<Qp, VerbsError>| matches!(made.unwrap_err(), VerbsError::Unsupported { .. });
    let with = |qp_type, srq| {
        let queues = QpQueues { srq, ..QpQueues::from(&two.b.cq) };
        two.b.pd.create_qp(queues, &QpConfig { qp_type, ..small() })
    };
    assert!(unsupported(with(QpType::Rc, Some(&srqs[0]))), "RC takes no receives from it");
    assert!(unsupported(with(QpType::XrcSend, Some(&srqs[0]))), "an initiator has no receives");
    assert!(unsupported(with(QpType::XrcRecv, None)), "a target is made in its XRC domain");
    let config = SrqConfig::default();
    let foreign = xrcd.create_srq::<Buf>(&two.a.pd, &two.b.cq, 0, &config).unwrap_err();
    assert!(matches!(foreign, VerbsError::OtherDevice { .. }), "{foreign}");
    let tiny = two.b.context.create_cq(1).unwrap();
    let refused = xrcd.create_srq::<Buf>(&two.b.pd, &tiny, 0, &config).unwrap_err();
    assert!(matches!(refused, VerbsError::CqTooSmall { need: 128, free: 1 }), "{refused}");
    let refused = xrcd.create_srq::<Buf>(&two.b.pd, &two.b.cq, 0xff_ffff, &config).unwrap_err();
    assert!(matches!(refused, VerbsError::OutOfRange { .. }), "{refused}");

    let (wr, to) = (SendWr::signaled(1, SendOp::Send), scene.srqs[0].srqn());
    assert_eq!(scene.qa.post_send_inline(&wr, b"x"), Err(PostError::Operation));
    let buf = scene.ma.buf(0..8).unwrap();
    assert_eq!(scene.qa.post_recv(1, buf).unwrap_err().cause, PostError::Operation);
    let to_ud = AddressHandle::new(&common::path(&scene.two.a, &scene.two.b), Qpn(1), 0);
    let datagram = SendWr::signaled(1, SendOp::Datagram { to: &to_ud, imm: None });
    assert_eq!(scene.qa.post_send_xrc_inline(to, &datagram, b"x"), Err(PostError::Operation));
    assert_eq!(scene.qa.post_send_xrc_inline(to, &wr, &[0; 65]), Err(PostError::InlineTooLong));
    scene.target.activate(&rts(PSNS[1])).unwrap();
    assert_eq!(scene.target.post_send_inline(&wr, b"x"), Err(PostError::Operation));
    let mut rc = scene.two.a.qp::<Buf>(&small());
    rc.init(&InitAttr::default()).unwrap();
    assert_eq!(rc.post_send_xrc_inline(to, &wr, b"x"), Err(PostError::State));
    for id in 0..16 {
        let wr = SendWr::signaled(id, SendOp::Send);
        scene.qa.post_send_xrc_inline(to, &wr, b"x").unwrap();
    }
    assert_eq!(scene.qa.post_send_xrc_inline(to, &wr, b"x"), Err(PostError::Full));
}

#[test]
fn handles_are_dropped_in_any_order() {
    let mut scene = Scene::new();
    scene.post(0, 1, 0, 64);
    scene.send(0, 1, b"nobody takes it");
    scene.two.world.settle();
    let Scene { two, qa, target, srqs, xrcd, ma, mb } = scene;
    drop((xrcd, mb));
    assert_eq!(two.b.read(0, 15), b"nobody takes it");
    drop(srqs);
    drop((target, qa, ma));
    let Two { a, b, world } = two;
    drop(a);
    drop((b.cq, b.pd, b.memory));
    common::close(b.context).unwrap();
    world.assert_clean();
}
