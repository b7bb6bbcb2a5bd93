//! Steering objects that change: only what changed is compiled again, and what it costs is counted.

use ferrocx_prm::flow::{FlowMatchLyr24, FlowMatchParam};

use super::super::harness::*;
use super::{frame, port, put};
use crate::objects::{FlowDest, MissAction, RxHash, TirTarget};
use crate::wire::{Link, SplitMix64};

/// A match on the lower half of the destination's address.
fn to(low: u32) -> FlowMatchParam {
    FlowMatchParam::zeroed().with_outer_headers(FlowMatchLyr24::zeroed().with_dmac_15_0(low))
}

/// A match on the lower half of the source's address.
fn from(low: u32) -> FlowMatchParam {
    FlowMatchParam::zeroed().with_outer_headers(FlowMatchLyr24::zeroed().with_smac_15_0(low))
}

fn frame_to(low: u16, source: u16) -> [u8; 60] {
    let mut bytes = frame(1);
    bytes[4..6].copy_from_slice(&low.to_be_bytes());
    bytes[10..12].copy_from_slice(&source.to_be_bytes());
    bytes
}

/// A port with a queue of many buffers, and an interface that leads there.
struct Steered {
    port: Port,
    far: Link,
    cq: TestCq,
    rq: TestRq,
    buffer: ferrocx_bus::DmaBuf,
    tirn: u32,
    /// A buffer is posted that no frame has taken.
    is_posted: bool,
}

impl Steered {
    fn new() -> Self {
        let (mut port, far) = port();
        let cq = port.cq(6);
        let rq = port.rq(cq.cqn, 5, 4);
        let buffer = port.alloc(2048);
        let tirn = port.tir(TirTarget::Direct { rqn: rq.rqn }, RxHash::None, 0);
        Self { port, far, cq, rq, buffer, tirn, is_posted: false }
    }

    /// The tag with which a frame is received, if it is.
    fn tag(&mut self, bytes: &[u8]) -> Option<u32> {
        if !std::mem::replace(&mut self.is_posted, true) {
            self.rq.post(&data(2048, KEY, self.buffer.iova()));
        }
        put(&mut self.far, bytes);
        self.port.poll();
        let cqe = self.cq.poll()?;
        self.is_posted = false;
        Some(u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]))
    }

    /// The same, and the work that it was.
    fn work(&mut self, bytes: &[u8]) -> (Option<u32>, u64) {
        let before = self.port.state.objects.mkeys.steps();
        let tag = self.tag(bytes);
        (tag, self.port.state.objects.mkeys.steps() - before)
    }
}

#[test]
fn a_change_costs_what_changed_and_not_what_is_there() {
    const ENTRIES: u32 = 3000;
    let mut steered = Steered::new();
    let tirn = FlowDest::Tir(steered.tirn);
    let port = &mut steered.port;
    let next = port.table(1, MissAction::Default);
    let root = port.table(0, MissAction::Forward { table: next });
    port.group(root, 1, to(0xffff));
    for low in 0..ENTRIES {
        port.entry(root, 0, to(low), low + 1, &[tirn]);
    }
    port.group(next, 1, from(0xffff));
    port.state.objects.rx_root = Some(root);
    let (tag, work) = steered.work(&frame_to(77, 0));
    assert_eq!(tag, Some(78));
    assert!((u64::from(ENTRIES)..2 * u64::from(ENTRIES)).contains(&work), "{work} steps");
    for source in 0..10 {
        steered.port.entry(next, 0, from(source), 5000 + source, &[tirn]);
        let (tag, work) = steered.work(&frame_to(0xffff, source as u16));
        assert_eq!(tag, Some(5000 + source));
        assert!(work < 30, "{work} steps for one entry more in a small group");
    }
    let (tag, work) = steered.work(&frame_to(78, 0));
    assert_eq!(tag, Some(79));
    assert!(work < 10, "{work} steps where nothing changed");
}

#[test]
fn a_packet_is_compared_with_so_many_groups_and_no_more() {
    const GROUPS: u32 = (1 << 14) + 1;
    let mut steered = Steered::new();
    let tirn = FlowDest::Tir(steered.tirn);
    let port = &mut steered.port;
    let root = port.table(0, MissAction::Default);
    for low in 0..GROUPS {
        port.group(root, 1, to(0xffff));
        port.entry(root, low as usize, to(low), low + 1, &[tirn]);
    }
    port.state.objects.rx_root = Some(root);
    assert_eq!(steered.tag(&frame_to(3, 0)), Some(4));
    let (tag, work) = steered.work(&frame_to((GROUPS - 2) as u16, 0));
    assert_eq!((tag, work), (Some(GROUPS - 1), u64::from(GROUPS) - 1));
    let (tag, work) = steered.work(&frame_to((GROUPS - 1) as u16, 0));
    assert_eq!((tag, work), (None, u64::from(GROUPS) - 1));
    assert_eq!(steered.port.datapath.receive_drops().unwanted, 1);
}

/// After any change the tables lead where they lead when all of them are compiled anew.
#[test]
fn what_was_kept_is_what_would_be_compiled() {
    let mut rng = SplitMix64::new(0x57ee);
    let mut steered = Steered::new();
    let tirn = FlowDest::Tir(steered.tirn);
    let next = steered.port.table(1, MissAction::Default);
    let root = steered.port.table(0, MissAction::Default);
    steered.port.state.objects.rx_root = Some(root);
    let mut received = 0;
    for turn in 0..3000_u32 {
        let table = if rng.below(2) == 0 { root } else { next };
        let objects = &mut steered.port.state.objects;
        let groups = objects.flow_tables.get(table).expect("the table").groups.len();
        let any = rng.below(groups.max(1) as u64) as usize;
        let low = rng.below(12) as u32;
        let value = if any.is_multiple_of(2) { to(low) } else { from(low) };
        match rng.below(8) {
            0 if groups < 5 => {
                let mask = if groups.is_multiple_of(2) { to(0xffff) } else { from(0xffff) };
                steered.port.group(table, 1, mask);
            }
            // The last one, so that masks stay where they are.
            1 if groups > 2 => {
                let of = objects.flow_tables.get_mut(table).expect("the table");
                let group = of.groups.pop().expect("a group");
                objects.flow_groups.remove(group);
                objects.table_changed(table);
            }
            2 if groups > 0 => {
                let number = objects.flow_tables.get(table).expect("the table").groups[any];
                let group = objects.flow_groups.get_mut(number).expect("the group");
                group.entries.pop_first();
                objects.group_changed(number);
            }
            3 => {
                let miss = match rng.below(2) {
                    0 => MissAction::Default,
                    _ => MissAction::Forward { table: next },
                };
                objects.flow_tables.get_mut(root).expect("the table").miss = miss;
                objects.table_changed(root);
            }
            _ if groups > 0 => {
                let to = if table == root && low == 5 { FlowDest::Table(next) } else { tirn };
                steered.port.entry(table, any, value, turn + 1, &[to]);
            }
            _ => {}
        }
        let bytes = frame_to(rng.below(40) as u16, rng.below(40) as u16);
        let kept = steered.tag(&bytes);
        steered.port.datapath.reset();
        let compiled = steered.tag(&bytes);
        assert_eq!(kept, compiled, "turn {turn}");
        received += u32::from(kept.is_some());
    }
    assert!((300..2700).contains(&received), "{received} frames received");
}
