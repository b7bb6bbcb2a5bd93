//! Golden bytes: each structure once, with a value in every field, against its literal dump.
//!
//! The dumps were worked out from the positions that the reference gives (manual and public
//! headers), not from the field tables of `src/`. Values are arbitrary bit patterns that read
//! differently backwards, so that a swapped pair of fields or a reversed byte order shows. Both
//! directions are tested, and a buffer that was filled with 0xa5 beforehand shows bytes that the
//! encoder does not write.

#![forbid(unsafe_code)]

mod capabilities;
mod commands;
mod contexts;
mod management;
mod registers;
mod rings;
mod steering;

use ferrocx_prm::Layout;
use ferrocx_prm::layout::{Bits, Bytes, Part};

/// The bytes of a dump: lines `offset: word word word word`; lines left out are zero.
pub(crate) fn bytes_of(size_bytes: usize, dump: &[&str]) -> Vec<u8> {
    let mut bytes = vec![0; size_bytes];
    for line in dump {
        let (offset, words) = line.split_once(": ").expect("`offset: words`");
        let mut at = usize::from_str_radix(offset, 16).expect("the offset is hexadecimal");
        for word in words.split(' ') {
            assert_eq!(word.len(), 8, "a word has eight digits: {line}");
            let word = u32::from_str_radix(word, 16).expect("the word is hexadecimal");
            bytes[at..at + 4].copy_from_slice(&word.to_be_bytes());
            at += 4;
        }
    }
    bytes
}

/// A run of bytes for the long raw fields: `start + 7 i + i² / 5`, modulo 256.
pub(crate) fn pattern<const N: usize>(start: usize) -> [u8; N] {
    std::array::from_fn(|i| ((start + 7 * i + i * i / 5) % 256) as u8)
}

/// Checks that writing `value` gives exactly `expected`, and touches nothing behind it.
pub(crate) fn check_written<T: Layout>(value: &T, expected: &[u8]) {
    assert_eq!(expected.len(), T::SIZE_BYTES);
    let mut buffer = vec![0xa5; T::SIZE_BYTES + 4];
    value.write_to(&mut buffer);
    let (written, behind) = buffer.split_at(T::SIZE_BYTES);
    let dump = |bytes| ferrocx_prm::Hexdump(bytes).to_string();
    assert_eq!(dump(written), dump(expected), "{} as written, as expected", T::NAME);
    assert_eq!(behind, [0xa5; 4]);
}

/// A constant of a layout finds the value of its field in the bytes of a dump.
pub(crate) trait Finds<V> {
    /// Whether `value` is what stands there.
    fn finds(self, dump: &[u8], value: V) -> bool;
}

impl Finds<u32> for Bits {
    fn finds(self, dump: &[u8], value: u32) -> bool {
        let word = u32::from_be_bytes(dump[self.offset..][..4].try_into().unwrap());
        self.get(word) == value && self.of(value) == word & self.mask()
    }
}

impl Finds<bool> for Bits {
    fn finds(self, dump: &[u8], value: bool) -> bool {
        self.finds(dump, u32::from(value))
    }
}

impl<T: Part> Finds<T> for Bytes {
    fn finds(self, dump: &[u8], value: T) -> bool {
        let mut bytes = vec![0; T::LEN_BYTES];
        value.store(&mut bytes);
        dump[self.range()] == bytes
    }
}

/// `test: Layout { dump lines } = { field: value; ... }`, one test each: written and read by the
/// accessors, and found by the field's constant.
macro_rules! golden {
    ($(
        $test:ident: $layout:ident { $($line:literal)* } = {
            $($get:ident: $value:expr;)*
        }
    )*) => { $( ferrocx_prm::pastey::paste! {
        #[test]
        fn $test() {
            use ferrocx_prm::Layout as _;
            use $crate::Finds as _;
            let expected = $crate::bytes_of($layout::SIZE_BYTES, &[$($line),*]);
            let encoded = $layout::zeroed()$(.[<with_ $get>]($value))*;
            $crate::check_written(&encoded, &expected);
            let decoded = $layout::read_from(&expected).unwrap();
            $(
                assert_eq!(decoded.$get(), $value, stringify!($get));
                let at = $layout::[<$get:upper>];
                assert!(at.finds(&expected, decoded.$get()), stringify!($get));
            )*
        }
    } )* };
}
pub(crate) use golden;
