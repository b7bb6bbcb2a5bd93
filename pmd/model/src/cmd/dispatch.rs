//! Which handler answers which opcode, and whether the function is ready for it.

use ferrocx_prm::cmd::{InputHeader, Opcode};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler};
use super::{basic, device, flow, queues, registers, roce, transport, vport, work_queues};
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::HcaState;

/// Runs the handler of `opcode`.
pub(super) fn dispatch(
    exec: &mut Exec<'_, '_>,
    opcode: Opcode,
    header: &InputHeader,
    input: &[u8],
) -> Answer<Vec<u8>> {
    let has_roce = exec.ctx.state.config.roce;
    let Some(handler) = handler(opcode, has_roce) else {
        return Err(Refused::new(CommandStatus::BAD_OP, "opcode", opcode.0, "unknown opcode"));
    };
    // No user contexts are advertised (log_max_uctx), so there is no other user.
    ensure(header.uid() == 0, || {
        Refused::param("uid", header.uid(), "no user contexts are supported")
    })?;
    check_state(exec, opcode)?;
    handler(exec, input)
}

/// The handler of an opcode, by family.
fn handler(opcode: Opcode, has_roce: bool) -> Option<Handler> {
    device::handler(opcode)
        .or_else(|| basic::handler(opcode))
        .or_else(|| queues::handler(opcode))
        .or_else(|| work_queues::handler(opcode))
        .or_else(|| transport::handler(opcode))
        .or_else(|| flow::handler(opcode))
        .or_else(|| vport::handler(opcode))
        .or_else(|| registers::handler(opcode))
        .or_else(|| roce::handler(opcode).filter(|_| has_roce))
}

/// Refuses what the function is not ready for. Source: reference 3.1, 2.2 (BAD_SYS_STATE).
fn check_state(exec: &Exec<'_, '_>, opcode: Opcode) -> Answer<()> {
    let needed = match opcode {
        Opcode::ENABLE_HCA | Opcode::NOP => HcaState::Disabled,
        Opcode::DISABLE_HCA
        | Opcode::QUERY_ISSI
        | Opcode::SET_ISSI
        | Opcode::QUERY_PAGES
        | Opcode::MANAGE_PAGES
        | Opcode::ACCESS_REG
        | Opcode::QUERY_HCA_CAP
        | Opcode::SET_HCA_CAP
        | Opcode::INIT_HCA
        | Opcode::QUERY_ADAPTER
        | Opcode::SET_DRIVER_VERSION => HcaState::Enabled,
        _ => HcaState::Initialized,
    };
    let state = exec.ctx.state.hca;
    ensure(state >= needed, || {
        let why = match needed {
            HcaState::Initialized => "the command needs INIT_HCA first",
            _ => "the command needs ENABLE_HCA first",
        };
        Refused::new(CommandStatus::BAD_SYS_STATE, "hca state", state as u64, why)
    })
}
