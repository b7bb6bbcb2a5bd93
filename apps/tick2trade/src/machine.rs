//! What this machine will do to latency: its settings, and how long its cores are away.
//!
//! [`findings`] reads what the kernel says and names what costs time, and how much it may cost.
//! [`jitter`] measures: it reads the clock and nothing else, and how far two readings are apart is
//! how long the core was elsewhere. No percentile of a latency measured here is below that.

use std::fs;
use std::path::Path;
use std::time::Duration;

use ferrocx_app_common::list::{MAX_CORE, numbers};
use hdrhistogram::Histogram;

use crate::latency::{histogram, now_ns};

/// One setting, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub is: String,
    /// What that costs, and the way out; `None` if it costs nothing.
    pub costs: Option<&'static str>,
}

/// A file of the kernel's, without the newline; empty if it is not there.
fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default().trim().to_owned()
}

/// Whether a list such as `0,2-5` has a core.
fn lists(list: &str, core: usize) -> bool {
    numbers(list, 0, MAX_CORE).is_ok_and(|cores| cores.contains(&core))
}

/// What the kernel's files below `root`, `/` as a rule, say of a core that polls.
pub fn findings(root: &Path, core: usize) -> Vec<Finding> {
    let cpu = |file: &str| read(root, &format!("sys/devices/system/cpu/{file}"));
    let own = |file: &str| cpu(&format!("cpu{core}/{file}"));
    let cmdline = read(root, "proc/cmdline");
    let word = |name: &str| {
        let words = cmdline.split_whitespace();
        words.filter_map(|word| word.strip_prefix(name)).map(str::to_owned).next()
    };
    let finding = |what, is: String, is_bad: bool, costs| Finding {
        what,
        is: if is.is_empty() { "not known".to_owned() } else { is },
        costs: is_bad.then_some(costs),
    };
    let or_none = |list: String| if list.is_empty() { "none".to_owned() } else { list };
    let (isolated, tickless) = (cpu("isolated"), cpu("nohz_full"));
    let callbacks = word("rcu_nocbs=").unwrap_or_default();
    let siblings = own("topology/thread_siblings_list");
    let governor = own("cpufreq/scaling_governor");
    let (deepest, exit_us) = deepest_sleep(root, core);
    let clock = read(root, "sys/devices/system/clocksource/clocksource0/current_clocksource");
    let swaps = read(root, "proc/swaps").lines().count().saturating_sub(1);
    let nodes = read(root, "sys/devices/system/node/online");
    let interrupts = interrupts_of(root, core);
    let shares = shares_of_others(root, core);
    let compaction = read(root, "sys/kernel/mm/transparent_hugepage/enabled");
    vec![
        finding(
            "isolated cores",
            or_none(isolated.clone()),
            !lists(&isolated, core),
            "other tasks run here: milliseconds; isolcpus= on the kernel's command line",
        ),
        finding(
            "cores without timer ticks",
            or_none(tickless.clone()),
            !lists(&tickless, core),
            "a tick takes 1 to 5 us, up to 1000 times a second; nohz_full=",
        ),
        finding(
            "cores without RCU callbacks",
            or_none(callbacks.clone()),
            !lists(&callbacks, core),
            "callbacks take microseconds in bursts; rcu_nocbs=",
        ),
        finding(
            "interrupts that may come here",
            interrupts.to_string(),
            interrupts > 0,
            "each takes 1 to 10 us; /proc/irq/*/smp_affinity_list, and stop irqbalance",
        ),
        finding(
            "threads of this core",
            siblings.clone(),
            siblings.contains([',', '-']),
            "the sibling takes up to half of the core when it works; switch it off",
        ),
        finding(
            "frequency governor",
            governor.clone(),
            !governor.is_empty() && governor != "performance",
            "the core slows down and takes 10 to 500 us to speed up; performance",
        ),
        finding(
            "deepest sleep",
            deepest,
            exit_us > 2,
            "other cores, memory and bus wake up late; hold /dev/cpu_dma_latency at 0",
        ),
        finding(
            "clock",
            clock.clone(),
            clock != "tsc" && clock != "kvm-clock",
            "each reading is a system call or a bus access: 1 us; clocksource=tsc",
        ),
        finding(
            "memory nodes",
            nodes.clone(),
            nodes.contains([',', '-']),
            "memory of the other node takes 100 ns more; give core, pool and adapter one node",
        ),
        finding(
            "swap devices",
            swaps.to_string(),
            swaps > 0,
            "a page that was swapped out takes milliseconds; swapoff, or lock all memory",
        ),
        finding(
            "kept for others beside real time",
            shares.clone(),
            !shares.is_empty() && shares != "nothing",
            "a thread of --realtime stops for so long in a second in which others wait for its \
             core; move them away, or kernel.sched_rt_runtime_us=-1 and fair_server's runtime 0",
        ),
        finding(
            "transparent huge pages",
            compaction.clone(),
            compaction.contains("[always]"),
            "compaction stops a process for up to milliseconds; madvise",
        ),
    ]
}

/// The deepest sleep that a core may go to, and how long it takes to wake up from it, us.
fn deepest_sleep(root: &Path, core: usize) -> (String, u64) {
    let mut deepest = ("none".to_owned(), 0);
    for state in 0..16 {
        let file = |name: &str| {
            let path = format!("sys/devices/system/cpu/cpu{core}/cpuidle/state{state}/{name}");
            read(root, &path)
        };
        let (name, exit_us) = (file("name"), file("latency").parse().unwrap_or(0));
        if !name.is_empty() && file("disable") != "1" && exit_us >= deepest.1 {
            deepest = (format!("{name}, {exit_us} us to wake up"), exit_us);
        }
    }
    deepest
}

/// What a core keeps for threads of normal priority beside those of real-time priority: by the
/// limit of all of those (of old kernels, and of groups), by the server of a core (from 6.12 on).
fn shares_of_others(root: &Path, core: usize) -> String {
    let number = |path: &str| read(root, path).parse::<i64>().ok();
    let throttle = |file: &str| number(&format!("proc/sys/kernel/sched_rt_{file}_us"));
    let server =
        |file: &str| number(&format!("sys/kernel/debug/sched/fair_server/cpu{core}/{file}"));
    let kept = throttle("runtime").zip(throttle("period")).map(|(runtime, period)| {
        if runtime < 0 { 0 } else { (period - runtime).max(0) * 1_000 / period.max(1) }
    });
    let served = server("runtime").zip(server("period"));
    let served = served.map(|(runtime, period)| runtime.max(0) * 1_000 / period.max(1));
    match served.into_iter().chain(kept).max() {
        None => String::new(),
        Some(0) => "nothing".to_owned(),
        Some(ms) => format!("{ms} ms of a second"),
    }
}

/// Interrupts whose affinity names a core.
fn interrupts_of(root: &Path, core: usize) -> usize {
    let Ok(entries) = fs::read_dir(root.join("proc/irq")) else { return 0 };
    let lists_core = |entry: &fs::DirEntry| {
        let list = fs::read_to_string(entry.path().join("smp_affinity_list"));
        list.is_ok_and(|list| lists(list.trim(), core))
    };
    entries.flatten().filter(lists_core).count()
}

/// Gaps between two readings of the clock that are longer than this count as absence, ns.
const ABSENCE_NS: u64 = 1_000;

/// How long the calling core was elsewhere, each time, while it did nothing but read the clock.
pub fn jitter(duration: Duration) -> Histogram<u64> {
    let mut absences = histogram();
    let mut before = now_ns();
    let end = before.saturating_add(duration.as_nanos() as u64);
    while before < end {
        let now = now_ns();
        let gap = now.saturating_sub(before);
        if gap >= ABSENCE_NS {
            absences.saturating_record(gap);
        }
        before = now;
    }
    absences
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn bad(root: &Path) -> Vec<&'static str> {
        let all = findings(root, 3);
        all.iter().filter(|finding| finding.costs.is_some()).map(|finding| finding.what).collect()
    }

    #[test]
    fn a_machine_that_was_prepared_has_nothing_to_say_and_each_setting_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let cpu = "sys/devices/system/cpu";
        let good = [
            (format!("{cpu}/isolated"), "2-3", "isolated cores"),
            (format!("{cpu}/nohz_full"), "1,3", "cores without timer ticks"),
            ("proc/cmdline".into(), "quiet rcu_nocbs=2-7", "cores without RCU callbacks"),
            ("proc/irq/9/smp_affinity_list".into(), "0-1", "interrupts that may come here"),
            (format!("{cpu}/cpu3/topology/thread_siblings_list"), "3", "threads of this core"),
            (format!("{cpu}/cpu3/cpufreq/scaling_governor"), "performance", "frequency governor"),
            (format!("{cpu}/cpu3/cpuidle/state0/latency"), "1", "deepest sleep"),
            (
                "sys/devices/system/clocksource/clocksource0/current_clocksource".into(),
                "tsc",
                "clock",
            ),
            ("sys/devices/system/node/online".into(), "0", "memory nodes"),
            ("proc/swaps".into(), "Filename Type", "swap devices"),
            (
                "proc/sys/kernel/sched_rt_runtime_us".into(),
                "-1",
                "kept for others beside real time",
            ),
            (
                "sys/kernel/mm/transparent_hugepage/enabled".into(),
                "always [madvise] never",
                "transparent huge pages",
            ),
        ];
        let wrong = [
            "0-1",
            "4",
            "quiet",
            "3",
            "3,7",
            "powersave",
            "40",
            "hpet",
            "0-1",
            "Filename Type\n/dev/sda",
            "950000",
            "[always] madvise never",
        ];
        write(root, &format!("{cpu}/cpu3/cpuidle/state0/name"), "C1");
        write(root, "proc/sys/kernel/sched_rt_period_us", "1000000");
        good.iter().for_each(|(path, text, _)| write(root, path, text));
        assert_eq!(bad(root), [""; 0]);
        for ((path, text, what), wrong) in good.iter().zip(wrong) {
            write(root, path, wrong);
            assert_eq!(bad(root), [*what]);
            write(root, path, text);
        }
    }

    #[test]
    fn absences_are_no_longer_than_the_measurement() {
        let absences = jitter(Duration::from_millis(20));
        assert!(absences.max() <= 10_000_000_000);
        assert!(absences.is_empty() || absences.min() >= 990);
    }
}
