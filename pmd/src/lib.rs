//! Polled-mode user-space driver for ConnectX network adapters: the whole device, no kernel driver.
#![deny(unsafe_code)]

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
mod pages;
mod rss;
mod rx;
mod stats;
mod tx;
mod uar;

pub use bringup::FirmwareVersion;
pub use cmd::{CommandError, DeadDevice, Object};
pub use config::{
    DEFAULT_RSS_KEY, DeviceConfig, KeyMode, MAX_DESCRIPTORS, MAX_MTU, MIN_DESCRIPTORS, MIN_MTU,
    RssConfig, RxQueueConfig, TxQueueConfig,
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
pub use rx::{RxQueue, RxQueueRef};
pub use stats::{FlowCounts, RxStats, Traffic, TxStats, VportCounters};
pub use tx::TxQueue;
