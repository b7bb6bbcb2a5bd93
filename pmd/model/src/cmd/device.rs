//! Commands about the function as a whole: bring-up, teardown, capabilities, pages.
//!
//! Source: reference 4.2 "Device and function", 3.1, 2.5.

use ferrocx_prm::Layout;
use ferrocx_prm::caps::CAP_PAGE_BYTES;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::device::{
    DisableHca, DisableHcaOut, EnableHca, EnableHcaOut, InitHca, InitHcaOut, ManagePages,
    ManagePagesOut, Nop, NopOut, QueryAdapter, QueryAdapterOut, QueryHcaCap, QueryHcaCapOut,
    QueryIssi, QueryIssiOut, QueryPages, QueryPagesOut, QuerySpecialContexts,
    QuerySpecialContextsOut, SetDriverVersion, SetDriverVersionOut, SetHcaCap, SetHcaCapOut,
    SetIssi, SetIssiOut, TeardownHca, TeardownHcaOut,
};
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, Handler, no_tail, parse, plain};
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::HcaState;
use crate::objects::mkey::RESERVED_LKEY;

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::ENABLE_HCA => enable_hca,
        Opcode::DISABLE_HCA => disable_hca,
        Opcode::QUERY_ISSI => query_issi,
        Opcode::SET_ISSI => set_issi,
        Opcode::QUERY_PAGES => query_pages,
        Opcode::MANAGE_PAGES => manage_pages,
        Opcode::SET_DRIVER_VERSION => set_driver_version,
        Opcode::QUERY_HCA_CAP => query_hca_cap,
        Opcode::SET_HCA_CAP => set_hca_cap,
        Opcode::INIT_HCA => init_hca,
        Opcode::TEARDOWN_HCA => teardown_hca,
        Opcode::QUERY_ADAPTER => query_adapter,
        Opcode::QUERY_SPECIAL_CONTEXTS => query_special_contexts,
        Opcode::NOP => nop,
        _ => return None,
    })
}

/// ISSI 1 only, as TRACE reports. Source: reference 4.3, QUERY_ISSI.
const SUPPORTED_ISSI: u32 = 1 << 1;

/// The only function is the caller's own.
fn own_function(function_id: u32, other: bool, field: &'static str) -> Answer<()> {
    ensure(!other, || Refused::param(field, 1_u32, "there is no other function"))?;
    ensure(function_id == 0, || {
        Refused::param("function_id", function_id, "there is no other function")
    })
}

fn enable_hca(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<EnableHca>(exec, input, |exec, input| {
        let other = input.embedded_cpu_function();
        own_function(input.function_id(), other, "embedded_cpu_function")?;
        let state = &mut exec.ctx.state.hca;
        // Linux enables again after a driver that died; only INIT_HCA is then refused (3.8).
        *state = (*state).max(HcaState::Enabled);
        Ok(EnableHcaOut::zeroed())
    })
}

fn disable_hca(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DisableHca>(exec, input, |exec, input| {
        let other = input.embedded_cpu_function();
        own_function(input.function_id(), other, "embedded_cpu_function")?;
        ensure(exec.ctx.state.hca != HcaState::Initialized, || {
            let status = CommandStatus::BAD_SYS_STATE;
            Refused::new(status, "hca state", 2_u32, "TEARDOWN_HCA comes first")
        })?;
        exec.ctx.state.hca = HcaState::Disabled;
        exec.ctx.state.was_forced_down = false;
        Ok(DisableHcaOut::zeroed())
    })
}

fn query_issi(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryIssi>(exec, input, |exec, _| {
        Ok(QueryIssiOut::zeroed()
            .with_current_issi(exec.ctx.state.driver.issi)
            .with_supported_issi_dw0(SUPPORTED_ISSI))
    })
}

fn set_issi(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<SetIssi>(exec, input, |exec, input| {
        let issi = input.current_issi();
        ensure(issi < 32 && SUPPORTED_ISSI >> issi & 1 != 0, || {
            Refused::param("current_issi", issi, "not a supported interface step")
        })?;
        exec.ctx.state.driver.issi = issi;
        Ok(SetIssiOut::zeroed())
    })
}

fn query_pages(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryPages>(bytes, |op_mod| (1..=3).contains(&op_mod))?;
    no_tail(input.tail)?;
    let other = input.fixed.embedded_cpu_function();
    own_function(input.fixed.function_id(), other, "embedded_cpu_function")?;
    let state = &exec.ctx.state;
    let needed = state.pages.needed(&state.config, input.op_mod);
    let output = QueryPagesOut::zeroed().with_num_pages(needed.cast_unsigned());
    Ok(output.0.to_vec())
}

fn manage_pages(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<ManagePages>(bytes, |op_mod| op_mod <= 2)?;
    let other = input.fixed.embedded_cpu_function();
    own_function(input.fixed.function_id(), other, "embedded_cpu_function")?;
    let count = input.fixed.input_num_entries() as usize;
    let ctx = &mut *exec.ctx;
    // Each is looked up and listed, or taken from the list.
    let listed = if input.op_mod == 2 { ctx.state.pages.len() } else { input.tail.len() / 8 };
    ctx.state.objects.mkeys.work(4 * count.min(listed) as u64);
    let taken = match input.op_mod {
        0 => {
            ensure(count == 0, || {
                let count = input.fixed.input_num_entries();
                Refused::param("input_num_entries", count, "\"cannot give\" carries no pages")
            })?;
            ctx.state.pages.refused_by_host();
            Vec::new()
        }
        1 => {
            let mem = ctx.mem;
            ctx.state.pages.give(mem, count, input.tail)?;
            Vec::new()
        }
        _ => {
            no_tail(input.tail)?;
            let room = exec.output_len.saturating_sub(ManagePagesOut::SIZE_BYTES) / 8;
            let keep = ctx.state.pages_in_use();
            ctx.state.pages.take(count.min(room), keep)
        }
    };
    let count = u32::try_from(taken.len()).unwrap_or(u32::MAX);
    let mut output = ManagePagesOut::zeroed().with_output_num_entries(count).0.to_vec();
    output.extend(taken.iter().flat_map(|page| page.to_be_bytes()));
    Ok(output)
}

fn set_driver_version(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<SetDriverVersion>(exec, input, |exec, input| {
        let text = input.driver_version();
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        exec.ctx.state.driver.version = String::from_utf8_lossy(&text[..len]).into_owned();
        Ok(SetDriverVersionOut::zeroed())
    })
}

fn query_hca_cap(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryHcaCap>(bytes, |op_mod| op_mod < 0x100)?;
    no_tail(input.tail)?;
    own_function(input.fixed.function_id(), input.fixed.other_function(), "other_function")?;
    let kind = input.op_mod >> 1;
    let page = exec.ctx.state.caps.page(kind, input.op_mod & 1 != 0);
    let page = page.ok_or_else(|| Refused::param("op_mod", kind, "no such capability page"))?;
    Ok(QueryHcaCapOut::zeroed().with_capability(*page).0.to_vec())
}

fn set_hca_cap(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<SetHcaCap>(bytes, |op_mod| op_mod < 0x100)?;
    no_tail(input.tail)?;
    own_function(input.fixed.function_id(), input.fixed.other_function(), "other_function")?;
    ensure(exec.ctx.state.hca == HcaState::Enabled, || {
        let status = CommandStatus::BAD_SYS_STATE;
        Refused::new(status, "hca state", 2_u32, "capabilities are set before INIT_HCA")
    })?;
    ensure(input.op_mod & 1 == 0, || {
        Refused::new(CommandStatus::BAD_OP, "op_mod", input.op_mod, "the low bit must be 0")
    })?;
    let page: [u8; CAP_PAGE_BYTES] = input.fixed.capability();
    exec.ctx.state.caps.set(input.op_mod >> 1, &page)?;
    Ok(SetHcaCapOut::zeroed().0.to_vec())
}

fn init_hca(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<InitHca>(exec, input, |exec, input| {
        let state = &mut *exec.ctx.state;
        ensure(state.hca == HcaState::Enabled, || {
            let status = CommandStatus::BAD_SYS_STATE;
            Refused::new(status, "hca state", 2_u32, "the function is already initialised")
        })?;
        ensure(input.sw_vhca_id() == 0, || {
            Refused::param("sw_vhca_id", input.sw_vhca_id(), "sw_vhca_id_valid is not advertised")
        })?;
        let missing = state.pages.needed(&state.config, 2);
        ensure(missing <= 0, || {
            let missing = u64::from(missing.unsigned_abs());
            let status = CommandStatus::NO_RESOURCES;
            Refused::new(status, "pages", missing, "boot or init pages were not given")
        })?;
        state.hca = HcaState::Initialized;
        state.was_forced_down = false;
        state.pages.ask_later(state.config.regular_pages);
        state.port.enabled = true;
        exec.ctx.port_changed();
        Ok(InitHcaOut::zeroed())
    })
}

/// Values of TEARDOWN_HCA's `profile`. Source: reference 3.7.
const PROFILE_GRACEFUL: u32 = 0;
const PROFILE_FORCE: u32 = 1;

fn teardown_hca(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<TeardownHca>(exec, input, |exec, input| {
        let profile = input.profile();
        ensure(matches!(profile, PROFILE_GRACEFUL | PROFILE_FORCE), || {
            Refused::param("profile", profile, "fast_teardown is not advertised")
        })?;
        let ctx = &mut *exec.ctx;
        let memory = &ctx.state.objects.device_memory;
        memory.pages().for_each(|pages| ctx.side.open_memory(pages, false));
        ctx.state.drop_objects();
        ctx.state.hca = HcaState::Enabled;
        ctx.state.was_forced_down = profile == PROFILE_FORCE;
        ctx.state.port.enabled = false;
        ctx.port_changed();
        exec.datapath.reset();
        Ok(TeardownHcaOut::zeroed())
    })
}

/// PSID: the board's identity. Made up, and recognisable as such.
const PSID: &[u8; 16] = b"FCX_0000000001\0\0";

fn query_adapter(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryAdapter>(exec, input, |_, _| {
        // Offsets inside the structure: reference 4.3, QUERY_ADAPTER.
        let mut adapter = [0; 256];
        adapter[0x19..0x1c].copy_from_slice(&[0x00, 0x02, 0xc9]);
        adapter[0x1e..0x20].copy_from_slice(&[0x15, 0xb3]);
        adapter[0xf0..].copy_from_slice(PSID);
        Ok(QueryAdapterOut::zeroed().with_query_adapter_struct(adapter))
    })
}

fn query_special_contexts(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    let lkey = if exec.ctx.state.config.reserved_lkey { RESERVED_LKEY } else { 0 };
    plain::<QuerySpecialContexts>(exec, input, |_, _| {
        Ok(QuerySpecialContextsOut::zeroed().with_resd_lkey(lkey))
    })
}

fn nop(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<Nop>(exec, input, |_, _| Ok(NopOut::zeroed()))
}
