//! Packets and RDMA on ConnectX network adapters from user space, with no kernel driver; or on the
//! software ConnectX that comes along, with no adapter either.
//!
//! **Nothing here has run on hardware yet**: the driver is tested against the project's own model
//! of the device, and the model against the drivers of Linux.
//!
//! This crate is what an application needs of the project, in one place. [`Port::open`] takes a
//! name, `"model"` or a PCI address; what comes back has a pool of packet buffers that is
//! registered with the device, and makes queues.
//!
//! # Quick start
//!
//! Two ports of the software ConnectX on a switch, one frame from one to the other:
//!
//! ```
//! use ferrocx::{Burst, Port};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let [a, b] = Port::open_all(["model", "model"])?;
//!     let (mut sender, mut receiver) = (a.lane()?, b.lane()?);
//!
//!     let (to, from) = (b.device().mac().0, a.device().mac().0);
//!     let ethertype = [0x88, 0xb5]; // for experiments
//!     let bytes = [&to[..], &from, &ethertype, b"hello, ferrocx"].concat();
//!     let mut burst = Burst::<32>::from_iter(sender.alloc_copy(&bytes));
//!     sender.tx_burst(&mut burst);
//!
//!     while receiver.rx_burst(&mut burst) == 0 {}
//!     assert!(burst[0].data()[14..].starts_with(b"hello, ferrocx"));
//!     Ok(())
//! }
//! ```
//!
//! # The log
//!
//! What goes wrong later, in the background or when something is dropped, is in the log and nowhere
//! else: memory that had to be leaked, firmware that waits, a pool too small for its lanes. It goes
//! to the crate `tracing`, which is silent until a program has a subscriber: with
//! `tracing-subscriber` among its dependencies, `main` begins with
//!
//! ```
//! use tracing_subscriber::filter::LevelFilter;
//!
//! tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).init();
//! ```
//!
//! What opening a port found wanting is in [`Port::warnings`], too.
//!
//! # Architecture
//!
//! - [`Port`] opens a [`Device`] by name, owns its [`Pool`], and keeps house: page requests of the
//!   firmware, events, health.
//! - A [`Lane`] is a receive and a send queue of one core; [`RxQueue`], [`TxQueue`] and [`Rss`] are
//!   its parts, for programs that place them one by one.
//! - [`Port::rdma`] gives the [`verbs`] of the same device: protection domains, queue pairs, memory
//!   keys bound by work requests, connections by address and port.
//! - [`lcore`] pins workers to cores and hands work over between them; [`model`] is the software
//!   ConnectX with its wires, for tests that want frames lost, repeated or damaged
//!   ([`Port::from_transport`]).
//! - [`net`] is the protocols: it reads and answers ARP, neighbour discovery, echo, IGMP and MLD in
//!   frames that it is given, from any lane. There are no sockets. [`verbs::net`] runs them by
//!   itself on a queue of its own and finds peers, on ports that do RoCE v2 only, because a
//!   [`Network`](verbs::net::Network) has its addresses from there.
//!
//! An [`Mbuf`] is the same buffer everywhere: received as a frame, sent on, posted to a queue pair,
//! bound to a key for a peer, handed to an NVMe device page by page.
//!
//! # Where the crates are
//!
//! An application depends on this crate alone. The samples of the items below name the crate that
//! an item comes from; read them by this table: `ferrocx_verbs_lite::Qp` is [`verbs::Qp`] here, and
//! `ferrocx_mempool::Mbuf` is [`Mbuf`].
//!
//! | here | in samples | what |
//! |---|---|---|
//! | [`Device`], [`FlowRule`], [`lcore`] | `ferrocx_core` | one function of a ConnectX |
//! | [`Lane`], [`RxQueue`], [`TxQueue`], [`Rss`] | `ferrocx_pmd` | Ethernet queues |
//! | [`verbs`] | `ferrocx_verbs_lite` | RDMA |
//! | [`Pool`], [`Mbuf`], [`Region`] | `ferrocx_mempool` | hugepages and packet buffers |
//! | [`net`] | `ferrocx_net` | ARP, neighbour discovery, echo, IGMP and MLD, without I/O |
//! | [`model`] | `ferrocx_model` | the software ConnectX |
//! | [`bus`] | `ferrocx_bus` | VFIO, and the model's bus |
#![forbid(unsafe_code)]

mod error;
mod model_port;
#[cfg(doctest)]
mod must_not_compile;
pub mod name;
mod port;

#[doc(inline)]
pub use ferrocx_bus as bus;
pub use ferrocx_core::{
    Clock, ClockSource, ClockStats, CommandError, ConfigError, CqeSyndrome, DeadDevice, Destroy,
    Device, DeviceConfig, DeviceError, DeviceInfo, DeviceMemory, DeviceMemoryLimits, Event,
    EventReader, EventType, FlowAction, FlowCounts, FlowMatch, FlowRule, FlowRuleHandle,
    HealthReport, Housekeeping, Ipv4Match, Ipv6Match, KeyMode, Limits, LinkState, MAX_MULTICAST,
    MacAddr, Masked, QueueFault, RxQueueRef, TimeBase, Traffic, VportCounters, lcore,
};
pub use ferrocx_mempool::{
    AccessError, Backing, ExternalBuffer, Mbuf, MempoolError, OlFlags, PacketType, PageSize, Piece,
    Pool, PoolCache, PoolConfig, PoolStats, Region, RegionConfig, RegionWarning, TxLengths,
};
#[doc(inline)]
pub use ferrocx_model as model;
#[doc(inline)]
pub use ferrocx_net as net;
pub use ferrocx_pmd::{
    BufferSplit, DEFAULT_RSS_KEY, Field, FrameError, Lane, LaneConfig, PrebuiltFrame, Rss,
    RssConfig, RxQueue, RxQueueConfig, RxStats, SendTimestamp, Striding, TxQueue, TxQueueConfig,
    TxStats, sleep_on,
};
#[doc(inline)]
pub use ferrocx_verbs_lite as verbs;

pub use error::{OpenError, OpenWarning};
pub use port::{Port, PortConfig};

/// Packets that move together: what bursts fill and empty. `N` is the most that fit.
pub type Burst<const N: usize = 32> = arrayvec::ArrayVec<Mbuf, N>;

/// The guide's code blocks, compiled and run.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../../docs/guide/src/memory-and-keys.md")]
    struct MemoryAndKeys;
    #[doc = include_str!("../../../docs/guide/src/model-and-lab.md")]
    struct ModelAndLab;
    #[doc = include_str!("../../../docs/guide/src/peer-memory.md")]
    struct PeerMemory;
    #[doc = include_str!("../../../docs/guide/src/queues-and-cores.md")]
    struct QueuesAndCores;
    #[doc = include_str!("../../../docs/guide/src/quick-start.md")]
    struct QuickStart;
    #[doc = include_str!("../../../docs/guide/src/verbs.md")]
    struct Verbs;
}
