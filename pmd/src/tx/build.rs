//! Requests for one packet: SEND with offloads and chains, LSO, and data copied into the ring.

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, OlFlags, Segment};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{
    DS_BYTES, DS_PER_BLOCK, ETH_INLINE_BYTES, ETH_VLAN_INSERT, Eth, INLINE_SEG, InlineHeader,
    MAX_DS, Opcode,
};

use super::{HEADER_DS, TxRing, pair};

/// Longest headers that are copied into a request: Ethernet with two tags, IPv6 with extensions,
/// TCP with options.
const MAX_HEADER_BYTES: usize = 256;
/// Bytes of the two MAC addresses, and of a VLAN tag.
const MACS_BYTES: usize = 12;
const TAG_BYTES: usize = 4;
/// Tag protocol identifier of a VLAN tag. Source: IEEE 802.1Q.
const TPID: [u8; 2] = [0x81, 0x00];

/// Headers that stand in the request instead of in the buffer.
type Header = ArrayVec<u8, MAX_HEADER_BYTES>;

/// What a packet's request looks like.
struct Plan {
    opcode: Opcode,
    /// Second and fourth word of the Ethernet segment.
    flags_mss: u32,
    inline_word: u32,
    header: Header,
    /// Bytes of the packet that `header` stands for.
    skip: usize,
    /// Length in 16-byte units.
    ds: u32,
    /// Copy the data instead of pointing at it.
    copy: bool,
}

impl TxRing {
    /// Sends the first packet with a request of its own. `false` if the ring has no room for it;
    /// a packet that cannot be sent is freed and counted.
    #[inline(never)]
    pub(super) fn send_alone<const N: usize>(&mut self, packets: &mut ArrayVec<Mbuf, N>) -> bool {
        let Some(mbuf) = packets.first() else { return true };
        let Some(plan) = self.plan(mbuf) else {
            self.stats.dropped += 1;
            let mbuf = packets.remove(0);
            self.cache.put(mbuf);
            return true;
        };
        if plan.ds.div_ceil(DS_PER_BLOCK) > self.free_blocks() || self.elts.free_slots() == 0 {
            return false;
        }
        let mbuf = packets.remove(0);
        self.stats.packets += 1;
        self.stats.bytes += mbuf.pkt_len() as u64;
        self.write(&mbuf, &plan);
        self.keep(mbuf);
        true
    }

    /// Decides how a packet is sent. `None` if it cannot be.
    fn plan(&self, mbuf: &Mbuf) -> Option<Plan> {
        let flags = mbuf.flags();
        let len = mbuf.pkt_len();
        if len == 0 {
            return None;
        }
        let mut flags_mss = 0;
        if flags.contains(OlFlags::TX_IP_CSUM) {
            flags_mss |= Eth::L3_CSUM.mask();
        }
        if flags.contains(OlFlags::TX_L4_CSUM) {
            flags_mss |= Eth::L4_CSUM.mask();
        }
        let mut opcode = Opcode::SEND;
        let mut skip = usize::from(self.min_inline).min(len);
        if flags.contains(OlFlags::TX_TSO) {
            let lengths = mbuf.tx_lengths();
            let l2_l3 = usize::from(lengths.l2_len) + usize::from(lengths.l3_len);
            let headers = l2_l3 + usize::from(lengths.l4_len);
            let payload = len.checked_sub(headers)?;
            let fits = payload != 0
                && payload <= self.max_tso_bytes as usize
                && lengths.tso_mss != 0
                && lengths.l4_len != 0
                && lengths.l2_len as usize >= MACS_BYTES + 2;
            if !fits {
                return None;
            }
            // A segment's checksums are the device's business in any case.
            flags_mss |= Eth::L4_CSUM.mask() | Eth::L3_CSUM.mask() | u32::from(lengths.tso_mss);
            opcode = Opcode::LSO;
            skip = headers;
        }
        let mut inline_word = 0;
        let mut tag = None;
        if flags.contains(OlFlags::TX_VLAN_INSERT) {
            if self.vlan_insert && skip == 0 {
                inline_word = ETH_VLAN_INSERT << 16 | u32::from(mbuf.vlan_tci());
            } else {
                tag = Some(mbuf.vlan_tci());
                skip = skip.max(MACS_BYTES + 2);
            }
        }
        let header = header(mbuf, skip, tag)?;
        if !header.is_empty() {
            let start = u32::from(header[0]) << 8 | u32::from(*header.get(1)?);
            inline_word = (header.len() as u32) << 16 | start;
        }
        // Foreign memory is the device's to read: for the processor each word may be a round trip.
        let copy = opcode == Opcode::SEND
            && len <= usize::from(self.inline_bytes)
            && !mbuf.segments().any(|segment| segment.is_foreign());
        let header_ds = header.len().saturating_sub(ETH_INLINE_BYTES).div_ceil(DS_BYTES);
        let data_ds = if copy {
            match len - skip {
                0 => 0,
                rest => (InlineHeader::SIZE_BYTES + rest).div_ceil(DS_BYTES),
            }
        } else {
            parts(mbuf, skip).count()
        };
        let ds = HEADER_DS as usize + header_ds + data_ds;
        let ds = u32::try_from(ds).ok().filter(|ds| *ds <= MAX_DS)?;
        Some(Plan { opcode, flags_mss, inline_word, header, skip, ds, copy })
    }

    /// Writes a planned request.
    fn write(&mut self, mbuf: &Mbuf, plan: &Plan) {
        let first = self.pi.wrapping_mul(DS_PER_BLOCK);
        self.write_eth(first, plan.flags_mss, plan.inline_word);
        let mut at = first.wrapping_add(HEADER_DS);
        let rest = plan.header.get(ETH_INLINE_BYTES..).unwrap_or_default();
        at = self.write_bytes(at, rest.iter().copied());
        if plan.copy {
            let len = mbuf.pkt_len() - plan.skip;
            if len != 0 {
                let word = (INLINE_SEG | len as u32).to_be_bytes();
                let data = parts(mbuf, plan.skip).flat_map(Part::data).copied();
                self.write_bytes(at, word.into_iter().chain(data));
            }
        } else {
            for part in parts(mbuf, plan.skip) {
                let (lkey_be, address) = self.translate(&part);
                let slot = self.sq.at(at);
                slot.store_raw64::<0>(pair((part.len() as u32).to_be(), lkey_be));
                slot.store_be64::<8>(address);
                at = at.wrapping_add(1);
            }
        }
        self.close_request(plan.opcode, plan.ds);
    }

    /// Writes bytes from unit `at` on, padded with zeros; returns the unit behind them.
    fn write_bytes(&self, mut at: u32, bytes: impl Iterator<Item = u8>) -> u32 {
        let mut unit = ArrayVec::<u8, DS_BYTES>::new();
        let mut flush = |unit: &mut ArrayVec<u8, DS_BYTES>| {
            let mut padded = [0; DS_BYTES];
            padded[..unit.len()].copy_from_slice(unit);
            self.sq.at(at).store(&padded);
            at = at.wrapping_add(1);
            unit.clear();
        };
        for byte in bytes {
            unit.push(byte);
            if unit.is_full() {
                flush(&mut unit);
            }
        }
        if !unit.is_empty() {
            flush(&mut unit);
        }
        at
    }

    /// Key and address by which this device reaches a piece of a packet, wherever it lies.
    fn translate(&self, part: &Part<'_>) -> (u32, u64) {
        let address = part.address();
        match self.regions.iter().find(|region| region.addresses.contains(&address)) {
            Some(region) => (region.lkey_be, (address as u64).wrapping_add(region.va_to_iova)),
            // An external buffer: whoever attached it named this device's key and address.
            None => {
                let Part { segment, skipped } = part;
                (segment.lkey_be(), segment.data_iova() + *skipped as u64)
            }
        }
    }
}

/// What is left of a segment behind its first `skipped` bytes; never empty.
struct Part<'a> {
    segment: Segment<'a>,
    skipped: usize,
}

impl<'a> Part<'a> {
    fn len(&self) -> usize {
        self.segment.data_len() - self.skipped
    }

    fn address(&self) -> usize {
        self.segment.data_address() + self.skipped
    }

    fn data(self) -> &'a [u8] {
        &self.segment.data()[self.skipped..]
    }
}

/// The bytes behind the first `skip` of a packet, by segment. Empty pieces are left out.
fn parts(mbuf: &Mbuf, skip: usize) -> impl Iterator<Item = Part<'_>> {
    let mut skip = skip;
    mbuf.segments().filter_map(move |segment| {
        let len = segment.data_len();
        let skipped = skip.min(len);
        skip -= skipped;
        (skipped < len).then_some(Part { segment, skipped })
    })
}

/// The first `skip` bytes of a packet, with a VLAN tag put behind the MAC addresses. `None` if
/// they are too long, or the packet too short.
fn header(mbuf: &Mbuf, skip: usize, tag: Option<u16>) -> Option<Header> {
    let mut header = Header::new();
    let len = skip + if tag.is_some() { TAG_BYTES } else { 0 };
    if len > MAX_HEADER_BYTES {
        return None;
    }
    let mut bytes = [0; MAX_HEADER_BYTES];
    if !mbuf.read(0, &mut bytes[..skip]) {
        return None;
    }
    let split = if tag.is_some() { MACS_BYTES } else { 0 };
    header.try_extend_from_slice(&bytes[..split]).ok()?;
    if let Some(tci) = tag {
        header.try_extend_from_slice(&TPID).ok()?;
        header.try_extend_from_slice(&tci.to_be_bytes()).ok()?;
    }
    header.try_extend_from_slice(&bytes[split..skip]).ok()?;
    Some(header)
}
