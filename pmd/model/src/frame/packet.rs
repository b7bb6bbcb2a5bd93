//! What stands at the front of an Ethernet frame: tags, layer 3, layer 4.
//!
//! [`Packet::parse`] is total: any bytes give an answer, and nothing panics. A header that is cut
//! short or contradicts itself leaves its layer unknown and says why in [`Packet::malformed`]; the
//! frame itself is still good at layer 2, and a device delivers it without checksum claims.
//!
//! Sources: IEEE 802.1Q-2018 9.5 (tags); RFC 791 3.1 (IPv4); RFC 8200 3 and 4 (IPv6 and its
//! extension headers); RFC 9293 3.1 (TCP); RFC 768 (UDP).

/// Ethernet header without tags.
pub const ETH_HEADER_BYTES: usize = 14;
/// One VLAN tag.
pub const VLAN_TAG_BYTES: usize = 4;
/// Smallest frame on a wire, without its frame check sequence. Source: IEEE 802.3-2018 4.4.2.
pub const MIN_FRAME_BYTES: usize = 60;

/// EtherType of an 802.1Q tag (C-tag).
pub const TPID_CTAG: u16 = 0x8100;
/// EtherType of an 802.1ad tag (S-tag).
pub const TPID_STAG: u16 = 0x88a8;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;

/// IP protocol numbers. Source: IANA "Protocol Numbers".
pub(crate) mod protocol {
    pub(crate) const HOP_BY_HOP: u8 = 0;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const ROUTING: u8 = 43;
    pub(crate) const FRAGMENT: u8 = 44;
    pub(crate) const AUTHENTICATION: u8 = 51;
    pub(crate) const DESTINATION: u8 = 60;
}

/// Extension headers that are followed before the parser gives up.
const MAX_EXTENSIONS: usize = 8;

/// Whom the destination address names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cast {
    /// One station.
    #[default]
    Unicast,
    /// A group.
    Multicast,
    /// Everyone.
    Broadcast,
}

impl Cast {
    /// Whom an Ethernet address names.
    #[inline]
    #[must_use]
    pub fn of(address: &[u8; 6]) -> Self {
        if address[0] & 1 == 0 {
            Self::Unicast
        } else if *address == [0xff; 6] {
            Self::Broadcast
        } else {
            Self::Multicast
        }
    }
}

/// Layer 3 of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum L3 {
    /// Neither version of IP, or not readable.
    #[default]
    None,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Layer 4 of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum L4 {
    /// Neither TCP nor UDP, a fragment, or not readable.
    #[default]
    None,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Whether an IP packet is a piece of a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fragment {
    /// Not a fragment.
    #[default]
    No,
    /// The piece that starts with the layer-4 header.
    First,
    /// Any other piece.
    Later,
}

/// Reason for which a layer could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than an Ethernet header.
    Ethernet,
    /// A VLAN tag is cut short.
    Vlan,
    /// An IPv4 header is cut short, has another version or a header length below 20.
    Ipv4Header,
    /// The IPv4 total length is below the header's or beyond the frame.
    Ipv4Length,
    /// An IPv6 header is cut short or has another version.
    Ipv6Header,
    /// The IPv6 payload length is beyond the frame; its headers are read nevertheless.
    Ipv6Length,
    /// An extension header is cut short, or there are more than the parser follows.
    Ipv6Extension,
    /// A TCP header is cut short or its data offset is below 5.
    Tcp,
    /// A UDP header is cut short or its length does not fit the packet.
    Udp,
}

/// Trust in the lengths that headers state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// They must agree with the bytes at hand: a whole frame.
    Whole,
    /// They are not looked at: the bytes are headers only, as in an LSO descriptor.
    HeadersOnly,
}

/// Positions and kinds of a frame's headers. Offsets are in bytes from the start of the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Packet {
    /// Whom the destination address names.
    pub cast: Cast,
    /// VLAN tags found, 0 to 2; further ones count as payload.
    pub tags: u8,
    /// EtherType of each tag.
    pub tpid: [u16; 2],
    /// Priority, DEI and id of each tag.
    pub tci: [u16; 2],
    /// EtherType behind the tags.
    pub ethertype: u16,
    /// Layer 3.
    pub l3: L3,
    /// Start of what stands behind the layer-2 header, whatever it is.
    pub l3_offset: usize,
    /// End of the IP packet; bytes behind it are padding. The end of the frame if not IP.
    pub l3_end: usize,
    /// Protocol behind all IP headers.
    pub ip_protocol: u8,
    /// Whether it is a fragment.
    pub fragment: Fragment,
    /// Layer 4.
    pub l4: L4,
    /// Start of what stands behind the IP headers.
    pub l4_offset: usize,
    /// Start of the data behind the layer-4 header; `l4_offset` if there is none.
    pub payload_offset: usize,
    /// The first thing that was wrong.
    pub malformed: Option<Malformed>,
}

impl Packet {
    /// Reads the headers of a whole frame.
    #[inline]
    #[must_use]
    pub fn parse(frame: &[u8]) -> Self {
        Self::parse_with(frame, Lengths::Whole)
    }

    /// Reads headers, believing their lengths or not.
    #[inline]
    #[must_use]
    pub fn parse_with(frame: &[u8], lengths: Lengths) -> Self {
        let mut packet = Self { l3_end: frame.len(), ..Self::default() };
        if let Err(reason) = packet.layer2(frame, lengths) {
            packet.malformed = Some(reason);
        }
        packet
    }

    #[inline]
    fn layer2(&mut self, frame: &[u8], lengths: Lengths) -> Result<(), Malformed> {
        let header = frame.first_chunk::<ETH_HEADER_BYTES>().ok_or(Malformed::Ethernet)?;
        let [destination @ .., _, _, _, _, _, _, _, _] = header;
        self.cast = Cast::of(destination);
        self.ethertype = u16::from_be_bytes([header[12], header[13]]);
        self.l3_offset = ETH_HEADER_BYTES;
        while matches!(self.ethertype, TPID_CTAG | TPID_STAG) && self.tags < 2 {
            let tag = chunk::<4>(frame, self.l3_offset).ok_or(Malformed::Vlan)?;
            let at = usize::from(self.tags);
            self.tpid[at] = self.ethertype;
            self.tci[at] = u16::from_be_bytes([tag[0], tag[1]]);
            self.ethertype = u16::from_be_bytes([tag[2], tag[3]]);
            self.tags += 1;
            self.l3_offset += VLAN_TAG_BYTES;
        }
        self.l4_offset = self.l3_offset;
        self.payload_offset = self.l3_offset;
        match self.ethertype {
            ETHERTYPE_IPV4 => self.ipv4(frame, lengths),
            ETHERTYPE_IPV6 => self.ipv6(frame, lengths),
            _ => Ok(()),
        }
    }

    #[inline]
    fn ipv4(&mut self, frame: &[u8], lengths: Lengths) -> Result<(), Malformed> {
        let header = chunk::<20>(frame, self.l3_offset).ok_or(Malformed::Ipv4Header)?;
        let header_bytes = usize::from(header[0] & 0xf) * 4;
        let left = frame.len() - self.l3_offset;
        if header[0] >> 4 != 4 || header_bytes < 20 || header_bytes > left {
            return Err(Malformed::Ipv4Header);
        }
        if lengths == Lengths::Whole {
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            if total < header_bytes || total > left {
                return Err(Malformed::Ipv4Length);
            }
            self.l3_end = self.l3_offset + total;
        }
        self.l3 = L3::Ipv4;
        self.ip_protocol = header[9];
        let fragment = u16::from_be_bytes([header[6], header[7]]);
        // Bit 13 is "more fragments", bits 12:0 the offset in 8-byte units.
        self.fragment = match (fragment & 0x1fff, fragment & 0x2000) {
            (0, 0) => Fragment::No,
            (0, _) => Fragment::First,
            _ => Fragment::Later,
        };
        self.l4_offset = self.l3_offset + header_bytes;
        self.payload_offset = self.l4_offset;
        self.layer4(frame, lengths)
    }

    fn ipv6(&mut self, frame: &[u8], lengths: Lengths) -> Result<(), Malformed> {
        let header = chunk::<40>(frame, self.l3_offset).ok_or(Malformed::Ipv6Header)?;
        if header[0] >> 4 != 6 {
            return Err(Malformed::Ipv6Header);
        }
        let start = self.l3_offset + 40;
        // What is missing at the end hides no header: rdma-core's flow tests count the IPv6 header
        // in its payload length, and their frames are matched by address and port all the same.
        let mut fits = true;
        if lengths == Lengths::Whole {
            let end = start + usize::from(u16::from_be_bytes([header[4], header[5]]));
            fits = end <= frame.len();
            self.l3_end = end.min(frame.len());
        }
        self.l3 = L3::Ipv6;
        self.ip_protocol = header[6];
        self.l4_offset = start;
        self.payload_offset = start;
        let rest = self.extensions(frame).and_then(|()| self.layer4(frame, lengths));
        if fits { rest } else { Err(Malformed::Ipv6Length) }
    }

    /// Follows the chain of extension headers up to the layer-4 header.
    fn extensions(&mut self, frame: &[u8]) -> Result<(), Malformed> {
        for number in 0..MAX_EXTENSIONS {
            let known = match self.ip_protocol {
                // Only right behind the IPv6 header; elsewhere it is none. Source: RFC 8200 4.
                protocol::HOP_BY_HOP => number == 0,
                protocol::ROUTING
                | protocol::DESTINATION
                | protocol::FRAGMENT
                | protocol::AUTHENTICATION => true,
                _ => false,
            };
            // Behind the header of a later fragment stands data, not a header.
            if !known || self.fragment == Fragment::Later {
                return Ok(());
            }
            let extension = chunk::<8>(frame, self.l4_offset).ok_or(Malformed::Ipv6Extension)?;
            let units = usize::from(extension[1]);
            let len_bytes = match self.ip_protocol {
                protocol::FRAGMENT => 8,
                // Its fixed part alone has 12 bytes. Source: RFC 4302 2.
                protocol::AUTHENTICATION if units == 0 => return Err(Malformed::Ipv6Extension),
                protocol::AUTHENTICATION => (units + 2) * 4,
                _ => (units + 1) * 8,
            };
            if self.l4_offset + len_bytes > self.l3_end {
                return Err(Malformed::Ipv6Extension);
            }
            if self.ip_protocol == protocol::FRAGMENT {
                let word = u16::from_be_bytes([extension[2], extension[3]]);
                // Bits 15:3 are the offset, bit 0 is "more fragments"; both zero is an atomic
                // fragment (RFC 6946), which is a whole packet.
                self.fragment = match (word >> 3, word & 1) {
                    (0, 0) => self.fragment,
                    (0, _) => Fragment::First,
                    _ => Fragment::Later,
                };
            }
            self.ip_protocol = extension[0];
            self.l4_offset += len_bytes;
            self.payload_offset = self.l4_offset;
        }
        Err(Malformed::Ipv6Extension)
    }

    #[inline]
    fn layer4(&mut self, frame: &[u8], lengths: Lengths) -> Result<(), Malformed> {
        if self.fragment != Fragment::No {
            return Ok(());
        }
        let rest = frame.get(self.l4_offset..self.l3_end).unwrap_or_default();
        match self.ip_protocol {
            protocol::TCP => {
                let header = rest.first_chunk::<20>().ok_or(Malformed::Tcp)?;
                let header_bytes = usize::from(header[12] >> 4) * 4;
                if header_bytes < 20 || header_bytes > rest.len() {
                    return Err(Malformed::Tcp);
                }
                self.l4 = L4::Tcp;
                self.payload_offset = self.l4_offset + header_bytes;
            }
            protocol::UDP => {
                let header = rest.first_chunk::<8>().ok_or(Malformed::Udp)?;
                let len = usize::from(u16::from_be_bytes([header[4], header[5]]));
                if lengths == Lengths::Whole && (len < 8 || len > rest.len()) {
                    return Err(Malformed::Udp);
                }
                self.l4 = L4::Udp;
                self.payload_offset = self.l4_offset + 8;
            }
            _ => {}
        }
        Ok(())
    }
}

/// `N` bytes at `at`, if they are there.
#[inline]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>()
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
