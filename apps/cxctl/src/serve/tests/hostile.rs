//! Clients that mean harm: none ends the server, and none reaches another port.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ferrocx_model::wire::SplitMix64;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::OFlags;
use vfio_bindings::bindings::vfio as abi;

use super::{BAR0, CONFIG, Lab, memory, read32, unsealed};
use crate::serve::function::MAX_WAITING_WRITES;

const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
const NO_REPLY: u32 = 1 << 4;
/// Reply and error in the flags of a header.
const REFUSED: u32 = 1 | 1 << 5;

/// A message of the protocol: header of 16 bytes, then `body`.
fn message(command: u16, size: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x11, 0x22];
    bytes.extend(command.to_ne_bytes());
    bytes.extend(size.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(body);
    bytes
}

/// An access to a region.
fn access(command: u16, flags: u32, region: u32, offset: u64, count: u32) -> Vec<u8> {
    let mut body = offset.to_ne_bytes().to_vec();
    body.extend(region.to_ne_bytes());
    body.extend(count.to_ne_bytes());
    message(command, 32, flags, &body)
}

fn connect(lab: &Lab) -> UnixStream {
    let stream = UnixStream::connect(&lab.path).expect("connected");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    stream
}

/// The flags of the next reply.
fn reply_flags(stream: &mut UnixStream) -> u32 {
    let mut header = [0; 16];
    stream.read_exact(&mut header).expect("a reply");
    u32::from_ne_bytes(header[8..12].try_into().expect("four bytes"))
}

#[test]
fn memory_that_its_owner_could_cut_off_is_not_mapped() {
    let lab = Lab::new();
    let mut client = lab.client();
    let (cuttable, short) = (unsealed(8192), memory(4096, 0, 1));
    let on_disk = tempfile::tempfile().expect("a file");
    on_disk.set_len(8192).expect("room");
    for (page, file) in (1..).zip([&cuttable, &short, &on_disk]) {
        // The client does not look at the flags of the reply.
        client.dma_map(0, page << 20, 8192, file.as_raw_fd()).expect("answered");
        let view = lab.side.memory();
        assert!(!view.is_mapped(page << 20, 1, false), "page {page}");
    }
    assert_eq!(read32(&mut client, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
}

#[test]
fn a_read_of_four_gigabytes_is_an_error() {
    let lab = Lab::new();
    let mut stream = connect(&lab);
    for (region, count) in [(BAR0, u32::MAX), (CONFIG, 4097), (CONFIG, 1 << 31)] {
        stream.write_all(&access(REGION_READ, 0, region, 0, count)).expect("sent");
        assert_eq!(reply_flags(&mut stream), REFUSED, "{count} bytes");
    }
    stream.write_all(&access(REGION_WRITE, 0, CONFIG, 0, 4097)).expect("sent");
    stream.write_all(&[0xff; 4097]).expect("sent");
    assert_eq!(reply_flags(&mut stream), REFUSED);
    drop(stream);
    assert_eq!(read32(&mut lab.client(), CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
}

#[test]
fn an_interrupt_that_would_block_is_not_taken() {
    let lab = Lab::new();
    let mut client = lab.client();
    let blocking = eventfd(u32::MAX, EventfdFlags::CLOEXEC).expect("an eventfd");
    // Full: another write of 1 would wait for a reader.
    let full = u64::MAX - 1 - u64::from(u32::MAX);
    rustix::io::write(&blocking, &full.to_ne_bytes()).expect("room");
    let (_reader, pipe) = std::io::pipe().expect("a pipe");
    let trigger = abi::VFIO_IRQ_SET_DATA_EVENTFD | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    for fd in [blocking.as_raw_fd(), pipe.as_raw_fd()] {
        client.set_irqs(abi::VFIO_PCI_MSIX_IRQ_INDEX, trigger, 5, 1, &[fd]).expect("answered");
        client.region_write(BAR0, 4, &[0; 4]).expect("written");
        while read32(&mut client, BAR0, 8) != [0xde, 0xad, 0xbe, 0xef] {}
        lab.side.set_be32(8, 0);
    }
    assert_eq!(lab.side.counts().interrupts, 0);
}

/// Fills an eventfd and has writes to it wait for a reader.
fn fill(fd: impl AsFd) {
    let flags = rustix::fs::fcntl_getfl(&fd).expect("flags");
    rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).expect("set");
    let _ = rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes());
    rustix::fs::fcntl_setfl(&fd, flags - OFlags::NONBLOCK).expect("cleared");
}

#[test]
fn an_interrupt_whose_owner_changes_its_mind_holds_nobody() {
    let lab = Lab::new();
    let trigger = abi::VFIO_IRQ_SET_DATA_EVENTFD | abi::VFIO_IRQ_SET_ACTION_TRIGGER;
    for is_racing in [false, true] {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let done = AtomicBool::new(false);
        let mut client = lab.client();
        client
            .set_irqs(abi::VFIO_PCI_MSIX_IRQ_INDEX, trigger, 5, 1, &[fd.as_raw_fd()])
            .expect("taken");
        fill(&fd);
        std::thread::scope(|scope| {
            let ends = Ends(&done);
            // Room at one moment and none at the next, so that a look before the write is in vain.
            scope.spawn(|| {
                while is_racing && !done.load(Ordering::Relaxed) {
                    rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK).expect("set");
                    let _ = rustix::io::read(&fd, &mut [0; 8]);
                    fill(&fd);
                }
            });
            for _ in 0..if is_racing { 2000 } else { 1 } {
                client.region_write(BAR0, 4, &[0; 4]).expect("written");
            }
            drop(client);
            let gone = Instant::now();
            let mut next = lab.client();
            assert_eq!(read32(&mut next, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
            next.region_write(BAR0, 4, &[0; 4]).expect("written");
            while read32(&mut next, BAR0, 8) != [0xde, 0xad, 0xbe, 0xef] {}
            assert!(gone.elapsed() < Duration::from_secs(5), "{:?}", gone.elapsed());
            drop(ends);
        });
    }
}

/// Ends another thread even when the test fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_client_that_writes_faster_than_the_device_reads_waits() {
    let lab = Lab::new();
    let mut stream = connect(&lab);
    let mut burst = Vec::new();
    for _ in 0..1000 {
        burst.extend(access(REGION_WRITE, NO_REPLY, BAR0, 4, 4));
        burst.extend([0; 4]);
    }
    for _ in 0..30 {
        stream.write_all(&burst).expect("sent");
        assert!(lab.side.waiting_writes() <= MAX_WAITING_WRITES);
    }
    stream.write_all(&access(REGION_READ, 0, CONFIG, 0, 4)).expect("sent");
    assert_eq!(reply_flags(&mut stream), 1, "an answer in the end");
    assert_eq!(lab.side.counts().bar_writes, 30_000);
}

/// Messages of any content, cut off anywhere.
#[test]
fn random_messages_end_no_server() {
    let lab = Lab::new();
    let mut rng = SplitMix64::new(0x5eed);
    let rounds: u64 =
        std::env::var("FERROCX_HOSTILE_CLIENTS").map_or(300, |n| n.parse().expect("a number"));
    for round in 0..rounds {
        let mut stream = connect(&lab);
        stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a limit");
        for _ in 0..rng.below(12) {
            let command = rng.below(17) as u16;
            let size = match rng.below(4) {
                0 => rng.next_u64() as u32,
                1 => rng.below(20) as u32,
                _ => 32,
            };
            let mut body: Vec<u8> = (0..rng.below(48)).map(|_| rng.next_u64() as u8).collect();
            // Small numbers in the fields of an access, most of the time.
            if body.len() >= 16 && rng.below(4) > 0 {
                body[..16].fill(0);
                body[0] = rng.next_u64() as u8 & 0xfc;
                body[8] = rng.below(11) as u8;
                body[12] = rng.below(17) as u8;
            }
            let flags = if rng.below(4) == 0 { rng.next_u64() as u32 } else { 0 };
            if stream.write_all(&message(command, size, flags, &body)).is_err() {
                break;
            }
        }
        drop(stream);
        assert!(lab.engine.wake().is_running(), "round {round}");
    }
    let mut client = lab.client();
    assert_eq!(read32(&mut client, CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
    assert_eq!(read32(&mut client, CONFIG, 4), [0, 0, 0x10, 0], "as after power-on");
}

/// A guest is killed while it uses the device: its memory and its interrupts are let go.
#[test]
fn a_client_that_dies_in_the_middle_of_a_message_leaves_nothing() {
    let lab = Lab::new();
    let file = memory(4096, 0, 1);
    let mut first = lab.client();
    first.dma_map(0, 1 << 20, 4096, file.as_raw_fd()).expect("mapped");
    drop(first);
    let mut stream = connect(&lab);
    stream.write_all(&access(REGION_WRITE, 0, BAR0, 4, 4)[..20]).expect("sent");
    drop(stream);
    lab.wait_for_resets(2);
    assert!(!lab.side.memory().is_mapped(1 << 20, 1, false));
    assert_eq!(read32(&mut lab.client(), CONFIG, 0), [0xb3, 0x15, 0x17, 0x10]);
}
