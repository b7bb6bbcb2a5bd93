//! testpmd: forwards, answers, counts or generates packets with ferrocx-pmd.
//!
//! # Architecture
//!
//! - [`cli`] is the command line as text; [`config`] checks it; [`run`] carries it out.
//! - [`link_partner`] runs the software model and what its ports are plugged into; [`ports`] brings
//!   up devices, pools and queues; [`payload`] finds memory of other devices for packets.
//! - [`worker`] is a polling core with [`stream`]s: a receive queue, an [`engine`], a send queue.
//! - [`icmpecho`] answers requests in place, sans I/O; [`txonly`] makes frames; [`ether`] and
//!   [`checksum`] are what they share.
//! - [`reason`] and [`totals`] count: each received frame is forwarded or has a reason.
//!   [`profile`] samples where the time goes; [`report`] prints it all.
//!
//! # What it does not do
//!
//! It has no interactive prompt and no flow rules; one run, one mode.
//!
//! # Limits
//!
//! [`config::MAX_PORTS`] ports of [`config::MAX_QUEUES`] queues. Ports forward in pairs.
//!
//! # Example
//!
//! ```
//! use ferrocx_testpmd::icmpecho::{self, Station, Tail, Verdict};
//! use ferrocx_testpmd::{ether::MacAddr, reason::Reason};
//!
//! let station = Station { mac: MacAddr([2, 0, 0, 0, 0, 1]), addresses: Vec::new() };
//! let verdict = icmpecho::reply(&mut [0; 10], Tail::NONE, &station);
//! assert_eq!(verdict, Verdict::Drop(Reason::Runt));
//! ```
#![forbid(unsafe_code)]

use std::io::Write;

use anyhow::Result;
use ferrocx_app_common::{report::JsonTarget, signal::Stop};

pub mod cli;
pub mod config;
pub mod engine;
pub mod link_partner;
pub mod payload;
pub mod ports;
pub mod profile;
pub mod replay;
pub mod report;
pub mod run;
pub mod stream;
pub mod totals;
pub mod txonly;
pub mod worker;

pub use ferrocx_net::{checksum, ether, icmpecho, ip, reason};

/// Runs what the command line says, prints the report, and checks that its totals add up.
///
/// # Errors
/// One sentence about the first thing that went wrong.
pub fn main(args: &cli::Args) -> Result<()> {
    let config = config::Config::new(args)?;
    let stop = Stop::on_signals()?;
    let report = run::run(&config, &stop)?;
    if config.json == Some(JsonTarget::Stdout) {
        eprint!("{}", report.text());
    } else {
        // A closed pipe is no reason to lose the report file.
        let _ = std::io::stdout().write_all(report.text().as_bytes());
    }
    if let Some(target) = &config.json {
        target.write(&report)?;
    }
    report.check()?;
    Ok(())
}
