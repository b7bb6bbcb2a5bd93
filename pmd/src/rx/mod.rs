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
//! several buffers to a work request and a slower path; what those look like is in `shape`.

mod shape;
mod slow;
#[cfg(test)]
mod tests;
mod wake;

pub(crate) use shape::Shape;
pub use wake::sleep_on;

use std::sync::Arc;

use arrayvec::ArrayVec;
use ferrocx_bus::{Ring, Slot};
use ferrocx_core::wq::{RecvRing, RqAttr};
use ferrocx_core::{
    ConfigError, CqAttr, CqRing, Destroy, Device, DeviceError, Handle, INVALID_OPCODE, QueueFault,
    QueueState, RegionKeys, RxQueueRef,
};
use ferrocx_mempool::{Mbuf, MbufFifo, OlFlags, PacketType, Pool, PoolCache, RxMeta};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, MiniCqe, OP_OWN_MASK};
use ferrocx_prm::wqe::Data;

use crate::config::RxQueueConfig;
use crate::stats::RxStats;
use crate::tx::TxQueue;
use shape::SegmentShape;
use wake::Wake;

/// Buffers posted at once. A ring is refilled when this many are missing.
pub(crate) const REFILL: usize = 32;
/// Bytes of Ethernet header and VLAN tag.
const L2_BYTES: u32 = 18;
/// An ordinary receive completion, in its last word: opcode and format.
const RESPONDER_SEND: u32 = Cqe64::OPCODE.of(CqeOpcode::RESPONDER_SEND.0);
/// Which headers were hashed, in the word that says so.
const HASHED: u32 = Cqe64::RX_HASH_L3.mask() | Cqe64::RX_HASH_L4.mask();

/// A receive queue. Belongs to one core at a time: bursts take `&mut self`.
#[derive(Debug)]
pub struct RxQueue {
    pub(crate) hot: RxRing,
    /// The device's side, which is held by what steers to it too.
    rq: Arc<Handle>,
    wake: Option<Wake>,
}

/// What a burst works on.
pub(crate) struct RxRing {
    cq: CqRing,
    /// A scattered frame takes several buffers to a work request.
    ring: RecvRing,
    /// Buffers in the ring, in order.
    elts: MbufFifo,
    headroom: u16,
    /// Bits of a completion's last dword that must be as expected: counter, opcode, owner.
    last_mask: u32,
    /// What turns a buffer's stamped address into the one to post.
    post_offset: u64,
    cache: PoolCache,
    pub(crate) stats: RxStats,
    mini: slow::Mini,
    /// The completion queue, as the entries of compressed blocks.
    minis: Ring<{ MiniCqe::SIZE_BYTES }>,
    /// The first segment of a work request, and the others; the bytes that all of them hold.
    shapes: [SegmentShape; 2],
    room_bytes: u32,
    /// Of a queue that splits, whose work requests have at least two buffers.
    split: Option<Box<shape::Split>>,
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

/// Packet flags and type by bits 26 to 16 of the CQE's word at 0x1c: layer checks, header types,
/// fragment, VLAN. Type in the highest byte, as [`Mbuf`] stores it.
static FLAGS: [u32; 2048] = flag_table();

/// Builds [`FLAGS`]. Source: reference 6.7, `hds_ip_ext` and `l4_l3_hdr_type`.
const fn flag_table() -> [u32; 2048] {
    let mut table = [0; 2048];
    let mut index = 0;
    while index < 2048 {
        let bits = index as u32;
        let (vlan, fragment) = (bits & 1 != 0, bits & 2 != 0);
        let (l3, l4) = ((bits >> 2) & 3, (bits >> 4) & 7);
        let (l3_ok, l4_ok) = (bits & (1 << 9) != 0, bits & (1 << 10) != 0);
        let mut flags = 0;
        let mut kind = 0;
        if vlan {
            flags |= OlFlags::RX_VLAN.bits() | OlFlags::RX_VLAN_STRIPPED.bits();
        }
        // 1 is IPv6, which has no header checksum; 2 is IPv4.
        if l3 == 2 {
            kind |= PacketType::L3_IPV4;
            flags |= if l3_ok {
                OlFlags::RX_IP_CSUM_GOOD.bits()
            } else {
                OlFlags::RX_IP_CSUM_BAD.bits()
            };
        } else if l3 == 1 {
            kind |= PacketType::L3_IPV6;
        }
        if fragment {
            kind |= PacketType::L4_FRAGMENT;
        } else if l3 != 0 && l4 != 0 && l4 <= 4 {
            kind |= if l4 == 2 { PacketType::L4_UDP } else { PacketType::L4_TCP };
            flags |= if l4_ok {
                OlFlags::RX_L4_CSUM_GOOD.bits()
            } else {
                OlFlags::RX_L4_CSUM_BAD.bits()
            };
        }
        table[index] = flags | (kind as u32) << 24;
        index += 1;
    }
    table
}

impl RxRing {
    /// Receives packets into the free room of `out`; returns how many.
    #[inline]
    pub(crate) fn burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        if self.ring.log_segments() != 0 || self.mini.is_active() {
            return self.burst_slowly(out);
        }
        let (cqes, last_mask, headroom) = (self.cq.ring.view(), self.last_mask, self.headroom);
        let mut cq_ci = self.cq.ci;
        let mut received = 0;
        let mut bytes = 0u64;
        let mut stop = Stop::Full;
        loop {
            // As far as the owner bit stays the same.
            let lap = self.cq.left_of_lap(cq_ci);
            let counter = self.ring.ci.wrapping_add(received as u32);
            let mut wanted =
                Cqe64::WQE_COUNTER.of(counter) | RESPONDER_SEND | self.cq.owner_at(cq_ci);
            let count = self.elts.pop_while(out, lap, |mbuf| {
                let cqe = cqes.at(cq_ci);
                let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
                if (last ^ wanted) & last_mask != 0 {
                    stop = Stop::Odd(last);
                    return false;
                }
                let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
                if !mbuf.start_rx(headroom, len) {
                    stop = Stop::TooLong(len);
                    return false;
                }
                describe(mbuf, &cqe);
                bytes += u64::from(len);
                cq_ci = cq_ci.wrapping_add(1);
                wanted = wanted.wrapping_add(Cqe64::WQE_COUNTER.of(1));
                true
            });
            received += count;
            if count == 0 || !matches!(stop, Stop::Full) {
                break;
            }
        }
        if received != 0 {
            self.ring.ci = self.ring.ci.wrapping_add(received as u32);
            self.cq.ci = cq_ci;
            self.stats.packets += received as u64;
            self.stats.bytes += bytes;
            self.cq.tell();
        }
        match stop {
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
            Stop::Odd(last) if (last ^ self.cq.owner_at(cq_ci)) & 1 != 0 => {}
            Stop::Odd(last) if last & INVALID_OPCODE == INVALID_OPCODE => {}
            Stop::Odd(last) => return received + self.look_closer(last, out),
            Stop::TooLong(len) => self.too_long(len),
        }
        self.refill();
        received
    }

    /// Receives one packet without what a burst sets up for many.
    #[inline]
    pub(crate) fn one(&mut self) -> Option<Mbuf> {
        let cqe = self.cq.ring.at(self.cq.ci);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        let wanted =
            Cqe64::WQE_COUNTER.of(self.ring.ci) | RESPONDER_SEND | self.cq.owner_at(self.cq.ci);
        let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        let is_plain = (last ^ wanted) & self.last_mask == 0
            && self.ring.log_segments() == 0
            && !self.mini.is_active()
            && len <= self.room_bytes
            && !self.elts.is_empty();
        if !is_plain {
            return self.one_of_a_burst();
        }
        let mut mbuf = self.elts.pop()?;
        let fits = mbuf.start_rx(self.headroom, len);
        debug_assert!(fits, "no longer than a buffer");
        describe(&mut mbuf, &cqe);
        self.cq.ci = self.cq.ci.wrapping_add(1);
        self.ring.ci = self.ring.ci.wrapping_add(1);
        self.stats.packets += 1;
        self.stats.bytes += u64::from(len);
        // The device needs to know of free completions no sooner than of buffers.
        if self.ring.missing() as usize >= REFILL {
            self.tell_and_refill();
        }
        Some(mbuf)
    }

    /// Apart from what happens for each packet, which then saves no registers.
    #[inline(never)]
    fn tell_and_refill(&mut self) {
        self.cq.tell();
        self.refill();
    }

    /// The next packet, if there is one, of whatever kind.
    #[inline(never)]
    fn one_of_a_burst(&mut self) -> Option<Mbuf> {
        let mut out = ArrayVec::<Mbuf, 1>::new();
        self.burst(&mut out);
        out.pop()
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
        let (wqes, offset) = (self.ring.view(), self.post_offset);
        let mut pi = self.ring.pi;
        let posted = self.elts.fill(&mut self.cache, n, |room_iova| {
            wqes.at(pi).store_be64::<{ Data::ADDR.offset }>(room_iova.wrapping_add(offset));
            pi = pi.wrapping_add(1);
        });
        self.ring.pi = pi;
        posted
    }
}

/// Why a burst ended.
enum Stop {
    /// No room in the vector, or no buffer in the ring.
    Full,
    /// A completion that is not the expected one; its last dword.
    Odd(u32),
    /// A completion with this many bytes.
    TooLong(u32),
}

/// Stores what a completion says about its packet, field by field.
#[inline(always)]
fn describe(mbuf: &mut Mbuf, cqe: &Slot<'_, 64>) {
    let word = cqe.load_be32::<{ Cqe64::VLAN_INFO.offset }>();
    mbuf.set_vlan_tci(word as u16);
    let known = FLAGS[(word >> 16) as usize & 0x7ff];
    mbuf.set_rss_hash(cqe.load_be32::<{ Cqe64::RX_HASH_RESULT.offset }>());
    mbuf.set_flow_mark(
        cqe.load_be32::<{ Cqe64::SOP_DROP_QPN.offset }>() & Cqe64::SOP_DROP_QPN.mask(),
    );
    let hashed = u32::from(cqe.load_raw32::<{ Cqe64::RX_HASH_L4.offset }>() & HASHED.to_be() != 0);
    let flags = (known & 0x00ff_ffff) | (hashed * OlFlags::RX_RSS_HASH.bits());
    mbuf.set_rx_flags(OlFlags::from_bits_retain(flags), PacketType((known >> 24) as u8));
}

/// What a completion says about its packet.
fn meta(cqe: &Slot<'_, 64>) -> RxMeta {
    let word = cqe.load_be32::<{ Cqe64::VLAN_INFO.offset }>();
    let known = FLAGS[(word >> 16) as usize & 0x7ff];
    let mut flags = OlFlags::from_bits_retain(known & 0x00ff_ffff);
    flags.set(OlFlags::RX_RSS_HASH, cqe.load_be32::<{ Cqe64::RX_HASH_L4.offset }>() & HASHED != 0);
    RxMeta {
        flags,
        rss_hash: cqe.load_be32::<{ Cqe64::RX_HASH_RESULT.offset }>(),
        flow_mark: cqe.load_be32::<{ Cqe64::SOP_DROP_QPN.offset }>() & Cqe64::SOP_DROP_QPN.mask(),
        vlan_tci: word as u16,
        packet_type: PacketType((known >> 24) as u8),
    }
}

impl RxQueue {
    /// Makes a receive queue, filled with buffers of `pool`, that no traffic is steered to yet; see
    /// [`Rss::new`](crate::Rss::new).
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] for a setting out of range, [`DeviceError::PoolNotRegistered`],
    /// [`DeviceError::PoolTooSmall`], or what the device refused.
    #[doc(alias = "rte_eth_rx_queue_setup")]
    pub fn new(device: &Device, pool: &Pool, config: &RxQueueConfig) -> Result<Self, DeviceError> {
        let keys = device.region_keys(pool)?;
        let shape = Shape::of(device, pool, config)?;
        if config.cqe_compression && !device.limits().cqe_compression {
            let way_out = "set RxQueueConfig::cqe_compression to false";
            return Err(ConfigError::Unsupported { what: "CQE compression", way_out }.into());
        }
        let mut wake = config.interrupt.map(|vector| Wake::new(device, vector)).transpose()?;
        let eq = wake.as_ref().map(Wake::handle);
        let attr = CqAttr {
            log_size: shape.log_size,
            compression: config.cqe_compression,
            events: eq.as_ref(),
        };
        let (cq, cq_handle) = CqRing::new(device, &attr)?;
        if let Some(wake) = &mut wake {
            wake.watch(&cq, &cq_handle)?;
        }
        let split = config.split.as_ref();
        let split = split.map(|split| shape::Split::of(device, split, config.cache_size));
        let attr = RqAttr {
            pd: device.pdn(),
            rlky: device.uses_reserved_lkey(),
            keeps_vlan: !config.vlan_strip,
            cqn: cq_handle.number(),
            user_index: 0,
            log_entries: shape.log_size,
            log_segments: shape.log_segs,
        };
        let (ring, rq) = RecvRing::create(device, &attr)?;
        let headroom = pool.headroom_bytes() as u16;
        let split = split.transpose()?;
        let shapes = SegmentShape::both(pool, keys.lkey_be, split.as_deref());
        let log_minis = shape.log_size + (Cqe64::SIZE_BYTES / MiniCqe::SIZE_BYTES).ilog2() as u8;
        let minis =
            Ring::new(Arc::clone(cq.ring.buf()), 0, log_minis).map_err(DeviceError::from)?;
        let mut hot = RxRing {
            cq,
            elts: MbufFifo::new(pool, 1 << (shape.log_size + shape.log_segs)),
            headroom,
            last_mask: Cqe64::WQE_COUNTER.of(ring.entries() - 1) | OP_OWN_MASK,
            ring,
            post_offset: keys.stamp_to_iova.wrapping_add(headroom.into()),
            cache: pool.cache_with_size(config.cache_size),
            stats: RxStats::default(),
            mini: slow::Mini::default(),
            minis,
            shapes,
            room_bytes: shapes[0].room + shapes[1].room * ((1 << shape.log_segs) - 1),
            split,
            _keys: keys,
        };
        hot.stamp();
        if hot.fill() < hot.elts.capacity() {
            return Err(hot.too_small());
        }
        let rq = Arc::new(rq.needing(&Arc::new(cq_handle)));
        let queue = Self { hot, rq, wake };
        queue.make_ready()?;
        Ok(queue)
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
    /// RSS hash, mark and VLAN tag. Buffers are posted again in the same call. It allocates
    /// nothing, takes no lock and makes no system call. After a fault it returns 0: see
    /// [`RxQueue::stats`] and [`RxQueue::reset`].
    #[inline]
    pub fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        self.hot.burst(out)
    }

    /// Takes the next received packet, if there is one: [`RxQueue::rx_burst`] for a core that acts
    /// on each packet as it comes.
    #[inline]
    pub fn rx_one(&mut self) -> Option<Mbuf> {
        self.hot.one()
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
        self.hot.stats
    }

    /// Why the queue stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<QueueFault> {
        self.hot.stats.fault
    }

    /// Packets that the ring holds.
    #[must_use]
    pub fn descriptors(&self) -> u32 {
        self.hot.ring.entries()
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

    /// Stops the queue, takes its buffers back, and destroys it.
    ///
    /// # Errors
    ///
    /// The queue comes back if flow rules or an [`crate::Rss`] still lead to it, or with what the
    /// device refused.
    pub fn destroy(mut self) -> Result<(), Destroy<Self>> {
        let handles = Arc::strong_count(&self.rq) - 1;
        let done = match Arc::get_mut(&mut self.rq) {
            Some(rq) => rq.stop_queue().and_then(|()| rq.destroy()).map_err(DeviceError::from),
            None => Err(DeviceError::InUse { handles }),
        };
        done.map_err(|cause| Destroy { object: Box::new(self), cause })
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        if let Err(error) = self.rq.stop_queue() {
            tracing::error!(rqn = self.rq.number(), %error, "receive queue not stopped");
            self.hot.leak();
        }
    }
}
