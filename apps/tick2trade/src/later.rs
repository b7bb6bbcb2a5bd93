//! What is written while a core polls: by another thread, because a pipe that nobody reads and a
//! disk that hangs hold up whoever writes to them, for ever if need be.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// What may wait at a time.
const WAITING: usize = 16;
/// How often it is looked whether all is done.
const LOOK: Duration = Duration::from_millis(1);

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one thing after the other, and keeps nobody waiting.
#[derive(Debug)]
pub(crate) struct Later {
    /// `None` behind its end.
    jobs: Option<SyncSender<Job>>,
    /// Things that were asked for, those of them that found room, and those that are done.
    asked: u64,
    taken: u64,
    done: Arc<AtomicU64>,
}

impl Later {
    /// Starts a thread of that name, on the cores of who calls.
    ///
    /// # Errors
    /// The system's: no thread can be made.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING);
        let done = Arc::<AtomicU64>::default();
        let count = Arc::clone(&done);
        thread::Builder::new().name(name.into()).spawn(move || {
            for job in waiting {
                job();
                count.fetch_add(1, Ordering::Release);
            }
        })?;
        Ok(Self { jobs: Some(jobs), asked: 0, taken: 0, done })
    }

    /// Has it done; what finds 16 waiting is not, and is counted.
    pub(crate) fn run(&mut self, job: impl FnOnce() + Send + 'static) {
        let is_taken = self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(Box::new(job)).is_ok());
        self.asked += 1;
        self.taken += u64::from(is_taken);
    }

    /// Waits until all is done, and no longer than `patience`; says how many things were not.
    /// Nothing is taken from then on.
    pub(crate) fn finish(&mut self, patience: Duration) -> u64 {
        self.jobs = None;
        let until = Instant::now() + patience;
        loop {
            let done = self.done.load(Ordering::Acquire);
            if done == self.taken || Instant::now() >= until {
                return self.asked - done;
            }
            thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    /// The first writes to a pipe that nobody reads: nobody who asks waits for it.
    #[test]
    fn who_asks_waits_for_nothing_and_what_finds_no_room_is_counted() {
        let mut later = Later::start("reports").unwrap();
        let (go, wait) = channel::<()>();
        let (said, heard) = channel();
        let first = said.clone();
        later.run(move || {
            first.send(0).unwrap();
            let _ = wait.recv();
        });
        // It has begun: all places are free.
        assert_eq!(heard.recv(), Ok(0));
        for number in 1..=WAITING + 3 {
            let said = said.clone();
            later.run(move || said.send(number).unwrap());
        }
        assert!(heard.try_recv().is_err(), "one after the other");
        // Nor does the end wait for ever, and what is stuck is counted then.
        assert_eq!(later.finish(3 * LOOK), WAITING as u64 + 4);
        drop((go, said));
        assert_eq!(later.finish(Duration::from_secs(60)), 3);
        assert!(heard.into_iter().eq(1..=WAITING));
    }
}
