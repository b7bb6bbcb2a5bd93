//! How a command can fail, and which object it was about.

use std::fmt;
use std::time::Duration;

use ferrocx_bus::BusError;
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{Command, Opcode};
use ferrocx_prm::layout::Field;
use ferrocx_prm::syndrome::{CommandStatus, DeliveryStatus};
use thiserror::Error;

/// Fields of an input that name the object that it is about, and the word for it in messages. Of
/// several in an input the first of this list counts.
const NUMBERS: &[(&str, &str)] = &[
    ("mkey_index", "mkey index"),
    ("qpn", "qpn"),
    ("xrc_srqn", "srqn"),
    ("cqn", "cqn"),
    ("eq_number", "eqn"),
    ("sqn", "sqn"),
    ("rqn", "rqn"),
    ("rmpn", "rmpn"),
    ("rqtn", "rqtn"),
    ("tirn", "tirn"),
    ("tisn", "tisn"),
    ("transport_domain", "transport domain"),
    ("xrcd", "xrcd"),
    ("pd", "pd"),
    ("uar", "uar"),
    ("group_id", "flow group"),
    ("table_id", "flow table"),
    ("flow_counter_id", "flow counter"),
    ("register_id", "register"),
];
/// Fields of a context in an input that name what the object is built on.
const FOUNDATIONS: &[(&str, &str)] = &[
    ("cqn", "cqn"),
    ("c_eqn_or_apu_element", "eqn"),
    ("transport_domain", "transport domain"),
    ("pd", "pd"),
    ("uar_page", "uar"),
];

/// The object that a command named, for messages: `cqn 0x000012`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// What kind of number it is, in the manual's word.
    pub what: &'static str,
    /// The number, from the command's input.
    pub number: u32,
}

impl Object {
    /// The object that an input is about, where it names one.
    ///
    /// Commands that create something name the object they build on: a PD or a CQ.
    #[must_use]
    pub fn of<C: Command>(input: &C::In) -> Option<Self> {
        let (fields, bytes) = (C::In::FIELDS, input.as_bytes());
        let find = |names: &[(&str, &'static str)], deep| {
            names.iter().find_map(|&(name, what)| {
                Some(Self { what, number: number(fields, bytes, name, deep)? })
            })
        };
        find(NUMBERS, false).or_else(|| find(FOUNDATIONS, true))
    }
}

/// The field `name` of a structure; if `deep`, or of a structure embedded in it.
fn number(fields: &[Field], bytes: &[u8], name: &str, deep: bool) -> Option<u32> {
    fields.iter().find_map(|field| {
        if field.name == name {
            return field.number(bytes);
        }
        let inner = bytes.get(field.first_bit / 8..).filter(|_| deep)?;
        number(field.nested, inner, name, deep)
    })
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#08x}", self.what, self.number)
    }
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
    use ferrocx_prm::cmd::device::Nop;
    use ferrocx_prm::cmd::flow::{DestroyFlowGroup, QueryFlowCounter};
    use ferrocx_prm::cmd::objects::CreateMkey;
    use ferrocx_prm::cmd::qp::{CreateQp, Init2rtrQp};
    use ferrocx_prm::cmd::queues::{CreateCq, DestroyCq, DestroyEq};
    use ferrocx_prm::cmd::wq::{CreateSq, ModifySq};
    use ferrocx_prm::cqc::Cqc;
    use ferrocx_prm::mkey::Mkc;
    use ferrocx_prm::qpc::Qpc;
    use ferrocx_prm::wqc::Sqc;

    #[test]
    fn status_error_names_opcode_status_syndrome_and_object() {
        let input = CreateMkey::input().with_memory_key_mkey_entry(Mkc::zeroed().with_pd(7));
        let error = CommandError::Status {
            opcode: Opcode::CREATE_MKEY,
            status: CommandStatus::BAD_PARAM,
            syndrome: 0x00c0_ffee,
            object: Object::of::<CreateMkey>(&input),
        };
        assert_eq!(
            error.to_string(),
            "CREATE_MKEY: BAD_PARAM (0x03), syndrome 0x00c0ffee, pd 0x000007: a parameter is out \
             of range, or a reserved bit is set"
        );
        assert!(!error.device_may_own_memory());
    }

    #[test]
    fn commands_name_their_objects() {
        fn of<C: Command>(input: C::In) -> String {
            Object::of::<C>(&input).map_or_else(String::new, |object| object.to_string())
        }
        let sqc = Sqc::zeroed().with_cqn(0x12);
        assert_eq!(of::<CreateSq>(CreateSq::input().with_ctx(sqc)), "cqn 0x000012");
        let input = ModifySq::input().with_sqn(0xab_cdef).with_sq_state(1).with_ctx(sqc);
        assert_eq!(of::<ModifySq>(input), "sqn 0xabcdef", "its own field before the context's");
        let cqc = Cqc::zeroed().with_uar_page(3).with_c_eqn_or_apu_element(4);
        assert_eq!(of::<CreateCq>(CreateCq::input().with_cq_context(cqc)), "eqn 0x000004");
        let input = DestroyEq::input().with_eq_number(9);
        assert_eq!(of::<DestroyEq>(input), "eqn 0x000009");
        let input = DestroyFlowGroup::input().with_table_id(1).with_group_id(2);
        assert_eq!(of::<DestroyFlowGroup>(input), "flow group 0x000002");
        let input = QueryFlowCounter::input().with_flow_counter_id(0x0102_0304);
        assert_eq!(of::<QueryFlowCounter>(input), "flow counter 0x1020304", "all 32 bits");
        let qpc = Qpc::zeroed().with_pd(5);
        assert_eq!(of::<CreateQp>(CreateQp::input().with_qpc(qpc)), "pd 0x000005");
        let input = Init2rtrQp::input().with_qpn(6).with_qpc(qpc);
        assert_eq!(of::<Init2rtrQp>(input), "qpn 0x000006");
        assert_eq!(of::<Nop>(Nop::input()), "");
    }

    #[test]
    fn unknown_status_keeps_its_number() {
        let error = CommandError::Status {
            opcode: Opcode(0xeee),
            status: CommandStatus(0x77),
            syndrome: 1,
            object: None,
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
            object: Object::of::<DestroyCq>(&input),
        };
        assert!(error.to_string().contains("slot 3 after 50ms, cqn 0x000012"));
        assert!(error.device_may_own_memory());
    }
}
