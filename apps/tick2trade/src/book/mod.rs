//! Order books from ITCH: price levels, and under each level its orders in the order of their time.
//!
//! [`Books`] takes every message of the feed. Everything is allocated at the start: orders in one
//! table that all books share, levels in each book. What does not fit is an error that says which
//! limit was too small, and the book is [`Health::Suspect`] from then on: a book that may be wrong
//! says so. Where debug assertions are on, each change is followed by a look at the level that it
//! was made to and at the best one: their sums, their orders, their places.
//!
//! | message | effect |
//! |---|---|
//! | `R` stock directory | its locate gets a book, if the stock is wanted |
//! | `A`, `F` | an order enters at the back of its level |
//! | `E`, `C`, `X` | shares leave an order, whatever price `C` prints; none left removes it |
//! | `D` | the order leaves |
//! | `U` | the order leaves, another of its stock and side enters at the back of its level |
//! | `H` trading action, `h` halt of one market | the book's [`Book::trading`] |
//! | all others | nothing: `P`, `Q`, `B` and `I` never touch a book |
//!
//! # Example
//! ```
//! use ferrocx_tick2trade::book::{Books, BooksConfig};
//! use ferrocx_tick2trade::proto::{Side, Text, itch};
//!
//! let mut books = Books::new(BooksConfig::default()).unwrap();
//! let stock = Text::new("AAPL").unwrap();
//! books.list(7, stock).unwrap();
//! let add = itch::AddOrder {
//!     header: itch::Header::new(itch::AddOrder::KIND, 7, 0),
//!     reference: 1.into(),
//!     side: b'B',
//!     shares: 100.into(),
//!     stock,
//!     price: 1_503_400.into(),
//! };
//! books.apply(&itch::Message::AddOrder(&add)).unwrap();
//! let best = books.get(7).unwrap().best(Side::Buy).unwrap();
//! assert_eq!((best.price, best.shares, best.orders), (1_503_400, 100, 1));
//! ```

mod checks;
mod error;
mod levels;
mod orders;
#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::proto::Side;
use crate::proto::itch::{Message, Stock};
use levels::Levels;
use orders::{NONE, Order, Orders};

pub use error::BookError;
pub use levels::Level;

/// The most locates that a day can have, and so the most books.
const LOCATES: usize = 1 << 16;

/// What is kept, and how much.
#[derive(Debug, Clone)]
pub struct BooksConfig {
    /// Stocks to keep books of; empty for all. Default: all.
    pub stocks: Vec<Stock>,
    /// Books at most, 1 to 65,536. Default 16.
    pub books: usize,
    /// Orders at most that stand at a time, in all books together, 1 to 2^30. Default 65,536.
    pub orders: usize,
    /// Price levels at most on each side of each book, 1 to 65,536. Default 4,096.
    pub levels: usize,
    /// The market that is traded at, by the letter that its halts name: `Q`, `B` or `X`. Default
    /// `Q`.
    pub market: u8,
}

impl Default for BooksConfig {
    fn default() -> Self {
        Self { stocks: Vec::new(), books: 16, orders: 65_536, levels: 4_096, market: b'Q' }
    }
}

/// Why books were not made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No books, or more than there are locates.
    #[error("{0} books; 1 to 65536 are possible")]
    Books(usize),
    /// No orders, or more than the table can number.
    #[error("{0} orders; 1 to 1073741824 are possible")]
    Orders(usize),
    /// No levels, or more than a book may have.
    #[error("{0} levels a side; 1 to 65536 are possible")]
    Levels(usize),
}

/// Whether a book can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// Every message that it is made of was there and made sense.
    Sound,
    /// Messages were lost, or one could not be applied: the book may be wrong.
    Suspect,
}

/// What a message changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The book.
    pub locate: u16,
    /// Which side of it; of a replaced order, the side that both are on.
    pub side: Side,
    /// Price of the level that changed; of a replaced order, where the new one stands.
    pub price: u32,
    /// Whether price, shares or orders of the side's best level are others than before.
    pub best_changed: bool,
}

/// One security's orders.
#[derive(Debug)]
pub struct Book {
    locate: u16,
    stock: Stock,
    bids: Levels,
    asks: Levels,
    health: Health,
    /// What the feed said last of all markets, a blank before it did; whether our market halted it
    /// for reasons of its own; and what follows of both.
    state: u8,
    is_halted: bool,
    trading: u8,
    /// A message found no room: it stays wrong, whoever tells of it.
    is_too_small: bool,
}

impl Book {
    /// The security's number on this day.
    pub const fn locate(&self) -> u16 {
        self.locate
    }

    /// The security's name.
    pub const fn stock(&self) -> Stock {
        self.stock
    }

    /// Whether the book can be trusted.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// State of trading by the feed's letter: `T` trades, `H` halted, also by our market alone,
    /// `P` paused, `Q` quotes only; a blank until the feed says one.
    #[inline]
    pub const fn trading(&self) -> u8 {
        self.trading
    }

    const fn set_trading(&mut self, state: u8, is_halted: bool) {
        (self.state, self.is_halted) = (state, is_halted);
        self.trading = if is_halted { b'H' } else { state };
    }

    /// Whether an order or a level found no room since the book began: what is said of that later
    /// does not fit either, and it would be no better if it were had anew.
    pub const fn is_too_small(&self) -> bool {
        self.is_too_small
    }

    /// The best level of a side: of bids the highest, of offers the lowest.
    #[inline]
    pub fn best(&self, side: Side) -> Option<Level> {
        self.side(side).best()
    }

    /// The levels of a side, the best one first.
    pub fn levels(&self, side: Side) -> impl ExactSizeIterator<Item = Level> + '_ {
        self.side(side).iter()
    }

    /// Whether the best bid is at or above the best offer: in continuous trading a sign that
    /// messages were missed.
    pub fn is_crossed(&self) -> bool {
        let (bid, ask) = (self.best(Side::Buy), self.best(Side::Sell));
        bid.zip(ask).is_some_and(|(bid, ask)| bid.price >= ask.price)
    }

    const fn side(&self, side: Side) -> &Levels {
        match side {
            Side::Buy => &self.bids,
            Side::Sell => &self.asks,
        }
    }

    const fn side_mut(&mut self, side: Side) -> &mut Levels {
        match side {
            Side::Buy => &mut self.bids,
            Side::Sell => &mut self.asks,
        }
    }
}

/// An order that stands in a book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StandingOrder {
    /// The exchange's number of it.
    pub reference: u64,
    /// Shares left.
    pub shares: u32,
}

/// Side and price of a level that changed, and whether it was or is the best one.
type Touched = (Side, u32, bool);

/// The books of a day.
#[derive(Debug)]
pub struct Books {
    wanted: Vec<Stock>,
    market: u8,
    /// Index of the book of each locate; [`NONE`] for none.
    by_locate: Box<[u32]>,
    /// All that there may be, made at the start; the first `listed` have a security.
    books: Box<[Book]>,
    listed: usize,
    orders: Orders,
    /// Messages that could not be applied, by their [`BookError::reason`].
    errors: [u64; BookError::REASONS.len()],
}

impl Books {
    /// No books yet, and room for what `config` says.
    ///
    /// # Errors
    /// A [`ConfigError`] for a value out of its range.
    pub fn new(config: BooksConfig) -> Result<Self, ConfigError> {
        if !(1..=LOCATES).contains(&config.books) {
            return Err(ConfigError::Books(config.books));
        }
        if !(1..=1 << 30).contains(&config.orders) {
            return Err(ConfigError::Orders(config.orders));
        }
        if !(1..=1 << 16).contains(&config.levels) {
            return Err(ConfigError::Levels(config.levels));
        }
        let blank = || Book {
            locate: 0,
            stock: Stock::BLANK,
            bids: Levels::new(Side::Buy, config.levels),
            asks: Levels::new(Side::Sell, config.levels),
            health: Health::Sound,
            state: b' ',
            is_halted: false,
            trading: b' ',
            is_too_small: false,
        };
        Ok(Self {
            wanted: config.stocks,
            market: config.market,
            by_locate: vec![NONE; LOCATES].into(),
            books: (0..config.books).map(|_| blank()).collect(),
            listed: 0,
            orders: Orders::new(config.orders),
            errors: [0; BookError::REASONS.len()],
        })
    }

    /// Gives the locate a book, as the stock directory's message does for stocks that are wanted.
    ///
    /// # Errors
    /// [`BookError::NoBook`] if all are taken; [`BookError::OtherStock`] if it has the book of
    /// another stock, which is suspect from then on.
    pub fn list(&mut self, locate: u16, stock: Stock) -> Result<(), BookError> {
        let index = match self.by_locate[usize::from(locate)] {
            NONE if self.listed == self.books.len() => return Err(BookError::NoBook(locate)),
            NONE => {
                self.listed += 1;
                self.listed - 1
            }
            index => {
                let book = &mut self.books[index as usize];
                if book.stock != stock {
                    book.health = Health::Suspect;
                    return Err(BookError::OtherStock(locate));
                }
                index as usize
            }
        };
        self.by_locate[usize::from(locate)] = index as u32;
        (self.books[index].locate, self.books[index].stock) = (locate, stock);
        Ok(())
    }

    /// No books, as in the morning; nothing is allocated, and errors stay counted.
    pub fn clear(&mut self) {
        for book in &mut self.books[..self.listed] {
            self.by_locate[usize::from(book.locate)] = NONE;
            book.bids.clear();
            book.asks.clear();
            (book.health, book.is_too_small) = (Health::Sound, false);
            book.set_trading(b' ', false);
        }
        self.listed = 0;
        self.orders.clear();
    }

    /// The book of a locate, if it has one.
    #[inline]
    pub fn get(&self, locate: u16) -> Option<&Book> {
        self.books.get(self.by_locate[usize::from(locate)] as usize)
    }

    /// Every book, in the order in which they were listed.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Book> {
        self.books[..self.listed].iter()
    }

    /// The orders at one price of a book, in the order in which they trade.
    pub fn orders_at(
        &self,
        locate: u16,
        side: Side,
        price: u32,
    ) -> impl Iterator<Item = StandingOrder> + '_ {
        let levels = self.get(locate).map(|book| book.side(side));
        let first = levels.and_then(|l| Some(l.get(l.find(price).ok()?).first)).unwrap_or(NONE);
        let some = |slot: u32| (slot != NONE).then_some(slot);
        let slots =
            std::iter::successors(some(first), move |&slot| some(self.orders.get(slot).next));
        slots.map(|slot| {
            let order = self.orders.get(slot);
            StandingOrder { reference: order.reference, shares: order.shares }
        })
    }

    /// Orders that stand in all books together.
    pub const fn order_count(&self) -> usize {
        self.orders.len()
    }

    /// Messages that could not be applied.
    pub fn errors(&self) -> u64 {
        self.errors.iter().sum()
    }

    /// Messages that could not be applied, by the names of [`BookError::REASONS`].
    pub fn errors_by_reason(&self) -> impl Iterator<Item = (&'static str, u64)> {
        BookError::REASONS.into_iter().zip(self.errors)
    }

    /// Books that may be wrong now.
    pub fn suspects(&self) -> usize {
        self.iter().filter(|book| book.health == Health::Suspect).count()
    }

    /// Counts a message that could not be applied, and gives its error back.
    #[cold]
    const fn fail(&mut self, error: BookError) -> BookError {
        self.errors[error.reason()] += 1;
        error
    }

    /// Calls the book of a locate suspect; `false` if it has none.
    pub fn suspect(&mut self, locate: u16) -> bool {
        let index = self.by_locate[usize::from(locate)] as usize;
        let Some(book) = self.books.get_mut(index) else { return false };
        book.health = Health::Suspect;
        true
    }

    /// Calls every book suspect: messages were lost, and no one knows about which of them.
    pub fn suspect_all(&mut self) {
        for book in &mut self.books[..self.listed] {
            book.health = Health::Suspect;
        }
    }

    /// Applies a message; says which side of which book it changed, if any.
    ///
    /// # Errors
    /// A [`BookError`]: nothing was changed but the book's health, which is suspect now.
    #[inline(always)]
    pub fn apply(&mut self, message: &Message<'_>) -> Result<Option<Change>, BookError> {
        match *message {
            Message::AddOrder(m) => self.with(m.header.locate.get(), |books, book| {
                books.add(book, m.reference.get(), m.side, m.shares.get(), m.price.get())
            }),
            Message::AddAttributed(m) => {
                let m = &m.order;
                self.with(m.header.locate.get(), |books, book| {
                    books.add(book, m.reference.get(), m.side, m.shares.get(), m.price.get())
                })
            }
            Message::Executed(m) => self.with(m.header.locate.get(), |books, book| {
                books.reduce(book, m.reference.get(), Some(m.shares.get()))
            }),
            Message::ExecutedAtPrice(m) => self.with(m.header.locate.get(), |books, book| {
                books.reduce(book, m.reference.get(), Some(m.shares.get()))
            }),
            Message::Cancelled(m) => self.with(m.header.locate.get(), |books, book| {
                books.reduce(book, m.reference.get(), Some(m.shares.get()))
            }),
            Message::Deleted(m) => self.with(m.header.locate.get(), |books, book| {
                books.reduce(book, m.reference.get(), None)
            }),
            Message::Replaced(m) => self.with(m.header.locate.get(), |books, book| {
                let new = (m.new_reference.get(), m.shares.get(), m.price.get());
                books.replace(book, m.reference.get(), new)
            }),
            Message::StockDirectory(m) => {
                let locate = m.header.locate.get();
                let is_wanted = self.wanted.is_empty() || self.wanted.contains(&m.stock);
                if is_wanted || self.get(locate).is_some() {
                    let listed = self.list(locate, m.stock);
                    listed.map_err(|error| self.fail(error))?;
                }
                Ok(None)
            }
            Message::TradingAction(m) => {
                let index = self.by_locate[usize::from(m.header.locate.get())];
                if let Some(book) = self.books.get_mut(index as usize) {
                    book.set_trading(m.state, book.is_halted);
                }
                Ok(None)
            }
            Message::OperationalHalt(m) if m.market == self.market => {
                let index = self.by_locate[usize::from(m.header.locate.get())];
                if let Some(book) = self.books.get_mut(index as usize) {
                    book.set_trading(book.state, m.action != b'T');
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// Does something to the book of a locate, if it has one. A failure makes it suspect.
    #[inline]
    fn with(
        &mut self,
        locate: u16,
        change: impl FnOnce(&mut Self, usize) -> Result<Touched, BookError>,
    ) -> Result<Option<Change>, BookError> {
        let index = self.by_locate[usize::from(locate)] as usize;
        if index >= self.listed {
            return Ok(None);
        }
        match change(self, index) {
            Ok((side, price, best_changed)) => {
                debug_assert_eq!(self.check_touched(index, side, price), Ok(()));
                Ok(Some(Change { locate, side, price, best_changed }))
            }
            Err(error) => {
                let book = &mut self.books[index];
                book.health = Health::Suspect;
                book.is_too_small |=
                    matches!(error, BookError::NoOrderSlot(_) | BookError::NoLevel { .. });
                Err(self.fail(error))
            }
        }
    }

    /// An order enters.
    fn add(
        &mut self,
        book: usize,
        reference: u64,
        side: u8,
        shares: u32,
        price: u32,
    ) -> Result<Touched, BookError> {
        let side = match side {
            b'B' => Side::Buy,
            b'S' => Side::Sell,
            _ => return Err(BookError::BadOrder(reference)),
        };
        if shares == 0 {
            return Err(BookError::BadOrder(reference));
        }
        let vacancy = self.orders.vacancy(reference).map_err(|why| refused(why, reference))?;
        let slot = vacancy.slot;
        let book = &mut self.books[book];
        let locate = book.locate;
        let levels = book.side_mut(side);
        let index = levels.find_or_make(price).ok_or(BookError::NoLevel { price, locate })?;
        let (prev, next) = (levels.append(index, slot, shares), NONE);
        let order = Order { reference, shares, price, next, prev, locate, side };
        self.orders.enter(vacancy, order);
        if prev != NONE {
            self.orders.get_mut(prev).next = slot;
        }
        Ok((side, price, levels.is_best(index)))
    }

    /// Shares leave an order, all of them if `taken` is `None`; with the last one it leaves.
    fn reduce(
        &mut self,
        book: usize,
        reference: u64,
        taken: Option<u32>,
    ) -> Result<Touched, BookError> {
        let locate = self.books[book].locate;
        let unknown = BookError::UnknownOrder { reference, locate };
        let found = self.orders.found(reference).ok_or(unknown)?;
        let order = *self.orders.get(found.slot);
        if order.locate != locate {
            return Err(unknown);
        }
        let taken = taken.unwrap_or(order.shares);
        let Some(left) = order.shares.checked_sub(taken) else {
            return Err(BookError::TooManyShares { reference, taken, left: order.shares });
        };
        let levels = self.books[book].side_mut(order.side);
        let Ok(index) = levels.find(order.price) else { return Err(unknown) };
        let best = levels.is_best(index);
        if left == 0 {
            leave(levels, &mut self.orders, &order, index);
            self.orders.remove(found);
        } else {
            levels.get_mut(index).level.shares -= u64::from(taken);
            self.orders.get_mut(found.slot).shares = left;
        }
        Ok((order.side, order.price, best))
    }

    /// An order leaves and another, (number, shares, price), enters on its side.
    fn replace(
        &mut self,
        book: usize,
        old: u64,
        (reference, shares, price): (u64, u32, u32),
    ) -> Result<Touched, BookError> {
        // What would refuse the new order is looked for first: nothing changes by halves.
        let locate = self.books[book].locate;
        let unknown = BookError::UnknownOrder { reference: old, locate };
        let found = self.orders.found(old).ok_or(unknown)?;
        let order = *self.orders.get(found.slot);
        if order.locate != locate {
            return Err(unknown);
        }
        let place = self.orders.vacant(reference);
        if reference != old && place.is_none() {
            return Err(BookError::DuplicateOrder(reference));
        }
        if shares == 0 {
            return Err(BookError::BadOrder(reference));
        }
        let levels = self.books[book].side_mut(order.side);
        let Ok(mut index) = levels.find(order.price) else { return Err(unknown) };
        let mut best = levels.is_best(index);
        let mut prev = NONE;
        if !levels.move_alone(index, price, shares) {
            if !levels.has_room(price, order.price) {
                return Err(BookError::NoLevel { price, locate });
            }
            leave(levels, &mut self.orders, &order, index);
            index = levels.find_or_make(price).ok_or(BookError::NoLevel { price, locate })?;
            prev = levels.append(index, found.slot, shares);
            if prev != NONE {
                self.orders.get_mut(prev).next = found.slot;
            }
        }
        best |= levels.is_best(index);
        *self.orders.get_mut(found.slot) = Order { shares, price, prev, next: NONE, ..order };
        if let Some(place) = place {
            self.orders.rename(found, place, reference);
        }
        Ok((order.side, price, best))
    }
}

/// An order leaves its level, which is at `index`; its slot is the caller's.
#[inline]
fn leave(levels: &mut Levels, orders: &mut Orders, order: &Order, index: usize) {
    let entry = levels.get_mut(index);
    entry.level.shares -= u64::from(order.shares);
    entry.level.orders -= 1;
    if entry.level.orders == 0 {
        return levels.remove(index);
    }
    match order.prev {
        NONE => entry.first = order.next,
        prev => orders.get_mut(prev).next = order.next,
    }
    match order.next {
        NONE => entry.last = order.prev,
        next => orders.get_mut(next).prev = order.prev,
    }
}

const fn refused(why: orders::Refused, reference: u64) -> BookError {
    match why {
        orders::Refused::Duplicate => BookError::DuplicateOrder(reference),
        orders::Refused::Full => BookError::NoOrderSlot(reference),
    }
}
