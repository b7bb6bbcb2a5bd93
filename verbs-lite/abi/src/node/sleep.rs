//! How callers and the node's thread sleep, and who of them does what came meanwhile.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::ring::{WAIT_NS, now_ns};
use super::sockets::{Sockets, There};
use super::{GLANCE, Node, SLEEP, STEPS, WHILE, lock};
use crate::files;

/// How somebody sleeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sleep {
    pub(super) longest: Duration,
    /// Somebody else polls, who is the one to do what there is to do.
    pub(super) beside_poller: bool,
    /// Packets of other machines end the sleep.
    pub(super) hears_remote: bool,
    /// When peers of this machine may call, by the machine's clock; 0 for at once.
    pub(super) calls_from_ns: u64,
}

impl Sleep {
    /// One that everything ends.
    pub(super) fn at_most(longest: Duration) -> Self {
        Self { longest, beside_poller: false, hears_remote: true, calls_from_ns: 0 }
    }
}

/// The round of polls in which a queue last came to nothing. A round ends with the first queue that
/// comes to nothing again. A program that polls several queues, of several devices perhaps, so
/// gives its core away once a round, and not at each that is empty.
#[derive(Debug, Default)]
pub(crate) struct Polled(AtomicU32);

/// The round of this process that is under way.
pub(super) static ROUND: Polled = Polled::first();

impl Polled {
    /// The first round, in which no queue was polled yet.
    const fn first() -> Self {
        Self(AtomicU32::new(1))
    }

    /// Notes that the queue came to nothing; whether that ends the round.
    pub(super) fn ends(&self, round: &Self) -> bool {
        let now = round.0.load(Ordering::Relaxed);
        let ends = self.0.swap(now, Ordering::Relaxed) == now;
        if ends {
            let next = now.wrapping_add(1);
            round.0.store(next, Ordering::Relaxed);
            self.0.store(next, Ordering::Relaxed);
        }
        ends
    }
}

/// Why a sleep ended, and what came of it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Woken {
    /// One of the descriptors is readable.
    pub(super) is_ready: bool,
    /// Some descriptor or a peer ended the sleep, and not the time.
    pub(super) was_called: bool,
    /// The model had something to do.
    pub(super) has_worked: bool,
}

impl Node {
    /// Sleeps until `fd` is readable, or for [`WHILE`], stepping the model meanwhile. `false` if a
    /// signal came.
    pub(crate) fn wait(&self, fd: BorrowedFd<'_>) -> bool {
        if self.model.is_none() {
            return files::wait(fd, Some(WHILE));
        }
        let start = Instant::now();
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        self.step_all();
        let mut ready = files::is_readable(fd);
        while ready == Ok(false) && start.elapsed() < WHILE {
            ready = self.sleep(&[fd], Sleep::at_most(SLEEP)).map(|woken| woken.is_ready);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        ready.is_ok()
    }

    /// Steps the model until it has nothing to do; whether it had.
    fn step_all(&self) -> bool {
        let mut steps = 0;
        while steps < STEPS && self.step() {
            steps += 1;
        }
        let has_moved = self.network.as_ref().is_some_and(|network| lock(network).poll());
        self.take_turns();
        steps > 0 || has_moved
    }

    /// A step that does something; `false` if there was nothing to do for longer than a frame may
    /// wait.
    fn step_soon(&self) -> bool {
        let until_ns = now_ns() + 2 * WAIT_NS;
        loop {
            let is_last = now_ns() > until_ns;
            let has_worked = self.step();
            if has_worked || is_last {
                return has_worked;
            }
        }
    }

    /// Sleeps until one of `fds` is readable or a frame came, and then makes the model work.
    pub(super) fn sleep(&self, fds: &[BorrowedFd<'_>], sleep: Sleep) -> Result<Woken, Errno> {
        let sockets = self.model.as_ref().map(|model| &*model.sockets);
        let Sleep { longest, hears_remote, calls_from_ns, beside_poller } = sleep;
        let there = sockets.map(|sockets| sockets.sleep(calls_from_ns, !beside_poller));
        let is_left = beside_poller && self.model.as_ref().is_some_and(|model| model.is_polled());
        let timeout = match there {
            None | Some(There::Nothing) => longest,
            Some(There::Records) if !is_left && self.step_soon() => Duration::ZERO,
            Some(There::Records | There::PutOff) => longest.min(GLANCE),
        };
        let timeout = Timespec::try_from(timeout).ok();
        let (local, remotes) = sockets.map(Sockets::fds).unzip();
        // A call that is there already is for whoever polls.
        let local = local.filter(|_| calls_from_ns == 0);
        let remotes = remotes.into_iter().flatten().flatten().filter(|_| hears_remote);
        let all = fds.iter().copied().chain(local).chain(remotes);
        let mut polled: Vec<_> =
            all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let was_called = poll(&mut polled, timeout.as_ref())? > 0;
        let is_ready = polled.iter().take(fds.len()).any(|fd| !fd.revents().is_empty());
        let mut woken = Woken { is_ready, was_called, has_worked: false };
        if woken.is_ready {
            return Ok(woken);
        }
        if let Some(sockets) = sockets {
            sockets.look();
        }
        woken.has_worked = self.step_all();
        if was_called && !woken.has_worked && sockets.is_some_and(Sockets::has_records) {
            woken.has_worked = self.step_soon();
        }
        for fd in fds {
            woken.is_ready |= files::is_readable(*fd)?;
        }
        Ok(woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_of_polls_ends_once_however_many_queues_there_are() {
        for count in [1, 2, 512] {
            let (round, queues) =
                (Polled::first(), (0..count).map(|_| Polled::default()).collect::<Vec<_>>());
            let ends: Vec<usize> =
                (0..4).map(|_| queues.iter().filter(|queue| queue.ends(&round)).count()).collect();
            assert_eq!(ends, [0, 1, 1, 1]);
        }
    }
}
