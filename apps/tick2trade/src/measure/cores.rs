//! The cores that threads of a measurement have, and when they were not there.

use std::fmt;

use anyhow::{Result, anyhow, bail};
use core_affinity::CoreId;
use hdrhistogram::Histogram;
use thread_priority::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue,
    ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use super::{Phase, Plan};
use crate::latency::{histogram, now_ns};
use crate::watch::{Absence, Taker, Watch, is_disturbed};

/// When the threads of a run were not on their cores.
#[derive(Debug)]
pub(super) struct Absences {
    pub(super) engine: Vec<Absence>,
    pub(super) exchange: Vec<Absence>,
    /// What a thread saw that span on the engine's core beside it: [`spin_beside`].
    pub(super) beside: Option<Vec<Absence>>,
}

impl Absences {
    /// Times of the orders during which every core was there, and that stood behind no other
    /// order; each is its start and how long it took, ns.
    ///
    /// What takes long is more likely to meet an absence, and to keep others waiting behind one: it
    /// is left out more often, which favours who is slower.
    pub(super) fn undisturbed(&self, times: &[(u64, u64)]) -> Histogram<u64> {
        let mut rest = histogram();
        let beside = self.beside.as_deref().unwrap_or_default();
        let all = [&self.engine[..], &self.exchange[..], beside];
        let mut times = times.to_vec();
        times.sort_unstable();
        // Who began before this has an order before it that an absence held up.
        let mut held_up_until_ns = 0;
        for (from_ns, took_ns) in times {
            let is_behind = from_ns < held_up_until_ns;
            if is_behind || all.iter().any(|one| is_disturbed(one, from_ns, took_ns)) {
                held_up_until_ns = held_up_until_ns.max(from_ns.saturating_add(took_ns));
            } else {
                rest.saturating_record(took_ns);
            }
        }
        rest
    }
}

/// How often and how long somebody had a core.
fn sum(absences: &[Absence], taker: Taker) -> String {
    let away = || absences.iter().filter(|one| one.taker == taker).map(|one| one.away_ns);
    let ms = |ns: u64| ns as f64 / 1e6;
    let (all, longest) = (ms(away().sum()), ms(away().max().unwrap_or(0)));
    format!("{} times, {all:.2} ms in all, {longest:.2} ms at most", away().count())
}

impl fmt::Display for Absences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let beside = self.beside.iter().flatten();
        let engine: Vec<_> = self.engine.iter().chain(beside).copied().collect();
        for (whose, absences) in [("engine", &engine), ("exchange", &self.exchange)] {
            let [thread, machine] =
                [Taker::Thread, Taker::Machine].map(|taker| sum(absences, taker));
            writeln!(f, "  core of the {whose}: another thread had it {thread}")?;
            writeln!(f, "  core of the {whose}: the machine had it {machine}")?;
        }
        Ok(())
    }
}

/// Keeps this thread on a core of the plan's, and nearly everything else away from there, if it
/// says so.
pub(super) fn take_core(plan: &Plan, index: usize) -> Result<()> {
    let core = plan.cores.map(|cores| cores[index]);
    core.map_or(Ok(()), stay_on)?;
    if plan.realtime {
        if core.is_none() {
            bail!("--realtime needs two cores: of two such threads on one, one never runs");
        }
        let lowest =
            ThreadPriority::Crossplatform(ThreadPriorityValue::try_from(1).unwrap_or_default());
        let fifo = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::Fifo);
        set_thread_priority_and_policy(thread_native_id(), lowest, fifo).map_err(|error| {
            anyhow!(
                "--realtime: the kernel refuses SCHED_FIFO to this process ({error}); run it as \
                 root, with CAP_SYS_NICE, or behind ulimit -r 1"
            )
        })?;
    }
    Ok(())
}

pub(super) fn stay_on(core: CoreId) -> Result<()> {
    if !core_affinity::set_for_current(core) {
        bail!("core {} is not one that this process may use", core.id);
    }
    Ok(())
}

/// Spins on the core of an engine that sleeps, in the idle class, before which every other thread
/// goes, until the run is over; returns when the machine took the core. What others had of it, the
/// engine above all, is no absence.
///
/// The core does not sleep then, so that the engine wakes up sooner than alone.
pub(super) fn spin_beside(core: CoreId, phase: &Phase) -> Result<Vec<Absence>> {
    stay_on(core)?;
    let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle)
        .map_err(|error| anyhow!("the kernel refuses the idle class to a thread: {error}"))?;
    let (mut watch, mut is_measured) = (Watch::start(now_ns()), false);
    while phase.get() != Phase::OVER {
        watch.round(now_ns(), true);
        if phase.begins(&mut is_measured) {
            watch.forget();
        }
    }
    let mut absences = watch.into_absences();
    absences.retain(|absence| absence.taker == Taker::Machine);
    Ok(absences)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn absence(from_ns: u64, until_ns: u64, taker: Taker) -> Absence {
        Absence { from_ns, until_ns, away_ns: until_ns - from_ns, taker }
    }

    #[test]
    fn an_order_is_disturbed_by_an_absence_of_any_thread_and_of_either_kind() {
        let mut absences = Absences {
            engine: vec![absence(1_000, 2_000, Taker::Thread)],
            exchange: vec![absence(5_000, 6_000, Taker::Machine)],
            beside: None,
        };
        let times = [(500, 100), (900, 200), (3_000, 500), (4_900, 200), (8_000, 300)];
        let left = |absences: &Absences| {
            let rest = absences.undisturbed(&times);
            (rest.len(), rest.max())
        };
        assert_eq!(left(&absences), (3, 500));
        absences.beside = Some(vec![absence(3_100, 3_200, Taker::Machine)]);
        assert_eq!(left(&absences), (2, 300));
    }

    #[test]
    fn what_is_said_tells_who_had_which_core() {
        let absences = Absences {
            engine: vec![absence(0, 1_000_000, Taker::Thread), absence(9, 20_009, Taker::Machine)],
            exchange: vec![
                absence(0, 30_000, Taker::Machine),
                absence(5_000_000, 8_000_000, Taker::Machine),
            ],
            beside: Some(vec![absence(7, 2_000_007, Taker::Machine)]),
        };
        let expected = [
            "  core of the engine: another thread had it 1 times, 1.00 ms in all, 1.00 ms at most",
            "  core of the engine: the machine had it 2 times, 2.02 ms in all, 2.00 ms at most",
            "  core of the exchange: another thread had it 0 times, 0.00 ms in all, 0.00 ms at \
             most",
            "  core of the exchange: the machine had it 2 times, 3.03 ms in all, 3.00 ms at most",
        ];
        assert_eq!(absences.to_string().lines().collect::<Vec<_>>(), expected);
    }

    /// Orders are served one after the other: those that began while an order was held up by an
    /// absence are left out with it, and who began when all of that was over is not.
    #[test]
    fn who_stands_behind_an_order_that_was_held_up_is_left_out_too() {
        let absences = Absences {
            engine: vec![absence(1_000, 2_000, Taker::Machine)],
            exchange: Vec::new(),
            beside: None,
        };
        // Not sorted: they are told in the order of their ends.
        let times = [(2_950, 10), (1_500, 900), (2_100, 800), (2_899, 40), (990, 5)];
        let rest = absences.undisturbed(&times);
        assert_eq!((rest.len(), rest.min(), rest.max()), (2, 5, 10));
    }

    /// Beside a thread that spins too, it has hardly a turn, and counts none of that as absence.
    #[test]
    fn who_spins_beside_lets_others_go_first_and_ends_with_the_run() {
        let Some(core) = core_affinity::get_core_ids().unwrap_or_default().pop() else { return };
        let phase = Phase::default();
        let rounds = std::thread::scope(|scope| {
            let beside = scope.spawn(|| spin_beside(core, &phase));
            stay_on(core).unwrap();
            let (mut rounds, until) = (0_u64, now_ns() + 50_000_000);
            while now_ns() < until {
                rounds += 1;
            }
            phase.set(Phase::OVER);
            beside.join().unwrap().unwrap();
            rounds
        });
        assert!(rounds > 0);
    }
}
