//! The rare paths of receiving: scattered frames, faults, refilling from a pool that runs dry.

use arrayvec::ArrayVec;
use ferrocx_core::{Odd, QueueFault};
use ferrocx_mempool::{Mbuf, OlFlags, PoolCache, RxMeta};
use ferrocx_prm::cqe::Cqe64;
use ferrocx_prm::wqe::Data;

use super::compressed::Mini;
use super::meta::meta;
use super::shape::SegmentShape;
use super::{Kind, REFILL, RESPONDER_SEND, RxRing};
use crate::config::RxQueueConfig;

/// Most buffers of a work request.
const MAX_SEGS: usize = RxQueueConfig::MAX_SEGMENTS as usize;

impl RxRing {
    /// Looks at a completion that is not the expected one, of a queue that was made for no other.
    #[cold]
    #[inline(never)]
    pub(super) fn look_closer(&mut self, last: u32) {
        match self.cq.odd(last, self.ring.ci as u16) {
            // Nobody asked for them.
            Odd::Compressed => self.stop(QueueFault::COMPRESSED),
            Odd::Fault(fault) => self.stop(fault),
            Odd::Empty => {}
        }
    }

    /// Stops the queue for good, until it is reset.
    #[cold]
    pub(super) fn stop(&mut self, fault: QueueFault) {
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

    /// Receives scattered and split packets.
    #[inline(never)]
    pub(super) fn burst_scattered<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let before = out.len();
        let mut bytes = 0;
        while out.len() < N && self.stats.fault.is_none() {
            let Some((len, meta, ticks)) = self.next_completion() else { break };
            let Some(mut mbuf) = self.take_packet(len, meta) else { continue };
            if self.is_stamped {
                mbuf.set_rx_timestamp(ticks);
            }
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

    /// Length, metadata and timestamp of the next completion, which is consumed.
    fn next_completion(&mut self) -> Option<(u32, RxMeta, u64)> {
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
                let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
                let found = (len, meta(&cqe), cqe.load_be64::<{ Cqe64::TIMESTAMP.offset }>());
                self.cq.ci = self.cq.ci.wrapping_add(1);
                return Some(found);
            }
            if !self.take_title(last, self.ring.ci as u16, self.ring.outstanding()) {
                return None;
            }
        }
        let (hash, len, meta) = self.next_mini();
        let has_hash = meta.flags.contains(OlFlags::RX_RSS_HASH);
        Some((len, RxMeta { rss_hash: if has_hash { hash } else { 0 }, ..meta }, 0))
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
        let (log_segs, headroom) = (self.ring.log_segments(), u64::from(self.shapes[0].headroom));
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

    /// Puts buffers into every slot; whether all have one.
    pub(crate) fn fill(&mut self) -> bool {
        if self.kind == Kind::Striding {
            return self.fill_strides();
        }
        self.refill_segments();
        self.ring.missing() == 0
    }

    /// Tells the device what is posted.
    pub(crate) fn announce(&self) {
        self.cq.tell();
        self.ring.tell();
    }

    /// After the device's queue went through RST: counts from 0, with fresh buffers.
    pub(super) fn restart(&mut self) {
        self.end_line();
        self.cq.drain();
        self.ring.restart();
        self.mini = Mini::default();
        self.stats.fault = None;
        self.stats.resets += 1;
        self.elts.free(self.elts.len(), &mut self.cache);
        if let Some(strides) = &mut self.strides {
            strides.restart();
        }
        self.fill();
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.elts.leak();
        if let Some(strides) = &mut self.strides {
            strides.leak();
        }
        std::mem::forget(self._keys.clone());
        std::mem::forget(self.split.as_ref().map(|split| split.keys.clone()));
    }
}
