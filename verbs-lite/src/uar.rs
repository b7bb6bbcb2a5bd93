//! Doorbell registers of queue pairs: a page of their own, or one that others ring too.
//!
//! A doorbell is one aligned store of eight bytes that names its queue pair, so queue pairs may
//! share a register without a lock, on any cores: each store reaches the device by itself, because
//! the BAR is mapped uncached. Source: Linux, include/linux/mlx5/doorbell.h. A device has fewer
//! pages than queue pairs, and each page costs address space and a look of the model; so there are
//! [`PAGES`] at most, which the queue pairs are dealt to evenly.

use std::sync::{Arc, Weak};

use ferrocx_core::{Device, Uar};

use crate::error::VerbsError;

/// Pages that a device's queue pairs are dealt to: as many queue pairs share none.
const PAGES: usize = 64;

/// The pages in use.
#[derive(Debug, Default)]
pub(crate) struct UarPool {
    pages: Vec<Weak<Uar>>,
}

impl UarPool {
    /// A page of its own while there are few, then the one with the fewest queue pairs.
    pub(crate) fn take(&mut self, port: &Device) -> Result<Arc<Uar>, VerbsError> {
        self.pages.retain(|page| page.strong_count() > 0);
        if self.pages.len() < PAGES {
            match Uar::new(port) {
                Ok(uar) => {
                    let uar = Arc::new(uar);
                    self.pages.push(Arc::downgrade(&uar));
                    return Ok(uar);
                }
                // The device has no more: those that there are can be shared.
                Err(error) if self.pages.is_empty() => return Err(error.into()),
                Err(_) => {}
            }
        }
        let fewest = self.pages.iter().min_by_key(|page| page.strong_count());
        match fewest.and_then(Weak::upgrade) {
            Some(uar) => Ok(uar),
            // Its last queue pair was dropped meanwhile.
            None => Ok(Arc::new(Uar::new(port)?)),
        }
    }
}
