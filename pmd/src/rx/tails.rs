//! The buffers behind the first of each work request, of queues that take several to a packet.
//!
//! A packet takes as many of them as it needs. The others stay where they are, and their addresses
//! in the ring, for the packet that fills the request a lap later: a short packet costs its first
//! buffer and no more.
//!
//! They are a row for each work request. The device fills a row from its front, and it is filled up
//! from its end, so what a row lacks are always its first buffers. Rows are filled up in order, and
//! a request is posted when its row is whole and it has a first buffer.
//!
//! A pool that runs dry must not leave requests waiting for buffers that lie unused in the rows
//! behind them: [`Tails::sweep`] gives those back.

use std::{iter, mem};

use arrayvec::ArrayVec;
use ferrocx_core::wq::RecvRing;
use ferrocx_core::{Device, DeviceError, RegionKeys};
use ferrocx_mempool::{Mbuf, Pool, PoolCache};
use ferrocx_prm::wqe::Data;

use super::REFILL;
use crate::config::BufferSplit;

/// Segment of a work request that the first buffer of its row is.
const FIRST: usize = 1;

/// A row of buffers for each work request of a ring.
pub(super) struct Tails {
    /// A place for each segment of the ring; those of first buffers stay empty.
    slots: Box<[Option<Mbuf>]>,
    /// Buffers of a row.
    of_each: u8,
    /// Buffers that each row lacks, its first ones, and all rows together. Never too few, whatever
    /// panics: a row that counts as whole is posted.
    lacks: Box<[u8]>,
    lacking: usize,
    /// The rows of all requests in front of this one are whole: those posted, and perhaps others.
    pub(super) ready: u32,
    /// Rows behind that of `ready` and in front of this one hold nothing. Not in front of `ready`.
    swept: u32,
    /// What turns the address of a buffer's room into the one to post.
    va_to_iova: u64,
    pool: Pool,
    /// Of a queue that splits. Others take these buffers out of their own stock.
    pub(super) payload: Option<Payload>,
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
        let of_each = (1 << log_buffers) - 1;
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
        Ok(Some(Box::new(Self {
            slots: iter::repeat_with(|| None).take(1 << (log_size + log_buffers)).collect(),
            of_each,
            lacks: iter::repeat_n(of_each, 1 << log_size).collect(),
            lacking: usize::from(of_each) << log_size,
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

    /// Puts the first buffers of a request's row, of `room` bytes each, behind the first of its
    /// packet, which has `len` bytes more than that holds.
    #[inline(never)]
    pub(super) fn append(&mut self, packet: &mut Mbuf, request: u32, (len, room): (u32, u32)) {
        let rest = self.take(request, len, room);
        debug_assert!(rest.is_some(), "the row of a request that was posted is whole");
        // A chain of at most eight is never too long.
        drop(rest.map(|rest| packet.chain(rest)));
    }

    /// Takes the first buffers of a request's row, of `room` bytes each, as a packet of `len`
    /// bytes, at least one. `None` if they are not there, which cannot be of a request that was
    /// posted.
    #[inline(always)]
    fn take(&mut self, request: u32, len: u32, room: u32) -> Option<Mbuf> {
        let (mut used, mut part) = (1, len);
        while part > room {
            part -= room;
            used += 1;
        }
        let row = request as usize & (self.lacks.len() - 1);
        debug_assert_eq!(self.lacks[row], 0, "it was posted");
        self.lacks[row] = used as u8;
        self.lacking += used;
        let start = row * (usize::from(self.of_each) + FIRST) + FIRST;
        // From the last one on, so that each is put in front of what it is followed by.
        let mut packet: Option<Mbuf> = None;
        for slot in self.slots.get_mut(start..start + used)?.iter_mut().rev() {
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

    /// Fills the rows up to that of request `end`, in order, so many buffers `at_once`, or one by
    /// one if the pool has fewer; `stock` is the queue's own. Unless it is one at once, no row
    /// behind lacks any.
    ///
    /// # Panics
    /// If somebody put another pool's cache into its place.
    #[inline(always)]
    pub(super) fn fill(
        &mut self,
        stock: &mut PoolCache,
        ring: &RecvRing,
        (end, at_once): (u32, usize),
    ) {
        if self.lacking != 0 {
            self.fill_up(stock, ring, (end, at_once));
        } else {
            self.ready = end;
        }
        if self.swept.wrapping_sub(self.ready).cast_signed() < 0 {
            self.swept = self.ready;
        }
    }

    #[inline(never)]
    fn fill_up(
        &mut self,
        stock: &mut PoolCache,
        ring: &RecvRing,
        (end, mut at_once): (u32, usize),
    ) {
        let stock = self.payload.as_mut().map_or(stock, |payload| &mut payload.cache);
        assert!(*stock.pool() == self.pool, "the cache of another pool");
        let (segments, log_segments) = (ring.view(), ring.log_segments());
        let (mask, places) = (self.lacks.len() - 1, self.slots.len() - 1);
        let offset = self.va_to_iova;
        let mut buffers = ArrayVec::<Mbuf, REFILL>::new();
        let mut ready = self.ready;
        loop {
            while ready != end && self.lacks[ready as usize & mask] == 0 {
                ready = ready.wrapping_add(1);
            }
            if ready == end {
                break;
            }
            let count = self.lacking.min(at_once);
            if !stock.get_raw_bulk(&mut buffers, count) {
                if at_once == 1 {
                    break;
                }
                at_once = 1;
                continue;
            }
            let mut lacks = self.lacks[ready as usize & mask];
            for mbuf in buffers.drain(..) {
                while lacks == 0 {
                    self.lacks[ready as usize & mask] = 0;
                    ready = ready.wrapping_add(1);
                    lacks = self.lacks[ready as usize & mask];
                }
                // The last one that it lacks: segments count from the request's first buffer.
                let unit = (ready << log_segments) + u32::from(lacks);
                let address = (mbuf.room_address() as u64).wrapping_add(offset);
                segments.at(unit).store_be64::<{ Data::ADDR.offset }>(address);
                // There is none to be dropped.
                mem::forget(self.slots[unit as usize & places].replace(mbuf));
                lacks -= 1;
            }
            self.lacks[ready as usize & mask] = lacks;
            self.lacking -= count;
        }
        self.ready = ready;
    }

    /// Gives the buffers back that lie in rows of requests behind the next one to be posted, which
    /// has fewer than it needs. Rows that were swept before, and hold none, are not looked at.
    #[cold]
    pub(super) fn sweep(&mut self, stock: &mut PoolCache, ring: &RecvRing) {
        let stock = self.payload.as_mut().map_or(stock, |payload| &mut payload.cache);
        let (next, missing) = (ring.pi, ring.missing());
        let behind = self.ready.wrapping_sub(next) + 1;
        let swept = self.swept.wrapping_sub(next);
        for at in (1..behind.min(missing)).chain(swept.max(behind)..missing) {
            let row = next.wrapping_add(at) as usize & (self.lacks.len() - 1);
            self.lacking += usize::from(self.of_each - self.lacks[row]);
            self.lacks[row] = self.of_each;
            let segments = usize::from(self.of_each) + FIRST;
            for slot in &mut self.slots[row * segments..][..segments] {
                slot.take().into_iter().for_each(|mbuf| stock.put(mbuf));
            }
        }
        if behind > 1 {
            self.ready = next.wrapping_add(1);
        }
        self.swept = next.wrapping_add(missing);
    }

    /// After a reset of the queue, whose requests count from 0: all buffers stay where they are.
    pub(super) fn restart(&mut self) {
        (self.ready, self.swept) = (0, 0);
    }

    /// Buffers in all rows, which lack the others, their first ones.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        let segments = usize::from(self.of_each) + FIRST;
        for (row, lacks) in self.slots.chunks(segments).zip(&self.lacks) {
            let is_there = row.iter().map(Option::is_some);
            assert!(is_there.eq((0..segments).map(|at| at > usize::from(*lacks))));
        }
        let count = self.slots.iter().flatten().count();
        assert_eq!(self.lacking + count, self.lacks.len() * usize::from(self.of_each));
        count
    }

    /// Goes on as after so many requests, all rows whole.
    #[cfg(test)]
    pub(super) fn start_at(&mut self, request: u32) {
        (self.ready, self.swept) = (request, request);
    }

    /// Lets go of the buffers without freeing them: the device may still write to them.
    #[cold]
    pub(super) fn leak(&mut self) {
        self.slots.iter_mut().for_each(|slot| mem::forget(slot.take()));
        mem::forget(self.payload.as_ref().map(|payload| payload.keys.clone()));
    }
}
