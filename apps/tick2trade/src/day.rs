//! A synthetic day for strangers to judge: every message of ITCH, and what our books say of it.

use std::io::{self, Write};

use ferrocx::model::wire::SplitMix64;
use zerocopy::{FromBytes, IntoBytes};

use crate::book::{Books, BooksConfig};
use crate::exchange::{Crowd, CrowdConfig, Exchange, ListedSecurity, Output};
use crate::proto::itch::{self, Message};
use crate::proto::{Side, Text};

/// Securities of the day.
const SECURITIES: usize = 8;
/// Time from one step of the crowd to the next, ns.
const STEP_NS: u64 = 2_000;
/// When the day starts: 9:30.
const OPEN_NS: u64 = 34_200_000_000_000;
/// Of so many messages one is of a kind that touches no book, about.
const OTHERS: u64 = 50;

/// What a day was like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DayStats {
    /// Messages.
    pub messages: u64,
    /// Changes of a best price or its shares, on either side of any book.
    pub changes: u64,
    /// Kinds of messages.
    pub kinds: usize,
}

/// Best price, shares and orders of a side; zeros for an empty one.
type Best = [u64; 3];

/// Writes messages, and what our books make of them.
struct Writer<D, B> {
    day: D,
    bests: B,
    books: Books,
    last: [[Best; 2]; SECURITIES + 1],
    seen: [bool; 256],
    stats: DayStats,
    rng: SplitMix64,
}

/// Writes a day of `messages` messages at least, from a seed: each behind its length in two bytes
/// to `day`, as exchanges hand out their days; and to `bests` a row of eight little-endian 64-bit
/// numbers for each change of a best price or its shares: number of the message from 1, locate,
/// then price, shares and orders of the best bid and the best offer.
///
/// # Errors
/// The writers'; a message that our books do not take.
pub fn write(messages: u64, seed: u64, day: impl Write, bests: impl Write) -> io::Result<DayStats> {
    let names: [_; SECURITIES] = std::array::from_fn(|at| Text([b'A' + at as u8; 8]));
    let mut exchange = Exchange::new(names.map(|stock| ListedSecurity { stock }).to_vec());
    let mut crowd = Crowd::new(CrowdConfig { seed, ..CrowdConfig::default() }, SECURITIES);
    let books = Books::new(BooksConfig::default()).map_err(io::Error::other)?;
    let mut writer = Writer {
        day,
        bests,
        books,
        last: [[[0; 3]; 2]; SECURITIES + 1],
        seen: [false; 256],
        stats: DayStats::default(),
        rng: SplitMix64::new(!seed),
    };
    let (mut out, mut now) = (Output::default(), OPEN_NS);
    exchange.open(0, now, &mut out);
    while writer.stats.messages < messages {
        for message in out.feed.drain(..) {
            writer.of_the_book(&message)?;
            if writer.rng.below(OTHERS) == 0 {
                writer.beside(now)?;
            }
        }
        now += STEP_NS;
        crowd.step(&mut exchange, now, &mut out);
    }
    let header = itch::Header::new(itch::SystemEvent::KIND, 0, now);
    writer.message(itch::SystemEvent { header, event: b'C' }.as_bytes())?;
    writer.books.check().map_err(|what| io::Error::other(format!("{what:?}")))?;
    writer.stats.kinds = writer.seen.iter().filter(|&&seen| seen).count();
    writer.day.flush()?;
    writer.bests.flush()?;
    Ok(writer.stats)
}

impl<D: Write, B: Write> Writer<D, B> {
    /// A message of the exchange's, at times in its other form: an order with its owner's name, an
    /// execution at another price.
    fn of_the_book(&mut self, message: &[u8]) -> io::Result<()> {
        let is_other = self.rng.below(4) == 0;
        let other = |kind: u8, rest: &[u8]| [&[kind][..], &message[1..], rest].concat();
        match message[0] {
            itch::AddOrder::KIND if is_other => self.message(&other(b'F', b"FXCX")),
            itch::Executed::KIND if is_other => {
                let price = (1_500_000 + self.rng.below(100) as u32).to_be_bytes();
                let printable = if self.rng.below(2) == 0 { b'Y' } else { b'N' };
                self.message(&other(b'C', &[&[printable][..], &price].concat()))
            }
            _ => self.message(message),
        }
    }

    /// A message of any bytes, of a kind that touches no book.
    fn beside(&mut self, now: u64) -> io::Result<()> {
        const KINDS: &[u8] = b"YLVWKJhPQBINO";
        let kind = KINDS[self.rng.below(KINDS.len() as u64) as usize];
        let known = itch::MESSAGES.iter().find(|message| message.0 == kind);
        let Some(&(_, len)) = known else { return Ok(()) };
        let locate = 1 + self.rng.below(SECURITIES as u64) as u16;
        let header = itch::Header::new(kind, locate, now);
        let mut message = header.as_bytes().to_vec();
        message.resize_with(len, || b'0' + self.rng.below(10) as u8);
        self.message(&message)
    }

    /// Writes a message, and a row if our books say that a best price or its shares changed.
    fn message(&mut self, message: &[u8]) -> io::Result<()> {
        self.day.write_all(&(message.len() as u16).to_be_bytes())?;
        self.day.write_all(message)?;
        self.stats.messages += 1;
        self.seen[usize::from(message[0])] = true;
        let read = Message::parse(message).map_err(io::Error::other)?;
        self.books.apply(&read).map_err(io::Error::other)?;
        let header = itch::Header::ref_from_prefix(message);
        let locate = header.map_or(0, |(header, _)| header.locate.get());
        let Some(book) = self.books.get(locate) else { return Ok(()) };
        let best = |side| {
            let level = book.best(side);
            level.map_or([0; 3], |level| [level.price.into(), level.shares, level.orders.into()])
        };
        let bests = [best(Side::Buy), best(Side::Sell)];
        let last = &mut self.last[usize::from(locate)];
        let changed = (0..2).any(|side| bests[side][..2] != last[side][..2]);
        *last = bests;
        if changed {
            self.stats.changes += 1;
            let row = [self.stats.messages, locate.into()];
            for number in row.iter().chain(bests.as_flattened()) {
                self.bests.write_all(&number.to_le_bytes())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_has_every_kind_of_message_and_is_the_same_from_the_same_seed() {
        let day = |seed| {
            let (mut day, mut bests) = (Vec::new(), Vec::new());
            let stats = write(50_000, seed, &mut day, &mut bests).unwrap();
            assert_eq!(bests.len() as u64, 64 * stats.changes);
            assert_eq!(stats.kinds, itch::MESSAGES.len());
            assert!(stats.messages > 50_000 && stats.changes > 1_000, "{stats:?}");
            (day, bests)
        };
        let first = day(1);
        assert!(first == day(1) && first != day(2));
    }
}
