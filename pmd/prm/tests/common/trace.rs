//! Reader of the boot trace: the command dump that Linux's `mlx5_core` writes to the kernel log.
//!
//! Shared by path between the tests of this crate and of the model (`#[path = ...] mod trace;`).
//! Parsing is pure, from `&str`; only [`load`] touches the file system.
//!
//! # Format
//! `dump command NAME(0xOPCODE) INPUT` or `OUTPUT`, then lines `OFFSET: WORD WORD WORD WORD` with
//! the 64 bytes of the command queue entry, then the mailbox blocks of 576 bytes each, headed
//! `command block:`, offsets running on. Between the two stands `writing 0xVECTOR to command
//! doorbell`. Everything else in the log is skipped.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{CommandEntry, INLINE_BYTES, InputHeader, Mailbox};
use ferrocx_prm::cmd::{Opcode, mailbox_blocks};

/// Name of the trace inside the folder `data` of the shared folder.
pub(crate) const FILE_NAME: &str = "mlx5_core-connectx4-boot-trace.txt.gz";

/// The queue entry and the mailbox blocks of one direction, as they stood in memory.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Image {
    /// Command queue entry.
    pub(crate) entry: CommandEntry,
    /// Mailbox blocks in the order of the chain.
    pub(crate) blocks: Vec<Mailbox>,
    /// Line of the log at which the dump starts, 1-based.
    pub(crate) line: usize,
}

impl Image {
    /// The bytes of the input: inline part and blocks, cut at the input length.
    ///
    /// Shorter than the input length if the log does not have all blocks.
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
    /// Number of blocks that the input needs and the log leaves out.
    ///
    /// The kernel that wrote the log stopped dumping when its *printed* offset, which counts the
    /// framing of the blocks too, passed the input length: of a chain of 202 blocks it printed 179.
    pub(crate) fn input_blocks_left_out(&self) -> usize {
        mailbox_blocks(self.input.entry.input_length() as usize) - self.input.blocks.len()
    }
}

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

/// Where the trace is looked for: `$FERROCX_SHARED`, else the folder `shared` beside the
/// workspace or beside one of the folders above it.
pub(crate) fn path() -> PathBuf {
    if let Some(shared) = std::env::var_os("FERROCX_SHARED") {
        return Path::new(&shared).join("data").join(FILE_NAME);
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = here
        .ancestors()
        .map(|folder| folder.join("shared").join("data").join(FILE_NAME))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| here.join("../../../shared/data").join(FILE_NAME))
}

/// The commands of the recorded boot; `None`, with a line that says so, if it is not here.
///
/// # Panics
/// If the file is there and cannot be read or parsed.
pub(crate) fn load() -> Option<Vec<Exchange>> {
    let path = path();
    let Ok(file) = std::fs::File::open(&path) else {
        eprintln!("skipped: no boot trace at {}", path.display());
        return None;
    };
    let mut log = String::new();
    flate2::read::GzDecoder::new(file).read_to_string(&mut log).expect("the trace is gzipped text");
    Some(parse(&log).expect("the trace reads as the kernel writes it"))
}
