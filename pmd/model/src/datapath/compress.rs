//! Compressed completions, basic layout: one title, then eight bytes per completion.
//!
//! Completions of one CQ that differ only in length, hash or checksum, and counter are collected
//! while the port takes a burst of frames, and written as one block: a title with the fields they
//! share, and arrays of mini CQEs. A block of n completions takes n entries of the ring; those that
//! hold neither title nor array are not written.
//!
//! Source: reference 6.8; 5.4 (`cqe_comp_en`, `mini_cqe_res_format`); 5.10
//! (`cqe_compression_max_num`).

use arrayvec::ArrayVec;
use ferrocx_prm::cqe::{Cqe64, CqeFormat, MiniCqe};

use super::cq::{self, Completions, Urgency};
use crate::nic::Ctx;
use crate::objects::{Cq, CqStatus};

/// Completions of one block at most. Source: reference 5.10, `cqe_compression_max_num` = 0x10.
const MAX_BLOCK: usize = 16;
/// Mini CQEs of one array, which fills one entry.
const MINIS_PER_ARRAY: usize = 8;

/// Completions that will be written together.
#[derive(Debug)]
pub(super) struct Block {
    cqn: u32,
    title: Cqe64,
    minis: ArrayVec<MiniCqe, MAX_BLOCK>,
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
    /// Whether an entry can be told from the title and a mini CQE.
    fn accepts(&self, entry: &Cqe64, mini_format: u32) -> bool {
        // Software counts entries itself, except where each mini CQE says its stride.
        let expected = (self.title.wqe_counter() as usize + self.minis.len()) & 0xffff;
        let is_next =
            mini_format == format::CHECKSUM_STRIDE || entry.wqe_counter() as usize == expected;
        is_next && !self.minis.is_full() && shared(&self.title) == shared(entry)
    }
}

fn can_compress(cq: &Cq) -> bool {
    let has_format =
        matches!(cq.mini_cqe_format, format::HASH | format::CHECKSUM | format::CHECKSUM_STRIDE);
    // The enhanced layout is not among the capabilities; without compression a CQ is served too.
    let fits = 1_usize << cq.log_size >= MAX_BLOCK;
    cq.compression && has_format && fits && !cq.enhanced_compression && !cq.collapsed
}

/// Takes a receive completion: writes it, or keeps it for a block.
#[inline]
pub(super) fn complete(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    entry: Cqe64,
) -> bool {
    match ctx.state.objects.cqs.get(cqn) {
        Some(cq) if cq.compression => {}
        _ => return cq::complete(ctx, completions, cqn, entry.0, Urgency::Plain),
    }
    collect(ctx, completions, cqn, entry)
}

fn collect(ctx: &mut Ctx<'_>, completions: &mut Completions, cqn: u32, entry: Cqe64) -> bool {
    let Some(cq) = ctx.state.objects.cqs.get(cqn).filter(|cq| can_compress(cq)) else {
        return cq::complete(ctx, completions, cqn, entry.0, Urgency::Plain);
    };
    let mini_format = cq.mini_cqe_format;
    let open = completions.blocks.iter_mut().find(|block| block.cqn == cqn);
    if let Some(block) = open
        && block.accepts(&entry, mini_format)
    {
        block.minis.push(mini(&entry, mini_format));
        return true;
    }
    end(ctx, completions, cqn);
    let mut minis = ArrayVec::new();
    minis.push(mini(&entry, mini_format));
    completions.blocks.push(Block { cqn, title: entry, minis });
    true
}

/// Writes the open block of a CQ, if it has one.
pub(super) fn end(ctx: &mut Ctx<'_>, completions: &mut Completions, cqn: u32) {
    if let Some(at) = completions.blocks.iter().position(|block| block.cqn == cqn) {
        let block = completions.blocks.swap_remove(at);
        write(ctx, completions, &block);
    }
}

/// Writes all open blocks: the burst is over.
#[inline]
pub(super) fn end_all(ctx: &mut Ctx<'_>, completions: &mut Completions) {
    while let Some(block) = completions.blocks.pop() {
        write(ctx, completions, &block);
    }
}

/// Writes a block: arrays first, then the title, whose owner bit makes all of it valid.
fn write(ctx: &mut Ctx<'_>, completions: &mut Completions, block: &Block) {
    let cqn = block.cqn;
    if block.minis.len() == 1 {
        cq::complete_now(ctx, completions, cqn, (&[], block.title.0), Urgency::Plain);
        return;
    }
    let count = u32::try_from(block.minis.len()).unwrap_or(u32::MAX);
    if !cq::has_room(ctx, cqn, count) {
        return;
    }
    let Some(cq) = ctx.state.objects.cqs.get(cqn) else { return };
    let mut is_written = true;
    for (slot, minis) in (0..).step_by(MINIS_PER_ARRAY).zip(block.minis.chunks(MINIS_PER_ARRAY)) {
        let mut array = [0; 64];
        for (into, mini) in array.chunks_exact_mut(8).zip(minis) {
            into.copy_from_slice(&mini.0);
        }
        // The first array follows the title; the others start every eight entries.
        is_written &= ctx.mem.write(cq.entry(slot.max(1)), &array).is_ok();
    }
    let mut title = block.title.with_byte_cnt(count).with_format(CqeFormat::COMPRESSED.0).0;
    cq::set_owner(cq, &mut title);
    is_written &= ctx.mem.write_release(cq.entry(0), &title).is_ok();
    if is_written {
        cq::produce(ctx, completions, cqn, count, Urgency::Plain);
    } else {
        cq::fail(ctx, cqn, CqStatus::WriteFailure);
    }
}
