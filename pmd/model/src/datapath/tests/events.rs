//! Arming, moderation, events and changes of state.

use ferrocx_prm::init_seg::CqArm;

use super::{frame, port, put};
use crate::datapath::harness::{KEY, Port, TestCq, TestSq, data, send};
use crate::objects::{CqArmState, CqStatus, QueueState};
use crate::wire::Wire;

fn nop(ce: u8) -> Vec<u8> {
    vec![0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, ce << 2, 0, 0, 0, 0]
}

fn arm(port: &mut Port, cq: &TestCq, sn: u32, ci: u32, solicited: bool) {
    let arm = CqArm::zeroed().with_sn(sn).with_ci(ci).with_solicited_only(solicited);
    let word = u32::from_be_bytes([arm.0[0], arm.0[1], arm.0[2], arm.0[3]]);
    cq.record.store_release_be32(4, word);
    let (cqn, arm) = (cq.cqn, arm.with_cqn(cq.cqn));
    port.with(|datapath, ctx| datapath.cq_doorbell(ctx, cqn, Some(arm)));
}

/// Events raised so far, as the arm sequence number counts them.
fn events(port: &Port, cq: &TestCq) -> u32 {
    port.state.objects.cqs.get(cq.cqn).map_or(0, |cq| cq.arm_sn)
}

fn complete(port: &mut Port, sq: &mut TestSq, ce: u8) {
    sq.write(&nop(ce));
    sq.record();
    port.ring(sq);
    port.poll();
}

fn start(change: impl FnOnce(&mut crate::objects::Cq)) -> (Port, TestCq, TestSq) {
    let (mut port, far) = port();
    std::mem::forget(far);
    let cq = port.cq_with(4, change);
    let sq = port.sq(cq.cqn, 4);
    (port, cq, sq)
}

#[test]
fn an_armed_queue_raises_one_event() {
    let (mut port, cq, mut sq) = start(|_| {});
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 0);
    arm(&mut port, &cq, 0, 1, false);
    assert_eq!(events(&port, &cq), 0);
    complete(&mut port, &mut sq, 2);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
    // The old record says sequence number 0 and does not arm again.
    let cqn = cq.cqn;
    port.with(|datapath, ctx| datapath.cq_doorbell(ctx, cqn, None));
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
    arm(&mut port, &cq, 1, 4, false);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 2);
}

#[test]
fn arming_behind_a_completion_raises_the_event_at_once() {
    let (mut port, cq, mut sq) = start(|_| {});
    complete(&mut port, &mut sq, 2);
    arm(&mut port, &cq, 0, 0, false);
    assert_eq!(events(&port, &cq), 1);
}

/// As stock ib_send_lat does with `-e`: event, arm, and only then one entry polled.
#[test]
fn arming_over_a_completion_that_an_event_told_of_waits_for_the_next() {
    let (mut port, cq, mut sq) = start(|_| {});
    arm(&mut port, &cq, 0, 0, false);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
    arm(&mut port, &cq, 1, 0, false);
    assert_eq!(events(&port, &cq), 1, "of the same entry");
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 2);
    // One that came after the event, and before its request: both were there, one is news.
    complete(&mut port, &mut sq, 2);
    arm(&mut port, &cq, 2, 1, false);
    assert_eq!(events(&port, &cq), 3);
}

#[test]
fn an_arm_without_its_record_is_refused() {
    let (mut port, cq, mut sq) = start(|_| {});
    complete(&mut port, &mut sq, 2);
    let rung = CqArm::zeroed().with_ci(1).with_cqn(cq.cqn);
    let cqn = cq.cqn;
    port.with(|datapath, ctx| datapath.cq_doorbell(ctx, cqn, Some(rung)));
    assert_eq!(port.last_refusal(), "doorbell without its doorbell record");
    let state = port.state.objects.cqs.get(cq.cqn).map(|cq| cq.arm);
    assert_eq!(state, Some(CqArmState::Idle));
}

#[test]
fn solicited_arming_waits_for_a_solicited_or_failed_completion() {
    let (mut port, cq, mut sq) = start(|_| {});
    arm(&mut port, &cq, 0, 0, true);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 0);
    let mut wqe = nop(2);
    wqe[11] |= 2;
    sq.write(&wqe);
    sq.record();
    port.ring(&sq);
    port.poll();
    assert_eq!(events(&port, &cq), 1);
    arm(&mut port, &cq, 1, 2, true);
    sq.write(&send(2, 0, &[(60, KEY, 0xdead_0000_0000)]));
    sq.record();
    port.ring(&sq);
    port.poll();
    assert_eq!(events(&port, &cq), 2);
}

#[test]
fn solicited_arming_sees_what_is_in_the_ring_already() {
    let (mut port, cq, mut sq) = start(|_| {});
    let solicit = |port: &mut Port, sq: &mut TestSq| {
        let mut wqe = nop(2);
        wqe[11] |= 2;
        sq.write(&wqe);
        sq.record();
        port.ring(sq);
        port.poll();
    };
    complete(&mut port, &mut sq, 2);
    arm(&mut port, &cq, 0, 0, true);
    assert_eq!(events(&port, &cq), 0, "an ordinary one");
    solicit(&mut port, &mut sq);
    assert_eq!(events(&port, &cq), 1);
    arm(&mut port, &cq, 1, 0, true);
    assert_eq!(events(&port, &cq), 1, "told of already");
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
    // Solicited, then an ordinary one, then the request: by a driver that has seen neither.
    arm(&mut port, &cq, 1, 3, false);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 2);
    solicit(&mut port, &mut sq);
    complete(&mut port, &mut sq, 2);
    arm(&mut port, &cq, 2, 4, true);
    assert_eq!(events(&port, &cq), 3);
    // By one that has seen the first of the two.
    solicit(&mut port, &mut sq);
    complete(&mut port, &mut sq, 2);
    arm(&mut port, &cq, 3, 7, true);
    assert_eq!(events(&port, &cq), 3);
}

#[test]
fn who_waits_for_the_next_completion_still_does_after_asking_for_solicited_ones() {
    let (mut port, cq, mut sq) = start(|_| {});
    arm(&mut port, &cq, 0, 0, false);
    arm(&mut port, &cq, 0, 0, true);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
    // The other way round the wish for the next one counts too.
    arm(&mut port, &cq, 1, 1, true);
    arm(&mut port, &cq, 1, 1, false);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 2);
    // The event used the wish up: what comes now is about solicited ones alone.
    arm(&mut port, &cq, 2, 2, true);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 2);
}

#[test]
fn a_consumer_index_of_sixteen_bits_goes_on_behind_65536_completions() {
    let status = |port: &Port, cq: &TestCq| port.state.objects.cqs.get(cq.cqn).map(|cq| cq.status);
    for first in [0xfff0_u32, 0xff_fff0] {
        let (mut port, mut cq, mut sq) = start(|cq| (cq.producer, cq.consumer) = (first, first));
        for _ in 0..100 {
            complete(&mut port, &mut sq, 2);
            assert!(cq.poll().is_some());
            cq.record.store_be32(0, cq.ci & 0xffff);
        }
        assert_eq!(status(&port, &cq), Some(CqStatus::Ok), "from {first:#x}");
        // One that stands still is an overrun all the same.
        (0..17).for_each(|_| complete(&mut port, &mut sq, 2));
        assert_eq!(status(&port, &cq), Some(CqStatus::Overflow), "from {first:#x}");
    }
}

#[test]
fn moderation_counts() {
    let (mut port, cq, mut sq) = start(|cq| {
        cq.max_count = 3;
        cq.period_us = 1000;
        cq.period_from_cqe = true;
    });
    arm(&mut port, &cq, 0, 0, false);
    complete(&mut port, &mut sq, 2);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 0);
    complete(&mut port, &mut sq, 2);
    assert_eq!(events(&port, &cq), 1);
}

#[test]
fn moderation_waits_for_its_period_and_no_longer() {
    let (mut port, cq, mut sq) = start(|cq| {
        cq.max_count = 100;
        cq.period_us = 10;
        cq.period_from_cqe = true;
    });
    arm(&mut port, &cq, 0, 0, false);
    complete(&mut port, &mut sq, 2);
    // Steps of 1 us: the completion was written at the end of the first.
    let steps = (1..).find(|_| port.poll() && events(&port, &cq) == 1);
    assert_eq!(steps, Some(10));
}

#[test]
fn a_descriptor_can_ask_for_its_event() {
    let (mut port, cq, mut sq) = start(|cq| {
        cq.max_count = 100;
        cq.period_us = 1000;
        cq.period_from_cqe = true;
    });
    arm(&mut port, &cq, 0, 0, false);
    complete(&mut port, &mut sq, 3);
    assert_eq!(events(&port, &cq), 1);
}

#[test]
fn moving_a_queue_to_error_flushes_it_and_reset_starts_over() {
    let (mut port, mut cq, mut sq) = start(|_| {});
    complete(&mut port, &mut sq, 2);
    cq.poll().expect("the completion");
    let sqn = sq.sqn;
    sq.write(&nop(2));
    sq.record();
    port.ring(&sq);
    let set = |port: &mut Port, state| {
        let sq = port.state.objects.sqs.get_mut(sqn).expect("the queue");
        let from = std::mem::replace(&mut sq.state, state);
        port.with(|datapath, ctx| datapath.sq_state_changed(ctx, sqn, from));
    };
    set(&mut port, QueueState::Error);
    assert_eq!(cq.poll().map(|cqe| (cqe[0x37], cqe[0x3d])), Some((0x05, 1)));
    set(&mut port, QueueState::Reset);
    sq.record.store_be32(4, 0);
    sq.posted = 0;
    set(&mut port, QueueState::Ready);
    complete(&mut port, &mut sq, 2);
    assert_eq!(cq.poll().map(|cqe| (cqe[0x3d], cqe[0x3f] >> 4)), Some((0, 0)));
}

#[test]
fn a_doorbell_for_a_queue_in_reset_is_refused() {
    let (mut port, mut cq, mut sq) = start(|_| {});
    port.state.objects.sqs.get_mut(sq.sqn).expect("the queue").state = QueueState::Reset;
    sq.write(&nop(2));
    sq.record();
    let sqn = sq.sqn;
    port.with(|datapath, ctx| datapath.send_doorbell(ctx, sqn, Some(u64::from(sqn) << 8 | 1)));
    port.poll();
    assert_eq!(port.last_refusal(), "doorbell for a send queue in reset");
    assert_eq!(cq.poll(), None);
}

#[test]
fn moving_a_receive_queue_to_error_flushes_its_buffers() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(2048);
    for _ in 0..3 {
        rq.post(&data(2048, KEY, buf.iova()));
    }
    put(&mut far, &frame(1));
    port.poll();
    cq.poll().expect("the packet");
    let rqn = rq.rqn;
    port.state.objects.rqs.get_mut(rqn).expect("the queue").state = QueueState::Error;
    port.with(|datapath, ctx| datapath.rq_state_changed(ctx, rqn, QueueState::Ready));
    let flushed: Vec<_> =
        std::iter::from_fn(|| cq.poll()).map(|cqe| (cqe[0x37], cqe[0x3d])).collect();
    assert_eq!(flushed, [(0x05, 1), (0x05, 2)]);
}

#[test]
fn a_resized_queue_ends_with_a_resize_entry() {
    let (mut port, mut cq, mut sq) = start(|_| {});
    complete(&mut port, &mut sq, 2);
    let ring = port.alloc(64 * 8);
    ring.fill(0xff);
    let memory = crate::objects::QueueMemory::new(vec![ring.iova()], 20, 0, 64 * 8);
    let cqn = cq.cqn;
    port.with(|datapath, ctx| datapath.resize_cq(ctx, cqn, memory, 3));
    assert_eq!(cq.poll().map(|cqe| cqe[0x3f] >> 4), Some(0));
    assert_eq!(cq.poll().map(|cqe| cqe[0x3f] >> 4), Some(5));
    complete(&mut port, &mut sq, 2);
    let mut entry = [0; 64];
    ring.copy_out(64 * 2, &mut entry);
    assert_eq!(entry[0x3c..0x40], [0, 1, 0, 0]);
}

#[test]
fn the_port_follows_the_carrier_of_its_wire() {
    let (mut port, far) = port();
    port.poll();
    assert!(port.state.port.is_up());
    drop(far);
    assert!(port.poll());
    assert!(!port.state.port.is_up());
    let (near, mut far) = crate::wire::link(0);
    port.plug(near);
    port.poll();
    assert!(port.state.port.is_up() && far.receive(0).is_none());
}

#[test]
fn a_port_that_its_driver_takes_down_takes_the_carrier_from_its_neighbour() {
    let (mut port, far) = port();
    port.poll();
    assert!(far.carrier());
    port.state.port.admin_up = false;
    port.poll();
    assert!(!far.carrier());
    port.state.port.admin_up = true;
    port.poll();
    assert!(far.carrier() && port.state.port.is_up());
}

#[test]
fn own_frames_come_back_only_where_vport_and_interface_allow_it() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let pool = port.alloc(4 * 2048);
    for index in 0..4 {
        rq.post(&data(2048, KEY, pool.iova() + index * 2048));
    }
    let mut sent = port.cq(6);
    let mut sq = port.sq(sent.cqn, 6);
    let mut own = vec![0x5a; 60];
    own[..6].copy_from_slice(&port.state.port.vport.mac.clone());
    let buf = port.bytes(&own);
    // Interface allows it, vport forbids it; what arrives where.
    for (allows, forbids, comes_back) in
        [(false, false, false), (true, true, false), (true, false, true)]
    {
        let (tirn, tir) = port.state.objects.tirs.iter_mut().next().expect("one");
        tir.self_lb_block = u32::from(allows);
        port.state.objects.tir_changed(tirn);
        port.state.port.vport.disable_uc_local_lb = forbids;
        port.poll();
        sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
        complete(&mut port, &mut sq, 0);
        port.poll();
        assert!(sent.poll().is_some());
        assert_eq!(cq.poll().is_some(), comes_back, "{allows} {forbids}");
        assert_eq!(far.receive(0).is_none(), comes_back, "{allows} {forbids}");
    }
    // A frame for another address leaves all the same.
    let other = port.bytes(&frame(9));
    sq.write(&send(2, 0, &[(60, KEY, other.iova())]));
    complete(&mut port, &mut sq, 0);
    assert!(cq.poll().is_none() && far.receive(0).is_some());
}

#[test]
fn multicast_comes_back_as_a_copy_to_other_transport_domains() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(6);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let pool = port.alloc(8 * 2048);
    for index in 0..8 {
        rq.post(&data(2048, KEY, pool.iova() + index * 2048));
    }
    let mut sent = port.cq(6);
    let mut sq = port.sq(sent.cqn, 6);
    let mut group = vec![0x5a; 60];
    group[..6].copy_from_slice(&[1, 0x50, 0x56, 0x19, 0x20, 0xa7]);
    let buf = port.bytes(&group);
    // Domain of the interface (the sender's is 0), what it asks for, what the vport forbids.
    for (domain, asks, forbids, comes_back) in [
        (0, 0, false, false),
        (0, 1, false, false),
        (0, 2, false, true),
        (1, 0, false, true),
        (1, 2, true, false),
    ] {
        let (tirn, tir) = port.state.objects.tirs.iter_mut().next().expect("one");
        (tir.transport_domain, tir.self_lb_block) = (domain, asks);
        port.state.objects.tir_changed(tirn);
        port.state.port.vport.disable_mc_local_lb = forbids;
        port.poll();
        let before = port.state.port.counters.rx_multicast.packets;
        sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
        complete(&mut port, &mut sq, 0);
        port.poll();
        assert!(sent.poll().is_some());
        assert_eq!(cq.poll().is_some(), comes_back, "{domain} {asks} {forbids}");
        assert!(far.receive(0).is_some(), "the frame itself leaves: {domain} {asks} {forbids}");
        let counted = port.state.port.counters.rx_multicast.packets - before;
        assert_eq!(counted, u64::from(comes_back), "a copy nobody takes leaves no trace");
    }
}
