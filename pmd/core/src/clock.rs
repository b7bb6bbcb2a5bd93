//! [`Clock`]: what the device's timestamps say in nanoseconds of a clock of the host.

use std::collections::VecDeque;
use std::fmt;

use ferrocx_bus::Bar;
use ferrocx_prm::init_seg::offset;
use rustix::time::{ClockId, DynamicClockId, clock_gettime, clock_gettime_dynamic};

use crate::cmd::DeadDevice;
use crate::device::Device;
use crate::error::{ConfigError, DeviceError};

/// Readings of one update: the one during which least time passed counts.
const READS: usize = 5;
/// Readings of one update at most, of a counter that stands still now and then; and of the first,
/// which has nothing to fall back on.
const UPDATE_TRIES: usize = 100;
const FIRST_TRIES: usize = 100_000;
/// Comparisons that the rate is computed from, at most.
const SAMPLES: usize = 16;
/// An error above this is a clock that was set, not one that wanders.
const STEP_NS: u64 = 1_000_000;
/// Of the samples that give a rate to this many nanoseconds in an interval, the newest is used: a
/// rate that wanders is best known from what was lately.
const RATE_ERROR_NS: u128 = 25;
/// Largest difference from the rate of the capability page that is believed: 1 in 1000. Crystals
/// are 20 times better.
const MAX_DRIFT: u64 = 1000;
/// Fraction bits of a rate, in nanoseconds for a tick.
const RATE_BITS: u32 = 32;

/// A clock of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ClockSource {
    /// Since some moment before the host started: never set, and the one of
    /// [`Instant`](std::time::Instant).
    #[default]
    Monotonic,
    /// Since 1970, UTC: what NTP or PTP daemons discipline.
    Realtime,
    /// Since 1970 without leap seconds.
    Tai,
}

impl ClockSource {
    /// Nanoseconds now.
    #[must_use]
    pub fn now_ns(self) -> u64 {
        let now = match self {
            Self::Monotonic => clock_gettime(ClockId::Monotonic),
            Self::Realtime => clock_gettime(ClockId::Realtime),
            // Linux has had it since 3.10; a kernel without would be the same second as UTC's.
            Self::Tai => clock_gettime_dynamic(DynamicClockId::Tai)
                .unwrap_or_else(|_| clock_gettime(ClockId::Realtime)),
        };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// From where on a rate holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Segment {
    ticks: u64,
    ns: u64,
    /// Nanoseconds for a tick, with [`RATE_BITS`] of fraction.
    rate: u64,
}

impl Segment {
    #[inline(always)]
    fn to_ns(self, ticks: u64) -> u64 {
        let scaled = |ticks: u64| {
            let ns = (u128::from(ticks) * u128::from(self.rate)) >> RATE_BITS;
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        match ticks.checked_sub(self.ticks) {
            Some(after) => self.ns.saturating_add(scaled(after)),
            None => self.ns.saturating_sub(scaled(self.ticks - ticks)),
        }
    }
}

/// Converts timestamps, for as long as the updates are not further apart than it matters. A small
/// copy, for each core to have its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeBase {
    /// The last rate, and the one before it for timestamps that are older.
    now: Segment,
    before: Segment,
}

impl TimeBase {
    /// Nanoseconds of the chosen clock at which the device's counter had a value. A later value
    /// never gives an earlier time, across updates as well, unless the host's clock was set back.
    #[inline]
    #[must_use]
    pub fn to_ns(&self, ticks: u64) -> u64 {
        let segment = if ticks >= self.now.ticks { self.now } else { self.before };
        segment.to_ns(ticks)
    }
}

/// How well the clocks agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ClockStats {
    /// Comparisons so far.
    pub updates: u64,
    /// What the conversion was wrong by when the last one came, positive where it was late.
    pub error_ns: i64,
    /// Host time that passed during the last comparison: it may be wrong by half of that.
    pub width_ns: u64,
    /// Updates that nothing was learnt from, because the counter stood still.
    pub missed: u64,
    /// How much faster the counter runs than the capability page says, in parts in 10^9, negative
    /// for slower.
    pub drift_ppb: i64,
    /// Times that the host's clock was set.
    pub steps: u64,
}

/// One comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    ticks: u64,
    ns: u64,
    width_ns: u64,
}

/// The device's counter beside a clock of the host.
///
/// Completions carry ticks of a counter that runs freely, at a rate that is known to some parts in
/// a million and wanders with temperature. A [`Clock`] compares it with a clock of the host now and
/// then ([`Clock::update`], once a second or so) and answers with a [`TimeBase`], which converts
/// without any of that: two compares, a multiplication.
///
/// The conversion has no jumps: what an update finds wrong is made good until the next one, by a
/// rate that is a little higher or lower. Only when the host's own clock was set, by more than a
/// millisecond and a thousandth of the time since the last update, the conversion is set, too.
/// Source of the counter: reference 1.1, `internal_timer_h`.
pub struct Clock {
    device: Device,
    now_ns: Box<dyn FnMut() -> u64 + Send>,
    fit: Fit,
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("fit", &self.fit).finish_non_exhaustive()
    }
}

impl Device {
    /// Compares the device's counter with a clock of the host, for the first time.
    ///
    /// Its rate is that of the capability page until the first [`Clock::update`], and what that
    /// got wrong is made good until the second: 20 ppm of a second are 20 us. From
    /// [`Clock::SETTLING_UPDATES`] on, a second apart, conversions are wrong by 50 ns at most and
    /// what reading the counter takes ([`ClockStats::width_ns`]); so it is for an hour of a crystal
    /// that wanders by 2 ppm in ten minutes.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Unsupported`] for a device that does not say how fast its counter runs, or
    /// whose counter stands still; [`DeviceError::Dead`].
    pub fn clock(&self, source: ClockSource) -> Result<Clock, DeviceError> {
        self.clock_by(move || source.now_ns())
    }

    /// Compares the device's counter with a clock of the caller's, which says nanoseconds and runs
    /// forward: another device's, a cycle counter, a simulated one. Otherwise it is
    /// [`Device::clock`].
    ///
    /// A software model's counter stands still between two steps: it shows when the last one began.
    /// Then only a reading that differs from the one before is believed, and the steps are those of
    /// [`Device::relax`]; `now_ns` has only to say the time.
    ///
    /// # Errors
    ///
    /// Those of [`Device::clock`].
    pub fn clock_by(
        &self,
        now_ns: impl FnMut() -> u64 + Send + 'static,
    ) -> Result<Clock, DeviceError> {
        let khz = self.clock_khz();
        if khz == 0 {
            let (what, way_out) = ("clock of a known rate", "update its firmware");
            return Err(ConfigError::Unsupported { what, way_out }.into());
        }
        let mut now_ns = Box::new(now_ns);
        let Some(first) = sample(self, &mut *now_ns, FIRST_TRIES)? else {
            let (what, way_out) = ("clock that runs", "let something step the model, or reset it");
            return Err(ConfigError::Unsupported { what, way_out }.into());
        };
        Ok(Clock { device: self.clone(), now_ns, fit: Fit::new(khz, first) })
    }
}

impl Device {
    /// What the device's counter shows now, in ticks. A read of registers: not for the hot path.
    #[must_use]
    pub fn clock_ticks(&self) -> u64 {
        read_counter(&*self.inner().bar)
    }

    /// How fast the counter runs, in kHz by the capability page; 0 if the device does not say.
    #[must_use]
    pub fn clock_khz(&self) -> u32 {
        self.inner().made.caps.hca.device_frequency_khz()
    }
}

impl Clock {
    /// Updates, a second apart, that a conversion needs to become as good as it gets.
    pub const SETTLING_UPDATES: u64 = 2;

    /// Compares again, and mends rate and error. Not for the hot path: register reads and system
    /// calls.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Dead`]; the conversion stays as it was.
    pub fn update(&mut self) -> Result<(), DeviceError> {
        match sample(&self.device, &mut *self.now_ns, UPDATE_TRIES)? {
            Some(sample) => self.fit.add(sample),
            None => self.fit.stats.missed += 1,
        }
        Ok(())
    }

    /// The conversion since the last update.
    #[must_use]
    pub fn time_base(&self) -> TimeBase {
        self.fit.base
    }

    /// How well the clocks agree.
    #[must_use]
    pub fn stats(&self) -> ClockStats {
        self.fit.stats
    }
}

/// The best of some readings of both clocks; `None` if the counter stood still all the time.
fn sample(
    device: &Device,
    now_ns: &mut dyn FnMut() -> u64,
    tries: usize,
) -> Result<Option<Sample>, DeviceError> {
    let bar = device.inner().bar.as_ref();
    let read = || {
        let from_ns = now_ns();
        let ticks = read_counter(bar);
        Reading { from_ns, ticks, until_ns: now_ns() }
    };
    Ok(best(read, || device.relax(), tries)?)
}

/// The counter, read at a moment between two readings of the host's clock.
#[derive(Debug, Clone, Copy)]
struct Reading {
    from_ns: u64,
    ticks: u64,
    until_ns: u64,
}

/// Of [`READS`] values of the counter, the one whose moment is known best.
///
/// A device's counter runs: its value is that of the moment at which it was read. A model's stands
/// until somebody steps it: two equal readings tell so. A new value then came up behind the last
/// reading of the old one, and what was read before the counter was known to stand counts for
/// nothing.
fn best(
    mut read: impl FnMut() -> Reading,
    relax: impl Fn(),
    tries: usize,
) -> Result<Option<Sample>, DeadDevice> {
    let mut last = read();
    let (mut best, mut count, mut stands): (Option<Sample>, _, _) = (None, 0, false);
    for _ in 0..tries {
        let reading = read();
        if reading.ticks == u64::MAX {
            return Err(DeadDevice::AllOnes);
        }
        if reading.ticks == last.ticks && reading.from_ns != last.from_ns {
            if !stands {
                (best, count, stands) = (None, 0, true);
            }
            relax();
        } else {
            let from_ns = if stands { last.from_ns } else { reading.from_ns };
            let width_ns = reading.until_ns.saturating_sub(from_ns);
            let sample = Sample { ticks: reading.ticks, ns: from_ns + width_ns / 2, width_ns };
            if best.is_none_or(|best| width_ns < best.width_ns) {
                best = Some(sample);
            }
            count += 1;
            if count == READS {
                break;
            }
        }
        last = reading;
    }
    Ok(best)
}

/// The counter, in two halves of which the high one did not change in between. It changes every 27
/// seconds, so the second try is the last, whatever a broken device shows.
fn read_counter(bar: &dyn Bar) -> u64 {
    let read = || {
        let high = bar.read_be32(offset::INTERNAL_TIMER_H);
        let low = bar.read_be32(offset::INTERNAL_TIMER_L);
        (u64::from(high) << 32 | u64::from(low), high)
    };
    let (ticks, high) = read();
    if high == bar.read_be32(offset::INTERNAL_TIMER_H) { ticks } else { read().0 }
}

/// What the comparisons so far make of the conversion.
#[derive(Debug)]
struct Fit {
    base: TimeBase,
    /// The rate of the capability page.
    nominal: u64,
    samples: VecDeque<Sample>,
    stats: ClockStats,
}

impl Fit {
    fn new(khz: u32, first: Sample) -> Self {
        let nominal = ((1_000_000u128 << RATE_BITS) / u128::from(khz)) as u64;
        let segment = Segment { ticks: first.ticks, ns: first.ns, rate: nominal };
        let stats = ClockStats { updates: 1, width_ns: first.width_ns, ..ClockStats::default() };
        let base = TimeBase { now: segment, before: segment };
        Self { base, nominal, samples: VecDeque::from([first]), stats }
    }

    fn add(&mut self, new: Sample) {
        let Some(&last) = self.samples.back() else { unreachable!("there is always a sample") };
        // Nothing can be learnt from a counter that stands still.
        if new.ticks <= last.ticks {
            return;
        }
        let reached = self.base.to_ns(new.ticks);
        let error_ns = (i128::from(new.ns) - i128::from(reached)) as i64;
        self.stats.updates += 1;
        (self.stats.error_ns, self.stats.width_ns) = (error_ns, new.width_ns);
        // Updates far apart may find more, by what crystals drift.
        let drift_ns = new.ns.saturating_sub(last.ns) / MAX_DRIFT;
        if error_ns.unsigned_abs() > STEP_NS.max(drift_ns) && self.stats.updates > 2 {
            // The host's clock was set: the samples before tell nothing about after.
            self.stats.steps += 1;
            let rate = self.base.now.rate;
            self.samples.clear();
            self.samples.push_back(new);
            let now = Segment { ticks: new.ticks, ns: new.ns, rate };
            self.base = TimeBase { before: self.base.now, now };
            return;
        }
        let rate = self.rate(new, last);
        self.stats.drift_ppb = drift_ppb(self.nominal, rate);
        // The error is made good by the time of the next update, if that comes as late as this; in
        // no less than a tenth of a second, so that two updates at once do no harm.
        let tenth = (100_000_000u128 << RATE_BITS) / u128::from(self.nominal);
        let interval = (new.ticks - last.ticks).max(tenth as u64);
        let slope = i128::from(error_ns) * (1 << RATE_BITS) / i128::from(interval);
        let low = i128::from(self.nominal - self.nominal / MAX_DRIFT);
        let high = i128::from(self.nominal + self.nominal / MAX_DRIFT);
        let rate = (i128::from(rate) + slope).clamp(low, high) as u64;
        let now = Segment { ticks: new.ticks, ns: reached, rate };
        self.base = TimeBase { before: self.base.now, now };
        if self.samples.len() == SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(new);
    }

    /// The rate from the newest sample that is far enough back for the widths of both, else from
    /// the oldest.
    fn rate(&self, new: Sample, last: Sample) -> u64 {
        let interval = new.ns.saturating_sub(last.ns);
        let is_far_enough = |old: &&Sample| {
            let doubt = u128::from(new.width_ns + old.width_ns) / 2 * u128::from(interval);
            doubt <= RATE_ERROR_NS * u128::from(new.ns.saturating_sub(old.ns))
        };
        let from = self.samples.iter().rev().find(is_far_enough).or(self.samples.front());
        let from = from.copied().unwrap_or(last);
        let ns = u128::from(new.ns.saturating_sub(from.ns));
        let ticks = u128::from(new.ticks - from.ticks);
        let rate = (ns << RATE_BITS) / ticks;
        // Samples too close to each other for their widths prove nothing against the page.
        let doubt = (u128::from((new.width_ns + from.width_ns) / 2) << RATE_BITS) / ticks;
        if rate.abs_diff(self.nominal.into()) <= doubt {
            return self.nominal;
        }
        let allowed = self.nominal / MAX_DRIFT;
        rate.clamp((self.nominal - allowed).into(), (self.nominal + allowed).into()) as u64
    }
}

/// How much faster a counter runs than it should; a smaller rate is a faster counter.
fn drift_ppb(nominal: u64, rate: u64) -> i64 {
    let (nominal, rate) = (i128::from(nominal), i128::from(rate));
    ((nominal - rate) * 1_000_000_000 / rate) as i64
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::f64::consts::TAU;

    use super::*;

    const HOUR_S: u64 = 3600;
    const KHZ: u32 = 156_250;

    /// A crystal that is 20 ppm off and wanders by 2 ppm in ten minutes: faster than one in an
    /// oven, about as fast as one beside a fan.
    fn ticks_at(ns: u64) -> u64 {
        let seconds = ns as f64 / 1e9;
        // The integral of 1 + 20e-6 + 2e-6 sin(TAU t / 600).
        let wander = 2e-6 * 600.0 / TAU * (1.0 - (TAU * seconds / 600.0).cos());
        ((seconds * (1.0 + 20e-6) + wander) * f64::from(KHZ) * 1000.0) as u64
    }

    /// Numbers that look random, the same in each run.
    fn noise(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *state >> 33
    }

    /// An hour of updates each second, read within `width` nanoseconds; the largest error of
    /// conversions every 10 ms, once it has settled.
    fn worst_of_an_hour(width_ns: u64) -> u64 {
        let mut state = 1;
        let start = 1_700_000_000_000_000_000;
        let mut read = |ns: u64| {
            // The counter was read at any moment of the width.
            let at = noise(&mut state) % (width_ns + 1);
            let middle = start + ns + width_ns / 2;
            Sample { ticks: ticks_at(ns + at), ns: middle, width_ns }
        };
        let mut fit = Fit::new(KHZ, read(0));
        let (mut worst, mut last) = (0, 0);
        for second in 1..=HOUR_S {
            let base = fit.base;
            for part in 0..100 {
                let ns = (second - 1) * 1_000_000_000 + part * 10_000_000;
                let converted = base.to_ns(ticks_at(ns));
                assert!(converted >= last, "{converted} after {last}");
                last = converted;
                if second > Clock::SETTLING_UPDATES {
                    worst = worst.max(converted.abs_diff(start + ns));
                }
            }
            fit.add(read(second * 1_000_000_000));
        }
        assert_eq!((fit.stats.updates, fit.stats.steps), (HOUR_S + 1, 0));
        assert!((17_000..23_000).contains(&fit.stats.drift_ppb), "{:?}", fit.stats);
        worst
    }

    #[test]
    fn an_hour_of_drift_is_converted_within_50_ns_and_the_width_of_a_read_and_runs_forward() {
        for width_ns in [0, 10, 100, 1000, 3000] {
            let worst = worst_of_an_hour(width_ns);
            assert!(worst <= 50 + width_ns, "{worst} ns, read in {width_ns} ns");
        }
    }

    #[test]
    fn times_before_an_update_are_those_that_were_answered_before_it() {
        let sample = |s: u64, ns| Sample { ticks: ticks_at(s * 1_000_000_000), ns, width_ns: 0 };
        let mut fit = Fit::new(KHZ, sample(0, 0));
        fit.add(sample(1, 1_000_000_000));
        let early = ticks_at(1_900_000_000);
        let said = fit.base.to_ns(early);
        fit.add(sample(2, 2_000_000_500));
        assert_eq!(fit.base.to_ns(early), said);
        assert!(fit.base.to_ns(ticks_at(2_000_000_000)) >= said);
    }

    #[test]
    fn two_updates_at_once_and_one_an_hour_later_do_no_harm() {
        let sample = |ns: u64, noise| Sample { ticks: ticks_at(ns), ns: ns + noise, width_ns: 60 };
        let mut fit = Fit::new(KHZ, sample(0, 0));
        for ns in [1_000_000_000, 2_000_000_000, 3_000_000_000] {
            fit.add(sample(ns, 0));
        }
        fit.add(sample(3_000_010_000, 30));
        let late = 4_000_000_000;
        assert!(fit.base.to_ns(ticks_at(late)).abs_diff(late) < 2_000, "{:?}", fit.stats);
        fit.add(sample(3_600_000_000_000, 0));
        assert_eq!(fit.stats.steps, 0, "{:?}", fit.stats);
    }

    /// What two samples a moment apart differ by is their widths: a second later it would be
    /// microseconds.
    #[test]
    fn an_update_a_moment_after_the_first_does_not_make_the_rate() {
        let exact = |ns: u64| ns * u64::from(KHZ) / 1_000_000;
        let sample = |at, ns| Sample { ticks: exact(at), ns, width_ns: 240 };
        let mut fit = Fit::new(KHZ, sample(5_000_000_000, 5_000_000_100));
        fit.add(sample(5_010_000_000, 5_009_999_900));
        assert_eq!(fit.stats.drift_ppb, 0);
        let late = 6_000_000_000;
        assert!(fit.base.to_ns(exact(late)).abs_diff(late) < 2_500, "{:?}", fit.stats);
    }

    #[test]
    fn a_clock_that_was_set_is_followed_at_once() {
        let sample = |s: u64, ns| Sample { ticks: ticks_at(s * 1_000_000_000), ns, width_ns: 0 };
        let mut fit = Fit::new(KHZ, sample(0, 0));
        for second in 1..5 {
            fit.add(sample(second, second * 1_000_000_000));
        }
        let back = 3_000_000_000;
        fit.add(sample(5, back));
        assert_eq!(fit.stats.steps, 1);
        assert_eq!(fit.base.to_ns(ticks_at(5_000_000_000)), back);
        fit.add(sample(6, back + 1_000_000_000));
        assert_eq!(fit.stats.steps, 1);
        assert!(fit.stats.error_ns.abs() < 1000, "{:?}", fit.stats);
    }

    /// A clock of the host that goes on by 20 ns with each look, and a device's counter beside it,
    /// one tick a nanosecond: one that runs, or one that shows when the last step began.
    struct Clocks {
        now: Cell<u64>,
        /// When the last step began; `None` of a counter that runs.
        stepped: Option<Cell<u64>>,
    }

    impl Clocks {
        fn pass(&self, ns: u64) -> u64 {
            self.now.set(self.now.get() + ns);
            self.now.get()
        }

        fn read(&self) -> Reading {
            let from_ns = self.pass(20);
            let at = self.pass(30);
            let ticks = self.stepped.as_ref().map_or(at, Cell::get);
            Reading { from_ns, ticks, until_ns: self.pass(20) }
        }

        /// A step of the model: it takes 400 ns.
        fn step(&self) {
            if let Some(stepped) = &self.stepped {
                stepped.set(self.now.get());
            }
            self.pass(400);
        }
    }

    #[test]
    fn what_a_model_shows_is_as_old_as_its_step_and_lies_within_the_width() {
        for steps in [true, false] {
            let stepped = steps.then(|| Cell::new(100));
            let clocks = Clocks { now: Cell::new(5_000), stepped };
            let sample = best(|| clocks.read(), || clocks.step(), 100).unwrap().unwrap();
            // The counter says the host's time: what it is off by is the error.
            let error_ns = sample.ns.abs_diff(sample.ticks);
            assert!(error_ns <= sample.width_ns / 2, "{error_ns} ns, {sample:?}");
            assert_eq!(sample.width_ns, if steps { 520 } else { 50 });
        }
    }

    #[test]
    fn a_counter_that_nobody_steps_and_a_device_that_is_gone_give_nothing() {
        let clocks = Clocks { now: Cell::new(5_000), stepped: Some(Cell::new(100)) };
        assert_eq!(best(|| clocks.read(), || (), 100), Ok(None));
        // What it showed when nobody had seen it stand counts for nothing.
        let shown = Cell::new(0);
        let read = || {
            shown.set(shown.get() + 1);
            Reading { ticks: shown.get().min(3), ..clocks.read() }
        };
        assert_eq!(best(read, || (), 100), Ok(None));
        let gone = || Reading { ticks: u64::MAX, ..clocks.read() };
        assert!(best(gone, || (), 100).is_err());
    }

    #[test]
    fn a_counter_that_stands_still_changes_nothing() {
        let first = Sample { ticks: 5, ns: 7, width_ns: 0 };
        let mut fit = Fit::new(KHZ, first);
        let base = fit.base;
        fit.add(Sample { ns: 9, ..first });
        assert_eq!((fit.base, fit.stats.updates), (base, 1));
        assert_eq!((base.to_ns(0), base.to_ns(u64::MAX)), (0, u64::MAX));
    }
}
