//! The flow tables of a port, by number.
//!
//! | table (level) | entries | a packet that matches goes |
//! |---|---|---|
//! | rules (0, the root) | users' rules; then one for everything | where the rule says; else to addresses |
//! | addresses (1) | own MAC, broadcast, multicast groups; all multicast; everything | to traffic types |
//! | traffic types (2) | TCP, UDP, IP of both versions; everything | to the TIR that hashes it |
//!
//! What matches nothing is dropped: a table's default for receiving. Each table ends in an entry
//! for everything, where it needs one, instead of a link to the next table: every device has
//! entries.

use std::collections::BTreeMap;

use ferrocx_prm::caps::FlowTableProps;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::flow::{CreateFlowGroup, CreateFlowTable, SetFlowTableRoot, SetFte};
use ferrocx_prm::flow::{
    FlowContext, FlowCounterEntry, FlowDestination, FlowMatchLyr24, FlowMatchParam,
    FlowTableContext, TABLE_TYPE_NIC_RX, action, destination_type, match_criteria,
};

use crate::cmd::CommandError;
use crate::control::Control;
use crate::error::{ConfigError, DeviceError};
use crate::link::{MacAddr, Port};
use crate::objects::Kind;

/// Levels of the three tables.
const RULES_LEVEL: u32 = 0;
const ADDRESSES_LEVEL: u32 = 1;
const TRAFFIC_LEVEL: u32 = 2;
/// Bit of `ft_field_support`'s first word: `outer_ip_version`. Source: reference 5.11.
const MATCH_IP_VERSION: u8 = 1 << 4;
/// Ethertypes. Source: IEEE 802 numbers.
pub(super) const ETHERTYPE_IPV4: u32 = 0x0800;
pub(super) const ETHERTYPE_IPV6: u32 = 0x86dd;
/// IP protocols. Source: IANA protocol numbers.
pub(super) const PROTOCOL_TCP: u32 = 6;
pub(super) const PROTOCOL_UDP: u32 = 17;

/// Multicast groups that fit the table of addresses beside the own MAC and broadcast.
pub const MAX_MULTICAST: usize = 126;
/// log2 of the table of addresses.
const ADDRESSES_LOG_SIZE: u32 = 8;
/// Places in it: exact addresses 0 to 127, then these.
const EXACT_ADDRESSES: u32 = 128;
const ALL_MULTICAST_AT: u32 = 128;
const PROMISCUOUS_AT: u32 = 129;
/// log2 of the table of traffic types.
const TRAFFIC_LOG_SIZE: u32 = 3;
/// Groups that the table of rules is cut into, at most.
pub(super) const RULE_GROUPS: u32 = 64;

/// One flow table and its groups.
#[derive(Debug, Clone, Default)]
struct Table {
    id: u32,
    groups: Vec<u32>,
}

/// Entries of the table of addresses, by place.
type Addresses = BTreeMap<u32, AddressEntry>;

/// What an entry of the table of addresses lets in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressEntry {
    Exact(MacAddr),
    AllMulticast,
    Everything,
}

/// A run of entries in the table of rules that share a mask.
#[derive(Debug)]
struct RuleGroup {
    id: u32,
    mask: FlowMatchLyr24,
    start: u32,
    used: Vec<bool>,
}

/// Kinds of traffic that lead to a TIR each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficType {
    /// TCP over IPv4.
    TcpV4,
    /// UDP over IPv4.
    UdpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv6.
    UdpV6,
    /// IPv4 with another protocol, and fragments.
    IpV4,
    /// IPv6 with another protocol, and fragments.
    IpV6,
    /// Everything that is not IP.
    Any,
}

impl TrafficType {
    /// All of them in the order of the flow table: the first match wins.
    pub const ALL: [Self; 7] =
        [Self::TcpV4, Self::UdpV4, Self::TcpV6, Self::UdpV6, Self::IpV4, Self::IpV6, Self::Any];
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
    /// Somebody's [`Routes`](super::Routes) stand in the table of traffic types.
    routed: bool,
}

#[derive(Debug)]
struct Tables {
    rules: Table,
    addresses: Table,
    traffic: Table,
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
        let table = tables.traffic.id;
        let groups = [0, 0, 0, 0, 1, 1, 2];
        let mut places = Vec::new();
        for (index, traffic) in TrafficType::ALL.into_iter().enumerate() {
            let value = traffic_match(traffic, version, false);
            let to = destination(destination_type::TIR, tirns[index]);
            let group = tables.traffic.groups[groups[index]];
            let entry = forward(group, value, 0);
            let index = index as u32;
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

    /// The entries of [`Steering::route`] are gone.
    pub(crate) fn unrouted(&mut self) {
        self.routed = false;
    }

    /// Lets in what the port's settings say.
    pub(crate) fn set_addresses(
        &mut self,
        control: &mut Control,
        port: &Port,
    ) -> Result<(), DeviceError> {
        match &mut self.tables {
            Some(tables) => tables.set_addresses(control, port),
            // Applied when the tables are made.
            None => Ok(()),
        }
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
        let mut made = Vec::new();
        match Tables::create(control, setup, &mut made) {
            Ok(tables) => {
                self.tables = Some(tables);
                Ok(())
            }
            Err(error) => {
                for (kind, number) in made.into_iter().rev() {
                    if let Err(also) = control.destroy(kind, number) {
                        tracing::warn!(?kind, number, error = %also, "not undone");
                    }
                }
                Err(error)
            }
        }
    }

    /// Destroys everything, last made first. Entries of rules and of traffic must be gone.
    pub(crate) fn destroy(&mut self, control: &mut Control) -> Result<(), CommandError> {
        let Some(tables) = self.tables.take() else { return Ok(()) };
        let (addresses, rules) = (tables.addresses.id, tables.rules.id);
        control.destroy(Kind::FlowEntry { table: rules }, tables.rule_entries)?;
        for index in tables.entries.keys() {
            control.destroy(Kind::FlowEntry { table: addresses }, *index)?;
        }
        for group in &tables.rule_groups {
            control.destroy(Kind::FlowGroup { table: rules }, group.id)?;
        }
        for table in [&tables.rules, &tables.addresses, &tables.traffic] {
            for group in &table.groups {
                control.destroy(Kind::FlowGroup { table: table.id }, *group)?;
            }
            control.destroy(Kind::FlowTable, table.id)?;
        }
        Ok(())
    }
}

impl Steering {
    /// Finds a free place for a rule with this mask: table, group, index.
    pub(super) fn place_rule(
        &mut self,
        control: &mut Control,
        mask: FlowMatchLyr24,
    ) -> Result<(u32, u32, u32), DeviceError> {
        let Some(tables) = &mut self.tables else { unreachable!("created by the caller") };
        let table = tables.rules.id;
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
        let traffic = table(control, TRAFFIC_LEVEL, TRAFFIC_LOG_SIZE, made)?;
        let addresses = table(control, ADDRESSES_LEVEL, ADDRESSES_LOG_SIZE, made)?;
        let rules = table(control, RULES_LEVEL, log_rules_table, made)?;
        let mut tables = Self {
            rules: Table { id: rules, groups: Vec::new() },
            addresses: Table { id: addresses, groups: Vec::new() },
            traffic: Table { id: traffic, groups: Vec::new() },
            entries: Addresses::new(),
            rule_groups: Vec::new(),
            rule_entries,
        };
        let l4 = traffic_match(TrafficType::TcpV4, version, true);
        let l3 = traffic_match(TrafficType::IpV4, version, true);
        let all = FlowMatchLyr24::zeroed();
        let exact = exact_mac(MacAddr::BROADCAST);
        let multicast = exact_mac(MacAddr([1, 0, 0, 0, 0, 0]));
        for (table, mask, range) in [
            (TRAFFIC_LEVEL, l4, 0..=3),
            (TRAFFIC_LEVEL, l3, 4..=5),
            (TRAFFIC_LEVEL, all, 6..=6),
            (ADDRESSES_LEVEL, exact, 0..=EXACT_ADDRESSES - 1),
            (ADDRESSES_LEVEL, multicast, ALL_MULTICAST_AT..=ALL_MULTICAST_AT),
            (ADDRESSES_LEVEL, all, PROMISCUOUS_AT..=PROMISCUOUS_AT),
            (RULES_LEVEL, all, rule_entries..=rule_entries),
        ] {
            let table = match table {
                TRAFFIC_LEVEL => &mut tables.traffic,
                ADDRESSES_LEVEL => &mut tables.addresses,
                _ => &mut tables.rules,
            };
            let id = group(control, table.id, mask, *range.start(), *range.end())?;
            made.push((Kind::FlowGroup { table: table.id }, id));
            table.groups.push(id);
        }
        let entry = forward(tables.rules.groups[0], FlowMatchLyr24::zeroed(), 0);
        let to = destination(destination_type::FLOW_TABLE, addresses);
        set_entry(control, rules, rule_entries, entry, &[to], None)?;
        made.push((Kind::FlowEntry { table: rules }, rule_entries));
        let input =
            SetFlowTableRoot::input().with_table_type(TABLE_TYPE_NIC_RX).with_table_id(rules);
        control.execute::<SetFlowTableRoot>(&input, &[], &mut [])?;
        Ok(tables)
    }

    /// Changes the table of addresses entry by entry, so that what stays is never missing.
    fn set_addresses(&mut self, control: &mut Control, port: &Port) -> Result<(), DeviceError> {
        let wanted = wanted_addresses(&self.entries, port);
        let table = self.addresses.id;
        let stale: Vec<u32> = self
            .entries
            .iter()
            .filter(|(index, entry)| wanted.get(index) != Some(entry))
            .map(|(index, _)| *index)
            .collect();
        // New ones first, but a place must be free before it is used again.
        for index in &stale {
            if wanted.contains_key(index) {
                self.remove_address(control, *index)?;
            }
        }
        for (index, entry) in &wanted {
            if self.entries.contains_key(index) {
                continue;
            }
            let (group, value) = match entry {
                AddressEntry::Exact(mac) => (0, exact_mac(*mac)),
                AddressEntry::AllMulticast => (1, exact_mac(MacAddr([1, 0, 0, 0, 0, 0]))),
                AddressEntry::Everything => (2, FlowMatchLyr24::zeroed()),
            };
            let context = forward(self.addresses.groups[group], value, 0);
            let to = destination(destination_type::FLOW_TABLE, self.traffic.id);
            set_entry(control, table, *index, context, &[to], None)?;
            self.entries.insert(*index, *entry);
        }
        for index in stale {
            if !wanted.contains_key(&index) {
                self.remove_address(control, index)?;
            }
        }
        Ok(())
    }

    fn remove_address(&mut self, control: &mut Control, index: u32) -> Result<(), DeviceError> {
        control.destroy(Kind::FlowEntry { table: self.addresses.id }, index)?;
        self.entries.remove(&index);
        Ok(())
    }
}

/// The entries that the port's settings ask for. Addresses that stay keep their places.
fn wanted_addresses(current: &Addresses, port: &Port) -> Addresses {
    let exact = [port.mac, MacAddr::BROADCAST].into_iter().chain(port.multicast.iter().copied());
    let mut wanted = Addresses::new();
    let mut new = Vec::new();
    for mac in exact {
        let entry = AddressEntry::Exact(mac);
        if wanted.values().any(|known| *known == entry) || new.contains(&mac) {
            continue;
        }
        match current.iter().find(|(_, known)| **known == entry) {
            Some((index, _)) => {
                wanted.insert(*index, entry);
            }
            None => new.push(mac),
        }
    }
    let mut free = 0..EXACT_ADDRESSES;
    for mac in new {
        let taken = |index: &u32| !wanted.contains_key(index) && !current.contains_key(index);
        let index = free
            .find(taken)
            .or_else(|| (0..EXACT_ADDRESSES).find(|index| !wanted.contains_key(index)));
        let Some(index) = index else { break };
        wanted.insert(index, AddressEntry::Exact(mac));
    }
    if port.all_multicast {
        wanted.insert(ALL_MULTICAST_AT, AddressEntry::AllMulticast);
    }
    if port.promiscuous {
        wanted.insert(PROMISCUOUS_AT, AddressEntry::Everything);
    }
    wanted
}

/// Whether the device matches by IP version; else by ethertype. Source: reference 5.11.
pub(super) fn matches_ip_version(caps: &FlowTableProps) -> bool {
    caps.ft_field_support()[0] & MATCH_IP_VERSION != 0
}

/// Mask or value of a traffic type.
fn traffic_match(traffic: TrafficType, ip_version: bool, mask: bool) -> FlowMatchLyr24 {
    use TrafficType::{Any, IpV4, IpV6, TcpV4, TcpV6, UdpV4, UdpV6};
    let value = FlowMatchLyr24::zeroed();
    if traffic == Any {
        return value;
    }
    let v4 = matches!(traffic, TcpV4 | UdpV4 | IpV4);
    let value = match (ip_version, mask) {
        (true, true) => value.with_ip_version(0xf),
        (true, false) => value.with_ip_version(if v4 { 4 } else { 6 }),
        (false, true) => value.with_ethertype(0xffff),
        (false, false) => value.with_ethertype(if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 }),
    };
    match traffic {
        TcpV4 | TcpV6 | UdpV4 | UdpV6 if mask => value.with_ip_protocol(0xff),
        TcpV4 | TcpV6 => value.with_ip_protocol(PROTOCOL_TCP),
        UdpV4 | UdpV6 => value.with_ip_protocol(PROTOCOL_UDP),
        Any | IpV4 | IpV6 => value,
    }
}

/// Mask or value of a destination address.
fn exact_mac(mac: MacAddr) -> FlowMatchLyr24 {
    let [a, b, c, d, e, f] = mac.0;
    FlowMatchLyr24::zeroed()
        .with_dmac_47_16(u32::from_be_bytes([a, b, c, d]))
        .with_dmac_15_0(u32::from_be_bytes([0, 0, e, f]))
}

/// The start of an entry that sends packets on.
fn forward(group: u32, value: FlowMatchLyr24, flow_tag: u32) -> FlowContext {
    FlowContext::zeroed()
        .with_group_id(group)
        .with_flow_tag(flow_tag)
        .with_action(action::FORWARD)
        .with_match_value(FlowMatchParam::zeroed().with_outer_headers(value))
}

pub(super) fn destination(kind: u32, id: u32) -> FlowDestination {
    FlowDestination::zeroed().with_destination_type(kind).with_destination_id(id)
}

fn table(
    control: &mut Control,
    level: u32,
    log_size: u32,
    made: &mut Vec<(Kind, u32)>,
) -> Result<u32, CommandError> {
    let context = FlowTableContext::zeroed().with_level(level).with_log_size(log_size);
    let input = CreateFlowTable::input()
        .with_table_type(TABLE_TYPE_NIC_RX)
        .with_flow_table_context(context);
    let id = control.execute::<CreateFlowTable>(&input, &[], &mut [])?.table_id();
    made.push((Kind::FlowTable, id));
    Ok(id)
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
    Ok(control.execute::<CreateFlowGroup>(&input, &[], &mut [])?.group_id())
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
    fn matches_are_literal() {
        let value = exact_mac(MacAddr([1, 2, 3, 4, 5, 6]));
        assert_eq!(value.0[0x08..0x0e], [1, 2, 3, 4, 5, 6]);
        let value = traffic_match(TrafficType::UdpV6, true, false);
        assert_eq!(value.0[0x10..0x14], [17, 0, 0x0c, 0]);
        let mask = traffic_match(TrafficType::UdpV6, true, true);
        assert_eq!(mask.0[0x10..0x14], [0xff, 0, 0x1e, 0]);
        let value = traffic_match(TrafficType::IpV4, false, false);
        assert_eq!(value.0[0x04..0x08], [0, 0, 0x08, 0x00]);
        assert_eq!(traffic_match(TrafficType::Any, true, true), FlowMatchLyr24::zeroed());
    }
}
