//! [`Outbox`]: messages that wait for the MAC address of their receiver, or for room to be sent.

use std::collections::VecDeque;

use super::config::count;
use super::engine::Out;

/// Messages of connections that wait; more push out the oldest, and are repeated later.
const MAX_WAITING: usize = 1024;
/// Messages to strangers that one turn tries again. Invented peers never answer, so looking at all
/// that wait for them in every turn would let a flood slow each turn down.
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

/// Messages that wait: those of connections and those to strangers do not take each other's room.
#[derive(Debug)]
pub(super) struct Outbox {
    known: VecDeque<Out>,
    /// Those to strangers that nobody has tried to send, and those that wait to be tried again.
    fresh: VecDeque<Out>,
    strangers: VecDeque<Out>,
    max_strangers: usize,
    /// Messages that were dropped.
    pub(super) unsent: u64,
}

impl Outbox {
    pub(super) fn new(max_strangers: usize) -> Self {
        let (known, fresh, strangers) = Default::default();
        Self { known, fresh, strangers, max_strangers: max_strangers.max(1), unsent: 0 }
    }

    pub(super) fn push(&mut self, out: Out) {
        let is_full = match out.is_stranger {
            true => self.fresh.len() + self.strangers.len() >= self.max_strangers,
            false => self.known.len() >= MAX_WAITING,
        };
        if out.is_stranger {
            if is_full && self.strangers.pop_front().is_none() {
                self.fresh.pop_front();
            }
            self.fresh.push_back(out);
        } else {
            if self.known.contains(&out) {
                return;
            }
            if is_full {
                self.known.pop_front();
            }
            self.known.push_back(out);
        }
        if is_full {
            count(&mut self.unsent, "unsent");
        }
    }

    /// Tries to send each once, and some of those to strangers that were tried before, in turn.
    /// Returns whether one was sent.
    pub(super) fn flush(&mut self, mut send: impl FnMut(&Out) -> Sent) -> bool {
        let (mut moved, mut is_full) = (false, false);
        let mut try_one = |out: &Out| {
            let sent = if is_full { Sent::Full } else { send(out) };
            moved |= sent == Sent::Done;
            is_full |= sent == Sent::Full;
            sent != Sent::Done
        };
        self.known.retain(&mut try_one);
        let retries = self.strangers.len().min(RETRIES_PER_TURN);
        self.fresh.retain(&mut try_one);
        self.strangers.append(&mut self.fresh);
        for _ in 0..retries {
            let Some(out) = self.strangers.pop_front() else { break };
            if try_one(&out) {
                self.strangers.push_back(out);
            }
        }
        moved
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len() + self.fresh.len() + self.strangers.len()
    }
}
