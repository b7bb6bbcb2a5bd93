//! What the kernel says of a core that polls: the settings that cost it time, and how much.
//!
//! Nothing is measured and nothing changed: [`settings`] reads files below `/proc` and `/sys`.

use std::fs;
use std::path::Path;

use crate::list::{MAX_CORE, numbers};

/// One setting, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Which one, as in `nohz`.
    pub check: &'static str,
    /// How it is.
    pub is: String,
    /// What that costs, if it costs anything.
    pub costs: Option<Costs>,
}

/// What a setting costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Costs {
    /// What happens, and how long it takes.
    pub why: &'static str,
    /// The way out.
    pub mend: &'static str,
}

/// A file of the kernel's, without the newline; empty if it is not there.
fn read(root: &Path, path: &str) -> String {
    fs::read_to_string(root.join(path)).unwrap_or_default().trim().to_owned()
}

/// Cores of a list such as `0,2-5`; none if it is no list.
fn cores(list: &str) -> Vec<usize> {
    numbers(list, 0, MAX_CORE).unwrap_or_default()
}

/// Cores that the scheduler leaves alone.
#[must_use]
pub fn isolated(root: &Path) -> Vec<usize> {
    cores(&read(root, "sys/devices/system/cpu/isolated"))
}

/// What the kernel's files below `root`, `/` as a rule, say of a core that polls.
#[must_use]
pub fn settings(root: &Path, core: usize) -> Vec<Setting> {
    let cpu = |file: &str| read(root, &format!("sys/devices/system/cpu/{file}"));
    let own = |file: &str| cpu(&format!("cpu{core}/{file}"));
    let names_core = |list: &str| cores(list).contains(&core);
    let setting = |check, is: String, is_bad: bool, why, mend| Setting {
        check,
        is: if is.is_empty() { "not known".to_owned() } else { is },
        costs: is_bad.then_some(Costs { why, mend }),
    };
    let or_none = |list: &str| if list.is_empty() { "none" } else { list }.to_owned();
    let (isolated, tickless) = (cpu("isolated"), cpu("nohz_full"));
    let cmdline = read(root, "proc/cmdline");
    let callbacks = cmdline.split_whitespace().find_map(|word| word.strip_prefix("rcu_nocbs="));
    let callbacks = callbacks.unwrap_or_default();
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
        setting(
            "isolated",
            or_none(&isolated),
            !names_core(&isolated),
            "other tasks run here, for milliseconds",
            "add isolcpus=managed_irq,domain,LIST to the kernel command line",
        ),
        setting(
            "nohz",
            format!("cores without timer ticks: {}", or_none(&tickless)),
            !names_core(&tickless),
            "a tick takes 1 to 5 us, up to 1000 times a second",
            "add nohz_full=LIST, the same as isolcpus, to the kernel command line",
        ),
        setting(
            "rcu",
            format!("cores without RCU callbacks: {}", or_none(callbacks)),
            // A core without ticks has none of these callbacks either.
            !names_core(callbacks) && !names_core(&tickless),
            "callbacks take microseconds, in bursts",
            "add rcu_nocbs=LIST to the kernel command line",
        ),
        setting(
            "interrupts",
            format!("{interrupts} may come here"),
            interrupts > 0,
            "each takes 1 to 10 us",
            "write other cores to /proc/irq/*/smp_affinity_list, and stop irqbalance",
        ),
        setting(
            "smt",
            format!("threads of this core: {}", or_none(&siblings)),
            siblings.contains([',', '-']),
            "the sibling takes up to half of the core when it works",
            "echo 0 >/sys/devices/system/cpu/cpuN/online, N the sibling",
        ),
        setting(
            "governor",
            governor.clone(),
            !governor.is_empty() && governor != "performance",
            "the core slows down, and takes 10 to 500 us to speed up",
            "cpupower frequency-set -g performance",
        ),
        setting(
            "deep-sleep",
            deepest,
            exit_us > 2,
            "other cores, memory and bus wake up late",
            "hold /dev/cpu_dma_latency open at 0",
        ),
        setting(
            "clock",
            clock.clone(),
            clock != "tsc" && clock != "kvm-clock",
            "each reading is a system call or a bus access: 1 us",
            "add clocksource=tsc to the kernel command line",
        ),
        setting(
            "nodes",
            nodes.clone(),
            nodes.contains([',', '-']),
            "memory of the other node takes 100 ns more",
            "give core, pool and adapter one node",
        ),
        setting(
            "swap",
            format!("{swaps} devices"),
            swaps > 0,
            "a page that was swapped out takes milliseconds",
            "swapoff -a, or lock all memory",
        ),
        setting(
            "rt-share",
            shares.clone(),
            !shares.is_empty() && shares != "nothing",
            "a thread of real-time priority stops for so long while others wait for its core",
            "move them away, or sysctl kernel.sched_rt_runtime_us=-1 and fair_server's runtime 0",
        ),
        setting(
            "thp",
            compaction.clone(),
            compaction.contains("[always]"),
            "compaction of transparent huge pages stops a process for up to milliseconds",
            "echo madvise >/sys/kernel/mm/transparent_hugepage/enabled",
        ),
    ]
}

/// The memory node of a core, where the kernel says it.
#[must_use]
pub fn node(root: &Path, core: usize) -> Option<u32> {
    let entries = fs::read_dir(root.join(format!("sys/devices/system/cpu/cpu{core}"))).ok()?;
    let mut names = entries.flatten().map(|entry| entry.file_name());
    names.find_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok())
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
        list.is_ok_and(|list| cores(list.trim()).contains(&core))
    };
    entries.flatten().filter(lists_core).count()
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
        let all = settings(root, 3);
        all.iter().filter(|setting| setting.costs.is_some()).map(|setting| setting.check).collect()
    }

    #[test]
    fn a_machine_that_was_prepared_has_nothing_to_say_and_each_setting_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let cpu = |file: &str| format!("sys/devices/system/cpu/{file}");
        let settings = [
            ("isolated", cpu("isolated"), "2-3", "0-1"),
            ("nohz", cpu("nohz_full"), "1,3", "4"),
            ("interrupts", "proc/irq/9/smp_affinity_list".into(), "0-1", "3"),
            ("smt", cpu("cpu3/topology/thread_siblings_list"), "3", "3,7"),
            ("governor", cpu("cpu3/cpufreq/scaling_governor"), "performance", "powersave"),
            ("deep-sleep", cpu("cpu3/cpuidle/state0/latency"), "1", "40"),
            (
                "clock",
                "sys/devices/system/clocksource/clocksource0/current_clocksource".into(),
                "tsc",
                "hpet",
            ),
            ("nodes", "sys/devices/system/node/online".into(), "0", "0-1"),
            ("swap", "proc/swaps".into(), "Filename Type", "Filename Type\n/dev/sda"),
            ("rt-share", "proc/sys/kernel/sched_rt_runtime_us".into(), "-1", "950000"),
            (
                "thp",
                "sys/kernel/mm/transparent_hugepage/enabled".into(),
                "always [madvise] never",
                "[always] madvise never",
            ),
        ];
        write(root, "proc/cmdline", "quiet rcu_nocbs=2-7");
        write(root, &cpu("cpu3/cpuidle/state0/name"), "C1");
        write(root, "proc/sys/kernel/sched_rt_period_us", "1000000");
        settings.iter().for_each(|(_, path, good, _)| write(root, path, good));
        write(root, &cpu("cpu3/node1/cpulist"), "3");
        assert_eq!((node(root, 3), node(root, 2)), (Some(1), None));
        assert_eq!(bad(root), [""; 0]);
        for (check, path, good, wrong) in &settings {
            write(root, path, wrong);
            assert_eq!(bad(root), [*check]);
            write(root, path, good);
        }
        // A core without ticks has no callbacks, whoever asked for that.
        write(root, "proc/cmdline", "quiet");
        assert_eq!(bad(root), [""; 0]);
        write(root, &cpu("nohz_full"), "");
        assert_eq!(bad(root), ["nohz", "rcu"]);
        assert_eq!(isolated(root), [2, 3]);
    }
}
