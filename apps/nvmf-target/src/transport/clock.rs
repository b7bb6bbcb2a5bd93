//! What a core does beside commands: timers, the connection manager's turn, what other threads
//! want, and its end.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::execute::Store;
use super::session::{Session, State};
use super::{CONNECT_PATIENCE, Server, ServerError, place};
use crate::controller::abort::Aborting;
use crate::controller::{Held, Role, Target};
use crate::stats::QueueName;

/// Time between looks at timers.
const TICK: Duration = Duration::from_millis(20);
/// How long after a request for a queue the next one may be expected.
const CALM_AFTER: Duration = Duration::from_secs(1);

impl Server {
    /// Time between turns of the connection manager, and of what other threads want, while hosts
    /// come.
    pub const TURN: Duration = Duration::from_millis(1);
    /// The same when none has come for a second and no command waits: a core that sleeps is woken
    /// for each turn.
    pub const CALM_TURN: Duration = Duration::from_millis(5);

    /// Time between turns now.
    #[must_use]
    pub fn turn(&self) -> Duration {
        let is_calm = self.next_turn.saturating_sub(self.host_came) > CALM_AFTER;
        if is_calm && self.stalled.is_empty() { Self::CALM_TURN } else { Self::TURN }
    }

    /// Timers, the connection manager's turn, and what other threads want.
    pub(super) fn look_at_clock(&mut self) -> Result<(), ServerError> {
        let now = self.context.device().now() - self.shared.epoch;
        if now < self.next_turn {
            return Ok(());
        }
        self.next_turn = now + self.turn();
        if self.poller == 0 {
            self.cm.poll();
        }
        self.accept(now)?;
        while let Some(command) = self.commands.as_mut().and_then(|it| it.pop().ok()) {
            command.0(self);
        }
        if !self.work.unseen.is_empty() {
            self.see_gates();
        }
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.tick(now);
        }
        Ok(())
    }

    /// Looks after every queue: its connection, its deadline, its end.
    fn tick(&mut self, now: Duration) {
        // Before the target is locked, for which other cores wait.
        for (_, session) in self.sessions.iter_mut() {
            session.link.publish();
        }
        let shared = self.shared.clone();
        let mut target = shared.lock();
        // What came while this core stood still is not taken in yet.
        let unheard = target.look(self.poller, now);
        let mut gone = Vec::new();
        let (mut first, mut is_shared) = (None, false);
        for (qp, session) in self.sessions.iter_mut() {
            let link = &mut session.link;
            link.queue.was_unheard(unheard, now);
            link.since = now.min(link.since + unheard);
            link.heard_at = now.min(link.heard_at + unheard);
            link.owed.was_unheard(unheard, now);
            is_shared |= *first.get_or_insert(link.host) != link.host;
            if link.is_unknown() {
                link.stats = target.info(&link.queue).map(|info| {
                    shared.registry.add_queue(QueueName {
                        host: info.hostnqn.into(),
                        nqn: info.subnqn.into(),
                        cntlid: info.cntlid,
                        qid: link.queue.qid,
                        peer: link.connection.peer(),
                        poller: self.poller,
                    })
                });
            }
            link.look_whether_known(&target);
            target.account(&mut link.queue);
            if link.connection.has_ended() {
                link.end("its host has disconnected");
            }
            let is_late = now.saturating_sub(link.since) > CONNECT_PATIENCE;
            let is_new = link.queue.role == Role::Unconnected && !link.queue.has_left();
            if is_new && is_late {
                link.end("no Connect came");
            }
            if link.is_stuck(qp, now, self.config.host_patience) {
                link.end("its host takes neither data nor answers");
            }
            session.look_after_leave(qp, &mut target, now);
            if session.link.ending.is_some() {
                target.ending(&session.link.queue, session.link.outside == 0);
            }
            if session.is_over(qp, now, &mut self.work.buffers) {
                gone.push(qp.user_index());
            }
        }
        self.work.buffers.is_shared = is_shared;
        for index in gone {
            if let Some((qp, mut session)) = self.sessions.remove(index) {
                let pooled = std::mem::take(&mut session.link.pooled);
                self.forget(session, &mut target);
                drop(qp);
                // The port reads none of them any more, and nobody hears of their completions.
                pooled.into_iter().for_each(|index| self.work.buffers.free(index));
            }
        }
        if self.poller == 0 {
            target.tick(now);
            for (number, is_saved) in shared.keeper.iter().flat_map(|it| it.take_done()) {
                target.saved(number, is_saved);
            }
            self.stats.refused_shares = target.refused_shares();
        }
        target.look_at_fences(self.poller, |fence, is_late| {
            let mut is_clear = true;
            for (_, session) in self.sessions.iter_mut() {
                let about = |nsid| fence.is_about(&session.link.queue, nsid);
                if session.slots.iter().any(|it| it.is_under_way() && about(it.sqe.nsid.get())) {
                    is_clear = false;
                    if is_late {
                        session.link.end("its host was preempted, and its commands do not end");
                    }
                }
            }
            is_clear
        });
        target.look_at_shutdowns(self.poller, |closing| {
            let mut sessions = self.sessions.iter_mut().map(|(_, session)| session);
            let mut about = sessions.by_ref().filter(|it| closing.is_about(&it.link.queue));
            about.all(|it| it.link.outside == 0 && !it.is_busy())
        });
        let is_flushed = |subsystem| self.flushes.iter().any(|it| it.is_of(subsystem));
        let flush = if self.poller == 0 { target.next_flush(is_flushed) } else { None };
        let poller = self.poller as u32;
        let is_mine = |queue: u32| queue >> 24 == poller;
        while let Some((queue, why)) = target.next_doomed(is_mine) {
            if let Some((_, session)) = self.sessions.get_mut(place(queue)) {
                session.link.end(why);
            }
        }
        while let Some(held) = target.next_held(is_mine) {
            self.answer_held(held);
        }
        let again: Vec<(u32, u16)> = std::iter::from_fn(|| target.next_again(is_mine)).collect();
        let aborts: Vec<Aborting> = std::iter::from_fn(|| target.next_abort(is_mine)).collect();
        drop(target);
        if self.poller == 0 {
            self.take_gates_down();
        }
        // A fence may be clear of what is put off, which is begun by the rules behind the fence.
        self.work.look_at_offer();
        for it in aborts {
            self.abort(it);
        }
        self.work.drives.tick();
        if let Some(flush) = flush {
            self.begin_flush(flush);
        }
        self.go_on_flushing();
        self.begin_again();
        self.tell_lost();
        for (queue, slot) in again {
            if let Some((qp, session)) = self.sessions.get_mut(place(queue)) {
                self.work.again(qp, session, slot);
            }
        }
        self.work.backends.iter_mut().flatten().for_each(Store::publish);
        self.shown.publish(&self.stats(), self.work.buffers.count_free());
    }

    /// Says that buffers are lost: once for all that were lost since.
    fn tell_lost(&mut self) {
        let buffers = &self.work.buffers;
        let (lost, bytes) = buffers.count_lost();
        if lost == self.stats.lost_buffers {
            return;
        }
        tracing::error!(
            core = self.poller,
            lost,
            new = lost - self.stats.lost_buffers,
            bytes,
            of = buffers.count(),
            "buffers are lost to a drive that nobody could stop; restart the target when the drive \
             is out or powered off"
        );
        self.stats.lost_buffers = lost;
    }

    /// Answers a command that was held.
    fn answer_held(&mut self, held: Held) {
        let Some((qp, session)) = self.sessions.get_mut(place(held.queue)) else { return };
        let Session { link, slots } = session;
        let cqe = link.queue.answer(held.cid, held.status, held.result);
        if let Some(it) = slots.get_mut(usize::from(held.slot))
            && it.state == State::Held
            && link.ending.is_none()
        {
            if let Err(why) = link.answer(qp, it, &cqe) {
                link.fail(why);
            }
            qp.ring_doorbell();
        }
    }

    /// A queue of an address is no more that had no session yet.
    pub(super) fn gone(&mut self, peer: IpAddr) {
        self.stats.queues -= 1;
        self.not_come(peer);
    }

    pub(super) fn forget(&mut self, Session { mut link, .. }: Session, target: &mut Target) {
        let why = link.ending.unwrap_or("the target stops");
        let info = target.info(&link.queue);
        tracing::info!(
            peer = %link.connection.peer(),
            qid = link.queue.qid,
            host = info.map_or("", |info| info.hostnqn),
            cntlid = info.map_or(0, |info| info.cntlid),
            why,
            "queue ended"
        );
        link.publish();
        link.look_whether_known(target);
        if let Some(stats) = &link.stats {
            self.shared.registry.remove_queue(stats);
        }
        target.closed(&mut link.queue);
        target.exit(link.queue.peer);
        self.stats.queues -= 1;
        self.load.fetch_sub(1, Ordering::Relaxed);
        self.stats.ended += 1;
        self.stats.failed += u64::from(link.has_failed);
    }

    /// Ends every queue in good order, and tells the hosts; up to `limit`. No other queue is
    /// accepted, commands that have begun end, those that come are left to the hosts, which take
    /// them to another path or to this target when it is there again.
    ///
    /// The first core goes on until the others have ended their queues, too.
    ///
    /// # Errors
    ///
    /// Those of [`Server::poll`].
    pub fn stop(&mut self, limit: Duration) -> Result<(), ServerError> {
        self.listeners.clear();
        self.work.is_stopping = true;
        for it in std::mem::take(&mut self.coming) {
            self.sessions.remove(it.place);
            self.gone(it.peer);
        }
        let start = Instant::now();
        while start.elapsed() < limit / 2 && self.is_busy() {
            self.poll()?;
            std::thread::yield_now();
        }
        // The last answers leave.
        let answered = start.elapsed() + TICK;
        while start.elapsed() < answered {
            self.poll()?;
            std::thread::yield_now();
        }
        for (_, session) in self.sessions.iter_mut() {
            session.link.end("the target stops");
        }
        while self.is_anyone_there() && start.elapsed() < limit {
            self.poll()?;
            std::thread::yield_now();
        }
        Ok(())
    }

    fn is_busy(&mut self) -> bool {
        self.sessions.iter_mut().any(|(_, session)| session.is_busy())
    }

    fn is_anyone_there(&self) -> bool {
        let all = std::iter::once(&self.load).chain(self.others.iter().map(|it| &it.load));
        self.stats.queues > 0 || all.map(|it| it.load(Ordering::Relaxed)).sum::<u32>() > 0
    }
}
