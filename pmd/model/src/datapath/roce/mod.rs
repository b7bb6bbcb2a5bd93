//! Queue pairs at work: between doorbells, host memory and the wire.
//!
//! [`crate::roce`] decides, this module carries out. What concerns other queues (completions,
//! events) is collected as [`Effect`]s while a queue pair is worked on, and done after it.
//!
//! - `send`: WQEs, packets of requests, answers to them. `receive`: requests of peers, replies.
//! - `ring`: receive WQEs. `umr`: requests that change memory keys. `inline`: small data in
//!   completions. `congestion`: marked packets and notifications.

mod active;
mod answer;
mod congestion;
mod inline;
mod receive;
mod ring;
mod send;
mod umr;

use std::collections::VecDeque;

use ferrocx_bus::local::DmaView;
use ferrocx_prm::cqe::CqeOpcode;
use ferrocx_prm::eqe::EventType;
use ferrocx_prm::syndrome::CqeSyndrome;

use self::active::Active;
use super::cq::{self, Completions, ErrorReport, Urgency};
use super::low16;
use super::packet::{Cast, Packet};
use crate::eq::QueueKind;
use crate::mkey::MkeyTable;
use crate::nic::Ctx;
use crate::objects::{
    InlineData, QCounter, Qp, QpReceive, QpState, QpType, Rmp, RoceCounters, RoceGid, Table, XrcSrq,
};
use crate::port::Port;
use crate::roce::bth::Header;
use crate::roce::packet::{BadFrame, Frame, Path, is_roce, seal};
use crate::wire::{Fcs, Wire};

/// Frames that a port holds for itself at most.
const MAX_LOOPBACK: usize = 256;
/// Frames looped back that are taken in one step.
const LOOPBACK_BURST: usize = 64;
/// Wire number of the general services interface. Source: reference 7.8.
const GSI_QPN: u32 = 1;
/// Wire number of multicast. Source: IBTA vol. 1, 10.5.
const MULTICAST_QPN: u32 = 0xff_ffff;

/// RoCE packets that were not delivered, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RoceDrops {
    /// Headers or lengths are wrong.
    pub malformed: u64,
    /// The ICRC is wrong.
    pub icrc: u64,
    /// No queue pair has this number, or it does not receive.
    pub no_queue: u64,
    /// Another transport service than the queue pair's.
    pub transport: u64,
    /// The P_Key does not match.
    pub pkey: u64,
    /// The Q_Key does not match.
    pub qkey: u64,
}

/// What was done to memory keys by work requests and by peers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeyCounts {
    /// UMR requests that made a free key usable: fast registrations and binds of windows.
    pub umr_registrations: u64,
    /// UMR requests that freed a key: local invalidations.
    pub local_invalidates: u64,
    /// UMR requests that changed a key and left it as free or as usable as it was.
    pub umr_changes: u64,
    /// SEND WITH INVALIDATE of this port that a peer acknowledged.
    pub sends_with_invalidate: u64,
    /// Keys freed by a SEND WITH INVALIDATE of a peer.
    pub remote_invalidates: u64,
}

/// Completions that carried the data themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InlineCounts {
    /// Of receives.
    pub responder: u64,
    /// Of READs and atomics.
    pub requester: u64,
}

/// What is done for other queues once a queue pair has been worked on.
#[derive(Debug)]
enum Effect {
    Complete { cqn: u32, front: InlineData, entry: [u8; 64], urgency: Urgency },
    Event { event: EventType, number: u32 },
    Refuse { field: &'static str, value: u64, why: &'static str },
}

/// Everything around one queue pair.
struct Env<'a> {
    qpn: u32,
    mem: &'a DmaView<'a>,
    keys: &'a mut MkeyTable,
    rmps: &'a mut Table<Rmp>,
    srqs: &'a mut Table<XrcSrq>,
    gids: &'a [Option<RoceGid>],
    counters: &'a mut Table<QCounter>,
    port: &'a mut Port,
    drops: &'a mut RoceDrops,
    key_counts: &'a mut KeyCounts,
    inline_counts: &'a mut InlineCounts,
    effects: &'a mut Vec<Effect>,
    now_ns: u64,
    /// Atomics are in the byte order of the host.
    host_order: bool,
}

impl Env<'_> {
    fn complete(&mut self, cqn: u32, entry: [u8; 64], urgency: Urgency) {
        self.complete_behind(cqn, InlineData::new_const(), entry, urgency);
    }

    /// A completion with `front` in the first half of an entry of 128 bytes.
    fn complete_behind(&mut self, cqn: u32, front: InlineData, entry: [u8; 64], urgency: Urgency) {
        self.effects.push(Effect::Complete { cqn, front, entry, urgency });
    }

    fn event(&mut self, event: EventType, number: u32) {
        self.effects.push(Effect::Event { event, number });
    }

    #[cold]
    fn refuse(&mut self, field: &'static str, value: u64, why: &'static str) {
        self.effects.push(Effect::Refuse { field, value, why });
    }

    /// Counts in the Q counter set of a queue pair.
    fn count(&mut self, qp: &Qp, count: impl FnOnce(&mut RoceCounters)) {
        if let Some(set) = self.counters.get_mut(qp.context.counter_set_id()) {
            count(&mut set.roce);
        }
    }

    fn out_of_buffer(&mut self, qp: &Qp) {
        self.port.counters.rx_out_of_buffer += 1;
        if let Some(set) = self.counters.get_mut(qp.context.counter_set_id()) {
            set.out_of_buffer += 1;
        }
    }

    fn gid(&self, index: u32) -> Option<&RoceGid> {
        self.gids.get(index as usize)?.as_ref()
    }
}

/// Whether a unicast address is this port's.
fn is_own(port: &Port, gids: &[Option<RoceGid>], mac: &[u8; 6]) -> bool {
    port.vport.mac == *mac || gids.iter().flatten().any(|gid| gid.mac == *mac)
}

/// Frames that a port sends to itself.
#[derive(Debug, Default)]
struct Loopback {
    frames: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
}

/// Where packets go.
struct Output<'a> {
    wire: &'a mut dyn Wire,
    loopback: &'a mut Loopback,
}

/// Whether a packet went out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Yes,
    /// The way is full: try again later.
    Full,
}

impl Output<'_> {
    /// Builds a packet in place and sends it. `fill` writes the payload; when it fails, nothing is
    /// sent. A packet that the port cannot send is counted and lost: its queue pair will retry.
    fn send<E>(
        &mut self,
        env: &mut Env<'_>,
        (path, header): (&Path, &Header),
        len: usize,
        block_loopback: bool,
        fill: impl FnOnce(&mut Env<'_>, &mut [u8]) -> Result<(), E>,
    ) -> Result<Sent, E> {
        let bytes = path.frame_bytes(header, len);
        if !env.port.is_up() {
            env.port.counters.tx_link_down += 1;
            return Ok(Sent::Yes);
        }
        // The port's MTU counts the FCS too. Source: reference 4.7, PMTU.
        if bytes > (env.port.mtu as usize).saturating_sub(4) {
            env.port.counters.tx_errors.add(bytes as u64);
            env.refuse("packet", bytes as u64, "longer than the MTU of the port");
            return Ok(Sent::Yes);
        }
        let cast = Cast::of(&path.dmac);
        if cast == Cast::Unicast && is_own(env.port, env.gids, &path.dmac) {
            if self.loopback.frames.len() >= MAX_LOOPBACK {
                return Ok(Sent::Full);
            }
            let mut frame = self.loopback.spare.pop().unwrap_or_default();
            frame.resize(bytes, 0);
            let at = path.write(header, len, &mut frame);
            fill(env, &mut frame[at.clone()])?;
            seal(path, &mut frame, at);
            self.loopback.frames.push_back(frame);
            return Ok(Sent::Yes);
        }
        let Some(frame) = self.wire.reserve(bytes) else { return Ok(Sent::Full) };
        let at = path.write(header, len, frame);
        fill(env, &mut frame[at.clone()])?;
        seal(path, frame, at);
        if cast != Cast::Unicast && !block_loopback && self.loopback.frames.len() < MAX_LOOPBACK {
            self.loopback.frames.push_back(frame.to_vec());
        }
        self.wire.commit(env.now_ns, Fcs::Good);
        let counters = &mut env.port.counters;
        let kind = match cast {
            Cast::Unicast => &mut counters.tx_unicast,
            Cast::Multicast => &mut counters.tx_multicast,
            Cast::Broadcast => &mut counters.tx_broadcast,
        };
        kind.add(bytes as u64);
        Ok(Sent::Yes)
    }
}

/// The RoCE side of the data path.
#[derive(Debug, Default)]
pub(super) struct Roce {
    /// Queue pairs with something to do.
    active: Active,
    loopback: Loopback,
    drops: RoceDrops,
    key_counts: KeyCounts,
    inline_counts: InlineCounts,
    effects: Vec<Effect>,
}

impl Roce {
    pub(super) fn drops(&self) -> RoceDrops {
        self.drops
    }

    pub(super) fn key_counts(&self) -> KeyCounts {
        self.key_counts
    }

    pub(super) fn inline_counts(&self) -> InlineCounts {
        self.inline_counts
    }

    pub(super) fn clear(&mut self) {
        self.active.clear();
        self.loopback.frames.clear();
    }

    pub(super) fn activate(&mut self, qpn: u32) {
        self.active.add(qpn);
    }

    /// Works on one queue pair, then does what follows for others.
    fn with<R>(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        qpn: u32,
        work: impl FnOnce(&mut Qp, &mut Env<'_>, &mut Loopback) -> R,
    ) -> Option<R> {
        let mut effects = std::mem::take(&mut self.effects);
        let state = &mut *ctx.state;
        let host_order = state.caps.host_order_atomics();
        let objects = &mut state.objects;
        let qp = objects.qps.get_mut(qpn)?;
        let mut env = Env {
            qpn,
            mem: ctx.mem,
            keys: &mut objects.mkeys,
            rmps: &mut objects.rmps,
            srqs: &mut objects.xrc_srqs,
            gids: &objects.roce_gids,
            counters: &mut objects.q_counters,
            port: &mut state.port,
            drops: &mut self.drops,
            key_counts: &mut self.key_counts,
            inline_counts: &mut self.inline_counts,
            effects: &mut effects,
            now_ns: ctx.now_ns,
            host_order,
        };
        let result = work(qp, &mut env, &mut self.loopback);
        for effect in effects.drain(..) {
            match effect {
                Effect::Complete { cqn, front, entry, urgency } => {
                    cq::complete_behind(ctx, completions, cqn, (&front, entry), urgency);
                }
                Effect::Event { event, number } => ctx.queue_event(event, QueueKind::Qp, number),
                Effect::Refuse { field, value, why } => ctx.refuse_data(field, value, why),
            }
        }
        self.effects = effects;
        Some(result)
    }

    /// The doorbell of a UAR page was rung: reads the record of a queue pair that may be meant.
    pub(super) fn doorbell(&mut self, ctx: &mut Ctx<'_>, qpn: u32) {
        let Some(qp) = ctx.state.objects.qps.get_mut(qpn) else { return };
        let Some(log_size) = qp.log_sq_size else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Sqer | QpState::Error) {
            return;
        }
        qp.stats.doorbells += 1;
        let Ok(record) = ctx.mem.load_acquire_be32(qp.context.dbr_addr() + 4) else {
            ctx.refuse_data("qp dbr_addr", u64::from(qpn), "doorbell record cannot be read");
            return;
        };
        // Low 16 bits are significant: reference 6.6.
        let posted = low16(record.into());
        if u32::from(posted.wrapping_sub(qp.sq_fetched)) > 1 << log_size {
            let why = "more blocks posted than the ring has";
            ctx.refuse_data("send counter", u64::from(posted), why);
            return;
        }
        qp.sq_posted = posted;
        // A look is worth no turn: most queue pairs of the page were not rung.
        if posted != qp.sq_fetched {
            self.activate(qpn);
        }
    }

    /// A queue pair goes to the error state.
    pub(super) fn end(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions, qpn: u32) {
        self.with(ctx, completions, qpn, |qp, env, _| fail(qp, env));
        self.activate(qpn);
    }

    /// Takes a frame if it is for the RoCE port. Returns whether it is.
    pub(super) fn frame(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        bytes: &[u8],
        packet: &Packet,
    ) -> bool {
        let state = &ctx.state;
        if !state.config.roce || !state.port.vport.roce_en || !is_roce(bytes, packet) {
            return false;
        }
        let Some(dmac) = bytes.first_chunk() else { return false };
        if packet.cast == Cast::Unicast && !is_own(&state.port, &state.objects.roce_gids, dmac) {
            return false;
        }
        match Frame::parse(bytes, packet) {
            Ok(frame) => self.deliver(ctx, completions, &frame),
            Err(BadFrame::NotRoce) => return false,
            Err(BadFrame::Malformed) => self.drops.malformed += 1,
            Err(BadFrame::Icrc) => self.drops.icrc += 1,
        }
        true
    }

    fn deliver(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions, frame: &Frame<'_>) {
        let objects = &ctx.state.objects;
        let qpn = match frame.header.dest_qpn {
            GSI_QPN => {
                let is_gsi = |qp: &Qp| qp.qp_type == QpType::Gsi && qp.state.receives();
                let found = objects.qps.iter().find(|(_, qp)| is_gsi(qp));
                found.map_or(GSI_QPN, |(qpn, _)| qpn)
            }
            MULTICAST_QPN => {
                let group = receive::destination_gid(frame);
                let members: Vec<u32> = objects
                    .multicast
                    .iter()
                    .filter(|(gid, _)| *gid == group)
                    .map(|(_, qpn)| *qpn)
                    .collect();
                for qpn in members {
                    self.deliver_to(ctx, completions, qpn, frame);
                }
                return;
            }
            qpn => qpn,
        };
        self.deliver_to(ctx, completions, qpn, frame);
    }

    fn deliver_to(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        qpn: u32,
        frame: &Frame<'_>,
    ) {
        let is_known = self
            .with(ctx, completions, qpn, |qp, env, _| receive::packet(qp, env, frame))
            .is_some();
        if is_known {
            self.activate(qpn);
        } else {
            self.drops.no_queue += 1;
        }
    }

    /// Once per step. Returns whether anything was done.
    pub(super) fn poll(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut busy = false;
        for _ in 0..LOOPBACK_BURST {
            let Some(bytes) = self.loopback.frames.pop_front() else { break };
            busy = true;
            let packet = Packet::parse(&bytes);
            self.frame(ctx, completions, &bytes, &packet);
            self.loopback.spare.push(bytes);
        }
        for _ in 0..self.active.len() {
            // While there is no room, a turn would bring nothing: the next step makes some.
            if self.loopback.frames.len() >= MAX_LOOPBACK {
                break;
            }
            let Some(qpn) = self.active.take() else { break };
            let turn = self.with(ctx, completions, qpn, |qp, env, loopback| {
                turn(qp, env, &mut Output { wire: &mut *wire, loopback })
            });
            let (did, stays) = turn.unwrap_or((false, false));
            busy |= did;
            if stays {
                self.active.add(qpn);
            }
        }
        busy
    }
}

/// One turn of a queue pair: whether it did anything, and whether it wants another one.
fn turn(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> (bool, bool) {
    let mut busy = congestion::notify(qp, env, out);
    busy |= receive::send_replies(qp, env, out);
    match qp.state {
        QpState::Reset | QpState::Init | QpState::Rtr => {}
        QpState::Rts => busy |= send::run(qp, env, out),
        QpState::Sqer => busy |= answer::flush(qp, env),
        QpState::Error => {
            busy |= answer::flush(qp, env);
            busy |= ring::flush(qp, env);
        }
    }
    let sends = qp.sq_posted != qp.sq_fetched || !qp.requester.is_empty();
    // Receives posted to a failed queue pair ring no bell, and are flushed all the same.
    let flushes = qp.state == QpState::Error && matches!(qp.receive, QpReceive::Own(_));
    let stays = qp.responder.reply().is_some()
        || qp.cnp_due
        || flushes
        || (sends && matches!(qp.state, QpState::Rts | QpState::Sqer | QpState::Error));
    (busy, stays)
}

/// Moves a queue pair to the error state and flushes everything posted.
fn fail(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.state == QpState::Error {
        return;
    }
    qp.state = QpState::Error;
    if let Some(taken) = qp.taken.take() {
        receive::report(qp, env, &taken, CqeSyndrome::WR_FLUSH_ERR);
    }
    answer::flush(qp, env);
    ring::flush(qp, env);
    if matches!(qp.receive, QpReceive::Rmp(_) | QpReceive::Srq(_)) {
        let qpn = env.qpn;
        env.event(EventType::SRQ_LAST_WQE, qpn);
    }
}

/// Writes an error completion of a queue pair.
fn complete_error(
    qp: &mut Qp,
    env: &mut Env<'_>,
    cqn: u32,
    opcode: CqeOpcode,
    (wqe_opcode, wqe_counter): (u8, u16),
    user_index: u32,
    syndrome: CqeSyndrome,
) {
    qp.stats.completions += 1;
    qp.stats.errors += 1;
    let is_flush = syndrome == CqeSyndrome::WR_FLUSH_ERR;
    let is_requester = opcode == CqeOpcode::REQUESTER_ERROR;
    env.count(qp, |count| {
        let counter = match (is_requester, is_flush) {
            (true, true) => &mut count.req_cqe_flush_error,
            (true, false) => &mut count.req_cqe_error,
            (false, true) => &mut count.resp_cqe_flush_error,
            (false, false) => &mut count.resp_cqe_error,
        };
        *counter += 1;
        if !is_requester && syndrome == CqeSyndrome::LOCAL_LENGTH_ERR {
            count.resp_local_length_error += 1;
        }
    });
    let queue = env.qpn;
    let report = ErrorReport { cqn, opcode, syndrome, wqe_opcode, queue, wqe_counter, user_index };
    env.complete(cqn, report.entry(), Urgency::Solicited);
}
