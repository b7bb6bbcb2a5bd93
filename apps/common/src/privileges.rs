//! Giving up rights once a device is set up: another user, no capabilities, none to come.
//!
//! A device's files, mapped memory and registers stay usable: what was opened stays open. What
//! needs rights later does not: opening devices. Memory may still be locked: the kernel counts what
//! root has locked against the limit, and firmware asks for pages when it wants.
//!
//! Users and groups are changed through the C library, which does it in every thread; the bare
//! system calls change the calling thread alone.

use std::fs;
use std::io;
use std::str::FromStr;

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// User number, not 0.
    pub uid: u32,
    /// Group number, not 0.
    pub gid: u32,
}

/// Not a user and a group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no ordinary user; give numbers as UID or UID:GID, 1 to 4294967294")]
pub struct BadUser(String);

impl FromStr for User {
    type Err = BadUser;

    fn from_str(text: &str) -> Result<Self, BadUser> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        let number = |text: &str| {
            let value: u32 = text.parse().ok()?;
            // All ones stands for "leave it" in the calls.
            (1..u32::MAX).contains(&value).then_some(value)
        };
        match (number(uid), number(gid)) {
            (Some(uid), Some(gid)) => Ok(Self { uid, gid }),
            _ => Err(BadUser(text.into())),
        }
    }
}

/// The system refused a step, or a thread kept rights.
///
/// Some rights of the process are gone then, others are not: end it.
#[derive(Debug, thiserror::Error)]
#[error("becoming user {}:{} (start as root for that): {source}", .user.uid, .user.gid)]
pub struct RightsKept {
    /// Who the process was to become.
    pub user: User,
    /// The system's reason.
    pub source: io::Error,
}

/// Makes the whole process this user's, for good: no other groups, no capabilities.
///
/// Call it before starting threads that are to run programs: that a program gives rights back is
/// ruled out for this thread and those it starts later.
///
/// # Errors
///
/// [`RightsKept`] with the system's reason, or the thread that kept rights.
pub fn drop_to(user: User) -> Result<(), RightsKept> {
    become_user(user).map_err(|source| RightsKept { user, source })
}

fn become_user(user: User) -> io::Result<()> {
    set_no_new_privs(true)?;
    let is_user = rustix::process::getuid().as_raw() == user.uid
        && rustix::process::getgid().as_raw() == user.gid;
    let is_root = rustix::process::geteuid().is_root();
    // Who is that user already may not drop groups, and has no more by keeping them.
    if is_root || !is_user {
        // Where root may not raise it, in a container, the limit stays as it is.
        let unlimited = Rlimit { current: None, maximum: None };
        let _ = setrlimit(Resource::Memlock, unlimited);
        let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
        setgroups(&[])?;
        setresgid(gid, gid, gid)?;
        setresuid(uid, uid, uid)?;
    }
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets)?;
    match thread_with_rights(user) {
        None => Ok(()),
        Some(thread) => Err(io::Error::other(format!("thread {thread} kept rights"))),
    }
}

/// A thread of this process that is not this user's, or has capabilities.
fn thread_with_rights(user: User) -> Option<String> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Some("?".into()) };
    threads.flatten().find_map(|thread| {
        let name = thread.file_name().to_string_lossy().into_owned();
        match fs::read_to_string(thread.path().join("status")) {
            Ok(status) => (!is_harmless(&status, user)).then_some(name),
            // It has ended.
            Err(_) => None,
        }
    })
}

/// Whether a `status` of procfs is one of a thread without rights. Source: proc_pid_status(5).
fn is_harmless(status: &str, user: User) -> bool {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let all = |name, value: String| {
        field(name).is_some_and(|words| words.len() == 4 && words.iter().all(|w| *w == value))
    };
    let empty = |name| field(name).is_some_and(|words| words == ["0000000000000000"]);
    all("Uid:", user.uid.to_string())
        && all("Gid:", user.gid.to_string())
        && ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"].into_iter().all(empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_numbers_above_root() {
        assert_eq!("1000".parse(), Ok(User { uid: 1000, gid: 1000 }));
        assert_eq!("1000:33".parse(), Ok(User { uid: 1000, gid: 33 }));
        for wrong in ["", "0", "1000:0", "0:1000", "nobody", "1:2:3", "4294967295", "-1"] {
            let error = wrong.parse::<User>().unwrap_err().to_string();
            assert!(error.contains("is no ordinary user; give numbers"), "{error}");
        }
    }

    #[test]
    fn a_thread_with_any_right_is_found() {
        let status = "Uid:\t7\t7\t7\t7\nGid:\t8\t8\t8\t8\nGroups:\t\nCapInh:\t0000000000000000\n\
                      CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                      CapAmb:\t0000000000000000\n";
        let user = User { uid: 7, gid: 8 };
        assert!(is_harmless(status, user));
        assert!(!is_harmless(status, User { uid: 8, gid: 8 }));
        for (from, to) in [
            ("Uid:\t7\t7\t7\t7", "Uid:\t7\t7\t0\t7"),
            ("Gid:\t8\t8\t8\t8", "Gid:\t8\t0\t8\t8"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000004000"),
            ("CapPrm:\t0000000000000000", "CapPrm:\t0000000000004000"),
            ("CapAmb:\t0000000000000000\n", ""),
        ] {
            assert!(!is_harmless(&status.replace(from, to), user), "{to}");
        }
    }
}
