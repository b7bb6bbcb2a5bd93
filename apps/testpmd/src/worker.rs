//! A polling core: its streams, turn after turn, until it is told to stop.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arrayvec::ArrayVec;
use ferrocx_app_common::wait::Wait;
use ferrocx_core::lcore::{LcoreError, Lcores, StopFlag, Worker, handover};
use ferrocx_mempool::Mbuf;
use ferrocx_pmd::{RxQueue, TxQueue, sleep_on};

use crate::{
    stream::{Finished, Receive, Stream, Transmit},
    totals::Counts,
};

/// Rounds over all streams between two looks at requests and faults.
const ROUNDS: u32 = 64;
/// Idle rounds after which a worker that may sleeps until an interrupt.
const IDLE_ROUNDS: u32 = 1000;
/// Longest sleep: then it looks whether it is to stop.
const NAP: Duration = Duration::from_millis(100);
/// Times that a faulty queue is made ready again; then it is left standing.
const MAX_RESETS: u64 = 16;

impl Receive for RxQueue {
    #[inline]
    fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize {
        RxQueue::rx_burst(self, out)
    }
}

impl Transmit for TxQueue {
    #[inline]
    fn tx_burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize {
        TxQueue::tx_burst(self, frames)
    }

    fn refused(&self) -> u64 {
        let stats = self.stats();
        stats.dropped + stats.errors
    }
}

/// Streams of driver queues.
pub type QueueStream<const N: usize> = Stream<RxQueue, TxQueue, N>;
/// What a worker gives back: its queues and their counts.
pub type Ended = Vec<Finished<RxQueue, TxQueue>>;

/// Counts of one stream at some moment.
#[derive(Debug, Clone, Copy)]
struct Snapshot {
    request: u32,
    stream: usize,
    /// It ends the answer to a request.
    is_last: bool,
    counts: Counts,
}

/// A worker as the main thread sees it.
#[derive(Debug)]
pub struct Handle {
    worker: Worker<Ended>,
    requests: Arc<AtomicU32>,
    snapshots: rtrb::Consumer<Snapshot>,
    /// The counts received last, by stream.
    latest: Vec<Counts>,
    ports: Vec<usize>,
    /// A request was made and is not answered yet.
    is_waiting: bool,
}

impl Handle {
    /// Starts a worker on `core`.
    ///
    /// # Errors
    /// [`LcoreError`] if the core cannot be used.
    pub fn launch<const N: usize>(
        lcores: &Lcores,
        core: usize,
        stop: StopFlag,
        wait: Wait,
        streams: Vec<QueueStream<N>>,
    ) -> Result<Self, LcoreError> {
        let requests = Arc::new(AtomicU32::new(0));
        // A request is made only after the last one was answered, so this never overflows.
        let (snapshots_in, snapshots) = handover(streams.len().max(1));
        let latest = vec![Counts::default(); streams.len()];
        let ports = streams.iter().map(|stream| stream.port).collect();
        let seen = Arc::clone(&requests);
        let mut poller =
            Poller { streams, wait, idle_rounds: 0, requests: seen, answered: 0, snapshots_in };
        let worker = lcores.launch(core, stop, move |stop| {
            poller.run(stop);
            poller.streams.into_iter().map(Stream::finish).collect()
        })?;
        Ok(Self { worker, requests, snapshots, latest, ports, is_waiting: false })
    }

    /// Takes counts that have arrived, and asks for the next once those of a request are complete.
    pub fn refresh(&mut self) {
        let request = self.requests.load(Ordering::Relaxed);
        while let Ok(snapshot) = self.snapshots.pop() {
            self.latest[snapshot.stream] = snapshot.counts;
            self.is_waiting &= snapshot.request != request || !snapshot.is_last;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            self.requests.store(request.wrapping_add(1), Ordering::Relaxed);
        }
    }

    /// The counts received last, with the port of each stream.
    pub fn latest(&self) -> impl Iterator<Item = (usize, &Counts)> {
        self.ports.iter().copied().zip(&self.latest)
    }

    /// Its core.
    #[must_use]
    pub fn core(&self) -> usize {
        self.worker.core()
    }

    /// Whether it ended without being told to.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.worker.is_finished()
    }

    /// Stops it and takes its queues.
    ///
    /// # Errors
    /// [`LcoreError::Panicked`].
    pub fn join(self) -> Result<Ended, LcoreError> {
        self.worker.join()
    }
}

/// The worker's side.
struct Poller<const N: usize> {
    streams: Vec<QueueStream<N>>,
    wait: Wait,
    /// Rounds without a frame, counted up to [`IDLE_ROUNDS`].
    idle_rounds: u32,
    requests: Arc<AtomicU32>,
    answered: u32,
    snapshots_in: rtrb::Producer<Snapshot>,
}

impl<const N: usize> Poller<N> {
    fn run(&mut self, stop: &StopFlag) {
        while !stop.is_set() {
            for _ in 0..ROUNDS {
                let mut moved = false;
                for stream in &mut self.streams {
                    moved |= stream.turn();
                }
                if moved {
                    self.idle_rounds = 0;
                } else if !matches!(self.wait, Wait::Interrupt(_)) {
                    self.wait.idle();
                } else if self.has_slept() {
                    break;
                }
            }
            self.answer();
            for stream in &mut self.streams {
                mend(stream);
            }
        }
        // It is told to stop when all is sent: the last frames may have come behind its last look.
        for stream in self.streams.iter_mut().filter(|stream| stream.only_receives()) {
            let _ = (0..ROUNDS).take_while(|_| stream.turn()).count();
        }
    }

    /// Sleeps until an interrupt, if the worker has been idle for a while and has nothing in hand.
    fn has_slept(&mut self) -> bool {
        self.idle_rounds += 1;
        if self.idle_rounds < IDLE_ROUNDS || !self.streams.iter().all(Stream::only_receives) {
            return false;
        }
        // After a nap without a frame it polls once, and sleeps again.
        self.idle_rounds = IDLE_ROUNDS - 1;
        for stream in &mut self.streams {
            stream.queues_mut().0.arm();
        }
        if let Err(error) = sleep_on(self.streams.iter().map(Stream::rx), NAP) {
            tracing::warn!(%error, "cannot sleep");
        }
        for stream in &mut self.streams {
            stream.queues_mut().0.woken();
        }
        true
    }

    fn answer(&mut self) {
        let request = self.requests.load(Ordering::Relaxed);
        if request == self.answered {
            return;
        }
        self.answered = request;
        for (at, stream) in self.streams.iter().enumerate() {
            let (is_last, counts) = (at + 1 == self.streams.len(), stream.counts());
            // The ring has room for one answer, and the next request comes after it was taken.
            let _ = self.snapshots_in.push(Snapshot { request, stream: at, is_last, counts });
        }
    }
}

/// Makes a queue that stopped at a fault ready again.
#[inline]
fn mend<const N: usize>(stream: &mut QueueStream<N>) {
    let (rx, tx) = stream.queues_mut();
    if let Some(fault) = rx.fault().filter(|_| rx.stats().resets < MAX_RESETS) {
        tracing::warn!(%fault, "receive queue stopped; resetting it");
        if let Err(error) = rx.reset() {
            tracing::error!(%error, "the receive queue stays stopped");
        }
    }
    if let Some(fault) = tx.fault().filter(|_| tx.stats().resets < MAX_RESETS) {
        tracing::warn!(%fault, "send queue stopped; resetting it");
        if let Err(error) = tx.reset() {
            tracing::error!(%error, "the send queue stays stopped");
        }
    }
}
