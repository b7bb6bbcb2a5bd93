//! The addresses of packets: of a connection, of a datagram, of what arrives.
//!
//! Source: reference 5.2, 6.3, 7.9.

use ferrocx_prm::cmd::cong::CongProtocol;
use ferrocx_prm::wqe::AddressVector;

use super::env::Env;
use crate::bits::low16;
use crate::objects::{Qp, RoceGid};
use crate::roce::transport::packet::{Frame, IpPair, Path};
use crate::roce::transport::{MULTICAST_QPN, Network};

/// "Not congested, and able to tell": ECT(0) of RFC 3168.
pub(super) const ECT_0: u8 = 2;

/// The addresses of a connection's packets.
pub(super) fn connected_path(qp: &Qp, env: &Env<'_>) -> Option<Path> {
    let ads = qp.path();
    let gid = env.gid(ads.src_addr_index())?;
    let [_, _, dmac @ ..] =
        (u64::from(ads.rmac_47_32()) << 32 | u64::from(ads.rmac_31_0())).to_be_bytes();
    let own = flow_port(env.qpn, qp.context.remote_qpn());
    let sport = source_port(env, ads.udp_sport(), own);
    // Version 1 has no code point; Linux gives the class of its header as `tclass`.
    let tos = match gid.network {
        Network::Grh => ads.tclass(),
        Network::Ipv4 | Network::Ipv6 => ads.dscp() << 2 | ads.ecn(),
    };
    let tos = ect(env, gid.network, ads.eth_prio(), tos.to_be_bytes()[3]);
    let hop_limit = ads.hop_limit().to_be_bytes()[3];
    let mut path = path(gid, dmac, &ads.rgid_rip(), (tos, hop_limit), ads.flow_label(), sport);
    path.vlan = gid.vlan.map(|vlan| low16(ads.eth_prio().into()) << 13 | vlan);
    Some(path)
}

/// The UDP source port that a driver asks for, if it may choose any, or the device's own.
fn source_port(env: &Env<'_>, asked: u32, own: u16) -> u16 {
    let asked = low16(asked.into());
    if asked != 0 && env.caps.takes_udp_ports() { asked } else { own }
}

/// UDP source port of a connection without one. Source: reference 7.9.
fn flow_port(local: u32, remote: u32) -> u16 {
    let mut product = u64::from(local) * u64::from(remote);
    product ^= product >> 20;
    product ^= product >> 40;
    let label = product & 0xf_ffff;
    low16(((label & 0x3fff) ^ (label >> 14)) | 0xc000)
}

fn path(
    gid: &RoceGid,
    dmac: [u8; 6],
    remote: &[u8; 16],
    (tos, ttl): (u8, u8),
    flow_label: u32,
    sport: u16,
) -> Path {
    let last = |gid: &[u8; 16]| [gid[12], gid[13], gid[14], gid[15]];
    let ip = match gid.network {
        Network::Grh => IpPair::Grh { src: gid.gid, dst: *remote },
        Network::Ipv6 => IpPair::V6 { src: gid.gid, dst: *remote },
        Network::Ipv4 => IpPair::V4 { src: last(&gid.gid), dst: last(remote) },
    };
    Path { dmac, smac: gid.mac, vlan: gid.vlan, ip, tos, ttl, flow_label, sport }
}

/// The addresses of a datagram.
pub(super) fn datagram_path(av: &AddressVector, env: &Env<'_>) -> Option<Path> {
    let gid = env.gid(av.src_addr_index())?;
    let sport = source_port(env, av.udp_sport_rlid(), 0xc000);
    let tos = av.tclass().to_be_bytes()[3];
    let hop_limit = av.hop_limit().to_be_bytes()[3];
    let mut path = path(gid, av.rmac(), &av.rgid(), (tos, hop_limit), av.flow_label(), sport);
    // The service level is the priority, one bit up. Source: reference 6.3.
    path.vlan = gid.vlan.map(|vlan| low16((av.sl() >> 1).into()) << 13 | vlan);
    Some(path)
}

/// Whether a packet is for the address it came to: that of the connection here, from its peer; a
/// datagram's is one of this port's. Who is sent what a group gets was chosen by its address.
///
/// # Source
///
/// IBTA vol. 1, 9.6.1.2 (GRH checks); Linux `rxe_recv.c`, `check_addr` and `rxe_match_dgid`.
pub(super) fn is_for(qp: &Qp, env: &Env<'_>, frame: &Frame<'_>) -> bool {
    let (src, dst) = frame.gids();
    let is_dst = |gid: &RoceGid| gid.network == frame.network && gid.gid == dst;
    if !qp.qp_type.is_connected() {
        let is_group = frame.header.dest_qpn == MULTICAST_QPN;
        return is_group || env.gids.iter().flatten().any(is_dst);
    }
    let ads = qp.path();
    // Of an IPv4 address, the last four bytes are what packets are sent to.
    let at = if frame.network == Network::Ipv4 { 12 } else { 0 };
    let is_src = src[at..] == ads.rgid_rip()[at..];
    is_src && env.gid(ads.src_addr_index()).is_some_and(is_dst)
}

/// The ECN bits of what a connection sends: able to tell of congestion where the port reacts to it.
///
/// Linux leaves these bits of the address path zero and sets them for datagrams itself.
fn ect(env: &Env<'_>, network: Network, priority: u32, tos: u8) -> u8 {
    let reacts = env.port.congestion.is_enabled(CongProtocol::ROCE_RP, priority) == Some(true);
    if network != Network::Grh && reacts && tos & 3 == 0 { tos | ECT_0 } else { tos }
}
