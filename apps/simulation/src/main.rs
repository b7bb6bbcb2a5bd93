//! Entry point of the simulation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferrocx_app_common::{exit, log};
use ferrocx_simulation::cli;

fn main() -> ExitCode {
    let args = cli::Args::parse();
    log::init_silent(args.verbose);
    match cli::main(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
