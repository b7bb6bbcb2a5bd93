//! Keys that are let go of while the device may still carry out the request that binds them: such a
//! request must never bind the next key of the same number, nor outlive the packet that it names.
#![forbid(unsafe_code)]

use crate::common::{Two, pool, small, take};
use ferrocx_mempool::Pool;
use ferrocx_verbs_lite::*;

const PAGES: ListLayout = ListLayout::Pages { log_page: 12 };
/// More keys than the device passes over before it gives a number again.
const MANY: usize = 200;
const PACKETS: usize = 64;

struct Scene {
    qp: Qp<()>,
    pool: Pool,
    two: Two,
}

impl Scene {
    fn new() -> Self {
        let two = Two::new();
        let (qp, peer) = two.rc::<()>(&QpConfig { fast_reg: true, ..small() });
        // Its requests go nowhere.
        drop(peer);
        let pool = pool("posted");
        two.a.context.device().register_pool(&pool).unwrap();
        Self { qp, pool, two }
    }

    /// A registration of a packet that is posted, and that the device was not told of.
    fn posted(&mut self) -> RegisteredMr {
        let side = &self.two.a;
        let mr = side.pd.alloc_mr(PAGES, 8).unwrap();
        let mut list = side.context.alloc_page_list(PAGES, 8).unwrap();
        let mut packet = self.pool.get().unwrap();
        assert!(packet.append(64).is_some());
        list.map_mbuf(packet).unwrap();
        let (flags, start) = (SendFlags::SIGNALED | SendFlags::MORE, list.first_offset());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let wr = FastReg { wr_id: 1, flags, start, access, remote_invalidate: false };
        self.qp.post_fast_reg(&wr, mr, list).unwrap()
    }

    /// Whether a key that is made now may have a number.
    fn is_given(&self, rkey: Rkey) -> bool {
        (0..MANY).any(|_| {
            let key = self.two.a.pd.alloc_mr(PAGES, 8).unwrap();
            key.rkey().0 >> 8 == rkey.0 >> 8
        })
    }

    /// Packets that are in the pool.
    fn packets(&self) -> usize {
        PACKETS - self.pool.stats().in_use as usize
    }
}

#[test]
fn a_registration_that_is_posted_keeps_packet_and_number_of_its_key() {
    let mut scene = Scene::new();
    let key = scene.posted();
    let rkey = key.rkey();
    let RevokeError { key, cause } = key.revoke().expect_err("it is posted");
    assert!(matches!(cause, VerbsError::StillPosted { posted: 1 }), "{cause}");
    drop(key);
    assert_eq!(scene.packets(), PACKETS - 1, "the request names it");
    assert!(!scene.is_given(rkey), "the request would bind that key");
    scene.qp.ring_doorbell();
    scene.two.world.settle();
    assert_eq!(scene.packets(), PACKETS - 1, "nobody knows that it was carried out");
    let done = take(&mut scene.two.a.cq, &mut scene.qp);
    assert!(matches!(done[0].returned, Returned::PageList(_)) && done[0].result.is_ok());
    assert_eq!(scene.packets(), PACKETS, "the key has ended, and with it its hold");
    assert!(scene.is_given(rkey));
    scene.two.world.assert_clean();
}

#[test]
fn a_slot_that_is_posted_keeps_packet_and_number_of_its_key() {
    let mut scene = Scene::new();
    let side = &scene.two.a;
    let mut slot = KeySlot::new(&side.context, &side.pd, PAGES, 8).unwrap();
    let list = slot.list_mut().unwrap();
    let mut packet = scene.pool.get().unwrap();
    assert!(packet.append(64).is_some());
    list.map_mbuf(packet).unwrap();
    let (flags, start) = (SendFlags::SIGNALED | SendFlags::MORE, list.first_offset());
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let wr = FastReg { wr_id: 1, flags, start, access, remote_invalidate: false };
    let remote = slot.register(&mut scene.qp, &wr).unwrap();
    assert!(matches!(slot.revoke(), Err(VerbsError::StillPosted { posted: 1 })));
    assert_eq!((slot.state(), slot.take_mbuf().is_some()), (KeyState::Posted, false));
    slot.dealloc().unwrap();
    assert_eq!(scene.packets(), PACKETS - 1);
    assert!(!scene.is_given(remote.rkey));
    // The queue pair goes, and its requests with it.
    drop(scene.qp);
    assert_eq!(scene.pool.stats().in_use, 0);
}

#[test]
fn an_abandoned_queue_pair_lets_go_of_keys() {
    let mut scene = Scene::new();
    let key = scene.posted();
    let rkey = key.rkey();
    drop(key);
    assert!(!scene.is_given(rkey) && scene.packets() == PACKETS - 1);
    scene.qp.abandon(&[&scene.two.a.cq]).unwrap();
    assert!(scene.is_given(rkey) && scene.packets() == PACKETS);
}

#[test]
fn no_other_queue_pair_ends_a_key_whose_registration_is_posted() {
    let mut scene = Scene::new();
    let (mut other, _peer) = scene.two.rc::<()>(&QpConfig { fast_reg: true, ..small() });
    let key = scene.posted();
    let refused = other.post_local_inv(2, SendFlags::SIGNALED, key).expect_err("not behind it");
    assert_eq!(refused.cause, PostError::KeyState);
    let from = RemoteAddr { addr: 0, rkey: Rkey(0) };
    let refused = other
        .post_read_with_inv(2, SendFlags::SIGNALED, from, 8, refused.held)
        .expect_err("not behind it");
    assert_eq!(refused.cause, PostError::KeyState);
    scene.qp.ring_doorbell();
    scene.two.world.settle();
    assert_eq!(take(&mut scene.two.a.cq, &mut scene.qp).len(), 1);
    other.post_local_inv(2, SendFlags::SIGNALED, refused.held).unwrap();
    scene.two.world.settle();
    let mut done = take(&mut scene.two.a.cq, &mut other);
    let Returned::Mr(mut free) = done.remove(0).returned else { panic!("it has ended") };
    assert!(free.take_mbuf().is_some());
}

#[test]
fn a_binding_that_is_posted_keeps_the_number_of_its_window() {
    let mut scene = Scene::new();
    let side = &scene.two.a;
    let rights = Access::LOCAL_WRITE | Access::MW_BIND;
    let region = side.pd.reg_mr(&side.memory, 0..4096, rights).unwrap();
    let window = side.pd.alloc_mw().unwrap();
    let flags = SendFlags::SIGNALED | SendFlags::MORE;
    let wr = BindMw { wr_id: 1, flags, access: Access::REMOTE_WRITE };
    let window = scene.qp.post_bind_mw(&wr, window, &region, 0..64).unwrap();
    let rkey = window.rkey();
    let RevokeError { key, cause } = window.revoke().expect_err("it is posted");
    assert!(matches!(cause, VerbsError::StillPosted { posted: 1 }), "{cause}");
    drop(key);
    let is_given = |scene: &Scene| {
        (0..MANY).any(|_| scene.two.a.pd.alloc_mw().unwrap().rkey().0 >> 8 == rkey.0 >> 8)
    };
    assert!(!is_given(&scene));
    assert!(region.dereg().is_err(), "the window may be bound to it");
    scene.qp.ring_doorbell();
    scene.two.world.settle();
    assert_eq!(take(&mut scene.two.a.cq, &mut scene.qp).len(), 1);
    assert!(is_given(&scene));
    region.dereg().unwrap();
}
