//! A software ConnectX: deterministic, strict, bit-exact.
//!
//! It is the device and nothing else: it sees register accesses and I/O addresses through a
//! [`ferrocx_bus::local::DeviceSide`], never a driver type, and is written from the text of the
//! public interface, not from a driver.
//!
//! # Architecture
//!
//! - [`Nic::step`] does everything that is due: registers, commands, doorbells, packets, timers. It
//!   has no thread, clock or randomness of its own; [`runner::Runner`] puts it on a thread.
//! - `bar` holds the registers, `cmd` the command interface, one module per family of commands;
//!   [`caps`] what is advertised, [`pages`] the host pages, [`objects`] everything that exists.
//! - [`mkey`] checks and translates every address of a descriptor, [`eq`] writes events.
//! - [`roce`] holds packets and protocol of RoCE, versions 1 and 2.
//! - [`datapath`] executes descriptors, [`wire`] is what the port is plugged into.
//! - [`played`] lets a test play the device's end of queues on a model that stands still.
//! - [`log`] says what was refused and which field was wrong; [`fault`] plans what goes wrong.
//!
//! # What it does not do
//!
//! E-switch, SR-IOV, tunnels, LRO and user contexts are not advertised, and their commands and
//! fields are refused; so are queue pairs, RoCE and UMR unless [`NicConfig::roce`] is set. Of the
//! firmware's time it models nothing: a command completes in the step that sees its doorbell,
//! unless the fault plan delays it.
//!
//! # Limits
//!
//! 32 command slots, inputs and outputs up to 4 MiB, and the object numbers that [`caps`] states.
//! Nothing is allocated in proportion to an advertised or requested size, except page lists that
//! the driver really sends.
//!
//! # Example
//!
//! ```
//! use ferrocx_bus::{Transport, local::{LocalConfig, pair}};
//! use ferrocx_model::{Nic, NicConfig};
//!
//! let (transport, side) = pair(LocalConfig::default())?;
//! let mut nic = Nic::new(side, NicConfig::default());
//! let bar = transport.bar();
//! assert_eq!(bar.read_be32(0x4) >> 16, 5, "command interface revision");
//! bar.write_be32(0x18, 1);
//! nic.step(0);
//! assert_eq!(nic.log().last().map(|refusal| refusal.why), Some("no command queue was set"));
//! # Ok::<(), ferrocx_bus::BusError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod bar;
pub mod caps;
mod cmd;
pub mod config;
pub mod congestion;
pub mod datapath;
pub mod eq;
pub mod fault;
pub mod log;
pub mod mkey;
pub mod nic;
pub mod objects;
pub mod pages;
pub mod played;
pub mod port;
pub mod roce;
pub mod runner;
pub mod wire;

pub use config::{Identity, NicConfig};
pub use nic::Nic;
