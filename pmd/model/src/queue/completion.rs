//! Completions, good and failed: written one by one, or collected into compressed blocks.
//!
//! All completions pass here, so that one never overtakes the open block of its CQ. How a block is
//! laid out is said in [`super::block`], how an entry is written in [`super::cq`].
//!
//! Source: reference 6.7, 6.8.

use ferrocx_prm::cqe::{Cqe64, CqeFormat, CqeOpcode, ErrCqe};
use ferrocx_prm::syndrome::CqeSyndrome;

use super::block::{Block, MINIS_PER_ARRAY, can_compress};
use super::cq::{self, Completions, Urgency};
use crate::device::state::Ctx;
use crate::objects::{CqStatus, QueueMemory};

/// Writes one entry and raises what is due. `false` when the entry was lost.
///
/// The owner bit is set here. The last word, which holds it, becomes visible after the rest.
#[inline]
pub(crate) fn complete(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    entry: &mut [u8; 64],
    urgency: Urgency,
) -> bool {
    complete_behind(ctx, completions, cqn, (&[], entry), urgency)
}

/// Like [`complete`], with bytes in the first half of an entry of 128 bytes. An entry of 64 bytes
/// has no room for them, and `front` must be empty.
#[inline]
pub(crate) fn complete_behind(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    (front, entry): (&[u8], &mut [u8; 64]),
    urgency: Urgency,
) -> bool {
    if !completions.blocks.is_empty() {
        end(ctx, completions, cqn);
    }
    cq::complete_now(ctx, completions, cqn, (front, entry), urgency)
}

/// An entry that reports an error. `opcode` is the requester's or the responder's.
pub(crate) struct ErrorReport {
    pub(crate) cqn: u32,
    pub(crate) opcode: CqeOpcode,
    pub(crate) syndrome: CqeSyndrome,
    pub(crate) wqe_opcode: u8,
    pub(crate) queue: u32,
    pub(crate) wqe_counter: u16,
    pub(crate) user_index: u32,
}

impl ErrorReport {
    /// The entry's bytes. Source: reference 6.7, "Error CQE".
    pub(crate) fn entry(&self) -> [u8; 64] {
        ErrCqe::zeroed()
            .with_srqn_uidx(self.user_index)
            .with_syndrome(u32::from(self.syndrome.0))
            .with_s_wqe_opcode(u32::from(self.wqe_opcode))
            .with_qpn(self.queue)
            .with_wqe_counter(u32::from(self.wqe_counter))
            .with_opcode(self.opcode.0)
            .0
    }
}

/// Writes an error entry.
#[cold]
pub(crate) fn complete_error(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    report: &ErrorReport,
) -> bool {
    complete(ctx, completions, report.cqn, &mut report.entry(), Urgency::Solicited)
}

/// Moves a CQ to a new ring, after a last entry in the old one.
///
/// # Source
/// Reference 4.3, MODIFY_CQ op_mod 1: "device writes a CQE with opcode 5 (RESIZE_CQ) as last entry
/// in the old buffer".
pub(crate) fn resize(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    memory: QueueMemory,
    log_size: u32,
) {
    let mut entry = Cqe64::zeroed().with_opcode(CqeOpcode::RESIZE_CQ.0);
    complete(ctx, completions, cqn, &mut entry.0, Urgency::Plain);
    if let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) {
        cq.memory = memory;
        cq.log_size = log_size;
    }
    // What is known of the consumer may be older than a smaller ring can tell.
    cq::read_consumer(ctx, cqn);
}

/// Takes a receive completion: writes it, or keeps it for a block.
#[inline]
pub(crate) fn complete_received(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    entry: &mut Cqe64,
) -> bool {
    match ctx.state.objects.cqs.get(cqn) {
        Some(cq) if cq.compression => {}
        _ => return complete(ctx, completions, cqn, &mut entry.0, Urgency::Plain),
    }
    collect(ctx, completions, cqn, entry)
}

fn collect(ctx: &mut Ctx<'_>, completions: &mut Completions, cqn: u32, entry: &mut Cqe64) -> bool {
    let Some(cq) = ctx.state.objects.cqs.get(cqn).filter(|cq| can_compress(cq)) else {
        return complete(ctx, completions, cqn, &mut entry.0, Urgency::Plain);
    };
    let (mini_format, room) = (cq.mini_cqe_format, cq.entries_to_end() as usize);
    let open = completions.blocks.iter_mut().find(|block| block.cqn == cqn);
    if let Some(block) = open
        && block.minis.len() < room
        && block.accepts(entry, mini_format)
    {
        block.push(entry, mini_format);
        return true;
    }
    end(ctx, completions, cqn);
    completions.blocks.push(Block::open(cqn, *entry, mini_format));
    true
}

/// Writes the open block of a CQ, if it has one.
fn end(ctx: &mut Ctx<'_>, completions: &mut Completions, cqn: u32) {
    if let Some(at) = completions.blocks.iter().position(|block| block.cqn == cqn) {
        let block = completions.blocks.swap_remove(at);
        write(ctx, completions, &block);
    }
}

/// Writes all open blocks: the burst is over.
#[inline]
pub(crate) fn end_all(ctx: &mut Ctx<'_>, completions: &mut Completions) {
    while let Some(block) = completions.blocks.pop() {
        write(ctx, completions, &block);
    }
}

/// Writes a block: arrays first, then the title, whose owner bit makes all of it valid.
fn write(ctx: &mut Ctx<'_>, completions: &mut Completions, block: &Block) {
    let cqn = block.cqn;
    if block.minis.len() == 1 {
        let mut title = block.title;
        cq::complete_now(ctx, completions, cqn, (&[], &mut title.0), Urgency::Plain);
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
