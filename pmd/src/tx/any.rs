//! Requests for packets of any kind: several pools, foreign memory, empty segments, tags that go
//! into headers, timestamps.

use arrayvec::ArrayVec;
use ferrocx_core::wq::{Control, Wqe, blocks_of, header_units, inline_units, put_eth};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment};
use ferrocx_net::ether;
use ferrocx_prm::wqe::{MAX_DS, Opcode};

use super::build::{HEADER_DS, MACS_BYTES, Refusal, Requests, checksums, insert_vlan};
use super::headed::MAX_HEADER_BYTES;
use crate::stats::TxStats;

/// Headers that had to be gathered, or changed, before they go into a request.
type Header = ArrayVec<u8, MAX_HEADER_BYTES>;

impl Requests {
    /// Posts a request for each packet at the front that there is no quicker way for, up to the
    /// first that asks for a timestamp.
    #[inline(never)]
    pub(super) fn post_others<const N: usize>(
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
        stats.add(count, bytes);
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
        // What is copied is as long as the segments, whatever the packet says of itself.
        let len = packet.segments().map(|segment| segment.data_len()).sum();
        let flags = packet.flags();
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
fn parts<'a>(packet: &Packet<'a>, mut skip: usize) -> impl Iterator<Item = Part<'a>> + Clone {
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
        room.try_extend_from_slice(&ether::VLAN.to_be_bytes()).ok()?;
        room.try_extend_from_slice(&tci.to_be_bytes()).ok()?;
    }
    room.try_extend_from_slice(rest).ok()?;
    Some(room)
}
