//! The rare paths of receiving: scattered frames, compressed completions, faults, refilling from
//! a pool that runs dry.

use arrayvec::ArrayVec;
use ferrocx_bus::Slot;
use ferrocx_core::{Odd, QueueFault};
use ferrocx_mempool::{Mbuf, OlFlags, PoolCache, RxMeta};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, MINI_CQES_PER_ENTRY, MiniCqe};
use ferrocx_prm::wqe::Data;

use super::shape::SegmentShape;
use super::{REFILL, RESPONDER_SEND, RxRing, meta};
use crate::config::RxQueueConfig;

/// Most buffers of a work request.
const MAX_SEGS: usize = RxQueueConfig::MAX_SEGMENTS as usize;

/// Hash and length of a completion of a block whose title says `meta`.
#[inline(always)]
fn hash_and_len(mini: &Slot<'_, { MiniCqe::SIZE_BYTES }>, meta: RxMeta) -> (u32, u32) {
    let hash = mini.load_be32::<{ MiniCqe::RX_HASH_RESULT.offset }>();
    let has_hash = meta.flags.contains(OlFlags::RX_RSS_HASH);
    (if has_hash { hash } else { 0 }, mini.load_be32::<{ MiniCqe::BYTE_CNT.offset }>())
}

/// A compressed block that is being read.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mini {
    /// Completions of the block, and how many of them were read.
    count: u32,
    done: u32,
    /// What the title says about all of them.
    meta: RxMeta,
}

impl Mini {
    /// Whether completions of a block are left.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        self.done != self.count
    }
}

impl RxRing {
    /// Looks at a completion that is not the expected one; goes on with the burst if it can.
    #[cold]
    #[inline(never)]
    pub(super) fn look_closer<const N: usize>(
        &mut self,
        last: u32,
        out: &mut ArrayVec<Mbuf, N>,
    ) -> usize {
        match self.cq.odd(last, self.ring.ci as u16) {
            Odd::Compressed => return self.burst_slowly(out),
            Odd::Fault(fault) => self.stop(fault),
            Odd::Empty => {}
        }
        self.refill();
        0
    }

    /// Stops the queue for good, until it is reset.
    #[cold]
    fn stop(&mut self, fault: QueueFault) {
        if self.stats.fault.is_none() {
            self.stats.errors += 1;
            self.stats.fault = Some(fault);
        }
    }

    /// A completion although no buffer is posted: the device is out of step.
    #[cold]
    #[inline(never)]
    pub(super) fn look_for_overrun(&mut self) {
        let last = self.cq.ring.at(self.cq.ci).load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        let expected =
            Cqe64::WQE_COUNTER.of(self.ring.ci) | RESPONDER_SEND | self.cq.owner_at(self.cq.ci);
        if (last ^ expected) & self.last_mask == 0 {
            let counter = self.ring.pi as u16;
            self.stop(QueueFault::WrongIndex { expected: counter, got: counter });
        }
    }

    /// A completion with more bytes than the buffers have.
    #[cold]
    #[inline(never)]
    pub(super) fn too_long(&mut self, len_bytes: u32) {
        let room_bytes = self.room_bytes;
        self.stop(QueueFault::TooLong { len_bytes, room_bytes });
    }

    /// Receives scattered and split packets, and those of compressed blocks.
    #[inline(never)]
    pub(super) fn burst_slowly<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let before = out.len();
        let is_single = self.ring.log_segments() == 0;
        let mut bytes = 0;
        while out.len() < N && self.stats.fault.is_none() {
            if is_single && self.mini.is_active() {
                if self.take_block(out) == 0 {
                    break;
                }
                continue;
            }
            let Some((len, meta)) = self.next_completion() else { break };
            // A title, whose packets are to be taken together.
            let Some(len) = len else { continue };
            let Some(mbuf) = self.take_packet(len, meta) else { continue };
            bytes += u64::from(len);
            out.push(mbuf);
        }
        let received = out.len() - before;
        self.stats.packets += received as u64;
        self.stats.bytes += bytes;
        self.cq.tell();
        self.refill_segments();
        self.ring.tell();
        received
    }

    /// Moves packets of the open block to `out`, as far as its next array goes; returns how many.
    /// One buffer a packet.
    fn take_block<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let Mini { count, done, meta } = self.mini;
        let (headroom, minis) = (self.headroom, self.minis.view());
        let mut at = self.place_of_mini();
        let (mut bytes, mut too_long) = (0, None);
        let most = (MINI_CQES_PER_ENTRY - done % MINI_CQES_PER_ENTRY).min(count - done);
        let taken = self.elts.pop_while(out, most as usize, |mbuf| {
            let (rss_hash, len) = hash_and_len(&minis.at_byte(at), meta);
            if !mbuf.init_rx(headroom, len, RxMeta { rss_hash, ..meta }) {
                too_long = Some(len);
                return false;
            }
            at = at.wrapping_add(MiniCqe::SIZE_BYTES as u32);
            bytes += u64::from(len);
            true
        });
        self.ring.ci = self.ring.ci.wrapping_add(taken as u32);
        self.stats.bytes += bytes;
        self.mini_done(taken as u32);
        if let Some(len) = too_long {
            self.too_long(len);
        }
        taken
    }

    /// Place of the next completion of the open block, in bytes from the start of the ring.
    fn place_of_mini(&self) -> u32 {
        let (array, place) =
            (self.mini.done / MINI_CQES_PER_ENTRY, self.mini.done % MINI_CQES_PER_ENTRY);
        // The first array stands behind the title, the others at multiples of eight from it.
        let entry = if array == 0 { 1 } else { array * MINI_CQES_PER_ENTRY };
        let entry = self.cq.ci.wrapping_add(entry).wrapping_mul(Cqe64::SIZE_BYTES as u32);
        entry.wrapping_add(place * MiniCqe::SIZE_BYTES as u32)
    }

    /// Counts completions of the open block that were read; closes it behind the last.
    fn mini_done(&mut self, count: u32) {
        self.mini.done += count;
        if count != 0 && !self.mini.is_active() {
            self.cq.skip_block(self.mini.count);
        }
    }

    /// Length and metadata of the next completion, which is consumed; no length if it is the
    /// title of a block of single buffers.
    fn next_completion(&mut self) -> Option<(Option<u32>, RxMeta)> {
        if !self.mini.is_active() {
            if self.ring.outstanding() == 0 {
                self.look_for_overrun();
                return None;
            }
            let cqe = self.cq.ring.at(self.cq.ci);
            let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            let expected =
                Cqe64::WQE_COUNTER.of(self.ring.ci) | RESPONDER_SEND | self.cq.owner_at(self.cq.ci);
            if (last ^ expected) & self.last_mask == 0 {
                let found = (Some(cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>()), meta(&cqe));
                self.cq.ci = self.cq.ci.wrapping_add(1);
                return Some(found);
            }
            match self.cq.odd(last, self.ring.ci as u16) {
                Odd::Empty => return None,
                Odd::Fault(fault) => {
                    self.stop(fault);
                    return None;
                }
                Odd::Compressed => self.open_block()?,
            }
        }
        let meta = self.mini.meta;
        if self.ring.log_segments() == 0 {
            return Some((None, meta));
        }
        let at = self.place_of_mini();
        let (rss_hash, len) = hash_and_len(&self.minis.view().at_byte(at), meta);
        self.mini_done(1);
        Some((Some(len), RxMeta { rss_hash, ..meta }))
    }

    /// Reads the title of a compressed block.
    fn open_block(&mut self) -> Option<()> {
        let title = self.cq.ring.at(self.cq.ci);
        let count = title.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        // A block cannot be longer than what was posted.
        if count == 0 || count > self.ring.outstanding() {
            self.stop(QueueFault::BadCqe { opcode: 2, format: 3 });
            return None;
        }
        self.mini = Mini { count, done: 0, meta: meta(&title) };
        Some(())
    }

    /// Takes the packet of the next work request out of the ring. Buffers that it did not need go
    /// back to the cache.
    fn take_packet(&mut self, len: u32, meta: RxMeta) -> Option<Mbuf> {
        if len > self.room_bytes {
            self.too_long(len);
            return None;
        }
        self.ring.ci = self.ring.ci.wrapping_add(1);
        let mut packet: Option<Mbuf> = None;
        let mut left = len;
        for segment in 0..1 << self.ring.log_segments() {
            let mut mbuf = self.elts.pop()?;
            let SegmentShape { headroom, room, .. } = self.shapes[usize::from(segment != 0)];
            let meta = if segment == 0 { meta } else { RxMeta::default() };
            let part = left.min(room);
            if part == 0 && segment != 0 {
                self.payload_cache().put(mbuf);
                continue;
            }
            // The parts were cut to fit.
            let fits = mbuf.init_rx(headroom, part, meta);
            debug_assert!(fits);
            left -= part;
            match &mut packet {
                None => packet = Some(mbuf),
                // A chain of at most eight is never too long.
                Some(packet) => drop(packet.chain(mbuf)),
            }
        }
        packet
    }

    /// The stock of the buffers behind the first of a work request.
    fn payload_cache(&mut self) -> &mut PoolCache {
        self.split.as_mut().map_or(&mut self.cache, |split| &mut split.cache)
    }

    /// Posts whole work requests, as far as the pools have buffers.
    fn refill_segments(&mut self) {
        if self.split.is_some() {
            return self.refill_split();
        }
        let offset = self.post_offset;
        let (log_segs, headroom) = (self.ring.log_segments(), u64::from(self.headroom));
        let mut is_scarce = false;
        while self.ring.missing() > 0 {
            let requests = if is_scarce { 1 } else { (self.ring.missing() as usize).min(REFILL) };
            let (wqes, mut at) = (self.ring.view(), self.ring.pi << log_segs);
            let posted = self.elts.fill(&mut self.cache, requests << log_segs, |room_iova| {
                // Only the first buffer keeps its headroom free.
                let is_first = at & ((1 << log_segs) - 1) == 0;
                let address = room_iova.wrapping_add(offset);
                let address = if is_first { address } else { address.wrapping_sub(headroom) };
                wqes.at(at).store_be64::<{ Data::ADDR.offset }>(address);
                at = at.wrapping_add(1);
            });
            if posted == 0 && is_scarce {
                self.stats.no_mbuf += 1;
                return;
            }
            // Fewer than wanted: as many as there are, one by one.
            is_scarce |= posted == 0;
            self.ring.pi = self.ring.pi.wrapping_add((posted >> log_segs) as u32);
        }
    }

    /// The same for a queue that splits: a header and payload buffers, or none of them.
    fn refill_split(&mut self) {
        let segs = 1usize << self.ring.log_segments();
        while self.ring.missing() > 0 {
            let Some(split) = &mut self.split else { return };
            let mut mbufs = ArrayVec::<Mbuf, MAX_SEGS>::new();
            let has_all = self.cache.get_raw_bulk(&mut mbufs, 1)
                && split.cache.get_raw_bulk(&mut mbufs, segs - 1);
            if !has_all {
                self.cache.put_bulk(&mut mbufs);
                self.stats.no_mbuf += 1;
                return;
            }
            let first = self.ring.pi.wrapping_mul(segs as u32);
            let mut offset = self.post_offset;
            for (at, mbuf) in mbufs.into_iter().enumerate() {
                let address = mbuf.room_iova().wrapping_add(offset);
                self.ring
                    .view()
                    .at(first.wrapping_add(at as u32))
                    .store_be64::<{ Data::ADDR.offset }>(address);
                offset = split.post_offset;
                if let Err(mbuf) = self.elts.push(mbuf) {
                    unreachable!("room for every buffer of the ring: {mbuf:?}");
                }
            }
            self.ring.pi = self.ring.pi.wrapping_add(1);
        }
    }

    /// The pool has fewer buffers than a whole refill: takes what there is.
    #[cold]
    #[inline(never)]
    pub(super) fn refill_from_rest(&mut self) {
        self.stats.no_mbuf += 1;
        for _ in 0..REFILL {
            if self.post(1) == 0 {
                break;
            }
        }
    }

    /// Puts buffers into every slot; returns how many slots have one.
    pub(crate) fn fill(&mut self) -> usize {
        self.refill_segments();
        self.elts.len()
    }

    /// Tells the device what is posted.
    pub(crate) fn announce(&self) {
        self.cq.tell();
        self.ring.tell();
    }

    /// After the device's queue went through RST: counts from 0, with fresh buffers.
    pub(super) fn restart(&mut self) {
        self.cq.drain();
        self.ring.restart();
        self.mini = Mini::default();
        self.stats.fault = None;
        self.stats.resets += 1;
        self.elts.free(self.elts.len(), &mut self.cache);
        self.fill();
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.elts.leak();
        std::mem::forget(self._keys.clone());
        std::mem::forget(self.split.as_ref().map(|split| split.keys.clone()));
    }
}
