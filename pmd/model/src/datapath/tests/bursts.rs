//! Completions of frames that arrive together: the first becomes visible last.

use super::port;
use crate::datapath::harness::{Port, TestCq};
use crate::objects::{Cq, CqArmState};
use crate::queue::completion;
use crate::queue::cq::{self, Urgency};

/// A receive completion that is told from others by its first byte.
fn entry(tag: u8) -> [u8; 64] {
    let mut entry = [0; 64];
    (entry[0], entry[63]) = (tag, 0x20);
    entry
}

/// First bytes of the entries in the ring; 0xff where none was written.
fn ring(cq: &TestCq) -> Vec<u8> {
    (0..1 << cq.log_size)
        .map(|index| {
            let mut entry = [0; 64];
            cq.ring.copy_out(index * 64, &mut entry);
            entry[0]
        })
        .collect()
}

fn complete(port: &mut Port, cq: &TestCq, tag: u8) -> bool {
    port.with(|datapath, ctx| {
        let (entry, urgency) = (&mut entry(tag), Urgency::Plain);
        completion::complete(ctx, &mut datapath.completions, cq.cqn, entry, urgency)
    })
}

fn end(port: &mut Port) {
    port.with(|datapath, ctx| cq::end_burst(ctx, &mut datapath.completions));
}

fn start(change: impl FnOnce(&mut Cq)) -> (Port, TestCq) {
    let (mut port, far) = port();
    std::mem::forget(far);
    let cq = port.cq_with(2, change);
    port.datapath.completions.start_burst();
    (port, cq)
}

#[test]
fn the_first_entry_of_a_burst_is_written_last() {
    let (mut port, cq) = start(|_| {});
    for tag in 1..=3 {
        assert!(complete(&mut port, &cq, tag));
    }
    assert_eq!(ring(&cq), [0xff, 2, 3, 0xff]);
    end(&mut port);
    assert_eq!(ring(&cq), [1, 2, 3, 0xff]);
    // Outside of a burst nothing is held back; nor is anything written twice.
    assert!(complete(&mut port, &cq, 4));
    assert_eq!(ring(&cq), [1, 2, 3, 4]);
    assert!(!complete(&mut port, &cq, 5), "the driver has consumed none");
    end(&mut port);
    assert_eq!(ring(&cq), [1, 2, 3, 4]);
}

#[test]
fn each_queue_has_its_own_first_entry() {
    let (mut port, one) = start(|_| {});
    let others: Vec<_> = (0..9).map(|_| port.cq(2)).collect();
    for cq in std::iter::once(&one).chain(&others) {
        complete(&mut port, cq, 1);
        complete(&mut port, cq, 2);
    }
    assert_eq!(ring(&one), [0xff, 2, 0xff, 0xff]);
    // More queues than can be held back are served at once.
    assert_eq!(ring(&others[8]), [1, 2, 0xff, 0xff]);
    end(&mut port);
    for cq in std::iter::once(&one).chain(&others) {
        assert_eq!(ring(cq), [1, 2, 0xff, 0xff]);
    }
}

#[test]
fn nothing_is_held_back_where_order_would_suffer() {
    // An event must not be ahead of its entry.
    let armed = |cq: &mut Cq| cq.arm = CqArmState::Next { ci: 0 };
    let moderated = |cq: &mut Cq| cq.period_us = 1;
    // A later entry takes the place of the first.
    let collapsed = |cq: &mut Cq| cq.collapsed = true;
    for change in [armed, moderated, collapsed] {
        let (mut port, cq) = start(change);
        complete(&mut port, &cq, 1);
        assert_eq!(ring(&cq)[0], 1);
    }
    let (mut port, cq) = start(|cq| cq.overrun_ignore = true);
    for tag in 1..=5 {
        complete(&mut port, &cq, tag);
    }
    end(&mut port);
    assert_eq!(ring(&cq), [5, 2, 3, 4]);
}
