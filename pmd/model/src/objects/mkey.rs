//! Memory keys: checks and translation of every address that a descriptor carries.
//!
//! Source: reference 5.1 ("Access checking for a model").

use std::cell::Cell;

use ferrocx_bus::local::DmaView;
use ferrocx_prm::mkey::{ANY_QPN, Mkc};

use super::budget::{Budget, Footprint};
use super::memory::Pin;
use super::table::{Full, Table};
use super::translation::{Step, Want};

pub use super::access::{MemAccess, MkeyFault, Rights};
pub use super::translation::{KlmList, Place, Span, Translation};

/// The reserved L_Key: addresses are I/O addresses, for queues created with `rlky` only.
///
/// Not 0x100, which ends a receive scatter list, and no index that CREATE_MKEY gives out.
pub const RESERVED_LKEY: u32 = 0x0000_0200;

/// First index that CREATE_MKEY gives out.
const FIRST_INDEX: u32 = 0x40;

/// Levels of KLM or KSM keys over the key that holds the pages; `max_indirection` in the general
/// capabilities. Source: reference 5.10.
pub const MAX_INDIRECTION: u32 = 4;

/// Entries of memory keys that one access may make the device look at: a list of the largest size
/// over keys that have one of a few pages each, and four times that.
pub const MAX_STEPS: u64 = 1 << 19;

/// Looks at entries, accesses to memory and the like after which the device leaves the rest of its
/// work to its next step.
pub const STEPS_PER_TURN: u64 = 1 << 17;

/// A memory key.
#[derive(Debug)]
pub struct Mkey {
    /// Lower 8 bits of the key.
    pub variant: u8,
    /// Not usable for access.
    pub is_free: bool,
    /// Protection domain, which it holds.
    pub pd: u32,
    /// Queue pair, or [`ANY_QPN`].
    pub qpn: u32,
    /// Rights that the key permits.
    pub rights: Rights,
    /// First address.
    pub start: u64,
    /// Bytes; `None` for all 2^64.
    pub len: Option<u64>,
    /// Translation of its addresses.
    pub translation: Translation,
    /// Memory of a user context or of the device that the region lies in.
    pub pin: Option<Pin>,
    /// The context as given, for QUERY_MKEY.
    pub context: Mkc,
}

impl Footprint for Mkey {
    fn heap_bytes(&self) -> u64 {
        let of = &self.translation;
        (of.capacity() * of.entry_bytes()) as u64
    }
}

impl Mkey {
    /// Takes over a changed context; the translation entries stay.
    pub(crate) fn adopt(&mut self, context: Mkc) {
        self.variant = context.mkey_7_0().to_be_bytes()[3];
        self.is_free = context.free();
        self.pd = context.pd();
        self.qpn = context.qpn();
        self.rights = Rights::of(&context);
        self.start = context.start_addr();
        self.len = (!context.length64()).then(|| context.len());
        let log = context.log_page_size();
        match &mut self.translation {
            Translation::Mtt { log_page_size, .. } => *log_page_size = log.max(12),
            Translation::Ksm { log_entity_size, .. } if log >= 12 => *log_entity_size = log,
            Translation::Ksm { .. }
            | Translation::Pa
            | Translation::Klm(_)
            | Translation::Memic { .. } => {}
        }
        self.context = context;
    }

    /// Checks everything but the memory behind the key.
    #[inline]
    fn check(&self, access: &MemAccess) -> Result<(), MkeyFault> {
        let key_byte = access.key & 0xff;
        if u32::from(self.variant) != key_byte {
            return Err(MkeyFault::Variant);
        }
        if self.is_free {
            return Err(MkeyFault::Free);
        }
        if self.pd != access.pd {
            return Err(MkeyFault::Pd);
        }
        if self.qpn != ANY_QPN && self.qpn != access.qpn {
            return Err(MkeyFault::Qpn);
        }
        if !self.rights.contains(access.rights) {
            return Err(MkeyFault::Rights);
        }
        self.check_bounds(access.addr, access.len)
    }

    #[inline]
    fn check_bounds(&self, addr: u64, len: u32) -> Result<(), MkeyFault> {
        let Some(limit) = self.len else {
            let end = addr.checked_add(u64::from(len).saturating_sub(1));
            return end.map(|_| ()).ok_or(MkeyFault::Bounds);
        };
        let offset = addr.checked_sub(self.start).ok_or(MkeyFault::Bounds)?;
        let end = offset.checked_add(u64::from(len)).ok_or(MkeyFault::Bounds)?;
        if end <= limit { Ok(()) } else { Err(MkeyFault::Bounds) }
    }
}

/// Place in a list of pieces where the last search ended, since accesses go on from there.
#[derive(Debug, Clone, Copy, Default)]
struct Hint {
    /// Changes of keys when it was written; it holds for no other.
    changes: u64,
    key: u32,
    near: (usize, u64),
}

/// All memory keys of a function.
#[derive(Debug)]
pub struct MkeyTable {
    keys: Table<Mkey>,
    /// Times that a key may have changed.
    changes: u64,
    /// For each level of indirection.
    hints: [Cell<Hint>; MAX_INDIRECTION as usize + 1],
    /// Work so far that is no access to memory, and when the present step of the device began.
    steps: Cell<u64>,
    turn: u64,
}

impl MkeyTable {
    /// No keys, with room for `limit`, whose memory `budget` pays for.
    #[must_use]
    pub fn new(limit: u32, budget: &Budget) -> Self {
        Self {
            keys: Table::new(FIRST_INDEX, limit, budget),
            // A hint that was never written holds for no key.
            changes: 1,
            hints: Default::default(),
            steps: Cell::new(0),
            turn: 0,
        }
    }

    /// Adds a key; returns its index, the upper 24 bits of the key.
    ///
    /// # Errors
    ///
    /// [`Full`], when no index or no memory is left.
    pub fn insert(&mut self, key: Mkey) -> Result<u32, Full> {
        self.keys.insert(key)
    }

    /// Makes room for translation entries from `first` up to, and without, the one numbered `end`,
    /// and counts the work of writing them.
    ///
    /// # Errors
    ///
    /// [`Full::Memory`] when the function's memory is used up; nothing has changed then.
    pub(crate) fn make_room(&mut self, index: u32, first: usize, end: usize) -> Result<(), Full> {
        let translation = &self.keys.get(index).ok_or(Full::Numbers)?.translation;
        let (len, capacity, entry) =
            (translation.len(), translation.capacity(), translation.entry_bytes());
        // Entries on the way to the first new one are filled in.
        self.work((end - first.min(len)) as u64);
        if end <= capacity {
            return Ok(());
        }
        // Twice the room, that many requests in a row do not move it each time; or what is needed.
        // The old room is paid for until its content has moved.
        let mut room = end.max(2 * capacity);
        if !self.keys.try_grow(index, (room * entry) as u64) {
            room = end;
            self.keys.grow(index, (room * entry) as u64)?;
        }
        let key = self.keys.get_mut(index).ok_or(Full::Numbers)?;
        let is_there = key.translation.reserve(room - len);
        self.keys.shrink(index, (if is_there { capacity } else { room } * entry) as u64);
        if is_there { Ok(()) } else { Err(Full::Memory) }
    }

    /// Work so far that is no access to memory: entries looked at or written, frames, objects.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.steps.get()
    }

    /// A step of the device begins, with a view of memory that was not used yet.
    pub(crate) fn start_turn(&mut self) {
        self.turn = self.steps.get();
    }

    /// Whether the device has done enough for one step, [`STEPS_PER_TURN`]: what was counted by
    /// [`MkeyTable::work`], and what its view of memory was used for, by whichever path.
    #[inline]
    pub(crate) fn is_turn_over(&self, mem: &DmaView<'_>) -> bool {
        self.steps.get() - self.turn + mem.work() >= STEPS_PER_TURN
    }

    /// Counts work that is no access to memory: entries looked at or written, frames, objects.
    #[inline]
    pub(crate) fn work(&self, steps: u64) {
        self.steps.update(|so_far| so_far + steps);
    }

    /// The key with this index.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&Mkey> {
        self.keys.get(index)
    }

    /// The key with this index.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Mkey> {
        self.changes += 1;
        self.keys.get_mut(index)
    }

    /// Removes a key.
    pub fn remove(&mut self, index: u32) -> Option<Mkey> {
        self.changes += 1;
        self.keys.remove(index)
    }

    /// Whether the caller may query or remove the key; also `true` if there is none.
    #[must_use]
    pub fn is_own(&self, index: u32) -> bool {
        self.keys.is_own(index)
    }

    /// What follows is done for this user context.
    pub(crate) fn set_caller(&mut self, uid: u16) {
        self.keys.set_caller(uid);
    }

    /// Indices that were given out so far, in use or not.
    #[must_use]
    pub fn numbers(&self) -> usize {
        self.keys.numbers()
    }

    /// Indices of the keys of a user context, the last ones first.
    #[must_use]
    pub fn of_user(&self, uid: u16) -> Vec<u32> {
        self.keys.of_user(uid)
    }

    /// Whether an access costs no more than its pages: the key is not made of pieces of others.
    /// What is no key at all costs nothing either.
    #[must_use]
    pub fn is_flat(&self, key: u32) -> bool {
        key == RESERVED_LKEY
            || self.keys.get(key >> 8).is_none_or(|key| {
                let of = &key.translation;
                matches!(of, Translation::Pa | Translation::Mtt { .. } | Translation::Memic { .. })
            })
    }

    /// Number of other objects that name the key.
    #[must_use]
    pub fn holders(&self, index: u32) -> u32 {
        self.keys.holders(index)
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.keys.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Checks an access and gives the runs of I/O addresses behind it, without allocating.
    ///
    /// # Errors
    ///
    /// [`MkeyFault`] when any byte is refused; then no span is given. Whether an I/O address is
    /// mapped is the bus's business, found when it is used.
    #[inline]
    pub fn translate(&self, access: &MemAccess) -> Result<Spans<'_>, MkeyFault> {
        let whole = Span { iova: access.addr, len: access.len };
        if access.key == RESERVED_LKEY {
            let local = Rights::LOCAL_READ | Rights::LOCAL_WRITE;
            if !access.rlky || !local.contains(access.rights) {
                return Err(MkeyFault::Reserved);
            }
            return Ok(Spans { table: self, access: *access, direct: Some(whole) });
        }
        if let Some(iova) = self.direct(access)? {
            let direct = Some(Span { iova, len: access.len });
            return Ok(Spans { table: self, access: *access, direct });
        }
        if access.len > 0 {
            let first = self.walk(access, Want::Run)?;
            if first.len == access.len {
                return Ok(Spans { table: self, access: *access, direct: Some(first) });
            }
        }
        self.check_all(access)?;
        Ok(Spans { table: self, access: *access, direct: None })
    }

    /// Checks an access through a key that is not reserved; its I/O address, if a look tells that
    /// it lies in one piece.
    ///
    /// # Errors
    ///
    /// [`MkeyFault`], as far as the key itself tells. Without an address, the memory behind the key
    /// was not looked at.
    #[inline]
    pub(crate) fn direct(&self, access: &MemAccess) -> Result<Option<u64>, MkeyFault> {
        let key = self.keys.get(access.key >> 8).ok_or(MkeyFault::UnknownKey)?;
        key.check(access)?;
        if matches!(key.translation, Translation::Pa) {
            return Ok(Some(access.addr));
        }
        let iova = key.translation.in_page(key.start, access).filter(|_| access.len > 0);
        self.work(u64::from(iova.is_some()));
        Ok(iova)
    }

    /// Walks the whole range once, so that an access is refused before its first byte moves.
    fn check_all(&self, access: &MemAccess) -> Result<(), MkeyFault> {
        let limit = self.steps.get() + MAX_STEPS;
        let mut rest = *access;
        while rest.len > 0 {
            if self.steps.get() >= limit {
                return Err(MkeyFault::Steps);
            }
            let extent = self.walk(&rest, Want::Extent)?;
            rest.addr = rest.addr.wrapping_add(u64::from(extent.len));
            rest.len -= extent.len;
        }
        Ok(())
    }

    /// The run of I/O addresses that the access starts with, or how far one key permits it.
    ///
    /// Rights of peers are those of the key that they named. The keys behind it are used by this
    /// host, which put them there, so local rights are what they need, and the reserved L_Key may
    /// be one of them. Source: Linux 6.12 `mlx5_ib_sg_to_klms`, whose KLMs all name
    /// `local_dma_lkey`, the reserved one, in keys that peers write to.
    fn walk(&self, access: &MemAccess, want: Want) -> Result<Span, MkeyFault> {
        let mut at = *access;
        for hint in &self.hints {
            if at.key == RESERVED_LKEY {
                return Ok(Span { iova: at.addr, len: at.len });
            }
            let index = at.key >> 8;
            let key = self.keys.get(index).ok_or(MkeyFault::UnknownKey)?;
            key.check(&at)?;
            let Hint { changes, key: hinted, near } = hint.get();
            let is_hinted = changes == self.changes && hinted == index;
            let near = if is_hinted { near } else { (0, 0) };
            let (step, near, steps) = key.translation.step(key.start, &at, want, near);
            self.work(steps);
            match step? {
                Step::Memory(span) => return Ok(span),
                Step::Key { at: place, len } => {
                    hint.set(Hint { changes: self.changes, key: index, near });
                    let (key, addr) = (place.key, place.va);
                    at = MemAccess { key, addr, len, rights: at.rights.local(), ..at };
                }
            }
        }
        Err(MkeyFault::Indirection)
    }
}

/// The runs of I/O addresses behind an access that was checked.
#[derive(Debug, Clone)]
pub struct Spans<'a> {
    table: &'a MkeyTable,
    access: MemAccess,
    /// The whole access, when it needs no translation.
    direct: Option<Span>,
}

impl Iterator for Spans<'_> {
    type Item = Span;

    #[inline]
    fn next(&mut self) -> Option<Span> {
        if self.access.len == 0 {
            return None;
        }
        if let Some(span) = self.direct {
            self.access.len = 0;
            return Some(span);
        }
        // Checked when the iterator was made, and the table is borrowed since.
        let span = self.table.walk(&self.access, Want::Run).ok()?;
        self.access.addr = self.access.addr.wrapping_add(u64::from(span.len));
        self.access.len -= span.len;
        Some(span)
    }
}

#[cfg(test)]
#[path = "mkey_tests.rs"]
mod tests;
