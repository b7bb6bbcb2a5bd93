//! [`Lane`]: a receive and a send queue that belong to one core.

use std::sync::Arc;

use arrayvec::ArrayVec;
use ferrocx_core::{ConfigError, Device, DeviceError, FlowMatch, FlowRule, RxQueueRef};
use ferrocx_mempool::{Mbuf, Pool, PoolConfig};

use crate::config::{RssConfig, RxQueueConfig, TxQueueConfig};
use crate::rss::{Rss, Steering};
use crate::rx::{RxQueue, Shape};
use crate::tx::{PrebuiltFrame, TxQueue};

/// How the queues of a lane are made.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LaneConfig {
    /// The receive queue.
    pub rx: RxQueueConfig,
    /// The send queue.
    pub tx: TxQueueConfig,
}

impl LaneConfig {
    /// The most buffers that a lane holds: both rings full, and both caches. For frames that fit a
    /// buffer of the pool; of larger ones each takes several in the receive ring.
    ///
    /// A pool wants as many for each lane of each port that uses it, and what the program holds.
    #[must_use]
    pub fn buffers(&self, pool: &PoolConfig) -> usize {
        self.rings(0).saturating_add(self.rx.cache_size).saturating_add(pool.cache_size)
    }

    /// Buffers of both rings, with so many (log2) to a received frame.
    fn rings(&self, log_segs: u8) -> usize {
        ((self.rx.descriptors as usize) << log_segs) + self.tx.descriptors as usize
    }

    /// Looks whether lanes can be made so, and whether a pool suffices for `count` of them. Without
    /// room for their rings it does not;
    /// with too little for their caches, one lane may starve of what another keeps.
    fn check(&self, device: &Device, pool: &Pool, count: usize) -> Result<(), DeviceError> {
        if self.rx.split.is_some() || self.rx.striding.is_some() {
            let what = "a lane has one pool; make queues that split packets or stride one by one";
            return Err(ConfigError::Conflict { what }.into());
        }
        let stats = pool.stats();
        let free = stats.count.saturating_sub(stats.in_use) as usize;
        let rings = self.rings(Shape::of(device, pool, &self.rx)?.log_buffers());
        let (lanes, need) = (count, rings.saturating_mul(count));
        if need > free {
            let pool = pool.name().to_owned();
            return Err(DeviceError::PoolTooSmallForLanes { pool, lanes, need, free });
        }
        let caches = self.rx.cache_size.saturating_add(pool.cache_size());
        let need = rings.saturating_add(caches).saturating_mul(count);
        if need > free {
            tracing::warn!(
                pool = pool.name(),
                "{free} free buffers, and {lanes} lanes may hold {need} in rings and caches: some \
                 may starve and drop packets; make the pool larger (PoolConfig::count)"
            );
        }
        Ok(())
    }
}

/// A receive and a send queue of one core. Buffers that were sent go back to the receive queue by
/// themselves: a core that answers on the lane that it received on does without the pool's shared
/// list. Between two lanes that holds as far as as much comes back.
///
/// What leads packets to it is in force as long as the lane lives; of lanes that share the port's
/// traffic, as long as one of them does: the share of one that is gone is dropped by the device,
/// until [`Rss::set_reta`] gives it to others.
///
/// Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct Lane {
    rx: RxQueue,
    tx: TxQueue,
}

impl Lane {
    /// Makes a lane for all of the port's traffic that nothing else takes. `pool` must have been
    /// registered: [`Device::register_pool`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::PoolTooSmallForLanes`], and those of [`RxQueue::new`], [`TxQueue::new`] and
    /// [`Rss::new`].
    pub fn all(device: &Device, pool: &Pool, config: &LaneConfig) -> Result<Self, DeviceError> {
        config.check(device, pool, 1)?;
        let mut lane = Self::unled(device, pool, config)?;
        let rss = Rss::new(device, &[lane.rx.queue_ref()], &RssConfig::default())?;
        lane.rx.keep(Steering { rule: None, rss: Some(Arc::new(rss)) });
        Ok(lane)
    }

    /// A lane that nothing leads to yet.
    fn unled(device: &Device, pool: &Pool, config: &LaneConfig) -> Result<Self, DeviceError> {
        let rx = RxQueue::new(device, pool, &config.rx)?;
        Ok(Self { rx, tx: TxQueue::new(device, pool, &config.tx)? })
    }

    /// Makes `count` lanes and spreads the port's traffic over them by `rss`; what it is spread by
    /// lives as long as one of them. `pool` must have been registered: [`Device::register_pool`].
    ///
    /// # Errors
    ///
    /// Those of [`Lane::all`].
    pub fn spread(
        device: &Device,
        pool: &Pool,
        count: usize,
        config: &LaneConfig,
        rss: &RssConfig,
    ) -> Result<Vec<Self>, DeviceError> {
        let mut lanes = Self::several_unled(device, pool, count, config)?;
        let rss = Some(Arc::new(Rss::new(device, &queues(&lanes), rss)?));
        lanes.iter_mut().for_each(|lane| lane.rx.keep(Steering { rule: None, rss: rss.clone() }));
        Ok(lanes)
    }

    /// Makes `count` lanes and spreads the packets that match over them by `rss`, and no others:
    /// [`Lane::matching`] for several cores.
    ///
    /// # Errors
    ///
    /// Those of [`Lane::matching`], and of [`Rss::for_rules`].
    pub fn spread_matching(
        device: &Device,
        pool: &Pool,
        count: usize,
        matches: FlowMatch,
        config: &LaneConfig,
        rss: &RssConfig,
    ) -> Result<Vec<Self>, DeviceError> {
        let mut lanes = Self::several_unled(device, pool, count, config)?;
        let rss = Arc::new(Rss::for_rules(device, &queues(&lanes), rss)?);
        let rule = FlowRule { matches, action: rss.action(), mark: None, count: false };
        let rule = Some(Arc::new(device.add_flow_rule(&rule)?));
        let steering = Steering { rule, rss: Some(rss) };
        lanes.iter_mut().for_each(|lane| lane.rx.keep(steering.clone()));
        Ok(lanes)
    }

    fn several_unled(
        device: &Device,
        pool: &Pool,
        count: usize,
        config: &LaneConfig,
    ) -> Result<Vec<Self>, DeviceError> {
        config.check(device, pool, count)?;
        (0..count).map(|_| Self::unled(device, pool, config)).collect()
    }

    /// Makes a lane for the packets that match, and no others. The match is looked at before
    /// addresses and before what is spread.
    ///
    /// # Errors
    ///
    /// [`DeviceError::PoolTooSmallForLanes`], and those of [`RxQueue::matching`] and
    /// [`TxQueue::new`].
    pub fn matching(
        device: &Device,
        pool: &Pool,
        matches: FlowMatch,
        config: &LaneConfig,
    ) -> Result<Self, DeviceError> {
        config.check(device, pool, 1)?;
        let rx = RxQueue::matching(device, pool, matches, &config.rx)?;
        Ok(Self { rx, tx: TxQueue::new(device, pool, &config.tx)? })
    }

    /// The table by which packets are spread, to look at or replace; `None` of a lane that has all
    /// packets that match. Lanes that were made together have the same.
    #[must_use]
    pub fn rss(&self) -> Option<&Rss> {
        self.rx.rss()
    }

    /// Moves received packets to `out`, as many as there are and fit; returns how many. See
    /// [`RxQueue::rx_burst`].
    #[inline]
    #[doc(alias = "rte_eth_rx_burst")]
    pub fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        self.rx.recycle(&mut self.tx);
        self.rx.rx_burst(out)
    }

    /// Takes the next received packet, if there is one: for a core that acts on each as it comes.
    /// See [`RxQueue::rx_one`].
    #[inline]
    pub fn rx_one(&mut self) -> Option<Mbuf> {
        self.rx.rx_one_of_lane(&mut self.tx)
    }

    /// Sends one prebuilt frame; `false` if the ring is full or the queue has a fault. See
    /// [`TxQueue::send_one`], and [`TxQueue::warm_up`] for the time in between.
    #[inline(always)]
    pub fn send_one<const BYTES: usize>(&mut self, frame: &PrebuiltFrame<BYTES>) -> bool {
        self.tx.send_one(frame)
    }

    /// Sends packets from the front of `packets`, as many as fit the ring; returns how many were
    /// taken out. See [`TxQueue::tx_burst`].
    #[inline]
    #[doc(alias = "rte_eth_tx_burst")]
    pub fn tx_burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.tx.tx_burst(packets)
    }

    /// Takes an empty buffer for a packet to send; `None` when the pool has none left.
    #[inline]
    pub fn alloc(&mut self) -> Option<Mbuf> {
        self.tx.cache().get()
    }

    /// Takes a buffer and copies `bytes` into it; `None` when the pool has none left, or for more
    /// bytes than a buffer has room for.
    #[inline]
    pub fn alloc_copy(&mut self, bytes: &[u8]) -> Option<Mbuf> {
        let mut mbuf = self.alloc()?;
        mbuf.extend_from_slice(bytes).then_some(mbuf)
    }

    /// The receive queue: counters, faults, sleeping. Packets are better received by the lane,
    /// which takes buffers back from the send queue besides.
    #[must_use]
    pub fn rx(&mut self) -> &mut RxQueue {
        &mut self.rx
    }

    /// The send queue: counters, faults, reclaiming.
    #[must_use]
    pub fn tx(&mut self) -> &mut TxQueue {
        &mut self.tx
    }
}

fn queues(lanes: &[Lane]) -> Vec<RxQueueRef> {
    lanes.iter().map(|lane| lane.rx.queue_ref()).collect()
}
