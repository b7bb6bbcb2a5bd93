//! Memory of a host, and the four ways in which keys over it are made.

use std::sync::Arc;

use ferrocx_verbs_lite::peer::{MappedProvider, PeerBlock, PeerClient, PeerRegistry};
use ferrocx_verbs_lite::registrar::{Client, Lane, RegistrarConfig, Worker, registrar};
use ferrocx_verbs_lite::*;

use crate::host::Host;

pub(crate) const PAGE: usize = 4096;
/// Pages of the memory, and those that a key covers.
pub(crate) const PAGES: usize = 8;
pub(crate) const KEY_PAGES: usize = 4;
pub(crate) const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);
const LAYOUT: ListLayout = ListLayout::Pages { log_page: 12 };

/// Where keys come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// A registration by command.
    Region,
    /// A fast registration on the connection itself.
    FastReg,
    /// Memory of a peer device, which takes it back.
    Peer,
    /// A registrar's pipeline.
    Pipeline,
}

/// Habits of traffic with keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeysPlan {
    pub(crate) seed: u64,
    pub(crate) source: Source,
    /// Operations wanted in all.
    pub(crate) operations: u64,
    /// Operations through one key at most.
    pub(crate) per_key: u64,
}

/// Memory of the owner, and what makes keys of it.
pub(crate) struct Place {
    pub(crate) memory: Option<Arc<Memory>>,
    pub(crate) slot: Option<KeySlot>,
    pub(crate) peer: Option<PeerPlace>,
    pub(crate) pipeline: Option<(Client, Worker)>,
    /// Receives of SENDs that end keys.
    pub(crate) receive: Mr,
}

pub(crate) struct PeerPlace {
    pub(crate) registry: PeerRegistry,
    pub(crate) block: PeerBlock,
    _client: PeerClient,
}

/// An error of the library, as it says it.
pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl Place {
    pub(crate) fn new(source: Source, host: &mut Host) -> Result<Self, String> {
        let down = || "the host is down".to_owned();
        let receive = host.memory(64).ok_or_else(down)?.map_err(text)?;
        let mut place = Self { memory: None, slot: None, peer: None, pipeline: None, receive };
        if source != Source::Peer {
            place.memory = Some(host.plain_memory(PAGES * PAGE).ok_or_else(down)?.map_err(text)?);
        }
        let up = host.up.as_ref().ok_or_else(down)?;
        match source {
            Source::Region => {}
            Source::FastReg => {
                let slot = KeySlot::new(&up.context, &up.pd, LAYOUT, KEY_PAGES as u32);
                place.slot = Some(slot.map_err(text)?);
            }
            Source::Peer => {
                let registry = PeerRegistry::new();
                let provider = MappedProvider::new("accelerator");
                let client = registry.register(Arc::new(provider.clone())).map_err(text)?;
                let block = provider.host(PAGES * PAGE, PAGE as u64).map_err(text)?;
                place.peer = Some(PeerPlace { registry, block, _client: client });
            }
            Source::Pipeline => {
                let lane = Lane::looped_back(&up.context, &up.pd, 32).map_err(text)?;
                let config = RegistrarConfig {
                    keys: 4,
                    max_page_list_len: 8,
                    ring_entries: 8,
                    ..RegistrarConfig::default()
                };
                let memories = place.memory.iter().cloned().collect();
                let made = registrar(&up.context, &up.pd, lane, memories, &config);
                place.pipeline = Some(made.map_err(text)?);
            }
        }
        Ok(place)
    }

    /// Everything that the memory holds.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; PAGES * PAGE];
        let read = match (&self.memory, &self.peer) {
            (Some(memory), _) => memory.region().copy_out(0, &mut bytes),
            (_, Some(peer)) => {
                let (region, start) = peer.block.region();
                region.copy_out(start, &mut bytes)
            }
            _ => Ok(()),
        };
        read.expect("the whole of a memory is inside it");
        bytes
    }
}
