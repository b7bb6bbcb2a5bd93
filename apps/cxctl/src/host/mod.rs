//! What the kernel says about this machine, from `/sys`, `/proc` and `/dev` or a recording of them.
//!
//! Everything is read from files, so that a machine can be recorded in a test. Nothing is changed
//! here.

mod nic;
mod pcie;
pub mod routes;
mod tree;

pub use nic::{Group, Netdev, Nic, nics};
pub use pcie::{AcsControl, Bar, Link, acs, bars, path_to_root};
pub use tree::Tree;
