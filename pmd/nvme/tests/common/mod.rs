//! A small NVMe controller over a disk of memory, written from the specification's words and not
//! from the driver; and the clock, the notices and the bus between the two.
//!
//! Long file: one controller, which tests of two crates take in by its path.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ferrocx_bus::local::{DeviceSide, LocalConfig, LocalTransport, pair};
use ferrocx_bus::{
    Bar, BarClaim, BusError, DmaAccess, DmaLimits, DmaMapping, DmaSpace, Interrupts, Notice,
    PciIdentity, Transport,
};
use ferrocx_mempool::{Piece, Region, RegionConfig};
use ferrocx_nvme::{Config, Controller, Done, IoQueue, Op};

/// What goes wrong with the next completion of an I/O queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lie {
    /// The number of a command that is not under way.
    FreeCommand,
    /// A number beyond the queue.
    NoCommand,
    /// Another queue's.
    Queue,
    /// A head beyond the ring.
    Head,
    /// The same once more.
    Twice,
}

/// What a drive is like, and what it does wrong.
#[derive(Debug, Clone)]
pub struct Plan {
    /// PCI vendor and device.
    pub id: (u16, u16),
    pub cap: u64,
    pub firmware: u8,
    pub mdts: u8,
    pub oncs: u16,
    pub vwc: u8,
    pub sgls: u32,
    pub entry_sizes: [u8; 2],
    pub block_shift: u8,
    pub blocks: u64,
    /// Queue pairs that it grants.
    pub grants: u16,
    /// Commands with these first blocks end with these statuses.
    pub fails: Vec<(u64, u16)>,
    /// Write Zeroes and Dataset Management end with this status.
    pub lacks: Option<u16>,
    /// It follows version 2.0, and says these limits of a command, or refuses to: log2 of the pages
    /// of Write Zeroes, blocks of a range that is deallocated.
    pub limits: Option<Option<(u8, u32)>>,
    /// Commands with these first blocks do not end.
    pub hangs: Vec<u64>,
    /// Only Writes hang, and they do so after they were carried out.
    pub hangs_as_written: bool,
    /// After a reset nothing hangs any more.
    pub heals: bool,
    /// It aborts what it is told to.
    pub aborts: bool,
    pub lie: Option<Lie>,
    /// It does not get ready, or does not stop unless its function is reset, or not even then.
    pub never_ready: bool,
    /// Its registers read as ones for so many steps behind each switch and reset.
    pub mute: u32,
    /// Its status is fatal for so many looks before it is ready.
    pub slow_ready: u32,
    pub never_stops: bool,
    pub ignores_reset: bool,
    /// How long it says that its shutdown takes.
    pub rtd3e_us: u32,
    /// It completes what hangs when it is told to shut down.
    pub finishes: bool,
    /// Its shutdown never ends.
    pub never_shuts: bool,
    /// The admin command of this opcode is not answered.
    pub silent: Option<u8>,
    /// The admin command of this opcode fails.
    pub refuses: Option<u8>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            id: (0x1b36, 0x0010),
            // 64 entries, 2 s, stride 4, NVM.
            cap: 1 << 37 | 4 << 24 | 63,
            firmware: b'1',
            mdts: 2,
            oncs: 0x0c,
            vwc: 1,
            sgls: 1,
            entry_sizes: [0x66, 0x44],
            block_shift: 9,
            blocks: 4096,
            grants: 4,
            fails: Vec::new(),
            lacks: None,
            limits: None,
            hangs: Vec::new(),
            hangs_as_written: false,
            heals: false,
            aborts: true,
            lie: None,
            never_ready: false,
            mute: 0,
            slow_ready: 0,
            never_stops: false,
            rtd3e_us: 0,
            finishes: false,
            never_shuts: false,
            ignores_reset: false,
            silent: None,
            refuses: None,
        }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    base: u64,
    entries: u32,
    /// Submission: next to fetch. Completion: next to write.
    at: u32,
    /// What the doorbell says.
    doorbell: u32,
    /// Of completion queues: the phase of this pass.
    phase: bool,
    exists: bool,
}

/// A submitted command: what the tests look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub opcode: u8,
    pub by_sgl: bool,
    pub lba: u64,
    pub blocks: u32,
    pub flags: u32,
}

/// The controller.
#[derive(Debug)]
pub struct Fake {
    side: DeviceSide,
    pub plan: Plan,
    pub disk: Vec<u8>,
    sqs: Vec<Queue>,
    cqs: Vec<Queue>,
    /// Commands that hang: queue and number.
    hanging: Vec<(usize, u16)>,
    /// What it completed last, of I/O.
    last: Option<(usize, u16)>,
    pub seen: Vec<Seen>,
    pub shutdowns: u32,
    pub enables: u32,
    pub deleted: u32,
    pub flushes: u32,
    /// Resets of its function.
    pub resets: u32,
    /// Looks until it is ready, and until its registers can be read again.
    until_ready: u32,
    until_heard: u32,
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

impl Fake {
    fn new(side: DeviceSide, plan: Plan) -> Self {
        let disk = vec![0; (plan.blocks << plan.block_shift) as usize];
        let none = vec![Queue::default(); 16];
        let (sqs, cqs) = (none.clone(), none);
        let (seen, hanging) = (Vec::new(), Vec::new());
        let counts = (0, 0, 0, 0);
        let (shutdowns, enables, deleted, flushes) = counts;
        let fake = Self {
            side,
            plan,
            disk,
            sqs,
            cqs,
            hanging,
            last: None,
            seen,
            shutdowns,
            enables,
            deleted,
            flushes,
            resets: 0,
            until_ready: 0,
            until_heard: 0,
        };
        fake.publish();
        fake
    }

    fn set(&self, offset: u64, value: u32) {
        self.side.set_be32(offset, value.swap_bytes());
    }

    fn get(&self, offset: u64) -> u32 {
        self.side.get_be32(offset).swap_bytes()
    }

    fn publish(&self) {
        self.set(0, self.plan.cap as u32);
        self.set(4, (self.plan.cap >> 32) as u32);
        self.set(8, 0x0001_0400);
    }

    pub fn set_gone(&self) {
        self.side.set_gone(true);
    }

    pub fn set_fatal(&self) {
        self.set(0x1c, self.get(0x1c) | 2);
    }

    fn off(&mut self) {
        self.sqs.fill(Queue::default());
        self.cqs.fill(Queue::default());
        self.hanging.clear();
        self.until_ready = 0;
        if self.plan.heals {
            self.plan.hangs.clear();
        }
        self.set(0x1c, 0);
    }

    /// Does all that it was told to do.
    pub fn step(&mut self) {
        if self.until_heard > 0 {
            self.until_heard -= 1;
            self.side.set_gone(self.until_heard > 0);
        }
        if self.side.reset_requested() && !self.plan.ignores_reset {
            self.off();
            self.set(0x14, 0);
            (self.plan.never_stops, self.plan.never_ready, self.plan.silent) = (false, false, None);
            self.resets += 1;
            self.publish();
            self.side.reset_done();
            self.mute();
        }
        while let Some(write) = self.side.poll_write() {
            let value = match write.len_bytes {
                4 => u64::from((write.value as u32).swap_bytes()),
                _ => write.value.swap_bytes(),
            };
            self.written(write.offset, value);
        }
        if self.until_ready > 0 {
            self.until_ready -= 1;
            self.set(0x1c, if self.until_ready == 0 { 1 } else { 2 });
        }
        if self.get(0x1c) & 1 == 1 {
            for qid in 0..self.sqs.len() {
                self.run(qid);
            }
        }
    }

    /// Its registers cannot be read for a while.
    pub fn mute(&mut self) {
        self.until_heard = self.plan.mute;
        self.side.set_gone(self.until_heard > 0);
    }

    fn written(&mut self, offset: u64, value: u64) {
        match offset {
            0x14 => self.configured(value as u32),
            0x24 => self.set(0x24, value as u32),
            0x28 | 0x30 => {
                self.set(offset, value as u32);
                self.set(offset + 4, (value >> 32) as u32);
            }
            0x1000.. => {
                let stride = 4 << (self.plan.cap >> 32 & 0xf);
                let at = (offset - 0x1000) / stride;
                assert_eq!((offset - 0x1000) % stride, 0, "a doorbell between two");
                let queues = if at.is_multiple_of(2) { &mut self.sqs } else { &mut self.cqs };
                let queue = &mut queues[(at / 2) as usize];
                // A doorbell of no queue is an error that no driver hears of here.
                if queue.exists {
                    assert!((value as u32) < queue.entries, "a doorbell beyond the queue");
                    queue.doorbell = value as u32;
                }
            }
            _ => panic!("a write to {offset:#x}"),
        }
    }

    fn configured(&mut self, cc: u32) {
        let before = self.get(0x14);
        self.set(0x14, cc);
        if cc >> 14 & 3 == 1 && before >> 14 & 3 == 0 {
            self.shutdowns += 1;
            while self.plan.finishes && !self.hanging.is_empty() {
                self.let_go(0);
            }
            let state = if self.plan.never_shuts { 1 } else { 2 };
            self.set(0x1c, self.get(0x1c) & !0xc | state << 2);
        }
        match (before & 1, cc & 1) {
            (0, 1) if !self.plan.never_ready => {
                assert_eq!((cc >> 16 & 0xf, cc >> 20 & 0xf, cc >> 7 & 0xf), (6, 4, 0), "{cc:#x}");
                let aqa = self.get(0x24);
                let base = |at| u64::from(self.get(at)) | u64::from(self.get(at + 4)) << 32;
                let queue = |base, entries| Queue {
                    base,
                    entries,
                    phase: true,
                    exists: true,
                    ..Queue::default()
                };
                let (sq, cq) = (base(0x28), base(0x30));
                self.sqs[0] = queue(sq, (aqa & 0xfff) + 1);
                self.cqs[0] = queue(cq, (aqa >> 16 & 0xfff) + 1);
                self.enables += 1;
                self.until_ready = self.plan.slow_ready;
                self.set(0x1c, if self.until_ready == 0 { 1 } else { 2 });
            }
            (1, 0) if !self.plan.never_stops => self.off(),
            _ => return,
        }
        self.mute();
    }

    fn run(&mut self, qid: usize) {
        while self.sqs[qid].exists && self.sqs[qid].at != self.sqs[qid].doorbell {
            let queue = self.sqs[qid];
            let mut sqe = [0; 64];
            self.side.memory().read(queue.base + 64 * u64::from(queue.at), &mut sqe).unwrap();
            self.sqs[qid].at = (queue.at + 1) % queue.entries;
            let cid = (le32(&sqe, 0) >> 16) as u16;
            let ended = if qid == 0 { self.admin(&sqe) } else { self.io(&sqe) };
            match ended {
                Some((status, result)) => self.complete(qid, cid, status, result),
                None => self.hanging.push((qid, cid)),
            }
        }
    }

    /// Completes a command that hangs.
    pub fn let_go(&mut self, status: u16) {
        let (qid, cid) = self.hanging.pop().expect("one hangs");
        self.complete(qid, cid, status, 0);
    }

    /// Completes once more, well, what it completed last.
    pub fn repeat(&mut self) {
        let (qid, cid) = self.last.expect("one was completed");
        self.complete(qid, cid, 0, 0);
    }

    fn complete(&mut self, qid: usize, cid: u16, status: u16, result: u32) {
        self.last = if qid == 0 { self.last } else { Some((qid, cid)) };
        let lie = if qid == 0 { None } else { self.plan.lie.take() };
        let (head, entries) = (self.sqs[qid].at, self.sqs[qid].entries);
        let (mut says_cid, mut says_qid, mut says_head) = (cid, qid as u32, head);
        match lie {
            Some(Lie::FreeCommand) => says_cid = (entries - 2) as u16,
            Some(Lie::NoCommand) => says_cid = 0x7fff,
            Some(Lie::Queue) => says_qid += 1,
            Some(Lie::Head) => says_head = entries,
            Some(Lie::Twice) | None => {}
        }
        for _ in 0..=usize::from(lie == Some(Lie::Twice)) {
            let queue = &mut self.cqs[qid];
            let mut cqe = [0; 16];
            cqe[..4].copy_from_slice(&result.to_le_bytes());
            cqe[8..12].copy_from_slice(&(says_qid << 16 | says_head).to_le_bytes());
            let word = u32::from(status) << 17 | u32::from(queue.phase) << 16;
            cqe[12..].copy_from_slice(&(word | u32::from(says_cid)).to_le_bytes());
            let at = queue.base + 16 * u64::from(queue.at);
            queue.at = (queue.at + 1) % queue.entries;
            queue.phase ^= queue.at == 0;
            assert_ne!(queue.at, queue.doorbell, "completion queue {qid} is full");
            let memory = self.side.memory();
            memory.write(at, &cqe[..12]).unwrap();
            memory.write_release(at + 12, &cqe[12..]).unwrap();
        }
    }

    fn admin(&mut self, sqe: &[u8; 64]) -> Option<(u16, u32)> {
        let (opcode, prp) = (sqe[0], le64(sqe, 24));
        let (cdw10, cdw11) = (le32(sqe, 40), le32(sqe, 44));
        if self.plan.silent == Some(opcode) {
            return None;
        }
        if self.plan.refuses == Some(opcode) {
            return Some((0x0002, 0));
        }
        let (qid, entries) = ((cdw10 & 0xffff) as usize, (cdw10 >> 16) + 1);
        let made = Queue { base: prp, entries, phase: true, exists: true, ..Queue::default() };
        match opcode {
            0x05 | 0x01 => {
                assert!(qid >= 1 && qid <= usize::from(self.plan.grants), "queue {qid}");
                assert!(entries <= (self.plan.cap & 0xffff) as u32 + 1 && cdw11 & 1 == 1);
                let is_sq = opcode == 0x01;
                if is_sq {
                    assert_eq!(cdw11 >> 16, qid as u32, "its own completion queue");
                    assert!(self.cqs[qid].exists);
                }
                let queues = if is_sq { &mut self.sqs } else { &mut self.cqs };
                if queues[qid].exists {
                    return Some((0x101, 0));
                }
                queues[qid] = made;
            }
            0x00 | 0x04 => {
                let queues = if opcode == 0 { &mut self.sqs } else { &mut self.cqs };
                if !queues[qid].exists {
                    return Some((0x101, 0));
                }
                queues[qid] = Queue::default();
                self.deleted += 1;
                self.hanging.retain(|(queue, _)| *queue != qid);
            }
            0x06 => {
                let page = match cdw10 {
                    0 => self.namespace(),
                    1 => self.controller(),
                    _ => match self.plan.limits.expect("of version 2.0 alone") {
                        Some(limits) => Self::nvm_controller(limits),
                        None => return Some((0x4002, 0)),
                    },
                };
                assert!(prp.is_multiple_of(4096));
                self.side.memory().write(prp, &page).unwrap();
            }
            0x08 => {
                let victim = ((cdw10 & 0xffff) as usize, (cdw10 >> 16) as u16);
                let found = self.hanging.iter().position(|it| *it == victim);
                let Some(at) = found.filter(|_| self.plan.aborts) else { return Some((0, 1)) };
                self.hanging.remove(at);
                self.complete(victim.0, victim.1, 0x07, 0);
            }
            0x09 => {
                assert_eq!(cdw10, 7);
                let granted = u32::from(self.plan.grants - 1);
                return Some((0, granted << 16 | granted));
            }
            _ => panic!("admin command {opcode:#x}"),
        }
        Some((0, 0))
    }

    fn controller(&self) -> [u8; 4096] {
        let mut page = [0; 4096];
        page[..2].copy_from_slice(&0x1b36_u16.to_le_bytes());
        page[4..24].copy_from_slice(b"FAKE                ");
        page[64] = self.plan.firmware;
        page[77] = self.plan.mdts;
        page[82] = if self.plan.limits.is_some() { 2 } else { 1 };
        page[88..92].copy_from_slice(&self.plan.rtd3e_us.to_le_bytes());
        page[512..514].copy_from_slice(&self.plan.entry_sizes);
        page[516] = 2;
        page[520..522].copy_from_slice(&self.plan.oncs.to_le_bytes());
        page[525] = self.plan.vwc;
        page[536..540].copy_from_slice(&self.plan.sgls.to_le_bytes());
        page
    }

    fn nvm_controller((wzsl, dmrsl): (u8, u32)) -> [u8; 4096] {
        let mut page = [0; 4096];
        page[1] = wzsl;
        page[4..8].copy_from_slice(&dmrsl.to_le_bytes());
        page
    }

    fn namespace(&self) -> [u8; 4096] {
        let mut page = [0; 4096];
        page[..8].copy_from_slice(&self.plan.blocks.to_le_bytes());
        page[130] = self.plan.block_shift;
        page
    }

    fn io(&mut self, sqe: &[u8; 64]) -> Option<(u16, u32)> {
        let (opcode, lba, cdw12) = (sqe[0], le64(sqe, 40), le32(sqe, 48));
        assert_eq!(le32(sqe, 4), 1, "the namespace");
        let by_sgl = sqe[1] == 0x40;
        let blocks = (cdw12 & 0xffff) + 1;
        self.seen.push(Seen { opcode, by_sgl, lba, blocks, flags: cdw12 & !0xffff });
        let hangs = self.plan.hangs.contains(&lba);
        if hangs && !self.plan.hangs_as_written {
            return None;
        }
        if let Some((_, status)) = self.plan.fails.iter().find(|(at, _)| *at == lba) {
            return Some((*status, 0));
        }
        if let Some(status) = self.plan.lacks.filter(|_| matches!(opcode, 0x08 | 0x09)) {
            return Some((status, 0));
        }
        let shift = self.plan.block_shift;
        let (from, len) = ((lba << shift) as usize, (blocks as usize) << shift);
        match opcode {
            0x00 => self.flushes += 1,
            0x01 | 0x02 => {
                assert!(lba + u64::from(blocks) <= self.plan.blocks);
                assert!(self.plan.mdts == 0 || len <= 4096 << self.plan.mdts, "{len} bytes");
                let mut at = from;
                for (iova, len) in self.places(sqe, len) {
                    let part = &mut self.disk[at..at + len];
                    let memory = self.side.memory();
                    match opcode {
                        0x01 => memory.read(iova, part).unwrap(),
                        _ => memory.write(iova, part).unwrap(),
                    }
                    at += len;
                }
            }
            0x08 => self.disk[from..from + len].fill(0),
            0x09 => {
                assert_eq!((le32(sqe, 40), le32(sqe, 44)), (0, 4), "one range, deallocated");
                let mut range = [0; 16];
                self.side.memory().read(le64(sqe, 24), &mut range).unwrap();
                let (first, count) = (le64(&range, 8), le32(&range, 4));
                if self.plan.limits.flatten().is_some_and(|(_, most)| count > most) {
                    return Some((0x183, 0));
                }
                let (from, len) = (first << shift, u64::from(count) << shift);
                self.disk[from as usize..(from + len) as usize].fill(0);
            }
            _ => panic!("command {opcode:#x}"),
        }
        (!hangs || opcode != 0x01).then_some((0, 0))
    }

    /// Where the data of a command are, piece by piece.
    fn places(&self, sqe: &[u8; 64], len: usize) -> Vec<(u64, usize)> {
        let (first, second) = (le64(sqe, 24), le64(sqe, 32));
        if sqe[1] == 0x40 {
            assert!(self.plan.sgls & 3 != 0, "an SGL for a drive without");
            assert_eq!(second, len as u64, "a data block of all bytes");
            return vec![(first, len)];
        }
        assert_eq!((sqe[1], first % 4), (0, 0));
        let head = len.min(4096 - (first % 4096) as usize);
        let (mut places, mut left) = (vec![(first, head)], len - head);
        let mut page = |iova: u64, left: &mut usize| {
            assert!(iova.is_multiple_of(4096), "{iova:#x} is inside a page");
            let part = (*left).min(4096);
            places.push((iova, part));
            *left -= part;
        };
        if left > 0 && left <= 4096 {
            page(second, &mut left);
        }
        let mut entry = second;
        while left > 0 {
            assert!(entry / 4096 == second / 4096, "a list longer than its page");
            let mut bytes = [0; 8];
            self.side.memory().read(entry, &mut bytes).unwrap();
            page(u64::from_le_bytes(bytes), &mut left);
            entry += 8;
        }
        places
    }
}

/// A bus that may be unable to end the drive's access.
#[derive(Debug)]
struct Space {
    inner: Arc<dyn DmaSpace>,
    is_stuck: Arc<AtomicBool>,
}

impl DmaSpace for Space {
    fn map(&self, region: Arc<Region>, access: DmaAccess) -> Result<Arc<DmaMapping>, BusError> {
        self.inner.map(region, access)
    }

    fn unmap_all(&self) -> Result<(), BusError> {
        match self.is_stuck.load(Ordering::Acquire) {
            true => Err(BusError::SpaceShared { name: "fake".into(), others: 1 }),
            false => self.inner.unmap_all(),
        }
    }

    fn limits(&self) -> DmaLimits {
        self.inner.limits()
    }
}

/// A transport with a clock and notices of its own, which steps the controller.
#[derive(Debug)]
pub struct Between {
    inner: Arc<LocalTransport>,
    fake: Arc<Mutex<Fake>>,
    now: Mutex<Instant>,
    pub notice: Mutex<Option<Notice>>,
    /// A queue whose core goes on while the controller waits: it wants one flush.
    pub core: Mutex<Option<IoQueue>>,
    /// What it got meanwhile, if it is one that polls.
    pub polled: Mutex<Option<Vec<Done>>>,
    /// Nobody can end the drive's access to memory.
    pub is_stuck: Arc<AtomicBool>,
}

impl Between {
    pub fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }
}

impl Transport for Between {
    fn bar(&self, claim: BarClaim) -> Arc<dyn Bar> {
        self.inner.bar(claim)
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::new(Space { inner: self.inner.dma(), is_stuck: Arc::clone(&self.is_stuck) })
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        self.inner.interrupts()
    }

    fn identity(&self) -> &PciIdentity {
        self.inner.identity()
    }

    fn name(&self) -> &'static str {
        "fake"
    }

    fn reset(&self) -> Result<(), BusError> {
        self.inner.reset()
    }

    fn reset_complete(&self) -> bool {
        self.inner.reset_complete()
    }

    fn notice(&self) -> Option<Notice> {
        *self.notice.lock().unwrap()
    }

    fn relax(&self) {
        if let Some(queue) = &mut *self.core.lock().unwrap() {
            if let Some(polled) = &mut *self.polled.lock().unwrap() {
                polled.extend(std::iter::from_fn(|| queue.poll()));
            }
            if queue.under_way() == 0 {
                let _ = queue.push(9, Op::Flush);
            }
            queue.ring();
        }
        self.fake.lock().unwrap_or_else(PoisonError::into_inner).step();
        self.pass(Duration::from_millis(1));
    }

    fn now(&self) -> Instant {
        *self.now.lock().unwrap()
    }
}

/// A drive and its driver.
pub struct World {
    pub fake: Arc<Mutex<Fake>>,
    pub transport: Arc<Between>,
    pub memory: Arc<Region>,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let mut config = LocalConfig::default();
        (config.identity.vendor, config.identity.device) = plan.id;
        let (inner, side) = pair(config).unwrap();
        let fake = Arc::new(Mutex::new(Fake::new(side, plan)));
        let (now, notice, core) = (Mutex::new(Instant::now()), Mutex::default(), Mutex::default());
        let (fake_too, is_stuck) = (Arc::clone(&fake), Arc::default());
        let polled = Mutex::default();
        let transport = Between { inner, fake: fake_too, now, notice, core, polled, is_stuck };
        let transport = Arc::new(transport);
        let memory = Region::alloc(&RegionConfig::heap(64 << 10)).unwrap();
        Self { fake, transport, memory }
    }

    pub fn fake(&self) -> MutexGuard<'_, Fake> {
        self.fake.lock().unwrap()
    }

    pub fn open_as(&self, config: &Config) -> Result<Controller, ferrocx_nvme::NvmeError> {
        Controller::open(Arc::clone(&self.transport) as Arc<dyn Transport>, config)
    }

    pub fn open(&self) -> Controller {
        let timeout = Duration::from_secs(5);
        self.open_as(&Config { entries: 8, timeout, ..Config::default() }).unwrap()
    }

    pub fn queue(&self, drive: &mut Controller) -> IoQueue {
        drive.queue(1, &[Arc::clone(&self.memory)]).unwrap()
    }

    pub fn piece(&self, offset: usize, len_bytes: usize) -> Piece {
        let address = self.memory.base().as_ptr().addr() + offset;
        Piece { address, len_bytes, iova: 0xdead, lkey_be: 0, domain: 0, is_foreign: false }
    }

    /// Lets the drive and its driver go on for a while; what has ended.
    pub fn run(&self, drive: &mut Controller, queue: &mut IoQueue, time: Duration) -> Vec<Done> {
        let mut done = Vec::new();
        for _ in 0..time.as_millis() / 10 {
            self.transport.pass(Duration::from_millis(10));
            queue.tick(self.transport.now());
            queue.ring();
            self.fake().step();
            done.extend(std::iter::from_fn(|| queue.poll()));
            queue.ring();
            drive.tend();
        }
        done
    }

    pub fn a_moment(&self, drive: &mut Controller, queue: &mut IoQueue) -> Vec<Done> {
        self.run(drive, queue, Duration::from_millis(100))
    }
}
