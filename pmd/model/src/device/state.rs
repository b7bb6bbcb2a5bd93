//! What all parts of the device share, and what one step of it works with.

use ferrocx_bus::local::{DeviceSide, DmaView};
use ferrocx_prm::init_seg::uar;
use ferrocx_prm::syndrome::HealthSyndrome;

use super::caps::{self, Caps};
use super::config::{MIN_MEMORY_BYTES, NicConfig};
use super::fault::FaultPlan;
use super::health;
use super::log::{Refusal, RefusalLog};
use super::pages::Pages;
use super::port::Port;
use crate::objects::{Budget, Objects};

/// Stage of bring-up. Source: reference 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HcaState {
    /// After power-on or DISABLE_HCA.
    Disabled = 0,
    /// After ENABLE_HCA or TEARDOWN_HCA.
    Enabled = 1,
    /// After INIT_HCA.
    Initialized = 2,
}

/// Exact counts of what the device was asked to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Register writes that left an event behind.
    pub bar_writes: u64,
    /// Commands fetched.
    pub commands: u64,
    /// Send doorbells seen.
    pub send_doorbells: u64,
    /// CQ doorbells seen.
    pub cq_doorbells: u64,
    /// EQ doorbells seen.
    pub eq_doorbells: u64,
    /// Event queue entries written.
    pub events: u64,
    /// Function-level resets done.
    pub resets: u64,
}

/// Facts that the driver told of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DriverInfo {
    /// Interface step set by SET_ISSI.
    pub issi: u32,
    /// Text of SET_DRIVER_VERSION.
    pub version: String,
    /// Content of the HOST_ENDIANNESS register: 0 little, 0x80 big.
    pub endianness: u32,
    /// Text of the NODE_DESC register.
    pub node_desc: Vec<u8>,
}

impl DriverInfo {
    fn new(config: &NicConfig) -> Self {
        Self { node_desc: config.node_desc.clone().into_bytes(), ..Self::default() }
    }
}

/// State that all parts of the device share.
#[derive(Debug)]
pub struct State {
    /// Kind of device, as configured.
    pub config: NicConfig,
    /// Stage of bring-up.
    pub hca: HcaState,
    /// The driver's objects went by force: it may still ring the doorbells that it had.
    pub was_forced_down: bool,
    /// Facts that the driver told of itself.
    pub driver: DriverInfo,
    /// Capability pages.
    pub caps: Caps,
    /// Memory that everything below may take, and what it takes.
    pub budget: Budget,
    /// Pages lent by the host.
    pub pages: Pages,
    /// I/O address of the first byte of the device's own memory, where the BAR has room for it.
    pub memory_iova: Option<u64>,
    /// Everything the driver created.
    pub objects: Objects,
    /// Port and vport.
    pub port: Port,
    /// Health syndrome, 0 while healthy.
    pub syndrome: HealthSyndrome,
    /// Log of refusals.
    pub log: RefusalLog,
    /// Plan of what will go wrong.
    pub faults: FaultPlan,
    /// Counts of what was done.
    pub counters: Counters,
}

impl State {
    pub(crate) fn new(config: NicConfig) -> Self {
        let budget = Budget::new(config.memory_bytes.max(MIN_MEMORY_BYTES));
        Self {
            hca: HcaState::Disabled,
            was_forced_down: false,
            driver: DriverInfo::new(&config),
            caps: Caps::new(&config),
            pages: Pages::new(&budget),
            memory_iova: None,
            objects: Objects::new(caps::object_limits(), &budget),
            budget,
            port: Port::new(&config),
            syndrome: HealthSyndrome::HEALTHY,
            log: RefusalLog::default(),
            faults: FaultPlan::default(),
            counters: Counters::default(),
            config,
        }
    }

    /// Forgets everything the driver created.
    pub(crate) fn drop_objects(&mut self) {
        let generation = self.objects.steering_generation + 1;
        self.objects = Objects::new(caps::object_limits(), &self.budget);
        self.objects.steering_generation = generation;
    }

    /// Pages that the firmware cannot do without in its present state.
    pub(crate) fn pages_in_use(&self) -> usize {
        let config = &self.config;
        match self.hca {
            HcaState::Initialized => (config.boot_pages + config.init_pages) as usize,
            HcaState::Disabled | HcaState::Enabled => 0,
        }
    }

    /// Writes the health buffer.
    pub(crate) fn publish_health(&self, side: &DeviceSide) {
        health::publish(side, self.config.identity, self.syndrome);
    }

    /// A function-level reset. The wire, the fault plan, the log and the counters stay: they are
    /// not inside the function.
    pub(crate) fn reset(&mut self) {
        let carrier = self.port.carrier;
        let counters = self.port.counters;
        self.port = Port::new(&self.config);
        self.port.carrier = carrier;
        self.port.counters = counters;
        self.drop_objects();
        self.hca = HcaState::Disabled;
        self.was_forced_down = false;
        self.driver = DriverInfo::new(&self.config);
        self.caps.reset(&self.config);
        self.pages = Pages::new(&self.budget);
        self.syndrome = HealthSyndrome::HEALTHY;
        self.counters.resets += 1;
    }
}

/// Device, memory and time that one step works with.
pub struct Ctx<'a> {
    /// Registers and interrupts.
    pub side: &'a DeviceSide,
    /// Host memory by I/O address.
    pub mem: &'a DmaView<'a>,
    /// The device's state.
    pub state: &'a mut State,
    /// Device time in nanoseconds, as given to [`crate::Nic::step`].
    pub now_ns: u64,
}

impl Ctx<'_> {
    /// Whether the device has done enough for one step: the rest is for the next ones.
    #[inline]
    pub(crate) fn is_turn_over(&self) -> bool {
        self.state.objects.mkeys.is_turn_over(self.mem)
    }

    /// Records that the data path or a register refused something.
    #[cold]
    pub fn refuse_data(&mut self, field: &'static str, value: u64, why: &'static str) {
        self.state.log.push(Refusal { command: None, field, value, why });
    }

    /// The device reports that it is ill, in the health buffer. The first report stays.
    #[cold]
    pub fn health(&mut self, syndrome: HealthSyndrome) {
        if self.state.syndrome == HealthSyndrome::HEALTHY {
            self.state.syndrome = syndrome;
            self.state.publish_health(self.side);
        }
    }

    /// Clears the doorbell registers of a UAR page.
    pub(crate) fn clear_uar(&self, page: u32) {
        for register in (0..uar::PAGE_BYTES).step_by(8) {
            let _ = self.side.uar_take(page, register);
        }
    }
}
