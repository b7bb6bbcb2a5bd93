//! One session after another: when a packet of another session ends the one that runs.

use super::{Arbiter, Deliver, Event, LineStats, Source};
use crate::proto::mold::{Packet, Session};

/// Another session, while this one is silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranger {
    session: Session,
    /// Since when this one is silent.
    silent_ns: u64,
    packets: u32,
    /// One bit for each [`Source`].
    sources: u8,
}

impl Stranger {
    /// Packets that are enough, all of one line.
    const ENOUGH: u32 = 3;
    const BOTH: u8 = 1 << Source::A as u8 | 1 << Source::B as u8;

    const fn is_believed(&self) -> bool {
        self.packets >= Self::ENOUGH || self.sources & Self::BOTH == Self::BOTH
    }
}

impl Arbiter {
    /// A packet of another session: the next day, if the present one is over, or silent while more
    /// than one packet speaks of the other.
    #[cold]
    pub(super) fn roll_over(
        &mut self,
        source: Source,
        packet: &Packet<'_>,
        now_ns: u64,
        deliver: Deliver<'_>,
    ) -> bool {
        if self.session.is_some() {
            if !self.finished && !self.is_superseded(source, packet.session(), now_ns) {
                return false;
            }
            self.next = 1;
            self.known = 1;
            self.heard_ns = None;
            self.forget_claim();
            (self.ended, self.finished, self.stranger) = (None, false, None);
            self.gap = None;
            self.window.clear();
            self.stats.lines.iter_mut().for_each(LineStats::begin);
            deliver(Event::SessionStarted(packet.session()));
        }
        self.session = Some(packet.session());
        self.note_usual();
        true
    }

    /// Whether enough speaks for another session in the place of one that is silent.
    fn is_superseded(&mut self, source: Source, session: Session, now_ns: u64) -> bool {
        let silent_ns = self.heard_ns().unwrap_or(0);
        if now_ns.saturating_sub(silent_ns) < self.config.silence_ns {
            return false;
        }
        let known =
            self.stranger.filter(|known| known.session == session && known.silent_ns == silent_ns);
        let mut stranger = known.unwrap_or(Stranger { session, silent_ns, packets: 0, sources: 0 });
        stranger.packets += 1;
        stranger.sources |= 1 << source as u8;
        self.stranger = Some(stranger);
        stranger.is_believed()
    }
}
