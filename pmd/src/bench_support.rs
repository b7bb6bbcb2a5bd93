//! Queues without a device, for benches and tests of driver code alone.
//!
//! The rings lie in ordinary mapped memory, the doorbell is a word of the in-process transport's
//! BAR that nobody looks at, and [`NullRx::complete`] and [`NullTx::complete`] play the device:
//! they write completions as the device would. Not part of the crate's stable interface.
#![expect(unsafe_code, reason = "stamps pools without a device")]

use std::sync::Arc;

use ferrocx_bus::local::{DeviceSide, LocalConfig, pair};
use ferrocx_bus::{DmaAccess, DmaBuf, Ring, Transport};
use ferrocx_core::memory::Memory;
use ferrocx_core::{CqRing, DeviceError, RegionKeys, initialise_cq};
use ferrocx_mempool::{PageSize, Pool, PoolKeys};
use ferrocx_prm::cqe::{Cqe64, CqeOpcode};

use crate::rx::{RxQueue, RxRing, Shape};
use crate::tx::{Parts, TxQueue, TxRing};

/// UAR page whose first send doorbell the null queue rings.
const UAR_PAGE: u64 = 16;
/// Any key.
const LKEY: u32 = 0x0000_0700;
/// Any number.
const SQN: u32 = 0x000_123;

/// Memory and registers for null queues.
#[derive(Debug)]
pub struct NullBus {
    transport: Arc<dyn Transport>,
    memory: Memory,
    /// Keeps the device's half alive; nobody steps it.
    _device: DeviceSide,
}

impl NullBus {
    /// Makes the memory, of pages as `page` says.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Bus`] if there is no memory.
    pub fn new(page: PageSize) -> Result<Self, DeviceError> {
        let (transport, device) = pair(LocalConfig::default())?;
        let memory = Memory::new(transport.dma(), page, None, false)?;
        Ok(Self { transport, memory, _device: device })
    }

    /// Maps a pool's region and stamps its buffers.
    fn keys(&self, pool: &Pool) -> Result<RegionKeys, DeviceError> {
        let mapping = self.memory.dma().map(Arc::clone(pool.region()), DmaAccess::ReadWrite)?;
        if pool.keys().is_none() {
            // SAFETY: no device reads descriptors here, and domain 0 promises nothing to others.
            unsafe { pool.stamp(PoolKeys { region_iova: mapping.iova(), lkey: LKEY, domain: 0 }) }?;
        }
        let start = pool.region().base().as_ptr().addr();
        let stamp = pool.keys().map_or(0, |keys| keys.region_iova);
        Ok(RegionKeys {
            addresses: start..start + pool.region().len_bytes(),
            va_to_iova: mapping.iova().wrapping_sub(start as u64),
            stamp_to_iova: mapping.iova().wrapping_sub(stamp),
            lkey_be: LKEY.to_be(),
            domain: 0,
            _mapping: mapping,
        })
    }

    /// A completion queue as CREATE_CQ wants it, and its buffer.
    fn cq(&self, log_size: u8) -> Result<(CqRing, Arc<DmaBuf>), DeviceError> {
        let buf = Arc::new(self.memory.alloc(64 << log_size, 4096)?);
        initialise_cq(&buf);
        let record = Arc::new(self.memory.alloc(8, 64)?);
        Ok((CqRing::over(Arc::clone(&buf), record, log_size)?, buf))
    }

    /// A receive queue of `descriptors` (a power of two), filled from `pool`.
    ///
    /// # Errors
    ///
    /// [`DeviceError::PoolTooSmall`], or what the bus refused.
    pub fn rx_queue(&self, pool: &Pool, descriptors: u32) -> Result<NullRx, DeviceError> {
        self.scattered_rx_queue(pool, descriptors, 0)
    }

    /// The same with `1 << log_segs` buffers, at most eight, to each descriptor.
    ///
    /// # Errors
    ///
    /// As for [`NullBus::rx_queue`].
    pub fn scattered_rx_queue(
        &self,
        pool: &Pool,
        descriptors: u32,
        log_segs: u8,
    ) -> Result<NullRx, DeviceError> {
        let keys = self.keys(pool)?;
        let log_size = descriptors.ilog2() as u8;
        let (cq, cq_buf) = self.cq(log_size)?;
        let buf = Arc::new(self.memory.alloc(16 << (log_size + log_segs), 4096)?);
        let record = Arc::new(self.memory.alloc(8, 64)?);
        let shape = Shape { log_size, log_segs };
        let mut ring = RxRing::over(cq, &buf, &record, pool, keys, shape, 512)?;
        let (need, got) = ((descriptors as usize) << log_segs, ring.fill());
        if got < need {
            return Err(DeviceError::PoolTooSmall { pool: pool.name().to_owned(), need, got });
        }
        ring.announce();
        let cqes = Ring::new(cq_buf, 0, log_size)?;
        Ok(NullRx { queue: RxQueue::without_device(ring), cqes, log_size, pi: 0, start: 0 })
    }

    /// A send queue of `blocks` (a power of two).
    ///
    /// # Errors
    ///
    /// What the bus refused.
    pub fn tx_queue(&self, pool: &Pool, blocks: u32) -> Result<NullTx, DeviceError> {
        let keys = self.keys(pool)?;
        let log_size = blocks.ilog2() as u8;
        let (cq, cq_buf) = self.cq(log_size)?;
        let buf = Arc::new(self.memory.alloc(64 << log_size, 4096)?);
        let record = Arc::new(self.memory.alloc(8, 64)?);
        let doorbell = self.transport.bar().doorbell(UAR_PAGE * 4096 + 0x800)?;
        let wqes = Arc::clone(&buf);
        let parts = Parts { sqn: SQN, log_size, cq, doorbell, buf, record };
        let ring = TxRing::over(parts, pool, keys.clone(), vec![keys])?;
        let cqes = Ring::new(cq_buf, 0, log_size)?;
        Ok(NullTx { queue: TxQueue::without_device(ring), wqes, cqes, log_size, pi: 0, seen: 0 })
    }
}

/// A receive queue, and the device's end of its completion queue.
#[derive(Debug)]
pub struct NullRx {
    /// The queue.
    pub queue: RxQueue,
    cqes: Ring<64>,
    log_size: u8,
    pi: u32,
    /// Value of `pi` when the queue was last made ready.
    start: u32,
}

impl NullRx {
    /// Writes `count` completions of `len_bytes` each, as for TCP over IPv4 with a hash.
    pub fn complete(&mut self, count: u32, len_bytes: u32) {
        for _ in 0..count {
            let cqe = Cqe64::zeroed()
                .with_byte_cnt(len_bytes)
                .with_rx_hash_result(0x1234_5678)
                .with_rx_hash_l3(1)
                .with_rx_hash_l4(1)
                .with_l2_ok(true)
                .with_l3_ok(true)
                .with_l4_ok(true)
                .with_l3_hdr_type(2)
                .with_l4_hdr_type(1)
                .with_wqe_counter(self.counter())
                .with_opcode(CqeOpcode::RESPONDER_SEND.0);
            self.complete_with(cqe);
        }
    }

    /// Writes one completion; owner bit and order of stores are taken care of.
    pub fn complete_with(&mut self, cqe: Cqe64) {
        publish(&self.cqes, self.pi, self.log_size, cqe);
        self.pi = self.pi.wrapping_add(1);
    }

    /// Writes a compressed block: its title, arrays at their distances from it, and nothing in
    /// the holes. It counts as `count` completions.
    pub fn complete_block(&mut self, title: Cqe64, arrays: &[(u32, [u8; 64])], count: u32) {
        for (distance, array) in arrays {
            self.cqes.at(self.pi.wrapping_add(*distance)).store(array);
        }
        publish(&self.cqes, self.pi, self.log_size, title);
        self.pi = self.pi.wrapping_add(count);
    }

    /// Goes on from another number of completions.
    pub fn start_at(&mut self, pi: u32) {
        (self.pi, self.start) = (pi, 0);
        // Every entry looks as the lap before left it.
        for at in 0..self.cqes.entries() {
            let owner = ((pi >> self.log_size) & 1) ^ 1;
            self.cqes.at(pi.wrapping_add(at)).store_be32::<0x3c>(0xf0 | owner);
        }
    }

    /// Writes any bytes to the entry `distance` from the next one: what no device should do.
    pub fn write_cqe(&mut self, distance: u32, bytes: &[u8; 64]) {
        self.cqes.at(self.pi.wrapping_add(distance)).store(bytes);
    }

    /// Resets the queue. The completion queue goes on where it was, as a device's does.
    ///
    /// # Panics
    ///
    /// Never: there is no device that could refuse.
    pub fn reset(&mut self) {
        self.queue.reset().expect("no device is asked");
        self.start = self.pi;
    }

    /// Counter of the work request that completes next.
    #[must_use]
    pub fn counter(&self) -> u32 {
        self.pi.wrapping_sub(self.start)
    }

    /// Completions written so far.
    #[must_use]
    pub fn completed(&self) -> u32 {
        self.pi
    }
}

/// A send queue, and the device's end of its rings.
#[derive(Debug)]
pub struct NullTx {
    /// The queue.
    pub queue: TxQueue,
    wqes: Arc<DmaBuf>,
    cqes: Ring<64>,
    log_size: u8,
    pi: u32,
    /// Completions asked for that were answered.
    seen: u32,
}

impl NullTx {
    /// Answers every completion that was asked for since the last call; returns how many.
    pub fn complete(&mut self) -> u32 {
        let asked = self.queue.hot.asked_since(self.seen);
        for index in &asked {
            let cqe = Cqe64::zeroed()
                .with_wqe_counter(u32::from(*index))
                .with_opcode(CqeOpcode::REQUESTER.0);
            publish(&self.cqes, self.pi, self.log_size, cqe);
            self.pi = self.pi.wrapping_add(1);
        }
        self.seen = self.seen.wrapping_add(asked.len() as u32);
        asked.len() as u32
    }

    /// Writes one completion; owner bit and order of stores are taken care of.
    pub fn complete_with(&mut self, cqe: Cqe64) {
        publish(&self.cqes, self.pi, self.log_size, cqe);
        self.pi = self.pi.wrapping_add(1);
    }

    /// Writes any bytes to the entry `distance` from the next one: what no device should do.
    pub fn write_cqe(&mut self, distance: u32, bytes: &[u8; 64]) {
        self.cqes.at(self.pi.wrapping_add(distance)).store(bytes);
    }

    /// Resets the queue; what was asked for before is not answered any more.
    ///
    /// # Panics
    ///
    /// Never: there is no device that could refuse.
    pub fn reset(&mut self) {
        let asked = self.queue.hot.asked_since(self.seen);
        self.seen = self.seen.wrapping_add(asked.len() as u32);
        self.queue.reset().expect("no device is asked");
    }

    /// From now on as for a device with VLAN insertion and TSO, with packets up to `inline_bytes`
    /// copied into requests, and `min_inline` bytes of headers wanted in each.
    pub fn all_offloads(&mut self, inline_bytes: u16, min_inline: u16) {
        self.queue.hot.enable_offloads(inline_bytes, min_inline);
    }

    /// Reads bytes of the ring of work requests.
    pub fn read_wqe(&self, offset: usize, out: &mut [u8]) {
        self.wqes.copy_out(offset, out);
    }
}

/// Writes an entry as the device does: ownership last.
fn publish(cqes: &Ring<64>, index: u32, log_size: u8, cqe: Cqe64) {
    let cqe = cqe.with_owner((index >> log_size) & 1 != 0);
    let slot = cqes.at(index);
    let (head, last) = cqe.0.split_at(56);
    slot.store_at::<0, 56>(head.try_into().expect("56 bytes"));
    let word = |at: usize| u32::from_be_bytes([last[at], last[at + 1], last[at + 2], last[at + 3]]);
    slot.store_be32::<0x38>(word(0));
    slot.store_release_be32::<0x3c>(word(4));
}
