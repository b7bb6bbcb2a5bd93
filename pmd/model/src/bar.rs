//! Registers: the initialization segment and the UAR pages.
//!
//! Source: reference 1.1 to 1.3, 3.8.

use ferrocx_bus::local::{BarWrite, DeviceSide};
use ferrocx_prm::Layout;
use ferrocx_prm::init_seg::{
    CMD_INTERFACE_REV, CqArm, HealthBuffer, Initializing, NicInterface, TimeOut, offset, uar,
};

use crate::cmd;
use crate::datapath::DataPath;
use crate::nic::{Ctx, State};

/// Bytes of a send doorbell buffer: two to a register of 512 bytes. Source: reference 1.3.
const SEND_BUFFER_BYTES: u64 = 256;

/// Time limits of commands and of initialization, unit 1 = seconds.
const CMD_EXEC_SECONDS: u32 = 60;
const CMD_INIT_SECONDS: u32 = 2;

/// Nanoseconds from one health count to the next. Source: reference 1.2 (at least 1 Hz).
const HEALTH_PERIOD_NS: u64 = 10_000_000;

/// Registers that the device keeps up to date.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    /// `nic_interface` as read back.
    pub(crate) nic_interface: u32,
    health_count: u64,
    /// First halves of doorbells that arrive as two 4-byte writes.
    split: Option<(u64, u32)>,
    /// Commands are refused until then: the firmware boots.
    pub(crate) boots_until_ns: Option<u64>,
}

/// Publishes every register as after a reset.
pub(crate) fn publish(side: &DeviceSide, state: &State) {
    let (major, minor, sub_minor) = state.config.identity.firmware();
    side.set_be32(offset::FW_REV, u32::from(minor) << 16 | u32::from(major));
    side.set_be32(offset::CMDIF_REV, CMD_INTERFACE_REV << 16 | u32::from(sub_minor));
    side.set_be32(offset::CMDQ_ADDR_HI, 0);
    publish_queue_word(side, state);
    publish_initializing(side, state);
    let seconds = |value| {
        let limit = TimeOut::zeroed().with_unit(1).with_value(value);
        u32::from_be_bytes(limit.0)
    };
    side.set_be32(offset::CMD_EXEC_TO, seconds(CMD_EXEC_SECONDS));
    side.set_be32(offset::CMD_Q_INIT_TO, seconds(CMD_INIT_SECONDS));
    publish_health(side, state);
}

/// Address, interface state, size and stride. Source: reference 1.1, 0x14.
pub(crate) fn publish_queue_word(side: &DeviceSide, state: &State) {
    let address = state.commands.address.unwrap_or(0);
    let low = u32::try_from(address & 0xffff_f000).unwrap_or(0);
    let word = low | state.registers.nic_interface << 8 | cmd::LOG_SIZE << 4 | cmd::LOG_STRIDE;
    side.set_be32(offset::CMDQ_ADDR_LO, word);
}

pub(crate) fn publish_initializing(side: &DeviceSide, state: &State) {
    let boots = state.registers.boots_until_ns.is_some();
    let word = Initializing::zeroed().with_initializing(boots);
    side.set_be32(offset::INITIALIZING, u32::from_be_bytes(word.0));
}

/// The health buffer. Source: reference 1.2.
pub(crate) fn publish_health(side: &DeviceSide, state: &State) {
    let (major, minor, _) = state.config.identity.firmware();
    let buffer = HealthBuffer::zeroed()
        .with_fw_ver(u32::from(major) << 16 | u32::from(minor))
        .with_hw_id(u32::from(state.config.identity.device_id()))
        .with_synd(state.syndrome.0.into());
    let words = buffer.as_bytes().chunks_exact(4);
    for (at, word) in (offset::HEALTH_BUFFER..).step_by(4).zip(words) {
        side.set_be32(at, u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    }
}

/// Clock, health counter, end of booting: once per step.
pub(crate) fn tick(ctx: &mut Ctx<'_>) {
    let now = ctx.now_ns;
    if ctx.state.registers.boots_until_ns.is_some_and(|until| until <= now) {
        ctx.state.registers.boots_until_ns = None;
        publish_initializing(ctx.side, ctx.state);
    }
    let high = u32::try_from(now >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(now & 0xffff_ffff).unwrap_or(0);
    ctx.side.set_be32(offset::INTERNAL_TIMER_H, high);
    ctx.side.set_be32(offset::INTERNAL_TIMER_L, low);
    let count = now / HEALTH_PERIOD_NS;
    if count != ctx.state.registers.health_count {
        ctx.state.registers.health_count = count;
        // 24 bits of counter; never 0, which a driver that waits for life does not take for any.
        let counter = u32::try_from(count & 0xff_ffff).unwrap_or(0).max(1);
        ctx.side.set_be32(offset::HEALTH_COUNTER, counter);
    }
}

/// One register write of the driver.
pub(crate) fn write(ctx: &mut Ctx<'_>, datapath: &mut DataPath, write: BarWrite) {
    ctx.state.counters.bar_writes += 1;
    let page = write.offset / uar::PAGE_BYTES;
    if write.offset >= offset::END && page >= 3 {
        write_uar(ctx, datapath, u32::try_from(page).unwrap_or(u32::MAX), write);
        return;
    }
    let value = u32::try_from(write.value).ok().filter(|_| write.len_bytes == 4);
    match (write.offset, value) {
        (offset::CMDQ_ADDR_HI, Some(value)) => {
            ctx.state.commands.address_hi = value;
            ctx.side.set_be32(offset::CMDQ_ADDR_HI, value);
        }
        (offset::CMDQ_ADDR_LO, Some(value)) => write_queue_word(ctx, value),
        (offset::COMMAND_DOORBELL, Some(value)) => {
            if ctx.state.registers.boots_until_ns.is_some() {
                ctx.refuse_data("command_doorbell_vector", value.into(), "initializing is set");
            } else if ctx.state.registers.nic_interface != NicInterface::FULL.0 {
                ctx.refuse_data("nic_interface", value.into(), "command on a disabled interface");
            } else {
                cmd::doorbell(ctx, datapath, value);
            }
        }
        // clear_int and clr_intx: there is no INTx to clear. Source: reference 1.1.
        (0x100c | 0x200c, Some(_)) => {}
        _ => ctx.refuse_data("register offset", write.offset, "not a register to write"),
    }
}

/// The low half of the queue address commits it. Source: reference 1.1, order rule 3.
fn write_queue_word(ctx: &mut Ctx<'_>, value: u32) {
    let interface = NicInterface(value >> 8 & 7);
    match interface {
        NicInterface::FULL => {
            let high = u64::from(ctx.state.commands.address_hi) << 32;
            let address = high | u64::from(value & 0xffff_f000);
            ctx.state.commands.address = Some(address);
        }
        NicInterface::DISABLED => {}
        NicInterface::SW_RESET => ctx.state.reset_asked = true,
        _ => {
            let interface = interface.0.into();
            ctx.refuse_data("nic_interface", interface, "no such interface mode");
            return;
        }
    }
    ctx.state.registers.nic_interface = interface.0;
    publish_queue_word(ctx.side, ctx.state);
}

/// A write to a UAR page that left an event behind: a trapped access, or a 4-byte register.
fn write_uar(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, write: BarWrite) {
    if !ctx.state.objects.uars.contains(page) {
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
        (_, 4) => split_write(ctx, datapath, page, register, word),
        _ => ctx.refuse_data("uar register", register, "not a register of a UAR page"),
    }
}

/// Half of an 8-byte doorbell: the second half rings.
fn split_write(ctx: &mut Ctx<'_>, datapath: &mut DataPath, page: u32, register: u64, word: u32) {
    let at = u64::from(page) * uar::PAGE_BYTES + register;
    if register.is_multiple_of(8) {
        ctx.state.registers.split = Some((at, word));
        return;
    }
    let Some((_, high)) = ctx.state.registers.split.take().filter(|(first, _)| first + 4 == at)
    else {
        ctx.refuse_data("uar register", register, "second half of a doorbell without the first");
        return;
    };
    let value = u64::from(high) << 32 | u64::from(word);
    let offset = at - 4;
    write_uar(ctx, datapath, page, BarWrite { offset, len_bytes: 8, value });
}

/// Looks at every live UAR page for send doorbells that were stored to shared memory.
///
/// The bus maps send registers only: CQ and EQ doorbells always arrive as writes. Source: DESIGN,
/// "Doorbells in shared memory". Returns whether one was found.
pub(crate) fn poll_uars(ctx: &mut Ctx<'_>, datapath: &mut DataPath) -> bool {
    let mut found = false;
    for index in 0..ctx.state.live_uars.len() {
        // A doorbell cannot free a page, so the list stays as it is.
        let page = ctx.state.live_uars[index];
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
    for page in &state.live_uars {
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
