//! Datagrams, unreliable connections, events, and the life of a device.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::{MTU, Two, ids, path, pattern, rtr, rts, small, syndromes, take};
use ferrocx_core::Event;
use ferrocx_verbs_lite::*;

const QKEY: u32 = 0x1122_3344;
/// Mappings of a device with a connection, or more.
const MAPPINGS: usize = 16;

fn datagrams(two: &Two) -> (Qp, Qp) {
    (two.a.datagrams(QKEY), two.b.datagrams(QKEY))
}

#[test]
fn a_datagram_brings_the_ip_header_and_its_source() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = datagrams(&two);
    let to = AddressHandle::new(&path(&two.a, &two.b), qb.qpn(), QKEY);
    two.a.fill(0, b"hello");
    for imm in [None, Some(9)] {
        qb.post_recv(1, mb.buf(0..1000).unwrap()).unwrap();
        let wr = SendWr::signaled(2, SendOp::Datagram { to: &to, imm });
        qa.post_send(&wr, Some(ma.buf(0..5).unwrap())).unwrap();
        let (sent, got) = two.run(&mut qa, &mut qb);
        assert_eq!((ids(&sent), ids(&got)), (vec![(2, true)], vec![(1, true)]));
        let info = &got[0].recv;
        assert_eq!((got[0].byte_len, info.imm, info.source_qpn), (45, imm, qa.qpn().0));
        assert!(info.has_grh);
        let bytes = two.b.read(0, 45);
        assert_eq!((bytes[20], &bytes[32..40]), (0x45, &[192, 168, 0, 1, 192, 168, 0, 2][..]));
        assert_eq!(&bytes[40..], b"hello");
    }
    two.world.assert_clean();
}

#[test]
fn a_wrong_qkey_is_lost_and_a_failed_send_queue_resumes() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = datagrams(&two);
    qb.post_recv(1, mb.buf(0..1000).unwrap()).unwrap();
    let wrong = AddressHandle::new(&path(&two.a, &two.b), qb.qpn(), QKEY + 1);
    let wr = SendWr::signaled(2, SendOp::Datagram { to: &wrong, imm: None });
    qa.post_send_inline(&wr, b"x").unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), got.len()), (vec![(2, true)], 0));
    // Longer than any packet: the send queue fails, receiving goes on.
    let to = AddressHandle::new(&path(&two.a, &two.b), qb.qpn(), QKEY);
    let wr = SendWr::signaled(3, SendOp::Datagram { to: &to, imm: None });
    qa.post_send(&wr, Some(ma.buf(0..4097).unwrap())).unwrap();
    let (sent, _) = two.run(&mut qa, &mut qb);
    assert_eq!((syndromes(&sent), qa.state()), (vec![1], QpState::SqError));
    qa.post_send_inline(&wr, b"flushed").unwrap();
    assert!(matches!(qa.resume(), Err(VerbsError::StillPosted { .. })));
    let (sent, _) = two.run(&mut qa, &mut qb);
    assert_eq!((syndromes(&sent), qa.state()), (vec![5], QpState::SqError));
    qa.resume().unwrap();
    qa.post_send_inline(&wr, b"again").unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), ids(&got)), (vec![(3, true)], vec![(1, true)]));
    let wr = SendWr::signaled(4, SendOp::Send);
    assert_eq!(qa.post_send_inline(&wr, b"x").unwrap_err(), PostError::Operation);
}

#[test]
fn an_unreliable_connection_sends_and_writes_without_answers() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.rc(&QpConfig { qp_type: QpType::Uc, ..small() });
    let len = 3 * MTU + 5;
    two.a.fill(0, &pattern(len, 3));
    qb.post_recv(1, mb.buf(0..len).unwrap()).unwrap();
    qa.post_send(&SendWr::signaled(2, SendOp::Send), Some(ma.buf(0..len).unwrap())).unwrap();
    let remote = RemoteAddr { addr: mb.addr() + 8192, rkey: mb.rkey().unwrap() };
    let wr = SendWr::signaled(3, SendOp::Write(remote));
    qa.post_send(&wr, Some(ma.buf(0..len).unwrap())).unwrap();
    let (sent, got) = two.run(&mut qa, &mut qb);
    assert_eq!((ids(&sent), ids(&got)), (vec![(2, true), (3, true)], vec![(1, true)]));
    assert_eq!(two.b.read(0, len), pattern(len, 3));
    assert_eq!(two.b.read(8192, len), pattern(len, 3));
    let wr = SendWr::signaled(4, SendOp::Read(remote));
    let refused = qa.post_send(&wr, Some(ma.buf(0..8).unwrap())).unwrap_err();
    assert_eq!(refused.cause, PostError::Operation);
    two.world.assert_clean();
}

#[test]
fn steps_out_of_order_and_requests_that_come_too_early_are_refused() {
    let two = Two::new();
    let (mr, wr) = (two.a.mr(), SendWr::signaled(1, SendOp::Send));
    let mut qp: Qp = two.a.qp(&small());
    let rtr = rtr(&two.a, &two.b, Qpn(5), 0);
    let wrong = |step: Result<(), VerbsError>, state: QpState, start: QpState| {
        let Err(VerbsError::WrongState { is, needs }) = step else { panic!("{step:?}") };
        assert_eq!((is, needs), (state, start));
    };
    let early = |qp: &mut Qp| {
        assert_eq!(qp.post_send_inline(&wr, b"x").unwrap_err(), PostError::State);
    };
    wrong(qp.connect(&rtr), QpState::Reset, QpState::Init);
    wrong(qp.activate(&rts(0)), QpState::Reset, QpState::Rtr);
    wrong(qp.resume(), QpState::Reset, QpState::SqError);
    let refused = qp.post_recv(1, mr.buf(0..8).unwrap()).unwrap_err();
    assert_eq!(refused.cause, PostError::State);
    early(&mut qp);
    qp.init(&InitAttr::default()).unwrap();
    wrong(qp.init(&InitAttr::default()), QpState::Init, QpState::Reset);
    wrong(qp.activate(&rts(0)), QpState::Init, QpState::Rtr);
    early(&mut qp);
    qp.connect(&rtr).unwrap();
    wrong(qp.connect(&rtr), QpState::Rtr, QpState::Init);
    early(&mut qp);
    qp.activate(&rts(0)).unwrap();
    wrong(qp.activate(&rts(0)), QpState::Rts, QpState::Rtr);
    wrong(qp.receive(), QpState::Rts, QpState::Init);
    qp.post_send_inline(&wr, b"x").unwrap();
    qp.to_error().unwrap();
    wrong(qp.init(&InitAttr::default()), QpState::Error, QpState::Reset);
    qp.post_send_inline(&wr, b"it is flushed").unwrap();
    two.world.assert_clean();
}

#[test]
fn a_refused_step_leaves_the_queue_pair_where_it_was() {
    let two = Two::new();
    let mut qp: Qp = two.a.qp(&small());
    qp.init(&InitAttr::default()).unwrap();
    let bad = RtrAttr { max_dest_rd_atomic: 17, ..rtr(&two.a, &two.b, Qpn(5), 0) };
    let refused = qp.connect(&bad).unwrap_err();
    assert!(matches!(refused, VerbsError::OutOfRange { max: 16, .. }), "{refused}");
    let mut path = path(&two.a, &two.b);
    path.route.source.index = 200;
    let bad = RtrAttr { path, ..rtr(&two.a, &two.b, Qpn(5), 0) };
    let refused = qp.connect(&bad).unwrap_err();
    assert!(matches!(refused, VerbsError::Command(_)), "the device: {refused}");
    assert_eq!(qp.state(), QpState::Init);
    qp.connect(&rtr(&two.a, &two.b, Qpn(5), 0)).unwrap();
}

fn readable(fd: &impl AsFd) -> bool {
    // The eventfd does not block: an empty one refuses to be read.
    let mut file = std::fs::File::from(fd.as_fd().try_clone_to_owned().unwrap());
    std::io::Read::read(&mut file, &mut [0; 8]).is_ok()
}

#[test]
fn waiting_takes_what_came_before_and_what_comes_and_nothing_else() {
    let mut two = Two::new();
    let mut channel = two.b.context.create_comp_channel(1).unwrap();
    two.b.cq = two.b.context.create_cq_with_events(256, &channel).unwrap();
    let (mut qa, mut qb) = two.connected::<()>();
    let short = Some(Duration::from_millis(5));
    assert!(!channel.wait(&mut [&mut two.b.cq], short).unwrap(), "nothing came");
    let wr = SendWr::signaled(1, SendOp::Send);
    for is_there_before in [true, false, false, true, false] {
        qb.post_recv(1, ()).unwrap();
        qa.post_send_inline(&wr, &[]).unwrap();
        if is_there_before {
            two.world.settle();
        }
        let (world, is_awake) = (Arc::clone(&two.world), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Again and again: who waits may ask for its event only now.
                while !is_awake.load(Ordering::Acquire) {
                    std::thread::sleep(Duration::from_millis(20));
                    world.settle();
                }
            });
            let came = channel.wait(&mut [&mut two.b.cq], None);
            is_awake.store(true, Ordering::Release);
            assert!(came.unwrap());
        });
        assert_eq!(take(&mut two.b.cq, &mut qb).len(), 1);
        // The event of what was polled wakes nobody.
        two.world.settle();
        assert!(!channel.wait(&mut [&mut two.b.cq], short).unwrap(), "it was taken");
    }
    two.world.assert_clean();
}

/// Threads of this process that keep a device's house.
fn housekeepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim_end() == "ferrocx-keeper").count()
}

#[test]
fn a_firmware_that_waits_is_noticed_and_served() {
    let mut two = Two::new();
    let context = two.a.context.clone();
    let poll_in_vain = |cq: &mut Cq| {
        for _ in 0..3 << 20 {
            assert!(cq.poll().is_none());
        }
    };
    poll_in_vain(&mut two.a.cq);
    assert!(!context.is_neglected());
    let pages = context.device().firmware_pages();
    two.world.nic(0).request_pages(5);
    two.world.settle();
    poll_in_vain(&mut two.a.cq);
    assert!(context.is_neglected());
    assert_eq!(context.device().firmware_pages(), pages);
    // Whoever asks first, and for how seldom: there is one thread, and the shortest counts.
    let seldom = context.device().keep_house(Duration::from_secs(3600)).unwrap();
    let often = context.background(Duration::from_millis(1)).unwrap();
    drop(seldom);
    while context.device().firmware_pages() < pages + 5 {
        std::thread::yield_now();
    }
    assert_eq!(housekeepers(), 1);
    drop(often);
    while housekeepers() != 0 {
        std::thread::yield_now();
    }
    poll_in_vain(&mut two.a.cq);
    assert!(!context.is_neglected());
    two.world.assert_clean();
}

#[test]
fn an_armed_queue_wakes_its_waiter_once() {
    let mut two = Two::new();
    let mb = two.b.mr();
    let mut channel = two.b.context.create_comp_channel(1).unwrap();
    let cq = two.b.context.create_cq_with_events(256, &channel).unwrap();
    let old = std::mem::replace(&mut two.b.cq, cq);
    let (mut qa, mut qb) = two.connected::<Buf>();
    channel.arm();
    let mut send = |two: &mut Two, qb: &mut Qp, solicited: bool| {
        qb.post_recv(1, mb.buf(0..8).unwrap()).unwrap();
        let mut wr = SendWr::signaled(2, SendOp::Send);
        if solicited {
            wr = wr.with(SendFlags::SOLICITED);
        }
        qa.post_send_inline(&wr, b"12345678").unwrap();
        two.world.settle();
        let _ = take(&mut two.a.cq, &mut qa);
    };
    send(&mut two, &mut qb, false);
    assert!(!readable(&channel), "not armed");
    assert_eq!(take(&mut two.b.cq, &mut qb).len(), 1);
    for what in [Notify::Next, Notify::Solicited] {
        two.b.cq.arm(what);
        two.world.settle();
        assert!(!readable(&channel), "nothing came");
        send(&mut two, &mut qb, false);
        assert_eq!(readable(&channel), what == Notify::Next, "{what:?}");
        send(&mut two, &mut qb, true);
        assert_eq!(readable(&channel), what == Notify::Solicited, "{what:?}");
        assert_eq!((channel.poll(), channel.poll()), (Some(two.b.cq.number()), None));
        two.b.cq.ack_event();
        channel.arm();
        assert_eq!(take(&mut two.b.cq, &mut qb).len(), 2);
    }
    drop(old);
    two.world.assert_clean();
}

#[test]
fn what_happens_to_a_queue_pair_is_an_event() {
    let mut two = Two::new();
    let mut by_device = two.b.context.device().event_reader();
    while two.b.context.device().poll_event().is_some() {}
    let (mut qa, mut qb) = two.connected::<Buf>();
    let mb = two.b.mr();
    let bad = RemoteAddr { addr: mb.addr(), rkey: Rkey(0x1234_5678) };
    let wr = SendWr::signaled(1, SendOp::Write(bad));
    qa.post_send_inline(&wr, b"x").unwrap();
    let _ = two.run(&mut qa, &mut qb);
    let event = two.b.context.poll_async_event();
    // Who else reads gets it too.
    assert_eq!((by_device.poll(), two.b.context.device().poll_event()), (event, event));
    assert_eq!((by_device.poll(), two.b.context.poll_async_event()), (None, None));
    let number = qb.qpn().0;
    assert!(
        matches!(event, Some(Event::QueueError { number: n, queue_type: 0, .. }) if n == number),
        "{event:?}"
    );
    assert_eq!(qb.query().unwrap().state, QpState::Error);
}

/// A mapping that the device cannot reach: a request fails, or the device says what it has lost.
#[test]
fn nothing_that_is_out_of_reach_ends_in_silence() {
    let mut seen = std::collections::BTreeSet::new();
    let (mut silent, mut told) = (Vec::new(), 0);
    for (side, mapping) in (0..2).flat_map(|side| (0..MAPPINGS).map(move |at| (side, at))) {
        let mut two = Two::new();
        let (mut qa, mut qb) = two.connected::<Buf>();
        let mb = two.b.mr();
        let to = RemoteAddr { addr: mb.addr(), rkey: mb.rkey().unwrap() };
        let events =
            [two.a.context.device(), two.b.context.device()].map(|device| device.event_reader());
        let buf = two.a.mr().buf(0..64).unwrap();
        two.a.fill(0, &pattern(64, 3));
        // No command is given meanwhile.
        two.world.nic(side).side().dma_refuse(Some(mapping));
        qa.post_send(&SendWr::signaled(1, SendOp::Write(to)), Some(buf)).unwrap();
        two.world.settle();
        two.world.nic(side).side().dma_refuse(None);
        let (done, _) = two.run(&mut qa, &mut qb);
        if ids(&done) == [(1, true)] {
            assert_eq!(two.b.read(0, 64), pattern(64, 3), "mapping {mapping} of {side}");
        }
        let [mut of_a, mut of_b] = events;
        let lost_a = std::iter::from_fn(|| of_a.poll()).any(|event| qa.is_ended_by(&event));
        let lost_b = std::iter::from_fn(|| of_b.poll()).any(|event| qb.is_ended_by(&event));
        let is_ill = [&two.a, &two.b].map(|it| !it.context.device().health().is_healthy());
        told += u32::from(lost_a || lost_b);
        if done.is_empty() && !lost_a && is_ill == [false; 2] {
            silent.push((side, mapping));
        }
        seen.extend(syndromes(&done));
    }
    assert_eq!(silent, [], "no completion and no event");
    assert!(told > 2, "hardly a queue was lost");
    // Done, a fault of ours, one of the peer's; never that the peer does not permit it.
    assert!(seen.contains(&0x04) && seen.contains(&0x14) && !seen.contains(&0x13), "{seen:?}");
}

#[test]
fn the_device_says_what_it_can_do() {
    let two = Two::new();
    let attr = *two.a.context.attr();
    let all = DeviceCaps::MEM_MGT_EXTENSIONS | DeviceCaps::LOCAL_DMA_LKEY;
    assert!(attr.caps.contains(all | DeviceCaps::MEM_WINDOW_TYPE_2));
    assert_eq!((attr.max_qp_rd_atom, attr.max_send_sge, attr.max_recv_sge), (16, 59, 32));
    let port = two.a.context.port_attr().unwrap();
    assert_eq!((port.is_up, port.active_mtu), (true, Mtu::B1024));
    let gids = two.a.context.gids();
    assert_eq!(gids.len(), 2);
    assert_eq!(gids[0].gid.to_string(), "fe80::ff:fe00:1");
    let remote = Gid::from("fe80::9".parse::<std::net::IpAddr>().unwrap());
    assert_eq!(two.a.context.route(remote).unwrap().source, gids[0]);
    two.a.context.remove_gid(&gids[0]).unwrap();
    assert!(matches!(two.a.context.route(remote), Err(VerbsError::NoRoute { .. })));
    two.world.assert_clean();
}

#[test]
fn everything_is_handed_back_in_any_order() {
    let two = Two::new();
    let mr = two.a.mr();
    let (qa, qb) = two.connected::<Buf>();
    let buf = mr.buf(0..8).unwrap();
    let Two { a, b, world } = two;
    let common::Side { context, pd, cq, memory, .. } = a;
    drop((cq, pd, mr));
    drop(qa);
    drop(memory);
    drop(buf);
    common::close(context).unwrap();
    drop(qb);
    assert!(common::close(b.context.clone()).is_err(), "others live");
    drop((b.pd, b.cq, b.memory));
    common::close(b.context).unwrap();
    world.assert_clean();
}
