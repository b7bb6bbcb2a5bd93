//! Posting of registrations and invalidations: UMR requests. Source: reference 6.4.

use std::sync::Arc;

use ferrocx_core::wq::{Control, blocks_of, put_data};
use ferrocx_prm::Layout;
use ferrocx_prm::mkey::{ANY_QPN, Mkc};
use ferrocx_prm::wqe::{
    BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, FenceMode, Opcode, UmrCtrl, mkey_mask, umr,
};

use super::attr::FAST_REG_BLOCKS;
use super::sq::{Entry, FM_SMALL, Other, Sq};
use super::{CHANGES_KEYS, Qp, QpState, QpType};
use crate::context::DeviceCaps;
use crate::error::{PostError, Refused};
use crate::fastreg::{FastReg, FastRegMr, MrState, Origin, PageList, RegisteredMr};
use crate::mr::{Buffers, Sge};
use crate::pd::PdCore;
use crate::types::{Access, RemoteAddr};
use crate::wr::{SendFlags, WcOpcode};

/// Requests of a READ with invalidate: the READ, and the invalidation behind it.
const READ_WITH_INV_WR: u32 = 2;
/// Units of 16 bytes in front of the list: control segment, UMR segment and key context.
const UMR_UNITS: u32 = (umr::TRANSLATIONS / DS_BYTES) as u32;
/// Where the list starts in its block.
const LIST_AT: usize = umr::TRANSLATIONS % BASIC_BLOCK_BYTES;
/// Lists up to this long stand in the request. Source: reference 6.4, "inline".
const INLINE_WORDS: u32 = 8;

/// Fields that a registration sets. Source: reference 6.4, "How Linux uses it".
const REGISTER: u64 = mkey_mask::LEN
    | mkey_mask::PAGE_SIZE
    | mkey_mask::START_ADDR
    | mkey_mask::EN_RINVAL
    | mkey_mask::KEY
    | mkey_mask::LR
    | mkey_mask::LW
    | mkey_mask::RR
    | mkey_mask::RW
    | mkey_mask::SMALL_FENCE
    | mkey_mask::FREE;

/// A registration that was not posted: why, and the key and list that it held.
pub type RefusedFastReg = Refused<(FastRegMr, PageList)>;

impl<B: Buffers> Qp<B> {
    /// Posts a registration and rings the doorbell: binds `mr` to what `list` describes.
    ///
    /// The key is known at once and may be used in requests behind this one. The list comes back
    /// with the completion; a packet that it described is the key's from now on.
    ///
    /// Allocates nothing, takes no lock, makes no system call.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the key and the list. Nothing was posted then.
    #[inline]
    #[doc(alias = "IB_WR_REG_MR")]
    pub fn post_fast_reg(
        &mut self,
        wr: &FastReg,
        mr: FastRegMr,
        list: PageList,
    ) -> Result<RegisteredMr, RefusedFastReg> {
        let mr = self.queue_fast_reg(wr, mr, list)?;
        self.ring_doorbell();
        Ok(mr)
    }

    /// Queues a registration like [`Qp::post_fast_reg`], without ringing the doorbell.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::post_fast_reg`].
    #[inline]
    pub fn queue_fast_reg(
        &mut self,
        wr: &FastReg,
        mr: FastRegMr,
        list: PageList,
    ) -> Result<RegisteredMr, RefusedFastReg> {
        if list.is_lent() {
            return self.queue_lent(wr, mr, list);
        }
        match self.check_fast_reg(wr, &mr, &list) {
            Ok(()) => Ok(self.sq.push_fast_reg::<false>(wr, mr, list, self.fast_reg)),
            Err(cause) => Err(Refused { held: (mr, list), cause }),
        }
    }

    /// As [`Qp::queue_fast_reg`], of memory that somebody gets back: a peer's, or a packet.
    #[inline(never)]
    fn queue_lent(
        &mut self,
        wr: &FastReg,
        mr: FastRegMr,
        list: PageList,
    ) -> Result<RegisteredMr, RefusedFastReg> {
        // Peers write only where this side may, see `is_consistent`.
        let is_written = wr.access.contains(Access::LOCAL_WRITE);
        let checked = self
            .check_fast_reg(wr, &mr, &list)
            .and_then(|()| list.check_lent(&mr.0, self.pd.id(), is_written));
        match checked {
            Ok(()) => Ok(self.sq.push_fast_reg::<true>(wr, mr, list, self.fast_reg)),
            Err(cause) => Err(Refused { held: (mr, list), cause }),
        }
    }

    #[inline(always)]
    fn check_fast_reg(
        &mut self,
        wr: &FastReg,
        mr: &FastRegMr,
        list: &PageList,
    ) -> Result<(), PostError> {
        self.check_umr(&mr.0.pd)?;
        let inside = (1u64 << list.log_page()) - 1;
        let fits = list.layout().is_like(mr.0.layout)
            && (1..=mr.0.max_len).contains(&list.len())
            && wr.start & inside == list.first_offset()
            && wr.start.checked_add(list.len_bytes()).is_some()
            && Arc::ptr_eq(list.core(), &self.pd.core);
        if !fits {
            return Err(PostError::PageList);
        }
        let is_atomic = wr.access.contains(Access::REMOTE_ATOMIC);
        if !wr.access.is_consistent() || is_atomic && !self.fast_reg.sets_atomic {
            return Err(PostError::Access);
        }
        if !self.sq.has_room() {
            return Err(PostError::Full);
        }
        Ok(())
    }

    /// What every request that changes keys needs.
    #[inline(always)]
    pub(super) fn check_umr(&self, pd: &Arc<PdCore>) -> Result<(), PostError> {
        if self.sq.allows(CHANGES_KEYS) && is_same(pd, &self.pd) {
            return Ok(());
        }
        Err(match self.state {
            QpState::Rts if self.fast_reg.is_on => PostError::Pd,
            QpState::Rts => PostError::NoFastReg,
            _ => PostError::State,
        })
    }

    /// Posts a local invalidate and rings the doorbell. The key ends when the request is carried
    /// out; its completion brings it back free.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the key. Nothing was posted then.
    #[inline]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn post_local_inv(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        self.queue_local_inv(wr_id, flags, mr)?;
        self.ring_doorbell();
        Ok(())
    }

    /// Queues a local invalidate like [`Qp::post_local_inv`], without ringing the doorbell.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::post_local_inv`].
    #[inline]
    pub fn queue_local_inv(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        let entry = Entry { wr_id, opcode: WcOpcode::LocalInv, flags };
        if self.sq.is_clear() && self.check_umr(&mr.0.pd).is_ok() {
            self.sq.push_local_inv(entry, mr);
            return Ok(());
        }
        self.queue_local_inv_any(entry, mr)
    }

    /// Queues a local invalidate that needs a closer look. A function of its own: its calls would
    /// have the other path save registers.
    #[cold]
    #[inline(never)]
    fn queue_local_inv_any(
        &mut self,
        entry: Entry,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        let checked = self.check_umr(&mr.0.pd);
        let has_room = self.sq.has_room();
        if let Err(cause) = checked.and(if has_room { Ok(()) } else { Err(PostError::Full) }) {
            return Err(Refused { held: mr, cause });
        }
        self.sq.push_local_inv(entry, mr);
        Ok(())
    }

    /// Posts a READ into the region of `mr`, from its first byte on, that ends the key when the
    /// bytes are there, and rings the doorbell. One completion says so and brings the key back.
    ///
    /// RoCE has no such packet: it is a READ, and a local invalidate with a fence
    /// ([`DeviceCaps::READ_WITH_INV_COMPOSED`]).
    ///
    /// # Errors
    ///
    /// [`PostError`], with the key: [`PostError::PageList`] for a length of 0 or above that of the
    /// region, [`PostError::Access`] without [`Access::LOCAL_WRITE`]. Nothing was posted then.
    pub fn post_read_with_inv(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        from: RemoteAddr,
        len: u32,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        self.queue_read_with_inv(wr_id, flags, from, len, mr)?;
        self.ring_doorbell();
        Ok(())
    }

    /// Queues a READ with invalidate like [`Qp::post_read_with_inv`], without ringing the doorbell.
    ///
    /// # Errors
    ///
    /// Those of [`Qp::post_read_with_inv`].
    pub fn queue_read_with_inv(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        from: RemoteAddr,
        len: u32,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        let checked = self.check_umr(&mr.0.pd).and_then(|()| {
            if len == 0 || u64::from(len) > mr.0.len {
                Err(PostError::PageList)
            } else if !mr.0.access.contains(Access::LOCAL_WRITE) {
                Err(PostError::Access)
            } else if self.sq.free_wr() < READ_WITH_INV_WR {
                Err(PostError::Full)
            } else {
                Ok(())
            }
        });
        if let Err(cause) = checked {
            return Err(Refused { held: mr, cause });
        }
        let (lkey_be, domain) = (mr.0.value().to_be(), self.pd.id());
        let sink = Sge { addr: mr.0.start, address: 0, len, lkey_be, domain };
        self.sq.push_first_read(from, sink, flags & SendFlags::FENCE);
        let flags = flags | SendFlags::FENCE;
        self.sq.push_local_inv(Entry { wr_id, opcode: WcOpcode::ReadWithInv, flags }, mr);
        Ok(())
    }

    /// What is known of a key by the requests of this queue pair.
    #[must_use]
    pub fn mr_state(&self, mr: &RegisteredMr) -> MrState {
        self.sq.state_of(mr.0.origin)
    }
}

/// Whether these are one protection domain: the device's own has many handles.
#[inline(always)]
fn is_same(one: &Arc<PdCore>, other: &Arc<PdCore>) -> bool {
    Arc::ptr_eq(one, other) || one.id() == other.id()
}

/// What a queue pair needs to know to register.
#[derive(Debug, Clone, Copy)]
pub(super) struct FastRegSetup {
    /// Its ring has room for registrations.
    pub(super) is_on: bool,
    /// A registration can change the right to atomics.
    pub(super) sets_atomic: bool,
    /// Key of the lists: the reserved one.
    lkey: u32,
    /// Fence of a registration, in place.
    fence: u32,
}

impl FastRegSetup {
    pub(super) fn of(core: &crate::context::ContextCore, qp_type: QpType, wanted: bool) -> Self {
        let can = core.attr.caps.contains(DeviceCaps::MEM_MGT_EXTENSIONS);
        // 0 strong ordering, 1 small, 2 none. Source: reference 6.4, "Fences".
        let fence = match core.hca().umr_fence() {
            0 => FenceMode::STRONG_ORDERING,
            1 => FenceMode::INITIATOR_SMALL,
            _ => FenceMode::NONE,
        };
        Self {
            is_on: wanted && can && qp_type == QpType::Rc,
            sets_atomic: core.attr.caps.contains(DeviceCaps::FAST_REG_ATOMIC),
            lkey: core.lkey.unwrap_or(0),
            fence: Ctrl::FM.of(fence.0),
        }
    }
}

impl<B: Buffers> Sq<B> {
    /// Writes a registration. The caller has checked everything, and whether the list
    /// [is lent](PageList::is_lent).
    #[inline(always)]
    fn push_fast_reg<const IS_LENT: bool>(
        &mut self,
        wr: &FastReg,
        mut mr: FastRegMr,
        mut list: PageList,
        setup: FastRegSetup,
    ) -> RegisteredMr {
        let key = &mut *mr.0;
        (key.start, key.len, key.access) = (wr.start, list.len_bytes(), wr.access);
        key.origin = Origin { queue: self.id, position: self.ring.pi };
        if let Some(memory) = list.memory()
            && !key.memory.as_ref().is_some_and(|known| Arc::ptr_eq(known, memory))
        {
            key.memory = Some(Arc::clone(memory));
        }
        let octowords = list.layout().octowords(list.len());
        let is_inline = list.words() <= INLINE_WORDS;
        let atomic = if setup.sets_atomic { mkey_mask::A } else { 0 };
        let umr = UmrCtrl::zeroed()
            .with_inline(is_inline)
            .with_check_free(true)
            .with_xlt_octowords(octowords)
            .with_mkey_mask(REGISTER | atomic);
        let mkc = wr
            .access
            .apply(Mkc::zeroed())
            .with_relaxed_ordering_write(false)
            .with_umr_en(true)
            .with_access_mode(list.layout().access_mode())
            .with_qpn(ANY_QPN)
            .with_mkey_7_0(key.variant.into())
            .with_en_rinval(wr.remote_invalidate)
            .with_start_addr(wr.start)
            .with_len(list.len_bytes())
            .with_translations_octword_size(octowords)
            .with_log_page_size(list.log_page());
        self.put_umr(&umr, &mkc);
        let third = self.ring.block(2);
        // In 16-byte units: control, 3 of UMR, 4 of key context, then the list.
        let units = if is_inline {
            list.put_first(third);
            UMR_UNITS + INLINE_WORDS / 2
        } else {
            let (unit, bytes) = (third.part::<LIST_AT, DS_BYTES>(), octowords * 16);
            put_data(unit, bytes, setup.lkey.to_be(), list.iova());
            UMR_UNITS + 1
        };
        if IS_LENT {
            list.give_mbuf(key);
        }
        let rkey = key.value();
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::FastRegMr, flags: wr.flags };
        let control = Control { opcode: Opcode::UMR, imm: rkey, flags: setup.fence };
        self.close(control, units, FAST_REG_BLOCKS, entry, None, Other::List(list));
        self.next_fence = FM_SMALL;
        RegisteredMr(mr.0)
    }

    /// Writes what every change of a key starts with, behind the control segment.
    #[inline(always)]
    fn put_umr(&self, umr: &UmrCtrl, mkc: &Mkc) {
        const { assert!(umr::MKEY == BASIC_BLOCK_BYTES, "the key context is the second block") };
        self.ring.block(0).store_at::<{ umr::CONTROL }, { UmrCtrl::SIZE_BYTES }>(&umr.0);
        self.ring.block(1).store(&mkc.0);
    }

    /// Writes a local invalidate. The caller has checked everything.
    #[inline(always)]
    fn push_local_inv(&mut self, entry: Entry, mr: RegisteredMr) {
        let umr = UmrCtrl::zeroed().with_inline(true).with_mkey_mask(mkey_mask::FREE);
        let mkc = Mkc::zeroed().with_free(true);
        self.put_umr(&umr, &mkc);
        let (imm, flags) = (mr.0.value(), self.fence(entry.flags));
        let control = Control { opcode: Opcode::UMR, imm, flags };
        self.close(control, UMR_UNITS, blocks_of(UMR_UNITS), entry, None, Other::Ending(mr));
    }
}
