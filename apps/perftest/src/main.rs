//! Entry point of perftest.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use ferrocx_app_common::{exit, log};

fn main() -> ExitCode {
    let args = ferrocx_perftest::cli::Args::parse();
    log::init(args.verbose);
    match ferrocx_perftest::main(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
