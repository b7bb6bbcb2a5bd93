//! Ctrl-C and termination as a flag.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use std::time::{Duration, Instant};

use thiserror::Error;

/// A signal so soon behind the first is the same wish: `timeout` sends each to the program and once
/// more to its group.
const SAME_WISH: Duration = Duration::from_millis(500);

/// Tells every thread of an application that it should end. Clones share one flag.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicU32>);

/// The handler could not be installed.
#[derive(Debug, Error)]
#[error("cannot handle Ctrl-C: {0}")]
pub struct SignalError(#[from] ctrlc::Error);

impl Stop {
    /// A flag that nothing raises but [`Stop::raise`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A flag that SIGINT, SIGTERM and SIGHUP raise. Another signal, half a second later or more,
    /// ends the process at once, with code 130, for a run that does not come to its end.
    ///
    /// # Errors
    /// [`SignalError`] if a handler is already installed in this process.
    pub fn on_signals() -> Result<Self, SignalError> {
        let stop = Self::new();
        let flag = stop.clone();
        let mut first = None::<Instant>;
        ctrlc::set_handler(move || match first {
            None => {
                first = Some(Instant::now());
                flag.raise();
            }
            Some(first) if first.elapsed() < SAME_WISH => {}
            Some(_) => std::process::exit(130),
        })?;
        Ok(stop)
    }

    /// Asks for the end; answers how often it was asked for before.
    pub fn raise(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether the end was asked for. One relaxed load: fit for a polling loop.
    #[inline]
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_the_flag() {
        let stop = Stop::new();
        let other = stop.clone();
        assert!(!other.is_raised());
        assert_eq!(stop.raise(), 0);
        assert!(other.is_raised());
        assert_eq!(other.raise(), 1);
    }
}
