//! A measurement from the command line to the report.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, anyhow};
use ferrocx_app_common::report::JsonTarget;
use ferrocx_pmd::lcore::Lcores;

use crate::config::Config;
use crate::end::{End, Models, open_device};
use crate::fastreg;
use crate::measure::{Measure, Test};
use crate::report::{Report, Row};
use crate::round::{self, Place};
use crate::tcp;

/// Measures, and prints what came of it.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn run(config: &Config, measure: &Measure) -> Result<()> {
    // Before any thread is pinned.
    let place = Place {
        lcores: Lcores::detect()?,
        cores: config.cores.clone(),
        wait: config.wait,
        peer_mac: config.net.peer_mac,
    };
    let is_fastreg = measure.test == Test::FastReg;
    let rows = match (config.net.is_model(), &config.net.server) {
        (true, _) => on_model(config, measure, &place)?,
        (false, _) if is_fastreg && !measure.verify => {
            let end = open_device(&config.net)?;
            let rows = fastreg::alone(&end, &place, measure)?;
            end.close()?;
            rows
        }
        (false, Some(host)) => {
            let stream = tcp::connect(host, config.net.port)?;
            let end = open_device(&config.net)?;
            let rows = client(&end, &place, measure, stream)?;
            end.close()?;
            rows
        }
        (false, None) => {
            let listener = tcp::listen(config.net.port)?;
            let end = open_device(&config.net)?;
            let stream = tcp::accept(&listener)?;
            let messages = serve(&end, &place, measure, stream)?;
            end.close()?;
            println!("the client is done; {messages} messages checked or written here");
            return Ok(());
        }
    };
    let group = if config.net.is_model() { "model" } else { "device" };
    let device = config.net.device.to_string();
    print(config, &Report { measure: measure.clone(), group, device, rows })
}

fn on_model(config: &Config, measure: &Measure, place: &Place) -> Result<Vec<Row>> {
    let (models, [here, there]) = Models::start(&config.net, config.wait)?;
    let (near, stream) = UnixStream::pair()?;
    if measure.test == Test::FastReg && !measure.verify {
        let rows = fastreg::alone(&here, place, measure)?;
        here.close()?;
        there.close()?;
        models.stop()?;
        return Ok(rows);
    }
    let peer = Place { cores: config.peer_cores.clone(), ..place.clone() };
    let rows = std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&there, &peer, measure, stream));
        let rows = client(&here, place, measure, near);
        let served = server.join().map_err(|_| anyhow!("the server's thread panicked"))?;
        // Of two failures, the client's says more: it has heard of the server's.
        let rows = rows?;
        served.context("server")?;
        Ok::<_, anyhow::Error>(rows)
    })?;
    here.close()?;
    there.close()?;
    models.stop()?;
    Ok(rows)
}

/// The measuring end.
fn client<S: Read + Write>(
    end: &End,
    place: &Place,
    measure: &Measure,
    stream: S,
) -> Result<Vec<Row>> {
    match measure.test {
        Test::FastReg => fastreg::client(end, place, measure, stream),
        _ => round::client(end, place, measure, stream),
    }
}

/// The other end; messages that it checked or wrote.
fn serve<S: Read + Write>(end: &End, place: &Place, measure: &Measure, stream: S) -> Result<u64> {
    match measure.test {
        Test::FastReg => fastreg::serve(end, place, measure, stream),
        _ => round::server(end, place, measure, stream),
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
