//! `nvmf-target bench`: load for a target, ours or another, by the polled host of [`crate::host`].
//!
//! [`Plan`] is what was asked for, checked; [`drive`] carries it out on a port that has an address,
//! and `load` is the loop that submits and polls. One thread polls all queues.

mod load;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ferrocx::verbs::GidConfig;
use ferrocx::verbs::cm::{CmConfig, ConnectionManager};
use ferrocx::{DeviceConfig, PageSize, Port, PortConfig};
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::wait::Wait;
use hdrhistogram::Histogram;
use load::Lane;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::cli::BenchArgs;
use crate::config::{Config, bytes_of, in_range};
use crate::host::{Base, Host, HostConfig};
use crate::proto::connect::is_nqn;
use crate::proto::identify::{cns, geometry};
use crate::proto::property;
use crate::run::Running;

/// The target that is made where none is named.
const OWN: &str = "
address = \"192.0.2.1/24\"
services = [4420]
[[subsystem]]
nqn = \"nqn.2026-11.org.ferrocx:bench\"
allow_any_host = true
[[subsystem.namespace]]
size = \"64MiB\"
";
const OWN_NQN: &str = "nqn.2026-11.org.ferrocx:bench";
/// Our address, and that target's.
const OWN_ADDRESS: &str = "192.0.2.2/24";
const OWN_TARGET: &str = "192.0.2.1:4420";

/// What commands do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// They read.
    Read,
    /// They write.
    Write,
    /// They do both, by turns.
    Mixed,
    /// They write everything once, then read and compare it.
    Verify,
}

/// What is to be done, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Who it is, and what it wants.
    pub host: HostConfig,
    /// Number of the namespace.
    pub nsid: u32,
    /// What commands do.
    pub pattern: Pattern,
    /// Bytes of a command.
    pub len_bytes: u64,
    /// Bytes of the namespace that are used; `None` for all.
    pub span_bytes: Option<u64>,
    /// Commands on the way on a queue.
    pub depth: u16,
    /// How long it takes, but for [`Pattern::Verify`].
    pub time: Duration,
    /// Each command has a key of its own.
    pub lends: bool,
    /// What is done when there is nothing to do.
    pub wait: Wait,
}

impl Plan {
    /// Checks what was asked for.
    ///
    /// # Errors
    ///
    /// One sentence that names the value, its limit and the way out.
    pub fn check(args: &BenchArgs) -> Result<Self> {
        let subnqn = args.nqn.clone().unwrap_or_else(|| OWN_NQN.into());
        for name in [&subnqn, &args.host] {
            ensure!(
                is_nqn(name),
                "`{name}` is no name; give one like nqn.2014-08.org.example:disk"
            );
        }
        let pattern = match args.rw.as_str() {
            "read" => Pattern::Read,
            "write" => Pattern::Write,
            "mixed" => Pattern::Mixed,
            "verify" => Pattern::Verify,
            other => bail!("rw is `{other}`; give read, write, mixed or verify"),
        };
        let seconds = in_range("seconds", args.seconds, 1, 86_400)?;
        let host = HostConfig {
            hostnqn: args.host.clone(),
            hostid: Uuid::new_v5(&Uuid::NAMESPACE_URL, args.host.as_bytes()).into_bytes(),
            io_queues: in_range("queues", args.queues, 1, 64)?,
            ..HostConfig::new(&subnqn)
        };
        Ok(Self {
            host,
            nsid: args.nsid,
            pattern,
            len_bytes: in_range("size", bytes_of(&args.size)?, 512, 1 << 20)?,
            span_bytes: args.span.as_deref().map(bytes_of).transpose()?,
            depth: in_range("depth", args.depth, 1, 1023)?,
            time: Duration::from_secs(seconds.into()),
            lends: args.lend,
            wait: args.wait.parse()?,
        })
    }
}

/// What a host of load has measured.
#[derive(Debug)]
pub struct Outcome {
    /// Commands that have ended.
    pub commands: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// Times of commands from their submission to their completion, in ns.
    pub times: Histogram<u64>,
}

impl Outcome {
    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64().max(1e-9)
    }

    fn quantiles_us(&self) -> [f64; 4] {
        [0.5, 0.99, 0.999, 1.0].map(|at| self.times.value_at_quantile(at) as f64 / 1e3)
    }

    /// The result as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let [p50, p99, p999, most] = self.quantiles_us();
        json!({
            "commands": self.commands,
            "bytes": self.bytes,
            "seconds": self.took.as_secs_f64(),
            "iops": self.per_second(self.commands),
            "bytes_per_second": self.per_second(self.bytes),
            "us": { "p50": p50, "p99": p99, "p99.9": p999, "max": most },
        })
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [p50, p99, p999, most] = self.quantiles_us();
        let (iops, rate) = (self.per_second(self.commands), self.per_second(self.bytes) / 1e6);
        write!(
            f,
            "{} commands in {:.3} s: {iops:.0} IOPS, {rate:.1} MB/s; us p50 {p50:.1}, \
             p99 {p99:.1}, p99.9 {p999:.1}, max {most:.1}",
            self.commands,
            self.took.as_secs_f64()
        )
    }
}

/// Carries out what a command line asks for, and prints the result.
///
/// # Errors
///
/// One sentence about the first thing that went wrong; a command that failed, and data that are
/// not what was written, among them.
pub fn run(args: &BenchArgs, stop: &Stop) -> Result<()> {
    let plan = Plan::check(args)?;
    let outcome = match args.target {
        Some(target) => {
            let device = DeviceConfig {
                mtu: in_range("mtu", args.mtu, 1280, 9978)?,
                ..DeviceConfig::default()
            };
            let config = PortConfig { device, ..PortConfig::default() };
            let port = Port::open_with(&args.device, config)
                .with_context(|| format!("device {}", args.device))?;
            let outcome = on_port(&port, &args.address, target, &plan, stop);
            port.close()?;
            outcome?
        }
        None => {
            ensure!(
                args.device == "model",
                "device is {}, and no target is named; give one, or leave the device out",
                args.device
            );
            with_own_target(&plan, stop)?
        }
    };
    match args.json {
        true => println!("{}", outcome.json()),
        false => println!("{outcome}"),
    }
    if args.device.starts_with("model") {
        eprintln!("that is the software model's speed; it says nothing of a card's");
    }
    Ok(())
}

/// Carries a plan out against a target of our own on another model of this process.
///
/// # Errors
///
/// Those of [`drive`].
pub fn with_own_target(plan: &Plan, stop: &Stop) -> Result<Outcome> {
    // A network of its own in this process.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let net = format!("bench{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let open = |seed: u8| {
        let name = format!("model:net={net},seed={seed}");
        Port::open_with(&name, PortConfig::default())
    };
    let (far, near) = (open(1)?, open(2)?);
    let running = Running::start(&far, &Config::parse(OWN)?, Wait::Yield)?;
    let outcome = on_port(&near, OWN_ADDRESS, OWN_TARGET.parse()?, plan, stop);
    near.close()?;
    running.stop()?;
    far.close()?;
    outcome
}

/// Gives a port its address, and carries a plan out.
fn on_port(
    port: &Port,
    address: &str,
    target: SocketAddr,
    plan: &Plan,
    stop: &Stop,
) -> Result<Outcome> {
    let place = || format!("address `{address}`; give one like {OWN_ADDRESS}");
    let (own, bits) = address.split_once('/').with_context(place)?;
    let own: IpAddr = own.parse().with_context(place)?;
    let most = if own.is_ipv4() { 32 } else { 128 };
    let prefix_len = in_range("the prefix length", bits.parse().with_context(place)?, 1, most)?;
    let context = port.rdma()?;
    context.add_gid(GidConfig { address: own, prefix_len, gateway: None, vlan: None })?;
    let pd = context.alloc_pd()?;
    let cm = ConnectionManager::open(&context, &CmConfig::default())?;
    drive(&Base { context, pd, cm, target, page: PageSize::default() }, plan, stop)
}

/// Connects to a target, carries a plan out, and leaves in good order.
///
/// # Errors
///
/// One sentence about the first thing that went wrong: a target that is not there, a plan that does
/// not fit its namespace, a command that failed, data that are not what was written.
pub fn drive(base: &Base, plan: &Plan, stop: &Stop) -> Result<Outcome> {
    let target = base.target;
    let mut host = Host::connect(base, &plan.host).with_context(|| format!("target {target}"))?;
    let found = geometry(&host.identify(cns::NAMESPACE, plan.nsid)?);
    let none = || anyhow!("namespace {} is none of {}", plan.nsid, plan.host.subnqn);
    let (blocks, shift) = found.ok_or_else(none)?;
    let (len, block) = (plan.len_bytes, 1 << shift);
    ensure!(len % block == 0, "size is {len}, and its blocks have {block} bytes; give a multiple");
    let mdts = host.identify(cns::CONTROLLER, 0)?[77];
    let most = if mdts == 0 { u64::MAX } else { 4096 << mdts.min(40) };
    ensure!(len <= most, "size is {len}, and the target takes {most} at most; make size smaller");
    let all = blocks << shift;
    let span = plan.span_bytes.unwrap_or(all);
    ensure!(span <= all, "span is {span}, and the namespace has {all} bytes; make span smaller");
    ensure!(span >= len, "span is {span}, and size is {len}; make size smaller");
    let entries = (host.property(property::CAP)? as u16).saturating_add(1);
    let depth = plan.depth;
    ensure!(depth < entries, "depth is {depth}, and a queue takes {}; give less", entries - 1);
    let (granted, queues) = (host.granted, plan.host.io_queues);
    ensure!(granted >= queues, "queues are {queues}, and the target grants {granted}; give less");
    let mut lanes = Vec::with_capacity(queues.into());
    for qid in 1..=queues {
        lanes.push(Lane::open(&host, qid, plan)?);
    }
    let outcome = load::run(&mut lanes, plan, (span / len, shift), stop)?;
    drop(lanes);
    host.shut_down()?;
    Ok(outcome)
}
