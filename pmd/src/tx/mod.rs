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
//! | order | why |
//! |---|---|
//! | request, then doorbell record | the device reads up to the record's counter |
//! | doorbell record, then doorbell | the device reads the record when the doorbell rings |

mod build;
mod slow;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrayvec::ArrayVec;
use ferrocx_bus::{DmaBuf, DmaWord, Doorbell, Ring};
use ferrocx_core::{
    ConfigError, CqAttr, CqRing, Destroy, Device, DeviceError, Handle, QueueFault, QueueState,
    RegionKeys, Uar,
};
use ferrocx_mempool::{Mbuf, MbufFifo, OlFlags, Pool, PoolCache};
use ferrocx_prm::cqe::{Cqe64, OP_OWN_MASK};
use ferrocx_prm::wqc::{Sqc, Wq, wq_type};
use ferrocx_prm::wqe::{CE_ALWAYS, DS_PER_BLOCK, LOG_BASIC_BLOCK_BYTES, MAX_DS, Opcode};

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
    /// First block behind it.
    end: u32,
    /// First buffer behind those of it and all before.
    elts_end: u32,
}

/// A send queue. Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct TxQueue {
    pub(crate) hot: TxRing,
    // Dropped in this order, the ring's buffers before.
    objects: Option<Objects>,
}

/// The device's side of a send queue.
#[derive(Debug)]
struct Objects {
    sq: Handle,
    _cq: Handle,
    _uar: Uar,
}

/// What a burst works on.
pub(crate) struct TxRing {
    /// The ring in 16-byte units.
    sq: Ring<16>,
    cq: CqRing,
    doorbell: Doorbell,
    doorbell_record: DmaWord,
    sqn: u32,
    /// Blocks posted and completed since the queue became ready.
    pi: u32,
    ci: u32,
    log_size: u8,
    /// Buffers in flight, and how many were ever added.
    elts: MbufFifo,
    elts_head: u32,
    /// Completions asked for, and how many were ever added and removed.
    signals: Box<[Signal]>,
    signals_head: u32,
    signals_tail: u32,
    /// Value of `elts_head` at the last request that asked for a completion.
    signalled: u32,
    /// First eight bytes of the last request, for the doorbell.
    last_ctrl: u64,
    /// Block of the last request's control segment.
    last_block: u32,
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
            .field("sqn", &self.sqn)
            .field("blocks", &(1u32 << self.log_size))
            .field("pi", &self.pi)
            .field("ci", &self.ci)
            .field("in_flight", &self.in_flight())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

/// Two dwords, given as they stand in memory, as one 64-bit word to store.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        u64::from(first) | u64::from(second) << 32
    } else {
        u64::from(second) | u64::from(first) << 32
    }
}

impl TxRing {
    /// Blocks that can be written.
    #[inline(always)]
    fn free_blocks(&self) -> u32 {
        (1 << self.log_size) - self.pi.wrapping_sub(self.ci)
    }

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
        let (before, pi) = (packets.len(), self.pi);
        while !packets.is_empty() {
            if self.multi_packet && self.multi_packet_request(packets) {
                continue;
            }
            if !self.send_alone(packets) {
                self.stats.full += 1;
                break;
            }
        }
        if self.pi != pi {
            self.ring_doorbell();
        }
        before - packets.len()
    }

    /// Writes one request for the plain packets at the front, up to [`MAX_PACKETS`]. `false` if
    /// there is none, or no room.
    #[inline(always)]
    fn multi_packet_request<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> bool {
        let room = (self.free_blocks() * DS_PER_BLOCK).saturating_sub(HEADER_DS);
        let most = MAX_PACKETS.min(room as usize);
        let first = self.pi.wrapping_mul(DS_PER_BLOCK);
        let mut at = first.wrapping_add(HEADER_DS);
        let mut bytes = 0;
        let (units, va_to_iova) = (self.sq.view(), self.va_to_iova);
        let (lkey_be, inline_bytes) = (self.lkey_be, self.inline_bytes);
        let count = self.elts.push_while(packets, most, |packet| {
            if packet.flags.intersects(OFFLOADS) || packet.len <= inline_bytes {
                return false;
            }
            let segment = units.at(at);
            segment.store_raw64::<0>(pair(u32::from(packet.len).to_be(), lkey_be));
            segment.store_be64::<8>((packet.address as u64).wrapping_add(va_to_iova));
            at = at.wrapping_add(1);
            bytes += u64::from(packet.len);
            true
        });
        if count == 0 {
            return false;
        }
        self.elts_head = self.elts_head.wrapping_add(count as u32);
        self.write_eth(first, 0, 0);
        self.close_request(Opcode::ENHANCED_MPSW, at.wrapping_sub(first));
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

    /// Writes the control segment of the request at the producer index, and moves past it.
    #[inline(always)]
    fn close_request(&mut self, opcode: Opcode, ds: u32) {
        let ctrl = self.sq.at(self.pi.wrapping_mul(DS_PER_BLOCK));
        let index = (self.pi & 0xffff) << 8 | u32::from(opcode.0);
        self.last_ctrl = pair(index.to_be(), (self.sqn << 8 | ds).to_be());
        ctrl.store_raw64::<0>(self.last_ctrl);
        ctrl.store_raw64::<8>(0);
        self.last_block = self.pi;
        self.pi = self.pi.wrapping_add(ds.div_ceil(DS_PER_BLOCK));
    }

    /// Writes the Ethernet segment of a request that starts at unit `first`: the word with flags
    /// and MSS, and the word with inline header size and its first bytes.
    #[inline(always)]
    fn write_eth(&self, first: u32, flags_mss: u32, inline: u32) {
        let eth = self.sq.at(first.wrapping_add(1));
        eth.store_raw64::<0>(pair(0, flags_mss.to_be()));
        eth.store_raw64::<8>(pair(0, inline.to_be()));
    }

    /// Tells the device what was posted, and asks for a completion if it is time.
    #[inline(always)]
    fn ring_doorbell(&mut self) {
        let unsignalled = self.elts_head.wrapping_sub(self.signalled);
        if unsignalled >= SIGNAL_EVERY || self.free_blocks() < (1 << self.log_size) / 2 {
            self.signal();
        }
        self.stats.doorbells += 1;
        self.doorbell_record.store_release_be32(self.pi & 0xffff);
        self.doorbell.ring(self.last_ctrl);
    }

    /// Makes the last request ask for a completion, and notes what it will end.
    #[inline(always)]
    fn signal(&mut self) {
        let at = self.signals_head as usize & (self.signals.len() - 1);
        let wqe_index = self.last_block as u16;
        self.signals[at] = Signal { wqe_index, end: self.pi, elts_end: self.elts_head };
        self.signals_head = self.signals_head.wrapping_add(1);
        self.signalled = self.elts_head;
        let ctrl = self.sq.at(self.last_block.wrapping_mul(DS_PER_BLOCK));
        ctrl.store_raw64::<8>(pair(CE_ALWAYS.to_be(), 0));
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
            self.ci = signal.end;
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
        let buf = Arc::new(device.alloc_dma(1 << (log_size + LOG_BASIC_BLOCK_BYTES as u8), 4096)?);
        let record = Arc::new(device.alloc_dma(8, 64)?);
        let wq = Wq::zeroed()
            .with_wq_type(wq_type::CYCLIC)
            .with_pd(device.pdn())
            .with_uar_page(uar.page())
            .with_dbr_addr(record.iova())
            .with_log_wq_stride(LOG_BASIC_BLOCK_BYTES)
            .with_log_wq_sz(u32::from(log_size));
        let sqc = Sqc::zeroed()
            .with_rlky(device.uses_reserved_lkey())
            .with_flush_in_error_en(true)
            .with_min_wqe_inline_mode(device.min_inline_mode())
            .with_cqn(cq_handle.number())
            .with_tis_lst_sz(1)
            .with_tis_num_0(device.tisn())
            .with_wq(wq);
        let sq = device.create_sq(sqc, &buf, &record)?;
        let sqn = sq.number();
        let parts = Parts { sqn, log_size, cq, doorbell: uar.doorbell().clone(), buf, record };
        let mut hot = TxRing::over(parts, pool, keys, device.all_region_keys())?;
        hot.multi_packet = config.multi_packet && limits.multi_packet;
        hot.inline_bytes = config.inline_bytes;
        hot.min_inline = limits.min_inline_bytes;
        hot.vlan_insert = limits.vlan_insert;
        hot.max_tso_bytes = limits.max_tso_bytes;
        let queue = Self { hot, objects: Some(Objects { sq, _cq: cq_handle, _uar: uar }) };
        queue.make_ready()?;
        Ok(queue)
    }

    /// A queue that no device knows.
    pub(crate) fn without_device(hot: TxRing) -> Self {
        Self { hot, objects: None }
    }

    fn make_ready(&self) -> Result<(), DeviceError> {
        let Some(Objects { sq, .. }) = &self.objects else { return Ok(()) };
        Ok(sq.move_queue(QueueState::RST, QueueState::RDY)?)
    }

    /// Sends packets from the front of `packets`, as many as fit the ring; returns how many were
    /// taken out. The rest stays with the caller.
    ///
    /// Packets taken are freed once the device has sent them, in a later call. A packet that no
    /// request can describe is taken too, freed at once, and counted in [`TxStats::dropped`]: no
    /// data, more than 60 segments, TSO with lengths that contradict the packet, an offload that
    /// the device lacks. It allocates nothing, takes no lock and makes no system call. After a
    /// fault it takes nothing: see [`TxQueue::stats`] and [`TxQueue::reset`].
    #[inline]
    pub fn tx_burst<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> usize {
        self.hot.burst(packets)
    }

    /// Frees packets that the device has sent, without sending any; returns how many are still in
    /// flight. Up to 31 stay in flight until more are sent, because not every request asks for a
    /// completion.
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
        self.hot.stats
    }

    /// Why the queue stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        self.hot.stats.fault
    }

    /// The device's number of the queue, 0 for one that no device knows.
    #[must_use]
    pub fn sqn(&self) -> u32 {
        self.hot.sqn
    }

    /// Blocks of the ring.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        1 << self.hot.log_size
    }

    /// Empties the queue and makes it ready again, after a fault or to start afresh. Packets in
    /// flight are freed, sent or not.
    ///
    /// # Errors
    ///
    /// What the device refused. The queue then stays as it was; it can be dropped.
    pub fn reset(&mut self) -> Result<(), DeviceError> {
        if let Some(objects) = &self.objects {
            objects.sq.stop_queue()?;
        }
        self.hot.restart();
        self.make_ready()
    }

    /// Stops the queue, frees its packets, and destroys it.
    ///
    /// # Errors
    ///
    /// The queue comes back with what the device refused.
    pub fn destroy(mut self) -> Result<(), Destroy<Self>> {
        let Some(mut objects) = self.objects.take() else { return Ok(()) };
        if let Err(cause) = objects.sq.stop_queue().and_then(|()| objects.sq.destroy()) {
            self.objects = Some(objects);
            return Err(Destroy { object: Box::new(self), cause: cause.into() });
        }
        Ok(())
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        let Some(objects) = self.objects.take() else { return };
        if let Err(error) = objects.sq.stop_queue() {
            tracing::error!(sqn = objects.sq.number(), %error, "send queue not stopped");
            self.hot.leak();
        }
    }
}

/// What a ring is made of.
pub(crate) struct Parts {
    pub(crate) sqn: u32,
    pub(crate) log_size: u8,
    pub(crate) cq: CqRing,
    pub(crate) doorbell: Doorbell,
    pub(crate) buf: Arc<DmaBuf>,
    pub(crate) record: Arc<DmaBuf>,
}

impl TxRing {
    /// Views initialised memory; all options off but multi-packet requests.
    pub(crate) fn over(
        parts: Parts,
        pool: &Pool,
        keys: RegionKeys,
        regions: Vec<RegionKeys>,
    ) -> Result<Self, DeviceError> {
        let Parts { sqn, log_size, cq, doorbell, buf, record } = parts;
        Ok(Self {
            // In 16-byte units, four to a block.
            sq: Ring::new(buf, 0, log_size + 2)?,
            cq,
            doorbell,
            doorbell_record: DmaWord::new(record, 4)?,
            sqn,
            pi: 0,
            ci: 0,
            log_size,
            // A block of a multi-packet request holds four packets; one buffer per block bounds
            // how many of the pool's buffers a queue can keep.
            elts: MbufFifo::new(pool, 1 << log_size),
            elts_head: 0,
            signals: vec![Signal::default(); 1 << log_size].into_boxed_slice(),
            signals_head: 0,
            signals_tail: 0,
            signalled: 0,
            last_ctrl: 0,
            last_block: 0,
            multi_packet: true,
            inline_bytes: 0,
            min_inline: 0,
            vlan_insert: false,
            max_tso_bytes: 0,
            va_to_iova: keys.va_to_iova,
            lkey_be: keys.lkey_be,
            cache: pool.cache(),
            regions,
            stats: TxStats::default(),
        })
    }
}
