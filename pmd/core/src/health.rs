//! Whether the device is alive: the init segment's health buffer, health counter and NIC state.

use std::time::{Duration, Instant};

use ferrocx_bus::{Bar, Notice};
use ferrocx_prm::init_seg::offset;
use ferrocx_prm::init_seg::{HealthBuffer, HealthCounter, InitSegment, Initializing, NicInterface};
use ferrocx_prm::syndrome::HealthSyndrome;

use crate::cmd::status::DeadDevice;

/// Equal readings of the health counter in a row before it counts as stopped. Source: reference
/// 1.2 (Linux: three).
const STALLED_AFTER: u32 = 3;
/// Least time between two readings that are compared. Source: reference 1.2 (Linux: about 2 s).
pub const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// What one look at the device's health found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthReport {
    /// `None` while the device answers; else how it died.
    pub dead: Option<DeadDevice>,
    /// What the firmware says about itself.
    pub syndrome: HealthSyndrome,
    /// Further detail from the firmware.
    pub ext_syndrome: u16,
    /// The counter that changes while the firmware lives.
    pub counter: u32,
    /// What the kernel says about the device; a removal is no reason for an unorderly end.
    pub notice: Option<Notice>,
    /// The counter stood still over several intervals: the firmware hangs, though it is not dead.
    pub stalled: bool,
}

impl HealthReport {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.dead.is_none()
            && self.syndrome == HealthSyndrome::HEALTHY
            && self.notice.is_none()
            && !self.stalled
    }
}

/// Remembers the last readings of the health counter.
#[derive(Debug)]
pub(crate) struct HealthMonitor {
    interval: Duration,
    /// The command queue's address as the registers showed it once the device was ready.
    queue_shown: Option<u64>,
    last: Option<(Instant, u32)>,
    equal: u32,
}

impl HealthMonitor {
    pub(crate) fn new(interval: Duration, queue_shown: Option<u64>) -> Self {
        Self { interval, queue_shown, last: None, equal: 0 }
    }

    /// Looks once. Readings closer together than the interval are not compared.
    pub(crate) fn look(
        &mut self,
        bar: &dyn Bar,
        notice: Option<Notice>,
        now: Instant,
    ) -> HealthReport {
        // The kernel knows better than the registers, which only show what came of it.
        let failed = (notice == Some(Notice::BusError)).then_some(DeadDevice::BusError);
        let dead = failed.or_else(|| probe(bar, self.queue_shown));
        let buffer = read_buffer(bar);
        let word = HealthCounter(bar.read_be32(offset::HEALTH_COUNTER).to_be_bytes());
        let counter = word.health_counter();
        match self.last {
            Some((at, _)) if now.saturating_duration_since(at) < self.interval => {}
            Some((_, previous)) => {
                self.equal = if previous == counter { self.equal + 1 } else { 0 };
                self.last = Some((now, counter));
            }
            None => self.last = Some((now, counter)),
        }
        HealthReport {
            dead,
            syndrome: HealthSyndrome(buffer.synd() as u8),
            ext_syndrome: buffer.ext_synd() as u16,
            counter,
            notice,
            stalled: self.equal >= STALLED_AFTER,
        }
    }
}

/// The command queue's address as the registers show it.
pub(crate) fn queue_shown(bar: &dyn Bar) -> u64 {
    let (high, low) = (bar.read_be32(offset::CMDQ_ADDR_HI), bar.read_be32(offset::CMDQ_ADDR_LO));
    u64::from(high) << 32 | u64::from(low & InitSegment::CMDQ_PHY_ADDR_31_12.mask())
}

/// Looks for a sign that the device cannot answer any more. A few register reads.
///
/// `shown` is what [`queue_shown`] said when the device was ready. A reset, whoever asked for it,
/// clears the address, and may be over before anyone sees the firmware start.
pub(crate) fn probe(bar: &dyn Bar, shown: Option<u64>) -> Option<DeadDevice> {
    let fw_ver = offset::HEALTH_BUFFER + HealthBuffer::FW_VER.offset as u64;
    let is_gone = || bar.read_be32(fw_ver) == u32::MAX;
    if is_gone() {
        return Some(DeadDevice::AllOnes);
    }
    let cause = cause_of_death(bar, shown)?;
    // One that vanished between two reads shows ones in every field, which mean something else.
    Some(if is_gone() { DeadDevice::AllOnes } else { cause })
}

/// What the registers of a device that answers say.
fn cause_of_death(bar: &dyn Bar, shown: Option<u64>) -> Option<DeadDevice> {
    if Initializing(bar.read_be32(offset::INITIALIZING).to_be_bytes()).initializing() {
        return Some(DeadDevice::Restarting);
    }
    let mut words = InitSegment::zeroed();
    InitSegment::NIC_INTERFACE.write_word(&mut words.0, bar.read_be32(offset::CMDQ_ADDR_LO));
    let state = NicInterface(words.nic_interface());
    if state == NicInterface::DISABLED || state == NicInterface::SW_RESET {
        return Some(DeadDevice::Disabled(state.0 as u8));
    }
    let buffer = read_buffer(bar);
    if buffer.rfr() && buffer.synd() != 0 {
        return Some(DeadDevice::ResetRequired(buffer.synd() as u8));
    }
    // A word that was read amiss once is no restart, and ends nothing.
    let changed = |shown| queue_shown(bar) != shown && queue_shown(bar) != shown;
    shown.is_some_and(changed).then_some(DeadDevice::Restarting)
}

/// Reads the words of the health buffer that this driver looks at.
fn read_buffer(bar: &dyn Bar) -> HealthBuffer {
    let mut buffer = HealthBuffer::zeroed();
    for field in [HealthBuffer::FW_VER, HealthBuffer::RFR, HealthBuffer::SYND] {
        let word = bar.read_be32(offset::HEALTH_BUFFER + field.offset as u64);
        field.write_word(&mut buffer.0, word);
    }
    buffer
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use ferrocx_bus::{BusError, Doorbell};

    use super::*;

    /// The registers of a healthy device, all ones after some reads.
    #[derive(Debug)]
    struct Vanishing {
        reads_left: AtomicU64,
    }

    impl Bar for Vanishing {
        fn len_bytes(&self) -> u64 {
            0x4000
        }

        fn read_be32(&self, offset: u64) -> u32 {
            let left = self.reads_left.load(Ordering::Relaxed);
            self.reads_left.store(left.saturating_sub(1), Ordering::Relaxed);
            match (left, offset) {
                (0, _) => u32::MAX,
                (_, offset::CMDQ_ADDR_LO) => 0x8000_0000,
                _ => 0,
            }
        }

        fn write_be32(&self, _: u64, _: u32) {}

        fn write_be64(&self, _: u64, _: u64) {}

        fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
            Err(BusError::NotADoorbell { offset })
        }
    }

    /// The registers of a healthy device, of which one read shows another queue.
    #[derive(Debug)]
    struct Misread(AtomicU64);

    impl Bar for Misread {
        fn len_bytes(&self) -> u64 {
            0x4000
        }

        fn read_be32(&self, _: u64) -> u32 {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 0 { 0x1234_5000 } else { 0 }
        }

        fn write_be32(&self, _: u64, _: u32) {}

        fn write_be64(&self, _: u64, _: u64) {}

        fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
            Err(BusError::NotADoorbell { offset })
        }
    }

    #[test]
    fn a_queue_that_one_read_shows_elsewhere_is_no_restart() {
        assert_eq!(probe(&Misread(AtomicU64::new(u64::MAX)), Some(0)), None);
        for read in 0..12 {
            assert_eq!(probe(&Misread(AtomicU64::new(read)), Some(0)), None, "read {read}");
        }
    }

    #[test]
    fn a_device_that_vanishes_between_two_reads_is_gone_and_nothing_else() {
        let after = |reads_left| Vanishing { reads_left: AtomicU64::new(reads_left) };
        let all = after(u64::MAX);
        let shown = Some(queue_shown(&all));
        assert_eq!((shown, probe(&all, shown)), (Some(0x8000_0000), None));
        let needed = (0..).find(|reads| probe(&after(*reads), shown).is_none()).unwrap();
        assert!(needed > 5, "{needed} reads tell whether it is alive");
        for reads in 0..needed {
            assert_eq!(probe(&after(reads), shown), Some(DeadDevice::AllOnes), "{reads} reads");
        }
        // The same registers, there all the time, mean something else.
        assert_eq!(probe(&all, Some(0x1000)), Some(DeadDevice::Restarting));
    }
}
