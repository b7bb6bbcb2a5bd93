//! Feed, books, strategy, risk and orders, put together: packets and the time in, orders out.
//!
//! Sans I/O, and deterministic: what it does depends on what it is given and on nothing else. A day
//! that is played again gives the same orders, to the byte.
//!
//! | in | method | may end in |
//! |---|---|---|
//! | a datagram of a line | [`Engine::feed`] | orders |
//! | a counted message of the exchange | [`Engine::answer`] | orders |
//! | a message of a snapshot, for who is late or lost some | [`Engine::snapshot`] | orders, behind the last |
//! | the time | [`Engine::poll`] | a request for lost messages; orders, if the strategy asked for it |
//! | the time, for answers that do not come | [`Engine::watch`] | mass cancel |
//! | the kill switch | [`Engine::kill`] | mass cancel; no order after it |
//! | the end | [`Engine::close`] | mass cancel; no order after it |
//!
//! Times are nanoseconds of any clock that does not go back.

mod unfit;

use crate::book::{self, Book, Books, BooksConfig, Change};
use crate::feed::{self, Arbiter, ArbiterConfig, Event, Request, Source};
use crate::orders::{BadCapacity, OrderEntry, OrderEvent, OrdersConfig, Refused, Watched};
use crate::proto::glimpse::SnapshotMessage;
use crate::proto::itch::{Message, StockDirectory};
use crate::proto::{mold, ouch};
use crate::risk::Stop;
use crate::strategy::{Desk, MarketEvent, Notes, Outbox, Strategy, Trade};
use thiserror::Error;

/// What an engine is made of. Books are kept of the symbols that may be traded, and of those alone,
/// unless [`BooksConfig::stocks`] names others.
#[derive(Debug, Clone, Default)]
pub struct EngineConfig {
    /// Lines and their gaps.
    pub feed: ArbiterConfig,
    /// Books and their sizes.
    pub books: BooksConfig,
    /// Orders and their limits.
    pub orders: OrdersConfig,
}

/// Why an engine was not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The feed's part.
    #[error(transparent)]
    Feed(#[from] feed::ConfigError),
    /// The books' part.
    #[error(transparent)]
    Books(#[from] book::ConfigError),
    /// The orders' part.
    #[error(transparent)]
    Orders(#[from] BadCapacity),
}

/// What an engine counts besides what its parts count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Datagrams that are no packets of the feed's protocol.
    pub malformed_packets: u64,
    /// Messages of the feed that are none of its messages. Those of a kind that changes books make
    /// theirs suspect.
    pub malformed_messages: u64,
    /// Messages of the feed of a kind that is not known.
    pub unknown_messages: u64,
    /// Answers that are none, or cannot be read to their end. What moves shares, and cannot be read
    /// at all, is an [`OrderEvent::Mismatch`] besides.
    pub malformed_answers: u64,
    /// Snapshots whose end cannot be read, or names a message that the feed is not near.
    pub broken_snapshots: u64,
    /// Times that the books were given up, for a snapshot that began to come.
    pub held: u64,
    /// Times that the books fell behind the market: [`MarketEvent::Stale`].
    pub stale: u64,
    /// Times that what came may have waited in a queue: [`Engine::set_backlog`].
    pub backlogs: u64,
    /// Orders and cancels that the connection did not take.
    pub unsent: u64,
}

/// How far a snapshot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Snapshot {
    /// More is to come.
    GoesOn,
    /// The books are there, and the feed goes on.
    Whole,
    /// It cannot be read, or its end cannot be: another is needed, from its first message.
    Broken,
}

/// Trades by a strategy. Nothing is allocated after [`Engine::new`], but by a strategy that does.
#[derive(Debug)]
pub struct Engine<S> {
    arbiter: Arbiter,
    market: Market<S>,
    /// What comes may have waited in a queue while nobody looked.
    has_backlog: bool,
}

/// All that a message of the feed changes.
#[derive(Debug)]
struct Market<S> {
    books: Books,
    entry: OrderEntry,
    symbols: Vec<ouch::Symbol>,
    locates: Box<[u16]>,
    strategy: S,
    stats: EngineStats,
    notes: Notes,
    /// A book may be wrong, and a snapshot would mend it.
    is_broken: bool,
    /// Letter of the last system event of the snapshot that comes: how far the day is.
    day: Option<u8>,
}

impl<S: Strategy> Engine<S> {
    /// An engine that has heard nothing yet.
    ///
    /// # Errors
    /// A [`ConfigError`] of one of its parts.
    pub fn new(config: EngineConfig, strategy: S) -> Result<Self, ConfigError> {
        let mut books = config.books;
        if books.stocks.is_empty() {
            books.stocks.clone_from(&config.orders.symbols);
        }
        let symbols = config.orders.symbols.clone();
        let mut entry = OrderEntry::new(config.orders)?;
        // Until the feed is heard.
        entry.set_stale(true);
        Ok(Self {
            arbiter: Arbiter::new(config.feed)?,
            has_backlog: false,
            market: Market {
                books: Books::new(books)?,
                locates: vec![0; symbols.len()].into(),
                symbols,
                entry,
                strategy,
                stats: EngineStats::default(),
                notes: Notes::default(),
                is_broken: false,
                day: None,
            },
        })
    }

    /// Takes the payload of a datagram of a line.
    #[inline]
    pub fn feed(&mut self, source: Source, datagram: &[u8], now_ns: u64, outbox: &mut impl Outbox) {
        let Ok(packet) = mold::Packet::parse(datagram) else {
            self.market.stats.malformed_packets += 1;
            return;
        };
        let market = &mut self.market;
        if let Some(message) = self.arbiter.receive_next(source, &packet, now_ns) {
            return market.message(message, now_ns, outbox);
        }
        self.feed_rest(source, &packet, now_ns, outbox);
    }

    /// Takes a packet that is not the next message alone.
    #[inline(never)]
    fn feed_rest(
        &mut self,
        source: Source,
        packet: &mold::Packet<'_>,
        now_ns: u64,
        outbox: &mut impl Outbox,
    ) {
        let market = &mut self.market;
        if let Some(messages) = self.arbiter.receive_run(source, packet, now_ns) {
            return messages.for_each(|message| market.message(message, now_ns, outbox));
        }
        self.arbiter.receive(source, packet, now_ns, |event| market.event(event, now_ns, outbox));
        self.follow(now_ns, outbox);
    }

    /// Whether what comes from now on may have waited in a queue while nobody looked: until it did
    /// not, the books are behind, whatever the numbers of messages say.
    pub fn set_backlog(&mut self, has_backlog: bool, now_ns: u64, outbox: &mut impl Outbox) {
        self.market.stats.backlogs += u64::from(has_backlog && !self.has_backlog);
        self.has_backlog = has_backlog;
        self.follow(now_ns, outbox);
    }

    /// Whether the books may be behind for what waited in a queue.
    pub const fn has_backlog(&self) -> bool {
        self.has_backlog
    }

    /// Tells the strategy if the books have fallen behind the market, or have caught up: the one
    /// place where either is said.
    #[inline]
    fn follow(&mut self, now_ns: u64, outbox: &mut impl Outbox) {
        let is_stale = self.has_backlog || !self.arbiter.is_live();
        if is_stale != self.market.is_stale() {
            self.market.turn(is_stale, now_ns, outbox);
        }
    }

    /// Takes a counted message of the exchange, in its order.
    pub fn answer(&mut self, message: &[u8], now_ns: u64, outbox: &mut impl Outbox) {
        self.answered(message, false, now_ns, outbox);
    }

    /// Takes the answer to the query that a session begins with: [`OrderEntry::resume`].
    pub fn resume(&mut self, message: &[u8], now_ns: u64, outbox: &mut impl Outbox) {
        self.answered(message, true, now_ns, outbox);
    }

    fn answered(&mut self, message: &[u8], resumes: bool, now_ns: u64, outbox: &mut impl Outbox) {
        let market = &mut self.market;
        let event = match ouch::Answer::parse(message) {
            Ok((ouch::Answer::AccountQueryAnswered(known), _)) if resumes => {
                market.entry.resume(known)
            }
            Ok((answer, _)) => market.entry.answer(&answer),
            Err(_) => {
                market.stats.malformed_answers += 1;
                let Some(event) = market.entry.malformed(message) else { return };
                event
            }
        };
        market.ask(now_ns, outbox);
        market.tell_of_order(event, now_ns, outbox);
    }

    /// Takes a message of a snapshot, by its number in its session: the first one empties the
    /// books, and the feed is held until the last one, which goes on with it. In between the
    /// strategy hears nothing, and has no book to look at; before the first, the feed goes on
    /// whatever becomes of the server. An engine that wants none takes none: it is whole.
    ///
    /// For an engine whose [`ArbiterConfig::start`] is [`Start::Held`](feed::Start::Held), and for
    /// one that [wants one](Engine::wants_snapshot).
    pub fn snapshot(
        &mut self,
        number: u64,
        message: &[u8],
        now_ns: u64,
        outbox: &mut impl Outbox,
    ) -> Snapshot {
        if self.arbiter.next() != 0 {
            if number != 1 || !self.wants_snapshot() {
                return Snapshot::Whole;
            }
            self.arbiter.wait_for_snapshot();
            self.market.stats.held += 1;
            self.follow(now_ns, outbox);
        }
        let market = &mut self.market;
        if number == 1 {
            market.empty();
        }
        match SnapshotMessage::parse(message) {
            Ok(SnapshotMessage::Feed(bytes)) => {
                market.take_in(bytes);
                Snapshot::GoesOn
            }
            Ok(SnapshotMessage::End(next)) if self.arbiter.may_start_at(next) => {
                market.find_locates();
                market.tell(MarketEvent::Joined, now_ns, outbox);
                if let Some(letter) = market.day.take() {
                    market.tell(MarketEvent::System(letter), now_ns, outbox);
                }
                self.arbiter.start_at(next, now_ns, |event| market.event(event, now_ns, outbox));
                self.follow(now_ns, outbox);
                Snapshot::Whole
            }
            _ => {
                market.stats.broken_snapshots += 1;
                Snapshot::Broken
            }
        }
    }

    /// Whether a book may be wrong and a snapshot would mend that: messages were lost, or one did
    /// not fit. A book that is too small for its market stays wrong, whoever tells of it.
    #[inline]
    pub const fn wants_snapshot(&self) -> bool {
        self.market.is_broken
    }

    /// Does what is due: tells the strategy that the feed is silent, and then of the time that it
    /// asked for; says which messages to ask for, if any.
    pub fn poll(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> Option<Request> {
        let market = &mut self.market;
        let request = self.arbiter.poll(now_ns, |event| market.event(event, now_ns, outbox));
        self.follow(now_ns, outbox);
        let market = &mut self.market;
        if market.notes.wake_ns <= now_ns {
            market.notes.wake_ns = u64::MAX;
            market.tell(MarketEvent::Time, now_ns, outbox);
        }
        request
    }

    /// When [`Engine::poll`] has something to do; `None` while nothing is missing, no feed could
    /// fall silent, and the strategy waits for no time.
    pub fn poll_at(&self) -> Option<u64> {
        let wake_at = Some(self.market.notes.wake_ns).filter(|&wake_ns| wake_ns != u64::MAX);
        self.arbiter.poll_at().map_or(wake_at, |at| Some(at.min(self.market.notes.wake_ns)))
    }

    /// Looks for answers that do not come: [`OrderEntry::watch`] says what follows. `false` if the
    /// connection is to be given up.
    #[must_use]
    pub fn watch(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> bool {
        let market = &mut self.market;
        let event = match market.entry.watch() {
            Watched::Fine => None,
            Watched::Overdue(urn) => Some(OrderEvent::Overdue { urn }),
            Watched::Lost(urn) => Some(OrderEvent::Mismatch { urn }),
            Watched::Silent => return false,
        };
        market.ask(now_ns, outbox);
        if let Some(event) = event {
            market.tell_of_order(event, now_ns, outbox);
        }
        true
    }

    /// Throws the kill switch: nothing new leaves from now on. `false` if the connection does not
    /// take the mass cancel now: it leaves when order entry opens again, and until then orders
    /// stand.
    pub fn kill(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> bool {
        self.market.entry.kill();
        self.market.ask(now_ns, outbox)
    }

    /// Cancels what stands, and goes on. `false` as of [`Engine::kill`].
    pub fn cancel_all(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> bool {
        self.market.entry.cancel_all();
        self.market.ask(now_ns, outbox)
    }

    /// Nothing new leaves from now on, and what stands is cancelled. `false` as of
    /// [`Engine::kill`].
    pub fn close(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> bool {
        self.market.entry.close();
        self.market.ask(now_ns, outbox)
    }

    /// Asks the exchange to take orders again that a kill switch stopped: when order entry opens,
    /// if it is not open.
    pub fn enable(&mut self, now_ns: u64, outbox: &mut impl Outbox) -> bool {
        self.market.entry.enable();
        self.market.ask(now_ns, outbox)
    }

    /// The feed's state and what it counted.
    pub const fn arbiter(&self) -> &Arbiter {
        &self.arbiter
    }

    /// The books.
    pub const fn books(&self) -> &Books {
        &self.market.books
    }

    /// The orders.
    pub const fn orders(&self) -> &OrderEntry {
        &self.market.entry
    }

    /// The strategy.
    pub const fn strategy(&self) -> &S {
        &self.market.strategy
    }

    /// Orders, replacements and cancels of the strategy's that a check refused, by the names of
    /// [`Refused::REASONS`].
    pub fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Refused::REASONS.into_iter().zip(self.market.notes.refused)
    }

    /// What happened so far.
    pub const fn stats(&self) -> EngineStats {
        EngineStats { unsent: self.market.notes.unsent, ..self.market.stats }
    }
}

impl<S: Strategy> Market<S> {
    fn desk<'a>(&'a mut self, now_ns: u64, outbox: &'a mut dyn Outbox) -> (&'a mut S, Desk<'a>) {
        let Self { books, entry, locates, strategy, notes, .. } = self;
        (strategy, Desk { books, entry, locates, outbox, now_ns, notes })
    }

    /// Sends what is asked of all orders at once, if anything is; `false` if the connection, or the
    /// rate, does not let all of it leave now.
    fn ask(&mut self, now_ns: u64, outbox: &mut dyn Outbox) -> bool {
        if !self.entry.has_due() {
            return true;
        }
        while let Some(packet) = self.entry.due() {
            if !outbox.send(&packet) {
                self.entry.due_not_sent();
                return false;
            }
        }
        while let Some(urn) = self.entry.left_by_refusal() {
            if !self.entry.cancel(urn, now_ns).is_ok_and(|packet| outbox.send(&packet)) {
                self.entry.left_not_sent(urn);
                return false;
            }
        }
        self.entry.refusal_heeded();
        true
    }

    fn tell_of_order(&mut self, event: OrderEvent, now_ns: u64, outbox: &mut dyn Outbox) {
        let (strategy, mut desk) = self.desk(now_ns, outbox);
        strategy.on_order(event, &mut desk);
    }

    fn tell(&mut self, event: MarketEvent, now_ns: u64, outbox: &mut dyn Outbox) {
        let (strategy, mut desk) = self.desk(now_ns, outbox);
        strategy.on_market(event, &mut desk);
    }

    #[inline]
    fn event(&mut self, event: Event<'_>, now_ns: u64, outbox: &mut dyn Outbox) {
        match event {
            Event::Message { bytes, .. } => self.message(bytes, now_ns, outbox),
            Event::Lost { .. } => {
                self.suspect_all();
                self.tell(MarketEvent::Lost, now_ns, outbox);
            }
            Event::SessionStarted(_) => {
                self.empty();
                self.tell(MarketEvent::NewSession, now_ns, outbox);
            }
            Event::SessionEnded { .. } => self.tell(MarketEvent::SessionEnded, now_ns, outbox),
        }
    }

    /// Whether the strategy was told that the books are behind, or was not told yet that they are
    /// not.
    #[inline]
    const fn is_stale(&self) -> bool {
        self.entry.risk().is_stopped_by(Stop::Stale)
    }

    /// The books fall behind the market, or have caught up.
    #[cold]
    fn turn(&mut self, is_stale: bool, now_ns: u64, outbox: &mut dyn Outbox) {
        self.entry.set_stale(is_stale);
        self.stats.stale += u64::from(is_stale);
        let event = if is_stale { MarketEvent::Stale } else { MarketEvent::Live };
        self.tell(event, now_ns, outbox);
    }

    /// No books, as in the morning.
    fn empty(&mut self) {
        self.books.clear();
        self.locates.fill(0);
        (self.is_broken, self.day) = (false, None);
    }

    /// Applies a message of a snapshot.
    fn take_in(&mut self, bytes: &[u8]) {
        let Ok(message) = Message::parse(bytes) else {
            self.malformed(bytes);
            return;
        };
        if let Message::SystemEvent(m) = message {
            self.day = Some(m.event);
        }
        // What does not fit makes its book suspect, and is counted there.
        if self.books.apply(&message).is_err() {
            self.misfit(u16::from_be_bytes([bytes[1], bytes[2]]));
        }
    }

    /// Notes the locates of the securities that are traded, from the books of a snapshot.
    fn find_locates(&mut self) {
        for (symbol, locate) in self.symbols.iter().zip(&mut self.locates) {
            let book = self.books.iter().find(|book| book.stock() == *symbol);
            *locate = book.map_or(0, Book::locate);
        }
    }

    /// Notes the locate of a security that is traded.
    fn note_locate(&mut self, directory: &StockDirectory) {
        let places = self.symbols.iter().zip(&mut self.locates);
        for (_, locate) in places.filter(|(symbol, _)| **symbol == directory.stock) {
            *locate = directory.header.locate.get();
        }
    }

    #[inline]
    fn message(&mut self, bytes: &[u8], now_ns: u64, outbox: &mut dyn Outbox) {
        let Ok(message) = Message::parse(bytes) else {
            if let Some(event) = self.malformed(bytes) {
                self.tell(event, now_ns, outbox);
            }
            return;
        };
        match self.books.apply(&message) {
            Ok(Some(change)) => {
                self.tell(MarketEvent::Book(change), now_ns, outbox);
                if S::HEARS_TRADES
                    && let Some(trade) = traded(&message, change)
                {
                    self.tell(MarketEvent::Trade(trade), now_ns, outbox);
                }
            }
            Ok(None) => self.beside_books(&message, now_ns, outbox),
            Err(_) => {
                let locate = u16::from_be_bytes([bytes[1], bytes[2]]);
                self.misfit(locate);
                self.tell(MarketEvent::Suspect(locate), now_ns, outbox);
            }
        }
    }

    /// Tells of a message that changed no book, if it is about one, or about the whole market.
    fn beside_books(&mut self, message: &Message<'_>, now_ns: u64, outbox: &mut dyn Outbox) {
        let about = |locate: u16| self.books.get(locate).map(|_| locate);
        let trade = |locate, price, shares, match_number| Trade {
            locate,
            price,
            shares,
            standing: None,
            is_counted: true,
            match_number,
        };
        let event = match *message {
            Message::Trade(_) | Message::CrossTrade(_) if !S::HEARS_TRADES => None,
            Message::Trade(m) => about(m.header.locate.get()).map(|locate| {
                let shares = m.shares.get().into();
                MarketEvent::Trade(trade(locate, m.price.get(), shares, m.match_number.get()))
            }),
            // Auctions that nobody traded in are in the feed, too.
            Message::CrossTrade(m) if m.shares.get() != 0 => {
                about(m.header.locate.get()).map(|locate| {
                    let (price, shares) = (m.price.get(), m.shares.get());
                    MarketEvent::Trade(trade(locate, price, shares, m.match_number.get()))
                })
            }
            Message::BrokenTrade(m) => about(m.header.locate.get()).map(|locate| {
                MarketEvent::TradeBroken { locate, match_number: m.match_number.get() }
            }),
            Message::TradingAction(m) => about(m.header.locate.get())
                .map(|locate| MarketEvent::Status { locate, state: m.state }),
            Message::OperationalHalt(m) => about(m.header.locate.get()).map(|locate| {
                MarketEvent::OperationalHalt { locate, market: m.market, action: m.action }
            }),
            Message::StockDirectory(directory) => return self.note_locate(directory),
            Message::Unknown(_) => {
                self.stats.unknown_messages += 1;
                return;
            }
            Message::SystemEvent(m) => Some(MarketEvent::System(m.event)),
            Message::BreakerStatus(m) => Some(MarketEvent::Breaker(m.level)),
            _ => None,
        };
        if let Some(event) = event {
            self.tell(event, now_ns, outbox);
        }
    }
}

/// The trade that a message tells of, if it is one with an order of a book, which it changed so.
#[inline]
fn traded(message: &Message<'_>, change: Change) -> Option<Trade> {
    let Change { locate, side, price, .. } = change;
    let standing = Some(side);
    match message {
        Message::Executed(trade) => Some(Trade {
            locate,
            price,
            shares: trade.shares.get().into(),
            standing,
            is_counted: true,
            match_number: trade.match_number.get(),
        }),
        Message::ExecutedAtPrice(trade) => Some(Trade {
            locate,
            price: trade.price.get(),
            shares: trade.shares.get().into(),
            standing,
            is_counted: trade.printable == b'Y',
            match_number: trade.match_number.get(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
