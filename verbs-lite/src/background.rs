//! [`Background`]: a thread that does what is due now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::VerbsError;

/// A thread that does what is due, until this is dropped: of a
/// [`ConnectionManager`](crate::cm::ConnectionManager::background).
#[derive(Debug)]
pub struct Background {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts a thread that calls `turn` again and again, and sleeps for `interval` whenever it
    /// found nothing to do.
    pub(crate) fn spawn(
        name: &str,
        interval: Duration,
        mut turn: impl FnMut() -> bool + Send + 'static,
    ) -> Result<Self, VerbsError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = move || {
            while !stopped.load(Ordering::Acquire) {
                if !turn() {
                    std::thread::sleep(interval);
                }
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run);
        Ok(Self { stop, thread: Some(thread.map_err(VerbsError::Thread)?) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a background thread panicked");
        }
    }
}
