//! The edges of `layout!`: what it refuses, what it cuts off, what it prints.

#![forbid(unsafe_code)]

use ferrocx_prm::layout::{Bits, Bytes, Field, Layout, check, first_reserved};
use ferrocx_prm::{Hexdump, layout};

layout! {
    /// One of each kind of field.
    pub struct Sample [0x20] {
        0x00 [31] top "The top bit of a word.";
        0x00 [18:13] middle "A field across a byte boundary.";
        0x00 [0] low "The lowest bit of a word.";
        0x04 [31:0] word "A whole word.";
        0x0c (u64) address "Eight bytes that do not start at a multiple of eight.";
        0x14 ([u8; 4]) bytes "Bytes.";
        0x18 (Inner) inner "Another layout.";
    }

    /// Embedded in [`Sample`].
    pub struct Inner [0x8] {
        0x04 [15:4] number "A field in the second word.";
    }
}

#[test]
fn every_kind_of_field_has_its_bytes() {
    let sample = Sample::zeroed()
        .with_top(true)
        .with_middle(0b10_1101)
        .with_low(true)
        .with_word(0x0102_0304)
        .with_address(0x1112_1314_1516_1718)
        .with_bytes([0x21, 0x22, 0x23, 0x24])
        .with_inner(Inner::zeroed().with_number(0xabc));
    #[rustfmt::skip]
    let expected = [
        0x80, 0x05, 0xa0, 0x01, 0x01, 0x02, 0x03, 0x04,
        0x00, 0x00, 0x00, 0x00, 0x11, 0x12, 0x13, 0x14,
        0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xab, 0xc0,
    ];
    assert_eq!(sample.0, expected);
    let read = Sample::read_from(&expected).unwrap();
    assert!(read.top() && read.low());
    assert_eq!((read.middle(), read.word()), (0b10_1101, 0x0102_0304));
    assert_eq!(read.address(), 0x1112_1314_1516_1718);
    assert_eq!(read.bytes(), [0x21, 0x22, 0x23, 0x24]);
    assert_eq!(read.inner().number(), 0xabc);
    assert_eq!(first_reserved(&read), None);
}

#[test]
fn bits_beyond_a_field_are_cut_off() {
    for (value, kept) in [(0, 0), (1, 1), (0x3f, 0x3f), (0x40, 0), (0x41, 1), (u32::MAX, 0x3f)] {
        let sample = Sample::zeroed().with_middle(value);
        assert_eq!(sample.middle(), kept);
        assert_eq!(first_reserved(&sample), None, "{value:#x} spilled");
        assert!(!sample.top() && !sample.low());
    }
    assert_eq!(Sample::zeroed().with_word(u32::MAX).word(), u32::MAX);
    // A field is replaced, not merged into what was there.
    assert_eq!(Sample::zeroed().with_middle(0x3f).with_middle(0x01).middle(), 0x01);
    assert!(!Sample::zeroed().with_top(true).with_top(false).top());
}

#[test]
fn read_and_write_reach_both_ends_of_a_word() {
    let mut bytes = [0; 8];
    Bits::new(4, 31, 31).write(&mut bytes, 1);
    Bits::new(4, 0, 0).write(&mut bytes, 1);
    assert_eq!(bytes, [0, 0, 0, 0, 0x80, 0, 0, 1]);
    Bits::new(0, 31, 0).write(&mut bytes, 0xfeed_beef);
    assert_eq!(Bits::new(0, 31, 0).read(&bytes), 0xfeed_beef);
    assert_eq!(Bits::new(4, 31, 0).read(&bytes), 0x8000_0001);
    assert_eq!(Bits::new(0, 15, 8).read(&bytes), 0xbe);
}

#[test]
fn a_constant_says_where_its_field_is() {
    assert_eq!(Sample::TOP, Bits { offset: 0x00, hi: 31, lo: 31 });
    assert_eq!(Sample::MIDDLE, Bits { offset: 0x00, hi: 18, lo: 13 });
    assert_eq!(Sample::WORD, Bits { offset: 0x04, hi: 31, lo: 0 });
    assert_eq!(Sample::ADDRESS, Bytes { offset: 0x0c, len: 8 });
    assert_eq!(Sample::BYTES.range(), 0x14..0x18);
    assert_eq!(Sample::INNER.range(), 0x18..0x20);
    assert_eq!((Sample::MIDDLE.shift(), Sample::MIDDLE.mask()), (13, 0x0007_e000));
    assert_eq!(Sample::WORD.mask(), u32::MAX);
    // As a constant argument, which is how the hot path uses it.
    fn word<const OFFSET: usize>(bytes: &[u8]) -> u32 {
        u32::from_be_bytes(bytes[OFFSET..][..4].try_into().unwrap())
    }
    let sample = Sample::zeroed().with_top(true).with_middle(0x2d);
    assert_eq!(Sample::MIDDLE.get(word::<{ Sample::MIDDLE.offset }>(&sample.0)), 0x2d);
    assert_eq!(Sample::TOP.mask() | Sample::MIDDLE.of(0x2d), word::<0>(&sample.0));
}

/// Every place that a word has, bit for bit against a loop over bits.
#[test]
fn every_place_of_a_word_is_masked_and_shifted() {
    for (hi, lo) in (0..32).flat_map(|hi| (0..=hi).map(move |lo| (hi, lo))) {
        let place = Bits::new(8, hi, lo);
        let mask: u32 = (lo..=hi).map(|bit| 1 << bit).sum();
        assert_eq!((place.mask(), place.shift()), (mask, lo), "[{hi}:{lo}]");
        let field = place.field("field");
        assert_eq!(field.first_bit, 8 * 8 + 31 - hi as usize, "[{hi}:{lo}]");
        assert_eq!(field.width_bits, (hi - lo + 1) as usize, "[{hi}:{lo}]");
        for word in [0, u32::MAX, 0xdead_beef, 0x0123_4567] {
            let value = (lo..=hi).map(|bit| (word >> bit & 1) << (bit - lo)).sum();
            assert_eq!(place.get(word), value, "[{hi}:{lo}] of {word:#x}");
            assert_eq!(place.of(value), word & mask, "[{hi}:{lo}] of {word:#x}");
            assert_eq!(place.of(value | !(u32::MAX >> (31 - (hi - lo)))), word & mask);
        }
    }
}

#[test]
fn embedded_layouts_check_their_own_reserved_bits() {
    let mut bytes = [0; 0x20];
    bytes[0x1f] = 0x0f;
    let found = first_reserved(&Sample::read_from(&bytes).unwrap()).unwrap();
    assert_eq!((found.offset, found.bits), (0x1c, 0x0f));
    assert_eq!(found.to_string(), "reserved bits 0x0000000f at offset 0x1c are set");
    // The first word wins.
    bytes[0x09] = 0x80;
    let found = first_reserved(&Sample::read_from(&bytes).unwrap()).unwrap();
    assert_eq!((found.offset, found.bits), (0x08, 0x0080_0000));
}

#[test]
fn debug_prints_names_and_leaves_out_zeros() {
    let sample = Sample::zeroed()
        .with_middle(5)
        .with_address(0x1000)
        .with_inner(Inner::zeroed().with_number(7));
    assert_eq!(
        format!("{sample:?}"),
        "Sample { middle: 0x5 address: 0x1000 inner: { number: 0x7 } }"
    );
    assert_eq!(format!("{:?}", Sample::zeroed()), "Sample { }");
}

#[test]
fn hexdump_prints_as_the_kernel_does() {
    let bytes: Vec<u8> = (0..20).collect();
    assert_eq!(
        Hexdump(&bytes).to_string(),
        "000: 00010203 04050607 08090a0b 0c0d0e0f\n010: 10111213\n"
    );
    assert_eq!(Hexdump(&[]).to_string(), "");
}

fn field(first_bit: usize, width_bits: usize) -> Field {
    Field { name: "field", first_bit, width_bits, nested: &[] }
}

#[test]
fn a_table_that_fits_is_accepted() {
    check(8, &[field(0, 32), field(32, 31), field(63, 1)]);
    check(4, &[]);
}

#[test]
#[should_panic(expected = "two fields overlap")]
fn overlap_is_refused() {
    check(8, &[field(0, 17), field(40, 3), field(16, 16)]);
}

#[test]
#[should_panic(expected = "field past the end")]
fn a_field_past_the_end_is_refused() {
    check(8, &[field(33, 32)]);
}

#[test]
#[should_panic(expected = "whole number of 32-bit words")]
fn a_size_that_is_no_word_multiple_is_refused() {
    check(6, &[]);
}

#[test]
#[should_panic(expected = "a bit above 31")]
fn a_bit_above_31_is_refused() {
    Bits::new(0, 32, 0);
}

#[test]
#[should_panic(expected = "high bit below low bit")]
fn swapped_bits_are_refused() {
    Bits::new(0, 3, 4);
}

#[test]
#[should_panic(expected = "relative to a 32-bit word")]
fn an_odd_offset_is_refused() {
    Bits::new(2, 15, 0);
}

#[test]
#[should_panic(expected = "out of range")]
fn writing_to_too_few_bytes_panics() {
    Sample::zeroed().write_to(&mut [0; 0x1f]);
}
