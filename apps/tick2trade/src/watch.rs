//! When a thread that polls was not on its core, and who says so.
//!
//! | who had the core | who says so | seen in |
//! |---|---|---|
//! | another thread | the kernel: it counts how long each stood ready meanwhile | all rounds |
//! | nobody known: an interrupt, firmware, the host of a virtual machine | the clock | rounds without work |
//!
//! The clock is believed of a round that had nothing to do, that took long all the same, and in
//! which the thread did not sleep, by the kernel's count.
//!
//! A round that had work to do may have taken long for that work. The clock alone never makes an
//! absence of it: what takes the core away then, and nobody counts, is in the figures as if it were
//! ours. So is every absence of less than [`SUSPICIOUS_NS`].
//!
//! A thread that sleeps until something comes sees none of the second kind, for it is not there to
//! look. Another one of the idle class, which spins on the same core, sees them in its place.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};

use crate::latency::{histogram, now_ns};

/// A round that takes so long makes the kernel be asked, ns.
pub const SUSPICIOUS_NS: u64 = 20_000;
/// What the kernel says then is an absence from here on, ns.
const ABSENCE_NS: u64 = 10_000;
/// Absences that are told apart at most.
const KEPT: usize = 1 << 16;

/// Who had the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taker {
    /// Another thread, by the kernel's count.
    Thread,
    /// Interrupts, firmware or the host: the thread had nothing to do, and its clock jumped.
    Machine,
}

/// A time in which the thread was not on its core for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// The round's start.
    pub from_ns: u64,
    /// Its end.
    pub until_ns: u64,
    /// How much of it the thread was away.
    pub away_ns: u64,
    /// Who had the core.
    pub taker: Taker,
}

/// What the kernel counts of a thread.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    /// Time that it stood ready while another ran, ns.
    waited_ns: u64,
    /// Times that it gave its core up by itself: it slept.
    sleeps: i64,
}

/// Notes when the calling thread was away. Nothing is allocated after [`Watch::start`], and nobody
/// is asked while rounds are short.
#[derive(Debug)]
pub struct Watch {
    /// The kernel's count of this thread; `None` if it keeps none.
    file: Option<File>,
    /// What it was when it was last looked at.
    counts: Counts,
    round_ns: u64,
    /// What was due in the last absence is not made up for yet.
    is_behind: bool,
    absences: Vec<Absence>,
}

impl Watch {
    /// Watches the calling thread, in which it has to stay, from `now_ns` on.
    pub fn start(now_ns: u64) -> Self {
        let file = File::open("/proc/thread-self/schedstat").ok();
        let absences = Vec::with_capacity(KEPT);
        let (round_ns, counts) = (now_ns, Counts::default());
        let mut watch = Self { file, counts, round_ns, is_behind: false, absences };
        watch.counts = watch.count().unwrap_or_default();
        watch
    }

    /// A round begins; `was_idle` says of the one that ends here that it had nothing to do.
    #[inline]
    pub fn round(&mut self, now_ns: u64, was_idle: bool) {
        if now_ns.saturating_sub(self.round_ns) >= SUSPICIOUS_NS {
            self.ask(now_ns, was_idle);
        }
        self.round_ns = now_ns;
    }

    #[cold]
    fn ask(&mut self, now_ns: u64, was_idle: bool) {
        // Of a thread that nobody counts nothing is known.
        let Some(counts) = self.count() else { return };
        let before = std::mem::replace(&mut self.counts, counts);
        self.note(now_ns, was_idle, before);
    }

    /// Notes who had the core in the round that ends, if anybody had, by what the kernel counted
    /// since it was `before`.
    fn note(&mut self, now_ns: u64, was_idle: bool, before: Counts) {
        let waited_ns = self.counts.waited_ns.saturating_sub(before.waited_ns);
        let (away_ns, taker) = if waited_ns >= ABSENCE_NS {
            (waited_ns, Taker::Thread)
        } else if was_idle && self.counts.sleeps == before.sleeps {
            (now_ns.saturating_sub(self.round_ns), Taker::Machine)
        } else {
            return;
        };
        self.is_behind = true;
        let is_full = self.absences.len() == KEPT;
        match self.absences.last_mut() {
            // What lies between those that are too many is as good as disturbed.
            Some(last) if is_full => {
                last.until_ns = now_ns;
                last.away_ns += away_ns;
            }
            _ => {
                let (from_ns, until_ns) = (self.round_ns, now_ns);
                self.absences.push(Absence { from_ns, until_ns, away_ns, taker });
            }
        }
    }

    /// A thread that does something at times that were set says at each whether it came late for
    /// it: what is made up for in a row behind an absence belongs to that absence.
    pub fn due(&mut self, is_late: bool, now_ns: u64) {
        self.is_behind &= is_late;
        if self.is_behind
            && let Some(last) = self.absences.last_mut()
        {
            last.until_ns = now_ns;
        }
    }

    /// What the kernel counted of this thread so far; `None` if it does not.
    fn count(&self) -> Option<Counts> {
        let mut text = [0; 96];
        let read = self.file.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = std::str::from_utf8(&text[..read]).ok()?;
        // Time on the core, time ready, turns.
        let waited_ns = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let usage = getrusage(UsageWho::RUSAGE_THREAD).ok()?;
        Some(Counts { waited_ns, sleeps: usage.voluntary_context_switches() })
    }

    /// Forgets what was so far.
    pub fn forget(&mut self) {
        self.absences.clear();
        self.is_behind = false;
    }

    /// What was noted, in the order of time.
    pub fn into_absences(self) -> Vec<Absence> {
        self.absences
    }
}

/// Whether something that took `took_ns` from `from_ns` on was under way during one of `absences`,
/// which are in the order of time.
pub fn is_disturbed(absences: &[Absence], from_ns: u64, took_ns: u64) -> bool {
    let next = absences.partition_point(|absence| absence.until_ns < from_ns);
    absences.get(next).is_some_and(|absence| absence.from_ns <= from_ns.saturating_add(took_ns))
}

/// Gaps between two readings of the clock that are longer than this count as absence, ns.
const GAP_NS: u64 = 1_000;

/// How long the calling core was elsewhere, each time, while it did nothing but read the clock.
pub fn jitter(duration: Duration) -> Histogram<u64> {
    let mut absences = histogram();
    let mut before = now_ns();
    let end = before.saturating_add(duration.as_nanos() as u64);
    while before < end {
        let now = now_ns();
        let gap = now.saturating_sub(before);
        if gap >= GAP_NS {
            absences.saturating_record(gap);
        }
        before = now;
    }
    absences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(from_ns: u64, until_ns: u64) -> Absence {
        Absence { from_ns, until_ns, away_ns: 1, taker: Taker::Thread }
    }

    #[test]
    fn what_overlaps_an_absence_is_disturbed_and_nothing_else() {
        let absences = [absence(10, 20), absence(40, 50)];
        for (from, took, expected) in
            [(0, 9, false), (0, 10, true), (15, 1, true), (20, 0, true), (21, 18, false)]
        {
            assert_eq!(is_disturbed(&absences, from, took), expected, "{from} {took}");
        }
        assert!(is_disturbed(&absences, 21, 19) && !is_disturbed(&absences, 51, 1_000));
        assert!(!is_disturbed(&[], 0, u64::MAX));
    }

    #[test]
    fn what_is_made_up_for_belongs_to_the_absence_and_what_comes_later_does_not() {
        let mut watch = Watch::start(0);
        watch.due(true, 5);
        assert_eq!(watch.absences, [], "late, but not for an absence");
        watch.absences.push(absence(10, 20));
        watch.is_behind = true;
        for (is_late, now_ns, until_ns) in
            [(true, 21, 21), (true, 30, 30), (false, 40, 30), (true, 50, 30)]
        {
            watch.due(is_late, now_ns);
            assert_eq!(watch.absences[0].until_ns, until_ns, "at {now_ns}");
        }
    }

    /// Whether the kernel counts how long threads wait; if not, a test that asks it says so.
    fn is_counted() -> bool {
        let is_counted = std::path::Path::new("/proc/thread-self/schedstat").exists();
        if !is_counted {
            println!("skipped: this kernel has no /proc/thread-self/schedstat");
        }
        is_counted
    }

    /// Two threads that spin on one core take turns: each hears of the other's.
    #[test]
    fn a_thread_that_shares_its_core_hears_of_it() {
        if !is_counted() {
            return;
        }
        let core = core_affinity::get_core_ids().unwrap_or_default().pop().expect("a core");
        let spin = move || {
            assert!(core_affinity::set_for_current(core));
            let mut watch = Watch::start(now_ns());
            let until = now_ns() + 30_000_000_000;
            while now_ns() < until && watch.absences.len() < 3 {
                watch.round(now_ns(), false);
            }
            watch.into_absences()
        };
        let threads = [std::thread::spawn(spin), std::thread::spawn(spin)];
        // The second to end may have been alone for the rest of its time.
        let heard = threads.map(|thread| thread.join().unwrap());
        assert!(heard.iter().any(|absences| absences.len() == 3), "{heard:?}");
        for absence in heard.iter().flatten() {
            assert!(absence.until_ns > absence.from_ns && absence.away_ns >= ABSENCE_NS);
            assert_eq!(absence.taker, Taker::Thread, "its rounds had work");
        }
    }

    #[test]
    fn absences_are_no_longer_than_the_measurement() {
        let absences = jitter(Duration::from_millis(20));
        assert!(absences.max() <= 10_000_000_000);
        assert!(absences.is_empty() || absences.min() >= 990);
    }

    /// Idle or not: who sleeps is not away, however long.
    #[test]
    fn a_round_that_slept_was_not_away() {
        for was_idle in [true, false] {
            let mut watch = Watch::start(now_ns());
            std::thread::sleep(Duration::from_millis(50));
            watch.round(now_ns(), was_idle);
            // What the kernel has counted by then happened before this.
            let after_ns = now_ns();
            // On a busy machine it waits for its core behind its sleep, but not while it sleeps.
            for Absence { from_ns, away_ns, taker, .. } in watch.into_absences() {
                assert_eq!(taker, Taker::Thread);
                assert!(after_ns - from_ns >= away_ns + 50_000_000);
            }
        }
    }

    /// A round of 5 ms, by what the kernel counted in it and by whether it had something to do.
    #[test]
    fn the_clock_is_believed_of_a_round_that_had_nothing_to_do_and_never_of_another() {
        let (start_ns, end_ns) = (1_000, 5_001_000);
        let noted = |was_idle, waited_ns: u64, sleeps: i64| {
            let mut watch = Watch::start(start_ns);
            watch.counts = Counts { waited_ns: 7 + waited_ns, sleeps: 3 + sleeps };
            watch.note(end_ns, was_idle, Counts { waited_ns: 7, sleeps: 3 });
            let absences = watch.into_absences();
            assert!(absences.iter().all(|one| (one.from_ns, one.until_ns) == (start_ns, end_ns)));
            absences.first().map(|absence| (absence.taker, absence.away_ns))
        };
        let all = 5_000_000;
        assert_eq!(noted(true, 0, 0), Some((Taker::Machine, all)));
        assert_eq!(noted(true, ABSENCE_NS - 1, 0), Some((Taker::Machine, all)));
        assert_eq!(noted(false, ABSENCE_NS - 1, 0), None, "that was its work");
        assert_eq!(noted(true, 0, 1), None, "it slept");
        for was_idle in [true, false] {
            let counted = Some((Taker::Thread, ABSENCE_NS));
            assert_eq!(noted(was_idle, ABSENCE_NS, 0), counted);
            assert_eq!(noted(was_idle, ABSENCE_NS, 9), counted);
        }
    }

    #[test]
    fn rounds_that_are_short_are_none_of_anybodys_business() {
        let mut watch = Watch::start(0);
        (1..1_000).for_each(|round| watch.round(round * (SUSPICIOUS_NS - 1), true));
        assert_eq!(watch.into_absences(), []);
    }

    /// A clock that is put forward under a thread that runs is what a host looks like that takes
    /// the core: the kernel knows of nothing.
    #[test]
    fn a_core_that_is_away_while_nobody_counts_is_noted_once_by_the_clock() {
        if !is_counted() {
            return;
        }
        // On a busy machine another thread may have the core in this very moment: then again.
        let noted = (0..1_000).find_map(|_| {
            let mut watch = Watch::start(0);
            watch.round(3_000_000, true);
            watch.round(3_000_100, true);
            let absences = watch.into_absences();
            (absences.first()?.taker == Taker::Machine).then_some(absences)
        });
        let (from_ns, until_ns, away_ns) = (0, 3_000_000, 3_000_000);
        let expected = Absence { from_ns, until_ns, away_ns, taker: Taker::Machine };
        assert_eq!(noted.unwrap(), [expected]);
    }
}
