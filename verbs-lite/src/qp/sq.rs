//! The send queue of a queue pair: a ring of 64-byte blocks and what each request in it holds.
//!
//! | order | why |
//! |---|---|
//! | request, then doorbell record | the device reads up to the record's counter |
//! | doorbell record, then doorbell | the device reads the record when the doorbell rings |
//!
//! Requests complete in order. A completion ends every request up to the one that it names; those
//! before succeeded, or they would have completed themselves with an error.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use ferrocx_bus::{DmaWord, Doorbell, Ring};
use ferrocx_prm::wqe::Opcode;

use super::wqe::{Wqe, pair, start};
use crate::cq::Completion;
use crate::error::{Failure, PostError, Refused};
use crate::fastreg::{MrState, Origin, PageList, RegisteredMr};
use crate::mr::{Buffers, Sge};
use crate::types::RemoteAddr;
use crate::window::BoundMw;
use crate::wr::{RecvInfo, Returned, SendFlags, SendWr, Wc, WcOpcode};

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

/// The send queue.
pub(super) struct Sq<B> {
    /// The ring in 16-byte units, and in blocks.
    units: Ring<16>,
    pub(super) blocks: Ring<64>,
    doorbell: Doorbell,
    record: DmaWord,
    pub(super) qpn: u32,
    pub(super) pd_id: u32,
    /// Operations that may be posted, one bit each.
    pub(super) allowed: u32,
    /// Blocks posted and ended since the last reset.
    pub(super) pi: u32,
    pub(super) ci: u32,
    /// Value of `pi` when the doorbell was last rung, and behind the last signaled request.
    rung: u32,
    pub(super) signaled: u32,
    pub(super) slots: Box<[Slot<B>]>,
    /// Number of slots less one.
    pub(super) slot_mask: usize,
    /// Blocks in a row without a completion.
    max_run: u32,
    /// Blocks of the longest request.
    max_blocks: u32,
    max_sge: u32,
    pub(super) max_inline: u32,
    /// Fence that the next request needs because of the one before.
    pub(super) next_fence: u32,
    /// First eight bytes of the control segment of the last request, for the doorbell.
    pub(super) last_ctrl: u64,
    /// Its first block.
    pub(super) last_block: u32,
    pub(super) doorbells: u64,
    /// A number that no other queue ever has.
    id: u64,
    /// Requests posted and ended since the queue was made.
    pub(super) posted: u64,
    pub(super) ended: u64,
    /// Requests that ended with an error or "flushed", by position: those of the current life last,
    /// with an open end.
    broken: Vec<Range<u64>>,
    /// Failure of a first part, for the part behind it.
    carried: Option<Failure>,
}

/// What a send queue is made of.
pub(super) struct Parts {
    pub(super) units: Ring<16>,
    pub(super) blocks: Ring<64>,
    pub(super) doorbell: Doorbell,
    pub(super) record: DmaWord,
    pub(super) qpn: u32,
    pub(super) pd_id: u32,
    pub(super) max_blocks: u32,
    pub(super) max_sge: u32,
    pub(super) max_inline: u32,
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
            pd_id: parts.pd_id,
            allowed: 0,
            pi: 0,
            ci: 0,
            rung: 0,
            signaled: 0,
            slots: (0..blocks).map(|_| empty()).collect(),
            slot_mask: blocks as usize - 1,
            max_run: blocks / 2,
            max_blocks: parts.max_blocks,
            max_sge: parts.max_sge,
            max_inline: parts.max_inline,
            next_fence: 0,
            last_ctrl: 0,
            last_block: 0,
            doorbells: 0,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            posted: 0,
            ended: 0,
            broken: Vec::new(),
            carried: None,
        }
    }

    /// A number that no other queue ever has.
    #[inline(always)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Number of its queue pair.
    pub(super) fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Requests posted since the queue was made.
    #[inline(always)]
    pub(super) fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether one more request of any kind fits.
    #[inline(always)]
    pub(super) fn has_room(&self) -> bool {
        self.has_blocks(self.max_blocks)
    }

    /// Whether requests of so many blocks fit.
    #[inline(always)]
    pub(super) fn has_blocks(&self, blocks: u32) -> bool {
        self.free_blocks() >= blocks
    }

    /// Blocks that can be written.
    #[inline(always)]
    pub(super) fn free_blocks(&self) -> u32 {
        self.slots.len() as u32 - self.pi.wrapping_sub(self.ci)
    }

    /// Index of the first block of the request posted last.
    pub(super) fn last_wqe_counter(&self) -> u16 {
        self.last_block as u16
    }

    /// Starts a request behind those posted.
    #[inline(always)]
    pub(super) fn begin(&self) -> Wqe<'_> {
        let first = self.pi.wrapping_mul(DS_PER_BLOCK);
        Wqe::new(self.units.view(), first)
    }

    /// Writes a request with a gather or scatter list of any length. There is room.
    pub(super) fn push_any(
        &mut self,
        wr: &SendWr<'_>,
        held: Option<B>,
    ) -> Result<(), Refused<Option<B>>> {
        let mut wqe = self.begin();
        let (opcode, imm, kind) = start(&mut wqe, &wr.op);
        let (mut count, mut bytes, mut refused) = (0, 0u64, None);
        if let Some(buffers) = &held {
            for sge in buffers.sges() {
                // A data segment without bytes would mean 2 GiB. Source: reference 6.3.
                if sge.len == 0 {
                    continue;
                }
                if count == self.max_sge || sge.pd_id != self.pd_id {
                    refused = Some(sge);
                    break;
                }
                wqe.data(sge);
                count += 1;
                bytes += u64::from(sge.len);
            }
        }
        if let Some(sge) = refused {
            return Err(Refused { held, cause: PostError::of_sge(sge.pd_id == self.pd_id) });
        }
        let is_atomic = matches!(kind, WcOpcode::CompareSwap | WcOpcode::FetchAdd);
        if is_atomic && (count, bytes) != (1, 8) {
            return Err(Refused { held, cause: PostError::AtomicBuffer });
        }
        let end = wqe.end();
        let fence = self.fence(wr.flags);
        let entry = Entry { wr_id: wr.wr_id, opcode: kind, flags: wr.flags };
        self.slots[self.pi as usize & self.slot_mask].buffers = held;
        self.close(opcode, imm, fence, end, entry, Other::Nothing);
        Ok(())
    }

    /// Writes a request whose data stand in it, of any length that may. There is room.
    pub(super) fn push_inline_any(
        &mut self,
        wr: &SendWr<'_>,
        data: &[u8],
    ) -> Result<(), PostError> {
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
        self.close(opcode, imm, fence, end, entry, Other::Nothing);
        Ok(())
    }

    /// Whether too many requests up to `next` asked for no completion.
    #[inline(always)]
    pub(super) fn is_long_run(&self, next: u32) -> bool {
        next.wrapping_sub(self.signaled) > self.max_run
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

    /// Writes the control segment of the request that ends before unit `end`, notes what it holds,
    /// and moves past it.
    #[inline(always)]
    pub(super) fn close(
        &mut self,
        opcode: Opcode,
        imm: u32,
        fence: u32,
        end: u32,
        entry: Entry,
        other: Other,
    ) {
        let first = self.pi.wrapping_mul(DS_PER_BLOCK);
        let ds = end.wrapping_sub(first);
        let blocks = ds.div_ceil(DS_PER_BLOCK);
        let next = self.pi.wrapping_add(blocks);
        let mut flags = fence;
        if entry.flags.contains(SendFlags::SOLICITED) {
            flags |= SE;
        }
        // A run without completions would fill the ring for ever; half of it is enough.
        if entry.flags.contains(SendFlags::SIGNALED) || self.is_long_run(next) {
            flags |= CE_ALWAYS;
            self.signaled = next;
        }
        let ctrl = self.units.at(first);
        let index = (self.pi & 0xffff) << 8 | u32::from(opcode.0);
        self.last_ctrl = pair(index.to_be(), (self.qpn << 8 | ds).to_be());
        ctrl.store_raw64::<0>(self.last_ctrl);
        ctrl.store_raw64::<8>(pair(flags.to_be(), imm.to_be()));
        self.last_block = self.pi;
        let slot = &mut self.slots[self.pi as usize & self.slot_mask];
        (slot.wr_id, slot.opcode, slot.flags) = (entry.wr_id, entry.opcode, entry.flags);
        slot.blocks = blocks as u8;
        // Its place is empty: the slot's former request ended, see `complete`. Saying so spares
        // the check.
        std::mem::forget(std::mem::replace(&mut slot.other, other));
        self.pi = next;
        self.posted += 1;
    }

    /// The next request needs this fence.
    #[inline(always)]
    pub(super) fn fence_next(&mut self, fence: u32) {
        self.next_fence = fence;
    }

    /// Writes a READ that only precedes what the caller posted. The caller made sure of the room.
    #[inline(always)]
    pub(super) fn push_first_read(&mut self, from: RemoteAddr, sink: Sge, flags: SendFlags) {
        let mut wqe = self.begin();
        wqe.raddr(from);
        wqe.data(sink);
        let end = wqe.end();
        let fence = self.fence(flags);
        let entry = Entry { wr_id: 0, opcode: WcOpcode::Read, flags: SendFlags::empty() };
        self.close(Opcode::RDMA_READ, 0, fence, end, entry, Other::FirstPart);
    }

    /// Posts an empty request that is reported, if the last one is not, and rings the doorbell. On
    /// a queue in error it is flushed, and so ends what succeeded before it without a completion.
    /// Nothing on a full ring.
    pub(super) fn mark_end(&mut self) {
        if self.outstanding() > 0 && self.signaled != self.pi && self.has_blocks(1) {
            let end = self.begin().end();
            let flags = SendFlags::SIGNALED;
            let entry = Entry { wr_id: 0, opcode: WcOpcode::Send, flags };
            self.close(Opcode::NOP, 0, 0, end, entry, Other::Marker);
            self.ring();
        }
    }

    /// As [`Sq::ring`], and asks for a completion of the last request.
    #[inline(always)]
    pub(super) fn ring_signaled(&mut self) {
        if self.signaled != self.pi {
            self.signaled = self.pi;
            let last = self.blocks.at(self.last_block);
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
        self.record.store_release_be32(self.pi & 0xffff);
        self.doorbell.ring(self.last_ctrl);
    }

    /// Ends every request up to the one that a completion names, and gives each to `each`.
    /// `false` if the completion cannot be right; then nothing was ended.
    #[inline(never)]
    pub(super) fn complete(
        &mut self,
        completion: &Completion,
        failure: Option<Failure>,
        each: &mut impl FnMut(Wc<B>),
    ) -> bool {
        let ahead = u32::from(completion.wqe_counter().wrapping_sub(self.ci as u16));
        if ahead >= self.pi.wrapping_sub(self.ci) {
            return false;
        }
        let last = self.ci.wrapping_add(ahead);
        loop {
            let at = self.ci;
            let slot = &mut self.slots[at as usize & self.slot_mask];
            let (buffers, other) =
                (slot.buffers.take(), std::mem::replace(&mut slot.other, Other::Nothing));
            let entry = Entry { wr_id: slot.wr_id, opcode: slot.opcode, flags: slot.flags };
            self.ci = at.wrapping_add(slot.blocks.into());
            let is_last = at == last;
            let result = match failure {
                Some(failure) if is_last => Err(self.note(failure)),
                _ => Ok(()),
            };
            self.ended += 1;
            let byte_len =
                if is_last && entry.opcode.brings_bytes() { completion.byte_cnt() } else { 0 };
            if let Some((result, returned)) = self.give_back(buffers, other, result) {
                each(Wc {
                    wr_id: entry.wr_id,
                    opcode: entry.opcode,
                    result,
                    is_signaled: entry.flags.contains(SendFlags::SIGNALED),
                    byte_len,
                    recv: RecvInfo::default(),
                    returned,
                });
            }
            // A counter inside a request would not be met: the end of the posted ones ends it too.
            if is_last || self.ci == self.pi {
                return true;
            }
        }
    }

    /// What a request that ended this way gives back; `None` for a part that is not reported.
    #[inline(always)]
    fn give_back(
        &mut self,
        buffers: Option<B>,
        other: Other,
        result: Result<(), Failure>,
    ) -> Option<(Result<(), Failure>, Returned<B>)> {
        match other {
            Other::Nothing => Some((result, buffers.map_or(Returned::Nothing, Returned::Buffers))),
            Other::List(list) => Some((result, Returned::PageList(list))),
            Other::Ending(mr) if result.is_ok() => Some((result, Returned::Mr(mr.into_free()))),
            Other::Ending(mr) => Some(self.not_ended(Returned::Stale(mr), result)),
            Other::EndingMw(mw) if result.is_ok() => Some((result, Returned::Mw(mw.into_free()))),
            Other::EndingMw(mw) => Some(self.not_ended(Returned::StaleMw(mw), result)),
            Other::FirstPart => {
                self.carried = result.err();
                None
            }
            Other::Marker => None,
        }
    }

    /// An invalidation failed or was flushed.
    #[cold]
    fn not_ended(
        &mut self,
        stale: Returned<B>,
        result: Result<(), Failure>,
    ) -> (Result<(), Failure>, Returned<B>) {
        (self.carried.take().map_or(result, Err), stale)
    }

    /// The oldest request failed: notes the first failure of this life.
    #[cold]
    fn note(&mut self, failure: Failure) -> Failure {
        if self.broken.last().is_none_or(|range| range.end != u64::MAX) {
            self.broken.push(self.ended..u64::MAX);
        }
        failure
    }

    /// What is known of a key by the requests of this queue.
    pub(super) fn state_of(&self, origin: Origin) -> MrState {
        let Origin { queue, position } = origin;
        if queue != self.id || self.broken.iter().any(|range| range.contains(&position)) {
            return MrState::Unknown;
        }
        if position >= self.ended { MrState::Posted } else { MrState::Valid }
    }

    /// A new life begins: what is posted from here on is carried out again.
    pub(super) fn heal(&mut self) {
        if let Some(range) = self.broken.last_mut()
            && range.end == u64::MAX
        {
            range.end = self.posted;
        }
    }

    /// Blocks of requests that have not ended: completions that may still come.
    pub(super) fn outstanding(&self) -> u32 {
        self.pi.wrapping_sub(self.ci)
    }

    /// Starts again at the beginning of the ring: the queue pair was reset, and all has ended.
    pub(super) fn reset(&mut self) {
        self.heal();
        (self.pi, self.ci, self.rung, self.signaled, self.next_fence) = (0, 0, 0, 0, 0);
        self.record.store_release_be32(0);
    }

    /// Keeps what is held for ever: the device may still use it.
    pub(super) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.slots));
    }
}
