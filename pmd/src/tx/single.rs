//! Requests of a packet's own that point to it, or to each of its segments.

use ferrocx_core::wq::{blocks_of, put_eth};
use ferrocx_mempool::{HandOver, OlFlags};
use ferrocx_prm::wqe::{DS_BYTES, Opcode};

use super::build::{ALONE, HEADER_DS, OFFLOADS, Requests, checksums, insert_vlan};
use crate::stats::TxStats;

/// Where a second block goes on.
const BLOCK_START: usize = 0;

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

    /// Posts a request of one block for each simple packet at the front, as long as each has other
    /// flags than the one before, the first than those given: of a request that packets share, each
    /// would take one for itself.
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
        self.post_blocks(packets, stats, |flags| {
            let is_unlike = flags & OFFLOADS != before && !flags.intersects(others);
            before = flags & OFFLOADS;
            is_unlike.then_some(flags.contains(OlFlags::TX_VLAN_INSERT))
        });
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

    /// Posts a request for each chain of `K` buffers of the own pool at the front.
    #[inline(never)]
    pub(super) fn post_chains<const N: usize, const K: usize>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let blocks = const { blocks_of(HEADER_DS + K as u32) };
        let (own, inline_bytes) = (self.own, self.inline_bytes);
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
                own.put(unit, segments[at].data_len(), segments[at].data_address());
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
        stats.add(count, bytes);
        count
    }
}
