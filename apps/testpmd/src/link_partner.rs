//! The link partners of the model's ports, that is what their wires lead to, and the model itself
//! on its thread.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow};
use ferrocx_app_common::{device::DeviceName, wait::Wait};
use ferrocx_bus::{
    BusError, PciIdentity, Transport,
    local::{self, LocalConfig},
    vfio::{AddressSpace, LentFiles, VfioConfig, VfioTransport},
};
use ferrocx_core::lcore::{Lcores, StopFlag, Worker};
use ferrocx_model::{
    Nic, NicConfig,
    wire::{
        Capture, CaptureFile, Generator, GeneratorConfig, GeneratorHandle, GeneratorStats, Pace,
        PacketWire, TapWire, Unplugged, Wire, link,
    },
};
use serde::Serialize;

use crate::{
    config::{Config, Lender, Mode, PortSpec, WireSpec},
    replay::{Replay, ReplayHandle},
};

/// Bytes that may be on the way in each direction of a cable.
const LINK_BYTES: usize = 1 << 20;
/// Refusals of the model that are logged at the end, newest first.
const LAST_REFUSALS: usize = 4;

/// A generator that gets nothing back for this long has lost the rest.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a generator made, and what came back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct GeneratorReport {
    /// Frames sent.
    pub sent: u64,
    /// Frames that came back whole: its own, or those of the generator at the neighbour port.
    pub returned: u64,
    /// Frames of all generators that came back to none, where the mode sends them back.
    pub lost: u64,
    /// Frames that came back changed behind their addresses.
    pub damaged: u64,
    /// Frames that no generator made; in txonly, those of txonly.
    pub foreign: u64,
    /// Frames that came later than one sent after them.
    pub out_of_order: u64,
    /// Average time on the way, in nanoseconds of the model.
    pub latency_mean_ns: u64,
    /// Longest time on the way, in nanoseconds of the model.
    pub latency_max_ns: u64,
}

impl fmt::Display for GeneratorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, returned, lost, damaged, foreign, out_of_order, .. } = self;
        write!(
            f,
            "sent {sent}, returned {returned}, lost {lost}, damaged {damaged}, foreign {foreign}, \
             out of order {out_of_order}, on the way {} ns (at most {})",
            self.latency_mean_ns, self.latency_max_ns
        )
    }
}

/// What the link partner of a port saw.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LinkPartnerReport {
    /// What the port was plugged into; empty for hardware.
    pub wire: String,
    /// What the generator made and got back.
    pub generator: Option<GeneratorReport>,
    /// What the model refused: 0 unless the driver did something wrong.
    pub model_refusals: u64,
    /// Steps of the model, and those in which it had something to do.
    pub model_steps: u64,
    /// See `model_steps`.
    pub model_busy_steps: u64,
}

/// Opens a PCI device, by files that are open already where there is a lender.
fn open_vfio(
    address: &str,
    config: &Config,
    lender: Option<&Lender>,
    space: Option<&Arc<AddressSpace>>,
) -> Result<Arc<VfioTransport>, BusError> {
    let lent = match lender {
        None => None,
        Some(Lender::Inherited(first, second)) => Some(LentFiles::inherited(*first, *second)?),
        Some(Lender::Launcher(socket)) => Some(LentFiles::receive(socket)?),
    };
    VfioTransport::open(&VfioConfig {
        address: address.to_owned(),
        interface: config.interface,
        lent: lent.map(Arc::new),
        space: space.cloned(),
        ..VfioConfig::default()
    })
}

/// The model's thread, with the devices on it.
#[derive(Debug)]
struct Runner {
    nics: Vec<(usize, Nic)>,
    steps: u64,
    busy_steps: u64,
}

/// What must wait until the queues are there, or its first frames would be lost.
#[derive(Debug, Default)]
struct Sources {
    /// The generators, by port.
    generators: Vec<(usize, GeneratorHandle)>,
    replays: Vec<ReplayHandle>,
}

/// The link partner of each port of the model, and the model.
#[derive(Debug)]
pub struct LinkPartners {
    runner: Option<Worker<Runner>>,
    transports: Vec<Option<Arc<dyn Transport>>>,
    reports: Vec<LinkPartnerReport>,
    capture: Option<CaptureFile>,
    sources: Sources,
    /// Whether the mode sends frames back.
    returns: bool,
    /// Frames that each generator is to send; `None` for no end.
    count: Option<u64>,
    /// Frames that had come back at some moment, and that moment.
    progress: (u64, Instant),
}

impl LinkPartners {
    /// Makes the devices of the model, plugs their wires in, and starts the model on `core`.
    /// Without a port of the model it does nothing.
    ///
    /// # Errors
    /// A wire that cannot be opened, a capture that cannot be written, a core that does not exist.
    pub fn open(config: &Config, lcores: &Lcores, core: usize, wait: Wait) -> Result<Self> {
        let capture = config.pcap.as_deref().map(CaptureFile::create).transpose()?;
        let mut sources = Sources::default();
        let mut wires = open_wires(config, capture.as_ref(), &mut sources)?;
        let mut nics = Vec::new();
        let mut transports: Vec<Option<Arc<dyn Transport>>> = Vec::new();
        for (index, port) in config.ports.iter().enumerate() {
            let DeviceName::Model(options) = &port.device else {
                transports.push(None);
                continue;
            };
            let settings = nic_config(index);
            let identity = PciIdentity {
                vendor: PciIdentity::VENDOR_MELLANOX,
                device: settings.identity.device_id(),
                name: format!("model{index}"),
                numa_node: None,
            };
            // Each device has an address space of its own, as behind an IOMMU.
            let seed = options.seed.wrapping_add(index as u64);
            let (transport, side) =
                local::pair(LocalConfig { seed, identity, ..LocalConfig::default() })?;
            let mut nic = Nic::new(side, settings);
            if let Some(wire) = wires[index].take() {
                nic.datapath_mut().plug(wire);
            }
            nics.push((index, nic));
            transports.push(Some(transport as Arc<dyn Transport>));
        }
        let reports = config.ports.iter().map(report_of).collect();
        let runner = match nics.is_empty() {
            true => None,
            false => {
                let runner = Runner { nics, steps: 0, busy_steps: 0 };
                let flag = StopFlag::new();
                Some(lcores.launch(core, flag, move |stop| runner.run(stop, wait))?)
            }
        };
        let returns = matches!(config.mode, Mode::Io | Mode::Mac | Mode::MacSwap);
        let progress = (0, Instant::now());
        let count = config.count;
        Ok(Self { runner, transports, reports, capture, sources, returns, count, progress })
    }

    /// The transports of all ports; those to hardware are opened here. To be called once.
    ///
    /// # Errors
    /// What VFIO says.
    pub fn transports(&mut self, config: &Config) -> Result<Vec<Arc<dyn Transport>>> {
        let slots = std::mem::take(&mut self.transports);
        let mut lenders = config.lenders.iter();
        let space = config.one_address_space.then(Arc::<AddressSpace>::default);
        let open = |(at, transport): (usize, Option<_>)| match (transport, &config.ports[at].device)
        {
            (Some(transport), _) => Ok(transport),
            (None, DeviceName::Pci(address)) => {
                let opened =
                    open_vfio(&address.to_string(), config, lenders.next(), space.as_ref());
                Ok(opened.with_context(|| format!("port {at}"))? as Arc<dyn Transport>)
            }
            (None, DeviceName::Model(_)) => Err(anyhow!("port {at} has lost its model")),
        };
        slots.into_iter().enumerate().map(open).collect()
    }

    /// Lets generators and replays send.
    pub fn start(&mut self) {
        self.progress.1 = Instant::now();
        self.sources.replays.iter().for_each(ReplayHandle::start);
        for (_, generator) in &self.sources.generators {
            generator.set_paused(false);
        }
    }

    /// Whether every generator has sent its count, and got back what it will get; `None` without
    /// generators or without a count.
    pub fn generators_are_done(&mut self) -> Option<bool> {
        let count = self.count.filter(|_| !self.sources.generators.is_empty())?;
        let sent = self.sources.generators.iter().all(|(_, g)| g.stats().sent >= count);
        Some(sent && self.is_quiet())
    }

    /// Stops the generators and waits until nothing more comes back.
    pub fn quiesce(&mut self) {
        for (_, generator) in &self.sources.generators {
            generator.set_paused(true);
        }
        self.progress.1 = Instant::now();
        while !self.is_quiet() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether all frames are back, or none came for some time.
    fn is_quiet(&mut self) -> bool {
        let stats = || self.sources.generators.iter().map(|(_, generator)| generator.stats());
        let sent: u64 = stats().map(|stats| stats.sent).sum();
        let back: u64 = stats().map(|stats| stats.returned + stats.damaged).sum();
        if back != self.progress.0 {
            self.progress = (back, Instant::now());
        }
        !self.returns || back >= sent || self.progress.1.elapsed() > PATIENCE
    }

    /// Takes the last counts of the generators.
    fn judge(&mut self) {
        let all: Vec<(usize, GeneratorStats)> = self
            .sources
            .generators
            .iter()
            .map(|(port, generator)| (*port, generator.stats()))
            .collect();
        let sent: u64 = all.iter().map(|(_, stats)| stats.sent).sum();
        let back: u64 = all.iter().map(|(_, stats)| stats.returned + stats.damaged).sum();
        // Which port a lost frame was to come back to is not known: the first one reports all.
        let mut lost = if self.returns { sent.saturating_sub(back) } else { 0 };
        for (port, stats) in all {
            self.reports[port].generator = Some(GeneratorReport {
                sent: stats.sent,
                returned: stats.returned,
                lost: std::mem::take(&mut lost),
                damaged: stats.damaged,
                foreign: stats.foreign,
                out_of_order: stats.out_of_order,
                latency_mean_ns: stats.latency_sum_ns.checked_div(stats.returned).unwrap_or(0),
                latency_max_ns: stats.latency_max_ns,
            });
        }
    }

    /// Stops the model and takes its last counts.
    ///
    /// # Errors
    /// The model panicked, or the capture could not be finished.
    pub fn close(&mut self) -> Result<()> {
        self.judge();
        if let Some(worker) = self.runner.take() {
            let runner = worker.join()?;
            for (index, nic) in &runner.nics {
                let report = &mut self.reports[*index];
                report.model_refusals = nic.log().total();
                report.model_steps = runner.steps;
                report.model_busy_steps = runner.busy_steps;
                for refusal in nic.log().iter().rev().take(LAST_REFUSALS) {
                    tracing::warn!(port = *index, ?refusal, "the model refused");
                }
            }
        }
        if let Some(capture) = self.capture.take() {
            capture.finish()?;
        }
        Ok(())
    }

    /// What the link partner of each port saw; complete after [`LinkPartners::close`].
    #[must_use]
    pub fn reports(&self) -> &[LinkPartnerReport] {
        &self.reports
    }
}

impl Runner {
    /// Steps all devices until told to stop.
    fn run(mut self, stop: &StopFlag, wait: Wait) -> Self {
        let start = Instant::now();
        while !stop.is_set() {
            let now = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            let mut busy = false;
            for (_, nic) in &mut self.nics {
                busy |= nic.step(now);
            }
            self.steps += 1;
            if busy {
                self.busy_steps += 1;
            } else {
                wait.idle();
            }
        }
        self
    }
}

/// A device whose address tells its port.
fn nic_config(index: usize) -> NicConfig {
    let mut settings = NicConfig::default();
    settings.mac[5] = u8::try_from(index + 1).unwrap_or(u8::MAX);
    settings
}

fn report_of(port: &PortSpec) -> LinkPartnerReport {
    let wire = match port.device {
        DeviceName::Model(_) => port.wire.to_string(),
        DeviceName::Pci(_) => String::new(),
    };
    LinkPartnerReport { wire, ..LinkPartnerReport::default() }
}

/// The wires of all ports, captured if asked.
fn open_wires(
    config: &Config,
    capture: Option<&CaptureFile>,
    sources: &mut Sources,
) -> Result<Vec<Option<Box<dyn Wire>>>> {
    let mut wires: Vec<Option<Box<dyn Wire>>> = Vec::new();
    wires.resize_with(config.ports.len(), || None);
    for (at, port) in config.ports.iter().enumerate() {
        if wires[at].is_some() || !matches!(port.device, DeviceName::Model(_)) {
            continue;
        }
        let place = || format!("port {at}, wire {}", port.wire);
        wires[at] = Some(match &port.wire {
            WireSpec::Unplugged => Box::new(Unplugged::default()),
            WireSpec::Tap(name) => Box::new(TapWire::open(name).with_context(place)?),
            WireSpec::Packet(name) => Box::new(PacketWire::open(name).with_context(place)?),
            WireSpec::Replay(path) => {
                let replay = Replay::open(path).with_context(place)?;
                sources.replays.push(replay.handle());
                Box::new(replay)
            }
            WireSpec::Link => {
                let (here, there) = link(LINK_BYTES);
                wires[at ^ 1] = Some(Box::new(there));
                Box::new(here)
            }
            WireSpec::Generator => {
                let generator = Generator::new(generator_config(config, at));
                let handle = generator.handle();
                handle.set_paused(true);
                sources.generators.push((at, handle));
                Box::new(generator)
            }
        });
    }
    let Some(capture) = capture else { return Ok(wires) };
    for (at, slot) in wires.iter_mut().enumerate() {
        if let Some(wire) = slot.take() {
            *slot = Some(Box::new(Capture::new(wire, capture, &format!("port{at}"))?));
        }
    }
    Ok(wires)
}

/// The load of one port.
fn generator_config(config: &Config, port: usize) -> GeneratorConfig {
    let load = &config.load;
    let pace = match (load.rate, config.mode) {
        (Some(rate), _) => Pace::PerSecond(rate),
        // Nothing comes back that could open the window again.
        (None, Mode::RxOnly | Mode::IcmpEcho) => Pace::Flood,
        // Half of a ring: even if all flows meet in one queue, it never overflows.
        (None, _) => Pace::Window(config.queues.rxd / 2),
    };
    let [.., high, low] = u16::try_from(port).unwrap_or(0).to_be_bytes();
    GeneratorConfig {
        sizes: load.sizes.clone(),
        flows: load.flows.into(),
        pace,
        count: if config.mode == Mode::TxOnly { Some(0) } else { config.count },
        source: [0x02, 0xfe, 0x0c, 0xff, high, low],
        destination: nic_config(port).mac,
        ipv4: ([198, 18, low, 1], [198, 18, low, 2]),
        // A sum over every frame costs time, which only a reader of the capture gets back.
        udp_checksums: config.pcap.is_some() || config.queues.checksum,
        // A busy machine may not run the worker for a while; that is no loss.
        timeout_ns: 2_000_000_000,
    }
}
