//! Memory keys of any content, bound and ended by any work requests, and used by the queue pair and
//! by a peer: no panic, no hang, no more memory than the budget, no request that completes twice.
#![no_main]

#[path = "../../model/tests/common/mod.rs"]
mod common;

use arbitrary::{Result, Unstructured};
use common::roce::{Peer, RC, Target, TestQp, Work, work};
use common::{input, words};
use ferrocx_fuzz::{REACHED_BYTES, word};
use ferrocx_model::NicConfig;
use ferrocx_model::config::MIN_MEMORY_BYTES;
use ferrocx_model::wire::{Wire, link};
use libfuzzer_sys::fuzz_target;

/// Opcode of a request that changes a key.
const UMR: u32 = 0x25;
/// Keys that a sequence has at most.
const KEYS: usize = 8;

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = sequence(&mut Unstructured::new(data));
});

/// An address near the peer's memory, or anywhere.
fn address(u: &mut Unstructured<'_>, peer: &Peer) -> Result<u64> {
    Ok(match u.int_in_range(0..=3)? {
        0 => u.arbitrary()?,
        1 => u.int_in_range(0..=0x1_0000)?,
        _ => peer.memory.iova() + u.int_in_range(0..=0x1_0000_u64)?,
    })
}

/// Entries of a translation: pages, or pieces with their keys.
fn entries(u: &mut Unstructured<'_>, peer: &Peer, keys: &[u32], most: usize) -> Result<Vec<u8>> {
    let mut list = Vec::new();
    for _ in 0..u.int_in_range(0..=most)? {
        if u.arbitrary()? {
            let key = *u.choose(keys)?;
            list.extend(words(&[word(u)?, key]));
            list.extend(address(u, peer)?.to_be_bytes());
        } else {
            for _ in 0..2 {
                list.extend((address(u, peer)? & !0xfff | 3).to_be_bytes());
            }
        }
    }
    list.resize(list.len().next_multiple_of(64), 0);
    Ok(list)
}

/// A key by command, with some words of its context wrong.
fn create(u: &mut Unstructured<'_>, peer: &mut Peer, keys: &mut Vec<u32>) -> Result<()> {
    let list = entries(u, peer, keys, 32)?;
    let octwords = list.len() as u32 / 16;
    let mode = u.int_in_range(0..=3)?;
    let (free, room) = (u32::from(u.arbitrary::<bool>()?), u.int_in_range(0..=64)?);
    let mut fields = vec![
        (0, 0x0200_0000),
        (0x10, free << 30 | 1 << 15 | mode << 8 | 0xf << 10),
        (0x14, 0xffff_ff00 | u.int_in_range(0..=255)?),
        (0x1c, peer.pd | u.int_in_range(0..=1)? << 24),
        (0x44, octwords.max(room)),
        (0x48, *u.choose(&[12, 12, 16, 0, 31])?),
        (0x60, octwords),
    ];
    for _ in 0..u.int_in_range(0..=2)? {
        fields.push((u.int_in_range(0x10..=0x60)? & !3, word(u)?));
    }
    let mut create = input(0x110, &fields);
    create.extend(list);
    peer.host.post(0, &create, 0x10);
    peer.host.ring_bell(1);
    peer.host.step();
    if let Some(done) = peer.host.take(0, 0x10)
        && done.delivery == 0
        && done.status() == 0
        && keys.len() < KEYS
    {
        keys.push(done.word(8) << 8);
    }
    Ok(())
}

/// What stands behind the control segment of a request that changes a key.
fn change(u: &mut Unstructured<'_>, peer: &Peer, keys: &[u32]) -> Result<Vec<u8>> {
    let list = entries(u, peer, keys, 8)?;
    let octwords = list.len() as u32 / 16;
    let inline: bool = u.arbitrary()?;
    let flags = u32::from(inline) << 31 | u.int_in_range(0..=7)? << 28;
    let counts = if u.ratio(7, 8)? { octwords << 16 } else { word(u)? };
    let mut bytes = words(&[flags, counts]);
    let register = 1 | 2 | 1 << 6 | 1 << 8 | 1 << 13 | 0xf << 17 | 1 << 23 | 1 << 29;
    let mask: u64 = match u.int_in_range(0..=3)? {
        0 | 1 => register,
        2 => 1 << 29,
        _ => u.arbitrary()?,
    };
    bytes.extend(mask.to_be_bytes());
    // The offset into a list that is changed in part, and what is reserved.
    bytes.extend(words(&[0, if u.ratio(1, 4)? { word(u)? } else { 0 }]));
    bytes.resize(48, 0);
    let free = u.int_in_range(0..=1)?;
    bytes.extend(words(&[free << 30 | 0xf << 10 | 1 << 15, 0xffff_ff00, 0, 1 << 24]));
    bytes.extend(address(u, peer)?.to_be_bytes());
    bytes.extend(u64::from(word(u)?).to_be_bytes());
    bytes.resize(48 + 0x34, 0);
    bytes.extend(words(&[octwords, 12, 0]));
    if inline {
        bytes.extend(list);
    } else {
        peer.write(32 << 10, &list);
        bytes.extend(common::roce::data(
            list.len() as u32,
            peer.key,
            peer.memory.iova() + (32 << 10),
        ));
    }
    bytes.resize(bytes.len().next_multiple_of(16), 0);
    Ok(bytes)
}

/// A request that goes through a key: a SEND from it, a WRITE to it, or a READ of it.
fn access(u: &mut Unstructured<'_>, peer: &mut Peer, qp: &mut TestQp, keys: &[u32]) -> Result<()> {
    let near = *u.choose(keys)? | u.int_in_range(0..=255)?;
    let far = *u.choose(keys)? | u.int_in_range(0..=255)?;
    let opcode = *u.choose(&[0x0a, 0x08, 0x10, 0x01, 0x12])?;
    let (va, len) = (address(u, peer)?, u.int_in_range(0..=6000)?);
    let mut rest = Vec::new();
    if opcode != 0x0a && opcode != 0x01 {
        rest.extend(address(u, peer)?.to_be_bytes());
        rest.extend(words(&[far, 0]));
    }
    if opcode == 0x12 {
        rest.extend([0; 16]);
    }
    rest.extend(common::roce::data(if opcode == 0x12 { 8 } else { len }, near, va));
    peer.post_send(qp, &Work { imm: far, ..work(opcode) }, &rest);
    Ok(())
}

fn sequence(u: &mut Unstructured<'_>) -> Result<()> {
    let (near, mut far) = link(1 << 18);
    let config = NicConfig { memory_bytes: MIN_MEMORY_BYTES, ..NicConfig::default() };
    let mut peer = Peer::with(1, near, config);
    peer.memory = peer.host.heap.alloc(REACHED_BYTES, 4096).expect("room");
    let qp = peer.create_qp(RC);
    // Connected to itself: the far end of the cable sends back what it gets.
    let to = Target {
        qpn: qp.qpn,
        mac: peer.mac,
        ip: peer.ip,
        send_psn: 0xff_fff0,
        receive_psn: 0xff_fff0,
        retry: 1,
        rnr_retry: 1,
    };
    peer.connect(&qp, RC, &to, 1);
    let mut qp = qp;
    let mut keys = vec![peer.key];
    let (mut posted, mut completed) = (0, 0);
    while !u.is_empty() {
        match u.int_in_range(0..=6)? {
            0 => create(u, &mut peer, &mut keys)?,
            1 | 2 if posted < completed + 8 => {
                let bytes = change(u, &peer, &keys)?;
                let key = *u.choose(&keys)? | u.int_in_range(0..=255)?;
                peer.post_send(&mut qp, &Work { imm: key, fence: 3, ..work(UMR) }, &bytes);
                posted += 1;
            }
            3 if posted < completed + 8 => {
                peer.post_receive(&mut qp, u.int_in_range(0..=0x1000)?, u.int_in_range(0..=2000)?);
                posted += 1;
            }
            4 | 5 if posted < completed + 8 => {
                access(u, &mut peer, &mut qp, &keys)?;
                posted += 1;
            }
            _ => {}
        }
        for _ in 0..u.int_in_range(1..=8)? {
            peer.host.step();
            let now = peer.host.now_ns;
            let mut back = Vec::new();
            while let Some(frame) = far.receive(now) {
                back.push(frame.bytes.to_vec());
            }
            for frame in back {
                if let Some(room) = far.reserve(frame.len()) {
                    room.copy_from_slice(&frame);
                    far.commit(now, ferrocx_model::wire::Fcs::Good);
                    far.flush(now);
                }
            }
        }
        completed += peer.polled().len();
        assert!(completed <= posted, "{completed} completions of {posted} requests");
        let budget = &peer.host.nic.state().budget;
        assert!(budget.used_bytes() <= budget.limit_bytes(), "{} bytes", budget.used_bytes());
    }
    Ok(())
}
