//! Blocks of compressed completions: a title that says what all have in common, and eight bytes for
//! each. Source: reference 6.8.

use arrayvec::ArrayVec;
use ferrocx_bus::RingView;
use ferrocx_core::Odd;
use ferrocx_mempool::{Arrivals, Mbuf, OlFlags, RxMeta};
use ferrocx_prm::Layout;
use ferrocx_prm::cqc::mini_cqe_format;
use ferrocx_prm::cqe::{Cqe64, MINI_CQES_PER_ENTRY, MiniCqe};

use super::meta::{describe, meta};
use super::{Kind, RESPONDER_SEND, RxRing};
use ferrocx_core::QueueFault;

/// Bytes of a completion queue's entry, and of an array of compressed completions.
const ENTRY: u32 = Cqe64::SIZE_BYTES as u32;
/// Bytes from one compressed completion to the next.
const MINI: u32 = MiniCqe::SIZE_BYTES as u32;
/// Bytes from the end of an array to the next. The first array stands behind the title, the others
/// at multiples of eight entries from it.
const JUMP: u32 = (MINI_CQES_PER_ENTRY - 1) * ENTRY;
const FIRST_JUMP: u32 = JUMP - ENTRY;

/// What compressed completions say besides the length: the hash, or where in its buffer a packet
/// lies.
pub(super) fn mini_format(kind: Kind) -> u32 {
    match kind {
        Kind::Striding => mini_cqe_format::CHECKSUM_STRIDE_INDEX,
        _ => mini_cqe_format::HASH,
    }
}

/// A compressed block that is being read.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Mini {
    /// Completions of the block, and how many of them were read.
    count: u32,
    done: u32,
    /// What the title says about all of them.
    meta: RxMeta,
}

impl Mini {
    /// Whether completions of a block are left.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        self.done != self.count
    }

    /// Place of the next completion in bytes from the start of the ring, whose block starts at
    /// `title`, and how far it is from the end of its array to the next.
    #[inline(always)]
    fn place(&self, title: u32) -> (u32, u32) {
        let (array, place) = (self.done / MINI_CQES_PER_ENTRY, self.done % MINI_CQES_PER_ENTRY);
        let (entry, jump) =
            if array == 0 { (1, FIRST_JUMP) } else { (array * MINI_CQES_PER_ENTRY, JUMP) };
        let at = title.wrapping_add(entry).wrapping_mul(ENTRY).wrapping_add(place * MINI);
        (at, jump)
    }
}

/// Place of the array behind the one that ends at `at`, and how far it is from its end to the
/// next. Apart, so that its place in the loop is a branch and not work for every packet.
#[cold]
#[inline(never)]
fn next_array(at: u32, jump: u32) -> (u32, u32) {
    (at.wrapping_add(jump), JUMP)
}

/// Completions of a block, one after the other.
struct Block<'r> {
    minis: RingView<'r, { MiniCqe::SIZE_BYTES }>,
    /// Place of the next one, and how far it is from the end of its array to the next array.
    at: u32,
    jump: u32,
    /// What is the same for all packets, and which bits of their hashes count.
    meta: RxMeta,
    hash_mask: u32,
    /// The one that was found.
    hash_be: u32,
    len: u32,
    /// Of all so far.
    bytes: u64,
    too_long: Option<u32>,
}

impl Arrivals for Block<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let mini = self.minis.at_byte(self.at);
        self.hash_be = mini.load_raw32::<{ MiniCqe::RX_HASH_RESULT.offset }>();
        self.len = mini.load_be32::<{ MiniCqe::BYTE_CNT.offset }>();
        self.at = self.at.wrapping_add(MINI);
        if self.at.is_multiple_of(ENTRY) {
            (self.at, self.jump) = next_array(self.at, self.jump);
        }
        Some(self.len)
    }

    #[inline(always)]
    fn too_long(&mut self, len: u32) {
        self.too_long = Some(len);
    }

    #[inline(always)]
    fn describe(&mut self, mbuf: &mut Mbuf) {
        mbuf.set_vlan_tci(self.meta.vlan_tci);
        mbuf.set_rss_hash_be(self.hash_be & self.hash_mask);
        mbuf.set_flow_mark_be(self.meta.flow_mark.to_be());
        mbuf.set_rx_flags(self.meta.flags, self.meta.packet_type);
        self.bytes += u64::from(self.len);
    }
}

impl RxRing {
    /// Receives packets whose completions may be compressed, one buffer a packet.
    #[inline(never)]
    pub(super) fn burst_compressed<const N: usize>(
        &mut self,
        out: &mut ArrayVec<Mbuf, N>,
    ) -> usize {
        let before = out.len();
        while !out.is_full() && self.stats.fault.is_none() {
            let goes_on = if self.mini.is_active() {
                self.take_block(out) != 0
            } else {
                self.take_completion(out)
            };
            if !goes_on {
                break;
            }
        }
        let received = out.len() - before;
        self.stats.packets += received as u64;
        self.cq.tell();
        self.refill();
        if received == 0 {
            self.top_up();
        }
        received
    }

    /// Posts the buffers that are missing, few as they are: there is time, and a device that
    /// compresses completes many at once.
    #[inline(never)]
    fn top_up(&mut self) {
        let missing = self.ring.missing() as usize;
        if missing != 0 && self.post(missing) != 0 {
            self.ring.tell();
        }
    }

    /// Takes one packet, or the title of a block; `false` if nothing has come.
    #[inline(always)]
    fn take_completion<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> bool {
        if self.elts.is_empty() {
            self.look_for_overrun();
            return false;
        }
        let cqe = self.cq.ring.at(self.cq.ci);
        let last = cqe.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        let wanted =
            Cqe64::WQE_COUNTER.of(self.ring.ci) | RESPONDER_SEND | self.cq.owner_at(self.cq.ci);
        if (last ^ wanted) & self.last_mask != 0 {
            return self.take_title(last, self.ring.ci as u16, self.ring.outstanding());
        }
        let len = cqe.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
        let Some(mut mbuf) = self.elts.pop() else { return false };
        if !mbuf.reset_rx(self.shapes[0].headroom, len) {
            self.too_long(len);
            return false;
        }
        describe(&mut mbuf, &cqe);
        out.push(mbuf);
        self.cq.ci = self.cq.ci.wrapping_add(1);
        self.ring.ci = self.ring.ci.wrapping_add(1);
        self.stats.bytes += u64::from(len);
        true
    }

    /// Moves packets of the open block to `out`, as far as the buffers' array goes; returns how
    /// many.
    #[inline(always)]
    fn take_block<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let Mini { count, done, meta } = self.mini;
        let (at, jump) = self.mini.place(self.cq.ci);
        let has_hash = meta.flags.contains(OlFlags::RX_RSS_HASH);
        let mut block = Block {
            minis: self.minis.view(),
            at,
            jump,
            meta,
            hash_mask: if has_hash { u32::MAX } else { 0 },
            hash_be: 0,
            len: 0,
            bytes: 0,
            too_long: None,
        };
        let taken = self.elts.pop_filled(out, (count - done) as usize, &mut block);
        self.ring.ci = self.ring.ci.wrapping_add(taken as u32);
        self.stats.bytes += block.bytes;
        if let Some(len) = block.too_long {
            self.too_long(len);
        }
        self.mini_done(taken as u32);
        taken
    }

    /// Looks at a completion that is not the expected one, of which no more than `most` can be
    /// together. Opens a block, or answers `false`: nothing has come, or a fault.
    pub(super) fn take_title(&mut self, last: u32, expected: u16, most: u32) -> bool {
        match self.cq.odd(last, expected) {
            Odd::Empty => false,
            Odd::Fault(fault) => {
                self.stop(fault);
                false
            }
            Odd::Compressed => {
                let title = self.cq.ring.at(self.cq.ci);
                let count = title.load_be32::<{ Cqe64::BYTE_CNT.offset }>();
                // A block cannot be longer than what was posted.
                if count == 0 || count > most {
                    self.stop(QueueFault::COMPRESSED);
                    return false;
                }
                self.mini = Mini { count, done: 0, meta: meta(&title) };
                true
            }
        }
    }

    /// Consumes the next completion of the open block: its first word and its length, and what the
    /// title says.
    pub(super) fn next_mini(&mut self) -> (u32, u32, RxMeta) {
        let meta = self.mini.meta;
        let (at, _) = self.mini.place(self.cq.ci);
        let mini = self.minis.view().at_byte(at);
        let first = mini.load_be32::<{ MiniCqe::RX_HASH_RESULT.offset }>();
        let byte_cnt = mini.load_be32::<{ MiniCqe::BYTE_CNT.offset }>();
        self.mini_done(1);
        (first, byte_cnt, meta)
    }

    /// Counts completions of the open block that were read; closes it behind the last.
    #[inline(always)]
    fn mini_done(&mut self, count: u32) {
        self.mini.done += count;
        if count != 0 && !self.mini.is_active() {
            self.cq.skip_block(self.mini.count);
        }
    }
}
