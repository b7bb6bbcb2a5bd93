//! The boot of a real ConnectX-4 Lx as facts: what stood where in each command of a recording.
//!
//! Shared by path between the tests of this crate and of the model (`#[path = ...] mod facts;`).
//! The bytes are put together from positions alone, never through a layout, so that a layout with
//! a wrong position reads them wrongly.
//!
//! # Format
//! | line | meaning |
//! |---|---|
//! | `# ...` | a comment |
//! | `command NUMBER NAME OPCODE` | begins a command, numbered from 1 |
//! | `doorbell VECTOR` | the value written to the doorbell vector |
//! | `entry`, `done` | rows of the queue entry follow: as posted; where it changed until it was completed |
//! | `input STRUCTURE`, `output STRUCTURE` | rows of the input or output follow; all else in it is 0 |
//! | `at OFFSET STRUCTURE` | rows follow whose offsets count from there |
//! | `OFFSET[HIGH:LOW] NAME VALUE`, `OFFSET[BIT] NAME VALUE` | bits of a big-endian double word; `-` for bits without a name |
//! | `like output NUMBER from OFFSET` | the bytes from there on, as in that command's output; rows may differ |
//! | `pages OFFSET ADDRESS*COUNT ...` | a list of 64-bit addresses; runs rise by 4 KiB |
//! | `next ADDRESS ...` | the blocks that were printed, by their `next_pointer` |
//!
//! The first 16 bytes of input and output stand in the queue entry as well, at 0x10 and 0x20;
//! blocks have 512 bytes of data, their number and the entry's token. Source: reference 2.1.

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{CommandEntry, INLINE_BYTES, Mailbox};
use ferrocx_prm::cmd::{Opcode, mailbox_blocks};

/// The facts of the boot.
pub(crate) const TEXT: &str = include_str!("../data/connectx4lx-boot.txt");

const PAGE: u64 = 4096;

/// The queue entry and the mailbox blocks of one direction, as they stood in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Image {
    /// Command queue entry.
    pub(crate) entry: CommandEntry,
    /// Mailbox blocks in the order of the chain.
    pub(crate) blocks: Vec<Mailbox>,
    /// Line of the file at which the image starts, 1-based.
    pub(crate) line: usize,
}

impl Image {
    /// The bytes of the input: inline part and blocks, cut at the input length.
    ///
    /// Shorter than the input length if the recording does not have all blocks.
    pub(crate) fn input_bytes(&self) -> Vec<u8> {
        let inline = self.entry.command_input_inline_data();
        self.joined(&inline, self.entry.input_length())
    }

    /// The bytes of the output: inline part and blocks, cut at the output length.
    pub(crate) fn output_bytes(&self) -> Vec<u8> {
        let inline = self.entry.command_output_inline_data();
        self.joined(&inline, self.entry.output_length())
    }

    fn joined(&self, inline: &[u8; INLINE_BYTES], len_bytes: u32) -> Vec<u8> {
        let mut bytes = inline.to_vec();
        for block in &self.blocks {
            bytes.extend_from_slice(&block.data());
        }
        bytes.truncate(len_bytes as usize);
        bytes
    }
}

/// One command: what the driver posted, the doorbell it rang, what the device left.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exchange {
    /// Opcode in the input.
    pub(crate) opcode: Opcode,
    /// Operation modifier in the input.
    pub(crate) op_mod: u32,
    /// Value written to the command doorbell vector.
    pub(crate) doorbell: u32,
    /// State when the driver rang the doorbell.
    pub(crate) input: Image,
    /// State when the driver found the command completed.
    pub(crate) output: Image,
}

impl Exchange {
    /// Number of blocks that the input needs and the recording leaves out.
    ///
    /// The kernel that wrote the log stopped dumping when its *printed* offset, which counts the
    /// framing of the blocks too, passed the input length: of a chain of 202 blocks it printed 179.
    pub(crate) fn input_blocks_left_out(&self) -> usize {
        mailbox_blocks(self.input.entry.input_length() as usize) - self.input.blocks.len()
    }
}

/// Where a fact stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Entry,
    Done,
    Input,
    Output,
}

/// One row: bits of a double word.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fact {
    pub(crate) line: usize,
    pub(crate) place: Place,
    /// Structure that the offset counts from, and its own offset in the place.
    pub(crate) structure: String,
    pub(crate) base: usize,
    pub(crate) offset: usize,
    pub(crate) high: u32,
    pub(crate) low: u32,
    /// Name of the field, `None` for bits that have none.
    pub(crate) name: Option<String>,
    pub(crate) value: u32,
}

/// One command with the rows that it is made of.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) exchange: Exchange,
    pub(crate) facts: Vec<Fact>,
}

/// The commands of the boot, in order.
pub(crate) fn load() -> Vec<Exchange> {
    parse(TEXT).into_iter().map(|recorded| recorded.exchange).collect()
}

/// Reads a file of facts.
///
/// # Panics
/// Where the text does not read as the format says; where a row does not fit its bits, stands twice
/// or is not aligned; where the input has another opcode than the heading.
pub(crate) fn parse(text: &str) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::new();
    let mut open: Option<Draft> = None;
    for (index, row) in text.lines().enumerate() {
        let line = index + 1;
        let words: Vec<&str> = row.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["command", count, _name, opcode] => {
                all.extend(open.take().map(Draft::finish));
                assert_eq!(number(count, line) as usize, all.len() + 1, "line {line}: the number");
                open = Some(Draft::new(Opcode(number(opcode, line) as u16), line));
            }
            words => {
                let draft = open.as_mut().unwrap_or_else(|| panic!("line {line}: no command yet"));
                draft.take(words, line, &all);
            }
        }
    }
    all.extend(open.map(Draft::finish));
    all
}

fn number(word: &str, line: usize) -> u64 {
    let read = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    read.unwrap_or_else(|_| panic!("line {line}: {word} is not a number"))
}

/// Bytes with a record of which bits were stated.
#[derive(Debug, Clone, Default)]
struct Stated {
    bytes: Vec<u8>,
    stated: Vec<u8>,
    line: usize,
}

impl Stated {
    fn grow(&mut self, end: usize) {
        self.bytes.resize(self.bytes.len().max(end), 0);
        self.stated.resize(self.bytes.len(), 0);
    }

    /// Sets the bits of `mask` in the double word at `at`.
    fn set(&mut self, at: usize, mask: u32, bits: u32, line: usize) {
        self.grow(at + 4);
        for (index, (mask, bits)) in
            mask.to_be_bytes().into_iter().zip(bits.to_be_bytes()).enumerate()
        {
            let (byte, stated) = (&mut self.bytes[at + index], &mut self.stated[at + index]);
            assert_eq!(*stated & mask, 0, "line {line}: bits that were stated before");
            *stated |= mask;
            *byte = *byte & !mask | bits;
        }
    }

    fn set_u64(&mut self, at: usize, value: u64, line: usize) {
        self.set(at, u32::MAX, (value >> 32) as u32, line);
        self.set(at + 4, u32::MAX, value as u32, line);
    }

    /// The bytes, filled up or cut to `len`.
    fn sized(&self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.resize(len, 0);
        bytes
    }
}

/// A command while its lines are being read.
struct Draft {
    opcode: Opcode,
    line: usize,
    doorbell: Option<u32>,
    entry: Stated,
    done: Stated,
    input: Stated,
    output: Stated,
    next: [Vec<u64>; 2],
    facts: Vec<Fact>,
    place: Place,
    structure: String,
    base: usize,
}

impl Draft {
    fn new(opcode: Opcode, line: usize) -> Self {
        Self {
            opcode,
            line,
            doorbell: None,
            entry: Stated::default(),
            done: Stated::default(),
            input: Stated::default(),
            output: Stated::default(),
            next: [Vec::new(), Vec::new()],
            facts: Vec::new(),
            place: Place::Entry,
            structure: String::new(),
            base: 0,
        }
    }

    fn begin(&mut self, place: Place, structure: &str, line: usize) {
        (self.place, self.structure, self.base) = (place, structure.to_owned(), 0);
        self.part().line = line;
    }

    fn part(&mut self) -> &mut Stated {
        match self.place {
            Place::Entry => &mut self.entry,
            Place::Done => &mut self.done,
            Place::Input => &mut self.input,
            Place::Output => &mut self.output,
        }
    }

    fn take(&mut self, words: &[&str], line: usize, before: &[Recorded]) {
        match *words {
            ["doorbell", vector] => self.doorbell = Some(number(vector, line) as u32),
            ["entry"] => self.begin(Place::Entry, CommandEntry::NAME, line),
            ["done"] => self.begin(Place::Done, CommandEntry::NAME, line),
            ["input", structure] => self.begin(Place::Input, structure, line),
            ["output", structure] => self.begin(Place::Output, structure, line),
            ["at", offset, structure] => {
                (self.base, self.structure) = (number(offset, line) as usize, structure.to_owned());
            }
            ["like", "output", which, "from", offset] => {
                let which = &before[number(which, line) as usize - 1];
                let from = number(offset, line) as usize;
                let bytes = which.exchange.output.output_bytes();
                let part = self.part();
                part.grow(bytes.len());
                part.bytes[from..].copy_from_slice(&bytes[from..]);
            }
            ["pages", offset, ref runs @ ..] => {
                let mut at = number(offset, line) as usize;
                while self.part().stated.get(at).is_some_and(|stated| *stated != 0) {
                    at += 8;
                }
                for run in runs {
                    let (first, count) = run.split_once('*').unwrap_or((run, "1"));
                    for page in 0..number(count, line) {
                        self.part().set_u64(at, number(first, line) + page * PAGE, line);
                        at += 8;
                    }
                }
            }
            ["next", ref pointers @ ..] => {
                let pointers = pointers.iter().map(|pointer| number(pointer, line));
                self.next[usize::from(self.place == Place::Output)].extend(pointers);
            }
            [position, name, value] => self.row(position, name, number(value, line), line),
            _ => panic!("line {line}: not a line of this format"),
        }
    }

    fn row(&mut self, position: &str, name: &str, value: u64, line: usize) {
        let broken = || panic!("line {line}: {position} is not a position");
        let (offset, bits) =
            position.strip_suffix(']').and_then(|p| p.split_once('[')).unwrap_or_else(broken);
        let offset = number(offset, line) as usize;
        let (high, low) = bits.split_once(':').unwrap_or((bits, bits));
        let (high, low) = (number(high, line) as u32, number(low, line) as u32);
        assert!(offset.is_multiple_of(4) && high < 32 && low <= high, "line {line}: {position}");
        let width = high - low + 1;
        assert!(value < 1 << width, "line {line}: {value:#x} does not fit {width} bits");
        let mask = (((1_u64 << width) - 1) << low) as u32;
        let at = self.base + offset;
        self.part().set(at, mask, (value as u32) << low, line);
        self.facts.push(Fact {
            line,
            place: self.place,
            structure: self.structure.clone(),
            base: self.base,
            offset,
            high,
            low,
            name: (name != "-").then(|| name.to_owned()),
            value: value as u32,
        });
    }

    fn finish(self) -> Recorded {
        let line = self.line;
        let token = self.entry.sized(64)[0x3c];
        let image = |entry: Vec<u8>, part: &Stated, next: &[u64]| {
            let data = part.sized(INLINE_BYTES + next.len() * 512);
            assert!(part.bytes.len() <= data.len(), "line {line}: rows in no printed block");
            let blocks = next.iter().zip(data[INLINE_BYTES..].chunks_exact(512)).enumerate();
            let blocks = blocks.map(|(index, (next, data))| {
                let mut block = data.to_vec();
                block.resize(0x230, 0);
                block.extend(next.to_be_bytes());
                block.extend((index as u32).to_be_bytes());
                block.extend([0, token, 0, 0]);
                Mailbox::read_from(&block).expect("a whole block")
            });
            let entry = CommandEntry::read_from(&entry).expect("a whole entry");
            Image { entry, blocks: blocks.collect(), line: part.line }
        };
        let mut before = self.entry.sized(64);
        before[0x10..0x20].copy_from_slice(&self.input.sized(INLINE_BYTES));
        let mut after = before.clone();
        for (index, stated) in self.done.stated.iter().enumerate() {
            after[index] = after[index] & !stated | self.done.bytes[index];
        }
        after[0x20..0x30].copy_from_slice(&self.output.sized(INLINE_BYTES));
        let header = self.input.sized(8);
        let opcode = u16::from_be_bytes([header[0], header[1]]);
        assert_eq!(opcode, self.opcode.0, "line {line}: the input has another opcode");
        let exchange = Exchange {
            opcode: self.opcode,
            op_mod: u32::from(u16::from_be_bytes([header[6], header[7]])),
            doorbell: self.doorbell.unwrap_or_else(|| panic!("line {line}: no doorbell")),
            input: image(before, &self.input, &self.next[0]),
            output: image(after, &self.output, &self.next[1]),
        };
        Recorded { exchange, facts: self.facts }
    }
}
