//! The device's clock: what it shows, how fast it runs, and what that is in the host's time.

use std::time::{Duration, Instant};

use ferrocx_core::{Clock, ClockSource};
use ferrocx_verbs_lite::VerbsError;

use super::Errno;
use crate::node::Node;

/// Time between two comparisons of the clocks.
const INTERVAL: Duration = Duration::from_secs(1);

/// The device's clock beside the host's, and when they were last compared.
#[derive(Debug)]
pub(super) struct Compared {
    clock: Clock,
    at: Instant,
}

/// Compares the clocks for the first time.
pub(super) fn start(compared: &mut Option<Compared>, node: &Node) -> Result<(), Errno> {
    if compared.is_none() {
        let clock = node.context.device().clock(ClockSource::Realtime);
        let clock = clock.map_err(VerbsError::from).map_err(|error| {
            tracing::info!(%error, "refused");
            Errno::NOT_SUPPORTED
        })?;
        *compared = Some(Compared { clock, at: Instant::now() });
    }
    Ok(())
}

/// Nanoseconds since 1970 of a moment of the device's clock; 0 without a comparison.
pub(super) fn to_ns(compared: &mut Option<Compared>, ticks: u64) -> u64 {
    let Some(Compared { clock, at }) = compared else { return 0 };
    if at.elapsed() >= INTERVAL {
        *at = Instant::now();
        if let Err(error) = clock.update() {
            tracing::info!(%error, "the clocks were not compared");
        }
    }
    clock.time_base().to_ns(ticks)
}
