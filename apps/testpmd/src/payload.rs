//! Memory of another device for payloads of packets: `--payload`.

use anyhow::{Context, Result};
use ferrocx_app_common::peer::PeerSpec;
use ferrocx_bus::inherited_file;
use ferrocx_mempool::{Pool, PoolConfig};
use ferrocx_verbs_lite::peer::{BarCaching, MappedProvider, PeerBlock, cuda::CudaProvider};

use crate::config::QueueSettings;

/// Pages of memory that is allocated for a pool.
const PAGE: u64 = 4096;
/// Where payload pools come from. Their memory is lent to the adapters as long as these have the
/// pools, so nothing here takes it back before.
#[derive(Debug)]
pub struct Payloads {
    source: Source,
    /// Memory that was taken, for as long as this lives.
    blocks: Vec<PeerBlock>,
}

#[derive(Debug)]
enum Source {
    /// One block, of which so many bytes are in use.
    Block(u64),
    /// Ordinary pools.
    Host,
    Cuda(CudaProvider),
    CudaMapped(CudaProvider),
}

impl Payloads {
    /// Opens the memory.
    ///
    /// # Errors
    /// What the system or the GPU's driver lacks.
    pub fn open(spec: PeerSpec) -> Result<Self> {
        let provider = MappedProvider::new(&spec.to_string());
        let mut blocks = Vec::new();
        let source = match spec {
            PeerSpec::Host => Source::Host,
            PeerSpec::Cuda(ordinal) => Source::Cuda(CudaProvider::open(ordinal)?),
            PeerSpec::CudaMapped(ordinal) => Source::CudaMapped(CudaProvider::open(ordinal)?),
            PeerSpec::Pci(address, bar) => {
                blocks.push(provider.pci_bar(&address.to_string(), bar, BarCaching::Uncached)?);
                Source::Block(0)
            }
            PeerSpec::Vfio(address, bar) => {
                blocks.push(provider.vfio_bar(&address.to_string(), bar)?);
                Source::Block(0)
            }
            PeerSpec::DmaBuf(number) => {
                blocks.push(provider.dma_buf(inherited_file(number)?)?);
                Source::Block(0)
            }
        };
        tracing::info!(%spec, "payloads");
        Ok(Self { source, blocks })
    }

    /// A pool of payload buffers for a port.
    ///
    /// # Errors
    /// The memory is too small, or there is none.
    pub fn pool(&mut self, name: &str, queues: &QueueSettings) -> Result<Pool> {
        let config = PoolConfig {
            name: name.to_owned(),
            count: queues.mbufs,
            data_room_bytes: queues.mbuf_bytes,
            headroom_bytes: 0,
            cache_size: queues.mbuf_cache,
            ..PoolConfig::default()
        };
        let len = config.region_bytes();
        let at = match &mut self.source {
            Source::Block(used) => {
                let at = *used;
                *used += (len as u64).next_multiple_of(PAGE);
                at
            }
            Source::Host => return Ok(Pool::new(&config)?),
            Source::Cuda(provider) => {
                self.blocks.push(provider.alloc(len)?);
                0
            }
            Source::CudaMapped(provider) => {
                self.blocks.push(provider.alloc_mapped(len)?.block);
                0
            }
        };
        let block = self.blocks.last().context("a block was just taken")?;
        let (region, start) = block.region();
        let offset = start + usize::try_from(at)?;
        Pool::with_region(&config, region, offset)
            .context("fewer or smaller buffers need less: --rxd, --txd, --mbuf-cache, --mbuf-size")
    }
}
