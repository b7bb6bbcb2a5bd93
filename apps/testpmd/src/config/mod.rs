//! The command line, checked: every value in its range, every combination possible.

mod queues;
mod wire;

use std::{net::IpAddr, path::PathBuf, str::FromStr, time::Duration};

use ferrocx_app_common::{
    device::DeviceName,
    list::{self, MAX_CORE},
    option::cores,
    privileges::User,
    report::JsonTarget,
    wait::Wait,
};
use ferrocx_bus::vfio::Interface;
use ferrocx_core::KeyMode;
use serde::Serialize;

use crate::{
    cli::Args,
    ether::{HEADER_BYTES, MacAddr},
};
pub use ferrocx_app_common::option::ConfigError;
pub use queues::{BURSTS, MAX_QUEUES, QueueSettings, Split};
pub use wire::WireSpec;

/// Most ports of one run.
pub const MAX_PORTS: usize = 16;
/// Most flows that are generated.
pub const MAX_FLOWS: u16 = 1024;
/// Most bursts that are sent before forwarding.
pub const MAX_TX_FIRST: u64 = 1024;
/// Shortest frame: the least that Ethernet carries, without FCS.
pub const MIN_FRAME_BYTES: usize = 60;
/// Bytes that a generated frame has besides its layer-3 packet.
const L2_BYTES: usize = HEADER_BYTES;
/// What happens to received frames, and which are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Sends each frame on as it is.
    Io,
    /// Sends each frame on to the peer, from the port's own address.
    Mac,
    /// Sends each frame on with its addresses exchanged.
    MacSwap,
    /// Answers ARP, neighbour solicitation and echo requests on the port they came from.
    IcmpEcho,
    /// Counts frames and frees them.
    RxOnly,
    /// Sends generated frames; received ones are counted and freed.
    TxOnly,
}

impl Mode {
    /// All modes.
    pub const ALL: [Self; 6] =
        [Self::Io, Self::Mac, Self::MacSwap, Self::IcmpEcho, Self::RxOnly, Self::TxOnly];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::Mac => "mac",
            Self::MacSwap => "macswap",
            Self::IcmpEcho => "icmpecho",
            Self::RxOnly => "rxonly",
            Self::TxOnly => "txonly",
        }
    }
}

impl FromStr for Mode {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| ConfigError::unknown("forwarding mode", text, NAMES_OF_MODES))
    }
}

const NAMES_OF_MODES: &str = "io, mac, macswap, icmpecho, rxonly or txonly";

/// A port: the device, and for the model what it is plugged into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSpec {
    /// The device.
    pub device: DeviceName,
    /// What it is plugged into; meaningless for hardware.
    pub wire: WireSpec,
}

/// Frames that are generated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Lengths in turn, without FCS.
    pub sizes: Vec<usize>,
    /// Flows in turn.
    pub flows: u16,
    /// Frames per second; `None` for as many as come back.
    pub rate: Option<u64>,
}

/// Where the files of a PCI device come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lender {
    /// Open already, under these numbers.
    Inherited(i32, i32),
    /// A launcher behind this socket sends them.
    Launcher(PathBuf),
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// The ports.
    pub ports: Vec<PortSpec>,
    /// What is done.
    pub mode: Mode,
    /// Bursts that each queue sends before it forwards.
    pub tx_first: u64,
    /// Cores that poll, one worker each; empty for one worker that is not pinned.
    pub cores: Vec<usize>,
    /// Core of the software model.
    pub model_core: Option<usize>,
    /// How idle workers and the model wait; `None` for busy, or yield where they share a core.
    pub wait: Option<Wait>,
    /// Settings of the queues.
    pub queues: QueueSettings,
    /// Largest layer-3 packet.
    pub mtu: u16,
    /// Whether every frame is received.
    pub promiscuous: bool,
    /// How buffers are addressed.
    pub key_mode: Option<KeyMode>,
    /// Files of the PCI devices, in order; none are opened here then.
    pub lenders: Vec<Lender>,
    /// The kernel's interface to PCI devices.
    pub interface: Interface,
    /// Whether PCI devices share one address space.
    pub one_address_space: bool,
    /// Whom the process becomes once everything is set up.
    pub user: Option<User>,
    /// Addresses that icmpecho answers for; empty for all.
    pub addresses: Vec<IpAddr>,
    /// Destination that mac and txonly write.
    pub peer: Option<MacAddr>,
    /// Generated frames.
    pub load: Load,
    /// End after this time.
    pub duration: Option<Duration>,
    /// End after this many frames.
    pub count: Option<u64>,
    /// Capture of the model's wires.
    pub pcap: Option<PathBuf>,
    /// Time between statistics.
    pub stats: Option<Duration>,
    /// Where the report goes.
    pub json: Option<JsonTarget>,
}

impl Config {
    /// Gives the command line meaning.
    ///
    /// # Errors
    /// [`ConfigError`] for the first value that is out of range or contradicts another. Nothing is
    /// opened or made; limits of the device itself are checked by the driver later.
    pub fn new(args: &Args) -> Result<Self, ConfigError> {
        let mode = args.forward_mode.parse()?;
        let (min, max) = (ferrocx_core::MIN_MTU, ferrocx_core::MAX_MTU);
        if !(min..=max).contains(&args.mtu) {
            return Err(ConfigError::range("mtu", args.mtu, format!("{min} to {max}")));
        }
        let ports = ports(args)?;
        let queues = queues::queues(args, ports.len())?;
        let load = load(args)?;
        let cores = cores("cores", args.cores.as_deref())?;
        if let Some(core) = args.model_core {
            if core > MAX_CORE {
                return Err(ConfigError::range("model-core", core, format!("0 to {MAX_CORE}")));
            }
            if cores.contains(&core) {
                let what = format!("core {core} is in --cores and is --model-core; one must move");
                return Err(ConfigError::Conflict(what));
            }
        }
        let addresses = args.ip.iter().map(|text| address(text)).collect::<Result<_, _>>()?;
        let json: Option<JsonTarget> = args.json.as_deref().map(|text| match text.parse() {
            Ok(target) => target,
            Err(never) => match never {},
        });
        if let Some(target) = &json {
            target.check()?;
        }
        let config = Self {
            ports,
            mode,
            tx_first: args.tx_first,
            cores,
            model_core: args.model_core,
            wait: args.wait.as_deref().map(str::parse).transpose()?,
            queues,
            mtu: args.mtu,
            promiscuous: args.promiscuous,
            key_mode: args.key_mode.as_deref().map(key_mode).transpose()?,
            lenders: lenders(args)?,
            interface: interface_of(&args.vfio_interface)?,
            one_address_space: args.one_address_space,
            user: args.user.as_deref().map(str::parse).transpose()?,
            addresses,
            peer: args.peer.as_deref().map(str::parse).transpose()?,
            load,
            duration: args.duration.map(|value| seconds("duration", value)).transpose()?,
            count: args.count,
            pcap: args.pcap.clone(),
            stats: Some(args.stats)
                .filter(|s| *s != 0.0)
                .map(|s| seconds("stats", s))
                .transpose()?,
            json,
        };
        config.check_combination()?;
        Ok(config)
    }

    /// Whether a port is one of the software model.
    #[must_use]
    pub fn has_model(&self) -> bool {
        self.ports.iter().any(|port| matches!(port.device, DeviceName::Model(_)))
    }

    fn check_combination(&self) -> Result<(), ConfigError> {
        let conflict = |what: String| Err(ConfigError::Conflict(what));
        if self.count == Some(0) {
            return Err(ConfigError::range("count", 0, "at least 1"));
        }
        if self.tx_first > MAX_TX_FIRST {
            let range = format!("0 to {MAX_TX_FIRST}");
            return Err(ConfigError::range("tx-first", self.tx_first, range));
        }
        if self.tx_first > 0 && !matches!(self.mode, Mode::Io | Mode::Mac | Mode::MacSwap) {
            let mode = self.mode.name();
            return conflict(format!(
                "--tx-first {} is for what forwards frames, which {mode} does not; choose io, mac \
                 or macswap, or leave it out",
                self.tx_first
            ));
        }
        if self.pcap.is_some() && !self.has_model() {
            return conflict(
                "--pcap captures wires of the model; there is none in this run".into(),
            );
        }
        let hardware =
            self.ports.iter().filter(|port| matches!(port.device, DeviceName::Pci(_))).count();
        if !self.lenders.is_empty() && self.lenders.len() != hardware {
            return conflict(format!(
                "files of {} devices are lent for {hardware} ports with a PCI address; give them \
                 once for each",
                self.lenders.len()
            ));
        }
        if self.one_address_space && hardware < 2 {
            return conflict(format!(
                "--one-address-space is for ports with a PCI address, of which there are \
                 {hardware}; leave it out below 2"
            ));
        }
        let longest = self.load.sizes.iter().copied().max().unwrap_or(0);
        let frame = usize::from(self.mtu) + L2_BYTES;
        if longest > frame {
            return conflict(format!(
                "a generated frame of {longest} bytes does not fit --mtu {}; give --mtu {} or \
                 smaller frames",
                self.mtu,
                longest - L2_BYTES
            ));
        }
        let links = self.ports.iter().enumerate().filter(|(_, port)| port.wire == WireSpec::Link);
        for (at, _) in links {
            if self.ports.get(at ^ 1).is_none_or(|peer| peer.wire != WireSpec::Link) {
                return conflict(format!(
                    "port {at} has --wire link, but its neighbour, port {}, has not",
                    at ^ 1
                ));
            }
        }
        Ok(())
    }
}

/// Pairs devices and wires to ports.
fn ports(args: &Args) -> Result<Vec<PortSpec>, ConfigError> {
    let given = args.device.len().max(args.wire.len()).max(1);
    let count = args.ports.unwrap_or(given);
    if !(1..=MAX_PORTS).contains(&count) {
        return Err(ConfigError::range("ports", count, format!("1 to {MAX_PORTS}")));
    }
    if count < given {
        let what = format!("{given} devices or wires are given for --ports {count}");
        return Err(ConfigError::Conflict(format!("{what}; give fewer, or more ports")));
    }
    let mut ports = Vec::new();
    for at in 0..count {
        let device: DeviceName = match args.device.get(at) {
            Some(text) => text.parse()?,
            None => DeviceName::default(),
        };
        let wire = args.wire.get(at).map(|text| text.parse()).transpose()?;
        let twin = ports.iter().any(|port: &PortSpec| port.device == device);
        match (&device, &wire) {
            (DeviceName::Pci(address), Some(_)) => {
                let what = format!("port {at} is {address}, which has a real wire; --wire is for");
                return Err(ConfigError::Conflict(format!("{what} ports of the model")));
            }
            (DeviceName::Pci(address), None) if twin => {
                let what = format!("{address} is given twice; each port needs its own device");
                return Err(ConfigError::Conflict(what));
            }
            (DeviceName::Model(options), _) if options.has_wire() => {
                let what = format!("{device}: what a port of the model is plugged into is said by");
                return Err(ConfigError::Conflict(format!("{what} --wire; leave net and tap out")));
            }
            _ => {}
        }
        ports.push(PortSpec { device, wire: wire.unwrap_or(WireSpec::Generator) });
    }
    Ok(ports)
}

fn load(args: &Args) -> Result<Load, ConfigError> {
    let max = usize::from(ferrocx_core::MAX_MTU) + L2_BYTES;
    let sizes = list::numbers(&args.size, MIN_FRAME_BYTES, max)
        .map_err(|source| ConfigError::List { option: "size", source })?;
    if !(1..=MAX_FLOWS).contains(&args.flows) {
        return Err(ConfigError::range("flows", args.flows, format!("1 to {MAX_FLOWS}")));
    }
    Ok(Load { sizes, flows: args.flows, rate: Some(args.rate).filter(|rate| *rate > 0) })
}

fn lenders(args: &Args) -> Result<Vec<Lender>, ConfigError> {
    let numbers = |text: &String| {
        let (first, second) = text.split_once(',')?;
        let number = |text: &str| text.parse().ok().filter(|number: &i32| *number > 2);
        Some(Lender::Inherited(number(first)?, number(second)?))
    };
    let known = "two numbers of open files above 2, such as 10,11";
    let inherited = args.vfio_files.iter().map(|text| {
        numbers(text).ok_or_else(|| ConfigError::unknown("--vfio-files value", text, known))
    });
    inherited.chain(args.vfio_launcher.iter().cloned().map(Lender::Launcher).map(Ok)).collect()
}

fn interface_of(text: &str) -> Result<Interface, ConfigError> {
    match text {
        "auto" => Ok(Interface::Auto),
        "group" => Ok(Interface::Group),
        "device" => Ok(Interface::Device),
        _ => Err(ConfigError::unknown("--vfio-interface value", text, "auto, group or device")),
    }
}

fn key_mode(text: &str) -> Result<KeyMode, ConfigError> {
    match text {
        "reserved" => Ok(KeyMode::Reserved),
        "physical" => Ok(KeyMode::Physical),
        "translated" => Ok(KeyMode::Translated),
        _ => Err(ConfigError::unknown("key mode", text, "reserved, physical or translated")),
    }
}

fn address(text: &str) -> Result<IpAddr, ConfigError> {
    let address: Option<IpAddr> = text.parse().ok();
    let host = address.filter(|a| !a.is_multicast() && !a.is_unspecified());
    host.ok_or_else(|| ConfigError::unknown("--ip", text, "the IPv4 or IPv6 address of a host"))
}

/// A time between a millisecond and a year.
fn seconds(option: &'static str, value: f64) -> Result<Duration, ConfigError> {
    match (0.001..=31_536_000.0).contains(&value) {
        true => Ok(Duration::from_secs_f64(value)),
        false => Err(ConfigError::range(option, value, "0.001 to 31536000 seconds")),
    }
}

#[cfg(test)]
mod tests;
