//! Where a ring lies in host memory, and memory that a user context lends for such rings.

use std::sync::Arc;

use super::budget::{Footprint, list_bytes};

/// Memory of a user context, of which it makes rings, doorbell records and memory keys.
#[derive(Debug)]
pub struct Umem {
    /// Pages of 2^`log_page_size` bytes.
    pub pages: Vec<u64>,
    /// Log2 of the bytes of a page.
    pub log_page_size: u32,
    /// First byte, in the first page.
    pub page_offset: u64,
    /// The device may write all of it.
    pub is_writable: bool,
    /// What is made of this memory has a copy each.
    pub pin: Pin,
}

/// Keeps memory of a user context or of the device from being taken away, while it lives.
pub type Pin = Arc<()>;

/// Whether there is another copy.
pub(super) fn is_pinned(pin: &Pin) -> bool {
    Arc::strong_count(pin) > 1
}

impl Umem {
    /// Bytes of the memory.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        let pages = (self.pages.len() as u64).saturating_mul(1 << self.log_page_size);
        pages - self.page_offset
    }

    /// I/O address of a byte, which is below [`Umem::len_bytes`].
    #[must_use]
    pub fn locate(&self, byte_offset: u64) -> Option<u64> {
        let at = byte_offset.checked_add(self.page_offset)?;
        let page = self.pages.get(usize::try_from(at >> self.log_page_size).ok()?)?;
        Some(page + (at & ((1 << self.log_page_size) - 1)))
    }

    /// Whether something is made of it.
    #[must_use]
    pub fn is_used(&self) -> bool {
        is_pinned(&self.pin)
    }
}

impl Footprint for Umem {
    fn heap_bytes(&self) -> u64 {
        list_bytes::<u64>(self.pages.capacity()) + 2 * size_of::<usize>() as u64
    }
}

/// Pages of a ring, as the driver listed them at CREATE.
#[derive(Debug, Clone, Default)]
pub struct QueueMemory {
    pages: Vec<u64>,
    log_page_size: u32,
    page_offset: u64,
    len_bytes: u64,
    /// First byte, when all pages are adjacent: then no page lookup is needed.
    flat: Option<u64>,
    /// Memory of a user context that the ring and its doorbell record lie in.
    pins: [Option<Pin>; 2],
}

impl QueueMemory {
    /// A ring of `len_bytes` that starts `page_offset` bytes into the first of `pages`.
    ///
    /// # Shape
    ///
    /// Each page is 2^`log_page_size` bytes and aligned to that; together they cover the ring.
    #[must_use]
    pub fn new(pages: Vec<u64>, log_page_size: u32, page_offset: u64, len_bytes: u64) -> Self {
        let step = 1_u64 << log_page_size;
        let adjacent = pages.windows(2).all(|pair| pair[0].checked_add(step) == Some(pair[1]));
        let flat = pages.first().filter(|_| adjacent).map(|page| page + page_offset);
        Self { pages, log_page_size, page_offset, len_bytes, flat, pins: [None, None] }
    }

    /// The ring, which keeps the memory that it lies in and that of its doorbell record.
    #[must_use]
    pub(crate) fn keeping(self, ring: Option<Pin>, record: Option<Pin>) -> Self {
        Self { pins: [ring, record], ..self }
    }

    /// The ring, with the memory of another's doorbell record.
    #[must_use]
    pub(crate) fn keeping_record(mut self, record: Option<Pin>) -> Self {
        self.pins[1] = record;
        self
    }

    /// The memory of the doorbell record.
    pub(crate) fn record_pin(&self) -> Option<Pin> {
        self.pins[1].clone()
    }

    /// I/O address of a byte of the ring. An entry of 64 bytes or less never straddles two pages
    /// when its offset is a multiple of its size.
    ///
    /// # Panics
    ///
    /// When `byte_offset` is past the pages.
    #[inline]
    #[must_use]
    pub fn locate(&self, byte_offset: u64) -> u64 {
        debug_assert!(byte_offset < self.len_bytes, "offset {byte_offset:#x} is outside the ring");
        if let Some(base) = self.flat {
            return base + byte_offset;
        }
        let at = byte_offset + self.page_offset;
        let page = usize::try_from(at >> self.log_page_size).unwrap_or(usize::MAX);
        self.pages[page] + (at & ((1 << self.log_page_size) - 1))
    }

    /// Bytes from `byte_offset` that lie together in memory, at most up to the end of the ring.
    #[inline]
    #[must_use]
    pub fn run_bytes(&self, byte_offset: u64) -> u64 {
        let to_end = self.len_bytes - byte_offset;
        if self.flat.is_some() {
            return to_end;
        }
        let at = byte_offset + self.page_offset;
        to_end.min((1 << self.log_page_size) - (at & ((1 << self.log_page_size) - 1)))
    }

    /// Bytes of memory that the list of pages takes.
    pub(crate) fn heap_bytes(&self) -> u64 {
        list_bytes::<u64>(self.pages.capacity())
    }

    /// Length of the ring in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// The pages, as listed by the driver.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_pages_are_found() {
        let ring = QueueMemory::new(vec![0x7000, 0x3000, 0x9000], 12, 0x40, 0x2000);
        assert_eq!(ring.locate(0), 0x7040);
        assert_eq!(ring.locate(0xfbf), 0x7fff);
        assert_eq!(ring.locate(0xfc0), 0x3000);
        assert_eq!(ring.locate(0x1fff), 0x903f);
        assert_eq!((ring.run_bytes(0), ring.run_bytes(0xfc0)), (0xfc0, 0x1000));
        assert_eq!(ring.run_bytes(0x1fc0), 0x40);
    }

    #[test]
    fn adjacent_pages_are_one_run() {
        let ring = QueueMemory::new(vec![0x4000, 0x5000], 12, 0, 0x2000);
        assert_eq!((ring.locate(0x1fff), ring.run_bytes(0x10)), (0x5fff, 0x1ff0));
        let one = QueueMemory::new(vec![0x4000], 12, 0x80, 0x100);
        assert_eq!((one.locate(0xff), one.run_bytes(0)), (0x417f, 0x100));
    }
}
