//! Send queues: fetching WQEs, executing them, errors and flushing.
//!
//! A queue works only after its doorbell was rung, and then up to the counter in its doorbell
//! record (reference 6.6). WQEs are fetched many at a time. When the wire cannot take more, the
//! queue stays active and goes on in a later step, inside a WQE if need be.

use ferrocx_prm::cqe::{Cqe64, CqeOpcode};
use ferrocx_prm::layout::Part;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, CompletionMode, Ctrl, DS_BYTES, MAX_DS};

use super::loopback::Output;
use super::send::{self, Outcome, Params, Sent};
use crate::bits::low16;
use crate::device::state::Ctx;
use crate::objects::QueueState;
use crate::queue::completion::{self, ErrorReport};
use crate::queue::cq::{self, Completions, Urgency};
use crate::queue::wqe::{self, WqeFault};

/// Basic blocks fetched at once; more than the longest WQE.
const WINDOW_BLOCKS: usize = 64;
/// Fetches of one queue in one step, so that queues take turns.
const WINDOWS_PER_TURN: usize = 4;
/// Window into the ring of the send queue at work.
#[derive(Debug)]
pub(crate) struct Transmit {
    window: Box<[u8]>,
}

impl Default for Transmit {
    fn default() -> Self {
        Self { window: vec![0; WINDOW_BLOCKS * BASIC_BLOCK_BYTES].into() }
    }
}

/// The doorbell of a UAR page was rung: reads the record of a queue that may be meant.
///
/// `rung` is the first eight bytes of the last WQE posted, if the doorbell is known to name this
/// queue. A record that is behind it was forgotten; then nothing past the record is executed.
pub(crate) fn doorbell(ctx: &mut Ctx<'_>, sqn: u32, rung: Option<u64>) -> bool {
    let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return false };
    if sq.state == QueueState::Reset {
        if rung.is_some() {
            ctx.refuse_data("sqn", u64::from(sqn), "doorbell for a send queue in reset");
        }
        return false;
    }
    sq.stats.doorbells += 1;
    sq.stats.dma_reads += 1;
    let Ok(record) = ctx.mem.load_acquire_be32(sq.wq.dbr_addr + 4) else {
        ctx.refuse_data("sq dbr_addr", u64::from(sqn), "doorbell record cannot be read");
        fail_queue(ctx, sqn);
        return false;
    };
    // Low 16 bits are significant: reference 6.6.
    let posted = low16(record.into());
    let pending = posted.wrapping_sub(sq.executed);
    let size = 1_u32 << sq.wq.log_size;
    if u32::from(pending) > size {
        ctx.refuse_data("send counter", u64::from(posted), "more blocks posted than the ring has");
        fail_queue(ctx, sqn);
        return false;
    }
    sq.posted = posted;
    sq.is_active = pending != 0;
    let is_active = sq.is_active;
    if let Some(raw) = rung {
        check_rung(ctx, raw, posted);
    }
    is_active
}

/// Says so when a doorbell names a WQE that its record does not cover.
fn check_rung(ctx: &mut Ctx<'_>, raw: u64, posted: u16) {
    let mut bytes = [0; DS_BYTES];
    bytes[..8].copy_from_slice(&raw.to_be_bytes());
    let ctrl = Ctrl(bytes);
    let blocks = ctrl.ds().div_ceil(4).max(1);
    let end = low16(ctrl.wqe_index().wrapping_add(blocks).into());
    let missing = end.wrapping_sub(posted);
    if missing != 0 && missing <= u16::MAX / 2 {
        ctx.refuse_data("send counter", posted.into(), "doorbell record behind its doorbell");
    }
}

/// The queue fails without a WQE to blame: no completion, an event, no more work.
#[cold]
fn fail_queue(ctx: &mut Ctx<'_>, sqn: u32) {
    if let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) {
        sq.state = QueueState::Error;
        sq.is_active = false;
    }
    let event = ferrocx_prm::eqe::EventType::WQ_CATASTROPHIC;
    ctx.queue_event(event, crate::queue::eq::QueueKind::Sq, sqn);
}

/// Executes what is posted, up to a bound. Returns whether the queue is still active.
pub(crate) fn run(
    ctx: &mut Ctx<'_>,
    transmit: &mut Transmit,
    completions: &mut Completions,
    out: &mut Output<'_>,
    sqn: u32,
) -> bool {
    for _ in 0..WINDOWS_PER_TURN {
        let Some(sq) = ctx.state.objects.sqs.get(sqn).filter(|sq| sq.is_active) else {
            return false;
        };
        if sq.state == QueueState::Error {
            return flush(ctx, transmit, completions, sqn);
        }
        let Some(blocks) = fetch(ctx, transmit, sqn) else {
            fail_queue(ctx, sqn);
            return false;
        };
        if !run_window(ctx, transmit, completions, out, (sqn, blocks)) {
            break;
        }
    }
    ctx.state.objects.sqs.get(sqn).is_some_and(|sq| sq.is_active)
}

/// Reads posted blocks into the window; `None` when the ring cannot be read.
fn fetch(ctx: &mut Ctx<'_>, transmit: &mut Transmit, sqn: u32) -> Option<usize> {
    let sq = ctx.state.objects.sqs.get_mut(sqn)?;
    let pending = usize::from(sq.posted.wrapping_sub(sq.executed));
    let blocks = pending.min(WINDOW_BLOCKS);
    let window = &mut transmit.window[..blocks * BASIC_BLOCK_BYTES];
    let mask = (1_u64 << sq.wq.log_size) - 1;
    let mut at = (u64::from(sq.executed) & mask) * BASIC_BLOCK_BYTES as u64;
    let mut done = 0;
    while done < window.len() {
        let run = usize::try_from(sq.wq.memory.run_bytes(at)).unwrap_or(usize::MAX);
        let step = run.min(window.len() - done);
        let iova = sq.wq.memory.locate(at);
        if ctx.mem.read(iova, &mut window[done..done + step]).is_err() {
            ctx.refuse_data("sq pas", iova, "send queue cannot be read");
            return None;
        }
        sq.stats.dma_reads += 1;
        done += step;
        at = (at + step as u64) % sq.wq.memory.len_bytes();
    }
    sq.stats.descriptor_bytes += done as u64;
    Some(blocks)
}

/// Executes the WQEs of a window. Returns whether it is worth fetching the next one.
fn run_window(
    ctx: &mut Ctx<'_>,
    transmit: &Transmit,
    completions: &mut Completions,
    out: &mut Output<'_>,
    (sqn, blocks): (u32, usize),
) -> bool {
    let Some(sq) = ctx.state.objects.sqs.get(sqn) else { return false };
    let params = Params::of(sqn, sq, &ctx.state.objects.tiss, &ctx.state.port);
    let pending = usize::from(sq.posted.wrapping_sub(sq.executed));
    let (mut counter, mut progress) = (sq.executed, sq.wqe_progress);
    let mut sent = Sent::default();
    let mut at = 0;
    let mut fault = None;
    let mut is_stalled = false;
    while at < blocks {
        let rest = &transmit.window[at * BASIC_BLOCK_BYTES..blocks * BASIC_BLOCK_BYTES];
        let ctrl = Ctrl::load(&rest[..DS_BYTES]);
        let ds = ctrl.ds() as usize;
        let len_blocks = ds.div_ceil(4).max(1);
        if at + len_blocks > blocks && blocks < pending {
            // The rest of this WQE is in the next window.
            break;
        }
        let result = wqe::check_ctrl(&ctrl, sqn, counter)
            .and_then(|()| {
                let why = "the WQE is empty or longer than what is posted";
                let bytes = rest.get(..ds * DS_BYTES).filter(|_| ds != 0);
                bytes.ok_or_else(|| WqeFault::operation("ctrl.ds", ds as u64, why))
            })
            .and_then(|wqe| send::execute(ctx, out, &params, (&ctrl, wqe), progress, &mut sent));
        match result {
            Ok(Outcome::Done) => {}
            Ok(Outcome::Stalled(packets)) => {
                progress = packets;
                is_stalled = true;
                break;
            }
            Err(reason) => {
                fault = Some((reason, ctrl));
                break;
            }
        }
        progress = 0;
        sent.wqes += 1;
        let first_block = counter;
        at += len_blocks;
        counter = counter.wrapping_add(low16(len_blocks as u64));
        if ctrl.ce() >= CompletionMode::ALWAYS.0 {
            sent.signaled += 1;
            if !complete(ctx, completions, &params, &ctrl, first_block) {
                // The CQ is lost, and with it this queue.
                break;
            }
        }
        if ctx.is_turn_over() {
            is_stalled = true;
            break;
        }
    }
    store(ctx, sqn, (counter, progress), &sent);
    if let Some((reason, ctrl)) = fault {
        fail_wqe(ctx, completions, &params, (&ctrl, counter), &reason);
    }
    !is_stalled
}

/// Puts back how far a queue came, and what it cost.
fn store(ctx: &mut Ctx<'_>, sqn: u32, (counter, progress): (u16, u32), sent: &Sent) {
    let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return };
    sq.executed = counter;
    sq.wqe_progress = progress;
    sq.is_active = sq.posted != counter;
    sq.stats.wqes += sent.wqes;
    sq.stats.packets += sent.packets;
    sq.stats.payload_bytes += sent.bytes;
    sq.stats.dma_reads += sent.reads;
    sq.stats.completions += sent.signaled;
    sq.stats.dma_writes += sent.signaled;
}

/// Writes the completion of a WQE. Source: reference 6.7, 6.12.
#[inline]
fn complete(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    ctrl: &Ctrl,
    counter: u16,
) -> bool {
    let mut entry = Cqe64::zeroed()
        .with_srqn_uidx(params.user_index)
        .with_timestamp(cq::timestamp(ctx.now_ns))
        .with_sop_qpn_opcode(ctrl.0[3].into())
        .with_sop_drop_qpn(params.sqn)
        .with_wqe_counter(counter.into())
        .with_opcode(CqeOpcode::REQUESTER.0)
        .with_se(ctrl.se());
    let urgency = match ctrl.ce() {
        ce if ce == CompletionMode::ALWAYS_AND_EQE.0 => Urgency::Event,
        _ if ctrl.se() => Urgency::Solicited,
        _ => Urgency::Plain,
    };
    completion::complete(ctx, completions, params.cqn, &mut entry.0, urgency)
}

/// Ends the queue at a WQE: error completion, error state; [`flush`] does the rest.
#[cold]
fn fail_wqe(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    (ctrl, counter): (&Ctrl, u16),
    fault: &WqeFault,
) {
    ctx.refuse_data(fault.field, fault.value, fault.why);
    report(ctx, completions, params, (ctrl, counter), fault.syndrome);
    if let Some(sq) = ctx.state.objects.sqs.get_mut(params.sqn) {
        sq.state = QueueState::Error;
        // A WQE without a believable length still ends with its first block.
        let blocks = ctrl.ds().div_ceil(4).max(1);
        let pending = u32::from(sq.posted.wrapping_sub(sq.executed));
        let step = low16(blocks.min(pending).into());
        sq.executed = sq.executed.wrapping_add(step);
        sq.wqe_progress = 0;
        sq.is_active = sq.posted != sq.executed;
    }
}

/// Writes an error completion of a WQE. `false` when it was lost.
fn report(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    params: &Params,
    (ctrl, counter): (&Ctrl, u16),
    syndrome: CqeSyndrome,
) -> bool {
    let report = ErrorReport {
        cqn: params.cqn,
        opcode: CqeOpcode::REQUESTER_ERROR,
        syndrome,
        wqe_opcode: ctrl.0[3],
        queue: params.sqn,
        wqe_counter: counter,
        user_index: params.user_index,
    };
    let is_written = completion::complete_error(ctx, completions, &report);
    if let Some(sq) = ctx.state.objects.sqs.get_mut(params.sqn) {
        sq.error_reported = true;
        sq.stats.completions += 1;
        sq.stats.errors += 1;
        sq.stats.dma_writes += 1;
    }
    is_written
}

/// Completes what is posted with "flushed", if the queue was created to do so: some windows of it.
/// Returns whether there is more.
///
/// A WQE that wants a completion for the first error only gets none here once one was written.
///
/// # Source
/// Reference 6.7: "remaining WQEs complete with 0x05 ... SQ/RQ: only if flush_in_error_en"; 6.1,
/// `ce`.
#[cold]
pub(crate) fn flush(
    ctx: &mut Ctx<'_>,
    transmit: &mut Transmit,
    completions: &mut Completions,
    sqn: u32,
) -> bool {
    let mut goes_on = true;
    for _ in 0..WINDOWS_PER_TURN {
        goes_on = goes_on && flush_window(ctx, transmit, completions, sqn);
    }
    let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return false };
    if !goes_on {
        sq.executed = sq.posted;
    }
    sq.is_active = sq.executed != sq.posted;
    sq.wqe_progress = 0;
    sq.is_active
}

/// Flushes one window. `false` when nothing more is owed: all is flushed, or its completions are
/// not wanted, or lost.
fn flush_window(
    ctx: &mut Ctx<'_>,
    transmit: &mut Transmit,
    completions: &mut Completions,
    sqn: u32,
) -> bool {
    let wants = ctx.state.objects.sqs.get(sqn).is_some_and(|sq| sq.flush_in_error);
    let Some(blocks) = fetch(ctx, transmit, sqn).filter(|blocks| wants && *blocks > 0) else {
        return false;
    };
    let Some(sq) = ctx.state.objects.sqs.get(sqn) else { return false };
    let params = Params::of(sqn, sq, &ctx.state.objects.tiss, &ctx.state.port);
    let mut counter = sq.executed;
    let mut error_reported = sq.error_reported;
    let mut at = 0;
    while at < blocks {
        let ctrl = Ctrl::load(&transmit.window[at * BASIC_BLOCK_BYTES..][..DS_BYTES]);
        if !(error_reported && ctrl.ce() == CompletionMode::ON_FIRST_ERROR.0) {
            let syndrome = CqeSyndrome::WR_FLUSH_ERR;
            if !report(ctx, completions, &params, (&ctrl, counter), syndrome) {
                return false;
            }
            error_reported = true;
        }
        let step = (ctrl.ds().div_ceil(4).max(1) as usize).min(MAX_DS as usize);
        at += step;
        counter = counter.wrapping_add(low16(step as u64));
    }
    let Some(sq) = ctx.state.objects.sqs.get_mut(sqn) else { return false };
    // The last WQE may reach past what is posted when its length is wrong.
    let pending = sq.posted.wrapping_sub(sq.executed);
    let step = counter.wrapping_sub(sq.executed).min(pending);
    sq.executed = sq.executed.wrapping_add(step);
    true
}
