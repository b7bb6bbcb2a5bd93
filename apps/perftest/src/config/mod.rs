//! The command line, checked: every value in its range, every combination possible.

mod measure;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use ferrocx_app_common::device::{DeviceName, NameError};
use ferrocx_app_common::list::CoreList;
use ferrocx_app_common::option::OptionError;
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_app_common::report::{JsonTarget, ReportError};
use ferrocx_app_common::wait::{UnknownWait, Wait};
use ferrocx_core::MacAddr;
use ferrocx_model::wire::ImpairConfig;
use ferrocx_net::ether::{BadMac, Mac};
use ferrocx_verbs_lite::{Mtu, QpType};
use thiserror::Error;

use crate::cli::Args;
use crate::measure::{Measure, Test};
use crate::shared::MAX_QPS;

/// Longest message: what an RC or UC queue pair of the device sends at once.
const MAX_SIZE: u64 = 1 << 30;
/// Queue pairs of `ibv_srq_pingpong`. Source: rdma-core, srq_pingpong.c.
const STOCK_QPS: usize = 16;
/// Exchanges of a ping-pong unless told otherwise, as in the stock tools.
const DEFAULT_EXCHANGES: u64 = 1000;

/// Why the command line cannot be carried out. One sentence: value, limit, way out.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// An option's value.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The device.
    #[error(transparent)]
    Device(#[from] NameError),
    /// The wait strategy.
    #[error(transparent)]
    Wait(#[from] UnknownWait),
    /// The peer's MAC address.
    #[error(transparent)]
    Mac(#[from] BadMac),
    /// The report file.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// Two options that exclude each other.
    #[error("{what}; {way_out}")]
    Together {
        /// What does not go together.
        what: &'static str,
        /// What to do.
        way_out: &'static str,
    },
}

impl ConfigError {
    pub(crate) fn unknown(what: &'static str, value: &str, known: &'static str) -> Self {
        OptionError::unknown(what, value, known).into()
    }

    fn range(option: &'static str, value: impl fmt::Display, range: impl Into<String>) -> Self {
        OptionError::range(option, value, range).into()
    }

    fn check(option: &'static str, value: u64, min: u64, max: u64) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(Self::range(option, value, format!("{min} to {max}")))
    }
}

/// An own address and its subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    /// The address.
    pub address: IpAddr,
    /// Bits that name the subnet.
    pub prefix_len: u8,
}

impl FromStr for Subnet {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = "an address and its prefix length such as 192.168.0.1/24 or fd00::1/64";
        let bad = || ConfigError::unknown("address", text, known);
        let (address, bits) = text.split_once('/').ok_or_else(bad)?;
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let prefix_len = bits.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        if prefix_len > most { Err(bad()) } else { Ok(Self { address, prefix_len }) }
    }
}

/// Where this end is, and how it reaches the other.
#[derive(Debug, Clone)]
pub struct Net {
    /// The device.
    pub device: DeviceName,
    /// Own address; `None` for the link-local one.
    pub ip: Option<Subnet>,
    /// MAC address that leads to the peer; `None` for what its address or the exchange says.
    pub peer_mac: Option<MacAddr>,
    /// Whose memory holds the messages; `None` for the host's.
    pub peer: Option<PeerSpec>,
    /// Host of the other end; `None` for the end that waits.
    pub server: Option<String>,
    /// Whether the ends meet through the connection manager.
    pub cm: bool,
    /// TCP port of the exchange, or port of the connection manager.
    pub port: u16,
    /// Path MTU.
    pub mtu: Mtu,
    /// Code of the time until a packet is sent again.
    pub ack_timeout: u8,
    /// Where the frames of the model's cable go.
    pub pcap: Option<PathBuf>,
    /// How bad the model's cable is.
    pub cable: ImpairConfig,
}

impl Net {
    /// Whether both ends run in this process, on the model.
    #[must_use]
    pub fn is_model(&self) -> bool {
        matches!(self.device, DeviceName::Model(_))
    }
}

/// What to do.
#[derive(Debug, Clone)]
pub enum Job {
    /// Talk to `ibv_*_pingpong`, or to ourselves the same way.
    PingPong(PingPong),
    /// Measure between two ends of ours.
    Measure(Measure),
    /// Do what a program at the other end says.
    Target,
}

/// Messages to and fro, as `ibv_*_pingpong` sends them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PingPong {
    /// Which of them, as the command line says it.
    pub kind: &'static str,
    /// Its transport.
    pub service: QpType,
    /// Bytes of a message.
    pub size: usize,
    /// Messages there, and as many back.
    pub exchanges: u64,
    /// Check every byte.
    pub verify: bool,
    /// Take receives from a shared receive queue.
    pub srq: bool,
    /// Queue pairs: of `srq` only.
    pub qps: usize,
}

/// The command line, checked.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where.
    pub net: Net,
    /// What.
    pub job: Job,
    /// How threads wait.
    pub wait: Wait,
    /// Cores of the threads that measure; empty for no pinning.
    pub cores: Vec<usize>,
    /// Cores of the other end's threads on the model.
    pub peer_cores: Vec<usize>,
    /// Where gnuplot's script goes.
    pub plot: Option<PathBuf>,
    /// Where the report goes, besides the terminal.
    pub json: Option<JsonTarget>,
}

impl Config {
    /// Checks a command line.
    ///
    /// # Errors
    ///
    /// The first thing that cannot be carried out.
    pub fn new(args: &Args) -> Result<Self, ConfigError> {
        let net = net(args)?;
        let job = match args.test.as_str() {
            "pingpong" => Job::PingPong(ping_pong(args, net.mtu)?),
            "target" => target(args, &net)?,
            _ => Job::Measure(measure::measure(args, net.mtu)?),
        };
        if net.cm {
            check_cm(&net, &job)?;
        }
        let wait: Wait = args.wait.parse()?;
        if wait == Wait::Interrupt {
            let known = "busy, spin, yield or sleep";
            return Err(ConfigError::unknown("wait strategy", &args.wait, known));
        }
        // It cannot fail.
        let json = args.json.as_deref().and_then(|text| text.parse::<JsonTarget>().ok());
        json.iter().try_for_each(JsonTarget::check)?;
        let plot = args.plot.clone();
        if !matches!(job, Job::Measure(_)) && plot.is_some() {
            let what = "pingpong and target draw no plot";
            return Err(ConfigError::Together { what, way_out: "leave --plot out" });
        }
        if !matches!(job, Job::PingPong(_)) && args.srq {
            let what = "only pingpong takes its receives from a shared queue";
            return Err(ConfigError::Together { what, way_out: "leave --srq out" });
        }
        let [cores, peer_cores] = [("cores", &args.cores), ("peer-cores", &args.peer_cores)]
            .map(|(option, text)| cores(option, text.as_deref()));
        Ok(Self { net, job, wait, cores: cores?, peer_cores: peer_cores?, plot, json })
    }
}

/// What the connection manager does by itself, and for whom it does it.
fn check_cm(net: &Net, job: &Job) -> Result<(), ConfigError> {
    let together = |what, way_out| Err(ConfigError::Together { what, way_out });
    match job {
        Job::Measure(measure) if measure.test == Test::FastReg && !measure.verify => {
            let what = "without --verify fastreg has no other end";
            together(what, "leave --cm out, or add --verify")
        }
        Job::Measure(_) if net.peer_mac.is_some() => {
            together("--cm finds the MAC address of the peer", "leave --peer-mac out")
        }
        Job::Measure(_) if net.mtu < Mtu::B1024 => {
            let what = "--cm takes the largest path MTU that fits the port";
            together(what, "leave --mtu out, or give 1024, 2048 or 4096")
        }
        Job::Measure(_) => Ok(()),
        _ => together("pingpong and target exchange addresses over TCP", "leave --cm out"),
    }
}

/// A program at the other end has a queue pair of its own: not on this process' model.
fn target(args: &Args, net: &Net) -> Result<Job, ConfigError> {
    if args.kind != "rc" {
        return Err(ConfigError::unknown("kind of target", &args.kind, "rc"));
    }
    if net.is_model() || net.server.is_some() {
        let what = "target waits on a device for a program at the other end";
        let way_out = "name the device with --device and leave SERVER out";
        return Err(ConfigError::Together { what, way_out });
    }
    Ok(Job::Target)
}

fn cores(option: &'static str, text: Option<&str>) -> Result<Vec<usize>, ConfigError> {
    let list = text.map(str::parse::<CoreList>).transpose();
    Ok(list.map_err(|source| OptionError::List { option, source })?.unwrap_or_default().0)
}

/// Whether anything happens to frames on this cable.
#[must_use]
pub fn is_bad(cable: &ImpairConfig) -> bool {
    let ImpairConfig { loss_ppm, duplicate_ppm, silent_corrupt_ppm, reorder_ppm, .. } = cable;
    loss_ppm + duplicate_ppm + silent_corrupt_ppm + reorder_ppm > 0
}

/// A share of the frames, as parts per million.
fn share(option: &'static str, percent: f64) -> Result<u32, ConfigError> {
    if !(0.0..=50.0).contains(&percent) {
        return Err(ConfigError::range(option, percent, "0 to 50 percent"));
    }
    // At most half a million.
    Ok((percent * 1e4).round() as u32)
}

fn cable(args: &Args) -> Result<ImpairConfig, ConfigError> {
    Ok(ImpairConfig {
        loss_ppm: share("loss", args.loss)?,
        duplicate_ppm: share("duplicate", args.duplicate)?,
        silent_corrupt_ppm: share("corrupt", args.corrupt)?,
        reorder_ppm: share("reorder", args.reorder)?,
        reorder_frames: 3,
        ..ImpairConfig::default()
    })
}

fn net(args: &Args) -> Result<Net, ConfigError> {
    let device: DeviceName = args.device.parse()?;
    let is_model = matches!(device, DeviceName::Model(_));
    let together = |what, way_out| Err(ConfigError::Together { what, way_out });
    if is_model && args.server.is_some() {
        let way_out = "leave SERVER out, or name a device with --device";
        return together("both ends run on the model of this process", way_out);
    }
    let cable = cable(args)?;
    if !is_model && (args.pcap.is_some() || is_bad(&cable)) {
        let way_out = "leave --pcap, --loss and their like out, or leave --device out";
        return together("only the model's cable can be captured or bad", way_out);
    }
    ConfigError::check("port", args.port.into(), 1, 65535)?;
    ConfigError::check("ack-timeout", args.ack_timeout.into(), 1, 31)?;
    let peer_mac = args.peer_mac.as_deref().map(mac).transpose()?;
    if peer_mac.is_some_and(MacAddr::is_multicast) {
        let value = args.peer_mac.as_deref().unwrap_or_default();
        return Err(ConfigError::range("peer-mac", value, "the address of one station"));
    }
    Ok(Net {
        device,
        ip: args.ip.as_deref().map(str::parse).transpose()?,
        peer_mac,
        peer: args.peer.as_deref().map(str::parse).transpose()?,
        server: args.server.clone(),
        cm: args.cm,
        port: args.port,
        mtu: mtu(args.mtu)?,
        ack_timeout: args.ack_timeout,
        pcap: args.pcap.clone(),
        cable,
    })
}

fn mac(text: &str) -> Result<MacAddr, ConfigError> {
    Ok(MacAddr(text.parse::<Mac>()?.0))
}

fn mtu(bytes: u32) -> Result<Mtu, ConfigError> {
    let all = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];
    let found = all.into_iter().find(|mtu| mtu.bytes() == bytes);
    found.ok_or_else(|| ConfigError::range("mtu", bytes, "256, 512, 1024, 2048 or 4096"))
}

fn ping_pong(args: &Args, mtu: Mtu) -> Result<PingPong, ConfigError> {
    let (kind, service) = match args.kind.as_str() {
        "rc" => ("rc", QpType::Rc),
        "uc" => ("uc", QpType::Uc),
        "ud" => ("ud", QpType::Ud),
        "srq" => ("srq", QpType::Rc),
        other => return Err(ConfigError::unknown("kind of pingpong", other, "rc, uc, ud or srq")),
    };
    let is_shared = kind == "srq";
    let qps = args.qps.filter(|_| is_shared).unwrap_or(if is_shared { STOCK_QPS } else { 1 });
    ConfigError::check("qps", qps as u64, 1, MAX_QPS as u64)?;
    let most = if service == QpType::Ud { mtu.bytes().into() } else { MAX_SIZE };
    let text = args.size.as_deref().unwrap_or("4096");
    let size: u64 = text.parse().unwrap_or(0);
    if !(1..=most).contains(&size) {
        return Err(ConfigError::range("size", text, format!("1 to {most}")));
    }
    let exchanges = args.iterations.unwrap_or(DEFAULT_EXCHANGES);
    // Each queue pair sends once.
    ConfigError::check("iterations", exchanges, qps as u64, u64::from(u32::MAX))?;
    // At most 2^30.
    let (size, verify, srq) = (size as usize, args.verify, args.srq || is_shared);
    Ok(PingPong { kind, service, size, exchanges, verify, srq, qps })
}

#[cfg(test)]
mod tests;
