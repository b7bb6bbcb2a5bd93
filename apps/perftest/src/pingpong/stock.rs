//! What the stock ping-pongs have in common: how the ends meet, and their settings.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{Buf, Path, Psn, Qp, RtrAttr, RtsAttr};

use crate::config::Net;
use crate::exchange::Role;
use crate::handshake::{self, Address};

/// The stock tools do one READ at a time, that is none.
const READS: u8 = 1;
/// Nothing for this long: the other end is gone, or a datagram was lost.
const PATIENCE: Duration = Duration::from_secs(30);

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

/// Connects a queue pair to the one that the peer says.
pub(super) fn connect(qp: &mut Qp<Buf>, net: &Net, path: Path, peer: &Address) -> Result<()> {
    let attr = RtrAttr::new(path, peer.qpn, peer.psn, net.mtu);
    Ok(qp.connect(&RtrAttr { max_dest_rd_atomic: READS, ..attr })?)
}

/// Makes a queue pair ready to send, from this number on.
pub(super) fn activate(qp: &mut Qp<Buf>, net: &Net, psn: Psn) -> Result<()> {
    let (attr, timeout) = (RtsAttr::new(psn), net.ack_timeout);
    Ok(qp.activate(&RtsAttr { max_rd_atomic: READS, timeout, ..attr })?)
}

/// Waits for something to come, of which nothing has since then.
pub(super) fn idle(wait: Wait, since: Instant) -> Result<()> {
    if since.elapsed() > PATIENCE {
        bail!("nothing came for {} s", PATIENCE.as_secs());
    }
    wait.idle();
    Ok(())
}
