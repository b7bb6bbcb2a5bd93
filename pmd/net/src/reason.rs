//! Why a received frame was not forwarded: one counter per reason.

#[cfg(feature = "serde")]
use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why a frame ended in this process. Every received frame is forwarded or has a reason.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// All reasons, in the order of reports.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name in reports, in snake case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

reasons! {
    /// The mode counts received frames and frees them: rxonly, txonly.
    Consumed = "consumed",
    /// The driver or the device took the frame for sending and then refused it; the counters of the
    /// send queue say why.
    TxRefused = "tx_refused",
    /// The frame was in hand when the run ended.
    Stopped = "stopped",
    /// The device found a wrong IP, TCP or UDP checksum (with `--checksum`).
    BadChecksum = "bad_checksum",
    /// The data is shared and cannot be rewritten.
    ReadOnly = "read_only",
    /// Shorter than its Ethernet header and tags.
    Runt = "runt",
    /// Sent to another station's address (seen in promiscuous mode).
    OtherStation = "other_station",
    /// The source address is a group address or zero, so an answer has no receiver.
    BadSource = "bad_source",
    /// Neither ARP, IPv4 nor IPv6.
    OtherEthertype = "other_ethertype",
    /// ARP that is cut short, or not for Ethernet and IPv4.
    ArpMalformed = "arp_malformed",
    /// ARP that asks nothing of us: a reply, a probe, an announcement, another's address.
    ArpIgnored = "arp_ignored",
    /// IPv4 with a wrong version, header length or total length.
    Ipv4Malformed = "ipv4_malformed",
    /// IPv4 whose header checksum is wrong.
    Ipv4Checksum = "ipv4_checksum",
    /// A fragment of an IPv4 datagram: fragments are not reassembled.
    Ipv4Fragment = "ipv4_fragment",
    /// IPv4 to or from an address that is not answered: a group, broadcast, another host.
    Ipv4Address = "ipv4_address",
    /// IPv6 with a wrong version or payload length.
    Ipv6Malformed = "ipv6_malformed",
    /// IPv6 to or from an address that is not answered: a group, unspecified, another host.
    Ipv6Address = "ipv6_address",
    /// A protocol other than ICMP, or ICMPv6 behind an extension header.
    OtherProtocol = "other_protocol",
    /// ICMP shorter than its header.
    IcmpMalformed = "icmp_malformed",
    /// ICMP whose checksum is wrong.
    IcmpChecksum = "icmp_checksum",
    /// ICMP that is neither an echo request nor a neighbour solicitation.
    IcmpIgnored = "icmp_ignored",
    /// A neighbour solicitation that RFC 4861 section 7.1.1 says to discard.
    NdMalformed = "nd_malformed",
    /// A neighbour solicitation for another's address, or a duplicate-address probe.
    NdIgnored = "nd_ignored",
}

/// A counter per [`Reason`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drops([u64; Reason::ALL.len()]);

impl Default for Drops {
    fn default() -> Self {
        Self([0; Reason::ALL.len()])
    }
}

impl Drops {
    /// Counts `frames` under `reason`.
    #[inline]
    pub fn add(&mut self, reason: Reason, frames: u64) {
        self.0[reason as usize] += frames;
    }

    /// Frames under `reason`.
    #[must_use]
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Frames under all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn occurred(&self) -> impl Iterator<Item = (Reason, u64)> + '_ {
        Reason::ALL.iter().map(|&reason| (reason, self.get(reason))).filter(|(_, n)| *n > 0)
    }

    /// Adds the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }
}

/// A map from names to counts, of the reasons that occurred.
#[cfg(feature = "serde")]
impl Serialize for Drops {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (reason, count) in self.occurred() {
            map.serialize_entry(reason.name(), &count)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter_and_name() {
        let mut drops = Drops::default();
        for (at, &reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(reason as usize, at);
            drops.add(reason, at as u64 + 1);
        }
        for (at, &reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(drops.get(reason), at as u64 + 1);
            assert!(Reason::ALL[..at].iter().all(|other| other.name() != reason.name()));
        }
        let n = Reason::ALL.len() as u64;
        assert_eq!(drops.total(), n * (n + 1) / 2);
    }

    #[cfg(feature = "serde")]
    #[test]
    fn json_has_only_what_occurred() {
        let mut drops = Drops::default();
        assert_eq!(serde_json::to_string(&drops).unwrap(), "{}");
        drops.add(Reason::Runt, 2);
        let mut other = Drops::default();
        other.add(Reason::TxRefused, 1);
        drops.merge(&other);
        assert_eq!(serde_json::to_string(&drops).unwrap(), r#"{"tx_refused":1,"runt":2}"#);
    }
}
