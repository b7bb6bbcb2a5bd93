//! RoCEv2 in UDP sockets: the port's frames lose their headers down to UDP's, and get them back.
//!
//! The ICRC covers headers that the system writes, so a sender makes it anew for them: source port
//! 4791 and, over IPv4, identification 0 and "don't fragment", as Linux sends from a socket that is
//! not connected and does path MTU discovery. A receiver knows all of what it covers over IPv6, and
//! the port checks it. Over IPv4 the identification stays unknown, and rdma_rxe sends one that is
//! not 0: there the packet is believed, and gets an ICRC that is right. The UDP checksum has
//! covered what a socket sent, and nothing but Ethernet's what an adapter or rdma_rxe did.
//!
//! TOS and TTL, or traffic class and hop limit, are not covered. The system chooses them of what is
//! sent (a TTL of 1 to a group), and those that arrive are lost. Source: reference 7.3, 9.7.

use std::ffi::c_int;
use std::io::{self, ErrorKind, IoSlice};
use std::net::{IpAddr, SocketAddr, UdpSocket};

use ferrocx_model::roce::icrc::{icrc, icrc_of_parts};
use ferrocx_net::ether::MacAddr;
use ferrocx_net::packet::{Headers, Transport};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendFlags, SocketFlags, SocketType, sendmsg_addr,
    socket_with, sockopt,
};

use super::address::{Address, mac_of};
use crate::face::life::Kept;

/// Port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// Bytes of the headers of a frame: Ethernet, IPv4 or IPv6, UDP.
const ETHER: usize = 14;
const V4: usize = 20;
const V6: usize = 40;
const UDP: usize = 8;
/// Bytes of the ICRC.
const ICRC: usize = 4;
/// Bytes of a base transport header.
const BTH: usize = 12;
/// The shortest packet: a base transport header and the ICRC.
const MIN_BYTES: usize = BTH + ICRC;
/// TTL and traffic class of what arrives, which the socket does not tell: RoCE's usual ones, with
/// the mark that says "ECN capable".
const HOP_LIMIT: u8 = 64;
const TOS: u8 = 2;
/// IP protocol of UDP.
const PROTOCOL: u8 = 17;
/// Bytes that the system is asked to keep for a socket.
const BUFFER_BYTES: usize = 4 << 20;

/// The socket of an address, which no child has.
pub(super) type Socket = Kept<UdpSocket>;

/// What became of a frame.
pub(super) enum Sent {
    /// It is gone: on its way, or to nobody.
    Done,
    /// Its receiver has no room.
    Full,
}

/// Takes the RoCE port of an address.
pub(super) fn bind(own: &Address) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(own.socket(own.ip, ROCE_PORT))?;
    prepare(&socket, own)?;
    // Other processes of this machine have had the frame.
    match own.ip {
        IpAddr::V4(_) => socket.set_multicast_loop_v4(false)?,
        IpAddr::V6(_) => {
            socket.set_multicast_loop_v6(false)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, own.scope as c_int)?;
        }
    }
    Ok(socket)
}

/// Takes what comes to RoCE's port for a group, by the interface of the port's address; others may
/// do so, too.
///
/// # Errors
///
/// [`ErrorKind::AddrNotAvailable`] for a group of another family than the port's address, or the
/// system's reason.
pub(super) fn bind_group(own: &Address, group: IpAddr) -> io::Result<UdpSocket> {
    if own.ip.is_ipv4() != group.is_ipv4() {
        return Err(ErrorKind::AddrNotAvailable.into());
    }
    let family = if own.ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &own.socket(group, ROCE_PORT))?;
    let socket = UdpSocket::from(socket);
    prepare(&socket, own)?;
    let (level, option) = match own.ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
    };
    set(&socket, level, option, 0)?;
    match (group, own.ip) {
        (IpAddr::V4(group), IpAddr::V4(own)) => socket.join_multicast_v4(&group, &own)?,
        (IpAddr::V6(group), _) => socket.join_multicast_v6(&group, own.scope)?,
        (IpAddr::V4(_), IpAddr::V6(_)) => {}
    }
    Ok(socket)
}

/// Ends a group's coming, though a child of this process may have the socket still.
pub(super) fn leave_group(socket: &UdpSocket, own: &Address, group: IpAddr) {
    let left = match (group, own.ip) {
        (IpAddr::V4(group), IpAddr::V4(own)) => socket.leave_multicast_v4(&group, &own),
        (IpAddr::V6(group), _) => socket.leave_multicast_v6(&group, own.scope),
        (IpAddr::V4(_), IpAddr::V6(_)) => Ok(()),
    };
    if let Err(error) = left {
        tracing::warn!(%group, %error, "the system is in the group still");
    }
}

/// Sets what every socket of the port needs.
fn prepare(socket: &UdpSocket, own: &Address) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // Whole packets only; over IPv4 that is "don't fragment", and with it identification 0.
    if own.ip.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO)?;
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO)?;
        // RoCE's own senders leave the UDP checksum out: the ICRC covers more.
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    }
    // As much as the system gives: fewer datagrams are lost.
    let _ = sockopt::set_socket_recv_buffer_size(socket, BUFFER_BYTES);
    let _ = sockopt::set_socket_send_buffer_size(socket, BUFFER_BYTES);
    Ok(())
}

/// Sets an option of a socket that is an `int`.
#[expect(unsafe_code, reason = "socket options that no safe function of the libraries has")]
fn set(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and the value is an `int` that lives through the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Where the packet behind the UDP header starts in a frame of a family.
const fn packet_at(is_v4: bool) -> usize {
    ETHER + if is_v4 { V4 } else { V6 } + UDP
}

/// Where the packet of RoCEv2 starts in a frame, behind its UDP header; `None` in any other frame.
/// Lengths are not looked at: a frame of a ring may stand for several.
fn roce(frame: &[u8]) -> Option<usize> {
    let is_v4 = match frame.get(12..15)? {
        [0x08, 0x00, 0x45] => true,
        [0x86, 0xdd, first] if first >> 4 == 6 => false,
        _ => return None,
    };
    let (protocol, at) = (if is_v4 { 23 } else { 20 }, packet_at(is_v4));
    let is_roce = frame.get(protocol) == Some(&PROTOCOL)
        && frame.get(at - 6..at - 4) == Some(&ROCE_PORT.to_be_bytes());
    is_roce.then_some(at)
}

/// The OpCode of a RoCEv2 packet.
pub(super) fn opcode(frame: &[u8]) -> Option<u8> {
    frame.get(roce(frame)?).copied()
}

/// The sender of a RoCEv2 packet, and the IP address that it is for, by its IP header.
fn ends(ip: &[u8]) -> Option<[IpAddr; 2]> {
    if ip.len() == V4 {
        let (ips, _) = ip.last_chunk::<8>()?.as_chunks::<4>();
        Some([ips[0].into(), ips[1].into()])
    } else {
        let (ips, _) = ip.last_chunk::<32>()?.as_chunks::<16>();
        Some([ips[0].into(), ips[1].into()])
    }
}

/// The IP address that a RoCEv2 packet is for.
pub(super) fn destination(frame: &[u8]) -> Option<IpAddr> {
    ends(&frame[ETHER..roce(frame)? - UDP]).map(|[_, to]| to)
}

/// What a frame is as a datagram of the port at `own`: its receiver, the packet without its last
/// four bytes, and the ICRC of the headers that the system will write. `None` for what is not
/// RoCEv2, or from another address to one peer.
fn datagram_of(frame: &[u8], own: IpAddr) -> Option<(IpAddr, &[u8], [u8; ICRC])> {
    let at = roce(frame)?;
    let [from, to] = ends(&frame[ETHER..at - UDP])?;
    // The other end of a connection looks for the address; members of a group are told who sent.
    if own.is_ipv4() != to.is_ipv4() || from != own && !to.is_multicast() {
        return None;
    }
    // A short frame is padded behind its packet.
    let udp_bytes = usize::from(u16::from_be_bytes(*frame[at - 4..].first_chunk()?));
    let packet = frame.get(at..at + udp_bytes.checked_sub(UDP)?)?;
    let (packet, _) = packet.split_last_chunk::<ICRC>()?;
    let rest = packet.get(BTH..)?;
    // The system's headers, as far as they are covered, differ from the frame's in these places.
    let mut head = [0; V6 + UDP + BTH];
    let head = &mut head[..at + BTH - ETHER];
    head.copy_from_slice(&frame[ETHER..at + BTH]);
    match own {
        IpAddr::V4(own) => {
            head[4..8].copy_from_slice(&[0, 0, 0x40, 0]);
            head[12..16].copy_from_slice(&own.octets());
        }
        IpAddr::V6(own) => head[8..24].copy_from_slice(&own.octets()),
    }
    let udp = at - UDP - ETHER;
    head[udp..udp + 2].copy_from_slice(&ROCE_PORT.to_be_bytes());
    Some((to, packet, icrc_of_parts(head, rest).to_le_bytes()))
}

/// Sends a frame's packet; anything but RoCEv2 from the port's own address goes nowhere.
pub(super) fn send(socket: &UdpSocket, own: &Address, frame: &[u8]) -> Sent {
    let Some((to, packet, crc)) = datagram_of(frame, own.ip) else { return Sent::Done };
    let parts = [IoSlice::new(packet), IoSlice::new(&crc)];
    let mut none = SendAncillaryBuffer::default();
    let to = own.socket(to, ROCE_PORT);
    match sendmsg_addr(socket, &to, &parts, &mut none, SendFlags::DONTWAIT) {
        Err(error) if io::Error::from(error).kind() == ErrorKind::WouldBlock => Sent::Full,
        // A network loses what it cannot carry.
        _ => Sent::Done,
    }
}

/// Makes a frame of the packet of `len` bytes that lies where it belongs; its bytes. `None` for a
/// sender of another family.
fn frame_of(frame: &mut [u8], len: usize, source: SocketAddr, to: IpAddr) -> Option<usize> {
    let at = packet_at(to.is_ipv4());
    let frame = frame.get_mut(..at + len)?;
    let headers = Headers {
        destination_mac: MacAddr(mac_of(to)),
        source_mac: MacAddr(mac_of(source.ip())),
        vlan_tci: None,
        source,
        destination: SocketAddr::new(to, ROCE_PORT),
        hop_limit: HOP_LIMIT,
        traffic_class: TOS,
        transport: Transport::Udp,
    };
    headers.write(frame).ok()?;
    // RoCE leaves the UDP checksum out.
    frame[at - 2..at].fill(0);
    if to.is_ipv4() {
        let (covered, crc) = frame.split_last_chunk_mut::<ICRC>()?;
        *crc = icrc(&covered[ETHER..]).to_le_bytes();
    }
    Some(at + len)
}

/// The next datagram that arrived, if there is one, as a frame for the port, or the group, at `to`;
/// its bytes. `Some(None)` is one that is no packet of RoCE.
pub(super) fn receive(socket: &UdpSocket, to: IpAddr, frame: &mut [u8]) -> Option<Option<usize>> {
    let room = frame.get_mut(packet_at(to.is_ipv4())..)?;
    let (len, from) = socket.recv_from(room).ok()?;
    Some(if len >= MIN_BYTES { frame_of(frame, len, from, to) } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(texts: [&str; 2]) -> [IpAddr; 2] {
        texts.map(|text| text.parse().unwrap())
    }

    #[test]
    fn headers_are_those_of_linux() {
        let ends = [["127.88.0.1", "127.88.0.2"], ["fd00::1", "fd00::2"]];
        let ip = [
            "4502 002c 0000 4000 4011 3c0c 7f58 0001 7f58 0002",
            "6020 0000 0018 1140 fd00 0000 0000 0000 0000 0000 0000 0001 \
             fd00 0000 0000 0000 0000 0000 0000 0002",
        ];
        for (ends, ip) in ends.into_iter().zip(ip) {
            let [from, to] = ips(ends);
            let mut frame = [0xee; 100];
            let len = frame_of(&mut frame, 16, SocketAddr::new(from, 0xc001), to).unwrap();
            let headers = &frame[ETHER..len - 16];
            let hex: String = headers.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, format!("{ip} c001 12b7 0018 0000").replace(' ', ""));
        }
    }

    #[test]
    fn a_packet_goes_there_and_back() {
        for ends in [["127.88.0.1", "127.88.0.2"], ["fd00::1", "fd00::2"]] {
            let [from, to] = ips(ends);
            let at = packet_at(from.is_ipv4());
            let mut frame = vec![0; 100];
            frame[at..at + 28].fill(0x5a);
            let len = frame_of(&mut frame, 32, SocketAddr::new(from, ROCE_PORT), to).unwrap();
            assert_eq!((len, destination(&frame), opcode(&frame)), (at + 32, Some(to), Some(0x5a)));
            let (there, packet, crc) = datagram_of(&frame[..len], from).unwrap();
            assert_eq!((there, packet), (to, &[0x5a; 28][..]));
            assert_eq!(crc, icrc(&frame[ETHER..len - ICRC]).to_le_bytes(), "of the same headers");
            // Of IPv4 it is made, of IPv6 it is what came.
            assert_eq!(frame[len - ICRC..len] == crc, from.is_ipv4());
            // Padding behind the packet is not part of it.
            assert_eq!(datagram_of(&frame[..len + 5], from), Some((to, packet, crc)));
            let mut other = frame.clone();
            other[if from.is_ipv4() { 23 } else { 20 }] = 6;
            assert_eq!(destination(&other), None, "not UDP");
            assert_eq!(datagram_of(&frame[..at - 2], from), None);
            assert_eq!(datagram_of(&frame[..at + 20], from), None, "it is cut");
            assert_eq!(datagram_of(&frame[..len], to), None, "from another address");
            let group =
                if from.is_ipv4() { [239, 1, 2, 3].into() } else { "ff02::5".parse().unwrap() };
            let len = frame_of(&mut frame, 32, SocketAddr::new(from, ROCE_PORT), group).unwrap();
            let (_, _, crc) = datagram_of(&frame[..len], to).unwrap();
            let len = frame_of(&mut frame, 32, SocketAddr::new(to, ROCE_PORT), group).unwrap();
            assert_eq!(crc, icrc(&frame[ETHER..len - ICRC]).to_le_bytes(), "of who sends");
        }
        let [v4, v6] = ips(["127.88.0.1", "fd00::2"]);
        assert_eq!(
            frame_of(&mut [0; 100], 32, SocketAddr::new(v4, 1), v6),
            None,
            "no packet has two families"
        );
    }
}
