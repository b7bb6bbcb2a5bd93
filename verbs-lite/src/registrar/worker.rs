//! The side of a pipeline that owns the queue pair.

use std::sync::Arc;

use ferrocx_core::lcore::{StopFlag, WaitStrategy};
use rtrb::{Consumer, Producer};

use super::client::{Answer, Ending, FailureCause, KeyId, Purpose, RegisteredKey, Request};
use super::{Lane, RegistrarConfig};
use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::{Failure, VerbsError};
use crate::fastreg::{FastReg, FastRegMr, PageList, RegisteredMr};
use crate::mr::Memory;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::types::Access;
use crate::wr::{Returned, SendFlags, Wc, WcOpcode};

/// Completions taken in one turn at most, so that its length stays bounded.
const COMPLETIONS_PER_TURN: usize = 64;
/// Blocks of the longest chain: a registration, a READ, an invalidation.
const CHAIN_BLOCKS: u32 = 6;

/// A key of the set, and where it stands.
#[derive(Debug)]
struct Slot {
    place: Place,
    /// The request that it serves.
    tag: u64,
    /// Goes up each time it is bound: names of before do not fit any more.
    generation: u32,
    /// `None` while the queue pair has it.
    list: Option<PageList>,
}

#[derive(Debug)]
enum Place {
    Free(FastRegMr),
    Registering(RegisteredMr),
    Held(RegisteredMr),
    /// The queue pair has it, to end it.
    Ending,
    /// The device failed: it may be bound.
    Stale(RegisteredMr),
}

/// The worker's ends of the rings.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) requests: Consumer<Request>,
    pub(super) endings: Consumer<Ending>,
    pub(super) answers: Producer<Answer>,
}

/// The set of keys and the answers about them.
#[derive(Debug)]
struct Table {
    slots: Box<[Slot]>,
    /// Slots that are free. It has room for all.
    free: Vec<u32>,
    answers: Producer<Answer>,
    /// Answers that are owed: places of the ring that are spoken for.
    owed: usize,
    failed: bool,
}

/// A pipeline's worker: run it on a core of its own.
#[derive(Debug)]
pub struct Worker {
    qp: Qp<()>,
    cq: Cq,
    memories: Box<[Arc<Memory>]>,
    requests: Consumer<Request>,
    endings: Consumer<Ending>,
    table: Table,
}

/// What is left of a pipeline: everything that it was made of.
#[derive(Debug)]
pub struct Drained {
    /// The queue pair.
    pub qp: Qp<()>,
    /// Its completion queue.
    pub cq: Cq,
    /// Keys that nobody can use.
    pub free: Vec<FastRegMr>,
    /// Keys that are bound, or may be, with the tags of their requests: end them on another queue
    /// pair, revoke or drop them.
    pub bound: Vec<(u64, RegisteredMr)>,
}

impl Worker {
    pub(super) fn new(
        device: &RdmaContext,
        pd: &Pd,
        lane: Lane,
        memories: Vec<Arc<Memory>>,
        config: &RegistrarConfig,
        rings: Rings,
    ) -> Result<Self, VerbsError> {
        let slot = |_| {
            let mut mr = pd.alloc_mr(config.layout, config.max_page_list_len)?;
            memories.iter().try_for_each(|memory| mr.attach(memory))?;
            let list = device.alloc_page_list(config.layout, config.max_page_list_len)?;
            Ok(Slot { place: Place::Free(mr), tag: 0, generation: 0, list: Some(list) })
        };
        let slots = (0..config.keys).map(slot).collect::<Result<Box<[Slot]>, VerbsError>>()?;
        let free = (0..config.keys).rev().collect();
        let table = Table { slots, free, answers: rings.answers, owed: 0, failed: false };
        Ok(Self {
            qp: lane.qp,
            cq: lane.cq,
            memories: memories.into(),
            requests: rings.requests,
            endings: rings.endings,
            table,
        })
    }

    /// Works until told to stop or until the queue pair fails, and then as [`Worker::drain`].
    pub fn run(mut self, stop: &StopFlag, wait: WaitStrategy) -> Drained {
        while !stop.is_set() && !self.has_failed() {
            if !self.turn() {
                wait.wait();
            }
        }
        self.drain(|| wait.wait())
    }

    /// Whether the queue pair failed: it takes nothing more.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.table.failed
    }

    /// One turn: takes completions, then endings, then requests, and rings once. Whether there was
    /// anything to do.
    ///
    /// Allocates nothing, takes no lock, makes no system call.
    pub fn turn(&mut self) -> bool {
        let mut busy = self.take_completions();
        while !self.table.failed && self.has_room() {
            let Ok(ending) = self.endings.pop() else { break };
            busy = true;
            self.end(ending);
        }
        while !self.table.failed && self.has_room() {
            let Some(at) = self.table.free.last().copied() else { break };
            let Ok(request) = self.requests.pop() else { break };
            busy = true;
            if let Err(cause) = self.register(at, &request) {
                self.table.refuse(request.tag, cause);
            }
        }
        self.qp.ring_doorbell_signaled();
        busy
    }

    /// Room in the send queue, and for the answer.
    fn has_room(&self) -> bool {
        self.table.answers.slots() > self.table.owed && self.qp.free_blocks() >= CHAIN_BLOCKS
    }

    fn take_completions(&mut self) -> bool {
        let Self { qp, cq, table, .. } = self;
        let mut busy = false;
        for _ in 0..COMPLETIONS_PER_TURN {
            let Some(completion) = cq.poll() else { break };
            busy = true;
            if let Err(error) = qp.complete(completion, |wc| table.ended(wc)) {
                tracing::error!(%error, "registrar");
                table.failed = true;
            }
        }
        busy
    }

    fn end(&mut self, Ending { id, proof }: Ending) {
        let table = &mut self.table;
        // Names are given out once and come back once, so another one is of another pipeline.
        let Some((tag, mr)) = table.take_held(&id) else {
            return table.refuse(0, FailureCause::NoSuchKey);
        };
        if let Some(proof) = proof {
            return match mr.invalidated_by(proof) {
                Ok(mr) => table.freed(id.slot, mr, Answer::Ended { tag }),
                Err((mr, _)) => {
                    table.put(id.slot, Place::Held(mr));
                    table.refuse(tag, FailureCause::NoSuchKey);
                }
            };
        }
        match self.qp.queue_local_inv(id.slot.into(), SendFlags::empty(), mr) {
            Ok(()) => table.owed += 1,
            Err(refused) => {
                table.put(id.slot, Place::Held(refused.held));
                table.refuse(tag, FailureCause::Post(refused.cause));
            }
        }
    }

    /// Posts what a request needs, with the key of the free slot `at`.
    fn register(&mut self, at: u32, request: &Request) -> Result<(), FailureCause> {
        let memory = self.memories.get(request.memory as usize);
        let memory = memory.ok_or(FailureCause::NoSuchMemory)?;
        let table = &mut self.table;
        let Some((mr, mut list)) = table.take_free(at) else { return Ok(()) };
        if let Err(error) = list.map(memory, &request.pieces) {
            table.give_free(at, mr, list);
            return Err(FailureCause::Pieces(error));
        }
        let (access, remote_invalidate) = match request.purpose {
            Purpose::Hold { access, remote_invalidate } => (access, remote_invalidate),
            Purpose::Read { .. } => (Access::LOCAL_WRITE, false),
        };
        let (flags, start) = (SendFlags::empty(), list.first_offset());
        let wr = FastReg { wr_id: at.into(), flags, start, access, remote_invalidate };
        let bound = match self.qp.queue_fast_reg(&wr, mr, list) {
            Ok(bound) => bound,
            Err(refused) => {
                let (mr, list) = refused.held;
                table.give_free(at, mr, list);
                return Err(FailureCause::Post(refused.cause));
            }
        };
        table.owed += 1;
        table.begin(at, request.tag);
        let Purpose::Read { from } = request.purpose else {
            table.put(at, Place::Registering(bound));
            return Ok(());
        };
        // As long as the region is, which fits 32 bits: a message is no longer.
        let len = u32::try_from(bound.len_bytes()).unwrap_or(u32::MAX);
        if let Err(refused) = self.qp.queue_read_with_inv(at.into(), flags, from, len, bound) {
            // The registration is on its way; its completion finds the key and answers.
            table.put(at, Place::Stale(refused.held));
            table.failed = true;
        }
        Ok(())
    }

    /// Answers everything that was taken and asked for, and gives back what the pipeline was made
    /// of. `wait` is called while there is nothing to do.
    ///
    /// What still waits in the rings is answered with [`FailureCause::Stopped`]; a client that
    /// takes no answers is waited for, unless it is gone.
    pub fn drain(mut self, mut wait: impl FnMut()) -> Drained {
        if self.table.failed
            && let Err(error) = self.qp.to_error()
        {
            tracing::error!(%error, "registrar: the queue pair is not flushed");
        }
        while self.table.owed > 0 && self.qp.has_outstanding() {
            if !self.take_completions() {
                wait();
            }
        }
        while !self.table.answers.is_abandoned() {
            if self.table.answers.is_full() {
                wait();
            } else if let Ok(request) = self.requests.pop() {
                self.table.refuse(request.tag, FailureCause::Stopped);
            } else if let Ok(ending) = self.endings.pop() {
                let tag = self.table.slots.get(ending.id.slot as usize).map_or(0, |slot| slot.tag);
                self.table.refuse(tag, FailureCause::Stopped);
            } else {
                break;
            }
        }
        let (mut free, mut bound) = (Vec::new(), Vec::new());
        for slot in self.table.slots {
            match slot.place {
                Place::Free(mr) => free.push(mr),
                Place::Registering(mr) | Place::Held(mr) | Place::Stale(mr) => {
                    bound.push((slot.tag, mr));
                }
                Place::Ending => {}
            }
        }
        Drained { qp: self.qp, cq: self.cq, free, bound }
    }
}

impl Table {
    fn put(&mut self, at: u32, place: Place) {
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.place = place;
        }
    }

    /// Takes a key that is held under this name, to end it.
    fn take_held(&mut self, id: &KeyId) -> Option<(u64, RegisteredMr)> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        if slot.generation != id.generation || !matches!(slot.place, Place::Held(_)) {
            return None;
        }
        match std::mem::replace(&mut slot.place, Place::Ending) {
            Place::Held(mr) => Some((slot.tag, mr)),
            _ => None,
        }
    }

    /// Takes the key and the list of a free slot.
    fn take_free(&mut self, at: u32) -> Option<(FastRegMr, PageList)> {
        let slot = self.slots.get_mut(at as usize)?;
        let list = slot.list.take()?;
        match std::mem::replace(&mut slot.place, Place::Ending) {
            Place::Free(mr) => Some((mr, list)),
            other => {
                (slot.place, slot.list) = (other, Some(list));
                None
            }
        }
    }

    /// Puts them back.
    fn give_free(&mut self, at: u32, mr: FastRegMr, list: PageList) {
        if let Some(slot) = self.slots.get_mut(at as usize) {
            (slot.place, slot.list) = (Place::Free(mr), Some(list));
        }
    }

    /// The free slot `at`, the last of the list, serves a request from here on.
    fn begin(&mut self, at: u32, tag: u64) {
        self.free.pop();
        if let Some(slot) = self.slots.get_mut(at as usize) {
            slot.tag = tag;
            slot.generation = slot.generation.wrapping_add(1);
        }
    }

    /// A key has ended, and the answer has a place.
    fn freed(&mut self, at: u32, mr: FastRegMr, answer: Answer) {
        self.put(at, Place::Free(mr));
        self.free.push(at);
        self.push(answer);
    }

    /// Answers a request that was not begun; the answer has a place.
    fn refuse(&mut self, tag: u64, cause: FailureCause) {
        self.push(Answer::Failed { tag, cause });
    }

    /// The answer has a place: it was owed, or the ring had room for it.
    fn push(&mut self, answer: Answer) {
        if self.answers.push(answer).is_err() {
            tracing::error!("registrar: an answer had no place");
        }
    }

    /// A request of the queue pair has ended.
    fn ended(&mut self, wc: Wc<()>) {
        let at = wc.wr_id as u32;
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let tag = slot.tag;
        match wc.returned {
            Returned::PageList(list) => {
                slot.list = Some(list);
                self.registered(at, wc.result);
            }
            Returned::Mr(mr) => {
                self.owed -= 1;
                let is_read = wc.opcode == WcOpcode::ReadWithInv;
                let answer = if is_read { Answer::Read { tag } } else { Answer::Ended { tag } };
                self.freed(at, mr, answer);
            }
            Returned::Stale(mr) => {
                slot.place = Place::Stale(mr);
                self.device_failed(tag, wc.result);
            }
            // A pipeline binds no windows.
            Returned::Nothing | Returned::Buffers(()) | Returned::Mw(_) | Returned::StaleMw(_) => {}
        }
    }

    fn registered(&mut self, at: u32, result: Result<(), Failure>) {
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let (tag, generation) = (slot.tag, slot.generation);
        // Of a chain, the last request answers.
        let place = match std::mem::replace(&mut slot.place, Place::Ending) {
            Place::Registering(mr) => mr,
            Place::Stale(mr) => {
                slot.place = Place::Stale(mr);
                return self.device_failed(tag, result);
            }
            other => {
                slot.place = other;
                return;
            }
        };
        if result.is_err() {
            slot.place = Place::Stale(place);
            return self.device_failed(tag, result);
        }
        let id = KeyId { slot: at, generation };
        let key = RegisteredKey { id, remote: place.remote(), len_bytes: place.len_bytes() };
        slot.place = Place::Held(place);
        self.owed -= 1;
        self.push(Answer::Key { tag, key });
    }

    #[cold]
    fn device_failed(&mut self, tag: u64, result: Result<(), Failure>) {
        self.failed = true;
        self.owed -= 1;
        let cause = match result {
            Err(failure) => FailureCause::Device(failure),
            Ok(()) => FailureCause::Stopped,
        };
        self.push(Answer::Failed { tag, cause });
    }
}
