//! The side of a pipeline that owns the queue pair.

use std::sync::Arc;

use ferrocx_core::lcore::{StopFlag, WaitStrategy, handover};
use rtrb::{Consumer, Producer};

use super::client::{Ending, Request};
use super::{
    Answer, Client, FailureCause, KeyId, Lane, RegisteredKey, RegistrarConfig, Registration,
};
use crate::context::RdmaContext;
use crate::cq::Cq;
use crate::error::VerbsError;
use crate::fastreg::{FastReg, KeySlot, KeyState};
use crate::mr::Memory;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::wc::Wc;
use crate::wr::{SendFlags, WcOpcode};

/// Completions taken in one turn at most, so that its length stays bounded.
const COMPLETIONS_PER_TURN: usize = 64;
/// Requests of the longest chain: a registration, a READ, an invalidation.
const CHAIN_WR: u32 = 3;

/// A key of the set, and what it is for.
#[derive(Debug)]
struct Slot {
    key: KeySlot,
    /// The request that it serves.
    tag: u64,
    /// Whether that is a READ through the key, whose end answers the request.
    is_read: bool,
    /// Goes up each time it is bound: names of before do not fit any more.
    generation: u32,
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

/// A pipeline's worker: run it on a core of its own. Its [turns](Worker::turn) allocate nothing,
/// take no lock and make no system call.
#[derive(Debug)]
pub struct Worker {
    qp: Qp<()>,
    cq: Cq,
    memories: Box<[Arc<Memory>]>,
    requests: Consumer<Request>,
    endings: Consumer<Ending>,
    table: Table,
}

/// Everything that a pipeline was made of, given back at its end.
#[derive(Debug)]
pub struct Drained {
    /// The queue pair.
    pub qp: Qp<()>,
    /// Its completion queue.
    pub cq: Cq,
    /// Keys that nobody can use.
    pub free: Vec<KeySlot>,
    /// Keys that are bound, or may be: end them on another queue pair, revoke or drop them.
    pub bound: Vec<TaggedKey>,
}

/// A key that was bound when its pipeline ended.
#[derive(Debug)]
pub struct TaggedKey {
    /// The tag of the request that bound it.
    pub tag: u64,
    /// The key.
    pub key: KeySlot,
}

/// Makes a pipeline over `memories`, which requests name by their place in the list.
///
/// Launch the worker on a core with [`ferrocx_core::lcore::Lcores::launch`]:
/// `lcores.launch(core, move |stop| worker.run(stop, WaitStrategy::Busy))`.
///
/// The memories are the host's, or all of one peer region
/// ([`PeerMr::memories`](crate::peer::PeerMr::memories)): then the keys end with that region, and
/// the pipeline with them.
///
/// # Errors
///
/// [`VerbsError::OutOfRange`], [`VerbsError::Unsupported`] for memory of more than one peer, or
/// what the device refused.
pub fn registrar(
    context: &RdmaContext,
    pd: &Pd,
    lane: Lane,
    memories: Vec<Arc<Memory>>,
    config: &RegistrarConfig,
) -> Result<(Client, Worker), VerbsError> {
    if !memories.iter().all(|memory| memory.peer() == memories[0].peer()) {
        let (what, way_out) = ("pipelines over memory of two peers", "make one for each");
        return Err(VerbsError::Unsupported { what, way_out });
    }
    VerbsError::range("keys", config.keys.into(), 1, 1 << 16)?;
    VerbsError::range("ring_entries", config.ring_entries as u64, 1, 1 << 16)?;
    let slot = |_| {
        let mut key = KeySlot::new(context, pd, config.layout, config.max_page_list_len)?;
        memories.iter().try_for_each(|memory| key.attach(memory))?;
        Ok(Slot { key, tag: 0, is_read: false, generation: 0 })
    };
    let slots = (0..config.keys).map(slot).collect::<Result<_, VerbsError>>()?;
    let (requests, requests_out) = handover(config.ring_entries);
    let (endings, endings_out) = handover(config.ring_entries);
    let (answers_in, answers) = handover(config.ring_entries);
    let free = (0..config.keys).rev().collect();
    let table = Table { slots, free, answers: answers_in, owed: 0, failed: false };
    let worker = Worker {
        qp: lane.qp,
        cq: lane.cq,
        memories: memories.into(),
        requests: requests_out,
        endings: endings_out,
        table,
    };
    Ok((Client { requests, endings, answers }, worker))
}

impl Worker {
    /// Works until told to stop or until the queue pair fails, and then drains the pipeline: see
    /// [`Worker::drain`].
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
                self.table.refuse(request.wanted.tag, cause);
            }
        }
        self.qp.ring_doorbell_signaled();
        busy
    }

    /// Room in the send queue, and for the answer: the client's end of the ring is another core's,
    /// and looked at where what was seen of it last does not do.
    fn has_room(&self) -> bool {
        let Table { answers, owed, .. } = &self.table;
        (answers.cached_slots() > *owed || answers.slots() > *owed) && self.qp.free_wr() >= CHAIN_WR
    }

    fn take_completions(&mut self) -> bool {
        let Self { qp, cq, table, .. } = self;
        let mut busy = false;
        for _ in 0..COMPLETIONS_PER_TURN {
            let Some(mut completion) = cq.poll() else { break };
            busy = true;
            loop {
                match qp.next_wc(&mut completion) {
                    Ok(Some(wc)) => table.ended(wc),
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(%error, "registrar");
                        table.failed = true;
                        break;
                    }
                }
            }
        }
        busy
    }

    fn end(&mut self, Ending { id, proof }: Ending) {
        let Self { qp, table, .. } = self;
        // Names are given out once and come back once, so another one is of another pipeline.
        let Some(slot) = table.held(&id) else {
            return table.refuse(0, FailureCause::NoSuchKey);
        };
        let tag = slot.tag;
        if let Some(proof) = proof {
            return match slot.key.invalidated_by(proof) {
                Ok(()) => {
                    table.free.push(id.slot);
                    table.push(Answer::Ended { tag });
                }
                Err(_) => table.refuse(tag, FailureCause::NoSuchKey),
            };
        }
        match slot.key.invalidate(qp, id.slot.into(), SendFlags::MORE) {
            Ok(()) => table.owed += 1,
            Err(cause) => table.refuse(tag, FailureCause::Post(cause)),
        }
    }

    /// Posts what a request needs, with the key of the slot `at`, the last of those that are free.
    fn register(&mut self, at: u32, request: &Request) -> Result<(), FailureCause> {
        let Self { qp, memories, table, .. } = self;
        let Request { wanted, from } = request;
        let memory = memories.get(wanted.memory as usize).ok_or(FailureCause::NoSuchMemory)?;
        let Some(slot) = table.slots.get_mut(at as usize) else { return Ok(()) };
        slot.key.map(memory, &wanted.pieces).map_err(FailureCause::Pieces)?;
        let start = slot.key.list_mut().map_or(0, |list| list.first_offset());
        let (wr_id, flags) = (at.into(), SendFlags::MORE);
        let Registration { access, remote_invalidate, .. } = *wanted;
        let wr = FastReg { wr_id, flags, start, access, remote_invalidate };
        slot.key.register(qp, &wr).map_err(FailureCause::Post)?;
        (slot.tag, slot.is_read) = (wanted.tag, from.is_some());
        slot.generation = slot.generation.wrapping_add(1);
        table.owed += 1;
        table.free.pop();
        if let Some(from) = *from {
            // As long as the region is, which fits 32 bits: a message is no longer.
            let len = slot.key.mr().map_or(0, |mr| mr.len_bytes());
            let len = u32::try_from(len).unwrap_or(u32::MAX);
            // The registration is on its way then; its completion finds the key and answers.
            let posted = slot.key.read_with_inv(qp, wr_id, flags, from, len);
            table.failed |= posted.is_err();
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
                self.table.refuse(request.wanted.tag, FailureCause::Stopped);
            } else if let Ok(ending) = self.endings.pop() {
                let tag = self.table.slots.get(ending.id.slot as usize).map_or(0, |slot| slot.tag);
                self.table.refuse(tag, FailureCause::Stopped);
            } else {
                break;
            }
        }
        let (mut free, mut bound) = (Vec::new(), Vec::new());
        for slot in self.table.slots {
            match slot.key.state() {
                KeyState::Free => free.push(slot.key),
                KeyState::Invalidating => {}
                KeyState::Posted | KeyState::Valid | KeyState::Stale => {
                    bound.push(TaggedKey { tag: slot.tag, key: slot.key });
                }
            }
        }
        Drained { qp: self.qp, cq: self.cq, free, bound }
    }
}

impl Table {
    /// The slot whose key is held under this name.
    fn held(&mut self, id: &KeyId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let is_held = slot.generation == id.generation && slot.key.state() == KeyState::Valid;
        is_held.then_some(slot)
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
        let (at, opcode) = (wc.wr_id as u32, wc.opcode);
        let Some(slot) = self.slots.get_mut(at as usize) else { return };
        let (tag, generation) = (slot.tag, slot.generation);
        let ended = slot.key.complete(wc);
        if slot.key.state() == KeyState::Invalidating {
            // Of a chain, the last request answers.
            return;
        }
        let mr = slot.key.mr().filter(|_| !slot.is_read);
        let answer = match (ended, mr, opcode) {
            (Ok(KeyState::Valid), Some(mr), WcOpcode::FastRegMr) => {
                let id = KeyId { slot: at, generation };
                let key = RegisteredKey { id, remote: mr.remote(), len_bytes: mr.len_bytes() };
                Answer::Key { tag, key }
            }
            (Ok(KeyState::Free), _, WcOpcode::ReadWithInv) => Answer::Read { tag },
            (Ok(KeyState::Free), _, WcOpcode::LocalInv) => Answer::Ended { tag },
            (ended, ..) => {
                self.failed = true;
                let cause = ended.err().map_or(FailureCause::Stopped, FailureCause::Device);
                Answer::Failed { tag, cause }
            }
        };
        if matches!(answer, Answer::Read { .. } | Answer::Ended { .. }) {
            self.free.push(at);
        }
        self.owed -= 1;
        self.push(answer);
    }
}
