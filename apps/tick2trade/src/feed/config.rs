//! How an arbiter starts, what it keeps and how patient it is.

use thiserror::Error;

use crate::proto::mold;

/// How an [`Arbiter`](super::Arbiter) starts and how patient it is.
#[derive(Debug, Clone)]
pub struct ArbiterConfig {
    /// First message to deliver.
    pub start: Start,
    /// Messages ahead of a gap that are kept: a power of two, 2 to 2^24. Default 65,536.
    pub window: usize,
    /// The longest message, bytes; longer ones are counted and lost. Default 64: ITCH has 50.
    pub max_message: usize,
    /// How long a gap waits for the other line before it is asked for, ns. Default 200 us.
    pub wait_ns: u64,
    /// How long a request waits for its answer before it is repeated, ns. Default 2 ms.
    pub retry_ns: u64,
    /// The least time between two requests, ns, of whatever gaps, answered or not: what bounds how
    /// much a server of lost messages is asked. Default 100 us, so at most 10,000 requests and
    /// 300,000 messages a second. 0 has each go at once.
    pub pace_ns: u64,
    /// Requests without any answer after which messages count as lost. Default 5; 0 never asks.
    pub attempts: u32,
    /// The most messages that a request asks for; best below what fits one packet. Default 30.
    pub per_request: u16,
    /// How far ahead of everything known a packet's numbers may lie, and so much further for each
    /// second since the last packet: [`ArbiterConfig::max_rate`]. One further ahead is a lie, and
    /// not taken. Default 1,000,000 messages.
    pub max_jump: u64,
    /// Messages that the feed may have in a second. Default 10,000,000.
    pub max_rate: u64,
    /// How long nothing says where a session is before it counts as silent, ns: then it is not live
    /// ([`Arbiter::is_live`](super::Arbiter::is_live)), and another can take its place without its
    /// end. Default 2.5 s: a feed says every second that it is there.
    pub silence_ns: u64,
}

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            start: Start::At(1),
            window: 65_536,
            max_message: 64,
            wait_ns: 200_000,
            retry_ns: 2_000_000,
            pace_ns: 100_000,
            attempts: 5,
            per_request: 30,
            max_jump: 1_000_000,
            max_rate: 10_000_000,
            silence_ns: 2_500_000_000,
        }
    }
}

/// First message that an [`Arbiter`](super::Arbiter) delivers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The one of this number: 1 is the day's first.
    At(u64),
    /// Whatever comes first.
    Live,
    /// Holds everything until [`Arbiter::start_at`](super::Arbiter::start_at) says where a snapshot
    /// ended.
    Held,
}

/// Why a configuration was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The window is not a power of two in its range.
    #[error("a window of {0} messages; a power of two from 2 to 16777216 is possible")]
    Window(usize),
    /// No message would fit, or more than a packet holds.
    #[error("messages of at most {0} bytes; 1 to 65535 are possible")]
    MaxMessage(usize),
    /// Requests for nothing, or for the end of the session.
    #[error("{0} messages per request; 1 to 65534 are possible")]
    PerRequest(u16),
}

impl ArbiterConfig {
    /// Whether every value is in its range.
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if !self.window.is_power_of_two() || !(2..=1 << 24).contains(&self.window) {
            return Err(ConfigError::Window(self.window));
        }
        if !(1..=usize::from(u16::MAX)).contains(&self.max_message) {
            return Err(ConfigError::MaxMessage(self.max_message));
        }
        if !(1..=mold::MAX_MESSAGES).contains(&self.per_request) {
            return Err(ConfigError::PerRequest(self.per_request));
        }
        Ok(())
    }
}
