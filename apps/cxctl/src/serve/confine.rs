//! What the server gives up once it serves: whoever takes it over by a client's message finds a
//! process that can open no file, make no socket, start no program and no thread.
//!
//! Two things of the kernel, each by itself: *seccomp* refuses all system calls but those that
//! serving takes, in every thread, and of those that remain the commands by which it would reach
//! beyond itself: signals to others, what sets up networks and terminals. *Landlock* keeps the
//! threads of ports and clients from all files and TCP ports but in the folders of the sockets,
//! which go at the end: there, and beneath, files can be deleted, whatever they are. What the
//! kernel lacks is left out, and the log says so. Neither needs any privilege.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use landlock::{
    ABI, Access, AccessFs, AccessNet, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// The newest Landlock that this program knows; an older kernel does what it can.
const NEWEST: ABI = ABI::V5;

/// System calls of a server at work: messages and their files, memory, waiting, the end.
const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_ppoll,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_lseek,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_unlinkat,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_futex,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Older names of the same, which C libraries still use where they exist.
#[cfg(target_arch = "x86_64")]
const ALSO_ALLOWED: &[libc::c_long] =
    &[libc::SYS_poll, libc::SYS_readlink, libc::SYS_unlink, libc::SYS_stat, libc::SYS_lstat];
#[cfg(not(target_arch = "x86_64"))]
const ALSO_ALLOWED: &[libc::c_long] = &[];

/// What fcntl(2) may do: flags of descriptors and files, further descriptors, seals. Not choose who
/// gets a signal when something can be read, which could be any process.
const FCNTL: &[libc::c_int] = &[
    libc::F_DUPFD_CLOEXEC,
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_GET_SEALS,
];

/// What ioctl(2) may do: whether a socket waits, whether a descriptor outlives a program, whether
/// it is a terminal. Not type into a terminal, nor change the host's network, which any socket does
/// for who has CAP_NET_ADMIN.
const IOCTL: &[u64] = &[libc::FIONBIO, libc::FIOCLEX, libc::FIONCLEX, libc::TCGETS];

/// Said when the server cannot be confined.
const UNCONFINED: &str = "the server cannot be confined; --unconfined WHY serves all the same";

/// The first half of the confinement, which is done before there are threads.
#[derive(Debug)]
pub(super) enum Begun<'a> {
    /// Files are out of reach, as far as the kernel does that.
    Files(Files),
    /// Nothing is given up, for this reason.
    Not(&'a str),
}

/// Gives up files, unless the operator says why not. `sockets` can be made and deleted.
///
/// # Errors
///
/// A folder of a socket that cannot be opened, or the kernel's reason.
pub(super) fn begin<'a, 'b>(
    unconfined: Option<&'a str>,
    sockets: impl Iterator<Item = &'b PathBuf>,
) -> anyhow::Result<Begun<'a>> {
    match unconfined {
        Some(why) => Ok(Begun::Not(why)),
        None => Ok(Begun::Files(leave_files(sockets).context(UNCONFINED)?)),
    }
}

impl Begun<'_> {
    /// Gives up system calls, once every thread is there; says in the log what is on.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Files(files) => {
                let has = leave_system_calls(Threads::All).context(UNCONFINED)?;
                let seccomp = if has { "on" } else { "not in this kernel" };
                tracing::info!(seccomp, landlock = %files, "confined");
            }
            Self::Not(why) => tracing::warn!(why, "not confined: neither seccomp nor Landlock"),
        }
        Ok(())
    }
}

/// Which threads give up system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    /// Every thread of the process.
    All,
    /// The calling one, and those that it starts.
    #[cfg(test)]
    This,
}

/// What holds, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Files {
    /// Every kind of access that this program knows is refused.
    Kept,
    /// The kernel knows fewer kinds.
    KeptInPart,
    /// The kernel has no Landlock, or it is turned off.
    Open,
}

impl fmt::Display for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kept => "on",
            Self::KeptInPart => "on, as far as this kernel has it",
            Self::Open => "not in this kernel",
        })
    }
}

/// Keeps the calling thread, and all that it starts from now on, from files and TCP: sockets may
/// be made and deleted where `sockets` are.
///
/// # Errors
///
/// A folder that cannot be opened, or the kernel's reason. A kernel without Landlock is no error.
fn leave_files<'a>(sockets: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<Files> {
    let mut rules = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .create()?;
    for socket in sockets {
        let folder = match socket.parent() {
            None => Path::new("/"),
            Some(folder) if folder.as_os_str() == OsStr::new("") => Path::new("."),
            Some(folder) => folder,
        };
        let folder = PathFd::new(folder).with_context(|| format!("socket {}", socket.display()))?;
        let may = AccessFs::MakeSock | AccessFs::RemoveFile;
        rules = rules.add_rule(PathBeneath::new(folder, may))?;
    }
    Ok(match rules.restrict_self()?.ruleset {
        RulesetStatus::FullyEnforced => Files::Kept,
        RulesetStatus::PartiallyEnforced => Files::KeptInPart,
        RulesetStatus::NotEnforced => Files::Open,
    })
}

/// Gives up every system call that serving does not take, for good: they fail with EPERM. `false`
/// if the kernel has no seccomp.
///
/// # Errors
///
/// The kernel's reason, or a processor whose system calls are not known here.
fn leave_system_calls(threads: Threads) -> anyhow::Result<bool> {
    use seccompiler::Error;
    let program = filter()?;
    let applied = match threads {
        Threads::All => seccompiler::apply_filter_all_threads(&program),
        #[cfg(test)]
        Threads::This => seccompiler::apply_filter(&program),
    };
    match applied {
        Ok(()) => Ok(true),
        // What a kernel says that was built without it.
        Err(Error::Prctl(error) | Error::Seccomp(error))
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL)) =>
        {
            Ok(false)
        }
        Err(error) => Err(error.into()),
    }
}

fn filter() -> anyhow::Result<BpfProgram> {
    let always = ALLOWED.iter().chain(ALSO_ALLOWED).map(|call| (*call, Vec::new()));
    let mut rules: BTreeMap<libc::c_long, Vec<SeccompRule>> = always.collect();
    let dword = |argument, op, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value)
    };
    // No memory becomes code.
    let executable = u64::from(libc::PROT_EXEC.cast_unsigned());
    for call in [libc::SYS_mmap, libc::SYS_mprotect] {
        let is_data = dword(2, SeccompCmpOp::MaskedEq(executable), 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![is_data])?]);
    }
    // The kernel looks at the low half of a command as well.
    let command = |command: u64| SeccompRule::new(vec![dword(1, SeccompCmpOp::Eq, command)?]);
    let fcntl = FCNTL.iter().map(|known| command(u64::from(known.cast_unsigned())));
    rules.insert(libc::SYS_fcntl, fcntl.collect::<Result<_, _>>()?);
    let ioctl = IOCTL.iter().map(|known| command(*known));
    rules.insert(libc::SYS_ioctl, ioctl.collect::<Result<_, _>>()?);
    // Signals to itself: how a program aborts.
    let is_own = dword(0, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![is_own])?]);
    // The name of a thread that has just begun.
    let is_name = dword(0, SeccompCmpOp::Eq, u64::from(libc::PR_SET_NAME.cast_unsigned()))?;
    rules.insert(libc::SYS_prctl, vec![SeccompRule::new(vec![is_name])?]);
    let refuse = SeccompAction::Errno(libc::EPERM.cast_unsigned());
    let filter = SeccompFilter::new(
        rules,
        refuse,
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::ErrorKind;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::Command;

    use ferrocx_bus::DmaAccess;
    use ferrocx_bus::local::{LocalConfig, pair};

    use super::*;

    /// Runs on a thread of its own, which alone is confined.
    fn on_a_thread<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(run).join().expect("what is asserted")
    }

    #[test]
    fn a_confined_thread_opens_nothing_starts_nothing_and_goes_on_serving() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("port");
        let listener = UnixListener::bind(&path).expect("a fresh path");
        let client = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut stream = UnixStream::connect(path).expect("served");
                std::io::Write::write_all(&mut stream, b"ping").expect("sent");
                std::io::read_to_string(stream).expect("answered")
            }
        });
        let memory = tempfile::tempfile().expect("a file");
        memory.set_len(4096).expect("sparse");
        let (_driver, device) = pair(LocalConfig::default()).expect("valid");
        let served = on_a_thread(move || {
            assert!(File::open("/proc/self/status").is_ok(), "before");
            if !leave_system_calls(Threads::This).expect("a filter") {
                println!("skipped: this kernel has no seccomp");
                return false;
            }
            let refused = |what: &str, result: std::io::Result<()>| {
                let kind = result.expect_err(what).kind();
                assert_eq!(kind, ErrorKind::PermissionDenied, "{what}");
            };
            refused("a file", File::open("/proc/self/status").map(drop));
            refused("a new file", File::create(path.with_extension("new")).map(drop));
            refused("a program", Command::new("/bin/true").status().map(drop));
            refused("a connection", UnixStream::connect(&path).map(drop));
            refused("a socket", UnixListener::bind(path.with_extension("2")).map(drop));
            refused("a thread", std::thread::Builder::new().spawn(|| {}).map(drop));
            refused("a file's mode", std::fs::set_permissions(&path, from_mode(0o777)));
            // Commands that serving does not take; these two would do no harm.
            let seal = rustix::fs::fcntl_add_seals(&listener, rustix::fs::SealFlags::empty());
            refused("a command of fcntl", seal.map_err(Into::into));
            let index = rustix::net::netdevice::name_to_index(&listener, "lo");
            refused("a command of ioctl", index.map(drop).map_err(Into::into));
            listener.set_nonblocking(false).expect("one that it takes");
            drop(listener.try_clone().expect("another one"));
            let (mut stream, _) = listener.accept().expect("a client");
            let mut bytes = [0; 4];
            std::io::Read::read_exact(&mut stream, &mut bytes).expect("its message");
            std::io::Write::write_all(&mut stream, &bytes).expect("an answer");
            device.dma_map_fd(1 << 40, &memory, 0, 4096, DmaAccess::Read).expect("a client's");
            device.dma_unmap(1 << 40, 4096).expect("mapped");
            // Memory comes and goes; threads wait for each other.
            drop(vec![1_u8; 64 << 20]);
            std::thread::sleep(std::time::Duration::from_millis(1));
            std::fs::remove_file(&path).expect("the socket is deleted at the end");
            true
        });
        if served {
            assert_eq!(client.join().expect("a client"), "ping");
        }
    }

    fn from_mode(mode: u32) -> std::fs::Permissions {
        std::os::unix::fs::PermissionsExt::from_mode(mode)
    }

    #[test]
    fn files_are_out_of_reach_but_for_the_sockets() {
        let dir = tempfile::tempdir().expect("a folder");
        let (socket, file) = (dir.path().join("port"), dir.path().join("file"));
        std::fs::write(&file, "secret").expect("a file");
        on_a_thread(move || {
            let files = leave_files(std::iter::once(&socket)).expect("a ruleset");
            if files == Files::Open {
                println!("skipped: this kernel has no Landlock");
                return;
            }
            let kind = |result: std::io::Result<()>| result.expect_err("refused").kind();
            assert_eq!(kind(File::open(&file).map(drop)), ErrorKind::PermissionDenied);
            let secret = File::open("/etc/passwd").map(drop);
            assert_eq!(kind(secret), ErrorKind::PermissionDenied);
            let started = Command::new("/bin/true").status().map(drop);
            assert_eq!(kind(started), ErrorKind::PermissionDenied);
            drop(UnixListener::bind(&socket).expect("a socket of ours"));
            std::fs::remove_file(&socket).expect("deleted");
        });
    }
}
