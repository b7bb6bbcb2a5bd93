//! Rules of raw packet queue pairs: a head, and behind it as many specifications as it says, each
//! as long as it says.

use std::ffi::c_int;

use super::ibv_context;

/// `enum ibv_flow_attr_type`: packets that the specifications describe.
pub(crate) const FLOW_ATTR_NORMAL: c_int = 0;

/// `enum ibv_flow_spec_type`.
pub(crate) mod flow_spec {
    pub(crate) const ETH: u32 = 0x20;
    pub(crate) const IPV4: u32 = 0x30;
    pub(crate) const IPV6: u32 = 0x31;
    pub(crate) const IPV4_EXT: u32 = 0x32;
    pub(crate) const TCP: u32 = 0x40;
    pub(crate) const UDP: u32 = 0x41;
}

#[repr(C)]
pub(crate) struct ibv_flow_attr {
    pub(crate) comp_mask: u32,
    pub(crate) kind: c_int,
    pub(crate) size: u16,
    pub(crate) priority: u16,
    pub(crate) num_of_specs: u8,
    pub(crate) port: u8,
    pub(crate) flags: u32,
}

#[repr(C)]
pub(crate) struct ibv_flow {
    pub(crate) comp_mask: u32,
    pub(crate) context: *mut ibv_context,
    pub(crate) handle: u32,
}

/// What every specification begins with.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct flow_spec_head {
    pub(crate) kind: u32,
    pub(crate) size: u16,
}

/// A specification: what fields are compared with, and which of their bits.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct flow_spec_of<T> {
    pub(crate) kind: u32,
    pub(crate) size: u16,
    pub(crate) val: T,
    pub(crate) mask: T,
}

/// Numbers of more than a byte are in the network's order here, and below.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_eth_filter {
    pub(crate) dst_mac: [u8; 6],
    pub(crate) src_mac: [u8; 6],
    pub(crate) ether_type: u16,
    pub(crate) vlan_tag: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_ipv4_filter {
    pub(crate) src_ip: u32,
    pub(crate) dst_ip: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_ipv4_ext_filter {
    pub(crate) src_ip: u32,
    pub(crate) dst_ip: u32,
    pub(crate) proto: u8,
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    pub(crate) flags: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_ipv6_filter {
    pub(crate) src_ip: [u8; 16],
    pub(crate) dst_ip: [u8; 16],
    pub(crate) flow_label: u32,
    pub(crate) next_hdr: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ibv_flow_tcp_udp_filter {
    pub(crate) dst_port: u16,
    pub(crate) src_port: u16,
}

pub(crate) type ibv_flow_spec_eth = flow_spec_of<ibv_flow_eth_filter>;
pub(crate) type ibv_flow_spec_ipv4 = flow_spec_of<ibv_flow_ipv4_filter>;
pub(crate) type ibv_flow_spec_ipv4_ext = flow_spec_of<ibv_flow_ipv4_ext_filter>;
pub(crate) type ibv_flow_spec_ipv6 = flow_spec_of<ibv_flow_ipv6_filter>;
pub(crate) type ibv_flow_spec_tcp_udp = flow_spec_of<ibv_flow_tcp_udp_filter>;
