//! Packets that take several buffers of a work request, or may: long frames, and queues that split.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Arrivals, Mbuf, OlFlags, RxMeta};
use ferrocx_prm::cqe::Cqe64;
use ferrocx_prm::wqe::Data;

use super::completions::Completions;
use super::meta::{describe, stamp};
use super::shape::SegmentShape;
use super::tails::Tails;
use super::{REFILL, RxRing};

/// Completions of packets, one after the other, to which the buffers behind the first are added.
struct Run<'r, const STAMPED: bool> {
    all: Completions<'r, STAMPED>,
    tails: &'r mut Tails,
    /// The request that the next packet is in.
    request: u32,
    shapes: [SegmentShape; 2],
    room_bytes: u32,
    /// Bytes of the packet that was found which do not fit its first buffer.
    rest: u32,
}

impl<const STAMPED: bool> Arrivals for Run<'_, STAMPED> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let len = self.all.next()?;
        if len > self.room_bytes {
            self.too_long(len);
            return None;
        }
        let first = len.min(self.shapes[0].room);
        self.rest = len - first;
        Some(first)
    }

    #[inline(always)]
    fn too_long(&mut self, len: u32) {
        self.all.too_long(len);
    }

    #[inline(always)]
    fn describe(&mut self, mbuf: &mut Mbuf) {
        if self.rest != 0 {
            self.tails.append(mbuf, self.request, (self.rest, self.shapes[1].room));
        }
        self.request = self.request.wrapping_add(1);
        self.all.describe(mbuf);
    }
}

impl RxRing {
    /// Receives scattered and split packets.
    #[inline(never)]
    pub(super) fn burst_scattered<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let (before, ci) = (out.len(), self.cq.ci);
        let mut bytes = 0;
        while out.len() < N && self.stats.fault.is_none() {
            let Some((len, meta)) = self.next_completion() else { break };
            let Some(mut mbuf) = self.take_packet(len) else { continue };
            bytes += u64::from(len);
            if let Some(meta) = meta {
                mbuf.set_meta(meta);
                out.push(mbuf);
                continue;
            }
            let cqe = self.cq.ring.at(self.cq.ci.wrapping_sub(1));
            describe(&mut mbuf, &cqe);
            if self.is_stamped {
                stamp(&mut mbuf, &cqe);
            }
            out.push(mbuf);
            bytes += match self.is_stamped {
                true => self.take_scattered::<N, true>(out),
                false => self.take_scattered::<N, false>(out),
            };
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
            self.post_all();
            self.ring.tell();
        }
        received
    }

    /// Takes the packets behind one whose completion was not compressed, as long as theirs are not
    /// either, and as far as a lap of the completion queue and the array of first buffers go;
    /// returns their bytes. Whatever else there is, the next look tells.
    #[inline(always)]
    fn take_scattered<const N: usize, const STAMPED: bool>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
    ) -> u64 {
        let lap = self.cq.left_of_lap(self.cq.ci);
        let wanted = self.expected_at(self.ring.ci, self.cq.ci);
        let Some(tails) = &mut self.tails else { return 0 };
        let mut all = Completions::<STAMPED>::of(self.cq.ring.view(), self.cq.ci, self.last_mask);
        all.wanted = wanted;
        let (request, shapes, room_bytes) = (self.ring.ci, self.shapes, self.room_bytes);
        let mut run = Run { all, tails, request, shapes, room_bytes, rest: 0 };
        let taken = self.elts.pop_filled(out, lap, &mut run) as u32;
        let bytes = run.all.bytes;
        self.ring.ci = self.ring.ci.wrapping_add(taken);
        self.cq.ci = self.cq.ci.wrapping_add(taken);
        bytes
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
    /// Buffers that it did not need stay there, for the request that comes to the same place.
    #[inline(always)]
    pub(super) fn take_packet(&mut self, len: u32) -> Option<Mbuf> {
        if len > self.room_bytes {
            self.too_long(len);
            return None;
        }
        let request = self.ring.ci;
        self.ring.ci = request.wrapping_add(1);
        let SegmentShape { headroom, room, .. } = self.shapes[0];
        let mut packet = self.elts.pop()?;
        let left = len.saturating_sub(room);
        // The parts were cut to fit.
        let fits = packet.reset_rx(headroom, len - left);
        debug_assert!(fits);
        if left != 0 {
            self.tails.as_mut()?.append(&mut packet, request, (left, self.shapes[1].room));
        }
        Some(packet)
    }

    /// Posts whole work requests, as far as the pools have buffers.
    pub(super) fn post_all(&mut self) {
        let end = self.ring.ci.wrapping_add(self.ring.entries());
        let whole = match &mut self.tails {
            Some(tails) => {
                tails.fill(&mut self.cache, &self.ring, (end, REFILL));
                tails.ready
            }
            None => end,
        };
        self.post_until(whole);
        if self.ring.pi != end {
            self.post_scarcely(end);
        }
    }

    /// Posts the requests in front of `end`, whose other buffers are there, as far as the pool has
    /// first ones.
    #[inline(always)]
    fn post_until(&mut self, end: u32) {
        let (segments, offset, log_segments) =
            (self.ring.view(), self.post_offset, self.ring.log_segments());
        let mut pi = self.ring.pi;
        let mut at_once = REFILL;
        while at_once != 0 && pi != end {
            let n = at_once.min(end.wrapping_sub(pi) as usize);
            let posted = self.elts.fill(&mut self.cache, n, |room| {
                let address = (room as u64).wrapping_add(offset);
                segments.at(pi << log_segments).store_be64::<{ Data::ADDR.offset }>(address);
                pi = pi.wrapping_add(1);
            });
            // Fewer than wanted: as many as there are, one by one.
            at_once = if posted != 0 { at_once } else { usize::from(at_once > 1) };
        }
        self.ring.pi = pi;
    }

    /// A pool has too few buffers for the requests in front of `end`: what lies unused in the ring
    /// goes into as many of them as it is enough for.
    #[cold]
    #[inline(never)]
    fn post_scarcely(&mut self, end: u32) {
        // That is of no use to a queue that splits and lacks headers.
        let is_split = |tails: &Tails| tails.payload.is_some();
        if let Some(tails) = &mut self.tails
            && (tails.ready == self.ring.pi || !is_split(tails))
        {
            tails.sweep(&mut self.cache, &self.ring);
            while self.ring.pi != end {
                let Some(tails) = &mut self.tails else { break };
                let next = self.ring.pi.wrapping_add(1);
                tails.fill(&mut self.cache, &self.ring, (next, 1));
                let whole = tails.ready;
                self.post_until(whole);
                if self.ring.pi != next {
                    break;
                }
            }
        }
        self.stats.no_mbuf += u64::from(self.ring.pi != end);
    }
}
