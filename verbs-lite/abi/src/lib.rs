//! `libibverbs.so.1` without a kernel driver: stock RDMA programs on ConnectX adapters through
//! `ferrocx-verbs-lite`, and on the software model of one, without privileges, module or card.
//!
//! Put first by `LD_LIBRARY_PATH` or `LD_PRELOAD` (`cxctl run` does), it takes the place of the
//! system's library. Each process has a device of its own; devices of one machine are joined by
//! memory that they share, those of different machines by RoCEv2 in UDP; neither needs a daemon.
//! With `FERROCX_DEVICE` the device is an adapter that is bound to vfio-pci, for this process
//! alone.
//!
//! # Architecture
//!
//! - `symbols.txt` names every function and version that rdma-core 44 to 65 export; `build.rs`
//!   makes the table of it. `abi` has the structures that programs compile in.
//! - `face` has the functions. `unsafe` is there, and nowhere else but one socket option and the
//!   words of shared memory. Its `rdma_cm` answers what stock librdmacm asks the kernel, which
//!   needs no other library and no preloading: connections by address, datagram services, groups,
//!   rsockets.
//! - `node` is the process's device, its wires, and what makes a model run.
//!
//! # Settings
//!
//! | variable | says |
//! |---|---|
//! | `FERROCX_DEVICE` | the PCI address of an adapter; else, or as `model`, the software model. Several between commas are as many devices; then the next two have one for each, in the same order |
//! | `FERROCX_IP` | of the model: the address of the port, one of this machine, `fe80::2%eth0` with its interface; else the first free one from 127.88.0.1 on. Of an adapter: the address of the port and its subnet, 192.168.0.1/24 or fd00::1/64 |
//! | `FERROCX_GATEWAY` | of an adapter: the address that leads out of the subnet |
//! | `FERROCX_MTU` | the largest IP packet, 352 to 9978; else 4200 on a loopback address, 1500 on others |
//! | `FERROCX_IMPAIR` | what goes wrong with what this process sends: `loss=10000,duplicate=100,reorder=500,overtakers=3,delay=5000`; chances in parts in a million, times in nanoseconds |
//! | `FERROCX_SEED` | a number: the same one, and the same frames go wrong |
//! | `FERROCX_CAPTURE` | a folder: what this process sends and receives is written there, `ADDRESS.pcapng` |
//! | `FERROCX_SYSFS` | 1: the program finds some of the kernel's files of the port below `/sys` and `/dev`; `cxctl run` says so |
//! | `FERROCX_LOG` | what is logged to standard error: `info` says why something was refused |
//!
//! # What it does not do
//!
//! VLANs, on-demand paging, ECE, migration of paths, SQD, priorities among rules for raw packets:
//! functions of these are null, or answer `EOPNOTSUPP`. Of `rdma_cm`, addresses of InfiniBand and
//! service records. `docs/SUPPORT.md` says which programs run.
//!
//! # Limits
//!
//! Memory that a program unmaps before it deregisters it reads as zero to its peers, where an
//! adapter would have pinned it; what they write there is lost. A program that replaces the handler
//! of SIGSEGV after it has registered memory, and unmaps it then, is ended by that signal. A child
//! after `fork` has to open a device of its own: its parent's objects answer `ENODEV` there, but
//! for memory of the device, which its parent takes, copies and frees for it while it lives. Behind
//! VFIO the registered pages are pinned, and count against the user's limit of locked memory; an
//! adapter has room for one process. A thread that `pthread_cancel` is to end while it waits for an
//! event of a channel or of the device ends within 50 ms, on x86-64; while it waits for one of
//! `rdma_cm`, or on other machines, when that has come.
#![deny(unsafe_code)]
// The table of names leads to most functions, and a test has none.
#![cfg_attr(any(test, fuzzing), allow(dead_code, unused_imports))]

mod abi;
mod face;
mod files;
mod node;
#[cfg(test)]
mod system_tests;

/// The names of the table, which lead to the functions of [`face`].
#[cfg(not(any(test, fuzzing)))]
#[expect(unsafe_code, reason = "each name and version is a jump in assembly")]
mod exports {
    include!(concat!(env!("OUT_DIR"), "/exports.rs"));
}

/// The function of a name, or null: for a fuzz target, into which this library is linked, so that
/// names have no versions.
#[cfg(fuzzing)]
#[must_use]
pub fn function(name: &str) -> *const std::ffi::c_void {
    include!(concat!(env!("OUT_DIR"), "/found.rs"))
}
