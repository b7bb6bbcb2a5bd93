//! What a drive says of itself and of its namespaces, checked.

use zerocopy::FromBytes;
use zerocopy::little_endian::{U16, U32};

use crate::NvmeError;

/// Bytes of an answer to Identify.
pub(crate) const IDENTIFY_BYTES: usize = 4096;
/// The longest transfer that one page of entries describes, whatever the drive could do.
pub(crate) const MOST_BYTES: u64 = 2 << 20;

/// Optional commands of a drive. Source: reference 12.4.
const ONCS_DATASET: u16 = 1 << 2;
const ONCS_WRITE_ZEROES: u16 = 1 << 3;

/// The version from which on drives say what one command of the NVM command set takes: 2.0. Earlier
/// ones are not asked, for what they do not know may be worse than an error to them.
const SAYS_LIMITS: u32 = 0x0002_0000;

/// A drive, as it describes itself. Source: reference 12.4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// PCI vendor id.
    pub vendor: u16,
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Firmware.
    pub firmware: String,
    /// Largest namespace number.
    pub namespaces: u32,
    /// Version of the specification that it follows: major in bits 31:16, minor in 15:8.
    pub version: u32,
    /// Bytes of the longest transfer of one command.
    pub max_transfer: u64,
    /// Bytes of the longest Write Zeroes.
    pub max_zeroes: u64,
    /// Blocks of the longest range of one Dataset Management.
    pub max_deallocate: u64,
    /// Whether it has Write Zeroes.
    pub has_write_zeroes: bool,
    /// Whether it has Dataset Management, which deallocates.
    pub has_deallocate: bool,
    /// Whether writes may lie in a cache that power-off empties, so that Flush means something.
    pub has_cache: bool,
    /// How long its shutdown may take, in microseconds (RTD3E); 0 if it does not say.
    pub shutdown_us: u32,
    /// Whether commands of I/O may describe their data by SGLs.
    pub has_sgl: bool,
}

/// A namespace of a drive. Source: reference 12.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Namespace {
    /// Its number.
    pub nsid: u32,
    /// Its blocks.
    pub blocks: u64,
    /// log2 of the bytes of a block: 9 to 12.
    pub block_shift: u8,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_owned()
}

fn u16_at(page: &[u8; IDENTIFY_BYTES], at: usize) -> u16 {
    U16::read_from_prefix(&page[at..]).map_or(0, |(value, _)| value.get())
}

fn u32_at(page: &[u8; IDENTIFY_BYTES], at: usize) -> u32 {
    U32::read_from_prefix(&page[at..]).map_or(0, |(value, _)| value.get())
}

fn u64_at(page: &[u8; IDENTIFY_BYTES], at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

impl ControllerInfo {
    /// What Identify Controller answered.
    pub(crate) fn parse(name: &str, page: &[u8; IDENTIFY_BYTES]) -> Result<Self, NvmeError> {
        // The least and the most of log2 of an entry's bytes, a nibble each.
        for (what, at, log) in [("SQES", 512, 6), ("CQES", 513, 4)] {
            let value = page[at];
            if value & 0xf > log || value >> 4 < log {
                let (name, value) = (name.to_owned(), u64::from(value));
                return Err(NvmeError::Lies { name, what, value });
            }
        }
        let mdts = page[77];
        let max_transfer = match mdts {
            0 | 9.. => MOST_BYTES,
            _ => 4096 << mdts,
        };
        let max_transfer = max_transfer.min(MOST_BYTES);
        let oncs = u16_at(page, 520);
        Ok(Self {
            vendor: u16_at(page, 0),
            serial: text(&page[4..24]),
            model: text(&page[24..64]),
            firmware: text(&page[64..72]),
            namespaces: u32_at(page, 516),
            version: u32_at(page, 80),
            max_transfer,
            max_zeroes: max_transfer,
            max_deallocate: u32::MAX.into(),
            has_write_zeroes: oncs & ONCS_WRITE_ZEROES != 0,
            has_deallocate: oncs & ONCS_DATASET != 0,
            has_cache: page[525] & 1 != 0,
            shutdown_us: u32_at(page, 88),
            // 1: with any alignment, 2: of dwords, which is what is asked for here.
            has_sgl: matches!(u32_at(page, 536) & 3, 1 | 2),
        })
    }

    /// Whether it says what one command of the NVM command set takes.
    pub(crate) fn says_limits(&self) -> bool {
        self.version >= SAYS_LIMITS
    }

    /// Whether it is the drive that it was before a reset, and does for queues that were made then.
    /// Its firmware may be another, which counts from a reset on, and with it the version, what it
    /// says of its shutdown, and what more it can do.
    pub(crate) fn does_for(&self, before: &Self) -> bool {
        let is_same = (self.vendor, self.namespaces) == (before.vendor, before.namespaces)
            && (&self.serial, &self.model) == (&before.serial, &before.model);
        let limits = |it: &Self| [it.max_transfer, it.max_zeroes, it.max_deallocate];
        let can = |it: &Self| {
            // A queue of a drive that had no cache sends no Flush.
            let has_none = !it.has_cache;
            [it.has_write_zeroes, it.has_deallocate, it.has_sgl, has_none]
        };
        is_same
            && limits(self).iter().zip(limits(before)).all(|(now, then)| *now >= then)
            && can(self).iter().zip(can(before)).all(|(now, then)| *now || !then)
    }

    /// Takes in what Identify Controller of the NVM command set answered: of each limit 0 is none.
    ///
    /// # Source
    ///
    /// Reference 12.4: WZSL, DMRSL, DMSL of CNS 6.
    pub(crate) fn limit(&mut self, page: &[u8; IDENTIFY_BYTES]) {
        let wzsl = page[1];
        if (1..=8).contains(&wzsl) {
            self.max_zeroes = self.max_zeroes.min(4096 << wzsl);
        }
        // Of a range, and of all ranges of a command, which are one here.
        for most in [u64::from(u32_at(page, 4)), u64_at(page, 8)] {
            if most > 0 {
                self.max_deallocate = self.max_deallocate.min(most);
            }
        }
    }
}

impl Namespace {
    /// What Identify Namespace answered.
    pub(crate) fn parse(
        drive: &str,
        (nsid, most): (u32, u32),
        page: &[u8; IDENTIFY_BYTES],
    ) -> Result<Self, NvmeError> {
        let name = drive.to_owned();
        let blocks = u64_at(page, 0);
        if blocks == 0 {
            return Err(NvmeError::NoNamespace { name, nsid, most });
        }
        let flbas = page[26];
        // Bits 6:5 go on with the number where there are more than 16 formats.
        let format = usize::from(flbas & 0xf | (flbas >> 5 & 3) << 4);
        if format > usize::from(page[25]).min(63) {
            let (what, value) = ("FLBAS", u64::from(flbas));
            return Err(NvmeError::Lies { name, what, value });
        }
        let at = 128 + 4 * format;
        let (metadata, block_shift) = (u16_at(page, at), page[at + 2]);
        let unsupported = |what, value, needs| {
            Err(NvmeError::Unsupported { name: drive.into(), what, value, needs })
        };
        if metadata != 0 {
            return unsupported("metadata of a block in bytes", u64::from(metadata), "none");
        }
        if page[29] & 7 != 0 {
            return unsupported("type of protection information", u64::from(page[29] & 7), "none");
        }
        if !(9..=12).contains(&block_shift) {
            return unsupported("log2 of a block's bytes", u64::from(block_shift), "9 to 12");
        }
        // So that no number of bytes overflows.
        if blocks > u64::MAX >> 16 {
            return Err(NvmeError::Lies { name, what: "NSZE", value: blocks });
        }
        Ok(Self { nsid, blocks, block_shift })
    }

    /// Its bytes; of a drive that says what cannot be, the most that there are.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.blocks.saturating_mul(1 << self.block_shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> [u8; IDENTIFY_BYTES] {
        let mut page = [0; IDENTIFY_BYTES];
        page[..8].copy_from_slice(&0x1_0000_0001_u64.to_le_bytes());
        (page[25], page[26]) = (1, 1);
        page[128 + 4 + 2] = 12;
        page
    }

    #[test]
    fn a_namespace_is_what_its_format_says() {
        let found = Namespace::parse("d", (3, 4), &namespace()).unwrap();
        assert_eq!(found, Namespace { nsid: 3, blocks: 0x1_0000_0001, block_shift: 12 });
        assert_eq!(found.len_bytes(), 0x1000_0000_1000);
    }

    #[test]
    fn what_cannot_be_or_cannot_be_used_is_named() {
        type Change = fn(&mut [u8; IDENTIFY_BYTES]);
        let cases: [(&str, Change); 6] = [
            ("no active namespace 3; it has numbers 1 to 4", |page| page[..8].fill(0)),
            ("FLBAS is 0x2", |page| page[26] = 2),
            ("metadata of a block in bytes is 8", |page| page[132] = 8),
            ("type of protection information is 1", |page| page[29] = 1),
            ("log2 of a block's bytes is 13", |page| page[134] = 13),
            ("NSZE is 0xffffffffffffffff", |page| page[..8].fill(0xff)),
        ];
        for (says, change) in cases {
            let mut page = namespace();
            change(&mut page);
            let error = Namespace::parse("d", (3, 4), &page).unwrap_err().to_string();
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn a_drive_is_what_it_says() {
        let mut page = [0; IDENTIFY_BYTES];
        page[..2].copy_from_slice(&[0x36, 0x1b]);
        page[4..24].copy_from_slice(b"serial              ");
        page[24..30].copy_from_slice(b"model ");
        page[77] = 7;
        page[80..84].copy_from_slice(&[0, 4, 1, 0]);
        (page[512], page[513]) = (0x66, 0x44);
        page[516] = 5;
        page[520] = 1 << 3;
        page[525] = 7;
        page[536] = 1;
        let info = ControllerInfo::parse("d", &page).unwrap();
        let expected = ControllerInfo {
            vendor: 0x1b36,
            serial: "serial".into(),
            model: "model".into(),
            firmware: String::new(),
            namespaces: 5,
            version: 0x0001_0400,
            max_transfer: 512 << 10,
            max_zeroes: 512 << 10,
            max_deallocate: 0xffff_ffff,
            has_write_zeroes: true,
            has_deallocate: false,
            has_cache: true,
            shutdown_us: 0,
            has_sgl: true,
        };
        assert_eq!(info, expected);
        for (mdts, expected) in [(0, 2 << 20), (1, 8192), (9, 2 << 20), (255, 2 << 20)] {
            page[77] = mdts;
            assert_eq!(ControllerInfo::parse("d", &page).unwrap().max_transfer, expected);
        }
        for (at, value) in [(512, 0x67), (512, 0x55), (513, 0x55), (513, 0x33)] {
            let mut page = page;
            page[at] = value;
            assert!(ControllerInfo::parse("d", &page).is_err(), "{at} {value:#x}");
        }
    }

    #[test]
    fn a_drive_with_other_firmware_is_the_same_and_one_that_can_less_is_not() {
        let mut page = [0; IDENTIFY_BYTES];
        (page[512], page[513], page[77]) = (0x66, 0x44, 3);
        (page[520], page[525], page[536]) = (0x0c, 1, 1);
        let before = ControllerInfo::parse("d", &page).unwrap();
        type Change = fn(&mut ControllerInfo);
        let same: [Change; 6] = [
            |it| it.firmware = "2".into(),
            |it| it.version = SAYS_LIMITS,
            |it| it.shutdown_us = 9,
            |it| it.max_transfer *= 2,
            |it| it.max_zeroes += 1,
            |it| it.has_cache = false,
        ];
        let other: [Change; 10] = [
            |it| it.vendor = 1,
            |it| it.serial = "2".into(),
            |it| it.model = "2".into(),
            |it| it.namespaces += 1,
            |it| it.max_transfer /= 2,
            |it| it.max_zeroes -= 1,
            |it| it.max_deallocate -= 1,
            |it| it.has_write_zeroes = false,
            |it| it.has_deallocate = false,
            |it| it.has_sgl = false,
        ];
        let does = |change: &Change| {
            let mut now = before.clone();
            change(&mut now);
            now.does_for(&before)
        };
        assert!(before.does_for(&before) && same.iter().all(does) && !other.iter().any(does));
        let without_cache = ControllerInfo { has_cache: false, ..before.clone() };
        assert!(!before.does_for(&without_cache));
    }

    #[test]
    fn limits_of_a_command_are_those_that_are_said() {
        let mut page = [0; IDENTIFY_BYTES];
        (page[512], page[513], page[77]) = (0x66, 0x44, 3);
        let of = |version: [u8; 4]| {
            page[80..84].copy_from_slice(&version);
            ControllerInfo::parse("d", &page).unwrap()
        };
        let [old, new] = [[0, 4, 1, 0], [0, 0, 2, 0]].map(of);
        assert!(!old.says_limits() && new.says_limits());
        for (wzsl, dmrsl, dmsl, expected) in [
            (0, 0, 0, (32 << 10, u32::MAX.into())),
            (1, 9, 0, (8192, 9)),
            (3, 9, 8, (32 << 10, 8)),
            (4, 0, 7, (32 << 10, 7)),
            (255, u32::MAX, u64::MAX, (32 << 10, u32::MAX.into())),
        ] {
            let mut page = [0; IDENTIFY_BYTES];
            page[1] = wzsl;
            page[4..8].copy_from_slice(&dmrsl.to_le_bytes());
            page[8..16].copy_from_slice(&dmsl.to_le_bytes());
            let mut info = new.clone();
            info.limit(&page);
            assert_eq!((info.max_zeroes, info.max_deallocate), expected, "WZSL {wzsl}");
        }
    }
}
