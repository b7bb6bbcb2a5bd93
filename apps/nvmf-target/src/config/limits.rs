//! [`Limits`]: sizes, as the file has them.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;

use super::{bytes_of, in_range};
use crate::controller::Settings;
use crate::transport::ServerConfig;

/// Sizes, as the file has them. Hosts keep what they saw: they must not shrink over a restart.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Entries of an I/O queue: 16 to 1024.
    pub entries: u16,
    /// Bytes of data in a command capsule: 4096, 8192 or 16384.
    pub in_capsule_bytes: u32,
    /// Largest transfer: 8 KiB, doubled up to 1 MiB.
    pub max_transfer: String,
    /// I/O queues of a host: 1 to 128.
    pub io_queues: u16,
    /// Queues of all hosts: 1 to 1024.
    pub queues: u32,
    /// Of these, those of hosts of one address: 1 to `queues` [default: three quarters, and at
    /// least what one host has].
    pub queues_per_address: Option<u32>,
    /// Hosts' controllers at a time: 1 to 4096.
    pub controllers: u16,
    /// Of these, those of hosts of one address: 1 to `controllers` [default: three quarters].
    pub controllers_per_address: Option<u16>,
    /// How long a host may be silent, in seconds: 10 to 86400. It is the longest keep-alive time
    /// that a host can have, and what one without has.
    pub silence_s: u32,
    /// How long a drive may take for a command before it is aborted, in seconds: 1 to 600. Linux
    /// hosts wait 30 s.
    pub drive_timeout_s: u32,
    /// Buffers of the largest transfer: 2 to 1024; a Compare may take two.
    pub buffers: u16,
    /// Buffers of 8 KiB, for commands that are no longer: 2 to 4096.
    pub small_buffers: u16,
    /// Answers end the host's key, where it asks for that.
    pub remote_invalidate: bool,
}

impl Default for Limits {
    fn default() -> Self {
        let (settings, server) = (Settings::default(), ServerConfig::default());
        Self {
            entries: settings.entries,
            in_capsule_bytes: settings.in_capsule_bytes,
            max_transfer: "1MiB".into(),
            io_queues: settings.io_queues,
            queues: server.queues,
            queues_per_address: None,
            controllers: settings.controllers,
            controllers_per_address: None,
            silence_s: settings.silence.as_secs() as u32,
            drive_timeout_s: server.drive_timeout.as_secs() as u32,
            buffers: server.buffers,
            small_buffers: server.small_buffers,
            remote_invalidate: server.remote_invalidate,
        }
    }
}

impl Limits {
    /// Checks the sizes of a target that listens on these ports.
    pub(super) fn check(&self, services: &[u16]) -> Result<(Settings, ServerConfig)> {
        let silence = in_range("silence_s", self.silence_s, 10, 86400)?;
        let controllers = in_range("controllers", self.controllers, 1, 4096)?;
        let controllers_per_address = match self.controllers_per_address {
            Some(given) => in_range("controllers_per_address", given, 1, controllers)?,
            None => 0,
        };
        let queues = in_range("queues", self.queues, 1, 1024)?;
        let queues_per_address = match self.queues_per_address {
            Some(given) => in_range("queues_per_address", given, 1, queues)?,
            None => 0,
        };
        let drive_timeout = in_range("drive_timeout_s", self.drive_timeout_s, 1, 600)?;
        let settings = Settings {
            entries: in_range("entries", self.entries, 16, 1024)?,
            in_capsule_bytes: in_capsule(self.in_capsule_bytes)?,
            mdts: mdts(&self.max_transfer)?,
            io_queues: in_range("io_queues", self.io_queues, 1, 128)?,
            controllers,
            controllers_per_address,
            silence: Duration::from_secs(silence.into()),
            service: services[0],
            ..Settings::default()
        };
        let server = ServerConfig {
            services: services.to_vec(),
            queues,
            queues_per_address,
            buffers: in_range("buffers", self.buffers, 2, ServerConfig::MAX_BUFFERS)?,
            small_buffers: in_range(
                "small_buffers",
                self.small_buffers,
                2,
                ServerConfig::MAX_SMALL_BUFFERS,
            )?,
            remote_invalidate: self.remote_invalidate,
            drive_timeout: Duration::from_secs(drive_timeout.into()),
            ..ServerConfig::default()
        };
        Ok((settings, server))
    }
}

fn in_capsule(bytes: u32) -> Result<u32> {
    match bytes {
        4096 | 8192 | 16384 => Ok(bytes),
        _ => bail!("in_capsule_bytes is {bytes}; give 4096, 8192 or 16384"),
    }
}

fn mdts(text: &str) -> Result<u8> {
    let bytes = bytes_of(text).context("max_transfer")?;
    // The exponent 0 would tell hosts that there is no limit.
    let found = (1..=8).find(|shift| 4096u64 << shift == bytes);
    found.ok_or_else(|| anyhow!("max_transfer is {text}; give 8KiB, 16KiB and so on to 1MiB"))
}
