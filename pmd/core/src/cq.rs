//! Completion queues: the ring, its consumer index, and what an odd entry is.

use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::{Bar, DmaBuf, DmaWord, Ring, Slot};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::queues::CreateCq;
use ferrocx_prm::cqc::{Cqc, mini_cqe_format};
use ferrocx_prm::cqe::{Cqe64, CqeFormat, CqeOpcode, ErrCqe};
use ferrocx_prm::init_seg::{CqArm, CqDoorbellRecord, uar};
use ferrocx_prm::syndrome::CqeSyndrome;

use crate::cmd::CommandError;
use crate::device::Device;
use crate::error::{DeviceError, QueueFault};
use crate::handle::Handle;
use crate::objects::{Kind, page_list};

/// The invalid opcode, where it stands in the last word of an entry.
pub const INVALID_OPCODE: u32 = Cqe64::OPCODE.of(CqeOpcode::INVALID.0);

/// How long the last entry of a resized queue may take, which the device writes before it answers.
const RESIZE_LIMIT: Duration = Duration::from_secs(1);

/// The driver's side of a completion queue: a ring that the device fills and one core empties.
#[derive(Debug)]
pub struct CqRing {
    /// The entries.
    pub ring: Ring<64>,
    doorbell_record: DmaWord,
    log_size: u8,
    /// Entries consumed so far, modulo 2^32.
    pub ci: u32,
}

/// How a completion queue is made.
#[derive(Debug, Clone, Copy)]
pub struct CqAttr<'a> {
    /// log2 of its entries.
    pub log_size: u8,
    /// Let the device compress completions, and what each then says besides its length: one of
    /// [`mini_cqe_format`].
    pub compression: Option<u32>,
    /// The event queue that its events go to once it is armed; `None` for a queue that is polled.
    pub events: Option<&'a Arc<Handle>>,
}

/// What an entry is that is not the ordinary one expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unexpected {
    /// Still the device's.
    Empty,
    /// Title of a compressed block.
    Compressed,
    /// A packet that could not be delivered, of a receive queue that goes on.
    Undelivered(Undelivered),
    /// A completion with error that ends the queue, or one that cannot be.
    Fault(QueueFault),
}

/// What a completion says about a packet that could not be delivered, most often because it is
/// longer than the buffers: its work request is used up, and its buffers hold nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Undelivered {
    /// Counter of the work request.
    pub wqe_counter: u16,
    /// As in [`Cqe64::byte_cnt`]: of a striding queue the strides, which are used up.
    pub byte_cnt: u32,
    /// The title of a compressed block of such packets.
    pub is_block: bool,
}

/// Whether a receive queue is in the error state behind a completion with this syndrome; after any
/// other it goes on. Source: Linux `cqe_syndrome_needs_recover`, DPDK `mlx5_rx_err_handle`.
#[must_use]
pub fn ends_receiving(syndrome: CqeSyndrome) -> bool {
    matches!(
        syndrome,
        CqeSyndrome::LOCAL_QP_OP_ERR | CqeSyndrome::LOCAL_PROT_ERR | CqeSyndrome::WR_FLUSH_ERR
    )
}

impl CqRing {
    /// Makes a completion queue on the device. The handle destroys it.
    pub fn new(device: &Device, attr: &CqAttr<'_>) -> Result<(Self, Handle), DeviceError> {
        let inner = device.inner();
        let log_size = attr.log_size;
        let buf = new_buffer(device, log_size)?;
        let ring = Ring::new(Arc::clone(&buf), 0, log_size)?;
        for index in 0..1 << log_size {
            empty(&ring, index, log_size);
        }
        let record = Arc::new(device.alloc_dma(CqDoorbellRecord::SIZE_BYTES, 64)?);
        let eqn = attr.events.map_or(u32::from(inner.made.eqn), |events| events.number());
        let cqc = Cqc::zeroed()
            .with_log_cq_size(u32::from(attr.log_size))
            .with_uar_page(inner.made.uar_page)
            .with_c_eqn_or_apu_element(eqn)
            .with_cqe_comp_en(attr.compression.is_some())
            .with_mini_cqe_res_format(attr.compression.unwrap_or(mini_cqe_format::HASH))
            .with_dbr_addr(record.iova());
        let input = CreateCq::input().with_cq_context(cqc);
        let made = inner.control().execute::<CreateCq>(&input, &page_list(&buf), &mut [])?;
        let memory = vec![Arc::clone(&buf), Arc::clone(&record)];
        let handle = Handle::new(device, Kind::Cq, made.cqn(), memory);
        let handle = match attr.events {
            Some(events) => handle.needing(events),
            None => handle,
        };
        let doorbell_record = DmaWord::new(record, CqDoorbellRecord::SET_CI.offset)?;
        Ok((Self { ring, doorbell_record, log_size, ci: 0 }, handle))
    }

    /// Moves the queue to another buffer, of 2^`log_size` entries. `each` is given the entries that
    /// stand in the old one, and their last dwords; all of them are consumed when this returns.
    ///
    /// # Errors
    ///
    /// What the device refused: the queue is as it was. After [`DeviceError::Timeout`] it is of no
    /// use any more.
    pub fn resize(
        &mut self,
        handle: &Handle,
        log_size: u8,
        mut each: impl FnMut(&Slot<'_, 64>, u32),
    ) -> Result<(), DeviceError> {
        let (device, start) = (handle.device(), self.ci);
        // Until it is told more, the device has room for one lap from here on.
        self.tell();
        let (old, buf) = (Arc::clone(self.ring.buf()), new_buffer(device, log_size)?);
        let ring = Ring::new(Arc::clone(&buf), 0, log_size)?;
        for index in 0..1 << log_size {
            empty(&ring, start.wrapping_add(index), log_size);
        }
        handle.hold(&buf);
        if let Err(source) = handle.resize_cq(log_size, &buf) {
            if matches!(source, CommandError::Status { .. }) {
                handle.release(&buf);
            }
            return Err(DeviceError::Step { step: "resizing a completion queue", source });
        }
        let deadline = device.now() + RESIZE_LIMIT;
        // One lap, and its last entry; more is a lie.
        let mut left = (1_u32 << self.log_size) + 1;
        loop {
            match self.take() {
                // The device's last entry of the old buffer. Source: reference 6.7.
                Some((_, last)) if Cqe64::OPCODE.get(last) == CqeOpcode::RESIZE_CQ.0 => break,
                Some((slot, last)) if left > 0 => {
                    left -= 1;
                    each(&slot, last);
                }
                found if found.is_some() || device.now() > deadline => {
                    let (what, way_out) = ("the last entry of a resized queue", "reset the device");
                    return Err(DeviceError::Timeout { what, limit: RESIZE_LIMIT, way_out });
                }
                _ => device.relax(),
            }
        }
        handle.release(&old);
        (self.ring, self.log_size) = (ring, log_size);
        // What came into the old buffer has left these empty, so they are first used a lap later:
        // not before the device is told that this one is consumed.
        let mut index = start;
        while index != self.ci {
            empty(&self.ring, index.wrapping_add(1 << log_size), log_size);
            index = index.wrapping_add(1);
        }
        self.tell();
        Ok(())
    }

    /// The next entry and its last dword, which was read to find its owner, if the device has
    /// written it. It is consumed: call [`CqRing::tell`] after it was read.
    ///
    /// Entries are plain: the queue was made without compression.
    #[inline(always)]
    pub fn take(&mut self) -> Option<(Slot<'_, 64>, u32)> {
        let (ci, slot) = (self.ci, self.ring.at(self.ci));
        let last = slot.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        // Those never written have the owner bit of the lap before, as those taken have. Only the
        // mini CQEs of a compressed block may have any.
        if Cqe64::OWNER.get(last) != self.owner_at(ci) {
            return None;
        }
        self.ci = ci.wrapping_add(1);
        Some((slot, last))
    }

    /// Whether the device has written an entry that is not consumed.
    #[inline(always)]
    #[must_use]
    pub fn has_next(&self) -> bool {
        let last = self.ring.at(self.ci).load_acquire_be32::<{ Cqe64::OWNER.offset }>();
        self.is_written(last, self.ci)
    }

    /// Whether the device has written the entry at `ci`, whose last dword is `last`. The invalid
    /// opcode stands in entries that were never written. Source: reference 6.7.
    #[inline(always)]
    fn is_written(&self, last: u32, ci: u32) -> bool {
        Cqe64::OWNER.get(last) == self.owner_at(ci) && last & INVALID_OPCODE != INVALID_OPCODE
    }

    /// Entries that the ring holds.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.ring.entries()
    }

    /// Entries consumed so far, modulo 2^32.
    #[inline(always)]
    #[must_use]
    pub fn consumer_index(&self) -> u32 {
        self.ci
    }

    /// Owner bit of the entry at `ci` once the device has written it.
    #[inline(always)]
    #[must_use]
    pub fn owner_at(&self, ci: u32) -> u32 {
        Cqe64::OWNER.of(ci >> self.log_size)
    }

    /// Entries from `ci` to the end of the ring.
    #[inline(always)]
    #[must_use]
    pub fn left_of_lap(&self, ci: u32) -> usize {
        let entries = 1u32 << self.log_size;
        (entries - (ci & (entries - 1))) as usize
    }

    /// Tells the device which entries are free again.
    #[inline(always)]
    pub fn tell(&self) {
        self.doorbell_record.store_release_be32(self.ci & CqArm::CI.mask());
    }

    /// Looks closer at the entry at the consumer index, whose last dword is `last`.
    #[cold]
    #[inline(never)]
    #[must_use]
    pub fn unexpected(&self, last: u32, expected_counter: u16) -> Unexpected {
        let opcode = CqeOpcode(Cqe64::OPCODE.get(last));
        let format = CqeFormat(Cqe64::FORMAT.get(last));
        if !self.is_written(last, self.ci) {
            return Unexpected::Empty;
        }
        let slot = self.ring.at(self.ci);
        let counter = Cqe64::WQE_COUNTER.get(last) as u16;
        match opcode {
            CqeOpcode::REQUESTER_ERROR | CqeOpcode::RESPONDER_ERROR => {
                let cqe = ErrCqe(slot.load());
                let syndrome = CqeSyndrome(cqe.syndrome() as u8);
                if opcode == CqeOpcode::RESPONDER_ERROR && !ends_receiving(syndrome) {
                    return Unexpected::Undelivered(Undelivered {
                        wqe_counter: counter,
                        byte_cnt: slot.load_be32::<{ Cqe64::BYTE_CNT.offset }>(),
                        is_block: format == CqeFormat::COMPRESSED,
                    });
                }
                Unexpected::Fault(QueueFault::Completion {
                    syndrome,
                    vendor: cqe.vendor_err_synd() as u8,
                    wqe_counter: counter,
                })
            }
            _ if format == CqeFormat::COMPRESSED => Unexpected::Compressed,
            CqeOpcode::REQUESTER | CqeOpcode::RESPONDER_SEND if format == CqeFormat::PLAIN => {
                Unexpected::Fault(QueueFault::WrongIndex {
                    expected: expected_counter,
                    got: counter,
                })
            }
            _ => Unexpected::Fault(QueueFault::BadCqe {
                opcode: opcode.0 as u8,
                format: format.0 as u8,
            }),
        }
    }

    /// The entries that the device has written and nobody has consumed, and their last dwords.
    ///
    /// Entries are plain: the queue was made without compression.
    pub fn standing(&self) -> impl Iterator<Item = (Slot<'_, 64>, u32)> {
        (0..self.entries()).map_while(|ahead| {
            let index = self.ci.wrapping_add(ahead);
            let slot = self.ring.at(index);
            let last = slot.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            self.is_written(last, index).then_some((slot, last))
        })
    }

    /// Consumes whatever the device has written.
    pub fn drain(&mut self) {
        let mut left = self.ring.entries();
        while left > 0 {
            let slot = self.ring.at(self.ci);
            let last = slot.load_acquire_be32::<{ Cqe64::OWNER.offset }>();
            if !self.is_written(last, self.ci) {
                break;
            }
            // Behind a title stands data, which must not be taken for completions.
            let is_title = CqeFormat(Cqe64::FORMAT.get(last)) == CqeFormat::COMPRESSED;
            let count = if is_title {
                slot.load_be32::<{ Cqe64::BYTE_CNT.offset }>().clamp(1, left)
            } else {
                1
            };
            self.skip_block(count);
            left -= count;
        }
        self.tell();
    }

    /// Consumes `count` entries and makes them invalid: those of a compressed block hold data
    /// whose owner bits mean nothing on the next lap. [`CqRing::tell`] is what makes them the
    /// device's.
    pub fn skip_block(&mut self, count: u32) {
        let (view, mut left) = (self.ring.view(), count);
        while left != 0 {
            let lap = view.span(self.ci, left as usize);
            let last = INVALID_OPCODE | self.owner_at(self.ci);
            for entry in lap.cells() {
                entry.slot().store_be32::<{ Cqe64::OWNER.offset }>(last);
            }
            self.ci = self.ci.wrapping_add(lap.len() as u32);
            left -= lap.len() as u32;
        }
    }
}

/// Completions that an armed queue has an event for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// Any completion.
    Next,
    /// Receives that the sender asked a solicited event for, and failures.
    Solicited,
}

/// Asks the device for an event of a completion queue.
#[derive(Debug)]
pub struct Armer {
    word: DmaWord,
    bar: Arc<dyn Bar>,
    offset: u64,
    cqn: u32,
    /// Events that came so far: the device counts them too, in two bits.
    events: u32,
}

impl Armer {
    /// For the completion queue that `ring` and `handle` are.
    ///
    /// # Errors
    /// [`DeviceError::Bus`] for a doorbell record that is too short.
    pub fn new(ring: &CqRing, handle: &Handle) -> Result<Self, DeviceError> {
        let inner = handle.device().inner();
        let record = Arc::clone(ring.doorbell_record.buf());
        let word = DmaWord::new(record, CqDoorbellRecord::ARM.offset)?;
        let offset = u64::from(inner.made.uar_page) * uar::PAGE_BYTES + uar::CQ_ARM;
        let bar = Arc::clone(&inner.bar);
        Ok(Self { word, bar, offset, cqn: handle.number(), events: 0 })
    }

    /// Asks for one event once there is such an entry behind `consumer_index`, or if there is one.
    pub fn arm(&self, consumer_index: u32, what: Notify) {
        let doorbell = CqArm::zeroed()
            .with_sn(self.events)
            .with_solicited_only(what == Notify::Solicited)
            .with_ci(consumer_index)
            .with_cqn(self.cqn);
        let value = u64::from_be_bytes(doorbell.0);
        // The record first: the device believes it, not the doorbell.
        self.word.store_release_be32((value >> 32) as u32);
        self.bar.write_be64(self.offset, value);
    }

    /// Notes that an event came. Until then, arming again changes nothing.
    pub fn event(&mut self) {
        self.events = self.events.wrapping_add(1);
    }
}

/// Memory of a ring.
fn new_buffer(device: &Device, log_size: u8) -> Result<Arc<DmaBuf>, DeviceError> {
    Ok(Arc::new(device.alloc_dma(Cqe64::SIZE_BYTES << log_size, 4096)?))
}

/// Makes an entry one that the device has not written: invalid, and with the owner bit that it does
/// not have once the device has written it at `index`. Source: reference 4.3, CREATE_CQ.
fn empty(ring: &Ring<64>, index: u32, log_size: u8) {
    let owner = Cqe64::OWNER.of(!(index >> log_size));
    ring.at(index).store_be32::<{ Cqe64::OWNER.offset }>(INVALID_OPCODE | owner);
}
