//! What an operator asks of a program that runs: SIGUSR1 or a file for the kill switch, SIGUSR2 for
//! a report.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// How often a file is looked for.
const LOOK: Duration = Duration::from_millis(100);

/// Requests that came and were not taken yet. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Asked(Arc<Flags>);

#[derive(Debug, Default)]
struct Flags {
    kill: AtomicBool,
    report: AtomicBool,
    /// The kill switch was asked for at some time.
    is_thrown: AtomicBool,
}

impl Asked {
    /// Requests that the two signals make. To be called before other threads are started: those
    /// started later have the signals blocked, so that the thread that waits for them gets them.
    ///
    /// # Errors
    /// The system refuses to block a signal, or a thread.
    pub fn on_signals() -> Result<Self> {
        let set = both();
        set.thread_block().context("SIGUSR1 and SIGUSR2 cannot be blocked")?;
        let asked = Self::default();
        let flags = asked.clone();
        let wait = move || {
            while let Ok(signal) = set.wait() {
                flags.raise(signal);
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(wait)
            .context("no thread for SIGUSR1 and SIGUSR2")?;
        Ok(asked)
    }

    /// Requests the kill switch when `file` appears, within a tenth of a second, unless it was
    /// requested before: who throws it makes the file.
    ///
    /// # Errors
    /// The system refuses a thread, or says nothing of the file: a switch that nobody could see.
    pub fn watch(&self, file: PathBuf) -> Result<()> {
        file.try_exists().with_context(|| {
            format!("the kill file {} cannot be looked for; give another place", file.display())
        })?;
        let flags = self.clone();
        let wait = move || {
            while !flags.0.is_thrown.load(Ordering::Acquire) {
                // What cannot be looked for any more counts as there.
                let is_there = file.try_exists().unwrap_or(true);
                if is_there && !flags.0.is_thrown.load(Ordering::Acquire) {
                    flags.raise(Signal::SIGUSR1);
                }
                thread::sleep(LOOK);
            }
        };
        let name = thread::Builder::new().name("kill-file".into());
        name.spawn(wait).context("no thread for the kill file")?;
        Ok(())
    }

    /// Takes signals that came, and that the thread for them has not seen yet: to be called by who
    /// is about to end, for a signal that came with the one that ends.
    pub(crate) fn look(&self) {
        let pending = SignalFd::with_flags(&both(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
        let Ok(pending) = pending else { return };
        while let Ok(Some(info)) = pending.read_signal() {
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                self.raise(signal);
            }
        }
    }

    pub(crate) fn raise(&self, signal: Signal) {
        let flag = match signal {
            Signal::SIGUSR1 => {
                self.0.is_thrown.store(true, Ordering::Release);
                &self.0.kill
            }
            _ => &self.0.report,
        };
        flag.store(true, Ordering::Release);
    }

    /// Whether the kill switch is to be thrown, once. A load, as a rule: fit for a polling loop.
    #[inline]
    pub fn takes_kill(&self) -> bool {
        take(&self.0.kill)
    }

    /// Whether a report is wanted, once.
    #[inline]
    pub fn takes_report(&self) -> bool {
        take(&self.0.report)
    }
}

fn both() -> SigSet {
    [Signal::SIGUSR1, Signal::SIGUSR2].into_iter().collect()
}

#[inline]
fn take(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_taken_once_and_by_its_own_signal() {
        let asked = Asked::default();
        assert!(!asked.takes_kill() && !asked.takes_report());
        asked.raise(Signal::SIGUSR1);
        let other = asked.clone();
        assert!(!other.takes_report() && other.takes_kill() && !asked.takes_kill());
        asked.raise(Signal::SIGUSR2);
        assert!(!other.takes_kill() && other.takes_report() && !asked.takes_report());
    }

    /// Blocked and sent to this thread, it is pending, and no other thread takes it.
    #[test]
    fn a_signal_that_nobody_saw_yet_is_taken_by_who_looks() {
        let asked = Asked::default();
        both().thread_block().unwrap();
        asked.look();
        assert!(!asked.takes_kill());
        nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
        asked.look();
        assert!(asked.takes_kill() && !asked.takes_report());
    }

    #[test]
    fn a_file_that_appears_is_a_request_and_one_that_follows_a_request_is_none() {
        let dir = tempfile::tempdir().unwrap();
        // Long for what is to come, and shorter for what is not.
        let takes = |asked: &Asked, looks: u32| {
            let until = std::time::Instant::now() + looks * LOOK;
            while std::time::Instant::now() < until {
                if asked.takes_kill() {
                    return true;
                }
                thread::sleep(LOOK / 10);
            }
            false
        };
        let (asked, file) = (Asked::default(), dir.path().join("kill"));
        asked.watch(file.clone()).unwrap();
        thread::sleep(2 * LOOK);
        assert!(!asked.takes_kill(), "nobody made it yet");
        std::fs::write(&file, "").unwrap();
        assert!(takes(&asked, 600) && !takes(&asked, 10), "once");
        let (asked, file) = (Asked::default(), dir.path().join("other"));
        asked.watch(file.clone()).unwrap();
        asked.raise(Signal::SIGUSR1);
        assert!(asked.takes_kill());
        std::fs::write(&file, "").unwrap();
        assert!(!takes(&asked, 10));
    }
}
