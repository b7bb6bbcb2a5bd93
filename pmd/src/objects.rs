//! What a crate above this one makes its own device objects from: queue pairs, memory keys.
//!
//! [`Device::execute`] carries out the command that creates an object; [`Device::adopt`] turns its
//! number into a [`Handle`] that destroys it. Rings and doorbell records come from
//! [`Device::alloc_dma`], registers from [`Device::uar`], completions from [`Device::cq`], and
//! completion events from [`Device::completion_events`].
//!
//! Everything here is for set-up, but for [`Cq::take`], [`Cq::tell`] and the doorbell of a [`Uar`].

use std::sync::Arc;

use ferrocx_bus::{DmaAccess, DmaBuf, DmaMapping};
use ferrocx_mempool::Region;
use ferrocx_prm::caps::{CAP_PAGE_BYTES, HcaCap};

pub use crate::cmd::objects::{Handle, Kind, QueueState, page_list};
pub use crate::cq::{Armer, Cq};
pub use crate::eq::CompletionEvents;
pub use crate::uar::Uar;

use crate::bringup;
use crate::cmd::CommandError;
use crate::device::{Device, lock};
use crate::eq;
use crate::error::DeviceError;
use crate::rss::direct_tir;

impl Device {
    /// Takes zeroed memory that the device may read and write.
    ///
    /// # Shape
    ///
    /// `align_bytes` is a power of two up to [`ferrocx_bus::MAX_ALIGN_BYTES`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::Bus`] without memory.
    pub fn alloc_dma(&self, len_bytes: usize, align_bytes: usize) -> Result<DmaBuf, DeviceError> {
        Ok(self.inner().memory().alloc(len_bytes, align_bytes)?)
    }

    /// Bytes of such memory in use, the driver's own included: command queue, rings, records.
    #[must_use]
    pub fn dma_bytes_used(&self) -> usize {
        self.inner().memory().used_bytes()
    }

    /// Lets the device reach a region, until the mapping is dropped.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Bus`]: no I/O addresses left, or the system's reason.
    pub fn map_region(
        &self,
        region: Arc<Region>,
        access: DmaAccess,
    ) -> Result<Arc<DmaMapping>, DeviceError> {
        Ok(self.inner().memory().dma().map(region, access)?)
    }

    /// The general capabilities, as they were after bring-up.
    #[must_use]
    pub fn hca_cap(&self) -> &HcaCap {
        &self.inner().caps.hca
    }

    /// A capability page as it is now; `kind` is one of [`ferrocx_prm::caps::cap_type`].
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn capability_page(&self, kind: u32) -> Result<[u8; CAP_PAGE_BYTES], DeviceError> {
        bringup::query_caps(&mut self.inner().control(), kind, true)
    }

    /// The reserved L_Key: local access to all that is mapped, for queues created with `rlky`.
    /// `None` if the device has none.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn reserved_lkey(&self) -> Result<Option<u32>, CommandError> {
        let lkey = self.inner().control().reserved_lkey()?;
        Ok((lkey != 0).then_some(lkey))
    }

    /// Owns an object that [`Device::execute`] created: dropping the handle destroys it. `memory`
    /// is what the device reads or writes as long as the object exists.
    #[must_use]
    pub fn adopt(&self, kind: Kind, number: u32, memory: Vec<Arc<DmaBuf>>) -> Handle {
        Handle::new(self.inner(), kind, number, memory)
    }

    /// Takes a UAR page with a send doorbell that nobody shares.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn uar(&self) -> Result<Uar, DeviceError> {
        Uar::new(self.inner())
    }

    /// Interrupt vectors that may be used, at most 64. Without [`CompletionEvents`] and
    /// [`RxQueueConfig::interrupt`](crate::RxQueueConfig::interrupt) none is.
    #[must_use]
    pub fn interrupt_vectors(&self) -> u16 {
        eq::usable_vectors(&*self.inner().control().transport().interrupts())
    }

    /// Makes a completion queue of `2^log_size` entries. Its events, once it is armed, go to
    /// `events`.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn cq(
        &self,
        log_size: u8,
        events: Option<&CompletionEvents>,
    ) -> Result<(Cq, Handle), DeviceError> {
        match events {
            Some(events) => Cq::reporting_to(self.inner(), log_size, false, events.eqn()),
            None => Cq::new(self.inner(), log_size, false),
        }
    }

    /// What asks for events of a completion queue, by its number.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Bus`] for a doorbell record that is too short.
    pub fn armer(&self, cq: &Cq, cqn: u32) -> Result<Armer, DeviceError> {
        Armer::new(self.inner(), cq.doorbell_record(), cqn)
    }

    /// Makes an event queue of `2^log_size` entries for completion events, which raises the
    /// interrupt `vector` when armed.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn completion_events(
        &self,
        log_size: u8,
        vector: u16,
    ) -> Result<CompletionEvents, DeviceError> {
        CompletionEvents::new(self.inner(), log_size, vector)
    }

    /// Makes a TIR that leads to a receive queue of a crate above, in the domain of
    /// [`Device::tisn`]: what [`Device::add_flow_rule_to`] sends packets to.
    ///
    /// # Errors
    ///
    /// What the device refused.
    pub fn direct_tir(&self, rqn: u32) -> Result<Handle, DeviceError> {
        direct_tir(self.inner(), rqn)
    }

    /// The TIS that send queues of Ethernet frames are made with.
    #[must_use]
    pub fn tisn(&self) -> u32 {
        self.inner().tisn
    }

    /// The `min_wqe_inline_mode` that they are made with. In bytes:
    /// [`Limits::min_inline_bytes`](crate::Limits::min_inline_bytes).
    #[must_use]
    pub fn min_inline_mode(&self) -> u32 {
        lock(&self.inner().port).min_inline_mode(&self.inner().caps.eth)
    }

    /// Whether a reset made every object of this device void.
    #[must_use]
    pub fn objects_are_gone(&self) -> bool {
        self.inner().objects_are_gone()
    }

    /// Lets the device make progress; called in each turn of a control-path wait loop.
    pub fn relax(&self) {
        let transport = Arc::clone(self.inner().control().transport());
        transport.relax();
    }
}
