//! A host of literal bytes: it drives the model through registers, a command queue and memory only.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]
#![allow(clippy::cast_possible_truncation, reason = "test data")]

pub mod objects;
pub mod roce;

use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{Bar, BarClaim, DmaAccess, DmaBuf, DmaHeap, DmaSpace, Transport};
use ferrocx_mempool::{Region, RegionConfig};
use ferrocx_model::{Nic, NicConfig};
use rustix::time::{ClockId, clock_gettime};

/// Time that this thread has spent on a processor.
pub fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Bytes of one mailbox block and the distance between two here.
const BLOCK_BYTES: usize = 0x240;
const BLOCK_STEP: usize = 1024;
/// Blocks that the host keeps for inputs and for outputs: each.
const BLOCKS: usize = 256;

/// Command register offsets, from the manual.
pub const CMDQ_HI: u64 = 0x10;
pub const CMDQ_LO: u64 = 0x14;
pub const DOORBELL: u64 = 0x18;
pub const HEALTH_SYND: u64 = 0x23c;

/// What came back from a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// Delivery status.
    pub delivery: u8,
    /// The output; its first byte is the status.
    pub output: Vec<u8>,
}

impl Done {
    /// Output status.
    pub fn status(&self) -> u8 {
        self.output[0]
    }

    /// A big-endian word of the output.
    pub fn word(&self, offset: usize) -> u32 {
        be32(&self.output, offset)
    }
}

pub fn be32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

/// A driver's side of one device, and the device.
pub struct Host {
    pub nic: Nic,
    pub transport: Arc<LocalTransport>,
    pub bar: Arc<dyn Bar>,
    pub heap: DmaHeap,
    pub queue: DmaBuf,
    inputs: DmaBuf,
    outputs: DmaBuf,
    pub now_ns: u64,
    token: u8,
    /// Pages given to the device, kept alive.
    pub given: Vec<DmaBuf>,
    /// Rings of objects created by the helpers, kept alive.
    pub rings: Vec<DmaBuf>,
}

impl Host {
    pub fn new(config: NicConfig) -> Self {
        Self::with_seed(config, 1)
    }

    pub fn with_seed(config: NicConfig, seed: u64) -> Self {
        let local = LocalConfig { seed, vectors: 8, ..LocalConfig::default() };
        let (transport, side) = pair(local).expect("in-process device");
        let heap = DmaHeap::new(map(&*transport.dma(), 8 << 20, DmaAccess::ReadWrite));
        let buf = |len| heap.alloc(len, 4096).expect("room");
        let (queue, inputs, outputs) =
            (buf(4096), buf(BLOCKS * BLOCK_STEP), buf(BLOCKS * BLOCK_STEP));
        // SAFETY: the tests are the only driver, and the memory of this device is only copied.
        let bar = transport.bar(unsafe { BarClaim::new() });
        let nic = Nic::new(side, config);
        let (given, rings) = (Vec::new(), Vec::new());
        Self {
            nic,
            transport,
            bar,
            heap,
            queue,
            inputs,
            outputs,
            now_ns: 0,
            token: 0,
            given,
            rings,
        }
    }

    /// A device that has been through bring-up.
    pub fn up() -> Self {
        Self::up_with(NicConfig::default())
    }

    pub fn up_with(config: NicConfig) -> Self {
        let mut host = Self::new(config);
        host.set_queue();
        host.bring_up();
        host
    }

    /// Writes the command queue's address: high half first, then the low half commits.
    pub fn set_queue(&mut self) {
        let at = self.queue.iova();
        self.bar.write_be32(CMDQ_HI, (at >> 32) as u32);
        self.bar.write_be32(CMDQ_LO, at as u32);
        self.step();
    }

    /// ENABLE_HCA, ISSI, boot pages, init pages, INIT_HCA.
    pub fn bring_up(&mut self) {
        self.ok(&words(&[0x0104_0000, 0, 0, 0]), 0xc);
        self.ok(&words(&[0x010b_0000, 0, 1, 0]), 0x10);
        for stage in [1, 2] {
            let pages = self.ok(&words(&[0x0107_0000, stage, 0, 0]), 0x10).word(0xc);
            self.give_pages(pages as usize);
        }
        self.ok(&words(&[0x0102_0000, 0, 0, 0]), 0x10);
    }

    /// MANAGE_PAGES, give, with fresh pages.
    pub fn give_pages(&mut self, count: usize) -> Done {
        let pages: Vec<DmaBuf> =
            (0..count).map(|_| self.heap.alloc(4096, 4096).expect("room")).collect();
        let mut input = words(&[0x0108_0000, 1, 0, count as u32]);
        input.extend(pages.iter().flat_map(|page| page.iova().to_be_bytes()));
        self.given.extend(pages);
        self.ok(&input, 0x10)
    }

    /// A ring that stays alive with the host.
    pub fn ring(&mut self, len_bytes: usize) -> u64 {
        let ring = self.heap.alloc(len_bytes, 4096).expect("room");
        let at = ring.iova();
        self.rings.push(ring);
        at
    }

    pub fn step(&mut self) -> bool {
        self.now_ns += 1000;
        self.nic.step(self.now_ns)
    }

    /// A command that must succeed.
    #[track_caller]
    pub fn ok(&mut self, input: &[u8], output_len: usize) -> Done {
        let done = self.command(input, output_len);
        let log = self.nic.log().last();
        assert_eq!((done.delivery, done.status()), (0, 0), "refused: {log:?}, input {input:02x?}");
        done
    }

    /// A command that must be refused with `status`; returns the name of the wrong field.
    #[track_caller]
    pub fn refused(&mut self, input: &[u8], status: u8) -> &'static str {
        let before = self.nic.log().total();
        let done = self.command(input, 0x10);
        let log = self.nic.log().last();
        assert_eq!((done.delivery, done.status()), (0, status), "last refusal: {log:?}");
        assert_ne!(done.word(4), 0, "a refusal has a syndrome");
        assert_eq!(self.nic.log().total(), before + 1, "a refusal is logged once");
        log.expect("logged").field
    }

    /// Runs a command in slot 0 to its end.
    #[track_caller]
    pub fn command(&mut self, input: &[u8], output_len: usize) -> Done {
        self.post(0, input, output_len);
        self.ring_bell(1);
        self.step();
        self.take(0, output_len).expect("the command completes in the step that sees it")
    }

    /// Writes entry and input blocks of a command; does not ring.
    pub fn post(&mut self, slot: usize, input: &[u8], output_len: usize) {
        self.token = self.token.wrapping_add(1).max(1);
        let rest = input.get(16..).unwrap_or(&[]);
        self.write_chain(&self.inputs, rest.len(), rest);
        self.write_chain(&self.outputs, output_len.saturating_sub(16), &[]);
        let mut entry = [0_u8; 64];
        entry[0] = 7;
        entry[4..8].copy_from_slice(&(input.len() as u32).to_be_bytes());
        if input.len() > 16 {
            entry[8..16].copy_from_slice(&self.inputs.iova().to_be_bytes());
        }
        let inline = input.len().min(16);
        entry[16..16 + inline].copy_from_slice(&input[..inline]);
        // Output that the device must overwrite.
        entry[32..48].fill(0xa5);
        if output_len > 16 {
            entry[48..56].copy_from_slice(&self.outputs.iova().to_be_bytes());
        }
        entry[56..60].copy_from_slice(&(output_len as u32).to_be_bytes());
        entry[60] = self.token;
        entry[63] = 1;
        self.queue.copy_in(slot * 64, &entry);
    }

    fn write_chain(&self, blocks: &DmaBuf, len: usize, data: &[u8]) {
        for number in 0..len.div_ceil(512) {
            let mut block = [0_u8; BLOCK_BYTES];
            let chunk = data.get(number * 512..).unwrap_or(&[]);
            let chunk = &chunk[..chunk.len().min(512)];
            block[..chunk.len()].copy_from_slice(chunk);
            // Always a next pointer, also behind the last block: the length ends the chain.
            let next = blocks.iova() + ((number + 1) * BLOCK_STEP) as u64;
            block[0x230..0x238].copy_from_slice(&next.to_be_bytes());
            block[0x238..0x23c].copy_from_slice(&(number as u32).to_be_bytes());
            block[0x23d] = self.token;
            blocks.copy_in(number * BLOCK_STEP, &block);
        }
    }

    /// Changes bytes of the entry in a slot, of an input block, or of an output block.
    pub fn poke_entry(&mut self, slot: usize, offset: usize, bytes: &[u8]) {
        self.queue.copy_in(slot * 64 + offset, bytes);
    }

    pub fn poke_input(&mut self, block: usize, offset: usize, bytes: &[u8]) {
        self.inputs.copy_in(block * BLOCK_STEP + offset, bytes);
    }

    pub fn poke_output(&mut self, block: usize, offset: usize, bytes: &[u8]) {
        self.outputs.copy_in(block * BLOCK_STEP + offset, bytes);
    }

    pub fn ring_bell(&mut self, vector: u32) {
        self.bar.write_be32(DOORBELL, vector);
    }

    /// The result of a slot, if the device has given it back.
    pub fn take(&mut self, slot: usize, output_len: usize) -> Option<Done> {
        let last = self.queue.load_acquire_be32(slot * 64 + 60);
        if last & 1 != 0 {
            return None;
        }
        let mut output = vec![0; output_len.max(16)];
        self.queue.copy_out(slot * 64 + 32, &mut output[..16]);
        for (number, chunk) in output[16..].chunks_mut(512).enumerate() {
            self.outputs.copy_out(number * BLOCK_STEP, chunk);
        }
        Some(Done { delivery: (last >> 1 & 0x7f) as u8, output })
    }
}

/// Big-endian words as bytes.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// An input of `len` zero bytes with some words set.
pub fn input(len: usize, set: &[(usize, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; len];
    for (offset, word) in set {
        let old = be32(&bytes, *offset);
        bytes[*offset..offset + 4].copy_from_slice(&(old | word).to_be_bytes());
    }
    bytes
}

/// Maps heap memory for the device.
pub fn map(
    dma: &dyn DmaSpace,
    len_bytes: usize,
    access: DmaAccess,
) -> Arc<ferrocx_bus::DmaMapping> {
    dma.map(region(len_bytes), access).expect("mapping")
}

/// Heap memory.
pub fn region(len_bytes: usize) -> Arc<Region> {
    Region::alloc(&RegionConfig::heap(len_bytes)).expect("heap memory")
}
