//! Mailboxes: chains of 512-byte blocks for inputs and outputs that do not fit the queue entry.

use std::ops::Range;

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

/// Writes what follows the inline bytes of an input, which is two parts, one behind the other.
pub(super) fn write(chain: &Chain, parts: [&[u8]; 2]) {
    for (block, offset, part, range) in pieces(parts.map(<[u8]>::len)) {
        chain[block].copy_in(offset, &parts[part][range]);
    }
}

/// Reads what follows the inline bytes of an output into two parts, one behind the other.
pub(super) fn read(chain: &Chain, parts: [&mut [u8]; 2]) {
    for (block, offset, part, range) in pieces([parts[0].len(), parts[1].len()]) {
        chain[block].copy_out(offset, &mut parts[part][range]);
    }
}

/// Cuts two parts, one behind the other, at the end of the inline bytes and at every block's;
/// yields block, offset in it, part and range of that for each piece behind the inline bytes.
fn pieces(lens: [usize; 2]) -> impl Iterator<Item = (usize, usize, usize, Range<usize>)> {
    [0, lens[0]].into_iter().enumerate().flat_map(move |(part, start)| {
        let mut at = start.max(INLINE_BYTES);
        std::iter::from_fn(move || {
            let left = (start + lens[part]).checked_sub(at).filter(|left| *left > 0)?;
            let behind = at - INLINE_BYTES;
            let (block, offset) = (behind / MAILBOX_DATA_BYTES, behind % MAILBOX_DATA_BYTES);
            let range = at - start..at - start + left.min(MAILBOX_DATA_BYTES - offset);
            at += range.len();
            Some((block, offset, part, range))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_are_cut_at_the_inline_part_and_at_blocks() {
        assert_eq!(pieces([16, 0]).count(), 0);
        assert_eq!(pieces([17, 0]).collect::<Vec<_>>(), [(0, 0, 0, 16..17)]);
        assert_eq!(pieces([16, 512]).collect::<Vec<_>>(), [(0, 0, 1, 0..512)]);
        assert_eq!(pieces([8, 521]).collect::<Vec<_>>(), [(0, 0, 1, 8..520), (1, 0, 1, 520..521)]);
        assert_eq!(
            pieces([0x20c, 8]).collect::<Vec<_>>(),
            [(0, 0, 0, 16..0x20c), (0, 0x1fc, 1, 0..4), (1, 0, 1, 4..8)]
        );
    }
}
