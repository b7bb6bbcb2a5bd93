//! Numbers that must not be mixed up, addresses, states, and sets of rights.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ferrocx_core::MacAddr;
use ferrocx_prm::mkey::Mkc;

/// Key of local memory, as data segments carry it: 24-bit index, 8-bit variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lkey(pub u32);

/// Key of memory, as peers name it: 24-bit index, 8-bit variant.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rkey(pub u32);

impl fmt::Debug for Rkey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rkey({:#010x})", self.0)
    }
}

/// Number of a queue pair, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Qpn(pub u32);

impl Qpn {
    /// Every queue pair that is attached to the group a datagram is sent to.
    pub const MULTICAST: Self = Self(0xff_ffff);
}

/// Number of a shared receive queue, 24 bits, by which requests of [XRC](crate::xrc) name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Srqn(pub u32);

/// Packet sequence number, 24 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Psn(pub u32);

/// Memory of a peer: its address, and the key that reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Address in the space of the key.
    pub addr: u64,
    /// The key.
    pub rkey: Rkey,
}

impl RemoteAddr {
    /// The address `offset` bytes further on.
    #[must_use]
    pub fn at(self, offset: u64) -> Self {
        Self { addr: self.addr.wrapping_add(offset), ..self }
    }
}

bitflags::bitflags! {
    /// Rights that a memory key or a queue pair grants. Local reads are always allowed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    #[doc(alias = "ibv_access_flags")]
    pub struct Access: u32 {
        // The first four in the order of a key's context, so that one shift puts them there.
        /// The device may write for this host: receives, and answers to READs and atomics.
        const LOCAL_WRITE = 1;
        /// Peers may read.
        const REMOTE_READ = 1 << 1;
        /// Peers may write. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_WRITE = 1 << 2;
        /// Peers may do atomics. Needs [`Access::LOCAL_WRITE`].
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound to the region: see [`crate::window`].
        const MW_BIND = 1 << 4;
        /// Addresses of the region count from 0 instead of the virtual address of its memory.
        const ZERO_BASED = 1 << 5;
        /// Writes of the device may pass each other on PCIe, and answers to its reads, where it can
        /// be asked for that. Fast registrations and windows have no use for it.
        const RELAXED_ORDERING = 1 << 20;
    }
}

impl Access {
    /// All rights of peers, for [`InitAttr::access`](crate::InitAttr). A key that grants writes
    /// needs `LOCAL_WRITE` besides.
    pub const REMOTE: Self = Self::REMOTE_WRITE.union(Self::REMOTE_READ).union(Self::REMOTE_ATOMIC);

    /// Whether peers that write imply local writes. Source: IBTA vol. 1, 10.6.3.1.
    pub(crate) fn is_consistent(self) -> bool {
        !self.intersects(Self::REMOTE_WRITE.union(Self::REMOTE_ATOMIC))
            || self.contains(Self::LOCAL_WRITE)
    }

    /// Puts the rights into a memory key's context.
    #[inline(always)]
    pub(crate) fn apply(self, mkc: Mkc) -> Mkc {
        mkc.with_lr(true)
            .with_lw(self.contains(Self::LOCAL_WRITE))
            .with_rr(self.contains(Self::REMOTE_READ))
            .with_rw(self.contains(Self::REMOTE_WRITE))
            .with_a(self.contains(Self::REMOTE_ATOMIC))
            .with_relaxed_ordering_write(self.contains(Self::RELAXED_ORDERING))
    }
}

/// Path MTU: payload bytes of a full packet. Source: reference 7.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Headers of a RoCE packet at most: GRH 40, UDP 8, BTH 12, XRC 4, AtomicETH 28, ICRC 4.
    const HEADERS: u32 = 96;

    /// The largest that fits packets of `mtu` bytes (without Ethernet header), if any does.
    #[must_use]
    pub fn fitting(mtu: u32) -> Option<Self> {
        [Self::B4096, Self::B2048, Self::B1024, Self::B512, Self::B256]
            .into_iter()
            .find(|candidate| candidate.bytes() + Self::HEADERS <= mtu)
    }

    /// Decodes the number that stands in contexts and in messages: 1 to 5.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096]
            .into_iter()
            .find(|mtu| *mtu as u32 == code)
    }

    /// Payload bytes of a full packet.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }
}

/// State of a queue pair, as far as this library knows it: the device may be ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QpState {
    /// Nothing works.
    Reset,
    /// Receives may be posted.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send.
    Rts,
    /// The send queue failed; receiving goes on (UC, UD, raw packets).
    SqError,
    /// Everything posted is flushed.
    Error,
}

/// Address of a port: an IP address of 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IP address.
    #[must_use]
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }

    /// The link-local address that the MAC makes. Source: RFC 4291, appendix A.
    #[must_use]
    pub fn link_local(mac: MacAddr) -> Self {
        let [a, b, c, d, e, f] = mac.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The MAC address that a link-local address was made of; `None` for any other address, and
    /// where that would be one of a group. Source: RFC 4291, appendix A.
    #[must_use]
    pub fn link_local_mac(&self) -> Option<MacAddr> {
        let IpAddr::V6(ip) = self.ip() else { return None };
        let [.., a, b, c, 0xff, 0xfe, d, e, f] = self.0 else { return None };
        let mac = MacAddr([a ^ 2, b, c, d, e, f]);
        (ip.is_unicast_link_local() && !mac.is_multicast()).then_some(mac)
    }

    /// The MAC address of packets to a multicast group; `None` for any other address.
    ///
    /// Source: RFC 1112, section 6.4; RFC 2464, section 7.
    #[must_use]
    pub fn multicast_mac(&self) -> Option<MacAddr> {
        MacAddr::of_group(self.ip())
    }

    pub(crate) fn is_link_local(&self) -> bool {
        match self.ip() {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        }
    }

    /// Whether `other` has the same first `prefix_len` bits, in the family's own counting.
    pub(crate) fn shares_prefix(&self, other: &Self, prefix_len: u8) -> bool {
        let skipped = if self.ip().is_ipv4() { 96 } else { 0 };
        let bits = (skipped + u32::from(prefix_len)).min(128);
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        let (own, other) = (u128::from_be_bytes(self.0), u128::from_be_bytes(other.0));
        (own ^ other) & mask == 0
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => ip.into(),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_tells_the_mac() {
        let mac = MacAddr([2, 0xfe, 0x0c, 0, 0, 9]);
        assert_eq!(Gid::link_local(mac).link_local_mac(), Some(mac));
        let group = "fe80::1fe:cff:fe00:9";
        for address in ["10.0.0.1", "fe80::1", "fd00::fe:cff:fe00:9", group] {
            let ip: IpAddr = address.parse().unwrap();
            assert_eq!(Gid::from(ip).link_local_mac(), None, "{address}");
        }
    }

    #[test]
    fn the_path_mtu_is_what_linux_takes() {
        assert_eq!(Mtu::fitting(1500), Some(Mtu::B1024));
        assert_eq!(Mtu::fitting(4192), Some(Mtu::B4096));
        assert_eq!(Mtu::fitting(4191), Some(Mtu::B2048));
        assert_eq!(Mtu::fitting(351), None);
        assert_eq!(Mtu::B4096.bytes(), 4096);
    }

    #[test]
    fn rights_stand_where_the_device_looks() {
        let all = Access::LOCAL_WRITE | Access::REMOTE;
        assert_eq!(all.apply(Mkc::zeroed()).0[2], 0x7c);
        assert_eq!(Access::REMOTE_READ.apply(Mkc::zeroed()).0[2], 0x14);
        assert!(!Access::REMOTE_WRITE.is_consistent());
        assert!(Access::REMOTE_READ.is_consistent());
    }

    #[test]
    fn addresses_have_the_bytes_of_the_wire() {
        let gid = Gid::from(Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(gid.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1]);
        assert_eq!(gid.to_string(), "192.168.0.1");
        let local = Gid::link_local(MacAddr([0x02, 0xfe, 0x0c, 0, 0, 1]));
        assert_eq!(local.to_string(), "fe80::fe:cff:fe00:1");
    }
}
