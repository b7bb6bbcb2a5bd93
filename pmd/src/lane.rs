//! [`Lane`]: a receive and a send queue that belong to one core.

use arrayvec::ArrayVec;
use ferrocx_core::{
    ConfigError, Device, DeviceError, FlowAction, FlowMatch, FlowRule, FlowRuleHandle,
};
use ferrocx_mempool::{Mbuf, Pool, PoolConfig};

use crate::config::{RssConfig, RxQueueConfig, TxQueueConfig};
use crate::rss::Rss;
use crate::rx::{RxQueue, Shape};
use crate::tx::TxQueue;

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

    /// Looks whether a pool suffices for `count` lanes. Without room for their rings it does not;
    /// with too little for their caches, one lane may starve of what another keeps.
    fn check_pool(&self, device: &Device, pool: &Pool, count: usize) -> Result<(), DeviceError> {
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

/// What leads packets to a lane as long as it lives.
#[derive(Debug)]
#[expect(dead_code, reason = "in force until it is dropped")]
enum Steering {
    /// Somebody else's table, which names the lane.
    Shared,
    /// All that nothing else takes.
    All(Rss),
    /// Packets that match.
    Rule(FlowRuleHandle),
}

/// A receive and a send queue of one core. Buffers that were sent go back to the receive queue by
/// themselves: a core that answers on the lane that it received on does without the pool's shared
/// list. Between two lanes that holds as far as as much comes back.
///
/// Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct Lane {
    // It goes before the queue that it leads to.
    _steering: Steering,
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
        config.check_pool(device, pool, 1)?;
        let (rx, tx) = Self::queues(device, pool, config)?;
        let rss = Rss::new(device, &[rx.queue_ref()], &RssConfig::default())?;
        Ok(Self { _steering: Steering::All(rss), rx, tx })
    }

    /// Makes `count` lanes and spreads the port's traffic over them, as long as the [`Rss`] lives.
    /// `pool` must have been registered: [`Device::register_pool`].
    ///
    /// # Errors
    ///
    /// Those of [`Lane::all`].
    pub fn spread(
        device: &Device,
        pool: &Pool,
        count: usize,
        config: &LaneConfig,
    ) -> Result<(Vec<Self>, Rss), DeviceError> {
        config.check_pool(device, pool, count)?;
        let make = |_| {
            let (rx, tx) = Self::queues(device, pool, config)?;
            Ok(Self { _steering: Steering::Shared, rx, tx })
        };
        let lanes = (0..count).map(make).collect::<Result<Vec<Self>, DeviceError>>()?;
        let queues: Vec<_> = lanes.iter().map(|lane| lane.rx.queue_ref()).collect();
        let rss = Rss::new(device, &queues, &RssConfig::default())?;
        Ok((lanes, rss))
    }

    /// Makes a lane for the packets that match, and no others. The match is looked at before
    /// addresses and before what is spread.
    ///
    /// # Errors
    ///
    /// [`DeviceError::PoolTooSmallForLanes`], and those of [`RxQueue::new`], [`TxQueue::new`] and
    /// [`Device::add_flow_rule`].
    pub fn matching(
        device: &Device,
        pool: &Pool,
        matches: FlowMatch,
        config: &LaneConfig,
    ) -> Result<Self, DeviceError> {
        config.check_pool(device, pool, 1)?;
        let (rx, tx) = Self::queues(device, pool, config)?;
        let action = FlowAction::Queue(rx.queue_ref());
        let rule = FlowRule { matches, action, mark: None, count: false };
        let rule = device.add_flow_rule(&rule)?;
        Ok(Self { _steering: Steering::Rule(rule), rx, tx })
    }

    fn queues(
        device: &Device,
        pool: &Pool,
        config: &LaneConfig,
    ) -> Result<(RxQueue, TxQueue), DeviceError> {
        if config.rx.split.is_some() || config.rx.striding.is_some() {
            let what = "a lane has one pool; make queues that split packets or stride one by one";
            return Err(ConfigError::Conflict { what }.into());
        }
        Ok((RxQueue::new(device, pool, &config.rx)?, TxQueue::new(device, pool, &config.tx)?))
    }

    /// Moves received packets to `out`, as many as there are and fit; returns how many. See
    /// [`RxQueue::rx_burst`].
    #[inline]
    #[doc(alias = "rte_eth_rx_burst")]
    pub fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        self.rx.recycle(&mut self.tx);
        self.rx.rx_burst(out)
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

    /// The receive queue: counters, faults, sleeping.
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
