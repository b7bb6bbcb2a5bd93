//! The way from a recording to its facts: reads the command dump that Linux's `mlx5_core` writes to
//! the kernel log (boot parameter `dyndbg="module mlx5_core +p"`), and writes `data/*.txt`.
//!
//! # Format of the log
//! `dump command NAME(0xOPCODE) INPUT` or `OUTPUT`, then lines `OFFSET: WORD WORD WORD WORD` with
//! the 64 bytes of the command queue entry, then the mailbox blocks of 576 bytes each, headed
//! `command block:`, offsets running on. Between the two stands `writing 0xVECTOR to command
//! doorbell`. Everything else in the log is skipped.

use std::fmt::Write as _;

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{CommandEntry, InputHeader, Mailbox, Opcode};

use crate::facts::{Exchange, Image};
use crate::names::{Structure, cap_blocks, named, structures};

/// A dump that does not read as the format says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ParseError {
    /// Line of the log, 1-based.
    pub(crate) line: usize,
    /// What is wrong with it.
    pub(crate) what: String,
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ParseError {}

/// A dump while its lines are being collected.
struct Dump {
    opcode: u16,
    is_input: bool,
    line: usize,
    bytes: Vec<u8>,
    doorbell: Option<u32>,
}

/// Reads the commands of a log, in order.
///
/// # Errors
/// A dump that is cut short, offsets that do not run on, an output without its input, an opcode in
/// the heading that differs from the one in the bytes.
pub(crate) fn parse(log: &str) -> Result<Vec<Exchange>, ParseError> {
    let mut dumps: Vec<Dump> = Vec::new();
    for (index, text) in log.lines().enumerate() {
        let line = index + 1;
        let error = |what: &str| ParseError { line, what: what.to_owned() };
        if let Some((_, heading)) = text.split_once(": dump command ") {
            let (opcode, is_input) = heading_of(heading).ok_or_else(|| error("bad heading"))?;
            dumps.push(Dump { opcode, is_input, line, bytes: Vec::new(), doorbell: None });
        } else if let Some((_, rest)) = text.split_once(": writing 0x") {
            let vector = rest.split(' ').next().and_then(|v| u32::from_str_radix(v, 16).ok());
            let dump = dumps.last_mut().ok_or_else(|| error("doorbell before any command"))?;
            dump.doorbell = Some(vector.ok_or_else(|| error("bad doorbell value"))?);
        } else if let Some((offset, words)) = hex_line(text) {
            let dump = dumps.last_mut().ok_or_else(|| error("bytes before any command"))?;
            if offset != dump.bytes.len() {
                return Err(error("offset does not follow the last line"));
            }
            dump.bytes.extend(words.iter().flat_map(|word| word.to_be_bytes()));
        }
    }
    pair(&dumps)
}

/// Opcode and direction of `NAME(0x104) INPUT`.
fn heading_of(heading: &str) -> Option<(u16, bool)> {
    let (before, direction) = heading.rsplit_once(") ")?;
    let (_, opcode) = before.rsplit_once("(0x")?;
    let is_input = match direction.trim_end() {
        "INPUT" => true,
        "OUTPUT" => false,
        _ => return None,
    };
    Some((u16::from_str_radix(opcode, 16).ok()?, is_input))
}

/// Offset and words of `[  +0.000001] 1f0: 00000000 00000000 00000000 00000000`.
fn hex_line(text: &str) -> Option<(usize, [u32; 4])> {
    let (_, rest) = text.split_once("] ")?;
    let (offset, rest) = rest.split_once(": ")?;
    let offset = usize::from_str_radix(offset, 16).ok()?;
    let mut words = [0; 4];
    let mut parts = rest.split_ascii_whitespace();
    for word in &mut words {
        let part = parts.next().filter(|p| p.len() == 8)?;
        *word = u32::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some((offset, words))
}

fn pair(dumps: &[Dump]) -> Result<Vec<Exchange>, ParseError> {
    let mut exchanges = Vec::new();
    for pair in dumps.chunks(2) {
        let first = &pair[0];
        let error = |what: &str| ParseError { line: first.line, what: what.to_owned() };
        let [input, output] = pair else { return Err(error("no output")) };
        if !input.is_input || output.is_input || input.opcode != output.opcode {
            return Err(error("input and output do not alternate"));
        }
        let doorbell = input.doorbell.ok_or_else(|| error("no doorbell was rung"))?;
        let (input, output) = (image(input)?, image(output)?);
        let inline = input.entry.command_input_inline_data();
        let header = InputHeader::read_from(&inline).expect("16 bytes hold the 8 of the header");
        let opcode = Opcode(first.opcode);
        if header.opcode() != u32::from(opcode.0) {
            return Err(error("the heading names another opcode than the bytes"));
        }
        exchanges.push(Exchange { opcode, op_mod: header.op_mod(), doorbell, input, output });
    }
    Ok(exchanges)
}

fn image(dump: &Dump) -> Result<Image, ParseError> {
    let error = || {
        let mut what = String::from("not an entry and whole blocks: ");
        let _ = write!(what, "{:#x} bytes", dump.bytes.len());
        ParseError { line: dump.line, what }
    };
    let entry = CommandEntry::read_from(&dump.bytes).ok_or_else(error)?;
    let chunks = dump.bytes[CommandEntry::SIZE_BYTES..].chunks(Mailbox::SIZE_BYTES);
    let blocks: Option<Vec<_>> = chunks.map(Mailbox::read_from).collect();
    Ok(Image { entry, blocks: blocks.ok_or_else(error)?, line: dump.line })
}

/// Writes the rows of a command's bytes: those in which they differ from `like`, from `from` on up
/// to `to`.
struct Rows<'a> {
    text: &'a mut String,
    bytes: &'a [u8],
    like: &'a [u8],
}

impl Rows<'_> {
    fn word(bytes: &[u8], at: usize) -> u32 {
        let mut word = [0; 4];
        let rest = bytes.get(at..).unwrap_or_default();
        let len = rest.len().min(4);
        word[..len].copy_from_slice(&rest[..len]);
        u32::from_be_bytes(word)
    }

    /// One row for each field, and for each run of bits without a name.
    fn write(&mut self, structure: &Structure, base: usize, from: usize, to: usize) {
        for at in (from..to).step_by(4) {
            let (word, like) =
                (Self::word(self.bytes, base + at), Self::word(self.like, base + at));
            let mut next = Some(31);
            while let Some(top) = next {
                let (name, bottom) = structure.field_at(at, top);
                let mask = u32::MAX >> (31 - top) & u32::MAX << bottom;
                let differs = (word ^ like) & mask;
                if differs != 0 {
                    // Of bits without a name, from the first to the last that differs.
                    let (high, low) = match name {
                        Some(_) => (top, bottom),
                        None => (31 - differs.leading_zeros(), differs.trailing_zeros()),
                    };
                    let bits = if high == low { format!("{low}") } else { format!("{high}:{low}") };
                    let value = word << (31 - high) >> (31 - high + low);
                    let name = name.unwrap_or("-");
                    let _ = writeln!(self.text, "  {at:#04x}[{bits}] {name} {value:#x}");
                }
                next = bottom.checked_sub(1);
            }
        }
    }
}

/// Addresses as runs that rise by 4 KiB, a few to a line.
fn page_runs(text: &mut String, offset: usize, bytes: &[u8]) {
    let pages = bytes.chunks_exact(8).map(|page| u64::from_be_bytes(page.try_into().expect("8")));
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for page in pages {
        match runs.last_mut() {
            Some((first, count)) if *first + *count * 4096 == page => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    for line in runs.chunks(6) {
        let _ = write!(text, "  pages {offset:#x}");
        for (first, count) in line {
            let _ = write!(text, " {first:#x}");
            if *count > 1 {
                let _ = write!(text, "*{count}");
            }
        }
        text.push('\n');
    }
}

fn next_pointers(text: &mut String, blocks: &[Mailbox]) {
    for line in blocks.chunks(7) {
        text.push_str("  next");
        for block in line {
            let _ = write!(text, " {:#x}", block.next_pointer());
        }
        text.push('\n');
    }
}

/// Inline part and all printed blocks, not cut at the length.
fn printed(inline: [u8; 16], blocks: &[Mailbox]) -> Vec<u8> {
    let mut bytes = inline.to_vec();
    blocks.iter().for_each(|block| bytes.extend(block.data()));
    bytes
}

/// The facts of a recording, in the format of [`crate::facts`].
pub(crate) fn render(exchanges: &[Exchange]) -> String {
    let mut text = String::new();
    for (index, exchange) in exchanges.iter().enumerate() {
        let (before, after) = (&exchange.input.entry, &exchange.output.entry);
        let opcode = exchange.opcode;
        let _ = writeln!(text, "\ncommand {} {opcode} {:#x}", index + 1, opcode.0);
        let _ = writeln!(text, "doorbell {:#x}", exchange.doorbell);
        let entry = named(CommandEntry::NAME);
        let mut framing = before.0.to_vec();
        framing[0x10..0x20].fill(0);
        text.push_str("entry\n");
        Rows { text: &mut text, bytes: &framing, like: &[] }.write(entry, 0, 0, 64);

        let (input, output) = structures(opcode);
        let _ = writeln!(text, "input {}", input.name);
        let bytes = printed(before.command_input_inline_data(), &exchange.input.blocks);
        match opcode {
            Opcode::MANAGE_PAGES | Opcode::CREATE_EQ => {
                let fixed = if opcode == Opcode::CREATE_EQ { 0x110 } else { 0x10 };
                rows_of(&mut text, exchange, input, &bytes[..fixed.min(bytes.len())], &[]);
                let end = bytes.len().min(before.input_length() as usize);
                page_runs(&mut text, fixed, &bytes[fixed.min(end)..end]);
            }
            _ => body(&mut text, exchange, input, &bytes, &exchanges[..index]),
        }
        next_pointers(&mut text, &exchange.input.blocks);

        text.push_str("done\n");
        let mut changed = after.0.to_vec();
        changed[0x20..0x30].copy_from_slice(&before.0[0x20..0x30]);
        Rows { text: &mut text, bytes: &changed, like: &before.0 }.write(entry, 0, 0, 64);
        let _ = writeln!(text, "output {}", output.name);
        let bytes = printed(after.command_output_inline_data(), &exchange.output.blocks);
        body(&mut text, exchange, output, &bytes, &exchanges[..index]);
        next_pointers(&mut text, &exchange.output.blocks);
    }
    text
}

/// The rows of an input or output; of a capability page those that differ from an earlier one.
fn body(
    text: &mut String,
    exchange: &Exchange,
    whole: &Structure,
    bytes: &[u8],
    before: &[Exchange],
) {
    let is_page = [Opcode::QUERY_HCA_CAP, Opcode::SET_HCA_CAP].contains(&exchange.opcode);
    let kind = exchange.op_mod >> 1;
    let earlier: Vec<_> = before
        .iter()
        .enumerate()
        .filter(|(_, e)| is_page && e.opcode == Opcode::QUERY_HCA_CAP && e.op_mod >> 1 == kind)
        .map(|(index, e)| (index + 1, e.output.output_bytes()))
        .filter(|_| bytes.len() > 0x1000)
        .collect();
    let equal = |page: &[u8]| bytes.iter().zip(page).skip(16).filter(|(a, b)| a != b).count();
    let like = earlier.iter().min_by_key(|(_, page)| equal(page));
    let mut model = bytes[..16.min(bytes.len())].to_vec();
    model.fill(0);
    if let Some((number, page)) = like {
        let _ = writeln!(text, "  like output {number} from 0x10");
        model.extend(&page[16..]);
    }
    rows_of(text, exchange, whole, bytes, &model);
}

fn rows_of(text: &mut String, exchange: &Exchange, whole: &Structure, bytes: &[u8], like: &[u8]) {
    let mut rows = Rows { text, bytes, like };
    let blocks = match exchange.opcode {
        Opcode::QUERY_HCA_CAP | Opcode::SET_HCA_CAP if bytes.len() > 16 => {
            cap_blocks(exchange.op_mod >> 1)
        }
        Opcode::CREATE_EQ if bytes.len() > 16 => vec![(0, named("Eqc"))],
        _ => Vec::new(),
    };
    let mut at = 0;
    let mut after = Vec::new();
    for (base, structure) in blocks {
        rows.write(whole, 0, at, 0x10 + base);
        after.push((0x10 + base, structure));
        at = 0x10 + base + structure.size;
    }
    rows.write(whole, 0, at, bytes.len());
    for (base, structure) in after {
        let heading = format!("  at {base:#x} {}\n", structure.name);
        rows.text.push_str(&heading);
        let written = rows.text.len();
        rows.write(structure, base, 0, structure.size);
        if rows.text.len() == written {
            rows.text.truncate(written - heading.len());
        }
    }
}
