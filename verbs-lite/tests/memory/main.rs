//! Memory and its keys: registered, bound by requests, lent by other devices, and ended.

mod changer;
#[path = "../common/mod.rs"]
mod common;
mod device_memory;
mod fastreg;
mod fmr;
mod peer;
mod posted;
mod regions;
mod registrar;
mod security;
mod states;
mod windows;
