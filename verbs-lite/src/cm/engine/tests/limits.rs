//! What patience and crowds cost at most.

use super::*;

/// Lets the time of the called end pass; how long it took until nothing more was due.
fn until_over(engine: &mut Engine, start: Duration) -> Duration {
    let mut end = start;
    while let Some(at) = engine.next_deadline() {
        end = at;
        engine.poll(at);
        while engine.next_out().is_some() {}
    }
    end - start
}

/// A request that asks for the longest times there are: 2.4 hours, sixteen times.
fn patient(two: &mut Two) -> Mad {
    two.a.connect(&request(), two.now);
    let Message::Req(req) = Two::take(&mut two.a, "REQ").message else { panic!() };
    let req = req.with_local_cm_response_timeout(31).with_max_cm_retries(15);
    Mad { transaction_id: 7, message: Message::Req(req.with_primary_local_ack_timeout(31)) }
}

#[test]
fn a_silent_peer_is_waited_for_no_longer_than_the_limits_say() {
    let limits = CmLimits::default();
    // Accepted: the acceptance is given up, and time wait ends.
    let mut two = Two::new();
    let mad = patient(&mut two);
    two.b.receive(back(), &mad, two.now);
    let theirs = two.b.take_request(service_id(PORT)).unwrap();
    assert!(two.accept(theirs));
    let (state, now) = (two.b.state(theirs), two.now);
    assert_eq!(state, State::RepSent);
    let took = until_over(&mut two.b, now);
    assert_eq!(took, limits.patience + limits.time_wait);
    assert!(matches!(two.b.end_of(theirs), Some(End::NoAnswer { message: "REP", .. })));
    assert_eq!(two.b.limit_stats().timed_out, 1, "half open until its time was over");
    // Decided by nobody, taken or not.
    for is_taken in [false, true] {
        let mut two = Two::new();
        let mad = patient(&mut two);
        two.b.receive(back(), &mad, two.now);
        let taken = if is_taken { two.b.take_request(service_id(PORT)) } else { None };
        assert_eq!(until_over(&mut two.b, two.now), limits.patience);
        let end = taken.map(|id| two.b.end_of(id).cloned());
        assert!(end.is_none_or(|end| matches!(end, Some(End::GivenUp(_)))));
        assert_eq!((two.b.len(), two.b.limit_stats().timed_out), (usize::from(is_taken), 1));
    }
}

#[test]
fn a_peer_that_asks_for_more_time_again_and_again_gets_what_the_limits_say() {
    let mut two = Two::new();
    let (id, start) = (two.a.connect(&request(), two.now), two.now);
    let mra = CmMra::zeroed().with_remote_comm_id(id).with_service_timeout(31);
    let mad = Mad { transaction_id: 0, message: Message::Mra(mra) };
    for _ in 0..200 {
        two.a.receive(ahead(), &mad, two.now);
        two.pass(Duration::from_secs(1));
    }
    let Some(End::NoAnswer { message: "REQ", after, .. }) = two.a.end_of(id) else { panic!() };
    assert!(*after <= CmLimits::default().patience + Duration::from_secs(1), "{after:?}");
    assert!(two.now - start >= Duration::from_secs(200));
}

#[test]
fn a_peer_cannot_make_us_answer_in_bursts() {
    let mut two = Two::new();
    let Message::Req(req) = patient(&mut two).message else { panic!() };
    let message = Message::Req(req.with_local_cm_response_timeout(0));
    two.b.receive(back(), &Mad { transaction_id: 7, message }, two.now);
    let theirs = two.b.take_request(service_id(PORT)).unwrap();
    two.accept(theirs);
    Two::take(&mut two.b, "REP");
    two.pass(INTERVAL - Duration::from_nanos(1));
    assert_eq!(two.b.next_out(), None);
}

/// An engine with small limits, and a queue that is larger than they are.
fn crowded() -> Engine {
    let limits = CmLimits {
        half_open: 8,
        half_open_per_peer: 4,
        ending: 6,
        ending_per_peer: 3,
        ..CmLimits::default()
    };
    let EngineConfig { cm, .. } = config(2);
    let mut engine = Engine::new(EngineConfig { cm: CmConfig { limits, ..cm }, ..config(2) });
    engine.listen(service_id(PORT), 128);
    engine
}

/// A request from that host, about that connection of its.
fn ask(engine: &mut Engine, host: u8, id: u32) {
    let ends = Ends { local: ip(2), remote: ip(host) };
    let EngineConfig { cm, .. } = config(1);
    let request = Request { ends, qpn: id, ..request() };
    let message = Message::Req(conn::req(id, &request, &cm, host.into()));
    engine.receive(ends, &Mad { transaction_id: 0, message }, Duration::ZERO);
}

#[test]
fn half_open_connections_are_limited_by_peer_and_in_all() {
    let mut engine = crowded();
    for id in 0..100 {
        ask(&mut engine, 9, id);
    }
    // The peer's own are refused, and others' go on.
    assert_eq!((engine.len(), engine.limit_stats().refused), (4, 96));
    let refused = std::iter::from_fn(|| engine.next_out()).count();
    assert_eq!(refused, 96);
    let first = engine.take_request(service_id(PORT)).unwrap();
    for host in 10..110 {
        ask(&mut engine, host, 1);
        assert!(engine.len() <= 8 + 1);
    }
    assert_eq!(engine.limit_stats().pushed_out, 96);
    assert_eq!(engine.next_out(), None, "who makes room is not told");
    let end = engine.end_of(first).unwrap().to_string();
    assert!(end.contains("CmLimits"), "{end}");
    assert!(!engine.prepare(first, &answer()));
    // The youngest are those that wait.
    let ids: Vec<_> = std::iter::from_fn(|| engine.take_request(service_id(PORT))).collect();
    assert_eq!(ids.len(), 8);
    let hosts: Vec<_> = ids.iter().map(|id| engine.conn(*id).unwrap().ends.remote).collect();
    assert_eq!(hosts, (102..110).map(ip).collect::<Vec<_>>());
}

/// Peers that are not reached have what others leave them, and no program hears of them.
#[test]
fn peers_that_are_not_reached_push_out_each_other_alone() {
    let EngineConfig { cm, .. } = config(2);
    let mut engine = Engine::new(EngineConfig { cm, ..config(2) });
    engine.listen(service_id(PORT), 4);
    let ask = |engine: &mut Engine, host: u8, is_reached| {
        let ends = Ends { local: ip(2), remote: ip(host) };
        let request = Request { ends, ..request() };
        let message = Message::Req(conn::req(host.into(), &request, &cm, host.into()));
        engine.receive_from(ends, &Mad { transaction_id: 0, message }, is_reached, Duration::ZERO);
    };
    let host_of = |engine: &Engine, id: u32| engine.conn(id).unwrap().ends.remote;
    ask(&mut engine, 9, true);
    (10..110).for_each(|host| ask(&mut engine, host, false));
    assert_eq!((engine.len(), engine.limit_stats().pushed_out), (4, 97));
    let honest = engine.take_request(service_id(PORT)).unwrap();
    assert_eq!(host_of(&engine, honest), ip(9));
    assert_eq!(engine.take_request(service_id(PORT)), None);
    // They are tried in turn. One is there, and one is not.
    let tried: Vec<u32> = (0..3).flat_map(|_| engine.unreached(1)).map(|(id, _)| id).collect();
    assert_eq!(
        tried.iter().map(|id| host_of(&engine, *id)).collect::<Vec<_>>(),
        [107, 108, 109].map(ip)
    );
    engine.reached(tried[1]);
    engine.unreachable(tried[2], "it is not there", Duration::ZERO);
    assert_eq!(engine.take_request(service_id(PORT)), Some(tried[1]));
    // Where all that wait are reached, one that is not has no place; another one that is, has.
    (20..24).for_each(|host| ask(&mut engine, host, true));
    ask(&mut engine, 30, false);
    ask(&mut engine, 24, true);
    let all = std::iter::from_fn(|| engine.take_request(service_id(PORT)));
    let all: Vec<u32> = all.collect();
    assert_eq!(
        all.iter().map(|id| host_of(&engine, *id)).collect::<Vec<_>>(),
        [21, 22, 23, 24].map(ip)
    );
}

#[test]
fn ended_connections_are_limited_by_peer_and_in_all() {
    let mut engine = crowded();
    let now = Duration::ZERO;
    for round in 0..100 {
        let host = if round < 50 { 9 } else { round as u8 };
        ask(&mut engine, host, round);
        let id = engine.take_request(service_id(PORT)).unwrap();
        assert!(engine.prepare(id, &answer()) && engine.accept(id, now));
        let dreq = CmDreq::zeroed().with_local_comm_id(round).with_remote_comm_id(id);
        let message = Message::Dreq(dreq.with_remote_qpn_eecn(answer().qpn));
        let ends = engine.conn(id).unwrap().ends;
        engine.receive(ends, &Mad { transaction_id: 0, message }, now);
        assert_eq!(engine.state(id), State::TimeWait);
        engine.forget(id, now);
        assert!(engine.len() <= if round < 50 { 3 } else { 6 });
        while engine.next_out().is_some() {}
    }
    assert_eq!(engine.limit_stats().forgotten, 47 + 47);
}
