//! Requests for packets of which each asks for something else than the one before.

use ferrocx_core::wq::{blocks_of, put_data, put_eth};
use ferrocx_mempool::{HandOver, OlFlags};
use ferrocx_prm::wqe::{DS_BYTES, Opcode};

use super::build::{ALONE, OFFLOADS, Requests, checksums, insert_vlan};
use super::usual::HEADER_DS;
use crate::stats::TxStats;

impl Requests {
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
        let (lkey_be, va_to_iova, inline_bytes) =
            (self.lkey_be, self.va_to_iova, self.inline_bytes);
        let mut run = self.ring.run_of_blocks(Opcode::SEND, HEADER_DS + 1);
        let (mut before, mut bytes) = (before & OFFLOADS, 0);
        let count = packets.take_while(self.ring.free_blocks() as usize, |packet| {
            let (flags, len) = (packet.flags() & OFFLOADS, packet.data_len());
            let is_unlike = flags != before && !flags.intersects(others);
            if !packet.is_simple() || !is_unlike || len <= inline_bytes {
                return false;
            }
            before = flags;
            let block = run.begin();
            let is_tagged = flags.contains(OlFlags::TX_VLAN_INSERT);
            let tag = if is_tagged { insert_vlan(packet.vlan_tci()) } else { 0 };
            put_eth(block.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
            let addr = (packet.data_address() as u64).wrapping_add(va_to_iova);
            put_data(block.part::<{ 2 * DS_BYTES }, DS_BYTES>(), len as u32, lkey_be, addr);
            bytes += len;
            true
        });
        self.ring.post_blocks(count as u32, blocks_of(HEADER_DS + 1));
        stats.packets += count as u64;
        stats.bytes += bytes as u64;
    }
}
