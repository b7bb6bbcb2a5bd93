//! All that a trader counts, in one report: for people a line for each part, for programs JSON.

use ferrocx::{RxQueue, TxQueue};
use serde::{Serialize, Serializer};

use crate::engine::Engine;
use crate::feed::{ArbiterStats, LineStats};
use crate::gateway::{Gateway, GatewayStats};
use crate::orders::OrderEntry;
use crate::proto::ouch::Symbol;

/// Counts of one part, each with its name.
type Counts = Vec<(&'static str, i64)>;

/// Counts of all parts, each with its name, in the order of a frame's way.
///
/// As JSON it is an object of objects of whole numbers. Times are nanoseconds, shares of a position
/// that was sold short negative.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counters {
    parts: Vec<(String, Counts)>,
}

/// A map whose entries stay in their order.
struct Map<'a, T>(&'a [(T, i64)]);

impl<T: Serialize> Serialize for Map<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, count)| (name, count)))
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.parts.iter().map(|(name, counts)| (name, Map(counts))))
    }
}

fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Counters {
    /// A count, if there is one of this name.
    pub fn get(&self, part: &str, name: &str) -> Option<i64> {
        let (_, counts) = self.parts.iter().find(|(known, _)| known == part)?;
        counts.iter().find(|(known, _)| *known == name).map(|&(_, count)| count)
    }

    /// A line for each part, of what is not zero.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (part, counts) in &self.parts {
            let some = counts.iter().filter(|(_, count)| *count != 0);
            let some: Vec<_> = some.map(|(name, count)| format!("{count} {name}")).collect();
            let all = if some.is_empty() { "nothing".to_owned() } else { some.join(", ") };
            text += &format!("{part}: {all}\n");
        }
        text
    }

    fn add(
        &mut self,
        part: impl Into<String>,
        counts: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        let counts = counts.into_iter().map(|(name, count)| (name, signed(count))).collect();
        self.parts.push((part.into(), counts));
    }

    /// What driver and device counted of a receive queue: `missed` are frames that found no buffer
    /// in the ring, which is left out if the device does not count them for this queue.
    pub(crate) fn add_rx(&mut self, part: &str, rx: &RxQueue) {
        let stats = rx.stats();
        let missed = rx.missed().ok().flatten().map(|missed| ("missed", missed));
        self.add(
            part,
            [
                ("packets", stats.packets),
                ("bytes", stats.bytes),
                ("errors", stats.errors),
                ("no_mbuf", stats.no_mbuf),
                ("resets", stats.resets),
            ]
            .into_iter()
            .chain(missed),
        );
    }

    fn add_tx(&mut self, part: &str, tx: &TxQueue) {
        let stats = tx.stats();
        self.add(
            part,
            [
                ("packets", stats.packets),
                ("bytes", stats.bytes),
                ("errors", stats.errors),
                ("dropped", stats.dropped),
                ("full", stats.full),
                ("resets", stats.resets),
            ],
        );
    }

    /// Frames that were led to us and not taken: [`Dropped`](crate::trader::Dropped).
    pub(crate) fn add_dropped(&mut self, dropped: crate::trader::Dropped) {
        self.add(
            "frames not taken",
            [
                ("unreadable", dropped.unreadable),
                ("foreign", dropped.foreign),
                ("damaged", dropped.damaged),
            ],
        );
    }

    fn add_line(&mut self, part: &str, line: &LineStats) {
        let late = |percentile| line.late_ns.value_at_percentile(percentile);
        self.add(
            part,
            [
                ("packets", line.packets),
                ("messages", line.messages),
                ("won", line.won),
                ("holes", line.holes),
                ("missing", line.missing),
                ("late", line.late_ns.len()),
                ("late_p50_ns", late(50.0)),
                ("late_p99_ns", late(99.0)),
                ("late_max_ns", line.late_ns.max()),
            ],
        );
    }

    fn add_feed(&mut self, next: u64, feed: &ArbiterStats) {
        let [a, b, answers] = &feed.lines;
        self.add_line("line A", a);
        self.add_line("line B", b);
        self.add_line("answers to requests", answers);
        self.add(
            "feed",
            [
                ("next", next),
                ("gaps", feed.gaps),
                ("requests", feed.requests),
                ("lost", feed.lost),
                ("joined_at", feed.joined_at),
                ("foreign", feed.foreign),
                ("malformed", feed.malformed),
                ("unasked", feed.unasked),
                ("implausible", feed.implausible),
                ("unconfirmed", feed.unconfirmed),
                ("out_of_window", feed.out_of_window),
                ("too_long", feed.too_long),
                ("recoveries", feed.recovery_ns.len()),
                ("recovery_max_ns", feed.recovery_ns.max()),
            ],
        );
    }

    fn add_orders(&mut self, orders: &OrderEntry) {
        let [kill_refused, enable_refused] = orders.entry_refusals().map(u64::from);
        self.add(
            "orders",
            [
                ("next_urn", orders.next_urn().into()),
                ("standing", orders.count() as u64),
                ("mismatches", orders.mismatches()),
                ("overdue", orders.overdue()),
                ("owed", orders.risk().owed()),
                ("stops", orders.risk().stops().into()),
                ("asking", orders.is_asking().into()),
                ("kill_refused", kill_refused),
                ("enable_refused", enable_refused),
            ],
        );
        for (security, symbol) in orders.symbols().iter().enumerate() {
            self.add_position(orders, security, symbol);
        }
    }

    fn add_position(&mut self, orders: &OrderEntry, security: usize, symbol: &Symbol) {
        let Some(exposure) = orders.risk().exposure(security) else { return };
        let counts = vec![
            ("shares", exposure.position),
            ("buying", signed(exposure.buying)),
            ("selling", signed(exposure.selling)),
            ("cost", signed(exposure.cost)),
        ];
        self.parts.push((format!("position {symbol}"), counts));
    }

    /// Feed, books, orders.
    pub(crate) fn add_engine<S: crate::strategy::Strategy>(&mut self, engine: &Engine<S>) {
        self.add_feed(engine.arbiter().next(), engine.arbiter().stats());
        let stats = engine.stats();
        self.add(
            "engine",
            [
                ("malformed_packets", stats.malformed_packets),
                ("malformed_messages", stats.malformed_messages),
                ("unknown_messages", stats.unknown_messages),
                ("malformed_answers", stats.malformed_answers),
                ("broken_snapshots", stats.broken_snapshots),
                ("held", stats.held),
                ("stale", stats.stale),
                ("backlogs", stats.backlogs),
                ("unsent", stats.unsent),
            ],
        );
        let books = engine.books();
        let crossed = books.iter().filter(|book| book.trading() == b'T' && book.is_crossed());
        self.add(
            "books",
            [
                ("listed", books.iter().len() as u64),
                ("suspect", books.suspects() as u64),
                ("crossed", crossed.count() as u64),
                ("orders", books.order_count() as u64),
            ],
        );
        self.add("messages that no book took", books.errors_by_reason());
        self.add("orders that a check refused", engine.refused());
        self.add_orders(engine.orders());
        self.add("answers of the exchange", engine.orders().told().kinds());
        self.add("rejects of the exchange", engine.orders().told().rejects());
    }

    /// A session, its last connection, and its send queue.
    pub(crate) fn add_gateway(&mut self, part: &str, gateway: &mut Gateway) {
        let GatewayStats {
            connections,
            refused,
            reset,
            closed,
            silent,
            broken,
            rejected,
            unanswered,
        } = gateway.stats();
        self.add(
            part,
            [
                ("connections", connections),
                ("refused", refused),
                ("reset", reset),
                ("closed", closed),
                ("silent", silent),
                ("broken", broken),
                ("rejected", rejected),
                ("unanswered", unanswered),
                ("next_answer", gateway.next_answer()),
                ("short_way", gateway.line().orders()),
                ("rehearsals", gateway.line().rehearsals()),
            ],
        );
        let tcp = gateway.line().stats();
        self.add(
            format!("{part}, last connection"),
            [
                ("sent", tcp.sent),
                ("received", tcp.received),
                ("timeouts", tcp.timeouts),
                ("fast", tcp.fast),
                ("probes", tcp.probes),
                ("out_of_order", tcp.out_of_order),
                ("refused", tcp.refused),
            ],
        );
        self.add_tx(&format!("{part}, send queue"), gateway.line().tx());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_what_is_not_zero_and_programs_everything_in_its_order() {
        let mut counters = Counters::default();
        counters.add("line B", [("packets", 3), ("holes", 0), ("won", u64::MAX)]);
        counters.add("line A", [("packets", 0)]);
        assert_eq!(
            counters.text(),
            "line B: 3 packets, 9223372036854775807 won\nline A: nothing\n"
        );
        assert_eq!((counters.get("line B", "holes"), counters.get("x", "y")), (Some(0), None));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("counts");
        let target = ferrocx_app_common::report::JsonTarget::File(file.clone());
        target.write(&counters).unwrap();
        let text: String = std::fs::read_to_string(file).unwrap().split_whitespace().collect();
        assert_eq!(
            text,
            "{\"lineB\":{\"packets\":3,\"holes\":0,\"won\":9223372036854775807},\
             \"lineA\":{\"packets\":0}}"
        );
    }
}
