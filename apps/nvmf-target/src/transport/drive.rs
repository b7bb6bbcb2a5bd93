//! [`Drives`]: the queue pairs of a core, one for each namespace that an NVMe drive is behind.

use std::time::Instant;

use ferrocx_nvme::{Done, IoQueue, Op, Refused};
use ferrocx_uring::Request;

use super::trouble::Trouble;
use super::{BUDGET, Server, place};
use crate::backend::DriveId;

#[derive(Debug)]
struct Opened {
    queue: IoQueue,
    /// No namespace names it any more; it goes when what is under way has ended.
    is_leaving: bool,
}

/// The queue pairs of a core, by place; a place is used again.
#[derive(Debug, Default)]
pub(super) struct Drives {
    list: Vec<Option<Opened>>,
    /// Places that are taken.
    count: usize,
}

impl Drives {
    /// Whether there is none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn add(&mut self, queue: IoQueue) -> DriveId {
        let opened = Some(Opened { queue, is_leaving: false });
        self.count += 1;
        match self.list.iter().position(Option::is_none) {
            Some(place) => {
                self.list[place] = opened;
                DriveId(place)
            }
            None => {
                self.list.push(opened);
                DriveId(self.list.len() - 1)
            }
        }
    }

    /// Takes a queue pair away, as soon as nothing is under way on it.
    pub(super) fn remove(&mut self, id: DriveId) {
        if let Some(opened) = self.list.get_mut(id.0).and_then(Option::as_mut) {
            opened.is_leaving = true;
        }
        self.forget();
    }

    fn forget(&mut self) {
        for place in &mut self.list {
            if place.as_ref().is_some_and(|it| it.is_leaving && it.queue.under_way() == 0) {
                *place = None;
                self.count -= 1;
            }
        }
    }

    /// Gives a request to a drive. The memory of its buffer is the drive's, too, for as long as
    /// the queue pair is there.
    pub(super) fn push(
        &mut self,
        token: u64,
        id: DriveId,
        request: &Request,
    ) -> Result<(), Refused> {
        let opened = self.list.get_mut(id.0).and_then(Option::as_mut);
        let opened = opened.filter(|it| !it.is_leaving).ok_or(Refused::Gone)?;
        let shift = opened.queue.namespace().block_shift;
        let op = match request {
            Request::Read { to, offset } => Op::Read { lba: offset >> shift, to: to.piece() },
            Request::Write { from, offset, is_durable } => {
                Op::Write { lba: offset >> shift, from: from.piece(), is_durable: *is_durable }
            }
            Request::Flush => Op::Flush,
            Request::Zero { offset, len } => {
                let (lba, blocks) = (offset >> shift, len >> shift);
                Op::Zero { lba, blocks, may_deallocate: false }
            }
            Request::Punch { offset, len } => {
                Op::Deallocate { lba: offset >> shift, blocks: len >> shift }
            }
        };
        opened.queue.push(token, op)
    }

    /// The next request that has ended: its name and how.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<(u64, Result<(), Trouble>)> {
        let mut queues = self.list.iter_mut().flatten();
        let Done { token, result } = queues.find_map(|it| it.queue.poll())?;
        Some((token, result.map_err(Trouble::Failed)))
    }

    /// Tells the drives of what was pushed and polled.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.list.iter_mut().flatten().for_each(|it| it.queue.ring());
    }

    /// Tells the queue pairs the time, and lets go of those that have ended.
    pub(super) fn tick(&mut self) {
        if self.is_empty() {
            return;
        }
        let now = Instant::now();
        self.list.iter_mut().flatten().for_each(|it| it.queue.tick(now));
        self.forget();
    }
}

impl Server {
    /// Takes what has ended on drives, and rings their doorbells.
    #[inline(never)]
    pub(super) fn poll_drives(&mut self) -> usize {
        let mut count = 0;
        while count < BUDGET
            && let Some((token, result)) = self.work.drives.poll()
        {
            count += 1;
            let (index, slot) = (place((token >> 16) as u32), token as u16);
            let Some((qp, session)) = self.sessions.get_mut(index) else { continue };
            self.work.outside_done(qp, session, slot, &result);
        }
        self.work.drives.ring();
        count
    }
}
