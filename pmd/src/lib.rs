//! Ethernet queues of ConnectX network adapters: polled, in bursts, on a
//! [`Device`](ferrocx_core::Device) of `ferrocx-core`.
//!
//! Applications have its items at the root of the crate `ferrocx`.
//!
//! **This driver has never run on hardware.** It is tested against the software model of this
//! project. Driver and model have the same authors, so their agreement proves little;
//! `docs/SUPPORT.md` says what others judged. Where a comment cites "reference 6.3", it means that
//! section of `docs/reference`.
//!
//! # Architecture
//!
//! - [`RxQueue`] and [`TxQueue`] move packets ([`ferrocx_mempool::Mbuf`]) in bursts, without
//!   allocation, lock or system call. Each belongs to one core: bursts take `&mut self`.
//! - [`TxQueue::send_one`] sends a single [`PrebuiltFrame`], with the least between the call and
//!   the doorbell.
//! - A [`Lane`] is one of each for one core, with the traffic that is led to it.
//! - [`Rss`] spreads traffic over queues; [`Device::add_flow_rule`](ferrocx_core::Device) steers,
//!   marks, counts and drops. What they return keeps its effect until it is dropped.
//!
//! # What it does not do
//!
//! No LRO, no tunnels, no e-switch.
//! Queue pairs are `ferrocx-verbs-lite`'s, on the same device.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | descriptors of a queue | 64 to 32768, a power of two, and the device's | [`Limits`](ferrocx_core::Limits) |
//! | strides of a striding queue | 1024 to 32768, a power of two, and the device's; 64 bytes each | [`Striding`] |
//! | buffers of a received frame | 8 | [`RxQueueConfig::MAX_SEGMENTS`] |
//! | segments of a packet to send | 61, fewer with headers inline | [`TxQueue::tx_burst`] |
//! | headers of TSO | 256 bytes | [`TxQueue::tx_burst`] |
//! | bytes of a prebuilt frame | 14 to 254 | [`PrebuiltFrame`] |
//! | packets in flight | the descriptors of the queue | [`TxQueueConfig::descriptors`] |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use arrayvec::ArrayVec;
//! use ferrocx_bus::Transport;
//! use ferrocx_mempool::{Mbuf, Pool};
//! use ferrocx_core::{Device, DeviceConfig, DeviceError};
//! use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
//!
//! /// Sends back everything that arrives, for `rounds` bursts.
//! fn echo(transport: Arc<dyn Transport>, pool: &Pool, rounds: usize) -> Result<(), DeviceError> {
//!     let device = Device::open(transport, &DeviceConfig::default())?;
//!     device.register_pool(pool)?;
//!     let mut rx = RxQueue::new(&device, pool, &RxQueueConfig::default())?;
//!     let mut tx = TxQueue::new(&device, pool, &TxQueueConfig::default())?;
//!     let _rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default())?;
//!     let mut burst = ArrayVec::<Mbuf, 32>::new();
//!     for _ in 0..rounds {
//!         rx.rx_burst(&mut burst);
//!         tx.tx_burst(&mut burst);
//!         rx.recycle(&mut tx);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! # What does not compile
//!
//! Two cores cannot share a queue:
//!
//! ```compile_fail,E0499
//! # use arrayvec::ArrayVec;
//! # use ferrocx_mempool::Mbuf;
//! fn two_cores(queue: &mut ferrocx_pmd::RxQueue) {
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| queue.rx_burst(&mut ArrayVec::<Mbuf, 32>::new()));
//!         scope.spawn(|| queue.rx_burst(&mut ArrayVec::<Mbuf, 32>::new()));
//!     });
//! }
//! ```
//!
//! A shared reference moves no packets:
//!
//! ```compile_fail,E0596
//! # use arrayvec::ArrayVec;
//! # use ferrocx_mempool::Mbuf;
//! fn shared(queue: &ferrocx_pmd::TxQueue, packets: &mut ArrayVec<Mbuf, 32>) {
//!     queue.tx_burst(packets);
//! }
//! ```
//!
//! A queue is gone once it is destroyed, and a packet once it is in the vector that is sent:
//!
//! ```compile_fail,E0382
//! fn after(queue: ferrocx_pmd::RxQueue) {
//!     let _ = queue.destroy();
//!     queue.stats();
//! }
//! ```
//!
//! ```compile_fail,E0382
//! # use arrayvec::ArrayVec;
//! # use ferrocx_mempool::Mbuf;
//! fn after(queue: &mut ferrocx_pmd::TxQueue, mbuf: Mbuf) {
//!     let mut packets = ArrayVec::<Mbuf, 1>::new();
//!     packets.push(mbuf);
//!     queue.tx_burst(&mut packets);
//!     println!("{:?}", mbuf.data());
//! }
//! ```
#![deny(unsafe_code)]

mod config;
mod lane;
mod rss;
mod rx;
mod stats;
mod tx;

pub use config::{BufferSplit, DEFAULT_RSS_KEY, RssConfig, RxQueueConfig, Striding, TxQueueConfig};
pub use lane::{Lane, LaneConfig};
pub use rss::Rss;
pub use rx::{RxQueue, sleep_on};
pub use stats::{RxStats, TxStats};
pub use tx::{Field, FrameError, PrebuiltFrame, SendTimestamp, TxQueue};
