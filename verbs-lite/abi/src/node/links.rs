//! [`Known`]: the way to peers, for the connection manager: the node's own.

use std::net::IpAddr;
use std::sync::Arc;

use ferrocx_core::MacAddr;
use ferrocx_verbs_lite::cm::Links;
use ferrocx_verbs_lite::net::{NetError, NetStats};
use ferrocx_verbs_lite::{Gid, Path};

use super::address::mac_of;
use super::{Node, lock};

/// The peers of a node, for its connection manager.
#[derive(Debug)]
pub(crate) struct Known(pub(crate) Arc<Node>);

impl Links for Known {
    fn poll(&mut self) -> bool {
        self.0.network.as_ref().is_some_and(|network| lock(network).poll())
    }

    fn resolve(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        is_stranger: bool,
    ) -> Result<Option<Path>, NetError> {
        if let Some(network) = &self.0.network {
            return Links::resolve(&mut *lock(network), local, remote, is_stranger);
        }
        let route = self.0.context.route_from(Gid::from(local), Gid::from(remote))?;
        Ok(Some(Path::new(route, MacAddr(mac_of(remote.to_canonical())))))
    }

    fn stats(&self) -> NetStats {
        self.0.network.as_ref().map_or_else(NetStats::default, |network| lock(network).stats())
    }
}
