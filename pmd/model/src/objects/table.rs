//! A table of objects of one kind, indexed by object number.

use std::collections::VecDeque;

use super::budget::{Budget, Charge, Footprint, OutOfMemory, list_bytes};

/// User context whose objects every user context may name: those of a driver for all of them.
///
/// Source: reference 2.2, `uid`.
pub const SHARED_UID: u16 = 0xffff;

/// One live object, the number of other objects that name it, the user context that it belongs to,
/// and what it is charged.
#[derive(Debug)]
struct Slot<T> {
    value: T,
    holders: u32,
    owner: u16,
    charge: Charge,
}

/// Reason for which a table takes no more objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    /// Every number is in use.
    Numbers,
    /// The function's memory is used up.
    Memory,
}

impl From<OutOfMemory> for Full {
    fn from(_: OutOfMemory) -> Self {
        Self::Memory
    }
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
    /// User context whose command is carried out; 0, the driver, otherwise.
    caller: u16,
    /// User contexts may name what the driver created.
    is_shared: bool,
    budget: Budget,
    /// Pays for the room of `slots` and `free`.
    room: Charge,
}

/// How often a number may be passed over before freed ones are used again.
const FRESH_NUMBERS: usize = 64;

impl<T> Table<T> {
    /// A table whose numbers start at `first`, which holds at most `limit` objects, and whose
    /// memory `budget` pays for.
    #[must_use]
    pub fn new(first: u32, limit: u32, budget: &Budget) -> Self {
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            first,
            limit,
            live: 0,
            caller: 0,
            is_shared: false,
            budget: budget.clone(),
            room: budget.nothing(),
        }
    }

    /// The same table, of objects that a driver creates for its user contexts to name.
    #[must_use]
    pub fn shared(self) -> Self {
        Self { is_shared: true, ..self }
    }

    /// What follows is done for this user context: what it adds is its own, and
    /// [`Table::contains`] knows only what it may name.
    pub fn set_caller(&mut self, uid: u16) {
        self.caller = uid;
    }

    /// Whether the caller may change, query or remove the object; also `true` if there is none.
    #[must_use]
    pub fn is_own(&self, number: u32) -> bool {
        let is_own = |slot: &Slot<T>| slot.owner == self.caller;
        matches!(self.caller, 0 | SHARED_UID) || self.slot(number).is_none_or(is_own)
    }

    /// User context that an object belongs to; 0 is the driver.
    #[inline]
    #[must_use]
    pub fn owner(&self, number: u32) -> Option<u16> {
        self.slot(number).map(|slot| slot.owner)
    }

    /// Numbers that were given out so far, in use or not: what a search of all looks at.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.slots.len()
    }

    /// Numbers of the objects of a user context, the last ones first.
    pub fn of_user(&self, uid: u16) -> Vec<u32> {
        let is_its = |slot: &Option<Slot<T>>| slot.as_ref().is_some_and(|slot| slot.owner == uid);
        let numbers = (self.first..).zip(&self.slots).filter(|(_, slot)| is_its(slot));
        let mut numbers: Vec<_> = numbers.map(|(number, _)| number).collect();
        numbers.reverse();
        numbers
    }

    /// Adds an object and returns its number.
    ///
    /// # Errors
    ///
    /// [`Full`], when no number or no memory is left.
    pub fn insert(&mut self, value: T) -> Result<u32, Full>
    where
        T: Footprint,
    {
        if self.live >= self.limit {
            return Err(Full::Numbers);
        }
        let charge = self.budget.charge(value.heap_bytes())?;
        let fresh = self.slots.len() < self.limit as usize;
        let reuse = !fresh || self.free.len() >= FRESH_NUMBERS;
        let slot = Slot { value, holders: 0, owner: self.caller, charge };
        let index = match reuse.then(|| self.free.pop_front()).flatten() {
            Some(index) => {
                self.slots[index as usize] = Some(slot);
                index
            }
            None => {
                self.make_room()?;
                self.slots.push(Some(slot));
                u32::try_from(self.slots.len() - 1).map_err(|_| Full::Numbers)?
            }
        };
        self.live += 1;
        Ok(self.first + index)
    }

    /// Adds `count` objects with numbers in a row; returns the first.
    ///
    /// # Errors
    ///
    /// [`Full`], when so many numbers in a row or so much memory are not left; then none is added.
    pub fn insert_run(&mut self, count: u32, make: impl Fn(u32) -> T) -> Result<u32, Full>
    where
        T: Footprint,
    {
        let len = u32::try_from(self.slots.len()).map_err(|_| Full::Numbers)?;
        // Runs start at multiples of their length, so that others of it find room between.
        let behind = len.next_multiple_of(count.max(1));
        let first = match behind.checked_add(count).filter(|end| *end <= self.limit) {
            Some(_) => behind,
            None => self.free_run(count).ok_or(Full::Numbers)?,
        };
        for index in len..first {
            self.make_room()?;
            self.slots.push(None);
            self.free.push_back(index);
        }
        let end = first + count;
        self.free.retain(|index| !(first..end).contains(index));
        for index in first..end {
            if let Err(full) = self.fill(index, make(index - first)) {
                for filled in first..index {
                    self.remove(self.first + filled);
                }
                let there = u32::try_from(self.slots.len()).map_err(|_| Full::Numbers)?;
                self.free.extend(index..end.min(there));
                return Err(full);
            }
        }
        Ok(self.first + first)
    }

    /// Puts an object into a free slot, or into the one behind the last.
    fn fill(&mut self, index: u32, value: T) -> Result<(), Full>
    where
        T: Footprint,
    {
        let charge = self.budget.charge(value.heap_bytes())?;
        if index as usize == self.slots.len() {
            self.make_room()?;
            self.slots.push(None);
        }
        let slot = Slot { value, holders: 0, owner: self.caller, charge };
        self.slots[index as usize] = Some(slot);
        self.live += 1;
        Ok(())
    }

    /// First of so many free slots in a row.
    fn free_run(&self, count: u32) -> Option<u32> {
        let is_free = |index: u32| self.slots.get(index as usize).is_none_or(Option::is_none);
        let mut starts = (0..=self.limit.checked_sub(count)?).step_by(count.max(1) as usize);
        starts.find(|first| (*first..first + count).all(is_free))
    }

    /// Makes room for one more slot, doubling as a vector does, and pays for it first.
    fn make_room(&mut self) -> Result<(), Full>
    where
        T: Footprint,
    {
        let len = self.slots.len();
        if len < self.slots.capacity() {
            return Ok(());
        }
        let capacity = (2 * len).max(4).min(self.limit as usize);
        // Every number may come to stand in `free`, which doubles, too.
        let beside = list_bytes::<[u32; 2]>(capacity) + (capacity * T::PER_NUMBER) as u64;
        // The old room is paid for until its content has moved.
        let room = self.budget.charge(list_bytes::<Option<Slot<T>>>(capacity) + beside)?;
        self.slots.try_reserve_exact(capacity - len).map_err(|_| Full::Memory)?;
        self.room = room;
        Ok(())
    }

    /// Charges an object `more` bytes, which it is about to own.
    ///
    /// # Errors
    ///
    /// [`Full::Memory`], and for an unknown number [`Full::Numbers`].
    pub fn grow(&mut self, number: u32, more: u64) -> Result<(), Full> {
        let slot = self.slot_mut(number).ok_or(Full::Numbers)?;
        Ok(slot.charge.grow(more)?)
    }

    /// Charges an object `more` bytes, if there are so many: for what can do with less.
    pub fn try_grow(&mut self, number: u32, more: u64) -> bool {
        self.slot_mut(number).is_some_and(|slot| slot.charge.try_grow(more))
    }

    /// Gives back `less` bytes that an object no longer owns.
    pub fn shrink(&mut self, number: u32, less: u64) {
        if let Some(slot) = self.slot_mut(number) {
            let rest = slot.charge.bytes().saturating_sub(less);
            slot.charge.shrink_to(rest);
        }
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

    /// Whether an object has this number that the caller may name.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        let may_name = |owner: u16| match self.caller {
            0 | SHARED_UID => true,
            caller => owner == caller || owner == SHARED_UID || owner == 0 && self.is_shared,
        };
        self.slot(number).is_some_and(|slot| may_name(slot.owner))
    }

    /// Number of other objects that name this one; 0 for an unknown number.
    #[must_use]
    pub fn holders(&self, number: u32) -> u32 {
        self.slot(number).map_or(0, |slot| slot.holders)
    }

    /// Records that another object names this one, which the caller has found; or a number below
    /// the first, which stands for none and never comes to be one.
    ///
    /// # Panics
    ///
    /// In debug builds, for a number that no object has yet: its later owner would be released by
    /// one that never held it.
    pub fn hold(&mut self, number: u32) {
        debug_assert!(
            number < self.first || self.slot(number).is_some(),
            "object {number:#x} is held before it exists"
        );
        if let Some(slot) = self.slot_mut(number) {
            slot.holders += 1;
        }
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
}

#[cfg(test)]
mod tests {
    use super::super::budget::SET_ASIDE_BYTES;
    use super::*;

    impl Footprint for char {
        fn heap_bytes(&self) -> u64 {
            u64::from(u32::from(*self))
        }
    }

    fn table<T>(first: u32, limit: u32) -> Table<T> {
        Table::new(first, limit, &Budget::new(u64::MAX))
    }

    #[test]
    fn a_number_finds_its_object_and_only_that() {
        let mut table = table(0x10, 3);
        assert_eq!(table.insert('a'), Ok(0x10));
        assert_eq!(table.insert('b'), Ok(0x11));
        assert_eq!((table.get(0x10), table.get(0x11)), (Some(&'a'), Some(&'b')));
        assert_eq!((table.get(0x0f), table.get(0x12)), (None, None));
        assert_eq!(table.remove(0x10), Some('a'));
        assert_eq!((table.get(0x10), table.len()), (None, 1));
        assert_eq!(table.remove(0x10), None);
    }

    #[test]
    fn a_full_table_refuses_and_uses_freed_numbers_again() {
        let mut table = table(1, 2);
        assert_eq!((table.insert(()), table.insert(())), (Ok(1), Ok(2)));
        assert_eq!(table.insert(()), Err(Full::Numbers));
        table.remove(1);
        assert_eq!((table.insert(()), table.insert(())), (Ok(1), Err(Full::Numbers)));
    }

    #[test]
    fn freed_numbers_come_back_late() {
        let mut table = table(0, 1000);
        table.insert(()).expect("room");
        table.remove(0);
        assert_eq!(table.insert(()), Ok(1));
    }

    #[test]
    fn holders_are_counted() {
        let mut table = table(0, 10);
        table.insert(()).expect("room");
        table.hold(0);
        table.hold(0);
        table.release(0);
        assert_eq!(table.holders(0), 1);
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "before it exists"))]
    fn what_does_not_exist_is_not_held() {
        let mut table = table::<()>(8, 10);
        table.hold(0);
        table.hold(8);
    }

    #[test]
    fn a_run_of_numbers_is_found_among_free_ones_or_nothing_is_added() {
        let mut table = table(1, 10);
        assert_eq!(table.insert_run(4, |_| ()), Ok(1));
        assert_eq!((table.insert(()), table.insert_run(4, |_| ())), (Ok(5), Err(Full::Numbers)));
        table.remove(5);
        assert_eq!(
            (table.insert_run(4, |_| ()), table.insert_run(4, |_| ())),
            (Ok(5), Err(Full::Numbers))
        );
        for number in 1..=4 {
            table.remove(number);
        }
        assert_eq!((table.insert_run(4, |_| ()), table.len()), (Ok(1), 8));
        assert_eq!([table.insert(()), table.insert(())], [Ok(9), Ok(10)]);
        assert_eq!(table.insert(()), Err(Full::Numbers));
        let poor = Budget::new(SET_ASIDE_BYTES + 2048);
        let mut table = Table::new(0, 100, &poor);
        let before = poor.used_bytes();
        assert_eq!(table.insert_run(8, |_| '\u{200}'), Err(Full::Memory));
        assert_eq!(table.len(), 0);
        assert!(poor.used_bytes() - before < 1536, "only the places stay");
    }

    #[test]
    fn a_user_context_names_what_is_its_own_or_shared() {
        let mut table = table(0, 10);
        let mut add = |uid: u16| {
            table.set_caller(uid);
            table.insert(()).expect("room")
        };
        let (drivers, shared, ours, theirs) = (add(0), add(SHARED_UID), add(1), add(2));
        table.set_caller(1);
        assert!(table.contains(ours) && table.contains(shared));
        assert!(!table.contains(theirs) && !table.contains(drivers) && !table.contains(9));
        assert!(table.is_own(ours) && table.is_own(9));
        assert!(!table.is_own(theirs) && !table.is_own(drivers) && !table.is_own(shared));
        assert_eq!((table.of_user(2), table.of_user(3)), (vec![theirs], vec![]));
        let mut table = table.shared();
        assert!(table.contains(drivers) && !table.contains(theirs) && !table.is_own(drivers));
        table.set_caller(0);
        assert!((0..4).all(|number| table.contains(number) && table.is_own(number)));
    }

    #[test]
    fn objects_pay_for_what_they_own_until_they_are_removed() {
        let budget = Budget::new(SET_ASIDE_BYTES + 4096);
        let own = || budget.used_bytes() - SET_ASIDE_BYTES;
        let mut table = Table::new(0, 1000, &budget);
        let number = table.insert('a').expect("room");
        let room = own() - u64::from(u32::from('a'));
        assert!(room >= 4 * size_of::<Option<Slot<char>>>() as u64, "{room}");
        table.grow(number, 1000).expect("room");
        assert_eq!(table.grow(number, 4096), Err(Full::Memory));
        table.shrink(number, 500);
        assert_eq!(own(), room + 97 + 500);
        assert_eq!(table.insert('\u{10ffff}'), Err(Full::Memory));
        table.remove(number);
        assert_eq!(own(), room, "the place in the table stays");
        while table.insert('a').is_ok() {}
        assert!(own() <= 4096);
        drop(table);
        assert_eq!((own(), budget.refusals()), (0, 3));
    }
}
