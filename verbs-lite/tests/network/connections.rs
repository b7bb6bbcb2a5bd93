//! Connections over queue pair 1 of two models on a cable, with addresses resolved.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::common::{Side, Two, pattern, small, take};
use ferrocx_mempool::PageSize;
use ferrocx_model::wire::{Impair, ImpairConfig, SplitMix64, link};
use ferrocx_verbs_lite::cm::*;
use ferrocx_verbs_lite::net::NetConfig;
use ferrocx_verbs_lite::*;

const PORT: u16 = 7174;
/// Mappings of a device with a connection manager, or more.
const MAPPINGS: usize = 24;
const USUAL: ConnParams<'static> = ConnParams {
    responder_resources: 16,
    initiator_depth: 16,
    retry_count: 7,
    rnr_retry_count: 7,
    ack_timeout: 16,
    private_data: &[],
};

fn config() -> CmConfig {
    let neighbours = ferrocx_net::neighbour::Config {
        attempts: 3,
        interval: Duration::from_millis(20),
        ..Default::default()
    };
    let net = NetConfig { neighbours, page: PageSize::Base4K, ..NetConfig::default() };
    // Answers within 17 ms.
    CmConfig {
        response_timeout: 12,
        max_retries: 5,
        net,
        page: PageSize::Base4K,
        ..CmConfig::default()
    }
}

struct World {
    // Dropped before the models that they talk to.
    a: ConnectionManager,
    b: ConnectionManager,
    two: Two,
}

fn world(two: Two) -> World {
    let a = ConnectionManager::open(&two.a.context, &config()).unwrap();
    let b = ConnectionManager::open(&two.b.context, &config()).unwrap();
    World { a, b, two }
}

fn init(side: &Side) -> Qp {
    let mut qp = side.qp(&small());
    qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
    qp
}

impl World {
    fn step(&self) {
        self.a.poll();
        self.b.poll();
        for _ in 0..20 {
            self.two.world.step();
        }
    }

    /// Steps until something is there.
    fn until<T>(&self, mut what: impl FnMut() -> Option<T>) -> T {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            if let Some(done) = what() {
                return done;
            }
            self.step();
        }
        panic!("nothing in all that time: {:?} {:?}", self.a.stats(), self.b.stats());
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.two.b.ip.into(), PORT)
    }

    /// Connects a to b: the called end first.
    fn connect(
        &self,
        to: SocketAddr,
        params: &ConnParams<'_>,
        theirs: &ConnParams<'_>,
    ) -> (Connected, Connected) {
        let mut listener = self.b.listen(PORT).unwrap();
        let mut active = self.a.connect(init(&self.two.a), to, params).unwrap();
        let request = self.until(|| listener.poll());
        let mut passive = request.accept(init(&self.two.b), theirs).unwrap();
        let (mut ours, mut theirs) = (None, None);
        self.until(|| {
            ours = ours.take().or_else(|| active.poll());
            theirs = theirs.take().or_else(|| passive.poll());
            (ours.is_some() && theirs.is_some()).then_some(())
        });
        (theirs.unwrap().unwrap(), ours.unwrap().unwrap())
    }
}

/// A message each way through connected queue pairs.
fn talk(world: &mut World, one: &mut Connected, other: &mut Connected) {
    let (ma, mb) = (world.two.a.mr(), world.two.b.mr());
    let text = pattern(3000, 1);
    world.two.a.fill(0, &text);
    one.qp.post_recv(1, mb.buf(0..4096).unwrap()).unwrap();
    let send = SendWr::signaled(2, SendOp::Send);
    other.qp.post_send(&send, Some(ma.buf(0..3000).unwrap())).unwrap();
    world.two.world.settle();
    for (cq, qp) in [(&mut world.two.b.cq, &mut one.qp), (&mut world.two.a.cq, &mut other.qp)] {
        let completion = cq.poll().unwrap();
        qp.complete(completion, |wc| wc.result.unwrap()).unwrap();
    }
    assert_eq!(world.two.b.read(0, 3000), text);
}

#[test]
fn a_connection_is_made_used_and_ended() {
    let mut world = world(Two::new());
    let (mut theirs, mut ours) = world.connect(world.address(), &USUAL, &USUAL);
    assert_eq!(ours.connection.peer(), world.address());
    assert_eq!(theirs.connection.peer().ip(), IpAddr::V4(world.two.a.ip));
    talk(&mut world, &mut theirs, &mut ours);
    ours.connection.disconnect(b"bye").unwrap();
    let end = world.until(|| theirs.connection.poll().cloned());
    let End::ByPeer(private_data) = end else { panic!("{end}") };
    assert_eq!(private_data[..4], *b"bye\0");
    assert_eq!(world.until(|| ours.connection.poll().cloned()), End::ByUs);
    let mut qp = ours.qp;
    qp.to_error().unwrap();
    world.two.world.settle();
    assert!(take(&mut world.two.a.cq, &mut qp).is_empty());
    world.two.world.assert_clean();
    drop((qp, theirs));
}

/// Whoever looks whether a connection has ended does nothing for it: somebody else does.
#[test]
fn an_end_is_seen_without_doing_what_is_due() {
    let world = world(Two::new());
    let (mut theirs, mut ours) = world.connect(world.address(), &USUAL, &USUAL);
    assert!(!ours.connection.has_ended() && !theirs.connection.has_ended());
    ours.connection.disconnect(b"bye").unwrap();
    for _ in 0..100 {
        world.a.poll();
        world.two.world.settle();
    }
    let received = world.b.stats().received;
    assert!(!theirs.connection.has_ended(), "nobody has looked at what came");
    assert_eq!(world.b.stats().received, received);
    world.until(|| theirs.connection.has_ended().then_some(()));
    assert!(matches!(theirs.connection.poll(), Some(End::ByPeer(_))));
    world.until(|| ours.connection.has_ended().then_some(()));
    assert_eq!(ours.connection.poll(), Some(&End::ByUs));
}

#[test]
fn ends_over_ipv6_agree_on_the_smaller_wish() {
    let mut world = world(Two::new());
    let entry = world.two.b.context.gids().into_iter().find(|entry| entry.gid.ip().is_ipv6());
    let to = SocketAddr::new(entry.unwrap().gid.ip(), PORT);
    let ours = ConnParams { initiator_depth: 3, private_data: b"ahead", ..USUAL };
    let theirs = ConnParams { initiator_depth: 2, private_data: b"back", ..USUAL };
    let theirs = ConnParams { responder_resources: 4, ..theirs };
    let (mut theirs, mut ours) = world.connect(to, &ours, &theirs);
    assert_eq!((ours.initiator_depth, ours.responder_resources), (3, 16));
    assert_eq!((theirs.initiator_depth, theirs.responder_resources), (2, 3));
    assert_eq!((&theirs.private_data[..6], theirs.private_data.len()), (&b"ahead\0"[..], 56));
    assert_eq!((&ours.private_data[..5], ours.private_data.len()), (&b"back\0"[..], 196));
    assert!(ours.connection.local().is_ipv6() && theirs.connection.local() == to.ip());
    talk(&mut world, &mut theirs, &mut ours);
    // Dropped: the peer hears of it.
    drop(ours.connection);
    let end = world.until(|| theirs.connection.poll().cloned());
    assert!(matches!(end, End::ByPeer(_)), "{end}");
    world.two.world.assert_clean();
}

/// How a request ends that the peer does not take.
fn refused(world: &World, mut active: Connecting) -> CmError {
    let refused = world.until(|| active.poll()).map(|_| ()).unwrap_err();
    // The queue pair comes back as it was.
    assert_eq!(refused.qp.state(), QpState::Init);
    *refused.cause
}

#[test]
fn refusals_say_why_and_give_the_queue_pair_back() {
    let world = world(Two::new());
    let ask = || world.a.connect(init(&world.two.a), world.address(), &USUAL).unwrap();
    let error = refused(&world, ask()).to_string();
    assert_eq!(error, "the peer refused the connection: nobody listens on that port (reason 8)");
    let mut listener = world.b.listen(PORT).unwrap();
    let twice = world.b.listen(PORT).unwrap_err().to_string();
    assert!(twice.starts_with("port 7174 is listened on already"), "{twice}");
    assert!(world.b.listen(0).is_err());
    let active = ask();
    let request = world.until(|| listener.poll());
    assert!(request.private_data().len() == 56 && request.peer().port() >= 49152);
    request.reject(b"not you").unwrap();
    let CmError::End(End::Rejected { reason, private_data }) = refused(&world, active) else {
        panic!()
    };
    assert_eq!((reason, &private_data[..8]), (RejectReason::CONSUMER_DEFINED, &b"not you\0"[..]));
    // A request that nobody decides on, and one in the queue of a listener that goes.
    let active = ask();
    drop(world.until(|| listener.poll()));
    let error = refused(&world, active);
    assert!(error.to_string().contains("(reason 28)"), "{error}");
    let active = ask();
    world.until(|| (world.b.stats().received >= 4).then_some(()));
    drop(listener);
    let error = refused(&world, active);
    assert!(error.to_string().contains("(reason 8)"), "{error}");
    world.until(|| (world.a.stats().connections == 0).then_some(()));
}

#[test]
fn parameters_out_of_range_are_refused_before_anything_is_sent() {
    let world = world(Two::new());
    let sent = world.a.stats().sent;
    let long = [0; 57];
    for (params, text) in [
        (ConnParams { responder_resources: 17, ..USUAL }, "responder_resources is 17"),
        (ConnParams { retry_count: 8, ..USUAL }, "retry_count is 8"),
        (ConnParams { ack_timeout: 0, ..USUAL }, "ack_timeout is 0"),
        (ConnParams { private_data: &long, ..USUAL }, "bytes of private data is 57"),
    ] {
        let refused = world.a.connect(init(&world.two.a), world.address(), &params).unwrap_err();
        assert!(refused.cause.to_string().starts_with(text), "{refused}");
    }
    let far = SocketAddr::from(([203, 0, 113, 1], PORT));
    let refused = world.a.connect(init(&world.two.a), far, &USUAL).unwrap_err();
    assert!(refused.to_string().contains("no address of this port reaches 203.0.113.1"));
    assert_eq!(world.a.stats().sent, sent);
}

#[test]
fn a_peer_that_is_not_there_is_given_up_in_words() {
    let world = world(Two::new());
    let nobody = SocketAddr::from(([192, 168, 0, 77], PORT));
    let active = world.a.connect(init(&world.two.a), nobody, &USUAL).unwrap();
    let error = refused(&world, active).to_string();
    assert!(error.starts_with("192.168.0.77 did not answer 3 questions for its MAC"), "{error}");
    // One that has gone since its address was learned.
    let resolved = world.until(|| world.a.resolve(world.two.b.ip.into()).unwrap());
    assert_eq!(resolved.dmac, world.two.b.mac());
    let World { a, b, two } = world;
    drop(b);
    let mut active = a.connect(init(&two.a), (two.b.ip, PORT).into(), &USUAL).unwrap();
    let start = Instant::now();
    let refused = loop {
        if let Some(done) = active.poll() {
            break done.map(|_| ()).unwrap_err();
        }
        two.world.step();
        assert!(start.elapsed() < Duration::from_secs(60));
    };
    let error = refused.to_string();
    assert!(error.starts_with("REQ was sent 6 times in "), "{error}");
    drop((active, refused, a));
}

#[test]
fn whoever_waits_may_set_a_limit() {
    let world = world(Two::new());
    let mut listener = world.b.listen(PORT).unwrap();
    let limit = Duration::from_millis(2);
    assert!(listener.wait_for(limit).is_none());
    let mut active = world.a.connect(init(&world.two.a), world.address(), &USUAL).unwrap();
    assert!(active.wait_for(limit).is_none());
    let request = world.until(|| listener.wait_for(limit));
    drop(request);
    let refused = world.until(|| active.wait_for(limit)).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("(reason 28)"), "{refused}");
    assert_eq!(world.b.stats().limits, CmLimitStats::default());
}

#[test]
fn connections_come_and_go_on_a_bad_cable() {
    let bad = ImpairConfig {
        loss_ppm: 150_000,
        duplicate_ppm: 100_000,
        corrupt_ppm: 50_000,
        reorder_ppm: 100_000,
        reorder_frames: 2,
        delay_ns: 2_000,
        ..ImpairConfig::default()
    };
    let (a, b) = link(1 << 20);
    let a = Impair::new(a, bad, SplitMix64::new(5));
    let b = Impair::new(b, bad, SplitMix64::new(6));
    let world = world(Two::on(a, b));
    let mut listener = world.b.listen(PORT).unwrap();
    for _ in 0..20 {
        let mut active = world.a.connect(init(&world.two.a), world.address(), &USUAL).unwrap();
        let (mut passive, mut ours, mut theirs) = (None, None, None);
        world.until(|| {
            if let Some(request) = listener.poll() {
                passive = Some(request.accept(init(&world.two.b), &USUAL).unwrap());
            }
            ours = ours.take().or_else(|| active.poll());
            theirs = theirs.take().or_else(|| passive.as_mut()?.poll());
            (ours.is_some() && theirs.is_some()).then_some(())
        });
        let (mut ours, mut theirs) = (ours.unwrap().unwrap(), theirs.unwrap().unwrap());
        theirs.connection.disconnect(&[]).unwrap();
        world.until(|| {
            let (one, other) = (ours.connection.poll().cloned(), theirs.connection.poll().cloned());
            one.zip(other)
        });
    }
    let stats = world.b.stats();
    assert!(stats.received > 60, "nothing was repeated: {stats:?}");
}

/// Whatever the device loses while its IOMMU is without one mapping, connections are made again.
#[test]
fn a_manager_whose_queues_were_lost_makes_them_anew() {
    let mut restarts = [0, 0];
    for mapping in 0..MAPPINGS {
        let world = world(Two::new());
        world.until(|| world.a.resolve(world.two.b.ip.into()).unwrap());
        world.two.world.nic(1).side().dma_refuse(Some(mapping));
        // A question to all, and a request. Nobody answers, or somebody does that is not hit.
        let nobody = IpAddr::from([192, 168, 0, 77]);
        let _ = world.until(|| world.a.resolve(nobody).err());
        let mut active = world.a.connect(init(&world.two.a), world.address(), &USUAL).unwrap();
        let _ = world.until(|| active.poll());
        world.two.world.nic(1).side().dma_refuse(None);
        if !world.two.b.context.device().health().is_healthy() {
            continue;
        }
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            world.step();
        }
        let (one, other) = world.connect(world.address(), &USUAL, &USUAL);
        assert_eq!((one.qp.state(), other.qp.state()), (QpState::Rts, QpState::Rts), "{mapping}");
        let stats = world.b.stats();
        restarts[0] += stats.restarts;
        restarts[1] += stats.net.restarts;
    }
    assert!(restarts[0] > 0, "queue pair 1 was never lost");
    assert!(restarts[1] > 0, "the network's was never lost");
}

#[test]
fn ids_without_queue_pairs_lead_those_of_others() {
    let mut world = world(Two::new());
    let mut listener = world.b.listen(PORT).unwrap();
    // The rights are granted later, as librdmacm does: in INIT with receives posted, and in RTS.
    let none = InitAttr::default();
    let (mut qa, mut qb) = (world.two.a.qp(&small()), world.two.b.qp(&small()));
    qa.init(&none).unwrap();
    qb.init(&none).unwrap();
    let (ma, mb) = (world.two.a.mr(), world.two.b.mr());
    qb.post_recv(1, mb.buf(4096..8192).unwrap()).unwrap();
    let params = ConnParams { private_data: b"hello", ..USUAL };
    let active = world.a.ask(qa.qpn(), world.address(), Some(4000), &params).unwrap();
    assert_eq!((active.state(), active.attributes().unwrap()), (State::ReqSent, None));
    let request = world.until(|| listener.poll());
    assert_eq!((request.peer().port(), request.remote_qpn()), (4000, qa.qpn()));
    let passive = request.into_id();
    assert_eq!(passive.private_data()[..6], *b"hello\0");
    let access = Some(Access::REMOTE);
    qb.change(&Changes { access, ..Changes::default() }).unwrap();
    let (rtr, rts) = world.until(|| passive.attributes().unwrap());
    qb.connect(&rtr).unwrap();
    qb.activate(&rts).unwrap();
    assert!(passive.accept(qb.qpn(), &USUAL).unwrap());
    world.until(|| (active.state() == State::RepRcvd).then_some(()));
    let (rtr, rts) = world.until(|| active.attributes().unwrap());
    assert_eq!(active.remote_qpn(), Some(qb.qpn()));
    qa.connect(&rtr).unwrap();
    qa.activate(&rts).unwrap();
    qa.change(&Changes { access, min_rnr_timer: Some(12), ..Changes::default() }).unwrap();
    assert!(active.establish() && !active.establish());
    world.until(|| (passive.state() == State::Established).then_some(()));

    // Each end writes into the other, and a message takes the receive of before.
    let text = pattern(3000, 1);
    world.two.a.fill(0, &text);
    let to = mb.buf(0..4096).unwrap().remote().unwrap();
    let write = SendWr::signaled(2, SendOp::Write(to));
    qa.post_send(&write, Some(ma.buf(0..3000).unwrap())).unwrap();
    qa.post_send(&SendWr::signaled(3, SendOp::Send), Some(ma.buf(0..3000).unwrap())).unwrap();
    let back = SendOp::Write(ma.buf(4096..8192).unwrap().remote().unwrap());
    world.two.world.settle();
    qb.post_send(&SendWr::signaled(4, back), Some(mb.buf(0..3000).unwrap())).unwrap();
    world.two.world.settle();
    for (side, qp, count) in [(&mut world.two.a, &mut qa, 2), (&mut world.two.b, &mut qb, 2)] {
        let done = take(&mut side.cq, qp);
        assert_eq!(done.len(), count);
        done.iter().for_each(|wc| assert!(wc.result.is_ok(), "{:?}", wc.result));
    }
    assert_eq!(world.two.b.read(0, 3000), text);
    assert_eq!(world.two.b.read(4096, 3000), text);
    assert_eq!(world.two.a.read(4096, 3000), text);

    active.disconnect();
    world.until(|| matches!(passive.end(), Some(End::ByPeer(_))).then_some(()));
    world.until(|| matches!(active.end(), Some(End::ByUs)).then_some(()));
    // A refusal is seen at the other end, with what was said.
    for why in [RejectReason::CONSUMER_DEFINED, RejectReason::VENDOR_OPTION_NOT_SUPPORTED] {
        let active = world.a.ask(Qpn(0x77), world.address(), None, &USUAL).unwrap();
        world.until(|| listener.poll()).into_id().reject(why, b"no");
        let end = world.until(|| active.end());
        let End::Rejected { reason, private_data } = end else { panic!("{end}") };
        assert_eq!((reason, &private_data[..3]), (why, &b"no\0"[..]));
    }
    world.two.world.assert_clean();
}

#[test]
fn datagram_services_are_found_by_their_port() {
    let world = world(Two::new());
    let mut listener = world.b.listen_datagrams(PORT).unwrap();
    assert!(matches!(world.b.listen_datagrams(PORT), Err(CmError::PortInUse(PORT))));
    let question = world.a.ask_datagrams(world.address(), 4000, b"who").unwrap();
    let request = world.until(|| listener.poll());
    assert_eq!(request.peer(), SocketAddr::new(world.two.a.ip.into(), 4000));
    assert_eq!(request.private_data()[..4], *b"who\0");
    request.accept(Qpn(0x55), 7, b"me");
    let answer = world.until(|| question.poll());
    let DatagramAnswer::Found { qpn: 0x55, qkey: 7, private_data } = answer else {
        panic!("{answer:?}")
    };
    assert_eq!(private_data[..3], *b"me\0");
    assert!(question.path().unwrap().is_some());
    let question = world.a.ask_datagrams(world.address(), 4000, &[]).unwrap();
    world.until(|| listener.poll()).reject(&[]);
    assert_eq!(world.until(|| question.poll()), DatagramAnswer::Refused(2));
    drop(listener);
    let question = world.a.ask_datagrams(world.address(), 4000, &[]).unwrap();
    assert_eq!(world.until(|| question.poll()), DatagramAnswer::Refused(1), "nobody listens");
}

#[test]
fn questions_that_nobody_answers_are_refused_and_leave_room_for_others() {
    let world = world(Two::new());
    let mut listener = world.b.listen_datagrams(PORT).unwrap();
    let ask = || world.a.ask_datagrams(world.address(), 4000, &[]).unwrap();
    // More than are remembered at a time.
    for _ in 0..1100 / 50 {
        let questions: Vec<_> = (0..50).map(|_| ask()).collect();
        for _ in &questions {
            drop(world.until(|| listener.poll()));
        }
        let last = questions.last().unwrap();
        assert_eq!(world.until(|| last.poll()), DatagramAnswer::Refused(2));
    }
    let question = ask();
    let request = world.until(|| listener.poll());
    request.accept(Qpn(7), 8, &[]);
    drop(request);
    let answer = world.until(|| question.poll());
    assert!(matches!(answer, DatagramAnswer::Found { qpn: 7, qkey: 8, .. }), "{answer:?}");
}
