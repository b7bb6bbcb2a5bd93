//! What a peer must not be able to do: keys that ended, were changed, or grant less. Each case is
//! tried with every operation over the wire, on a connection of its own; the peer's completion
//! says "remote access error" (the answer to it is NAK 0x62), both queue pairs are in error, and
//! no byte has changed on either side.
#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use crate::common;
use crate::common::{Two, rtr, rts, small, syndromes};
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const PAGES: ListLayout = ListLayout::Pages { log_page: 12 };
const S: SendFlags = SendFlags::SIGNALED;
/// Where the region lies in the victim's memory, and how long it is. Its neighbours must not
/// change either.
const AT: usize = 8192;
const LEN: usize = 4096;

/// Operations of a peer.
const OPERATIONS: [&str; 4] = ["write", "read", "add", "swap"];

fn operation(name: &str, remote: RemoteAddr) -> SendOp<'static> {
    match name {
        "write" => SendOp::Write(remote),
        "read" => SendOp::Read(remote),
        "add" => SendOp::FetchAdd { remote, add: 1 },
        _ => SendOp::CompareSwap { remote, compare: u64::MAX / 255 * 0xb0, swap: 1 },
    }
}

/// A connection between the peer `a` and the victim `b`, whose bytes are all known.
struct Scene {
    qa: Qp,
    qb: Qp,
    peer: Mr,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

impl Scene {
    fn new() -> Self {
        let two = Two::new();
        let (qa, qb) = two.rc(&QpConfig { fast_reg: true, ..small() });
        let peer = two.a.mr();
        two.a.fill(0, &vec![0xa0; common::MEMORY_BYTES]);
        two.b.fill(0, &vec![0xb0; common::MEMORY_BYTES]);
        Self { qa, qb, two, peer }
    }

    fn settle(&mut self) -> Vec<Wc<Buf>> {
        let (_, done) = self.two.run(&mut self.qa, &mut self.qb);
        assert!(done.iter().all(|wc| wc.result.is_ok()), "{done:?}");
        done
    }

    /// A fast-register key of the victim over the region, bound.
    fn bound(&mut self, access: Access) -> RegisteredMr {
        let mr = self.two.b.pd.alloc_mr(PAGES, 8).unwrap();
        self.bind(mr, access)
    }

    fn bind(&mut self, mr: FastRegMr, access: Access) -> RegisteredMr {
        let mut list = self.two.b.context.alloc_page_list(PAGES, 8).unwrap();
        list.map(&self.two.b.memory, &[AT..AT + LEN]).unwrap();
        let wr = FastReg { wr_id: 1, flags: S, start: 0x1000, access, remote_invalidate: true };
        let bound = self.qb.post_fast_reg(&wr, mr, list).unwrap();
        self.settle();
        bound
    }

    fn local_inv(&mut self, mr: RegisteredMr) -> FastRegMr {
        self.qb.post_local_inv(2, S, mr).unwrap();
        match self.settle().pop().unwrap().returned {
            Returned::Mr(mr) => mr,
            other => panic!("{other:?}"),
        }
    }

    /// The peer tries; returns the syndrome of its completion, 0 for success.
    fn attempt(&mut self, name: &str, remote: RemoteAddr) -> u8 {
        let wr = SendWr::signaled(9, operation(name, remote));
        self.qa.post_send(&wr, Some(self.peer.buf(0..8).unwrap())).unwrap();
        let (done, _) = self.two.run(&mut self.qa, &mut self.qb);
        syndromes(&done)[0]
    }

    /// The peer was refused with this syndrome, and nothing happened.
    fn assert_refused(&mut self, case: &str, name: &str, remote: RemoteAddr, syndrome: u8) {
        let got = self.attempt(name, remote);
        assert_eq!(got, syndrome, "{case}, {name}: {:?}", self.two.world.refusals(1));
        assert!(!self.two.world.refusals(1).is_empty(), "{case}, {name}: the model says why");
        assert_eq!(self.qa.query().unwrap().state, QpState::Error, "{case}, {name}");
        assert_eq!(self.qb.query().unwrap().state, QpState::Error, "{case}, {name}");
        let whole = common::MEMORY_BYTES;
        assert!(self.two.b.read(0, whole).iter().all(|byte| *byte == 0xb0), "{case}, {name}");
        assert!(self.two.a.read(0, whole).iter().all(|byte| *byte == 0xa0), "{case}, {name}");
    }
}

const REMOTE_ACCESS: u8 = 0x13;
const INVALID_REQUEST: u8 = 0x12;

#[test]
fn the_attempts_work_while_the_key_permits_them() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        assert_eq!(scene.attempt(name, key.remote()), 0, "{name}");
        scene.two.world.assert_clean();
        let changed = if name == "read" { scene.two.a.read(0, 8) } else { scene.two.b.read(AT, 8) };
        assert_ne!(changed, if name == "read" { [0xa0; 8] } else { [0xb0; 8] }, "{name}");
    }
}

#[test]
fn a_key_that_was_invalidated_here() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        let remote = key.remote();
        let _free = scene.local_inv(key);
        scene.assert_refused("after LOCAL_INV", name, remote, REMOTE_ACCESS);
    }
}

#[test]
fn a_key_that_the_peer_invalidated() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        let mr = scene.two.b.pd.reg_mr(&scene.two.b.memory, 0..64, Access::LOCAL_WRITE).unwrap();
        scene.qb.post_recv(3, mr.buf(0..64).unwrap()).unwrap();
        let wr = SendWr::signaled(4, SendOp::SendInv(key.rkey()));
        scene.qa.post_send_inline(&wr, &[0xb0; 8]).unwrap();
        let proof = scene.settle().pop().unwrap().recv.invalidated.unwrap();
        let remote = key.remote();
        let _free = key.invalidated_by(proof).unwrap();
        scene.assert_refused("after SEND_WITH_INV", name, remote, REMOTE_ACCESS);
    }
}

#[test]
fn the_old_key_byte_after_the_key_was_bound_again() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let old = scene.bound(ALL);
        let remote = old.remote();
        let free = scene.local_inv(old);
        let new = scene.bind(free, ALL);
        assert_ne!(new.rkey(), remote.rkey);
        assert_eq!(scene.attempt("write", RemoteAddr { rkey: new.rkey(), ..remote }), 0);
        scene.two.b.fill(AT, &[0xb0; 8]);
        scene.assert_refused("old key byte", name, remote, REMOTE_ACCESS);
    }
}

#[test]
fn one_byte_outside_the_region() {
    for name in OPERATIONS {
        // Eight bytes that end one behind the region, or start one before. Atomics are aligned.
        let step = if matches!(name, "read" | "write") { 1 } else { 8 };
        for (case, offset) in
            [("end", (LEN - 8 + step) as u64), ("start", (step as u64).wrapping_neg())]
        {
            let mut scene = Scene::new();
            let key = scene.bound(ALL);
            let remote = key.remote().at(offset);
            scene.assert_refused(case, name, remote, REMOTE_ACCESS);
            drop(key);
        }
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        assert_eq!(scene.attempt(name, key.remote().at((LEN - 8) as u64)), 0, "the last bytes");
    }
}

#[test]
fn rights_that_the_key_does_not_grant() {
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let atomic = Access::LOCAL_WRITE | Access::REMOTE_ATOMIC;
    for (access, allowed) in [
        (write, &["write"][..]),
        (Access::REMOTE_READ, &["read"][..]),
        (atomic, &["add", "swap"][..]),
        (Access::LOCAL_WRITE, &[][..]),
    ] {
        for name in OPERATIONS {
            let mut scene = Scene::new();
            let key = scene.bound(access);
            let remote = key.remote();
            if allowed.contains(&name) {
                assert_eq!(scene.attempt(name, remote), 0, "{access:?}, {name}");
            } else {
                scene.assert_refused(&format!("{access:?}"), name, remote, REMOTE_ACCESS);
            }
            drop(key);
        }
    }
}

#[test]
fn keys_of_another_domain() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let other = scene.two.b.context.alloc_pd().unwrap();
        let mr = other.reg_mr(&scene.two.b.memory, AT..AT + LEN, ALL).unwrap();
        let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
        scene.assert_refused("other domain", name, remote, REMOTE_ACCESS);
    }
}

#[test]
fn keys_that_were_revoked_dropped_or_deregistered() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        let remote = key.remote();
        let _free = key.revoke().unwrap();
        scene.assert_refused("revoked", name, remote, REMOTE_ACCESS);

        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        let remote = key.remote();
        drop(key);
        scene.assert_refused("dropped", name, remote, REMOTE_ACCESS);

        let mut scene = Scene::new();
        let mr = scene.two.b.pd.reg_mr(&scene.two.b.memory, AT..AT + LEN, ALL).unwrap();
        let remote = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
        mr.dereg().unwrap();
        scene.assert_refused("deregistered", name, remote, REMOTE_ACCESS);
    }
}

#[test]
fn the_reserved_key_and_the_dma_key_are_nobody_elses() {
    for name in OPERATIONS {
        for is_reserved in [true, false] {
            let mut scene = Scene::new();
            let pd = &scene.two.b.pd;
            let dma = if is_reserved { pd.get_dma_mr() } else { pd.physical_dma_mr() }.unwrap();
            let addr = scene.two.b.memory.iova() + AT as u64;
            let remote = RemoteAddr { addr, rkey: Rkey(dma.lkey().0) };
            scene.assert_refused("DMA key", name, remote, REMOTE_ACCESS);
        }
    }
}

#[test]
fn a_queue_pair_that_grants_the_peer_nothing() {
    for name in OPERATIONS {
        let mut scene = Scene::new();
        let key = scene.bound(ALL);
        let two = &scene.two;
        let (mut qa, mut qb) = (two.a.qp(&small()), two.b.qp(&small()));
        two.join([&mut qa, &mut qb], [ALL, Access::empty()], &common::rts(0));
        (scene.qa, scene.qb) = (qa, qb);
        let remote = key.remote();
        scene.assert_refused("no rights at the queue pair", name, remote, INVALID_REQUEST);
        drop(key);
    }
}

#[test]
fn who_serves_no_reads_serves_none() {
    let mut two = Two::new();
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = two.b.pd.reg_mr(&two.b.memory, 0..4096, rights).unwrap();
    let from = RemoteAddr { addr: mr.addr(), rkey: mr.rkey().unwrap() };
    for (max_dest_rd_atomic, serves) in [(1, true), (0, false)] {
        let [mut qa, mut qb]: [Qp; 2] = [two.a.qp(&small()), two.b.qp(&small())];
        let numbers = [qb.qpn(), qa.qpn()];
        let ends = [(&mut qa, &two.a, &two.b), (&mut qb, &two.b, &two.a)];
        for ((qp, own, peer), number) in ends.into_iter().zip(numbers) {
            qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 }).unwrap();
            let attr = RtrAttr { max_dest_rd_atomic, ..rtr(own, peer, number, 0) };
            qp.connect(&attr).unwrap();
            qp.activate(&rts(0)).unwrap();
        }
        let buf = two.a.mr().buf(0..8).unwrap();
        qa.post_send(&SendWr::signaled(1, SendOp::Read(from)), Some(buf)).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(done[0].result.is_ok(), serves, "{done:?}");
        // Others are as they were granted.
        if serves {
            qa.post_send_inline(&SendWr::signaled(2, SendOp::Write(from)), &[1; 8]).unwrap();
            assert!(two.run(&mut qa, &mut qb).0[0].result.is_ok());
        }
    }
}
