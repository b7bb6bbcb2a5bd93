//! Where packets go: the wire, or back to the port itself.

use std::collections::VecDeque;

use super::env::{Env, is_own};
use crate::frame::packet::Cast;
use crate::roce::transport::bth::Header;
use crate::roce::transport::packet::{Path, seal};
use crate::wire::{Fcs, Wire};

/// Frames that a port holds for itself at most.
pub(super) const MAX_LOOPBACK: usize = 256;

/// Frames that a port sends to itself.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    pub(super) frames: VecDeque<Vec<u8>>,
    pub(super) spare: Vec<Vec<u8>>,
}

impl Loopback {
    /// Keeps an emptied buffer for a later frame.
    pub(super) fn keep(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < MAX_LOOPBACK {
            self.spare.push(bytes);
        }
    }
}

/// Destinations of packets: the wire, or the port itself.
pub(super) struct Output<'a> {
    pub(super) wire: &'a mut dyn Wire,
    pub(super) loopback: &'a mut Loopback,
}

/// Whether a packet went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// The way is full: try again later.
    Full,
}

impl Output<'_> {
    /// Builds a packet in place and sends it. `fill` writes the payload; when it fails, nothing is
    /// sent. A packet that the port cannot send is counted and lost: its queue pair will retry.
    pub(super) fn send<E>(
        &mut self,
        env: &mut Env<'_>,
        (path, header): (&Path, &Header),
        len: usize,
        block_loopback: bool,
        fill: impl FnOnce(&mut Env<'_>, &mut [u8]) -> Result<(), E>,
    ) -> Result<Sent, E> {
        let bytes = path.frame_bytes(header, len);
        if !env.port.is_up() {
            env.port.counters.tx_link_down += 1;
            return Ok(Sent::Yes);
        }
        // The port's MTU counts the FCS too. Source: reference 4.7, PMTU.
        if bytes > (env.port.mtu as usize).saturating_sub(4) {
            env.port.counters.tx_errors.add(bytes as u64);
            env.refuse("packet", bytes as u64, "longer than the MTU of the port");
            return Ok(Sent::Yes);
        }
        let cast = Cast::of(&path.dmac);
        if cast == Cast::Unicast && is_own(env.port, env.gids, &path.dmac) {
            if self.loopback.frames.len() >= MAX_LOOPBACK {
                return Ok(Sent::Full);
            }
            let mut frame = self.loopback.spare.pop().unwrap_or_default();
            frame.resize(bytes, 0);
            let at = path.write(header, len, &mut frame);
            fill(env, &mut frame[at.clone()])?;
            seal(path, &mut frame, at);
            self.loopback.frames.push_back(frame);
            return Ok(Sent::Yes);
        }
        let Some(frame) = self.wire.reserve(bytes) else { return Ok(Sent::Full) };
        let at = path.write(header, len, frame);
        fill(env, &mut frame[at.clone()])?;
        seal(path, frame, at);
        if cast != Cast::Unicast && !block_loopback && self.loopback.frames.len() < MAX_LOOPBACK {
            self.loopback.frames.push_back(frame.to_vec());
        }
        self.wire.commit(env.now_ns, Fcs::Good);
        let counters = &mut env.port.counters;
        let kind = match cast {
            Cast::Unicast => &mut counters.tx_unicast,
            Cast::Multicast => &mut counters.tx_multicast,
            Cast::Broadcast => &mut counters.tx_broadcast,
        };
        kind.add(bytes as u64);
        Ok(Sent::Yes)
    }
}
