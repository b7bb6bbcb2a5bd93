//! A measurement from the command line to the report.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ferrocx_app_common::report::JsonTarget;
use ferrocx_core::lcore::Lcores;
use ferrocx_verbs_lite::cm::CmListener;

use crate::cm::{Cm, CmPeer};
use crate::config::Config;
use crate::end::{End, Models, open_device};
use crate::fastreg;
use crate::measure::{Measure, Test};
use crate::placement::Placement;
use crate::report::{Report, Row};
use crate::round;
use crate::tcp;

/// How long the model's second end waits for the first, which may have failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// Measures, and prints what came of it.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(config: &Config, measure: &Measure) -> Result<()> {
    let placement = placement(config)?;
    let rows = if config.net.is_model() {
        on_model(config, measure, &placement)?
    } else if is_alone(measure) {
        let end = open_device(&config.net)?;
        let rows = fastreg::alone(&end, &placement, measure)?;
        end.close()?;
        rows
    } else if let Some(host) = &config.net.server {
        ask(config, measure, &placement, host)?
    } else {
        let messages = answer(config, measure, &placement)?;
        println!("the client is done; {messages} messages checked or written here");
        return Ok(());
    };
    let group = if config.net.is_model() { "model" } else { "device" };
    let device = config.net.device.to_string();
    print(config, &Report { measure: measure.clone(), group, device, rows })
}

/// Measures between two models, and prints nothing.
///
/// # Errors
///
/// One sentence about the first thing that went wrong; a device that is no model.
pub fn measure(config: &Config, measure: &Measure) -> Result<Vec<Row>> {
    on_model(config, measure, &placement(config)?)
}

/// Where threads run. To be asked before any thread is pinned.
fn placement(config: &Config) -> Result<Placement> {
    Ok(Placement {
        lcores: Lcores::detect()?,
        cores: config.cores.clone(),
        wait: config.wait,
        helper: None,
        peer_mac: config.net.peer_mac,
    })
}

/// Whether there is no other end.
fn is_alone(measure: &Measure) -> bool {
    measure.test == Test::FastReg && !measure.verify
}

/// The end that calls, on a device.
fn ask(config: &Config, measure: &Measure, placement: &Placement, host: &str) -> Result<Vec<Row>> {
    let port = config.net.port;
    let stream = if config.net.cm { None } else { Some(tcp::connect(host, port)?) };
    let end = open_device(&config.net)?;
    let rows = match stream {
        Some(stream) => client(&end, placement, measure, stream, None)?,
        None => call(&end, placement, measure, host, port)?,
    };
    end.close()?;
    Ok(rows)
}

/// The end that waits, on a device; messages that it checked or wrote.
fn answer(config: &Config, measure: &Measure, placement: &Placement) -> Result<u64> {
    let port = config.net.port;
    let listener = if config.net.cm { None } else { Some(tcp::listen(port)?) };
    let end = open_device(&config.net)?;
    let messages = match listener {
        Some(listener) => serve(&end, placement, measure, tcp::accept(&listener)?, None)?,
        None => {
            let cm = Cm::open(&end, placement.wait)?;
            let listener = cm.listen(port)?;
            wait_for_call(&end, placement, measure, (&cm, listener), None)?
        }
    };
    end.close()?;
    Ok(messages)
}

/// The measuring end, which reaches the other through the connection manager.
fn call(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    host: &str,
    port: u16,
) -> Result<Vec<Row>> {
    let cm = Cm::open(end, placement.wait)?;
    let (stream, peer) = cm.call(end, host, port)?;
    client(end, placement, measure, stream, Some(peer))
}

/// The other end, which is called through the connection manager.
fn wait_for_call(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    (cm, listener): (&Cm, CmListener),
    limit: Option<Duration>,
) -> Result<u64> {
    let (stream, peer) = cm.accept(end, listener, limit)?;
    serve(end, placement, measure, stream, Some(peer))
}

fn on_model(config: &Config, measure: &Measure, placement: &Placement) -> Result<Vec<Row>> {
    let (models, [here, there]) = Models::start(&config.net, config.wait)?;
    let placement = &Placement { helper: Some(models.helper()), ..placement.clone() };
    let rows = if is_alone(measure) {
        fastreg::alone(&here, placement, measure)?
    } else {
        both(config, measure, placement, &here, &there)?
    };
    here.close()?;
    there.close()?;
    models.stop()?;
    Ok(rows)
}

/// Two ends in this process.
fn both(
    config: &Config,
    measure: &Measure,
    placement: &Placement,
    here: &End,
    there: &End,
) -> Result<Vec<Row>> {
    let peer = Placement { cores: config.peer_cores.clone(), ..placement.clone() };
    let (host, port) = (there.gid.ip().to_string(), config.net.port);
    // Before the other end calls.
    let waiting = if config.net.cm {
        let cm = Cm::open(there, placement.wait)?;
        let listener = cm.listen(port)?;
        Some((cm, listener))
    } else {
        None
    };
    let (near, stream) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        let is_cm = waiting.is_some();
        let server = scope.spawn(|| match waiting {
            Some((cm, listener)) => {
                wait_for_call(there, &peer, measure, (&cm, listener), Some(PATIENCE))
            }
            None => serve(there, &peer, measure, stream, None),
        });
        let rows = match is_cm {
            true => call(here, placement, measure, &host, port),
            false => client(here, placement, measure, near, None),
        };
        let served = server.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        match (rows, served.context("server")) {
            // Of two failures, the client's says more: it has heard of the server's. But not if
            // the server could not even say so.
            (Err(client), Err(server)) if is_hang_up(&client) => Err(server),
            (rows, served) => {
                let rows = rows?;
                served?;
                Ok(rows)
            }
        }
    })
}

/// Whether the other end went without a word.
fn is_hang_up(error: &anyhow::Error) -> bool {
    let kind =
        error.chain().find_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kind == Some(io::ErrorKind::UnexpectedEof)
}

/// The measuring end.
fn client<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<Vec<Row>> {
    match measure.test {
        Test::FastReg => fastreg::client(end, placement, measure, stream, cm),
        _ => round::client(end, placement, measure, stream, cm),
    }
}

/// The other end; messages that it checked or wrote.
fn serve<S: Read + Write>(
    end: &End,
    placement: &Placement,
    measure: &Measure,
    stream: S,
    cm: Option<CmPeer>,
) -> Result<u64> {
    match measure.test {
        Test::FastReg => fastreg::serve(end, placement, measure, stream, cm),
        _ => round::server(end, placement, measure, stream, cm),
    }
}

fn print(config: &Config, report: &Report) -> Result<()> {
    let text = report.text();
    if config.json == Some(JsonTarget::Stdout) {
        eprint!("{text}");
    } else {
        // A closed pipe is no reason to lose the report file.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    config.json.iter().try_for_each(|target| target.write(&report.json()))?;
    if let Some(path) = &config.plot {
        let place = || format!("cannot write the plot to {}", path.display());
        report.write_plot(path).with_context(place)?;
    }
    Ok(())
}
