//! When a thread that polls was not on its core, by the kernel's own count.
//!
//! A round of a polling loop that takes long may be one in which another thread had the core. The
//! kernel knows: it counts how long each thread stood ready while another ran. What an interrupt or
//! a hypervisor takes is not in that count; [`jitter`] sees all of it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::latency::{histogram, now_ns};

/// A round that takes so long makes the kernel be asked, ns.
const SUSPICIOUS_NS: u64 = 20_000;
/// What the kernel says then is an absence from here on, ns.
const ABSENCE_NS: u64 = 10_000;
/// Absences that are told apart at most.
const KEPT: usize = 1 << 16;

/// A time in which another thread had the core for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Absence {
    /// The round's start.
    pub from_ns: u64,
    /// Its end.
    pub until_ns: u64,
    /// How long the thread stood ready and another ran.
    pub waited_ns: u64,
}

/// Notes when the calling thread was away. Nothing is allocated after [`Watch::start`], and nobody
/// is asked while rounds are short.
#[derive(Debug)]
pub struct Watch {
    /// The kernel's count of this thread; `None` if it keeps none.
    count: Option<File>,
    waited_ns: u64,
    round_ns: u64,
    /// What was due in the last absence is not made up for yet.
    is_behind: bool,
    absences: Vec<Absence>,
}

impl Watch {
    /// Watches the calling thread, in which it has to stay, from `now_ns` on.
    pub fn start(now_ns: u64) -> Self {
        let count = File::open("/proc/thread-self/schedstat").ok();
        let absences = Vec::with_capacity(KEPT);
        let mut watch = Self { count, waited_ns: 0, round_ns: now_ns, is_behind: false, absences };
        watch.waited_ns = watch.waited();
        watch
    }

    /// A round begins.
    #[inline]
    pub fn round(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.round_ns) >= SUSPICIOUS_NS {
            self.ask(now_ns);
        }
        self.round_ns = now_ns;
    }

    #[cold]
    fn ask(&mut self, now_ns: u64) {
        let waited_ns = self.waited();
        let since_ns = waited_ns.saturating_sub(self.waited_ns);
        self.waited_ns = waited_ns;
        if since_ns < ABSENCE_NS {
            return;
        }
        self.is_behind = true;
        let is_full = self.absences.len() == KEPT;
        match self.absences.last_mut() {
            // What lies between those that are too many is as good as disturbed.
            Some(last) if is_full => {
                last.until_ns = now_ns;
                last.waited_ns += since_ns;
            }
            _ => {
                let (from_ns, until_ns) = (self.round_ns, now_ns);
                self.absences.push(Absence { from_ns, until_ns, waited_ns: since_ns });
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

    /// How long the thread stood ready so far while another ran, ns; 0 if nobody counts.
    fn waited(&self) -> u64 {
        let mut text = [0; 96];
        let read = self.count.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or(0)]).unwrap_or_default();
        // Time on the core, time ready, turns.
        text.split_ascii_whitespace().nth(1).and_then(|ready| ready.parse().ok()).unwrap_or(0)
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

    #[test]
    fn what_overlaps_an_absence_is_disturbed_and_nothing_else() {
        let absence = |from_ns, until_ns| Absence { from_ns, until_ns, waited_ns: 1 };
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
        watch.absences.push(Absence { from_ns: 10, until_ns: 20, waited_ns: 10 });
        watch.is_behind = true;
        for (is_late, now_ns, until_ns) in
            [(true, 21, 21), (true, 30, 30), (false, 40, 30), (true, 50, 30)]
        {
            watch.due(is_late, now_ns);
            assert_eq!(watch.absences[0].until_ns, until_ns, "at {now_ns}");
        }
    }

    /// Two threads that spin on one core take turns: each hears of the other's.
    #[test]
    fn a_thread_that_shares_its_core_hears_of_it() {
        if !std::path::Path::new("/proc/thread-self/schedstat").exists() {
            return;
        }
        let Some(core) = core_affinity::get_core_ids().unwrap_or_default().pop() else { return };
        let spin = move || {
            assert!(core_affinity::set_for_current(core));
            let mut watch = Watch::start(now_ns());
            let until = now_ns() + 30_000_000_000;
            while now_ns() < until && watch.absences.len() < 3 {
                watch.round(now_ns());
            }
            watch.into_absences()
        };
        let threads = [std::thread::spawn(spin), std::thread::spawn(spin)];
        // The second to end may have been alone for the rest of its time.
        let heard = threads.map(|thread| thread.join().unwrap());
        assert!(heard.iter().any(|absences| absences.len() == 3), "{heard:?}");
        for absence in heard.iter().flatten() {
            assert!(absence.until_ns > absence.from_ns && absence.waited_ns >= ABSENCE_NS);
        }
    }

    #[test]
    fn absences_are_no_longer_than_the_measurement() {
        let absences = jitter(Duration::from_millis(20));
        assert!(absences.max() <= 10_000_000_000);
        assert!(absences.is_empty() || absences.min() >= 990);
    }

    #[test]
    fn a_round_that_slept_was_not_away() {
        let mut watch = Watch::start(now_ns());
        std::thread::sleep(Duration::from_millis(50));
        watch.round(now_ns());
        // On a busy machine it waits for its core behind its sleep, but not while it sleeps.
        for absence in watch.into_absences() {
            assert!(absence.until_ns - absence.from_ns >= absence.waited_ns + 50_000_000);
        }
    }
}
