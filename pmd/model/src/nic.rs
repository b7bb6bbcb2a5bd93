//! The device as a whole: state, and one step of it.

use ferrocx_bus::local::{DeviceSide, DmaView};
use ferrocx_prm::eqe::{EventPageRequest, EventPortChange, EventType, PortChange};
use ferrocx_prm::init_seg::{NicInterface, uar};
use ferrocx_prm::syndrome::HealthSyndrome;

use crate::bar::{self, Registers};
use crate::caps::{self, Caps};
use crate::cmd::{self, CommandQueue};
use crate::config::NicConfig;
use crate::datapath::DataPath;
use crate::fault::{FaultPlan, Moment};
use crate::log::{Refusal, RefusalLog};
use crate::objects::Objects;
use crate::pages::Pages;
use crate::port::Port;

/// How far bring-up has come. Source: reference 3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HcaState {
    /// After power-on or DISABLE_HCA.
    Disabled = 0,
    /// After ENABLE_HCA or TEARDOWN_HCA.
    Enabled = 1,
    /// After INIT_HCA.
    Initialized = 2,
}

/// What the device was asked to do, exactly.
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

/// What all parts of the device share.
#[derive(Debug)]
pub struct State {
    /// What kind of device this is.
    pub config: NicConfig,
    /// How far bring-up has come.
    pub hca: HcaState,
    /// Interface step set by the driver.
    pub issi: u32,
    /// Capability pages.
    pub caps: Caps,
    /// Pages lent by the host.
    pub pages: Pages,
    /// Everything the driver created.
    pub objects: Objects,
    /// Port and vport.
    pub port: Port,
    /// What was refused.
    pub log: RefusalLog,
    /// Health syndrome, 0 while healthy.
    pub syndrome: HealthSyndrome,
    /// What will go wrong.
    pub faults: FaultPlan,
    /// What was done.
    pub counters: Counters,
    /// What the driver called itself.
    pub driver_version: String,
    /// Content of the HOST_ENDIANNESS register: 0 little, 0x80 big.
    pub host_endianness: u32,
    /// Text of the NODE_DESC register.
    pub node_desc: Vec<u8>,
    /// Frames that this port sent to itself, on their way back in.
    pub(crate) looped_back: Vec<Looped>,
    /// Which frames that this port sends may be taken by a TIR of its own.
    pub(crate) loops_back: LoopsBack,
    /// Numbers of the UAR pages that exist, for polling.
    pub(crate) live_uars: Vec<u32>,
    pub(crate) commands: CommandQueue,
    pub(crate) registers: Registers,
    /// The driver wrote a software reset into `nic_interface`.
    pub(crate) reset_asked: bool,
    /// Pages to ask for by event as soon as an EQ takes page requests.
    pub(crate) regular_pages_due: u32,
}

/// A frame that this port sent to itself.
#[derive(Debug)]
pub(crate) struct Looped {
    pub(crate) frame: Vec<u8>,
    /// Transport domain of its sender.
    pub(crate) domain: u32,
}

/// Whose frames may come back to a TIR of this port. Source: Linux 6.12, which loops back
/// between user contexts, each with a transport domain of its own, and within one when its TIR asks
/// for it; rdma-core's tests, which wait for their own multicast frames.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum LoopsBack {
    /// Nobody's.
    #[default]
    Never,
    /// Those of all transport domains but this one.
    Others(u32),
    /// Everybody's.
    All,
}

impl LoopsBack {
    #[inline]
    fn may_take(self, domain: u32) -> bool {
        match self {
            Self::Never => false,
            Self::Others(own) => own != domain,
            Self::All => true,
        }
    }
}

impl State {
    pub(crate) fn new(config: NicConfig) -> Self {
        Self {
            caps: Caps::new(&config),
            port: Port::new(&config),
            node_desc: config.node_desc.clone().into_bytes(),
            host_endianness: 0,
            config,
            hca: HcaState::Disabled,
            issi: 0,
            pages: Pages::default(),
            objects: Objects::new(caps::object_limits()),
            log: RefusalLog::default(),
            syndrome: HealthSyndrome::HEALTHY,
            faults: FaultPlan::default(),
            counters: Counters::default(),
            driver_version: String::new(),
            looped_back: Vec::new(),
            loops_back: LoopsBack::default(),
            live_uars: Vec::new(),
            commands: CommandQueue::default(),
            registers: Registers::default(),
            reset_asked: false,
            regular_pages_due: 0,
        }
    }

    /// Forgets everything the driver created.
    pub(crate) fn drop_objects(&mut self) {
        let generation = self.objects.steering_generation + 1;
        self.objects = Objects::new(caps::object_limits());
        self.objects.steering_generation = generation;
        self.live_uars.clear();
        self.looped_back.clear();
    }

    /// Takes a frame that is to come back to this port instead of going out; `false` sends it out.
    ///
    /// A frame comes back when the vport loops its kind back and a TIR takes it: one of another
    /// transport domain, or one that wants frames of its own domain. Unicast must be for an address
    /// of the vport, and does not go out then; of multicast a copy comes back.
    #[inline]
    pub(crate) fn loop_back(&mut self, frame: &[u8], domain: u32) -> bool {
        if !self.loops_back.may_take(domain) {
            return false;
        }
        let vport = &self.port.vport;
        let is_multicast = frame.first().is_some_and(|first| first & 1 != 0);
        let is_disabled =
            if is_multicast { vport.disable_mc_local_lb } else { vport.disable_uc_local_lb };
        let is_own = |mac: &[u8; 6]| frame.starts_with(mac);
        let is_wanted = is_multicast || is_own(&vport.mac) || vport.unicast.iter().any(is_own);
        if is_disabled || !is_wanted {
            return false;
        }
        // Behind the limit it is lost, as in a switch that has no buffer.
        if self.looped_back.len() < MAX_LOOPED_BACK {
            self.looped_back.push(Looped { frame: frame.to_vec(), domain });
        }
        !is_multicast
    }

    /// Pages that the firmware cannot do without in its present state.
    pub(crate) fn pages_in_use(&self) -> usize {
        let config = &self.config;
        match self.hca {
            HcaState::Initialized => (config.boot_pages + config.init_pages) as usize,
            HcaState::Disabled | HcaState::Enabled => 0,
        }
    }

    /// A function-level reset. The wire, the fault plan, the log and the counters stay: they are
    /// not inside the function.
    fn reset(&mut self) {
        let carrier = self.port.carrier;
        let counters = self.port.counters;
        self.port = Port::new(&self.config);
        self.port.carrier = carrier;
        self.port.counters = counters;
        self.drop_objects();
        self.hca = HcaState::Disabled;
        self.issi = 0;
        self.caps.reset(&self.config);
        self.pages.forget();
        self.syndrome = HealthSyndrome::HEALTHY;
        self.driver_version.clear();
        self.host_endianness = 0;
        self.node_desc = self.config.node_desc.clone().into_bytes();
        self.commands.reset();
        self.registers = Registers::default();
        self.reset_asked = false;
        self.regular_pages_due = 0;
        self.counters.resets += 1;
    }
}

/// Frames that can be on their way from a port to itself.
const MAX_LOOPED_BACK: usize = 256;

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

    /// The device reports that it is ill, in the health buffer. The first report stays.
    #[cold]
    pub fn health(&mut self, syndrome: HealthSyndrome) {
        if self.state.syndrome == HealthSyndrome::HEALTHY {
            self.state.syndrome = syndrome;
            bar::publish_health(self.side, self.state);
        }
    }

    /// Tells data path and driver that the port went up or down, if it did.
    pub(crate) fn port_changed(&mut self, datapath: &mut DataPath) {
        let is_up = self.state.port.is_up();
        if is_up == self.state.port.reported_up {
            return;
        }
        self.state.port.reported_up = is_up;
        datapath.link_changed(self, is_up);
        let change = if is_up { PortChange::ACTIVE } else { PortChange::DOWN };
        let data = EventPortChange::zeroed().with_port_num(1);
        self.raise_event(EventType::PORT_CHANGE, change.0, data.0);
    }

    /// An EQ for page requests exists now: asks for the regular pages, once.
    pub(crate) fn ask_for_regular_pages(&mut self) {
        let wanted = std::mem::take(&mut self.state.regular_pages_due);
        if wanted > 0 {
            self.state.pages.want_more(wanted);
            self.page_request(i32::try_from(wanted).unwrap_or(i32::MAX));
        }
    }

    /// Clears the doorbell registers of a UAR page.
    pub(crate) fn clear_uar(&self, page: u32) {
        for register in (0..uar::PAGE_BYTES).step_by(8) {
            let _ = self.side.uar_take(page, register);
        }
    }

    /// Asks the host for pages, or offers to give some back, by event.
    pub(crate) fn page_request(&mut self, count: i32) {
        let data = EventPageRequest::zeroed().with_num_pages(count.cast_unsigned());
        self.raise_event(EventType::PAGE_REQUEST, 0, data.0);
    }
}

/// Register writes taken in one step, so that a step is bounded.
const MAX_WRITES: usize = 256;

/// A software ConnectX.
///
/// It has no thread, clock or randomness of its own: everything happens inside [`Nic::step`].
#[derive(Debug)]
pub struct Nic {
    side: DeviceSide,
    state: State,
    datapath: DataPath,
    now_ns: u64,
}

impl Nic {
    /// A device after power-on, behind the device half of a transport.
    #[must_use]
    pub fn new(side: DeviceSide, config: NicConfig) -> Self {
        let (state, datapath) = (State::new(config), DataPath::default());
        let mut nic = Self { side, state, datapath, now_ns: 0 };
        nic.boot();
        nic
    }

    /// Makes the device do everything that is due at `now_ns`; returns whether anything was done.
    ///
    /// # Units
    ///
    /// Nanoseconds of device time, never less than in the call before.
    pub fn step(&mut self, now_ns: u64) -> bool {
        debug_assert!(now_ns >= self.now_ns, "device time runs forward");
        self.now_ns = now_ns;
        if self.side.reset_requested() {
            self.reset();
            self.side.reset_done();
            return true;
        }
        let Self { side, state, datapath, .. } = self;
        let mem = side.memory();
        let mut ctx = Ctx { side, mem: &mem, state, now_ns };
        let mut busy = run_moments(&mut ctx, datapath);
        bar::tick(&mut ctx);
        for _ in 0..MAX_WRITES {
            let Some(write) = ctx.side.poll_write() else { break };
            busy = true;
            bar::write(&mut ctx, datapath, write);
        }
        busy |= cmd::poll(&mut ctx, datapath);
        busy |= bar::poll_uars(&mut ctx, datapath);
        busy |= datapath.poll(&mut ctx);
        drop(mem);
        if self.state.reset_asked {
            self.reset();
            // After a software reset the interface is disabled until a queue address is written.
            self.state.registers.nic_interface = NicInterface::DISABLED.0;
            bar::publish_queue_word(&self.side, &self.state);
        }
        busy
    }

    /// A function-level reset: all objects are gone, host pages are forgotten, registers read as
    /// after power-on.
    fn reset(&mut self) {
        tracing::debug!(objects = self.state.objects.len(), "function-level reset");
        self.state.reset();
        self.datapath.reset();
        self.side.clear_bar();
        self.boot();
    }

    /// Publishes the registers as after power-on; the firmware may take a while.
    fn boot(&mut self) {
        let boot_ns = self.state.config.boot_ns;
        let until = (boot_ns > 0).then(|| self.now_ns.saturating_add(boot_ns));
        self.state.registers.boots_until_ns = until;
        bar::publish(&self.side, &self.state);
    }

    /// What was refused, and why.
    #[must_use]
    pub fn log(&self) -> &RefusalLog {
        &self.state.log
    }

    /// Everything inside the device, to look at.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        &mut self.state
    }

    /// The data path, to connect wires and to look at.
    pub fn datapath_mut(&mut self) -> &mut DataPath {
        &mut self.datapath
    }

    /// The data path, to look at.
    #[must_use]
    pub fn datapath(&self) -> &DataPath {
        &self.datapath
    }

    /// The device half of the transport.
    #[must_use]
    pub fn side(&self) -> &DeviceSide {
        &self.side
    }

    /// Replaces the fault plan.
    pub fn set_faults(&mut self, plan: FaultPlan) {
        self.state.faults = plan;
    }

    /// Plugs the cable in or out; the driver learns it by event.
    pub fn set_carrier(&mut self, carrier: bool) {
        self.with_ctx(|ctx, datapath| {
            ctx.state.port.carrier = carrier;
            ctx.port_changed(datapath);
        });
    }

    /// Makes the device ask for pages (positive) or offer some back (negative), by event.
    pub fn request_pages(&mut self, count: i32) {
        self.with_ctx(|ctx, _| {
            if let Ok(more) = u32::try_from(count) {
                ctx.state.pages.want_more(more);
            }
            ctx.page_request(count);
        });
    }

    fn with_ctx(&mut self, run: impl FnOnce(&mut Ctx<'_>, &mut DataPath)) {
        let Self { side, state, datapath, now_ns } = self;
        let mem = side.memory();
        run(&mut Ctx { side, mem: &mem, state, now_ns: *now_ns }, datapath);
    }
}

/// Carries out what the fault plan has for this moment.
fn run_moments(ctx: &mut Ctx<'_>, datapath: &mut DataPath) -> bool {
    let mut busy = false;
    while let Some(moment) = ctx.state.faults.due(ctx.now_ns) {
        busy = true;
        match moment {
            Moment::LinkDown | Moment::LinkUp => {
                ctx.state.port.carrier = moment == Moment::LinkUp;
                ctx.port_changed(datapath);
            }
            Moment::Health(syndrome) => ctx.health(syndrome),
            Moment::Reset => ctx.side.request_reset(),
        }
    }
    busy
}
