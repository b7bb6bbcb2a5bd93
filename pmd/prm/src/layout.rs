//! `layout!`: one line per field, in the notation of the manual: byte offset, then bits.
//!
//! ConnectX structures are arrays of big-endian 32-bit words. The manual prints a field as *byte
//! offset of its word* and *\[high:low\]* within the word; so does the code. Every layout also
//! carries its field table ([`Layout::FIELDS`]), from which come the checks (no overlap, nothing
//! past the end), [`first_reserved`] and the `Debug` output.

use core::fmt;
use core::ops::Range;

/// One row of a layout's field table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Name of the field, as in the manual.
    pub name: &'static str,
    /// Position of the first (most significant) bit, counted from the start of the structure.
    pub first_bit: usize,
    /// Width in bits.
    pub width_bits: usize,
    /// The fields of the structure embedded here; empty for a plain number or bytes.
    pub nested: &'static [Field],
}

impl Field {
    /// The field's value in the bytes of its structure; `None` for one that is no part of a single
    /// word, or past their end.
    pub fn number(&self, bytes: &[u8]) -> Option<u32> {
        let (word, bit) = (self.first_bit / 32, self.first_bit % 32);
        let free = 32_usize.checked_sub(bit + self.width_bits)?;
        let word = u32::from_be_bytes(*bytes.as_chunks().0.get(word)?);
        Some(word << bit >> bit >> free)
    }
}

/// A structure of the device interface: bytes with named fields.
pub trait Layout: Part + fmt::Debug {
    /// Name of the structure.
    const NAME: &'static str;
    /// Size in bytes.
    const SIZE_BYTES: usize;
    /// All fields, in the order in which they are written down.
    const FIELDS: &'static [Field];
    /// Of each 32-bit word, the bits that some field covers; the manual reserves the others.
    const DEFINED: &'static [u32];

    /// The bytes as the device sees them.
    fn as_bytes(&self) -> &[u8];

    /// Returns the structure with the field `FIELDS[index]` taken from `from`, through the field's
    /// own accessors; unchanged if there is no such field.
    #[must_use]
    fn with_field_from(self, index: usize, from: &Self) -> Self;

    /// Reads the structure from the start of `bytes`; `None` if there are too few.
    fn read_from(bytes: &[u8]) -> Option<Self> {
        bytes.get(..Self::SIZE_BYTES).map(Self::load)
    }

    /// Writes the structure to the start of `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than the structure.
    fn write_to(&self, bytes: &mut [u8]) {
        bytes[..Self::SIZE_BYTES].copy_from_slice(self.as_bytes());
    }
}

/// Content of a field at a byte offset of a layout: a big-endian number, bytes, another layout.
pub trait Part: Sized {
    /// Length in bytes.
    const LEN_BYTES: usize;
    /// Fields of an embedded layout.
    const PARTS: &'static [Field] = &[];
    /// Reads from `bytes`, which are exactly `LEN_BYTES` long.
    fn load(bytes: &[u8]) -> Self;
    /// Writes to `bytes`, which are exactly `LEN_BYTES` long.
    fn store(&self, bytes: &mut [u8]);
}

impl Part for u64 {
    const LEN_BYTES: usize = 8;
    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        let mut raw = [0; 8];
        raw.copy_from_slice(bytes);
        Self::from_be_bytes(raw)
    }
    #[inline(always)]
    fn store(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.to_be_bytes());
    }
}

impl<const N: usize> Part for [u8; N] {
    const LEN_BYTES: usize = N;
    #[inline(always)]
    fn load(bytes: &[u8]) -> Self {
        let mut raw = [0; N];
        raw.copy_from_slice(bytes);
        raw
    }
    #[inline(always)]
    fn store(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

/// A bit that the manual reserves and that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReservedBits {
    /// Byte offset of the 32-bit word that holds it.
    pub offset: usize,
    /// The reserved bits of that word that are set.
    pub bits: u32,
}

impl fmt::Display for ReservedBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reserved bits {:#010x} at offset {:#x} are set", self.bits, self.offset)
    }
}

/// The first word of `value` with a reserved bit set, if there is one.
///
/// Embedded layouts are checked with their own tables. This is for the strict side (the model and
/// tests); it costs time proportional to the size of the structure.
pub fn first_reserved<T: Layout>(value: &T) -> Option<ReservedBits> {
    let words = value.as_bytes().as_chunks::<4>().0.iter().zip(T::DEFINED);
    let mut reserved = words.map(|(word, defined)| u32::from_be_bytes(*word) & !defined);
    // Mostly none is set, which a look at all of them together tells.
    if reserved.clone().fold(0, |all, bits| all | bits) == 0 {
        return None;
    }
    let index = reserved.clone().position(|bits| bits != 0)?;
    Some(ReservedBits { offset: index * 4, bits: reserved.nth(index)? })
}

/// Of each 32-bit word of a structure, the bits that some field covers; those of an embedded
/// structure are those that its own fields cover.
pub const fn defined<const WORDS: usize>(fields: &[Field]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    define(&mut words, fields, 0);
    words
}

/// Adds the bits that `fields` cover in a structure that starts at bit `base`.
const fn define(words: &mut [u32], fields: &[Field], base: usize) {
    let mut i = 0;
    while i < fields.len() {
        let field = &fields[i];
        let (start, end) = (base + field.first_bit, base + field.first_bit + field.width_bits);
        if field.nested.is_empty() {
            let mut bit = start;
            while bit < end {
                let (word, first) = (bit / 32, bit % 32);
                let last = if end - bit < 32 - first { first + end - bit } else { 32 };
                words[word] |= (u32::MAX >> first) & ((u32::MAX as u64) << (32 - last)) as u32;
                bit += last - first;
            }
        } else {
            define(words, field.nested, start);
        }
        i += 1;
    }
}

/// Compile-time check of a field table: inside the structure, and no two fields overlap.
pub const fn check(size_bytes: usize, fields: &[Field]) {
    assert!(size_bytes.is_multiple_of(4), "a layout is a whole number of 32-bit words");
    let mut i = 0;
    while i < fields.len() {
        let a = &fields[i];
        assert!(a.width_bits > 0, "high bit below low bit");
        assert!(a.first_bit + a.width_bits <= size_bytes * 8, "field past the end");
        let mut j = i + 1;
        while j < fields.len() {
            let b = &fields[j];
            assert!(
                a.first_bit + a.width_bits <= b.first_bit
                    || b.first_bit + b.width_bits <= a.first_bit,
                "two fields overlap"
            );
            j += 1;
        }
        i += 1;
    }
}

/// Bits `[hi:lo]` of the big-endian 32-bit word at byte `offset` of a structure.
///
/// Every field of a [`layout!`](crate::layout!) that is not bytes has such a constant, named after
/// the field: `Cqe64::BYTE_CNT` is the place of `byte_cnt`. Code that works on whole words (the hot
/// path) takes offset, mask and shift from it. A "word" below is in the byte order of the host.
///
/// ```
/// use ferrocx_prm::cqe::Cqe64;
///
/// const WORD: usize = Cqe64::OPCODE.offset;
/// assert_eq!((WORD, Cqe64::OPCODE.mask(), Cqe64::OPCODE.shift()), (0x3c, 0xf0, 4));
/// assert_eq!(Cqe64::OPCODE.get(0x1234_00d1), 0xd);
/// assert_eq!(Cqe64::OPCODE.of(0xd) | Cqe64::OWNER.mask(), 0xd1);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits {
    /// Byte offset of the word.
    pub offset: usize,
    /// The highest bit, 31 at most.
    pub hi: u32,
    /// The lowest bit.
    pub lo: u32,
}

impl Bits {
    /// The place, checked.
    ///
    /// # Panics
    /// If `offset` is no multiple of 4, `hi` is above 31 or below `lo`.
    pub const fn new(offset: usize, hi: u32, lo: u32) -> Self {
        assert!(offset.is_multiple_of(4), "fields are given relative to a 32-bit word");
        assert!(hi < 32, "a bit above 31");
        assert!(lo <= hi, "high bit below low bit");
        Self { offset, hi, lo }
    }

    /// Distance of the field from the low end of its word.
    #[inline(always)]
    pub const fn shift(self) -> u32 {
        self.lo
    }

    /// The bits of the field in its word.
    #[inline(always)]
    pub const fn mask(self) -> u32 {
        (u32::MAX >> (31 - (self.hi - self.lo))) << self.lo
    }

    /// The field's value, taken from its word.
    #[inline(always)]
    pub const fn get(self, word: u32) -> u32 {
        (word & self.mask()) >> self.lo
    }

    /// A word with `value` in the field and zeros elsewhere; higher bits of `value` are cut off.
    #[inline(always)]
    pub const fn of(self, value: u32) -> u32 {
        (value << self.lo) & self.mask()
    }

    /// Reads the field from the bytes of its structure.
    #[inline(always)]
    pub fn read(self, bytes: &[u8]) -> u32 {
        self.get(self.word(bytes))
    }

    /// Writes the field to the bytes of its structure; higher bits of `value` are cut off.
    #[inline(always)]
    pub fn write(self, bytes: &mut [u8], value: u32) {
        let word = (self.word(bytes) & !self.mask()) | self.of(value);
        self.write_word(bytes, word);
    }

    /// Writes the whole word that holds the field to the bytes of its structure.
    #[inline(always)]
    pub fn write_word(self, bytes: &mut [u8], word: u32) {
        bytes[self.offset..self.offset + 4].copy_from_slice(&word.to_be_bytes());
    }

    #[inline(always)]
    fn word(self, bytes: &[u8]) -> u32 {
        let at = self.offset;
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }

    /// The row of a field table for the field `name` at this place.
    pub const fn field(self, name: &'static str) -> Field {
        let width_bits = (self.hi - self.lo + 1) as usize;
        Field { name, first_bit: self.offset * 8 + 31 - self.hi as usize, width_bits, nested: &[] }
    }
}

/// Place of a field of whole bytes in a structure: a `u64`, raw bytes, an embedded layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes {
    /// Byte offset of the field.
    pub offset: usize,
    /// Length of the field in bytes.
    pub len: usize,
}

impl Bytes {
    /// The bytes of the field in its structure.
    #[inline(always)]
    pub const fn range(self) -> Range<usize> {
        self.offset..self.offset + self.len
    }

    /// The row of a field table for the field `name` at this place; `nested` are its own fields.
    pub const fn field(self, name: &'static str, nested: &'static [Field]) -> Field {
        Field { name, first_bit: self.offset * 8, width_bits: self.len * 8, nested }
    }
}

/// Prints `bytes` as dwords, four a line with the byte offset, as `mlx5_core` dumps commands.
pub struct Hexdump<'a>(pub &'a [u8]);

impl fmt::Display for Hexdump<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, line) in self.0.chunks(16).enumerate() {
            write!(f, "{:03x}:", index * 16)?;
            for word in line.chunks(4) {
                write!(f, " ")?;
                for byte in word {
                    write!(f, "{byte:02x}")?;
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// `Debug` for every layout: field names and values, zero fields left out.
pub fn debug_fields<T: Layout>(value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{} {{", T::NAME)?;
    debug_table(value.as_bytes(), T::FIELDS, f)?;
    write!(f, " }}")
}

fn debug_table(bytes: &[u8], fields: &[Field], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for field in fields {
        let (start, end) = (field.first_bit, field.first_bit + field.width_bits);
        let part = &bytes[start / 8..end.div_ceil(8)];
        if field.width_bits >= 32 && part.iter().all(|b| *b == 0) {
            continue;
        }
        if !field.nested.is_empty() {
            write!(f, " {}: {{", field.name)?;
            debug_table(part, field.nested, f)?;
            write!(f, " }}")?;
        } else if field.width_bits <= 64 {
            let mut value: u128 = 0;
            for byte in part {
                value = value << 8 | u128::from(*byte);
            }
            value >>= (8 - end % 8) % 8;
            value &= (1u128 << field.width_bits) - 1;
            if value != 0 {
                write!(f, " {}: {value:#x}", field.name)?;
            }
        } else {
            write!(f, " {}: {} bytes", field.name, part.len())?;
        }
    }
    Ok(())
}

/// Declares a structure of the device interface.
///
/// A field is a row, as the manual prints it: place, name, meaning. A place is `offset [bit]` (a
/// `bool`), `offset [high:low]` (a `u32`), or `offset (Type)` for what implements [`Part`]:
/// `u64`, bytes, another layout. One row makes a reader `name()`, `with_name(value)` that returns
/// the structure with the field replaced, and the constant `NAME` that says where it is ([`Bits`]
/// or [`Bytes`]).
///
/// ```
/// ferrocx_prm::layout! {
///     /// An example of eight bytes.
///     pub struct Example [0x8] {
///         0x00 [31] flag "A flag.";
///         0x04 [23:0] number "A number.";
///     }
/// }
/// let example = Example::zeroed().with_flag(true).with_number(0x0102_0304);
/// assert_eq!(example.0, [0x80, 0, 0, 0, 0, 2, 3, 4]);
/// assert!(example.flag());
/// assert_eq!((Example::NUMBER.offset, Example::NUMBER.mask()), (4, 0x00ff_ffff));
/// ```
///
/// A body may start with `..group;`: the fields of a group that several structures share.
#[macro_export]
macro_rules! layout {
    ($(
        $(#[$($meta:tt)*])*
        pub struct $name:ident [$size:literal] { $($body:tt)* }
    )*) => { $(
        $crate::layout! { @rows [] { $($body)* } [$(#[$($meta)*])*] $name $size }
    )* };
    (@rows $rows:tt { ..$group:ident; $($more:tt)* } $($then:tt)*) => {
        $group! { $rows { $($more)* } $($then)* }
    };
    (@rows [$($rows:tt)*] { $($more:tt)* } $($then:tt)*) => {
        $crate::layout! { @struct $($then)* $($rows)* $($more)* }
    };
    (@struct [$($meta:tt)*] $name:ident $size:literal
        $( $off:literal $spec:tt $get:ident $doc:literal; )*
    ) => { $crate::pastey::paste! {
        $($meta)*
        #[derive(
            Clone, Copy, PartialEq, Eq,
            $crate::zerocopy::FromBytes, $crate::zerocopy::IntoBytes,
            $crate::zerocopy::Immutable, $crate::zerocopy::KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub [u8; $size]);

        #[allow(clippy::len_without_is_empty, reason = "`len` is a field of the device's")]
        impl $name {
            /// All bytes zero.
            #[inline(always)]
            pub const fn zeroed() -> Self {
                Self([0; $size])
            }
            $( $crate::layout!(@accessors
                $off $spec $get [<with_ $get>] [<$get:upper>] $doc
            ); )*
        }

        impl $crate::layout::Part for $name {
            const LEN_BYTES: usize = $size;
            const PARTS: &'static [$crate::layout::Field] =
                <Self as $crate::layout::Layout>::FIELDS;
            #[inline(always)]
            fn load(bytes: &[u8]) -> Self {
                Self(<[u8; $size] as $crate::layout::Part>::load(bytes))
            }
            #[inline(always)]
            fn store(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.0);
            }
        }

        impl $crate::layout::Layout for $name {
            const NAME: &'static str = stringify!($name);
            const SIZE_BYTES: usize = $size;
            const FIELDS: &'static [$crate::layout::Field] =
                &[$( $crate::layout!(@field $spec $get $name::[<$get:upper>]) ),*];
            const DEFINED: &'static [u32] = &$crate::layout::defined::<{ $size / 4 }>(Self::FIELDS);
            #[inline(always)]
            fn as_bytes(&self) -> &[u8] {
                &self.0
            }
            fn with_field_from(self, index: usize, from: &Self) -> Self {
                let mut fields = 0..;
                $( if fields.next() == Some(index) {
                    return self.[<with_ $get>](from.$get());
                } )*
                self
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::zeroed()
            }
        }

        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::layout::debug_fields(self, f)
            }
        }

        const _: () = $crate::layout::check($size, <$name as $crate::layout::Layout>::FIELDS);
    } };

    (@accessors $off:tt [$bit:tt] $get:ident $with:ident $at:ident $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $get(&self) -> bool {
            Self::$at.read(&self.0) != 0
        }
        #[doc = concat!("Returns the structure with [`Self::", stringify!($get), "`] replaced.")]
        #[inline(always)]
        #[must_use]
        pub fn $with(mut self, value: bool) -> Self {
            Self::$at.write(&mut self.0, value as u32);
            self
        }
        #[doc = concat!("Place of [`Self::", stringify!($get), "`].")]
        pub const $at: $crate::layout::Bits = $crate::layout::Bits::new($off, $bit, $bit);
    };
    (@accessors $off:tt [$hi:tt : $lo:tt] $get:ident $with:ident $at:ident $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $get(&self) -> u32 {
            Self::$at.read(&self.0)
        }
        #[doc = concat!("Returns the structure with [`Self::", stringify!($get), "`] replaced; ",
            "bits of `value` beyond the field are cut off.")]
        #[inline(always)]
        #[must_use]
        pub fn $with(mut self, value: u32) -> Self {
            Self::$at.write(&mut self.0, value);
            self
        }
        #[doc = concat!("Place of [`Self::", stringify!($get), "`].")]
        pub const $at: $crate::layout::Bits = $crate::layout::Bits::new($off, $hi, $lo);
    };
    (@accessors $off:tt ($t:ty) $get:ident $with:ident $at:ident $doc:literal) => {
        #[doc = $doc]
        #[inline(always)]
        pub fn $get(&self) -> $t {
            <$t as $crate::layout::Part>::load(&self.0[Self::$at.range()])
        }
        #[doc = concat!("Returns the structure with [`Self::", stringify!($get), "`] replaced.")]
        #[inline(always)]
        #[must_use]
        pub fn $with(mut self, value: $t) -> Self {
            <$t as $crate::layout::Part>::store(&value, &mut self.0[Self::$at.range()]);
            self
        }
        #[doc = concat!("Place of [`Self::", stringify!($get), "`].")]
        pub const $at: $crate::layout::Bytes = $crate::layout::Bytes {
            offset: $off,
            len: <$t as $crate::layout::Part>::LEN_BYTES,
        };
    };

    (@field [$($bits:tt)*] $get:ident $at:path) => { $at.field(stringify!($get)) };
    (@field ($t:ty) $get:ident $at:path) => {
        $at.field(stringify!($get), <$t as $crate::layout::Part>::PARTS)
    };
}

/// Declares numbers that a field may hold, `value NAME "meaning";`, as a module of plain numbers or
/// as a type of their own: an open set, for hardware may surprise us.
macro_rules! values {
    (
        $(#[$meta:meta])*
        pub mod $name:ident: $type:ty { $($value:literal $const:ident $doc:literal;)* }
    ) => {
        $(#[$meta])*
        pub mod $name {
            $( #[doc = $doc] pub const $const: $type = $value; )*
        }
    };
    (
        $(#[$meta:meta])*
        pub struct $name:ident($type:ty) { $($value:literal $const:ident $doc:literal;)* }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub $type);

        impl $name {
            $( #[doc = $doc] pub const $const: Self = Self($value); )*
        }
    };
}
pub(crate) use values;

/// Declares a set of bits, each named after what it stands for: `3 RWE: rwe;`.
macro_rules! bits {
    (
        $(#[$meta:meta])*
        pub mod $name:ident: $type:ty { $($bit:literal $const:ident: $what:ident;)* }
    ) => {
        $(#[$meta])*
        pub mod $name {
            $(
                #[doc = concat!("The bit of `", stringify!($what), "`.")]
                pub const $const: $type = 1 << $bit;
            )*
        }
    };
}
pub(crate) use bits;

/// Declares groups of fields that several structures share: `..name;` at the start of a body of
/// [`layout!`](crate::layout!) stands for the fields of the group `name`.
///
/// Each group becomes a macro, whose own `$` a macro cannot write; hence the `$` in front.
macro_rules! rows {
    ($d:tt $($group:ident { $($row:tt)* })*) => { $(
        macro_rules! $group {
            ([$d($d before:tt)*] $d($d then:tt)*) => {
                $crate::layout! { @rows [$d($d before)* $($row)*] $d($d then)* }
            };
        }
    )* };
}
pub(crate) use rows;
