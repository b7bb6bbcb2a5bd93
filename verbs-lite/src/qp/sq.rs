//! The send queue of a queue pair: a ring of 64-byte blocks and what each request in it holds.
//!
//! | order | why |
//! |---|---|
//! | request, then doorbell record | the device reads up to the record's counter |
//! | doorbell record, then doorbell | the device reads the record when the doorbell rings |
//!
//! How requests end is in [`super::end`].

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocx_bus::{DmaWord, Doorbell, Ring};
use ferrocx_prm::wqe::Opcode;

use super::raw::Frames;
use super::wqe::{Wqe, put_control, start};
use crate::error::{Failure, PostError, Refused};
use crate::fastreg::{PageList, RegisteredMr};
use crate::mr::{Buffers, Reach, Sge};
use crate::types::RemoteAddr;
use crate::window::BoundMw;
use crate::wr::{SendFlags, SendOp, SendWr, WcOpcode};

/// 16-byte units of a basic block.
pub(super) const DS_PER_BLOCK: u32 = 4;
/// Completion mode "always", in the third dword of the control segment. Source: reference 6.1.
pub(super) const CE_ALWAYS: u32 = 2 << 2;
/// Solicited event, in the same dword.
const SE: u32 = 1 << 1;
/// Fence modes, shifted to their place there. Source: reference 6.1.
const FM_FENCE: u32 = 2 << 5;
const FM_SMALL_AND_FENCE: u32 = 4 << 5;
/// The request behind a registration waits until its key is there: initiator small fence.
pub(super) const FM_SMALL: u32 = 1 << 5;
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

/// The send queue.
pub(super) struct Sq<B> {
    /// The ring in 16-byte units, and in blocks.
    units: Ring<16>,
    pub(super) blocks: Ring<64>,
    doorbell: Doorbell,
    record: DmaWord,
    pub(super) qpn: u32,
    pub(super) reach: Reach,
    /// Operations that may be posted, one bit each.
    pub(super) allowed: u32,
    /// Positions in the life of the queue, in blocks: behind what was posted, and behind what has
    /// ended. The device counts modulo 2^16, and from 0 after a reset; so do these then.
    pub(super) pi: u64,
    pub(super) ci: u64,
    /// Value of `pi` when the doorbell was last rung, and behind the last signaled request.
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
    /// First eight bytes of the control segment of the last request, for the doorbell.
    last_ctrl: u64,
    pub(super) doorbells: u64,
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
    pub(super) units: Ring<16>,
    pub(super) blocks: Ring<64>,
    pub(super) doorbell: Doorbell,
    pub(super) record: DmaWord,
    pub(super) qpn: u32,
    pub(super) reach: Reach,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
    pub(super) frames: Frames,
}

impl<B> std::fmt::Debug for Sq<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sq")
            .field("qpn", &self.qpn)
            .field("blocks", &self.slots.len())
            .field("pi", &self.pi)
            .field("ci", &self.ci)
            .finish_non_exhaustive()
    }
}

impl<B: Buffers> Sq<B> {
    pub(super) fn new(parts: Parts) -> Self {
        let blocks = parts.blocks.entries();
        let empty = || Slot {
            wr_id: 0,
            buffers: None,
            other: Other::Nothing,
            opcode: WcOpcode::Send,
            flags: SendFlags::empty(),
            blocks: 1,
        };
        Self {
            units: parts.units,
            blocks: parts.blocks,
            doorbell: parts.doorbell,
            record: parts.record,
            qpn: parts.qpn,
            reach: parts.reach,
            allowed: 0,
            pi: 0,
            ci: 0,
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
            last_ctrl: 0,
            clear_until: 0,
            doorbells: 0,
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
        (self.pi - self.extra_blocks - self.ended) as u32
    }

    /// Looks how far positions are clear, and whether one more request fits. A request takes a
    /// block at least, so that no more requests than blocks come before a position.
    #[cold]
    #[inline(never)]
    pub(super) fn look_ahead(&mut self) -> bool {
        let requests = self.requests();
        let most = if self.signaled > self.ci { self.max_wr } else { self.max_wr / 2 };
        self.clear_until = self.pi + u64::from(most.saturating_sub(requests));
        requests < self.max_wr
    }

    /// Whether the next position is clear.
    #[inline(always)]
    pub(super) fn is_clear(&self) -> bool {
        self.pi < self.clear_until
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

    /// Index of the first block of the request posted last.
    pub(super) fn last_wqe_counter(&self) -> u16 {
        // Where it stands there: reference 6.1, `wqe_index`.
        (u64::from_be(self.last_ctrl) >> 40) as u16
    }

    /// Starts a request behind those posted.
    #[inline(always)]
    pub(super) fn begin(&self) -> Wqe<'_> {
        let first = (self.pi as u32).wrapping_mul(DS_PER_BLOCK);
        Wqe::new(self.units.view(), first)
    }

    /// Writes any request with a gather or scatter list.
    #[inline(never)]
    pub(super) fn push_any(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        if let Err(cause) = self.check(wr.op.number()) {
            return Err(Refused { held, cause });
        }
        if matches!(wr.op, SendOp::Frame) {
            return self.push_frame(wr, held);
        }
        let mut wqe = self.begin();
        let (opcode, imm, kind) = start(&mut wqe, &wr.op);
        let (mut count, mut bytes, mut refused) = (0, 0u64, None);
        if let Some(buffers) = &held {
            for sge in buffers.sges() {
                // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
                if sge.len == 0 {
                    continue;
                }
                let entry = self.reach.entry(sge);
                let Some(sge) = entry.filter(|_| count < self.max_sge) else {
                    refused = Some(PostError::of_sge(entry.is_some()));
                    break;
                };
                wqe.data(sge);
                count += 1;
                bytes += u64::from(sge.len);
            }
        }
        if let Some(cause) = refused {
            return Err(Refused { held, cause });
        }
        let is_atomic = matches!(kind, WcOpcode::CompareSwap | WcOpcode::FetchAdd);
        if is_atomic && (count, bytes) != (1, 8) {
            return Err(Refused { held, cause: PostError::AtomicBuffer });
        }
        if (is_atomic || kind == WcOpcode::Read) && !held.as_ref().is_none_or(B::is_exclusive) {
            return Err(Refused { held, cause: PostError::NotExclusive });
        }
        let end = wqe.end();
        let fence = self.fence(wr.flags);
        let entry = Entry { wr_id: wr.wr_id, opcode: kind, flags: wr.flags };
        self.close_at((opcode, imm, fence), end, entry, held, Other::Nothing);
        Ok(())
    }

    /// Writes any request whose data stand in it.
    #[inline(never)]
    pub(super) fn push_inline_any(
        &mut self,
        wr: &SendWr<'_>,
        data: &[u8],
    ) -> Result<(), PostError> {
        self.check(wr.op.number())?;
        if matches!(wr.op, SendOp::Frame) {
            return self.push_frame_inline(wr, data);
        }
        if data.len() > self.max_inline as usize {
            return Err(PostError::InlineTooLong);
        }
        let mut wqe = self.begin();
        let (opcode, imm, kind) = start(&mut wqe, &wr.op);
        if matches!(kind, WcOpcode::Read | WcOpcode::CompareSwap | WcOpcode::FetchAdd) {
            return Err(PostError::Operation);
        }
        if !data.is_empty() {
            wqe.inline(data);
        }
        let end = wqe.end();
        let fence = self.fence(wr.flags);
        let entry = Entry { wr_id: wr.wr_id, opcode: kind, flags: wr.flags };
        self.close_at((opcode, imm, fence), end, entry, None, Other::Nothing);
        Ok(())
    }

    /// Whether a request up to `next` must be signaled: half of the queue is in flight, and none of
    /// it will report its end.
    #[inline(always)]
    pub(super) fn is_long_run(&self, next: u64) -> bool {
        next > self.clear_until && self.signaled <= self.ci && self.requests() >= self.max_wr / 2
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

    /// Ends the request that was written up to unit `end`: see [`Sq::close`].
    pub(super) fn close_at(
        &mut self,
        (opcode, imm, fence): (Opcode, u32, u32),
        end: u32,
        entry: Entry,
        buffers: Option<B>,
        other: Other,
    ) {
        let ds = end.wrapping_sub((self.pi as u32).wrapping_mul(DS_PER_BLOCK));
        let size = (ds, ds.div_ceil(DS_PER_BLOCK));
        self.close((opcode, imm, fence), size, entry, buffers, other);
    }

    /// Writes the control segment of a request of `ds` units and as many blocks, notes what it is
    /// and holds, and moves past it.
    #[inline(always)]
    pub(super) fn close(
        &mut self,
        (opcode, imm, fence): (Opcode, u32, u32),
        (ds, blocks): (u32, u32),
        entry: Entry,
        buffers: Option<B>,
        other: Other,
    ) {
        let at = self.pi;
        let next = at + u64::from(blocks);
        let mut flags = fence;
        if entry.flags.contains(SendFlags::SOLICITED) {
            flags |= SE;
        }
        // A run without completions would fill the queue for ever; half of it is enough.
        if entry.flags.contains(SendFlags::SIGNALED) || self.is_long_run(next) {
            flags |= CE_ALWAYS;
            self.signaled = next;
        }
        self.extra_blocks += u64::from(blocks) - 1;
        let block = self.blocks.at(at as u32);
        let ctrl = put_control(block, (at, self.qpn), (opcode, imm), ds, flags);
        let slot = self.note((at, blocks as u8), ctrl, entry);
        slot.hold(buffers);
        std::mem::forget(std::mem::replace(&mut slot.other, other));
    }

    /// Notes the request at position `at`, of so many blocks, whose control segment starts with
    /// `ctrl`, and moves past it. Its slot is empty.
    #[inline(always)]
    pub(super) fn note(
        &mut self,
        (at, blocks): (u64, u8),
        ctrl: u64,
        entry: Entry,
    ) -> &mut Slot<B> {
        self.last_ctrl = ctrl;
        self.pi = at + u64::from(blocks);
        let slot = &mut self.slots[at as usize & self.slot_mask];
        (slot.wr_id, slot.opcode, slot.flags) = (entry.wr_id, entry.opcode, entry.flags);
        slot.blocks = blocks;
        slot
    }

    /// Writes a READ that only precedes what the caller posted. The caller made sure of the room.
    #[inline(always)]
    pub(super) fn push_first_read(&mut self, from: RemoteAddr, sink: Sge, flags: SendFlags) {
        let mut wqe = self.begin();
        wqe.raddr(from);
        wqe.data(sink);
        let fence = self.fence(flags);
        let entry = Entry { wr_id: 0, opcode: WcOpcode::Read, flags: SendFlags::empty() };
        self.close((Opcode::RDMA_READ, 0, fence), (3, 1), entry, None, Other::FirstPart);
    }

    /// Posts an empty request that is reported, if the last one is not, and rings the doorbell. On
    /// a queue in error it is flushed, and so ends what succeeded before it without a completion.
    /// Nothing on a full queue.
    pub(super) fn mark_end(&mut self) {
        if self.outstanding() > 0 && self.signaled != self.pi && self.free_wr() > 0 {
            let flags = SendFlags::SIGNALED;
            let entry = Entry { wr_id: 0, opcode: WcOpcode::Send, flags };
            self.close((Opcode::NOP, 0, 0), (1, 1), entry, None, Other::Marker);
            self.ring();
        }
    }

    /// As [`Sq::ring`], and asks for a completion of the last request.
    #[inline(always)]
    pub(super) fn ring_signaled(&mut self) {
        if self.signaled != self.pi {
            self.signaled = self.pi;
            let last = self.blocks.at(self.last_wqe_counter().into());
            last.store_be32::<8>(last.load_be32::<8>() | CE_ALWAYS);
        }
        self.ring();
    }

    /// Tells the device what was posted.
    #[inline(always)]
    pub(super) fn ring(&mut self) {
        if self.rung != self.pi {
            self.ring_last();
        }
    }

    /// The same when something was posted since.
    #[inline(always)]
    pub(super) fn ring_last(&mut self) {
        self.rung = self.pi;
        self.doorbells += 1;
        self.record.store_release_be32(self.pi as u32 & 0xffff);
        self.doorbell.ring(self.last_ctrl);
    }

    /// Blocks of requests that have not ended.
    #[inline(always)]
    pub(super) fn outstanding(&self) -> u32 {
        (self.pi - self.ci) as u32
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        self.heal();
        // Positions go on, with the next one whose low 16 bits are 0.
        self.pi = self.pi.next_multiple_of(1 << 16);
        (self.ci, self.rung, self.signaled, self.next_fence) = (self.pi, self.pi, self.pi, 0);
        (self.clear_until, self.ended) = (0, self.pi - self.extra_blocks);
        self.record.store_release_be32(0);
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        self.reach.leak();
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
