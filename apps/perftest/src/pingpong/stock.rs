//! What the stock ping-pongs have in common: how the ends meet, and their settings.

use std::io::{Read, Write};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::exchange::Role;
use crate::handshake::{self, Address};

/// The stock tools do one READ at a time, that is none.
pub(super) const READS: u8 = 1;
/// Nothing for this long: the other end is gone, or a datagram was lost.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Exchanges addresses with the other end, and connects to those that it says.
pub(super) fn meet(
    role: Role,
    stream: &mut (impl Read + Write),
    own: &[Address],
    connect: impl FnOnce(&[Address]) -> Result<()>,
) -> Result<()> {
    match role {
        Role::Client => {
            let peers = handshake::as_client(stream, own).context("exchange over TCP")?;
            connect(&peers)
        }
        Role::Server => {
            handshake::as_server(stream, own, connect).context("exchange over TCP")?;
            Ok(())
        }
    }
}
