//! Receive queues: a cyclic ring of buffers, a completion queue, and the burst that empties them.
//!
//! # The protocol
//!
//! Work requests are posted and completed in order, so the counter in each completion must be the
//! next one: a device that says otherwise has lost its way, and the queue stops. A completion is
//! the driver's when its owner bit is that of the lap; that word is read first, with acquire.
//! Key and length of every descriptor are written once; posting a buffer again writes its address.
//!
//! | order | why |
//! |---|---|
//! | owner bit, then the rest of the completion | the rest may be of the lap before |
//! | consumer index of the CQ, then counter of the RQ | a buffer posted must have room for its completion |
//! | addresses, then counter of the RQ | the device must not fetch the address of the lap before |
//!
//! Frames longer than a buffer, and queues that [split](crate::BufferSplit) their packets, take
//! several buffers to a work request: `scattered`, with all but the first in `tails`; what requests
//! look like is in `shape`. Queues that are [striding](crate::Striding) take many packets to a
//! buffer: `strides`.

mod completions;
mod compressed;
mod end;
mod meta;
mod missed;
mod scattered;
#[cfg(test)]
mod scattered_tests;
mod shape;
mod slow;
mod strides;
mod tails;
#[cfg(test)]
mod tests;
mod wake;

pub(crate) use shape::Shape;
pub use wake::sleep_on;

use std::sync::Arc;

use arrayvec::ArrayVec;
use ferrocx_bus::Ring;
use ferrocx_core::wq::{RecvRing, RecvSize, RqAttr};
use ferrocx_core::{
    ConfigError, CqAttr, CqRing, Device, DeviceError, DropCounter, FlowAction, FlowMatch, FlowRule,
    Handle, INVALID_OPCODE, QueueFault, QueueState, RegionKeys, RxQueueRef,
};
use ferrocx_mempool::{Mbuf, MbufFifo, Pool, PoolCache};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, MiniCqe, OP_OWN_MASK};
use ferrocx_prm::wqe::Data;

use crate::config::{RxQueueConfig, check_ticks};
use crate::rss::{Rss, Steering};
use crate::stats::RxStats;
use crate::tx::TxQueue;
use completions::{Completions, Stop};
use meta::{describe, stamp};
use shape::SegmentShape;
use wake::Wake;

/// Buffers posted at once. A ring is refilled when this many are missing.
pub(crate) const REFILL: usize = 32;
/// Packets that are lined up for [`RxQueue::rx_one`] at most, in rings of so many times as many
/// entries: their buffers are posted again together.
const LINE: usize = 4 * REFILL;
const LINE_OF_RING: u32 = 4;
/// Packets that interrupt sooner than [`RxQueueConfig::interrupt_period_us`] says: two bursts.
const PACKETS_PER_INTERRUPT: u16 = 64;
/// Bytes of Ethernet header and VLAN tag.
const L2_BYTES: u32 = 18;
/// An ordinary receive completion, in its last word: opcode and format.
const RESPONDER_SEND: u32 = Cqe64::OPCODE.of(CqeOpcode::RESPONDER_SEND.0);

/// A receive queue. Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct RxQueue {
    pub(crate) hot: RxRing,
    /// The device's side, which is held by what steers to it too.
    rq: Arc<Handle>,
    steering: Steering,
    wake: Option<Wake>,
    drops: Option<DropCounter>,
}

/// What a burst works on.
pub(crate) struct RxRing {
    cq: CqRing,
    /// A scattered frame takes several buffers to a work request.
    ring: RecvRing,
    /// Buffers in the ring, in order: the first of each work request.
    elts: MbufFifo,
    kind: Kind,
    /// Bits of a completion's last dword that must be as expected: counter, opcode, owner.
    last_mask: u32,
    /// The last dword of the next completion while packets are lined up for
    /// [`RxQueue::rx_one`], and how many they were, 0 if it is of no use. `ring` and `stats` learn
    /// of packets that were taken when the line ends.
    wanted: u32,
    line: u32,
    /// What turns the address of a buffer's room into the one to post.
    post_offset: u64,
    cache: PoolCache,
    pub(crate) stats: RxStats,
    mini: compressed::Mini,
    /// The completion queue, as the entries of compressed blocks.
    minis: Ring<{ MiniCqe::SIZE_BYTES }>,
    /// The first segment of a work request, and the others; the bytes that all of them hold.
    shapes: [SegmentShape; 2],
    room_bytes: u32,
    /// Whether packets get timestamps, for the kinds that do not know.
    is_stamped: bool,
    /// The other buffers of work requests that have several.
    tails: Option<Box<tails::Tails>>,
    /// Of a queue whose packets share large buffers; `elts` holds what they are copied to, and
    /// what names them.
    strides: Option<Box<strides::Strides>>,
    /// Keeps the region mapped while the device may write to it.
    _keys: RegionKeys,
}

impl std::fmt::Debug for RxRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RxRing")
            .field("ring", &self.ring)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// How a queue receives, chosen when it is made: what it does not do costs its packets nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A buffer and a completion for each packet.
    Plain,
    /// A buffer and a completion with a timestamp for each packet.
    Stamped,
    /// A buffer for each packet, whose completions may be compressed.
    Compressed,
    /// Several buffers to a work request, of one pool or two.
    Scattered,
    /// Many packets to a buffer.
    Striding,
}

impl Kind {
    fn of(config: &RxQueueConfig, shape: Shape) -> Self {
        match (config.striding.is_some(), shape.log_segs != 0) {
            (true, _) => Self::Striding,
            (_, true) => Self::Scattered,
            _ if config.cqe_compression => Self::Compressed,
            _ if config.timestamps => Self::Stamped,
            _ => Self::Plain,
        }
    }
}

impl RxRing {
    /// Last dword of the completion at a place of the completion queue, if that says that the
    /// request with this number was filled.
    #[inline(always)]
    fn expected_at(&self, counter: u32, cq_ci: u32) -> u32 {
        Cqe64::WQE_COUNTER.of(counter) | RESPONDER_SEND | self.cq.owner_at(cq_ci)
    }

    /// Receives packets into the free room of `out`; returns how many.
    #[inline]
    pub(crate) fn burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        self.end_line();
        match self.kind {
            Kind::Plain => self.burst_plainly::<N, false>(out),
            Kind::Stamped => self.burst_plainly::<N, true>(out),
            Kind::Compressed => self.burst_compressed(out),
            Kind::Scattered => self.burst_scattered(out),
            Kind::Striding => self.burst_strides(out),
        }
    }

    /// One buffer and one completion for each packet.
    #[inline]
    fn burst_plainly<const N: usize, const STAMPED: bool>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
    ) -> usize {
        let mut arrivals =
            Completions::<STAMPED>::of(self.cq.ring.view(), self.cq.ci, self.last_mask);
        let mut received = 0;
        loop {
            // As far as the owner bit stays the same.
            let cq_ci = self.cq.ci.wrapping_add(received as u32);
            let lap = self.cq.left_of_lap(cq_ci);
            let counter = self.ring.ci.wrapping_add(received as u32);
            arrivals.wanted = self.expected_at(counter, cq_ci);
            let count = self.elts.pop_filled(out, lap, &mut arrivals);
            received += count;
            if count == 0 || out.is_full() || !matches!(arrivals.stop, Stop::Full) {
                break;
            }
        }
        if received != 0 {
            self.ring.ci = self.ring.ci.wrapping_add(received as u32);
            self.cq.ci = self.cq.ci.wrapping_add(received as u32);
            self.stats.packets += received as u64;
            self.stats.bytes += arrivals.bytes;
            self.cq.tell();
        }
        match arrivals.stop {
            Stop::Full => {
                if self.elts.is_empty() {
                    self.look_for_overrun();
                    // Without buffers it stands still, and whatever comes is believed no more.
                    if self.stats.fault.is_some() {
                        return received;
                    }
                }
            }
            // The usual end of a burst: the entry is still the device's.
            Stop::Unexpected(last)
                if (last ^ self.cq.owner_at(self.cq.ci)) & Cqe64::OWNER.mask() != 0 => {}
            Stop::Unexpected(last) if last & INVALID_OPCODE == INVALID_OPCODE => {}
            Stop::Unexpected(last) => self.look_closer(last),
            Stop::TooLong(len) => self.too_long(len),
        }
        self.refill();
        received
    }

    /// Receives one packet without what a burst sets up for many, if one is lined up and has come.
    #[inline(always)]
    fn one_lined_up(&mut self) -> Option<Mbuf> {
        let cqe = self.cq.ring.at(self.cq.ci);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        if (last ^ self.wanted) & self.last_mask != 0 {
            return None;
        }
        let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        let mut mbuf = self.elts.pop_lined_up(len)?;
        describe(&mut mbuf, &cqe);
        if self.is_stamped {
            stamp(&mut mbuf, &cqe);
        }
        self.cq.ci = self.cq.ci.wrapping_add(1);
        self.wanted = self.wanted.wrapping_add(Cqe64::WQE_COUNTER.of(1));
        self.stats.bytes += u64::from(len);
        Some(mbuf)
    }

    /// The next packet, if there is one, when it is not one of those lined up: nothing has come
    /// yet, the line is at its end, or the queue has none.
    fn one_else(&mut self) -> Option<Mbuf> {
        if self.elts.lined_up() != 0 {
            let last = self.cq.ring.at(self.cq.ci).load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            // The usual case: it is still the device's.
            if (last ^ self.wanted) & Cqe64::OWNER.mask() != 0 {
                return None;
            }
        } else if self.line != 0 {
            self.end_line();
            // Those of a whole line at once.
            if self.ring.missing() as usize >= LINE && self.post(LINE) != 0 {
                self.ring.tell();
            }
            self.refill();
            self.line_up();
            if let Some(mbuf) = self.one_lined_up() {
                return Some(mbuf);
            }
        }
        let mut out = ArrayVec::<Mbuf, 1>::new();
        self.burst(&mut out);
        self.line_up();
        out.pop()
    }

    /// Lines up the packets that [`RxQueue::rx_one`] takes with the least work: until there are
    /// buffers to post, or a lap of the completion queue ends.
    fn line_up(&mut self) {
        let is_plain = matches!(self.kind, Kind::Plain | Kind::Stamped);
        if is_plain && self.stats.fault.is_none() {
            let most = if self.ring.entries() < LINE as u32 * LINE_OF_RING { REFILL } else { LINE };
            let until_refill = most.saturating_sub(self.ring.missing() as usize).max(1);
            let lap = self.cq.left_of_lap(self.cq.ci);
            self.line = self.elts.line_up(until_refill.min(lap)) as u32;
            self.wanted = self.expected_at(self.ring.ci, self.cq.ci);
        }
    }

    /// Packets of the line that were taken and not counted.
    pub(crate) fn taken_of_line(&self) -> u32 {
        self.line - self.elts.lined_up() as u32
    }

    /// Counts what was taken of the line, and ends it.
    #[inline(always)]
    fn end_line(&mut self) {
        if self.line != 0 {
            let taken = self.taken_of_line();
            self.line = 0;
            self.ring.ci = self.ring.ci.wrapping_add(taken);
            self.stats.packets += u64::from(taken);
            self.elts.line_up(0);
            // The device needs to know of free completions no sooner than of buffers.
            self.cq.tell();
        }
    }

    /// Posts buffers for those taken out, [`REFILL`] at a time, and tells the device once.
    #[inline(always)]
    fn refill(&mut self) {
        let mut missing = self.ring.missing() as usize;
        if missing < REFILL {
            return;
        }
        while missing >= REFILL {
            let posted = self.post(REFILL);
            if posted == 0 {
                self.refill_from_rest();
                break;
            }
            missing -= posted;
        }
        self.ring.tell();
    }

    /// Puts buffers into the next slots, `n` or fewer at the end of the ring; returns how many.
    /// 0 if the pool has too few.
    #[inline(always)]
    fn post(&mut self, n: usize) -> usize {
        let (wqes, offset) = (self.ring.view().span(self.ring.pi, n), self.post_offset);
        let posted = self.elts.fill_each(&mut self.cache, wqes.cells(), |wqe, room| {
            let addr = (room as u64).wrapping_add(offset);
            wqe.slot().store_be64::<{ Data::ADDR.offset }>(addr);
        });
        self.ring.pi = self.ring.pi.wrapping_add(posted as u32);
        posted
    }
}

/// Refuses what this device or these settings cannot have together.
fn check_kind(device: &Device, config: &RxQueueConfig) -> Result<(), ConfigError> {
    let RxQueueConfig { cqe_compression, timestamps, split, striding, .. } = config;
    let (period, most) = (config.interrupt_period_us.into(), Handle::MAX_CQ_PERIOD_US.into());
    ConfigError::range("microseconds between interrupts", period, 0, most, "")?;
    let limits = device.limits();
    if *cqe_compression && !limits.cqe_compression {
        let way_out = "set RxQueueConfig::cqe_compression to false";
        return Err(ConfigError::Unsupported { what: "CQE compression", way_out });
    }
    if *cqe_compression && striding.is_some() && !device.hca_cap().mini_cqe_resp_stride_index() {
        let what = "compressed completions that say where in a buffer a packet lies";
        let way_out = "set either RxQueueConfig::cqe_compression to false or \
                       RxQueueConfig::striding to None";
        return Err(ConfigError::Unsupported { what, way_out });
    }
    check_ticks(*timestamps, device.hca_cap().rq_ts_format())?;
    if period > 0 && !limits.cq_moderation {
        let way_out = "set RxQueueConfig::interrupt_period_us to 0";
        return Err(ConfigError::Unsupported { what: "interrupts that wait for more", way_out });
    }
    if *cqe_compression && *timestamps {
        let what = "compressed completions carry no timestamps; set either \
                    RxQueueConfig::cqe_compression or RxQueueConfig::timestamps to false";
        return Err(ConfigError::Conflict { what });
    }
    if striding.is_some() && !limits.striding {
        let way_out = "set RxQueueConfig::striding to None";
        return Err(ConfigError::Unsupported { what: "striding receive queues", way_out });
    }
    if striding.is_some() && split.is_some() {
        let what = "packets that share a buffer cannot be split; set either \
                    RxQueueConfig::striding or RxQueueConfig::split to None";
        return Err(ConfigError::Conflict { what });
    }
    Ok(())
}

impl RxQueue {
    /// Makes a receive queue, filled with buffers of `pool`, that no traffic is steered to yet; see
    /// [`Rss::new`], and [`RxQueue::matching`] for one with its rule.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] for a setting out of range, [`DeviceError::PoolNotRegistered`],
    /// [`DeviceError::PoolTooSmall`], or what the device refused.
    #[doc(alias = "rte_eth_rx_queue_setup")]
    pub fn new(device: &Device, pool: &Pool, config: &RxQueueConfig) -> Result<Self, DeviceError> {
        let keys = device.region_keys(pool)?;
        let headroom = pool.headroom_bytes() as u16;
        check_kind(device, config)?;
        let shape = Shape::of(device, pool, config)?;
        let kind = Kind::of(config, shape);
        let mut wake = config.interrupt.map(|vector| Wake::new(device, vector)).transpose()?;
        let eq = wake.as_ref().map(Wake::handle);
        let attr = CqAttr {
            log_size: shape.log_cq,
            compression: config.cqe_compression.then(|| compressed::mini_format(kind)),
            events: eq.as_ref(),
        };
        let (cq, cq_handle) = CqRing::new(device, &attr)?;
        if let Some(wake) = &mut wake {
            wake.watch(&cq, &cq_handle)?;
            if config.interrupt_period_us > 0 {
                cq_handle.moderate_cq(PACKETS_PER_INTERRUPT, config.interrupt_period_us)?;
            }
        }
        let split = config.split.as_ref();
        let sizes = (config.cache_size, shape.log_size, shape.log_buffers());
        let tails = tails::Tails::of(device, (pool, &keys), split, sizes)?;
        let strides = config.striding.as_ref();
        let strides = strides.map(|of| {
            strides::Strides::new(device, of, shape.log_size, headroom, config.cache_size)
        });
        let drops = DropCounter::new(device)?;
        let attr = RqAttr {
            pd: device.pdn(),
            rlky: device.uses_reserved_lkey(),
            keeps_vlan: !config.vlan_strip,
            cqn: cq_handle.number(),
            user_index: 0,
            size: RecvSize { log_entries: shape.log_size, log_units: shape.log_segs },
            strides: strides.is_some().then_some(strides::SHAPE),
            drops: drops.as_ref().map(DropCounter::set),
        };
        let strides = strides.transpose()?;
        let (ring, rq) = shape::create(device, &attr)?;
        let shapes = SegmentShape::both(pool, keys.lkey_be, split, tails.as_deref());
        let log_minis = shape.log_cq + (Cqe64::SIZE_BYTES / MiniCqe::SIZE_BYTES).ilog2() as u8;
        let minis =
            Ring::new(Arc::clone(cq.ring.buf()), 0, log_minis).map_err(DeviceError::from)?;
        let mut hot = RxRing {
            elts: MbufFifo::new(pool, shape.elts()),
            kind,
            last_mask: shape.counter_mask() | OP_OWN_MASK,
            wanted: 0,
            line: 0,
            cq,
            ring,
            post_offset: keys.va_to_iova.wrapping_add(headroom.into()),
            cache: pool.cache_with_size(config.cache_size),
            stats: RxStats::default(),
            mini: compressed::Mini::default(),
            minis,
            shapes,
            room_bytes: shapes[0].room + shapes[1].room * ((1 << shape.log_segs) - 1),
            is_stamped: config.timestamps,
            tails,
            strides,
            _keys: keys,
        };
        hot.stamp_segments();
        if !hot.fill() {
            return Err(hot.too_small());
        }
        let rq = Arc::new(rq.needing(&Arc::new(cq_handle)));
        let queue = Self { hot, rq, steering: Steering::default(), wake, drops };
        queue.make_ready()?;
        Ok(queue)
    }

    /// Makes a receive queue for the packets that match, and no others, as long as it lives. The
    /// match is looked at before addresses and before what [`Rss`] spreads. A multicast group must
    /// be let in besides: [`Device::join_multicast`].
    ///
    /// # Errors
    ///
    /// Those of [`RxQueue::new`] and of [`Device::add_flow_rule`].
    pub fn matching(
        device: &Device,
        pool: &Pool,
        matches: FlowMatch,
        config: &RxQueueConfig,
    ) -> Result<Self, DeviceError> {
        let mut queue = Self::new(device, pool, config)?;
        let action = FlowAction::Queue(queue.queue_ref());
        let rule = FlowRule { matches, action, mark: None, count: false };
        queue.steering.rule = Some(Arc::new(device.add_flow_rule(&rule)?));
        Ok(queue)
    }

    /// Has the queue keep its part in what spreads packets over several.
    pub(crate) fn keep(&mut self, steering: Steering) {
        self.steering = steering;
    }

    /// The table that it was given a part in by [`RxQueue::keep`].
    pub(crate) fn rss(&self) -> Option<&Rss> {
        self.steering.rss.as_deref()
    }

    /// RST to RDY, and the first buffers.
    fn make_ready(&self) -> Result<(), DeviceError> {
        self.rq.move_queue(QueueState::RST, QueueState::RDY)?;
        self.hot.announce();
        Ok(())
    }

    /// Moves received packets to `out`, as many as there are and fit; returns how many.
    ///
    /// Each carries its length, checksum results, packet type, and as far as the device has them
    /// RSS hash, mark and VLAN tag, and its timestamp if the queue was asked for it. Buffers are
    /// posted again in the same call. It allocates nothing, takes no lock and makes no system call.
    /// After a fault it returns 0: see [`RxQueue::stats`] and [`RxQueue::reset`].
    ///
    /// What a call costs is shared by the packets that it finds: a burst of one takes several times
    /// what [`RxQueue::rx_one`] does.
    #[inline]
    pub fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        self.hot.burst(out)
    }

    /// Takes the next received packet, if there is one: [`RxQueue::rx_burst`] for a core that acts
    /// on each packet as it comes. Of a queue that splits, strides, compresses completions or needs
    /// several buffers for a frame it is a burst of one.
    #[inline]
    pub fn rx_one(&mut self) -> Option<Mbuf> {
        match self.hot.one_lined_up() {
            None => self.one_else(),
            some => some,
        }
    }

    /// [`RxQueue::rx_one`], which takes what `tx` has freed before it posts buffers.
    #[inline]
    pub(crate) fn rx_one_of_lane(&mut self, tx: &mut TxQueue) -> Option<Mbuf> {
        match self.hot.one_lined_up() {
            None => {
                self.recycle(tx);
                self.one_else()
            }
            some => some,
        }
    }

    #[inline(never)]
    fn one_else(&mut self) -> Option<Mbuf> {
        self.hot.one_else()
    }

    /// The queue's stock of free buffers. Freeing packets into it, or taking packets to send out
    /// of it, spares the way through the pool's shared list.
    pub fn cache(&mut self) -> &mut PoolCache {
        &mut self.hot.cache
    }

    /// Takes buffers that `tx` has freed, for receiving into: what a core that forwards calls
    /// once a burst. Returns how many.
    #[inline]
    pub fn recycle(&mut self, tx: &mut TxQueue) -> usize {
        let cache = &mut self.hot.cache;
        // Not more than half of the stock: what is freed into it needs room too.
        let room = (cache.room() / 2).saturating_sub(cache.len() / 2);
        cache.take_from(tx.cache(), room)
    }

    /// Counts since the queue was made.
    #[must_use]
    pub fn stats(&self) -> RxStats {
        let packets = self.hot.stats.packets + u64::from(self.hot.taken_of_line());
        RxStats { packets, ..self.hot.stats }
    }

    /// Why the queue stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        self.hot.stats.fault
    }

    /// Packets that the ring holds, of a [striding](crate::Striding) queue strides.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        self.hot.cq.entries()
    }

    /// Names the queue for [`Rss`](crate::Rss) and flow rules.
    #[must_use]
    pub fn queue_ref(&self) -> RxQueueRef {
        RxQueueRef::new(&self.rq)
    }

    /// Empties the queue and makes it ready again, after a fault or to start afresh. Packets that
    /// were received but not read are lost.
    ///
    /// # Errors
    ///
    /// What the device refused. The queue then stays as it was; it can be dropped.
    pub fn reset(&mut self) -> Result<(), DeviceError> {
        self.rq.stop_queue()?;
        self.hot.restart();
        self.make_ready()
    }
}
