//! Memory regions of every kind: what they reach, and when that ends.

use std::sync::Arc;

use crate::common;
use crate::common::{MEMORY_BYTES, Side, Two, ids, pattern, syndromes};
use ferrocx_mempool::{MempoolError, Pool, PoolConfig};
use ferrocx_model::NicConfig;
use ferrocx_model::wire::link;
use ferrocx_verbs_lite::*;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Writes from `a` to a remote address; returns the syndrome, 0 for success.
fn write(two: &mut Two, qa: &mut Qp<()>, qb: &mut Qp<()>, to: RemoteAddr, bytes: &[u8]) -> u8 {
    qa.post_send_inline(&SendWr::signaled(1, SendOp::Write(to)), bytes).unwrap();
    let (done, _) = two.run(qa, qb);
    syndromes(&done)[0]
}

fn remote(mr: &Mr, offset: u64) -> RemoteAddr {
    RemoteAddr { addr: mr.addr() + offset, rkey: mr.rkey().unwrap() }
}

/// As many keys as the configuration says, of every kind together.
#[test]
fn keys_are_counted_and_limited() {
    const MAX: u32 = 5;
    let settings = ferrocx_core::DeviceConfig { max_memory_keys: MAX, ..common::settings() };
    let (wire_a, wire_b) = link(64);
    let two = Two::opened(common::models(wire_a, wire_b), &settings, |transport| transport);
    let (pd, device) = (two.a.pd.clone(), two.a.context.device().clone());
    assert_eq!(two.a.context.attr().max_mr, MAX);
    let before = device.key_use().in_use;
    let region = || pd.reg_mr(&two.a.memory, 0..4096, ALL);
    let mut kept: Vec<Mr> = (before + 1..MAX).map(|_| region().unwrap()).collect();
    let fast = pd.alloc_mr(ListLayout::Pieces, 1).unwrap();
    for refused in 1..=2 {
        let error = region().unwrap_err().to_string();
        let expected = "number of memory keys is 6; it must be 0 to 5: end some, or raise \
                        DeviceConfig::max_memory_keys";
        assert_eq!(error, expected);
        let used = device.key_use();
        assert_eq!((used.in_use, used.max, used.refused), (MAX, MAX, refused));
    }
    assert!(pd.alloc_mr(ListLayout::Pieces, 1).is_err());
    drop(fast);
    kept.push(region().unwrap());
    drop(kept);
    assert_eq!(device.key_use().in_use, before);
}

/// The model has no relaxed ordering and refuses keys that ask for it.
#[test]
fn a_device_without_relaxed_ordering_keeps_the_order() {
    let two = Two::new();
    let relaxed = ALL | Access::RELAXED_ORDERING;
    let mut region = two.a.pd.reg_mr(&two.a.memory, 0..4096, relaxed).unwrap();
    let mut changer = two.a.context.mr_changer().unwrap();
    let refusal = changer.change(&mut region, &two.a.pd, ALL).unwrap_err().to_string();
    assert!(refusal.contains("order of writes"), "{refusal}");
    two.world.assert_clean();
}

#[test]
fn a_region_is_addressed_by_its_virtual_addresses_or_from_zero() {
    let mut two = Two::new();
    let (mut qa, mut qb) = two.connected::<()>();
    let (pd, memory) = (two.b.pd.clone(), Arc::clone(&two.b.memory));
    let plain = pd.reg_mr(&memory, 5000..9000, ALL).unwrap();
    assert_eq!(plain.addr(), memory.region().base().as_ptr().addr() as u64 + 5000);
    assert_eq!(write(&mut two, &mut qa, &mut qb, remote(&plain, 3999), &[1]), 0);
    assert_eq!(two.b.read(8999, 2), [1, 0]);
    let zero = pd.reg_mr(&memory, 8192..8192 + 5000, ALL | Access::ZERO_BASED).unwrap();
    assert_eq!(zero.addr(), 0);
    assert_eq!(write(&mut two, &mut qa, &mut qb, remote(&zero, 4998), &[2, 3]), 0);
    assert_eq!(two.b.read(8192 + 4998, 2), [2, 3]);
    let error = pd.reg_mr(&memory, 100..200, ALL | Access::ZERO_BASED).unwrap_err();
    assert!(matches!(error, VerbsError::Access(_)), "{error}");
    two.world.assert_clean();
}

#[test]
fn a_dma_key_needs_no_registration_and_is_local_only() {
    let mut two = Two::new();
    let dma = two.a.pd.get_dma_mr().unwrap();
    let other = two.a.context.alloc_pd().unwrap().get_dma_mr().unwrap();
    assert!(dma.is_reserved());
    assert_eq!(dma.lkey(), other.lkey(), "the same for every domain");
    let physical = two.a.pd.physical_dma_mr().unwrap();
    assert!(!physical.is_reserved());
    for key in [&dma, &physical] {
        let mr = key.over(&two.a.memory).unwrap();
        assert_eq!((mr.rkey(), mr.addr()), (None, two.a.memory.iova()));
        let mb = two.b.mr();
        let (mut qa, mut qb) = two.connected::<Buf>();
        two.a.fill(300, &pattern(700, 3));
        let buf = mr.buf(300..1000).unwrap();
        assert_eq!(buf.remote(), None);
        let wr = SendWr::signaled(1, SendOp::Write(remote(&mb, 9)));
        qa.post_send(&wr, Some(buf)).unwrap();
        let (done, _) = two.run(&mut qa, &mut qb);
        assert_eq!(ids(&done), [(1, true)]);
        assert_eq!(two.b.read(9, 700), pattern(700, 3));
    }
    two.world.assert_clean();
}

/// Pieces that lie apart: page by page, and of any length.
fn lists(side: &Side) -> [(Vec<PhysBuf>, u64); 2] {
    let piece = |range| PhysBuf { memory: Arc::clone(&side.memory), range };
    let pages = vec![piece(20480 + 0x123..24576), piece(4096..8192), piece(40960..41000)];
    let odd = vec![piece(1001..1010), piece(50..1000), piece(70_000..70_001), piece(9000..9100)];
    [(pages, 0x7000_0000_0123), (odd, 0x5_0000_0007)]
}

#[test]
fn a_physical_list_is_one_region_whatever_its_pieces() {
    for (which, reserved_lkey) in [(0, true), (1, true), (0, false), (1, false)] {
        let config = NicConfig { reserved_lkey, ..common::config() };
        let (wire_a, wire_b) = link(1 << 20);
        let mut two = Two::of(common::models_like(&config, wire_a, wire_b));
        assert_eq!(two.b.context.device().uses_reserved_lkey(), reserved_lkey);
        let (mut qa, mut qb) = two.connected::<()>();
        let (pieces, start) = lists(&two.b)[which].clone();
        let mr = two.b.pd.reg_phys_mr(&pieces, start, ALL).unwrap();
        let len: usize = pieces.iter().map(|piece| piece.range.len()).sum();
        assert_eq!((mr.addr(), mr.len_bytes()), (start, len as u64));
        let bytes = pattern(len, 7);
        for (at, part) in bytes.chunks(50).enumerate() {
            let to = remote(&mr, at as u64 * 50);
            assert_eq!(write(&mut two, &mut qa, &mut qb, to, part), 0, "list {which}");
        }
        let mut got = Vec::new();
        for piece in &pieces {
            got.extend(two.b.read(piece.range.start, piece.range.len()));
        }
        assert_eq!(got, bytes, "list {which}");
        assert!(matches!(mr.buf(0..1), Err(VerbsError::Unsupported { .. })));
        two.world.assert_clean();
        let past = remote(&mr, len as u64);
        assert_eq!(write(&mut two, &mut qa, &mut qb, past, &[1]), 0x13, "one byte past the end");
    }
}

#[test]
fn dereg_ends_the_key_while_buffers_of_it_are_held_and_posted() {
    let mut two = Two::new();
    let (ma, mb) = (two.a.mr(), two.b.mr());
    let (mut qa, mut qb) = two.connected::<Buf>();
    let held = mb.buf(0..8).unwrap();
    qb.post_recv(1, mb.buf(8..16).unwrap()).unwrap();
    mb.dereg().unwrap();
    mb.dereg().unwrap();
    let wr = SendWr::signaled(2, SendOp::Write(remote(&mb, 0)));
    qa.post_send(&wr, Some(ma.buf(0..4).unwrap())).unwrap();
    let (done, got) = two.run(&mut qa, &mut qb);
    assert_eq!((syndromes(&done), syndromes(&got)), (vec![0x13], vec![5]));
    assert_eq!(held.to_vec(), [0; 8], "the memory is still there");
    assert_eq!(got.into_iter().next().unwrap().into_buffers().unwrap().len(), 8);
    // Local use fails as well.
    let (mut qa, mut qb) = two.connected::<Buf>();
    let buf = ma.buf(0..4).unwrap();
    ma.dereg().unwrap();
    let mb = two.b.mr();
    qa.post_send(&SendWr::signaled(3, SendOp::Write(remote(&mb, 0))), Some(buf)).unwrap();
    let (done, _) = two.run(&mut qa, &mut qb);
    assert_eq!(syndromes(&done), [4], "local protection error");
}

#[test]
fn wrong_ranges_rights_and_devices_are_refused_before_the_device() {
    let two = Two::new();
    let (pd, memory) = (&two.a.pd, &two.a.memory);
    let reg = |range, access| pd.reg_mr(memory, range, access).unwrap_err();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        assert!(matches!(reg(0..10, access), VerbsError::RemoteWithoutLocalWrite));
    }
    for range in [10..10, 0..MEMORY_BYTES + 1, MEMORY_BYTES..MEMORY_BYTES + 1] {
        assert!(matches!(reg(range, ALL), VerbsError::OutOfRange { .. }));
    }
    let error = pd.reg_mr(&two.b.memory, 0..10, ALL).unwrap_err();
    assert!(matches!(error, VerbsError::OtherDevice { .. }));
    let mr = pd.reg_mr(memory, 100..200, Access::REMOTE_READ).unwrap();
    assert!(mr.buf(0..100).is_ok() && mr.buf(0..101).is_err() && mr.buf(101..101).is_err());
    let mut buf = mr.buf(0..100).unwrap();
    let rest = buf.split_off(40);
    assert_eq!((buf.len(), rest.len(), rest.addr()), (40, 60, mr.addr() + 40));
    assert!(buf.copy_in(33, &[0; 8]).is_err());
    two.world.assert_clean();
}

#[test]
fn buffers_of_another_domain_or_device_are_refused_before_the_device() {
    let two = Two::new();
    let (mut qa, _qb) = two.connected::<Buf>();
    let other = two.a.context.alloc_pd().unwrap();
    let foreign = [
        other.reg_mr(&two.a.memory, 0..64, ALL).unwrap(),
        other.get_dma_mr().unwrap().over(&two.a.memory).unwrap(),
        two.b.mr(),
    ];
    for mr in &foreign {
        let wr = SendWr::signaled(1, SendOp::Send);
        let refused = qa.post_send(&wr, Some(mr.buf(0..8).unwrap())).unwrap_err();
        assert_eq!((refused.cause, refused.held.unwrap().len()), (PostError::Pd, 8));
        let refused = qa.post_recv(1, mr.buf(0..8).unwrap()).unwrap_err();
        assert_eq!(refused.cause, PostError::Pd);
    }
    two.world.assert_clean();
}

#[test]
fn packets_and_regions_never_share_memory() {
    let two = Two::new();
    let pool = Pool::new(&PoolConfig {
        count: 64,
        region: ferrocx_mempool::RegionConfig {
            page: ferrocx_mempool::PageSize::Base4K,
            ..Default::default()
        },
        ..PoolConfig::default()
    })
    .unwrap();
    let error = two.a.context.map_memory(Arc::clone(pool.region())).unwrap_err();
    assert!(matches!(error, VerbsError::Mempool(MempoolError::RegionInUse)), "{error}");
}
