//! Requests: what the device reads about packets.

use arrayvec::ArrayVec;
use ferrocx_core::RegionKeys;
use ferrocx_core::wq::{
    Control, SendRing, Wqe, blocks_of, header_units, inline_units, put_data, put_eth,
};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment, TxLengths};
use ferrocx_prm::wqe::{DS_BYTES, ETH_VLAN_INSERT, Eth, MAX_DS, Opcode};

use super::usual::{HEADER_DS, post_usual};
use crate::stats::TxStats;

/// Where a second block goes on.
const BLOCK_START: usize = 0;
/// Flags that say something about a request.
pub(super) const OFFLOADS: OlFlags = CHECKSUMS.union(ALONE);
/// Requests that packets may share.
const CHECKSUMS: OlFlags = OlFlags::TX_IP_CSUM.union(OlFlags::TX_L4_CSUM);
/// Requests that concern one packet.
pub(super) const ALONE: OlFlags = CHANGES.union(OlFlags::TX_TIMESTAMP);
/// Those of them that change what goes out.
const CHANGES: OlFlags = OlFlags::TX_VLAN_INSERT.union(OlFlags::TX_TSO);
/// Longest headers that are copied into a request: Ethernet with two tags, IPv6 with extensions,
/// TCP with options.
const MAX_HEADER_BYTES: usize = 256;
/// Blocks of a request with the longest headers and one data segment.
const MAX_HEADED_BLOCKS: u32 = blocks_of(HEADER_DS + header_units(MAX_HEADER_BYTES) + 1);
/// Bytes of the two MAC addresses.
const MACS_BYTES: usize = 12;
/// Tag protocol identifier of a VLAN tag. Source: IEEE 802.1Q.
const TPID: [u8; 2] = [0x81, 0x00];

/// Headers that had to be gathered, or changed, before they go into a request.
type Header = ArrayVec<u8, MAX_HEADER_BYTES>;

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
    /// Turns an address of the own pool into one of the device.
    pub(super) va_to_iova: u64,
    pub(super) lkey_be: u32,
    /// Regions in whose buffers stand the addresses and keys of another device.
    pub(super) elsewhere: Vec<RegionKeys>,
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

    /// Posts a request of one block for each simple packet at the front, with a tag to insert if
    /// they are `TAGGED`.
    #[inline(never)]
    fn post_singles<const N: usize, const TAGGED: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let alone = if TAGGED { OlFlags::TX_VLAN_INSERT } else { OlFlags::empty() };
        let (lkey_be, va_to_iova, inline_bytes) =
            (self.lkey_be, self.va_to_iova, self.inline_bytes);
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + 1);
        let mut bytes = 0;
        let count = packets.take_while(self.ring.free_blocks() as usize, |packet| {
            let (flags, len) = (packet.flags(), packet.data_len());
            if !packet.is_simple() || flags & ALONE != alone || len <= inline_bytes {
                return false;
            }
            let block = run.begin();
            let tag = if TAGGED { insert_vlan(packet.vlan_tci()) } else { 0 };
            put_eth(block.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
            let addr = (packet.data_address() as u64).wrapping_add(va_to_iova);
            put_data(block.part::<{ 2 * DS_BYTES }, DS_BYTES>(), len as u32, lkey_be, addr);
            bytes += len;
            true
        });
        self.ring.post_blocks(count as u32, blocks_of(HEADER_DS + 1));
        stats.packets += count as u64;
        stats.bytes += bytes as u64;
        count
    }

    /// Posts a request for each chain of `K` buffers of the own pool at the front.
    #[inline(never)]
    fn post_chains<const N: usize, const K: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let blocks = const { blocks_of(HEADER_DS + K as u32) };
        let (lkey_be, va_to_iova, inline_bytes) =
            (self.lkey_be, self.va_to_iova, self.inline_bytes);
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + K as u32);
        let mut bytes = 0;
        let most = self.ring.free_blocks() / blocks;
        let count = packets.take_chains::<K>(most as usize, |packet, segments| {
            let len = packet.pkt_len();
            if packet.wants(ALONE) || len <= inline_bytes {
                return false;
            }
            for segment in &segments {
                if segment.data_len() == 0 {
                    return false;
                }
            }
            let put = |unit, at: usize| {
                let addr = (segments[at].data_address() as u64).wrapping_add(va_to_iova);
                put_data(unit, segments[at].data_len() as u32, lkey_be, addr);
            };
            let block = run.begin();
            put_eth(block.part::<DS_BYTES, DS_BYTES>(), checksums(packet.flags()), 0);
            put(block.part::<{ 2 * DS_BYTES }, DS_BYTES>(), 0);
            put(block.part::<{ 3 * DS_BYTES }, DS_BYTES>(), 1);
            if K > 2 {
                let block = run.more();
                put(block.part::<BLOCK_START, DS_BYTES>(), 2);
                if K > 3 {
                    put(block.part::<DS_BYTES, DS_BYTES>(), 3);
                }
            }
            bytes += len;
            true
        });
        self.ring.post_blocks(count as u32, blocks);
        stats.packets += count as u64;
        stats.bytes += bytes as u64;
        count
    }

    /// Posts a request with the headers of each simple packet at the front: those that are `LARGE`,
    /// to be cut into segments, or all of a queue that wants headers inline.
    #[inline(never)]
    fn post_headed<const N: usize, const LARGE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let alone = if LARGE { OlFlags::TX_TSO } else { OlFlags::empty() };
        let opcode = if LARGE { Opcode::LSO } else { Opcode::SEND };
        let mut bytes = 0;
        // As many as fit if all are long. One that might just fit goes the way of [`Kind::Other`].
        let most = self.ring.free_blocks() / MAX_HEADED_BLOCKS;
        let count = packets.take_while(most as usize, |packet| {
            if !packet.is_simple() || packet.flags() & ALONE != alone {
                return false;
            }
            let (headers, word) = match self.large(&packet) {
                _ if !LARGE => (self.min_inline, checksums(packet.flags())),
                Some(large) => large,
                None => return false,
            };
            let len = packet.data_len();
            let Some(first) = packet.segments().next() else { return false };
            let is_copied = !LARGE && len <= self.inline_bytes;
            if first.is_foreign() || headers >= len || headers > MAX_HEADER_BYTES || is_copied {
                return false;
            }
            let data = first.data();
            let addr = (packet.data_address() + headers) as u64;
            let rest = ((len - headers) as u32, addr.wrapping_add(self.va_to_iova));
            let is_usual = post_usual(&mut self.ring, opcode, word, (data, headers), |unit| {
                put_data(unit, rest.0, self.lkey_be, rest.1);
            });
            if !is_usual {
                let mut wqe = self.ring.begin();
                wqe.eth(word, &data[..headers]);
                wqe.data(rest.0, self.lkey_be, rest.1);
                let ds = wqe.ds();
                self.ring.close(Control::new(opcode), ds, blocks_of(ds));
            }
            bytes += len;
            true
        });
        stats.packets += count as u64;
        stats.bytes += bytes as u64;
        count
    }

    /// Bytes of headers of a packet that is to be cut into segments, and the word of its checksum
    /// requests and segment size. `None` for lengths that contradict the packet.
    #[inline(always)]
    fn large(&self, packet: &Packet<'_>) -> Option<(usize, u32)> {
        let TxLengths { l2_len, l3_len, l4_len, tso_mss } = packet.tx_lengths();
        let headers = usize::from(l2_len) + usize::from(l3_len) + usize::from(l4_len);
        let payload = packet.pkt_len().checked_sub(headers)?;
        let fits = payload != 0
            && payload <= self.max_tso_bytes
            && tso_mss != 0
            && l4_len != 0
            && usize::from(l2_len) >= MACS_BYTES + 2;
        // A segment's checksums are the device's business in any case.
        fits.then(|| (headers, checksums(CHECKSUMS) | u32::from(tso_mss)))
    }

    /// Posts a request for each packet at the front that there is no quicker way for, up to the
    /// first that asks for a timestamp.
    #[inline(never)]
    fn post_others<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> Result<(), Refusal> {
        if packets.free_slots() == 0 {
            return Err(Refusal::Full);
        }
        let (mut refusal, mut bytes, mut stamp) = (Ok(()), 0, None);
        let count = packets.take_while(usize::MAX, |packet| {
            // The first may have been refused by a quicker way.
            let is_quick = packet.is_simple() || packet.nb_segs() == 1;
            if stamp.is_some() || bytes != 0 && is_quick {
                return false;
            }
            refusal = self.post_one(packet);
            if refusal.is_ok() {
                bytes += packet.pkt_len();
                stamp = packet.wants(OlFlags::TX_TIMESTAMP).then(|| packet.tx_id());
            }
            refusal.is_ok()
        });
        self.stamp = stamp;
        stats.packets += count as u64;
        stats.bytes += bytes as u64;
        if count == 0 { refusal } else { Ok(()) }
    }

    /// Posts a request for one packet.
    #[inline(always)]
    fn post_one(&mut self, packet: Packet<'_>) -> Result<(), Refusal> {
        if packet.wants(OlFlags::TX_TIMESTAMP) && !self.takes_stamps {
            return Err(Refusal::Never);
        }
        let has_header = self.min_inline != 0 || packet.pkt_len() <= self.inline_bytes;
        if has_header || packet.wants(self.in_header) {
            return self.post_with_header(packet);
        }
        let inserts = packet.wants(OlFlags::TX_VLAN_INSERT);
        self.make_room_for(HEADER_DS as usize, &packet, 0)?;
        let mut wqe = self.ring.begin();
        let tag = if inserts { insert_vlan(packet.vlan_tci()) } else { 0 };
        put_eth(wqe.unit(), checksums(packet.flags()), tag);
        self.gather(&mut wqe, &packet);
        let ds = wqe.ds();
        self.ring.close(Control::new(Opcode::SEND), ds, blocks_of(ds));
        Ok(())
    }

    /// Makes sure that a request of up to `ds` units can be written.
    #[inline(always)]
    fn make_room(&self, ds: usize) -> Result<(), Refusal> {
        if ds > MAX_DS as usize {
            return Err(Refusal::Never);
        }
        if blocks_of(ds as u32) > self.ring.free_blocks() {
            return Err(Refusal::Full);
        }
        Ok(())
    }

    /// Makes sure that a request of `ds` units and what lies behind the first `skip` bytes can be
    /// written.
    #[inline(always)]
    fn make_room_for(&self, ds: usize, packet: &Packet<'_>, skip: usize) -> Result<(), Refusal> {
        self.make_room(ds + packet.nb_segs()).or_else(|refusal| {
            if refusal == Refusal::Full {
                return Err(refusal);
            }
            // Empty segments, and those that the header holds, need no unit.
            self.make_room(ds + parts(packet, skip).count())
        })
    }

    /// Posts a request that holds headers of the packet, or all of it.
    #[inline(never)]
    fn post_with_header(&mut self, packet: Packet<'_>) -> Result<(), Refusal> {
        let (flags, len) = (packet.flags(), packet.pkt_len());
        let (mut opcode, mut flags_mss) = (Opcode::SEND, checksums(flags));
        let mut skip = self.min_inline.min(len);
        if flags.contains(OlFlags::TX_TSO) {
            (skip, flags_mss) = self.large(&packet).ok_or(Refusal::Never)?;
            opcode = Opcode::LSO;
        }
        // The device inserts a tag where no header stands.
        let (mut word, mut tag) = (0, None);
        if flags.contains(OlFlags::TX_VLAN_INSERT) {
            if self.vlan_insert && skip == 0 {
                word = insert_vlan(packet.vlan_tci());
            } else {
                tag = Some(packet.vlan_tci());
                skip = skip.max(MACS_BYTES + 2);
            }
        }
        let first = packet.segments().next().filter(|first| !first.is_foreign());
        let start = first.as_ref().map_or([].as_slice(), Segment::data);
        let mut room = Header::new();
        let header = match start.get(..skip) {
            Some(header) if tag.is_none() && skip <= MAX_HEADER_BYTES => header,
            _ => gather_header(&mut room, &packet, skip, tag).ok_or(Refusal::Never)?,
        };
        // A header of one byte is none.
        if header.len() == 1 || len == 0 {
            return Err(Refusal::Never);
        }
        // Foreign memory is the device's to read: for the processor each word may be a round trip.
        let is_copied = opcode == Opcode::SEND
            && len <= self.inline_bytes
            && !packet.segments().any(|segment| segment.is_foreign());
        let header_ds = (HEADER_DS + header_units(header.len())) as usize;
        match len - skip {
            0 => self.make_room(header_ds)?,
            rest if is_copied => self.make_room(header_ds + inline_units(rest) as usize)?,
            _ => self.make_room_for(header_ds, &packet, skip)?,
        }
        let mut wqe = self.ring.begin();
        if header.is_empty() {
            put_eth(wqe.unit(), flags_mss, word);
        } else {
            wqe.eth(flags_mss, header);
        }
        if is_copied && start.len() == len && skip != len {
            wqe.inline_one(&start[skip..]);
        } else if is_copied && skip != len {
            wqe.inline(len - skip, parts(&packet, skip).map(|part| part.data()));
        } else {
            for Part { segment, skipped } in parts(&packet, skip) {
                let (lkey_be, addr) = self.place(&segment);
                wqe.data((segment.data_len() - skipped) as u32, lkey_be, addr + skipped as u64);
            }
        }
        let ds = wqe.ds();
        self.ring.close(Control::new(opcode), ds, blocks_of(ds));
        Ok(())
    }

    /// Appends data segments for those of a packet, wherever they lie.
    #[inline(always)]
    fn gather(&self, wqe: &mut Wqe<'_>, packet: &Packet<'_>) {
        for segment in packet.segments() {
            let len = segment.data_len();
            if len != 0 {
                let (lkey_be, addr) = self.place(&segment);
                wqe.data(len as u32, lkey_be, addr);
            }
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

/// What is left of a segment behind its first `skipped` bytes; never empty.
struct Part<'a> {
    segment: Segment<'a>,
    skipped: usize,
}

impl<'a> Part<'a> {
    fn data(&self) -> &'a [u8] {
        &self.segment.data()[self.skipped..]
    }
}

/// The bytes behind the first `skip` of a packet, by segment. Empty pieces are left out.
#[inline(always)]
fn parts<'a>(packet: &Packet<'a>, mut skip: usize) -> impl Iterator<Item = Part<'a>> {
    packet.segments().filter_map(move |segment| {
        let len = segment.data_len();
        let skipped = skip.min(len);
        skip -= skipped;
        (skipped < len).then_some(Part { segment, skipped })
    })
}

/// The first `skip` bytes of a packet, with a VLAN tag put behind the MAC addresses. `None` if
/// they are too long, or the packet too short.
#[inline(never)]
fn gather_header<'a>(
    room: &'a mut Header,
    packet: &Packet<'_>,
    skip: usize,
    tag: Option<u16>,
) -> Option<&'a [u8]> {
    let mut bytes = [0; MAX_HEADER_BYTES];
    let bytes = bytes.get_mut(..skip)?;
    if !packet.read(0, bytes) {
        return None;
    }
    let (macs, rest) = bytes.split_at(if tag.is_some() { MACS_BYTES } else { 0 });
    room.try_extend_from_slice(macs).ok()?;
    if let Some(tci) = tag {
        room.try_extend_from_slice(&TPID).ok()?;
        room.try_extend_from_slice(&tci.to_be_bytes()).ok()?;
    }
    room.try_extend_from_slice(rest).ok()?;
    Some(room)
}
