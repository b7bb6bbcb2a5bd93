//! A core that polls makes no system call on the way of a command to RAM or to an NVMe drive: the
//! kernel is told to kill the process at the first one. Host, target, both models and the drive
//! are polled by one thread, whose part of the kernel that is; so none of them makes any.

mod by_hand;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, thread};

use by_hand::rig::{Result, What};
use by_hand::{ByHand, DRIVE, RAM};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

const NAME: &str = "FERROCX_SYSTEM_CALLS";
const BATCHES: [usize; 2] = [1, 32];
const WHATS: [What; 3] = [What::Read, What::Write, What::WriteInCapsule];
/// How long commands go on: timers of 20 ms and the connection manager's are due many times.
const TIME: Duration = Duration::from_millis(400);
/// Commands of a batch that there must have been by then, whatever the machine does besides.
const ROUNDS: usize = 64;

/// From now on this thread ends the process with its first system call; `false` if this kernel
/// cannot be told that. Clocks may be read: the C library does it without the kernel, except on
/// machines whose clock only the kernel reads.
fn give_up_the_kernel() -> Result<bool> {
    let rules = BTreeMap::from([(libc::SYS_clock_gettime, Vec::new())]);
    let arch = env::consts::ARCH.try_into()?;
    let (kill, allow) = (SeccompAction::KillProcess, SeccompAction::Allow);
    let program: BpfProgram = SeccompFilter::new(rules, kill, allow, arch)?.try_into()?;
    match seccompiler::apply_filter(&program) {
        Ok(()) => Ok(true),
        Err(seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error))
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

/// Everything once, in all sizes, that often.
fn all(it: &mut ByHand, nsid: u32, rounds: usize) -> Result<()> {
    for _ in 0..rounds {
        for what in WHATS {
            for count in BATCHES {
                it.batch((what, nsid, count))?;
            }
        }
    }
    Ok(())
}

/// Commands for a namespace without the kernel: how many rounds there were, or `None` if this
/// kernel cannot be given up. With `calls`, one system call is made in the last of them.
fn without_the_kernel(nsid: u32, calls: bool) -> Result<Option<usize>> {
    let mut it = ByHand::start(BATCHES[1])?;
    // What is made once is none of a command.
    all(&mut it, nsid, ROUNDS)?;
    if !give_up_the_kernel()? {
        return Ok(None);
    }
    let (start, mut rounds) = (Instant::now(), 0);
    while rounds < ROUNDS || start.elapsed() < TIME {
        all(&mut it, nsid, 1)?;
        rounds += 1;
    }
    if calls {
        thread::yield_now();
    }
    // Everything ends with the kernel's help, so with the process.
    std::mem::forget(it);
    Ok(Some(rounds))
}

/// What a child does: `None` to this, and it is none.
fn asked_for() -> Option<(u32, bool)> {
    match env::var(NAME).ok()?.as_str() {
        "ram" => Some((RAM, false)),
        "drive" => Some((DRIVE, false)),
        _ => Some((RAM, true)),
    }
}

/// Does nothing unless [`child`] has started this process. Its status says how it went.
#[test]
fn a_child_gives_up_the_kernel() {
    static OUTCOME: OnceLock<std::result::Result<Option<usize>, String>> = OnceLock::new();
    let Some((nsid, calls)) = asked_for() else { return };
    thread::spawn(move || {
        let outcome = without_the_kernel(nsid, calls).map_err(|error| error.to_string());
        let _ = OUTCOME.set(outcome);
        // A thread does not end without the kernel.
        loop {
            std::hint::spin_loop();
        }
    });
    let outcome = loop {
        match OUTCOME.get() {
            Some(outcome) => break outcome,
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    println!("{outcome:?}");
    std::process::exit(match outcome {
        Ok(Some(_)) => 0,
        Ok(None) => SKIPPED,
        Err(_) => 1,
    });
}

const SKIPPED: i32 = 77;

/// How a child ended; `None` if this kernel cannot be given up.
fn child(value: &str) -> Option<ExitStatus> {
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["a_child_gives_up_the_kernel", "--exact", "--nocapture"])
        .env(NAME, value)
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            if status.code() != Some(SKIPPED) {
                return Some(status);
            }
            println!("skipped: this kernel has no seccomp");
            return None;
        }
        if start.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("the child that does {value} hangs");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn commands_to_ram_make_no_system_call() {
    let Some(status) = child("ram") else { return };
    assert!(status.success(), "{status}: strace -f of it with {NAME}=ram shows the call");
}

#[test]
fn commands_to_a_drive_make_no_system_call() {
    let Some(status) = child("drive") else { return };
    assert!(status.success(), "{status}: strace -f of it with {NAME}=drive shows the call");
}

#[test]
fn a_system_call_is_seen() {
    let Some(status) = child("a call") else { return };
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}
