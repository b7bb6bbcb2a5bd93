//! The data path against literal WQEs and CQEs.
#![allow(clippy::cast_possible_truncation, reason = "test data")]

mod bursts;
mod compressed;
mod events;
mod flushing;
mod plain;
mod random;
mod receiving;
mod refused;
mod sending;
mod steering;

use super::harness::Port;
use crate::wire::{Fcs, Link, Wire, link};

/// A 60-byte frame for address 02:..:01 of an EtherType that nothing parses.
fn frame(fill: u8) -> [u8; 60] {
    let mut frame = [fill; 60];
    frame[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    frame
}

fn put(wire: &mut Link, frame: &[u8]) {
    wire.reserve(frame.len()).expect("room").copy_from_slice(frame);
    wire.commit(0, Fcs::Good);
    wire.flush(0);
}

fn port() -> (Port, Link) {
    let mut port = Port::new(7);
    let (near, far) = link(1 << 16);
    port.plug(near);
    (port, far)
}
