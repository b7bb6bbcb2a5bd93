//! The command line, checked: every value in its range, every combination possible.

mod measure;
mod net;

use std::path::PathBuf;

use ferrocx_app_common::option::cores;
use ferrocx_app_common::report::JsonTarget;
use ferrocx_app_common::wait::Wait;
use ferrocx_verbs_lite::{Mtu, QpType};

use crate::cli::Args;
use crate::handshake::SRQ_ADDRESSES;
use crate::measure::{Measure, Test};
pub use ferrocx_app_common::option::ConfigError;
pub use net::{Net, Subnet, is_bad};

/// Queue pairs of `ibv_srq_pingpong`. Source: rdma-core, srq_pingpong.c.
const STOCK_QPS: usize = 16;
/// Bytes of a message of pingpong; of UD as many as the path MTU has room for.
const DEFAULT_SIZE: u64 = 4096;
/// Exchanges of a ping-pong unless told otherwise, as in the stock tools.
const DEFAULT_EXCHANGES: u64 = 1000;

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
        let net = net::net(args)?;
        let job = match args.test.as_str() {
            "pingpong" => Job::PingPong(ping_pong(args, net.mtu)?),
            "target" => target(args, &net)?,
            _ => Job::Measure(measure::measure(args, net.mtu)?),
        };
        if net.cm {
            check_cm(&net, &job)?;
        }
        let wait: Wait = args.wait.parse()?;
        if matches!(wait, Wait::Interrupt(_)) {
            let known = "busy, spin, yield, sleep or sleep:N";
            return Err(ConfigError::unknown("wait strategy", &args.wait, known));
        }
        // It cannot fail.
        let json = args.json.as_deref().and_then(|text| text.parse::<JsonTarget>().ok());
        json.iter().try_for_each(JsonTarget::check)?;
        let plot = args.plot.clone();
        plot.clone().map(JsonTarget::File).iter().try_for_each(JsonTarget::check)?;
        if !matches!(job, Job::Measure(_)) && plot.is_some() {
            let what = "pingpong and target draw no plot";
            return Err(ConfigError::together(what, "leave --plot out"));
        }
        if !matches!(job, Job::PingPong(_)) && args.srq {
            let what = "only pingpong takes its receives from a shared queue";
            return Err(ConfigError::together(what, "leave --srq out"));
        }
        let [cores, peer_cores] = [("cores", &args.cores), ("peer-cores", &args.peer_cores)]
            .map(|(option, text)| cores(option, text.as_deref()));
        Ok(Self { net, job, wait, cores: cores?, peer_cores: peer_cores?, plot, json })
    }
}

/// What the connection manager does by itself, and for whom it does it.
fn check_cm(net: &Net, job: &Job) -> Result<(), ConfigError> {
    let together = |what, way_out| Err(ConfigError::together(what, way_out));
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
        return Err(ConfigError::together(what, way_out));
    }
    Ok(Job::Target)
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
    ConfigError::check("qps", qps as u64, 1, SRQ_ADDRESSES as u64)?;
    let most = if service == QpType::Ud { mtu.bytes().into() } else { measure::MAX_SIZE };
    let size = match args.size.as_deref() {
        None => DEFAULT_SIZE.min(most),
        Some(text) => match text.parse() {
            Ok(size) if (1..=most).contains(&size) => size,
            _ => return Err(ConfigError::range("size", text, format!("1 to {most}"))),
        },
    };
    let exchanges = args.iterations.unwrap_or(DEFAULT_EXCHANGES);
    // Each queue pair sends once.
    ConfigError::check("iterations", exchanges, qps as u64, u64::from(u32::MAX))?;
    // At most 2^30.
    let (size, verify, srq) = (size as usize, args.verify, args.srq || is_shared);
    Ok(PingPong { kind, service, size, exchanges, verify, srq, qps })
}

#[cfg(test)]
mod tests;
