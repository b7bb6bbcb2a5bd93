//! Any bytes in the rings and on the wire: nothing panics, nothing hangs, what is good passes.

use proptest::prelude::*;

use crate::datapath::harness::{KEY, Port, data, send};
use crate::objects::QueueState;
use crate::wire::{Fcs, Wire, link};

/// Few cases, since each sets up a device; a failure prints its input and leaves no file behind.
fn config() -> ProptestConfig {
    ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_wqe_completes_or_fails_the_queue(
        mut wqe in proptest::collection::vec(any::<u8>(), 64..1024),
        opcode in prop_oneof![Just(0u8), Just(0x0a), Just(0x0e), Just(0x29), any::<u8>()],
        has_frame in any::<bool>(),
        ds in 0u8..64,
        inline in 0u8..80,
    ) {
        let mut port = Port::new(1);
        let (near, mut far) = link(0);
        port.plug(near);
        let mut cq = port.cq(6);
        let mut sq = port.sq(cq.cqn, 6);
        let buf = port.alloc(4096);
        // Half-way plausible bytes reach further than noise.
        wqe[..4].copy_from_slice(&[0, 0, 0, opcode]);
        wqe[7] = ds;
        wqe[8..12].copy_from_slice(&[0, 0, 0, 8]);
        wqe[16..0x20].fill(0);
        wqe[0x1d] = inline;
        if has_frame {
            for at in (0x30..wqe.len().saturating_sub(16)).step_by(16) {
                wqe[at..at + 16].copy_from_slice(&data(60, KEY, buf.iova()));
            }
        }
        sq.write(&wqe);
        sq.record();
        port.ring(&sq);
        for _ in 0..50 {
            port.poll();
            while far.receive(0).is_some() {}
        }
        let state = port.state.objects.sqs.get(sq.sqn).expect("the queue");
        prop_assert!(!state.is_active, "the queue hangs");
        let first = cq.poll();
        // A frame beyond the MTU is also named in the log, and fails nothing.
        prop_assert!(state.state == QueueState::Ready || port.state.log.total() > 0);
        prop_assert!(first.is_some() || state.state == QueueState::Ready);
    }

    #[test]
    fn any_receive_wqe_and_any_frame(
        wqe in proptest::collection::vec(any::<u8>(), 64),
        mut frame in proptest::collection::vec(any::<u8>(), 0..1600),
        ethertype in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100), any::<u16>()],
        list in 0u32..4,
    ) {
        use crate::objects::WqType;
        let mut port = Port::new(1);
        let (near, mut far) = link(0);
        port.plug(near);
        let cq = port.cq(6);
        let mut rq = port.rq_with(cq.cqn, 4, 6, |_, wq| {
            wq.wq_type = WqType::from_raw(list).expect("four kinds");
            wq.log_strides_per_wqe = 3;
            wq.log_stride_bytes = 6;
        });
        port.steer_all_to(rq.rqn);
        if frame.len() > 14 {
            frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        }
        for _ in 0..3 {
            rq.post(&wqe);
            if !frame.is_empty() {
                far.reserve(frame.len()).expect("room").copy_from_slice(&frame);
                far.commit(0, Fcs::Good);
            }
        }
        far.flush(0);
        for _ in 0..10 {
            port.poll();
        }
        let counters = &port.state.port.counters;
        let taken = counters.rx().packets + counters.rx_errors.packets;
        prop_assert_eq!(taken, if frame.is_empty() { 0 } else { 3 });
    }

    #[test]
    fn whatever_the_pace_every_frame_arrives_once_and_in_order(
        steps in proptest::collection::vec((0usize..40, 0usize..40, any::<bool>()), 1..40),
        start in prop_oneof![Just(0u16), Just(0xffe0)],
    ) {
        let mut port = Port::new(1);
        let (near, mut far) = link(0);
        port.plug(near);
        let mut cq = port.cq(6);
        let mut sq = port.sq_with(cq.cqn, 6, |sq| {
            sq.executed = start;
            sq.posted = start;
        });
        let slots = port.alloc(64 * 1514);
        let (mut sent, mut done, mut received) = (0_u32, 0_u32, 0_u32);
        for (post, take, is_rung) in steps {
            for _ in 0..post {
                if sent - done == 32 {
                    break;
                }
                // Large frames, so that the wire fills up; the number is at the front of each.
                let slot = sent as usize % 64 * 1514;
                slots.copy_in(slot, &sent.to_be_bytes());
                let iova = slots.iova() + slot as u64;
                let mut wqe = send(2, 0, &[(1000, KEY, iova), (14, KEY, iova)]);
                wqe.extend(data(500, KEY, iova));
                wqe[7] = 5;
                sq.write(&wqe);
                sent += 1;
            }
            sq.record();
            if is_rung {
                port.ring(&sq);
            }
            port.poll();
            for _ in 0..take {
                let Some(frame) = far.receive(0) else { break };
                prop_assert_eq!(frame.bytes.len(), 1514);
                prop_assert_eq!(&frame.bytes[..4], &received.to_be_bytes());
                received += 1;
            }
            while cq.poll().is_some() {
                done += 1;
            }
        }
        port.ring(&sq);
        for _ in 0..100 {
            port.poll();
            while let Some(frame) = far.receive(0) {
                prop_assert_eq!(&frame.bytes[..4], &received.to_be_bytes());
                received += 1;
            }
            while cq.poll().is_some() {
                done += 1;
            }
        }
        prop_assert_eq!((received, done), (sent, sent));
        prop_assert_eq!(port.state.log.total(), 0);
    }
}
