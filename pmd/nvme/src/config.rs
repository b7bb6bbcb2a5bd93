//! [`Config`]: how a drive is used.

use std::time::Duration;

use crate::NvmeError;

/// How a drive is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Entries of a queue: a power of two, 2 to 1024. One less can be under way; fewer where the
    /// drive has smaller queues.
    pub entries: u16,
    /// Queue pairs to ask the drive for: 1 to 256.
    pub queues: u16,
    /// How long a command may take before it is aborted: 1 ms to 10 minutes. 30 s by default, as
    /// Linux has it: drives that tidy up may be silent for long.
    pub timeout: Duration,
    /// How long a command of the admin queue may take before the drive is reset: 1 ms to 10
    /// minutes. 60 s by default, as Linux has it. An Abort has `patience`.
    pub admin_timeout: Duration,
    /// How long after its abort a command may still be under way before the drive is reset.
    pub patience: Duration,
    /// How long the drive's shutdown may take at least, 1 ms to 10 minutes: where it says that it
    /// needs longer (RTD3E), it has that, up to a minute.
    pub shutdown: Duration,
    /// Describe data by an SGL where the drive takes such, else by lists of pages. A drive that is
    /// known to say so wrongly gets lists.
    pub use_sgl: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            entries: 128,
            queues: 64,
            timeout: Duration::from_secs(30),
            admin_timeout: Duration::from_secs(60),
            patience: Duration::from_secs(1),
            shutdown: Duration::from_secs(5),
            use_sgl: true,
        }
    }
}

impl Config {
    pub(crate) fn check(&self) -> Result<(), NvmeError> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        for (what, value, min, max) in [
            ("entries", u64::from(self.entries), 2, 1024),
            ("queues", u64::from(self.queues), 1, 256),
            ("timeout in ms", ms(self.timeout), 1, 600_000),
            ("admin_timeout in ms", ms(self.admin_timeout), 1, 600_000),
            ("shutdown in ms", ms(self.shutdown), 1, 600_000),
        ] {
            if !(min..=max).contains(&value) {
                return Err(NvmeError::OutOfRange { what, value, min, max });
            }
        }
        if !self.entries.is_power_of_two() {
            let (what, value) = ("entries (a power of two)", self.entries.into());
            return Err(NvmeError::OutOfRange { what, value, min: 2, max: 1024 });
        }
        Ok(())
    }
}
