//! Frames as bytes: pure functions that know no queue and no object.
//!
//! - [`packet`] finds the headers; [`offload`] checks and writes checksums, tags and segments;
//!   [`rss`] hashes.

pub mod offload;
pub mod packet;
pub mod rss;
