//! The initialization segment: its registers, and what the driver writes to them.
//!
//! Source: reference 1.1, 1.2, 3.8.

use ferrocx_bus::local::{BarWrite, DeviceSide};
use ferrocx_prm::init_seg::{
    CMD_INTERFACE_REV, Initializing, NicInterface, TimeOut, offset, uar::PAGE_BYTES,
};

use super::uar::HalfDoorbell;
use crate::cmd::queue::{CommandQueue, LOG_SIZE, LOG_STRIDE};
use crate::datapath::DataPath;
use crate::device::state::{Ctx, State};
use crate::queue::cq::timestamp;

/// Time limits of commands and of initialization, unit 1 = seconds.
const CMD_EXEC_SECONDS: u32 = 60;
const CMD_INIT_SECONDS: u32 = 2;

/// Nanoseconds from one health count to the next. Source: reference 1.2 (at least 1 Hz).
const HEALTH_PERIOD_NS: u64 = 10_000_000;

/// Registers that the device keeps up to date, and the command queue that they lead to.
#[derive(Debug, Default)]
pub(crate) struct Registers {
    pub(crate) commands: CommandQueue,
    /// The driver wrote a software reset into `nic_interface`.
    pub(crate) reset_asked: bool,
    /// `nic_interface` as read back.
    nic_interface: u32,
    /// High half of the command queue's address, as last written.
    address_hi: u32,
    health_count: u64,
    half_doorbell: HalfDoorbell,
    /// Commands are refused until then: the firmware boots.
    boots_until_ns: Option<u64>,
}

impl Registers {
    /// A reset: registers are as after power-on, once [`Registers::boot`] has published them.
    pub(crate) fn reset(&mut self) {
        let mut commands = std::mem::take(&mut self.commands);
        commands.reset();
        *self = Self { commands, ..Self::default() };
    }

    /// Publishes every register as after a reset; the firmware may take until `until_ns`.
    pub(crate) fn boot(&mut self, side: &DeviceSide, state: &State, until_ns: Option<u64>) {
        self.boots_until_ns = until_ns;
        let (major, minor, sub_minor) = state.config.identity.firmware();
        side.set_be32(offset::FW_REV, u32::from(minor) << 16 | u32::from(major));
        side.set_be32(offset::CMDIF_REV, CMD_INTERFACE_REV << 16 | u32::from(sub_minor));
        side.set_be32(offset::CMDQ_ADDR_HI, 0);
        self.publish_queue_word(side);
        self.publish_initializing(side);
        let seconds = |value| {
            let limit = TimeOut::zeroed().with_unit(1).with_value(value);
            u32::from_be_bytes(limit.0)
        };
        side.set_be32(offset::CMD_EXEC_TO, seconds(CMD_EXEC_SECONDS));
        side.set_be32(offset::CMD_Q_INIT_TO, seconds(CMD_INIT_SECONDS));
        state.publish_health(side);
    }

    /// After a software reset the interface is disabled until a queue address is written.
    pub(crate) fn disable(&mut self, side: &DeviceSide) {
        self.nic_interface = NicInterface::DISABLED.0;
        self.publish_queue_word(side);
    }

    /// Address, interface state, size and stride. Source: reference 1.1, 0x14.
    fn publish_queue_word(&self, side: &DeviceSide) {
        let address = self.commands.address.unwrap_or(0);
        let low = u32::try_from(address & 0xffff_f000).unwrap_or(0);
        let word = low | self.nic_interface << 8 | LOG_SIZE << 4 | LOG_STRIDE;
        side.set_be32(offset::CMDQ_ADDR_LO, word);
    }

    fn publish_initializing(&self, side: &DeviceSide) {
        let word = Initializing::zeroed().with_initializing(self.boots_until_ns.is_some());
        side.set_be32(offset::INITIALIZING, u32::from_be_bytes(word.0));
    }

    /// Clock, health counter, end of booting: once per step.
    pub(crate) fn tick(&mut self, side: &DeviceSide, now_ns: u64) {
        if self.boots_until_ns.is_some_and(|until| until <= now_ns) {
            self.boots_until_ns = None;
            self.publish_initializing(side);
        }
        // The counter that completions carry, too. Source: reference 1.1.
        let ticks = timestamp(now_ns);
        let high = u32::try_from(ticks >> 32).unwrap_or(u32::MAX);
        let low = u32::try_from(ticks & 0xffff_ffff).unwrap_or(0);
        side.set_be32(offset::INTERNAL_TIMER_H, high);
        side.set_be32(offset::INTERNAL_TIMER_L, low);
        let count = now_ns / HEALTH_PERIOD_NS;
        if count != self.health_count {
            self.health_count = count;
            // 24 bits; never 0, which a driver that waits for life does not take for any.
            let counter = u32::try_from(count & 0xff_ffff).unwrap_or(0).max(1);
            side.set_be32(offset::HEALTH_COUNTER, counter);
        }
    }

    /// One register write of the driver.
    pub(crate) fn write(&mut self, ctx: &mut Ctx<'_>, datapath: &mut DataPath, write: BarWrite) {
        ctx.state.counters.bar_writes += 1;
        if write.offset >= offset::END && write.offset / PAGE_BYTES >= 3 {
            self.half_doorbell.write(ctx, datapath, write);
            return;
        }
        let value = u32::try_from(write.value).ok().filter(|_| write.len_bytes == 4);
        match (write.offset, value) {
            (offset::CMDQ_ADDR_HI, Some(value)) => {
                self.address_hi = value;
                ctx.side.set_be32(offset::CMDQ_ADDR_HI, value);
            }
            (offset::CMDQ_ADDR_LO, Some(value)) => self.write_queue_word(ctx, value),
            (offset::COMMAND_DOORBELL, Some(value)) => {
                if self.boots_until_ns.is_some() {
                    ctx.refuse_data("command_doorbell_vector", value.into(), "initializing is set");
                } else if self.nic_interface != NicInterface::FULL.0 {
                    let why = "command on a disabled interface";
                    ctx.refuse_data("nic_interface", value.into(), why);
                } else {
                    self.commands.doorbell(ctx, datapath, value);
                }
            }
            // clear_int and clr_intx: there is no INTx to clear. Source: reference 1.1.
            (0x100c | 0x200c, Some(_)) => {}
            _ => ctx.refuse_data("register offset", write.offset, "not a register to write"),
        }
    }

    /// The low half of the queue address commits it. Source: reference 1.1, order rule 3.
    fn write_queue_word(&mut self, ctx: &mut Ctx<'_>, value: u32) {
        let interface = NicInterface(value >> 8 & 7);
        match interface {
            NicInterface::FULL => {
                let high = u64::from(self.address_hi) << 32;
                self.commands.address = Some(high | u64::from(value & 0xffff_f000));
            }
            NicInterface::DISABLED => {}
            NicInterface::SW_RESET => self.reset_asked = true,
            _ => {
                let interface = interface.0.into();
                ctx.refuse_data("nic_interface", interface, "no such interface mode");
                return;
            }
        }
        self.nic_interface = interface.0;
        self.publish_queue_word(ctx.side);
    }
}
