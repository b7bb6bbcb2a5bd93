//! A short range of seeds, the same each time; seeds that replay; a flood; planted bugs.

use ferrocx_simulation::{Counts, Options, Plan, flood, run};

#[test]
fn a_range_of_seeds_has_nothing_wrong() {
    let mut counts = Counts::default();
    for seed in 0..30 {
        let outcome = run(&Plan::draw(seed, 1_000), &Options::default());
        assert_eq!(outcome.violation, None, "simulation --seed {seed} --messages 1000");
        counts.add(&outcome.counts);
    }
    println!("{counts}");
    // All of it took place.
    let Counts { messages, connections, breaks, keys, attacks, kills, weather, hostile, .. } =
        counts;
    assert!(messages > 15_000 && connections > 30, "{messages} {connections}");
    for (what, count) in [
        ("breaks", breaks),
        ("keys", keys),
        ("attacks", attacks),
        ("storage", counts.storage),
        ("deaths", kills),
        ("weather", weather),
        ("hostile", hostile),
    ] {
        assert!(count > 0, "{what}");
    }
}

#[test]
fn a_seed_replays_exactly() {
    let options = || Options { timeline: true, ..Options::default() };
    for seed in [3, 14, 15] {
        let (one, other) = [(); 2].map(|()| run(&Plan::draw(seed, 1_000), &options())).into();
        assert_eq!(one.timeline, other.timeline, "seed {seed}");
        assert_eq!(one.counts, other.counts, "seed {seed}");
        assert!(!one.timeline.is_empty());
    }
}

#[test]
fn an_honest_peer_connects_through_a_card_during_a_flood() {
    let done = flood(20_000, 1).unwrap();
    println!("{done}");
    assert!(done.connections >= 2, "{done}");
    assert!(done.stats.limits.pushed_out > 0 && done.stats.limits.unsent > 0, "{done}");
}

/// Plans of a seed with a bug.
#[cfg(feature = "planted")]
fn with(bug: ferrocx_simulation::Bug, seed: u64) -> Plan {
    let mut plan = Plan::draw(seed, 2_000);
    plan.planted = Some(bug);
    plan
}

/// Each planted bug is found, and how many seeds that took.
#[cfg(feature = "planted")]
#[test]
fn planted_bugs_are_found_within_a_thousand_seeds() {
    use ferrocx_simulation::Bug;

    let look_for = |bug| {
        let found = (0..1_000).find_map(|seed| {
            let violation = run(&with(bug, seed), &Options::default()).violation?;
            Some((seed, violation))
        });
        let (seed, violation) = found.unwrap_or_else(|| panic!("{bug} is not found"));
        // Without the bug, the same seed has nothing wrong.
        let innocent = run(&Plan::draw(seed, 2_000), &Options::default());
        assert_eq!(innocent.violation, None, "seed {seed}");
        format!("{bug:?} | {} | {violation}", seed + 1)
    };
    std::thread::scope(|scope| {
        let looking = Bug::ALL.map(|bug| scope.spawn(move || look_for(bug)));
        for one in looking {
            println!("{}", one.join().unwrap());
        }
    });
}

#[cfg(feature = "planted")]
#[test]
fn a_plan_that_fails_shrinks_to_one_that_fails() {
    use ferrocx_simulation::{Bug, shrink};

    let whole = (0..1_000)
        .map(|seed| with(Bug::WrongByte, seed))
        .find(|plan| plan.faults.len() > 2 && run(plan, &Options::default()).violation.is_some())
        .unwrap();
    let (small, runs) = shrink(&whole);
    assert!(run(&small, &Options::default()).violation.is_some());
    // No fault is needed for this bug to show.
    assert!(small.faults.is_empty() && runs > 1, "{small}");
}
