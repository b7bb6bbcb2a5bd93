//! UAR pages: doorbells of queues, written or found in shared memory.
//!
//! Source: reference 1.3.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use ferrocx_bus::local::{BarWrite, DeviceSide};
use ferrocx_prm::init_seg::{CqArm, uar};

use crate::datapath::DataPath;
use crate::device::state::{Ctx, State};

/// Bytes of a send doorbell buffer: two to a register of 512 bytes. Source: reference 1.3.
const SEND_BUFFER_BYTES: u64 = 256;

/// First half of a doorbell that arrives as two 4-byte writes: where it was written, and the word.
#[derive(Debug, Default)]
pub(super) struct HalfDoorbell(Option<(u64, u32)>);

impl HalfDoorbell {
    /// A write to a UAR page that left an event behind: a trapped access, or a 4-byte register.
    pub(super) fn write(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath, write: BarWrite) {
        let page = u32::try_from(write.offset / uar::PAGE_BYTES).unwrap_or(u32::MAX);
        if !ctx.state.objects.uars.contains(page) {
            // Linux that shuts down forces the function down first; only then does mlx5_ib
            // complete what was posted, and it arms its CQs again. Nothing is behind the page.
            if ctx.state.was_forced_down {
                return;
            }
            ctx.refuse_data("uar page", page.into(), "doorbell on a page that is not allocated");
            return;
        }
        let register = write.offset % uar::PAGE_BYTES;
        let word = u32::try_from(write.value & 0xffff_ffff).unwrap_or(0);
        match (register, write.len_bytes) {
            (uar::EQ_ARM | uar::EQ_CI, 4) => eq_write(ctx, page, register, word),
            (uar::EQ_ARM | uar::EQ_CI, 8) => {
                eq_write(ctx, page, register, u32::try_from(write.value >> 32).unwrap_or(0));
            }
            (uar::CQ_ARM, 8) => cq_write(ctx, datapath, page, write.value),
            (uar::SEND_DOORBELL..uar::PAGE_BYTES, 8) => {
                // Only the first eight bytes of a BlueFlame copy ring.
                if register.is_multiple_of(SEND_BUFFER_BYTES) {
                    send_write(ctx, datapath, page, write.value);
                }
            }
            (_, 4) => self.write_half(ctx, datapath, write.offset, word),
            _ => ctx.refuse_data("uar register", register, "not a register of a UAR page"),
        }
    }

    /// Half of an 8-byte doorbell: the second half rings.
    fn write_half(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath, at: u64, word: u32) {
        if at.is_multiple_of(8) {
            self.0 = Some((at, word));
            return;
        }
        let Some((offset, high)) = self.0.take().filter(|(first, _)| first + 4 == at) else {
            let register = at % uar::PAGE_BYTES;
            let why = "second half of a doorbell without the first";
            ctx.refuse_data("uar register", register, why);
            return;
        };
        let value = u64::from(high) << 32 | u64::from(word);
        self.write(ctx, datapath, BarWrite { offset, len_bytes: 8, value });
    }
}

/// Pages at which every step looks because they were rung last.
const HOT_PAGES: usize = 8;
/// Other pages at which a step looks, in turn.
const PAGES_PER_STEP: usize = 8;
/// Queues of rung pages at whose records a step looks.
const QUEUES_PER_STEP: usize = 64;

/// Memory of which pages are rung, so that a step costs the same however many there are.
///
/// A step looks at the pages that were rung last, at a few of the others in turn, and of a page
/// that was rung at the queue that the doorbell names and at a few of the others in turn.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// The page rung last stands last.
    hot: ArrayVec<u32, HOT_PAGES>,
    /// Place in the list of live pages.
    next: usize,
    /// Rung pages, with queues that were not looked at since.
    open: VecDeque<Open>,
}

/// A page whose doorbell may have overwritten those of other queues.
#[derive(Debug)]
struct Open {
    page: u32,
    /// Send queues and queue pairs to look at: the first ones in the page's lists. From the end on,
    /// so that none is passed over when another goes and the last one takes its place.
    left: [usize; 2],
    /// The page was rung since: all of them once more.
    again: bool,
}

impl Watch {
    /// `all`: how many queues of each kind may have rung, too.
    fn was_rung(&mut self, page: u32, all: Option<[usize; 2]>) {
        self.hot.retain(|hot| *hot != page);
        if self.hot.is_full() {
            self.hot.remove(0);
        }
        self.hot.push(page);
        let Some(left) = all else { return };
        match self.open.iter_mut().find(|open| open.page == page) {
            Some(open) => open.again = true,
            None => self.open.push_back(Open { page, left, again: false }),
        }
    }
}

/// Looks for send doorbells that were stored to shared memory.
///
/// The bus maps send registers only: CQ and EQ doorbells always arrive as writes. Source: DESIGN,
/// "Doorbells in shared memory". Returns whether one was found.
pub(crate) fn poll(ctx: &mut Ctx<'_>, datapath: &mut DataPath, watch: &mut Watch) -> bool {
    let live = ctx.state.objects.live_uars.len();
    let mut found = false;
    watch.hot.retain(|page| ctx.state.objects.uars.contains(*page));
    for at in 0..watch.hot.len() {
        // A page that rings moves to the end; all are looked at all the same, now or next time.
        let page = watch.hot[at];
        found |= look(ctx, datapath, watch, page);
    }
    for _ in 0..live.min(PAGES_PER_STEP) {
        watch.next = if watch.next + 1 < live { watch.next + 1 } else { 0 };
        // A doorbell cannot free a page, so the list stays as it is.
        let page = ctx.state.objects.live_uars[watch.next];
        if !watch.hot.contains(&page) {
            found |= look(ctx, datapath, watch, page);
        }
    }
    found | look_at_queues(ctx, datapath, watch)
}

/// Looks at the registers of a page.
fn look(ctx: &mut Ctx<'_>, datapath: &mut DataPath, watch: &mut Watch, page: u32) -> bool {
    let mut found = false;
    let mut register = uar::SEND_DOORBELL;
    while register < uar::PAGE_BYTES {
        if let Some(value) = take(ctx, page, register) {
            found = true;
            let all = ring(ctx, datapath, page, value);
            watch.was_rung(page, all);
        }
        register += SEND_BUFFER_BYTES;
    }
    found
}

/// Looks at the records of queues whose doorbells may have been overwritten.
fn look_at_queues(ctx: &mut Ctx<'_>, datapath: &mut DataPath, watch: &mut Watch) -> bool {
    let mut steps = QUEUES_PER_STEP;
    while steps > 0
        && let Some(open) = watch.open.front_mut()
    {
        let Some(uar) = ctx.state.objects.uars.get(open.page) else {
            watch.open.pop_front();
            continue;
        };
        let [sqs, qps] = &mut open.left;
        if let Some(sqn) = last(&uar.sqns, sqs) {
            datapath.send_doorbell(ctx, sqn, None);
        } else if let Some(qpn) = last(&uar.qpns, qps) {
            datapath.qp_doorbell(ctx, qpn);
        } else if std::mem::take(&mut open.again) {
            open.left = [uar.sqns.len(), uar.qpns.len()];
        } else {
            watch.open.pop_front();
            continue;
        }
        steps -= 1;
    }
    !watch.open.is_empty()
}

/// The last of the first `left` queues, which is left no more.
fn last(queues: &[u32], left: &mut usize) -> Option<u32> {
    *left = (*left).min(queues.len()).checked_sub(1)?;
    queues.get(*left).copied()
}

/// Forgets every send doorbell that was rung.
pub(crate) fn lose_doorbells(side: &DeviceSide, state: &State) {
    for page in &state.objects.live_uars {
        let mut register = uar::SEND_DOORBELL;
        while register < uar::PAGE_BYTES {
            let _ = side.uar_take(*page, register);
            register += SEND_BUFFER_BYTES;
        }
    }
}

/// Takes a doorbell: its eight bytes as two big-endian dwords. The transport hands out the bytes as
/// they stand in memory.
fn take(ctx: &Ctx<'_>, page: u32, register: u64) -> Option<u64> {
    ctx.side.uar_take(page, register).map(u64::from_be)
}

fn eq_write(ctx: &mut Ctx<'_>, page: u32, register: u64, word: u32) {
    ctx.state.counters.eq_doorbells += 1;
    ctx.eq_doorbell(page, word >> 24, word & 0xff_ffff, register == uar::EQ_ARM);
}

fn arm(value: u64) -> CqArm {
    CqArm(value.to_be_bytes())
}

/// A CQ doorbell.
fn cq_write(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, value: u64) {
    ctx.state.counters.cq_doorbells += 1;
    let arm = arm(value);
    let cqn = arm.cqn();
    if ctx.state.objects.cqs.get(cqn).is_some_and(|cq| cq.uar_page == page) {
        datapath.cq_doorbell(ctx, cqn, Some(arm));
    } else {
        ctx.refuse_data("cqn", cqn.into(), "CQ doorbell on a UAR page not the CQ's");
    }
}

/// SQ number in a send doorbell: the second word of a control segment.
fn sqn_of(value: u64) -> u32 {
    u32::try_from(value >> 8 & 0xff_ffff).unwrap_or(0)
}

/// A send doorbell that names its SQ for certain.
fn send_write(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, value: u64) {
    ctx.state.counters.send_doorbells += 1;
    let sqn = sqn_of(value);
    let objects = &ctx.state.objects;
    if objects.sqs.get(sqn).is_some_and(|sq| sq.uar_page == page) {
        datapath.send_doorbell(ctx, sqn, Some(value));
    } else if objects.qps.get(sqn).is_some_and(|qp| qp.context.uar_page() == page) {
        datapath.qp_doorbell(ctx, sqn);
    } else {
        ctx.refuse_data("sqn", sqn.into(), "send doorbell on a UAR page not the SQ's");
    }
}

/// A send doorbell that may have overwritten others: the queue that it names has work. Returns how
/// many queues there are to look at, of each kind.
fn ring(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, value: u64) -> Option<[usize; 2]> {
    ctx.state.counters.send_doorbells += 1;
    let number = sqn_of(value);
    let uar = ctx.state.objects.uars.get(page)?;
    let queues = [uar.sqns.len(), uar.qpns.len()];
    let objects = &ctx.state.objects;
    if objects.sqs.get(number).is_some_and(|sq| sq.uar_page == page) {
        datapath.send_doorbell(ctx, number, Some(value));
    } else if objects.qps.get(number).is_some_and(|qp| qp.context.uar_page() == page) {
        datapath.qp_doorbell(ctx, number);
    } else {
        ctx.refuse_data("sqn", number.into(), "send doorbell on a UAR page not the SQ's");
        return Some(queues);
    }
    // If it is the only one, nobody's doorbell was overwritten.
    (queues.iter().sum::<usize>() > 1).then_some(queues)
}
