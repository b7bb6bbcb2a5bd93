//! Wrong code: what a driver that forgets or mistakes something gets from the device.

use ferrocx_prm::syndrome::CqeSyndrome;

use super::{frame, port, put};
use crate::datapath::harness::{KEY, Port, TestCq, TestSq, data, send};
use crate::objects::mkey::Rights;
use crate::objects::{CqStatus, QueueState};
use crate::wire::Wire;

/// What an error CQE says: syndrome, WQE opcode, queue, WQE counter, CQE opcode.
fn error(cqe: [u8; 64]) -> (CqeSyndrome, u8, u32, u16, u8) {
    let queue = u32::from_be_bytes([0, cqe[0x39], cqe[0x3a], cqe[0x3b]]);
    let counter = u16::from_be_bytes([cqe[0x3c], cqe[0x3d]]);
    (CqeSyndrome(cqe[0x37]), cqe[0x38], queue, counter, cqe[0x3f] >> 4)
}

struct Sender {
    port: Port,
    far: crate::wire::Link,
    cq: TestCq,
    sq: TestSq,
    iova: u64,
    _buf: ferrocx_bus::DmaBuf,
}

impl Sender {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut crate::objects::Sq)) -> Self {
        let (mut port, far) = port();
        let cq = port.cq(4);
        let sq = port.sq_with(cq.cqn, 4, change);
        let buf = port.bytes(&frame(0x42));
        Self { port, far, cq, sq, iova: buf.iova(), _buf: buf }
    }

    fn good(&self) -> Vec<u8> {
        send(2, 0, &[(60, KEY, self.iova)])
    }

    fn go(&mut self) {
        self.sq.record();
        self.port.ring(&self.sq);
        self.port.poll();
        self.port.poll();
    }

    /// Posts a WQE, expects it to fail with a syndrome, and the next one to be flushed.
    #[track_caller]
    fn fails(mut self, wqe: &[u8], syndrome: CqeSyndrome, why: &str) {
        let counter = self.sq.write(wqe);
        let next = self.sq.write(&self.good());
        self.go();
        let opcode = wqe[3];
        let sqn = self.sq.sqn;
        assert_eq!(
            self.cq.poll().map(error),
            Some((syndrome, opcode, sqn, counter, 13)),
            "{}",
            self.port.last_refusal()
        );
        assert!(self.port.last_refusal().contains(why), "{}", self.port.last_refusal());
        let flushed = (CqeSyndrome::WR_FLUSH_ERR, 0x0a, sqn, next, 13);
        assert_eq!(self.cq.poll().map(error), Some(flushed));
        assert_eq!(self.cq.poll(), None);
        assert_eq!(self.far.receive(0), None);
        let sq = self.port.state.objects.sqs.get(sqn).expect("the queue");
        assert_eq!(sq.state, QueueState::Error);
        assert_eq!((sq.stats.errors, sq.stats.packets), (2, 0));
    }
}

#[test]
fn a_forgotten_doorbell_sends_nothing() {
    let mut sender = Sender::new();
    let wqe = sender.good();
    sender.sq.write(&wqe);
    sender.sq.record();
    // The first step also finds the carrier.
    sender.port.poll();
    for _ in 0..10 {
        assert!(!sender.port.poll());
    }
    assert!(sender.far.receive(0).is_none() && sender.cq.poll().is_none());
}

#[test]
fn a_stale_doorbell_record_sends_nothing_and_is_named() {
    let mut sender = Sender::new();
    let wqe = sender.good();
    sender.sq.write(&wqe);
    let sqn = sender.sq.sqn;
    // The doorbell says WQE 0, 3 units; the record still says that nothing is posted.
    let rung = u64::from(sqn) << 8 | 3 | 0x0a << 32;
    sender.port.with(|datapath, ctx| datapath.send_doorbell(ctx, sqn, Some(rung)));
    sender.port.poll();
    assert!(sender.far.receive(0).is_none() && sender.cq.poll().is_none());
    assert_eq!(sender.port.last_refusal(), "doorbell record behind its doorbell");
}

#[test]
fn a_record_that_is_a_whole_ring_ahead_fails_the_queue() {
    let mut sender = Sender::new();
    sender.sq.record.store_be32(4, 17);
    sender.port.ring(&sender.sq);
    sender.port.poll();
    let sq = sender.port.state.objects.sqs.get(sender.sq.sqn).expect("the queue");
    assert_eq!(sq.state, QueueState::Error);
    assert_eq!(sender.port.last_refusal(), "more blocks posted than the ring has");
}

#[test]
fn a_wrong_wqe_index_is_refused() {
    let mut sender = Sender::new();
    let mut wqe = sender.good();
    wqe[2] = 1;
    wqe[4..7].copy_from_slice(&sender.sq.sqn.to_be_bytes()[1..]);
    sender.sq.write_raw(&wqe);
    sender.go();
    let expected = (CqeSyndrome::LOCAL_QP_OP_ERR, 0x0a, sender.sq.sqn, 0, 13);
    assert_eq!(sender.cq.poll().map(error), Some(expected));
    assert_eq!(sender.port.last_refusal(), "not the running block counter");
}

#[test]
fn another_queues_number_is_refused() {
    let mut sender = Sender::new();
    let mut wqe = sender.good();
    wqe[4..7].copy_from_slice(&[0, 0x10, 0x01]);
    sender.sq.write_raw(&wqe);
    sender.go();
    let expected = (CqeSyndrome::LOCAL_QP_OP_ERR, 0x0a, sender.sq.sqn, 0, 13);
    assert_eq!(sender.cq.poll().map(error), Some(expected));
    assert_eq!(sender.port.last_refusal(), "not this queue's number");
}

#[test]
fn reserved_bits_are_refused() {
    let places = [(7, 0x40), (7, 0x80), (11, 0x01), (11, 0x10), (0x15, 0x40), (0x15, 0x08)];
    for (offset, bit) in places {
        let sender = Sender::new();
        let mut wqe = sender.good();
        wqe[offset] |= bit;
        sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "reserved bit");
    }
}

#[test]
fn unknown_opcodes_and_modifiers_are_refused() {
    for opcode in [0x01, 0x08, 0x0b, 0x10, 0x25, 0x7f] {
        let sender = Sender::new();
        let mut wqe = sender.good();
        wqe[3] = opcode;
        sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "not one an SQ can execute");
    }
    let sender = Sender::new();
    let mut wqe = sender.good();
    wqe[0] = 1;
    sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "not 0");
}

#[test]
fn impossible_lengths_are_refused() {
    for (ds, why) in [(0, "empty or longer"), (1, "no room for an Ethernet segment")] {
        let sender = Sender::new();
        let mut wqe = sender.good();
        wqe[7] = ds;
        sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, why);
    }
    // Longer than everything that is posted.
    let mut sender = Sender::new();
    let mut wqe = sender.good();
    wqe[7] = 63;
    sender.sq.write(&wqe);
    sender.go();
    let cqe = sender.cq.poll().map(error).expect("an error");
    assert_eq!(cqe.0, CqeSyndrome::LOCAL_QP_OP_ERR);
    // No packet at all, and one that is shorter than an Ethernet header.
    for segments in [&[][..], &[(13, KEY, 0)]] {
        let mut sender = Sender::new();
        let segments: Vec<_> =
            segments.iter().map(|&(len, key, _)| (len, key, sender.iova)).collect();
        sender.sq.write(&send(2, 0, &segments));
        sender.go();
        let cqe = sender.cq.poll().map(error).expect("an error");
        assert_eq!(cqe.0, CqeSyndrome::LOCAL_LENGTH_ERR);
    }
}

#[test]
fn offloads_that_are_not_advertised_are_refused() {
    for (offset, value, why) in [
        (0x10, 7, "no software parser"),
        (0x15, 0x01, "no software parser"),
        (0x14, 0x20, "no tunnel offloads"),
        (0x14, 0x10, "no tunnel offloads"),
    ] {
        let sender = Sender::new();
        let mut wqe = sender.good();
        wqe[offset] = value;
        sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, why);
    }
}

#[test]
fn a_vlan_to_insert_excludes_an_inline_header() {
    let sender = Sender::new();
    let mut wqe = sender.good();
    wqe[0x1c..0x1e].copy_from_slice(&[0x80, 0x12]);
    sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "excludes an inline header");
}

#[test]
fn an_inline_header_longer_than_its_wqe_is_refused() {
    let sender = Sender::new();
    let mut wqe = sender.good();
    wqe[0x1c..0x1e].copy_from_slice(&[0x00, 19]);
    sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "longer than the WQE");
}

#[test]
fn too_little_inline_is_refused() {
    let sender = Sender::with(|sq| sq.min_wqe_inline_mode = 1);
    let wqe = sender.good();
    sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "min_wqe_inline_mode");
}

#[test]
fn a_queue_without_a_tis_sends_no_packet() {
    let sender = Sender::with(|sq| sq.tisn = None);
    let wqe = sender.good();
    sender.fails(&wqe, CqeSyndrome::LOCAL_QP_OP_ERR, "no TIS");
}

#[test]
fn an_unmapped_address_is_a_protection_error() {
    let sender = Sender::new();
    let wqe = send(2, 0, &[(60, KEY, 0xdead_0000_0000)]);
    sender.fails(&wqe, CqeSyndrome::LOCAL_PROT_ERR, "DMA fault");
}

#[test]
fn the_reserved_key_needs_rlky() {
    let sender = Sender::with(|sq| sq.rlky = false);
    let wqe = sender.good();
    sender.fails(&wqe, CqeSyndrome::LOCAL_PROT_ERR, "without rlky");
}

#[test]
fn keys_are_checked_one_by_one() {
    let check =
        |change: fn(&mut crate::objects::mkey::Mkey), key_xor: u32, offset: u64, why: &str| {
            let mut sender = Sender::new();
            let key = sender.port.mkey(sender.iova, 60, Rights::LOCAL_READ);
            change(sender.port.state.objects.mkeys.get_mut(key >> 8).expect("the key"));
            let wqe = send(2, 0, &[(60, key ^ key_xor, sender.iova + offset)]);
            sender.fails(&wqe, CqeSyndrome::LOCAL_PROT_ERR, why);
        };
    check(|_| {}, 0x01, 0, "variant");
    check(|_| {}, 0x00ff_0000, 0, "no mkey");
    check(|_| {}, 0, 1, "range");
    check(|key| key.is_free = true, 0, 0, "free");
    check(|key| key.pd = 0x22, 0, 0, "protection domain");
    check(|key| key.qpn = 5, 0, 0, "another queue");
    check(|key| key.rights = Rights::LOCAL_WRITE, 0, 0, "permit");
}

#[test]
fn a_destroyed_key_is_refused_and_the_same_key_before_was_not() {
    let mut sender = Sender::new();
    let key = sender.port.mkey(sender.iova, 60, Rights::LOCAL_READ);
    let wqe = send(2, 0, &[(60, key, sender.iova)]);
    sender.sq.write(&wqe);
    sender.go();
    assert!(sender.far.receive(0).is_some() && sender.cq.poll().is_some());
    sender.port.state.objects.mkeys.remove(key >> 8).expect("the key");
    sender.sq.write(&wqe);
    sender.go();
    assert_eq!(sender.far.receive(0), None);
    let cqe = sender.cq.poll().map(error).expect("an error");
    assert_eq!((cqe.0, cqe.3), (CqeSyndrome::LOCAL_PROT_ERR, 1));
}

#[test]
fn flushing_keeps_quiet_where_only_the_first_error_counts() {
    let mut sender = Sender::new();
    sender.sq.write(&send(1, 0, &[(60, KEY, 0xdead_0000_0000)]));
    for ce in [1, 1, 0, 2] {
        let wqe = send(ce, 0, &[(60, KEY, sender.iova)]);
        sender.sq.write(&wqe);
    }
    sender.go();
    let all: Vec<_> = std::iter::from_fn(|| sender.cq.poll()).map(error).collect();
    let counters: Vec<_> = all.iter().map(|cqe| cqe.3).collect();
    assert_eq!(counters, [0, 3, 4]);
}

#[test]
fn without_flush_in_error_only_the_first_failure_is_reported() {
    let mut sender = Sender::with(|sq| sq.flush_in_error = false);
    sender.sq.write(&send(2, 0, &[(60, KEY, 0xdead_0000_0000)]));
    let wqe = sender.good();
    sender.sq.write(&wqe);
    sender.go();
    assert_eq!(sender.cq.poll().map(|cqe| error(cqe).0), Some(CqeSyndrome::LOCAL_PROT_ERR));
    assert_eq!(sender.cq.poll(), None);
}

#[test]
fn an_error_queue_flushes_what_is_posted_later() {
    let mut sender = Sender::new();
    sender.sq.write(&send(2, 0, &[(60, KEY, 0xdead_0000_0000)]));
    sender.go();
    sender.cq.poll().expect("the error");
    let wqe = sender.good();
    sender.sq.write(&wqe);
    sender.go();
    let cqe = sender.cq.poll().map(error).expect("flushed");
    assert_eq!((cqe.0, cqe.3), (CqeSyndrome::WR_FLUSH_ERR, 1));
}

#[test]
fn a_full_completion_queue_fails_with_everything_attached() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(1);
    let mut sq = port.sq(cq.cqn, 4);
    let rq = port.rq(cq.cqn, 4, 4);
    let buf = port.bytes(&frame(1));
    for _ in 0..3 {
        sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
    }
    sq.record();
    port.ring(&sq);
    port.poll();
    assert!(cq.poll().is_some() && cq.poll().is_some() && cq.poll().is_none());
    let objects = &port.state.objects;
    assert_eq!(objects.cqs.get(cq.cqn).map(|cq| cq.status), Some(CqStatus::Overflow));
    assert_eq!(objects.sqs.get(sq.sqn).map(|sq| sq.state), Some(QueueState::Error));
    assert_eq!(objects.rqs.get(rq.rqn).map(|rq| rq.state), Some(QueueState::Error));
    assert_eq!(port.last_refusal(), "completion queue overrun");
    assert!((0..3).all(|_| far.receive(0).is_some()), "the packets themselves went out");
}

#[test]
fn an_overrun_that_is_to_be_ignored_overwrites() {
    let (mut port, _far) = port();
    let cq = port.cq_with(1, |cq| cq.overrun_ignore = true);
    let mut sq = port.sq(cq.cqn, 4);
    let buf = port.bytes(&frame(1));
    for _ in 0..3 {
        sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
    }
    sq.record();
    port.ring(&sq);
    port.poll();
    let mut entry = [0; 64];
    cq.ring.copy_out(0, &mut entry);
    // WQE 2, owner of the second lap.
    assert_eq!(entry[0x3c..0x40], [0, 2, 0, 1]);
    assert_eq!(port.state.objects.cqs.get(cq.cqn).map(|cq| cq.status), Some(CqStatus::Ok));
}

#[test]
fn a_completion_queue_that_cannot_be_written_fails() {
    let (mut port, _far) = port();
    let cq = port.cq_with(4, |cq| {
        cq.memory = crate::objects::QueueMemory::new(vec![0xdead_0000_0000], 12, 0, 1024);
    });
    let mut sq = port.sq(cq.cqn, 4);
    let buf = port.bytes(&frame(1));
    sq.write(&send(2, 0, &[(60, KEY, buf.iova())]));
    sq.record();
    port.ring(&sq);
    port.poll();
    let status = port.state.objects.cqs.get(cq.cqn).map(|cq| cq.status);
    assert_eq!(status, Some(CqStatus::WriteFailure));
}

/// Posts receive WQEs, sends one frame of 60 bytes, expects an error and the rest flushed.
#[track_caller]
fn receive_fails(segments: &[(u32, u32)], syndrome: CqeSyndrome, why: &str) {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 6);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(4096);
    let mut wqe = Vec::new();
    for (len, key) in segments {
        wqe.extend(data(*len, *key, buf.iova()));
    }
    wqe.extend(data(0, 0x100, 0));
    wqe.resize(64, 0);
    rq.post(&wqe);
    rq.post(&wqe);
    put(&mut far, &frame(9));
    port.poll();
    assert_eq!(cq.poll().map(error), Some((syndrome, 0, rq.rqn, 0, 14)));
    let flushed = (CqeSyndrome::WR_FLUSH_ERR, 0, rq.rqn, 1, 14);
    assert_eq!(cq.poll().map(error), Some(flushed));
    assert_eq!(cq.poll(), None);
    assert!(port.last_refusal().contains(why), "{}", port.last_refusal());
    // The queue is dead: the next frame goes nowhere.
    put(&mut far, &frame(9));
    port.poll();
    assert_eq!(cq.poll(), None);
}

#[test]
fn bad_receive_wqes_fail_the_queue() {
    use CqeSyndrome as S;
    receive_fails(&[(60, 0x7777_7777)], S::LOCAL_PROT_ERR, "no mkey");
    receive_fails(&[(40, KEY), (20, 0x7777_7777)], S::LOCAL_PROT_ERR, "no mkey");
}

/// Source: Linux `cqe_syndrome_needs_recover`.
#[test]
fn a_frame_that_is_longer_than_its_receive_wqe_is_lost_alone() {
    for segments in [&[(59, KEY)][..], &[], &[(40, KEY), (19, KEY)]] {
        let (mut port, mut far) = port();
        let mut cq = port.cq(4);
        let mut rq = port.rq(cq.cqn, 4, 6);
        port.steer_all_to(rq.rqn);
        let buf = port.alloc(4096);
        let wqe = |segments: &[(u32, u32)]| {
            let mut wqe: Vec<u8> =
                segments.iter().flat_map(|(len, key)| data(*len, *key, buf.iova())).collect();
            wqe.extend(data(0, 0x100, 0));
            wqe.resize(64, 0);
            wqe
        };
        rq.post(&wqe(segments));
        rq.post(&wqe(&[(60, KEY)]));
        put(&mut far, &frame(9));
        put(&mut far, &frame(9));
        port.poll();
        let lost = (CqeSyndrome::LOCAL_LENGTH_ERR, 0, rq.rqn, 0, 14);
        assert_eq!(cq.poll().map(error), Some(lost));
        assert!(port.last_refusal().contains("does not fit"), "{}", port.last_refusal());
        let cqe = cq.poll().expect("the next one");
        assert_eq!((&cqe[0x2c..0x30], &cqe[0x3c..0x3e]), (&[0, 0, 0, 60][..], &[0, 1][..]));
    }
}

#[test]
fn a_receive_buffer_needs_the_right_to_write() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let buf = port.alloc(4096);
    let key = port.mkey(buf.iova(), 4096, Rights::LOCAL_READ);
    rq.post(&data(2048, key, buf.iova()));
    put(&mut far, &frame(9));
    port.poll();
    assert_eq!(cq.poll().map(|cqe| error(cqe).0), Some(CqeSyndrome::LOCAL_PROT_ERR));
}

#[test]
fn without_a_buffer_a_frame_is_dropped_and_counted() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let mut rq = port.rq(cq.cqn, 4, 4);
    port.steer_all_to(rq.rqn);
    let counter = port.state.objects.q_counters.insert(Default::default()).expect("a counter");
    port.state.objects.rqs.get_mut(rq.rqn).expect("the queue").counter_set_id = counter;
    put(&mut far, &frame(9));
    port.poll();
    assert_eq!(cq.poll(), None);
    let objects = &port.state.objects;
    assert_eq!(objects.rqs.get(rq.rqn).map(|rq| rq.stats.out_of_buffer), Some(1));
    assert_eq!(objects.q_counters.get(counter).map(|set| set.out_of_buffer), Some(1));
    assert_eq!(port.state.port.counters.rx_out_of_buffer, 1);
    // A buffer posted later takes the next frame; nothing was broken.
    let buf = port.alloc(64);
    rq.post(&data(64, KEY, buf.iova()));
    put(&mut far, &frame(9));
    port.poll();
    assert!(cq.poll().is_some());
}

#[test]
fn a_receive_record_that_is_more_than_a_ring_ahead_fails_the_queue() {
    let (mut port, mut far) = port();
    let mut cq = port.cq(4);
    let rq = port.rq(cq.cqn, 2, 4);
    port.steer_all_to(rq.rqn);
    rq.record.store_be32(0, 5);
    put(&mut far, &frame(9));
    port.poll();
    assert_eq!(cq.poll().map(|cqe| error(cqe).0), Some(CqeSyndrome::LOCAL_QP_OP_ERR));
    assert!(port.last_refusal().contains("more entries posted"));
}
