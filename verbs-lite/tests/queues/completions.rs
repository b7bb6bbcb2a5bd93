//! Completion queues that change their size while they are in use, that say when completions were
//! made, and whose events wait for more.

use std::time::Duration;

use crate::common::{Two, rts, small, take};
use ferrocx_verbs_lite::*;

/// Posts a WRITE of 8 bytes under a number.
fn post(qp: &mut Qp, to: RemoteAddr, number: u64) {
    qp.post_send_inline(&SendWr::signaled(number, SendOp::Write(to)), &[1; 8]).unwrap();
}

/// Memory of `b`'s that `a` may write.
fn target(two: &Two) -> (Mr, RemoteAddr) {
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = two.b.pd.reg_mr(&two.b.memory, 0..4096, rights).unwrap();
    let to = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
    (mr, to)
}

#[test]
fn a_queue_grows_and_shrinks_with_completions_in_it_and_on_the_way() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.rc::<Buf>(&small());
    let (_mr, to) = target(&two);
    let (mut posted, mut seen) = (0, Vec::new());
    for round in 0..300_u64 {
        // Some that are polled, some that stand there, some that come while it changes.
        for settled in [true, true, false] {
            for _ in 0..(round * 7 + posted) % 6 {
                post(&mut qa, to, posted);
                posted += 1;
            }
            if settled {
                two.world.settle();
            }
            if settled && seen.len() as u64 + 6 < posted {
                while let Some(completion) = two.a.cq.poll() {
                    qa.complete(completion, |wc| seen.push(wc.wr_id)).unwrap();
                }
            }
        }
        let entries = [32, 64, 1024, 33, 128, 4096][(round % 6) as usize];
        let resized = two.a.cq.resize(entries, |completion, _| {
            qa.complete(completion, |wc| seen.push(wc.wr_id)).unwrap();
        });
        resized.unwrap();
        assert_eq!(two.a.cq.entries(), entries.next_power_of_two());
        // More than a lap: an entry that the device has not written is none.
        for _ in 0..if entries <= 64 { entries + 10 } else { 0 } {
            two.world.settle();
            while let Some(completion) = two.a.cq.poll() {
                qa.complete(completion, |wc| seen.push(wc.wr_id)).unwrap();
            }
            post(&mut qa, to, posted);
            posted += 1;
        }
    }
    two.world.settle();
    while let Some(completion) = two.a.cq.poll() {
        qa.complete(completion, |wc| seen.push(wc.wr_id)).unwrap();
    }
    assert_eq!(seen, (0..posted).collect::<Vec<_>>(), "each once, in order");
    two.world.assert_clean();
}

#[test]
fn a_size_that_cannot_be_is_refused_and_changes_nothing() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.rc::<Buf>(&small());
    let (_mr, to) = target(&two);
    let before = two.a.cq.entries();
    let refusal = two.a.cq.resize(16, |_, _| {}).unwrap_err();
    assert!(matches!(refusal, VerbsError::CqTooSmall { .. }), "{refusal}");
    let most = two.a.context.attr().max_cqe;
    for entries in [0, most + 1] {
        let refusal = two.a.cq.resize(entries, |_, _| {}).unwrap_err();
        assert!(refusal.to_string().contains(&most.to_string()), "{refusal}");
    }
    assert_eq!(two.a.cq.entries(), before);
    // The room that queue pairs were promised is as it was.
    two.a.cq.resize(32, |_, _| {}).unwrap();
    let refusal = two.a.pd.create_qp::<Buf>(&two.a.cq, &small()).unwrap_err();
    assert!(matches!(refusal, VerbsError::CqTooSmall { free: 0, .. }), "{refusal}");
    two.a.cq.resize(64, |_, _| {}).unwrap();
    let _second: Qp = two.a.pd.create_qp(&two.a.cq, &small()).unwrap();
    post(&mut qa, to, 1);
    two.world.settle();
    qa.complete(two.a.cq.poll().unwrap(), |wc| assert_eq!(wc.wr_id, 1)).unwrap();
    two.world.assert_clean();
}

#[test]
fn completions_say_when_they_were_made() {
    let mut two = Two::new();
    let (mut qa, _qb) = two.rc::<Buf>(&small());
    let (_mr, to) = target(&two);
    let mut times = Vec::new();
    for number in 0..4 {
        post(&mut qa, to, number);
        two.world.settle();
        let mut taking = two.a.cq.taking();
        let entry = taking.next().unwrap();
        times.push(entry.ticks());
        qa.complete(entry.read(), |wc| assert_eq!(wc.wr_id, number)).unwrap();
        assert!(taking.next().is_none());
        drop(taking);
        two.world.wait_us(100);
    }
    let now = two.a.context.device().clock_ticks();
    times.push(now);
    let khz = u64::from(two.a.context.device().clock_khz());
    for pair in times.windows(2) {
        // A tenth of a millisecond and what settling takes.
        let us = (pair[1] - pair[0]) * 1000 / khz;
        assert!((100..400).contains(&us), "{us} us");
    }
}

#[test]
fn events_wait_for_as_many_completions_as_they_are_told() {
    let mut two = Two::new();
    let mut channel = two.a.context.create_comp_channel(1).unwrap();
    two.a.cq = two.a.context.create_cq_with_events(256, &channel).unwrap();
    let (mut qa, _qb) = two.rc::<Buf>(&small());
    let (_mr, to) = target(&two);
    let refusal = two.a.cq.moderate(1, Cq::MAX_PERIOD_US + 1).unwrap_err();
    assert!(refusal.to_string().contains("4095"), "{refusal}");
    for (count, period_us) in [(3, Cq::MAX_PERIOD_US), (0, 0)] {
        two.a.cq.moderate(count, period_us).unwrap();
        two.a.cq.arm(Notify::Next);
        let mut needed = 0;
        let mut fired = None;
        while fired.is_none() && needed < 10 {
            post(&mut qa, to, 0);
            needed += 1;
            two.world.settle();
            fired = channel.poll();
        }
        assert_eq!((needed, fired), (u64::from(count.max(1)), Some(two.a.cq.number())));
        two.a.cq.ack_event();
        while let Some(completion) = two.a.cq.poll() {
            qa.complete(completion, |_| {}).unwrap();
        }
    }
    assert!(!channel.wait(&mut [&mut two.a.cq], Some(Duration::from_millis(1))).unwrap());
    two.world.assert_clean();
}

/// Who only polls a channel tells the device of what was taken, too: events go round its queue.
#[test]
fn a_channel_that_nobody_waits_at_takes_more_events_than_its_queue_holds() {
    let mut two = Two::new();
    let mut channel = two.a.context.create_comp_channel(1).unwrap();
    two.a.cq = two.a.context.create_cq_with_events(256, &channel).unwrap();
    let (mut qa, _qb) = two.rc::<Buf>(&small());
    let (_mr, to) = target(&two);
    for round in 0..5 * CompletionChannel::MAX_QUEUES {
        two.a.cq.arm(Notify::Next);
        post(&mut qa, to, 0);
        two.world.settle();
        assert_eq!(channel.poll(), Some(two.a.cq.number()), "event {round}");
        two.a.cq.ack_event();
        while let Some(completion) = two.a.cq.poll() {
            qa.complete(completion, |_| {}).unwrap();
        }
    }
    two.world.assert_clean();
}

#[test]
fn a_queue_pair_that_asks_for_nothing_itself_completes_only_what_was_asked_for() {
    let mut two = Two::new();
    let config = QpConfig { max_send_wr: 8, ..small() };
    let (mut itself, _peer) = two.rc::<()>(&config);
    let (mut silent, _other) = two.rc::<()>(&QpConfig { signals_itself: false, ..config });
    let (_mr, to) = target(&two);
    let write = SendOp::Write(to);
    let post = |qp: &mut Qp<()>, count| {
        (0..count).try_for_each(|id| qp.post_send_inline(&SendWr::unsignaled(id, write), &[1; 8]))
    };
    post(&mut itself, 8).unwrap();
    two.world.settle();
    let half = two.a.cq.poll().unwrap();
    itself.complete(half, |_| ()).unwrap();
    assert!(itself.free_wr() > 0 && two.a.cq.poll().is_none());
    // Full, and nothing came for it.
    post(&mut silent, 8).unwrap();
    two.world.settle();
    for _ in 0..2 {
        assert!(matches!(post(&mut silent, 1), Err(PostError::Full)));
        two.world.settle();
        assert!(two.a.cq.poll().is_none());
    }
    // What waits when it fails is flushed, and nothing else comes.
    silent.to_error().unwrap();
    two.world.settle();
    assert!(two.a.cq.poll().is_none());
    silent.abandon(&[&two.a.cq]).unwrap();
    assert_eq!(silent.free_wr(), 8);
    two.world.assert_clean();
}

#[test]
fn a_channel_keeps_an_event_of_each_of_its_queues() {
    const QUEUES: usize = 300;
    let two = Two::new();
    let mut channel = two.a.context.create_comp_channel(1).unwrap();
    let mut ends = Vec::new();
    for _ in 0..QUEUES {
        let cq = two.a.context.create_cq_with_events(2, &channel).unwrap();
        let config = QpConfig { max_send_wr: 1, max_recv_wr: 1, ..small() };
        let mut qp: Qp = two.a.pd.create_qp(&cq, &config).unwrap();
        cq.arm(Notify::Next);
        // What is posted now is flushed: each queue has a completion, and nobody takes its event.
        qp.to_error().unwrap();
        qp.post_send_inline(&SendWr::signaled(1, SendOp::Send), b"x").unwrap();
        ends.push((cq, qp));
    }
    two.world.settle();
    let mut fired: Vec<u32> = std::iter::from_fn(|| channel.poll()).collect();
    fired.sort_unstable();
    let mut expected: Vec<u32> = ends.iter().map(|(cq, _)| cq.number()).collect();
    expected.sort_unstable();
    assert_eq!(fired, expected);
    // As many as there is room for events of; those that are gone have none once it is empty.
    let context = two.a.context.clone();
    let make = || context.create_cq_with_events(1, &channel);
    let rest = CompletionChannel::MAX_QUEUES as usize - QUEUES;
    let more: Vec<_> = (0..rest).map(|_| make().unwrap()).collect();
    let refused = make().unwrap_err();
    assert!(matches!(refused, VerbsError::ChannelFull { max: 1024 }), "{refused}");
    drop(more);
    assert!(make().is_err(), "an event of theirs may wait");
    assert_eq!(channel.poll(), None);
    drop(context.create_cq_with_events(1, &channel).unwrap());
    two.world.assert_clean();
}

/// A server drops the queue pairs of those who left, with receives posted: their room comes back,
/// but for what completions still stand in.
#[test]
fn room_of_queue_pairs_that_are_gone_comes_back() {
    let two = Two::new();
    let mut cq = two.a.context.create_cq(32).unwrap();
    let mr = two.a.mr();
    let config = QpConfig { max_send_wr: 1, max_recv_wr: 30, ..QpConfig::default() };
    let made = |two: &Two, cq: &Cq, receives: u64| -> Result<Qp, VerbsError> {
        let mut qp = two.a.pd.create_qp(cq, &config)?;
        qp.init(&InitAttr::default())?;
        (0..receives).for_each(|at| qp.post_recv(at, mr.buf(0..64).unwrap()).unwrap());
        Ok(qp)
    };
    for _ in 0..5 {
        drop(made(&two, &cq, 30).unwrap());
    }
    let mut qp = made(&two, &cq, 20).unwrap();
    qp.to_error().unwrap();
    two.world.settle();
    drop(qp);
    let refused = made(&two, &cq, 0).unwrap_err();
    assert!(matches!(refused, VerbsError::CqTooSmall { need: 30, free: 11 }), "{refused}");
    let mut stood = 0;
    while cq.poll().is_some() {
        stood += 1;
    }
    assert_eq!(stood, 20);
    drop(made(&two, &cq, 30).unwrap());
    // So it does for a queue that gets smaller.
    cq.resize(1, |_, _| panic!("it is empty")).unwrap();
    assert_eq!(cq.entries(), 1);
}

/// Completions that `abandon` struck out stand in the queue as before.
#[test]
fn an_abandoned_queue_pair_cannot_overrun_its_queue() {
    let mut two = Two::new();
    let mut cq = two.b.context.create_cq(8).unwrap();
    let config = QpConfig { max_send_wr: 4, max_recv_wr: 4, ..small() };
    let peer = QpConfig { max_send_wr: 4, max_recv_wr: 4, ..config };
    let mr = two.b.mr();
    for is_dropped in [false, true] {
        let (mut qa, mut qb): (Qp, Qp) =
            (two.a.qp(&peer), two.b.pd.create_qp(&cq, &config).unwrap());
        two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &rts(0));
        let wr = SendWr::signaled(1, SendOp::Write(mr.buf(0..8).unwrap().remote().unwrap()));
        for at in 0..4 {
            qb.post_recv(at, mr.buf(0..64).unwrap()).unwrap();
        }
        qb.to_error().unwrap();
        for _ in 0..4 {
            qb.post_send_inline(&wr, b"x").unwrap();
        }
        two.world.settle();
        qb.abandon(&[&cq]).unwrap();
        let refused = |made: Result<(), VerbsError>| {
            let refused = made.unwrap_err();
            assert!(matches!(refused, VerbsError::CqTooSmall { need: 4, free: 0 }), "{refused}");
        };
        refused(qb.init(&InitAttr::default()));
        let mut again = Some(qb).filter(|_| !is_dropped);
        if is_dropped {
            refused(two.b.pd.create_qp::<Buf>(&cq, &config).map(drop));
        }
        assert_eq!(std::iter::from_fn(|| cq.poll()).count(), 8);
        match &mut again {
            Some(qb) => {
                qb.abandon(&[&cq]).unwrap();
                qb.init(&InitAttr::default()).unwrap();
            }
            None => drop(two.b.pd.create_qp::<Buf>(&cq, &config).unwrap()),
        }
        drop(take(&mut two.a.cq, &mut qa));
    }
}

/// Lists that need not be dropped stay where they stood; a request without one gives none back.
#[test]
fn a_request_whose_data_stand_in_it_gives_no_list_back() {
    let mut two = Two::new();
    let (mut qa, _qb): (Qp<()>, Qp<()>) = two.connected();
    let mr = two.b.mr();
    let op = SendOp::Write(mr.buf(0..64).unwrap().remote().unwrap());
    let (silent, told) = (SendWr::unsignaled(1, op), SendWr::signaled(2, op));
    for len in [0, 8, 64] {
        // Several times round the ring, of which only the last one of each two is looked at.
        for _ in 0..64 {
            qa.post_send(&silent, Some(())).unwrap();
            qa.post_send(&told, Some(())).unwrap();
            two.world.settle();
            let mut taking = two.a.cq.taking();
            // The first one, of a new life, needs a closer look.
            if let Err(entry) = qa.complete_one(taking.next().unwrap()) {
                qa.complete_signaled(entry.read(), drop).unwrap();
            }
        }
        for _ in 0..64 {
            qa.post_send_inline(&silent, &vec![7; len]).unwrap();
            qa.post_send_inline(&told, &vec![7; len]).unwrap();
            two.world.settle();
            for wc in take(&mut two.a.cq, &mut qa) {
                assert!(wc.into_buffers().is_none(), "{len} bytes");
            }
        }
    }
}
