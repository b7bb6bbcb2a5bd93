//! [`Gate`]: which ranges of a namespace are being changed, on all cores.
//!
//! A namespace has none until a host fuses commands for it. From then on whatever changes its
//! blocks enters the gate first, and a fused pair enters it alone: it waits for those that entered
//! before it and overlap, and those that enter later wait for it. Who entered first goes first, so
//! nobody waits for ever.
//!
//! Commands that a core had begun before it knew the gate are not in it. Each core says when it
//! knows the gate and those have ended ([`Gate::see`]); until all have, no pair goes through.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a namespace: the first, and how many.
pub(super) type Range = (u64, u64);

/// All bytes of a namespace, for commands that change what is not known yet.
pub(super) const EVERYTHING: Range = (0, u64::MAX);

/// Openings are counted up to this, and from 0 again.
const MOST: u32 = u32::MAX >> 1;
/// The gate was not looked at yet.
const NEVER: u32 = MOST + 1;
/// It was found open.
const OPEN: u32 = MOST + 2;

/// The ranges of a namespace that are being changed.
#[derive(Debug)]
pub(super) struct Gate {
    entered: Mutex<Entered>,
    /// Times that it was opened for somebody: as long as it stays the same, who waits waits.
    openings: AtomicU32,
    /// Polling cores of the target.
    cores: usize,
}

#[derive(Debug, Default)]
struct Entered {
    next: u32,
    /// Cores that have said that they know of it.
    seen: usize,
    /// In the order in which they came, which is that of their numbers.
    list: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// No other that is there has it.
    number: u32,
    range: Range,
    is_alone: bool,
    /// Those before it that are in its way.
    blockers: usize,
}

impl Entry {
    fn is_in_the_way_of(&self, other: &Self) -> bool {
        (self.is_alone || other.is_alone) && overlap(self.range, other.range)
    }
}

/// The place of a command in a gate, until it is dropped. A part of every command's slot, and small
/// for that.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u32,
    /// Openings of the gate when it was looked at last, [`NEVER`] or [`OPEN`].
    looked_at: Cell<u32>,
}

impl Gate {
    /// For a target with so many cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { entered: Mutex::default(), openings: AtomicU32::new(0), cores }
    }

    fn lock(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A core changes nothing past it any more: each says so once.
    pub(super) fn see(&self) {
        self.lock().seen += 1;
        self.openings.fetch_add(1, Ordering::Release);
    }

    /// Stands behind all who are there already, alone or among others that are not alone.
    pub(super) fn enter(self: &Arc<Self>, range: Range, is_alone: bool) -> Pass {
        let mut entered = self.lock();
        let number = entered.next;
        entered.next = number.wrapping_add(1);
        let mut entry = Entry { number, range, is_alone, blockers: 0 };
        entry.blockers = entered.list.iter().filter(|it| it.is_in_the_way_of(&entry)).count();
        entered.list.push(entry);
        drop(entered);
        Pass { gate: Arc::clone(self), number, looked_at: Cell::new(NEVER) }
    }
}

impl Pass {
    /// Whether nobody is in the way any more. Once it is so it stays so. It costs a load as long as
    /// the gate has not been opened for anybody since the last look.
    pub(super) fn is_open(&self) -> bool {
        let openings = self.gate.openings.load(Ordering::Acquire) & MOST;
        let looked_at = self.looked_at.get();
        if looked_at != OPEN && looked_at != openings {
            self.looked_at.set(if self.look() { OPEN } else { openings });
        }
        self.looked_at.get() == OPEN
    }

    fn look(&self) -> bool {
        let entered = self.gate.lock();
        let own = entered.place(self.number).and_then(|at| entered.list.get(at));
        own.is_some_and(|own| {
            own.blockers == 0 && (!own.is_alone || entered.seen >= self.gate.cores)
        })
    }
}

impl Entered {
    /// Where a number is: they wrap, and the first in the list is the oldest.
    fn place(&self, number: u32) -> Option<usize> {
        let oldest = self.list.first()?.number;
        let age = |number: u32| number.wrapping_sub(oldest);
        self.list.binary_search_by_key(&age(number), |it| age(it.number)).ok()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut entered = self.gate.lock();
        let Some(at) = entered.place(self.number) else { return };
        let own = entered.list.remove(at);
        let mut has_opened = false;
        for it in entered.list[at..].iter_mut().filter(|it| own.is_in_the_way_of(it)) {
            it.blockers -= 1;
            has_opened |= it.blockers == 0;
        }
        if has_opened {
            self.gate.openings.fetch_add(1, Ordering::Release);
        }
    }
}

fn overlap(one: Range, other: Range) -> bool {
    let ends = |it: Range| it.0.saturating_add(it.1);
    one.0 < ends(other) && other.0 < ends(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_waits_for_those_before_and_is_waited_for_by_those_behind() {
        let gate = Arc::new(Gate::new(2));
        // Numbers wrap among them, and openings.
        gate.lock().next = u32::MAX - 1;
        gate.openings.store(MOST - 1, Ordering::Relaxed);
        let write = gate.enter((0, 4096), false);
        let beside = gate.enter((2048, 4096), false);
        let alone = gate.enter((4096, 512), true);
        let behind = gate.enter((4000, 97), false);
        let far = gate.enter((8192, 512), false);
        let next = gate.enter((4607, 1), true);
        let all = gate.enter(EVERYTHING, false);
        let open = |passes: &[&Pass]| passes.iter().map(|it| it.is_open()).collect::<Vec<_>>();
        // Two that are not alone overlap, and do not wait.
        assert_eq!(open(&[&write, &beside, &far]), [true; 3]);
        drop(beside);
        assert!(!alone.is_open(), "the cores have not seen the gate");
        gate.see();
        assert!(!alone.is_open());
        gate.see();
        // A byte beside is no overlap; one byte in common is.
        assert_eq!(open(&[&alone, &behind, &next, &all]), [true, false, false, false]);
        // As long as nobody leaves nobody asks.
        let locked = gate.lock();
        assert_eq!(open(&[&alone, &behind, &next, &all]), [true, false, false, false]);
        drop(locked);
        drop(alone);
        assert_eq!(open(&[&behind, &next, &all]), [true, true, false]);
        drop(next);
        assert_eq!(open(&[&behind, &all, &far, &write]), [true; 4]);
        drop((write, behind, far, all));
        assert!(gate.lock().list.is_empty());
    }
}
