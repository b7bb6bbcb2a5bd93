//! Messages that came too early, kept by number in memory that was allocated at the start.

/// A ring of messages by their numbers.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Number of the message in each slot; 0 for none.
    numbers: Vec<u64>,
    lens: Vec<u16>,
    bytes: Vec<u8>,
    max_message: usize,
    held: usize,
    /// Lowest number that is kept before the stream's start is known.
    started_at: u64,
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Insert {
    Held,
    /// It was held already.
    Twice,
    /// Its number is too far ahead, or behind the base.
    OutOfWindow,
    TooLong,
}

impl Window {
    /// A window of `size` messages, a power of two.
    pub(super) fn new(size: usize, max_message: usize) -> Self {
        Self {
            numbers: vec![0; size],
            lens: vec![0; size],
            bytes: vec![0; size * max_message],
            max_message,
            held: 0,
            started_at: 0,
        }
    }

    fn slot(&self, number: u64) -> usize {
        number as usize & (self.numbers.len() - 1)
    }

    /// Keeps a message if it lies in the window that starts at `base`.
    pub(super) fn insert(&mut self, base: u64, number: u64, message: &[u8]) -> Insert {
        let ahead = number.checked_sub(base);
        if ahead.is_none_or(|ahead| ahead >= self.numbers.len() as u64) {
            return Insert::OutOfWindow;
        }
        let slot = self.slot(number);
        if self.numbers[slot] == number {
            return Insert::Twice;
        }
        if message.len() > self.max_message {
            return Insert::TooLong;
        }
        // An occupied slot holds what lies behind the base, and is of no use any more.
        self.held += usize::from(self.numbers[slot] == 0);
        self.numbers[slot] = number;
        self.lens[slot] = message.len() as u16;
        self.bytes[slot * self.max_message..][..message.len()].copy_from_slice(message);
        Insert::Held
    }

    /// The message `number`, if it is held: it is held no longer.
    #[inline]
    pub(super) fn take(&mut self, number: u64) -> Option<&[u8]> {
        if self.held == 0 {
            return None;
        }
        let slot = self.slot(number);
        if self.numbers[slot] != number {
            return None;
        }
        self.numbers[slot] = 0;
        self.held -= 1;
        Some(&self.bytes[slot * self.max_message..][..usize::from(self.lens[slot])])
    }

    /// Number of the first message held in `[from, end)`; `end` if none is. Takes as long as the
    /// hole in front of it is.
    pub(super) fn first_from(&self, from: u64, end: u64) -> u64 {
        if self.held == 0 {
            return end;
        }
        let last = end.min(from.saturating_add(self.numbers.len() as u64));
        let held = (from..last).find(|&number| self.numbers[self.slot(number)] == number);
        held.unwrap_or(end)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.held == 0
    }

    pub(super) const fn start(&mut self, number: u64) {
        self.started_at = number;
    }

    /// Lets as many of the lowest numbers go as there have to be for all before `end` to be in.
    pub(super) fn start_late_enough_for(&mut self, end: u64) {
        self.started_at = self.started_at.max(end.saturating_sub(self.numbers.len() as u64));
    }

    pub(super) const fn started_at(&self) -> u64 {
        self.started_at
    }

    /// Drops the messages below `number`.
    pub(super) fn forget_before(&mut self, number: u64) {
        for held in &mut self.numbers {
            if *held != 0 && *held < number {
                *held = 0;
                self.held -= 1;
            }
        }
    }

    /// Drops the messages from `number` on.
    pub(super) fn forget_from(&mut self, number: u64) {
        for held in &mut self.numbers {
            if *held != 0 && *held >= number {
                *held = 0;
                self.held -= 1;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.numbers.fill(0);
        self.held = 0;
    }
}
