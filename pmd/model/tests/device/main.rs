//! The function behind its registers: commands, objects, events, memory and Ethernet.

mod any_command;
mod bring_up;
#[path = "../common/mod.rs"]
mod common;
mod delivery;
mod device_memory;
mod events;
mod faults;
mod guest_memory;
mod objects;
mod port;
mod runner;
mod user_contexts;
