//! [`DeviceName`]: which device to open, as users write it: `model`, `model:key=value,...` or a PCI
//! address.

use std::{fmt, str::FromStr};

use thiserror::Error;

/// The device that the user named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceName {
    /// The software ConnectX in this process.
    Model(ModelOptions),
    /// A ConnectX bound to `vfio-pci`.
    Pci(PciAddress),
}

impl Default for DeviceName {
    fn default() -> Self {
        Self::Model(ModelOptions::default())
    }
}

/// Why the device cannot be used. One sentence: the value, the limit, the way out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// Neither `model` nor a PCI address.
    #[error(
        "unknown device `{text}`; give `model`, `model:key=value,...` or a PCI address such as \
         0000:3b:00.0"
    )]
    Unknown {
        /// What was given.
        text: String,
    },
    /// A model option that does not exist.
    #[error("the model has no option `{key}`; it has {known}")]
    UnknownOption {
        /// The key.
        key: String,
        /// The keys that exist.
        known: &'static str,
    },
    /// A model option whose value is out of its range.
    #[error("model option {key}={value} is out of range; give {range}")]
    OptionRange {
        /// The key.
        key: &'static str,
        /// The value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
}

/// What can be chosen about the software model, as `model:key=value,key=value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOptions {
    /// Seed of the base of I/O addresses and of every random choice: 0 to 2^64 - 1.
    pub seed: u64,
    /// The network that the port hangs on: a switch in this process for the ports that name it.
    pub net: String,
    /// The TAP interface of Linux that is the port's wire, in place of the network.
    pub tap: Option<String>,
}

impl Default for ModelOptions {
    fn default() -> Self {
        Self { seed: 1, net: String::new(), tap: None }
    }
}

impl ModelOptions {
    /// Whether they say what the port is plugged into.
    #[must_use]
    pub fn has_wire(&self) -> bool {
        self.tap.is_some() || !self.net.is_empty()
    }

    const KNOWN: &'static str = "`seed`, `net`, `tap`";

    fn parse(text: &str) -> Result<Self, NameError> {
        let mut options = Self::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match key {
                "seed" => {
                    options.seed = value.parse().map_err(|_| NameError::OptionRange {
                        key: "seed",
                        value: value.into(),
                        range: "a number from 0 to 18446744073709551615",
                    })?;
                }
                "net" => options.net = value.into(),
                "tap" if value.is_empty() => {
                    let (value, range) = (value.into(), "the name of an interface");
                    return Err(NameError::OptionRange { key: "tap", value, range });
                }
                "tap" => options.tap = Some(value.into()),
                _ => {
                    return Err(NameError::UnknownOption { key: key.into(), known: Self::KNOWN });
                }
            }
        }
        Ok(options)
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "model" {
            return Ok(Self::default());
        }
        if let Some(options) = text.strip_prefix("model:") {
            return Ok(Self::Model(ModelOptions::parse(options)?));
        }
        match PciAddress::parse(text) {
            Some(address) => Ok(Self::Pci(address)),
            None => Err(NameError::Unknown { text: text.into() }),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Model(ModelOptions { seed, net, tap }) => {
                write!(f, "model:seed={seed}")?;
                if !net.is_empty() {
                    write!(f, ",net={net}")?;
                }
                tap.iter().try_for_each(|tap| write!(f, ",tap={tap}"))
            }
            Self::Pci(address) => address.fmt(f),
        }
    }
}

/// Domain, bus, device and function of a PCI device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// PCI domain.
    pub domain: u32,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl PciAddress {
    /// Reads `0000:3b:00.0`, or `3b:00.0` for domain 0; hexadecimal, as `lspci` prints it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (rest, function) = text.rsplit_once('.')?;
        let mut parts = rest.rsplit(':');
        let device = hex(parts.next()?, 2)?;
        let bus = hex(parts.next()?, 2)?;
        let domain = match parts.next() {
            Some(domain) => hex(domain, 8)?,
            None => 0,
        };
        let function = hex(function, 1)?;
        if parts.next().is_some() || device > 31 || function > 7 {
            return None;
        }
        Some(Self {
            domain,
            bus: u8::try_from(bus).ok()?,
            device: u8::try_from(device).ok()?,
            function: u8::try_from(function).ok()?,
        })
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// A hexadecimal number of 1 to `digits` digits, without sign or prefix.
fn hex(text: &str, digits: usize) -> Option<u32> {
    let plain = (1..=digits).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: PciAddress = PciAddress { domain: 0, bus: 0x3b, device: 0, function: 1 };

    #[test]
    fn addresses_are_read_as_lspci_prints_them() {
        assert_eq!(PciAddress::parse("0000:3b:00.1"), Some(ADDRESS));
        assert_eq!(PciAddress::parse("3b:00.1"), Some(ADDRESS));
        let last = PciAddress { domain: 0x10000, bus: 0xff, device: 31, function: 7 };
        assert_eq!(PciAddress::parse("10000:ff:1f.7"), Some(last));
        assert_eq!(last.to_string(), "10000:ff:1f.7");
        for wrong in [
            "",
            "3b",
            "3b:00",
            "3b:20.0",
            "3b:00.8",
            "0:0:3b:00.0",
            "+3:00.0",
            "3b:00.",
            "3bb:00.0",
        ] {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_name_is_a_model_or_an_address_or_an_error_that_names_both() {
        assert_eq!("model".parse::<DeviceName>().unwrap(), DeviceName::default());
        let seeded = DeviceName::Model(ModelOptions { seed: 7, ..ModelOptions::default() });
        assert_eq!("model:seed=7".parse::<DeviceName>().unwrap(), seeded);
        assert_eq!("3b:0.1".parse::<DeviceName>().unwrap(), DeviceName::Pci(ADDRESS));
        let sentence = "eth0".parse::<DeviceName>().unwrap_err().to_string();
        assert!(sentence.contains("`eth0`") && sentence.contains("0000:3b:00.0"), "{sentence}");
        let sentence = "model:sed=7".parse::<DeviceName>().unwrap_err().to_string();
        assert_eq!(sentence, "the model has no option `sed`; it has `seed`, `net`, `tap`");
        let sentence = "model:seed=-1".parse::<DeviceName>().unwrap_err().to_string();
        assert!(sentence.contains("seed=-1 is out of range"), "{sentence}");
    }
}
