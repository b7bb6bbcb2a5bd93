//! One run: the hosts, their traffic, the faults at their times, and what must hold at the end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrocx_bus::PciIdentity;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::{CommandError, DeviceError};
use ferrocx_model::fault::{CommandFault, Fault as ModelFault, FaultPlan};
use ferrocx_model::wire::{Capture, CaptureFile, SplitMix64};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_prm::init_seg::offset;
use ferrocx_prm::syndrome::{CommandStatus, HealthSyndrome};

use crate::ether::Ether;
use crate::forge::{Forger, Ring};
use crate::frames::Frames;
use crate::host::{Doom, Host, mac_of};
use crate::intruder;
use crate::keys::Keys;
use crate::link::{Link, Traffic};
use crate::plan::{Fault, Intruder, Plan, Planned, Storm, TalkKind};
use crate::planted::{Bug, Planted};
use crate::stage::{Counts, Stage, Timeline, Violation, ensure};
use crate::storage::Storage;
use crate::stream::Stream;
use crate::world::{SimTransport, World};

/// Steps of a run at most: so many for nothing, for a message, and for a fault.
const STEPS: u64 = 100_000;
const STEPS_PER_MESSAGE: u64 = 400;
const STEPS_PER_FAULT: u64 = 100_000;
/// Simulated time in which the driver must notice that its device is gone.
const NOTICE_NS: u64 = 100_000_000;
/// Simulated time after which another try is made to open a host.
const REOPEN_NS: u64 = 1_000_000;
/// How often in a row a host may fail to open once nothing is wrong any more.
const MAX_OPENS: u32 = 64;
/// Attempts to connect after which a host whose device has lied is opened anew.
const MAX_FAILURES: u32 = 8;
/// Turns between two looks at a host that nothing is known of.
const LOOK_EVERY: u64 = 16;
/// First port that is listened on.
const FIRST_PORT: u16 = 7_000;

/// What a run is asked to keep.
#[derive(Debug, Default)]
pub struct Options {
    /// Keep a timeline.
    pub timeline: bool,
    /// Write what passes the ports to this file.
    pub capture: Option<CaptureFile>,
}

/// How a run went.
#[derive(Debug)]
pub struct Outcome {
    /// What happened, in numbers.
    pub counts: Counts,
    /// What must not have happened, if anything.
    pub violation: Option<Violation>,
    /// What happened, if it was asked for: nanoseconds and words.
    pub timeline: Vec<(u64, String)>,
}

/// Something that ends by itself.
enum Heal {
    Weather(usize, Storm),
    Cable(usize),
    Device(usize),
    Truth(usize),
    Mapping(usize),
}

/// A run.
struct Run {
    links: Vec<Link>,
    storage: Option<Storage>,
    frames: Option<Frames>,
    stage: Stage,
    faults: Vec<Planned>,
    next_fault: usize,
    heals: Vec<(u64, Heal)>,
    wanted: u64,
    turns: u64,
    failed_opens: u32,
}

/// Carries out a plan. The same plan gives the same outcome, whenever and wherever.
#[must_use]
pub fn run(plan: &Plan, options: &Options) -> Outcome {
    let mut run = match Run::new(plan, options) {
        Ok(run) => run,
        Err(violation) => {
            let (counts, timeline) = (Counts::default(), Vec::new());
            return Outcome { counts, violation: Some(violation), timeline };
        }
    };
    // A panic of the library is a finding like any other.
    let result = catch_unwind(AssertUnwindSafe(|| run.play().and_then(|()| run.finish())));
    let violation = match result {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            Some(Violation(format!("panic: {}", text.unwrap_or_default())))
        }
    };
    if let Some(violation) = &violation {
        for host in 0..plan.hosts {
            let refusals = run.stage.refusals(host);
            refusals.into_iter().for_each(|line| run.stage.note(|| line));
        }
        run.stage.note(|| format!("VIOLATION: {violation}"));
    }
    let world = std::sync::Arc::clone(&run.stage.world);
    let mut counts = std::mem::take(&mut run.stage.counts);
    let ether = run.stage.ether.stats();
    counts.steps = world.steps();
    counts.simulated_ns = world.now_ns();
    counts.hostile = ether.injected;
    counts.weather = ether.lost + ether.duplicated + ether.corrupted + ether.reordered;
    let timeline = std::mem::take(&mut run.stage.timeline).into_lines();
    // What a violation left behind may not even be dropped in peace.
    if violation.is_some() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(run)));
    }
    Outcome { counts, violation, timeline }
}

/// Hosts that are not open yet, at the ports of a switch.
pub(crate) fn stage_of(plan: &Plan, options: &Options) -> Result<Stage, Violation> {
    let planted = Planted::new(plan.planted);
    let ether = Ether::new(plan.seed ^ 1, planted);
    let (mut nics, mut transports) = (Vec::new(), Vec::new());
    for host in 0..plan.hosts {
        let config = NicConfig { roce: true, mac: mac_of(host), ..NicConfig::default() };
        let identity = PciIdentity {
            vendor: PciIdentity::VENDOR_MELLANOX,
            device: config.identity.device_id(),
            name: format!("host{host}"),
            numa_node: None,
        };
        let seed = plan.seed.wrapping_mul(31).wrapping_add(host as u64);
        let local = LocalConfig { identity, seed, ..LocalConfig::default() };
        let (transport, side) = pair(local).map_err(|error| Violation(error.to_string()))?;
        let mut nic = Nic::new(side, config);
        let port = ether.port(mac_of(host));
        match &options.capture {
            Some(file) => {
                let wire = Capture::new(port, file, &format!("host{host}"));
                let wire = wire.map_err(|error| Violation(error.to_string()))?;
                nic.datapath_mut().plug(wire);
            }
            None => nic.datapath_mut().plug(port),
        }
        nics.push(nic);
        transports.push(transport);
    }
    let world = World::new(nics, plan.seed ^ 2, planted);
    let host = |(index, local)| Host::new(index, SimTransport::new(local, &world));
    let hosts = transports.into_iter().enumerate().map(host).collect();
    let timeline = Timeline::new(options.timeline);
    let random = SplitMix64::new(plan.seed ^ 3);
    Ok(Stage {
        hosts,
        ether,
        random,
        counts: Counts::default(),
        timeline,
        planted,
        kept: Vec::new(),
        world,
    })
}

impl Run {
    fn new(plan: &Plan, options: &Options) -> Result<Self, Violation> {
        let stage = stage_of(plan, options)?;
        let link = |(at, talk): (usize, &crate::plan::Talk)| {
            let traffic: Box<dyn Traffic> = match talk.kind {
                TalkKind::Stream(plan) => Box::new(Stream::new(plan)),
                TalkKind::Keys(plan) => Box::new(Keys::new(plan)),
            };
            Link::new(talk.hosts, FIRST_PORT + at as u16, traffic)
        };
        let links: Vec<Link> = plan.talks.iter().enumerate().map(link).collect();
        let storage = plan.storage.map(|storage| Storage::new(storage, plan.hosts));
        let wanted = links.iter().map(|link| link.traffic.progress().1);
        let wanted = wanted.chain(storage.iter().map(|it| it.progress().1));
        let doubles =
            |it: &Planned| matches!(it.fault, Fault::Weather { storm: Storm::Duplication, .. });
        let may_double = plan.faults.iter().any(doubles);
        let frames = plan.frames.map(|it| Frames::new(it, plan.faults.is_empty(), may_double));
        let wanted = wanted.chain(frames.iter().map(|it| it.progress().1)).sum();
        Ok(Self {
            links,
            storage,
            frames,
            stage,
            faults: plan.faults.clone(),
            next_fault: 0,
            heals: Vec::new(),
            wanted,
            turns: 0,
            failed_opens: 0,
        })
    }

    /// Turns until all is done.
    fn play(&mut self) -> Result<(), Violation> {
        let budget =
            STEPS + self.wanted * STEPS_PER_MESSAGE + self.faults.len() as u64 * STEPS_PER_FAULT;
        self.stage.world.set_limit(2 * budget);
        while !self.is_done() {
            self.turns += 1;
            self.strike();
            self.heal();
            for host in 0..self.stage.hosts.len() {
                self.tend(host)?;
            }
            let mut moved = false;
            for link in &mut self.links {
                moved |= link.turn(&mut self.stage)?;
            }
            if let Some(storage) = &mut self.storage {
                moved |= storage.turn(&mut self.stage)?;
            }
            if let Some(frames) = &mut self.frames {
                moved |= frames.turn(&mut self.stage)?;
            }
            if moved {
                self.stage.world.stir();
            }
            self.stage.world.step();
            let steps = self.stage.world.steps();
            ensure(steps < budget, || {
                let links = self.links.iter().map(Link::describe);
                let what = links.chain(self.storage.iter().map(Storage::describe));
                let what: Vec<_> = what.chain(self.frames.iter().map(Frames::describe)).collect();
                format!("no end after {steps} steps: {}", what.join("; "))
            })?;
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.links.iter().all(Link::is_done)
            && self.storage.iter().all(Storage::is_done)
            && self.frames.iter().all(Frames::is_done)
    }

    /// Carries out the faults whose time has come.
    fn strike(&mut self) {
        let Some(planned) = self.faults.get(self.next_fault).copied() else { return };
        let done = self.links.iter().map(|link| link.traffic.progress().0);
        let done = done.chain(self.storage.iter().map(|it| it.progress().0));
        let done: u64 = done.chain(self.frames.iter().map(|it| it.progress().0)).sum();
        if done * 1_000_000 < u64::from(planned.at_ppm) * self.wanted {
            return;
        }
        self.next_fault += 1;
        self.stage.counts.faults += 1;
        self.stage.note(|| format!("fault: {planned}"));
        let (host, now_ns) = (planned.host, self.stage.now_ns());
        match planned.fault {
            Fault::Weather { storm, degree, for_ns } => {
                self.stage.ether.set_weather(host, |weather| storm.set(weather, degree));
                self.heals.push((now_ns + for_ns, Heal::Weather(host, storm)));
            }
            Fault::LinkFlap { for_ns } => {
                self.stage.ether.set_cable(host, false);
                self.heals.push((now_ns + for_ns, Heal::Cable(host)));
            }
            Fault::StuckCommand { after } => self.command(host, after, CommandFault::Stuck),
            Fault::FailedCommand { after } => {
                let status = CommandStatus::INTERNAL_ERR;
                self.command(host, after, CommandFault::Status(status));
            }
            Fault::SlowCommand { after, for_ns } => {
                self.command(host, after, CommandFault::DelayNs(for_ns));
            }
            Fault::Dma { mapping, for_ns } => {
                self.stage.hosts[host].is_tainted = true;
                self.stage.world.nic(host).side().dma_refuse(Some(mapping.into()));
                self.heals.push((now_ns + for_ns, Heal::Mapping(host)));
            }
            Fault::Forgery { ring, count } => {
                let liar = &mut self.stage.hosts[host];
                match ring {
                    Ring::Completions => liar.is_deceived = true,
                    Ring::Events => liar.is_tainted = true,
                }
                let seed = self.stage.random.next_u64();
                self.stage.world.forge(host, Forger::new(ring, count, seed));
            }
            Fault::CqOverrun { after } => {
                self.taint(host, ModelFault::CqOverrun { nth: 1 + after });
            }
            Fault::Pages { count } => self.stage.world.nic(host).request_pages(count),
            Fault::Reset { .. } | Fault::Removal { .. } | Fault::Sickness | Fault::Lie { .. } => {
                self.doom(host, planned.fault);
            }
            Fault::EventFlood { count } => {
                // Each change of the link is an event.
                for up in (0..count).map(|at| at % 2 == 1).chain([true]) {
                    self.stage.world.nic(host).set_carrier(up);
                }
            }
            Fault::Intrusion { intruder, count } => self.intrude(host, intruder, count),
        }
    }

    /// Sends frames of peers that do not exist.
    fn intrude(&mut self, host: usize, who: Intruder, count: u32) {
        let mut qpns = Vec::new();
        self.links.iter().for_each(|link| link.qpns(host, &mut qpns));
        for at in 0..count {
            let port = FIRST_PORT + at as u16 % self.links.len() as u16;
            let frame = intruder::frame(who, host, port, &qpns, &mut self.stage.random);
            // A thousand in a hundred microseconds.
            let due_ns = self.stage.now_ns() + u64::from(at) * 100;
            self.stage.ether.inject(due_ns, &frame);
        }
    }

    /// The command of a host that comes after so many others goes wrong.
    fn command(&mut self, host: usize, after: u64, fault: CommandFault) {
        let nth = self.stage.world.nic(host).state().counters.commands + 1 + after;
        self.taint(host, ModelFault::Command { nth, fault });
    }

    /// Plans a fault of a model after which not everything may come back.
    fn taint(&mut self, host: usize, fault: ModelFault) {
        if self.stage.hosts[host].doom.is_none() {
            self.stage.hosts[host].is_tainted = true;
            self.stage.world.nic(host).set_faults(FaultPlan::at(&[fault]));
        }
    }

    /// Does to a host's device what no driver survives.
    fn doom(&mut self, host: usize, fault: Fault) {
        if self.stage.hosts[host].doom.is_some() || self.stage.hosts[host].up.is_none() {
            return;
        }
        let now_ns = self.stage.now_ns();
        let doom = match fault {
            Fault::Reset { in_ns } => {
                let at_ns = now_ns + in_ns;
                let plan = FaultPlan::at(&[ModelFault::Reset { at_ns }]);
                self.stage.world.nic(host).set_faults(plan);
                Doom::Reset { at_ns }
            }
            Fault::Removal { for_ns } => {
                self.stage.world.nic(host).side().set_gone(true);
                self.heals.push((now_ns + for_ns, Heal::Device(host)));
                Doom::Removed { at_ns: now_ns }
            }
            Fault::Lie { register, value, for_ns } => {
                let mut lies = self.stage.hosts[host].transport.lies();
                let health = offset::HEALTH_BUFFER;
                let registers =
                    [offset::INITIALIZING, offset::CMDQ_ADDR_LO, health + 0x30, health + 0x38];
                lies.registers.insert(registers[usize::from(register) % registers.len()], value);
                self.heals.push((now_ns + for_ns, Heal::Truth(host)));
                drop(lies);
                self.stage.hosts[host].is_tainted = true;
                Doom::Lied { at_ns: now_ns }
            }
            _ => {
                let syndrome = HealthSyndrome::FW_INTERNAL_ERR;
                let plan = FaultPlan::at(&[ModelFault::Health { at_ns: now_ns, syndrome }]);
                self.stage.world.nic(host).set_faults(plan);
                Doom::Sick { at_ns: now_ns }
            }
        };
        self.stage.hosts[host].doom = Some(doom);
    }

    /// Ends what ends by itself.
    fn heal(&mut self) {
        let now_ns = self.stage.now_ns();
        let mut at = 0;
        while at < self.heals.len() {
            if self.heals[at].0 > now_ns {
                at += 1;
                continue;
            }
            match self.heals.remove(at).1 {
                Heal::Weather(host, storm) => {
                    self.stage.ether.set_weather(host, |weather| storm.set(weather, 0));
                }
                Heal::Cable(_) if self.stage.planted.is(Bug::DeadLink) => {}
                Heal::Cable(host) => self.stage.ether.set_cable(host, true),
                Heal::Device(host) => self.stage.world.nic(host).side().set_gone(false),
                Heal::Mapping(host) => self.stage.world.nic(host).side().dma_refuse(None),
                Heal::Truth(host) => {
                    let host = &mut self.stage.hosts[host];
                    host.transport.lies().registers.clear();
                    host.doom = host.doom.filter(|doom| !matches!(doom, Doom::Lied { .. }));
                }
            }
        }
    }

    /// Looks after a host: opens it, has it do what is due, and buries it when its device is gone.
    fn tend(&mut self, host: usize) -> Result<(), Violation> {
        let now_ns = self.stage.now_ns();
        let is_waiting =
            self.links.iter().any(|link| link.hosts.contains(&host) && link.is_opening());
        let Some(up) = &self.stage.hosts[host].up else { return self.open(host) };
        let is_looked_at = self.turns.is_multiple_of(LOOK_EVERY);
        if is_waiting || is_looked_at {
            up.cm.poll();
        }
        let doom = self.stage.hosts[host].doom.filter(|doom| doom.at_ns() <= now_ns);
        if !is_looked_at && doom.is_none() {
            return Ok(());
        }
        let device = up.context.device().clone();
        let events = self.stage.hosts[host].read_events();
        for event in events {
            self.stage.note(|| format!("host {host} reports {event:?}"));
        }
        let health = device.health();
        // A command is what a program would notice it by.
        let asked = doom.map(|_| device.vport_counters());
        drop(device);
        if let Some(Err(error)) = &asked {
            self.stage.named("asked", error);
        }
        if let Some(dead) = health.dead {
            // It may have come while events were answered.
            let is_doomed = self.stage.hosts[host].doom.is_some();
            let is_tainted = self.stage.hosts[host].is_tainted;
            ensure(is_doomed || is_tainted, || {
                format!("host {host} lives, and is said to be dead: {dead}")
            })?;
            self.stage.named("health", &dead);
            return self.bury(host);
        }
        // Once it believed that its device is dead, the driver gives no more commands.
        let is_given_up = self.stage.hosts[host].is_tainted && self.is_given_up(host);
        if is_given_up {
            return self.bury(host);
        }
        // The firmware's word counts.
        if self.stage.hosts[host].is_tainted && !health.is_healthy() {
            return self.bury(host);
        }
        // Whoever cannot be reached, and had a device that lied, begins again.
        if self.stage.hosts[host].is_deceived && self.failures_of(host) >= MAX_FAILURES {
            self.links.iter_mut().for_each(|link| link.failures = 0);
            self.storage.iter_mut().for_each(|storage| storage.failures = 0);
            for liar in 0..self.stage.hosts.len() {
                if self.stage.hosts[liar].is_deceived {
                    self.bury(liar)?;
                }
            }
            return Ok(());
        }
        let Some(doom) = doom else { return Ok(()) };
        let waited = now_ns - doom.at_ns();
        ensure(
            waited < NOTICE_NS || matches!(doom, Doom::Lied { .. } | Doom::Sick { .. }),
            || format!("host {host}: {doom:?} was not noticed in {waited} ns; it says {health:?}"),
        )?;
        match doom {
            // The firmware's word counts, whatever the commands do.
            Doom::Sick { .. } if !health.is_healthy() => self.bury(host),
            _ => Ok(()),
        }
    }

    /// Attempts in a row to connect to or from a host that came to nothing.
    fn failures_of(&self, host: usize) -> u32 {
        let links = self.links.iter().filter(|link| link.hosts.contains(&host));
        let storage = self.storage.iter().map(|storage| storage.failures);
        links.map(|link| link.failures).chain(storage).max().unwrap_or(0)
    }

    /// Whether the driver of a host refuses commands.
    fn is_given_up(&self, host: usize) -> bool {
        let up = self.stage.hosts[host].up.as_ref();
        up.is_some_and(|up| match up.context.device().vport_counters() {
            Err(DeviceError::Command(CommandError::Dead { .. })) => true,
            Ok(_) | Err(_) => false,
        })
    }

    /// Lets go of everything of a host, and closes it.
    fn bury(&mut self, host: usize) -> Result<(), Violation> {
        self.stage.counts.kills += 1;
        for link in &mut self.links {
            link.abandon(host, &mut self.stage)?;
        }
        if let Some(storage) = &mut self.storage {
            storage.abandon(host, &mut self.stage);
        }
        if let Some(frames) = &mut self.frames {
            frames.abandon(host, &mut self.stage)?;
        }
        let ill = &self.stage.hosts[host];
        // Of a device that may still work, the driver keeps what it could not end.
        let may_leak =
            ill.is_tainted || matches!(ill.doom, Some(Doom::Sick { .. } | Doom::Lied { .. }));
        self.stage.hosts[host].has_leaked |= may_leak;
        if let Err(error) = self.stage.hosts[host].close() {
            let text = error.to_string();
            let is_used = text.contains("handles");
            ensure(!is_used || may_leak, || format!("host {host} is still used: {text}"))?;
            self.stage.named("closing", &error);
        }
        let now_ns = self.stage.now_ns();
        let dead = &mut self.stage.hosts[host];
        dead.open_at_ns = now_ns + REOPEN_NS;
        let left = dead.memories_left();
        ensure(left == 0 || may_leak, || format!("host {host}: {left} memories are still held"))?;
        dead.forgive_memories();
        dead.doom = None;
        self.stage.note(|| format!("host {host} is down"));
        Ok(())
    }

    fn open(&mut self, host: usize) -> Result<(), Violation> {
        if self.stage.now_ns() < self.stage.hosts[host].open_at_ns {
            return Ok(());
        }
        // What was planned for the life before is of no interest any more.
        self.stage.world.nic(host).set_faults(FaultPlan::default());
        self.stage.hosts[host].transport.lies().registers.clear();
        self.heals.retain(|(_, heal)| !matches!(heal, Heal::Truth(liar) if *liar == host));
        let opened = self.stage.hosts[host].open();
        if self.stage.planted.is(Bug::HeldHandle)
            && let Some(up) = &self.stage.hosts[host].up
            && up.context.device().info().name.ends_with('1')
        {
            let held = up.context.clone();
            self.stage.kept.push(Box::new(held));
        }
        match opened {
            Ok(()) => {
                self.failed_opens = 0;
                self.stage.note(|| format!("host {host} is up"));
            }
            Err(error) => {
                self.stage.named("not opened", &error);
                self.failed_opens += 1;
                let is_gone = self.stage.world.nic(host).side().is_gone();
                ensure(is_gone || self.failed_opens < MAX_OPENS, || {
                    format!("host {host} does not open: {error}")
                })?;
                self.stage.hosts[host].open_at_ns = self.stage.now_ns() + REOPEN_NS;
            }
        }
        Ok(())
    }

    /// Closes everything, and looks at what is left.
    fn finish(&mut self) -> Result<(), Violation> {
        for link in &mut self.links {
            link.close(&mut self.stage)?;
        }
        if let Some(storage) = &mut self.storage {
            storage.close(&mut self.stage)?;
        }
        if let Some(frames) = &mut self.frames {
            frames.close(&mut self.stage)?;
        }
        for host in 0..self.stage.hosts.len() {
            let is_tainted = self.stage.hosts[host].is_tainted;
            let may_fail = is_tainted || self.stage.hosts[host].doom.is_some();
            let was_up = self.stage.hosts[host].up.is_some();
            if let Err(error) = self.stage.hosts[host].close() {
                ensure(may_fail, || format!("host {host} does not close: {error}"))?;
                self.stage.named("closing", &error);
                continue;
            }
            if may_fail || !was_up {
                continue;
            }
            let left = self.stage.hosts[host].memories_left();
            ensure(left == 0, || format!("host {host}: {left} memories are still held"))?;
            let nic = self.stage.world.nic(host);
            let objects = nic.state().objects.len();
            ensure(objects == 0, || format!("host {host}: {objects} objects of the device live"))?;
            let mappings = nic.side().dma_mappings();
            ensure(mappings == 0 || self.stage.hosts[host].has_leaked, || {
                format!("host {host}: {mappings} mappings are left")
            })?;
        }
        Ok(())
    }
}
