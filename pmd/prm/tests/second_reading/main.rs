//! A second reading of every layout, in the other notation.
//!
//! `src/` gives each field by its absolute position, as the manual prints it. Here the same
//! structures stand as names and widths in order, reserved gaps included, taken from the Linux
//! headers. Two notations do not share a typing error. The test sums the widths and demands that
//! both readings agree bit for bit; where they do not, the reason stands in a list below.

#![forbid(unsafe_code)]

mod caps;
mod commands_device;
mod commands_queues;
mod constants;
mod contexts;
mod exceptions;
mod management;
mod properties;
mod registers;
mod rings;

use std::collections::{BTreeMap, BTreeSet};

use exceptions::{ELSEWHERE, LINUX_ONLY_BITS, RENAMED};
use ferrocx_prm::Layout;
use ferrocx_prm::layout::{Field, ReservedBits, first_reserved};

/// One structure as names and widths.
pub(crate) struct Reading {
    /// Name of the layout in `src/`.
    pub(crate) name: &'static str,
    /// Size of the layout in `src/`.
    pub(crate) size_bytes: usize,
    /// Field table of the layout in `src/`.
    pub(crate) fields: &'static [Field],
    /// Names and widths in bits; `_` is reserved.
    pub(crate) spans: Vec<(&'static str, usize)>,
    /// The layout's own behaviour, on bytes.
    pub(crate) behaviour: Behaviour,
}

/// What a layout does, without its type.
#[derive(Clone, Copy)]
pub(crate) struct Behaviour {
    /// `first_reserved` of the structure read from the bytes.
    pub(crate) first_reserved: fn(&[u8]) -> Option<ReservedBits>,
    /// The structure read from the first bytes, with one field taken from the second.
    pub(crate) with_field_from: fn(&[u8], usize, &[u8]) -> Vec<u8>,
    /// Reads from the first bytes and writes to the second; false if there are too few to read.
    pub(crate) copy: fn(&[u8], &mut [u8]) -> bool,
}

impl Behaviour {
    /// The behaviour of `T`.
    pub(crate) fn of<T: Layout>() -> Self {
        Self {
            first_reserved: |bytes| first_reserved(&T::read_from(bytes).unwrap()),
            with_field_from: |bytes, index, from| {
                let (value, from) = (T::read_from(bytes).unwrap(), T::read_from(from).unwrap());
                value.with_field_from(index, &from).as_bytes().to_vec()
            },
            copy: |from, to| T::read_from(from).map(|value| value.write_to(to)).is_some(),
        }
    }
}

/// Declares `readings()`: a layout, then `name width` in order; `name (Layout)` embeds another.
macro_rules! reading {
    ($($layout:ident { $($name:tt $width:tt),* $(,)? })*) => {
        /// The structures of this file.
        pub(crate) fn readings() -> Vec<$crate::Reading> {
            use ferrocx_prm::layout::Layout;
            vec![$( $crate::Reading {
                name: $layout::NAME,
                size_bytes: $layout::SIZE_BYTES,
                fields: $layout::FIELDS,
                spans: vec![$( (stringify!($name), $crate::reading!(@bits $width)) ),*],
                behaviour: $crate::Behaviour::of::<$layout>(),
            } ),*]
        }
    };
    (@bits ($layout:ident)) => { $layout::SIZE_BYTES * 8 };
    (@bits $width:literal) => { $width };
}
pub(crate) use reading;

/// A named or reserved piece of a structure, with its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Span {
    name: &'static str,
    first_bit: usize,
    width_bits: usize,
}

impl Span {
    fn end(&self) -> usize {
        self.first_bit + self.width_bits
    }

    fn is_reserved(&self) -> bool {
        self.name == "_"
    }

    fn overlaps(&self, field: &Field) -> bool {
        self.first_bit < field.first_bit + field.width_bits && field.first_bit < self.end()
    }
}

fn all() -> Vec<Reading> {
    [
        caps::readings(),
        commands_device::readings(),
        commands_queues::readings(),
        contexts::readings(),
        management::readings(),
        registers::readings(),
        rings::readings(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn positions(reading: &Reading) -> Vec<Span> {
    let mut first_bit = 0;
    let mut spans = Vec::new();
    for &(name, width_bits) in &reading.spans {
        spans.push(Span { name, first_bit, width_bits });
        first_bit += width_bits;
    }
    spans
}

/// `byte offset[high:low]`, as `src/` writes it.
fn place(first_bit: usize, width_bits: usize) -> String {
    let high = 31 - first_bit % 32;
    match (high + 1).checked_sub(width_bits) {
        Some(low) => format!("{:#04x}[{high}:{low}]", first_bit / 32 * 4),
        None => format!("{:#04x} ({width_bits} bits)", first_bit / 8),
    }
}

/// The names of the spans that exactly fill `field`, joined by `+`; `None` if its ends are not
/// the ends of spans.
fn run(spans: &[Span], field: &Field) -> Option<String> {
    let covering: Vec<_> = spans.iter().filter(|s| s.overlaps(field)).collect();
    let (first, last) = (covering.first()?, covering.last()?);
    let exact =
        first.first_bit == field.first_bit && last.end() == field.first_bit + field.width_bits;
    exact.then(|| covering.iter().map(|s| s.name).collect::<Vec<_>>().join("+"))
}

#[test]
fn widths_sum_to_the_size() {
    for reading in all() {
        let sum: usize = reading.spans.iter().map(|s| s.1).sum();
        assert_eq!(sum, reading.size_bytes * 8, "{}: widths sum to {sum} bits", reading.name);
    }
}

#[test]
fn every_field_lies_where_the_second_reading_puts_it() {
    let renamed: BTreeMap<_, _> = RENAMED.iter().map(|r| ((r.0, r.1), r.2)).collect();
    let mut wrong = Vec::new();
    for reading in all() {
        let spans = positions(&reading);
        for field in reading.fields {
            let key = (reading.name, field.name);
            let expected = renamed.get(&key).copied().unwrap_or(field.name);
            if ELSEWHERE.iter().any(|e| (e.0, e.1) == key) {
                continue;
            }
            if run(&spans, field).as_deref() != Some(expected) {
                let here = place(field.first_bit, field.width_bits);
                let there: Vec<_> = spans.iter().filter(|s| s.overlaps(field)).collect();
                wrong.push(format!("{key:?} at {here}, expected {expected}, found {there:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A name that both readings know must mean the same place; this catches a layout that lacks a
/// field under its own name but covers the place with another.
#[test]
fn a_name_means_one_place() {
    for reading in all() {
        for span in positions(&reading).iter().filter(|s| !s.is_reserved()) {
            let Some(field) = reading.fields.iter().find(|f| f.name == span.name) else {
                continue;
            };
            let key = (reading.name, field.name);
            if ELSEWHERE.iter().chain(RENAMED).any(|e| (e.0, e.1) == key) {
                continue;
            }
            assert_eq!(
                place(field.first_bit, field.width_bits),
                place(span.first_bit, span.width_bits),
                "{}.{}",
                reading.name,
                span.name
            );
        }
    }
}

/// Bits that the headers name and our layouts reserve. The count is exact, so that it changes
/// only on purpose: adding such a field lowers it, losing one of our fields raises it.
#[test]
fn bits_that_only_linux_names_are_counted() {
    let mut counted = BTreeMap::new();
    for reading in all() {
        let bits: usize = positions(&reading)
            .iter()
            .filter(|s| !s.is_reserved() && !reading.fields.iter().any(|f| s.overlaps(f)))
            .map(|s| s.width_bits)
            .sum();
        if bits > 0 {
            counted.insert(reading.name, bits);
        }
    }
    let listed: BTreeMap<_, _> = LINUX_ONLY_BITS.iter().copied().collect();
    assert_eq!(counted, listed);
}

#[test]
fn no_exception_is_stale() {
    let readings: BTreeMap<_, _> = all().into_iter().map(|r| (r.name, r)).collect();
    for (layout, name, theirs) in RENAMED {
        let reading = &readings[layout];
        let field = reading.fields.iter().find(|f| f.name == *name);
        let field = field.unwrap_or_else(|| panic!("{layout}.{name} does not exist"));
        assert_ne!(name, theirs, "{layout}.{name} is not renamed");
        assert_eq!(run(&positions(reading), field).as_deref(), Some(*theirs), "{layout}.{name}");
    }
    for (layout, name, why) in ELSEWHERE {
        let reading = &readings[layout];
        let field = reading.fields.iter().find(|f| f.name == *name);
        let field = field.unwrap_or_else(|| panic!("{layout}.{name} does not exist"));
        let there = run(&positions(reading), field);
        assert_ne!(there.as_deref(), Some(*name), "{layout}.{name} agrees by now");
        assert!(why.len() > 10, "{layout}.{name} needs a reason");
    }
}

/// Every `pub struct Name [size] {` of `src/`, and every input and output of a command, has exactly
/// one second reading.
#[test]
fn every_layout_has_a_second_reading() {
    let mut declared = BTreeSet::new();
    let src = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    collect_layouts(std::path::Path::new(src), &mut declared);
    assert!(declared.len() > 200, "only {} layouts found in {src}", declared.len());
    let mut read = BTreeSet::new();
    for reading in all() {
        assert!(read.insert(reading.name.to_owned()), "{} is read twice", reading.name);
    }
    let missing: Vec<_> = declared.difference(&read).collect();
    assert!(missing.is_empty(), "without a second reading: {missing:?}");
    let unknown: Vec<_> = read.difference(&declared).collect();
    assert!(unknown.is_empty(), "read, but not declared in {src}: {unknown:?}");
}

fn collect_layouts(dir: &std::path::Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_layouts(&path, names);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for block in text.split("\ncommand! {\n").skip(1) {
            collect_commands(block.split_once("\n}\n").unwrap().0, names);
        }
        for line in text.lines() {
            // `///` examples do not start with the keyword, tuple structs have no bracket.
            let Some(rest) = line.trim_start().strip_prefix("pub struct ") else { continue };
            let Some((name, size)) = rest.split_once(" [") else { continue };
            if size.starts_with(|c: char| c.is_ascii_digit()) {
                names.insert(name.to_owned());
            }
        }
    }
}

/// Lines `Name OPCODE`, with more behind.
fn collect_commands(block: &str, names: &mut BTreeSet<String>) {
    for line in block.lines() {
        let mut words = line.split_whitespace();
        let (Some(name), Some(opcode)) = (words.next(), words.next()) else { continue };
        let opcode = opcode.trim_end_matches(',');
        if ferrocx_prm::cmd::Opcode::ALL.iter().any(|known| known.name() == Some(opcode)) {
            names.extend([format!("{name}In"), format!("{name}Out")]);
        }
    }
}
