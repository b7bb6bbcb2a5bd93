//! What a trader writes: when a book changed, what to send.
//!
//! A [`Strategy`] sees books, trades, halts and answers and says orders; it has no clock, no
//! randomness and no way to the wire but its [`Desk`], so the same input gives the same orders, to
//! the byte. Two are here: [`Taker`] takes what is offered at a price, [`Quoter`] stands on both
//! sides of the book.

use crate::book::{Book, Books, Change, Health};
use crate::orders::{ENTER_LEN, OrderEntry, OrderEvent, OwnOrder, REPLACE_LEN, Refused};
use crate::proto::Side;
use crate::risk::{Exposure, Intent, Stop};

/// What happened on the market.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarketEvent {
    /// A message changed a book.
    Book(Change),
    /// Shares of a security with a book traded, told to who [wants it](Strategy::HEARS_TRADES). If
    /// an order of the book was one of the two, the change of the book was told before.
    Trade(Trade),
    /// A trade is declared void; the books stay as they are.
    TradeBroken {
        /// The security.
        locate: u16,
        /// The trade.
        match_number: u64,
    },
    /// Trading of a security with a book changed: [`Book::trading`] says so from now on.
    Status {
        /// The security.
        locate: u16,
        /// `T` trades, `H` halted, `P` paused, `Q` quotes only.
        state: u8,
    },
    /// One market halted a security with a book for reasons of its own, or ended that. Of the
    /// market that is traded at [`Book::trading`] says so, too.
    OperationalHalt {
        /// The security.
        locate: u16,
        /// The market, by its letter: `Q`, `B` or `X`.
        market: u8,
        /// `H` halted, `T` trades again.
        action: u8,
    },
    /// The day's course, by its letter: `O` messages start, `S` system hours start, `Q` the market
    /// opens, `M` it closes, `E` system hours end, `C` messages end.
    System(u8),
    /// A level of the market-wide circuit breaker was passed: `1`, `2` or `3`.
    Breaker(u8),
    /// The time that [`Desk::wake_at`] named is there.
    Time,
    /// The book of this locate may be wrong from now on.
    Suspect(u16),
    /// Messages were lost for good: every book may be wrong from now on.
    Lost,
    /// The feed said that its session is over, and every message of it was told.
    SessionEnded,
    /// A new session: the books start anew.
    NewSession,
    /// The books are as a snapshot has them. How far the day is follows, if the snapshot says so
    /// ([`MarketEvent::System`]), then what happened since, and then [`MarketEvent::Live`].
    Joined,
    /// The books are behind the market from now on: messages are missing, the lines are silent, a
    /// snapshot is awaited, or the session is over. What stands, stands; nothing enters until
    /// [`MarketEvent::Live`].
    Stale,
    /// The books have all that the feed has said. A day begins behind it, too: nothing enters
    /// before the first one.
    Live,
}

/// Shares that traded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trade {
    /// The security.
    pub locate: u16,
    /// Price, four decimals.
    pub price: u32,
    /// Shares.
    pub shares: u64,
    /// Side of the order that stood in the book; `None` if none did: an auction, or an order that
    /// the book does not show.
    pub standing: Option<Side>,
    /// Whether it counts as volume; otherwise another message counts it.
    pub is_counted: bool,
    /// Number of the trade.
    pub match_number: u64,
}

/// Decides what to send.
pub trait Strategy {
    /// Whether it is told of trades, [`MarketEvent::Trade`]: who needs none has the book's change
    /// alone, and nothing between an execution and its order.
    const HEARS_TRADES: bool = true;

    /// Something happened on the market, a book is not to be trusted any more, or it is time.
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>);

    /// The exchange said something about an order.
    fn on_order(&mut self, event: OrderEvent, desk: &mut Desk<'_>);
}

/// Where orders leave: takes packets of the session, ready to be sent.
pub trait Outbox {
    /// Sends a packet; `false` if the connection does not take it now.
    fn send(&mut self, packet: &[u8]) -> bool;

    /// The strategy is told of the market now, ns; by those that measure
    /// ([`Timed`](crate::timed::Timed)). Nothing, for those that do not.
    fn told(&mut self, _at_ns: u64) {}
}

/// What a strategy sees and can do.
pub struct Desk<'a> {
    /// The books.
    pub books: &'a Books,
    pub(crate) entry: &'a mut OrderEntry,
    /// Locate of each security that may be traded; 0 while it is not known.
    pub(crate) locates: &'a [u16],
    pub(crate) outbox: &'a mut dyn Outbox,
    pub(crate) now_ns: u64,
    pub(crate) notes: &'a mut Notes,
}

/// What a desk leaves behind.
#[derive(Debug)]
pub(crate) struct Notes {
    /// Orders and cancels that the connection did not take.
    pub(crate) unsent: u64,
    /// Those that a check refused, by [`Refused::reason`].
    pub(crate) refused: [u64; Refused::REASONS.len()],
    /// When the strategy wants to be told of the time; the end of all times for never.
    pub(crate) wake_ns: u64,
}

impl Default for Notes {
    fn default() -> Self {
        Self { unsent: 0, refused: [0; Refused::REASONS.len()], wake_ns: u64::MAX }
    }
}

impl Notes {
    /// Counts what a check refused, and gives the reason back.
    #[cold]
    const fn refuse(&mut self, why: Refused) -> Refused {
        self.refused[why.reason()] += 1;
        why
    }
}

/// How long an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stands {
    /// What does not trade at once is cancelled.
    Immediately,
    /// Until it is cancelled, or the day ends.
    AllDay,
}

impl Desk<'_> {
    /// Whether the books have all that the feed has said, as far as anybody knows. While they have
    /// not, every order is refused: [`MarketEvent::Stale`].
    pub const fn is_live(&self) -> bool {
        !self.entry.risk().is_stopped_by(Stop::Stale)
    }

    /// The book of a security that may be traded, by its index.
    pub fn book(&self, security: usize) -> Option<&Book> {
        self.books.get(self.locate(security)?)
    }

    /// Today's locate of a security that may be traded, once the feed said it.
    pub fn locate(&self, security: usize) -> Option<u16> {
        self.locates.get(security).copied().filter(|&locate| locate != 0)
    }

    /// Sends an order, if every check lets it pass and the connection takes it. The collar is drawn
    /// around the midpoint of the book, or the best price of the one side that it has.
    ///
    /// # Errors
    /// A [`Refused`]; `Ok(None)` if the connection does not take it now.
    #[inline]
    pub fn enter(
        &mut self,
        security: usize,
        side: Side,
        shares: u32,
        price: u32,
        stands: Stands,
    ) -> Result<Option<u32>, Refused> {
        let reference = self.book(security).and_then(reference);
        let intent = Intent { security, side, shares, price, reference };
        let mut packet = [0; ENTER_LEN];
        let immediate = stands == Stands::Immediately;
        let entered = self.entry.enter(&intent, immediate, self.now_ns, &mut packet);
        let urn = entered.map_err(|why| self.notes.refuse(why))?;
        if self.outbox.send(&packet) {
            return Ok(Some(urn));
        }
        self.entry.not_sent(urn);
        self.notes.unsent += 1;
        Ok(None)
    }

    /// Replaces an order that stands by one of so many shares at another price; returns its number,
    /// or `Ok(None)` if the connection does not take it now. The old one may trade until the answer
    /// comes, so that both have to fit every limit.
    ///
    /// # Errors
    /// A [`Refused`].
    #[inline]
    pub fn replace(&mut self, urn: u32, shares: u32, price: u32) -> Result<Option<u32>, Refused> {
        let (books, locates) = (self.books, self.locates);
        let collar = |security: usize| {
            let locate = locates.get(security).copied().filter(|&locate| locate != 0)?;
            reference(books.get(locate)?)
        };
        let mut packet = [0; REPLACE_LEN];
        let to = (shares, price);
        let replaced = self.entry.replace(urn, to, collar, self.now_ns, &mut packet);
        let new = replaced.map_err(|why| self.notes.refuse(why))?;
        if self.outbox.send(&packet) {
            return Ok(Some(new));
        }
        self.entry.not_sent(new);
        self.notes.unsent += 1;
        Ok(None)
    }

    /// Cancels what is left of an order, and of the one that is to replace it: which of them the
    /// exchange has when it hears that, nobody knows. `Ok(false)` if the connection does not take
    /// it now.
    ///
    /// # Errors
    /// A [`Refused`].
    pub fn cancel(&mut self, urn: u32) -> Result<bool, Refused> {
        let mut next = Some(urn);
        while let Some(urn) = next {
            let cancelled = self.entry.cancel(urn, self.now_ns);
            let packet = cancelled.map_err(|why| self.notes.refuse(why))?;
            if !self.outbox.send(&packet) {
                self.entry.cancel_not_sent(urn);
                self.notes.unsent += 1;
                return Ok(false);
            }
            next = self.entry.successor(urn);
        }
        Ok(true)
    }

    /// Shares of an order that may still trade; `None` if it does not stand.
    pub fn left(&self, urn: u32) -> Option<u32> {
        self.entry.left(urn)
    }

    /// Our orders that may trade.
    pub fn orders(&self) -> impl Iterator<Item = OwnOrder> + '_ {
        self.entry.standing()
    }

    /// Position of a security that may be traded, and what may still trade of it; `None` for an
    /// index that there is not.
    pub fn exposure(&self, security: usize) -> Option<Exposure> {
        self.entry.risk().exposure(security)
    }

    /// Shares held of a security, negative for those owed; 0 for an index that there is not.
    pub fn position(&self, security: usize) -> i64 {
        self.exposure(security).map_or(0, |exposure| exposure.position)
    }

    /// When what is happening happened, ns.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Asks for [`MarketEvent::Time`] at a time, ns, in the place of one that was asked for before;
    /// no sooner than after this moment.
    pub fn wake_at(&mut self, at_ns: u64) {
        self.notes.wake_ns = at_ns.max(self.now_ns.saturating_add(1));
    }
}

/// The price that an order is compared with: of a book that is sound and trades. Who takes the only
/// offer that is left pays by it what a stub asks: the other side has its half of the word.
#[inline]
fn reference(book: &Book) -> Option<u32> {
    if book.health() == Health::Suspect || book.trading() != b'T' {
        return None;
    }
    let best = |side| book.best(side).map(|level| level.price);
    let Some(offer) = best(Side::Sell) else { return best(Side::Buy) };
    best(Side::Buy).map_or(Some(offer), |bid| Some(bid.midpoint(offer)))
}

/// Takes what is offered at or below a price, up to a number of shares at a time; waits for the
/// answer before it takes more.
#[derive(Debug, Clone)]
pub struct Taker {
    /// The security, an index of those that may be traded.
    pub security: usize,
    /// Buys at this price or below, four decimals.
    pub at_most: u32,
    /// Shares of one order, at most.
    pub shares: u32,
    waiting: Option<u32>,
    /// The best offer changed while an answer was awaited.
    missed: bool,
}

impl Taker {
    /// A taker with nothing on its way.
    pub const fn new(security: usize, at_most: u32, shares: u32) -> Self {
        Self { security, at_most, shares, waiting: None, missed: false }
    }
}

// ANCHOR: taker
impl Taker {
    #[inline]
    fn take(&mut self, desk: &mut Desk<'_>) {
        self.missed = self.waiting.is_some();
        let offer = desk.book(self.security).and_then(|book| book.best(Side::Sell));
        let Some(offer) = offer.filter(|offer| offer.price <= self.at_most && !self.missed) else {
            return;
        };
        let shares = offer.shares.min(self.shares.into()) as u32;
        let entered =
            desk.enter(self.security, Side::Buy, shares, offer.price, Stands::Immediately);
        self.waiting = entered.ok().flatten();
    }
}

impl Strategy for Taker {
    const HEARS_TRADES: bool = false;

    #[inline]
    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        let is_ours = match event {
            MarketEvent::Book(Change { locate, side: Side::Sell, best_changed: true, .. }) => {
                desk.locate(self.security) == Some(locate)
            }
            // What came meanwhile may be what it takes.
            event => event == MarketEvent::Live,
        };
        if is_ours {
            self.take(desk);
        }
    }

    fn on_order(&mut self, event: OrderEvent, desk: &mut Desk<'_>) {
        let _ = event;
        self.waiting = self.waiting.filter(|&urn| desk.left(urn).is_some());
        // Not before the feed said more: what was taken may still stand in the book.
        if self.waiting.is_none() && self.missed {
            self.take(desk);
        }
    }
}
// ANCHOR_END: taker

/// Price of a quote whose cancel is on its way, and of one that is to leave in any case.
const LEAVING: u32 = u32::MAX;
const NOWHERE: u32 = 0;

/// The least step of prices, four decimals: a cent from 1.0000 up. Source: 17 CFR 242.612.
const fn tick(price: u32) -> u32 {
    if price >= 10_000 { 100 } else { 1 }
}

/// Stands on both sides of a book at its best prices, and moves when they move. Leaves the market
/// when the book may be wrong, is behind, does not trade, or the day is over. A quote that the
/// exchange does not take, or takes off, is not sent again before the market moves.
#[derive(Debug, Clone)]
pub struct Quoter {
    /// The security, an index of those that may be traded.
    pub security: usize,
    /// Shares on each side.
    pub shares: u32,
    /// The least distance between the two prices, four decimals. Where the market's is less, half
    /// of it lies on each side of the middle, and what is no whole cent from 1.0000 up is rounded
    /// away from there.
    pub spread: u32,
    quotes: [Option<(u32, u32)>; 2],
    /// Sides whose last quote the exchange did not take, or took off, since the market moved.
    waits: [bool; 2],
    is_closed: bool,
}

impl Quoter {
    /// A quoter that does not stand yet.
    pub const fn new(security: usize, shares: u32, spread: u32) -> Self {
        let (quotes, waits) = ([None; 2], [false; 2]);
        Self { security, shares, spread, quotes, waits, is_closed: false }
    }

    /// Where it wants to stand: bid and offer; `None` for nowhere.
    fn wanted(&self, desk: &Desk<'_>) -> [Option<u32>; 2] {
        let book = desk.book(self.security).filter(|book| {
            let trades = book.trading() == b'T' && !self.is_closed && desk.is_live();
            book.health() == Health::Sound && trades && !book.is_crossed()
        });
        let best = |side| book.and_then(|book| book.best(side)).map(|level| level.price);
        let (Some(bid), Some(ask)) = (best(Side::Buy), best(Side::Sell)) else { return [None; 2] };
        if ask - bid >= self.spread {
            return [Some(bid), Some(ask)];
        }
        let middle = bid + (ask - bid) / 2;
        let bid = middle.saturating_sub(self.spread / 2);
        let offer = bid.saturating_add(self.spread);
        let bid = bid - bid % tick(bid);
        [Some(bid).filter(|&bid| bid != 0), offer.checked_next_multiple_of(tick(offer))]
    }

    /// Moves each side to where it should stand: what stands elsewhere is cancelled, and replaced
    /// when its cancel was answered.
    fn stand(&mut self, desk: &mut Desk<'_>) {
        let wanted = self.wanted(desk);
        let sides = [Side::Buy, Side::Sell].into_iter().zip(wanted);
        let quotes = self.quotes.iter_mut().zip(self.waits);
        for ((quote, waits), (side, wanted)) in quotes.zip(sides) {
            match (*quote, wanted) {
                (Some((urn, price)), wanted) if price != LEAVING && wanted != Some(price) => {
                    // A cancel that does not leave is tried again at the next change.
                    let leaves = desk.cancel(urn).is_ok_and(|sent| sent);
                    *quote = Some((urn, if leaves { LEAVING } else { price }));
                }
                (None, Some(price)) if !waits => {
                    let entered =
                        desk.enter(self.security, side, self.shares, price, Stands::AllDay);
                    *quote = entered.ok().flatten().map(|urn| (urn, price));
                }
                _ => {}
            }
        }
    }
}

impl Strategy for Quoter {
    const HEARS_TRADES: bool = false;

    fn on_market(&mut self, event: MarketEvent, desk: &mut Desk<'_>) {
        match event {
            MarketEvent::Book(Change { locate, best_changed, .. })
                if !best_changed || desk.locate(self.security) != Some(locate) => {}
            MarketEvent::TradeBroken { .. } => {}
            event => {
                match event {
                    // An end of the session is no end of the day: books that are behind say it.
                    MarketEvent::System(b'M' | b'E' | b'C') => self.is_closed = true,
                    MarketEvent::NewSession | MarketEvent::System(_) => self.is_closed = false,
                    _ => {}
                }
                self.waits = [false; 2];
                self.stand(desk);
            }
        }
    }

    fn on_order(&mut self, event: OrderEvent, desk: &mut Desk<'_>) {
        if let OrderEvent::Resumed { .. } | OrderEvent::AllCancelled = event {
            self.waits = [false; 2];
        }
        for (quote, waits) in self.quotes.iter_mut().zip(&mut self.waits) {
            if let Some((urn, price)) = quote.take_if(|(urn, _)| desk.left(*urn).is_none()) {
                *waits |= match event {
                    OrderEvent::Rejected { urn: of, .. } => of == urn,
                    // Unless it was to leave.
                    OrderEvent::Cancelled { urn: of, .. } => {
                        of == urn && ![LEAVING, NOWHERE].contains(&price)
                    }
                    _ => false,
                };
            }
            if let (OrderEvent::Resumed { .. }, Some((_, price @ LEAVING))) = (event, quote) {
                // Its cancel may be lost: it stands where nobody wants it.
                *price = NOWHERE;
            }
        }
        self.stand(desk);
        if let OrderEvent::CancelRejected { urn } = event {
            for quote in self.quotes.iter_mut().flatten().filter(|quote| quote.0 == urn) {
                // It stands where nobody wants it, and is cancelled again when the market moves.
                quote.1 = NOWHERE;
            }
        }
    }
}
