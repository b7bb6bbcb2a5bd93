//! Blocks of compressed completions: a title that says what all have in common, and eight bytes for
//! each. Source: reference 6.8.

use arrayvec::ArrayVec;
use ferrocx_bus::{RingView, Slot};
use ferrocx_core::Unexpected;
use ferrocx_mempool::{Arrivals, Marks, Mbuf, OlFlags, RxMeta};
use ferrocx_prm::Layout;
use ferrocx_prm::cqc::mini_cqe_format;
use ferrocx_prm::cqe::{Cqe64, CqeFormat, MINI_CQES_PER_ENTRY, MiniCqe, OP_OWN_MASK};

use super::completions::{Completions, Stop};
use super::meta::{describe, meta};
use super::strides::Strides;
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

/// Opcode and format of a title, in the word that holds its owner.
const TITLE: u32 = RESPONDER_SEND | Cqe64::FORMAT.of(CqeFormat::COMPRESSED.0);

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
    cqes: RingView<'r, { Cqe64::SIZE_BYTES }>,
    /// The array that is being read, the place of the next one in it, and the entry of the next
    /// array.
    array: Slot<'r, { Cqe64::SIZE_BYTES }>,
    place: usize,
    next_entry: u32,
    title: Title,
    /// The one that was found.
    hash_be: u32,
    /// Of all so far: a ring holds at most 2^15 packets of less than 2^16 bytes.
    bytes: u32,
    too_long: Option<u32>,
}

impl Arrivals for Block<'_> {
    #[inline(always)]
    fn next(&mut self) -> Option<u32> {
        let mini = match self.array.piece::<{ MiniCqe::SIZE_BYTES }>(self.place) {
            Some(mini) => mini,
            None => {
                self.array = self.cqes.at(self.next_entry);
                self.next_entry = self.next_entry.wrapping_add(MINI_CQES_PER_ENTRY);
                self.place = 0;
                self.array.piece(0)?
            }
        };
        self.place += 1;
        self.hash_be = mini.load_raw32::<{ MiniCqe::RX_HASH_RESULT.offset }>();
        let len = mini.load_be32::<{ MiniCqe::BYTE_CNT.offset }>();
        self.bytes = self.bytes.wrapping_add(len);
        Some(len)
    }

    #[inline(always)]
    fn too_long(&mut self, len: u32) {
        self.bytes = self.bytes.wrapping_sub(len);
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
        let wanted = self.expected_at(self.ring.ci, self.cq.ci);
        if (last ^ wanted) & self.last_mask != 0 {
            return self.take_title(last, self.ring.ci as u16, self.ring.outstanding(), None);
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
        self.take_run(out);
        true
    }

    /// Takes the packets behind one whose completion was not compressed, as long as theirs are not
    /// either, and as far as a lap of the completion queue and the buffers' array go.
    #[inline(always)]
    fn take_run<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) {
        let lap = self.cq.left_of_lap(self.cq.ci);
        let mut run = Completions::<false>::of(self.cq.ring.view(), self.cq.ci, self.last_mask);
        run.wanted = self.expected_at(self.ring.ci, self.cq.ci);
        let taken = self.elts.pop_filled(out, lap, &mut run) as u32;
        self.ring.ci = self.ring.ci.wrapping_add(taken);
        self.cq.ci = self.cq.ci.wrapping_add(taken);
        let Completions { bytes, stop, .. } = run;
        self.stats.bytes += bytes;
        // Whatever else there is, the next look tells.
        if let Stop::TooLong(len) = stop {
            self.too_long(len);
        }
    }

    /// Moves packets of the open block to `out`, as far as the buffers' array goes; returns how
    /// many.
    #[inline(always)]
    fn take_block<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        let Mini { count, done, title, .. } = self.mini;
        let entry = self.mini.entry();
        let cqes = self.cq.ring.view();
        let mut block = Block {
            cqes,
            array: cqes.at(self.cq.ci.wrapping_add(entry)),
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
        self.stats.bytes += u64::from(block.bytes);
        if let Some(len) = block.too_long {
            self.too_long(len);
        }
        self.mini_done(taken as u32);
        taken
    }

    /// Looks at a completion that is not the expected one, of which no more than `most` can be
    /// together; `strides` are those of a striding queue. Opens a block, or answers `false`:
    /// nothing has come, or a fault, or packets that could not be delivered, which are passed over:
    /// one completion of them a call, for a device may write more as fast as they are taken.
    pub(super) fn take_title(
        &mut self,
        last: u32,
        expected: u16,
        most: u32,
        strides: Option<&mut Strides>,
    ) -> bool {
        let title = TITLE | self.cq.owner_at(self.cq.ci);
        if (last ^ title) & OP_OWN_MASK == 0 {
            return self.open_block(most);
        }
        match self.cq.unexpected(last, expected) {
            Unexpected::Empty => false,
            Unexpected::Fault(fault) => {
                self.stop(fault);
                false
            }
            Unexpected::Compressed => self.open_block(most),
            Unexpected::Undelivered(packets) => {
                self.pass_over(packets, most, strides);
                false
            }
        }
    }

    /// Reads the title that is next.
    #[inline(always)]
    pub(super) fn open_block(&mut self, most: u32) -> bool {
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
