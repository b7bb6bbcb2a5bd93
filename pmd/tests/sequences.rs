//! Random sequences of calls against an oracle: what is sent arrives once and in order; what is
//! received was injected, in order; buffers are neither lost nor made.

mod common;

use std::collections::VecDeque;

use common::{Bench, Burst, bytes_of, frame, pool};
use ferrocx_mempool::OlFlags;
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};
use proptest::prelude::*;

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];

#[derive(Debug, Clone)]
enum Op {
    /// Frames put on the wire.
    Inject(u8),
    /// One step of the device.
    Step,
    /// The device works until it has nothing to do.
    Settle,
    Receive,
    /// Packets sent; every third with a request of its own.
    Send(u8),
    /// Packets received are sent back.
    Forward,
    Recycle,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1..40u8).prop_map(Op::Inject),
        Just(Op::Step),
        Just(Op::Settle),
        Just(Op::Receive),
        (1..33u8).prop_map(Op::Send),
        Just(Op::Forward),
        Just(Op::Recycle),
    ]
}

/// A numbered frame.
fn numbered(number: u32) -> Vec<u8> {
    let mut bytes = frame(MAC, 60 + number as usize % 900, number as u8);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn packets_are_neither_lost_nor_made(ops in prop::collection::vec(op(), 1..120)) {
        let mut bench = Bench::new();
        let device = bench.device();
        let pool = pool(400);
        device.register_pool(&pool).unwrap();
        let config = RxQueueConfig { descriptors: 64, cache_size: 64, ..RxQueueConfig::default() };
        let mut rx = RxQueue::new(&device, &pool, &config).unwrap();
        let config = TxQueueConfig { descriptors: 64, ..TxQueueConfig::default() };
        let mut tx = TxQueue::new(&device, &pool, &config).unwrap();
        let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
        let mut injected = VecDeque::new();
        let mut expected = VecDeque::new();
        let mut number = 0;
        for op in ops {
            match op {
                Op::Inject(count) => for _ in 0..count {
                    bench.inject(&numbered(number));
                    injected.push_back(numbered(number));
                    number += 1;
                },
                Op::Step => bench.step(),
                Op::Settle => bench.settle(),
                Op::Receive | Op::Forward => {
                    let mut burst = Burst::new();
                    rx.rx_burst(&mut burst);
                    for mbuf in &burst {
                        let bytes = bytes_of(mbuf);
                        // The device drops what finds no buffer, so some may be skipped.
                        let at = injected.iter().position(|sent| *sent == bytes);
                        prop_assert!(at.is_some(), "a frame that nobody sent, or twice");
                        injected.drain(..=at.unwrap_or(0));
                    }
                    if matches!(op, Op::Forward) {
                        let all: Vec<_> = burst.iter().map(bytes_of).collect();
                        let taken = tx.tx_burst(&mut burst);
                        prop_assert_eq!(all.len() - taken, burst.len());
                        expected.extend(all.into_iter().take(taken));
                    }
                }
                Op::Send(count) => {
                    let mut burst = Burst::new();
                    for step in 0..count {
                        let Some(mut mbuf) = pool.get() else { break };
                        assert!(mbuf.extend_from_slice(&numbered(number)));
                        number += 1;
                        if step % 3 == 0 {
                            mbuf.set_flags(OlFlags::TX_IP_CSUM);
                        }
                        if burst.try_push(mbuf).is_err() {
                            break;
                        }
                    }
                    let all: Vec<_> = burst.iter().map(bytes_of).collect();
                    let taken = tx.tx_burst(&mut burst);
                    expected.extend(all.into_iter().take(taken));
                }
                Op::Recycle => { rx.recycle(&mut tx); }
            }
            while let Some(bytes) = bench.sent() {
                prop_assert_eq!(Some(bytes), expected.pop_front(), "out of order");
            }
            prop_assert_eq!((rx.fault(), tx.fault()), (None, None));
        }
        bench.settle();
        while let Some(bytes) = bench.sent() {
            prop_assert_eq!(Some(bytes), expected.pop_front(), "out of order");
        }
        prop_assert!(expected.is_empty(), "{} packets were never sent", expected.len());
        bench.assert_clean();
        drop((rss, rx, tx));
        device.close().unwrap();
        prop_assert_eq!(pool.stats().in_use, 0);
    }
}
