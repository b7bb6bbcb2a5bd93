//! Entry point of tick2trade.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferrocx_app_common::{exit, log};

fn main() -> ExitCode {
    let args = ferrocx_tick2trade::cli::Args::parse();
    log::init(args.verbose);
    match ferrocx_tick2trade::main(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
