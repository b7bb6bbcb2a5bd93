//! What the port says besides the verbs: connections, addresses and multicast groups.

#[path = "../common/mod.rs"]
mod common;
mod connections;
mod multicast;
mod port;
