//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use ferrocx_verbs_lite as verbs;
use ferrocx_verbs_lite::{CqEntry, Notify};

use super::channel::Channel;
use super::context::{Context, Kind, Shared};
use super::life::Users;
use super::lock::{Held, Lock};
use super::pair::{Member, Out};
use super::shown::Shown;
use super::wait::{GO_ON, MOMENT, nap, waits};
use super::{Errno, give_out, set_errno, signals, take_back, tried};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc};
use crate::files;
use crate::node::{Polled, lock};

/// The thread that polls a queue which none does: one that is none.
pub(super) const NOBODY: usize = 0;

/// Beside the thread that polls a queue: others have asked for an event of solicited completions,
/// or of any, when it ends. Names of threads are addresses of structures, multiples of 4.
pub(super) const WANTED: usize = WANTED_SOLICITED | WANTED_ANY;
const WANTED_SOLICITED: usize = 1;
pub(super) const WANTED_ANY: usize = 2;

/// The name that the system's library gives to the calling thread.
#[inline(always)]
pub(super) fn this_thread() -> usize {
    // SAFETY: it has no conditions.
    unsafe { libc::pthread_self() as usize }
}

/// Entries of the smallest queue: a page of them.
const LEAST_ENTRIES: u32 = 64;

/// A completion queue as the program has it.
#[repr(C)]
pub(super) struct Queue {
    pub(super) face: Shown<ibv_cq_ex>,
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Lock<Inner>,
    /// The thread between `start_poll` and `end_poll`, which has kept the lock.
    pub(super) polled_by: AtomicUsize,
    /// When it was last polled in vain.
    pub(super) polled: Polled,
    /// Events of the device that were taken from the channel since the queue was armed.
    news: AtomicU32,
    /// Events that the library made itself, and that were not taken: the device, which counts its
    /// own, knows nothing of them.
    own: AtomicU32,
    /// Events that were taken from the channel; `face` has how many the program acknowledged.
    pub(super) given: AtomicU32,
    /// Completions say when they were made.
    pub(super) is_stamped: bool,
    /// Queue pairs that complete here.
    pub(super) users: Users,
}

/// A completion that a program reads by functions, and when it was made, in ticks of the device.
#[derive(Debug, Default)]
pub(super) struct Current {
    pub(super) wc: ibv_wc,
    pub(super) ticks: u64,
}

/// What the lock of a queue guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) cq: verbs::Cq,
    /// Completions that were taken from the device before the program asked for them, and when they
    /// were made, in ticks of the device: 0 where nobody asked for it.
    pub(super) waiting: VecDeque<(ibv_wc, u64)>,
    pub(super) seen: Seen,
    /// What is read between `start_poll` and `end_poll`.
    pub(super) current: Current,
    /// The thread between them, by a name that no other ever has.
    #[cfg(debug_assertions)]
    pub(super) poller: Option<std::thread::ThreadId>,
}

/// What the lock of a queue guards, for calls other than those that poll: a thread may make them
/// between its `start_poll` and its `end_poll`, too.
pub(super) struct Use<'a> {
    held: ManuallyDrop<Held<'a, Inner>>,
    /// It was locked for this.
    is_locked: bool,
}

impl Deref for Use<'_> {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.held
    }
}

impl DerefMut for Use<'_> {
    fn deref_mut(&mut self) -> &mut Inner {
        &mut self.held
    }
}

impl Drop for Use<'_> {
    fn drop(&mut self) {
        if self.is_locked {
            // SAFETY: it is dropped here alone, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.held) }
        }
    }
}

/// Queue pairs of which completions were taken, as far as they have places: the table of all is
/// locked only for others.
#[derive(Debug, Default)]
pub(super) struct Seen([Option<Arc<Member>>; Self::PLACES]);

impl Seen {
    const PLACES: usize = 32;

    /// The queue pair whose completions have a number.
    #[inline(always)]
    pub(super) fn find(&mut self, index: u32, shared: &Shared) -> Option<&Member> {
        let place = &mut self.0[index as usize % Self::PLACES];
        if place.as_ref().is_none_or(|member| member.index != Some(index)) {
            look_up(place, index, shared)?;
        }
        place.as_deref()
    }

    /// Forgets a queue pair, which is in the table no more.
    pub(super) fn forget(&mut self, index: u32) {
        self.0[index as usize % Self::PLACES].take_if(|member| member.index == Some(index));
    }
}

/// Puts the queue pair with a number into its place.
#[cold]
#[inline(never)]
fn look_up(place: &mut Option<Arc<Member>>, index: u32, shared: &Shared) -> Option<()> {
    let members = shared.members.read().unwrap_or_else(PoisonError::into_inner);
    *place = Some(Arc::clone(members.get(index as usize)?.as_ref()?));
    Some(())
}

/// A program that is to poll later.
pub(super) struct Later<'a> {
    pub(super) waiting: &'a mut VecDeque<(ibv_wc, u64)>,
    pub(super) is_stamped: bool,
}

impl Out for Later<'_> {
    fn ticks(&self, entry: &CqEntry<'_>) -> u64 {
        if self.is_stamped { entry.ticks() } else { 0 }
    }

    fn put(&mut self, wc: ibv_wc, ticks: u64) {
        self.waiting.push_back((wc, ticks));
    }

    fn is_enough(&self) -> bool {
        false
    }
}

impl Queue {
    /// # Safety
    /// The module's: `face` is a live queue.
    pub(super) unsafe fn of<'a>(face: *mut ibv_cq) -> &'a Self {
        promised!(&*face.cast::<Self>())
    }

    /// The channel that its events come to, which may be null, and its number there.
    fn reports(&self) -> (*mut ibv_comp_channel, u32) {
        let face = self.face.get();
        promised!(((*face).base.channel, (*face).base.handle))
    }

    /// What its lock guards.
    pub(super) fn inner(&self) -> Use<'_> {
        let is_locked = self.polled_by.load(Ordering::Relaxed) & !WANTED != this_thread();
        let held = if is_locked {
            self.inner.lock()
        } else {
            // SAFETY: this thread has kept it between `start_poll` and `end_poll`, and is in a call
            // between them, which does not poll. That its name is not the one of a thread that
            // ended in between is the program's promise.
            let kept = unsafe { self.inner.kept() };
            #[cfg(debug_assertions)]
            assert_eq!(
                kept.poller,
                Some(std::thread::current().id()),
                "a thread that had called ibv_start_poll ended without ibv_end_poll"
            );
            kept
        };
        Use { held: ManuallyDrop::new(held), is_locked }
    }

    /// Arms the queue behind the events that were taken.
    pub(super) fn arm(&self, inner: &mut Inner, what: Notify) {
        for _ in 0..self.news.swap(0, Ordering::AcqRel) {
            inner.cq.ack_event();
        }
        inner.cq.arm(what);
        // The device reports at once what nobody has polled yet, and programs count on it: UCX
        // sleeps after it has armed. Of what was taken from the device already, it does not know.
        if !inner.waiting.is_empty() {
            self.fire();
        }
    }

    /// Has an event come that the device does not raise.
    pub(super) fn fire(&self) {
        let (channel, number) = self.reports();
        if !channel.is_null() {
            self.own.fetch_add(1, Ordering::AcqRel);
            promised!(Channel::of(channel)).fire(number);
        }
    }

    /// Notes that an event was taken from the channel. Where one of the device's waits there beside
    /// one of the library's, the first counts as the library's: the device ignores who arms after
    /// that, who finds the other.
    fn count_event(&self) {
        self.given.fetch_add(1, Ordering::AcqRel);
        let less = |own: u32| own.checked_sub(1);
        if self.own.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_err() {
            self.news.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Leaves the arming to another thread that polls, if one does: nobody waits for its end.
    fn asks_poller(&self, what: usize) -> bool {
        let ask = |by: usize| (by != NOBODY && by & !WANTED != this_thread()).then_some(by | what);
        self.polled_by.fetch_update(Ordering::AcqRel, Ordering::Acquire, ask).is_ok()
    }

    /// Takes completions from the device and gives out what they end, until there are none or `out`
    /// has enough. Each queue pair is locked once for completions that follow each other.
    #[inline(always)]
    pub(super) fn take(&self, cq: &mut verbs::Cq, seen: &mut Seen, out: &mut impl Out) {
        let mut taking = cq.taking();
        let Some(mut entry) = taking.next() else { return };
        loop {
            let index = entry.user_index();
            let Some(member) = seen.find(index, &self.shared) else {
                self.end_xrc(entry, out);
                if out.is_enough() {
                    return;
                }
                let Some(next) = taking.next() else { return };
                entry = next;
                continue;
            };
            let mut pair = member.pair.lock();
            loop {
                pair.end(entry, out);
                if out.is_enough() {
                    return;
                }
                let Some(next) = taking.next() else { return };
                entry = next;
                if entry.user_index() != index {
                    break;
                }
            }
        }
    }

    /// Gives out what an entry ends whose number no queue pair has.
    #[cold]
    pub(super) fn end_xrc(&self, entry: CqEntry<'_>, out: &mut impl Out) {
        let ticks = out.ticks(&entry);
        self.shared.end_xrc(entry.read(), |wc| out.put(wc, ticks));
    }

    /// Takes everything that the device has written.
    pub(super) fn take_all(&self, inner: &mut Inner) {
        let Inner { cq, waiting, seen, .. } = inner;
        self.take(cq, seen, &mut Later { waiting, is_stamped: self.is_stamped });
    }

    /// Gives the device's queue more entries; what stands in it waits for the program.
    fn grow(&self, inner: &mut Inner, entries: u32) -> Result<(), Errno> {
        let Inner { cq, waiting, .. } = inner;
        let members = self.shared.members.read().unwrap_or_else(PoisonError::into_inner);
        cq.resize(entries, |completion, ticks| {
            let member = members.get(completion.user_index() as usize).and_then(Option::as_ref);
            let ticks = if self.is_stamped { ticks } else { 0 };
            let wait = |wc| waiting.push_back((wc, ticks));
            match member {
                Some(member) => member.pair.lock().end_rest(completion, wait),
                None => self.shared.end_xrc(completion, wait),
            }
        })?;
        Ok(())
    }
}

/// Makes a queue; `cqe` is how many entries the program wants at least.
pub(super) fn create(
    context: *mut ibv_context,
    cqe: u32,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    (is_stamped, make): (bool, fn(ibv_cq) -> ibv_cq_ex),
) -> Result<*mut ibv_cq, Errno> {
    let shared = promised!(Context::here(context))?;
    if cqe == 0 {
        return Err(Errno::INVALID);
    }
    // One entry is never used by programs that fill their queue to the brim: overruns are fatal.
    let wanted = cqe.checked_add(1).ok_or(Errno::INVALID)?;
    let entries = wanted.max(LEAST_ENTRIES);
    let rdma = &shared.node.context;
    let reports = if channel.is_null() { None } else { Some(promised!(Channel::of(channel))) };
    let cq = match reports {
        Some(channel) => lock(&channel.inner).create_cq(rdma, entries)?,
        None => rdma.create_cq_unreserved(entries, None)?,
    };
    let number = cq.number();
    let face = ibv_cq {
        context,
        channel,
        cq_context,
        handle: number,
        cqe: size_of_queue(wanted),
        locks: [0; _],
        comp_events_completed: AtomicU32::new(0),
        async_events_completed: AtomicU32::new(0),
    };
    let queue: *mut ibv_cq = give_out(Queue {
        face: Shown::new(make(face)),
        shared: Arc::clone(shared),
        inner: Lock::new(Inner {
            cq,
            waiting: VecDeque::new(),
            seen: Seen::default(),
            current: Current::default(),
            #[cfg(debug_assertions)]
            poller: None,
        }),
        polled_by: AtomicUsize::new(NOBODY),
        polled: Polled::default(),
        news: AtomicU32::new(0),
        own: AtomicU32::new(0),
        given: AtomicU32::new(0),
        is_stamped,
        users: Users::default(),
    });
    shared.enlist(Kind::Cq, number, queue);
    if let Some(channel) = reports {
        channel.add(number, queue);
    }
    Ok(queue)
}

/// Entries that the program may use of a queue that has `wanted`, as adapters round them up.
fn size_of_queue(wanted: u32) -> c_int {
    let entries = wanted.checked_next_power_of_two();
    entries.and_then(|entries| c_int::try_from(entries - 1).ok()).unwrap_or(c_int::MAX)
}

/// Gives a queue another size; one that shrinks keeps its memory.
fn resize(cq: *mut ibv_cq, cqe: c_int) -> Result<(), Errno> {
    let queue = promised!(Queue::of(cq));
    queue.shared.here()?;
    let wanted = u32::try_from(cqe).ok().filter(|cqe| *cqe > 0).ok_or(Errno::INVALID)? + 1;
    let mut inner = queue.inner();
    if wanted > queue.shared.node.context.attr().max_cqe {
        return Err(Errno::INVALID);
    }
    queue.take_all(&mut inner);
    if wanted > inner.cq.entries() {
        queue.grow(&mut inner, wanted)?;
    }
    // What was not polled has to have a place.
    if inner.waiting.len() >= wanted as usize {
        return Err(Errno::INVALID);
    }
    // Still locked: the size is of whoever resized last.
    promised!(AtomicI32::from_ptr(&raw mut (*cq).cqe))
        .store(size_of_queue(wanted), Ordering::Relaxed);
    Ok(())
}

pub(crate) unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    super::number(resize(cq, cqe))
}

/// Sets when events of a queue come.
pub(super) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    /// `IBV_CQ_ATTR_MODERATE`.
    const MODERATE: u32 = 1;
    let (queue, attr) = promised!((Queue::of(cq), &*attr));
    tried!(queue.shared.here());
    if attr.attr_mask != MODERATE {
        return libc::EINVAL;
    }
    let inner = queue.inner();
    super::number(inner.cq.moderate(attr.cq_count, attr.cq_period).map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let queue = promised!(Queue::of(cq));
    tried!(queue.shared.here());
    tried!(queue.users.none());
    let (channel, number) = queue.reports();
    if !channel.is_null() {
        promised!(Channel::of(channel)).remove(number);
    }
    queue.shared.delist(Kind::Cq, number);
    // The interface promises to wait until every event was acknowledged.
    let acknowledged = promised!(&(*queue.face.get()).base.comp_events_completed);
    while queue.given.load(Ordering::Acquire) != acknowledged.load(Ordering::Acquire) {
        nap(MOMENT);
    }
    drop(promised!(take_back::<Queue, _>(cq)));
    0
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    promised!(&(*cq).comp_events_completed).fetch_add(count, Ordering::AcqRel);
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let queue = promised!(Queue::of(cq));
    tried!(queue.shared.here());
    let is_solicited = solicited_only != 0;
    if queue.asks_poller(if is_solicited { WANTED_SOLICITED } else { WANTED_ANY }) {
        return 0;
    }
    let mut inner = queue.inner();
    queue.arm(&mut inner, if is_solicited { Notify::Solicited } else { Notify::Next });
    0
}

/// The next queue that has an event, which is waited for if the channel's file blocks; `None` after
/// a while.
fn next_event(channel: &Channel) -> Result<Option<*mut ibv_cq>, Errno> {
    channel.shared.here()?;
    let mut inner = lock(&channel.inner);
    if let Some(face) = inner.next() {
        let face: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(face);
        let queue = promised!(Queue::of(face));
        queue.count_event();
        return Ok(Some(face));
    }
    drop(inner);
    channel.waiters.enter()?;
    // The descriptor stays open as long as the channel does.
    let fd = promised!(std::os::fd::BorrowedFd::borrow_raw((*channel.face.get()).fd));
    if !files::is_blocking(fd) {
        return Err(Errno(libc::EAGAIN));
    }
    if !channel.shared.node.wait(fd) && !signals::are_restarted() {
        return Err(Errno(libc::EINTR));
    }
    Ok(None)
}

/// A part of [`ibv_get_cq_event`].
unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let channel = promised!(Channel::of(channel));
    let result = match next_event(channel) {
        Ok(None) => return GO_ON,
        Ok(Some(face)) => {
            promised!({
                cq.write(face);
                cq_context.write((*face).cq_context);
            });
            0
        }
        Err(errno) => {
            set_errno(errno);
            -1
        }
    };
    channel.waiters.leave();
    result
}

waits! {
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        cq: *mut *mut ibv_cq,
        cq_context: *mut *mut c_void
    ) by get_cq_event
}
