//! Messages in memory of another device: `--peer`.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use ferrocx_app_common::device::{DeviceSpec, PciAddress};
use ferrocx_verbs_lite::peer::cuda::CudaProvider;
use ferrocx_verbs_lite::peer::{
    BarCaching, MappedProvider, PeerBlock, PeerClient, PeerConfig, PeerMr, PeerRegistry,
};
use ferrocx_verbs_lite::{Access, Memory, Mr, Pd};

use crate::config::ConfigError;

/// Messages start at multiples of it.
const PAGE: u64 = 4096;

/// Whose memory holds the messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerSpec {
    /// Host memory, by way of a provider.
    Host,
    /// A BAR of a PCI device.
    Pci(PciAddress, u8),
    /// Memory of a GPU.
    Cuda(u32),
    /// Host memory that a GPU reaches.
    CudaMapped(u32),
}

impl FromStr for PeerSpec {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let known = "host, pci:ADDRESS/BAR such as pci:0000:05:00.0/2, cuda:N or cuda-mapped:N";
        let bad = || ConfigError::unknown("peer memory", text, known);
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match kind {
            "host" if rest.is_empty() => Ok(Self::Host),
            "pci" => {
                let (address, bar) = rest.split_once('/').ok_or_else(bad)?;
                let bar = bar.parse().ok().filter(|bar| *bar < 6).ok_or_else(bad)?;
                match address.parse() {
                    Ok(DeviceSpec::Pci(address)) => Ok(Self::Pci(address, bar)),
                    _ => Err(bad()),
                }
            }
            "cuda" => Ok(Self::Cuda(rest.parse().map_err(|_| bad())?)),
            "cuda-mapped" => Ok(Self::CudaMapped(rest.parse().map_err(|_| bad())?)),
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for PeerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Pci(address, bar) => write!(f, "pci:{address}/{bar}"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::CudaMapped(ordinal) => write!(f, "cuda-mapped:{ordinal}"),
        }
    }
}

/// A provider in its registry, and what was taken of it.
#[derive(Debug)]
pub struct PeerSource {
    spec: PeerSpec,
    provider: Provider,
    taken: Mutex<Taken>,
    registry: PeerRegistry,
    /// Unregisters the provider when all of the above is gone.
    _client: PeerClient,
}

#[derive(Debug)]
enum Provider {
    Mapped(MappedProvider),
    Cuda(CudaProvider),
}

#[derive(Debug, Default)]
struct Taken {
    regions: Vec<PeerMr>,
    blocks: Vec<PeerBlock>,
    /// Bytes of the BAR in use.
    used: u64,
}

impl PeerSource {
    /// Registers the provider.
    ///
    /// # Errors
    ///
    /// What the system or the GPU's driver lacks.
    pub fn new(spec: &PeerSpec) -> Result<Self> {
        let provider = match spec {
            PeerSpec::Host | PeerSpec::Pci(..) => {
                Provider::Mapped(MappedProvider::new(&spec.to_string()))
            }
            PeerSpec::Cuda(ordinal) | PeerSpec::CudaMapped(ordinal) => {
                Provider::Cuda(CudaProvider::open(*ordinal)?)
            }
        };
        let registry = PeerRegistry::new();
        let client = match &provider {
            Provider::Mapped(mapped) => registry.register(Arc::new(mapped.clone()))?,
            Provider::Cuda(cuda) => registry.register(Arc::new(cuda.clone()))?,
        };
        let mut taken = Taken::default();
        if let (PeerSpec::Pci(address, bar), Provider::Mapped(mapped)) = (spec, &provider) {
            // Its provider gives out one block, of which regions are cut.
            taken.blocks.push(mapped.pci_bar(&address.to_string(), *bar, BarCaching::Uncached)?);
        }
        let taken = Mutex::new(taken);
        Ok(Self { spec: spec.clone(), provider, taken, registry, _client: client })
    }

    /// Takes memory of the peer and registers it.
    ///
    /// # Errors
    ///
    /// No room, or the provider's or the device's reason.
    pub fn memory(&self, pd: &Pd, len_bytes: usize, access: Access) -> Result<(Arc<Memory>, Mr)> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let len = (len_bytes as u64).next_multiple_of(PAGE);
        let range = match (&self.provider, taken.blocks.first()) {
            (Provider::Mapped(_), Some(bar)) if matches!(self.spec, PeerSpec::Pci(..)) => {
                let (at, room) = (taken.used, bar.len_bytes() - taken.used);
                ensure!(len <= room, "{} has {room} bytes left, {len} are needed", self.spec);
                let range = bar.range(at, len);
                taken.used += len;
                range
            }
            (provider, _) => {
                let block = match provider {
                    Provider::Mapped(mapped) => mapped.host(len as usize, PAGE)?,
                    Provider::Cuda(cuda) if matches!(self.spec, PeerSpec::CudaMapped(_)) => {
                        cuda.alloc_mapped(len as usize)?.0
                    }
                    Provider::Cuda(cuda) => cuda.alloc(len as usize)?,
                };
                let range = block.range(0, len);
                taken.blocks.push(block);
                range
            }
        };
        let mr = self.registry.reg_mr(pd, range, &PeerConfig::new(access))?;
        let memory = mr.memories().first().cloned().context("a region has memory")?;
        let result = (memory, mr.mr().clone());
        taken.regions.push(mr);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_named_as_they_are_printed() {
        for text in ["host", "pci:0000:05:00.0/2", "cuda:0", "cuda-mapped:3"] {
            assert_eq!(text.parse::<PeerSpec>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "host:1", "pci:0000:05:00.0", "pci:0000:05:00.0/6", "cuda:x"] {
            let error = text.parse::<PeerSpec>().unwrap_err().to_string();
            assert!(error.contains("pci:ADDRESS/BAR"), "{error}");
        }
    }
}
