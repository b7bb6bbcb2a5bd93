//! Brings up the software ConnectX, sends frames at it over an in-memory cable, and has our driver
//! send each one back with its addresses swapped.
//!
//! ```text
//! cargo run -p ferrocx-pmd --example echo_on_model
//! ```

use std::sync::{Arc, Mutex, PoisonError};

use arrayvec::ArrayVec;
use ferrocx_bus::Transport;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::{Device, DeviceConfig};
use ferrocx_mempool::{Mbuf, PageSize, Pool, PoolConfig, RegionConfig};
use ferrocx_model::wire::{Fcs, Wire, link};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

const FRAMES: u32 = 1000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // The device: a model that steps whenever the driver waits, and in the loop below.
    let (transport, side) = pair(LocalConfig::default())?;
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

    // The driver.
    let transport: Arc<dyn Transport> = transport;
    let config = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let device = Device::open(transport, &config)?;
    let info = device.info();
    println!("{} ({}), firmware {}, MAC {}", info.name, info.model, info.firmware, device.mac());
    println!("buffer keys: {}", device.key_mode());
    let pool = Pool::new(&PoolConfig {
        count: 2048,
        region: RegionConfig { page: PageSize::Base4K, ..RegionConfig::default() },
        ..PoolConfig::default()
    })?;
    device.register_pool(&pool)?;
    let mut rx = RxQueue::new(&device, &pool, &RxQueueConfig::default())?;
    let mut tx = TxQueue::new(&device, &pool, &TxQueueConfig::default())?;
    let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default())?;

    let (mut sent, mut back) = (0, 0);
    let mut burst = ArrayVec::<Mbuf, 32>::new();
    while back < FRAMES {
        if sent < FRAMES {
            let frame = far.reserve(64).ok_or("the cable is full")?;
            frame.fill(0);
            frame[..6].copy_from_slice(&device.mac().0);
            frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
            frame[14..18].copy_from_slice(&sent.to_be_bytes());
            far.commit(0, Fcs::Good);
            far.flush(0);
            sent += 1;
        }
        step();
        rx.rx_burst(&mut burst);
        for mbuf in &mut burst {
            let data = mbuf.data_mut().ok_or("a received packet is ours alone")?;
            let (destination, rest) = data.split_at_mut(6);
            destination.swap_with_slice(&mut rest[..6]);
        }
        tx.tx_burst(&mut burst);
        rx.recycle(&mut tx);
        step();
        while let Some(frame) = far.receive(0) {
            assert_eq!(frame.bytes[14..18], back.to_be_bytes(), "in order");
            back += 1;
        }
    }
    println!("{back} of {sent} frames came back; receive {:?}", rx.stats());
    println!("send {:?}", tx.stats());
    drop((rss, rx, tx));
    device.close()?;
    Ok(())
}
