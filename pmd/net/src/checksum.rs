//! The Internet checksum (RFC 1071) and its incremental update (RFC 1624).

/// The ones' complement sum of `bytes` as big-endian 16-bit words, not folded and not inverted;
/// an odd last byte counts as the high half of a word.
///
/// # Shape
/// At most 2^32 bytes, so that the sum cannot overflow; frames are far shorter.
#[inline]
#[must_use]
pub fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    // Two words at a time: the sum of 32-bit words folds to the sum of their halves.
    let mut total: u64 = (&mut words)
        .map(|word| u64::from(u32::from_be_bytes([word[0], word[1], word[2], word[3]])))
        .sum();
    let rest = words.remainder();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    total += u64::from(u32::from_be_bytes(last));
    total
}

/// Folds a sum to 16 bits.
#[inline]
#[must_use]
pub fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    // Folded twice from 32 bits, the sum is below 2^16.
    (sum & 0xffff) as u16
}

/// The checksum field for a sum over everything else.
#[inline]
#[must_use]
pub fn finish(sum: u64) -> u16 {
    !fold(sum)
}

/// Whether a sum that includes the checksum field is that of intact data.
#[inline]
#[must_use]
pub fn is_intact(sum: u64) -> bool {
    fold(sum) == 0xffff
}

/// The checksum field after one of the words it covers changed from `old` to `new`.
///
/// # Source
/// RFC 1624, equation 3.
#[inline]
#[must_use]
pub fn update(field: u16, old: u16, new: u16) -> u16 {
    finish(u64::from(!field) + u64::from(!old) + u64::from(new))
}

/// The sum of the IPv4 pseudo header.
#[must_use]
pub fn pseudo_v4(source: [u8; 4], destination: [u8; 4], protocol: u8, len_bytes: u16) -> u64 {
    sum(&source) + sum(&destination) + u64::from(protocol) + u64::from(len_bytes)
}

/// The sum of the IPv6 pseudo header over `addresses`: source and destination as they stand in the
/// header, 32 bytes.
#[must_use]
pub fn pseudo_v6(addresses: &[u8], next_header: u8, len_bytes: u32) -> u64 {
    sum(addresses) + u64::from(next_header) + u64::from(len_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 1071 section 1.1, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut total = 0u32;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            total = (total & 0xffff) + (total >> 16);
        }
        u16::try_from(total).unwrap()
    }

    #[test]
    fn the_example_of_rfc_1071() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(fold(sum(&bytes)), 0xddf2);
        assert_eq!(finish(sum(&bytes)), 0x220d);
    }

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: 0xdd2f, a word from 0x5555 to 0x3285, gives 0x0000 and not 0xffff.
        assert_eq!(update(0xdd2f, 0x5555, 0x3285), 0x0000);
    }

    #[test]
    fn the_largest_sums_fold() {
        assert_eq!(fold(0), 0);
        assert_eq!(fold(0xffff), 0xffff);
        assert_eq!(fold(0x1_0000), 1);
        assert_eq!(fold(u64::MAX), 0xffff);
        assert_eq!(fold(sum(&[0xff; 9216])), 0xffff);
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_definition(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let folded = fold(sum(&bytes));
            let expected = plain(&bytes);
            // Zero has two representations.
            prop_assert!(folded == expected || folded % 0xffff == expected % 0xffff);
        }

        #[test]
        fn an_update_equals_a_recomputation(
            mut words in prop::collection::vec(any::<u8>(), 20..60),
            new in any::<u16>(),
        ) {
            let field = finish(sum(&words));
            let old = u16::from_be_bytes([words[4], words[5]]);
            words[4..6].copy_from_slice(&new.to_be_bytes());
            let updated = update(field, old, new);
            prop_assert!(is_intact(sum(&words) + u64::from(updated)) || fold(sum(&words)) == 0);
        }
    }
}
