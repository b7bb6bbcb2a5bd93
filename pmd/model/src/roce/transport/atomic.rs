//! What atomics do to memory, with and without masks.
//!
//! The masked ones are the extension of this vendor's devices: operands of 4 or 8 bytes, a mask of
//! the bits that are compared and one of those that are swapped, sums of several fields at once.
//!
//! # Source
//!
//! What they do: the vendor's documentation of "Enhanced Atomic Operations" and Linux commit
//! 5e80ba8ff0bd, which both print it as pseudo-code. Sizes and byte order: UCX's mlx5 transport.

/// Operands of an atomic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operands {
    /// Value to swap in or to add.
    pub swap_add: u64,
    /// Value that memory must have.
    pub compare: u64,
    /// Bits to swap; fetch and add: the last bit of every field.
    pub swap_mask: u64,
    /// Bits to compare.
    pub compare_mask: u64,
    /// Number of bytes of the operand.
    pub size: Size,
}

impl Operands {
    /// No masks: all eight bytes are compared and swapped, or are one field.
    #[must_use]
    pub const fn plain(swap_add: u64, compare: u64) -> Self {
        Self { swap_add, compare, swap_mask: !0, compare_mask: !0, size: Size::Eight }
    }
}

impl Default for Operands {
    fn default() -> Self {
        Self::plain(0, 0)
    }
}

/// Bytes that an atomic changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Four, aligned to four. Masked atomics only.
    Four,
    /// Eight, aligned to eight.
    Eight,
}

impl Size {
    /// Number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }

    /// The size of so many bytes.
    #[must_use]
    pub const fn of(bytes: u32) -> Option<Self> {
        match bytes {
            4 => Some(Self::Four),
            8 => Some(Self::Eight),
            _ => None,
        }
    }

    /// The bits of a value of this size.
    #[must_use]
    pub const fn mask(self) -> u64 {
        match self {
            Self::Four => 0xffff_ffff,
            Self::Eight => !0,
        }
    }
}

/// Compare and swap: what memory holds afterwards.
#[must_use]
pub const fn compare_swap(old: u64, with: &Operands) -> u64 {
    if (old ^ with.compare) & with.compare_mask & with.size.mask() != 0 {
        return old;
    }
    (old & !with.swap_mask | with.swap_add & with.swap_mask) & with.size.mask()
}

/// Fetch and add with fields: what memory holds afterwards. No carry leaves the last bit of one.
#[must_use]
pub const fn masked_add(old: u64, with: &Operands) -> u64 {
    let (add, last) = (with.swap_add, with.swap_mask);
    // Without the last bits nothing can carry out of a field; they are added without a carry.
    let sum = (old & !last).wrapping_add(add & !last);
    (sum ^ (old ^ add) & last) & with.size.mask()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn masked(swap_add: u64, compare: u64, masks: (u64, u64), size: Size) -> Operands {
        Operands { swap_add, compare, swap_mask: masks.0, compare_mask: masks.1, size }
    }

    #[test]
    fn only_bits_under_the_masks_are_compared_and_swapped() {
        let old = 0x1122_3344_5566_7788;
        let with = |compare, compare_mask| {
            masked(
                0xaaaa_bbbb_cccc_dddd,
                compare,
                (0x0000_ffff_0000_ffff, compare_mask),
                Size::Eight,
            )
        };
        assert_eq!(compare_swap(old, &with(0x88, 0xff)), 0x1122_bbbb_5566_dddd);
        assert_eq!(compare_swap(old, &with(0x89, 0xff)), old, "one bit differs under the mask");
        assert_eq!(compare_swap(old, &with(0, 0)), 0x1122_bbbb_5566_dddd, "nothing is compared");
        assert_eq!(compare_swap(old, &Operands::plain(5, old)), 5);
        assert_eq!(compare_swap(old, &Operands::plain(5, old ^ 1 << 63)), old);
        let four = masked(0x1_0000_0002, 0x7_5566_7788, (!0, !0), Size::Four);
        assert_eq!(compare_swap(0x5566_7788, &four), 2, "what stands above four bytes is ignored");
    }

    #[test]
    fn fields_do_not_carry_into_each_other() {
        let with = |add, last, size| masked(add, 0, (last, 0), size);
        // Without boundaries: one field.
        assert_eq!(masked_add(u64::MAX, &with(1, 0, Size::Eight)), 0);
        assert_eq!(masked_add(0xffff_ffff, &with(1, 0, Size::Eight)), 0x1_0000_0000);
        assert_eq!(masked_add(0xffff_ffff, &with(1, 0, Size::Four)), 0);
        // Eight fields of a byte each.
        let bytes = 0x8080_8080_8080_8080;
        let old = 0x00ff_7f80_01fe_ff10;
        let add = 0x0101_0180_ff02_01f0;
        assert_eq!(masked_add(old, &with(add, bytes, Size::Eight)), 0x0100_8000_0000_0000);
        // The last bit of the lower half is a boundary; the upper half has none below.
        assert_eq!(masked_add(0xffff_ffff, &with(1, 1 << 31, Size::Eight)), 0);
    }

    /// Bit by bit, as the documentation has it.
    fn slowly(old: u64, add: u64, last: u64, bits: u32) -> u64 {
        let (mut sum, mut carry) = (0, 0);
        for bit in 0..bits {
            let total = (old >> bit & 1) + (add >> bit & 1) + carry;
            sum |= (total & 1) << bit;
            carry = if last >> bit & 1 != 0 { 0 } else { total >> 1 };
        }
        sum
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_documentation(old: u64, add: u64, a: u64, b: u64, c: u64) {
            for last in [0, a, a & b, a & b & c, a | b] {
                let eight = masked(add, 0, (last, 0), Size::Eight);
                prop_assert_eq!(masked_add(old, &eight), slowly(old, add, last, 64));
                let four = masked(add, 0, (last, 0), Size::Four);
                let old = old & 0xffff_ffff;
                prop_assert_eq!(masked_add(old, &four), slowly(old, add, last, 32));
            }
        }
    }
}
