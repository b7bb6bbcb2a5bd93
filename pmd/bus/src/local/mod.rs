//! The in-process transport: a driver on one side, a software device on the other.
//!
//! [`pair`] makes both halves. The driver gets an ordinary [`Transport`]; the device gets a
//! [`DeviceSide`], whose API is safe, takes BAR accesses and I/O addresses, and knows no driver
//! type. A vfio-user server feeds the same [`DeviceSide`] with `bar_read`, `bar_write`,
//! `dma_map_fd` and `dma_unmap` in place of the driver's half.
//!
//! | driver side | device side |
//! |---|---|
//! | [`Bar::read_be32`] | last word published with [`DeviceSide::set_be32`]; no lock |
//! | [`Bar::write_be32`], [`Bar::write_be64`] | [`DeviceSide::poll_writes`]: each one, in order |
//! | [`crate::Doorbell::ring`] | [`DeviceSide::uar_load`], [`DeviceSide::uar_take`]: a new word |
//! | [`DmaSpace::map`], drop of the mapping | [`DmaView`] sees the range, no longer sees it |
//! | [`Bar::memory`] | [`DeviceSide::make_memory`], and [`DmaView`] at addresses of its own |
//! | eventfd of a vector | [`DeviceSide::raise`] |
//! | [`Transport::reset`] | [`DeviceSide::reset_requested`], [`DeviceSide::reset_done`] |

mod bar;
mod counts;
mod device;
#[cfg(debug_assertions)]
mod held;
mod irq;
mod shared;
mod space;
mod view;

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

pub use bar::BarWrite;
pub use counts::DmaCounts;
pub use device::{BusCounts, DeviceSide};
pub use view::{DmaFault, DmaFaultCause, DmaView};

use self::bar::BarShared;
use self::irq::IrqShared;
use self::shared::Shared;
use self::space::{LocalDma, Quota, SpaceShared};
use crate::{Bar, BarClaim, BusError, DmaSpace, DoorbellKind, Interrupts, PciIdentity, Transport};

/// Size, identity and limits of an in-process device.
#[derive(Debug, Clone)]
pub struct LocalConfig {
    /// Length of the BAR: a power of two from 64 KiB to 4 GiB. Only used pages take memory.
    pub bar_len_bytes: u64,
    /// MSI-X vectors, 1 to 2048.
    pub vectors: u16,
    /// Chooses the I/O addresses: same seed, same addresses.
    pub seed: u64,
    /// Mappings that may exist at once.
    pub max_mappings: u32,
    /// Bytes of all mappings together. Each takes as much of this process's address space, and a
    /// client behind a socket maps what it likes: a sparse file costs it nothing.
    pub max_mapped_bytes: u64,
    /// PCI identity that the device claims.
    pub identity: PciIdentity,
    /// How requests reach BlueFlame registers: as on a device whose registers are mapped so. The
    /// model reads them from memory in any case, so that copies only cost time here.
    pub blueflame: DoorbellKind,
}

impl Default for LocalConfig {
    /// A ConnectX-5 with a 32 MiB BAR, 64 vectors and seed 0.
    fn default() -> Self {
        Self {
            bar_len_bytes: 32 << 20,
            vectors: 64,
            seed: 0,
            max_mappings: 65_535,
            max_mapped_bytes: 1 << 46,
            identity: PciIdentity {
                vendor: PciIdentity::VENDOR_MELLANOX,
                device: 0x1017,
                name: "model".into(),
                numa_node: None,
            },
            blueflame: DoorbellKind::Plain,
        }
    }
}

/// Makes the two halves of an in-process device.
///
/// # Errors
///
/// [`BusError::OutOfRange`] for a field of `config` outside its range, [`BusError::Os`] when the
/// BAR's memory cannot be had.
pub fn pair(config: LocalConfig) -> Result<(Arc<LocalTransport>, DeviceSide), BusError> {
    let range = |what, value, min, max| {
        let ok = (min..=max).contains(&value);
        ok.then_some(()).ok_or(BusError::OutOfRange { what, value, min, max, hint: "" })
    };
    let bar_len_bytes = config.bar_len_bytes;
    range("BAR length in bytes (a power of two)", bar_len_bytes, 64 << 10, 4 << 30)?;
    if !bar_len_bytes.is_power_of_two() {
        return Err(BusError::OutOfRange {
            what: "BAR length in bytes (a power of two)",
            value: bar_len_bytes,
            min: 64 << 10,
            max: 4 << 30,
            hint: "",
        });
    }
    range("MSI-X vectors", u64::from(config.vectors), 1, 2048)?;
    let quota = Quota { mappings: config.max_mappings, bytes: config.max_mapped_bytes };
    let shared = Arc::new(Shared {
        bar: Arc::new(BarShared::new(bar_len_bytes, config.blueflame)?),
        space: Arc::new(SpaceShared::new(config.seed, quota)),
        irq: Arc::new(IrqShared::new(config.vectors)),
        reset_pending: AtomicBool::new(false),
    });
    let transport = LocalTransport {
        shared: Arc::clone(&shared),
        dma: Arc::new(LocalDma(Arc::clone(&shared.space))),
        identity: config.identity,
        idle_hook: Mutex::new(None),
        kept: Mutex::new(Vec::new()),
    };
    Ok((Arc::new(transport), DeviceSide::new(shared)))
}

/// A function that lets the device make progress.
type IdleHook = Arc<dyn Fn() + Send + Sync>;

/// The driver's half of an in-process device.
pub struct LocalTransport {
    shared: Arc<Shared>,
    dma: Arc<LocalDma>,
    identity: PciIdentity,
    idle_hook: Mutex<Option<IdleHook>>,
    /// See [`LocalTransport::keep`].
    kept: Mutex<Vec<Box<dyn Any + Send>>>,
}

impl LocalTransport {
    /// Keeps `owner` until the driver has let go of the device: the thread that steps a model, for
    /// one, which must answer the commands of the device's end.
    pub fn keep(&self, owner: impl Any + Send) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(owner));
    }

    /// Sets what [`Transport::relax`] calls: a function that steps a model in the driver's thread.
    ///
    /// Without a hook, `relax` yields the core. `None` removes the hook. The hook may use the
    /// transport, and may be called again while it runs if it does.
    pub fn set_idle_hook(&self, hook: Option<IdleHook>) {
        *self.idle_hook.lock().unwrap_or_else(PoisonError::into_inner) = hook;
    }
}

impl Transport for LocalTransport {
    fn bar(&self, _: BarClaim) -> Arc<dyn Bar> {
        Arc::clone(&self.shared.bar) as Arc<dyn Bar>
    }

    fn dma(&self) -> Arc<dyn DmaSpace> {
        Arc::clone(&self.dma) as Arc<dyn DmaSpace>
    }

    fn interrupts(&self) -> Arc<dyn Interrupts> {
        Arc::clone(&self.shared.irq) as Arc<dyn Interrupts>
    }

    fn identity(&self) -> &PciIdentity {
        &self.identity
    }

    fn name(&self) -> &'static str {
        "model"
    }

    fn reset(&self) -> Result<(), BusError> {
        self.shared.bar.discard_writes();
        self.shared.reset_pending.store(true, Ordering::Release);
        Ok(())
    }

    fn reset_complete(&self) -> bool {
        !self.shared.reset_pending.load(Ordering::Acquire)
    }

    fn relax(&self) {
        // The hook runs with the lock released, so that it may replace itself.
        let hook = self.idle_hook.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match hook {
            Some(hook) => hook(),
            None => std::thread::yield_now(),
        }
    }
}

impl fmt::Debug for LocalTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalTransport").field("identity", &self.identity).finish_non_exhaustive()
    }
}
