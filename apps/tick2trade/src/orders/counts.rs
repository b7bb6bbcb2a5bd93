//! What is counted of orders by its reason: what a check refused, and what the exchange said.

use super::{OrderEvent, Refused};
use crate::{proto::ouch, risk};

impl Refused {
    /// Names of the reasons, as counts have them.
    pub const REASONS: [&'static str; 20] = [
        "killed",
        "closing",
        "overdue",
        "doubtful",
        "stale",
        "shares",
        "price",
        "value",
        "no_reference",
        "collar",
        "rate",
        "position",
        "credit",
        "no_such_security",
        "full",
        "no_number",
        "no_such_order",
        "replacing",
        "liable",
        "short",
    ];

    /// Place of this one's name in [`Refused::REASONS`].
    pub const fn reason(self) -> usize {
        match self {
            Self::Risk(refused) => match refused {
                risk::Refused::Killed => 0,
                risk::Refused::Closing => 1,
                risk::Refused::Overdue => 2,
                risk::Refused::Doubtful => 3,
                risk::Refused::Stale => 4,
                risk::Refused::Shares { .. } => 5,
                risk::Refused::Price(_) => 6,
                risk::Refused::Value { .. } => 7,
                risk::Refused::NoReference => 8,
                risk::Refused::Collar { .. } => 9,
                risk::Refused::Rate { .. } => 10,
                risk::Refused::Position { .. } => 11,
                risk::Refused::Credit { .. } => 12,
                risk::Refused::Unknown(_) => 13,
            },
            Self::Full(_) => 14,
            Self::NoNumber => 15,
            Self::Unknown(_) => 16,
            Self::Replacing(_) => 17,
            Self::Liable { .. } => 18,
            Self::Short(_) => 19,
        }
    }
}

/// What the exchange said, counted: of the whole day, what it told an earlier run of ours included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// By the place of the name in [`Told::KINDS`].
    kinds: [u64; Told::KINDS.len()],
    /// Rejects by their code; all that has no name here together at 0.
    rejects: [u64; Told::CODES],
}

impl Default for Told {
    fn default() -> Self {
        Self { kinds: [0; Self::KINDS.len()], rejects: [0; Self::CODES] }
    }
}

impl Told {
    /// Names of what answers may say, as counts have them.
    pub const KINDS: [&'static str; 15] = [
        "live",
        "replaced",
        "executed",
        "broken",
        "cancelled",
        "rejected",
        "day",
        "resumed",
        "mismatch",
        "cancel_rejected",
        "cancel_pending",
        "all_cancelled",
        "entry_stopped",
        "entry_enabled",
        "other",
    ];
    /// One above the last code of a reject that has a name. Source: reference 11.1.5.
    const CODES: usize = 0x2b;

    pub(super) fn count(&mut self, event: OrderEvent) {
        let kind = match event {
            OrderEvent::Live { .. } => 0,
            OrderEvent::Replaced { .. } => 1,
            OrderEvent::Executed { .. } => 2,
            OrderEvent::Broken { .. } => 3,
            OrderEvent::Cancelled { .. } => 4,
            OrderEvent::Rejected { reason, .. } => {
                let named = ouch::reject_reason(reason).map_or(0, |_| usize::from(reason));
                self.rejects[named % Self::CODES] += 1;
                5
            }
            OrderEvent::Day(_) => 6,
            OrderEvent::Resumed { .. } => 7,
            OrderEvent::Mismatch { .. } => 8,
            OrderEvent::CancelRejected { .. } => 9,
            OrderEvent::CancelPending { .. } => 10,
            OrderEvent::AllCancelled => 11,
            OrderEvent::EntryStopped => 12,
            OrderEvent::EntryEnabled => 13,
            // The exchange says nothing of what is overdue.
            OrderEvent::Overdue { .. } | OrderEvent::Other => 14,
        };
        self.kinds[kind] += 1;
    }

    /// Answers by what they say.
    pub fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::KINDS.into_iter().zip(self.kinds)
    }

    /// Rejects by their reason in words: [`ouch::reject_reason`].
    pub fn rejects(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = (0_u16..).zip(self.rejects);
        counts.filter_map(|(code, count)| match code {
            0 => Some(("another code", count)),
            code => Some((ouch::reject_reason(code)?, count)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_of_a_refusal_has_a_name_and_a_place_of_its_own() {
        let (shares, limit, price) = (1, 1, 1);
        let of_risk = [
            risk::Refused::Killed,
            risk::Refused::Closing,
            risk::Refused::Overdue,
            risk::Refused::Doubtful,
            risk::Refused::Stale,
            risk::Refused::Shares { shares, limit },
            risk::Refused::Price(1),
            risk::Refused::Value { value: 1, limit: 1 },
            risk::Refused::NoReference,
            risk::Refused::Collar { price, reference: 1, limit_bp: 1 },
            risk::Refused::Rate { limit: 1 },
            risk::Refused::Position { shares: 1, limit },
            risk::Refused::Credit { value: 1, limit: 1 },
            risk::Refused::Unknown(1),
        ];
        let of_orders = [
            Refused::Full(1),
            Refused::NoNumber,
            Refused::Unknown(1),
            Refused::Replacing(1),
            Refused::Liable { shares, executed: 1 },
            Refused::Short(1),
        ];
        let all = of_risk.into_iter().map(Refused::Risk).chain(of_orders);
        let places: Vec<usize> = all.map(Refused::reason).collect();
        assert_eq!(places, (0..Refused::REASONS.len()).collect::<Vec<_>>());
    }

    #[test]
    fn rejects_are_counted_by_what_their_code_means_and_others_together() {
        let mut told = Told::default();
        // 0x0001 and 0x002b have no name, nor has what lies beyond the table.
        for reason in [0x0001, 0x001d, 0x001d, 0x002a, 0x002b, u16::MAX] {
            told.count(OrderEvent::Rejected { urn: 1, reason });
        }
        told.count(OrderEvent::Cancelled { urn: 1, shares: 1, left: 0, reason: b'U' });
        let some = |counts: Vec<(&'static str, u64)>| -> Vec<_> {
            counts.into_iter().filter(|&(_, count)| count != 0).collect()
        };
        assert_eq!(some(told.kinds().collect()), [("cancelled", 1), ("rejected", 6)]);
        let rejects = [("another code", 3), ("price", 2), ("risk: duplicate orders", 1)];
        assert_eq!(some(told.rejects().collect()), rejects);
    }
}
