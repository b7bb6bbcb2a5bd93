//! Host pages lent to the firmware: what is needed, what was given, what comes back.
//!
//! Source: reference 2.5.

use std::collections::BTreeSet;

use ferrocx_bus::local::DmaView;
use ferrocx_prm::syndrome::CommandStatus;

use super::config::NicConfig;
use super::refused::{Answer, Refused, ensure};
use crate::bits::be64;
use crate::objects::budget::{Budget, Charge};

/// Bytes of a page. Source: reference 2.5 (4 KiB pages).
const PAGE_BYTES: u64 = 4096;

/// The pages that the host has given.
#[derive(Debug)]
pub struct Pages {
    given: BTreeSet<u64>,
    /// Pages asked for by event, beyond boot and init pages.
    extra: u32,
    /// Pages to ask for by event as soon as an EQ takes page requests.
    due: u32,
    refusals: u64,
    /// Pays for `given`.
    room: Charge,
}

/// Memory for one page in a tree whose nodes may be half full.
const GIVEN_BYTES: u64 = 32;

impl Pages {
    /// No pages; `budget` pays for the list of them.
    pub(crate) fn new(budget: &Budget) -> Self {
        let (given, room) = (BTreeSet::new(), budget.nothing());
        Self { given, extra: 0, due: 0, refusals: 0, room }
    }

    /// Pages that the device holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.given.len()
    }

    /// Whether the device holds no page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// Number of times that the host said it cannot give pages.
    #[must_use]
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    pub(crate) fn refused_by_host(&mut self) {
        self.refusals += 1;
    }

    /// The device wants more pages than those for boot and init.
    pub(crate) fn want_more(&mut self, count: u32) {
        self.extra += count;
    }

    /// So many pages are to be asked for once an EQ takes page requests.
    pub(crate) fn ask_later(&mut self, count: u32) {
        self.due = count;
    }

    /// Takes the pages that are to be asked for: they are wanted from now on.
    pub(crate) fn take_due(&mut self) -> u32 {
        let due = std::mem::take(&mut self.due);
        self.extra += due;
        due
    }

    /// Pages still needed; negative when the device would give some back.
    ///
    /// `stage` is the op_mod of QUERY_PAGES: 1 boot, 2 init, 3 regular.
    pub(crate) fn needed(&self, config: &NicConfig, stage: u32) -> i32 {
        let wanted = match stage {
            1 => config.boot_pages,
            2 => config.boot_pages + config.init_pages,
            _ => config.boot_pages + config.init_pages + self.extra,
        };
        let missing = i64::from(wanted) - self.given.len() as i64;
        i32::try_from(missing).unwrap_or(if missing < 0 { i32::MIN } else { i32::MAX })
    }

    /// The host gives pages. Either all are taken or none.
    pub(crate) fn give(&mut self, mem: &DmaView<'_>, count: usize, tail: &[u8]) -> Answer<()> {
        ensure(tail.len() >= count.saturating_mul(8), || {
            let status = CommandStatus::BAD_INPUT_LEN;
            Refused::new(status, "input_num_entries", count as u64, "the page list is shorter")
        })?;
        let pages = || tail.chunks_exact(8).take(count).map(be64);
        for page in pages() {
            ensure(page != 0, || Refused::param("pas", page, "page at address 0"))?;
            ensure(page.is_multiple_of(PAGE_BYTES), || {
                Refused::param("pas", page, "not aligned to 4096")
            })?;
            let size = 4096;
            let mapped = mem.is_mapped(page, size, true) && mem.is_mapped(page, size, false);
            ensure(mapped, || Refused::param("pas", page, "not mapped for the device"))?;
        }
        self.room
            .grow(count as u64 * GIVEN_BYTES)
            .map_err(|out| Refused::full("input_num_entries", out.into()))?;
        let mut added = Vec::with_capacity(count);
        for page in pages() {
            if !self.given.insert(page) {
                added.iter().for_each(|page| {
                    self.given.remove(page);
                });
                self.pay();
                let status = CommandStatus::BAD_RES_STATE;
                return Err(Refused::new(status, "pas", page, "the device already has this page"));
            }
            added.push(page);
        }
        Ok(())
    }

    /// The host takes up to `count` pages back, but leaves `keep`.
    pub(crate) fn take(&mut self, count: usize, keep: usize) -> Vec<u64> {
        let free = self.given.len().saturating_sub(keep);
        let taken = (0..count.min(free)).map_while(|_| self.given.pop_last()).collect();
        self.pay();
        taken
    }

    /// Gives back what was paid for pages that are not there.
    fn pay(&mut self) {
        self.room.shrink_to(self.given.len() as u64 * GIVEN_BYTES);
    }
}
