//! The registers of a drive, which are little-endian. Source: reference 12.1.

use std::sync::Arc;

use ferrocx_bus::{Bar, BusError};

/// Registers by offset.
const CAP: u64 = 0x00;
const CC: u64 = 0x14;
const CSTS: u64 = 0x1c;
const AQA: u64 = 0x24;
const ASQ: u64 = 0x28;
const ACQ: u64 = 0x30;
/// Where doorbells begin.
const DOORBELLS: u64 = 0x1000;

/// Bits of CC: entries of 64 and 16 bytes, pages of 4 KiB, the NVM command set, enabled.
pub(crate) const CC_ENABLED: u32 = 4 << 20 | 6 << 16 | 1;
/// Bits of CC: an orderly shutdown is wanted.
pub(crate) const CC_SHUTDOWN: u32 = 1 << 14;
/// Bits of CSTS: ready, and failed.
pub(crate) const CSTS_READY: u32 = 1;
pub(crate) const CSTS_FATAL: u32 = 1 << 1;
/// The field of CSTS that says how far a shutdown is, and its end.
pub(crate) const CSTS_SHUTDOWN: u32 = 3 << 2;
pub(crate) const CSTS_IS_SHUT: u32 = 2 << 2;

/// What every register reads as of a drive that has gone, or does not answer yet.
pub(crate) const GONE: u32 = u32::MAX;

/// What a drive can do, as the register CAP says. Source: reference 12.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cap(pub(crate) u64);

impl Cap {
    /// Entries of a queue at most.
    pub(crate) fn max_entries(self) -> u32 {
        (self.0 & 0xffff) as u32 + 1
    }

    /// How long it may take to be ready or no more, in ms.
    pub(crate) fn ready_ms(self) -> u64 {
        (self.0 >> 24 & 0xff) * 500
    }

    /// log2 of the distance of doorbells in words of 4 bytes.
    pub(crate) fn doorbell_stride(self) -> u32 {
        (self.0 >> 32 & 0xf) as u32
    }

    /// Whether it has the NVM command set.
    pub(crate) fn has_nvm(self) -> bool {
        self.0 >> 37 & 1 != 0
    }

    /// log2 of its smallest page in units of 4 KiB.
    pub(crate) fn min_page(self) -> u32 {
        (self.0 >> 48 & 0xf) as u32
    }
}

/// The registers.
#[derive(Debug, Clone)]
pub(crate) struct Registers {
    bar: Arc<dyn Bar>,
}

impl Registers {
    pub(crate) fn new(bar: Arc<dyn Bar>) -> Result<Self, BusError> {
        bar.check(DOORBELLS + 4, 4)?;
        Ok(Self { bar })
    }

    fn read(&self, offset: u64) -> u32 {
        self.bar.read_be32(offset).swap_bytes()
    }

    fn write(&self, offset: u64, value: u32) {
        self.bar.write_be32(offset, value.swap_bytes());
    }

    /// What it can do; all ones of a drive that has gone.
    pub(crate) fn cap(&self) -> Cap {
        Cap(u64::from(self.read(CAP)) | u64::from(self.read(CAP + 4)) << 32)
    }

    pub(crate) fn cc(&self) -> u32 {
        self.read(CC)
    }

    pub(crate) fn set_cc(&self, value: u32) {
        self.write(CC, value);
    }

    pub(crate) fn csts(&self) -> u32 {
        self.read(CSTS)
    }

    /// Says where the admin queues are, of `entries` each.
    pub(crate) fn set_admin(&self, entries: u32, sq: u64, cq: u64) {
        self.write(AQA, (entries - 1) << 16 | (entries - 1));
        self.bar.write_be64(ASQ, sq.swap_bytes());
        self.bar.write_be64(ACQ, cq.swap_bytes());
    }

    /// The doorbells of a queue pair.
    pub(crate) fn doorbells(&self, qid: u16, cap: Cap) -> Result<Doorbells, BusError> {
        let step = 4_u64 << cap.doorbell_stride();
        let sq = DOORBELLS + 2 * u64::from(qid) * step;
        self.bar.check(sq, 4)?;
        self.bar.check(sq + step, 4)?;
        Ok(Doorbells { bar: Arc::clone(&self.bar), sq, cq: sq + step })
    }
}

/// The doorbells of a queue pair, inside the BAR.
#[derive(Debug)]
pub(crate) struct Doorbells {
    bar: Arc<dyn Bar>,
    sq: u64,
    cq: u64,
}

impl Doorbells {
    /// Tells the drive how far its submission queue is filled; entries are in memory before.
    #[inline]
    pub(crate) fn submit(&self, tail: u32) {
        self.bar.write_be32(self.sq, tail.swap_bytes());
    }

    /// Tells the drive how far its completion queue was read.
    #[inline]
    pub(crate) fn consumed(&self, head: u32) {
        self.bar.write_be32(self.cq, head.swap_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked out by hand: 2048 entries, 7.5 s, stride 8 bytes, NVM, pages from 8 KiB.
    #[test]
    fn cap_has_its_fields_where_the_reference_has_them() {
        let cap = Cap(0x0041_0021_0f00_07ff);
        assert_eq!((cap.max_entries(), cap.ready_ms()), (2048, 7500));
        assert_eq!((cap.doorbell_stride(), cap.has_nvm(), cap.min_page()), (1, true, 1));
    }
}
