//! Packets and protocol of RoCE, without memory, queues or a wire.
//!
//! # Architecture
//! - [`psn`], [`timer`], [`bth`], [`icrc`], [`packet`]: numbers, headers, checksum, frames. Pure
//!   functions on bytes, total: any input is parsed or refused. [`atomic`]: what atomics compute.
//! - [`requester`], [`responder`]: the two halves of a queue pair as state machines. Packets and
//!   time go in, decisions come out; they touch no memory. `roce::work` carries them out.

pub mod atomic;
pub mod bth;
pub mod icrc;
pub mod packet;
pub mod psn;
pub mod requester;
pub mod responder;
pub mod timer;

/// UDP destination port of RoCEv2. Source: reference 7.1.
pub const UDP_PORT: u16 = 4791;
/// Ethertype of RoCEv1. Source: reference 7.1.
pub const ETHERTYPE_V1: u16 = 0x8915;
/// What follows a global route header: a base transport header. Source: reference 7.1.
pub const GRH_NEXT_HEADER: u8 = 0x1b;

/// Wire number of the general services interface. Source: reference 7.8.
pub(crate) const GSI_QPN: u32 = 1;
/// Q_Key of the general services interface. Source: reference 7.8.
pub(crate) const GSI_QKEY: u32 = 0x8001_0000;
/// Wire number of multicast. Source: IBTA vol. 1, 10.5.
pub(crate) const MULTICAST_QPN: u32 = 0xff_ffff;

/// The header between Ethernet and the transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// RoCEv1: a global route header.
    Grh,
    /// RoCEv2: IPv4 and UDP.
    Ipv4,
    /// RoCEv2: IPv6 and UDP.
    Ipv6,
}

#[cfg(test)]
pub(crate) mod testing {
    /// Bytes from hexadecimal digits; spaces do not count.
    pub(crate) fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .chars()
            .filter(|c| !c.is_whitespace())
            .map(|c| u8::try_from(c.to_digit(16).expect("a hexadecimal digit")).expect("a digit"))
            .collect();
        digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }
}
