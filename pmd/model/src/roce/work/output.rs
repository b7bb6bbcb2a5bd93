//! Where packets go: the wire, or back to the port itself.

use std::collections::VecDeque;

use super::env::{Env, is_own};
use crate::frame::packet::Cast;
use crate::objects::Qp;
use crate::roce::transport::bth::Header;
use crate::roce::transport::packet::{Path, seal};
use crate::wire::{Fcs, Train, Wire};

/// Frames that a port holds for itself at most.
pub(super) const MAX_LOOPBACK: usize = 256;

/// Headers of packets that go together at most.
const HEADERS_BYTES: usize = 256;

/// Frames that a port sends to itself.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    pub(super) frames: VecDeque<(Vec<u8>, Fcs)>,
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
    wire: &'a mut dyn Wire,
    loopback: &'a mut Loopback,
}

/// A packet to send, or several of a message: as many as its header says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parcel<'a> {
    pub(super) path: &'a Path,
    pub(super) header: &'a Header,
    /// Bytes of payload.
    pub(super) len: usize,
    /// Bytes of payload of a full packet.
    pub(super) mtu: usize,
    /// Of a multicast packet, no copy comes back.
    pub(super) blocks_loopback: bool,
}

impl Parcel<'_> {
    /// What it would have been on a cable, if it is `bytes` long as one.
    fn train(&self, bytes: usize) -> Train {
        let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let frames = self.header.packets;
        if frames == 1 {
            return Train { frames, bytes: number(bytes), longest: number(bytes) };
        }
        let frame = |op, len| self.path.frame_bytes(&Header { op, ..*self.header }, len);
        let [first, middle, last] = self.header.op.apart();
        let between = frames as usize - 2;
        let rest = self.len - (between + 1) * self.mtu;
        let (first, last) = (frame(first, self.mtu), frame(last, rest));
        let bytes = first + between * frame(middle, self.mtu) + last;
        Train { frames, bytes: number(bytes), longest: number(first.max(last)) }
    }
}

/// Whether a packet went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    Yes,
    /// The way is full: try again later.
    Full,
}

impl<'a> Output<'a> {
    pub(super) fn new(wire: &'a mut dyn Wire, loopback: &'a mut Loopback) -> Self {
        Self { wire, loopback }
    }

    /// Packets of a message that may go together: more than one on a reliable connection where
    /// nobody can see it.
    ///
    /// A step stays bounded: a message whose memory is in pieces of other keys goes packet by
    /// packet, and who has such memory for what arrives takes the packets apart.
    pub(super) fn most_together(&self, qp: &Qp, env: &Env<'_>, path: Option<&Path>) -> u32 {
        let is_seen = |path: &Path| {
            !self.wire.is_private(&path.dmac) || is_own(env.port, env.gids, &path.dmac)
        };
        if !qp.qp_type.is_reliable() || path.is_none_or(is_seen) {
            return 1;
        }
        let payload = self.wire.longest_inside().saturating_sub(HEADERS_BYTES);
        (u32::try_from(payload).unwrap_or(0) / qp.mtu_bytes()).max(1)
    }

    /// Builds a packet in place and sends it. `fill` writes the payload; when it fails, nothing is
    /// sent. A packet that the port cannot send is counted and lost: its queue pair will retry.
    pub(super) fn send<E>(
        &mut self,
        env: &mut Env<'_>,
        parcel: &Parcel<'_>,
        fill: impl FnOnce(&mut Env<'_>, &mut [u8]) -> Result<(), E>,
    ) -> Result<Sent, E> {
        let Parcel { path, header, len, .. } = *parcel;
        let bytes = path.frame_bytes(header, len);
        let train = parcel.train(bytes);
        if !env.port.is_up() {
            env.port.counters.tx_link_down += u64::from(train.frames);
            return Ok(Sent::Yes);
        }
        // The port's MTU counts the FCS too. Source: reference 4.7, PMTU.
        if train.longest > env.port.mtu.saturating_sub(4) {
            env.port.counters.tx_errors.add_train(&train);
            env.refuse("packet", train.longest.into(), "longer than the MTU of the port");
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
            fill(env, &mut frame[at])?;
            self.loopback.frames.push_back((frame, Fcs::Inside(train)));
            return Ok(Sent::Yes);
        }
        // What goes together needs a way that is still private; else it is lost, and goes again.
        let is_private = self.wire.is_private(&path.dmac);
        if header.packets > 1 && !is_private {
            return Ok(Sent::Yes);
        }
        let Some(frame) = self.wire.reserve(bytes) else { return Ok(Sent::Full) };
        let at = path.write(header, len, frame);
        fill(env, &mut frame[at.clone()])?;
        let fcs = if is_private {
            Fcs::Inside(train)
        } else {
            seal(path, frame, at);
            Fcs::Good
        };
        let comes_back = cast != Cast::Unicast && !parcel.blocks_loopback;
        if comes_back && self.loopback.frames.len() < MAX_LOOPBACK {
            self.loopback.frames.push_back((frame.to_vec(), fcs));
        }
        self.wire.commit(env.now_ns, fcs);
        let counters = &mut env.port.counters;
        let kind = match cast {
            Cast::Unicast => &mut counters.tx_ib_unicast,
            Cast::Multicast | Cast::Broadcast => &mut counters.tx_ib_multicast,
        };
        kind.add_train(&train);
        Ok(Sent::Yes)
    }
}
