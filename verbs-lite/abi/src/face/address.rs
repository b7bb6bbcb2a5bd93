//! Address handles: where datagrams go.

use std::ffi::c_int;

use ferrocx_net::checksum;
use ferrocx_verbs_lite::{AddressHandle, Gid, Path, Qpn};

use super::context::Context;
use super::life::User;
use super::memory::Domain;
use super::shown::Shown;
use super::{Errno, give_out, object, set_errno, take_back};
use crate::abi::{ibv_ah, ibv_ah_attr, ibv_context, ibv_global_route, ibv_pd, ibv_wc, wc};
use crate::node::Node;

/// An address handle as the program has it.
#[repr(C)]
pub(super) struct Address {
    _face: Shown<ibv_ah>,
    handle: AddressHandle,
    _domain: User,
}

impl Address {
    /// # Safety
    /// The module's: `face` is a live address handle.
    pub(super) unsafe fn of<'a>(face: *mut ibv_ah) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    /// The way to a queue pair of the address.
    #[inline(always)]
    pub(super) fn to(&self, qpn: u32, qkey: u32) -> AddressHandle {
        // The field takes 24 bits of the number.
        self.handle.to(Qpn(qpn), qkey)
    }
}

/// The path that attributes describe.
pub(super) fn path_of(node: &Node, attr: &ibv_ah_attr) -> Result<Path, Errno> {
    // RoCE has no address but the global one. Source: IBTA vol. 1, annex A17.
    if attr.is_global == 0 || attr.port_num > 1 {
        return Err(Errno::INVALID);
    }
    let grh = &attr.grh;
    if usize::from(grh.sgid_index) >= node.gids().len() {
        return Err(Errno::INVALID);
    }
    let path = node.path(grh.sgid_index, gid_of(grh.dgid)).ok_or(Errno(libc::ENETUNREACH))?;
    Ok(Path {
        // 0 says that nobody has thought of it, and no packet would arrive.
        hop_limit: if grh.hop_limit == 0 { path.hop_limit } else { grh.hop_limit },
        traffic_class: grh.traffic_class,
        flow_label: grh.flow_label & 0xf_ffff,
        priority: attr.sl & 7,
        ..path
    })
}

fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let context = promised!((*pd).context);
    let path = path_of(&promised!(Context::here(context))?.node, attr)?;
    let handle = AddressHandle::new(&path, Qpn(0), 0);
    let _domain = promised!(Domain::of(pd)).users.one();
    Ok(give_out(Address { _face: Shown::new(ibv_ah { context, pd, handle: 0 }), handle, _domain }))
}

pub(crate) unsafe extern "C" fn ibv_create_ah(
    pd: *mut ibv_pd,
    attr: *mut ibv_ah_attr,
) -> *mut ibv_ah {
    object(create(pd, promised!(&*attr)))
}

pub(crate) unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    drop(promised!(take_back::<Address, _>(ah)));
    0
}

/// Where in those bytes an IPv4 header begins.
const V4_AT: usize = 20;

/// Whether the 40 bytes in front of a datagram end with an IPv4 header, by what they say alone: a
/// completion may be another library's, or the program's own copy. What stands in front of such a
/// header may look like one of IPv6. Source: rdma-core, libibverbs/verbs.c,
/// `get_grh_header_version`; IBTA annex A17, 17.4.5.2.
fn has_ipv4(grh: &[u8; 40]) -> Result<bool, Errno> {
    let header = &grh[V4_AT..];
    match (grh[0] >> 4, header[0]) {
        (6, version) => Ok(version & 0xf == 5 && checksum::is_intact(checksum::sum(header))),
        (_, version) if version >> 4 == 4 => Ok(true),
        _ => Err(Errno(libc::EPROTONOSUPPORT)),
    }
}

/// The address of a datagram's sender, by the 40 bytes in front of the message: those of an IPv6
/// header, or an IPv4 header in the last 20.
fn sender_of(node: &Node, port: u8, wc: &ibv_wc, grh: &[u8; 40]) -> Result<ibv_ah_attr, Errno> {
    if wc.wc_flags & wc::GRH == 0 || port != 1 {
        return Err(Errno::INVALID);
    }
    let mapped = |ip: &[u8]| {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(ip);
        gid
    };
    // The answer is of the class that the datagram was of.
    let (from, to, hop_limit, traffic_class) = if has_ipv4(grh)? {
        (mapped(&grh[32..36]), mapped(&grh[36..40]), grh[28], grh[21])
    } else {
        let gid = |at: usize| grh[at..at + 16].try_into().unwrap_or([0; 16]);
        (gid(8), gid(24), grh[7], grh[0] << 4 | grh[1] >> 4)
    };
    let own = node.gids().iter().position(|entry| entry.gid.0 == to).ok_or(Errno::INVALID)?;
    let word = |at: usize| u64::from_ne_bytes(from[at..at + 8].try_into().unwrap_or([0; 8]));
    let grh = ibv_global_route {
        dgid: [word(0), word(8)],
        flow_label: 0,
        sgid_index: own as u8,
        hop_limit: hop_limit.max(1),
        traffic_class,
    };
    Ok(ibv_ah_attr { grh, is_global: 1, port_num: port, ..ibv_ah_attr::default() })
}

pub(crate) unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const [u8; 40],
    attr: *mut ibv_ah_attr,
) -> c_int {
    let sender = promised!(Context::here(context))
        .and_then(|shared| promised!(sender_of(&shared.node, port, &*wc, &*grh)));
    match sender {
        Ok(sender) => {
            promised!(attr.write(sender));
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

pub(crate) unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *const ibv_wc,
    grh: *const [u8; 40],
    port: u8,
) -> *mut ibv_ah {
    let sender = promised!(Context::here((*pd).context))
        .and_then(|shared| promised!(sender_of(&shared.node, port, &*wc, &*grh)));
    object(sender.and_then(|attr| create(pd, &attr)))
}

/// The MAC address of a peer, which the port finds by itself.
pub(crate) unsafe extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    /// No VLAN.
    const NO_VLAN: u16 = 0xffff;
    let path = promised!(Context::here(context))
        .and_then(|shared| path_of(&shared.node, promised!(&*attr)));
    match path {
        Ok(path) => {
            promised!(mac.write(path.dmac.0));
            if !vlan.is_null() {
                promised!(vlan.write(NO_VLAN));
            }
            0
        }
        Err(errno) => errno.0,
    }
}

/// The destination of an address, in the form of a GID.
fn gid_of(words: [u64; 2]) -> Gid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
    Gid(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_the_port_that_is_not_there_is_no_way() {
        let node = Node::open(0).unwrap();
        let to = node.gids()[0].gid.0;
        let attr = |sgid_index: usize| {
            let word = |at: usize| u64::from_ne_bytes(to[at..at + 8].try_into().unwrap());
            let dgid = [word(0), word(8)];
            let grh = ibv_global_route { dgid, sgid_index: sgid_index as u8, ..Default::default() };
            ibv_ah_attr { grh, is_global: 1, port_num: 1, ..ibv_ah_attr::default() }
        };
        assert!(path_of(&node, &attr(0)).is_ok());
        let beyond = path_of(&node, &attr(node.gids().len()));
        assert_eq!(beyond.err(), Some(Errno::INVALID));
    }

    #[test]
    fn an_answer_is_of_the_class_of_the_datagram() {
        let node = Node::open(0).unwrap();
        let own = node.gids()[0].gid.0;
        // Nothing in it says what the header is of.
        let wc = ibv_wc { wc_flags: wc::GRH, ..ibv_wc::default() };
        let mut header = [0; 40];
        header[20..30].copy_from_slice(&[0x45, 0xb8, 0, 76, 0, 0, 0x40, 0, 17, 17]);
        header[32..36].copy_from_slice(&[127, 88, 9, 9]);
        header[36..].copy_from_slice(&own[12..]);
        let sum = checksum::finish(checksum::sum(&header[20..]));
        header[30..32].copy_from_slice(&sum.to_be_bytes());
        // Whatever the last header in that place was.
        for first in [0, 0x60] {
            header[0] = first;
            let grh = sender_of(&node, 1, &wc, &header).map_err(|errno| errno.0).unwrap().grh;
            assert_eq!((grh.traffic_class, grh.hop_limit, grh.sgid_index), (0xb8, 17, 0));
            assert_eq!(gid_of(grh.dgid).ip(), std::net::IpAddr::from([127, 88, 9, 9]));
        }
        header[20] = 0x55;
        let refused = sender_of(&node, 1, &wc, &header).err();
        assert_eq!(refused, Some(Errno::INVALID), "a header of IPv6, to nobody here");
        header[0] = 0x10;
        let refused = sender_of(&node, 1, &wc, &header).err();
        assert_eq!(refused, Some(Errno(libc::EPROTONOSUPPORT)), "no header at all");
        // An address of IPv6 may have 4 and 5 where the other header begins.
        let mut peer = [0xfd; 16];
        peer[12] = 0x45;
        let mut header = [0x6b, 0x80, 0, 5, 0, 0, 17, 3].to_vec();
        header.extend([peer, own].concat());
        let header = header.try_into().unwrap();
        let grh = sender_of(&node, 1, &wc, &header).map_err(|errno| errno.0).unwrap().grh;
        assert_eq!((grh.traffic_class, grh.hop_limit), (0xb8, 3));
        // A group is nobody's own address.
        let mut header = header;
        header[24] = 0xff;
        assert_eq!(sender_of(&node, 1, &wc, &header).err(), Some(Errno::INVALID));
    }
}
