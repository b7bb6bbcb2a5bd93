//! A polled driver of an NVMe drive in user space: a queue pair for each core, data straight from
//! and to memory that other devices use, too.
//!
//! # Architecture
//!
//! - [`Controller`] is the drive: [`Controller::open`] resets and identifies it over a
//!   [`Transport`](ferrocx_bus::Transport), [`Controller::queue`] makes a queue pair for a
//!   namespace and the memory that its data will be in, and dropping it tells the drive to shut
//!   down.
//! - [`IoQueue`] belongs to one core: [`IoQueue::push`] takes a request, [`IoQueue::ring`] tells
//!   the drive of all of them by one store, [`IoQueue::poll`] gives back what has ended. None of
//!   these allocates, locks or makes a system call. Requests longer than the drive's largest
//!   transfer are cut.
//! - [`Controller::tend`] is for a thread that polls nothing, a hundred times a second: it aborts
//!   commands that take too long, resets a drive that does not answer or answers what cannot be,
//!   makes its queues again, and gives a drive back that the kernel wants or that has gone. Then
//!   everything under way ends with a [`Failure`]. Where even the system cannot end the drive's
//!   access to memory, that is [`Failure::Stuck`], and that memory is never to be used again.
//!
//! A controller and its queues share a word each. A reset takes a queue down, its core ends what
//! was under way and says so, and only then is it made again: memory is never the drive's and
//! somebody else's.
//!
//! # What it does not do
//!
//! No interrupts, metadata, protection information, zones, fused commands or namespace management.
//!
//! # Limits
//!
//! Pages of 4 KiB, blocks of 512 bytes to 4 KiB without metadata, requests of up to 2 MiB of data
//! at a time in [`Config::entries`] entries. **Never run on hardware**: judged on QEMU's
//! controller.
//!
//! # Example
//!
//! ```no_run
//! use std::sync::Arc;
//! use std::time::Instant;
//!
//! use ferrocx_mempool::{Piece, Region, RegionConfig};
//! use ferrocx_nvme::{Config, Controller, Op};
//!
//! let mut drive = Controller::open_vfio("0000:05:00.0", &Config::default())?;
//! let memory = Region::alloc(&RegionConfig { len_bytes: 1 << 20, ..Default::default() })?;
//! let mut queue = drive.queue(1, &[Arc::clone(&memory)])?;
//! let to = Piece {
//!     address: memory.base().as_ptr().addr(),
//!     len_bytes: 4096,
//!     iova: 0,
//!     lkey_be: 0,
//!     domain: 0,
//!     is_foreign: false,
//! };
//! queue.push(7, Op::Read { lba: 0, to })?;
//! queue.ring();
//! let done = loop {
//!     queue.tick(Instant::now());
//!     drive.tend();
//!     if let Some(done) = queue.poll() {
//!         break done;
//!     }
//! };
//! done.result?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![deny(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod admin;
mod command;
mod config;
mod controller;
mod error;
mod identify;
mod parts;
mod queue;
mod quirks;
mod recover;
mod registers;
mod shared;

pub use command::Status;
pub use config::Config;
pub use controller::{Controller, Counts, Health, check_ready, vfio_config};
pub use error::{Failure, NvmeError, Refused};
pub use ferrocx_bus::sysfs::Sysfs;
pub use identify::{ControllerInfo, Namespace};
pub use queue::{Done, IoQueue, Op};
