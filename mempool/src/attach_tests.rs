//! Chains, clones and external buffers over heap memory; all of it runs under Miri.
#![expect(unsafe_code, reason = "external buffers")]

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

use crate::{ExternalBuffer, MAX_SEGMENTS, Mbuf, OlFlags, Pool, PoolKeys, TxLengths, pool_tests};

fn pool(count: usize) -> Pool {
    pool_tests::pool(count, 4)
}

fn filled(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut m = pool.get().unwrap();
    assert!(m.extend_from_slice(bytes));
    m
}

fn whole(m: &Mbuf) -> Vec<u8> {
    m.segments().flat_map(|s| s.data().to_vec()).collect()
}

#[test]
fn a_chain_is_one_packet() {
    let pool = pool(4);
    let mut m = filled(&pool, b"one");
    assert!(m.take_next().is_none());
    m.chain(filled(&pool, b"two2")).unwrap();
    let mut tail = filled(&pool, b"three");
    tail.chain(filled(&pool, b"")).unwrap();
    m.chain(tail).unwrap();
    assert_eq!((m.nb_segs(), m.pkt_len(), m.data_len()), (4, 12, 3));
    assert_eq!(whole(&m), b"onetwo2three");
    let lens: Vec<_> = m.segments().map(|s| s.data_len()).collect();
    assert_eq!(lens, [3, 4, 5, 0]);
    // Growing happens at the ends.
    assert!(m.extend_from_slice(b"!"));
    m.prepend(1).unwrap().copy_from_slice(b"-");
    assert_eq!((whole(&m), m.pkt_len()), (b"-onetwo2three!".to_vec(), 14));
    assert!(!m.trim(2) && m.trim(1) && m.adj(1) && !m.adj(4));
    let mut middle = [0; 6];
    assert!(m.read(2, &mut middle));
    assert_eq!(&middle, b"etwo2t");
    assert!(m.read(12, &mut []) && !m.read(13, &mut []) && !m.read(7, &mut middle));
    assert!(m.read(6, &mut middle));
    let rest = m.take_next().unwrap();
    assert_eq!((m.nb_segs(), m.pkt_len(), whole(&m)), (1, 3, b"one".to_vec()));
    assert_eq!((rest.nb_segs(), rest.pkt_len()), (3, 9));
    drop(rest);
    assert_eq!(pool.stats().in_use, 1);
    assert!(m.is_simple_of(&pool));
}

#[test]
fn dropping_or_putting_a_chain_frees_every_segment_to_its_own_pool() {
    let (a, b) = (pool(3), pool(3));
    let mut cache = a.cache();
    for put in [false, true] {
        let mut m = filled(&a, b"1");
        m.chain(filled(&b, b"2")).unwrap();
        m.chain(filled(&a, b"3")).unwrap();
        assert_eq!((a.stats().in_use, b.stats().in_use), (2, 1));
        if put {
            cache.put(m)
        } else {
            drop(m)
        }
        assert_eq!((a.stats().in_use, b.stats().in_use), (0, 0));
    }
    assert_eq!((a.stats().cached, b.stats().shared), (2, 3));
    let mut foreign = arrayvec::ArrayVec::<Mbuf, 2>::new();
    foreign.push(filled(&a, b"1"));
    foreign.push(filled(&b, b"2"));
    cache.put_bulk(&mut foreign);
    assert!(foreign.is_empty());
    assert_eq!((a.stats().in_use, b.stats().in_use, b.stats().shared), (0, 0, 3));
    let m = cache.get().unwrap();
    assert!(m.is_simple_of(&a) && m.is_of(&a) && !m.is_of(&b) && !m.is_simple_of(&b));
}

#[test]
fn a_chain_has_at_most_255_segments() {
    let pool = pool(257);
    let mut m = filled(&pool, b"x");
    for _ in 1..MAX_SEGMENTS {
        m.chain(filled(&pool, b"x")).unwrap();
    }
    assert_eq!((m.nb_segs(), m.pkt_len()), (255, 255));
    let refused = m.chain(filled(&pool, b"y")).unwrap_err();
    assert_eq!((refused.data(), m.nb_segs(), m.pkt_len()), (&b"y"[..], 255, 255));
    m.reset();
    assert_eq!((m.nb_segs(), m.pkt_len(), pool.stats().in_use), (1, 0, 2));
}

#[test]
fn clones_share_data_and_make_it_read_only() {
    let pool = pool(4);
    pool_tests::stamp(&pool, PoolKeys { region_iova: 0x7000_0000, lkey: 9, domain: 3 }).unwrap();
    let mut cache = pool.cache();
    let mut m = filled(&pool, b"shared");
    m.set_flags(OlFlags::TX_TSO);
    let lengths = TxLengths { l2_len: 14, l3_len: 20, l4_len: 20, tso_mss: 1460 };
    m.set_tx_lengths(lengths);
    let mut c = m.clone_ref(&mut cache).unwrap();
    assert_eq!((c.data().as_ptr(), c.data()), (m.data().as_ptr(), &b"shared"[..]));
    assert_eq!((c.data_iova(), c.lkey(), c.pkt_len()), (m.data_iova(), 9, 6));
    assert_eq!((c.flags(), c.tx_lengths()), (OlFlags::TX_TSO, lengths));
    assert_eq!((m.ref_count(), c.ref_count()), (2, 2));
    for shared in [&mut m, &mut c] {
        assert!(!shared.is_writable() && !shared.is_simple_of(&pool));
        assert!(shared.data_mut().is_none());
        assert!(shared.append(1).is_none() && shared.prepend(1).is_none());
    }
    // Lengths are each one's own.
    assert!(c.adj(2) && c.trim(1));
    assert_eq!((c.data(), m.data()), (&b"are"[..], &b"shared"[..]));
    let d = c.clone_ref(&mut cache).unwrap();
    assert_eq!((d.data(), d.ref_count()), (&b"are"[..], 3));
    drop(c);
    assert_eq!((m.ref_count(), d.data()), (2, &b"are"[..]));
    drop(d);
    assert!(m.is_writable() && m.is_simple_of(&pool));
    m.data_mut().unwrap()[0] = b'S';
    drop(m);
    drop(cache);
    assert_eq!(pool.stats().shared, 4);
    // The clones' headers have their own rooms back.
    let mut rooms: Vec<_> = (0..4).map(|_| pool.get().unwrap()).map(|m| m.data_iova()).collect();
    rooms.sort_unstable();
    // Behind 32 bytes of headroom.
    assert_eq!(rooms, [0x7000_0020, 0x7000_0120, 0x7000_0220, 0x7000_0320]);
}

#[test]
fn a_clone_outlives_its_original_and_may_then_write() {
    let pool = pool(3);
    let mut cache = pool.cache();
    let m = filled(&pool, b"shared");
    let mut c = m.clone_ref(&mut cache).unwrap();
    drop(m);
    assert_eq!((pool.stats().in_use, c.ref_count()), (2, 1));
    c.data_mut().unwrap()[5] = b'D';
    assert_eq!(c.data(), b"shareD");
    c.append(1).unwrap()[0] = b'!';
    let d = c.clone_ref(&mut cache).unwrap();
    assert!(c.data_mut().is_none());
    drop(c);
    assert_eq!(d.data(), b"shareD!");
    cache.put(d);
    assert_eq!(pool.stats().in_use, 0);
}

#[test]
fn a_clone_of_a_chain_shares_all_of_it() {
    let (data, clones) = (pool(2), pool(3));
    let mut cache = clones.cache();
    let mut m = filled(&data, b"one");
    m.chain(filled(&data, b"two")).unwrap();
    let c = m.clone_ref(&mut cache).unwrap();
    assert_eq!((c.nb_segs(), c.pkt_len(), whole(&c)), (2, 6, b"onetwo".to_vec()));
    // One header is left, and two are needed.
    assert!(m.clone_ref(&mut cache).is_none());
    assert_eq!((clones.stats().in_use, clones.stats().exhausted, m.ref_count()), (2, 1, 2));
    drop(m);
    assert_eq!((data.stats().in_use, whole(&c)), (2, b"onetwo".to_vec()));
    drop(c);
    assert_eq!((data.stats().in_use, clones.stats().in_use), (0, 0));
}

#[test]
fn a_clone_in_another_pool_keeps_the_first_pool_alive() {
    let (data, clones) = (pool(1), pool(1));
    let region = Arc::clone(data.region());
    let mut cache = clones.cache();
    let m = filled(&data, b"alive");
    let c = m.clone_ref(&mut cache).unwrap();
    drop((m, data));
    assert_eq!((Arc::strong_count(&region), c.data()), (2, &b"alive"[..]));
    cache.put(c);
    assert_eq!(Arc::strong_count(&region), 1);
}

static FREED: AtomicUsize = AtomicUsize::new(0);

/// Frees the boxed bytes, and counts in the counter that `opaque` is.
unsafe fn free_boxed(ptr: NonNull<u8>, opaque: usize) {
    // SAFETY: made by `external` with this length.
    drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(ptr, 100).as_ptr()) });
    assert_eq!(opaque, 0x5eed);
    FREED.fetch_add(1, SeqCst);
}

fn external() -> ExternalBuffer {
    let bytes: Box<[u8]> = (0..100).collect();
    let ptr = NonNull::from(Box::leak(bytes)).cast();
    let free = free_boxed as unsafe fn(NonNull<u8>, usize);
    let (domain, is_foreign, opaque) = (4, false, 0x5eed);
    ExternalBuffer {
        ptr,
        len_bytes: 100,
        iova: 0xe000,
        lkey: 0xe,
        domain,
        is_foreign,
        free,
        opaque,
    }
}

/// All that concerns external buffers in one test, since they count in one counter.
#[test]
fn an_external_buffer_is_freed_exactly_once() {
    let pool = pool(8);
    pool_tests::stamp(&pool, PoolKeys { region_iova: 0x1000, lkey: 1, domain: 3 }).unwrap();
    let mut cache = pool.cache();
    let mut m = pool.get().unwrap();
    let own = (m.room_address(), m.lkey(), m.room_bytes());
    // SAFETY: the bytes are leaked until `free_boxed`.
    unsafe { m.attach_external(external()) }.unwrap();
    assert_eq!((m.data_iova(), m.lkey(), m.pkt_len()), (0xe000, 0xe, 100));
    assert_eq!((m.headroom(), m.tailroom(), m.data()[99]), (0, 0, 99));
    assert!(m.adj(10) && m.is_writable() && !m.is_simple_of(&pool));
    m.prepend(10).unwrap().fill(0xaa);
    assert_eq!((m.data()[9], m.data()[10]), (0xaa, 10));

    // Refused: attached already. Nothing is freed for it.
    let second = external();
    // SAFETY: as above.
    let back = unsafe { m.attach_external(second) }.unwrap_err();
    assert_eq!((back.ptr, FREED.load(SeqCst)), (second.ptr, 0));

    let c = m.clone_ref(&mut cache).unwrap();
    assert_eq!((c.data_iova(), c.lkey(), m.is_writable()), (0xe000, 0xe, false));
    cache.put(m);
    assert_eq!((FREED.load(SeqCst), c.data()[50]), (0, 50));
    drop(c);
    assert_eq!((FREED.load(SeqCst), pool.stats().in_use), (1, 0));

    // By way of a cache, and as a later segment.
    let mut ext = pool.get().unwrap();
    // SAFETY: as above; `second` was refused, so it is still ours.
    unsafe { ext.attach_external(second) }.unwrap();
    let mut m = filled(&pool, b"header");
    m.chain(ext).unwrap();
    assert_eq!((m.pkt_len(), m.nb_segs()), (106, 2));
    cache.put(m);
    assert_eq!((FREED.load(SeqCst), pool.stats().in_use), (2, 0));

    // Refused: shared, chained, out of range.
    let mut shared = pool.get().unwrap();
    let clone = shared.clone_ref(&mut cache).unwrap();
    let ext = external();
    // SAFETY: as above, for all of these.
    unsafe {
        assert!(shared.attach_external(ext).is_err());
        drop(clone);
        shared.chain(pool.get().unwrap()).unwrap();
        assert!(shared.attach_external(ext).is_err());
        drop(shared.take_next());
        for len_bytes in [0, 65536] {
            assert!(shared.attach_external(ExternalBuffer { len_bytes, ..ext }).is_err());
        }
        shared.attach_external(ext).unwrap();
        shared.reset();
        assert_eq!((shared.headroom(), shared.tailroom(), shared.pkt_len()), (0, 100, 0));
        std::thread::spawn(|| drop(shared)).join().unwrap();
    }
    assert_eq!(FREED.load(SeqCst), 3);
    cache.flush();
    let all: Vec<_> = (0..8).map(|_| pool.get().unwrap()).collect();
    assert!(all.iter().any(|m| (m.room_address(), m.lkey(), m.room_bytes()) == own));
    assert!(all.iter().all(|m| m.lkey() == 1 && m.room_bytes() == 256 && m.headroom() == 32));
}

#[test]
fn holders_of_one_buffer_are_limited() {
    let max = if cfg!(miri) { return } else { usize::from(crate::refcount::MAX_REFS) };
    let pool = pool(max + 1);
    let mut cache = pool.cache();
    let m = filled(&pool, b"popular");
    let clones: Vec<_> = (1..max).map(|_| m.clone_ref(&mut cache).unwrap()).collect();
    assert_eq!(m.ref_count(), 16383);
    let in_use = pool.stats().in_use;
    assert!(m.clone_ref(&mut cache).is_none() && clones[7].clone_ref(&mut cache).is_none());
    assert_eq!((m.ref_count(), pool.stats().in_use), (16383, in_use));
    drop(clones);
    assert!(m.is_writable());
}

#[test]
fn clones_may_be_dropped_on_any_thread() {
    let pool = pool(9);
    let mut cache = pool.cache();
    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
        let m = filled(&pool, b"everywhere");
        let clones: Vec<_> = (0..3).map(|_| m.clone_ref(&mut cache).unwrap()).collect();
        std::thread::scope(|scope| {
            for c in clones {
                scope.spawn(move || assert_eq!(c.data(), b"everywhere"));
            }
            drop(m);
        });
        assert_eq!(pool.stats().in_use, 0);
    }
}
