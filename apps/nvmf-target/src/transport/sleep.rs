//! A core that sleeps until its device has something.

use std::time::Duration;

use ferrocx::verbs::{CompletionChannel, RdmaContext};

use super::{CLOCK_EVERY, Server, ServerError};

/// What wakes a core: one of the device's interrupt vectors, which cores take in turn.
pub(super) fn channel(
    context: &RdmaContext,
    poller: usize,
) -> Result<CompletionChannel, ServerError> {
    let vectors = usize::from(context.device().interrupt_vectors()).max(1);
    Ok(context.create_comp_channel((poller % vectors) as u16)?)
}

impl Server {
    /// Sleeps until a queue of this core has something, for `limit` at most: what has no interrupt
    /// here (the connection manager, timers, other threads) is looked at as often, so not much
    /// longer than [`Server::turn`]. After a [`Server::poll`] that found nothing. Whether it slept:
    /// a server without [`ServerConfig::interrupts`](super::ServerConfig::interrupts) does not, nor
    /// one whose files or drives have commands under way, whose ends wake nobody.
    ///
    /// # Errors
    ///
    /// [`ServerError::Verbs`], when the system does not let it wait.
    pub fn sleep(&mut self, limit: Duration) -> Result<bool, ServerError> {
        let Some(channel) = &mut self.channel else { return Ok(false) };
        let has_files = self.work.ring.as_ref().is_some_and(|ring| ring.under_way() > 0);
        if has_files || self.work.drives.is_busy() {
            return Ok(false);
        }
        channel.wait(&mut [&mut self.cq], Some(limit))?;
        // How long it took nobody knows without the clock, also if something came.
        self.rounds_to_clock = 0;
        Ok(true)
    }

    /// Its thread has slept for so long since the last [`Server::poll`]. That counts as the rounds
    /// that are [`Server::TURN`] otherwise, so that looks at the clock stay about a turn apart.
    pub fn napped(&mut self, time: Duration) {
        let share = time.as_micros() * u128::from(CLOCK_EVERY);
        let rounds = share.div_ceil(Self::TURN.as_micros());
        self.rounds_to_clock =
            self.rounds_to_clock.saturating_sub(rounds.try_into().unwrap_or(u32::MAX));
    }
}
