//! Why a drive cannot be used, a request was not taken, or did not do what it should.

use ferrocx_bus::BusError;
use ferrocx_mempool::MempoolError;
use thiserror::Error;

use crate::Status;

/// Why a drive or a queue of it cannot be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NvmeError {
    /// The bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// There is no memory for queues, or somebody lends what was to be the drive's.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The registers read as ones, or the kernel took the drive.
    #[error("drive {name} has gone: {why}; look at the slot and the kernel log, open it again")]
    Gone {
        /// The drive.
        name: String,
        /// What was seen.
        why: String,
    },
    /// The drive did not do something in its time.
    #[error("drive {name}: no {what} within {limit_ms} ms; reset it, or take another")]
    TimedOut {
        /// The drive.
        name: String,
        /// What was waited for.
        what: &'static str,
        /// The limit: the drive's own, or that of the configuration.
        limit_ms: u128,
    },
    /// The drive says that it has failed.
    #[error("drive {name} reports a fatal status (CSTS.CFS); reset it, or take another")]
    Fatal {
        /// The drive.
        name: String,
    },
    /// A command of the admin queue failed.
    #[error("drive {name}: {command} failed: {status}")]
    Command {
        /// The drive.
        name: String,
        /// The command.
        command: &'static str,
        /// What the drive says.
        status: Status,
    },
    /// The drive gave an answer that cannot be.
    #[error("drive {name} answers what cannot be: {what} is {value:#x}; take another drive")]
    Lies {
        /// The drive.
        name: String,
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// The drive is none that this driver can use.
    #[error("drive {name}: {what} is {value}, and this driver needs {needs}; take another drive")]
    Unsupported {
        /// The drive.
        name: String,
        /// The property.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What would do.
        needs: &'static str,
    },
    /// The device is no NVMe drive.
    #[error(
        "device {name} has PCI class {class:06x}, an NVMe drive has 010802; give one's address"
    )]
    NoDrive {
        /// The device.
        name: String,
        /// Its class.
        class: u32,
    },
    /// There is no such namespace.
    #[error("drive {name} has no active namespace {nsid}; it has numbers 1 to {most}")]
    NoNamespace {
        /// The drive.
        name: String,
        /// Number asked for.
        nsid: u32,
        /// Its largest number.
        most: u32,
    },
    /// The drive has no more queues.
    #[error("drive {name} has {most} queues, and all are in use; use fewer cores or namespaces")]
    NoQueue {
        /// The drive.
        name: String,
        /// Queue pairs that it grants.
        most: u16,
    },
    /// A value of the configuration outside its range.
    #[error("{what} is {value}; give {min} to {max}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value.
        max: u64,
    },
}

/// Why a queue does not take a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refused {
    /// As many are under way as it has room for.
    #[error("all places of the queue are taken; poll it, and try again")]
    Full,
    /// The drive is being reset.
    #[error("the drive is being reset; try again")]
    NotReady,
    /// The drive has gone.
    #[error("the drive has gone")]
    Gone,
    /// Blocks outside the namespace, or none.
    #[error("the blocks are not inside the namespace")]
    Range,
    /// The memory is none that the queue was made for, or its place or length does not do.
    #[error(
        "the memory is none of the queue's, does not begin at a multiple of 4, or is not made of \
         whole blocks"
    )]
    Memory,
    /// The drive lacks the command.
    #[error("the drive has no such command")]
    Unsupported,
}

/// Why a request did not do what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// The drive says so.
    #[error("the drive says: {0}")]
    Status(Status),
    /// It took too long, and was aborted, or ended by a reset.
    #[error("it took too long")]
    TimedOut,
    /// The drive was reset while it was under way: it may or may not have been carried out.
    #[error("the drive was reset meanwhile")]
    Reset,
    /// The drive has gone, and nobody could end its access: it may still read and write the memory
    /// of the request, which must hold nothing else for as long as the process lives.
    #[error("the drive has gone, and may still reach the memory of the request: keep it unused")]
    Stuck,
    /// The drive has gone.
    #[error("the drive has gone")]
    Gone,
}
