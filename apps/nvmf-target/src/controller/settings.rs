//! [`Settings`]: sizes that hosts are told.

use std::time::Duration;

/// Sizes that hosts are told. They must stay the same over a restart: hosts keep what they saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Entries of an I/O queue: 16 to 1024.
    pub entries: u16,
    /// Bytes of data in a command capsule: 4096 to 16384.
    pub in_capsule_bytes: u32,
    /// log2 of the largest transfer in pages of 4 KiB: 1 to 8. Hosts are told it as MDTS, of which
    /// 0 is no limit. Source: reference 10.2.4.
    pub mdts: u8,
    /// I/O queues of a controller: 1 to 128.
    pub io_queues: u16,
    /// Controllers at a time, discovery's among them, a quarter at most: 1 to 4096.
    pub controllers: u16,
    /// Of these, those of one address: 1 to all; 0 for three quarters.
    pub controllers_per_address: u16,
    /// How long a host may be silent: the longest keep-alive time that it can have, and what one
    /// without has.
    pub silence: Duration,
    /// Number of the first controller: random, so that no host that knew an earlier run of the
    /// target finds somebody else's.
    pub first_cntlid: u16,
    /// The port for I/O that the discovery log names.
    pub service: u16,
}

/// Bytes of a page of an admin queue: the most that a command of it brings without a buffer that
/// all queues of a core share.
pub(crate) const ADMIN_PAGE_BYTES: usize = 16 << 10;

impl Default for Settings {
    fn default() -> Self {
        Self {
            entries: 128,
            in_capsule_bytes: 4096,
            mdts: 8,
            io_queues: 16,
            controllers: 64,
            controllers_per_address: 0,
            silence: Duration::from_secs(3600),
            first_cntlid: 1,
            service: 4420,
        }
    }
}

impl Settings {
    /// Bytes of the largest transfer.
    ///
    /// # Panics
    ///
    /// [`Settings::mdts`] is not 1 to 8.
    #[must_use]
    pub fn max_transfer(&self) -> u32 {
        let mdts = self.mdts;
        assert!((1..=8).contains(&mdts), "mdts is {mdts}; give 1 to 8, since 0 is no limit");
        4096 << mdts
    }

    /// The same as an exponent, of discovery's controllers: what they bring fits into a page of
    /// their own queue, since nobody has to show anything to have one.
    pub(super) fn discovery_mdts(&self) -> u8 {
        self.mdts.min(ADMIN_PAGE_BYTES.ilog2() as u8 - 12)
    }

    /// The longest keep-alive time that a host can have.
    pub(super) fn longest_silence_ms(&self) -> u32 {
        u32::try_from(self.silence.as_millis()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "mdts is 0; give 1 to 8")]
    fn hosts_are_told_of_a_limit() {
        let _ = Settings { mdts: 0, ..Settings::default() }.max_transfer();
    }
}
