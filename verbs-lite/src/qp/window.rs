//! Posting of memory windows: UMR requests. Source: reference 6.4, "RC bind MW type 2 / local inv".

use std::ops::Range;

use ferrocx_core::wq::put_data;
use ferrocx_prm::mkey::{ANY_QPN, Mkc};
use ferrocx_prm::wqe::{BASIC_BLOCK_BYTES, DS_BYTES, UmrCtrl, mkey_mask};

use super::Qp;
use super::attr::FAST_REG_BLOCKS;
use super::post::{LIST_AT, UMR_UNITS, umr_control};
use super::sq::{Entry, FM_SMALL, Other, Sq};
use crate::error::{PostError, Refused};
use crate::fastreg::{BoundKey, MrState, Origin};
use crate::mr::{Buffers, Mr, WindowHold};
use crate::types::Access;
use crate::window::{BindMw, BoundMw, Mw, WINDOW_OCTOWORDS};
use crate::wr::{SendFlags, WcOpcode};

/// Bytes that a piece can have. Source: reference 5.1, `klm.byte_count`.
const MAX_BYTES: usize = (1 << 31) - 1;

/// Fields that binding and ending set.
const END: u64 = mkey_mask::FREE | mkey_mask::KEY | mkey_mask::QPN;
const BIND: u64 =
    END | mkey_mask::LEN | mkey_mask::START_ADDR | mkey_mask::LW | mkey_mask::RR | mkey_mask::RW;

impl<B: Buffers> Qp<B> {
    /// Posts the binding of a window to a part of a region; rings like [`Qp::post_send`].
    ///
    /// The key is known at once and may be used in requests behind this one. It works for the peer
    /// of this queue pair alone.
    ///
    /// Allocates nothing, takes no lock, makes no system call.
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
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let is_inside = range.start < range.end && range.end as u64 <= mr.len_bytes();
        let may_write = !wr.access.intersects(writes) || mr.access().contains(Access::LOCAL_WRITE);
        let can_bind = mr.access().contains(Access::MW_BIND) && may_write;
        if !is_inside || range.len() > MAX_BYTES || !can_bind {
            return Err(PostError::Window);
        }
        if wr.access.contains(Access::REMOTE_ATOMIC) && !self.fast_reg.sets_atomic {
            return Err(PostError::Access);
        }
        Ok(())
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
        self.sq.push_end_mw(Entry { wr_id, opcode: WcOpcode::LocalInv, flags }, mw);
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
        let start = mr.addr() + range.start as u64;
        key.advance();
        key.start = if wr.access.contains(Access::ZERO_BASED) { 0 } else { start };
        (key.len, key.access) = (range.len() as u64, wr.access);
        key.origin = Origin { queue: self.id, position: self.ring.pi };
        key.region = Some(WindowHold::new(mr));
        let writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let umr = UmrCtrl::zeroed()
            .with_inline(true)
            .with_check_free(true)
            .with_translation_offset_en(true)
            .with_xlt_octowords(WINDOW_OCTOWORDS)
            .with_mkey_mask(BIND | if sets_atomic { mkey_mask::A } else { 0 });
        let mkc = wr
            .access
            .apply(Mkc::zeroed())
            .with_lw(wr.access.intersects(writes))
            .with_relaxed_ordering_write(false)
            .with_qpn(self.ring.number())
            .with_mkey_7_0(key.variant().into())
            .with_start_addr(key.start)
            .with_len(key.len);
        let (len, lkey_be, fence) = (key.len as u32, mr.lkey().0.to_be(), self.fence(wr.flags));
        let entry = Entry { wr_id: wr.wr_id, opcode: WcOpcode::BindMw, flags: wr.flags };
        self.next_fence = FM_SMALL;
        let control = umr_control(old, fence | self.mark(wr.flags, FAST_REG_BLOCKS));
        let (at, [first, list]) = (self.ring.pi, self.put_umr(&umr, &mkc));
        list.store(&[0; BASIC_BLOCK_BYTES]);
        put_data(list.part::<LIST_AT, DS_BYTES>(), len, lkey_be, start);
        let units = UMR_UNITS + WINDOW_OCTOWORDS;
        let written = self.ring.written((first, at), control, units, FAST_REG_BLOCKS);
        self.post(at, written, entry, FAST_REG_BLOCKS);
        BoundKey(mw.0)
    }

    /// Writes the local invalidate of a window. The caller has checked everything.
    fn push_end_mw(&mut self, entry: Entry, mw: BoundMw) {
        let umr = UmrCtrl::zeroed()
            .with_inline(true)
            .with_check_qpn(true)
            .with_translation_offset_en(true)
            .with_mkey_mask(END);
        let mkc =
            Mkc::zeroed().with_free(true).with_qpn(ANY_QPN).with_mkey_7_0(mw.0.variant().into());
        let change = (mw.0.value(), self.fence(entry.flags));
        self.next_fence = FM_SMALL;
        self.push_end((&umr, &mkc), change, entry, Other::EndingMw(mw));
    }
}
