//! `cxctl`: what an operator does with ConnectX devices and with the software ConnectX.
//!
//! # Architecture
//!
//! - [`host`] reads `/sys`, `/proc` and `/dev`, or a recording of them.
//! - [`bind`] hands functions to vfio-pci and back; [`hugepages`] reserves and releases memory;
//!   [`doctor`] says what is wrong before the first packet; [`commands`] prints.
//! - [`serve`]: `cxctl model serve`, the model behind vfio-user sockets, for QEMU guests.
//! - [`mod@run`]: `cxctl run`, stock RDMA programs on the model by our `libibverbs.so.1`.
//!
//! # What it does not do
//!
//! It opens no device. What only a device or its driver's ioctls say, such as the firmware's
//! version while vfio-pci has the function, stays unknown.
#![forbid(unsafe_code)]

pub mod bind;
pub mod commands;
pub mod doctor;
pub mod host;
pub mod hugepages;
pub mod impairment;
#[cfg(test)]
mod recorded;
pub mod run;
pub mod serve;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use ferrocx_app_common::signal::Stop;

use crate::host::Tree;

/// Inspect, prepare and emulate ConnectX devices.
///
/// Nothing is changed without --apply. Exit code: 0 good, 1 an error, 2 wrong usage; of doctor
/// also 3 warnings, 4 problems.
#[derive(Debug, Parser)]
#[command(name = "cxctl", version)]
pub struct Cli {
    /// Say more on standard error: -v info, -vv debug, -vvv every register access.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Read sys, proc and dev below this folder: a recording of another machine.
    #[arg(long, global = true, value_name = "FOLDER", default_value = "/")]
    root: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List adapters: driver, IOMMU group and its members, node, link, firmware.
    Status(StatusOptions),
    /// Hand functions to vfio-pci.
    Bind(BindOptions),
    /// Give functions back to the driver that they had.
    Unbind(BindOptions),
    /// Show, reserve and release hugepages.
    Hugepages(HugepageOptions),
    /// Find what is wrong with this machine, and say how to mend it.
    Doctor(DoctorOptions),
    /// The software ConnectX.
    #[command(subcommand)]
    Model(Model),
    /// Run a stock RDMA program on the software ConnectX: no card, driver or privilege needed.
    Run(run::Options),
}

/// What `status` prints.
#[derive(Debug, Args)]
pub struct StatusOptions {
    /// Every network controller, not only ConnectX.
    #[arg(long)]
    pub all: bool,
    /// JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

/// What `bind` and `unbind` work on.
#[derive(Debug, Args)]
pub struct BindOptions {
    /// PCI addresses; the domain may be left out.
    #[arg(required = true, value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// Do it. Without this, the writes are only printed.
    #[arg(long)]
    pub apply: bool,
}

/// What `hugepages` does.
#[derive(Debug, Args)]
pub struct HugepageOptions {
    #[command(subcommand)]
    action: Option<HugepageAction>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum HugepageAction {
    /// Make this many more.
    Reserve {
        /// Pages.
        count: u64,
        #[command(flatten)]
        which: Which,
    },
    /// Give this many back, or all that are free.
    Release {
        /// Pages.
        count: Option<u64>,
        #[command(flatten)]
        which: Which,
    },
}

/// Which hugepages.
#[derive(Debug, Args)]
struct Which {
    /// Bytes of a page: 2M or 1G.
    #[arg(long, default_value = "2M", value_parser = hugepages::parse_size)]
    size: u64,
    /// NUMA node; default: wherever the kernel likes.
    #[arg(long)]
    node: Option<u32>,
    /// Do it. Without this, the write is only printed.
    #[arg(long)]
    apply: bool,
}

/// What `doctor` looks at.
#[derive(Debug, Args)]
pub struct DoctorOptions {
    /// PCI addresses; default: every ConnectX.
    #[arg(value_name = "ADDRESS")]
    pub addresses: Vec<String>,
    /// A device that exchanges data with the adapters directly, such as a GPU.
    #[arg(long, value_name = "ADDRESS")]
    pub peer: Option<String>,
    /// MiB of buffers and rings that the program will use.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u64).range(1..=1 << 30))]
    pub need_mib: u64,
    /// Look with the rights of this user; default: the present one.
    #[arg(long)]
    pub uid: Option<u32>,
    /// JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
enum Model {
    /// Serve ports of the software ConnectX on vfio-user sockets, until interrupted.
    Serve(serve::Options),
    /// Print what a running server's ports are doing, as JSON.
    Status {
        /// The socket that `serve --status` opened.
        path: std::path::PathBuf,
    },
    /// Take a port of a running server off its bus: registers read as ones, writes are lost.
    Vanish {
        /// The socket that `serve --control` opened.
        path: std::path::PathBuf,
        /// The port: the last part of its socket's path.
        port: String,
    },
    /// Put a port back.
    Return {
        /// The socket that `serve --control` opened.
        path: std::path::PathBuf,
        /// The port: the last part of its socket's path.
        port: String,
    },
}

/// Runs what the command line asks for.
///
/// # Errors
///
/// Whatever keeps the command from doing its work.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    ferrocx_app_common::log::init(cli.verbose);
    anyhow::ensure!(
        cli.root == Path::new("/") || cli.root.join("sys").is_dir(),
        "{} has no folder sys; --root takes a folder with sys, proc and dev of another machine",
        cli.root.display()
    );
    let tree = Tree::new(cli.root);
    match cli.command {
        Command::Status(options) => commands::status(&tree, &options)?,
        Command::Bind(options) => commands::bind(&tree, &options)?,
        Command::Unbind(options) => commands::unbind(&tree, &options)?,
        Command::Hugepages(options) => commands::hugepages(&tree, &options)?,
        Command::Doctor(options) => return commands::doctor(&tree, &options),
        Command::Run(options) => return run::run(&options, &Stop::on_signals()?),
        Command::Model(Model::Serve(options)) => serve::run(&options)?,
        Command::Model(Model::Vanish { path, port }) => {
            serve::control::ask(&path, serve::control::Action::Vanish, &port)?;
        }
        Command::Model(Model::Return { path, port }) => {
            serve::control::ask(&path, serve::control::Action::Return, &port)?;
        }
        Command::Model(Model::Status { path }) => print!("{}", serve::status::read(&path)?),
    }
    Ok(ExitCode::SUCCESS)
}
