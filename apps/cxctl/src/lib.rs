//! `cxctl`: what an operator does with ConnectX devices and with the software ConnectX.
//!
//! # Architecture
//!
//! - [`serve`]: `cxctl model serve`, the model behind vfio-user sockets, for QEMU guests.
//!
//! # What it does not do
//!
//! Nothing that needs a device: `status`, `bind`, `hugepages` and `doctor` are not here yet.
#![forbid(unsafe_code)]

pub mod serve;

use clap::{Parser, Subcommand};

/// Inspect, prepare and emulate ConnectX devices.
#[derive(Debug, Parser)]
#[command(name = "cxctl", version)]
pub struct Cli {
    /// Say more on standard error: -v info, -vv debug, -vvv every register access.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The software ConnectX.
    #[command(subcommand)]
    Model(Model),
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
}

/// Runs what the command line asks for.
///
/// # Errors
///
/// Whatever keeps the command from doing its work.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    ferrocx_app_common::log::init(cli.verbose);
    match cli.command {
        Command::Model(Model::Serve(options)) => serve::run(&options),
        Command::Model(Model::Status { path }) => {
            print!("{}", serve::status::read(&path)?);
            Ok(())
        }
    }
}
