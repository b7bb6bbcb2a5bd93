//! Entry point of nvmf-target.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::{exit, log};

fn main() -> ExitCode {
    let args = ferrocx_nvmf_target::cli::Args::parse();
    log::init(args.verbose);
    let stop = Stop::on_signals().map_err(anyhow::Error::from);
    match stop.and_then(|stop| ferrocx_nvmf_target::run::run(&args, &stop)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
