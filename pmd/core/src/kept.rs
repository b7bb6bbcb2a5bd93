//! [`KeptEvents`]: what the device reported, kept for everybody who wants to know.

use std::collections::VecDeque;

use crate::eq::Event;

/// Events that are kept; more push out the oldest. One failure of the device may be that of a few
/// thousand queue pairs, which it reports before anybody reads.
const MAX_EVENTS: usize = 4096;

/// The latest events, numbered from the first that the device ever reported.
#[derive(Debug, Default)]
pub(crate) struct KeptEvents {
    events: VecDeque<Event>,
    /// Events that were pushed out: the number of the oldest that is kept.
    gone: u64,
}

impl KeptEvents {
    pub(crate) fn push(&mut self, event: Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.pop_front();
            self.gone += 1;
        }
        self.events.push_back(event);
    }

    /// The place of somebody who reads what comes from now on.
    pub(crate) fn end(&self) -> Place {
        Place { next: self.gone + self.events.len() as u64, lost: 0 }
    }

    /// The oldest event that was not read from `place`.
    pub(crate) fn read(&self, place: &mut Place) -> Option<Event> {
        place.lost = self.lost(place);
        place.next = place.next.max(self.gone);
        let event = self.events.get((place.next - self.gone) as usize)?;
        place.next += 1;
        Some(*event)
    }

    /// Events that were pushed out before they were read from `place`.
    pub(crate) fn lost(&self, place: &Place) -> u64 {
        place.lost + self.gone.saturating_sub(place.next)
    }
}

/// How far somebody has read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Place {
    /// Number of the next event to read.
    next: u64,
    lost: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reader_sees_every_event_and_knows_what_it_missed() {
        let event = |number: usize| Event::Completion { cqn: number as u32 };
        let mut kept = KeptEvents::default();
        let mut first = Place::default();
        assert_eq!(kept.read(&mut first), None);
        kept.push(event(0));
        let mut late = kept.end();
        assert_eq!((kept.read(&mut first), kept.read(&mut late)), (Some(event(0)), None));
        for number in 1..=MAX_EVENTS {
            kept.push(event(number));
        }
        assert_eq!((kept.lost(&first), kept.lost(&late)), (0, 0));
        assert_eq!(kept.read(&mut late), Some(event(1)));
        // Event 1 is pushed out: one has read it, the other missed it.
        kept.push(event(MAX_EVENTS + 1));
        kept.push(event(MAX_EVENTS + 2));
        assert_eq!((kept.lost(&first), kept.lost(&late)), (2, 1));
        for place in [&mut first, &mut late] {
            for number in 3..=MAX_EVENTS + 2 {
                assert_eq!(kept.read(place), Some(event(number)));
            }
            assert_eq!(kept.read(place), None);
        }
        assert_eq!((kept.lost(&first), kept.lost(&late)), (2, 1));
    }
}
