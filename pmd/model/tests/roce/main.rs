//! RoCE, by services and by what can go wrong.

mod addresses;
mod commands;
#[path = "../common/mod.rs"]
mod common;
mod congestion;
mod cq_error;
mod inline;
mod inside;
mod masked;
mod rc;
mod ud;
mod umr;
mod v1;
mod xrc;
