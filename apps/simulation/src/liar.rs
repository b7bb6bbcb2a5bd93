//! A device that lies in its registers, for a while.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ferrocx_bus::{Bar, BlueFlame, BusError, Doorbell};
use ferrocx_prm::init_seg::offset;

use crate::planted::{Bug, Planted};
use crate::world::lock;

/// What is read instead of the truth.
#[derive(Debug, Default)]
pub(crate) struct Lies {
    /// Words of registers, by offset.
    pub(crate) registers: BTreeMap<u64, u32>,
    pub(crate) planted: Planted,
    /// What the registers of a working device read as, and commands so far.
    seen: BTreeMap<u64, u32>,
    commands: u64,
}

impl Lies {
    pub(crate) fn new(planted: Planted) -> Self {
        Self { planted, ..Self::default() }
    }
}

/// Registers, of which some are not what the device says.
#[derive(Debug)]
pub(crate) struct LyingBar {
    truth: Arc<dyn Bar>,
    lies: Arc<Mutex<Lies>>,
}

impl LyingBar {
    pub(crate) fn new(truth: Arc<dyn Bar>, lies: Arc<Mutex<Lies>>) -> Self {
        Self { truth, lies }
    }
}

impl Bar for LyingBar {
    fn len_bytes(&self) -> u64 {
        self.truth.len_bytes()
    }

    fn read_be32(&self, offset: u64) -> u32 {
        let mut lies = lock(&self.lies);
        if let Some(lie) = lies.registers.get(&offset) {
            return *lie;
        }
        let truth = self.truth.read_be32(offset);
        if lies.planted.is(Bug::DeafDriver) && lies.commands > 200 {
            return *lies.seen.entry(offset).or_insert(truth);
        }
        truth
    }

    fn write_be32(&self, at: u64, value: u32) {
        if at == offset::COMMAND_DOORBELL {
            let mut lies = lock(&self.lies);
            lies.commands += 1;
            if lies.planted.is(Bug::LostDoorbell) && lies.commands.is_multiple_of(150) {
                return;
            }
        }
        self.truth.write_be32(at, value);
    }

    fn write_be64(&self, offset: u64, value: u64) {
        self.truth.write_be64(offset, value);
    }

    fn doorbell(&self, offset: u64) -> Result<Doorbell, BusError> {
        self.truth.doorbell(offset)
    }

    fn blueflame(&self, offset: u64, buffer_bytes: u64) -> Result<Option<BlueFlame>, BusError> {
        self.truth.blueflame(offset, buffer_bytes)
    }
}
