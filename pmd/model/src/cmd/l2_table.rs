//! Commands about the table by which a card with several hosts chooses theirs (MPFS). Only the
//! manager of the e-switch has it, which no identity of the model is; capability pages of another
//! device may say so. What stands in the table changes nothing: there is one host.
//!
//! Source: reference 4.2 "Ports, vports, RoCE, counters"; Linux `lib/mpfs.c`.

use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::port::{
    DeleteL2TableEntry, DeleteL2TableEntryOut, SetL2TableEntry, SetL2TableEntryOut,
};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler, plain};
use crate::device::refused::{Answer, Refused, ensure};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::SET_L2_TABLE_ENTRY => set,
        Opcode::DELETE_L2_TABLE_ENTRY => delete,
        _ => return None,
    })
}

/// Whether there is such an entry.
fn check_index(exec: &Exec<'_, '_>, index: u32) -> Answer<()> {
    let caps = exec.ctx.state.caps.general();
    ensure(caps.eswitch_manager(), || {
        let status = CommandStatus::BAD_OP;
        Refused::new(status, "opcode", 0_u32, "this function does not manage the e-switch")
    })?;
    ensure(index < 1_u32 << caps.log_max_l2_table(), || {
        Refused::param("table_index", index, "above the advertised table size")
    })
}

fn set(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<SetL2TableEntry>(exec, input, |exec, input| {
        check_index(exec, input.table_index())?;
        let [_, _, mac @ ..] = input.mac_address().to_be_bytes();
        ensure(mac[0] & 1 == 0, || {
            Refused::param("mac_address", input.mac_address(), "a group address")
        })?;
        exec.ctx.state.port.l2_table.insert(input.table_index(), mac);
        Ok(SetL2TableEntryOut::zeroed())
    })
}

fn delete(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeleteL2TableEntry>(exec, input, |exec, input| {
        check_index(exec, input.table_index())?;
        exec.ctx.state.port.l2_table.remove(&input.table_index());
        Ok(DeleteL2TableEntryOut::zeroed())
    })
}
