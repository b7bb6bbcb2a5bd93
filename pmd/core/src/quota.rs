//! [`KeyUse`]: how many memory keys programs have registered, and how many they may.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::error::ConfigError;

/// Memory keys of a device that crates above made: regions, windows, keys for fast registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyUse {
    /// That exist.
    pub in_use: u32,
    /// That may exist at a time: [`DeviceConfig::max_memory_keys`](crate::DeviceConfig), or fewer
    /// where the device has fewer.
    pub max: u32,
    /// Requests for one more that were refused.
    pub refused: u64,
}

/// The counts that all handles of a device share.
#[derive(Debug)]
pub(crate) struct Quota {
    max: u32,
    in_use: AtomicU32,
    refused: AtomicU64,
}

impl Quota {
    pub(crate) fn new(max: u32) -> Arc<Self> {
        Arc::new(Self { max, in_use: AtomicU32::new(0), refused: AtomicU64::new(0) })
    }

    pub(crate) fn take(self: &Arc<Self>) -> Result<KeyRoom, ConfigError> {
        let max = self.max;
        let more = |in_use: u32| (in_use < max).then_some(in_use + 1);
        if self.in_use.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok() {
            return Ok(KeyRoom(Arc::clone(self)));
        }
        if self.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(max, "as many memory keys as there may be; further ones are refused");
        }
        let (value, max) = (u64::from(max) + 1, max.into());
        let hint = ": end some, or raise DeviceConfig::max_memory_keys";
        Err(ConfigError::Range { what: "number of memory keys", value, min: 0, max, hint })
    }

    pub(crate) fn usage(&self) -> KeyUse {
        KeyUse {
            in_use: self.in_use.load(Ordering::Acquire),
            max: self.max,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Room for one memory key; free again when it is dropped.
#[derive(Debug)]
pub struct KeyRoom(Arc<Quota>);

impl Drop for KeyRoom {
    fn drop(&mut self) {
        self.0.in_use.fetch_sub(1, Ordering::AcqRel);
    }
}
