//! How a polling core waits when it finds nothing to do.

use std::{fmt, hint, str::FromStr, thread, time::Duration};

use thiserror::Error;

/// What a core does after a poll that found nothing.
///
/// | strategy | costs | for |
/// |---|---|---|
/// | `busy` | a whole core | dedicated cores, and guests: PAUSE may leave the guest |
/// | `spin` | a whole core, less power and a share for its SMT sibling | bare metal with SMT |
/// | `yield` | a system call per idle poll | more threads than cores |
/// | `sleep` | up to 50 µs of latency | machines that must stay cool; tests |
/// | `interrupt` | an interrupt of latency after a pause | cores that others want too |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Polls again at once.
    #[default]
    Busy,
    /// Executes the processor's spin hint (PAUSE).
    Spin,
    /// Gives the core to another thread that is ready.
    Yield,
    /// Sleeps for [`Wait::SLEEP`].
    Sleep,
    /// Sleeps until the device has something, where the caller can; otherwise as [`Wait::Sleep`].
    Interrupt,
}

/// A wait strategy that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unknown wait strategy `{0}`; give busy, spin, yield, sleep or interrupt")]
pub struct UnknownWait(String);

impl Wait {
    /// How long [`Wait::Sleep`] sleeps.
    pub const SLEEP: Duration = Duration::from_micros(50);

    /// Waits once, after a poll that found nothing.
    #[inline]
    pub fn idle(self) {
        match self {
            Self::Busy => {}
            Self::Spin => hint::spin_loop(),
            Self::Yield => thread::yield_now(),
            Self::Sleep | Self::Interrupt => thread::sleep(Self::SLEEP),
        }
    }
}

impl FromStr for Wait {
    type Err = UnknownWait;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "busy" => Ok(Self::Busy),
            "spin" => Ok(Self::Spin),
            "yield" => Ok(Self::Yield),
            "sleep" => Ok(Self::Sleep),
            "interrupt" => Ok(Self::Interrupt),
            _ => Err(UnknownWait(text.into())),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Sleep => "sleep",
            Self::Interrupt => "interrupt",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        for wait in [Wait::Busy, Wait::Spin, Wait::Yield, Wait::Sleep, Wait::Interrupt] {
            assert_eq!(wait.to_string().parse(), Ok(wait));
            wait.idle();
        }
        assert!("nap".parse::<Wait>().unwrap_err().to_string().contains("`nap`"));
    }
}
