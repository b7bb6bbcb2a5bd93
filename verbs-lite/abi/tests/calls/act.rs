//! What is done with objects: requests, completions, transitions, questions.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use super::abi::*;
use super::world::{ARENA_BYTES, Pair, World, groups, read, write};
use super::{Choices, c};

/// Requests of a list at most, and their scatter entries.
const LIST: usize = 4;
const SGES: usize = 4;

impl World<'_> {
    /// Does something, whatever the choices say.
    pub(crate) fn act(&self, choices: &mut Choices<'_>) {
        match choices.below(40) {
            0..=3 => self.make(choices),
            4 => self.destroy(choices),
            5..=10 => self.send(choices),
            11..=13 => self.receive(choices),
            14..=16 => self.poll(choices),
            17 => self.arm(choices),
            18 => self.take_queue_event(choices),
            19 => drop(self.take_event()),
            20 | 30 => self.connect(choices),
            21 if self.is_wild || choices.rarely(8) => self.modify(choices),
            22 => self.query_pair(choices),
            23 => self.query_device(choices),
            24 => self.batch(choices),
            25 => self.batch(choices),
            26 => self.change_shared(choices),
            27 => self.register_anew(choices),
            28 => self.group(choices),
            29 => self.resize(choices),
            31 | 32 => self.bind(choices),
            33 => self.parent(choices),
            34 => self.moderate(choices),
            35 => self.look_at_clock(choices),
            36 | 37 => self.flow(choices),
            38 if choices.rarely(4) => drop(self.share_out(choices, None)),
            _ => self.names(choices),
        }
    }

    /// Calls in a child of the process that made all this: whatever comes back, it comes back.
    pub(crate) fn look_around(&self, choices: &mut Choices<'_>) {
        let api = self.api;
        while !choices.is_empty() {
            let (pairs, queues, pds) = (read(&self.pairs), read(&self.queues), read(&self.pds));
            let (pair, queue, pd) = (
                pairs[choices.below(pairs.len())].qp.0,
                queues[choices.below(queues.len())].cq.0,
                choices.one_of(&pds).0,
            );
            let (mut attr, mut bad) = (ibv_qp_attr::default(), null_mut());
            let mut request = ibv_send_wr {
                opcode: 2,
                send_flags: 2,
                wr: wr_of { rdma: wr_rdma { remote_addr: 0, rkey: 0 } },
                ..self.request(&pairs[0], choices, null_mut())
            };
            let (arena, len) = (self.arena.0.cast(), ARENA_BYTES);
            let ops = c!(&(*self.context.0).ops);
            let mut out = [const { MaybeUninit::uninit() }; 4];
            match choices.below(12) {
                0 => {
                    let found = c!((ops.poll_cq)(queue, 4, out.as_mut_ptr()));
                    assert!(found <= 0, "the parent's completions");
                }
                1 => drop(c!((ops.post_send)(pair, &raw mut request, &raw mut bad))),
                2 => drop(c!((ops.req_notify_cq)(queue, 0))),
                3 => assert!(c!((api.ibv_reg_mr)(pd, arena, len, 7)).is_null()),
                4 => assert!(c!((api.ibv_alloc_pd)(self.context.0)).is_null()),
                5 => {
                    let create = api.ibv_create_cq;
                    assert!(c!(create(self.context.0, 16, null_mut(), null_mut(), 0)).is_null());
                }
                6 => assert_ne!(c!((api.ibv_modify_qp)(pair, &raw mut attr, 1)), 0),
                7 => drop(self.take_event()),
                _ => self.ask_in_child(choices),
            }
        }
    }

    /// Asks in a child what its parent's device would have to answer.
    fn ask_in_child(&self, choices: &mut Choices<'_>) {
        let (api, context) = (self.api, self.context.0);
        let (mut port, mut gid) = (ibv_port_attr::default(), [0; 16]);
        let mut entries = [const { MaybeUninit::<ibv_gid_entry>::uninit() }; 4];
        let (first, size) = (entries.as_mut_ptr().cast(), size_of::<ibv_gid_entry>());
        match choices.below(5) {
            0 => assert_ne!(c!((api.ibv_query_port)(context, 1, &raw mut port)), 0),
            1 => {
                let query = c!((*self.extended()).query_port);
                assert_ne!(c!(query(context, 1, &raw mut port, size_of_val(&port))), 0);
            }
            2 => assert_ne!(c!((api.ibv_query_gid)(context, 1, 0, &raw mut gid)), 0),
            3 => assert_ne!(c!((api._ibv_query_gid_ex)(context, 1, 0, first, 0, size)), 0),
            _ => assert!(c!((api._ibv_query_gid_table)(context, first, 4, 0, size)) < 0),
        }
    }

    /// Objects of every kind, and pairs that are connected, to begin with.
    pub(crate) fn furnish(&self, choices: &mut Choices<'_>) {
        self.make_pd();
        self.make_channel();
        for _ in 0..3 {
            self.make_region(choices);
            self.make_window(choices);
            self.make_queue(choices);
        }
        self.make_shared(choices);
        self.make_xrcd(choices);
        self.make_shared_of_xrc(choices);
        self.make_target(choices);
        self.make_address(choices);
        for _ in 0..4 {
            self.make_pair(choices);
            self.connect(choices);
        }
    }

    /// A piece of memory that is registered, or not quite.
    fn piece(&self, choices: &mut Choices<'_>) -> ibv_sge {
        // Callers hold lists that stand behind this one: whoever waits here could wait for ever.
        let regions = self.regions.try_read().ok();
        let mut sge = ibv_sge { addr: self.arena.0.addr() as u64, length: 64, lkey: 0 };
        if let Some(regions) = regions.filter(|regions| !regions.is_empty()) {
            let mr = c!(&*regions[choices.below(regions.len())].mr.0);
            let start = choices.below(mr.length);
            let length = choices.below((mr.length - start).min(3000) + 1);
            let addr = mr.addr.addr().wrapping_add(start) as u64;
            sge = ibv_sge { addr, length: length as u32, lkey: mr.lkey };
        }
        match choices.below(if self.is_wild { 24 } else { 256 }) {
            0 => sge.lkey = choices.word(),
            1 => sge.length = choices.word(),
            2 => sge.addr = choices.long(),
            _ => {}
        }
        sge
    }

    /// Memory that a peer gave, or not quite.
    fn remote(&self, choices: &mut Choices<'_>) -> (u64, u32) {
        let ibv_sge { addr, lkey, .. } = self.piece(choices);
        (if self.is_wild { addr } else { addr & !7 }, lkey)
    }

    /// What a send request of a kind says besides its list.
    fn request(&self, pair: &Pair, choices: &mut Choices<'_>, ah: *mut ibv_ah) -> ibv_send_wr {
        let (remote_addr, rkey) = self.remote(choices);
        let wr = match pair.kind {
            4 => wr_of { ud: wr_ud { ah, remote_qpn: self.number(choices), remote_qkey: 0x11 } },
            _ => {
                let (compare_add, swap) = (choices.long(), choices.long());
                wr_of { atomic: wr_atomic { remote_addr, compare_add, swap, rkey } }
            }
        };
        let opcode = match choices.below(16) {
            // Bindings have a pointer in them: `bind` makes them.
            0 if self.is_wild => match choices.word() as c_int {
                8 => 7,
                opcode => opcode,
            },
            _ if pair.kind == 4 => 2 + choices.below(2) as c_int,
            _ => choices.below(7) as c_int,
        };
        // Atomics have their key elsewhere, and cells of eight bytes.
        let wr = match (pair.kind, opcode) {
            (4, _) | (_, 5 | 6) => wr,
            _ => wr_of { rdma: wr_rdma { remote_addr, rkey } },
        };
        ibv_send_wr {
            wr_id: choices.long(),
            opcode,
            send_flags: u32::from(choices.byte() & 0xf),
            imm_data: choices.word(),
            wr,
            ..self.empty_request()
        }
    }

    /// A request with nothing in it.
    pub(crate) fn empty_request(&self) -> ibv_send_wr {
        // SAFETY: a structure of numbers and pointers, for which zeros are a value.
        unsafe { std::mem::zeroed() }
    }

    /// The number of a shared receive queue, or any.
    fn shared_number(&self, choices: &mut Choices<'_>) -> u32 {
        let (shared, mut number) = (read(&self.shared), choices.word());
        if let Some(shared) = shared.get(choices.below(shared.len() + 1)) {
            let ask = c!((*self.extended()).get_srq_num);
            assert_eq!(c!(ask(shared.srq.0, &raw mut number)), 0);
        }
        number
    }

    /// The number of a queue pair, or any.
    fn number(&self, choices: &mut Choices<'_>) -> u32 {
        // The device counts them from a small number on.
        if self.is_wild { choices.word() & 0xff_ffff } else { u32::from(choices.byte()) }
    }

    fn send(&self, choices: &mut Choices<'_>) {
        let xrc_srqn = self.shared_number(choices);
        let (addresses, pairs) = (read(&self.addresses), read(&self.pairs));
        if pairs.is_empty() {
            return;
        }
        let pair = &pairs[choices.below(pairs.len())];
        let ah = match choices.below(addresses.len() + 1) {
            0 => null_mut(),
            at => addresses[at - 1].ah.0,
        };
        let count = 1 + choices.below(LIST);
        let mut requests: Vec<_> = (0..count)
            .map(|_| ibv_send_wr { xrc_srqn, ..self.request(pair, choices, ah) })
            .collect();
        let mut lists: Vec<Vec<ibv_sge>> = Vec::new();
        let first = requests.as_mut_ptr();
        for (at, request) in requests.iter_mut().enumerate() {
            let is_inline = request.send_flags & 8 != 0;
            let mut list: Vec<_> = (0..choices.below(SGES))
                // What is sent inline is read here and now.
                .map(|_| if is_inline { self.inside(choices) } else { self.piece(choices) })
                .collect();
            if let (5 | 6, [cell, ..]) = (request.opcode, &mut *list)
                && !self.is_wild
            {
                (cell.length, request.num_sge) = (8, 1);
                request.send_flags &= 7;
            } else {
                request.num_sge = list.len() as c_int;
            }
            request.sg_list = if list.is_empty() { null_mut() } else { list.as_mut_ptr() };
            request.next = if at + 1 < count { first.wrapping_add(at + 1) } else { null_mut() };
            lists.push(list);
        }
        let mut bad = null_mut();
        let post = c!((*self.context.0).ops.post_send);
        let status = c!(post(pair.qp.0, first, &raw mut bad));
        assert_eq!(status == 0, bad.is_null(), "status {status}");
    }

    /// Bytes of the world's own.
    fn inside(&self, choices: &mut Choices<'_>) -> ibv_sge {
        let start = choices.below(ARENA_BYTES - 256);
        let addr = self.arena.0.wrapping_add(start).addr() as u64;
        ibv_sge { addr, length: choices.below(200) as u32, lkey: choices.word() }
    }

    fn receive(&self, choices: &mut Choices<'_>) {
        let (shared, pairs) = (read(&self.shared), read(&self.pairs));
        let mut lists: Vec<Vec<_>> = (0..=choices.below(LIST))
            .map(|_| (0..choices.below(SGES)).map(|_| self.piece(choices)).collect())
            .collect();
        let mut requests: Vec<_> = lists
            .iter_mut()
            .map(|list| ibv_recv_wr {
                wr_id: choices.long(),
                next: null_mut(),
                sg_list: list.as_mut_ptr(),
                num_sge: list.len() as c_int,
            })
            .collect();
        let first = requests.as_mut_ptr();
        for at in 1..requests.len() {
            requests[at - 1].next = first.wrapping_add(at);
        }
        let mut bad = null_mut();
        let ops = c!(&(*self.context.0).ops);
        if !shared.is_empty() && choices.rarely(2) {
            let srq = shared[choices.below(shared.len())].srq.0;
            let status = c!((ops.post_srq_recv)(srq, first, &raw mut bad));
            assert_eq!(status == 0, bad.is_null(), "status {status}");
        } else if !pairs.is_empty() {
            let pair = &pairs[choices.below(pairs.len())];
            // What a pair with a shared queue does with receives of its own is an error number.
            let status = c!((ops.post_recv)(pair.qp.0, first, &raw mut bad));
            assert_eq!(status == 0, bad.is_null(), "status {status}");
        }
    }

    fn poll(&self, choices: &mut Choices<'_>) {
        let queues = read(&self.queues);
        if queues.is_empty() {
            return;
        }
        let queue = &queues[choices.below(queues.len())];
        if queue.is_ex && choices.rarely(2) {
            return self.poll_extended(queue.cq.0.cast(), choices.below(4));
        }
        // What a send has not is left as it was.
        let mut out = [const { MaybeUninit::zeroed() }; 8];
        let count = choices.below(out.len() + 1);
        let poll = c!((*self.context.0).ops.poll_cq);
        let found = c!(poll(queue.cq.0, count as c_int, out.as_mut_ptr()));
        assert!((0..=count as c_int).contains(&found), "{found} completions of {count}");
        for wc in &out[..found as usize] {
            let wc: ibv_wc = c!(wc.assume_init());
            assert!((0..=23).contains(&wc.status), "{wc:?}");
            self.ended[usize::from(wc.status != 0)].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn poll_extended(&self, cq: *mut ibv_cq_ex, more: usize) {
        let face = c!(&*cq);
        if c!((face.start_poll)(cq, null_mut())) != 0 {
            return;
        }
        for _ in 0..more {
            let number = c!({
                (face.read_opcode)(cq);
                (face.read_byte_len)(cq);
                (face.read_wc_flags)(cq);
                (face.read_imm_data)(cq);
                (face.read_src_qp)(cq);
                (face.read_vendor_err)(cq);
                (face.read_completion_ts)(cq);
                (face.read_completion_wallclock_ns)(cq);
                (face.read_qp_num)(cq)
            });
            assert_eq!(number >> 24, 0);
            // Whoever polls may make other calls meanwhile.
            if more > 2 {
                let arm = c!((*self.context.0).ops.req_notify_cq);
                assert_eq!(c!(arm(cq.cast(), 0)), 0);
            }
            if c!((face.next_poll)(cq)) != 0 {
                break;
            }
        }
        c!((face.end_poll)(cq));
    }

    fn arm(&self, choices: &mut Choices<'_>) {
        let queues = read(&self.queues);
        if let Some(queue) = queues.get(choices.below(queues.len())) {
            let arm = c!((*self.context.0).ops.req_notify_cq);
            assert_eq!(c!(arm(queue.cq.0, c_int::from(choices.rarely(3)))), 0);
        }
    }

    fn take_queue_event(&self, choices: &mut Choices<'_>) {
        let (channels, queues) = (read(&self.channels), read(&self.queues));
        let Some(channel) = channels.get(choices.below(channels.len())) else { return };
        let (mut cq, mut context) = (null_mut(), null_mut());
        let take = self.api.ibv_get_cq_event;
        if c!(take(channel.channel.0, &raw mut cq, &raw mut context)) == 0 {
            let queue = queues.iter().find(|queue| queue.cq.0 == cq);
            let queue = queue.expect("an event is about a queue that is there");
            queue.taken.fetch_add(1, Ordering::AcqRel);
            if choices.rarely(2) {
                self.acknowledge(queue);
            }
        }
    }

    /// Leads a pair to RTS, connected with another one; now and then with something changed.
    pub(crate) fn connect(&self, choices: &mut Choices<'_>) {
        let pairs = read(&self.pairs);
        if pairs.is_empty() {
            return;
        }
        let [a, b] = [(); 2].map(|()| &pairs[choices.below(pairs.len())]);
        for (pair, peer) in [(a, b), (b, a)] {
            let mut attr = ibv_qp_attr {
                qp_access_flags: 0x30e, // FLUSH among them, as newer programs give it
                qkey: 0x11,
                path_mtu: 3,
                port_num: 1,
                dest_qp_num: c!((*peer.qp.0).qp_num),
                ah_attr: self.way(choices),
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                min_rnr_timer: 1,
                timeout: 8,
                retry_cnt: 2,
                rnr_retry: 1,
                ..Default::default()
            };
            let (init, rtr, rts) = match pair.kind {
                2 => (0x39, 0x12_9181, 0x1_2e01),
                3 => (0x39, 0x10_1181, 0x1_0001),
                8 => (0x21, 1, 1),
                9 => (0x39, 0x10_1181, 0x1_2e01),
                10 => (0x39, 0x12_9181, 0x1_0201),
                _ => (0x71, 1, 0x1_0001),
            };
            let steps = [(0, 1), (1, init), (2, rtr), (3, rts)];
            for (state, mut given) in steps.into_iter().skip(choices.below(2)) {
                attr.qp_state = state;
                if self.is_wild && choices.rarely(24) {
                    given ^= 1 << choices.below(26);
                }
                let modified = c!((self.api.ibv_modify_qp)(pair.qp.0, &raw mut attr, given));
                assert!(modified >= 0, "an error number is positive: {modified}");
            }
        }
    }

    fn modify(&self, choices: &mut Choices<'_>) {
        let pairs = read(&self.pairs);
        let Some(pair) = pairs.get(choices.below(pairs.len())) else { return };
        let mut attr = ibv_qp_attr {
            qp_state: choices.below(8) as c_int,
            cur_qp_state: choices.below(8) as c_int,
            path_mtu: choices.below(8) as c_int,
            qkey: choices.word(),
            rq_psn: choices.word(),
            sq_psn: choices.word(),
            dest_qp_num: choices.word(),
            qp_access_flags: choices.word(),
            ah_attr: self.way(choices),
            alt_ah_attr: self.way(choices),
            max_rd_atomic: choices.byte(),
            max_dest_rd_atomic: choices.byte(),
            min_rnr_timer: choices.byte(),
            port_num: choices.byte(),
            timeout: choices.byte(),
            retry_cnt: choices.byte(),
            rnr_retry: choices.byte(),
            ..Default::default()
        };
        let given = if choices.rarely(4) { choices.word() } else { 1 };
        c!((self.api.ibv_modify_qp)(pair.qp.0, &raw mut attr, given as c_int));
    }

    fn query_pair(&self, choices: &mut Choices<'_>) {
        let (shared, pairs) = (read(&self.shared), read(&self.pairs));
        if let Some(pair) = pairs.get(choices.below(pairs.len())) {
            let mut attr = ibv_qp_attr::default();
            let mut init = MaybeUninit::<ibv_qp_init_attr>::uninit();
            let query = self.api.ibv_query_qp;
            let mask = choices.word() as c_int;
            assert_eq!(c!(query(pair.qp.0, &raw mut attr, mask, init.as_mut_ptr())), 0);
            assert_eq!(c!(init.assume_init()).qp_type, pair.kind);
        }
        if let Some(shared) = shared.get(choices.below(shared.len())) {
            let mut attr = ibv_srq_attr::default();
            assert_eq!(c!((self.api.ibv_query_srq)(shared.srq.0, &raw mut attr)), 0);
        }
    }

    fn query_device(&self, choices: &mut Choices<'_>) {
        let context = self.context.0;
        let mut attr = MaybeUninit::<ibv_device_attr>::uninit();
        assert_eq!(c!((self.api.ibv_query_device)(context, attr.as_mut_ptr())), 0);
        let mut whole = MaybeUninit::<ibv_device_attr_ex>::uninit();
        let query = c!((*self.extended()).query_device_ex);
        let room = choices.below(size_of::<ibv_device_attr_ex>() + 1);
        c!(query(context, std::ptr::null(), whole.as_mut_ptr(), room));
        let (mut port, number) = (ibv_port_attr::default(), choices.byte() & 3);
        let known = c!((self.api.ibv_query_port)(context, number, &raw mut port));
        assert_eq!(known == 0, number == 1);
        let room = choices.below(size_of::<ibv_port_attr>() + 1);
        c!(((*self.extended()).query_port)(context, number, &raw mut port, room));
        let (mut gid, mut pkey, index) = ([0; 16], 0, choices.word());
        let mut entries = [const { MaybeUninit::<ibv_gid_entry>::uninit() }; 4];
        c!({
            (self.api.ibv_query_gid)(context, number, index as c_int, &raw mut gid);
            (self.api.ibv_query_pkey)(context, number, index as c_int, &raw mut pkey);
            let first = entries.as_mut_ptr().cast();
            let size = size_of::<ibv_gid_entry>();
            (self.api._ibv_query_gid_ex)(context, number.into(), index, first, 0, size);
            let room = choices.below(entries.len() + 1);
            (self.api._ibv_query_gid_table)(context, first, room, choices.word() & 1, size);
        });
    }

    /// Requests built by functions, and posted or given up.
    fn batch(&self, choices: &mut Choices<'_>) {
        let xrc_srqn = self.shared_number(choices);
        let (addresses, pairs) = (read(&self.addresses), read(&self.pairs));
        let Some(pair) = pairs.get(choices.below(pairs.len())) else { return };
        if !pair.has_batches {
            return;
        }
        let qp: *mut ibv_qp_ex = pair.qp.0.cast();
        let face = c!(&*qp);
        c!((face.wr_start)(qp));
        for _ in 0..choices.below(LIST) {
            c!({
                (*qp).wr_id = choices.long();
                (*qp).wr_flags = u32::from(choices.byte() & 7);
            });
            let (addr, key) = self.remote(choices);
            let imm = choices.word();
            match choices.below(if matches!(pair.kind, 2 | 9) { 8 } else { 2 }) {
                0 => c!((face.wr_send)(qp)),
                1 => c!((face.wr_send_imm)(qp, imm)),
                2 => c!((face.wr_rdma_write)(qp, key, addr)),
                3 => c!((face.wr_rdma_write_imm)(qp, key, addr, imm)),
                4 => c!((face.wr_rdma_read)(qp, key, addr)),
                5 => c!((face.wr_atomic_fetch_add)(qp, key, addr, choices.long())),
                6 => {
                    let (compare, swap) = (choices.long(), choices.long());
                    c!((face.wr_atomic_cmp_swp)(qp, key, addr, compare, swap));
                }
                _ => c!((face.wr_send_inv)(qp, imm)),
            }
            if pair.kind == 4
                && let Some(to) = addresses.get(choices.below(addresses.len()))
            {
                c!((face.wr_set_ud_addr)(qp, to.ah.0, self.number(choices), 0x11));
            }
            if pair.kind == 9 {
                c!((face.wr_set_xrc_srqn)(qp, xrc_srqn));
            }
            let pieces = [(); SGES].map(|()| self.piece(choices));
            let own = self.inside(choices);
            let (start, len) = (own.addr as usize, own.length as usize);
            let data = ibv_data_buf { addr: std::ptr::with_exposed_provenance(start), length: len };
            match choices.below(5) {
                0 => {}
                1 => c!((face.wr_set_sge)(qp, own.lkey, own.addr, own.length)),
                2 => c!((face.wr_set_sge_list)(qp, choices.below(SGES), pieces.as_ptr())),
                3 => c!((face.wr_set_inline_data)(qp, data.addr, data.length)),
                _ => c!((face.wr_set_inline_data_list)(qp, 2, [data; 2].as_ptr())),
            }
        }
        if choices.rarely(4) {
            c!((face.wr_abort)(qp));
        } else {
            c!((face.wr_complete)(qp));
        }
    }

    fn change_shared(&self, choices: &mut Choices<'_>) {
        let shared = read(&self.shared);
        if let Some(shared) = shared.get(choices.below(shared.len())) {
            let (max_wr, srq_limit) = (choices.word(), choices.word() & 0xff);
            let mut attr = ibv_srq_attr { max_wr, max_sge: 1, srq_limit };
            let given = choices.below(4) as c_int;
            c!((self.api.ibv_modify_srq)(shared.srq.0, &raw mut attr, given));
        }
    }

    fn register_anew(&self, choices: &mut Choices<'_>) {
        let pds = read(&self.pds);
        let mut regions = write(&self.regions);
        let at = choices.below(regions.len());
        let (Some(region), Some(pd)) = (regions.get_mut(at), pds.get(choices.below(pds.len())))
        else {
            return;
        };
        let flags = choices.below(8) as c_int;
        let start = self.arena.0.wrapping_add(choices.below(4096)).cast();
        let (len, access) = (choices.below(ARENA_BYTES), (choices.byte() & 0xf).into());
        let mr = region.mr.0;
        let status = c!((self.api.ibv_rereg_mr)(mr, flags, pd.0, start, len, access));
        if status == 0 && flags & 2 != 0 {
            region.pd = *pd;
        }
    }

    fn group(&self, choices: &mut Choices<'_>) {
        let pairs = read(&self.pairs);
        let Some(pair) = pairs.get(choices.below(pairs.len())) else { return };
        let mut gid = [0; 16];
        let start: &[u8] = if choices.rarely(2) { &[0xff, 0x0e] } else { &[0xfd; 2] };
        gid[..2].copy_from_slice(start);
        gid[15] = choices.byte() & 3;
        let mut groups = groups(pair);
        if choices.rarely(2) {
            if c!((self.api.ibv_detach_mcast)(pair.qp.0, &raw const gid, 0)) == 0 {
                let at = groups.iter().position(|group| *group == gid);
                groups.swap_remove(at.expect("it left a group that it had joined"));
            }
        } else if c!((self.api.ibv_attach_mcast)(pair.qp.0, &raw const gid, 0)) == 0
            && !groups.contains(&gid)
        {
            groups.push(gid);
        }
    }

    fn resize(&self, choices: &mut Choices<'_>) {
        /// Another thread may make the same queue smaller before its size is looked at.
        static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let queues = read(&self.queues);
        if let Some(queue) = queues.get(choices.below(queues.len())) {
            let size = choices.one_of(&[1, 16, 300, 0, -1, 1 << 14, c_int::MAX]);
            let status = c!((self.api.ibv_resize_cq)(queue.cq.0, size));
            assert!(status != 0 || c!((*queue.cq.0).cqe) >= size, "smaller than asked for");
        }
    }

    fn names(&self, choices: &mut Choices<'_>) {
        let number = choices.word() as c_int % 40;
        c!({
            assert!(!(self.api.ibv_event_type_str)(number).is_null());
            assert!(!(self.api.ibv_wc_status_str)(number).is_null());
            assert!(!(self.api.ibv_node_type_str)(number).is_null());
            assert!(!(self.api.ibv_port_state_str)(number).is_null());
            (self.api.ibv_rate_to_mult)(number);
            (self.api.mbps_to_ibv_rate)(number);
        });
    }
}
