//! Where the time between a frame and its order goes.

use std::cell::Cell;

use hdrhistogram::Histogram;

use crate::latency::{Row, histogram, now_ns};
use crate::orders::OrderEvent;
use crate::strategy::{Desk, MarketEvent, Strategy};

/// A strategy that notes when it was told of the market.
#[derive(Debug)]
pub struct Timed<S> {
    inner: S,
    told_ns: Cell<u64>,
}

impl<S> Timed<S> {
    /// Times `inner`.
    pub const fn new(inner: S) -> Self {
        Self { inner, told_ns: Cell::new(0) }
    }

    /// When it was told last: its books were up to date by then.
    pub const fn told_ns(&self) -> u64 {
        self.told_ns.get()
    }

    /// The strategy.
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Strategy> Strategy for Timed<S> {
    const HEARS_TRADES: bool = S::HEARS_TRADES;

    #[inline]
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        self.told_ns.set(now_ns());
        self.inner.on_market(event, desk);
    }

    fn on_order(&mut self, event: OrderEvent, desk: &mut Desk<'_>) {
        self.inner.on_order(event, desk);
    }
}

/// When an order was handed over for sending, and when its doorbell had rung.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendTimes {
    /// The order is written, and every check let it pass.
    pub asked_ns: u64,
    /// The device was told.
    pub rung_ns: u64,
    /// Number of the frame that it has been asked to stamp, if it has.
    pub frame: Option<u64>,
}

/// Orders at a time whose frames were sent and of which the device has not said when.
const ON_THEIR_WAY: usize = 64;

/// When frames of the feed came that orders followed, until the device says when those left. Of
/// more than 64 at a time the oldest is forgotten.
#[derive(Debug)]
pub struct Flights {
    /// Number of the order's frame and stamp of the feed's, at the place of the number.
    kept: Box<[Option<(u64, u64)>]>,
}

impl Default for Flights {
    fn default() -> Self {
        Self { kept: vec![None; ON_THEIR_WAY].into() }
    }
}

impl Flights {
    /// An order left in this frame, because of one that came at this tick.
    pub fn note(&mut self, frame: u64, came_ticks: u64) {
        self.kept[frame as usize % ON_THEIR_WAY] = Some((frame, came_ticks));
    }

    /// When the frame came that led to this one, once.
    pub fn take(&mut self, frame: u64) -> Option<u64> {
        let place = &mut self.kept[frame as usize % ON_THEIR_WAY];
        let (_, came_ticks) = place.take_if(|&mut (kept, _)| kept == frame)?;
        Some(came_ticks)
    }
}

/// How long each stage took, of frames that led to an order.
#[derive(Debug, Clone)]
pub struct Stages {
    /// From the frame's time stamp, or from when it was read where there is none, to the book.
    pub wire_to_book: Histogram<u64>,
    /// Frames whose time stamp lies behind the book that they changed: the device's clock is known
    /// less well than the way is short. They are not in [`Stages::wire_to_book`].
    pub impossible: u64,
    /// From the book to an order that is decided, checked and written.
    pub book_to_decision: Histogram<u64>,
    /// From there to the doorbell.
    pub decision_to_doorbell: Histogram<u64>,
    /// From the frame's time stamp to that of the order's frame, both the device's, of orders that
    /// it was asked to stamp.
    pub wire_to_wire: Histogram<u64>,
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            wire_to_book: histogram(),
            impossible: 0,
            book_to_decision: histogram(),
            decision_to_doorbell: histogram(),
            wire_to_wire: histogram(),
        }
    }
}

impl Stages {
    /// Adds one order's way.
    pub fn record(&mut self, wire_ns: u64, book_ns: u64, sent: SendTimes) {
        match book_ns.checked_sub(wire_ns) {
            Some(took_ns) => self.wire_to_book.saturating_record(took_ns),
            None => self.impossible += 1,
        }
        self.book_to_decision.saturating_record(sent.asked_ns.saturating_sub(book_ns));
        self.decision_to_doorbell.saturating_record(sent.rung_ns.saturating_sub(sent.asked_ns));
    }

    /// The stages as rows of a table; `names` are those of start and end.
    pub fn rows(&self, names: [&str; 3]) -> [Row; 3] {
        let times = [&self.wire_to_book, &self.book_to_decision, &self.decision_to_doorbell];
        let mut rows = names.into_iter().zip(times).map(|(name, times)| Row::new(name, times));
        std::array::from_fn(|_| rows.next().expect("three names, three histograms"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_behind_its_book_is_counted_and_is_no_time() {
        let mut stages = Stages::default();
        for wire_ns in [1_000, 2_000, 2_001] {
            stages.record(
                wire_ns,
                2_000,
                SendTimes { asked_ns: 2_100, rung_ns: 2_400, frame: None },
            );
        }
        assert_eq!((stages.wire_to_book.len(), stages.impossible), (2, 1));
        assert_eq!((stages.wire_to_book.max(), stages.book_to_decision.len()), (1_000, 3));
    }

    #[test]
    fn an_order_has_the_stamp_of_its_own_frame_and_of_no_other() {
        let mut flights = Flights::default();
        flights.note(0, 10);
        flights.note(7, 20);
        assert_eq!((flights.take(7), flights.take(7)), (Some(20), None));
        // Another one has its place.
        flights.note(ON_THEIR_WAY as u64, 30);
        assert_eq!((flights.take(0), flights.take(ON_THEIR_WAY as u64)), (None, Some(30)));
    }
}
