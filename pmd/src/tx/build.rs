//! Requests for one packet: SEND with offloads and chains, LSO, and data copied into the ring.

use arrayvec::ArrayVec;
use ferrocx_core::wq::{Control, EthHeader, blocks_of};
use ferrocx_mempool::{Mbuf, OlFlags, Segment};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{DS_BYTES, ETH_INLINE_BYTES, Eth, InlineHeader, MAX_DS, Opcode};

use super::{HEADER_DS, TxRing};

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
    /// Checksum requests and segment size, in their word of the Ethernet segment.
    flags_mss: u32,
    /// The tag that the device inserts.
    vlan: Option<u16>,
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
        if blocks_of(plan.ds) > self.ring.free_blocks() || self.elts.free_slots() == 0 {
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
        let (mut vlan, mut tag) = (None, None);
        if flags.contains(OlFlags::TX_VLAN_INSERT) {
            if self.vlan_insert && skip == 0 {
                vlan = Some(mbuf.vlan_tci());
            } else {
                tag = Some(mbuf.vlan_tci());
                skip = skip.max(MACS_BYTES + 2);
            }
        }
        let header = header(mbuf, skip, tag)?;
        // A header of one byte is none.
        if header.len() == 1 {
            return None;
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
        Some(Plan { opcode, flags_mss, vlan, header, skip, ds, copy })
    }

    /// Writes a planned request.
    fn write(&mut self, mbuf: &Mbuf, plan: &Plan) {
        let header = match plan.vlan {
            Some(tci) => EthHeader::InsertVlan(tci),
            None => EthHeader::Inline(&plan.header),
        };
        let mut wqe = self.ring.begin();
        wqe.eth(plan.flags_mss, header);
        if plan.copy {
            let len = mbuf.pkt_len() - plan.skip;
            if len != 0 {
                wqe.inline(len, parts(mbuf, plan.skip).map(Part::data));
            }
        } else {
            for part in parts(mbuf, plan.skip) {
                let (lkey_be, address) = self.translate(&part);
                wqe.data(part.len() as u32, lkey_be, address);
            }
        }
        self.ring.close(Control::new(plan.opcode), plan.ds, blocks_of(plan.ds));
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
