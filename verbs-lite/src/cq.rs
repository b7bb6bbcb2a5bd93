//! [`Cq`]: completion queues, and [`Completion`], what their entries say.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use ferrocx_bus::Slot;
use ferrocx_core::{Armer, CompletionEvents, CqAttr, CqRing, Handle, Notify};
use ferrocx_prm::cqe::{Cqe64, CqeOpcode, ErrCqe, l3_hdr_type};
use ferrocx_prm::syndrome::CqeSyndrome;

use crate::context::{ContextCore, RdmaContext};
use crate::era::{self, Source, Stamps};
use crate::error::{Failure, VerbsError};
use crate::names::{Ends, Names};
use crate::seats::{Seat, Seats};
use crate::types::{Qpn, Rkey};
use crate::wr::{InvalidatedRkey, RecvInfo};

/// Empty polls between two looks at the device's events: milliseconds of a core that polls.
const LOOK_EVERY: u32 = 1 << 20;
/// Empty polls between two looks at who had left completions.
const CLEAR_EVERY: u32 = 1 << 8;
/// No queue pair's number: that of multicast. Source: IBTA vol. 1, 9.8.
const NOBODY: u32 = 0xff_ffff;
/// Both checksums of a received frame are right.
const CHECKSUMS_OK: u32 = Cqe64::L3_OK.mask() | Cqe64::L4_OK.mask();

/// The part of a completion queue that queue pairs hold: it outlives them, and they cannot overrun
/// it.
#[derive(Debug)]
pub(crate) struct CqCore {
    handle: Handle,
    pub(crate) core: Arc<ContextCore>,
    entries: AtomicU32,
    /// What completions are stamped with that are taken from it.
    pub(crate) stamps: Stamps,
    /// Those that its queue pairs have here.
    pub(crate) names: Arc<Names>,
    /// Entries that no queue pair was promised; `None` where none are promised.
    pub(crate) free: Option<AtomicU32>,
    /// Entries of queue pairs that are gone, in which completions of theirs may still stand.
    pub(crate) left: AtomicU32,
    /// Its entry in the event queue that it reports to. Given back after the queue is destroyed.
    _seat: Option<Seat>,
}

impl CqCore {
    #[inline(always)]
    pub(crate) fn number(&self) -> u32 {
        self.handle.number()
    }
}

/// A completion queue. Belongs to one core at a time: polling takes `&mut self`, allocates nothing,
/// takes no lock and makes no system call.
///
/// Queue pairs reserve an entry for each of their work requests when they are made
/// ([`QpConfig::max_send_wr`](crate::QpConfig::max_send_wr) and
/// [`max_recv_wr`](crate::QpConfig::max_recv_wr)), so it cannot overrun. Those whose receives come
/// from a shared queue reserve [`SrqConfig::max_wr`](crate::SrqConfig::max_wr), once for all.
#[derive(Debug)]
pub struct Cq {
    pub(crate) ring: CqRing,
    pub(crate) inner: Arc<CqCore>,
    armer: Armer,
    /// Polls that found nothing.
    idle_polls: u32,
}

/// The bits of a service level that say what header a datagram has. Source: reference 6.7.
const NETWORK_HDR_TYPE: u8 = (l3_hdr_type::IPV6 | l3_hdr_type::IPV4) as u8;

impl RdmaContext {
    /// Makes a completion queue of at least `entries`, rounded up to a power of two: one for each
    /// work request that its queue pairs may have in flight.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], or what the device refused.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32) -> Result<Cq, VerbsError> {
        Cq::new(self, entries, Room::Reserved, None)
    }
}

/// What a completion says that stands in a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Standing {
    pub(crate) number: u32,
    pub(crate) user_index: u32,
    pub(crate) ends: Ends,
}

/// Who sees to it that a completion queue does not overrun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// The queue: each queue pair reserves what it may need.
    Reserved,
    /// Whoever polls.
    Shared,
}

impl Cq {
    pub(crate) fn new(
        context: &RdmaContext,
        entries: u32,
        room: Room,
        channel: Option<(&CompletionEvents, &Arc<Seats>)>,
    ) -> Result<Self, VerbsError> {
        let core = Arc::clone(context.core());
        VerbsError::range("entries of the CQ", entries.into(), 1, core.attr.max_cqe.into())?;
        let entries = entries.next_power_of_two();
        let (what, way_out) =
            ("completion queues after 2^32, or after 2^40 eras", "start another process");
        let stamps = Stamps::new(core.id).ok_or(VerbsError::Unsupported { what, way_out })?;
        let seat = channel.map(|(_, seats)| Seats::take(seats)).transpose()?;
        let events = channel.map(|(events, _)| events.handle());
        let log_size = entries.ilog2() as u8;
        let attr = CqAttr { log_size, compression: None, events: events.as_ref() };
        let (ring, handle) = CqRing::new(core.device(), &attr)?;
        let armer = Armer::new(&ring, &handle)?;
        let free = (room == Room::Reserved).then(|| AtomicU32::new(entries));
        let (entries, names) = (AtomicU32::new(entries), Arc::default());
        let left = AtomicU32::new(0);
        let inner = CqCore { handle, core, entries, stamps, names, free, left, _seat: seat };
        let inner = Arc::new(inner);
        Ok(Self { ring, inner, armer, idle_polls: 0 })
    }

    pub(crate) fn core(&self) -> Arc<CqCore> {
        Arc::clone(&self.inner)
    }

    /// Number of the queue, as completion events name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Entries of the queue.
    #[must_use]
    pub fn entries(&self) -> u32 {
        self.inner.entries.load(Ordering::Relaxed)
    }

    /// Gives the queue at least `entries` entries, rounded up to a power of two; what is posted
    /// goes on. `each` is given the completions that stand in it, oldest first, with their
    /// [time](crate::CqEntry::ticks): the queue is empty when this returns. A command: not for the
    /// data path.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`], [`VerbsError::CqTooSmall`] when queue pairs were promised more
    /// than would be left, [`VerbsError::Unsupported`], or what the device refused: the queue is as
    /// it was.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize(
        &mut self,
        entries: u32,
        mut each: impl FnMut(Completion, u64),
    ) -> Result<(), VerbsError> {
        let (core, before) = (&self.inner.core, self.entries());
        VerbsError::range("entries of the CQ", entries.into(), 1, core.attr.max_cqe.into())?;
        if !core.hca().cq_resize() {
            let (what, way_out) = ("queues that change their size", "make another queue");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let entries = entries.next_power_of_two();
        let lost = before.saturating_sub(entries);
        // What queue pairs had that are gone is free if nothing stands there any more.
        self.take_back();
        if let Some(free) = &self.inner.free {
            let take = |free: u32| free.checked_sub(lost);
            free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take)
                .map_err(|free| VerbsError::CqTooSmall { need: lost, free })?;
        }
        let resized = self.ring.resize(&self.inner.handle, entries.ilog2() as u8, |slot, last| {
            let completion = Completion::read(slot, last, &self.inner.stamps);
            each(completion, Completion::time_of(slot));
        });
        let (gained, now) = match &resized {
            Ok(()) => (entries.saturating_sub(before), entries),
            Err(_) => (lost, before),
        };
        if let Some(free) = &self.inner.free {
            free.fetch_add(gained, Ordering::AcqRel);
        }
        self.inner.entries.store(now, Ordering::Relaxed);
        Ok(resized?)
    }

    /// Sets when an armed queue has its event: after `max_count` completions, or when the last
    /// event is `period_us` microseconds ago, whichever comes first; 0 and 0 for at once. A
    /// command.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OutOfRange`] for more than [`Cq::MAX_PERIOD_US`],
    /// [`VerbsError::Unsupported`], or what the device refused.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate(&self, max_count: u16, period_us: u16) -> Result<(), VerbsError> {
        let most = Self::MAX_PERIOD_US.into();
        VerbsError::range("period of the CQ's events in us", period_us.into(), 0, most)?;
        if !self.inner.core.hca().cq_moderation() {
            let (what, way_out) = ("events that wait for more", "leave moderation out");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        Ok(self.inner.handle.moderate_cq(max_count, period_us)?)
    }

    /// Lets the device write over completions that nobody has polled, where it would fail the
    /// queue: they are lost, and so is what their requests held, until the queue pair is gone. A
    /// command.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`], or what the device refused.
    #[doc(alias = "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN")]
    pub fn ignore_overruns(&self) -> Result<(), VerbsError> {
        if !self.inner.core.hca().cq_oi() {
            let (what, way_out) = ("queues that may overrun", "make the queue larger");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        Ok(self.inner.handle.ignore_overruns()?)
    }

    /// Longest period of [`Cq::moderate`] in microseconds.
    pub const MAX_PERIOD_US: u16 = Handle::MAX_CQ_PERIOD_US;

    /// How many completions stand in it that nobody has taken.
    pub(crate) fn standing(&self) -> u32 {
        self.ring.standing().count() as u32
    }

    /// Strikes a number out of the completions that stand in the queue and are of such `kinds`:
    /// they are nobody's from now on. How many they were.
    pub(crate) fn forget(&self, number: u32, kinds: &[Ends]) -> u32 {
        self.strike(|standing| standing.number == number && kinds.contains(&standing.ends))
    }

    /// Makes those completions nobody's that stand in the queue and of which `is_lost` says so; how
    /// many they were.
    pub(crate) fn strike(&self, is_lost: impl Fn(Standing) -> bool) -> u32 {
        let mut struck = 0;
        for (slot, standing) in self.standing_entries() {
            if is_lost(standing) {
                slot.store_be32::<{ Cqe64::SOP_DROP_QPN.offset }>(NOBODY);
                struck += 1;
            }
        }
        struck
    }

    /// How many failures of receives stand in the queue under a number.
    pub(crate) fn failed_receives(&self, number: u32) -> u32 {
        let is_one = |it: &Standing| (it.number, it.ends) == (number, Ends::FailedReceive);
        self.standing_entries().filter(|(_, standing)| is_one(standing)).count() as u32
    }

    fn standing_entries(&self) -> impl Iterator<Item = (Slot<'_, 64>, Standing)> {
        self.ring.standing().map(|(slot, last)| {
            let word = slot.load_be32::<{ Cqe64::SOP_DROP_QPN.offset }>();
            let number = Cqe64::SOP_DROP_QPN.get(word);
            let (user_index, ends) = (user_index_of(&slot), Head { last, error_be: 0 }.ends());
            (slot, Standing { number, user_index, ends })
        })
    }

    /// The next completion, if there is one. Give it to the queue pair that it names.
    #[inline]
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll(&mut self) -> Option<Completion> {
        let Some((slot, last)) = self.ring.take() else {
            self.idle();
            return None;
        };
        let completion = Completion::read(&slot, last, &self.inner.stamps);
        self.ring.tell();
        Some(completion)
    }

    /// Appends the next completions to `batch`, as many as it has room for, and returns how many
    /// they were. The device is told once that their entries are free.
    #[inline]
    pub fn poll_batch<const N: usize>(&mut self, batch: &mut ArrayVec<Completion, N>) -> usize {
        let before = batch.len();
        while batch.len() < N
            && let Some((slot, last)) = self.ring.take()
        {
            batch.push(Completion::read(&slot, last, &self.inner.stamps));
        }
        let taken = batch.len() - before;
        match taken {
            0 => self.idle(),
            _ => self.ring.tell(),
        }
        taken
    }

    /// Notes that there was nothing to poll. Now and then it looks whether the firmware waits for
    /// somebody who polls events.
    #[cold]
    #[inline(never)]
    pub(crate) fn idle(&mut self) {
        self.idle_polls = self.idle_polls.wrapping_add(1);
        if self.idle_polls.is_multiple_of(CLEAR_EVERY) {
            self.inner.names.look(|| !self.ring.has_next());
            if self.idle_polls.is_multiple_of(LOOK_EVERY) {
                self.inner.core.look_for_neglect();
            }
        }
    }

    /// Whether there is a completion to poll.
    #[inline(always)]
    #[must_use]
    pub fn has_completion(&self) -> bool {
        self.ring.has_next()
    }

    /// Asks for one event when the next completion comes that was not polled yet. See
    /// [`CompletionChannel`](crate::CompletionChannel).
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn arm(&self, what: Notify) {
        self.armer.arm(self.ring.consumer_index(), what);
    }

    /// Notes that an event of this queue was taken from its channel; arm it again after this.
    #[doc(alias = "ibv_ack_cq_events")]
    pub fn ack_event(&mut self) {
        self.armer.event();
    }
}

/// The index that an entry carries.
#[inline(always)]
pub(crate) fn user_index_of(slot: &Slot<'_, 64>) -> u32 {
    Cqe64::SRQN_UIDX.get(slot.load_be32::<{ Cqe64::SRQN_UIDX.offset }>())
}

/// The words of an entry that every request needs. Small enough to be handed over in registers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    /// Counter, signature, opcode and owner; as a number.
    pub(crate) last: u32,
    pub(crate) error_be: u32,
}

impl Head {
    #[inline(always)]
    pub(crate) fn opcode(self) -> CqeOpcode {
        CqeOpcode(Cqe64::OPCODE.get(self.last))
    }

    /// Whether it ends send requests, without error.
    #[inline(always)]
    pub(crate) fn is_requester(self) -> bool {
        self.last & Cqe64::OPCODE.mask() == Cqe64::OPCODE.of(CqeOpcode::REQUESTER.0)
    }

    /// Whether a message filled a receive.
    #[inline(always)]
    pub(crate) fn is_received(self) -> bool {
        const FIRST: u32 = CqeOpcode::RESPONDER_WRITE_IMM.0;
        const LAST: u32 = CqeOpcode::RESPONDER_SEND_INVAL.0;
        // The codes in between are the other receives. Source: reference 6.7.
        (FIRST..=LAST).contains(&self.opcode().0)
    }

    pub(crate) fn ends(self) -> Ends {
        match self.opcode() {
            CqeOpcode::REQUESTER | CqeOpcode::REQUESTER_ERROR => Ends::Sends,
            CqeOpcode::RESPONDER_ERROR => Ends::FailedReceive,
            _ => Ends::Receive,
        }
    }

    /// Whether a WRITE with immediate data ended a receive.
    #[inline(always)]
    pub(crate) fn is_write(self) -> bool {
        self.opcode() == CqeOpcode::RESPONDER_WRITE_IMM
    }

    #[inline(always)]
    pub(crate) fn wqe_counter(self) -> u16 {
        Cqe64::WQE_COUNTER.get(self.last) as u16
    }

    #[inline(always)]
    fn is_solicited(self) -> bool {
        self.last & Cqe64::SE.mask() != 0
    }

    /// Only of failures.
    pub(crate) fn failure(self) -> Failure {
        let error = u32::from_be(self.error_be);
        Failure {
            syndrome: CqeSyndrome(ErrCqe::SYNDROME.get(error) as u8),
            vendor: ErrCqe::VENDOR_ERR_SYND.get(error) as u8,
        }
    }
}

/// One entry of a completion queue, to be given to the queue pair that it names:
/// [`Qp::complete`](crate::Qp::complete). Others refuse it, and so does the next of the same number
/// or the same one after a reset. It is good once:
///
/// ```compile_fail,E0382
/// # use ferrocx_verbs_lite::*;
/// fn twice(qp: &mut Qp, completion: Completion) {
///     let _ = qp.complete(completion, drop);
///     let _ = qp.complete(completion, drop);
/// }
/// ```
#[derive(Debug)]
#[must_use = "the queue pair does not know of it yet"]
pub struct Completion {
    // Words as they stand in the entry: most completions need few of them as numbers.
    pub(crate) head: Head,
    /// The queue pair's number, as it stands in memory, and the era in which it was taken.
    pub(crate) number: u64,
    /// Where it was taken.
    pub(crate) source: Source,
    /// The words of `rqpn` and, behind it, of `l3_ok`.
    flags_types: u64,
    user_index_be: u32,
    word_be: u32,
    byte_cnt_be: u32,
    /// The last of the requests that it ends was given out.
    pub(crate) is_taken: bool,
}

impl Completion {
    /// Reads an entry that the device has handed over. Offsets: reference 6.7.
    #[inline(always)]
    pub(crate) fn read(slot: &Slot<'_, 64>, last: u32, stamps: &Stamps) -> Self {
        Self {
            head: Head { last, error_be: slot.load_raw32::<{ ErrCqe::SYNDROME.offset }>() },
            number: stamps.number(slot.load_raw32::<{ Cqe64::SOP_DROP_QPN.offset }>()),
            source: stamps.source,
            flags_types: slot.load_raw64::<{ Cqe64::RQPN.offset }>(),
            user_index_be: slot.load_raw32::<{ Cqe64::SRQN_UIDX.offset }>(),
            word_be: slot.load_raw32::<{ Cqe64::IMM_INVAL_PKEY.offset }>(),
            byte_cnt_be: slot.load_raw32::<{ Cqe64::BYTE_CNT.offset }>(),
            is_taken: false,
        }
    }

    /// When an entry was made, in ticks of the device's clock. Source: reference 6.7.
    #[inline(always)]
    pub(crate) fn time_of(slot: &Slot<'_, 64>) -> u64 {
        u64::from_be(slot.load_raw64::<{ Cqe64::TIMESTAMP.offset }>())
    }

    /// A copy. Where the short way ends, one goes to the long way, so that the words of the
    /// original never leave their registers.
    #[inline(always)]
    pub(crate) fn copied(&self) -> Self {
        Self { ..*self }
    }

    #[inline(always)]
    pub(crate) fn byte_cnt(&self) -> u32 {
        u32::from_be(self.byte_cnt_be)
    }

    /// Immediate data, sender and checksums that a receive brought beside the message.
    #[inline(always)]
    pub(crate) fn recv_info(&self) -> RecvInfo {
        let (opcode, word) = (self.head.opcode(), u32::from_be(self.word_be));
        let both = u64::from_be(self.flags_types);
        let (flags, types) = ((both >> 32) as u32, both as u32);
        let has_imm =
            matches!(opcode, CqeOpcode::RESPONDER_SEND_IMM | CqeOpcode::RESPONDER_WRITE_IMM);
        let invalidates = opcode == CqeOpcode::RESPONDER_SEND_INVAL;
        RecvInfo {
            imm: has_imm.then_some(word),
            invalidated: invalidates.then(|| InvalidatedRkey::new(Rkey(word), self.source.device)),
            source_qpn: Cqe64::RQPN.get(flags),
            network_hdr_type: Cqe64::SL.get(flags) as u8 & NETWORK_HDR_TYPE,
            has_grh: Cqe64::GRH.get(flags) != 0,
            is_solicited: self.head.is_solicited(),
            ip_csum_ok: types & CHECKSUMS_OK == CHECKSUMS_OK && Cqe64::L3_HDR_TYPE.get(types) != 0,
        }
    }

    /// The era in which it was taken, see [`era`].
    pub(crate) fn era(&self) -> u64 {
        era::era_of(self.number)
    }

    /// The queue pair that it is about.
    #[inline]
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        Qpn(u32::from_be(era::qpn_be(self.number)))
    }

    /// The [`QpConfig::user_index`](crate::QpConfig::user_index) of the queue pair: an index into
    /// the caller's own table, or into a [`QpTable`](crate::QpTable).
    #[inline]
    #[must_use]
    pub fn user_index(&self) -> u32 {
        Cqe64::SRQN_UIDX.get(u32::from_be(self.user_index_be))
    }
}
