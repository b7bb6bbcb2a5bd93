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
use ferrocx_nvme::{Config, Controller, Health, IoQueue, NvmeError};

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
    /// How each of them is used.
    config: Config,
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
    /// No drives yet; a command of theirs may take so long before it is aborted: hosts wait
    /// meanwhile. One of the admin queue has the driver's own time, for none of a host's waits for
    /// it but behind a reset, and too short a time would reset the drive for all.
    #[must_use]
    pub fn new(timeout: Duration) -> Self {
        let config = Config { timeout, ..Config::default() };
        Self { list: Arc::default(), config }
    }

    /// Queue pairs of a drive for a namespace of it, one for each of these regions. The drive is
    /// opened unless it is open already.
    ///
    /// # Errors
    ///
    /// What the drive or the system refused, or that the namespace is offered already: hosts would
    /// take one disk for two. Nothing stays then.
    pub fn open(&self, address: &str, nsid: u32, buffers: &[Arc<Region>]) -> Result<Vec<IoQueue>> {
        let open = || Controller::open_vfio(address, &self.config);
        self.open_by(open, address, nsid, buffers)
    }

    /// As [`Drives::open`], by another way to a drive that is not open yet.
    fn open_by(
        &self,
        open: impl FnOnce() -> Result<Controller, NvmeError>,
        address: &str,
        nsid: u32,
        buffers: &[Arc<Region>],
    ) -> Result<Vec<IoQueue>> {
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
        let controller = open().with_context(place)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Plan, World};

    #[test]
    fn a_command_of_the_admin_queue_has_longer_than_one_of_a_host() {
        let Config { timeout, admin_timeout, .. } = Drives::new(Duration::from_secs(8)).config;
        assert_eq!((timeout.as_secs(), admin_timeout), (8, Config::default().admin_timeout));
        assert!(admin_timeout > timeout);
    }

    #[test]
    fn a_namespace_of_a_drive_is_offered_once_at_a_time() {
        let world = World::new(Plan::default());
        let name = world.open().name().to_owned();
        let drives = Drives::default();
        let buffers = [Arc::clone(&world.memory), Arc::clone(&world.memory)];
        let open =
            |nsid| drives.open_by(|| world.open_as(&Config::default()), &name, nsid, &buffers);
        // The fake drive is stepped by whoever waits for it.
        let queues = open(1).unwrap();
        assert_eq!(queues.len(), 2, "one for each core");
        for _ in 0..2 {
            let refused = open(1).unwrap_err().to_string();
            let place = format!("namespace 1 of drive {name} is offered already");
            assert_eq!(refused, format!("{place}; name another one"));
        }
        assert_eq!(world.fake().enables, 2, "a refusal opens nothing");
        // One that the drive lacks leaves nothing, and takes nothing from the other.
        let refused = format!("{:#}", open(7).unwrap_err());
        assert!(refused.contains("no active namespace 7"), "{refused}");
        assert!(open(1).is_err());
        // Offered no more, it may be offered again: the drive was closed between.
        drop(queues);
        drives.close(&name, 1);
        assert_eq!(world.fake().shutdowns, 2);
        assert_eq!(open(1).unwrap().len(), 2);
        drives.close(&name, 1);
        assert_eq!(drives.list.lock().unwrap().len(), 0);
    }
}
