//! [`Links`]: how a connection manager finds its peers.

use std::fmt;
use std::net::IpAddr;

use crate::gid::Path;
use crate::net::{NetError, NetStats, Network};

/// Finds the way to peers: [`Network`] by ARP and neighbour discovery. Whoever knows the MAC
/// addresses of its peers by other means has a way of its own.
pub trait Links: Send + fmt::Debug {
    /// Does what is due. Whether anything moved.
    fn poll(&mut self) -> bool {
        false
    }

    /// The way from an address of the port to a peer; `None` while it is asked for. Nobody here
    /// wants to reach a stranger of himself: its entry pushes out nobody else's.
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve_from`].
    fn resolve(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        is_stranger: bool,
    ) -> Result<Option<Path>, NetError>;

    /// Counters, where there are any.
    fn stats(&self) -> NetStats {
        NetStats::default()
    }
}

impl Links for Network {
    fn poll(&mut self) -> bool {
        Self::poll(self)
    }

    fn resolve(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        is_stranger: bool,
    ) -> Result<Option<Path>, NetError> {
        self.resolve_as(local, remote, is_stranger)
    }

    fn stats(&self) -> NetStats {
        Self::stats(self)
    }
}
