//! Posting of registrations and invalidations: UMR requests. Source: reference 6.4.

use std::sync::Arc;

use ferrocx_core::wq::{Block, Control, put_data};
use ferrocx_prm::Layout;
use ferrocx_prm::mkey::{ANY_QPN, Mkc};
use ferrocx_prm::wqe::{
    BASIC_BLOCK_BYTES, Ctrl, DS_BYTES, FenceMode, Opcode, UmrCtrl, mkey_mask, umr,
};

use super::attr::FAST_REG_BLOCKS;
use super::sq::{Entry, FM_SMALL, Other, Sq};
use super::wqe::Kind;
use super::{CHANGES_KEYS, Qp, QpState, QpType};
use crate::context::{ContextCore, DeviceCaps};
use crate::error::{PostError, Refused};
use crate::fastreg::{BoundKey, FastReg, FastRegMr, MrState, Origin, PageList, RegisteredMr};
use crate::mr::Buffers;
use crate::pd::PdCore;
use crate::types::{Access, RemoteAddr};
use crate::wr::{SendFlags, SendOp, WcOpcode};

/// Requests of a READ with invalidate: the READ, and the invalidation behind it.
const READ_WITH_INV_WR: u32 = 2;
/// Units of 16 bytes in front of the list: control segment, UMR segment and key context.
pub(super) const UMR_UNITS: u32 = (umr::TRANSLATIONS / DS_BYTES) as u32;
/// Where the list starts in the block behind them.
pub(super) const LIST_AT: usize = umr::TRANSLATIONS % BASIC_BLOCK_BYTES;
/// Blocks of these.
const UMR_BLOCKS: u32 = 2;
const _: () = assert!(umr::MKEY == BASIC_BLOCK_BYTES && umr::TRANSLATIONS == 2 * umr::MKEY);
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
    /// Posts a registration, which binds `mr` to what `list` describes; rings like
    /// [`Qp::post_send`].
    ///
    /// The key is known at once and may be used in requests behind this one. The list comes back
    /// with the completion; a packet that it described is the key's from now on.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the key and the list. Nothing was posted then.
    #[inline(always)]
    #[doc(alias = "IB_WR_REG_MR")]
    pub fn post_fast_reg(
        &mut self,
        wr: &FastReg,
        mr: FastRegMr,
        list: PageList,
    ) -> Result<RegisteredMr, RefusedFastReg> {
        if list.is_lent() {
            return self.post_lent(wr, mr, list);
        }
        match self.check_fast_reg(wr, &mr, &list) {
            Ok(()) => Ok(self.sq.push_fast_reg::<false>(wr, mr, list, self.fast_reg)),
            Err(cause) => Err(Refused { held: (mr, list), cause }),
        }
    }

    /// Posts a registration of memory that somebody gets back: a peer's, or a packet.
    #[inline(never)]
    fn post_lent(
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
        Ok(())
    }

    /// Whether requests may change keys of a protection domain.
    #[inline(always)]
    fn changes_keys_of(&self, pd: &PdCore) -> bool {
        self.sq.allows(CHANGES_KEYS) && pd.id() == self.sq.reach.pd()
    }

    /// Checks that one more request may change keys of a protection domain.
    #[inline(always)]
    pub(super) fn check_umr(&mut self, pd: &PdCore) -> Result<(), PostError> {
        match self.changes_keys_of(pd) {
            true if self.sq.has_room() => Ok(()),
            true => Err(PostError::Full),
            false if self.state != QpState::Rts => Err(PostError::State),
            false if self.fast_reg.is_on => Err(PostError::Pd),
            false => Err(PostError::NoFastReg),
        }
    }

    /// Checks that one more request may end a key, behind the one that binds it: on the same queue
    /// pair, or when that has ended.
    fn check_end(&mut self, mr: &RegisteredMr) -> Result<(), PostError> {
        self.check_umr(&mr.0.pd)?;
        let is_behind = mr.0.origin.queue == self.sq.id || !mr.0.is_posted();
        if is_behind { Ok(()) } else { Err(PostError::KeyState) }
    }

    /// Posts a local invalidate; rings like [`Qp::post_send`]. The key ends when the request is
    /// carried out; its completion brings it back free.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the key: [`PostError::KeyState`] for one whose registration was posted
    /// to another queue pair and has not ended. Nothing was posted then.
    #[inline(always)]
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn post_local_inv(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        // What bound it here was of this domain.
        let is_behind = mr.0.origin.queue == self.sq.id && self.sq.allows(CHANGES_KEYS);
        if !is_behind || !self.sq.is_clear() {
            return self.post_local_inv_any(wr_id, flags, mr);
        }
        self.sq.push_local_inv(Entry { wr_id, opcode: WcOpcode::LocalInv, flags }, mr);
        Ok(())
    }

    /// Posts a local invalidate that needs a closer look. A function of its own: its calls would
    /// have the other path save registers.
    #[cold]
    #[inline(never)]
    fn post_local_inv_any(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mr: RegisteredMr,
    ) -> Result<(), Refused<RegisteredMr>> {
        if let Err(cause) = self.check_end(&mr) {
            return Err(Refused { held: mr, cause });
        }
        self.sq.push_local_inv(Entry { wr_id, opcode: WcOpcode::LocalInv, flags }, mr);
        Ok(())
    }

    /// Posts a READ into the region of `mr`, from its first byte on, that ends the key when the
    /// bytes are there; rings like [`Qp::post_send`]. One completion says so and brings the key
    /// back.
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
        let checked = self.check_end(&mr).and_then(|()| {
            if len == 0 || u64::from(len) > mr.0.len {
                Err(PostError::PageList)
            } else if !mr.0.access.contains(Access::LOCAL_WRITE) {
                Err(PostError::Access)
            } else if self.sq.free_wr() < READ_WITH_INV_WR {
                Err(self.sq.full())
            } else {
                Ok(())
            }
        });
        if let Err(cause) = checked {
            return Err(Refused { held: mr, cause });
        }
        let (lkey_be, addr) = (mr.0.value().to_be(), mr.0.start);
        let first = Kind::of(&SendOp::Read(from)).control(self.sq.fence(flags));
        let entry = Entry { wr_id: 0, opcode: WcOpcode::Read, flags: SendFlags::MORE };
        let mut wqe = self.sq.ring.begin();
        wqe.raddr(from.addr, from.rkey.0);
        wqe.data(len, lkey_be, addr);
        let ds = wqe.ds();
        self.sq.close(first, ds, entry).hold_other(Other::FirstPart);
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
    pub(super) fn of(core: &ContextCore, qp_type: QpType, wanted: bool) -> Self {
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

    /// Checks that the binding of a window can grant rights.
    pub(super) fn check(self, access: Access) -> Result<(), PostError> {
        let can = self.sets_atomic || !access.contains(Access::REMOTE_ATOMIC);
        if can { Ok(()) } else { Err(PostError::Access) }
    }
}

/// The control segment of a change of a key.
#[inline(always)]
pub(super) fn umr_control(key: u32, flags: u32) -> Control {
    Control { opcode: Opcode::UMR, imm: key, flags }
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
        // Before the key is written to, while the ring's position is at hand.
        let (at, ending) = (self.ring.pi, self.mark(wr.flags, FAST_REG_BLOCKS));
        let key = &mut *mr.0;
        (key.start, key.len, key.access) = (wr.start, list.len_bytes(), wr.access);
        key.origin = Origin { queue: self.id, position: at };
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
            .with_mkey_7_0(key.variant().into())
            .with_en_rinval(wr.remote_invalidate)
            .with_start_addr(wr.start)
            .with_len(list.len_bytes())
            .with_translations_octword_size(octowords)
            .with_log_page_size(list.log_page());
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::FastRegMr, flags: wr.flags };
        self.next_fence = FM_SMALL;
        let control = umr_control(key.value(), setup.fence | ending);
        let [first, third] = self.put_umr(&umr, &mkc);
        let units = if is_inline {
            list.put_first(third);
            UMR_UNITS + INLINE_WORDS / 2
        } else {
            let (unit, bytes) = (third.part::<LIST_AT, DS_BYTES>(), octowords * 16);
            put_data(unit, bytes, setup.lkey.to_be(), list.iova());
            UMR_UNITS + 1
        };
        let written = self.ring.written(first, at, control, units, FAST_REG_BLOCKS);
        if IS_LENT {
            list.give_mbuf(key);
        }
        self.post(at, written, entry, FAST_REG_BLOCKS).hold_other(Other::List(list));
        BoundKey(mr.0)
    }

    /// Writes what every change of a key has behind its control segment; gives its first block, and
    /// the one behind what was written. They are all looked up before anything is stored.
    #[inline(always)]
    pub(super) fn put_umr(&self, umr: &UmrCtrl, mkc: &Mkc) -> [Block<'_>; 2] {
        let [first, second, third] = [0, 1, 2].map(|ahead| self.ring.block(ahead));
        first.store_at::<{ umr::CONTROL }, { UmrCtrl::SIZE_BYTES }>(&umr.0);
        second.store(&mkc.0);
        [first, third]
    }

    /// Posts a change that is without a list and ends what the request holds.
    #[inline(always)]
    pub(super) fn push_end(
        &mut self,
        (umr, mkc): (&UmrCtrl, &Mkc),
        (key, fence): (u32, u32),
        entry: Entry,
        ending: Other,
    ) {
        let control = umr_control(key, fence | self.mark(entry.flags, UMR_BLOCKS));
        let (at, [first, _]) = (self.ring.pi, self.put_umr(umr, mkc));
        let written = self.ring.written(first, at, control, UMR_UNITS, UMR_BLOCKS);
        self.post(at, written, entry, UMR_BLOCKS).hold_other(ending);
    }

    /// Posts a local invalidate. The caller has checked everything.
    #[inline(always)]
    fn push_local_inv(&mut self, entry: Entry, mr: RegisteredMr) {
        let umr = UmrCtrl::zeroed().with_inline(true).with_mkey_mask(mkey_mask::FREE);
        let mkc = Mkc::zeroed().with_free(true);
        let change = (mr.0.value(), self.fence(entry.flags));
        self.push_end((&umr, &mkc), change, entry, Other::Ending(mr));
    }
}
