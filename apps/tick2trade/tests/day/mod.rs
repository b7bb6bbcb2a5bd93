//! A day on the model: exchange, device and trader take turns in one thread. Whatever the machine
//! does beside, a test waits for a state, and counts.
#![allow(dead_code, reason = "each test file uses its part")]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ferrocx::bus::local::{LocalConfig, pair};
use ferrocx::model::wire::{Fcs, Link, Received, Wire, link};
use ferrocx::model::{Nic, NicConfig};
use ferrocx::{Port, PortConfig};
use ferrocx_net::packet::Packet;
use ferrocx_tick2trade::exchange::{Venue, VenueConfig};
use ferrocx_tick2trade::gateway::GatewayState;
use ferrocx_tick2trade::latency::now_ns;
use ferrocx_tick2trade::measure::trader_config;
use ferrocx_tick2trade::strategy::Quoter;
use ferrocx_tick2trade::tcp;
use ferrocx_tick2trade::trader::{Trader, TraderConfig};

/// What happens to frames between exchange and device.
#[derive(Debug, Default)]
pub(crate) struct Meddler {
    /// Nothing passes, either way.
    pub(crate) is_cut: bool,
    /// Frames of TCP do not pass, and nothing of the device's.
    pub(crate) cuts_tcp: bool,
    /// Nothing of the device's passes.
    pub(crate) is_deaf: bool,
    /// Frames for the device that nobody sent.
    pub(crate) more: Vec<Vec<u8>>,
}

/// The exchange's end of the cable.
#[derive(Debug)]
pub(crate) struct Meddled {
    wire: Link,
    meddler: Arc<Mutex<Meddler>>,
    room: Vec<u8>,
}

fn is_tcp(frame: &[u8]) -> bool {
    Packet::parse(frame).is_ok_and(|packet| packet.tcp().is_some())
}

pub(crate) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Meddled {
    fn send(&mut self, frame: &[u8], now_ns: u64) {
        let len = frame.len().max(60);
        let room = self.wire.reserve(len).expect("the cable holds what a test sends");
        room[..frame.len()].copy_from_slice(frame);
        room[frame.len()..len].fill(0);
        self.wire.commit(now_ns, Fcs::Good);
    }
}

impl Wire for Meddled {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.room.resize(len, 0);
        Some(&mut self.room)
    }

    fn commit(&mut self, now_ns: u64, _: Fcs) {
        let frame = std::mem::take(&mut self.room);
        let Meddler { is_cut, cuts_tcp, .. } = *lock(&self.meddler);
        if !(is_cut || cuts_tcp && is_tcp(&frame)) {
            self.send(&frame, now_ns);
        }
        self.room = frame;
    }

    fn flush(&mut self, now_ns: u64) -> bool {
        self.wire.flush(now_ns)
    }

    fn receive(&mut self, now_ns: u64) -> Option<Received<'_>> {
        let (more, is_deaf) = {
            let mut meddler = lock(&self.meddler);
            let is_deaf = meddler.is_cut || meddler.cuts_tcp || meddler.is_deaf;
            (std::mem::take(&mut meddler.more), is_deaf)
        };
        for frame in more {
            self.send(&frame, now_ns);
        }
        self.wire.flush(now_ns);
        while is_deaf && self.wire.receive(now_ns).is_some() {}
        self.wire.receive(now_ns)
    }
}

/// The device, and the exchange at the other end of its cable.
pub(crate) struct World {
    pub(crate) nic: Nic,
    pub(crate) venue: Venue<Meddled>,
}

impl World {
    pub(crate) fn step(&mut self) {
        let now = now_ns();
        self.nic.step(now);
        self.venue.poll(now_ns);
    }
}

pub(crate) struct Day {
    pub(crate) meddler: Arc<Mutex<Meddler>>,
    pub(crate) trader: Trader<Quoter>,
    pub(crate) config: TraderConfig,
    pub(crate) port: Port,
    /// The last to go: the device answers to the end of all others.
    pub(crate) world: Arc<Mutex<World>>,
}

fn quoter() -> Quoter {
    Quoter::new(0, 100, 300)
}

impl Day {
    /// A quoter of the first security, in which the crowd trades, and an exchange as it is told.
    pub(crate) fn new(venue: VenueConfig, change: impl FnOnce(&mut TraderConfig)) -> Self {
        let mut config = trader_config(&venue);
        config.engine.orders.symbols = vec![venue.symbols[0]];
        config.measure = false;
        change(&mut config);
        let meddler = Arc::<Mutex<Meddler>>::default();
        let (near, wire) = link(4 << 20);
        let (local, side) = pair(LocalConfig::default()).unwrap();
        let mut nic = Nic::new(side, NicConfig::default());
        nic.datapath_mut().plug(near);
        let wire = Meddled { wire, meddler: Arc::clone(&meddler), room: Vec::new() };
        let venue = Venue::new(venue, wire, now_ns());
        let world = Arc::new(Mutex::new(World { nic, venue }));
        let steps = Arc::downgrade(&world);
        local.set_idle_hook(Some(Arc::new(move || {
            if let Some(world) = steps.upgrade() {
                lock(&world).step();
            }
        })));
        let port = PortConfig { housekeeping: None, ..PortConfig::default() };
        let port = Port::from_transport(local, port).unwrap();
        let trader = Trader::new(&port, &config, quoter()).unwrap();
        Self { meddler, trader, config, port, world }
    }

    /// A day whose order entry is open, with orders that stand.
    pub(crate) fn trading(venue: VenueConfig, change: impl FnOnce(&mut TraderConfig)) -> Self {
        let mut day = Self::new(venue, change);
        day.until_open();
        day.trade();
        day
    }

    /// The trader is killed, and another knows nothing.
    pub(crate) fn restart(self) -> Self {
        let Self { meddler, trader, config, port, world } = self;
        drop(trader);
        let trader = Trader::new(&port, &config, quoter()).unwrap();
        Self { meddler, trader, config, port, world }
    }

    /// Frames for the device that nobody sent.
    pub(crate) fn inject(&self, frames: impl IntoIterator<Item = Vec<u8>>) {
        lock(&self.meddler).more.extend(frames);
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        lock(&self.meddler).is_cut = is_cut;
    }

    pub(crate) fn round(&mut self) {
        lock(&self.world).step();
        self.trader.poll();
    }

    pub(crate) fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let limit = now_ns() + 120_000_000_000;
        while !done(self) {
            self.round();
            if now_ns() > limit {
                let state = self.trader.gateway().state();
                panic!("{what}: {state:?}\n{}", self.trader.counters().text());
            }
        }
    }

    pub(crate) fn until_open(&mut self) {
        self.until("to open", |day| day.trader.gateway().state() == GatewayState::Open);
    }

    /// Ends the trader in good order.
    pub(crate) fn close(&mut self, patience_ms: u64) -> ferrocx_tick2trade::trader::Closing {
        let world = Arc::clone(&self.world);
        self.trader.close(patience_ms * 1_000_000, |_, _| lock(&world).step())
    }

    pub(crate) fn venue<T>(&self, of: impl FnOnce(&mut Venue<Meddled>) -> T) -> T {
        of(&mut lock(&self.world).venue)
    }

    /// The crowd does so many things, and both sides a few rounds after each.
    pub(crate) fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            self.venue(|venue| venue.step(now_ns()));
            (0..20).for_each(|_| self.round());
        }
    }

    /// Whether the trader has heard all that the exchange said, and what it said itself arrived.
    fn has_heard_all(&mut self) -> bool {
        let line = self.trader.gateway().line();
        if line.state() == tcp::State::Established && line.unacknowledged() != 0 {
            return false;
        }
        let (sent, answers) = self.venue(|venue| (venue.sent(), venue.answered()));
        self.trader.engine().arbiter().next() == sent as u64 + 1
            && self.trader.gateway().next_answer() == answers as u64 + 1
    }

    /// All is heard, and stays so for a while: nothing is on its way.
    pub(crate) fn settle(&mut self) {
        let mut quiet = 0;
        self.until("to hear all", |day| {
            quiet = if day.has_heard_all() { quiet + 1 } else { 0 };
            quiet == 300
        });
    }

    /// Things happen until orders stand.
    pub(crate) fn trade(&mut self) {
        for _ in 0..1_000 {
            self.run(10);
            if self.trader.engine().orders().count() > 0 {
                return;
            }
        }
        panic!("no order stands");
    }

    /// Answers of the exchange that begin with a letter.
    pub(crate) fn answers(&self, kind: u8) -> usize {
        self.venue(|venue| venue.answers().filter(|answer| answer[0] == kind).count())
    }
}
