//! Queue pairs that end while there is work: drained as programs do it, and destroyed in the middle
//! of a message.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

use super::abi::*;
use super::world::World;
use super::{Choices, c};

/// Requests that wait when the queue pair fails.
const WAITING: u64 = 8;
const MARKER: u64 = 99;
/// `IBV_WC_WR_FLUSH_ERR`.
const FLUSHED: i32 = 5;
/// Receives of a shared queue, and the bytes of a message that takes one of them for a while.
const RECEIVES: u64 = 4;
const LONG: u32 = 1 << 20;

impl World<'_> {
    /// Leads a queue pair that is its own peer to its error state with sends that wait for a
    /// receive; posts the marker after that by `ibv_post_send` or by functions. Returns what ended,
    /// in order, as the queue's event said it.
    pub(crate) fn drain(&self, by_functions: bool) -> Vec<(u64, i32)> {
        let (api, context) = (self.api, self.context.0);
        let pd = c!((api.ibv_alloc_pd)(context));
        let channel = c!((api.ibv_create_comp_channel)(context));
        let cq = c!((api.ibv_create_cq)(context, 32, null_mut(), channel, 0));
        let qp = self.connection(pd, cq, null_mut());
        self.join(qp, qp);
        let post = |wr_id| self.post(qp, ibv_send_wr { wr_id, ..self.message() });
        (0..WAITING).for_each(post);
        assert_eq!(c!(((*context).ops.req_notify_cq)(cq, 0)), 0);
        self.fail(qp);
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

    /// Makes `count` channels of one completion queue each, and checks that each is woken for its
    /// own queue, in another order than they were made, and again.
    pub(crate) fn wake_each(&self, count: usize) {
        let (api, context) = (self.api, self.context.0);
        let pd = c!((api.ibv_alloc_pd)(context));
        let make = |_| {
            let channel = c!((api.ibv_create_comp_channel)(context));
            assert!(!channel.is_null());
            let cq = c!((api.ibv_create_cq)(context, 4, null_mut(), channel, 0));
            let qp = self.connection(pd, cq, null_mut());
            self.join(qp, qp);
            self.fail(qp);
            (channel, cq, qp)
        };
        let ends: Vec<_> = (0..count).map(make).collect();
        for round in 0..2 {
            for (_, cq, qp) in &ends {
                assert_eq!(c!(((*context).ops.req_notify_cq)(*cq, 0)), 0);
                self.post(*qp, ibv_send_wr { wr_id: round, ..self.message() });
            }
            for (channel, cq, _) in ends.iter().rev() {
                self.wait_for_event(*cq, *channel);
                c!((api.ibv_ack_cq_events)(*cq, 1));
                assert_eq!(self.take_ended(*cq), [(round, FLUSHED)]);
            }
        }
        // Events of queues that end, and that nobody took, are no other queue's.
        for (_, cq, qp) in &ends {
            assert_eq!(c!(((*context).ops.req_notify_cq)(*cq, 0)), 0);
            self.post(*qp, self.message());
        }
        for (channel, cq, qp) in ends {
            c!({
                assert_eq!((api.ibv_destroy_comp_channel)(channel), libc::EBUSY);
                assert_eq!((api.ibv_destroy_qp)(qp), 0);
                assert_eq!((api.ibv_destroy_cq)(cq), 0);
                let mut ready =
                    libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
                assert_eq!(libc::poll(&raw mut ready, 1, 0), 0, "an event of a queue that is gone");
                assert_eq!((api.ibv_destroy_comp_channel)(channel), 0);
            });
        }
        assert_eq!(c!((api.ibv_dealloc_pd)(pd)), 0);
    }

    /// Lets messages take receives of a shared queue until its limit is reached, and checks what
    /// the queue says of that before and after.
    pub(crate) fn reach_limit(&self) {
        let (api, context) = (self.api, self.context.0);
        let pd = c!((api.ibv_alloc_pd)(context));
        let cq = c!((api.ibv_create_cq)(context, 64, null_mut(), null_mut(), 0));
        let attr = ibv_srq_attr { max_wr: RECEIVES as u32, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = c!((api.ibv_create_srq)(pd, &raw mut init));
        let limit = || {
            let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 99 };
            assert_eq!(c!((api.ibv_query_srq)(srq, &raw mut attr)), 0);
            attr.srq_limit
        };
        for wr_id in 0..RECEIVES {
            let (sg_list, mut bad) = (null_mut(), null_mut());
            let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list, num_sge: 0 };
            assert_eq!(c!(((*context).ops.post_srq_recv)(srq, &raw mut wr, &raw mut bad)), 0);
        }
        let mut attr = ibv_srq_attr { srq_limit: 3, ..attr };
        assert_eq!(c!((api.ibv_modify_srq)(srq, &raw mut attr, 2)), 0);
        assert_eq!(limit(), 3);
        let [client, server] = [null_mut(), srq].map(|srq| self.connection(pd, cq, srq));
        self.join(client, server);
        (0..2).for_each(|_| self.post(client, self.message()));
        let mut event = ibv_async_event { element: 0, event_type: -1 };
        let start = std::time::Instant::now();
        while c!((api.ibv_get_async_event)(context, &raw mut event)) != 0 {
            assert!(start.elapsed().as_secs() < 20, "no event");
            self.take_ended(cq);
        }
        assert_eq!((event.event_type, event.element), (15, srq.addr() as u64));
        c!((api.ibv_ack_async_event)(&raw mut event));
        assert_eq!(limit(), 0, "it was reached");
        c!({
            assert_eq!((api.ibv_destroy_qp)(client), 0);
            assert_eq!((api.ibv_destroy_qp)(server), 0);
            assert_eq!((api.ibv_destroy_srq)(srq), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
    }

    /// Ends queue pairs that take a message into a receive of a shared queue, by destroying or
    /// resetting them, and checks that every receive can be posted again.
    pub(crate) fn end_in_mid_message(&self, by_reset: bool) {
        let (api, context) = (self.api, self.context.0);
        let pd = c!((api.ibv_alloc_pd)(context));
        let cq = c!((api.ibv_create_cq)(context, 64, null_mut(), null_mut(), 0));
        let mut attr = ibv_srq_init_attr {
            srq_context: null_mut(),
            attr: ibv_srq_attr { max_wr: RECEIVES as u32, max_sge: 1, srq_limit: 0 },
        };
        let srq = c!((api.ibv_create_srq)(pd, &raw mut attr));
        let mut memory = vec![0_u8; 2 * LONG as usize];
        let mr = c!((api.ibv_reg_mr)(pd, memory.as_mut_ptr().cast(), memory.len(), 1));
        assert!(!srq.is_null() && !mr.is_null());
        let piece = |half: usize| ibv_sge {
            addr: memory.as_ptr().addr() as u64 + (half * LONG as usize) as u64,
            length: LONG,
            lkey: c!((*mr).lkey),
        };
        let receive = || {
            let (mut sge, mut bad) = (piece(1), null_mut());
            let mut wr =
                ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
            c!(((*context).ops.post_srq_recv)(srq, &raw mut wr, &raw mut bad))
        };
        (0..RECEIVES).for_each(|_| assert_eq!(receive(), 0));
        for _ in 0..8 * RECEIVES {
            let [client, server] = [null_mut(), srq].map(|srq| self.connection(pd, cq, srq));
            self.join(client, server);
            let mut sge = piece(0);
            self.post(client, ibv_send_wr { sg_list: &raw mut sge, num_sge: 1, ..self.message() });
            if by_reset {
                let mut attr = ibv_qp_attr::default();
                assert_eq!(c!((api.ibv_modify_qp)(server, &raw mut attr, 1)), 0);
                assert_eq!(c!((*server).state), 0);
            }
            for qp in [server, client] {
                assert_eq!(c!((api.ibv_destroy_qp)(qp)), 0);
            }
            // The one that was taken is free again; the others are not.
            while receive() == 0 {}
        }
        // A live one gets every one of them.
        let [client, server] = [null_mut(), srq].map(|srq| self.connection(pd, cq, srq));
        self.join(client, server);
        let mut received = 0;
        for _ in 0..RECEIVES {
            self.post(client, self.message());
        }
        let start = std::time::Instant::now();
        while received < RECEIVES && start.elapsed().as_secs() < 20 {
            received += self.take_ended(cq).iter().filter(|(wr_id, _)| *wr_id == 1).count() as u64;
        }
        assert_eq!(received, RECEIVES, "receives were lost");
        c!({
            for qp in [server, client] {
                assert_eq!((api.ibv_destroy_qp)(qp), 0);
            }
            assert_eq!((api.ibv_destroy_srq)(srq), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dereg_mr)(mr), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
        });
    }

    /// A queue pair of a reliable connection, which takes receives from `srq`, if there is one.
    pub(super) fn connection(
        &self,
        pd: *mut ibv_pd,
        cq: *mut ibv_cq,
        srq: *mut ibv_srq,
    ) -> *mut ibv_qp {
        let cap = ibv_qp_cap {
            max_send_wr: 16,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        self.connection_of((pd, cq, srq), cap, true, 0xc)
    }

    /// A queue pair of these sizes, of which all requests are signaled or those that ask for it,
    /// with functions for these operations.
    pub(super) fn connection_of(
        &self,
        (pd, cq, srq): (*mut ibv_pd, *mut ibv_cq, *mut ibv_srq),
        cap: ibv_qp_cap,
        signals_all: bool,
        send_ops_flags: u64,
    ) -> *mut ibv_qp {
        let mut init = ibv_qp_init_attr_ex {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq,
            cap,
            qp_type: 2,
            sq_sig_all: signals_all.into(),
            comp_mask: 1 | 1 << 6,
            pd,
            xrcd: null_mut(),
            create_flags: 0,
            max_tso_header: 0,
            rwq_ind_tbl: null_mut(),
            rx_hash_conf: super::make::NO_HASH,
            source_qpn: 0,
            send_ops_flags,
        };
        let qp = c!(((*self.extended()).create_qp_ex)(self.context.0, &raw mut init));
        assert!(!qp.is_null());
        qp
    }

    /// Leads both ends to RTS; they wait for receives as long as it takes.
    pub(super) fn join(&self, a: *mut ibv_qp, b: *mut ibv_qp) {
        self.join_trying(a, b, 7);
    }

    /// The same, where a request is sent `retry_cnt` times more if there is no answer.
    pub(super) fn join_trying(&self, a: *mut ibv_qp, b: *mut ibv_qp, retry_cnt: u8) {
        for (qp, peer) in [(a, b), (b, a)] {
            let mut attr = ibv_qp_attr {
                path_mtu: 3,
                port_num: 1,
                dest_qp_num: c!((*peer).qp_num),
                ah_attr: self.way(&mut Choices::new(&[])),
                min_rnr_timer: 1,
                timeout: 14,
                retry_cnt,
                rnr_retry: 7,
                qp_access_flags: 0xf,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                ..Default::default()
            };
            for (state, given) in [(1, 0x39), (2, 0x12_9181), (3, 0x1_2e01)] {
                attr.qp_state = state;
                let modified = c!((self.api.ibv_modify_qp)(qp, &raw mut attr, given));
                assert_eq!(modified, 0, "to {state}");
            }
            if a == b {
                break;
            }
        }
    }

    pub(super) fn fail(&self, qp: *mut ibv_qp) {
        let mut attr = ibv_qp_attr { qp_state: 6, ..Default::default() };
        assert_eq!(c!((self.api.ibv_modify_qp)(qp, &raw mut attr, 1)), 0);
    }

    /// A SEND of nothing.
    pub(super) fn message(&self) -> ibv_send_wr {
        ibv_send_wr { opcode: 2, ..c!(std::mem::zeroed()) }
    }

    pub(super) fn post(&self, qp: *mut ibv_qp, mut wr: ibv_send_wr) {
        let mut bad = null_mut();
        let posted = c!(((*self.context.0).ops.post_send)(qp, &raw mut wr, &raw mut bad));
        assert_eq!(posted, 0, "{}", wr.wr_id);
    }

    pub(super) fn wait_for_event(&self, cq: *mut ibv_cq, channel: *mut ibv_comp_channel) {
        let mut ready = libc::pollfd { fd: c!((*channel).fd), events: libc::POLLIN, revents: 0 };
        assert_eq!(c!(libc::poll(&raw mut ready, 1, 20_000)), 1, "no event");
        let (mut of, mut with) = (null_mut(), null_mut());
        let taken = c!((self.api.ibv_get_cq_event)(channel, &raw mut of, &raw mut with));
        assert_eq!((taken, of), (0, cq));
    }

    /// Number and status of what has ended.
    pub(super) fn take_ended(&self, cq: *mut ibv_cq) -> Vec<(u64, i32)> {
        let mut out = [const { MaybeUninit::<ibv_wc>::zeroed() }; 16];
        let poll = c!((*self.context.0).ops.poll_cq);
        let found = c!(poll(cq, out.len() as i32, out.as_mut_ptr()));
        let ended = out[..found as usize].iter().map(|wc| c!(wc.assume_init()));
        ended.map(|wc| (wc.wr_id, wc.status)).collect()
    }
}
