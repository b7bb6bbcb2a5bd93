//! Commands about flow steering: tables, groups, entries, roots.
//!
//! Storage follows the entries that exist, never the advertised or requested sizes.
//!
//! Source: reference 4.2 "Flow steering", 4.3, 5.12, 3.9.

use std::collections::BTreeMap;

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::cmd::flow::{
    CreateFlowGroup, CreateFlowGroupOut, CreateFlowTable, CreateFlowTableOut, DeleteFte,
    DeleteFteOut, DestroyFlowGroup, DestroyFlowGroupOut, DestroyFlowTable, DestroyFlowTableOut,
    ModifyFlowTable, ModifyFlowTableOut, QueryFlowTable, QueryFlowTableOut, SetFlowTableRoot,
    SetFlowTableRootOut,
};
use ferrocx_prm::flow::{FlowMatchParam, FlowTableContext};
use ferrocx_prm::syndrome::CommandStatus;

use super::fte::{check_table, check_type};
use super::handler::{Exec, Handler, add, check_vport, is_enough, no_tail, parse, plain, remove};
use super::{flow_counter, fte};
use crate::device::caps::{MAX_FT_LEVEL, log_max};
use crate::device::refused::{Answer, Refused, ensure};
use crate::device::state::Ctx;
use crate::objects::{FlowGroup, FlowTable, MAX_TABLE_GROUPS, MissAction, Objects};

pub(super) fn handler(opcode: Opcode) -> Option<Handler> {
    Some(match opcode {
        Opcode::CREATE_FLOW_TABLE => create_flow_table,
        Opcode::DESTROY_FLOW_TABLE => destroy_flow_table,
        Opcode::MODIFY_FLOW_TABLE => modify_flow_table,
        Opcode::QUERY_FLOW_TABLE => query_flow_table,
        Opcode::CREATE_FLOW_GROUP => create_flow_group,
        Opcode::DESTROY_FLOW_GROUP => destroy_flow_group,
        Opcode::SET_FLOW_TABLE_ROOT => set_root,
        Opcode::SET_FTE => fte::set_fte,
        Opcode::DELETE_FTE => delete_fte,
        Opcode::QUERY_FTE => fte::query_fte,
        Opcode::ALLOC_FLOW_COUNTER => flow_counter::alloc,
        Opcode::DEALLOC_FLOW_COUNTER => flow_counter::dealloc,
        Opcode::QUERY_FLOW_COUNTER => flow_counter::query,
        _ => return None,
    })
}

/// `table_miss_action`. Source: reference 5.12.
fn miss_action(objects: &Objects, context: &FlowTableContext, level: u32) -> Answer<MissAction> {
    match context.table_miss_action() {
        0 => Ok(MissAction::Default),
        1 => {
            let table = context.table_miss_id();
            let is_seen = objects.flow_tables.contains(table);
            let next = objects.flow_tables.get(table).filter(|_| is_seen);
            let next = next.ok_or_else(|| Refused::resource("table_miss_id", table))?;
            ensure(next.level > level, || {
                let next = next.level;
                Refused::param("table_miss_id", next, "its level is not above this table's")
            })?;
            Ok(MissAction::Forward { table })
        }
        other => Err(Refused::param("table_miss_action", other, "no such action here")),
    }
}

fn hold_miss(objects: &mut Objects, miss: MissAction) {
    if let MissAction::Forward { table } = miss {
        objects.flow_tables.hold(table);
    }
}

fn release_miss(objects: &mut Objects, miss: MissAction) {
    if let MissAction::Forward { table } = miss {
        objects.flow_tables.release(table);
    }
}

fn create_flow_table(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<CreateFlowTable>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        check_type(input.table_type())?;
        let context = input.flow_table_context();
        let (level, log_size) = (context.level(), context.log_size());
        ensure(level <= MAX_FT_LEVEL, || Refused::param("level", level, "above max_ft_level"))?;
        ensure(log_size <= log_max::FT_SIZE, || {
            Refused::param("log_size", log_size, "above log_max_ft_size")
        })?;
        let flags = context.reformat_en()
            || context.decap_en()
            || context.sw_owner()
            || context.termination_table();
        ensure(!flags, || Refused::param("flow_table_context", 1_u32, "flag not advertised"))?;
        let objects = &mut exec.ctx.state.objects;
        let miss = miss_action(objects, &context, level)?;
        let table_type = input.table_type();
        let table = FlowTable {
            table_type,
            level,
            log_size,
            miss,
            groups: Vec::new(),
            changed: 0,
            context,
        };
        let id = add(&mut objects.flow_tables, "table_id", table)?;
        hold_miss(objects, miss);
        objects.table_changed(id);
        Ok(CreateFlowTableOut::zeroed().with_table_id(id))
    })
}

fn destroy_flow_table(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyFlowTable>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let objects = &mut exec.ctx.state.objects;
        let id = input.table_id();
        check_table(objects, input.table_type(), id)?;
        let groups = objects.flow_tables.get(id).map_or(0, |table| table.groups.len());
        ensure(groups == 0, || Refused::busy("table_id", id))?;
        let table = remove(&mut objects.flow_tables, "table_id", id)?;
        release_miss(objects, table.miss);
        if objects.rx_root == Some(id) {
            objects.rx_root = None;
        }
        objects.steering_changed();
        Ok(DestroyFlowTableOut::zeroed())
    })
}

/// Bit of MODIFY_FLOW_TABLE's field select: the miss table. Source: reference 3.9.
const MODIFY_MISS: u32 = 1;

fn modify_flow_table(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<ModifyFlowTable>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let (id, select) = (input.table_id(), input.modify_field_select());
        ensure(select & !MODIFY_MISS == 0, || {
            Refused::param("modify_field_select", select, "no such field")
        })?;
        let objects = &mut exec.ctx.state.objects;
        check_table(objects, input.table_type(), id)?;
        if select & MODIFY_MISS != 0 {
            let level = objects.flow_tables.get(id).map_or(0, |table| table.level);
            let new = input.flow_table_context();
            let miss = miss_action(objects, &new, level)?;
            hold_miss(objects, miss);
            if let Some(table) = objects.flow_tables.get_mut(id) {
                table.context = table
                    .context
                    .with_table_miss_action(new.table_miss_action())
                    .with_table_miss_id(new.table_miss_id());
                let former = std::mem::replace(&mut table.miss, miss);
                release_miss(objects, former);
            }
            objects.table_changed(id);
        }
        Ok(ModifyFlowTableOut::zeroed())
    })
}

fn query_flow_table(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<QueryFlowTable>(exec, input, |exec, input| {
        let objects = &exec.ctx.state.objects;
        let id = input.table_id();
        check_table(objects, input.table_type(), id)?;
        let table = objects.flow_tables.get(id).ok_or_else(|| Refused::resource("table_id", id))?;
        Ok(QueryFlowTableOut::zeroed().with_flow_table_context(table.context))
    })
}

/// Match parts that groups may use: outer headers (bit 0) and misc (bit 1).
const CRITERIA: u32 = 0x3;

/// First byte of the first part of a mask that is set but not enabled, or never supported.
fn check_mask(mask: &FlowMatchParam, enable: u32) -> Answer<()> {
    ensure(enable & !CRITERIA == 0, || {
        Refused::param("match_criteria_enable", enable, "only outer headers and misc")
    })?;
    for (part, bytes) in mask.as_bytes().chunks(0x40).enumerate() {
        let is_enabled = part < 2 && enable >> part & 1 != 0;
        let set = bytes.iter().position(|byte| *byte != 0).filter(|_| !is_enabled);
        if let Some(at) = set {
            let at = (part * 0x40 + at) as u64;
            return Err(Refused::param("match_criteria offset", at, "set but not enabled"));
        }
    }
    let misc = mask.misc_parameters().as_bytes().iter().any(|byte| *byte != 0);
    ensure(!misc, || Refused::param("match_criteria_enable", enable, "no misc field is supported"))
}

fn create_flow_group(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<CreateFlowGroup>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let objects = &mut exec.ctx.state.objects;
        let id = input.table_id();
        check_table(objects, input.table_type(), id)?;
        let definer = input.match_definer_id();
        ensure(input.group_type() == 0 && definer == 0, || {
            Refused::param("match_definer_id", definer, "match definers are not supported")
        })?;
        let (start, end) = (input.start_flow_index(), input.end_flow_index());
        check_range(objects, id, start, end)?;
        let criteria_enable = input.match_criteria_enable();
        let mask = Box::new(input.match_criteria());
        check_mask(&mask, criteria_enable)?;
        let entries = BTreeMap::new();
        let group = FlowGroup { table: id, start, end, criteria_enable, mask, entries, changed: 0 };
        let group_id = add(&mut objects.flow_groups, "group_id", group)?;
        insert_group(objects, id, group_id, start);
        objects.group_changed(group_id);
        Ok(CreateFlowGroupOut::zeroed().with_group_id(group_id))
    })
}

/// The range of a group must lie in the table and touch no other group.
fn check_range(objects: &Objects, table_id: u32, start: u32, end: u32) -> Answer<()> {
    let table = objects.flow_tables.get(table_id);
    let table = table.ok_or_else(|| Refused::resource("table_id", table_id))?;
    ensure(start <= end && u64::from(end) < 1 << table.log_size, || {
        let status = CommandStatus::BAD_INDEX;
        Refused::new(status, "end_flow_index", end, "before the start, or past the table")
    })?;
    ensure(table.groups.len() < MAX_TABLE_GROUPS, || {
        let why = "a table has 4096 groups at most: entries that compare the same fields share one";
        Refused::new(CommandStatus::EXCEED_LIM, "table_id", table_id, why)
    })?;
    let overlaps = |id: &&u32| {
        let group = objects.flow_groups.get(**id);
        group.is_some_and(|group| group.start <= end && start <= group.end)
    };
    ensure(!table.groups.iter().any(|id| overlaps(&id)), || {
        Refused::param("start_flow_index", start, "overlaps another group of the table")
    })
}

fn insert_group(objects: &mut Objects, table_id: u32, group_id: u32, start: u32) {
    let Objects { flow_tables, flow_groups, .. } = objects;
    if let Some(table) = flow_tables.get_mut(table_id) {
        let before = |id: &u32| flow_groups.get(*id).is_some_and(|group| group.start < start);
        let at = table.groups.partition_point(before);
        table.groups.insert(at, group_id);
    }
}

fn destroy_flow_group(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DestroyFlowGroup>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let objects = &mut exec.ctx.state.objects;
        let (id, group_id) = (input.table_id(), input.group_id());
        check_table(objects, input.table_type(), id)?;
        let is_seen = objects.flow_groups.contains(group_id);
        let group = objects.flow_groups.get(group_id).filter(|group| is_seen && group.table == id);
        let group = group.ok_or_else(|| Refused::resource("group_id", group_id))?;
        ensure(group.entries.is_empty(), || Refused::busy("group_id", group_id))?;
        remove_group(objects, id, group_id);
        Ok(DestroyFlowGroupOut::zeroed())
    })
}

fn remove_group(objects: &mut Objects, table_id: u32, group_id: u32) {
    objects.flow_groups.remove(group_id);
    if let Some(table) = objects.flow_tables.get_mut(table_id)
        // Those of a user context go all at once, the last ones first.
        && let Some(at) = table.groups.iter().rposition(|other| *other == group_id)
    {
        table.groups.remove(at);
        // The list is paid for by the groups that are in it.
        table.groups.shrink_to(2 * table.groups.len());
    }
    objects.table_changed(table_id);
}

/// Removes an entry and lets go of what it names; `None` if there is none.
fn remove_entry(objects: &mut Objects, group_id: u32, index: u32) -> Option<()> {
    let entry = objects.flow_groups.get_mut(group_id)?.entries.remove(&index)?;
    objects.flow_groups.shrink(group_id, entry.bytes());
    fte::release(objects, &entry);
    objects.group_changed(group_id);
    Some(())
}

/// Removes the last entry of a table's last group, or the group if it has none; `None` if the table
/// has no group.
fn remove_last(objects: &mut Objects, table_id: u32) -> Option<()> {
    let group_id = *objects.flow_tables.get(table_id)?.groups.last()?;
    let group = objects.flow_groups.get(group_id);
    match group.and_then(|group| group.entries.last_key_value()) {
        Some((&index, _)) => remove_entry(objects, group_id, index)?,
        None => remove_group(objects, table_id, group_id),
    }
    Some(())
}

/// Removes the flow tables of a user context with their groups and entries, but those that others
/// lead to, until this step has done enough; whether it came to the end.
pub(super) fn wipe(ctx: &mut Ctx<'_>, uid: u16) -> bool {
    let tables = ctx.state.objects.flow_tables.of_user(uid);
    for id in &tables {
        while remove_last(&mut ctx.state.objects, *id).is_some() {
            if is_enough(ctx) {
                return false;
            }
        }
        let objects = &mut ctx.state.objects;
        if let Some(table) = objects.flow_tables.get_mut(*id) {
            let miss = std::mem::replace(&mut table.miss, MissAction::Default);
            release_miss(objects, miss);
        }
        objects.table_changed(*id);
    }
    for id in tables {
        let objects = &mut ctx.state.objects;
        if objects.rx_root == Some(id) || remove(&mut objects.flow_tables, "table_id", id).is_err()
        {
            continue;
        }
        objects.steering_changed();
        if is_enough(ctx) {
            return false;
        }
    }
    true
}

fn delete_fte(exec: &mut Exec<'_, '_>, input: &[u8]) -> Answer<Vec<u8>> {
    plain::<DeleteFte>(exec, input, |exec, input| {
        check_vport(input.other_vport(), input.vport_number())?;
        let objects = &mut exec.ctx.state.objects;
        let (id, index) = (input.table_id(), input.flow_index());
        check_table(objects, input.table_type(), id)?;
        let group_id = fte::group_of(objects, id, index)?;
        let removed = remove_entry(objects, group_id, index);
        removed.ok_or_else(|| Refused::resource("flow_index", index))?;
        Ok(DeleteFteOut::zeroed())
    })
}

fn set_root(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<SetFlowTableRoot>(bytes, |op_mod| op_mod <= 1)?;
    no_tail(input.tail)?;
    let fixed = input.fixed;
    check_vport(fixed.other_vport(), fixed.vport_number())?;
    ensure(!fixed.table_of_other_vport(), || {
        Refused::param("table_of_other_vport", 1_u32, "there is no other vport")
    })?;
    let qpn = fixed.underlay_qpn();
    ensure(qpn == 0, || Refused::param("underlay_qpn", qpn, "IPoIB is not supported"))?;
    let objects = &mut exec.ctx.state.objects;
    let id = fixed.table_id();
    check_table(objects, fixed.table_type(), id)?;
    if input.op_mod == 0 {
        objects.rx_root = Some(id);
    } else {
        ensure(objects.rx_root == Some(id), || {
            let status = CommandStatus::BAD_RES_STATE;
            Refused::new(status, "table_id", id, "this table is not the root")
        })?;
        objects.rx_root = None;
    }
    objects.steering_changed();
    Ok(SetFlowTableRootOut::zeroed().0.to_vec())
}
