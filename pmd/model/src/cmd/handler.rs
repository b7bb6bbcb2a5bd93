//! The shape of a command handler, and the steps that handlers share.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{Command, InputHeader, Opcode};
use ferrocx_prm::layout::first_reserved;
use ferrocx_prm::syndrome::CommandStatus;

use crate::datapath::DataPath;
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::Ctx;
use crate::objects::{Footprint, Objects, Table};

/// Device and limits that a command handler works with.
pub(crate) struct Exec<'a, 'b> {
    pub(crate) ctx: &'a mut Ctx<'b>,
    pub(crate) datapath: &'a mut DataPath,
    /// Bytes of output that the driver can take.
    pub(crate) output_len: usize,
    /// Runs another command, for one that is made of several.
    pub(crate) run: fn(&mut Exec<'_, '_>, Opcode, &[u8]) -> Answer<Vec<u8>>,
}

/// Answers one command.
pub(super) type Handler = fn(&mut Exec<'_, '_>, &[u8]) -> Answer<Vec<u8>>;

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

/// Adds an object, or refuses because there is no room.
pub(super) fn add<T: Footprint>(
    table: &mut Table<T>,
    field: &'static str,
    object: T,
) -> Answer<u32> {
    table.insert(object).map_err(|full| Refused::full(field, full))
}

/// Work of removing an object: a command, without its delivery.
const OBJECT_WORK: u64 = 4;

/// Counts the work of an object that goes with a user context; whether this step has done enough.
pub(super) fn is_enough(ctx: &Ctx<'_>) -> bool {
    ctx.state.objects.mkeys.work(OBJECT_WORK);
    ctx.is_turn_over()
}

/// Removes an object that nothing holds.
pub(super) fn remove<T>(table: &mut Table<T>, field: &'static str, number: u32) -> Answer<T> {
    ensure(table.contains(number), || Refused::resource(field, number))?;
    ensure(table.holders(number) == 0, || Refused::busy(field, number))?;
    table.remove(number).ok_or_else(|| Refused::resource(field, number))
}

/// Refuses to a user context what only the driver may ask for.
pub(super) fn drivers_only(objects: &Objects, field: &'static str, is_set: bool) -> Answer<()> {
    ensure(!is_set || !objects.is_for_user(), || {
        Refused::param(field, 1_u32, "not for user contexts: it reaches all memory")
    })
}

pub(super) fn check_vport(other_vport: bool, vport: u32) -> Answer<()> {
    ensure(!other_vport && vport == 0, || {
        Refused::param("vport_number", vport, "there is no other vport")
    })
}
