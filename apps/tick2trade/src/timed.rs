//! Where the time between a frame and its order goes.

use hdrhistogram::Histogram;

use crate::latency::{Row, histogram, now_ns};
use crate::orders::OrderEvent;
use crate::strategy::{Desk, MarketEvent, Strategy};

/// A strategy of which the way of its orders is told when it hears of the market
/// ([`Outbox::told`](crate::strategy::Outbox::told)), if anybody wants to know.
#[derive(Debug)]
pub struct Timed<S> {
    inner: S,
    is_timed: bool,
}

impl<S> Timed<S> {
    /// Times `inner`, or only hands on what it is told: no clock is read then.
    pub const fn new(inner: S, is_timed: bool) -> Self {
        Self { inner, is_timed }
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
        if self.is_timed {
            desk.outbox.told(now_ns());
        }
        self.inner.on_market(event, desk);
    }

    fn on_order(&mut self, event: OrderEvent, desk: &mut Desk<'_>) {
        self.inner.on_order(event, desk);
    }
}

/// When the strategy was told of what led to an order, when that was handed over for sending, and
/// when its doorbell had rung.
#[derive(Debug, Clone, Copy, Default)]
pub struct SendTimes {
    /// The strategy hears of the market: its books are up to date.
    pub told_ns: u64,
    /// The order is written, and every check let it pass.
    pub asked_ns: u64,
    /// The device was told.
    pub rung_ns: u64,
    /// Number of the frame that it has been asked to stamp, if it has.
    pub frame: Option<u64>,
}

/// The times of the first order that a frame of the feed leads to. Those of others, and of what was
/// not sent, are not kept: they would be times of another way.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstOrder {
    /// When the strategy was told last; 0 before the frame had it told of anything.
    told_ns: u64,
    times: Option<SendTimes>,
}

impl FirstOrder {
    /// A frame of the feed comes: what was sent before it was for another reason.
    #[inline]
    pub const fn begin(&mut self) {
        *self = Self { told_ns: 0, times: None };
    }

    /// The strategy is told of the market.
    #[inline]
    pub const fn told(&mut self, at_ns: u64) {
        self.told_ns = at_ns;
    }

    /// An order was sent.
    pub fn sent(&mut self, asked_ns: u64, rung_ns: u64, frame: Option<u64>) {
        let told_ns = self.told_ns;
        if told_ns != 0 {
            self.times.get_or_insert(SendTimes { told_ns, asked_ns, rung_ns, frame });
        }
    }

    /// The times of it, once.
    #[inline]
    pub const fn take(&mut self) -> Option<SendTimes> {
        self.times.take()
    }
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

/// How long each stage took, of frames that led to an order: the first one.
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
    /// Forgets all of it, in the memory that is there: other memory, touched for the first time,
    /// would keep the orders of the first milliseconds waiting.
    pub fn forget(&mut self) {
        for times in [
            &mut self.wire_to_book,
            &mut self.book_to_decision,
            &mut self.decision_to_doorbell,
            &mut self.wire_to_wire,
        ] {
            times.reset();
        }
        self.impossible = 0;
    }

    /// Adds one order's way.
    pub fn record(&mut self, wire_ns: u64, sent: SendTimes) {
        match sent.told_ns.checked_sub(wire_ns) {
            Some(took_ns) => self.wire_to_book.saturating_record(took_ns),
            None => self.impossible += 1,
        }
        self.book_to_decision.saturating_record(sent.asked_ns.saturating_sub(sent.told_ns));
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
            let (told_ns, asked_ns, rung_ns) = (2_000, 2_100, 2_400);
            stages.record(wire_ns, SendTimes { told_ns, asked_ns, rung_ns, frame: None });
        }
        assert_eq!((stages.wire_to_book.len(), stages.impossible), (2, 1));
        assert_eq!((stages.wire_to_book.max(), stages.book_to_decision.len()), (1_000, 3));
    }

    /// Three messages in a packet: the second leads to two orders, the third is told behind them.
    #[test]
    fn the_first_order_of_a_frame_is_the_one_that_is_timed() {
        let mut first = FirstOrder::default();
        first.sent(1, 2, Some(1));
        assert!(first.take().is_none(), "nothing was told: it follows an answer");
        first.begin();
        first.told(10);
        first.told(20);
        first.sent(25, 29, Some(7));
        first.sent(30, 34, Some(8));
        first.told(40);
        let SendTimes { told_ns, asked_ns, rung_ns, frame } = first.take().unwrap();
        assert_eq!((told_ns, asked_ns, rung_ns, frame), (20, 25, 29, Some(7)));
        assert!(first.take().is_none());
        // And what is sent behind the frame is none of the next one's.
        first.sent(50, 51, None);
        first.begin();
        assert!(first.take().is_none());
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
