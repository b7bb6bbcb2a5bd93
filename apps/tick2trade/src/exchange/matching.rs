//! Orders meet by price and time.

mod requests;
mod snapshot;

use std::collections::{BTreeMap, HashMap, VecDeque};

use zerocopy::IntoBytes;

use crate::proto::itch::{self, Stock};
use crate::proto::ouch;
use crate::proto::ouch::answers::{self, Cancelled, Executed};
use crate::proto::{Side, Text};

/// Who sent an order; the crowd is nobody.
pub type MemberId = usize;

/// A security that is listed today. Its place in the list is its locate, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListedSecurity {
    /// Its name.
    pub stock: Stock,
}

/// What an exchange says, in the order in which it says it.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages of ITCH for everyone.
    pub feed: Vec<Vec<u8>>,
    /// Answers of OUCH, each for one member.
    pub answers: Vec<(MemberId, Vec<u8>)>,
}

/// An order in the book.
#[derive(Debug, Clone, Copy)]
struct Resting {
    owner: Option<(MemberId, u32)>,
    locate: u16,
    side: Side,
    /// The letter that its side was given by.
    mark: u8,
    price: u32,
    shares: u32,
    /// Shares that traded, of the orders too that it replaced: a member's quantities count them.
    executed: u32,
}

/// Numbers of the orders of one side, by price and time.
type Levels = BTreeMap<u32, VecDeque<u64>>;

/// One security's orders.
#[derive(Debug, Default)]
struct Book {
    bids: Levels,
    asks: Levels,
}

impl Book {
    const fn side(&mut self, side: Side) -> &mut Levels {
        match side {
            Side::Buy => &mut self.bids,
            Side::Sell => &mut self.asks,
        }
    }

    fn best(&self, side: Side) -> Option<u32> {
        match side {
            Side::Buy => self.bids.last_key_value(),
            Side::Sell => self.asks.first_key_value(),
        }
        .map(|(&price, _)| price)
    }
}

/// What a member sent and may still ask about.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// The exchange's number of it; 0 once it is gone.
    reference: u64,
}

/// The matching engine.
#[derive(Debug)]
pub struct Exchange {
    securities: Vec<ListedSecurity>,
    books: Vec<Book>,
    orders: HashMap<u64, Resting>,
    known: HashMap<(MemberId, u32), Known>,
    /// The highest number that each member has used.
    last_urns: HashMap<MemberId, u32>,
    disabled: Vec<(MemberId, Text<4>)>,
    next_reference: u64,
    next_match: u64,
}

impl Exchange {
    /// An exchange before its day.
    pub fn new(securities: Vec<ListedSecurity>) -> Self {
        Self::with_room(securities, 0)
    }

    /// The same, with room for so many orders of members: until then no growth of a table delays
    /// one.
    pub fn with_room(securities: Vec<ListedSecurity>, room: usize) -> Self {
        Self {
            books: securities.iter().map(|_| Book::default()).collect(),
            securities,
            orders: HashMap::new(),
            known: HashMap::with_capacity(room),
            last_urns: HashMap::new(),
            disabled: Vec::new(),
            next_reference: 1,
            next_match: 1,
        }
    }

    /// Starts the day: the feed's first messages, and a system event for each of `members`.
    pub fn open(&mut self, members: usize, now_ns: u64, out: &mut Output) {
        let event = |code| itch::SystemEvent {
            header: itch::Header::new(itch::SystemEvent::KIND, 0, now_ns),
            event: code,
        };
        out.feed.push(event(b'O').as_bytes().to_vec());
        out.feed.extend(self.listing(now_ns));
        out.feed.push(event(b'Q').as_bytes().to_vec());
        for member in 0..members {
            let start = answers::SystemEvent {
                kind: answers::SystemEvent::KIND,
                timestamp_ns: now_ns.into(),
                event: b'S',
            };
            out.answers.push((member, start.as_bytes().to_vec()));
        }
    }

    /// The best price of a side.
    pub fn best(&self, locate: u16, side: Side) -> Option<u32> {
        self.books.get(usize::from(locate).checked_sub(1)?)?.best(side)
    }

    /// Securities that are listed.
    pub fn securities(&self) -> &[ListedSecurity] {
        &self.securities
    }

    /// Shares of an order that are left; `None` if it is gone.
    pub fn shares_of(&self, reference: u64) -> Option<u32> {
        self.orders.get(&reference).map(|order| order.shares)
    }

    /// An order of the crowd. Says its number if any of it stands.
    pub fn crowd_order(
        &mut self,
        locate: u16,
        side: Side,
        shares: u32,
        price: u32,
        now_ns: u64,
        out: &mut Output,
    ) -> Option<u64> {
        if shares == 0 || usize::from(locate) > self.books.len() || locate == 0 {
            return None;
        }
        let (owner, mark) = (None, side.letter());
        let order = Resting { owner, locate, side, mark, price, shares, executed: 0 };
        let reference = self.number();
        self.matched(reference, order, true, now_ns, out)
    }

    /// The crowd takes shares off an order of its own; all of them if it has no more.
    pub fn crowd_cancel(&mut self, reference: u64, shares: u32, now_ns: u64, out: &mut Output) {
        if self.orders.get(&reference).is_some_and(|order| order.owner.is_none()) {
            self.reduce(reference, shares, now_ns, out);
        }
    }

    /// The crowd replaces an order of its own; the new one never trades at once, but stands where
    /// it would not.
    pub fn crowd_replace(
        &mut self,
        reference: u64,
        shares: u32,
        price: u32,
        now_ns: u64,
        out: &mut Output,
    ) -> Option<u64> {
        let order = *self.orders.get(&reference).filter(|order| order.owner.is_none())?;
        let other = self.best(order.locate, order.side.opposite());
        let crosses = other.is_some_and(|other| match order.side {
            Side::Buy => price >= other,
            Side::Sell => price <= other,
        });
        if crosses || shares == 0 {
            return None;
        }
        self.remove(reference);
        let new = self.number();
        self.rest(new, Resting { shares, price, ..order });
        let replaced = itch::Replaced {
            header: itch::Header::new(itch::Replaced::KIND, order.locate, now_ns),
            reference: reference.into(),
            new_reference: new.into(),
            shares: shares.into(),
            price: price.into(),
        };
        out.feed.push(replaced.as_bytes().to_vec());
        Some(new)
    }

    /// Whether a member's number is above all that it has used.
    fn is_new(&self, member: MemberId, urn: u32) -> bool {
        self.last_urns.get(&member).is_none_or(|&last| urn > last)
    }

    fn know(&mut self, member: MemberId, urn: u32, reference: u64) {
        self.known.insert((member, urn), Known { reference });
        self.last_urns.insert(member, urn);
    }

    /// Cancels every order of a member, or of a member in one security.
    fn cancel_all(
        &mut self,
        member: MemberId,
        symbol: Stock,
        reason: u8,
        now_ns: u64,
        out: &mut Output,
    ) {
        let mine = |order: &Resting| order.owner.is_some_and(|(owner, _)| owner == member);
        let wanted = |order: &Resting| symbol.is_blank() || self.stock(order.locate) == symbol;
        let mut references: Vec<_> = self
            .orders
            .iter()
            .filter(|(_, order)| mine(order) && wanted(order))
            .map(|(&reference, order)| (reference, order.shares))
            .collect();
        references.sort_unstable();
        for (reference, shares) in references {
            self.cancelled(reference, shares, reason, now_ns, out);
        }
    }

    /// Cancels what stands of a member whose connection is lost, as its port has it. The member
    /// hears of it when it is back.
    pub fn disconnected(&mut self, member: MemberId, now_ns: u64, out: &mut Output) {
        self.cancel_all(member, Text::BLANK, b'Z', now_ns, out);
    }

    const fn number(&mut self) -> u64 {
        self.next_reference += 1;
        self.next_reference - 1
    }

    fn locate(&self, symbol: ouch::Symbol) -> Option<u16> {
        let index = self.securities.iter().position(|security| security.stock == symbol)?;
        u16::try_from(index + 1).ok()
    }

    fn stock(&self, locate: u16) -> Stock {
        self.securities[usize::from(locate) - 1].stock
    }

    /// Number of a member's order, if it stands.
    fn standing(&self, member: MemberId, urn: u32) -> Option<u64> {
        let known = self.known.get(&(member, urn))?;
        self.orders.contains_key(&known.reference).then_some(known.reference)
    }

    /// An order trades with what stands, and what is left stands or is cancelled. Says its number
    /// if any of it stands.
    fn matched(
        &mut self,
        reference: u64,
        mut order: Resting,
        stands: bool,
        now_ns: u64,
        out: &mut Output,
    ) -> Option<u64> {
        while order.shares != 0 {
            let book = &mut self.books[usize::from(order.locate) - 1];
            let other = order.side.opposite();
            let Some(price) = book.best(other).filter(|&best| match order.side {
                Side::Buy => best <= order.price,
                Side::Sell => best >= order.price,
            }) else {
                break;
            };
            let first = book.side(other)[&price][0];
            let shares = order.shares.min(self.orders[&first].shares);
            let match_number = self.next_match;
            self.next_match += 1;
            let executed = itch::Executed {
                header: itch::Header::new(itch::Executed::KIND, order.locate, now_ns),
                reference: first.into(),
                shares: shares.into(),
                match_number: match_number.into(),
            };
            out.feed.push(executed.as_bytes().to_vec());
            let owners = [(self.orders[&first].owner, b'A'), (order.owner, b'R')];
            for (owner, liquidity) in owners {
                let Some((member, urn)) = owner else { continue };
                let executed = Executed {
                    kind: Executed::KIND,
                    timestamp_ns: now_ns.into(),
                    urn: urn.into(),
                    quantity: shares.into(),
                    price: u64::from(price).into(),
                    liquidity,
                    match_number: match_number.into(),
                };
                answered(member, &executed, out);
            }
            order.shares -= shares;
            order.executed += shares;
            if let Some(first) = self.orders.get_mut(&first) {
                first.executed += shares;
            }
            self.take(first, shares);
        }
        if order.shares == 0 {
            return None;
        }
        if !stands {
            if let Some((member, urn)) = order.owner {
                answered(member, &off(urn, order.shares, b'I', now_ns), out);
            }
            return None;
        }
        self.rest(reference, order);
        let add = itch::AddOrder {
            header: itch::Header::new(itch::AddOrder::KIND, order.locate, now_ns),
            reference: reference.into(),
            side: order.side.letter(),
            shares: order.shares.into(),
            stock: self.stock(order.locate),
            price: order.price.into(),
        };
        out.feed.push(add.as_bytes().to_vec());
        Some(reference)
    }

    fn rest(&mut self, reference: u64, order: Resting) {
        let book = &mut self.books[usize::from(order.locate) - 1];
        book.side(order.side).entry(order.price).or_default().push_back(reference);
        self.orders.insert(reference, order);
    }

    /// Shares leave an order that stands; the last of them take it along.
    fn take(&mut self, reference: u64, shares: u32) {
        let Some(order) = self.orders.get_mut(&reference) else { return };
        order.shares -= shares.min(order.shares);
        if order.shares == 0 {
            self.remove(reference);
        }
    }

    fn remove(&mut self, reference: u64) {
        let Some(order) = self.orders.remove(&reference) else { return };
        let levels = self.books[usize::from(order.locate) - 1].side(order.side);
        if let Some(queue) = levels.get_mut(&order.price) {
            queue.retain(|&other| other != reference);
            if queue.is_empty() {
                levels.remove(&order.price);
            }
        }
    }

    /// Shares leave an order without a trade; the feed hears of it.
    fn reduce(&mut self, reference: u64, shares: u32, now_ns: u64, out: &mut Output) {
        let Some(&order) = self.orders.get(&reference) else { return };
        if shares == 0 {
            return;
        }
        let header = |kind| itch::Header::new(kind, order.locate, now_ns);
        let reference_be = reference.into();
        if shares >= order.shares {
            let header = header(itch::Deleted::KIND);
            let deleted = itch::Deleted { header, reference: reference_be };
            out.feed.push(deleted.as_bytes().to_vec());
        } else {
            let header = header(itch::Cancelled::KIND);
            let shares = shares.into();
            let cancelled = itch::Cancelled { header, reference: reference_be, shares };
            out.feed.push(cancelled.as_bytes().to_vec());
        }
        self.take(reference, shares);
    }

    /// Shares leave a member's order, and the member hears of it.
    fn cancelled(
        &mut self,
        reference: u64,
        shares: u32,
        reason: u8,
        now_ns: u64,
        out: &mut Output,
    ) {
        if let Some((member, urn)) = self.orders[&reference].owner {
            answered(member, &off(urn, shares, reason, now_ns), out);
        }
        self.reduce(reference, shares, now_ns, out);
    }
}

fn off(urn: u32, shares: u32, reason: u8, now_ns: u64) -> Cancelled {
    Cancelled {
        kind: Cancelled::KIND,
        timestamp_ns: now_ns.into(),
        urn: urn.into(),
        quantity: shares.into(),
        reason,
    }
}

fn answered<T: ouch::Fixed>(member: MemberId, answer: &T, out: &mut Output) {
    let mut bytes = [0; 128];
    let len = ouch::write(answer, &[], &mut bytes).expect("no answer has 128 bytes");
    out.answers.push((member, bytes[..len].to_vec()));
}
