//! Deterministic simulation: drivers, models, cables and faults, from one seed, on one clock.
//!
//! Two or three hosts, each with the whole library on a model of the card, talk to each other over
//! a switch. A seed draws what they do and what goes wrong: weather on the wire, commands that
//! fail or hang, devices that are reset, leave the bus or lie, peers that do not exist. Oracles
//! know what may have happened: each byte, each completion and each key once, nothing after an
//! end, nothing left over, and work that goes on once the faults are over.
//!
//! # Architecture
//!
//! - [`Plan`] is everything that a seed decides. [`run()`] carries it out; the same plan gives the
//!   same outcome, whenever and wherever. [`shrink()`] makes a plan that fails smaller.
//! - `world` has the clock and the models. A driver that waits lets simulated time pass, through
//!   [`Transport::relax`](ferrocx_bus::Transport::relax), and asks the same clock what time it is.
//!   There is one thread.
//! - `ether` is the switch and its weather, `liar` a device whose registers lie, `forge` one
//!   whose completions and events do, `intruder` peers that do not exist, `host` what stands on
//!   one card.
//! - `link` makes a connection between two hosts again and again; `stream` and `keys` use it, each
//!   with its oracle. What is to join implements `link::Traffic`.
//! - `storage` is a target of `apps/nvmf-target` and its initiators, which make their own
//!   connections; `blocks` knows what may stand in its namespace.
//! - `frames` is Ethernet between two hosts, through queues of the same devices.
//! - `flood` is a run of its own: a connection manager under strangers' messages.
//! - `planted` has bugs that are planted to see how soon they are found.
//!
//! # What it does not do
//!
//! It finds no races between threads: there is one. It judges nothing that a real card does: its
//! cards are models.
//!
//! # Limits
//!
//! Each run has a budget of steps, in proportion to its messages and faults, and fails beyond it.
//!
//! # Example
//!
//! ```
//! use ferrocx_simulation::{Options, Plan, run};
//!
//! let plan = Plan::draw(7, 500);
//! let outcome = run(&plan, &Options::default());
//! assert_eq!(outcome.violation, None);
//! assert!(outcome.counts.messages > 0);
//! ```
#![forbid(unsafe_code)]

mod blocks;
pub mod cli;
mod ether;
mod flood;
mod forge;
mod frames;
mod host;
mod intruder;
mod keys;
mod liar;
mod link;
mod place;
mod plan;
mod planted;
mod run;
mod shrink;
mod stage;
mod storage;
mod stream;
mod sync;
mod world;

pub use flood::{Flood, flood};
pub use forge::Ring;
pub use plan::{Fault, Intruder, Plan, Planned, Storm};
pub use planted::Bug;
pub use run::{Options, Outcome, run};
pub use shrink::shrink;
pub use stage::{Counts, Violation};
