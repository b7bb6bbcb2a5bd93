//! Stateless offloads: checksums, VLAN tags, segmentation.
//!
//! Sums are the ones' complement sums of RFC 1071, over big-endian 16-bit words. All functions work
//! in place on a frame that is already parsed; none allocates.
//!
//! Sources: reference 6.3 (Ethernet segment) and 6.7 (CQE); RFC 1071; RFC 768 (UDP zero rule);
//! RFC 8200 8.1 (IPv6 pseudo header).

use super::packet::{
    Fragment, L3, L4, Lengths, Malformed, Packet, TPID_CTAG, TPID_STAG, VLAN_TAG_BYTES,
};
use crate::bits::{low16, low32};

/// Sum of `bytes` as big-endian 16-bit words, folded to 16 bits; an odd last byte is a high byte.
#[inline]
#[must_use]
pub fn sum16(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// Sum of 33 bits, to be added to others. The ones' complement sum does not depend on the word size
/// or, apart from a final swap, on the byte order (RFC 1071 2), so it adds native words; carries go
/// back in at the low end.
#[inline]
fn sum(bytes: &[u8]) -> u64 {
    let mut total: u64 = 0;
    let mut add = |word: u64| {
        let (sum, carry) = total.overflowing_add(word);
        // After a carry the sum is not all ones.
        total = sum + u64::from(carry);
    };
    let (words, mut rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| add(u64::from_ne_bytes(*word)));
    if let Some((four, behind)) = rest.split_first_chunk::<4>() {
        add(u64::from(u32::from_ne_bytes(*four)));
        rest = behind;
    }
    if let Some((two, behind)) = rest.split_first_chunk::<2>() {
        add(u64::from(u16::from_ne_bytes(*two)));
        rest = behind;
    }
    if let [last] = rest {
        add(u64::from(u16::from_ne_bytes([*last, 0])));
    }
    (total >> 32) + (total & 0xffff_ffff)
}

/// What a number of 16 bits adds to a [`sum`].
#[inline]
fn addend(number: u64) -> u64 {
    u64::from(low16(number).to_be())
}

/// Adds the carries of a [`sum`] back in until 16 bits are left: the checksum as a number.
#[inline]
fn fold(total: u64) -> u16 {
    let (half, carry) = low32(total).overflowing_add(low32(total >> 32));
    // After a carry the sum is not all ones.
    let half = half + u32::from(carry);
    // Both halves become their sum; the carry out of the lower one goes into the upper one.
    let both = half.wrapping_add(half.rotate_left(16));
    u16::from_be(low16((both >> 16).into()))
}

/// Checksums of a received frame, as its completion reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verified {
    /// The IPv4 header checksum is right, or the packet is IPv6, which has none.
    pub l3_ok: bool,
    /// The TCP or UDP checksum is right, or it is UDP over IPv4 without one.
    pub l4_ok: bool,
    /// Sum over what stands behind the layer-2 header.
    pub check_sum: u16,
}

/// Checks a received frame.
///
/// `check_sum` covers the IP packet, without the padding of a short frame (Linux adds that itself),
/// unless `full` asks for everything behind the layer-2 header (capability `cqe_checksum_full`).
/// For frames that are not IP it always covers everything.
///
/// # Source
/// Reference 6.7, `check_sum`, `hds_ip_ext`.
#[inline]
#[must_use]
pub fn verify(frame: &[u8], packet: &Packet, full: bool) -> Verified {
    let rest = frame.get(packet.l3_offset..).unwrap_or_default();
    if packet.l3 == L3::None {
        return Verified { check_sum: sum16(rest), ..Verified::default() };
    }
    let header = &frame[packet.l3_offset..packet.l4_offset];
    // Mostly it has no options, and the loop is laid out.
    let header_sum = match <&[u8; 20]>::try_from(header) {
        Ok(plain) => sum(plain),
        Err(_) => sum(header),
    };
    let l4_sum = sum(&frame[packet.l4_offset..packet.l3_end]);
    // Headers of IP are a multiple of four bytes long, so the two sums add up without a shift.
    let mut total = header_sum + l4_sum;
    if full {
        let padding = sum(&frame[packet.l3_end..]);
        let odd = (packet.l3_end - packet.l3_offset) % 2 == 1;
        total += if odd { addend(fold(padding).swap_bytes().into()) } else { padding };
    }
    // The sum over a header that contains its own right checksum is -0.
    let fits = packet.malformed != Some(Malformed::Ipv6Length);
    let l3_ok = fits && (packet.l3 == L3::Ipv6 || fold(header_sum) == 0xffff);
    let l4_ok = match packet.l4 {
        _ if !fits => false,
        L4::None => false,
        L4::Udp if packet.l3 == L3::Ipv4 && is_zero(frame, packet.l4_offset + 6) => true,
        L4::Udp if is_zero(frame, packet.l4_offset + 6) => false,
        L4::Udp => {
            // A datagram may be shorter than the IP packet; the checksum covers the datagram.
            let end = packet.l4_offset + udp_len(frame, packet);
            fold(sum(&frame[packet.l4_offset..end]) + pseudo_sum(frame, packet, end)) == 0xffff
        }
        L4::Tcp => fold(l4_sum + pseudo_sum(frame, packet, packet.l3_end)) == 0xffff,
    };
    Verified { l3_ok, l4_ok, check_sum: fold(total) }
}

#[inline]
fn is_zero(frame: &[u8], at: usize) -> bool {
    frame[at..at + 2] == [0, 0]
}

#[inline]
fn udp_len(frame: &[u8], packet: &Packet) -> usize {
    usize::from(u16::from_be_bytes([frame[packet.l4_offset + 4], frame[packet.l4_offset + 5]]))
}

/// Sum over the IPv4 header with its options.
#[inline]
fn ipv4_sum(frame: &[u8], packet: &Packet) -> u64 {
    sum(&frame[packet.l3_offset..packet.l4_offset])
}

/// Sum over the pseudo header of TCP and UDP for a segment that ends at `end`.
#[inline]
fn pseudo_sum(frame: &[u8], packet: &Packet, end: usize) -> u64 {
    let addresses = match packet.l3 {
        L3::Ipv4 => packet.l3_offset + 12..packet.l3_offset + 20,
        _ => packet.l3_offset + 8..packet.l3_offset + 40,
    };
    let len_bytes = (end - packet.l4_offset) as u64;
    sum(&frame[addresses])
        + addend(packet.ip_protocol.into())
        + addend(len_bytes >> 16)
        + addend(len_bytes & 0xffff)
}

/// Fills in checksums of a frame to be sent: the IPv4 header's, the TCP or UDP one.
///
/// What stood in the fields is overwritten and not used. A layer that the frame does not have, and
/// the layer-4 checksum of a fragment, are left alone. A UDP checksum that comes out as 0 is
/// sent as 0xffff, because 0 means "none" (RFC 768).
///
/// # Source
/// Reference 6.3, `cs_flags`.
#[inline]
pub fn insert_checksums(frame: &mut [u8], packet: &Packet, l3: bool, l4: bool) {
    if l3 && packet.l3 == L3::Ipv4 {
        put16(frame, packet.l3_offset + 10, 0);
        let value = !fold(ipv4_sum(frame, packet));
        put16(frame, packet.l3_offset + 10, value);
    }
    if !l4 || packet.fragment != Fragment::No {
        return;
    }
    let (field, end) = match packet.l4 {
        L4::None => return,
        L4::Tcp => (packet.l4_offset + 16, packet.l3_end),
        L4::Udp => (packet.l4_offset + 6, packet.l4_offset + udp_len(frame, packet)),
    };
    put16(frame, field, 0);
    let value = !fold(sum(&frame[packet.l4_offset..end]) + pseudo_sum(frame, packet, end));
    let value = if value == 0 && packet.l4 == L4::Udp { 0xffff } else { value };
    put16(frame, field, value);
}

#[inline]
fn put16(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[inline]
fn get16(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Puts a VLAN tag behind the addresses, into a frame that was placed four bytes into `buffer`.
///
/// # Shape
/// `buffer` is the frame's place with the tag: the first four bytes are free, the untagged frame
/// follows, at least 12 bytes of it.
#[inline]
pub fn insert_vlan(buffer: &mut [u8], s_tag: bool, tci: u16) {
    buffer.copy_within(VLAN_TAG_BYTES..VLAN_TAG_BYTES + 12, 0);
    put16(buffer, 12, if s_tag { TPID_STAG } else { TPID_CTAG });
    put16(buffer, 14, tci);
}

/// The tag that a queue without `vsd` strips: an outermost C-tag.
#[inline]
#[must_use]
pub fn strippable(packet: &Packet) -> Option<u16> {
    (packet.tags > 0 && packet.tpid[0] == TPID_CTAG).then_some(packet.tci[0])
}

/// Why a large-send request cannot be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TsoError {
    /// The segment size is 0.
    ZeroMss,
    /// The inline header does not end with the header of TCP or UDP over IP.
    Header,
    /// A segment would be longer than an IP packet can be.
    TooLong,
}

/// A plan for cutting one large payload into segments.
///
/// # Source
/// Reference 6.3: "inline header = all headers up to TCP; hardware replicates headers". The
/// changes per segment are those that any segmenting sender makes (RFC 9293 3.8; Linux
/// `Documentation/networking/segmentation-offloads`): lengths, IPv4 identification, sequence
/// number, FIN and PSH on the last one only, CWR on the first one only, checksums.
#[derive(Debug, Clone, Copy)]
pub struct Tso {
    packet: Packet,
    header_bytes: usize,
    mss: usize,
    payload_bytes: usize,
}

const TCP_FLAGS: usize = 13;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

impl Tso {
    /// Plans the cutting of `payload_bytes` behind `header`.
    ///
    /// # Errors
    /// [`TsoError`]: headers that cannot be cut, or a segment size that does not fit.
    pub fn new(header: &[u8], mss: usize, payload_bytes: usize) -> Result<Self, TsoError> {
        if mss == 0 {
            return Err(TsoError::ZeroMss);
        }
        let packet = Packet::parse_with(header, Lengths::HeadersOnly);
        if packet.l4 == L4::None || packet.payload_offset != header.len() {
            return Err(TsoError::Header);
        }
        let largest = header.len() - packet.l3_offset + mss.min(payload_bytes);
        if largest > usize::from(u16::MAX) {
            return Err(TsoError::TooLong);
        }
        Ok(Self { packet, header_bytes: header.len(), mss, payload_bytes })
    }

    /// Number of segments, at least one.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.payload_bytes.div_ceil(self.mss).max(1)
    }

    /// Offset and length of segment `index` in the payload.
    #[inline]
    #[must_use]
    pub fn payload_of(&self, index: usize) -> (usize, usize) {
        let start = (index * self.mss).min(self.payload_bytes);
        (start, self.mss.min(self.payload_bytes - start))
    }

    /// Length in bytes of segment `index` on the wire.
    #[inline]
    #[must_use]
    pub fn frame_bytes(&self, index: usize) -> usize {
        self.header_bytes + self.payload_of(index).1
    }

    /// Turns the original header at the front of `frame` into that of segment `index`.
    ///
    /// The checksums of IP and of TCP or UDP are put in if `l3` and `l4` ask for them; else what
    /// stands there stays.
    ///
    /// # Shape
    /// `frame` is the header followed by exactly the payload of [`Tso::payload_of`].
    pub fn finish(&self, frame: &mut [u8], index: usize, (l3, l4): (bool, bool)) {
        let mut packet = self.packet;
        packet.l3_end = frame.len();
        let l3_bytes = frame.len() - packet.l3_offset;
        match packet.l3 {
            L3::Ipv4 => {
                put16(frame, packet.l3_offset + 2, low16(l3_bytes as u64));
                let id = get16(frame, packet.l3_offset + 4).wrapping_add(low16(index as u64));
                put16(frame, packet.l3_offset + 4, id);
            }
            _ => put16(frame, packet.l3_offset + 4, low16(l3_bytes as u64 - 40)),
        }
        if packet.l4 == L4::Tcp {
            self.finish_tcp(frame, index);
        } else {
            let udp_bytes = frame.len() - packet.l4_offset;
            put16(frame, packet.l4_offset + 4, low16(udp_bytes as u64));
        }
        insert_checksums(frame, &packet, l3, l4);
    }

    fn finish_tcp(&self, frame: &mut [u8], index: usize) {
        let l4 = self.packet.l4_offset;
        let offset = crate::bits::low32(self.payload_of(index).0 as u64);
        let seq = u32::from_be_bytes([frame[l4 + 4], frame[l4 + 5], frame[l4 + 6], frame[l4 + 7]]);
        frame[l4 + 4..l4 + 8].copy_from_slice(&seq.wrapping_add(offset).to_be_bytes());
        if index + 1 != self.segments() {
            frame[l4 + TCP_FLAGS] &= !(TCP_FIN | TCP_PSH);
        }
        if index != 0 {
            frame[l4 + TCP_FLAGS] &= !TCP_CWR;
        }
    }
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
