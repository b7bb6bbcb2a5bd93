//! ARP for IPv4 over Ethernet (RFC 826, RFC 5227).

use std::net::{IpAddr, Ipv4Addr};

use super::Station;
use crate::reason::Reason;

/// Bytes of an ARP packet for Ethernet and IPv4.
pub(crate) const LEN_BYTES: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, address lengths 6 and 4.
pub(crate) const ETHERNET_IPV4: [u8; 6] = [0x00, 0x01, 0x08, 0x00, 6, 4];
pub(crate) const REQUEST: [u8; 2] = [0, 1];
pub(crate) const REPLY: [u8; 2] = [0, 2];

/// Turns a request into its reply. `None`: the answer is as long as the request, padding included.
pub(super) fn answer(packet: &mut [u8], station: &Station) -> Result<Option<usize>, Reason> {
    let arp = packet.first_chunk_mut::<LEN_BYTES>().ok_or(Reason::ArpMalformed)?;
    if arp[..6] != ETHERNET_IPV4 {
        return Err(Reason::ArpMalformed);
    }
    if arp[6..8] != REQUEST {
        return Err(Reason::ArpIgnored);
    }
    let sender = Ipv4Addr::new(arp[14], arp[15], arp[16], arp[17]);
    let target = Ipv4Addr::new(arp[24], arp[25], arp[26], arp[27]);
    let unicast = !target.is_multicast() && !target.is_broadcast() && !target.is_unspecified();
    // An announcement (sender is target) asks nothing; a probe (sender 0.0.0.0) asks whether
    // somebody owns the address, and only an address given by name is owned.
    let probe = sender.is_unspecified();
    let asked = sender != target && (!probe || station.owns(IpAddr::V4(target)));
    if !unicast || !asked || !station.answers(IpAddr::V4(target)) {
        return Err(Reason::ArpIgnored);
    }
    arp[6..8].copy_from_slice(&REPLY);
    // Sender becomes target, both addresses.
    arp.copy_within(8..18, 18);
    arp[8..14].copy_from_slice(&station.mac.0);
    arp[14..18].copy_from_slice(&target.octets());
    Ok(None)
}
