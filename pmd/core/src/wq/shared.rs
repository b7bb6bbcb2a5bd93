//! [`SharedRing`]: scatter lists that are linked to each other, filled in order and freed in any.
//!
//! Source: reference 6.5, "SRQ ring discipline".

use std::sync::Arc;

use ferrocx_bus::{DmaBuf, DmaWord, Ring};
use ferrocx_prm::Layout;
use ferrocx_prm::cmd::Command;
use ferrocx_prm::cmd::srq::CreateXrcSrq;
use ferrocx_prm::cmd::wq::CreateRmp;
use ferrocx_prm::init_seg::WqDoorbellRecord;
use ferrocx_prm::srqc::XrcSrqc;
use ferrocx_prm::wqc::{Rmpc, Wq, state};
use ferrocx_prm::wqe::{DS_BYTES, LOG_DS_BYTES, Next};

use super::{RecvSize, Wqe};
use crate::device::Device;
use crate::error::DeviceError;
use crate::handle::Handle;
use crate::objects::{Kind, page_list};

/// What a shared receive queue of an XRC domain belongs to.
#[derive(Debug, Clone, Copy)]
pub struct XrcSrqAttr {
    /// Its XRC domain.
    pub xrcd: u32,
    /// Its protection domain, in which peers' requests reach memory, too.
    pub pd: u32,
    /// Whether its entries may use the reserved L_Key.
    pub rlky: bool,
    /// Where its receives complete.
    pub cqn: u32,
    /// The number that their completions carry.
    pub user_index: u32,
}

/// The ring of a shared receive queue: a receive memory pool, or a queue of an XRC domain.
#[derive(Debug)]
pub struct SharedRing {
    units: Ring<DS_BYTES>,
    log_units: u8,
    record: DmaWord,
    /// The entry behind each entry in the list.
    next: Box<[u16]>,
    /// First free entry, and the last, which is kept: the device follows its link.
    head: u16,
    tail: u16,
    /// Receives posted since it was made, modulo 2^16.
    posted: u16,
}

impl SharedRing {
    /// Makes a pool, ready; an entry has a link and data segments, and one entry is never posted.
    /// The handle destroys it.
    ///
    /// # Errors
    ///
    /// What the device refused.
    ///
    /// # Safety
    /// The device writes to whatever memory an entry names that was posted here. Until that entry
    /// has completed, or the handle's object is gone, the memory stays mapped, and nothing else
    /// reads or writes it.
    ///
    /// ```compile_fail,E0133
    /// # use ferrocx_core::wq::{RecvSize, SharedRing};
    /// # use ferrocx_core::{Device, DeviceError, Handle};
    /// type Made = Result<(SharedRing, Handle), DeviceError>;
    /// fn safe(device: &Device, pd: u32, size: RecvSize) -> Made {
    ///     SharedRing::create(device, pd, size)
    /// }
    /// ```
    #[expect(unsafe_code, reason = "entries tell the device where to write")]
    pub unsafe fn create(
        device: &Device,
        pd: u32,
        size: RecvSize,
    ) -> Result<(Self, Handle), DeviceError> {
        let (ring, memory) = Self::new(device, size)?;
        let wq = Wq::zeroed()
            .with_pd(pd)
            .with_dbr_addr(memory[1].iova())
            .with_log_wq_stride(LOG_DS_BYTES + u32::from(size.log_units))
            .with_log_wq_sz(size.log_entries.into());
        let input = CreateRmp::input().with_ctx(Rmpc::zeroed().with_state(state::RDY).with_wq(wq));
        let rmpn = device.execute::<CreateRmp>(&input, &page_list(&memory[0]), &mut [])?.rmpn();
        Ok((ring, Handle::new(device, Kind::Rmp, rmpn, memory.into())))
    }

    /// Makes a queue like [`SharedRing::create`], for the requests of peers that name it on
    /// connections of an XRC domain.
    ///
    /// # Errors
    ///
    /// What the device refused.
    ///
    /// # Safety
    /// As of [`SharedRing::create`].
    ///
    /// ```compile_fail,E0133
    /// # use ferrocx_core::wq::{RecvSize, SharedRing, XrcSrqAttr};
    /// # use ferrocx_core::{Device, DeviceError, Handle};
    /// type Made = Result<(SharedRing, Handle), DeviceError>;
    /// fn safe(device: &Device, attr: &XrcSrqAttr, size: RecvSize) -> Made {
    ///     SharedRing::create_xrc(device, attr, size)
    /// }
    /// ```
    #[expect(unsafe_code, reason = "entries tell the device where to write")]
    pub unsafe fn create_xrc(
        device: &Device,
        attr: &XrcSrqAttr,
        size: RecvSize,
    ) -> Result<(Self, Handle), DeviceError> {
        let (ring, memory) = Self::new(device, size)?;
        let context = XrcSrqc::zeroed()
            .with_log_xrc_srq_size(size.log_entries.into())
            .with_rlky(attr.rlky)
            // Counted from 16 bytes. Source: reference 4.9.
            .with_log_rq_stride(size.log_units.into())
            .with_xrcd(attr.xrcd)
            .with_cqn(attr.cqn)
            .with_user_index(attr.user_index)
            .with_pd(attr.pd)
            .with_dbr_addr(memory[1].iova());
        let input = CreateXrcSrq::input().with_xrc_srq_context_entry(context);
        let made = device.execute::<CreateXrcSrq>(&input, &page_list(&memory[0]), &mut [])?;
        let number = made.xrc_srqn();
        Ok((ring, Handle::new(device, Kind::XrcSrq, number, memory.into())))
    }

    /// A ring that no queue has yet, its buffer and its doorbell record.
    fn new(device: &Device, size: RecvSize) -> Result<(Self, [Arc<DmaBuf>; 2]), DeviceError> {
        let buf = Arc::new(device.alloc_dma(size.bytes(), 4096)?);
        let record = Arc::new(device.alloc_dma(WqDoorbellRecord::SIZE_BYTES, 64)?);
        let mask = ((1u32 << size.log_entries) - 1) as u16;
        let ring = Self {
            units: Ring::new(Arc::clone(&buf), 0, size.log_all_units())?,
            log_units: size.log_units,
            record: DmaWord::new(Arc::clone(&record), WqDoorbellRecord::RECV_COUNTER.offset)?,
            next: (0..=mask).map(|at| at.wrapping_add(1) & mask).collect(),
            head: 0,
            tail: mask,
            posted: 0,
        };
        (0..=mask).for_each(|at| ring.link(at));
        Ok((ring, [buf, record]))
    }

    /// Data segments of an entry.
    #[inline(always)]
    #[must_use]
    pub fn segments(&self) -> u32 {
        (1 << self.log_units) - 1
    }

    /// Whether an entry has room for one data segment only.
    #[inline(always)]
    #[must_use]
    pub fn has_one_segment(&self) -> bool {
        self.log_units == 1
    }

    /// Starts the scatter list of the next free entry, behind its link. The caller made sure that
    /// one is free beside the last, which is kept.
    #[inline(always)]
    #[must_use]
    pub fn begin(&self) -> Wqe<'_> {
        Wqe::new(self.units.view(), u32::from(self.head) << self.log_units, 1)
    }

    /// Index of the next free entry, by which its completion names it once it is posted.
    #[inline(always)]
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Moves past the entry that was begun; [`SharedRing::tell`] tells the device.
    #[inline(always)]
    pub fn post(&mut self) {
        self.head = self.next[self.slot(self.head)];
        self.posted = self.posted.wrapping_add(1);
    }

    /// Tells the device how many entries were posted.
    #[inline(always)]
    pub fn tell(&self) {
        self.record.store_release_be32(self.posted.into());
    }

    /// Takes an entry back that was completed: it goes to the end of the list.
    #[inline(always)]
    pub fn free(&mut self, at: u16) {
        let tail = self.tail;
        self.next[self.slot(tail)] = at;
        self.link(tail);
        self.tail = at;
    }

    #[inline(always)]
    fn slot(&self, at: u16) -> usize {
        usize::from(at) & (self.next.len() - 1)
    }

    /// Writes the link of an entry.
    #[inline(always)]
    fn link(&self, at: u16) {
        let next = Next::zeroed().with_next_wqe_index(self.next[self.slot(at)].into());
        self.units.at(u32::from(at) << self.log_units).store(&next.0);
    }
}
