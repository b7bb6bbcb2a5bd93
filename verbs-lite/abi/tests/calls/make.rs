//! Objects made with sizes, rights and parents of any kind.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use super::abi::*;
use super::world::{
    ARENA_BYTES, Address, Channel, MOST, Pages, Pair, Queue, Region, Shared, World, read, unblock,
    write,
};
use super::{Choices, Object, c};

/// Sizes that queues are asked to have, usual ones first.
const SIZES: [u32; 12] = [16, 16, 64, 4, 1, 0, 2, 255, 4096, 1 << 15, 1 << 20, u32::MAX];

/// Of queue pairs that are over no table.
pub(super) const NO_HASH: ibv_rx_hash_conf = ibv_rx_hash_conf {
    rx_hash_function: 0,
    rx_hash_key_len: 0,
    rx_hash_key: null_mut(),
    rx_hash_fields_mask: 0,
};

fn size(choices: &mut Choices<'_>) -> u32 {
    let usual = !choices.rarely(3);
    choices.one_of(&SIZES[..if usual { 3 } else { SIZES.len() }])
}

impl World<'_> {
    /// Makes one object.
    pub(crate) fn make(&self, choices: &mut Choices<'_>) {
        match choices.below(13) {
            10 => self.make_xrcd(choices),
            11 => self.make_shared_of_xrc(choices),
            12 => self.make_target(choices),
            0 => self.make_pd(),
            1 | 2 => self.make_region(choices),
            3 => self.make_channel(),
            4 => self.make_queue(choices),
            5 => self.make_shared(choices),
            6 => self.make_address(choices),
            7 => self.make_window(choices),
            _ => self.make_pair(choices),
        }
    }

    pub(crate) fn make_pd(&self) {
        let mut pds = write(&self.pds);
        if pds.len() < MOST {
            let pd = c!((self.api.ibv_alloc_pd)(self.context.0));
            assert!(!pd.is_null(), "a domain: {}", std::io::Error::last_os_error());
            pds.push(Object(pd));
        }
    }

    /// Memory of the world, of the region's own, or nobody's.
    fn memory(&self, choices: &mut Choices<'_>) -> (*mut u8, usize, Option<Pages>) {
        match choices.below(if self.is_wild { 8 } else { 64 }) {
            0 => {
                let pages = Pages::new(4096 * (1 + choices.below(4)));
                (pages.0, pages.1, Some(pages))
            }
            1 => (std::ptr::without_provenance_mut(choices.long() as usize), 4096, None),
            2 => (self.arena.0, choices.long() as usize, None),
            3 => (null_mut(), choices.below(8192), None),
            _ => {
                let start = choices.below(ARENA_BYTES);
                let len = choices.below(ARENA_BYTES - start + 1);
                (self.arena.0.wrapping_add(start), len, None)
            }
        }
    }

    pub(crate) fn make_region(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        let mut regions = write(&self.regions);
        if regions.len() == MOST || pds.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds);
        let (start, len, pages) = self.memory(choices);
        let access = if self.is_wild && choices.rarely(4) { choices.word() } else { 0x1f };
        let start = start.cast();
        let mr = if choices.rarely(4) {
            // Addresses that end behind the last one are refused.
            let iova = choices.long();
            c!((self.api.ibv_reg_mr_iova2)(pd.0, start, len, iova, access))
        } else {
            let mr = c!((self.api.ibv_reg_mr)(pd.0, start, len, access as c_int));
            let must_be = pages.is_some() && access == 0x1f;
            assert!(!(mr.is_null() && must_be), "pages of its own are refused");
            mr
        };
        if !mr.is_null() {
            assert_eq!(c!((*mr).length), len);
            regions.push(Region { mr: Object(mr), pd, pages });
        }
    }

    pub(crate) fn make_channel(&self) {
        let mut channels = write(&self.channels);
        // Each takes a vector of the device.
        if channels.len() < 3 {
            let channel = c!((self.api.ibv_create_comp_channel)(self.context.0));
            if !channel.is_null() {
                unblock(c!((*channel).fd));
                channels.push(Channel { channel: Object(channel) });
            }
        }
    }

    pub(crate) fn make_queue(&self, choices: &mut Choices<'_>) {
        let channels = read(&self.channels);
        let mut queues = write(&self.queues);
        if queues.len() == MOST {
            return;
        }
        let channel = match choices.below(channels.len() + 1) {
            0 => None,
            at => Some(channels[at - 1].channel),
        };
        let vector = if choices.rarely(16) { choices.word() } else { 0 };
        let (to, size) = (channel.map_or(null_mut(), |channel| channel.0), size(choices));
        let is_ex = choices.rarely(3);
        let cq = if is_ex {
            let create = c!((*self.extended()).create_cq_ex);
            let odd = choices.rarely(8);
            let mut attr = ibv_cq_init_attr_ex {
                cqe: size,
                cq_context: null_mut(),
                channel: to,
                comp_vector: vector,
                wc_flags: if odd { choices.long() } else { choices.one_of(&[0x7f, 0xff, 0x8ff]) },
                comp_mask: if odd { choices.word() & 1 } else { 0 },
                flags: if odd { choices.word() & 7 } else { 0 },
                parent_domain: null_mut(),
            };
            c!(create(self.context.0, &raw mut attr)).cast()
        } else {
            let create = self.api.ibv_create_cq;
            c!(create(self.context.0, size as c_int, null_mut(), to, vector as c_int))
        };
        if !cq.is_null() {
            assert!(c!((*cq).cqe) as u32 >= size, "a queue is smaller than it was asked for");
            queues.push(Queue { cq: Object(cq), channel, taken: AtomicU32::new(0), is_ex });
        }
    }

    pub(crate) fn make_shared(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        let mut shared = write(&self.shared);
        if shared.len() == MOST || pds.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds);
        let max_sge = if choices.rarely(4) { size(choices) } else { 2 };
        let attr = ibv_srq_attr { max_wr: size(choices), max_sge, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = c!((self.api.ibv_create_srq)(pd.0, &raw mut init));
        if !srq.is_null() {
            shared.push(Shared { srq: Object(srq), pd, xrc: None });
        }
    }

    /// A domain of no file, or the one of a file that all have.
    pub(crate) fn make_xrcd(&self, choices: &mut Choices<'_>) {
        let mut xrcds = write(&self.xrcds);
        if xrcds.len() == MOST {
            return;
        }
        let odd = choices.rarely(4);
        let mut attr = ibv_xrcd_init_attr {
            comp_mask: if odd { choices.word() & 7 } else { 3 },
            fd: choices.one_of(&[-1, -1, 0, 1, 2, -9, 1 << 20]),
            oflags: if odd { choices.word() as c_int } else { libc::O_CREAT },
        };
        let open = c!((*self.extended()).open_xrcd);
        let xrcd = c!(open(self.context.0, &raw mut attr));
        if !xrcd.is_null() {
            xrcds.push(Object(xrcd));
        }
    }

    pub(crate) fn make_shared_of_xrc(&self, choices: &mut Choices<'_>) {
        let (pds, xrcds, queues) = (read(&self.pds), read(&self.xrcds), read(&self.queues));
        let mut shared = write(&self.shared);
        if shared.len() == MOST || pds.is_empty() || xrcds.is_empty() || queues.is_empty() {
            return;
        }
        let (pd, xrcd) = (choices.one_of(&pds), choices.one_of(&xrcds));
        let cq = queues[choices.below(queues.len())].cq;
        let (max_wr, max_sge) = (size(choices), if choices.rarely(4) { size(choices) } else { 2 });
        let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
        let odd = choices.rarely(8);
        let mut init = ibv_srq_init_attr_ex {
            base: ibv_srq_init_attr_head { srq_context: null_mut(), attr },
            comp_mask: if odd { choices.word() & 0x1f } else { 0xf },
            srq_type: 1,
            pd: pd.0,
            xrcd: xrcd.0,
            cq: cq.0,
            tm_cap: [0; 2],
        };
        let create = c!((*self.extended()).create_srq_ex);
        let srq = c!(create(self.context.0, &raw mut init));
        if !srq.is_null() {
            // Without a type it is a plain one.
            let xrc = (init.comp_mask & 1 != 0).then_some((xrcd, cq));
            shared.push(Shared { srq: Object(srq), pd, xrc });
        }
    }

    /// A target of XRC, or one more handle of one.
    pub(crate) fn make_target(&self, choices: &mut Choices<'_>) {
        let xrcds = read(&self.xrcds);
        let mut pairs = write(&self.pairs);
        if pairs.len() == MOST || xrcds.is_empty() {
            return;
        }
        let xrcd = choices.one_of(&xrcds);
        let known = pairs.get(choices.below(2 * pairs.len()));
        let qp = if let Some(known) = known.filter(|pair| pair.kind == 10) {
            let mut attr = ibv_qp_open_attr {
                comp_mask: if choices.rarely(8) { choices.word() & 0x1f } else { 0xf },
                qp_num: c!((*known.qp.0).qp_num),
                xrcd: xrcd.0,
                qp_context: null_mut(),
                qp_type: 10,
            };
            let open = c!((*self.extended()).open_qp);
            c!(open(self.context.0, &raw mut attr))
        } else {
            // SAFETY: a structure of numbers and pointers, for which zeros are a value.
            let mut init: ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
            (init.qp_type, init.comp_mask, init.xrcd) = (10, 1 << 1, xrcd.0);
            let create = c!((*self.extended()).create_qp_ex);
            c!(create(self.context.0, &raw mut init))
        };
        if !qp.is_null() {
            let (pd, cqs, groups) = (Object(null_mut()), [Object(null_mut()); 2], Mutex::default());
            let (srq, xrcd, has_batches) = (None, Some(xrcd), true);
            let (qp, kind, flows) = (Object(qp), 10, Mutex::default());
            pairs.push(Pair { qp, pd, cqs, srq, kind, xrcd, has_batches, groups, flows });
        }
    }

    /// The way to this device itself, or to anywhere.
    pub(crate) fn way(&self, choices: &mut Choices<'_>) -> ibv_ah_attr {
        let mut grh = ibv_global_route { dgid: self.gid, hop_limit: 64, ..Default::default() };
        let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        if self.is_wild && choices.rarely(8) {
            grh.dgid[choices.below(2)] = choices.long();
            (grh.sgid_index, attr.sl) = (choices.byte(), choices.byte());
            (attr.is_global, attr.port_num) = (choices.byte() & 1, choices.byte() & 3);
            grh.flow_label = choices.word();
        }
        ibv_ah_attr { grh, ..attr }
    }

    pub(crate) fn make_address(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        let mut addresses = write(&self.addresses);
        if addresses.len() == MOST || pds.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds);
        let mut attr = self.way(choices);
        let ah = if choices.rarely(8) {
            let wc = ibv_wc { wc_flags: choices.word(), sl: choices.byte(), ..Default::default() };
            let mut grh = [0; 40];
            grh.fill_with(|| choices.byte());
            let port = choices.byte() & 1;
            c!((self.api.ibv_create_ah_from_wc)(pd.0, &raw const wc, &raw const grh, port))
        } else {
            c!((self.api.ibv_create_ah)(pd.0, &raw mut attr))
        };
        if !ah.is_null() {
            addresses.push(Address { ah: Object(ah), pd });
        }
    }

    pub(crate) fn make_pair(&self, choices: &mut Choices<'_>) {
        let (pds, queues, shared) = (read(&self.pds), read(&self.queues), read(&self.shared));
        let mut pairs = write(&self.pairs);
        if pairs.len() == MOST || pds.is_empty() || queues.is_empty() {
            return;
        }
        let pd = choices.one_of(&pds);
        let mut cqs = [(); 2].map(|()| queues[choices.below(queues.len())].cq);
        let srq = match choices.below(shared.len() + 2) {
            at if at < shared.len() => Some(shared[at].srq),
            _ => None,
        };
        let kind = choices.one_of(&[2, 2, 2, 3, 4, 4, 2, 2, 8, 9, 10, 0xff, 7, 0]);
        let odd = choices.rarely(8);
        let cap = ibv_qp_cap {
            max_send_wr: size(choices),
            max_recv_wr: size(choices),
            max_send_sge: if odd { size(choices) } else { 3 },
            max_recv_sge: if odd { size(choices) } else { 2 },
            max_inline_data: if odd { size(choices) } else { 64 },
        };
        let has_batches = choices.rarely(2);
        let [send_cq, recv_cq] = cqs.map(|cq| cq.0);
        let (qp_context, sq_sig_all) = (null_mut(), c_int::from(choices.rarely(3)));
        let srq_face = srq.map_or(null_mut(), |srq| srq.0);
        let qp = if has_batches {
            let ops = if odd { choices.long() } else { 0x1ff };
            let mut init = ibv_qp_init_attr_ex {
                qp_context,
                send_cq,
                recv_cq,
                srq: srq_face,
                cap,
                qp_type: kind,
                sq_sig_all,
                comp_mask: 1 | 1 << 6,
                pd: pd.0,
                xrcd: null_mut(),
                create_flags: 0,
                max_tso_header: 0,
                rwq_ind_tbl: null_mut(),
                rx_hash_conf: NO_HASH,
                source_qpn: 0,
                send_ops_flags: match kind {
                    2 | 9 => ops,
                    8 => ops & 4,
                    _ => ops & 0xc,
                },
            };
            let create = c!((*self.extended()).create_qp_ex);
            c!(create(self.context.0, &raw mut init))
        } else {
            let mut init = ibv_qp_init_attr {
                qp_context,
                send_cq,
                recv_cq,
                srq: srq_face,
                cap,
                qp_type: kind,
                sq_sig_all,
            };
            c!((self.api.ibv_create_qp)(pd.0, &raw mut init))
        };
        if !qp.is_null() {
            let (groups, flows, xrcd) = (Mutex::default(), Mutex::default(), None);
            let srq = srq.filter(|_| kind != 9);
            if kind == 9 {
                // An initiator receives nothing, whatever it was made with.
                cqs[1] = cqs[0];
            }
            let qp = Object(qp);
            pairs.push(Pair { qp, pd, cqs, srq, kind, xrcd, has_batches, groups, flows });
        }
    }
}
