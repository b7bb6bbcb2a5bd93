//! The flow tables of a port, by number.
//!
//! | table (level) | entries | a packet that matches goes |
//! |---|---|---|
//! | rules (0, the root) | users' rules; then one for everything | where the rule says; else to addresses |
//! | addresses (1) | own MAC, broadcast, multicast groups; all multicast; everything | to traffic types |
//! | traffic types (2) | TCP, UDP, IP of both versions; everything | to the TIR that hashes it |
//! | of a rule that spreads (3) | as in the table of traffic types | to the TIR that hashes it |
//!
//! What matches nothing is dropped: a table's default for receiving. Each table ends in an entry
//! for everything, where it needs one, instead of a link to the next table: every device has
//! entries.

use std::collections::{BTreeMap, BTreeSet};

use ferrocx_net::ether::MacAddr;
use ferrocx_prm::caps::{FlowTableProps, ft_field};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::flow::{CreateFlowGroup, CreateFlowTable, SetFlowTableRoot, SetFte};
use ferrocx_prm::flow::{
    FlowContext, FlowCounterEntry, FlowDestination, FlowMatchLyr24, FlowMatchParam,
    FlowTableContext, TABLE_TYPE_NIC_RX, action, destination_type, match_criteria,
};

use super::matches::words;
use super::traffic::{self, TrafficType};
use crate::cmd::CommandError;
use crate::control::Control;
use crate::error::{ConfigError, DeviceError};
use crate::link::Port;
use crate::objects::Kind;

/// Levels of the three tables, by which [`Tables::ids`] and [`Tables::groups`] have them too.
const RULES: usize = 0;
const ADDRESSES: usize = 1;
const TRAFFIC: usize = 2;
/// Level of tables that rules have of their own.
pub(super) const OF_A_RULE: u32 = 3;

/// Multicast groups that fit the table of addresses beside the own MAC and broadcast.
pub const MAX_MULTICAST: usize = 126;
/// log2 of the table of addresses.
const ADDRESSES_LOG_SIZE: u32 = 8;
/// Places in it: exact addresses 0 to 127, then these.
const EXACT_ADDRESSES: u32 = 128;
const ALL_MULTICAST_AT: u32 = 128;
const PROMISCUOUS_AT: u32 = 129;
/// What all multicast addresses have in common.
const MULTICAST_BIT: MacAddr = MacAddr([1, 0, 0, 0, 0, 0]);
/// Groups that the table of rules is cut into, at most.
const RULE_GROUPS: u32 = 64;

/// Entries of the table of addresses, by place: the address that is compared, of which groups
/// behind the exact ones look at no more than the multicast bit, and at nothing.
type Addresses = BTreeMap<u32, MacAddr>;

/// A run of entries in the table of rules that share a mask.
#[derive(Debug)]
struct RuleGroup {
    id: u32,
    mask: FlowMatchLyr24,
    start: u32,
    used: Vec<bool>,
}

/// What the tables are made by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TableSetup<'a> {
    pub(crate) caps: &'a FlowTableProps,
    /// log2 of the rules that there is room for.
    pub(crate) log_rules: u8,
}

/// The tables, by number: handles would hold the device in a circle.
#[derive(Debug, Default)]
pub(crate) struct Steering {
    tables: Option<Tables>,
    /// Tables, groups and entries that stay, in the order in which they were made.
    made: Vec<(Kind, u32)>,
    /// Somebody's [`Routes`](super::Routes) stand in the table of traffic types.
    pub(super) routed: bool,
}

#[derive(Debug)]
struct Tables {
    ids: [u32; 3],
    groups: [Vec<u32>; 3],
    entries: Addresses,
    rule_groups: Vec<RuleGroup>,
    rule_entries: u32,
}

/// Where an entry stands: table and index.
pub(crate) type Place = (u32, u32);

impl Steering {
    /// Leads each type of traffic to its TIR, in the order of [`TrafficType::ALL`]. Returns the
    /// places of the entries, which the caller destroys.
    pub(crate) fn route(
        &mut self,
        control: &mut Control,
        setup: TableSetup<'_>,
        port: &Port,
        tirns: &[u32; TrafficType::ALL.len()],
    ) -> Result<Vec<Place>, DeviceError> {
        if self.routed {
            let what = "traffic of this device is spread by an Rss already; drop it first, or \
                        change its table";
            return Err(ConfigError::Conflict { what }.into());
        }
        let version = matches_ip_version(setup.caps);
        self.create(control, setup)?;
        let Some(tables) = &mut self.tables else { unreachable!("created above") };
        let table = tables.ids[TRAFFIC];
        let mut places = Vec::new();
        for (index, (group, value)) in (0..).zip(traffic::values(version)?) {
            let to = destination(destination_type::TIR, tirns[index as usize]);
            let entry = forward(tables.groups[TRAFFIC][group], value);
            if let Err(error) = set_entry(control, table, index, entry, &[to], None) {
                for (table, index) in places {
                    let _ = control.destroy(Kind::FlowEntry { table }, index);
                }
                return Err(error.into());
            }
            places.push((table, index));
        }
        tables.set_addresses(control, port)?;
        self.routed = true;
        Ok(places)
    }

    /// Lets in what the port's settings say; applied when the tables are made if there are none.
    pub(crate) fn set_addresses(
        &mut self,
        control: &mut Control,
        port: &Port,
    ) -> Result<(), DeviceError> {
        self.tables.as_mut().map_or(Ok(()), |tables| tables.set_addresses(control, port))
    }

    /// Makes tables and groups, and the entry that leads from rules to addresses.
    pub(super) fn create(
        &mut self,
        control: &mut Control,
        setup: TableSetup<'_>,
    ) -> Result<(), DeviceError> {
        if self.tables.is_some() {
            return Ok(());
        }
        match Tables::create(control, setup, &mut self.made) {
            Ok(tables) => {
                self.tables = Some(tables);
                Ok(())
            }
            Err(error) => {
                if let Err(also) = self.destroy(control) {
                    tracing::warn!(error = %also, "flow tables not undone");
                }
                Err(error)
            }
        }
    }

    /// Destroys everything, last made first. Entries of rules and of traffic must be gone.
    pub(crate) fn destroy(&mut self, control: &mut Control) -> Result<(), CommandError> {
        if let Some(tables) = self.tables.take() {
            for index in tables.entries.keys() {
                control.destroy(Kind::FlowEntry { table: tables.ids[ADDRESSES] }, *index)?;
            }
        }
        while let Some((kind, number)) = self.made.pop() {
            control.destroy(kind, number)?;
        }
        Ok(())
    }

    /// Finds a free place for a rule with this mask: table, group, index.
    pub(super) fn place_rule(
        &mut self,
        control: &mut Control,
        mask: FlowMatchLyr24,
    ) -> Result<(u32, u32, u32), DeviceError> {
        let Some(tables) = &mut self.tables else { unreachable!("created by the caller") };
        let table = tables.ids[RULES];
        for known in tables.rule_groups.iter_mut().filter(|known| known.mask == mask) {
            if let Some(at) = known.used.iter().position(|used| !used) {
                known.used[at] = true;
                return Ok((table, known.id, known.start + at as u32));
            }
        }
        let len = (tables.rule_entries / RULE_GROUPS).max(1);
        let start = tables.rule_groups.iter().map(|g| g.start + g.used.len() as u32).max();
        let start = start.unwrap_or(0);
        if start + len > tables.rule_entries {
            let what = "the table of flow rules is full; drop rules, or raise \
                        DeviceConfig::flow_rules";
            return Err(ConfigError::Conflict { what }.into());
        }
        let id = group(control, table, mask, start, start + len - 1)?;
        let mut used = vec![false; len as usize];
        used[0] = true;
        tables.rule_groups.push(RuleGroup { id, mask, start, used });
        self.made.push((Kind::FlowGroup { table }, id));
        Ok((table, id, start))
    }

    /// Makes the place of a rule that is gone free again. Its group stays.
    pub(super) fn free_rule(&mut self, index: u32) {
        let Some(tables) = &mut self.tables else { return };
        for group in &mut tables.rule_groups {
            if let Some(used) =
                index.checked_sub(group.start).and_then(|at| group.used.get_mut(at as usize))
            {
                *used = false;
            }
        }
    }
}

impl Tables {
    fn create(
        control: &mut Control,
        TableSetup { caps, log_rules }: TableSetup<'_>,
        made: &mut Vec<(Kind, u32)>,
    ) -> Result<Self, DeviceError> {
        let version = matches_ip_version(caps);
        // One more bit for the entry behind the rules.
        let log_rules_table = u32::from(log_rules) + 1;
        let log_max = caps.log_max_ft_size();
        if log_rules_table > log_max || ADDRESSES_LOG_SIZE > log_max {
            let max = 1u64 << log_max.saturating_sub(1);
            return Err(ConfigError::Range {
                what: "flow rules",
                value: 1 << log_rules,
                min: 1,
                max,
                hint: "; ask for fewer in DeviceConfig::flow_rules",
            }
            .into());
        }
        let rule_entries = 1u32 << log_rules;
        let mut ids = [0; 3];
        for (level, log_size) in [
            (TRAFFIC, traffic::LOG_ENTRIES),
            (ADDRESSES, ADDRESSES_LOG_SIZE),
            (RULES, log_rules_table),
        ] {
            ids[level] = table(control, level as u32, log_size)?;
            made.push((Kind::FlowTable, ids[level]));
        }
        let all = FlowMatchLyr24::zeroed();
        let mut groups = [const { Vec::new() }; 3];
        let of_traffic = traffic::groups(version)?.map(|(mask, range)| (TRAFFIC, mask, range));
        for (level, mask, range) in of_traffic.into_iter().chain([
            (ADDRESSES, exact_mac(MacAddr::BROADCAST), 0..=EXACT_ADDRESSES - 1),
            (ADDRESSES, exact_mac(MULTICAST_BIT), ALL_MULTICAST_AT..=ALL_MULTICAST_AT),
            (ADDRESSES, all, PROMISCUOUS_AT..=PROMISCUOUS_AT),
            (RULES, all, rule_entries..=rule_entries),
        ]) {
            let table = ids[level];
            let id = group(control, table, mask, *range.start(), *range.end())?;
            made.push((Kind::FlowGroup { table }, id));
            groups[level].push(id);
        }
        let (table, entry) = (ids[RULES], forward(groups[RULES][0], all));
        let to = destination(destination_type::FLOW_TABLE, ids[ADDRESSES]);
        set_entry(control, table, rule_entries, entry, &[to], None)?;
        made.push((Kind::FlowEntry { table }, rule_entries));
        let input = SetFlowTableRoot::input().with_table_type(TABLE_TYPE_NIC_RX);
        control.call(&input.with_table_id(table))?;
        let (entries, rule_groups) = (Addresses::new(), Vec::new());
        Ok(Self { ids, groups, entries, rule_groups, rule_entries })
    }

    /// Changes the table of addresses entry by entry, so that what stays is never missing.
    fn set_addresses(&mut self, control: &mut Control, port: &Port) -> Result<(), DeviceError> {
        let (current, wanted) = (self.entries.clone(), wanted_addresses(&self.entries, port));
        // New ones first, but a place must be free before it is used again.
        for (index, mac) in &wanted {
            match current.get(index) {
                Some(known) if known == mac => continue,
                Some(_) => self.remove_address(control, *index)?,
                None => {}
            }
            let group = index.saturating_sub(EXACT_ADDRESSES - 1) as usize;
            let context = forward(self.groups[ADDRESSES][group], exact_mac(*mac));
            let to = destination(destination_type::FLOW_TABLE, self.ids[TRAFFIC]);
            set_entry(control, self.ids[ADDRESSES], *index, context, &[to], None)?;
            self.entries.insert(*index, *mac);
        }
        for index in current.into_keys().filter(|index| !wanted.contains_key(index)) {
            self.remove_address(control, index)?;
        }
        Ok(())
    }

    fn remove_address(&mut self, control: &mut Control, index: u32) -> Result<(), DeviceError> {
        control.destroy(Kind::FlowEntry { table: self.ids[ADDRESSES] }, index)?;
        self.entries.remove(&index);
        Ok(())
    }
}

/// The entries that the port's settings ask for. Addresses that stay keep their places.
fn wanted_addresses(current: &Addresses, port: &Port) -> Addresses {
    let groups = port.multicast.iter().copied();
    let mut exact: BTreeSet<MacAddr> = [port.mac, MacAddr::BROADCAST].into_iter().collect();
    exact.extend(groups);
    let places = current.range(..EXACT_ADDRESSES);
    let mut wanted: Addresses =
        places.filter(|(_, mac)| exact.remove(mac)).map(|(index, mac)| (*index, *mac)).collect();
    for mac in exact {
        // A place that nothing stands in, if there is one.
        let free = |index: &u32| !wanted.contains_key(index);
        let never = |index: &u32| free(index) && !current.contains_key(index);
        let place = (0..EXACT_ADDRESSES).find(never);
        let Some(index) = place.or_else(|| (0..EXACT_ADDRESSES).find(free)) else { break };
        wanted.insert(index, mac);
    }
    if port.all_multicast {
        wanted.insert(ALL_MULTICAST_AT, MULTICAST_BIT);
    }
    if port.promiscuous {
        wanted.insert(PROMISCUOUS_AT, MacAddr::default());
    }
    wanted
}

/// Whether the device matches by IP version; else by ethertype. Source: reference 5.11.
pub(super) fn matches_ip_version(caps: &FlowTableProps) -> bool {
    caps.ft_field_support()[0] & ft_field::OUTER_IP_VERSION != 0
}

/// Mask or value of a destination address.
fn exact_mac(mac: MacAddr) -> FlowMatchLyr24 {
    let (high, low) = words(mac);
    FlowMatchLyr24::zeroed().with_dmac_47_16(high).with_dmac_15_0(low)
}

/// The start of an entry that sends packets on.
pub(super) fn forward(group: u32, value: FlowMatchLyr24) -> FlowContext {
    FlowContext::zeroed()
        .with_group_id(group)
        .with_action(action::FORWARD)
        .with_match_value(FlowMatchParam::zeroed().with_outer_headers(value))
}

pub(super) fn destination(kind: u32, id: u32) -> FlowDestination {
    FlowDestination::zeroed().with_destination_type(kind).with_destination_id(id)
}

/// Makes an empty table.
pub(super) fn table(control: &mut Control, level: u32, log_size: u32) -> Result<u32, CommandError> {
    let context = FlowTableContext::zeroed().with_level(level).with_log_size(log_size);
    let input = CreateFlowTable::input()
        .with_table_type(TABLE_TYPE_NIC_RX)
        .with_flow_table_context(context);
    Ok(control.call(&input)?.table_id())
}

pub(super) fn group(
    control: &mut Control,
    table: u32,
    mask: FlowMatchLyr24,
    start: u32,
    end: u32,
) -> Result<u32, CommandError> {
    let criteria = if mask == FlowMatchLyr24::zeroed() { 0 } else { match_criteria::OUTER_HEADERS };
    let input = CreateFlowGroup::input()
        .with_table_type(TABLE_TYPE_NIC_RX)
        .with_table_id(table)
        .with_start_flow_index(start)
        .with_end_flow_index(end)
        .with_match_criteria_enable(criteria)
        .with_match_criteria(FlowMatchParam::zeroed().with_outer_headers(mask));
    Ok(control.call(&input)?.group_id())
}

/// Writes an entry with its destinations and its counter.
pub(super) fn set_entry(
    control: &mut Control,
    table: u32,
    index: u32,
    context: FlowContext,
    destinations: &[FlowDestination],
    counter: Option<u32>,
) -> Result<(), CommandError> {
    let mut tail: Vec<u8> = destinations.iter().flat_map(|to| to.0).collect();
    let mut context = context.with_destination_list_size(destinations.len() as u32);
    if let Some(id) = counter {
        tail.extend(FlowCounterEntry::zeroed().with_flow_counter_id(id).0);
        context =
            context.with_flow_counter_list_size(1).with_action(context.action() | action::COUNT);
    }
    let input = SetFte::input()
        .with_table_type(TABLE_TYPE_NIC_RX)
        .with_table_id(table)
        .with_flow_index(index)
        .with_flow_context(context);
    control.execute::<SetFte>(&input, &tail, &mut []).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_literal() {
        let value = exact_mac(MacAddr([1, 2, 3, 4, 5, 6]));
        assert_eq!(value.0[0x08..0x0e], [1, 2, 3, 4, 5, 6]);
    }
}
