//! One mlx5 function in user space, whoever uses it: what Ethernet queues (`ferrocx-pmd`) and RDMA
//! verbs (`ferrocx-verbs-lite`) stand on, as siblings.
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
//! - [`Device`] is a port, from reset to teardown: command channel, firmware pages, event queue,
//!   health, link, addresses. It works over any [`ferrocx_bus::Transport`], and it is the one
//!   device type of the project: queues of both siblings are made on the same handle.
//! - [`Device::register_pool`] makes a pool's buffers reachable for both; [`KeyMode`] says by which
//!   key.
//! - [`wq`] holds the rings that every work queue is made of, and writes the requests in them;
//!   [`CqRing`] reads their completions. [`Handle`] owns an object inside the device.
//! - [`Device::alloc_memory`] lends memory that lies in the device.
//! - [`Device::add_flow_rule`] steers, marks, counts and drops; [`Routes`] leads the rest.
//! - [`lcore`] runs pinned workers and hands work over between them.
//!
//! Handles of objects hold their device, so any order of dropping is right. The memory
//! of what cannot be destroyed is kept until the device is closed, with a reset, and leaked if that
//! fails: it may still write there.
//!
//! # Limits
//!
//! | what | limit | where |
//! |---|---|---|
//! | multicast groups | 126 | [`MAX_MULTICAST`] |
//! | flow rules | [`DeviceConfig::flow_rules`], in at most 64 runs of one mask | [`FlowRule`] |
//! | memory keys of programs | [`DeviceConfig::max_memory_keys`] | [`Device::key_use`] |
//! | waiting for a command | [`DeviceConfig::command_timeout`] | [`CommandError::Timeout`] |
#![deny(unsafe_code)]

mod bringup;
mod clock;
mod cmd;
mod config;
mod control;
mod counters;

mod cq;
mod device;
mod device_memory;
mod eq;
mod error;
mod events;
mod flow;
mod handle;
mod health;
mod housekeeping;
mod kept;
mod keys;
pub mod lcore;
mod link;
mod memory;
mod objects;
mod pages;
mod quota;
mod stats;
mod uar;
pub mod wq;

pub use bringup::FirmwareVersion;
pub use clock::{Clock, ClockSource, ClockStats, TimeBase};
pub use cmd::{CommandError, DeadDevice, Object};
pub use config::{DeviceConfig, KeyMode, MAX_DESCRIPTORS, MAX_MTU, MIN_DESCRIPTORS, MIN_MTU};
pub use counters::{CounterSet, DropCounter};
pub use cq::{
    Armer, CqAttr, CqRing, INVALID_OPCODE, Notify, Undelivered, Unexpected, ends_receiving,
};
pub use device::{Device, DeviceInfo, Limits, RawMapping};
pub use device_memory::{DeviceMemory, DeviceMemoryLimits};
pub use eq::Event;
pub use error::{ConfigError, Destroy, DeviceError, QueueFault};
pub use events::{CompletionEvents, EventReader};
pub use flow::{
    FlowAction, FlowMatch, FlowRule, FlowRuleHandle, Ipv4Match, Ipv6Match, MAX_MULTICAST, Masked,
    Routes, RxQueueRef, TrafficTirs, TrafficType,
};
pub use handle::Handle;
pub use health::{HealthReport, POLL_INTERVAL as HEALTH_POLL_INTERVAL};
pub use housekeeping::{Background, Housekeeping};
pub use keys::{KeyDomains, RegionKeys};
pub use link::LinkState;
pub use objects::{Kind, QueueState, page_list};
pub use quota::{KeyRoom, KeyUse};
pub use stats::{FlowCounts, Traffic, VportCounters};
pub use uar::Uar;

pub use ferrocx_net::ether::MacAddr;
pub use ferrocx_prm::eqe::EventType;
pub use ferrocx_prm::syndrome::CqeSyndrome;
