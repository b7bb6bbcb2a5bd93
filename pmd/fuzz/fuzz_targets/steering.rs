//! Any flow objects and any frames: every frame is counted once, and nothing hangs or panics.
#![no_main]

#[path = "../../model/tests/common/mod.rs"]
mod common;

use arbitrary::{Result, Unstructured};
use common::input;
use common::objects::furnished;
use ferrocx_fuzz::{frame, word};
use ferrocx_model::wire::{Fcs, Wire, link};
use libfuzzer_sys::fuzz_target;

/// Commands about RQTs, TIRs, flow tables, groups and entries: first bytes of the opcode.
const FLOW: [(u8, u8); 6] =
    [(0x09, 0x00), (0x09, 0x16), (0x09, 0x30), (0x09, 0x33), (0x09, 0x36), (0x09, 0x2f)];

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = sequence(&mut Unstructured::new(data));
});

fn sequence(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut host, mut templates) = furnished();
    let (near, mut far) = link(1 << 18);
    host.nic.datapath_mut().plug(near);
    // The table that `furnished` made is the first.
    let table = host.ok(&input(0x40, &[(0, 0x0930_0000), (0x18, 4)]), 0x10).word(8);
    let root = input(0x40, &[(0, 0x092f_0000), (0x14, table)]);
    host.command(&root, 0x10);
    templates.push(root);
    templates.retain(|input| FLOW.contains(&(input[0], input[1])));
    let mut sent = 0;
    while !u.is_empty() {
        if u.arbitrary()? {
            let mut input = u.choose(&templates)?.clone();
            for _ in 0..u.int_in_range(1..=6)? {
                let at = u.choose_index(input.len() / 4)? * 4;
                // The opcode stays.
                let at = if at == 0 { 8 } else { at };
                input[at..at + 4].copy_from_slice(&word(u)?.to_be_bytes());
            }
            host.command(&input, 0x10);
        } else {
            let frame = frame(u)?;
            if frame.is_empty() {
                continue;
            }
            let Some(room) = far.reserve(frame.len()) else { continue };
            room.copy_from_slice(&frame);
            far.commit(host.now_ns, if u.ratio(1, 16)? { Fcs::Bad } else { Fcs::Good });
            far.flush(host.now_ns);
            sent += 1;
            host.step();
        }
    }
    for _ in 0..100 {
        if !host.step() {
            break;
        }
    }
    let counters = &host.nic.state().port.counters;
    assert_eq!(counters.rx().packets + counters.rx_errors.packets, sent);
    Ok(())
}
