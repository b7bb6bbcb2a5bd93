//! Pools, caches and packets over heap memory; all of it runs under Miri.
#![expect(unsafe_code, reason = "raw packets")]

use arrayvec::ArrayVec;

use crate::{Mbuf, MempoolError, OlFlags, Pool, PoolConfig, PoolKeys, RegionConfig, RxMeta};

pub(crate) fn config(count: usize, cache_size: usize) -> PoolConfig {
    PoolConfig {
        name: "test".to_owned(),
        count,
        data_room_bytes: 256,
        headroom_bytes: 32,
        cache_size,
        region: RegionConfig::heap(0),
    }
}

pub(crate) fn pool(count: usize, cache_size: usize) -> Pool {
    Pool::new(&config(count, cache_size)).unwrap()
}

/// Stamps a pool that no device uses.
pub(crate) fn stamp(pool: &Pool, keys: PoolKeys) -> Result<(), MempoolError> {
    // SAFETY: no device takes an address or key from these buffers.
    unsafe { pool.stamp(keys) }
}

/// Takes the stamp of a pool back that no device uses.
pub(crate) fn unstamp(pool: &Pool) -> Result<(), MempoolError> {
    // SAFETY: as in `stamp`.
    unsafe { pool.unstamp() }
}

/// `(in_use, cached, shared, exhausted)`.
fn counts(pool: &Pool) -> (u64, u64, u64, u64) {
    let s = pool.stats();
    assert_eq!(s.in_use + s.cached + s.shared, s.count);
    assert_eq!(s.double_frees, 0);
    (s.in_use, s.cached, s.shared, s.exhausted)
}

#[test]
fn fields_out_of_range_are_refused_by_name() {
    let good = config(4, 4);
    for (field, bad) in [
        ("count", PoolConfig { count: 0, ..good.clone() }),
        ("count", PoolConfig { count: (1 << 30) + 1, ..good.clone() }),
        ("data_room_bytes", PoolConfig { data_room_bytes: 63, ..good.clone() }),
        ("data_room_bytes", PoolConfig { data_room_bytes: 65536, ..good.clone() }),
        ("headroom_bytes", PoolConfig { headroom_bytes: 257, ..good.clone() }),
        ("cache_size", PoolConfig { cache_size: 4097, ..good.clone() }),
    ] {
        match Pool::new(&bad) {
            Err(MempoolError::PoolConfig { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let largest = PoolConfig { data_room_bytes: 65535, headroom_bytes: 65535, ..good };
    let pool = Pool::new(&largest).unwrap();
    let mut mbuf = pool.get().unwrap();
    assert_eq!((mbuf.headroom(), mbuf.tailroom()), (65535, 0));
    assert!(mbuf.append(1).is_none());
    assert_eq!(mbuf.prepend(65535).unwrap().len(), 65535);
}

#[test]
fn an_empty_pool_is_a_count() {
    let pool = pool(2, 0);
    let (a, b) = (pool.get().unwrap(), pool.get().unwrap());
    assert!(pool.get().is_none());
    assert_eq!(counts(&pool), (2, 0, 0, 1));
    drop((a, b));
    assert_eq!(counts(&pool), (0, 0, 2, 1));
}

#[test]
fn a_bulk_get_is_all_or_nothing() {
    let pool = pool(8, 4);
    let mut cache = pool.cache();
    let mut out = ArrayVec::<Mbuf, 16>::new();
    assert!(!cache.get_bulk(&mut out, 9));
    assert!(out.is_empty());
    assert_eq!(counts(&pool).0, 0);
    assert!(cache.get_bulk(&mut out, 8));
    assert_eq!((out.len(), counts(&pool)), (8, (8, 0, 0, 1)));
    assert!(cache.get_bulk(&mut out, 0));
    assert!(!cache.get_bulk(&mut out, 1));
    let mut ptrs: Vec<_> = out.iter().map(|m| m.data().as_ptr() as usize).collect();
    ptrs.sort_unstable();
    ptrs.dedup();
    assert_eq!(ptrs.len(), 8);
    cache.put_bulk(&mut out);
    assert_eq!(counts(&pool), (0, 0, 8, 2), "more than half a cache goes past it");
}

#[test]
fn a_cache_fills_and_spills_half_of_itself() {
    let pool = pool(64, 8);
    let mut cache = pool.cache();
    let first = cache.get().unwrap();
    assert_eq!((cache.len(), counts(&pool)), (4, (1, 4, 59, 0)));
    cache.put(first);
    assert_eq!(cache.len(), 5);
    let held: Vec<_> = (0..12).map(|_| cache.get().unwrap()).collect();
    for mbuf in held {
        cache.put(mbuf);
        assert!(cache.len() <= 8);
    }
    assert_eq!(counts(&pool).0, 0);
    cache.flush();
    assert_eq!((cache.is_empty(), counts(&pool)), (true, (0, 0, 64, 0)));
    let _ = cache.get().unwrap();
    drop(cache);
    assert_eq!(counts(&pool), (0, 0, 64, 0));
}

#[test]
fn buffers_come_out_as_new_unless_taken_raw() {
    let pool = pool(4, 4);
    let mut cache = pool.cache();
    let mut all = ArrayVec::<Mbuf, 4>::new();
    for _ in 0..3 {
        assert!(cache.get_bulk(&mut all, 4));
        for m in &mut all {
            assert_eq!((m.headroom(), m.data_len(), m.pkt_len()), (32, 0, 0));
            assert_eq!((m.flags(), m.packet_type().0), (OlFlags::empty(), 0));
            assert_eq!((m.vlan_tci(), m.rss_hash(), m.flow_mark()), (0, None, None));
            let meta = RxMeta { flow_mark: 5, vlan_tci: 6, rss_hash: 7, ..RxMeta::default() };
            assert!(m.init_rx(9, 100, meta));
            m.set_flags(OlFlags::all());
        }
        cache.put_bulk(&mut all);
    }
    let single = cache.get().unwrap();
    assert_eq!((single.headroom(), single.pkt_len(), single.vlan_tci()), (32, 0, 0));
    assert!(cache.get_raw_bulk(&mut all, 3) && !cache.get_raw_bulk(&mut all, 1));
    for m in &all {
        assert_eq!((m.headroom(), m.pkt_len(), m.flags()), (9, 100, OlFlags::all()));
    }
    cache.put_bulk(&mut all);
    cache.flush();
    assert_eq!(pool.get().unwrap().pkt_len(), 0);
}

#[test]
fn raw_round_trip() {
    let pool = pool(8, 8);
    let mut cache = pool.cache();
    let raws = [(); 3].map(|()| cache.get().unwrap().into_raw());
    assert_eq!(counts(&pool).0, 3);
    // SAFETY: from `into_raw`, taken back once.
    let mbuf = unsafe { Mbuf::from_raw(raws[0]) };
    assert!(mbuf.is_simple_of(&pool));
    drop(mbuf);
    // SAFETY: from `into_raw`, simple, not used again.
    unsafe { cache.put_simple_bulk(&raws[1..]) };
    assert_eq!(counts(&pool).0, 0);
}

#[test]
fn buffers_do_not_overlap_and_keep_their_bytes() {
    let pool = pool(5, 0);
    let mut held: Vec<_> = (0..5).map(|_| pool.get().unwrap()).collect();
    for (i, mbuf) in held.iter_mut().enumerate() {
        let n = mbuf.tailroom();
        assert_eq!(n, 224);
        mbuf.append(n).unwrap().fill(i as u8);
        mbuf.prepend(32).unwrap().fill(0x80 | i as u8);
    }
    for (i, mbuf) in held.iter().enumerate() {
        assert!(mbuf.data()[..32].iter().all(|b| *b == 0x80 | i as u8));
        assert!(mbuf.data()[32..].iter().all(|b| *b == i as u8));
    }
}

#[test]
fn lengths_move_within_the_room_and_no_further() {
    let pool = pool(1, 0);
    let mut m = pool.get().unwrap();
    assert_eq!((m.headroom(), m.data_len(), m.tailroom(), m.pkt_len()), (32, 0, 224, 0));
    assert!(m.extend_from_slice(b"payload"));
    m.prepend(3).unwrap().copy_from_slice(b"hdr");
    assert_eq!(m.data(), b"hdrpayload");
    assert_eq!((m.headroom(), m.data_len(), m.tailroom(), m.pkt_len()), (29, 10, 217, 10));
    assert!(m.adj(3) && m.trim(4));
    assert_eq!(m.data(), b"pay");
    assert!(!m.adj(4) && !m.trim(4));
    assert!(m.append(222).is_none() && m.prepend(33).is_none());
    assert!(!m.extend_from_slice(&[0; 222]));
    assert_eq!((m.data(), m.pkt_len()), (&b"pay"[..], 3));
    m.append(221).unwrap().fill(7);
    assert_eq!((m.tailroom(), m.pkt_len()), (0, 224));
    assert!(m.append(0).is_some() && m.append(1).is_none());
    m.data_mut().unwrap()[0] = b'P';
    assert_eq!(&m.data()[..3], b"Pay");
    m.set_vlan_tci(5);
    m.set_flags(OlFlags::TX_VLAN_INSERT);
    m.reset();
    assert_eq!((m.headroom(), m.data_len(), m.pkt_len()), (32, 0, 0));
    assert_eq!(m.flags(), OlFlags::empty());
}

#[test]
fn a_received_packet_has_its_metadata_and_a_length_that_fits() {
    let pool = pool(1, 0);
    let mut m = pool.get().unwrap();
    let meta = RxMeta {
        flags: OlFlags::RX_RSS_HASH | OlFlags::RX_VLAN | OlFlags::RX_L4_CSUM_GOOD,
        rss_hash: 0xdead_beef,
        flow_mark: 0x00c0_ffee,
        vlan_tci: 0x2064,
        packet_type: crate::PacketType(0x25),
    };
    assert!(m.init_rx(32, 60, meta));
    assert_eq!((m.headroom(), m.data_len(), m.pkt_len()), (32, 60, 60));
    assert_eq!((m.rss_hash(), m.flow_mark()), (Some(0xdead_beef), Some(0x00c0_ffee)));
    assert_eq!((m.flags(), m.vlan_tci()), (meta.flags, 0x2064));
    assert_eq!((m.packet_type().l3(), m.packet_type().l4()), (1, 4));
    m.set_flags(OlFlags::empty());
    assert_eq!((m.flow_mark(), m.rss_hash()), (Some(0x00c0_ffee), None));
    assert_eq!(m.packet_type().0, 0x25);
    for (headroom, len, fits) in [
        (32, 224, true),
        (32, 225, false),
        (0, 256, true),
        (0, 257, false),
        (256, 0, true),
        (257, 0, false),
        (0, u32::MAX, false),
        (u16::MAX, u32::MAX, false),
    ] {
        assert_eq!(m.reset_rx(headroom, len), fits, "{headroom} {len}");
    }
    assert_eq!((m.headroom(), m.data_len()), (256, 0), "the last that fitted");
}

#[test]
fn stamping_writes_every_buffer_once() {
    let pool = pool(3, 2);
    assert_eq!(pool.keys(), None);
    assert_eq!(pool.get().unwrap().lkey(), 0x100);
    let keys = PoolKeys { region_iova: 0x1234_5000_0000, lkey: 0x0102_0304, domain: 3 };
    stamp(&pool, keys).unwrap();
    assert_eq!(pool.keys(), Some(keys));
    let base = pool.region().as_ptr() as u64;
    for _ in 0..3 {
        let mut m = pool.get().unwrap();
        let offset = m.data().as_ptr() as u64 - base;
        assert_eq!(m.data_iova(), 0x1234_5000_0000 + offset);
        assert_eq!(m.room_address(), m.data_address() - 32);
        assert_eq!(m.lkey(), 0x0102_0304);
        assert_eq!(m.lkey_be().to_ne_bytes(), [1, 2, 3, 4]);
        assert!(m.extend_from_slice(&[0; 9]) && m.adj(9));
        assert_eq!(m.data_iova(), 0x1234_5000_0000 + offset + 9);
    }
    stamp(&pool, keys).unwrap();
    let other = PoolKeys { lkey: 7, ..keys };
    assert!(matches!(
        stamp(&pool, other),
        Err(MempoolError::AlreadyStamped { lkey: 0x0102_0304, .. })
    ));
    unstamp(&pool).unwrap();
    assert_eq!((pool.keys(), pool.get().unwrap().lkey()), (None, 0x100));
    stamp(&pool, other).unwrap();
}

#[test]
fn stamping_needs_all_buffers_at_home() {
    let pool = pool(3, 2);
    let keys = PoolKeys { region_iova: 0, lkey: 1, domain: 3 };
    let mut cache = pool.cache();
    let m = cache.get().unwrap();
    match stamp(&pool, keys) {
        Err(MempoolError::BuffersAway { away, count, .. }) => assert_eq!((away, count), (2, 3)),
        other => panic!("{other:?}"),
    }
    assert_eq!(pool.keys(), None);
    drop(m);
    assert!(stamp(&pool, keys).is_err());
    cache.flush();
    stamp(&pool, keys).unwrap();
}

#[test]
fn pools_share_a_region_without_overlap() {
    let cfg = config(4, 0);
    assert_eq!((cfg.stride_bytes(), cfg.region_bytes()), (256, 1024));
    let region = crate::Region::alloc(&RegionConfig::heap(4096)).unwrap();
    let a = Pool::with_region(&cfg, &region, 0).unwrap();
    let b = Pool::with_region(&cfg, &region, 1024).unwrap();
    for offset in [0, 960, 1024, 1984, 64 * 47 + 1, 4096 - 960, usize::MAX] {
        let err = Pool::with_region(&cfg, &region, offset).unwrap_err();
        assert!(matches!(err, MempoolError::RegionRange { .. }), "{offset}");
    }
    assert_eq!((a.region_range(), b.region_range()), (0..1024, 1024..2048));
    stamp(&b, PoolKeys { region_iova: 0x10_0000, lkey: 1, domain: 3 }).unwrap();
    assert_eq!(b.get().unwrap().data_iova(), 0x10_0420);
    drop(a);
    Pool::with_region(&cfg, &region, 0).unwrap();
}

#[test]
fn buffers_outlive_the_handles_and_end_the_pool() {
    let region = crate::Region::alloc(&RegionConfig::heap(4096)).unwrap();
    let pool = Pool::with_region(&config(4, 2), &region, 0).unwrap();
    let mut cache = pool.cache();
    let mut a = cache.get().unwrap();
    let b = pool.get().unwrap();
    drop((cache, pool));
    assert!(a.extend_from_slice(b"still here"));
    assert_eq!(a.data(), b"still here");
    assert_eq!(std::sync::Arc::strong_count(&region), 2);
    drop(b);
    assert_eq!(std::sync::Arc::strong_count(&region), 2);
    drop(a);
    assert_eq!(std::sync::Arc::strong_count(&region), 1);
}

#[test]
fn threads_free_what_others_took() {
    let rounds = if cfg!(miri) { 20 } else { 2000 };
    let pool = pool(64, 8);
    let (tx, rx) = std::sync::mpsc::sync_channel::<Mbuf>(8);
    let taker = {
        let pool = pool.clone();
        std::thread::spawn(move || {
            let mut cache = pool.cache();
            for i in 0..rounds {
                let Some(mut m) = cache.get() else { continue };
                assert!(m.extend_from_slice(&[i as u8; 16]));
                tx.send(m).unwrap();
            }
        })
    };
    let mut cache = pool.cache();
    for (i, m) in rx.into_iter().enumerate() {
        assert!(m.data().iter().all(|b| *b == m.data()[0]));
        if i % 2 == 0 { drop(m) } else { cache.put(m) }
    }
    taker.join().unwrap();
    drop(cache);
    assert_eq!(counts(&pool).0, 0);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "double free: object 0 of pool test is free already")]
fn a_double_free_is_caught_in_debug_builds() {
    let pool = pool(2, 2);
    let mut cache = pool.cache();
    let raw = pool.get().unwrap().into_raw();
    // SAFETY: the first time, it is right.
    unsafe { cache.put_simple_bulk(&[raw]) };
    // SAFETY: it is not, the second time: the point of the test. The check comes before any use.
    unsafe { cache.put_simple_bulk(&[raw]) };
}

#[test]
#[cfg(not(debug_assertions))]
fn a_double_free_stays_in_its_pool_in_release_builds() {
    let (pool, other) = (pool(2, 2), pool(2, 2));
    let raw = pool.get().unwrap().into_raw();
    // SAFETY: the first time, it is right; the second time is the point of the test.
    let both = unsafe { (Mbuf::from_raw(raw), Mbuf::from_raw(raw)) };
    drop(both.0);
    drop(both.1);
    assert_eq!(pool.stats().double_frees, 1);
    assert_eq!((pool.stats().shared, other.stats().shared), (2, 2));
    let (a, b) = (pool.get().unwrap(), pool.get().unwrap());
    assert_ne!(a.data().as_ptr(), b.data().as_ptr());
}
