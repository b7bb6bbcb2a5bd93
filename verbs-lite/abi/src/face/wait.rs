//! Calls that wait, as the system's library waits: in `read`, where a thread that is cancelled ends
//! (`pthread_cancel`; MVAPICH2 ends its own thread of asynchronous events so).
//!
//! A thread that is cancelled is unwound, and frames of Rust may not be. So the wait is done in
//! parts, each of them a call that returns; between them stands a frame of assembly alone.
//! Elsewhere the library waits by system calls of its own, in which no thread is cancelled; only
//! opening a device and `rdma_cm` use the C library's.

use std::ffi::c_int;
use std::time::Duration;

use rustix::thread::{Timespec, nanosleep};

/// What a part gives after which the wait goes on. Results are 0 and -1.
pub(super) const GO_ON: c_int = 1;

/// The usual moment.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// Sleeps for a moment, while somebody else is to do something. Not the C library's call, in which
/// a thread may be cancelled.
pub(crate) fn nap(moment: Duration) {
    let Ok(moment) = Timespec::try_from(moment) else { return };
    // Whoever naps looks again, also after a signal.
    let _ = nanosleep(&moment);
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    /// Ends the thread if it was cancelled, and may be.
    pub(super) fn pthread_testcancel();
}

/// Defines a function of up to three arguments that calls another one with them until that gives
/// something else than [`GO_ON`].
#[cfg(target_arch = "x86_64")]
macro_rules! waits {
    (fn $name:ident($($argument:ident: $kind:ty),*) by $part:ident) => {
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "push rbx",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset rbx, 0",
                "push r12",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset r12, 0",
                "push r13",
                ".cfi_adjust_cfa_offset 8",
                ".cfi_rel_offset r13, 0",
                "mov rbx, rdi",
                "mov r12, rsi",
                "mov r13, rdx",
                "2:",
                "mov rdi, rbx",
                "mov rsi, r12",
                "mov rdx, r13",
                "call {part}",
                "cmp eax, {go_on}",
                "jne 3f",
                "call {test}@PLT",
                "jmp 2b",
                "3:",
                "pop r13",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_restore r13",
                "pop r12",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_restore r12",
                "pop rbx",
                ".cfi_adjust_cfa_offset -8",
                ".cfi_restore rbx",
                "ret",
                ".cfi_endproc",
                part = sym $part,
                test = sym super::wait::pthread_testcancel,
                go_on = const super::wait::GO_ON,
            )
        }
    };
}

/// The same for machines on which no thread is cancelled here.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! waits {
    (fn $name:ident($($argument:ident: $kind:ty),*) by $part:ident) => {
        pub(crate) unsafe extern "C" fn $name($($argument: $kind),*) -> c_int {
            loop {
                let result = promised!($part($($argument),*));
                if result != super::wait::GO_ON {
                    return result;
                }
            }
        }
    };
}
pub(super) use waits;
