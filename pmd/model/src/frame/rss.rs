//! Receive-side scaling: the hash of a packet's flow.
//!
//! Toeplitz is computed from a table with one row per four bits of input, built when the TIR
//! is made, so that a packet costs two look-ups per byte of the hashed fields.
//!
//! # Sources
//! Reference 5.9 (`tirc`: `rx_hash_fn`, `rx_hash_symmetric`, field selector); Microsoft,
//! "Introduction to Receive Side Scaling", "RSS Hashing Functions" and "Verifying the RSS Hash
//! Calculation" for the function and its test vectors. Symmetric hashing puts the smaller of the
//! two addresses, and of the two ports, first: DPDK's driver says that this device does not XOR
//! them, and its other symmetric form is sorting (`RTE_ETH_HASH_FUNCTION_SYMMETRIC_TOEPLITZ_SORT`).
//! That it sorts, and that inverted XOR8 is the XOR of all input bytes inverted, is UNVERIFIED.

use super::packet::{L3, L4, Packet};

/// Bytes of the hash key. Source: reference 5.9, `rx_hash_toeplitz_key`.
pub const KEY_BYTES: usize = 40;
/// Most bytes that are hashed: two IPv6 addresses and two ports.
const MAX_INPUT_BYTES: usize = 36;

/// `rx_hash_fn` of a TIR. Source: reference 5.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HashFunction {
    /// No hash.
    #[default]
    None,
    /// Inverted XOR8.
    InvertedXor8,
    /// Toeplitz.
    Toeplitz,
}

impl HashFunction {
    /// Decodes `rx_hash_fn`.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::None),
            1 => Some(Self::InvertedXor8),
            2 => Some(Self::Toeplitz),
            _ => None,
        }
    }
}

/// `rx_hash_field_selector_outer` of a TIR. Source: reference 5.9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FieldSelector(pub u32);

impl FieldSelector {
    /// Source address.
    pub const SRC_IP: u32 = 1 << 0;
    /// Destination address.
    pub const DST_IP: u32 = 1 << 1;
    /// Layer-4 source port.
    pub const L4_SPORT: u32 = 1 << 2;
    /// Layer-4 destination port.
    pub const L4_DPORT: u32 = 1 << 3;
    /// IPsec security parameter index.
    pub const SPI: u32 = 1 << 4;
    /// The ports are those of UDP rather than TCP.
    pub const L4_UDP: u32 = 1 << 30;
    /// The addresses are those of IPv6 rather than IPv4.
    pub const L3_IPV6: u32 = 1 << 31;

    fn has(self, bits: u32) -> bool {
        self.0 & bits != 0
    }
}

/// Hash of one packet, with what went into it, as the CQE reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FlowHash {
    /// `rx_hash_result`.
    pub value: u32,
    /// `rx_hash_type`, layer 3: 0 nothing, 1 IPv4, 2 IPv6.
    pub l3: u32,
    /// `rx_hash_type`, layer 4: 0 nothing, 1 TCP, 2 UDP.
    pub l4: u32,
}

/// The hash of one TIR.
#[derive(Clone)]
pub struct FlowHasher {
    function: HashFunction,
    symmetric: bool,
    selector: FieldSelector,
    /// Row 2n is for the high, row 2n + 1 for the low four bits of input byte n.
    rows: Box<[[u32; 16]]>,
}

impl core::fmt::Debug for FlowHasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FlowHasher")
            .field("function", &self.function)
            .field("symmetric", &self.symmetric)
            .field("selector", &self.selector)
            .finish_non_exhaustive()
    }
}

impl FlowHasher {
    /// Prepares the hash of a TIR.
    #[must_use]
    pub fn new(
        function: HashFunction,
        symmetric: bool,
        key: &[u8; KEY_BYTES],
        selector: FieldSelector,
    ) -> Self {
        let rows = match function {
            HashFunction::Toeplitz => toeplitz_rows(key),
            _ => Box::default(),
        };
        Self { function, symmetric, selector, rows }
    }

    /// Hashes a packet. All zero when it lacks a field that is selected.
    ///
    /// A selector without ports takes any packet of its IP version, fragments included.
    #[inline]
    #[must_use]
    pub fn hash(&self, frame: &[u8], packet: &Packet) -> FlowHash {
        if self.function == HashFunction::None {
            return FlowHash::default();
        }
        self.hash_fields(frame, packet)
    }

    #[inline(never)]
    fn hash_fields(&self, frame: &[u8], packet: &Packet) -> FlowHash {
        let mut input = [0; MAX_INPUT_BYTES];
        let Some((len, l3, l4)) = self.gather(frame, packet, &mut input) else {
            return FlowHash::default();
        };
        let value = match self.function {
            HashFunction::Toeplitz => self.toeplitz(&input[..len]),
            _ => u32::from(!input[..len].iter().fold(0, |all, byte| all ^ byte)),
        };
        FlowHash { value, l3, l4 }
    }

    /// Collects the selected fields: their length, and what they are for the CQE.
    #[inline]
    fn gather(
        &self,
        frame: &[u8],
        packet: &Packet,
        input: &mut [u8; MAX_INPUT_BYTES],
    ) -> Option<(usize, u32, u32)> {
        let select = self.selector;
        let wants_ports = select.has(FieldSelector::L4_SPORT | FieldSelector::L4_DPORT);
        let (first, width, l3) = match packet.l3 {
            L3::Ipv4 if !select.has(FieldSelector::L3_IPV6) => (packet.l3_offset + 12, 4, 1),
            L3::Ipv6 if select.has(FieldSelector::L3_IPV6) => (packet.l3_offset + 8, 16, 2),
            _ => return None,
        };
        let l4 = match packet.l4 {
            _ if !wants_ports => 0,
            L4::Tcp if !select.has(FieldSelector::L4_UDP) => 1,
            L4::Udp if select.has(FieldSelector::L4_UDP) => 2,
            _ => return None,
        };
        let mut src = &frame[first..first + width];
        let mut dst = &frame[first + width..first + 2 * width];
        if self.symmetric && src > dst {
            (src, dst) = (dst, src);
        }
        let mut len = 0;
        let mut push = |bytes: &[u8]| {
            input[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        if select.has(FieldSelector::SRC_IP) {
            push(src);
        }
        if select.has(FieldSelector::DST_IP) {
            push(dst);
        }
        if wants_ports {
            let at = packet.l4_offset;
            let (mut sport, mut dport) = (&frame[at..at + 2], &frame[at + 2..at + 4]);
            if self.symmetric && sport > dport {
                (sport, dport) = (dport, sport);
            }
            if select.has(FieldSelector::L4_SPORT) {
                push(sport);
            }
            if select.has(FieldSelector::L4_DPORT) {
                push(dport);
            }
        }
        (len > 0).then_some((len, l3, l4))
    }

    #[inline]
    fn toeplitz(&self, input: &[u8]) -> u32 {
        let mut hash = 0;
        for (byte, rows) in input.iter().zip(self.rows.chunks_exact(2)) {
            hash ^= rows[0][usize::from(byte >> 4)] ^ rows[1][usize::from(byte & 0xf)];
        }
        hash
    }
}

/// For every four input bits, the XOR of the key windows that their set bits select.
fn toeplitz_rows(key: &[u8; KEY_BYTES]) -> Box<[[u32; 16]]> {
    let window = |bit: usize| {
        // 32 bits of the key, starting at `bit`, read as one big-endian number.
        let at = bit / 8;
        let mut wide = [0; 8];
        let len = (KEY_BYTES - at).min(8);
        wide[..len].copy_from_slice(&key[at..at + len]);
        crate::bits::low32(u64::from_be_bytes(wide) << (bit % 8) >> 32)
    };
    (0..MAX_INPUT_BYTES * 2)
        .map(|nibble| {
            core::array::from_fn(|value| {
                (0..4)
                    .filter(|bit| value >> (3 - bit) & 1 == 1)
                    .fold(0, |hash, bit| hash ^ window(nibble * 4 + bit))
            })
        })
        .collect()
}

#[cfg(test)]
#[path = "rss_tests.rs"]
mod tests;
