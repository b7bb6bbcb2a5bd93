//! The handshake of `ibv_*_pingpong`: who each end is, as text over TCP.
//!
//! Each end says a message of 52 bytes for each queue pair: LID, number, first PSN and GID in
//! hexadecimal, and a zero. The client speaks first, the server is ready to receive when it
//! answers, and the client ends with five bytes, "done" and a zero. Source: rdma-core,
//! libibverbs/examples/rc_pingpong.c and srq_pingpong.c.

use std::io::{self, Read, Write};

use ferrocx_verbs_lite::{Gid, Psn, Qpn};

/// Bytes of an address, with the zero at its end.
pub const ADDRESS_BYTES: usize = 52;
/// Addresses that `ibv_srq_pingpong` says, however many queue pairs it uses. Source: rdma-core,
/// libibverbs/examples/srq_pingpong.c.
pub const SRQ_ADDRESSES: usize = 256;
/// What the client ends with.
const DONE: &[u8; 5] = b"done\0";

/// Who an end is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// Local identifier: 0 on Ethernet.
    pub lid: u16,
    /// Its queue pair.
    pub qpn: Qpn,
    /// The first number that it will send.
    pub psn: Psn,
    /// Its address.
    pub gid: Gid,
}

impl Address {
    /// As it stands on the wire.
    #[must_use]
    pub fn to_wire(self) -> [u8; ADDRESS_BYTES] {
        let gid = u128::from_be_bytes(self.gid.0);
        let text = format!(
            "{:04x}:{:06x}:{:06x}:{gid:032x}\0",
            self.lid,
            self.qpn.0 & 0xff_ffff,
            self.psn.0 & 0xff_ffff
        );
        let mut wire = [0; ADDRESS_BYTES];
        wire.copy_from_slice(text.as_bytes());
        wire
    }

    /// Reads what the other end said.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] with the text, if it is not an address.
    pub fn from_wire(wire: &[u8; ADDRESS_BYTES]) -> io::Result<Self> {
        Self::parse(wire).ok_or_else(|| {
            let text = wire.escape_ascii();
            let why = format!("the other end said `{text}`, which is no address of a pingpong");
            io::Error::new(io::ErrorKind::InvalidData, why)
        })
    }

    fn parse(wire: &[u8; ADDRESS_BYTES]) -> Option<Self> {
        let text = std::str::from_utf8(wire).ok()?.strip_suffix('\0')?;
        let mut parts = text.split(':');
        let mut part = |digits: usize| {
            let is_hex = |part: &&str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
            parts.next().filter(|part| part.len() == digits).filter(is_hex)
        };
        let lid = u16::from_str_radix(part(4)?, 16).ok()?;
        let qpn = Qpn(u32::from_str_radix(part(6)?, 16).ok()?);
        let psn = Psn(u32::from_str_radix(part(6)?, 16).ok()?);
        let gid = Gid(u128::from_str_radix(part(32)?, 16).ok()?.to_be_bytes());
        Some(Self { lid, qpn, psn, gid })
    }
}

/// The client's half: says who it is, learns who the server is, as many queue pairs as it has.
///
/// # Errors
///
/// What the stream says, or [`Address::from_wire`].
pub fn as_client(stream: &mut (impl Read + Write), own: &[Address]) -> io::Result<Vec<Address>> {
    say(stream, own)?;
    let peers = hear(stream, own.len())?;
    stream.write_all(DONE)?;
    Ok(peers)
}

fn say(stream: &mut impl Write, own: &[Address]) -> io::Result<()> {
    own.iter().try_for_each(|address| stream.write_all(&address.to_wire()))
}

fn hear(stream: &mut impl Read, count: usize) -> io::Result<Vec<Address>> {
    let mut wire = [0; ADDRESS_BYTES];
    let one = |_| {
        stream.read_exact(&mut wire)?;
        Address::from_wire(&wire)
    };
    (0..count).map(one).collect()
}

/// The server's half. `ready` is given who the client is, before that one may send.
///
/// # Errors
///
/// What the stream says, [`Address::from_wire`], or what `ready` says.
pub fn as_server<E: From<io::Error>>(
    stream: &mut (impl Read + Write),
    own: &[Address],
    ready: impl FnOnce(&[Address]) -> Result<(), E>,
) -> Result<Vec<Address>, E> {
    let peers = hear(stream, own.len())?;
    ready(&peers)?;
    say(stream, own)?;
    let mut done = [0; DONE.len()];
    stream.read_exact(&mut done)?;
    Ok(peers)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::os::unix::net::UnixStream;

    use super::*;

    const WIRE: &[u8; 52] = b"0000:00001a:abcdef:00000000000000000000ffff0a010002\0";

    fn address() -> Address {
        let gid = Gid::from(Ipv4Addr::new(10, 1, 0, 2));
        Address { lid: 0, qpn: Qpn(0x1a), psn: Psn(0xab_cdef), gid }
    }

    #[test]
    fn an_address_is_fifty_two_bytes_of_text() {
        assert_eq!(&address().to_wire(), WIRE);
        assert_eq!(Address::from_wire(WIRE).unwrap(), address());
    }

    #[test]
    fn what_is_no_address_is_quoted() {
        for (at, byte) in [(0, b'g'), (4, b'.'), (51, b'0'), (5, b'+'), (20, 0xff), (51, b':')] {
            let mut wire = *WIRE;
            wire[at] = byte;
            let error = Address::from_wire(&wire).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(error.to_string().contains("which is no address"), "{error}");
        }
    }

    #[test]
    fn the_server_is_ready_before_it_answers() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let ours = [address(), Address { qpn: Qpn(0x1b), ..address() }];
        let theirs = ours.map(|address| Address { psn: Psn(0x99), ..address });
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            let peers = as_server(&mut there, &theirs, |peers| {
                asked.extend_from_slice(peers);
                Ok::<(), io::Error>(())
            });
            (peers.unwrap(), asked)
        });
        assert_eq!(as_client(&mut here, &ours).unwrap(), theirs);
        assert_eq!(thread.join().unwrap(), (ours.to_vec(), ours.to_vec()));
    }

    #[test]
    fn a_server_that_is_not_ready_says_nothing() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        here.write_all(WIRE).unwrap();
        let refused = as_server(&mut there, &[address()], |_| Err(io::Error::other("no")));
        assert_eq!(refused.unwrap_err().to_string(), "no");
        drop(there);
        assert!(as_client(&mut here, &[address()]).is_err());
    }
}
