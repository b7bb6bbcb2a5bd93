//! The edges of `layout!`: what it refuses, what it cuts off, what it prints.

#![forbid(unsafe_code)]

use ferrocx_prm::layout::{Field, Layout, check, first_reserved, get_bits, set_bits, span};
use ferrocx_prm::{Hexdump, layout};

layout! {
    /// One of each kind of field.
    pub struct Sample [0x20] {
        /// The top bit of a word.
        0x00 [31] top, with_top;
        /// A field across a byte boundary.
        0x00 [18:13] middle, with_middle;
        /// The lowest bit of a word.
        0x00 [0] low, with_low;
        /// A whole word.
        0x04 [31:0] word, with_word;
        /// Eight bytes that do not start at a multiple of eight.
        0x0c (u64) address, with_address;
        /// Bytes.
        0x14 ([u8; 4]) bytes, with_bytes;
        /// Another layout.
        0x18 (Inner) inner, with_inner;
    }

    /// Embedded in [`Sample`].
    pub struct Inner [0x8] {
        /// A field in the second word.
        0x04 [15:4] number, with_number;
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
fn get_and_set_reach_both_ends_of_a_word() {
    let mut bytes = [0; 8];
    set_bits(&mut bytes, 4, 31, 31, 1);
    set_bits(&mut bytes, 4, 0, 0, 1);
    assert_eq!(bytes, [0, 0, 0, 0, 0x80, 0, 0, 1]);
    set_bits(&mut bytes, 0, 31, 0, 0xfeed_beef);
    assert_eq!(get_bits(&bytes, 0, 31, 0), 0xfeed_beef);
    assert_eq!(get_bits(&bytes, 4, 31, 0), 0x8000_0001);
    assert_eq!(get_bits(&bytes, 0, 15, 8), 0xbe);
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
    span(0, 32, 0);
}

#[test]
#[should_panic(expected = "high bit below low bit")]
fn swapped_bits_are_refused() {
    span(0, 3, 4);
}

#[test]
#[should_panic(expected = "relative to a 32-bit word")]
fn an_odd_offset_is_refused() {
    span(2, 15, 0);
}

#[test]
#[should_panic(expected = "out of range")]
fn writing_to_too_few_bytes_panics() {
    Sample::zeroed().write_to(&mut [0; 0x1f]);
}
