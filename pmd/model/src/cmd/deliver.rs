//! Reading a command from host memory, and writing its answer back.
//!
//! Source: reference 2.1 (entry, mailbox), 2.2 (delivery status).

use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{
    CommandEntry, INLINE_BYTES, MAILBOX_ALIGN_BYTES, MAILBOX_DATA_BYTES, Mailbox, TRANSPORT_PCIE,
    mailbox_blocks,
};
use ferrocx_prm::layout::first_reserved;
use ferrocx_prm::syndrome::DeliveryStatus;

use crate::device::state::Ctx;

/// Longest input or output: a MANAGE_PAGES of 2^18 pages fits.
const MAX_BYTES: usize = 4 << 20;

/// Shortest input and output: their headers. Source: reference 2.2.
const MIN_BYTES: usize = 8;

/// Byte offset of the output in an entry, and of its last word.
const OUTPUT_OFFSET: u64 = 0x20;
const STATUS_OFFSET: u64 = 0x3c;

/// A command that was read whole.
#[derive(Debug)]
pub(crate) struct Delivered {
    address: u64,
    entry: CommandEntry,
    pub(crate) input: Vec<u8>,
    output_blocks: Vec<u64>,
}

/// A command that could not be delivered.
#[derive(Debug)]
pub(crate) struct Undelivered {
    address: u64,
    entry: CommandEntry,
    status: DeliveryStatus,
    field: &'static str,
    value: u64,
}

/// Reason for which a command could not be fetched.
#[derive(Debug)]
pub(crate) enum Fetch {
    /// The entry belongs to software: a doorbell without a command.
    NotOurs,
    /// The entry cannot be read.
    Unreachable,
    /// The entry says something wrong.
    Bad(Undelivered),
}

/// A failed check: status, field and value.
type Check<T> = Result<T, (DeliveryStatus, &'static str, u64)>;

impl Delivered {
    /// Reads entry and input, and finds the output blocks, before anything is executed.
    pub(crate) fn fetch(ctx: &mut Ctx<'_>, address: u64) -> Result<Self, Fetch> {
        let mut bytes = [0; CommandEntry::SIZE_BYTES];
        // The ownership bit first, with acquire, then the rest: reference 2.1.
        let last = ctx.mem.load_acquire_be32(address + STATUS_OFFSET);
        if last.map_err(|_| Fetch::Unreachable)? & 1 == 0 {
            ctx.refuse_data("ownership", 0, "doorbell for an entry that software owns");
            return Err(Fetch::NotOurs);
        }
        ctx.mem.read(address, &mut bytes).map_err(|_| Fetch::Unreachable)?;
        let entry = CommandEntry(bytes);
        match Self::read(ctx, &entry) {
            Ok((input, output_blocks)) => Ok(Self { address, entry, input, output_blocks }),
            Err((status, field, value)) => {
                Err(Fetch::Bad(Undelivered { address, entry, status, field, value }))
            }
        }
    }

    fn read(ctx: &Ctx<'_>, entry: &CommandEntry) -> Check<(Vec<u8>, Vec<u64>)> {
        check_entry(entry)?;
        let input_len =
            length(entry.input_length(), DeliveryStatus::INPUT_LEN_ERR, "input_length")?;
        let output_len =
            length(entry.output_length(), DeliveryStatus::OUTPUT_LEN_ERR, "output_length")?;
        let inline = entry.command_input_inline_data();
        let mut input = Vec::with_capacity(input_len);
        input.extend_from_slice(&inline[..input_len.min(INLINE_BYTES)]);
        let chain =
            Chain { ctx, token: entry.token(), pointer_error: DeliveryStatus::BAD_INPUT_POINTER };
        chain.walk(entry.input_mailbox_ptr(), mailbox_blocks(input_len), |_, block| {
            let rest = input_len - input.len();
            input.extend_from_slice(&block.data()[..rest.min(MAILBOX_DATA_BYTES)]);
        })?;
        let mut blocks = Vec::new();
        let chain = Chain { pointer_error: DeliveryStatus::BAD_OUTPUT_POINTER, ..chain };
        chain.walk(entry.output_mailbox_ptr(), mailbox_blocks(output_len), |at, _| {
            blocks.push(at);
        })?;
        Ok((input, blocks))
    }

    /// Bytes of output that the driver can take.
    pub(crate) fn output_len(&self) -> usize {
        self.entry.output_length() as usize
    }

    /// Writes the output, zero-padded to what the driver asked for, and hands the entry back.
    pub(crate) fn complete(self, ctx: &mut Ctx<'_>, output: &[u8]) {
        let mut padded = output.to_vec();
        padded.resize(self.output_len().max(INLINE_BYTES), 0);
        let (inline, rest) = padded.split_at(INLINE_BYTES);
        for (address, data) in self.output_blocks.iter().zip(rest.chunks(MAILBOX_DATA_BYTES)) {
            if ctx.mem.write(*address, data).is_err() {
                ctx.refuse_data("output_mailbox_ptr", *address, "the block cannot be written");
                finish(ctx, self.address, &self.entry, DeliveryStatus::BAD_OUTPUT_POINTER);
                return;
            }
        }
        if ctx.mem.write(self.address + OUTPUT_OFFSET, inline).is_err() {
            ctx.refuse_data("cmdq_phy_addr", self.address, "the entry cannot be written");
        }
        finish(ctx, self.address, &self.entry, DeliveryStatus::OK);
    }
}

impl Undelivered {
    /// Hands the entry back with its delivery status.
    pub(crate) fn complete(self, ctx: &mut Ctx<'_>) {
        ctx.refuse_data(self.field, self.value, self.status.meaning());
        finish(ctx, self.address, &self.entry, self.status);
    }
}

/// Writes status and ownership, last of all. Source: reference 2.1.
fn finish(ctx: &mut Ctx<'_>, address: u64, entry: &CommandEntry, status: DeliveryStatus) {
    let last = entry.token() << 24 | entry.signature() << 16 | u32::from(status.0) << 1;
    if ctx.mem.store_release_be32(address + STATUS_OFFSET, last).is_err() {
        ctx.refuse_data("cmdq_phy_addr", address, "the entry cannot be written");
    }
}

fn check_entry(entry: &CommandEntry) -> Check<()> {
    if entry.command_type() != TRANSPORT_PCIE {
        let kind = entry.command_type().into();
        return Err((DeliveryStatus::BAD_COMMAND_TYPE, "type", kind));
    }
    if let Some(reserved) = first_reserved(entry) {
        let offset = reserved.offset as u64;
        return Err((DeliveryStatus::RESERVED_NOT_ZERO, "command entry offset", offset));
    }
    Ok(())
}

fn length(raw: u32, status: DeliveryStatus, field: &'static str) -> Check<usize> {
    let len = raw as usize;
    if (MIN_BYTES..=MAX_BYTES).contains(&len) { Ok(len) } else { Err((status, field, raw.into())) }
}

/// A chain of mailbox blocks.
struct Chain<'a, 'b> {
    ctx: &'a Ctx<'b>,
    token: u32,
    pointer_error: DeliveryStatus,
}

impl Chain<'_, '_> {
    /// Visits `count` blocks. The length ends the chain, not a null pointer: drivers leave stale
    /// pointers behind the last block. Source: reference 2.1.
    fn walk(&self, first: u64, count: usize, mut each: impl FnMut(u64, &Mailbox)) -> Check<()> {
        let mut pointer = first;
        for number in 0..count {
            if pointer == 0 || !pointer.is_multiple_of(MAILBOX_ALIGN_BYTES as u64) {
                return Err((self.pointer_error, "mailbox pointer", pointer));
            }
            let mut bytes = [0; Mailbox::SIZE_BYTES];
            if self.ctx.mem.read(pointer, &mut bytes).is_err() {
                return Err((self.pointer_error, "mailbox pointer", pointer));
            }
            let block = Mailbox(bytes);
            if block.token() != self.token {
                return Err((DeliveryStatus::TOKEN_ERR, "mailbox token", block.token().into()));
            }
            if block.block_number() as usize != number {
                let found = block.block_number().into();
                return Err((DeliveryStatus::BAD_BLOCK_NUMBER, "block_number", found));
            }
            if let Some(reserved) = first_reserved(&block) {
                let offset = reserved.offset as u64;
                return Err((DeliveryStatus::RESERVED_NOT_ZERO, "mailbox offset", offset));
            }
            each(pointer, &block);
            pointer = block.next_pointer();
        }
        Ok(())
    }
}
