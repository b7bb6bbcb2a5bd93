//! Commands of `/dev/infiniband/rdma_cm` and their answers, as `rdma/rdma_user_cm.h` of Linux lays
//! them out (ABI 4). Source: reference 9.6; `system_tests` compares them with the system's header.

#![allow(non_camel_case_types, reason = "the names are those of the C header")]

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// `RDMA_USER_CM_CMD_*`.
pub(super) mod cmd {
    pub(crate) const CREATE_ID: u32 = 0;
    pub(crate) const DESTROY_ID: u32 = 1;
    pub(crate) const BIND_IP: u32 = 2;
    pub(crate) const RESOLVE_IP: u32 = 3;
    pub(crate) const RESOLVE_ROUTE: u32 = 4;
    pub(crate) const QUERY_ROUTE: u32 = 5;
    pub(crate) const CONNECT: u32 = 6;
    pub(crate) const LISTEN: u32 = 7;
    pub(crate) const ACCEPT: u32 = 8;
    pub(crate) const REJECT: u32 = 9;
    pub(crate) const DISCONNECT: u32 = 10;
    pub(crate) const INIT_QP_ATTR: u32 = 11;
    pub(crate) const GET_EVENT: u32 = 12;
    pub(crate) const SET_OPTION: u32 = 14;
    pub(crate) const NOTIFY: u32 = 15;
    pub(crate) const JOIN_IP_MCAST: u32 = 16;
    pub(crate) const LEAVE_MCAST: u32 = 17;
    pub(crate) const MIGRATE_ID: u32 = 18;
}

/// `enum rdma_cm_event_type`.
pub(super) mod event {
    pub(crate) const ADDR_RESOLVED: u32 = 0;
    pub(crate) const ROUTE_RESOLVED: u32 = 2;
    pub(crate) const CONNECT_REQUEST: u32 = 4;
    pub(crate) const CONNECT_RESPONSE: u32 = 5;
    pub(crate) const UNREACHABLE: u32 = 7;
    pub(crate) const REJECTED: u32 = 8;
    pub(crate) const ESTABLISHED: u32 = 9;
    pub(crate) const DISCONNECTED: u32 = 10;
    pub(crate) const MULTICAST_JOIN: u32 = 12;
    pub(crate) const TIMEWAIT_EXIT: u32 = 15;
}

/// Bytes that a program may say with a request or an answer.
pub(super) const MAX_PRIVATE: usize = 256;

/// A structure of the interface, in the kernel's order, all zero until it is filled.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $kind),* }

        impl Default for $name {
            fn default() -> Self {
                Self::new_zeroed()
            }
        }
    )*};
}

structures! {
    rdma_ucm_cmd_hdr { cmd: u32, input: u16, output: u16 }
    rdma_ucm_create_id { uid: u64, response: u64, ps: u16, qp_type: u8, reserved: [u8; 5] }
    rdma_ucm_create_id_resp { id: u32 }
    /// LEAVE_MCAST has the same form.
    rdma_ucm_destroy_id { response: u64, id: u32, reserved: u32 }
    /// MIGRATE_ID has the same answer.
    rdma_ucm_destroy_id_resp { events_reported: u32 }
    /// `struct sockaddr_in6`, in which one of IPv4 fits.
    Address { bytes: [[u8; 4]; 7] }
    rdma_ucm_bind_ip { response: u64, addr: Address, id: u32 }
    rdma_ucm_resolve_ip { src_addr: Address, dst_addr: Address, id: u32, timeout_ms: u32 }
    rdma_ucm_resolve_route { id: u32, timeout_ms: u32 }
    rdma_ucm_query { response: u64, id: u32, option: u32 }
    ib_user_path_rec {
        dgid: [u8; 16], sgid: [u8; 16], dlid: u16, slid: u16, raw_traffic: u32, flow_label: u32,
        reversible: u32, mtu: u32, pkey: u16, hop_limit: u8, traffic_class: u8, numb_path: u8,
        sl: u8, mtu_selector: u8, rate_selector: u8, rate: u8, packet_life_time_selector: u8,
        packet_life_time: u8, preference: u8,
    }
    rdma_ucm_query_route_resp {
        node_guid: u64, ib_route: [ib_user_path_rec; 2], src_addr: Address, dst_addr: Address,
        num_paths: u32, port_num: u8, reserved: [u8; 3], ibdev_index: u32, reserved1: u32,
    }
    rdma_ucm_conn_param {
        qp_num: u32, qkey: u32, private_data: [u8; MAX_PRIVATE], private_data_len: u8, srq: u8,
        responder_resources: u8, initiator_depth: u8, flow_control: u8, retry_count: u8,
        rnr_retry_count: u8, valid: u8,
    }
    ib_uverbs_global_route {
        dgid: [u8; 16], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8,
        reserved: u8,
    }
    ib_uverbs_ah_attr {
        grh: ib_uverbs_global_route, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8,
        is_global: u8, port_num: u8, reserved: u8,
    }
    rdma_ucm_ud_param {
        qp_num: u32, qkey: u32, ah_attr: ib_uverbs_ah_attr, private_data: [u8; MAX_PRIVATE],
        private_data_len: u8, reserved: [u8; 7],
    }
    rdma_ucm_ece { vendor_id: u32, attr_mod: u32 }
    rdma_ucm_connect {
        conn_param: rdma_ucm_conn_param, id: u32, reserved: u32, ece: rdma_ucm_ece,
    }
    rdma_ucm_listen { id: u32, backlog: u32 }
    rdma_ucm_accept {
        uid: u64, conn_param: rdma_ucm_conn_param, id: u32, reserved: u32, ece: rdma_ucm_ece,
    }
    rdma_ucm_reject {
        id: u32, private_data_len: u8, reason: u8, reserved: [u8; 2],
        private_data: [u8; MAX_PRIVATE],
    }
    rdma_ucm_disconnect { id: u32 }
    rdma_ucm_init_qp_attr { response: u64, id: u32, qp_state: u32 }
    ib_uverbs_qp_attr {
        qp_attr_mask: u32, qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32,
        qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32,
        ah_attr: ib_uverbs_ah_attr, alt_ah_attr: ib_uverbs_ah_attr, cap: [u32; 5],
        pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8,
        retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 5],
    }
    rdma_ucm_notify { id: u32, event: u32 }
    rdma_ucm_join_ip_mcast { response: u64, uid: u64, addr: Address, id: u32 }
    rdma_ucm_get_event { response: u64 }
    /// `param` is of a connection or of datagrams, which is longer.
    rdma_ucm_event_resp {
        uid: u64, id: u32, event: u32, status: u32, param: rdma_ucm_ud_param, reserved: u32,
        ece: rdma_ucm_ece,
    }
    rdma_ucm_set_option { optval: u64, id: u32, level: u32, optname: u32, optlen: u32 }
    rdma_ucm_migrate_id { response: u64, id: u32, fd: u32 }
}

impl Address {
    /// The address; `None` if it is of a family that this device has not.
    pub(super) fn get(&self) -> Option<SocketAddr> {
        let [[family_0, family_1, port_0, port_1], v4, rest @ .., scope] = self.bytes;
        let port = u16::from_be_bytes([port_0, port_1]);
        let ip = match i32::from(u16::from_ne_bytes([family_0, family_1])) {
            libc::AF_INET => IpAddr::from(v4),
            libc::AF_INET6 => {
                let ip: [u8; 16] = *rest.as_flattened().first_chunk()?;
                let scope = u32::from_ne_bytes(scope);
                return Some(SocketAddrV6::new(ip.into(), port, 0, scope).into());
            }
            _ => return None,
        };
        Some(SocketAddr::new(ip, port))
    }

    pub(super) fn of(address: Option<SocketAddr>) -> Self {
        let mut out = Self::default();
        let Some(address) = address else { return out };
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let [f0, f1] = (family as u16).to_ne_bytes();
        let [p0, p1] = address.port().to_be_bytes();
        out.bytes[0] = [f0, f1, p0, p1];
        match address.ip() {
            IpAddr::V4(ip) => out.bytes[1] = ip.octets(),
            IpAddr::V6(ip) => {
                out.bytes[2..6].as_flattened_mut().copy_from_slice(&ip.octets());
            }
        }
        if let SocketAddr::V6(address) = address {
            out.bytes[6] = address.scope_id().to_ne_bytes();
        }
        out
    }
}

/// Copies what a program says, and its length.
pub(super) fn filled(said: &[u8]) -> ([u8; MAX_PRIVATE], u8) {
    let mut bytes = [0; MAX_PRIVATE];
    let len = said.len().min(usize::from(u8::MAX));
    bytes[..len].copy_from_slice(&said[..len]);
    (bytes, len as u8)
}

impl rdma_ucm_event_resp {
    /// Says what is about a connection.
    pub(super) fn set_conn(&mut self, conn: &rdma_ucm_conn_param) {
        let param = self.param.as_mut_bytes();
        param.fill(0);
        param[..size_of_val(conn)].copy_from_slice(conn.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_the_systems() {
        for text in ["127.88.0.1:7174", "[fe80::7f:58ff:fe00:1%3]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            let bytes = Address::of(Some(address));
            assert_eq!(bytes.get(), Some(address));
            assert_eq!(bytes.bytes[0][2..], address.port().to_be_bytes());
        }
        assert_eq!(Address::of("1.2.3.4:5".parse().ok()).bytes[1], [1, 2, 3, 4]);
        assert_eq!(Address::default().get(), None);
    }

    #[test]
    fn sizes_are_the_kernels() {
        assert_eq!(size_of::<rdma_ucm_query_route_resp>(), 208);
        assert_eq!(size_of::<rdma_ucm_connect>(), 288);
        assert_eq!(size_of::<rdma_ucm_event_resp>(), 336);
        assert_eq!(size_of::<ib_uverbs_qp_attr>(), 144);
    }
}
