//! A software ConnectX: deterministic, strict, bit-exact.
#![forbid(unsafe_code)]
#![warn(clippy::cast_possible_truncation)]

mod bar;
pub mod caps;
mod cmd;
pub mod config;
pub mod datapath;
pub mod eq;
pub mod fault;
pub mod log;
pub mod mkey;
pub mod nic;
pub mod objects;
pub mod pages;
pub mod port;
pub mod wire;

pub use config::{Identity, NicConfig};
pub use nic::Nic;
