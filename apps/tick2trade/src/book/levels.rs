//! The price levels of one side of a book.

use super::orders::NONE;
use crate::proto::Side;

/// What stands at one price.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Level {
    /// The price, four decimals.
    pub price: u32,
    /// Orders at it.
    pub orders: u32,
    /// Shares of all of them.
    pub shares: u64,
}

/// A level, and the list of its orders.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) level: Level,
    /// The order that is first in line.
    pub(super) first: u32,
    /// The order that is last in line.
    pub(super) last: u32,
}

/// Levels of one side, sorted so that the best one is the last: there most changes are.
#[derive(Debug)]
pub(super) struct Levels {
    entries: Vec<Entry>,
    capacity: usize,
    /// Turned around bit by bit, the prices of offers rise towards the best, too.
    flip: u32,
}

impl Levels {
    pub(super) fn new(side: Side, capacity: usize) -> Self {
        let flip = match side {
            Side::Buy => 0,
            Side::Sell => u32::MAX,
        };
        Self { entries: Vec::with_capacity(capacity), capacity, flip }
    }

    pub(super) fn best(&self) -> Option<Level> {
        self.entries.last().map(|entry| entry.level)
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Level> + '_ {
        self.entries.iter().rev().map(|entry| entry.level)
    }

    /// Index of the level of a price, or where it would stand.
    pub(super) fn find(&self, price: u32) -> Result<usize, usize> {
        let key = price ^ self.flip;
        // Near the best, a look at each is less than a search.
        for (index, entry) in self.entries.iter().enumerate().rev().take(8) {
            let other = entry.level.price ^ self.flip;
            if other == key {
                return Ok(index);
            }
            if other < key {
                return Err(index + 1);
            }
        }
        self.entries.binary_search_by_key(&key, |entry| entry.level.price ^ self.flip)
    }

    /// The index of the level of a price, which is made if there is none; `None` if there is no
    /// room for it.
    pub(super) fn find_or_make(&mut self, price: u32) -> Option<usize> {
        match self.find(price) {
            Ok(index) => Some(index),
            Err(_) if self.entries.len() == self.capacity => None,
            Err(index) => {
                let level = Level { price, orders: 0, shares: 0 };
                self.entries.insert(index, Entry { level, first: NONE, last: NONE });
                Some(index)
            }
        }
    }

    /// True if an order that stands at `leaving` could move to `price`.
    pub(super) fn has_room(&self, price: u32, leaving: u32) -> bool {
        let alone = |index: usize| self.entries[index].level.orders == 1;
        self.entries.len() < self.capacity
            || self.find(price).is_ok()
            || self.find(leaving).is_ok_and(alone)
    }

    pub(super) fn get(&self, index: usize) -> &Entry {
        &self.entries[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Entry {
        &mut self.entries[index]
    }

    pub(super) fn is_best(&self, index: usize) -> bool {
        index + 1 == self.entries.len()
    }

    pub(super) fn remove(&mut self, index: usize) {
        self.entries.remove(index);
    }
}
