//! What an operator does: kills, restarts, enables again, ends; and what happens to orders of which
//! the exchange says nothing.

mod day;

use std::time::Duration;

use day::Day;
use ferrocx_net::ether::MacAddr;
use ferrocx_tick2trade::capture::Capture;
use ferrocx_tick2trade::exchange::VenueConfig;
use ferrocx_tick2trade::gateway::GatewayState;
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::orders::{OrderEntry, OrdersConfig};
use ferrocx_tick2trade::proto::mold;
use ferrocx_tick2trade::proto::ouch::Answer;
use ferrocx_tick2trade::replay::{Lines, Recorded, Recording};
use ferrocx_tick2trade::risk::Stop;
use ferrocx_tick2trade::trader::{Closing, TraderConfig};

fn is_killed(day: &Day) -> bool {
    day.trader.engine().orders().risk().is_stopped_by(Stop::Killed)
}

/// The exchange has heard of a kill: nothing stands, and nothing is taken whatever happens.
fn is_dead(day: &mut Day) {
    day.until("the kill to be answered", |day| !day.trader.engine().orders().is_asking());
    day.until("all to be cancelled", |day| day.trader.engine().orders().count() == 0);
    assert!(day.answers(b'X') > 0 && day.answers(b'G') > 0);
    let accepted = day.answers(b'A');
    day.run(200);
    assert_eq!((day.answers(b'A'), day.trader.engine().orders().count()), (accepted, 0));
    assert!(is_killed(day));
}

/// The cable is cut; the kill goes into it, and is heard of behind the reconnection.
#[test]
fn a_kill_in_a_cut_cable_is_heard_of_when_it_is_whole_again() {
    for waits in [false, true] {
        let mut day = Day::trading(VenueConfig::default(), |config| config.timeout_ms = 3_000);
        day.cut(true);
        if waits {
            day.until("to notice", |day| {
                matches!(day.trader.gateway().state(), GatewayState::Waiting(_))
            });
        }
        assert_eq!(day.trader.kill(), !waits, "a line that is not known to be cut takes it");
        day.until("to try again", |day| day.trader.gateway().stats().connections > 2);
        assert!(day.trader.engine().orders().is_asking());
        assert!(day.trader.engine().orders().count() > 0, "what stands, stands");
        assert_eq!((day.answers(b'X'), day.answers(b'G')), (0, 0));
        day.cut(false);
        day.until_open();
        is_dead(&mut day);
        assert_eq!((day.answers(b'X'), day.answers(b'G')), (1, 1), "it was told once");
    }
}

#[test]
fn a_kill_outlives_the_program_until_order_entry_is_enabled() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    assert!(day.trader.kill());
    is_dead(&mut day);
    let mut day = day.restart();
    assert!(!is_killed(&day), "it has heard nothing yet");
    day.until_open();
    is_dead(&mut day);
    assert!(day.trader.enable());
    day.until("to be enabled", |day| !is_killed(day));
    assert_eq!(day.answers(b'K'), 1);
    day.trade();
    // Who hears the day anew hears of both.
    let mut day = day.restart();
    day.until_open();
    assert!(!is_killed(&day));
    day.trade();
    assert_eq!(day.trader.engine().orders().mismatches(), 0);
}

/// What an earlier run left is cancelled, and what the next one enters is not.
#[test]
fn what_stands_of_an_earlier_run_is_cancelled_at_the_start() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.cancels_at_start = true);
    assert_eq!(day.answers(b'X'), 0, "of the first run nothing stood");
    day.settle();
    let before = day.trader.engine().orders();
    let (stood, last) = (before.count(), before.next_urn() - 1);
    assert!(stood > 0);
    let mut day = day.restart();
    day.until_open();
    day.until("to cancel", |day| day.answers(b'X') == 1);
    day.settle();
    let orders = day.trader.engine().orders();
    assert!((1..=last).all(|urn| orders.left(urn).is_none()));
    day.trade();
    assert_eq!((day.answers(b'X'), day.trader.engine().orders().mismatches()), (1, 0));
}

#[test]
fn the_end_cancels_what_stands_logs_out_and_closes() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let ended = day.close(20_000);
    let good = Closing {
        is_known: true,
        standing: 0,
        has_strays: false,
        is_answered: true,
        is_kill_answered: true,
        is_closed: true,
    };
    assert_eq!(ended, good);
    assert_eq!((day.answers(b'X'), day.answers(b'G')), (1, 0), "it may trade again tomorrow");
    assert_eq!(day.trader.gateway().state(), GatewayState::Closed);
    day.until("the exchange to see it", |day| !day.venue(|venue| venue.is_connected()));
    let orders = day.venue(|venue| venue.stats().orders);
    day.run(100);
    assert_eq!(day.venue(|venue| venue.stats().orders), orders);
    assert_eq!(day.trader.gateway().stats().connections, 2, "one to ask where the answers end");
    // And another program goes on.
    let mut day = day.restart();
    day.until_open();
    day.trade();
}

#[test]
fn an_end_that_the_exchange_does_not_hear_of_says_what_may_stand() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let standing = day.trader.engine().orders().count();
    day.cut(true);
    let ended = day.close(50);
    let bad = Closing {
        is_known: true,
        standing,
        has_strays: false,
        is_answered: false,
        is_kill_answered: true,
        is_closed: false,
    };
    assert_eq!(ended, bad);
}

/// The exchange lives, and says nothing of orders any more: a mass cancel, then another connection,
/// which hears what was said.
#[test]
fn answers_that_do_not_come_end_in_a_mass_cancel_and_another_connection() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.answer_timeout_ms = 200);
    day.venue(|venue| venue.set_answer_bytes(0));
    // The strategy moves its quotes, and hears nothing of it.
    let asked = day.venue(|venue| venue.stats().orders);
    day.until("to send", |day| {
        day.run(1);
        day.venue(|venue| venue.stats().orders) > asked
    });
    day.until("to be overdue", |day| day.trader.engine().orders().overdue() == 1);
    let stopped = |day: &Day| day.trader.engine().orders().risk().is_stopped_by(Stop::Overdue);
    assert!(stopped(&day));
    day.until("the mass cancel", |day| day.answers(b'X') == 1);
    day.until("to give up", |day| day.trader.gateway().stats().unanswered == 1);
    day.venue(|venue| venue.set_answer_bytes(usize::MAX));
    day.until_open();
    day.until("to go on", |day| !stopped(day));
    day.trade();
    let orders = day.trader.engine().orders();
    assert_eq!((orders.mismatches(), orders.overdue()), (0, 1));
    assert_eq!(day.trader.counters().get("order entry", "unanswered"), Some(1));
}

/// What an answer leads to goes first, and says that the answer was heard: no frame for that alone
/// leaves before it.
#[test]
fn an_order_that_follows_an_answer_goes_before_its_acknowledgment() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let state = |day: &mut Day| {
        let heard = day.trader.gateway().next_answer();
        let line = day.trader.gateway().line();
        (line.stats(), line.orders(), heard)
    };
    let (mut with_order, mut alone) = (0, 0);
    day.until("orders and answers to meet", |day| {
        day.venue(|venue| venue.step(now_ns()));
        for _ in 0..20 {
            let (stats, orders, heard) = state(day);
            day.round();
            let (now, orders_now, heard_now) = state(day);
            let is_answer = heard_now > heard && now.received == stats.received + 1;
            // A round in which the machine was away repeats what is not acknowledged.
            let is_plain = (now.timeouts, now.probes) == (stats.timeouts, stats.probes);
            let (orders, sent) = (orders_now - orders, now.sent - stats.sent);
            if is_answer && is_plain {
                match orders {
                    0 => alone += u64::from(sent == 1),
                    _ => with_order += u64::from(sent == orders),
                }
            }
        }
        with_order >= 3 && alone >= 3
    });
}

/// While nothing comes, orders go their way but that nothing leaves: the exchange gets no byte of
/// them, and the connection's numbers stay what they were.
#[test]
fn orders_are_rehearsed_while_nothing_comes() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    day.settle();
    let line = day.trader.gateway().line();
    let (short, sequence, before) = (line.orders(), line.next_sequence(), line.rehearsals());
    let stats = line.stats();
    let asked = day.venue(|venue| venue.stats().orders);
    day.until("to rehearse", |day| day.trader.gateway().line().rehearsals() >= before + 300);
    day.settle();
    let line = day.trader.gateway().line();
    let said = line.next_sequence().since(sequence);
    // A heartbeat has three bytes.
    assert!(said % 3 == 0 && said as u64 <= 3 * (line.stats().sent - stats.sent), "{said} bytes");
    assert_eq!((line.orders(), line.stats().refused), (short, stats.refused));
    assert_eq!(day.venue(|venue| venue.stats().orders), asked);
    // And what follows is as right as ever.
    day.trade();
    day.settle();
    assert_eq!(day.trader.gateway().state(), GatewayState::Open);
    assert_eq!(day.trader.engine().orders().mismatches(), 0);
    let stamped = |config: &mut TraderConfig| config.stamp_orders = true;
    let mut day = Day::trading(VenueConfig::default(), stamped);
    day.settle();
    assert_eq!(day.trader.gateway().line().rehearsals(), 0, "those go another way");
}

/// An exchange that moves to its spare, of another station: also while something is due in every
/// round, so that nothing waits for one without.
#[test]
fn an_exchange_that_moved_is_found_again() {
    find_again(|config| config.timeout_ms = 500);
    find_again(|config| {
        (config.timeout_ms, config.answer_timeout_ms) = (500, 30);
        // A look at some orders each 7 us.
        config.engine.orders.capacity = 65_536;
    });
}

fn find_again(change: impl FnOnce(&mut TraderConfig)) {
    let mut day = Day::trading(VenueConfig::default(), change);
    move_exchange(&day);
    day.venue(|venue| venue.reset_member(now_ns()));
    day.until("to hear of the reset", |day| day.trader.gateway().state() != GatewayState::Open);
    day.until_open();
    day.trade();
}

/// A router's spare takes the address over, and knows the connection, or leads to who does: it goes
/// on there, with the orders of both ways and what was sent to the old station.
#[test]
fn a_connection_that_runs_follows_its_exchange_to_another_station() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    let connections = day.trader.gateway().stats().connections;
    let (accepted, short) = (day.answers(b'A'), day.trader.gateway().line().orders());
    move_exchange(&day);
    day.until("to trade there", |day| {
        day.run(1);
        day.answers(b'A') > accepted + 10
    });
    day.settle();
    assert!(day.trader.gateway().line().orders() > short + 10, "by the frames that stand ready");
    assert_eq!(day.trader.gateway().stats().connections, connections, "it is the same one");
    let orders = day.trader.engine().orders();
    assert_eq!((orders.mismatches(), orders.overdue()), (0, 0));
}

/// The exchange has another station, and says so.
fn move_exchange(day: &Day) {
    let station = MacAddr([0x02, 0xe0, 0, 0, 0, 9]);
    day.venue(|venue| venue.move_to(station));
    // It says so, as who takes an address over does: an answer that nobody asked for.
    let mut frame = vec![0xff; 6];
    frame.extend(station.0);
    frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    for _ in 0..2 {
        frame.extend(station.0);
        frame.extend(VenueConfig::default().address.octets());
    }
    frame.resize(60, 0);
    day.inject([frame]);
}

/// A security is no longer traded, and orders in it stand at the exchange: the restart has nobody
/// to keep them for, so that they are cancelled, and nothing leaves.
#[test]
fn orders_that_the_exchange_has_and_we_do_not_are_cancelled() {
    let mut day = Day::trading(VenueConfig::default(), |_| ());
    day.settle();
    assert!(day.trader.engine().orders().count() > 0);
    day.config.engine.orders.symbols = vec![VenueConfig::default().symbols[1]];
    let mut day = day.restart();
    day.until_open();
    day.until("to cancel", |day| day.answers(b'X') == 1);
    day.settle();
    // What the exchange says to one who trades that security.
    let symbols = vec![VenueConfig::default().symbols[0]];
    let config = OrdersConfig { symbols, ..OrdersConfig::default() };
    let mut theirs = OrderEntry::new(config).unwrap();
    day.venue(|venue| {
        venue.answers().for_each(|answer| {
            theirs.answer(&Answer::parse(answer).unwrap().0);
        });
    });
    assert_eq!((theirs.count(), theirs.mismatches()), (0, 0));
    let orders = day.trader.engine().orders();
    assert!(orders.mismatches() > 0 && orders.risk().is_stopped_by(Stop::Doubtful));
    assert!(!orders.has_strays(), "the exchange said so");
    assert!(!day.close(20_000).has_strays);
}

/// Each order that follows a frame of the feed has a time of each stage, and one from the stamp of
/// that frame to the stamp of its own, by one clock.
#[test]
fn what_is_measured_is_every_stage_and_the_way_from_stamp_to_stamp() {
    let mut day = Day::trading(VenueConfig::default(), |config| config.stamp_orders = true);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("day.pcapng");
    let (capture, recorders) = Capture::start_with(&path, Duration::from_secs(600)).unwrap();
    day.trader.record(recorders);
    day.until("to have stamps of ten orders", |day| {
        day.venue(|venue| venue.step(now_ns()));
        day.trader.stages().unwrap().wire_to_wire.len() >= 10
    });
    day.settle();
    let stages = day.trader.stages().unwrap();
    let (whole, decided) = (&stages.wire_to_wire, &stages.book_to_decision);
    assert!(whole.len() <= decided.len(), "{} of {}", whole.len(), decided.len());
    // It has all three parts in it, but for the tick of the clock that it is told in.
    assert!(whole.max() + 100 >= stages.decision_to_doorbell.min() && whole.min() > 0);
    assert_eq!(decided.len(), stages.wire_to_book.len() + stages.impossible);
    // Trades are told behind the books that they changed, and so behind the orders: those were
    // decided when they were decided.
    assert!(decided.min() > 0);
    // All of it is in the file: orders with the device's times, and the feed, to be played again.
    let orders = whole.len();
    let captured = capture.finish().unwrap();
    assert!(captured.frames > orders && captured.lost == 0, "{captured:?}");
    let lines = Lines { groups: VenueConfig::default().lines, answers_port: 26_500 };
    let mut recording = Recording::open(&path, lines).unwrap();
    let mut datagrams = 0;
    while let Some(Recorded { datagram, .. }) = recording.next_datagram().unwrap() {
        mold::Packet::parse(datagram).unwrap();
        datagrams += 1;
    }
    let sessions = recording.passed_over();
    assert!(datagrams > orders, "{datagrams} datagrams");
    assert_eq!(datagrams + sessions, captured.frames);
    let stamped = String::from_utf8_lossy(&std::fs::read(&path).unwrap())
        .matches("our clock -")
        .count() as u64;
    assert!(stamped >= orders, "{stamped} orders left behind their doorbells");
}
