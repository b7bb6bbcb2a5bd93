use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::proto::{Text, itch};

const LOCATE: u16 = 7;

fn books() -> Books {
    let config = BooksConfig { books: 2, orders: 4, levels: 3, ..BooksConfig::default() };
    let mut books = Books::new(config).unwrap();
    books.list(LOCATE, Stock::new("AAPL").unwrap()).unwrap();
    books
}

fn header(kind: u8) -> itch::Header {
    itch::Header::new(kind, LOCATE, 0)
}

fn add(books: &mut Books, reference: u64, side: u8, shares: u32, price: u32) -> Outcome {
    let add = itch::AddOrder {
        header: header(itch::AddOrder::KIND),
        reference: reference.into(),
        side,
        shares: shares.into(),
        stock: Stock::new("AAPL").unwrap(),
        price: price.into(),
    };
    books.apply(&Message::AddOrder(&add))
}

fn cancel(books: &mut Books, reference: u64, shares: u32) -> Outcome {
    let header = header(itch::Cancelled::KIND);
    let cancel = itch::Cancelled { header, reference: reference.into(), shares: shares.into() };
    books.apply(&Message::Cancelled(&cancel))
}

fn replace(books: &mut Books, old: u64, new: u64, shares: u32, price: u32) -> Outcome {
    books.apply(&Message::Replaced(&itch::Replaced {
        header: header(itch::Replaced::KIND),
        reference: old.into(),
        new_reference: new.into(),
        shares: shares.into(),
        price: price.into(),
    }))
}

/// Something done to books that have orders 1, 2 and 3 on three levels.
type Case = fn(&mut Books) -> Outcome;
type Outcome = Result<Option<Change>, BookError>;

fn change(side: Side, price: u32, best_changed: bool) -> Outcome {
    Ok(Some(Change { locate: LOCATE, side, price, best_changed }))
}

fn shown(books: &Books, side: Side) -> Vec<(u32, u64, u32)> {
    let levels = books.get(LOCATE).unwrap().levels(side);
    levels.map(|level| (level.price, level.shares, level.orders)).collect()
}

#[test]
fn the_best_level_is_the_highest_bid_and_the_lowest_offer() {
    let mut books = books();
    assert_eq!(add(&mut books, 1, b'B', 10, 100), change(Side::Buy, 100, true));
    assert_eq!(add(&mut books, 2, b'B', 20, 90), change(Side::Buy, 90, false));
    assert_eq!(add(&mut books, 3, b'S', 30, 110), change(Side::Sell, 110, true));
    assert_eq!(add(&mut books, 4, b'S', 40, 105), change(Side::Sell, 105, true));
    assert_eq!(shown(&books, Side::Buy), [(100, 10, 1), (90, 20, 1)]);
    assert_eq!(shown(&books, Side::Sell), [(105, 40, 1), (110, 30, 1)]);
    assert!(!books.get(LOCATE).unwrap().is_crossed());
    books.check().unwrap();
}

#[test]
fn orders_of_a_level_stand_in_the_order_of_their_time_and_a_replaced_one_goes_to_the_back() {
    let mut books = books();
    add(&mut books, 1, b'B', 10, 100).unwrap();
    add(&mut books, 2, b'B', 20, 100).unwrap();
    add(&mut books, 3, b'B', 30, 100).unwrap();
    let references = |books: &Books| {
        let orders = books.orders_at(LOCATE, Side::Buy, 100);
        orders.map(|order| (order.reference, order.shares)).collect::<Vec<_>>()
    };
    assert_eq!(cancel(&mut books, 2, 5), change(Side::Buy, 100, true));
    assert_eq!(references(&books), [(1, 10), (2, 15), (3, 30)]);
    assert_eq!(replace(&mut books, 1, 9, 11, 100), change(Side::Buy, 100, true));
    assert_eq!(references(&books), [(2, 15), (3, 30), (9, 11)]);
    assert_eq!(cancel(&mut books, 3, 30), change(Side::Buy, 100, true));
    assert_eq!(references(&books), [(2, 15), (9, 11)]);
    books.check().unwrap();
}

#[test]
fn an_execution_leaves_its_own_level_whatever_price_it_prints() {
    let mut books = books();
    add(&mut books, 1, b'B', 10, 100).unwrap();
    let executed = itch::ExecutedAtPrice {
        header: header(itch::ExecutedAtPrice::KIND),
        reference: 1.into(),
        shares: 4.into(),
        match_number: 1.into(),
        printable: b'N',
        price: 95.into(),
    };
    books.apply(&Message::ExecutedAtPrice(&executed)).unwrap();
    assert_eq!(shown(&books, Side::Buy), [(100, 6, 1)]);
}

#[test]
fn what_cannot_be_changes_nothing_and_makes_the_book_suspect() {
    let mut cases: Vec<(Case, BookError)> = vec![
        (|b| cancel(b, 9, 1), BookError::UnknownOrder { reference: 9, locate: LOCATE }),
        (|b| cancel(b, 1, 11), BookError::TooManyShares { reference: 1, taken: 11, left: 10 }),
        (|b| add(b, 1, b'B', 1, 1), BookError::DuplicateOrder(1)),
        (|b| add(b, 8, b'T', 1, 1), BookError::BadOrder(8)),
        (|b| add(b, 8, b'B', 0, 1), BookError::BadOrder(8)),
        (|b| add(b, 8, b'B', 1, 70), BookError::NoLevel { price: 70, locate: LOCATE }),
        (|b| replace(b, 1, 2, 1, 1), BookError::DuplicateOrder(2)),
        (|b| replace(b, 1, 8, 0, 1), BookError::BadOrder(8)),
        (|b| replace(b, 9, 8, 1, 1), BookError::UnknownOrder { reference: 9, locate: LOCATE }),
    ];
    cases.push((
        |b| {
            add(b, 4, b'S', 1, 200)?;
            add(b, 5, b'S', 1, 200)
        },
        BookError::NoOrderSlot(5),
    ));
    for (case, error) in cases {
        let mut books = books();
        for (reference, price) in [(1, 100), (2, 90), (3, 80)] {
            add(&mut books, reference, b'B', 10, price).unwrap();
        }
        assert_eq!(books.get(LOCATE).unwrap().health(), Health::Sound);
        assert_eq!(case(&mut books), Err(error));
        assert_eq!(shown(&books, Side::Buy), [(100, 10, 1), (90, 10, 1), (80, 10, 1)]);
        assert_eq!(books.get(LOCATE).unwrap().health(), Health::Suspect);
        // Counted once, by its reason, and the book says so.
        let reason = (BookError::REASONS[error.reason()], 1);
        let counts: Vec<_> = books.errors_by_reason().filter(|&(_, count)| count != 0).collect();
        assert_eq!((counts, books.errors(), books.suspects()), (vec![reason], 1, 1));
        books.check().unwrap();
    }
}

#[test]
fn an_order_moves_to_a_new_level_when_its_own_becomes_free() {
    let mut books = books();
    for (reference, price) in [(1, 100), (2, 90), (3, 80)] {
        add(&mut books, reference, b'B', 10, price).unwrap();
    }
    replace(&mut books, 1, 4, 5, 70).unwrap();
    assert_eq!(shown(&books, Side::Buy), [(90, 10, 1), (80, 10, 1), (70, 5, 1)]);
}

/// The only order of a level moves with it where that keeps its place, and else to another.
#[test]
fn an_order_that_stands_alone_takes_its_level_along() {
    let mut books = books();
    for (reference, price) in [(1, 100), (2, 110), (3, 120)] {
        add(&mut books, reference, b'B', 10, price).unwrap();
    }
    let steps = [
        // In place, in the middle: nothing is the best that was not.
        (2, 4, 20, 115, false, [(120, 10), (115, 20), (100, 10)]),
        // The best stays the best, at another price, then becomes the second.
        (3, 5, 30, 130, true, [(130, 30), (115, 20), (100, 10)]),
        (5, 6, 30, 105, true, [(115, 20), (105, 30), (100, 10)]),
        // The last becomes the best; the same price and number again.
        (1, 7, 40, 140, true, [(140, 40), (115, 20), (105, 30)]),
        (7, 7, 50, 140, true, [(140, 50), (115, 20), (105, 30)]),
    ];
    for (old, new, shares, price, best, expected) in steps {
        assert_eq!(replace(&mut books, old, new, shares, price), change(Side::Buy, price, best));
        assert_eq!(shown(&books, Side::Buy), expected.map(|(price, sum)| (price, sum, 1)));
        books.check().unwrap();
    }
    // Onto a level that another stands at: behind it.
    assert_eq!(replace(&mut books, 7, 8, 5, 115), change(Side::Buy, 115, true));
    assert_eq!(shown(&books, Side::Buy), [(115, 25, 2), (105, 30, 1)]);
    let there: Vec<_> = books.orders_at(7, Side::Buy, 115).map(|order| order.reference).collect();
    assert_eq!(there, [4, 8]);
    books.check().unwrap();
}

#[test]
fn a_message_of_another_locate_does_not_reach_an_order() {
    let mut books = books();
    books.list(8, Stock::new("MSFT").unwrap()).unwrap();
    add(&mut books, 1, b'B', 10, 100).unwrap();
    let header = itch::Header::new(itch::Deleted::KIND, 8, 0);
    let deleted = itch::Deleted { header, reference: 1.into() };
    let error = BookError::UnknownOrder { reference: 1, locate: 8 };
    assert_eq!(books.apply(&Message::Deleted(&deleted)), Err(error));
    assert_eq!(books.get(LOCATE).unwrap().health(), Health::Sound);
    assert_eq!(books.get(8).unwrap().health(), Health::Suspect);
}

#[test]
fn stocks_that_are_not_wanted_cost_nothing_and_those_without_room_are_named() {
    let directory = |locate, stock| {
        let mut bytes = [b' '; 39];
        bytes[0] = itch::StockDirectory::KIND;
        bytes[1..3].copy_from_slice(&u16::to_be_bytes(locate));
        bytes[11..19].copy_from_slice(&Stock::new(stock).unwrap().0);
        bytes
    };
    let wanted = ["AAPL", "MSFT"].map(|stock| Stock::new(stock).unwrap());
    let config = BooksConfig { books: 1, stocks: wanted.to_vec(), ..BooksConfig::default() };
    let mut books = Books::new(config.clone()).unwrap();
    let mut list = |locate, stock| {
        books.apply(&Message::parse(&directory(locate, stock)).unwrap()).map(|_| ())
    };
    assert_eq!(list(1, "IBM"), Ok(()));
    assert_eq!(list(2, "AAPL"), Ok(()));
    assert_eq!(list(2, "AAPL"), Ok(()), "said again");
    assert_eq!(list(3, "MSFT"), Err(BookError::NoBook(3)));
    assert!(books.get(1).is_none());
    assert_eq!(books.iter().map(Book::locate).collect::<Vec<_>>(), [2]);
    // Whatever stock takes the place of one that has a book: that one may be wrong, and keeps it.
    for other in ["MSFT", "IBM"] {
        let mut books =
            Books::new(BooksConfig { stocks: wanted.to_vec(), ..config.clone() }).unwrap();
        let mut list = |locate, stock| {
            books.apply(&Message::parse(&directory(locate, stock)).unwrap()).map(|_| ())
        };
        assert_eq!(list(2, "AAPL"), Ok(()));
        assert_eq!(list(2, other), Err(BookError::OtherStock(2)));
        let book = books.get(2).unwrap();
        assert_eq!((book.stock(), book.health()), (wanted[0], Health::Suspect));
        assert_eq!(books.errors(), 1);
    }
}

#[test]
fn bad_configurations_say_what_is_possible() {
    let why = |config| Books::new(config).unwrap_err().to_string();
    let small = BooksConfig::default();
    assert_eq!(
        why(BooksConfig { books: 65_537, ..small.clone() }),
        "65537 books; 1 to 65536 are possible"
    );
    assert_eq!(
        why(BooksConfig { orders: 0, ..small.clone() }),
        "0 orders; 1 to 1073741824 are possible"
    );
    assert_eq!(why(BooksConfig { levels: 0, ..small }), "0 levels a side; 1 to 65536 are possible");
}

/// A book that is as simple as can be: every order in a map, levels summed up when asked.
#[derive(Default)]
struct Simple(BTreeMap<u64, (Side, u32, u32)>);

impl Simple {
    fn shown(&self, side: Side) -> Vec<(u32, u64, u32)> {
        let mut levels = BTreeMap::<u32, (u64, u32)>::new();
        for &(_, shares, price) in self.0.values().filter(|order| order.0 == side) {
            let level = levels.entry(price).or_default();
            *level = (level.0 + u64::from(shares), level.1 + 1);
        }
        let levels = levels.into_iter().map(|(price, (shares, orders))| (price, shares, orders));
        match side {
            Side::Buy => levels.rev().collect(),
            Side::Sell => levels.collect(),
        }
    }
}

proptest! {
    /// Any messages, sensible or not, against the simple book.
    #[test]
    fn levels_are_the_sums_of_their_orders(
        steps in prop::collection::vec(
            (0_u8..5, 0_u64..12, 0_u64..12, 0_u32..40, 95_u32..105), 0..200,
        ),
    ) {
        let config =
            BooksConfig { books: 1, orders: 8, levels: 32, ..BooksConfig::default() };
        let mut books = Books::new(config).unwrap();
        books.list(LOCATE, Stock::BLANK).unwrap();
        let mut simple = Simple::default();
        for (step, reference, other, shares, price) in steps {
            let before = simple.0.get(&reference).copied();
            match step {
                0 | 1 => {
                    let side = if step == 0 { Side::Buy } else { Side::Sell };
                    let fits = before.is_none() && shares != 0 && simple.0.len() < 8;
                    let added = add(&mut books, reference, side.letter(), shares, price);
                    prop_assert_eq!(added.is_ok(), fits);
                    if fits {
                        simple.0.insert(reference, (side, shares, price));
                    }
                }
                2 => {
                    let fits = before.is_some_and(|(_, left, _)| left >= shares);
                    prop_assert_eq!(cancel(&mut books, reference, shares).is_ok(), fits);
                    if let Some((side, left, price)) = before.filter(|_| fits) {
                        simple.0.remove(&reference);
                        if left > shares {
                            simple.0.insert(reference, (side, left - shares, price));
                        }
                    }
                }
                3 => {
                    let header = header(itch::Deleted::KIND);
                    let deleted = itch::Deleted { header, reference: reference.into() };
                    let outcome = books.apply(&Message::Deleted(&deleted));
                    prop_assert_eq!(outcome.is_ok(), simple.0.remove(&reference).is_some());
                }
                _ => {
                    let free = other == reference || !simple.0.contains_key(&other);
                    let fits = before.is_some() && free && shares != 0;
                    let outcome = replace(&mut books, reference, other, shares, price);
                    prop_assert_eq!(outcome.is_ok(), fits);
                    if let Some((side, _, _)) = before.filter(|_| fits) {
                        simple.0.remove(&reference);
                        simple.0.insert(other, (side, shares, price));
                    }
                }
            }
            for side in [Side::Buy, Side::Sell] {
                prop_assert_eq!(shown(&books, side), simple.shown(side));
            }
            prop_assert_eq!(books.check(), Ok(()));
        }
    }
}

#[test]
fn cleared_books_are_as_new_ones_whatever_they_held() {
    let stock = Text::new("AAPL").unwrap();
    let config = BooksConfig { books: 2, orders: 3, levels: 2, ..BooksConfig::default() };
    let mut books = Books::new(config).unwrap();
    let add = |books: &mut Books, locate, reference: u64, price: u32| {
        books.apply(&Message::AddOrder(&itch::AddOrder {
            header: itch::Header::new(itch::AddOrder::KIND, locate, 0),
            reference: reference.into(),
            side: b'B',
            shares: 100.into(),
            stock,
            price: price.into(),
        }))
    };
    for day in 0..3 {
        // The same references, and other locates: what is left of yesterday would be in the way.
        let [first, second] = [10 * day + 1, 10 * day + 2];
        for locate in [first, second] {
            books.list(locate, stock).unwrap();
        }
        assert_eq!(books.list(first + 5, stock), Err(BookError::NoBook(first + 5)));
        for (reference, locate) in [(1, first), (2, second), (3, first)] {
            add(&mut books, locate, reference, 100 + reference as u32).unwrap();
        }
        assert_eq!(add(&mut books, first, 4, 101), Err(BookError::NoOrderSlot(4)));
        books.check().unwrap();
        assert_eq!((books.order_count(), books.get(first).unwrap().health()), (3, Health::Suspect));
        books.clear();
        assert_eq!((books.order_count(), books.iter().len()), (0, 0));
        assert!(books.get(first).is_none() && books.get(second).is_none());
        books.check().unwrap();
    }
}
