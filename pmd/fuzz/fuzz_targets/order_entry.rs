//! Any bytes from an exchange, in segments of TCP that lie about everything: sessions and orders
//! take or refuse them, exposures never go below nothing, and nothing panics.
#![no_main]

use std::net::SocketAddr;

use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Packet, Transport};
use ferrocx_tick2trade::orders::{ENTER_LEN, OrderEntry, OrdersConfig};
use ferrocx_tick2trade::proto::ouch::Answer;
use ferrocx_tick2trade::proto::soup::{Client, ClientConfig, ClientEvent, Splitter};
use ferrocx_tick2trade::proto::{Side, Text};
use ferrocx_tick2trade::risk::Intent;
use ferrocx_tick2trade::tcp::{self, Config, Seq};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, arbitrary::Arbitrary)]
enum Step {
    /// A segment: flags, distance from what is expected, distance from what was sent, window,
    /// payload.
    Segment(u8, i8, i8, u16, Vec<u8>),
    /// A frame of any bytes.
    Raw(Vec<u8>),
    /// Time passes, in ms.
    Wait(u8),
    /// An order of so many shares.
    Order(u8),
    Close,
}

fuzz_target!(|steps: Vec<Step>| {
    let (local, remote): (SocketAddr, SocketAddr) =
        ("192.0.2.1:40000".parse().unwrap(), "192.0.2.2:9000".parse().unwrap());
    let ends = ((MacAddr([2, 0, 0, 0, 0, 1]), local), (MacAddr([2, 0, 0, 0, 0, 2]), remote));
    let config = Config { window: 4096, send_bytes: 2048, ..Config::new(ends.0, ends.1) };
    let back = Headers { source: remote, destination: local, ..config.headers() };
    let mut now = 0;
    let mut sent = 0_u32;
    let mut tcp = tcp::Client::connect(config, Seq(u32::MAX - 9), now, |_| sent += 1).unwrap();
    let (mut stream, mut login) = (Vec::new(), Vec::new());
    let mut soup = Client::new(ClientConfig::default(), now, &mut login);
    let mut splitter = Splitter::new(200);
    let symbols = vec![Text::new("AAPL").unwrap()];
    let config = OrdersConfig { symbols, capacity: 4, ..OrdersConfig::default() };
    let mut orders = OrderEntry::new(config).unwrap();
    let mut broken = false;
    for step in steps {
        match step {
            Step::Segment(flags, ahead, acknowledged, window, payload) => {
                let template = tcp.template();
                let headers = Headers {
                    transport: Transport::Tcp {
                        sequence: template.acknowledgment.wrapping_add_signed(ahead.into()),
                        acknowledgment: template.sequence.wrapping_add_signed(acknowledged.into()),
                        flags: flags & 0x1f,
                        window,
                        max_segment: (flags & 0x20 != 0).then_some(window),
                    },
                    ..back
                };
                let mut frame = vec![0; headers.len_bytes()];
                frame.extend(payload);
                headers.write(&mut frame).unwrap();
                let packet = Packet::parse(&frame).unwrap();
                tcp.receive(&packet, now, |bytes| stream.extend(bytes), |_| sent += 1);
            }
            Step::Raw(bytes) => {
                if let Ok(packet) = Packet::parse(&bytes) {
                    tcp.receive(&packet, now, |bytes| stream.extend(bytes), |_| sent += 1);
                }
                // As if it had come in the stream.
                stream.extend(bytes);
            }
            Step::Wait(ms) => {
                now += u64::from(ms) * 1_000_000;
                tcp.poll(now, |_| sent += 1);
            }
            Step::Order(shares) => {
                let (security, side, price) = (0, Side::Buy, 10_000);
                let reference = Some(price);
                let intent = Intent { security, side, shares: shares.into(), price, reference };
                let mut packet = [0; ENTER_LEN];
                if let Ok(urn) = orders.enter(&intent, false, now, &mut packet)
                    && tcp.send(&packet, now, |_| sent += 1).is_err()
                {
                    orders.not_sent(urn);
                }
            }
            Step::Close => tcp.close(now, |_| sent += 1),
        }
        let bytes = std::mem::take(&mut stream);
        let mut input = &bytes[..];
        while !broken {
            match splitter.next(&mut input) {
                Ok(Some(packet)) => {
                    if let ClientEvent::Sequenced { payload, .. } = soup.receive(packet, now)
                        && let Ok((answer, _)) = Answer::parse(payload)
                    {
                        orders.answer(&answer);
                    }
                }
                Ok(None) => break,
                Err(_) => broken = true,
            }
        }
        assert!(orders.count() <= 4);
        // A segment is answered by at most two, and timers send one at a time.
        assert!(sent < 1_000_000);
    }
});
