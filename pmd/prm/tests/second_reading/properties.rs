//! Properties that every layout has, checked on every layout, with the second reading as oracle.

use ferrocx_prm::layout::Field;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::exceptions::ELSEWHERE;
use crate::{Reading, Span, all, positions};

/// The bits of `bytes` from `first_bit` on, as booleans.
fn bits(bytes: &[u8], first_bit: usize, width_bits: usize) -> Vec<bool> {
    (first_bit..first_bit + width_bits).map(|b| bytes[b / 8] >> (7 - b % 8) & 1 == 1).collect()
}

fn random_pair(size_bytes: usize) -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let bytes = proptest::collection::vec(any::<u8>(), size_bytes);
    (bytes.clone(), bytes)
}

/// Runs `property` on `cases` random pairs of buffers of each layout's size.
fn for_every_layout(cases: u32, property: impl Fn(&Reading, &[u8], &[u8])) {
    for reading in all() {
        let config = ProptestConfig { cases, failure_persistence: None, ..Default::default() };
        let mut runner = TestRunner::new(config);
        let result = runner.run(&random_pair(reading.size_bytes), |(one, other)| {
            property(&reading, &one, &other);
            Ok(())
        });
        if let Err(error) = result {
            panic!("{}: {error}", reading.name);
        }
    }
}

/// Setting a field writes its own bits, all of them, and no other; getting reads the same bits.
#[test]
fn fields_are_independent() {
    for_every_layout(4, |reading, one, other| {
        for (index, field) in reading.fields.iter().enumerate() {
            let mixed = (reading.behaviour.with_field_from)(one, index, other);
            let end = field.first_bit + field.width_bits;
            let (before, behind) = (field.first_bit, reading.size_bytes * 8 - end);
            assert_eq!(bits(&mixed, 0, before), bits(one, 0, before), "before {}", field.name);
            assert_eq!(
                bits(&mixed, field.first_bit, field.width_bits),
                bits(other, field.first_bit, field.width_bits),
                "{}",
                field.name
            );
            assert_eq!(bits(&mixed, end, behind), bits(one, end, behind), "behind {}", field.name);
        }
        let none = (reading.behaviour.with_field_from)(one, reading.fields.len(), other);
        assert_eq!(none, one);
    });
}

/// Reading and writing give the bytes back, and touch nothing behind the structure.
#[test]
fn read_and_write_are_inverse() {
    for_every_layout(4, |reading, one, _| {
        let mut target = vec![0xa5; one.len() + 3];
        let mut source = one.to_vec();
        source.push(0x5a);
        assert!((reading.behaviour.copy)(&source, &mut target));
        assert_eq!(&target[..one.len()], one);
        assert_eq!(target[one.len()..], [0xa5; 3]);
        assert!((reading.behaviour.copy)(one, &mut target), "exactly enough bytes");
        assert!(!(reading.behaviour.copy)(&one[1..], &mut target), "one byte too few");
    });
}

/// A single bit is reported as reserved exactly if no field has it, at its own word and mask; and
/// no field has a bit that the second reading reserves, apart from the listed differences.
#[test]
fn reserved_bits_are_exactly_those_without_a_field() {
    for reading in all() {
        let spans = positions(&reading);
        let mut bytes = vec![0; reading.size_bytes];
        for bit in 0..reading.size_bytes * 8 {
            // Of long raw bytes every 61st bit will do.
            let is_inside = |f: &&Field| {
                f.width_bits > 2048 && bit > f.first_bit && bit + 1 < f.first_bit + f.width_bits
            };
            if reading.fields.iter().any(|f| is_inside(&f)) && bit % 61 != 0 {
                continue;
            }
            bytes[bit / 8] = 0x80 >> (bit % 8);
            let found = (reading.behaviour.first_reserved)(&bytes);
            bytes[bit / 8] = 0;
            let field = reading.fields.iter().find(|f| covers(f.first_bit, f.width_bits, bit));
            // An embedded layout has reserved bits of its own, checked where it is read itself.
            if field.is_some_and(|f| !f.nested.is_empty()) {
                continue;
            }
            let at = format!("{}, bit {} of word {:#x}", reading.name, 31 - bit % 32, bit / 32 * 4);
            match (field, found) {
                (Some(_), None) => {}
                (None, Some(reserved)) => {
                    assert_eq!(reserved.offset, bit / 32 * 4, "{at}");
                    assert_eq!(reserved.bits, 1 << (31 - bit % 32), "{at}");
                }
                (field, found) => panic!("{at}: field {field:?}, reported {found:?}"),
            }
            let Some(field) = field else { continue };
            let span = spans.iter().find(|s| covers(s.first_bit, s.width_bits, bit)).unwrap();
            let is_listed = ELSEWHERE.iter().any(|e| (e.0, e.1) == (reading.name, field.name));
            assert!(!span.is_reserved() || is_listed || is_tail(&spans, span), "{at}: {field:?}");
        }
    }
}

fn covers(first_bit: usize, width_bits: usize, bit: usize) -> bool {
    (first_bit..first_bit + width_bits).contains(&bit)
}

/// The reserved end of `FlowMatchParam`, which our raw bytes of the rarer match fields include.
fn is_tail(spans: &[Span], span: &Span) -> bool {
    spans.last() == Some(span) && spans[0].name == "outer_headers"
}

/// An embedded layout reports its own reserved bits at its place in the outer one.
#[test]
fn reserved_bits_of_embedded_layouts_are_found() {
    for reading in all() {
        let mut nested = 0;
        for field in reading.fields.iter().filter(|f| !f.nested.is_empty()) {
            for bit in 0..field.width_bits {
                let mut bytes = vec![0; reading.size_bytes];
                let absolute = field.first_bit + bit;
                bytes[absolute / 8] = 0x80 >> (absolute % 8);
                let covered = has_plain_field(field.nested, bit);
                let found = (reading.behaviour.first_reserved)(&bytes);
                let at = format!("{}, bit {bit} of {}", reading.name, field.name);
                assert_eq!(found.is_none(), covered, "{at}");
                if let Some(reserved) = found {
                    assert_eq!(reserved.offset, absolute / 32 * 4, "{at}");
                    assert_eq!(reserved.bits, 1 << (31 - absolute % 32), "{at}");
                    nested += 1;
                }
            }
        }
        let embeds = reading.fields.iter().any(|f| !f.nested.is_empty());
        assert_eq!(embeds, nested > 0, "{}", reading.name);
    }
}

fn has_plain_field(fields: &[Field], bit: usize) -> bool {
    fields.iter().filter(|f| covers(f.first_bit, f.width_bits, bit)).any(|field| {
        field.nested.is_empty() || has_plain_field(field.nested, bit - field.first_bit)
    })
}
