//! From reset to an initialised device, and back.
//!
//! | stage | what exists in it | how it is left |
//! |---|---|---|
//! | `Closed` | the command queue at most | nothing to do: it is read only when a doorbell rings |
//! | `Enabled` | ENABLE_HCA done, boot pages given | pages taken back, DISABLE_HCA |
//! | `Initialised` | INIT_HCA done, init pages given | TEARDOWN_HCA, then as above |
//!
//! Teardown starts at whatever stage was reached. If a step of it fails, the device is reset: after
//! a reset it owns no memory. Only if that fails too, its memory is leaked. A device that does not
//! answer at all is left alone, for the IOMMU keeps it from memory.
//!
//! Source: reference 3.6 (minimal sequence of a user-space driver), 3.7, 3.8.

use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::{Bar, Transport};
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{
    AtomicCap, CAP_PAGE_BYTES, EthCap, FlowTableProps, HcaCap, PORT_TYPE_ETHERNET, RoceCap,
    cap_op_mod, cap_type, nic_flow_table,
};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::device::{
    DisableHca, EnableHca, InitHca, QueryHcaCap, QueryIssi, QueryPages, SetHcaCap, SetIssi,
    TeardownHca, query_pages, supported_issi,
};
use ferrocx_prm::cmd::port::access_reg;
use ferrocx_prm::init_seg::{CMD_INTERFACE_REV, InitSegment, Initializing, TimeOut, offset};
use ferrocx_prm::reg::{HostEndianness, RegisterId};

use crate::cmd::{CommandChannel, CommandError, DeadDevice};
use crate::config::Checked;
use crate::control::Control;
use crate::error::{ConfigError, DeviceError};
use crate::link;

/// How long TEARDOWN_HCA may take without a page coming back. Source: reference 2.4.
const RECLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// How long initialising may stay set behind the write of the queue address, at least, and what is
/// believed of a device that asks for more. Source: reference 1.1; Linux waits 2 s, or what the
/// device says, and 120 s at most before that write.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(2);
const LONGEST_QUEUE_TIMEOUT: Duration = Duration::from_secs(120);
/// Largest command queue that the slots' bit vector can announce. Source: reference 1.1.
const MAX_LOG_SLOTS: u8 = 5;
/// log2 of the 4 KiB that queue size times stride must not exceed. Source: reference 1.1.
const LOG_QUEUE_BYTES: u8 = 12;
/// `atomic_req_8b_endianness_mode`: the host's order. Source: reference 6.12.
const HOST_ORDER: u32 = 1;

/// How far bring-up came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    Closed,
    Enabled,
    Initialised,
}

/// What the device can do.
#[derive(Debug, Clone)]
pub(crate) struct Caps {
    pub(crate) hca: HcaCap,
    pub(crate) eth: EthCap,
    pub(crate) nic_receive: FlowTableProps,
}

/// Firmware revision as `major.minor.sub`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirmwareVersion {
    /// Tells the family: 14 is ConnectX-4 Lx.
    pub major: u16,
    /// Minor revision.
    pub minor: u16,
    /// Sub-minor revision.
    pub sub: u16,
}

impl std::fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{:04}", self.major, self.minor, self.sub)
    }
}

/// Names a failed step.
trait During<T> {
    fn during(self, step: &'static str) -> Result<T, DeviceError>;
}

impl<T> During<T> for Result<T, CommandError> {
    fn during(self, step: &'static str) -> Result<T, DeviceError> {
        self.map_err(|source| DeviceError::Step { step, source })
    }
}

/// Waits until `done`, polling; `false` if `limit` ran out first.
fn wait(transport: &dyn Transport, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = transport.now();
    while !done() {
        if transport.now() - start >= limit {
            return done();
        }
        transport.relax();
    }
    true
}

/// Resets the function and waits until the transport says that it is over.
pub(crate) fn reset_function(
    transport: &dyn Transport,
    limit: Duration,
) -> Result<(), DeviceError> {
    transport.reset()?;
    if wait(transport, limit, || transport.reset_complete()) {
        return Ok(());
    }
    Err(DeviceError::Timeout {
        what: "the function-level reset",
        limit,
        way_out: "the device or its slot hangs; power-cycle the slot",
    })
}

/// Waits until the firmware is ready.
fn wait_initialised(control: &Control, limit: Duration) -> Result<(), DeviceError> {
    let (transport, bar) = (control.transport.as_ref(), &control.bar);
    let ready = || {
        let word = bar.read_be32(offset::INITIALIZING);
        word != u32::MAX && !Initializing(word.to_be_bytes()).initializing()
    };
    if wait(transport, limit, ready) {
        return Ok(());
    }
    if bar.read_be32(offset::INITIALIZING) == u32::MAX {
        return Err(DeadDevice::AllOnes.into());
    }
    Err(DeviceError::Timeout {
        what: "the firmware's start",
        limit,
        way_out: "reset the device, or raise DeviceConfig::reset_timeout",
    })
}

/// How long a device that announces this limit may take behind the write of the queue address.
fn queue_timeout(announced: TimeOut) -> Duration {
    let unit_ms = match announced.unit() {
        0 => 1,
        1 => 1000,
        2 => 60_000,
        3 => 3_600_000,
        _ => 0,
    };
    let limit = Duration::from_millis(u64::from(announced.value()) * unit_ms);
    limit.clamp(QUEUE_TIMEOUT, LONGEST_QUEUE_TIMEOUT)
}

/// Takes the device from reset to initialised. `stage` says how far it came, also if that fails.
pub(crate) fn bring_up(
    control: &mut Control,
    checked: &Checked,
    is_vf: bool,
    stage: &mut Stage,
) -> Result<(FirmwareVersion, Caps), DeviceError> {
    let firmware = start_queue(control, checked)?;
    control.call(&EnableHca::input()).during("enabling the device")?;
    // An answer came, so the device has the queue's address.
    control.channel_mut().remember_queue();
    *stage = Stage::Enabled;
    negotiate(control)?;
    supply(control, query_pages::BOOT, "giving the boot pages")?;
    if !is_vf {
        let order = if cfg!(target_endian = "big") { 0x80 } else { 0 };
        let register = HostEndianness::zeroed().with_he(order);
        link::access(control, RegisterId::HOST_ENDIANNESS, access_reg::WRITE, register)
            .during("telling the byte order")?;
    }
    set_caps(control)?;
    supply(control, query_pages::INIT, "giving the init pages")?;
    control.call(&InitHca::input()).during("initialising")?;
    // Some firmware shows other words from here on.
    control.channel_mut().remember_queue();
    *stage = Stage::Initialised;
    Ok((firmware, read_caps(control)?))
}

/// Reset, command queue.
fn start_queue(control: &mut Control, checked: &Checked) -> Result<FirmwareVersion, DeviceError> {
    let transport = Arc::clone(&control.transport);
    let bar = Arc::clone(&control.bar);
    if checked.config.reset_first {
        reset_function(transport.as_ref(), checked.config.reset_timeout)?;
    }
    wait_initialised(control, checked.config.reset_timeout)?;
    if Initializing(bar.read_be32(offset::INITIALIZING).to_be_bytes()).embedded_cpu() {
        // Its commands would be those of the e-switch manager for the host's functions.
        let what = "bit 23 of register 0x1fc is 1, so this is the function of a BlueField's own \
                    processor, which this driver does not manage; use a function of the host, or a \
                    virtual one";
        return Err(ConfigError::Conflict { what }.into());
    }
    let words = read_init_segment(bar.as_ref());
    if words.cmd_interface_rev() != CMD_INTERFACE_REV {
        return Err(DeviceError::CommandInterface {
            name: transport.identity().name.clone(),
            revision: words.cmd_interface_rev(),
        });
    }
    let log_size = words.log_cmdq_size() as u8;
    let log_stride = words.log_cmdq_stride() as u8;
    // Two slots at least: one for commands, one for pages. 64 bytes at least for an entry.
    let fits = (1..=MAX_LOG_SLOTS).contains(&log_size)
        && log_stride >= 6
        && log_size + log_stride <= LOG_QUEUE_BYTES;
    if !fits {
        return Err(DeviceError::CommandQueue { log_size, log_stride });
    }
    let channel = CommandChannel::new(
        Arc::clone(&transport),
        Arc::clone(&bar),
        &control.memory,
        log_size,
        log_stride,
        checked.config.command_timeout,
    )?;
    let iova = channel.queue_iova();
    control.channel = Some(channel);
    bar.write_be32(offset::CMDQ_ADDR_HI, (iova >> 32) as u32);
    bar.write_be32(offset::CMDQ_ADDR_LO, iova as u32);
    let announced = TimeOut(bar.read_be32(offset::CMD_Q_INIT_TO).to_be_bytes());
    wait_initialised(control, queue_timeout(announced))?;
    Ok(FirmwareVersion {
        major: words.fw_rev_major() as u16,
        minor: words.fw_rev_minor() as u16,
        sub: words.fw_rev_subminor() as u16,
    })
}

/// Reads the words of the init segment that can be read.
fn read_init_segment(bar: &dyn Bar) -> InitSegment {
    let mut words = InitSegment::zeroed();
    for field in [
        InitSegment::FW_REV_MAJOR,
        InitSegment::CMD_INTERFACE_REV,
        InitSegment::CMDQ_PHY_ADDR_63_32,
        InitSegment::LOG_CMDQ_SIZE,
    ] {
        field.write_word(&mut words.0, bar.read_be32(field.offset as u64));
    }
    words
}

/// ISSI 1 if the device has it: every object of this driver is described in its terms.
fn negotiate(control: &mut Control) -> Result<(), DeviceError> {
    let issi = control.call(&QueryIssi::input()).during("asking for the interface's version")?;
    if issi.supported_issi_dw0() & supported_issi::ISSI_1 == 0 {
        return Err(unsupported("interface version 1 (ISSI)", "update its firmware"));
    }
    let input = SetIssi::input().with_current_issi(1);
    control.call(&input).during("choosing the interface's version").map(|_| ())
}

/// Gives the pages that the firmware asks for at a stage.
fn supply(control: &mut Control, op_mod: u32, step: &'static str) -> Result<(), DeviceError> {
    let output = control.call(&QueryPages::input().with_op_mod(op_mod)).during(step)?;
    // Negative numbers mean pages to take back; at these stages it has none to spare.
    let count = (output.num_pages() as i32).max(0) as usize;
    tracing::debug!(step, count, "firmware pages");
    control.give_pages(output.function_id() as u16, count).during(step)
}

/// Reads one capability page as it is now.
pub(crate) fn query_caps(
    control: &mut Control,
    page: u32,
) -> Result<[u8; CAP_PAGE_BYTES], DeviceError> {
    let input = QueryHcaCap::input().with_op_mod(cap_op_mod(page, true));
    Ok(control.call(&input).during("reading capabilities")?.capability())
}

/// Reads the layout at byte `at` of a capability page.
fn read_cap<L: Layout>(control: &mut Control, page: u32, at: usize) -> Result<L, DeviceError> {
    Ok(L::load(&query_caps(control, page)?[at..at + L::SIZE_BYTES]))
}

/// Reads the layout at the start of a capability page as it could be.
fn read_max_cap<L: Layout>(control: &mut Control, page: u32) -> Result<L, DeviceError> {
    let input = QueryHcaCap::input().with_op_mod(cap_op_mod(page, false));
    let most = control.call(&input).during("reading capabilities")?.capability();
    Ok(L::load(&most[..L::SIZE_BYTES]))
}

/// Changes the layout at the start of a capability page.
fn set_cap<L: Layout>(
    control: &mut Control,
    page: u32,
    change: impl FnOnce(L) -> L,
) -> Result<(), DeviceError> {
    let mut bytes = query_caps(control, page)?;
    change(L::load(&bytes[..L::SIZE_BYTES])).write_to(&mut bytes);
    let input = SetHcaCap::input().with_op_mod(cap_op_mod(page, false)).with_capability(bytes);
    control.call(&input).during("setting capabilities").map(|_| ())
}

/// Chooses capabilities: checksums of commands off, 4 KiB UAR pages. Where the device lets the
/// driver choose: RoCE's UDP source ports by the driver, which spread flows over the paths of a
/// network (Linux 6.12 `handle_hca_cap_roce`), and atomics of queue pairs in the host's byte order,
/// so that they work on the same integers as the processor's own. Source: reference 6.12.
fn set_caps(control: &mut Control) -> Result<(), DeviceError> {
    let hca: HcaCap = read_cap(control, cap_type::GENERAL, 0)?;
    if hca.port_type() != PORT_TYPE_ETHERNET {
        let way_out = "set its link type to Ethernet (mlxconfig set LINK_TYPE_P1=2) and reset it";
        return Err(unsupported("Ethernet port", way_out));
    }
    set_cap(control, cap_type::GENERAL, |current: HcaCap| {
        current.with_cmdif_checksum(0).with_log_uar_page_sz(0)
    })?;
    if hca.roce() {
        let most: RoceCap = read_max_cap(control, cap_type::ROCE)?;
        if most.sw_r_roce_src_udp_port() {
            set_cap(control, cap_type::ROCE, |now: RoceCap| now.with_sw_r_roce_src_udp_port(true))?;
        }
    }
    if !hca.atomic() || cfg!(target_endian = "big") {
        return Ok(());
    }
    let atomic: AtomicCap = read_cap(control, cap_type::ATOMIC, 0)?;
    if !atomic.supported_atomic_req_8b_endianness_mode_1() {
        return Ok(());
    }
    set_cap(control, cap_type::ATOMIC, |current: AtomicCap| {
        current.with_atomic_req_8b_endianness_mode(HOST_ORDER)
    })
}

/// Reads what the initialised device can do.
fn read_caps(control: &mut Control) -> Result<Caps, DeviceError> {
    let hca: HcaCap = read_cap(control, cap_type::GENERAL, 0)?;
    let way_out = "use another device";
    if !hca.eth_net_offloads() || !hca.nic_flow_table() {
        return Err(unsupported("Ethernet queues or receive flow tables", way_out));
    }
    let eth = read_cap(control, cap_type::ETHERNET_OFFLOADS, 0)?;
    let nic_receive: FlowTableProps =
        read_cap(control, cap_type::NIC_FLOW_TABLE, nic_flow_table::NIC_RECEIVE)?;
    if !nic_receive.ft_support() {
        return Err(unsupported("receive flow tables", way_out));
    }
    Ok(Caps { hca, eth, nic_receive })
}

fn unsupported(what: &'static str, way_out: &'static str) -> DeviceError {
    ConfigError::Unsupported { what, way_out }.into()
}

/// Undoes what was done up to `stage`, in reverse. Objects must be gone.
///
/// # Errors
/// The first failure, although the device was reset afterwards and holds nothing. If the reset
/// failed as well, memory was leaked.
pub(crate) fn teardown(
    control: &mut Control,
    stage: Stage,
    reset_timeout: Duration,
) -> Result<(), DeviceError> {
    let was_reset = control.dead == Some(DeadDevice::WasReset);
    let result = leave(control, stage);
    if control.is_gone() {
        // No reset: one that does not answer would be waited for in vain, a minute and longer.
        control.release_memory();
        return if was_reset { Ok(()) } else { result };
    }
    let has_stuck = control.channel.as_ref().is_some_and(CommandChannel::has_stuck);
    if result.is_ok() && !has_stuck && !control.keeps_memory() {
        return Ok(());
    }
    if let Err(error) = &result {
        tracing::warn!(%error, ?stage, "teardown failed, resetting the device");
    }
    let transport = Arc::clone(&control.transport);
    match reset_function(transport.as_ref(), reset_timeout) {
        Ok(()) => control.release_memory(),
        Err(error) => {
            tracing::error!(%error, "the device could not be reset");
            control.leak_memory();
            return Err(result.err().unwrap_or(error));
        }
    }
    result
}

/// The commands of teardown.
fn leave(control: &mut Control, stage: Stage) -> Result<(), DeviceError> {
    if let Some(cause) = control.dead {
        return Err(cause.into());
    }
    if stage >= Stage::Initialised {
        control.call(&TeardownHca::input()).during("tearing down")?;
    }
    if stage >= Stage::Enabled {
        let kept = control.reclaim_pages(RECLAIM_PATIENCE).during("taking pages back")?;
        if kept > 0 {
            tracing::error!(kept, "the firmware does not give its pages back");
            return Err(DeviceError::Timeout {
                what: "taking the firmware's pages back",
                limit: RECLAIM_PATIENCE,
                way_out: "the device is reset instead",
            });
        }
        control.call(&DisableHca::input()).during("disabling the device")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_the_time_that_it_announces() {
        let limit = |word: u32| queue_timeout(TimeOut(word.to_be_bytes()));
        let seconds = Duration::from_secs;
        // Not announced; less than Linux gives every device; all ones, which is no device.
        for word in [0, 1999, 1 << 29 | 1, u32::MAX] {
            assert_eq!(limit(word), seconds(2), "{word:#x}");
        }
        assert_eq!(limit(2001), Duration::from_millis(2001));
        assert_eq!((limit(1 << 29 | 90), limit(2 << 29 | 1)), (seconds(90), seconds(60)));
        assert_eq!((limit(2 << 29 | 3), limit(3 << 29 | 0xf_ffff)), (seconds(120), seconds(120)));
    }
}
