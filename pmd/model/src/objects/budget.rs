//! The memory that one function may make the model hold, and who holds how much of it.
//!
//! Everything that a guest can ask for is charged before it is allocated: objects with what they
//! own, lists, pages lent, requests in line. A [`Charge`] lies beside what it pays for and is given
//! back when that is dropped, so no path that frees can forget it; a reset drops all.
//!
//! Sizes are upper bounds: what an allocator adds is covered by the room that containers which
//! double are charged for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of every budget that are set aside for what lives no longer than a step, or is there once
/// for a function: a command's input, output and lists (4 MiB each), 512 frames on their way from
/// the port to itself, the line of queue pairs, the list of a UMR request, and the MiB of the BAR
/// in which a driver may write to pages that show no memory, by their I/O addresses.
pub const SET_ASIDE_BYTES: u64 = 32 << 20;

/// The budget is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

/// Bytes that one function may hold. Clones are handles to the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Books>);

#[derive(Debug)]
struct Books {
    limit: u64,
    used: AtomicU64,
    peak: AtomicU64,
    refusals: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes`, of which [`SET_ASIDE_BYTES`] are used from the start.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self(Arc::new(Books {
            limit: limit_bytes,
            used: AtomicU64::new(SET_ASIDE_BYTES),
            peak: AtomicU64::new(SET_ASIDE_BYTES),
            refusals: AtomicU64::new(0),
        }))
    }

    /// Pays for `bytes` until the charge is dropped.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], which is counted: so much is not left.
    pub fn charge(&self, bytes: u64) -> Result<Charge, OutOfMemory> {
        let mut charge = self.nothing();
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// A charge of no bytes, to grow.
    #[must_use]
    pub fn nothing(&self) -> Charge {
        Charge { budget: self.clone(), bytes: 0 }
    }

    /// Bytes that may be used.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit
    }

    /// Bytes in use.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.0.used.load(Relaxed)
    }

    /// The most bytes that were ever in use.
    #[must_use]
    pub fn peak_bytes(&self) -> u64 {
        self.0.peak.load(Relaxed)
    }

    /// Times that something was refused because the budget was used up.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.0.refusals.load(Relaxed)
    }

    // One thread steps a device; the counters are atomic so that the device may change threads.
    fn take(&self, bytes: u64) -> bool {
        let used = self.used_bytes().checked_add(bytes).filter(|used| *used <= self.0.limit);
        if let Some(used) = used {
            self.0.used.store(used, Relaxed);
            self.0.peak.fetch_max(used, Relaxed);
        }
        used.is_some()
    }
}

/// Bytes that are paid for. Dropping it gives them back.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: u64,
}

impl Charge {
    /// Pays for `more` bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`]; the charge stays as it was.
    pub fn grow(&mut self, more: u64) -> Result<(), OutOfMemory> {
        if self.try_grow(more) {
            return Ok(());
        }
        self.budget.0.refusals.fetch_add(1, Relaxed);
        Err(OutOfMemory)
    }

    /// Pays for `more` bytes, if there are so many: for what can do with less.
    pub fn try_grow(&mut self, more: u64) -> bool {
        let is_paid = self.budget.take(more);
        self.bytes += if is_paid { more } else { 0 };
        is_paid
    }

    /// Gives back what is paid beyond `bytes`.
    pub fn shrink_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.budget.0.used.fetch_sub(less, Relaxed);
        self.bytes -= less;
    }

    /// Bytes that are paid for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Memory that belongs to an object of a [`super::Table`], beside its place in it.
pub trait Footprint {
    /// Bytes that other rooms keep for each number of the table, in use or not.
    const PER_NUMBER: usize = 0;

    /// Bytes on the heap that the object owns, or that others keep for it, when it is created.
    fn heap_bytes(&self) -> u64 {
        0
    }
}

/// Bytes of a list of `count` entries of type `T`.
pub(crate) fn list_bytes<T>(count: usize) -> u64 {
    count as u64 * size_of::<T>() as u64
}

/// A list that pays for its room before it grows.
#[derive(Debug)]
pub struct PaidList<T> {
    items: Vec<T>,
    room: Charge,
}

impl<T> PaidList<T> {
    pub(crate) fn new(budget: &Budget) -> Self {
        Self { items: Vec::new(), room: budget.nothing() }
    }

    pub(crate) fn push(&mut self, item: T) -> Result<(), OutOfMemory> {
        let len = self.items.len();
        if len == self.items.capacity() {
            let capacity = (2 * len).max(4);
            // The old room is paid for until its content has moved.
            let room = self.room.budget.charge(list_bytes::<T>(capacity))?;
            self.items.try_reserve_exact(capacity - len).map_err(|_| OutOfMemory)?;
            self.room = room;
        }
        self.items.push(item);
        Ok(())
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.items.retain(keep);
    }
}

impl<T> std::ops::Deref for PaidList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_given_back_and_what_is_refused_is_counted() {
        let budget = Budget::new(SET_ASIDE_BYTES + 100);
        let mut first = budget.charge(60).expect("room");
        assert_eq!(budget.charge(41).err(), Some(OutOfMemory));
        assert_eq!((first.grow(41), first.bytes()), (Err(OutOfMemory), 60));
        first.grow(40).expect("room");
        first.shrink_to(10);
        assert_eq!(budget.used_bytes(), SET_ASIDE_BYTES + 10);
        assert_eq!(budget.charge(u64::MAX).err(), Some(OutOfMemory));
        drop(first);
        assert_eq!(budget.used_bytes(), SET_ASIDE_BYTES);
        assert_eq!((budget.peak_bytes(), budget.refusals()), (SET_ASIDE_BYTES + 100, 3));
    }

    #[test]
    fn a_list_pays_for_its_capacity_and_for_both_copies_while_it_moves() {
        let budget = Budget::new(SET_ASIDE_BYTES + 8 * (4 + 8));
        let mut list = PaidList::new(&budget);
        (0..8_u64).for_each(|item| list.push(item).expect("room"));
        assert_eq!(budget.used_bytes() - SET_ASIDE_BYTES, 64);
        assert_eq!(list.push(8), Err(OutOfMemory));
        assert_eq!(&list[..], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(budget.peak_bytes() - SET_ASIDE_BYTES, 96);
    }
}
