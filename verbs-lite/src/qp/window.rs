//! Posting of memory windows: UMR requests. Source: reference 6.4, "RC bind MW type 2 / local inv".

use std::ops::Range;

use ferrocx_core::wq::put_data;
use ferrocx_prm::mkey::{ANY_QPN, Mkc};
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, DS_BYTES, UmrCtrl, mkey_mask};

use super::attr::FAST_REG_BLOCKS;
use super::post::{LIST_AT, UMR_UNITS, umr_control};
use super::sq::{Entry, FM_SMALL, Other, Sq};
use super::{CHANGES_KEYS, Qp, QpState};
use crate::error::{PostError, Refused};
use crate::fastreg::{BoundKey, MrState, Origin};
use crate::mr::{Buffers, Mr, WindowHold};
use crate::types::{Access, Rkey};
use crate::window::{BindMw, BindUntyped, BoundMw, Mw, MwKind, UntypedMw, WINDOW_OCTOWORDS};
use crate::wr::{SendFlags, WcOpcode};

/// Bytes that a piece can have. Source: reference 5.1, `klm.byte_count`.
const MAX_BYTES: usize = (1 << 31) - 1;

/// Fields that ending sets, of windows of each type, and those that binding sets besides.
const END_TYPE_1: u64 = mkey_mask::FREE | mkey_mask::KEY;
const END: u64 = END_TYPE_1 | mkey_mask::QPN;
const BIND: u64 =
    mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW;

/// Rights by which peers write.
const WRITES: Access = Access::REMOTE_WRITE.union(Access::REMOTE_ATOMIC);

/// What a binding tells the device.
struct Binding {
    kind: MwKind,
    old: u32,
    variant: u8,
    access: Access,
    /// Key of the region, first address in its space, and bytes.
    region: (u32, u64, u32),
    sets_atomic: bool,
}

impl Binding {
    /// First address that peers name.
    fn start(&self) -> u64 {
        if self.access.contains(Access::ZERO_BASED) { 0 } else { self.region.1 }
    }
}

impl<B: Buffers> Qp<B> {
    /// Posts the binding of a window to a part of a region; rings like [`Qp::post_send`].
    ///
    /// The key is known at once and may be used in requests behind this one. It works for the peer
    /// of this queue pair alone.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the window: [`PostError::Window`] for a range or a region that cannot
    /// be bound, [`PostError::Access`] for atomics that the device cannot grant this way. Nothing
    /// was posted then.
    #[doc(alias = "ibv_bind_mw")]
    pub fn post_bind_mw(
        &mut self,
        wr: &BindMw,
        mw: Mw,
        mr: &Mr,
        range: Range<usize>,
    ) -> Result<BoundMw, Refused<Mw>> {
        let checked = self.check_umr(&mw.0.pd).and_then(|()| self.check_bind(wr, mr, &range));
        match checked {
            Ok(()) => Ok(self.sq.push_bind(wr, mw, mr, &range, self.fast_reg.sets_atomic)),
            Err(cause) => Err(Refused { held: mw, cause }),
        }
    }

    fn check_bind(&self, wr: &BindMw, mr: &Mr, range: &Range<usize>) -> Result<(), PostError> {
        if mr.inner.domain != self.pd.id() {
            return Err(PostError::Pd);
        }
        let is_inside = range.start < range.end && range.end as u64 <= mr.len_bytes();
        let may_write = !wr.access.intersects(WRITES) || mr.access().contains(Access::LOCAL_WRITE);
        let can_bind = mr.access().contains(Access::MW_BIND) && may_write;
        if !is_inside || range.len() > MAX_BYTES || !can_bind {
            return Err(PostError::Window);
        }
        self.fast_reg.check(wr.access)
    }

    /// Posts a local invalidate of a window; rings like [`Qp::post_send`]. It must be the queue
    /// pair that bound it: the device fails the request of another one, and the queue pair with it.
    ///
    /// # Errors
    ///
    /// [`PostError`], with the window. Nothing was posted then.
    pub fn post_local_inv_mw(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        mw: BoundMw,
    ) -> Result<(), Refused<BoundMw>> {
        if let Err(cause) = self.check_umr(&mw.0.pd) {
            return Err(Refused { held: mw, cause });
        }
        let (key, variant) = (mw.0.value(), mw.0.variant());
        let entry = Entry { wr_id, opcode: WcOpcode::LocalInv, flags };
        self.sq.put_end(key, MwKind::Type2, Some(variant), entry, Other::EndingMw(mw));
        Ok(())
    }

    /// Posts the binding of a window whose state the caller keeps, or its end where it is bound to
    /// no bytes; rings like [`Qp::post_send`]. Whether the window is in a state that allows it is
    /// for the caller to say and for the device to refuse.
    ///
    /// # Errors
    ///
    /// [`PostError`]: [`PostError::Window`] for more than 2^31 - 1 bytes or the key of another
    /// window, [`PostError::Access`] for atomics that the device cannot grant this way. Nothing was
    /// posted then.
    ///
    /// # Safety
    /// Peers reach the bytes of the region with the rights of the window, whatever their key is a
    /// key to: the reserved L_Key and keys from [`Pd::get_dma_mr`](crate::Pd::get_dma_mr) are keys
    /// to all that is mapped. Those bytes must be ones that peers may reach so for as long as the
    /// window is bound: nothing borrows what they may write. [`Qp::post_bind_mw`] sees to that
    /// itself.
    #[doc(alias = "ibv_bind_mw")]
    #[expect(unsafe_code, reason = "any key can be named")]
    pub unsafe fn post_bind_untyped(
        &mut self,
        wr: &BindUntyped,
        mw: &UntypedMw,
    ) -> Result<(), PostError> {
        self.check_umr(&mw.pd)?;
        if wr.old.0 >> 8 != mw.rkey().0 >> 8 || wr.len_bytes > MAX_BYTES as u64 {
            return Err(PostError::Window);
        }
        self.fast_reg.check(wr.access)?;
        let sets_atomic = self.fast_reg.sets_atomic;
        let (kind, old, variant, access) = (mw.kind(), wr.old.0, wr.variant, wr.access);
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::BindMw, flags: wr.flags };
        if wr.len_bytes == 0 {
            self.sq.put_end(old, kind, Some(variant), entry, Other::Nothing);
        } else {
            let region = (wr.lkey.0, wr.addr, wr.len_bytes as u32);
            let binding = Binding { kind, old, variant, access, region, sets_atomic };
            self.sq.put_bind(&binding, entry);
        }
        Ok(())
    }

    /// Posts a local invalidate of whatever key has a number; rings like [`Qp::post_send`]. The
    /// device fails the request, and the queue pair with it, if the key is of another domain, tied
    /// to another queue pair, free, or not one that requests may end. A key with typed states that
    /// is ended so is refused by the device in what is posted for it later.
    ///
    /// # Errors
    ///
    /// [`PostError`]; nothing was posted then.
    #[doc(alias = "IBV_WR_LOCAL_INV")]
    pub fn post_local_inv_rkey(
        &mut self,
        wr_id: u64,
        flags: SendFlags,
        rkey: Rkey,
    ) -> Result<(), PostError> {
        if !self.sq.allows(CHANGES_KEYS) {
            let is_ready = self.state == QpState::Rts;
            return Err(if is_ready { PostError::NoFastReg } else { PostError::State });
        }
        if !self.sq.has_room() {
            return Err(PostError::Full);
        }
        let entry = Entry { wr_id, opcode: WcOpcode::LocalInv, flags };
        self.sq.put_end(rkey.0, MwKind::Type2, None, entry, Other::Nothing);
        Ok(())
    }

    /// State of a window, as far as the requests of this queue pair tell.
    #[must_use]
    pub fn mw_state(&self, mw: &BoundMw) -> MrState {
        self.sq.state_of(mw.0.origin)
    }
}

impl<B: Buffers> Sq<B> {
    /// Writes a binding. The caller has checked everything.
    fn push_bind(
        &mut self,
        wr: &BindMw,
        mut mw: Mw,
        mr: &Mr,
        range: &Range<usize>,
        sets_atomic: bool,
    ) -> BoundMw {
        let key = &mut *mw.0;
        let old = key.value();
        key.advance();
        let region = (mr.lkey().0, mr.addr() + range.start as u64, range.len() as u32);
        let (kind, variant, access) = (MwKind::Type2, key.variant(), wr.access);
        let binding = Binding { kind, old, variant, access, region, sets_atomic };
        (key.start, key.len, key.access) = (binding.start(), range.len() as u64, access);
        key.origin = Origin { queue: self.id, position: self.ring.pi };
        key.region = Some(WindowHold::new(mr));
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::BindMw, flags: wr.flags };
        self.put_bind(&binding, entry);
        BoundKey(mw.0)
    }

    /// Posts a binding.
    fn put_bind(&mut self, binding: &Binding, entry: Entry) {
        let &Binding { kind, old, access, region: (lkey, from, len), .. } = binding;
        let (is_type_2, atomic) =
            (kind == MwKind::Type2, if binding.sets_atomic { mkey_mask::A } else { 0 });
        let umr = UmrCtrl::zeroed()
            .with_inline(true)
            .with_check_free(is_type_2)
            .with_translation_offset_en(true)
            .with_xlt_octowords(WINDOW_OCTOWORDS)
            .with_mkey_mask(BIND | atomic | if is_type_2 { END } else { END_TYPE_1 });
        let mkc = access
            .apply(Mkc::zeroed())
            .with_lw(access.intersects(WRITES))
            .with_relaxed_ordering_write(false)
            .with_qpn(if is_type_2 { self.ring.number() } else { ANY_QPN })
            .with_mkey_7_0(binding.variant.into())
            .with_start_addr(binding.start())
            .with_len(len.into());
        let fence = self.fence(entry.flags);
        self.next_fence = FM_SMALL;
        let control = umr_control(old, fence | self.mark(entry.flags, FAST_REG_BLOCKS));
        let (at, [first, list]) = (self.ring.pi, self.put_umr(&umr, &mkc));
        list.store(&[0; BASIC_BLOCK_BYTES]);
        put_data(list.part::<LIST_AT, DS_BYTES>(), len, lkey.to_be(), from);
        let units = UMR_UNITS + WINDOW_OCTOWORDS;
        let written = self.ring.written(first, at, control, units, FAST_REG_BLOCKS);
        self.post(at, written, entry, FAST_REG_BLOCKS);
    }

    /// Posts the end of a key that the request holds, or whose state is not known here. Without a
    /// change of its low byte, a key of fast registration ends as a window does.
    fn put_end(
        &mut self,
        key: u32,
        kind: MwKind,
        variant: Option<u8>,
        entry: Entry,
        ending: Other,
    ) {
        let is_type_2 = kind == MwKind::Type2;
        let mask = if is_type_2 { END } else { END_TYPE_1 };
        let umr = UmrCtrl::zeroed()
            .with_inline(true)
            .with_check_qpn(is_type_2)
            .with_translation_offset_en(true)
            .with_mkey_mask(mask & !if variant.is_none() { mkey_mask::KEY } else { 0 });
        let mkc = Mkc::zeroed()
            .with_free(true)
            .with_qpn(ANY_QPN)
            .with_mkey_7_0(variant.unwrap_or(key as u8).into());
        let change = (key, self.fence(entry.flags));
        self.next_fence = FM_SMALL;
        self.push_end((&umr, &mkc), change, entry, ending);
    }
}
