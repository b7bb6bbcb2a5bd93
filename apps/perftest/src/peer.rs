//! Messages in memory of another device: `--peer`.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_bus::inherited_file;
use ferrocx_verbs_lite::peer::cuda::CudaProvider;
use ferrocx_verbs_lite::peer::{
    BarCaching, MappedProvider, PeerBlock, PeerClient, PeerConfig, PeerMr, PeerRegistry,
};
use ferrocx_verbs_lite::{Access, Memory, Mr, Pd};

/// Messages start at multiples of it.
const PAGE: u64 = 4096;

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
    /// Whether the first block is all that there is, so that regions are cut of it.
    is_one_block: bool,
    /// Bytes of it in use, and where this end's share of it ends.
    used: u64,
    end: u64,
}

impl PeerSource {
    /// Registers the provider. Of memory that is there only once, as a BAR is, this is the user
    /// number `share.0` of `share.1`, each of whom gets an equal part.
    ///
    /// # Errors
    ///
    /// What the system or the GPU's driver lacks.
    pub fn new(spec: &PeerSpec, share: (u64, u64)) -> Result<Self> {
        let provider = match spec {
            PeerSpec::Cuda(ordinal) | PeerSpec::CudaMapped(ordinal) => {
                Provider::Cuda(CudaProvider::open(*ordinal)?)
            }
            _ => Provider::Mapped(MappedProvider::new(&spec.to_string())),
        };
        let registry = PeerRegistry::new();
        let client = match &provider {
            Provider::Mapped(mapped) => registry.register(Arc::new(mapped.clone()))?,
            Provider::Cuda(cuda) => registry.register(Arc::new(cuda.clone()))?,
        };
        let mut taken = Taken::default();
        if let Provider::Mapped(mapped) = &provider
            && let Some(block) = whole(*spec, mapped)?
        {
            let part = (block.len_bytes() / share.1) & !(PAGE - 1);
            (taken.used, taken.end) = (part * share.0, part * (share.0 + 1));
            taken.is_one_block = true;
            taken.blocks.push(block);
        }
        let taken = Mutex::new(taken);
        Ok(Self { spec: *spec, provider, taken, registry, _client: client })
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
            (Provider::Mapped(_), Some(bar)) if taken.is_one_block => {
                let (at, room) = (taken.used, taken.end - taken.used);
                ensure!(len <= room, "{} has {room} bytes left, {len} are needed", self.spec);
                let range = bar.range(at, len);
                taken.used += len;
                range
            }
            (provider, _) => {
                let block = match provider {
                    Provider::Mapped(mapped) => mapped.host(len as usize, PAGE)?,
                    Provider::Cuda(cuda) if matches!(self.spec, PeerSpec::CudaMapped(_)) => {
                        cuda.alloc_mapped(len as usize)?.block
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

/// All of a BAR or of a dma-buf; `None` for memory that is allocated when it is needed.
fn whole(spec: PeerSpec, provider: &MappedProvider) -> Result<Option<PeerBlock>> {
    Ok(Some(match spec {
        PeerSpec::Pci(address, bar) => {
            provider.pci_bar(&address.to_string(), bar, BarCaching::Uncached)?
        }
        PeerSpec::Vfio(address, bar) => provider.vfio_bar(&address.to_string(), bar)?,
        PeerSpec::DmaBuf(number) => provider.dma_buf(inherited_file(number)?)?,
        PeerSpec::Host | PeerSpec::Cuda(_) | PeerSpec::CudaMapped(_) => return Ok(None),
    }))
}
