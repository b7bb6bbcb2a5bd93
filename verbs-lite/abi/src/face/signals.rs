//! Signals that come while a program waits.
//!
//! Stock libraries wait in `read`, which the system begins again after a handler that was installed
//! with `SA_RESTART`, as `signal` of the C library installs all; only another handler makes the
//! call fail with `EINTR`. This library waits for several files at once, by a call that the system
//! never begins again, and does not learn which signal came. So it begins again where that is what
//! every handler of the process asks for.

//!
//! Threads of this library take none of the program's signals: one that keeps them from its own
//! threads and waits for them by `signalfd` or `sigwait`, as tgtd does, would be ended by them.

use std::ffi::c_int;
use std::ptr::{null, null_mut};

/// Signals that a thread gets for what it does itself: they do not come while it waits.
const OWN: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// What is done at a signal; `None` for one that nobody may handle.
fn action_of(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: numbers, for which zeros are a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: it only asks, and writes to a place of this function's.
    let failed = unsafe { libc::sigaction(signal, null(), &raw mut action) };
    (failed == 0).then_some(action)
}

/// Whether a wait that a signal has ended is to be begun again.
#[cold]
pub(super) fn are_restarted() -> bool {
    (1..=libc::SIGRTMAX()).filter(|signal| !OWN.contains(signal)).all(|signal| {
        action_of(signal).is_none_or(|action| {
            let is_handled = !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN);
            !is_handled || action.sa_flags & libc::SA_RESTART != 0
        })
    })
}

/// Runs something, and holds back from this thread what comes for the process meanwhile. Threads
/// that are started by it hold that back as long as they live.
pub(crate) fn held_back<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: numbers, for which zeros are a value.
    let (mut held, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: sets of this function's, and signals that the system has.
    unsafe {
        libc::sigfillset(&raw mut held);
        for signal in OWN {
            libc::sigdelset(&raw mut held, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const held, &raw mut before);
    }
    let result = run();
    // SAFETY: the set that the call above has filled.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut()) };
    result
}
