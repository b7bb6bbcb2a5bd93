//! Blocks of compressed completions: a title that says what all have in common, and eight bytes for
//! each. Source: reference 6.8.

use arrayvec::ArrayVec;
use ferrocx_bus::{RingView, Span};
use ferrocx_core::Odd;
use ferrocx_mempool::{Arrivals, Marks, Mbuf, OlFlags, RxMeta};
use ferrocx_prm::Layout;
use ferrocx_prm::cqc::mini_cqe_format;
use ferrocx_prm::cqe::{Cqe64, MINI_CQES_PER_ENTRY, MiniCqe};

use super::meta::{describe, meta};
use super::{Kind, RESPONDER_SEND, RxRing};
use ferrocx_core::QueueFault;

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
    /// What the title says about all of them, and how their headers note it.
    meta: RxMeta,
    title: Title,
}

impl Mini {
    /// Whether completions of a block are left.
    #[inline(always)]
    pub(super) fn is_active(&self) -> bool {
        self.done != self.count
    }

    /// Place of the next completion in its array.
    #[inline(always)]
    fn place(&self) -> u32 {
        self.done % MINI_CQES_PER_ENTRY
    }

    /// Entry of its array behind that of the title. The first array stands in the next one, the
    /// others at multiples of eight.
    #[inline(always)]
    fn entry(&self) -> u32 {
        (self.done - self.place()).max(1)
    }
}

/// The array of compressed completions in an entry of their queue.
#[inline(always)]
fn array(minis: Minis<'_>, entry: u32) -> Array<'_> {
    minis.span(entry.wrapping_mul(MINI_CQES_PER_ENTRY), MINI_CQES_PER_ENTRY as usize)
}

type Minis<'r> = RingView<'r, { MiniCqe::SIZE_BYTES }>;
type Array<'r> = Span<'r, { MiniCqe::SIZE_BYTES }>;

/// What is the same for all packets of a block.
#[derive(Debug, Default, Clone, Copy)]
struct Title {
    vlan_tci: u16,
    marks: Marks,
    /// Which bits of their hashes count.
    hash_mask: u32,
}

impl Title {
    fn of(meta: &RxMeta) -> Self {
        let has_hash = meta.flags.contains(OlFlags::RX_RSS_HASH);
        let hash_mask = if has_hash { u32::MAX } else { 0 };
        Self { vlan_tci: meta.vlan_tci, marks: Marks::of(meta), hash_mask }
    }
}

/// Completions of a block, one after the other.
struct Block<'r> {
    minis: Minis<'r>,
    /// The array that is being read, the place of the next one in it, and the entry of the next
    /// array.
    array: Array<'r>,
    place: usize,
    next_entry: u32,
    title: Title,
    /// The one that was found.
    hash_be: u32,
    /// Of all so far.
    bytes: u64,
    too_long: Option<u32>,
}

impl<'r> Block<'r> {
    /// The first completion of the next array. Apart, so that its place in the loop is a branch
    /// and not work for every packet.
    #[cold]
    #[inline(never)]
    fn next_array(minis: Minis<'r>, entry: u32) -> Array<'r> {
        array(minis, entry)
    }
}

impl Arrivals for Block<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let mini = match self.array.get(self.place) {
            Some(mini) => mini,
            None => {
                self.array = Self::next_array(self.minis, self.next_entry);
                self.next_entry = self.next_entry.wrapping_add(MINI_CQES_PER_ENTRY);
                self.place = 0;
                self.array.get(0)?
            }
        };
        self.place += 1;
        self.hash_be = mini.load_raw32::<{ MiniCqe::RX_HASH_RESULT.offset }>();
        let len = mini.load_be32::<{ MiniCqe::BYTE_CNT.offset }>();
        self.bytes += u64::from(len);
        Some(len)
    }

    #[inline(always)]
    fn too_long(&mut self, len: u32) {
        self.bytes -= u64::from(len);
        self.too_long = Some(len);
    }

    #[inline(always)]
    fn describe(&mut self, mbuf: &mut Mbuf) {
        mbuf.set_vlan_tci(self.title.vlan_tci);
        mbuf.set_rss_hash_be(self.hash_be & self.title.hash_mask);
        mbuf.set_marks(self.title.marks);
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
        let Mini { count, done, title, .. } = self.mini;
        let entry = self.mini.entry();
        let minis = self.minis.view();
        let mut block = Block {
            minis,
            array: array(minis, self.cq.ci.wrapping_add(entry)),
            place: self.mini.place() as usize,
            // Behind the first entry, which is 1, comes 8.
            next_entry: self.cq.ci.wrapping_add((entry & !1) + MINI_CQES_PER_ENTRY),
            title,
            hash_be: 0,
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
                let meta = meta(&title);
                self.mini = Mini { count, done: 0, meta, title: Title::of(&meta) };
                true
            }
        }
    }

    /// Consumes the next completion of the open block: its first word and its length, and what the
    /// title says.
    pub(super) fn next_mini(&mut self) -> (u32, u32, RxMeta) {
        let meta = self.mini.meta;
        let entry = self.cq.ci.wrapping_add(self.mini.entry());
        let at = entry.wrapping_mul(MINI_CQES_PER_ENTRY).wrapping_add(self.mini.place());
        let mini = self.minis.view().at(at);
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
