//! Nodes behind addresses of this machine that are no node's own, 127.0.0.1 for one.
//!
//! Each process has an address, and its listeners are there. Programs call their peer by the name
//! of the machine all the same. So a listener takes a Unix socket whose abstract name says its port
//! and its node, and whoever calls such an address looks for the port: no daemon, no file, and a
//! process that ends leaves nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

/// Says that a node listens on a port, as long as it lives.
#[derive(Debug)]
pub(super) struct Place(#[expect(dead_code, reason = "its name is what counts")] UnixDatagram);

fn name(space: u16, port: u16) -> String {
    format!("ferrocx-cm/{space:x}/{port}/")
}

/// Lets others find a listener. `None` if the system has no room: only its own address leads there.
pub(super) fn announce(space: u16, port: u16, node: IpAddr) -> Option<Place> {
    let name = format!("{}{node}", name(space, port));
    let address = UnixAddr::from_abstract_name(name).ok()?;
    UnixDatagram::bind_addr(&address).ok().map(Place)
}

/// Whether an address is one of this machine: one that can be bound to.
pub(super) fn is_of_machine(mut address: SocketAddr) -> bool {
    address.set_port(0);
    UdpSocket::bind(address).is_ok()
}

/// What stands behind a prefix in a list of Unix sockets.
fn behind<'a>(sockets: &'a str, prefix: &str) -> Option<&'a str> {
    sockets.lines().find_map(|line| line.split_once('@')?.1.strip_prefix(prefix))
}

/// The node that a peer's address leads to, for a service there; `None` if it is one of this
/// machine and nobody here offers the service.
pub(super) fn find(peer: SocketAddr, space: u16) -> Option<IpAddr> {
    let ip = peer.ip().to_canonical();
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let is_node = sockets.lines().any(|line| line.ends_with(&format!("@ferrocx-roce/{ip}")));
    if is_node || !is_of_machine(peer) {
        return Some(ip);
    }
    let found = behind(&sockets, &name(space, peer.port()));
    found?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_found_by_any_address_of_the_machine() {
        let node = IpAddr::from([127, 89, 3, 7]);
        let peer = SocketAddr::from(([127, 0, 0, 1], 7174));
        assert_eq!(find(peer, 0x7fff), None, "nobody listens");
        let place = announce(0x7fff, 7174, node).unwrap();
        assert_eq!(find(peer, 0x7fff), Some(node));
        assert_eq!(find(SocketAddr::new(peer.ip(), 7175), 0x7fff), None, "another port");
        drop(place);
        assert_eq!(find(peer, 0x7fff), None);
        let far = SocketAddr::from(([192, 0, 2, 1], 7174));
        assert_eq!(find(far, 0x7fff), Some(far.ip()), "of another machine");
    }
}
