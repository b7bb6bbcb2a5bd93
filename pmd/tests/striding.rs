//! Striding receive queues on the model: packets that share large buffers.

mod common;

use common::{Bench, Burst, bytes_of, config, frame, packet, pool, pool_of, tcp};
use ferrocx_core::{ConfigError, Device, DeviceConfig, DeviceError, KeyMode};
use ferrocx_mempool::{Mbuf, OlFlags, Pool};
use ferrocx_pmd::{
    BufferSplit, Rss, RssConfig, RxQueue, RxQueueConfig, Striding, TxQueue, TxQueueConfig,
};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
const LARGE: usize = Striding::BUFFER_BYTES as usize;

fn settings(buffers: &Pool) -> RxQueueConfig {
    let striding = Some(Striding::new(buffers.clone()));
    RxQueueConfig { descriptors: 1024, cache_size: 32, striding, ..RxQueueConfig::default() }
}

/// A queue with everything steered to it.
fn receiver(device: &Device, pools: [&Pool; 2], config: &RxQueueConfig) -> (RxQueue, Rss) {
    pools.iter().for_each(|pool| device.register_pool(pool).unwrap());
    let queue = RxQueue::new(device, pools[0], config).unwrap();
    let rss = Rss::new(device, &[queue.queue_ref()], &RssConfig::default()).unwrap();
    (queue, rss)
}

/// Receives all that has come.
fn drain(queue: &mut RxQueue) -> Vec<Mbuf> {
    let mut all = Vec::new();
    loop {
        let mut out = Burst::new();
        if queue.rx_burst(&mut out) == 0 {
            return all;
        }
        all.extend(out);
    }
}

#[test]
fn frames_of_all_lengths_share_buffers_in_every_key_mode() {
    for mode in [KeyMode::Reserved, KeyMode::Physical, KeyMode::Translated] {
        let mut bench = Bench::new();
        let device =
            bench.try_device(&DeviceConfig { key_mode: Some(mode), mtu: 9000, ..config() });
        let (pool, buffers) = (pool(512), pool_of(8, LARGE));
        let (mut queue, rss) = receiver(&device, [&pool, &buffers], &settings(&buffers));
        let (mut packets, mut bytes) = (0, 0);
        // More than the ring has strides: fillers, and each buffer many times.
        for round in 0..40 {
            let lens = [60, 64, 65, 127, 128, 129, 192, 1000, 1513, 1514, 8000, 9014];
            let sent = lens.map(|len| frame(MAC, len, round as u8));
            sent.iter().for_each(|sent| bench.inject(sent));
            bench.settle();
            let mut got = drain(&mut queue);
            assert_eq!(got.len(), sent.len(), "{mode}, round {round}: {:?}", bench.refusals());
            for (got, sent) in got.iter().zip(&sent) {
                assert_eq!(bytes_of(got), *sent, "{mode}, round {round}, length {}", sent.len());
                let is_copy = sent.len() <= usize::from(Striding::COPY_BYTES);
                assert_eq!((got.nb_segs(), got.headroom()), (1, if is_copy { 128 } else { 0 }));
                (packets, bytes) = (packets + 1, bytes + sent.len() as u64);
            }
            // Each has its bytes to itself, as far as its strides go.
            for mbuf in &mut got {
                let room = mbuf.tailroom();
                mbuf.append(room).expect("nobody shares it").fill(0xee);
            }
            assert!(got.iter().zip(&sent).all(|(got, sent)| got.data()[..sent.len()] == sent[..]));
        }
        assert_eq!((queue.stats().packets, queue.stats().bytes), (packets, bytes));
        assert_eq!((queue.stats().no_mbuf, queue.fault()), (0, None));
        bench.assert_clean();
        drop((rss, queue));
        device.close().unwrap();
        assert_eq!((pool.stats().in_use, buffers.stats().in_use), (0, 0));
    }
}

#[test]
fn packets_of_a_striding_queue_are_described_as_any_other() {
    for compressed in [false, true] {
        let mut bench = Bench::new();
        let device = bench.device();
        let (pool, buffers) = (pool(512), pool_of(8, LARGE));
        let config = RxQueueConfig {
            cqe_compression: compressed,
            timestamps: !compressed,
            ..settings(&buffers)
        };
        let (mut queue, _rss) = receiver(&device, [&pool, &buffers], &config);
        let mut last = 0;
        for round in 0..30u8 {
            let sent: Vec<_> =
                (0..20).map(|at| tcp(MAC, 1000, &vec![round; 7 + at * 70])).collect();
            sent.iter().for_each(|sent| bench.inject(sent));
            bench.settle();
            bench.pass(1_000_000);
            let got = drain(&mut queue);
            assert!(got.iter().map(bytes_of).eq(sent), "round {round}: {:?}", queue.fault());
            for mbuf in got {
                let good = OlFlags::RX_IP_CSUM_GOOD | OlFlags::RX_L4_CSUM_GOOD;
                assert!(mbuf.flags().contains(good), "{:?}", mbuf.flags());
                assert_eq!(mbuf.packet_type().0, 0x05, "IPv4 and TCP");
                if !compressed {
                    let ticks = mbuf.rx_timestamp().expect("it was asked for");
                    assert!(ticks >= last);
                    last = ticks;
                }
            }
        }
        bench.assert_clean();
    }
}

#[test]
fn strides_are_forwarded_and_come_home() {
    let mut bench = Bench::new();
    let device = bench.device();
    let (pool, buffers) = (pool(512), pool_of(8, LARGE));
    let (mut rx, _rss) = receiver(&device, [&pool, &buffers], &settings(&buffers));
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).unwrap();
    for round in 0..200u32 {
        let sent: Vec<_> = (0..8)
            .map(|at| frame(MAC, 60 + (round * 8 + at) as usize % 1435, round as u8))
            .collect();
        sent.iter().for_each(|sent| bench.inject(sent));
        bench.settle();
        let mut burst = Burst::new();
        assert_eq!(rx.rx_burst(&mut burst), 8, "round {round}: {:?}", rx.stats());
        // In a chain, too.
        let head = packet(&pool, &[7; 20]);
        let tail = std::mem::replace(&mut burst[7], head);
        burst[7].chain(tail).unwrap();
        assert_eq!(tx.tx_burst(&mut burst), 8);
        bench.settle();
        let mut expected = sent;
        expected[7].splice(0..0, [7; 20]);
        assert_eq!(bench.all_sent(), expected, "round {round}");
        tx.reclaim();
        rx.recycle(&mut tx);
    }
    assert_eq!((rx.stats().no_mbuf, rx.fault(), tx.fault()), (0, None, None));
    bench.assert_clean();
}

#[test]
fn settings_that_cannot_be_are_refused_in_a_sentence() {
    let bench = Bench::new();
    let device = bench.device();
    let (pool, buffers, small) = (pool(512), pool_of(8, LARGE), pool_of(8, LARGE - 64));
    [&pool, &buffers, &small].iter().for_each(|pool| device.register_pool(pool).unwrap());
    let good = settings(&buffers);
    let with = |striding| RxQueueConfig { striding: Some(striding), ..good.clone() };
    let split = Some(BufferSplit { header_bytes: 64, payload: buffers.clone() });
    for (config, said) in [
        (
            RxQueueConfig { descriptors: 512, ..good.clone() },
            "receive descriptors is 512; it must be 1024 to 32768, strides of 64 bytes of a \
             striding queue",
        ),
        (
            with(Striding::new(small)),
            "bytes of a large buffer is 32704; it must be 32768 to 65535; make the pool of large \
             buffers with data_room_bytes of 32768",
        ),
        (
            with(Striding { copy_bytes: 2049, ..Striding::new(buffers.clone()) }),
            "bytes to copy is 2049; it must be 0 to 2048; give the queue's pool larger buffers, or \
             copy less",
        ),
        (
            RxQueueConfig { max_frame_bytes: Some(32769), ..good.clone() },
            "largest frame in bytes is 32769; it must be 64 to 32768, what a large buffer holds",
        ),
        (
            RxQueueConfig { split, ..good.clone() },
            "packets that share a buffer cannot be split; set either RxQueueConfig::striding or \
             RxQueueConfig::split to None",
        ),
        (
            RxQueueConfig { cqe_compression: true, timestamps: true, ..good.clone() },
            "compressed completions carry no timestamps; set either \
             RxQueueConfig::cqe_compression or RxQueueConfig::timestamps to false",
        ),
    ] {
        match RxQueue::new(&device, &pool, &config) {
            Err(DeviceError::Config(error)) => {
                let _: &ConfigError = &error;
                assert_eq!(error.to_string(), said);
            }
            other => panic!("{other:?} for {said}"),
        }
    }
    let scarce = pool_of(1, LARGE);
    device.register_pool(&scarce).unwrap();
    let error = RxQueue::new(&device, &pool, &settings(&scarce)).unwrap_err();
    assert!(matches!(error, DeviceError::PoolTooSmall { need: 2, got: 1, .. }), "{error}");
    assert_eq!((pool.stats().in_use, buffers.stats().in_use), (0, 0));
    assert_eq!(scarce.stats().in_use, 0);
    bench.assert_clean();
}
