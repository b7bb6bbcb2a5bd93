//! How a command can fail, and which object it was about.

use std::fmt;
use std::time::Duration;

use ferrocx_bus::BusError;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::syndrome::{CommandStatus, DeliveryStatus};
use thiserror::Error;

/// The object that a command named, for messages: `cqn 0x000012`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// What kind of number it is, in the manual's word.
    pub what: &'static str,
    /// The number, from the command's input.
    pub number: u32,
}

impl Object {
    /// The object that an input is about, where the command has one.
    ///
    /// Commands that create something name the object they build on: a PD or a CQ.
    ///
    /// # Source
    /// Input layouts of reference 4.2.
    #[must_use]
    pub fn of(opcode: Opcode, input: &[u8]) -> Option<Self> {
        let (what, offset) = place(opcode)?;
        let word = input.get(offset..offset + 4)?;
        let number = u32::from_be_bytes([word[0], word[1], word[2], word[3]]) & 0x00ff_ffff;
        Some(Self { what, number })
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#08x}", self.what, self.number)
    }
}

/// Name and byte offset of the object number in a command's input.
fn place(opcode: Opcode) -> Option<(&'static str, usize)> {
    Some(match opcode {
        Opcode::DESTROY_MKEY | Opcode::QUERY_MKEY => ("mkey index", 0x08),
        Opcode::CREATE_MKEY => ("pd", 0x1c),
        Opcode::DEALLOC_PD => ("pd", 0x08),
        Opcode::DEALLOC_UAR => ("uar", 0x08),
        Opcode::DEALLOC_TRANSPORT_DOMAIN => ("transport domain", 0x08),
        Opcode::DESTROY_EQ | Opcode::QUERY_EQ => ("eqn", 0x08),
        Opcode::CREATE_EQ => ("uar", 0x1c),
        Opcode::DESTROY_CQ | Opcode::QUERY_CQ | Opcode::MODIFY_CQ => ("cqn", 0x08),
        Opcode::CREATE_CQ => ("eqn", 0x24),
        Opcode::CREATE_SQ | Opcode::CREATE_RQ => ("cqn", 0x28),
        Opcode::DESTROY_SQ | Opcode::MODIFY_SQ | Opcode::QUERY_SQ => ("sqn", 0x08),
        Opcode::DESTROY_RQ | Opcode::MODIFY_RQ | Opcode::QUERY_RQ => ("rqn", 0x08),
        Opcode::DESTROY_RQT | Opcode::MODIFY_RQT => ("rqtn", 0x08),
        Opcode::DESTROY_TIR | Opcode::MODIFY_TIR => ("tirn", 0x08),
        Opcode::DESTROY_TIS | Opcode::MODIFY_TIS => ("tisn", 0x08),
        Opcode::DESTROY_QP
        | Opcode::QUERY_QP
        | Opcode::RST2INIT_QP
        | Opcode::INIT2RTR_QP
        | Opcode::RTR2RTS_QP
        | Opcode::RTS2RTS_QP
        | Opcode::MODIFY_QP_2ERR
        | Opcode::MODIFY_QP_2RST => ("qpn", 0x08),
        Opcode::DESTROY_FLOW_TABLE
        | Opcode::CREATE_FLOW_GROUP
        | Opcode::SET_FTE
        | Opcode::DELETE_FTE
        | Opcode::SET_FLOW_TABLE_ROOT => ("flow table", 0x14),
        Opcode::DESTROY_FLOW_GROUP => ("flow group", 0x18),
        Opcode::DEALLOC_FLOW_COUNTER => ("flow counter", 0x08),
        Opcode::QUERY_FLOW_COUNTER => ("flow counter", 0x1c),
        Opcode::ACCESS_REG => ("register", 0x08),
        _ => return None,
    })
}

/// Prints `, cqn 0x000012`, or nothing.
struct About(Option<Object>);

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |object| write!(f, ", {object}"))
    }
}

/// Prints a code as `NAME (0x03)`.
struct Code(Option<&'static str>, u8);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#04x})", self.0.unwrap_or("unknown code"), self.1)
    }
}

/// Why a command failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The device carried the command out, and refused it.
    #[error(
        "{opcode}: {}, syndrome {syndrome:#010x}{}: {}",
        Code(status.name(), status.0), About(*object), status.meaning()
    )]
    Status {
        /// The command.
        opcode: Opcode,
        /// Why, in the device's word.
        status: CommandStatus,
        /// The firmware's own code.
        syndrome: u32,
        /// What it was about.
        object: Option<Object>,
    },
    /// The device could not read the command.
    #[error(
        "{opcode}: not delivered, {}{}: {}",
        Code(status.name(), status.0), About(*object), status.meaning()
    )]
    Delivery {
        /// The command.
        opcode: Opcode,
        /// Why, in the device's word.
        status: DeliveryStatus,
        /// What it was about.
        object: Option<Object>,
    },
    /// The device did not answer. Its slot and mailboxes stay reserved until it does, or until a
    /// reset: it may still write to them.
    #[error(
        "{opcode}: no answer in slot {slot} after {waited:?}{}; the device may be stuck: reset it, \
         or raise DeviceConfig::command_timeout", About(*object)
    )]
    Timeout {
        /// The command.
        opcode: Opcode,
        /// The command queue entry.
        slot: u8,
        /// How long was waited.
        waited: Duration,
        /// What it was about.
        object: Option<Object>,
    },
    /// The device cannot answer any more.
    #[error("{opcode}: {cause}{}", About(*object))]
    Dead {
        /// The command.
        opcode: Opcode,
        /// How the device died.
        cause: DeadDevice,
        /// What it was about.
        object: Option<Object>,
    },
    /// Every slot holds a command that the device never answered.
    #[error("{opcode}: all {slots} command slots are stuck; reset the device")]
    NoSlot {
        /// The command.
        opcode: Opcode,
        /// Slots for ordinary commands.
        slots: u8,
    },
    /// The firmware asked for more pages than it may have.
    #[error(
        "{opcode}: the firmware has {lent} pages and asks for {count} more; \
         DeviceConfig::max_firmware_pages is {max}: raise it, or update the firmware"
    )]
    TooManyPages {
        /// The command that would have given them.
        opcode: Opcode,
        /// Pages asked for.
        count: usize,
        /// Pages that it has.
        lent: usize,
        /// Pages that it may have.
        max: u32,
    },
    /// No memory for the mailboxes, or it could not be mapped.
    #[error("{opcode}: no memory for its mailboxes: {source}")]
    Memory {
        /// The command.
        opcode: Opcode,
        /// The bus's reason.
        source: BusError,
    },
}

impl CommandError {
    /// The status that the device answered, if it did.
    #[must_use]
    pub fn status(&self) -> Option<CommandStatus> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the device may still work on the command and write to memory.
    #[must_use]
    pub fn device_may_own_memory(&self) -> bool {
        matches!(self, Self::Timeout { .. } | Self::Dead { .. } | Self::NoSlot { .. })
    }
}

/// How the driver knows that a device is dead.
///
/// # Source
/// Fatal sensors of reference 1.2 and 3.8.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeadDevice {
    /// The firmware version reads as all ones.
    #[error(
        "the device reads as all ones: it left the bus or is held in reset; check the slot, then \
         reset the device"
    )]
    AllOnes,
    /// The init segment says that the interface is disabled.
    #[error("the device's interface is disabled (nic state {0}); open it again after a reset")]
    Disabled(u8),
    /// The init segment says that the firmware is starting, or has forgotten the command queue,
    /// although it had started before.
    #[error("the device was reset behind the driver's back; drop its queues and open it again")]
    Restarting,
    /// The health buffer asks for a reset.
    #[error("the device asks for a reset, health syndrome {0:#04x}; reset it")]
    ResetRequired(u8),
    /// The kernel reported an uncorrectable error of the bus.
    #[error("{}", ferrocx_bus::Notice::BusError)]
    BusError,
    /// This driver reset the device, so its objects are gone.
    #[error("the device was reset by this driver; drop its queues and open it again")]
    WasReset,
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrocx_prm::Layout;
    use ferrocx_prm::cmd::Command;
    use ferrocx_prm::cmd::objects::CreateMkey;
    use ferrocx_prm::cmd::queues::DestroyCq;
    use ferrocx_prm::mkey::Mkc;

    #[test]
    fn status_error_names_opcode_status_syndrome_and_object() {
        let input = CreateMkey::input().with_memory_key_mkey_entry(Mkc::zeroed().with_pd(7));
        let error = CommandError::Status {
            opcode: Opcode::CREATE_MKEY,
            status: CommandStatus::BAD_PARAM,
            syndrome: 0x00c0_ffee,
            object: Object::of(Opcode::CREATE_MKEY, input.as_bytes()),
        };
        assert_eq!(
            error.to_string(),
            "CREATE_MKEY: BAD_PARAM (0x03), syndrome 0x00c0ffee, pd 0x000007: a parameter is out \
             of range, or a reserved bit is set"
        );
        assert!(!error.device_may_own_memory());
    }

    #[test]
    fn unknown_status_keeps_its_number() {
        let error = CommandError::Status {
            opcode: Opcode(0xeee),
            status: CommandStatus(0x77),
            syndrome: 1,
            object: Object::of(Opcode(0xeee), &[0; 64]),
        };
        assert!(error.to_string().starts_with("opcode 0x0eee: unknown code (0x77), syndrome"));
    }

    #[test]
    fn timeout_names_the_slot_and_the_object() {
        let input = DestroyCq::input().with_cqn(0x12);
        let error = CommandError::Timeout {
            opcode: Opcode::DESTROY_CQ,
            slot: 3,
            waited: Duration::from_millis(50),
            object: Object::of(Opcode::DESTROY_CQ, input.as_bytes()),
        };
        assert!(error.to_string().contains("slot 3 after 50ms, cqn 0x000012"));
        assert!(error.device_may_own_memory());
    }
}
