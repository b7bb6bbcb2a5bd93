//! Rings and words: literal bytes, masks, wraps, bounds.

use std::sync::Arc;

use ferrocx_bus::local::{self, DeviceSide, LocalConfig};
use ferrocx_bus::{
    BusError, DmaAccess, DmaBuf, DmaHeap, Line, MAX_ALIGN_BYTES, Ring, Transport, WideStores,
};
use ferrocx_mempool::{Region, RegionConfig};

/// A buffer of `len_bytes`, with the device that sees it.
fn buffer(len_bytes: usize) -> (Arc<DmaBuf>, DeviceSide) {
    let (heap, device) = heap(len_bytes);
    (Arc::new(heap.alloc(len_bytes, 64).expect("room")), device)
}

/// A heap of a page or `len_bytes`, with the device that sees it.
fn heap(len_bytes: usize) -> (DmaHeap, DeviceSide) {
    let config = LocalConfig { bar_len_bytes: 64 << 10, ..LocalConfig::default() };
    let (driver, device) = local::pair(config).expect("valid");
    let region = Region::alloc(&RegionConfig::heap(len_bytes.max(4096))).expect("heap memory");
    let mapping = driver.dma().map(region, DmaAccess::ReadWrite).expect("mapped");
    (DmaHeap::new(mapping), device)
}

#[test]
fn be_and_raw_words_have_these_bytes() {
    let (buf, _device) = buffer(256);
    let ring = Ring::<64>::new(Arc::clone(&buf), 0, 2).expect("fits");
    let slot = ring.at(1);
    slot.store_be32::<4>(0x0102_0304);
    slot.store_be64::<8>(0x1112_1314_1516_1718);
    slot.store_raw64::<16>(u64::from_ne_bytes([0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]));
    slot.store_release_be32::<0x3c>(0xa0b0_c0d1);
    let mut bytes = [0; 256];
    buf.copy_out(0, &mut bytes);
    let mut expected = [0; 256];
    expected[68..72].copy_from_slice(&[1, 2, 3, 4]);
    expected[72..80].copy_from_slice(&[0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
    expected[80..88].copy_from_slice(&[0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28]);
    expected[124..128].copy_from_slice(&[0xa0, 0xb0, 0xc0, 0xd1]);
    assert_eq!(bytes, expected);
    assert_eq!(slot.load_be32::<4>(), 0x0102_0304);
    assert_eq!(slot.load_raw32::<4>().to_ne_bytes(), [1, 2, 3, 4]);
    assert_eq!(slot.load_be64::<8>(), 0x1112_1314_1516_1718);
    assert_eq!(slot.load_raw64::<16>().to_ne_bytes()[0], 0x21);
    assert_eq!(slot.load_acquire_be32::<0x3c>(), 0xa0b0_c0d1);
    assert_eq!(slot.load_acquire_u8::<0x3c, 0>(), 0xa0);
    assert_eq!(slot.load_acquire_u8::<0x3c, 3>(), 0xd1);
    assert_eq!(slot.load()[..], expected[64..128]);
}

#[test]
fn whole_and_partial_entries_are_stored_in_place() {
    let (buf, _device) = buffer(128);
    buf.fill(0xa5);
    let ring = Ring::<64>::new(Arc::clone(&buf), 0, 1).expect("fits");
    let entry: [u8; 64] = std::array::from_fn(|i| u8::try_from(i + 1).expect("small"));
    ring.at(1).store(&entry);
    ring.at(0).store_at::<16, 8>(&[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut bytes = [0; 128];
    buf.copy_out(0, &mut bytes);
    assert_eq!(bytes[64..], entry);
    assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert!(bytes[..16].iter().chain(&bytes[24..64]).all(|&b| b == 0xa5));
}

#[test]
fn any_index_is_masked() {
    let (buf, _device) = buffer(4 * 16);
    let ring = Ring::<16>::new(buf, 0, 2).expect("fits");
    assert_eq!(ring.entries(), 4);
    for i in 0..4 {
        ring.at(i).store_be32::<0>(i);
    }
    for index in [0_u32, 3, 4, 7, 0x7fff_ffff, 0x8000_0000, u32::MAX - 1, u32::MAX] {
        assert_eq!(ring.at(index).load_be32::<0>(), index % 4, "{index:#x}");
    }
}

#[test]
fn a_ring_of_one_entry_is_that_entry() {
    let (buf, _device) = buffer(64);
    let ring = Ring::<64>::new(buf, 0, 0).expect("fits");
    assert_eq!(ring.entries(), 1);
    ring.at(u32::MAX).store_be32::<0>(9);
    assert_eq!(ring.at(0).load_be32::<0>(), 9);
}

#[test]
fn rings_share_a_buffer_at_offsets() {
    let (buf, device) = buffer(512);
    let rq = Ring::<16>::new(Arc::clone(&buf), 0, 4).expect("fits");
    let sq = Ring::<64>::new(Arc::clone(&buf), 256, 2).expect("fits");
    assert_eq!(sq.iova(), buf.iova() + 256);
    assert!(Arc::ptr_eq(rq.buf(), &buf));
    sq.at(0).store_be32::<0>(0x5151);
    assert_eq!(device.memory().read_be32(buf.iova() + 256), Ok(0x5151));
    assert_eq!(rq.at(15).load_be64::<8>(), 0);
}

#[test]
fn rings_that_do_not_fit_are_refused() {
    let (buf, _device) = buffer(256);
    let ring = |offset, log| Ring::<64>::new(Arc::clone(&buf), offset, log).map(|r| r.entries());
    assert_eq!(ring(0, 2).expect("exactly fits"), 4);
    assert_eq!(ring(192, 0).expect("exactly fits"), 1);
    for (offset, log) in [(8, 2), (0, 3), (200, 0), (256, 0), (usize::MAX, 0), (4, 1), (0, 23)] {
        let refused = ring(offset, log);
        assert!(matches!(refused, Err(BusError::OutOfRange { .. })), "{offset} {log}");
    }
}

#[test]
fn buffers_refuse_accesses_past_their_end() {
    let (buf, _device) = buffer(100);
    let panics =
        |access: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(access)).is_err();
    assert!(!panics(&|| buf.copy_in(92, &[0; 8])));
    assert!(panics(&|| buf.copy_in(93, &[0; 8])));
    assert!(panics(&|| buf.copy_in(usize::MAX, &[0; 8])));
    assert!(panics(&|| buf.copy_out(100, &mut [0; 1])));
    assert!(!panics(&|| buf.copy_out(100, &mut [])));
    assert!(!panics(&|| buf.store_be32(96, 1)));
    assert!(panics(&|| buf.store_be32(97, 1)));
    assert!(panics(&|| buf.store_be32(100, 1)));
    assert!(panics(&|| buf.store_be64(4, 1)));
    assert!(!panics(&|| assert_eq!(buf.load_acquire_u8(99), 1)));
    assert!(panics(&|| assert_eq!(buf.load_acquire_u8(100), 0)));
}

#[test]
fn bad_lengths_and_alignments_are_refused() {
    let (heap, _device) = heap(64);
    for (len, align) in [(0, 64), (usize::MAX, 64), (64, 0), (64, 3), (64, 2 * MAX_ALIGN_BYTES)] {
        let refused = heap.alloc(len, align);
        assert!(matches!(refused, Err(BusError::OutOfRange { .. })), "{len} {align}");
    }
    assert!(matches!(heap.alloc(4097, 64), Err(BusError::HeapExhausted { .. })));
}

#[test]
fn spans_end_with_the_ring_and_pieces_with_the_entry() {
    let (buf, _device) = buffer(256);
    let ring = Ring::<64>::new(Arc::clone(&buf), 0, 2).expect("fits");
    let lens = [(0, 9), (3, 9), (4, 2), (u32::MAX, 5), (6, 0)].map(|(index, most)| {
        let span = ring.view().span(index, most);
        assert!(span.get(span.len()).is_none() && span.get(usize::MAX).is_none());
        span.len()
    });
    assert_eq!(lens, [4, 1, 2, 1, 0]);
    ring.view().span(5, 3).get(2).expect("the last").store_be32::<0>(0x0102_0304);
    let mut bytes = [0; 256];
    buf.copy_out(0, &mut bytes);
    assert_eq!(bytes[192..196], [1, 2, 3, 4], "entry 7 of 4 is number 3");
    let entry = ring.at(3);
    assert_eq!(entry.piece::<16>(0).expect("inside").load_be32::<0>(), 0x0102_0304);
    entry.piece::<16>(3).expect("the last").store_be32::<12>(5);
    assert_eq!(entry.load_be32::<60>(), 5);
    assert!(entry.piece::<16>(4).is_none() && entry.piece::<16>(usize::MAX).is_none());
}

#[test]
fn a_line_ends_where_its_entries_or_the_ring_do() {
    let (buf, _side) = buffer(8 * 64);
    let mut line = Line::<64, 192>::new(Ring::new(Arc::clone(&buf), 0, 3).unwrap());
    assert!(line.next().is_none(), "none was begun");
    // Three entries from the sixth on are the last; a request of two entries, then there is none.
    assert!(line.start(8 + 4, 100, true));
    line.next().unwrap().store_raw64::<0>(u64::from_ne_bytes([1; 8]));
    line.advance(1);
    line.next().unwrap().store_raw64::<184>(u64::from_ne_bytes([2; 8]));
    line.advance(1);
    assert!(line.next().is_none());
    let ring = Ring::<64>::new(Arc::clone(&buf), 0, 3).unwrap();
    assert_eq!((ring.at(4).load()[..9].to_vec()), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
    assert_eq!(ring.at(7).load()[55..], [0, 2, 2, 2, 2, 2, 2, 2, 2]);
    // Fewer entries than the ring has.
    assert!(line.start(0, 3, false) && line.next_wide().is_none());
    line.advance(2);
    assert!(line.next().is_some());
    line.advance(1);
    assert!(line.next().is_none());
    assert!(!line.start(0, 0, true) && line.next().is_none());
    assert!(line.start(1, 1, true) && line.next().is_some());
    assert_eq!(line.next_wide().is_some(), WideStores::detect().is_some());
    line.stop();
    assert!(line.next().is_none() && line.next_wide().is_none());
    // A ring that is shorter than what a line wants.
    let mut line = Line::<64, 192>::new(Ring::new(buf, 0, 1).unwrap());
    assert!(!line.start(0, 2, true) && line.next().is_none());
}

#[test]
fn wide_stores_copy_what_fits_and_nothing_behind() {
    let Some(wide) = WideStores::detect() else {
        println!("skipped: no wide stores");
        return;
    };
    let (buf, _side) = buffer(8 * 64);
    let ring = Ring::<64>::new(buf, 0, 3).unwrap();
    let pieces: [[u8; 32]; 12] = std::array::from_fn(|at| [at as u8 + 1; 32]);
    for count in 0..=12 {
        (0..8).for_each(|at| ring.at(at).store(&[0xa5; 64]));
        ring.view().run::<320>(1).unwrap().copy_wide(wide, &pieces[..count]);
        let all: Vec<u8> = (0..8).flat_map(|at| ring.at(at).load()).collect();
        let copied = 32 * count.min(10);
        assert!(all[..64].iter().all(|byte| *byte == 0xa5));
        assert_eq!(all[64..][..copied], pieces.as_flattened()[..copied], "{count}");
        assert!(all[64 + copied..].iter().all(|byte| *byte == 0xa5), "{count}");
    }
}

#[test]
fn copies_of_any_length_stay_inside_of_it_and_of_the_ring() {
    const BYTES: usize = 1024;
    let (buf, _device) = buffer(BYTES);
    let ring = Ring::<64>::new(Arc::clone(&buf), 0, 4).expect("fits");
    let data: [u8; BYTES] = std::array::from_fn(|i| u8::try_from(i % 251 + 1).expect("small"));
    // Miri is slow: of each alignment, and of runs that cross the end, a few.
    for len in (0..=600).step_by(if cfg!(miri) { 43 } else { 1 }) {
        // At any address; up to the end of the ring, and one byte past it.
        for at in [0, 20, BYTES - len, BYTES + 1 - len] {
            buf.fill(0);
            let fits = len >= 16 && at + len <= BYTES;
            let position = u32::try_from(at).expect("small");
            assert_eq!(ring.view().copy_bytes(position, &data[..len]), fits, "{len} at {at}");
            let (mut bytes, mut expected) = ([0; BYTES], [0; BYTES]);
            buf.copy_out(0, &mut bytes);
            if fits {
                expected[at..at + len].copy_from_slice(&data[..len]);
            }
            assert!(bytes == expected, "{len} bytes at {at}");
        }
    }
}
