//! Polling of completion queues: many completions at once, or one at a time by functions.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;

use ferrocx_verbs_lite::{CqEntry, Notify};

use super::cq::{Current, Inner, Later, NOBODY, Queue, WANTED, WANTED_ANY, this_thread};
use super::lock::Held;
use super::pair::Out;
use crate::abi::{ibv_cq, ibv_wc};

/// A program that polls, as far as it has room: a completion may end several requests, or none that
/// is reported.
struct Now<'a> {
    out: &'a mut [MaybeUninit<ibv_wc>],
    count: usize,
    /// Where those go that `out` has no room for.
    waiting: &'a mut VecDeque<(ibv_wc, u64)>,
}

impl Out for Now<'_> {
    #[inline(always)]
    fn ticks(&self, _entry: &CqEntry<'_>) -> u64 {
        0
    }

    #[inline(always)]
    fn put(&mut self, wc: ibv_wc, _ticks: u64) {
        match self.out.get_mut(self.count) {
            Some(place) => {
                place.write(wc);
                self.count += 1;
            }
            None => self.waiting.push_back((wc, 0)),
        }
    }

    #[inline(always)]
    fn is_enough(&self) -> bool {
        self.count == self.out.len()
    }
}

impl Queue {
    /// Fills `out` with completions, as many as there are; their number. It is [`Queue::take`] for
    /// a program that polls now, written so that requests that went well leave nothing in memory
    /// but what the program reads.
    #[inline(always)]
    fn poll(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        let mut inner = self.inner.lock();
        if self.is_stamped || !inner.waiting.is_empty() {
            return self.poll_odd(&mut inner, out);
        }
        let Inner { cq, waiting, seen, .. } = &mut *inner;
        let (mut taking, mut count) = (cq.taking(), 0);
        let Some(mut entry) = taking.next() else { return 0 };
        loop {
            let index = entry.user_index();
            let Some(member) = seen.find(index, &self.shared) else {
                let mut now = Now { out, count, waiting };
                self.end_xrc(entry, &mut now);
                count = now.count;
                if count == out.len() {
                    return count;
                }
                let Some(next) = taking.next() else { return count };
                entry = next;
                continue;
            };
            let mut pair = member.pair.lock();
            loop {
                // There is always a place here.
                let Some(place) = out.get_mut(count) else { return count };
                match pair.end_one(entry, place) {
                    Ok(()) => count += 1,
                    Err(entry) => {
                        let mut now = Now { out, count, waiting };
                        pair.end_any(entry, &mut now);
                        count = now.count;
                    }
                }
                if count == out.len() {
                    return count;
                }
                let Some(next) = taking.next() else { return count };
                entry = next;
                if entry.user_index() != index {
                    break;
                }
            }
        }
    }

    /// Does what [`Queue::poll`] does where completions wait, or are stamped.
    #[cold]
    #[inline(never)]
    fn poll_odd(&self, inner: &mut Inner, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        if self.is_stamped {
            return self.poll_stamped(inner, out);
        }
        let Inner { cq, waiting, seen, .. } = inner;
        let mut now = Now { count: 0, out, waiting };
        while !now.is_enough()
            && let Some((wc, _)) = now.waiting.pop_front()
        {
            now.put(wc, 0);
        }
        if !now.is_enough() {
            self.take(cq, seen, &mut now);
        }
        now.count
    }

    /// Does what [`Queue::poll`] does where those that `out` has no room for keep their time.
    #[inline(never)]
    fn poll_stamped(&self, inner: &mut Inner, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        self.take_all(inner);
        let count = out.len().min(inner.waiting.len());
        for (place, (wc, _)) in out.iter_mut().zip(inner.waiting.drain(..count)) {
            place.write(wc);
        }
        count
    }

    /// Reads the next completion into `current`; whether there was one. The device is told of it
    /// when polling ends.
    #[inline(always)]
    fn advance(&self, inner: &mut Inner) -> bool {
        if self.is_stamped || !inner.waiting.is_empty() {
            return self.advance_odd(inner);
        }
        let Inner { cq, waiting, seen, current, .. } = inner;
        let mut taking = cq.taking();
        let Some(entry) = taking.next() else { return false };
        let mut later = Later { waiting, is_stamped: false };
        match seen.find(entry.user_index(), &self.shared) {
            Some(member) => {
                let wc: *mut MaybeUninit<ibv_wc> = (&raw mut current.wc).cast();
                let mut pair = member.pair.lock();
                // SAFETY: a completion of ours, which `end_one` leaves one.
                match pair.end_one(entry, unsafe { &mut *wc }) {
                    Ok(()) => {
                        taking.later();
                        return true;
                    }
                    Err(entry) => pair.end_any(entry, &mut later),
                }
            }
            None => self.end_xrc(entry, &mut later),
        }
        taking.later();
        self.advance_odd(inner)
    }

    /// Does what [`Queue::advance`] does where completions wait, or are stamped.
    #[cold]
    #[inline(never)]
    fn advance_odd(&self, inner: &mut Inner) -> bool {
        if inner.waiting.is_empty() {
            self.take_all(inner);
        }
        let Some((wc, ticks)) = inner.waiting.pop_front() else { return false };
        inner.current = Current { wc, ticks };
        true
    }

    /// Locks the queue for a thread that begins to poll, if nobody has it.
    #[inline(always)]
    pub(super) fn try_start(&self) -> Option<Held<'_, Inner>> {
        self.inner.try_lock()
    }

    /// Waits until it can be locked.
    #[cold]
    #[inline(never)]
    pub(super) fn start(&self) -> Held<'_, Inner> {
        self.inner.lock()
    }

    /// Gives the model its turn where nothing is there to be read.
    #[inline(always)]
    pub(super) fn look_ahead<'a>(&'a self, mut inner: Held<'a, Inner>) -> Option<Held<'a, Inner>> {
        if !inner.waiting.is_empty() {
            return Some(inner);
        }
        // Notes that there was none.
        drop(inner.cq.taking());
        drop(inner);
        self.shared.node.turn(&self.polled).then(|| self.inner.lock())
    }

    /// Reads the first completion for the thread that polls; `None` if there is none.
    #[inline(always)]
    pub(super) fn first_poll<'a>(&'a self, mut inner: Held<'a, Inner>) -> Option<Held<'a, Inner>> {
        if !self.advance(&mut inner) {
            // What was read may have been nobody's.
            inner.cq.free_taken();
            return None;
        }
        #[cfg(debug_assertions)]
        {
            inner.poller = Some(std::thread::current().id());
        }
        self.polled_by.store(this_thread(), Ordering::Relaxed);
        Some(inner)
    }

    /// Reads the next completion for the thread that polls, which keeps the queue; whether there
    /// was one.
    #[inline(always)]
    pub(super) fn next_poll(&self, inner: &mut Inner) -> bool {
        self.advance(inner) || self.look_again(inner)
    }

    /// Tells the device of what was read, lets the model work, and looks once more.
    #[cold]
    #[inline(never)]
    fn look_again(&self, inner: &mut Inner) -> bool {
        inner.cq.free_taken();
        self.shared.node.step() && self.advance(inner)
    }

    /// Ends the polling of this thread.
    #[inline(always)]
    pub(super) fn end_poll(&self, inner: Held<'_, Inner>) {
        inner.cq.free_taken();
        let was = self.polled_by.swap(NOBODY, Ordering::AcqRel);
        if was & WANTED != 0 {
            self.arm_late(inner, was);
        }
    }

    /// Arms the queue as another thread has asked while this one polled. What has come since is
    /// reported at once. Other calls of this thread may have taken it from the device, which does
    /// not report it then: of what waits for the program, the library tells, whenever it came.
    #[cold]
    #[inline(never)]
    fn arm_late(&self, mut inner: Held<'_, Inner>, was: usize) {
        if inner.waiting.is_empty() {
            let is_any = was & WANTED_ANY != 0;
            return self.arm(&mut inner, if is_any { Notify::Next } else { Notify::Solicited });
        }
        drop(inner);
        self.fire();
    }

    /// Reads the completion that the thread has which polls.
    ///
    /// # Safety
    /// That is the calling one.
    #[inline(always)]
    pub(super) unsafe fn current<T>(&self, read: impl FnOnce(&Current) -> T) -> T {
        // SAFETY: the caller's promise.
        let inner = unsafe { self.kept() };
        let value = read(&inner.current);
        inner.keep();
        value
    }

    /// The queue, for the thread that polls.
    ///
    /// # Safety
    /// That is the calling one.
    #[inline(always)]
    pub(super) unsafe fn kept(&self) -> Held<'_, Inner> {
        // SAFETY: the caller's promise: `start_poll` has left it to this thread, of which no other
        // call uses it.
        unsafe { self.inner.kept() }
    }
}

pub(crate) unsafe extern "C" fn poll_cq(
    cq: *mut ibv_cq,
    count: c_int,
    out: *mut MaybeUninit<ibv_wc>,
) -> c_int {
    let Ok(count) = usize::try_from(count) else { return -1 };
    if count == 0 {
        return 0;
    }
    let queue = promised!(Queue::of(cq));
    if queue.shared.here().is_err() {
        return -1;
    }
    let out = promised!(std::slice::from_raw_parts_mut(out, count));
    let mut found = queue.poll(out);
    if found == 0 && queue.shared.node.turn(&queue.polled) {
        found = queue.poll(out);
    }
    found as c_int
}
