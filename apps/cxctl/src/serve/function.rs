//! One PCI function behind a vfio-user socket: configuration space, BARs, interrupts, DMA maps.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use ferrocx_bus::DmaAccess;
use ferrocx_bus::local::DeviceSide;
use vfio_bindings::bindings::vfio as abi;
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};

use super::engine::Wake;
use super::pci::{ConfigEffect, ConfigSpace, MSIX_VECTORS, PciFunction};

/// What a vfio-user client talks to: it turns messages into what a bus brings to the device.
///
/// A message that makes no sense is logged and answered as a PCI bus would (reads of ones, dropped
/// writes); only a DMA map that cannot be honoured is an error to the client, because a device
/// without its memory would fail later and elsewhere.
pub(super) struct Function {
    name: String,
    device: DeviceSide,
    config: ConfigSpace,
    maps: BTreeMap<u64, u64>,
    wake: Wake,
}

impl Function {
    /// A function that no client uses yet.
    #[must_use]
    pub(super) fn new(name: String, device: DeviceSide, function: PciFunction, wake: Wake) -> Self {
        Self { name, device, config: ConfigSpace::new(function), maps: BTreeMap::new(), wake }
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
        while self.device.reset_requested() && self.wake.is_running() {
            std::thread::yield_now();
        }
    }

    fn unmap_all(&mut self) {
        for (iova, len_bytes) in std::mem::take(&mut self.maps) {
            if let Err(error) = self.device.dma_unmap(iova, len_bytes) {
                tracing::error!(port = self.name, iova, len_bytes, %error, "unmapping failed");
            }
        }
    }

    fn enable_vectors(&self, start: u32, fds: Vec<File>) {
        for (vector, fd) in (start..).zip(fds) {
            self.set_vector(vector, Some(OwnedFd::from(fd)));
        }
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
            tracing::warn!(port = self.name, vector, "interrupt vector does not exist");
            return;
        };
        if let Err(error) = self.device.set_vector(vector, fd) {
            tracing::warn!(port = self.name, vector, %error, "interrupt vector refused");
        }
    }
}

impl ServerBackend for Function {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> io::Result<()> {
        match region {
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
        tracing::trace!(port = self.name, region, offset, ?data, "write");
        match region {
            abi::VFIO_PCI_CONFIG_REGION_INDEX => match self.config.write(offset, data) {
                ConfigEffect::None => {}
                ConfigEffect::FunctionLevelReset => {
                    tracing::info!(port = self.name, "function-level reset");
                    self.start_reset();
                }
            },
            abi::VFIO_PCI_BAR0_REGION_INDEX => {
                if let Err(error) = self.device.bar_write(offset, data) {
                    tracing::warn!(port = self.name, offset, %error, "register write dropped");
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
        self.device.dma_map_fd(address, fd, offset, size, access).map_err(|error| {
            tracing::error!(port = self.name, address, size, %error, "mapping refused");
            io::Error::other(error)
        })?;
        self.maps.insert(address, size);
        Ok(())
    }

    fn dma_unmap(&mut self, flags: DmaUnmapFlags, address: u64, size: u64) -> io::Result<()> {
        tracing::debug!(port = self.name, address, size, ?flags, "unmap");
        if flags.contains(DmaUnmapFlags::UNMAP_ALL) {
            self.unmap_all();
        } else if self.maps.get(&address) == Some(&size) {
            self.maps.remove(&address);
            self.device.dma_unmap(address, size).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn reset(&mut self) -> io::Result<()> {
        tracing::info!(port = self.name, "reset by the client");
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
            self.enable_vectors(start, fds);
        } else if flags & abi::VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            self.disable_vectors(start, count);
        }
        Ok(())
    }
}
