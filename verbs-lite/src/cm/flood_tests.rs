//! A server under a flood of messages from invented peers, on a simulated clock: the engine, its
//! outbox and the neighbour cache, put together as the manager does.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ferrocx_model::wire::SplitMix64;
use ferrocx_net::ether::MacAddr;
use ferrocx_net::neighbour::{Neighbours, Own, Unresolved};
use ferrocx_prm::mad::{CmDreq, CmMra, CmRep, CmRtu, MAD_BYTES};

use super::config::{CmConfig, CmLimits, ConnParams};
use super::conn::{Answer, Ends, Request, State, rej, service_id};
use super::engine::{Engine, EngineConfig, Out};
use super::message::{Mad, Message};
use super::outbox::{Outbox, Sent};
use super::reason::RejectReason;

const PORT: u16 = 7174;
/// Hostile messages of a turn of the manager.
const TURN: u32 = 64;
/// Between two of them: a million come in a minute.
const GAP: Duration = Duration::from_micros(60);
/// The honest peer.
const THEM: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// Hostile messages of a flood: `FERROCX_FLOOD`, a million for a whole simulated minute. A flood of
/// requests alone has half as many.
fn messages() -> u32 {
    let text = std::env::var("FERROCX_FLOOD").unwrap_or_else(|_| "200000".into());
    text.parse().expect("FERROCX_FLOOD is a number of messages")
}

fn ip(last: u16) -> IpAddr {
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last).into()
}

fn own(ip: IpAddr, mac: MacAddr) -> Own {
    Own { ip, mac, vlan: None }
}

fn engine(guid: u64) -> Engine {
    let cm = CmConfig::default();
    Engine::new(EngineConfig { cm, guid, max_mtu: 3, first_id: guid as u32 * 1000 })
}

fn request(ends: Ends, qpn: u32) -> Request<'static> {
    let params = ConnParams { ack_timeout: 16, ..ConnParams::default() };
    let (hop_limit, traffic_class) = (64, 0);
    Request {
        ends,
        port: PORT,
        source_port: 1,
        qpn,
        psn: 0,
        mtu: 3,
        hop_limit,
        traffic_class,
        params,
    }
}

/// The server: a program that accepts everybody.
struct Server {
    engine: Engine,
    outbox: Outbox,
    neighbours: Neighbours,
    own: Own,
    /// Connections that the program holds.
    coming: Vec<u32>,
    established: Vec<u32>,
    /// Requests that the program takes in a turn.
    takes: usize,
    /// Questions for neighbours that were sent.
    questions: u32,
    turns: u32,
}

impl Server {
    fn new(takes: usize) -> Self {
        let mut engine = engine(2);
        assert!(engine.listen(service_id(PORT), 128));
        let own = own(ip(2), MacAddr([2, 0, 0, 0, 0, 1]));
        let mut neighbours = Neighbours::new(CmConfig::default().net.neighbours);
        neighbours.set_own([own], Duration::ZERO);
        let outbox = Outbox::new(CmLimits::default().unsent);
        let (coming, established) = (Vec::new(), Vec::new());
        let (questions, turns) = (0, 0);
        Self { engine, outbox, neighbours, own, coming, established, takes, questions, turns }
    }

    fn receive(&mut self, from: IpAddr, mad: &Mad, now: Duration) {
        let ends = Ends { local: self.own.ip, remote: from };
        let asks = matches!(mad.message, Message::Req(_));
        let is_reached = !asks || self.reaches(from, true, now) == Ok(true);
        self.engine.receive_from(ends, mad, is_reached, now);
        while let Some(out) = self.engine.next_out() {
            self.outbox.push(out);
        }
    }

    /// Whether a message can be sent to a stranger or another.
    fn reaches(
        &mut self,
        to: IpAddr,
        is_stranger: bool,
        now: Duration,
    ) -> Result<bool, Unresolved> {
        match is_stranger {
            false => self.neighbours.resolve(to, &self.own, now).map(|mac| mac.is_some()),
            true => match self.neighbours.resolve_stranger(to, &self.own, now) {
                Err(Unresolved::Full { .. }) => Ok(false),
                mac => mac.map(|mac| mac.is_some()),
            },
        }
    }

    /// The rest of a turn: what is due, the program's part, and what can be sent.
    fn turn(&mut self, now: Duration) -> Vec<Out> {
        for (id, ends) in self.engine.unreached(32) {
            match self.reaches(ends.remote, true, now) {
                Ok(true) => self.engine.reached(id),
                Ok(false) => {}
                Err(why) => self.engine.unreachable(id, &why.to_string(), now),
            }
        }
        self.engine.poll(now);
        for _ in 0..self.takes {
            let Some(id) = self.engine.take_request(service_id(PORT)) else { break };
            let answer = Answer { qpn: id & 0xff_ffff, psn: 0, params: ConnParams::default() };
            assert!(self.engine.prepare(id, &answer));
            self.coming.push(id);
        }
        self.turns += 1;
        // The program looks at those that it has taken every 31 ms.
        let looked_at = if self.turns.is_multiple_of(8) { self.coming.len() } else { 0 };
        for id in self.coming.split_off(self.coming.len() - looked_at) {
            let peer = self.engine.conn(id).unwrap().ends.remote;
            match self.engine.state(id) {
                State::Established => self.established.push(id),
                State::ReqRcvd => {
                    match self.reaches(peer, self.engine.conn(id).unwrap().is_stranger, now) {
                        Ok(is_known) => {
                            self.coming.push(id);
                            if is_known {
                                assert!(self.engine.accept(id, now));
                            }
                        }
                        Err(_) => self.engine.forget(id, now),
                    }
                }
                State::RepSent => self.coming.push(id),
                _ => self.engine.forget(id, now),
            }
        }
        while let Some(out) = self.engine.next_out() {
            self.outbox.push(out);
        }
        let mut sent = Vec::new();
        let mut outbox = std::mem::replace(&mut self.outbox, Outbox::new(1));
        outbox.flush(|out| match self.reaches(out.ends.remote, out.is_stranger, now) {
            Ok(false) => Sent::Later,
            Ok(true) => {
                sent.push(*out);
                Sent::Done
            }
            Err(_) => Sent::Done,
        });
        self.outbox = outbox;
        while self.neighbours.next_frame(now).is_some() {
            self.questions += 1;
        }
        sent
    }

    /// Everything that strangers can make it remember.
    fn assert_within_limits(&self) {
        let limits = CmLimits::default();
        let config = CmConfig::default().net.neighbours;
        let (half_open, ending) = self.engine.crowd_lens();
        assert!(half_open <= limits.half_open && ending <= limits.ending);
        // What the program holds, and what is being made or forgotten.
        let held = self.established.len();
        assert!(self.engine.len() <= held + half_open + ending + self.coming.len());
        assert!(self.coming.len() <= limits.half_open + 8 * TURN as usize);
        assert!(self.outbox.len() <= limits.unsent + 1024);
        assert!(self.neighbours.len() <= config.entries + 2 * config.strangers);
    }
}

/// A hostile message, from an address that nobody has and about a connection that may be there.
fn hostile(rng: &mut SplitMix64, guess: u32) -> (IpAddr, Mad) {
    let random = rng.next_u64();
    let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 0, (random >> 16) as u16, random as u16);
    let (number, word) = ((random >> 32) as u32, rng.next_u64());
    let id = if word & 1 == 0 { guess } else { word as u32 };
    let message = match random % 7 {
        0 => {
            let ends = Ends { local: from.into(), remote: ip(2) };
            let cm = CmConfig { response_timeout: 31, max_retries: 15, ..CmConfig::default() };
            let params = ConnParams { ack_timeout: 31, ..ConnParams::default() };
            let request = Request { params, ..request(ends, number & 0xff_ffff) };
            Message::Req(super::conn::req(number, &request, &cm, word))
        }
        1 => Message::Rep(CmRep::zeroed().with_local_comm_id(number).with_remote_comm_id(id)),
        2 => Message::Rtu(CmRtu::zeroed().with_local_comm_id(number).with_remote_comm_id(id)),
        3 => rej((number, id), 0, RejectReason(4), &word.to_be_bytes(), &[]),
        4 => Message::Dreq(CmDreq::zeroed().with_local_comm_id(number).with_remote_comm_id(id)),
        5 => {
            let mra = CmMra::zeroed().with_local_comm_id(number).with_remote_comm_id(id);
            Message::Mra(mra.with_message_mraed(1).with_service_timeout(31))
        }
        _ => {
            // Any bytes of any message.
            let mut bytes = [0; MAD_BYTES];
            bytes
                .chunks_mut(8)
                .for_each(|chunk| chunk.copy_from_slice(&rng.next_u64().to_be_bytes()));
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            (bytes[16], bytes[17]) = (0, 0x10 + word as u8 % 9);
            return (from.into(), Mad::parse(&bytes).unwrap());
        }
    };
    (from.into(), Mad { transaction_id: word, message })
}

/// The honest peer: connects again and again, and keeps what it has.
struct Honest {
    engine: Engine,
    ends: Ends,
    coming: Option<(u32, Duration)>,
    kept: Vec<u32>,
    slowest: Duration,
}

impl Honest {
    fn turn(&mut self, server: &mut Server, arrived: &[Out], now: Duration) {
        for out in arrived.iter().filter(|out| out.ends.remote == self.ends.local) {
            self.engine.receive(self.ends, &out.mad, now);
        }
        match self.coming {
            None => {
                // It asks for the server's MAC address, as every host does, and calls.
                let mut host = Neighbours::new(CmConfig::default().net.neighbours);
                let own = own(self.ends.local, THEM);
                assert_eq!(host.resolve(self.ends.remote, &own, now), Ok(None));
                server.neighbours.frame(&host.next_frame(now).unwrap(), now);
                let qpn = 100 + self.kept.len() as u32;
                self.coming = Some((self.engine.connect(&request(self.ends, qpn), now), now));
            }
            Some((id, since)) => {
                self.engine.establish(id);
                match self.engine.state(id) {
                    State::Established => {
                        self.slowest = self.slowest.max(now - since);
                        self.kept.push(id);
                        self.coming = None;
                    }
                    State::Ended => panic!("refused: {:?}", self.engine.end_of(id)),
                    _ => assert!(now - since < Duration::from_secs(2), "no connection in 2 s"),
                }
            }
        }
        self.engine.poll(now);
        while let Some(out) = self.engine.next_out() {
            server.receive(self.ends.local, &out.mad, now);
        }
    }
}

#[test]
fn a_turn_tries_new_messages_and_some_of_those_that_wait() {
    let mut outbox = Outbox::new(100);
    let out = |number: u16, is_stranger| {
        let message = Message::Dreq(CmDreq::zeroed());
        let mad = Mad { transaction_id: number.into(), message };
        let ends = Ends { local: ip(1), remote: ip(number) };
        Out { ends, mad, id: None, is_stranger }
    };
    (0..100).for_each(|number| outbox.push(out(number, true)));
    (0..50).for_each(|number| outbox.push(out(number, false)));
    outbox.push(out(7, false));
    let mut tried = [vec![0; 50], vec![0; 100]];
    // The first turn tries all of them; the later ones some, in turn.
    for turn in 0..4 {
        let moved = outbox.flush(|out| {
            tried[usize::from(out.is_stranger)][out.mad.transaction_id as usize] += 1;
            Sent::Later
        });
        let sums = tried.each_ref().map(|counts| counts.iter().sum::<usize>());
        assert_eq!((sums, moved), ([50 + 32 * turn, 100 + 32 * turn], false));
    }
    assert!(tried[1].iter().all(|count| (1..=2).contains(count)), "{tried:?}");
    // A new one is tried at once, and when the send queue is full all wait.
    outbox.push(out(99, true));
    assert_eq!((outbox.len(), outbox.unsent), (150, 1));
    let mut asked = Vec::new();
    assert!(!outbox.flush(|out| {
        asked.push((out.is_stranger, out.mad.transaction_id));
        if asked.len() <= 32 { Sent::Later } else { Sent::Full }
    }));
    assert_eq!((asked.len(), asked[32], outbox.len()), (33, (true, 99), 150));
    assert!(outbox.flush(|_| Sent::Done));
    assert_eq!(outbox.len(), 150 - 2 * 32);
}

/// Requests alone, fifty for each that the program takes: an honest peer has not one chance in
/// fifty, but all of them, because it is there.
#[test]
fn an_honest_peer_connects_during_a_flood_of_requests_that_nobody_could_take() {
    const RATE: u32 = 50;
    let mut server = Server::new(1);
    let mut rng = SplitMix64::new(12);
    let ends = Ends { local: ip(1), remote: ip(2) };
    let mut honest =
        Honest { engine: engine(1), ends, coming: None, kept: Vec::new(), slowest: Duration::ZERO };
    let (mut now, mut sent) = (Duration::ZERO, Vec::new());
    let turns = u64::from(messages() / 100);
    for turn in 0..turns {
        now += Duration::from_millis(1);
        for _ in 0..RATE {
            let (from, mad) = loop {
                let (from, mad) = hostile(&mut rng, 2000);
                if matches!(mad.message, Message::Req(_)) {
                    break (from, mad);
                }
            };
            server.receive(from, &mad, now);
        }
        if honest.coming.is_some() || honest.kept.len() as u64 <= turn / 100 {
            honest.turn(&mut server, &sent, now);
        }
        sent = server.turn(now);
        server.assert_within_limits();
    }
    assert!(honest.kept.len() as u64 >= turns / 110, "{}", honest.kept.len());
    // The program heard of nobody else.
    assert_eq!(server.established.len(), honest.kept.len());
    assert!(server.coming.len() <= 1, "{}", server.coming.len());
}

#[test]
fn an_honest_peer_connects_during_a_flood_and_nothing_grows() {
    let mut server = Server::new(usize::MAX);
    let mut rng = SplitMix64::new(11);
    let ends = Ends { local: ip(1), remote: ip(2) };
    let mut honest =
        Honest { engine: engine(1), ends, coming: None, kept: Vec::new(), slowest: Duration::ZERO };
    let mut now = Duration::ZERO;
    let mut sent = Vec::new();
    let mut answers_to_strangers = 0;
    let messages = messages();
    for at in 0..messages {
        let guess = 2000 + (rng.next_u64() as u32) % 1_000_000;
        let (from, mad) = hostile(&mut rng, guess);
        server.receive(from, &mad, now);
        now += GAP;
        if at.is_multiple_of(TURN) {
            // A new one each second; the rest of the time it waits.
            if honest.coming.is_some() || honest.kept.len() as u64 <= now.as_secs() {
                honest.turn(&mut server, &sent, now);
            }
            sent = server.turn(now);
            answers_to_strangers += sent.iter().filter(|out| out.ends.remote != ip(1)).count();
            server.assert_within_limits();
        }
    }
    assert!(honest.kept.len() as u64 >= now.as_secs(), "{}", honest.kept.len());
    // None of those that were made was lost, and no stranger got anywhere.
    for &id in &server.established {
        assert_eq!(server.engine.state(id), State::Established);
        assert_eq!(server.engine.conn(id).unwrap().ends.remote, ip(1));
    }
    assert_eq!(server.established.len(), honest.kept.len());
    assert_eq!(answers_to_strangers, 0);
    let stats = server.engine.limit_stats();
    let unsent = server.outbox.unsent;
    assert!(stats.pushed_out.min(unsent) > u64::from(messages / 10), "{stats:?}, {unsent}");
    // Fewer questions than a twentieth of the flood: invented peers do not make us shout.
    assert!(server.questions < messages / 20, "{}", server.questions);
    assert!(honest.slowest < Duration::from_secs(2), "{:?}", honest.slowest);
    // When the flood is over, everything of it goes within the limits on waiting.
    let limits = CmLimits::default();
    let mut end = now;
    while end < now + 2 * limits.patience + limits.time_wait {
        end += Duration::from_millis(100);
        server.turn(end);
    }
    assert_eq!(server.engine.len(), server.established.len());
    assert_eq!((server.outbox.len(), server.coming.len()), (0, 0));
}
