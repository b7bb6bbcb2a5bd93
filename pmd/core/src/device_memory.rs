//! [`DeviceMemory`]: memory that lies in the device, for data that it shall not fetch over the bus.
//!
//! The device shows it in a part of its BAR. Which pages of that part a piece has, the driver
//! chooses; the memory behind them, the device does. Pieces never share a page, so that they can be
//! mapped apart.
//!
//! Source: reference 4.12.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use ferrocx_bus::BarMemory;
use ferrocx_mempool::AccessError;
use ferrocx_prm::Layout;
use ferrocx_prm::caps::{DeviceMemCap, cap_type};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::memic::{AllocMemic, DeallocMemic};
use ferrocx_prm::init_seg::uar::PAGE_BYTES;
use ferrocx_prm::syndrome::CommandStatus;

use crate::cmd::CommandError;
use crate::device::{Device, lock};
use crate::error::{ConfigError, DeviceError};

/// Log2 of the bytes in which alignments are counted, and of which lengths are multiples at least.
/// Source: reference 4.12.
const LOG_UNIT: u32 = 6;

/// How much memory a device lends, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceMemoryLimits {
    /// Bytes of the largest piece.
    pub max_bytes: u64,
    /// Lengths of pieces are multiples of this; others are rounded up.
    pub unit_bytes: u64,
    /// Log2 of the largest alignment, in bytes.
    pub max_log_align: u32,
}

/// What a device shows in its BAR, and which pages of that are taken.
#[derive(Debug)]
struct Shown {
    limits: DeviceMemoryLimits,
    /// Part of the BAR, whole pages.
    range: Range<u64>,
    /// For each page, whether it is taken.
    taken: Mutex<Vec<bool>>,
}

impl Shown {
    /// Reads what the device says, and believes it as far as the BAR goes.
    fn of(device: &Device) -> Result<Self, DeviceError> {
        let lacks = || ConfigError::Unsupported {
            what: "memory to lend",
            way_out: "use memory of the host",
        };
        if !device.hca_cap().device_memory() {
            return Err(lacks().into());
        }
        let page = device.capability_page(cap_type::DEVICE_MEMORY)?;
        let cap = DeviceMemCap::read_from(&page).filter(DeviceMemCap::memic).ok_or_else(lacks)?;
        let (start, len) = (cap.memic_bar_start_addr(), u64::from(cap.memic_bar_size()));
        let bar_len_bytes = device.inner().bar.len_bytes();
        let end = start.checked_add(len).filter(|end| *end <= bar_len_bytes);
        let whole = end.filter(|_| start.is_multiple_of(PAGE_BYTES));
        let end =
            whole.ok_or(DeviceError::MemoryOutside { start, len_bytes: len, bar_len_bytes })?;
        let pages = (len / PAGE_BYTES) as usize;
        let limits = DeviceMemoryLimits {
            max_bytes: u64::from(cap.max_memic_size()).min(len),
            unit_bytes: 1 << cap.log_min_memic_alloc_size().max(LOG_UNIT),
            max_log_align: LOG_UNIT + cap.log_max_memic_addr_alignment().min(32),
        };
        Ok(Self { limits, range: start..end, taken: Mutex::new(vec![false; pages]) })
    }

    /// Takes the first free pages, adjacent, from one on.
    fn take(&self, from: usize, count: usize) -> Option<usize> {
        let mut taken = lock(&self.taken);
        let last = taken.len().checked_sub(count)?;
        let first = (from..=last).find(|at| !taken[*at..at + count].contains(&true))?;
        taken[first..first + count].fill(true);
        Some(first)
    }

    fn give_back(&self, pages: &Range<usize>) {
        lock(&self.taken)[pages.clone()].fill(false);
    }
}

/// A piece of memory that lies in the device, given back when it is dropped.
///
/// The processor reaches it word by word over the bus, see [`BarMemory`]; queues of the device
/// reach it by keys. What it holds at first is not defined. If it cannot be given back, it stays
/// taken, with an error in the log.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    shown: Arc<Shown>,
    pages: Range<usize>,
    /// Where in the BAR it begins.
    start: u64,
    /// Bytes asked of the device, a multiple of its unit.
    taken_bytes: u64,
    /// The bytes that were asked for, rounded up to whole words.
    memory: BarMemory,
    alive: bool,
}

impl Device {
    /// How much memory the device lends.
    ///
    /// # Errors
    /// [`ConfigError::Unsupported`] if none, [`DeviceError::MemoryOutside`] if the BAR does not
    /// have what the device says.
    pub fn memory_limits(&self) -> Result<DeviceMemoryLimits, DeviceError> {
        // Not `shared`: who makes a shared value of its own asks for this meanwhile.
        Ok(Shown::of(self)?.limits)
    }

    /// Takes a piece of the device's memory, at a multiple of 2^`log_align` bytes.
    ///
    /// # Errors
    /// Those of [`Device::memory_limits`]; [`ConfigError::Range`] for a length of 0 or above
    /// [`DeviceMemoryLimits::max_bytes`], or an alignment above
    /// [`DeviceMemoryLimits::max_log_align`]; [`DeviceError::NoDeviceMemory`] when it is lent out.
    pub fn alloc_memory(
        &self,
        len_bytes: u64,
        log_align: u32,
    ) -> Result<DeviceMemory, DeviceError> {
        let shown = self.shared(|| Shown::of(self))?;
        let DeviceMemoryLimits { max_bytes, unit_bytes, max_log_align } = shown.limits;
        let hint = "; take less, or use memory of the host";
        ConfigError::range("bytes of device memory", len_bytes, 1, max_bytes, hint)?;
        let (align, most) = (u64::from(log_align), u64::from(max_log_align));
        ConfigError::range("log2 of the alignment of device memory", align, 0, most, "")?;
        let taken_bytes = len_bytes.next_multiple_of(unit_bytes);
        let count = taken_bytes.div_ceil(PAGE_BYTES) as usize;
        let mut from = 0;
        while let Some(first) = shown.take(from, count) {
            let pages = first..first + count;
            match self.ask_for_memory(&shown, &pages, taken_bytes, log_align) {
                Ok(start) => return self.map_memory(shown, pages, (start, taken_bytes, len_bytes)),
                Err(error) => {
                    shown.give_back(&pages);
                    match error.status() {
                        // These pages cannot show it; the next ones may.
                        Some(CommandStatus::NO_RESOURCES) => from = first + 1,
                        Some(CommandStatus::EXCEED_LIM) => break,
                        _ => return Err(error.into()),
                    }
                }
            }
        }
        Err(DeviceError::NoDeviceMemory { len_bytes, max_bytes })
    }

    fn ask_for_memory(
        &self,
        shown: &Shown,
        pages: &Range<usize>,
        taken_bytes: u64,
        log_align: u32,
    ) -> Result<u64, CommandError> {
        let input = AllocMemic::input()
            .with_log_memic_addr_alignment(log_align.saturating_sub(LOG_UNIT))
            .with_range_start_addr(shown.range.start + pages.start as u64 * PAGE_BYTES)
            .with_range_size((pages.len() as u64 * PAGE_BYTES) as u32)
            .with_memic_size(taken_bytes as u32);
        Ok(self.inner().control().call(&input)?.memic_start_addr())
    }

    fn map_memory(
        &self,
        shown: Arc<Shown>,
        pages: Range<usize>,
        (start, taken_bytes, len_bytes): (u64, u64, u64),
    ) -> Result<DeviceMemory, DeviceError> {
        let first = shown.range.start + pages.start as u64 * PAGE_BYTES;
        let end = first + pages.len() as u64 * PAGE_BYTES;
        let is_inside =
            first <= start && start.checked_add(taken_bytes).is_some_and(|at| at <= end);
        let words = len_bytes.next_multiple_of(4);
        let mapped = match is_inside {
            true => self.inner().bar.memory(start, words).map_err(DeviceError::from),
            false => {
                let bar_len_bytes = self.inner().bar.len_bytes();
                Err(DeviceError::MemoryOutside { start, len_bytes: taken_bytes, bar_len_bytes })
            }
        };
        match mapped {
            Ok(memory) => {
                let device = self.clone();
                Ok(DeviceMemory { device, shown, pages, start, taken_bytes, memory, alive: true })
            }
            Err(error) => {
                if give_back(self, start, taken_bytes).is_ok() {
                    shown.give_back(&pages);
                }
                Err(error)
            }
        }
    }
}

/// Gives memory back to the device.
fn give_back(device: &Device, start: u64, taken_bytes: u64) -> Result<(), CommandError> {
    let input =
        DeallocMemic::input().with_memic_start_addr(start).with_memic_size(taken_bytes as u32);
    device.inner().control().call(&input).map(|_| ())
}

impl DeviceMemory {
    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Whether it was not given back or leaked, and no reset of the device took it away.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive && !self.device.objects_are_gone()
    }

    /// Where in the BAR it begins: what a key over it names.
    #[must_use]
    pub fn bar_offset(&self) -> u64 {
        self.start
    }

    /// The device that it lies in.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies bytes in: see [`BarMemory::copy_in`].
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`], also where it is not alive any more;
    /// [`AccessError::Misaligned`].
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        if !self.is_alive() {
            return Err(AccessError::OutOfRange);
        }
        self.memory.copy_in(offset, bytes)
    }

    /// Copies bytes out: see [`BarMemory::copy_out`].
    ///
    /// # Errors
    /// Those of [`DeviceMemory::copy_in`].
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) -> Result<(), AccessError> {
        if !self.is_alive() {
            return Err(AccessError::OutOfRange);
        }
        self.memory.copy_out(offset, bytes)
    }

    /// Leaves it to the device, until that is closed: a key over it may still exist.
    pub fn leak(&mut self) {
        self.alive = false;
    }

    /// Gives it back now; on an error it can be tried again: a key over it may still exist.
    pub fn destroy(&mut self) -> Result<(), CommandError> {
        if self.is_alive() {
            give_back(&self.device, self.start, self.taken_bytes)?;
        }
        if std::mem::take(&mut self.alive) {
            self.shown.give_back(&self.pages);
        }
        Ok(())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Err(error) = self.destroy() {
            let start = format_args!("{:#x}", self.start);
            tracing::error!(start, %error, "device memory not given back");
        }
    }
}
