//! Any bytes as a capture to play: frames or a sentence, never a panic.
#![no_main]

#[path = "../../../apps/testpmd/src/replay.rs"]
#[allow(dead_code, unreachable_pub, reason = "the program uses the rest")]
mod replay;

use std::io::Cursor;
use std::path::Path;

use ferrocx_model::wire::{MAX_FRAME_BYTES, Wire};
use libfuzzer_sys::fuzz_target;

/// Header of a pcap file, Ethernet.
const PCAP: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
/// Section header of a pcapng file, and an Ethernet interface.
const PCAPNG: [u8; 48] = [
    0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0, 1, 0, 0, 0, 20, 0, 0, 0, 1, 0, 0, 0, 0, 0, 4, 0, 20,
    0, 0, 0,
];

fuzz_target!(|data: &[u8]| {
    read(data);
    read(&[&PCAP, data].concat());
    read(&[&PCAPNG, data].concat());
});

fn read(data: &[u8]) {
    match replay::Replay::read(Path::new("x"), Cursor::new(data)) {
        Ok(mut wire) => {
            wire.handle().start();
            let mut frames = 0;
            while let Some(frame) = wire.receive(0) {
                assert!((1..=MAX_FRAME_BYTES).contains(&frame.bytes.len()));
                frames += 1;
            }
            assert_ne!(frames, 0);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
