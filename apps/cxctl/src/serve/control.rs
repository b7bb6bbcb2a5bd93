//! Taking a served device off its bus and putting it back, by a line on a socket.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ferrocx_bus::local::DeviceSide;

use super::lines::Lines;
use super::socket::clients;

/// How long one client may keep the others waiting.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest line: an action and the name of a port.
const MAX_LINE_BYTES: usize = 256;
/// The answer to what was done.
const DONE: &str = "done";

/// What can be done to a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Its registers and configuration space read as ones, and writes are lost. Its DMA goes on,
    /// as that of a device does whose answers get lost.
    Vanish,
    /// It answers again.
    Return,
}

impl Action {
    const ALL: [Self; 2] = [Self::Vanish, Self::Return];

    const fn name(self) -> &'static str {
        match self {
            Self::Vanish => "vanish",
            Self::Return => "return",
        }
    }
}

/// Serves clients one after another on a socket of its own, on a thread of its own.
///
/// # Errors
///
/// The path exists already, or the system's reason for refusing it.
pub(super) fn listen(path: &Path, ports: Vec<(String, DeviceSide)>) -> anyhow::Result<()> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("control socket {}", path.display()))?;
    std::thread::Builder::new().name("control".into()).spawn(move || {
        let lines = Lines::new();
        for client in clients(&listener) {
            if let Err(error) = serve(&client, &ports, &lines)
                && lines.may_say("control")
            {
                tracing::warn!(%error, "a client of the control socket got no answer");
            }
        }
    })?;
    Ok(())
}

fn serve(
    mut client: &UnixStream,
    ports: &[(String, DeviceSide)],
    lines: &Lines,
) -> anyhow::Result<()> {
    let line = read_line(client, PATIENCE)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let answer = match carry_out(line.trim_end(), ports, lines) {
        Ok(()) => DONE.into(),
        Err(error) => error.to_string(),
    };
    Ok(writeln!(client, "{answer}")?)
}

/// Reads a line that comes within so much time, in however many pieces.
fn read_line(mut client: &UnixStream, patience: Duration) -> anyhow::Result<String> {
    let deadline = Instant::now() + patience;
    let mut line = [0; MAX_LINE_BYTES];
    let mut len = 0;
    while len < line.len() && !line[..len].contains(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        anyhow::ensure!(!left.is_zero(), "no line within {patience:?}");
        client.set_read_timeout(Some(left))?;
        match client.read(&mut line[len..])? {
            0 => break,
            more => len += more,
        }
    }
    Ok(std::str::from_utf8(&line[..len])?.to_owned())
}

fn carry_out(line: &str, ports: &[(String, DeviceSide)], lines: &Lines) -> anyhow::Result<()> {
    let (verb, name) = line.split_once(' ').unwrap_or((line, ""));
    let Some(action) = Action::ALL.into_iter().find(|action| action.name() == verb) else {
        bail!("unknown action {verb:?}; give vanish or return");
    };
    let Some((name, side)) = ports.iter().find(|port| port.0 == name) else {
        let names: Vec<&str> = ports.iter().map(|port| port.0.as_str()).collect();
        bail!("no port {name:?}; there are {}", names.join(", "));
    };
    if lines.may_say("control") {
        tracing::info!(port = name, ?action, "control");
    }
    side.set_gone(action == Action::Vanish);
    Ok(())
}

/// Asks a running server for something.
///
/// # Errors
///
/// No server on this socket, or what it refused.
pub(crate) fn ask(path: &Path, action: Action, port: &str) -> anyhow::Result<()> {
    let mut stream =
        UnixStream::connect(path).with_context(|| format!("nobody serves {}", path.display()))?;
    stream.set_read_timeout(Some(2 * PATIENCE))?;
    writeln!(stream, "{} {port}", action.name())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).context("the server did not answer")?;
    match answer.trim_end() {
        DONE => Ok(()),
        refusal => bail!("refused: {refusal}"),
    }
}

#[cfg(test)]
mod tests {
    use ferrocx_bus::local::{LocalConfig, pair};

    use super::*;

    #[test]
    fn a_client_that_sends_slowly_keeps_the_others_waiting_no_longer() {
        let patience = Duration::from_millis(100);
        let (mut client, server) = UnixStream::pair().expect("sockets");
        let sender = std::thread::spawn(move || {
            // Each byte comes well within the time that there is for all of them: a minute for all.
            (0..6_000)
                .take_while(|_| {
                    std::thread::sleep(patience / 10);
                    client.write_all(b"x").is_ok()
                })
                .count()
        });
        let begun = Instant::now();
        read_line(&server, patience).expect_err("no line");
        let took = begun.elapsed();
        drop(server);
        let sent = sender.join().expect("a count");
        assert!(sent < 6_000, "it sent {sent} bytes and was heard for {took:?}");
        let (mut client, server) = UnixStream::pair().expect("sockets");
        client.write_all(b"vanish port0\n").expect("room");
        assert_eq!(read_line(&server, PATIENCE).expect("a line"), "vanish port0\n");
    }

    #[test]
    fn a_port_vanishes_and_returns_and_nothing_else_is_understood() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("control");
        let (_driver, side) = pair(LocalConfig::default()).expect("a device");
        side.set_be32(0, 7);
        listen(&path, vec![("port0".into(), side.clone())]).expect("a fresh path");
        let read = || {
            let mut bytes = [0; 4];
            side.bar_read(0, &mut bytes);
            bytes
        };
        ask(&path, Action::Vanish, "port0").expect("done");
        assert_eq!((read(), side.is_gone()), ([0xff; 4], true));
        let refused = ask(&path, Action::Vanish, "port1").unwrap_err().to_string();
        assert_eq!(refused, "refused: no port \"port1\"; there are port0");
        ask(&path, Action::Return, "port0").expect("done");
        assert_eq!((read(), side.is_gone()), ([0, 0, 0, 7], false));
        let ports = [("port0".to_owned(), side.clone())];
        let lines = Lines::new();
        let refused = carry_out("explode port0", &ports, &lines).unwrap_err().to_string();
        assert_eq!(refused, "unknown action \"explode\"; give vanish or return");
        assert!(carry_out("", &ports, &lines).is_err());
        assert!(listen(&path, Vec::new()).is_err(), "the path is in use");
    }
}
