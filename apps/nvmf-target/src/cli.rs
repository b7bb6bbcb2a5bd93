//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// Serves NVMe over RDMA: hosts connect, and read and write namespaces.
///
/// On the model, which is the default device, whoever is on the same model network can connect:
/// with `model:tap=NAME`, Linux on that TAP interface. SIGINT and SIGTERM end it in good order.
#[derive(Debug, Clone, Parser)]
#[command(name = "nvmf-target", version, max_term_width = 100)]
pub struct Args {
    /// What to offer, and where: see examples/ram.toml
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Device, instead of the file's: `model`, `model:tap=NAME` or a PCI address
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// Address of the port and its prefix length, instead of the file's
    #[arg(long, value_name = "ADDRESS/BITS")]
    pub address: Option<String>,
    /// Only check the file
    #[arg(long)]
    pub check: bool,
    /// What the core does when there is nothing to do: busy, spin, yield or sleep
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
