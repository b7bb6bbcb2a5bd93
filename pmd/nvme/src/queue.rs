//! [`IoQueue`]: a queue pair of one core, for one namespace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx_bus::{BusError, DmaAccess, Ring, Transport};
use ferrocx_mempool::{Pages, Piece, Region};
use zerocopy::little_endian::{U16, U32, U64};

use crate::command::{BY_SGL, DEALLOCATE, FUA, MAY_DEALLOCATE, Sqe, Status, io};
use crate::identify::{ControllerInfo, Namespace};
use crate::parts::{Memory, Parts, heap};
use crate::registers::Doorbells;
use crate::shared::{ACTIVE, CLEAN, DEAD, DOWN, MAKING, QUIET, QueueShared, STUCK};
use crate::{Failure, NvmeError, Refused};

/// Bytes of the page that a command has for its list.
const LIST_BYTES: usize = 4096;
/// Pages that lists of pages are made of.
const PAGE_BYTES: usize = 4096;
/// Requests for each entry of the queue: those without room wait in order.
const REQUESTS: usize = 4;
/// The number of a command: its place in bits 9:0, for queues have at most 1024 entries and one
/// command less, and how often the place was used in the six above. A completion that a drive
/// repeats later names nothing that is under way then. 0xffff is no number, for there is no place
/// 1023. Source: Linux e7006de6c238, which has a generation, too.
const PLACE: u16 = (1 << 10) - 1;
const USE: u16 = PLACE + 1;
/// Blocks of one Write Zeroes at most: its field has 16 bits.
const MOST_ZEROES: u64 = 1 << 16;

/// What is to be done. Pieces are known by their virtual address; their I/O address is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Fills memory with blocks.
    Read {
        /// The first block.
        lba: u64,
        /// Where they go: whole blocks.
        to: Piece,
    },
    /// Writes memory to blocks.
    Write {
        /// The first block.
        lba: u64,
        /// What is written: whole blocks.
        from: Piece,
        /// Whether it shall be on the medium before this ends.
        is_durable: bool,
    },
    /// What was written is to be on the medium.
    Flush,
    /// Blocks become zeros.
    Zero {
        /// The first.
        lba: u64,
        /// How many.
        blocks: u64,
        /// Whether the drive may give their room back.
        may_deallocate: bool,
    },
    /// Blocks need not be kept.
    Deallocate {
        /// The first.
        lba: u64,
        /// How many.
        blocks: u64,
    },
}

/// A request that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The caller's name of it.
    pub token: u64,
    /// How it ended.
    pub result: Result<(), Failure>,
}

/// What a queue is made by.
#[derive(Debug)]
pub(crate) struct QueueConfig {
    pub(crate) qid: u16,
    pub(crate) entries: u32,
    pub(crate) namespace: Namespace,
    pub(crate) info: ControllerInfo,
    pub(crate) use_sgl: bool,
    pub(crate) timeout: Duration,
}

/// A command that may be under way.
#[derive(Debug, Clone, Copy)]
struct Command {
    /// Its number, see [`PLACE`].
    cid: u16,
    /// The request that it is of; `None` for none.
    request: Option<u16>,
    since: Instant,
    is_late: bool,
}

/// A request that may be under way.
#[derive(Debug, Clone, Copy)]
struct Request {
    is_busy: bool,
    token: u64,
    op: Op,
    /// Where its data are for the drive.
    iova: u64,
    /// The next block, and how many are to go; 1 of a flush.
    lba: u64,
    left: u64,
    /// Commands of it under way.
    under_way: u16,
    failure: Option<Failure>,
    is_late: bool,
}

/// A queue pair for a namespace of a drive. Belongs to one core at a time.
///
/// Dropping it with requests under way is no harm: the controller deletes it before its memory
/// goes.
#[derive(Debug)]
pub struct IoQueue {
    shared: Arc<QueueShared>,
    /// `None` when the drive has gone.
    parts: Option<Parts>,
    config: QueueConfig,
    commands: Box<[Command]>,
    /// Places of commands.
    free_commands: Vec<u16>,
    /// The place of a late command that has ended, until the controller has seen that.
    parked: Option<u16>,
    requests: Box<[Request]>,
    free_requests: Vec<u16>,
    /// Requests of which not all commands have been put in, the oldest first.
    unsent: VecDeque<u16>,
    /// Entries put in and taken out since the queue was made, and what the drive was told of.
    tail: u32,
    head: u32,
    told_tail: u32,
    told_head: u32,
    now: Instant,
}

impl IoQueue {
    pub(crate) fn new(
        transport: &dyn Transport,
        config: QueueConfig,
        doorbells: Doorbells,
        memory: &[Arc<Region>],
    ) -> Result<Self, NvmeError> {
        let entries = config.entries;
        let (count, log) = ((entries - 1) as usize, entries.ilog2());
        let ring_bytes = (entries as usize * 64).next_multiple_of(4096);
        let heap = heap(transport, 2 * ring_bytes + count * LIST_BYTES)?;
        let ring = || Ok::<_, BusError>(Arc::new(heap.alloc(ring_bytes, 4096)?));
        #[expect(clippy::cast_possible_truncation, reason = "at most 10")]
        let log = log as u8;
        let map = |region: &Arc<Region>| {
            let raw = region.use_raw()?;
            let mapping = transport.dma().map(Arc::clone(region), DmaAccess::ReadWrite)?;
            Ok::<_, NvmeError>(Memory { mapping, _raw: raw })
        };
        let parts = Parts {
            doorbells,
            sq: Ring::new(ring()?, 0, log)?,
            cq: Ring::new(ring()?, 0, log)?,
            lists: heap.alloc(count * LIST_BYTES, 4096)?,
            memory: memory.iter().map(map).collect::<Result<_, _>>()?,
            _heap: heap,
        };
        let iovas = (parts.sq.iova(), parts.cq.iova());
        let now = transport.now();
        let numbers = |count: usize| (0..count).rev().filter_map(|at| u16::try_from(at).ok());
        let unused = |cid| Command { cid, request: None, since: now, is_late: false };
        Ok(Self {
            shared: Arc::new(QueueShared::new(config.qid, config.namespace, iovas, entries)),
            parts: Some(parts),
            config,
            commands: numbers(count).rev().map(unused).collect(),
            free_commands: numbers(count).collect(),
            parked: None,
            requests: vec![UNUSED; REQUESTS * count].into(),
            free_requests: numbers(REQUESTS * count).collect(),
            unsent: VecDeque::with_capacity(REQUESTS * count),
            tail: 0,
            head: 0,
            told_tail: 0,
            told_head: 0,
            now,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<QueueShared> {
        &self.shared
    }

    /// The namespace that it is for.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.config.namespace
    }

    /// What the drive says of itself.
    #[must_use]
    pub fn info(&self) -> &ControllerInfo {
        &self.config.info
    }

    /// Requests under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.requests.len() - self.free_requests.len()
    }

    /// Whether it takes nothing because the drive is being reset: what is pushed is
    /// [`Refused::NotReady`].
    #[inline]
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self.shared.state(), CLEAN | MAKING | DOWN | QUIET)
    }

    /// Takes a request, under a name of the caller's. The drive hears of it by [`IoQueue::ring`].
    /// A request without bytes or blocks ends at once, as does a flush of a drive without a cache.
    ///
    /// # Errors
    ///
    /// [`Refused`]; nothing is under way then.
    pub fn push(&mut self, token: u64, op: Op) -> Result<(), Refused> {
        let Some(parts) = &self.parts else { return Err(Refused::Gone) };
        match self.shared.state() {
            ACTIVE => {}
            CLEAN | MAKING | DOWN | QUIET => return Err(Refused::NotReady),
            _ => return Err(Refused::Gone),
        }
        let (info, shift) = (&self.config.info, self.config.namespace.block_shift);
        let (lba, left, iova) = match op {
            Op::Read { lba, to: piece } | Op::Write { lba, from: piece, .. } => {
                let len = piece.len_bytes as u64;
                let mut found = parts.memory.iter().filter_map(|it| it.mapping.piece(piece));
                let iova = found.next().ok_or(Refused::Memory)?.iova;
                if !iova.is_multiple_of(4) || len & ((1 << shift) - 1) != 0 {
                    return Err(Refused::Memory);
                }
                (lba, len >> shift, iova)
            }
            Op::Flush => (0, u64::from(info.has_cache), 0),
            Op::Zero { .. } if !info.has_write_zeroes => return Err(Refused::Unsupported),
            Op::Deallocate { .. } if !info.has_deallocate => return Err(Refused::Unsupported),
            Op::Zero { lba, blocks, .. } | Op::Deallocate { lba, blocks } => (lba, blocks, 0),
        };
        let is_inside = lba.checked_add(left).is_some_and(|it| it <= self.config.namespace.blocks);
        if !is_inside {
            return Err(Refused::Range);
        }
        let index = self.free_requests.pop().ok_or(Refused::Full)?;
        if let Some(request) = self.requests.get_mut(usize::from(index)) {
            *request = Request { is_busy: true, token, op, iova, lba, left, ..UNUSED };
        }
        self.unsent.push_back(index);
        self.put();
        Ok(())
    }

    /// Puts in as many commands as there is room for.
    #[inline]
    fn put(&mut self) {
        let Some(parts) = &self.parts else { return };
        while let Some(index) = self.unsent.front().copied() {
            let Some(request) = self.requests.get_mut(usize::from(index)) else { return };
            // What has ended by nothing to do, or failed, goes out by `poll`.
            if request.left == 0 {
                if request.under_way == 0 {
                    return;
                }
                self.unsent.pop_front();
                continue;
            }
            let Some(place) = self.free_commands.pop() else { return };
            let Some(command) = self.commands.get_mut(usize::from(place)) else { return };
            let cid = command.cid.wrapping_add(USE);
            *command = Command { cid, request: Some(index), since: self.now, is_late: false };
            let sqe = next(&self.config, parts, request, cid);
            request.under_way += 1;
            parts.sq.at(self.tail).store(&sqe.bytes());
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Tells the drive of what was pushed and polled: two stores at most.
    #[inline]
    pub fn ring(&mut self) {
        let Some(parts) = &self.parts else { return };
        let state = self.shared.state();
        if !matches!(state, ACTIVE | QUIET) {
            return;
        }
        let mask = self.config.entries - 1;
        if self.told_head != self.head {
            self.told_head = self.head;
            parts.doorbells.consumed(self.head & mask);
        }
        if self.told_tail != self.tail && state == ACTIVE {
            self.told_tail = self.tail;
            parts.doorbells.submit(self.tail & mask);
        }
    }

    /// The next request that has ended.
    #[inline]
    pub fn poll(&mut self) -> Option<Done> {
        match self.shared.state() {
            ACTIVE | QUIET => self.poll_active(),
            // Nothing is under way.
            CLEAN | MAKING => None,
            state => self.end_all(state),
        }
    }

    fn poll_active(&mut self) -> Option<Done> {
        loop {
            // What has nothing to do is at the front once all before it is under way.
            if let Some(index) = self.unsent.front().copied()
                && let Some(request) = self.requests.get(usize::from(index))
                && (request.left, request.under_way) == (0, 0)
            {
                self.unsent.pop_front();
                let done = self.finish(index);
                self.put();
                return done;
            }
            let parts = self.parts.as_ref()?;
            let completion = parts.cq.at(self.head);
            let word = u32::from_le(completion.load_acquire_raw32::<0x0c>());
            // The phase is 1 in the first round, and changes with each; entries are a power of two.
            if (word >> 16 & 1 != 0) == (self.head & self.config.entries != 0) {
                return None;
            }
            let ids = u32::from_le(completion.load_raw32::<0x08>());
            let index = self.completed(word, ids)?;
            self.head = self.head.wrapping_add(1);
            let request = self.requests.get(usize::from(index))?;
            let has_ended = request.under_way == 0 && request.left == 0;
            if has_ended {
                // Its commands were all put in, so that it waits no more; unless it failed.
                if self.unsent.front() == Some(&index) {
                    self.unsent.pop_front();
                }
                let done = self.finish(index);
                self.put();
                return done;
            }
            self.put();
        }
    }

    /// Takes note of a completion; whose it was. `None` if it cannot be.
    #[inline]
    fn completed(&mut self, word: u32, ids: u32) -> Option<u16> {
        #[expect(clippy::cast_possible_truncation, reason = "16 bits of either")]
        let (cid, status) = (word as u16, Status((word >> 17) as u16));
        let place = cid & PLACE;
        let is_sane = ids >> 16 == u32::from(self.config.qid) && ids & 0xffff < self.config.entries;
        let command = self.commands.get_mut(usize::from(place));
        let command = command.filter(|it| is_sane && it.cid == cid);
        let Some((command, index)) = command.and_then(|it| it.request.take().map(|at| (it, at)))
        else {
            // Its controller resets it; until then nothing it says counts.
            self.shared.set_insane();
            return None;
        };
        let was_late = std::mem::take(&mut command.is_late);
        if was_late {
            // An abort of this number may be on its way.
            self.parked = Some(place);
            self.shared.late_has_ended();
        } else {
            self.free_commands.push(place);
        }
        let request = self.requests.get_mut(usize::from(index))?;
        request.under_way -= 1;
        if status.0 != 0 {
            let failure = if was_late { Failure::TimedOut } else { Failure::Status(status) };
            request.failure.get_or_insert(failure);
            // What was not put in is not worth it.
            request.left = 0;
        }
        Some(index)
    }

    /// Ends a request.
    #[inline]
    fn finish(&mut self, index: u16) -> Option<Done> {
        let request = self.requests.get_mut(usize::from(index))?;
        let done = Done { token: request.token, result: request.failure.map_or(Ok(()), Err) };
        *request = UNUSED;
        self.free_requests.push(index);
        Some(done)
    }

    /// Ends everything that was under way on a drive that does no more of it: it reaches no memory
    /// of this queue, or is stuck, which is said of each.
    #[cold]
    fn end_all(&mut self, state: u8) -> Option<Done> {
        if let Some(at) = self.requests.iter().position(|it| it.is_busy) {
            let request = &mut self.requests[at];
            let failure = match state {
                DOWN if request.is_late => Failure::TimedOut,
                DOWN => Failure::Reset,
                STUCK => Failure::Stuck,
                _ => Failure::Gone,
            };
            // One part of it may have failed, and another still be in the drive's hands.
            match failure {
                Failure::Stuck => request.failure = Some(failure),
                failure => drop(request.failure.get_or_insert(failure)),
            }
            return self.finish(u16::try_from(at).ok()?);
        }
        if state != DOWN {
            let parts = self.parts.take();
            if state == STUCK {
                std::mem::forget(parts);
            }
            return None;
        }
        if let Some(parts) = &self.parts {
            parts.sq.buf().fill(0);
            parts.cq.buf().fill(0);
        }
        (self.tail, self.head, self.told_tail, self.told_head) = (0, 0, 0, 0);
        self.unsent.clear();
        self.free_commands.clear();
        self.parked = None;
        for (place, command) in (0..).zip(&mut self.commands) {
            (command.request, command.is_late) = (None, false);
            self.free_commands.push(place);
        }
        self.shared.cleaned();
        None
    }

    /// Tells the queue the time of its transport, a hundred times a second or so: commands that
    /// take too long are aborted by the controller.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if self.shared.state() != ACTIVE || !self.shared.is_punctual() {
            return;
        }
        if let Some(place) = self.parked.take() {
            self.free_commands.push(place);
            self.put();
        }
        let is_late = |it: &&mut Command| {
            let took = now.saturating_duration_since(it.since);
            it.request.is_some() && took > self.config.timeout
        };
        let oldest = self.commands.iter_mut().filter(is_late).min_by_key(|it| it.since);
        if let Some(command) = oldest {
            command.is_late = true;
            let request = command.request.and_then(|at| self.requests.get_mut(usize::from(at)));
            if let Some(request) = request {
                request.is_late = true;
            }
            self.shared.set_late(command.cid);
        }
    }
}

const NOWHERE: Op = Op::Flush;
const UNUSED: Request = Request {
    is_busy: false,
    token: 0,
    op: NOWHERE,
    iova: 0,
    lba: 0,
    left: 0,
    under_way: 0,
    failure: None,
    is_late: false,
};

/// The next command of a request, with its list in place.
#[inline]
fn next(config: &QueueConfig, parts: &Parts, request: &mut Request, cid: u16) -> Sqe {
    let shift = config.namespace.block_shift;
    let longest = config.info.max_transfer >> shift;
    let list_at = usize::from(cid & PLACE) * LIST_BYTES;
    let list = parts.lists.iova() + list_at as u64;
    let (opcode, most, flags) = match request.op {
        Op::Read { .. } => (io::READ, longest, 0),
        Op::Write { is_durable, .. } => (io::WRITE, longest, if is_durable { FUA } else { 0 }),
        Op::Flush => (io::FLUSH, 1, 0),
        Op::Zero { may_deallocate, .. } => {
            let flags = if may_deallocate { MAY_DEALLOCATE } else { 0 };
            (io::WRITE_ZEROES, (config.info.max_zeroes >> shift).min(MOST_ZEROES), flags)
        }
        Op::Deallocate { .. } => (io::DATASET, config.info.max_deallocate, 0),
    };
    #[expect(clippy::cast_possible_truncation, reason = "at most 2^32 - 1")]
    let count = request.left.min(most) as u32;
    let mut sqe = Sqe::new(opcode);
    sqe.cid = U16::new(cid);
    sqe.nsid = U32::new(config.namespace.nsid);
    match request.op {
        Op::Read { .. } | Op::Write { .. } => {
            sqe = sqe.blocks(request.lba, count, flags);
            let len = u64::from(count) << shift;
            describe(config, parts, &mut sqe, (request.iova, len), (list, list_at));
            request.iova += len;
        }
        Op::Zero { .. } => sqe = sqe.blocks(request.lba, count, flags),
        Op::Flush => {}
        Op::Deallocate { .. } => {
            let mut range = [0; 16];
            range[4..8].copy_from_slice(&count.to_le_bytes());
            range[8..].copy_from_slice(&request.lba.to_le_bytes());
            parts.lists.copy_in(list_at, &range);
            // One range: its number is one less.
            sqe.data[0] = U64::new(list);
            sqe.cdw11 = U32::new(DEALLOCATE);
        }
    }
    request.lba += u64::from(count);
    request.left -= u64::from(count);
    sqe
}

/// Says where the data of a command are: by one descriptor, or by their pages.
#[inline]
fn describe(
    config: &QueueConfig,
    parts: &Parts,
    sqe: &mut Sqe,
    (iova, len): (u64, u64),
    (list, list_at): (u64, usize),
) {
    sqe.data[0] = U64::new(iova);
    if config.use_sgl {
        sqe.flags = BY_SGL;
        // Length in the low half; type 0, a data block, in the last byte.
        sqe.data[1] = U64::new(len);
        return;
    }
    let len_bytes = usize::try_from(len).unwrap_or(usize::MAX);
    let whole = Piece { address: 0, len_bytes, iova, lkey_be: 0, domain: 0, is_foreign: false };
    // One piece always is a list of pages.
    let Ok(mut pages) = Pages::new([whole], PAGE_BYTES) else { return };
    pages.next();
    match pages.len() {
        0 => {}
        1 => sqe.data[1] = U64::new(pages.next().unwrap_or(0)),
        _ => {
            sqe.data[1] = U64::new(list);
            for (at, page) in pages.take(LIST_BYTES / 8).enumerate() {
                parts.lists.store_be64(list_at + 8 * at, page.swap_bytes());
            }
        }
    }
}

impl Drop for IoQueue {
    fn drop(&mut self) {
        let mut left = self.shared.left();
        left.is_dropped = true;
        match self.shared.state() {
            // The controller has let go of it, and the drive reaches nothing.
            DEAD => {}
            STUCK => std::mem::forget(self.parts.take()),
            _ => left.parts = self.parts.take(),
        }
    }
}
