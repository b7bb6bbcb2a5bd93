//! TAP and veth wires against the Linux network stack. Needs root; says so when it skips.
#![allow(clippy::cast_possible_truncation, reason = "test data")]

use std::io::Write as _;
use std::net::{TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use etherparse::{PacketBuilder, SlicedPacket, TcpSlice, TransportSlice};
use ferrocx_model::datapath::offload;
use ferrocx_model::datapath::packet::Packet;
use ferrocx_model::wire::{Fcs, PacketWire, TapWire, Wire};
use ferrocx_netdev as netdev;

/// The address that the wire's end pretends to have.
const PEER_MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 0x77];

/// Runs `ip` with these words; prints why when it fails.
fn ip(words: &str) -> bool {
    let output = Command::new("ip").args(words.split(' ')).output();
    match output {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("skipped: ip {words}: {}", String::from_utf8_lossy(&output.stderr).trim());
            false
        }
        Err(error) => {
            println!("skipped: ip: {error}");
            false
        }
    }
}

/// Removes an interface at the end, also of a test that fails.
struct Interface(&'static str);

impl Drop for Interface {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", self.0]).output();
    }
}

fn send(wire: &mut impl Wire, frame: &[u8]) {
    wire.reserve(frame.len()).expect("room").copy_from_slice(frame);
    wire.commit(0, Fcs::Good);
    wire.flush(0);
}

/// Ends a test that hangs. Linux sends when it finds the time, seconds later on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The first frame that `wanted` accepts.
fn await_frame(wire: &mut impl Wire, wanted: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        // As a device does in each step: what the kernel could not take at once waits for it.
        wire.flush(0);
        match wire.receive(0) {
            Some(frame) if wanted(frame.bytes) => return Some(frame.bytes.to_vec()),
            Some(_) => {}
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}

#[test]
fn the_host_answers_arp_through_a_tap_interface() {
    let mut wire = match TapWire::open("fcxt0") {
        Ok(wire) => wire,
        Err(error) => return println!("skipped: {error}"),
    };
    if !ip("addr add 198.18.77.1/24 dev fcxt0") {
        return;
    }
    let host = wire.host_mac().expect("an interface of ours").map(|byte| format!("{byte:02x}"));
    let system = std::fs::read_to_string("/sys/class/net/fcxt0/address");
    // Another network namespace may have mounted /sys.
    if let Ok(system) = system {
        assert_eq!(system.trim(), host.join(":"));
    }
    netdev::set_up("fcxt0", true).expect("an interface of ours");
    let mut request = vec![0xff; 6];
    request.extend(PEER_MAC);
    request.extend([0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1]);
    request.extend(PEER_MAC);
    request.extend([198, 18, 77, 2, 0, 0, 0, 0, 0, 0, 198, 18, 77, 1]);
    request.resize(60, 0);
    send(&mut wire, &request);
    let reply = await_frame(&mut wire, |frame| frame[12..14] == [0x08, 0x06]).expect("a reply");
    assert_eq!(reply[..6], PEER_MAC);
    assert_eq!(reply[20..22], [0, 2]);
    assert_eq!(reply[28..32], [198, 18, 77, 1]);
    assert_eq!(reply.len(), 60, "padded to the smallest frame");
    // Down: the kernel refuses frames, and that is counted.
    netdev::set_up("fcxt0", false).expect("an interface of ours");
    send(&mut wire, &request);
    assert_eq!((wire.stats().to_kernel, wire.stats().refused), (1, 1));
}

/// A veth pair: `name0` is the wire's, `name1` the host's with an address and a static neighbour.
fn veth(name0: &'static str, name1: &str, net: &str) -> Option<(Interface, PacketWire)> {
    if !ip(&format!("link add {name0} type veth peer name {name1}")) {
        return None;
    }
    let guard = Interface(name0);
    let mac = "02:fe:0c:00:00:77";
    let is_ready = ip(&format!("link set {name0} up"))
        && ip(&format!("link set {name1} up"))
        && ip(&format!("addr add {net}.1/24 dev {name1}"))
        && ip(&format!("neigh replace {net}.2 lladdr {mac} dev {name1} nud permanent"));
    let wire = PacketWire::open(name0).expect("the interface is there");
    is_ready.then_some((guard, wire))
}

fn is_right(frame: &[u8]) -> bool {
    let verified = offload::verify(frame, &Packet::parse(frame), false);
    verified.l3_ok && verified.l4_ok
}

#[test]
fn checksums_that_a_veth_leaves_open_are_filled_in() {
    let Some((_guard, mut wire)) = veth("fcxu0", "fcxu1", "198.18.78") else { return };
    let socket = UdpSocket::bind("198.18.78.1:0").expect("an address of ours");
    for len in [0, 1, 17, 1400] {
        socket.send_to(&vec![0x5a; len], "198.18.78.2:9").expect("a route");
        let frame = await_frame(&mut wire, |frame| {
            Packet::parse(frame).l4 != ferrocx_model::datapath::packet::L4::None
                && frame[12..14] == [8, 0]
                && frame[36..38] == [0, 9]
        })
        .expect("the datagram");
        assert!(is_right(&frame), "{len} bytes: {frame:02x?}");
        assert_eq!(frame.len(), (42 + len).max(60));
    }
    assert_eq!(wire.stats().unusable, 0);
}

fn tcp<'a>(sliced: &'a SlicedPacket<'a>) -> Option<&'a TcpSlice<'a>> {
    match sliced.transport.as_ref()? {
        TransportSlice::Tcp(tcp) => Some(tcp),
        _ => None,
    }
}

#[test]
fn frames_that_a_veth_leaves_uncut_are_cut() {
    let Some((_guard, mut wire)) = veth("fcxv0", "fcxv1", "198.18.79") else { return };
    let host_mac = std::fs::read_to_string("/sys/class/net/fcxv1/address").expect("a MAC");
    let host_mac: Vec<u8> = host_mac
        .trim()
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal"))
        .collect();
    let client = std::thread::spawn(|| {
        let address = "198.18.79.2:80".parse().expect("an address");
        let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.write_all(&[0xa7; 12_000])
    });
    let is_tcp = |frame: &[u8]| frame[12..14] == [8, 0] && frame[23] == 6;
    let syn = await_frame(&mut wire, is_tcp).expect("a SYN");
    let sliced = SlicedPacket::from_ethernet(&syn).expect("a packet");
    let (port, seq) = {
        let syn = tcp(&sliced).expect("TCP");
        (syn.source_port(), syn.sequence_number())
    };
    let mut answer = Vec::new();
    PacketBuilder::ethernet2(PEER_MAC, host_mac.try_into().expect("six bytes"))
        .ipv4([198, 18, 79, 2], [198, 18, 79, 1], 64)
        .tcp(80, port, 1, 65_000)
        .syn()
        .ack(seq.wrapping_add(1))
        .options(&[etherparse::TcpOptionElement::MaximumSegmentSize(1460)])
        .expect("one option")
        .write(&mut answer, &[])
        .expect("written to memory");
    answer.resize(answer.len().max(60), 0);
    send(&mut wire, &answer);
    let mut got = 0;
    while got < 12_000 {
        let Some(frame) = await_frame(&mut wire, is_tcp) else {
            panic!("{got} bytes, then none: {:?}, {:?}", wire.stats(), client.join())
        };
        assert!(frame.len() <= 1514, "{} bytes", frame.len());
        assert!(is_right(&frame));
        let sliced = SlicedPacket::from_ethernet(&frame).expect("a packet");
        let segment = tcp(&sliced).expect("TCP");
        if segment.payload().is_empty() {
            continue;
        }
        assert_eq!(segment.sequence_number().wrapping_sub(seq) as usize, 1 + got);
        assert!(segment.payload().iter().all(|byte| *byte == 0xa7));
        got += segment.payload().len();
    }
    assert!(wire.stats().cut > 0, "the kernel sent nothing uncut");
    assert_eq!(wire.stats().refused, 0, "every answer of ours was taken");
    client.join().expect("no panic").expect("written");
}
