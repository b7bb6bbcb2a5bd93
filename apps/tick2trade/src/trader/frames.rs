//! Which frames are led here, and which of those are taken.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use ferrocx::net::ip;
use ferrocx::net::packet::Packet;
use ferrocx::{FlowMatch, Ipv4Match, Mbuf, OlFlags};

use crate::engine::Engine;
use crate::feed::Source;
use crate::order_line::OrderLine;
use crate::strategy::Strategy;

/// Why a frame that a rule led here was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadFrame {
    /// Its headers are no headers, or cut off.
    Unreadable,
    /// It is of another protocol, or between other ends.
    Foreign,
    /// A checksum is wrong.
    Damaged,
}

/// Frames that a rule led here and that were not taken, by [`BadFrame`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Of no readable headers.
    pub unreadable: u64,
    /// Not ours.
    pub foreign: u64,
    /// Of a wrong checksum.
    pub damaged: u64,
}

impl Dropped {
    pub(super) fn count(&mut self, why: BadFrame) {
        *match why {
            BadFrame::Unreadable => &mut self.unreadable,
            BadFrame::Foreign => &mut self.foreign,
            BadFrame::Damaged => &mut self.damaged,
        } += 1;
    }
}

// ANCHOR: feed_frame
/// Leads a received frame of the feed to the engine, and what that decides to the doorbell. What is
/// hot in [`Trader::poll`](super::Trader::poll).
///
/// # Errors
/// A [`BadFrame`], and nothing happened, if it is no intact datagram to `group`.
#[inline]
pub fn feed_frame<S: Strategy>(
    engine: &mut Engine<S>,
    line: &mut OrderLine,
    source: Source,
    group: SocketAddr,
    mbuf: &Mbuf,
    now_ns: u64,
) -> Result<(), BadFrame> {
    let Ok(packet) = Packet::parse(mbuf.data()) else { return Err(BadFrame::Unreadable) };
    check(mbuf, &packet, packet.is_udp() && packet.is_for(group))?;
    line.set_now(now_ns);
    engine.feed(source, packet.payload(), now_ns, line);
    Ok(())
}
// ANCHOR_END: feed_frame

/// Leads a received frame with messages that were asked for to the engine.
///
/// # Errors
/// A [`BadFrame`], and nothing happened, if it is no intact datagram from the `server` to us.
#[cold]
pub(super) fn answer_frame<S: Strategy>(
    engine: &mut Engine<S>,
    line: &mut OrderLine,
    (server, own): (SocketAddr, SocketAddr),
    mbuf: &Mbuf,
    now_ns: u64,
) -> Result<(), BadFrame> {
    let packet = read(mbuf, server)?;
    if !(packet.is_udp() && packet.is_for(own)) {
        return Err(BadFrame::Foreign);
    }
    line.set_now(now_ns);
    engine.feed(Source::Retransmission, packet.payload(), now_ns, line);
    Ok(())
}

/// A connection that the exchange's server at an address answers on.
pub(super) fn tcp_from(at: SocketAddrV4, own: Ipv4Addr) -> FlowMatch {
    FlowMatch {
        ipv4: Some(Ipv4Match { source: Some((*at.ip()).into()), destination: Some(own.into()) }),
        ip_protocol: Some(ip::TCP),
        source_port: Some(at.port().into()),
        ..FlowMatch::default()
    }
}

/// Datagrams to an address, from one host or from any.
pub(super) fn udp_to(at: SocketAddrV4, from: Option<Ipv4Addr>) -> FlowMatch {
    let (source, destination) = (from.map(Into::into), Some((*at.ip()).into()));
    FlowMatch {
        ipv4: Some(Ipv4Match { source, destination }),
        ip_protocol: Some(ip::UDP),
        destination_port: Some(at.port().into()),
        ..FlowMatch::default()
    }
}

/// Reads a frame of who is at `from`.
pub(super) fn read(mbuf: &Mbuf, from: SocketAddr) -> Result<Packet<'_>, BadFrame> {
    let Ok(packet) = Packet::parse(mbuf.data()) else { return Err(BadFrame::Unreadable) };
    check(mbuf, &packet, packet.source() == from)?;
    Ok(packet)
}

/// Whether a frame is ours and its checksums are right, by the device's word where it has one.
#[inline(always)]
fn check(mbuf: &Mbuf, packet: &Packet<'_>, is_ours: bool) -> Result<(), BadFrame> {
    let good = OlFlags::RX_IP_CSUM_GOOD | OlFlags::RX_L4_CSUM_GOOD;
    if !is_ours {
        Err(BadFrame::Foreign)
    } else if mbuf.flags().contains(good) || packet.is_intact() {
        Ok(())
    } else {
        Err(BadFrame::Damaged)
    }
}
