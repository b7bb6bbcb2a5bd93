//! One receive queue, the send queue that its frames go to, and the work between them.

use std::time::Instant;

use arrayvec::ArrayVec;
use ferrocx_mempool::{Mbuf, PoolCache};

use crate::{
    engine::{Engine, Offloads},
    profile::{Lap, Part, Profile},
    reason::Reason,
    totals::Counts,
    txonly::Frames,
};

/// Where frames come from: a receive queue.
pub trait Receive {
    /// Appends received frames to `out`, as many as there are and fit; answers how many.
    fn rx_burst<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>) -> usize;
}

/// Where frames go: a send queue.
pub trait Transmit {
    /// Sends frames from the front of `frames`, as many as there is room for; answers how many.
    /// The rest stays. An empty burst still takes back what was sent.
    fn tx_burst<const N: usize>(&mut self, frames: &mut ArrayVec<Mbuf, N>) -> usize;

    /// Frames that [`Transmit::tx_burst`] took and that were not sent after all.
    fn refused(&self) -> u64;
}

/// Frames of `txonly`, at their pace.
#[derive(Debug)]
pub struct Source {
    frames: Frames,
    /// Frames that are still to be made; `None` for no end.
    left: Option<u64>,
    pace: Option<Pace>,
    /// What it made goes before what is forwarded; then it is of no more use.
    is_first: bool,
}

#[derive(Debug)]
struct Pace {
    frames_per_second: u64,
    start: Instant,
    made: u64,
}

impl Source {
    /// `count` frames (`None` for no end), at most `rate` in a second.
    #[must_use]
    pub fn new(frames: Frames, count: Option<u64>, rate: Option<u64>) -> Self {
        let start = Instant::now();
        let pace = rate.map(|frames_per_second| Pace { frames_per_second, start, made: 0 });
        Self { frames, left: count, pace, is_first: false }
    }

    /// `count` frames at once, behind which the stream only forwards.
    #[must_use]
    pub fn first(frames: Frames, count: u64) -> Self {
        Self { frames, left: Some(count), pace: None, is_first: true }
    }

    /// How many of `room` frames are due now.
    fn due(&self, room: usize) -> usize {
        let left = self.left.map_or(room as u64, |left| left.min(room as u64));
        let due = match &self.pace {
            None => left,
            Some(pace) => {
                let elapsed = pace.start.elapsed().as_nanos();
                let until_now = elapsed * u128::from(pace.frames_per_second) / 1_000_000_000;
                let due = u64::try_from(until_now).unwrap_or(u64::MAX).saturating_sub(pace.made);
                due.min(left)
            }
        };
        // At most `room`, which is a burst.
        due as usize
    }

    /// Whether all frames were made.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == Some(0)
    }

    /// Appends due frames to `out`; answers whether the pool had buffers for them.
    fn fill<const N: usize>(&mut self, out: &mut ArrayVec<Mbuf, N>, cache: &mut PoolCache) -> bool {
        let due = self.due(out.remaining_capacity());
        if due == 0 {
            return true;
        }
        if !cache.get_bulk(out, due) {
            return false;
        }
        for frame in out.iter_mut() {
            // Sizes are checked against the buffers when the run is set up.
            if let Some(room) = frame.append(self.frames.next_len()) {
                self.frames.write_next(room);
            }
        }
        self.left = self.left.map(|left| left - due as u64);
        if let Some(pace) = &mut self.pace {
            pace.made += due as u64;
        }
        true
    }
}

/// A receive queue and a send queue of one worker.
///
/// A send queue that is full holds the stream back: frames wait in hand, and no more are received
/// until they are gone. Nothing is lost between the queues.
#[derive(Debug)]
pub struct Stream<R, T, const N: usize> {
    /// Port of the receive queue.
    pub port: usize,
    rx: R,
    tx: T,
    engine: Engine,
    offloads: Offloads,
    source: Option<Source>,
    cache: PoolCache,
    /// Received frames on their way to the send queue; without a source.
    held: ArrayVec<Mbuf, N>,
    /// Generated frames on their way to the send queue.
    generated: ArrayVec<Mbuf, N>,
    counts: Counts,
    profile: Profile,
}

impl<R: Receive, T: Transmit, const N: usize> Stream<R, T, N> {
    /// Joins two queues. `cache` serves generated frames and takes dropped ones.
    pub fn new(
        port: usize,
        (rx, tx): (R, T),
        engine: Engine,
        offloads: Offloads,
        source: Option<Source>,
        cache: PoolCache,
    ) -> Self {
        let (held, generated) = (ArrayVec::new(), ArrayVec::new());
        let (counts, profile) = (Counts::default(), Profile::new());
        Self { port, rx, tx, engine, offloads, source, cache, held, generated, counts, profile }
    }

    /// Receives, works and sends once; answers whether a frame moved.
    ///
    /// Allocates nothing, locks nothing, and makes no system call but, with a rate, reading the
    /// clock.
    #[inline]
    pub fn turn(&mut self) -> bool {
        if self.profile.is_due() {
            let mut lap = Lap::start();
            let moved = self.turn_with(&mut lap);
            self.profile.record(&lap);
            moved
        } else {
            self.turn_with(&mut ())
        }
    }

    #[inline]
    fn turn_with(&mut self, watch: &mut impl Watch) -> bool {
        let mut moved = false;
        if self.source.is_some() {
            moved |= self.generate();
            if self.is_done() && self.source.as_ref().is_some_and(|source| source.is_first) {
                self.source = None;
            }
            watch.lap(Part::Work);
        }
        if !self.held.is_empty() {
            moved |= self.send_held();
            watch.lap(Part::Send);
            if !self.held.is_empty() {
                return moved;
            }
        }
        let received = self.rx.rx_burst(&mut self.held);
        self.counts.polls += 1;
        if received == 0 {
            self.counts.empty_polls += 1;
            watch.lap(Part::Empty);
            return moved;
        }
        watch.lap(Part::Receive);
        self.counts.received.frames += received as u64;
        self.counts.received.bytes += bytes(&self.held);
        let drops = &mut self.counts.dropped;
        self.offloads.before(&mut self.held, &mut self.cache, drops);
        self.engine.process(&mut self.held, &mut self.cache, drops);
        self.offloads.after(&mut self.held);
        watch.lap(Part::Work);
        self.send_held();
        watch.lap(Part::Send);
        true
    }

    /// Sends what is in hand; answers whether a frame left.
    #[inline]
    fn send_held(&mut self) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let before = bytes(&self.held);
        let sent = self.tx.tx_burst(&mut self.held);
        self.counts.forwarded.frames += sent as u64;
        self.counts.forwarded.bytes += before - bytes(&self.held);
        self.counts.tx_full += u64::from(!self.held.is_empty());
        sent > 0
    }

    /// Makes frames and sends them; answers whether a frame left.
    fn generate(&mut self) -> bool {
        let Some(source) = &mut self.source else { return false };
        if self.generated.is_empty() && !source.fill(&mut self.generated, &mut self.cache) {
            self.counts.no_mbuf += 1;
        }
        let before = bytes(&self.generated);
        // Also with an empty burst: it takes back buffers that were sent.
        let sent = self.tx.tx_burst(&mut self.generated);
        self.counts.generated.frames += sent as u64;
        self.counts.generated.bytes += before - bytes(&self.generated);
        self.counts.tx_full += u64::from(!self.generated.is_empty());
        sent > 0
    }

    /// Whether a source was given and everything that it was to make has been handed over.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.source.as_ref().is_some_and(Source::is_done) && self.generated.is_empty()
    }

    /// Whether only a received frame gives it something to do.
    #[must_use]
    pub fn only_receives(&self) -> bool {
        self.held.is_empty() && self.source.is_none()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { in_hand: self.held.len() as u64, ..self.counts }
    }

    /// Where the time went so far.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The receive queue, to sleep on.
    pub fn rx(&self) -> &R {
        &self.rx
    }

    /// The queues, to look after them.
    pub fn queues_mut(&mut self) -> (&mut R, &mut T) {
        (&mut self.rx, &mut self.tx)
    }

    /// Ends the stream: frames in hand are tried once more, and then dropped and counted.
    pub fn finish(mut self) -> Finished<R, T> {
        self.send_held();
        let counts = &mut self.counts;
        counts.dropped.add(Reason::Stopped, self.held.len() as u64);
        self.cache.put_bulk(&mut self.held);
        self.cache.put_bulk(&mut self.generated);
        // A queue that sends both kinds cannot say which it refused; forwarded ones come first.
        let refused = self.tx.refused().min(counts.forwarded.frames);
        counts.forwarded.frames -= refused;
        counts.dropped.add(Reason::TxRefused, refused);
        Finished {
            port: self.port,
            counts: self.counts,
            profile: self.profile,
            rx: self.rx,
            tx: self.tx,
        }
    }
}

/// What is left of a stream.
#[derive(Debug)]
pub struct Finished<R, T> {
    /// Port of the receive queue.
    pub port: usize,
    /// Final counts, which add up.
    pub counts: Counts,
    /// Where the time went.
    pub profile: Profile,
    /// The receive queue.
    pub rx: R,
    /// The send queue.
    pub tx: T,
}

/// Something that is told when a part of a turn is over.
trait Watch {
    fn lap(&mut self, part: Part);
}

/// Most turns are not timed.
impl Watch for () {
    #[inline]
    fn lap(&mut self, _part: Part) {}
}

impl Watch for Lap {
    fn lap(&mut self, part: Part) {
        Lap::lap(self, part);
    }
}

/// Bytes of all frames.
#[inline]
fn bytes<const N: usize>(frames: &ArrayVec<Mbuf, N>) -> u64 {
    frames.iter().map(|frame| frame.pkt_len() as u64).sum()
}

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;
