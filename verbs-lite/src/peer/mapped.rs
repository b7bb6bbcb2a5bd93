//! [`MappedProvider`]: memory that a file stands for: host memory, PCI BARs, dma-bufs.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use ferrocx_bus::BusError;
use ferrocx_bus::vfio::VfioBar;
use ferrocx_mempool::{Backing, PageSize, RawUse, Region, RegionConfig};
use thiserror::Error;

use super::provider::{
    PeerError, PeerFault, PeerMemory, PeerPiece, PeerProvider, PeerRange, PeerTicket,
};
use crate::error::lock;
use crate::types::Access;

/// Bytes of a page of memory that says nothing else.
const PAGE: u64 = 4096;
/// Where PCI devices are.
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// How the processor reaches a BAR. What the NIC does is the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BarCaching {
    /// Each access is one transaction, in order: `resourceN`.
    Uncached,
    /// Stores are gathered and may pass each other until a fence; loads are as slow as before:
    /// `resourceN_wc`, for BARs that are prefetchable.
    WriteCombining,
}

/// Why a provider has no such memory.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// A file of the system could not be read, opened or measured.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: String,
        /// Reason of the system.
        #[source]
        source: io::Error,
    },
    /// The device lacks the BAR, or it is made of I/O ports.
    #[error("{device} has no memory BAR {bar}: {line:?}; `lspci -v` lists those it has")]
    NoBar {
        /// The device's folder.
        device: String,
        /// Number of the BAR.
        bar: u8,
        /// Content of its `resource` file.
        line: String,
    },
    /// The device does not answer to its BARs.
    #[error(
        "{0} is switched off: loads would read all ones; load its driver, or write 1 to its \
         file `enable`"
    )]
    Disabled(String),
    /// The page size is none.
    #[error("pages of {0} bytes are not possible; use a power of two from 4096 to 1 GiB")]
    PageSize(u64),
    /// VFIO does not lend the BAR.
    #[error(transparent)]
    Vfio(#[from] BusError),
    /// The memory cannot be mapped.
    #[error("{what} cannot be mapped into this process: {source}")]
    Map {
        /// Kind of the memory.
        what: &'static str,
        /// Why it was refused.
        #[source]
        source: ferrocx_mempool::MempoolError,
    },
}

/// A provider of memory that files stand for. It is the document's example of a provider (host
/// memory), and serves PCI BARs and dma-bufs as well. A handle: clones are the same provider.
///
/// Addresses are those at which this process sees the memory ([`PeerBlock::addr`]), unless the
/// memory has others of its own. Each registration maps no more than the pages that it covers.
#[derive(Debug, Clone)]
pub struct MappedProvider {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    name: String,
    version: String,
    blocks: Mutex<Vec<Arc<Block>>>,
}

/// Maps a part of some memory, so many bytes from an offset on.
type MapPart = dyn Fn(u64, usize) -> Result<Arc<Region>, PeerFault> + Send + Sync;

/// Memory of a provider.
pub(super) struct Memory {
    /// Kind of the memory, for error messages.
    pub(super) what: &'static str,
    /// The address by which it is registered.
    pub(super) addr: u64,
    pub(super) len: u64,
    pub(super) page: u64,
    /// All of it, for this process; it starts at `start` there.
    pub(super) region: Arc<Region>,
    pub(super) start: usize,
    /// Maps whole pages of it.
    pub(super) map: Box<MapPart>,
}

#[derive(Debug)]
struct Block {
    memory: Memory,
    /// Keeps pools off memory that is not foreign.
    _raw: Option<RawUse>,
    lent: Mutex<Lent>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.what)
            .field("addr", &format_args!("{:#x}", self.addr))
            .field("len", &self.len)
            .field("page", &self.page)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Lent {
    is_gone: bool,
    next_id: u64,
    tickets: Vec<(u64, PeerTicket)>,
}

/// Memory that a [`MappedProvider`] offers, until this is dropped.
#[derive(Debug)]
pub struct PeerBlock {
    provider: MappedProvider,
    block: Arc<Block>,
}

impl MappedProvider {
    /// A provider without memory.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let (name, version) = (name.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
        Self { inner: Arc::new(Inner { name, version, blocks: Mutex::default() }) }
    }

    /// Offers `len_bytes` of new host memory in pages of `page` bytes, rounded up to whole pages.
    ///
    /// # Errors
    ///
    /// [`BlockError::PageSize`], [`BlockError::Map`].
    pub fn host(&self, len_bytes: usize, page: u64) -> Result<PeerBlock, BlockError> {
        if !page.is_power_of_two() || !(PAGE..=1 << 30).contains(&page) {
            return Err(BlockError::PageSize(page));
        }
        let len_bytes = len_bytes.next_multiple_of(page as usize);
        // The first address shall be that of a page.
        let config = RegionConfig {
            len_bytes: len_bytes + page as usize - PAGE as usize,
            page: PageSize::Base4K,
            backing: Backing::Memfd,
            ..RegionConfig::default()
        };
        let region = Region::alloc(&config)
            .map_err(|source| BlockError::Map { what: "host memory", source })?;
        let base = region.as_ptr().addr();
        let start = base.next_multiple_of(page as usize) - base;
        let Ok(Some(fd)) = region.fd() else { unreachable!("it is a memfd of its own") };
        let file = fd.try_clone_to_owned().map_err(|source| file_error("memfd", source))?;
        let map = part_of(file, start as u64, ());
        let (addr, len) = ((base + start) as u64, len_bytes as u64);
        Ok(self.add(Memory { what: "host memory", addr, len, page, region, start, map }))
    }

    /// Offers a BAR of a PCI device, such as `0000:3b:00.0`, through sysfs. Root only.
    ///
    /// # Errors
    ///
    /// [`BlockError::File`], [`BlockError::NoBar`], [`BlockError::Disabled`], [`BlockError::Map`].
    pub fn pci_bar(
        &self,
        device: &str,
        bar: u8,
        caching: BarCaching,
    ) -> Result<PeerBlock, BlockError> {
        self.pci_bar_in(&Path::new(PCI_DEVICES).join(device), bar, caching)
    }

    fn pci_bar_in(
        &self,
        folder: &Path,
        bar: u8,
        caching: BarCaching,
    ) -> Result<PeerBlock, BlockError> {
        let device = folder.display().to_string();
        let resource = read(&folder.join("resource"))?;
        let line = resource.lines().nth(bar.into()).unwrap_or("").to_owned();
        let Some(len) = bar_bytes(&line).filter(|_| bar < 6) else {
            return Err(BlockError::NoBar { device, bar, line });
        };
        if read(&folder.join("enable"))?.trim() == "0" {
            return Err(BlockError::Disabled(device));
        }
        let suffix = if caching == BarCaching::WriteCombining { "_wc" } else { "" };
        let path = folder.join(format!("resource{bar}{suffix}"));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(|source| file_error(path.display(), source))?;
        self.file_of(file.into(), 0, len, "BAR", ())
    }

    /// Offers a BAR of a PCI device that is bound to vfio-pci, and keeps the device open.
    ///
    /// # Errors
    ///
    /// [`BlockError::Vfio`] as [`VfioBar::open`] says, [`BlockError::Map`].
    pub fn vfio_bar(&self, device: &str, bar: u8) -> Result<PeerBlock, BlockError> {
        let bar = VfioBar::open(device, bar)?;
        let (file, offset, len) = (bar.file()?, bar.file_offset(), bar.len_bytes());
        self.file_of(file, offset, len, "BAR", bar)
    }

    /// Offers the memory of a dma-buf, all of it. The exporter must let it be mapped.
    ///
    /// On VFIO that is not enough: the kernel gives an IOMMU pages that it can pin, and BARs, but
    /// no mapped dma-buf of system memory, such as udmabuf's of Linux 6.12. Registering that ends
    /// with [`BusError::ForeignPages`](ferrocx_bus::BusError::ForeignPages) then.
    ///
    /// Mapped memory cannot follow a buffer that its exporter moves: an exporter that wants to must
    /// have it taken back first ([`PeerBlock`]).
    ///
    /// # Errors
    ///
    /// [`BlockError::File`], [`BlockError::Map`].
    pub fn dma_buf(&self, fd: OwnedFd) -> Result<PeerBlock, BlockError> {
        let mut file = File::from(fd);
        let len = file.seek(SeekFrom::End(0)).map_err(|source| file_error("dma-buf", source))?;
        self.file_of(file.into(), 0, len, "dma-buf", ())
    }

    /// Offers `len_bytes` of a file from `offset` on: shared memory.
    pub fn file(
        &self,
        file: OwnedFd,
        offset: u64,
        len_bytes: u64,
    ) -> Result<PeerBlock, BlockError> {
        self.file_of(file, offset, len_bytes, "file", ())
    }

    /// Offers a part of a file, and keeps `owner` as long.
    fn file_of(
        &self,
        file: OwnedFd,
        offset: u64,
        len: u64,
        what: &'static str,
        owner: impl Send + Sync + 'static,
    ) -> Result<PeerBlock, BlockError> {
        let region = Region::map_file(&file, offset, len as usize)
            .map_err(|source| BlockError::Map { what, source })?;
        let addr = region.as_ptr().addr() as u64;
        let map = part_of(file, offset, owner);
        Ok(self.add(Memory { what, addr, len, page: PAGE, region, start: 0, map }))
    }

    pub(super) fn add(&self, memory: Memory) -> PeerBlock {
        debug_assert!((memory.addr | memory.len).is_multiple_of(memory.page));
        // A registration is another mapping of the same memory. Buffers of a pool over this one
        // could be borrowed while peers write there, unless the pool knows it to be foreign.
        let is_foreign = memory.region.backing() == Backing::Foreign;
        let raw = memory.region.use_raw().ok().filter(|_| !is_foreign);
        let block = Arc::new(Block { memory, _raw: raw, lent: Mutex::default() });
        lock(&self.inner.blocks).push(Arc::clone(&block));
        PeerBlock { provider: self.clone(), block }
    }
}

fn file_error(path: impl fmt::Display, source: io::Error) -> BlockError {
    BlockError::File { path: path.to_string(), source }
}

fn read(path: &Path) -> Result<String, BlockError> {
    fs::read_to_string(path).map_err(|source| file_error(path.display(), source))
}

/// Maps parts of a file, whose offsets count from `start`, as long as `owner` is kept.
pub(super) fn part_of(
    file: OwnedFd,
    start: u64,
    owner: impl Send + Sync + 'static,
) -> Box<MapPart> {
    Box::new(move |offset, len| {
        let _ = &owner;
        Ok(Region::map_file(&file, start + offset, len)?)
    })
}

/// Bytes of a memory BAR, from its line in `resource`: first and last address, and flags, of which
/// bit 9 says memory. Source: Linux, `include/linux/ioport.h`, `IORESOURCE_MEM`.
fn bar_bytes(line: &str) -> Option<u64> {
    let mut words = line
        .split_whitespace()
        .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let (start, end, flags) = (words.next()??, words.next()??, words.next()??);
    (flags & 0x200 != 0 && end > start).then(|| end - start + 1)
}

impl PeerProvider for MappedProvider {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn version(&self) -> &str {
        &self.inner.version
    }

    fn may_invalidate(&self) -> bool {
        true
    }

    fn acquire(&self, range: PeerRange) -> Option<Box<dyn PeerMemory>> {
        let blocks = lock(&self.inner.blocks);
        let block = blocks.iter().find(|block| {
            let Memory { addr, len, .. } = block.memory;
            let at = range.addr.wrapping_sub(addr);
            at < len && range.len_bytes <= len - at
        })?;
        let block = Arc::clone(block);
        Some(Box::new(View { block, range, id: 0 }))
    }
}

/// A registration's view of a block.
#[derive(Debug)]
struct View {
    block: Arc<Block>,
    range: PeerRange,
    /// Number of its ticket; 0 before there is one.
    id: u64,
}

impl PeerMemory for View {
    fn page_size(&self) -> u64 {
        self.block.memory.page
    }

    fn get_pages(&mut self, _: Access, ticket: &PeerTicket) -> Result<Vec<PeerPiece>, PeerFault> {
        let Memory { addr, page, map, .. } = &self.block.memory;
        let start = (self.range.addr - addr) & !(page - 1);
        let end = self.range.addr - addr + self.range.len_bytes;
        let len = end.next_multiple_of(*page) - start;
        let region = map(start, len as usize)?;
        let mut lent = lock(&self.block.lent);
        if lent.is_gone {
            return Err("it was taken back".into());
        }
        lent.next_id += 1;
        self.id = lent.next_id;
        lent.tickets.push((self.id, ticket.clone()));
        Ok(vec![PeerPiece { region, range: 0..len as usize }])
    }

    fn put_pages(&mut self, _: Vec<PeerPiece>) {
        lock(&self.block.lent).tickets.retain(|(id, _)| *id != self.id);
    }
}

impl PeerBlock {
    /// The address of its first byte.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.block.memory.addr
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.block.memory.len
    }

    /// A part of it, as [`super::PeerRegistry::reg_mr`] wants it.
    #[must_use]
    pub fn range(&self, offset: u64, len_bytes: u64) -> PeerRange {
        PeerRange { addr: self.addr().wrapping_add(offset), len_bytes }
    }

    /// The memory for this process, and where in it the block starts. Packet buffers may lie over
    /// it ([`ferrocx_mempool::Pool::with_region`]) unless it is [`MappedProvider::host`]'s; taking
    /// the block back does not end those, see `BufferSplit` of the Ethernet driver. After stores to
    /// a BAR that is write-combining, `sfence` (or any locked instruction) comes before the
    /// doorbell that tells of them.
    #[must_use]
    pub fn region(&self) -> (&Arc<Region>, usize) {
        (&self.block.memory.region, self.block.memory.start)
    }

    /// Registrations of it that live.
    #[must_use]
    pub fn lent(&self) -> usize {
        lock(&self.block.lent).tickets.len()
    }

    /// Ends every registration of it, as a device that needs its memory back would. It can be
    /// registered again afterwards.
    ///
    /// # Errors
    ///
    /// The first of [`PeerTicket::invalidate`].
    pub fn invalidate(&self) -> Result<(), PeerError> {
        let tickets = lock(&self.block.lent).tickets.clone();
        tickets.iter().map(|(_, ticket)| ticket.invalidate()).fold(Ok(()), Result::and)
    }

    /// Takes it back for good: it can no longer be registered, and when this returns no device
    /// reaches it through a registration. A device that has packet buffers over it
    /// ([`PeerBlock::region`]) still does, until [`ferrocx_core::Device::unregister_pool`] or, at
    /// once, [`ferrocx_core::Device::revoke_pool`].
    ///
    /// # Errors
    ///
    /// Those of [`PeerBlock::invalidate`].
    pub fn take_back(&self) -> Result<(), PeerError> {
        lock(&self.provider.inner.blocks).retain(|other| !Arc::ptr_eq(other, &self.block));
        lock(&self.block.lent).is_gone = true;
        self.invalidate()
    }
}

impl Drop for PeerBlock {
    fn drop(&mut self) {
        if let Err(error) = self.take_back() {
            tracing::error!(%error, "peer memory not taken back");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_resource_files() {
        let bar = "0x00000000f4000000 0x00000000f5ffffff 0x000000000014220c";
        assert_eq!(bar_bytes(bar), Some(0x200_0000));
        let ports = "0x000000000000c000 0x000000000000c07f 0x0000000000040101";
        assert_eq!(bar_bytes(ports), None);
        assert_eq!(bar_bytes("0x0 0x0 0x0"), None);
        assert_eq!(bar_bytes("0x1000 zz 0x200"), None);
        assert_eq!(bar_bytes(""), None);
    }

    #[test]
    fn a_recorded_device_says_what_is_wrong_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let provider = MappedProvider::new("bar");
        let open = |bar| {
            let opened = provider.pci_bar_in(folder.path(), bar, BarCaching::Uncached);
            opened.map(|block| block.len_bytes()).map_err(|error| error.to_string())
        };
        assert!(open(2).unwrap_err().contains("resource: No such file"));
        let zero = "0x0 0x0 0x0\n";
        let line = "0x00000000f4000000 0x00000000f4003fff 0x000000000014220c\n";
        fs::write(at("resource"), [zero, zero, line].concat()).unwrap();
        fs::write(at("enable"), "0\n").unwrap();
        assert!(open(0).unwrap_err().contains("has no memory BAR 0"));
        assert!(open(7).unwrap_err().contains("has no memory BAR 7"));
        assert!(open(2).unwrap_err().contains("switched off"));
        fs::write(at("enable"), "1\n").unwrap();
        assert!(open(2).unwrap_err().contains("resource2: No such file"));
        fs::write(at("resource2"), [0; 4096]).unwrap();
        assert!(open(2).unwrap_err().contains("BAR cannot be mapped"), "shorter than the BAR");
        fs::write(at("resource2"), [0; 0x4000]).unwrap();
        assert_eq!(open(2), Ok(0x4000));
    }

    #[test]
    fn a_file_plays_a_dma_buf() {
        let provider = MappedProvider::new("dma-buf");
        let mut file = tempfile::tempfile().unwrap();
        let empty = provider.dma_buf(file.try_clone().unwrap().into()).unwrap_err().to_string();
        assert!(empty.contains("dma-buf cannot be mapped"), "{empty}");
        io::Write::write_all(&mut file, &[7; 8192]).unwrap();
        let block = provider.dma_buf(file.into()).unwrap();
        let mut bytes = [0; 2];
        block.region().0.copy_out(8190, &mut bytes).unwrap();
        assert_eq!((block.len_bytes(), bytes), (8192, [7; 2]));
        let (reader, _writer) = io::pipe().unwrap();
        let refused = provider.dma_buf(reader.into()).unwrap_err().to_string();
        assert!(refused.starts_with("dma-buf: Illegal seek"), "{refused}");
    }

    #[test]
    fn page_sizes_of_host_memory() {
        let provider = MappedProvider::new("host");
        for page in [0, 2048, 4097, 1 << 31] {
            let refused = provider.host(4096, page).unwrap_err().to_string();
            assert!(refused.contains(&format!("pages of {page} bytes")), "{refused}");
        }
        let block = provider.host(1, 65536).unwrap();
        assert_eq!((block.len_bytes(), block.addr() % 65536), (65536, 0));
        assert!(provider.acquire(block.range(65535, 1)).is_some());
        assert!(provider.acquire(block.range(65535, 2)).is_none());
        assert!(provider.acquire(block.range(u64::MAX, 1)).is_none());
        let range = block.range(0, 1);
        drop(block);
        assert!(provider.acquire(range).is_none());
    }
}
