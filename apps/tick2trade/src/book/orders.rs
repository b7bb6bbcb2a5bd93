//! All orders that stand, found by their numbers: a slab, and an open-addressing index of it.

use crate::proto::Side;

/// No slot.
pub(super) const NONE: u32 = u32::MAX;
/// 2^64 divided by the golden ratio: multiplied by it, numbers that follow each other lie apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// One order, a link in the list of its level.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) reference: u64,
    pub(super) shares: u32,
    pub(super) price: u32,
    /// The order that came after it at its level; of a free slot, the next free one.
    pub(super) next: u32,
    /// The order that came before it at its level.
    pub(super) prev: u32,
    pub(super) locate: u16,
    pub(super) side: Side,
}

/// Why an order does not enter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    Duplicate,
    Full,
}

/// An order's place in the index, and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    place: usize,
    pub(super) slot: u32,
}

/// Room for an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vacancy {
    /// Its place in the index.
    place: usize,
    pub(super) slot: u32,
}

/// Orders by number. Nothing is allocated after [`Orders::new`].
#[derive(Debug)]
pub(super) struct Orders {
    slots: Vec<Order>,
    free: u32,
    /// Slot of the order at each place, [`NONE`] for none; at most half of it is taken.
    index: Box<[u32]>,
    /// Bits of a spread number that are not its place in the index.
    shift: u32,
    len: usize,
}

impl Orders {
    pub(super) fn new(capacity: usize) -> Self {
        // One place more than orders is never taken, while an order has two numbers, too.
        let places = (2 * capacity).next_power_of_two().max(4);
        let empty = |slot: usize| Order {
            reference: 0,
            shares: 0,
            price: 0,
            next: if slot + 1 == capacity { NONE } else { slot as u32 + 1 },
            prev: NONE,
            locate: 0,
            side: Side::Buy,
        };
        Self {
            slots: (0..capacity).map(empty).collect(),
            free: 0,
            index: vec![NONE; places].into(),
            shift: 64 - places.ilog2(),
            len: 0,
        }
    }

    /// No orders, as in the morning.
    pub(super) fn clear(&mut self) {
        let last = self.slots.len() - 1;
        for (slot, order) in self.slots.iter_mut().enumerate() {
            order.next = if slot == last { NONE } else { slot as u32 + 1 };
        }
        self.index.fill(NONE);
        (self.free, self.len) = (0, 0);
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Where in the index the search for an order starts.
    const fn home(&self, reference: u64) -> usize {
        (reference.wrapping_mul(SPREAD) >> self.shift) as usize
    }

    const fn after(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    /// The place of an order in the index, or the empty place where it would stand.
    #[inline]
    fn find(&self, reference: u64) -> Result<usize, usize> {
        let mut place = self.home(reference);
        loop {
            match self.index[place] {
                NONE => return Err(place),
                slot if self.slots[slot as usize].reference == reference => return Ok(place),
                _ => place = self.after(place),
            }
        }
    }

    /// Where an order is.
    #[inline]
    pub(super) fn found(&self, reference: u64) -> Option<Found> {
        let place = self.find(reference).ok()?;
        Some(Found { place, slot: self.index[place] })
    }

    pub(super) fn get(&self, slot: u32) -> &Order {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Order {
        &mut self.slots[slot as usize]
    }

    /// Where an order of this number could enter.
    #[inline]
    pub(super) fn vacancy(&self, reference: u64) -> Result<Vacancy, Refused> {
        match self.find(reference) {
            Ok(_) => Err(Refused::Duplicate),
            Err(_) if self.free == NONE => Err(Refused::Full),
            Err(place) => Ok(Vacancy { place, slot: self.free }),
        }
    }

    /// Where in the index an order of this number would stand; `None` if there is one.
    #[inline]
    pub(super) fn vacant(&self, reference: u64) -> Option<usize> {
        self.find(reference).err()
    }

    /// Gives the order that [`Orders::found`] found another number, at the place that
    /// [`Orders::vacant`] said, with nothing in between. All else of it is the caller's.
    #[inline(always)]
    pub(super) fn rename(&mut self, found: Found, place: usize, reference: u64) {
        self.slots[found.slot as usize].reference = reference;
        self.index[place] = found.slot;
        self.close(found.place);
    }

    /// Enters an order where [`Orders::vacancy`] said, with nothing in between; its links are the
    /// caller's.
    #[inline]
    pub(super) fn enter(&mut self, vacancy: Vacancy, order: Order) {
        let slot = &mut self.slots[vacancy.slot as usize];
        self.free = slot.next;
        *slot = order;
        self.index[vacancy.place] = vacancy.slot;
        self.len += 1;
    }

    /// Takes out the order that [`Orders::found`] found, with nothing in between; its links are the
    /// caller's to mend first.
    pub(super) fn remove(&mut self, found: Found) {
        let Found { place, slot } = found;
        self.slots[slot as usize].next = self.free;
        (self.free, self.len) = (slot, self.len - 1);
        self.close(place);
    }

    /// Empties a place: what stands behind moves up, unless it would come to stand before its home.
    #[inline(always)]
    fn close(&mut self, mut hole: usize) {
        let mut place = self.after(hole);
        while self.index[place] != NONE {
            let home = self.home(self.get(self.index[place]).reference);
            let mask = self.index.len() - 1;
            if (place.wrapping_sub(home) & mask) >= (place.wrapping_sub(hole) & mask) {
                self.index[hole] = self.index[place];
                hole = place;
            }
            place = self.after(place);
        }
        self.index[hole] = NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn order(reference: u64) -> Order {
        let (next, prev) = (NONE, NONE);
        Order { reference, shares: 1, price: 1, next, prev, locate: 1, side: Side::Buy }
    }

    fn insert(orders: &mut Orders, reference: u64) -> Result<u32, Refused> {
        let vacancy = orders.vacancy(reference)?;
        orders.enter(vacancy, order(reference));
        Ok(vacancy.slot)
    }

    #[test]
    fn a_full_table_refuses_and_takes_again_what_left() {
        let mut orders = Orders::new(2);
        insert(&mut orders, 1).unwrap();
        insert(&mut orders, 2).unwrap();
        assert_eq!(insert(&mut orders, 2), Err(Refused::Duplicate));
        assert_eq!(insert(&mut orders, 3), Err(Refused::Full));
        orders.remove(orders.found(1).unwrap());
        assert!(insert(&mut orders, 3).is_ok());
        assert_eq!((orders.found(1), orders.len()), (None, 2));
    }

    #[test]
    fn an_order_of_a_full_table_takes_another_number() {
        for capacity in 1..=4 {
            let mut orders = Orders::new(capacity);
            let slots: Vec<_> =
                (0..capacity as u64).map(|n| insert(&mut orders, n).unwrap()).collect();
            for (at, &slot) in slots.iter().enumerate() {
                let (old, new) = (at as u64, at as u64 + 100);
                let found = orders.found(old).unwrap();
                let place = orders.vacant(new).unwrap();
                orders.rename(found, place, new);
                assert_eq!(orders.found(old), None);
                assert_eq!(orders.found(new).map(|found| found.slot), Some(slot));
            }
            assert_eq!(orders.len(), capacity);
        }
    }

    proptest::proptest! {
        /// The index against a map, with numbers whose homes collide.
        #[test]
        fn it_finds_what_a_map_finds(steps: Vec<(bool, u8, Option<u8>)>) {
            let mut orders = Orders::new(40);
            let mut map = HashMap::new();
            for (add, reference, other) in steps {
                let reference = u64::from(reference % 64);
                if let Some(other) = other.map(|other| u64::from(other % 64))
                    && let Some(found) = orders.found(reference)
                    && let Some(place) = orders.vacant(other)
                {
                    orders.rename(found, place, other);
                    let slot = map.remove(&reference).unwrap();
                    map.insert(other, slot);
                } else if add && map.len() < 40 && !map.contains_key(&reference) {
                    map.insert(reference, insert(&mut orders, reference).unwrap());
                } else if map.remove(&reference).is_some() {
                    orders.remove(orders.found(reference).unwrap());
                }
                for reference in 0..64 {
                    let slot = orders.found(reference).map(|found| found.slot);
                    assert_eq!(slot, map.get(&reference).copied());
                }
                assert_eq!(orders.len(), map.len());
            }
        }
    }
}
