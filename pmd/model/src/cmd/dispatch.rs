//! Which handler answers which opcode, and the checks that all commands share.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{Command, InputHeader, Opcode};
use ferrocx_prm::layout::first_reserved;
use ferrocx_prm::syndrome::CommandStatus;

use super::{
    Answer, Exec, Refused, basic, congestion, device, ensure, flow, qp, queues, registers, roce,
    transport, vport, work_queues,
};
use crate::nic::HcaState;

/// Answers one command.
pub(super) type Handler = fn(&mut Exec<'_, '_>, &[u8]) -> Answer<Vec<u8>>;

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
        .or_else(|| qp::handler(opcode).filter(|_| has_roce))
        .or_else(|| roce::handler(opcode).filter(|_| has_roce))
        .or_else(|| congestion::handler(opcode).filter(|_| has_roce))
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

/// A command's input: its fixed part, and what follows it.
pub(super) struct Input<'a, C: Command> {
    pub(super) fixed: C::In,
    pub(super) tail: &'a [u8],
    pub(super) op_mod: u32,
}

/// Parses an input for a handler.
///
/// A short input is filled up with zeros, because drivers leave trailing zeros away (reference
/// 4.1). Reserved bits are refused, and so is an `op_mod` that `is_op_mod` does not know.
pub(super) fn parse<C: Command>(
    bytes: &[u8],
    is_op_mod: impl Fn(u32) -> bool,
) -> Answer<Input<'_, C>> {
    let size = C::In::SIZE_BYTES;
    let fixed = match C::In::read_from(bytes) {
        Some(fixed) => Some(fixed),
        None => {
            let mut padded = bytes.to_vec();
            padded.resize(size, 0);
            C::In::read_from(&padded)
        }
    };
    let header = InputHeader::read_from(bytes);
    let (Some(fixed), Some(header)) = (fixed, header) else {
        let len = bytes.len() as u64;
        return Err(Refused::new(CommandStatus::BAD_INPUT_LEN, "input_length", len, "too short"));
    };
    let op_mod = header.op_mod();
    ensure(is_op_mod(op_mod), || {
        Refused::new(CommandStatus::BAD_OP, "op_mod", op_mod, "no such modifier of this command")
    })?;
    if let Some(reserved) = first_reserved(&fixed) {
        let place = (reserved.offset as u64) << 32 | u64::from(reserved.bits);
        return Err(Refused::param("reserved bits (offset, bits)", place, "reserved bits are set"));
    }
    Ok(Input { fixed, tail: bytes.get(size..).unwrap_or(&[]), op_mod })
}

/// Refuses bytes behind the fixed part of a command that has no tail.
pub(super) fn no_tail(tail: &[u8]) -> Answer<()> {
    let set = tail.iter().position(|byte| *byte != 0);
    set.map_or(Ok(()), |at| {
        Err(Refused::param("input tail", at as u64, "bytes behind the fixed part are not zero"))
    })
}

/// Runs a handler without a tail and returns its output.
pub(super) fn plain<C: Command>(
    exec: &mut Exec<'_, '_>,
    bytes: &[u8],
    handler: impl FnOnce(&mut Exec<'_, '_>, &C::In) -> Answer<C::Out>,
) -> Answer<Vec<u8>> {
    let input = parse::<C>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    Ok(handler(exec, &input.fixed)?.as_bytes().to_vec())
}
