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
    /// the back end: 1 to [`ServerConfig::MAX_BUFFERS`].
    pub buffers: u16,
    /// Buffers of [`ServerConfig::SMALL_BYTES`] of each core, for those of these commands that are
    /// no longer: 1 to [`ServerConfig::MAX_SMALL_BUFFERS`].
    pub small_buffers: u16,
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
            small_buffers: 256,
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

impl ServerConfig {
    /// The most large buffers of a core.
    pub const MAX_BUFFERS: u16 = 1024;
    /// The most small ones.
    pub const MAX_SMALL_BUFFERS: u16 = 4096;
    /// Bytes of a small buffer.
    pub const SMALL_BYTES: usize = super::buffers::SMALL_BYTES;

    /// Buffers of a core, the large ones and the small ones.
    pub(super) fn buffer_counts(&self) -> (u16, u16) {
        let small = self.small_buffers.clamp(1, Self::MAX_SMALL_BUFFERS);
        (self.buffers.clamp(1, Self::MAX_BUFFERS), small)
    }

    /// Bytes of the buffers of a core, where this is the largest transfer.
    pub(crate) fn pool_bytes(&self, max_transfer: u32) -> usize {
        let (large, small) = self.buffer_counts();
        max_transfer as usize * usize::from(large) + Self::SMALL_BYTES * usize::from(small)
    }
}
