//! The invariant CRC of RoCEv2: what no router may change, from the IP header to the padding.

/// Bytes of the ICRC at the end of every packet.
pub const ICRC_BYTES: usize = 4;

/// Bytes of a UDP header and of a base transport header.
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
/// What stands for the local route header that RoCE does not have.
const LRH: [u8; 8] = [0xff; 8];
/// Longest run of bytes with fields that do not count: IPv6, UDP, BTH.
const MASKED_BYTES: usize = 40 + UDP_BYTES + BTH_BYTES;

/// The ICRC of a packet, from its IP header to its padding. It goes onto the wire least significant
/// byte first.
///
/// # Shape
/// `packet` starts with an IPv4 header without options or with an IPv6 header without extensions,
/// and is long enough for UDP and BTH; anything shorter has a CRC of what is there.
///
/// # Source
/// Reference 7.3; IBTA vol. 1 annex A17, "ICRC".
#[must_use]
pub fn icrc(packet: &[u8]) -> u32 {
    let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let ip_bytes = if is_v6 { 40 } else { 20 };
    let split = packet.len().min(ip_bytes + UDP_BYTES + BTH_BYTES);
    let mut head = [0; MASKED_BYTES];
    let head = &mut head[..split];
    head.copy_from_slice(&packet[..split]);
    let mut mask = |at: usize, bits: u8| {
        if let Some(byte) = head.get_mut(at) {
            *byte |= bits;
        }
    };
    if is_v6 {
        // Traffic class and flow label; the version counts.
        mask(0, 0x0f);
        (1..4).for_each(|at| mask(at, 0xff));
        mask(7, 0xff);
    } else {
        [1, 8, 10, 11].into_iter().for_each(|at| mask(at, 0xff));
    }
    // The UDP checksum, and the byte of the BTH with FECN and BECN.
    [ip_bytes + 6, ip_bytes + 7, ip_bytes + UDP_BYTES + 4]
        .into_iter()
        .for_each(|at| mask(at, 0xff));
    let mut crc = crc32fast::Hasher::new();
    crc.update(&LRH);
    crc.update(head);
    crc.update(&packet[split..]);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::testing::hex;

    /// The test vectors of reference 7.3.
    const V4: &str = "450200301234400040110000c0a80001c0a80002 c00012b7001c0000 \
                      0440ffff0000001280000345 00010203";
    const V6: &str = "60200000001c1140fe80000000000000020000fffe000001\
                      fe80000000000000020000fffe000002 c00012b7001c0000 \
                      0440ffff0000001280000345 00010203";

    #[test]
    fn the_vectors_of_the_reference_hold() {
        assert_eq!(icrc(&hex(V4)), 0x781f_8bcd);
        assert_eq!(icrc(&hex(V4)).to_le_bytes(), [0xcd, 0x8b, 0x1f, 0x78]);
        assert_eq!(icrc(&hex(V6)), 0xa405_aaf5);
    }

    /// Every byte counts, except those that routers change.
    fn invariant(packet: &str, free: &[(usize, u8)]) {
        let packet = hex(packet);
        let whole = icrc(&packet);
        for at in 0..packet.len() {
            for bit in 0..8 {
                let mut changed = packet.clone();
                changed[at] ^= 1 << bit;
                if at == 0 && bit >= 4 {
                    continue;
                }
                let mask = free.iter().find(|(place, _)| *place == at).map_or(0, |(_, mask)| *mask);
                let is_free = mask >> bit & 1 != 0;
                assert_eq!(icrc(&changed) == whole, is_free, "byte {at} bit {bit}");
            }
        }
    }

    #[test]
    fn only_what_routers_change_does_not_count() {
        invariant(V4, &[(1, 255), (8, 255), (10, 255), (11, 255), (26, 255), (27, 255), (32, 255)]);
        let v6 = [(0, 15), (1, 255), (2, 255), (3, 255), (7, 255), (46, 255), (47, 255), (52, 255)];
        invariant(V6, &v6);
    }

    #[test]
    fn short_input_is_no_reason_to_panic() {
        let packet = hex(V6);
        for len in 0..packet.len() {
            let _ = icrc(&packet[..len]);
        }
    }
}
