//! [`Drives`]: the queue pairs of a core, one for each namespace that an NVMe drive is behind.

use std::time::Instant;

use ferrocx_nvme::{Done, IoQueue, Op, Refused};
use ferrocx_uring::Request;

use super::trouble::Trouble;
use super::{BUDGET, Server};
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
    /// Where the next poll begins: no drive waits for ever behind a busy one.
    at: usize,
}

impl Drives {
    /// Whether there is none.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether one has something to end.
    pub(super) fn is_busy(&self) -> bool {
        self.list.iter().flatten().any(|it| it.queue.under_way() > 0)
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

    /// Whether a drive takes nothing because it is being reset.
    #[inline]
    pub(super) fn is_away(&self, id: DriveId) -> bool {
        let opened = self.list.get(id.0).and_then(Option::as_ref);
        opened.is_some_and(|it| it.queue.is_away())
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

    /// The next request that has ended: its name and how. Those of one drive come in a row.
    #[inline]
    pub(super) fn poll(&mut self) -> Option<(u64, Result<(), Trouble>)> {
        for _ in 0..self.list.len() {
            let opened = self.list.get_mut(self.at).and_then(Option::as_mut);
            if let Some(Done { token, result }) = opened.and_then(|it| it.queue.poll()) {
                return Some((token, result.map_err(Trouble::Failed)));
            }
            self.turn();
        }
        None
    }

    #[inline]
    fn turn(&mut self) {
        self.at = if self.at + 1 < self.list.len() { self.at + 1 } else { 0 };
    }

    /// Tells the drives of what was pushed and polled: the end of a round. The next one begins
    /// with the next drive.
    #[inline]
    pub(super) fn ring(&mut self) {
        self.list.iter_mut().flatten().for_each(|it| it.queue.ring());
        self.turn();
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
            self.store_done(token, &result);
        }
        self.work.drives.ring();
        count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ferrocx_nvme::{Config, Op};

    use super::{BUDGET, Drives};
    use crate::fake::{Plan, World};

    #[test]
    fn a_drive_does_not_wait_behind_a_busy_one() {
        // 256 entries, so that more than a round's completions are there at a time.
        let cap = Plan::default().cap | 0xff;
        let world = World::new(Plan { cap, ..Plan::default() });
        let config = Config { entries: 256, ..Config::default() };
        let mut drive = world.open_as(&config).unwrap();
        let mut drives = Drives::default();
        for _ in 0..3 {
            drives.add(drive.queue(1, &[Arc::clone(&world.memory)]).unwrap());
        }
        for busy in 0..3_u64 {
            let mut seen = Vec::new();
            for round in 0..6 {
                for (place, opened) in (0..).zip(drives.list.iter_mut().flatten()) {
                    let count = match (place == busy, round) {
                        (true, _) => BUDGET,
                        (false, 0) => 1,
                        (false, _) => 0,
                    };
                    for _ in 0..count {
                        opened.queue.push(place, Op::Flush).unwrap();
                    }
                    opened.queue.ring();
                }
                world.fake().step();
                for _ in 0..BUDGET {
                    seen.extend(drives.poll().map(|(token, _)| token));
                }
                drives.ring();
            }
            let of = |place| seen.iter().filter(|it| **it == place).count();
            let others: Vec<usize> = (0..3).filter(|place| *place != busy).map(of).collect();
            assert_eq!(others, [1, 1], "behind place {busy}");
            while drives.poll().is_some() {}
        }
    }
}
