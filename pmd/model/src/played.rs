//! A device that stands still, and the device's end of its queues played by a test.
//!
//! A bench counts the driver's instructions alone, and a test wants completions that no device
//! would write. Both open a real device on a [`Still`] model: it carries out commands, but loses
//! every send doorbell, so no request is executed. The completions are then written by the caller,
//! into the memory and at the index that the model's own contexts name.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocx_bus::local::{LocalConfig, LocalTransport, pair};
use ferrocx_bus::{BusError, DoorbellKind, PciIdentity};
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, ErrCqe};
use ferrocx_prm::layout::Part;
use ferrocx_prm::syndrome::CqeSyndrome;
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, CompletionMode, Ctrl, DS_BYTES, DS_PER_BLOCK};

use crate::bar::uar::lose_doorbells;
use crate::objects::QueueMemory;
use crate::{Nic, NicConfig};

/// Device time of one step.
const STEP_NS: u64 = 1000;

/// A queue that sends, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// A send queue.
    Sq(u32),
    /// A queue pair.
    Qp(u32),
}

/// A request that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// Its first block, modulo 2^16.
    pub wqe_index: u16,
    /// Whether it asks for a completion.
    pub is_signaled: bool,
}

/// Where a send queue lies: its memory, the first byte of the ring in it, log2 of the blocks, the
/// address of its doorbell record, its completion queue.
struct Place<'a> {
    memory: &'a QueueMemory,
    start: u64,
    log_blocks: u32,
    record: u64,
    cqn: u32,
}

/// The counter of a doorbell record or a request: low 16 bits.
fn low16(value: u32) -> u16 {
    let [.., high, low] = value.to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// What a test may play of the device.
///
/// # Panics
///
/// All of these, for a queue that does not exist, and for memory that is not mapped.
impl Nic {
    fn place(&self, of: Sender) -> Place<'_> {
        let objects = &self.state().objects;
        match of {
            Sender::Sq(sqn) => {
                let sq = objects.sqs.get(sqn).expect("a send queue");
                let (memory, log_blocks) = (&sq.wq.memory, sq.wq.log_size);
                Place { memory, start: 0, log_blocks, record: sq.wq.dbr_addr, cqn: sq.cqn }
            }
            Sender::Qp(qpn) => {
                let qp = objects.qps.get(qpn).expect("a queue pair");
                Place {
                    memory: &qp.memory,
                    start: qp.sq_at,
                    log_blocks: qp.log_sq_size.expect("a send queue"),
                    record: qp.dbr_addr,
                    cqn: qp.context.cqn_snd(),
                }
            }
        }
    }

    /// A block of a send ring, as the device reads it.
    #[must_use]
    pub fn send_block(&self, of: Sender, index: u16) -> [u8; BASIC_BLOCK_BYTES] {
        let place = self.place(of);
        let at = u64::from(index) & ((1 << place.log_blocks) - 1);
        let mut block = [0; BASIC_BLOCK_BYTES];
        let iova = place.memory.locate(place.start + at * BASIC_BLOCK_BYTES as u64);
        self.side().memory().read(iova, &mut block).expect("the ring is mapped");
        block
    }

    /// The requests from block `from` on, as far as the doorbell record covers them, and the block
    /// behind them.
    #[must_use]
    pub fn posted(&self, of: Sender, from: u16) -> (Vec<Posted>, u16) {
        let record = self.place(of).record + 4;
        let end = self.side().memory().load_acquire_be32(record).expect("the record is mapped");
        let end = low16(end);
        let (mut found, mut at) = (Vec::new(), from);
        while at != end {
            let ctrl = Ctrl::load(&self.send_block(of, at)[..DS_BYTES]);
            found
                .push(Posted { wqe_index: at, is_signaled: ctrl.ce() >= CompletionMode::ALWAYS.0 });
            at = at.wrapping_add(low16(ctrl.ds().div_ceil(DS_PER_BLOCK).max(1)));
        }
        (found, end)
    }

    /// Completes a request, and with it all before.
    pub fn play_end(&mut self, of: Sender, wqe_index: u16) {
        let (Sender::Sq(number) | Sender::Qp(number)) = of;
        let cqe = Cqe64::zeroed()
            .with_sop_drop_qpn(number)
            .with_wqe_counter(wqe_index.into())
            .with_opcode(CqeOpcode::REQUESTER.0);
        self.play_cqe(self.place(of).cqn, cqe);
    }

    /// Completes a request with an error.
    pub fn play_failure(&mut self, of: Sender, wqe_index: u16, syndrome: CqeSyndrome) {
        let (Sender::Sq(number) | Sender::Qp(number)) = of;
        let cqe = ErrCqe::zeroed()
            .with_qpn(number)
            .with_wqe_counter(wqe_index.into())
            .with_syndrome(syndrome.0.into())
            .with_opcode(CqeOpcode::REQUESTER_ERROR.0);
        self.play_cqe(self.place(of).cqn, Cqe64(cqe.0));
    }

    /// Writes the next completion of a queue; its owner bit is taken care of.
    pub fn play_cqe(&mut self, cqn: u32, cqe: Cqe64) {
        self.play_block(cqn, cqe, &[], 1);
    }

    /// Writes a compressed block: arrays at their distances from its title, nothing in the holes,
    /// the title last. It counts as `count` completions.
    pub fn play_block(&mut self, cqn: u32, title: Cqe64, arrays: &[(u32, [u8; 64])], count: u32) {
        for (distance, array) in arrays {
            self.play_bytes(cqn, *distance, array);
        }
        let cq = self.state().objects.cqs.get(cqn).expect("a completion queue");
        let owner = cq.producer >> cq.log_size & 1 != 0;
        let next = cq.producer.wrapping_add(count);
        self.play_bytes(cqn, 0, &title.with_owner(owner).0);
        self.play_from(cqn, next);
    }

    /// Writes any bytes to the entry `distance` from the next one: what no device should do.
    pub fn play_bytes(&mut self, cqn: u32, distance: u32, bytes: &[u8; 64]) {
        let cq = self.state().objects.cqs.get(cqn).expect("a completion queue");
        let at = cq.producer.wrapping_add(distance) & ((1 << cq.log_size) - 1);
        let iova = cq.memory.locate(u64::from(at) * u64::from(cq.cqe_bytes));
        self.side().memory().write_release(iova, bytes).expect("the ring is mapped");
    }

    /// Goes on from another number of completions.
    pub fn play_from(&mut self, cqn: u32, completions: u32) {
        let cq = self.state_mut().objects.cqs.get_mut(cqn).expect("a completion queue");
        cq.producer = completions;
    }
}

/// A model that steps while its driver waits for a command, and at no other time. Send doorbells
/// are lost, so that nothing is executed.
#[derive(Debug, Clone)]
pub struct Still {
    transport: Arc<LocalTransport>,
    nic: Arc<Mutex<Nic>>,
}

impl Still {
    /// A device after power-on.
    ///
    /// # Errors
    ///
    /// [`BusError`] without memory for its registers.
    pub fn new(config: NicConfig) -> Result<Self, BusError> {
        Self::with_blueflame(config, DoorbellKind::Plain)
    }

    /// The same with BlueFlame registers that are written in this way, and that nobody reads.
    ///
    /// # Errors
    ///
    /// [`BusError`] without memory for its registers.
    pub fn with_blueflame(config: NicConfig, blueflame: DoorbellKind) -> Result<Self, BusError> {
        let identity = PciIdentity {
            vendor: PciIdentity::VENDOR_MELLANOX,
            device: config.identity.device_id(),
            name: "model".into(),
            numa_node: None,
        };
        let (transport, side) =
            pair(LocalConfig { identity, blueflame, ..LocalConfig::default() })?;
        let nic = Arc::new(Mutex::new(Nic::new(side, config)));
        let (stepped, now) = (Arc::clone(&nic), Mutex::new(0));
        transport.set_idle_hook(Some(Arc::new(move || {
            let mut now = now.lock().unwrap_or_else(PoisonError::into_inner);
            *now += STEP_NS;
            let mut nic = stepped.lock().unwrap_or_else(PoisonError::into_inner);
            lose_doorbells(nic.side(), nic.state());
            nic.step(*now);
        })));
        Ok(Self { transport, nic })
    }

    /// What a driver opens.
    #[must_use]
    pub fn transport(&self) -> Arc<LocalTransport> {
        Arc::clone(&self.transport)
    }

    /// The device, to play its end.
    pub fn nic(&self) -> MutexGuard<'_, Nic> {
        self.nic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's end of a receive queue.
    ///
    /// # Panics
    ///
    /// For a queue that does not exist.
    #[must_use]
    pub fn receiver(&self, rqn: u32) -> PlayedRx {
        let cqn = self.nic().state().objects.rqs.get(rqn).expect("a receive queue").cqn;
        PlayedRx { still: self.clone(), cqn, start: 0 }
    }

    /// The device's end of a queue that sends.
    #[must_use]
    pub fn sender(&self, of: Sender) -> PlayedTx {
        PlayedTx { cqn: self.nic().place(of).cqn, still: self.clone(), of, seen: 0 }
    }
}

/// The device's end of a receive queue.
#[derive(Debug)]
pub struct PlayedRx {
    still: Still,
    cqn: u32,
    /// Completions when the queue was last made ready.
    start: u32,
}

impl PlayedRx {
    /// Writes `count` completions of `len_bytes` each, as for TCP over IPv4 with a hash.
    pub fn complete(&mut self, count: u32, len_bytes: u32) {
        let first = self.counter();
        let mut nic = self.still.nic();
        for at in 0..count {
            let cqe = Cqe64::zeroed()
                .with_byte_cnt(len_bytes)
                .with_rx_hash_result(0x1234_5678)
                .with_rx_hash_l3(1)
                .with_rx_hash_l4(1)
                .with_l2_ok(true)
                .with_l3_ok(true)
                .with_l4_ok(true)
                .with_l3_hdr_type(2)
                .with_l4_hdr_type(1)
                .with_wqe_counter(first.wrapping_add(at))
                .with_opcode(CqeOpcode::RESPONDER_SEND.0);
            nic.play_cqe(self.cqn, cqe);
        }
    }

    /// Writes one completion: see [`Nic::play_cqe`].
    pub fn complete_with(&mut self, cqe: Cqe64) {
        self.still.nic().play_cqe(self.cqn, cqe);
    }

    /// Writes a compressed block: see [`Nic::play_block`].
    pub fn complete_block(&mut self, title: Cqe64, arrays: &[(u32, [u8; 64])], count: u32) {
        self.still.nic().play_block(self.cqn, title, arrays, count);
    }

    /// Writes any bytes: see [`Nic::play_bytes`].
    pub fn write_cqe(&mut self, distance: u32, bytes: &[u8; 64]) {
        self.still.nic().play_bytes(self.cqn, distance, bytes);
    }

    /// Goes on from another number of completions; every entry looks as the lap before left it.
    pub fn start_at(&mut self, completions: u32) {
        let mut nic = self.still.nic();
        nic.play_from(self.cqn, completions);
        let log_size = nic.state().objects.cqs.get(self.cqn).map_or(0, |cq| cq.log_size);
        let before = Cqe64::zeroed()
            .with_opcode(CqeOpcode::INVALID.0)
            .with_owner(completions >> log_size & 1 == 0);
        (0..1 << log_size).for_each(|at| nic.play_bytes(self.cqn, at, &before.0));
        self.start = 0;
    }

    /// The queue was reset: its counters start over, its completion queue goes on.
    pub fn restart(&mut self) {
        self.start = self.completed();
    }

    /// Counter of the work request that completes next.
    #[must_use]
    pub fn counter(&self) -> u32 {
        self.completed().wrapping_sub(self.start)
    }

    /// Completions written so far.
    #[must_use]
    pub fn completed(&self) -> u32 {
        self.still.nic().state().objects.cqs.get(self.cqn).map_or(0, |cq| cq.producer)
    }
}

/// The device's end of a queue that sends.
#[derive(Debug)]
pub struct PlayedTx {
    still: Still,
    of: Sender,
    cqn: u32,
    /// Block behind the requests that were looked at.
    seen: u16,
}

impl PlayedTx {
    /// The requests posted since the last look.
    pub fn posted(&mut self) -> Vec<Posted> {
        let (found, end) = self.still.nic().posted(self.of, self.seen);
        self.seen = end;
        found
    }

    /// Answers every completion that was asked for since the last look; returns how many.
    pub fn complete(&mut self) -> u32 {
        let mut count = 0;
        for request in self.posted().iter().filter(|request| request.is_signaled) {
            self.still.nic().play_end(self.of, request.wqe_index);
            count += 1;
        }
        count
    }

    /// Ends the request that was posted last, and with it all before.
    pub fn complete_last(&mut self) {
        if let Some(request) = self.posted().last() {
            self.still.nic().play_end(self.of, request.wqe_index);
        }
    }

    /// Ends a request, and with it all before.
    pub fn complete_index(&mut self, wqe_index: u16) {
        self.still.nic().play_end(self.of, wqe_index);
    }

    /// Writes one completion: see [`Nic::play_cqe`].
    pub fn complete_with(&mut self, cqe: Cqe64) {
        self.still.nic().play_cqe(self.cqn, cqe);
    }

    /// Writes any bytes: see [`Nic::play_bytes`].
    pub fn write_cqe(&mut self, distance: u32, bytes: &[u8; 64]) {
        self.still.nic().play_bytes(self.cqn, distance, bytes);
    }

    /// The queue was reset: what was asked for before is not answered any more.
    pub fn restart(&mut self) {
        self.seen = 0;
    }

    /// Goes on from another block: a test moved the queue there.
    pub fn start_at(&mut self, wqe_index: u16) {
        self.seen = wqe_index;
    }

    /// Reads bytes of the ring of work requests, `offset` from its start.
    pub fn read_wqe(&self, offset: usize, out: &mut [u8]) {
        let nic = self.still.nic();
        for (byte, at) in out.iter_mut().zip(offset..) {
            let block = u16::try_from(at / BASIC_BLOCK_BYTES).expect("inside the ring");
            *byte = nic.send_block(self.of, block)[at % BASIC_BLOCK_BYTES];
        }
    }
}
