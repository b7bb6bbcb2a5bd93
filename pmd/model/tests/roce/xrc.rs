//! Extended reliable connections: every request names a shared receive queue, whose completion
//! queue and protection domain count.

use ferrocx_bus::DmaBuf;

use crate::common::objects::create_cq;
use crate::common::roce::{ALL_RIGHTS, Peer, TestQp, Two, create_qp, data, inline, pattern, work};
use crate::common::{be32, input, words};

const XRC: u32 = 3;
const SEND: u32 = 0x0a;
const WRITE: u32 = 0x08;
const READ: u32 = 0x10;
const FETCH_ADD: u32 = 0x12;

/// A shared receive queue and its memory.
struct Shared {
    srqn: u32,
    _memory: [DmaBuf; 2],
}

/// CREATE_XRC_SRQ of 16 linked entries of 64 bytes, four of them posted: 64 bytes of memory each.
fn shared_queue(peer: &mut Peer, pd: u32, xrcd: u32) -> Shared {
    shared_queue_of(peer, 0, pd, xrcd)
}

/// The same for a user context.
fn shared_queue_of(peer: &mut Peer, uid: u32, pd: u32, xrcd: u32) -> Shared {
    let ring = peer.host.heap.alloc(4096, 4096).expect("room");
    let record = peer.host.heap.alloc(64, 64).expect("room");
    for index in 0..16_usize {
        let mut wqe = words(&[index as u32 + 1, 0, 0, 0]);
        wqe.extend(peer.sge(0x4000 + index * 64, 64));
        wqe.extend(data(0, 0x100, 0));
        ring.copy_in(index * 64, &wqe);
    }
    record.store_release_be32(0, 4);
    let fields = [
        (0, 0x0705_0000 | uid),
        (0x10, 4 << 24),
        (0x14, 2 << 24 | xrcd),
        (0x18, peer.cqn),
        (0x20, 0x123),
        (0x28, pd),
        (0x38, (record.iova() >> 32) as u32),
        (0x3c, record.iova() as u32),
    ];
    let mut bytes = input(0x110, &fields);
    bytes.extend(ring.iova().to_be_bytes());
    let srqn = peer.host.ok(&bytes, 0x10).word(8);
    Shared { srqn, _memory: [ring, record] }
}

/// A connection from `b` to `a`, whose queue pair is in a domain of its own; the shared
/// queue is in the domain of `a`'s key.
fn connected() -> (Two, TestQp, TestQp, Shared) {
    let mut two = Two::new();
    let xrcd = two.a.host.short(0x80e, 0);
    let own = two.a.pd;
    let shared = shared_queue(&mut two.a, own, xrcd);
    two.a.pd = two.a.host.short(0x800, 0);
    let qa = two.a.create_xrc(xrcd);
    let qb = two.b.create_xrc(0);
    two.connect(XRC, &qa, &qb);
    two.a.pd = own;
    (two, qa, qb, shared)
}

/// The segment that names the shared queue.
fn xrc(shared: &Shared) -> Vec<u8> {
    words(&[shared.srqn, 0, 0, 0])
}

#[test]
fn a_send_takes_from_the_queue_it_names_and_completes_there() {
    let (mut two, qa, mut qb, shared) = connected();
    two.b.post_send(&mut qb, &work(SEND), &[xrc(&shared), inline(b"shared")].concat());
    two.run();
    assert_eq!(two.b.polled()[0].opcode(), 0);
    let got = two.a.polled();
    assert_eq!((got[0].opcode(), got[0].byte_cnt(), got[0].wqe_counter()), (2, 6, 0));
    assert_eq!(got[0].word(0x20) & 0xff_ffff, 0x123, "the index of the shared queue");
    assert_eq!(got[0].word(0x38) & 0xff_ffff, qa.qpn);
    assert_eq!(two.a.read(0x4000, 6), b"shared");
}

#[test]
fn memory_is_reached_in_the_domain_of_the_shared_queue() {
    let (mut two, _qa, mut qb, shared) = connected();
    let bytes = pattern(600, 3);
    two.b.write(0, &bytes);
    let to_a = |two: &Two, offset| [xrc(&shared), Peer::raddr(&two.a, offset, two.a.key)].concat();
    let rest = [to_a(&two, 0x100), two.b.sge(0, 600)].concat();
    two.b.post_send(&mut qb, &work(WRITE), &rest);
    let rest = [to_a(&two, 0x100), two.b.sge(0x1000, 600)].concat();
    two.b.post_send(&mut qb, &work(READ), &rest);
    two.run();
    assert_eq!(two.b.polled().iter().map(|cqe| cqe.opcode()).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(two.a.read(0x100, 600), bytes);
    assert_eq!(two.b.read(0x1000, 600), bytes);
    two.a.write(0x800, &7_u64.to_be_bytes());
    let operands = [5_u64.to_be_bytes(), [0; 8]].concat();
    let rest = [to_a(&two, 0x800), operands, two.b.sge(0x2000, 8)].concat();
    two.b.post_send(&mut qb, &work(FETCH_ADD), &rest);
    two.run();
    assert_eq!(two.b.polled()[0].opcode(), 0);
    assert_eq!(two.a.read(0x800, 8), 12_u64.to_be_bytes());
    assert_eq!(two.b.read(0x2000, 8), 7_u64.to_be_bytes());
}

#[test]
fn a_queue_of_another_xrc_domain_is_refused() {
    let (mut two, qa, mut qb, _shared) = connected();
    let other = two.a.host.short(0x80e, 0);
    let pd = two.a.pd;
    let foreign = shared_queue(&mut two.a, pd, other);
    two.b.post_send(&mut qb, &work(SEND), &[xrc(&foreign), inline(b"no")].concat());
    two.run();
    assert_eq!(two.b.polled()[0].syndrome(), 0x12, "remote invalid request");
    assert_eq!(two.a.state(&qa), 6);
}

/// A program may name the driver's XRC domain by its number, which Linux gives to whoever may open
/// it by its file.
#[test]
fn a_programs_queue_pair_reaches_no_shared_queue_but_its_own() {
    let mut two = Two::new();
    let xrcd = two.a.host.short(0x80e, 0);
    let (drivers_pd, drivers_key) = (two.a.pd, two.a.key);
    let victim = shared_queue(&mut two.a, drivers_pd, xrcd);
    let uid = two.a.host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
    let by = |bytes: &mut [u8]| bytes[2..4].copy_from_slice(&(uid as u16).to_be_bytes());
    let alloc = |two: &mut Two, opcode: u32| {
        two.a.host.ok(&words(&[opcode << 16 | uid, 0, 0, 0]), 0x10).word(8)
    };
    two.a.pd = alloc(&mut two, 0x800);
    two.a.uar = alloc(&mut two, 0x802);
    let (ring, record) = (two.a.host.ring(4096), two.a.host.ring(64));
    let mut create = create_cq(two.a.uar, two.a.eqn, 5, record, ring);
    by(&mut create);
    two.a.cqn = two.a.host.ok(&create, 0x10).word(8);
    two.a.key = two.a.pa_key(ALL_RIGHTS);
    let pd = two.a.pd;
    let own = shared_queue_of(&mut two.a, uid, pd, xrcd);
    for (named, opcode, syndrome) in
        [(&victim, SEND, 0x12), (&victim, WRITE, 0x12), (&victim, READ, 0x12), (&own, SEND, 0)]
    {
        let qa = two.a.create_qp_changed(XRC, |bytes| {
            by(bytes);
            bytes[0x88..0x8c].fill(0);
            for (at, word) in [(0xc4, 1 << 24), (0xb0, xrcd), (0xa8, 16 << 6)] {
                let old = be32(bytes, at);
                bytes[at..at + 4].copy_from_slice(&(old | word).to_be_bytes());
            }
        });
        let mut qb = two.b.create_xrc(0);
        two.connect(XRC, &qa, &qb);
        let mut rest = xrc(named);
        if opcode == SEND {
            rest.extend(inline(b"mine"));
        } else {
            rest.extend(Peer::raddr(&two.a, 0x4000, drivers_key));
            rest.extend(two.b.sge(0, 4));
        }
        two.b.post_send(&mut qb, &work(opcode), &rest);
        two.run();
        let done = two.b.polled().remove(0);
        let got = if done.opcode() == 13 { done.syndrome() } else { 0 };
        assert_eq!(got, syndrome, "{opcode:#x}: {done:?}");
        let taken = two.a.read(0x4000, 4) == b"mine";
        assert_eq!(taken, syndrome == 0, "{opcode:#x}");
    }
}

#[test]
fn a_queue_pair_keeps_its_xrc_domain() {
    const BAD_RESOURCE: u8 = 5;
    const RESOURCE_BUSY: u8 = 6;
    let (mut two, ..) = connected();
    let xrcd = two.a.host.short(0x80e, 0);
    let qp = two.a.create_xrc(xrcd);
    let dealloc = words(&[0x080f_0000, 0, xrcd, 0]);
    assert_eq!(two.a.host.refused(&dealloc, RESOURCE_BUSY), "xrcd");
    two.a.host.short(0x501, qp.qpn);
    two.a.host.ok(&dealloc, 0x10);
    let mut create = create_qp(XRC, two.a.pd, two.a.uar, two.a.cqn, two.a.memory.iova());
    create[0xb0..0xb4].copy_from_slice(&xrcd.to_be_bytes());
    create.extend(two.a.memory.iova().to_be_bytes());
    assert_eq!(two.a.host.refused(&create, BAD_RESOURCE), "xrcd");
}
