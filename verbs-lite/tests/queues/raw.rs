//! Raw packet queue pairs: frames of every length, steering, states, and what goes wrong.

use std::net::Ipv4Addr;

use crate::common;
use crate::common::{Side, Two, ids, pattern, rts, small, syndromes, take};
use ferrocx_core::{FlowMatch, Ipv4Match, MacAddr};
use ferrocx_model::NicConfig;
use ferrocx_model::config::CapOverride;
use ferrocx_model::fault::{Fault, FaultPlan};
use ferrocx_model::wire::link;
use ferrocx_net::checksum;
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{CAP_PAGE_BYTES, EthCap, cap_type};
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_verbs_lite::*;

/// A type of frames that nobody else has. Source: IEEE 802, local experimental ethertype 1.
const EXPERIMENTAL: u16 = 0x88b5;
const ARP: u16 = 0x0806;
const MTU: usize = 1500;
/// Where receives lie; each has a slot.
const RECEIVES: usize = 128 << 10;
const SLOT: usize = 2048;
const LENGTH: u8 = CqeSyndrome::LOCAL_LENGTH_ERR.0;
const PROTECTION: u8 = CqeSyndrome::LOCAL_PROT_ERR.0;
const FLUSHED: u8 = CqeSyndrome::WR_FLUSH_ERR.0;

/// A queue pair in RTR: frames arrive.
fn raw<B: Buffers>(side: &Side, config: &QpConfig) -> Qp<B> {
    let mut qp = in_reset(side, config);
    qp.init(&InitAttr::default()).unwrap();
    qp.receive().unwrap();
    qp
}

fn in_reset<B: Buffers>(side: &Side, config: &QpConfig) -> Qp<B> {
    side.qp(&QpConfig { qp_type: QpType::Raw, ..*config })
}

fn ready<B: Buffers>(side: &Side, config: &QpConfig) -> Qp<B> {
    let mut qp = raw(side, config);
    qp.activate(&rts(0)).unwrap();
    qp
}

/// A queue pair on each side, each with the frames to its own address.
fn pair<B: Buffers>(two: &Two) -> (Qp<B>, Qp<B>) {
    let make = |side: &Side| {
        let mut qp = ready(side, &small());
        qp.create_flow(&to(side.mac())).unwrap();
        qp
    };
    (make(&two.a), make(&two.b))
}

fn to(mac: MacAddr) -> FlowMatch {
    FlowMatch { destination_mac: Some(mac.into()), ..FlowMatch::default() }
}

/// A frame of `len` bytes, of which those behind the header differ from place to place. What is
/// longer than the MTU and its header has a VLAN tag.
fn frame(to: MacAddr, from: MacAddr, ethertype: u16, len: usize) -> Vec<u8> {
    let tag: &[u8] = if len > MTU + 14 { &[0x81, 0x00, 0x01, 0x23] } else { &[] };
    let mut bytes = [&to.0[..], &from.0, tag, &ethertype.to_be_bytes()].concat();
    bytes.extend(pattern(len - bytes.len(), len as u8));
    bytes
}

/// Posts receives of a slot each.
fn post(qp: &mut Qp, mr: &Mr, ids: std::ops::Range<u64>) {
    for id in ids {
        let at = RECEIVES + (id as usize % 16) * SLOT;
        qp.post_recv(id, mr.buf(at..at + SLOT).unwrap()).unwrap();
    }
}

fn send(two: &Two, qp: &mut Qp, mr: &Mr, id: u64, bytes: &[u8]) {
    let at = id as usize % 16 * SLOT;
    two.a.fill(at, bytes);
    let buf = mr.buf(at..at + bytes.len()).unwrap();
    qp.post_send(&SendWr::signaled(id, SendOp::Frame), Some(buf)).unwrap();
}

/// Bytes that a receive brought.
fn received(wc: Wc<Buf>) -> Vec<u8> {
    assert_eq!((wc.result, wc.opcode), (Ok(()), WcOpcode::Recv));
    let len = wc.byte_len as usize;
    let mut bytes = wc.into_buffers().unwrap().to_vec();
    bytes.truncate(len);
    bytes
}

#[test]
fn frames_of_every_length_arrive_byte_by_byte() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let lengths = (60..=140).chain([255, 256, 257, 1000, MTU + 13, MTU + 14, MTU + 18]);
    for (id, len) in lengths.enumerate() {
        let id = id as u64;
        let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, len);
        post(&mut qb, &mb, id..id + 1);
        send(&two, &mut qa, &ma, id, &bytes);
        let (sent, mut got) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&sent), ids(&got)), (vec![(id, true)], vec![(id, true)]));
        assert_eq!(sent[0].opcode, WcOpcode::Send);
        assert_eq!(got[0].recv, RecvInfo::default());
        assert_eq!(received(got.remove(0)), bytes, "{len} bytes");
    }
    assert!(!qa.has_outstanding() && !qb.has_outstanding());
    two.world.assert_clean();
}

#[test]
fn short_frames_are_filled_up_to_the_minimum_of_the_wire() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    for len in [14, 15, 59] {
        let mut bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, len);
        post(&mut qb, &mb, 1..2);
        send(&two, &mut qa, &ma, 1, &bytes);
        let (_, mut got) = two.run(&mut qa, &mut qb);
        bytes.resize(60, 0);
        assert_eq!(received(got.remove(0)), bytes, "{len} bytes");
    }
}

#[test]
fn frames_are_gathered_scattered_and_sent_inline() {
    let mut two = Two::new();
    let config = QpConfig { max_send_sge: 2, max_recv_sge: 2, max_inline_bytes: 200, ..small() };
    let (mut qa, mut qb): (Qp<[Buf; 2]>, Qp<[Buf; 2]>) =
        (ready(&two.a, &config), ready(&two.b, &config));
    qb.create_flow(&to(two.b.mac())).unwrap();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 700);
    two.a.fill(0, &bytes[..9]);
    two.a.fill(4096, &bytes[9..]);
    let pieces = [ma.buf(0..9).unwrap(), ma.buf(4096..4096 + 691).unwrap()];
    qb.post_recv(1, [mb.buf(0..31).unwrap(), mb.buf(8192..8192 + 800).unwrap()]).unwrap();
    qa.post_send(&SendWr::signaled(1, SendOp::Frame), Some(pieces)).unwrap();
    let (_, got) = two.run(&mut qa, &mut qb);
    assert_eq!((got.len(), got[0].byte_len), (1, 700));
    assert_eq!([two.b.read(0, 31), two.b.read(8192, 669)].concat(), bytes);

    for len in [60, 61, 72, 200] {
        let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, len);
        qb.post_recv(2, [mb.buf(0..31).unwrap(), mb.buf(8192..8192 + 800).unwrap()]).unwrap();
        qa.post_send_inline(&SendWr::signaled(2, SendOp::Frame), &bytes).unwrap();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&sent), got[0].byte_len as usize), (vec![(2, true)], len));
        assert_eq!([two.b.read(0, 31), two.b.read(8192, len - 31)].concat(), bytes);
    }
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 201);
    let refused = qa.post_send_inline(&SendWr::signaled(3, SendOp::Frame), &bytes);
    assert_eq!(refused, Err(PostError::InlineTooLong));
}

#[test]
fn what_cannot_be_sent_is_refused_by_name_and_comes_back() {
    let two = Two::new();
    let (mut qa, _qb) = pair(&two);
    let ma = two.a.mr();
    let other = two.a.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(&two.a.memory, 0..4096, Access::LOCAL_WRITE).unwrap();
    let wr = SendWr::signaled(1, SendOp::Frame);
    let mut refused = |wr: &SendWr<'_>, buf: Option<Buf>| {
        let len = buf.as_ref().map(Buf::len);
        let refused = qa.post_send(wr, buf).unwrap_err();
        assert_eq!(refused.held.as_ref().map(Buf::len), len, "the buffer comes back");
        refused.cause
    };
    assert_eq!(refused(&wr, ma.buf(0..13).ok()), PostError::FrameLength);
    assert_eq!(refused(&wr, ma.buf(0..MTU + 15).ok()), PostError::FrameLength, "without a tag");
    two.a.fill(12, &[0x81, 0x00]);
    assert_eq!(refused(&wr, ma.buf(0..MTU + 19).ok()), PostError::FrameLength, "with a tag");
    assert_eq!(refused(&wr, None), PostError::FrameLength);
    assert_eq!(refused(&wr, foreign.buf(0..60).ok()), PostError::Pd);
    let message = SendWr::signaled(1, SendOp::Send);
    assert_eq!(refused(&message, ma.buf(0..60).ok()), PostError::Operation);
    assert_eq!(qa.post_send_inline(&wr, &[0; 13]), Err(PostError::FrameLength));
    // No buffer reaches beyond its region.
    assert!(ma.buf(common::MEMORY_BYTES - 59..common::MEMORY_BYTES + 1).is_err());
    // Nor does any other service send frames.
    let (mut rc, _) = two.connected::<Buf>();
    let refused = rc.post_send(&wr, ma.buf(0..60).ok()).unwrap_err();
    assert_eq!(refused.cause, PostError::Operation);
    assert!(matches!(rc.create_flow(&FlowMatch::default()), Err(VerbsError::Unsupported { .. })));
    two.world.assert_clean();
}

#[test]
fn a_full_ring_refuses_and_takes_again() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let ma = two.a.mr();
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 60);
    let mut posted = 0;
    let refused = loop {
        two.a.fill(0, &bytes);
        let wr = SendWr::unsignaled(posted, SendOp::Frame).with(SendFlags::MORE);
        match qa.post_send(&wr, ma.buf(0..60).ok()) {
            Ok(()) => posted += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.cause, PostError::Full);
    assert!(posted >= 16, "{posted}");
    qa.ring_doorbell_signaled();
    let (sent, _) = two.run(&mut qa, &mut qb);
    assert_eq!(sent.len() as u64, posted);
    assert!(sent.into_iter().all(|wc| wc.result.is_ok() && wc.into_buffers().is_some()));
    // Round the ring many times.
    for id in 0..100 {
        send(&two, &mut qa, &ma, id, &bytes);
        assert_eq!(ids(&two.run(&mut qa, &mut qb).0), [(id, true)]);
    }
}

#[test]
fn frames_without_a_receive_are_counted_and_the_next_ones_arrive() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair::<Buf>(&two);
    let flow = qb.create_flow(&FlowMatch { ethertype: Some(EXPERIMENTAL), ..to(two.b.mac()) });
    let flow = flow.unwrap();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 100);
    for id in 0..5 {
        send(&two, &mut qa, &ma, id, &bytes);
    }
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((sent.len(), got.len()), (5, 0));
    assert_eq!(two.world.nic(1).state().port.counters.rx_out_of_buffer, 5);
    post(&mut qb, &mb, 0..3);
    for id in 0..4 {
        send(&two, &mut qa, &ma, id, &bytes);
    }
    let (_, got) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&got), [(0, true), (1, true), (2, true)]);
    assert_eq!(two.world.nic(1).state().port.counters.rx_out_of_buffer, 6);
    // The rule that was made first decides, so it counts alone.
    assert_eq!(qb.flow_counts(flow).unwrap().packets, 0);
    assert_eq!(qb.state(), QpState::Rts);
}

#[test]
fn rules_steer_by_address_ethertype_and_everything() {
    let mut two = Two::new();
    let mut qa = ready::<Buf>(&two.a, &small());
    let users = [7, 8, 9];
    let mut queues: [Qp; 3] =
        users.map(|user_index| raw(&two.b, &QpConfig { user_index, ..small() }));
    let (ma, mb, mac) = (two.a.mr(), two.b.mr(), two.b.mac());
    let typed = FlowMatch { ethertype: Some(EXPERIMENTAL), ..FlowMatch::default() };
    let typed = queues[0].create_flow(&typed).unwrap();
    let own = queues[1].create_flow(&to(mac)).unwrap();
    let rest = queues[2].create_flow(&FlowMatch::default()).unwrap();
    let stranger = MacAddr([2, 0, 0, 0, 9, 9]);
    // Which queue pairs get a frame.
    let mut ask = |mac, ethertype, queues: &mut [Qp; 3]| -> Vec<u32> {
        for (qp, id) in queues.iter_mut().zip(0..) {
            if !qp.has_outstanding() {
                post(qp, &mb, id..id + 1);
            }
        }
        send(&two, &mut qa, &ma, 1, &frame(mac, two.a.mac(), ethertype, 64));
        two.world.settle();
        assert_eq!(ids(&take(&mut two.a.cq, &mut qa)), [(1, true)]);
        let mut named = Vec::new();
        while let Some(completion) = two.b.cq.poll() {
            let user = completion.user_index();
            let at = users.iter().position(|known| *known == user).unwrap();
            assert_eq!(completion.qpn(), queues[at].qpn());
            let each = |wc: Wc<Buf>| assert_eq!(wc.wr_id, at as u64);
            queues[at].complete(completion, each).unwrap();
            named.push(user);
        }
        named
    };
    assert_eq!(ask(mac, EXPERIMENTAL, &mut queues), [7]);
    assert_eq!(ask(stranger, EXPERIMENTAL, &mut queues), [7]);
    assert_eq!(ask(mac, ARP, &mut queues), [8]);
    assert_eq!(ask(stranger, ARP, &mut queues), [9]);
    assert_eq!(ask(MacAddr::BROADCAST, ARP, &mut queues), [9]);
    let counts = queues[2].flow_counts(rest).unwrap();
    assert_eq!((counts.packets, counts.bytes), (2, 128));
    queues[0].destroy_flow(typed).unwrap();
    assert_eq!(ask(mac, EXPERIMENTAL, &mut queues), [8]);
    queues[1].destroy_flow(own).unwrap();
    assert_eq!(ask(mac, EXPERIMENTAL, &mut queues), [9]);
    queues[2].destroy_flow(rest).unwrap();
    assert_eq!(ask(mac, EXPERIMENTAL, &mut queues), [0; 0]);
    let all = &mut queues[2];
    assert!(matches!(all.destroy_flow(rest), Err(VerbsError::NoSuchFlow)));
    assert!(matches!(all.flow_counts(rest), Err(VerbsError::NoSuchFlow)));
    let odd = FlowMatch { ip_protocol: Some(17), ..FlowMatch::default() };
    assert!(matches!(all.create_flow(&odd), Err(VerbsError::Device(_))));
}

#[test]
fn each_state_takes_what_it_should() {
    let mut two = Two::new();
    let mut qa = ready::<Buf>(&two.a, &small());
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let mut qb: Qp = in_reset(&two.b, &small());
    let everything = FlowMatch::default();
    let wr = SendWr::signaled(1, SendOp::Frame);
    for _life in 0..2 {
        let device_says = |qp: &Qp| qp.query().unwrap().state;
        assert_eq!((qb.state(), device_says(&qb)), (QpState::Reset, QpState::Reset));
        let refused = qb.post_recv(1, mb.buf(0..SLOT).unwrap()).unwrap_err();
        assert_eq!(refused.cause, PostError::State);
        qb.init(&InitAttr::default()).unwrap();
        assert_eq!(device_says(&qb), QpState::Init);
        post(&mut qb, &mb, 1..3);
        let early = qb.create_flow(&everything);
        assert!(matches!(early, Err(VerbsError::WrongState { is: QpState::Init, .. })));
        let peer = common::rtr(&two.b, &two.a, qa.qpn(), 0);
        assert!(matches!(qb.connect(&peer), Err(VerbsError::Unsupported { .. })));
        qb.receive().unwrap();
        assert_eq!(device_says(&qb), QpState::Rtr);
        qb.create_flow(&everything).unwrap();
        assert_eq!(qb.post_send(&wr, mb.buf(0..60).ok()).unwrap_err().cause, PostError::State);
        send(&two, &mut qa, &ma, 1, &frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 60));
        let (_, got) = two.run(&mut qa, &mut qb);
        assert_eq!(ids(&got), [(1, true)], "received in RTR");
        qb.activate(&RtsAttr::new(Psn(0))).unwrap();
        assert_eq!(device_says(&qb), QpState::Rts);
        assert!(matches!(qb.reset(), Err(VerbsError::StillPosted { posted: 1 })));
        // Unsignaled frames that went out are no failure.
        let unsignaled = SendWr::unsignaled(5, SendOp::Frame);
        qb.post_send(&unsignaled, mb.buf(0..60).ok()).unwrap();
        two.world.settle();
        qb.to_error().unwrap();
        two.world.settle();
        let mut done = take(&mut two.b.cq, &mut qb);
        done.sort_by_key(|wc| wc.wr_id);
        assert_eq!((ids(&done), syndromes(&done)), (vec![(2, false), (5, true)], vec![FLUSHED, 0]));
        assert!(done.into_iter().all(|wc| wc.into_buffers().is_some()));
        assert_eq!((qb.state(), device_says(&qb)), (QpState::Error, QpState::Error));
        assert!(matches!(qb.create_flow(&everything), Err(VerbsError::WrongState { .. })));
        qb.reset().unwrap();
        // The rule has ended.
        send(&two, &mut qa, &ma, 1, &frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 60));
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!((sent.len(), got.len()), (1, 0));
    }
    two.world.assert_clean();
}

#[test]
fn everything_posted_comes_back_flushed() {
    let mut two = Two::new();
    let (mut qa, _qb) = pair::<Buf>(&two);
    let ma = two.a.mr();
    post(&mut qa, &ma, 0..7);
    // Nothing is carried out while the link is down; here the models do not even step.
    for id in 10..15 {
        let buf = ma.buf(0..60).unwrap();
        let wr = SendWr::unsignaled(id, SendOp::Frame).with(SendFlags::MORE);
        qa.post_send(&wr, Some(buf)).unwrap();
    }
    qa.to_error().unwrap();
    two.world.settle();
    let done = take(&mut two.a.cq, &mut qa);
    let mut all: Vec<u64> = done.iter().map(|wc| wc.wr_id).collect();
    all.sort_unstable();
    assert_eq!(all, [0, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13, 14]);
    let receives = done.iter().filter(|wc| wc.opcode == WcOpcode::Recv);
    assert!(receives.clone().all(|wc| wc.result.unwrap_err().is_flush()));
    assert_eq!(receives.count(), 7);
    assert!(done.into_iter().all(|wc| wc.into_buffers().is_some()));
    assert!(!qa.has_outstanding());
}

#[test]
fn receives_come_back_from_states_that_do_not_send() {
    let mut two = Two::new();
    let mb = two.b.mr();
    for receives_frames in [false, true] {
        let mut qp: Qp = in_reset(&two.b, &small());
        qp.init(&InitAttr::default()).unwrap();
        if receives_frames {
            qp.receive().unwrap();
        }
        post(&mut qp, &mb, 0..3);
        qp.to_error().unwrap();
        two.world.settle();
        assert_eq!(syndromes(&take(&mut two.b.cq, &mut qp)), [FLUSHED; 3]);
        qp.to_error().unwrap();
        qp.reset().unwrap();
        assert_eq!(qp.query().unwrap().state, QpState::Reset);
    }
    two.world.assert_clean();
}

#[test]
fn a_frame_longer_than_its_receive_fails_that_one_by_name() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    for id in 0..3 {
        qb.post_recv(id, mb.buf(0..99).unwrap()).unwrap();
    }
    send(&two, &mut qa, &ma, 1, &frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 100));
    send(&two, &mut qa, &ma, 2, &frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 99));
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&sent), [(1, true), (2, true)]);
    assert_eq!(ids(&got), [(0, false), (1, true)]);
    assert_eq!(syndromes(&got), [LENGTH, 0]);
    assert_eq!(qb.state(), QpState::Rts, "as on a card, where a receive queue goes on");
    qb.to_error().unwrap();
    two.world.settle();
    assert_eq!(syndromes(&take(&mut two.b.cq, &mut qb)), [FLUSHED]);
    // Sending ends by the caller's word.
    let refused = qb.post_send(&SendWr::signaled(1, SendOp::Frame), mb.buf(0..60).ok());
    assert_eq!(refused.unwrap_err().cause, PostError::State);
    qb.reset().unwrap();
    qb.init(&InitAttr::default()).unwrap();
    qb.receive().unwrap();
    qb.create_flow(&to(two.b.mac())).unwrap();
    post(&mut qb, &mb, 0..1);
    send(&two, &mut qa, &ma, 1, &frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 100));
    let (_, got) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&got), [(0, true)]);
}

#[test]
fn a_failed_send_stops_sending_only_until_it_is_resumed() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 60);
    let back = frame(two.a.mac(), two.b.mac(), EXPERIMENTAL, 80);
    two.a.fill(0, &bytes);
    two.b.fill(0, &back);
    post(&mut qa, &ma, 0..4);
    post(&mut qb, &mb, 0..4);
    two.world.nic(0).set_faults(FaultPlan::at(&[Fault::SendDma { nth: 2 }]));
    for id in 1..=3 {
        let wr = SendWr::unsignaled(id, SendOp::Frame).with(SendFlags::MORE);
        qa.post_send(&wr, ma.buf(0..60).ok()).unwrap();
    }
    qa.ring_doorbell_signaled();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((sent.len(), got.len()), (3, 1));
    assert_eq!(syndromes(&sent), [0, PROTECTION, FLUSHED]);
    assert_eq!((qa.state(), qa.query().unwrap().state), (QpState::SqError, QpState::SqError));
    let wr = SendWr::signaled(4, SendOp::Frame);
    assert_eq!(qa.post_send(&wr, ma.buf(0..60).ok()).unwrap_err().cause, PostError::State);
    // Receiving goes on.
    qb.post_send(&wr, mb.buf(0..80).ok()).unwrap();
    let (mut got, sent) = two.run(&mut qa, &mut qb);
    assert_eq!(ids(&sent), [(4, true)]);
    assert_eq!(received(got.remove(0)), back);
    assert_eq!(qa.state(), QpState::SqError);
    qa.resume().unwrap();
    for id in 0..40 {
        qa.post_send(&SendWr::signaled(id, SendOp::Frame), ma.buf(0..60).ok()).unwrap();
        two.world.settle();
        assert_eq!(ids(&take(&mut two.a.cq, &mut qa)), [(id, true)]);
    }
}

#[test]
fn one_completion_queue_serves_raw_packets_and_a_connection() {
    let mut two = Two::new();
    let (mut ra, mut rb) = two.connected::<Buf>();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    post(&mut qb, &mb, 1..2);
    post(&mut rb, &mb, 2..3);
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 60);
    send(&two, &mut qa, &ma, 3, &bytes);
    ra.post_send_inline(&SendWr::signaled(4, SendOp::Send), b"message").unwrap();
    two.world.settle();
    let mut done = Vec::new();
    for (cq, queues) in [(&mut two.a.cq, [&mut qa, &mut ra]), (&mut two.b.cq, [&mut qb, &mut rb])] {
        let mut queues = queues;
        while let Some(completion) = cq.poll() {
            let number = completion.qpn();
            let qp = queues.iter_mut().find(|qp| qp.qpn() == number).unwrap();
            qp.complete(completion, |wc| done.push(wc.wr_id)).unwrap();
        }
    }
    done.sort_unstable();
    assert_eq!(done, [1, 2, 3, 4]);
    // One that is given to the wrong queue pair ends nothing.
    send(&two, &mut qa, &ma, 5, &bytes);
    two.world.settle();
    let completion = two.a.cq.poll().unwrap();
    if qa.qpn() != ra.qpn() {
        assert!(ra.complete(completion, |_| panic!("not its own")).is_err());
    }
}

#[test]
fn a_device_that_wants_headers_inline_gets_them() {
    let plain = Two::new();
    let kind = cap_type::ETHERNET_OFFLOADS;
    let page = plain.a.context.device().capability_page(kind).unwrap();
    let cap = EthCap::read_from(&page[..0x40]).unwrap().with_wqe_inline_mode(0);
    let mut other = [0; CAP_PAGE_BYTES];
    other.copy_from_slice(&page);
    other[..0x40].copy_from_slice(&cap.0);
    let page = CapOverride { kind, max: Box::new(other), cur: Box::new(other) };
    let config = NicConfig { cap_pages: vec![page], ..common::config() };
    let (a, b) = link(1 << 20);
    let mut two = Two::of(common::models_like(&config, a, b));
    assert_eq!(two.a.context.device().limits().min_inline_bytes, 18);
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    for len in [14, 17, 18, 19, 60, 61, 1514, 1518] {
        let mut bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, len);
        post(&mut qb, &mb, 0..2);
        send(&two, &mut qa, &ma, 1, &bytes);
        let inline = &bytes[..len.min(64)];
        qa.post_send_inline(&SendWr::signaled(2, SendOp::Frame), inline).unwrap();
        let mut second = inline.to_vec();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!(ids(&sent), [(1, true), (2, true)], "{len}: {:?}", two.world.refusals(0));
        bytes.resize(len.max(60), 0);
        second.resize(second.len().max(60), 0);
        let got: Vec<_> = got.into_iter().map(received).collect();
        assert_eq!(got, [bytes, second], "{len} bytes");
    }
}

#[test]
fn dropping_ends_rules_and_lets_go_of_buffers() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    post(&mut qb, &mb, 0..16);
    qb.post_send(&SendWr::unsignaled(1, SendOp::Frame), mb.buf(0..60).ok()).unwrap();
    let bytes = frame(two.b.mac(), two.a.mac(), EXPERIMENTAL, 100);
    send(&two, &mut qa, &ma, 1, &bytes);
    two.world.settle();
    let used = two.b.context.device().dma_bytes_used();
    drop(qb);
    assert!(two.b.context.device().dma_bytes_used() < used, "rings and records");
    two.b.fill(RECEIVES, &[0; 4 * SLOT]);
    send(&two, &mut qa, &ma, 2, &bytes);
    two.world.settle();
    assert_eq!(two.b.read(RECEIVES, 4 * SLOT), vec![0; 4 * SLOT]);
    assert_eq!(two.world.nic(1).state().port.counters.rx_steering_missed, 1);
    // The next one finds the place of the rule free, many times over.
    for _ in 0..100 {
        let mut qp = raw::<Buf>(&two.b, &small());
        qp.create_flow(&to(two.b.mac())).unwrap();
    }
    drop((mb, take(&mut two.a.cq, &mut qa)));
    let Side { context, pd, cq, memory, .. } = two.b;
    drop((pd, cq, memory));
    common::close(context).unwrap();
}

/// UDP over IPv4 without checksums.
fn datagram(to: MacAddr, from: MacAddr) -> Vec<u8> {
    let payload = pattern(33, 5);
    let (udp, total) = (8 + payload.len() as u16, 28 + payload.len() as u16);
    let mut bytes = [&to.0[..], &from.0, &[0x08, 0x00, 0x45, 0]].concat();
    bytes.extend(total.to_be_bytes());
    bytes.extend([0, 1, 0, 0, 64, 17, 0, 0, 192, 168, 0, 1, 192, 168, 0, 2]);
    bytes.extend([0x12, 0x34, 0x56, 0x78]);
    bytes.extend(udp.to_be_bytes());
    bytes.extend([0, 0]);
    bytes.extend(payload);
    bytes
}

#[test]
fn checksums_are_filled_in_when_asked_for() {
    let mut two = Two::new();
    let (mut qa, mut qb) = pair(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let ipv4 = Ipv4Match { source: None, destination: Some(Ipv4Addr::new(192, 168, 0, 2).into()) };
    let rule = FlowMatch { ipv4: Some(ipv4), ip_protocol: Some(17), ..FlowMatch::default() };
    qb.create_flow(&rule).unwrap();
    let bytes = datagram(two.b.mac(), two.a.mac());
    two.a.fill(0, &bytes);
    post(&mut qb, &mb, 0..2);
    let wr = SendWr::signaled(1, SendOp::Frame);
    qa.post_send(&wr, ma.buf(0..bytes.len()).ok()).unwrap();
    qa.post_send(&wr.with(SendFlags::IP_CSUM), ma.buf(0..bytes.len()).ok()).unwrap();
    let (_, mut got) = two.run(&mut qa, &mut qb);
    let verdicts: Vec<bool> = got.iter().map(|wc| wc.recv.ip_csum_ok).collect();
    assert_eq!(verdicts, [false, true], "what the receiver's device says");
    assert_eq!(received(got.remove(0)), bytes, "untouched unless asked for");
    let filled = received(got.remove(0));
    assert_ne!((&filled[24..26], &filled[40..42]), (&[0; 2][..], &[0; 2][..]));
    assert!(checksum::is_intact(checksum::sum(&filled[14..34])));
    let udp = filled.len() as u16 - 34;
    let pseudo = checksum::pseudo_v4([192, 168, 0, 1], [192, 168, 0, 2], 17, udp);
    assert!(checksum::is_intact(pseudo + checksum::sum(&filled[34..])));
    assert_eq!((&filled[42..], &filled[..24]), (&bytes[42..], &bytes[..24]));
}
