//! Memory keys: checks and translation of every address that a descriptor carries.
//!
//! Source: reference 5.1 ("Access checking for a model").

use ferrocx_prm::mkey::{ANY_QPN, Mkc};

use super::table::Table;

/// The reserved L_Key: addresses are I/O addresses, for queues created with `rlky` only.
///
/// Not 0x100, which ends a receive scatter list, and no index that CREATE_MKEY gives out.
pub const RESERVED_LKEY: u32 = 0x0000_0200;

/// First index that CREATE_MKEY gives out.
const FIRST_INDEX: u32 = 0x40;

/// Levels of KLM or KSM keys over the key that holds the pages; `max_indirection` in the general
/// capabilities. Source: reference 5.10.
pub const MAX_INDIRECTION: u32 = 4;

bitflags::bitflags! {
    /// What an access does, or a key permits. In the order of the bits of the mkey context's first
    /// word, from bit 10.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Rights: u8 {
        /// The device reads for this host.
        const LOCAL_READ = 1;
        /// The device writes for this host.
        const LOCAL_WRITE = 2;
        /// A peer reads.
        const REMOTE_READ = 4;
        /// A peer writes.
        const REMOTE_WRITE = 8;
        /// A peer's atomic operation.
        const REMOTE_ATOMIC = 16;
    }
}

impl Rights {
    /// Rights that a context permits.
    #[must_use]
    pub fn of(context: &Mkc) -> Self {
        let bit = |set: bool, right: Self| if set { right } else { Self::empty() };
        bit(context.lr(), Self::LOCAL_READ)
            | bit(context.lw(), Self::LOCAL_WRITE)
            | bit(context.rr(), Self::REMOTE_READ)
            | bit(context.rw(), Self::REMOTE_WRITE)
            | bit(context.a(), Self::REMOTE_ATOMIC)
    }
}

impl Rights {
    /// What the host itself must be allowed for a peer to have these.
    fn local(self) -> Self {
        let reads = Self::LOCAL_READ | Self::REMOTE_READ | Self::REMOTE_ATOMIC;
        let writes = Self::LOCAL_WRITE | Self::REMOTE_WRITE | Self::REMOTE_ATOMIC;
        let bit = |of: Self, right: Self| if self.intersects(of) { right } else { Self::empty() };
        bit(reads, Self::LOCAL_READ) | bit(writes, Self::LOCAL_WRITE)
    }
}

/// One access to memory, as a descriptor describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemAccess {
    /// Key: index in the upper 24 bits, variant in the lower 8.
    pub key: u32,
    /// Address in the space of the key.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Rights that the access needs.
    pub rights: Rights,
    /// Protection domain of the queue.
    pub pd: u32,
    /// The queue may use the reserved L_Key.
    pub rlky: bool,
    /// The queue pair, or [`ANY_QPN`] for an SQ or RQ.
    pub qpn: u32,
}

impl MemAccess {
    /// An access of an SQ or RQ, which is never tied to a queue pair.
    #[inline]
    #[must_use]
    pub fn local(key: u32, addr: u64, len: u32, rights: Rights, pd: u32, rlky: bool) -> Self {
        Self { key, addr, len, rights, pd, rlky, qpn: ANY_QPN }
    }
}

/// Reason for which a memory key refused an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MkeyFault {
    /// No key has this index.
    UnknownKey,
    /// The variant byte is another one: the key was changed since.
    Variant,
    /// The key is free: not bound to memory, or invalidated.
    Free,
    /// The key belongs to another protection domain.
    Pd,
    /// The key is tied to another queue pair.
    Qpn,
    /// The key does not permit this.
    Rights,
    /// The range is not inside the region.
    Bounds,
    /// The reserved L_Key from a queue without `rlky`, or for a remote access.
    Reserved,
    /// Indirect keys are nested too deep, or an entry is missing.
    Indirection,
}

/// A run of I/O addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First address.
    pub iova: u64,
    /// Bytes.
    pub len: u32,
}

/// One entry of a KLM or KSM key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Indirect {
    /// Bytes covered.
    pub len: u64,
    /// Key of the memory behind it.
    pub key: u32,
    /// Address in the space of that key.
    pub va: u64,
}

/// Translation of a key's addresses into I/O addresses. Source: reference 5.1, `access_mode`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Translation {
    /// Addresses are I/O addresses.
    Pa,
    /// Pages of equal size.
    Mtt {
        /// Page addresses; with `pg_access`, bit 1 permits writes and bit 0 reads.
        pages: Vec<u64>,
        /// Log2 of the page size.
        log_page_size: u32,
        /// The low bits of `pages` count.
        pg_access: bool,
    },
    /// Pieces of other keys (KLM).
    Klm(Vec<Indirect>),
    /// Pieces of equal length of other keys (KSM).
    Ksm {
        /// The pieces.
        entries: Vec<Indirect>,
        /// Log2 of the length of each.
        log_entity_size: u32,
    },
}

/// A memory key.
#[derive(Debug, Clone)]
pub struct Mkey {
    /// Lower 8 bits of the key.
    pub variant: u8,
    /// Not usable for access.
    pub is_free: bool,
    /// Protection domain.
    pub pd: u32,
    /// Protection domain at creation, which is the one that it holds.
    pub held_pd: u32,
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
    /// The context as given, for QUERY_MKEY.
    pub context: Mkc,
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
            Translation::Ksm { entries, log_entity_size } if log >= 12 => {
                *log_entity_size = log;
                entries.iter_mut().for_each(|entry| entry.len = 1 << log);
            }
            Translation::Ksm { .. } | Translation::Pa | Translation::Klm(_) => {}
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

/// Target of an address of a key: memory, or another key.
enum Step {
    Memory(Span),
    Key { key: u32, addr: u64, len: u32 },
}

/// All memory keys of a function.
#[derive(Debug)]
pub struct MkeyTable {
    keys: Table<Mkey>,
}

impl MkeyTable {
    /// No keys, with room for `limit`.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        Self { keys: Table::new(FIRST_INDEX, limit) }
    }

    /// Adds a key; returns its index, the upper 24 bits of the key.
    pub fn insert(&mut self, key: Mkey) -> Option<u32> {
        self.keys.insert(key)
    }

    /// The key with this index.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> Option<&Mkey> {
        self.keys.get(index)
    }

    /// The key with this index.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut Mkey> {
        self.keys.get_mut(index)
    }

    /// Removes a key.
    pub fn remove(&mut self, index: u32) -> Option<Mkey> {
        self.keys.remove(index)
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
        let key = self.keys.get(access.key >> 8).ok_or(MkeyFault::UnknownKey)?;
        key.check(access)?;
        if matches!(key.translation, Translation::Pa) {
            return Ok(Spans { table: self, access: *access, direct: Some(whole) });
        }
        if access.len > 0 {
            let first = self.first_span(access)?;
            if first.len == access.len {
                return Ok(Spans { table: self, access: *access, direct: Some(first) });
            }
        }
        self.check_all(access)?;
        Ok(Spans { table: self, access: *access, direct: None })
    }

    /// Walks the whole range once, so that an access is refused before its first byte moves.
    fn check_all(&self, access: &MemAccess) -> Result<(), MkeyFault> {
        let mut rest = *access;
        while rest.len > 0 {
            let span = self.first_span(&rest)?;
            rest.addr = rest.addr.wrapping_add(u64::from(span.len));
            rest.len -= span.len;
        }
        Ok(())
    }

    /// The run of I/O addresses that the access starts with.
    ///
    /// Rights of peers are those of the key that they named. The keys behind it are used by this
    /// host, which put them there, so local rights are what they need, and the reserved L_Key may
    /// be one of them. Source: Linux 6.12 `mlx5_ib_sg_to_klms`, whose KLMs all name
    /// `local_dma_lkey`, the reserved one, in keys that peers write to.
    fn first_span(&self, access: &MemAccess) -> Result<Span, MkeyFault> {
        let mut at = *access;
        for _ in 0..=MAX_INDIRECTION {
            if at.key == RESERVED_LKEY {
                return Ok(Span { iova: at.addr, len: at.len });
            }
            let key = self.keys.get(at.key >> 8).ok_or(MkeyFault::UnknownKey)?;
            key.check(&at)?;
            match key.step(&at)? {
                Step::Memory(span) => return Ok(span),
                Step::Key { key, addr, len } => {
                    at = MemAccess { key, addr, len, rights: at.rights.local(), ..at };
                }
            }
        }
        Err(MkeyFault::Indirection)
    }
}

impl Mkey {
    /// Follows the first address of an access one level down.
    fn step(&self, access: &MemAccess) -> Result<Step, MkeyFault> {
        let offset = access.addr.wrapping_sub(self.start);
        match &self.translation {
            Translation::Pa => Ok(Step::Memory(Span { iova: access.addr, len: access.len })),
            Translation::Mtt { pages, log_page_size, pg_access } => {
                let page_bytes = 1_u64 << log_page_size;
                let at = offset + (self.start & (page_bytes - 1));
                let index = usize::try_from(at >> log_page_size).unwrap_or(usize::MAX);
                let page = *pages.get(index).ok_or(MkeyFault::Bounds)?;
                if *pg_access && !page_permits(page, access.rights) {
                    return Err(MkeyFault::Rights);
                }
                let inside = at & (page_bytes - 1);
                let iova = (page & !7) + inside;
                Ok(Step::Memory(Span { iova, len: shorter(access.len, page_bytes - inside) }))
            }
            Translation::Klm(entries) => {
                let mut offset = offset;
                for entry in entries {
                    if offset < entry.len {
                        return Ok(entry.step(offset, access.len));
                    }
                    offset -= entry.len;
                }
                Err(MkeyFault::Indirection)
            }
            Translation::Ksm { entries, log_entity_size } => {
                let index = usize::try_from(offset >> log_entity_size).unwrap_or(usize::MAX);
                let entry = entries.get(index).ok_or(MkeyFault::Indirection)?;
                Ok(entry.step(offset & ((1 << log_entity_size) - 1), access.len))
            }
        }
    }
}

impl Indirect {
    fn step(&self, offset: u64, len: u32) -> Step {
        let addr = self.va.wrapping_add(offset);
        Step::Key { key: self.key, addr, len: shorter(len, self.len - offset) }
    }
}

/// Whether the low bits of an MTT entry permit an access. Source: reference 5.1.
fn page_permits(page: u64, rights: Rights) -> bool {
    let reads = Rights::LOCAL_READ | Rights::REMOTE_READ;
    let read_ok = page & 1 != 0 || !rights.intersects(reads | Rights::REMOTE_ATOMIC);
    let write_ok = page & 2 != 0 || !rights.intersects(!reads);
    read_ok && write_ok
}

#[inline]
fn shorter(len: u32, bound: u64) -> u32 {
    u32::try_from(bound).map_or(len, |bound| len.min(bound))
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
        let span = self.table.first_span(&self.access).ok()?;
        self.access.addr = self.access.addr.wrapping_add(u64::from(span.len));
        self.access.len -= span.len;
        Some(span)
    }
}

#[cfg(test)]
#[path = "mkey_tests.rs"]
mod tests;
