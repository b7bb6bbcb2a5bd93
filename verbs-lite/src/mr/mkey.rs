//! [`Mkey`]: a key of the device. Its holder may end it, and from another thread memory that is
//! taken back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use ferrocx_core::{DeviceError, Handle, KeyRoom, Kind};
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::objects::CreateMkey;
use ferrocx_prm::mkey::{ANY_QPN, AccessMode, Mkc, key};

use crate::command::{Execute, own};
use crate::error::{VerbsError, lock};
use crate::pd::PdCore;
use crate::types::Access;

#[derive(Debug)]
pub(crate) struct Mkey {
    handle: Mutex<Handle>,
    is_taken: AtomicBool,
    /// Given back after the key is destroyed.
    _room: KeyRoom,
}

impl Mkey {
    /// Makes a key; the second result is how it stands in work requests. `tail` holds the
    /// translation entries, big-endian.
    pub(crate) fn create(
        pd: &PdCore,
        mkc: Mkc,
        mut tail: Vec<u8>,
    ) -> Result<(Arc<Self>, u32), VerbsError> {
        let device = pd.core.device();
        let room = device.take_key_room().map_err(DeviceError::from)?;
        let variant = device.next_key_variant().into();
        tail.resize(tail.len().next_multiple_of(16), 0);
        // Where the device cannot be asked for it, what it writes is in order, which does as well.
        let (hca, is_relaxed) = (pd.core.hca(), mkc.relaxed_ordering_write());
        let mkc = mkc
            .with_relaxed_ordering_write(is_relaxed && hca.relaxed_ordering_write())
            .with_relaxed_ordering_read(is_relaxed && hca.relaxed_ordering_read());
        let mkc = mkc.with_qpn(ANY_QPN).with_pd(pd.number()).with_mkey_7_0(variant);
        let octowords = (tail.len() / 16) as u32;
        let input = CreateMkey::input()
            .with_memory_key_mkey_entry(mkc)
            .with_translations_octword_actual_size(octowords);
        let index = device.execute::<CreateMkey>(&input, &tail, &mut [])?.mkey_index();
        let handle = Mutex::new(own(device, Kind::Mkey, index, Vec::new()));
        let mkey = Self { handle, is_taken: AtomicBool::new(false), _room: room };
        Ok((Arc::new(mkey), key(index, variant)))
    }

    /// Destroys it, once: when this returns `Ok`, no access through it succeeds.
    pub(crate) fn destroy(&self) -> Result<(), VerbsError> {
        Ok(lock(&self.handle).destroy()?)
    }

    /// Destroys it because memory that it leads to is taken back.
    pub(super) fn take(&self) -> Result<(), VerbsError> {
        self.is_taken.store(true, Ordering::Release);
        self.destroy()
    }

    /// Whether memory that it leads to was taken back.
    #[inline(always)]
    pub(crate) fn is_taken(&self) -> bool {
        self.is_taken.load(Ordering::Acquire)
    }
}

/// The context of a key that grants `access`.
pub(super) fn context(mode: AccessMode, access: Access) -> Mkc {
    access.apply(Mkc::zeroed().with_access_mode(mode))
}
