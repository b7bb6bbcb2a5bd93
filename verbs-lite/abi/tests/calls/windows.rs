//! Memory windows: made, bound in every way, ended, destroyed.

use std::ffi::c_int;
use std::ptr::null_mut;

use super::abi::*;
use super::world::{MOST, World, read, write};
use super::{Choices, Object, c};

/// A window, and the domain that it was made in.
pub(crate) struct Window {
    pub(crate) mw: Object<ibv_mw>,
    pub(crate) pd: Object<ibv_pd>,
}

impl World<'_> {
    pub(crate) fn make_window(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        let mut windows = write(&self.windows);
        if windows.len() == MOST || pds.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds);
        let kind = choices.one_of(&[1, 2, 2, 1, 0, 3]);
        let mw = c!(((*self.context.0).ops.alloc_mw)(pd.0, kind));
        assert_eq!(!mw.is_null(), matches!(kind, 1 | 2), "a window of type {kind}");
        if !mw.is_null() {
            windows.push(Window { mw: Object(mw), pd });
        }
    }

    pub(crate) fn destroy_window(&self, choices: &mut Choices<'_>) {
        let mut windows = write(&self.windows);
        if !windows.is_empty() {
            let at = choices.below(windows.len());
            let free = c!((*self.context.0).ops.dealloc_mw);
            assert_eq!(c!(free(windows[at].mw.0)), 0, "a window");
            windows.swap_remove(at);
        }
    }

    /// Binds a window, or ends one.
    pub(crate) fn bind(&self, choices: &mut Choices<'_>) {
        let regions = read(&self.regions);
        // The key in a window is the program's own to guard.
        let windows = write(&self.windows);
        let pairs = read(&self.pairs);
        let (window, pair) =
            (windows.get(choices.below(windows.len())), pairs.get(choices.below(pairs.len())));
        let (Some(Window { mw, .. }), Some(pair)) = (window, pair) else { return };
        let (mw, now) = (mw.0, c!((*mw.0).rkey));
        let key = now & !0xff | u32::from(choices.byte());
        let mut bind_info =
            ibv_mw_bind_info { mr: null_mut(), addr: 0, length: 0, mw_access_flags: 0 };
        if let Some(region) = regions.get(choices.below(regions.len() + 1)) {
            let mr = c!(&*region.mr.0);
            let start = choices.below(mr.length);
            bind_info = ibv_mw_bind_info {
                mr: region.mr.0,
                addr: mr.addr.addr() as u64 + start as u64,
                length: choices.below(mr.length - start + 1) as u64,
                mw_access_flags: u32::from(choices.byte() & 0xf),
            };
        }
        if self.is_wild && choices.rarely(4) {
            (bind_info.addr, bind_info.length) = (choices.long(), choices.long());
            bind_info.mw_access_flags = choices.word();
        }
        let (wr_id, send_flags) = (choices.long(), u32::from(choices.byte() & 7));
        if pair.has_batches && choices.rarely(3) {
            let qp: *mut ibv_qp_ex = pair.qp.0.cast();
            let status = c!({
                ((*qp).wr_start)(qp);
                ((*qp).wr_id, (*qp).wr_flags) = (wr_id, send_flags);
                match choices.rarely(3) {
                    true => ((*qp).wr_local_inv)(qp, now),
                    false => ((*qp).wr_bind_mw)(qp, mw, key, &raw const bind_info),
                }
                ((*qp).wr_complete)(qp)
            });
            assert!(status >= 0, "an error number is positive: {status}");
            return;
        }
        let ops = c!(&(*self.context.0).ops);
        let mut bad = null_mut();
        let is_type_1 = c!((*mw).kind) == 1;
        let wr = wr_of { rdma: wr_rdma { remote_addr: 0, rkey: 0 } };
        let mut request = ibv_send_wr {
            wr_id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode: if choices.rarely(4) { 7 } else { 8 },
            send_flags,
            imm_data: now,
            wr,
            xrc_srqn: 0,
            bind_mw: wr_bind_mw { mw, rkey: key, bind_info },
        };
        let status: c_int = if is_type_1 && !choices.rarely(4) {
            let mut bind = ibv_mw_bind { wr_id, send_flags, bind_info };
            let status = c!((ops.bind_mw)(pair.qp.0, mw, &raw mut bind));
            let next = now & !0xff | (now.wrapping_add(1) & 0xff);
            assert_eq!(c!((*mw).rkey), if status == 0 { next } else { now });
            return;
        } else {
            c!((ops.post_send)(pair.qp.0, &raw mut request, &raw mut bad))
        };
        assert_eq!(status == 0, bad.is_null(), "status {status}");
        if status == 0 && request.opcode == 8 {
            // As programs with windows of type 2 do.
            c!((*mw).rkey = key);
        }
    }
}
