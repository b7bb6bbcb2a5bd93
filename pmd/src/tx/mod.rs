//! Send queues: a ring of 64-byte blocks, a completion queue, and the burst that fills it.
//!
//! # What becomes of a packet
//!
//! | packet | work request |
//! |---|---|
//! | one buffer, no offload, device without inline needs | one data segment in a multi-packet request (enhanced MPW) |
//! | the same, up to `inline_bytes` | copied into the multi-packet request |
//! | chain, checksum, VLAN, device that wants headers inline | a SEND request of its own |
//! | TSO | an LSO request of its own, headers inline |
//! | with a segment in [foreign](ferrocx_mempool::Mbuf::is_foreign) memory | the same, never copied: the processor reads of it only headers that a device wants inline |
//! | cannot be described (too many segments, lengths that contradict each other) | none: it is freed and counted as dropped |
//!
//! # Completions
//!
//! The last request of a burst asks for a completion once enough packets went out since the last
//! that did, or the ring runs low. Requests complete in order, so each completion ends all before
//! it. What is expected is noted: a completion for anything else stops the queue.
//!
//! Ring, requests and doorbell are those of [`ferrocx_core::wq`].

mod build;
mod slow;
#[cfg(test)]
mod tests;

use arrayvec::ArrayVec;
use ferrocx_core::wq::{Control, SendRing, SqAttr, blocks_of, put_data, put_eth};
use ferrocx_core::{
    ConfigError, CqAttr, CqRing, Destroy, Device, DeviceError, Handle, QueueFault, QueueState,
    RegionKeys, Uar,
};
use ferrocx_mempool::{Mbuf, MbufFifo, OlFlags, Pool, PoolCache};
use ferrocx_prm::cqe::{Cqe64, OP_OWN_MASK};
use ferrocx_prm::wqe::{DS_PER_BLOCK, MAX_DS, Opcode};

use crate::config::TxQueueConfig;
use crate::stats::TxStats;

/// Units that control and Ethernet segment take.
const HEADER_DS: u32 = 2;
/// Packets of one multi-packet request: as many data segments as fit. Source: reference 6.3.
const MAX_PACKETS: usize = (MAX_DS - HEADER_DS) as usize;
/// Packets after which a completion is asked for.
const SIGNAL_EVERY: u32 = 32;
/// Completions read in one burst at most, so that a burst's length stays bounded.
const COMPLETIONS_PER_BURST: usize = 4;
/// Flags that keep a packet out of a multi-packet request.
const OFFLOADS: OlFlags = OlFlags::TX_IP_CSUM
    .union(OlFlags::TX_L4_CSUM)
    .union(OlFlags::TX_VLAN_INSERT)
    .union(OlFlags::TX_TSO);

/// A completion that was asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Signal {
    /// First block of the request that asked.
    wqe_index: u16,
    /// Position behind it.
    end: u64,
    /// First buffer behind those of it and all before.
    elts_end: u32,
}

/// A send queue. Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) hot: TxRing,
    // Dropped in this order, the ring's buffers before.
    sq: Handle,
    _cq: Handle,
    _uar: Uar,
}

/// What a burst works on.
pub(crate) struct TxRing {
    ring: SendRing,
    cq: CqRing,
    /// Buffers in flight, and how many were ever added.
    elts: MbufFifo,
    elts_head: u32,
    /// Completions asked for, and how many were ever added and removed.
    signals: Box<[Signal]>,
    signals_head: u32,
    signals_tail: u32,
    /// Value of `elts_head` at the last request that asked for a completion.
    signalled: u32,
    multi_packet: bool,
    inline_bytes: u16,
    /// Headers that each request must carry.
    min_inline: u16,
    vlan_insert: bool,
    max_tso_bytes: u32,
    /// Turns an address of the own pool into one of the device.
    va_to_iova: u64,
    lkey_be: u32,
    cache: PoolCache,
    regions: Vec<RegionKeys>,
    pub(crate) stats: TxStats,
}

impl std::fmt::Debug for TxRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TxRing")
            .field("ring", &self.ring)
            .field("in_flight", &self.in_flight())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl TxRing {
    /// Packets in flight.
    #[inline(always)]
    pub(crate) fn in_flight(&self) -> u32 {
        self.elts.len() as u32
    }

    /// Sends packets from the front of `packets`; returns how many were taken.
    #[inline]
    pub(crate) fn burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.reap();
        if packets.is_empty() || self.stats.fault.is_some() {
            return 0;
        }
        let (before, pi) = (packets.len(), self.ring.pi);
        while !packets.is_empty() {
            if self.multi_packet && self.multi_packet_request(packets) {
                continue;
            }
            if !self.send_alone(packets) {
                self.stats.full += 1;
                break;
            }
        }
        if self.ring.pi != pi {
            self.ring_doorbell();
        }
        before - packets.len()
    }

    /// Writes one request for the plain packets at the front, up to [`MAX_PACKETS`]. `false` if
    /// there is none, or no room.
    #[inline(always)]
    fn multi_packet_request<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> bool {
        let room = (self.ring.free_blocks() * DS_PER_BLOCK).saturating_sub(HEADER_DS);
        let most = MAX_PACKETS.min(room as usize);
        let mut wqe = self.ring.begin();
        let eth = wqe.unit();
        let mut bytes = 0;
        let (lkey_be, va_to_iova) = (self.lkey_be, self.va_to_iova);
        let inline_bytes = self.inline_bytes;
        let count = self.elts.push_while(packets, most, |packet| {
            if packet.flags.intersects(OFFLOADS) || packet.len <= inline_bytes {
                return false;
            }
            let addr = (packet.address as u64).wrapping_add(va_to_iova);
            put_data(wqe.unit(), packet.len.into(), lkey_be, addr);
            bytes += u64::from(packet.len);
            true
        });
        if count == 0 {
            return false;
        }
        self.elts_head = self.elts_head.wrapping_add(count as u32);
        put_eth(eth, 0, 0);
        let ds = wqe.ds();
        self.ring.close(Control::new(Opcode::ENHANCED_MPSW), ds, blocks_of(ds));
        self.stats.packets += count as u64;
        self.stats.bytes += bytes;
        true
    }

    /// Keeps a buffer until its completion. The caller made sure that there is room.
    #[inline(always)]
    fn keep(&mut self, mbuf: Mbuf) {
        match self.elts.push(mbuf) {
            Ok(()) => self.elts_head = self.elts_head.wrapping_add(1),
            Err(mbuf) => self.cache.put(mbuf),
        }
    }

    /// Tells the device what was posted, and asks for a completion if it is time.
    #[inline(always)]
    fn ring_doorbell(&mut self) {
        let unsignalled = self.elts_head.wrapping_sub(self.signalled);
        if unsignalled >= SIGNAL_EVERY || self.ring.outstanding() > self.ring.entries() / 2 {
            self.signal();
        }
        self.ring.ring_doorbell();
    }

    /// Makes the last request ask for a completion, and notes what it will end.
    #[inline(always)]
    fn signal(&mut self) {
        let at = self.signals_head as usize & (self.signals.len() - 1);
        let (wqe_index, end) = (self.ring.signal_last(), self.ring.pi);
        self.signals[at] = Signal { wqe_index, end, elts_end: self.elts_head };
        self.signals_head = self.signals_head.wrapping_add(1);
        self.signalled = self.elts_head;
    }

    /// Reads completions and frees what they end.
    #[inline(always)]
    fn reap(&mut self) {
        let before = self.cq.ci;
        for _ in 0..COMPLETIONS_PER_BURST {
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
            self.cq.ci = self.cq.ci.wrapping_add(1);
            self.signals_tail = self.signals_tail.wrapping_add(1);
            self.ring.ci = signal.end;
            self.free_until(signal.elts_end);
        }
        if self.cq.ci != before {
            self.cq.tell();
        }
    }

    /// Gives completed buffers back to their pools: those added before the `end`th.
    #[inline(always)]
    fn free_until(&mut self, end: u32) {
        let behind = self.elts_head.wrapping_sub(end) as usize;
        self.elts.free(self.elts.len() - behind, &mut self.cache);
    }
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
        let uar = Uar::new(device)?;
        // Every request may end in a completion when the queue is flushed.
        let attr = CqAttr { log_size, compression: false, events: None };
        let (cq, cq_handle) = CqRing::new(device, &attr)?;
        let attr = SqAttr {
            uar: &uar,
            pd: device.pdn(),
            rlky: device.uses_reserved_lkey(),
            cqn: cq_handle.number(),
            user_index: 0,
            log_blocks: log_size,
        };
        let (ring, sq) = SendRing::create(device, &attr)?;
        let hot = TxRing {
            ring,
            cq,
            // A block of a multi-packet request holds four packets; one buffer per block bounds
            // how many of the pool's buffers a queue can keep.
            elts: MbufFifo::new(pool, 1 << log_size),
            elts_head: 0,
            signals: vec![Signal::default(); 1 << log_size].into_boxed_slice(),
            signals_head: 0,
            signals_tail: 0,
            signalled: 0,
            multi_packet: config.multi_packet && limits.multi_packet,
            inline_bytes: config.inline_bytes,
            min_inline: limits.min_inline_bytes,
            vlan_insert: limits.vlan_insert,
            max_tso_bytes: limits.max_tso_bytes,
            va_to_iova: keys.va_to_iova,
            lkey_be: keys.lkey_be,
            cache: pool.cache(),
            regions: device.all_region_keys(),
            stats: TxStats::default(),
        };
        let queue = Self { hot, sq, _cq: cq_handle, _uar: uar };
        queue.sq.move_queue(QueueState::RST, QueueState::RDY)?;
        Ok(queue)
    }

    /// Sends packets from the front of `packets`, as many as fit the ring; returns how many were
    /// taken out. The rest stays with the caller.
    ///
    /// Packets taken are freed once the device has sent them, in a later call. A packet that no
    /// request can describe is taken too, freed at once, and counted in [`TxStats::dropped`]: no
    /// data, more than 61 segments, TSO with lengths that contradict the packet, an offload that
    /// the device lacks. It allocates nothing, takes no lock and makes no system call. After a
    /// fault it takes nothing: see [`TxQueue::stats`] and [`TxQueue::reset`].
    #[inline]
    pub fn tx_burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.hot.burst(packets)
    }

    /// Frees packets that the device has sent, without sending any; returns how many are still in
    /// flight. Up to 31 stay in flight until more are sent, because not every request asks for a
    /// completion.
    #[doc(alias = "rte_eth_tx_done_cleanup")]
    pub fn reclaim(&mut self) -> u32 {
        self.hot.reap();
        self.hot.in_flight()
    }

    /// The queue's stock of free buffers: those that it has sent, and where packets to send can
    /// be taken from without going through the pool's shared list.
    pub fn cache(&mut self) -> &mut PoolCache {
        &mut self.hot.cache
    }

    /// Counts since the queue was made.
    #[must_use]
    pub fn stats(&self) -> TxStats {
        TxStats { doorbells: self.hot.ring.doorbells(), ..self.hot.stats }
    }

    /// Why the queue stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        self.hot.stats.fault
    }

    /// The device's number of the queue.
    #[must_use]
    pub fn sqn(&self) -> u32 {
        self.hot.ring.number()
    }

    /// Blocks of the ring.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        self.hot.ring.entries()
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
