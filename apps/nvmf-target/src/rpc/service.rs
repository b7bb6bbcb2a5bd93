//! [`Service`]: the socket, and a thread for each client.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use ferrocx_app_common::exit::sentence;
use ferrocx_app_common::signal::Stop;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use serde_json::Value;

use super::wire::{Answer, Failure, Request};
use super::{Call, MAX_BYTES, MAX_CLIENTS, PATIENCE, carry_out, checked_path};
use crate::control::Control;

/// How long an answer may take to leave.
const WRITE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between looks at whether the service is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// What a service's threads share. Clients come one after the other to the control.
#[derive(Debug)]
struct Shared {
    control: Mutex<Option<Control>>,
    clients: AtomicUsize,
    is_ending: AtomicBool,
    stop: Stop,
}

/// A socket that answers requests. When it ends, the socket goes.
#[derive(Debug)]
pub struct Service {
    shared: Arc<Shared>,
    socket: Option<(PathBuf, JoinHandle<()>)>,
}

impl Service {
    fn over(control: Control, stop: Stop) -> Arc<Shared> {
        Arc::new(Shared {
            control: Mutex::new(Some(control)),
            clients: AtomicUsize::new(0),
            is_ending: AtomicBool::new(false),
            stop,
        })
    }

    /// Keeps a control that nobody can ask.
    #[must_use]
    pub fn none(control: Control) -> Self {
        Self { shared: Self::over(control, Stop::new()), socket: None }
    }

    /// Answers requests on a socket, which belongs to this process's user. A `stop` request raises
    /// the flag.
    ///
    /// # Errors
    ///
    /// A path that cannot be a socket's, or that somebody listens on.
    pub fn start(path: &Path, control: Control, stop: Stop) -> Result<Self> {
        let place = || format!("socket {}", path.display());
        let path = checked_path(path)?;
        let listener = open(&path).with_context(place)?;
        let shared = Self::over(control, stop);
        let theirs = shared.clone();
        let builder = thread::Builder::new().name("nvmf-rpc".into());
        let thread = builder.spawn(move || accept(&listener, &theirs))?;
        Ok(Self { shared, socket: Some((path, thread)) })
    }

    /// Answers no more. A request that is being carried out ends before.
    pub fn end(mut self) {
        self.close();
    }

    fn close(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
        if let Some((path, thread)) = self.socket.take() {
            let _ = thread.join();
            let _ = fs::remove_file(path);
        }
        drop(self.shared.control.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.close();
    }
}

/// Makes the socket, mode 0600 from its first moment on: bound sockets have the mode of their file.
fn open(path: &Path) -> Result<UnixListener> {
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            bail!("there is something else of this name; give another path");
        }
        if UnixStream::connect(path).is_ok() {
            bail!("another target answers there; give another path");
        }
        fs::remove_file(path).context("what an earlier target left there cannot be removed")?;
    }
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, MAX_CLIENTS as i32)?;
    Ok(socket.into())
}

fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    while !shared.is_ending.load(Ordering::Acquire) {
        let mut fds = [PollFd::new(listener, PollFlags::IN)];
        if !matches!(poll(&mut fds, Some(&LOOK)), Ok(1..)) {
            continue;
        }
        let Ok((stream, _)) = listener.accept() else { continue };
        let place = Place::take(shared);
        let theirs = shared.clone();
        let spawned = thread::Builder::new().name("nvmf-client".into()).spawn(move || {
            let done = match place {
                Some(_) => converse(&stream, &theirs),
                None => {
                    let what = format!("{MAX_CLIENTS} clients are connected; try again later");
                    say(&stream, &Answer::new(Value::Null, Err(Failure::refused(what))))
                }
            };
            if let Err(error) = done {
                tracing::debug!(error = %sentence(&error), "client");
            }
            drop(place);
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "no thread for a client");
        }
    }
}

/// One of the clients' places.
struct Place(Arc<Shared>);

impl Place {
    fn take(shared: &Arc<Shared>) -> Option<Self> {
        let place = Self(shared.clone());
        let before = shared.clients.fetch_add(1, Ordering::AcqRel);
        (before < MAX_CLIENTS).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::AcqRel);
    }
}

fn say(mut stream: &UnixStream, answer: &Answer) -> Result<()> {
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    Ok(stream.write_all(&answer.line())?)
}

/// Answers a client until it goes, is silent, or says what cannot be a request.
fn converse(stream: &UnixStream, shared: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let limit = MAX_BYTES as u64;
        reader.by_ref().take(limit).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && line.len() == MAX_BYTES {
            let what = format!("a request has {MAX_BYTES} bytes or more; make it shorter");
            return say(stream, &Answer::new(Value::Null, Err(Failure::request(what))));
        }
        let (call, id) = match Request::read(&line) {
            Ok(read) => read,
            Err((failure, id)) => {
                say(stream, &Answer::new(id, Err(failure)))?;
                continue;
            }
        };
        let done = ask(call, shared).map_err(|error| Failure::refused(sentence(&error)));
        if let Some(id) = id {
            say(stream, &Answer::new(id, done))?;
        }
    }
}

fn ask(call: Call, shared: &Shared) -> Result<Value> {
    let mut control = shared.control.lock().unwrap_or_else(PoisonError::into_inner);
    let control = control.as_mut().ok_or_else(|| anyhow!("the target stops"))?;
    carry_out(call, control, &shared.stop)
}
