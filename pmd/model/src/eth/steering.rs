//! Flow steering: which transport interfaces get a packet.
//!
//! The flow objects are compiled into a form that compares whole words; it is built again when
//! the objects have changed. A packet starts in the root table of its direction. In each table the
//! matching entry with the lowest index decides; without one, the table's miss action does.
//!
//! Source: reference 5.12 (tables, groups, entries, match fields), 4.3 (SET_FLOW_TABLE_ROOT,
//! SET_FTE).

use std::sync::Arc;

use arrayvec::ArrayVec;
use ferrocx_prm::Layout;

use super::loopback::LoopsBack;
use crate::frame::packet::{Cast, ETH_HEADER_BYTES, Fragment, L3, L4, Packet, TPID_CTAG};
use crate::frame::recent::Numbered;
use crate::frame::rss::{FieldSelector, FlowHash, FlowHasher, HashFunction};
use crate::objects::{
    FlowDest, FlowEntry, FlowGroup, MissAction, Objects, RxHash, Tir, TirTarget, compiled,
    flow_action,
};

/// Words of the match fields that a packet can fill: outer headers and misc, 64 bytes each.
const KEY_WORDS: usize = 32;
/// Tables that a packet may pass through before it is dropped, copies included.
const MAX_TABLES: usize = 128;
/// Transport interfaces, and counters, that one packet can reach. More are dropped.
const MAX_COPIES: usize = 64;
/// Entries up to which a group is searched one by one.
const LINEAR_ENTRIES: usize = 8;
/// log2 of the verdicts that are remembered.
const LOG_FLOWS: u32 = 5;

/// The match fields of one packet, as big-endian words in the order of `fte_match_param`.
pub(crate) type Key = [u32; KEY_WORDS];

/// First bit of words that [`layer2`] does not fill.
const LAYER2_WORDS: u32 = 1 << 4;

/// Bits of the words that hold the ports of TCP and of UDP. Source: reference 5.12.
const PORT_WORDS: u32 = 1 << 5 | 1 << 7;

/// For tables that compare nothing.
const NO_KEY: Key = [0; KEY_WORDS];

/// Destinations of a packet, with the tags and counters on the way.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Transport interfaces, one copy each.
    pub(super) tirs: ArrayVec<u32, MAX_COPIES>,
    /// Flow counters to count it.
    pub(super) counters: ArrayVec<u32, MAX_COPIES>,
    /// Tag for the completion.
    pub(super) flow_tag: u32,
    /// An entry said to drop it; otherwise no entry wanted it.
    pub(super) is_dropped: bool,
}

impl Verdict {
    fn clear(&mut self) {
        self.tirs.clear();
        self.counters.clear();
        self.flow_tag = 0;
        self.is_dropped = false;
    }
}

/// Words of the key that a group compares, each with its mask.
type Criteria = ArrayVec<(u8, u32), KEY_WORDS>;

#[derive(Debug)]
struct Group {
    criteria: Criteria,
    /// A part is compared that no packet here has (inner headers, misc 2 and further).
    is_foreign: bool,
    /// Masked values, `criteria.len()` words per entry, ascending.
    values: Vec<u32>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    action: u32,
    flow_tag: u32,
    destinations: Vec<FlowDest>,
    counters: Vec<u32>,
}

#[derive(Debug)]
struct Table {
    level: u32,
    miss: Option<u32>,
    groups: Vec<Group>,
}

/// The tables, by number.
#[derive(Debug, Default)]
struct Tables {
    first: u32,
    dense: Vec<Option<Table>>,
}

impl Tables {
    fn walk(&self, root: u32, key: &Key, verdict: &mut Verdict) {
        let mut open: ArrayVec<u32, MAX_COPIES> = ArrayVec::new();
        open.push(root);
        let mut visited = 0;
        while let Some(number) = open.pop() {
            visited += 1;
            let Some(table) = self.get(number).filter(|_| visited <= MAX_TABLES) else { return };
            let Some(entry) = table.groups.iter().find_map(|group| group.find(key)) else {
                if let Some(next) = table.miss {
                    let _ = open.try_push(next);
                }
                continue;
            };
            if entry.flow_tag != 0 {
                verdict.flow_tag = entry.flow_tag;
            }
            if entry.action & flow_action::COUNT != 0 {
                // Beyond the bound a counter misses the packet; the packet itself is not lost.
                for id in &entry.counters {
                    let _ = verdict.counters.try_push(*id);
                }
            }
            if entry.action & flow_action::DROP != 0 {
                verdict.is_dropped = true;
                continue;
            }
            if entry.action & flow_action::FORWARD == 0 {
                continue;
            }
            for destination in &entry.destinations {
                match *destination {
                    FlowDest::Tir(tirn) => {
                        let _ = verdict.tirs.try_push(tirn);
                    }
                    // Entries forward to higher levels only, so there is no way back.
                    FlowDest::Table(next) => {
                        if self.get(next).is_some_and(|next| next.level > table.level) {
                            let _ = open.try_push(next);
                        }
                    }
                }
            }
        }
    }

    #[inline]
    fn get(&self, number: u32) -> Option<&Table> {
        self.dense.get(number.wrapping_sub(self.first) as usize)?.as_ref()
    }
}

/// Receive queues of an interface.
#[derive(Debug)]
enum Queues {
    One([u32; 1]),
    Table(Arc<[u32]>),
}

impl Queues {
    #[inline]
    fn list(&self) -> &[u32] {
        match self {
            Self::One(rqn) => rqn,
            Self::Table(rqns) => rqns,
        }
    }
}

/// A transport interface, ready to choose a queue.
#[derive(Debug)]
struct Interface {
    hasher: FlowHasher,
    /// One queue, or an indirection table.
    rqns: Queues,
    /// Packets that its own transport domain sends and it takes: bit 0 unicast, bit 1 multicast.
    takes_own: u32,
    /// Transport domain: packets that others of this port send are taken.
    domain: u32,
}

impl Interface {
    /// Frames that may come back to the port once this interface is added.
    fn widen(so_far: LoopsBack, interface: &Self) -> LoopsBack {
        match so_far {
            _ if interface.takes_own != 0 => LoopsBack::All,
            LoopsBack::Never => LoopsBack::Others(interface.domain),
            LoopsBack::Others(domain) if domain == interface.domain => so_far,
            LoopsBack::Others(_) | LoopsBack::All => LoopsBack::All,
        }
    }
}

/// A packet seen before, and where it went: packets with the same key go the same way.
#[derive(Debug, Default)]
struct Flow {
    /// `None` while nothing is remembered here.
    root: Option<u32>,
    key: Key,
    verdict: Verdict,
}

/// The compiled steering objects of one function.
#[derive(Debug, Default)]
pub(super) struct Steering {
    generation: Option<u64>,
    tables: Tables,
    first_tir: u32,
    tirs: Vec<Option<Interface>>,
    /// Frames of the port itself that some interface takes.
    loops_back: LoopsBack,
    /// Words of the key that some group compares: bit n for word n.
    compared: u32,
    /// Verdicts by [`slot`] of the key; empty as long as nothing was compiled.
    flows: Box<[Flow]>,
    /// The packet evaluated last, by number, root and the ports if some group compares them, and
    /// where its verdict is; a number of 0 is no packet's.
    last: (u64, Option<u32>, u32),
    at: usize,
    /// For packets that no table sees.
    nowhere: Verdict,
}

impl Steering {
    /// Forgets everything: the function was reset.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets everything if the objects have changed since it was compiled.
    #[inline]
    pub(super) fn forget_stale(&mut self, objects: &Objects) {
        if self.generation.is_some_and(|compiled| compiled != objects.steering_generation) {
            self.clear();
        }
    }

    /// Compiles the objects again if they have changed.
    #[inline]
    pub(super) fn refresh(&mut self, objects: &Objects) {
        if self.generation != Some(objects.steering_generation) {
            self.compile(objects);
        }
    }

    #[cold]
    fn compile(&mut self, objects: &Objects) {
        let (first, dense_tables) = dense(objects.flow_tables.iter(), |table| {
            let groups: Vec<Group> = table
                .groups
                .iter()
                .filter_map(|number| objects.flow_groups.get(*number))
                .map(compile_group)
                .collect();
            let miss = match table.miss {
                MissAction::Default => None,
                MissAction::Forward { table } => Some(table),
            };
            Table { level: table.level, miss, groups }
        });
        self.tables = Tables { first, dense: dense_tables };
        let groups = self.tables.dense.iter().flatten().flat_map(|table| &table.groups);
        let words = groups.flat_map(|group| &group.criteria).map(|(word, _)| 1 << word);
        self.compared = words.fold(0, |all, word: u32| all | word);
        (self.first_tir, self.tirs) = dense(objects.tirs.iter(), |tir| compile_tir(objects, tir));
        self.loops_back = self.tirs.iter().flatten().fold(LoopsBack::Never, Interface::widen);
        self.flows = (0..1 << LOG_FLOWS).map(|_| Flow::default()).collect();
        self.last = Default::default();
        self.generation = Some(objects.steering_generation);
    }

    /// Frames of the port itself that some interface takes.
    #[inline]
    pub(super) fn loops_back(&self) -> LoopsBack {
        self.loops_back
    }

    /// Whether this interface takes those of a transport domain.
    pub(super) fn takes_own(&self, tirn: u32, domain: u32, cast: Cast) -> bool {
        let bit = if cast == Cast::Unicast { 1 } else { 2 };
        let tir = self.tirs.get(tirn.wrapping_sub(self.first_tir) as usize);
        let takes = |tir: &Interface| tir.takes_own & bit != 0 || tir.domain != domain;
        tir.is_some_and(|tir| tir.as_ref().is_some_and(takes))
    }

    /// Sends a packet through the tables from `root` on; where it goes is [`Steering::verdict`].
    #[inline]
    pub(super) fn evaluate(&mut self, root: Option<u32>, frame: &[u8], packet: Numbered<'_>) {
        let ports = if self.compared & PORT_WORDS == 0 { 0 } else { ports(frame, packet.packet) };
        let now = (packet.number, root, ports);
        if packet.number == 0 || now != self.last {
            self.last = now;
            self.look_up(root, frame, packet.packet);
        }
    }

    #[inline(never)]
    fn look_up(&mut self, root: Option<u32>, frame: &[u8], packet: &Packet) {
        self.at = usize::MAX;
        let Some(root) = root else { return };
        let key = match self.compared {
            0 => NO_KEY,
            LAYER2_WORDS.. => key(frame, packet),
            _ => layer2(frame, packet),
        };
        self.at = slot(&key);
        let Some(flow) = self.flows.get_mut(self.at) else { return };
        if flow.root != Some(root) || flow.key != key {
            flow.verdict.clear();
            self.tables.walk(root, &key, &mut flow.verdict);
            (flow.root, flow.key) = (Some(root), key);
        }
    }

    /// Where the packet evaluated last goes.
    #[inline]
    pub(super) fn verdict(&self) -> &Verdict {
        self.flows.get(self.at).map_or(&self.nowhere, |flow| &flow.verdict)
    }

    /// The queue that an interface chooses for a packet, and the hash that chose it.
    #[inline]
    pub(super) fn queue(
        &self,
        tirn: u32,
        frame: &[u8],
        packet: &Packet,
    ) -> Option<(u32, FlowHash)> {
        let tir = self.tirs.get(tirn.wrapping_sub(self.first_tir) as usize)?.as_ref()?;
        let hash = tir.hasher.hash(frame, packet);
        // A table has a power of two of entries: reference 5.9.
        let rqns = tir.rqns.list();
        let index = hash.value as usize & (rqns.len().wrapping_sub(1));
        rqns.get(index).map(|rqn| (*rqn, hash))
    }
}

// What the function's budget is charged for the compiled form.
const _: () = {
    assert!(size_of::<Option<Interface>>() <= compiled::TIR_BYTES);
    // The list of groups doubles.
    assert!(3 * size_of::<Group>() <= 2 * compiled::GROUP_BYTES);
    // The compiled entry, its words, and while it is made another copy of these and their list.
    let words = 2 * (KEY_WORDS * size_of::<u32>() + size_of::<(Vec<u32>, &FlowEntry)>());
    assert!(size_of::<Entry>() + words <= compiled::ENTRY_BYTES);
    assert!(size_of::<Option<Table>>() <= 64);
};

/// Compiles numbered objects into a vector that starts at the lowest number.
fn dense<'a, T: 'a, C>(
    objects: impl Iterator<Item = (u32, &'a T)>,
    mut compile: impl FnMut(&'a T) -> C,
) -> (u32, Vec<Option<C>>) {
    let mut first = 0;
    let mut out = Vec::new();
    for (number, object) in objects {
        if out.is_empty() {
            first = number;
        }
        let index = (number - first) as usize;
        out.resize_with(index + 1, || None);
        out[index] = Some(compile(object));
    }
    (first, out)
}

fn compile_tir(objects: &Objects, tir: &Tir) -> Interface {
    let function = match tir.hash {
        RxHash::None => HashFunction::None,
        RxHash::InvertedXor8 => HashFunction::InvertedXor8,
        RxHash::Toeplitz => HashFunction::Toeplitz,
    };
    let selector = FieldSelector(tir.hash_fields_outer);
    let rqns = match tir.target {
        TirTarget::Direct { rqn } => Queues::One([rqn]),
        TirTarget::Indirect { rqtn } => {
            let rqns = objects.rqts.get(rqtn).map(|rqt| Arc::clone(&rqt.rqns));
            Queues::Table(rqns.unwrap_or_default())
        }
    };
    Interface {
        hasher: FlowHasher::new(function, tir.hash_symmetric, &tir.hash_key, selector),
        rqns,
        takes_own: tir.self_lb_block & 3,
        domain: tir.transport_domain,
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

fn compile_group(group: &FlowGroup) -> Group {
    let mut criteria = Criteria::new();
    let mut is_foreign = false;
    for (index, mask) in words(group.mask.as_bytes()).enumerate() {
        // Each part of 64 bytes counts only if it is enabled.
        let is_enabled = group.criteria_enable >> (index / 16) & 1 != 0;
        if mask == 0 || !is_enabled {
            continue;
        }
        match u8::try_from(index) {
            Ok(word) if index < KEY_WORDS => criteria.push((word, mask)),
            _ => is_foreign = true,
        }
    }
    // Of entries with equal values the first counts: the sort is stable.
    let mut sorted: Vec<(Vec<u32>, &FlowEntry)> = group
        .entries
        .values()
        .map(|entry| {
            let all: Vec<u32> = words(entry.value.as_bytes()).take(KEY_WORDS).collect();
            let value = criteria.iter().map(|(word, mask)| all[usize::from(*word)] & mask);
            (value.collect(), entry)
        })
        .collect();
    sorted.sort_by(|a, b| a.0.cmp(&b.0));
    Group {
        criteria,
        is_foreign,
        values: sorted.iter().flat_map(|(value, _)| value.iter().copied()).collect(),
        entries: sorted
            .iter()
            .map(|(_, entry)| Entry {
                action: entry.action,
                flow_tag: entry.flow_tag,
                destinations: entry.destinations.clone(),
                counters: entry.counters.clone(),
            })
            .collect(),
    }
}

impl Group {
    /// The entry that the key matches.
    #[inline]
    fn find(&self, key: &Key) -> Option<&Entry> {
        if self.is_foreign {
            return None;
        }
        let width = self.criteria.len();
        if width == 0 {
            return self.entries.first();
        }
        let mut wanted = [0; KEY_WORDS];
        for (into, (word, mask)) in wanted.iter_mut().zip(&self.criteria) {
            *into = key[usize::from(*word)] & mask;
        }
        let wanted = &wanted[..width];
        let value = |index: usize| &self.values[index * width..(index + 1) * width];
        if self.entries.len() <= LINEAR_ENTRIES {
            let index = (0..self.entries.len()).find(|index| value(*index) == wanted)?;
            return self.entries.get(index);
        }
        // The first of equal values.
        let (mut low, mut high) = (0, self.entries.len());
        while low < high {
            let middle = low.midpoint(high);
            if value(middle) < wanted { low = middle + 1 } else { high = middle }
        }
        self.entries.get(low).filter(|_| value(low) == wanted)
    }
}

/// Where the verdict for a key is remembered. Ports and the ends of addresses differ most.
#[inline]
fn slot(key: &Key) -> usize {
    let mixed = key[5] ^ key[7] ^ key[11].rotate_left(8) ^ key[15] ^ key[2];
    (mixed.wrapping_mul(0x9e37_79b1) >> (32 - LOG_FLOWS)) as usize
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u32 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]]).into()
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    let word = &bytes[at..at + 4];
    u32::from_be_bytes([word[0], word[1], word[2], word[3]])
}

/// Both ports of TCP or UDP.
#[inline]
fn ports(frame: &[u8], packet: &Packet) -> u32 {
    if packet.l4 == L4::None { 0 } else { be32(frame, packet.l4_offset) }
}

/// The match fields in the first four words: addresses, ethertype, the outer tag.
#[inline]
fn layer2(frame: &[u8], packet: &Packet) -> Key {
    let mut key = NO_KEY;
    if frame.len() < ETH_HEADER_BYTES {
        return key;
    }
    key[0] = be32(frame, 6);
    key[1] = be16(frame, 10) << 16 | u32::from(packet.ethertype);
    key[2] = be32(frame, 0);
    key[3] = be16(frame, 4) << 16;
    if packet.tags > 0 {
        key[3] |= u32::from(packet.tci[0]);
    }
    key
}

/// Fills the match fields. Source: reference 5.12, `fte_match_set_lyr_2_4` and
/// `fte_match_set_misc`.
pub(crate) fn key(frame: &[u8], packet: &Packet) -> Key {
    let mut key = layer2(frame, packet);
    if frame.len() < ETH_HEADER_BYTES {
        return key;
    }
    if packet.tags > 0 {
        key[4] |= if packet.tpid[0] == TPID_CTAG { 1 << 15 } else { 1 << 14 };
    }
    if packet.tags > 1 {
        key[18] = u32::from(packet.tci[1]) << 16;
    }
    layer3(&mut key, frame, packet);
    match packet.l4 {
        L4::None => {}
        L4::Tcp => {
            let at = packet.l4_offset;
            key[4] |= be16(frame, at + 12) & 0x1ff;
            key[5] = be32(frame, at);
        }
        L4::Udp => key[7] = be32(frame, packet.l4_offset),
    }
    key
}

#[inline]
fn layer3(key: &mut Key, frame: &[u8], packet: &Packet) {
    let at = packet.l3_offset;
    match packet.l3 {
        L3::None => return,
        L3::Ipv4 => {
            key[4] |= 4 << 9 | u32::from(frame[at + 1]) << 16;
            key[6] = u32::from(frame[at] & 0xf) << 12 | u32::from(frame[at + 8]);
            key[11] = be32(frame, at + 12);
            key[15] = be32(frame, at + 16);
        }
        L3::Ipv6 => {
            // Traffic class: low four bits of the first byte, high four of the second.
            let class = be16(frame, at) >> 4 & 0xff;
            key[4] |= 6 << 9 | class << 16;
            key[6] = u32::from(frame[at + 7]);
            for word in 0..4 {
                key[8 + word] = be32(frame, at + 8 + word * 4);
                key[12 + word] = be32(frame, at + 24 + word * 4);
            }
            key[23] = be32(frame, at) & 0xf_ffff;
        }
    }
    key[4] |= u32::from(packet.ip_protocol) << 24;
    key[4] |= u32::from(packet.fragment != Fragment::No) << 13;
}
