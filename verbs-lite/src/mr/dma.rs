//! [`DmaMr`]: one key for everything that is mapped, without registering any of it.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ferrocx_prm::mkey::AccessMode;

use super::mkey::{Mkey, context};
use super::{Memory, Mr, Place, Registration};
use crate::error::VerbsError;
use crate::pd::Pd;
use crate::types::{Access, Lkey};

/// The key behind a [`DmaMr`].
#[derive(Debug)]
pub(super) struct DmaKey {
    lkey: u32,
    /// `None` for the reserved L_Key, which is no object of ours.
    mkey: Option<Arc<Mkey>>,
    pd: Pd,
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
        self.key.mkey.is_none()
    }

    /// Memory by this key: no command, no mkey, nothing to look up.
    ///
    /// # Errors
    ///
    /// [`VerbsError::OtherDevice`]; [`VerbsError::Unsupported`] for memory that a peer may take
    /// back: this key cannot be ended.
    pub fn over(&self, memory: &Arc<Memory>) -> Result<Mr, VerbsError> {
        let (pd, access) = (&self.key.pd, Access::LOCAL_WRITE);
        pd.check_registrable(memory, access)?;
        if memory.peer() != 0 {
            let (what, way_out) = ("end to a DMA key's access", "use the key of the PeerMr");
            return Err(VerbsError::Unsupported { what, way_out });
        }
        let registration = Registration {
            mkey: None,
            lkey: self.key.lkey,
            access,
            start: memory.iova(),
            len: memory.len_bytes() as u64,
            offset: Some(0),
            memory: Place::Host(Arc::clone(memory)),
            others: Vec::new(),
            domain: pd.domain(),
            pd: Arc::clone(&pd.inner),
            _dma: Some(Arc::clone(&self.key)),
            windows: AtomicU32::new(0),
        };
        registration.into_mr()
    }
}

impl Pd {
    /// A key for everything mapped, local access only: see [`DmaMr`].
    #[doc(alias = "ib_get_dma_mr")]
    pub fn get_dma_mr(&self) -> Result<DmaMr, VerbsError> {
        let Some(lkey) = self.inner.core.lkey else { return self.physical_dma_mr() };
        Ok(DmaMr { key: Arc::new(DmaKey { lkey, mkey: None, pd: self.clone() }) })
    }

    /// A DMA key by a physical-address key of this domain even where the device has
    /// a reserved one.
    pub fn physical_dma_mr(&self) -> Result<DmaMr, VerbsError> {
        let mkc = context(AccessMode::PA, Access::LOCAL_WRITE).with_length64(true);
        let (mkey, lkey) = Mkey::create(&self.inner, mkc, Vec::new())?;
        Ok(DmaMr { key: Arc::new(DmaKey { lkey, mkey: Some(mkey), pd: self.clone() }) })
    }
}
