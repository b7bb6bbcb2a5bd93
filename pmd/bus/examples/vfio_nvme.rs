//! Judges the VFIO transport on a device that strangers wrote: the NVMe controller of QEMU.
//!
//! ```text
//! vfio_nvme ADDRESS          identify the controller 300 times, through all of the transport
//! vfio_nvme ADDRESS refused  open the device, first as a foreign one; both must fail; print why
//! vfio_nvme ADDRESS memlock  map more than the limit of locked memory, which must fail
//! vfio_nvme ADDRESS space    open it in an address space for several devices, and as another's
//! vfio_nvme ADDRESS export   make a dma-buf of BAR 2, of whatever device this is
//! vfio_nvme ADDRESS unplug   hold the device until the kernel wants it back, and give it back
//! ```
//!
//! Registers, DMA both ways, MSI-X eventfds, function-level reset, unmapping and reopening are
//! exercised; each wrong answer is a panic. `scripts/vm-lab run vfio-nvme` runs it in a guest.
//! NVMe's registers are little-endian and the transport's calls are not, hence the swaps.
//!
//! Source of registers and commands: NVM Express Base Specification 1.4, sections 3.1, 4.2, 5.15.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx_bus::vfio::{AddressSpace, LentFiles, VfioBar, VfioConfig, VfioTransport};
use ferrocx_bus::{Bar, BarClaim, BusError, DmaAccess, DmaHeap, Ring, Transport};
use ferrocx_mempool::{PageSize, Pages, Pool, PoolConfig, Region, RegionConfig};

const CAP: u64 = 0x00;
const CC: u64 = 0x14;
const CSTS: u64 = 0x1c;
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
const ACQ: u64 = 0x30;
const SQ0_TAIL: u64 = 0x1000;
const CQ0_HEAD: u64 = 0x1004;
const ENTRIES: u32 = 16;

/// The id of QEMU's controller.
const QEMU_NVME: (u16, u16) = (0x1b36, 0x0010);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [address] => identify_often(address),
        [address, "refused"] => {
            let mut config = VfioConfig { address: address.into(), ..VfioConfig::default() };
            println!("{}", VfioTransport::open(&config).expect_err("must be refused"));
            config.also_accept.push(QEMU_NVME);
            println!("{}", VfioTransport::open(&config).expect_err("must be refused"));
        }
        [address, "memlock"] => println!("{}", map_too_much(address)),
        [address, "space"] => share_a_space(address),
        [address, "export"] => export(address),
        [address, "unplug"] => hold_until_unplugged(address),
        _ => panic!("usage: vfio_nvme ADDRESS [refused|memlock|space|export|unplug]"),
    }
}

fn settings(address: &str) -> VfioConfig {
    let also_accept = vec![QEMU_NVME];
    VfioConfig { address: address.into(), also_accept, ..VfioConfig::default() }
}

fn open(address: &str) -> Arc<VfioTransport> {
    VfioTransport::open(&settings(address)).expect("the device opens")
}

/// A page of 4 KiB.
fn page() -> Arc<Region> {
    let config = RegionConfig { len_bytes: 4096, page: PageSize::Base4K, ..Default::default() };
    Region::alloc(&config).expect("memory")
}

/// The dma-buf has the BAR's length; a kernel that makes none says what it takes.
fn export(address: &str) {
    let bar = VfioBar::open(address, 2).expect("a BAR of memory");
    match bar.export_dma_buf() {
        Ok(file) => {
            let mut file = std::fs::File::from(file);
            let len = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).expect("a length");
            assert_eq!(len, bar.len_bytes());
            println!("exported {len} bytes");
        }
        Err(error) => println!("{error}"),
    }
}

/// Opens the device in a shared space, again and again, and with another program's mappings.
fn share_a_space(address: &str) {
    let space = Some(Arc::new(AddressSpace::default()));
    let config = VfioConfig { space, ..settings(address) };
    let device = VfioTransport::open(&config).expect("the first opens the space");
    println!("{}", VfioTransport::open(&config).expect_err("one device, one place"));
    let region = page();
    let map = |device: &VfioTransport, access| {
        device.dma().map(Arc::clone(&region), access).expect("mapped")
    };
    let mapping = map(&device, DmaAccess::ReadWrite);
    let iova = mapping.iova();
    assert_eq!(map(&device, DmaAccess::ReadWrite).iova(), iova, "mapped once");
    assert_ne!(map(&device, DmaAccess::Read).iova(), iova, "other rights are another's");
    // Memory stays mapped without its device, which may come back.
    drop(device);
    let device = VfioTransport::open(&config).expect("the device comes back");
    let again = map(&device, DmaAccess::ReadWrite);
    assert_eq!(again.iova(), iova, "still mapped");
    mapping.end().expect("ended");
    assert_eq!(map(&device, DmaAccess::ReadWrite).iova(), iova, "by one of two handles only");
    again.end().expect("unmapped");
    let other = map(&device, DmaAccess::ReadWrite);
    assert_ne!(other.iova(), iova, "what ended is over");
    // What is swept away is over for whoever comes later, though the old handle lives on.
    device.dma().unmap_all().expect("unmapped");
    let late = map(&device, DmaAccess::ReadWrite);
    assert_ne!(late.iova(), other.iova());
    late.end().expect("it is there to be unmapped");
    drop((mapping, again, other, late, device));
    let device = VfioTransport::open(&config).expect("the space outlives its devices");
    drop((map(&device, DmaAccess::ReadWrite), device, config));

    // Two programs that were lent one container know nothing of each other's addresses.
    let file = |path: &str| {
        std::fs::OpenOptions::new().read(true).write(true).open(path).expect("root may").into()
    };
    let group = std::fs::read_link(format!("/sys/bus/pci/devices/{address}/iommu_group"));
    let group = group.expect("it has one");
    let number = group.file_name().and_then(|name| name.to_str()).expect("a number");
    let (container, group) = (file("/dev/vfio/vfio"), file(&format!("/dev/vfio/{number}")));
    let lent = Some(Arc::new(LentFiles::Group { container, group }));
    let space = Some(Arc::new(AddressSpace::default()));
    let config = VfioConfig { lent, space, seed: Some(7), ..settings(address) };
    for _ in 0..2 {
        let device = VfioTransport::open(&config).expect("the lender keeps its group there");
        drop(map(&device, DmaAccess::ReadWrite));
    }
    let config = VfioConfig { space: None, ..config };
    let [first, second] = [0; 2].map(|_| VfioTransport::open(&config).expect("lent twice"));
    let _mapping = map(&first, DmaAccess::ReadWrite);
    let refused = second.dma().map(page(), DmaAccess::ReadWrite);
    println!("{}", refused.expect_err("the same addresses"));
}

fn hold_until_unplugged(address: &str) {
    let device = open(address);
    let map = || device.dma().map(page(), DmaAccess::ReadWrite).expect("mapped");
    // The kernel unmaps everything at once, too, and what was mapped before is dropped unharmed.
    let early = map();
    device.dma().unmap_all().expect("unmapped");
    let late = map();
    drop(early);
    println!("holding");
    let start = Instant::now();
    while device.notice().is_none() {
        assert!(start.elapsed() < Duration::from_secs(60), "nobody asked for the device");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("{}", device.notice().expect("it stays said"));
    drop((late, device));
}

fn map_too_much(address: &str) -> BusError {
    let device = open(address);
    let config = RegionConfig { len_bytes: 4 << 20, page: PageSize::Base4K, ..Default::default() };
    let region = Region::alloc(&config).expect("memory");
    let error = device.dma().map(region, DmaAccess::ReadWrite).expect_err("must be refused");
    // The refusal left nothing behind: a small region still fits.
    let config = RegionConfig { len_bytes: 4096, ..config };
    let region = Region::alloc(&config).expect("memory");
    device.dma().map(region, DmaAccess::ReadWrite).expect("a small region fits");
    error
}

/// The administration queues of a controller.
struct Nvme {
    bar: Arc<dyn Bar>,
    sq: Ring<64>,
    cq: Ring<16>,
    interrupt: OwnedFd,
    posted: u32,
}

impl Nvme {
    fn start(device: &VfioTransport, heap: &DmaHeap) -> Self {
        // SAFETY: nobody else drives the controller; it is led to memory that is only copied.
        let bar = device.bar(unsafe { BarClaim::new() });
        let ring_buf = || Arc::new(heap.alloc(4096, 4096).expect("room"));
        let sq = Ring::<64>::new(ring_buf(), 0, 4).expect("fits");
        let cq = Ring::<16>::new(ring_buf(), 0, 4).expect("fits");
        write32(&*bar, CC, 0);
        wait_for("disabled", || read32(&*bar, CSTS) & 1 == 0);
        write32(&*bar, AQA, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        bar.write_be64(ASQ, sq.iova().swap_bytes());
        bar.write_be64(ACQ, cq.iova().swap_bytes());
        device.interrupts().enable(1).expect("a vector");
        let interrupt = device.interrupts().eventfd(0).expect("enabled");
        // 64-byte and 16-byte entries, 4 KiB pages, enabled.
        write32(&*bar, CC, 4 << 20 | 6 << 16 | 1);
        wait_for("ready", || read32(&*bar, CSTS) & 1 == 1);
        Self { bar, sq, cq, interrupt, posted: 0 }
    }

    /// IDENTIFY CONTROLLER into a page: the status field, 0 for success.
    fn identify(&mut self, iova: u64) -> u32 {
        self.identify_into([iova, 0])
    }

    /// IDENTIFY CONTROLLER into 4096 bytes that lie in one page or two.
    fn identify_into(&mut self, prps: [u64; 2]) -> u32 {
        let slot = self.sq.at(self.posted);
        let mut entry = [0; 64];
        entry[0] = 0x06;
        entry[2..4].copy_from_slice(&0x1234_u16.to_le_bytes());
        entry[24..32].copy_from_slice(&prps[0].to_le_bytes());
        entry[32..40].copy_from_slice(&prps[1].to_le_bytes());
        entry[40] = 1;
        slot.store(&entry);
        let phase = u32::from((self.posted / ENTRIES).is_multiple_of(2));
        let completion = self.cq.at(self.posted);
        self.posted += 1;
        write32(&*self.bar, SQ0_TAIL, self.posted % ENTRIES);
        let mut word = 0;
        wait_for("completion", || {
            word = completion.load_acquire_be32::<0x0c>().swap_bytes();
            word >> 16 & 1 == phase
        });
        assert_eq!(word & 0xffff, 0x1234, "the command's own identifier comes back");
        write32(&*self.bar, CQ0_HEAD, self.posted % ENTRIES);
        wait_for("interrupt", || rustix::io::read(&self.interrupt, &mut [0; 8]).is_ok());
        word >> 17
    }
}

fn read32(bar: &dyn Bar, offset: u64) -> u32 {
    bar.read_be32(offset).swap_bytes()
}

fn write32(bar: &dyn Bar, offset: u64, value: u32) {
    bar.write_be32(offset, value.swap_bytes());
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "no {what} within 10 s");
        std::thread::yield_now();
    }
}

fn identify_often(address: &str) {
    for round in 0..3 {
        let device = open(address);
        let limits = device.dma().limits();
        println!("round {round}: {:?}, {limits:x?}", device.identity());
        assert!(device.interrupts().vectors() > 0, "the controller has MSI-X");
        let config = RegionConfig { len_bytes: 2 << 20, ..RegionConfig::default() };
        let region = Region::alloc(&config).expect("memory");
        println!("region: {} bytes in pages of {}", region.len_bytes(), region.page_size_bytes());
        let mapping = device.dma().map(region, DmaAccess::ReadWrite).expect("mapped");
        assert_ne!(mapping.iova(), mapping.region().as_ptr().addr() as u64);
        let heap = DmaHeap::new(mapping);
        let mut nvme = Nvme::start(&device, &heap);
        let data = heap.alloc(4096, 4096).expect("room");
        for _ in 0..100 {
            data.fill(0);
            assert_eq!(nvme.identify(data.iova()), 0);
            let mut ids = [0; 4];
            data.copy_out(0, &mut ids);
            assert_eq!(ids[..2], QEMU_NVME.0.to_le_bytes(), "the controller's own vendor id");
        }
        let mut answer = [0; 4096];
        data.copy_out(0, &mut answer);
        packets_are_filled(&device, &mut nvme, &answer);
        access_rights_hold(&device, &mut nvme);
        assert_ne!(read32(&*nvme.bar, CAP), 0);
        device.reset().expect("function-level reset");
        assert!(device.reset_complete());
        assert_eq!(read32(&*nvme.bar, CSTS) & 1, 0, "a reset controller is not ready");
        let mut again = Nvme::start(&device, &heap);
        assert_eq!(again.identify(data.iova()), 0, "works after a reset");
    }
    println!("identified 300 times in 3 sessions");
}

/// The controller fills packets of a pool with the `answer` that it gave before: half of it behind
/// the headroom of one segment, half in the page of another.
fn packets_are_filled(device: &VfioTransport, nvme: &mut Nvme, answer: &[u8; 4096]) {
    let config = RegionConfig { len_bytes: 16 << 12, page: PageSize::Base4K, ..Default::default() };
    let region = Region::alloc(&config).expect("memory");
    let config = PoolConfig {
        count: 16,
        data_room_bytes: 4096,
        headroom_bytes: 2048,
        cache_size: 0,
        ..Default::default()
    };
    let pool = Pool::with_region(&config, &region, 0).expect("a pool over the region");
    let mapping = device.dma().map(region, DmaAccess::ReadWrite).expect("mapped");
    for _ in 0..8 {
        let (mut packet, mut tail) = (pool.get().expect("room"), pool.get().expect("room"));
        packet.append(2048).expect("room").fill(0xa5);
        tail.prepend(2048).expect("room").fill(0xa5);
        packet.chain(tail).expect("two segments");
        let pieces: Vec<_> = packet.pieces().filter_map(|piece| mapping.piece(piece)).collect();
        let pages = Pages::new(pieces, 4096).expect("they meet at a page border");
        assert_eq!((pages.len(), pages.len_bytes()), (2, 4096));
        let prps: Vec<u64> = pages.collect();
        assert_eq!(nvme.identify_into([prps[0], prps[1]]), 0);
        let mut filled = [0; 4096];
        assert!(packet.read(0, &mut filled));
        assert_eq!(filled, *answer);
    }
    println!("filled packets by their lists of pages");
}

/// The IOMMU refuses what was not mapped, was mapped for reading only, or is mapped no more.
///
/// QEMU's controller reports a transfer that failed as a status, or completes without writing.
fn access_rights_hold(device: &VfioTransport, nvme: &mut Nvme) {
    let map = |access| {
        let region = page();
        region.fill(0, 4096, 0xa5).expect("in range");
        let mapping = device.dma().map(Arc::clone(&region), access).expect("mapped");
        (region, mapping)
    };
    let untouched = |region: &Region| {
        let mut bytes = vec![0; 4096];
        region.copy_out(0, &mut bytes).expect("in range");
        bytes.iter().all(|&byte| byte == 0xa5)
    };
    let (region, mapping) = map(DmaAccess::Read);
    let status = nvme.identify(mapping.iova());
    assert!(untouched(&region), "status {status:#x}");
    let (region, mapping) = map(DmaAccess::ReadWrite);
    let iova = mapping.iova();
    drop(mapping);
    let status_unmapped = nvme.identify(iova);
    assert!(untouched(&region), "status {status_unmapped:#x}");
    let (region, mapping) = map(DmaAccess::Write);
    assert_eq!(nvme.identify(mapping.iova()), 0);
    assert!(!untouched(&region));
    println!("refused: status {status:#x} read-only, {status_unmapped:#x} unmapped");
}
