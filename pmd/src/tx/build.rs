//! Requests: what the device reads about packets.

use ferrocx_core::RegionKeys;
use ferrocx_core::wq::{SendRing, Unit, put_data};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment};
use ferrocx_prm::wqe::{ETH_VLAN_INSERT, Eth};

use crate::stats::TxStats;

/// Units that control and Ethernet segment take.
pub(super) const HEADER_DS: u32 = 2;
/// Flags that say something about a request.
pub(super) const OFFLOADS: OlFlags = CHECKSUMS.union(ALONE);
/// Requests that packets may share.
pub(super) const CHECKSUMS: OlFlags = OlFlags::TX_IP_CSUM.union(OlFlags::TX_L4_CSUM);
/// Requests that concern one packet.
pub(super) const ALONE: OlFlags = CHANGES.union(OlFlags::TX_TIMESTAMP);
/// Those of them that change what goes out.
const CHANGES: OlFlags = OlFlags::TX_VLAN_INSERT.union(OlFlags::TX_TSO);
/// Bytes of the two MAC addresses.
pub(super) const MACS_BYTES: usize = 12;

/// Why a packet at the front is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The ring has no room for it now.
    Full,
    /// No request can describe it.
    Never,
}

/// The ring, and all that decides what a packet's request looks like.
pub(super) struct Requests {
    pub(super) ring: SendRing,
    /// Packets may share a request.
    pub(super) multi_packet: bool,
    /// Packets up to here are copied into their request.
    pub(super) inline_bytes: usize,
    /// Headers that each request must carry.
    pub(super) min_inline: usize,
    pub(super) vlan_insert: bool,
    /// Requests to which the device needs headers.
    pub(super) in_header: OlFlags,
    pub(super) max_tso_bytes: usize,
    /// Packets may ask for a timestamp.
    pub(super) takes_stamps: bool,
    /// Name of the packet posted last, if it asked for one: its request is to be completed.
    pub(super) stamp: Option<u64>,
    pub(super) own: OwnPool,
    /// Regions in whose buffers stand the addresses and keys of another device.
    pub(super) elsewhere: Vec<RegionKeys>,
}

/// How the device reaches the buffers of the queue's pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnPool {
    /// Turns an address into one of the device.
    pub(super) va_to_iova: u64,
    pub(super) lkey_be: u32,
}

impl OwnPool {
    /// Key and address of bytes in a buffer.
    #[inline(always)]
    pub(super) fn place(self, address: usize) -> (u32, u64) {
        (self.lkey_be, (address as u64).wrapping_add(self.va_to_iova))
    }

    /// Writes the data segment of `len` bytes in a buffer.
    #[inline(always)]
    pub(super) fn put(self, unit: Unit<'_>, len: usize, address: usize) {
        let (lkey_be, addr) = self.place(address);
        put_data(unit, len as u32, lkey_be, addr);
    }
}

/// The word of checksum requests for a packet's flags.
#[inline(always)]
pub(super) const fn checksums(flags: OlFlags) -> u32 {
    const SHIFT: u32 =
        Eth::L3_CSUM.mask().trailing_zeros() - OlFlags::TX_IP_CSUM.bits().trailing_zeros();
    const { assert!(OlFlags::TX_IP_CSUM.bits() << SHIFT == Eth::L3_CSUM.mask()) };
    const { assert!(OlFlags::TX_L4_CSUM.bits() << SHIFT == Eth::L4_CSUM.mask()) };
    (flags.bits() & CHECKSUMS.bits()) << SHIFT
}

/// How a packet is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In a request that it may share.
    Shared,
    /// By a request of one block that points to it.
    Single,
    /// By a request that points to each segment of a chain.
    Chain,
    /// By a request that holds its first bytes and points to the rest.
    Headed,
    /// By any other request.
    Other,
}

/// The word that has a tag inserted.
#[inline(always)]
pub(super) const fn insert_vlan(tci: u16) -> u32 {
    Eth::INLINE_HDR_SZ.of(ETH_VLAN_INSERT) | tci as u32
}

impl Requests {
    /// Posts requests for packets at the front, one for many or one for each, as long as they are
    /// alike; says why not if it posts none.
    #[inline]
    pub(super) fn post<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> Result<(), Refusal> {
        let Some(first) = packets.peek() else { return Ok(()) };
        let (kind, flags) = (self.kind(&first), first.flags());
        let count = match kind {
            Kind::Shared => {
                let flags = first.flags() & OFFLOADS;
                let word = checksums(flags);
                let is_plain = |packet: &Packet<'_>| !packet.wants(OFFLOADS);
                let is_alike = |packet: &Packet<'_>| packet.flags() & OFFLOADS == flags;
                if !first.is_simple() && self.inline_bytes != 0 {
                    self.post_many::<N, false>(packets, stats, is_alike, word)
                } else if !first.is_simple() {
                    self.post_pointers::<N, false>(packets, stats, is_alike, word)
                } else if self.inline_bytes != 0 {
                    self.post_many::<N, true>(packets, stats, is_alike, word)
                } else if word != 0 {
                    self.post_pointers::<N, true>(packets, stats, is_alike, word)
                } else {
                    self.post_pointers::<N, true>(packets, stats, is_plain, 0)
                }
            }
            Kind::Single if first.wants(ALONE) => self.post_singles::<N, true>(packets, stats),
            Kind::Single => self.post_singles::<N, false>(packets, stats),
            Kind::Chain => match first.nb_segs() {
                2 => self.post_chains::<N, 2>(packets, stats),
                3 => self.post_chains::<N, 3>(packets, stats),
                _ => self.post_chains::<N, 4>(packets, stats),
            },
            Kind::Headed if first.wants(OlFlags::TX_TSO) => {
                self.post_headed::<N, true>(packets, stats)
            }
            Kind::Headed => self.post_headed::<N, false>(packets, stats),
            Kind::Other => 0,
        };
        // What the quick ways do not take, the last one does, or says why not.
        match count {
            0 => return self.post_others(packets, stats),
            1 if matches!(kind, Kind::Shared | Kind::Single) => {
                self.post_unlike(packets, stats, flags);
            }
            _ => {}
        }
        Ok(())
    }

    /// Requests that a device, which inserts tags or does not, carries out on headers only.
    pub(super) fn in_header(vlan_insert: bool) -> OlFlags {
        if vlan_insert { OlFlags::TX_TSO } else { CHANGES }
    }

    /// How a packet is sent, as a rule: one that the quick way refuses goes the way of
    /// [`Kind::Other`].
    #[inline(always)]
    fn kind(&self, packet: &Packet<'_>) -> Kind {
        let alone = packet.flags() & ALONE;
        if alone.is_empty()
            && self.multi_packet
            && packet.data_len() != 0
            && (packet.is_simple() || packet.nb_segs() == 1)
        {
            Kind::Shared
        } else if !packet.is_simple() {
            let is_short = (2..=4).contains(&packet.nb_segs());
            if is_short && self.min_inline == 0 { Kind::Chain } else { Kind::Other }
        } else if packet.data_len() <= self.inline_bytes {
            Kind::Other
        } else if alone == OlFlags::TX_TSO || (alone.is_empty() && self.min_inline != 0) {
            Kind::Headed
        } else if alone.is_empty()
            || (alone == OlFlags::TX_VLAN_INSERT && self.vlan_insert && self.min_inline == 0)
        {
            Kind::Single
        } else {
            Kind::Other
        }
    }

    /// Key and address by which this device reaches a segment: those that stand in its buffer,
    /// unless another device stamped it.
    #[inline(always)]
    pub(super) fn place(&self, segment: &Segment<'_>) -> (u32, u64) {
        if self.elsewhere.is_empty() {
            return (segment.lkey_be(), segment.data_iova());
        }
        self.translate(segment)
    }

    #[inline(never)]
    fn translate(&self, segment: &Segment<'_>) -> (u32, u64) {
        let address = segment.data_address();
        match self.elsewhere.iter().find(|region| region.addresses.contains(&address)) {
            Some(region) => (region.lkey_be, (address as u64).wrapping_add(region.va_to_iova)),
            None => (segment.lkey_be(), segment.data_iova()),
        }
    }
}
