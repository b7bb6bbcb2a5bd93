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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a namespace: the first, and how many.
pub(super) type Range = (u64, u64);

/// All bytes of a namespace, for commands that change what is not known yet.
pub(super) const EVERYTHING: Range = (0, u64::MAX);

/// What no gate has counted to.
const NEVER: u64 = u64::MAX;

/// The ranges of a namespace that are being changed.
#[derive(Debug)]
pub(super) struct Gate {
    entered: Mutex<Entered>,
    /// Times that it was opened for somebody: as long as it stays the same, who waits waits.
    openings: AtomicU64,
    /// Polling cores of the target.
    cores: usize,
}

#[derive(Debug, Default)]
struct Entered {
    next: u64,
    /// Cores that have said that they know of it.
    seen: usize,
    /// In the order in which they came, which is that of their numbers.
    list: Vec<Entry>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    number: u64,
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

/// The place of a command in a gate, until it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    number: u64,
    is_open: Cell<bool>,
    /// Openings of the gate when it was looked at last.
    looked_at: Cell<u64>,
}

impl Gate {
    /// For a target with so many cores.
    pub(super) fn new(cores: usize) -> Self {
        Self { entered: Mutex::default(), openings: AtomicU64::new(0), cores }
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
        entered.next += 1;
        let mut entry = Entry { number, range, is_alone, blockers: 0 };
        entry.blockers = entered.list.iter().filter(|it| it.is_in_the_way_of(&entry)).count();
        entered.list.push(entry);
        drop(entered);
        let (is_open, looked_at) = (Cell::new(false), Cell::new(NEVER));
        Pass { gate: Arc::clone(self), number, is_open, looked_at }
    }
}

impl Pass {
    /// Whether nobody is in the way any more. Once it is so it stays so. It costs a load as long as
    /// the gate has not been opened for anybody since the last look.
    pub(super) fn is_open(&self) -> bool {
        let openings = self.gate.openings.load(Ordering::Acquire);
        if !self.is_open.get() && self.looked_at.replace(openings) != openings {
            self.is_open.set(self.look());
        }
        self.is_open.get()
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
    fn place(&self, number: u64) -> Option<usize> {
        self.list.binary_search_by_key(&number, |it| it.number).ok()
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
