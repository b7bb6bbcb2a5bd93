//! What the blocks of a namespace may hold, as its hosts know.

use ferrocx_model::wire::SplitMix64;

use crate::stage::{Violation, ensure};

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;

/// Number of a write: what it left in a block. 0 are zeros.
pub(crate) type Version = u64;

/// One block.
#[derive(Debug, Clone)]
struct Block {
    /// What it may hold: one version, and those of writes whose end nobody knows.
    may: Vec<Version>,
    /// Commands under way that read it; `None` while one writes it.
    readers: Option<u32>,
}

/// The blocks of a namespace.
#[derive(Debug)]
pub(crate) struct Blocks {
    seed: u64,
    blocks: Vec<Block>,
    version: Version,
}

impl Blocks {
    /// So many blocks of zeros.
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let blocks = vec![Block { may: vec![0], readers: Some(0) }; count];
        Self { seed, blocks, version: 0 }
    }

    /// All are zeros again, and nobody uses them: what kept them is no more.
    pub(crate) fn reset(&mut self) {
        self.blocks.fill(Block { may: vec![0], readers: Some(0) });
    }

    /// Number of a write that none had.
    pub(crate) fn next_version(&mut self) -> Version {
        self.version += 1;
        self.version
    }

    /// The bytes of a version of a block: each has its own, and each place in it.
    pub(crate) fn fill(&self, block: usize, version: Version, bytes: &mut [u8]) {
        if version == 0 {
            bytes.fill(0);
            return;
        }
        let mut random = SplitMix64::new(self.seed ^ version << 20 ^ block as u64);
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&random.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Takes blocks for a command that reads or writes them. `false` if another is in its way.
    pub(crate) fn take(&mut self, at: usize, count: usize, writes: bool) -> bool {
        let blocks = &mut self.blocks[at..at + count];
        let is_free = |block: &Block| match writes {
            true => block.readers == Some(0),
            false => block.readers.is_some(),
        };
        if !blocks.iter().all(is_free) {
            return false;
        }
        for block in blocks {
            block.readers = if writes { None } else { block.readers.map(|it| it + 1) };
        }
        true
    }

    /// Gives back what [`Blocks::take`] took.
    pub(crate) fn give_back(&mut self, at: usize, count: usize, writes: bool) {
        for block in &mut self.blocks[at..at + count] {
            block.readers = if writes { Some(0) } else { block.readers.map(|it| it - 1) };
        }
    }

    /// A write was answered: nothing else is there.
    pub(crate) fn wrote(&mut self, at: usize, count: usize, version: Version) {
        self.blocks[at..at + count].iter_mut().for_each(|block| block.may = vec![version]);
    }

    /// A write was not answered: it may be there.
    pub(crate) fn may_have_written(&mut self, at: usize, count: usize, version: Version) {
        self.blocks[at..at + count].iter_mut().for_each(|block| block.may.push(version));
    }

    /// The version that all of these blocks hold, if there is no doubt.
    pub(crate) fn known(&self, at: usize, count: usize) -> Option<Vec<Version>> {
        self.blocks[at..at + count]
            .iter()
            .map(|it| (it.may.len() == 1).then(|| it.may[0]))
            .collect()
    }

    /// Looks at what was read; afterwards that is what is there.
    pub(crate) fn read(&mut self, at: usize, bytes: &[u8]) -> Result<(), Violation> {
        let mut wanted = [0; BLOCK];
        for (block, bytes) in (at..).zip(bytes.chunks(BLOCK)) {
            let may = self.blocks[block].may.clone();
            let is_it = |version: &Version| {
                self.fill(block, *version, &mut wanted);
                wanted == *bytes
            };
            let found = may.iter().copied().find(is_it);
            ensure(found.is_some(), || {
                format!("block {block} holds none of its versions {may:?}: {:x?}..", &bytes[..8])
            })?;
            self.blocks[block].may.clear();
            self.blocks[block].may.extend(found);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_holds_what_was_answered_and_may_hold_what_was_not() {
        let mut blocks = Blocks::new(7, 4);
        let bytes = |blocks: &Blocks, at, version| {
            let mut bytes = [0; BLOCK];
            blocks.fill(at, version, &mut bytes);
            bytes
        };
        let (one, two) = (blocks.next_version(), blocks.next_version());
        assert!(blocks.read(1, &[0; BLOCK]).is_ok());
        blocks.wrote(1, 1, one);
        assert!(blocks.read(1, &[0; BLOCK]).is_err(), "zeros behind a write");
        blocks.may_have_written(1, 1, two);
        assert_eq!(blocks.known(1, 1), None);
        let first = bytes(&blocks, 1, one);
        assert!(blocks.read(1, &first).is_ok());
        assert_eq!(blocks.known(1, 1), Some(vec![one]));
        let other = bytes(&blocks, 1, two);
        assert!(blocks.read(1, &other).is_err(), "what was not there is there later");
        assert!(blocks.read(2, &bytes(&blocks, 1, one)).is_err(), "another block's");
    }

    #[test]
    fn who_writes_is_alone() {
        let mut blocks = Blocks::new(7, 8);
        assert!(blocks.take(0, 4, false) && blocks.take(2, 4, false));
        assert!(!blocks.take(3, 1, true) && blocks.take(6, 2, true));
        assert!(!blocks.take(5, 2, false));
        blocks.give_back(0, 4, false);
        assert!(!blocks.take(3, 1, true) && blocks.take(0, 2, true));
        blocks.give_back(6, 2, true);
        assert!(blocks.take(5, 2, false));
    }
}
