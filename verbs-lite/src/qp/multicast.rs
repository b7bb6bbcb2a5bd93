//! Multicast groups of datagram queue pairs. Source: reference 4.2, ATTACH_TO_MCG.
//!
//! A group is an IP multicast address. Attaching tells the device twice: which queue pairs get the
//! group's packets, and that its MAC address is let in. Routers and switches that look for
//! listeners (IGMP, MLD) are told by [`Network::join`](crate::net::Network::join).

use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::srq::{AttachToMcg, DetachFromMcg};

use super::{Qp, QpType};
use crate::command::Execute;
use crate::error::VerbsError;
use crate::mr::Buffers;
use crate::types::Gid;

impl<B: Buffers> Qp<B> {
    /// Lets the datagrams of a multicast group arrive here too. They must carry the queue pair's
    /// Q_Key. A group that it is attached to already stays as it is.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a service without datagrams, [`VerbsError::NoRoute`] for an
    /// address that is no group, or what the device refused.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&mut self, group: Gid) -> Result<(), VerbsError> {
        if self.qp_type != QpType::Ud {
            let what = "multicast for this service";
            return Err(VerbsError::Unsupported { what, way_out: "use a datagram queue pair" });
        }
        let mac = group.multicast_mac().ok_or(VerbsError::NoRoute { remote: group })?;
        if self.groups.contains(&group) {
            return Ok(());
        }
        let device = self.pd.core.device();
        device.join_multicast(mac)?;
        let input = AttachToMcg::input().with_qpn(self.qpn).with_multicast_gid(group.0);
        if let Err(error) = device.execute::<AttachToMcg>(&input, &[], &mut []) {
            device.leave_multicast(mac)?;
            return Err(error.into());
        }
        self.groups.push(group);
        Ok(())
    }

    /// Ends [`Qp::attach_multicast`]. Destroying the queue pair does too.
    ///
    /// # Errors
    ///
    /// [`VerbsError::NoRoute`] for a group that it is not attached to, or what the device refused.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&mut self, group: Gid) -> Result<(), VerbsError> {
        let at = self.groups.iter().position(|other| *other == group);
        let at = at.ok_or(VerbsError::NoRoute { remote: group })?;
        let device = self.pd.core.device();
        let input = DetachFromMcg::input().with_qpn(self.qpn).with_multicast_gid(group.0);
        device.execute::<DetachFromMcg>(&input, &[], &mut [])?;
        self.groups.swap_remove(at);
        match group.multicast_mac() {
            Some(mac) => Ok(device.leave_multicast(mac)?),
            None => Ok(()),
        }
    }

    /// The groups that it is attached to.
    #[must_use]
    pub fn groups(&self) -> &[Gid] {
        &self.groups
    }

    /// Leaves every group, before the queue pair goes.
    pub(super) fn detach_all(&mut self) {
        while let Some(group) = self.groups.last().copied() {
            if let Err(error) = self.detach_multicast(group) {
                tracing::warn!(qpn = self.qpn, %group, %error, "multicast group not left");
                self.groups.retain(|other| *other != group);
            }
        }
    }
}
