//! [`ServerConfig`]: what a server may use.

use std::path::PathBuf;
use std::time::Duration;

use ferrocx::PageSize;

/// What a server may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// Ports to listen on.
    pub services: Vec<u16>,
    /// Queues of all hosts on all cores together: 1 to 1024. Each takes for
    /// each of its entries 8 KiB and the data of a capsule, an admin queue 12 KiB more.
    pub queues: u32,
    /// Of these, those of hosts of one address: 1 to all; 0 for three quarters, and at least what
    /// one host has.
    pub queues_per_address: u32,
    /// Buffers of the largest transfer of each core, for commands whose data do not go straight to
    /// the back end.
    pub buffers: u16,
    /// Pages of its memory.
    pub page: PageSize,
    /// Answers end the host's key where it asks for that. Off for devices that cannot.
    pub remote_invalidate: bool,
    /// How long a command may wait for a drive that is being reset, or for a second buffer, before
    /// it ends with an error: shorter than what Linux waits before it resets the controller, 30 s.
    pub patience: Duration,
    /// How long a host may let data or answers wait before its queue ends: its commands may hold
    /// buffers meanwhile.
    pub host_patience: Duration,
    /// How long a drive may take for a command before it is aborted. A command that finds its drive
    /// dead, waits and finds it dead again takes twice this time and a second, and `patience`: less
    /// than the 30 s that Linux waits.
    pub drive_timeout: Duration,
    /// The folder for reservations that outlive the target; without one, none does.
    pub reservations: Option<PathBuf>,
    /// Its cores can sleep until the device has something ([`Server::sleep`]): each takes an
    /// interrupt vector of the device, which has to have one, and is woken no sooner than so long
    /// after the last time, or after 64 completions; zero for at once. At most
    /// [`Cq::MAX_PERIOD_US`](ferrocx::verbs::Cq::MAX_PERIOD_US).
    ///
    /// [`Server::sleep`]: super::Server::sleep
    pub interrupts: Option<Duration>,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            services: vec![4420],
            queues: 64,
            queues_per_address: 0,
            buffers: 8,
            page: PageSize::default(),
            remote_invalidate: true,
            patience: Duration::from_secs(11),
            host_patience: Duration::from_secs(10),
            drive_timeout: Duration::from_secs(8),
            reservations: None,
            interrupts: None,
        }
    }
}
