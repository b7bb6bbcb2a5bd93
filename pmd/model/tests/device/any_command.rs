//! Commands of any content: each completes with a status that exists, none panics, and what a
//! refused command left behind is nothing.

use crate::common::objects::*;
use crate::common::roce::create_qp;
use crate::common::{Host, input, words};
use ferrocx_prm::cmd::flow::{CreateFlowGroup, CreateFlowTable, SetFte};
use ferrocx_prm::cmd::objects::CreateMkey;
use ferrocx_prm::cmd::qp::CreateQp;
use ferrocx_prm::cmd::queues::{CreateCq, CreateEq, ModifyCq};
use ferrocx_prm::cmd::srq::CreateXrcSrq;
use ferrocx_prm::cmd::tir::{CreateRqt, CreateTir, CreateTis};
use ferrocx_prm::cmd::user::CreateUmem;
use ferrocx_prm::cmd::wq::{CreateRmp, CreateRq, CreateSq};
use ferrocx_prm::cmd::{Command, Opcode};
use ferrocx_prm::layout::{Field, Layout};
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

/// Ranges of bits of all fields, those of embedded structures by themselves.
fn bits(fields: &[Field], from: usize, into: &mut Vec<(usize, usize)>) {
    for field in fields {
        let first = from + field.first_bit;
        if field.nested.is_empty() {
            into.push((first, field.width_bits));
        } else {
            bits(field.nested, first, into);
        }
    }
}

/// What CREATE takes, with every field at its largest in turn: sizes, shifts and sums are checked
/// before they are used. Builds with overflow checks see those that are not.
#[test]
fn every_field_of_every_create_at_its_largest() {
    let (mut host, mut templates) = furnished();
    let base = host.base();
    let xrcd = host.short(0x80e, 0);
    let (record, page) = (host.ring(64), host.ring(4096));
    let listed = |mut bytes: Vec<u8>, pages: usize| {
        (0..pages).for_each(|_| bytes.extend(page.to_be_bytes()));
        bytes
    };
    for st in [0, 3, 0xc] {
        let mut qp = create_qp(st, base.pd, base.uar, base.cqn, record);
        qp[0xb0..0xb4].copy_from_slice(&xrcd.to_be_bytes());
        templates.push(listed(qp, 1));
    }
    for is_cyclic in [0, 1 << 27] {
        let srq = [
            (0, 0x0705_0000),
            (0x10, 4 << 24),
            (0x14, 2 << 24 | is_cyclic | xrcd),
            (0x18, base.cqn),
            (0x28, base.pd),
            (0x38, (record >> 32) as u32),
            (0x3c, record as u32),
        ];
        templates.push(listed(input(0x110, &srq), 1));
    }
    for mode in 1..4 {
        let key = [
            (0, 0x0200_0000),
            (0x10, mode << 8 | 1 << 10),
            (0x14, 0xffff_ff00),
            (0x1c, base.pd),
            (0x2c, 4096),
            (0x44, 1),
            (0x48, 12),
            (0x60, 1),
        ];
        templates.push(listed(input(0x110, &key), 2));
    }
    let uid = host.ok(&input(0x40, &[(0, 0x0a04_0000)]), 0x10).word(8);
    let umem = input(0x30, &[(0, 0x0a08_0000 | uid), (0x2c, 1)]);
    templates.push(listed(umem, 1));
    // MODIFY_CQ that resizes.
    let resize = [(0, 0x0403_0000), (4, 1), (8, base.cqn), (0xc, 7), (0x1c, 6 << 24 | base.uar)];
    templates.push(listed(input(0x110, &resize), 1));
    let mut tried = 0;
    for template in &templates {
        let opcode = u16::from_be_bytes([template[0], template[1]]);
        let fields = match Opcode(opcode) {
            Opcode::CREATE_EQ => <CreateEq as Command>::In::FIELDS,
            Opcode::CREATE_CQ => <CreateCq as Command>::In::FIELDS,
            Opcode::MODIFY_CQ => <ModifyCq as Command>::In::FIELDS,
            Opcode::CREATE_QP => <CreateQp as Command>::In::FIELDS,
            Opcode::CREATE_SQ => <CreateSq as Command>::In::FIELDS,
            Opcode::CREATE_RQ => <CreateRq as Command>::In::FIELDS,
            Opcode::CREATE_RMP => <CreateRmp as Command>::In::FIELDS,
            Opcode::CREATE_XRC_SRQ => <CreateXrcSrq as Command>::In::FIELDS,
            Opcode::CREATE_MKEY => <CreateMkey as Command>::In::FIELDS,
            Opcode::CREATE_UMEM => <CreateUmem as Command>::In::FIELDS,
            Opcode::CREATE_TIR => <CreateTir as Command>::In::FIELDS,
            Opcode::CREATE_TIS => <CreateTis as Command>::In::FIELDS,
            Opcode::CREATE_RQT => <CreateRqt as Command>::In::FIELDS,
            Opcode::CREATE_FLOW_TABLE => <CreateFlowTable as Command>::In::FIELDS,
            Opcode::CREATE_FLOW_GROUP => <CreateFlowGroup as Command>::In::FIELDS,
            Opcode::SET_FTE => <SetFte as Command>::In::FIELDS,
            _ => continue,
        };
        let mut template = template.clone();
        if Opcode(opcode) == Opcode::CREATE_FLOW_GROUP {
            // Its entries have another group already.
            template[0x1c..0x20].copy_from_slice(&4_u32.to_be_bytes());
            template[0x24..0x28].copy_from_slice(&7_u32.to_be_bytes());
        }
        let done = host.command(&template, 0x10);
        assert_eq!(done.status(), 0, "{opcode:#x}: {:?}", host.nic.log().last());
        let mut ranges = Vec::new();
        bits(fields, 0, &mut ranges);
        for (first, width) in ranges {
            let mut changed = template.clone();
            for bit in first..first + width {
                if let Some(byte) = changed.get_mut(bit / 8) {
                    *byte |= 0x80 >> (bit % 8);
                }
            }
            run(&mut host, &changed, 0x10).expect("an answer");
            tried += 1;
        }
    }
    assert!(tried > 1000, "{tried}");
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
