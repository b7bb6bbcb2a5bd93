//! Raw packet queue pairs: frames that come back to the port that sent them, and queue pairs that
//! are reset whatever is posted.

use crate::common::{Side, Two, pattern, rts, small, take};
use ferrocx_core::{FlowMatch, MacAddr};
use ferrocx_verbs_lite::*;

/// A group, and a type of frames that nobody else has. Source: IEEE 802, local experimental
/// ethertype 1.
const GROUP: MacAddr = MacAddr([1, 0, 0x5e, 0, 0, 7]);
const EXPERIMENTAL: [u8; 2] = [0x88, 0xb5];
const LEN: usize = 100;
const SLOT: usize = 2048;

fn started(side: &Side, user_index: u32) -> Qp {
    let mut qp = side.qp(&QpConfig { qp_type: QpType::Raw, user_index, ..small() });
    side.start(&mut qp, 0);
    qp
}

fn frame(to: MacAddr, from: MacAddr) -> Vec<u8> {
    let mut bytes = [&to.0[..], &from.0, &EXPERIMENTAL].concat();
    bytes.extend(pattern(LEN - bytes.len(), 3));
    bytes
}

fn to(mac: MacAddr) -> FlowMatch {
    FlowMatch { destination_mac: Some(mac.into()), ..FlowMatch::default() }
}

fn send(side: &Side, qp: &mut Qp, mr: &Mr, bytes: &[u8]) {
    side.fill(0, bytes);
    qp.post_send(&SendWr::signaled(1, SendOp::Frame), mr.buf(0..bytes.len()).ok()).unwrap();
}

/// Which of two queue pairs of a side had a completion, and the bytes that receives brought.
fn ended(side: &mut Side, qps: [&mut Qp; 2]) -> [Vec<Vec<u8>>; 2] {
    let mut out = [Vec::new(), Vec::new()];

    while let Some(completion) = side.cq.poll() {
        let at = completion.user_index() as usize;
        let each = |wc: Wc<Buf>| {
            assert_eq!(wc.result, Ok(()));
            if wc.opcode == WcOpcode::Recv {
                let len = wc.byte_len as usize;
                out[at].push(wc.into_buffers().unwrap().to_vec()[..len].to_vec());
            }
        };
        qps[at].complete(completion, each).unwrap();
    }
    out
}

#[test]
fn frames_come_back_to_rules_that_hear_the_port() {
    for hears in [false, true] {
        let mut two = Two::new();
        let (mut sender, mut receiver) = (started(&two.a, 0), started(&two.a, 1));
        let mut peer = started(&two.b, 0);
        let (ma, mb) = (two.a.mr(), two.b.mr());
        let own = two.a.mac();
        for mac in [GROUP, own] {
            match hears {
                true => receiver.create_flow_hearing_port(&to(mac)).unwrap(),
                false => receiver.create_flow(&to(mac)).unwrap(),
            };
            peer.create_flow(&to(mac)).unwrap();
        }
        for (mac, goes_out) in [(GROUP, true), (own, !hears)] {
            let bytes = frame(mac, own);
            receiver.post_recv(2, ma.buf(SLOT..2 * SLOT).unwrap()).unwrap();
            peer.post_recv(3, mb.buf(SLOT..2 * SLOT).unwrap()).unwrap();
            send(&two.a, &mut sender, &ma, &bytes);
            two.world.settle();
            let expected = if hears { vec![bytes.clone()] } else { Vec::new() };
            let found = ended(&mut two.a, [&mut sender, &mut receiver]);
            assert_eq!(found, [Vec::new(), expected], "{mac:?}, hears: {hears}");
            let arrived = take(&mut two.b.cq, &mut peer).len();
            assert_eq!(arrived, usize::from(goes_out), "{mac:?}, hears: {hears}");
        }
    }
}

/// Completions that stand in a queue are nobody's.
fn refuses_all(cq: &mut Cq, qp: &mut Qp) {
    while let Some(completion) = cq.poll() {
        assert!(qp.complete(completion, |wc| panic!("{wc:?}")).is_err());
    }
}

#[test]
fn a_queue_pair_that_was_abandoned_has_another_life() {
    let mut two = Two::new();
    let (mut qa, mut qb) = (started(&two.a, 0), started(&two.b, 0));
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let bytes = frame(two.b.mac(), two.a.mac());
    qb.create_flow(&to(two.b.mac())).unwrap();
    for id in 0..3 {
        qb.post_recv(id, mb.buf(SLOT..2 * SLOT).unwrap()).unwrap();
    }
    send(&two.a, &mut qa, &ma, &bytes);
    // It is filled, and nobody looks: nor does anybody find it later.
    two.world.settle();
    assert_eq!(take(&mut two.a.cq, &mut qa).len(), 1);
    let other = two.b.context.create_cq(16).unwrap();
    assert!(matches!(qb.abandon(&[&other]), Err(VerbsError::NoSuchCq { .. })));
    qb.abandon(&[&two.b.cq]).unwrap();
    assert_eq!((qb.state(), qb.has_outstanding()), (QpState::Reset, false));
    refuses_all(&mut two.b.cq, &mut qb);
    qb.init(&InitAttr::default()).unwrap();
    qb.receive().unwrap();
    qb.activate(&rts(0)).unwrap();
    qb.create_flow(&to(two.b.mac())).unwrap();
    qb.post_recv(7, mb.buf(SLOT..2 * SLOT).unwrap()).unwrap();
    send(&two.a, &mut qa, &ma, &bytes);
    let (_, got) = two.run(&mut qa, &mut qb);
    assert_eq!((got.len(), got[0].wr_id, got[0].byte_len), (1, 7, LEN as u32));
    // A failed receive is struck out by the number of its own queue.
    qb.post_recv(8, mb.buf(SLOT..SLOT + 20).unwrap()).unwrap();
    send(&two.a, &mut qa, &ma, &bytes);
    two.world.settle();
    qb.abandon(&[&two.b.cq]).unwrap();
    refuses_all(&mut two.b.cq, &mut qb);
}

/// A datagram of UDP over IPv4 from an address, with its checksum left out.
fn datagram(last: u8) -> Vec<u8> {
    let ip = [0x45, 0, 0, 86, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, last, 10, 0, 0, 1];
    let udp = [0x12, 0x34, 0x56, 0x78, 0, 66, 0, 0];
    let mut bytes = [&GROUP.0[..], &[2, 0, 0, 0, 0, 1, 8, 0], &ip, &udp].concat();
    let sum = ferrocx_net::checksum::finish(ferrocx_net::checksum::sum(&bytes[14..34]));
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(pattern(LEN - bytes.len(), last));
    bytes
}

/// Toeplitz' hash of the source address alone. Source: "Introduction to Receive Side Scaling".
fn toeplitz(key: &[u8; 40], address: [u8; 4]) -> u32 {
    let word = |at: usize| u64::from_be_bytes(key[at..at + 8].try_into().unwrap());
    let window = word(0);
    let bits = (0..32).filter(|bit| u32::from_be_bytes(address) << bit >> 31 == 1);
    bits.fold(0, |hash, bit| hash ^ (window << bit >> 32) as u32)
}

#[test]
fn frames_are_spread_by_their_hash() {
    let mut two = Two::new();
    let mut sender = started(&two.a, 9);
    let config =
        |user_index| QpConfig { qp_type: QpType::Raw, user_index, spread: true, ..small() };
    let mut qps: Vec<Qp> = (0..2).map(|index| two.b.qp(&config(index))).collect();
    let twin: Result<Qp, _> = two.b.pd.create_qp(&two.b.cq, &config(1));
    assert!(matches!(twin, Err(VerbsError::Unsupported { .. })), "of one index");
    let plain = started(&two.b, 7);
    qps.iter_mut().for_each(|qp| two.b.start(qp, 0));
    let key = std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ 0x5a);
    let hash = FrameHash { key, fields: HashFields::SRC_IP };
    let none: [&Qp; 0] = [];
    assert!(matches!(Spread::new(&none, &hash), Err(VerbsError::OutOfRange { .. })));
    let three = [&qps[0], &qps[1], &qps[0]];
    assert!(matches!(Spread::new(&three, &hash), Err(VerbsError::OutOfRange { .. })));
    assert!(matches!(Spread::new(&[&plain], &hash), Err(VerbsError::Unsupported { .. })));
    assert!(matches!(qps[0].create_flow(&to(GROUP)), Err(VerbsError::Unsupported { .. })));
    let mut spread = Spread::new(&[&qps[0], &qps[1], &qps[1], &qps[1]], &hash).unwrap();
    let rule = spread.create_flow(&to(GROUP)).unwrap();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let mut counts = [0; 2];
    for last in 1..40 {
        let expected = usize::from(toeplitz(&key, [10, 0, 0, last]) & 3 != 0);
        let at = |of: usize| (1 + of) * SLOT..(2 + of) * SLOT;
        for (of, qp) in qps.iter_mut().enumerate() {
            if !qp.has_outstanding() {
                qp.post_recv(5, mb.buf(at(of)).unwrap()).unwrap();
            }
        }
        let bytes = datagram(last);
        send(&two.a, &mut sender, &ma, &bytes);
        two.world.settle();
        take(&mut two.a.cq, &mut sender);
        let mut completion = two.b.cq.poll().unwrap();
        assert_eq!(completion.user_index() as usize, expected, "from 10.0.0.{last}");
        assert!(qps[1 - expected].next_wc(&mut completion).is_err(), "it is not the other's");
        let each = |wc: Wc<Buf>| assert_eq!(wc.into_buffers().unwrap().to_vec()[..LEN], bytes);
        qps[expected].complete(completion, each).unwrap();
        counts[expected] += 1;
    }
    assert!(counts[0] > 3 && counts[1] > 3, "{counts:?}");
    // What stands in the queue when one is abandoned is nobody's; the other's goes on.
    for (of, qp) in qps.iter_mut().enumerate().filter(|(_, qp)| !qp.has_outstanding()) {
        qp.post_recv(6, mb.buf((1 + of) * SLOT..(2 + of) * SLOT).unwrap()).unwrap();
    }
    for last in 40..80 {
        send(&two.a, &mut sender, &ma, &datagram(last));
        two.world.settle();
        take(&mut two.a.cq, &mut sender);
    }
    qps[0].abandon(&[&two.b.cq]).unwrap();
    two.b.start(&mut qps[0], 0);
    let mut ended = [0; 2];
    while let Some(completion) = two.b.cq.poll() {
        let index = completion.user_index() as usize;
        ended[index] += usize::from(qps[index].complete(completion, |_| ()).is_ok());
    }
    assert_eq!(ended, [0, 1]);
    spread.destroy_flow(rule).unwrap();
    assert!(matches!(spread.destroy_flow(rule), Err(VerbsError::NoSuchFlow)));
}
