//! [`Outbox`]: messages that wait for the MAC address of their receiver, or for room to be sent.

use std::collections::VecDeque;

use super::config::count;
use super::engine::Out;

/// Messages of connections that wait; more push out the oldest, and are repeated later.
const MAX_WAITING: usize = 1024;

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
    queues: [VecDeque<Out>; 2],
    max_strangers: usize,
    /// Messages that were dropped.
    pub(super) unsent: u64,
}

impl Outbox {
    pub(super) fn new(max_strangers: usize) -> Self {
        let max_strangers = max_strangers.max(1);
        Self { queues: Default::default(), max_strangers, unsent: 0 }
    }

    pub(super) fn push(&mut self, out: Out) {
        let limit = if out.is_stranger { self.max_strangers } else { MAX_WAITING };
        let queue = &mut self.queues[usize::from(out.is_stranger)];
        if !out.is_stranger && queue.contains(&out) {
            return;
        }
        if queue.len() >= limit {
            queue.pop_front();
            count(&mut self.unsent, "unsent");
        }
        queue.push_back(out);
    }

    /// Tries to send each once; returns whether one was.
    pub(super) fn flush(&mut self, mut send: impl FnMut(&Out) -> Sent) -> bool {
        let (mut moved, mut is_full) = (false, false);
        for queue in &mut self.queues {
            queue.retain(|out| {
                let sent = if is_full { Sent::Full } else { send(out) };
                moved |= sent == Sent::Done;
                is_full |= sent == Sent::Full;
                sent != Sent::Done
            });
        }
        moved
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}
