//! [`SendRing`]: requests of whole blocks, a doorbell record, a doorbell.

use std::sync::Arc;

use ferrocx_bus::{
    BlueFlame, BusError, DmaBuf, DmaWord, Doorbell, DoorbellKind, Line, Ring, RingView, Slot, Span,
};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::wq::CreateSq;
use ferrocx_prm::init_seg::WqDoorbellRecord;
use ferrocx_prm::wqc::{Sqc, Wq, wq_type};
use ferrocx_prm::wqe::{
    BASIC_BLOCK_BYTES, CE_ALWAYS, Ctrl, DS_BYTES, DS_PER_BLOCK, LOG_BASIC_BLOCK_BYTES, Opcode,
};

use super::{Block, Control, Wqe, blocks_of, put_control, ts_format};
use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::{Kind, page_list};
use crate::uar::Uar;

/// How an Ethernet send queue is made.
#[derive(Debug, Clone, Copy)]
pub struct SqAttr<'a> {
    /// The page whose doorbell it rings.
    pub uar: &'a Uar,
    /// Requests that stand ready are copied into the page's BlueFlame register, where it has one:
    /// no other queue may use that.
    pub blueflame: bool,
    /// Its protection domain.
    pub pd: u32,
    /// Its requests may use the reserved L_Key.
    pub rlky: bool,
    /// The completion queue of its requests.
    pub cqn: u32,
    /// The number that its completions carry.
    pub user_index: u32,
    /// log2 of its blocks.
    pub log_blocks: u8,
}

/// What tells the device of requests: a counter in memory, and a register.
#[derive(Debug)]
pub struct Bell {
    doorbell: Doorbell,
    record: DmaWord,
    blueflame: Option<BlueFlame>,
}

/// Bytes of a buffer for a record and a counter that no device reads.
const RECORD_BYTES: usize = 128;
const UNREAD_COUNTER_AT: usize = 64;

impl Bell {
    fn new(uar: &Uar, record: &Arc<DmaBuf>) -> Result<Self, BusError> {
        let record = DmaWord::new(Arc::clone(record), WqDoorbellRecord::SEND_COUNTER.offset)?;
        Ok(Self { doorbell: uar.doorbell().clone(), record, blueflame: None })
    }

    /// The device reads the record when the doorbell rings, so that it comes first.
    #[inline(always)]
    fn ring(&self, counter: u64, control: u64) {
        self.record.store_release_be32(record_of(counter));
        self.doorbell.ring(control);
    }
}

/// What the record says of a position: its low 16 bits, as every driver writes them. Source:
/// reference 6.6.
#[inline(always)]
fn record_of(position: u64) -> u32 {
    u32::from(position as u16)
}

/// Blocks that [`SendRing::post_ready`] writes as one piece, in bytes.
pub const ONE_RUN_BYTES: usize = 5 * BASIC_BLOCK_BYTES;

/// A request that stands ready, for [`SendRing::post_ready`].
#[derive(Debug, Clone, Copy)]
pub struct Ready<'a> {
    /// Its units from the control segment on, which is zeros, two by two.
    pub pairs: &'a [[u8; 2 * DS_BYTES]],
    /// Its length in units.
    pub ds: u32,
}

/// Where a ring stands.
#[derive(Debug, Clone, Copy)]
pub struct Position(u64);

/// A request that is written and not counted yet.
#[derive(Debug, Clone, Copy)]
#[must_use = "the ring does not know of it"]
pub struct Written {
    last: u64,
    end: u64,
}

/// Requests of equal length that are being written, see [`SendRing::run_of_blocks`].
#[derive(Debug)]
pub struct RunOfBlocks<'r> {
    view: RingView<'r, BASIC_BLOCK_BYTES>,
    /// The first two words of all control segments, but for the index.
    words: u64,
    at: u32,
}

impl<'r> RunOfBlocks<'r> {
    /// Writes the control segment of the next request; the caller, who made sure of its blocks,
    /// writes the rest.
    #[inline(always)]
    pub fn begin(&mut self) -> Block<'r> {
        let block = self.view.at(self.at);
        let words = self.words | u64::from(Ctrl::WQE_INDEX.of(self.at)) << 32;
        block.store_be64::<{ Ctrl::OPCODE.offset }>(words);
        block.store_raw64::<{ Ctrl::CE.offset }>(0);
        self.at = self.at.wrapping_add(1);
        block
    }

    /// The next block of the request that was begun.
    #[inline(always)]
    pub fn more(&mut self) -> Block<'r> {
        let block = self.view.at(self.at);
        self.at = self.at.wrapping_add(1);
        block
    }
}

/// Requests of up to [`ONE_RUN_BYTES`] that are being written, each of a length of its own: see
/// [`SendRing::run_of_requests`].
#[derive(Debug)]
pub struct RunOfRequests<'r> {
    view: RingView<'r, BASIC_BLOCK_BYTES>,
    /// The first two words of all control segments, but for index and length.
    words: u64,
    /// The next block, and the first one of the request before.
    at: u32,
    last: u32,
}

/// Where a [`RunOfRequests`] ends.
#[derive(Debug, Clone, Copy)]
#[must_use = "the ring does not know of it"]
pub struct EndOfRun {
    at: u32,
    last: u32,
}

impl<'r> RunOfRequests<'r> {
    /// Room for the next request, of which the caller writes all but the control segment; `None`
    /// where the ring ends within.
    #[inline(always)]
    #[must_use]
    pub fn room(&self) -> Option<Slot<'r, ONE_RUN_BYTES>> {
        self.view.run::<ONE_RUN_BYTES>(self.at)
    }

    /// Writes the control segment of the request in that room, of `ds` units. The caller made sure
    /// of its blocks.
    #[inline(always)]
    pub fn close(&mut self, room: &Slot<'r, ONE_RUN_BYTES>, ds: u32) {
        let place = u64::from(Ctrl::WQE_INDEX.of(self.at)) << 32;
        room.store_be64::<{ Ctrl::OPCODE.offset }>(self.words | place | u64::from(ds));
        room.store_raw64::<{ Ctrl::CE.offset }>(0);
        self.last = self.at;
        self.at = self.at.wrapping_add(blocks_of(ds));
    }

    /// Where it ends.
    #[inline(always)]
    pub fn end(&self) -> EndOfRun {
        EndOfRun { at: self.at, last: self.last }
    }
}

/// The ring of a send queue, of Ethernet or of a queue pair.
#[derive(Debug)]
pub struct SendRing {
    units: Ring<DS_BYTES>,
    blocks: Ring<BASIC_BLOCK_BYTES>,
    bell: Bell,
    /// Where requests that stand ready go.
    line: Line<BASIC_BLOCK_BYTES, ONE_RUN_BYTES>,
    /// The number, where it stands in its word of a control segment.
    qpn_word: u32,
    /// The first half of the control segment of a send, without position and length.
    send_words: u64,
    entries: u32,
    /// Position behind what was posted, in blocks since the queue was made. The device counts
    /// modulo 2^16.
    pub pi: u64,
    /// Position behind what has ended.
    pub ci: u64,
    /// First half of the control segment of the last request, for the doorbell; of those that
    /// stood ready, which rang themselves, it is not known.
    last: u64,
    doorbells: u64,
}

impl SendRing {
    /// Views the ring of queue `number` at `offset_bytes` of a zeroed buffer.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] when ring or record reach past their buffers.
    ///
    /// # Safety
    /// The queue is the caller's, and these are its ring and its record; beside that, the
    /// conditions of [`SendRing::create`].
    ///
    /// ```compile_fail,E0133
    /// # use std::sync::Arc;
    /// # use ferrocx_bus::{BusError, DmaBuf};
    /// # use ferrocx_core::Uar;
    /// # use ferrocx_core::wq::SendRing;
    /// fn safe(buf: &Arc<DmaBuf>, uar: &Uar, any: u32) -> Result<SendRing, BusError> {
    ///     SendRing::over(buf, 0, 6, buf, uar, any)
    /// }
    /// ```
    #[expect(unsafe_code, reason = "requests tell the device where to read and write")]
    pub unsafe fn over(
        buf: &Arc<DmaBuf>,
        offset_bytes: usize,
        log_blocks: u8,
        record: &Arc<DmaBuf>,
        uar: &Uar,
        number: u32,
    ) -> Result<Self, BusError> {
        let log_units = log_blocks + DS_PER_BLOCK.trailing_zeros() as u8;
        Ok(Self {
            units: Ring::new(Arc::clone(buf), offset_bytes, log_units)?,
            blocks: Ring::new(Arc::clone(buf), offset_bytes, log_blocks)?,
            bell: Bell::new(uar, record)?,
            line: Line::new(Ring::new(Arc::clone(buf), offset_bytes, log_blocks)?),
            qpn_word: Ctrl::QPN.of(number),
            send_words: u64::from(Ctrl::OPCODE.of(Opcode::SEND.0.into())) << 32
                | u64::from(Ctrl::QPN.of(number)),
            entries: 1 << log_blocks,
            pi: 0,
            ci: 0,
            last: 0,
            doorbells: 0,
        })
    }

    /// Makes an Ethernet send queue in reset, with the memory of its ring. The handle destroys it.
    ///
    /// # Errors
    ///
    /// What the device refused.
    ///
    /// # Safety
    /// The device carries out whatever is written and posted here. Memory that a request names
    /// stays mapped, and what it holds may be sent, until the request has completed or the handle's
    /// object is gone; memory that it has the device write is nobody else's as long.
    #[expect(unsafe_code, reason = "requests tell the device where to read and write")]
    pub unsafe fn create(
        device: &Device,
        attr: &SqAttr<'_>,
    ) -> Result<(Self, Handle), DeviceError> {
        let buf = Arc::new(device.alloc_dma(BASIC_BLOCK_BYTES << attr.log_blocks, 4096)?);
        let record = Arc::new(device.alloc_dma(RECORD_BYTES, 64)?);
        let wq = Wq::zeroed()
            .with_wq_type(wq_type::CYCLIC)
            .with_pd(attr.pd)
            .with_uar_page(attr.uar.page())
            .with_dbr_addr(record.iova())
            .with_log_wq_stride(LOG_BASIC_BLOCK_BYTES)
            .with_log_wq_sz(attr.log_blocks.into());
        let sqc = Sqc::zeroed()
            .with_rlky(attr.rlky)
            .with_flush_in_error_en(true)
            .with_ts_format(ts_format(device.hca_cap().sq_ts_format()))
            .with_min_wqe_inline_mode(device.min_inline_mode())
            .with_user_index(attr.user_index)
            .with_cqn(attr.cqn)
            .with_tis_lst_sz(1)
            .with_tis_num_0(device.tisn())
            .with_wq(wq);
        let input = CreateSq::input().with_ctx(sqc);
        let sqn = device.execute::<CreateSq>(&input, &page_list(&buf), &mut [])?.sqn();
        // SAFETY: the queue was just made, with this ring and record; the rest is the caller's.
        let mut ring = unsafe { Self::over(&buf, 0, attr.log_blocks, &record, attr.uar, sqn)? };
        if attr.blueflame {
            ring.bell.blueflame = attr.uar.blueflame()?;
        }
        Ok((ring, Handle::new(device, Kind::Sq, sqn, vec![buf, record])))
    }

    /// A bell like the ring's own that the device does not hear, to exercise what rings it.
    ///
    /// # Errors
    ///
    /// [`BusError::OutOfRange`] for a ring that was not made by [`SendRing::create`].
    pub fn unheard(&self) -> Result<Bell, BusError> {
        let record = DmaWord::new(Arc::clone(self.bell.record.buf()), UNREAD_COUNTER_AT)?;
        let blueflame = self.bell.blueflame.as_ref().and_then(BlueFlame::unread);
        Ok(Bell { doorbell: Doorbell::unheard(), record, blueflame })
    }

    /// How [`SendRing::post_ready`] tells the device.
    #[must_use]
    pub fn doorbell_kind(&self) -> DoorbellKind {
        self.bell.blueflame.as_ref().map_or(DoorbellKind::Plain, BlueFlame::kind)
    }

    /// Exchanges the bell that is rung.
    pub fn swap_bell(&mut self, bell: &mut Bell) {
        std::mem::swap(&mut self.bell, bell);
    }

    /// The number of the queue, as control segments name it.
    #[inline(always)]
    #[must_use]
    pub fn number(&self) -> u32 {
        Ctrl::QPN.get(self.qpn_word)
    }

    /// Blocks of the ring.
    #[inline(always)]
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.entries
    }

    /// Blocks of requests that have not ended.
    #[inline(always)]
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        (self.pi - self.ci) as u32
    }

    /// Blocks that can be written.
    #[inline(always)]
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.entries - self.outstanding()
    }

    /// How often the doorbell was rung: each time is a store across PCIe.
    #[must_use]
    pub fn doorbells(&self) -> u64 {
        self.doorbells
    }

    /// Starts a request behind those posted, behind the room of its control segment. The caller
    /// made sure of the blocks.
    #[inline(always)]
    #[must_use]
    pub fn begin(&self) -> Wqe<'_> {
        Wqe::new(self.units.view(), (self.pi as u32).wrapping_mul(DS_PER_BLOCK), 1)
    }

    /// The block `ahead` blocks behind those posted, for a request whose segments have constant
    /// places: the compiler then needs one mask for all of them. See [`SendRing::written`].
    #[inline(always)]
    #[must_use]
    pub fn block(&self, ahead: u32) -> Block<'_> {
        self.blocks.at((self.pi as u32).wrapping_add(ahead))
    }

    /// The units of the next request from `skip` on, at most `most`, as many as lie side by side.
    #[inline(always)]
    #[must_use]
    pub fn units_ahead(&self, skip: u32, most: u32) -> Span<'_, DS_BYTES> {
        let first = (self.pi as u32).wrapping_mul(DS_PER_BLOCK).wrapping_add(skip);
        self.units.view().span(first, most as usize)
    }

    /// Starts a run of requests of `ds` units each, without immediate data, fence and completion.
    /// They are counted by [`SendRing::post_blocks`].
    #[inline(always)]
    #[must_use]
    pub fn run_of_blocks(&self, opcode: Opcode, ds: u32) -> RunOfBlocks<'_> {
        RunOfBlocks {
            view: self.blocks.view(),
            words: u64::from(opcode.0) << 32 | u64::from(self.qpn_word | ds),
            at: self.pi as u32,
        }
    }

    /// Moves past the `count` requests of so many blocks that a [`RunOfBlocks`] wrote.
    #[inline(always)]
    pub fn post_blocks(&mut self, count: u32, blocks: u32) {
        if count != 0 {
            self.pi += u64::from(count * blocks);
            let last = self.blocks.at((self.pi as u32).wrapping_sub(blocks));
            self.last = last.load_raw64::<{ Ctrl::OPCODE.offset }>();
        }
    }

    /// Starts a run of requests without immediate data, fence and completion. They are counted by
    /// [`SendRing::post_run`].
    #[inline(always)]
    #[must_use]
    pub fn run_of_requests(&self, opcode: Opcode) -> RunOfRequests<'_> {
        RunOfRequests {
            view: self.blocks.view(),
            words: u64::from(opcode.0) << 32 | u64::from(self.qpn_word),
            at: self.pi as u32,
            last: self.pi as u32,
        }
    }

    /// Moves past the requests of a run that started here.
    #[inline(always)]
    pub fn post_run(&mut self, EndOfRun { at, last }: EndOfRun) {
        let blocks = at.wrapping_sub(self.pi as u32);
        if blocks != 0 {
            self.pi += u64::from(blocks);
            self.last = self.blocks.at(last).load_raw64::<{ Ctrl::OPCODE.offset }>();
        }
    }

    /// Writes the control segment of a request of `ds` units and so many blocks, and moves past it.
    #[inline(always)]
    pub fn close(&mut self, control: Control, ds: u32, blocks: u32) {
        let written = self.written(self.block(0), self.pi, control, ds, blocks);
        self.post(written);
    }

    /// Writes the control segment of a request of `ds` units and so many blocks, the first of which
    /// is `block` at position `pi`. Nothing is counted before [`SendRing::post`]: whoever holds
    /// both since before the segments were stored spares looking them up again.
    #[inline(always)]
    pub fn written(
        &self,
        block: Block<'_>,
        pi: u64,
        control: Control,
        ds: u32,
        blocks: u32,
    ) -> Written {
        let unit = block.part::<{ Ctrl::OPCODE.offset }, DS_BYTES>();
        let last = put_control(unit, self.qpn_word, pi, control, ds);
        Written { last, end: pi + u64::from(blocks) }
    }

    /// Moves past a request.
    #[inline(always)]
    pub fn post(&mut self, Written { last, end }: Written) {
        (self.last, self.pi) = (last, end);
    }

    /// Makes the request posted last ask for a completion; returns its first block, modulo 2^16, by
    /// which the completion names it.
    #[inline(always)]
    pub fn signal_last(&mut self) -> u16 {
        let index = Ctrl::WQE_INDEX.get((u64::from_be(self.last) >> 32) as u32);
        let block = self.blocks.at(index);
        let flags = block.load_be32::<{ Ctrl::CE.offset }>();
        block.store_be32::<{ Ctrl::CE.offset }>(flags | CE_ALWAYS);
        index as u16
    }

    /// Tells the device what was posted.
    #[inline(always)]
    pub fn ring_doorbell(&mut self) {
        self.doorbells += 1;
        self.bell.ring(self.pi, self.last);
    }

    /// The next [`ONE_RUN_BYTES`] of the ring, if they lie in one piece.
    #[inline(always)]
    #[must_use]
    pub fn run(&self) -> Option<Slot<'_, ONE_RUN_BYTES>> {
        self.blocks.view().run::<ONE_RUN_BYTES>(self.pi as u32)
    }

    /// Lets requests that stand ready follow each other, as long as they start below a position,
    /// up to the end of the ring: the caller makes sure of [`ONE_RUN_BYTES`] behind. Whether there
    /// is room for one.
    pub fn start_line(&mut self, until: u64) -> bool {
        let blocks = until.saturating_sub(self.pi).min(self.entries.into());
        // A register takes what stands in the ring, and there another way.
        self.line.start(self.pi as u32, blocks as u32, self.bell.blueflame.is_none())
    }

    /// Ends that: requests of another kind were posted, or none may be.
    #[inline(always)]
    pub fn stop_line(&mut self) {
        self.line.stop();
    }

    /// Whether a request that stands ready can be posted.
    #[must_use]
    pub fn has_line(&self) -> bool {
        self.line.next().is_some()
    }

    /// Posts a send that stands ready and tells the device, which counts as no doorbell. `false`,
    /// and nothing done, without [`SendRing::has_line`], where a request is written unit by unit;
    /// and without wide stores or with a register that takes requests, which leaves
    /// [`SendRing::post_ready_anyway`].
    #[inline(always)]
    #[must_use]
    pub fn post_ready(&mut self, Ready { pairs, ds }: Ready<'_>) -> bool {
        let Some((run, wide)) = self.line.next_wide() else { return false };
        run.copy_wide(wide, pairs);
        let last = self.tell_of(&run, ds);
        self.bell.doorbell.ring(last);
        self.pass(ds);
        true
    }

    /// Does what [`SendRing::post_ready`] does, however the device is told.
    #[must_use]
    pub fn post_ready_anyway(&mut self, Ready { pairs, ds }: Ready<'_>) -> bool {
        let Some(run) = self.line.next() else { return false };
        run.copy_units::<0>(pairs.as_flattened().as_chunks().0);
        let last = self.tell_of(&run, ds);
        let is_copied = match &mut self.bell.blueflame {
            Some(blueflame) => blueflame.ring(&run, blocks_of(ds)),
            None => false,
        };
        if !is_copied {
            self.bell.doorbell.ring(last);
        }
        self.pass(ds);
        true
    }

    /// Writes the start of a send of `ds` units, and the doorbell record, which comes first as for
    /// every doorbell: the device believes it. Gives what the doorbell is rung with.
    #[inline(always)]
    fn tell_of(&self, run: &Slot<'_, ONE_RUN_BYTES>, ds: u32) -> u64 {
        let place = u64::from(Ctrl::WQE_INDEX.of(self.pi as u32)) << 32;
        let last = (place | self.send_words | u64::from(ds)).to_be();
        run.store_raw64::<{ Ctrl::OPCODE.offset }>(last);
        self.bell.record.store_release_be32(record_of(self.pi + u64::from(blocks_of(ds))));
        last
    }

    /// Moves past a send that stood ready.
    #[inline(always)]
    fn pass(&mut self, ds: u32) {
        self.pi += u64::from(blocks_of(ds));
        self.line.advance(blocks_of(ds));
    }

    /// Where the ring stands, for [`SendRing::take_back`].
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.pi)
    }

    /// Forgets what stood ready and was posted behind a position, of which the device was not told.
    /// It also ends the line.
    pub fn take_back(&mut self, Position(pi): Position) {
        self.pi = pi;
        self.stop_line();
    }

    /// Starts again at the beginning of the ring: the queue was reset, and all has ended. Positions
    /// go on, with the next one whose low 16 bits are 0.
    pub fn restart(&mut self) {
        self.pi = self.pi.next_multiple_of(1 << 16);
        self.ci = self.pi;
        self.stop_line();
        self.bell.record.store_release_be32(0);
    }
}
