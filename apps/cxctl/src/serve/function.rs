//! One PCI function behind a vfio-user socket: configuration space, BARs, interrupts, DMA maps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ferrocx_bus::DmaAccess;
use ferrocx_bus::local::DeviceSide;
use rustix::fs::{OFlags, SealFlags};
use vfio_bindings::bindings::vfio as abi;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

use super::engine::Wake;
use super::lines::Lines;
use super::pci::{CONFIG_BYTES, ConfigEffect, ConfigSpace, MSIX_VECTORS, PciFunction};

/// Whether clients may hand over memory that they could cut off again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trust {
    /// Memory must be sealed against shrinking: an access past the end of a file ends the process.
    Sealed,
    /// Any file that can be mapped.
    Any,
}

/// A device acknowledges a reset in its next turn; one that takes this long may be held by its
/// client, in an interrupt.
const HELD_AFTER: Duration = Duration::from_millis(100);

/// Register writes that may wait for the device; a client that is faster than it waits, too.
pub(super) const MAX_WAITING_WRITES: usize = 4096;

/// A line of the log that a client or its guest causes: so many a second.
macro_rules! say {
    ($function:expr, $level:ident, $($what:tt)*) => {
        if $function.may_say() {
            tracing::$level!(port = $function.name, $($what)*);
        }
    };
}

/// What a vfio-user client talks to: it turns messages into what a bus brings to the device.
///
/// A message that makes no sense is logged and answered as a PCI bus would (reads of ones, dropped
/// writes). What no bus could bring is an error to the client: an access longer than the
/// configuration space, memory that it could take away, an interrupt that could block.
pub(super) struct Function {
    name: String,
    trust: Trust,
    /// Length of the files to which accesses are counted apart.
    watch: Option<u64>,
    device: DeviceSide,
    config: ConfigSpace,
    maps: BTreeMap<u64, u64>,
    wake: Wake,
    /// A client can provoke any number of them.
    lines: Lines,
}

impl Function {
    /// A function that no client uses yet.
    #[must_use]
    pub(super) fn new(
        name: String,
        trust: Trust,
        watch: Option<u64>,
        device: DeviceSide,
        function: PciFunction,
        wake: Wake,
    ) -> Self {
        let (config, lines) = (ConfigSpace::new(function), Lines::new());
        Self { name, trust, watch, device, config, maps: BTreeMap::new(), wake, lines }
    }

    /// Whether one more line of the log may be said that a client or its guest causes.
    pub(super) fn may_say(&self) -> bool {
        self.lines.may_say(&self.name)
    }

    /// Takes back everything the last client left: interrupts, mappings and device state.
    pub(super) fn forget_client(&mut self) {
        self.disable_vectors(0, u32::from(MSIX_VECTORS));
        self.unmap_all();
        self.start_reset();
    }

    /// Resets the device and waits until it is as after power-on.
    fn start_reset(&mut self) {
        self.config.reset();
        self.device.request_reset();
        self.wake.wake();
        // The engine acknowledges in its next turn. A driver may look at the registers right
        // after the reset message is answered, so the answer waits.
        self.wait_while(|device| device.reset_requested());
    }

    /// Waits for the thread that runs the device, which no client keeps from its work.
    fn wait_while(&self, is_unfinished: impl Fn(&DeviceSide) -> bool) {
        let start = Instant::now();
        while is_unfinished(&self.device) && self.wake.is_running() {
            self.wake.wake();
            if start.elapsed() > HELD_AFTER {
                self.device.free_interrupts();
            }
            std::thread::yield_now();
        }
    }

    fn unmap_all(&mut self) {
        for (iova, len_bytes) in std::mem::take(&mut self.maps) {
            if let Err(error) = self.device.dma_unmap(iova, len_bytes) {
                say!(self, error, iova, len_bytes, %error, "unmapping failed");
            }
        }
    }

    fn enable_vectors(&self, start: u32, fds: Vec<File>) -> io::Result<()> {
        // A full counter would block the thread that runs the device. That the client may take the
        // flag away later is the bus's business: it waits for nobody who holds an eventfd.
        for fd in &fds {
            if !is_eventfd(fd)? || !rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
                return self.refuse("an interrupt that is no eventfd, or one that blocks");
            }
        }
        for (vector, fd) in (u64::from(start)..).zip(fds) {
            self.set_vector(u32::try_from(vector).unwrap_or(u32::MAX), Some(OwnedFd::from(fd)));
        }
        Ok(())
    }

    /// Waits until the device has taken enough register writes to leave room for more.
    fn wait_for_room(&self) {
        self.wait_while(|device| device.waiting_writes() >= MAX_WAITING_WRITES);
    }

    fn refuse<T>(&self, what: &'static str) -> io::Result<T> {
        say!(self, warn, what, "refused from the client");
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    fn disable_vectors(&self, start: u32, count: u32) {
        let end = start.saturating_add(count).min(u32::from(MSIX_VECTORS));
        for vector in start..end {
            self.set_vector(vector, None);
        }
    }

    fn set_vector(&self, vector: u32, fd: Option<OwnedFd>) {
        let known = u16::try_from(vector).ok().filter(|vector| *vector < MSIX_VECTORS);
        let Some(vector) = known else {
            say!(self, warn, vector, "interrupt vector does not exist");
            return;
        };
        if let Err(error) = self.device.set_vector(vector, fd) {
            say!(self, warn, vector, %error, "interrupt vector refused");
        }
    }
}

impl ServerBackend for Function {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        // Its length is the client's word, and its memory is not touched before this.
        if data.len() > CONFIG_BYTES {
            return self.refuse("a read longer than the configuration space");
        }
        match region {
            // What a bus gives for a device that does not answer.
            _ if self.device.is_gone() => data.fill(0xff),
            abi::VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(offset, data),
            abi::VFIO_PCI_BAR0_REGION_INDEX => self.device.bar_read(offset, data),
            // The client keeps the MSI-X table itself and asks for pending bits only while a
            // vector is masked; an eventfd loses nothing, so none is ever pending here.
            abi::VFIO_PCI_BAR2_REGION_INDEX => data.fill(0),
            _ => data.fill(0xff),
        }
        tracing::trace!(port = self.name, region, offset, ?data, "read");
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> io::Result<()> {
        if data.len() > CONFIG_BYTES {
            return self.refuse("a write longer than the configuration space");
        }
        tracing::trace!(port = self.name, region, offset, ?data, "write");
        if self.device.is_gone() {
            return Ok(());
        }
        match region {
            abi::VFIO_PCI_CONFIG_REGION_INDEX => match self.config.write(offset, data) {
                ConfigEffect::None => {}
                ConfigEffect::FunctionLevelReset => {
                    say!(self, info, "function-level reset");
                    self.start_reset();
                }
            },
            abi::VFIO_PCI_BAR0_REGION_INDEX => {
                self.wait_for_room();
                if let Err(error) = self.device.bar_write(offset, data) {
                    say!(self, warn, offset, %error, "register write dropped");
                }
                self.wake.wake();
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> io::Result<()> {
        // Option ROMs and the BARs of the client's devices come without a file: not memory.
        let Some(fd) = fd else { return Ok(()) };
        let access = match (flags.contains(DmaMapFlags::READ), flags.contains(DmaMapFlags::WRITE)) {
            (true, true) => DmaAccess::ReadWrite,
            (true, false) => DmaAccess::Read,
            (false, true) => DmaAccess::Write,
            (false, false) => return Ok(()),
        };
        tracing::debug!(port = self.name, address, size, ?access, "map");
        if self.trust == Trust::Sealed && !is_lasting(&fd, offset, size) {
            return self.refuse("memory that is not sealed against shrinking, or too short");
        }
        let is_watched = self.watch.is_some() && self.watch == fd.metadata().ok().map(|m| m.len());
        self.device.dma_map_fd(address, fd, offset, size, access).map_err(|error| {
            say!(self, error, address, size, %error, "mapping refused");
            io::Error::other(error)
        })?;
        if is_watched {
            self.device.dma_watch(address).map_err(io::Error::other)?;
        }
        self.maps.insert(address, size);
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(port = self.name, address, size, ?flags, "unmap");
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.unmap_all();
            return Ok(());
        }
        // A range ends every mapping in it: hypervisors end an address space by one. A mapping that
        // it cuts ends as a whole: the device reaches nothing that the client takes back.
        let end = address.saturating_add(size);
        let mut ended = Ok(());
        while size > 0
            && let Some((&start, &len_bytes)) = self.maps.range(..end).next_back()
            && start + len_bytes > address
        {
            if start < address || start + len_bytes > end {
                say!(self, warn, start, len_bytes, "a mapping was cut in two");
            }
            self.maps.remove(&start);
            ended = ended.and(self.device.dma_unmap(start, len_bytes).map_err(io::Error::other));
        }
        ended
    }

    fn reset(&mut self) -> io::Result<()> {
        say!(self, info, "reset by the client");
        self.start_reset();
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> io::Result<()> {
        tracing::debug!(port = self.name, index, flags, start, count, fds = fds.len(), "irqs");
        if index != abi::VFIO_PCI_MSIX_IRQ_INDEX || flags & abi::VFIO_IRQ_SET_ACTION_TRIGGER == 0 {
            return Ok(());
        }
        if count == 0 {
            // "No vectors" is how VFIO turns MSI-X off.
            self.disable_vectors(0, u32::from(MSIX_VECTORS));
        } else if flags & abi::VFIO_IRQ_SET_DATA_EVENTFD != 0 && !fds.is_empty() {
            self.enable_vectors(start, fds)?;
        } else if flags & abi::VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            self.disable_vectors(start, count);
        }
        Ok(())
    }
}

/// Whether the file is an eventfd, by the name that the kernel gives it.
fn is_eventfd(fd: impl AsFd) -> io::Result<bool> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd());
    let target = std::fs::read_link(link)?;
    Ok(target.as_os_str() == "anon_inode:[eventfd]")
}

/// Whether these bytes of a file exist and will: a memfd sealed against shrinking.
fn is_lasting(file: &File, offset: u64, size: u64) -> bool {
    let is_sealed =
        rustix::fs::fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    is_sealed && offset.checked_add(size).is_some_and(|end| end <= len)
}
