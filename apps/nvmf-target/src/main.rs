//! Entry point of nvmf-target.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use ferrocx_app_common::signal::Stop;
use ferrocx_app_common::{exit, log};
use ferrocx_nvmf_target::cli::{Args, Ask};
use ferrocx_nvmf_target::{bench, doctor, rpc, run};

fn main() -> ExitCode {
    let args = Args::parse();
    log::init(args.verbose);
    match go(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

fn go(args: &Args) -> Result<()> {
    match &args.command {
        None => run::run(args, &Stop::on_signals()?),
        Some(Ask::Rpc { socket, method, params }) => rpc::client::call(socket, method, params),
        Some(Ask::Stats { socket, json, prometheus, watch }) => {
            rpc::client::stats(socket, (*json, *prometheus), *watch)
        }
        Some(Ask::Bench(args)) => bench::run(args, &Stop::on_signals()?),
        Some(Ask::Doctor { config }) => doctor::run(config),
    }
}
