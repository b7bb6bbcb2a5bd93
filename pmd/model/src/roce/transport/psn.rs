//! Packet sequence numbers: 24 bits, compared around the wrap.

/// Width of a PSN.
const MASK: u32 = 0xff_ffff;

/// A packet sequence number. Source: reference 7.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `raw`.
    #[must_use]
    pub const fn new(raw: u32) -> Self {
        Self(raw & MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The number of the packet before.
    #[must_use]
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1) & MASK)
    }

    /// How many packets after `base` this one is: -2^23 to 2^23 - 1, negative when before.
    ///
    /// # Source
    /// Reference 7.4: the sign of `(a - b) << 8` as a signed 32-bit number.
    #[must_use]
    pub const fn since(self, base: Self) -> i32 {
        (self.0.wrapping_sub(base.0) << 8).cast_signed() >> 8
    }

    /// Whether this is before `other`.
    #[must_use]
    pub const fn is_before(self, other: Self) -> bool {
        self.since(other) < 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_is_right_at_the_wrap_and_half_way_around() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!((Psn::new(0).since(last), last.since(Psn::new(0))), (1, -1));
        assert_eq!(Psn::new(0x7f_ffff).since(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).since(Psn::new(0)), -0x80_0000, "2^23 behind: a duplicate");
        assert!(last.is_before(Psn::new(0)) && !last.is_before(last));
        assert_eq!(Psn::new(0x0123_4567).raw(), 0x23_4567, "higher bits are cut off");
    }

    proptest! {
        #[test]
        fn since_undoes_plus(base: u32, count in 0_u32..0x80_0000) {
            let base = Psn::new(base);
            prop_assert_eq!(base.plus(count).since(base), count.cast_signed());
        }
    }
}
