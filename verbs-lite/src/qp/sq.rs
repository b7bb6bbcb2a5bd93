//! The send queue of a queue pair: what each request in its ring holds.
//!
//! Every request is posted by [`Sq::post`]; almost all come there on the straight paths of
//! [`super::straight`]. How requests end is in [`super::end`].

use std::mem::{forget, replace, take};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocx_core::wq::{Control, SendRing, Wqe, Written, blocks_of};
use ferrocx_prm::wqe::{CE_ALWAYS, Ctrl, FenceMode, Opcode};

use super::frames::Frames;
use super::slots::Slots;
use super::wqe::{Data, Kind, gather};
use crate::belief::Belief;
use crate::cq::CqCore;
use crate::era::MARK_EVERY;
use crate::error::{Failure, PostError, Refused};
use crate::fastreg::{Changes, PageList, RegisteredMr};
use crate::mr::{Buffers, Reach};
use crate::window::BoundMw;
use crate::wr::{SendFlags, SendOp, SendWr, WcOpcode};

/// Fences, in their place in the control segment.
const FM_FENCE: u32 = Ctrl::FM.of(FenceMode::FENCE.0);
const FM_SMALL_AND_FENCE: u32 = Ctrl::FM.of(FenceMode::SMALL_AND_FENCE.0);
/// The request behind a registration waits until its key is there.
pub(super) const FM_SMALL: u32 = Ctrl::FM.of(FenceMode::INITIATOR_SMALL.0);
/// Bit of "solicited event" in the control segment; the same as that of the flag.
const SE: u8 = SendFlags::SOLICITED.bits();
const _: () = assert!(SE as u32 == Ctrl::SE.mask(), "the flag is the bit");
/// Requests that are posted between two looks: none is longer than 16 blocks, so all of them have
/// room between two marks.
const CLEAR_AT_ONCE: u32 = MARK_EVERY / 16;
/// Numbers of queues.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What a request is to the bookkeeping.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) flags: SendFlags,
}

/// What a request in flight holds beside its scatter or gather list.
#[derive(Debug)]
pub(super) enum Other {
    /// Nothing.
    Nothing,
    /// The page list that it binds a key to.
    List(PageList),
    /// The key that it ends.
    Ending(RegisteredMr),
    /// The window that it ends.
    EndingMw(BoundMw),
    /// It is the first part of what the caller posted, and is not reported.
    FirstPart,
    /// It only marks the end of what was posted, and is not reported.
    Marker,
}

/// A request in flight, at the index of its first block.
#[derive(Debug)]
pub(super) struct Slot<B> {
    pub(super) wr_id: u64,
    /// Its scatter or gather list. When nothing is in flight here, `None`, or one that need not be
    /// dropped.
    pub(super) buffers: Option<B>,
    /// `Nothing` when nothing is in flight here.
    pub(super) other: Other,
    pub(super) opcode: WcOpcode,
    pub(super) flags: SendFlags,
    /// Its blocks, and [`Slot::LONG`] unless it is one that holds nothing else.
    shape: u8,
    /// Of a request that asked for a report: how many there are in front of it at least that did
    /// not, and need no closer look. Kept where lists need not be dropped.
    silent: u32,
}

impl<B> Slot<B> {
    /// The end of the request needs a closer look.
    const LONG: u8 = 0x80;

    fn empty() -> Self {
        let (opcode, flags) = (WcOpcode::Send, SendFlags::empty());
        Self { wr_id: 0, buffers: None, other: Other::Nothing, opcode, flags, shape: 1, silent: 0 }
    }

    /// Whether it is of one block, and holds nothing but a list.
    #[inline(always)]
    pub(super) fn is_simple(&self) -> bool {
        self.shape == 1
    }

    /// Whether that many requests in front of it need no look when they end.
    #[inline(always)]
    pub(super) fn is_behind(&self, requests: u64) -> bool {
        requests <= u64::from(self.silent)
    }

    /// Blocks of the request.
    #[inline(always)]
    pub(super) fn blocks(&self) -> u64 {
        u64::from(self.shape & !Self::LONG)
    }

    /// Holds a list for a new request. What was there has ended, so the slot is empty: saying so
    /// spares a check.
    #[inline(always)]
    pub(super) fn hold(&mut self, buffers: Option<B>) {
        forget(replace(&mut self.buffers, buffers));
    }

    /// Holds something else, like [`Slot::hold`].
    #[inline(always)]
    pub(super) fn hold_other(&mut self, other: Other) {
        forget(replace(&mut self.other, other));
        self.shape |= Self::LONG;
    }
}

impl Kind {
    #[inline(always)]
    pub(super) fn entry(self, wr: &SendWr<'_>) -> Entry {
        Entry { wr_id: wr.wr_id, opcode: self.is, flags: wr.flags }
    }
}

/// What a queue's requests are at most.
#[derive(Debug, Clone, Copy)]
pub(super) struct Most {
    pub(super) wr: u32,
    pub(super) sge: u32,
    pub(super) inline_bytes: u32,
    pub(super) signals_itself: bool,
}

/// The send queue.
#[derive(Debug)]
pub(super) struct Sq<B> {
    pub(super) ring: SendRing,
    pub(super) belief: Belief,
    pub(super) reach: Reach,
    /// Operations that may be posted, one bit each.
    pub(super) allowed: u32,
    /// Position when the doorbell was last rung, and behind the last signaled request.
    rung: u64,
    signaled: u64,
    /// Position behind the last request that asked for a report or needs a closer look.
    silent_from: u64,
    pub(super) slots: Slots<Slot<B>>,
    /// Requests that may be in flight. The ring has room for as many of the longest, the completion
    /// queue for as many entries.
    max_wr: u32,
    /// Requests in a row without a completion: half of them, or all if nobody else asks for one.
    max_silent: u32,
    /// Blocks in flight beside the first of each request.
    pub(super) extra_blocks: u32,
    /// Requests of one block up to this position are clear: they fit, and need not be signaled.
    /// Longer requests move it.
    clear_until: u64,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    /// Of raw packet queue pairs.
    pub(super) frames: Frames,
    /// Fence that the next request needs because of the one before.
    pub(super) next_fence: u32,
    /// A number that no other queue ever has.
    pub(super) id: u64,
    /// What is known of keys by its requests.
    pub(super) changes: Arc<Changes>,
    /// Positions of requests that ended with an error or "flushed": those since the last reset
    /// last, with an open end.
    pub(super) broken: Vec<Range<u64>>,
    /// Failure of a first part, for the part behind it.
    pub(super) carried: Option<Failure>,
}

impl<B: Buffers> Sq<B> {
    /// Lists do something when they are dropped, so each is looked for.
    pub(super) const DROPS_LISTS: bool = std::mem::needs_drop::<B>();

    pub(super) fn new(
        ring: SendRing,
        cq: &Arc<CqCore>,
        reach: Reach,
        most: Most,
        frames: Frames,
    ) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Self {
            slots: Slots::new(ring.entries(), Slot::empty),
            belief: Belief::new(cq, ring.number()),
            ring,
            reach,
            allowed: 0,
            rung: 0,
            signaled: 0,
            silent_from: 0,
            max_wr: most.wr,
            max_silent: if most.signals_itself { most.wr / 2 } else { most.wr },
            extra_blocks: 0,
            clear_until: 0,
            max_sge: most.sge,
            max_inline: most.inline_bytes,
            frames,
            next_fence: 0,
            id,
            changes: cq.core.posted.made(id),
            broken: Vec::new(),
            carried: None,
        }
    }

    /// Whether one more request of any kind fits.
    #[inline(always)]
    pub(super) fn has_room(&mut self) -> bool {
        self.is_clear() || self.look_ahead()
    }

    /// Requests that fit.
    #[inline(always)]
    pub(super) fn free_wr(&self) -> u32 {
        self.max_wr - self.requests()
    }

    /// Requests that have not ended.
    #[inline(always)]
    pub(super) fn requests(&self) -> u32 {
        self.ring.outstanding() - self.extra_blocks
    }

    /// Looks how many requests are clear, and whether one more fits. A run without completions
    /// would fill the queue for ever: of those behind the half of it, one is signaled, if the queue
    /// does so.
    #[cold]
    #[inline(never)]
    fn look_ahead(&mut self) -> bool {
        let requests = self.requests();
        let most = if self.signaled > self.ring.ci { self.max_wr } else { self.max_silent };
        let clear = most.saturating_sub(requests).min(CLEAR_AT_ONCE);
        self.clear_until = self.ring.pi + u64::from(clear);
        self.belief.keep_marks(self.ring.pi as u32);
        requests < self.max_wr
    }

    /// Whether the next request is clear.
    #[inline(always)]
    pub(super) fn is_clear(&self) -> bool {
        self.ring.pi < self.clear_until
    }

    /// Whether a request fits and is clear, or is signaled anyway. In a small queue none is clear.
    #[inline(always)]
    pub(super) fn is_open(&self, flags: SendFlags) -> bool {
        self.is_clear() || flags.contains(SendFlags::SIGNALED) && self.requests() < self.max_wr
    }

    /// Whether an operation may be posted, by its number.
    #[inline(always)]
    pub(super) fn allows(&self, operation: u32) -> bool {
        self.allowed >> operation & 1 != 0
    }

    /// Whether data are short enough to stand in a request.
    #[inline(always)]
    pub(super) fn takes_inline(&self, data: &[u8]) -> bool {
        data.len() <= self.max_inline as usize
    }

    /// Checks that a send operation may be posted, and that any request fits.
    pub(super) fn check(&mut self, operation: u32) -> Result<(), PostError> {
        let has_room = self.has_room();
        match self.allowed {
            0 => Err(PostError::State),
            _ if !self.allows(operation) => Err(PostError::Operation),
            _ if !has_room => Err(PostError::Full),
            _ => Ok(()),
        }
    }

    /// Posts any request, whose data are `inline` or in what it holds.
    #[inline(never)]
    pub(super) fn push_any(
        &mut self,
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
        mut held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        // In a queue that is as good as full, as those of one request are, none is clear.
        if self.allows(wr.op.number()) && self.has_room() {
            match inline {
                Some(data) if self.takes_inline(data) && self.push_inline_any(wr, data) => {
                    return Ok(());
                }
                Some(_) => {}
                None if held.is_none() && self.push_list(wr, None).is_ok() => return Ok(()),
                None => match self.push_fitting(wr, held) {
                    Ok(()) => return Ok(()),
                    Err(back) => held = back,
                },
            }
        }
        let checked = self.check(wr.op.number());
        self.push_checked(checked, &[], wr, inline, held)
    }

    /// Posts any request that was checked, with its segments behind `head`.
    #[inline(always)]
    pub(super) fn push_checked(
        &mut self,
        checked: Result<(), PostError>,
        head: &[u8],
        wr: &SendWr<'_>,
        inline: Option<&[u8]>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        let kind = Kind::of(&wr.op);
        let written = checked.and_then(|()| {
            let mut wqe = self.ring.begin();
            wqe.bytes(head);
            self.write(wqe, wr, kind, inline.map_or(Data::Held(held.as_ref()), Data::Inline))
        });
        let ds = match written {
            Ok(ds) => ds,
            Err(cause) => return Err(Refused { held, cause }),
        };
        let fence = if matches!(wr.op, SendOp::Frame) { 0 } else { self.fence(wr.flags) };
        self.close(kind.control(fence), ds, kind.entry(wr)).hold(held);
        Ok(())
    }

    /// Writes the segments of any request behind what stands there; gives its length in units.
    pub(super) fn write(
        &self,
        mut wqe: Wqe<'_>,
        wr: &SendWr<'_>,
        kind: Kind,
        data: Data<'_, B>,
    ) -> Result<u32, PostError> {
        if matches!(data, Data::Inline(bytes) if !self.takes_inline(bytes)) {
            return Err(PostError::InlineTooLong);
        }
        if let Some(remote) = kind.remote {
            wqe.raddr(remote.addr, remote.rkey.0);
        }
        match wr.op {
            SendOp::Frame => {
                return self.frames.write(wqe, wr.flags, data, (self.max_sge, &self.reach));
            }
            SendOp::CompareSwap { compare, swap, .. } => wqe.atomic(swap, compare),
            SendOp::FetchAdd { add, .. } => wqe.atomic(add, 0),
            SendOp::Datagram { to, .. } => wqe.bytes(&to.av.0),
            _ => {}
        }
        let is_atomic = matches!(kind.is, WcOpcode::CompareSwap | WcOpcode::FetchAdd);
        match data {
            Data::Inline(_) if kind.is.brings_bytes() => return Err(PostError::Operation),
            Data::Inline([]) => {}
            Data::Inline(bytes) => wqe.inline_one(bytes),
            Data::Held(held) => {
                let (max, reach) = (self.max_sge, &self.reach);
                let list = held.map(|held| gather(&mut wqe, max, reach, held.sges(), 0));
                if list.transpose()?.unwrap_or_default() != (1, 8) && is_atomic {
                    return Err(PostError::AtomicBuffer);
                }
                if kind.is.brings_bytes() && !held.is_none_or(B::is_exclusive) {
                    return Err(PostError::NotExclusive);
                }
            }
        }
        Ok(wqe.ds())
    }

    /// The fence of an ordinary request. Source: reference 6.4, "Fences".
    #[inline(always)]
    pub(super) fn fence(&mut self, flags: SendFlags) -> u32 {
        match (flags.contains(SendFlags::FENCE), take(&mut self.next_fence)) {
            (false, next) => next,
            (true, 0) => FM_FENCE,
            (true, _) => FM_SMALL_AND_FENCE,
        }
    }

    /// Counts a request that is about to be posted; gives what its control segment says of its end.
    /// The caller made sure that it fits.
    #[inline(always)]
    pub(super) fn mark(&mut self, flags: SendFlags, blocks: u32) -> u32 {
        let is_clear = self.is_clear() || self.look_ahead() && self.is_clear();
        if blocks > 1 {
            self.extra_blocks += blocks - 1;
            self.clear_until += u64::from(blocks - 1);
        }
        let solicited = u32::from(flags.bits() & SE);
        if !flags.contains(SendFlags::SIGNALED) && is_clear {
            return solicited;
        }
        self.signaled = self.ring.pi + u64::from(blocks);
        solicited | CE_ALWAYS
    }

    /// Posts a request that is [marked](Sq::mark) and written at a position, and rings the doorbell
    /// unless more follows. The caller puts into its slot what it holds.
    #[inline(always)]
    pub(super) fn post(
        &mut self,
        at: u64,
        written: Written,
        entry: Entry,
        blocks: u32,
    ) -> &mut Slot<B> {
        self.ring.post(written);
        if !entry.flags.contains(SendFlags::MORE) {
            self.rung = self.ring.pi;
            self.ring.ring_doorbell();
        }
        let slot = self.slots.at(at);
        (slot.wr_id, slot.opcode, slot.flags) = (entry.wr_id, entry.opcode, entry.flags);
        slot.shape = if blocks > 1 { blocks as u8 | Slot::<B>::LONG } else { 1 };
        if !Self::DROPS_LISTS {
            // One that was left there is not given back with a request that holds none.
            slot.buffers = None;
        }
        if !Self::DROPS_LISTS && blocks > 1 {
            self.silent_from = self.ring.pi;
        } else if !Self::DROPS_LISTS && entry.flags.contains(SendFlags::SIGNALED) {
            slot.silent = (at - self.silent_from) as u32;
            self.silent_from = self.ring.pi;
        }
        slot
    }

    /// Posts a request of `ds` units whose segments are written, but for the first.
    #[inline(always)]
    pub(super) fn close(&mut self, mut control: Control, ds: u32, entry: Entry) -> &mut Slot<B> {
        let (at, blocks) = (self.ring.pi, blocks_of(ds));
        control.flags |= self.mark(entry.flags, blocks);
        let written = self.ring.written(self.ring.block(0), at, control, ds, blocks);
        self.post(at, written, entry, blocks)
    }

    /// Posts an empty request that is reported, if the last one is not. On a queue in error it is
    /// flushed, and so ends what succeeded before it without a completion. Nothing on a full queue.
    fn mark_end(&mut self) {
        if self.ring.outstanding() > 0 && self.signaled != self.ring.pi && self.free_wr() > 0 {
            let flags = SendFlags::SIGNALED;
            let entry = Entry { wr_id: 0, opcode: WcOpcode::Send, flags };
            self.close(Control::new(Opcode::NOP), 1, entry).hold_other(Other::Marker);
        }
    }

    /// Does what [`Sq::mark_end`] does, if the queue signals by itself.
    pub(super) fn mark_end_itself(&mut self) {
        if self.max_silent < self.max_wr {
            self.mark_end();
        }
    }

    /// Asks for a completion of the last request, or posts an empty one that has a completion, if
    /// the device was told of the last one already.
    #[inline(always)]
    pub(super) fn signal_last(&mut self) {
        if self.rung == self.ring.pi {
            self.mark_end();
        } else if self.signaled != self.ring.pi {
            self.signaled = self.ring.pi;
            self.ring.signal_last();
        }
    }

    /// Why nothing is posted to a queue without room, and sees to it that a completion will make
    /// some: a request that is alone in needing two places finds the others without signal.
    #[cold]
    pub(super) fn full(&mut self) -> PostError {
        if self.signaled <= self.ring.ci {
            self.mark_end_itself();
            self.ring();
        }
        PostError::Full
    }

    /// Tells the device what was posted since it was last told.
    #[inline(always)]
    pub(super) fn ring(&mut self) {
        if self.rung != self.ring.pi {
            self.rung = self.ring.pi;
            self.ring.ring_doorbell();
        }
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        self.heal();
        self.ring.restart();
        (self.rung, self.signaled, self.silent_from) = (self.ring.pi, self.ring.pi, self.ring.pi);
        (self.next_fence, self.clear_until) = (0, 0);
        self.belief.begin_life(self.ring.pi as u32);
    }
}
