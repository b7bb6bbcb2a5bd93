//! Calls about domains made of others, moderation of events, and the device's clock.

use std::ptr::null_mut;

use super::abi::*;
use super::world::{ARENA_BYTES, World, read};
use super::{Choices, c};

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
        let mut attr = ibv_parent_domain_init_attr {
            pd: if choices.rarely(8) { null_mut() } else { pd },
            td,
            comp_mask: if choices.rarely(4) { choices.word() } else { 2 },
            allocators: [ABSENT; 2],
            pd_context: null_mut(),
        };
        let parent = c!((face.alloc_parent_domain)(self.context.0, &raw mut attr));
        let is_good = !attr.pd.is_null() && attr.comp_mask & !2 == 0;
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
                assert_eq!((self.api.ibv_dealloc_pd)(parent), 0);
            }
            if !td.is_null() {
                assert_eq!((face.dealloc_td)(td), 0);
            }
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
