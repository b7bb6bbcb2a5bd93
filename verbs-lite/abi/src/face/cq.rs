//! Completion queues.

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ferrocx_verbs_lite as verbs;
use ferrocx_verbs_lite::{CqEntry, Notify};

use super::channel::Channel;
use super::context::{Context, Kind, Shared};
use super::life::Users;
use super::pair::Out;
use super::{Errno, give_out, set_errno, take_back, tried};
use crate::abi::{ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_modify_cq_attr, ibv_wc};
use crate::files;
use crate::node::lock;

/// Entries of the smallest queue: a page of them.
const LEAST_ENTRIES: u32 = 64;

/// A completion queue as the program has it.
#[repr(C)]
pub(super) struct Queue {
    pub(super) face: crate::abi::ibv_cq_ex,
    pub(super) shared: Arc<Shared>,
    pub(super) inner: Mutex<Inner>,
    /// Events that were taken from the channel, and that the program acknowledged.
    pub(super) given: AtomicU32,
    acknowledged: AtomicU32,
    /// Somebody is between `start_poll` and `end_poll`, and what they read.
    pub(super) is_polled: AtomicBool,
    pub(super) current: ibv_wc,
    /// When that was made, in ticks of the device.
    pub(super) current_ticks: u64,
    /// Completions say when they were made.
    is_stamped: bool,
    /// Queue pairs that complete here.
    pub(super) users: Users,
}

/// What the lock of a queue guards.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) cq: verbs::Cq,
    /// Completions that were taken from the device before the program asked for them, and when they
    /// were made, in ticks of the device: 0 where nobody asked for it.
    pub(super) waiting: VecDeque<(ibv_wc, u64)>,
}

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

/// A program that is to poll later.
struct Later<'a> {
    waiting: &'a mut VecDeque<(ibv_wc, u64)>,
    is_stamped: bool,
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

    /// Takes completions from the device and gives out what they end, until there are none or `out`
    /// has enough. The table of queue pairs is locked once, and each of them once for completions
    /// that follow each other.
    #[inline(always)]
    fn take(&self, cq: &mut verbs::Cq, out: &mut impl Out) {
        let mut taking = cq.taking();
        let Some(mut entry) = taking.next() else { return };
        let members = self.shared.members.read().unwrap_or_else(PoisonError::into_inner);
        loop {
            let index = entry.user_index();
            let member = members.get(index as usize).and_then(Option::as_ref);
            let Some(member) = member else {
                self.end_xrc(entry, out);
                if out.is_enough() {
                    return;
                }
                let Some(next) = taking.next() else { return };
                entry = next;
                continue;
            };
            let mut pair = lock(&member.pair);
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
    fn end_xrc(&self, entry: CqEntry<'_>, out: &mut impl Out) {
        let ticks = out.ticks(&entry);
        self.shared.end_xrc(entry.read(), |wc| out.put(wc, ticks));
    }

    /// Takes everything that the device has written.
    pub(super) fn take_all(&self, inner: &mut Inner) {
        let Inner { cq, waiting } = inner;
        self.take(cq, &mut Later { waiting, is_stamped: self.is_stamped });
    }

    /// Fills `out` with completions, as many as there are; their number.
    #[inline]
    fn poll(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        if self.is_stamped {
            return self.poll_stamped(out);
        }
        let mut inner = lock(&self.inner);
        let Inner { cq, waiting } = &mut *inner;
        let mut now = Now { count: 0, out, waiting };
        while !now.is_enough()
            && let Some((wc, _)) = now.waiting.pop_front()
        {
            now.put(wc, 0);
        }
        if !now.is_enough() {
            self.take(cq, &mut now);
        }
        now.count
    }

    /// Does what [`Queue::poll`] does where those that `out` has no room for keep their time.
    #[inline(never)]
    fn poll_stamped(&self, out: &mut [MaybeUninit<ibv_wc>]) -> usize {
        let mut inner = lock(&self.inner);
        self.take_all(&mut inner);
        let count = out.len().min(inner.waiting.len());
        for (place, (wc, _)) in out.iter_mut().zip(inner.waiting.drain(..count)) {
            place.write(wc);
        }
        count
    }

    /// The next completion, and when it was made; the model gets its turn when there is none.
    pub(super) fn poll_one(&self) -> Option<(ibv_wc, u64)> {
        let mut out = [MaybeUninit::uninit()];
        for _ in 0..2 {
            if self.is_stamped {
                let mut inner = lock(&self.inner);
                self.take_all(&mut inner);
                if let Some(stamped) = inner.waiting.pop_front() {
                    return Some(stamped);
                }
            } else if self.poll(&mut out) == 1 {
                // SAFETY: one was written.
                return Some((unsafe { out[0].assume_init() }, 0));
            }
            self.shared.node.turn();
        }
        None
    }

    /// Gives the device's queue more entries; what stands in it waits for the program.
    fn grow(&self, inner: &mut Inner, entries: u32) -> Result<(), Errno> {
        let Inner { cq, waiting } = inner;
        let members = self.shared.members.read().unwrap_or_else(PoisonError::into_inner);
        cq.resize(entries, |completion, ticks| {
            let member = members.get(completion.user_index() as usize).and_then(Option::as_ref);
            let ticks = if self.is_stamped { ticks } else { 0 };
            let wait = |wc| waiting.push_back((wc, ticks));
            match member {
                Some(member) => lock(&member.pair).end_rest(completion, wait),
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
    let channel = if channel.is_null() { None } else { Some(promised!(Channel::of(channel))) };
    let cq = match channel {
        Some(channel) => lock(&channel.inner).create_cq(rdma, entries)?,
        None => rdma.create_cq_unreserved(entries, None)?,
    };
    let number = cq.number();
    let face = ibv_cq {
        context,
        channel: channel.map_or(null_mut(), Channel::face),
        cq_context,
        handle: number,
        cqe: size_of_queue(wanted),
        locks: [0; _],
        comp_events_completed: 0,
        async_events_completed: 0,
    };
    let queue: *mut ibv_cq = give_out(Queue {
        face: make(face),
        shared: Arc::clone(shared),
        inner: Mutex::new(Inner { cq, waiting: VecDeque::new() }),
        given: AtomicU32::new(0),
        acknowledged: AtomicU32::new(0),
        is_polled: AtomicBool::new(false),
        current: ibv_wc::default(),
        current_ticks: 0,
        is_stamped,
        users: Users::default(),
    });
    shared.enlist(Kind::Cq, number, queue);
    if let Some(channel) = channel {
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
    let mut inner = lock(&queue.inner);
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
    drop(inner);
    promised!((*cq).cqe = size_of_queue(wanted));
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
    let inner = lock(&queue.inner);
    super::number(inner.cq.moderate(attr.cq_count, attr.cq_period).map_err(Errno::from))
}

pub(crate) unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let queue = promised!(Queue::of(cq));
    tried!(queue.shared.here());
    tried!(queue.users.none());
    let number = lock(&queue.inner).cq.number();
    let channel = queue.face.base.channel;
    if !channel.is_null() {
        promised!(Channel::of(channel)).remove(number);
    }
    queue.shared.delist(Kind::Cq, number);
    // The interface promises to wait until every event was acknowledged.
    let is_open =
        || queue.given.load(Ordering::Acquire) != queue.acknowledged.load(Ordering::Acquire);
    while is_open() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(promised!(take_back::<Queue, _>(cq)));
    0
}

pub(crate) unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, count: u32) {
    promised!(Queue::of(cq)).acknowledged.fetch_add(count, Ordering::AcqRel);
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
    if found == 0 {
        queue.shared.node.turn();
        found = queue.poll(out);
    }
    found as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let queue = promised!(Queue::of(cq));
    tried!(queue.shared.here());
    let mut inner = lock(&queue.inner);
    // Only what comes from here on is news: the device would report what is there at once.
    queue.take_all(&mut inner);
    inner.cq.arm(if solicited_only != 0 { Notify::Solicited } else { Notify::Next });
    0
}

pub(crate) unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let channel = promised!(Channel::of(channel));
    if let Err(errno) = channel.shared.here() {
        set_errno(errno);
        return -1;
    }
    loop {
        let mut inner = lock(&channel.inner);
        if let Some(place) = inner.next() {
            let face: *mut ibv_cq = std::ptr::with_exposed_provenance_mut(place);
            let queue = promised!(Queue::of(face));
            queue.given.fetch_add(1, Ordering::AcqRel);
            drop(inner);
            lock(&queue.inner).cq.ack_event();
            promised!(cq.write(face));
            promised!(cq_context.write(queue.face.base.cq_context));
            return 0;
        }
        drop(inner);
        // The descriptor stays open as long as the channel does.
        let fd = promised!(std::os::fd::BorrowedFd::borrow_raw(channel.face.fd));
        if !files::is_blocking(fd) {
            set_errno(Errno(libc::EAGAIN));
            return -1;
        }
        if !channel.shared.node.wait(fd) {
            set_errno(Errno(libc::EINTR));
            return -1;
        }
    }
}
