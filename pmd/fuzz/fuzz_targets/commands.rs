//! Any commands, mailbox chains and register writes: each command that can complete does, with a
//! status that exists, and what a refused command left behind is nothing.
#![no_main]

#[path = "../../model/tests/common/mod.rs"]
mod common;

use arbitrary::{Arbitrary, Result, Unstructured};
use common::objects::furnished;
use common::{Host, words};
use ferrocx_fuzz::{bytes, word};
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::syndrome::{CommandStatus, DeliveryStatus};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = sequence(&mut Unstructured::new(data));
});

#[derive(Arbitrary)]
enum Op {
    Template,
    Words,
    Bytes,
    Register,
}

fn sequence(u: &mut Unstructured<'_>) -> Result<()> {
    let (mut host, templates) = furnished();
    while !u.is_empty() {
        let input = match u.arbitrary()? {
            Op::Template => {
                let mut input = u.choose(&templates)?.clone();
                for _ in 0..u.int_in_range(0..=3)? {
                    let at = u.choose_index(input.len() / 4)? * 4;
                    input[at..at + 4].copy_from_slice(&word(u)?.to_be_bytes());
                }
                input
            }
            Op::Words => {
                let opcode = u32::from(u.choose(Opcode::ALL)?.0);
                let mut input = words(&[opcode << 16, u.int_in_range(0..=4)?]);
                for _ in 0..u.int_in_range(0..=12)? {
                    input.extend(word(u)?.to_be_bytes());
                }
                input
            }
            Op::Bytes => bytes(u, 2000)?,
            Op::Register => {
                let offset = u.int_in_range(0..=0x2_0000_u64)?;
                if u.arbitrary()? {
                    host.bar.write_be32(offset & !3, word(u)?);
                } else {
                    host.bar.write_be64(offset & !7, u.arbitrary()?);
                }
                host.step();
                continue;
            }
        };
        let output_len = *u.choose(&[0x10, 8, 0, 0x100, 0x210, 0x1010])?;
        command(u, &mut host, &input, output_len)?;
    }
    Ok(())
}

/// Posts a command, spoils its entry or chain perhaps, and lets the device have it.
fn command(
    u: &mut Unstructured<'_>,
    host: &mut Host,
    input: &[u8],
    output_len: usize,
) -> Result<()> {
    let before = host.nic.state().objects.len();
    let slot = if u.ratio(1, 8)? { u.int_in_range(0..=31)? } else { 0 };
    host.post(slot, input, output_len);
    let is_spoiled = u.ratio(1, 4)?;
    if is_spoiled {
        let poke = u.arbitrary::<[u8; 4]>()?;
        let poke = &poke[..u.int_in_range(1..=4)?];
        match u.int_in_range(0..=2)? {
            0 => host.poke_entry(slot, u.int_in_range(0..=60)?, poke),
            1 => host.poke_input(u.int_in_range(0..=3)?, u.int_in_range(0x1f0..=0x23c)?, poke),
            _ => host.poke_output(u.int_in_range(0..=3)?, u.int_in_range(0x1f0..=0x23c)?, poke),
        }
    }
    let queue = host.bar.read_be32(common::CMDQ_LO);
    host.ring_bell(1 << slot);
    host.step();
    if is_spoiled || queue >> 12 != (host.queue.iova() as u32) >> 12 || queue >> 8 & 7 != 0 {
        return Ok(());
    }
    let Some(done) = host.take(slot, output_len) else { return Ok(()) };
    assert!(DeliveryStatus(done.delivery).name().is_some(), "delivery {:#x}", done.delivery);
    if done.delivery == 0 && output_len >= 8 {
        assert!(CommandStatus(done.status()).name().is_some(), "status {:#x}", done.status());
        let is_teardown = input.starts_with(&[0x01, 0x03]);
        if done.status() != 0 && !is_teardown {
            assert_eq!(host.nic.state().objects.len(), before, "a refusal creates nothing");
        }
    }
    Ok(())
}
