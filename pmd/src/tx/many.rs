//! Requests that many packets share. Source: reference 6.3, "Enhanced multi-packet WQE".

use ferrocx_core::wq::{Control, blocks_of, inline_units, put_data, put_eth};
use ferrocx_mempool::{HandOver, Packet};
use ferrocx_prm::wqe::{DS_BYTES, DS_PER_BLOCK, MAX_DS, Opcode};

use super::build::{HEADER_DS, Requests};
use crate::stats::TxStats;

impl Requests {
    /// Posts one request that points to the packets at the front, as many as it holds and the ring
    /// has side by side: single segments with like flags, all `SIMPLE` or of any kind.
    #[inline(never)]
    pub(super) fn post_pointers<const N: usize, const SIMPLE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        is_alike: impl Fn(&Packet<'_>) -> bool,
        flags_mss: u32,
    ) -> usize {
        let units = self.ring.units_ahead(HEADER_DS, self.room());
        let own = self.own;
        let mut bytes = 0;
        let count = packets.take_while_each(units.cells(), |packet, unit| {
            let len = packet.data_len();
            if !shares::<SIMPLE>(&packet) || !is_alike(&packet) || len == 0 {
                return false;
            }
            if SIMPLE {
                own.put(unit.slot(), len, packet.data_address());
            } else if let Some(segment) = packet.segments().next() {
                let (lkey_be, addr) = self.place(&segment);
                put_data(unit.slot(), len as u32, lkey_be, addr);
            }
            bytes += len;
            true
        });
        if count != 0 {
            self.close_shared(HEADER_DS + count as u32, flags_mss);
            stats.add(count, bytes);
        }
        count
    }

    /// Posts one request for the packets at the front, as [`Requests::post_pointers`] does, with
    /// those up to `inline_bytes` copied.
    #[inline(never)]
    pub(super) fn post_many<const N: usize, const SIMPLE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        is_alike: impl Fn(&Packet<'_>) -> bool,
        flags_mss: u32,
    ) -> usize {
        let mut left = self.room();
        let mut wqe = self.ring.begin();
        // The Ethernet segment, which is written at the end.
        wqe.unit();
        let (own, inline_bytes) = (self.own, self.inline_bytes);
        let mut bytes = 0;
        let count = packets.take_while(left as usize, |packet| {
            let len = packet.data_len();
            if !shares::<SIMPLE>(&packet) || !is_alike(&packet) || len == 0 {
                return false;
            }
            let first = packet.segments().next();
            // Foreign memory is never read by the processor.
            let is_copied = len <= inline_bytes;
            if let Some(data) = first.as_ref().filter(|data| is_copied && !data.is_foreign()) {
                let units = inline_units(len);
                if units > left {
                    return false;
                }
                left -= units;
                wqe.inline_one(data.data());
                bytes += len;
                return true;
            }
            if left == 0 {
                return false;
            }
            left -= 1;
            if SIMPLE {
                let (lkey_be, addr) = own.place(packet.data_address());
                wqe.data(len as u32, lkey_be, addr);
            } else if let Some(segment) = first {
                let (lkey_be, addr) = self.place(&segment);
                wqe.data(len as u32, lkey_be, addr);
            }
            bytes += len;
            true
        });
        if count != 0 {
            let ds = wqe.ds();
            self.close_shared(ds, flags_mss);
            stats.add(count, bytes);
        }
        count
    }

    /// Units of packets that a request can have now.
    #[inline(always)]
    fn room(&self) -> u32 {
        let room = (self.ring.free_blocks() * DS_PER_BLOCK).saturating_sub(HEADER_DS);
        room.min(MAX_DS - HEADER_DS)
    }

    /// Posts a request of `ds` units whose packets are written.
    #[inline(always)]
    fn close_shared(&mut self, ds: u32, flags_mss: u32) {
        put_eth(self.ring.block(0).part::<DS_BYTES, DS_BYTES>(), flags_mss, 0);
        self.ring.close(Control::new(Opcode::ENHANCED_MPSW), ds, blocks_of(ds));
    }
}

/// Whether a packet has the one segment that a shared request holds of each.
#[inline(always)]
fn shares<const SIMPLE: bool>(packet: &Packet<'_>) -> bool {
    if SIMPLE { packet.is_simple() } else { packet.nb_segs() == 1 }
}
