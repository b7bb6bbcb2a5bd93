//! A table of objects of one kind, indexed by object number.

use std::collections::VecDeque;

/// One live object and the number of other objects that name it.
#[derive(Debug)]
struct Slot<T> {
    value: T,
    holders: u32,
}

/// Objects of one kind. A number is an index, so a lookup on the packet path is one bounds check.
///
/// Freed numbers go to the end of the line: a number comes back as late as possible, so that a
/// driver that uses a freed one is refused instead of hitting another object.
#[derive(Debug)]
pub struct Table<T> {
    slots: Vec<Option<Slot<T>>>,
    free: VecDeque<u32>,
    first: u32,
    limit: u32,
    live: u32,
}

/// How often a number may be passed over before freed ones are used again.
const FRESH_NUMBERS: usize = 64;

impl<T> Table<T> {
    /// A table whose numbers start at `first` and which holds at most `limit` objects.
    #[must_use]
    pub fn new(first: u32, limit: u32) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), first, limit, live: 0 }
    }

    /// Adds an object and returns its number; `None` when the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if self.live >= self.limit {
            return None;
        }
        let fresh = self.slots.len() < self.limit as usize;
        let reuse = !fresh || self.free.len() >= FRESH_NUMBERS;
        let slot = Some(Slot { value, holders: 0 });
        let index = match reuse.then(|| self.free.pop_front()).flatten() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).ok()?
            }
        };
        self.live += 1;
        Some(self.first + index)
    }

    #[inline]
    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        self.slots.get(number.wrapping_sub(self.first) as usize)?.as_ref()
    }

    #[inline]
    fn slot_mut(&mut self, number: u32) -> Option<&mut Slot<T>> {
        self.slots.get_mut(number.wrapping_sub(self.first) as usize)?.as_mut()
    }

    /// The object with this number.
    #[inline]
    #[must_use]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slot(number).map(|slot| &slot.value)
    }

    /// The object with this number.
    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slot_mut(number).map(|slot| &mut slot.value)
    }

    /// Whether an object has this number.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.slot(number).is_some()
    }

    /// Number of other objects that name this one; 0 for an unknown number.
    #[must_use]
    pub fn holders(&self, number: u32) -> u32 {
        self.slot(number).map_or(0, |slot| slot.holders)
    }

    /// Records that another object names this one; `false` for an unknown number.
    pub fn hold(&mut self, number: u32) -> bool {
        self.slot_mut(number).map(|slot| slot.holders += 1).is_some()
    }

    /// Takes one [`Table::hold`] back.
    ///
    /// # Panics
    ///
    /// In debug builds, when nothing holds the object: the model's own books are wrong.
    pub fn release(&mut self, number: u32) {
        if let Some(slot) = self.slot_mut(number) {
            debug_assert!(slot.holders > 0, "object {number:#x} released more often than held");
            slot.holders = slot.holders.saturating_sub(1);
        }
    }

    /// Removes an object, whether or not something names it; the caller has checked.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = number.wrapping_sub(self.first);
        let slot = self.slots.get_mut(index as usize)?.take()?;
        self.free.push_back(index);
        self.live -= 1;
        Some(slot.value)
    }

    /// Number of live objects.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.live
    }

    /// Whether the table holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Number and object of every live one, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (self.first..).zip(&self.slots).filter_map(|(n, slot)| Some((n, &slot.as_ref()?.value)))
    }

    /// Number and object of every live one, in the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (self.first..)
            .zip(&mut self.slots)
            .filter_map(|(n, slot)| Some((n, &mut slot.as_mut()?.value)))
    }

    /// Forgets every object; numbers start from the beginning, as after a reset.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.free.clear();
        self.live = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_object_and_only_that() {
        let mut table = Table::new(0x10, 3);
        assert_eq!(table.insert('a'), Some(0x10));
        assert_eq!(table.insert('b'), Some(0x11));
        assert_eq!((table.get(0x10), table.get(0x11)), (Some(&'a'), Some(&'b')));
        assert_eq!((table.get(0x0f), table.get(0x12)), (None, None));
        assert_eq!(table.remove(0x10), Some('a'));
        assert_eq!((table.get(0x10), table.len()), (None, 1));
        assert_eq!(table.remove(0x10), None);
    }

    #[test]
    fn a_full_table_refuses_and_uses_freed_numbers_again() {
        let mut table = Table::new(1, 2);
        assert_eq!(
            (table.insert(()), table.insert(()), table.insert(())),
            (Some(1), Some(2), None)
        );
        table.remove(1);
        assert_eq!((table.insert(()), table.insert(())), (Some(1), None));
    }

    #[test]
    fn freed_numbers_come_back_late() {
        let mut table = Table::new(0, 1000);
        table.insert(0);
        table.remove(0);
        assert_eq!(table.insert(1), Some(1));
    }

    #[test]
    fn holders_are_counted() {
        let mut table = Table::new(0, 10);
        table.insert(());
        assert!(table.hold(0) && table.hold(0) && !table.hold(1));
        table.release(0);
        assert_eq!(table.holders(0), 1);
    }
}
