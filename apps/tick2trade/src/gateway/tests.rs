//! A gateway whose peer is played by hand: bytes that no exchange of ours sends.

use ferrocx::bus::local::{LocalConfig, pair};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::{Port, PortConfig, TxQueueConfig};
use ferrocx_net::packet::{Headers, Transport, tcp as flags};
use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::EngineConfig;
use crate::proto::soup::{LoginAccepted, PacketType, push};
use crate::strategy::Quoter;

const S: u64 = 1_000_000_000;

/// A gateway, and where its peer stands in the connection.
struct Played {
    gateway: Gateway,
    engine: Engine<Quoter>,
    sequence: u32,
    now: u64,
}

impl Played {
    /// One whose order entry is open.
    fn open() -> Self {
        let (local, side) = pair(LocalConfig::default()).unwrap();
        let nic = Arc::new(Mutex::new(Nic::new(side, NicConfig::default())));
        local.set_idle_hook(Some(Arc::new(move || {
            nic.lock().unwrap().step(crate::latency::now_ns());
        })));
        let port = PortConfig { housekeeping: None, ..PortConfig::default() };
        let port = Port::from_transport(local, port).unwrap();
        let tx = TxQueue::new(port.device(), port.pool(), &TxQueueConfig::default()).unwrap();
        let config = GatewayConfig {
            local: (MacAddr([2, 0, 0, 0, 0, 1]), "192.0.2.1:0".parse().unwrap()),
            remote: (MacAddr([2, 0, 0, 0, 0, 2]), "192.0.2.2:9000".parse().unwrap()),
            user: Text::BLANK,
            password: Text::BLANK,
            retry_ns: S,
            timeout_ms: 15_000,
            is_snapshot: false,
        };
        let gateway = Gateway::new(config, tx, S).unwrap();
        let engine = Engine::new(EngineConfig::default(), Quoter::new(0, 100, 300)).unwrap();
        let mut played = Self { gateway, engine, sequence: 99, now: S };
        played.frame(flags::SYN | flags::ACK, b"");
        played.sequence = 100;
        let (session, next) = (Text::new("S").unwrap(), Text::new("1").unwrap());
        played.packet(PacketType(b'A'), LoginAccepted { session, next }.as_bytes());
        let mut known = [0; 13];
        (known[0], known[12]) = (AccountQueryAnswered::KIND, 1);
        played.packet(PacketType(b'S'), &known);
        assert_eq!(played.state(), GatewayState::Open);
        played
    }

    fn state(&self) -> GatewayState {
        self.gateway.state()
    }

    fn packet(&mut self, kind: PacketType, payload: &[u8]) {
        let mut bytes = Vec::new();
        push(&mut bytes, kind, payload);
        self.bytes(&bytes);
    }

    /// The peer sends bytes, as many segments as it takes.
    fn bytes(&mut self, bytes: &[u8]) {
        bytes.chunks(1_000).for_each(|bytes| self.frame(flags::ACK, bytes));
    }

    fn frame(&mut self, flags: u8, bytes: &[u8]) {
        let config = &self.gateway.config;
        let mut destination = config.local.1;
        destination.set_port(self.gateway.port);
        let headers = Headers {
            destination_mac: config.local.0,
            source_mac: config.remote.0,
            vlan_tci: None,
            source: config.remote.1,
            destination,
            hop_limit: 64,
            traffic_class: 0,
            transport: Transport::Tcp {
                sequence: self.sequence,
                acknowledgment: self.gateway.line.next_sequence().0,
                flags,
                window: u16::MAX,
                max_segment: None,
            },
        };
        self.sequence = self.sequence.wrapping_add(bytes.len() as u32);
        let mut frame = vec![0; headers.len_bytes()];
        frame.extend(bytes);
        headers.write(&mut frame).unwrap();
        self.gateway.receive(&Packet::parse(&frame).unwrap(), self.now, &mut self.engine);
    }
}

/// Lengths of packets that are none.
const RUBBISH: [u8; 6] = [0xff; 6];

#[test]
fn an_end_of_a_session_is_one_end() {
    let mut played = Played::open();
    played.bytes(&RUBBISH);
    let waits = GatewayState::Waiting(played.now + S);
    assert_eq!((played.state(), played.gateway.stats().broken), (waits, 1));
    for _ in 0..5 {
        played.now += S / 10;
        played.bytes(&RUBBISH);
        played.packet(PacketType(b'J'), b"A");
    }
    let stats = played.gateway.stats();
    assert_eq!((played.state(), stats.broken, stats.rejected), (waits, 1, 0));
    // What comes with the end of the connection is heard.
    let mut played = Played::open();
    let mut end = Vec::new();
    push(&mut end, PacketType(b'Z'), b"");
    played.frame(flags::ACK | flags::FIN, &end);
    assert_eq!(played.state(), GatewayState::Done(Ended::EndOfSession));
}

#[test]
fn behind_our_logout_nothing_begins_anew() {
    let mut played = Played::open();
    played.gateway.log_out(played.now);
    assert_eq!(played.state(), GatewayState::Closed);
    played.bytes(&RUBBISH);
    played.now += 100 * S;
    played.gateway.poll(played.now);
    assert_eq!((played.state(), played.gateway.stats().connections), (GatewayState::Closed, 1));
}

/// SoupBinTCP has no limit for text that is for people.
#[test]
fn a_long_word_to_people_is_passed_over() {
    let mut played = Played::open();
    played.packet(PacketType::DEBUG, &[b'x'; 60_000]);
    let heard = played.gateway.next_answer();
    played.packet(PacketType(b'S'), b"S\0\0\0\0\0\0\0\0S");
    assert_eq!(played.state(), GatewayState::Open);
    assert_eq!((played.gateway.next_answer(), played.gateway.stats().broken), (heard + 1, 0));
    played.packet(PacketType(b'S'), &[b'x'; 2_000]);
    assert_eq!(played.gateway.stats().broken, 1);
}
