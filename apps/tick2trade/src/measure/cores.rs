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
    /// Times of the orders during which every core was there; each is its start and how long it
    /// took, ns.
    ///
    /// What takes long is more likely to meet an absence, and to be left out: that favours who is
    /// slower.
    pub(super) fn undisturbed(&self, times: &[(u64, u64)]) -> Histogram<u64> {
        let mut rest = histogram();
        let beside = self.beside.as_deref().unwrap_or_default();
        for &(from_ns, took_ns) in times {
            let mut all = [&self.engine[..], &self.exchange[..], beside].into_iter();
            if !all.any(|absences| is_disturbed(absences, from_ns, took_ns)) {
                rest.saturating_record(took_ns);
            }
        }
        rest
    }
}

/// How often and how long somebody had a core.
fn sum<'a>(absences: impl IntoIterator<Item = &'a Absence>, taker: Taker) -> String {
    let (mut count, mut all, mut longest) = (0, 0, 0);
    for absence in absences.into_iter().filter(|absence| absence.taker == taker) {
        count += 1;
        all += absence.away_ns;
        longest = absence.away_ns.max(longest);
    }
    let ms = |ns: u64| ns as f64 / 1e6;
    format!("{count} times, {:.2} ms in all, {:.2} ms at most", ms(all), ms(longest))
}

impl fmt::Display for Absences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { engine, exchange, beside } = self;
        let engines = || engine.iter().chain(beside.iter().flatten());
        write!(
            f,
            "another thread had the engine's core {}, the exchange's {}; the machine took the \
             engine's {}, the exchange's {}",
            sum(engines(), Taker::Thread),
            sum(exchange, Taker::Thread),
            sum(engines(), Taker::Machine),
            sum(exchange, Taker::Machine),
        )
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

fn stay_on(core: CoreId) -> Result<()> {
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
        assert_eq!(
            absences.to_string(),
            "another thread had the engine's core 1 times, 1.00 ms in all, 1.00 ms at most, the \
             exchange's 0 times, 0.00 ms in all, 0.00 ms at most; the machine took the engine's 2 \
             times, 2.02 ms in all, 2.00 ms at most, the exchange's 2 times, 3.03 ms in all, 3.00 \
             ms at most"
        );
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
