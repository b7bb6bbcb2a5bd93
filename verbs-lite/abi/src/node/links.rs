//! [`Known`]: the way to peers whose MAC addresses follow from their IP addresses.

use std::net::IpAddr;
use std::sync::Arc;

use ferrocx_verbs_lite::cm::Links;
use ferrocx_verbs_lite::net::{NetError, Unresolved};
use ferrocx_verbs_lite::{Gid, Path};

use super::Node;

/// The peers of a node, for its connection manager.
#[derive(Debug)]
pub(crate) struct Known(pub(crate) Arc<Node>);

impl Links for Known {
    fn resolve(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        _is_stranger: bool,
    ) -> Result<Option<Path>, NetError> {
        let to = Gid::from(remote);
        let route = self.0.context.route_from(Gid::from(local), to)?;
        let mac = self.0.mac_of(to).ok_or(Unresolved::NotAHost { target: remote })?;
        Ok(Some(Path::new(route, mac)))
    }
}
