//! Any messages with any files to a real socket of `cxctl model serve`: the server goes on, and
//! keeps nothing of a client that left.
#![no_main]

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use arbitrary::{Result, Unstructured};
use clap::Parser;
use ferrocx_cxctl::serve::{self, Options};
use ferrocx_fuzz::word;
use libfuzzer_sys::fuzz_target;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const DMA_MAP: u16 = 2;
const DMA_UNMAP: u16 = 3;
const SET_IRQS: u16 = 8;
const REGION_READ: u16 = 9;
const REGION_WRITE: u16 = 10;
/// Longest that a server takes to let go of a client.
const PATIENCE: Duration = Duration::from_secs(60);
/// Files that this process has open at most: what is there at the start, and a client's.
const MAX_FILES: usize = 64;

fuzz_target!(init: start(), |data: &[u8]| {
    // Running out of input ends the sequence.
    let _ = client(&mut Unstructured::new(data));
});

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: Options,
}

static SOCKET: OnceLock<PathBuf> = OnceLock::new();

/// Serves one port in this process.
fn start() {
    // A panic of the crate ends a connection, as the server is made for; any other is a finding.
    let fatal = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info.location().is_none_or(|at| !at.file().contains("vfio_user")) {
            fatal(info);
        }
    }));
    let path = std::env::temp_dir().join(format!("ferrocx-fuzz-{}", std::process::id()));
    let socket = path.to_str().expect("a plain path");
    // Confined, it would keep libFuzzer from writing down what it found.
    let line =
        ["serve", "--socket", socket, "--unconfined", "fuzzing", "--mapped-per-function", "1"];
    let options = Cli::parse_from(line).options;
    std::thread::spawn(move || {
        let ended = serve::run(&options);
        panic!("the server ended: {ended:?}");
    });
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < PATIENCE, "no socket");
        std::thread::sleep(Duration::from_millis(1));
    }
    SOCKET.set(path).expect("once");
}

/// Files that a client may hand over.
fn file(u: &mut Unstructured<'_>) -> Result<Option<OwnedFd>> {
    let memory = |len, seals| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("guest", flags).expect("a memfd"));
        file.set_len(len).expect("room");
        rustix::fs::fcntl_add_seals(&file, seals).expect("sealed");
        OwnedFd::from(file)
    };
    Ok(match u.int_in_range(0..=7)? {
        0..=2 => Some(memory(1 << 16, SealFlags::SHRINK | SealFlags::SEAL)),
        3 => Some(memory(1 << 16, SealFlags::SEAL)),
        4 => Some(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("one")),
        5 => Some(eventfd(u.arbitrary()?, EventfdFlags::CLOEXEC).expect("one")),
        6 => Some(OwnedFd::from(std::io::pipe().expect("a pipe").1)),
        _ => None,
    })
}

/// A message that may be right.
fn message(u: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let commands = [DMA_MAP, DMA_MAP, DMA_UNMAP, SET_IRQS, REGION_READ, REGION_WRITE];
    let command = if u.ratio(3, 4)? { *u.choose(&commands)? } else { u.int_in_range(0..=17)? };
    let page = |u: &mut Unstructured<'_>| Ok(u.int_in_range(0..=16_u64)? << 12);
    let mut body = Vec::new();
    match command {
        DMA_MAP => {
            body.extend([0; 4]);
            body.extend(u.int_in_range(0..=3_u32)?.to_ne_bytes());
            for _ in 0..3 {
                body.extend(page(u)?.to_ne_bytes());
            }
            body[..4].copy_from_slice(&32_u32.to_ne_bytes());
        }
        DMA_UNMAP => {
            body.extend(24_u32.to_ne_bytes());
            body.extend(u.int_in_range(0..=2_u32)?.to_ne_bytes());
            body.extend(page(u)?.to_ne_bytes());
            body.extend(page(u)?.to_ne_bytes());
        }
        SET_IRQS => {
            let any = word(u)?;
            let flags = *u.choose(&[0x24, 0x21, 0x22, 0x0c, 0x14, any])?;
            let count = u.int_in_range(0..=66)?;
            body.extend(
                [20, flags, u.int_in_range(0..=5)?, u.int_in_range(0..=66)?, count]
                    .into_iter()
                    .flat_map(u32::to_ne_bytes),
            );
        }
        REGION_READ | REGION_WRITE => {
            let offset = u64::from(word(u)?) & 0xfffff;
            let count: u32 = *u.choose(&[1, 2, 4, 4, 8, 16, 4097])?;
            body.extend(offset.to_ne_bytes());
            body.extend(u.int_in_range(0..=9_u32)?.to_ne_bytes());
            body.extend(count.to_ne_bytes());
            if command == REGION_WRITE {
                body.extend(ferrocx_fuzz::bytes(u, 32)?);
            }
        }
        _ => body = ferrocx_fuzz::bytes(u, 64)?,
    }
    for _ in 0..u.int_in_range(0..=1)? {
        if !body.is_empty() {
            let at = u.choose_index(body.len())?;
            body[at] = u.arbitrary()?;
        }
    }
    let size = if u.ratio(15, 16)? { 16 + body.len() as u32 } else { word(u)? & 0xff_ffff };
    let flags = if u.ratio(7, 8)? { 0 } else { word(u)? };
    let mut message = u.arbitrary::<[u8; 2]>()?.to_vec();
    message.extend(command.to_ne_bytes());
    message.extend(size.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 4]);
    message.extend(body);
    Ok(message)
}

fn send(stream: &UnixStream, message: &[u8], files: &[OwnedFd]) -> bool {
    let fds: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let sent = sendmsg(stream, &[IoSlice::new(message)], &mut ancillary, SendFlags::NOSIGNAL);
    sent.is_ok_and(|sent| sent == message.len() || (&*stream).write_all(&message[sent..]).is_ok())
}

/// One client, from its first message to the end of its connection.
fn client(u: &mut Unstructured<'_>) -> Result<()> {
    let mut stream = UnixStream::connect(SOCKET.get().expect("started")).expect("served");
    stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let result = messages(u, &stream);
    // Whatever it said, the server lets go of it.
    let _ = stream.shutdown(Shutdown::Write);
    let (mut answers, begun) = ([0; 4096], Instant::now());
    while stream.read(&mut answers).is_ok_and(|len| len > 0) {}
    assert!(begun.elapsed() < PATIENCE, "the server does not let go of a client");
    drop(stream);
    let files = std::fs::read_dir("/proc/self/fd").expect("a list").count();
    assert!(files < MAX_FILES, "{files} files are open");
    result
}

fn messages(u: &mut Unstructured<'_>, stream: &UnixStream) -> Result<()> {
    while !u.is_empty() {
        let message = message(u)?;
        let mut files = Vec::new();
        while files.len() < 4 && u.ratio(1, 3)? {
            files.extend(file(u)?);
        }
        if !send(stream, &message, &files) {
            break;
        }
    }
    Ok(())
}
