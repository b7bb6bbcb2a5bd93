//! What is done with a trader beside trading: it is watched, killed, ended, and asked for counts.

use super::Trader;
use crate::counters::Counters;
use crate::feed::Source;
use crate::gateway::GatewayState;
use crate::latency::now_ns;
use crate::strategy::Strategy;

/// Time between two looks at where the servers are, ns.
const FIND_NS: u64 = 100_000_000;

/// How a trader ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closing {
    /// Order entry was open at some time, so that every order of ours was known.
    pub is_known: bool,
    /// Orders that may still trade.
    pub standing: usize,
    /// Others may, that are not known here:
    /// [`OrderEntry::has_strays`](crate::orders::OrderEntry::has_strays).
    pub has_strays: bool,
    /// The exchange has answered every request.
    pub is_answered: bool,
    /// The kill switch was not thrown, or the exchange has said that it takes nothing new.
    pub is_kill_answered: bool,
    /// The connection ended in good order.
    pub is_closed: bool,
}

impl<S: Strategy> Trader<S> {
    /// Order entry is open for the first time: every order of ours is known.
    #[cold]
    pub(super) fn recover(&mut self) {
        self.is_recovered = true;
        let now = now_ns();
        self.fall_behind(now);
        if self.cancels_at_start {
            self.engine.cancel_all(now, self.gateway.line());
        }
    }

    /// Frames may have waited in the queues of the feed while nobody looked.
    #[cold]
    pub(super) fn fall_behind(&mut self, now: u64) {
        let line = self.gateway.line();
        line.set_now(now);
        self.engine.set_backlog(true, now, line);
    }

    /// The queues of the feed were empty: what comes from now on is new.
    #[cold]
    pub(super) fn caught_up(&mut self) {
        let (line, now) = (self.gateway.line(), now_ns());
        line.set_now(now);
        self.engine.set_backlog(false, now, line);
    }

    /// Looks for answers that do not come.
    #[cold]
    pub(super) fn watch(&mut self, now: u64) {
        self.watch_ns = now.saturating_add(self.watch_every_ns);
        if self.gateway.state() != GatewayState::Open {
            return;
        }
        let line = self.gateway.line();
        line.set_now(now);
        if !self.engine.watch(now, line) {
            self.gateway.give_up(now);
        }
    }

    /// A server may have moved to another station: requests and connections, those that run,
    /// too, go there. Who is not found now is where it was.
    pub(super) fn find_servers(&mut self, now: u64) {
        self.found_ns = now.saturating_add(FIND_NS);
        let [orders, requests, snapshots] =
            self.servers.map(|server| Some(self.network.resolve(server?.into()).ok()??.dmac));
        if let Some(station) = requests {
            self.request.destination_mac = station;
        }
        if let Some(station) = orders {
            self.gateway.set_station(station);
        }
        if let (Some(station), Some((_, session))) = (snapshots, &mut self.snapshot) {
            session.set_station(station);
        }
    }

    /// Throws the kill switch: no order leaves any more, and the exchange is told to cancel
    /// everything and to take nothing new. `false` if order entry is not open: then it is told when
    /// that opens again, as often as it takes.
    pub fn kill(&mut self) -> bool {
        let (line, now) = (self.gateway.line(), now_ns());
        line.set_now(now);
        self.engine.kill(now, line)
    }

    /// Asks the exchange to take orders again that a kill switch stopped. `false` as of
    /// [`Trader::kill`].
    pub fn enable(&mut self) -> bool {
        let (line, now) = (self.gateway.line(), now_ns());
        line.set_now(now);
        self.engine.enable(now, line)
    }

    /// Ends in good order: no order leaves any more, what stands is cancelled, and when the
    /// exchange said so, or the patience is over, the session logs out and its connection ends.
    /// `round` is called behind each look at the queues, with whether anything came: for who idles
    /// then, or throws the kill switch meanwhile.
    pub fn close(&mut self, patience_ns: u64, mut round: impl FnMut(&mut Self, bool)) -> Closing {
        let (line, now) = (self.gateway.line(), now_ns());
        line.set_now(now);
        self.engine.close(now, line);
        let is_known = self.is_recovered;
        self.poll_until(patience_ns, &mut round, |trader| {
            let orders = trader.engine.orders();
            let is_over = matches!(trader.gateway.state(), GatewayState::Done(_));
            is_over || is_known && orders.count() == 0 && !orders.is_asking()
        });
        let orders = self.engine.orders();
        let is_answered = !orders.is_asking();
        self.gateway.log_out(now_ns());
        self.poll_until(patience_ns, &mut round, |trader| trader.gateway.is_closed());
        Closing {
            is_known,
            standing: self.engine.orders().count(),
            has_strays: self.engine.orders().has_strays(),
            is_answered,
            is_kill_answered: self.engine.orders().is_kill_answered(),
            is_closed: self.gateway.is_closed(),
        }
    }

    fn poll_until(
        &mut self,
        patience_ns: u64,
        round: &mut impl FnMut(&mut Self, bool),
        done: impl Fn(&Self) -> bool,
    ) {
        let until = now_ns().saturating_add(patience_ns);
        while !done(self) && now_ns() < until {
            let is_busy = self.poll();
            round(self, is_busy);
        }
    }

    /// All that was counted so far.
    pub fn counters(&mut self) -> Counters {
        let mut counters = Counters::default();
        counters.add_rx("queue of line A", &self.feeds[Source::A as usize].rx);
        counters.add_rx("queue of line B", &self.feeds[Source::B as usize].rx);
        counters.add_rx("queue of answers", &self.feeds[Source::Retransmission as usize].rx);
        counters.add_rx("queue of orders", &self.orders.rx);
        counters.add_dropped(self.dropped);
        counters.add_engine(&self.engine);
        counters.add_gateway("order entry", &mut self.gateway);
        if let Some((fed, session)) = &mut self.snapshot {
            counters.add_rx("queue of snapshots", &fed.rx);
            counters.add_gateway("snapshots", session);
        }
        counters
    }
}
