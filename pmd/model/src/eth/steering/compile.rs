//! Flow objects into the form that packets are compared with.

use std::sync::Arc;

use ferrocx_prm::Layout;

use super::{Criteria, Entry, Group, Interface, KEY_WORDS, Queues, Table, be32};
use crate::frame::rss::{FieldSelector, FlowHasher, HashFunction};
use crate::objects::{
    FlowEntry, FlowGroup, FlowTable, MissAction, Objects, RxHash, Tir, TirTarget, compiled,
};

/// Objects that are looked at in one step of work when some have changed.
pub(super) const LOOKS_PER_STEP: u64 = 16;

// What the function's budget is charged for the compiled form.
const _: () = {
    assert!(size_of::<Option<Interface>>() <= compiled::TIR_BYTES);
    // The former list of groups is there until the new one is done.
    assert!(3 * size_of::<Group>() <= 2 * compiled::GROUP_BYTES);
    // The compiled entry, its words, and while it is made another copy of these and their list.
    let words = 2 * (KEY_WORDS * size_of::<u32>() + size_of::<(u32, &FlowEntry)>());
    assert!(size_of::<Entry>() + words <= compiled::ENTRY_BYTES);
    assert!(size_of::<Option<Table>>() <= 64);
};

/// Compiles numbered objects into a vector that starts at the lowest number.
pub(super) fn dense<'a, T: 'a, C>(
    objects: impl Iterator<Item = (u32, &'a T)>,
    mut compile: impl FnMut(u32, &'a T) -> C,
) -> (u32, Vec<Option<C>>) {
    let mut first = 0;
    let mut out = Vec::new();
    for (number, object) in objects {
        if out.is_empty() {
            first = number;
        }
        let index = (number - first) as usize;
        out.resize_with(index + 1, || None);
        out[index] = Some(compile(number, object));
    }
    (first, out)
}

impl Table {
    /// Drops the groups that are gone or have changed.
    pub(super) fn keep_current(&mut self, objects: &Objects) {
        self.groups.retain(|group| {
            let now = objects.flow_groups.get(group.number);
            now.is_some_and(|now| now.changed == group.changed)
        });
        if self.groups.len() < self.groups.capacity() / 2 {
            self.groups.shrink_to_fit();
        }
    }
}

/// Compiles a table. The groups in `current`, which are in the order of the table's, stay as they
/// are.
pub(super) fn compile_table(
    objects: &Objects,
    table: &FlowTable,
    current: Vec<Group>,
    work: &mut u64,
) -> Table {
    let mut groups = Vec::with_capacity(table.groups.len());
    let mut current = current.into_iter().peekable();
    for number in &table.groups {
        let kept = current.next_if(|group| group.number == *number);
        let compiled = kept.or_else(|| {
            let group = objects.flow_groups.get(*number)?;
            *work += 1 + group.entries.len() as u64;
            Some(compile_group(*number, group))
        });
        groups.extend(compiled);
    }
    *work += groups.len() as u64 / LOOKS_PER_STEP;
    let miss = match table.miss {
        MissAction::Default => None,
        MissAction::Forward { table } => Some(table),
    };
    Table { changed: table.changed, level: table.level, miss, groups }
}

/// Queues to which an interface sends.
pub(super) fn queues(objects: &Objects, tir: &Tir) -> Queues {
    match tir.target {
        TirTarget::Direct { rqn } => Queues::One([rqn]),
        TirTarget::Indirect { rqtn } => {
            let rqns = objects.rqts.get(rqtn).map(|rqt| Arc::clone(&rqt.rqns));
            Queues::Table(rqns.unwrap_or_default())
        }
    }
}

/// Compiles a transport interface.
pub(super) fn compile_tir(objects: &Objects, tir: &Tir) -> Interface {
    let function = match tir.hash {
        RxHash::None => HashFunction::None,
        RxHash::InvertedXor8 => HashFunction::InvertedXor8,
        RxHash::Toeplitz => HashFunction::Toeplitz,
    };
    let selector = FieldSelector(tir.hash_fields_outer);
    Interface {
        changed: tir.changed,
        hasher: FlowHasher::new(function, tir.hash_symmetric, &tir.hash_key, selector),
        rqns: queues(objects, tir),
        takes_own: tir.self_lb_block & 3,
        domain: tir.transport_domain,
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]))
}

fn compile_group(number: u32, group: &FlowGroup) -> Group {
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
    let width = criteria.len();
    let mut values = Vec::with_capacity(group.entries.len() * width);
    for entry in group.entries.values() {
        let bytes = entry.value.as_bytes();
        values
            .extend(criteria.iter().map(|(word, mask)| be32(bytes, usize::from(*word) * 4) & mask));
    }
    let value = |at: u32| &values[at as usize * width..(at as usize + 1) * width];
    // Of entries with equal values the first counts: the sort is stable.
    let mut sorted: Vec<(u32, &FlowEntry)> = (0..).zip(group.entries.values()).collect();
    sorted.sort_by(|a, b| value(a.0).cmp(value(b.0)));
    let entry = |entry: &FlowEntry| Entry {
        action: entry.action,
        flow_tag: entry.flow_tag,
        destinations: entry.destinations.clone(),
        counters: entry.counters.clone(),
    };
    Group {
        number,
        changed: group.changed,
        is_foreign,
        values: sorted.iter().flat_map(|(at, _)| value(*at)).copied().collect(),
        entries: sorted.iter().map(|(_, of)| entry(of)).collect(),
        criteria,
    }
}
