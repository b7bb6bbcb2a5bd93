//! The server as a client sees it: the vfio-user crate's own client, over a real socket.

mod hostile;

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use ferrocx_bus::local::{DeviceSide, LocalConfig, pair};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use vfio_bindings::bindings::vfio as abi;
use vfio_user::Client;

use super::engine::{Engine, Steppable};
use super::function::{Function, Trust};
use super::pci::{BAR0_BYTES, PciFunction};
use super::{Sockets, socket};

/// A device that counts its resets in register 0, and on a write to register 4 of an I/O address
/// reads a word there, publishes it in register 8 and raises vector 5.
struct Echo {
    device: DeviceSide,
    resets: Arc<AtomicU32>,
}

impl Steppable for Echo {
    fn step(&mut self, _: u64) -> bool {
        if self.device.reset_requested() {
            self.device.clear_bar();
            let resets = self.resets.fetch_add(1, Ordering::Relaxed) + 1;
            self.device.set_be32(0, resets);
            self.device.reset_done();
            return true;
        }
        let Some(write) = self.device.poll_write() else { return false };
        if write.offset == 4 {
            let word = self.device.memory().read_be32(write.value).unwrap_or(0xdead_beef);
            self.device.set_be32(8, word);
            self.device.raise(5);
        }
        true
    }
}

/// A function whose device is an [`Echo`], and the thread of that.
pub(super) fn function(device: &DeviceSide, resets: &Arc<AtomicU32>) -> (Engine, Function) {
    let echo = Echo { device: device.clone(), resets: Arc::clone(resets) };
    let engine = Engine::start("test", Instant::now(), echo).expect("a thread");
    let (identity, device) = (PciFunction { device: 0x1017, is_vf: false }, device.clone());
    let function =
        Function::new("test".into(), Trust::Sealed, None, device, identity, engine.wake());
    (engine, function)
}

/// A running server; the folder and the engine live as long as it.
struct Lab {
    _dir: tempfile::TempDir,
    path: PathBuf,
    resets: Arc<AtomicU32>,
    engine: Engine,
    side: DeviceSide,
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("port");
        let (_driver, side) = pair(LocalConfig::default()).expect("a device");
        let resets = Arc::new(AtomicU32::new(0));
        let (engine, function) = function(&side, &resets);
        let server = socket::listen(&path).expect("a fresh path");
        std::thread::spawn(move || socket::serve(&server, "test", function));
        Self { _dir: dir, path, resets, engine, side }
    }

    fn client(&self) -> Client {
        Client::new(&self.path).expect("the server answers")
    }

    /// Waits for the reset that follows the departure of a client.
    fn wait_for_resets(&self, count: u32) {
        while self.resets.load(Ordering::Relaxed) < count {
            assert!(self.engine.wake().is_running());
            std::thread::yield_now();
        }
    }
}

fn read32(client: &mut Client, region: u32, offset: u64) -> [u8; 4] {
    let mut data = [0; 4];
    client.region_read(region, offset, &mut data).expect("an answer");
    data
}

/// Has the device read a word at an I/O address, whose interrupt says that it has.
fn asker(client: &mut Client) -> impl FnMut(&mut Client, u32) -> [u8; 4] + use<> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let fd = eventfd(0, flags).expect("an eventfd");
    let trigger = abi::VFIO_IRQ_SET_DATA_EVENTFD | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    client
        .set_irqs(abi::VFIO_PCI_MSIX_IRQ_INDEX, trigger, 5, 1, &[fd.as_raw_fd()])
        .expect("vector 5");
    let mut interrupt = File::from(fd);
    move |client, iova| {
        client.region_write(BAR0, 4, &iova.to_be_bytes()).expect("written");
        let mut count = [0; 8];
        while interrupt.read_exact(&mut count).is_err() {
            std::thread::yield_now();
        }
        assert_eq!(u64::from_ne_bytes(count), 1);
        read32(client, BAR0, 8)
    }
}

/// Memory of a guest, as QEMU makes it: a memfd sealed in its size.
fn memory(len_bytes: u64, at: u64, word: u32) -> File {
    use std::os::unix::fs::FileExt;
    let file = unsealed(len_bytes);
    file.write_all_at(&word.to_be_bytes(), at).expect("room");
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
    file
}

/// A memfd that its owner can still cut off.
fn unsealed(len_bytes: u64) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(rustix::fs::memfd_create("guest", flags).expect("a memfd"));
    file.set_len(len_bytes).expect("room");
    file
}

const CONFIG: u32 = abi::VFIO_PCI_CONFIG_REGION_INDEX;
const BAR0: u32 = abi::VFIO_PCI_BAR0_REGION_INDEX;

#[test]
fn a_client_finds_a_connectx() {
    let lab = Lab::new();
    let mut client = lab.client();
    assert_eq!(client.region(BAR0).map(|region| region.size), Some(BAR0_BYTES));
    assert_eq!(client.region(abi::VFIO_PCI_BAR2_REGION_INDEX).map(|r| r.size), Some(8192));
    assert_eq!(read32(&mut client, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
    let msix = client.get_irq_info(abi::VFIO_PCI_MSIX_IRQ_INDEX).expect("an answer");
    assert_eq!(msix.count, 64);
    let intx = client.get_irq_info(abi::VFIO_PCI_INTX_IRQ_INDEX).expect("an answer");
    assert_eq!(intx.count, 0);
}

#[test]
fn device_reaches_mapped_memory_only_and_interrupts_the_client() {
    let lab = Lab::new();
    let mut client = lab.client();
    let file = memory(8192, 4096 + 16, 0x0102_0304);
    client.dma_map(4096, 0x10_0000, 4096, file.as_raw_fd()).expect("mapped");
    let mut ask = asker(&mut client);
    assert_eq!(ask(&mut client, 0x10_0010), [1, 2, 3, 4]);
    assert_eq!(ask(&mut client, 0x10_1000), [0xde, 0xad, 0xbe, 0xef]);
    client.dma_unmap(0x10_0000, 4096).expect("unmapped");
    assert_eq!(ask(&mut client, 0x10_0010), [0xde, 0xad, 0xbe, 0xef]);
}

#[test]
fn a_range_ends_every_mapping_that_it_touches() {
    let lab = Lab::new();
    let mut client = lab.client();
    let file = memory(4 * 4096, 16, 0x0102_0304);
    for page in 0..4 {
        client.dma_map(0, 0x10_0000 + page * 4096, 4096, file.as_raw_fd()).expect("mapped");
    }
    client.dma_map(0, 0x20_0000, 8192, file.as_raw_fd()).expect("mapped");
    let mut ask = asker(&mut client);
    const NONE: [u8; 4] = [0xde, 0xad, 0xbe, 0xef];
    client.dma_unmap(0x10_1800, 0).expect("nothing");
    client.dma_unmap(0x10_1000, 2 * 4096).expect("two of them");
    let seen = [0, 1, 2, 3].map(|page| ask(&mut client, 0x10_0010 + page * 4096));
    assert_eq!(seen, [[1, 2, 3, 4], NONE, NONE, [1, 2, 3, 4]]);
    client.dma_unmap(0x20_0800, 0).expect("nothing");
    assert_eq!(ask(&mut client, 0x20_0010), [1, 2, 3, 4]);
    // What a hypervisor says of an address space that is gone: all in front of its interrupts.
    client.dma_unmap(0, 0xfee0_0000).expect("the rest");
    assert_eq!(ask(&mut client, 0x10_0010), NONE);
    assert_eq!(ask(&mut client, 0x20_0010), NONE);
    // One that is cut in two ends as a whole, and its neighbours stay.
    for (address, size) in [
        (0x20_1000, 4096),
        (0x1f_f000, 8192),
        (0x20_0800, 16),
        (0x20_0000, 1),
        (0x20_1fff, u64::MAX),
    ] {
        for page in [0x1f_f000, 0x20_2000] {
            client.dma_map(0, page, 4096, file.as_raw_fd()).expect("mapped");
        }
        client.dma_map(0, 0x20_0000, 8192, file.as_raw_fd()).expect("mapped");
        client.dma_unmap(address, size).expect("answered");
        assert_eq!(ask(&mut client, 0x20_0010), NONE, "{address:#x}, {size}");
        let is_kept = |page: u64| page + 4096 <= address || page >= address.saturating_add(size);
        for page in [0x1f_f000, 0x20_2000] {
            let seen = ask(&mut client, page + 0x10);
            let kept = is_kept(page.into());
            assert_eq!(seen, if kept { [1, 2, 3, 4] } else { NONE }, "{address:#x}, {page:#x}");
        }
        client.dma_unmap(0, u64::MAX).expect("all");
    }
}

#[test]
fn reset_is_over_when_it_is_answered() {
    let lab = Lab::new();
    let mut client = lab.client();
    client.region_write(CONFIG, 4, &[6, 0]).expect("written");
    client.reset().expect("answered");
    assert_eq!(read32(&mut client, BAR0, 0), [0, 0, 0, 1]);
    assert_eq!(read32(&mut client, CONFIG, 4), [0, 0, 0x10, 0]);
    // The same by the guest's hand: bit 15 of Device Control.
    client.region_write(CONFIG, 0x68, &[0x10, 0xa8]).expect("written");
    assert_eq!(read32(&mut client, BAR0, 0), [0, 0, 0, 2]);
}

#[test]
fn the_next_client_finds_nothing_of_the_last() {
    let lab = Lab::new();
    let mut first = lab.client();
    let file = memory(4096, 0, 0x0102_0304);
    first.dma_map(0, 0x10_0000, 4096, file.as_raw_fd()).expect("mapped");
    first.region_write(CONFIG, 4, &[6, 0]).expect("written");
    drop(first);
    lab.wait_for_resets(1);
    let mut second = lab.client();
    assert_eq!(read32(&mut second, CONFIG, 4), [0, 0, 0x10, 0]);
    assert_eq!(read32(&mut second, BAR0, 0), [0, 0, 0, 1]);
    second.region_write(BAR0, 4, &0x10_0000_u32.to_be_bytes()).expect("written");
    while read32(&mut second, BAR0, 8) == [0; 4] {}
    assert_eq!(read32(&mut second, BAR0, 8), [0xde, 0xad, 0xbe, 0xef]);
}

#[test]
fn nonsense_from_a_client_ends_only_its_own_connection() {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    let lab = Lab::new();
    // A version message that claims to be shorter than its own header.
    let mut stream = UnixStream::connect(&lab.path).expect("connected");
    let mut message = [0u8; 64];
    message[2..4].copy_from_slice(&1u16.to_ne_bytes());
    message[4..8].copy_from_slice(&1u32.to_ne_bytes());
    stream.write_all(&message).expect("sent");
    drop(stream);
    lab.wait_for_resets(1);
    let mut client = lab.client();
    assert_eq!(read32(&mut client, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
    // Accesses outside every region are answered, and the server goes on.
    assert_eq!(read32(&mut client, BAR0, BAR0_BYTES), [0xff; 4]);
    client.region_write(BAR0, 3, &[0; 4]).expect("dropped");
    client.region_write(BAR0, u64::MAX, &[0; 4]).expect("dropped");
    assert_eq!(read32(&mut client, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
}

#[test]
fn a_socket_that_was_left_is_taken_over_and_what_is_anybodys_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let refused =
        |paths: &[PathBuf]| Sockets::at(paths.iter().cloned()).map(drop).unwrap_err().to_string();
    let served = std::os::unix::net::UnixListener::bind(at("served")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(at("left")).unwrap());
    std::fs::write(at("file"), "kept").unwrap();
    assert!(refused(&[at("served")]).contains("somebody serves"));
    assert!(refused(&[at("file")]).contains("no socket"));
    assert!(refused(&[at("new"), at("new")]).contains("two sockets"));
    assert!(refused(&[at("nowhere").join("new")]).contains("folder"));
    let made = Sockets::at([at("left"), at("new")].into_iter()).unwrap();
    assert!(!at("left").exists());
    std::fs::write(at("new"), "").unwrap();
    drop(made);
    assert!(!at("new").exists() && at("served").exists() && at("file").exists());
    drop(served);
}
