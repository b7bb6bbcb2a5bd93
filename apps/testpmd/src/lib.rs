//! Packet forwarding and generation over ferrocx-pmd.
#![forbid(unsafe_code)]

pub mod checksum;
pub mod ether;
pub mod icmpecho;
pub mod reason;
