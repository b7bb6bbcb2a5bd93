//! A bad cable: frames are lost, repeated, reordered and damaged, and no byte is wrong.
#![allow(clippy::single_range_in_vec_init, reason = "lists of one piece")]

use crate::common;
use crate::common::{Two, pattern, rts, small};
use ferrocx_model::wire::{Impair, ImpairConfig, SplitMix64, link};
use ferrocx_verbs_lite::*;

const BAD: ImpairConfig = ImpairConfig {
    loss_ppm: 10_000,
    duplicate_ppm: 10_000,
    corrupt_ppm: 5_000,
    silent_corrupt_ppm: 5_000,
    reorder_ppm: 10_000,
    reorder_frames: 3,
    delay_ns: 2_000,
    jitter_ns: 1_000,
    congestion_ppm: 0,
    max_frames: 0,
};
/// Registrations in flight, each of a slot of memory of its own.
const DEPTH: usize = 8;
const SLOT_BYTES: usize = 16384;
/// Register, use, invalidate, this often.
const CYCLES: u64 = 400;

fn connected(two: &Two) -> (Qp, Qp) {
    let config = QpConfig { fast_reg: true, max_send_wr: 64, max_recv_wr: 32, ..small() };
    let (mut qa, mut qb) = (two.a.qp(&config), two.b.qp(&config));
    let patient = RtsAttr { timeout: 5, retry_count: 7, rnr_retry: 7, ..rts(0) };
    two.join([&mut qa, &mut qb], [Access::REMOTE; 2], &patient);
    (qa, qb)
}

/// The bytes of a cycle: their number and seed follow from its tag.
fn bytes_of(tag: u64) -> Vec<u8> {
    pattern(1 + (tag as usize * 37) % 5000, tag as u8)
}

/// The server: binds keys, tells the client, checks what was written when the client ended them.
struct Server {
    qp: Qp,
    mr: Mr,
    /// By slot: the tag and the key that is out.
    out: [Option<(u64, RegisteredMr)>; DEPTH],
    mrs: Vec<FastRegMr>,
    lists: Vec<PageList>,
    next: u64,
    done: u64,
}

impl Server {
    fn offer(&mut self, two: &Two) {
        for slot in 0..DEPTH {
            if self.out[slot].is_some() || self.next == CYCLES || self.lists.is_empty() {
                continue;
            }
            let (Some(mr), Some(mut list)) = (self.mrs.pop(), self.lists.pop()) else { return };
            let tag = self.next;
            let (at, len) = (slot * SLOT_BYTES, bytes_of(tag).len());
            two.b.fill(at, &vec![0; SLOT_BYTES]);
            list.map(&two.b.memory, &[at..at + len]).unwrap();
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let flags = SendFlags::MORE;
            let wr = FastReg { wr_id: tag, flags, start: 0, access, remote_invalidate: true };
            let bound = self.qp.post_fast_reg(&wr, mr, list).unwrap();
            let offer = [tag.to_le_bytes(), u64::from(bound.rkey().0).to_le_bytes()].concat();
            let wr = SendWr::signaled(tag, SendOp::Send);
            self.qp.post_send_inline(&wr, &offer).unwrap();
            let receive = self.mr.buf(DEPTH * SLOT_BYTES..DEPTH * SLOT_BYTES + 16).unwrap();
            self.qp.post_recv(tag, receive).unwrap();
            self.out[slot] = Some((tag, bound));
            self.next += 1;
        }
    }

    fn take(&mut self, two: &mut Two) {
        for wc in common::take(&mut two.b.cq, &mut self.qp) {
            assert_eq!(wc.result, Ok(()), "{:?}", two.world.refusals(1));
            if let Some(proof) = wc.recv.invalidated {
                let key = |out: &Option<(u64, RegisteredMr)>| {
                    out.as_ref().is_some_and(|(_, mr)| mr.rkey() == proof.rkey())
                };
                let slot = self.out.iter().position(key).expect("a key that is out");
                let (tag, bound) = self.out[slot].take().unwrap();
                self.mrs.push(bound.invalidated_by(proof).unwrap());
                let expected = bytes_of(tag);
                let got = two.b.read(slot * SLOT_BYTES, SLOT_BYTES);
                assert_eq!(got[..expected.len()], expected, "cycle {tag}");
                assert!(got[expected.len()..].iter().all(|byte| *byte == 0), "cycle {tag}");
                self.done += 1;
            }
            if let Returned::PageList(list) = wc.returned {
                self.lists.push(list);
            }
        }
    }
}

/// The client: writes what is asked for through each key, and ends it.
fn serve(two: &mut Two, qp: &mut Qp, mr: &Mr) {
    for wc in common::take(&mut two.a.cq, qp) {
        assert_eq!(wc.result, Ok(()), "{:?}", two.world.refusals(0));
        let Wc { opcode: WcOpcode::Recv, wr_id, returned: Returned::Buffers(offer), .. } = wc
        else {
            continue;
        };
        let bytes = offer.to_vec();
        let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        let rkey = Rkey(u32::from_le_bytes(bytes[8..12].try_into().unwrap()));
        qp.post_recv(wr_id, offer).unwrap();
        let payload = bytes_of(tag);
        // A place of its own while it may be sent again.
        let at = SLOT_BYTES + (tag as usize % 14) * SLOT_BYTES;
        two.a.fill(at, &payload);
        let wr = SendWr::unsignaled(tag, SendOp::Write(RemoteAddr { addr: 0, rkey }));
        let wr = wr.with(SendFlags::MORE);
        qp.post_send(&wr, Some(mr.buf(at..at + payload.len()).unwrap())).unwrap();
        qp.post_send_inline(&SendWr::signaled(tag, SendOp::SendInv(rkey)), &[]).unwrap();
    }
}

#[test]
fn keys_are_bound_used_and_ended_over_a_bad_cable_without_a_wrong_byte() {
    let (a, b) = link(1 << 20);
    let a = Impair::new(a, BAD, SplitMix64::new(5));
    let b = Impair::new(b, BAD, SplitMix64::new(6));
    let mut two = Two::on(a, b);
    let (mut client, server) = connected(&two);
    let (ma, mb) = (two.a.mr(), two.b.mr());
    for id in 0..16 {
        client.post_recv(id, ma.buf(id as usize * 16..id as usize * 16 + 16).unwrap()).unwrap();
    }
    let layout = ListLayout::Pages { log_page: 12 };
    let mut server = Server {
        qp: server,
        mr: mb,
        out: Default::default(),
        mrs: (0..DEPTH).map(|_| two.b.pd.alloc_mr(layout, 8).unwrap()).collect(),
        lists: (0..DEPTH).map(|_| two.b.context.alloc_page_list(layout, 8).unwrap()).collect(),
        next: 0,
        done: 0,
    };
    let mut turns = 0;
    while server.done < CYCLES {
        server.offer(&two);
        serve(&mut two, &mut client, &ma);
        server.take(&mut two);
        two.world.wait_us(1);
        turns += 1;
        assert!(turns < 2_000_000, "stuck at {}", server.done);
    }
    assert_eq!((server.mrs.len(), server.next), (DEPTH, CYCLES));
    let drops = two.world.nic(1).datapath().roce_drops();
    assert!(drops.icrc > 0, "the cable was not bad enough: {drops:?}");
    // What was lost and repeated is counted where it was missed, and where it was sent again.
    let [a, b] = [&two.a, &two.b].map(|side| side.context.counters().unwrap().expect("a set"));
    assert!(b.out_of_sequence > 0 && b.duplicate_request > 0, "{b:?}");
    assert!(a.packet_seq_err > 0 && a.local_ack_timeout_err > 0, "{a:?}");
    assert!((CYCLES..2 * CYCLES).contains(&b.rx_write_requests), "{b:?}");
    let failed: Vec<_> =
        a.iter().filter(|(name, value)| name.contains("cqe") && *value > 0).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let again = two.b.context.counters().unwrap();
    assert_eq!(again, Some(b), "what was counted is counted once");
}
