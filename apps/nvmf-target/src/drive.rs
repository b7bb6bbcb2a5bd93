//! [`Drives`]: the NVMe drives of a target, each tended by a thread of its own.
//!
//! A drive is opened for its first namespace and closed behind its last one. Cores have queue pairs
//! and never wait for it; whatever takes time (aborts, resets, a drive that the kernel wants back)
//! is its thread's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ferrocx::Region;
use ferrocx_nvme::{Config, Controller, Health, IoQueue};

/// Time between looks at a drive.
const LOOK: Duration = Duration::from_millis(10);

/// A drive that is open. Dropping it shuts the drive down.
#[derive(Debug)]
pub struct Drive {
    address: String,
    controller: Arc<Mutex<Controller>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The drives of a target. A handle: clones are the same drives.
#[derive(Debug, Clone, Default)]
pub struct Drives {
    list: Arc<Mutex<Vec<Used>>>,
}

/// A drive, and which of its namespaces are offered.
#[derive(Debug)]
struct Used {
    drive: Drive,
    offered: Vec<u32>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drive {
    /// Tends a drive from now on.
    ///
    /// # Errors
    ///
    /// The system has no more threads.
    pub fn start(controller: Controller) -> Result<Self> {
        let address = controller.name().to_owned();
        let controller = Arc::new(Mutex::new(controller));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, flag) = (Arc::clone(&controller), Arc::clone(&stop));
        let tend = move || {
            while !flag.load(Ordering::Acquire) {
                if let Health::Gone(why) = lock(&theirs).tend() {
                    tracing::error!(why, "a drive has gone: its namespaces fail from now on");
                    return;
                }
                thread::park_timeout(LOOK);
            }
        };
        let thread = Some(thread::Builder::new().name("nvmf-drive".into()).spawn(tend)?);
        Ok(Self { address, controller, stop, thread })
    }

    /// A queue pair for each of these regions, for a namespace.
    ///
    /// # Errors
    ///
    /// What the drive or the system refused; nothing stays then.
    pub fn queues(&self, nsid: u32, buffers: &[Arc<Region>]) -> Result<Vec<IoQueue>> {
        let mut controller = lock(&self.controller);
        let one = |region: &Arc<Region>| controller.queue(nsid, &[Arc::clone(region)]);
        Ok(buffers.iter().map(one).collect::<Result<_, _>>()?)
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drives {
    /// Queue pairs of a drive for a namespace of it, one for each of these regions. The drive is
    /// opened unless it is open already.
    ///
    /// # Errors
    ///
    /// What the drive or the system refused, or that the namespace is offered already: hosts would
    /// take one disk for two. Nothing stays then.
    pub fn open(&self, address: &str, nsid: u32, buffers: &[Arc<Region>]) -> Result<Vec<IoQueue>> {
        let place = || format!("drive {address}");
        let mut list = lock(&self.list);
        let found = list.iter_mut().find(|it| it.drive.address == address);
        if let Some(Used { drive, offered }) = found {
            if offered.contains(&nsid) {
                bail!("namespace {nsid} of drive {address} is offered already; name another one");
            }
            let queues = drive.queues(nsid, buffers).with_context(place)?;
            offered.push(nsid);
            return Ok(queues);
        }
        let controller = Controller::open_vfio(address, &Config::default()).with_context(place)?;
        let drive = Drive::start(controller).with_context(place)?;
        let queues = drive.queues(nsid, buffers).with_context(place)?;
        list.push(Used { drive, offered: vec![nsid] });
        Ok(queues)
    }

    /// A namespace of a drive is offered no more; behind the last one the drive is closed.
    pub fn close(&self, address: &str, nsid: u32) {
        let mut list = lock(&self.list);
        if let Some(used) = list.iter_mut().find(|it| it.drive.address == address) {
            used.offered.retain(|offered| *offered != nsid);
        }
        list.retain(|it| !it.offered.is_empty());
    }
}
