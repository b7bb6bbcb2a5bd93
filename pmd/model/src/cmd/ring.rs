//! Where a queue and its doorbell record lie: in listed pages, or in memory of a user context.
//!
//! Source: reference 4.2, 4.11, 6.6.

use ferrocx_prm::syndrome::CommandStatus;

use super::umem;
use crate::bits::be64;
use crate::device::refused::{Answer, Refused, ensure};
use crate::objects::{Objects, Pin, QueueMemory};

/// Place of a ring, as its context states it.
pub(super) struct RingPlace {
    /// `log_page_size`, minus 12.
    pub(super) log_page_size: u32,
    /// `page_offset`, in units of a 64th of a page (64 bytes of a 4 KiB page).
    pub(super) page_offset: u32,
    /// Bytes of the ring.
    pub(super) len_bytes: u64,
    /// Log2 of the bytes of an entry that is accessed as a whole, and so straddles no two pages.
    /// Blocks of send queues are read run by run.
    pub(super) log_entry: u32,
}

/// Largest `log_page_size`, minus 12: most contexts have five bits for it.
const MAX_LOG_PAGE: u32 = 31;

impl RingPlace {
    /// Entries stand at multiples of their size in a page, or they would end in memory behind it,
    /// which is not the ring's.
    fn check_start(&self, field: &'static str, start: u64) -> Answer<()> {
        ensure(start.is_multiple_of(1 << self.log_entry), || {
            Refused::param(field, start, "the ring does not start at a multiple of its entries")
        })
    }
}

/// Decodes a page list. Whether the pages are mapped shows when they are used, as on a real bus.
pub(super) fn ring(place: &RingPlace, tail: &[u8]) -> Answer<QueueMemory> {
    ensure(place.log_page_size <= MAX_LOG_PAGE, || {
        Refused::param("log_page_size", place.log_page_size, "above 31: no page is that large")
    })?;
    let log_page_size = place.log_page_size + 12;
    let page_bytes = 1_u64 << log_page_size;
    let offset = u64::from(place.page_offset) * (page_bytes / 64);
    place.check_start("page_offset", offset)?;
    let needed = (offset + place.len_bytes).div_ceil(page_bytes);
    let given = (tail.len() / 8) as u64;
    ensure(needed <= given, || {
        let status = CommandStatus::BAD_INPUT_LEN;
        Refused::new(status, "pas", given, "fewer pages than the ring needs")
    })?;
    let pages: Vec<u64> =
        tail.chunks_exact(8).take(usize::try_from(needed).unwrap_or(0)).map(be64).collect();
    for page in &pages {
        ensure(page.is_multiple_of(page_bytes), || {
            Refused::param("pas", *page, "not aligned to the page size")
        })?;
        ensure(page.checked_add(page_bytes).is_some(), || {
            Refused::param("pas", *page, "the page wraps around the address space")
        })?;
    }
    Ok(QueueMemory::new(pages, log_page_size, offset, place.len_bytes))
}

/// A doorbell record is eight bytes, aligned to eight. Source: reference 6.6.
pub(super) fn check_record(dbr_addr: u64) -> Answer<()> {
    ensure(dbr_addr != 0 && dbr_addr.is_multiple_of(8), || {
        Refused::param("dbr_addr", dbr_addr, "null, or not aligned to 8 bytes")
    })
}

/// What a queue says about its memory: pages behind the command, or memory of a user context.
pub(super) struct RingSource {
    pub(super) place: RingPlace,
    /// `dbr_addr`: an I/O address, or an offset in the user memory.
    pub(super) record: u64,
    /// User memory of the ring and the offset there.
    pub(super) ring_umem: Option<(u32, u64)>,
    /// User memory of the doorbell record.
    pub(super) record_umem: Option<u32>,
    /// The device writes the ring.
    pub(super) is_written: bool,
}

impl RingSource {
    /// The ring and the I/O address of its doorbell record.
    pub(super) fn take(&self, objects: &Objects, tail: &[u8]) -> Answer<(QueueMemory, u64)> {
        let (record, record_pin) = self.record(objects)?;
        let Some((id, offset)) = self.ring_umem else {
            return Ok((ring(&self.place, tail)?.keeping(None, record_pin), record));
        };
        let umem = umem::find(objects, "wq_umem_id", id)?;
        ensure(umem.is_writable || !self.is_written, || {
            Refused::param("wq_umem_id", id, "the device may not write all of this memory")
        })?;
        let len = self.place.len_bytes;
        let end = offset.checked_add(len);
        ensure(end.is_some_and(|end| end <= umem.len_bytes()), || {
            Refused::param("wq_umem_offset", offset, "the queue ends behind its user memory")
        })?;
        let start = umem.page_offset + offset;
        ensure(start.is_multiple_of(64), || {
            Refused::param("wq_umem_offset", offset, "the queue does not start at 64 bytes")
        })?;
        self.place.check_start("wq_umem_offset", start)?;
        let page = |at: u64| usize::try_from(at >> umem.log_page_size).unwrap_or(usize::MAX);
        let pages = umem.pages[page(start)..page(start + len - 1) + 1].to_vec();
        let inside = start & ((1 << umem.log_page_size) - 1);
        let memory = QueueMemory::new(pages, umem.log_page_size, inside, len);
        Ok((memory.keeping(Some(umem.pin.clone()), record_pin), record))
    }

    /// The I/O address of the doorbell record, and what keeps it.
    fn record(&self, objects: &Objects) -> Answer<(u64, Option<Pin>)> {
        let Some(id) = self.record_umem else {
            check_record(self.record)?;
            return Ok((self.record, None));
        };
        let umem = umem::find(objects, "dbr_umem_id", id)?;
        let is_inside = self.record.is_multiple_of(8) && self.record < umem.len_bytes();
        let address = umem.locate(self.record).filter(|at| is_inside && at.is_multiple_of(8));
        let address = address.ok_or_else(|| {
            Refused::param("dbr_addr", self.record, "not aligned to 8, or behind its user memory")
        })?;
        Ok((address, Some(umem.pin.clone())))
    }
}
