//! Flow table entries: SET_FTE, QUERY_FTE.
//!
//! Source: reference 4.2, 4.3, 5.12.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::flow::{QueryFte, QueryFteOut, SetFte, SetFteOut};
use ferrocx_prm::flow::{FlowContext, FlowCounterEntry, FlowDestination};
use ferrocx_prm::layout::first_reserved;
use ferrocx_prm::syndrome::CommandStatus;

use super::handler::{Exec, check_vport, no_tail, parse};
use crate::device::caps::log_max;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{FlowDest, FlowEntry, Objects, flow_action};

/// The group whose range holds an index.
pub(super) fn group_of(objects: &Objects, table_id: u32, index: u32) -> Answer<u32> {
    let table = objects.flow_tables.get(table_id);
    let table = table.ok_or_else(|| Refused::resource("table_id", table_id))?;
    let holds = |id: &&u32| {
        let group = objects.flow_groups.get(**id);
        group.is_some_and(|group| (group.start..=group.end).contains(&index))
    };
    let group = table.groups.iter().find(holds).copied();
    group.ok_or_else(|| {
        let status = CommandStatus::BAD_INDEX;
        Refused::new(status, "flow_index", index, "no group of the table has this index")
    })
}

/// Lets go of what an entry names.
pub(super) fn release(objects: &mut Objects, entry: &FlowEntry) {
    for destination in &entry.destinations {
        match destination {
            FlowDest::Table(id) => objects.flow_tables.release(*id),
            FlowDest::Tir(tirn) => objects.tirs.release(*tirn),
        }
    }
    for counter in &entry.counters {
        objects.flow_counters.release(*counter);
    }
}

fn hold(objects: &mut Objects, entry: &FlowEntry) {
    for destination in &entry.destinations {
        match destination {
            FlowDest::Table(id) => objects.flow_tables.hold(*id),
            FlowDest::Tir(tirn) => objects.tirs.hold(*tirn),
        }
    }
    for counter in &entry.counters {
        objects.flow_counters.hold(*counter);
    }
}

/// Bits of `modify_enable_mask`. Source: reference 4.3.
mod fte_field {
    pub(super) const ACTION: u32 = 1;
    pub(super) const FLOW_TAG: u32 = 2;
    pub(super) const DESTINATIONS: u32 = 4;
    pub(super) const COUNTERS: u32 = 8;
    pub(super) const ALL: u32 = 15;
}

pub(super) fn set_fte(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<SetFte>(bytes, |op_mod| op_mod <= 1)?;
    let fixed = input.fixed;
    check_vport(fixed.other_vport(), fixed.vport_number())?;
    ensure(!fixed.ignore_flow_level(), || {
        Refused::param("ignore_flow_level", 1_u32, "not advertised")
    })?;
    let objects = &mut exec.ctx.state.objects;
    let (table, index) = (fixed.table_id(), fixed.flow_index());
    check_table(objects, fixed.table_type(), table)?;
    let group_id = group_of(objects, table, index)?;
    let mut entry = decode(objects, table, group_id, &fixed.flow_context(), input.tail)?;
    let group = objects.flow_groups.get(group_id);
    let old = group.and_then(|group| group.entries.get(&index));
    if input.op_mod == 1 {
        let old = old.ok_or_else(|| Refused::resource("flow_index", index))?;
        entry = modified(old, entry, fixed.modify_enable_mask())?;
    }
    check_action(&entry)?;
    objects
        .flow_groups
        .grow(group_id, entry.bytes())
        .map_err(|full| Refused::full("flow_index", full))?;
    hold(objects, &entry);
    let group = objects.flow_groups.get_mut(group_id);
    // Setting an index that is in use replaces the entry.
    let old = group.and_then(|group| group.entries.insert(index, entry));
    if let Some(old) = old {
        objects.flow_groups.shrink(group_id, old.bytes());
        release(objects, &old);
    }
    objects.group_changed(group_id);
    Ok(SetFteOut::zeroed().0.to_vec())
}

/// The old entry with the selected fields of the new one.
fn modified(old: &FlowEntry, new: FlowEntry, mask: u32) -> Answer<FlowEntry> {
    ensure(mask & !fte_field::ALL == 0, || {
        Refused::param("modify_enable_mask", mask, "no such field")
    })?;
    let mut entry = old.clone();
    if mask & fte_field::ACTION != 0 {
        entry.action = new.action;
        entry.context = Box::new(entry.context.with_action(new.action));
    }
    if mask & fte_field::FLOW_TAG != 0 {
        entry.flow_tag = new.flow_tag;
        entry.context = Box::new(entry.context.with_flow_tag(new.flow_tag));
    }
    if mask & fte_field::DESTINATIONS != 0 {
        let count = new.context.destination_list_size();
        entry.destinations = new.destinations;
        entry.context = Box::new(entry.context.with_destination_list_size(count));
    }
    if mask & fte_field::COUNTERS != 0 {
        let count = new.context.flow_counter_list_size();
        entry.counters = new.counters;
        entry.context = Box::new(entry.context.with_flow_counter_list_size(count));
    }
    Ok(entry)
}

/// Action, destinations and counters must fit each other.
fn check_action(entry: &FlowEntry) -> Answer<()> {
    use flow_action::{ALLOW, COUNT, DROP, FORWARD};
    let action = entry.action;
    ensure(action & !(ALLOW | DROP | FORWARD | COUNT) == 0, || {
        Refused::param("action", action, "an action that is not advertised")
    })?;
    let forwards = action & FORWARD != 0;
    ensure(!(forwards && action & DROP != 0), || {
        Refused::param("action", action, "drop and forward exclude each other")
    })?;
    ensure(forwards != entry.destinations.is_empty(), || {
        let count = entry.destinations.len() as u64;
        Refused::param("destination_list_size", count, "does not fit the action")
    })?;
    ensure((action & COUNT != 0) != entry.counters.is_empty(), || {
        let count = entry.counters.len() as u64;
        Refused::param("flow_counter_list_size", count, "does not fit the action")
    })
}

/// Refuses fields of a flow context that no capability advertises.
fn check_context(context: &FlowContext, group_id: u32) -> Answer<()> {
    ensure(context.group_id() == group_id, || {
        let named = context.group_id();
        Refused::param("group_id", named, "not the group that holds the flow index")
    })?;
    ensure(!context.extended_destination(), || {
        Refused::param("extended_destination", 1_u32, "not advertised")
    })?;
    let unused = [
        ("push_vlan", context.push_vlan()),
        ("push_vlan_2", context.push_vlan_2()),
        ("flow_source", context.flow_source()),
        ("encrypt_decrypt_type", context.encrypt_decrypt_type()),
        ("encrypt_decrypt_obj_id", context.encrypt_decrypt_obj_id()),
        ("packet_reformat_id", context.packet_reformat_id()),
        ("modify_header_id", context.modify_header_id()),
    ];
    match unused.into_iter().find(|(_, value)| *value != 0) {
        Some((field, value)) => Err(Refused::param(field, value, "not advertised")),
        None => Ok(()),
    }
}

fn check_count(field: &'static str, count: u32, log_limit: u32) -> Answer<()> {
    ensure(count <= 1 << log_limit, || {
        Refused::new(CommandStatus::EXCEED_LIM, field, count, "above the advertised limit")
    })
}

fn decode(
    objects: &Objects,
    table: u32,
    group_id: u32,
    context: &FlowContext,
    tail: &[u8],
) -> Answer<FlowEntry> {
    check_context(context, group_id)?;
    let destinations = context.destination_list_size();
    let counters = context.flow_counter_list_size();
    check_count("destination_list_size", destinations, log_max::DESTINATIONS)?;
    check_count("flow_counter_list_size", counters, log_max::COUNTERS)?;
    let needed = (destinations + counters) as usize * FlowDestination::SIZE_BYTES;
    ensure(tail.len() >= needed, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        Refused::new(status, "destination_list_size", destinations, "the list is shorter")
    })?;
    let (first, rest) = tail.split_at(destinations as usize * FlowDestination::SIZE_BYTES);
    let level = objects.flow_tables.get(table).map_or(0, |table| table.level);
    let destinations = first.chunks_exact(FlowDestination::SIZE_BYTES);
    let counters = rest.chunks_exact(FlowCounterEntry::SIZE_BYTES).take(counters as usize);
    let group = objects.flow_groups.get(group_id);
    let mask = group.ok_or_else(|| Refused::resource("group_id", group_id))?.mask.0;
    // Bits that the group does not compare do not count.
    let mut value = context.match_value();
    value.0.iter_mut().zip(mask).for_each(|(value, mask)| *value &= mask);
    Ok(FlowEntry {
        value: Box::new(value),
        flow_tag: context.flow_tag(),
        action: context.action(),
        destinations: destinations
            .map(|bytes| destination(objects, bytes, level))
            .collect::<Answer<_>>()?,
        counters: counters.map(|bytes| counter(objects, bytes)).collect::<Answer<_>>()?,
        context: Box::new(*context),
    })
}

/// `destination_type`. Source: reference 5.12.
const DESTINATION_TABLE: u32 = 1;
const DESTINATION_TIR: u32 = 2;

fn destination(objects: &Objects, bytes: &[u8], level: u32) -> Answer<FlowDest> {
    let raw = FlowDestination::read_from(bytes).unwrap_or_default();
    if let Some(reserved) = first_reserved(&raw) {
        return Err(Refused::param("destination", reserved.bits, "reserved bits are set"));
    }
    let id = raw.destination_id();
    match raw.destination_type() {
        DESTINATION_TABLE => {
            let is_seen = objects.flow_tables.contains(id);
            let next = objects.flow_tables.get(id).filter(|_| is_seen);
            let next = next.ok_or_else(|| Refused::resource("destination_id", id))?;
            ensure(next.level > level, || {
                Refused::param("destination_id", id, "its level is not above this table's")
            })?;
            Ok(FlowDest::Table(id))
        }
        DESTINATION_TIR => {
            ensure(objects.tirs.contains(id), || Refused::resource("destination_id", id))?;
            Ok(FlowDest::Tir(id))
        }
        other => Err(Refused::param("destination_type", other, "not supported")),
    }
}

fn counter(objects: &Objects, bytes: &[u8]) -> Answer<u32> {
    let id = FlowCounterEntry::read_from(bytes).unwrap_or_default().flow_counter_id();
    ensure(objects.flow_counters.contains(id), || Refused::resource("flow_counter_id", id))?;
    Ok(id)
}

pub(super) fn query_fte(exec: &mut Exec<'_, '_>, bytes: &[u8]) -> Answer<Vec<u8>> {
    let input = parse::<QueryFte>(bytes, |op_mod| op_mod == 0)?;
    no_tail(input.tail)?;
    let objects = &exec.ctx.state.objects;
    let (table, index) = (input.fixed.table_id(), input.fixed.flow_index());
    check_table(objects, input.fixed.table_type(), table)?;
    let group = objects.flow_groups.get(group_of(objects, table, index)?);
    let entry = group.and_then(|group| group.entries.get(&index));
    let entry = entry.ok_or_else(|| Refused::resource("flow_index", index))?;
    let mut output = QueryFteOut::zeroed().with_flow_context(*entry.context).0.to_vec();
    output.extend(entry.destinations.iter().flat_map(|destination| {
        let (kind, id) = match destination {
            FlowDest::Table(id) => (DESTINATION_TABLE, *id),
            FlowDest::Tir(tirn) => (DESTINATION_TIR, *tirn),
        };
        FlowDestination::zeroed().with_destination_type(kind).with_destination_id(id).0
    }));
    let counters = entry.counters.iter();
    output.extend(counters.flat_map(|id| FlowCounterEntry::zeroed().with_flow_counter_id(*id).0));
    Ok(output)
}

/// The table of a command that names type and number.
pub(super) fn check_table(objects: &Objects, table_type: u32, id: u32) -> Answer<()> {
    check_type(table_type)?;
    ensure(objects.flow_tables.contains(id), || Refused::resource("table_id", id))
}

/// Table type of received packets; the only one with `ft_support`. Source: reference 5.12.
const NIC_RECEIVE: u32 = 0;

/// Refuses tables of another type than those of received packets.
pub(super) fn check_type(table_type: u32) -> Answer<()> {
    ensure(table_type == NIC_RECEIVE, || {
        Refused::param("table_type", table_type, "ft_support is not advertised for this type")
    })
}
