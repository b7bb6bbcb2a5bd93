//! RoCEv2 in UDP sockets: the port's frames lose their headers down to UDP's, and get them back.
//!
//! The ICRC covers headers that the system writes, so it is made anew for them: source port 4791,
//! identification 0 and "don't fragment", as Linux sends from a socket that is not connected and
//! does path MTU discovery. Of what arrives, identification, TOS and TTL stay unknown. The last two
//! are not covered; a packet whose ICRC is not that of identification 0 is believed over IPv4,
//! because rdma_rxe sends others: the UDP checksum has covered it. Source: reference 7.3, 9.7.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr as InetAddr, UdpSocket};

use ferrocx_model::roce::icrc::icrc;
use ferrocx_net::checksum;

/// Port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// Bytes of the headers of a frame: Ethernet, IPv4, UDP.
const ETHER: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
const HEADERS: usize = ETHER + IP + UDP;
/// Bytes of the ICRC.
const ICRC: usize = 4;
/// The shortest packet: a base transport header and the ICRC.
const MIN_BYTES: usize = 12 + ICRC;
/// TTL and traffic class of what arrives, which the socket does not tell: RoCE's usual ones, with
/// the mark that says "ECN capable".
const HOP_LIMIT: u8 = 64;
const TOS: u8 = 2;
/// Bytes that the system is asked to keep for a socket.
const BUFFER_BYTES: usize = 4 << 20;

/// What every port's MAC address begins with; its IPv4 address follows.
pub(super) const PORT_MAC: [u8; 2] = [2, 0];

/// MAC address of a port with an IPv4 address.
pub(crate) fn mac_of(ip: Ipv4Addr) -> [u8; 6] {
    let ([first, second], [a, b, c, d]) = (PORT_MAC, ip.octets());
    [first, second, a, b, c, d]
}

/// What became of a frame.
pub(super) enum Sent {
    /// It is gone: on its way, or to nobody.
    Done,
    /// Its receiver has no room.
    Full,
}

impl From<io::Result<usize>> for Sent {
    fn from(sent: io::Result<usize>) -> Self {
        match sent {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Self::Full,
            // A network loses what it cannot carry.
            _ => Self::Done,
        }
    }
}

/// The address of a datagram's sender, if it is one of IPv4.
fn v4_of(from: InetAddr) -> Option<Ipv4Addr> {
    match from {
        InetAddr::V4(from) => Some(*from.ip()),
        InetAddr::V6(_) => None,
    }
}

/// Takes the RoCE port of an address.
pub(super) fn bind(address: Ipv4Addr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((address, ROCE_PORT))?;
    socket.set_nonblocking(true)?;
    discover_mtu(&socket)?;
    // As much as the system gives: fewer datagrams are lost.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES);
    Ok(socket)
}

/// Has the system set "don't fragment", and with it identification 0.
#[expect(unsafe_code, reason = "a socket option that no safe function of the libraries has")]
fn discover_mtu(socket: &UdpSocket) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let value = libc::IP_PMTUDISC_DO;
    // SAFETY: the descriptor is open, and the value is an `int` that lives through the call.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            std::ptr::from_ref(&value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The headers that Linux gives a datagram of `payload` bytes.
fn headers(from: Ipv4Addr, to: Ipv4Addr, payload: usize) -> [u8; IP + UDP] {
    let mut headers = [0; IP + UDP];
    let udp_bytes = (UDP + payload) as u16;
    headers[..2].copy_from_slice(&[0x45, TOS]);
    headers[2..4].copy_from_slice(&(IP as u16 + udp_bytes).to_be_bytes());
    // Identification 0, "don't fragment", then TTL and protocol.
    headers[6..10].copy_from_slice(&[0x40, 0, HOP_LIMIT, 17]);
    headers[12..16].copy_from_slice(&from.octets());
    headers[16..20].copy_from_slice(&to.octets());
    let sum = checksum::finish(checksum::sum(&headers[..IP]));
    headers[10..12].copy_from_slice(&sum.to_be_bytes());
    headers[20..22].copy_from_slice(&ROCE_PORT.to_be_bytes());
    headers[22..24].copy_from_slice(&ROCE_PORT.to_be_bytes());
    headers[24..26].copy_from_slice(&udp_bytes.to_be_bytes());
    headers
}

/// The ICRC of a packet whose last four bytes are to hold it.
fn icrc_of(headers: &[u8; IP + UDP], packet: &[u8], scratch: &mut Vec<u8>) -> [u8; ICRC] {
    scratch.clear();
    scratch.extend_from_slice(headers);
    scratch.extend_from_slice(&packet[..packet.len() - ICRC]);
    icrc(scratch).to_le_bytes()
}

/// What a frame is as a datagram: its receiver, and the packet behind the UDP header with the ICRC
/// of the headers that the system will write. `None` for what is not RoCEv2 over IPv4.
fn datagram_of(frame: &[u8], from: Ipv4Addr) -> Option<(Ipv4Addr, Vec<u8>)> {
    let packet = frame.get(HEADERS..)?;
    if !is_roce(frame) || packet.len() < MIN_BYTES {
        return None;
    }
    let to = Ipv4Addr::from(*frame[30..].first_chunk::<4>()?);
    // A short frame is padded behind its packet.
    let udp_bytes = usize::from(u16::from_be_bytes([frame[38], frame[39]]));
    let mut packet = packet.get(..udp_bytes.checked_sub(UDP)?)?.to_vec();
    let at = packet.len().checked_sub(ICRC)?;
    let crc = icrc_of(&headers(from, to, packet.len()), &packet, &mut Vec::new());
    packet[at..].copy_from_slice(&crc);
    Some((to, packet))
}

/// The OpCode of a RoCEv2 packet over IPv4.
pub(super) fn opcode(frame: &[u8]) -> Option<u8> {
    is_roce(frame).then_some(*frame.get(HEADERS)?)
}

/// Whether a frame is RoCEv2 over IPv4.
fn is_roce(frame: &[u8]) -> bool {
    frame.get(12..15) == Some(&[0x08, 0x00, 0x45])
        && frame.get(23) == Some(&17)
        && frame.get(36..38) == Some(&ROCE_PORT.to_be_bytes())
}

/// Sends a frame's packet; anything but RoCEv2 over IPv4 goes nowhere.
pub(super) fn send(socket: &UdpSocket, frame: &[u8]) -> Sent {
    let Ok(from) = socket.local_addr() else { return Sent::Done };
    let Some((to, packet)) = v4_of(from).and_then(|from| datagram_of(frame, from)) else {
        return Sent::Done;
    };
    socket.send_to(&packet, (to, ROCE_PORT)).into()
}

/// Makes a frame of the packet that starts at [`HEADERS`] and has `len` bytes; its bytes. A wrong
/// ICRC is made anew, see the module.
fn frame_of(frame: &mut [u8], len: usize, from: Ipv4Addr, to: Ipv4Addr) -> usize {
    let headers = headers(from, to, len);
    frame[..6].copy_from_slice(&mac_of(to));
    frame[6..12].copy_from_slice(&mac_of(from));
    frame[12..14].copy_from_slice(&[0x08, 0x00]);
    frame[ETHER..HEADERS].copy_from_slice(&headers);
    let packet = &mut frame[HEADERS..HEADERS + len];
    let crc = icrc_of(&headers, packet, &mut Vec::new());
    packet[len - ICRC..].copy_from_slice(&crc);
    HEADERS + len
}

/// The next packet that arrived, as a frame for the port of `own`; its bytes.
pub(super) fn receive(socket: &UdpSocket, own: Ipv4Addr, frame: &mut [u8]) -> Option<usize> {
    loop {
        let (len, from) = socket.recv_from(&mut frame[HEADERS..]).ok()?;
        // Anything shorter is no RoCE, and the next one may be.
        if let Some(from) = v4_of(from).filter(|_| len >= MIN_BYTES) {
            return Some(frame_of(frame, len, from, own));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Ipv4Addr = Ipv4Addr::new(127, 88, 0, 1);
    const B: Ipv4Addr = Ipv4Addr::new(127, 88, 0, 2);

    #[test]
    fn headers_are_those_of_linux() {
        let headers = headers(A, B, 16);
        let ip = "4502 002c 0000 4000 4011 3c0c 7f58 0001 7f58 0002";
        let udp = "12b7 12b7 0018 0000";
        let hex: String = headers.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, format!("{ip}{udp}").replace(' ', ""));
    }

    #[test]
    fn a_packet_goes_there_and_back() {
        let packet = [0x5a; 32];
        let mut frame = vec![0; HEADERS + packet.len()];
        frame[HEADERS..].copy_from_slice(&packet);
        let len = frame_of(&mut frame, packet.len(), A, B);
        let (to, sent) = datagram_of(&frame[..len], A).unwrap();
        assert_eq!((to, &sent[..28]), (B, &packet[..28]));
        assert_eq!(&sent[28..], &frame[HEADERS + 28..len], "the ICRC is of the same headers");
        // Padding behind the packet is not part of it.
        frame.resize(len + 9, 0);
        assert_eq!(datagram_of(&frame, A), Some((to, sent)));
        frame[23] = 6;
        assert_eq!(datagram_of(&frame, A), None, "not UDP");
        assert_eq!(datagram_of(&frame[..40], A), None);
    }
}
