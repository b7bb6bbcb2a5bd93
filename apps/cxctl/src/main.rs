//! Entry point of cxctl.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match ferrocx_cxctl::run(ferrocx_cxctl::Cli::parse()) {
        Ok(code) => code,
        Err(error) => ferrocx_app_common::exit::report(&error),
    }
}
