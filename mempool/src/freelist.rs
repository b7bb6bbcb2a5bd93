//! The shared free list of a pool: a bounded multi-producer, multi-consumer ring of indices.
//!
//! A list of *free objects* needs less than a general ring, and this is what makes it short:
//!
//! - There are `count` objects and at least as many slots, so it can never be full. A put takes
//!   its positions with one `fetch_add` and cannot fail: it is wait-free.
//! - `head` and `tail` count positions and never wrap (2^63 at a thousand million a second is
//!   292 years), so a compare-and-swap of `head` cannot be fooled by a value that came back (ABA).
//! - Each slot is one word: the *lap* on which it was written, and the index. A get reads its
//!   slots, checks that all are of its lap, and then takes them with one compare-and-swap of
//!   `head`. Nothing is written back: a slot is overwritten one lap later, and there are not enough
//!   objects for that to happen before it was taken.
//!
//! A put that was preempted between taking its positions and filling them hides the objects
//! behind it until it goes on; a get then answers "too few", as for an empty list. No thread ever
//! waits for another.
//!
//! Which accesses pair, and what would break:
//!
//! - A put stores its slots with release, a get loads them with acquire. Without that, the new
//!   owner could see what the object held before its last user was done with it.
//! - Swaps of `head` and additions to `tail` acquire and release, and a put loads `tail` with
//!   acquire. Without that, its check for double frees could see a put but not the get before it.
#![expect(unsafe_code, reason = "a put whose list may end with it")]

use std::mem::MaybeUninit;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, spin_loop};

/// Set in `tail` when no get can come any more.
const CLOSED: u64 = 1 << 63;

/// The outcome of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// The objects are in the list.
    Done,
    /// They are, the list is closed, and with them every object is back: the caller, and nobody
    /// else, is to call [`FreeList::wait_home`] and then to end the pool.
    LastHome,
    /// More objects than exist would be in the list, so one was freed twice. None was added.
    Overfull,
}

/// See the module's docs.
pub(crate) struct FreeList {
    /// Position of the next get.
    head: CachePadded<AtomicU64>,
    /// Position of the next put, and [`CLOSED`].
    tail: CachePadded<AtomicU64>,
    /// `lap << 32 | index`.
    slots: Box<[AtomicU64]>,
    mask: u64,
    log_slots: u32,
    count: u32,
}

impl FreeList {
    /// A list that holds the indices `0..count`.
    pub(crate) fn new(count: u32) -> Self {
        Self::starting_at(count, 0)
    }

    /// A list that holds the indices `0..count`, with `lap` laps already gone.
    fn starting_at(count: u32, lap: u64) -> Self {
        let len = u64::from(count).next_power_of_two();
        let log_slots = len.trailing_zeros();
        let first = lap << log_slots;
        let slots = (0..len)
            .map(|i| {
                let word = (Self::lap(first + i, log_slots) << 32) | i;
                // A slot past `count` holds the lap before, as if taken then.
                AtomicU64::new(if i < u64::from(count) { word } else { word.wrapping_sub(1 << 32) })
            })
            .collect();
        Self {
            head: CachePadded::new(AtomicU64::new(first)),
            tail: CachePadded::new(AtomicU64::new(first + u64::from(count))),
            slots,
            mask: len - 1,
            log_slots,
            count,
        }
    }

    /// The lap of a position, modulo 2^32, counted from 1 so that a zero slot is of no lap.
    fn lap(position: u64, log_slots: u32) -> u64 {
        ((position >> log_slots) + 1) & 0xffff_ffff
    }

    /// Number of objects, in the list or not.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// Objects in the list. Exact when no get or put is under way.
    pub(crate) fn len(&self) -> u32 {
        let tail = self.tail.load(Ordering::Acquire) & !CLOSED;
        let head = self.head.load(Ordering::Relaxed);
        u32::try_from(tail.saturating_sub(head)).unwrap_or(u32::MAX).min(self.count)
    }

    /// Takes as many objects as `out` has places, or none; `object` makes one of its index. When
    /// the answer is `false`, what `out` holds means nothing.
    #[inline]
    pub(crate) fn get_bulk<U>(
        &self,
        out: &mut [MaybeUninit<U>],
        mut object: impl FnMut(u32) -> U,
    ) -> bool {
        let n = out.len();
        if n > self.count as usize {
            return false;
        }
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (first, second) = self.runs(head, n);
            let (to_first, to_second) = out.split_at_mut(first.len());
            let lap = Self::lap(head, self.log_slots);
            let next = Self::lap(head + first.len() as u64, self.log_slots);
            let complete = take_run(first, lap, to_first, &mut object)
                && take_run(second, next, to_second, &mut object);
            if complete {
                let (order, failed) = (Ordering::AcqRel, Ordering::Acquire);
                match self.head.compare_exchange(head, head + n as u64, order, failed) {
                    Ok(_) => return true,
                    Err(now) => head = now,
                }
            } else {
                let now = self.head.load(Ordering::Acquire);
                if now == head {
                    return false;
                }
                head = now;
            }
        }
    }

    /// The slots of `n` positions from `first` on, in two runs.
    #[inline]
    fn runs(&self, first: u64, n: usize) -> (&[AtomicU64], &[AtomicU64]) {
        let at = (first & self.mask) as usize;
        let (front, back) = self.slots.split_at(at);
        let run = n.min(back.len());
        (&back[..run], &front[..n - run])
    }

    /// Gives back objects, while a handle keeps the list alive.
    #[cfg(test)]
    fn put_bulk(&self, indices: impl ExactSizeIterator<Item = u32>) -> Put {
        // SAFETY: `self` outlives the call.
        unsafe { Self::put(self, indices) }
    }

    /// Gives back objects.
    ///
    /// A raw pointer, since the list may be gone when this returns: once the last slot is filled,
    /// another thread may find the list complete and end it.
    ///
    /// # Safety
    /// `this` is live until the objects are in the list: a handle exists, or the caller owns
    /// these objects and no handle ever comes back.
    pub(crate) unsafe fn put(
        this: *const Self,
        indices: impl ExactSizeIterator<Item = u32>,
    ) -> Put {
        let n = indices.len() as u64;
        // SAFETY: live (caller). This reference is not used once slots are being filled.
        let list = unsafe { &*this };
        let (mask, log_slots, slots) = (list.mask, list.log_slots, list.slots.as_ptr());
        let count = u64::from(list.count);
        let tail = list.tail.load(Ordering::Acquire) & !CLOSED;
        if !fits(tail, list.head.load(Ordering::Relaxed), n, count) {
            return Put::Overfull;
        }
        let tail = list.tail.fetch_add(n, Ordering::AcqRel);
        let first = tail & !CLOSED;
        let last = tail & CLOSED != 0 && first + n == list.head.load(Ordering::Relaxed) + count;
        let mut position = first;
        let mut word = Self::lap(position, log_slots) << 32;
        for index in indices {
            // SAFETY: `position & mask` is below the number of slots, which live until this slot
            // is filled: whoever ends the list waits for all of them.
            let slot = unsafe { &*slots.add((position & mask) as usize) };
            slot.store(word | u64::from(index), Ordering::Release);
            position += 1;
            if position & mask == 0 {
                word = Self::lap(position, log_slots) << 32;
            }
        }
        if last { Put::LastHome } else { Put::Done }
    }

    /// Says that no get will come any more. `true` if every object is in the list already; the
    /// caller is then in the place of [`Put::LastHome`]. To be called once.
    ///
    /// A raw pointer, since after `false` the list may be gone when this returns.
    ///
    /// # Safety
    /// `this` is live, and no get is under way or comes later.
    pub(crate) unsafe fn close(this: *const Self) -> bool {
        // SAFETY: live (caller), until the flag is set; nothing is read after that.
        unsafe {
            // No get is left to move it.
            let all_home = (*this).head.load(Ordering::Relaxed) + u64::from((*this).count);
            (*this).tail.fetch_or(CLOSED, Ordering::AcqRel) == all_home
        }
    }

    /// Waits until the puts that are under way have filled their slots, which is the last thing
    /// that they do with the list.
    pub(crate) fn wait_home(&self) {
        let head = self.head.load(Ordering::Relaxed);
        for position in head..head + u64::from(self.count) {
            let slot = &self.slots[(position & self.mask) as usize];
            while slot.load(Ordering::Acquire) >> 32 != Self::lap(position, self.log_slots) {
                spin_loop();
            }
        }
    }
}

/// Reads the objects of a run of slots; `false` if one is not of lap `lap`.
#[inline]
fn take_run<U>(
    slots: &[AtomicU64],
    lap: u64,
    out: &mut [MaybeUninit<U>],
    object: &mut impl FnMut(u32) -> U,
) -> bool {
    for (slot, out) in slots.iter().zip(out) {
        let word = slot.load(Ordering::Acquire);
        if word >> 32 != lap {
            return false;
        }
        out.write(object(word as u32));
    }
    true
}

/// Whether `n` more objects fit, by a `tail` and a `head` that was read after it.
///
/// Each object counted in `tail` was taken before it was put, and with `tail` read with acquire,
/// a `head` past all those gets is visible: so without a double free the answer is yes. Others may
/// meanwhile have taken so much that `head` is past this `tail`.
fn fits(tail: u64, head: u64, n: u64, count: u64) -> bool {
    tail + n <= head + count
}

/// Takes `n` indices.
#[cfg(test)]
fn get(list: &FreeList, n: usize) -> Option<Vec<u32>> {
    let mut out = vec![MaybeUninit::uninit(); n];
    list.get_bulk(&mut out, |index| index).then(|| {
        // SAFETY: a get that succeeds fills all of `out`.
        out.iter().map(|index| unsafe { index.assume_init() }).collect()
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_put_fits_unless_more_than_all_would_be_there() {
        assert!(fits(3, 1, 1, 3) && fits(3, 2, 2, 3) && fits(0, 0, 3, 3));
        assert!(!fits(3, 0, 1, 3) && !fits(3, 2, 3, 3) && !fits(3, 3, 4, 3));
        // Overtaken: `head` went on while this put stood between its two loads.
        assert!(fits(2, 4, 1, 2) && fits(2, 40, 2, 2));
    }

    fn put(list: &FreeList, indices: &[u32]) -> Put {
        list.put_bulk(indices.iter().copied())
    }

    #[test]
    fn a_new_list_holds_each_index_once() {
        for count in [1, 2, 3, 4, 5, 31, 32, 33] {
            let list = FreeList::new(count);
            assert_eq!((list.len(), list.count()), (count, count));
            assert_eq!(get(&list, count as usize), Some((0..count).collect()));
            assert_eq!(list.len(), 0);
            assert_eq!(get(&list, 1), None);
            assert_eq!(get(&list, 0), Some(vec![]));
        }
    }

    #[test]
    fn a_get_is_all_or_nothing() {
        let list = FreeList::new(5);
        assert_eq!(get(&list, 6), None);
        assert_eq!(list.len(), 5);
        assert_eq!(get(&list, 3), Some(vec![0, 1, 2]));
        assert_eq!(get(&list, 3), None);
        assert_eq!(list.len(), 2);
        assert_eq!(put(&list, &[1]), Put::Done);
        assert_eq!(get(&list, 3), Some(vec![3, 4, 1]));
        assert_eq!(get(&list, 64), None);
    }

    #[test]
    fn laps_wrap_at_two_to_the_32() {
        for count in [1_u32, 3, 4] {
            for lap in [u64::from(u32::MAX) - 2, (1 << 32) - 1, 1 << 32, (1 << 40) - 1] {
                let list = FreeList::starting_at(count, lap);
                for _ in 0..40 {
                    let taken = get(&list, count as usize).unwrap();
                    assert_eq!(get(&list, 1), None);
                    assert_eq!(put(&list, &taken), Put::Done);
                }
                assert_eq!(list.len(), count);
            }
        }
    }

    #[test]
    fn more_than_exist_are_refused() {
        let list = FreeList::new(3);
        assert_eq!(put(&list, &[0]), Put::Overfull);
        let _ = get(&list, 2).unwrap();
        assert_eq!(put(&list, &[0, 1, 1]), Put::Overfull);
        assert_eq!(list.len(), 1);
        assert_eq!(put(&list, &[1, 0]), Put::Done);
        assert_eq!(get(&list, 3), Some(vec![2, 1, 0]));
    }

    #[test]
    fn the_last_put_after_closing_is_told_so() {
        let list = FreeList::new(3);
        assert!(get(&list, 2).is_some());
        // SAFETY: no get follows.
        assert!(!unsafe { FreeList::close(&raw const list) });
        assert_eq!(list.len(), 1);
        assert_eq!(put(&list, &[0]), Put::Done);
        assert_eq!(put(&list, &[1]), Put::LastHome);
        list.wait_home();
        let whole = FreeList::new(2);
        // SAFETY: no get follows.
        assert!(unsafe { FreeList::close(&raw const whole) });
        whole.wait_home();
    }

    #[test]
    fn threads_never_hold_the_same_index() {
        use std::sync::atomic::AtomicBool;
        let rounds = if cfg!(miri) { 30 } else { 30_000 };
        let list = FreeList::new(13);
        let held: Vec<AtomicBool> = (0..13).map(|_| AtomicBool::new(false)).collect();
        std::thread::scope(|scope| {
            for n in [1, 2, 5] {
                let (list, held) = (&list, &held);
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let Some(taken) = get(list, n) else {
                            std::thread::yield_now();
                            continue;
                        };
                        for i in &taken {
                            assert!(!held[*i as usize].swap(true, Ordering::Relaxed));
                        }
                        for i in &taken {
                            assert!(held[*i as usize].swap(false, Ordering::Relaxed));
                        }
                        assert_eq!(put(list, &taken), Put::Done);
                    }
                });
            }
        });
        assert_eq!(list.len(), 13);
        let mut all = get(&list, 13).unwrap();
        all.sort_unstable();
        assert_eq!(all, (0..13).collect::<Vec<_>>());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use loom::{
        sync::Arc,
        thread::{self, JoinHandle},
    };

    use super::*;

    /// The list, and a cell per object that only its holder may touch.
    struct Shared {
        list: FreeList,
        cells: Vec<loom::cell::UnsafeCell<u32>>,
    }

    fn shared(count: u32, lap: u64) -> Arc<Shared> {
        let cells = (0..count).map(|_| loom::cell::UnsafeCell::new(0)).collect();
        Arc::new(Shared { list: FreeList::starting_at(count, lap), cells })
    }

    /// Takes `n`, writes to them (loom reports a race), gives them back one by one.
    fn cycle(shared: &Shared, n: usize) -> bool {
        let Some(taken) = get(&shared.list, n) else { return false };
        for i in &taken {
            shared.cells[*i as usize].with_mut(|_| ());
        }
        for i in taken {
            assert_eq!(shared.list.put_bulk([i].into_iter()), Put::Done);
        }
        true
    }

    fn join(threads: Vec<JoinHandle<()>>) {
        for t in threads {
            t.join().unwrap();
        }
    }

    /// The only model too large to be walked whole: it is walked up to three preemptions.
    #[test]
    fn loom_two_cycles_on_each_of_two_threads() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let s = shared(2, u64::from(u32::MAX) - 1);
            let threads = (0..2)
                .map(|_| {
                    let s = s.clone();
                    thread::spawn(move || {
                        cycle(&s, 1);
                        cycle(&s, 1);
                    })
                })
                .collect();
            join(threads);
            assert_eq!(s.list.len(), 2);
            assert!(cycle(&s, 2));
        });
    }

    #[test]
    fn loom_bulk_against_single() {
        loom::model(|| {
            let s = shared(3, 0);
            let other = s.clone();
            let t = thread::spawn(move || {
                cycle(&other, 2);
            });
            cycle(&s, 1);
            cycle(&s, 2);
            t.join().unwrap();
            assert_eq!(s.list.len(), 3);
            assert!(cycle(&s, 3));
        });
    }

    /// Two objects come home while the last handle closes the list: exactly one of the three ends
    /// it, and after `wait_home` nobody touches it.
    #[test]
    fn loom_exactly_one_thread_ends_a_closed_list() {
        loom::model(|| {
            let s = shared(2, 0);
            let ended = std::sync::Arc::new(AtomicBool::new(false));
            assert_eq!(get(&s.list, 2), Some(vec![0, 1]));
            let threads = (0..2)
                .map(|index| {
                    let (s, ended) = (s.clone(), ended.clone());
                    thread::spawn(move || {
                        s.cells[index as usize].with_mut(|_| ());
                        if s.list.put_bulk([index].into_iter()) == Put::LastHome {
                            end(&s, &ended);
                        }
                    })
                })
                .collect();
            // SAFETY: no get follows.
            if unsafe { FreeList::close(&raw const s.list) } {
                end(&s, &ended);
            }
            join(threads);
            assert!(ended.load(Relaxed));
        });
    }

    fn end(s: &Shared, ended: &AtomicBool) {
        s.list.wait_home();
        assert!(!ended.swap(true, Relaxed), "ended twice");
        // Owning all: a put still under way would race with this.
        s.cells.iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}
