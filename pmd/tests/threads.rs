//! The data path while the model runs on a thread of its own: entries change between two loads.
//!
//! With driver and model in one thread an entry never changes while the driver looks at it, so a
//! driver that loads an ownership word twice, and believes both, passes. Here it meets an entry
//! that is written in between within a few thousand packets.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Burst, bytes_of, config, frame, pool};
use ferrocx_bus::Transport;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::Device;
use ferrocx_model::runner::{Runner, RunnerConfig, Wait};
use ferrocx_model::wire::{Fcs, Received, Wire};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_pmd::{Rss, RssConfig, RxQueue, RxQueueConfig, TxQueue, TxQueueConfig};

const MAC: [u8; 6] = [0x02, 0xfe, 0x0c, 0, 0, 1];
/// Frames of a run.
const FRAMES: u32 = 200_000;
/// Frames that are under way at most. The driver posts buffers 32 at a time, so that at least
/// `DESCRIPTORS - 31` are posted and none is dropped.
const WINDOW: u32 = 64;
const DESCRIPTORS: u32 = 128;
/// In place of the count of frames received: there is no queue yet.
const CLOSED: u32 = u32::MAX;

/// A far end that sends numbered frames and takes them back in order.
#[derive(Debug)]
struct Numbered {
    sent: u32,
    /// Frames that the driver has received.
    received: Arc<AtomicU32>,
    /// Frames that came back.
    returned: Arc<AtomicU32>,
    bytes: Vec<u8>,
    back: Vec<u8>,
}

fn numbered(number: u32) -> Vec<u8> {
    let mut bytes = frame(MAC, 64, number as u8);
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes
}

impl Wire for Numbered {
    fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.back.resize(len, 0);
        Some(&mut self.back)
    }

    fn commit(&mut self, _now_ns: u64, _fcs: Fcs) {
        let number = self.returned.load(Ordering::Relaxed);
        assert_eq!(self.back, numbered(number), "frame {number} came back changed or out of order");
        self.returned.store(number + 1, Ordering::Release);
    }

    fn receive(&mut self, _now_ns: u64) -> Option<Received<'_>> {
        let received = self.received.load(Ordering::Acquire);
        if self.sent == FRAMES || received == CLOSED || self.sent - received >= WINDOW {
            return None;
        }
        self.bytes = numbered(self.sent);
        self.sent += 1;
        Some(Received { bytes: &self.bytes, fcs: Fcs::Good })
    }
}

#[test]
fn entries_that_change_while_they_are_looked_at() {
    let (transport, side) = pair(LocalConfig::default()).unwrap();
    let (received, returned) = (Arc::new(AtomicU32::new(CLOSED)), Arc::new(AtomicU32::new(0)));
    let mut nic = Nic::new(side, NicConfig::default());
    nic.datapath_mut().plug(Numbered {
        sent: 0,
        received: Arc::clone(&received),
        returned: Arc::clone(&returned),
        bytes: Vec::new(),
        back: Vec::new(),
    });
    let runner = RunnerConfig { wait: Wait::Yield, on_start: None };
    let runner = Runner::start(vec![nic], runner).unwrap();
    let transport: Arc<dyn Transport> = transport;
    let device = Device::open(transport, &config()).unwrap();
    let pool = pool(512);
    device.register_pool(&pool).unwrap();
    let rx_config =
        RxQueueConfig { descriptors: DESCRIPTORS, cache_size: 64, ..RxQueueConfig::default() };
    let tx_config = TxQueueConfig { descriptors: DESCRIPTORS, ..TxQueueConfig::default() };
    let mut rx = RxQueue::new(&device, &pool, &rx_config).unwrap();
    let mut tx = TxQueue::new(&device, &pool, &tx_config).unwrap();
    let rss = Rss::new(&device, &[rx.queue_ref()], &RssConfig::default()).unwrap();
    received.store(0, Ordering::Release);
    let (start, mut count, mut empty) = (Instant::now(), 0, 0u32);
    while returned.load(Ordering::Acquire) < FRAMES {
        assert!(start.elapsed() < Duration::from_secs(120), "{count} frames, then none came");
        let mut burst = Burst::new();
        if rx.rx_burst(&mut burst) == 0 {
            // The send queue's completions are looked at as often.
            tx.reclaim();
            empty += 1;
            // On a machine with one core the model needs it.
            if empty.is_multiple_of(1024) {
                std::thread::yield_now();
            }
        }
        assert_eq!((rx.fault(), tx.fault()), (None, None), "behind frame {count}");
        for mbuf in &burst {
            assert_eq!(bytes_of(mbuf), numbered(count), "frame {count}");
            count += 1;
        }
        received.store(count, Ordering::Release);
        while !burst.is_empty() {
            tx.tx_burst(&mut burst);
            assert_eq!(tx.fault(), None, "behind frame {count}");
        }
    }
    assert_eq!(count, FRAMES);
    drop((rss, rx, tx));
    device.close().unwrap();
    let nics = runner.stop();
    let refused: Vec<String> = nics[0].log().iter().map(ToString::to_string).collect();
    assert_eq!(refused, Vec::<String>::new());
    assert_eq!(pool.stats().in_use, 0);
}
