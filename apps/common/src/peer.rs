//! Memory of another device, as the command line names it: `--peer` and `--payload`.

use std::fmt;
use std::str::FromStr;

use crate::device::PciAddress;
use crate::option::ConfigError;

/// Number of the highest BAR.
const LAST_BAR: u8 = 5;
/// Numbers of open files up to here are standard input, output and error.
const STANDARD_ERROR: i32 = 2;

/// Whose memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerSpec {
    /// Host memory, by way of a provider.
    Host,
    /// A BAR of a PCI device, through sysfs.
    Pci(PciAddress, u8),
    /// A BAR of a PCI device that is bound to vfio-pci.
    Vfio(PciAddress, u8),
    /// A dma-buf, by the number of its open file, which this process inherited.
    DmaBuf(i32),
    /// Memory of a GPU.
    Cuda(u32),
    /// Host memory that a GPU reaches.
    CudaMapped(u32),
}

impl PeerSpec {
    /// Forms that exist, for messages.
    pub const KNOWN: &'static str = "host, pci:ADDRESS/BAR such as pci:0000:05:00.0/2, \
         vfio:ADDRESS/BAR, dmabuf:FD with the number of an inherited file, cuda:N or cuda-mapped:N";
}

impl FromStr for PeerSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let bar = || {
            let (address, bar) = rest.split_once('/')?;
            let bar = bar.parse().ok().filter(|bar| *bar <= LAST_BAR)?;
            Some((PciAddress::parse(address)?, bar))
        };
        let found = match kind {
            "host" => rest.is_empty().then_some(Self::Host),
            "pci" => bar().map(|(address, bar)| Self::Pci(address, bar)),
            "vfio" => bar().map(|(address, bar)| Self::Vfio(address, bar)),
            "dmabuf" => rest.parse().ok().filter(|fd| *fd > STANDARD_ERROR).map(Self::DmaBuf),
            "cuda" => rest.parse().ok().map(Self::Cuda),
            "cuda-mapped" => rest.parse().ok().map(Self::CudaMapped),
            _ => None,
        };
        found.ok_or_else(|| ConfigError::unknown("peer memory", text, Self::KNOWN))
    }
}

impl fmt::Display for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Pci(address, bar) => write!(f, "pci:{address}/{bar}"),
            Self::Vfio(address, bar) => write!(f, "vfio:{address}/{bar}"),
            Self::DmaBuf(fd) => write!(f, "dmabuf:{fd}"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::CudaMapped(ordinal) => write!(f, "cuda-mapped:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_as_they_are_printed() {
        for text in [
            "host",
            "pci:0000:05:00.0/2",
            "vfio:0000:05:00.0/0",
            "dmabuf:3",
            "cuda:0",
            "cuda-mapped:3",
        ] {
            assert_eq!(text.parse::<PeerSpec>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "gpu",
            "host:1",
            "pci:0000:05:00.0",
            "pci:0000:05:00.0/6",
            "vfio:model/0",
            "dmabuf:2",
            "dmabuf:-1",
            "cuda:x",
        ] {
            let error = text.parse::<PeerSpec>().unwrap_err().to_string();
            assert!(error.contains("pci:ADDRESS/BAR"), "{error}");
        }
    }
}
