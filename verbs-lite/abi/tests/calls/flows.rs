//! Calls about raw packet queue pairs: rules that lead frames to them, and a frame that comes back.

use std::mem::MaybeUninit;
use std::ptr::null_mut;

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
        self.specs[at + 4..at + 6].copy_from_slice(&((end - at) as u16).to_ne_bytes());
        self.specs[at + 6..end].copy_from_slice(bytes);
        self.attr.num_of_specs += 1;
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
            let make = |cq| {
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
                (api.ibv_create_qp)(pd, &raw mut init)
            };
            let [from, to] = cqs.map(make);
            // Made in reset, the rule leads frames here from RTR on.
            let mut rule = Rule::new();
            let mut eth = [0; 34];
            eth[..6].copy_from_slice(&frame[..6]);
            eth[16..22].fill(0xff);
            rule.add(0, 0x20, &eth);
            rule.specs[4..6].copy_from_slice(&40_u16.to_ne_bytes());
            let flow = create(to, (&raw mut rule).cast());
            assert!(!flow.is_null());
            assert_eq!((api.ibv_destroy_qp)(to), libc::EBUSY, "a rule leads to it");
            let start = |qp| {
                let mut attr = ibv_qp_attr { port_num: 1, ..Default::default() };
                for (state, given) in [(1, 0x21), (2, 1), (3, 1)] {
                    attr.qp_state = state;
                    assert_eq!((api.ibv_modify_qp)(qp, &raw mut attr, given), 0, "to {state}");
                }
            };
            start(from);
            start(to);
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
            start(to);
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
}
