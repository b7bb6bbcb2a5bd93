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
/// | `sleep`, `sleep:N` | up to 50 µs of latency, or N µs | machines that must stay cool; tests |
/// | `interrupt` | an interrupt of latency after a pause | cores that others want too |
/// | `interrupt:N` | the same, and up to N µs more | the same under load: fewer interrupts |
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wait {
    /// Polls again at once.
    #[default]
    Busy,
    /// Executes the processor's spin hint (PAUSE).
    Spin,
    /// Gives the core to another thread that is ready.
    Yield,
    /// Sleeps this long, and as much longer as the kernel's timers take (50 µs by default). The
    /// longer, the more one waking has to do.
    Sleep(Duration),
    /// Sleeps until the device has something, where the caller can; otherwise for [`Wait::SLEEP`].
    /// The device interrupts no sooner than so long after it did last, as `ethtool -C` has it.
    Interrupt(Duration),
}

/// A wait strategy that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "unknown wait strategy `{0}`; give busy, spin, yield, sleep or interrupt, or sleep:N or \
     interrupt:N with N of 1 to 1000 microseconds"
)]
pub struct UnknownWait(String);

impl Wait {
    /// How long `sleep` sleeps when it is not told.
    pub const SLEEP: Duration = Duration::from_micros(50);
    /// The longest it may be told to: what has timers of a millisecond still keeps them.
    pub const LONGEST: Duration = Duration::from_millis(1);

    /// Waits once, after a poll that found nothing.
    #[inline]
    pub fn idle(self) {
        match self {
            Self::Busy => {}
            Self::Spin => hint::spin_loop(),
            Self::Yield => thread::yield_now(),
            Self::Sleep(pause) => thread::sleep(pause),
            Self::Interrupt(_) => thread::sleep(Self::SLEEP),
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
            "sleep" => Ok(Self::Sleep(Self::SLEEP)),
            "interrupt" => Ok(Self::Interrupt(Duration::ZERO)),
            _ => text
                .split_once(':')
                .and_then(|(name, micros)| {
                    let time = Duration::from_micros(micros.parse().ok()?);
                    if time.is_zero() || time > Self::LONGEST {
                        return None;
                    }
                    match name {
                        "sleep" => Some(Self::Sleep(time)),
                        "interrupt" => Some(Self::Interrupt(time)),
                        _ => None,
                    }
                })
                .ok_or_else(|| UnknownWait(text.into())),
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "busy",
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Sleep(Self::SLEEP) => "sleep",
            Self::Sleep(pause) => return write!(f, "sleep:{}", pause.as_micros()),
            Self::Interrupt(Duration::ZERO) => "interrupt",
            Self::Interrupt(apart) => return write!(f, "interrupt:{}", apart.as_micros()),
        })
    }
}

impl serde::Serialize for Wait {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_printed() {
        let times = [Wait::SLEEP, Duration::from_micros(200), Wait::LONGEST];
        let timed = times.into_iter().flat_map(|time| [Wait::Sleep(time), Wait::Interrupt(time)]);
        let others = [Wait::Busy, Wait::Spin, Wait::Yield, Wait::Interrupt(Duration::ZERO)];
        for wait in timed.chain(others) {
            assert_eq!(wait.to_string().parse(), Ok(wait));
            wait.idle();
        }
        assert_eq!("sleep".parse(), Ok(Wait::Sleep(Wait::SLEEP)));
        for wrong in
            ["nap", "sleep:", "sleep:0", "sleep:1001", "sleep:-1", "sleep:5us", "busy:9", "nap:5"]
        {
            let refused = wrong.parse::<Wait>().unwrap_err().to_string();
            assert!(refused.contains(&format!("`{wrong}`")), "{refused}");
        }
    }
}
