//! Regions that get other rights, or another domain, under the key that they have.

use crate::common::{MEMORY_BYTES, Two, small, syndromes};
use ferrocx_verbs_lite::*;

const REMOTE_ACCESS: u8 = 0x13;

/// The peer `a` writes to `b`'s region on a connection of its own; the syndrome.
fn attempt(two: &mut Two, region: &Mr, op: fn(RemoteAddr) -> SendOp<'static>) -> u8 {
    let (mut qa, mut qb) = two.rc(&small());
    let remote = RemoteAddr { addr: region.addr(), rkey: Rkey(region.lkey().0) };
    let buf = two.a.mr().buf(0..8).unwrap();
    qa.post_send(&SendWr::signaled(1, op(remote)), Some(buf)).unwrap();
    syndromes(&two.run(&mut qa, &mut qb).0)[0]
}

#[test]
fn rights_come_and_go_under_the_same_key() {
    let mut two = Two::new();
    let mut region = two.b.pd.reg_mr(&two.b.memory, 0..4096, Access::LOCAL_WRITE).unwrap();
    let key = region.lkey();
    let mut changer = two.b.context.mr_changer().unwrap();
    assert_eq!(attempt(&mut two, &region, SendOp::Write), REMOTE_ACCESS);
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    changer.change(&mut region, &two.b.pd, rights).unwrap();
    assert_eq!((region.lkey(), region.access()), (key, rights));
    assert_eq!(attempt(&mut two, &region, SendOp::Write), 0);
    assert_eq!(attempt(&mut two, &region, SendOp::Read), REMOTE_ACCESS);
    changer.change(&mut region, &two.b.pd, Access::REMOTE_READ).unwrap();
    assert_eq!(attempt(&mut two, &region, SendOp::Read), 0);
    assert_eq!(attempt(&mut two, &region, SendOp::Write), REMOTE_ACCESS);
    assert_eq!(two.world.refusals(1).len(), 3);
}

#[test]
fn a_region_moves_to_another_domain() {
    let mut two = Two::new();
    let other = two.b.context.alloc_pd().unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE;
    let mut region = other.reg_mr(&two.b.memory, 0..4096, rights).unwrap();
    let mut changer = two.b.context.mr_changer().unwrap();
    assert_eq!(attempt(&mut two, &region, SendOp::Write), REMOTE_ACCESS, "of another domain");
    changer.change(&mut region, &two.b.pd, rights).unwrap();
    assert_eq!(attempt(&mut two, &region, SendOp::Write), 0);
    // Its former domain may go.
    drop(other);
    assert_eq!(attempt(&mut two, &region, SendOp::Read), 0);
}

#[test]
fn what_cannot_change_is_refused_and_stays() {
    let mut two = Two::new();
    let (pd, rights) = (&two.b.pd.clone(), Access::LOCAL_WRITE);
    let mut region = pd.reg_mr(&two.b.memory, 0..MEMORY_BYTES, rights).unwrap();
    let mut changer = two.b.context.mr_changer().unwrap();
    let held = region.buf(0..8).unwrap();
    let refusal = changer.change(&mut region, pd, rights).unwrap_err();
    assert!(refusal.to_string().contains("register the memory anew"), "{refusal}");
    drop(held);
    let refusal = changer.change(&mut region, pd, rights | Access::ZERO_BASED).unwrap_err();
    assert!(matches!(refusal, VerbsError::Unsupported { .. }), "{refusal}");
    let refusal = changer.change(&mut region, pd, Access::REMOTE_WRITE).unwrap_err();
    assert!(matches!(refusal, VerbsError::RemoteWithoutLocalWrite), "{refusal}");
    let refusal = changer.change(&mut region, &two.a.pd, rights).unwrap_err();
    assert!(matches!(refusal, VerbsError::OtherDevice { .. }), "{refusal}");
    assert_eq!(region.access(), rights);
    two.world.assert_clean();
    // A key that has ended: the device says so, and the next change works.
    region.dereg().unwrap();
    let refusal = changer.change(&mut region, pd, rights).unwrap_err();
    assert!(matches!(refusal, VerbsError::NotChanged { cause: Some(_), .. }), "{refusal}");
    let mut next = pd.reg_mr(&two.b.memory, 0..4096, rights).unwrap();
    changer.change(&mut next, pd, rights | Access::REMOTE_WRITE).unwrap();
    assert_eq!(attempt(&mut two, &next, SendOp::Write), 0);
}
