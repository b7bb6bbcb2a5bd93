//! Pieces of packets, whose keys they carry, and lists of pages; all of it runs under Miri.
#![expect(unsafe_code, reason = "external buffers")]

use std::ptr::NonNull;

use crate::{
    ExternalBuffer, Mbuf, Pages, PagesError, Piece, Pool, PoolConfig, PoolKeys, RegionConfig,
    pool_tests::{self, stamp, unstamp},
};

/// A stamped pool of four rooms of 256 bytes, 32 of them headroom.
fn stamped(region_iova: u64, lkey: u32, domain: u32) -> Pool {
    let pool = pool_tests::pool(4, 4);
    stamp(&pool, PoolKeys { region_iova, lkey, domain }).unwrap();
    pool
}

fn filled(pool: &Pool, bytes: &[u8]) -> Mbuf {
    let mut m = pool.get().unwrap();
    assert!(m.extend_from_slice(bytes));
    m
}

fn pieces(mbuf: &Mbuf) -> Vec<Piece> {
    mbuf.pieces().collect()
}

#[test]
fn a_packet_is_a_piece_for_each_segment_with_data() {
    let (a, b) = (stamped(0x7000_0000, 0x0102_0304, 5), stamped(0x10_0000, 0xb, 6));
    let mut m = filled(&a, b"head");
    assert!(m.adj(1));
    m.chain(filled(&b, b"")).unwrap();
    m.chain(filled(&b, b"payload")).unwrap();
    let [head, tail] = pieces(&m)[..] else { panic!("{m:?}") };
    let a_base = a.region().as_ptr().addr();
    let expected = Piece {
        address: head.address,
        len_bytes: 3,
        iova: 0x7000_0000 + (head.address - a_base) as u64,
        lkey_be: u32::from_ne_bytes([1, 2, 3, 4]),
        domain: 5,
        is_foreign: false,
    };
    assert_eq!(head, expected);
    assert_eq!((head.address - a_base) % 256, 33, "headroom, and one byte cut off");
    assert_eq!((tail.len_bytes, tail.lkey_be.to_ne_bytes(), tail.domain), (7, [0, 0, 0, 0xb], 6));
    assert_eq!(tail.at(0x9000), Piece { iova: 0x9000, ..tail });
    assert!(pieces(&filled(&a, b"")).is_empty());
}

#[test]
fn clones_carry_the_domain_of_their_data() {
    let (data, headers) = (stamped(0, 1, 5), stamped(0, 2, 6));
    let mut cache = headers.cache();
    let m = filled(&data, b"shared");
    assert!(m.is_exclusive());
    let c = m.clone_ref(&mut cache).unwrap();
    assert_eq!(pieces(&c), pieces(&m));
    assert_eq!(pieces(&c)[0].domain, 5);
    assert!(!m.is_exclusive() && !c.is_exclusive());
    let cc = c.clone_ref(&mut cache).unwrap();
    drop((m, c));
    assert_eq!((pieces(&cc)[0].domain, cc.is_exclusive()), (5, true));
    drop(cc);
    let own = filled(&headers, b"own");
    assert_eq!(pieces(&own)[0].domain, 6);
}

#[test]
fn a_domain_is_withdrawn_from_buffers_that_are_out() {
    let pool = stamped(0x1000, 7, 5);
    let keys = pool.keys().unwrap();
    let m = filled(&pool, b"out");
    assert!(unstamp(&pool).is_err());
    let withdrawn = PoolKeys { domain: 0, ..keys };
    assert_eq!((pool.keys(), pieces(&m)[0].domain), (Some(withdrawn), 0));
    assert_eq!(m.lkey(), 7, "the header is its holder's");
    assert!(stamp(&pool, PoolKeys { lkey: 8, domain: 6, ..keys }).is_err());
    stamp(&pool, PoolKeys { domain: 6, ..keys }).unwrap();
    assert_eq!(pieces(&m)[0].domain, 6);
    assert!(stamp(&pool, keys).is_err(), "another domain's by now");
    drop(m);
    unstamp(&pool).unwrap();
    unstamp(&pool).unwrap();
    assert_eq!((pool.keys(), pieces(&filled(&pool, b"x"))[0].domain), (None, 0));
}

unsafe fn keep(_: NonNull<u8>, _: usize) {}

#[test]
fn external_buffers_bring_their_domain_and_may_be_foreign() {
    let pool = stamped(0x1000, 7, 5);
    let mut cache = pool.cache();
    let bytes: &'static mut [u8] = Box::leak(Box::from(*b"external"));
    let base = NonNull::from(&mut *bytes).cast::<u8>();
    for is_foreign in [false, true] {
        let buffer = ExternalBuffer {
            ptr: base,
            len_bytes: 8,
            iova: 0xe000,
            lkey: 0xe,
            domain: 9,
            is_foreign,
            free: keep,
            opaque: 0,
        };
        let mut m = pool.get().unwrap();
        // SAFETY: leaked, and used through this packet only.
        unsafe { m.attach_external(buffer) }.unwrap();
        let expected = Piece {
            address: base.addr().get(),
            len_bytes: 8,
            iova: 0xe000,
            lkey_be: 0xe_u32.to_be(),
            domain: 9,
            is_foreign,
        };
        assert_eq!(pieces(&m), [expected]);
        let clone = m.clone_ref(&mut cache).unwrap();
        assert_eq!((pieces(&clone), m.data_mut().is_none()), (vec![expected], true));
        drop(clone);
        assert_eq!((m.is_exclusive(), m.data_mut().is_some()), (true, !is_foreign));
        let mut out = [0; 8];
        assert!(m.read(0, &mut out));
        assert_eq!(&out, b"external");
        drop(m);
        assert_eq!(pieces(&filled(&pool, b"x"))[0].domain, 5);
        assert!(!pool.get().unwrap().is_foreign());
    }
    // SAFETY: the packets are gone.
    drop(unsafe { Box::from_raw(NonNull::slice_from_raw_parts(base, 8).as_ptr()) });
}

#[test]
fn a_device_fills_the_tail_and_the_packet_grows() {
    let pool = stamped(0x1000, 7, 5);
    let mut m = filled(&pool, b"head");
    m.chain(filled(&pool, b"ta")).unwrap();
    let tails: Vec<Piece> = m.tail_pieces().collect();
    let [tail] = tails[..] else { panic!("{tails:?}") };
    let last = pieces(&m)[1];
    assert_eq!((tail.address, tail.iova), (last.address + 2, last.iova + 2));
    assert_eq!((tail.len_bytes, tail.lkey_be, tail.domain), (222, 7_u32.to_be(), 5));
    // The device's part.
    m.append(2).unwrap().copy_from_slice(b"il");
    assert!(m.trim(2));
    assert!(m.grow(2) && !m.grow(221));
    assert_eq!((m.pkt_len(), pieces(&m)[1].len_bytes), (8, 4));
    let mut out = [0; 8];
    assert!(m.read(0, &mut out));
    assert_eq!(&out, b"headtail");
    assert!(m.grow(220) && m.grow(0) && !m.grow(1));
    assert_eq!(m.tail_pieces().next(), None);
}

#[test]
fn a_device_fills_the_segments_of_a_chain_one_after_the_other() {
    let pool = stamped(0x1000, 7, 5);
    let mut m = filled(&pool, b"first");
    for bytes in [&b"second"[..], b"", b""] {
        m.chain(filled(&pool, bytes)).unwrap();
    }
    let rooms = |m: &Mbuf| m.tail_pieces().map(|piece| piece.len_bytes).collect::<Vec<_>>();
    assert_eq!(rooms(&m), [218, 224, 224], "the first segment is full: data lies behind it");
    let lens = |m: &Mbuf| m.segments().map(|segment| segment.data_len()).collect::<Vec<_>>();
    assert!(!m.grow(218 + 224 + 224 + 1) && m.grow(0));
    assert_eq!((lens(&m), m.pkt_len()), (vec![5, 6, 0, 0], 11));
    assert!(m.grow(218 + 10));
    assert_eq!((lens(&m), m.pkt_len()), (vec![5, 224, 10, 0], 239));
    assert_eq!(rooms(&m), [214, 224]);
    let second = m.segments().nth(1).unwrap().data_iova();
    assert_eq!(m.pieces().nth(1).unwrap().iova, second);
    assert!(m.grow(214 + 224) && !m.grow(1));
    assert_eq!((lens(&m), rooms(&m)), (vec![5, 224, 224, 224], vec![]));
}

#[test]
fn another_device_has_its_own_pages_of_the_same_packet() {
    // Stamped for a NIC that maps the region at 7000_0000; an NVMe device maps it at 5_0000_0000.
    let pool = stamped(0x7000_0000, 7, 5);
    let base = pool.region().as_ptr().addr();
    let mut m = filled(&pool, &[1; 224]);
    m.chain(filled(&pool, &[2; 8])).unwrap();
    let at = |mbuf: &Mbuf, iova: u64| -> Vec<u64> {
        mbuf.pieces().map(|piece| piece.at(iova + (piece.address - base) as u64).iova).collect()
    };
    let nic: Vec<u64> = m.pieces().map(|piece| piece.iova).collect();
    assert_eq!(at(&m, 0x7000_0000), nic);
    let nvme: Vec<u64> = nic.iter().map(|iova| iova - 0x7000_0000 + 0x5_0000_0000).collect();
    assert_eq!(at(&m, 0x5_0000_0000), nvme);
}

fn run(iova: u64, len_bytes: usize) -> Piece {
    Piece { address: 1, len_bytes, iova, lkey_be: 0, domain: 0, is_foreign: false }
}

fn list(runs: &[Piece]) -> Result<(Vec<u64>, usize), PagesError> {
    let pages = Pages::new(runs.iter().copied(), 4096)?;
    let (left, len_bytes) = (pages.len(), pages.len_bytes());
    let pages: Vec<u64> = pages.collect();
    assert_eq!(left, pages.len());
    Ok((pages, len_bytes))
}

#[test]
fn a_list_of_pages_starts_anywhere_and_goes_on_at_borders() {
    let after = |after_bytes| Err(PagesError { after_bytes });
    assert_eq!(list(&[]), Ok((vec![], 0)));
    assert_eq!(list(&[run(0x1ffc, 0)]), Ok((vec![], 0)));
    assert_eq!(list(&[run(0x1ffc, 4)]), Ok((vec![0x1ffc], 4)));
    assert_eq!(list(&[run(0x1ffc, 5)]), Ok((vec![0x1ffc, 0x2000], 5)));
    assert_eq!(list(&[run(0x1000, 0x2001)]), Ok((vec![0x1000, 0x2000, 0x3000], 0x2001)));
    // Two pieces that meet at borders of pages far from each other.
    let far = [run(0x1800, 0x800), run(0, 0), run(0x9000, 0x1000), run(0x4000, 1)];
    assert_eq!(list(&far), Ok((vec![0x1800, 0x9000, 0x4000], 0x1801)));
    // Pieces of one run of addresses, whose pages are listed once.
    let near = [run(0x1f00, 0x10), run(0x1f10, 0x200), run(0x2110, 0xef0), run(0x3000, 8)];
    assert_eq!(list(&near), Ok((vec![0x1f00, 0x2000, 0x3000], 0x1108)));
    // A hole, a piece that ends early, one that starts late.
    assert_eq!(list(&[run(0x1000, 0x10), run(0x1020, 0x10)]), after(0x10));
    assert_eq!(list(&[run(0x1000, 0xfff), run(0x2000, 8)]), after(0xfff));
    assert_eq!(list(&[run(0x1000, 0x1000), run(0x5004, 8)]), after(0x1000));
    assert_eq!(list(&[run(0x1000, 8), run(0x1008, 8), run(0x1000, 8)]), after(16));
    let last = 0_u64.wrapping_sub(0x1000);
    assert_eq!(list(&[run(last + 8, 0xff8)]), Ok((vec![last + 8], 0xff8)));
}

#[test]
fn a_chain_of_page_sized_rooms_is_a_list_of_pages() {
    let config = PoolConfig {
        count: 3,
        data_room_bytes: 8192,
        headroom_bytes: 0,
        region: RegionConfig::heap(0),
        ..PoolConfig::default()
    };
    let pool = Pool::new(&config).unwrap();
    stamp(&pool, PoolKeys { region_iova: 0x40_0000, lkey: 7, domain: 1 }).unwrap();
    let mut m = filled(&pool, &[1; 8192]);
    assert!(m.adj(0x800));
    m.chain(filled(&pool, &[2; 8192])).unwrap();
    m.chain(filled(&pool, &[3; 100])).unwrap();
    let pages: Vec<u64> = m.pages(4096).unwrap().collect();
    assert_eq!(pages, [0x40_0800, 0x40_1000, 0x40_2000, 0x40_3000, 0x40_4000]);
    // The same by another device's mapping of the region.
    let base = pool.region().as_ptr().addr();
    let there = |piece: Piece| piece.at(0x9_0000_0000 + (piece.address - base) as u64);
    let pages: Vec<u64> = Pages::new(m.pieces().map(there), 8192).unwrap().collect();
    assert_eq!(pages, [0x9_0000_0800, 0x9_0000_2000, 0x9_0000_4000]);
    m.chain(filled(&pool_tests::pool(1, 0), b"odd")).unwrap();
    assert_eq!(m.pages(4096).unwrap_err(), PagesError { after_bytes: 14436 });
}

#[test]
#[should_panic(expected = "pages of 3000 bytes")]
fn pages_of_odd_size_are_a_mistake() {
    let _ = list_of(3000);
}

fn list_of(page_bytes: usize) -> Result<usize, PagesError> {
    Pages::new([run(0, 1)], page_bytes).map(|pages| pages.len())
}
