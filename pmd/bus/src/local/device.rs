//! The device's half: what a software model, or a vfio-user server in front of one, holds.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ferrocx_mempool::Region;

use super::bar::BarWrite;
use super::counts::DmaCounts;
use super::shared::Shared;
use super::view::DmaView;
use crate::{Bar, BusError, DmaAccess, Interrupts, UAR_PAGE_BYTES};

/// A device's view of the world: register accesses, memory by I/O address, its interrupts.
///
/// Clones share one device. All methods are safe and take `&self`; none blocks except
/// [`DeviceSide::memory`], which waits while the driver maps or unmaps.
#[derive(Debug, Clone)]
pub struct DeviceSide {
    shared: Arc<Shared>,
}

/// Accesses that this half could observe. Doorbells leave no trace and are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BusCounts {
    /// Register reads of the driver.
    pub bar_reads: u64,
    /// Register writes of the driver, without doorbells.
    pub bar_writes: u64,
    /// Interrupts raised.
    pub interrupts: u64,
    /// Interrupts raised on a vector that was not enabled.
    pub interrupts_lost: u64,
    /// Accesses to memory by I/O address.
    pub dma: DmaCounts,
}

impl DeviceSide {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Length of the BAR in bytes.
    #[must_use]
    pub fn bar_len_bytes(&self) -> u64 {
        self.shared.bar.len_bytes()
    }

    /// Publishes a register: the driver reads `value` there from now on.
    ///
    /// # Panics
    ///
    /// When the offset is outside the BAR or not a multiple of 4.
    pub fn set_be32(&self, offset: u64, value: u32) {
        self.shared.bar.set_be32(offset, value);
    }

    /// Reads back what was last published.
    ///
    /// # Panics
    ///
    /// As [`DeviceSide::set_be32`].
    #[must_use]
    pub fn get_be32(&self, offset: u64) -> u32 {
        self.shared.bar.get_be32(offset)
    }

    /// Clears all registers and UAR pages, as a reset does.
    pub fn clear_bar(&self) {
        self.shared.bar.clear();
    }

    /// Makes whole pages of the BAR memory of the device, once and for all: the driver reaches it
    /// through [`Bar::memory`] or trapped accesses, the device by I/O addresses of its own, the
    /// first of which this gives. Nothing else is mapped there, and no page is open yet.
    ///
    /// # Errors
    ///
    /// [`BusError::NotBarMemory`] for a range that is not whole pages above the init segment, or
    /// when other pages are memory already; [`BusError::MappingOverlap`].
    ///
    /// # Panics
    ///
    /// As [`DeviceSide::memory`].
    pub fn make_memory(&self, range: Range<u64>) -> Result<u64, BusError> {
        let base = self.shared.bar.set_memory(range.clone())?;
        let len_bytes = range.end - range.start;
        self.shared.space.map_own(range.start, base, len_bytes, self.shared.bar.backing())
    }

    /// Opens pages of the memory, which then read as zero, or closes them: trapped reads of a
    /// closed page give ones, and writes are lost. [`DeviceSide::clear_bar`] closes all.
    ///
    /// # Panics
    ///
    /// When they are no whole pages of [`DeviceSide::make_memory`]'s.
    pub fn open_memory(&self, pages: Range<u64>, is_open: bool) {
        self.shared.bar.open_memory(pages, is_open);
    }

    /// Takes the oldest register write that was not taken yet.
    ///
    /// Writes never merge: two writes to the command doorbell give two events.
    #[inline]
    #[must_use]
    pub fn poll_write(&self) -> Option<BarWrite> {
        self.shared.bar.pop()
    }

    /// Takes register writes until none is left, in order.
    pub fn poll_writes(&self) -> impl Iterator<Item = BarWrite> + '_ {
        std::iter::from_fn(|| self.poll_write())
    }

    /// Register writes that were not taken yet: whoever queues them for a peer that is not trusted
    /// waits while there are many.
    #[must_use]
    pub fn waiting_writes(&self) -> usize {
        self.shared.bar.waiting_writes()
    }

    /// The eight bytes that a doorbell store left at `offset` of UAR page `page`.
    ///
    /// The value is what [`crate::Doorbell::ring`] took. Everything the driver stored before
    /// ringing is visible after.
    ///
    /// # Panics
    ///
    /// When the register is outside the BAR or not 8-byte aligned.
    #[inline]
    #[must_use]
    pub fn uar_load(&self, page: u32, offset: u64) -> u64 {
        let offset = u64::from(page) * UAR_PAGE_BYTES + offset;
        self.shared.bar.word64(offset).load(Ordering::Acquire)
    }

    /// Takes the doorbell value at `offset` of UAR page `page` and leaves 0; `None` for 0.
    ///
    /// Tells "rung since the last look" even when the same value was stored twice. Two queues that
    /// share a register still overwrite each other: look at the records of all of them.
    ///
    /// # Panics
    ///
    /// As [`DeviceSide::uar_load`].
    #[inline]
    #[must_use]
    pub fn uar_take(&self, page: u32, offset: u64) -> Option<u64> {
        let register = self.shared.bar.word64(u64::from(page) * UAR_PAGE_BYTES + offset);
        // A load first: an exchange would take the cache line from the driver at every look.
        if register.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(register.swap(0, Ordering::AcqRel)).filter(|&raw| raw != 0)
    }

    /// Serves a trapped register read; bytes past the BAR's end read as ones.
    pub fn bar_read(&self, offset: u64, dst: &mut [u8]) {
        self.shared.bar.read_bytes(offset, dst);
    }

    /// Queues a trapped register write, as if the driver had made it; one to memory of the device
    /// is carried out at once.
    ///
    /// # Errors
    ///
    /// [`BusError::BarRange`] when it is not 1, 2, 4 or 8 aligned bytes inside the BAR.
    pub fn bar_write(&self, offset: u64, src: &[u8]) -> Result<(), BusError> {
        let bar = &self.shared.bar;
        let refused = || BusError::BarRange {
            offset,
            len_bytes: src.len() as u64,
            bar_len_bytes: bar.len_bytes(),
        };
        let len_bytes = match src.len() {
            1 => 1,
            2 => 2,
            4 => 4,
            8 => 8,
            _ => return Err(refused()),
        };
        bar.check(offset, u64::from(len_bytes))?;
        if bar.write_memory(offset, src) {
            return Ok(());
        }
        let value = src.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
        bar.push(BarWrite { offset, len_bytes, value });
        Ok(())
    }

    /// Makes the device vanish or come back: while gone, registers read as ones, writes are lost.
    /// Doorbells and memory that the driver has mapped are words as before.
    pub fn set_gone(&self, gone: bool) {
        self.shared.bar.set_gone(gone);
    }

    /// What [`DeviceSide::set_gone`] was told last.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.bar.is_gone()
    }

    /// Opens memory for accesses by I/O address.
    ///
    /// Hold the view for one bounded step and drop it: unmapping waits for it, and that wait is
    /// what makes unmap an ending.
    ///
    /// # Panics
    ///
    /// In debug builds, when this thread already holds a view of the same device; mapping
    /// and unmapping panic then as well. In release builds these deadlock.
    #[must_use]
    #[track_caller]
    pub fn memory(&self) -> DmaView<'_> {
        DmaView::new(&self.shared.space)
    }

    /// Maps a region at an I/O address that the caller chose, as a guest's IOMMU does.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] when address or length is not a multiple of 4096 or the range ends
    /// past the address space; [`BusError::MappingOverlap`].
    pub fn dma_map(
        &self,
        iova: u64,
        region: Arc<Region>,
        access: DmaAccess,
    ) -> Result<(), BusError> {
        self.shared.space.map_region(iova, region, access)
    }

    /// Maps part of a file (another process' memory) at an I/O address that the caller chose.
    ///
    /// The file must not shrink while it is mapped: an access past its end kills the process with
    /// SIGBUS. Seal a memfd against shrinking where the peer is not trusted.
    ///
    /// # Errors
    ///
    /// As [`DeviceSide::dma_map`]; [`BusError::Os`] when the file cannot be mapped.
    pub fn dma_map_fd(
        &self,
        iova: u64,
        fd: impl AsFd,
        file_offset: u64,
        len_bytes: u64,
        access: DmaAccess,
    ) -> Result<(), BusError> {
        self.shared.space.map_fd(iova, fd.as_fd(), file_offset, len_bytes, access)
    }

    /// Counts bytes of the mapping that starts at `iova` apart as well, until it is removed: to
    /// tell a peer's memory from the host's.
    ///
    /// # Errors
    ///
    /// [`BusError::NotMapped`].
    pub fn dma_watch(&self, iova: u64) -> Result<(), BusError> {
        self.shared.space.watch(iova)
    }

    /// Mappings that the device reaches, without its own memory: none when its driver has let go of
    /// everything.
    #[must_use]
    pub fn dma_mappings(&self) -> usize {
        self.shared.space.mappings()
    }

    /// Refuses every access to the `nth` mapping by address, counted round and round, as an IOMMU
    /// that has lost an entry; `None` refuses none any more. A mapping that is made later is not
    /// refused.
    pub fn dma_refuse(&self, nth: Option<usize>) {
        self.shared.space.refuse(nth);
    }

    /// Removes a mapping. When this returns, no access through it is in flight or will start.
    ///
    /// # Errors
    ///
    /// [`BusError::NotMapped`] unless exactly this range was mapped at once.
    pub fn dma_unmap(&self, iova: u64, len_bytes: u64) -> Result<(), BusError> {
        self.shared.space.unmap(iova, len_bytes)
    }

    /// Signals an interrupt vector; `false` when the driver has not enabled it. It then waits for
    /// [`DeviceSide::set_vector`], a driver that enables it in process or a reset.
    pub fn raise(&self, vector: u16) -> bool {
        self.shared.irq.raise(vector)
    }

    /// Replaces the eventfd of one vector with the caller's, as a vfio-user client asks for;
    /// `None` disables the vector.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] for a vector the device does not have.
    pub fn set_vector(&self, vector: u16, fd: Option<OwnedFd>) -> Result<(), BusError> {
        self.shared.irq.set(vector, fd)
    }

    /// Lets the thread that runs the device go where a client holds it in an interrupt, by filling
    /// the eventfd that it handed over. Interrupts that the client has not read yet may be lost:
    /// for those who wait for that thread in vain.
    pub fn free_interrupts(&self) {
        self.shared.irq.free_writers();
    }

    /// Interrupt vectors of the device.
    #[must_use]
    pub fn vectors(&self) -> u16 {
        self.shared.irq.vectors()
    }

    /// Whether the driver asked for a function-level reset that was not yet acknowledged.
    ///
    /// Writes that were queued before the request are gone; those in the queue came after it.
    /// Look here before [`DeviceSide::poll_write`].
    #[inline]
    #[must_use]
    pub fn reset_requested(&self) -> bool {
        self.shared.reset_pending.load(Ordering::Acquire)
    }

    /// Acknowledges a reset: the device is as after power-on, and publishes its registers again.
    pub fn reset_done(&self) {
        self.shared.irq.clear_pending();
        self.shared.reset_pending.store(false, Ordering::Release);
    }

    /// Asks for a reset from this side, as a vfio-user client's message does.
    pub fn request_reset(&self) {
        self.shared.bar.discard_writes();
        self.shared.reset_pending.store(true, Ordering::Release);
    }

    /// Counts so far.
    #[must_use]
    pub fn counts(&self) -> BusCounts {
        let (bar_reads, bar_writes) = self.shared.bar.counts();
        let (interrupts, interrupts_lost) = self.shared.irq.counts();
        let dma = self.shared.space.counts();
        BusCounts { bar_reads, bar_writes, interrupts, interrupts_lost, dma }
    }
}
