//! What stays inside the process: packets that nobody can see do what those on a cable do, and
//! where somebody looks, every byte is there.

use std::sync::{Arc, Mutex};

use crate::common::roce::{Peer, RC, TestQp, Two, pattern, work};
use ferrocx_model::datapath::packet::Packet;
use ferrocx_model::roce::packet::Frame;
use ferrocx_model::wire::{Fcs, Received, Wire, link};

const SEND: u32 = 0x0a;
const SEND_IMM: u32 = 0x0b;
const WRITE: u32 = 0x08;
const READ: u32 = 0x10;
const FETCH_ADD: u32 = 0x12;
/// Not a multiple of the MTU, of a batch of packets, or of four.
const LEN: usize = (16 << 10) - 3;

/// What passed, and what would be said of its FCS.
type Frames = Arc<Mutex<Vec<(Vec<u8>, Fcs)>>>;

/// A wire that looks at what passes, and changes nothing.
#[derive(Debug)]
struct Seen<W> {
    inner: W,
    frames: Frames,
    scratch: Vec<u8>,
}

impl<W: Wire> Wire for Seen<W> {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.scratch.resize(len, 0);
        Some(&mut self.scratch)
    }

    fn commit(&mut self, now_ns: u64, fcs: Fcs) {
        self.inner.reserve(self.scratch.len()).expect("room").copy_from_slice(&self.scratch);
        self.inner.commit(now_ns, fcs);
        self.frames.lock().expect("not poisoned").push((self.scratch.clone(), fcs));
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.inner.flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        let frame = self.inner.receive(now_ns)?;
        let seen = (frame.bytes.to_vec(), frame.fcs);
        self.frames.lock().expect("not poisoned").push(seen);
        Some(frame)
    }
}

/// What a driver, and whoever counts, sees of the same work.
#[derive(Debug, PartialEq)]
struct Outcome {
    completions: Vec<(u8, u32, u16)>,
    received: Vec<(u8, u32, u32)>,
    memory: Vec<Vec<u8>>,
    /// Packets and bytes of requests, and PSNs of both ends.
    sent: (u64, u64),
    psns: (u32, u32),
}

fn push(two: &mut Two, qp: &mut TestQp, opcode: u32, len: usize) {
    let mut segments = Vec::new();
    if opcode == WRITE {
        segments = Peer::raddr(&two.b, 16 << 10, two.b.key);
    }
    segments.extend(two.a.sge(0, len as u32));
    two.a.post_send(qp, &work(opcode), &segments);
}

/// SENDs, WRITEs, a READ and an atomic, one after the other.
fn work_through(two: &mut Two) -> Outcome {
    let (mut qa, mut qb) = two.connected(RC);
    let bytes = pattern(LEN, 7);
    two.a.write(0, &bytes);
    let (mut completions, mut received) = (Vec::new(), Vec::new());
    let lengths = [LEN, 1, 0, 256, 257, 5000];
    for (opcode, len) in lengths.iter().flat_map(|len| [(SEND, *len), (SEND_IMM, *len)]) {
        two.b.post_receive(&mut qb, 0, 16 << 10);
        push(two, &mut qa, opcode, len);
        two.run();
        completions.extend(two.a.polled());
        received.extend(two.b.polled());
    }
    for len in lengths {
        push(two, &mut qa, WRITE, len);
    }
    let key = two.b.key;
    for (opcode, len) in [(READ, LEN), (READ, 300), (FETCH_ADD, 8)] {
        let mut segments = Peer::raddr(&two.b, if opcode == READ { 16 << 10 } else { 0x8000 }, key);
        if opcode == FETCH_ADD {
            segments.extend(5_u64.to_be_bytes());
            segments.extend([0; 8]);
        }
        segments.extend(two.a.sge(32 << 10, len as u32));
        two.a.post_send(&mut qa, &work(opcode), &segments);
        two.run();
        completions.extend(two.a.polled());
    }
    let sent = two.a.host.nic.state().port.counters.tx();
    let taken = two.b.host.nic.state().port.counters.rx();
    assert_eq!(sent, taken, "what one end sends the other one counts");
    let psn = |peer: &Peer, qp: &TestQp| {
        let qp = peer.host.nic.state().objects.qps.get(qp.qpn).expect("a queue pair");
        (qp.requester.next_psn().raw(), qp.responder.expected().raw())
    };
    let (next, expected) = (psn(&two.a, &qa).0, psn(&two.b, &qb).1);
    Outcome {
        completions: completions
            .iter()
            .map(|cqe| (cqe.opcode(), cqe.byte_cnt(), cqe.wqe_counter()))
            .collect(),
        received: received
            .iter()
            .map(|cqe| (cqe.opcode(), cqe.byte_cnt(), u32::from(cqe.syndrome())))
            .collect(),
        memory: vec![two.b.read(0, 60 << 10), two.a.read(32 << 10, LEN)],
        sent: (sent.packets, sent.octets),
        psns: (next, expected),
    }
}

#[test]
fn nobody_can_tell_whether_packets_were_frames() {
    let inside = work_through(&mut Two::new());
    let frames = Frames::default();
    // One end is looked at: neither direction is private.
    for looks_at_a in [true, false] {
        frames.lock().expect("not poisoned").clear();
        let (to_b, to_a) = link(1 << 20);
        let seen = |inner| Seen { inner, frames: Arc::clone(&frames), scratch: Vec::new() };
        let mut two = match looks_at_a {
            true => Two::on(seen(to_b), to_a),
            false => Two::on(to_b, seen(to_a)),
        };
        assert_eq!(work_through(&mut two), inside, "looked at at A: {looks_at_a}");
        let counters = [&two.a, &two.b].map(|peer| peer.host.nic.state().port.counters.tx());
        let frames = frames.lock().expect("not poisoned");
        assert_eq!(frames.len() as u64, counters[0].packets + counters[1].packets);
        let octets: usize = frames.iter().map(|(frame, _)| frame.len()).sum();
        assert_eq!(octets as u64, counters[0].octets + counters[1].octets);
        for (frame, fcs) in &*frames {
            assert_eq!(*fcs, Fcs::Good);
            Frame::parse(frame, &Packet::parse(frame)).expect("a whole packet, with its ICRC");
        }
    }
}
