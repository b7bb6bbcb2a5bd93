//! Raw packet queue pairs: frames that come back to the port that sent them, and queue pairs that
//! are reset whatever is posted.

mod common;

use common::{Side, Two, pattern, rts, small, take};
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
    let mut qps = qps;
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
