//! [`Outbox`]: messages that wait for the MAC address of their receiver, or for room to be sent.

use std::collections::VecDeque;

use super::config::count;
use super::engine::Out;

/// Messages of connections that wait; more push out the oldest, and are repeated later.
const MAX_WAITING: usize = 1024;
/// Messages of either kind that one turn tries again. Invented peers never answer, nor do those
/// whose cable is out: looking at all that wait for them in every turn would slow each turn down.
const RETRIES_PER_TURN: usize = 32;

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Done,
    /// Its receiver is being asked for.
    Later,
    /// Nothing more can be sent in this turn.
    Full,
}

/// Messages that wait, and have a room of their own for that.
#[derive(Debug)]
struct Line {
    /// Those that nobody has tried to send, and those that wait to be tried again.
    fresh: VecDeque<Out>,
    waiting: VecDeque<Out>,
    max: usize,
}

impl Line {
    fn new(max: usize) -> Self {
        Self { fresh: VecDeque::new(), waiting: VecDeque::new(), max }
    }

    fn len(&self) -> usize {
        self.fresh.len() + self.waiting.len()
    }

    fn contains(&self, out: &Out) -> bool {
        self.fresh.contains(out) || self.waiting.contains(out)
    }

    /// Adds one; returns whether another one was dropped for it.
    fn push(&mut self, out: Out) -> bool {
        let is_full = self.len() >= self.max;
        if is_full && self.waiting.pop_front().is_none() {
            self.fresh.pop_front();
        }
        self.fresh.push_back(out);
        is_full
    }

    /// Tries new ones, and some of those that wait, in turn; `try_one` says whether one stays.
    fn flush(&mut self, mut try_one: impl FnMut(&Out) -> bool) {
        if self.len() == 0 {
            return;
        }
        let retries = self.waiting.len().min(RETRIES_PER_TURN);
        self.fresh.retain(&mut try_one);
        self.waiting.append(&mut self.fresh);
        for _ in 0..retries {
            let Some(out) = self.waiting.pop_front() else { break };
            if try_one(&out) {
                self.waiting.push_back(out);
            }
        }
    }
}

/// Messages that wait: those of connections and those to strangers do not take each other's room.
#[derive(Debug)]
pub(super) struct Outbox {
    known: Line,
    strangers: Line,
    /// Messages that were dropped.
    pub(super) unsent: u64,
}

impl Outbox {
    pub(super) fn new(max_strangers: usize) -> Self {
        let (known, strangers) = (Line::new(MAX_WAITING), Line::new(max_strangers.max(1)));
        Self { known, strangers, unsent: 0 }
    }

    pub(super) fn push(&mut self, out: Out) {
        if !out.is_stranger && self.known.contains(&out) {
            return;
        }
        let line = if out.is_stranger { &mut self.strangers } else { &mut self.known };
        if line.push(out) {
            count(&mut self.unsent, "unsent");
        }
    }

    /// Tries to send each new one, and some of those that were tried before, in turn. Returns
    /// whether one was sent.
    pub(super) fn flush(&mut self, mut send: impl FnMut(&Out) -> Sent) -> bool {
        let (mut moved, mut is_full) = (false, false);
        let mut try_one = |out: &Out| {
            let sent = if is_full { Sent::Full } else { send(out) };
            moved |= sent == Sent::Done;
            is_full |= sent == Sent::Full;
            sent != Sent::Done
        };
        self.known.flush(&mut try_one);
        self.strangers.flush(&mut try_one);
        moved
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.strangers.len()
    }
}
