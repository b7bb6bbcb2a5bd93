//! An NVMe over RDMA storage target on ferrocx: hosts connect by the RDMA connection manager, and
//! read and write namespaces that lie in memory, in files, or on drives.
//!
//! # Architecture
//!
//! - [`proto`] has the layouts: commands, completions, pages, private data. Nothing in it panics.
//! - [`controller`] is the target without a wire: who may connect, what each command does.
//! - [`auth`] is how hosts and controllers show each other that they have a key.
//! - [`backend`] is what is behind a namespace, [`whole`] memory whose blocks are written as one.
//! - [`transport`] is the target on a port: queue pairs, READ and WRITE, a poller for each core.
//! - [`host`] is the other end: a small polled initiator, for tests and load.
//! - [`config`] is the file that a target is started with; [`run`] starts it, [`doctor`] says what
//!   of the machine it lacks.
//! - [`control`] changes a running target, [`rpc`] lets people and programs do so, and [`stats`]
//!   says what it has done.
//!
//! # What it does not do
//!
//! No metadata, no Copy, no namespaces that hosts make: hosts are not told of any, and those who
//! ask are refused. One address, so ports that differ are numbers of the connection manager.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | entries of an I/O queue | 16 to 1024; admin 32 | [`controller::Settings::entries`] |
//! | data in a capsule | 4 to 16 KiB | [`controller::Settings::in_capsule_bytes`] |
//! | a transfer | 1 MiB | [`controller::Settings::mdts`] |
//! | queues of all hosts | 64, to 1024 | [`transport::ServerConfig::queues`] |
//! | controllers | 64, to 4096 | [`controller::Settings::controllers`] |
//! | polling cores | 64 | [`transport::MAX_POLLERS`] |
//! | subsystems, and hosts that one lists | 256, 1024 | [`controller::subsystem`] |
//! | keys of hosts of a subsystem | 1024 | [`controller::subsystem::MAX_HOSTS`] |
//! | an authentication | 30 s | – |
//! | namespaces of a subsystem | 1024 | [`controller::subsystem::MAX_NSID`] |
//! | ports that differ, groups of namespaces | 8, 8 | [`controller::ana`] |
//! | hosts registered with a namespace | 32 | [`controller::reservation::MAX_REGISTRANTS`] |
//! | commands that wait for a reservation to be on disk | 32 a namespace | [`keeper`] |
//! | namespaces added since the start | 65,536 | [`transport::MAX_BACKENDS`] |
//! | clients and requests of the socket | 8, of 64 KiB | [`rpc`] |
//! | what an admin command brings | the largest transfer | – |
#![forbid(unsafe_code)]

pub mod auth;
pub mod backend;
pub mod bench;
pub mod cli;
pub mod config;
pub mod control;
pub mod controller;
pub mod doctor;
pub mod drive;
#[cfg(test)]
#[path = "../../../pmd/nvme/tests/common/mod.rs"]
mod fake;
pub mod host;
pub mod keeper;
pub mod peer;
pub mod proto;
pub mod rpc;
pub mod run;
pub mod stats;
mod store;
mod told;
pub mod transport;
pub mod whole;
