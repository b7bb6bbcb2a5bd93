//! A completion queue that fails takes its queue pairs along.

use crate::common;
use crate::common::objects::create_cq;
use crate::common::roce::{Peer, RC, TIMEOUT, Two, inline, work};
use ferrocx_bus::DmaBuf;
use ferrocx_model::fault::{Fault, FaultPlan};

const SEND: u32 = 0x0a;
const ERR: u32 = 6;
/// Entries of the second CQ.
const LOG_ENTRIES: u32 = 4;

/// A CQ of its own: its number, ring and doorbell record.
fn second_cq(peer: &mut Peer) -> (u32, DmaBuf, DmaBuf) {
    let alloc = |peer: &Peer, len: usize| peer.host.heap.alloc(len, 4096).expect("room");
    let (ring, record) = (alloc(peer, 64 << LOG_ENTRIES), alloc(peer, 64));
    ring.fill(0xff);
    let create = create_cq(peer.uar, peer.eqn, LOG_ENTRIES, record.iova(), ring.iova());
    (peer.host.ok(&create, 0x10).word(8), ring, record)
}

#[test]
fn its_queue_pairs_tell_of_it_and_flush_to_their_other_queue() {
    let mut two = Two::new();
    let (receive_cqn, ring, _record) = second_cq(&mut two.a);
    let mut qa = two.a.create_qp_changed(RC, |bytes| {
        bytes[0xb4..0xb8].copy_from_slice(&receive_cqn.to_be_bytes());
    });
    let mut qb = two.b.create_qp(RC);
    let (to_b, to_a) = two.targets(&qa, &qb);
    two.a.connect(&qa, RC, &to_b, TIMEOUT);
    two.b.connect(&qb, RC, &to_a, TIMEOUT);
    two.b.post_receive(&mut qb, 0, 100);
    for _ in 0..3 {
        two.a.post_receive(&mut qa, 0, 100);
    }
    two.a.host.nic.set_faults(FaultPlan::at(&[Fault::CqOverrun { nth: 1 }]));
    two.a.post_send(&mut qa, &work(SEND), &inline(b"hello"));
    two.run();
    assert_eq!(two.a.state(&qa), ERR);
    // CQ error, whose number stands elsewhere; catastrophic error of the work queue.
    assert_eq!(two.a.events(), [(0x04, 0), (0x05, qa.qpn)]);
    let flushed = (0..1 << LOG_ENTRIES)
        .filter(|index| {
            let mut entry = [0; 64];
            ring.copy_out(index * 64, &mut entry);
            (entry[63] >> 4, entry[0x37]) == (14, 0x05)
        })
        .count();
    assert_eq!(flushed, 3, "receives, with the syndrome flushed");
    // Once.
    let bytes = common::words(&[0x0507_0000, 0, qa.qpn, 0]);
    two.a.host.ok(&bytes, 0x10);
    two.run();
    let told = two.a.events().iter().filter(|(kind, _)| *kind == 0x05).count();
    assert_eq!(told, 1);
}
