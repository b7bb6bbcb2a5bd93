//! The server as its operator runs it: a process that gave up what it does not need, and serves.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};
use vfio_user::Client;

/// Ends a test that hangs, also on a machine that does other work.
const PATIENCE: Duration = Duration::from_secs(60);
const CONFIG_SPACE: u32 = 7;

/// A server with its sockets in a folder; it ends with the test.
struct Server(Child);

impl Server {
    fn start(dir: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cxctl"));
        command.args(["-v", "model", "serve"]).args(more).stderr(Stdio::piped());
        for name in ["socket", "status", "control"] {
            command.arg(format!("--{name}")).arg(dir.join(name));
        }
        Self(command.spawn().expect("it starts"))
    }

    /// The mode of seccomp of each of its threads.
    fn modes(&self) -> Vec<String> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).expect("it runs");
        let status = threads.flatten().map(|thread| thread.path().join("status"));
        let texts = status.filter_map(|path| std::fs::read_to_string(path).ok());
        let mode = |text: String| {
            text.lines().find_map(|line| line.strip_prefix("Seccomp:")).map(|m| m.trim().to_owned())
        };
        texts.filter_map(mode).collect()
    }

    fn until_confined(&self) {
        until("every thread has a filter", || {
            let modes = self.modes();
            // The main one, the handler of signals, a device, its socket, status, control.
            modes.len() >= 6 && modes.iter().all(|mode| mode == "2")
        });
    }

    /// Lets it have so many descriptors from now on; how many it might have until then.
    fn limit_descriptors(&self, current: Option<u64>) -> Option<u64> {
        let pid = Some(Pid::from_child(&self.0));
        let maximum = getrlimit(Resource::Nofile).maximum;
        let old = prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).expect("ours");
        old.current
    }

    /// Ticks of a processor (100 a second) that its threads have had.
    fn ticks(&self) -> u64 {
        let path = format!("/proc/{}/stat", self.0.id());
        let stat = std::fs::read_to_string(path).expect("it runs");
        // In user mode and in the kernel: fields 14 and 15. Source: proc_pid_stat(5).
        let behind_name = stat.rsplit(')').next().expect("a name").split_whitespace();
        behind_name.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum()
    }

    /// Interrupts it; what it said on standard error, once it has ended well.
    fn end(mut self) -> String {
        kill_process(Pid::from_child(&self.0), Signal::INT).expect("sent");
        let mut said = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        assert!(self.0.wait().expect("it ends").success(), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn every_thread_of_a_server_is_confined_and_it_serves() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &[]);
    server.until_confined();
    for _ in 0..2 {
        let mut client = Client::new(&dir.path().join("socket")).expect("served");
        let mut ids = [0; 4];
        client.region_read(CONFIG_SPACE, 0, &mut ids).expect("an answer");
        assert_eq!(ids, [0xb3, 0x15, 0x17, 0x10]);
        client.reset().expect("answered");
    }
    let mut status = String::new();
    let mut stream = UnixStream::connect(dir.path().join("status")).expect("served");
    stream.read_to_string(&mut status).expect("a document");
    assert!(status.contains("\"memory\""), "{status}");
    let mut control = UnixStream::connect(dir.path().join("control")).expect("served");
    control.write_all(b"vanish socket\n").expect("sent");
    let mut answer = String::new();
    control.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer.trim_end(), "done");
    let said = server.end();
    let lines = said.matches("confined seccomp=\"on\" landlock=").count();
    assert_eq!(lines, 1, "one line says what is on: {said}");
    let left = std::fs::read_dir(dir.path()).expect("a folder").count();
    assert_eq!(left, 0, "its sockets are gone: {said}");
}

#[test]
fn an_unconfined_server_says_why() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &["--unconfined", "a test of it"]);
    let mut client = None;
    // The socket is there before it listens.
    until("it serves", || {
        client = Client::new(&dir.path().join("socket")).ok();
        client.is_some()
    });
    assert!(server.modes().iter().all(|mode| mode == "0"));
    let said = server.end();
    assert!(said.contains("a test of it") && said.contains("not confined"), "{said}");
}

#[test]
fn a_server_without_descriptors_waits_for_one_and_serves_then() {
    let dir = tempfile::tempdir().expect("a folder");
    let server = Server::start(dir.path(), &[]);
    server.until_confined();
    let ask = |socket: PathBuf| {
        let mut ids = [0; 4];
        let mut client = Client::new(&socket).expect("served, in the end");
        client.region_read(CONFIG_SPACE, 0, &mut ids).expect("an answer");
        assert_eq!(ids, [0xb3, 0x15, 0x17, 0x10]);
    };
    let read = |status: PathBuf| {
        let mut document = String::new();
        let mut stream = UnixStream::connect(status).expect("it listens");
        stream.read_to_string(&mut document).expect("a document");
        assert!(document.contains("\"memory\""), "{document}");
    };
    // New ones have to be below the limit, and its first three are taken. A thread that waits in
    // accept() already has one for its next client, so of two clients one may be served.
    let before = server.limit_descriptors(Some(3));
    let (socket, status) = (dir.path().join("socket"), dir.path().join("status"));
    let clients = [(); 2].map(|()| {
        let (socket, status) = (socket.clone(), status.clone());
        [std::thread::spawn(move || ask(socket)), std::thread::spawn(move || read(status))]
    });
    let (ticks, start) = (server.ticks(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let (ticks, ms) = (server.ticks() - ticks, start.elapsed().as_millis() as u64);
    assert!(ticks * 10 < ms / 4, "{ticks} ticks in {ms} ms");
    for of in [0, 1] {
        assert!(clients.iter().any(|it| !it[of].is_finished()), "both were served");
    }
    server.limit_descriptors(before);
    for client in clients.into_iter().flatten() {
        client.join().expect("served");
    }
    server.end();
}
