//! [`Network`]: the port's Ethernet side, as far as RDMA needs it: ARP, neighbour discovery, echo.
//!
//! A RoCE packet needs the MAC address of its next hop, and peers ask for ours. [`Network`] does
//! both, for every address of [`Device::gids`], on a receive and a send queue of its own. Three
//! flow rules lead ARP, ICMP and ICMPv6 to it; RoCE packets go to queue pairs before any rule is
//! asked, and all other packets stay with the caller's [`ferrocx_pmd::Device::rss`] and rules.
//!
//! It has no thread: [`Network::poll`] does what is due, and must be called now and then, or
//! nobody finds this port. A [`ConnectionManager`](crate::cm::ConnectionManager) has one and polls
//! it.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, MempoolError, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_net::ether::Mac;
use ferrocx_net::icmpecho::{self, Station, Tail, Verdict};
use ferrocx_net::neighbour::{Neighbours, Own, group_mac, solicited_node};
use ferrocx_pmd::{
    DeviceError, FlowAction, FlowMatch, FlowRule, FlowRuleHandle, Ipv4Match, Ipv6Match, MacAddr,
    RxQueue, RxQueueConfig, TxQueue, TxQueueConfig,
};
use thiserror::Error;

pub use ferrocx_net::neighbour::{Conflict, Unresolved};

use crate::device::Device;
use crate::error::VerbsError;
use crate::gid::{Gid, GidEntry, Path, Route};

/// Frames of a burst.
const BURST: usize = 32;
/// Bytes of a buffer: a frame of 1500 bytes, and room in front. Longer echo requests are chains.
const BUFFER_BYTES: usize = 2048;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// Group that every IPv6 host is a member of. Source: RFC 4291 section 2.7.1.
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// How neighbours are asked for, and with how much memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetConfig {
    /// How neighbours are asked for and remembered.
    pub neighbours: ferrocx_net::neighbour::Config,
    /// Frames that the receive queue and the send queue hold each: a power of two, 64 to 4096.
    pub descriptors: u32,
    /// Pages of their buffers.
    pub page: PageSize,
}

impl Default for NetConfig {
    fn default() -> Self {
        let neighbours = ferrocx_net::neighbour::Config::default();
        Self { neighbours, descriptors: 64, page: PageSize::Auto }
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
    /// A queue or a rule could not be made.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No memory for frames.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
}

/// What the port's Ethernet side did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct NetStats {
    /// Frames that arrived.
    pub received: u64,
    /// Requests that were answered: ARP, neighbour discovery, echo.
    pub answered: u64,
    /// Questions and announcements that were sent.
    pub asked: u64,
    /// Frames that the send queue had no room for; what is asked is asked again.
    pub dropped: u64,
    /// Times that somebody else claimed an address of ours.
    pub conflicts: u64,
}

/// The port's Ethernet side.
#[derive(Debug)]
pub struct Network {
    // The rules go before the queue that they lead to.
    _rules: [FlowRuleHandle; 3],
    rx: RxQueue,
    tx: TxQueue,
    pool: Pool,
    neighbours: Neighbours,
    /// The addresses that were last seen, and who answers for them.
    gids: Vec<GidEntry>,
    station: Station,
    groups: Vec<MacAddr>,
    stats: NetStats,
    epoch: Instant,
    device: Device,
}

impl Network {
    /// Takes a receive and a send queue of the port, and announces its addresses.
    ///
    /// # Errors
    ///
    /// [`NetError::Device`] or [`NetError::Mempool`]; nothing is left behind then.
    pub fn open(device: &Device, config: &NetConfig) -> Result<Self, NetError> {
        let port = device.port();
        // Both rings full, a burst in hand, and the caches of both queues.
        let cache_size = BURST * 2;
        let pool = Pool::new(&PoolConfig {
            name: "network".into(),
            count: 2 * config.descriptors as usize + 4 * cache_size,
            data_room_bytes: BUFFER_BYTES,
            cache_size,
            region: RegionConfig { page: config.page, ..RegionConfig::default() },
            ..PoolConfig::default()
        })?;
        port.register_pool(&pool)?;
        let descriptors = config.descriptors;
        let settings =
            RxQueueConfig { descriptors, cache_size: 2 * BURST, ..RxQueueConfig::default() };
        let rx = port.rx_queue(&pool, &settings)?;
        let settings = TxQueueConfig { descriptors, ..TxQueueConfig::default() };
        let tx = port.tx_queue(&pool, &settings)?;
        let everything = FlowMatch::default();
        let rules = [
            FlowMatch { ethertype: Some(ferrocx_net::ether::ARP), ..everything },
            FlowMatch { ipv4: Some(Ipv4Match::default()), ip_protocol: Some(ICMP), ..everything },
            FlowMatch { ipv6: Some(Ipv6Match::default()), ip_protocol: Some(ICMPV6), ..everything },
        ];
        let [arp, icmp, icmpv6] = rules.map(|matches| {
            let action = FlowAction::Queue(rx.queue_ref());
            port.add_flow_rule(&FlowRule { matches, action, mark: None, count: false })
        });
        let mut network = Self {
            _rules: [arp?, icmp?, icmpv6?],
            rx,
            tx,
            pool,
            neighbours: Neighbours::new(config.neighbours),
            gids: Vec::new(),
            station: Station { mac: Mac(port.mac().0), addresses: Vec::new() },
            groups: Vec::new(),
            stats: NetStats::default(),
            epoch: Instant::now(),
            device: device.clone(),
        };
        network.refresh()?;
        network.poll();
        Ok(network)
    }

    /// What it did.
    #[must_use]
    pub fn stats(&self) -> NetStats {
        self.stats
    }

    /// Does what is due: takes frames, answers, learns, asks, announces. Returns whether a frame
    /// moved.
    pub fn poll(&mut self) -> bool {
        let now = self.epoch.elapsed();
        let mut frames = ArrayVec::<Mbuf, BURST>::new();
        let mut moved = self.rx.rx_burst(&mut frames) > 0;
        self.stats.received += frames.len() as u64;
        let mut answers = ArrayVec::<Mbuf, BURST>::new();
        for mut frame in frames {
            if self.answer(&mut frame, now) {
                answers.push(frame);
            }
        }
        self.stats.answered += answers.len() as u64;
        self.send(&mut answers);
        while let Some(bytes) = self.neighbours.next_frame(now) {
            moved = true;
            self.stats.asked += 1;
            let Some(mut frame) = self.pool.get() else {
                self.stats.dropped += 1;
                continue;
            };
            if frame.extend_from_slice(&bytes) {
                answers.push(frame);
            }
            self.send(&mut answers);
        }
        // Sent buffers come back.
        self.tx.tx_burst(&mut answers);
        moved
    }

    /// Learns from a frame, and turns it into its answer if it has one.
    fn answer(&mut self, frame: &mut Mbuf, now: Duration) -> bool {
        if let Some(conflict) = self.neighbours.frame(frame.data(), now) {
            self.stats.conflicts += 1;
            tracing::warn!(%conflict, "duplicate address");
        }
        // A station without addresses would answer for everybody.
        let is_whole = frame.data_len() == frame.pkt_len();
        if self.station.addresses.is_empty() || !is_whole {
            return false;
        }
        let Some(bytes) = frame.data_mut() else { return false };
        let len = bytes.len();
        match icmpecho::reply(bytes, Tail::NONE, &self.station) {
            Verdict::Reply { len_bytes } => frame.trim(len - len_bytes),
            Verdict::Drop(_) => false,
        }
    }

    fn send(&mut self, frames: &mut ArrayVec<Mbuf, BURST>) {
        self.tx.tx_burst(frames);
        self.stats.dropped += frames.len() as u64;
        frames.clear();
    }

    /// Takes over the addresses of the port, if they changed.
    fn refresh(&mut self) -> Result<(), NetError> {
        let gids = self.device.gids();
        if gids == self.gids {
            return Ok(());
        }
        let now = self.epoch.elapsed();
        self.neighbours.set_own(gids.iter().map(own), now);
        self.station.addresses = gids.iter().map(|entry| entry.gid.ip()).collect();
        let mut groups: Vec<MacAddr> = gids.iter().filter_map(|e| group_of(e.gid.ip())).collect();
        groups.push(MacAddr(group_mac(ALL_NODES).0));
        groups.sort_unstable_by_key(|group| group.0);
        groups.dedup();
        let port = self.device.port();
        for group in groups.iter().filter(|group| !self.groups.contains(group)) {
            port.join_multicast(*group)?;
        }
        for group in self.groups.iter().filter(|group| !groups.contains(group)) {
            port.leave_multicast(*group)?;
        }
        self.groups = groups;
        self.gids = gids;
        Ok(())
    }

    /// The way to a peer; `None` while its next hop is asked for: [`Network::poll`], and ask again.
    ///
    /// # Errors
    ///
    /// [`NetError::Verbs`] with [`VerbsError::NoRoute`], [`NetError::Unresolved`].
    pub fn resolve(&mut self, remote: IpAddr) -> Result<Option<Path>, NetError> {
        let route = self.device.route(Gid::from(remote))?;
        self.resolve_route(route)
    }

    /// As [`Network::resolve`], from an address of the port that is given.
    ///
    /// # Errors
    ///
    /// As [`Network::resolve`]; [`VerbsError::NotOurs`] for an address that the port has not.
    pub fn resolve_from(
        &mut self,
        local: IpAddr,
        remote: IpAddr,
    ) -> Result<Option<Path>, NetError> {
        let route = self.device.route_from(Gid::from(local), Gid::from(remote))?;
        self.resolve_route(route)
    }

    fn resolve_route(&mut self, route: Route) -> Result<Option<Path>, NetError> {
        self.refresh()?;
        let now = self.epoch.elapsed();
        let mac = self.neighbours.resolve(route.next_hop, &own(&route.source), now)?;
        Ok(mac.map(|mac| Path::new(route, MacAddr(mac.0))))
    }

    /// As [`Network::resolve`], and waits for the answer: for the set-up path.
    ///
    /// # Errors
    ///
    /// As [`Network::resolve`].
    pub fn resolve_and_wait(&mut self, remote: IpAddr) -> Result<Path, NetError> {
        loop {
            if let Some(path) = self.resolve(remote)? {
                return Ok(path);
            }
            if !self.poll() {
                self.device.port().relax();
            }
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let port = self.device.port();
        for group in &self.groups {
            if let Err(error) = port.leave_multicast(*group) {
                tracing::warn!(%error, "multicast group not left");
                return;
            }
        }
    }
}

fn own(entry: &GidEntry) -> Own {
    Own { ip: entry.gid.ip(), mac: Mac(entry.mac.0), vlan: entry.config.vlan }
}

/// The group in which an address is asked for.
fn group_of(ip: IpAddr) -> Option<MacAddr> {
    match ip {
        IpAddr::V4(_) => None,
        IpAddr::V6(ip) => Some(MacAddr(group_mac(solicited_node(ip)).0)),
    }
}
