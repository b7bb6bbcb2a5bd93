//! The other end of the socket: `nvmf-target rpc` and `nvmf-target stats`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};

use super::rates;
use super::wire::{Answer, Request};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a running target.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to a target's socket.
    ///
    /// # Errors
    ///
    /// Nobody listens there.
    pub fn connect(socket: &Path) -> Result<Self> {
        let place = || format!("socket {}: is the target running, and yours?", socket.display());
        let stream = UnixStream::connect(socket).with_context(place)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Asks for something; its result.
    ///
    /// # Errors
    ///
    /// The target's sentence, or a connection that has ended.
    pub fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        let line = self.exchange(&Request::line(method, params))?;
        let answer: Answer = serde_json::from_slice(&line).context("the answer is none")?;
        match (answer.result, answer.error) {
            (Some(result), None) => Ok(result),
            (_, Some(failure)) => Err(anyhow!(failure.message)),
            _ => bail!("the answer has neither a result nor an error"),
        }
    }

    /// Sends a line, whatever is in it; the line that comes back.
    ///
    /// # Errors
    ///
    /// A connection that has ended.
    pub fn exchange(&mut self, line: &[u8]) -> Result<Vec<u8>> {
        // A target that has no room says so and hangs up, whatever it is asked.
        let sent = self.stream.get_mut().write_all(line);
        let mut answer = Vec::new();
        let read = self.stream.read_until(b'\n', &mut answer);
        if answer.last() == Some(&b'\n') {
            return Ok(answer);
        }
        sent.and(read).context("the target hung up")?;
        bail!("the target hung up")
    }
}

/// `nvmf-target rpc`: one request, its result on standard output.
///
/// # Errors
///
/// The target's sentence.
pub fn call(socket: &Path, method: &str, params: &str) -> Result<()> {
    let params: Value = serde_json::from_str(params).context("the parameters are no JSON")?;
    let result = Client::connect(socket)?.ask(method, &params)?;
    println!("{result:#}");
    Ok(())
}

/// `nvmf-target stats`: once, or again and again until the target ends. Text that is watched begins
/// with what was moved in a second.
///
/// # Errors
///
/// The target's sentence.
pub fn stats(
    socket: &Path,
    (is_json, is_prometheus): (bool, bool),
    watch: Option<u64>,
) -> Result<()> {
    let format = match (is_json, is_prometheus) {
        (true, _) => "json",
        (_, true) => "prometheus",
        _ => "text",
    };
    let mut client = Client::connect(socket)?;
    let mut before = None;
    loop {
        let result = client.ask("stats", &json!({"format": format}))?;
        if watch.is_some() && format == "text" {
            let now = (client.ask("stats", &json!({"format": "json"}))?, Instant::now());
            // Home, and everything below is cleared. Source: ECMA-48, CUP and ED.
            print!("\x1b[H\x1b[2J");
            if let Some((old, since)) = &before {
                println!("{}", rates::text(old, &now.0, now.1.duration_since(*since)));
            }
            before = Some(now);
        }
        match &result {
            Value::String(text) => print!("{text}"),
            other => println!("{other}"),
        }
        std::io::stdout().flush()?;
        let Some(secs) = watch else { return Ok(()) };
        std::thread::sleep(Duration::from_secs(secs.clamp(1, 30)));
    }
}
