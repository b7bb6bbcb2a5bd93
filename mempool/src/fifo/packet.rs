//! [`Packet`]: what a list lets be seen of a packet that goes to a device.

use crate::{
    chain::Segments,
    flags::{OlFlags, TxLengths},
    mbuf::Mbuf,
};

/// A packet as a [`HandOver`](super::HandOver) shows it: enough to describe it to a device, and no
/// handle by which it could be shared.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    pub(super) mbuf: &'a Mbuf,
    pub(super) is_simple: bool,
}

impl<'a> Packet<'a> {
    /// Whether it is a single buffer of the list's pool that nobody shares, see
    /// [`Mbuf::is_simple_of`].
    #[inline(always)]
    #[must_use]
    pub fn is_simple(&self) -> bool {
        self.is_simple
    }

    /// Whether it has any of these requests to the device.
    #[inline(always)]
    #[must_use]
    pub fn wants(&self, any_of: OlFlags) -> bool {
        self.mbuf.wants(any_of)
    }

    /// Its requests to the device.
    #[inline(always)]
    #[must_use]
    pub fn flags(&self) -> OlFlags {
        self.mbuf.flags()
    }

    /// Bytes of data in the first segment.
    #[inline(always)]
    #[must_use]
    pub fn data_len(&self) -> usize {
        self.mbuf.data_len()
    }

    /// Bytes of data in all segments.
    #[inline(always)]
    #[must_use]
    pub fn pkt_len(&self) -> usize {
        self.mbuf.pkt_len()
    }

    /// Virtual address of the first byte, see [`Mbuf::data_address`].
    #[inline(always)]
    #[must_use]
    pub fn data_address(&self) -> usize {
        self.mbuf.data_address()
    }

    /// Number of its segments.
    #[inline(always)]
    #[must_use]
    pub fn nb_segs(&self) -> usize {
        self.mbuf.nb_segs()
    }

    /// Its segments, first to last.
    #[inline(always)]
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        self.mbuf.segments()
    }

    /// The VLAN tag to insert, see [`Mbuf::vlan_tci`].
    #[inline(always)]
    #[must_use]
    pub fn vlan_tci(&self) -> u16 {
        self.mbuf.vlan_tci()
    }

    /// What segmentation needs, see [`Mbuf::tx_lengths`].
    #[inline(always)]
    #[must_use]
    pub fn tx_lengths(&self) -> TxLengths {
        self.mbuf.tx_lengths()
    }

    /// The name for its send timestamp, see [`Mbuf::tx_id`].
    #[inline(always)]
    #[must_use]
    pub fn tx_id(&self) -> u64 {
        self.mbuf.tx_id()
    }

    /// Copies bytes of the packet, see [`Mbuf::read`].
    #[must_use]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> bool {
        self.mbuf.read(offset, out)
    }
}
