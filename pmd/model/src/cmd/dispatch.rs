//! Which handler answers which opcode, and whether the function is ready for it.

use ferrocx_prm::cmd::{InputHeader, Opcode};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler};
use super::{
    basic, device, flow, l2_table, memic, queues, registers, roce, transport, user, vport,
    work_queues,
};
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::HcaState;
use crate::objects::SHARED_UID;

/// Runs the handler of `opcode`.
pub(super) fn dispatch(
    exec: &mut Exec<'_, '_>,
    opcode: Opcode,
    header: &InputHeader,
    input: &[u8],
) -> Answer<Vec<u8>> {
    let uid = header.uid();
    if uid == 0 {
        return run(exec, opcode, input);
    }
    // Most inputs have no field there: whose command it is concerns nobody behind here.
    let mut unnamed = input.to_vec();
    unnamed[UID].fill(0);
    find(exec, opcode)?;
    check_state(exec, opcode)?;
    exec.ctx.state.objects.set_caller(u16::try_from(uid).unwrap_or(SHARED_UID));
    let answer = user::check(&exec.ctx.state.objects, opcode, uid, input)
        .and_then(|()| run(exec, opcode, &unnamed));
    exec.ctx.state.objects.set_caller(0);
    answer
}

/// Bytes of a header's `uid`.
const UID: std::ops::Range<usize> = 2..4;

/// Runs the handler of `opcode` for the present caller.
pub(super) fn run(exec: &mut Exec<'_, '_>, opcode: Opcode, input: &[u8]) -> Answer<Vec<u8>> {
    let handler = find(exec, opcode)?;
    check_state(exec, opcode)?;
    handler(exec, input)
}

fn find(exec: &Exec<'_, '_>, opcode: Opcode) -> Answer<Handler> {
    let unknown = || Refused::new(CommandStatus::BAD_OP, "opcode", opcode.0, "unknown opcode");
    handler(opcode, exec.ctx.state.config.roce).ok_or_else(unknown)
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
        .or_else(|| l2_table::handler(opcode))
        .or_else(|| registers::handler(opcode))
        .or_else(|| user::handler(opcode))
        .or_else(|| roce::handler(opcode).filter(|_| has_roce))
        .or_else(|| memic::handler(opcode).filter(|_| has_roce))
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
