//! [`Mkey`]: the object behind a key that work requests bind. Its key may end it, and memory that
//! it is attached to, from another thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ferrocx_core::Handle;

use crate::error::VerbsError;
use crate::mr::EndKey;

#[derive(Debug)]
struct Shared {
    handle: Mutex<Handle>,
    /// Whether memory that was taken back ended it.
    is_taken: AtomicBool,
}

/// The mkey, and its index at hand.
#[derive(Debug)]
pub(crate) struct Mkey {
    index: u32,
    shared: Arc<Shared>,
}

impl Mkey {
    pub(crate) fn new(handle: Handle) -> Self {
        let index = handle.number();
        let is_taken = AtomicBool::new(false);
        Self { index, shared: Arc::new(Shared { handle: Mutex::new(handle), is_taken }) }
    }

    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Whether the memory that it is attached to was taken back.
    #[inline(always)]
    pub(crate) fn is_taken(&self) -> bool {
        self.shared.is_taken.load(Ordering::Acquire)
    }

    /// Destroys it, once.
    pub(crate) fn destroy(&self) -> Result<(), VerbsError> {
        self.shared.destroy()
    }

    /// For memory that is to end it.
    pub(crate) fn as_key(&self) -> Arc<dyn EndKey> {
        Arc::<Shared>::clone(&self.shared)
    }
}

impl Shared {
    fn destroy(&self) -> Result<(), VerbsError> {
        Ok(self.handle.lock().unwrap_or_else(PoisonError::into_inner).destroy()?)
    }
}

impl EndKey for Shared {
    fn end(&self) -> Result<(), VerbsError> {
        self.is_taken.store(true, Ordering::Release);
        self.destroy()
    }
}
