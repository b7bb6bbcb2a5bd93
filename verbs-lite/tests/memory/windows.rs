//! Memory windows: bound, used, ended, and what a peer cannot do with them.

#![allow(unsafe_code, reason = "windows whose state the caller keeps")]

use crate::common;
use crate::common::{MEMORY_BYTES, Two, ids, small, syndromes};
use ferrocx_verbs_lite::*;

const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const BINDABLE: Access = Access::LOCAL_WRITE.union(Access::MW_BIND);
const S: SendFlags = SendFlags::SIGNALED;
/// The window in `b`'s memory.
const AT: usize = 8200;
const LEN: usize = 1000;

const REMOTE_ACCESS: u8 = 0x13;
const MW_BIND: u8 = 0x06;

/// A peer `a` and the owner of windows, `b`, whose bytes are all known.
struct Scene {
    qa: Qp,
    qb: Qp,
    region: Mr,
    peer: Mr,
    /// Queue pairs that the scene had before, which live on.
    former: Vec<(Qp, Qp)>,
    // Last: the models must live while the objects above are destroyed.
    two: Two,
}

impl Scene {
    fn new() -> Self {
        let two = Two::new();
        let (qa, qb) = two.rc(&QpConfig { fast_reg: true, ..small() });
        let region = two.b.pd.reg_mr(&two.b.memory, 0..MEMORY_BYTES, BINDABLE).unwrap();
        let peer = two.a.mr();
        two.a.fill(0, &vec![0xa0; MEMORY_BYTES]);
        two.b.fill(0, &vec![0xb0; MEMORY_BYTES]);
        Self { qa, qb, region, peer, former: Vec::new(), two }
    }

    fn settle(&mut self) -> Vec<Wc<Buf>> {
        self.two.run(&mut self.qa, &mut self.qb).1
    }

    fn bind(&mut self, mw: Mw, access: Access) -> BoundMw {
        let wr = BindMw { wr_id: 1, flags: S, access };
        let mw = self.qb.post_bind_mw(&wr, mw, &self.region, AT..AT + LEN).unwrap();
        assert_eq!(self.qb.mw_state(&mw), MrState::Posted);
        let done = self.settle();
        assert_eq!((ids(&done), done[0].opcode), (vec![(1, true)], WcOpcode::BindMw));
        assert_eq!(self.qb.mw_state(&mw), MrState::Valid);
        mw
    }

    fn bound(&mut self, access: Access) -> BoundMw {
        let mw = self.two.b.pd.alloc_mw().unwrap();
        self.bind(mw, access)
    }

    fn end(&mut self, mw: BoundMw) -> Mw {
        self.qb.post_local_inv_mw(2, S, mw).unwrap();
        let wc = self.settle().pop().unwrap();
        assert_eq!((wc.wr_id, wc.opcode, wc.result), (2, WcOpcode::LocalInv, Ok(())));
        match wc.returned {
            Returned::Mw(mw) => mw,
            other => panic!("{other:?}"),
        }
    }

    /// The peer tries; returns the syndrome of its completion, 0 for success.
    fn attempt(&mut self, op: SendOp<'_>) -> u8 {
        let buf = self.peer.buf(0..8).unwrap();
        self.qa.post_send(&SendWr::signaled(9, op), Some(buf)).unwrap();
        let (done, _) = self.two.run(&mut self.qa, &mut self.qb);
        syndromes(&done)[0]
    }

    /// Every operation of the peer is refused, each on a connection of its own that `make` leads
    /// to the state in question, and no byte has changed.
    fn assert_refused(case: &str, make: impl Fn(&mut Self) -> (RemoteAddr, Option<BoundMw>)) {
        for name in ["write", "read", "add"] {
            let mut scene = Self::new();
            let (remote, kept) = make(&mut scene);
            let aligned = RemoteAddr { addr: remote.addr & !7, ..remote };
            let op = match name {
                "write" => SendOp::Write(remote),
                "read" => SendOp::Read(remote),
                _ => SendOp::FetchAdd { remote: aligned, add: 1 },
            };
            assert_eq!(scene.attempt(op), REMOTE_ACCESS, "{case}, {name}");
            assert!(!scene.two.world.refusals(1).is_empty(), "{case}, {name}");
            scene.assert_unchanged(&format!("{case}, {name}"));
            drop(kept);
        }
    }

    fn assert_unchanged(&self, case: &str) {
        assert!(self.two.b.read(0, MEMORY_BYTES).iter().all(|byte| *byte == 0xb0), "{case}");
        assert!(self.two.a.read(0, MEMORY_BYTES).iter().all(|byte| *byte == 0xa0), "{case}");
    }

    /// Another connection between the two, which takes the place of the first one; that one is
    /// returned, alive.
    fn reconnect(&mut self, pd: &Pd) -> (Qp, Qp) {
        let (two, config) = (&self.two, QpConfig { fast_reg: true, ..small() });
        let (mut qa, mut qb) = (two.a.qp(&config), pd.create_qp(&two.b.cq, &config).unwrap());
        two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &common::rts(0));
        (std::mem::replace(&mut self.qa, qa), std::mem::replace(&mut self.qb, qb))
    }
}

#[test]
fn a_peer_reaches_a_window_from_its_first_byte_to_its_last() {
    for zero in [Access::empty(), Access::ZERO_BASED] {
        let mut scene = Scene::new();
        let mw = scene.bound(Access::REMOTE_WRITE | Access::REMOTE_READ | zero);
        let start = if zero.is_empty() { scene.region.addr() + AT as u64 } else { 0 };
        assert_eq!((mw.addr(), mw.len_bytes()), (start, LEN as u64));
        let last = mw.remote().at(LEN as u64 - 8);
        assert_eq!(scene.attempt(SendOp::Write(mw.remote())), 0);
        assert_eq!(scene.attempt(SendOp::Write(last)), 0);
        assert_eq!(scene.attempt(SendOp::Read(last)), 0);
        let mut expected = vec![0xb0; MEMORY_BYTES];
        expected[AT..AT + 8].fill(0xa0);
        expected[AT + LEN - 8..AT + LEN].fill(0xa0);
        assert!(scene.two.b.read(0, MEMORY_BYTES) == expected);
        let free = scene.end(mw);
        free.dealloc().unwrap();
        scene.two.world.assert_clean();
    }
}

#[test]
fn requests_behind_the_binding_may_use_it_at_once() {
    let mut scene = Scene::new();
    let mw = scene.two.b.pd.alloc_mw().unwrap();
    let wr = BindMw { wr_id: 1, flags: SendFlags::MORE, access: Access::REMOTE_WRITE };
    // The key goes to the peer in a message behind the binding, and ends behind that.
    let sink = scene.two.a.mr().buf(64..72).unwrap();
    scene.qa.post_recv(7, sink).unwrap();
    let bound = scene.qb.post_bind_mw(&wr, mw, &scene.region, AT..AT + LEN).unwrap();
    let key = bound.rkey().0.to_ne_bytes();
    let send = SendWr::unsignaled(2, SendOp::Send).with(SendFlags::MORE);
    scene.qb.post_send_inline(&send, &key).unwrap();
    scene.qb.post_local_inv_mw(3, S, bound).unwrap();
    let done = scene.settle();
    assert_eq!(ids(&done), [(1, true), (2, true), (3, true)]);
    assert!(matches!(done.last().unwrap().returned, Returned::Mw(_)));
    scene.two.world.assert_clean();
}

#[test]
fn a_window_that_was_ended_here() {
    Scene::assert_refused("after a local invalidate", |scene| {
        let mw = scene.bound(RIGHTS);
        let remote = mw.remote();
        let _free = scene.end(mw);
        (remote, None)
    });
    Scene::assert_refused("revoked", |scene| {
        let mw = scene.bound(RIGHTS);
        let remote = mw.remote();
        let _free = mw.revoke().unwrap();
        (remote, None)
    });
    Scene::assert_refused("dropped", |scene| (scene.bound(RIGHTS).remote(), None));
}

#[test]
fn a_window_that_the_peer_ended() {
    Scene::assert_refused("after SEND_WITH_INV", |scene| {
        let mw = scene.bound(RIGHTS);
        scene.qb.post_recv(3, scene.region.buf(0..64).unwrap()).unwrap();
        let wr = SendWr::signaled(4, SendOp::SendInv(mw.rkey()));
        scene.qa.post_send_inline(&wr, &[0xb0; 8]).unwrap();
        let proof = scene.settle().pop().unwrap().recv.invalidated.unwrap();
        let remote = mw.remote();
        let other = scene.two.b.pd.alloc_mw().unwrap();
        let other = scene.bind(other, RIGHTS);
        let (other, proof) = other.invalidated_by(proof).unwrap_err();
        drop(other);
        let free = mw.invalidated_by(proof).unwrap();
        // Bound anew it has another key.
        let again = scene.bind(free, RIGHTS);
        assert_ne!(again.rkey(), remote.rkey);
        (remote, Some(again))
    });
}

#[test]
fn one_byte_outside_the_window() {
    for offset in [LEN as u64 - 7, u64::MAX] {
        let mut scene = Scene::new();
        let mw = scene.bound(RIGHTS);
        let op = SendOp::Write(mw.remote().at(offset));
        assert_eq!(scene.attempt(op), REMOTE_ACCESS);
        scene.assert_unchanged("outside");
    }
}

#[test]
fn rights_that_the_window_does_not_grant() {
    for (access, allowed) in [(Access::REMOTE_READ, 1), (Access::REMOTE_WRITE, 0)] {
        for (at, is_read) in [(0, false), (1, true)] {
            let mut scene = Scene::new();
            let mw = scene.bound(access);
            let remote = mw.remote();
            let op = if is_read { SendOp::Read(remote) } else { SendOp::Write(remote) };
            let expected = if at == allowed { 0 } else { REMOTE_ACCESS };
            assert_eq!(scene.attempt(op), expected, "{access:?}");
        }
    }
}

#[test]
fn the_peer_of_another_queue_pair_even_of_another_domain() {
    Scene::assert_refused("another queue pair", |scene| {
        let mw = scene.bound(RIGHTS);
        let pd = scene.two.b.pd.clone();
        // The window is still bound: it is the queue pair that is wrong.
        let former = scene.reconnect(&pd);
        scene.former.push(former);
        (mw.remote(), Some(mw))
    });
    Scene::assert_refused("another domain", |scene| {
        let mw = scene.bound(RIGHTS);
        let other = scene.two.b.context.alloc_pd().unwrap();
        let former = scene.reconnect(&other);
        scene.former.push(former);
        (mw.remote(), Some(mw))
    });
}

#[test]
fn another_queue_pair_cannot_end_it_and_it_comes_back_as_stale() {
    let mut scene = Scene::new();
    let mw = scene.bound(RIGHTS);
    let remote = mw.remote();
    let pd = scene.two.b.pd.clone();
    let (qa, qb) = scene.reconnect(&pd);
    assert_eq!(scene.qb.mw_state(&mw), MrState::Unknown, "bound elsewhere");
    scene.qb.post_local_inv_mw(2, S, mw).unwrap();
    let wc = scene.settle().pop().unwrap();
    assert_eq!(wc.result.unwrap_err().syndrome.0, MW_BIND);
    let Returned::StaleMw(mw) = wc.returned else { panic!("{wc:?}") };
    assert_eq!(scene.region.dereg().unwrap_err().to_string().split(' ').next(), Some("1"));
    (scene.qa, scene.qb) = (qa, qb);
    assert_eq!(scene.attempt(SendOp::Write(remote)), 0, "it works until it is revoked");
    let _free = mw.revoke().unwrap();
    scene.region.dereg().unwrap();
    assert_eq!(scene.attempt(SendOp::Write(remote)), REMOTE_ACCESS);
}

#[test]
fn a_flushed_invalidation_leaves_the_window_stale() {
    let mut scene = Scene::new();
    let mw = scene.bound(RIGHTS);
    let bad = RemoteAddr { addr: 0, rkey: Rkey(0) };
    let write = SendWr::signaled(8, SendOp::Write(bad)).with(SendFlags::MORE);
    scene.qb.post_send_inline(&write, &[1]).unwrap();
    scene.qb.post_local_inv_mw(9, S, mw).unwrap();
    let done = scene.settle();
    assert_eq!(ids(&done), [(8, false), (9, false)]);
    let Some(Returned::StaleMw(mw)) = done.into_iter().next_back().map(|wc| wc.returned) else {
        panic!("not stale")
    };
    drop(mw);
    scene.region.dereg().unwrap();
}

#[test]
fn what_cannot_be_bound_is_refused_and_nothing_is_posted() {
    let mut scene = Scene::new();
    let pd = scene.two.b.pd.clone();
    let wr = |access| BindMw { wr_id: 1, flags: S, access };
    let mut refuse = |wr: BindMw, mw: Mw, mr: &Mr, range| {
        let refused = scene.qb.post_bind_mw(&wr, mw, mr, range).unwrap_err();
        refused.held.dealloc().unwrap();
        refused.cause
    };
    let (region, alloc) = (scene.region.clone(), || pd.alloc_mw().unwrap());
    let read = wr(Access::REMOTE_READ);
    assert_eq!(refuse(read, alloc(), &region, 5..5), PostError::Window);
    assert_eq!(refuse(read, alloc(), &region, 0..MEMORY_BYTES + 1), PostError::Window);
    let memory = &scene.two.b.memory;
    let plain = pd.reg_mr(memory, 0..64, RIGHTS).unwrap();
    assert_eq!(refuse(read, alloc(), &plain, 0..64), PostError::Window, "no MW_BIND");
    let read_only = pd.reg_mr(memory, 0..64, Access::MW_BIND).unwrap();
    let write = wr(Access::REMOTE_WRITE);
    assert_eq!(refuse(write, alloc(), &read_only, 0..64), PostError::Window);
    let other = scene.two.b.context.alloc_pd().unwrap();
    let foreign = other.reg_mr(memory, 0..64, BINDABLE).unwrap();
    assert_eq!(refuse(read, alloc(), &foreign, 0..64), PostError::Pd, "region of another domain");
    let foreign = other.alloc_mw().unwrap();
    assert_eq!(refuse(read, foreign, &region, 0..64), PostError::Pd, "window of another domain");
    assert!(!scene.qb.has_outstanding());
    region.dereg().unwrap();
    scene.two.world.assert_clean();
}

#[test]
fn keys_that_are_made_have_low_bytes_of_their_own() {
    let scene = Scene::new();
    let pd = &scene.two.b.pd;
    let mut bytes = Vec::new();
    for _ in 0..60 {
        // A device may give the index of the one that went to the one that comes; with the same
        // low byte a peer's old key would reach the new region.
        let mr = pd.reg_mr(&scene.two.b.memory, 0..64, RIGHTS).unwrap();
        let list = ListLayout::Pages { log_page: 12 };
        let made = [mr.rkey().unwrap(), pd.alloc_mw().unwrap().rkey()];
        let fast = pd.alloc_mr(list, 8).unwrap().rkey();
        bytes.extend(made.into_iter().chain([fast]).map(|key| key.0 & 0xff));
    }
    let count = bytes.len();
    bytes.sort_unstable();
    bytes.dedup();
    assert_eq!((bytes.len(), bytes.contains(&0)), (count, false));
}

fn post_untyped(scene: &mut Scene, wr: &BindUntyped, mw: &UntypedMw) -> Result<(), PostError> {
    // SAFETY: the region is registered memory, which nobody borrows.
    unsafe { scene.qb.post_bind_untyped(wr, mw) }
}

/// Binds an untyped window of `b`'s to `len` bytes of its region, under a variant; the syndrome.
fn bind_untyped(scene: &mut Scene, mw: &UntypedMw, old: Rkey, variant: u8, len: usize) -> u8 {
    let wr = BindUntyped {
        wr_id: 1,
        flags: S,
        access: Access::REMOTE,
        old,
        variant,
        lkey: scene.region.lkey(),
        addr: scene.region.addr() + AT as u64,
        len_bytes: len as u64,
    };
    post_untyped(scene, &wr, mw).unwrap();
    let done = scene.settle();
    assert_eq!((done[0].wr_id, done[0].opcode), (1, WcOpcode::BindMw));
    syndromes(&done)[0]
}

/// The key of a window with a variant, and the first byte that it is bound to.
fn remote_of(scene: &Scene, mw: &UntypedMw, variant: u8) -> RemoteAddr {
    let rkey = Rkey(mw.rkey().0 & !0xff | u32::from(variant));
    RemoteAddr { addr: scene.region.addr() + AT as u64, rkey }
}

#[test]
fn a_window_of_type_1_moves_while_it_is_bound_and_ends_by_being_bound_to_nothing() {
    let mut scene = Scene::new();
    let mw = scene.two.b.pd.alloc_untyped_mw(MwKind::Type1).unwrap();
    assert_eq!(bind_untyped(&mut scene, &mw, mw.rkey(), 7, LEN), 0);
    let first = remote_of(&scene, &mw, 7);
    assert_eq!(scene.attempt(SendOp::Write(first.at(LEN as u64 - 8))), 0);
    // Any queue pair of the domain lets its peer use it.
    let pd = scene.two.b.pd.clone();
    let _before = scene.reconnect(&pd);
    assert_eq!(scene.attempt(SendOp::Write(first)), 0);
    // Bound anew, without an end in between: the key is another one, and so is the length.
    assert_eq!(bind_untyped(&mut scene, &mw, first.rkey, 8, LEN / 2), 0);
    let second = remote_of(&scene, &mw, 8);
    assert_eq!(scene.attempt(SendOp::Read(second)), 0);
    assert_eq!(scene.attempt(SendOp::Write(first)), REMOTE_ACCESS);
    let _before = scene.reconnect(&pd);
    assert_eq!(scene.attempt(SendOp::Read(second.at(LEN as u64 / 2 - 4))), REMOTE_ACCESS);
    let _before = scene.reconnect(&pd);
    assert_eq!(bind_untyped(&mut scene, &mw, second.rkey, 9, 0), 0);
    assert_eq!(scene.attempt(SendOp::Write(remote_of(&scene, &mw, 9))), REMOTE_ACCESS);
    assert!(scene.two.world.refusals(1).len() >= 3);
}

#[test]
fn an_untyped_window_of_type_2_is_refused_by_the_device_in_the_wrong_state() {
    let mut scene = Scene::new();
    let pd = scene.two.b.pd.clone();
    let mw = pd.alloc_untyped_mw(MwKind::Type2).unwrap();
    assert_eq!(bind_untyped(&mut scene, &mw, mw.rkey(), 3, LEN), 0);
    let remote = remote_of(&scene, &mw, 3);
    assert_eq!(scene.attempt(SendOp::Write(remote)), 0);
    scene.qb.post_local_inv_rkey(2, S, remote.rkey).unwrap();
    let done = scene.settle();
    assert_eq!((ids(&done), done[0].opcode), (vec![(2, true)], WcOpcode::LocalInv));
    // Ended twice, and bound while it is bound.
    scene.qb.post_local_inv_rkey(2, S, remote.rkey).unwrap();
    let done = scene.settle();
    assert_eq!(syndromes(&done), [MW_BIND]);
    let _before = scene.reconnect(&pd);
    assert_eq!(bind_untyped(&mut scene, &mw, remote.rkey, 4, LEN), 0);
    let bound = remote_of(&scene, &mw, 4);
    assert_eq!(scene.attempt(SendOp::Read(bound)), 0);
    assert_eq!(bind_untyped(&mut scene, &mw, bound.rkey, 5, LEN), MW_BIND);
    // Destroyed while it is bound.
    let _before = scene.reconnect(&pd);
    drop(mw);
    assert_eq!(scene.attempt(SendOp::Write(bound)), REMOTE_ACCESS);
    assert!(scene.two.world.refusals(1).len() >= 3);
}

#[test]
fn a_region_may_end_before_an_untyped_window_over_it() {
    let mut scene = Scene::new();
    let mw = scene.two.b.pd.alloc_untyped_mw(MwKind::Type1).unwrap();
    assert_eq!(bind_untyped(&mut scene, &mw, mw.rkey(), 7, LEN), 0);
    scene.region.dereg().unwrap();
    assert_eq!(scene.attempt(SendOp::Write(remote_of(&scene, &mw, 7))), REMOTE_ACCESS);
    scene.assert_unchanged("a region that ended");
    assert_eq!(scene.two.world.refusals(1).len(), 1);
}

#[test]
fn what_an_untyped_binding_may_not_say_is_refused_before_it_is_posted() {
    let mut scene = Scene::new();
    let pd = scene.two.b.pd.clone();
    let [mw, other] = [(); 2].map(|()| pd.alloc_untyped_mw(MwKind::Type2).unwrap());
    let (lkey, addr, old) = (scene.region.lkey(), scene.region.addr(), mw.rkey());
    let wr = BindUntyped {
        wr_id: 1,
        flags: S,
        access: Access::REMOTE_READ,
        old,
        variant: 1,
        lkey,
        addr,
        len_bytes: 8,
    };
    let long = BindUntyped { len_bytes: 1 << 31, ..wr };
    assert_eq!(post_untyped(&mut scene, &long, &mw), Err(PostError::Window));
    assert_eq!(post_untyped(&mut scene, &wr, &other), Err(PostError::Window), "another's key");
    let foreign = scene.two.a.pd.alloc_untyped_mw(MwKind::Type2).unwrap();
    let of_foreign = BindUntyped { old: foreign.rkey(), ..wr };
    assert_eq!(post_untyped(&mut scene, &of_foreign, &foreign), Err(PostError::Pd));
    scene.qb.to_error().unwrap();
    scene.qb.post_local_inv_rkey(1, S, old).unwrap();
    scene.two.world.settle();
    assert_eq!(
        common::syndromes(&common::take(&mut scene.two.b.cq, &mut scene.qb)),
        [5],
        "flushed"
    );
    scene.two.world.assert_clean();
}
