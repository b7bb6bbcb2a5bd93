//! The thread that does what a device needs now and then, so that no program can forget it.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ferrocx_core::{Device, HEALTH_POLL_INTERVAL};

/// Serves a device's page requests and looks at its health until it is dropped.
#[derive(Debug)]
pub(crate) struct Housekeeper {
    /// Dropped to stop the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Housekeeper {
    /// Starts the thread, which works `every` so often.
    pub(crate) fn start(device: &Device, every: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let device = device.clone();
        let run = move || {
            let mut next_health = Instant::now();
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                look(&device, &mut next_health);
            }
        };
        let thread = std::thread::Builder::new().name("ferrocx-port".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

/// Serves what the firmware asks for, and says in the log when the device is not healthy. Events
/// are left to the program.
fn look(device: &Device, next_health: &mut Instant) {
    let name = &device.info().name;
    device.serve_events();
    if Instant::now() >= *next_health {
        *next_health = Instant::now() + HEALTH_POLL_INTERVAL;
        let report = device.health();
        if !report.is_healthy() {
            tracing::error!(%name, ?report, "the device is not healthy");
        }
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        drop(self.stop.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the housekeeping thread of a port panicked");
        }
    }
}
