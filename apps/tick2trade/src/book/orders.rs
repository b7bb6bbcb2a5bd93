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
        let places = (2 * capacity).next_power_of_two().max(2);
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

    /// The slot of an order.
    #[inline]
    pub(super) fn slot(&self, reference: u64) -> Option<u32> {
        self.find(reference).ok().map(|place| self.index[place])
    }

    pub(super) fn get(&self, slot: u32) -> &Order {
        &self.slots[slot as usize]
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> &mut Order {
        &mut self.slots[slot as usize]
    }

    /// True if an order of this number could enter.
    pub(super) fn check(&self, reference: u64) -> Result<(), Refused> {
        if self.find(reference).is_ok() {
            return Err(Refused::Duplicate);
        }
        if self.free == NONE { Err(Refused::Full) } else { Ok(()) }
    }

    /// Enters an order; its links are the caller's.
    pub(super) fn insert(&mut self, order: Order) -> Result<u32, Refused> {
        let Err(place) = self.find(order.reference) else { return Err(Refused::Duplicate) };
        let slot = self.free;
        if slot == NONE {
            return Err(Refused::Full);
        }
        self.free = self.slots[slot as usize].next;
        self.slots[slot as usize] = order;
        self.index[place] = slot;
        self.len += 1;
        Ok(slot)
    }

    /// Takes an order out; its links are the caller's to mend first.
    pub(super) fn remove(&mut self, slot: u32) {
        let Ok(mut hole) = self.find(self.get(slot).reference) else { return };
        self.slots[slot as usize].next = self.free;
        (self.free, self.len) = (slot, self.len - 1);
        // What stands behind moves up, unless it would come to stand before its home.
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

    #[test]
    fn a_full_table_refuses_and_takes_again_what_left() {
        let mut orders = Orders::new(2);
        let slot = orders.insert(order(1)).unwrap();
        orders.insert(order(2)).unwrap();
        assert_eq!(orders.insert(order(2)), Err(Refused::Duplicate));
        assert_eq!(orders.insert(order(3)), Err(Refused::Full));
        orders.remove(slot);
        assert!(orders.insert(order(3)).is_ok());
        assert_eq!((orders.slot(1), orders.len()), (None, 2));
    }

    proptest::proptest! {
        /// The index against a map, with numbers whose homes collide.
        #[test]
        fn it_finds_what_a_map_finds(steps: Vec<(bool, u8)>) {
            let mut orders = Orders::new(40);
            let mut map = HashMap::new();
            for (add, reference) in steps {
                let reference = u64::from(reference % 64);
                if add && map.len() < 40 && !map.contains_key(&reference) {
                    map.insert(reference, orders.insert(order(reference)).unwrap());
                } else if let Some(slot) = map.remove(&reference) {
                    orders.remove(slot);
                }
                for reference in 0..64 {
                    assert_eq!(orders.slot(reference), map.get(&reference).copied());
                }
                assert_eq!(orders.len(), map.len());
            }
        }
    }
}
