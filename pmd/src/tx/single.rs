//! Requests of a packet's own that point to it, or to each of its segments.

use ferrocx_core::wq::{
    RunOfBlocks, START, blocks_of, inline_units, put_data, put_eth, put_inline_header,
};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment};
use ferrocx_prm::wqe::{DS_BYTES, DS_PER_BLOCK, Opcode};

use super::build::{
    ALONE, HEADER_DS, INLINE_AT, OFFLOADS, OwnPool, Requests, checksums, insert_vlan,
};
use crate::config::TxQueueConfig;
use crate::stats::TxStats;

/// Blocks of a request that holds the longest packet that is copied.
const MAX_COPIED_BLOCKS: u32 =
    blocks_of(HEADER_DS + inline_units(TxQueueConfig::MAX_INLINE_BYTES as usize));

impl Requests {
    /// Posts a request of one block for each simple packet at the front, with a tag to insert if
    /// they are `TAGGED`.
    #[inline(never)]
    pub(super) fn post_singles<const N: usize, const TAGGED: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let alone = if TAGGED { OlFlags::TX_VLAN_INSERT } else { OlFlags::empty() };
        self.post_blocks(packets, stats, |flags| (flags & ALONE == alone).then_some(TAGGED))
    }

    /// Posts a request for each packet of one segment at the front, as long as each has other flags
    /// than the one before, the first than those given: of a request that packets share, each would
    /// take one for itself.
    #[inline(never)]
    pub(super) fn post_unlike<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        before: OlFlags,
    ) {
        if packets.is_done() || self.min_inline != 0 {
            return;
        }
        let tags = if self.vlan_insert { OlFlags::TX_VLAN_INSERT } else { OlFlags::empty() };
        let others = ALONE.difference(tags);
        let mut before = before & OFFLOADS;
        let is_tagged = |flags: OlFlags| {
            let is_unlike = flags & OFFLOADS != before && !flags.intersects(others);
            before = flags & OFFLOADS;
            is_unlike.then_some(flags.contains(OlFlags::TX_VLAN_INSERT))
        };
        if self.inline_bytes == 0 {
            self.post_blocks(packets, stats, is_tagged);
        } else {
            self.post_blocks_or_copies(packets, stats, is_tagged);
        }
    }

    /// Posts a request that holds it for each simple packet at the front that is short, with a tag
    /// to insert if they are `TAGGED`.
    #[inline(never)]
    pub(super) fn post_copies<const N: usize, const TAGGED: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let alone = if TAGGED { OlFlags::TX_VLAN_INSERT } else { OlFlags::empty() };
        // Foreign memory is never read by the processor.
        if self.is_foreign {
            return 0;
        }
        let inline_bytes = self.inline_bytes;
        let mut run = self.ring.run_of_requests(Opcode::SEND);
        let mut bytes = 0;
        let most = self.ring.free_blocks() / MAX_COPIED_BLOCKS;
        let count = packets.take_while(most as usize, |packet| {
            let (flags, len) = (packet.flags(), packet.data_len());
            if !packet.is_simple() || flags & ALONE != alone || len > inline_bytes {
                return false;
            }
            let Some(room) = run.room() else { return false };
            let tag = if TAGGED { insert_vlan(packet.vlan_tci()) } else { 0 };
            put_eth(room.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
            put_inline_header(room.part::<{ 2 * DS_BYTES }, DS_BYTES>(), len as u32);
            let Some(segment) = packet.segments().next() else { return false };
            if !room.copy_bytes(INLINE_AT, segment.data()) {
                return false;
            }
            run.close(&room, HEADER_DS + inline_units(len));
            bytes += len;
            true
        });
        let end = run.end();
        self.ring.post_run(end);
        stats.add(count, bytes);
        count
    }

    /// Posts a request for each packet of one segment at the front, simple or not, which holds what
    /// is short and points to the rest, with a tag to insert if the packets have that flag.
    #[inline(never)]
    pub(super) fn post_each<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        alone: OlFlags,
    ) -> usize {
        let tagged = Some(!alone.is_empty());
        self.post_blocks_or_copies(packets, stats, |flags| {
            if flags & ALONE == alone { tagged } else { None }
        })
    }

    /// Posts a request for the packet of one segment at the front, which asks for a timestamp, and
    /// notes that.
    #[inline(always)]
    pub(super) fn post_stamped<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let stamp = packets.peek().map(|first| first.tx_id());
        let mut is_first = true;
        let count = self.post_blocks_or_copies(packets, stats, |flags| {
            std::mem::take(&mut is_first).then_some(flags.contains(OlFlags::TX_VLAN_INSERT))
        });
        self.stamp = stamp.filter(|_| count != 0);
        count
    }

    /// Posts a request for each packet of one segment at the front, as long as `is_tagged` tells of
    /// its flags whether a tag is inserted.
    #[inline(always)]
    fn post_blocks_or_copies<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        mut is_tagged: impl FnMut(OlFlags) -> Option<bool>,
    ) -> usize {
        let (own, inline_bytes) = (self.own, self.inline_bytes);
        let mut run = self.ring.run_of_requests(Opcode::SEND);
        let mut bytes = 0;
        // As many as fit if all are long. One that might just fit is posted by `post_others`.
        let most = self.ring.free_blocks() / MAX_COPIED_BLOCKS;
        let count = packets.take_while(most as usize, |packet| {
            let (flags, len) = (packet.flags(), packet.data_len());
            let is_simple = packet.is_simple();
            if len == 0 || !is_simple && packet.nb_segs() != 1 {
                return false;
            }
            let Some(is_tagged) = is_tagged(flags) else { return false };
            let Some(room) = run.room() else { return false };
            let Some(segment) = packet.segments().next() else { return false };
            let tag = if is_tagged { insert_vlan(packet.vlan_tci()) } else { 0 };
            put_eth(room.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
            let unit = room.part::<{ 2 * DS_BYTES }, DS_BYTES>();
            let units = if len > inline_bytes || segment.is_foreign() {
                let address = packet.data_address();
                let (lkey_be, addr) =
                    if is_simple { own.place(address) } else { self.place(&segment) };
                put_data(unit, len as u32, lkey_be, addr);
                1
            } else {
                if !room.copy_bytes(INLINE_AT, segment.data()) {
                    return false;
                }
                put_inline_header(unit, len as u32);
                inline_units(len)
            };
            run.close(&room, HEADER_DS + units);
            bytes += len;
            true
        });
        let end = run.end();
        self.ring.post_run(end);
        stats.add(count, bytes);
        count
    }

    /// Posts a request of one block for each simple packet at the front that is too long to be
    /// copied, as long as `is_tagged` tells of its flags whether a tag is inserted.
    #[inline(always)]
    fn post_blocks<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        mut is_tagged: impl FnMut(OlFlags) -> Option<bool>,
    ) -> usize {
        let (own, inline_bytes) = (self.own, self.inline_bytes);
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + 1);
        let mut bytes = 0;
        let count = packets.take_while(self.ring.free_blocks() as usize, |packet| {
            let (flags, len) = (packet.flags(), packet.data_len());
            if !packet.is_simple() || len <= inline_bytes {
                return false;
            }
            let Some(is_tagged) = is_tagged(flags) else { return false };
            let block = run.begin();
            let tag = if is_tagged { insert_vlan(packet.vlan_tci()) } else { 0 };
            put_eth(block.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
            own.put(block.part::<{ 2 * DS_BYTES }, DS_BYTES>(), len, packet.data_address());
            bytes += len;
            true
        });
        self.ring.post_blocks(count as u32, blocks_of(HEADER_DS + 1));
        stats.add(count, bytes);
        count
    }

    /// Posts a request for each chain of two buffers of the own pool at the front, of a queue that
    /// copies none.
    #[inline(never)]
    pub(super) fn post_pairs<const N: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let (own, blocks) = (self.own, blocks_of(HEADER_DS + 2));
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + 2);
        let mut bytes = 0;
        let most = self.ring.free_blocks() / blocks;
        let count = packets.take_pairs(most as usize, |packet, segments| {
            put_chain::<2>(&mut run, own, &packet, &segments, !packet.wants(ALONE), 0, &mut bytes)
        });
        self.ring.post_blocks(count as u32, blocks);
        stats.add(count, bytes);
        count
    }

    /// Posts a request for each chain of `K` buffers of the own pool at the front, with a tag to
    /// insert if they are `TAGGED`, of a queue that copies none.
    #[inline(never)]
    pub(super) fn post_chains<const N: usize, const K: usize, const TAGGED: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let (own, blocks) = (self.own, const { blocks_of(HEADER_DS + K as u32) });
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + K as u32);
        let mut bytes = 0;
        let most = self.ring.free_blocks() / blocks;
        let count = packets.take_chains::<K>(most as usize, |packet, segments| {
            let (is_like, tag) = if TAGGED {
                let alone = packet.flags() & ALONE;
                (alone == OlFlags::TX_VLAN_INSERT, insert_vlan(packet.vlan_tci()))
            } else {
                (!packet.wants(ALONE), 0)
            };
            put_chain::<K>(&mut run, own, &packet, &segments, is_like, tag, &mut bytes)
        });
        self.ring.post_blocks(count as u32, blocks);
        stats.add(count, bytes);
        count
    }
}

/// Writes the request for a chain that `is_like` those of the run, and adds up its bytes. `false`,
/// and nothing added to the run, for another, and for one with an empty segment.
#[inline(always)]
fn put_chain<const K: usize>(
    run: &mut RunOfBlocks<'_>,
    own: OwnPool,
    packet: &Packet<'_>,
    segments: &[Segment<'_>; K],
    is_like: bool,
    tag: u32,
    bytes: &mut usize,
) -> bool {
    if !is_like {
        return false;
    }
    for segment in segments {
        if segment.data_len() == 0 {
            return false;
        }
    }
    let mut block = run.begin();
    put_eth(block.part::<DS_BYTES, DS_BYTES>(), checksums(packet.flags()), tag);
    for (at, segment) in segments.iter().enumerate() {
        let unit = match (HEADER_DS as usize + at) % DS_PER_BLOCK as usize {
            0 => {
                block = run.more();
                block.part::<START, DS_BYTES>()
            }
            1 => block.part::<DS_BYTES, DS_BYTES>(),
            2 => block.part::<{ 2 * DS_BYTES }, DS_BYTES>(),
            _ => block.part::<{ 3 * DS_BYTES }, DS_BYTES>(),
        };
        own.put(unit, segment.data_len(), segment.data_address());
    }
    *bytes += packet.pkt_len();
    true
}
