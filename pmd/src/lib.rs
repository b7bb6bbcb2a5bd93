//! Polled-mode user-space driver for ConnectX network adapters: the whole device, no kernel driver.
//!
//! **This driver has never run on hardware.** It is tested against the software model of this
//! project, which was written from the same public facts by other hands.
//!
//! # Architecture
//!
//! - [`Device`] is a port, from reset to teardown: command channel, firmware pages, event queue,
//!   health, link, addresses. It works over any [`ferrocx_bus::Transport`].
//! - [`RxQueue`] and [`TxQueue`] move packets ([`ferrocx_mempool::Mbuf`]) in bursts, without
//!   allocation, lock or system call. Each belongs to one core: bursts take `&mut self`.
//! - [`Device::rss`] spreads traffic over queues, [`Device::add_flow_rule`] steers, marks, counts
//!   and drops. What they return keeps its effect until it is dropped.
//! - [`Device::register_pool`] makes a pool's buffers reachable; [`KeyMode`] says by which key.
//! - [`lcore`] runs pinned workers and hands work over between them.
//!
//! Handles of objects hold their device, so any order of dropping is right. What cannot be
//! destroyed is leaked and logged, never freed: the device may still write to it.
//!
//! # What it does not do
//!
//! No interrupts on the data path, no LRO, no tunnels, no striding receive queues, no e-switch, no
//! queue pairs: those are `verbs-lite`'s, over [`Device::execute`] and [`objects`].
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | descriptors of a queue | 64 to 32768, a power of two, and the device's | [`Limits`] |
//! | buffers of a received frame | 8 | [`RxQueueConfig::MAX_SEGMENTS`] |
//! | segments of a packet to send | 61, fewer with headers inline | [`TxQueue::tx_burst`] |
//! | headers of TSO | 256 bytes | [`TxQueue::tx_burst`] |
//! | packets in flight | the descriptors of the queue | [`TxQueueConfig::descriptors`] |
//! | multicast groups | 126 | [`MAX_MULTICAST`] |
//! | flow rules | [`DeviceConfig::flow_rules`], in at most 64 runs of one mask | [`FlowRule`] |
//! | waiting for a command | [`DeviceConfig::command_timeout`] | [`CommandError::Timeout`] |
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use arrayvec::ArrayVec;
//! use ferrocx_bus::Transport;
//! use ferrocx_mempool::{Mbuf, Pool};
//! use ferrocx_pmd::{Device, DeviceConfig, DeviceError, RssConfig, RxQueueConfig, TxQueueConfig};
//!
//! /// Sends back everything that arrives, for `rounds` bursts.
//! fn echo(transport: Arc<dyn Transport>, pool: &Pool, rounds: usize) -> Result<(), DeviceError> {
//!     let device = Device::open(transport, &DeviceConfig::default())?;
//!     device.register_pool(pool)?;
//!     let mut rx = device.rx_queue(pool, &RxQueueConfig::default())?;
//!     let mut tx = device.tx_queue(pool, &TxQueueConfig::default())?;
//!     let _rss = device.rss(&[rx.queue_ref()], &RssConfig::default())?;
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

#[doc(hidden)]
pub mod bench_support;
mod bringup;
mod cmd;
mod config;
mod control;
mod cq;
mod device;
mod eq;
mod error;
mod flow;
mod health;
mod keys;
pub mod lcore;
mod link;
mod memory;
pub mod objects;
mod pages;
mod rss;
mod rx;
mod stats;
mod tx;
mod uar;

pub use bringup::FirmwareVersion;
pub use cmd::{CommandError, DeadDevice, Object};
pub use config::{
    BufferSplit, DEFAULT_RSS_KEY, DeviceConfig, KeyMode, MAX_DESCRIPTORS, MAX_MTU, MIN_DESCRIPTORS,
    MIN_MTU, RssConfig, RxQueueConfig, TxQueueConfig,
};
pub use device::{Device, DeviceInfo, Limits};
pub use eq::Event;
pub use error::{ConfigError, Destroy, DeviceError, QueueFault};
pub use flow::{
    FlowAction, FlowMatch, FlowRule, FlowRuleHandle, Ipv4Match, Ipv6Match, MAX_MULTICAST, Masked,
};
pub use health::{HealthReport, POLL_INTERVAL as HEALTH_POLL_INTERVAL};
pub use link::{LinkState, MacAddr};
pub use rss::Rss;
pub use rx::{RxQueue, RxQueueRef, sleep_on};
pub use stats::{FlowCounts, RxStats, Traffic, TxStats, VportCounters};
pub use tx::TxQueue;
