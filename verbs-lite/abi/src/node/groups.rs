//! Multicast groups beyond this machine: [`Membership`], and the group sockets of the model's port.
//!
//! On an adapter IGMP and MLD are the library's. The model has the system's: a UDP socket for each
//! group, bound to it, for one that is bound to the port's address hears of no group.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::epoll;

use super::address::Address;
use super::{Node, lock, refused, udp};

/// A group of the port, from the system's point of view, as long as it lives.
#[derive(Debug)]
pub(crate) struct Membership {
    node: Arc<Node>,
    group: IpAddr,
}

impl Node {
    /// Has what is sent to a group come to the port, from other machines, too. Where the model's
    /// system refuses that, the group is this machine's alone.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::Other`], with why an adapter's port is no member.
    pub(crate) fn join(self: &Arc<Self>, group: IpAddr) -> io::Result<Membership> {
        if let Some(network) = &self.network {
            lock(network).join(group).map_err(refused)?;
        }
        if let Some(model) = &self.model
            && let Err(error) = model.sockets.groups.join(&model.sockets.address, group)
        {
            tracing::warn!(%group, %error, "nothing will come to the group from other machines");
        }
        Ok(Membership { node: Arc::clone(self), group })
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if let Some(model) = &self.node.model {
            model.sockets.groups.leave(self.group);
        }
        let left = self.node.network.as_ref().map(|network| lock(network).leave(self.group));
        if let Some(Err(error)) = left {
            tracing::warn!(group = %self.group, %error, "the port lets the group's frames in still");
        }
    }
}

/// The group sockets of a port.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: Mutex<HashMap<IpAddr, Joined>>,
    /// Readable when one of them is; made for the first.
    ready: OnceLock<OwnedFd>,
}

#[derive(Debug)]
struct Joined {
    /// `None` where the system refused one.
    socket: Option<UdpSocket>,
    times: usize,
}

impl Groups {
    /// The descriptor that is readable when a packet has come to a group.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.get().map(AsFd::as_fd)
    }

    /// Takes a group's packets; joins are counted, the refused ones, too.
    fn join(&self, own: &Address, group: IpAddr) -> io::Result<()> {
        let mut joined = lock(&self.joined);
        if let Some(known) = joined.get_mut(&group) {
            known.times += 1;
            return Ok(());
        }
        // From a loopback address nothing goes to other machines.
        let opened = (!own.ip.is_loopback()).then(|| self.open(own, group)).transpose();
        let (socket, refused) = match opened {
            Ok(socket) => (socket, None),
            Err(error) => (None, Some(error)),
        };
        joined.insert(group, Joined { socket, times: 1 });
        refused.map_or(Ok(()), Err)
    }

    fn open(&self, own: &Address, group: IpAddr) -> io::Result<UdpSocket> {
        let socket = udp::bind_group(own, group)?;
        if self.ready.get().is_none() {
            let made = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            // Nobody else makes one: the groups are locked.
            let _ = self.ready.set(made);
        }
        if let Some(ready) = self.ready.get() {
            // It is taken out by being closed.
            epoll::add(ready, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        }
        Ok(socket)
    }

    fn leave(&self, group: IpAddr) {
        let mut joined = lock(&self.joined);
        if let Some(known) = joined.get_mut(&group) {
            known.times -= 1;
            if known.times == 0 {
                joined.remove(&group);
            }
        }
    }

    /// The next packet that came to a group, as a frame; its bytes.
    pub(super) fn receive(&self, frame: &mut [u8]) -> Option<usize> {
        self.ready.get()?;
        let joined = lock(&self.joined);
        joined.iter().find_map(|(group, Joined { socket, .. })| {
            udp::receive(socket.as_ref()?, *group, frame)
        })
    }
}
