//! [`Port`]: a device, opened by its name, with a pool that serves all of its queues.

use std::sync::Arc;
use std::time::Duration;

use ferrocx_bus::Transport;
use ferrocx_bus::vfio::{VfioConfig, VfioTransport};
use ferrocx_core::{Device, DeviceConfig, DeviceError, FlowMatch, Housekeeping};
use ferrocx_mempool::{Pool, PoolConfig};
use ferrocx_pmd::{Lane, LaneConfig, RssConfig, RxQueue, RxQueueConfig};
use ferrocx_verbs_lite::{RdmaContext, VerbsError};

use crate::error::{OpenError, OpenWarning};
use crate::model_port;
use crate::name::DeviceName;

/// Packets that a program may hold beside what its lanes do, if it says how many lanes it has.
const HELD: usize = 2047;

/// How a port is opened.
#[derive(Debug, Clone)]
pub struct PortConfig {
    /// How the device is brought up.
    pub device: DeviceConfig,
    /// How a PCI device is opened: files that a launcher lends, one address space for several
    /// devices, the kernel's interface. The name that is opened takes the place of its `address`;
    /// models do not look at it.
    pub vfio: VfioConfig,
    /// The pool to make; not used when `shared_pool` is given. The default suffices for three
    /// lanes.
    pub pool: PoolConfig,
    /// How many lanes the pool is to suffice for, of all ports that share it: it gets as many
    /// buffers as [`LaneConfig::buffers`] says for each, and 2047 that the program may hold
    /// meanwhile, unless [`PoolConfig::count`] is more. 0, the default, leaves that as it is.
    pub lanes: usize,
    /// A pool of another port: packets received here are sent there without a copy.
    pub shared_pool: Option<Pool>,
    /// How often a thread serves the firmware's page requests, see [`Device::keep_house`]. Events
    /// stay for [`Device::poll_event`] and whoever else reads them; to react to what the thread
    /// finds, ask [`Device::health`]. `None` for a program that calls [`Device::serve_events`]
    /// itself: if nobody does, the firmware may stop for want of memory.
    pub housekeeping: Option<Duration>,
    /// How long opening waits for the link, which a model has within milliseconds and a cable
    /// within seconds; 10 s by default.
    pub link_wait: Duration,
}

impl Default for PortConfig {
    /// The defaults of device and pool, housekeeping every 10 ms.
    fn default() -> Self {
        Self {
            device: DeviceConfig::default(),
            vfio: VfioConfig::default(),
            pool: PoolConfig::default(),
            lanes: 0,
            shared_pool: None,
            housekeeping: Some(Duration::from_millis(10)),
            link_wait: Duration::from_secs(10),
        }
    }
}

impl PortConfig {
    /// The pool to make, large enough for the lanes.
    fn pool_of_lanes(&self) -> PoolConfig {
        let lanes = self.lanes.saturating_mul(LaneConfig::default().buffers(&self.pool));
        let count = match self.lanes {
            0 => self.pool.count,
            _ => self.pool.count.max(lanes.saturating_add(HELD)),
        };
        PoolConfig { count, ..self.pool.clone() }
    }
}

/// A port of a ConnectX, or of the software model, ready for Ethernet queues and RDMA.
///
/// Its [`Pool`] is registered with the device once and serves both. Queues and handles hold the
/// device, so any order of dropping is right.
#[derive(Debug)]
pub struct Port {
    _housekeeping: Option<Housekeeping>,
    pool: Pool,
    device: Device,
    warnings: Vec<OpenWarning>,
}

impl Port {
    /// Opens the device of that name, with a pool of 8191 buffers of 2 KiB. Waits up to 10 s for
    /// the link; without one the port is there all the same, and [`Port::warnings`] says so.
    ///
    /// | name | device |
    /// |---|---|
    /// | `0000:3b:00.0` | the ConnectX at that PCI address, bound to vfio-pci |
    /// | `model` | a software ConnectX in this process, on a switch with the other models |
    /// | `model:net=NAME` | the same, on a switch of that name |
    /// | `model:seed=N` | the same, with that seed of all that is random |
    /// | `model:tap=NAME` | the same, whose wire is a TAP interface of Linux |
    ///
    /// # Errors
    ///
    /// [`OpenError`]: one sentence that names what is wrong.
    #[doc(alias = "rte_eal_init")]
    #[doc(alias = "rte_eth_dev_start")]
    pub fn open(name: &str) -> Result<Self, OpenError> {
        Self::open_with(name, PortConfig::default())
    }

    /// Opens several devices whose packets may go out at any of them: all share one pool, of 8191
    /// buffers, which is enough for three lanes in all. [`Port::open_all_with`] takes another, and
    /// [`Port::open_each`] a list whose length is not known beforehand.
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`], of the first name that fails.
    pub fn open_all<const N: usize>(names: [&str; N]) -> Result<[Self; N], OpenError> {
        Self::open_all_with(names, PortConfig::default())
    }

    /// Opens several devices as `config` says: all share its pool, or the one of the first port.
    ///
    /// ```
    /// use ferrocx::{Port, PortConfig};
    ///
    /// // Two lanes on each of two ports.
    /// let config = PortConfig { lanes: 2 * 2, ..PortConfig::default() };
    /// let [left, right] = Port::open_all_with(["model:net=l", "model:net=r"], config)?;
    /// let (left, right) = (left.lanes(2)?, right.lanes(2)?);
    /// # let _ = (left, right);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`], of the first name that fails.
    pub fn open_all_with<const N: usize>(
        names: [&str; N],
        config: PortConfig,
    ) -> Result<[Self; N], OpenError> {
        Ok(Self::open_each(names, config)?.try_into().expect("one port for each name"))
    }

    /// Opens the devices of a list, from a command line or a file, as `config` says: all share its
    /// pool, or the one of the first port.
    ///
    /// ```
    /// use ferrocx::{Port, PortConfig};
    ///
    /// let names: Vec<String> = std::env::args().skip(1).collect();
    /// let config = PortConfig { lanes: names.len(), ..PortConfig::default() };
    /// for port in &Port::open_each(names, config)? {
    ///     println!("{}: {}", port.device().info().name, port.device().mac());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`], of the first name that fails; those before it are closed again.
    pub fn open_each(
        names: impl IntoIterator<Item = impl AsRef<str>>,
        mut config: PortConfig,
    ) -> Result<Vec<Self>, OpenError> {
        let mut open = |name: &str| {
            let port = Self::open_with(name, config.clone())?;
            config.shared_pool = Some(port.pool.clone());
            Ok(port)
        };
        names.into_iter().map(|name| open(name.as_ref())).collect()
    }

    /// Opens the device of that name as `config` says.
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`].
    pub fn open_with(name: &str, config: PortConfig) -> Result<Self, OpenError> {
        let transport: Arc<dyn Transport> = match name.parse::<DeviceName>()? {
            DeviceName::Model(options) => model_port::start(&options)?,
            DeviceName::Pci(address) => {
                let address = address.to_string();
                VfioTransport::open(&VfioConfig { address, ..config.vfio.clone() })?
            }
        };
        Self::from_transport(transport, config)
    }

    /// Brings up the device behind a transport that the program has made: a model with a wire of
    /// its own, or a device over VFIO. Neither a name nor `config.vfio` is looked at.
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`].
    pub fn from_transport(
        transport: Arc<dyn Transport>,
        config: PortConfig,
    ) -> Result<Self, OpenError> {
        Self::from_device(Device::open(transport, &config.device)?, config)
    }

    /// Makes a port of a device that was opened before: gives it a pool, of the adapter's memory
    /// node unless the configuration names one, and housekeeping, and waits for the link. Neither
    /// `config.vfio` nor `config.device` is looked at.
    ///
    /// # Errors
    ///
    /// Those of [`Port::open`].
    pub fn from_device(device: Device, config: PortConfig) -> Result<Self, OpenError> {
        let pool = match config.shared_pool {
            Some(pool) => pool,
            None => Pool::near(&config.pool_of_lanes(), device.info().numa_node)?,
        };
        device.register_pool(&pool)?;
        let housekeeping = config.housekeeping.map(|every| device.keep_house(every)).transpose();
        let housekeeping = housekeeping.map_err(OpenError::Thread)?;
        let mut warnings = Vec::new();
        if !has_link(&device, config.link_wait)? {
            tracing::warn!(device = %device.info().name, "{}", OpenWarning::NoLink);
            warnings.push(OpenWarning::NoLink);
        }
        // The region has put its own into the log.
        warnings.extend(pool.region().warnings().iter().cloned().map(OpenWarning::Region));
        Ok(Self { _housekeeping: housekeeping, pool, device, warnings })
    }

    /// What the port does not have although it was wanted, in whole sentences when printed; none
    /// if all went well. They were in the log, too.
    #[must_use]
    pub fn warnings(&self) -> &[OpenWarning] {
        &self.warnings
    }

    /// Ends the port and says how that went.
    ///
    /// # Errors
    ///
    /// [`DeviceError::InUse`] while lanes, queue pairs or other handles of the device live: it is
    /// then torn down with the last of them. Otherwise the first step that failed.
    #[doc(alias = "rte_eth_dev_close")]
    pub fn close(self) -> Result<(), DeviceError> {
        let Self { _housekeeping: housekeeping, pool, device, .. } = self;
        drop((housekeeping, pool));
        device.close()
    }

    /// The device: addresses, link, flow rules, counters, and what queues are made on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The pool: its buffers serve Ethernet queues, RDMA requests and, page by page, NVMe devices.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// RDMA on this port. Every call gives a handle to the same context.
    ///
    /// # Errors
    ///
    /// [`VerbsError::Unsupported`] for a device without RoCEv2, or what the device refused.
    pub fn rdma(&self) -> Result<RdmaContext, VerbsError> {
        RdmaContext::open(&self.device)
    }

    /// A receive and a send queue for all of the port's traffic that nothing else takes. For other
    /// settings than the defaults there is [`Lane::all`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] while another lane or [`Rss`](crate::Rss) of the port has its
    /// traffic; [`DeviceError::PoolTooSmallForLanes`]; or what the device refused.
    pub fn lane(&self) -> Result<Lane, DeviceError> {
        Lane::all(&self.device, &self.pool, &LaneConfig::default())
    }

    /// A lane for each of `count` cores, with the port's traffic spread over them by its headers.
    ///
    /// For other settings of the queues, a hash that takes both directions of a connection to one
    /// lane, or a table of one's own, there is [`Lane::spread`]; [`Lane::rss`] replaces the table
    /// while traffic flows.
    ///
    /// # Pool
    ///
    /// A lane may hold as many buffers as [`LaneConfig::buffers`] says: 2048. With a pool that has
    /// fewer free for each, one lane may starve while others keep buffers, and drop packets
    /// ([`RxStats::no_mbuf`](crate::RxStats::no_mbuf)): the log warns of it, with the numbers.
    /// [`PortConfig::lanes`] makes the pool large enough.
    /// [`DeviceError::PoolTooSmallForLanes`] if not even the rings can be filled.
    ///
    /// # Errors
    ///
    /// Those of [`Port::lane`].
    #[doc(alias = "rte_eth_dev_configure")]
    pub fn lanes(&self, count: usize) -> Result<Vec<Lane>, DeviceError> {
        let (lane, rss) = (LaneConfig::default(), RssConfig::default());
        Lane::spread(&self.device, &self.pool, count, &lane, &rss)
    }

    /// A lane for the packets that match, and no others. A multicast group must be let in besides:
    /// [`Device::join_multicast`]. For VLAN stripping and other settings there is
    /// [`Lane::matching`]; for a mark or a count, [`Device::add_flow_rule`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] for fields that contradict each other;
    /// [`DeviceError::PoolTooSmallForLanes`]; or what the device refused.
    pub fn lane_matching(&self, matches: FlowMatch) -> Result<Lane, DeviceError> {
        Lane::matching(&self.device, &self.pool, matches, &LaneConfig::default())
    }

    /// A lane for each of `count` cores, with the packets that match spread over them by their
    /// headers, and no others: [`Port::lane_matching`] for several cores. For other settings there
    /// is [`Lane::spread_matching`].
    ///
    /// # Errors
    ///
    /// Those of [`Port::lane_matching`].
    pub fn lanes_matching(
        &self,
        count: usize,
        matches: FlowMatch,
    ) -> Result<Vec<Lane>, DeviceError> {
        let (lane, rss) = (LaneConfig::default(), RssConfig::default());
        Lane::spread_matching(&self.device, &self.pool, count, matches, &lane, &rss)
    }

    /// A receive queue for the packets that match, and no others: for a core that sends on other
    /// queues, or not at all. For timestamps and other settings there is [`RxQueue::matching`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Config`] for fields that contradict each other;
    /// [`DeviceError::PoolTooSmall`]; or what the device refused.
    pub fn rx_matching(&self, matches: FlowMatch) -> Result<RxQueue, DeviceError> {
        RxQueue::matching(&self.device, &self.pool, matches, &RxQueueConfig::default())
    }
}

/// Waits for the link, so that the first frames are not lost. A port that stays without one is no
/// error: its cable may come later.
fn has_link(device: &Device, wait: Duration) -> Result<bool, DeviceError> {
    let start = device.now();
    while !device.link()?.up {
        if device.now() - start > wait {
            return Ok(false);
        }
        device.relax();
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(true)
}
