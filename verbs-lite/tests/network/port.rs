//! The port's Ethernet side: asked by a peer that has nothing but a packet queue.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::common;
use crate::common::{Side, Two};
use ferrocx_core::FlowMatch;
use ferrocx_mempool::PageSize;
use ferrocx_verbs_lite::net::{NetConfig, Network};
use ferrocx_verbs_lite::*;

/// Ends a test that hangs, also on a machine that does other work.
const PATIENCE: Duration = Duration::from_secs(120);

fn config() -> NetConfig {
    NetConfig { page: PageSize::Base4K, ..NetConfig::default() }
}

/// Frames that a host can receive at a time, and bytes of each.
const RECEIVES: usize = 64;
const SLOT: usize = 2048;

/// A host that sends and receives frames through a raw packet queue pair.
struct Host {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl Host {
    fn new(side: &Side) -> Self {
        side.context.device().set_all_multicast(true).unwrap();
        let cq = side.context.create_cq(256).unwrap();
        let config = QpConfig { qp_type: QpType::Raw, ..QpConfig::default() };
        let mut qp = side.pd.create_qp(&cq, &config).unwrap();
        side.start(&mut qp, 0);
        qp.create_flow(&FlowMatch::default()).unwrap();
        let mut host = Self { qp, cq, mr: side.mr() };
        (0..RECEIVES).for_each(|slot| host.post(slot));
        host
    }

    fn post(&mut self, slot: usize) {
        let buf = self.mr.buf(slot * SLOT..(slot + 1) * SLOT).unwrap();
        self.qp.post_recv(slot as u64, buf).unwrap();
    }

    fn send(&mut self, bytes: &[u8]) {
        let at = RECEIVES * SLOT;
        let mut buf = self.mr.buf(at..at + bytes.len()).unwrap();
        buf.copy_in(0, bytes).unwrap();
        self.qp.post_send(&SendWr::signaled(0, SendOp::Frame), Some(buf)).unwrap();
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for wc in common::take(&mut self.cq, &mut self.qp) {
            wc.result.unwrap();
            let (opcode, slot, len) = (wc.opcode, wc.wr_id as usize, wc.byte_len as usize);
            if opcode == WcOpcode::Recv {
                frames.push(wc.into_buffers().unwrap().to_vec()[..len].to_vec());
                self.post(slot);
            }
        }
        frames
    }
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
        .collect()
}

/// Steps until the host receives a frame that `is` it.
fn hear(two: &Two, net: &mut Network, host: &mut Host, is: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        net.poll();
        two.world.step();
        if let Some(frame) = host.received().into_iter().find(|frame| is(frame)) {
            return frame;
        }
    }
    panic!("no such frame: {:?}", net.stats());
}

const US: &str = "020000000001";
const THEM: &str = "020000000002";

#[test]
fn addresses_are_announced_and_requests_answered() {
    let two = Two::new();
    let mut host = Host::new(&two.b);
    let mut net = Network::open(&two.a.context, &config()).unwrap();
    // Gratuitous ARP for 192.168.0.1.
    let announced = hex(&format!("ffffffffffff {US} 0806 0001 0800 0604 0001 {US} c0a80001"));
    hear(&two, &mut net, &mut host, |frame| frame.starts_with(&announced));
    // And the link-local address, to all nodes.
    let heard = hear(&two, &mut net, &mut host, |frame| frame.starts_with(&[0x33, 0x33, 0, 0]));
    assert_eq!((heard[54], &heard[62..64]), (136, &[0xfe, 0x80][..]));

    let mut question = hex(&format!(
        "ffffffffffff {THEM} 0806 0001 0800 0604 0001 {THEM} c0a80002 000000000000 c0a80001"
    ));
    question.resize(60, 0);
    host.send(&question);
    let answer =
        hex(&format!("{THEM} {US} 0806 0001 0800 0604 0002 {US} c0a80001 {THEM} c0a80002"));
    hear(&two, &mut net, &mut host, |frame| frame.starts_with(&answer));
    // The one who asked is known now.
    let path = net.resolve(two.b.ip.into()).unwrap().unwrap();
    assert_eq!(path.dmac, two.b.mac());

    // Somebody else's address is not answered for: the next answer is that of the echo request.
    let last = question.len() - 1 - (60 - 42);
    question[last] = 9;
    host.send(&question);
    host.send(&hex(&format!(
        "{US} {THEM} 0800 4500001c00010000 4001 f98c c0a80002 c0a80001 0800 f7fd 0001 0001"
    )));
    let heard = hear(&two, &mut net, &mut host, |_| true);
    assert_eq!(heard[..6], hex(THEM)[..]);
    assert_eq!((heard[23], &heard[26..34], heard[34]), (1, &hex("c0a80001c0a80002")[..], 0));
    assert!(net.stats().answered >= 2 && net.stats().conflicts == 0, "{:?}", net.stats());
    two.world.assert_clean();
    drop(net);
}

#[test]
fn a_group_is_reported_when_joined_when_asked_for_and_when_left() {
    let two = Two::new();
    let mut host = Host::new(&two.b);
    let mut net = Network::open(&two.a.context, &config()).unwrap();
    let group = IpAddr::from([239, 1, 2, 3]);
    net.join(group).unwrap();
    // To all IGMPv3 routers, 24 bytes of header, one hop, Router Alert; then one record.
    let report = |kind: &str| {
        let (to, ip) = (format!("01005e000016 {US} 0800"), "46c0 0028 0000 4000 0102");
        let (start, end) = (hex(&format!("{to} {ip}")), hex(&format!("{kind}000000 ef010203")));
        let option = hex("c0a80001 e0000016 94040000");
        move |frame: &[u8]| {
            frame.starts_with(&start) && frame[26..38] == option && frame[46..54] == end
        }
    };
    hear(&two, &mut net, &mut host, report("04"));
    // A general query of IGMPv3 with a tenth of a second to answer.
    host.send(&hex(&format!(
        "01005e000001 {THEM} 0800 46c0 0024 0000 4000 0102 4368 c0a80002 e0000001 94040000 \
         1101 ec81 00000000 027d 0000"
    )));
    hear(&two, &mut net, &mut host, report("02"));
    assert!(net.stats().reported >= 2 && net.stats().dropped == 0, "{:?}", net.stats());
    assert!(net.leave(group).unwrap());
    assert!(!net.leave(group).unwrap());
    hear(&two, &mut net, &mut host, report("03"));
    let text = net.join(IpAddr::from([10, 0, 0, 1])).unwrap_err().to_string();
    assert!(text.contains("is not the address of a group"), "{text}");
    two.world.assert_clean();
    drop(net);
}

#[test]
fn both_families_are_resolved_and_silence_is_an_error() {
    let two = Two::new();
    let mut a = Network::open(&two.a.context, &config()).unwrap();
    let mut b = Network::open(&two.b.context, &config()).unwrap();
    let gids = two.b.context.gids();
    assert_eq!(gids.len(), 2);
    for entry in gids {
        let start = Instant::now();
        let path = loop {
            if let Some(path) = a.resolve(entry.gid.ip()).unwrap() {
                break path;
            }
            a.poll();
            b.poll();
            two.world.step();
            assert!(start.elapsed() < PATIENCE);
        };
        assert_eq!((path.dmac, path.route.next_hop), (two.b.mac(), entry.gid.ip()));
    }
    // The model steps while it waits; nobody answers.
    drop(b);
    let error = a.resolve_and_wait("192.168.0.9".parse().unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("192.168.0.9 did not answer 5"), "{error}");
    let error = a.resolve("203.0.113.1".parse().unwrap()).unwrap_err();
    assert!(error.to_string().starts_with("no address of this port reaches"), "{error}");
    two.world.assert_clean();
    drop(a);
}

#[test]
fn an_address_added_later_is_announced_and_asked_with() {
    let two = Two::new();
    let mut host = Host::new(&two.b);
    let mut net = Network::open(&two.a.context, &config()).unwrap();
    let config = GidConfig {
        address: "10.9.0.1".parse().unwrap(),
        prefix_len: 24,
        gateway: Some("10.9.0.254".parse().unwrap()),
        vlan: Some(5),
    };
    two.a.context.add_gid(config).unwrap();
    // Through the gateway, which is asked for in the VLAN.
    assert_eq!(net.resolve("203.0.113.1".parse().unwrap()).unwrap(), None);
    let question = hex(&format!(
        "ffffffffffff {US} 8100 0005 0806 0001 0800 0604 0001 {US} 0a090001 000000000000 0a0900fe"
    ));
    hear(&two, &mut net, &mut host, |frame| frame.starts_with(&question));
    drop(net);
}
