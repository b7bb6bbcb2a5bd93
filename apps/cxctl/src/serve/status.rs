//! What the served devices are doing, as JSON on a socket: one document for each connection.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use ferrocx_model::Nic;
use ferrocx_model::datapath::{InlineCounts, KeyCounts};
use ferrocx_model::port::Traffic;
use ferrocx_model::wire::CaptureFile;
use serde_json::{Value, json};

use super::engine::Wake;
use super::lines::Lines;
use super::socket::clients;

/// How long a reader or the devices may keep the others waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the thread of a device sends what it was asked for.
pub(super) type Reply = SyncSender<Value>;

/// What asks a port.
#[derive(Clone)]
pub(super) struct Ask {
    name: String,
    questions: SyncSender<Reply>,
}

/// What asks a port, and what the port is asked by.
pub(super) fn channel(name: &str) -> (Ask, Receiver<Reply>) {
    let (questions, asked) = sync_channel(1);
    (Ask { name: name.into(), questions }, asked)
}

/// Serves readers one after another on a socket of its own, on a thread of its own. The frames that
/// a document counts stand in the capture when its reader gets it.
///
/// # Errors
///
/// The path exists already, or the system's reason for refusing it.
pub(super) fn listen(
    path: &Path,
    ports: Vec<(Ask, Wake)>,
    capture: Option<CaptureFile>,
) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("status socket {}", path.display()))?;
    std::thread::Builder::new().name("status".into()).spawn(move || {
        let lines = Lines::new();
        for reader in clients(&listener) {
            if let Err(error) = answer(&reader, &ports, capture.as_ref())
                && lines.may_say("status")
            {
                tracing::warn!(%error, "a reader of the status socket got no answer");
            }
        }
    })?;
    Ok(())
}

fn answer(
    mut reader: &UnixStream,
    ports: &[(Ask, Wake)],
    capture: Option<&CaptureFile>,
) -> anyhow::Result<()> {
    reader.set_write_timeout(Some(PATIENCE))?;
    let document = ask_all(ports)?;
    if let Some(capture) = capture {
        capture.flush()?;
    }
    Ok(writeln!(reader, "{document:#}")?)
}

/// The documents of all ports. One that does not answer is told by its name alone: nobody waits for
/// a port whose guest keeps it busy, or whose model has stopped.
fn ask_all(ports: &[(Ask, Wake)]) -> anyhow::Result<Value> {
    let until = Instant::now() + PATIENCE;
    let asked: Vec<_> = ports
        .iter()
        .map(|(ask, wake)| {
            let (reply, answer) = sync_channel(1);
            // Full: it has not answered the last question yet.
            let is_asked = ask.questions.try_send(reply).is_ok();
            wake.wake();
            (ask, is_asked.then_some(answer))
        })
        .collect();
    anyhow::ensure!(ports.iter().any(|(_, wake)| wake.is_running()), "no device runs any more");
    let told = asked.into_iter().map(|(ask, answer)| {
        let patience = until.saturating_duration_since(Instant::now());
        let told = answer.and_then(|answer| answer.recv_timeout(patience).ok());
        told.unwrap_or_else(|| json!({ "name": ask.name, "answers": false }))
    });
    Ok(told.collect())
}

/// Reads the document of a running server.
///
/// # Errors
///
/// No server on this socket, or one that does not answer.
pub(crate) fn read(path: &Path) -> anyhow::Result<String> {
    let mut stream =
        UnixStream::connect(path).with_context(|| format!("nobody serves {}", path.display()))?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    let mut text = String::new();
    stream.read_to_string(&mut text).context("the server did not answer")?;
    Ok(text)
}

/// One device.
pub(super) fn of(name: &str, nic: &Nic) -> Value {
    let (state, bus) = (nic.state(), nic.side().counts());
    let (port, counters) = (&state.port, &state.counters);
    json!({
        "name": name,
        "identity": format!("{:?}", state.config.identity),
        "hca": format!("{:?}", state.hca),
        "driver_version": state.driver.version,
        "objects": state.objects.len(),
        "pages": state.pages.len(),
        "memory": {
            "limit_bytes": state.budget.limit_bytes(),
            "used_bytes": state.budget.used_bytes(),
            "peak_bytes": state.budget.peak_bytes(),
            "refusals": state.budget.refusals(),
        },
        "health_syndrome": state.syndrome.0,
        "link": {
            "up": port.is_up(),
            "admin_up": port.admin_up,
            "carrier": port.carrier,
            "mac": port.vport.mac.map(|byte| format!("{byte:02x}")).join(":"),
            "mtu": port.mtu,
        },
        "rx": traffic(port.counters.rx()),
        "tx": traffic(port.counters.tx()),
        "rx_fcs_errors": port.counters.rx_fcs_errors,
        "rx_out_of_buffer": port.counters.rx_out_of_buffer,
        "rx_drops": format!("{:?}", nic.datapath().receive_drops()),
        "roce_drops": format!("{:?}", nic.datapath().roce_drops()),
        "keys": keys(nic.datapath().key_counts()),
        "inline": inline(nic.datapath().inline_counts()),
        "commands": counters.commands,
        "doorbells": {
            "send": counters.send_doorbells,
            "cq": counters.cq_doorbells,
            "eq": counters.eq_doorbells,
        },
        "events": counters.events,
        "resets": counters.resets,
        "bus": {
            "register_reads": bus.bar_reads,
            "register_writes": bus.bar_writes,
            "interrupts": bus.interrupts,
            "interrupts_while_disabled": bus.interrupts_lost,
            "dma_reads": bus.dma.reads,
            "dma_read_bytes": bus.dma.read_bytes,
            "dma_writes": bus.dma.writes,
            "dma_written_bytes": bus.dma.written_bytes,
            "dma_faults": bus.dma.faults,
            "dma_data_read_bytes": bus.dma.data_read_bytes,
            "dma_data_written_bytes": bus.dma.data_written_bytes,
            "dma_watched_read_bytes": bus.dma.watched_read_bytes,
            "dma_watched_written_bytes": bus.dma.watched_written_bytes,
        },
        "refusals": nic.log().total(),
        "last_refusal": nic.log().last().map(ToString::to_string),
    })
}

fn keys(counts: KeyCounts) -> Value {
    json!({
        "umr_registrations": counts.umr_registrations,
        "local_invalidates": counts.local_invalidates,
        "umr_changes": counts.umr_changes,
        "sends_with_invalidate": counts.sends_with_invalidate,
        "remote_invalidates": counts.remote_invalidates,
    })
}

fn inline(counts: InlineCounts) -> Value {
    json!({ "inline_receives": counts.responder, "inline_answers": counts.requester })
}

fn traffic(traffic: Traffic) -> Value {
    json!({ "packets": traffic.packets, "bytes": traffic.octets })
}

#[cfg(test)]
mod tests {
    use ferrocx_bus::local::{LocalConfig, pair};
    use ferrocx_model::NicConfig;

    use super::*;
    use crate::serve::engine::{Engine, Neighbours};
    use crate::serve::ports::Port;

    #[test]
    fn each_reader_is_told_about_every_port() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("status");
        let start = Instant::now();
        let file = dir.path().join("wire.pcapng");
        let capture = CaptureFile::create(&file).expect("a header");
        let mut ports = Vec::new();
        let mut engines = Vec::new();
        for name in ["one", "two"] {
            let (_driver, side) = pair(LocalConfig::default()).expect("a device");
            // A doorbell without a queue: refused, and counted.
            side.bar_write(0x18, &[0, 0, 0, 1]).expect("a register");
            let neighbours = Neighbours::default();
            let (port, ask) = Port::new(name.into(), side, NicConfig::default(), None, neighbours);
            let engine = Engine::start(name, start, port).expect("a thread");
            ports.push((ask, engine.wake()));
            engines.push(engine);
        }
        listen(&path, ports, Some(capture)).expect("a fresh path");
        let written = || std::fs::metadata(&file).expect("the capture").len();
        assert_eq!(written(), 0, "its header is in a buffer");
        for _ in 0..3 {
            let text = read(&path).expect("an answer");
            let told: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(told[0]["name"], "one");
            assert_eq!(told[1]["name"], "two");
            assert_eq!(told[1]["identity"], "ConnectX5");
            assert_eq!(told[1]["link"]["mac"], "02:fe:0c:00:00:01");
            assert_eq!(told[1]["hca"], "Disabled");
            assert_eq!(told[1]["memory"]["limit_bytes"], 256 << 20);
        }
        assert_eq!(written(), 28, "its header");
        // A reader that never reads does not keep the next one waiting for long.
        let _silent = UnixStream::connect(&path).expect("connected");
        let told: Value = serde_json::from_str(&read(&path).expect("an answer")).expect("JSON");
        assert_eq!(told[0]["refusals"], 1);
        assert_eq!(
            told[0]["last_refusal"],
            "data path: command_doorbell_vector = 0x1: \
            no command queue was set"
        );
        // One device has stopped; the other is told as before.
        drop(engines.pop());
        let told: Value = serde_json::from_str(&read(&path).expect("an answer")).expect("JSON");
        assert_eq!((&told[0]["hca"], &told[1]["answers"]), (&json!("Disabled"), &json!(false)));
        drop(engines);
        assert_eq!(read(&path).expect("an end"), "", "no devices, no answer");
        assert!(read(dir.path()).is_err());
    }
}
