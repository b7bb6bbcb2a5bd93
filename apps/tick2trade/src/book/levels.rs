//! The price levels of one side of a book.

use std::cmp::Ordering;

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
    #[inline]
    pub(super) fn find(&self, price: u32) -> Result<usize, usize> {
        let key = price ^ self.flip;
        let Some(best) = self.entries.last() else { return Err(0) };
        match key.cmp(&(best.level.price ^ self.flip)) {
            Ordering::Equal => Ok(self.entries.len() - 1),
            Ordering::Greater => Err(self.entries.len()),
            Ordering::Less => self.find_behind_best(key),
        }
    }

    fn find_behind_best(&self, key: u32) -> Result<usize, usize> {
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
    #[inline]
    pub(super) fn find_or_make(&mut self, price: u32) -> Option<usize> {
        match self.find(price) {
            Ok(index) => Some(index),
            Err(_) if self.entries.len() == self.capacity => None,
            Err(index) => {
                let level = Level { price, orders: 0, shares: 0 };
                let entry = Entry { level, first: NONE, last: NONE };
                match index == self.entries.len() {
                    true => self.entries.push(entry),
                    false => self.entries.insert(index, entry),
                }
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

    /// An order goes to the back of a level; says which one it stands behind, [`NONE`] for none.
    #[inline]
    pub(super) fn append(&mut self, index: usize, slot: u32, shares: u32) -> u32 {
        let entry = &mut self.entries[index];
        let prev = std::mem::replace(&mut entry.last, slot);
        if prev == NONE {
            entry.first = slot;
        }
        entry.level.orders += 1;
        entry.level.shares += u64::from(shares);
        prev
    }

    /// Moves the only order of a level to a price, its shares with it, if no other level stands at
    /// that price or between. `false`, and nothing happened, otherwise.
    #[inline]
    pub(super) fn move_alone(&mut self, index: usize, price: u32, shares: u32) -> bool {
        let key = price ^ self.flip;
        let key_of = |entry: &Entry| entry.level.price ^ self.flip;
        let is_behind = self.entries.get(index + 1).is_none_or(|better| key < key_of(better));
        let is_before = index.checked_sub(1).is_none_or(|worse| key_of(&self.entries[worse]) < key);
        let entry = &mut self.entries[index];
        let is_moved = entry.level.orders == 1 && is_behind && is_before;
        if is_moved {
            (entry.level.price, entry.level.shares) = (price, shares.into());
        }
        is_moved
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

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    #[inline]
    pub(super) fn remove(&mut self, index: usize) {
        if self.is_best(index) {
            self.entries.pop();
        } else {
            self.entries.remove(index);
        }
    }
}
