//! A host: its driver, its verbs, its connection manager, from opening to closing and again.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferrocx_bus::Transport;
use ferrocx_core::{Device, DeviceConfig, Event};
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_verbs_lite::cm::{CmConfig, CmLimits, ConnectionManager};
use ferrocx_verbs_lite::net::NetConfig;
use ferrocx_verbs_lite::*;

use crate::world::SimTransport;

/// Time in which a command must be answered.
pub(crate) const COMMAND_TIMEOUT: Duration = Duration::from_millis(20);

/// MAC address of a host.
pub(crate) fn mac_of(host: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, host as u8 + 1]
}

/// IP address of a host.
pub(crate) fn ip_of(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, host as u8 + 1)
}

/// Why a host is going down, as the simulation knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doom {
    /// Its device is reset, from this moment on.
    Reset { at_ns: u64 },
    /// Its device left the bus.
    Removed { at_ns: u64 },
    /// Its firmware says that it is broken, from this moment on.
    Sick { at_ns: u64 },
    /// Its registers lie, from this moment on; nothing may come of it.
    Lied { at_ns: u64 },
}

impl Doom {
    /// When it began.
    pub(crate) fn at_ns(self) -> u64 {
        match self {
            Self::Reset { at_ns }
            | Self::Removed { at_ns }
            | Self::Sick { at_ns }
            | Self::Lied { at_ns } => at_ns,
        }
    }
}

/// What a host has while its device works. Dropped in this order.
pub(crate) struct Up {
    pub(crate) cm: ConnectionManager,
    pub(crate) pd: Pd,
    pub(crate) context: RdmaContext,
}

/// One host of the simulation.
pub(crate) struct Host {
    pub(crate) index: usize,
    pub(crate) transport: Arc<SimTransport>,
    pub(crate) up: Option<Up>,
    /// Goes up with each opening.
    pub(crate) life: u64,
    /// Not to be opened before.
    pub(crate) open_at_ns: u64,
    /// What the simulation did to it.
    pub(crate) doom: Option<Doom>,
    /// How its connection manager speaks to peers.
    pub(crate) cm: CmConfig,
    /// Its device may have lost completions or answers, or keep memory: by a fault of ours.
    pub(crate) is_tainted: bool,
    /// A life of it ended with a device that may have kept memory.
    pub(crate) has_leaked: bool,
    /// Its device has said what was not so: what its programs believe need not be true.
    pub(crate) is_deceived: bool,
    /// What its device has said is lost, in this life.
    losses: Vec<Event>,
    /// Memory that it has lent, to see that all of it goes.
    memories: Vec<Weak<Memory>>,
}

impl Host {
    pub(crate) fn new(index: usize, transport: Arc<SimTransport>) -> Self {
        Self {
            index,
            transport,
            up: None,
            life: 0,
            open_at_ns: 0,
            doom: None,
            cm: short_waits(),
            is_tainted: false,
            has_leaked: false,
            is_deceived: false,
            losses: Vec::new(),
            memories: Vec::new(),
        }
    }

    /// Brings the device up, and all that stands on it.
    pub(crate) fn open(&mut self) -> Result<(), Box<dyn Error>> {
        let config = DeviceConfig {
            page: PageSize::Base4K,
            command_timeout: COMMAND_TIMEOUT,
            reset_timeout: Duration::from_millis(100),
            health_interval: Duration::from_millis(1),
            event_entries: 64,
            flow_rules: 64,
            ..DeviceConfig::default()
        };
        self.is_tainted = false;
        self.losses.clear();
        let transport = Arc::clone(&self.transport) as Arc<dyn Transport>;
        let device = Device::open(transport, &config)?;
        let context = RdmaContext::open(&device)?;
        let address = ip_of(self.index).into();
        context.add_gid(GidConfig { address, prefix_len: 24, gateway: None, vlan: None })?;
        let pd = context.alloc_pd()?;
        let cm = ConnectionManager::open(&context, &self.cm)?;
        self.life += 1;
        self.up = Some(Up { cm, pd, context });
        Ok(())
    }

    /// Reads what the device reports, as a program does that lives on; the latest of it.
    pub(crate) fn read_events(&mut self) -> Vec<Event> {
        let Some(up) = &self.up else { return Vec::new() };
        let events: Vec<_> = std::iter::from_fn(|| up.context.device().poll_event()).collect();
        let is_loss = |it: &&Event| matches!(it, Event::CqError { .. } | Event::QueueError { .. });
        self.losses.extend(events.iter().filter(is_loss));
        events
    }

    /// Losses until now: those of queue pairs that are made later come behind them.
    pub(crate) fn losses(&mut self) -> usize {
        self.read_events();
        self.losses.len()
    }

    /// Whether the device has said that a queue pair is lost, after `since` others.
    pub(crate) fn has_lost(&self, qp: &Qp, since: usize) -> bool {
        self.losses.iter().skip(since).any(|event| qp.is_ended_by(event))
    }

    /// Ends everything. What stood on it must be gone.
    pub(crate) fn close(&mut self) -> Result<(), Box<dyn Error>> {
        let Some(Up { cm, pd, context }) = self.up.take() else { return Ok(()) };
        drop((cm, pd));
        let device = context.device().clone();
        drop(context);
        Ok(device.close()?)
    }

    /// The address where its connection manager is reached.
    pub(crate) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(ip_of(self.index)), port)
    }

    /// Memory under a key with all rights; `None` while the host is down.
    pub(crate) fn memory(&mut self, len_bytes: usize) -> Option<Result<Mr, VerbsError>> {
        let up = self.up.as_ref()?;
        let page = PageSize::Base4K;
        let region = RegionConfig { len_bytes, page, ..RegionConfig::default() };
        let made = Memory::alloc(&up.context, &region).and_then(|memory| {
            self.memories.push(Arc::downgrade(&memory));
            up.pd.reg_mr(&memory, 0..len_bytes, Access::LOCAL_WRITE | Access::REMOTE)
        });
        Some(made)
    }

    /// Memory without a key of its own; `None` while the host is down.
    pub(crate) fn plain_memory(
        &mut self,
        len_bytes: usize,
    ) -> Option<Result<Arc<Memory>, VerbsError>> {
        let up = self.up.as_ref()?;
        let page = PageSize::Base4K;
        let region = RegionConfig { len_bytes, page, ..RegionConfig::default() };
        let made = Memory::alloc(&up.context, &region);
        if let Ok(memory) = &made {
            self.memories.push(Arc::downgrade(memory));
        }
        Some(made)
    }

    /// Memories that are still held, once nobody should.
    pub(crate) fn memories_left(&mut self) -> usize {
        self.memories.retain(|memory| memory.strong_count() > 0);
        self.memories.len()
    }

    /// Forgets memory that a device of ours was made to keep.
    pub(crate) fn forgive_memories(&mut self) {
        self.memories.clear();
    }
}

/// Short waits, so that a run has many of them.
fn short_waits() -> CmConfig {
    let neighbours = neighbours();
    let net = NetConfig { neighbours, page: PageSize::Base4K, ..NetConfig::default() };
    let limits = CmLimits {
        patience: Duration::from_millis(500),
        time_wait: Duration::from_millis(50),
        ..CmLimits::default()
    };
    // Asks again after 4 ms.
    CmConfig {
        response_timeout: 10,
        max_retries: 15,
        service_timeout: 12,
        limits,
        net,
        page: PageSize::Base4K,
    }
}

fn neighbours() -> ferrocx_net::neighbour::Config {
    ferrocx_net::neighbour::Config {
        attempts: 20,
        interval: Duration::from_millis(5),
        lifetime: Duration::from_secs(1),
        ..Default::default()
    }
}
