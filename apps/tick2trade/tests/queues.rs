//! Exchange and engine on the model, through queues, lines that lose, and a connection.

use ferrocx_tick2trade::measure::{Plan, run};

fn plan() -> Plan {
    Plan {
        ticks: 400,
        warm_up: 10,
        interval_ns: 100_000,
        waits: true,
        seed: 1,
        loss_ppm: 0,
        reorder_ppm: 0,
        burst: 0,
        cores: None,
        pcap: None,
        late: 0,
        realtime: false,
        baseline: None,
    }
}

#[test]
fn every_offer_is_taken_once_and_each_stage_has_its_time() {
    let report = run(&plan()).unwrap();
    let rows = report.rows();
    let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
    let expected = [
        "wire to book",
        "book to decision",
        "decision to doorbell",
        "wire to wire, our queues",
        "wire to wire, our queues, cores there",
    ];
    // A machine that is away for long loses frames, too, and then has times of recovery.
    assert_eq!(names[..5], expected);
    // What a stamp cannot have been is counted, and in no row.
    assert_eq!(rows[0].count + report.feed().impossible_stamps, rows[1].count);
    // An order that follows an answer is no answer to a frame of the feed.
    for (row, least) in rows.iter().zip([0, 200, 200, 400]) {
        assert!(row.count >= least && row.p50 <= row.p99 && row.p99 <= row.max, "{row:?}");
    }
    assert!(rows[3].p50 > rows[2].p50 && rows[2].p50 > 0, "{rows:?}");
    // What fell into an absence is said apart, beside all of it.
    assert!(rows[4].count <= rows[3].count && rows[4].max <= rows[3].max, "{rows:?}");
    let (all, left_out) = (rows[3].count, rows[3].count - rows[4].count);
    let said = format!(": {left_out} of {all} orders were on their way while a core was not there");
    assert!(report.text().contains(&said), "{}", report.text());
    assert_eq!((report.feed().dropped, report.feed().lost, report.feed().orders), (0, 0, 410));
    assert!(report.svg().contains("<polyline") && report.text().contains("no row is a NIC's"));
}

/// Of each line one packet in twenty is lost: what both lose is asked for, over the same queues.
#[test]
fn what_both_lines_lose_is_asked_for_and_no_offer_is_missed() {
    let plan = Plan { loss_ppm: 50_000, ticks: 2_000, ..plan() };
    let report = run(&plan).unwrap();
    let feed = report.feed();
    assert!(feed.dropped > 100 && feed.gaps > 1 && feed.requests > 1, "{feed:?}");
    assert_eq!(feed.lost, 0, "{feed:?}");
    // What is counted says so of each line, and adds up.
    let count = |part: &str, name: &str| report.counters().get(part, name).unwrap() as u64;
    let won = ["line A", "line B", "answers to requests"].map(|line| count(line, "won"));
    assert!(count("line A", "holes") > 1 && count("line B", "holes") > 1, "{feed:?}");
    assert_eq!(won.iter().sum::<u64>(), count("feed", "next") - 1);
    assert_eq!(count("feed", "gaps"), feed.gaps);
    assert!(count("queue of line A", "packets") >= count("line A", "packets"));
    assert!(count("order entry", "short_way") >= feed.orders);
    assert_eq!(feed.orders, 2_010);
}

/// The figures: 1 % of each line and 10,000 messages of both at once, and packets that come
/// late. The run itself compares the books, level by level.
#[test]
fn after_a_burst_of_losses_the_books_are_the_exchanges() {
    let plan =
        Plan { loss_ppm: 10_000, reorder_ppm: 50_000, burst: 10_000, ticks: 1_000, ..plan() };
    let report = run(&plan).unwrap();
    let feed = report.feed();
    assert!(feed.reordered > 10 && feed.dropped > 100, "{feed:?}");
    // Each answer holds 30 messages.
    assert!(feed.gaps >= 1 && feed.requests >= 10_000 / 30, "{feed:?}");
    assert_eq!((feed.lost, feed.orders), (0, 1_010), "{feed:?}");
    assert!(feed.levels > 10, "{feed:?}");
    let rows = report.rows();
    let recovery = rows.iter().find(|row| row.name == "recovery of gaps").unwrap();
    assert!(recovery.count >= 1 && recovery.max >= recovery.p50 && recovery.p50 > 0);
    assert_eq!(recovery.count, feed.gaps, "every gap was closed");
}

#[test]
fn real_time_threads_that_would_share_a_core_are_refused() {
    let refused = run(&Plan { realtime: true, ..plan() }).unwrap_err();
    let expected = "--realtime needs two cores: of two such threads on one, one never runs";
    assert_eq!(refused.to_string(), expected);
}

/// The engine comes in the middle of the day: it takes the books as they stand, and the feed from
/// there. The run itself compares the books, level by level.
#[test]
fn who_comes_late_has_the_exchanges_books_and_asks_for_nothing_that_was_before() {
    let report = run(&Plan { late: 5_000, ..plan() }).unwrap();
    let feed = report.feed();
    assert!(feed.joined_at > 2_000, "{feed:?}");
    assert_eq!((feed.lost, feed.orders), (0, 410), "{feed:?}");
    assert!(feed.levels > 10 && feed.messages > feed.joined_at, "{feed:?}");
}
