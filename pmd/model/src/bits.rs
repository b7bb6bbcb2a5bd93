//! Parts of integers, where a cast would have to be excused each time.

/// The low 16 bits: for counters and fields of that width.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(crate) const fn low16(value: u64) -> u16 {
    value as u16
}

/// The low 32 bits.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "that is what it is for")]
pub(crate) const fn low32(value: u64) -> u32 {
    value as u32
}

/// The integer in the first eight bytes, which must be there.
pub(crate) fn be64(bytes: &[u8]) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[..8]);
    u64::from_be_bytes(raw)
}
