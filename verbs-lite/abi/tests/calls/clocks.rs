//! Calls about domains made of others, moderation of events, and the device's clock.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};

use super::abi::*;
use super::world::{ARENA_BYTES, World, read};
use super::{Choices, c};

/// What a lender counts when it has nothing to lend.
const REFUSES: i32 = -100;

/// Lends memory, and counts where it was told to.
unsafe extern "C" fn give(
    pd: *mut ibv_pd,
    lent: *mut c_void,
    size: usize,
    alignment: usize,
    _kind: u64,
) -> *mut c_void {
    assert!(!pd.is_null());
    let lent = c!(lent.cast::<AtomicI32>().as_ref());
    if lent.is_some_and(|lent| lent.load(Ordering::Relaxed) == REFUSES) {
        return null_mut();
    }
    lent.map(|lent| lent.fetch_add(1, Ordering::Relaxed));
    let mut start = null_mut();
    assert_eq!(c!(libc::posix_memalign(&raw mut start, alignment, size)), 0);
    start
}

/// Takes it back.
unsafe extern "C" fn take(pd: *mut ibv_pd, lent: *mut c_void, start: *mut c_void, _kind: u64) {
    assert!(!pd.is_null());
    let lent = c!(lent.cast::<AtomicI32>().as_ref());
    lent.map(|lent| lent.fetch_sub(1, Ordering::Relaxed));
    c!(libc::free(start));
}

impl World<'_> {
    /// Makes a parent domain, uses it, and ends it; what it needs cannot end before it.
    pub(crate) fn parent(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        if pds.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds).0;
        let face = c!(&*self.extended());
        let mut mask = u32::from(choices.rarely(8));
        let td = c!((face.alloc_td)(self.context.0, &raw mut mask));
        assert_eq!(td.is_null(), mask != 0);
        let lent = AtomicI32::new(0);
        let mut attr = ibv_parent_domain_init_attr {
            pd: if choices.rarely(8) { null_mut() } else { pd },
            td,
            comp_mask: if choices.rarely(4) {
                choices.word()
            } else {
                2 | u32::from(choices.byte() & 1)
            },
            alloc: if choices.rarely(8) { None } else { Some(give) },
            free: Some(take),
            pd_context: (&raw const lent).cast_mut().cast(),
        };
        let parent = c!((face.alloc_parent_domain)(self.context.0, &raw mut attr));
        let lends = attr.comp_mask & 1 != 0;
        let is_known = attr.comp_mask & !3 == 0 && (!lends || attr.alloc.is_some());
        let is_good = !attr.pd.is_null() && is_known;
        assert_eq!(!parent.is_null(), is_good, "a parent domain");
        c!({
            if is_good {
                let (at, len) = (self.arena.0.cast(), ARENA_BYTES);
                let mr = (self.api.ibv_reg_mr)(parent, at, len, 1);
                assert!(!mr.is_null());
                assert_eq!((self.api.ibv_dealloc_pd)(parent), libc::EBUSY, "it has a region");
                assert_eq!((self.api.ibv_dealloc_pd)(pd), libc::EBUSY, "it has a parent");
                if !td.is_null() {
                    assert_eq!((face.dealloc_td)(td), libc::EBUSY, "it is part of a domain");
                }
                assert_eq!((self.api.ibv_dereg_mr)(mr), 0);
                let has_context = attr.comp_mask & 2 != 0;
                self.use_rings(parent, (lends && has_context).then_some(&lent));
                assert_eq!((self.api.ibv_dealloc_pd)(parent), 0);
            }
            if !td.is_null() {
                assert_eq!((face.dealloc_td)(td), 0);
            }
        });
    }

    /// Makes a queue pair in a domain, whose rings lie in lent memory as long as it lives.
    fn use_rings(&self, pd: *mut ibv_pd, lent: Option<&AtomicI32>) {
        let count = || lent.map(|lent| lent.load(Ordering::Relaxed));
        c!({
            let cq = (self.api.ibv_create_cq)(self.context.0, 8, null_mut(), null_mut(), 0);
            let cap = ibv_qp_cap {
                max_send_wr: 100,
                max_recv_wr: 10,
                max_send_sge: 2,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let mut init = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap,
                qp_type: 2,
                sq_sig_all: 0,
            };
            let qp = (self.api.ibv_create_qp)(pd, &raw mut init);
            assert!(!qp.is_null());
            assert_eq!(count(), lent.map(|_| 1), "its rings are in memory of the program's");
            assert_eq!((self.api.ibv_destroy_qp)(qp), 0);
            assert_eq!(count(), lent.map(|_| 0), "it has its memory back");
            if let Some(lent) = lent {
                // Whoever asks now gets none.
                lent.store(REFUSES, Ordering::Relaxed);
                assert!((self.api.ibv_create_qp)(pd, &raw mut init).is_null());
                assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOMEM));
            }
            assert_eq!((self.api.ibv_destroy_cq)(cq), 0);
        });
    }

    /// Sets when events of a queue come.
    pub(crate) fn moderate(&self, choices: &mut Choices<'_>) {
        let queues = read(&self.queues);
        let Some(queue) = queues.get(choices.below(queues.len())) else { return };
        let mut attr = ibv_modify_cq_attr {
            attr_mask: if choices.rarely(4) { choices.word() } else { 1 },
            cq_count: choices.word() as u16,
            cq_period: choices.word() as u16 & if choices.rarely(4) { 0xffff } else { 0xff },
        };
        let status = c!(((*self.extended()).modify_cq)(queue.cq.0, &raw mut attr));
        let is_good = attr.attr_mask == 1 && attr.cq_period <= 0xfff;
        assert_eq!(status == 0, is_good, "status {status}");
    }

    /// Reads the device's clock.
    pub(crate) fn look_at_clock(&self, choices: &mut Choices<'_>) {
        let raw_clock = libc::timespec { tv_sec: -1, tv_nsec: -1 };
        let comp_mask = if choices.rarely(4) { choices.word() } else { 1 };
        let mut values = ibv_values_ex { comp_mask, raw_clock };
        let query = c!((*self.extended()).query_rt_values);
        let status = c!(query(self.context.0, &raw mut values));
        assert_eq!(status == 0, comp_mask & !1 == 0);
        if status == 0 && comp_mask == 1 {
            assert!(values.comp_mask == 1 && values.raw_clock.tv_nsec >= 0);
        }
    }
}
