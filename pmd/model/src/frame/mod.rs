//! Frames as bytes: pure functions that know no queue and no object.
//!
//! - [`packet`] finds the headers; [`offload`] checks and writes checksums, tags and segments;
//!   [`rss`] hashes; `recent` finds the headers of packets that follow each other.

pub mod offload;
pub mod packet;
pub(crate) mod recent;
pub mod rss;
