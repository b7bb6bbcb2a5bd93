//! Any bytes as a recorded day, as messages of ITCH or a capture: datagrams in the order of time,
//! or a sentence, never a panic.
#![no_main]

use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::path::Path;

use ferrocx_tick2trade::replay::{Lines, Recording};
use libfuzzer_sys::fuzz_target;
use rustix::fs::{MemfdFlags, memfd_create};

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
    let fd = memfd_create("recording", MemfdFlags::CLOEXEC).expect("a file of memory");
    let mut file = std::fs::File::from(fd);
    file.write_all(data).expect("room");
    file.rewind().expect("a file");
    let lines = Lines {
        groups: ["239.1.1.1:26400", "239.1.1.2:26401"].map(|at| at.parse().expect("an address")),
        answers_port: 26_402,
    };
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(mut recording) = Recording::open(Path::new(&path), lines) else { return };
    let (mut last_ns, mut datagrams) = (0, 0);
    while let Ok(Some(recorded)) = recording.next_datagram() {
        assert!(recorded.at_ns >= last_ns && recorded.datagram.len() <= 1 << 17);
        (last_ns, datagrams) = (recorded.at_ns, datagrams + 1);
        assert!(datagrams <= data.len(), "each has a byte at least");
    }
}
