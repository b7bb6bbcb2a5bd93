//! Requests for chains, with headers, copied or pointed to.

use ferrocx_bus::Slot;
use ferrocx_core::wq::{
    ONE_RUN_BYTES, RunOfRequests, header_units, inline_units, put_eth, put_inline_header,
};
use ferrocx_mempool::{HandOver, OlFlags, Packet, Segment};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, DS_BYTES, ETH_INLINE_BYTES, Eth, InlineHeader, Opcode};

use super::build::{ALONE, HEADER_DS, Requests, checksums, insert_vlan};
use crate::stats::TxStats;

/// Blocks of the longest request of this kind. Longer ones go the way of [`Requests::post_others`].
///
/// [`Requests::post_others`]: Requests::post_others
const MOST_BLOCKS: u32 = (ONE_RUN_BYTES / BASIC_BLOCK_BYTES) as u32;

/// Segments that it has room for.
const MOST_SEGMENTS: usize = ONE_RUN_BYTES / DS_BYTES - HEADER_DS as usize;

impl Requests {
    /// Posts a request for each chain of buffers of the own pool at the front that wants what
    /// `alone` says of a packet alone: nothing, a tag, or to be cut into segments if they are
    /// `LARGE`. The first buffer has all headers that go into the request.
    #[inline(always)]
    pub(super) fn post_gathered<const N: usize, const LARGE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        alone: OlFlags,
        segments: usize,
    ) -> usize {
        match segments {
            2 => self.post_gathered_of::<N, 2, LARGE>(packets, stats, alone),
            3 => self.post_gathered_of::<N, 3, LARGE>(packets, stats, alone),
            _ => self.post_long::<N, LARGE, true>(packets, stats, alone),
        }
    }

    /// Those of `K` segments.
    #[inline(never)]
    fn post_gathered_of<const N: usize, const K: usize, const LARGE: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        alone: OlFlags,
    ) -> usize {
        self.post_in_run::<LARGE>(stats, |requests, run, most, bytes| {
            packets.take_chains::<K>(most, |packet, segments| {
                if packet.flags() & ALONE != alone {
                    return false;
                }
                let is_put = requests.put_gathered::<LARGE>(run, &packet, segments);
                *bytes += if is_put { packet.pkt_len() } else { 0 };
                is_put
            })
        })
    }

    /// Those of any number of segments; unless they are `HEADED`, with neither headers nor data in
    /// the request, of a queue that copies none.
    #[inline(never)]
    pub(super) fn post_long<const N: usize, const LARGE: bool, const HEADED: bool>(
        &mut self,
        packets: &mut HandOver<'_, N>,
        stats: &mut TxStats,
        alone: OlFlags,
    ) -> usize {
        self.post_in_run::<LARGE>(stats, |requests, run, most, bytes| {
            packets.take_long_chains::<MOST_SEGMENTS>(most, |packet, segments| {
                if packet.flags() & ALONE != alone {
                    return false;
                }
                let is_put = if HEADED {
                    requests.put_gathered::<LARGE>(run, &packet, segments)
                } else {
                    requests.put_bare(run, &packet, segments)
                };
                *bytes += if is_put { packet.pkt_len() } else { 0 };
                is_put
            })
        })
    }

    /// Posts the requests that `take` writes of packets: it adds up their bytes and gives their
    /// number, and is told how many fit in any case.
    #[inline(always)]
    fn post_in_run<const LARGE: bool>(
        &mut self,
        stats: &mut TxStats,
        take: impl FnOnce(&Self, &mut RunOfRequests<'_>, usize, &mut usize) -> usize,
    ) -> usize {
        let mut run = self.ring.run_of_requests(if LARGE { Opcode::LSO } else { Opcode::SEND });
        let most = self.ring.free_blocks() / MOST_BLOCKS;
        let mut bytes = 0;
        let count = take(self, &mut run, most as usize, &mut bytes);
        let end = run.end();
        self.ring.post_run(end);
        stats.add(count, bytes);
        count
    }

    /// Writes the request for a chain of buffers of the own pool, with neither headers nor data in
    /// it. `false`, and nothing added to the run, if it is too long or has a segment without data,
    /// and where the ring ends.
    #[inline(always)]
    fn put_bare<'s>(
        &self,
        run: &mut RunOfRequests<'_>,
        packet: &Packet<'_>,
        segments: impl IntoIterator<Item = Segment<'s>>,
    ) -> bool {
        let Some(room) = run.room() else { return false };
        let flags = packet.flags();
        let is_tagged = flags.contains(OlFlags::TX_VLAN_INSERT);
        let tag = if is_tagged { insert_vlan(packet.vlan_tci()) } else { 0 };
        put_eth(room.part::<DS_BYTES, DS_BYTES>(), checksums(flags), tag);
        let mut ds = HEADER_DS;
        for segment in segments {
            if !self.put_piece(&room, &mut ds, segment.data_len(), segment.data_address()) {
                return false;
            }
        }
        run.close(&room, ds);
        true
    }

    /// Writes the next data segment; `false` if it has no data, or there is no room.
    #[inline(always)]
    fn put_piece(
        &self,
        room: &Slot<'_, ONE_RUN_BYTES>,
        ds: &mut u32,
        len: usize,
        address: usize,
    ) -> bool {
        let Some(unit) = room.piece::<DS_BYTES>(*ds as usize) else { return false };
        self.own.put(unit, len, address);
        *ds += 1;
        len != 0
    }

    /// Writes the request for a chain of buffers of the own pool. `false`, and nothing added to the
    /// run, if it is too long for one or has a segment without data, if its first buffer does not
    /// have all headers, and where the ring ends.
    #[inline(always)]
    fn put_gathered<'s, const LARGE: bool>(
        &self,
        run: &mut RunOfRequests<'_>,
        packet: &Packet<'_>,
        segments: impl IntoIterator<Item = Segment<'s>>,
    ) -> bool {
        let flags = packet.flags();
        let (headers, flags_mss) = if LARGE {
            let Some(large) = self.large(packet) else { return false };
            large
        } else {
            (self.min_inline, checksums(flags))
        };
        let Some(room) = run.room() else { return false };
        let mut segments = segments.into_iter();
        let Some(first) = segments.next() else { return false };
        let (len, first_len) = (packet.pkt_len(), first.data_len());
        let is_copied = !LARGE && len <= self.inline_bytes;
        if headers > first_len || headers >= len || (is_copied || headers != 0) && self.is_foreign {
            return false;
        }
        let eth = room.part::<DS_BYTES, DS_BYTES>();
        if headers == 0 {
            let is_tagged = flags.contains(OlFlags::TX_VLAN_INSERT);
            put_eth(eth, flags_mss, if is_tagged { insert_vlan(packet.vlan_tci()) } else { 0 });
        } else {
            let header = &first.data()[..headers];
            let Some((start, rest)) = header.split_first_chunk::<ETH_INLINE_BYTES>() else {
                return false;
            };
            if !room.copy_bytes(HEADER_DS as usize * DS_BYTES, rest) {
                return false;
            }
            let start = u32::from(u16::from_be_bytes(*start));
            put_eth(eth, flags_mss, Eth::INLINE_HDR_SZ.of(headers as u32) | start);
        }
        let mut ds = HEADER_DS + header_units(headers);
        if is_copied {
            let Some(unit) = room.piece::<DS_BYTES>(ds as usize) else { return false };
            put_inline_header(unit, (len - headers) as u32);
            let mut at = ds as usize * DS_BYTES + InlineHeader::SIZE_BYTES;
            let start = &first.data()[headers..];
            if !start.is_empty() && !room.copy_bytes(at, start) {
                return false;
            }
            at += start.len();
            for segment in segments {
                if !room.copy_bytes(at, segment.data()) {
                    return false;
                }
                at += segment.data_len();
            }
            ds += inline_units(len - headers);
        } else {
            let rest = first_len - headers;
            if rest != 0 && !self.put_piece(&room, &mut ds, rest, first.data_address() + headers) {
                return false;
            }
            for segment in segments {
                if !self.put_piece(&room, &mut ds, segment.data_len(), segment.data_address()) {
                    return false;
                }
            }
        }
        run.close(&room, ds);
        true
    }
}
