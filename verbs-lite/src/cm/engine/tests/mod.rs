//! Two engines and the messages between them, lost, repeated and swapped at will.

mod connecting;
mod ending;
mod limits;
mod strangers;

use std::net::IpAddr;

use ferrocx_prm::mad::{CmDrep, CmDreq, CmMra, CmRej, CmRep, CmReq, CmRtu};

use super::super::config::{CmLimits, ConnParams};
use super::super::conn::{self, rej, service_id};
use super::*;

const PORT: u16 = 7174;
/// 4.096 us times 2 to the power 8: about a millisecond.
const TIMEOUT: u8 = 8;
const INTERVAL: Duration = Duration::from_nanos(4096 << TIMEOUT);
const RETRIES: u8 = 3;

fn config(guid: u64) -> EngineConfig {
    let (response_timeout, max_retries) = (TIMEOUT, RETRIES);
    let cm = CmConfig { response_timeout, max_retries, service_timeout: 10, ..CmConfig::default() };
    EngineConfig { cm, guid, max_mtu: 3, first_id: guid as u32 * 100 }
}

fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// From 10.0.0.1 to 10.0.0.2.
fn ahead() -> Ends {
    Ends { local: ip(1), remote: ip(2) }
}

/// And back.
fn back() -> Ends {
    Ends { local: ip(2), remote: ip(1) }
}

fn request() -> Request<'static> {
    Request {
        ends: ahead(),
        port: PORT,
        source_port: 50_000,
        qpn: 0x0a_0b0c,
        psn: 0x11_2233,
        mtu: 3,
        hop_limit: 64,
        traffic_class: 0,
        params: ConnParams {
            responder_resources: 4,
            initiator_depth: 5,
            retry_count: 6,
            rnr_retry_count: 7,
            ack_timeout: 9,
            private_data: b"hello",
        },
    }
}

fn answer() -> Answer<'static> {
    Answer {
        qpn: 0x01_0203,
        psn: 0x44_5566,
        params: ConnParams {
            responder_resources: 6,
            initiator_depth: 9,
            rnr_retry_count: 6,
            private_data: b"welcome",
            ..ConnParams::default()
        },
    }
}

/// Both ends and their clock.
struct Two {
    a: Engine,
    b: Engine,
    now: Duration,
}

impl Two {
    fn new() -> Self {
        let (a, mut b) = (Engine::new(config(1)), Engine::new(config(2)));
        assert!(b.listen(service_id(PORT), 2));
        Self { a, b, now: Duration::from_secs(1) }
    }

    /// The next message of an end, which must have that name.
    fn take(engine: &mut Engine, name: &str) -> Mad {
        let out = engine.next_out().unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(out.mad.message.name(), name);
        out.mad
    }

    fn pass_to_a(&mut self, name: &str) -> Mad {
        let mad = Self::take(&mut self.b, name);
        self.a.receive(ahead(), &mad, self.now);
        mad
    }

    fn pass_to_b(&mut self, name: &str) -> Mad {
        let mad = Self::take(&mut self.a, name);
        self.b.receive(back(), &mad, self.now);
        mad
    }

    fn quiet(&mut self) {
        assert_eq!(self.a.next_out(), None);
        assert_eq!(self.b.next_out(), None);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.a.poll(self.now);
        self.b.poll(self.now);
    }

    /// Asked for, arrived, taken: numbers at both ends.
    fn asked(&mut self) -> (u32, u32) {
        let id = self.a.connect(&request(), self.now);
        self.pass_to_b("REQ");
        let theirs = self.b.take_request(service_id(PORT)).unwrap();
        assert_eq!((self.a.state(id), self.b.state(theirs)), (State::ReqSent, State::ReqRcvd));
        (id, theirs)
    }

    fn accept(&mut self, theirs: u32) -> bool {
        self.b.prepare(theirs, &answer()) && self.b.accept(theirs, self.now)
    }

    fn established(&mut self) -> (u32, u32) {
        let (id, theirs) = self.asked();
        assert!(self.accept(theirs));
        assert_eq!(self.b.state(theirs), State::RepSent);
        self.pass_to_a("REP");
        assert_eq!(self.a.state(id), State::RepRcvd);
        assert!(self.a.establish(id));
        self.pass_to_b("RTU");
        let states = (self.a.state(id), self.b.state(theirs));
        assert_eq!(states, (State::Established, State::Established));
        self.quiet();
        (id, theirs)
    }

    /// Everybody lets go; after time wait nothing is left.
    fn clean(mut self, id: u32, theirs: u32) {
        self.a.forget(id, self.now);
        self.b.forget(theirs, self.now);
        for _ in 0..200 {
            self.pass(INTERVAL);
            while self.a.next_out().is_some() || self.b.next_out().is_some() {}
        }
        for engine in [&self.a, &self.b] {
            assert!(engine.is_empty() && engine.deadlines.is_empty());
            assert!(engine.by_remote.is_empty() && engine.by_qpn.is_empty());
        }
    }
}
