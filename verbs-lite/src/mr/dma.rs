//! [`DmaMr`]: one key for everything that is mapped, without registering any of it.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use ferrocx_core::Handle;
use ferrocx_prm::mkey::AccessMode;

use super::create::{check, context, create_mkey};
use super::{Memory, Mr, Registration};
use crate::error::VerbsError;
use crate::pd::{Pd, PdCore};
use crate::types::{Access, Lkey};

/// The key behind a [`DmaMr`].
#[derive(Debug)]
pub(crate) struct DmaKey {
    lkey: u32,
    /// `None` for the reserved L_Key, which is no object of ours.
    _handle: Option<Handle>,
    pd: Arc<PdCore>,
}

/// A key without bounds: it reaches all memory that this process mapped for the device, locally
/// only, and its addresses are bus addresses.
///
/// It is the reserved L_Key where the device has one, the same for every domain; otherwise a
/// physical-address key of the domain. Behind an IOMMU, which the driver insists on, it reaches
/// nothing that was not mapped. Buffers come from [`DmaMr::over`], so a work request still stays
/// inside memory that nobody borrows.
#[derive(Debug, Clone)]
pub struct DmaMr {
    pub(super) key: Arc<DmaKey>,
}

impl DmaMr {
    /// The key.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        Lkey(self.key.lkey)
    }

    /// Whether it is the reserved L_Key.
    #[must_use]
    pub fn is_reserved(&self) -> bool {
        self.key._handle.is_none()
    }

    /// Memory by this key: no command, no mkey, nothing to look up.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OtherDevice`]; [`VerbsError::Unsupported`] for memory that a peer may take
    /// back: this key cannot be ended.
    pub fn over(&self, memory: &Arc<Memory>) -> Result<Mr, VerbsError> {
        let pd = Pd { inner: Arc::clone(&self.key.pd) };
        check(&pd, memory, Access::LOCAL_WRITE)?;
        if memory.peer() != 0 {
            let (what, way_out) = ("end to a DMA key's access", "use the key of the PeerMr");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let registration = Registration {
            key: Mutex::new(None),
            lkey: self.key.lkey,
            access: Access::LOCAL_WRITE,
            start: memory.iova(),
            len: memory.len_bytes() as u64,
            offset: Some(0),
            memory: Arc::clone(memory),
            _others: Vec::new(),
            domain: self.key.pd.id(),
            _pd: Arc::clone(&self.key.pd),
            _dma: Some(Arc::clone(&self.key)),
            windows: AtomicU32::new(0),
        };
        registration.into_mr()
    }
}

impl Pd {
    /// A key for everything mapped, local access only: see [`DmaMr`].
    ///
    /// # Errors
    ///
    /// What the device refused.
    #[doc(alias = "ib_get_dma_mr")]
    pub fn get_dma_mr(&self) -> Result<DmaMr, VerbsError> {
        let pd = Arc::clone(&self.inner);
        if let Some(lkey) = pd.core.lkey {
            return Ok(DmaMr { key: Arc::new(DmaKey { lkey, _handle: None, pd }) });
        }
        self.physical_dma_mr()
    }

    /// A DMA key by a physical-address key of this domain even where the device has
    /// a reserved one.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn physical_dma_mr(&self) -> Result<DmaMr, VerbsError> {
        let pd = Arc::clone(&self.inner);
        let variant = pd.core.next_variant().into();
        let mkc = context(&pd, AccessMode::PA, Access::LOCAL_WRITE)
            .with_length64(true)
            .with_mkey_7_0(variant);
        let handle = create_mkey(&pd, mkc, Vec::new())?;
        let lkey = handle.number() << 8 | variant;
        Ok(DmaMr { key: Arc::new(DmaKey { lkey, _handle: Some(handle), pd }) })
    }
}
