//! UAR pages: doorbells of queues, written or found in shared memory.
//!
//! Source: reference 1.3.

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

/// Looks at every live UAR page for send doorbells that were stored to shared memory.
///
/// The bus maps send registers only: CQ and EQ doorbells always arrive as writes. Source: DESIGN,
/// "Doorbells in shared memory". Returns whether one was found.
pub(crate) fn poll(ctx: &mut Ctx<'_>, datapath: &mut DataPath) -> bool {
    let mut found = false;
    for index in 0..ctx.state.objects.live_uars.len() {
        // A doorbell cannot free a page, so the list stays as it is.
        let page = ctx.state.objects.live_uars[index];
        let mut register = uar::SEND_DOORBELL;
        while register < uar::PAGE_BYTES {
            if let Some(value) = take(ctx, page, register) {
                found = true;
                send_all(ctx, datapath, page, value);
            }
            register += SEND_BUFFER_BYTES;
        }
    }
    found
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

/// A send doorbell that may have overwritten others: looks at every SQ of the page.
fn send_all(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, value: u64) {
    ctx.state.counters.send_doorbells += 1;
    let rung = sqn_of(value);
    let mut known = false;
    let mut index = 0;
    while let Some(&sqn) = uar_sqn(ctx, page, index) {
        known |= sqn == rung;
        datapath.send_doorbell(ctx, sqn, (sqn == rung).then_some(value));
        index += 1;
    }
    index = 0;
    while let Some(&qpn) = uar_qpn(ctx, page, index) {
        known |= qpn == rung;
        datapath.qp_doorbell(ctx, qpn);
        index += 1;
    }
    if !known {
        ctx.refuse_data("sqn", rung.into(), "send doorbell on a UAR page not the SQ's");
    }
}

fn uar_sqn<'a>(ctx: &'a Ctx<'_>, page: u32, index: usize) -> Option<&'a u32> {
    ctx.state.objects.uars.get(page)?.sqns.get(index)
}

fn uar_qpn<'a>(ctx: &'a Ctx<'_>, page: u32, index: usize) -> Option<&'a u32> {
    ctx.state.objects.uars.get(page)?.qpns.get(index)
}
