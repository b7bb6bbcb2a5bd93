//! Blocks of compressed completions, basic layout: one title, then eight bytes per completion.
//!
//! Completions of one CQ that differ only in length, hash or checksum, and counter are collected
//! while the port takes a burst of frames, and written as one block: a title with the fields they
//! share, and arrays of mini CQEs. A block of n completions takes n entries of the ring; those that
//! hold neither title nor array are not written. A block ends where the ring ends: drivers walk
//! through it, and through the buffers that go with it, without looking for the wrap.
//!
//! Source: reference 6.8; 5.4 (`cqe_comp_en`, `mini_cqe_res_format`); 5.10
//! (`cqe_compression_max_num`).

use arrayvec::ArrayVec;
use ferrocx_prm::cqe::{Cqe64, MiniCqe};

use crate::objects::Cq;

/// Completions of one block at most. Source: reference 5.10, `cqe_compression_max_num` = 0x10.
const MAX_BLOCK: usize = 16;
/// Mini CQEs of one array, which fills one entry.
pub(super) const MINIS_PER_ARRAY: usize = 8;

/// Completions that will be written together.
#[derive(Debug)]
pub(crate) struct Block {
    pub(super) cqn: u32,
    pub(super) title: Cqe64,
    pub(super) minis: ArrayVec<MiniCqe, MAX_BLOCK>,
}

/// `mini_cqe_res_format`: what stands in the first word of a mini CQE. Source: reference 5.4.
mod format {
    pub(super) const HASH: u32 = 0;
    pub(super) const CHECKSUM: u32 = 1;
    pub(super) const CHECKSUM_STRIDE: u32 = 3;
}

/// The fields that may differ inside a block, set to zero.
fn shared(entry: &Cqe64) -> [u8; 64] {
    entry
        .with_rx_hash_result(0)
        .with_check_sum(0)
        .with_byte_cnt(0)
        .with_timestamp(0)
        .with_wqe_counter(0)
        .0
}

fn mini(entry: &Cqe64, mini_format: u32) -> MiniCqe {
    let first = match mini_format {
        format::HASH => entry.rx_hash_result(),
        format::CHECKSUM => entry.check_sum() << 16,
        _ => entry.check_sum() << 16 | entry.wqe_counter(),
    };
    MiniCqe::zeroed().with_rx_hash_result(first).with_byte_cnt(entry.byte_cnt())
}

impl Block {
    /// A block of one completion so far.
    pub(super) fn open(cqn: u32, entry: Cqe64, mini_format: u32) -> Self {
        let mut block = Self { cqn, title: entry, minis: ArrayVec::new() };
        block.push(&entry, mini_format);
        block
    }

    /// Adds a completion that [`Block::accepts`] took.
    pub(super) fn push(&mut self, entry: &Cqe64, mini_format: u32) {
        self.minis.push(mini(entry, mini_format));
    }

    /// Whether an entry can be told from the title and a mini CQE.
    pub(super) fn accepts(&self, entry: &Cqe64, mini_format: u32) -> bool {
        // Software counts entries itself, except where each mini CQE says its stride.
        let expected = (self.title.wqe_counter() as usize + self.minis.len()) & 0xffff;
        let is_next =
            mini_format == format::CHECKSUM_STRIDE || entry.wqe_counter() as usize == expected;
        is_next && !self.minis.is_full() && shared(&self.title) == shared(entry)
    }
}

pub(super) fn can_compress(cq: &Cq) -> bool {
    let has_format =
        matches!(cq.mini_cqe_format, format::HASH | format::CHECKSUM | format::CHECKSUM_STRIDE);
    // The enhanced layout is not among the capabilities; without compression a CQ is served too.
    let fits = 1_usize << cq.log_size >= MAX_BLOCK;
    cq.compression && has_format && fits && !cq.enhanced_compression && !cq.collapsed
}
