//! What the device refused, and which field was wrong.

use std::collections::VecDeque;
use std::fmt;

use ferrocx_prm::cmd::Opcode;

/// One refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The command that was refused; `None` for the data path, a register, or delivery.
    pub command: Option<Opcode>,
    /// The field that was wrong, by the manual's name.
    pub field: &'static str,
    /// Its value.
    pub value: u64,
    /// Explanation of what is wrong with the value.
    pub why: &'static str,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            Some(command) => write!(f, "{command}: ")?,
            None => write!(f, "data path: ")?,
        }
        write!(f, "{} = {:#x}: {}", self.field, self.value, self.why)
    }
}

/// The last refusals, oldest first, and how many there were in all.
#[derive(Debug, Default)]
pub struct RefusalLog {
    entries: VecDeque<Refusal>,
    total: u64,
}

/// Refusals kept.
const KEPT: usize = 256;

impl RefusalLog {
    /// Records a refusal and traces it at debug level. Never on the path of a good packet.
    #[cold]
    pub fn push(&mut self, refusal: Refusal) {
        tracing::debug!(%refusal, "the model refused");
        if self.entries.len() == KEPT {
            self.entries.pop_front();
        }
        self.entries.push_back(refusal);
        self.total += 1;
    }

    /// The last refusals, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Refusal> {
        self.entries.iter()
    }

    /// The most recent refusal.
    #[must_use]
    pub fn last(&self) -> Option<&Refusal> {
        self.entries.back()
    }

    /// Refusals so far, also those no longer kept.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Forgets the entries; the total stays.
    pub fn clear(&mut self) {
        self.entries.clear();
    }
}
