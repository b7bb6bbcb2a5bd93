//! Our TCP against the kernel's, through a TAP interface and a wire that loses, repeats and
//! reorders what either sends. `scripts/net/trading.sh` makes the interface, names it in
//! `FERROCX_TAP`, and gives it 198.18.1.2/24 and our neighbour's entry.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use ferrocx::model::wire::{Fcs, Impair, ImpairConfig, Link, SplitMix64, TapWire, Wire, link};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::Packet;
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::tcp::{Client, Closed, Config, Refused, Seq, State};

const OURS: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
const OUR_MAC: MacAddr = MacAddr([0x02, 0xe0, 0, 0, 1, 1]);
const PATIENCE: Duration = Duration::from_secs(30);

/// How bad the wire is for what we send, and for what the kernel sends.
#[derive(Clone, Copy, Default)]
struct Bad {
    out: ImpairConfig,
    back: ImpairConfig,
}

/// A client of ours on the wire.
struct End {
    wire: Impair<TapWire>,
    /// What the kernel sent goes in here, and comes out there.
    back: (Impair<Link>, Link),
    /// Segments of the kernel's that the wire swallows next.
    swallowed: u32,
    client: Client,
    heard: Vec<u8>,
    lost: Lost,
    /// The longest time from one poll to the next since this was reset: the core was elsewhere.
    away: Duration,
}

/// A frame of ours that the wire swallows.
#[derive(Default)]
enum Lost {
    #[default]
    Nothing,
    Next,
    /// It was; what follows it has not left yet.
    Once,
    /// When the frame after it left.
    Again(Instant),
}

fn transmit(wire: &mut impl Wire, lost: &mut Lost, frame: &[u8]) {
    match lost {
        Lost::Next => {
            *lost = Lost::Once;
            return;
        }
        Lost::Once => *lost = Lost::Again(Instant::now()),
        Lost::Nothing | Lost::Again(_) => {}
    }
    let len = frame.len().max(60);
    if let Some(room) = wire.reserve(len) {
        room[..frame.len()].copy_from_slice(frame);
        room[frame.len()..].fill(0);
        wire.commit(now_ns(), Fcs::Good);
        wire.flush(now_ns());
    }
}

impl End {
    fn new(tap: &str, port: u16, remote: SocketAddr, bad: Bad, seed: u64) -> Self {
        let text = std::fs::read_to_string(format!("/sys/class/net/{tap}/address")).unwrap();
        let bytes: Vec<u8> =
            text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect();
        let kernel_mac = MacAddr(bytes.try_into().unwrap());
        let wire = TapWire::open(tap).unwrap();
        let mut wire = Impair::new(wire, bad.out, SplitMix64::new(seed));
        let (near, far) = link(1 << 20);
        let near = Impair::new(near, bad.back, SplitMix64::new(seed + 1));
        let local = SocketAddr::from((OURS, port));
        let config = Config::new((OUR_MAC, local), (kernel_mac, remote));
        let client = Client::connect(config, Seq(u32::MAX - 5_000), now_ns(), |frame| {
            transmit(&mut wire, &mut Lost::Nothing, frame);
        });
        Self {
            wire,
            back: (near, far),
            swallowed: 0,
            client: client.unwrap(),
            heard: Vec::new(),
            lost: Lost::Nothing,
            away: Duration::ZERO,
        }
    }

    fn poll(&mut self) {
        let Self { wire, back: (near, far), swallowed, client, heard, lost, .. } = self;
        while let Some(frame) = wire.receive(now_ns()) {
            let Ok(packet) = Packet::parse(frame.bytes) else { continue };
            if packet.is_udp() || packet.destination().ip() != OURS {
                continue;
            }
            if *swallowed > 0 {
                *swallowed -= 1;
                continue;
            }
            near.reserve(frame.bytes.len()).expect("room").copy_from_slice(frame.bytes);
            near.commit(now_ns(), Fcs::Good);
        }
        near.flush(now_ns());
        while let Some(frame) = far.receive(now_ns()) {
            let packet = Packet::parse(frame.bytes).expect("it was one");
            assert!(packet.is_intact(), "the kernel's checksums");
            let deliver = |bytes: &[u8]| heard.extend_from_slice(bytes);
            client.receive(&packet, now_ns(), deliver, |frame| transmit(wire, lost, frame));
        }
        client.poll(now_ns(), |frame| transmit(wire, lost, frame));
        wire.flush(now_ns());
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        let mut before = start;
        while !done(self) {
            self.poll();
            let now = Instant::now();
            self.away = self.away.max(now - before);
            before = now;
            let (state, stats) = (self.client.state(), self.client.stats());
            assert!(start.elapsed() < PATIENCE, "{what}: {state:?} {stats:?}");
        }
    }

    fn open(&mut self) {
        self.until("to open", |end| end.client.state() == State::Established);
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let Self { wire, client, lost, .. } = self;
        client.send(bytes, now_ns(), |frame| transmit(wire, lost, frame))
    }

    fn close(&mut self) {
        let Self { wire, client, lost, .. } = self;
        client.close(now_ns(), |frame| transmit(wire, lost, frame));
    }
}

/// What the kernel's end does with a connection.
type Server = fn(TcpStream, mpsc::Sender<Vec<u8>>);

/// A listener of the kernel's, what it will do, and our end.
fn ends(
    tap: &str,
    port: u16,
    bad: Bad,
    server: Server,
) -> (End, mpsc::Receiver<Vec<u8>>, thread::JoinHandle<()>) {
    let listener = TcpListener::bind((KERNEL, 0)).unwrap();
    let remote = listener.local_addr().unwrap();
    let (to_test, heard) = mpsc::channel();
    let thread = thread::spawn(move || server(listener.accept().unwrap().0, to_test));
    (End::new(tap, port, remote, bad, port.into()), heard, thread)
}

/// Sends back what comes, and closes when the peer does.
fn echo(mut stream: TcpStream, _: mpsc::Sender<Vec<u8>>) {
    stream.set_nodelay(true).unwrap();
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        stream.write_all(&bytes[..len]).unwrap();
    }
    let _ = stream.shutdown(Shutdown::Write);
}

/// Tells the test of each piece that comes.
fn tell(mut stream: TcpStream, to_test: mpsc::Sender<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = stream.read(&mut bytes) {
        to_test.send(bytes[..len].to_vec()).unwrap();
    }
}

/// Every byte there and back, and both ends closed.
fn every_byte(tap: &str, name: &str, port: u16, bad: Bad) {
    let (mut end, _, server) = ends(tap, port, bad, echo);
    end.open();
    let bytes: Vec<u8> = (0..400_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let start = Instant::now();
    let mut sizes = SplitMix64::new(port.into());
    let mut sent = 0;
    while sent < bytes.len() {
        let len = (1 + sizes.below(1400) as usize).min(bytes.len() - sent);
        end.until("to send", |end| end.send(&bytes[sent..sent + len]).is_ok());
        sent += len;
    }
    end.until("to hear all", |end| end.heard.len() >= bytes.len());
    assert!(end.heard == bytes, "{name}: other bytes came back");
    end.close();
    end.until("to close", |end| {
        matches!(end.client.state(), State::TimeWait | State::Closed(Closed::Done))
    });
    server.join().unwrap();
    let (stats, took) = (end.client.stats(), start.elapsed());
    println!("{name:<24} 400000 B there and back in {took:.1?}: {stats:?}");
    // A wire that did nothing would have tested nothing.
    let mends = stats.timeouts + stats.fast + stats.probes;
    assert!(bad.out.loss_ppm == 0 || mends > 0, "{name}: nothing was sent again: {stats:?}");
    let in_order = bad.back.loss_ppm == 0 && bad.back.reorder_ppm == 0;
    assert!(in_order || stats.out_of_order > 0, "{name}: all came in order: {stats:?}");
    let (sent, back) = (end.wire.stats(), end.back.0.stats());
    let harmed = [sent, back].map(|stats| stats.lost + stats.duplicated + stats.reordered);
    let asked = [bad.out, bad.back].map(|bad| bad != ImpairConfig::default());
    assert_eq!(harmed.map(|frames| frames > 0), asked, "{name}: {sent:?}, {back:?}");
}

/// The kernel's first answers are lost: the connection opens all the same, and carries bytes.
fn lost_answers(tap: &str) {
    let (mut end, heard, server) = ends(tap, 4020, Bad::default(), tell);
    end.swallowed = 2;
    end.open();
    // Of what follows, each second acknowledgment alone: without the others no round trip would
    // ever be measured, and the timer stay where the lost answers put it.
    for piece in 0..40_u8 {
        end.swallowed = u32::from(piece % 2);
        end.send(&[piece; 100]).unwrap();
        let mut came = Vec::new();
        end.until("the bytes", |_| {
            heard.try_iter().for_each(|bytes| came.extend(bytes));
            came.len() >= 100
        });
        assert_eq!(came, [piece; 100]);
        end.until("an acknowledgment", |end| end.client.unacknowledged() == 0);
    }
    end.close();
    end.until("to close", |end| end.client.unacknowledged() == 0);
    server.join().unwrap();
    println!(
        "lost answers             SYN-ACK twice, then 20 of 40 acknowledgments: each byte once"
    );
}

/// Orders of which the first copy is lost, one at a time. Those count that follow round trips as
/// short as the wire's: how long a lost one is waited for comes of them, and they grow when another
/// program has the core of who should read.
fn lone_lost_orders(tap: &str) {
    const SHORT: Duration = Duration::from_millis(1);
    let start = Instant::now();
    let out = ImpairConfig { delay_ns: 100_000, ..ImpairConfig::default() };
    let slow = Bad { out, ..Bad::default() };
    let (mut end, heard, server) = ends(tap, 5001, slow, tell);
    end.open();
    // No shorter than the client's own. Source: RFC 6298, 2.
    let mut smoothed = start.elapsed();
    let (mut worst, mut counted, mut sent) = (Duration::ZERO, 0, 0);
    while counted < 50 && sent < 2_000 {
        sent += 1;
        let order = sent as u8;
        // One that arrives, so that the round trip is known, and one that does not.
        for lost in [Lost::Nothing, Lost::Next] {
            (end.lost, end.away) = (lost, Duration::ZERO);
            let start = Instant::now();
            end.send(&[order; 50]).unwrap();
            let mut came = Vec::new();
            end.until("the order", |_| {
                heard.try_iter().for_each(|bytes| came.extend(bytes));
                came.len() >= 50
            });
            assert_eq!(came, [order; 50]);
            end.until("its acknowledgment", |end| end.client.unacknowledged() == 0);
            // What a busy machine adds is not the protocol's: such orders do not count. Nor is when
            // the kernel answers, which may wait for 40 ms with it.
            match end.lost {
                Lost::Nothing => smoothed = (7 * smoothed + start.elapsed()) / 8,
                Lost::Again(at) if end.away < SHORT && smoothed < SHORT => {
                    worst = worst.max(at - start);
                    counted += 1;
                }
                Lost::Again(_) => {}
                Lost::Next | Lost::Once => panic!("an order that was lost was not sent again"),
            }
        }
    }
    end.close();
    end.until("to close", |end| end.client.unacknowledged() == 0);
    server.join().unwrap();
    println!("a lone lost order        sent again within {worst:.1?}, {counted} of {sent} counted");
    assert!(counted >= 20, "the machine is too busy to say: {counted} of {sent} orders count");
    assert!(worst <= Duration::from_millis(5), "{worst:?}");
}

/// A peer that does not read: its window closes, opens, and no byte is lost.
fn zero_window(tap: &str) {
    fn lazy(mut stream: TcpStream, to_test: mpsc::Sender<Vec<u8>>) {
        thread::sleep(Duration::from_millis(700));
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        to_test.send(all).unwrap();
    }
    let (mut end, heard, server) = ends(tap, 5002, Bad::default(), lazy);
    end.open();
    let (mut sent, mut refused) = (Vec::new(), 0_u64);
    for piece in 0..600_u32 {
        let bytes = [piece as u8; 1000];
        end.until("room", |end| {
            let result = end.send(&bytes);
            refused += u64::from(result == Err(Refused::Window));
            result.is_ok()
        });
        sent.extend(bytes);
    }
    end.close();
    end.until("to be heard", |end| end.client.unacknowledged() == 0);
    let all = heard.recv_timeout(PATIENCE).unwrap();
    assert!(all == sent && refused > 0, "{} of {}, {refused} refused", all.len(), sent.len());
    server.join().unwrap();
    println!("zero window              600000 B, refused {refused} times while it was closed");
}

/// A peer that goes away in the middle, and a port that nobody listens on.
fn resets(tap: &str) {
    fn rude(mut stream: TcpStream, _: mpsc::Sender<Vec<u8>>) {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        // Dropped with bytes unread: the kernel resets.
        thread::sleep(Duration::from_millis(50));
    }
    let (mut end, _, server) = ends(tap, 5003, Bad::default(), rude);
    end.open();
    end.send(b"two").unwrap();
    end.until("a reset", |end| end.client.state() == State::Closed(Closed::Reset));
    server.join().unwrap();
    let nobody = SocketAddr::from((KERNEL, 9));
    drop(end);
    let mut end = End::new(tap, 5004, nobody, Bad::default(), 1);
    end.until("a refusal", |end| end.client.state() == State::Closed(Closed::Refused));
    println!("RST                      in the middle: reset; at the start: refused");
}

/// The peer is done first, and hears the rest.
fn half_closed(tap: &str) {
    fn done(mut stream: TcpStream, to_test: mpsc::Sender<Vec<u8>>) {
        stream.write_all(b"last words").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        to_test.send(all).unwrap();
    }
    let (mut end, heard, server) = ends(tap, 5005, Bad::default(), done);
    end.until("its end", |end| end.client.state() == State::CloseWait);
    assert_eq!(end.heard, b"last words");
    end.send(b"still here").unwrap();
    end.close();
    end.until("to close", |end| end.client.state() == State::Closed(Closed::Done));
    assert_eq!(heard.recv_timeout(PATIENCE).unwrap(), b"still here");
    server.join().unwrap();
    println!("FIN                      of the peer first, of ours last: both heard");
}

#[test]
fn every_byte_and_every_end_against_the_kernel() {
    let Ok(tap) = std::env::var("FERROCX_TAP") else {
        println!("skipped: FERROCX_TAP is not set; scripts/net/trading.sh does");
        return;
    };
    let clean = ImpairConfig::default();
    let reordered = ImpairConfig { reorder_ppm: 50_000, reorder_frames: 3, ..clean };
    let wires = [
        ("1 % lost", ImpairConfig { loss_ppm: 10_000, ..clean }),
        ("5 % lost", ImpairConfig { loss_ppm: 50_000, ..clean }),
        ("5 % reordered by 3", reordered),
        ("5 % twice", ImpairConfig { duplicate_ppm: 50_000, ..clean }),
        ("all", ImpairConfig { loss_ppm: 10_000, duplicate_ppm: 10_000, ..reordered }),
    ];
    every_byte(&tap, "clean", 4001, Bad::default());
    for (port, (name, wire)) in (4002..).step_by(3).zip(wires) {
        every_byte(&tap, name, port, Bad { out: wire, back: clean });
        every_byte(&tap, &format!("{name}, back"), port + 1, Bad { out: clean, back: wire });
        every_byte(&tap, &format!("{name}, both"), port + 2, Bad { out: wire, back: wire });
    }
    lost_answers(&tap);
    lone_lost_orders(&tap);
    zero_window(&tap);
    resets(&tap);
    half_closed(&tap);
}
