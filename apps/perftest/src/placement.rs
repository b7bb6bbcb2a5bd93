//! Where the threads of an end run, and how they wait.

use anyhow::{Result, anyhow};
use ferrocx_app_common::wait::Wait;
use ferrocx_core::MacAddr;
use ferrocx_core::lcore::{Lcores, StopFlag, Worker};
use ferrocx_model::runner::Helper;

/// Where threads run and how they wait.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The cores that there are.
    pub lcores: Lcores,
    /// One for each thread in turn; empty for no pinning.
    pub cores: Vec<usize>,
    /// How threads wait.
    pub wait: Wait,
    /// The models, if there are any: threads step them while they wait.
    pub helper: Option<Helper>,
    /// MAC address that leads to the peer; `None` for what it says.
    pub peer_mac: Option<MacAddr>,
}

impl Placement {
    /// Starts a thread, on its core if it has one.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        worker: usize,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Thread<T>> {
        let Some(core) = self.cores.get(worker % self.cores.len().max(1)) else {
            return Ok(Thread::Free(std::thread::spawn(run)));
        };
        Ok(Thread::Pinned(self.lcores.launch(*core, StopFlag::new(), move |_| run())?))
    }
}

/// A thread, pinned or not.
pub(crate) enum Thread<T> {
    Pinned(Worker<T>),
    Free(std::thread::JoinHandle<T>),
}

impl<T> Thread<T> {
    /// Waits for its end.
    pub(crate) fn join(self) -> Result<T> {
        match self {
            Self::Pinned(worker) => Ok(worker.join()?),
            Self::Free(thread) => thread.join().map_err(|_| anyhow!("a thread panicked")),
        }
    }
}
