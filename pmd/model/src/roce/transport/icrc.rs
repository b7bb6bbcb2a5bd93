//! The invariant CRC of RoCE: what no router may change, from the network header to the padding.

use super::GRH_NEXT_HEADER;

/// Bytes of the ICRC at the end of every packet.
pub const ICRC_BYTES: usize = 4;

/// Bytes of a UDP header and of a base transport header.
const UDP_BYTES: usize = 8;
const BTH_BYTES: usize = 12;
/// What stands for the local route header that RoCE does not have.
const LRH: [u8; 8] = [0xff; 8];
/// Longest run of bytes with fields that do not count: IPv6, UDP, BTH.
const MASKED_BYTES: usize = 40 + UDP_BYTES + BTH_BYTES;

/// The ICRC of a packet, from its network header to its padding. It goes onto the wire least
/// significant byte first.
///
/// # Shape
/// `packet` starts with an IPv4 header without options, with an IPv6 header without extensions, or
/// with a global route header, which is told from IPv6 by its next header and has no UDP behind it.
/// It is long enough for UDP and BTH; anything shorter has a CRC of what is there.
///
/// # Source
/// Reference 7.3; IBTA vol. 1 annex A17, "ICRC".
#[must_use]
pub fn icrc(packet: &[u8]) -> u32 {
    icrc_of_parts(packet, &[])
}

/// The ICRC of a packet in two parts, of which the first has at least the headers up to the base
/// transport header: see [`icrc`].
#[must_use]
pub fn icrc_of_parts(packet: &[u8], rest: &[u8]) -> u32 {
    let is_v6 = packet.first().is_some_and(|first| first >> 4 == 6);
    let ip_bytes = if is_v6 { 40 } else { 20 };
    let is_grh = is_v6 && packet.get(6) == Some(&GRH_NEXT_HEADER);
    let udp_bytes = if is_grh { 0 } else { UDP_BYTES };
    let bth = ip_bytes + udp_bytes;
    let split = packet.len().min(bth + BTH_BYTES);
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
    if !is_grh {
        // The UDP checksum.
        [ip_bytes + 6, ip_bytes + 7].into_iter().for_each(|at| mask(at, 0xff));
    }
    // The byte of the BTH with FECN and BECN.
    mask(bth + 4, 0xff);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&LRH);
    crc.update(head);
    crc.update(&packet[split..]);
    crc.update(rest);
    crc.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roce::transport::testing::hex;

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
        let (head, rest) = V6.split_at(V6.len() - 8);
        assert_eq!(icrc_of_parts(&hex(head), &hex(rest)), 0xa405_aaf5);
        assert_eq!(icrc(&hex(V1)), 0x30af_e926);
    }

    /// RoCEv1: computed with zlib from Python, see `packet_tests`.
    const V1: &str = "60200000 0014 1b 40 fe80000000000000020000fffe000001\
                      fe80000000000000020000fffe000002 0440ffff0000001280000345 00010203";

    /// From IPv4 to the padding of a congestion notification that a ConnectX-4 Lx sent, as captured
    /// by others: scapy, `test/contrib/roce.uts`. Its ICRC on the wire is `82 fd 00 2a`.
    const HARDWARE: &str = "45c2003c718c40004011 9161 0a001101 0a001201 000012b700280000 \
                            8100ffff4000011800000000 00000000000000000000000000000000";

    #[test]
    fn hardware_computes_the_same() {
        assert_eq!(icrc(&hex(HARDWARE)).to_le_bytes(), [0x82, 0xfd, 0x00, 0x2a]);
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
        // No UDP checksum, and the BTH right behind the header.
        invariant(V1, &[(0, 15), (1, 255), (2, 255), (3, 255), (7, 255), (44, 255)]);
    }

    #[test]
    fn short_input_is_no_reason_to_panic() {
        let packet = hex(V6);
        for len in 0..packet.len() {
            let _ = icrc(&packet[..len]);
        }
    }
}
