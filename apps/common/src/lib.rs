//! What the ferrocx applications share: choosing a device, cores, waiting, signals, reports.
//!
//! # Architecture
//!
//! - [`device`] reads `--device`: the software model (default) or a PCI address.
//! - [`list`] reads lists of cores and sizes; [`wait`] names how a polling core waits.
//! - [`option`] says what is wrong with a command line, [`input`] with a file or a request;
//!   [`peer`] names another device's memory.
//! - [`host`] reads the limits of this machine that decide whether a run can work: hugepages,
//!   locked memory, IOMMU; [`cores`] reads what costs a core that polls time; [`memory`] has
//!   pages found before they are touched.
//! - [`privileges`] gives up the rights of the process once its devices are open.
//! - [`signal`] turns Ctrl-C into a flag; [`exit`] turns a result into one sentence and a code.
//! - [`report`] formats rates and tables for people and writes JSON for programs.
//!
//! # What it does not do
//!
//! It opens no device and moves no packet; it knows no bit of the hardware.
//!
//! # Limits
//!
//! Linux. Core numbers up to [`list::MAX_CORE`].
//!
//! # Example
//!
//! ```
//! use ferrocx_app_common::device::DeviceName;
//!
//! let name: DeviceName = "0000:3b:00.0".parse()?;
//! assert_eq!(name.to_string(), "0000:3b:00.0");
//! let name: DeviceName = "model".parse()?;
//! assert!(matches!(name, DeviceName::Model(_)));
//! # Ok::<(), ferrocx_app_common::device::NameError>(())
//! ```
#![forbid(unsafe_code)]

pub use ferrocx::name as device;

pub mod cores;
pub mod exit;
pub mod host;
pub mod input;
pub mod list;
pub mod log;
pub mod memory;
pub mod option;
pub mod peer;
pub mod privileges;
pub mod report;
pub mod signal;
pub mod wait;
