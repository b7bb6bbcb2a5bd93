//! What is missing: how far the feed is believed to be, and when what it said is asked for.

use super::{Arbiter, Source};
use crate::proto::mold::PacketKind;

/// What is known of the messages that are missing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gap {
    /// When it was first seen, or last got smaller.
    pub(super) since_ns: u64,
    /// Requests since then.
    pub(super) asked: u32,
    /// When the last of them was sent.
    pub(super) asked_ns: u64,
}

impl Arbiter {
    /// Whether a packet that ends in front of `end` has messages alone, none of which lies behind
    /// what a line spoke of.
    pub(super) fn is_missing(&self, kind: PacketKind, end: u64) -> bool {
        self.next != 0 && end <= self.spoken() && matches!(kind, PacketKind::Messages(_))
    }

    /// A packet spoke of the messages from `first` up to `end`.
    #[inline]
    pub(super) fn note(&mut self, first: u64, end: u64, now_ns: u64) {
        self.known = self.known.max(self.next);
        if end > self.known {
            self.note_ahead(first, end);
        }
        if self.ended.is_some_and(|number| self.known > number) {
            // It goes on: that was not its end.
            (self.ended, self.finished) = (None, false);
        }
        self.note_gap(now_ns);
    }

    /// Numbers that the feed did not reach in order are believed as far as two packets speak of
    /// them.
    fn note_ahead(&mut self, first: u64, end: u64) {
        if self.known == 0 && !self.is_near_claim(end) {
            (self.claimed, self.confirmable, self.claimed_at) = (end, end, self.next);
            return;
        }
        if self.next != self.claimed_at {
            // The feed went on from where it was: the packet that was ahead confirms no other. What
            // it spoke of is missing still, unless that was asked for in vain.
            self.confirmable = 0;
            if self.is_refused {
                self.forget_claim();
            }
        }
        self.known = self.known.max(end.min(self.confirmable));
        if first <= self.known {
            self.known = self.known.max(end);
        }
        self.confirmable = self.confirmable.max(end);
        self.is_refused &= end <= self.claimed;
        (self.claimed, self.claimed_at) = (self.claimed.max(end), self.next);
    }

    /// What one packet alone spoke of is of no account any more.
    pub(super) const fn forget_claim(&mut self) {
        (self.claimed, self.confirmable, self.is_refused) = (0, 0, false);
    }

    /// Whether one packet spoke of messages that were asked for in vain, and neither the next
    /// message nor a heartbeat of a line has said since that the feed goes on without them.
    pub(super) const fn is_in_doubt(&self) -> bool {
        self.is_refused && self.claimed > self.next && self.refused_at == self.next
    }

    /// Whether the last packet spoke of nearly the same number.
    fn is_near_claim(&self, end: u64) -> bool {
        self.claimed != 0 && self.claimed.abs_diff(end) <= self.config.max_jump
    }

    /// Messages of a feed that is held, of which it is not known where it is: what is kept begins
    /// at the lower one of two packets that agree, and with the last one if they do not.
    #[cold]
    pub(super) fn hold_first(&mut self, first: u64, end: u64) {
        if self.window.is_empty() {
            self.window.start(first);
        } else if self.is_near_claim(end) {
            self.window.start(first.min(self.window.started_at()));
        } else {
            self.window.clear();
            self.window.start(first);
        }
    }

    /// One above the highest number that any packet spoke of.
    #[inline]
    pub(super) fn spoken(&self) -> u64 {
        self.known.max(self.claimed)
    }

    pub(super) fn note_gap(&mut self, now_ns: u64) {
        if self.next != 0 && self.next < self.spoken() && self.gap.is_none() {
            // What was given up because one packet alone spoke of it is not asked for again and
            // again.
            if self.next >= self.known && self.is_refused {
                return;
            }
            self.stats.gaps += 1;
            self.gap = Some(Gap { since_ns: now_ns, asked: 0, asked_ns: now_ns });
        }
    }

    /// Messages came: a gap is closed, or smaller and to be asked for anew.
    pub(super) fn progress(&mut self, source: Source, now_ns: u64) {
        let is_answered = source == Source::Retransmission && self.next < self.claimed;
        // Late, but not in vain.
        self.is_refused &= !is_answered;
        let Some(gap) = &mut self.gap else { return };
        if self.next < self.known || is_answered {
            *gap = Gap { since_ns: gap.since_ns, asked: 0, asked_ns: gap.asked_ns };
        } else if self.next >= self.claimed || self.is_refused {
            self.stats.recovered(now_ns.saturating_sub(gap.since_ns));
            self.gap = None;
        }
    }

    /// When a gap, if there is one, is to be asked for, asked for again, or given up.
    pub(super) fn gap_due(&self) -> Option<u64> {
        let (gap, config) = (self.gap.as_ref()?, &self.config);
        let patience_ns = match gap.asked {
            0 => gap.since_ns.saturating_add(config.wait_ns),
            _ => gap.asked_ns.saturating_add(config.retry_ns),
        };
        let asks = gap.asked < config.attempts;
        Some(if asks { patience_ns.max(self.may_ask_ns) } else { patience_ns })
    }
}
