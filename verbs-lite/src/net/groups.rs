//! Multicast groups: [`Network::join`] and [`Network::leave`].

use ferrocx_net::membership::Memberships;

use super::memberships::{Group, host_on, mac_of};
use super::{NetError, Network};

/// How often the end of the last leaves is waited for, a step of the device each.
const LAST_STEPS: usize = 1000;

impl Network {
    /// Joins a multicast group, for whatever is sent to it or for what one source sends: lets its
    /// frames into the port, and tells switches and routers of the VLAN by IGMP or MLD, for as
    /// long as [`Network::poll`] is called. Joins are counted.
    ///
    /// A network is that of an [`RdmaContext`](crate::RdmaContext), which is refused for a port
    /// without RoCE v2, though multicast needs none of it. On such a port
    /// [`ferrocx_net::membership`] does the same over queues of one's own.
    ///
    /// Where the frames go is for flow rules to say, or
    /// [`Qp::attach_multicast`](crate::Qp::attach_multicast). 32 IPv4 groups share a MAC address:
    /// match the group in the rule.
    ///
    /// # Errors
    ///
    /// [`NetError::Join`], [`NetError::Device`]; nothing is joined then.
    pub fn join(&mut self, group: impl Into<Group>) -> Result<(), NetError> {
        let Group { ip: group, source, vlan } = group.into();
        self.refresh()?;
        let now = self.now();
        if self.memberships.on(vlan).is_none() {
            let host = host_on(self.station.mac, vlan, &self.gids);
            // Hosts of one link shall not answer at the same time.
            let seed = self.context.device().random();
            let memberships = Memberships::new(host, self.memberships.config, seed);
            self.memberships.of_vlans.push((host, memberships));
        }
        let Some(memberships) = self.memberships.on(vlan) else { unreachable!("made above") };
        memberships.join(group, source, now)?;
        if let Err(error) = self.context.device().join_multicast(mac_of(group)) {
            memberships.leave(group, source, now);
            return Err(error.into());
        }
        self.poll();
        Ok(())
    }

    /// Takes one [`Network::join`] of this group back; whether there was one.
    ///
    /// # Errors
    ///
    /// [`NetError::Device`]: the port still lets the group's frames in.
    pub fn leave(&mut self, group: impl Into<Group>) -> Result<bool, NetError> {
        let Group { ip: group, source, vlan } = group.into();
        let now = self.now();
        let Some(memberships) = self.memberships.on(vlan) else { return Ok(false) };
        if !memberships.joins().contains(&(group, source)) {
            return Ok(false);
        }
        self.context.device().leave_multicast(mac_of(group))?;
        memberships.leave(group, source, now);
        self.poll();
        Ok(true)
    }

    /// Leaves every group, and sends what says so once.
    pub(super) fn leave_all(&mut self) {
        let now = self.now();
        for (_, memberships) in &mut self.memberships.of_vlans {
            for (group, source) in memberships.joins() {
                memberships.leave(group, source, now);
                if let Err(error) = self.context.device().leave_multicast(mac_of(group)) {
                    tracing::warn!(%error, %group, "multicast group not left");
                }
            }
        }
        self.poll();
        for _ in 0..LAST_STEPS {
            if self.free.len() + self.posted as usize == 2 * self.config.descriptors as usize {
                break;
            }
            self.poll();
            self.context.device().relax();
        }
    }
}
