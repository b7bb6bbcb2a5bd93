//! Answers that do not come: how long an order, a replacement or a cancel has waited for its own.
//!
//! Nothing is written when an order leaves: [`OrderEntry::watch`] looks at some places of the table
//! at a time, and an order that it finds without an answer in [`LOOKS`] rounds is overdue. What
//! follows, in this order, each after as long a time again:
//!
//! | what is overdue | what follows |
//! |---|---|
//! | an order, a replacement, a cancel | everything is cancelled, and no order leaves meanwhile |
//! | the answer to that, or its leaving at all | the connection is given up: the next one hears every answer again |
//! | the same order, although all was cancelled | all is cancelled again, and no order leaves in this session |
//!
//! An exchange that refuses to cancel all at once is asked to cancel each order by itself. That is
//! answered when nothing waits for an answer any more: until then no order leaves, and what waits
//! on the next connection, too, is the same order, although all was cancelled.
//!
//! Source: reference 11.1.7, 7.

use super::{OrderEntry, asking::Ask};
use crate::risk::Stop;

/// Rounds of looks that an answer has time for, beside the one that finds it missing first.
pub const LOOKS: u8 = 4;
/// Places of the table that are looked at in one go: a word of [`OrderEntry`]'s `taken`.
pub(super) const PLACES: usize = u64::BITS as usize;

/// What an order waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum For {
    /// The first answer: it was entered, or replaces another.
    #[default]
    Taking,
    /// The answer to a cancel.
    Cancel,
    /// Nothing.
    Nothing,
    /// Nothing any more: its answer was given up on this connection.
    Lost,
}

/// What the order of a place waits for, and how long. Of another order it says nothing.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wait {
    urn: u32,
    what: For,
    /// Rounds that found it waiting.
    looks: u8,
}

impl Wait {
    /// A cancel was asked for.
    pub(super) const fn for_cancel(urn: u32) -> Self {
        Self { urn, what: For::Cancel, looks: 0 }
    }

    /// Whether the answer of this order was given up.
    pub(super) fn is_lost(&self, urn: u32) -> bool {
        self.what == For::Lost && self.urn == urn
    }

    /// Whether a cancel of this order has no answer yet.
    pub(super) fn is_for_cancel(&self, urn: u32) -> bool {
        self.what == For::Cancel && self.urn == urn
    }
}

/// What a look at the orders found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watched {
    /// Nothing is overdue.
    Fine,
    /// This order's answer is: everything is to be cancelled, [`OrderEntry::due`].
    Overdue(u32),
    /// This order's answer still is, although everything was cancelled since: everything is to be
    /// cancelled again, and no order leaves any more.
    Lost(u32),
    /// The answer to a mass cancel, to the cancels in its place, or to what stops or opens order
    /// entry, is, or that could not leave for as long: the connection is to be given up.
    Silent,
}

impl OrderEntry {
    /// Looks at the next places of the table: [`OrderEntry::looks_per_round`] calls look at all of
    /// them, and [`LOOKS`] rounds later an answer that was missing all the time is overdue. To be
    /// called while answers can come.
    pub fn watch(&mut self) -> Watched {
        let from = self.looked;
        let to = (from + PLACES).min(self.standing.len());
        self.looked = if to == self.standing.len() { 0 } else { to };
        if from == 0 {
            self.is_owed = false;
            if self.asked.is_silent(LOOKS) {
                return Watched::Silent;
            }
        }
        for place in from..to {
            let Some(order) = self.standing[place] else { continue };
            self.taken[place / PLACES] |= 1 << (place % PLACES);
            let wait = &mut self.waits[place];
            if wait.urn != order.urn {
                *wait = Wait { urn: order.urn, ..Wait::default() };
            }
            if matches!(wait.what, For::Nothing | For::Lost) {
                continue;
            }
            self.is_owed = true;
            wait.looks = wait.looks.saturating_add(1);
            if wait.looks <= LOOKS {
                continue;
            }
            let urn = order.urn;
            if urn < self.asked.all_cancelled_at() {
                wait.what = For::Lost;
                self.mismatches += 1;
                self.doubt();
                return Watched::Lost(urn);
            }
            if self.asked.mass == Ask::No {
                if self.risk.is_stopped_by(Stop::Overdue) {
                    return Watched::Silent;
                }
                self.overdue += 1;
                self.risk.stop(Stop::Overdue);
                self.asked.mass = Ask::Due;
                return Watched::Overdue(urn);
            }
        }
        if self.looked == 0 && !self.is_owed && self.asked.mass == Ask::No {
            self.not_overdue();
        }
        Watched::Fine
    }

    /// Calls of [`OrderEntry::watch`] that look at every order once.
    pub const fn looks_per_round(&self) -> usize {
        self.standing.len().div_ceil(PLACES)
    }

    /// Answers that were overdue.
    pub const fn overdue(&self) -> u64 {
        self.overdue
    }

    /// The exchange said what became of an order, or of its cancel.
    pub(super) fn answered(&mut self, urn: u32) {
        let place = self.place(urn);
        self.waits[place] = Wait { urn, what: For::Nothing, looks: 0 };
    }

    /// The exchange took an order. A cancel that it owes an answer to has as much time again.
    pub(super) fn was_taken(&mut self, urn: u32) {
        let place = self.place(urn);
        if self.waits[place].is_for_cancel(urn) {
            self.waits[place].looks = 0;
        } else {
            self.answered(urn);
        }
    }

    /// A cancel that [`OrderEntry::cancel`] made and the connection did not take never left, and
    /// counts against no limit: the order waits for what it waited for before. To be called before
    /// anything else is sent.
    pub fn cancel_not_sent(&mut self, urn: u32) {
        self.risk.message_not_sent();
        let place = self.place(urn);
        self.waits[place] = self.wait_before;
    }

    /// The cancels that have no answer were lost: nothing is owed of their orders, but where all
    /// are to be cancelled.
    pub(super) fn forget_cancels(&mut self) {
        let is_overdue = self.risk.is_stopped_by(Stop::Overdue);
        for wait in &mut self.waits {
            wait.what = match wait.what {
                For::Cancel if is_overdue => For::Taking,
                For::Cancel | For::Lost => For::Nothing,
                what => what,
            };
        }
    }

    /// What waits has as much time again.
    pub(super) fn wait_anew(&mut self) {
        self.waits.iter_mut().for_each(|wait| wait.looks = 0);
    }
}
