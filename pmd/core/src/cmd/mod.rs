//! The command channel: one queue of up to 32 entries, polled.
//!
//! Every command is written into a slot, announced by one bit of the doorbell vector, and polled
//! until the device gives the slot back. The last slot is kept for MANAGE_PAGES, because the
//! device may ask for memory while it works on another command.
//!
//! | what happens | what is done |
//! |---|---|
//! | the device answers | output copied, slot and mailboxes reused |
//! | the device asks for pages meanwhile | served between two looks, in the page slot |
//! | no answer in time | the slot and its mailboxes stay reserved: a late answer does no harm |
//! | the device is dead (all ones, disabled, starting again) | [`CommandError::Dead`] at once |
//!
//! Signatures of answers are not checked: real devices do not compute them (reference 2.3).

mod mailbox;
pub(crate) mod status;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx_bus::{Bar, BusError, DmaBuf, Transport};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{CommandEntry, INLINE_BYTES, Opcode, PAGE_BYTES, TRANSPORT_PCIE};
use ferrocx_prm::init_seg::offset;
use ferrocx_prm::layout::Bits;
use ferrocx_prm::syndrome::DeliveryStatus;

use self::mailbox::{Chain, MailboxPool};
pub use self::status::{CommandError, DeadDevice, Object};
use crate::health;
use crate::memory::Memory;

/// How often the wait loop looks for signs of death.
const PROBE_INTERVAL: Duration = Duration::from_millis(5);
/// Where an entry says whose it is, in the word with token, signature and status.
const OWNERSHIP: Bits = CommandEntry::OWNERSHIP;

/// The command queue and its slots.
#[derive(Debug)]
pub(crate) struct CommandChannel {
    /// Its clock is the one that commands are waited for by.
    transport: Arc<dyn Transport>,
    bar: Arc<dyn Bar>,
    queue: DmaBuf,
    log_stride: u8,
    /// Slots in all; the last one is the page slot.
    slots: u8,
    mailboxes: MailboxPool,
    /// Token of the next command, never 0.
    token: u8,
    /// Commands that were never answered.
    stuck: Vec<Pending>,
    timeout: Duration,
    /// The queue's address as the registers showed it once the device had answered through it.
    pub(crate) shown: Option<u64>,
}

/// A command that the device works on.
#[derive(Debug)]
pub(crate) struct Pending {
    slot: u8,
    opcode: Opcode,
    object: Option<Object>,
    input: Chain,
    output: Chain,
    started: Instant,
    /// When to look for signs of death next.
    probe_at: Instant,
}

/// A command to post.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Input<'a> {
    pub(crate) opcode: Opcode,
    /// What it is about, for messages.
    pub(crate) object: Option<Object>,
    /// The fixed part of its input, and what follows it.
    pub(crate) head: &'a [u8],
    pub(crate) tail: &'a [u8],
}

/// How a command ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Answered,
    TimedOut,
    Dead(DeadDevice),
}

/// Which slot a command goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Any free slot but the last.
    Ordinary,
    /// The last slot: MANAGE_PAGES only.
    Pages,
}

impl CommandChannel {
    /// Makes the queue; it is not announced to the device yet.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        bar: Arc<dyn Bar>,
        memory: &Memory,
        log_size: u8,
        log_stride: u8,
        timeout: Duration,
    ) -> Result<Self, BusError> {
        let queue = memory.alloc(PAGE_BYTES, PAGE_BYTES)?;
        let mailboxes = MailboxPool::default();
        let slots = 1 << log_size;
        Ok(Self {
            transport,
            bar,
            queue,
            log_stride,
            slots,
            mailboxes,
            token: 1,
            stuck: Vec::new(),
            timeout,
            shown: None,
        })
    }

    /// The address that the device is told.
    pub(crate) fn queue_iova(&self) -> u64 {
        self.queue.iova()
    }

    /// Remembers how the registers show the queue, once the device has answered through it.
    pub(crate) fn remember_queue(&mut self) {
        self.shown = Some(health::queue_shown(self.bar.as_ref()));
    }

    /// Whether some command was never answered: the device may still write to its mailboxes.
    pub(crate) fn has_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Forgets unanswered commands. For after a reset, when the device owns no memory any more.
    pub(crate) fn forget_stuck(&mut self) {
        self.stuck.clear();
    }

    /// Keeps the queue and the mailboxes of unanswered commands allocated for ever.
    pub(crate) fn leak(self) {
        self.queue.leak();
        for pending in self.stuck {
            pending.input.into_iter().chain(pending.output).for_each(DmaBuf::leak);
        }
    }

    /// Posts a command, with room for `out_len` bytes of output.
    pub(crate) fn post(
        &mut self,
        memory: &Memory,
        lane: Lane,
        input: &Input<'_>,
        out_len: usize,
    ) -> Result<Pending, CommandError> {
        let Input { opcode, object, head, tail } = *input;
        let slot =
            self.free_slot(lane).ok_or(CommandError::NoSlot { opcode, slots: self.slots - 1 })?;
        let token = self.next_token();
        let in_len = head.len() + tail.len();
        let refuse = |source| CommandError::Memory { opcode, source };
        let input = self.mailboxes.chain(memory, in_len, token).map_err(refuse)?;
        let output = self.mailboxes.chain(memory, out_len, token).map_err(refuse)?;
        mailbox::write(&input, [head, tail]);
        tracing::trace!(%opcode, slot, in_len, out_len, "command posted");
        let entry = entry(head, in_len, &input, out_len, &output, token);
        self.write_entry(slot, &entry);
        self.bar.write_be32(offset::COMMAND_DOORBELL, 1 << slot);
        let started = self.transport.now();
        let probe_at = started + PROBE_INTERVAL;
        Ok(Pending { slot, opcode, object, input, output, started, probe_at })
    }

    /// Looks whether a command has ended. The caller does something useful between two looks: it
    /// lets the device make progress, serves page requests, may post to the page lane.
    pub(crate) fn look(&self, pending: &mut Pending) -> Option<End> {
        if self.answered(pending) {
            return Some(End::Answered);
        }
        let now = self.transport.now();
        if now < pending.probe_at {
            return None;
        }
        pending.probe_at = now + PROBE_INTERVAL;
        if let Some(cause) = health::probe(self.bar.as_ref(), self.shown) {
            return Some(End::Dead(cause));
        }
        if now - pending.started < self.timeout {
            return None;
        }
        // Look once more: this thread may have slept for longer than the limit.
        Some(if self.answered(pending) { End::Answered } else { End::TimedOut })
    }

    /// Whether the device has given the slot back.
    fn answered(&self, pending: &Pending) -> bool {
        let at = self.entry_offset(pending.slot) + OWNERSHIP.offset;
        OWNERSHIP.get(self.queue.load_acquire_be32(at)) == 0
    }

    /// Copies an answer to `head` and `tail` and checks the delivery. The slot and the mailboxes of
    /// a command without an answer stay reserved.
    pub(crate) fn finish(
        &mut self,
        pending: Pending,
        end: End,
        head: &mut [u8],
        tail: &mut [u8],
    ) -> Result<(), CommandError> {
        let Pending { slot, opcode, object, started, .. } = pending;
        if let End::Answered = end {
            let mut bytes = [0; CommandEntry::SIZE_BYTES];
            self.queue.copy_out(self.entry_offset(slot), &mut bytes);
            let entry = CommandEntry(bytes);
            let inline = entry.command_output_inline_data();
            let head_part = head.len().min(INLINE_BYTES);
            head[..head_part].copy_from_slice(&inline[..head_part]);
            let tail_part = tail.len().min(INLINE_BYTES - head_part);
            tail[..tail_part].copy_from_slice(&inline[head_part..head_part + tail_part]);
            mailbox::read(&pending.output, [head, tail]);
            self.mailboxes.give(pending.input);
            self.mailboxes.give(pending.output);
            return match DeliveryStatus(entry.status() as u8) {
                DeliveryStatus::OK => Ok(()),
                status => Err(CommandError::Delivery { opcode, status, object }),
            };
        }
        tracing::error!(%opcode, slot, "command abandoned, its memory stays reserved");
        self.stuck.push(pending);
        Err(match end {
            End::Dead(cause) => CommandError::Dead { opcode, cause, object },
            _ => {
                let waited = self.transport.now().saturating_duration_since(started);
                CommandError::Timeout { opcode, slot, waited, object }
            }
        })
    }

    /// The lowest slot that no unanswered command holds. Takes back slots answered late.
    ///
    /// Commands run one at a time in each lane, so only unanswered ones hold slots.
    fn free_slot(&mut self, lane: Lane) -> Option<u8> {
        for pending in std::mem::take(&mut self.stuck) {
            if self.answered(&pending) {
                tracing::warn!(opcode = %pending.opcode, slot = pending.slot, "answered late");
                self.mailboxes.give(pending.input);
                self.mailboxes.give(pending.output);
            } else {
                self.stuck.push(pending);
            }
        }
        let page_slot = self.slots - 1;
        let mut candidates = match lane {
            Lane::Ordinary => 0..page_slot,
            Lane::Pages => page_slot..self.slots,
        };
        candidates.find(|slot| self.stuck.iter().all(|pending| pending.slot != *slot))
    }

    fn next_token(&mut self) -> u8 {
        let token = self.token;
        self.token = token.checked_add(1).unwrap_or(1);
        token
    }

    fn entry_offset(&self, slot: u8) -> usize {
        usize::from(slot) << self.log_stride
    }

    /// Writes an entry, ownership last.
    fn write_entry(&self, slot: u8, entry: &CommandEntry) {
        let at = self.entry_offset(slot);
        let (body, last) = entry.0.split_at(OWNERSHIP.offset);
        self.queue.copy_in(at, body);
        let word = u32::from_be_bytes([last[0], last[1], last[2], last[3]]);
        self.queue.store_release_be32(at + OWNERSHIP.offset, word);
    }
}

/// Builds a queue entry, signed and owned by the device.
fn entry(
    head: &[u8],
    in_len: usize,
    input: &Chain,
    out_len: usize,
    output: &Chain,
    token: u8,
) -> CommandEntry {
    let mut inline = [0; INLINE_BYTES];
    let part = head.len().min(INLINE_BYTES);
    inline[..part].copy_from_slice(&head[..part]);
    let entry = CommandEntry::zeroed()
        .with_command_type(TRANSPORT_PCIE)
        .with_input_length(in_len as u32)
        .with_input_mailbox_ptr(mailbox::first_iova(input))
        .with_command_input_inline_data(inline)
        .with_output_mailbox_ptr(mailbox::first_iova(output))
        .with_output_length(out_len as u32)
        .with_token(u32::from(token))
        .with_ownership(true);
    let xor = entry.0.iter().fold(0, |xor, byte| xor ^ byte);
    entry.with_signature(u32::from(!xor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_is_signed_and_literal() {
        let head = [0x01, 0x04, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let entry = entry(&head, 16, &Chain::new(), 12, &Chain::new(), 0x21);
        let mut expected = [0; 64];
        expected[0] = 7; // PCIe transport
        expected[0x07] = 16; // input length
        expected[0x10] = 0x01; // ENABLE_HCA
        expected[0x11] = 0x04;
        expected[0x3b] = 12; // output length
        expected[0x3c] = 0x21; // token
        // 7 ^ 0x10 ^ 0x01 ^ 0x04 ^ 0x0c ^ 0x21 ^ 0x01 (ownership) = 0x3e
        expected[0x3d] = 0xff ^ 0x3e;
        expected[0x3f] = 1;
        assert_eq!(entry.0, expected);
        assert_eq!(entry.0.iter().fold(0, |xor, byte| xor ^ byte), 0xff);
    }
}
