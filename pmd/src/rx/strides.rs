//! Striding queues: large buffers that the device cuts into strides, many packets to a buffer.
//!
//! A work request is a link, which a ring in order leaves zero, and a data segment: the shape that
//! DPDK and rdma-core post. The device fills the buffers in order and each from its start, so the
//! stride that a completion names must be the next one; a device that says otherwise has lost its
//! way. Completions that hold no packet, fillers, skip the strides at a buffer's end that were too
//! few for the next packet.
//!
//! Packets of up to [`Striding::copy_bytes`](crate::Striding) are copied into buffers of the
//! queue's pool; longer ones take their strides as their data room, and count on the large buffer
//! until they are freed: [`Sliced`]. Once all strides of one are used up, its work request is done,
//! and another large buffer takes its place.
//!
//! Source: reference 5.6, 6.5, and 6.7, `byte_cnt`.

use std::mem::ManuallyDrop;

use arrayvec::ArrayVec;
use ferrocx_bus::{RingView, Slot};
use ferrocx_core::wq::{RecvRing, put_data};
use ferrocx_core::{ConfigError, Device, DeviceError, QueueFault, RegionKeys};
use ferrocx_mempool::{
    Arrivals, Copier, Mbuf, MbufFifo, OlFlags, Part, Pool, PoolCache, RxMeta, Sliced,
};
use ferrocx_prm::Layout;
use ferrocx_prm::cqe::{Cqe64, striding};
use ferrocx_prm::wqe::Data;

use super::meta::{describe, stamp};
use super::{REFILL, RxRing};
use crate::config::Striding;

/// What the work requests look like.
pub(super) const SHAPE: ferrocx_core::wq::Strides = ferrocx_core::wq::Strides {
    log_count: Striding::LOG_STRIDES,
    log_bytes: Striding::LOG_STRIDE_BYTES,
};
/// Units of a work request, log2: a link and a data segment.
pub(super) const LOG_UNITS: u8 = 1;
/// Buffers of the queue's pool that are kept at hand.
pub(super) const AT_HAND: usize = 2 * REFILL;

/// The large buffers of a queue.
pub(super) struct Strides {
    /// Posted and not begun, in order.
    buffers: MbufFifo,
    /// The one that the device fills, and the next stride in it.
    open: Option<Sliced>,
    next: u32,
    copy_bytes: u32,
    headroom: u16,
    cache: PoolCache,
    /// Where they lie for the device. Keeps their region mapped.
    keys: RegionKeys,
}

/// What a completion says about strides.
#[derive(Clone, Copy)]
struct Used(u32);

impl Used {
    #[inline(always)]
    fn is_filler(self) -> bool {
        striding::FILLER.get(self.0) != 0
    }

    /// Bytes of the strides. With the bit of a filler they are more than any buffer has.
    #[inline(always)]
    fn room_or_filler(self) -> u32 {
        (self.0 >> striding::STRIDES.shift()) * Striding::STRIDE_BYTES
    }

    #[inline(always)]
    fn strides(self) -> u32 {
        striding::STRIDES.get(self.0)
    }

    #[inline(always)]
    fn bytes(self) -> u32 {
        striding::BYTES.get(self.0)
    }
}

/// What became of a completion.
enum Placed {
    /// The packet is in the buffer that was given.
    Packet,
    /// There was none.
    Filler,
    /// It cannot be.
    Fault(QueueFault),
}

impl Strides {
    pub(super) fn new(
        device: &Device,
        config: &Striding,
        log_size: u8,
        headroom: u16,
        cache_size: usize,
    ) -> Result<Box<Self>, DeviceError> {
        let Striding { buffers, copy_bytes } = config;
        let keys = device.region_keys(buffers)?;
        let room = buffers.data_room_bytes() as u64;
        let hint = "; make the pool of large buffers with data_room_bytes of 32768";
        let least = Striding::BUFFER_BYTES.into();
        ConfigError::range("bytes of a large buffer", room, least, u64::from(u16::MAX), hint)?;
        if buffers.is_foreign() && *copy_bytes != 0 {
            let what =
                "packets cannot be copied out of foreign memory; set Striding::copy_bytes to 0";
            return Err(ConfigError::Conflict { what }.into());
        }
        Ok(Box::new(Self {
            buffers: MbufFifo::new(buffers, 1 << log_size),
            open: None,
            next: 0,
            copy_bytes: u32::from(*copy_bytes),
            headroom,
            cache: buffers.cache_with_size(cache_size.min(1 << log_size)),
            keys,
        }))
    }

    /// Puts the packet of a completion into `mbuf`, which is as it came out of its pool, and steps
    /// over its strides. The device said that it starts at the next one.
    #[inline(always)]
    fn place(&mut self, used: Used, mbuf: &mut Mbuf) -> Placed {
        let (at, strides) = (self.next * Striding::STRIDE_BYTES, used.strides());
        let room = strides * Striding::STRIDE_BYTES;
        if strides == 0 || strides > Striding::STRIDES - self.next {
            let room_bytes = Striding::BUFFER_BYTES - at;
            return Placed::Fault(QueueFault::TooLong { len_bytes: room, room_bytes });
        }
        if self.open.is_none() {
            self.begin();
        }
        let Some(open) = &mut self.open else {
            let expected = self.buffers.end() as u16;
            return Placed::Fault(QueueFault::WrongIndex { expected, got: expected });
        };
        let is_filler = used.is_filler();
        if !is_filler {
            let len = used.bytes();
            let fits = if len <= self.copy_bytes {
                mbuf.reset_rx(self.headroom, len) && open.copy(mbuf, at, room)
            } else {
                open.cut(mbuf, at, room, len)
            };
            if !fits {
                return Placed::Fault(QueueFault::TooLong { len_bytes: len, room_bytes: room });
            }
        }
        self.next += strides;
        if is_filler { Placed::Filler } else { Placed::Packet }
    }

    /// Steps over the strides of a packet that the device could not deliver, if it took any.
    /// Source: Linux `mlx5e_handle_rx_cqe_mpwrq`, which counts them whatever the completion says.
    pub(super) fn pass_over(
        &mut self,
        byte_cnt: u32,
        ring: &mut RecvRing,
    ) -> Result<(), QueueFault> {
        let (strides, left) = (Used(byte_cnt).strides(), Striding::STRIDES - self.next);
        if strides > left {
            let (len_bytes, room_bytes) =
                (strides * Striding::STRIDE_BYTES, left * Striding::STRIDE_BYTES);
            return Err(QueueFault::TooLong { len_bytes, room_bytes });
        }
        if self.open.is_none() {
            self.begin();
        }
        if self.open.is_none() {
            let expected = self.buffers.end() as u16;
            return Err(QueueFault::WrongIndex { expected, got: expected });
        }
        self.next += strides;
        if self.is_used_up() {
            self.end();
            ring.ci = ring.ci.wrapping_add(1);
        }
        Ok(())
    }

    /// Begins to cut up the next large buffer.
    #[inline(never)]
    fn begin(&mut self) {
        let buffer = self.buffers.pop();
        // A buffer that was posted is simple, and its pool's: it can be sliced.
        self.open = buffer.and_then(|buffer| Sliced::new(buffer, SLICES).ok());
    }

    /// Whether all strides of the buffer are used up.
    #[inline(always)]
    fn is_used_up(&self) -> bool {
        self.next == Striding::STRIDES
    }

    /// Ends a large buffer that is used up; it is kept if no packet lies in it.
    #[inline(never)]
    fn end(&mut self) {
        self.next = 0;
        if let Some(buffer) = self.open.take().and_then(Sliced::into_buffer) {
            self.cache.put(buffer);
        }
    }

    /// Posts large buffers, as far as their pool has any. `false` if it has too few.
    fn post(&mut self, ring: &mut RecvRing) -> bool {
        let mut at_once = REFILL;
        while ring.missing() != 0 {
            let (wqes, offset, mut pi) = (ring.view(), self.keys.va_to_iova, ring.pi);
            let n = at_once.min(ring.missing() as usize);
            let posted = self.buffers.fill(&mut self.cache, n, |room| {
                let unit = (pi << LOG_UNITS).wrapping_add(1);
                wqes.at(unit)
                    .store_be64::<{ Data::ADDR.offset }>((room as u64).wrapping_add(offset));
                pi = pi.wrapping_add(1);
            });
            ring.pi = pi;
            if posted == 0 && at_once == 1 {
                return false;
            }
            // Fewer than wanted: as many as there are, one by one.
            at_once = if posted == 0 { 1 } else { at_once };
        }
        true
    }

    /// Writes length and key of every work request, once.
    pub(super) fn stamp(&self, ring: &RecvRing) {
        for index in 0..ring.entries() {
            let unit = ring.view().at((index << LOG_UNITS) + 1);
            put_data(unit, Striding::BUFFER_BYTES, self.keys.lkey_be, 0);
        }
    }

    /// The pool of large buffers.
    pub(super) fn pool(&self) -> &Pool {
        self.buffers.pool()
    }

    /// Large buffers that are in the ring and not begun.
    pub(super) fn posted(&self) -> usize {
        self.buffers.len()
    }

    /// Takes all large buffers back: the device's queue was reset.
    pub(super) fn restart(&mut self) {
        self.end();
        self.buffers.free(self.buffers.len(), &mut self.cache);
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.buffers.leak();
        if let Some(open) = self.open.take() {
            open.leak();
        }
        std::mem::forget(self.keys.clone());
    }
}

/// Completions of packets that are copied out of one large buffer, one after the other.
struct Copies<'a, const STAMPED: bool> {
    cqes: RingView<'a, 64>,
    /// Of the next completion: its place in bytes, and its last dword.
    at: u32,
    wanted: u32,
    last_mask: u32,
    from: Copier<'a>,
    copy_bytes: u32,
    /// The one that was found, and the strides of its packet.
    cqe: Slot<'a, 64>,
    part: Option<Part<'a>>,
    room: u32,
    len: u32,
    /// Of all so far.
    bytes: u64,
    is_refused: bool,
}

impl<const STAMPED: bool> Arrivals for Copies<'_, STAMPED> {
    /// `None` for all but a packet that is to be copied: the caller looks again.
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let cqe = self.cqes.at_byte(self.at);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        if (last ^ self.wanted) & self.last_mask != 0 {
            return None;
        }
        let used = Used(cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>());
        let (len, room) = (used.bytes(), used.room_or_filler());
        if len > self.copy_bytes || len > room {
            return None;
        }
        self.part = Some(self.from.next_part(room)?);
        (self.cqe, self.room, self.len) = (cqe, room, len);
        Some(len)
    }

    fn too_long(&mut self, _: u32) {
        self.is_refused = true;
    }

    #[inline(always)]
    fn describe(&mut self, mbuf: &mut Mbuf) {
        if !self.part.take().is_some_and(|part| self.from.copy(part, mbuf)) {
            self.is_refused = true;
        }
        describe(mbuf, &self.cqe);
        if STAMPED {
            stamp(mbuf, &self.cqe);
        }
        let strides = self.room / Striding::STRIDE_BYTES;
        self.wanted = self.wanted.wrapping_add(Cqe64::WQE_COUNTER.of(strides));
        self.at = self.at.wrapping_add(Cqe64::SIZE_BYTES as u32);
        self.bytes += u64::from(self.len);
    }
}

/// Packets that a large buffer can hold.
const SLICES: u16 = Striding::STRIDES as u16;
const _: () = assert!(SLICES <= Sliced::MAX_SLICES);

impl RxRing {
    /// Receives packets that share large buffers.
    #[inline(never)]
    pub(super) fn burst_strides<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let before = out.len();
        // The device writes to what is in there: not freed if anything panics.
        let Some(mut strides) = self.strides.take().map(ManuallyDrop::new) else { return 0 };
        let (mut bytes, mut is_short) = (0, true);
        while !out.is_full() && self.stats.fault.is_none() {
            if self.elts.is_empty() && !self.fetch() {
                break;
            }
            let goes_on = if self.mini.is_active() {
                self.take_strides_of_block(&mut strides, out, &mut bytes)
            } else if is_short && self.copy_strides(&mut strides, out, &mut bytes) != 0 {
                true
            } else {
                // Short packets follow short ones, and long ones long ones.
                let goes_on = self.take_strides(&mut strides, out, &mut bytes);
                is_short =
                    out.last().is_none_or(|last| last.pkt_len() <= strides.copy_bytes as usize);
                goes_on
            };
            if !goes_on {
                break;
            }
            if strides.is_used_up() {
                strides.end();
                self.ring.ci = self.ring.ci.wrapping_add(1);
            }
        }
        let received = out.len() - before;
        self.stats.packets += received as u64;
        self.stats.bytes += bytes;
        self.cq.tell();
        if self.ring.missing() != 0 {
            if !strides.post(&mut self.ring) {
                self.stats.no_mbuf += 1;
            }
            self.ring.tell();
        }
        self.strides = Some(ManuallyDrop::into_inner(strides));
        received
    }

    /// Gets buffers of the queue's pool to hand; `false` if there is none.
    #[inline(never)]
    fn fetch(&mut self) -> bool {
        let there = self.elts.fill(&mut self.cache, REFILL, |_| {}) != 0
            || self.elts.fill(&mut self.cache, 1, |_| {}) != 0;
        self.stats.no_mbuf += u64::from(!there);
        there
    }

    /// Takes packets that are copied, as far as the large buffer, those at hand, and the lap of the
    /// completion queue go; returns how many.
    #[inline(always)]
    fn copy_strides<const N: usize>(
        &mut self,
        strides: &mut Strides,
        out: &mut ArrayVec<Mbuf, N>,
        bytes: &mut u64,
    ) -> usize {
        if self.is_stamped {
            self.copy_strides_as::<N, true>(strides, out, bytes)
        } else {
            self.copy_strides_as::<N, false>(strides, out, bytes)
        }
    }

    #[inline(never)]
    fn copy_strides_as<const N: usize, const STAMPED: bool>(
        &mut self,
        strides: &mut Strides,
        out: &mut ArrayVec<Mbuf, N>,
        bytes: &mut u64,
    ) -> usize {
        let left = strides.next * Striding::STRIDE_BYTES..Striding::BUFFER_BYTES;
        let (open, pool) = (strides.open.as_mut(), self.cache.pool());
        let Some(from) = open.and_then(|open| open.copier(pool, left)) else { return 0 };
        let (cqes, cq_ci) = (self.cq.ring.view(), self.cq.ci);
        let mut copies = Copies::<STAMPED> {
            cqes,
            at: cq_ci.wrapping_mul(Cqe64::SIZE_BYTES as u32),
            wanted: self.expected_at(strides.next, cq_ci),
            last_mask: self.last_mask,
            from,
            copy_bytes: strides.copy_bytes,
            cqe: cqes.at(0),
            part: None,
            room: 0,
            len: 0,
            bytes: 0,
            is_refused: false,
        };
        let taken = self.elts.pop_filled(out, self.cq.left_of_lap(cq_ci), &mut copies);
        let (copied, len, is_refused) = (copies.bytes, copies.len, copies.is_refused);
        strides.next = copies.from.at() / Striding::STRIDE_BYTES;
        drop(copies);
        *bytes += copied;
        self.cq.ci = cq_ci.wrapping_add(taken as u32);
        if is_refused {
            let room_bytes = self.room_bytes;
            self.stop(QueueFault::TooLong { len_bytes: len, room_bytes });
        }
        taken
    }

    /// Takes the next completion: a packet, a filler, or the title of a block. `false` if nothing
    /// has come, and after a fault.
    #[inline(never)]
    fn take_strides<const N: usize>(
        &mut self,
        strides: &mut Strides,
        out: &mut ArrayVec<Mbuf, N>,
        bytes: &mut u64,
    ) -> bool {
        let cqe = self.cq.ring.at(self.cq.ci);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        let wanted = self.expected_at(strides.next, self.cq.ci);
        if (last ^ wanted) & self.last_mask != 0 {
            let most = self.cq.entries();
            return self.take_title(last, strides.next as u16, most, Some(strides));
        }
        let used = Used(cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>());
        let Some(mut mbuf) = self.elts.pop() else { return false };
        match strides.place(used, &mut mbuf) {
            Placed::Packet => {
                describe(&mut mbuf, &cqe);
                if self.is_stamped {
                    stamp(&mut mbuf, &cqe);
                }
                out.push(mbuf);
                *bytes += u64::from(used.bytes());
            }
            Placed::Filler => self.cache.put(mbuf),
            Placed::Fault(fault) => {
                self.stop(fault);
                return false;
            }
        }
        self.cq.ci = self.cq.ci.wrapping_add(1);
        true
    }

    /// Takes the next completion of the open block. `false` after a fault.
    #[inline(never)]
    fn take_strides_of_block<const N: usize>(
        &mut self,
        strides: &mut Strides,
        out: &mut ArrayVec<Mbuf, N>,
        bytes: &mut u64,
    ) -> bool {
        let Some(mut mbuf) = self.elts.pop() else { return false };
        let (first, byte_cnt, title) = self.next_mini();
        let (stride, used) = (first as u16, Used(byte_cnt));
        let placed = if u32::from(stride) == strides.next {
            strides.place(used, &mut mbuf)
        } else {
            let expected = strides.next as u16;
            Placed::Fault(QueueFault::WrongIndex { expected, got: stride })
        };
        match placed {
            Placed::Packet => {
                // The hash is the title's, and no other packet's.
                let flags = title.flags.difference(OlFlags::RX_RSS_HASH);
                mbuf.set_meta(RxMeta { flags, rss_hash: 0, ..title });
                out.push(mbuf);
                *bytes += u64::from(used.bytes());
                true
            }
            Placed::Filler => {
                self.cache.put(mbuf);
                true
            }
            Placed::Fault(fault) => {
                self.stop(fault);
                false
            }
        }
    }

    /// Posts large buffers into every slot; whether all have one.
    pub(super) fn fill_strides(&mut self) -> bool {
        let Some(strides) = &mut self.strides else { return false };
        strides.post(&mut self.ring)
    }
}
