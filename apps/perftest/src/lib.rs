//! perftest: what RDMA through ferrocx-verbs-lite costs, and whether it is right.
//!
//! # Architecture
//!
//! - [`cli`] is the command line as text; [`config`] checks it.
//! - [`end`] brings up a port: a device through VFIO, or two models on a cable. [`peer`] puts the
//!   messages into memory of another device.
//! - [`cm`] brings two ends of ours together through the connection manager; [`connector`] leads
//!   queue pairs to those of the other end, that way or by what the ends told each other.
//! - [`run`] measures between two ends of ours: [`round`] leads them through a round for each
//!   size, in words of [`exchange`]; [`requester`] posts and takes the time, [`responder`] answers,
//!   both by a [`plan`] on queue pairs of [`queue_pair`], whose [`messages`] lie in registered
//!   memory, on threads of a [`placement`]. [`report`] says what came of it.
//! - [`pattern`] makes and checks the bytes of messages, [`landing`] those that are written without
//!   a completion.
//! - [`fastreg`] measures registration pipelines; [`target`] lends memory and keys to a program at
//!   the other end, which tries what it may not do.
//! - [`pingpong`] talks to rdma-core's `ibv_*_pingpong`, whose handshake [`handshake`] speaks.
//!
//! # What it does not do
//!
//! Without `--cm` it resolves no addresses: the peer's MAC address comes from its link-local
//! address, the exchange of two ends of ours, or the command line.
//!
//! # Limits
//!
//! One port of one device at each end.
//!
//! # Example
//!
//! ```
//! use clap::Parser;
//! use ferrocx_perftest::{cli::Args, config::Config};
//!
//! let args = Args::parse_from(["perftest", "pingpong", "rc", "--size", "100", "-c"]);
//! assert!(Config::new(&args)?.net.is_model());
//! # Ok::<(), ferrocx_perftest::config::ConfigError>(())
//! ```
#![forbid(unsafe_code)]

use anyhow::Result;

pub mod cli;
pub mod cm;
pub mod config;
pub mod connector;
pub mod end;
pub mod exchange;
pub mod fastreg;
pub mod handshake;
pub mod landing;
pub mod measure;
pub mod messages;
pub mod pattern;
pub mod peer;
pub mod pingpong;
pub mod placement;
pub mod plan;
pub mod queue_pair;
pub mod report;
pub mod requester;
pub mod responder;
pub mod round;
pub mod run;
pub mod target;
pub mod tcp;

/// Carries out what the command line says and prints what came of it.
///
/// # Errors
///
/// One sentence about the first thing that went wrong.
pub fn main(args: &cli::Args) -> Result<()> {
    let config = config::Config::new(args)?;
    match &config.job {
        config::Job::PingPong(job) => pingpong::run(&config, job),
        config::Job::Measure(measure) => run::run(&config, measure),
        config::Job::Target => target::run(&config),
    }
}
