//! Numbers of bytes in a stream.

/// A place in a stream of bytes: 32 bits that wrap. Source: RFC 9293, 3.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seq(pub u32);

impl Seq {
    /// The place `bytes` further on.
    pub const fn add(self, bytes: u32) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// How far this lies behind `earlier`; negative if it lies before it.
    pub const fn since(self, earlier: Self) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// True if this lies before `later`.
    pub const fn before(self, later: Self) -> bool {
        self.since(later) < 0
    }

    /// True if this lies in the `len` bytes from `start` on.
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }
}
