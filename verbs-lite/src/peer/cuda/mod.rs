//! [`CudaProvider`]: memory of NVIDIA GPUs.
//!
//! The driver library is loaded at run time, so this compiles and starts where there is none.
//!
//! | memory | where it is | what it needs |
//! |---|---|---|
//! | [`CudaProvider::alloc`], [`CudaProvider::adopt`] | on the GPU | a driver that exports it as a dma-buf, and lets that be mapped |
//! | [`CudaProvider::alloc_mapped`] | in the host, where the GPU reaches it | nothing more |
//!
//! # Ordering
//!
//! Before the NIC reads what the GPU wrote, the GPU's work must be done
//! ([`CudaProvider::synchronize`], or an event of the stream). When kernels see what the NIC wrote
//! is for the GPU's own means to say. Registered memory is marked so that the driver's own copies
//! are done when their call returns.
//!
//! An H100 has judged [`CudaProvider::alloc_mapped`] (`tests/gpu.rs`). Its driver, 580.159.04 with
//! open kernel modules, exports its own memory and refuses to map the dma-buf: that half is judged
//! by a stand-in for the library alone.
#![expect(unsafe_code, reason = "memory that the driver library mapped")]

mod driver;
mod error;

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use ferrocx_mempool::Region;

use super::mapped::{BlockError, MappedProvider, Memory, PeerBlock, part_of};
use super::provider::{PeerMemory, PeerProvider, PeerRange};
use driver::{DMA_BUF_SUPPORTED, Driver};

pub use error::CudaError;

/// The library's name.
const LIBRARY: &str = "libcuda.so.1";
/// Bytes of a page of GPU memory. Source: NVIDIA, "GPUDirect RDMA", *Pinning GPU memory*.
const GPU_PAGE: u64 = 65_536;
/// Bytes of a page of the host.
const HOST_PAGE: usize = 4096;

/// A GPU as a provider of peer memory. A handle: clones are the same provider.
#[derive(Debug, Clone)]
pub struct CudaProvider {
    driver: Arc<Driver>,
    memory: MappedProvider,
    device: String,
    address: String,
}

/// Host memory that a GPU reaches.
#[derive(Debug)]
pub struct MappedBlock {
    /// The memory; its addresses are those of this process.
    pub block: PeerBlock,
    /// Where the GPU sees its first byte.
    pub device_address: u64,
}

/// Memory of the GPU, given back with its block.
struct DeviceMemory {
    driver: Arc<Driver>,
    address: u64,
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Err(error) = self.driver.free(self.address) {
            tracing::error!(%error, "GPU memory not freed");
        }
    }
}

/// Host memory of the driver, given back when the last mapping of it is gone.
struct HostMemory {
    driver: Arc<Driver>,
    base: NonNull<u8>,
}

// SAFETY: the memory belongs to no thread, and the driver may be called from any.
unsafe impl Send for HostMemory {}
// SAFETY: as above; nothing here reads or writes it.
unsafe impl Sync for HostMemory {}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Err(error) = self.driver.host_free(self.base) {
            tracing::error!(%error, "host memory of the GPU not freed");
        }
    }
}

impl CudaProvider {
    /// The GPU `ordinal`, as CUDA counts them.
    ///
    /// # Errors
    ///
    /// [`CudaError::Library`] without a driver, or what the driver says.
    pub fn open(ordinal: u32) -> Result<Self, CudaError> {
        // SAFETY: the system's library of this name is NVIDIA's driver, which a program that asks
        // for a GPU of NVIDIA's trusts like any library that it is linked to.
        unsafe { Self::open_library(LIBRARY, ordinal) }
    }

    /// Opens a provider over another library of the same functions.
    ///
    /// ```compile_fail,E0133
    /// use ferrocx_verbs_lite::peer::cuda::CudaProvider;
    /// let runs_any_file = CudaProvider::open_library("/tmp/any.so", 0);
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`CudaProvider::open`].
    ///
    /// # Safety
    ///
    /// What the library at `path` runs when it is loaded is sound, and what it has under the names
    /// of the driver's functions is of their types and does what NVIDIA says that they do.
    pub unsafe fn open_library(path: &str, ordinal: u32) -> Result<Self, CudaError> {
        // SAFETY: the caller's promise.
        let driver = Arc::new(unsafe { Driver::open(path, ordinal) }?);
        let (device, address) = driver.identity()?;
        let memory = MappedProvider::new(&format!("cuda:{ordinal}"));
        Ok(Self { driver, memory, device, address })
    }

    /// Name of the GPU.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Its PCI address.
    #[must_use]
    pub fn pci_address(&self) -> &str {
        &self.address
    }

    /// Waits until all work that was given to the GPU is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        self.driver.synchronize()
    }

    /// Offers new memory of the GPU, rounded up to its pages. Its addresses are the GPU's.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoDmaBuf`], [`CudaError::NotMappable`], [`CudaError::Call`].
    pub fn alloc(&self, len_bytes: usize) -> Result<PeerBlock, CudaError> {
        let len_bytes = (len_bytes.max(1) as u64).next_multiple_of(GPU_PAGE);
        // CUDA aligns to less than a page.
        let address = self.driver.alloc((len_bytes + GPU_PAGE) as usize)?;
        let owner = DeviceMemory { driver: Arc::clone(&self.driver), address };
        let addr = address.next_multiple_of(GPU_PAGE);
        self.export(PeerRange { addr, len_bytes }, owner)
    }

    /// Offers memory that was allocated elsewhere in this process, in whole pages of 64 KiB. Take
    /// it back before it is freed.
    ///
    /// # Errors
    ///
    /// [`CudaError::NotDevice`], and as [`CudaProvider::alloc`].
    pub fn adopt(&self, range: PeerRange) -> Result<PeerBlock, CudaError> {
        let found = self.driver.allocation(range.addr)?;
        let fits = |(start, len): (u64, u64)| {
            let room = len.checked_sub(range.len_bytes);
            range.len_bytes > 0 && room.is_some_and(|room| range.addr - start <= room)
        };
        if !found.is_some_and(fits) || !(range.addr | range.len_bytes).is_multiple_of(GPU_PAGE) {
            return Err(CudaError::NotDevice(range));
        }
        self.export(range, ())
    }

    fn export(
        &self,
        range: PeerRange,
        owner: impl Send + Sync + 'static,
    ) -> Result<PeerBlock, CudaError> {
        if self.driver.attribute(DMA_BUF_SUPPORTED)? == 0 {
            return Err(CudaError::NoDmaBuf(self.device.clone()));
        }
        self.driver.sync_memops(range.addr)?;
        let (addr, len) = (range.addr, range.len_bytes);
        let dma_buf = self.driver.dma_buf(addr, len as usize)?;
        let (what, page, start) = ("GPU memory", GPU_PAGE, 0);
        let region = Region::map_file(&dma_buf.as_fd(), 0, len as usize)
            .map_err(|source| CudaError::NotMappable(BlockError::Map { what, source }))?;
        let map = part_of(dma_buf, 0, owner);
        Ok(self.memory.add(Memory { what, addr, len, page, region, start, map }))
    }

    /// Offers new host memory that the GPU reaches, at the same time as this process and the NIC.
    ///
    /// # Errors
    ///
    /// [`CudaError::Call`]; [`CudaError::Block`] when this process cannot offer it.
    pub fn alloc_mapped(&self, len_bytes: usize) -> Result<MappedBlock, CudaError> {
        let len = len_bytes.max(1).next_multiple_of(HOST_PAGE);
        let (base, device_address) = self.driver.host_alloc(len)?;
        let owner = Arc::new(HostMemory { driver: Arc::clone(&self.driver), base });
        let map = move |offset: u64, len: usize| {
            // SAFETY: the block has checked that the part lies inside the allocation.
            let part = unsafe { owner.base.add(offset as usize) };
            let owner = Box::new(Arc::clone(&owner));
            // SAFETY: the driver keeps the memory mapped until `owner` frees it; this process
            // reaches it through regions alone, and the GPU is a device like the NIC.
            unsafe { Region::adopt(part, len, owner) }
        };
        let region =
            map(0, len).map_err(|source| BlockError::Map { what: "host memory", source })?;
        let (addr, page) = (base.as_ptr().addr() as u64, HOST_PAGE as u64);
        let (what, len, start) = ("mapped host memory", len as u64, 0);
        let map = Box::new(move |offset, len| Ok(map(offset, len)?));
        let memory = Memory { what, addr, len, page, region, start, map };
        Ok(MappedBlock { block: self.memory.add(memory), device_address })
    }
}

impl PeerProvider for CudaProvider {
    fn name(&self) -> &str {
        self.memory.name()
    }

    fn version(&self) -> &str {
        self.memory.version()
    }

    fn may_invalidate(&self) -> bool {
        true
    }

    fn acquire(&self, range: PeerRange) -> Option<Box<dyn PeerMemory>> {
        self.memory.acquire(range)
    }
}
