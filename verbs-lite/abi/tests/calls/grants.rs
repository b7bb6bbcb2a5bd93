//! What the library grants beyond what was asked for, and what programs read of it.

use std::ptr::null_mut;

use super::abi::*;
use super::c;
use super::world::{Pages, World, unblock};

/// `IBV_SEND_INLINE`, `IBV_WR_RDMA_WRITE`, `IBV_QPT_XRC_RECV`.
const INLINE: u32 = 1 << 3;
const WRITE: i32 = 0;
const XRC_RECV: i32 = 10;

impl World<'_> {
    /// Makes queue pairs that ask for so many entries of a list and bytes inline; gives what each
    /// may have inline, as it is written back and as the queue pair says later.
    pub(crate) fn inline_granted(&self, asked: &[(u32, u32)]) -> Vec<[u32; 2]> {
        let api = self.api;
        let pd = c!((api.ibv_alloc_pd)(self.context.0));
        let cq = c!((api.ibv_create_cq)(self.context.0, 32, null_mut(), null_mut(), 0));
        let grant = |(max_send_sge, max_inline_data)| {
            let (max_send_wr, max_recv_wr, max_recv_sge) = (4, 1, 1);
            let cap = ibv_qp_cap {
                max_send_wr,
                max_recv_wr,
                max_send_sge,
                max_recv_sge,
                max_inline_data,
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
            c!({
                let qp = (api.ibv_create_qp)(pd, &raw mut init);
                assert!(!qp.is_null());
                let (mut attr, mut later) = (ibv_qp_attr::default(), init);
                assert_eq!((api.ibv_query_qp)(qp, &raw mut attr, 0, &raw mut later), 0);
                assert_eq!((api.ibv_destroy_qp)(qp), 0);
                [init.cap, later.cap].map(|cap| cap.max_inline_data)
            })
        };
        let granted = asked.iter().copied().map(grant).collect();
        assert_eq!(c!((api.ibv_destroy_cq)(cq)), 0);
        assert_eq!(c!((api.ibv_dealloc_pd)(pd)), 0);
        granted
    }

    /// Writes bytes that stand in the request by a queue pair that asked for none; gives what
    /// arrived.
    pub(crate) fn write_inline_unasked(&self, bytes: &[u8]) -> Vec<u8> {
        let (api, pages) = (self.api, Pages::new(4096));
        c!({
            let pd = (api.ibv_alloc_pd)(self.context.0);
            let cq = (api.ibv_create_cq)(self.context.0, 32, null_mut(), null_mut(), 0);
            let qp = self.connection(pd, cq, null_mut());
            self.join(qp, qp);
            let mr = (api.ibv_reg_mr)(pd, pages.0.cast(), 4096, 7);
            let mut data =
                ibv_sge { addr: bytes.as_ptr().addr() as u64, length: bytes.len() as u32, lkey: 0 };
            bytes.as_ptr().expose_provenance();
            let (remote_addr, rkey) = (pages.0.addr() as u64, (*mr).rkey);
            let wr = wr_of { rdma: wr_rdma { remote_addr, rkey } };
            let (opcode, send_flags, sg_list) = (WRITE, INLINE, &raw mut data);
            let message = self.message();
            self.post(qp, ibv_send_wr { opcode, send_flags, sg_list, num_sge: 1, wr, ..message });
            let start = std::time::Instant::now();
            while self.take_ended(cq).is_empty() {
                assert!(start.elapsed().as_secs() < 20, "it does not end");
            }
            let arrived = std::slice::from_raw_parts(pages.0, bytes.len()).to_vec();
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dereg_mr)(mr), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            arrived
        })
    }

    /// Makes a target of XRC in a domain of its own, and in none; whether each names it.
    pub(crate) fn targets_name_their_domain(&self) -> [bool; 2] {
        let face = c!(&*self.extended());
        let pd = c!((self.api.ibv_alloc_pd)(self.context.0));
        let mut attr = ibv_xrcd_init_attr { comp_mask: 3, fd: -1, oflags: libc::O_CREAT };
        let xrcd = c!((face.open_xrcd)(self.context.0, &raw mut attr));
        let named = [1, 0].map(|has_pd| {
            let mut init: ibv_qp_init_attr_ex = c!(std::mem::zeroed());
            (init.qp_type, init.comp_mask, init.xrcd) = (XRC_RECV, has_pd | 1 << 1, xrcd);
            init.pd = pd;
            c!({
                let qp = (face.create_qp_ex)(self.context.0, &raw mut init);
                assert!(!qp.is_null());
                let named = (*qp).pd;
                assert!(named == pd || named.is_null());
                assert_eq!((self.api.ibv_destroy_qp)(qp), 0);
                !named.is_null()
            })
        });
        // A target is in no domain.
        assert_eq!(c!((self.api.ibv_dealloc_pd)(pd)), 0);
        assert_eq!(c!((face.close_xrcd)(xrcd)), 0);
        named
    }

    /// Watches the file of a channel by `epoll` and leaves it watched when the channel ends, in the
    /// way of programs that close what they watch. The next channel's file is another one.
    pub(crate) fn channels_in_a_row(&self) {
        let api = self.api;
        c!({
            let watch = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            let pd = (api.ibv_alloc_pd)(self.context.0);
            let mut numbers = Vec::new();
            for round in 0..3 {
                let channel = (api.ibv_create_comp_channel)(self.context.0);
                let fd = (*channel).fd;
                numbers.push(fd);
                let flags = libc::fcntl(fd, libc::F_GETFL);
                assert_eq!(flags & libc::O_NONBLOCK, 0, "{round}: it blocks until it is told");
                unblock(fd);
                let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
                let mut event = libc::epoll_event { events, u64: round };
                let added = libc::epoll_ctl(watch, libc::EPOLL_CTL_ADD, fd, &raw mut event);
                assert_eq!(added, 0, "{round}: {}", std::io::Error::last_os_error());
                let mut ready = || {
                    event.u64 = u64::MAX;
                    (libc::epoll_wait(watch, &raw mut event, 1, 0), event.u64)
                };
                assert_eq!(ready().0, 0, "{round}: nothing has come");
                let cq = (api.ibv_create_cq)(self.context.0, 32, null_mut(), channel, 0);
                let qp = self.connection(pd, cq, null_mut());
                self.join(qp, qp);
                self.fail(qp);
                for _ in 0..2 {
                    assert_eq!(((*self.context.0).ops.req_notify_cq)(cq, 0), 0);
                    self.post(qp, self.message());
                    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    assert_eq!(libc::poll(&raw mut file, 1, 20_000), 1, "{round}: no event");
                    assert_eq!(ready(), (1, round), "{round}: an edge");
                    assert_eq!(ready().0, 0, "{round}: no other edge");
                    self.wait_for_event(cq, channel);
                    assert_eq!(libc::poll(&raw mut file, 1, 0), 0, "{round}: it was taken");
                    (api.ibv_ack_cq_events)(cq, 1);
                    self.take_ended(cq);
                }
                assert_eq!((api.ibv_destroy_qp)(qp), 0);
                assert_eq!((api.ibv_destroy_cq)(cq), 0);
                assert_eq!((api.ibv_destroy_comp_channel)(channel), 0);
            }
            assert!(numbers.windows(2).all(|two| two[0] == two[1]), "{numbers:?}: not the case");
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            assert_eq!(libc::close(watch), 0);
        });
    }

    /// Leads a queue pair from its first state to its error state at once; the error number.
    pub(crate) fn fail_unused(&self) -> i32 {
        let api = self.api;
        c!({
            let pd = (api.ibv_alloc_pd)(self.context.0);
            let cq = (api.ibv_create_cq)(self.context.0, 4, null_mut(), null_mut(), 0);
            let qp = self.connection(pd, cq, null_mut());
            let mut attr = ibv_qp_attr { qp_state: 6, ..Default::default() };
            let failed = (api.ibv_modify_qp)(qp, &raw mut attr, 1);
            assert_eq!((*qp).state, 0, "it is as it was");
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            failed
        })
    }

    /// Changes rights of a region whose addresses are its own, in a way that the device cannot
    /// under the same key, and writes to its first address; gives what came of the write.
    pub(crate) fn write_to_changed(&self) -> (i32, u8) {
        /// Local write, remote write and read; addresses from 0; `IBV_REREG_MR_CHANGE_ACCESS`.
        const RIGHTS: i32 = 7;
        const ZERO_BASED: i32 = 1 << 5;
        const CHANGE_ACCESS: i32 = 1 << 2;
        let (api, pages) = (self.api, Pages::new(8192));
        c!({
            let pd = (api.ibv_alloc_pd)(self.context.0);
            let cq = (api.ibv_create_cq)(self.context.0, 32, null_mut(), null_mut(), 0);
            let qp = self.connection(pd, cq, null_mut());
            self.join(qp, qp);
            pages.0.write(0x5a);
            let from = (api.ibv_reg_mr)(pd, pages.0.cast(), 4096, RIGHTS);
            let at = pages.0.add(4096).cast();
            let to = (api.ibv_reg_mr)(pd, at, 4096, RIGHTS | ZERO_BASED);
            let change = |flags, access| (api.ibv_rereg_mr)(to, flags, pd, null_mut(), 0, access);
            // Rights that nobody is to change.
            assert_eq!(change(1 << 1, RIGHTS), -1);
            assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINVAL));
            assert_eq!(change(CHANGE_ACCESS, RIGHTS), 0);
            let mut data = ibv_sge { addr: pages.0.addr() as u64, length: 1, lkey: (*from).lkey };
            let wr = wr_of { rdma: wr_rdma { remote_addr: 0, rkey: (*to).rkey } };
            let (opcode, sg_list) = (WRITE, &raw mut data);
            self.post(qp, ibv_send_wr { opcode, sg_list, num_sge: 1, wr, ..self.message() });
            let start = std::time::Instant::now();
            let status = loop {
                if let [(_, status)] = self.take_ended(cq)[..] {
                    break status;
                }
                assert!(start.elapsed().as_secs() < 20, "it does not end");
            };
            let arrived = pages.0.add(4096).read_volatile();
            assert_eq!((api.ibv_destroy_qp)(qp), 0);
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            for mr in [from, to] {
                assert_eq!((api.ibv_dereg_mr)(mr), 0);
            }
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            (status, arrived)
        })
    }
}
