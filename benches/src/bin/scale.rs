//! Whether costs stay flat: memory of a queue pair and of a key, and time of an operation, from one
//! to many of them, on the model in the same thread.
//!
//! `scale [QUEUE_PAIRS [KEYS]]`: the largest numbers, 10,000 and 1,000,000 unless told otherwise.
//! Times are of this thread's processor, so that other programs do not stand in them. What the
//! model does is counted apart: its lines say `model/`, and are no NIC's figures.
#![forbid(unsafe_code)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ferrocx_bus::PciIdentity;
use ferrocx_bus::local::{LocalConfig, pair};
use ferrocx_core::DeviceConfig;
use ferrocx_heapcount::held_bytes;
use ferrocx_mempool::{PageSize, RegionConfig};
use ferrocx_model::{Nic, NicConfig};
use ferrocx_verbs_lite::registrar::looped_back;
use ferrocx_verbs_lite::*;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Device time of a step.
const STEP_NS: u64 = 1000;
/// Steps without work until the model has settled.
const QUIET: u32 = 8;
/// Operations that are timed at each size, at least.
const OPERATIONS: usize = 20_000;
/// Requests in flight on the queue pair that binds keys, and on each of many queue pairs.
const DEPTH: usize = 256;
const EACH: usize = 8;

/// The model and its clock.
#[derive(Debug)]
struct World {
    nic: Mutex<(Nic, u64)>,
    /// What the model holds, which is none of the library's.
    model_bytes: AtomicI64,
}

impl World {
    /// One step; whether the model did anything.
    fn step(&self) -> bool {
        let mut world = self.nic.lock().expect("no step panics");
        let (nic, now) = &mut *world;
        *now += STEP_NS;
        let before = held_bytes();
        let busy = nic.step(*now);
        self.model_bytes.fetch_add(held_bytes() - before, Ordering::Relaxed);
        busy
    }

    /// Steps until nothing moves; how long that took.
    fn settle(&self) -> Duration {
        let start = processor_time();
        let mut quiet = 0;
        while quiet < QUIET {
            quiet = if self.step() { 0 } else { quiet + 1 };
        }
        processor_time() - start
    }
}

/// A port of the model.
struct Port {
    world: Arc<World>,
    context: RdmaContext,
    pd: Pd,
}

fn port() -> Result<Port> {
    let config = NicConfig::default();
    let identity = PciIdentity {
        vendor: PciIdentity::VENDOR_MELLANOX,
        device: config.identity.device_id(),
        name: "model".into(),
        numa_node: None,
    };
    let (transport, side) = pair(LocalConfig { identity, ..LocalConfig::default() })?;
    let world = Arc::new(World {
        nic: Mutex::new((Nic::new(side, config), 0)),
        model_bytes: AtomicI64::new(0),
    });
    let stepping = Arc::clone(&world);
    transport.set_idle_hook(Some(Arc::new(move || {
        stepping.step();
    })));
    let settings = DeviceConfig { page: PageSize::Base4K, ..DeviceConfig::default() };
    let context = RdmaContext::open(&ferrocx_core::Device::open(transport, &settings)?)?;
    let pd = context.alloc_pd()?;
    Ok(Port { world, context, pd })
}

/// Time that this thread has had on a processor.
fn processor_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What is held now: heap, and memory that the device reaches.
fn held(port: &Port) -> (i64, i64) {
    let dma = i64::try_from(port.context.device().dma_bytes_used()).unwrap_or(i64::MAX);
    (held_bytes() - port.world.model_bytes.load(Ordering::Relaxed), dma)
}

/// Sizes from 1 to `most` by tens.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    let tens = std::iter::successors(Some(1), |size: &usize| size.checked_mul(10));
    tens.take_while(move |size| *size < most).chain([most])
}

fn per(duration: Duration, count: usize) -> f64 {
    duration.as_secs_f64() * 1e9 / count as f64
}

fn grown(before: (i64, i64), after: (i64, i64), count: usize) -> (i64, i64) {
    let count = count as i64;
    ((after.0 - before.0) / count, (after.1 - before.1) / count)
}

/// Queue pairs connected to themselves, each of which writes eight bytes to their own memory.
fn queue_pairs(most: usize) -> Result<()> {
    let port = port()?;
    let region =
        RegionConfig { len_bytes: 4096, page: PageSize::Base4K, ..RegionConfig::default() };
    let memory = Memory::alloc(&port.context, &region)?;
    let mr = port.pd.reg_mr(&memory, 0..4096, Access::LOCAL_WRITE | Access::REMOTE)?;
    let remote = mr.whole()?.remote().ok_or("no rights")?;
    let config = QpConfig {
        max_send_wr: EACH as u32,
        max_recv_wr: 1,
        max_inline_bytes: 8,
        ..QpConfig::default()
    };
    let entries = config.max_send_wr + config.max_recv_wr;
    let mut cq = port.context.create_cq(entries * u32::try_from(most)?)?;
    let own = port.context.gids().first().ok_or("no address")?.gid;
    let path = Path::new(port.context.route(own)?, port.context.device().mac());
    let mut qps: Vec<Qp<()>> = Vec::with_capacity(most);
    println!("queue pairs  bytes each: heap  rings  sw/ns post+poll  model/ns a WRITE of 8 bytes");
    for size in sizes(most) {
        let (before, known) = (held(&port), qps.len());
        while qps.len() < size {
            let config = QpConfig { user_index: qps.len() as u32, ..config };
            let mut qp = port.pd.create_qp(&cq, &config)?;
            qp.init(&InitAttr { access: Access::REMOTE, qkey: 0 })?;
            qp.connect(&RtrAttr::new(path, qp.qpn(), Psn(0), Mtu::B256))?;
            qp.activate(&RtsAttr::new(Psn(0)))?;
            qps.push(qp);
        }
        let (heap, rings) = grown(before, held(&port), (size - known).max(1));
        let rounds = OPERATIONS.div_ceil(size * EACH);
        let (mut ours, mut models, mut ended) = (Duration::ZERO, Duration::ZERO, 0);
        for _ in 0..rounds {
            let start = processor_time();
            for _ in 0..EACH {
                for qp in &mut qps {
                    qp.post_send_inline(&SendWr::signaled(0, SendOp::Write(remote)), &[1; 8])?;
                }
            }
            ours += processor_time() - start;
            models += port.world.settle();
            let start = processor_time();
            while let Some(completion) = cq.poll() {
                let qp = &mut qps[completion.user_index() as usize];
                qp.complete(completion, |wc| ended += usize::from(wc.result.is_ok()))?;
            }
            ours += processor_time() - start;
        }
        let posted = rounds * size * EACH;
        if ended != posted {
            return Err(format!("{ended} of {posted} requests ended well").into());
        }
        let (ours, models) = (per(ours, ended), per(models, ended));
        println!("{size:11}  {heap:16}  {rings:5}  {ours:15.0}  {models:28.0}");
    }
    Ok(())
}

/// Keys that a queue pair binds to a page and ends again.
fn keys(most: usize) -> Result<()> {
    let port = port()?;
    let region =
        RegionConfig { len_bytes: 4096, page: PageSize::Base4K, ..RegionConfig::default() };
    let memory = Memory::alloc(&port.context, &region)?;
    let layout = ListLayout::Pages { log_page: 12 };
    let (mut qp, mut cq) = looped_back::<()>(&port.context, &port.pd, 2 * DEPTH as u32)?;
    let list = || port.context.alloc_page_list(layout, 8);
    let mut lists = (0..DEPTH).map(|_| list()).collect::<std::result::Result<Vec<_>, _>>()?;
    for list in &mut lists {
        list.map(&memory, std::slice::from_ref(&(0..4096)))?;
    }
    let mut free: Vec<Option<FastRegMr>> = Vec::with_capacity(most);
    println!("       keys  bytes each: heap  rings  sw/ns bind+end  model/ns bind+end");
    for size in sizes(most) {
        let (before, known) = (held(&port), free.len());
        while free.len() < size {
            free.push(Some(port.pd.alloc_mr(layout, 8)?));
        }
        let (heap, rings) = grown(before, held(&port), (size - known).max(1));
        let (mut ours, mut models, mut ended) = (Duration::ZERO, Duration::ZERO, 0);
        let mut next = 0;
        while ended < OPERATIONS {
            let batch = size.min(DEPTH);
            let start = processor_time();
            for _ in 0..batch {
                // Far from the one before: a table that is searched would be found out.
                next = (next + 7919) % size;
                let mr = free[next].take().ok_or("a key is in use")?;
                let list = lists.pop().ok_or("no list is left")?;
                let (flags, access) = (SendFlags::MORE, Access::REMOTE_READ);
                let wr = FastReg {
                    wr_id: next as u64,
                    flags,
                    start: 0,
                    access,
                    remote_invalidate: false,
                };
                let mr = qp.post_fast_reg(&wr, mr, list).map_err(|refused| refused.cause)?;
                qp.post_local_inv(next as u64, flags, mr).map_err(|refused| refused.cause)?;
            }
            qp.ring_doorbell_signaled();
            ours += processor_time() - start;
            models += port.world.settle();
            let start = processor_time();
            while let Some(completion) = cq.poll() {
                qp.complete(completion, |wc| match wc.returned {
                    Returned::PageList(list) => lists.push(list),
                    Returned::Mr(mr) => {
                        ended += usize::from(wc.result.is_ok());
                        free[wc.wr_id as usize] = Some(mr);
                    }
                    _ => {}
                })?;
            }
            ours += processor_time() - start;
        }
        let (ours, models) = (per(ours, ended), per(models, ended));
        println!("{size:11}  {heap:16}  {rings:5}  {ours:14.0}  {models:17.0}");
    }
    Ok(())
}

fn run() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<usize>());
    let most = args.next().transpose()?.unwrap_or(10_000).max(1);
    queue_pairs(most)?;
    keys(args.next().transpose()?.unwrap_or(1_000_000).max(1))
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}; usage: scale [QUEUE_PAIRS [KEYS]]");
            ExitCode::FAILURE
        }
    }
}
