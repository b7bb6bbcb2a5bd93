//! What a port must say about itself on an Ethernet: ARP, neighbour discovery, echo, groups. Sans
//! I/O.
//!
//! Applications have this crate as `ferrocx::net`.
//!
//! # Architecture
//!
//! - [`icmpecho`] answers requests for addresses of ours, in place.
//! - [`neighbour`] asks for the MAC addresses of others, remembers them, and announces ours.
//! - [`membership`] reports the multicast groups that are joined: IGMP and MLD.
//! - [`packet`] reads UDP and TCP where they stand in a frame, and writes their headers.
//! - [`ether`], [`ip`] and [`checksum`] are what all share; [`reason`] says why a frame was not
//!   answered.
//!
//! Bytes and the time come in, bytes and answers go out. Nothing here panics, whatever the bytes.
//! What runs them over a port of RDMA, and finds peers' MAC addresses there, is `net::Network` of
//! `ferrocx-verbs-lite`.
//!
//! # What it does not do
//!
//! No DHCP, no routing, no duplicate-address detection, no router discovery, no fragments.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | neighbours known or asked for | 1 to 65536 | [`neighbour::Config::entries`], of strangers [`neighbour::Config::strangers`] |
//! | groups joined | 1 to 65536 | [`membership::Config::groups`] |
//! | sources of a group | 64 | [`membership::MAX_SOURCES`] |
//! | VLAN tags in front of a packet | 2 | [`ether::ethertype`] |
//!
//! # Example
//!
//! ```
//! use ferrocx_net::icmpecho::{self, Station, Tail, Verdict};
//! use ferrocx_net::{ether::MacAddr, reason::Reason};
//!
//! let station = Station { mac: MacAddr([2, 0, 0, 0, 0, 1]), addresses: Vec::new() };
//! let verdict = icmpecho::reply(&mut [0; 10], Tail::NONE, &station);
//! assert_eq!(verdict, Verdict::Drop(Reason::Runt));
//! ```
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ether;
pub mod icmpecho;
pub mod ip;
pub mod membership;
pub mod neighbour;
pub mod packet;
pub mod reason;
