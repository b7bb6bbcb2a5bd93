//! Completion queues: entries, ownership, overrun, arming, completions.
//!
//! Source: reference 6.7 (entry, ownership), 6.9 (arming, completions, overrun), 5.4 (context).

use arrayvec::ArrayVec;
use ferrocx_prm::init_seg::CqArm;

use super::active::Active;
use super::block::Block;
use crate::device::caps::CLOCK_KHZ;
use crate::device::fault::FaultSite;
use crate::device::state::Ctx;
use crate::objects::{Cq, CqArmState, CqStatus, Qp, QpState, QueueState};

/// Indices of a CQ are 24 bits wide. Source: reference 6.6.
const INDEX_MASK: u32 = 0xff_ffff;
/// Places of queues that are looked at in one step of work when a CQ fails.
const LOOKS_PER_STEP: u64 = 8;
/// Byte of the entry that holds opcode, format, solicited bit and owner.
pub(crate) const OP_OWN: usize = 63;

/// The device's free-running counter: what the initialization segment shows and completions carry.
/// Its rate is what the capability page says.
#[inline]
#[must_use]
pub fn timestamp(now_ns: u64) -> u64 {
    // Split so that the product stays below 2^64.
    const { assert!(CLOCK_KHZ == 156_250, "5 ticks in 32 ns") };
    now_ns / 32 * 5 + now_ns % 32 * 5 / 32
}

/// Claim of a completion on an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// An ordinary completion.
    Plain,
    /// Solicited, or with error: also fires a CQ armed for those only.
    Solicited,
    /// The descriptor asked for an event (completion mode 3): moderation does not hold it back.
    Event,
}

impl Cq {
    #[inline]
    fn size(&self) -> u32 {
        1 << self.log_size
    }

    /// Entries written and not consumed, by the consumer index that is known.
    ///
    /// What counts of that index is a place in the ring and whose lap it is: drivers may keep fewer
    /// than its 24 bits, and DPDK keeps 16. Source: reference 6.6.
    #[inline]
    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & (2 * self.size() - 1)
    }

    /// Entries from the next one up to the end of the ring.
    #[inline]
    pub(super) fn entries_to_end(&self) -> u32 {
        self.size() - (self.producer & (self.size() - 1))
    }

    /// Address of the 64 bytes that carry the content of the entry `ahead` of the next.
    #[inline]
    pub(crate) fn entry(&self, ahead: u32) -> u64 {
        let index = self.producer.wrapping_add(ahead) & (self.size() - 1);
        let index = if self.collapsed { 0 } else { index };
        // With 128-byte entries the content is in the second half.
        let half = u64::from(self.cqe_bytes - 64);
        self.memory.locate(u64::from(index) * u64::from(self.cqe_bytes)) + half
    }

    /// Whether an entry with this index reaches what the driver armed for.
    #[inline]
    fn wants(&self, index: u32, urgency: Urgency) -> bool {
        let reached = |ci: u32| index.wrapping_sub(ci) & INDEX_MASK <= INDEX_MASK / 2;
        match self.arm {
            CqArmState::Idle => false,
            CqArmState::Next { ci } => reached(ci),
            CqArmState::Solicited { ci } => urgency != Urgency::Plain && reached(ci),
        }
    }

    /// Whether so many entries fit by what is known, so that nothing need be read.
    #[inline]
    fn surely_takes(&self, entries: u32) -> bool {
        self.status == CqStatus::Ok && self.outstanding() + entries <= self.size()
    }

    /// Counts entries that were written; gives the index of the last.
    #[inline]
    fn produced(&mut self, entries: u32, urgency: Urgency) -> u32 {
        self.producer = self.producer.wrapping_add(entries);
        self.completions += u64::from(entries);
        if urgency != Urgency::Plain {
            self.solicited = self.completions;
        }
        self.producer.wrapping_sub(1) & INDEX_MASK
    }

    /// The claim of the last `unseen` entries on an event: one that is solicited or with error, and
    /// of which no event has told, is among them.
    ///
    /// # Source
    ///
    /// Linux `mlx5_ifc_cqc_bits`: the device keeps `last_solicit_index`.
    fn claim(&self, unseen: u32) -> Urgency {
        let behind = self.completions - self.solicited;
        let is_unseen = self.solicited > self.told && behind < u64::from(unseen);
        if is_unseen { Urgency::Solicited } else { Urgency::Plain }
    }

    /// Whether nobody waits for an event, now or later: the driver looks by itself.
    #[inline]
    fn is_polled(&self) -> bool {
        self.arm == CqArmState::Idle && self.period_us == 0 && self.max_count == 0
    }

    /// Whether an entry may become visible later than those behind it in the ring.
    #[inline]
    fn can_hold(&self) -> bool {
        // Otherwise an event would be ahead of it, or a later entry could take its place.
        self.is_polled() && !self.collapsed && !self.overrun_ignore
    }

    /// Whether moderation lets an event out now.
    #[inline]
    fn moderation_over(&self, now_ns: u64) -> bool {
        if self.period_us == 0 && self.max_count == 0 {
            return true;
        }
        let counted = self.max_count != 0 && self.moderation_count >= self.max_count;
        let period_ns = u64::from(self.period_us) * 1000;
        let waited = self.moderation_since_ns.map_or(0, |since| now_ns.saturating_sub(since));
        counted || (self.period_us != 0 && waited >= period_ns)
    }
}

/// CQs whose first entry of a burst is held back.
const MAX_HELD: usize = 8;

/// An entry that is not written yet, though those behind it may be.
#[derive(Debug)]
struct Held {
    cqn: u32,
    at: u64,
    entry: [u8; 64],
}

/// Events and entries that completion queues hold back for a while.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    /// CQs whose event waits for moderation; one that was destroyed since stands there until it is
    /// looked at.
    waiting: Active,
    /// Entries that may still be joined by others.
    pub(crate) blocks: Vec<Block>,
    /// A burst of frames is being taken.
    in_burst: bool,
    held: ArrayVec<Held, MAX_HELD>,
}

impl Completions {
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
        self.blocks.clear();
        self.held.clear();
    }

    /// Frames arrive together: until [`end_burst`], the first entry of a CQ is written last.
    ///
    /// Entries are read in order, so the driver then finds all of them at once, as behind a bus
    /// that is slower than the wire; it does not take each cache line while the next is written.
    pub(crate) fn start_burst(&mut self) {
        self.in_burst = true;
    }

    /// Whether this entry is held back; the first of its CQ in a burst is.
    #[inline]
    fn hold(&mut self, cq: &Cq, cqn: u32, at: u64, entry: &[u8; 64]) -> bool {
        let first = self.in_burst && !self.held.iter().any(|held| held.cqn == cqn);
        first && cq.can_hold() && self.held.try_push(Held { cqn, at, entry: *entry }).is_ok()
    }

    /// Fires the events whose time has come. Returns whether there was one.
    pub(crate) fn poll(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let before = self.waiting.len();
        for _ in 0..before {
            let Some(cqn) = self.waiting.take() else { break };
            let armed = |cq: &&Cq| cq.arm != CqArmState::Idle;
            let Some(cq) = ctx.state.objects.cqs.get(cqn).filter(armed) else { continue };
            if cq.moderation_over(ctx.now_ns) {
                fire(ctx, cqn);
            } else {
                self.waiting.add(cqn);
            }
        }
        self.waiting.len() != before
    }
}

/// Raises the event and disarms. Source: reference 6.9: `sn` is incremented after each event.
fn fire(ctx: &mut Ctx<'_>, cqn: u32) {
    let now_ns = ctx.now_ns;
    if let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) {
        cq.arm = CqArmState::Idle;
        cq.arm_sn = (cq.arm_sn + 1) & 3;
        cq.told = cq.completions;
        cq.moderation_count = 0;
        // The period runs from the last event, unless it is to start with the next CQE.
        cq.moderation_since_ns = if cq.period_from_cqe { None } else { Some(now_ns) };
    }
    ctx.completion_event(cqn);
}

/// The burst is over: makes the entries visible that were held back.
pub(crate) fn end_burst(ctx: &mut Ctx<'_>, completions: &mut Completions) {
    completions.in_burst = false;
    while let Some(Held { cqn, at, entry }) = completions.held.pop() {
        if ctx.mem.write_release(at, &entry).is_err() {
            fail(ctx, cqn, CqStatus::WriteFailure);
        }
    }
}

/// Writes one entry behind what is in the ring.
#[inline]
pub(crate) fn complete_now(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    (front, entry): (&[u8], &mut [u8; 64]),
    urgency: Urgency,
) -> bool {
    let Some(mut cq) = ctx.state.objects.cqs.get_mut(cqn) else { return false };
    if !cq.surely_takes(1) || ctx.state.faults.has_sites() {
        if !has_room(ctx, cqn, 1) {
            return false;
        }
        let Some(again) = ctx.state.objects.cqs.get_mut(cqn) else { return false };
        cq = again;
    }
    set_owner(cq, entry);
    let at = cq.entry(0);
    let has_front =
        front.is_empty() || ctx.mem.write(at - u64::from(cq.cqe_bytes - 64), front).is_ok();
    let is_held = has_front && completions.hold(cq, cqn, at, entry);
    if !has_front || (!is_held && ctx.mem.write_release(at, entry).is_err()) {
        fail(ctx, cqn, CqStatus::WriteFailure);
        return false;
    }
    let last = cq.produced(1, urgency);
    if !cq.is_polled() {
        notify(ctx, completions, cqn, last, urgency);
    }
    true
}

/// Puts the owner bit of this lap into an entry that is written next.
#[inline]
pub(crate) fn set_owner(cq: &Cq, entry: &mut [u8; 64]) {
    // As a word, which is read next: a processor that has to put it together from parts waits until
    // all stores before it are done.
    let word = [entry[OP_OWN - 3], entry[OP_OWN - 2], entry[OP_OWN - 1], entry[OP_OWN]];
    let word = u32::from_be_bytes(word) & !1 | cq.producer >> cq.log_size & 1;
    entry[OP_OWN - 3..].copy_from_slice(&word.to_be_bytes());
}

/// Whether so many entries fit, by the consumer index in the doorbell record; if not the CQ fails.
#[inline(never)]
pub(crate) fn has_room(ctx: &mut Ctx<'_>, cqn: u32, entries: u32) -> bool {
    let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) else { return false };
    if cq.status != CqStatus::Ok {
        return false;
    }
    if ctx.state.faults.strikes(FaultSite::CqOverrun) {
        fail(ctx, cqn, CqStatus::Overflow);
        return false;
    }
    let is_full = |cq: &Cq| !cq.surely_takes(entries);
    if !cq.overrun_ignore && !cq.collapsed && is_full(cq) {
        if !read_consumer(ctx, cqn) {
            return false;
        }
        if ctx.state.objects.cqs.get(cqn).is_some_and(is_full) {
            fail(ctx, cqn, CqStatus::Overflow);
            return false;
        }
    }
    true
}

/// Takes the consumer index from the doorbell record. `false` when it cannot be read: then the CQ
/// has failed.
pub(super) fn read_consumer(ctx: &mut Ctx<'_>, cqn: u32) -> bool {
    let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) else { return false };
    match ctx.mem.load_acquire_be32(cq.dbr_addr) {
        Ok(set_ci) => cq.consumer = set_ci & INDEX_MASK,
        Err(_) => {
            fail(ctx, cqn, CqStatus::WriteFailure);
            return false;
        }
    }
    true
}

/// Counts entries that were written, and raises what is due for the last of them.
pub(crate) fn produce(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    entries: u32,
    urgency: Urgency,
) {
    let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) else { return };
    let last = cq.produced(entries, urgency);
    if !cq.is_polled() {
        notify(ctx, completions, cqn, last, urgency);
    }
}

/// Decides whether a new entry raises an event, now or later.
fn notify(
    ctx: &mut Ctx<'_>,
    completions: &mut Completions,
    cqn: u32,
    index: u32,
    urgency: Urgency,
) {
    let now_ns = ctx.now_ns;
    let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) else { return };
    cq.moderation_count = cq.moderation_count.saturating_add(1);
    cq.moderation_since_ns.get_or_insert(now_ns);
    if !cq.wants(index, urgency) {
        return;
    }
    if urgency == Urgency::Event || cq.moderation_over(now_ns) {
        fire(ctx, cqn);
    } else {
        completions.waiting.add(cqn);
    }
}

/// A CQ is lost: event, and every queue attached to it goes to error. What is posted to its queue
/// pairs is flushed once the device is done with what it is at.
///
/// # Source
/// Reference 6.9: "CQ error event 0x04 syndrome 1, CQ status 9, attached queues go to error".
#[cold]
pub(crate) fn fail(ctx: &mut Ctx<'_>, cqn: u32, status: CqStatus) {
    let objects = &mut ctx.state.objects;
    // One that has failed already has nothing more to lose.
    let Some(cq) = objects.cqs.get_mut(cqn).filter(|cq| cq.status == CqStatus::Ok) else { return };
    cq.status = status;
    cq.arm = CqArmState::Idle;
    // The places of queues that are gone are looked at, too.
    let looks = objects.sqs.numbers() + objects.rqs.numbers() + objects.qps.numbers();
    objects.mkeys.work(looks as u64 / LOOKS_PER_STEP);
    for (_, sq) in objects.sqs.iter_mut().filter(|(_, sq)| sq.cqn == cqn) {
        if sq.state == QueueState::Ready {
            sq.state = QueueState::Error;
        }
    }
    for (_, rq) in objects.rqs.iter_mut().filter(|(_, rq)| rq.cqn == cqn) {
        if rq.state == QueueState::Ready {
            rq.state = QueueState::Error;
        }
        if status == CqStatus::Overflow
            && let Some(counter) = objects.q_counters.get_mut(rq.counter_set_id)
        {
            counter.cq_overflow += 1;
        }
    }
    let on_it = |qp: &Qp| qp.context.cqn_snd() == cqn || qp.context.cqn_rcv() == cqn;
    for (qpn, qp) in objects.qps.iter_mut().filter(|(_, qp)| on_it(qp)) {
        if !matches!(qp.state, QpState::Reset | QpState::Error) {
            qp.state = QpState::Error;
            objects.lost_qps.push(qpn);
        }
    }
    if status == CqStatus::Overflow {
        ctx.refuse_data("set_ci", u64::from(cqn), "completion queue overrun");
        ctx.cq_overrun_event(cqn);
    } else {
        ctx.refuse_data("cq pas", u64::from(cqn), "completion queue entry cannot be written");
        ctx.cq_access_event(cqn);
    }
}

/// The driver rang the arm doorbell of a UAR page to which this CQ belongs.
///
/// What counts is the arm word of the doorbell record: it is written before the doorbell. A record
/// whose sequence number is not the CQ's belongs to an event that was raised already. A doorbell
/// that names the CQ and is ahead of the record means that the record was forgotten: refused.
pub(crate) fn arm(ctx: &mut Ctx<'_>, completions: &mut Completions, cqn: u32, rung: Option<CqArm>) {
    let Some(cq) = ctx.state.objects.cqs.get_mut(cqn) else { return };
    if cq.status != CqStatus::Ok {
        return;
    }
    let Ok(word) = ctx.mem.load_acquire_be32(cq.dbr_addr + 4) else {
        ctx.refuse_data("cq dbr_addr", u64::from(cqn), "arm record cannot be read");
        return fail(ctx, cqn, CqStatus::WriteFailure);
    };
    let record = CqArm((u64::from(word) << 32).to_be_bytes());
    if let Some(rung) = rung {
        let ahead = rung.ci().wrapping_sub(record.ci()) & INDEX_MASK;
        let stale = record.sn() != rung.sn() || (ahead != 0 && ahead <= INDEX_MASK / 2);
        if stale && rung.sn() == cq.arm_sn {
            ctx.refuse_data("cq arm", u64::from(cqn), "doorbell without its doorbell record");
            return;
        }
    }
    if record.sn() != cq.arm_sn {
        return;
    }
    let ci = record.ci();
    cq.arm = match cq.arm {
        // Who waits for the next entry still does. Source: IBTA vol. 1, C11-31, C11-32.
        next @ CqArmState::Next { .. } if record.solicited_only() => next,
        _ if record.solicited_only() => CqArmState::Solicited { ci },
        _ => CqArmState::Next { ci },
    };
    // An entry that the driver had not seen when it armed is there already, and no event has told
    // of it: one for each request, and not a second one of what was there at the first.
    let unseen = cq.producer.wrapping_sub(ci) & INDEX_MASK;
    let last = cq.producer.wrapping_sub(1) & INDEX_MASK;
    let is_new = cq.completions != cq.told;
    if is_new && unseen != 0 && unseen <= INDEX_MASK / 2 && cq.wants(last, cq.claim(unseen)) {
        if cq.moderation_over(ctx.now_ns) {
            fire(ctx, cqn);
        } else {
            completions.waiting.add(cqn);
        }
    }
}
