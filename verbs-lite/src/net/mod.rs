//! [`Network`]: the port's Ethernet side, as far as RDMA needs it: ARP, neighbour discovery, echo,
//! and the groups that switches and routers are told of.
//!
//! A RoCE packet needs the MAC address of its next hop, and peers ask for ours. [`Network`] does
//! both, for every address of [`RdmaContext::gids`], on a raw packet queue pair of its own. Flow
//! rules lead ARP, ICMP, ICMPv6, IGMP and hop-by-hop options to it; RoCE packets go to queue pairs
//! before any rule is asked, and all other packets stay with the Ethernet queues and rules of the
//! caller. [`Network::join`] reports a multicast group for as long as it is polled.
//!
//! It has no thread: [`Network::poll`] does what is due, and must be called now and then, or
//! nobody finds this port. A [`ConnectionManager`](crate::cm::ConnectionManager) owns a `Network`,
//! and polls it whenever it is polled itself. The protocols themselves, without input and output,
//! are [`ferrocx_net`]'s.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use ferrocx_core::{DeviceError, FlowMatch, Ipv4Match, Ipv6Match};
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_net::ether::{self, MacAddr};
use ferrocx_net::icmpecho::{self, Station, Tail, Verdict};
use ferrocx_net::ip;
use ferrocx_net::neighbour::{Neighbours, Own, solicited_node};
use thiserror::Error;

mod groups;
mod memberships;

pub use self::memberships::Group;
pub use ferrocx_net::membership::{JoinError, MAX_SOURCES};
pub use ferrocx_net::neighbour::{Conflict, Unresolved};

use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::gid::{GidEntry, Path, Route};
use crate::mr::{Buf, Memory, Mr};
use crate::qp::{InitAttr, Qp, QpConfig, QpState, QpType, RtsAttr};
use crate::types::{Access, Gid, Psn};
use crate::watch::Watch;
use crate::wc::Wc;
use crate::wr::{SendOp, SendWr, WcOpcode};

/// Completions taken in one [`Network::poll`].
const BURST: usize = 32;
/// Bytes of Ethernet header and VLAN tag.
const L2_BYTES: usize = 18;
/// Bytes from one buffer to the next are a multiple of this: a cache line.
const BUFFER_ALIGN: usize = 64;
/// Groups that every host is a member of. Source: RFC 1112 section 4, RFC 4291 section 2.7.1.
const EVERYBODY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)),
];

/// How neighbours are asked for, and with how much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// How neighbours are asked for and remembered.
    pub neighbours: ferrocx_net::neighbour::Config,
    /// How multicast groups are reported.
    pub membership: ferrocx_net::membership::Config,
    /// Frames that the receive queue and the send queue hold each: 1 to 4096.
    pub descriptors: u32,
    /// Pages of their buffers.
    pub page: PageSize,
}

impl Default for NetConfig {
    fn default() -> Self {
        let neighbours = ferrocx_net::neighbour::Config::default();
        let membership = ferrocx_net::membership::Config::default();
        Self { neighbours, membership, descriptors: 64, page: PageSize::Auto }
    }
}

/// Why a peer cannot be reached, or the port's Ethernet side cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NetError {
    /// No address of the port reaches it, or what the device refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The MAC address of the next hop is not to be had.
    #[error(transparent)]
    Unresolved(#[from] Unresolved),
    /// A rule or a group could not be had.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A group cannot be joined.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// Counters of the port's Ethernet side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NetStats {
    /// Frames that arrived.
    pub received: u64,
    /// Requests that were answered: ARP, neighbour discovery, echo.
    pub answered: u64,
    /// Questions and announcements that were sent.
    pub asked: u64,
    /// Reports and leaves of multicast groups that were sent.
    pub reported: u64,
    /// Frames that the send queue had no room for; what is asked is asked again.
    pub dropped: u64,
    /// Times that somebody else claimed an address of ours.
    pub conflicts: u64,
    /// Neighbours that made room for others.
    pub pushed_out: u64,
    /// Times that the queue pair was lost and made anew.
    pub restarts: u64,
}

/// The port's Ethernet side.
#[derive(Debug)]
pub struct Network {
    qp: Qp<Buf>,
    cq: Cq,
    mr: Mr,
    /// Bytes from one place for a frame to the next, and the places that nothing is posted in.
    buffer_bytes: usize,
    free: Vec<usize>,
    /// Receives that are posted: as many as the configuration says, if all is well.
    posted: u32,
    config: NetConfig,
    watch: Watch,
    /// The log has said that neighbours push each other out.
    is_crowded: bool,
    /// A frame in hand.
    scratch: Vec<u8>,
    neighbours: Neighbours,
    /// The addresses that were last seen, and who answers for them.
    gids: Vec<GidEntry>,
    /// Number of the change of addresses that `gids` is as of.
    seen_changes: Option<u64>,
    station: Station,
    groups: Vec<MacAddr>,
    memberships: memberships::Groups,
    stats: NetStats,
    epoch: Instant,
    context: RdmaContext,
}

impl Network {
    /// Takes a raw packet queue pair of the port, and announces its addresses.
    ///
    /// # Errors
    ///
    /// [`NetError::Verbs`] or [`NetError::Device`]; nothing is left behind then.
    pub fn open(context: &RdmaContext, config: &NetConfig) -> Result<Self, NetError> {
        let depth = config.descriptors;
        VerbsError::range("descriptors of the network", depth.into(), 1, 4096)?;
        // A frame longer than its receive would fail the queue pair, so that each takes any frame.
        let max_mtu = usize::from(context.device().limits().max_mtu);
        let buffer_bytes = (max_mtu + L2_BYTES).next_multiple_of(BUFFER_ALIGN);
        let watch = Watch::new(context.device());
        let (qp, cq, mr) = queues(context, config, buffer_bytes)?;
        let mut network = Self {
            qp,
            cq,
            mr,
            watch,
            is_crowded: false,
            config: *config,
            buffer_bytes,
            free: (0..2 * depth as usize).collect(),
            posted: 0,
            scratch: Vec::with_capacity(buffer_bytes),
            neighbours: Neighbours::new(config.neighbours),
            gids: Vec::new(),
            seen_changes: None,
            station: Station { mac: context.device().mac(), addresses: Vec::new() },
            groups: Vec::new(),
            memberships: memberships::Groups::new(config.membership),
            stats: NetStats::default(),
            epoch: context.device().now(),
            context: context.clone(),
        };
        network.start()?;
        network.refresh()?;
        network.poll();
        Ok(network)
    }

    /// Time of the protocols.
    fn now(&self) -> Duration {
        self.context.device().now() - self.epoch
    }

    /// Leads the queue pair from reset to RTS, with its rules and receives.
    fn start(&mut self) -> Result<(), NetError> {
        self.qp.init(&InitAttr::default())?;
        self.qp.receive()?;
        let everything = FlowMatch::default();
        let arp = FlowMatch { ethertype: Some(ether::ARP), ..everything };
        let ipv4 = FlowMatch { ipv4: Some(Ipv4Match::default()), ..everything };
        let ipv6 = FlowMatch { ipv6: Some(Ipv6Match::default()), ..everything };
        self.qp.create_flow(&arp)?;
        // Queries for IPv6 groups have hop-by-hop options; which of the two protocols a device
        // sees in such a packet is its own affair.
        for (ip, protocol) in
            [(ipv4, ip::ICMP), (ipv4, ip::IGMP), (ipv6, ip::ICMPV6), (ipv6, ip::HOP_BY_HOP)]
        {
            self.qp.create_flow(&FlowMatch { ip_protocol: Some(protocol), ..ip })?;
        }
        self.qp.activate(&RtsAttr::new(Psn(0)))?;
        self.fill();
        Ok(())
    }

    /// Makes the queue pair anew when it is lost. Frames that were under way are lost with it.
    fn restart(&mut self, now: Duration) {
        if !self.watch.finds_lost(now, Some(&self.qp)) {
            return;
        }
        let made = queues(&self.context, &self.config, self.buffer_bytes);
        let result = made.map_err(NetError::from).and_then(|made| {
            // The old one goes first, and with it its rules.
            (self.qp, self.cq, self.mr) = made;
            self.free = (0..2 * self.config.descriptors as usize).collect();
            self.posted = 0;
            self.stats.restarts += 1;
            self.start()
        });
        if let Err(error) = result {
            self.watch.wait(self.now());
            tracing::warn!(%error, "the raw packet queue pair of the network stands still");
        }
    }

    /// Counters of frames, questions and answers so far.
    #[must_use]
    pub fn stats(&self) -> NetStats {
        NetStats { pushed_out: self.neighbours.pushed_out(), ..self.stats }
    }

    /// Does what is due: takes frames, answers, learns, asks, announces. Returns whether a frame
    /// moved.
    pub fn poll(&mut self) -> bool {
        let now = self.now();
        let mut moved = false;
        for _ in 0..BURST {
            let Some(completion) = self.cq.poll() else { break };
            let mut ended = Vec::new();
            if let Err(error) = self.qp.complete(completion, |wc| ended.push(wc)) {
                tracing::error!(%error, "network");
            }
            for wc in ended {
                moved |= self.end(wc, now);
            }
        }
        self.restart(now);
        self.fill();
        if !self.is_crowded && self.neighbours.pushed_out() > 0 {
            self.is_crowded = true;
            tracing::warn!(
                "more neighbours than there is room for; the oldest make room, see \
                 NetConfig::neighbours"
            );
        }
        while let Some(bytes) = self.neighbours.next_frame(now) {
            moved = true;
            self.stats.asked += 1;
            self.send(&bytes);
        }
        while let Some(bytes) = self.memberships.next_frame(now) {
            moved = true;
            self.stats.reported += 1;
            self.send(&bytes);
        }
        moved
    }

    /// Takes what a request held, and the frame if it brought one; answers whether it did.
    fn end(&mut self, wc: Wc<Buf>, now: Duration) -> bool {
        let (place, is_frame) = (wc.wr_id as usize, wc.opcode == WcOpcode::Recv);
        let (is_good, len) = (wc.result.is_ok(), wc.byte_len as usize);
        let Some(buf) = wc.into_buffers() else { return false };
        self.posted -= u32::from(is_frame);
        let mut frame = std::mem::take(&mut self.scratch);
        frame.clear();
        frame.resize(len.min(buf.len()), 0);
        let is_read = is_frame && is_good && buf.copy_out(0, &mut frame).is_ok();
        self.free.push(place);
        if is_read {
            self.stats.received += 1;
            if let Some(len) = self.answer(&mut frame, now) {
                self.stats.answered += 1;
                self.send(&frame[..len]);
            }
        }
        self.scratch = frame;
        is_read
    }

    /// Learns from a frame, and turns it into its answer, of so many bytes, if it has one.
    fn answer(&mut self, frame: &mut [u8], now: Duration) -> Option<usize> {
        if let Some(conflict) = self.neighbours.frame(frame, now) {
            self.stats.conflicts += 1;
            tracing::warn!(%conflict, "duplicate address");
        }
        if self.memberships.frame(frame, now) {
            return None;
        }
        // A station without addresses would answer for everybody.
        if self.station.addresses.is_empty() {
            return None;
        }
        match icmpecho::reply(frame, Tail::NONE, &self.station) {
            Verdict::Reply { len_bytes } => Some(len_bytes),
            Verdict::Drop(_) => None,
        }
    }

    /// Posts receives until there are enough.
    fn fill(&mut self) {
        while self.posted < self.config.descriptors && self.qp.state() == QpState::Rts {
            let Some(place) = self.free.pop() else { return };
            let start = place * self.buffer_bytes;
            let buf = self.mr.buf(start..start + self.buffer_bytes);
            if !buf.is_ok_and(|buf| self.qp.post_recv(place as u64, buf).is_ok()) {
                self.free.push(place);
                return;
            }
            self.posted += 1;
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        let Some(place) = self.free.pop() else {
            self.stats.dropped += 1;
            return;
        };
        let start = place * self.buffer_bytes;
        let wr = SendWr::signaled(place as u64, SendOp::Frame);
        let posted = self.mr.buf(start..start + bytes.len()).is_ok_and(|mut buf| {
            buf.copy_in(0, bytes).is_ok() && self.qp.post_send(&wr, Some(buf)).is_ok()
        });
        if !posted {
            self.stats.dropped += 1;
            self.free.push(place);
        }
    }

    /// Takes over the addresses of the port, if they changed.
    fn refresh(&mut self) -> Result<(), NetError> {
        let changes = self.context.gid_changes();
        if self.seen_changes == Some(changes) {
            return Ok(());
        }
        let gids = self.context.gids();
        let now = self.now();
        self.neighbours.set_own(gids.iter().map(own), now);
        self.memberships.set_hosts(&gids);
        self.station.addresses = gids.iter().map(|entry| entry.gid.ip()).collect();
        let mut groups: Vec<MacAddr> = gids.iter().filter_map(|e| group_of(e.gid.ip())).collect();
        groups.extend(EVERYBODY.into_iter().filter_map(MacAddr::of_group));
        groups.sort_unstable_by_key(|group| group.0);
        groups.dedup();
        let device = self.context.device();
        // Each is written down as it is done: a refusal in between loses count of none. Leaving
        // comes first, for the room that it makes.
        while let Some(at) = self.groups.iter().position(|group| !groups.contains(group)) {
            device.leave_multicast(self.groups[at])?;
            self.groups.swap_remove(at);
        }
        for group in groups {
            if !self.groups.contains(&group) {
                device.join_multicast(group)?;
                self.groups.push(group);
            }
        }
        (self.gids, self.seen_changes) = (gids, Some(changes));
        Ok(())
    }

    /// The way to a peer; `None` while its next hop is asked for: [`Network::poll`], and ask again.
    ///
    /// # Errors
    ///
    /// [`NetError::Verbs`] with [`VerbsError::NoRoute`], [`NetError::Unresolved`].
    pub fn resolve(&mut self, remote: IpAddr) -> Result<Option<Path>, NetError> {
        let route = self.context.route(Gid::from(remote))?;
        self.resolve_route(route, false)
    }

    /// Finds the way to a peer from a given address of the port, like [`Network::resolve`].
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve`]; [`VerbsError::NotOurs`] for an address that the port has not.
    pub fn resolve_from(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<Option<Path>, NetError> {
        self.resolve_as(local, remote, false)
    }

    /// Finds the way like [`Network::resolve_from`]. A stranger's entry pushes out no neighbour
    /// that somebody here wanted.
    pub(crate) fn resolve_as(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
        is_stranger: bool,
    ) -> Result<Option<Path>, NetError> {
        let route = self.context.route_from(Gid::from(local), Gid::from(remote))?;
        self.resolve_route(route, is_stranger)
    }

    fn resolve_route(&mut self, route: Route, is_stranger: bool) -> Result<Option<Path>, NetError> {
        self.refresh()?;
        let (now, own) = (self.now(), own(&route.source));
        // A gateway is one that was configured here, whoever is behind it.
        let mac = if is_stranger && route.next_hop == route.destination.ip() {
            match self.neighbours.resolve_stranger(route.next_hop, &own, now) {
                // Its turn to be asked for comes later.
                Err(Unresolved::Full { .. }) => None,
                mac => mac?,
            }
        } else {
            self.neighbours.resolve(route.next_hop, &own, now)?
        };
        Ok(mac.map(|mac| Path::new(route, mac)))
    }

    /// Finds the way to a peer and waits for the answer: for the set-up path.
    ///
    /// # Errors
    ///
    /// Those of [`Network::resolve`].
    pub fn resolve_and_wait(&mut self, remote: IpAddr) -> Result<Path, NetError> {
        loop {
            if let Some(path) = self.resolve(remote)? {
                return Ok(path);
            }
            if !self.poll() {
                self.context.device().relax();
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.leave_all();
        let device = self.context.device();
        for group in &self.groups {
            if let Err(error) = device.leave_multicast(*group) {
                tracing::warn!(%error, "multicast group not left");
                return;
            }
        }
    }
}

/// A raw packet queue pair in reset, its completion queue, and memory for all of its frames.
fn queues(
    context: &RdmaContext,
    config: &NetConfig,
    buffer_bytes: usize,
) -> Result<(Qp<Buf>, Cq, Mr), VerbsError> {
    let (depth, page) = (config.descriptors, config.page);
    let len_bytes = 2 * depth as usize * buffer_bytes;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(2 * depth)?;
    let region = RegionConfig { len_bytes, page, ..RegionConfig::default() };
    let memory = Memory::alloc(context, &region)?;
    let mr = pd.reg_mr(&memory, 0..len_bytes, Access::LOCAL_WRITE)?;
    let (qp_type, max_send_wr, max_recv_wr) = (QpType::Raw, depth, depth);
    let qp_config = QpConfig { qp_type, max_send_wr, max_recv_wr, ..QpConfig::default() };
    let qp = pd.create_qp(&cq, &qp_config)?;
    Ok((qp, cq, mr))
}

fn own(entry: &GidEntry) -> Own {
    Own { ip: entry.gid.ip(), mac: entry.mac, vlan: entry.config.vlan }
}

/// The group in which an address is asked for.
fn group_of(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(MacAddr::of_ipv6_group(solicited_node(ip))),
    }
}
