//! The device as a whole, and one step of it.

use ferrocx_bus::local::DeviceSide;

use crate::bar::{Registers, uar};
use crate::datapath::DataPath;
use crate::device::caps::memic;
use crate::device::config::NicConfig;
use crate::device::fault::{FaultPlan, Moment};
use crate::device::log::RefusalLog;

pub use crate::device::state::{Counters, Ctx, DriverInfo, HcaState, State};

/// Register writes taken in one step, and commands after which no more are, so that a step is
/// bounded: a write can start as many commands as there are slots. Nor are more after the work of
/// a step.
const MAX_WRITES: usize = 256;
const MAX_COMMANDS: u64 = 32;

/// A software ConnectX.
///
/// It has no thread, clock or randomness of its own: everything happens inside [`Nic::step`].
#[derive(Debug)]
pub struct Nic {
    side: DeviceSide,
    state: State,
    registers: Registers,
    datapath: DataPath,
    watch: uar::Watch,
    now_ns: u64,
}

impl Nic {
    /// A device after power-on, behind the device half of a transport.
    #[must_use]
    pub fn new(side: DeviceSide, config: NicConfig) -> Self {
        let (mut state, registers) = (State::new(config), Registers::default());
        state.memory_iova = side.make_memory(memic::BAR).ok();
        let (datapath, watch) = (DataPath::default(), uar::Watch::default());
        let mut nic = Self { side, state, registers, datapath, watch, now_ns: 0 };
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
        let Self { side, state, registers, datapath, watch, .. } = self;
        let mem = side.memory();
        let mut ctx = Ctx { side, mem: &mem, state, now_ns };
        ctx.state.objects.mkeys.start_turn();
        let commands = ctx.state.counters.commands;
        let mut busy = run_moments(&mut ctx);
        registers.tick(side, now_ns);
        for _ in 0..MAX_WRITES {
            let Some(write) = ctx.side.poll_write() else { break };
            busy = true;
            registers.write(&mut ctx, datapath, write);
            if ctx.state.counters.commands - commands >= MAX_COMMANDS || ctx.is_turn_over() {
                break;
            }
        }
        busy |= registers.commands.poll(&mut ctx, datapath);
        busy |= uar::poll(&mut ctx, datapath, watch);
        busy |= datapath.poll(&mut ctx);
        drop(mem);
        if self.registers.reset_asked {
            self.reset();
            self.registers.disable(&self.side);
        }
        busy
    }

    /// A function-level reset: all objects are gone, host pages are forgotten, registers read as
    /// after power-on.
    fn reset(&mut self) {
        tracing::debug!(objects = self.state.objects.len(), "function-level reset");
        self.state.reset();
        self.registers.reset();
        self.datapath.reset();
        self.watch = uar::Watch::default();
        self.side.clear_bar();
        self.boot();
    }

    /// Publishes the registers as after power-on; the firmware may take a while.
    fn boot(&mut self) {
        let boot_ns = self.state.config.boot_ns;
        let until = (boot_ns > 0).then(|| self.now_ns.saturating_add(boot_ns));
        self.registers.boot(&self.side, &self.state, until);
    }

    /// Log of what the device refused.
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
        self.with_ctx(|ctx| {
            ctx.state.port.carrier = carrier;
            ctx.port_changed();
        });
    }

    /// Makes the device ask for pages (positive) or offer some back (negative), by event.
    pub fn request_pages(&mut self, count: i32) {
        self.with_ctx(|ctx| {
            if let Ok(more) = u32::try_from(count) {
                ctx.state.pages.want_more(more);
            }
            ctx.page_request(count);
        });
    }

    fn with_ctx(&mut self, run: impl FnOnce(&mut Ctx<'_>)) {
        let Self { side, state, now_ns, .. } = self;
        let mem = side.memory();
        run(&mut Ctx { side, mem: &mem, state, now_ns: *now_ns });
    }
}

/// Carries out what the fault plan has for this moment.
fn run_moments(ctx: &mut Ctx<'_>) -> bool {
    let mut busy = false;
    while let Some(moment) = ctx.state.faults.due(ctx.now_ns) {
        busy = true;
        match moment {
            Moment::LinkDown | Moment::LinkUp => {
                ctx.state.port.carrier = moment == Moment::LinkUp;
                ctx.port_changed();
            }
            Moment::Health(syndrome) => ctx.health(syndrome),
            Moment::Reset => ctx.side.request_reset(),
        }
    }
    busy
}
