//! The boot of a real ConnectX-4 Lx, as Linux logged it, decoded with our layouts.
//!
//! The recording's facts stand in `data/connectx4lx-boot.txt`; [`facts`] makes the bytes of them.
//! Expected values are those that reference 2 to 5 gives for this device, or were read off the
//! hexadecimal dump by eye.

#![forbid(unsafe_code)]

#[path = "boot_trace/caps.rs"]
mod caps;
#[path = "common/facts.rs"]
mod facts;
#[path = "boot_trace/names.rs"]
mod names;
#[path = "boot_trace/recording.rs"]
mod recording;

use facts::{Exchange, Image, Place};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::device::*;
use ferrocx_prm::cmd::objects::AllocUar;
use ferrocx_prm::cmd::port::{AccessReg, AccessRegIn};
use ferrocx_prm::cmd::queues::{CreateEq, CreateEqIn};
use ferrocx_prm::cmd::*;
use ferrocx_prm::eqc::Eqc;
use ferrocx_prm::layout::{Part, first_reserved};
use ferrocx_prm::reg::RegisterId;
use ferrocx_prm::syndrome::CommandStatus;

/// The commands of the boot: opcode, op_mod, input length, output length.
const BOOT: &[(Opcode, u32, u32, u32)] = &[
    (Opcode::ENABLE_HCA, 0, 0x10, 0x10),
    (Opcode::QUERY_ISSI, 0, 0x10, 0x70),
    (Opcode::SET_ISSI, 0, 0x10, 0x10),
    (Opcode::QUERY_PAGES, 1, 0x10, 0x10),
    (Opcode::MANAGE_PAGES, 1, 0x40, 0x10),
    (Opcode::ACCESS_REG, 0, 0x20, 0x20),
    (Opcode::QUERY_HCA_CAP, 0x0, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x1, 0x10, 0x1010),
    (Opcode::SET_HCA_CAP, 0, 0x1010, 0x10),
    (Opcode::QUERY_PAGES, 2, 0x10, 0x10),
    (Opcode::MANAGE_PAGES, 1, 0x1_9230, 0x10),
    (Opcode::INIT_HCA, 0, 0x10, 0x10),
    (Opcode::QUERY_HCA_CAP, 0x1, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x0, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x3, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x2, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x7, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x6, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x9, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0x8, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0xf, 0x10, 0x1010),
    (Opcode::QUERY_HCA_CAP, 0xe, 0x10, 0x1010),
    (Opcode::QUERY_ADAPTER, 0, 0x10, 0x110),
    (Opcode::ALLOC_UAR, 0, 0x10, 0x10),
    (Opcode::ALLOC_UAR, 0, 0x10, 0x10),
    (Opcode::ALLOC_UAR, 0, 0x10, 0x10),
    (Opcode::ALLOC_UAR, 0, 0x10, 0x10),
];

/// CREATE_EQ follows this many times, always with one page address behind the fixed part.
const EQS: usize = 15;

/// Slot of the command queue that Linux keeps for page requests: the last of 32.
const PAGES_SLOT: u32 = 31;

fn xor(bytes: &[u8]) -> u8 {
    bytes.iter().fold(0, |xor, byte| xor ^ byte)
}

#[test]
fn the_boot_is_the_known_sequence() {
    let exchanges = facts::load();
    let create_eq = (Opcode::CREATE_EQ, 0, 0x118, 0x10);
    let expected: Vec<_> =
        BOOT.iter().copied().chain(std::iter::repeat_n(create_eq, EQS)).collect();
    let found: Vec<_> = exchanges
        .iter()
        .map(|e| {
            let entry = &e.input.entry;
            (e.opcode, e.op_mod, entry.input_length(), entry.output_length())
        })
        .collect();
    assert_eq!(found, expected);
    for exchange in &exchanges {
        assert!(exchange.opcode.name().is_some(), "{} has no name", exchange.opcode);
    }
}

/// Checks one command against its layouts: lengths, reserved bits, status.
fn check<C: Command>(exchange: &Exchange) {
    let at = format!("{} at line {}", exchange.opcode, exchange.input.line);
    assert_eq!(exchange.opcode, C::OPCODE, "{at}");

    let input = exchange.input.input_bytes();
    let announced = exchange.input.entry.input_length() as usize;
    if exchange.opcode == Opcode::INIT_HCA {
        // This kernel knows the form without `sw_owner_id`; missing bytes count as zero.
        assert_eq!((announced, C::In::SIZE_BYTES), (0x10, 0x20), "{at}");
    } else {
        assert!(announced >= C::In::SIZE_BYTES, "{at}: {announced:#x} bytes of input");
    }
    let mut padded = input.clone();
    padded.resize(C::In::SIZE_BYTES.max(input.len()), 0);
    let decoded = C::In::read_from(&padded).unwrap();
    assert_eq!(first_reserved(&decoded), None, "{at}, input {decoded:?}");
    assert_eq!(decoded.as_bytes(), &padded[..C::In::SIZE_BYTES], "{at}");

    let output = exchange.output.output_bytes();
    let room = exchange.output.entry.output_length() as usize;
    assert!(room >= C::Out::SIZE_BYTES, "{at}: {room:#x} bytes of output");
    let decoded = C::Out::read_from(&output).unwrap();
    assert_eq!(first_reserved(&decoded), None, "{at}, output {decoded:?}");
    assert_eq!(decoded.command_status(), CommandStatus::OK, "{at}");
    assert_eq!(decoded.command_syndrome(), 0, "{at}");
}

#[test]
fn every_command_decodes_without_a_reserved_bit() {
    let exchanges = facts::load();
    for exchange in &exchanges {
        match exchange.opcode {
            Opcode::ENABLE_HCA => check::<EnableHca>(exchange),
            Opcode::QUERY_ISSI => check::<QueryIssi>(exchange),
            Opcode::SET_ISSI => check::<SetIssi>(exchange),
            Opcode::QUERY_PAGES => check::<QueryPages>(exchange),
            Opcode::MANAGE_PAGES => check::<ManagePages>(exchange),
            Opcode::ACCESS_REG => check::<AccessReg>(exchange),
            Opcode::QUERY_HCA_CAP => check::<QueryHcaCap>(exchange),
            Opcode::SET_HCA_CAP => check::<SetHcaCap>(exchange),
            Opcode::INIT_HCA => check::<InitHca>(exchange),
            Opcode::QUERY_ADAPTER => check::<QueryAdapter>(exchange),
            Opcode::ALLOC_UAR => check::<AllocUar>(exchange),
            Opcode::CREATE_EQ => check::<CreateEq>(exchange),
            other => panic!("{other} is not expected in this boot"),
        }
    }
}

#[test]
fn entries_are_framed_as_the_manual_says() {
    let exchanges = facts::load();
    for (index, exchange) in exchanges.iter().enumerate() {
        let at = format!("{} at line {}", exchange.opcode, exchange.input.line);
        let (before, after) = (&exchange.input.entry, &exchange.output.entry);
        for entry in [before, after] {
            assert_eq!(entry.command_type(), TRANSPORT_PCIE, "{at}");
            assert_eq!(first_reserved(entry), None, "{at}");
            assert_eq!(entry.status(), 0, "{at}: delivery status");
            // Linux counts tokens up from 1.
            assert_eq!(entry.token() as usize, index + 1, "{at}");
            for (ptr, len) in [
                (entry.input_mailbox_ptr(), entry.input_length()),
                (entry.output_mailbox_ptr(), entry.output_length()),
            ] {
                assert_eq!(ptr == 0, mailbox_blocks(len as usize) == 0, "{at}");
                assert_eq!(ptr % MAILBOX_ALIGN_BYTES as u64, 0, "{at}");
            }
        }
        assert_eq!((before.ownership(), after.ownership()), (true, false), "{at}");
        let slot = if exchange.opcode == Opcode::MANAGE_PAGES { PAGES_SLOT } else { 0 };
        assert_eq!(exchange.doorbell, 1 << slot, "{at}");
        // Output, signature, status and ownership are all that the device writes.
        let submitted = before
            .with_command_output_inline_data(after.command_output_inline_data())
            .with_signature(after.signature())
            .with_status(after.status())
            .with_ownership(false);
        assert_eq!(submitted, *after, "{at}");
    }
}

/// Reference 2.3: the driver's signature makes the XOR of the entry 0xff; the device signs its
/// output while it still owns the entry, and stops doing so with INIT_HCA.
#[test]
fn signatures_follow_the_rule_and_end_with_init_hca() {
    let exchanges = facts::load();
    let init = exchanges.iter().position(|e| e.opcode == Opcode::INIT_HCA).unwrap();
    let mut rewritten = 0;
    for (index, exchange) in exchanges.iter().enumerate() {
        let at = format!("{} at line {}", exchange.opcode, exchange.input.line);
        let (before, after) = (&exchange.input.entry, &exchange.output.entry);
        assert_eq!(xor(&before.0), 0xff, "{at}");
        if index <= init {
            assert_eq!(xor(&after.0), 0xfe, "{at}");
            rewritten += usize::from(before.signature() != after.signature());
        } else {
            assert_eq!(before.signature(), after.signature(), "{at}");
        }
    }
    assert_eq!(rewritten, 2, "the two QUERY_PAGES have a non-zero output");
    let pages = &exchanges[9];
    assert_eq!((pages.input.entry.signature(), pages.output.entry.signature()), (0xf7, 0x81));
}

fn check_chain(image: &Image, at: &str) {
    for (number, block) in image.blocks.iter().enumerate() {
        assert_eq!(block.block_number() as usize, number, "{at}");
        assert_eq!(block.token(), image.entry.token(), "{at}");
        assert_eq!(first_reserved(block), None, "{at}, block {number}");
        assert_eq!(block.next_pointer() % MAILBOX_ALIGN_BYTES as u64, 0, "{at}");
        // Block signatures are off.
        assert_eq!((block.ctrl_signature(), block.signature()), (0, 0), "{at}");
    }
}

#[test]
fn mailbox_chains_are_intact() {
    let exchanges = facts::load();
    let (mut left_out, mut unended) = (Vec::new(), Vec::new());
    for exchange in &exchanges {
        let at = format!("{} at line {}", exchange.opcode, exchange.input.line);
        let missing = exchange.input_blocks_left_out();
        if missing > 0 {
            left_out.push((exchange.opcode, missing));
        }
        for (image, is_whole) in [(&exchange.input, missing == 0), (&exchange.output, true)] {
            check_chain(image, &at);
            let Some((last, before)) = image.blocks.split_last() else { continue };
            assert!(before.iter().all(|block| block.next_pointer() != 0), "{at}");
            if is_whole && last.next_pointer() != 0 {
                unended.push(exchange.opcode);
            }
        }
    }
    // The log stops at a printed offset, see `Exchange::input_blocks_left_out`.
    let pages = Opcode::MANAGE_PAGES;
    assert_eq!(left_out, [(pages, 1), (Opcode::ACCESS_REG, 1), (pages, 202 - 179)]);
    // Linux takes long inputs from a cache of longer chains: the length ends a chain, not a null
    // pointer.
    assert_eq!(unended, [Opcode::SET_HCA_CAP]);
}

#[test]
fn issi_and_pages_agree_with_the_reference() {
    let exchanges = facts::load();
    let output = |index: usize| exchanges[index].output.output_bytes();
    let input = |index: usize| exchanges[index].input.input_bytes();

    let issi = QueryIssiOut::read_from(&output(1)).unwrap();
    assert_eq!((issi.current_issi(), issi.supported_issi_dw0()), (0, 0x2));
    assert_eq!(SetIssiIn::read_from(&input(2)).unwrap().current_issi(), 1);

    for (query, pages) in [(3, 6), (9, 0x3244)] {
        let wanted = QueryPagesOut::read_from(&output(query)).unwrap();
        assert_eq!((wanted.num_pages(), wanted.function_id()), (pages, 0));
        let given = ManagePagesIn::read_from(&input(query + 1)).unwrap();
        assert_eq!(given.input_num_entries(), pages);
        let announced = exchanges[query + 1].input.entry.input_length();
        assert_eq!(announced, 0x10 + 8 * pages);
    }

    let pas: Vec<u64> = input(10)[0x10..].chunks_exact(8).map(u64::load).collect();
    assert_eq!(pas.len(), 179 * 512 / 8);
    let mut sorted = pas.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), pas.len(), "a page was given twice");
    assert!(pas.iter().all(|pa| *pa != 0 && pa % 4096 == 0));
}

#[test]
fn registers_adapter_and_uars_agree_with_the_reference() {
    let exchanges = facts::load();
    let register = AccessRegIn::read_from(&exchanges[5].input.input_bytes()).unwrap();
    assert_eq!(register.register_id(), u32::from(RegisterId::HOST_ENDIANNESS.0));

    let adapter = QueryAdapterOut::read_from(&exchanges[22].output.output_bytes()).unwrap();
    let adapter = adapter.query_adapter_struct();
    assert_eq!(adapter[0x18..0x20], [0x00, 0x00, 0x02, 0xc9, 0x00, 0x00, 0x15, 0xb3]);
    assert_eq!(&adapter[0xf0..0xfd], b"MT_2430110027");

    let uars: Vec<_> = exchanges[23..27]
        .iter()
        .map(|e| objects::AllocUarOut::read_from(&e.output.output_bytes()).unwrap().uar())
        .collect();
    assert_eq!(uars, [0x10, 0x11, 0x12, 0x13]);
}

#[test]
fn event_queues_are_what_linux_asks_for() {
    let exchanges = facts::load();
    let eqs = &exchanges[BOOT.len()..];
    for (index, exchange) in eqs.iter().enumerate() {
        let bytes = exchange.input.input_bytes();
        let input = CreateEqIn::read_from(&bytes).unwrap();
        // Command, asynchronous and page events; then completion queues, which take no events.
        let (log_eq_size, intr, events) = match index {
            0 => (8, 1, 0x400),
            1 => (9, 2, 0x001f_02be),
            2 => (8, 0, 0x800),
            _ => (11, index as u32, 0),
        };
        let expected = Eqc::zeroed()
            .with_log_eq_size(log_eq_size)
            .with_uar_page(0x10)
            .with_intr(intr)
            .with_log_page_size(log_eq_size + 6 - 12);
        assert_eq!(input.eq_context_entry(), expected, "EQ {index}");
        let mut bitmask = [0; 32];
        bitmask[..8].copy_from_slice(&u64::to_be_bytes(events));
        assert_eq!(input.event_bitmask(), bitmask, "EQ {index}");
        // The whole queue is one page of its own size.
        let pa = u64::load(&bytes[CreateEqIn::SIZE_BYTES..]);
        assert!(pa != 0 && pa.is_multiple_of(64 << log_eq_size), "EQ {index} at {pa:#x}");
        let output = queues::CreateEqOut::read_from(&exchange.output.output_bytes()).unwrap();
        assert_eq!(output.eq_number() as usize, 0x10 + index);
    }
}

/// Each fact reads through the layout's field of that name: at the same bits, with the same value.
#[test]
fn every_fact_reads_by_its_name() {
    let mut named = 0;
    for recorded in facts::parse(facts::TEXT) {
        let exchange = &recorded.exchange;
        let (before, after) = (&exchange.input.entry.0, &exchange.output.entry.0);
        for fact in &recorded.facts {
            let bytes = match fact.place {
                Place::Entry => before.to_vec(),
                Place::Done => after.to_vec(),
                Place::Input => exchange.input.input_bytes(),
                Place::Output => exchange.output.output_bytes(),
            };
            let structure = names::named(&fact.structure);
            let Some(name) = &fact.name else { continue };
            let at = format!("line {}: {name}", fact.line);
            let field = structure.fields.iter().find(|field| field.name == name);
            let field = field.unwrap_or_else(|| panic!("{at} of {} is unknown", structure.name));
            let first = fact.offset * 8 + 31 - fact.high as usize;
            let last = fact.offset * 8 + 31 - fact.low as usize;
            let bits = field.first_bit..field.first_bit + field.width_bits;
            if field.width_bits <= 32 {
                assert_eq!((first, last + 1), (bits.start, bits.end), "{at}");
            } else {
                // Addresses and bytes are stated a double word at a time.
                assert!(bits.contains(&first) && bits.contains(&last), "{at}");
            }
            let read = (first..=last).fold(0, |value, bit| {
                let bit = fact.base * 8 + bit;
                value << 1 | u32::from(bytes[bit / 8] >> (7 - bit % 8) & 1)
            });
            assert_eq!(read, fact.value, "{at}");
            named += 1;
        }
    }
    assert!(named > 600, "only {named} facts have a name");
}

/// The facts say all that the recording says, byte by byte: `FERROCX_BOOT_TRACE` names the log.
/// With `FERROCX_BOOT_FACTS` they are written to that file instead of compared.
#[test]
#[ignore = "needs the recording: FERROCX_BOOT_TRACE=log"]
fn the_facts_are_those_of_the_recording() {
    let path = std::env::var_os("FERROCX_BOOT_TRACE").expect("FERROCX_BOOT_TRACE names the log");
    let log = std::fs::read_to_string(path).expect("the log is text");
    let recorded = recording::parse(&log).expect("the log reads as the kernel writes it");
    let rendered = recording::render(&recorded);
    if let Some(path) = std::env::var_os("FERROCX_BOOT_FACTS") {
        std::fs::write(path, &rendered).expect("the file can be written");
        return;
    }
    let without_lines = |mut exchange: Exchange| {
        (exchange.input.line, exchange.output.line) = (0, 0);
        exchange
    };
    let stated = facts::load().into_iter().map(without_lines);
    assert!(stated.eq(recorded.into_iter().map(without_lines)), "other bytes");
    let rows = |text: &str| -> Vec<String> {
        text.lines().filter(|row| !row.starts_with('#')).map(str::to_owned).collect()
    };
    assert_eq!(rows(facts::TEXT), rows(&rendered));
}

#[test]
#[should_panic(expected = "line 6: bits that were stated before")]
fn a_fact_that_stands_twice_is_refused() {
    facts::parse(
        "command 1 NOP 0x80d\n\
         doorbell 0x1\n\
         input InputHeader\n\
         0x00[31:16] opcode 0x80d\n\
         0x04[15:0] op_mod 0x1\n\
         0x04[3] - 0x1\n",
    );
}

#[test]
fn a_broken_log_is_refused() {
    let good = "[ 0] x: dump command NOP(0x80d) INPUT\n\
        [ 0] 000: 07000000 00000010 00000000 00000000\n\
        [ 0] 010: 080d0000 00000000 00000000 00000000\n\
        [ 0] 020: 00000000 00000000 00000000 00000000\n\
        [ 0] 030: 00000000 00000000 00000010 01fd0001\n\
        [ 0] x: writing 0x1 to command doorbell\n\
        [ 0] x: dump command NOP(0x80d) OUTPUT\n\
        [ 0] 000: 07000000 00000010 00000000 00000000\n\
        [ 0] 010: 080d0000 00000000 00000000 00000000\n\
        [ 0] 020: 00000000 00000000 00000000 00000000\n\
        [ 0] 030: 00000000 00000000 00000010 01fd0000\n";
    let parsed = recording::parse(good).unwrap();
    assert_eq!(parsed.len(), 1);
    assert_eq!((parsed[0].opcode, parsed[0].doorbell), (Opcode::NOP, 1));
    assert_eq!((parsed[0].input.line, parsed[0].output.line), (1, 7));

    let broken = [
        (good.replacen("020:", "030:", 1), 4, "offset does not follow the last line"),
        (good.replacen("NOP(0x80d)", "NOP(0x80c)", 2), 1, "another opcode than the bytes"),
        (good.replacen("OUTPUT", "INPUT", 1), 1, "do not alternate"),
        (good.replacen("OUTPUT", "BOTH", 1), 7, "bad heading"),
        (good.replacen("writing 0x1", "writing 0x?", 1), 6, "bad doorbell value"),
        (good.replacen("x: writing 0x1", "x:", 1), 1, "no doorbell was rung"),
        (good.lines().take(6).collect::<Vec<_>>().join("\n"), 1, "no output"),
        (good.lines().skip(1).collect::<Vec<_>>().join("\n"), 1, "bytes before any command"),
        (good.lines().take(10).collect::<Vec<_>>().join("\n"), 7, "0x30 bytes"),
    ];
    for (log, line, what) in broken {
        let error = recording::parse(&log).unwrap_err();
        assert_eq!(error.line, line, "{error}");
        assert!(error.what.contains(what), "{error}, expected {what}");
    }
}
