//! The rare paths of receiving: scattered frames, faults, refilling from a pool that runs dry.

use arrayvec::ArrayVec;
use ferrocx_core::{QueueFault, Undelivered, Unexpected};
use ferrocx_mempool::{Mbuf, OlFlags, RxMeta};
use ferrocx_prm::cqe::Cqe64;
use ferrocx_prm::wqe::Data;

use super::compressed::Mini;
use super::meta::{describe, stamp};
use super::shape::SegmentShape;
use super::strides::Strides;
use super::{Kind, REFILL, RxRing};

impl RxRing {
    /// Looks at a completion that is not the expected one, of a queue that was made for no other.
    #[cold]
    #[inline(never)]
    pub(super) fn look_closer(&mut self, last: u32) {
        match self.cq.unexpected(last, self.ring.ci as u16) {
            // Nobody asked for them.
            Unexpected::Compressed => self.stop(QueueFault::COMPRESSED),
            Unexpected::Undelivered(packets) => {
                self.pass_over(packets, self.ring.outstanding(), None);
            }
            Unexpected::Fault(fault) => self.stop(fault),
            Unexpected::Empty => {}
        }
    }

    /// Passes over packets that the device could not deliver, at most `most` of them; the buffers
    /// of their work requests are posted again. `strides` are those of a striding queue.
    #[cold]
    #[inline(never)]
    pub(super) fn pass_over(
        &mut self,
        packets: Undelivered,
        most: u32,
        mut strides: Option<&mut Strides>,
    ) {
        let Undelivered { wqe_counter, byte_cnt, is_block } = packets;
        let expected = self.ring.ci as u16;
        // Of a striding queue a completion names a stride, or the request: sources differ.
        if strides.is_none() && wqe_counter != expected {
            self.stop(QueueFault::WrongIndex { expected, got: wqe_counter });
        } else if !is_block {
            self.pass_one(byte_cnt, strides);
            self.cq.ci = self.cq.ci.wrapping_add(1);
        } else if self.open_block(most) {
            while self.mini.is_active() && self.stats.fault.is_none() {
                let (_, byte_cnt, _) = self.next_mini();
                self.pass_one(byte_cnt, strides.as_deref_mut());
            }
        }
        self.cq.tell();
    }

    /// Passes over one of them.
    fn pass_one(&mut self, byte_cnt: u32, strides: Option<&mut Strides>) {
        if let Some(strides) = strides {
            if let Err(fault) = strides.pass_over(byte_cnt, &mut self.ring) {
                return self.stop(fault);
            }
        } else {
            let packet = match self.split {
                Some(_) => self.take_packet::<true>(0),
                None => self.take_packet::<false>(0),
            };
            packet.into_iter().for_each(|packet| self.cache.put(packet));
        }
        self.stats.errors += 1;
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
        let expected = self.expected_at(self.ring.ci, self.cq.ci);
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
    pub(super) fn burst_scattered<const N: usize, const SPLIT: bool>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
    ) -> usize {
        let (before, ci) = (out.len(), self.cq.ci);
        let mut bytes = 0;
        while out.len() < N && self.stats.fault.is_none() {
            let Some((len, meta)) = self.next_completion() else { break };
            let Some(mut mbuf) = self.take_packet::<SPLIT>(len) else { continue };
            if let Some(meta) = meta {
                mbuf.set_meta(meta);
            } else {
                let cqe = self.cq.ring.at(self.cq.ci.wrapping_sub(1));
                describe(&mut mbuf, &cqe);
                if self.is_stamped {
                    stamp(&mut mbuf, &cqe);
                }
            }
            bytes += u64::from(len);
            out.push(mbuf);
        }
        let received = out.len() - before;
        self.stats.packets += received as u64;
        self.stats.bytes += bytes;
        if self.cq.ci != ci {
            self.cq.tell();
        }
        // When nothing comes there is time to post few.
        let missing = self.ring.missing() as usize;
        if missing >= REFILL || missing != 0 && received == 0 {
            self.refill_segments();
            self.ring.tell();
        }
        received
    }

    /// Length of the next packet, whose completion is consumed; and what a compressed one says
    /// about it. The other kind stands in front of the next one.
    #[inline(always)]
    fn next_completion(&mut self) -> Option<(u32, Option<RxMeta>)> {
        if !self.mini.is_active() {
            let cqe = self.cq.ring.at(self.cq.ci);
            let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            let expected = self.expected_at(self.ring.ci, self.cq.ci);
            let outstanding = self.ring.outstanding();
            if outstanding != 0 && (last ^ expected) & self.last_mask == 0 {
                let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
                self.cq.ci = self.cq.ci.wrapping_add(1);
                return Some((len, None));
            }
            // The usual end of a burst: the entry is still the device's.
            if outstanding != 0 && (last ^ expected) & Cqe64::OWNER.mask() != 0 {
                return None;
            }
        }
        self.next_rarely()
    }

    /// The next completion of a compressed block, or what is wrong.
    #[inline(never)]
    fn next_rarely(&mut self) -> Option<(u32, Option<RxMeta>)> {
        if !self.mini.is_active() {
            if self.ring.outstanding() == 0 {
                self.look_for_overrun();
                return None;
            }
            let cqe = self.cq.ring.at(self.cq.ci);
            let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            if !self.take_title(last, self.ring.ci as u16, self.ring.outstanding(), None) {
                return None;
            }
        }
        let (hash, len, meta) = self.next_mini();
        let has_hash = meta.flags.contains(OlFlags::RX_RSS_HASH);
        Some((len, Some(RxMeta { rss_hash: if has_hash { hash } else { 0 }, ..meta })))
    }

    /// Takes the packet of the next work request out of the ring, without what is known about it.
    /// Buffers that it did not need go back to the cache.
    #[inline(always)]
    fn take_packet<const SPLIT: bool>(&mut self, len: u32) -> Option<Mbuf> {
        if len > self.room_bytes {
            self.too_long(len);
            return None;
        }
        self.ring.ci = self.ring.ci.wrapping_add(1);
        let SegmentShape { headroom, room, .. } = self.shapes[0];
        let mut packet = self.elts.pop()?;
        let mut left = len.saturating_sub(room);
        // The parts were cut to fit.
        let fits = packet.init_rx(headroom, len - left, RxMeta::default());
        debug_assert!(fits);
        let (elts, cache) = match &mut self.split {
            Some(split) if SPLIT => (&mut split.elts, &mut split.cache),
            _ => (&mut self.elts, &mut self.cache),
        };
        let SegmentShape { headroom, room, .. } = self.shapes[1];
        for _ in 1..1 << self.ring.log_segments() {
            let mut mbuf = elts.pop()?;
            if left == 0 {
                cache.put(mbuf);
                continue;
            }
            let part = left.min(room);
            left -= part;
            let fits = mbuf.init_rx(headroom, part, RxMeta::default());
            debug_assert!(fits);
            // A chain of at most eight is never too long.
            drop(packet.chain(mbuf));
        }
        Some(packet)
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
            let posted = self.elts.fill(&mut self.cache, requests << log_segs, |room| {
                // Only the first buffer keeps its headroom free.
                let is_first = at & ((1 << log_segs) - 1) == 0;
                let address = (room as u64).wrapping_add(offset);
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

    /// Posts what a queue that splits has room for: headers for which there is payload.
    fn refill_split(&mut self) {
        let Some(split) = &mut self.split else { return };
        split.fill(&self.ring);
        let missing = self.ring.missing();
        let with_payload = (split.elts.len() / split.of_each) as u32 - self.ring.outstanding();
        let (wqes, offset, log_segs) =
            (self.ring.view(), self.post_offset, self.ring.log_segments());
        let (mut pi, end) = (self.ring.pi, self.ring.pi.wrapping_add(with_payload));
        let mut at_once = REFILL;
        while at_once != 0 && pi != end {
            let n = at_once.min(end.wrapping_sub(pi) as usize);
            let posted = self.elts.fill(&mut self.cache, n, |room| {
                let slot = wqes.at(pi << log_segs);
                slot.store_be64::<{ Data::ADDR.offset }>((room as u64).wrapping_add(offset));
                pi = pi.wrapping_add(1);
            });
            // Fewer than wanted: as many as there are, one by one.
            at_once = if posted != 0 { at_once } else { usize::from(at_once > 1) };
        }
        self.ring.pi = pi;
        self.stats.no_mbuf += u64::from(with_payload < missing || pi != end);
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
        if let Some(split) = &mut self.split {
            split.restart();
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
        if let Some(split) = &mut self.split {
            split.elts.leak();
        }
        std::mem::forget(self._keys.clone());
        std::mem::forget(self.split.as_ref().map(|split| split.keys.clone()));
    }
}
