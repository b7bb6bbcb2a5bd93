//! What the kernel's half of `rdma_cm` does, for stock librdmacm: its commands are answered here.
//!
//! Stock librdmacm touches the kernel in one place: it opens `/dev/infiniband/rdma_cm`, writes
//! commands, and waits for the file to become readable. [`hooks`](super::hooks) leads these calls
//! to [`calls`], [`commands`] answers them over verbs-lite's connection manager. Everything else,
//! rsockets and `rdma_getaddrinfo` included, stays the stock library's own code. A library of our
//! own would be the same functions once more, and rsockets besides.
//!
//! # Architecture
//!
//! - A [`Service`] is the process's; a file is a [`Channel`]: events in order, and an eventfd.
//! - [`goodbye`] ends the connections of a process that ends.
//! - [`id`] has the ids, and makes events of what becomes of their connections.
//! - [`listen`] has their ports, which an id of IPv4 and one of IPv6 may share.
//! - [`places`] finds the node behind an address of this machine that is no node's own.
//!
//! # What it does not do
//!
//! Addresses of InfiniBand (`AF_IB`), service records, path migration, enhanced connection
//! establishment.

mod calls;
mod commands;
mod copy;
mod goodbye;
mod id;
pub(crate) mod kernel;
mod listen;
mod places;
mod port;

pub(super) use calls::serve_librdmacm;
pub(crate) use copy::*;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use ferrocx_mempool::PageSize;
use ferrocx_verbs_lite::cm::{CmConfig, CmLimits, ConnectionManager};

use self::id::Id;
use self::kernel::rdma_ucm_event_resp;
use super::{Errno, signals};
use crate::files;
use crate::node::{Known, Node, Turn, lock};

/// Longest that an ended connection is remembered: on one machine no packet is late for long.
const TIME_WAIT: Duration = Duration::from_secs(1);
/// Connections that are being made at a time, and those with one peer: as many as wait for a
/// listener of the longest backlog, from a process that asks for all of them at once.
const HALF_OPEN: usize = 4096;
const HALF_OPEN_PER_PEER: usize = 1024;
/// How often it is seen whether the peers' processes are there.
const LOOK_AFTER: Duration = Duration::from_millis(250);

/// An event that the program has not taken.
#[derive(Debug)]
struct Event {
    /// The id that it is counted for, and the one that a request made.
    about: u32,
    makes: Option<u32>,
    /// The id in it is a group's.
    is_group: bool,
    response: rdma_ucm_event_resp,
}

/// An event channel: a file that is readable as long as an event waits.
#[derive(Debug)]
struct Channel {
    /// Ours; the program has another descriptor of the same file.
    file: Arc<OwnedFd>,
    events: VecDeque<Event>,
}

impl Channel {
    fn push(&mut self, event: Event) {
        self.events.push_back(event);
        files::signal(&self.file);
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.settle();
        event
    }

    /// Takes out what `is_taken` says.
    fn take(&mut self, is_taken: impl Fn(&Event) -> bool) -> Vec<Event> {
        let (taken, rest) = self.events.drain(..).partition(is_taken);
        self.events = VecDeque::from_iter::<Vec<_>>(rest);
        self.settle();
        taken
    }

    /// Whether the program has not taken a request for a listener yet.
    fn has_request(&self, listener: u32) -> bool {
        self.events.iter().any(|event| event.about == listener && event.makes.is_some())
    }

    fn settle(&self) {
        if self.events.is_empty() {
            files::clear(&self.file);
        }
    }
}

/// What the lock of a service guards.
#[derive(Debug, Default)]
struct Table {
    /// By the program's descriptors.
    channels: HashMap<c_int, Channel>,
    ids: HashMap<u32, Id>,
    next_id: u32,
    /// When it was last seen whether the peers' processes are there.
    looked: Option<Instant>,
}

/// A device, and what makes its connections.
#[derive(Debug)]
struct Rail {
    node: Arc<Node>,
    manager: ConnectionManager,
}

impl Rail {
    fn open(index: usize) -> Result<Self, Errno> {
        let refused = |error: &dyn std::fmt::Display| {
            tracing::error!(%error, "rdma_cm cannot be served");
            Errno(libc::ENODEV)
        };
        let node = Node::open(index).map_err(|error| refused(&error))?;
        let limits = CmLimits {
            time_wait: TIME_WAIT,
            half_open: HALF_OPEN,
            half_open_per_peer: HALF_OPEN_PER_PEER,
            ..CmLimits::default()
        };
        let config = CmConfig { limits, page: PageSize::Base4K, ..CmConfig::default() };
        let links = Box::new(Known(Arc::clone(&node)));
        let manager = ConnectionManager::over(&node.context, &config, links)
            .map_err(|error| refused(&error))?;
        Ok(Self { node, manager })
    }

    /// The node's own address.
    fn local(&self) -> IpAddr {
        self.node.address.gid.ip()
    }
}

/// The kernel's half, in this process.
#[derive(Debug)]
struct Service {
    /// All devices, by their numbers.
    rails: Vec<Rail>,
    table: Mutex<Table>,
}

/// The service of this process, and the process: a child after a fork makes one of its own.
static SERVICE: Mutex<Option<(u32, &'static Service)>> = Mutex::new(None);

impl Service {
    /// The service, which is made when it is first asked for, and stays.
    fn get() -> Result<&'static Self, Errno> {
        let mut service = lock(&SERVICE);
        match *service {
            Some((process, service)) if process == std::process::id() => Ok(service),
            _ => {
                let made: &'static Arc<Self> = Box::leak(Box::new(Self::open()?));
                *service = Some((std::process::id(), made));
                goodbye::note_service();
                Ok(made)
            }
        }
    }

    fn open() -> Result<Arc<Self>, Errno> {
        let rails = (0..Node::count()).map(Rail::open).collect::<Result<_, _>>()?;
        let service = Arc::new(Self { rails, table: Mutex::default() });
        let turn: Arc<dyn Turn> = Arc::<Self>::clone(&service);
        for rail in &service.rails {
            rail.node.give_turns(Arc::downgrade(&turn) as Weak<dyn Turn>);
        }
        Ok(service)
    }

    /// The service, if `fd` is a channel of it.
    fn of(fd: c_int) -> Option<&'static Self> {
        let (process, service) = (*lock(&SERVICE))?;
        if process != std::process::id() {
            return None;
        }
        lock(&service.table).channels.contains_key(&fd).then_some(service)
    }

    /// A new channel; its descriptor for the program.
    fn open_channel(&self) -> Result<OwnedFd, Errno> {
        let file = files::new().map_err(|_| Errno(libc::EMFILE))?;
        let given = file.try_clone().map_err(|_| Errno(libc::EMFILE))?;
        let channel = Channel { file: Arc::new(file), events: VecDeque::new() };
        lock(&self.table).channels.insert(given.as_raw_fd(), channel);
        Ok(given)
    }

    fn close_channel(&self, fd: c_int) {
        let mut table = lock(&self.table);
        table.channels.remove(&fd);
        let orphans: Vec<u32> = table
            .ids
            .iter()
            .filter(|(_, id)| id.channel == fd)
            .map(|(number, _)| *number)
            .collect();
        let ended: Vec<_> = orphans.iter().filter_map(|number| table.ids.remove(number)).collect();
        // Their connections end under another lock.
        drop(table);
        drop(ended);
    }

    /// The next event of a channel, which is waited for if its file blocks. Who waits while another
    /// thread closes the channel goes on waiting: the thread of rping that takes events does when
    /// the program ends, and takes an error for a failed run. Source: Linux `ucma.c`,
    /// `ucma_get_event`, which waits in a `write` that keeps the file.
    fn next_event(&self, fd: c_int) -> Result<rdma_ucm_event_resp, Errno> {
        let channel = lock(&self.table).channels.get(&fd).map(|channel| Arc::clone(&channel.file));
        let file = channel.ok_or(Errno(libc::EBADF))?;
        loop {
            self.turn();
            let mut table = lock(&self.table);
            let Table { channels, ids, .. } = &mut *table;
            // Not another one, which has got the number since.
            let channel = channels.get_mut(&fd).filter(|known| Arc::ptr_eq(&known.file, &file));
            if let Some(event) = channel.and_then(Channel::pop) {
                let (mut response, is_request) = (event.response, event.makes.is_some());
                if let Some(id) = ids.get_mut(&event.about) {
                    id.reported += 1;
                    if event.is_group {
                        id.count_group(response.id);
                    } else {
                        response.uid = id.uid;
                    }
                }
                if is_request {
                    // The next one, so that the file stays readable while one waits.
                    table.take_requests(&self.rails);
                }
                return Ok(response);
            }
            drop(table);
            if !files::is_blocking(&file) {
                return Err(Errno(libc::EAGAIN));
            }
            // The threads of the other devices make them work meanwhile.
            if !self.rails[0].node.wait(file.as_fd()) && !signals::are_restarted() {
                return Err(Errno(libc::EINTR));
            }
        }
    }
}

impl Turn for Service {
    fn turn(&self) {
        self.say_goodbye();
        for rail in &self.rails {
            rail.manager.poll();
        }
        let mut table = lock(&self.table);
        table.take_requests(&self.rails);
        let Table { channels, ids, looked, .. } = &mut *table;
        let looks_after = looked.is_none_or(|looked| looked.elapsed() > LOOK_AFTER);
        if looks_after {
            *looked = Some(Instant::now());
        }
        for (number, id) in ids.iter_mut() {
            let Some(channel) = channels.get_mut(&id.channel) else { continue };
            let node = &self.rails[id.rail].node;
            // The program has no id yet that an event could be about; to accept the request fails
            // then. Source: Linux `ucma.c`, `ucma_event_handler`.
            let is_known = id.uid != 0;
            let mut push = |event| {
                if is_known {
                    channel.push(event);
                }
            };
            id.tell(*number, node, &mut push);
            if looks_after {
                id.look_after(*number, |ip| node.is_gone(ip), &mut push);
            }
        }
    }
}
