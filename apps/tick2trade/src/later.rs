//! What is written while a core polls: by another thread, because a pipe that nobody reads and a
//! disk that hangs hold up whoever writes to them, for ever if need be.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// What may wait at a time.
const WAITING: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// A thread that does one thing after the other, and keeps nobody waiting.
#[derive(Debug)]
pub(crate) struct Later {
    /// `None` behind its end.
    thread: Option<(SyncSender<Job>, JoinHandle<()>)>,
    dropped: u64,
}

impl Later {
    /// Starts a thread of that name, on the cores of who calls.
    ///
    /// # Errors
    /// The system's: no thread can be made.
    pub(crate) fn start(name: &str) -> io::Result<Self> {
        let (jobs, waiting) = sync_channel::<Job>(WAITING);
        let thread = thread::Builder::new().name(name.into()).spawn(move || {
            waiting.into_iter().for_each(|job| job());
        })?;
        Ok(Self { thread: Some((jobs, thread)), dropped: 0 })
    }

    /// Has it done; what finds 16 waiting is not, and is counted.
    pub(crate) fn run(&mut self, job: impl FnOnce() + Send + 'static) {
        let is_taken =
            self.thread.as_ref().is_some_and(|(jobs, _)| jobs.try_send(Box::new(job)).is_ok());
        self.dropped += u64::from(!is_taken);
    }

    /// Waits until all is done; says how many things were not. Nothing is done from then on.
    pub(crate) fn finish(&mut self) -> u64 {
        if let Some((jobs, thread)) = self.thread.take() {
            drop(jobs);
            // One that panicked has said so.
            let _ = thread.join();
        }
        self.dropped
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
        drop((go, said));
        assert_eq!(later.finish(), 3);
        assert!(heard.into_iter().eq(1..=WAITING));
    }
}
