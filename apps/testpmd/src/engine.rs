//! What is done to a burst of received frames between the receive and the send queue.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, OlFlags, PacketType, PoolCache};

use crate::{
    checksum,
    ether::{self, MacAddr},
    icmpecho::{self, Station, Tail, Verdict},
    reason::{Drops, Reason},
};

/// The work of one forwarding mode, with all that it needs.
#[derive(Debug, Clone)]
pub enum Engine {
    /// Leaves frames as they are.
    Io,
    /// Writes both addresses.
    Mac {
        /// The peer.
        destination: MacAddr,
        /// The port that the frame leaves from.
        source: MacAddr,
    },
    /// Exchanges the addresses.
    MacSwap,
    /// Turns requests into answers.
    IcmpEcho(Station),
    /// Frees everything.
    Consume,
}

/// What the device does to frames on both sides of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offloads {
    /// Frames with a wrong checksum are dropped, and checksums are written by the device.
    pub checksum: bool,
    /// Tags that were stripped are inserted again.
    pub vlan: bool,
}

impl Engine {
    /// Works on `frames` in place. Frames that end here are freed through `cache` and counted in
    /// `drops`; all others stay, in order.
    #[inline]
    pub fn process<const N: usize>(
        &mut self,
        frames: &mut ArrayVec<Mbuf, N>,
        cache: &mut PoolCache,
        drops: &mut Drops,
    ) {
        match self {
            Self::Io => {}
            Self::Mac { destination, source } => {
                rewrite(frames, cache, drops, |frame| {
                    ether::set_addresses(frame, *destination, *source);
                });
            }
            Self::MacSwap => rewrite(frames, cache, drops, ether::swap_addresses),
            Self::IcmpEcho(station) => sift(frames, cache, drops, |frame| echo(frame, station)),
            Self::Consume => {
                drops.add(Reason::Consumed, frames.len() as u64);
                cache.put_bulk(frames);
            }
        }
    }
}

impl Offloads {
    /// Drops frames that the device found damaged. Before the engine.
    #[inline]
    pub fn before<const N: usize>(
        self,
        frames: &mut ArrayVec<Mbuf, N>,
        cache: &mut PoolCache,
        drops: &mut Drops,
    ) {
        if self.checksum {
            let bad = OlFlags::RX_IP_CSUM_BAD | OlFlags::RX_L4_CSUM_BAD;
            sift(frames, cache, drops, |frame| match frame.flags().intersects(bad) {
                true => Err(Reason::BadChecksum),
                false => Ok(()),
            });
        }
    }

    /// Asks the device for checksums and tags. After the engine.
    #[inline]
    pub fn after<const N: usize>(self, frames: &mut ArrayVec<Mbuf, N>) {
        if self == Self::default() {
            return;
        }
        for frame in frames {
            let mut flags = frame.flags();
            if self.vlan && flags.contains(OlFlags::RX_VLAN_STRIPPED) {
                // The tag control information of the received tag is still in place.
                flags |= OlFlags::TX_VLAN_INSERT;
            }
            if self.checksum {
                flags |= clear_checksums(frame);
            }
            frame.set_flags(flags);
        }
    }
}

/// Frames between the one whose headers are asked for and the one at hand.
const PREFETCH_FRAMES: usize = 4;

/// Rewrites frames that nobody else reads.
#[inline]
fn rewrite<const N: usize>(
    frames: &mut ArrayVec<Mbuf, N>,
    cache: &mut PoolCache,
    drops: &mut Drops,
    mut change: impl FnMut(&mut [u8]),
) {
    sift(frames, cache, drops, |frame| frame.data_mut().map(&mut change).ok_or(Reason::ReadOnly));
}

/// Keeps the frames for which `keep` is `Ok`, in order, and frees the others.
#[inline]
fn sift<const N: usize>(
    frames: &mut ArrayVec<Mbuf, N>,
    cache: &mut PoolCache,
    drops: &mut Drops,
    mut keep: impl FnMut(&mut Mbuf) -> Result<(), Reason>,
) {
    let mut kept = 0;
    for at in 0..frames.len() {
        if let Some(later) = frames.get(at + PREFETCH_FRAMES) {
            later.prefetch_data();
        }
        match keep(&mut frames[at]) {
            Ok(()) => {
                // Swaps with itself while nothing was dropped, and with a dropped frame after.
                frames.swap(kept, at);
                kept += 1;
            }
            Err(reason) => drops.add(reason, 1),
        }
    }
    while frames.len() > kept {
        if let Some(frame) = frames.pop() {
            cache.put(frame);
        }
    }
}

/// Answers one frame in place.
fn echo(frame: &mut Mbuf, station: &Station) -> Result<(), Reason> {
    let tail = frame.take_next();
    let sum = |n: usize| tail.as_ref().map_or(0, |tail| sum_of(tail, n));
    // What lies in another device's memory is not fetched from there to be checked.
    let is_near = tail.iter().flat_map(Mbuf::segments).all(|segment| !segment.is_foreign());
    let behind = Tail {
        len_bytes: tail.as_ref().map_or(0, Mbuf::pkt_len),
        sum: is_near.then_some(&sum as &dyn Fn(usize) -> u64),
    };
    let data = frame.data_mut().ok_or(Reason::ReadOnly)?;
    match icmpecho::reply(data, behind, station) {
        Verdict::Drop(reason) => Err(reason),
        Verdict::Reply { len_bytes } => {
            let here = frame.data_len();
            // An answer is never longer than its request.
            let cut = frame.trim(here.saturating_sub(len_bytes));
            debug_assert!(cut);
            rechain(frame, tail, len_bytes.saturating_sub(here))
        }
    }
}

/// Puts the first `len_bytes` bytes of `tail` behind `frame` again, and frees what is left of it.
fn rechain(frame: &mut Mbuf, tail: Option<Mbuf>, mut len_bytes: usize) -> Result<(), Reason> {
    let mut next = tail;
    while let Some(mut segment) = next.filter(|_| len_bytes > 0) {
        next = segment.take_next();
        let excess = segment.data_len().saturating_sub(len_bytes);
        let cut = segment.trim(excess);
        debug_assert!(cut);
        len_bytes -= segment.data_len();
        // The chain had room for these segments a moment ago.
        frame.chain(segment).map_err(|_| Reason::ReadOnly)?;
    }
    Ok(())
}

/// The ones' complement sum of the first `len_bytes` bytes of a chain.
fn sum_of(chain: &Mbuf, len_bytes: usize) -> u64 {
    let (mut sum, mut done) = (0, 0);
    for segment in chain.segments() {
        let take = segment.data_len().min(len_bytes - done);
        let part = checksum::sum(&segment.data()[..take]);
        // A sum that starts at an odd offset has its bytes exchanged (RFC 1071 section 2 B).
        sum += match done % 2 {
            0 => part,
            _ => u64::from(checksum::fold(part).swap_bytes()),
        };
        done += take;
        if done == len_bytes {
            break;
        }
    }
    sum
}

/// Zeroes the checksums that the device is to write, and answers the flags that ask for them.
///
/// Zeroed, so that a device that does not write them is found out at the other end.
fn clear_checksums(frame: &mut Mbuf) -> OlFlags {
    let kind = frame.packet_type();
    let mut flags = OlFlags::empty();
    if kind.0 & PacketType::TUNNELED != 0 || kind.l4() == PacketType::L4_FRAGMENT {
        return flags;
    }
    let Some(data) = frame.data_mut() else { return flags };
    let Some((_, start)) = ether::ethertype(data) else { return flags };
    let Some(packet) = data.get_mut(start..) else { return flags };
    let l4 = match kind.l3() {
        PacketType::L3_IPV4 if packet.len() >= 20 => {
            packet[10..12].fill(0);
            flags |= OlFlags::TX_IP_CSUM;
            usize::from(packet[0] & 0xf) * 4
        }
        PacketType::L3_IPV6 => 40,
        _ => return flags,
    };
    let field = match kind.l4() {
        PacketType::L4_TCP => 16,
        // Zero says that a UDP sender made no checksum: none is asked for then.
        PacketType::L4_UDP if ether::be16(packet, l4 + 6) != Some(0) => 6,
        _ => return flags,
    };
    if let Some(field) = packet.get_mut(l4 + field..l4 + field + 2) {
        field.fill(0);
        flags |= OlFlags::TX_L4_CSUM;
    }
    flags
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
