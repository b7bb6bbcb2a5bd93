//! [`Peer`]: memory of another device behind a namespace, lent by the broker of peer memory.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use ferrocx::verbs::peer::{
    BarCaching, MappedProvider, PeerBlock, PeerClient, PeerConfig, PeerMr, PeerRegistry,
};
use ferrocx::verbs::{Access, Pd};
use ferrocx_app_common::peer::PeerSpec;

/// What namespaces may lie in, for messages.
pub const KNOWN: &str = "pci:0000:41:00.0/2, a BAR by the kernel's files; vfio:0000:41:00.0/2, one \
     of a device on vfio-pci; or host, ordinary memory, for tests";

/// Memory of another device, registered with the port. Whoever owns it may take it back at any
/// time: commands fail from then on.
#[derive(Debug)]
pub struct Peer {
    region: PeerMr,
    len_bytes: u64,
    block: PeerBlock,
    /// Unregisters the provider when all of the above is gone.
    _client: PeerClient,
}

/// Reads the name of some peer memory that namespaces may lie in.
///
/// # Errors
///
/// A sentence about the text.
pub fn spec_of(text: &str) -> Result<PeerSpec> {
    match text.parse::<PeerSpec>() {
        Ok(spec @ (PeerSpec::Host | PeerSpec::Pci(..) | PeerSpec::Vfio(..))) => Ok(spec),
        _ => bail!("path `{text}` names no peer memory; give {KNOWN}"),
    }
}

/// The file by which the processor reaches a BAR that the kernel shows.
#[must_use]
pub fn resource(spec: &PeerSpec) -> Option<PathBuf> {
    match spec {
        PeerSpec::Pci(address, bar) => {
            Some(format!("/sys/bus/pci/devices/{address}/resource{bar}").into())
        }
        _ => None,
    }
}

impl Peer {
    /// Registers `len_bytes` of some memory from its start on, or all of it.
    ///
    /// # Errors
    ///
    /// Less memory than that, and what the system or the device refused; nothing stays then.
    pub fn open(spec: &PeerSpec, pd: &Pd, len_bytes: Option<u64>) -> Result<Self> {
        let provider = MappedProvider::new(&spec.to_string());
        let registry = PeerRegistry::new();
        let client = registry.register(Arc::new(provider.clone()))?;
        let block = match spec {
            PeerSpec::Pci(address, bar) => {
                provider.pci_bar(&address.to_string(), *bar, BarCaching::Uncached)?
            }
            PeerSpec::Vfio(address, bar) => provider.vfio_bar(&address.to_string(), *bar)?,
            _ => {
                let len = len_bytes.context("there is no size; give one")?;
                provider.host(usize::try_from(len.next_multiple_of(4096))?, 4096)?
            }
        };
        let (has, len_bytes) = (block.len_bytes(), len_bytes.unwrap_or(block.len_bytes()));
        ensure!(len_bytes <= has, "size is {len_bytes}, and it has {has} bytes; make size smaller");
        let config = PeerConfig::new(Access::LOCAL_WRITE);
        let region = registry.reg_mr(pd, block.range(0, len_bytes), &config)?;
        Ok(Self { region, len_bytes, block, _client: client })
    }

    /// Its bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Its registration with the port.
    #[must_use]
    pub fn region(&self) -> &PeerMr {
        &self.region
    }

    /// The memory as its owner has it, who may take it back.
    #[must_use]
    pub fn block(&self) -> &PeerBlock {
        &self.block
    }
}
