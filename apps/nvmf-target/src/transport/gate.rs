//! [`Gate`]: which ranges of a namespace are being changed, on all cores.
//!
//! A namespace has none until a host fuses commands for it. From then on whatever changes its
//! blocks enters the gate first, and a fused pair enters it alone: it waits for those that entered
//! before it and overlap, and those that enter later wait for it. Who entered first goes first, so
//! nobody waits for ever. While no pair is in it nobody looks at the others there.
//!
//! Commands that a core had begun before it knew the gate are not in it. Each core says when it
//! knows the gate and those have ended ([`Gate::see`]); until all have, no pair goes through.
//!
//! When no pair was in it for [`QUIET`] it is taken down, and no pair enters it any more; the next
//! one makes another gate. Cores hear of that one after the other, which is no matter: what one
//! changes past the gate while another still enters it, and what is still in it, no pair meets
//! before all cores have seen the new gate, and what they had begun before has ended.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a namespace: the first, and how many.
pub(super) type Range = (u64, u64);

/// All bytes of a namespace, for commands that change what is not known yet.
pub(super) const EVERYTHING: Range = (0, u64::MAX);

/// How long a gate stays without a pair: longer than it takes cluster file systems to show, by one,
/// that they are there.
pub(super) const QUIET: Duration = Duration::from_secs(5);

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

#[derive(Debug)]
struct Entered {
    next: u64,
    /// Cores that have said that they know of it.
    seen: usize,
    /// By place; a place is used again.
    list: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// How many of them are alone, and when the last of these came or went.
    alone: usize,
    last_alone: Instant,
    /// It was taken down.
    is_down: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Who came later has a higher one.
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

/// The place of a command in a gate, until it is dropped. A part of every command's slot, and small
/// for that.
#[derive(Debug)]
pub(super) struct Pass {
    gate: Arc<Gate>,
    place: u32,
    /// Openings of the gate when it was looked at last, [`NEVER`] or [`OPEN`].
    looked_at: Cell<u32>,
}

impl Gate {
    /// For a target with so many cores.
    pub(super) fn new(cores: usize) -> Self {
        let entered = Entered {
            next: 0,
            seen: 0,
            list: Vec::new(),
            free: Vec::new(),
            alone: 0,
            last_alone: Instant::now(),
            is_down: false,
        };
        Self { entered: Mutex::new(entered), openings: AtomicU32::new(0), cores }
    }

    fn lock(&self) -> MutexGuard<'_, Entered> {
        self.entered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A core changes nothing past it any more: each says so once.
    pub(super) fn see(&self) {
        self.lock().seen += 1;
        self.openings.fetch_add(1, Ordering::Release);
    }

    /// Stands behind all who are there already, alone or among others that are not alone. `None`
    /// for who wants to be alone at a gate that was taken down.
    pub(super) fn enter(self: &Arc<Self>, range: Range, is_alone: bool) -> Option<Pass> {
        let mut entered = self.lock();
        if is_alone && entered.is_down {
            return None;
        }
        let number = entered.next;
        entered.next += 1;
        let mut entry = Entry { number, range, is_alone, blockers: 0 };
        if is_alone || entered.alone > 0 {
            let all = entered.list.iter().flatten();
            entry.blockers = all.filter(|it| it.is_in_the_way_of(&entry)).count();
        }
        if is_alone {
            (entered.alone, entered.last_alone) = (entered.alone + 1, Instant::now());
        }
        let looked_at = if is_alone || entry.blockers > 0 { NEVER } else { OPEN };
        let place = match entered.free.pop() {
            Some(place) => {
                entered.list[place as usize] = Some(entry);
                place
            }
            None => {
                entered.list.push(Some(entry));
                entered.list.len() as u32 - 1
            }
        };
        drop(entered);
        Some(Pass { gate: Arc::clone(self), place, looked_at: Cell::new(looked_at) })
    }

    /// Takes it down if no pair was in it for [`QUIET`] at this time; whether it did.
    pub(super) fn take_down(&self, now: Instant) -> bool {
        let mut entered = self.lock();
        entered.is_down |=
            entered.alone == 0 && now.saturating_duration_since(entered.last_alone) >= QUIET;
        entered.is_down
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

    /// Whether it is a place in this gate.
    pub(super) fn is_of(&self, gate: &Arc<Gate>) -> bool {
        Arc::ptr_eq(&self.gate, gate)
    }

    fn look(&self) -> bool {
        let entered = self.gate.lock();
        let own = entered.list.get(self.place as usize).and_then(Option::as_ref);
        own.is_some_and(|own| {
            own.blockers == 0 && (!own.is_alone || entered.seen >= self.gate.cores)
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut entered = self.gate.lock();
        let own = entered.list.get_mut(self.place as usize).and_then(Option::take);
        let Some(own) = own else { return };
        entered.free.push(self.place);
        if own.is_alone {
            (entered.alone, entered.last_alone) = (entered.alone - 1, Instant::now());
        } else if entered.alone == 0 {
            return;
        }
        let mut has_opened = false;
        let behind = entered.list.iter_mut().flatten().filter(|it| it.number > own.number);
        for it in behind.filter(|it| own.is_in_the_way_of(it)) {
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
        // Openings wrap among them.
        gate.openings.store(MOST - 1, Ordering::Relaxed);
        let enter = |range, is_alone| gate.enter(range, is_alone).unwrap();
        let write = enter((0, 4096), false);
        let beside = enter((2048, 4096), false);
        let alone = enter((4096, 512), true);
        let behind = enter((4000, 97), false);
        let far = enter((8192, 512), false);
        let next = enter((4607, 1), true);
        let all = enter(EVERYTHING, false);
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
        let entered = gate.lock();
        assert_eq!((entered.free.len(), entered.list.len(), entered.alone), (7, 7, 0));
    }

    #[test]
    fn places_are_used_again_and_who_came_later_is_later() {
        let gate = Arc::new(Gate::new(0));
        let enter = |range, is_alone| gate.enter(range, is_alone).unwrap();
        let first = enter((0, 512), false);
        let second = enter((0, 512), false);
        drop(first);
        let alone = enter((0, 512), true);
        assert!(!alone.is_open(), "it came behind the second, whose place is behind its own");
        // It waits for who is alone, in a place behind or before.
        let third = enter((0, 512), false);
        drop(second);
        let fourth = enter((0, 512), false);
        assert_eq!([&alone, &third, &fourth].map(Pass::is_open), [true, false, false]);
        drop(alone);
        assert_eq!([&third, &fourth].map(Pass::is_open), [true; 2]);
        assert_eq!(gate.lock().list.len(), 3);
    }

    #[test]
    fn a_gate_without_pairs_is_taken_down_and_lets_none_in_then() {
        let gate = Arc::new(Gate::new(0));
        let now = Instant::now();
        let write = gate.enter((0, 512), false).unwrap();
        let alone = gate.enter((512, 512), true).unwrap();
        let next = gate.enter((0, 512), true).unwrap();
        assert!(!gate.take_down(now + 2 * QUIET), "pairs are in it");
        drop((alone, next));
        let now = Instant::now();
        assert!(!gate.take_down(now), "one has just left");
        assert!(gate.take_down(now + 2 * QUIET));
        assert!(gate.enter((0, 512), true).is_none());
        // A core that does not know yet goes on.
        assert!(gate.enter((0, 512), false).unwrap().is_open() && write.is_open());
    }
}
