//! Queue pairs, shared receive queues and completion queues: what they carry, and how they end.

#[path = "../common/mod.rs"]
mod common;
mod completions;
mod lives;
mod played;
mod raw;
mod raw_echo;
mod rc;
mod services;
mod srq;
mod syndromes;
mod table;
mod unreserved;
mod wire;
mod xrc;
