//! Why a command is refused: status, field, value, reason.

use ferrocx_prm::syndrome::CommandStatus;

use crate::objects::Full;

/// Refusal of a command: its status, the field that was wrong, its value, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) status: CommandStatus,
    pub(crate) field: &'static str,
    pub(crate) value: u64,
    pub(crate) why: &'static str,
}

impl Refused {
    pub(crate) fn new(
        status: CommandStatus,
        field: &'static str,
        value: impl Into<u64>,
        why: &'static str,
    ) -> Self {
        Self { status, field, value: value.into(), why }
    }

    /// BAD_PARAM: out of range, or reserved.
    pub(crate) fn param(field: &'static str, value: impl Into<u64>, why: &'static str) -> Self {
        Self::new(CommandStatus::BAD_PARAM, field, value, why)
    }

    /// BAD_RESOURCE: no object has this number.
    pub(crate) fn resource(field: &'static str, value: impl Into<u64>) -> Self {
        Self::new(CommandStatus::BAD_RESOURCE, field, value, "no object has this number")
    }

    /// RESOURCE_BUSY: another object names this one.
    pub(crate) fn busy(field: &'static str, value: impl Into<u64>) -> Self {
        Self::new(CommandStatus::RESOURCE_BUSY, field, value, "another object uses it")
    }

    /// EXCEED_LIM: no room for another object.
    pub(crate) fn full(field: &'static str, full: Full) -> Self {
        let why = match full {
            Full::Numbers => "no object number is left",
            Full::Memory => "the function's memory budget is used up",
        };
        Self::new(CommandStatus::EXCEED_LIM, field, 0_u64, why)
    }
}

/// Result of a command handler.
pub(crate) type Answer<T> = Result<T, Refused>;

/// Fails with `refused` unless `ok`.
pub(crate) fn ensure(ok: bool, refused: impl FnOnce() -> Refused) -> Answer<()> {
    if ok { Ok(()) } else { Err(refused()) }
}
