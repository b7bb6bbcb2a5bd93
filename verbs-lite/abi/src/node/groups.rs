//! Multicast groups beyond this machine: [`Membership`], and the group sockets of the model's port.
//!
//! On an adapter IGMP and MLD are the library's. The model has the system's: a UDP socket for each
//! group, bound to it, for one that is bound to the port's address hears of no group.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rustix::event::{Timespec, epoll};

use super::address::Address;
use super::{Node, lock, udp};
use crate::face::Errno;

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
    /// `ENOMEM`: an adapter's port cannot be a member, and the log says why.
    pub(crate) fn join(self: &Arc<Self>, group: IpAddr) -> Result<Membership, Errno> {
        if let Some(network) = &self.network {
            lock(network).join(group).map_err(|error| {
                tracing::info!(%group, %error, "the port cannot be a member of the group");
                Errno(libc::ENOMEM)
            })?;
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
            model.sockets.groups.leave(&model.sockets.address, self.group);
        }
        let left = self.node.network.as_ref().map(|network| lock(network).leave(self.group));
        if let Some(Err(error)) = left {
            tracing::warn!(group = %self.group, %error, "the group's frames are let in still");
        }
    }
}

/// The group sockets of a port.
#[derive(Debug, Default)]
pub(super) struct Groups {
    joined: Mutex<Vec<Joined>>,
    /// Readable when one of them is, and by number which; made for the first.
    ready: OnceLock<OwnedFd>,
    numbers: AtomicU64,
}

#[derive(Debug)]
struct Joined {
    group: IpAddr,
    times: usize,
    number: u64,
    /// `None` where the system refused one.
    socket: Option<UdpSocket>,
}

impl Groups {
    /// The descriptor that is readable when a packet has come to a group.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ready.get().map(AsFd::as_fd)
    }

    /// Counts one member more, if the group has one.
    fn count(joined: &mut [Joined], group: IpAddr) -> bool {
        let known = joined.iter_mut().find(|known| known.group == group);
        known.map(|known| known.times += 1).is_some()
    }

    /// Takes a group's packets; joins are counted, the refused ones, too.
    fn join(&self, own: &Address, group: IpAddr) -> io::Result<()> {
        if Self::count(&mut lock(&self.joined), group) {
            return Ok(());
        }
        // The system may take its time, and the port goes on meanwhile. From a loopback address
        // nothing goes to other machines.
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let opened = (!own.ip.is_loopback()).then(|| self.open(own, group, number)).transpose();
        let (socket, refused) = match opened {
            Ok(socket) => (socket, None),
            Err(error) => (None, Some(error)),
        };
        let made = Joined { group, times: 1, number, socket };
        let mut joined = lock(&self.joined);
        if Self::count(&mut joined, group) {
            drop(joined);
            self.close(own, made);
        } else {
            joined.push(made);
        }
        refused.map_or(Ok(()), Err)
    }

    fn open(&self, own: &Address, group: IpAddr, number: u64) -> io::Result<UdpSocket> {
        let socket = udp::bind_group(own, group)?;
        if self.ready.get().is_none() {
            // One that another thread has made meanwhile is as good.
            let _ = self.ready.set(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        }
        if let Some(ready) = self.ready.get() {
            epoll::add(ready, &socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        Ok(socket)
    }

    /// Closes a socket; a child of this process may have it still.
    fn close(&self, own: &Address, joined: Joined) {
        let Joined { socket: Some(socket), group, .. } = joined else { return };
        udp::leave_group(&socket, own, group);
        if let Some(ready) = self.ready.get()
            && let Err(error) = epoll::delete(ready, &socket)
        {
            tracing::warn!(%group, %error, "a socket that was left is looked at still");
        }
    }

    fn leave(&self, own: &Address, group: IpAddr) {
        let mut joined = lock(&self.joined);
        let Some(at) = joined.iter().position(|known| known.group == group) else { return };
        joined[at].times -= 1;
        if joined[at].times == 0 {
            let left = joined.swap_remove(at);
            drop(joined);
            self.close(own, left);
        }
    }

    /// The next datagram that came to a group, as [`udp::receive`] has it. Each group has its turn.
    pub(super) fn receive(&self, frame: &mut [u8]) -> Option<Option<usize>> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let ready = self.ready.get()?;
        let found = epoll::wait(ready, &mut events, Some(&Timespec::default())).ok()?;
        let number = events.get(..found)?.first()?.data.u64();
        let joined = lock(&self.joined);
        let Joined { group, socket, .. } = joined.iter().find(|known| known.number == number)?;
        udp::receive(socket.as_ref()?, *group, frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_counted_and_the_last_takes_the_socket_along() {
        let (own, group) = (Address::read("127.89.9.1").unwrap(), IpAddr::from([239, 1, 2, 3]));
        let groups = Groups::default();
        for _ in 0..2 {
            groups.join(&own, group).unwrap();
        }
        assert!(groups.fd().is_none(), "a loopback address reaches nobody");
        groups.leave(&own, group);
        assert_eq!(lock(&groups.joined).len(), 1);
        groups.leave(&own, group);
        groups.leave(&own, group);
        assert!(lock(&groups.joined).is_empty());
        // Refused, and counted all the same: who leaves does not know.
        let v4 = Address::read("192.0.2.9").unwrap();
        assert!(groups.join(&v4, IpAddr::from([0xff05, 0, 0, 0, 0, 0, 0, 5])).is_err());
        assert_eq!(lock(&groups.joined).len(), 1);
    }
}
