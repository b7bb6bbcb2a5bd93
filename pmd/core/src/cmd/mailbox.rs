//! Mailboxes: chains of 512-byte blocks for inputs and outputs that do not fit the queue entry.

use ferrocx_bus::{BusError, DmaBuf};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::{
    INLINE_BYTES, MAILBOX_ALIGN_BYTES, MAILBOX_DATA_BYTES, Mailbox, mailbox_blocks,
};

use crate::memory::Memory;

/// Blocks kept for reuse; longer chains give their blocks back to the heap.
const KEPT_BLOCKS: usize = 64;

/// A chain of blocks, in order. Empty if everything fits the queue entry.
pub(super) type Chain = Vec<DmaBuf>;

/// Blocks that no command uses.
#[derive(Debug, Default)]
pub(super) struct MailboxPool {
    free: Vec<DmaBuf>,
}

impl MailboxPool {
    /// Makes a chain for `len_bytes` of input or output, headers written, data zero.
    pub(super) fn chain(
        &mut self,
        memory: &Memory,
        len_bytes: usize,
        token: u8,
    ) -> Result<Chain, BusError> {
        let count = mailbox_blocks(len_bytes);
        let mut chain = Vec::with_capacity(count);
        for _ in 0..count {
            let block = match self.free.pop() {
                Some(block) => block,
                None => memory.alloc(Mailbox::SIZE_BYTES, MAILBOX_ALIGN_BYTES)?,
            };
            chain.push(block);
        }
        for (index, block) in chain.iter().enumerate() {
            let next = chain.get(index + 1).map_or(0, DmaBuf::iova);
            let header = Mailbox::zeroed()
                .with_next_pointer(next)
                .with_block_number(index as u32)
                .with_token(u32::from(token));
            block.copy_in(0, header.as_bytes());
        }
        Ok(chain)
    }

    /// Takes back a chain that the device no longer owns.
    pub(super) fn give(&mut self, chain: Chain) {
        let room = KEPT_BLOCKS.saturating_sub(self.free.len());
        self.free.extend(chain.into_iter().take(room));
    }
}

/// The address that goes into the queue entry: the first block's, or 0.
pub(super) fn first_iova(chain: &Chain) -> u64 {
    chain.first().map_or(0, DmaBuf::iova)
}

/// Writes what follows the inline bytes of an input, which is `head` followed by `tail`.
pub(super) fn write(chain: &Chain, head: &[u8], tail: &[u8]) {
    let mut position = 0;
    for part in [head, tail] {
        for (at, piece) in pieces(position, part.len()) {
            if at >= INLINE_BYTES {
                let from = at - position;
                let (block, offset) = place(at);
                chain[block].copy_in(offset, &part[from..from + piece]);
            }
        }
        position += part.len();
    }
}

/// Reads what follows the inline bytes of an output into `head` and then `tail`.
pub(super) fn read(chain: &Chain, head: &mut [u8], tail: &mut [u8]) {
    let mut position = 0;
    for part in [head, tail] {
        for (at, piece) in pieces(position, part.len()) {
            if at >= INLINE_BYTES {
                let from = at - position;
                let (block, offset) = place(at);
                chain[block].copy_out(offset, &mut part[from..from + piece]);
            }
        }
        position += part.len();
    }
}

/// Block and offset of byte `at` of a command, for bytes behind the inline part.
fn place(at: usize) -> (usize, usize) {
    let behind = at - INLINE_BYTES;
    (behind / MAILBOX_DATA_BYTES, behind % MAILBOX_DATA_BYTES)
}

/// Cuts `start..start + len` at the end of the inline part and at every block boundary; yields
/// position and length of each piece.
fn pieces(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let end = start + len;
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let boundary =
            if at < INLINE_BYTES { INLINE_BYTES } else { at + MAILBOX_DATA_BYTES - place(at).1 };
        let piece = (at, boundary.min(end) - at);
        at += piece.1;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_are_cut_at_the_inline_part_and_at_blocks() {
        assert_eq!(pieces(0, 16).collect::<Vec<_>>(), [(0, 16)]);
        assert_eq!(pieces(0, 17).collect::<Vec<_>>(), [(0, 16), (16, 1)]);
        assert_eq!(pieces(0, 528).collect::<Vec<_>>(), [(0, 16), (16, 512)]);
        assert_eq!(pieces(0, 529).collect::<Vec<_>>(), [(0, 16), (16, 512), (528, 1)]);
        assert_eq!(pieces(0x110, 8).collect::<Vec<_>>(), [(0x110, 8)]);
        assert_eq!(pieces(0x20c, 8).collect::<Vec<_>>(), [(0x20c, 4), (0x210, 4)]);
        assert_eq!(pieces(5, 0).count(), 0);
    }
}
