//! Requests that hold a packet's headers and point to the rest: what is cut into segments, mostly.

use ferrocx_core::wq::{Control, SendRing, Unit, blocks_of, header_units, put_eth};
use ferrocx_mempool::{HandOver, OlFlags, Packet, TxLengths};
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, ETH_INLINE_BYTES, Eth, Opcode};

use super::build::{ALONE, CHECKSUMS, HEADER_DS, MACS_BYTES, Requests, checksums};
use crate::stats::TxStats;

/// Longest headers that are copied into a request: Ethernet with two tags, IPv6 with extensions,
/// TCP with options.
pub(super) const MAX_HEADER_BYTES: usize = 256;
/// Blocks of a request with the longest headers and one data segment.
const MAX_HEADED_BLOCKS: u32 = blocks_of(HEADER_DS + header_units(MAX_HEADER_BYTES) + 1);
/// Headers up to here are copied with no loop: Ethernet, IPv6, and TCP with timestamps.
const USUAL_BYTES: usize = ETH_INLINE_BYTES + 6 * DS_BYTES;

impl Requests {
    /// Posts a request with the headers of each simple packet at the front: those that are `LARGE`,
    /// to be cut into segments, or all of a queue that wants headers inline.
    #[inline(never)]
    pub(super) fn post_headed<const N: usize, const LARGE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
    ) -> usize {
        let alone = if LARGE { OlFlags::TX_TSO } else { OlFlags::empty() };
        let opcode = if LARGE { Opcode::LSO } else { Opcode::SEND };
        let mut bytes = 0;
        // As many as fit if all are long. One that might just fit is posted by `post_others`.
        let most = self.ring.free_blocks() / MAX_HEADED_BLOCKS;
        let count = packets.take_while(most as usize, |packet| {
            if !packet.is_simple() || packet.flags() & ALONE != alone {
                return false;
            }
            let (headers, word) = if LARGE {
                let Some(large) = self.large(&packet) else { return false };
                large
            } else {
                (self.min_inline, checksums(packet.flags()))
            };
            let len = packet.data_len();
            let Some(first) = packet.segments().next() else { return false };
            if first.is_foreign() || headers >= len || headers > MAX_HEADER_BYTES {
                return false;
            }
            let data = first.data();
            if !LARGE && len <= self.inline_bytes {
                let mut wqe = self.ring.begin();
                wqe.eth(word, &data[..headers]);
                wqe.inline_one(&data[headers..]);
                let ds = wqe.ds();
                self.ring.close(Control::new(opcode), ds, blocks_of(ds));
                bytes += len;
                return true;
            }
            let (rest, address) = (len - headers, packet.data_address() + headers);
            let is_usual = post_usual(&mut self.ring, opcode, word, (data, headers), |unit| {
                self.own.put(unit, rest, address);
            });
            if !is_usual {
                let (lkey_be, addr) = self.own.place(address);
                let mut wqe = self.ring.begin();
                wqe.eth(word, &data[..headers]);
                wqe.data(rest as u32, lkey_be, addr);
                let ds = wqe.ds();
                self.ring.close(Control::new(opcode), ds, blocks_of(ds));
            }
            bytes += len;
            true
        });
        stats.add(count, bytes);
        count
    }

    /// Bytes of headers of a packet that is to be cut into segments, and the word of its checksum
    /// requests and segment size. `None` for lengths that contradict the packet.
    #[inline(always)]
    pub(super) fn large(&self, packet: &Packet<'_>) -> Option<(usize, u32)> {
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
}

/// Posts a request with headers of a usual length, which one copy of a constant length takes; `put`
/// writes the data segment behind them. What is copied beside the headers is overwritten, or not
/// the device's business. `false`, and nothing posted, for others, and where the ring ends.
#[inline(always)]
fn post_usual(
    ring: &mut SendRing,
    opcode: Opcode,
    flags_mss: u32,
    (data, headers): (&[u8], usize),
    put: impl FnOnce(Unit<'_>),
) -> bool {
    let (Some(run), Some(copied)) = (ring.run(), data.first_chunk::<USUAL_BYTES>()) else {
        return false;
    };
    let Some(behind) = headers.checked_sub(ETH_INLINE_BYTES + 1) else { return false };
    // The control segment, the Ethernet segment, and the headers behind its two bytes.
    let ds = HEADER_DS as usize + 1 + behind / DS_BYTES;
    let Some(unit) = run.piece::<DS_BYTES>(ds).filter(|_| headers <= USUAL_BYTES) else {
        return false;
    };
    let [first, second, behind @ ..] = copied;
    let start = u16::from_be_bytes([*first, *second]);
    let word = Eth::INLINE_HDR_SZ.of(headers as u32) | u32::from(start);
    put_eth(run.part::<DS_BYTES, DS_BYTES>(), flags_mss, word);
    run.copy_units::<{ HEADER_DS as usize * DS_BYTES }>(behind.as_chunks().0);
    put(unit);
    let ds = ds as u32 + 1;
    let block = run.part::<{ Ctrl::OPCODE.offset }, BASIC_BLOCK_BYTES>();
    let written = ring.written(block, ring.pi, Control::new(opcode), ds, blocks_of(ds));
    ring.post(written);
    true
}
