//! Requests: what the device reads about packets.

use ferrocx_core::RegionKeys;
use ferrocx_core::wq::{SendRing, Unit, put_data};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{DS_BYTES, ETH_VLAN_INSERT, Eth, InlineHeader};

use crate::stats::TxStats;

/// Units that control and Ethernet segment take.
pub(super) const HEADER_DS: u32 = 2;
/// Where the data of an inline data segment behind them starts.
pub(super) const INLINE_AT: usize = HEADER_DS as usize * DS_BYTES + InlineHeader::SIZE_BYTES;
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
    /// What a request without headers does not do for a packet.
    pub(super) not_bare: OlFlags,
    /// The queue's pool lies in foreign memory, which the processor never reads.
    pub(super) is_foreign: bool,
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
        let flags = first.flags();
        let is_single = first.is_simple() || first.nb_segs() == 1;
        let count =
            if self.multi_packet && is_single && !first.wants(ALONE) && first.data_len() != 0 {
                let flags = flags & OFFLOADS;
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
            } else if !self.is_bare(&first) || first.pkt_len() <= self.inline_bytes {
                return self.post_rarer(packets, stats);
            } else if first.is_simple() {
                if first.wants(ALONE) {
                    self.post_singles::<N, true>(packets, stats)
                } else {
                    self.post_singles::<N, false>(packets, stats)
                }
            } else {
                let is_quick = !first.wants(ALONE) && self.inline_bytes == 0;
                let count = match first.nb_segs() {
                    2 if is_quick => self.post_pairs(packets, stats),
                    3 if is_quick => self.post_chains::<N, 3, false>(packets, stats),
                    4 if is_quick => self.post_chains::<N, 4, false>(packets, stats),
                    _ => return self.post_rarer(packets, stats),
                };
                return if count == 0 { self.post_others(packets, stats) } else { Ok(()) };
            };
        // What the quick ways do not take, the last one does, or says why not.
        match count {
            0 => return self.post_others(packets, stats),
            1 => self.post_unlike(packets, stats, flags),
            _ => {}
        }
        Ok(())
    }

    /// Does what [`Requests::post`] does for kinds of packets that are sent less often, and do not
    /// share requests.
    #[inline(never)]
    fn post_rarer<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> Result<(), Refusal> {
        let Some(first) = packets.peek() else { return Ok(()) };
        let (flags, segments) = (first.flags(), first.nb_segs());
        let (alone, is_bare) = (flags & ALONE, self.is_bare(&first));
        let is_large = alone == OlFlags::TX_TSO;
        let has_header = is_large || alone.is_empty() && self.min_inline != 0;
        let copies = self.inline_bytes != 0;
        let is_short = first.pkt_len() <= self.inline_bytes;
        let count = match segments {
            1 if is_bare => {
                let count = match (first.is_simple(), alone.is_empty()) {
                    (true, true) if is_short => self.post_copies::<N, false>(packets, stats),
                    (true, false) if is_short => self.post_copies::<N, true>(packets, stats),
                    _ => self.post_each(packets, stats, alone),
                };
                if count == 1 {
                    self.post_unlike(packets, stats, flags);
                }
                count
            }
            1 if self.is_stamped(alone) => self.post_stamped(packets, stats),
            1 if is_large => self.post_headed::<N, true>(packets, stats),
            1 if has_header => self.post_headed::<N, false>(packets, stats),
            2 if is_bare && !copies => self.post_chains::<N, 2, true>(packets, stats),
            3 if is_bare && !copies => self.post_chains::<N, 3, true>(packets, stats),
            4 if is_bare && !copies => self.post_chains::<N, 4, true>(packets, stats),
            5 if is_bare && !copies && alone.is_empty() => {
                self.post_chains::<N, 5, false>(packets, stats)
            }
            6 if is_bare && !copies && alone.is_empty() => {
                self.post_chains::<N, 6, false>(packets, stats)
            }
            7 if is_bare && !copies && alone.is_empty() => {
                self.post_chains::<N, 7, false>(packets, stats)
            }
            8 if is_bare && !copies && alone.is_empty() => {
                self.post_chains::<N, 8, false>(packets, stats)
            }
            5.. if is_bare && !copies => self.post_long::<N, false, false>(packets, stats, alone),
            2.. if is_large => self.post_gathered::<N, true>(packets, stats, alone, segments),
            2.. if is_bare || has_header => {
                self.post_gathered::<N, false>(packets, stats, alone, segments)
            }
            _ => 0,
        };
        if count == 0 { self.post_others(packets, stats) } else { Ok(()) }
    }

    /// Whether a packet that wants this alone wants its timestamp and nothing but what a request
    /// without headers does.
    fn is_stamped(&self, alone: OlFlags) -> bool {
        let rest = alone.difference(OlFlags::TX_TIMESTAMP);
        rest != alone
            && self.takes_stamps
            && self.min_inline == 0
            && !rest.intersects(self.not_bare)
    }

    /// Whether a packet wants nothing but what a request without headers does.
    #[inline(always)]
    fn is_bare(&self, packet: &Packet<'_>) -> bool {
        self.min_inline == 0 && !packet.wants(self.not_bare)
    }

    /// What a device, which inserts tags or does not, does only by requests with headers, or one by
    /// one.
    pub(super) fn not_bare(vlan_insert: bool) -> OlFlags {
        if vlan_insert { ALONE.difference(OlFlags::TX_VLAN_INSERT) } else { ALONE }
    }

    /// Requests that a device, which inserts tags or does not, carries out on headers only.
    pub(super) fn in_header(vlan_insert: bool) -> OlFlags {
        if vlan_insert { OlFlags::TX_TSO } else { CHANGES }
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
