//! Times that codes in headers and contexts stand for.

/// Waiting times of RNR NAKs in units of 10 microseconds. Source: reference 7.5, "RNR timer".
const RNR_TENS_US: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// Time that an RNR timer code stands for.
#[must_use]
pub fn rnr_time_ns(code: u8) -> u64 {
    RNR_TENS_US[usize::from(code & 0x1f)] * 10_000
}

/// Time that an `ack_timeout` code stands for: 4.096 us times 2^code; `None` for ever.
///
/// # Source
/// Reference 7.6, "ack timeout".
#[must_use]
pub fn ack_timeout_ns(code: u32) -> Option<u64> {
    (code != 0).then(|| 4096_u64 << (code & 0x1f))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_times_are_those_of_the_table() {
        assert_eq!((rnr_time_ns(0), rnr_time_ns(1)), (655_360_000, 10_000));
        assert_eq!((rnr_time_ns(12), rnr_time_ns(31)), (640_000, 491_520_000));
        assert_eq!((ack_timeout_ns(0), ack_timeout_ns(14)), (None, Some(67_108_864)));
    }
}
