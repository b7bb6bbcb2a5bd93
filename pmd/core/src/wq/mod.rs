//! Work queues: the rings that every queue of Ethernet and verbs is made of, and the requests in
//! them. All places and values of bits are those of `ferrocx-prm`.
//!
//! | ring | what posts to it | how it goes round |
//! |---|---|---|
//! | [`SendRing`] | requests of whole 64-byte blocks, written with [`Wqe`] | blocks in order |
//! | [`RecvRing`] | scatter lists of one length | entries in order |
//! | [`SharedRing`] | scatter lists behind a link | free entries, one linked to the next |
//!
//! A ring knows where its requests stand and how far the device is told. What a request holds, and
//! which completion ends it, is its user's business.
//!
//! | order | why |
//! |---|---|
//! | request, then doorbell record | the device reads up to the record's counter |
//! | doorbell record, then doorbell | the device reads the record when the doorbell rings |

mod recv;
mod send;
mod shared;

use ferrocx_bus::{RingView, Slot};
use ferrocx_prm::Layout;
use ferrocx_prm::wqe::{
    Atomic, BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, DS_PER_BLOCK, Data, ETH_INLINE_BYTES, Eth,
    INLINE_SEG, INVALID_LKEY, InlineHeader, LOG_DS_BYTES, Opcode, Raddr,
};

pub use recv::{RecvRing, RecvSize, RqAttr, Strides};
pub use send::{
    Bell, EndOfRun, ONE_RUN_BYTES, Position, Ready, RunOfBlocks, RunOfRequests, SendRing, SqAttr,
    Written,
};
pub use shared::{SharedRing, XrcSrqAttr};

/// `rq_ts_format` and `sq_ts_format` of a device whose completions carry seconds and nanoseconds of
/// its real-time clock, and no ticks of the other one. Source: reference 5.10.
pub const REAL_TIME_ONLY: u32 = 1;

/// `ts_format` of a queue by the capability of its kind: free running where the device has that,
/// and else its default, which is all that such a device takes. Source: reference 5.7, 5.8; DPDK
/// `mlx5_ts_format_conv`.
fn ts_format(cap: u32) -> u32 {
    u32::from(cap == REAL_TIME_ONLY)
}

/// A unit of a work request: segments are made of these.
pub type Unit<'r> = Slot<'r, DS_BYTES>;
/// A basic block of a send ring.
pub type Block<'r> = Slot<'r, BASIC_BLOCK_BYTES>;
/// Where the first segment of a block stands, and the first bytes of a unit.
pub const START: usize = 0;

/// What a control segment says beside place and length of its request.
#[derive(Debug, Clone, Copy)]
pub struct Control {
    /// What to do.
    pub opcode: Opcode,
    /// Immediate data, or the key that the request invalidates or changes.
    pub imm: u32,
    /// Fence, completion mode and solicited event, each in its place in their word.
    pub flags: u32,
}

impl Control {
    /// A request without immediate data, fence and completion.
    #[must_use]
    pub const fn new(opcode: Opcode) -> Self {
        Self { opcode, imm: 0, flags: 0 }
    }
}

/// Two words, given as they stand in memory, as one 64-bit word to store.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    if cfg!(target_endian = "little") {
        u64::from(first) | u64::from(second) << 32
    } else {
        u64::from(second) | u64::from(first) << 32
    }
}

/// Writes a data segment. The key is given as it stands in memory.
#[inline(always)]
pub fn put_data(unit: Unit<'_>, len: u32, lkey_be: u32, addr: u64) {
    unit.store_raw64::<{ Data::BYTE_COUNT.offset }>(pair(len.to_be(), lkey_be));
    unit.store_be64::<{ Data::ADDR.offset }>(addr);
}

/// Writes a remote address segment.
#[inline(always)]
pub fn put_raddr(unit: Unit<'_>, addr: u64, rkey: u32) {
    unit.store_be64::<{ Raddr::RADDR.offset }>(addr);
    unit.store_raw64::<{ Raddr::RKEY.offset }>(pair(rkey.to_be(), 0));
}

/// Writes the operands of an atomic.
#[inline(always)]
pub fn put_atomic(unit: Unit<'_>, swap_add: u64, compare: u64) {
    unit.store_be64::<{ Atomic::SWAP_ADD.offset }>(swap_add);
    unit.store_be64::<{ Atomic::COMPARE.offset }>(compare);
}

/// An inline data segment of 1 to 16 bytes, in registers.
#[derive(Debug, Clone, Copy)]
pub struct ShortInline {
    /// Header and data, as they stand in memory.
    words: [u64; 3],
    units: u32,
}

impl ShortInline {
    /// Most bytes of one.
    pub const MAX_BYTES: usize = 16;

    /// That of some bytes; nothing for another length. A few loads that overlap, and shifts:
    /// cheaper than to copy a number of bytes that varies.
    #[inline(always)]
    #[must_use]
    pub fn of(data: &[u8]) -> Option<Self> {
        let [low, high] = match *data {
            [only] => [only.into(), 0],
            [first, second] => [u64::from(u16::from_le_bytes([first, second])), 0],
            [first, second, third] => [u64::from(u32::from_le_bytes([first, second, third, 0])), 0],
            _ => match (data.first_chunk(), data.last_chunk()) {
                (Some(first), Some(last)) if data.len() <= Self::MAX_BYTES => {
                    let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
                    // Of eight bytes, both are the same: a shift by all bits, in two steps.
                    let known = 4 * (Self::MAX_BYTES - data.len()) as u32;
                    [first, last >> known >> known]
                }
                (None, _) => {
                    let first = u32::from_le_bytes(*data.first_chunk()?);
                    let last = u32::from_le_bytes(*data.last_chunk()?);
                    let skipped = 8 * (data.len() - size_of::<u32>()) as u32;
                    [u64::from(first) | u64::from(last) << skipped, 0]
                }
                _ => return None,
            },
        };
        let halves = |word: u64| [(word as u32).to_le(), ((word >> 32) as u32).to_le()];
        let ([first, second], [third, fourth]) = (halves(low), halves(high));
        let header = (INLINE_SEG | data.len() as u32).to_be();
        let words = [pair(header, first), pair(second, third), pair(fourth, 0)];
        Some(Self { words, units: inline_units(data.len()) })
    }

    /// Its length in units: 1 or 2.
    #[inline(always)]
    #[must_use]
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Writes it. What stands behind the bytes in the two units is not the device's business.
    #[inline(always)]
    pub fn put(&self, units: Slot<'_, { 2 * DS_BYTES }>) {
        let [start, second, third] = self.words;
        units.store_raw64::<{ InlineHeader::INLINE.offset }>(start);
        units.store_raw64::<{ DS_BYTES / 2 }>(second);
        units.store_raw64::<DS_BYTES>(third);
    }
}

/// Writes the header of an inline data segment of `len` bytes, which follow, in a unit of which the
/// rest stays.
#[inline(always)]
pub fn put_inline_header(unit: Unit<'_>, len: u32) {
    unit.store_be32::<{ InlineHeader::INLINE.offset }>(INLINE_SEG | len);
}

/// Writes an Ethernet segment without the headers behind its own bytes: checksum requests and
/// segment size, and the word of inline header size and start.
#[inline(always)]
pub fn put_eth(unit: Unit<'_>, flags_mss: u32, header: u32) {
    unit.store_raw64::<{ Eth::MSS.offset - 4 }>(pair(0, flags_mss.to_be()));
    unit.store_raw64::<{ Eth::INLINE_HDR_SZ.offset - 4 }>(pair(0, header.to_be()));
}

/// A request that is being written: its segments follow each other.
#[derive(Debug)]
pub struct Wqe<'r> {
    view: RingView<'r, DS_BYTES>,
    /// Positions in bytes, modulo 2^32: of the request's first unit, and of the next.
    first: u32,
    at: u32,
}

impl<'r> Wqe<'r> {
    #[inline(always)]
    fn new(view: RingView<'r, DS_BYTES>, first: u32, skipped: u32) -> Self {
        let first = first << LOG_DS_BYTES;
        Self { view, first, at: first.wrapping_add(skipped << LOG_DS_BYTES) }
    }

    /// Length up to here in 16-byte units, control segment or link included.
    #[inline(always)]
    #[must_use]
    pub fn ds(&self) -> u32 {
        self.at.wrapping_sub(self.first) >> LOG_DS_BYTES
    }

    /// The next unit, for a segment that the caller writes.
    #[inline(always)]
    pub fn unit(&mut self) -> Unit<'r> {
        let unit = self.view.at_byte(self.at);
        self.at = self.at.wrapping_add(DS_BYTES as u32);
        unit
    }

    /// Appends a data segment. The key is given as it stands in memory.
    #[inline(always)]
    pub fn data(&mut self, len: u32, lkey_be: u32, addr: u64) {
        put_data(self.unit(), len, lkey_be, addr);
    }

    /// Appends a remote address segment.
    #[inline(always)]
    pub fn raddr(&mut self, addr: u64, rkey: u32) {
        put_raddr(self.unit(), addr, rkey);
    }

    /// Appends the operands of an atomic.
    #[inline(always)]
    pub fn atomic(&mut self, swap_add: u64, compare: u64) {
        put_atomic(self.unit(), swap_add, compare);
    }

    /// Appends bytes as they stand, padded with zeros to a whole unit: a segment made elsewhere.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes_from(bytes, 0);
    }

    /// Appends the bytes from `start` on, padded with zeros to a whole unit.
    #[inline(always)]
    fn bytes_from(&mut self, bytes: &[u8], start: usize) {
        let (units, rest) = bytes[start..].as_chunks::<DS_BYTES>();
        units.iter().for_each(|unit| self.unit().store(unit));
        if rest.is_empty() {
            return;
        }
        let last = match bytes.last_chunk::<DS_BYTES>() {
            // A load and a shift: cheaper than to copy a number of bytes that varies.
            Some(last) => {
                let missing_bits = 8 * (DS_BYTES - rest.len()) as u32;
                (u128::from_le_bytes(*last) >> missing_bits).to_le_bytes()
            }
            None => {
                let mut last = [0; DS_BYTES];
                last[..rest.len()].copy_from_slice(rest);
                last
            }
        };
        self.unit().store(&last);
    }

    /// Appends an Ethernet segment that holds the first bytes of the frame, which are left out of
    /// the data segments; `flags_mss` is its word of checksum requests and segment size. What
    /// stands behind the bytes up to the next unit is not the device's business.
    #[inline(always)]
    pub fn eth(&mut self, flags_mss: u32, header: &[u8]) {
        let start = match *header {
            [] => 0,
            [only] => u16::from_be_bytes([only, 0]),
            [first, second, ..] => u16::from_be_bytes([first, second]),
        };
        let word = Eth::INLINE_HDR_SZ.of(header.len() as u32) | u32::from(start);
        put_eth(self.unit(), flags_mss, word);
        if let Some(rest) = header.get(ETH_INLINE_BYTES..).filter(|rest| !rest.is_empty()) {
            if self.view.copy_bytes(self.at, rest) {
                self.at = self.at.wrapping_add(rest.len().next_multiple_of(DS_BYTES) as u32);
            } else {
                self.bytes_from(rest, 0);
            }
        }
    }

    /// Appends an inline data segment, [`inline_units`] long. What its last unit holds behind the
    /// bytes is not the device's business, and stays as it was.
    #[inline(always)]
    pub fn inline_one(&mut self, bytes: &[u8]) {
        let data = self.at.wrapping_add(InlineHeader::SIZE_BYTES as u32);
        if self.view.copy_bytes(data, bytes) {
            let header = self.view.at_byte(self.at);
            header.store_be32::<{ InlineHeader::INLINE.offset }>(INLINE_SEG | bytes.len() as u32);
            self.at = self.at.wrapping_add(inline_units(bytes.len()) << LOG_DS_BYTES);
            return;
        }
        if let Some(short) = ShortInline::of(bytes) {
            let ([start, second, third], unit) = (short.words, self.unit());
            unit.store_raw64::<{ InlineHeader::INLINE.offset }>(start);
            unit.store_raw64::<{ DS_BYTES / 2 }>(second);
            if short.units > 1 {
                self.unit().store_raw64::<START>(third);
            }
            return;
        }
        let Some((start, _)) = bytes.split_first_chunk::<INLINE_START_BYTES>() else {
            return self.inline_anywhere(bytes.len(), [bytes]);
        };
        let mut first = [0; DS_BYTES];
        let (header, data) = first.split_at_mut(InlineHeader::SIZE_BYTES);
        header.copy_from_slice(&(INLINE_SEG | bytes.len() as u32).to_be_bytes());
        data.copy_from_slice(start);
        self.unit().store(&first);
        self.bytes_from(bytes, INLINE_START_BYTES);
    }

    /// Appends an inline data segment of `len` bytes, the pieces one behind the other, as
    /// [`Wqe::inline_one`] does.
    #[inline(always)]
    pub fn inline<'a, I>(&mut self, len: usize, pieces: I)
    where
        I: IntoIterator<Item = &'a [u8]> + Clone,
    {
        let mut data = self.at.wrapping_add(InlineHeader::SIZE_BYTES as u32);
        for piece in pieces.clone() {
            if !self.view.copy_bytes(data, piece) {
                return self.inline_anywhere(len, pieces);
            }
            data = data.wrapping_add(piece.len() as u32);
        }
        let header = self.view.at_byte(self.at);
        header.store_be32::<{ InlineHeader::INLINE.offset }>(INLINE_SEG | len as u32);
        self.at = self.at.wrapping_add(inline_units(len) << LOG_DS_BYTES);
    }

    /// Appends an inline data segment unit by unit: where the ring ends within the bytes, for one.
    #[inline]
    fn inline_anywhere<'a>(&mut self, len: usize, pieces: impl IntoIterator<Item = &'a [u8]>) {
        let mut unit = [0; DS_BYTES];
        let mut filled = InlineHeader::SIZE_BYTES;
        unit[..filled].copy_from_slice(&(INLINE_SEG | len as u32).to_be_bytes());
        for mut piece in pieces {
            while !piece.is_empty() {
                let (part, rest) = piece.split_at(piece.len().min(DS_BYTES - filled));
                unit[filled..][..part.len()].copy_from_slice(part);
                (piece, filled) = (rest, filled + part.len());
                if filled == DS_BYTES {
                    self.unit().store(&unit);
                    (unit, filled) = ([0; DS_BYTES], 0);
                }
            }
        }
        if filled != 0 {
            self.unit().store(&unit);
        }
    }

    /// Appends what ends a scatter list that is shorter than its entry. Source: reference 6.5.
    #[inline(always)]
    pub fn end_list(&mut self) {
        self.data(0, INVALID_LKEY.to_be(), 0);
    }
}

/// Writes a control segment of a request of `ds` units at a position of a queue; gives its first
/// half, with which the doorbell is rung.
#[inline(always)]
fn put_control(unit: Unit<'_>, qpn_word: u32, position: u64, control: Control, ds: u32) -> u64 {
    let Control { opcode, imm, flags } = control;
    let index = u32::from(position as u16);
    let place = Ctrl::WQE_INDEX.of(index) | Ctrl::OPCODE.of(opcode.0.into());
    let size = qpn_word | Ctrl::DS.of(ds);
    let first = (u64::from(place) << 32 | u64::from(size)).to_be();
    unit.store_raw64::<{ Ctrl::OPCODE.offset }>(first);
    unit.store_be64::<{ Ctrl::CE.offset }>(u64::from(flags) << 32 | u64::from(imm));
    first
}

/// Bytes of an inline data segment that stand in its first unit.
const INLINE_START_BYTES: usize = DS_BYTES - InlineHeader::SIZE_BYTES;

/// Units of an inline data segment of `len` bytes.
#[inline(always)]
#[must_use]
pub const fn inline_units(len: usize) -> u32 {
    (InlineHeader::SIZE_BYTES + len).div_ceil(DS_BYTES) as u32
}

/// Units of the inline headers behind an Ethernet segment that holds the start of `len` bytes.
#[inline(always)]
#[must_use]
pub const fn header_units(len: usize) -> u32 {
    len.saturating_sub(ETH_INLINE_BYTES).div_ceil(DS_BYTES) as u32
}

/// Blocks of a request of `ds` units.
#[inline(always)]
#[must_use]
#[expect(clippy::manual_div_ceil, reason = "which minds sums that overflow: three times the code")]
pub const fn blocks_of(ds: u32) -> u32 {
    (ds + (DS_PER_BLOCK - 1)) / DS_PER_BLOCK
}
