//! Judges the driver on a drive that strangers made. **What was on the drive is lost.**
//!
//! ```text
//! nvme_drive ADDRESS        write, read, zero and deallocate, by SGLs and by lists of pages
//! nvme_drive ADDRESS late   each command takes longer than it may: it must end, the drive be reset
//! ```
//!
//! Each wrong answer is a panic. `scripts/vm-lab run nvmf-drive` runs it in a guest.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrocx_mempool::{Piece, Region, RegionConfig};
use ferrocx_nvme::{Config, Controller, Done, Failure, Health, IoQueue, Op};

/// Bytes of memory, and of the disk that are written.
const LEN: usize = 4 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [address] => {
            for use_sgl in [true, false] {
                verify(address, use_sgl);
            }
        }
        [address, "late"] => late(address),
        _ => panic!("usage: nvme_drive ADDRESS [late]"),
    }
}

/// An open drive with a queue over some memory.
struct Opened {
    drive: Controller,
    queue: IoQueue,
    memory: Arc<Region>,
}

impl Opened {
    fn new(address: &str, config: &Config) -> Self {
        let mut drive = Controller::open_vfio(address, config).expect("the drive opens");
        println!("{:?}", drive.info());
        let config = RegionConfig { len_bytes: LEN, ..RegionConfig::default() };
        let memory = Region::alloc(&config).expect("memory");
        let queue = drive.queue(1, &[Arc::clone(&memory)]).expect("a queue");
        println!("{:?}", queue.namespace());
        Self { drive, queue, memory }
    }

    fn piece(&self, offset: usize, len_bytes: usize) -> Piece {
        let address = self.memory.base().as_ptr().addr() + offset;
        Piece { address, len_bytes, iova: 0, lkey_be: 0, domain: 0, is_foreign: false }
    }

    /// Waits until everything that was pushed has ended.
    fn finish(&mut self) -> Vec<Done> {
        let (begun, mut done) = (Instant::now(), Vec::new());
        while self.queue.under_way() > 0 {
            assert!(begun.elapsed() < Duration::from_secs(60), "commands do not end");
            self.queue.ring();
            done.extend(std::iter::from_fn(|| self.queue.poll()));
            self.queue.ring();
            self.queue.tick(Instant::now());
            assert_eq!(self.drive.tend(), Health::Ready);
        }
        done
    }

    /// Waits until everything has ended, well.
    fn finish_well(&mut self) {
        for done in self.finish() {
            assert_eq!(done.result, Ok(()), "request {}", done.token);
        }
    }
}

fn verify(address: &str, use_sgl: bool) {
    let mut it = Opened::new(address, &Config { use_sgl, ..Config::default() });
    let block = 1_usize << it.queue.namespace().block_shift;
    let mut disk: Vec<u8> = (0..LEN).map(|at| (at / 3) as u8 ^ (at >> 11) as u8).collect();
    it.memory.copy_in(0, &disk).expect("in range");
    // Of all lengths, most of them not at the start of a page.
    let (mut at, mut token) = (0, 0);
    while at < LEN {
        let len = (1 + token as usize * 37 % 300) * block;
        let len = len.min(LEN - at);
        let lba = (at / block) as u64;
        let write = Op::Write { lba, from: it.piece(at, len), is_durable: token % 8 == 0 };
        it.queue.push(token, write).expect("room");
        (at, token) = (at + len, token + 1);
    }
    it.finish_well();
    println!("{token} writes, by SGLs: {}", use_sgl && it.drive.info().has_sgl);
    let (first, few) = (1000 * block, 600 * block);
    let zero = Op::Zero { lba: 1000, blocks: 600, may_deallocate: false };
    it.queue.push(1, zero).expect("Write Zeroes");
    disk[first..first + few].fill(0);
    it.queue.push(2, Op::Flush).expect("Flush");
    it.queue.push(3, Op::Deallocate { lba: 4000, blocks: 8 }).expect("Dataset Management");
    it.finish_well();
    it.memory.fill(0, LEN, 0xa5).expect("in range");
    let each = 512 << 10;
    for (token, at) in (0..LEN).step_by(each).enumerate() {
        let op = Op::Read { lba: (at / block) as u64, to: it.piece(at, each) };
        it.queue.push(token as u64, op).expect("room");
    }
    it.finish_well();
    let mut found = vec![0; LEN];
    it.memory.copy_out(0, &mut found).expect("in range");
    // What was deallocated may be anything.
    let any = 4000 * block..4008 * block;
    let differs = |at: &usize| found[*at] != disk[*at] && !any.contains(at);
    assert_eq!((0..LEN).find(differs), None, "the first byte that differs");
    println!("read back, zeroed, deallocated: right");
}

fn late(address: &str) {
    let patience = Duration::from_millis(500);
    let timeout = Duration::from_secs(2);
    let mut it = Opened::new(address, &Config { timeout, patience, ..Config::default() });
    for round in 1..=2 {
        let begun = Instant::now();
        it.queue.push(round, Op::Read { lba: 0, to: it.piece(0, 4096) }).expect("room");
        assert_eq!(it.finish(), [Done { token: round, result: Err(Failure::TimedOut) }]);
        println!("ended after {:?}: {:?}", begun.elapsed(), it.drive.counts());
        // The queue is made again once its core has seen the reset.
        while it.queue.push(9, Op::Flush).is_err() {
            assert!(it.queue.poll().is_none());
            assert_eq!(it.drive.tend(), Health::Ready);
            assert!(begun.elapsed() < Duration::from_secs(60), "the drive does not come back");
        }
        let ended = it.finish();
        println!("a flush: {:?}", ended[0].result);
    }
    assert!(it.drive.counts().resets >= 2);
}
