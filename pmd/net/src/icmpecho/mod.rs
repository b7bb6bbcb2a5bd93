//! Answers ARP requests, neighbour solicitations and echo requests in place, sans I/O.
//!
//! [`reply`] takes the bytes of a received frame and either turns them into the answer or says why
//! there is none. It reads nothing that it has not bounds-checked, and never panics, whatever the
//! bytes are.
//!
//! # What it does not do
//!
//! No reassembly, no IPv6 extension headers, no answer to group addresses: a frame of that kind is
//! refused with its [`Reason`]. RFC 5227 and RFC 4862 probes are not answered unless the address
//! is one of ours, because answering every probe would take every address away from its owner.

pub(crate) mod arp;
mod ipv4;
pub(crate) mod ipv6;

#[cfg(test)]
mod tests;

use std::net::IpAddr;

use crate::{
    ether::{self, HEADER_BYTES, MacAddr},
    reason::Reason,
};

/// Hop limit and TTL of an answer.
pub(crate) const HOPS: u8 = 64;

/// Who answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Station {
    /// Ethernet address of the port.
    pub mac: MacAddr,
    /// Addresses that are answered for; empty means every unicast address.
    pub addresses: Vec<IpAddr>,
}

impl Station {
    /// Whether requests for `address` are answered.
    fn answers(&self, address: IpAddr) -> bool {
        self.addresses.is_empty() || self.addresses.contains(&address)
    }

    /// Whether `address` was given by name, so that it must be defended against duplicates.
    fn owns(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
    }
}

/// What lies behind the first segment of a chained frame.
#[derive(Clone, Copy)]
pub struct Tail<'a> {
    /// Bytes in the segments behind the first.
    pub len_bytes: usize,
    /// The ones' complement sum ([`crate::checksum::sum`]) of the first `n` of those bytes,
    /// `n <= len_bytes`, as if they started at an even offset. `None` where the processor is not to
    /// read them: a checksum that covers them is not checked. A damaged request then has a damaged
    /// answer, because checksums of answers are adjusted, not made anew.
    pub sum: Option<&'a dyn Fn(usize) -> u64>,
}

impl Tail<'_> {
    /// The frame is one segment.
    pub const NONE: Self = Tail { len_bytes: 0, sum: Some(&|_| 0) };
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The bytes are now the answer; send the first `len_bytes` of the frame.
    Reply {
        /// Bytes of the answer; never more than the frame had.
        len_bytes: usize,
    },
    /// No answer. The bytes may have changed.
    Drop(Reason),
}

/// Answers `frame` in place. `tail` describes what follows `frame` in a chain of segments; all
/// headers must lie in `frame` itself, else they count as cut short.
pub fn reply(frame: &mut [u8], tail: Tail<'_>, station: &Station) -> Verdict {
    match answer(frame, tail, station) {
        Ok(len_bytes) => Verdict::Reply { len_bytes },
        Err(reason) => Verdict::Drop(reason),
    }
}

fn answer(frame: &mut [u8], tail: Tail<'_>, station: &Station) -> Result<usize, Reason> {
    let destination = ether::mac_at(frame, 0).ok_or(Reason::Runt)?;
    let source = ether::mac_at(frame, 6).ok_or(Reason::Runt)?;
    let (ethertype, start) = ether::ethertype(frame).ok_or(Reason::Runt)?;
    if destination != station.mac && !destination.is_multicast() {
        return Err(Reason::OtherStation);
    }
    if source.is_multicast() || source == MacAddr::default() {
        return Err(Reason::BadSource);
    }
    debug_assert!(start >= HEADER_BYTES);
    let packet = &mut frame[start..];
    let len_bytes = match ethertype {
        ether::ARP => arp::answer(packet, station)?.unwrap_or(packet.len() + tail.len_bytes),
        // An echo request to a group would be answered by every station of it at once.
        ether::IPV4 if destination.is_multicast() => return Err(Reason::Ipv4Address),
        ether::IPV4 => ipv4::answer(packet, tail, station)?,
        ether::IPV6 => ipv6::answer(packet, tail, station, destination.is_multicast())?,
        _ => return Err(Reason::OtherEthertype),
    };
    ether::set_addresses(frame, source, station.mac);
    Ok(start + len_bytes)
}

/// Whether the `len_bytes` bytes from `start` of a packet, which may reach into `tail`, are intact
/// together with `pseudo`, the sum of a pseudo header. Bytes that nobody may read count as intact.
///
/// `start` lies in `packet`, and `start + len_bytes` in `packet` and `tail` together.
fn is_intact(packet: &[u8], tail: Tail<'_>, start: usize, len_bytes: usize, pseudo: u64) -> bool {
    let end = start + len_bytes;
    let here = &packet[start..end.min(packet.len())];
    let mut sum = pseudo + crate::checksum::sum(here);
    if end > packet.len() {
        let Some(sum_behind) = tail.sum else { return true };
        let behind = sum_behind(end - packet.len());
        // A sum that starts at an odd offset has its bytes exchanged (RFC 1071 section 2 B).
        sum += match here.len() % 2 {
            0 => behind,
            _ => u64::from(crate::checksum::fold(behind).swap_bytes()),
        };
    }
    crate::checksum::is_intact(sum)
}
