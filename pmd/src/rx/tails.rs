//! The buffers behind the first of each work request, of queues that take several to a packet.
//!
//! A packet takes as many of them as it needs. The others stay where they are, and their addresses
//! in the ring, for the packet that fills the request a lap later: a short packet costs its first
//! buffer and no more.
//!
//! They are a row for each work request. The device fills a row from its front, so what a row lacks
//! are its first buffers. Rows are filled up in order, each at once or not at all, and a request is
//! posted when its row is whole and it has a first buffer.
//!
//! A pool that runs dry must not leave requests waiting for buffers that lie unused in the rows
//! behind them: [`Tails::sweep`] gives those back.

use std::iter;

use arrayvec::ArrayVec;
use ferrocx_core::wq::RecvRing;
use ferrocx_core::{Device, DeviceError, RegionKeys};
use ferrocx_mempool::{Mbuf, Pool, PoolCache};
use ferrocx_prm::wqe::Data;

use super::REFILL;
use crate::config::BufferSplit;

/// Segment of a work request that the first buffer of its row is.
const FIRST: u32 = 1;

/// A row of buffers for each work request of a ring.
pub(super) struct Tails {
    rows: Rows,
    /// The rows of all requests in front of this one are whole: those posted, and perhaps others.
    pub(super) ready: u32,
    /// Rows from `ready` to this one hold nothing, but for that of the next request to be posted.
    /// Not in front of `ready`.
    swept: u32,
    /// What turns the address of a buffer's room into the one to post.
    va_to_iova: u64,
    pool: Pool,
    /// Of a queue that splits. Others take these buffers out of their own stock.
    pub(super) payload: Option<Payload>,
}

/// The buffers themselves.
struct Rows {
    slots: Box<[Option<Mbuf>]>,
    of_each: usize,
}

impl Rows {
    /// The row of a request of `ring`.
    #[inline(always)]
    fn of(&mut self, request: u32, ring: &RecvRing) -> &mut [Option<Mbuf>] {
        let at = request as usize & (ring.entries() as usize - 1);
        &mut self.slots[at * self.of_each..][..self.of_each]
    }
}

/// The pool of what follows a packet's header.
pub(super) struct Payload {
    pub(super) cache: PoolCache,
    /// Keeps its region mapped.
    pub(super) keys: RegionKeys,
}

impl Tails {
    /// Empty rows for 2^`log_size` requests of a queue of `pool`, whose `keys` these are;
    /// `None` if requests have one buffer each.
    pub(super) fn of(
        device: &Device,
        (pool, keys): (&Pool, &RegionKeys),
        split: Option<&BufferSplit>,
        (cache_size, log_size, log_buffers): (usize, u8, u8),
    ) -> Result<Option<Box<Self>>, DeviceError> {
        let of_each = (1usize << log_buffers) - 1;
        if of_each == 0 {
            return Ok(None);
        }
        let payload = |BufferSplit { payload, .. }: &BufferSplit| {
            let keys = device.region_keys(payload)?;
            Ok::<_, DeviceError>(Payload { cache: payload.cache_with_size(cache_size), keys })
        };
        let payload = split.map(payload).transpose()?;
        let (pool, keys) = match &payload {
            Some(Payload { cache, keys }) => (cache.pool(), keys),
            None => (pool, keys),
        };
        let slots = iter::repeat_with(|| None).take(of_each << log_size).collect();
        Ok(Some(Box::new(Self {
            rows: Rows { slots, of_each },
            ready: 0,
            swept: 0,
            va_to_iova: keys.va_to_iova,
            pool: pool.clone(),
            payload,
        })))
    }

    /// The pool that the buffers are of.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Takes the first buffers of a request's row, of `room` bytes each, as a packet of `len`
    /// bytes, at least one. `None` if they are not there, which cannot be of a request that was
    /// posted.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        (request, ring): (u32, &RecvRing),
        len: u32,
        room: u32,
    ) -> Option<Mbuf> {
        let (mut used, mut part) = (1, len);
        while part > room {
            part -= room;
            used += 1;
        }
        // From the last one on, so that each is put in front of what it is followed by.
        let mut packet: Option<Mbuf> = None;
        for slot in self.rows.of(request, ring).get_mut(..used)?.iter_mut().rev() {
            let mut mbuf = slot.take()?;
            // The parts were cut to fit.
            let fits = mbuf.reset_rx(0, part);
            debug_assert!(fits);
            if let Some(rest) = packet {
                // A chain of at most eight is never too long.
                drop(mbuf.chain(rest));
            }
            part = room;
            packet = Some(mbuf);
        }
        packet
    }

    /// Fills the rows up to that of request `end`, in order, many at a time as long as the pool has
    /// so many buffers; `stock` is the queue's own.
    ///
    /// # Panics
    /// If somebody put another pool's cache into its place.
    pub(super) fn fill(&mut self, stock: &mut PoolCache, ring: &RecvRing, end: u32) {
        let mut at_once = REFILL;
        let mut buffers = ArrayVec::<Mbuf, REFILL>::new();
        while self.ready != end {
            let (mut to, mut lacking) = (self.ready, 0);
            while to != end {
                let lacks = self.rows.of(to, ring).iter().take_while(|slot| slot.is_none()).count();
                if lacking != 0 && lacking + lacks > at_once {
                    break;
                }
                lacking += lacks;
                to = to.wrapping_add(1);
            }
            let stock = self.payload.as_mut().map_or(&mut *stock, |payload| &mut payload.cache);
            assert!(*stock.pool() == self.pool, "the cache of another pool");
            if lacking != 0 && !stock.get_raw_bulk(&mut buffers, lacking) {
                if at_once == 0 {
                    break;
                }
                // Fewer than wanted: as many as there are, row by row.
                at_once = 0;
                continue;
            }
            self.put(&mut buffers, ring, to);
        }
        if self.swept.wrapping_sub(self.ready).cast_signed() < 0 {
            self.swept = self.ready;
        }
    }

    /// Puts buffers into the places that the rows up to that of request `end` lack, and their
    /// addresses into the ring.
    #[inline(always)]
    fn put(&mut self, buffers: &mut ArrayVec<Mbuf, REFILL>, ring: &RecvRing, end: u32) {
        let (segments, log_segments, offset) = (ring.view(), ring.log_segments(), self.va_to_iova);
        while self.ready != end {
            let first = (self.ready << log_segments) + FIRST;
            for (slot, at) in self.rows.of(self.ready, ring).iter_mut().zip(0..) {
                if slot.is_some() {
                    break;
                }
                let Some(mbuf) = buffers.pop() else { break };
                let address = (mbuf.room_address() as u64).wrapping_add(offset);
                segments.at(first + at).store_be64::<{ Data::ADDR.offset }>(address);
                *slot = Some(mbuf);
            }
            self.ready = self.ready.wrapping_add(1);
        }
    }

    /// Gives the buffers back that lie in rows of requests behind the next one to be posted, which
    /// has fewer than it needs. Rows that were swept before, and hold none, are not looked at.
    #[cold]
    pub(super) fn sweep(&mut self, stock: &mut PoolCache, ring: &RecvRing) {
        let from_next = |request: u32| request.wrapping_sub(ring.pi);
        let (ready, swept) = (from_next(self.ready), from_next(self.swept));
        for at in (1..ready).chain(swept.max(1)..ring.missing()) {
            for slot in self.rows.of(ring.pi.wrapping_add(at), ring) {
                if let Some(mbuf) = slot.take() {
                    let payload = self.payload.as_mut();
                    payload.map_or(&mut *stock, |payload| &mut payload.cache).put(mbuf);
                }
            }
        }
        self.ready = ring.pi.wrapping_add(ready.min(1));
        self.swept = ring.pi.wrapping_add(ring.missing());
    }

    /// After a reset of the queue, whose requests count from 0: all buffers stay where they are.
    pub(super) fn restart(&mut self) {
        (self.ready, self.swept) = (0, 0);
    }

    /// Buffers in all rows.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.rows.slots.iter().flatten().count()
    }

    /// Goes on as after so many requests, all rows whole.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, request: u32) {
        (self.ready, self.swept) = (request, request);
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.rows.slots.iter_mut().for_each(|slot| std::mem::forget(slot.take()));
        std::mem::forget(self.payload.as_ref().map(|payload| payload.keys.clone()));
    }
}
