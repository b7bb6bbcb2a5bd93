//! Registers of a controller, as Property Get and Property Set name them.

/// Offset of the capabilities, 8 bytes.
pub const CAP: u32 = 0x00;
/// Offset of the version, 4 bytes.
pub const VS: u32 = 0x08;
/// Offset of the configuration, 4 bytes.
pub const CC: u32 = 0x14;
/// Offset of the status, 4 bytes.
pub const CSTS: u32 = 0x1c;

/// Version 1.4. Later ones ask for pages that this target does not have. Source: reference 10.2.7.
pub const VERSION: u32 = 0x0001_0400;

/// `CSTS`: the controller is ready.
pub const CSTS_RDY: u32 = 1;
/// `CSTS`: the controller has failed.
pub const CSTS_CFS: u32 = 1 << 1;
/// `CSTS`: how far the shutdown is.
pub const CSTS_SHST: u32 = 3 << 2;
/// `CSTS`: the shutdown is under way.
pub const CSTS_SHST_OCCURRING: u32 = 1 << 2;
/// `CSTS`: the shutdown is done.
pub const CSTS_SHST_COMPLETE: u32 = 2 << 2;

/// `CC`: the controller is to be on.
pub const CC_EN: u32 = 1;

/// Capabilities: `entries` of a queue, contiguous queues, 30 s to get ready or to end what was
/// under way, NVM commands.
///
/// # Source
///
/// NVM Express base, "Controller Capabilities"; reference 10.1.6.
#[must_use]
pub fn capabilities(entries: u16) -> u64 {
    u64::from(entries.saturating_sub(1)) | 1 << 16 | 60 << 24 | 1 << 37
}

/// Whether a configuration can be switched on: NVM commands, pages of 4 KiB, round robin, entries
/// of 64 and 16 bytes. The discovery service has no I/O queues, whose entry sizes do not count.
#[must_use]
pub fn can_enable(cc: u32, is_discovery: bool) -> bool {
    let field = |shift: u32, mask: u32| cc >> shift & mask;
    let sizes = (field(16, 0xf), field(20, 0xf));
    field(4, 0x7) == 0
        && field(7, 0xf) == 0
        && field(11, 0x7) == 0
        && (is_discovery || sizes == (6, 4))
}

/// Whether a configuration asks for a shutdown.
#[must_use]
pub fn asks_for_shutdown(cc: u32) -> bool {
    matches!(cc >> 14 & 3, 1 | 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux 6.12 writes: entries of 64 and 16 bytes, enabled; then a normal shutdown.
    #[test]
    fn the_configuration_of_linux_is_taken() {
        assert!(can_enable(0x0046_0001, false));
        assert!(can_enable(0x0000_0001, true) && !can_enable(0x0000_0001, false));
        for wrong in [0x0046_0011, 0x0046_0081, 0x0046_0801, 0x0045_0001, 0x0036_0001] {
            assert!(!can_enable(wrong, false), "{wrong:#x}");
        }
        assert!(asks_for_shutdown(0x0046_4001) && asks_for_shutdown(0x0046_8001));
        assert!(!asks_for_shutdown(0x0046_0001) && !asks_for_shutdown(0x0046_c001));
        assert_eq!(capabilities(128), 0x0000_0020_3c01_007f);
    }
}
