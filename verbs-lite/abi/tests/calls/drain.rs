//! A queue pair that is drained as programs do it: led to its error state, and given one request
//! more, whose end says that all others have ended.

use std::mem::MaybeUninit;
use std::ptr::{from_mut, null_mut};

use super::abi::*;
use super::world::World;
use super::{Choices, c};

/// Requests that wait when the queue pair fails.
const WAITING: u64 = 8;
const MARKER: u64 = 99;
/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: i32 = 5;

impl World<'_> {
    /// Leads a queue pair that is its own peer to its error state with sends that wait for a
    /// receive; posts the marker after that by `ibv_post_send` or by functions. Returns what ended,
    /// in order, as the queue's event said it.
    pub(crate) fn drain(&self, by_functions: bool) -> Vec<(u64, i32)> {
        let (api, context) = (self.api, self.context.0);
        let pd = c!((api.ibv_alloc_pd)(context));
        let channel = c!((api.ibv_create_comp_channel)(context));
        let cq = c!((api.ibv_create_cq)(context, 32, null_mut(), channel, 0));
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: 2,
            sq_sig_all: 1,
            comp_mask: 1 | 1 << 6,
            pd,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: [0; 3],
            source_qpn: 0,
            send_ops_flags: 0xc,
        };
        let qp = c!(((*self.extended()).create_qp_ex)(context, &raw mut init));
        assert!(!qp.is_null());
        let mut attr = ibv_qp_attr {
            path_mtu: 3,
            port_num: 1,
            dest_qp_num: c!((*qp).qp_num),
            ah_attr: self.way(&mut Choices::new(&[])),
            min_rnr_timer: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Default::default()
        };
        let mut lead = |state, given| {
            attr.qp_state = state;
            assert_eq!(c!((api.ibv_modify_qp)(qp, &raw mut attr, given)), 0, "to {state}");
        };
        for (state, given) in [(1, 0x39), (2, 0x12_9181), (3, 0x1_2e01)] {
            lead(state, given);
        }
        let post = |wr_id| {
            let mut bad = null_mut();
            let mut wr = ibv_send_wr { wr_id, opcode: 2, ..c!(std::mem::zeroed()) };
            let posted = c!(((*context).ops.post_send)(qp, from_mut(&mut wr), &raw mut bad));
            assert_eq!(posted, 0, "{wr_id}");
        };
        (0..WAITING).for_each(post);
        assert_eq!(c!(((*context).ops.req_notify_cq)(cq, 0)), 0);
        lead(6, 1);
        self.wait_for_event(cq, channel);
        let mut ended = self.take_ended(cq);
        // The marker has an event of its own.
        assert_eq!(c!(((*context).ops.req_notify_cq)(cq, 0)), 0);
        if by_functions {
            let face: *mut ibv_qp_ex = qp.cast();
            c!({
                ((*face).wr_start)(face);
                ((*face).wr_id, (*face).wr_flags) = (MARKER, 0);
                ((*face).wr_send)(face);
                assert_eq!(((*face).wr_complete)(face), 0);
            });
        } else {
            post(MARKER);
        }
        self.wait_for_event(cq, channel);
        ended.extend(self.take_ended(cq));
        c!({
            (api.ibv_ack_cq_events)(cq, 2);
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_destroy_comp_channel)(channel), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
        ended
    }

    /// What [`World::drain`] gives when it is right.
    pub(crate) fn drained() -> Vec<(u64, i32)> {
        (0..WAITING).chain([MARKER]).map(|wr_id| (wr_id, FLUSHED)).collect()
    }

    fn wait_for_event(&self, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) {
        let mut ready = libc::pollfd { fd: c!((*channel).fd), events: libc::POLLIN, revents: 0 };
        assert_eq!(c!(libc::poll(&raw mut ready, 1, 20_000)), 1, "no event");
        let (mut of, mut with) = (null_mut(), null_mut());
        let taken = c!((self.api.ibv_get_cq_event)(channel, &raw mut of, &raw mut with));
        assert_eq!((taken, of), (0, cq));
    }

    fn take_ended(&self, cq: *mut ibv_cq) -> Vec<(u64, i32)> {
        let mut out = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
        let poll = c!((*self.context.0).ops.poll_cq);
        let found = c!(poll(cq, out.len() as i32, out.as_mut_ptr()));
        out[..found as usize]
            .iter()
            .map(|wc| c!(wc.assume_init()))
            .map(|wc| (wc.wr_id, wc.status))
            .collect()
    }
}
