//! The command line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Serves NVMe over RDMA: hosts connect, and read and write namespaces.
///
/// On the model, which is the default device, whoever is on the same model network can connect:
/// with `model:tap=NAME`, Linux on that TAP interface. SIGINT and SIGTERM end it in good order.
#[derive(Debug, Clone, Parser)]
#[command(
    name = "nvmf-target",
    version,
    max_term_width = 100,
    subcommand_negates_reqs = true,
    args_conflicts_with_subcommands = true
)]
pub struct Args {
    /// Ask a running target, or look at the machine, instead of serving
    #[command(subcommand)]
    pub command: Option<Ask>,
    /// What to offer, and where: see examples/ram.toml
    #[arg(long, value_name = "FILE", required = true)]
    pub config: Option<PathBuf>,
    /// Device, instead of the file's: `model`, `model:tap=NAME` or a PCI address
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Address of the port and its prefix length, instead of the file's
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub address: Option<String>,
    /// Unix socket for `nvmf-target rpc` and `stats`, instead of the file's
    #[arg(long, value_name = "SOCKET")]
    pub socket: Option<PathBuf>,
    /// Only check the file: cores, devices and files that it names are looked at by `doctor`
    #[arg(long)]
    pub check: bool,
    /// What a core does when there is nothing to do: busy, spin, yield, sleep
    /// (50 microseconds), sleep:N (N microseconds, 1000 at most), interrupt or
    /// interrupt:N (at least N microseconds after the last one)
    #[arg(long, value_name = "WAIT", default_value = "busy")]
    pub wait: String,
    /// Seconds between lines of statistics, 0 for none but the last
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub stats: u64,
    /// Statistics as lines of JSON
    #[arg(long)]
    pub json: bool,
    /// More of the log; twice for still more
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

impl Args {
    /// The file to be served.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn path(&self) -> Result<&Path> {
        self.config.as_deref().context("there is no --config; give the file to be served")
    }
}

/// What can be asked.
#[derive(Debug, Clone, Subcommand)]
pub enum Ask {
    /// Send a JSON-RPC request to a running target, and print its result
    #[command(after_help = crate::rpc::HELP)]
    Rpc {
        /// The target's socket
        #[arg(long, value_name = "SOCKET")]
        socket: PathBuf,
        /// What is asked for, such as subsystem.list
        method: String,
        /// Its parameters, an object of JSON
        #[arg(default_value = "{}")]
        params: String,
    },
    /// Print the statistics of a running target
    Stats {
        /// The target's socket
        #[arg(long, value_name = "SOCKET")]
        socket: PathBuf,
        /// As a line of JSON
        #[arg(long, conflicts_with = "prometheus")]
        json: bool,
        /// As Prometheus reads it
        #[arg(long)]
        prometheus: bool,
        /// Again every so many seconds
        #[arg(long, value_name = "SECONDS")]
        watch: Option<u64>,
    },
    /// Put load on a target, ours or another, and say what it takes
    Bench(BenchArgs),
    /// Say what of this machine is not as a target of this file needs it, and how to mend it
    Doctor {
        /// The file to be served
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

/// What a host of load is to do.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// The target's address and port, such as 192.0.2.1:4420 [default: one of our own, of 64 MiB of
    /// RAM, on another model in this process]
    #[arg(value_name = "ADDRESS:PORT", requires = "nqn")]
    pub target: Option<SocketAddr>,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", requires = "target")]
    pub nqn: Option<String>,
    /// Own device: `model`, `model:tap=NAME` or a PCI address
    #[arg(long, value_name = "DEVICE", default_value = "model")]
    pub device: String,
    /// Own address and its prefix length, such as 192.0.2.2/24
    #[arg(long, value_name = "ADDRESS/BITS", default_value = "192.0.2.2/24", requires = "target")]
    pub address: String,
    /// Largest layer-3 packet: 1280 to 9978
    #[arg(long, value_name = "BYTES", default_value_t = 1500, requires = "target")]
    pub mtu: u16,
    /// Own name
    #[arg(long, value_name = "NQN", default_value = "nqn.2026-11.org.ferrocx:bench-host")]
    pub host: String,
    /// Number of the namespace. **Writes destroy what it has**
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nsid: u32,
    /// read, write, mixed (both, by turns) at random places; or verify: all is written, read and
    /// compared, once
    #[arg(long, value_name = "WHAT", default_value = "read")]
    pub rw: String,
    /// Bytes of a command: a multiple of the namespace's blocks
    #[arg(long, value_name = "SIZE", default_value = "4KiB")]
    pub size: String,
    /// Bytes of the namespace that are used, from its start [default: all]
    #[arg(long, value_name = "SIZE")]
    pub span: Option<String>,
    /// Commands on the way on each queue: 1 to 1023
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub depth: u16,
    /// Queues: 1 to 64
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u16,
    /// Seconds: 1 to 86400
    #[arg(long, visible_alias = "duration", value_name = "N", default_value_t = 10)]
    pub seconds: u32,
    /// Each command lends its memory by a key of its own, which the target ends, as Linux does
    /// [default: one key for all]
    #[arg(long)]
    pub lend: bool,
    /// The result as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// What a core does when there is nothing to do: busy, spin, yield, sleep
    /// (50 microseconds) or sleep:N (N microseconds, 1000 at most)
    #[arg(long, value_name = "WAIT", default_value = "busy")]
    pub wait: String,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_right() {
        Args::command().debug_assert();
        let parse = |line: &str| Args::try_parse_from(line.split(' '));
        assert!(parse("nvmf-target --config a.toml").unwrap().command.is_none());
        assert!(parse("nvmf-target").is_err());
        assert!(parse("nvmf-target rpc --socket s subsystem.list").unwrap().config.is_none());
        assert!(parse("nvmf-target stats --socket s --json --prometheus").is_err());
        assert!(parse("nvmf-target --config a.toml doctor --config b.toml").is_err());
        assert!(parse("nvmf-target bench --rw verify").is_ok());
        assert!(parse("nvmf-target bench --mtu 9000").is_err(), "there is no network");
        assert!(parse("nvmf-target bench 10.0.0.1:4420 --nqn nqn.2014-08.a:b").is_ok());
        assert!(parse("nvmf-target bench 10.0.0.1:4420").is_err());
    }
}
