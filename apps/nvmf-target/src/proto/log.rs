//! Log pages, those of discovery among them.

use std::net::IpAddr;

use super::sqe::{Sqe, admin, io};
use super::status::Status;
use super::{put, put_text};

/// Numbers of log pages. Source: reference 10.2.8.
pub mod lid {
    /// Which log pages there are.
    pub const SUPPORTED: u8 = 0x00;
    /// Commands that failed.
    pub const ERRORS: u8 = 0x01;
    /// Health and counters.
    pub const SMART: u8 = 0x02;
    /// Firmware.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Commands and their effects.
    pub const EFFECTS: u8 = 0x05;
    /// What the port is for each group of namespaces.
    pub const ANA: u8 = 0x0c;
    /// Subsystems that a host may connect to.
    pub const DISCOVERY: u8 = 0x70;
    /// What a registrant is told of reservations.
    pub const RESERVATION: u8 = 0x80;
}

/// Bytes of an entry of the discovery log, and of its header.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;
/// Bytes of an entry of the error log.
pub const ERROR_BYTES: usize = 64;

/// A command that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorEntry {
    /// How many failed until then.
    pub count: u64,
    /// Its queue.
    pub sqid: u16,
    /// Its name.
    pub cid: u16,
    /// Its status, as the completion's field has it.
    pub status: u16,
    /// Its first block.
    pub lba: u64,
    /// Its namespace.
    pub nsid: u32,
}

impl ErrorEntry {
    /// Of a command of a queue, without a number.
    pub(crate) fn new(sqid: u16, sqe: &Sqe, status: Status) -> Self {
        Self {
            count: 0,
            sqid,
            cid: sqe.cid.get(),
            status: status.on_wire(),
            lba: sqe.slba(),
            nsid: sqe.nsid.get(),
        }
    }

    /// The entry. Source: NVM Express base, "Error Information".
    #[must_use]
    pub fn encode(&self) -> [u8; ERROR_BYTES] {
        let mut entry = [0; ERROR_BYTES];
        put(&mut entry, 0, &self.count.to_le_bytes());
        put(&mut entry, 8, &self.sqid.to_le_bytes());
        put(&mut entry, 10, &self.cid.to_le_bytes());
        put(&mut entry, 12, &self.status.to_le_bytes());
        put(&mut entry, 14, &[0xff, 0xff]);
        put(&mut entry, 16, &self.lba.to_le_bytes());
        put(&mut entry, 24, &self.nsid.to_le_bytes());
        entry
    }
}

/// What hosts have moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Traffic {
    /// Commands that read.
    pub reads: u64,
    /// Commands that wrote.
    pub writes: u64,
    /// Bytes that were read.
    pub bytes_read: u64,
    /// Bytes that were written.
    pub bytes_written: u64,
    /// Commands of any kind.
    pub commands: u64,
    /// Commands that failed.
    pub errors: u64,
}

impl Traffic {
    /// Adds another count.
    pub fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.commands += other.commands;
        self.errors += other.errors;
    }

    /// The health page; `minutes` since the start, and how many entries the error log has had. A
    /// data unit is a thousand blocks of 512 bytes.
    #[must_use]
    pub fn smart(&self, minutes: u64, media_errors: u64, log_entries: u64) -> [u8; 512] {
        let mut page = [0; 512];
        page[3] = 100; // Spare.
        let units = |bytes: u64| bytes.div_ceil(512_000).to_le_bytes();
        put(&mut page, 32, &units(self.bytes_read));
        put(&mut page, 48, &units(self.bytes_written));
        put(&mut page, 64, &self.reads.to_le_bytes());
        put(&mut page, 80, &self.writes.to_le_bytes());
        put(&mut page, 128, &(minutes / 60).to_le_bytes());
        put(&mut page, 160, &media_errors.to_le_bytes());
        put(&mut page, 176, &log_entries.to_le_bytes());
        page
    }
}

/// The firmware page: slot 1 is active.
#[must_use]
pub fn firmware(revision: &str) -> [u8; 512] {
    let mut page = [0; 512];
    page[0] = 1;
    put_text(&mut page, 8, 8, revision, b' ');
    page
}

/// The page of commands and their effects: those that there are, and which change contents.
#[must_use]
pub fn effects() -> [u8; 4096] {
    const SUPPORTED: u32 = 1;
    const CHANGES_CONTENT: u32 = 1 << 1;
    let mut page = [0; 4096];
    for opcode in [
        admin::GET_LOG,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ] {
        put(&mut page, usize::from(opcode) * 4, &SUPPORTED.to_le_bytes());
    }
    for (opcode, effect) in [
        (io::FLUSH, SUPPORTED),
        (io::READ, SUPPORTED),
        (io::COMPARE, SUPPORTED),
        (io::VERIFY, SUPPORTED),
        (io::WRITE, SUPPORTED | CHANGES_CONTENT),
        (io::WRITE_ZEROES, SUPPORTED | CHANGES_CONTENT),
        (io::DSM, SUPPORTED | CHANGES_CONTENT),
        (io::RESERVATION_REGISTER, SUPPORTED),
        (io::RESERVATION_REPORT, SUPPORTED),
        (io::RESERVATION_ACQUIRE, SUPPORTED),
        (io::RESERVATION_RELEASE, SUPPORTED),
    ] {
        put(&mut page, 1024 + usize::from(opcode) * 4, &effect.to_le_bytes());
    }
    page
}

/// The page of the log pages that there are: four bytes each, the first bit for "supported".
#[must_use]
pub fn supported(pages: &[u8]) -> [u8; 1024] {
    let mut page = [0; 1024];
    for lid in pages {
        page[usize::from(*lid) * 4] = 1;
    }
    page
}

/// The page of namespaces that have changed; `None` when they are more than fit.
#[must_use]
pub fn changed_namespaces(nsids: Option<&[u32]>) -> [u8; 4096] {
    let mut page = [0; 4096];
    match nsids {
        Some(nsids) => {
            for (slot, nsid) in page.chunks_exact_mut(4).zip(nsids) {
                slot.copy_from_slice(&nsid.to_le_bytes());
            }
        }
        None => page[..4].fill(0xff),
    }
    page
}

/// The header of the page of asymmetric access: `count` groups follow. Source: NVM Express base
/// 1.4, "Asymmetric Namespace Access"; reference 10.1.10.
#[must_use]
pub fn ana_header(changes: u64, count: u16) -> [u8; 16] {
    let mut header = [0; 16];
    put(&mut header, 0, &changes.to_le_bytes());
    put(&mut header, 8, &count.to_le_bytes());
    header
}

/// A group of that page, with the namespaces that are listed.
#[must_use]
pub fn ana_group(group: u32, nsids: &[u32], changes: u64, state: u8) -> Vec<u8> {
    let mut page = vec![0; 32];
    put(&mut page, 0, &group.to_le_bytes());
    put(&mut page, 4, &(nsids.len() as u32).to_le_bytes());
    put(&mut page, 8, &changes.to_le_bytes());
    put(&mut page, 16, &[state]);
    page.extend(nsids.iter().flat_map(|nsid| nsid.to_le_bytes()));
    page
}

/// The page of a notification of reservations: its number, its kind, how many follow, and the
/// namespace. Source: NVM Express base 1.4, "Reservation Notification Log Page".
#[must_use]
pub fn reservation(count: u64, kind: u8, following: u8, nsid: u32) -> [u8; 64] {
    let mut page = [0; 64];
    put(&mut page, 0, &count.to_le_bytes());
    put(&mut page, 8, &[kind, following]);
    put(&mut page, 12, &nsid.to_le_bytes());
    page
}

/// A subsystem, as the discovery log tells of it.
#[derive(Debug, Clone, Copy)]
pub struct DiscoveryEntry<'a> {
    /// Its name.
    pub subnqn: &'a str,
    /// Where it is reached.
    pub address: IpAddr,
    /// The port there.
    pub service: u16,
    /// Number of the port of the target.
    pub portid: u16,
    /// Whether it is this discovery service itself.
    pub is_discovery: bool,
}

impl DiscoveryEntry<'_> {
    /// The entry. Source: NVM Express base, "Discovery Log Page Entry"; reference 10.1.7.
    #[must_use]
    pub fn encode(&self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        let mut entry = [0; DISCOVERY_ENTRY_BYTES];
        entry[0] = 1; // TRTYPE: RDMA
        entry[1] = if self.address.is_ipv4() { 1 } else { 2 };
        entry[2] = if self.is_discovery { 3 } else { 2 };
        entry[3] = 1 << 2; // TREQ: flow control can be off.
        put(&mut entry, 4, &self.portid.to_le_bytes());
        put(&mut entry, 6, &[0xff, 0xff]);
        put(&mut entry, 8, &super::connect::ADMIN_ENTRIES.to_le_bytes());
        // EFLAGS of this service itself: it reports changes to connections that stay.
        put(&mut entry, 10, &(if self.is_discovery { 3u16 } else { 0 }).to_le_bytes());
        put_text(&mut entry, 32, 32, &self.service.to_string(), b' ');
        put_text(&mut entry, 256, 256, self.subnqn, 0);
        put_text(&mut entry, 512, 256, &self.address.to_string(), b' ');
        entry[768] = 1; // Reliable connections,
        entry[769] = 4; // RoCEv2,
        entry[770] = 1; // by the RDMA connection manager.
        entry
    }
}

/// Writes the header of the discovery log.
#[must_use]
pub fn discovery_header(generation: u64, records: u64) -> [u8; DISCOVERY_ENTRY_BYTES] {
    let mut header = [0; DISCOVERY_ENTRY_BYTES];
    put(&mut header, 0, &generation.to_le_bytes());
    put(&mut header, 8, &records.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discovery_entry_has_the_bytes_of_the_table() {
        let entry = DiscoveryEntry {
            subnqn: "nqn.2014-08.a:s",
            address: IpAddr::from([10, 0, 0, 1]),
            service: 4420,
            portid: 1,
            is_discovery: false,
        };
        let bytes = entry.encode();
        assert_eq!(bytes[..12], [1, 1, 2, 4, 1, 0, 0xff, 0xff, 32, 0, 0, 0]);
        assert_eq!(&bytes[32..40], b"4420    ");
        assert_eq!(&bytes[256..272], b"nqn.2014-08.a:s\0");
        assert_eq!(&bytes[512..522], b"10.0.0.1  ");
        assert_eq!(bytes[768..772], [1, 4, 1, 0]);
        let header = discovery_header(5, 2);
        assert_eq!(header[..18], [5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn an_error_entry_has_the_bytes_of_the_table() {
        let entry = ErrorEntry { count: 1, sqid: 2, cid: 3, status: 0x8100, lba: 4, nsid: 5 };
        let expected = [
            1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0x81, 0xff, 0xff, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0,
            0, 0,
        ];
        assert_eq!(entry.encode()[..28], expected);
    }

    #[test]
    fn effects_name_the_commands() {
        let page = effects();
        assert_eq!(page[4 * 6], 1, "Identify");
        assert_eq!(page[1024 + 4], 3, "Write");
        assert_eq!(page[1024 + 8], 1, "Read");
        assert_eq!(page[1024 + 4 * 0x19], 0, "no Copy");
    }

    #[test]
    fn health_counts_thousands_of_blocks() {
        let traffic = Traffic { bytes_read: 512_001, reads: 3, errors: 9, ..Traffic::default() };
        let page = traffic.smart(120, 7, 8);
        assert_eq!((page[32], page[64], page[128], page[160], page[176]), (2, 3, 2, 7, 8));
    }
}
