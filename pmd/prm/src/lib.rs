//! Bit layouts, opcodes and syndromes of the mlx5 device interface (ConnectX-4 and later).
//!
//! This crate is the one place for every bit. Driver and model share it, so it is witnessed from
//! outside: golden bytes, a second reading of every structure in the other notation, and the
//! boot trace of a real ConnectX-4 Lx (see `tests/`).
//!
//! # Architecture
//! - [`mod@layout`]: the [`layout!`] macro and the field tables behind it.
//! - [`cmd`]: command queue entry, mailboxes, and each command's input and output.
//! - [`init_seg`]: registers in BAR0 and in a UAR page. [`reg`]: registers behind ACCESS_REG.
//! - [`caps`]: capability pages. [`vport`], [`mkey`], [`eqc`], [`cqc`], [`wqc`], [`srqc`], [`qpc`],
//!   [`tirc`], [`flow`]: contexts.
//! - [`wqe`], [`cqe`], [`eqe`]: what stands in the rings.
//! - [`syndrome`]: what an error code means.
//!
//! # What it does not do
//! No I/O, no allocation, no policy: which value is allowed when is the model's and the driver's
//! business.
//!
//! # Sources
//! "PRM" is the *Mellanox Adapters Programmer's Reference Manual*; names in `code` after it are
//! those of the public Linux and rdma-core headers (`mlx5_ifc.h`, `device.h`, `qp.h`).
//! "Reference 6.3" is section 6.3 of the book in the repository's folder `docs/reference`, the
//! project's own restatement of these facts; its `README.md` says which page has which chapter.
//!
//! # Example
//! ```
//! use ferrocx_prm::cmd::{Command, queues::CreateCq};
//! use ferrocx_prm::cqc::Cqc;
//!
//! let input = CreateCq::input().with_cq_context(Cqc::zeroed().with_log_cq_size(7));
//! assert_eq!(input.0[..4], [0x04, 0x00, 0x00, 0x00]);
//! assert_eq!(input.0[0x1c], 7);
//! ```
#![forbid(unsafe_code)]

pub mod caps;
pub mod cmd;
pub mod cqc;
pub mod cqe;
pub mod eqc;
pub mod eqe;
pub mod flow;
pub mod init_seg;
pub mod layout;
pub mod mad;
pub mod mkey;
pub mod qpc;
pub mod reg;
pub mod srqc;
pub mod syndrome;
pub mod tirc;
pub mod vport;
pub mod wqc;
pub mod wqe;

pub use layout::{Hexdump, Layout};

#[doc(hidden)]
pub use {pastey, zerocopy};
