//! The send queue of a queue pair: what each request in its ring holds.
//!
//! How requests end is in [`super::end`].

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocx_core::wq::{Control, SendRing, blocks_of};
use ferrocx_prm::wqe::{CE_ALWAYS, Ctrl, FenceMode, Opcode};

use super::wqe::{gather, start};
use crate::error::{Failure, PostError, Refused};
use crate::fastreg::{PageList, RegisteredMr};
use crate::mr::{Buffers, Reach, Sge};
use crate::types::RemoteAddr;
use crate::window::BoundMw;
use crate::wr::{SendFlags, SendOp, SendWr, WcOpcode};

/// Fences, in their place in the control segment.
const FM_FENCE: u32 = Ctrl::FM.of(FenceMode::FENCE.0);
const FM_SMALL_AND_FENCE: u32 = Ctrl::FM.of(FenceMode::SMALL_AND_FENCE.0);
/// The request behind a registration waits until its key is there.
pub(super) const FM_SMALL: u32 = Ctrl::FM.of(FenceMode::INITIATOR_SMALL.0);
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
    /// Its scatter or gather list. `None` when nothing is in flight here.
    pub(super) buffers: Option<B>,
    /// `Nothing` when nothing is in flight here.
    pub(super) other: Other,
    pub(super) opcode: WcOpcode,
    pub(super) flags: SendFlags,
    pub(super) blocks: u8,
}

impl<B> Slot<B> {
    /// Holds a list for a new request. What was there has ended, so the slot is empty: saying so
    /// spares a check.
    #[inline(always)]
    pub(super) fn hold(&mut self, buffers: Option<B>) {
        std::mem::forget(std::mem::replace(&mut self.buffers, buffers));
    }
}

/// What frames must be like that a queue sends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Frames {
    /// The longest without a VLAN tag: MTU and Ethernet header.
    pub(super) max_bytes: u64,
    /// Headers of each frame that stand in the request.
    pub(super) inline: usize,
    /// The device fills in checksums.
    pub(super) checksums: bool,
}

/// The send queue.
pub(super) struct Sq<B> {
    pub(super) ring: SendRing,
    pub(super) reach: Reach,
    /// Operations that may be posted, one bit each.
    pub(super) allowed: u32,
    /// Position when the doorbell was last rung, and behind the last signaled request.
    rung: u64,
    pub(super) signaled: u64,
    pub(super) slots: Box<[Slot<B>]>,
    /// Number of slots less one.
    pub(super) slot_mask: usize,
    /// Requests that may be in flight. The ring has room for as many of the longest, the completion
    /// queue for as many entries.
    max_wr: u32,
    /// Blocks of all requests ever posted, beside the first of each: what tells positions from
    /// requests. Requests of one block, which are most, leave it as it is.
    extra_blocks: u64,
    /// Requests that have ended, and, after a reset, positions that were skipped.
    pub(super) ended: u64,
    /// Positions before it are clear: any request fits, and none has to be signaled.
    clear_until: u64,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    /// Of raw packet queue pairs.
    pub(super) frames: Frames,
    /// Fence that the next request needs because of the one before.
    pub(super) next_fence: u32,
    /// A number that no other queue ever has.
    pub(super) id: u64,
    /// Positions of requests that ended with an error or "flushed": those since the last reset
    /// last, with an open end.
    pub(super) broken: Vec<Range<u64>>,
    /// Failure of a first part, for the part behind it.
    pub(super) carried: Option<Failure>,
}

/// What a send queue is made of.
pub(super) struct Parts {
    pub(super) ring: SendRing,
    pub(super) reach: Reach,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    pub(super) frames: Frames,
}

impl<B> std::fmt::Debug for Sq<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sq").field("ring", &self.ring).finish_non_exhaustive()
    }
}

impl<B: Buffers> Sq<B> {
    pub(super) fn new(parts: Parts) -> Self {
        let blocks = parts.ring.entries();
        let empty = || Slot {
            wr_id: 0,
            buffers: None,
            other: Other::Nothing,
            opcode: WcOpcode::Send,
            flags: SendFlags::empty(),
            blocks: 1,
        };
        Self {
            ring: parts.ring,
            reach: parts.reach,
            allowed: 0,
            rung: 0,
            signaled: 0,
            slots: (0..blocks).map(|_| empty()).collect(),
            slot_mask: blocks as usize - 1,
            max_wr: parts.max_wr,
            extra_blocks: 0,
            ended: 0,
            max_sge: parts.max_sge,
            max_inline: parts.max_inline,
            frames: parts.frames,
            next_fence: 0,
            clear_until: 0,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
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
        (self.ring.pi - self.extra_blocks - self.ended) as u32
    }

    /// Looks how far positions are clear, and whether one more request fits. A request takes a
    /// block at least, so that no more requests than blocks come before a position.
    #[cold]
    #[inline(never)]
    pub(super) fn look_ahead(&mut self) -> bool {
        let requests = self.requests();
        let most = if self.signaled > self.ring.ci { self.max_wr } else { self.max_wr / 2 };
        self.clear_until = self.ring.pi + u64::from(most.saturating_sub(requests));
        requests < self.max_wr
    }

    /// Whether the next position is clear.
    #[inline(always)]
    pub(super) fn is_clear(&self) -> bool {
        self.ring.pi < self.clear_until
    }

    /// Checks that a send operation may be posted, and that any request fits.
    fn check(&mut self, operation: u32) -> Result<(), PostError> {
        let has_room = self.has_room();
        match self.allowed {
            0 => Err(PostError::State),
            _ if !self.allows(operation) => Err(PostError::Operation),
            _ if !has_room => Err(PostError::Full),
            _ => Ok(()),
        }
    }

    /// Posts a request that needs a closer look, or one for which it only had to be looked how far
    /// positions are clear.
    #[inline(never)]
    pub(super) fn push_slowly(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        match self.is_clear_now() {
            true => self.push_straight(wr, held).or_else(|held| self.push_any(wr, held)),
            false => self.push_any(wr, held),
        }
    }

    /// Posts a request with its data, like [`Sq::push_slowly`].
    #[inline(never)]
    pub(super) fn push_inline_slowly(
        &mut self,
        wr: &SendWr<'_>,
        data: &[u8],
    ) -> Result<(), PostError> {
        if self.is_clear_now() && self.push_inline_straight(wr, data) {
            return Ok(());
        }
        self.push_inline_any(wr, data)
    }

    /// Whether the next position was not clear before somebody looked, and is now.
    fn is_clear_now(&mut self) -> bool {
        !self.is_clear() && self.look_ahead()
    }

    /// Writes any request with a gather or scatter list.
    #[inline(never)]
    fn push_any(&mut self, wr: &SendWr<'_>, held: Option<B>) -> Result<(), Refused<Option<B>>> {
        if let Err(cause) = self.check(wr.op.number()) {
            return Err(Refused { held, cause });
        }
        if matches!(wr.op, SendOp::Frame) {
            return self.push_frame(wr, held);
        }
        let mut wqe = self.ring.begin();
        let (opcode, imm, kind) = start(&mut wqe, &wr.op);
        let (max, reach) = (self.max_sge, &self.reach);
        let list = held.as_ref().map(|held| gather(&mut wqe, max, reach, held.sges()));
        let (count, bytes) = match list.transpose() {
            Ok(list) => list.unwrap_or_default(),
            Err(cause) => return Err(Refused { held, cause }),
        };
        let is_atomic = matches!(kind, WcOpcode::CompareSwap | WcOpcode::FetchAdd);
        if is_atomic && (count, bytes) != (1, 8) {
            return Err(Refused { held, cause: PostError::AtomicBuffer });
        }
        if (is_atomic || kind == WcOpcode::Read) && !held.as_ref().is_none_or(B::is_exclusive) {
            return Err(Refused { held, cause: PostError::NotExclusive });
        }
        let ds = wqe.ds();
        let control = Control { opcode, imm, flags: self.fence(wr.flags) };
        let entry = Entry { wr_id: wr.wr_id, opcode: kind, flags: wr.flags };
        self.close(control, ds, blocks_of(ds), entry, held, Other::Nothing);
        Ok(())
    }

    /// Writes any request whose data stand in it.
    #[inline(never)]
    fn push_inline_any(&mut self, wr: &SendWr<'_>, data: &[u8]) -> Result<(), PostError> {
        self.check(wr.op.number())?;
        if matches!(wr.op, SendOp::Frame) {
            return self.push_frame_inline(wr, data);
        }
        if data.len() > self.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        let mut wqe = self.ring.begin();
        let (opcode, imm, kind) = start(&mut wqe, &wr.op);
        if matches!(kind, WcOpcode::Read | WcOpcode::CompareSwap | WcOpcode::FetchAdd) {
            return Err(PostError::Operation);
        }
        if !data.is_empty() {
            wqe.inline(data.len(), [data]);
        }
        let ds = wqe.ds();
        let control = Control { opcode, imm, flags: self.fence(wr.flags) };
        let entry = Entry { wr_id: wr.wr_id, opcode: kind, flags: wr.flags };
        self.close(control, ds, blocks_of(ds), entry, None, Other::Nothing);
        Ok(())
    }

    /// Whether a request up to `next` must be signaled: half of the queue is in flight, and none of
    /// it will report its end.
    #[inline(always)]
    pub(super) fn is_long_run(&self, next: u64) -> bool {
        next > self.clear_until
            && self.signaled <= self.ring.ci
            && self.requests() >= self.max_wr / 2
    }

    /// The fence of an ordinary request. Source: reference 6.4, "Fences".
    #[inline(always)]
    pub(super) fn fence(&mut self, flags: SendFlags) -> u32 {
        let next = std::mem::take(&mut self.next_fence);
        match (flags.contains(SendFlags::FENCE), next) {
            (false, next) => next,
            (true, 0) => FM_FENCE,
            (true, _) => FM_SMALL_AND_FENCE,
        }
    }

    /// Writes the control segment of a request of `ds` units and so many blocks, notes what it is
    /// and holds, and moves past it; rings the doorbell unless more follows.
    #[inline(always)]
    pub(super) fn close(
        &mut self,
        mut control: Control,
        ds: u32,
        blocks: u32,
        entry: Entry,
        buffers: Option<B>,
        other: Other,
    ) {
        let at = self.ring.pi;
        let next = at + u64::from(blocks);
        if entry.flags.contains(SendFlags::SOLICITED) {
            control.flags |= Ctrl::SE.mask();
        }
        // A run without completions would fill the queue for ever; half of it is enough.
        if entry.flags.contains(SendFlags::SIGNALED) || self.is_long_run(next) {
            control.flags |= CE_ALWAYS;
            self.signaled = next;
        }
        self.ring.close(control, ds, blocks);
        let slot = self.note(at, blocks as u8, entry);
        slot.hold(buffers);
        std::mem::forget(std::mem::replace(&mut slot.other, other));
        self.ring_unless_more(entry.flags);
    }

    /// Notes the request of so many blocks at position `at`. Its slot is empty.
    #[inline(always)]
    pub(super) fn note(&mut self, at: u64, blocks: u8, entry: Entry) -> &mut Slot<B> {
        let slot = &mut self.slots[at as usize & self.slot_mask];
        (slot.wr_id, slot.opcode, slot.flags) = (entry.wr_id, entry.opcode, entry.flags);
        slot.blocks = blocks;
        self.extra_blocks += u64::from(blocks) - 1;
        slot
    }

    /// Writes a READ that only precedes what the caller posted. The caller made sure of the room.
    #[inline(always)]
    pub(super) fn push_first_read(&mut self, from: RemoteAddr, sink: Sge, flags: SendFlags) {
        let mut wqe = self.ring.begin();
        wqe.raddr(from.addr, from.rkey.0);
        wqe.data(sink.len, sink.lkey_be, sink.addr);
        let ds = wqe.ds();
        let control = Control { opcode: Opcode::RDMA_READ, imm: 0, flags: self.fence(flags) };
        let entry = Entry { wr_id: 0, opcode: WcOpcode::Read, flags: SendFlags::MORE };
        self.close(control, ds, blocks_of(ds), entry, None, Other::FirstPart);
    }

    /// Posts an empty request that is reported, if the last one is not, and rings the doorbell. On
    /// a queue in error it is flushed, and so ends what succeeded before it without a completion.
    /// Nothing on a full queue.
    pub(super) fn mark_end(&mut self) {
        if self.ring.outstanding() > 0 && self.signaled != self.ring.pi && self.free_wr() > 0 {
            let flags = SendFlags::SIGNALED;
            let entry = Entry { wr_id: 0, opcode: WcOpcode::Send, flags };
            self.close(Control::new(Opcode::NOP), 1, 1, entry, None, Other::Marker);
        }
    }

    /// As [`Sq::ring`], and asks for a completion of the last request.
    #[inline(always)]
    pub(super) fn ring_signaled(&mut self) {
        if self.signaled != self.ring.pi {
            self.signaled = self.ring.pi;
            self.ring.signal_last();
        }
        self.ring();
    }

    /// Tells the device what was posted since it was last told.
    #[inline(always)]
    pub(super) fn ring(&mut self) {
        if self.rung != self.ring.pi {
            self.ring_unless_more(SendFlags::empty());
        }
    }

    /// Tells the device of the request that was just posted with these flags.
    #[inline(always)]
    pub(super) fn ring_unless_more(&mut self, flags: SendFlags) {
        if !flags.contains(SendFlags::MORE) {
            self.rung = self.ring.pi;
            self.ring.ring_doorbell();
        }
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        self.heal();
        self.ring.restart();
        (self.rung, self.signaled) = (self.ring.pi, self.ring.pi);
        (self.next_fence, self.clear_until) = (0, 0);
        self.ended = self.ring.pi - self.extra_blocks;
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
