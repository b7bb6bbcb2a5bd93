//! A software ConnectX: deterministic, strict, with the bit layouts that Linux' drivers accept.
//!
//! Applications have this crate as `ferrocx::model`.
//!
//! It is the device and nothing else: it sees register accesses and I/O addresses through a
//! [`ferrocx_bus::local::DeviceSide`], never a driver type, and is written from the text of the
//! public interface, not from a driver.
//!
//! # Architecture
//!
//! The rooms of the device, from what the driver touches down to bytes; a room uses only those
//! below it.
//!
//! - [`Nic::step`] does everything that is due: registers, commands, doorbells, packets, timers. It
//!   has no thread, clock or randomness of its own; [`runner::Runner`] puts it on a thread.
//! - `bar` takes register writes and doorbells; `cmd` is the command interface, a file for each
//!   family of commands.
//! - [`datapath`] joins `eth`, the Ethernet queues at work, `roce::work`, the queue pairs at work,
//!   and [`wire`], what the port is plugged into.
//! - `queue` is what all queues have in common: completions, events, WQEs, memory through keys.
//! - `device` is the state that all share: [`config`], [`caps`], [`port`], [`pages`]; [`log`] says
//!   what was refused and which field was wrong, [`fault`] plans what goes wrong.
//! - [`objects`] is everything that the driver created; [`mkey`] checks and translates addresses.
//! - [`roce`] also has the protocol of RoCE, versions 1 and 2, as state machines without I/O, and
//!   `frame` pure functions on bytes.
//! - [`played`] lets a test play the device's end of queues on a model that stands still.
//!
//! # What it does not do
//!
//! E-switch, SR-IOV, tunnels and LRO are not advertised, and their commands and fields are refused;
//! so are queue pairs, RoCE and UMR unless [`NicConfig::roce`] is set. User contexts (DevX) have
//! the rights of [`caps::UCTX_CAP`] and the objects of [`caps`]. Legacy multi-packet sends are
//! advertised, because DPDK's driver believes in enhanced ones only beside them, but refused:
//! nobody posts them where there are enhanced ones. Of the firmware's time it models nothing: a
//! command completes in the step that sees its doorbell, unless the fault plan delays it.
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
//! use ferrocx_bus::{BarClaim, Transport, local::{LocalConfig, pair}};
//! use ferrocx_model::{Nic, NicConfig};
//!
//! let (transport, side) = pair(LocalConfig::default())?;
//! let mut nic = Nic::new(side, NicConfig::default());
//! // SAFETY: nobody else drives this device, and no memory is mapped for it.
//! let bar = transport.bar(unsafe { BarClaim::new() });
//! assert_eq!(bar.read_be32(0x4) >> 16, 5, "command interface revision");
//! bar.write_be32(0x18, 1);
//! nic.step(0);
//! assert_eq!(nic.log().last().map(|refusal| refusal.why), Some("no command queue was set"));
//! # Ok::<(), ferrocx_bus::BusError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod bar;
mod bits;
mod cmd;
pub mod datapath;
mod device;
mod eth;
mod frame;
pub mod nic;
pub mod objects;
pub mod played;
mod queue;
pub mod roce;
pub mod runner;
pub mod wire;

pub use device::config::{Identity, NicConfig};
pub use device::{caps, config, congestion, fault, log, pages, port};
pub use nic::Nic;
pub use objects::mkey;
pub use queue::eq;
