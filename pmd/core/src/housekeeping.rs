//! [`Housekeeping`]: what a device needs now and then, done by a [`Background`] thread.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::{Device, lock};
use crate::health::{HealthReport, POLL_INTERVAL};

/// Keeps a device's house as long as it lives: a thread answers what the firmware asks for, and
/// looks at the device's health when it wakes, once in [`HEALTH_POLL_INTERVAL`] at most; the log
/// says when that has changed. Made by [`Device::keep_house`].
///
/// [`HEALTH_POLL_INTERVAL`]: crate::HEALTH_POLL_INTERVAL
///
/// A device has one such thread, however many ask for it; it ends with the last of these handles,
/// which waits for it. It takes no event away: [`Device::poll_event`] and every
/// [`EventReader`](crate::EventReader) find them all.
#[derive(Debug, Clone)]
pub struct Housekeeping {
    _keeper: Arc<Keeper>,
}

/// The one thread that keeps a device's house.
#[derive(Debug)]
struct Keeper(Background);

/// A thread that does what is due, until this is dropped, which waits for it.
#[derive(Debug)]
pub struct Background {
    orders: Arc<Orders>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told.
#[derive(Debug)]
struct Orders {
    /// How often to look; `None` to stop.
    every: Mutex<Option<Duration>>,
    changed: Condvar,
}

impl Orders {
    fn change(&self, change: impl FnOnce(&mut Option<Duration>)) {
        change(&mut lock(&self.every));
        self.changed.notify_all();
    }

    /// Waits until it is time to look; `false` to stop.
    fn wait(&self) -> bool {
        let start = Instant::now();
        let mut every = lock(&self.every);
        while let Some(interval) = *every {
            let Some(left) = interval.checked_sub(start.elapsed()).filter(|left| !left.is_zero())
            else {
                return true;
            };
            let woken = self.changed.wait_timeout(every, left);
            every = woken.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        false
    }
}

impl Device {
    /// Has a thread keep the device's house at least every `interval`, until the last
    /// [`Housekeeping`] of the device is dropped. The shortest interval that anybody asked for
    /// counts.
    ///
    /// # Errors
    ///
    /// The system's reason for refusing a thread.
    pub fn keep_house(&self, interval: Duration) -> std::io::Result<Housekeeping> {
        let keeper = self.shared(|| {
            let (device, mut health) = (self.clone(), Health { next: Instant::now(), said: None });
            Background::spawn("ferrocx-keeper", interval, move || {
                device.serve_events();
                health.look(&device);
                false
            })
            .map(Keeper)
        })?;
        keeper.0.orders.change(|every| *every = every.map(|every| every.min(interval)));
        Ok(Housekeeping { _keeper: keeper })
    }
}

impl Background {
    /// Starts a thread that calls `turn` every `interval`, and again at once as long as it says
    /// that it had something to do.
    ///
    /// # Errors
    ///
    /// The system's reason for refusing a thread.
    pub fn spawn(
        name: &str,
        interval: Duration,
        mut turn: impl FnMut() -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let orders =
            Arc::new(Orders { every: Mutex::new(Some(interval)), changed: Condvar::new() });
        let told = Arc::clone(&orders);
        let run = move || {
            while told.wait() {
                while turn() && lock(&told.every).is_some() {}
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { orders, thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.orders.change(|every| *every = None);
        let Some(thread) = self.thread.take() else { return };
        let name = thread.thread().name().unwrap_or_default().to_owned();
        if thread.join().is_err() {
            tracing::error!(name, "a background thread panicked");
        }
    }
}

/// What was found at the last look at a device's health.
struct Health {
    next: Instant,
    /// What the log says, but for the counter, which changes as long as the firmware lives.
    said: Option<HealthReport>,
}

impl Health {
    fn look(&mut self, device: &Device) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + POLL_INTERVAL;
        let report = HealthReport { counter: 0, ..device.health() };
        let name = &device.info().name;
        match (report.is_healthy(), self.said) {
            (true, None) => {}
            (true, Some(_)) => {
                tracing::info!(%name, "the device is healthy again");
                self.said = None;
            }
            (false, said) if said == Some(report) => {}
            (false, _) => {
                tracing::error!(%name, ?report, "the device is not healthy");
                self.said = Some(report);
            }
        }
    }
}
