//! Driver and model together, in one thread: a burst goes in at the wire, through the driver, and
//! out again. The figure is the model's speed; it says nothing about a NIC.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arrayvec::ArrayVec;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use ferrocx_bus::Transport;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::wire::{Fcs, Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

const BURST: usize = 32;

fn forward(c: &mut Criterion) {
    let (transport, side) = pair(LocalConfig::default()).expect("a transport");
    let mut nic = Nic::new(side, NicConfig::default());
    let (near, mut far) = link(1 << 20);
    nic.datapath_mut().plug(near);
    let model = Arc::new(Mutex::new((nic, 0u64)));
    let stepped = Arc::clone(&model);
    let step = move || {
        let mut model = stepped.lock().unwrap_or_else(PoisonError::into_inner);
        model.1 += 1000;
        let now_ns = model.1;
        model.0.step(now_ns);
    };
    transport.set_idle_hook(Some(Arc::new(step.clone())));
    let transport: Arc<dyn Transport> = transport;
    let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(transport, &config).expect("a device");
    let region = RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() };
    let pool =
        Pool::new(&PoolConfig { count: 4096, region, ..PoolConfig::default() }).expect("a pool");
    device.register_pool(&pool).expect("a registration");
    let mut rx = RxQueue::new(&device, &pool, &RxQueueConfig::default()).expect("a receive queue");
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default()).expect("a send queue");
    let _rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).expect("steering");
    let mac = device.mac().0;
    let mut burst = ArrayVec::<Mbuf, BURST>::new();

    let mut group = c.benchmark_group("model");
    for size in [64usize, 1514] {
        group.throughput(Throughput::Elements(BURST as u64));
        group.bench_function(format!("forward_burst_32_of_{size}B"), |b| {
            b.iter_custom(|iterations| {
                let start = Instant::now();
                for _ in 0..iterations {
                    for _ in 0..BURST {
                        let frame = far.reserve(size).expect("the link was emptied");
                        frame[..6].copy_from_slice(&mac);
                        frame[6..16].fill(2);
                        far.commit(0, Fcs::Good);
                    }
                    far.flush(0);
                    let mut back = 0;
                    while back < BURST {
                        step();
                        rx.rx_burst(&mut burst);
                        tx.tx_burst(&mut burst);
                        rx.recycle(&mut tx);
                        step();
                        while far.receive(0).is_some() {
                            back += 1;
                        }
                    }
                }
                start.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, forward);
criterion_main!(benches);
