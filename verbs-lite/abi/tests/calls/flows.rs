//! Calls about raw packet queue pairs: rules that lead frames to them, and a frame that comes back.

use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::abi::*;
use super::world::{World, flows, read};
use super::{Choices, Object, c};

/// A rule of up to three specifications, as programs lay it out.
#[repr(C)]
struct Rule {
    attr: ibv_flow_attr,
    specs: [u8; 3 * size_of::<ibv_flow_spec_ipv6>()],
}

impl Rule {
    fn new() -> Self {
        let attr = ibv_flow_attr {
            comp_mask: 0,
            kind: FLOW_ATTR_NORMAL,
            size: 0,
            priority: 0,
            num_of_specs: 0,
            port: 1,
            flags: 0,
        };
        Self { attr, specs: [0; _] }
    }

    /// Appends a specification; `at` is where the last one ended.
    fn add(&mut self, at: usize, kind: u32, bytes: &[u8]) -> usize {
        let end = at + 6 + bytes.len();
        self.specs[at..at + 4].copy_from_slice(&kind.to_ne_bytes());
        self.specs[at + 6..end].copy_from_slice(bytes);
        self.attr.num_of_specs += 1;
        // The header's structures end with what fills them up.
        let end = end.next_multiple_of(4);
        self.specs[at + 4..at + 6].copy_from_slice(&((end - at) as u16).to_ne_bytes());
        end
    }
}

impl World<'_> {
    /// Makes a rule of some kind for some queue pair, or ends one.
    pub(crate) fn flow(&self, choices: &mut Choices<'_>) {
        const SIZES: [(u32, usize); 6] =
            [(0x20, 40), (0x30, 24), (0x31, 88), (0x32, 32), (0x40, 16), (0x41, 16)];
        let pairs = read(&self.pairs);
        let Some(pair) = pairs.get(choices.below(pairs.len())) else { return };
        let (create, destroy) =
            c!(((*self.extended()).create_flow, (*self.extended()).destroy_flow));
        let mut known = flows(pair);
        if choices.rarely(3)
            && let Some(flow) = known.pop()
        {
            assert_eq!(c!(destroy(flow.0)), 0, "a rule");
            return;
        }
        let (mut rule, mut at) = (Rule::new(), 0);
        for _ in 0..choices.below(4) {
            let (kind, size) = choices.one_of(&SIZES);
            let kind = if choices.rarely(16) { choices.word() } else { kind };
            // Mostly masks of zeros and ones, which rules can have.
            let (value, mask) = (choices.byte(), choices.one_of(&[0, 0, 0xff, 0xff, 0xf0]));
            let mut bytes = vec![value; size - 6];
            bytes[(size - 6) / 2..].fill(mask);
            at = rule.add(at, kind, &bytes);
        }
        if choices.rarely(8) {
            rule.attr.port = choices.byte();
            rule.attr.kind = choices.below(5) as i32;
            rule.attr.priority = u16::from(choices.byte() & 1);
        }
        let flow = c!(create(pair.qp.0, (&raw mut rule).cast()));
        assert!(flow.is_null() || pair.kind == 8, "only raw packets have rules");
        if !flow.is_null() {
            known.push(Object(flow));
        }
    }

    /// A raw packet queue pair, in reset.
    fn raw_pair(&self, pd: *mut ibv_pd, cq: *mut ibv_cq) -> *mut ibv_qp {
        let cap = ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut init = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: cq,
            recv_cq: cq,
            srq: null_mut(),
            cap,
            qp_type: 8,
            sq_sig_all: 1,
        };
        let qp = c!((self.api.ibv_create_qp)(pd, &raw mut init));
        assert!(!qp.is_null());
        qp
    }

    /// Moves a raw packet queue pair from reset until it sends.
    fn start(&self, qp: *mut ibv_qp) {
        let mut attr = ibv_qp_attr { port_num: 1, ..Default::default() };
        for (state, given) in [(1, 0x21), (2, 1), (3, 1)] {
            attr.qp_state = state;
            let modified = c!((self.api.ibv_modify_qp)(qp, &raw mut attr, given));
            assert_eq!(modified, 0, "to {state}");
        }
    }

    /// Makes and ends rules of a raw packet queue pair that another thread resets meanwhile.
    pub(crate) fn rules_end_under_resets(&self, rounds: usize) {
        let (api, context) = (self.api, self.context.0);
        let (create, destroy) =
            c!(((*self.extended()).create_flow, (*self.extended()).destroy_flow));
        let pd = c!((api.ibv_alloc_pd)(context));
        let cq = c!((api.ibv_create_cq)(context, 8, null_mut(), null_mut(), 0));
        let qp = Object(self.raw_pair(pd, cq));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let resets = scope.spawn(|| {
                let qp = &qp;
                let mut resets = 0;
                while !is_over.load(Relaxed) {
                    self.start(qp.0);
                    let mut attr = ibv_qp_attr::default();
                    assert_eq!(c!((api.ibv_modify_qp)(qp.0, &raw mut attr, 1)), 0, "to reset");
                    resets += 1;
                }
                resets
            });
            let mut rule = Rule::new();
            let mut eth = [0; 34];
            eth[16..22].fill(0xff);
            rule.add(0, 0x20, &eth);
            let ended = (0..rounds).map(|_| {
                let flow = c!(create(qp.0, (&raw mut rule).cast()));
                assert!(!flow.is_null());
                std::thread::yield_now();
                c!(destroy(flow))
            });
            let refused = ended.filter(|&errno| errno != 0).count();
            is_over.store(true, Relaxed);
            assert!(resets.join().unwrap() > 0, "nothing was reset meanwhile");
            assert_eq!(refused, 0, "rules that could not be ended");
        });
        assert_eq!(c!((api.ibv_destroy_qp)(qp.0)), 0);
        assert_eq!(c!((api.ibv_destroy_cq)(cq)), 0);
        assert_eq!(c!((api.ibv_dealloc_pd)(pd)), 0);
    }

    /// Sends a frame for a group from one raw packet queue pair; the bytes that another one gets.
    pub(crate) fn frame_comes_back(&self, frame: &[u8]) -> Vec<u8> {
        const LEN: usize = 256;
        let (api, context) = (self.api, self.context.0);
        let (create, destroy) =
            c!(((*self.extended()).create_flow, (*self.extended()).destroy_flow));
        let ops = c!(&(*context).ops);
        c!({
            self.arena.0.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            let pd = (api.ibv_alloc_pd)(context);
            let cqs = [(); 2].map(|()| (api.ibv_create_cq)(context, 8, null_mut(), null_mut(), 0));
            let mr = (api.ibv_reg_mr)(pd, self.arena.0.cast(), 2 * LEN, 1);
            let [from, to] = cqs.map(|cq| self.raw_pair(pd, cq));
            // Made in reset, the rule leads frames here from RTR on.
            let mut rule = Rule::new();
            let mut eth = [0; 34];
            eth[..6].copy_from_slice(&frame[..6]);
            eth[16..22].fill(0xff);
            rule.add(0, 0x20, &eth);
            let flow = create(to, (&raw mut rule).cast());
            assert!(!flow.is_null());
            assert_eq!((api.ibv_destroy_qp)(to), libc::EBUSY, "a rule leads to it");
            self.start(from);
            self.start(to);
            // What was posted is forgotten by a reset; the rule is not.
            let addr = self.arena.0.addr() as u64;
            let receive = || {
                let mut sge = ibv_sge { addr: addr + LEN as u64, length: 256, lkey: (*mr).lkey };
                let (next, sg_list) = (null_mut(), &raw mut sge);
                let mut wr = ibv_recv_wr { wr_id: 5, next, sg_list, num_sge: 1 };
                assert_eq!((ops.post_recv)(to, &raw mut wr, &mut null_mut()), 0);
            };
            receive();
            let mut attr = ibv_qp_attr::default();
            assert_eq!((api.ibv_modify_qp)(to, &raw mut attr, 1), 0, "to reset");
            self.start(to);
            receive();
            let mut sge = ibv_sge { addr, length: frame.len() as u32, lkey: (*mr).lkey };
            let mut wr = self.empty_request();
            (wr.wr_id, wr.opcode, wr.sg_list, wr.num_sge) = (4, 2, &raw mut sge, 1);
            assert_eq!((ops.post_send)(from, &raw mut wr, &mut null_mut()), 0);
            let poll = |cq| loop {
                let mut out = MaybeUninit::uninit();
                if (ops.poll_cq)(cq, 1, &raw mut out) == 1 {
                    let wc: ibv_wc = out.assume_init();
                    assert_eq!(wc.status, 0, "request {}", wc.wr_id);
                    break wc;
                }
            };
            let [sent, got] = cqs.map(poll);
            assert_eq!((sent.wr_id, sent.opcode, got.wr_id, got.opcode), (4, 0, 5, 1 << 7));
            assert_eq!((sent.qp_num, got.qp_num), ((*from).qp_num, (*to).qp_num));
            let bytes = std::slice::from_raw_parts(self.arena.0.add(LEN), got.byte_len as usize);
            let bytes = bytes.to_vec();
            assert_eq!(destroy(flow), 0);
            assert_eq!([from, to].map(|qp| (api.ibv_destroy_qp)(qp)), [0; 2]);
            assert_eq!(cqs.map(|cq| (api.ibv_destroy_cq)(cq)), [0; 2]);
            assert_eq!((api.ibv_dereg_mr)(mr), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            bytes
        })
    }

    /// Makes two work queues, a table, and a queue pair over it, of any kind; what others need
    /// cannot end before them. Leads a frame there, if there is one, and gives what arrived.
    pub(crate) fn share_out(&self, choices: &mut Choices<'_>, frame: Option<&[u8]>) -> Vec<u8> {
        let (api, context) = (self.api, self.context.0);
        let face = c!(&*self.extended());
        let odd = frame.is_none() && choices.rarely(4);
        let mut key = [0x6d; 40];
        c!({
            let pd = (api.ibv_alloc_pd)(context);
            let cq = (api.ibv_create_cq)(context, 16, null_mut(), null_mut(), 0);
            assert!(!pd.is_null() && !cq.is_null());
            let make = |odd: bool, choices: &mut Choices<'_>| {
                let mut init = ibv_wq_init_attr {
                    wq_context: null_mut(),
                    wq_type: if odd { choices.below(2) as i32 } else { 0 },
                    max_wr: if odd { choices.word() } else { 4 },
                    max_sge: 1,
                    pd,
                    cq,
                    comp_mask: if odd { u32::from(choices.byte() & 3) } else { 0 },
                    create_flags: 1,
                };
                (face.create_wq)(context, &raw mut init)
            };
            let other = make(odd, choices);
            assert!(odd || !other.is_null());
            let wq = make(false, choices);
            let second = if other.is_null() { wq } else { other };
            let mut queues = [wq, second, wq, second];
            let mut table = ibv_rwq_ind_table_init_attr {
                log_ind_tbl_size: 2,
                ind_tbl: queues.as_mut_ptr(),
                comp_mask: 0,
            };
            let table = (face.create_rwq_ind_table)(context, &raw mut table);
            assert!(!table.is_null());
            assert_eq!((face.destroy_wq)(wq), libc::EBUSY, "it stands in a table");
            let mut init: ibv_qp_init_attr_ex = std::mem::zeroed();
            (init.qp_type, init.comp_mask, init.pd) = (8, 1 | 1 << 4 | 1 << 5, pd);
            init.rwq_ind_tbl = table;
            init.rx_hash_conf = ibv_rx_hash_conf {
                rx_hash_function: 1,
                rx_hash_key_len: if odd { choices.byte() } else { 40 },
                rx_hash_key: key.as_mut_ptr(),
                rx_hash_fields_mask: if odd { u64::from(choices.word()) } else { 3 },
            };
            let qp = (face.create_qp_ex)(context, &raw mut init);
            assert!(odd || !qp.is_null());
            let step = |wq, wq_state| {
                let mut attr = ibv_wq_attr {
                    attr_mask: 1,
                    wq_state,
                    curr_wq_state: 0,
                    flags: 0,
                    flags_mask: 0,
                };
                (face.modify_wq)(wq, &raw mut attr)
            };
            let states: Vec<_> = (0..choices.below(4)).map(|_| choices.below(4) as i32).collect();
            for state in states {
                step(wq, state);
            }
            let mut arrived = Vec::new();
            if !qp.is_null() {
                assert_eq!((face.destroy_rwq_ind_table)(table), libc::EBUSY, "it is used");
                let mut attr = ibv_qp_attr { port_num: 1, qp_state: 1, ..Default::default() };
                // As libmlx5 says of both.
                assert_eq!((api.ibv_modify_qp)(qp, &raw mut attr, 0x21), libc::EOPNOTSUPP);
                let mut init = std::mem::zeroed();
                let asked = (api.ibv_query_qp)(qp, &raw mut attr, 1, &raw mut init);
                assert_eq!(asked, libc::EOPNOTSUPP);
                let mut rule = Rule::new();
                let mut eth = [0; 34];
                eth[..6]
                    .copy_from_slice(&frame.map_or([1; 6], |frame| frame[..6].try_into().unwrap()));
                eth[16..22].fill(0xff);
                rule.add(0, 0x20, &eth);
                let flow = (face.create_flow)(qp, (&raw mut rule).cast());
                assert!(!flow.is_null());
                assert_eq!((api.ibv_destroy_qp)(qp), libc::EBUSY, "a rule leads to it");
                if let Some(frame) = frame {
                    [wq, second].into_iter().for_each(|wq| {
                        step(wq, 0);
                        assert_eq!(step(wq, 1), 0);
                    });
                    arrived = self.through([wq, second], (pd, cq), frame);
                }
                assert_eq!((face.destroy_flow)(flow), 0);
                assert_eq!((api.ibv_destroy_qp)(qp), 0);
            }
            assert_eq!((face.destroy_rwq_ind_table)(table), 0);
            assert_eq!((face.destroy_wq)(wq), 0);
            if !other.is_null() {
                assert_eq!((face.destroy_wq)(other), 0);
            }
            assert_eq!((api.ibv_destroy_cq)(cq), 0);
            assert_eq!((api.ibv_dealloc_pd)(pd), 0);
            arrived
        })
    }

    /// Posts a receive to each of two work queues and sends a frame; the bytes that arrived.
    fn through(
        &self,
        queues: [*mut ibv_wq; 2],
        (pd, cq): (*mut ibv_pd, *mut ibv_cq),
        frame: &[u8],
    ) -> Vec<u8> {
        const LEN: usize = 256;
        let (api, ops) = (self.api, c!(&(*self.context.0).ops));
        c!({
            self.arena.0.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
            let addr = self.arena.0.addr() as u64;
            let mr = (api.ibv_reg_mr)(pd, self.arena.0.cast(), 3 * LEN, 1);
            for (at, wq) in queues.into_iter().enumerate() {
                let addr = addr + ((1 + at) * LEN) as u64;
                let mut sge = ibv_sge { addr, length: LEN as u32, lkey: (*mr).lkey };
                let (next, sg_list) = (null_mut(), &raw mut sge);
                let mut wr = ibv_recv_wr { wr_id: at as u64, next, sg_list, num_sge: 1 };
                assert_eq!(((*wq).post_recv)(wq, &raw mut wr, &mut null_mut()), 0);
            }
            let mut init = ibv_qp_init_attr {
                qp_context: null_mut(),
                send_cq: cq,
                recv_cq: cq,
                srq: null_mut(),
                cap: ibv_qp_cap { max_send_wr: 1, max_send_sge: 1, ..Default::default() },
                qp_type: 8,
                sq_sig_all: 0,
            };
            let from = (api.ibv_create_qp)(pd, &raw mut init);
            self.start(from);
            let mut sge = ibv_sge { addr, length: frame.len() as u32, lkey: (*mr).lkey };
            let mut wr = self.empty_request();
            (wr.opcode, wr.sg_list, wr.num_sge) = (2, &raw mut sge, 1);
            assert_eq!((ops.post_send)(from, &raw mut wr, &mut null_mut()), 0);
            let mut out = MaybeUninit::<ibv_wc>::uninit();
            while (ops.poll_cq)(cq, 1, &raw mut out) == 0 {}
            let wc = out.assume_init();
            assert_eq!((wc.status, wc.opcode), (0, 1 << 7));
            let start = self.arena.0.add((1 + wc.wr_id as usize) * LEN);
            let bytes = std::slice::from_raw_parts(start, wc.byte_len as usize).to_vec();
            assert_eq!((api.ibv_destroy_qp)(from), 0);
            assert_eq!((api.ibv_dereg_mr)(mr), 0);
            bytes
        })
    }
}
