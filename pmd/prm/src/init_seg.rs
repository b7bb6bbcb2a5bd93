//! Initialization segment: the registers at the start of BAR0, and the registers of a UAR page.
//!
//! Source: reference 1.1 to 1.3; PRM "Initialization Segment", `mlx5_init_seg`.

use crate::layout;
use crate::layout::values;

layout! {
    /// Words 0x000 to 0x01f of BAR0.
    pub struct InitSegment [0x20] {
        0x00 [31:16] fw_rev_minor "Firmware minor revision.";
        0x00 [15:0] fw_rev_major "Firmware major revision.";
        0x04 [31:16] cmd_interface_rev "Command interface revision, must be [`CMD_INTERFACE_REV`].";
        0x04 [15:0] fw_rev_subminor "Firmware sub-minor revision.";
        0x10 [31:0] cmdq_phy_addr_63_32 "High half of the command queue address.";
        0x14 [31:12] cmdq_phy_addr_31_12
            "Low half of the command queue address, a multiple of 4096.";
        0x14 [10:8] nic_interface "Written: requested mode; read: state, see [`NicInterface`].";
        0x14 [7:4] log_cmdq_size "Log2 of the number of command queue entries.";
        0x14 [3:0] log_cmdq_stride "Log2 of the bytes from one entry to the next.";
        0x18 [31:0] command_doorbell_vector "Bit i set: entry i was posted.";
    }

    /// The word at [`offset::INITIALIZING`].
    pub struct Initializing [0x4] {
        0x00 [31] initializing "The firmware is not ready.";
        0x00 [30] fw_reset_supported "The driver may ask for a firmware reset.";
        0x00 [26:24] nic_interface_supported "Interface modes that the device supports (Snabb).";
        0x00 [23] embedded_cpu "This is an embedded CPU function.";
    }

    /// Health buffer, 64 bytes at [`offset::HEALTH_BUFFER`].
    pub struct HealthBuffer [0x40] {
        0x00 ([u8; 24]) assert_var "Six words that the firmware leaves when it fails an assertion.";
        0x20 [31:0] assert_exit_ptr "Exit pointer of the assertion.";
        0x24 [31:0] assert_callra "Return address of the caller of the assertion.";
        0x2c [31:0] time "Time at which the assertion failed.";
        0x30 [31:0] fw_ver "Firmware version; all ones means that the device is gone.";
        0x34 [31:0] hw_id "Hardware id of the device.";
        0x38 [31] rfr "The device needs a reset.";
        0x38 [27] severity_valid "`severity` means something.";
        0x38 [26:24] severity "Severity, like the levels of syslog.";
        0x3c [31:24] irisc_index "Number of the internal processor.";
        0x3c [23:16] synd "Health syndrome, see [`crate::syndrome::HealthSyndrome`].";
        0x3c [15:0] ext_synd "Further detail of `synd`.";
    }

    /// The word at [`offset::HEALTH_COUNTER`].
    pub struct HealthCounter [0x4] {
        0x00 [31:24] health_syndrome "Non-zero: the device failed (Snabb).";
        0x00 [23:0] health_counter "Keeps changing while the firmware lives.";
    }

    /// A time limit, as in the words 0x0ff8 and 0x0ffc and in the DTOR register.
    pub struct TimeOut [0x4] {
        0x00 [31:29] unit "Unit: 0 milliseconds, 1 seconds, 2 minutes, 3 hours.";
        0x00 [19:0] value "Number of units.";
    }

    /// CQ arm doorbell, 8 bytes at [`uar::CQ_ARM`]; the first word also goes to the CQ's doorbell
    /// record. Source: reference 6.9.
    pub struct CqArm [0x8] {
        0x00 [29:28] sn "Arm sequence number, one more after each event.";
        0x00 [24] solicited_only "Only solicited completions raise an event.";
        0x00 [23:0] ci "Consumer index: the event is raised for a CQE from here on.";
        0x04 [23:0] cqn "Number of the completion queue.";
    }

    /// EQ doorbell, one word at [`uar::EQ_ARM`] or [`uar::EQ_CI`].
    pub struct EqDoorbell [0x4] {
        0x00 [31:24] eqn "Number of the event queue.";
        0x00 [23:0] ci "Consumer index: EQEs before it may be overwritten.";
    }
}

layout! {
    /// Doorbell record of a work queue, 8 bytes of host memory. Source: reference 6.5; Linux
    /// `MLX5_RCV_DBR`, `MLX5_SND_DBR`.
    pub struct WqDoorbellRecord [0x8] {
        0x00 [15:0] recv_counter "Receive WQEs posted so far.";
        0x04 [15:0] send_counter "Send basic blocks posted so far.";
    }

    /// Doorbell record of a completion queue, 8 bytes of host memory. Source: reference 6.6; Linux
    /// `MLX5_CQ_SET_CI`, `MLX5_CQ_ARM_DB`.
    pub struct CqDoorbellRecord [0x8] {
        0x00 [23:0] set_ci "Consumer index: entries before it may be overwritten.";
        0x04 [31:0] arm "The first word of the last [`CqArm`].";
    }
}

/// The command interface revision that drivers accept. Source: reference 1.1.
pub const CMD_INTERFACE_REV: u32 = 5;

values! {
    /// Byte offsets in BAR0. Source: reference 1.1.
    pub mod offset: u64 {
        0x0000 FW_REV "Firmware revision.";
        0x0004 CMDIF_REV "Command interface revision and firmware sub-minor revision.";
        0x0010 CMDQ_ADDR_HI "High half of the command queue address; write it first.";
        0x0014 CMDQ_ADDR_LO
            "Low half of that address, interface mode, queue size; writing it commits.";
        0x0018 COMMAND_DOORBELL "Command doorbell vector.";
        0x01fc INITIALIZING "Whether the firmware is ready, [`super::Initializing`].";
        0x0200 HEALTH_BUFFER "Health of the firmware, [`super::HealthBuffer`].";
        0x0ff8 CMD_EXEC_TO "Command time limit, [`super::TimeOut`].";
        0x0ffc CMD_Q_INIT_TO
            "Initialization time limit, [`super::TimeOut`]; 0 means that there are none.";
        0x1000 INTERNAL_TIMER_H "High half of the free-running clock.";
        0x1004 INTERNAL_TIMER_L "Low half of the free-running clock.";
        0x1010 HEALTH_COUNTER "Sign of life, [`super::HealthCounter`].";
        0x1040 REAL_TIME_H "Seconds of the real-time clock.";
        0x1044 REAL_TIME_L "Nanoseconds of the real-time clock.";
        0x2010 END "First byte behind the segment.";
    }
}

values! {
    /// Registers inside one UAR page. Source: reference 1.3.
    pub mod uar: u64 {
        4096 PAGE_BYTES "Size of a page and distance from one to the next.";
        0x020 CQ_ARM "Arms a completion queue: [`super::CqArm`], 8 bytes.";
        0x040 EQ_ARM "New consumer index of an event queue, and arm: [`super::EqDoorbell`].";
        0x048 EQ_CI "New consumer index of an event queue: [`super::EqDoorbell`].";
        0x800 SEND_DOORBELL "First send doorbell (BlueFlame) register, buffer A.";
        4 SEND_DOORBELLS "Number of send doorbell registers in a page.";
    }
}

values! {
    /// Values of [`InitSegment::nic_interface`]. Source: reference 1.1 and 3.8.
    pub struct NicInterface(u32) {
        0 FULL "Normal operation.";
        1 DISABLED "Disabled; a new queue address enables it again.";
        2 NO_DRAM "No-DRAM NIC.";
        7 SW_RESET "Written: reset the whole device; read: the reset goes on.";
    }
}
