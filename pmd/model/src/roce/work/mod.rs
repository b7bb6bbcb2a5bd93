//! Queue pairs at work: between doorbells, host memory and the wire.
//!
//! [`crate::roce::transport`] decides, this module carries out. From the top down:
//!
//! - `send`: packets of requests. `receive`: requests of peers; `reply`: what they get. `answer`:
//!   answers of peers. `congestion`: marked packets and notifications.
//! - `error`: the error state. `completion`, `inline`: completions of requests, and the small data
//!   that stand in them. `umr`: requests that change memory keys.
//! - `wqe`, `ring`: send and receive WQEs. `path`: addresses of packets. `output`: where they go.
//! - `env`: what surrounds a queue pair while it is worked on; [`counts`].

mod answer;
mod completion;
mod congestion;
pub(crate) mod counts;
mod env;
mod error;
mod inline;
mod output;
mod path;
mod receive;
mod reply;
mod ring;
mod send;
mod umr;
mod wqe;
mod xrc;

use ferrocx_prm::eqe::EventType;

use self::counts::{InlineCounts, KeyCounts, RoceDrops};
use self::env::{Effect, Env, is_own};
use self::error::{fail, flush};
use self::output::{Loopback, MAX_LOOPBACK, Output};
use crate::bits::low16;
use crate::device::state::Ctx;
use crate::frame::packet::{Cast, Packet};
use crate::objects::{Qp, QpReceive, QpState};
use crate::queue::active::Active;
use crate::queue::completion::complete_behind;
use crate::queue::cq::Completions;
use crate::queue::eq::QueueKind;
use crate::roce::transport::packet::{BadFrame, Frame, is_roce};
use crate::roce::transport::{GSI_QPN, MULTICAST_QPN};
use crate::wire::{Received, Wire};

/// Frames looped back that are taken in one step.
const LOOPBACK_BURST: usize = 64;
/// Queue pairs that have a turn in one step; the others have theirs in the next ones.
const MAX_TURNS: usize = 256;

/// The RoCE side of the data path.
#[derive(Debug, Default)]
pub(crate) struct Roce {
    /// Queue pairs with something to do.
    active: Active,
    loopback: Loopback,
    drops: RoceDrops,
    key_counts: KeyCounts,
    inline_counts: InlineCounts,
    effects: Vec<Effect>,
}

impl Roce {
    pub(crate) fn drops(&self) -> RoceDrops {
        self.drops
    }

    pub(crate) fn key_counts(&self) -> KeyCounts {
        self.key_counts
    }

    pub(crate) fn inline_counts(&self) -> InlineCounts {
        self.inline_counts
    }

    pub(crate) fn clear(&mut self) {
        self.active.clear();
        self.loopback.frames.clear();
    }

    pub(crate) fn activate(&mut self, qpn: u32) {
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
        let objects = &mut state.objects;
        let owner = objects.qps.owner(qpn)?;
        let qp = objects.qps.get_mut(qpn)?;
        let mut env = Env {
            qpn,
            owner,
            mem: ctx.mem,
            keys: &mut objects.mkeys,
            pds: &mut objects.pds,
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
            caps: &state.caps,
        };
        let result = work(qp, &mut env, &mut self.loopback);
        for effect in effects.drain(..) {
            match effect {
                Effect::Complete { cqn, front, mut entry, urgency } => {
                    let front = front.as_ref().map_or(&[][..], |front| front);
                    complete_behind(ctx, completions, cqn, (front, &mut entry), urgency);
                }
                Effect::Event { event, number } => ctx.queue_event(event, QueueKind::Qp, number),
                Effect::Refuse { field, value, why } => ctx.refuse_data(field, value, why),
            }
        }
        self.effects = effects;
        Some(result)
    }

    /// The doorbell of a UAR page was rung: reads the record of a queue pair that may be meant.
    pub(crate) fn doorbell(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions, qpn: u32) {
        let Some(qp) = ctx.state.objects.qps.get_mut(qpn) else { return };
        let Some(log_size) = qp.log_sq_size else { return };
        if !matches!(qp.state, QpState::Rts | QpState::Sqer | QpState::Error) {
            return;
        }
        qp.stats.doorbells += 1;
        let Ok(record) = ctx.mem.load_acquire_be32(qp.dbr_addr + 4) else {
            ctx.refuse_data("qp dbr_addr", u64::from(qpn), "doorbell record cannot be read");
            return self.lose(ctx, completions, qpn);
        };
        // Low 16 bits are significant: reference 6.6.
        let posted = low16(record.into());
        if u32::from(posted.wrapping_sub(qp.sq_fetched)) > 1 << log_size {
            let why = "more blocks posted than the ring has";
            ctx.refuse_data("send counter", u64::from(posted), why);
            return self.lose(ctx, completions, qpn);
        }
        qp.sq_posted = posted;
        // A look is worth no turn: most queue pairs of the page were not rung.
        if posted != qp.sq_fetched {
            self.activate(qpn);
        }
    }

    /// A queue pair fails without a request to blame, as a send queue of Ethernet does: an event.
    #[cold]
    fn lose(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions, qpn: u32) {
        if ctx.state.objects.qps.get(qpn).is_some_and(|qp| qp.state != QpState::Error) {
            ctx.queue_event(EventType::WQ_CATASTROPHIC, QueueKind::Qp, qpn);
            self.end(ctx, completions, qpn);
        }
    }

    /// A queue pair goes to the error state.
    pub(crate) fn end(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions, qpn: u32) {
        self.with(ctx, completions, qpn, |qp, env, _| fail(qp, env));
        self.activate(qpn);
    }

    /// Queue pairs that lost a completion queue fail without a request to blame, too. Returns
    /// whether there were any.
    ///
    /// # Source
    ///
    /// IBTA vol. 1, 11.6.3: an error of a CQ leads to catastrophic errors of its work queues.
    fn end_lost(&mut self, ctx: &mut Ctx<'_>, completions: &mut Completions) -> bool {
        let mut busy = false;
        // What is flushed may be too much for another CQ, and more follow.
        while let Some(qpn) = ctx.state.objects.lost_qps.pop() {
            busy = true;
            self.with(ctx, completions, qpn, |qp, env, _| {
                // Not if it was reset or destroyed since.
                if qp.state == QpState::Error {
                    env.event(EventType::WQ_CATASTROPHIC, qpn);
                    flush(qp, env);
                }
            });
            self.activate(qpn);
            if ctx.is_turn_over() {
                break;
            }
        }
        busy
    }

    /// Takes a frame if it is for the RoCE port. Returns whether it is.
    pub(crate) fn frame(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        &Received { bytes, ref fcs }: &Received<'_>,
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
        match Frame::parse_as(bytes, packet, fcs) {
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
                let receives =
                    |qpn: &&u32| objects.qps.get(**qpn).is_some_and(|qp| qp.state.receives());
                objects.gsi.iter().find(receives).copied().unwrap_or(GSI_QPN)
            }
            MULTICAST_QPN => {
                let (_, group) = frame.gids();
                let members: Vec<u32> = objects
                    .multicast
                    .iter()
                    .filter(|(gid, _)| *gid == group)
                    .map(|(_, qpn)| *qpn)
                    .collect();
                for (copies, qpn) in members.into_iter().enumerate() {
                    // Each copy may be as much work as a whole turn: those behind it are lost.
                    if copies > 0 && ctx.is_turn_over() {
                        self.drops.no_queue += 1;
                        continue;
                    }
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
    pub(crate) fn poll(
        &mut self,
        ctx: &mut Ctx<'_>,
        completions: &mut Completions,
        wire: &mut dyn Wire,
    ) -> bool {
        let mut busy = self.end_lost(ctx, completions);
        for _ in 0..LOOPBACK_BURST {
            let Some((bytes, fcs)) = self.loopback.frames.pop_front() else { break };
            busy = true;
            let packet = Packet::parse(&bytes);
            self.frame(ctx, completions, &Received { bytes: &bytes, fcs }, &packet);
            self.loopback.keep(bytes);
            if ctx.is_turn_over() {
                break;
            }
        }
        for _ in 0..self.active.len().min(MAX_TURNS) {
            // While there is no room, a turn would bring nothing: the next step makes some.
            if self.loopback.frames.len() >= MAX_LOOPBACK {
                break;
            }
            let Some(qpn) = self.active.take() else { break };
            let turn = self.with(ctx, completions, qpn, |qp, env, loopback| {
                turn(qp, env, &mut Output::new(&mut *wire, loopback))
            });
            let (did, stays) = turn.unwrap_or((false, false));
            busy |= did;
            if stays {
                self.active.add(qpn);
            }
            if ctx.is_turn_over() {
                break;
            }
        }
        busy
    }
}

/// One turn of a queue pair: whether it did anything, and whether it wants another one.
fn turn(qp: &mut Qp, env: &mut Env<'_>, out: &mut Output<'_>) -> (bool, bool) {
    let mut busy = congestion::notify(qp, env, out);
    busy |= reply::send_replies(qp, env, out);
    match qp.state {
        QpState::Reset | QpState::Init | QpState::Rtr => {}
        QpState::Rts => busy |= send::run(qp, env, out),
        QpState::Sqer => busy |= completion::flush(qp, env),
        QpState::Error => {
            busy |= completion::flush(qp, env);
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
