//! Send queues: a ring of 64-byte blocks, a completion queue, and the burst that fills it.
//!
//! # What becomes of a packet
//!
//! | packet | work request |
//! |---|---|
//! | one buffer of any pool, no offload, device without inline needs | one data segment in a multi-packet request (enhanced MPW) |
//! | the same, up to `inline_bytes` | copied into the multi-packet request |
//! | the same, with checksums to fill in | shares a request with others that want the same |
//! | chain, VLAN, device that wants headers inline | a SEND request of its own |
//! | TSO | an LSO request of its own, headers inline |
//! | with a [timestamp](TxQueue::next_timestamp) to note | a request and a completion of its own |
//! | [`PrebuiltFrame`], by [`TxQueue::send_one`] | a SEND request of its own, all of it inline |
//! | with a segment in [foreign](ferrocx_mempool::Mbuf::is_foreign) memory | the same, never copied: the processor reads of it only headers that a device wants inline |
//! | cannot be described (too many segments, lengths that contradict each other) | none: it is freed and counted as dropped |
//!
//! # Completions
//!
//! The last request of a burst asks for a completion once enough packets went out since the last
//! that did, or the ring or the list of buffers in flight runs low. Requests complete in order, so
//! each completion ends all before it. What is expected is noted: a completion for anything else
//! stops the queue.
//!
//! Ring, requests and doorbell are those of [`ferrocx_core::wq`].
//!
//! # Files
//!
//! `build` decides which way the packets at the front of a burst go; each way, which writes the
//! requests of packets that are alike, is a file: `many` those that packets share, `single` those
//! that point to one packet or hold it, `headed` those that hold its headers, `gathered` those for
//! chains with headers or copied, and `any` those for everything else. Single frames go past all of
//! that: `frame` builds them, and `one` sends them. `stamps` keeps the timestamps of what was sent,
//! and `slow` is what happens rarely: faults and restart.

mod any;
mod build;
mod frame;
mod gathered;
mod headed;
mod many;
mod one;
mod single;
mod slow;
mod stamps;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use ferrocx_bus::DoorbellKind;
use ferrocx_core::wq::{Bell, SendRing, SqAttr};
use ferrocx_core::{
    ConfigError, CqAttr, CqRing, Destroy, Device, DeviceError, Handle, QueueFault, QueueState,
    RegionKeys, Uar,
};
use ferrocx_mempool::{Mbuf, MbufFifo, Pool, PoolCache};
use ferrocx_prm::cqe::{Cqe64, OP_OWN_MASK};
use ferrocx_prm::wqe::{DS_BYTES, MAX_DS};

use crate::config::{TxQueueConfig, check_ticks};
use crate::stats::TxStats;
use build::{OwnPool, Refusal, Requests};
pub use frame::{Field, FrameError, PrebuiltFrame};
pub use stamps::SendTimestamp;
use stamps::Stamps;

/// Packets after which a completion is asked for, or half of the ring.
const SIGNAL_EVERY: u64 = 64;
/// Completions read in one burst at most, so that a burst's length stays bounded.
const COMPLETIONS_PER_BURST: u32 = 4;
/// Completions read in one burst at most of a queue whose packets may each have one.
const STAMPS_PER_BURST: u32 = 64;

/// A completion that was asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Signal {
    /// First block of the request that asked.
    wqe_index: u16,
    /// End of the buffers of it and all before, see [`MbufFifo::end`].
    elts_end: u32,
    /// Position behind it.
    end: u64,
    /// Packets up to there.
    packets: u64,
    /// Name of the last of them, if its timestamp is wanted.
    stamp: Option<u64>,
}

/// A send queue. Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) hot: TxRing,
    /// A bell that the device does not hear, for [`TxQueue::warm_up`].
    unheard: Bell,
    // Dropped in this order, the ring's buffers before.
    sq: Handle,
    _cq: Handle,
    _uar: Uar,
}

/// What a burst works on.
pub(crate) struct TxRing {
    requests: Requests,
    cq: CqRing,
    /// Buffers in flight.
    elts: MbufFifo,
    /// Completions asked for, and how many were ever added and removed.
    signals: Box<[Signal]>,
    signals_head: u32,
    signals_tail: u32,
    /// Packets, by [`TxStats::packets`], behind which no completion was asked for, and that have
    /// ended.
    signalled: u64,
    completed: u64,
    /// Packets after which a completion is asked for.
    signal_every: u64,
    /// Position of the ring behind the last request that asked for a completion.
    signalled_end: u64,
    /// Single frames sent with the least work, which `stats` and the ring do not count: each is a
    /// packet and a doorbell.
    ones: u64,
    /// Completions read in one burst at most.
    completions_per_burst: u32,
    stamps: Stamps,
    cache: PoolCache,
    /// Keep what packets may lie in mapped.
    regions: Vec<RegionKeys>,
    pub(crate) stats: TxStats,
}

impl std::fmt::Debug for TxRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxRing")
            .field("ring", &self.requests.ring)
            .field("in_flight", &self.in_flight())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl TxRing {
    /// Packets in flight.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        (self.packets() - self.completed) as u32
    }

    /// Packets handed to the device.
    #[inline(always)]
    fn packets(&self) -> u64 {
        self.stats.packets + self.ones
    }

    /// Sends packets from the front of `packets`; returns how many were taken.
    #[inline]
    pub(crate) fn burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.reap();
        if packets.is_empty() || self.stats.fault.is_some() {
            return 0;
        }
        let pi = self.requests.ring.pi;
        let mut taken = self.post(packets);
        while let Some(id) = self.requests.stamp.take() {
            self.signal(Some(id));
            taken += self.post(packets);
        }
        if self.requests.ring.pi != pi {
            self.ring_doorbell();
        }
        taken
    }

    /// Posts packets from the front of `packets`, up to the first that asks for a timestamp;
    /// returns how many were taken.
    #[inline(always)]
    fn post<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        let Self { requests, elts, cache, stats, .. } = self;
        let mut packets = elts.hand_over(packets);
        while !packets.is_done() && requests.stamp.is_none() {
            match requests.post(&mut packets, stats) {
                Ok(()) => {}
                Err(Refusal::Full) => {
                    stats.full += 1;
                    break;
                }
                Err(Refusal::Never) => {
                    stats.dropped += 1;
                    packets.refuse().into_iter().for_each(|mbuf| cache.put(mbuf));
                }
            }
        }
        packets.taken()
    }

    /// Tells the device what was posted, and asks for a completion if it is time.
    #[inline(always)]
    fn ring_doorbell(&mut self) {
        self.requests.ring.stop_line();
        let ring = &self.requests.ring;
        let unsignalled = self.packets() - self.signalled;
        // Of chains, the buffers may run out before the blocks do.
        let most_in_use = ring.outstanding().max(self.elts.len() as u32);
        let is_low = most_in_use > ring.entries() / 2;
        // The last request may have asked for one already: for its timestamp.
        if unsignalled >= self.signal_every || is_low && unsignalled != 0 && self.is_due() {
            self.signal(None);
        }
        self.requests.ring.ring_doorbell();
    }

    /// Whether a ring that is more than half full should have another completion: none is on its
    /// way, or an eighth of the ring was posted behind the last, so that small bursts on a full
    /// ring do not ask for one each, and what ends comes back in pieces that are worth a burst.
    fn is_due(&self) -> bool {
        if self.signals_head == self.signals_tail {
            return true;
        }
        let newest = self.signals_head.wrapping_sub(1) as usize & (self.signals.len() - 1);
        let Signal { end, elts_end, .. } = self.signals[newest];
        let ring = &self.requests.ring;
        let eighth = ring.entries() / 8;
        ring.pi - end >= eighth.into() || self.elts.end().wrapping_sub(elts_end) >= eighth
    }

    /// Makes the last request ask for a completion, and notes what it will end, and of whom to
    /// keep the timestamp.
    #[inline(always)]
    fn signal(&mut self, stamp: Option<u64>) {
        let at = self.signals_head as usize & (self.signals.len() - 1);
        let packets = self.packets();
        let ring = &mut self.requests.ring;
        let (wqe_index, end) = (ring.signal_last(), ring.pi);
        let elts_end = self.elts.end();
        self.signals[at] = Signal { wqe_index, end, elts_end, packets, stamp };
        self.signals_head = self.signals_head.wrapping_add(1);
        (self.signalled, self.signalled_end) = (packets, end);
    }

    /// Reads completions and frees what they end.
    #[inline(always)]
    fn reap(&mut self) {
        let mut elts_end = None;
        for _ in 0..self.completions_per_burst {
            if self.signals_head == self.signals_tail {
                break;
            }
            let last = self.cq.ring.at(self.cq.ci).load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            let signal = self.signals[self.signals_tail as usize & (self.signals.len() - 1)];
            let expected =
                Cqe64::WQE_COUNTER.of(signal.wqe_index.into()) | self.cq.owner_at(self.cq.ci);
            if (last ^ expected) & (Cqe64::WQE_COUNTER.mask() | OP_OWN_MASK) != 0 {
                self.look_closer(last, signal.wqe_index);
                break;
            }
            if let Some(id) = signal.stamp {
                let cqe = self.cq.ring.at(self.cq.ci);
                let ticks = cqe.load_be64::<{ Cqe64::TIMESTAMP.offset }>();
                let is_kept = self.stamps.keep(SendTimestamp { id, ticks });
                self.stats.timestamps_lost += u64::from(!is_kept);
            }
            self.cq.ci = self.cq.ci.wrapping_add(1);
            self.signals_tail = self.signals_tail.wrapping_add(1);
            self.requests.ring.ci = signal.end;
            self.completed = signal.packets;
            elts_end = Some(signal.elts_end);
        }
        if let Some(end) = elts_end {
            self.free_until(end);
            self.cq.tell();
        }
    }

    /// Gives completed buffers back to their pools: those added before the `end`th.
    #[inline(always)]
    fn free_until(&mut self, end: u32) {
        self.elts.free_until(end, &mut self.cache);
    }
}

/// Makes the ring that the requests of this module stand in.
#[expect(unsafe_code, reason = "a ring is a promise about what stands in it")]
fn create(device: &Device, attr: &SqAttr<'_>) -> Result<(SendRing, Handle), DeviceError> {
    // SAFETY: requests name the data of packets, which stay with the queue until the request that
    // names them has completed; the queue's end leaks what the device may still read. No request of
    // an Ethernet queue has the device write.
    unsafe { SendRing::create(device, attr) }
}

impl TxQueue {
    /// Makes a send queue, ready. Packets of `pool` are freed in bulk; those of other registered
    /// pools may be sent too.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] for a setting out of range, [`DeviceError::PoolNotRegistered`], or
    /// what the device refused.
    #[doc(alias = "rte_eth_tx_queue_setup")]
    pub fn new(device: &Device, pool: &Pool, config: &TxQueueConfig) -> Result<Self, DeviceError> {
        let keys = device.region_keys(pool)?;
        let limits = device.limits();
        let log_size = ConfigError::log2(
            "send descriptors",
            config.descriptors,
            limits.min_descriptors,
            limits.max_descriptors,
            "",
        )?;
        let max_inline = u64::from(TxQueueConfig::MAX_INLINE_BYTES);
        ConfigError::range("inline bytes", config.inline_bytes.into(), 0, max_inline, "")?;
        let (kept, most) = (config.timestamps, TxQueueConfig::MAX_TIMESTAMPS);
        ConfigError::range("send timestamps to keep", kept.into(), 0, most.into(), "")?;
        check_ticks(kept != 0, device.hca_cap().sq_ts_format())?;
        if device.hca_cap().max_wqe_sz_sq() < MAX_DS * DS_BYTES as u32 {
            let (what, way_out) = ("send requests of 1008 bytes", "update its firmware");
            return Err(ConfigError::Unsupported { what, way_out }.into());
        }
        let uar = Uar::new(device)?;
        // Every request may end in a completion when the queue is flushed.
        let attr = CqAttr { log_size, compression: None, events: None };
        let (cq, cq_handle) = CqRing::new(device, &attr)?;
        let attr = SqAttr {
            uar: &uar,
            blueflame: config.blueflame,
            pd: device.pdn(),
            rlky: device.uses_reserved_lkey(),
            cqn: cq_handle.number(),
            user_index: 0,
            log_blocks: log_size,
        };
        let (ring, sq) = create(device, &attr)?;
        let requests = Requests {
            ring,
            multi_packet: config.multi_packet && limits.multi_packet,
            inline_bytes: config.inline_bytes.into(),
            min_inline: limits.min_inline_bytes.into(),
            vlan_insert: limits.vlan_insert,
            in_header: Requests::in_header(limits.vlan_insert),
            not_bare: Requests::not_bare(limits.vlan_insert),
            is_foreign: pool.is_foreign(),
            max_tso_bytes: limits.max_tso_bytes as usize,
            takes_stamps: kept != 0,
            stamp: None,
            own: OwnPool { va_to_iova: keys.va_to_iova, lkey_be: keys.lkey_be },
            elsewhere: device.region_keys_elsewhere(),
        };
        let hot = TxRing {
            requests,
            cq,
            // A block of a multi-packet request holds four packets; one buffer per block bounds
            // how many of the pool's buffers a queue can keep. Short chains count by segment.
            elts: MbufFifo::new(pool, 1 << log_size),
            signals: vec![Signal::default(); 1 << log_size].into_boxed_slice(),
            signals_head: 0,
            signals_tail: 0,
            signalled: 0,
            completed: 0,
            signal_every: SIGNAL_EVERY.min(1 << log_size >> 1),
            signalled_end: 0,
            ones: 0,
            completions_per_burst: if kept == 0 { COMPLETIONS_PER_BURST } else { STAMPS_PER_BURST },
            stamps: Stamps::new(kept as usize),
            cache: pool.cache(),
            regions: device.all_region_keys(),
            stats: TxStats::default(),
        };
        let unheard = hot.requests.ring.unheard()?;
        let (sqn, kind) = (hot.requests.ring.number(), hot.requests.ring.doorbell_kind());
        tracing::info!(sqn, "single frames: {kind}");
        let queue = Self { hot, unheard, sq, _cq: cq_handle, _uar: uar };
        queue.sq.move_queue(QueueState::RST, QueueState::RDY)?;
        Ok(queue)
    }

    /// Sends packets from the front of `packets`, as many as fit the ring; returns how many were
    /// taken out. The rest stays with the caller.
    ///
    /// Packets taken are freed once the device has sent them, in a later call. A packet that no
    /// request can describe is taken too, freed at once, and counted in [`TxStats::dropped`]: no
    /// data, more segments than a request has room for (61, or fewer behind headers that the device
    /// wants copied into the request, as for TSO), TSO with lengths that contradict the packet, an
    /// offload that the device lacks. It allocates nothing, takes no lock and makes no system call.
    /// After a fault it takes nothing: see [`TxQueue::stats`] and [`TxQueue::reset`].
    #[inline]
    pub fn tx_burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.hot.burst(packets)
    }

    /// Frees packets that the device has sent, without sending any; returns how many are still in
    /// flight. Up to 63, or single frames in half of the ring, stay in flight until more are
    /// sent, because not every request asks for a completion.
    #[doc(alias = "rte_eth_tx_done_cleanup")]
    pub fn reclaim(&mut self) -> u32 {
        self.hot.reap();
        self.hot.in_flight()
    }

    /// When the device had sent the next packet that asked for it, oldest first: by
    /// [`Mbuf::set_tx_timestamp`] or [`TxQueue::send_one_stamped`]. `None` if no more are known
    /// yet. Looks for completions when none is kept; nothing else of this queue waits for this
    /// call, and what nobody takes is lost once [`TxQueueConfig::timestamps`] are kept.
    ///
    /// It is the time in the completion: the device had then read the packet and handed it to its
    /// port. How much later the last bit leaves depends on the device.
    #[doc(alias = "rte_eth_timesync_read_tx_timestamp")]
    pub fn next_timestamp(&mut self) -> Option<SendTimestamp> {
        let kept = self.hot.stamps.take();
        if kept.is_some() {
            return kept;
        }
        self.hot.reap();
        self.hot.stamps.take()
    }

    /// The queue's stock of free buffers: those that it has sent, and where packets to send can
    /// be taken from without going through the pool's shared list.
    pub fn cache(&mut self) -> &mut PoolCache {
        &mut self.hot.cache
    }

    /// Counts since the queue was made.
    #[must_use]
    pub fn stats(&self) -> TxStats {
        let doorbells = self.hot.requests.ring.doorbells() + self.hot.ones;
        TxStats { packets: self.hot.packets(), doorbells, ..self.hot.stats }
    }

    /// Why the queue stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        self.hot.stats.fault
    }

    /// The device's number of the queue.
    #[must_use]
    pub fn sqn(&self) -> u32 {
        self.hot.requests.ring.number()
    }

    /// How [`TxQueue::send_one`] tells the device of a frame. Bursts ring a plain doorbell.
    #[must_use]
    pub fn doorbell_kind(&self) -> DoorbellKind {
        self.hot.requests.ring.doorbell_kind()
    }

    /// Blocks of the ring.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        self.hot.requests.ring.entries()
    }

    /// Empties the queue and makes it ready again, after a fault or to start afresh. Packets in
    /// flight are freed, sent or not.
    ///
    /// # Errors
    ///
    /// What the device refused. The queue then stays as it was; it can be dropped.
    pub fn reset(&mut self) -> Result<(), DeviceError> {
        self.sq.stop_queue()?;
        self.hot.restart();
        Ok(self.sq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// Stops the queue, frees its packets, and destroys it.
    ///
    /// # Errors
    ///
    /// The queue comes back with what the device refused.
    pub fn destroy(mut self) -> Result<(), Destroy<Self>> {
        match self.sq.stop_queue().and_then(|()| self.sq.destroy()) {
            Ok(()) => Ok(()),
            Err(cause) => Err(Destroy { object: Box::new(self), cause: cause.into() }),
        }
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        if let Err(error) = self.sq.stop_queue() {
            tracing::error!(sqn = self.sqn(), %error, "send queue not stopped");
            self.hot.leak();
        }
    }
}
