//! A stream of numbered messages, each of which must arrive once, in order and unchanged.

use std::collections::VecDeque;

use ferrocx_model::wire::SplitMix64;
use ferrocx_verbs_lite::*;

use crate::link::{DEPTH, Ends, INLINE_BYTES, Side, Traffic, Turn};
use crate::planted::{Bug, Planted};
use crate::stage::{Stage, Violation, ensure};

/// Messages posted in one turn at most.
const BURST: u32 = 48;

/// Sizes and habits of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPlan {
    pub(crate) seed: u64,
    pub(crate) messages: u64,
    /// Longest message: the bytes of a receive.
    pub(crate) slot_bytes: usize,
    /// Of a thousand messages, those that are longer than what a request holds.
    pub(crate) long_permille: u64,
    /// Each so many requests asks for a completion.
    pub(crate) signal_every: u64,
    /// Receives that are posted at a time.
    pub(crate) receives: usize,
}

/// A number that depends on all of the seed and the message.
fn mix(seed: u64, number: u64) -> u64 {
    SplitMix64::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95)).next_u64()
}

impl StreamPlan {
    fn len_of(&self, number: u64) -> usize {
        let word = mix(self.seed, number);
        let is_long = word % 1000 < self.long_permille;
        let max = if is_long { self.slot_bytes } else { INLINE_BYTES };
        (word >> 32) as usize % (max + 1)
    }

    /// The bytes of a message: each message has its own, and each place in it.
    fn fill(&self, number: u64, bytes: &mut [u8]) {
        let start = mix(!self.seed, number);
        for (at, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = start.wrapping_add((at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
}

/// Memory of one end: a key, and its pieces that nothing is posted in.
#[derive(Debug)]
struct Pieces {
    mr: Mr,
    free: Vec<Buf>,
}

/// The stream.
#[derive(Debug)]
pub(crate) struct Stream {
    plan: StreamPlan,
    ours: Option<Pieces>,
    theirs: Option<Pieces>,
    /// The next message to send, the one that must arrive next, and those whose end is known.
    next: u64,
    expected: u64,
    acknowledged: u64,
    in_flight: VecDeque<u64>,
    receives: usize,
    scratch: Vec<u8>,
    arrived: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(plan: StreamPlan) -> Self {
        Self {
            plan,
            ours: None,
            theirs: None,
            next: 0,
            expected: 0,
            acknowledged: 0,
            in_flight: VecDeque::new(),
            receives: 0,
            scratch: vec![0; plan.slot_bytes.max(INLINE_BYTES)],
            arrived: vec![0; plan.slot_bytes.max(INLINE_BYTES)],
        }
    }

    fn slot_bytes(&self) -> usize {
        self.plan.slot_bytes.max(INLINE_BYTES)
    }

    /// Memory for `count` messages of a host, made anew or as it was; its pieces are all free.
    fn pieces(
        &self,
        held: Option<Pieces>,
        host: usize,
        count: usize,
        stage: &mut Stage,
    ) -> Option<Pieces> {
        let len = self.slot_bytes();
        let mr = match held {
            Some(held) => held.mr,
            None => match stage.hosts[host].memory(count * len)? {
                Ok(mr) => mr,
                Err(error) => {
                    stage.named("no memory", &error);
                    return None;
                }
            },
        };
        let free = (0..count).filter_map(|at| mr.buf(at * len..(at + 1) * len).ok()).collect();
        if stage.planted.is(Bug::LeakedMemory) {
            stage.kept.push(Box::new(mr.clone()));
        }
        Some(Pieces { mr, free })
    }

    fn post_receives(&mut self, ends: &mut Ends, stage: &mut Stage) -> bool {
        let Some(theirs) = &mut self.theirs else { return false };
        // Now and then the receiver is slow, and the sender meets a queue without receives.
        if self.receives > 0 && stage.random.chance(20_000) {
            return false;
        }
        let mut moved = false;
        while let Some(buf) = theirs.free.pop() {
            if let Err(refused) = ends.b.qp.post_recv(0, buf) {
                theirs.free.push(refused.held);
                break;
            }
            self.receives += 1;
            moved = true;
        }
        moved
    }

    fn post_sends(&mut self, ends: &mut Ends, planted: Planted) -> bool {
        let Some(ours) = &mut self.ours else { return false };
        let qp = &mut ends.a.qp;
        let mut posted = 0;
        while posted < BURST && self.next < self.plan.messages && qp.free_wr() > 0 {
            let len = self.plan.len_of(self.next);
            let is_last = self.next + 1 == self.plan.messages;
            let mut flags = SendFlags::MORE;
            if is_last || self.next.is_multiple_of(self.plan.signal_every) {
                flags |= SendFlags::SIGNALED;
            }
            let wr = SendWr { wr_id: self.next, flags, op: SendOp::Send };
            self.plan.fill(self.next, &mut self.scratch[..len]);
            if len > INLINE_BYTES && planted.is(Bug::WrongByte) {
                self.scratch[len / 2] ^= 1;
            }
            let is_posted = if len <= INLINE_BYTES {
                qp.post_send_inline(&wr, &self.scratch[..len]).is_ok()
            } else {
                let Some(whole) = ours.free.pop() else { break };
                let start = (whole.addr() - ours.mr.addr()) as usize;
                let Ok(mut buf) = ours.mr.buf(start..start + len) else { break };
                let is_filled = buf.copy_in(0, &self.scratch[..len]).is_ok();
                let is_posted = is_filled && qp.post_send(&wr, Some(buf)).is_ok();
                if !is_posted {
                    ours.free.push(whole);
                }
                is_posted
            };
            if !is_posted {
                break;
            }
            self.in_flight.push_back(self.next);
            self.next += 1;
            posted += 1;
        }
        if posted > 0 {
            qp.ring_doorbell_signaled();
        }
        posted > 0
    }

    fn sent(&mut self, wc: Wc<Buf>) -> Result<(), Violation> {
        let (first, number) = (self.in_flight.pop_front(), wc.wr_id);
        ensure(first == Some(number), || {
            format!("the end of message {number} came where {first:?} was next")
        })?;
        let is_good = wc.result.is_ok();
        if let (Some(buf), Some(ours)) = (wc.into_buffers(), &mut self.ours) {
            let (start, len) = ((buf.addr() - ours.mr.addr()) as usize, self.plan.slot_bytes);
            let whole = ours.mr.buf(start..start + len.max(INLINE_BYTES));
            ours.free.push(whole.map_err(|error| Violation(error.to_string()))?);
        }
        if is_good {
            self.acknowledged = self.acknowledged.max(number + 1);
        }
        Ok(())
    }

    fn arrived(&mut self, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        self.receives = self
            .receives
            .checked_sub(1)
            .ok_or_else(|| Violation("more receives ended than were posted".into()))?;
        let (is_good, len) = (wc.result.is_ok(), wc.byte_len as usize);
        let Some(buf) = wc.into_buffers() else {
            return Err(Violation("a receive came back without its buffer".into()));
        };
        if is_good {
            let (number, wanted) = (self.expected, self.plan.len_of(self.expected));
            ensure(number < self.next, || format!("message {number} arrived and was never sent"))?;
            ensure(len == wanted, || format!("message {number} has {len} bytes, not {wanted}"))?;
            self.plan.fill(number, &mut self.scratch[..len]);
            let read = buf.copy_out(0, &mut self.arrived[..len]);
            read.map_err(|error| Violation(error.to_string()))?;
            ensure(self.scratch[..len] == self.arrived[..len], || {
                format!("message {number} of {len} bytes is not what was sent")
            })?;
            self.expected += 1;
            stage.counts.messages += 1;
        }
        let is_lost = stage.planted.is(Bug::LostReceive) && stage.random.chance(50_000);
        if let (Some(theirs), false) = (&mut self.theirs, is_lost) {
            theirs.free.push(buf);
        }
        Ok(())
    }
}

impl Traffic for Stream {
    fn name(&self) -> &str {
        "stream"
    }

    fn began(&mut self, hosts: [usize; 2], ends: &mut Ends, stage: &mut Stage) -> bool {
        let (ours, theirs) = (self.ours.take(), self.theirs.take());
        self.ours = self.pieces(ours, hosts[0], DEPTH as usize / 4, stage);
        self.theirs = self.pieces(theirs, hosts[1], self.plan.receives, stage);
        self.receives = 0;
        // A program that has lost its connection asks the other end how far it came.
        self.next = self.expected;
        self.in_flight.clear();
        self.post_receives(ends, stage);
        self.ours.is_some() && self.theirs.is_some()
    }

    fn turn(&mut self, ends: &mut Ends, stage: &mut Stage) -> Result<Turn, Violation> {
        let received = self.post_receives(ends, stage);
        let sent = self.post_sends(ends, stage.planted);
        let broken = ends.a.qp.state() == QpState::Error || ends.b.qp.state() == QpState::Error;
        Ok(Turn { moved: received || sent, broken })
    }

    fn ended(&mut self, side: Side, wc: Wc<Buf>, stage: &mut Stage) -> Result<(), Violation> {
        match side {
            Side::A => self.sent(wc),
            Side::B => self.arrived(wc, stage),
        }
    }

    fn settled(&mut self, is_whole: bool, _: &mut Stage) -> Result<(), Violation> {
        if is_whole {
            ensure(self.acknowledged <= self.expected, || {
                format!("{} were acknowledged, {} arrived", self.acknowledged, self.expected)
            })?;
            let left = self.in_flight.len() + self.receives;
            ensure(left == 0, || format!("{left} requests did not come back"))?;
        }
        // A device that died may have acknowledged what it never told.
        self.acknowledged = self.acknowledged.min(self.expected);
        self.in_flight.clear();
        Ok(())
    }

    fn forget(&mut self, side: Side) {
        match side {
            Side::A => self.ours = None,
            Side::B => self.theirs = None,
        }
    }

    fn progress(&self) -> (u64, u64) {
        (self.expected, self.plan.messages)
    }
}
