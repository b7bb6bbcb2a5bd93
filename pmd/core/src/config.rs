//! Settings: plain structs with defaults, checked once when they are used.

use std::time::Duration;

use ferrocx_mempool::PageSize;

use crate::error::ConfigError;

/// Smallest number of descriptors of a queue that the driver takes. The device may want more: see
/// [`crate::Limits`].
pub const MIN_DESCRIPTORS: u32 = 64;
/// Largest number of descriptors of a queue that the driver takes. The device may allow fewer: see
/// [`crate::Limits`].
pub const MAX_DESCRIPTORS: u32 = 32768;
/// Smallest MTU. Source: RFC 791, every internet destination takes 68 bytes.
pub const MIN_MTU: u16 = 68;
/// Largest MTU that a ConnectX port takes (its L2 limit of 10 000 bytes less headers).
pub const MAX_MTU: u16 = 9978;

/// How buffers are addressed by the device.
///
/// | mode | key | bounds | needs |
/// |---|---|---|---|
/// | `Reserved` | the reserved L_Key | none: the IOVA is the bus address | `resd_lkey` of QUERY_SPECIAL_CONTEXTS, queues with `rlky` |
/// | `Physical` | one mkey, PA access, length64 | none | CREATE_MKEY in PA mode |
/// | `Translated` | one MTT mkey for each pool's region | the region | nothing more |
///
/// [Foreign](ferrocx_mempool::Backing::Foreign) memory has an MTT mkey of its own in every mode, so
/// that its owner can have it back.
///
/// The first two reach whatever the IOMMU lets this device reach, which is what this process
/// mapped. Without an IOMMU that would be the whole machine; the transports refuse that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeyMode {
    /// The reserved L_Key.
    Reserved,
    /// A physical-address mkey.
    Physical,
    /// An mkey with page translations for each region.
    Translated,
}

impl std::fmt::Display for KeyMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Reserved => "reserved L_Key",
            Self::Physical => "physical-address mkey",
            Self::Translated => "translated mkeys",
        })
    }
}

/// How a device is brought up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[doc(alias = "rte_eth_conf")]
pub struct DeviceConfig {
    /// Largest layer-3 packet, [`MIN_MTU`] to [`MAX_MTU`] and at most what the port can do.
    pub mtu: u16,
    /// Receive every frame, whatever its destination.
    pub promiscuous: bool,
    /// Receive every multicast frame.
    pub all_multicast: bool,
    /// How buffers are addressed; `None` for the first mode that the device has.
    pub key_mode: Option<KeyMode>,
    /// Pages for command queue, rings, and firmware memory.
    pub page: PageSize,
    /// NUMA node for them; `None` for the device's own where it is known.
    pub numa_node: Option<u32>,
    /// Whether that memory can be shared with another process (the model behind vfio-user).
    pub shared_memory: bool,
    /// How long a command may take, 1 ms to 1 h.
    pub command_timeout: Duration,
    /// How long a reset and the firmware's start may take, 1 ms to 1 h.
    pub reset_timeout: Duration,
    /// Least time between two compared readings of the health counter.
    pub health_interval: Duration,
    /// Entries of the event queue, a power of two from 64 to 4096.
    pub event_entries: u32,
    /// Entries of the table for flow rules, a power of two from 1 to 65536.
    pub flow_rules: u32,
    /// Most pages of 4 KiB that the firmware may have at a time.
    pub max_firmware_pages: u32,
    /// Most memory keys that programs may have at a time: regions, windows, keys for fast
    /// registration. Beyond what the device has it is without effect.
    pub max_memory_keys: u32,
    /// Reset the function first. Without it, a device that another driver left initialised
    /// refuses INIT_HCA.
    pub reset_first: bool,
}

impl Default for DeviceConfig {
    /// MTU 1500, own MAC only, best key mode, 60 s per command (Linux's limit, reference 2.4).
    fn default() -> Self {
        Self {
            mtu: 1500,
            promiscuous: false,
            all_multicast: false,
            key_mode: None,
            page: PageSize::Auto,
            numa_node: None,
            shared_memory: false,
            command_timeout: Duration::from_secs(60),
            reset_timeout: Duration::from_secs(120),
            health_interval: crate::health::POLL_INTERVAL,
            event_entries: 256,
            flow_rules: 1024,
            max_firmware_pages: 1 << 18,
            max_memory_keys: 1 << 18,
            reset_first: true,
        }
    }
}

/// A checked [`DeviceConfig`].
#[derive(Debug, Clone)]
pub(crate) struct Checked {
    pub(crate) config: DeviceConfig,
    pub(crate) log_event_entries: u8,
    pub(crate) log_flow_rules: u8,
}

impl DeviceConfig {
    /// Checks what can be checked without a device.
    pub(crate) fn check(&self) -> Result<Checked, ConfigError> {
        check_mtu(self.mtu, MAX_MTU)?;
        for (what, value) in [
            ("command timeout in ms", self.command_timeout),
            ("reset timeout in ms", self.reset_timeout),
        ] {
            let ms = u64::try_from(value.as_millis()).unwrap_or(u64::MAX);
            ConfigError::range(what, ms, 1, 3_600_000, "")?;
        }
        Ok(Checked {
            config: self.clone(),
            log_event_entries: ConfigError::log2(
                "event queue entries",
                self.event_entries,
                64,
                4096,
                "",
            )?,
            log_flow_rules: ConfigError::log2("flow rules", self.flow_rules, 1, 65536, "")?,
        })
    }
}

/// Checks an MTU against the port's limit.
pub(crate) fn check_mtu(mtu: u16, max: u16) -> Result<(), ConfigError> {
    ConfigError::range("MTU", mtu.into(), MIN_MTU.into(), max.into(), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_one_sentence_with_value_limit_and_way_out() {
        let config = DeviceConfig { mtu: 67, ..DeviceConfig::default() };
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "MTU is 67; it must be 68 to 9978");
        let config = DeviceConfig { event_entries: 100, ..DeviceConfig::default() };
        let error = config.check().unwrap_err().to_string();
        assert_eq!(error, "event queue entries is 100; it must be a power of two, for example 128");
        for bad in [Duration::ZERO, Duration::from_secs(3601)] {
            let config = DeviceConfig { command_timeout: bad, ..DeviceConfig::default() };
            assert!(config.check().is_err());
        }
        for (value, good) in [(63, false), (64, true), (4096, true), (4097, false), (8192, false)] {
            let config = DeviceConfig { event_entries: value, ..DeviceConfig::default() };
            assert_eq!(config.check().is_ok(), good, "{value}");
        }
        assert!(DeviceConfig::default().check().is_ok());
    }
}
