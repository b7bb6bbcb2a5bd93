//! Errors of the control plane. The data path reports counts and [`QueueFault`], which is `Copy`.

use std::time::Duration;

use ferrocx_bus::BusError;
use ferrocx_mempool::MempoolError;
use ferrocx_prm::syndrome::CqeSyndrome;
use thiserror::Error;

use crate::cmd::{CommandError, DeadDevice};

/// A setting that is out of range, or that the device cannot do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A number outside its range.
    #[error("{what} is {value}; it must be {min} to {max}{hint}")]
    Range {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// Smallest allowed value.
        min: u64,
        /// Largest allowed value, of the driver or of this device.
        max: u64,
        /// More about the range or the way out; starts with a separator, or is empty.
        hint: &'static str,
    },
    /// A count that is not a power of two.
    #[error("{what} is {value}; it must be a power of two, for example {nearest}")]
    NotPowerOfTwo {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The next larger power of two.
        nearest: u64,
    },
    /// The device lacks what was asked for.
    #[error("this device has no {what}; {way_out}")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
        /// What to do instead.
        way_out: &'static str,
    },
    /// Settings that contradict each other or the state of the device.
    #[error("{what}")]
    Conflict {
        /// What contradicts what, and the way out.
        what: &'static str,
    },
}

impl ConfigError {
    /// Checks a range.
    ///
    /// # Errors
    /// [`ConfigError::Range`] outside it; `hint` says more about the range or the way out, and
    /// starts with a separator, or is empty.
    pub fn range(
        what: &'static str,
        value: u64,
        min: u64,
        max: u64,
        hint: &'static str,
    ) -> Result<(), Self> {
        if (min..=max).contains(&value) {
            Ok(())
        } else {
            Err(Self::Range { what, value, min, max, hint })
        }
    }

    /// Checks a power of two in a range, and returns its logarithm.
    ///
    /// # Errors
    /// [`ConfigError::Range`], [`ConfigError::NotPowerOfTwo`].
    pub fn log2(
        what: &'static str,
        value: u32,
        min: u32,
        max: u32,
        hint: &'static str,
    ) -> Result<u8, Self> {
        Self::range(what, value.into(), min.into(), max.into(), hint)?;
        if !value.is_power_of_two() {
            let nearest = u64::from(value).next_power_of_two();
            return Err(Self::NotPowerOfTwo { what, value: value.into(), nearest });
        }
        Ok(value.trailing_zeros() as u8)
    }
}

/// Why an operation of the control plane failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The device is not one that this driver knows.
    #[error(
        "device {name} is {vendor:04x}:{device:04x}, not a ConnectX-4 or later (15b3:1013 and up); \
         choose another PCI address"
    )]
    UnknownDevice {
        /// PCI address or name.
        name: String,
        /// PCI vendor id.
        vendor: u16,
        /// PCI device id.
        device: u16,
    },
    /// The command interface has another revision.
    #[error(
        "the firmware of {name} speaks command interface revision {revision}, this driver \
         revision 5; update one of them"
    )]
    CommandInterface {
        /// PCI address or name.
        name: String,
        /// What the device reported.
        revision: u32,
    },
    /// The init segment describes an impossible command queue.
    #[error(
        "the device reports a command queue of 2^{log_size} entries of 2^{log_stride} bytes, which \
         does not fit 32 entries in 4096 bytes; the device or the BAR mapping is broken"
    )]
    CommandQueue {
        /// Log2 of the entries.
        log_size: u8,
        /// Log2 of the bytes from one entry to the next.
        log_stride: u8,
    },
    /// The device gave memory that its BAR does not hold.
    #[error(
        "the device shows {len_bytes:#x} bytes of its memory at {start:#x}, which is not where its \
         BAR of {bar_len_bytes:#x} bytes can have them; the device or the BAR mapping is broken"
    )]
    MemoryOutside {
        /// Where in the BAR it claims to begin.
        start: u64,
        /// Its bytes.
        len_bytes: u64,
        /// Bytes of the BAR.
        bar_len_bytes: u64,
    },
    /// The device's memory is lent out.
    #[error(
        "no {len_bytes} bytes of the device's memory are left, of {max_bytes} that it lends at \
         most; drop pieces that are not needed, or use memory of the host"
    )]
    NoDeviceMemory {
        /// Bytes that were asked for.
        len_bytes: u64,
        /// Bytes of the largest piece.
        max_bytes: u64,
    },
    /// The device gave a UAR page that its BAR does not hold.
    #[error(
        "the device gave UAR page {page:#x}, past the end of its BAR of {bar_len_bytes:#x} bytes; \
         the device or the BAR mapping is broken"
    )]
    UarOutside {
        /// The page.
        page: u32,
        /// Length of the BAR.
        bar_len_bytes: u64,
    },
    /// A wait of bring-up, reset or teardown ran out.
    #[error("{what} took longer than {limit:?}; {way_out}")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// How long.
        limit: Duration,
        /// What to do.
        way_out: &'static str,
    },
    /// The device died.
    #[error("{0}")]
    Dead(#[from] DeadDevice),
    /// A command failed during a step.
    #[error("{step}: {source}")]
    Step {
        /// What was being done.
        step: &'static str,
        /// The command's error.
        source: CommandError,
    },
    /// A command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The bus refused.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// A pool refused.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The pool was not given to this device.
    #[error("pool {pool} is not registered with device {device}; call Device::register_pool first")]
    PoolNotRegistered {
        /// Name of the pool.
        pool: String,
        /// Name of the device.
        device: String,
    },
    /// The pool has too few free buffers to fill a receive queue.
    #[error(
        "pool {pool} gave {got} of the {need} buffers that the receive queue holds; make the pool \
         larger (queues x descriptors + a cache per core + bursts in flight)"
    )]
    PoolTooSmall {
        /// Name of the pool.
        pool: String,
        /// Buffers needed.
        need: usize,
        /// Buffers that could be had.
        got: usize,
    },
    /// The pool has fewer free buffers than the rings of the lanes that were asked for.
    #[error(
        "pool {pool} has {free} free buffers, and the rings of {lanes} lanes hold {need}, caches \
         not counted; make the pool larger (PoolConfig::count) or the rings smaller"
    )]
    PoolTooSmallForLanes {
        /// Name of the pool.
        pool: String,
        /// Lanes asked for.
        lanes: usize,
        /// Buffers that their rings hold.
        need: usize,
        /// Buffers that nobody holds.
        free: usize,
    },
    /// Other handles of the device are still in use.
    #[error(
        "{handles} other handles of the device are alive (queues, rules, clones, housekeeping, \
         event readers, clocks); drop them first"
    )]
    InUse {
        /// How many.
        handles: usize,
    },
}

/// Why a queue stopped. Kept until it is reset.
///
/// | fault | cause | way out |
/// |---|---|---|
/// | [`QueueFault::Completion`] | the device refused a work request: most often a key that has ended | `reset` of the queue; destroy it if a pool of its was [revoked](crate::Device::revoke_pool) |
/// | [`QueueFault::WrongIndex`], [`QueueFault::TooLong`], [`QueueFault::BadCqe`] | completions that cannot be: memory that something else wrote to, or a device that lost its way | `reset` of the queue; if that happens again, [`Device::reset`](crate::Device::reset) and a new start |
///
/// A device that died, or was reset, looks like silence instead: bursts move nothing, and queues
/// report no fault. [`Device::health`](crate::Device::health) tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueFault {
    /// The device reported an error for a work request.
    #[error(
        "completion with error, syndrome {syndrome}, vendor syndrome {vendor:#04x}, WQE \
         {wqe_counter}"
    )]
    Completion {
        /// What went wrong.
        syndrome: CqeSyndrome,
        /// The firmware's own code.
        vendor: u8,
        /// Counter of the work request.
        wqe_counter: u16,
    },
    /// The device named a work request that it was not given, or that was finished.
    #[error(
        "the device completed WQE {got} while {expected} was next: the completion queue is corrupt \
         or was overrun; reset the queue"
    )]
    WrongIndex {
        /// What the driver waited for.
        expected: u16,
        /// What the device said.
        got: u16,
    },
    /// The device reported more bytes than the buffer has.
    #[error("the device reported {len_bytes} bytes in a buffer of {room_bytes}; reset the queue")]
    TooLong {
        /// Bytes reported.
        len_bytes: u32,
        /// Bytes that the buffers of the work request have.
        room_bytes: u32,
    },
    /// A completion of a kind that does not belong on this queue.
    #[error("completion with opcode {opcode}, format {format}, which this queue cannot have")]
    BadCqe {
        /// Its opcode.
        opcode: u8,
        /// Its format.
        format: u8,
    },
}

impl QueueFault {
    /// A compressed block that nobody asked for, or of a length that cannot be.
    pub const COMPRESSED: Self = Self::BadCqe { opcode: 2, format: 3 };
}

/// An object could not be destroyed; it is handed back.
#[derive(Debug, Error)]
#[error("{cause}")]
pub struct Destroy<T: std::fmt::Debug> {
    /// The object, still usable for another try. Dropping it keeps what the device may own
    /// until the device is closed.
    pub object: Box<T>,
    /// Why.
    pub cause: DeviceError,
}
