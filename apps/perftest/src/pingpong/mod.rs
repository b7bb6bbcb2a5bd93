//! Messages to and fro, as `ibv_rc_pingpong`, `ibv_uc_pingpong` and `ibv_ud_pingpong` exchange
//! them, and on many queue pairs as `ibv_srq_pingpong` does: with these tools, or with ourselves.
//!
//! The stock tools send from the buffer that they receive into, so they send back what they got,
//! and the client starts with a constant. Ours puts a new pattern into each message and, when
//! told to, checks that it comes back: every byte of every message crosses the wire twice. A
//! server of ours does so towards a stock client, and sends back what it gets from one of ours.

mod shared;
mod single;
mod stock;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use crate::config::{Config, Net, PingPong};
use crate::end::{End, Models, open_device};
use crate::exchange::Role;
use crate::tcp;

/// What the report says.
#[derive(Debug, Serialize)]
struct Report {
    test: &'static str,
    /// `model` for the model's speed, otherwise the device.
    device: String,
    role: Role,
    service: String,
    size_bytes: usize,
    exchanges: u64,
    verified: bool,
    seconds: f64,
    usec_per_exchange: f64,
    usec_p50: f64,
    usec_p99: f64,
    usec_max: f64,
}

/// Runs the test: against the peer that the command line names, or both ends on the model.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(config: &Config, job: &PingPong) -> Result<()> {
    let report = if config.net.is_model() { on_model(config, job) } else { on_device(config, job) };
    let report = report?;
    println!(
        "{} {} bytes, {} exchanges in {:.3} s: {:.2} us each, half of them below {:.2}, 99 % below \
         {:.2}, all below {:.2}{}",
        report.service,
        report.size_bytes,
        report.exchanges,
        report.seconds,
        report.usec_per_exchange,
        report.usec_p50,
        report.usec_p99,
        report.usec_max,
        if report.verified { "; every byte was right" } else { "" },
    );
    config.json.iter().try_for_each(|target| target.write(&report))?;
    Ok(())
}

fn on_device(config: &Config, job: &PingPong) -> Result<Report> {
    let listener = match config.net.server {
        Some(_) => None,
        None => Some(tcp::listen(config.net.port)?),
    };
    let end = open_device(&config.net)?;
    let (role, stream) = match (&config.net.server, &listener) {
        (Some(host), _) => (Role::Client, tcp::connect(host, config.net.port)?),
        (None, Some(listener)) => (Role::Server, tcp::accept(listener)?),
        (None, None) => bail!("there is no other end"),
    };
    let report = play(&end, config, job, role, stream)?;
    end.close()?;
    Ok(report)
}

fn on_model(config: &Config, job: &PingPong) -> Result<Report> {
    let (models, [here, there]) = Models::start(&config.net, config.wait)?;
    let (client, server) = UnixStream::pair()?;
    let macs = [&there, &here].map(|end| end.device.device().mac());
    let config_of = |mac| {
        let net = Net { peer_mac: Some(mac), ..config.net.clone() };
        Config { net, ..config.clone() }
    };
    let [for_client, for_server] = macs.map(config_of);
    let report = std::thread::scope(|scope| {
        let server = scope.spawn(|| play(&there, &for_server, job, Role::Server, server));
        let report = play(&here, &for_client, job, Role::Client, client);
        let served = server.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        served.context("server").and(report)
    })?;
    here.close()?;
    there.close()?;
    models.stop()?;
    Ok(report)
}

fn play(
    end: &End,
    config: &Config,
    job: &PingPong,
    role: Role,
    stream: impl Read + Write,
) -> Result<Report> {
    let (seconds, times) = match job.kind {
        "srq" => shared::play(end, config, job, role, stream)?,
        _ => single::play(end, config, job, role, stream)?,
    };
    let us = |ns: u64| ns as f64 / 1e3;
    Ok(Report {
        test: "pingpong",
        device: config.net.device.to_string(),
        role,
        service: job.kind.to_string(),
        size_bytes: job.size,
        exchanges: job.exchanges,
        verified: job.verify,
        seconds,
        usec_per_exchange: seconds * 1e6 / job.exchanges as f64,
        usec_p50: us(times.value_at_quantile(0.5)),
        usec_p99: us(times.value_at_quantile(0.99)),
        usec_max: us(times.max()),
    })
}
