//! Tables of queue pairs: whose completion it is, what is given out, and what is not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::common::{Two, small};
use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_verbs_lite::*;

fn signaled(wr_id: u64, op: SendOp<'_>) -> SendWr<'_> {
    SendWr::signaled(wr_id, op)
}

/// A table of queue pairs, each with the requests that were given out of it.
type Table = QpTable<Vec<(u64, WcOpcode)>, ()>;

/// A table of `COUNT` queue pairs, and their peers, with `receives` on either side.
fn filled<const COUNT: u32>(two: &Two, mut table: Table, receives: u64) -> (Table, Vec<Qp<()>>) {
    let mut peers = Vec::new();
    for _ in 0..COUNT {
        let user_index = table.reserve();
        let (mut qa, mut qb) = two.rc(&QpConfig { user_index, ..small() });
        for id in 0..receives {
            qa.post_recv(100 + id, ()).unwrap();
            qb.post_recv(100 + id, ()).unwrap();
        }
        assert!(table.insert(qa, Vec::new()).is_none());
        peers.push(qb);
    }
    (table, peers)
}

#[test]
fn each_request_is_given_out_once_and_its_queue_pair_is_free_meanwhile() {
    let mut two = Two::new();
    let (mut table, mut peers) = filled::<20>(&two, QpTable::new(), 8);
    for (qp, _) in table.iter_mut() {
        qp.post_send_inline(&SendWr::unsignaled(0, SendOp::Send), &[]).unwrap();
        qp.post_send_inline(&signaled(1, SendOp::Send), &[]).unwrap();
    }
    for peer in &mut peers {
        peer.post_send_inline(&signaled(0, SendOp::Send), &[]).unwrap();
    }
    two.world.settle();
    let each = |qp: &mut Qp<()>, seen: &mut Vec<_>, wc: Wc<()>| {
        assert_eq!(wc.result, Ok(()));
        if wc.opcode == WcOpcode::Recv {
            qp.post_send_inline(&signaled(2, SendOp::Send), &[]).unwrap();
        }
        seen.push((wc.wr_id, wc.opcode));
    };
    // A completion that ends several gives them all.
    let first = table.poll_each(&mut two.a.cq, 1, each).unwrap();
    assert!((1..=2).contains(&first), "{first}");
    let mut count = first;
    while count < 20 * 4 {
        two.world.settle();
        count += table.poll_each(&mut two.a.cq, 64, each).unwrap();
    }
    assert_eq!(table.poll_each(&mut two.a.cq, 64, each).unwrap(), 0);
    for (_, seen) in table.iter_mut() {
        let sent: Vec<_> = seen.iter().filter(|it| it.1 == WcOpcode::Send).collect();
        assert_eq!(sent, [&(0, WcOpcode::Send), &(1, WcOpcode::Send), &(2, WcOpcode::Send)]);
        assert_eq!((seen.len(), seen.contains(&(100, WcOpcode::Recv))), (4, true));
    }
    // Those of a queue pair that is gone are dropped, and of one that comes later kept.
    let (qp, _) = table.get_mut(7).unwrap();
    qp.post_send_inline(&signaled(9, SendOp::Send), &[]).unwrap();
    two.world.settle();
    let gone = table.remove(7).unwrap();
    assert_eq!((table.poll_each(&mut two.a.cq, 64, each).unwrap(), table.dropped()), (0, 1));
    assert_eq!(table.reserve(), 7);
    peers[7].post_send_inline(&signaled(9, SendOp::Send), &[]).unwrap();
    two.world.settle();
    assert_eq!(table.poll_each(&mut two.a.cq, 64, each).unwrap(), 0);
    assert!(table.insert(gone.0, gone.1).is_none());
    assert_eq!(table.poll_each(&mut two.a.cq, 64, each).unwrap(), 1);
    two.world.assert_clean();
}

/// Who takes completions.
#[derive(Clone, Copy)]
enum By {
    Poll,
    Each,
    Pair,
}

#[test]
fn a_table_of_signaled_requests_keeps_the_others_to_itself_and_no_failure() {
    let mut two = Two::new();
    let (mut table, peers) = filled::<2>(&two, QpTable::new().only_signaled(), 16);
    let mr = two.b.mr();
    let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
    let post = |table: &mut QpTable<_, ()>, at: u32, ids: std::ops::Range<u64>, last: SendFlags| {
        let (qp, _) = table.get_mut(at).unwrap();
        for id in ids.clone() {
            let flags = if id + 1 == ids.end { last } else { SendFlags::empty() };
            // Of one block, and of two.
            let (op, len) =
                if id % 2 == 0 { (SendOp::Send, 0) } else { (SendOp::Write(remote), 60) };
            let wr = SendWr::unsignaled(id, op).with(flags);
            qp.post_send_inline(&wr, &[1; 60][..len]).unwrap();
        }
    };
    let mut ended = |table: &mut QpTable<_, ()>, by: By| {
        two.world.settle();
        let mut ended = Vec::new();
        let add = |index, wc: Wc<()>| (index, wc.wr_id, wc.result.is_ok());
        match by {
            By::Poll => {
                while let Some(Ended { qp, wc, .. }) = table.poll(&mut two.a.cq).unwrap() {
                    ended.push(add(qp.user_index(), wc));
                }
            }
            By::Each => {
                let each =
                    |qp: &mut Qp<()>, _: &mut Vec<_>, wc| ended.push(add(qp.user_index(), wc));
                table.poll_each(&mut two.a.cq, 64, each).unwrap();
            }
            By::Pair => {
                let mut taking = two.a.cq.taking();
                while let Some(entry) = taking.next() {
                    let index = entry.user_index();
                    let (qp, _) = table.get_mut(index).unwrap();
                    let mut sent = Vec::new();
                    let entry = match qp.complete_one(entry) {
                        Ok(one) => {
                            ended.push((index, one.wr_id, true));
                            continue;
                        }
                        Err(entry) => entry,
                    };
                    if let Some(rest) = qp.complete_sent(entry, |one| sent.push(one.wr_id)) {
                        qp.complete_signaled(rest, |wc| ended.push(add(index, wc))).unwrap();
                    }
                    ended.extend(sent.into_iter().map(|id| (index, id, true)));
                }
            }
        }
        ended
    };
    for by in [By::Poll, By::Each, By::Pair] {
        post(&mut table, 0, 0..5, SendFlags::SIGNALED);
        post(&mut table, 1, 0..5, SendFlags::empty());
        assert_eq!(ended(&mut table, by), [(0, 4, true)]);
        assert_eq!(table.get_mut(0).unwrap().0.free_wr(), 16, "what they took is free again");
        // Of one block all of them, so that none needs a look but the last.
        for id in 0..7 {
            let flags = if id % 3 == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
            let (qp, _) = table.get_mut(0).unwrap();
            let wr = SendWr::unsignaled(id, SendOp::Write(remote)).with(flags);
            qp.post_send_inline(&wr, &[1; 8]).unwrap();
        }
        // The last of two blocks, and all of one again behind it.
        for (id, len, flags) in [(7, 60, SendFlags::empty()), (8, 8, SendFlags::SIGNALED)] {
            let (qp, _) = table.get_mut(0).unwrap();
            let wr = SendWr::unsignaled(id, SendOp::Write(remote)).with(flags);
            qp.post_send_inline(&wr, &[1; 60][..len]).unwrap();
        }
        assert_eq!(ended(&mut table, by), [2, 5, 8].map(|id| (0, id, true)));
        assert_eq!(table.get_mut(0).unwrap().0.free_wr(), 16);
    }
    // The peer is gone: what fails and what is flushed is given out, whatever it asked for.
    drop(peers);
    for (at, by) in [(0, By::Each), (1, By::Pair)] {
        post(&mut table, at, 5..8, SendFlags::empty());
        table.get_mut(at).unwrap().0.to_error().unwrap();
        let failed = ended(&mut table, by);
        let sends = failed.iter().filter(|(_, id, is_ok)| !is_ok && (5..8).contains(id)).count();
        assert_eq!(sends, 3, "{failed:?}");
    }
}

#[test]
fn a_table_finds_queue_pairs_by_their_completions() {
    const COUNT: u32 = 40;
    let mut two = Two::new();
    let mut table = QpTable::<u64, ()>::new();
    let mut peers = Vec::new();
    for at in 0..COUNT {
        assert_eq!(table.reserve(), at);
        let (qa, mut qb) = two.rc(&QpConfig { user_index: at, ..small() });
        for id in 0..5 {
            qb.post_recv(id, ()).unwrap();
        }
        assert!(table.insert(qa, 0).is_none());
        peers.push(qb);
    }
    for (qp, _) in table.iter_mut() {
        for id in 0..2 {
            qp.post_send_inline(&SendWr::unsignaled(id, SendOp::Send), &[]).unwrap();
        }
        qp.post_send_inline(&signaled(2, SendOp::Send), &[]).unwrap();
    }
    for expected in [3, 4] {
        two.world.settle();
        while let Some(Ended { qp, data: ended, wc }) = table.poll(&mut two.a.cq).unwrap() {
            assert_eq!((wc.wr_id, wc.result), (*ended, Ok(())), "in order, to the right place");
            *ended += 1;
            if *ended == 3 {
                // The queue pair is free while what has ended is given out.
                qp.post_send_inline(&signaled(3, SendOp::Send), &[]).unwrap();
            }
        }
        assert!(table.iter_mut().all(|(_, ended)| *ended == expected));
    }
    // At most as many as there is room for, until none is left.
    let (mut batch, mut received) = (arrayvec::ArrayVec::<Completion, 7>::new(), 0);
    while two.b.cq.poll_batch(&mut batch) > 0 {
        received += batch.len();
        for mut completion in batch.drain(..) {
            let qp = &mut peers[completion.user_index() as usize];
            assert_eq!(completion.qpn(), qp.qpn());
            while let Some(wc) = qp.next_wc(&mut completion).unwrap() {
                assert_eq!(wc.opcode, WcOpcode::Recv);
            }
            // There is no more to it.
            assert!(qp.next_wc(&mut completion).unwrap().is_none());
        }
    }
    assert_eq!(received, 4 * COUNT as usize);
    // A queue pair that is out of the table.
    let (qp, _) = table.get_mut(5).unwrap();
    qp.post_send_inline(&signaled(9, SendOp::Send), &[]).unwrap();
    two.world.settle();
    let (qp, ended) = table.remove(5).unwrap();
    assert_eq!((qp.user_index(), ended), (5, 4));
    // Several that are under way at once have a place each, and one that comes to nothing has none.
    assert_eq!([(); 3].map(|()| table.reserve()), [5, COUNT, COUNT + 1]);
    assert!(table.remove(COUNT).is_none());
    assert!(table.insert(qp, ended).is_none());
    assert_eq!([(); 2].map(|()| table.reserve()), [COUNT, COUNT + 2]);
    assert!(table.remove(5).is_some());
    assert!(table.poll(&mut two.a.cq).unwrap().is_none());
    assert_eq!(table.dropped(), 1);
    two.world.assert_clean();
}

#[test]
fn what_ends_before_its_queue_pair_is_in_the_table_waits_for_it() {
    let mut two = Two::new();
    let mut table = QpTable::<&str, ()>::new();
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let user_index = table.reserve();
        let (mut qa, mut qb) = two.rc(&QpConfig { user_index, ..small() });
        for id in 0..2 {
            qa.post_recv(id, ()).unwrap();
            qb.post_send_inline(&signaled(id, SendOp::Send), &[]).unwrap();
        }
        pairs.push((qa, qb));
    }
    two.world.settle();
    let (third, second, first) = (pairs.pop().unwrap(), pairs.pop().unwrap(), pairs.pop().unwrap());
    assert!(table.insert(first.0, "first").is_none());
    let mut ended = Vec::new();
    let mut poll = |table: &mut QpTable<&'static str, ()>| {
        while let Some(Ended { data, wc, .. }) = table.poll(&mut two.a.cq).unwrap() {
            ended.push((*data, wc.wr_id, wc.result));
        }
        std::mem::take(&mut ended)
    };
    assert_eq!(poll(&mut table), [("first", 0, Ok(())), ("first", 1, Ok(()))]);
    assert!(table.insert(second.0, "second").is_none());
    assert_eq!(poll(&mut table), [("second", 0, Ok(())), ("second", 1, Ok(()))]);
    // The third comes to nothing.
    assert!(table.remove(2).is_none());
    assert_eq!((poll(&mut table), table.dropped()), (Vec::new(), 2));
    drop(third);
    two.world.assert_clean();
}

#[test]
fn completions_of_nobody_keep_no_call_longer_than_a_lap_of_the_queue() {
    let mut two = Two::new();
    let mut table = QpTable::<(), ()>::new();
    let (cq, world) = (&mut two.a.cq, &two.world);
    let (cqn, entries) = (cq.number(), cq.entries());
    let record = world.nic(0).state().objects.cqs.get(cqn).unwrap().dbr_addr;
    let cqe = Cqe64::zeroed().with_opcode(CqeOpcode::RESPONDER_SEND.0).with_sop_drop_qpn(77);
    let laps = 200;
    let is_done = AtomicBool::new(false);
    let (mut before, mut most) = (0, 0);
    thread::scope(|scope| {
        // Writes an entry anew as soon as the driver has told that it is free.
        scope.spawn(|| {
            let mut written = 0;
            while written < laps * entries {
                // Let go of in between: the driver's side may want to step the device.
                let mut nic = world.nic(0);
                let consumer = nic.side().memory().load_acquire_be32(record).unwrap();
                if written.wrapping_sub(consumer) & 0xff_ffff < entries {
                    nic.play_cqe(cqn, cqe);
                    written += 1;
                }
            }
            is_done.store(true, Ordering::Release);
        });
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            assert!(table.poll(cq).unwrap().is_none());
            let in_a_call = table.dropped() - before;
            (before, most) = (table.dropped(), most.max(in_a_call));
            if was_done && in_a_call == 0 {
                break;
            }
        }
    });
    // The last batch may begin before the lap is full.
    assert!(most < u64::from(entries) + 32, "{most} in a call, of {entries} entries");
    assert_eq!(table.dropped(), u64::from(laps * entries));
}
