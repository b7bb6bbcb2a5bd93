//! Flow steering: which transport interfaces get a packet.
//!
//! The flow objects are compiled into a form that compares whole words; what has changed of them
//! is compiled again when the next frame is there, and counts as work of that step. A packet
//! starts in the root table of its direction. In each table the matching entry with the lowest
//! index decides; without one, the table's miss action does.
//!
//! Source: reference 5.12 (tables, groups, entries, match fields), 4.3 (SET_FLOW_TABLE_ROOT,
//! SET_FTE).

mod compile;

use std::sync::Arc;

use arrayvec::ArrayVec;

use self::compile::{compile_table, compile_tir, dense, queues};
use super::loopback::LoopsBack;
use crate::frame::packet::{Cast, ETH_HEADER_BYTES, Fragment, L3, L4, Packet, TPID_CTAG};
use crate::frame::recent::Numbered;
use crate::frame::rss::{FlowHash, FlowHasher};
use crate::objects::{FlowDest, Objects, flow_action};

/// Words of the match fields that a packet can fill: outer headers and misc, 64 bytes each.
const KEY_WORDS: usize = 32;
/// Tables that a packet may pass through before it is dropped, copies included.
const MAX_TABLES: usize = 128;
/// Groups that a packet is compared with, of all tables, before it is dropped: some milliseconds of
/// work at worst.
const MAX_GROUPS: usize = 1 << 14;
/// Transport interfaces, and counters, that one packet can reach. More are dropped.
const MAX_COPIES: usize = 64;
/// Entries up to which a group is searched one by one.
const LINEAR_ENTRIES: usize = 8;
/// Steps of work that the hash of a transport interface is.
const TIR_STEPS: u64 = 128;
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
    number: u32,
    /// What it is compiled from.
    changed: u64,
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
    /// What it is compiled from.
    changed: u64,
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
    /// Where a packet goes; gives the number of groups that it was compared with.
    fn walk(&self, root: u32, key: &Key, verdict: &mut Verdict) -> usize {
        let mut open: ArrayVec<u32, MAX_COPIES> = ArrayVec::new();
        open.push(root);
        let (mut visited, mut compared) = (0, 0);
        while let Some(number) = open.pop() {
            visited += 1;
            let Some(table) = self.get(number).filter(|_| visited <= MAX_TABLES) else { break };
            let groups = table.groups.iter().take(MAX_GROUPS - compared);
            let found = groups.inspect(|_| compared += 1).find_map(|group| group.find(key));
            let Some(entry) = found else {
                if compared == MAX_GROUPS {
                    break;
                }
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
        compared
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
    /// What it is compiled from.
    changed: u64,
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
    /// Generation of the objects that this is the compiled form of.
    generation: Option<u64>,
    /// Generation up to which nothing is kept that is gone or has changed; `None` before the first.
    pruned: Option<u64>,
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

    /// Forgets what was compiled of objects that are gone or have changed since.
    #[inline]
    pub(super) fn forget_stale(&mut self, objects: &Objects) {
        if self.pruned.is_some_and(|pruned| pruned != objects.steering_generation) {
            self.prune(objects);
        }
    }

    /// Compiles what has changed of the objects.
    #[inline]
    pub(super) fn refresh(&mut self, objects: &Objects) {
        if self.generation != Some(objects.steering_generation) {
            self.compile(objects);
        }
    }

    #[cold]
    fn prune(&mut self, objects: &Objects) {
        self.generation = None;
        self.pruned = Some(objects.steering_generation);
        for (number, slot) in (self.tables.first..).zip(&mut self.tables.dense) {
            let Some(compiled) = slot else { continue };
            match objects.flow_tables.get(number) {
                None => *slot = None,
                Some(table) if table.changed == compiled.changed => {}
                Some(_) => compiled.keep_current(objects),
            }
        }
        for (number, slot) in (self.first_tir..).zip(&mut self.tirs) {
            let Some(compiled) = slot else { continue };
            match objects.tirs.get(number).filter(|tir| tir.changed == compiled.changed) {
                None => *slot = None,
                // The table of queues may have been exchanged.
                Some(tir) => compiled.rqns = queues(objects, tir),
            }
        }
    }

    #[cold]
    fn compile(&mut self, objects: &Objects) {
        self.prune(objects);
        // Those that are gone have places here, too.
        let places = objects.flow_tables.numbers() + objects.tirs.numbers();
        let mut work = places as u64 / compile::LOOKS_PER_STEP;
        let mut former = std::mem::take(&mut self.tables);
        let (first, tables) = dense(objects.flow_tables.iter(), |number, table| {
            let slot = former.dense.get_mut(number.wrapping_sub(former.first) as usize);
            match slot.and_then(Option::take) {
                Some(compiled) if compiled.changed == table.changed => compiled,
                compiled => {
                    let groups = compiled.map_or_else(Vec::new, |compiled| compiled.groups);
                    compile_table(objects, table, groups, &mut work)
                }
            }
        });
        self.tables = Tables { first, dense: tables };
        let groups = self.tables.dense.iter().flatten().flat_map(|table| &table.groups);
        let words = groups.flat_map(|group| &group.criteria).map(|(word, _)| 1 << word);
        self.compared = words.fold(0, |all, word: u32| all | word);
        let (former_first, mut former) = (self.first_tir, std::mem::take(&mut self.tirs));
        (self.first_tir, self.tirs) = dense(objects.tirs.iter(), |number, tir| {
            let slot = former.get_mut(number.wrapping_sub(former_first) as usize);
            slot.and_then(Option::take).unwrap_or_else(|| {
                work += TIR_STEPS;
                compile_tir(objects, tir)
            })
        });
        self.loops_back = self.tirs.iter().flatten().fold(LoopsBack::Never, Interface::widen);
        self.flows = (0..1 << LOG_FLOWS).map(|_| Flow::default()).collect();
        self.last = Default::default();
        self.generation = Some(objects.steering_generation);
        objects.mkeys.work(work);
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
    pub(super) fn evaluate(&mut self, objects: &Objects, frame: &[u8], packet: Numbered<'_>) {
        let ports = if self.compared & PORT_WORDS == 0 { 0 } else { ports(frame, packet.packet) };
        let now = (packet.number, objects.rx_root, ports);
        if packet.number == 0 || now != self.last {
            self.last = now;
            self.look_up(objects, frame, packet.packet);
        }
    }

    #[inline(never)]
    fn look_up(&mut self, objects: &Objects, frame: &[u8], packet: &Packet) {
        self.at = usize::MAX;
        let Some(root) = objects.rx_root else { return };
        let key = match self.compared {
            0 => NO_KEY,
            LAYER2_WORDS.. => key(frame, packet),
            _ => layer2(frame, packet),
        };
        self.at = slot(&key);
        let Some(flow) = self.flows.get_mut(self.at) else { return };
        if flow.root != Some(root) || flow.key != key {
            flow.verdict.clear();
            let compared = self.tables.walk(root, &key, &mut flow.verdict);
            objects.mkeys.work(compared as u64);
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
