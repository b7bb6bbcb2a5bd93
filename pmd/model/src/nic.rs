//! The device as a whole: state, and one step of it.

use ferrocx_bus::local::{DeviceSide, DmaView};
use ferrocx_prm::syndrome::HealthSyndrome;

use crate::config::NicConfig;
use crate::datapath::DataPath;
use crate::log::{Refusal, RefusalLog};
use crate::objects::Objects;
use crate::port::Port;

/// What all parts of the device share.
#[derive(Debug)]
pub struct State {
    /// What kind of device this is.
    pub config: NicConfig,
    /// Everything the driver created.
    pub objects: Objects,
    /// Port and vport.
    pub port: Port,
    /// What was refused.
    pub log: RefusalLog,
    /// Health syndrome, 0 while healthy.
    pub syndrome: HealthSyndrome,
}

/// What one step of the device works with.
pub struct Ctx<'a> {
    /// Registers and interrupts.
    pub side: &'a DeviceSide,
    /// Host memory by I/O address.
    pub mem: &'a DmaView<'a>,
    /// Everything else.
    pub state: &'a mut State,
    /// Device time in nanoseconds, as given to [`Nic::step`].
    pub now_ns: u64,
}

impl Ctx<'_> {
    /// Records that the data path or a register refused something.
    #[cold]
    pub fn refuse_data(&mut self, field: &'static str, value: u64, why: &'static str) {
        self.state.log.push(Refusal { command: None, field, value, why });
    }

    /// The device reports that it is ill, in the health buffer.
    #[cold]
    pub fn health(&mut self, syndrome: HealthSyndrome) {
        self.state.syndrome = syndrome;
    }
}

/// A software ConnectX.
///
/// It has no thread, clock or randomness of its own: everything happens inside [`Nic::step`].
#[derive(Debug)]
pub struct Nic {
    side: DeviceSide,
    state: State,
    datapath: DataPath,
}
