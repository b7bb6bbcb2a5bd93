//! Commands of any content: each completes with a status that exists, none panics, and what a
//! refused command left behind is nothing.

mod common;

use common::objects::*;
use common::{Host, words};
use ferrocx_prm::cmd::Opcode;
use ferrocx_prm::syndrome::{CommandStatus, DeliveryStatus};
use proptest::prelude::*;

/// Runs a command and checks what every answer must satisfy.
fn run(host: &mut Host, input: &[u8], output_len: usize) -> Result<(), TestCaseError> {
    let before = host.nic.state().objects.len();
    host.post(0, input, output_len);
    host.ring_bell(1);
    host.step();
    let done = host.take(0, output_len);
    let done = done.ok_or_else(|| TestCaseError::fail("the command never completed"))?;
    prop_assert!(DeliveryStatus(done.delivery).name().is_some());
    if done.delivery == 0 {
        prop_assert!(CommandStatus(done.status()).name().is_some());
        let is_teardown = input[..2] == [0x01, 0x03];
        if done.status() != 0 && !is_teardown {
            prop_assert_eq!(host.nic.state().objects.len(), before, "a refusal creates nothing");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn valid_inputs_with_wrong_words(
        changes in prop::collection::vec(
            (any::<prop::sample::Index>(), 0_usize..0x120, word()),
            60,
        ),
    ) {
        let (mut host, templates) = furnished();
        for (template, at, word) in &changes {
            let mut input = template.get(&templates).clone();
            let at = at % (input.len() / 4);
            input[at * 4..at * 4 + 4].copy_from_slice(&word.to_be_bytes());
            run(&mut host, &input, 0x10)?;
        }
    }

    #[test]
    fn any_words_behind_any_opcode(
        inputs in prop::collection::vec(
            (any::<prop::sample::Index>(), 0_u32..4, prop::collection::vec(word(), 0..12)),
            60,
        ),
        output_len in 8_usize..0x300,
    ) {
        let (mut host, _) = furnished();
        for (opcode, op_mod, rest) in &inputs {
            let opcode = opcode.get(Opcode::ALL);
            let mut input = words(&[u32::from(opcode.0) << 16, *op_mod]);
            input.extend(words(rest));
            run(&mut host, &input, output_len)?;
        }
    }

    #[test]
    fn any_bytes(input in prop::collection::vec(any::<u8>(), 8..700), output_len in 8_usize..700) {
        let (mut host, _) = furnished();
        run(&mut host, &input, output_len)?;
    }

    #[test]
    fn any_register_write(writes in prop::collection::vec((0_u64..0x20_000, any::<u64>()), 100)) {
        let (mut host, _) = furnished();
        for (offset, value) in &writes {
            if value & 1 == 0 {
                host.bar.write_be32(offset & !3, (value >> 8) as u32);
            } else {
                host.bar.write_be64(offset & !7, *value);
            }
            host.step();
        }
    }
}

/// Words that are often near something: small numbers, single bits, ends of ranges.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        any::<u32>(),
        0_u32..0x40,
        (0_u32..32).prop_map(|bit| 1 << bit),
        Just(u32::MAX),
        Just(0xff_ffff),
        (0x400_u32..0x404).prop_map(|n| n),
        (0x1000_u32..0x6000).prop_map(|n| n & !0xfff),
    ]
}
