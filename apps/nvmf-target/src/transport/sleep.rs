//! A core that sleeps until its device has something.

use std::time::Duration;

use ferrocx::verbs::{CompletionChannel, RdmaContext};

use super::{Server, ServerError};

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
    /// longer than [`Server::TURN`]. After a [`Server::poll`] that found nothing. Whether it slept:
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
        if !channel.wait(&mut [&mut self.cq], Some(limit))? {
            // Nothing came: it is the clock's turn.
            self.round = 0;
        }
        Ok(true)
    }
}
